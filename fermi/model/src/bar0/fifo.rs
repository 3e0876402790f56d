//! The registers of PFIFO, the PBDMAs and the engines.

use super::channel_id;
use crate::{engine::unit_of, memory::Place, mmu_fault::INJECTED, model::FermiModel, pbdma::State};
use fermi_spec::{
    engine::{ENGINE_NONE, Engine},
    fault::client,
    instance::offset,
    regs::{
        Bar0Reg,
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
            Bar0Reg::PfifoIntr => fifo.interrupts(self.pbdma_sources()),
            Bar0Reg::PfifoIntrEnable => fifo.intr_enable,
            Bar0Reg::PfifoIntrEnableNonStall => fifo.intr_enable_nonstall,
            Bar0Reg::PfifoEnable => u32::from(fifo.enabled),
            Bar0Reg::PfifoPbdmas => fifo.pbdmas,
            Bar0Reg::EnginePbdmaMask(e) => *fifo.engine_pbdma_mask.get(usize::from(e))?,
            Bar0Reg::EngineTimeslice(e) => *fifo.timeslice.get(usize::from(e))?,
            Bar0Reg::EngineTimeslicePb(e) => *fifo.timeslice_pb.get(usize::from(e))?,
            Bar0Reg::UserdBase => fifo.userd_base,
            Bar0Reg::RunlistBase => fifo.runlist_base,
            Bar0Reg::RunlistCommit => fifo.runlist_commit,
            Bar0Reg::RunlistCurrent => fifo.runlist_current(),
            Bar0Reg::RunlistStatus => fifo.runlist_status(),
            Bar0Reg::ChannelTableError => fifo.table_error,
            Bar0Reg::SchedulerError => fifo.scheduler_error,
            Bar0Reg::SwitchError => 0,
            Bar0Reg::FaultUnits => fifo.faults.units(),
            Bar0Reg::FaultRecord(index) => fifo.faults.word(usize::from(index)),
            Bar0Reg::PbdmaIntrSource => self.pbdma_sources(),
            Bar0Reg::EngineIntrSource => fifo.engine_sources(),
            Bar0Reg::EngineIntr(e) => *fifo.engine_intr.get(usize::from(e))?,
            Bar0Reg::EngineIntrEnable => fifo.engine_intr_enable,
            Bar0Reg::EngineFault => self.faulted_engines(),
            Bar0Reg::EngineBlock => fifo.block,
            Bar0Reg::Preempt => fifo.preempt.register(),
            Bar0Reg::SchedulerFreeze => fifo.freeze,
            Bar0Reg::EngineStatus(e) => self.engine_status(e),
            Bar0Reg::EngineInstance(e) => self.engine_instance(e).unwrap_or(0),
            Bar0Reg::EngineInstanceValid(e) => self.engine_instance(e).map_or(0, |word| word | 1 << 31),
            Bar0Reg::EngineChannel(e) => self.engine_channel(e),
            Bar0Reg::RunlistIntr => fifo.runlist_intr,
            Bar0Reg::BypassConfig | Bar0Reg::BypassSwitch | Bar0Reg::BypassAddress | Bar0Reg::BypassData => 0,
            Bar0Reg::BypassStatus => fifo.bypass_status(),
            Bar0Reg::PfifoTimeout(index) => *fifo.timeouts.get(usize::from(index))?,
            Bar0Reg::SwitchTimeout => fifo.switch_timeout,
            Bar0Reg::InjectFault(e) => *fifo.inject.get(usize::from(e))?,
            Bar0Reg::ChannelInstance(index) => fifo.channel(channel_id(index)?).table.into_bits(),
            Bar0Reg::ChannelState(index) => fifo.state(channel_id(index)?),
            _ => return None,
        })
    }

    pub(super) fn write_pfifo(&mut self, reg: Bar0Reg, value: u32) -> bool {
        let fifo = &mut self.pfifo;
        match reg {
            Bar0Reg::PfifoIntr => fifo.acknowledge(value),
            Bar0Reg::PfifoIntrEnable => fifo.intr_enable = value,
            Bar0Reg::PfifoIntrEnableNonStall => fifo.intr_enable_nonstall = value,
            Bar0Reg::PfifoEnable => fifo.enabled = value & 1 != 0,
            Bar0Reg::PfifoPbdmas => fifo.pbdmas = value & PBDMAS_PRESENT,
            Bar0Reg::EnginePbdmaMask(e) => set(&mut fifo.engine_pbdma_mask, e, value),
            Bar0Reg::EngineTimeslice(e) => set(&mut fifo.timeslice, e, value),
            Bar0Reg::EngineTimeslicePb(e) => set(&mut fifo.timeslice_pb, e, value),
            Bar0Reg::UserdBase => fifo.userd_base = value,
            Bar0Reg::RunlistBase => fifo.runlist_base = value,
            Bar0Reg::RunlistCommit => self.commit_runlist(value),
            Bar0Reg::FaultUnits => fifo.faults.acknowledge(value),
            Bar0Reg::EngineIntr(e) => acknowledge(&mut fifo.engine_intr, e, value),
            Bar0Reg::EngineIntrEnable => fifo.engine_intr_enable = value & 0xf,
            Bar0Reg::EngineFault => self.recover_engines(value),
            Bar0Reg::EngineBlock => fifo.block = value,
            Bar0Reg::Preempt => self.start_preempt(value),
            Bar0Reg::SchedulerFreeze => fifo.freeze = value,
            Bar0Reg::RunlistIntr => fifo.runlist_intr &= !value,
            Bar0Reg::BypassConfig | Bar0Reg::BypassSwitch | Bar0Reg::BypassAddress => {}
            Bar0Reg::BypassStatus => fifo.acknowledge_bypass(value),
            Bar0Reg::BypassData => fifo.refuse_bypass(),
            Bar0Reg::PfifoTimeout(index) => set(&mut fifo.timeouts, index, value),
            Bar0Reg::SwitchTimeout => fifo.switch_timeout = value,
            Bar0Reg::InjectFault(e) => self.inject_fault(e, value),
            Bar0Reg::ChannelInstance(index) => {
                if let Some(id) = channel_id(index) {
                    self.bind_channel(id, value);
                }
            }
            Bar0Reg::ChannelState(index) => {
                if let Some(id) = channel_id(index) {
                    self.write_channel_state(id, value);
                }
            }
            // The level goes when its source does; the rest is read-only.
            Bar0Reg::PbdmaIntrSource
            | Bar0Reg::RunlistCurrent
            | Bar0Reg::RunlistStatus
            | Bar0Reg::ChannelTableError
            | Bar0Reg::SchedulerError
            | Bar0Reg::SwitchError
            | Bar0Reg::EngineIntrSource
            | Bar0Reg::EngineStatus(_)
            | Bar0Reg::EngineInstance(_)
            | Bar0Reg::EngineInstanceValid(_)
            | Bar0Reg::EngineChannel(_)
            | Bar0Reg::FaultRecord(_)
            | Bar0Reg::PbdmaEngine(_) => {}
            _ => return false,
        }
        true
    }

    pub(super) fn read_pbdma(&self, reg: Bar0Reg) -> Option<u32> {
        let pbdma = |index: u16| self.pbdmas.get(usize::from(index));
        Some(match reg {
            Bar0Reg::PbdmaEngine(index) => {
                let unit = pbdma(index)?;
                let engine = unit.channel().and_then(|_| unit.target());
                u32::from(engine.map_or(ENGINE_NONE, Engine::number))
            }
            Bar0Reg::PbdmaIntr(index) => pbdma(index)?.intr,
            Bar0Reg::PbdmaIntrEnable(index) => pbdma(index)?.intr_enable,
            Bar0Reg::PbdmaGpShadowLow(index) => pbdma(index)?.shadows[0],
            Bar0Reg::PbdmaGpShadowHigh(index) => pbdma(index)?.shadows[1],
            Bar0Reg::PbdmaHeaderShadow(index) => pbdma(index)?.shadows[2],
            Bar0Reg::PbdmaChannel(index) => pbdma(index)?
                .channel()
                .map_or(0, |id| id.number() | CHANNEL_ACTIVE),
            Bar0Reg::PbdmaStall(index) => pbdma(index)?.stall,
            _ => return None,
        })
    }

    pub(super) fn write_pbdma(&mut self, reg: Bar0Reg, value: u32) -> bool {
        let pbdmas = &mut self.pbdmas;
        match reg {
            Bar0Reg::PbdmaIntr(index) => self.acknowledge_pbdma(usize::from(index), value),
            Bar0Reg::PbdmaIntrEnable(index) => pbdmas[usize::from(index)].intr_enable = value,
            Bar0Reg::PbdmaStall(index) => pbdmas[usize::from(index)].stall = value,
            // The latch is the driver's only while the PBDMA is stopped.
            Bar0Reg::PbdmaMethod0(index) => {
                let unit = &mut pbdmas[usize::from(index)];
                if unit.state == State::Stopped {
                    unit.set_reg(offset::METHOD0, value);
                }
            }
            Bar0Reg::PbdmaData0(index) => {
                let unit = &mut pbdmas[usize::from(index)];
                if unit.state == State::Stopped {
                    unit.set_reg(offset::METHOD0 + 4, value);
                }
            }
            Bar0Reg::PbdmaGpShadowLow(_)
            | Bar0Reg::PbdmaGpShadowHigh(_)
            | Bar0Reg::PbdmaHeaderShadow(_)
            | Bar0Reg::PbdmaChannel(_) => {}
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
