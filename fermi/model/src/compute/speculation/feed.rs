//! A block comes to where its track was played: it executes the same steps again, loads what they loaded, and stores nothing.

use super::{
    super::{
        block::{Block, Slot, Surroundings},
        code::Code,
        launch::Launch,
        simd::{self, Level},
        tally::Tally,
    },
    record::refusal,
    rows::{ByRows, Rows},
    track::{Kind, Track},
};
use crate::mmu::Refusal;

/// The block of a track as it is behind its first `steps` steps, by the code that the track was made from.
pub(super) fn block_at(launch: &Launch, slot: Slot, track: Track, steps: u64) -> (Block, Track) {
    simd::perform(CatchUp {
        launch,
        slot,
        track,
        steps,
    })
}

struct CatchUp<'a> {
    launch: &'a Launch,
    slot: Slot,
    track: Track,
    steps: u64,
}

impl simd::Work for CatchUp<'_> {
    type Output = (Block, Track);

    #[inline(always)]
    fn perform(self, level: impl Level) -> (Block, Track) {
        let Self {
            launch,
            slot,
            mut track,
            mut steps,
        } = self;
        let mut block = track.block.take().unwrap_or_else(|| Block::new(launch));
        block.start(launch, track.index, slot);
        let mut code = track.code.as_deref().map_or_else(Code::default, Code::clone);
        let around = Surroundings {
            launch,
            outside: &mut ByRows(Feed {
                track: &track,
                access: 0,
                data: 0,
            }),
            tally: &mut Tally::default(),
        };
        // It cannot stop where it did not stop the first time.
        let _ = block.run(level, &mut code, around, &mut (), &mut steps);
        (block, track)
    }
}

/// Loads what a track has.
struct Feed<'a> {
    track: &'a Track,
    access: usize,
    data: usize,
}

impl Feed<'_> {
    /// The bytes of the next access.
    fn next(&mut self) -> &[u8] {
        let bytes = self
            .track
            .accesses
            .get(self.access)
            .map_or(0, |access| access.bytes) as usize;
        let data = self
            .track
            .data
            .get(self.data..self.data + bytes)
            .unwrap_or_default();
        self.access += 1;
        self.data += bytes;
        data
    }
}

impl Rows for Feed<'_> {
    fn fetch(&mut self, va: u64, _: &mut [u8]) -> Result<(), Refusal> {
        Err(refusal(va, false))
    }

    fn load(&mut self, _: Kind, _: u64, data: &mut [u8]) -> Result<(), Refusal> {
        let known = self.next();
        if known.len() == data.len() {
            data.copy_from_slice(known);
        }
        Ok(())
    }

    fn store(&mut self, _: Kind, _: u64, _: &[u8]) -> Result<(), Refusal> {
        self.next();
        Ok(())
    }

    fn touch(&mut self, _: Kind, _: u64) {
        self.next();
    }

    fn refuse_atomic(&mut self, va: u64) -> Refusal {
        refusal(va, true)
    }
}
