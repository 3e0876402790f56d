//! Policies: whose memory moves, and which. A published system is one file here and one row of [`PolicyName`].
//!
//! ```text
//! what happens ──Observation──► Policy ◄──Snapshot, Occasion── the mechanism (manager::pressure)
//!                                 └──Proposal──► limits (manager::limits) ──► a move, or host RAM
//! ```
//!
//! A policy sees and proposes; it changes nothing. What must hold whatever it says (min, max, host RAM, one owner, one
//! move at a time, bytes of a move) is kept by `manager::limits`: a proposal that goes too far is cut or refused there.
//! A policy that keeps a state keeps it from observations; the snapshot is borrowed and made only when a decision is due.

use std::collections::BTreeSet;

use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

mod adaptive;
mod gdm;
mod gpuswap;
mod recency;
pub(crate) mod shares;
mod sharing;
mod snapshot;

pub use crate::memory::{ChunkNo, Reach};
pub(crate) use snapshot::LastUse;
pub use snapshot::{ChunkView, DemandView, Residence, Snapshot, VmView, WorkView};

use crate::config::{GpuConfig, Quota};
use crate::event::{Tick, VmId};
use crate::notice::Direction;
use crate::reason::MoveCause;

/// The policies there are, as configurations name them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PolicyName {
    /// Most-VRAM victim, random chunk, least-VRAM refill (Kehne et al., VEE'15).
    Gpuswap,
    /// The same shares; of a VM's chunks those that were used last, and with which it is fastest.
    Recency,
    /// The same shares; of a VM's chunks those that its next launches will use, which wait for them (Wang et al., SIGMETRICS'14).
    Gdm,
    /// The same, and each launch waits for its memory whether that pays or not, as on cards that cannot reach host RAM.
    #[serde(rename = "gdm-always")]
    GdmAlways,
    /// The same shares; of a VM's chunks those that most launches use (Ganguly's thesis, 2020, chapter 5).
    #[default]
    Adaptive,
}

impl std::fmt::Display for PolicyName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Gpuswap => "gpuswap",
            Self::Recency => "recency",
            Self::Gdm => "gdm",
            Self::GdmAlways => "gdm-always",
            Self::Adaptive => "adaptive",
        })
    }
}

impl PolicyName {
    /// All that there are.
    pub const ALL: [Self; 5] = [
        Self::Gpuswap,
        Self::Recency,
        Self::Gdm,
        Self::GdmAlways,
        Self::Adaptive,
    ];

    pub(crate) fn policy(self, config: &GpuConfig) -> Box<dyn Policy> {
        match self {
            Self::Gpuswap => Box::new(gpuswap::Gpuswap),
            Self::Recency => Box::new(recency::Recency::default()),
            Self::Gdm => Box::new(gdm::Gdm::default()),
            Self::GdmAlways => Box::new(gdm::Always),
            Self::Adaptive => Box::new(adaptive::Adaptive::new(
                config.migrate_after,
                config.migrate_penalty,
            )),
        }
    }
}

/// Why a policy is asked. Nothing moves at that time, unless it says so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Occasion {
    /// The VM holds more than its `max`. Only a spill of its chunks is an answer; without one the mechanism chooses.
    AboveMax {
        /// VM whose chunks have to go.
        vm: VmId,
    },
    /// [`Snapshot::demands`] wait, and the first cannot be met from free frames. Without an answer they are met in host
    /// RAM when their time is up.
    Demand,
    /// Nobody demands anything, and the VM's next launch waits for chunks that are in host RAM ([`VmView::work`]). Without an answer it goes
    /// as it is.
    Held {
        /// VM whose launch waits.
        vm: VmId,
    },
    /// The VM hands work over that would be looked at, and wait for its memory. Only [`Proposal::Release`] is an answer; without one it is looked at.
    /// Something may move at that time. The snapshot has this VM alone, and no demands: a guest can ring as often as it likes.
    Due {
        /// VM whose work it is.
        vm: VmId,
    },
    /// Nobody demands anything, and an observation made a pass worth while ([`Worth::Pass`]).
    Pass,
    /// Nobody demands anything, and the period of the pass is over.
    Tick,
}

/// A move that a policy proposes. It proposes one at a time; for the next one it is asked again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Proposal {
    /// All stays as it is. Demands wait.
    Nothing,
    /// Chunks from VRAM to host RAM.
    Spill {
        /// VM that has the chunks.
        vm: VmId,
        /// Each once, the most urgent first: limits cut the list at its end.
        chunks: Vec<ChunkNo>,
        /// The reason, as logs and metrics tell it.
        cause: MoveCause,
    },
    /// Chunks from host RAM into free frames.
    Refill {
        /// VM that has the chunks.
        vm: VmId,
        /// As for a spill. Frames are taken in this order.
        chunks: Vec<ChunkNo>,
        /// Cause, as for a spill.
        cause: MoveCause,
    },
    /// Chunks of a VM change places, while it is stopped once.
    Exchange {
        /// VM that has the chunks.
        vm: VmId,
        /// Chunks that go to host RAM, as for a spill.
        leave: Vec<ChunkNo>,
        /// Chunks that come into their frames, of no more bytes together.
        come: Vec<ChunkNo>,
        /// Cause, as for a spill.
        cause: MoveCause,
    },
    /// The VM's work is not held until then, or for a second at most: it runs on memory that is where it is.
    Release {
        /// VM whose launch waits.
        vm: VmId,
        /// When the next one that lacks memory waits again.
        until: Tick,
        /// What launches use is looked up meanwhile too ([`Observation::Work`]), for a 32nd of the time at most.
        with_looks: bool,
    },
    /// Demanded chunks get host RAM instead of VRAM. Nothing is copied: they hold nothing yet.
    HostRam {
        /// The demand, and the chunks of it.
        chunks: Vec<(VmId, Vec<ChunkNo>)>,
    },
}

