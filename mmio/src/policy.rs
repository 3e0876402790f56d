//! Who answers a register: one table over the named registers and over ranges. What it does not list is refused.
//!
//! There is no policy "pass through": whatever a guest does in BAR0 is answered for its own virtual GPU, and what has
//! an effect on the card is the mediator's own doing. Ranges and constants: what nouveau touches on a GF100 (envytools
//! `rnndb` for the units' extents), registers with physical addresses (debug pages, compression tags, flush page) are
//! remembered and never used.

use crate::bar0::VGA_CRTC;
use fermi_spec::regs::{
    Bar0Reg, PCI_MIRROR_BASE, PCI_MIRROR_END, PRAMIN_BASE, PRAMIN_BYTES, PROM_BASE, PROM_END, engines, pmc,
};

/// Who answers an aligned word of BAR0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// The virtual GPU: reads or writes have a meaning for it.
    Virtual,
    /// Always reads this; writes are ignored.
    Constant(u32),
    /// Reads what was written last, per VM, and means nothing.
    Storage,
    /// Reads zero, writes are dropped, both are counted: nobody has said what the register should be.
    Refused,
}

/// Bytes of host memory that [`Policy::Storage`] can take for one VM: pages that contain such a word.
pub const STORAGE_BYTES_MAX: usize = 2 << 20;

/// Partitions of the virtual board; its one partition has all of the VRAM.
const PARTITIONS: u32 = 1;
/// GPCs and TPCs in each, of the GF100 design.
const GPCS: u32 = 4;
const TPCS: u32 = 4;

impl Policy {
    /// The policy of the word at `offset`. Offsets that are no multiple of 4 are refused, windows excepted.
    pub fn of(offset: u32) -> Self {
        let in_window = (PCI_MIRROR_BASE..PCI_MIRROR_END).contains(&offset)
            || (PROM_BASE..PROM_END).contains(&offset)
            || (PRAMIN_BASE..PRAMIN_BASE + PRAMIN_BYTES).contains(&offset)
            || offset & !3 == VGA_CRTC & !3;
        if in_window {
            return Self::Virtual;
        }
        if !offset.is_multiple_of(4) {
            return Self::Refused;
        }
        if let Some(reg) = Bar0Reg::decode(offset) {
            return named(reg).unwrap_or(Self::Refused);
        }
        Self::of_range(offset)
    }

    /// The policy of a named register.
    pub fn of_register(reg: Bar0Reg) -> Self {
        named(reg).unwrap_or(Self::Refused)
    }

    fn of_range(offset: u32) -> Self {
        if let Ok(index) = WORDS.binary_search_by_key(&offset, |word| word.0) {
            return WORDS[index].1;
        }
        let after = RANGES.partition_point(|range| range.0 <= offset);
        match after.checked_sub(1).map(|index| RANGES[index]) {
            Some((_, end, policy)) if offset < end => policy,
            _ => Self::Refused,
        }
    }
}

/// The policy of each named register; `None` for one that nobody has decided on.
fn named(reg: Bar0Reg) -> Option<Policy> {
    use Bar0Reg::*;
    match reg {
        // A way to engines without a channel.
        BypassConfig | BypassSwitch | BypassStatus | BypassAddress | BypassData => Some(Policy::Refused),
        // A second way to memory that no driver for this board uses.
        PeepholeBlock | PeepholeHigh | PeepholeLow | PeepholeData => Some(Policy::Refused),
        _ => meaningful(reg)
            .or_else(|| constant(reg))
            .or_else(|| remembered(reg)),
    }
}

