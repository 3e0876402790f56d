//! Who answers a register: one table over the named registers and over ranges. What it does not list is refused.
//!
//! There is no policy "pass through": whatever a guest does in BAR0 is answered for its own virtual GPU, and what has
//! an effect on the card is the mediator's own doing. Ranges and constants: what nouveau touches on a GF100 (envytools
//! `rnndb` for the units' extents), registers with physical addresses (debug pages, compression tags, flush page) are
//! remembered and never used.

use crate::bar0::VGA_CRTC;
use fermi_spec::regs::{
    Bar0Reg, BypassReg, FecsReg, LtcReg, LtcWord, PRAMIN_BASE, PRAMIN_BYTES, PROM_BASE, PROM_END, PbdmaReg,
    PbusReg, PclockReg, PcopyReg, PeepholeReg, PffbReg, PffbWord, PfifoReg, PfifoWord, PflushReg, PgraphReg,
    PgraphWord, PmcReg, PmcWord, PmuReg, PnvioReg, PpciReg, PringReg, PringWord, PtimerReg, PtimerWord,
    PunitsReg, PunitsWord, VgaReg, pcopy, pffb, pmu, ppci::PPCI, punits,
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
        let in_window = PPCI.range().contains(&offset)
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
    match reg {
        // A way to engines without a channel.
        Bar0Reg::Bypass(BypassReg::BypassConfig)
        | Bar0Reg::Bypass(BypassReg::BypassSwitch)
        | Bar0Reg::Bypass(BypassReg::BypassStatus)
        | Bar0Reg::Bypass(BypassReg::BypassAddress)
        | Bar0Reg::Bypass(BypassReg::BypassData) => Some(Policy::Refused),
        // A second way to memory that no driver for this board uses.
        Bar0Reg::Peephole(PeepholeReg::PeepholeBlock)
        | Bar0Reg::Peephole(PeepholeReg::PeepholeHigh)
        | Bar0Reg::Peephole(PeepholeReg::PeepholeLow)
        | Bar0Reg::Peephole(PeepholeReg::PeepholeData) => Some(Policy::Refused),
        _ => meaningful(reg)
            .or_else(|| constant(reg))
            .or_else(|| remembered(reg)),
    }
}

/// Registers that mean something to the virtual GPU.
fn meaningful(reg: Bar0Reg) -> Option<Policy> {
    Some(match reg {
        // Identity and interrupts of the virtual board; VRAM, channels, address spaces.
        Bar0Reg::Pmc(PmcReg::Boot0)
        | Bar0Reg::Pmc(PmcReg::PmcIntr(_))
        | Bar0Reg::Pmc(PmcReg::PmcIntrEnable(_))
        | Bar0Reg::Pmc(PmcReg::PmcIntrLine(_))
        | Bar0Reg::Pmc(PmcReg::PmcEnable)
        | Bar0Reg::Pmc(PmcReg::PbdmaEnable)
        | Bar0Reg::Pmc(PmcReg::PmcIntrMask(_)) => Policy::Virtual,
        Bar0Reg::Pbus(PbusReg::PraminBase)
        | Bar0Reg::Pbus(PbusReg::Bar1Block)
        | Bar0Reg::Pbus(PbusReg::Bar3Block) => Policy::Virtual,
        Bar0Reg::Pfifo(PfifoReg::PfifoIntr)
        | Bar0Reg::Pfifo(PfifoReg::PfifoIntrEnable)
        | Bar0Reg::Pfifo(PfifoReg::PfifoEnable)
        | Bar0Reg::Pfifo(PfifoReg::UserdBase)
        | Bar0Reg::Pfifo(PfifoReg::RunlistBase)
        | Bar0Reg::Pfifo(PfifoReg::RunlistCommit)
        | Bar0Reg::Pfifo(PfifoReg::RunlistCurrent)
        | Bar0Reg::Pfifo(PfifoReg::RunlistStatus)
        | Bar0Reg::Pfifo(PfifoReg::PbdmaEngine(_)) => Policy::Virtual,
        Bar0Reg::Pfifo(PfifoReg::PfifoIntrEnableNonStall)
        | Bar0Reg::Pfifo(PfifoReg::ChannelTableError)
        | Bar0Reg::Pfifo(PfifoReg::SchedulerError)
        | Bar0Reg::Pfifo(PfifoReg::Word(PfifoWord::SwitchError))
        | Bar0Reg::Pfifo(PfifoReg::FaultUnits)
        | Bar0Reg::Pfifo(PfifoReg::PbdmaIntrSource)
        | Bar0Reg::Pfifo(PfifoReg::EngineIntrSource)
        | Bar0Reg::Pfifo(PfifoReg::EngineIntr(_))
        | Bar0Reg::Pfifo(PfifoReg::EngineIntrEnable)
        | Bar0Reg::Pfifo(PfifoReg::EngineFault)
        | Bar0Reg::Pfifo(PfifoReg::EngineBlock)
        | Bar0Reg::Pfifo(PfifoReg::Preempt)
        | Bar0Reg::Pfifo(PfifoReg::SchedulerFreeze)
        | Bar0Reg::Pfifo(PfifoReg::EngineStatus(_))
        | Bar0Reg::Pfifo(PfifoReg::EngineInstance(_))
        | Bar0Reg::Pfifo(PfifoReg::EngineInstanceValid(_))
        | Bar0Reg::Pfifo(PfifoReg::EngineChannel(_))
        | Bar0Reg::Pfifo(PfifoReg::FaultRecord(_))
        | Bar0Reg::Pfifo(PfifoReg::RunlistIntr)
        | Bar0Reg::Pfifo(PfifoReg::InjectFault(_))
        | Bar0Reg::Pfifo(PfifoReg::ChannelInstance(_))
        | Bar0Reg::Pfifo(PfifoReg::ChannelState(_)) => Policy::Virtual,
        _ => return meaningful_behind_pfifo(reg),
    })
}

