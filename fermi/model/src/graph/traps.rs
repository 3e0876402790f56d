//! Traps of PGRAPH's sub-units.
//!
//! ```text
//!   404490 macro ─► 400108 bit 7 ─┐
//!   504648 MP, 504224 TEX ─► 504508 TPC ─► 502c90 GPC ─► 400118 ─► 400108 bit 24 ─┴─► 400100 bit 21: the engine stops
//! ```
//!
//! Every register on the way keeps its bit until the driver acknowledges it there, and the engine goes on when 400100
//! is acknowledged: nouveau works from the sub-unit up (assumption: no acknowledgement is undone by a bit that is
//! still set below). Sub-units trap whether or not their own enable is set; 400138 lets a sub-unit's traps through.

use super::UNIT;
use crate::{compute::WarpError, model::FermiModel};
use fermi_spec::regs::pgraph::{
    self, GPC_TRAP_TPC0, MACRO_TRAP_VALID, MP_GLOBAL_OUT_OF_STACK, MP_GLOBAL_TIMEOUT, TEXTURE_TRAP_INVALID,
    TPC_TRAP_MP, TPC_TRAP_TEXTURE, TRAP_ACKNOWLEDGE, TRAP_ENABLE, graph_intr, graph_trap,
};

const GPCS: usize = pgraph::GPCS as usize;

/// A trap of the macro processor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct MacroTrap {
    pub(super) bit: u32,
    /// Where in the code, if a macro ran.
    pub(super) place: Option<usize>,
    pub(super) word: u32,
}

/// The trap registers of all sub-units.
#[derive(Clone, Debug)]
pub(super) struct Traps {
    pub(super) trap: u32,
    pub(super) enable: u32,
    pub(super) macro_trap: u32,
    pub(super) macro_at: u32,
    pub(super) macro_word: u32,
    pub(super) gpc_trap: u32,
    pub(super) gpcs: [u32; GPCS],
    pub(super) tpcs: [u32; GPCS],
    pub(super) textures: [u32; GPCS],
    pub(super) warps: [u32; GPCS],
    pub(super) globals: [u32; GPCS],
}

impl Default for Traps {
    fn default() -> Self {
        Self {
            trap: 0,
            enable: u32::MAX,
            macro_trap: 0,
            macro_at: 0,
            macro_word: 0,
            gpc_trap: 0,
            gpcs: [0; GPCS],
            tpcs: [0; GPCS],
            textures: [0; GPCS],
            warps: [0; GPCS],
            globals: [0; GPCS],
        }
    }
}

impl Traps {
    /// A write to GRAPH_MACRO_TRAP: the enable stays as written, the traps until they are acknowledged.
    pub(super) fn write_macro(&mut self, value: u32) {
        let left = if value & TRAP_ACKNOWLEDGE != 0 {
            0
        } else {
            self.macro_trap & !TRAP_ENABLE
        };
        self.macro_trap = left | value & TRAP_ENABLE;
    }

    /// A write to TEXTURE_TRAP of a GPC.
    pub(super) fn write_texture(&mut self, gpc: usize, value: u32) {
        if value & TRAP_ACKNOWLEDGE != 0 {
            self.textures[gpc] = 0;
        }
    }
}

impl FermiModel {
    pub(super) fn raise_macro_trap(&mut self, trap: MacroTrap) {
        let traps = &mut self.graph.traps;
        traps.macro_trap |= trap.bit;
        traps.macro_at = trap.place.map_or(0, |place| place as u32 | MACRO_TRAP_VALID);
        traps.macro_word = trap.word;
        self.raise_trap(graph_trap::MACRO);
    }

    /// Reports an error of a warp of the grid. assumption: the first MP reports it, whichever ran the warp.
    pub(super) fn raise_warp_error(&mut self, error: WarpError) {
        let traps = &mut self.graph.traps;
        match error {
            WarpError::OutOfStack => traps.globals[0] |= MP_GLOBAL_OUT_OF_STACK,
            WarpError::TimedOut => traps.globals[0] |= MP_GLOBAL_TIMEOUT,
            WarpError::Texture => traps.textures[0] = TEXTURE_TRAP_INVALID,
            error => traps.warps[0] = error as u32,
        }
        traps.tpcs[0] |= match error {
            WarpError::Texture => TPC_TRAP_TEXTURE,
            _ => TPC_TRAP_MP,
        };
        traps.gpcs[0] |= GPC_TRAP_TPC0;
        traps.gpc_trap |= 1;
        self.raise_trap(graph_trap::GPC);
    }

    /// Stops the engine until the driver has seen the trap.
    fn raise_trap(&mut self, source: u32) {
        self.mem.counters.engine_errors += 1;
        let traps = &mut self.graph.traps;
        traps.trap |= source;
        if traps.enable & source != 0 {
            self.units[UNIT].intr |= graph_intr::TRAP;
            self.units[UNIT].stopped = true;
            self.note_dead_engines();
        }
    }
}
