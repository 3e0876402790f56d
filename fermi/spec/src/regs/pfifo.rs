//! PFIFO and its bypass: runlist, channel table, engines, faults (nouveau `fifo/gf100.c`, envytools
//! `rnndb/fifo/gf100_pfifo.xml`).

use super::units::{UnitRange, unit};
use crate::addr::{Aperture, PAGE_NUMBER_MASK, PhysAddr};
use crate::engine::pmc_enable;
use bitfield_struct::bitfield;

/// Where PFIFO is, channel table and all.
pub const PFIFO: UnitRange = unit("PFIFO", 0x00_2000, 0x2000).enabled_by(&[pmc_enable::PFIFO]);
/// Where the bypass is; two of its registers lie in PFIFO.
pub(crate) const PFIFO_BYPASS: UnitRange =
    unit("PFIFO_BYPASS", 0x00_5000, 0x1000).enabled_by(&[pmc_enable::PFIFO]);

registers! {
    /// Words of PFIFO that nothing else depends on.
    pub enum PfifoWord {
        /// Code of INTR bit 16.
        SwitchError = 0x00256c, ReadOnly;
    }
}

registers! {
    /// Registers of PFIFO: interrupts, runlist, engines, faults, the channel table.
    pub enum PfifoReg: PfifoWord {
        /// Pending PFIFO interrupts; bits 28–31 are levels.
        PfifoIntr = 0x002100, WriteOneClears;
        /// Enables, host line.
        PfifoIntrEnable = 0x002140, ReadWrite;
        /// Bit 0 enables PFIFO.
        PfifoEnable = 0x002200, ReadWrite;
        /// PBDMAs in use.
        PfifoPbdmas = 0x002204, ReadWrite;
        /// PBDMAs that an engine may not use.
        EnginePbdmaMask[6, 4] = 0x002208, ReadWrite;
        /// Where BAR1 shows the USERD array (POLL area).
        UserdBase = 0x002254, ReadWrite;
        /// Runlist to schedule next (PLAYLIST).
        RunlistBase = 0x002270, ReadWrite;
        /// Number of entries; takes the runlist over.
        RunlistCommit = 0x002274, ReadWrite;
        /// Runlist being processed.
        RunlistCurrent = 0x002278, ReadOnly;
        /// Its length; bit 20 while an update is pending.
        RunlistStatus = 0x00227c, ReadOnly;
        /// Default of RAMFC word f8 (time slice) for an engine's channels.
        EngineTimeslice[6, 4] = 0x002310, ReadWrite;
        /// Default of RAMFC word fc.
        EngineTimeslicePb[6, 4] = 0x002350, ReadWrite;
        /// Engine in use by a PBDMA.
        PbdmaEngine[3, 4] = 0x002390, ReadOnly;
        /// Enables, non-stall line.
        PfifoIntrEnableNonStall = 0x002528, ReadWrite;
        /// Code of INTR bit 0.
        ChannelTableError = 0x00252c, ReadOnly;
        /// Code of INTR bit 8.
        SchedulerError = 0x00254c, ReadOnly;
        /// Units with a fault record.
        FaultUnits = 0x00259c, WriteOneClears;
        /// PBDMAs with an interrupt.
        PbdmaIntrSource = 0x0025a0, WriteOneClears;
        /// Engines with an interrupt.
        EngineIntrSource = 0x0025a4, ReadOnly;
        /// An engine's interrupts; bit 0 notify.
        EngineIntr[6, 4] = 0x0025a8, WriteOneClears;
        /// Enables of the four engine interrupt bits.
        EngineIntrEnable = 0x002628, ReadWrite;
        /// Engines stopped by an MMU fault, a bit each.
        EngineFault = 0x00262c, WriteOneClears;
        /// Engines that take no other channel than the one they have.
        EngineBlock = 0x002630, ReadWrite;
        /// Preempt ("kick"): channel id; bit 20 while pending.
        Preempt = 0x002634, ReadWrite;
        /// Bit 0 freezes the scheduler.
        SchedulerFreeze = 0x002638, ReadWrite;
        /// Channel and switch state of an engine.
        EngineStatus[6, 4] = 0x002640, ReadOnly;
        /// Instance block of the channel on an engine.
        EngineInstance[6, 4] = 0x002680, ReadOnly;
        /// Instance block of the channel on an engine, with a valid bit.
        EngineInstanceValid[6, 4] = 0x002790, ReadOnly;
        /// Channel id on an engine, with an active bit.
        EngineChannel[6, 4] = 0x0027d0, ReadOnly;
        /// Fault records, four words for each of 24 units.
        FaultRecord[96, 4] = 0x002800, ReadOnly;
        /// Runlist interrupt: 28 done, 0 event.
        RunlistIntr = 0x002a00, WriteOneClears;
        /// Time-outs: FB, PB, engine.
        PfifoTimeout[3, 4] = 0x002a04, ReadWrite;
        /// Channel switch time-out.
        SwitchTimeout = 0x002a18, ReadWrite;
        /// Inject an MMU fault into an engine.
        InjectFault[6, 4] = 0x002a30, ReadWrite;
        /// Instance block of a channel, valid, polling.
        ChannelInstance[128, 8] = 0x003000, ReadWrite;
        /// Runnable and status bits of a channel.
        ChannelState[128, 8] = 0x003004, ReadWrite;
    }
}

