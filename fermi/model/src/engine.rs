//! The engines that channels drive: PGRAPH, whose own part is in `graph.rs`, and the two copy engines.
//!
//! ```text
//!   free ──method of a channel──► held ──EXEC, LAUNCH──► transferring ──done──► held
//!                                   │                          │
//!                              rejection                   MMU refusal
//!                                   ▼                          ▼
//!                                stopped                    faulted
//!                         (acknowledged: held)     (262c or unit reset: free)
//! ```
//!
//! An engine has no queue of its own: the PBDMA holds back the next method while a transfer runs. A unit that
//! PMC_ENABLE keeps off holds back every method.

use crate::{
    compute::Grid,
    context::{IMAGE_BYTES, Registers},
    copy, copy_nvidia,
    falcon::{Falcon, FalconEvent, FalconShape},
    graph::RegisterList,
    memory::Place,
    microcode,
    mmu::{Access, AddressSpace},
    model::FermiModel,
    pfifo::{Acquire, ChannelId},
    side::Side,
    slices::Slice,
    transfer::{Completion, Launching, Transfer},
};
use fermi_spec::{
    addr::GpuVa,
    engine::Engine,
    fault::client,
    regs::{
        falcon::{self, CONTROL_SLEEPING, CONTROL_STOPPED, Caps, FalconReg},
        pcopy::{self, copy_error, copy_intr},
        pgraph::graph_intr,
    },
};

/// Engines that the model has.
pub(crate) const UNITS: usize = 3;

/// A context is read and stored with privilege.
pub(crate) const LOAD_CONTEXT: Access = Access {
    privileged: true,
    ..Access::READ
};
pub(crate) const SAVE_CONTEXT: Access = Access {
    privileged: true,
    ..Access::WRITE
};

const COPY_FALCON: FalconShape = FalconShape {
    caps: Caps::from_bits(pcopy::COPY_CAPS),
    version: pcopy::COPY_VERSION,
    route: copy_intr::ROUTE,
};

/// Index of an engine in the model's list, `None` for one that is not modelled.
pub(crate) fn unit_of(engine: Engine) -> Option<usize> {
    match engine {
        Engine::Graph => Some(0),
        Engine::Copy0 => Some(1),
        Engine::Copy1 => Some(2),
        Engine::Ppdec | Engine::Pppp | Engine::Pvld => None,
    }
}

/// Hub client of an engine in fault records.
pub(crate) fn unit_client(engine: Engine) -> u8 {
    match engine {
        Engine::Copy0 => client::PCOPY0,
        Engine::Copy1 => client::PCOPY1,
        _ => client::DISPATCH,
    }
}

/// Why an engine refuses a method.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rejection {
    /// Dispatch error of a copy engine, see [`copy_error`].
    Copy(u32),
    /// PGRAPH has no such class.
    GraphClass,
    /// The class has no such method.
    GraphMethod,
    /// Data error of PGRAPH.
    GraphData(u32),
    /// A second notification of PGRAPH was asked for.
    GraphDoubleNotify,
}

/// A store of inline data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct InlineWord {
    pub(crate) target: Side,
    /// Line and byte of the target.
    pub(crate) line: u32,
    pub(crate) byte: u32,
    pub(crate) word: [u8; 4],
    /// How many of the word's bytes are stored.
    pub(crate) bytes: usize,
    /// With the last word: what follows.
    pub(crate) completion: Option<Completion>,
}

/// Effect of a method besides setting registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "few methods start a transfer, and it goes to its unit by value"
)]
pub(crate) enum Effect {
    None,
    Start(Transfer),
    Inline(InlineWord),
    /// The method is not executed before memory compares.
    Wait(Acquire),
    Reject(Rejection),
}

/// The channel whose context an engine has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Holder {
    pub(crate) channel: ChannelId,
    pub(crate) instance: Place,
    pub(crate) space: AddressSpace,
}

