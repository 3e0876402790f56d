//! Frames of the card's VRAM: a bitmap, searched from a place that the caller chooses, or by random walk.
//!
//! A bit is set exactly while its frame is allocated, and then its owner is known: what a VM's accounts say of it is not
//! believed. The core has one thread (law 6), so nothing here is shared.

use fermi_spec::addr::{FrameNo, VramAddr};
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use crate::contained::Owner;
use crate::event::VmId;
use crate::reason::Inconsistency;
use crate::saved::Unsound;

const BITS: u32 = u64::BITS;
/// Words that a random walk draws before it searches in order. With one frame in a thousand free, 256 draws of 64 frames find none once in
/// ten million searches.
const DRAWS_MAX: u32 = 256;

/// How a free frame is looked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FrameSearch {
    /// In order, each VM from a place of its own: frames of a chunk follow each other as far as they can.
    #[default]
    FirstFit,
    /// In a word of the bitmap drawn anew for each try, and behind many tries in vain in order: RW-BM of Pham et al., Dynamic Memory Management in
    /// Massively Parallel Systems, in the section on a bitmap of used bits.
    RandomWalk,
}

/// What looking for frames took.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Searches {
    /// Frames that were given away.
    pub(crate) found: u64,
    /// Words of the bitmap looked at: the steps of the paper.
    pub(crate) words: u64,
}

/// Allocator of frame numbers `0..count`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Frames {
    words: Box<[u64]>,
    /// Whose each frame is; the broker's while it is free.
    #[serde(with = "crate::saved::runs")]
    owners: Box<[Owner]>,
    count: u32,
    free: u32,
    #[serde(default)]
    searches: Searches,
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
            searches: Searches::default(),
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
        let mut order = (first..words).chain(0..first);
        let skipped = order.position(|at| self.words[at] != !0)?;
        self.found(first + skipped, skipped as u64 + 1, owner)
    }

    /// The lowest free frame of a word that has one, drawn anew for each try. `None`: all are allocated.
    pub(crate) fn walk(&mut self, rng: &mut ChaCha8Rng, owner: VmId) -> Option<FrameNo> {
        if self.free == 0 {
            return None;
        }
        let mut drawn = 0;
        for tries in 1..=DRAWS_MAX {
            drawn = rng.random_range(0..self.words.len());
            if self.words[drawn] != !0 {
                return self.found(drawn, tries.into(), owner);
            }
        }
        self.searches.words += u64::from(DRAWS_MAX);
        self.allocate(drawn as u32 * BITS, owner)
    }

    /// What looking for frames took so far.
    pub(crate) fn searches(&self) -> Searches {
        self.searches
    }

    /// Takes the lowest free frame of a word, which was found in so many steps. The number of the word wraps.
    fn found(&mut self, at: usize, words: u64, owner: VmId) -> Option<FrameNo> {
        let at = at % self.words.len();
        let frame = FrameNo(at as u32 * BITS + self.words[at].trailing_ones());
        let is_free = self.take(frame);
        self.owners[frame.0 as usize] = Some(owner);
        self.searches.found += 1;
        self.searches.words += words;
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
    use rand::SeedableRng as _;
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

    /// Frames of a card of 8 GiB, each free by a chance in ten thousand.
    fn filled(free: u32, rng: &mut ChaCha8Rng) -> Frames {
        let mut frames = Frames::new(65_536);
        (0..65_536)
            .filter(|_| !rng.random_ratio(free, 10_000))
            .for_each(|frame| {
                frames.take(FrameNo(frame));
            });
        frames
    }

    /// The paper's formula: with a part p of the frames free, and 64 in a word, 1 / (1 - (1 - p)^64) words on average.
    #[test]
    fn walk_takes_the_steps_that_the_papers_formula_says() {
        const BITMAPS: u32 = 200;
        const SEARCHES: u32 = 100;
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        for free in [5_000, 1_000, 100, 50] {
            let mut words = 0;
            for _ in 0..BITMAPS {
                let mut frames = filled(free, &mut rng);
                for _ in 0..SEARCHES {
                    let frame = frames.walk(&mut rng, VM).expect("free");
                    frames.release(frame, VM).expect("its own");
                }
                assert_eq!(frames.searches().found, u64::from(SEARCHES));
                words += frames.searches().words;
            }
            let mean = words as f64 / f64::from(BITMAPS * SEARCHES);
            let hits = 1.0 - (1.0 - f64::from(free) / 10_000.0).powi(64);
            // Tries of a search, and words with a free frame among a bitmap's 1,024.
            let tries = (1.0 - hits) / hits.powi(2) / f64::from(BITMAPS * SEARCHES);
            let bitmaps = (1.0 - hits) / hits.powi(3) / 1024.0 / f64::from(BITMAPS);
            let error = (tries + bitmaps).sqrt();
            let formula = 1.0 / hits;
            assert!(
                (mean - formula).abs() <= 3.0 * error + 1e-9,
                "{free}: {mean}, and {formula} ± {error}"
            );
        }
    }

    /// One free frame of 65,536: most walks end with the search in order.
    #[test]
    fn walk_in_a_full_card_is_bounded_and_finds_what_there_is() {
        let mut rng = ChaCha8Rng::seed_from_u64(2);
        let mut frames = Frames::new(65_536);
        (0..65_536).filter(|&frame| frame != 40_000).for_each(|frame| {
            frames.take(FrameNo(frame));
        });
        for _ in 0..50 {
            let before = frames.searches().words;
            assert_eq!(frames.walk(&mut rng, VM), Some(FrameNo(40_000)));
            assert!(frames.searches().words - before <= u64::from(DRAWS_MAX) + 1024);
            frames.release(FrameNo(40_000), VM).expect("its own");
        }
        assert!(frames.searches().words > 50 * 100);
        frames.take(FrameNo(40_000));
        assert_eq!(frames.walk(&mut rng, VM), None);
    }

    proptest! {
        #[test]
        fn history_matches_a_set(
            count in 1u32..200,
            walks in any::<bool>(),
            steps in proptest::collection::vec((any::<bool>(), any::<u32>()), 0..400),
        ) {
            let mut rng = ChaCha8Rng::seed_from_u64(3);
            let mut frames = Frames::new(count);
            let mut model = BTreeSet::new();
            for (allocate, number) in steps {
                if allocate {
                    let found = match walks {
                        true => frames.walk(&mut rng, VM),
                        false => frames.allocate(number, VM),
                    };
                    match found {
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