/// The same of the units behind PFIFO.
fn meaningful_behind_pfifo(reg: Bar0Reg) -> Option<Policy> {
    Some(match reg {
        Bar0Reg::Pbdma(PbdmaReg::PbdmaIntr(_))
        | Bar0Reg::Pbdma(PbdmaReg::PbdmaIntrEnable(_))
        | Bar0Reg::Pbdma(PbdmaReg::PbdmaGpShadowLow(_))
        | Bar0Reg::Pbdma(PbdmaReg::PbdmaGpShadowHigh(_))
        | Bar0Reg::Pbdma(PbdmaReg::PbdmaHeaderShadow(_))
        | Bar0Reg::Pbdma(PbdmaReg::PbdmaChannel(_))
        | Bar0Reg::Pbdma(PbdmaReg::PbdmaMethod0(_))
        | Bar0Reg::Pbdma(PbdmaReg::PbdmaData0(_)) => Policy::Virtual,
        Bar0Reg::Pflush(PflushReg::HostFlush)
        | Bar0Reg::Pflush(PflushReg::L2InvalidateSysram)
        | Bar0Reg::Pflush(PflushReg::L2InvalidatePeer)
        | Bar0Reg::Pflush(PflushReg::L2CleanTags)
        | Bar0Reg::Pflush(PflushReg::L2FlushDirty) => Policy::Virtual,
        Bar0Reg::Pffb(PffbReg::TlbDirectory)
        | Bar0Reg::Pffb(PffbReg::TlbInvalidate)
        | Bar0Reg::Pffb(PffbReg::PartitionMebibytes(_))
        | Bar0Reg::Pffb(PffbReg::PartitionMebibytesOld) => Policy::Virtual,
        Bar0Reg::Ptimer(PtimerReg::PtimerIntr)
        | Bar0Reg::Ptimer(PtimerReg::PtimerIntrEnable)
        | Bar0Reg::Ptimer(PtimerReg::PtimerLow)
        | Bar0Reg::Ptimer(PtimerReg::PtimerHigh)
        | Bar0Reg::Ptimer(PtimerReg::PtimerAlarm) => Policy::Virtual,
        Bar0Reg::Pcopy(PcopyReg::CopyIntr(_))
        | Bar0Reg::Pcopy(PcopyReg::CopyIntrAck(_))
        | Bar0Reg::Pcopy(PcopyReg::CopyError(_))
        | Bar0Reg::Pcopy(PcopyReg::CopyErrorData(_))
        | Bar0Reg::Pcopy(PcopyReg::CopyIntrEnableSet(_))
        | Bar0Reg::Pcopy(PcopyReg::CopyIntrEnableClear(_)) => Policy::Virtual,
        Bar0Reg::Pgraph(PgraphReg::GraphIntr)
        | Bar0Reg::Pgraph(PgraphReg::GraphIntrEnable)
        | Bar0Reg::Pgraph(PgraphReg::GraphDataError)
        | Bar0Reg::Pgraph(PgraphReg::GraphTrappedMethod)
        | Bar0Reg::Pgraph(PgraphReg::GraphTrappedData) => Policy::Virtual,
        // The context handshake, which nobody answers.
        Bar0Reg::Fecs(FecsReg::FecsIntrSet)
        | Bar0Reg::Fecs(FecsReg::FecsControl)
        | Bar0Reg::Fecs(FecsReg::FecsData)
        | Bar0Reg::Fecs(FecsReg::FecsCommand)
        | Bar0Reg::Fecs(FecsReg::FecsScratch(_))
        | Bar0Reg::Fecs(FecsReg::FecsScratchSet(_))
        | Bar0Reg::Fecs(FecsReg::FecsScratchClear(_))
        | Bar0Reg::Fecs(FecsReg::FecsChannel)
        | Bar0Reg::Fecs(FecsReg::FecsNextChannel)
        | Bar0Reg::Fecs(FecsReg::FecsHostIntr)
        | Bar0Reg::Fecs(FecsReg::FecsHostIntrSet)
        | Bar0Reg::Fecs(FecsReg::FecsHostIntrClear)
        | Bar0Reg::Fecs(FecsReg::FecsHostIntrEnable) => Policy::Virtual,
        Bar0Reg::Ppci(PpciReg::PciRomShadow)
        | Bar0Reg::Ppci(PpciReg::PciMsiRearm)
        | Bar0Reg::Vga(VgaReg::VgaCrtc) => Policy::Virtual,
        _ => return None,
    })
}

