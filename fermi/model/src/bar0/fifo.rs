//! The registers of PFIFO, the PBDMAs and the engines.

use super::channel_id;
use crate::{
    engine::unit_of,
    memory::Place,
    mmu_fault::INJECTED,
    model::FermiModel,
    pbdma::{Activity, Pbdma},
};
use fermi_spec::{
    engine::{ENGINE_NONE, Engine, PBDMAS_PRESENT},
    fault::client,
    instance::offset,
    regs::{
        BypassReg, PbdmaReg, PfifoReg,
        pbdma::CHANNEL_ACTIVE,
        pfifo::{ChannelInstance, ENABLED, ENGINE_INTR_STORED, EngineStatus, INJECT_UNIT, INJECT_VALID},
    },
};

impl FermiModel {
    pub(super) fn read_pfifo(&self, reg: PfifoReg) -> u32 {
        let fifo = &self.pfifo;
        match reg {
            PfifoReg::PfifoIntr => fifo.interrupts(self.pbdma_sources()),
            PfifoReg::PfifoIntrEnable => fifo.intr_enable,
            PfifoReg::PfifoIntrEnableNonStall => fifo.intr_enable_nonstall,
            PfifoReg::PfifoEnable => u32::from(fifo.enabled),
            PfifoReg::PfifoPbdmas => fifo.pbdmas,
            PfifoReg::EnginePbdmaMask(e) => get(&fifo.engine_pbdma_mask, e),
            PfifoReg::EngineTimeslice(e) => get(&fifo.timeslice, e),
            PfifoReg::EngineTimeslicePb(e) => get(&fifo.timeslice_pb, e),
            PfifoReg::UserdBase => fifo.userd_base,
            PfifoReg::RunlistBase => fifo.runlist_base,
            PfifoReg::RunlistCommit => fifo.runlist_commit,
            PfifoReg::RunlistCurrent => fifo.runlist_current(),
            PfifoReg::RunlistStatus => fifo.runlist_status(),
            PfifoReg::ChannelTableError => fifo.table_error,
            PfifoReg::SchedulerError => fifo.scheduler_error,
            PfifoReg::FaultUnits => fifo.faults.units(),
            PfifoReg::FaultRecord(index) => fifo.faults.word(usize::from(index)),
            PfifoReg::PbdmaIntrSource => self.pbdma_sources(),
            PfifoReg::PbdmaEngine(index) => {
                let unit = &self.pbdmas[usize::from(index)];
                let engine = unit.channel().and_then(|_| unit.target());
                u32::from(engine.map_or(ENGINE_NONE, Engine::number))
            }
            PfifoReg::EngineIntrSource => fifo.engine_sources(),
            PfifoReg::EngineIntr(e) => get(&fifo.engine_intr, e),
            PfifoReg::EngineIntrEnable => fifo.engine_intr_enable,
            PfifoReg::EngineFault => self.faulted_engines(),
            PfifoReg::EngineBlock => fifo.block,
            PfifoReg::Preempt => fifo.preempt.register(),
            PfifoReg::SchedulerFreeze => fifo.freeze,
            PfifoReg::EngineStatus(e) => self.engine_status(e),
            PfifoReg::EngineInstance(e) => self.engine_instance(e).map_or(0, ChannelInstance::into_bits),
            PfifoReg::EngineInstanceValid(e) => self
                .engine_instance(e)
                .map_or(0, |word| word.with_valid(true).into_bits()),
            PfifoReg::EngineChannel(e) => self.engine_channel(e),
            PfifoReg::RunlistIntr => fifo.runlist_intr,
            PfifoReg::PfifoTimeout(index) => get(&fifo.timeouts, index),
            PfifoReg::SwitchTimeout => fifo.switch_timeout,
            PfifoReg::InjectFault(e) => get(&fifo.inject, e),
            PfifoReg::ChannelInstance(index) => {
                channel_id(index).map_or(0, |id| fifo.channel(id).table.into_bits())
            }
            PfifoReg::ChannelState(index) => channel_id(index).map_or(0, |id| self.channel_state(id)),
            PfifoReg::Word(word) => self.storage.load(word),
        }
    }

