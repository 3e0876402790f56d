//! FECS, the falcon that switches PGRAPH's contexts, as its microcode behaves. No instruction of it is executed.
//!
//! ```text
//!   halted ──409100 bit 1──► nouveau's microcode (it starts the GPC falcons itself)
//!      │                        scratch 0 bit 31, scratch 1 = bytes of an image; commands 1, 2
//!      └──41a100, then 409100──► NVIDIA's microcode
//!                               scratch 0 bit 0; commands 03, 09, 10, 16, 21, 25, 30–32, 38, 39, 04
//! ```
//!
//! With both, a switch request (409000 bit 8) saves the current context (409b00) and loads the next one (409b04),
//! where they exist. Commands and requests wait until the engine has finished its work.
//!
//! A start needs no uploaded code, but on a strict card ([`crate::ModelConfig::strict`]): there a falcon without code stops at
//! once, and FECS does not answer before the GPCs' falcons have code too, as nouveau's waits for them.
//!
//! Sources: nouveau `gr/fuc/hub.fuc`, `gr/gf100.c`, `gr/ctxgf100.c`. assumptions: the sizes that NVIDIA's microcode
//! answers besides that of the context image; its error for an unknown command.

use super::{Bound, UNIT, methods};
use crate::{
    engine::Holder,
    falcon::{Falcon, FalconEvent, FalconShape},
    memory::Place,
    mmu::{AddressSpace, Refusal},
    model::FermiModel,
};
use fermi_spec::{
    addr::{Aperture, PhysAddr},
    engine::Engine,
    fault::client,
    regs::{
        falcon::{CONTROL_START, Caps, FalconReg},
        fecs::{
            CONTEXT_BYTES, FECS_CAPS, FECS_CHANNEL_FRAME, FECS_CHANNEL_VALID, FECS_SWITCH_REQUEST,
            FECS_VERSION, GPCCS_CAPS, LIST_BYTES, MONITOR_BYTES, ZCULL_BYTES, fecs_intr, fecs_nouveau,
            fecs_nvidia,
        },
        pgraph::graph_intr,
    },
};

/// Scratch words of nouveau's microcode: class, method and data of a firmware method; code of an error.
const SCRATCH_CLASS: usize = 2;
const SCRATCH_METHOD: usize = 3;
const SCRATCH_DATA: usize = 4;
const SCRATCH_ERROR: usize = 5;

/// Which microcode runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Microcode {
    Nouveau,
    Nvidia,
}

/// Registers and state of FECS.
#[derive(Clone, Debug)]
pub(crate) struct Fecs {
    pub(crate) falcon: Falcon,
    /// The falcons of all GPCs, as far as they are written together.
    pub(crate) gpccs: Falcon,
    pub(super) microcode: Option<Microcode>,
    pub(super) scratch: [u32; 8],
    /// Value of FECS_DATA (409500).
    pub(super) data: u32,
    /// Value of FECS_COMMAND (409504).
    pub(super) command: u32,
    /// A command that has not been executed.
    pending_command: Option<(u32, u32)>,
    /// A switch request that has not been executed.
    pending_switch: bool,
    /// FECS_CHANNEL, when PFIFO has no channel on the engine.
    pub(super) channel: u32,
    /// Value of FECS_NEXT_CHANNEL (409b04).
    pub(super) next: u32,
    /// Value of FECS_HOST_INTR (409c18).
    pub(super) host_intr: u32,
    /// Value of FECS_HOST_INTR_ENABLE (409c24).
    pub(super) host_intr_enable: u32,
    /// A command told NVIDIA's microcode to switch no contexts.
    pub(crate) holds_context: bool,
}

impl Fecs {
    pub(super) fn new() -> Self {
        let falcon = |caps| {
            Falcon::new(FalconShape {
                caps: Caps::from_bits(caps),
                version: FECS_VERSION,
                route: 0,
            })
        };
        Self {
            falcon: falcon(FECS_CAPS),
            gpccs: falcon(GPCCS_CAPS),
            microcode: None,
            scratch: [0; 8],
            data: 0,
            command: 0,
            pending_command: None,
            pending_switch: false,
            channel: 0,
            next: 0,
            host_intr: 0,
            host_intr_enable: 0,
            holds_context: false,
        }
    }

    /// The microcode runs. Nouveau's starts the GPC falcons itself; with NVIDIA's the driver
    /// has started them before.
    fn start(&mut self) {
        if self.gpccs.is_running() {
            self.microcode = Some(Microcode::Nvidia);
            self.scratch[0] |= fecs_nvidia::DONE;
        } else {
            self.microcode = Some(Microcode::Nouveau);
            let _ = self.gpccs.write(FalconReg::Control, CONTROL_START);
            self.scratch[0] |= fecs_nouveau::DONE;
            self.scratch[1] = CONTEXT_BYTES;
        }
    }
}