/// The state of one engine.
pub(crate) struct Unit {
    pub(crate) engine: Engine,
    /// PMC_ENABLE has its bit set.
    pub(crate) enabled: bool,
    pub(crate) holder: Option<Holder>,
    /// Address space of the channel that was on it last, whose words may still be there.
    pub(crate) last: Option<AddressSpace>,
    pub(crate) registers: Registers,
    pub(crate) transfer: Option<Transfer>,
    /// The grid that runs on PGRAPH.
    pub(crate) grid: Option<Box<Grid>>,
    /// The register list that FECS writes before PGRAPH works for its context.
    pub(crate) list: Option<Box<RegisterList>>,
    /// When the transfer, the grid or the list goes on.
    pub(crate) at: u64,
    /// How long a transfer gives way to nobody.
    pub(crate) turn: Slice,
    /// Stopped by an MMU fault.
    pub(crate) faulted: bool,
    /// Stopped by a rejected method until its interrupt is acknowledged.
    pub(crate) stopped: bool,
    /// A copy engine's falcon, which has its interrupts and errors.
    pub(crate) falcon: Option<Falcon>,
    /// The falcon was started with microcode other than nouveau's.
    pub(crate) runs_foreign: bool,
    /// FECS was started with code that switches contexts; copy engines have a falcon of their own.
    pub(crate) switches_contexts: bool,
    /// The engine takes no method before its microcode runs.
    pub(crate) needs_microcode: bool,
    /// Value of GRAPH_INTR (400100).
    pub(crate) intr: u32,
    /// Value of GRAPH_INTR_ENABLE (40013c).
    pub(crate) intr_enable: u32,
    /// Value of GRAPH_DATA_ERROR (400110).
    pub(crate) error: u32,
    /// Method that was rejected, as GRAPH_TRAPPED_METHOD shows it.
    pub(crate) error_method: u32,
    /// Data word of that method.
    pub(crate) error_data: u32,
}

impl Unit {
    pub(crate) fn new(engine: Engine) -> Self {
        Self {
            engine,
            enabled: true,
            holder: None,
            last: None,
            registers: Registers::default(),
            transfer: None,
            grid: None,
            list: None,
            at: 0,
            turn: Slice::default(),
            faulted: false,
            stopped: false,
            falcon: match engine {
                Engine::Copy0 | Engine::Copy1 => Some(Falcon::new(COPY_FALCON)),
                _ => None,
            },
            runs_foreign: false,
            switches_contexts: false,
            needs_microcode: false,
            intr: 0,
            intr_enable: 0,
            error: 0,
            error_method: 0,
            error_data: 0,
        }
    }

    /// Address space of the channel on the engine.
    pub(crate) fn space(&self) -> Option<AddressSpace> {
        self.holder.map(|holder| holder.space)
    }

    /// Whether `channel` is on the engine.
    pub(crate) fn is_held_by(&self, channel: ChannelId) -> bool {
        self.holder.is_some_and(|holder| holder.channel == channel)
    }

    /// The channel whose context it has.
    pub(crate) fn channel(&self) -> Option<ChannelId> {
        self.holder.map(|holder| holder.channel)
    }

    /// Whether the engine performs a transfer or a grid, or FECS still has to write registers for it.
    pub(crate) fn is_working(&self) -> bool {
        self.transfer.is_some() || self.grid.is_some() || self.list.is_some()
    }

    /// Whether the engine can take a method or change channels now.
    pub(crate) fn is_ready(&self) -> bool {
        self.is_in_service() && !self.is_working()
    }

    /// Whether nothing keeps it from working.
    fn is_in_service(&self) -> bool {
        self.enabled && !self.faulted && !self.stopped && self.has_microcode()
    }

    /// When the copy that the engine performs gives way; `None` if it performs none. A grid gives way to nobody.
    pub(crate) fn gives_way_at(&self) -> Option<u64> {
        let is_copying =
            self.is_in_service() && self.transfer.is_some() && self.grid.is_none() && self.list.is_none();
        is_copying.then_some(self.turn.end)
    }

    /// Whether methods are executed: microcode was uploaded and started, or the card needs none.
    fn has_microcode(&self) -> bool {
        let runs = |falcon: &Falcon| falcon.is_running() && falcon.has_code();
        !self.needs_microcode || self.falcon.as_ref().map_or(self.switches_contexts, runs)
    }

    /// Interrupts that reach PMC.
    pub(crate) fn interrupts(&self) -> u32 {
        match &self.falcon {
            Some(falcon) => falcon.host_interrupts(),
            None => self.intr & self.intr_enable,
        }
    }

    /// The copy that just ended raises an interrupt and lets nothing in before its acknowledgement.
    pub(crate) fn block_after_copy(&mut self) {
        if let Some(falcon) = &mut self.falcon {
            falcon.raise(copy_intr::COPY_BLOCK);
            self.stopped = true;
        }
    }

