//! PFIFO of a guest's GPU: its interrupts and fault records, runlist, preempt and channel table.

use fermi_spec::addr::Aperture;
use fermi_spec::engine::{ENGINE_NONE, ENGINES, Engine, pmc_intr};
use fermi_spec::fault;
use fermi_spec::instance::CHANNELS;
use fermi_spec::regs::PfifoReg;
use fermi_spec::regs::pfifo::{
    CHANNEL_ID_MASK, ChannelInstance, ChannelState, ENABLED, ENGINE_NOTIFY, EngineStatus, PREEMPT_PENDING,
    RUNLIST_DONE, RUNLIST_PENDING, RunlistBase, RunlistCommit, USERD_BASE_FRAME, USERD_BASE_VALID, intr,
    scheduler_error,
};
use mmio::Storage;
use serde::{Deserialize, Serialize};

use super::effect::Effect;
use super::pbdma::Pbdmas;
use crate::inspect::{Inspect, Tree};
use crate::saved::Unsound;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Pfifo {
    /// Interrupts that are no levels.
    intr: u32,
    intr_enable: u32,
    enable: u32,
    engine_intr: [u32; ENGINES],
    engine_fault: u32,
    fault_units: u32,
    records: Vec<[u32; 4]>,
    userd_base: u32,
    runlist_base: u32,
    runlist_commit: u32,
    runlist_intr: u32,
    /// The card has not taken the last commit over yet.
    pub(crate) runlist_pending: bool,
    preempt: u32,
    /// The engine that did not let go of a channel, by their numbers, until the guest has taken note.
    hung: Option<(u8, u8)>,
    #[serde(with = "crate::saved::array")]
    instances: Box<[u32; CHANNELS]>,
    #[serde(with = "crate::saved::array")]
    states: Box<[u32; CHANNELS]>,
}

impl Pfifo {
    pub(crate) fn new() -> Self {
        Self {
            intr: 0,
            intr_enable: 0,
            enable: 0,
            engine_intr: [0; ENGINES],
            engine_fault: 0,
            fault_units: 0,
            records: Vec::new(),
            userd_base: 0,
            runlist_base: 0,
            runlist_commit: 0,
            runlist_intr: 0,
            runlist_pending: false,
            preempt: 0,
            hung: None,
            instances: Box::new([0; CHANNELS]),
            states: Box::new([0; CHANNELS]),
        }
    }

    /// Checks a unit that was read.
    pub(super) fn check(&self) -> Result<(), Unsound> {
        let fits = self.records.is_empty() || self.records.len() == fault::unit::COUNT;
        Unsound::unless(fits, "fault records")?;
        let is_known = |(engine, channel)| usize::from(engine) < ENGINES && usize::from(channel) < CHANNELS;
        Unsound::unless(self.hung.is_none_or(is_known), "the engine that hung")
    }

    /// A channel on this engine asked for an interrupt.
    pub(crate) fn notify(&mut self, engine: Engine) {
        self.engine_intr[usize::from(engine.number())] |= ENGINE_NOTIFY;
    }

    /// The runlist commit is done.
    pub(crate) fn runlist_done(&mut self) {
        self.runlist_pending = false;
        self.runlist_intr |= RUNLIST_DONE;
    }

    /// The MMU refused an access. A record that is still occupied drops the fault, as on the card.
    pub(crate) fn fault(&mut self, unit: u8, record: [u32; 4]) {
        let bit = 1 << unit;
        if self.fault_units & bit != 0 {
            self.intr |= intr::DROPPED_FAULT;
            return;
        }
        self.records.resize(fault::unit::COUNT, [0; 4]);
        if let Some(slot) = self.records.get_mut(usize::from(unit)) {
            *slot = record;
            self.fault_units |= bit;
        }
    }

    /// An engine did not let go of the guest's channel in time, as a card tells it; the engine was reset.
    pub(crate) fn hang(&mut self, engine: Engine, channel: u8) {
        self.hung = Some((engine.number(), channel));
        self.intr |= intr::SCHEDULER;
    }

    /// ENGINE_STATUS: nobody is seen at work, what runs when is the host's affair. But who hung is seen until the guest has
    /// taken note.
    fn engine_status(&self, engine: u16) -> u32 {
        let status = |channel| {
            EngineStatus::new()
                .with_channel(channel)
                .with_switching(true)
                .with_switch_waiting(true)
                .with_busy(true)
        };
        match self.hung {
            Some((hung, channel)) if u16::from(hung) == engine => status(channel).into_bits(),
            _ => 0,
        }
    }

    /// Raises error bits of PFIFO's interrupt.
    pub(crate) fn error(&mut self, bits: u32) {
        self.intr |= bits & !intr::LEVELS;
    }

