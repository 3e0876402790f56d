//! Engines of a guest's GPU as the CPU sees them: idle, but for the errors that its channels made.

use fermi_spec::engine::Engine;
use fermi_spec::regs::{FecsReg, PcopyReg, PgraphReg, pcopy, pgraph};
use mmio::Storage;
use serde::{Deserialize, Serialize};

use super::board::{GPCS, ROPS, TPCS};
use crate::inspect::{Inspect, Tree};

/// Interrupts of an engine, with code and data of its last error.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Error {
    intr: u32,
    code: u32,
    data: u32,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Engines {
    graph: Error,
    copy: [Error; pcopy::PCOPY.count as usize],
}

impl Engines {
    /// An engine refused what a channel of the guest sent it.
    pub(crate) fn error(&mut self, engine: Engine, intr: u32, code: u32, data: u32) {
        let error = match engine {
            Engine::Copy0 => &mut self.copy[0],
            Engine::Copy1 => &mut self.copy[1],
            Engine::Graph | Engine::Ppdec | Engine::Pppp | Engine::Pvld => &mut self.graph,
        };
        *error = Error {
            intr: error.intr | intr,
            code,
            data,
        };
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

    /// The context handshake, which nobody answers.
    pub(super) fn read_fecs(reg: FecsReg, words: &Storage) -> u32 {
        match reg {
            FecsReg::FecsIntrSet
            | FecsReg::FecsControl
            | FecsReg::FecsData
            | FecsReg::FecsCommand
            | FecsReg::FecsScratch(_)
            | FecsReg::FecsScratchSet(_)
            | FecsReg::FecsScratchClear(_)
            | FecsReg::FecsChannel
            | FecsReg::FecsNextChannel
            | FecsReg::FecsHostIntr
            | FecsReg::FecsHostIntrSet
            | FecsReg::FecsHostIntrClear
            | FecsReg::FecsHostIntrEnable => 0,
            FecsReg::GpccsControl => words.load(reg),
        }
    }

    pub(super) fn write_fecs(reg: FecsReg, value: u32, words: &mut Storage) {
        match reg {
            FecsReg::FecsIntrSet
            | FecsReg::FecsControl
            | FecsReg::FecsData
            | FecsReg::FecsCommand
            | FecsReg::FecsScratch(_)
            | FecsReg::FecsScratchSet(_)
            | FecsReg::FecsScratchClear(_)
            | FecsReg::FecsChannel
            | FecsReg::FecsNextChannel
            | FecsReg::FecsHostIntr
            | FecsReg::FecsHostIntrSet
            | FecsReg::FecsHostIntrClear
            | FecsReg::FecsHostIntrEnable => {}
            FecsReg::GpccsControl => words.store(reg, value),
        }
    }

    pub(super) fn read_copy(&self, reg: PcopyReg, words: &Storage) -> u32 {
        let of = |i: u16, field: fn(&Error) -> u32| self.copy.get(usize::from(i)).map_or(0, field);
        match reg {
            PcopyReg::CopyIntr(i) => of(i, |error| error.intr),
            PcopyReg::CopyError(i) => of(i, |error| error.code),
            PcopyReg::CopyErrorData(i) => of(i, |error| error.data),
            PcopyReg::CopyIntrAck(_) | PcopyReg::CopyIntrEnableSet(_) | PcopyReg::CopyIntrEnableClear(_) => 0,
            PcopyReg::CopyCaps(_) => pcopy::COPY_CAPS,
            PcopyReg::CopyVersion(_) => pcopy::COPY_VERSION,
            PcopyReg::CopyIntrRoute(_) | PcopyReg::CopyControl(_) => words.load(reg),
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
            | PcopyReg::CopyCaps(_)
            | PcopyReg::CopyVersion(_) => {}
            PcopyReg::CopyIntrRoute(_) | PcopyReg::CopyControl(_) => words.store(reg, value),
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
            });
        }
    }
}