/// Registers that mean something to the virtual GPU.
fn meaningful(reg: Bar0Reg) -> Option<Policy> {
    use Bar0Reg::*;
    Some(match reg {
        // Identity and interrupts of the virtual board; VRAM, channels, address spaces.
        Boot0 | PmcIntr(_) | PmcIntrEnable(_) | PmcIntrLine(_) | PmcEnable | PbdmaEnable | PmcIntrMask(_) => {
            Policy::Virtual
        }
        PraminBase | Bar1Block | Bar3Block => Policy::Virtual,
        PfifoIntr | PfifoIntrEnable | PfifoEnable | UserdBase | RunlistBase | RunlistCommit
        | RunlistCurrent | RunlistStatus | PbdmaEngine(_) => Policy::Virtual,
        PfifoIntrEnableNonStall
        | ChannelTableError
        | SchedulerError
        | SwitchError
        | FaultUnits
        | PbdmaIntrSource
        | EngineIntrSource
        | EngineIntr(_)
        | EngineIntrEnable
        | EngineFault
        | EngineBlock
        | Preempt
        | SchedulerFreeze
        | EngineStatus(_)
        | EngineInstance(_)
        | EngineInstanceValid(_)
        | EngineChannel(_)
        | FaultRecord(_)
        | RunlistIntr
        | InjectFault(_)
        | ChannelInstance(_)
        | ChannelState(_) => Policy::Virtual,
        PbdmaIntr(_) | PbdmaIntrEnable(_) | PbdmaGpShadowLow(_) | PbdmaGpShadowHigh(_)
        | PbdmaHeaderShadow(_) | PbdmaChannel(_) | PbdmaMethod0(_) | PbdmaData0(_) => Policy::Virtual,
        HostFlush | L2InvalidateSysram | L2InvalidatePeer | L2CleanTags | L2FlushDirty => Policy::Virtual,
        TlbDirectory | TlbInvalidate | PartitionMebibytes(_) | PartitionMebibytesOld => Policy::Virtual,
        PtimerIntr | PtimerIntrEnable | PtimerLow | PtimerHigh | PtimerAlarm => Policy::Virtual,
        CopyIntr(_)
        | CopyIntrAck(_)
        | CopyError(_)
        | CopyErrorData(_)
        | CopyIntrEnableSet(_)
        | CopyIntrEnableClear(_) => Policy::Virtual,
        GraphIntr | GraphIntrEnable | GraphDataError | GraphTrappedMethod | GraphTrappedData => {
            Policy::Virtual
        }
        // The context handshake, which nobody answers.
        FecsIntrSet | FecsControl | FecsData | FecsCommand | FecsScratch(_) | FecsScratchSet(_)
        | FecsScratchClear(_) | FecsChannel | FecsNextChannel | FecsHostIntr | FecsHostIntrSet
        | FecsHostIntrClear | FecsHostIntrEnable => Policy::Virtual,
        PciRomShadow | PciMsiRearm | VgaCrtc => Policy::Virtual,
        _ => return None,
    })
}

/// Registers that read the same in every VM.
fn constant(reg: Bar0Reg) -> Option<Policy> {
    use Bar0Reg::*;
    Some(match reg {
        Endian | PbusIntr | PbusErrorAddress | PbusErrorData => Policy::Constant(0),
        Post0 => Policy::Constant(pmc::POST0_AFTER_VBIOS),
        // Initialisation scripts have run.
        Post1 => Policy::Constant(pmc::POST_SCRIPTS_RAN),
        DesignGpcs => Policy::Constant(GPCS),
        DesignTpcs => Policy::Constant(TPCS),
        DesignPartitions | PartitionConfig => Policy::Constant(PARTITIONS),
        FusePartitions => Policy::Constant(0),
        // Neither display nor video engines.
        FuseDisable => Policy::Constant(7),
        // The Quadro 6000's straps: 27 MHz crystal.
        Straps => Policy::Constant(pmc::STRAPS),
        Straps2 => Policy::Constant(pmc::STRAPS2),
        NewId | PmcLtcIntr | PmcPartitionIntr => Policy::Constant(0),
        FuseGpcs | FuseTpcs(_) | Fuse(_) => Policy::Constant(0),
        RingCommand | RingIntr(_) => Policy::Constant(0),
        RingHubs => Policy::Constant(1),
        RingPartitions => Policy::Constant(PARTITIONS),
        RingGpcs => Policy::Constant(GPCS),
        GraphUnits => Policy::Constant(6 << 16 | GPCS),
        GpcTpcs(3) => Policy::Constant(TPCS - 1),
        GpcTpcs(_) => Policy::Constant(TPCS),
        LtcSlices => Policy::Constant(2 << 28),
        LtcTagClear => Policy::Constant(0),
        MmuConfig => Policy::Constant(pmc::MMU_CONFIG_READY),
        // Its microcode runs: the rings are there.
        PmuCommandRing => Policy::Constant(engines::PMU_RING_BYTES << 16 | engines::PMU_COMMAND_RING),
        PmuMessageRing => Policy::Constant(engines::PMU_RING_BYTES << 16 | engines::PMU_MESSAGE_RING),
        CopyCaps(_) => Policy::Constant(engines::COPY_CAPS),
        CopyVersion(_) => Policy::Constant(engines::COPY_VERSION),
        // PGRAPH is idle, and the power mode of its front end reached.
        GraphActivity | GraphStatus | GraphPowerMode => Policy::Constant(0),
        _ => return None,
    })
}

