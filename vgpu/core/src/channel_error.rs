//! Errors of channels that a card survives, as its registers tell them.
//!
//! A unit of the card stands with the channel that made an error until a driver has acknowledged it, and then goes on, with that channel too.
//! Here the broker acknowledges at once, so that the unit goes on with other VMs' channels, and the channel alone stands still until its own
//! guest has acknowledged what its registers show ([`crate::device::errors`]).
//!
//! Sources: nouveau `gr/gf100.c` (which registers tell what, in which order they are acknowledged), `ce/gt215.c`, `fifo/gf100.c`.

use fermi_spec::graphics::shader;
use fermi_spec::methods::class;
use fermi_spec::regs::pgraph::{self, METHOD_MASK, graph_intr};
use serde::{Deserialize, Serialize};

pub(crate) const GPCS: usize = pgraph::GPCS as usize;

/// An error of PGRAPH.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct GraphError {
    /// Pending interrupts (400100).
    pub(crate) intr: u32,
    /// Code of a data error (400110).
    pub(crate) data_error: u32,
    /// Method that failed (400704): method and subchannel.
    pub(crate) method: u32,
    /// Its data (400708).
    pub(crate) data: u32,
    /// Class bound to the subchannel (404200).
    pub(crate) class: u32,
    /// Sub-units with a trap (400108).
    pub(crate) trap: u32,
    /// GPCs with a trap (400118).
    pub(crate) gpc_trap: u32,
    /// Macro processor: trap, place, word (404490, 404494, 40449c).
    pub(crate) macros: [u32; 3],
    pub(crate) gpcs: [GpcTrap; GPCS],
}

/// Traps of a GPC and of its TPC 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct GpcTrap {
    /// Units of the GPC, and its TPCs (502c90).
    pub(crate) gpc: u32,
    /// Units of the TPC (504508).
    pub(crate) tpc: u32,
    /// Texture unit (504224).
    pub(crate) texture: u32,
    /// Warp error of the MP (504648).
    pub(crate) warp: u32,
    /// The MP's other errors (504650).
    pub(crate) global: u32,
}

/// An error of a copy engine: interrupts, code and data (104008, 104040, 104044).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct CopyError {
    pub(crate) intr: u32,
    pub(crate) code: u32,
    pub(crate) data: u32,
}

/// An error of a PBDMA: interrupts, latched method and its data (040108, 0400c0, 0400c4).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct PbdmaError {
    pub(crate) intr: u32,
    pub(crate) method: u32,
    pub(crate) data: u32,
}

impl GraphError {
    /// Whether exceptions of shaders are to be told, if that is what the channel asked for: by a method that no class has, and that a driver does
    /// in its place (nouveau `gf100_gr_mthd_sw`). The driver is the host here, and it is no error then.
    pub(crate) fn wants_exceptions(&self) -> Option<bool> {
        let is_class = [class::THREED, class::COMPUTE]
            .map(u32::from)
            .contains(&self.class);
        let is_method = self.method & METHOD_MASK == u32::from(shader::SOFTWARE_EXCEPTIONS);
        let is_alone = self.intr == graph_intr::ILLEGAL_METHOD;
        (is_class && is_method && is_alone).then_some(self.data != 0)
    }

    /// Subchannel of the method that failed.
    pub(crate) fn subchannel(&self) -> u16 {
        subchannel_of(self.method)
    }
}

/// Subchannel in GRAPH_TRAPPED_METHOD.
pub(crate) fn subchannel_of(trapped: u32) -> u16 {
    const SHIFT: u32 = 16;
    const _: () = assert!(METHOD_MASK >> SHIFT == 0);
    (trapped >> SHIFT & 7) as u16
}