/// Registers that read the same in every VM.
fn constant(reg: Bar0Reg) -> Option<Policy> {
    Some(match reg {
        Bar0Reg::Pmc(PmcReg::Endian)
        | Bar0Reg::Pbus(PbusReg::PbusIntr)
        | Bar0Reg::Pbus(PbusReg::PbusErrorAddress)
        | Bar0Reg::Pbus(PbusReg::PbusErrorData) => Policy::Constant(0),
        Bar0Reg::Punits(PunitsReg::Word(PunitsWord::Post0)) => Policy::Constant(punits::POST0_AFTER_VBIOS),
        // Initialisation scripts have run.
        Bar0Reg::Punits(PunitsReg::Post1) => Policy::Constant(punits::POST_SCRIPTS_RAN),
        Bar0Reg::Punits(PunitsReg::DesignGpcs) => Policy::Constant(GPCS),
        Bar0Reg::Punits(PunitsReg::DesignTpcs) => Policy::Constant(TPCS),
        Bar0Reg::Punits(PunitsReg::DesignPartitions) | Bar0Reg::Pffb(PffbReg::PartitionConfig) => {
            Policy::Constant(PARTITIONS)
        }
        Bar0Reg::Punits(PunitsReg::Word(PunitsWord::FusePartitions)) => Policy::Constant(0),
        // Neither display nor video engines.
        Bar0Reg::Punits(PunitsReg::FuseDisable) => Policy::Constant(7),
        // The Quadro 6000's straps: 27 MHz crystal.
        Bar0Reg::Punits(PunitsReg::Straps) => Policy::Constant(punits::STRAPS),
        Bar0Reg::Punits(PunitsReg::Straps2) => Policy::Constant(punits::STRAPS2),
        Bar0Reg::Pmc(PmcReg::Word(PmcWord::NewId))
        | Bar0Reg::Pmc(PmcReg::Word(PmcWord::PmcLtcIntr))
        | Bar0Reg::Pmc(PmcReg::Word(PmcWord::PmcPartitionIntr)) => Policy::Constant(0),
        Bar0Reg::Punits(PunitsReg::Word(PunitsWord::FuseGpcs))
        | Bar0Reg::Punits(PunitsReg::FuseTpcs(_))
        | Bar0Reg::Punits(PunitsReg::Word(PunitsWord::Fuse(_))) => Policy::Constant(0),
        Bar0Reg::Pring(PringReg::Word(PringWord::RingCommand))
        | Bar0Reg::Pring(PringReg::Word(PringWord::RingIntr(_))) => Policy::Constant(0),
        Bar0Reg::Pring(PringReg::RingHubs) => Policy::Constant(1),
        Bar0Reg::Pring(PringReg::RingPartitions) => Policy::Constant(PARTITIONS),
        Bar0Reg::Pring(PringReg::RingGpcs) => Policy::Constant(GPCS),
        Bar0Reg::Pgraph(PgraphReg::GraphUnits) => Policy::Constant(6 << 16 | GPCS),
        Bar0Reg::Pgraph(PgraphReg::GpcTpcs(3)) => Policy::Constant(TPCS - 1),
        Bar0Reg::Pgraph(PgraphReg::GpcTpcs(_)) => Policy::Constant(TPCS),
        Bar0Reg::Ltc(LtcReg::LtcSlices) => Policy::Constant(2 << 28),
        Bar0Reg::Ltc(LtcReg::Word(LtcWord::LtcTagClear)) => Policy::Constant(0),
        Bar0Reg::Pffb(PffbReg::MmuConfig) => Policy::Constant(pffb::MMU_CONFIG_READY),
        // Its microcode runs: the rings are there.
        Bar0Reg::Pmu(PmuReg::PmuCommandRing) => {
            Policy::Constant(pmu::PMU_RING_BYTES << 16 | pmu::PMU_COMMAND_RING)
        }
        Bar0Reg::Pmu(PmuReg::PmuMessageRing) => {
            Policy::Constant(pmu::PMU_RING_BYTES << 16 | pmu::PMU_MESSAGE_RING)
        }
        Bar0Reg::Pcopy(PcopyReg::CopyCaps(_)) => Policy::Constant(pcopy::COPY_CAPS),
        Bar0Reg::Pcopy(PcopyReg::CopyVersion(_)) => Policy::Constant(pcopy::COPY_VERSION),
        // PGRAPH is idle, and the power mode of its front end reached.
        Bar0Reg::Pgraph(PgraphReg::GraphActivity)
        | Bar0Reg::Pgraph(PgraphReg::GraphStatus)
        | Bar0Reg::Pgraph(PgraphReg::GraphPowerMode) => Policy::Constant(0),
        _ => return None,
    })
}