    fn reject(&mut self, rejection: Rejection, subchannel: u8, method: u16, data: u32) {
        self.stopped = true;
        self.error_method = u32::from(subchannel) << 16 | u32::from(method);
        self.error_data = data;
        match rejection {
            Rejection::Copy(code) => {
                let code = code | u32::from(method >> 2 | u16::from(subchannel) << 11) << 16;
                if let Some(falcon) = &mut self.falcon {
                    falcon.raise_error(copy_intr::DISPATCH, code, data);
                }
            }
            Rejection::GraphClass => self.intr |= graph_intr::ILLEGAL_CLASS,
            Rejection::GraphMethod => self.intr |= graph_intr::ILLEGAL_METHOD,
            Rejection::GraphDoubleNotify => self.intr |= graph_intr::DOUBLE_NOTIFY,
            Rejection::GraphData(code) => {
                self.intr |= graph_intr::DATA_ERROR;
                self.error = code;
            }
        }
    }
}

impl FermiModel {
    /// Executes a method of the channel on engine `unit`, which is ready. Returns the GPU time that the method takes,
    /// or what it has to wait for before it can be executed.
    pub(crate) fn run_engine_method(
        &mut self,
        unit: usize,
        subchannel: u8,
        method: u16,
        data: u32,
    ) -> Result<u64, Acquire> {
        let engine = self.units[unit].engine;
        let mut effect = match engine {
            Engine::Copy0 | Engine::Copy1 => {
                let methods = self.copy_methods(unit);
                methods(&mut self.units[unit].registers, subchannel, method, data)
            }
            _ => self.run_graph_method(subchannel, method, data),
        };
        if matches!(effect, Effect::Start(_))
            && engine != Engine::Graph
            && (crate::faults::take(&mut self.faults.failed_copies)
                || ChannelId::new(0).is_some_and(|first| self.units[unit].is_held_by(first))
                    && crate::faults::take(&mut self.faults.failed_copies_of_channel_0))
        {
            effect = Effect::Reject(Rejection::Copy(copy_error::INVALID_ENUM));
        }
        match effect {
            Effect::None => {}
            Effect::Start(transfer) => {
                self.units[unit].transfer = Some(transfer.launched_by(Launching {
                    subchannel,
                    method,
                    data,
                }));
                let startup = self.time_of(self.units[unit].channel(), self.timing.copy_startup_ns);
                self.units[unit].at = self.clock.now().saturating_add(startup);
                self.begin_turn(unit);
            }
            Effect::Inline(word) => self.store_inline(unit, word),
            Effect::Wait(acquire) => return Err(acquire),
            Effect::Reject(rejection) => self.reject_method(unit, rejection, subchannel, method, data),
        }
        let steps = self.graph.take_macro_steps();
        Ok(self.timing.method_ns.saturating_mul(1 + steps))
    }

    /// The methods of a copy engine with the microcode that it has.
    pub(crate) fn copy_methods(&self, unit: usize) -> fn(&mut Registers, u8, u16, u32) -> Effect {
        match self.copy_microcode.is_nvidia(self.units[unit].runs_foreign) {
            true => copy_nvidia::method,
            false => copy::method,
        }
    }

    /// Stops the engine for a method that it refuses.
    pub(crate) fn reject_method(
        &mut self,
        unit: usize,
        rejection: Rejection,
        subchannel: u8,
        method: u16,
        data: u32,
    ) {
        self.mem.counters.engine_errors += 1;
        self.units[unit].reject(rejection, subchannel, method, data);
        self.note_dead_engines();
    }

    fn store_inline(&mut self, unit: usize, word: InlineWord) {
        let Some(space) = self.units[unit].space() else {
            return;
        };
        self.mem.stores += 1;
        let mut stored = Ok(());
        let mut done = 0;
        while stored.is_ok() && done < word.bytes {
            let (at, run) = word.target.run(word.line, u64::from(word.byte) + done as u64);
            let end = word.bytes.min(done + run.min(4) as usize);
            let bytes = &word.word[done..end];
            stored = self.mmu.write(&mut self.mem, &space, Access::WRITE, at, bytes);
            done = end;
        }
        if let (Ok(()), Some(completion)) = (stored, word.completion) {
            self.mem.counters.copies += 1;
            stored = self.complete(unit, &space, completion);
        }
        if let Err(refusal) = stored {
            self.fault_unit(unit, refusal);
        }
    }

