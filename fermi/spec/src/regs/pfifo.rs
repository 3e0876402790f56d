//! Fields of PFIFO's registers (nouveau `fifo/gf100.c`, envytools `rnndb/fifo/gf100_pfifo.xml`).

use crate::addr::{Aperture, PhysAddr};
use bitfield_struct::bitfield;

/// RUNLIST_BASE (2270).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct RunlistBase {
    /// Buffer address >> 12.
    #[bits(28)]
    pub frame: u32,
    /// Which memory the buffer is in.
    #[bits(2)]
    pub aperture: Aperture,
    #[bits(2)]
    __: u8,
}

impl RunlistBase {
    /// First byte of the list.
    pub fn address(self) -> PhysAddr {
        PhysAddr(u64::from(self.frame()) << 12)
    }
}

/// RUNLIST_COMMIT (2274).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct RunlistCommit {
    /// Number of entries.
    #[bits(12)]
    pub count: u16,
    #[bits(8)]
    __: u8,
    /// 0x1f in every driver. unverified: what it selects.
    #[bits(5)]
    pub engine: u8,
    #[bits(7)]
    __: u8,
}

/// Bits of BYPASS_STATUS (5000).
pub mod bypass {
    /// A method was submitted while the bypass was not enabled.
    pub const NOT_ENABLED: u32 = 1 << 8;
}

/// RUNLIST_STATUS (227c): an update is pending.
pub const RUNLIST_PENDING: u32 = 1 << 20;
/// Bytes of a runlist entry: channel id, then [`RUNLIST_ENTRY_TAG`].
pub const RUNLIST_ENTRY_BYTES: u64 = 8;
/// Second word of a runlist entry. unverified: its meaning; every driver writes 4.
pub const RUNLIST_ENTRY_TAG: u32 = 4;
/// PREEMPT (2634): the preempt is pending.
pub const PREEMPT_PENDING: u32 = 1 << 20;
/// RUNLIST_INTR (2a00): a commit is done.
pub const RUNLIST_DONE: u32 = 1 << 28;
/// USERD_BASE (2254): valid.
pub const USERD_BASE_VALID: u32 = 1 << 28;

/// CHANNEL_INSTANCE (3000 + 8c).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct ChannelInstance {
    /// Instance block address >> 12.
    #[bits(28)]
    pub frame: u32,
    /// Which memory the block is in; `Peer` is invalid.
    #[bits(2)]
    pub aperture: Aperture,
    /// USERD is polled.
    pub poll: bool,
    /// The entry is in use.
    pub valid: bool,
}

impl ChannelInstance {
    /// Address of the instance block.
    pub fn instance(self) -> PhysAddr {
        PhysAddr(u64::from(self.frame()) << 12)
    }
}

/// CHANNEL_STATE (3004 + 8c).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct ChannelState {
    /// May be scheduled.
    pub runnable: bool,
    #[bits(3)]
    __: u8,
    /// Waits for a semaphore.
    pub acquire_pending: bool,
    #[bits(7)]
    __: u8,
    /// Loaded on a PBDMA.
    pub loaded: bool,
    #[bits(3)]
    __: u8,
    /// Engine, 0x1f none.
    #[bits(5)]
    pub engine: u8,
    #[bits(7)]
    __: u8,
    /// Has work.
    pub pending: bool,
    #[bits(3)]
    __: u8,
}

/// What drivers write to CHANNEL_STATE to start a channel.
pub const CHANNEL_START: u32 = 0x001f_0001;

/// Bits of PFIFO_INTR (2100).
pub mod intr {
    /// Error in the channel table; code in 252c.
    pub const CHANNEL_TABLE: u32 = 1 << 0;
    /// Bypass; status in 5000.
    pub const BYPASS: u32 = 1 << 4;
    /// Scheduler; code in 254c.
    pub const SCHEDULER: u32 = 1 << 8;
    /// Switch error; code in 256c.
    pub const SWITCH: u32 = 1 << 16;
    /// A fault was dropped: its unit's record was occupied.
    pub const DROPPED_FAULT: u32 = 1 << 27;
    /// MMU fault (level: 259c).
    pub const MMU_FAULT: u32 = 1 << 28;
    /// PBDMA (level: 25a0).
    pub const PBDMA: u32 = 1 << 29;
    /// Runlist (level: 2a00).
    pub const RUNLIST: u32 = 1 << 30;
    /// Engine, non-stall (level: 25a4).
    pub const ENGINE: u32 = 1 << 31;
    /// The levels: follow their source, a write does not clear them.
    pub const LEVELS: u32 = MMU_FAULT | PBDMA | RUNLIST | ENGINE;
}

/// Codes in CHANNEL_TABLE_ERROR (252c).
pub mod table_error {
    /// A valid entry was made another channel's.
    pub const IN_USE: u32 = 1;
    /// Polling wanted but USERD_BASE is not valid.
    pub const NO_USERD: u32 = 2;
    /// A channel that is active was taken away.
    pub const ACTIVE: u32 = 3;
    /// A channel on the runlist with work was taken away.
    pub const PENDING: u32 = 4;
    /// Invalid target.
    pub const INVALID_TARGET: u32 = 6;
    /// A channel that may be scheduled was taken away.
    pub const RUNNABLE: u32 = 0xb;
}

/// Codes in SCHEDULER_ERROR (254c).
pub mod scheduler_error {
    /// A channel on the list is not valid.
    pub const INACTIVE_CHANNEL: u32 = 1;
    /// An engine did not switch in time.
    pub const SWITCH_TIMEOUT: u32 = 0xa;
}

/// Bits of PBDMA_INTR (40108).
pub mod pbdma_intr {
    /// GPFIFO control entry.
    pub const GPFIFO: u32 = 1 << 13;
    /// GP_PUT beyond the ring.
    pub const GP_POINTER: u32 = 1 << 14;
    /// Bad GPFIFO entry.
    pub const GP_ENTRY: u32 = 1 << 15;
    /// Bad pushbuffer word.
    pub const PB_ENTRY: u32 = 1 << 18;
    /// Illegal method.
    pub const METHOD: u32 = 1 << 21;
    /// Empty subchannel or software method.
    pub const DEVICE: u32 = 1 << 23;
    /// Bad semaphore operation.
    pub const SEMAPHORE: u32 = 1 << 25;
    /// Acquire timed out.
    pub const ACQUIRE: u32 = 1 << 26;
    /// The channel would have to give way inside a segment that forbids it.
    pub const NO_SWITCH_SEGMENT: u32 = 1 << 29;
    /// Wrong signature in the instance block.
    pub const SIGNATURE: u32 = 1 << 31;
}

/// What nouveau writes to PBDMA_METHOD0 to turn a stuck method into a NOP.
pub const METHOD_NOP: u32 = 0x8060_0008;

/// ENGINE_STATUS (2640 + 4e). unverified: bits 12, 14 and 20 are nouveau's reading.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct EngineStatus {
    /// Channel id.
    #[bits(7)]
    pub channel: u8,
    #[bits(5)]
    __: u8,
    /// A switch is going on.
    pub switching: bool,
    __: bool,
    /// A switch is waiting.
    pub switch_waiting: bool,
    #[bits(5)]
    __: u8,
    /// The context is being saved.
    pub saving: bool,
    #[bits(3)]
    __: u8,
    /// The engine faulted.
    pub faulted: bool,
    #[bits(3)]
    __: u8,
    /// The engine works for the channel, or stands and cannot let go of it.
    pub busy: bool,
    #[bits(3)]
    __: u8,
}
