//! Frames of the card's VRAM: a bitmap, searched from a place that the caller chooses.
//!
//! A bit is set exactly while its frame is allocated, and then its owner is known: what a VM's accounts say of it is not
//! believed. The core has one thread (law 6), so nothing here is shared.

use fermi_spec::addr::{FrameNo, VramAddr};
use serde::{Deserialize, Serialize};

use crate::contained::Owner;
use crate::event::VmId;
use crate::reason::Inconsistency;
use crate::saved::Unsound;

const BITS: u32 = u64::BITS;

/// Allocator of frame numbers `0..count`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Frames {
    words: Box<[u64]>,
    /// Whose each frame is; the broker's while it is free.
    #[serde(with = "crate::saved::runs")]
    owners: Box<[Owner]>,
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
            owners: vec![None; count as usize].into(),
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
    pub(crate) fn allocate(&mut self, start: u32, owner: VmId) -> Option<FrameNo> {
        if self.free == 0 {
            return None;
        }
        let words = self.words.len();
        let first = (start / BITS) as usize % words;
        let at = (first..words).chain(0..first).find(|&at| self.words[at] != !0)?;
        let frame = FrameNo(at as u32 * BITS + self.words[at].trailing_ones());
        let is_free = self.take(frame);
        self.owners[frame.0 as usize] = Some(owner);
        is_free.then_some(frame)
    }

    /// Takes a particular frame for the broker; `false` if it is allocated.
    pub(crate) fn take(&mut self, frame: FrameNo) -> bool {
        let (at, bit) = self.position(frame);
        let is_free = self.words[at] & bit == 0;
        self.words[at] |= bit;
        self.free -= u32::from(is_free);
        is_free
    }

    /// Gives a frame back.
    ///
    /// # Errors
    /// It is not that VM's, and stays as it is.
    pub(crate) fn release(&mut self, frame: FrameNo, owner: VmId) -> Result<(), Inconsistency> {
        let held = self
            .owners
            .get_mut(frame.0 as usize)
            .filter(|held| **held == Some(owner));
        let Some(held) = held else {
            return Err(Inconsistency::frame(frame));
        };
        *held = None;
        let (at, bit) = self.position(frame);
        self.words[at] &= !bit;
        self.free += 1;
        Ok(())
    }

    /// Whether a frame is that VM's.
    pub(crate) fn is_held(&self, frame: FrameNo, owner: VmId) -> bool {
        self.owners.get(frame.0 as usize) == Some(&Some(owner))
    }

    /// Whether a byte of the card's VRAM lies in a frame of that VM.
    pub(crate) fn is_at(&self, at: VramAddr, owner: VmId) -> bool {
        FrameNo::of(at).is_some_and(|frame| self.is_held(frame, owner))
    }

    /// The frames of a VM, whatever its accounts say.
    pub(crate) fn held_by(&self, owner: VmId) -> impl Iterator<Item = FrameNo> {
        (0..)
            .zip(&self.owners)
            .filter(move |(_, held)| **held == Some(owner))
            .map(|(frame, _)| FrameNo(frame))
    }

    /// Checks a bitmap that was read: of `count` frames, of which exactly those are allocated whose owner `owner_of` names.
    /// It is `None` where nobody is.
    pub(crate) fn check(
        &self,
        count: u32,
        owner_of: impl Fn(FrameNo) -> Option<Owner>,
    ) -> Result<(), Unsound> {
        Unsound::unless(
            self.count == count
                && self.words.len() == count.div_ceil(BITS) as usize
                && self.owners.len() == count as usize,
            "the bitmap is of another number of frames",
        )?;
        let bits = |word: &u64| word.count_zeros();
        Unsound::unless(
            self.words.iter().map(bits).sum::<u32>() == self.free,
            "free frames",
        )?;
        let fits = |frame: u32| {
            let (at, bit) = self.position(FrameNo(frame));
            let is_taken = self.words[at] & bit != 0;
            let owner = owner_of(FrameNo(frame));
            owner.is_some() == is_taken && owner.flatten() == self.owners[frame as usize]
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

    const VM: VmId = VmId(7);

    #[test]
    fn exhausted_allocator_gives_none() {
        let mut frames = Frames::new(65);
        let all: BTreeSet<_> = (0..65).map(|_| frames.allocate(64, VM).expect("free")).collect();
        assert_eq!(
            (all.len(), frames.allocate(0, VM), frames.free_count()),
            (65, None, 0)
        );
    }

    #[test]
    fn search_begins_in_the_word_of_its_start_and_wraps() {
        let mut frames = Frames::new(128);
        frames.take(FrameNo(64));
        let first = frames.allocate(127, VM).expect("free");
        for frame in 66..128 {
            frames.take(FrameNo(frame));
        }
        assert_eq!((first, frames.allocate(127, VM)), (FrameNo(65), Some(FrameNo(0))));
    }

    #[test]
    fn frame_is_released_once_and_by_its_owner() {
        let mut frames = Frames::new(8);
        let frame = frames.allocate(0, VM).expect("free");
        frames.take(FrameNo(5));
        for (wrong, by) in [
            (frame, VmId(1)),
            (FrameNo(5), VM),
            (FrameNo(6), VM),
            (FrameNo(8), VM),
        ] {
            assert!(frames.release(wrong, by).is_err(), "{wrong:?}");
        }
        assert_eq!(frames.held_by(VM).collect::<Vec<_>>(), [frame]);
        assert_eq!(frames.release(frame, VM), Ok(()));
        assert!(frames.release(frame, VM).is_err());
        assert_eq!((frames.free_count(), frames.held_by(VM).count()), (7, 0));
    }

    proptest! {
        #[test]
        fn history_matches_a_set(count in 1u32..200, steps in proptest::collection::vec((any::<bool>(), any::<u32>()), 0..400)) {
            let mut frames = Frames::new(count);
            let mut model = BTreeSet::new();
            for (allocate, number) in steps {
                if allocate {
                    match frames.allocate(number, VM) {
                        Some(frame) => prop_assert!(frame.0 < count && model.insert(frame.0)),
                        None => prop_assert_eq!(model.len() as u32, count),
                    }
                } else if let Some(&frame) = model.iter().nth(number as usize % model.len().max(1)) {
                    model.remove(&frame);
                    prop_assert!(frames.release(FrameNo(frame), VM).is_ok());
                }
                prop_assert_eq!(frames.free_count(), count - model.len() as u32);
            }
        }
    }
}