    pub(super) fn write_pfifo(&mut self, reg: PfifoReg, value: u32) {
        let fifo = &mut self.pfifo;
        match reg {
            PfifoReg::PfifoIntr => fifo.acknowledge(value),
            PfifoReg::PfifoIntrEnable => fifo.intr_enable = value,
            PfifoReg::PfifoIntrEnableNonStall => fifo.intr_enable_nonstall = value,
            PfifoReg::PfifoEnable => fifo.enabled = value & ENABLED != 0,
            PfifoReg::PfifoPbdmas => fifo.pbdmas = value & PBDMAS_PRESENT,
            PfifoReg::EnginePbdmaMask(e) => set(&mut fifo.engine_pbdma_mask, e, value),
            PfifoReg::EngineTimeslice(e) => set(&mut fifo.timeslice, e, value),
            PfifoReg::EngineTimeslicePb(e) => set(&mut fifo.timeslice_pb, e, value),
            PfifoReg::UserdBase => fifo.userd_base = value,
            PfifoReg::RunlistBase => fifo.runlist_base = value,
            PfifoReg::RunlistCommit => self.commit_runlist(value),
            PfifoReg::FaultUnits => fifo.faults.acknowledge(value),
            PfifoReg::EngineIntr(e) => acknowledge(&mut fifo.engine_intr, e, value),
            PfifoReg::EngineIntrEnable => fifo.engine_intr_enable = value & ENGINE_INTR_STORED,
            PfifoReg::EngineFault => self.recover_engines(value),
            PfifoReg::EngineBlock => fifo.block = value,
            PfifoReg::Preempt => self.start_preempt(value),
            PfifoReg::SchedulerFreeze => fifo.freeze = value,
            PfifoReg::RunlistIntr => fifo.runlist_intr &= !value,
            PfifoReg::PfifoTimeout(index) => set(&mut fifo.timeouts, index, value),
            PfifoReg::SwitchTimeout => fifo.switch_timeout = value,
            PfifoReg::InjectFault(e) => self.inject_fault(e, value),
            PfifoReg::ChannelInstance(index) => {
                if let Some(id) = channel_id(index) {
                    self.bind_channel(id, value);
                }
            }
            PfifoReg::ChannelState(index) => {
                if let Some(id) = channel_id(index) {
                    self.write_channel_state(id, value);
                }
            }
            // The level goes when its source does.
            PfifoReg::PbdmaIntrSource => {}
            PfifoReg::RunlistCurrent
            | PfifoReg::RunlistStatus
            | PfifoReg::ChannelTableError
            | PfifoReg::SchedulerError
            | PfifoReg::PbdmaEngine(_)
            | PfifoReg::EngineIntrSource
            | PfifoReg::EngineStatus(_)
            | PfifoReg::EngineInstance(_)
            | PfifoReg::EngineInstanceValid(_)
            | PfifoReg::EngineChannel(_)
            | PfifoReg::FaultRecord(_) => {}
            PfifoReg::Word(word) => self.storage.store(word, value),
        }
    }

    pub(super) fn read_bypass(&self, reg: BypassReg) -> u32 {
        match reg {
            BypassReg::BypassConfig
            | BypassReg::BypassSwitch
            | BypassReg::BypassAddress
            | BypassReg::BypassData => 0,
            BypassReg::BypassStatus => self.pfifo.bypass_status(),
        }
    }

    pub(super) fn write_bypass(&mut self, reg: BypassReg, value: u32) {
        match reg {
            BypassReg::BypassConfig | BypassReg::BypassSwitch | BypassReg::BypassAddress => {}
            BypassReg::BypassStatus => self.pfifo.acknowledge_bypass(value),
            BypassReg::BypassData => self.pfifo.refuse_bypass(),
        }
    }

    pub(super) fn read_pbdma(&self, reg: PbdmaReg) -> u32 {
        let pbdma = |index: u16| &self.pbdmas[usize::from(index)];
        match reg {
            PbdmaReg::PbdmaIntr(index) => pbdma(index).intr,
            PbdmaReg::PbdmaIntrEnable(index) => pbdma(index).intr_enable,
            PbdmaReg::PbdmaGpShadowLow(index) => pbdma(index).shadows[0],
            PbdmaReg::PbdmaGpShadowHigh(index) => pbdma(index).shadows[1],
            PbdmaReg::PbdmaHeaderShadow(index) => pbdma(index).shadows[2],
            PbdmaReg::PbdmaChannel(index) => pbdma(index)
                .channel()
                .map_or(0, |id| id.number() | CHANNEL_ACTIVE),
            PbdmaReg::PbdmaStall(index) => pbdma(index).stall,
            PbdmaReg::PbdmaMethod0(index) => pbdma(index).reg(offset::METHOD0),
            PbdmaReg::PbdmaData0(index) => pbdma(index).reg(offset::DATA0),
        }
    }

    pub(super) fn write_pbdma(&mut self, reg: PbdmaReg, value: u32) {
        let pbdmas = &mut self.pbdmas;
        match reg {
            PbdmaReg::PbdmaIntr(index) => self.acknowledge_pbdma(usize::from(index), value),
            PbdmaReg::PbdmaIntrEnable(index) => pbdmas[usize::from(index)].intr_enable = value,
            PbdmaReg::PbdmaStall(index) => pbdmas[usize::from(index)].stall = value,
            PbdmaReg::PbdmaMethod0(index) => {
                set_latch(&mut pbdmas[usize::from(index)], offset::METHOD0, value)
            }
            PbdmaReg::PbdmaData0(index) => set_latch(&mut pbdmas[usize::from(index)], offset::DATA0, value),
            PbdmaReg::PbdmaGpShadowLow(_)
            | PbdmaReg::PbdmaGpShadowHigh(_)
            | PbdmaReg::PbdmaHeaderShadow(_)
            | PbdmaReg::PbdmaChannel(_) => {}
        }
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

    fn engine_instance(&self, index: u16) -> Option<ChannelInstance> {
        let Place { aperture, at } = self.unit_at(index)?.holder?.instance;
        let word = ChannelInstance::new().with_instance(at);
        Some(word.with_aperture(aperture))
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
                self.record_fault((value & INJECT_UNIT) as u8, client::PFIFO, None, INJECTED);
            }
            _ => {}
        }
    }
}

/// Writes the latched method or its data, which are the driver's only while the PBDMA is stopped.
fn set_latch(pbdma: &mut Pbdma, at: u64, value: u32) {
    if pbdma.state == Activity::Stopped {
        pbdma.set_reg(at, value);
    }
}

fn get(words: &[u32], index: u16) -> u32 {
    words.get(usize::from(index)).copied().unwrap_or(0)
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
