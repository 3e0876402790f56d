//! A guest's registers that are not interrupts: what they keep, and what a store to them asks the mediator to do.

use fermi_spec::addr::Aperture;
use fermi_spec::engine::{ENGINE_NONE, PBDMAS, pmc_enable};
use fermi_spec::instance::CHANNELS;
use fermi_spec::regs::pffb;
use fermi_spec::regs::pfifo::{ChannelInstance, ChannelState, PREEMPT_PENDING, RUNLIST_PENDING, RunlistBase};
use fermi_spec::regs::windows::{PraminBase, WindowBlock};
use fermi_spec::regs::{
    Bar0Reg, PbusReg, PcopyReg, PffbReg, PfifoReg, PgraphReg, PmcReg, PpciReg, PtimerReg, pfifo,
};
use mmio::{Policy, Storage};
use shadow_pt::TableAt;

use crate::event::Tick;

/// What a store asks for beyond being remembered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Effect {
    /// Nothing beyond keeping the value.
    None,
    /// TLB flush: of one directory, or of all.
    Flush(Option<TableAt>),
    /// The channel table entry was written.
    ChannelInstance(u8, ChannelInstance),
    /// The channel may or may not run.
    ChannelState(u8, bool),
    /// A runlist is to be taken over: where, how many entries.
    Runlist(RunlistBase, u16),
    /// Take a channel off the engines.
    Preempt(u8),
    /// PFIFO was switched off: all channels go.
    ResetFifo,
    /// No such thing: counted.
    Refused,
}

/// The register file.
#[derive(Debug)]
pub(crate) struct Registers {
    boot0: u32,
    mebibytes: u32,
    storage: Storage,
    pmc_enable: u32,
    pbdma_enable: u32,
    pub(crate) pramin: PraminBase,
    pub(crate) bar1: WindowBlock,
    pub(crate) bar3: WindowBlock,
    userd_base: u32,
    pfifo_enable: u32,
    runlist_base: u32,
    runlist_commit: u32,
    /// The card has not taken the last commit over yet.
    pub(crate) runlist_pending: bool,
    preempt: u32,
    tlb_directory: u32,
    mmu_config: u32,
    instances: Box<[u32; CHANNELS]>,
    states: Box<[u32; CHANNELS]>,
    engine_fault: u32,
    stored: [u32; STORED.len()],
}

/// Registers that keep what is written and mean nothing more here.
const STORED: [Bar0Reg; 12] = [
    Bar0Reg::Pfifo(PfifoReg::EngineBlock),
    Bar0Reg::Pfifo(PfifoReg::SchedulerFreeze),
    Bar0Reg::Pfifo(PfifoReg::EngineIntrEnable),
    Bar0Reg::Pfifo(PfifoReg::PfifoIntrEnableNonStall),
    Bar0Reg::Ptimer(PtimerReg::PtimerIntrEnable),
    Bar0Reg::Ptimer(PtimerReg::PtimerAlarm),
    Bar0Reg::Pgraph(PgraphReg::GraphIntrEnable),
    Bar0Reg::Ppci(PpciReg::PciRomShadow),
    Bar0Reg::Pcopy(PcopyReg::CopyError(0)),
    Bar0Reg::Pcopy(PcopyReg::CopyError(1)),
    Bar0Reg::Pcopy(PcopyReg::CopyErrorData(0)),
    Bar0Reg::Pcopy(PcopyReg::CopyErrorData(1)),
];

impl Registers {
    pub(crate) fn new(boot0: u32, guest_vram: u64) -> Self {
        Self {
            boot0,
            mebibytes: (guest_vram >> 20) as u32,
            storage: Storage::default(),
            pmc_enable: 0,
            pbdma_enable: 0,
            pramin: PraminBase::new(),
            bar1: WindowBlock::new(),
            bar3: WindowBlock::new(),
            userd_base: 0,
            pfifo_enable: 0,
            runlist_base: 0,
            runlist_commit: 0,
            runlist_pending: false,
            preempt: 0,
            tlb_directory: 0,
            mmu_config: 0,
            instances: Box::new([0; CHANNELS]),
            states: Box::new([0; CHANNELS]),
            engine_fault: 0,
            stored: [0; STORED.len()],
        }
    }

