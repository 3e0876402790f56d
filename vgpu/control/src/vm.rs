//! What is told of the VMs of a host.

use serde::{Deserialize, Serialize};

use crate::gpu::GoneGpu;
use crate::hold::Hold;
use crate::place::PlaceSource;
use crate::quota::{Quota, QuotaSource};

/// All VMs of the host that may attach.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Vms {
    /// The VMs, by card and name.
    pub vms: Vec<Vm>,
    /// Cards that are gone, whose VMs are not here.
    #[serde(default)]
    pub gone: Vec<GoneGpu>,
}

/// A VM that may attach, and what it has if its VMM is connected.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Vm {
    /// Name in the host's file.
    pub name: String,
    /// Name of its card.
    pub gpu: String,
    /// Path of the socket that its VMM connects to.
    pub socket: String,
    /// Bytes of VRAM that its guest sees.
    pub guest_vram_bytes: u64,
    /// Bytes of the unit in which its memory moves.
    pub chunk_bytes: u64,
    /// What it may hold.
    pub quota: Quota,
    /// Where its quota is from.
    pub quota_source: QuotaSource,
    /// What the host's file says of its quota. Null: the file does not have the VM.
    pub file_quota: Option<Quota>,
    /// Where the VM is from.
    pub source: PlaceSource,
    /// What an operator holds back from it.
    pub hold: Hold,
    /// What it holds. Null while no VMM is connected.
    pub usage: Option<Usage>,
    /// What its memory cost it since its VMM connected. Null while none is.
    pub account: Option<Account>,
}

/// What a VM holds now. Instance memory is not counted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Usage {
    /// Bytes in VRAM.
    pub resident_bytes: u64,
    /// Bytes in host RAM.
    pub spilled_bytes: u64,
    /// Bytes in VRAM that its channels reach.
    pub active_bytes: u64,
    /// Bytes in VRAM that nothing reaches: the first to be spilled.
    pub idle_bytes: u64,
    /// Bytes in host RAM that its channels reach: what it would have back.
    pub wanted_bytes: u64,
    /// Its guest has not used the GPU for a while. What `min` and `low` do not protect of its memory is lent to VMs that want it, and comes back when it
    /// works.
    #[serde(default)]
    pub lends: bool,
    /// The most bytes that it had in VRAM.
    pub resident_peak_bytes: u64,
}

/// What a VM's memory cost it since its VMM connected.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Account {
    /// Time in nanoseconds since its VMM connected.
    pub attached_ns: u64,
    /// Bytes moved to host RAM.
    pub spilled_out_bytes: u64,
    /// Bytes moved back to VRAM.
    pub refilled_bytes: u64,
    /// Bytes that crossed the link to the card for these moves.
    pub link_bytes: u64,
    /// Moves that were given up.
    pub rolled_back: u64,
    /// Times that its channels stood still for a move, given up or not.
    pub pauses: Pauses,
    /// How much of that was the wait for what its channels had under way.
    pub drained_ns: u64,
    /// Time in nanoseconds for which its work was on the engine that computes and draws, by 20 samples a second.
    pub graph_ns: u64,
    /// The same for the copy engines, both together.
    pub copy_ns: u64,
    /// Times that one of its accesses waited for memory.
    pub demand_waits: Waits,
    /// Chunks that were put in host RAM because VRAM was not to be had in time.
    pub demanded_in_host_ram: u64,
    /// Times that an update of its page tables waited for memory or for a move.
    pub sync_waits: Waits,
    /// Times that its work waited for memory that its launches use, under a policy that has it wait (`gdm`, `gdm-always`).
    pub work_waits: Waits,
    /// Whom its memory was moved out for.
    pub spilled_for: Vec<SpilledFor>,
    /// Errors of the guest that drivers do not make.
    pub guest_errors: u64,
    /// Channels that were stopped after a fault.
    pub channels_killed: u64,
}

/// Times that channels stood still.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Pauses {
    /// Number of pauses.
    pub count: u64,
    /// All of them together, with one under way, in nanoseconds.
    pub total_ns: u64,
    /// Parts of a million of the time since its VMM connected.
    pub share_ppm: u64,
    /// Median, in nanoseconds.
    pub p50_ns: u64,
    /// 99 of 100 are no longer, in nanoseconds.
    pub p99_ns: u64,
    /// The longest, in nanoseconds.
    pub max_ns: u64,
}

/// Times that something waited.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Waits {
    /// Number of waits.
    pub count: u64,
    /// All of them together, in nanoseconds.
    pub total_ns: u64,
}

/// Memory of a VM that was moved out for another VM's sake, or its own.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SpilledFor {
    /// Name of the other VM. Null: those that are gone.
    pub vm: Option<String>,
    /// Bytes that were moved out.
    pub bytes: u64,
}
