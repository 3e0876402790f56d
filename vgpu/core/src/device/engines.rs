//! Engines of a guest's GPU as the CPU sees them: idle, but for the errors that its channels made.
//!
//! Which channel made an error is told as a card tells it: by the instance block of the context on the engine (409b00 of PGRAPH,
//! 050 of a copy engine's falcon), here the guest's own block, while the error is pending.

use fermi_spec::engine::Engine;
use fermi_spec::regs::pcopy::copy_intr;
use fermi_spec::regs::{PcopyReg, falcon, pcopy};
use mmio::Storage;
use serde::{Deserialize, Serialize};

use super::errors::{Blame, Errors};
use super::graph::Graph;
use crate::channel_error::{CopyError, GraphError};
use crate::inspect::{Inspect, Tree};

const COPY_ENGINES: [Engine; pcopy::PCOPY.count as usize] = [Engine::Copy0, Engine::Copy1];

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Engines {
    pub(super) graph: Graph,
    copy: [Errors<CopyError>; COPY_ENGINES.len()],
}

impl Engines {
    /// PGRAPH refused what a channel of the guest sent it. `false`: there is no room for another error.
    pub(crate) fn graph_error(&mut self, blame: Blame, error: GraphError) -> bool {
        self.graph.error(blame, error)
    }

    /// A channel asked PGRAPH for a notification by interrupt.
    pub(crate) fn graph_notify(&mut self) {
        self.graph.notify();
    }

    /// A copy engine refused what a channel of the guest sent it.
    pub(crate) fn copy_error(&mut self, engine: Engine, blame: Blame, error: CopyError) -> bool {
        let at = COPY_ENGINES.iter().position(|&of| of == engine);
        at.is_some_and(|at| self.copy[at].raise(blame, error))
    }

    /// Whether an error of that channel has not been acknowledged.
    pub(super) fn concern(&self, channel: u8) -> bool {
        self.graph.concerns(channel) || self.copy.iter().any(|errors| errors.concerns(channel))
    }

    /// Engines that the guest switches off by PMC_ENABLE lose their errors, PGRAPH its microcode too. `true` if there were errors.
    pub(super) fn reset(&mut self, off: u32) -> bool {
        let is_off = |engine: Engine| off & 1 << engine.enable_bit() != 0;
        let mut were_some = is_off(Engine::Graph) && self.graph.reset();
        for (engine, errors) in COPY_ENGINES.into_iter().zip(&mut self.copy) {
            were_some |= is_off(engine) && errors.clear();
        }
        were_some
    }

    /// Engines with an interrupt, as PMC_INTR shows them.
    pub(super) fn pending(&self) -> u32 {
        let copy = COPY_ENGINES.into_iter().zip(&self.copy);
        let engines = copy.map(|(engine, errors)| (engine, errors.shown.intr));
        let pending = engines.chain([(Engine::Graph, self.graph.intr())]);
        pending
            .filter(|(_, intr)| *intr != 0)
            .fold(0, |bits, (engine, _)| bits | 1 << engine.interrupt_bit())
    }

    pub(super) fn read_copy(&self, reg: PcopyReg, words: &Storage) -> u32 {
        let of = |i: u16, field: fn(&CopyError) -> u32| {
            let errors = self.copy.get(usize::from(i));
            errors.map_or(0, |errors| field(&errors.shown))
        };
        match reg {
            PcopyReg::CopyIntr(i) => of(i, |error| error.intr),
            PcopyReg::CopyError(i) => of(i, |error| error.code),
            PcopyReg::CopyErrorData(i) => of(i, |error| error.data),
            PcopyReg::CopyIntrAck(_) | PcopyReg::CopyIntrEnableSet(_) | PcopyReg::CopyIntrEnableClear(_) => 0,
            PcopyReg::CopyChannel(i) => {
                let blame = self.copy.get(usize::from(i)).and_then(Errors::blame);
                blame.map_or(0, |blame| {
                    let channel = falcon::Channel::new().with_frame(blame.instance).with_valid(true);
                    channel.into_bits()
                })
            }
            // As the microcode leaves it: without it a driver would see no interrupt here, and acknowledge none.
            PcopyReg::CopyIntrRoute(_) => copy_intr::ROUTE,
            PcopyReg::CopyCaps(_) => pcopy::COPY_CAPS,
            PcopyReg::CopyVersion(_) => pcopy::COPY_VERSION,
            PcopyReg::CopyControl(_) => words.load(reg),
        }
    }

    /// A store. `true` if the guest has acknowledged an error with it.
    pub(super) fn write_copy(&mut self, reg: PcopyReg, value: u32, words: &mut Storage) -> bool {
        match reg {
            PcopyReg::CopyIntrAck(i) => {
                return self.copy.get_mut(usize::from(i)).is_some_and(|errors| {
                    errors.shown.intr &= !value;
                    errors.shown.intr == 0 && errors.seen()
                });
            }
            // The scratch words show the last error and nothing else.
            PcopyReg::CopyError(_) | PcopyReg::CopyErrorData(_) => {}
            PcopyReg::CopyIntr(_)
            | PcopyReg::CopyIntrEnableSet(_)
            | PcopyReg::CopyIntrEnableClear(_)
            | PcopyReg::CopyIntrRoute(_)
            | PcopyReg::CopyChannel(_)
            | PcopyReg::CopyCaps(_)
            | PcopyReg::CopyVersion(_) => {}
            PcopyReg::CopyControl(_) => words.store(reg, value),
        }
        false
    }
}

impl Inspect for Engines {
    fn inspect(&self, tree: &mut Tree<'_>) {
        tree.part("graph", &self.graph);
        for (name, errors) in ["copy_0", "copy_1"].into_iter().zip(&self.copy) {
            tree.group(name, |tree| {
                tree.bits("interrupts", errors.shown.intr);
                tree.bits("error", errors.shown.code);
                tree.bits("error_data", errors.shown.data);
                tree.flag("error_is_shown", errors.blame().is_some());
            });
        }
    }
}
