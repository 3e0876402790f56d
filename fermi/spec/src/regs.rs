//! The BAR0 register table: every register that model, mediator or drivers treat by name.
//!
//! The row in `registers!` is the only place with the number. Sources: envytools `rnndb` (names in parentheses in
//! the docs of a row), nouveau for what drivers do with them. Bit layouts are in the modules below, by unit.

use core::fmt;

pub use units::{Description, UnitRange, describe, unit_at};

pub mod engines;
pub mod falcon;
pub mod ltc;
pub mod nouveau;
pub mod pfifo;
pub mod pgraph;
pub mod pmc;
pub mod units;
pub mod windows;

/// How a register answers to the CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Reads a value; writes are ignored.
    ReadOnly,
    /// Keeps what is written.
    ReadWrite,
    /// Acts on a write; reads are zero unless documented.
    WriteOnly,
    /// Writing a one clears the bit.
    WriteOneClears,
}

macro_rules! registers {
    ($( $(#[$doc:meta])* $name:ident $( [$count:literal, $stride:literal] )? = $offset:literal, $access:ident; )*) => {
        /// A named register of BAR0; an indexed one carries its index.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Bar0Reg {
            $( $(#[$doc])* $name $( ( registers!(@index $count) ) )?, )*
        }

        const ROWS: &[Row] = &[
            $( Row {
                name: stringify!($name),
                offset: $offset,
                count: registers!(@count $($count)?),
                stride: registers!(@stride $($stride)?),
                access: Access::$access,
                make: |_index| registers!(@make $name _index $($count)?),
            }, )*
        ];

        impl Bar0Reg {
            /// Byte offset in BAR0.
            pub fn offset(self) -> u32 {
                match self {
                    $( registers!(@pattern $name index $($count)?) =>
                        $offset $( + registers!(@index_of $count index) * $stride )?, )*
                }
            }

            fn row(self) -> usize {
                let mut row = 0;
                $( if matches!(self, registers!(@any $name $($count)?)) { return row; } row += 1; )*
                row
            }
        }
    };
    (@index $count:literal) => { u16 };
    (@count) => { 1 };
    (@count $count:literal) => { $count };
    (@stride) => { 4 };
    (@stride $stride:literal) => { $stride };
    (@make $name:ident $index:ident) => { Bar0Reg::$name };
    (@make $name:ident $index:ident $count:literal) => { Bar0Reg::$name($index) };
    (@pattern $name:ident $index:ident) => { Bar0Reg::$name };
    (@pattern $name:ident $index:ident $count:literal) => { Bar0Reg::$name($index) };
    (@index_of $count:literal $index:ident) => { u32::from($index) };
    (@any $name:ident) => { Bar0Reg::$name };
    (@any $name:ident $count:literal) => { Bar0Reg::$name(_) };
}

struct Row {
    name: &'static str,
    offset: u32,
    count: u16,
    stride: u32,
    access: Access,
    make: fn(u16) -> Bar0Reg,
}

registers! {
    // PMC: identification, interrupts, unit enables.
    /// Chip identification.
    Boot0 = 0x000000, ReadOnly;
    /// Byte order; bit 0 clear is little-endian.
    Endian = 0x000004, ReadWrite;
    /// Pending units, one word a line: 0 host (stall), 1 non-stall, 2 PMU.
    PmcIntr[3, 4] = 0x000100, ReadOnly;
    /// Line enable: bit 0 hardware, bit 1 software.
    PmcIntrEnable[3, 4] = 0x000140, ReadWrite;
    /// Line state.
    PmcIntrLine[3, 4] = 0x000160, ReadOnly;
    /// L2 partitions with an interrupt.
    PmcLtcIntr = 0x00017c, ReadOnly;
    /// Memory partitions with an interrupt.
    PmcPartitionIntr = 0x000180, ReadOnly;
    /// Unit enables (engine and unit bits in [`crate::engine`]).
    PmcEnable = 0x000200, ReadWrite;
    /// PBDMA enables; three bits stick.
    PbdmaEnable = 0x000204, ReadWrite;
    /// Second enable word.
    PmcEnable2 = 0x000208, ReadWrite;
    /// Written around microcode loads.
    PmcUnknown260 = 0x000260, ReadWrite;
    /// Mask of units let through to a line.
    PmcIntrMask[3, 4] = 0x000640, ReadWrite;
    /// Newer identification (NEW_ID), which GF100 has not.
    NewId = 0x000a00, ReadOnly;

    // PBUS.
    /// Bus errors.
    PbusIntr = 0x001100, WriteOneClears;
    /// Bus error enables, host line.
    PbusIntrEnable = 0x001140, ReadWrite;
    /// Bus error enables, non-stall line.
    PbusIntrEnableNonStall = 0x001144, ReadWrite;
    /// PRAMIN window base.
    PraminBase = 0x001700, ReadWrite;
    /// BAR1 instance block.
    Bar1Block = 0x001704, ReadWrite;
    /// BAR3 instance block.
    Bar3Block = 0x001714, ReadWrite;
    /// PEEPHOLE instance block.
    PeepholeBlock = 0x001718, ReadWrite;

    // PFIFO.
    /// Pending PFIFO interrupts; bits 28–31 are levels.
    PfifoIntr = 0x002100, WriteOneClears;
    /// Enables, host line.
    PfifoIntrEnable = 0x002140, ReadWrite;
    /// PFIFO enable.
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
    /// Code of INTR bit 16.
    SwitchError = 0x00256c, ReadOnly;
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
    /// Faulted engines.
    EngineFault = 0x00262c, WriteOneClears;
    /// Engines kept off the runlist.
    EngineBlock = 0x002630, ReadWrite;
    /// Preempt ("kick"): channel id; bit 20 while pending.
    Preempt = 0x002634, ReadWrite;
    /// Bit 0 freezes the scheduler.
    SchedulerFreeze = 0x002638, ReadWrite;
    /// What an engine is doing.
    EngineStatus[6, 4] = 0x002640, ReadOnly;
    /// Engine that the bypass drives, and its enable.
    BypassConfig = 0x0026c4, ReadWrite;
    /// Instance block that the bypass puts on its engine.
    BypassSwitch = 0x0026c8, ReadWrite;
    /// Instance block of the channel on an engine.
    EngineInstance[6, 4] = 0x002680, ReadOnly;
    /// The same with a valid bit.
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
    /// Errors of the bypass.
    BypassStatus = 0x005000, WriteOneClears;
    /// Method and subchannel for the bypass.
    BypassAddress = 0x005004, ReadWrite;
    /// Its data; submits the method.
    BypassData = 0x005008, ReadWrite;
    /// Instance block of a channel, valid, polling.
    ChannelInstance[128, 8] = 0x003000, ReadWrite;
    /// Runnable and status bits of a channel.
    ChannelState[128, 8] = 0x003004, ReadWrite;

    // PEEPHOLE.
    /// Virtual address bits 39:32.
    PeepholeHigh = 0x06000c, ReadWrite;
    /// Virtual address bits 31:0.
    PeepholeLow = 0x060010, ReadWrite;
    /// Data; the address advances by 4.
    PeepholeData = 0x060014, ReadWrite;

    // PBUS's errors, and PTIMER.
    /// Failed access: address.
    PbusErrorAddress = 0x009084, ReadWrite;
    /// Failed access: data.
    PbusErrorData = 0x009088, ReadOnly;
    /// Alarm pending.
    PtimerIntr = 0x009100, WriteOneClears;
    /// Alarm enable.
    PtimerIntrEnable = 0x009140, ReadWrite;
    /// Ratio, numerator.
    PtimerNumerator = 0x009200, ReadWrite;
    /// Ratio, denominator.
    PtimerDenominator = 0x009210, ReadWrite;
    /// Multiplier and divider of the clock.
    PtimerConfig = 0x009220, ReadWrite;
    /// Nanoseconds, bits 31:5.
    PtimerLow = 0x009400, ReadWrite;
    /// Nanoseconds, bits 60:32.
    PtimerHigh = 0x009410, ReadWrite;
    /// Alarm time, low word.
    PtimerAlarm = 0x009420, ReadWrite;

    // Straps and floor-sweeping.
    /// POST state.
    Post0 = 0x022400, ReadWrite;
    /// POST state; bit 1: initialisation scripts ran.
    Post1 = 0x02240c, ReadWrite;
    /// GPCs in the design.
    DesignGpcs = 0x022430, ReadOnly;
    /// TPCs of a GPC in the design.
    DesignTpcs = 0x022434, ReadOnly;
    /// Memory partitions in the design.
    DesignPartitions = 0x022438, ReadOnly;
    /// Units fused off; bit 0 display.
    FuseDisable = 0x022500, ReadOnly;
    /// Partitions fused off.
    FusePartitions = 0x022554, ReadOnly;
    /// Disabled GPCs.
    FuseGpcs = 0x022504, ReadOnly;
    /// Disabled TPCs of a GPC.
    FuseTpcs[8, 4] = 0x022508, ReadOnly;
    /// PCI Express: bit 0 version 2, bit 7 full speed.
    PciVersion = 0x02241c, ReadWrite;
    /// Bit 0 gives access to the fuses.
    FuseAccess = 0x021000, ReadWrite;
    /// Fuses: sensors, voltages, speeds; zero is "not blown".
    Fuse[448, 4] = 0x021100, ReadOnly;

    // PNVIO, PTHERM.
    /// Enables and pending edges of GPIO lines: 0 enables, 1 pending, for lines 0–15 and 16–31.
    GpioIntrEnable[2, 0x20] = 0x00e050, ReadWrite;
    /// Pending edges of GPIO lines.
    GpioIntr[2, 0x20] = 0x00e054, WriteOneClears;
    /// Enables of the AUX channels' interrupts.
    AuxIntrEnable = 0x00e068, ReadWrite;
    /// Interrupts of the AUX channels.
    AuxIntr = 0x00e06c, WriteOneClears;
    /// Fan tachometer: how it counts.
    FanTachControl = 0x00e720, ReadWrite;
    /// Fan tachometer: what it counted.
    FanTach = 0x00e728, ReadOnly;
    /// Enables of thermal interrupts.
    ThermIntrEnable = 0x020000, ReadWrite;
    /// Thermal interrupts.
    ThermIntr = 0x020100, WriteOneClears;

    // PBDMAs.
    /// Interrupts of PBDMA 0–2.
    PbdmaIntr[3, 0x2000] = 0x040108, WriteOneClears;
    /// Interrupt enables of PBDMA 0–2.
    PbdmaIntrEnable[3, 0x2000] = 0x04010c, ReadWrite;
    /// GPFIFO entry that failed, low word.
    PbdmaGpShadowLow[3, 0x2000] = 0x040110, ReadOnly;
    /// GPFIFO entry that failed, high word.
    PbdmaGpShadowHigh[3, 0x2000] = 0x040114, ReadOnly;
    /// Header that failed.
    PbdmaHeaderShadow[3, 0x2000] = 0x040118, ReadOnly;
    /// Channel on a PBDMA: \[6:0\] id, 8 active.
    PbdmaChannel[3, 0x2000] = 0x040120, ReadOnly;
    /// Stall mask.
    PbdmaStall[3, 0x2000] = 0x04013c, ReadWrite;
    /// Latched method: \[13:2\] method, \[18:16\] subchannel, 31 valid.
    PbdmaMethod0[3, 0x2000] = 0x0400c0, ReadWrite;
    /// Latched data.
    PbdmaData0[3, 0x2000] = 0x0400c4, ReadWrite;

    // Host flushes.
    /// BAR writes to memory; bits 0–1 while running.
    HostFlush = 0x070000, ReadWrite;
    /// L2: invalidate system-memory lines.
    L2InvalidateSysram = 0x070004, ReadWrite;
    /// L2: invalidate peer lines.
    L2InvalidatePeer = 0x070008, ReadWrite;
    /// L2: clean compression tags.
    L2CleanTags = 0x07000c, ReadWrite;
    /// L2: flush dirty lines.
    L2FlushDirty = 0x070010, ReadWrite;

    // PCI mirror.
    /// ROM shadow switch.
    PciRomShadow = 0x088050, ReadWrite;
    /// MSI re-arm (8-bit write of 0xff).
    PciMsiRearm = 0x088704, ReadWrite;

    // PFFB.
    /// Partition configuration.
    PartitionConfig = 0x100800, ReadOnly;
    /// Bus address >> 8 of the flush page.
    FlushPage = 0x100c10, ReadWrite;
    /// MMU configuration and flush status.
    MmuConfig = 0x100c80, ReadWrite;
    /// Single page to invalidate.
    TlbPage = 0x100cb4, ReadWrite;
    /// Page directory to invalidate.
    TlbDirectory = 0x100cb8, ReadWrite;
    /// Invalidate: 31 go, 0 the directory's pages, 1 all directories, 2 hub only.
    TlbInvalidate = 0x100cbc, ReadWrite;
    /// MMU debug control.
    MmuDebugControl = 0x100cc4, ReadWrite;
    /// MMU debug page for writes.
    MmuDebugWrite = 0x100cc8, ReadWrite;
    /// MMU debug page for reads.
    MmuDebugRead = 0x100ccc, ReadWrite;
    /// Straps; the crystal.
    Straps = 0x101000, ReadOnly;
    /// More straps.
    Straps2 = 0x10100c, ReadOnly;
    /// MiB of a partition (older drivers).
    PartitionMebibytesOld = 0x10f20c, ReadOnly;
    /// MiB of a partition.
    PartitionMebibytes[8, 0x1000] = 0x11020c, ReadOnly;

    // L2.
    /// Which interrupts of the slices are on (bit 20 is cleared by nouveau).
    LtcIntrControl = 0x17e820, ReadWrite;
    /// Bit 1: large pages have 128 KiB.
    LtcConfig = 0x17e8c0, ReadWrite;
    /// Bit 2 clears compression tags.
    LtcTagClear = 0x17e8c8, ReadWrite;
    /// First tag to clear.
    LtcTagFirst = 0x17e8cc, ReadWrite;
    /// Last tag to clear.
    LtcTagLast = 0x17e8d0, ReadWrite;
    /// Where in VRAM compression tags are kept.
    LtcTagBase = 0x17e8d4, ReadWrite;
    /// Number of LTCs.
    LtcCount = 0x17e8d8, ReadWrite;
    /// \[31:28\] slices of an LTC.
    LtcSlices = 0x17e8dc, ReadOnly;
    /// Clear values: entry that the next five registers are of.
    ZbcIndex = 0x17ea44, ReadWrite;
    /// Its colour.
    ZbcColour[4, 4] = 0x17ea48, ReadWrite;
    /// Its depth.
    ZbcDepth = 0x17ea58, ReadWrite;

    // PRING: the ring that register accesses take.
    /// Command; bits 5:0 while it runs.
    RingCommand = 0x121c4c, ReadWrite;
    /// Interrupts.
    RingIntr[2, 4] = 0x121c58, ReadOnly;
    /// Hubs on the ring.
    RingHubs = 0x121c70, ReadOnly;
    /// Memory partitions on the ring.
    RingPartitions = 0x121c74, ReadOnly;
    /// GPCs on the ring.
    RingGpcs = 0x121c78, ReadOnly;
    /// Settings of the ring's master that nouveau makes, as are the next two.
    RingSetting310 = 0x122310, ReadWrite;
    /// Time-outs.
    RingTimeout[3, 4] = 0x12232c, ReadWrite;
    /// See RingSetting310.
    RingSetting348 = 0x122348, ReadWrite;

    // PCLOCK.
    /// Clocks that come from their PLL.
    ClockPllSelect = 0x137100, ReadWrite;
    /// A clock's source.
    ClockSource[16, 4] = 0x137160, ReadWrite;
    /// A clock's divider before its PLL.
    ClockDivider[16, 4] = 0x1371d0, ReadWrite;
    /// A clock's divider behind it.
    ClockPostDivider[16, 4] = 0x137250, ReadWrite;
    /// Source of the memory clock.
    MemoryClockSource = 0x137300, ReadWrite;
    /// What the memory clock is made of.
    MemoryClockState = 0x1373f0, ReadWrite;

    // PMU.
    /// Ring of commands to the microcode: \[31:16\] bytes, \[15:0\] place; zero until it runs.
    PmuCommandRing = 0x10a4d0, ReadOnly;
    /// Ring of messages from it.
    PmuMessageRing = 0x10a4dc, ReadOnly;

    // Copy-engine falcons.
    /// Falcon interrupt status.
    CopyIntr[2, 0x1000] = 0x104008, ReadOnly;
    /// Falcon interrupt acknowledge.
    CopyIntrAck[2, 0x1000] = 0x104004, WriteOnly;
    /// Falcon interrupt enable: sets the bits written.
    CopyIntrEnableSet[2, 0x1000] = 0x104010, WriteOnly;
    /// Falcon interrupt enable: clears the bits written.
    CopyIntrEnableClear[2, 0x1000] = 0x104014, WriteOnly;
    /// Falcon interrupt routing: low half enables, high half sends to the falcon instead of the host.
    CopyIntrRoute[2, 0x1000] = 0x10401c, ReadWrite;
    /// Falcon error code.
    CopyError[2, 0x1000] = 0x104040, ReadWrite;
    /// Falcon error data.
    CopyErrorData[2, 0x1000] = 0x104044, ReadWrite;
    /// Falcon memory sizes.
    CopyCaps[2, 0x1000] = 0x104108, ReadOnly;
    /// Falcon version.
    CopyVersion[2, 0x1000] = 0x10412c, ReadOnly;
    /// Falcon start.
    CopyControl[2, 0x1000] = 0x104100, ReadWrite;

    // PGRAPH. What can stop the engine and who asks for it.
    /// Interrupts.
    GraphIntr = 0x400100, WriteOneClears;
    /// Sub-units with a trap (interrupt bit 21).
    GraphTrap = 0x400108, WriteOneClears;
    /// Code of the data error.
    GraphDataError = 0x400110, ReadOnly;
    /// GPCs with a trap.
    GraphGpcTrap = 0x400118, WriteOneClears;
    /// Trap enables.
    GraphTrapEnable = 0x400138, ReadWrite;
    /// Interrupt enables.
    GraphIntrEnable = 0x40013c, ReadWrite;
    /// Internal command: address; sends it.
    GraphBundle = 0x400200, ReadWrite;
    /// Internal command: data.
    GraphBundleData = 0x400204, ReadWrite;
    /// Internal commands on (bit 31).
    GraphBundleControl = 0x400208, ReadWrite;
    /// Front end takes methods (bits 0, 16).
    GraphFifoControl = 0x400500, ReadWrite;
    /// Activity; bit 0.
    GraphActivity = 0x40060c, ReadOnly;
    /// Busy units; bit 0 any, bit 2 internal commands.
    GraphStatus = 0x400700, ReadOnly;
    /// Method that failed: \[13:2\] method, \[18:16\] subchannel.
    GraphTrappedMethod = 0x400704, ReadOnly;
    /// Its data.
    GraphTrappedData = 0x400708, ReadOnly;
    /// Trap of the front end (DISPATCH); sub-unit traps are acknowledged by 0xc0000000.
    GraphDispatchTrap = 0x404000, ReadWrite;
    /// Power mode of the front end; bit 4 is set to start and clear when done.
    GraphPowerMode = 0x404170, ReadWrite;
    /// Class bound to a subchannel.
    GraphSubchannelClass[8, 4] = 0x404200, ReadWrite;
    /// Method port: \[15:0\] class, \[29:16\] method / 4, 31 go.
    GraphMethodPort = 0x404488, ReadWrite;
    /// Method port: data.
    GraphMethodPortData = 0x40448c, ReadWrite;
    /// Trap of the macro processor.
    GraphMacroTrap = 0x404490, ReadWrite;
    /// Where it happened: \[10:0\] word, 28 valid.
    GraphMacroTrapAt = 0x404494, ReadWrite;
    /// The macro's word there.
    GraphMacroTrapWord = 0x40449c, ReadWrite;
    /// Trap of M2MF.
    GraphM2mfTrap = 0x404600, ReadWrite;
    /// Trap of a GPC: \[15:0\] its units, from bit 16 its TPCs.
    GpcTrap[4, 0x8000] = 0x502c90, WriteOneClears;
    /// Trap of TPC 0 of a GPC: bit 1 the MP.
    TpcTrap[4, 0x8000] = 0x504508, WriteOneClears;
    /// Texture unit of that TPC: bit 31 trapped, what below is written to acknowledge.
    TextureTrap[4, 0x8000] = 0x504224, ReadWrite;
    /// MP of that TPC: code of the warp error.
    MpWarpError[4, 0x8000] = 0x504648, ReadWrite;
    /// MP of that TPC: errors that concern no warp.
    MpGlobalError[4, 0x8000] = 0x504650, WriteOneClears;

    /// ROPs and GPCs: \[20:16\] and \[4:0\].
    GraphUnits = 0x409604, ReadOnly;
    /// TPCs of a GPC.
    GpcTpcs[4, 0x8000] = 0x502608, ReadOnly;

    // PGRAPH's context switching: FECS, the hub's falcon, and the GPCs' falcons.
    /// FECS interrupts to set; bit 8 a context switch.
    FecsIntrSet = 0x409000, WriteOnly;
    /// FECS control; bit 1 starts it.
    FecsControl = 0x409100, ReadWrite;
    /// Operand of a command.
    FecsData = 0x409500, ReadWrite;
    /// Command.
    FecsCommand = 0x409504, ReadWrite;
    /// Words that microcode and driver share.
    FecsScratch[8, 4] = 0x409800, ReadWrite;
    /// Sets bits in them.
    FecsScratchSet[8, 4] = 0x409820, WriteOnly;
    /// Clears bits in them.
    FecsScratchClear[8, 4] = 0x409840, WriteOnly;
    /// Instance block of the context on PGRAPH, bit 31 valid.
    FecsChannel = 0x409b00, ReadWrite;
    /// Instance block of the next context, bit 31 valid.
    FecsNextChannel = 0x409b04, ReadWrite;
    /// Interrupts that the microcode sends to the host.
    FecsHostIntr = 0x409c18, ReadOnly;
    /// Sets them.
    FecsHostIntrSet = 0x409c1c, WriteOnly;
    /// Clears them.
    FecsHostIntrClear = 0x409c20, WriteOnly;
    /// Their enables.
    FecsHostIntrEnable = 0x409c24, ReadWrite;
    /// Control of all GPC falcons; bit 1 starts them.
    GpccsControl = 0x41a100, ReadWrite;

    // VGA.
    /// CRTC: index and data, a byte each.
    VgaCrtc = 0x6013d4, ReadWrite;
}

impl Bar0Reg {
    /// The register at `offset` bytes, `None` where the table has none.
    pub fn decode(offset: u32) -> Option<Self> {
        ROWS.iter().find_map(|row| {
            let distance = offset.checked_sub(row.offset)?;
            // Before the division, which nearly all rows are spared by this.
            if distance >= row.stride * u32::from(row.count) {
                return None;
            }
            let index = distance / row.stride;
            (distance % row.stride == 0).then(|| (row.make)(index as u16))
        })
    }

    /// Name for traces and messages, without the index.
    pub fn name(self) -> &'static str {
        ROWS[self.row()].name
    }

    /// How it answers.
    pub fn access(self) -> Access {
        ROWS[self.row()].access
    }

    /// Every register of the table, indexed ones one by one.
    pub fn all() -> impl Iterator<Item = Self> {
        ROWS.iter()
            .flat_map(|row| (0..row.count).map(|index| (row.make)(index)))
    }
}

impl fmt::Display for Bar0Reg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// First byte of the PROM window.
pub const PROM_BASE: u32 = 0x30_0000;
/// One past its last byte.
pub const PROM_END: u32 = 0x38_0000;
/// First byte of the PRAMIN window.
pub const PRAMIN_BASE: u32 = 0x70_0000;
/// Bytes of the PRAMIN window.
pub const PRAMIN_BYTES: u32 = 0x10_0000;
/// First byte of PBDMA 0's registers; its first 256 bytes are the loaded RAMFC.
pub const PBDMA_BASE: u32 = 0x04_0000;
/// Bytes from one PBDMA's registers to the next one's.
pub const PBDMA_STRIDE: u32 = 0x2000;
/// First byte of the mirror of the PCI configuration space.
pub const PCI_MIRROR_BASE: u32 = 0x08_8000;
/// One past its last byte.
pub const PCI_MIRROR_END: u32 = 0x08_9000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_register_decodes_to_itself() {
        for reg in Bar0Reg::all() {
            assert_eq!(Bar0Reg::decode(reg.offset()), Some(reg), "{reg}");
        }
    }

    #[test]
    fn channel_table_is_indexed_by_channel() {
        assert_eq!(
            Bar0Reg::decode(0x3000 + 8 * 5 + 4),
            Some(Bar0Reg::ChannelState(5))
        );
        assert_eq!(Bar0Reg::ChannelState(5).name(), "ChannelState");
    }

    #[test]
    fn offset_without_a_row_is_none() {
        assert_eq!(Bar0Reg::decode(0x3000 + 8 * 128), None);
        assert_eq!(Bar0Reg::decode(0x3002), None);
    }
}
