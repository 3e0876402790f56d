//! FECS of a guest's GPU, the falcon that switches PGRAPH's contexts, as its microcode answers a driver.
//!
//! ```text
//!  halted ──409100 bit 1──► nouveau's microcode, which starts the GPCs' falcons itself
//!    ▲ │                      scratch 0 bit 31, scratch 1 = bytes of an image; commands 1, 2
//!    │ └──41a100, then 409100──► NVIDIA's microcode
//!    │                          scratch 0 bit 0; commands 03, 09, 10, 16, 21, 25, 30–32, 38, 39, 04
//!    └── PGRAPH off (000200), or command 04
//! ```
//!
//! The card switches contexts of guests' channels by itself, as PFIFO asks it to. What a driver says to *its* FECS reaches nobody else: an
//! upload is taken and goes nowhere, "channel" and "next channel" are words, and nothing is stored in a channel's image, which a card takes
//! as a fresh context when it finds no context in it (`[GRAPH]` in docs/todo.md has what a card with microcode will need). A command is
//! done when the store that brings it is answered.
//!
//! Sources: nouveau `gr/fuc/hub.fuc`, `gr/gf100.c`, `gr/ctxgf100.c`; sizes: [`fecs::CONTEXT_BYTES`] and the rows beside it.

use fermi_spec::regs::FecsReg;
use fermi_spec::regs::falcon::{CONTROL_SLEEPING, CONTROL_START, CONTROL_STOPPED};
use fermi_spec::regs::fecs::{
    self, FECS_CHANNEL_VALID, FECS_SWITCH_REQUEST, fecs_intr, fecs_nouveau, fecs_nvidia,
};
use serde::{Deserialize, Serialize};

use crate::inspect::{Inspect, Tree};

const SCRATCHES: usize = 8;
/// Scratch word in which nouveau's microcode tells an error.
const SCRATCH_ERROR: usize = 5;

/// Which microcode the driver believes to have started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Microcode {
    Nouveau,
    Nvidia,
}

/// What the falcon does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
enum Stage {
    /// Nothing: it was not started since PGRAPH was switched on.
    #[default]
    Halted,
    /// It answers commands.
    Running(Microcode),
}

/// Whether a store made the microcode ask for an interrupt of PGRAPH.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub(super) enum Asks {
    Nothing,
    Interrupt,
}

/// Registers and state of a guest's FECS.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Fecs {
    stage: Stage,
    /// The driver started the GPCs' falcons itself.
    gpccs_run: bool,
    scratch: [u32; SCRATCHES],
    data: u32,
    command: u32,
    /// The context on the engine, as far as commands and requests changed it.
    channel: u32,
    next: u32,
    host_intr: u32,
    host_intr_enable: u32,
}

impl Fecs {
    /// PGRAPH was switched off: the microcode is lost.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }

    pub(super) fn read(&self, reg: FecsReg) -> u32 {
        match reg {
            FecsReg::FecsControl => control(self.stage != Stage::Halted),
            FecsReg::GpccsControl => control(self.gpccs_run || self.stage != Stage::Halted),
            FecsReg::FecsData => self.data,
            FecsReg::FecsCommand => self.command,
            FecsReg::FecsScratch(index) => self.scratch.get(usize::from(index)).copied().unwrap_or(0),
            FecsReg::FecsChannel => self.channel,
            FecsReg::FecsNextChannel => self.next,
            FecsReg::FecsHostIntr => self.host_intr,
            FecsReg::FecsHostIntrEnable => self.host_intr_enable,
            FecsReg::FecsIntrSet
            | FecsReg::FecsScratchSet(_)
            | FecsReg::FecsScratchClear(_)
            | FecsReg::FecsHostIntrSet
            | FecsReg::FecsHostIntrClear => 0,
        }
    }

    pub(super) fn write(&mut self, reg: FecsReg, value: u32) -> Asks {
        match reg {
            FecsReg::FecsControl => self.start(value),
            FecsReg::GpccsControl => self.gpccs_run |= value & CONTROL_START != 0,
            FecsReg::FecsIntrSet => self.request(value),
            FecsReg::FecsData => self.data = value,
            FecsReg::FecsCommand => return self.command(value),
            FecsReg::FecsScratch(index) => self.change(index, |_| value),
            FecsReg::FecsScratchSet(index) => self.change(index, |word| word | value),
            FecsReg::FecsScratchClear(index) => self.change(index, |word| word & !value),
            FecsReg::FecsChannel => self.channel = value,
            FecsReg::FecsNextChannel => self.next = value,
            FecsReg::FecsHostIntr => {}
            FecsReg::FecsHostIntrSet => return self.raise(value),
            FecsReg::FecsHostIntrClear => self.host_intr &= !value,
            FecsReg::FecsHostIntrEnable => {
                self.host_intr_enable = value;
                return self.raise(0);
            }
        }
        Asks::Nothing
    }

