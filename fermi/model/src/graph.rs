//! PGRAPH: the context on it, its two falcons' side of context switching, and the classes 9097, 90c0, 902d and 9039.
//!
//! ```text
//!   PFIFO: a method of a channel ─► switch: save the old context, load the new ─► methods.rs, m2mf ─► memory
//!   driver: FECS command, switch request ─► fecs.rs ─► the same save and load
//! ```
//!
//! The context of a channel is the state that its methods have set: [`state::GraphState`] and the words of M2MF. It is
//! in the image behind the pointer in the instance block (`image.rs`) while the channel is not on the engine.
//! Methods take effect when they arrive: only copies take time, so the pipeline is always idle behind them.
//!
//! assumptions: a switch needs no microcode, so a driver that starts none still has M2MF; a channel without a
//! context pointer has its context kept by the card until its entry in the channel table changes.
//!
//! A strict card ([`crate::ModelConfig::strict`]) makes neither of them. It has no context switch before FECS was started with
//! code, as a copy engine has no methods before ([`crate::CopyMicrocode::Required`]). A channel without a pointer has its image
//! at address 0 of its space. An image that was never saved is a fault (assumption, `image.rs`). FECS writes the register list
//! that an image names (`list.rs`).

mod bindings;
mod channel_memory;
mod clear;
pub(crate) mod fecs;
mod image;
mod launch;
mod list;
mod macros;
mod methods;
mod mme;
mod registers;
mod report;
pub(crate) mod state;
mod traps;
mod twod;

pub(crate) use list::RegisterList;

use crate::{
    context::Registers,
    l2::L2,
    memory::Place,
    mmu::{AddressSpace, Refusal},
    model::FermiModel,
};
use channel_memory::Pages;
use fecs::Fecs;
use fermi_spec::{
    addr::GpuVa,
    engine::Engine,
    fault::client,
    regs::{fecs::FECS_CHANNEL_VALID, pgraph::FIFO_CONTROL_ON},
};
use state::GraphState;
use std::collections::BTreeMap;
use traps::Traps;

/// Index of PGRAPH among the units.
pub(crate) const UNIT: usize = 0;
/// Contexts that the card keeps for channels without a pointer: two for each channel id, so that only a driver that
/// leaves instance blocks behind by the hundred loses one, the least recently used.
const KEPT_MAX: usize = 256;

/// A context made current by a command of FECS, not by PFIFO.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Bound {
    instance: Place,
    space: AddressSpace,
}

/// A context that the card keeps.
struct Kept {
    used: u64,
    state: GraphState,
    m2mf: Registers,
}

/// The state of PGRAPH beyond that of a [`crate::engine::Unit`].
pub(crate) struct Graph {
    pub(crate) fecs: Fecs,
    /// The context on the engine.
    pub(crate) state: GraphState,
    bound: Option<Bound>,
    kept: BTreeMap<Place, Kept>,
    uses: u64,
    /// Value of GRAPH_FIFO_CONTROL (400500).
    fifo_control: u32,
    /// GRAPH_POWER_MODE, never busy.
    power_mode: u32,
    /// Value of GRAPH_METHOD_PORT_DATA (40448c).
    port_data: u32,
    traps: Traps,
    /// Instructions of macros since they were last charged for.
    macro_steps: u64,
    /// Segments of earlier grids that L2 still holds, and the pages of the grid that runs.
    l2: L2,
    pages: Pages,
}

impl Graph {
    pub(crate) fn new() -> Self {
        Self {
            fecs: Fecs::new(),
            state: GraphState::default(),
            bound: None,
            kept: BTreeMap::new(),
            uses: 0,
            fifo_control: FIFO_CONTROL_ON,
            power_mode: 0,
            port_data: 0,
            traps: Traps::default(),
            macro_steps: 0,
            l2: L2::new(),
            pages: Pages::new(),
        }
    }

