//! Policies: whose memory moves, and which. A published system is one row of [`PolicyName`].
//!
//! A policy sees a snapshot and answers; it changes nothing. Limits (min, max, budgets, one move at a time) are kept by
//! the manager whatever a policy says.

use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use crate::config::Quota;
use crate::event::VmId;
use crate::memory::ChunkNo;

mod gpuswap;

/// The policies there are, as configurations name them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PolicyName {
    /// Most-VRAM victim, random chunk, least-VRAM refill (Kehne et al., VEE'15).
    #[default]
    Gpuswap,
}

impl PolicyName {
    pub(crate) fn policy(self) -> Box<dyn Policy> {
        match self {
            Self::Gpuswap => Box::new(gpuswap::Gpuswap),
        }
    }
}

/// One VM, as a choice sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Holding {
    pub(crate) vm: VmId,
    /// Bytes in VRAM that are not idle, plus what the VM is asking for.
    pub(crate) claim: u64,
    /// Bytes in VRAM.
    pub(crate) resident: u64,
    /// Bytes in VRAM that could be moved out now.
    pub(crate) movable: u64,
    /// Bytes of reached chunks in host RAM.
    pub(crate) wanted: u64,
    /// Bytes of the largest chunk.
    pub(crate) chunk: u64,
    pub(crate) quota: Quota,
}

impl Holding {
    /// Bytes by weight, scaled so that weight 100 is one.
    pub(crate) fn weighted(&self, bytes: u64) -> u64 {
        (u128::from(bytes) * 100 / u128::from(self.quota.weight)) as u64
    }

    /// Whether a chunk can go without leaving less than `protected` bytes.
    pub(crate) fn may_lose(&self, chunk: u64, protected: u64) -> bool {
        self.movable >= chunk && self.resident.saturating_sub(chunk) >= protected
    }
}

/// What a system of the literature decides.
pub(crate) trait Policy: Send {
    /// Who gives up a chunk when somebody needs one; `None` if nobody may.
    fn victim(&self, holdings: &[Holding]) -> Option<VmId>;

    /// Who gets a chunk back; `None` if nobody wants one.
    fn winner(&self, holdings: &[Holding]) -> Option<VmId>;

    /// Who gives a chunk to the winner though nobody needs one now: for fairness. Must end: not oscillate.
    fn giver(&self, holdings: &[Holding], winner: VmId) -> Option<VmId>;

    /// Which of the candidates moves: an index. There is at least one.
    fn chunk(&self, candidates: &[ChunkNo], rng: &mut ChaCha8Rng) -> usize;
}
