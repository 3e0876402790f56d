//! The registers of PFIFO, the PBDMAs and the engines.

use super::channel_id;
use crate::{engine::unit_of, memory::Place, mmu_fault::INJECTED, model::FermiModel, pbdma::State};
use fermi_spec::{
    engine::{ENGINE_NONE, Engine},
    fault::client,
    instance::offset,
    regs::{
        Bar0Reg, BypassReg, PbdmaReg, PfifoReg, PfifoWord,
        pfifo::{ChannelInstance, EngineStatus},
    },
};

/// InjectFault: do it.
const INJECT_VALID: u32 = 1 << 8;
/// The id of a channel on an engine or PBDMA is valid.
const CHANNEL_ACTIVE: u32 = 1 << 8;
const PBDMAS_PRESENT: u32 = super::PBDMAS_PRESENT;

impl FermiModel {
    pub(super) fn read_pfifo(&self, reg: Bar0Reg) -> Option<u32> {
        let fifo = &self.pfifo;
        Some(match reg {
            Bar0Reg::Pfifo(PfifoReg::PfifoIntr) => fifo.interrupts(self.pbdma_sources()),
            Bar0Reg::Pfifo(PfifoReg::PfifoIntrEnable) => fifo.intr_enable,
            Bar0Reg::Pfifo(PfifoReg::PfifoIntrEnableNonStall) => fifo.intr_enable_nonstall,
            Bar0Reg::Pfifo(PfifoReg::PfifoEnable) => u32::from(fifo.enabled),
            Bar0Reg::Pfifo(PfifoReg::PfifoPbdmas) => fifo.pbdmas,
            Bar0Reg::Pfifo(PfifoReg::EnginePbdmaMask(e)) => *fifo.engine_pbdma_mask.get(usize::from(e))?,
            Bar0Reg::Pfifo(PfifoReg::EngineTimeslice(e)) => *fifo.timeslice.get(usize::from(e))?,
            Bar0Reg::Pfifo(PfifoReg::EngineTimeslicePb(e)) => *fifo.timeslice_pb.get(usize::from(e))?,
            Bar0Reg::Pfifo(PfifoReg::UserdBase) => fifo.userd_base,
            Bar0Reg::Pfifo(PfifoReg::RunlistBase) => fifo.runlist_base,
            Bar0Reg::Pfifo(PfifoReg::RunlistCommit) => fifo.runlist_commit,
            Bar0Reg::Pfifo(PfifoReg::RunlistCurrent) => fifo.runlist_current(),
            Bar0Reg::Pfifo(PfifoReg::RunlistStatus) => fifo.runlist_status(),
            Bar0Reg::Pfifo(PfifoReg::ChannelTableError) => fifo.table_error,
            Bar0Reg::Pfifo(PfifoReg::SchedulerError) => fifo.scheduler_error,
            Bar0Reg::Pfifo(PfifoReg::Word(PfifoWord::SwitchError)) => 0,
            Bar0Reg::Pfifo(PfifoReg::FaultUnits) => fifo.faults.units(),
            Bar0Reg::Pfifo(PfifoReg::FaultRecord(index)) => fifo.faults.word(usize::from(index)),
            Bar0Reg::Pfifo(PfifoReg::PbdmaIntrSource) => self.pbdma_sources(),
            Bar0Reg::Pfifo(PfifoReg::EngineIntrSource) => fifo.engine_sources(),
            Bar0Reg::Pfifo(PfifoReg::EngineIntr(e)) => *fifo.engine_intr.get(usize::from(e))?,
            Bar0Reg::Pfifo(PfifoReg::EngineIntrEnable) => fifo.engine_intr_enable,
            Bar0Reg::Pfifo(PfifoReg::EngineFault) => self.faulted_engines(),
            Bar0Reg::Pfifo(PfifoReg::EngineBlock) => fifo.block,
            Bar0Reg::Pfifo(PfifoReg::Preempt) => fifo.preempt.register(),
            Bar0Reg::Pfifo(PfifoReg::SchedulerFreeze) => fifo.freeze,
            Bar0Reg::Pfifo(PfifoReg::EngineStatus(e)) => self.engine_status(e),
            Bar0Reg::Pfifo(PfifoReg::EngineInstance(e)) => self.engine_instance(e).unwrap_or(0),
            Bar0Reg::Pfifo(PfifoReg::EngineInstanceValid(e)) => {
                self.engine_instance(e).map_or(0, |word| word | 1 << 31)
            }
            Bar0Reg::Pfifo(PfifoReg::EngineChannel(e)) => self.engine_channel(e),
            Bar0Reg::Pfifo(PfifoReg::RunlistIntr) => fifo.runlist_intr,
            Bar0Reg::Bypass(BypassReg::BypassConfig)
            | Bar0Reg::Bypass(BypassReg::BypassSwitch)
            | Bar0Reg::Bypass(BypassReg::BypassAddress)
            | Bar0Reg::Bypass(BypassReg::BypassData) => 0,
            Bar0Reg::Bypass(BypassReg::BypassStatus) => fifo.bypass_status(),
            Bar0Reg::Pfifo(PfifoReg::PfifoTimeout(index)) => *fifo.timeouts.get(usize::from(index))?,
            Bar0Reg::Pfifo(PfifoReg::SwitchTimeout) => fifo.switch_timeout,
            Bar0Reg::Pfifo(PfifoReg::InjectFault(e)) => *fifo.inject.get(usize::from(e))?,
            Bar0Reg::Pfifo(PfifoReg::ChannelInstance(index)) => {
                fifo.channel(channel_id(index)?).table.into_bits()
            }
            Bar0Reg::Pfifo(PfifoReg::ChannelState(index)) => fifo.state(channel_id(index)?),
            _ => return None,
        })
    }

