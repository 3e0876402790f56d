//! Macros of a channel: uploading, calling, and the methods that they send.
//!
//! A call runs as far as it can at once; one that waits for a parameter is part of the context.

use super::{
    UNIT,
    methods::{BoundClass, area_with},
    mme::{Macro, Sent, Step, WORDS},
    state::{Area, GraphState},
    traps::MacroTrap,
};
use crate::{
    engine::{Effect, Rejection},
    model::FermiModel,
};
use fermi_spec::{
    graphics::front_end,
    mme::{CODE_WORDS, MACROS},
    regs::{pgraph::graph_data_error, pgraph::macro_trap},
};

/// Most instructions that one method runs. assumption: hardware's watchdog (404468) is far longer, but no macro of a
/// known driver runs more than a few hundred without a parameter.
const STEPS_MAX: u32 = 0x1000;
/// Words of [`Area::MACRO`].
const CODE_POINTER: usize = 0;
const START_POINTER: usize = 1;
const RUNNING: usize = 2;

fn running(state: &GraphState) -> Macro {
    Macro::from_words(std::array::from_fn(|word| state.get(Area::MACRO, RUNNING + word)))
}

fn keep(state: &mut GraphState, running: Macro) {
    for (index, word) in (0..WORDS).zip(running.to_words()) {
        state.set(Area::MACRO, RUNNING + index, word);
    }
}

/// Executes an upload method; whether it was one.
pub(super) fn upload(state: &mut GraphState, method: u16, data: u32) -> bool {
    match method {
        front_end::MACRO_CODE_POINTER => state.set(Area::MACRO, CODE_POINTER, data),
        front_end::MACRO_START_POINTER => state.set(Area::MACRO, START_POINTER, data),
        front_end::MACRO_CODE => store(state, CODE_POINTER, Area::MACRO_CODE, CODE_WORDS, data),
        front_end::MACRO_START => store(state, START_POINTER, Area::MACRO_STARTS, MACROS, data),
        _ => return false,
    }
    true
}

/// Stores a word where the pointer shows, and moves that on. Past the end it begins again (assumption).
fn store(state: &mut GraphState, pointer: usize, area: Area, words: usize, data: u32) {
    let at = state.get(Area::MACRO, pointer);
    state.set(area, at as usize % words, data);
    state.set(Area::MACRO, pointer, at.wrapping_add(1));
}

impl FermiModel {
    /// Executes a macro call or a parameter for one.
    pub(super) fn run_macro_method(&mut self, bound: BoundClass, method: u16, data: u32) {
        let index = usize::from(method - front_end::MACRO_CALL) / 8;
        let is_call = method & 4 == 0;
        let waiting = running(&self.graph.state);
        if is_call {
            self.end_waiting_macro();
            let start = self.graph.state.get(Area::MACRO_STARTS, index);
            self.run_macro(bound, Macro::start(bound.class, start, data), None);
        } else if waiting.is_running() {
            self.run_macro(bound, waiting, Some(data));
        } else {
            self.trap_macro(macro_trap::TOO_MANY_PARAMETERS, None);
        }
    }

    /// Tells a macro that still waits for a parameter that none will come.
    pub(super) fn end_waiting_macro(&mut self) {
        let waiting = running(&self.graph.state);
        if waiting.is_running() {
            keep(&mut self.graph.state, Macro::default());
            self.trap_macro(macro_trap::TOO_FEW_PARAMETERS, Some(waiting));
        }
    }

    fn run_macro(&mut self, bound: BoundClass, mut running: Macro, mut parameter: Option<u32>) {
        keep(&mut self.graph.state, Macro::default());
        for _ in 0..STEPS_MAX {
            self.graph.macro_steps += 1;
            let before = running;
            let state = &self.graph.state;
            let word = state.get(Area::MACRO_CODE, running.place());
            let (sent, ended) = match running.step(word, &mut parameter, |method| {
                state.method(area_with(bound.area, method), method)
            }) {
                Step::Done(sent) => (sent, false),
                Step::Ended(sent) => (sent, true),
                Step::Waiting => {
                    keep(&mut self.graph.state, running);
                    return;
                }
                Step::Trap(bit) => {
                    self.trap_macro(bit, Some(before));
                    return;
                }
            };
            if let Some(sent) = sent {
                self.run_sent(bound, sent);
            }
            if !self.units[UNIT].is_ready() {
                return;
            }
            if ended {
                if parameter.is_some() {
                    self.trap_macro(macro_trap::TOO_MANY_PARAMETERS, Some(running));
                }
                return;
            }
        }
        self.trap_macro(macro_trap::WATCHDOG, Some(running));
    }

    /// A method that a macro sends. It calls no macro, copies nothing, clears nothing and waits for nothing: what does is
    /// refused (assumption: no macro of a known driver of this card clears).
    fn run_sent(&mut self, bound: BoundClass, sent: Sent) {
        let rejection = match self.run_class_method(bound, sent.method, sent.data) {
            Effect::None => return,
            Effect::Reject(rejection) => rejection,
            _ => Rejection::GraphData(graph_data_error::INVALID_ENUM),
        };
        self.reject_method(UNIT, rejection, bound.subchannel, sent.method, sent.data);
    }

    fn trap_macro(&mut self, bit: u32, running: Option<Macro>) {
        let place = running.map(|running| running.place());
        let word = place.map_or(0, |place| self.graph.state.get(Area::MACRO_CODE, place));
        self.raise_macro_trap(MacroTrap { bit, place, word });
    }
}