    /// Where BAR1 shows the USERD array, if the guest has said so.
    pub(crate) fn userd_window(&self) -> Option<u64> {
        (self.userd_base & USERD_BASE_VALID != 0).then(|| u64::from(self.userd_base & USERD_BASE_FRAME) << 12)
    }

    /// The guest's preempt is done.
    pub(crate) fn preempt_done(&mut self, channel: u8) {
        if self.preempt == PREEMPT_PENDING | u32::from(channel) {
            self.preempt = u32::from(channel);
        }
    }

    /// The entry of a channel that lost its binding.
    pub(crate) fn forget_channel(&mut self, channel: u8) {
        self.instances[usize::from(channel)] = 0;
    }

    /// The guest's word on a channel; that of one there is not is all zero.
    pub(crate) fn channel_state(&self, channel: u8) -> ChannelState {
        ChannelState::from_bits(entry(&*self.states, channel.into()))
    }

    /// PFIFO's bit in PMC_INTR, if anything is let through.
    pub(super) fn pending(&self, pbdmas: &Pbdmas) -> u32 {
        match self.interrupts(pbdmas) & self.intr_enable {
            0 => 0,
            _ => pmc_intr::PFIFO,
        }
    }

    fn interrupts(&self, pbdmas: &Pbdmas) -> u32 {
        let level = |up: bool, bit: u32| if up { bit } else { 0 };
        self.intr
            | level(self.fault_units != 0, intr::MMU_FAULT)
            | level(pbdmas.sources() != 0, intr::PBDMA)
            | level(self.runlist_intr != 0, intr::RUNLIST)
            | level(self.engine_sources() != 0, intr::ENGINE)
    }

    fn engine_sources(&self) -> u32 {
        (0..)
            .zip(self.engine_intr)
            .filter(|(_, bits)| *bits != 0)
            .fold(0, |mask, (i, _)| mask | 1 << i)
    }

    fn record_word(&self, index: u16) -> u32 {
        let record = self.records.get(usize::from(index) / 4);
        record.map_or(0, |record| record[usize::from(index) % 4])
    }

    pub(super) fn read(&self, reg: PfifoReg, pbdmas: &Pbdmas, words: &Storage) -> u32 {
        match reg {
            PfifoReg::PfifoIntr => self.interrupts(pbdmas),
            PfifoReg::PfifoIntrEnable => self.intr_enable,
            PfifoReg::PfifoEnable => self.enable,
            PfifoReg::UserdBase => self.userd_base,
            PfifoReg::RunlistBase | PfifoReg::RunlistCurrent => self.runlist_base,
            PfifoReg::RunlistCommit => self.runlist_commit,
            PfifoReg::RunlistStatus => {
                let pending = if self.runlist_pending { RUNLIST_PENDING } else { 0 };
                u32::from(RunlistCommit::from_bits(self.runlist_commit).count()) | pending
            }
            PfifoReg::RunlistIntr => self.runlist_intr,
            PfifoReg::Preempt => self.preempt,
            PfifoReg::FaultUnits => self.fault_units,
            PfifoReg::FaultRecord(i) => self.record_word(i),
            PfifoReg::PbdmaIntrSource => pbdmas.sources(),
            PfifoReg::EngineIntrSource => self.engine_sources(),
            PfifoReg::EngineIntr(i) => entry(&self.engine_intr, i),
            PfifoReg::EngineFault => self.engine_fault,
            PfifoReg::ChannelInstance(channel) => entry(&*self.instances, channel),
            PfifoReg::ChannelState(channel) => entry(&*self.states, channel),
            PfifoReg::PbdmaEngine(_) => u32::from(ENGINE_NONE),
            PfifoReg::EngineStatus(engine) => self.engine_status(engine),
            PfifoReg::SchedulerError => match self.hung {
                Some(_) => scheduler_error::SWITCH_TIMEOUT,
                None => 0,
            },
            PfifoReg::EngineInstance(_) | PfifoReg::EngineInstanceValid(_) | PfifoReg::EngineChannel(_) => 0,
            PfifoReg::ChannelTableError | PfifoReg::InjectFault(_) => 0,
            PfifoReg::PfifoPbdmas
            | PfifoReg::EnginePbdmaMask(_)
            | PfifoReg::EngineTimeslice(_)
            | PfifoReg::EngineTimeslicePb(_)
            | PfifoReg::PfifoIntrEnableNonStall
            | PfifoReg::EngineIntrEnable
            | PfifoReg::EngineBlock
            | PfifoReg::SchedulerFreeze
            | PfifoReg::PfifoTimeout(_)
            | PfifoReg::SwitchTimeout => words.load(reg),
            PfifoReg::Word(word) => words.load(word),
        }
    }

