//! PGRAPH of a guest's GPU: idle, but for the errors that the guest's channels made.
//!
//! What a register shows of an error stays until the guest acknowledges it there, as on a card; when all of GRAPH_INTR is acknowledged, the
//! error is over, and what its sub-units show with it.

use fermi_spec::regs::pgraph::{TRAP_ACKNOWLEDGE, TRAP_ENABLE, graph_intr};
use fermi_spec::regs::{FecsReg, PgraphReg, fecs::FECS_CHANNEL_VALID, pgraph};
use mmio::Storage;
use serde::{Deserialize, Serialize};

use super::board::{GPCS, ROPS, TPCS};
use super::errors::{Blame, Errors};
use super::fecs::{Asks, Fecs};
use crate::channel_error::{GpcTrap, GraphError};
use crate::inspect::{Inspect, Tree};

/// PGRAPH and FECS of a guest.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Graph {
    fecs: Fecs,
    errors: Errors<GraphError>,
    /// Interrupts that no channel stands still for: of FECS, and notifications.
    others: u32,
}

impl Graph {
    /// A channel of the guest made an error. `false`: there is no room for it.
    pub(super) fn error(&mut self, blame: Blame, error: GraphError) -> bool {
        self.errors.raise(blame, error)
    }

    /// A channel of the guest asked for a notification by interrupt.
    pub(super) fn notify(&mut self) {
        self.others |= graph_intr::NOTIFY;
    }

    pub(super) fn concerns(&self, channel: u8) -> bool {
        self.errors.concerns(channel)
    }

    /// PGRAPH was switched off: microcode and errors are lost. `true` if there was one.
    pub(super) fn reset(&mut self) -> bool {
        self.fecs.reset();
        self.others = 0;
        self.errors.clear()
    }

    /// GRAPH_INTR: what stands for an error, and what does not.
    pub(super) fn intr(&self) -> u32 {
        self.errors.shown.intr | self.others
    }

    fn gpc(&self, gpc: u16) -> GpcTrap {
        let gpcs = &self.errors.shown.gpcs;
        gpcs.get(usize::from(gpc)).copied().unwrap_or_default()
    }

    fn gpc_mut(&mut self, gpc: u16) -> Option<&mut GpcTrap> {
        self.errors.shown.gpcs.get_mut(usize::from(gpc))
    }

    pub(super) fn read(&self, reg: PgraphReg, words: &Storage) -> u32 {
        let shown = &self.errors.shown;
        match reg {
            PgraphReg::GraphIntr => self.intr(),
            PgraphReg::GraphTrappedMethod => shown.method,
            PgraphReg::GraphTrappedData => shown.data,
            PgraphReg::GraphDataError => shown.data_error,
            PgraphReg::GraphTrap => shown.trap,
            PgraphReg::GraphGpcTrap => shown.gpc_trap,
            PgraphReg::GraphMacroTrap => shown.macros[0] | words.load(reg) & TRAP_ENABLE,
            PgraphReg::GraphMacroTrapAt => shown.macros[1],
            PgraphReg::GraphMacroTrapWord => shown.macros[2],
            PgraphReg::GpcTrap(gpc) => self.gpc(gpc).gpc,
            PgraphReg::TpcTrap(gpc) => self.gpc(gpc).tpc,
            PgraphReg::TextureTrap(gpc) => self.gpc(gpc).texture,
            PgraphReg::MpWarpError(gpc) => self.gpc(gpc).warp,
            PgraphReg::MpGlobalError(gpc) => self.gpc(gpc).global,
            // The class that the failed method met; of other subchannels the card's classes are not told.
            PgraphReg::GraphSubchannelClass(index) if index == shown.subchannel() => shown.class,
            // Idle, and the power mode of its front end reached.
            PgraphReg::GraphActivity | PgraphReg::GraphStatus | PgraphReg::GraphPowerMode => 0,
            PgraphReg::GraphUnits => ROPS << pgraph::UNITS_ROPS_SHIFT | GPCS,
            PgraphReg::GpcTpcs(gpc) if u32::from(gpc) == GPCS - 1 => TPCS - 1,
            PgraphReg::GpcTpcs(_) => TPCS,
            PgraphReg::GraphIntrEnable
            | PgraphReg::GraphTrapEnable
            | PgraphReg::GraphFifoControl
            | PgraphReg::GraphSubchannelClass(_)
            | PgraphReg::GraphMethodPort
            | PgraphReg::GraphMethodPortData => words.load(reg),
            PgraphReg::Word(word) => words.load(word),
        }
    }