/// Settings of units that the host has set up for all.
fn remembered(reg: Bar0Reg) -> Option<Policy> {
    Some(match reg {
        Bar0Reg::Pmc(PmcReg::Word(PmcWord::PmcEnable2))
        | Bar0Reg::Pmc(PmcReg::Word(PmcWord::PmcUnknown260))
        | Bar0Reg::Pbus(PbusReg::PbusIntrEnable)
        | Bar0Reg::Pbus(PbusReg::PbusIntrEnableNonStall) => Policy::Storage,
        Bar0Reg::Pfifo(PfifoReg::PfifoPbdmas)
        | Bar0Reg::Pfifo(PfifoReg::EnginePbdmaMask(_))
        | Bar0Reg::Pfifo(PfifoReg::EngineTimeslice(_))
        | Bar0Reg::Pfifo(PfifoReg::EngineTimeslicePb(_))
        | Bar0Reg::Pfifo(PfifoReg::PfifoTimeout(_))
        | Bar0Reg::Pfifo(PfifoReg::SwitchTimeout)
        | Bar0Reg::Pbdma(PbdmaReg::PbdmaStall(_)) => Policy::Storage,
        Bar0Reg::Ptimer(PtimerReg::Word(PtimerWord::PtimerNumerator))
        | Bar0Reg::Ptimer(PtimerReg::Word(PtimerWord::PtimerDenominator))
        | Bar0Reg::Ptimer(PtimerReg::Word(PtimerWord::PtimerConfig)) => Policy::Storage,
        Bar0Reg::Pffb(PffbReg::Word(PffbWord::FlushPage))
        | Bar0Reg::Pffb(PffbReg::Word(PffbWord::TlbPage))
        | Bar0Reg::Pffb(PffbReg::Word(PffbWord::MmuDebugControl))
        | Bar0Reg::Pffb(PffbReg::Word(PffbWord::MmuDebugWrite))
        | Bar0Reg::Pffb(PffbReg::Word(PffbWord::MmuDebugRead)) => Policy::Storage,
        Bar0Reg::Pcopy(PcopyReg::CopyControl(_)) | Bar0Reg::Pcopy(PcopyReg::CopyIntrRoute(_)) => {
            Policy::Storage
        }
        Bar0Reg::Punits(PunitsReg::Word(PunitsWord::PciVersion))
        | Bar0Reg::Punits(PunitsReg::Word(PunitsWord::FuseAccess))
        | Bar0Reg::Pnvio(PnvioReg::GpioIntrEnable(_))
        | Bar0Reg::Pnvio(PnvioReg::GpioIntr(_))
        | Bar0Reg::Pnvio(PnvioReg::AuxIntrEnable)
        | Bar0Reg::Pnvio(PnvioReg::AuxIntr)
        | Bar0Reg::Pnvio(PnvioReg::FanTachControl)
        | Bar0Reg::Pnvio(PnvioReg::FanTach)
        | Bar0Reg::Pnvio(PnvioReg::ThermIntrEnable)
        | Bar0Reg::Pnvio(PnvioReg::ThermIntr) => Policy::Storage,
        Bar0Reg::Ltc(LtcReg::Word(LtcWord::LtcIntrControl))
        | Bar0Reg::Ltc(LtcReg::Word(LtcWord::LtcConfig))
        | Bar0Reg::Ltc(LtcReg::Word(LtcWord::LtcTagFirst))
        | Bar0Reg::Ltc(LtcReg::Word(LtcWord::LtcTagLast))
        | Bar0Reg::Ltc(LtcReg::Word(LtcWord::LtcTagBase))
        | Bar0Reg::Ltc(LtcReg::Word(LtcWord::LtcCount))
        | Bar0Reg::Ltc(LtcReg::ZbcIndex)
        | Bar0Reg::Ltc(LtcReg::ZbcColour(_))
        | Bar0Reg::Ltc(LtcReg::ZbcDepth) => Policy::Storage,
        Bar0Reg::Pring(PringReg::Word(PringWord::RingSetting310))
        | Bar0Reg::Pring(PringReg::Word(PringWord::RingTimeout(_)))
        | Bar0Reg::Pring(PringReg::Word(PringWord::RingSetting348)) => Policy::Storage,
        Bar0Reg::Pclock(PclockReg::ClockPllSelect)
        | Bar0Reg::Pclock(PclockReg::ClockSource(_))
        | Bar0Reg::Pclock(PclockReg::ClockDivider(_))
        | Bar0Reg::Pclock(PclockReg::ClockPostDivider(_))
        | Bar0Reg::Pclock(PclockReg::MemoryClockSource)
        | Bar0Reg::Pclock(PclockReg::MemoryClockState) => Policy::Storage,
        _ => return remembered_of_graph(reg),
    })
}