/// FECS_CHANNEL for a context.
pub(super) fn word_of(instance: Place) -> u32 {
    FECS_CHANNEL_VALID
        | u32::from(instance.aperture.into_bits()) << 28
        | (instance.at.0 >> 12) as u32 & FECS_CHANNEL_FRAME
}

/// The instance block that such a word names.
fn place_of(word: u32) -> Option<Place> {
    (word & FECS_CHANNEL_VALID != 0).then(|| Place {
        aperture: Aperture::from_bits((word >> 28 & 3) as u8),
        at: PhysAddr(u64::from(word & FECS_CHANNEL_FRAME) << 12),
    })
}

impl FermiModel {
    /// FECS_CHANNEL: the context on the engine.
    pub(super) fn current_context(&self) -> u32 {
        let holder = self.units[UNIT].holder;
        holder.map_or(self.graph.fecs.channel, |Holder { instance, .. }| {
            word_of(instance)
        })
    }

    /// Writes a register of FECS as a falcon.
    pub(crate) fn write_fecs_falcon(&mut self, reg: FalconReg, value: u32) {
        let fecs = &mut self.graph.fecs;
        if fecs.falcon.write(reg, value) == FalconEvent::Started && fecs.microcode.is_none() {
            self.start_fecs();
        }
        let fecs = &mut self.graph.fecs;
        if reg == FalconReg::IntrTrigger && fecs.microcode.is_some() {
            // The microcode acknowledges the interrupt that it takes.
            let _ = fecs.falcon.write(FalconReg::IntrAck, value);
            fecs.pending_switch |= value & FECS_SWITCH_REQUEST != 0;
            self.run_fecs();
        }
    }

    /// Writes a register of the GPC falcons. Only their start has an effect.
    pub(crate) fn write_gpccs(&mut self, reg: FalconReg, value: u32) {
        let gpccs = &mut self.graph.fecs.gpccs;
        if gpccs.write(reg, value) == FalconEvent::Started && self.strict && !gpccs.has_code() {
            gpccs.stop();
        }
    }

    /// FECS was told to start, and no microcode runs on it.
    fn start_fecs(&mut self) {
        let fecs = &mut self.graph.fecs;
        if self.strict && !fecs.falcon.has_code() {
            fecs.falcon.stop();
            return;
        }
        if self.strict && !fecs.gpccs.has_code() {
            return;
        }
        fecs.start();
        self.units[UNIT].switches_contexts = true;
        self.unit_became_idle();
    }

    /// The microcode of FECS ends.
    fn halt_fecs(&mut self) {
        self.graph.fecs.microcode = None;
        self.units[UNIT].switches_contexts = false;
        self.note_dead_engines();
    }

    /// Takes a command from FECS_COMMAND.
    pub(super) fn command_fecs(&mut self, command: u32) {
        let fecs = &mut self.graph.fecs;
        fecs.command = command;
        fecs.pending_command = Some((command, fecs.data));
        self.run_fecs();
    }

    /// Executes waiting commands and requests, if the engine is ready for them. Called whenever it
    /// may have become so.
    pub(crate) fn run_fecs(&mut self) {
        let Some(microcode) = self.graph.fecs.microcode else {
            self.graph.fecs.pending_command = None;
            self.graph.fecs.pending_switch = false;
            return;
        };
        if !self.units[UNIT].is_ready() {
            return;
        }
        if let Some((command, data)) = self.graph.fecs.pending_command.take() {
            match microcode {
                Microcode::Nouveau => self.run_nouveau_command(command, data),
                Microcode::Nvidia => self.run_nvidia_command(command, data),
            }
        }
        // A strict card's engine is not ready when the command has halted the microcode.
        if std::mem::take(&mut self.graph.fecs.pending_switch) && self.units[UNIT].is_ready() {
            self.switch_by_request();
        }
    }

    fn run_nouveau_command(&mut self, command: u32, data: u32) {
        let done = match command {
            fecs_nouveau::SET_CHANNEL => self.set_context(data),
            fecs_nouveau::SAVE => self.save_current(),
            _ => {
                self.report_fecs_error(command << 16 | fecs_nouveau::BAD_COMMAND);
                return;
            }
        };
        // After a fault the microcode waits for memory and never answers.
        if done {
            self.graph.fecs.scratch[0] |= fecs_nouveau::DONE;
        }
    }