/// Settings of units that the host has set up for all.
fn remembered(reg: Bar0Reg) -> Option<Policy> {
    use Bar0Reg::*;
    Some(match reg {
        PmcEnable2 | PmcUnknown260 | PbusIntrEnable | PbusIntrEnableNonStall => Policy::Storage,
        PfifoPbdmas | EnginePbdmaMask(_) | EngineTimeslice(_) | EngineTimeslicePb(_) | PfifoTimeout(_)
        | SwitchTimeout | PbdmaStall(_) => Policy::Storage,
        PtimerNumerator | PtimerDenominator | PtimerConfig => Policy::Storage,
        FlushPage | TlbPage | MmuDebugControl | MmuDebugWrite | MmuDebugRead => Policy::Storage,
        CopyControl(_) | CopyIntrRoute(_) => Policy::Storage,
        PciVersion | FuseAccess | GpioIntrEnable(_) | GpioIntr(_) | AuxIntrEnable | AuxIntr
        | FanTachControl | FanTach | ThermIntrEnable | ThermIntr => Policy::Storage,
        LtcIntrControl | LtcConfig | LtcTagFirst | LtcTagLast | LtcTagBase | LtcCount | ZbcIndex
        | ZbcColour(_) | ZbcDepth => Policy::Storage,
        RingSetting310 | RingTimeout(_) | RingSetting348 => Policy::Storage,
        ClockPllSelect | ClockSource(_) | ClockDivider(_) | ClockPostDivider(_) | MemoryClockSource
        | MemoryClockState => Policy::Storage,
        GraphTrap
        | GraphGpcTrap
        | GraphTrapEnable
        | GraphBundle
        | GraphBundleData
        | GraphBundleControl
        | GraphFifoControl
        | GraphDispatchTrap
        | GraphSubchannelClass(_)
        | GraphMethodPort
        | GraphMethodPortData
        | GraphMacroTrap
        | GraphMacroTrapAt
        | GraphMacroTrapWord
        | GraphM2mfTrap => Policy::Storage,
        GpcTrap(_) | TpcTrap(_) | TextureTrap(_) | MpWarpError(_) | MpGlobalError(_) | GpccsControl => {
            Policy::Storage
        }
        _ => return None,
    })
}

/// Single words without a name that read a constant, by offset; they take precedence over [`RANGES`].
const WORDS: &[(u32, Policy)] = &[
    (0x10_a04c, Policy::Constant(0)), // PMU: idle
    (0x10_a10c, Policy::Constant(0)), // PMU: memories scrubbed
    (0x41_a108, Policy::Constant(0)), // GPC falcons: memory sizes
    (0x41_a12c, Policy::Constant(0)), // GPC falcons: version
];

/// Ranges of words without a name, from, to (exclusive), by offset and disjoint.
const RANGES: &[(u32, u32, Policy)] = &[
    (0x00_e000, 0x00_f000, Policy::Storage),     // GPIO, fan, clocks
    (0x02_0000, 0x02_1000, Policy::Storage),     // PTHERM
    (0x02_1000, 0x02_2000, Policy::Storage),     // fuses, zero: no sensor, no voltage control
    (0x04_0000, 0x04_6000, Policy::Constant(0)), // loaded RAMFC of whoever runs
    (0x08_4000, 0x08_7000, Policy::Storage),     // video falcons
    (0x10_4000, 0x10_6000, Policy::Storage),     // copy falcons: uploads go nowhere
    (0x10_a000, 0x10_b000, Policy::Storage),     // PMU: likewise
    (0x12_2000, 0x12_3000, Policy::Storage),     // PRING
    (0x13_2000, 0x13_8000, Policy::Storage),     // clocks
    (0x14_1000, 0x17_e000, Policy::Constant(0)), // LTC slices: nothing pending
    (0x17_e000, 0x17_f000, Policy::Storage),     // LTC, all slices
    (0x40_0000, 0x40_9000, Policy::Storage),     // PGRAPH defaults
    (0x40_9000, 0x40_a000, Policy::Virtual),     // FECS: the context handshake
    (0x40_a000, 0x41_a000, Policy::Storage),
    (0x41_a000, 0x41_b000, Policy::Storage), // GPC falcons
    (0x41_b000, 0x52_0000, Policy::Storage),
];

#[cfg(test)]
#[path = "policy/tests.rs"]
mod tests;