/// The same of PGRAPH.
fn remembered_of_graph(reg: Bar0Reg) -> Option<Policy> {
    Some(match reg {
        Bar0Reg::Pgraph(PgraphReg::GraphTrap)
        | Bar0Reg::Pgraph(PgraphReg::GraphGpcTrap)
        | Bar0Reg::Pgraph(PgraphReg::GraphTrapEnable)
        | Bar0Reg::Pgraph(PgraphReg::Word(PgraphWord::GraphBundle))
        | Bar0Reg::Pgraph(PgraphReg::Word(PgraphWord::GraphBundleData))
        | Bar0Reg::Pgraph(PgraphReg::Word(PgraphWord::GraphBundleControl))
        | Bar0Reg::Pgraph(PgraphReg::GraphFifoControl)
        | Bar0Reg::Pgraph(PgraphReg::Word(PgraphWord::GraphDispatchTrap))
        | Bar0Reg::Pgraph(PgraphReg::GraphSubchannelClass(_))
        | Bar0Reg::Pgraph(PgraphReg::GraphMethodPort)
        | Bar0Reg::Pgraph(PgraphReg::GraphMethodPortData)
        | Bar0Reg::Pgraph(PgraphReg::GraphMacroTrap)
        | Bar0Reg::Pgraph(PgraphReg::GraphMacroTrapAt)
        | Bar0Reg::Pgraph(PgraphReg::GraphMacroTrapWord)
        | Bar0Reg::Pgraph(PgraphReg::Word(PgraphWord::GraphM2mfTrap)) => Policy::Storage,
        Bar0Reg::Pgraph(PgraphReg::GpcTrap(_))
        | Bar0Reg::Pgraph(PgraphReg::TpcTrap(_))
        | Bar0Reg::Pgraph(PgraphReg::TextureTrap(_))
        | Bar0Reg::Pgraph(PgraphReg::MpWarpError(_))
        | Bar0Reg::Pgraph(PgraphReg::MpGlobalError(_))
        | Bar0Reg::Fecs(FecsReg::GpccsControl) => Policy::Storage,
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
