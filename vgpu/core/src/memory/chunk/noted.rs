//! What is noted of chunks for policies.

use super::{ChunkNo, Chunks, History, Reach};
use crate::event::Tick;

impl Chunks {
    pub(crate) fn history(&self, chunk: ChunkNo) -> &History {
        &self.chunks[chunk.0 as usize].history
    }

    pub(crate) fn note_backed(&mut self, chunk: ChunkNo, now: Tick) {
        self.chunks[chunk.0 as usize].history.backed_at = Some(now);
    }

    pub(crate) fn note_moved(&mut self, chunk: ChunkNo, now: Tick) {
        let history = &mut self.chunks[chunk.0 as usize].history;
        history.moved_at = Some(now);
        history.moves = history.moves.saturating_add(1);
    }

    /// The CPU accessed it through a window.
    pub(crate) fn note_touched(&mut self, chunk: ChunkNo, now: Tick) {
        self.chunks[chunk.0 as usize].history.touched_at = Some(now);
    }

    /// The card got launches that use it: so many, by one that was seen.
    pub(crate) fn note_launched(&mut self, chunk: ChunkNo, launches: u32, now: Tick) {
        let history = &mut self.chunks[chunk.0 as usize].history;
        history.launched_at = Some(now);
        history.launches = history.launches.saturating_add(launches);
    }

    /// The chunks whose reach differs from what was last noted, in order, and the reach they have.
    pub(crate) fn note_reach(&mut self, now: Tick) -> Vec<(ChunkNo, Reach)> {
        let mut noted = Vec::new();
        for no in std::mem::take(&mut self.changed_reach) {
            let chunk = &mut self.chunks[no.0 as usize];
            let (reach, history) = (chunk.reach(), &mut chunk.history);
            if reach != history.reach {
                (history.reach, history.reach_since) = (reach, now);
                noted.push((no, reach));
            }
        }
        noted
    }
}