registers! {
    /// Registers of the bypass, which sends an engine methods without a channel.
    pub enum BypassReg {
        /// Engine that the bypass drives, and its enable.
        BypassConfig = 0x0026c4, ReadWrite;
        /// Instance block that the bypass puts on its engine.
        BypassSwitch = 0x0026c8, ReadWrite;
        /// Errors of the bypass.
        BypassStatus = 0x005000, WriteOneClears;
        /// Method and subchannel for the bypass.
        BypassAddress = 0x005004, ReadWrite;
        /// Data of the bypass method; a write submits the method.
        BypassData = 0x005008, ReadWrite;
    }
}

/// Address of a runlist: RUNLIST_BASE (2270), RUNLIST_CURRENT (2278).
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
    /// Bits that the register has.
    pub const STORED: u32 = 0x3fff_ffff;

    /// First byte of the list.
    pub fn address(self) -> PhysAddr {
        PhysAddr::from_page_number(self.frame())
    }
}

/// Number of entries, which takes the runlist over: RUNLIST_COMMIT (2274).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct RunlistCommit {
    /// Number of entries.
    #[bits(12)]
    pub count: u16,
    #[bits(8)]
    __: u8,
    /// [`RUNLIST_ENGINE`] in every driver. unverified: what it selects.
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

/// RUNLIST_COMMIT (2274): what every driver writes as its engine.
pub const RUNLIST_ENGINE: u8 = 0x1f;
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
/// USERD_BASE (2254): address in BAR1 >> 12.
pub const USERD_BASE_FRAME: u32 = PAGE_NUMBER_MASK;
/// PFIFO_ENABLE (2200), bit 0: PFIFO is switched on.
pub const ENABLED: u32 = 1;
/// Channel ids, in PREEMPT (2634) and where an engine or PBDMA names its channel.
pub const CHANNEL_ID_MASK: u32 = 0x7f;
/// ENGINE_INTR (25a8): a channel asked for an interrupt.
pub const ENGINE_NOTIFY: u32 = 1;
/// ENGINE_INTR_ENABLE (2628): bits that the register has.
pub const ENGINE_INTR_STORED: u32 = 0xf;
/// INJECT_FAULT (2a30): do it.
pub const INJECT_VALID: u32 = 1 << 8;
/// INJECT_FAULT: the MMU unit that faults, where the number is no engine's.
pub const INJECT_UNIT: u32 = 0x1f;
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
    /// The same entry for an instance block elsewhere; address bits beyond the register's are dropped.
    pub fn with_instance(self, at: PhysAddr) -> Self {
        self.with_frame(at.page_number())
    }

    /// Address of the instance block.
    pub fn instance(self) -> PhysAddr {
        PhysAddr::from_page_number(self.frame())
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
    /// The channel has work in its ring.
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
    /// The aperture of the instance block is invalid.
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

/// ENGINE_STATUS (2640 + 4e). unverified: bits 12, 14 and 20 are nouveau's reading.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct EngineStatus {
    /// Id of the channel on the engine.
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