    fn change(&mut self, index: u16, change: impl FnOnce(u32) -> u32) {
        if let Some(word) = self.scratch.get_mut(usize::from(index)) {
            *word = change(*word);
        }
    }

    fn start(&mut self, value: u32) {
        if value & CONTROL_START == 0 || self.stage != Stage::Halted {
            return;
        }
        let microcode = if self.gpccs_run {
            Microcode::Nvidia
        } else {
            Microcode::Nouveau
        };
        self.stage = Stage::Running(microcode);
        match microcode {
            Microcode::Nvidia => self.scratch[0] |= fecs_nvidia::DONE,
            Microcode::Nouveau => {
                self.scratch[0] |= fecs_nouveau::DONE;
                self.scratch[1] = fecs::CONTEXT_BYTES;
            }
        }
    }

    /// As if PFIFO asked for a switch: the next context comes.
    fn request(&mut self, value: u32) {
        if self.stage != Stage::Halted && value & FECS_SWITCH_REQUEST != 0 {
            self.channel = self.next;
        }
    }

    fn command(&mut self, command: u32) -> Asks {
        self.command = command;
        match self.stage {
            Stage::Halted => Asks::Nothing,
            Stage::Running(Microcode::Nouveau) => self.command_nouveau(command),
            Stage::Running(Microcode::Nvidia) => self.command_nvidia(command),
        }
    }

    /// A command that cannot be done is never answered: on a card the microcode waits for memory then.
    fn command_nouveau(&mut self, command: u32) -> Asks {
        let is_done = match command {
            fecs_nouveau::SET_CHANNEL => self.set_channel(),
            fecs_nouveau::SAVE => is_valid(self.channel),
            _ => {
                self.scratch[SCRATCH_ERROR] = command << 16 | fecs_nouveau::BAD_COMMAND;
                return self.raise(fecs_intr::ERROR);
            }
        };
        if is_done {
            self.scratch[0] |= fecs_nouveau::DONE;
        }
        Asks::Nothing
    }

    fn command_nvidia(&mut self, command: u32) -> Asks {
        match command {
            fecs_nvidia::BIND_CHANNEL => {
                let is_done = self.set_channel();
                self.scratch[0] |= choose(is_done, fecs_nvidia::BOUND, fecs_nvidia::NOT_BOUND);
            }
            fecs_nvidia::SAVE_GOLDEN => {
                let is_done = is_valid(self.channel) && self.channel == self.data;
                self.scratch[0] |= choose(is_done, fecs_nvidia::DONE, fecs_nvidia::FAILED);
            }
            fecs_nvidia::IMAGE_BYTES => self.scratch[0] = fecs::CONTEXT_BYTES,
            fecs_nvidia::ZCULL_BYTES => self.scratch[0] = fecs::ZCULL_BYTES,
            fecs_nvidia::MONITOR_BYTES => self.scratch[0] = fecs::MONITOR_BYTES,
            fecs_nvidia::LIST_BYTES => self.scratch[0] = fecs::LIST_BYTES,
            fecs_nvidia::LIST_BLOCK | fecs_nvidia::LIST_ADDRESS => self.scratch[0] = fecs_nvidia::DONE,
            // The card goes on switching: whose contexts is the host's affair.
            fecs_nvidia::STOP_SWITCHING | fecs_nvidia::START_SWITCHING => {
                self.scratch[1] = fecs_nvidia::DONE;
            }
            fecs_nvidia::WATCHDOG => {}
            fecs_nvidia::HALT => self.stage = Stage::Halted,
            _ => return self.raise(fecs_intr::UNKNOWN_COMMAND),
        }
        Asks::Nothing
    }

    /// The context that 409500 names becomes the current one.
    fn set_channel(&mut self) -> bool {
        if is_valid(self.data) {
            (self.channel, self.next) = (self.data, self.data);
        }
        is_valid(self.data)
    }

    fn raise(&mut self, bits: u32) -> Asks {
        self.host_intr |= bits;
        match self.host_intr & self.host_intr_enable {
            0 => Asks::Nothing,
            _ => Asks::Interrupt,
        }
    }
}

fn control(runs: bool) -> u32 {
    if runs { CONTROL_SLEEPING } else { CONTROL_STOPPED }
}

fn is_valid(channel: u32) -> bool {
    channel & FECS_CHANNEL_VALID != 0
}

fn choose(is_done: bool, good: u32, bad: u32) -> u32 {
    if is_done { good } else { bad }
}

impl Inspect for Fecs {
    fn inspect(&self, tree: &mut Tree<'_>) {
        tree.name("stage", format_args!("{:?}", self.stage));
        tree.bits("channel", self.channel);
        tree.bits("next_channel", self.next);
        tree.bits("interrupts", self.host_intr);
        tree.bits("let_through", self.host_intr_enable);
    }
}

#[cfg(test)]
#[path = "fecs/tests.rs"]
mod tests;
