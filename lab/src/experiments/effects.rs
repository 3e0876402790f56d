//! What memory management did while programs ran, as the core's notices tell it.

use vgpu::{Direction, Notice};

/// What was done to all VMs together.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Effects {
    /// Chunks moved to host RAM, and back.
    pub(super) chunks: [u64; 2],
    /// Bytes that were copied for it, both ways.
    pub(super) copied: u64,
    /// For how long channels were off the card for moves, each time.
    pub(super) stopped_ns: Vec<u64>,
    /// For how long accesses waited for memory, each time.
    pub(super) waits_ns: Vec<u64>,
    /// For how long work waited for its memory, together.
    pub(super) held_ns: u64,
}

impl Effects {
    pub(super) fn of<'a>(notices: impl IntoIterator<Item = &'a Notice>) -> Self {
        let mut effects = Self::default();
        for notice in notices {
            match notice {
                Notice::Moved {
                    direction,
                    chunks,
                    copied,
                    ..
                } => {
                    effects.chunks[usize::from(*direction == Direction::Refill)] += u64::from(*chunks);
                    effects.copied += copied;
                }
                Notice::Resumed { suspended_ns, .. } => effects.stopped_ns.push(*suspended_ns),
                Notice::DemandEnded { waited_ns, .. } => effects.waits_ns.push(*waited_ns),
                Notice::WorkWaited { waited_ns, .. } => effects.held_ns += waited_ns,
                _ => {}
            }
        }
        effects
    }

    /// Chunks moved either way.
    pub(super) fn moved(&self) -> u64 {
        self.chunks.iter().sum()
    }
}