    fn run_nvidia_command(&mut self, command: u32, data: u32) {
        let choose = |done: bool, good: u32, bad: u32| if done { good } else { bad };
        match command {
            fecs_nvidia::BIND_CHANNEL => {
                let done = self.set_context(data);
                self.graph.fecs.scratch[0] |= choose(done, fecs_nvidia::BOUND, fecs_nvidia::NOT_BOUND);
            }
            fecs_nvidia::SAVE_GOLDEN => {
                let done = self.current_context() == data && self.save_current();
                self.graph.fecs.scratch[0] |= choose(done, fecs_nvidia::DONE, fecs_nvidia::FAILED);
            }
            fecs_nvidia::IMAGE_BYTES => self.graph.fecs.scratch[0] = CONTEXT_BYTES,
            fecs_nvidia::ZCULL_BYTES => self.graph.fecs.scratch[0] = ZCULL_BYTES,
            fecs_nvidia::MONITOR_BYTES => self.graph.fecs.scratch[0] = MONITOR_BYTES,
            fecs_nvidia::LIST_BYTES => self.graph.fecs.scratch[0] = LIST_BYTES,
            fecs_nvidia::LIST_BLOCK | fecs_nvidia::LIST_ADDRESS => {
                self.graph.fecs.scratch[0] = fecs_nvidia::DONE;
            }
            fecs_nvidia::STOP_SWITCHING | fecs_nvidia::START_SWITCHING => {
                self.graph.fecs.holds_context = command == fecs_nvidia::STOP_SWITCHING;
                self.graph.fecs.scratch[1] = fecs_nvidia::DONE;
                self.unit_became_idle();
            }
            fecs_nvidia::WATCHDOG => {}
            fecs_nvidia::HALT => self.halt_fecs(),
            _ => self.raise_fecs(fecs_intr::UNKNOWN_COMMAND),
        }
    }

    /// Makes the context of the named instance block current without loading its state: the state on the engine now
    /// belongs to it. Returns whether that worked. The image need not have been saved: a golden one is made from nothing.
    fn set_context(&mut self, word: u32) -> bool {
        let Some(instance) = place_of(word) else {
            return false;
        };
        self.release_graph();
        let space = AddressSpace::load(&mut self.mem, instance);
        if let Some(at) = self.graph_image(instance)
            && let Err(refusal) = self.read_graph_image(&space, at)
        {
            self.report_context_fault(instance, refusal);
            return false;
        }
        self.graph.bound = Some(Bound { instance, space });
        self.graph.fecs.channel = word_of(instance);
        self.graph.fecs.next = word_of(instance);
        true
    }

    /// Saves the current context, which stays on the engine. Returns whether that worked.
    fn save_current(&mut self) -> bool {
        let holder = self.units[UNIT].holder.map(|h| (h.instance, h.space));
        let Some((instance, space)) = holder.or(self.graph.bound.map(|b| (b.instance, b.space))) else {
            return false;
        };
        let Some(at) = self.graph_image(instance) else {
            return true;
        };
        match self.write_graph_image(&space, at) {
            Ok(()) => true,
            Err(refusal) => {
                self.report_context_fault(instance, refusal);
                false
            }
        }
    }

    /// A switch request of the driver: the current context leaves, the next one comes.
    fn switch_by_request(&mut self) {
        self.release_graph();
        self.graph.fecs.channel = self.graph.fecs.next;
        let Some(instance) = place_of(self.graph.fecs.next) else {
            return;
        };
        let space = AddressSpace::load(&mut self.mem, instance);
        match self.load_graph(instance, &space) {
            Ok(()) => self.graph.bound = Some(Bound { instance, space }),
            Err(refusal) => self.report_context_fault(instance, refusal),
        }
    }

    /// Memory refuses a context that FECS shall move. No channel of PFIFO is concerned.
    pub(super) fn report_context_fault(&mut self, instance: Place, refusal: Refusal) {
        self.record_fault(
            Engine::Graph.fault_unit(),
            client::CTXCTL,
            Some(instance),
            refusal,
        );
    }

    fn report_fecs_error(&mut self, code: u32) {
        self.graph.fecs.scratch[SCRATCH_ERROR] = code;
        self.raise_fecs(fecs_intr::ERROR);
    }

    /// Sends interrupts of the microcode to the host.
    pub(super) fn raise_fecs(&mut self, bits: u32) {
        let fecs = &mut self.graph.fecs;
        fecs.host_intr |= bits;
        if fecs.host_intr & fecs.host_intr_enable != 0 {
            self.units[UNIT].intr |= graph_intr::CTXCTL;
        }
    }

    /// A firmware method of a class. Neither microcode knows any (assumption for NVIDIA's: it takes them silently);
    /// nouveau's tells the host, and the channel goes on.
    pub(super) fn firmware_method(&mut self, bound: methods::BoundClass, method: u16, data: u32) {
        if self.graph.fecs.microcode == Some(Microcode::Nouveau) {
            let scratch = &mut self.graph.fecs.scratch;
            scratch[SCRATCH_CLASS] = u32::from(bound.class);
            scratch[SCRATCH_METHOD] = methods::trapped(bound.subchannel, method);
            scratch[SCRATCH_DATA] = data;
            self.report_fecs_error(fecs_nouveau::BAD_FIRMWARE_METHOD);
        }
    }
}
