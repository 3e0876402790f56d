//! Sums over the chunks of a VM, kept as chunks change: whoever asks for them looks at no chunk.

use serde::{Deserialize, Serialize};

use super::{ChunkNo, ChunkPlace, Chunks, Reach};

/// What a VM's chunks add up to: bytes of those that can move, and numbers of all.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ChunkSums {
    /// Bytes in VRAM that channels reach, or that a sync asked for.
    pub(crate) active: u64,
    /// Bytes in VRAM that nothing reaches.
    pub(crate) idle: u64,
    /// Bytes in host RAM that channels reach, or that a sync asked for.
    pub(crate) wanted: u64,
    /// Bytes of chunks of which a part is in VRAM and a part in host RAM.
    #[serde(default)]
    pub(crate) split: u64,
    pub(crate) unbacked_chunks: u32,
    pub(crate) resident_chunks: u32,
    pub(crate) spilled_chunks: u32,
    pub(crate) both_chunks: u32,
    /// Chunks that nothing reaches, wherever their memory is.
    pub(crate) idle_chunks: u32,
    pub(crate) moving_chunks: u32,
}

impl ChunkSums {
    /// A chunk that was one part of it is another now.
    pub(super) fn replace(&mut self, before: Self, after: Self) {
        let Self {
            active,
            idle,
            wanted,
            split,
            unbacked_chunks,
            resident_chunks,
            spilled_chunks,
            both_chunks,
            idle_chunks,
            moving_chunks,
        } = self;
        let bytes = |sum: &mut u64, before, after| *sum = *sum + after - before;
        let chunks = |sum: &mut u32, before, after| *sum = *sum + after - before;
        bytes(active, before.active, after.active);
        bytes(idle, before.idle, after.idle);
        bytes(wanted, before.wanted, after.wanted);
        bytes(split, before.split, after.split);
        chunks(unbacked_chunks, before.unbacked_chunks, after.unbacked_chunks);
        chunks(resident_chunks, before.resident_chunks, after.resident_chunks);
        chunks(spilled_chunks, before.spilled_chunks, after.spilled_chunks);
        chunks(both_chunks, before.both_chunks, after.both_chunks);
        chunks(idle_chunks, before.idle_chunks, after.idle_chunks);
        chunks(moving_chunks, before.moving_chunks, after.moving_chunks);
    }
}

impl Chunks {
    /// What the chunks add up to.
    pub(crate) fn sums(&self) -> ChunkSums {
        self.sums
    }

    /// The smallest chunk of those that are wanted; 0 if none is.
    pub(crate) fn smallest_wanted(&self) -> u64 {
        let last = self.all().last();
        // All but the last are of one size.
        match last.filter(|&last| self.part(last).wanted > 0) {
            Some(last) => self.bytes(last),
            None if self.sums.wanted > 0 => self.chunk_bytes,
            None => 0,
        }
    }

    /// What one chunk adds.
    pub(super) fn part(&self, no: ChunkNo) -> ChunkSums {
        let chunk = &self.chunks[no.0 as usize];
        let is_in_use = chunk.reach() != Reach::None || self.is_expected(no);
        let bytes = if self.can_move(no) { self.bytes(no) } else { 0 };
        let mut part = ChunkSums {
            idle_chunks: u32::from(!is_in_use),
            moving_chunks: u32::from(chunk.is_on_its_way()),
            ..ChunkSums::default()
        };
        match &chunk.place {
            ChunkPlace::Unbacked => (part.unbacked_chunks, part.idle_chunks) = (1, 0),
            ChunkPlace::Resident(_) => part.resident_chunks = 1,
            ChunkPlace::Spilled => part.spilled_chunks = 1,
            ChunkPlace::Both(_) => part.both_chunks = 1,
            ChunkPlace::Split(_) => part.split = self.bytes(no),
        }
        match (&chunk.place, is_in_use) {
            (ChunkPlace::Resident(_) | ChunkPlace::Both(_), true) => part.active = bytes,
            (ChunkPlace::Resident(_) | ChunkPlace::Both(_), false) => part.idle = bytes,
            (ChunkPlace::Spilled, true) => part.wanted = bytes,
            (ChunkPlace::Spilled, false) | (ChunkPlace::Unbacked | ChunkPlace::Split(_), _) => {}
        }
        part
    }

    /// The sums, chunk by chunk: what they are compared with.
    pub(super) fn counted(&self) -> ChunkSums {
        let mut sums = ChunkSums::default();
        for chunk in self.all() {
            sums.replace(ChunkSums::default(), self.part(chunk));
        }
        sums
    }
}