    pub(super) fn write_pfifo(&mut self, reg: Bar0Reg, value: u32) -> bool {
        let fifo = &mut self.pfifo;
        match reg {
            Bar0Reg::Pfifo(PfifoReg::PfifoIntr) => fifo.acknowledge(value),
            Bar0Reg::Pfifo(PfifoReg::PfifoIntrEnable) => fifo.intr_enable = value,
            Bar0Reg::Pfifo(PfifoReg::PfifoIntrEnableNonStall) => fifo.intr_enable_nonstall = value,
            Bar0Reg::Pfifo(PfifoReg::PfifoEnable) => fifo.enabled = value & 1 != 0,
            Bar0Reg::Pfifo(PfifoReg::PfifoPbdmas) => fifo.pbdmas = value & PBDMAS_PRESENT,
            Bar0Reg::Pfifo(PfifoReg::EnginePbdmaMask(e)) => set(&mut fifo.engine_pbdma_mask, e, value),
            Bar0Reg::Pfifo(PfifoReg::EngineTimeslice(e)) => set(&mut fifo.timeslice, e, value),
            Bar0Reg::Pfifo(PfifoReg::EngineTimeslicePb(e)) => set(&mut fifo.timeslice_pb, e, value),
            Bar0Reg::Pfifo(PfifoReg::UserdBase) => fifo.userd_base = value,
            Bar0Reg::Pfifo(PfifoReg::RunlistBase) => fifo.runlist_base = value,
            Bar0Reg::Pfifo(PfifoReg::RunlistCommit) => self.commit_runlist(value),
            Bar0Reg::Pfifo(PfifoReg::FaultUnits) => fifo.faults.acknowledge(value),
            Bar0Reg::Pfifo(PfifoReg::EngineIntr(e)) => acknowledge(&mut fifo.engine_intr, e, value),
            Bar0Reg::Pfifo(PfifoReg::EngineIntrEnable) => fifo.engine_intr_enable = value & 0xf,
            Bar0Reg::Pfifo(PfifoReg::EngineFault) => self.recover_engines(value),
            Bar0Reg::Pfifo(PfifoReg::EngineBlock) => fifo.block = value,
            Bar0Reg::Pfifo(PfifoReg::Preempt) => self.start_preempt(value),
            Bar0Reg::Pfifo(PfifoReg::SchedulerFreeze) => fifo.freeze = value,
            Bar0Reg::Pfifo(PfifoReg::RunlistIntr) => fifo.runlist_intr &= !value,
            Bar0Reg::Bypass(BypassReg::BypassConfig)
            | Bar0Reg::Bypass(BypassReg::BypassSwitch)
            | Bar0Reg::Bypass(BypassReg::BypassAddress) => {}
            Bar0Reg::Bypass(BypassReg::BypassStatus) => fifo.acknowledge_bypass(value),
            Bar0Reg::Bypass(BypassReg::BypassData) => fifo.refuse_bypass(),
            Bar0Reg::Pfifo(PfifoReg::PfifoTimeout(index)) => set(&mut fifo.timeouts, index, value),
            Bar0Reg::Pfifo(PfifoReg::SwitchTimeout) => fifo.switch_timeout = value,
            Bar0Reg::Pfifo(PfifoReg::InjectFault(e)) => self.inject_fault(e, value),
            Bar0Reg::Pfifo(PfifoReg::ChannelInstance(index)) => {
                if let Some(id) = channel_id(index) {
                    self.bind_channel(id, value);
                }
            }
            Bar0Reg::Pfifo(PfifoReg::ChannelState(index)) => {
                if let Some(id) = channel_id(index) {
                    self.write_channel_state(id, value);
                }
            }
            // The level goes when its source does; the rest is read-only.
            Bar0Reg::Pfifo(PfifoReg::PbdmaIntrSource)
            | Bar0Reg::Pfifo(PfifoReg::RunlistCurrent)
            | Bar0Reg::Pfifo(PfifoReg::RunlistStatus)
            | Bar0Reg::Pfifo(PfifoReg::ChannelTableError)
            | Bar0Reg::Pfifo(PfifoReg::SchedulerError)
            | Bar0Reg::Pfifo(PfifoReg::Word(PfifoWord::SwitchError))
            | Bar0Reg::Pfifo(PfifoReg::EngineIntrSource)
            | Bar0Reg::Pfifo(PfifoReg::EngineStatus(_))
            | Bar0Reg::Pfifo(PfifoReg::EngineInstance(_))
            | Bar0Reg::Pfifo(PfifoReg::EngineInstanceValid(_))
            | Bar0Reg::Pfifo(PfifoReg::EngineChannel(_))
            | Bar0Reg::Pfifo(PfifoReg::FaultRecord(_))
            | Bar0Reg::Pfifo(PfifoReg::PbdmaEngine(_)) => {}
            _ => return false,
        }
        true
    }