    /// Where BAR1 shows the USERD array, if the guest has said so.
    pub(crate) fn userd_window(&self) -> Option<u64> {
        (self.userd_base & pfifo::USERD_BASE_VALID != 0)
            .then(|| u64::from(self.userd_base & 0x0fff_ffff) << 12)
    }

    /// The guest's preempt is done.
    pub(crate) fn preempt_done(&mut self, channel: u8) {
        if self.preempt == PREEMPT_PENDING | u32::from(channel) {
            self.preempt = u32::from(channel);
        }
    }

    /// A load without side effects; `None` if the policy leaves it to storage, a constant or nobody.
    fn read_virtual(&self, reg: Bar0Reg, now: Tick) -> u32 {
        let table = |table: &[u32; CHANNELS], i: u16| table.get(usize::from(i)).copied().unwrap_or(0);
        match reg {
            Bar0Reg::Pmc(PmcReg::Boot0) => self.boot0,
            Bar0Reg::Pmc(PmcReg::PmcEnable) => self.pmc_enable,
            Bar0Reg::Pmc(PmcReg::PbdmaEnable) => self.pbdma_enable,
            Bar0Reg::Pbus(PbusReg::PraminBase) => self.pramin.into_bits(),
            Bar0Reg::Pbus(PbusReg::Bar1Block) => self.bar1.into_bits(),
            Bar0Reg::Pbus(PbusReg::Bar3Block) => self.bar3.into_bits(),
            Bar0Reg::Pfifo(PfifoReg::UserdBase) => self.userd_base,
            Bar0Reg::Pfifo(PfifoReg::PfifoEnable) => self.pfifo_enable,
            Bar0Reg::Pfifo(PfifoReg::RunlistBase) | Bar0Reg::Pfifo(PfifoReg::RunlistCurrent) => {
                self.runlist_base
            }
            Bar0Reg::Pfifo(PfifoReg::RunlistCommit) => self.runlist_commit,
            Bar0Reg::Pfifo(PfifoReg::RunlistStatus) => {
                let pending = if self.runlist_pending { RUNLIST_PENDING } else { 0 };
                self.runlist_commit & 0xfff | pending
            }
            Bar0Reg::Pfifo(PfifoReg::Preempt) => self.preempt,
            Bar0Reg::Pfifo(PfifoReg::EngineFault) => self.engine_fault,
            Bar0Reg::Pffb(PffbReg::TlbDirectory) => self.tlb_directory,
            Bar0Reg::Pffb(PffbReg::PartitionMebibytes(0)) | Bar0Reg::Pffb(PffbReg::PartitionMebibytesOld) => {
                self.mebibytes
            }
            Bar0Reg::Pfifo(PfifoReg::ChannelInstance(c)) => table(&self.instances, c),
            Bar0Reg::Pfifo(PfifoReg::ChannelState(c)) => table(&self.states, c),
            Bar0Reg::Pfifo(PfifoReg::PbdmaEngine(_)) => u32::from(ENGINE_NONE),
            // Nanoseconds in steps of 32; the time does not stand still, as the edge's clock does not.
            Bar0Reg::Ptimer(PtimerReg::PtimerLow) => now.0 as u32 & !0x1f,
            Bar0Reg::Ptimer(PtimerReg::PtimerHigh) => (now.0 >> 32) as u32 & 0x1fff_ffff,
            _ => STORED
                .iter()
                .position(|&stored| stored == reg)
                .map_or(0, |i| self.stored[i]),
        }
    }

