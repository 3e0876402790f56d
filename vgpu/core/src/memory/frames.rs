//! Frames of the card's VRAM: a bitmap that several threads may allocate from at once.
//!
//! 1. A bit is set exactly while its frame is allocated.
//! 2. Only the call that changed a bit from 0 to 1 owns the frame; only the owner clears it.
//! 3. Nothing else is shared: free frames are counted from the bits when somebody asks, for a counter that every call
//!    changes would be the word on which all threads meet.
//!
//! A client starts searching at a place of its own, so that clients do not meet on one word.

use std::sync::atomic::{AtomicU64, Ordering};

use fermi_spec::addr::FrameNo;

const BITS: u32 = u64::BITS;

/// Allocator of frame numbers `0..count`.
#[derive(Debug)]
pub struct Frames {
    words: Box<[AtomicU64]>,
    count: u32,
}

impl Frames {
    /// All frames free.
    pub fn new(count: u32) -> Self {
        let words: Box<[AtomicU64]> = (0..count.div_ceil(BITS)).map(|_| AtomicU64::new(0)).collect();
        let tail = count % BITS;
        if tail != 0 {
            // Bits past the end count as allocated for good.
            words[words.len() - 1].store(!0 << tail, Ordering::Relaxed);
        }
        Self { words, count }
    }

    /// Frames there are.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Frames not allocated: looks at every word.
    pub fn free_count(&self) -> u32 {
        let free = |word: &AtomicU64| word.load(Ordering::Relaxed).count_zeros();
        self.words.iter().map(free).sum()
    }

    /// One free frame, searched from `start` on (any number: it wraps); `None` if each was
    /// taken when it was looked at.
    pub fn allocate(&self, start: u32) -> Option<FrameNo> {
        let words = self.words.len();
        let first = (start / BITS) as usize % words;
        let at = (first..words).chain(0..first);
        at.into_iter()
            .find_map(|at| Some(FrameNo(at as u32 * BITS + self.take_in(at)?)))
    }

    fn take_in(&self, at: usize) -> Option<u32> {
        let word = &self.words[at];
        let mut seen = word.load(Ordering::Relaxed);
        while seen != !0 {
            let bit = seen.trailing_ones();
            let before = word.fetch_or(1 << bit, Ordering::Acquire);
            if before & 1 << bit == 0 {
                return Some(bit);
            }
            seen = before;
        }
        None
    }

    /// Takes a particular frame; `false` if it is allocated. For a caller that alone uses the allocator.
    pub fn take(&self, frame: FrameNo) -> bool {
        assert!(frame.0 < self.count, "frame {frame:?} of {}", self.count);
        let before = self.words[(frame.0 / BITS) as usize].fetch_or(1 << (frame.0 % BITS), Ordering::Acquire);
        before & 1 << (frame.0 % BITS) == 0
    }

    /// Gives a frame back. Panics if it is not allocated: that would be two owners.
    pub fn release(&self, frame: FrameNo) {
        assert!(frame.0 < self.count, "frame {frame:?} of {}", self.count);
        let bit = 1 << (frame.0 % BITS);
        let before = self.words[(frame.0 / BITS) as usize].fetch_and(!bit, Ordering::Release);
        assert!(before & bit != 0, "frame {frame:?} released twice");
    }

    /// Whether a frame is allocated.
    pub fn is_taken(&self, frame: FrameNo) -> bool {
        self.words[(frame.0 / BITS) as usize].load(Ordering::Relaxed) & 1 << (frame.0 % BITS) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn exhausted_allocator_gives_none() {
        let frames = Frames::new(65);
        let all: BTreeSet<_> = (0..65).map(|_| frames.allocate(64).expect("free")).collect();
        assert_eq!(
            (all.len(), frames.allocate(0), frames.free_count()),
            (65, None, 0)
        );
    }

    #[test]
    #[should_panic(expected = "released twice")]
    fn second_release_panics() {
        let frames = Frames::new(8);
        let frame = frames.allocate(0).expect("free");
        frames.release(frame);
        frames.release(frame);
    }

    #[test]
    fn two_threads_never_own_the_same_frame() {
        let frames = Frames::new(4096);
        let owners: Vec<std::sync::atomic::AtomicU32> = (0..4096).map(|_| AtomicU32::new(0)).collect();
        std::thread::scope(|scope| {
            for thread in 0..2u32 {
                let (frames, owners) = (&frames, &owners);
                scope.spawn(move || {
                    for round in 0..20_000u32 {
                        let frame = frames
                            .allocate(thread * 2048 + round)
                            .expect("never more than two are out");
                        let before = owners[frame.0 as usize].swap(thread + 1, Ordering::SeqCst);
                        assert_eq!(before, 0, "{frame:?} had an owner");
                        owners[frame.0 as usize].store(0, Ordering::SeqCst);
                        frames.release(frame);
                    }
                });
            }
        });
        assert_eq!(frames.free_count(), 4096);
    }

    proptest! {
        #[test]
        fn history_matches_a_set(count in 1u32..200, steps in proptest::collection::vec((any::<bool>(), any::<u32>()), 0..400)) {
            let frames = Frames::new(count);
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
