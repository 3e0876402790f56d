//! Engines of a guest's GPU as the CPU sees them: idle, but for the errors that its channels made.
//!
//! Which channel made an error is told as a card tells it: by the instance block of the context on the engine (409b00 of PGRAPH,
//! 050 of a copy engine's falcon), here the guest's own block, while the error is pending.

use fermi_spec::engine::Engine;
use fermi_spec::regs::fecs::FECS_CHANNEL_VALID;
use fermi_spec::regs::pcopy::copy_intr;
use fermi_spec::regs::pgraph::graph_intr;
use fermi_spec::regs::{FecsReg, PcopyReg, PgraphReg, falcon, pcopy, pgraph};
use mmio::Storage;
use serde::{Deserialize, Serialize};

use super::board::{GPCS, ROPS, TPCS};
use super::fecs::{Asks, Fecs};
use crate::inspect::{Inspect, Tree};

/// Interrupts of an engine, with code and data of its last error.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Error {
    intr: u32,
    code: u32,
    data: u32,
    /// The guest's instance block of the channel that made it, as a number of a page of its VRAM.
    instance: u32,
}

impl Error {
    /// The instance block to blame, while there is an error.
    fn culprit(&self) -> Option<u32> {
        (self.intr != 0 && self.instance != 0).then_some(self.instance)
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Engines {
    fecs: Fecs,
    graph: Error,
    copy: [Error; pcopy::PCOPY.count as usize],
}

impl Engines {
    /// An engine refused what a channel of the guest sent it. The channel's instance block is in that page of guest VRAM.
    pub(crate) fn error(&mut self, engine: Engine, intr: u32, (code, data): (u32, u32), instance: u32) {
        let error = match engine {
            Engine::Copy0 => &mut self.copy[0],
            Engine::Copy1 => &mut self.copy[1],
            Engine::Graph | Engine::Ppdec | Engine::Pppp | Engine::Pvld => &mut self.graph,
        };
        *error = Error {
            intr: error.intr | intr,
            code,
            data,
            instance,
        };
    }

    /// Engines that the guest switches off by PMC_ENABLE lose their errors, PGRAPH its microcode too.
    pub(super) fn reset(&mut self, off: u32) {
        let is_off = |engine: Engine| off & 1 << engine.enable_bit() != 0;
        if is_off(Engine::Graph) {
            self.graph = Error::default();
            self.fecs.reset();
        }
        for (engine, error) in [Engine::Copy0, Engine::Copy1].into_iter().zip(&mut self.copy) {
            if is_off(engine) {
                *error = Error::default();
            }
        }
    }

    /// Engines with an interrupt, as PMC_INTR shows them.
    pub(super) fn pending(&self) -> u32 {
        let engines = [
            (Engine::Graph, self.graph),
            (Engine::Copy0, self.copy[0]),
            (Engine::Copy1, self.copy[1]),
        ];
        let pending = engines.into_iter().filter(|(_, error)| error.intr != 0);
        pending.fold(0, |bits, (engine, _)| bits | 1 << engine.interrupt_bit())
    }

    pub(super) fn read_graph(&self, reg: PgraphReg, words: &Storage) -> u32 {
        match reg {
            PgraphReg::GraphIntr => self.graph.intr,
            PgraphReg::GraphTrappedMethod => self.graph.code,
            PgraphReg::GraphTrappedData => self.graph.data,
            PgraphReg::GraphDataError => 0,
            // Idle, and the power mode of its front end reached.
            PgraphReg::GraphActivity | PgraphReg::GraphStatus | PgraphReg::GraphPowerMode => 0,
            PgraphReg::GraphUnits => ROPS << pgraph::UNITS_ROPS_SHIFT | GPCS,
            PgraphReg::GpcTpcs(gpc) if u32::from(gpc) == GPCS - 1 => TPCS - 1,
            PgraphReg::GpcTpcs(_) => TPCS,
            PgraphReg::GraphIntrEnable
            | PgraphReg::GraphTrap
            | PgraphReg::GraphGpcTrap
            | PgraphReg::GraphTrapEnable
            | PgraphReg::GraphFifoControl
            | PgraphReg::GraphSubchannelClass(_)
            | PgraphReg::GraphMethodPort
            | PgraphReg::GraphMethodPortData
            | PgraphReg::GraphMacroTrap
            | PgraphReg::GraphMacroTrapAt
            | PgraphReg::GraphMacroTrapWord
            | PgraphReg::GpcTrap(_)
            | PgraphReg::TpcTrap(_)
            | PgraphReg::TextureTrap(_)
            | PgraphReg::MpWarpError(_)
            | PgraphReg::MpGlobalError(_) => words.load(reg),
            PgraphReg::Word(word) => words.load(word),
        }
    }

    pub(super) fn write_graph(&mut self, reg: PgraphReg, value: u32, words: &mut Storage) {
        match reg {
            PgraphReg::GraphIntr => self.graph.intr &= !value,
            PgraphReg::GraphTrappedMethod
            | PgraphReg::GraphTrappedData
            | PgraphReg::GraphDataError
            | PgraphReg::GraphActivity
            | PgraphReg::GraphStatus
            | PgraphReg::GraphPowerMode
            | PgraphReg::GraphUnits
            | PgraphReg::GpcTpcs(_) => {}
            PgraphReg::GraphIntrEnable
            | PgraphReg::GraphTrap
            | PgraphReg::GraphGpcTrap
            | PgraphReg::GraphTrapEnable
            | PgraphReg::GraphFifoControl
            | PgraphReg::GraphSubchannelClass(_)
            | PgraphReg::GraphMethodPort
            | PgraphReg::GraphMethodPortData
            | PgraphReg::GraphMacroTrap
            | PgraphReg::GraphMacroTrapAt
            | PgraphReg::GraphMacroTrapWord
            | PgraphReg::GpcTrap(_)
            | PgraphReg::TpcTrap(_)
            | PgraphReg::TextureTrap(_)
            | PgraphReg::MpWarpError(_)
            | PgraphReg::MpGlobalError(_) => words.store(reg, value),
            PgraphReg::Word(word) => words.store(word, value),
        }
    }

    /// FECS. While an error of PGRAPH is pending, the context on the engine is that of the channel that made it.
    pub(super) fn read_fecs(&self, reg: FecsReg) -> u32 {
        match (reg, self.graph.culprit()) {
            (FecsReg::FecsChannel, Some(instance)) => FECS_CHANNEL_VALID | instance,
            _ => self.fecs.read(reg),
        }
    }

    pub(super) fn write_fecs(&mut self, reg: FecsReg, value: u32) {
        if self.fecs.write(reg, value) == Asks::Interrupt {
            self.graph.intr |= graph_intr::CTXCTL;
        }
    }

    pub(super) fn read_copy(&self, reg: PcopyReg, words: &Storage) -> u32 {
        let of = |i: u16, field: fn(&Error) -> u32| self.copy.get(usize::from(i)).map_or(0, field);
        match reg {
            PcopyReg::CopyIntr(i) => of(i, |error| error.intr),
            PcopyReg::CopyError(i) => of(i, |error| error.code),
            PcopyReg::CopyErrorData(i) => of(i, |error| error.data),
            PcopyReg::CopyIntrAck(_) | PcopyReg::CopyIntrEnableSet(_) | PcopyReg::CopyIntrEnableClear(_) => 0,
            PcopyReg::CopyChannel(i) => {
                let culprit = self.copy.get(usize::from(i)).and_then(Error::culprit);
                culprit.map_or(0, |frame| {
                    let channel = falcon::Channel::new().with_frame(frame).with_valid(true);
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

    pub(super) fn write_copy(&mut self, reg: PcopyReg, value: u32, words: &mut Storage) {
        match reg {
            PcopyReg::CopyIntrAck(i) => {
                if let Some(error) = self.copy.get_mut(usize::from(i)) {
                    error.intr &= !value;
                }
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
    }
}

impl Inspect for Engines {
    fn inspect(&self, tree: &mut Tree<'_>) {
        for (name, error) in [
            ("graph", self.graph),
            ("copy_0", self.copy[0]),
            ("copy_1", self.copy[1]),
        ] {
            tree.group(name, |tree| {
                tree.bits("interrupts", error.intr);
                tree.bits("error", error.code);
                tree.bits("error_data", error.data);
                tree.bits("instance_block", error.instance);
            });
        }
        tree.part("fecs", &self.fecs);
    }
}