    /// A store. `true` if the guest has acknowledged an error with it.
    pub(super) fn write(&mut self, reg: PgraphReg, value: u32, words: &mut Storage) -> bool {
        let shown = &mut self.errors.shown;
        match reg {
            PgraphReg::GraphIntr => return self.acknowledge(value),
            PgraphReg::GraphTrap => shown.trap &= !value,
            PgraphReg::GraphGpcTrap => shown.gpc_trap &= !value,
            PgraphReg::GraphMacroTrap => {
                if value & TRAP_ACKNOWLEDGE != 0 {
                    shown.macros[0] = 0;
                }
                words.store(reg, value & TRAP_ENABLE);
            }
            PgraphReg::GpcTrap(gpc) => self.in_gpc(gpc, |traps| traps.gpc &= !value),
            PgraphReg::TpcTrap(gpc) => self.in_gpc(gpc, |traps| traps.tpc &= !value),
            PgraphReg::TextureTrap(gpc) if value & TRAP_ACKNOWLEDGE != 0 => {
                self.in_gpc(gpc, |traps| traps.texture = 0);
            }
            PgraphReg::MpWarpError(gpc) => self.in_gpc(gpc, |traps| traps.warp = value),
            PgraphReg::MpGlobalError(gpc) => self.in_gpc(gpc, |traps| traps.global &= !value),
            PgraphReg::TextureTrap(_)
            | PgraphReg::GraphMacroTrapAt
            | PgraphReg::GraphMacroTrapWord
            | PgraphReg::GraphTrappedMethod
            | PgraphReg::GraphTrappedData
            | PgraphReg::GraphDataError
            | PgraphReg::GraphActivity
            | PgraphReg::GraphStatus
            | PgraphReg::GraphPowerMode
            | PgraphReg::GraphUnits
            | PgraphReg::GpcTpcs(_) => {}
            PgraphReg::GraphIntrEnable
            | PgraphReg::GraphTrapEnable
            | PgraphReg::GraphFifoControl
            | PgraphReg::GraphSubchannelClass(_)
            | PgraphReg::GraphMethodPort
            | PgraphReg::GraphMethodPortData => words.store(reg, value),
            PgraphReg::Word(word) => words.store(word, value),
        }
        false
    }

    fn in_gpc(&mut self, gpc: u16, change: impl FnOnce(&mut GpcTrap)) {
        if let Some(traps) = self.gpc_mut(gpc) {
            change(traps);
        }
    }

    fn acknowledge(&mut self, value: u32) -> bool {
        self.others &= !value;
        self.errors.shown.intr &= !value;
        self.errors.shown.intr == 0 && self.errors.seen()
    }

    /// FECS. While an error is pending, the context on the engine is that of the channel that made it.
    pub(super) fn read_fecs(&self, reg: FecsReg) -> u32 {
        match (reg, self.errors.blame()) {
            (FecsReg::FecsChannel, Some(blame)) => FECS_CHANNEL_VALID | blame.instance,
            _ => self.fecs.read(reg),
        }
    }

    pub(super) fn write_fecs(&mut self, reg: FecsReg, value: u32) {
        if self.fecs.write(reg, value) == Asks::Interrupt {
            self.others |= graph_intr::CTXCTL;
        }
    }
}

impl Inspect for Graph {
    fn inspect(&self, tree: &mut Tree<'_>) {
        tree.bits("interrupts", self.intr());
        tree.bits("trapped_method", self.errors.shown.method);
        tree.bits("trapped_data", self.errors.shown.data);
        tree.bits("traps", self.errors.shown.trap);
        tree.flag("error_is_shown", self.errors.blame().is_some());
        tree.part("fecs", &self.fecs);
    }
}
