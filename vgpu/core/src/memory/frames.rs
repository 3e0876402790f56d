//! Frames of the card's VRAM: a bitmap, searched from a place that the caller chooses.
//!
//! A bit is set exactly while its frame is allocated. The caller that allocated a frame is its only owner until it
//! releases it. The core has one thread (law 6), so nothing here is shared.

use fermi_spec::addr::FrameNo;
use serde::{Deserialize, Serialize};

use crate::saved::Unsound;

const BITS: u32 = u64::BITS;

/// Allocator of frame numbers `0..count`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Frames {
    words: Box<[u64]>,
    count: u32,
    free: u32,
}

impl Frames {
    /// A bitmap with all frames free.
    pub(crate) fn new(count: u32) -> Self {
        let mut words = vec![0; count.div_ceil(BITS) as usize].into_boxed_slice();
        let tail = count % BITS;
        if tail != 0
            && let Some(last) = words.last_mut()
        {
            // Bits past the end count as allocated for good.
            *last = !0 << tail;
        }
        Self {
            words,
            count,
            free: count,
        }
    }

    /// Number of frames that are free.
    pub(crate) fn free_count(&self) -> u32 {
        self.free
    }

    /// The lowest free frame of the first word that has one, searched from the word of `start` on (any number: it
    /// wraps). `None`: all are allocated.
    pub(crate) fn allocate(&mut self, start: u32) -> Option<FrameNo> {
        if self.free == 0 {
            return None;
        }
        let words = self.words.len();
        let first = (start / BITS) as usize % words;
        let at = (first..words).chain(0..first).find(|&at| self.words[at] != !0)?;
        let frame = FrameNo(at as u32 * BITS + self.words[at].trailing_ones());
        self.take(frame).then_some(frame)
    }

    /// Takes a particular frame; `false` if it is allocated.
    pub(crate) fn take(&mut self, frame: FrameNo) -> bool {
        let (at, bit) = self.position(frame);
        let is_free = self.words[at] & bit == 0;
        self.words[at] |= bit;
        self.free -= u32::from(is_free);
        is_free
    }

    /// Gives a frame back. Panics if it is not allocated: that would be two owners.
    pub(crate) fn release(&mut self, frame: FrameNo) {
        let (at, bit) = self.position(frame);
        assert!(self.words[at] & bit != 0, "frame {frame:?} released twice");
        self.words[at] &= !bit;
        self.free += 1;
    }

    /// Checks a bitmap that was read: of `count` frames, of which exactly those that `is_taken` names are allocated.
    pub(crate) fn check(&self, count: u32, is_taken: impl Fn(FrameNo) -> bool) -> Result<(), Unsound> {
        Unsound::unless(
            self.count == count && self.words.len() == count.div_ceil(BITS) as usize,
            "the bitmap is of another number of frames",
        )?;
        let bits = |word: &u64| word.count_zeros();
        Unsound::unless(
            self.words.iter().map(bits).sum::<u32>() == self.free,
            "free frames",
        )?;
        let fits = |frame: u32| {
            let (at, bit) = self.position(FrameNo(frame));
            is_taken(FrameNo(frame)) == (self.words[at] & bit != 0)
        };
        Unsound::unless(
            (0..count).all(fits),
            "a frame is allocated without an owner, or owned and free",
        )
    }

    /// Index of the word, and the frame's bit in it.
    fn position(&self, frame: FrameNo) -> (usize, u64) {
        assert!(frame.0 < self.count, "frame {frame:?} of {}", self.count);
        ((frame.0 / BITS) as usize, 1 << (frame.0 % BITS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn exhausted_allocator_gives_none() {
        let mut frames = Frames::new(65);
        let all: BTreeSet<_> = (0..65).map(|_| frames.allocate(64).expect("free")).collect();
        assert_eq!(
            (all.len(), frames.allocate(0), frames.free_count()),
            (65, None, 0)
        );
    }

    #[test]
    fn search_begins_in_the_word_of_its_start_and_wraps() {
        let mut frames = Frames::new(128);
        frames.take(FrameNo(64));
        let first = frames.allocate(127).expect("free");
        for frame in 66..128 {
            frames.take(FrameNo(frame));
        }
        assert_eq!((first, frames.allocate(127)), (FrameNo(65), Some(FrameNo(0))));
    }

    #[test]
    #[should_panic(expected = "released twice")]
    fn second_release_panics() {
        let mut frames = Frames::new(8);
        let frame = frames.allocate(0).expect("free");
        frames.release(frame);
        frames.release(frame);
    }

    proptest! {
        #[test]
        fn history_matches_a_set(count in 1u32..200, steps in proptest::collection::vec((any::<bool>(), any::<u32>()), 0..400)) {
            let mut frames = Frames::new(count);
            let mut model = BTreeSet::new();
            for (allocate, number) in steps {
                if allocate {
                    match frames.allocate(number) {
                        Some(frame) => prop_assert!(frame.0 < count && model.insert(frame.0)),
                        None => prop_assert_eq!(model.len() as u32, count),
                    }
                } else if let Some(&frame) = model.iter().nth(number as usize % model.len().max(1)) {
                    model.remove(&frame);
                    frames.release(FrameNo(frame));
                }
                prop_assert_eq!(frames.free_count(), count - model.len() as u32);
            }
        }
    }
}