    pub(super) fn read_pbdma(&self, reg: Bar0Reg) -> Option<u32> {
        let pbdma = |index: u16| self.pbdmas.get(usize::from(index));
        Some(match reg {
            Bar0Reg::Pfifo(PfifoReg::PbdmaEngine(index)) => {
                let unit = pbdma(index)?;
                let engine = unit.channel().and_then(|_| unit.target());
                u32::from(engine.map_or(ENGINE_NONE, Engine::number))
            }
            Bar0Reg::Pbdma(PbdmaReg::PbdmaIntr(index)) => pbdma(index)?.intr,
            Bar0Reg::Pbdma(PbdmaReg::PbdmaIntrEnable(index)) => pbdma(index)?.intr_enable,
            Bar0Reg::Pbdma(PbdmaReg::PbdmaGpShadowLow(index)) => pbdma(index)?.shadows[0],
            Bar0Reg::Pbdma(PbdmaReg::PbdmaGpShadowHigh(index)) => pbdma(index)?.shadows[1],
            Bar0Reg::Pbdma(PbdmaReg::PbdmaHeaderShadow(index)) => pbdma(index)?.shadows[2],
            Bar0Reg::Pbdma(PbdmaReg::PbdmaChannel(index)) => pbdma(index)?
                .channel()
                .map_or(0, |id| id.number() | CHANNEL_ACTIVE),
            Bar0Reg::Pbdma(PbdmaReg::PbdmaStall(index)) => pbdma(index)?.stall,
            _ => return None,
        })
    }