    /// Puts the channel's context on the engine, which must be ready. Returns the GPU time of the switch, zero when
    /// the channel was there; `None` when its context cannot be read, which is a fault of the engine. An engine that works
    /// after that has registers to write first, which includes the time of the switch.
    pub(crate) fn switch_unit(&mut self, unit: usize, channel: ChannelId, instance: Place) -> Option<u64> {
        let held = self.units[unit].holder;
        if held.is_some_and(|holder| holder.channel == channel && holder.instance == instance) {
            return Some(0);
        }
        // The piece of a copy that gives way is moved to its end.
        let mut rest = 0;
        if self.units[unit].transfer.is_some() {
            rest = self.units[unit].at.saturating_sub(self.clock.now());
            self.release_unit(unit);
            self.advance_preempt();
        } else {
            self.release_unit(unit);
        }
        let space = AddressSpace::load(&mut self.mem, instance);
        let engine = self.units[unit].engine;
        self.units[unit].holder = Some(Holder {
            channel,
            instance,
            space,
        });
        self.units[unit].last = Some(space);
        self.mem.counters.engine_switches += 1;
        if engine == Engine::Graph {
            if let Err(refusal) = self.load_graph(instance, &space) {
                self.fault_unit_by(unit, client::CTXCTL, refusal);
                return None;
            }
            if self.units[unit].list.is_some() {
                self.units[unit].at = self.units[unit].at.saturating_add(rest);
            }
            let ns = self.timing.graph_switch_ns.saturating_add(rest);
            self.take_rest(unit, ns);
            return Some(ns);
        }
        self.units[unit].registers = match self.context_pointer(engine, instance) {
            None => self.contexts.load(engine, instance),
            Some(at) => {
                let mut image = [0; IMAGE_BYTES];
                if let Err(refusal) = self.mmu.read(&mut self.mem, &space, LOAD_CONTEXT, at, &mut image) {
                    self.fault_unit(unit, refusal);
                    return None;
                }
                Registers::from_image(&image)
            }
        };
        let ns = self.timing.copy_switch_ns.saturating_add(rest);
        self.take_rest(unit, ns);
        Some(ns)
    }

    /// Where an engine keeps the context of the channel at `instance`; `None` where the card keeps it.
    pub(crate) fn context_pointer(&mut self, engine: Engine, instance: Place) -> Option<GpuVa> {
        let low = self.mem.read_u32(instance.offset(engine.context_offset()));
        let high = self.mem.read_u32(instance.offset(engine.context_offset() + 4)) & 0xff;
        // The low bits are flags: nouveau sets bit 2. Microcode of PGRAPH takes the address by 256 bytes.
        let flags = if engine == Engine::Graph { 0xff } else { 0xf };
        (low != 0 || high != 0).then_some(GpuVa(u64::from(high) << 32 | u64::from(low & !flags)))
    }

    /// Saves the context of the channel on the engine, which must be ready or perform a copy that gives way, and leaves the
    /// engine free.
    ///
    /// A context that cannot be stored is a fault of the channel that leaves; the engine goes on without it, so that
    /// the one that comes is not disturbed (assumption: hardware may hang here).
    pub(crate) fn release_unit(&mut self, unit: usize) {
        self.pause_transfer(unit);
        if self.units[unit].engine == Engine::Graph {
            self.release_graph();
            return;
        }
        let Some(holder) = self.units[unit].holder.take() else {
            return;
        };
        let engine = self.units[unit].engine;
        let registers = self.units[unit].registers;
        let Some(at) = self.context_pointer(engine, holder.instance) else {
            self.contexts.save(engine, holder.instance, registers);
            return;
        };
        let image = registers.to_image();
        if let Err(refusal) = self
            .mmu
            .write(&mut self.mem, &holder.space, SAVE_CONTEXT, at, &image)
        {
            self.record_fault(
                engine.fault_unit(),
                unit_client(engine),
                Some(holder.instance),
                refusal,
            );
            self.halt_holder(&holder);
        }
    }

