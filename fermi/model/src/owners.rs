//! What an engine knows of a channel, when the channel is gone: nothing.

use crate::{
    context::Registers, graph::state::GraphState, memory::Place, model::FermiModel, pfifo::ChannelId,
};
use fermi_spec::{addr::VramAddr, engine::Engine};

impl FermiModel {
    /// The entry of a channel changes: engines let go of it. A context that is behind a pointer is saved there, one that the
    /// card keeps is dropped, and so is what an engine has that stands: a driver that takes the entry away then has given the
    /// channel up.
    pub(crate) fn forget_contexts(&mut self, id: ChannelId, instances: [Place; 2]) {
        for unit in 0..self.units.len() {
            if !self.units[unit].is_held_by(id) {
                continue;
            }
            if self.units[unit].is_ready() {
                self.release_unit(unit);
            } else {
                self.units[unit].holder = None;
                self.units[unit].registers = Registers::default();
                if self.units[unit].engine == Engine::Graph {
                    self.graph.state = GraphState::default();
                }
            }
        }
        for instance in instances {
            self.contexts.forget(instance);
            self.graph.forget(instance);
        }
    }

    /// What a channel that was on an engine last has left there, as the directory of its address space; `None` for an engine
    /// that knows nothing. For checkers.
    pub fn left_on_engines(&self) -> impl Iterator<Item = (Engine, Option<VramAddr>)> {
        self.units.iter().map(|unit| {
            let is_graph = unit.engine == Engine::Graph;
            let has_words = unit.registers != Registers::default()
                || is_graph && self.graph.state != GraphState::default();
            let directory = unit
                .last
                .filter(|_| has_words)
                .map(|space| VramAddr(space.directory.at.0));
            (unit.engine, directory)
        })
    }
}