    pub(super) fn write(&mut self, reg: PfifoReg, value: u32, words: &mut Storage) -> Effect {
        match reg {
            PfifoReg::PfifoIntr => {
                self.intr &= !value;
                if value & intr::SCHEDULER != 0 {
                    self.hung = None;
                }
            }
            PfifoReg::PfifoIntrEnable => self.intr_enable = value,
            PfifoReg::PfifoEnable => self.enable = value & ENABLED,
            PfifoReg::UserdBase => self.userd_base = value & (USERD_BASE_VALID | USERD_BASE_FRAME),
            PfifoReg::RunlistBase => self.runlist_base = value & RunlistBase::STORED,
            PfifoReg::RunlistCommit => {
                self.runlist_commit = value;
                let count = RunlistCommit::from_bits(value).count();
                return Effect::Runlist(RunlistBase::from_bits(self.runlist_base), count);
            }
            PfifoReg::RunlistIntr => self.runlist_intr &= !value,
            PfifoReg::Preempt => {
                let channel = (value & CHANNEL_ID_MASK) as u8;
                self.preempt = PREEMPT_PENDING | u32::from(channel);
                return Effect::Preempt(channel);
            }
            PfifoReg::FaultUnits => self.fault_units &= !value,
            PfifoReg::EngineFault => self.engine_fault &= !value,
            PfifoReg::EngineIntr(i) => {
                if let Some(bits) = self.engine_intr.get_mut(usize::from(i)) {
                    *bits &= !value;
                }
            }
            PfifoReg::ChannelInstance(channel) => return self.set_instance(channel, value),
            PfifoReg::ChannelState(channel) => return self.set_state(channel, value),
            PfifoReg::RunlistCurrent
            | PfifoReg::RunlistStatus
            | PfifoReg::FaultRecord(_)
            | PfifoReg::EngineIntrSource
            | PfifoReg::PbdmaEngine(_)
            | PfifoReg::EngineStatus(_)
            | PfifoReg::EngineInstance(_)
            | PfifoReg::EngineInstanceValid(_)
            | PfifoReg::EngineChannel(_)
            | PfifoReg::ChannelTableError
            | PfifoReg::SchedulerError => {}
            // The level goes when its source does; faults are injected into nobody.
            PfifoReg::PbdmaIntrSource | PfifoReg::InjectFault(_) => {}
            PfifoReg::PfifoPbdmas
            | PfifoReg::EnginePbdmaMask(_)
            | PfifoReg::EngineTimeslice(_)
            | PfifoReg::EngineTimeslicePb(_)
            | PfifoReg::PfifoIntrEnableNonStall
            | PfifoReg::EngineIntrEnable
            | PfifoReg::EngineBlock
            | PfifoReg::SchedulerFreeze
            | PfifoReg::PfifoTimeout(_)
            | PfifoReg::SwitchTimeout => words.store(reg, value),
            PfifoReg::Word(word) => words.store(word, value),
        }
        Effect::None
    }

    fn set_instance(&mut self, channel: u16, value: u32) -> Effect {
        let Some(instance) = self.instances.get_mut(usize::from(channel)) else {
            return Effect::None;
        };
        // A target in host memory is no instance block of the guest's: the bits are forced to VRAM.
        let entry = ChannelInstance::from_bits(value).with_aperture(Aperture::Vram);
        *instance = entry.into_bits();
        Effect::ChannelInstance(channel as u8, entry)
    }

    fn set_state(&mut self, channel: u16, value: u32) -> Effect {
        let Some(state) = self.states.get_mut(usize::from(channel)) else {
            return Effect::None;
        };
        let wanted = ChannelState::from_bits(value);
        *state = ChannelState::new()
            .with_runnable(wanted.runnable())
            .with_engine(wanted.engine())
            .into_bits();
        Effect::ChannelState(channel as u8, wanted.runnable())
    }
}

fn entry(words: &[u32], index: u16) -> u32 {
    words.get(usize::from(index)).copied().unwrap_or(0)
}

impl Inspect for Pfifo {
    fn inspect(&self, tree: &mut Tree<'_>) {
        tree.bits("interrupts", self.intr);
        tree.bits("let_through", self.intr_enable);
        tree.bits("enabled", self.enable);
        tree.bits("engines_that_notify", self.engine_sources());
        tree.bits("engines_with_a_fault", self.engine_fault);
        tree.bits("units_with_a_fault", self.fault_units);
        let records = self.records.iter().filter(|record| **record != [0; 4]);
        tree.count("fault_records", records.count());
        tree.flag("runlist_is_pending", self.runlist_pending);
        tree.bits("runlist", self.runlist_base);
        tree.bits("runlist_commit", self.runlist_commit);
        tree.bits("runlist_interrupts", self.runlist_intr);
        tree.bits("preempt", self.preempt);
        tree.flag("an_engine_hung", self.hung.is_some());
        tree.bits("userd", self.userd_base);
        let used = |words: &[u32]| words.iter().filter(|word| **word != 0).count();
        tree.count("channel_table_entries", used(&*self.instances));
        tree.count("channel_states", used(&*self.states));
    }
}