/// Something that happened to memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Observation<'a> {
    /// A chunk got memory for the first time.
    Backed {
        /// VM that has the chunk.
        vm: VmId,
        /// Number of the chunk within the VM.
        chunk: ChunkNo,
        /// In VRAM; otherwise in host RAM.
        resident: bool,
        /// In VRAM it would have put the VM above its `max`.
        over_max: bool,
    },
    /// A move has ended, and the chunks are in their new place.
    Moved {
        /// VM that has the chunks.
        vm: VmId,
        /// Direction in which they went.
        direction: Direction,
        /// In no particular order.
        chunks: &'a [ChunkNo],
    },
    /// A move was given up, and the chunks are where they were. The VM is passed over for a while.
    RolledBack {
        /// VM that has the chunks.
        vm: VmId,
        /// Direction in which they should have gone.
        direction: Direction,
        /// In no particular order.
        chunks: &'a [ChunkNo],
    },
    /// Channels of the VM reach the chunk otherwise than before: the guest mapped it, or changed how.
    Reached {
        /// VM that has the chunk.
        vm: VmId,
        /// Number of the chunk within the VM.
        chunk: ChunkNo,
        /// For stores too, or for loads only.
        reach: Reach,
    },
    /// No channel reaches the chunk any more. It keeps its memory.
    Idled {
        /// VM that has the chunk.
        vm: VmId,
        /// Number of the chunk within the VM.
        chunk: ChunkNo,
    },
    /// What the VM's channels reach was counted anew, whether it changed or not. Comes after the VM's last
    /// [`Observation::Reached`] or [`Observation::Idled`].
    Synced {
        /// VM that has the tables.
        vm: VmId,
    },
    /// Work that a channel of the VM was handed is known, while memory of the VM is in host RAM.
    Work {
        /// VM whose channel it is.
        vm: VmId,
        /// The same for the same codes, grids and bytes of copies, whatever they work on.
        kind: u64,
        /// When the guest rang for it.
        at: Tick,
        /// Chunks that it uses, if they were looked up: while work waits for its memory, or is released with looks and there is credit for
        /// one.
        chunks: Option<&'a BTreeSet<ChunkNo>>,
        /// What it took to find that out, in nanoseconds as work of the broker counts.
        look_ns: u64,
    },
    /// The operator changed what the VM may hold.
    QuotaChanged {
        /// VM that has the quota.
        vm: VmId,
        /// From now on.
        quota: Quota,
    },
    /// All memory of the VM is free: it is gone, or its device was reset. What is remembered of it is void.
    Emptied {
        /// The VM. Another VM may have its number later.
        vm: VmId,
    },
}

/// Whether a policy wants to be asked after an observation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Worth {
    /// There is nothing to propose because of it.
    Nothing,
    /// [`Occasion::Pass`] is wanted as soon as nothing moves and nobody demands anything.
    Pass,
}

/// What a policy wants of the work that guests hand to their channels. All but the first cost a look at each doorbell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WorkWanted {
    /// Nothing: rings are not read.
    Nothing,
    /// What launches use, while memory of their VM is in host RAM and as far as there is time for it. None of them waits.
    Looks,
    /// The same before the card has them: they wait for their memory ([`Occasion::Held`]).
    Waits,
}

/// Memory of the card in three figures: at hand after every event, without a snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// Bytes of VRAM that nobody holds.
    pub free: u64,
    /// Bytes of VRAM that VMs hold.
    pub resident: u64,
    /// Bytes of chunks in host RAM only.
    pub spilled: u64,
    /// Bytes that VMs hold above their `high`.
    pub above_high: u64,
}

/// [`Policy::restore`] of a policy without a state.
fn nothing_kept(policy: &str, saved: &str) -> Result<(), String> {
    match saved {
        "" => Ok(()),
        other => Err(format!("{policy} keeps nothing, and is told {other:?}")),
    }
}

/// The decisions of a system of the literature. None has a default, so a policy that leaves one out says so.
pub trait Policy: Send {
    /// Answers an occasion. Draws come from `rng` alone, so that a run can be repeated.
    fn propose(&mut self, view: &Snapshot<'_>, occasion: Occasion, rng: &mut ChaCha8Rng) -> Proposal;

    /// Takes note of what happened.
    fn observe(&mut self, what: &Observation<'_>) -> Worth;

    /// What it wants of the work of channels.
    fn wants_work(&self) -> WorkWanted;

    /// Its state between two occasions, as text for [`Policy::restore`]; empty if it has none.
    fn save(&self) -> String;

    /// Takes over what another one of its kind kept. This one is new.
    ///
    /// # Errors
    /// Says what it cannot take over, and why.
    fn restore(&mut self, saved: &str) -> Result<(), String>;

    /// Whether [`Occasion::Tick`] is to come when the period is over though no event does.
    fn wants_tick(&self, usage: Usage) -> bool;
}