    /// Resets PGRAPH by PMC_ENABLE: microcode and the context on the engine are lost, contexts kept by
    /// the card are not.
    pub(crate) fn reset(&mut self) {
        let (kept, uses) = (std::mem::take(&mut self.kept), self.uses);
        *self = Self {
            kept,
            uses,
            ..Self::new()
        };
    }

    /// Whether the front end takes methods.
    pub(crate) fn takes_methods(&self) -> bool {
        self.fifo_control & 1 != 0
    }

    /// Instructions that macros have run since this was last asked.
    pub(crate) fn take_macro_steps(&mut self) -> u64 {
        std::mem::take(&mut self.macro_steps)
    }

    fn keep(&mut self, instance: Place, m2mf: Registers) {
        self.uses += 1;
        let kept = Kept {
            used: self.uses,
            state: std::mem::take(&mut self.state),
            m2mf,
        };
        self.kept.insert(instance, kept);
        if self.kept.len() > KEPT_MAX
            && let Some(oldest) = self.kept.iter().min_by_key(|(_, kept)| kept.used)
        {
            let key = *oldest.0;
            self.kept.remove(&key);
        }
    }

    /// Drops what is kept for an instance block.
    pub(crate) fn forget(&mut self, instance: Place) {
        self.kept.remove(&instance);
    }

    fn take_kept(&mut self, instance: Place) -> (GraphState, Registers) {
        self.kept
            .remove(&instance)
            .map_or_else(Default::default, |kept| (kept.state, kept.m2mf))
    }
}

impl FermiModel {
    /// Puts the context of the channel at `instance` on PGRAPH, with its register list behind it. When its image or its list
    /// cannot be read the engine has a fresh context, so that nothing of another channel is left on it.
    pub(crate) fn load_graph(&mut self, instance: Place, space: &AddressSpace) -> Result<(), Refusal> {
        self.graph.fecs.next = fecs::word_of(instance);
        self.clear_graph_context();
        let (state, m2mf) = match self.graph_image(instance) {
            None => self.graph.take_kept(instance),
            Some(at) => {
                let context = self.load_graph_image(space, at)?;
                self.take_list(instance, space, at)?;
                context
            }
        };
        self.graph.state = state;
        self.units[UNIT].registers = m2mf;
        Ok(())
    }

    /// Where PGRAPH has the context of the channel at `instance`; `None` where the card keeps it, as a strict one never does.
    fn graph_image(&mut self, instance: Place) -> Option<GpuVa> {
        let pointer = self.context_pointer(Engine::Graph, instance);
        pointer.or(self.strict.then_some(GpuVa(0)))
    }

    /// Leaves a fresh context on the engine.
    fn clear_graph_context(&mut self) {
        self.graph.state = GraphState::default();
        self.units[UNIT].registers = Registers::default();
    }

    /// Saves the context on PGRAPH as that of the channel at `instance`. It stays on the engine if it has a pointer.
    fn save_graph(&mut self, instance: Place, space: &AddressSpace) -> Result<(), Refusal> {
        match self.graph_image(instance) {
            None => {
                let m2mf = std::mem::take(&mut self.units[UNIT].registers);
                self.graph.keep(instance, m2mf);
                Ok(())
            }
            Some(at) => self.write_graph_image(space, at),
        }
    }

    /// Saves the context on PGRAPH, of any origin, and leaves the engine free; see
    /// [`FermiModel::release_unit`].
    pub(crate) fn release_graph(&mut self) {
        self.graph.fecs.channel = self.current_context() & !FECS_CHANNEL_VALID;
        let holder = self.units[UNIT].holder.take();
        let bound = self.graph.bound.take();
        let current = holder
            .map(|holder| (holder.instance, holder.space))
            .or(bound.map(|bound| (bound.instance, bound.space)));
        let Some((instance, space)) = current else {
            return;
        };
        if let Err(refusal) = self.save_graph(instance, &space) {
            let unit = Engine::Graph.fault_unit();
            self.record_fault(unit, client::CTXCTL, Some(instance), refusal);
            if let Some(holder) = holder {
                self.halt_holder(&holder);
            }
        }
    }
}