    /// The guest's load of a register that is not an interrupt's.
    pub(crate) fn read(&self, reg: Bar0Reg, now: Tick) -> u32 {
        match Policy::of_register(reg) {
            Policy::Virtual => self.read_virtual(reg, now),
            Policy::Constant(value) => match reg {
                Bar0Reg::Pffb(PffbReg::MmuConfig) => value | self.mmu_config,
                _ => value,
            },
            Policy::Storage => self.storage.read(reg.offset()),
            Policy::Refused => 0,
        }
    }

    /// The guest's load of a word that has no name.
    pub(crate) fn read_unnamed(&self, offset: u32) -> Option<u32> {
        match Policy::of(offset) {
            Policy::Constant(value) => Some(value),
            Policy::Storage => Some(self.storage.read(offset)),
            Policy::Virtual => Some(0),
            Policy::Refused => None,
        }
    }

    /// The guest's store to a word that has no name; `false` if nobody takes it.
    pub(crate) fn write_unnamed(&mut self, offset: u32, value: u32) -> bool {
        match Policy::of(offset) {
            Policy::Storage => self.storage.write(offset, value),
            Policy::Constant(_) | Policy::Virtual => true,
            Policy::Refused => false,
        }
    }

    /// The guest's store to a register that is not an interrupt's.
    pub(crate) fn write(&mut self, reg: Bar0Reg, value: u32) -> Effect {
        match Policy::of_register(reg) {
            Policy::Virtual => self.write_virtual(reg, value),
            Policy::Constant(_) => {
                if reg == Bar0Reg::Pffb(PffbReg::MmuConfig) {
                    // Bypass and target bits are an open door to memory: only the page-size and tag bits are kept.
                    self.mmu_config = value & pffb::MMU_CONFIG_STORED;
                }
                Effect::None
            }
            Policy::Storage => {
                self.storage.write(reg.offset(), value);
                Effect::None
            }
            Policy::Refused => Effect::Refused,
        }
    }

    fn write_virtual(&mut self, reg: Bar0Reg, value: u32) -> Effect {
        match reg {
            Bar0Reg::Pmc(PmcReg::PmcEnable) => {
                let fell = self.pmc_enable & !value;
                self.pmc_enable = value;
                if fell & pmc_enable::PFIFO != 0 {
                    return Effect::ResetFifo;
                }
            }
            Bar0Reg::Pmc(PmcReg::PbdmaEnable) => self.pbdma_enable = value & ((1 << PBDMAS) - 1),
            Bar0Reg::Pbus(PbusReg::PraminBase) => self.pramin = PraminBase::from_bits(value & 0x03ff_ffff),
            Bar0Reg::Pbus(PbusReg::Bar1Block) => self.bar1 = WindowBlock::from_bits(value),
            Bar0Reg::Pbus(PbusReg::Bar3Block) => self.bar3 = WindowBlock::from_bits(value),
            Bar0Reg::Pfifo(PfifoReg::UserdBase) => {
                self.userd_base = value & (pfifo::USERD_BASE_VALID | 0x0fff_ffff)
            }
            Bar0Reg::Pfifo(PfifoReg::PfifoEnable) => self.pfifo_enable = value & 1,
            Bar0Reg::Pfifo(PfifoReg::RunlistBase) => self.runlist_base = value & 0x3fff_ffff,
            Bar0Reg::Pfifo(PfifoReg::RunlistCommit) => {
                self.runlist_commit = value;
                let count = pfifo::RunlistCommit::from_bits(value).count();
                return Effect::Runlist(RunlistBase::from_bits(self.runlist_base), count);
            }
            Bar0Reg::Pfifo(PfifoReg::Preempt) => {
                let channel = (value & 0x7f) as u8;
                self.preempt = PREEMPT_PENDING | u32::from(channel);
                return Effect::Preempt(channel);
            }
            Bar0Reg::Pfifo(PfifoReg::EngineFault) => self.engine_fault &= !value,
            Bar0Reg::Pffb(PffbReg::TlbDirectory) => self.tlb_directory = value,
            Bar0Reg::Pffb(PffbReg::TlbInvalidate) => return self.invalidate(value),
            Bar0Reg::Pfifo(PfifoReg::ChannelInstance(c)) if usize::from(c) < CHANNELS => {
                // A target in host memory is no instance block of the guest's: the bits are forced to VRAM.
                let entry = ChannelInstance::from_bits(value).with_aperture(Aperture::Vram);
                self.instances[usize::from(c)] = entry.into_bits();
                return Effect::ChannelInstance(c as u8, entry);
            }
            Bar0Reg::Pfifo(PfifoReg::ChannelState(c)) if usize::from(c) < CHANNELS => {
                let state = ChannelState::from_bits(value);
                self.states[usize::from(c)] = ChannelState::new()
                    .with_runnable(state.runnable())
                    .with_engine(state.engine())
                    .into_bits();
                return Effect::ChannelState(c as u8, state.runnable());
            }
            _ => {
                if let Some(i) = STORED.iter().position(|&stored| stored == reg) {
                    self.stored[i] = value;
                }
            }
        }
        Effect::None
    }