    pub(super) fn write_pbdma(&mut self, reg: Bar0Reg, value: u32) -> bool {
        let pbdmas = &mut self.pbdmas;
        match reg {
            Bar0Reg::Pbdma(PbdmaReg::PbdmaIntr(index)) => self.acknowledge_pbdma(usize::from(index), value),
            Bar0Reg::Pbdma(PbdmaReg::PbdmaIntrEnable(index)) => {
                pbdmas[usize::from(index)].intr_enable = value
            }
            Bar0Reg::Pbdma(PbdmaReg::PbdmaStall(index)) => pbdmas[usize::from(index)].stall = value,
            // The latch is the driver's only while the PBDMA is stopped.
            Bar0Reg::Pbdma(PbdmaReg::PbdmaMethod0(index)) => {
                let unit = &mut pbdmas[usize::from(index)];
                if unit.state == State::Stopped {
                    unit.set_reg(offset::METHOD0, value);
                }
            }
            Bar0Reg::Pbdma(PbdmaReg::PbdmaData0(index)) => {
                let unit = &mut pbdmas[usize::from(index)];
                if unit.state == State::Stopped {
                    unit.set_reg(offset::METHOD0 + 4, value);
                }
            }
            Bar0Reg::Pbdma(PbdmaReg::PbdmaGpShadowLow(_))
            | Bar0Reg::Pbdma(PbdmaReg::PbdmaGpShadowHigh(_))
            | Bar0Reg::Pbdma(PbdmaReg::PbdmaHeaderShadow(_))
            | Bar0Reg::Pbdma(PbdmaReg::PbdmaChannel(_)) => {}
            _ => return false,
        }
        true
    }

    fn unit_at(&self, index: u16) -> Option<&crate::engine::Unit> {
        Some(&self.units[unit_of(Engine::from_number(index as u8)?)?])
    }

    fn engine_status(&self, index: u16) -> u32 {
        let Some(unit) = self.unit_at(index) else { return 0 };
        let channel = unit.holder.map_or(0, |holder| holder.channel.number() as u8);
        let preempted = unit
            .holder
            .is_some_and(|holder| self.pfifo.preempt.concerns(holder.channel));
        EngineStatus::new()
            .with_channel(channel)
            .with_switch_waiting(preempted && !unit.is_ready())
            .with_faulted(unit.faulted)
            // nouveau resets an engine that stands only if it is busy with the channel to blame.
            .with_busy(unit.holder.is_some() && unit.enabled && !unit.is_ready())
            .into_bits()
    }

    fn engine_instance(&self, index: u16) -> Option<u32> {
        let Place { aperture, at } = self.unit_at(index)?.holder?.instance;
        let word = ChannelInstance::new()
            .with_frame((at.0 >> 12) as u32 & 0x0fff_ffff)
            .with_aperture(aperture);
        Some(word.into_bits())
    }

    fn engine_channel(&self, index: u16) -> u32 {
        let holder = self.unit_at(index).and_then(|unit| unit.holder);
        holder.map_or(0, |holder| holder.channel.number() | CHANNEL_ACTIVE)
    }

    /// Writes INJECT_FAULT: the engine faults as if its access had been refused.
    fn inject_fault(&mut self, index: u16, value: u32) {
        set(&mut self.pfifo.inject, index, value);
        let unit = Engine::from_number(index as u8).and_then(unit_of);
        match unit {
            Some(unit) if value & INJECT_VALID != 0 => self.fault_unit(unit, INJECTED),
            None if value & INJECT_VALID != 0 => {
                self.record_fault((value & 0x1f) as u8, client::PFIFO, None, INJECTED);
            }
            _ => {}
        }
    }
}

fn set(words: &mut [u32], index: u16, value: u32) {
    if let Some(word) = words.get_mut(usize::from(index)) {
        *word = value;
    }
}

fn acknowledge(words: &mut [u32], index: u16, mask: u32) {
    if let Some(word) = words.get_mut(usize::from(index)) {
        *word &= !mask;
    }
}