    /// Halts the channel of an engine, if its id is still that channel's: after a reset of PFIFO it may be another's.
    pub(crate) fn halt_holder(&mut self, holder: &Holder) {
        if self.pfifo.channel(holder.channel).instance() == holder.instance {
            self.halt_channel(holder.channel);
        }
    }

    /// Resets the unit by PMC_ENABLE: its current work and its context are lost.
    pub(crate) fn reset_unit(&mut self, unit: usize) {
        let engine = self.units[unit].engine;
        self.units[unit] = Unit {
            enabled: false,
            needs_microcode: self.units[unit].needs_microcode,
            ..Unit::new(engine)
        };
        if engine == Engine::Graph {
            self.graph.reset();
        }
        self.unit_became_idle();
    }

    /// PMC_ENABLE switched the unit on.
    pub(crate) fn enable_unit(&mut self, unit: usize) {
        self.units[unit].enabled = true;
        self.unit_became_idle();
    }

    /// The driver has taken note of a fault (262c): the engine is free again.
    pub(crate) fn recover_unit(&mut self, unit: usize) {
        if self.units[unit].faulted {
            self.units[unit].faulted = false;
            self.units[unit].holder = None;
            self.unit_became_idle();
        }
    }

    /// Acknowledges interrupts of the unit; with the last rejection the engine goes on.
    pub(crate) fn acknowledge_unit(&mut self, unit: usize, mask: u32) {
        self.units[unit].intr &= !mask;
        if self.units[unit].intr == 0 {
            self.resume_unit(unit);
        }
    }

    /// The interrupts of a rejection have been acknowledged.
    fn resume_unit(&mut self, unit: usize) {
        if self.units[unit].stopped {
            self.units[unit].stopped = false;
            self.unit_became_idle();
        }
    }

    /// Reads a register of a copy engine's falcon.
    pub(crate) fn read_copy_falcon(&mut self, engine: Engine, reg: FalconReg) -> u32 {
        let Some(unit) = unit_of(engine) else { return 0 };
        let unit = &mut self.units[unit];
        if let (FalconReg::ChannelCurrent, Some(holder)) = (reg, unit.holder) {
            // Microcode gets the channel at each switch; nouveau finds the channel of an error by it.
            let Place { aperture, at } = holder.instance;
            let word = falcon::Channel::new()
                .with_frame(at.page_number())
                .with_aperture(aperture)
                .with_valid(true);
            return word.into_bits();
        }
        if let FalconReg::Control | FalconReg::ControlAlias = reg {
            // If no upload is needed, the falcon has microcode from power-on; a start without uploaded
            // code ends at once.
            let runs = unit.has_microcode();
            return if runs { CONTROL_SLEEPING } else { CONTROL_STOPPED };
        }
        unit.falcon.as_mut().map_or(0, |falcon| falcon.read(reg))
    }

    /// Writes a register of a copy engine's falcon. The model copies by itself; the uploaded microcode decides
    /// which methods exist and, with [`crate::CopyMicrocode::Required`], whether the engine copies at all.
    pub(crate) fn write_copy_falcon(&mut self, engine: Engine, reg: FalconReg, value: u32) {
        let Some(unit) = unit_of(engine) else { return };
        let Some(falcon) = &mut self.units[unit].falcon else {
            return;
        };
        match falcon.write(reg, value) {
            FalconEvent::Started => {
                let is_foreign = microcode::is_foreign(falcon);
                self.units[unit].runs_foreign = is_foreign;
                self.unit_became_idle();
            }
            FalconEvent::Acknowledged if falcon.pending() == 0 => self.resume_unit(unit),
            FalconEvent::Acknowledged | FalconEvent::None => {}
        }
    }

    /// The engine may take methods or change channels again; PBDMAs that wait for it see so by themselves.
    pub(crate) fn unit_became_idle(&mut self) {
        self.note_dead_engines();
        self.advance_preempt();
        self.run_fecs();
    }

    /// Tells the scheduler which engines take no methods, so that it does not try channels that need them.
    pub(crate) fn note_dead_engines(&mut self) {
        let graph_is_closed = !self.graph.takes_methods();
        let dead = self.units.iter().filter(|unit| {
            let closed = graph_is_closed && unit.engine == Engine::Graph;
            !unit.enabled || unit.faulted || unit.stopped || closed || !unit.has_microcode()
        });
        self.pfifo.dead_engines = dead.fold(0, |mask, unit| mask | 1 << unit.engine.number());
    }
}