    fn invalidate(&self, value: u32) -> Effect {
        if value & pffb::TLB_GO == 0 {
            return Effect::None;
        }
        if value & pffb::TLB_ALL_DIRECTORIES != 0 {
            return Effect::Flush(None);
        }
        let address = fermi_spec::addr::PhysAddr(u64::from(self.tlb_directory >> 4) << 12);
        match TableAt::from_aperture(Aperture::from_bits(self.tlb_directory as u8), address) {
            Some(directory) => Effect::Flush(Some(directory)),
            None => Effect::None,
        }
    }

    /// Everything as after power-on, the identity excepted.
    pub(crate) fn reset(&mut self) {
        *self = Self::new(self.boot0, u64::from(self.mebibytes) << 20);
    }

    /// The entry of a channel that lost its binding.
    pub(crate) fn forget_channel(&mut self, channel: u8) {
        self.instances[usize::from(channel)] = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registers() -> Registers {
        Registers::new(0x0c00_00a3, 192 << 20)
    }

    #[test]
    fn pbdma_enable_keeps_three_bits() {
        let mut registers = registers();
        registers.write(Bar0Reg::Pmc(PmcReg::PbdmaEnable), !0);
        assert_eq!(registers.read(Bar0Reg::Pmc(PmcReg::PbdmaEnable), Tick(0)), 7);
    }

    #[test]
    fn pramin_in_host_memory_shows_nothing() {
        let mut registers = registers();
        registers.write(Bar0Reg::Pbus(PbusReg::PraminBase), 2 << 24 | 0x10);
        assert_eq!(mmio::aperture::pramin_address(registers.pramin, 0), None);
    }

    #[test]
    fn instance_target_is_forced_to_vram() {
        let mut registers = registers();
        let effect = registers.write(Bar0Reg::Pfifo(PfifoReg::ChannelInstance(3)), 0xe000_1234);
        let Effect::ChannelInstance(3, entry) = effect else {
            panic!("{effect:?}")
        };
        assert_eq!(entry.aperture(), Aperture::Vram);
    }

    #[test]
    fn mmu_bypass_is_not_kept() {
        let mut registers = registers();
        registers.write(Bar0Reg::Pffb(PffbReg::MmuConfig), 0xb000_0001);
        assert_eq!(
            registers.read(Bar0Reg::Pffb(PffbReg::MmuConfig), Tick(0)),
            pffb::MMU_CONFIG_READY | 1
        );
    }

    #[test]
    fn preempt_reads_pending_and_then_exactly_the_channel() {
        let mut registers = registers();
        assert_eq!(
            registers.write(Bar0Reg::Pfifo(PfifoReg::Preempt), 5),
            Effect::Preempt(5)
        );
        assert_eq!(
            registers.read(Bar0Reg::Pfifo(PfifoReg::Preempt), Tick(0)),
            PREEMPT_PENDING | 5
        );
        registers.preempt_done(5);
        assert_eq!(registers.read(Bar0Reg::Pfifo(PfifoReg::Preempt), Tick(0)), 5);
    }
}
