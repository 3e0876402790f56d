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
use fermi_spec::regs::{
    Bar0Reg, PgraphReg,
    pgraph::{
        GPC_TRAP_TPC0, MACRO_TRAP_VALID, MP_GLOBAL_OUT_OF_STACK, MP_GLOBAL_TIMEOUT, TEXTURE_TRAP_INVALID,
        TPC_TRAP_MP, TPC_TRAP_TEXTURE, TRAP_ACKNOWLEDGE, TRAP_ENABLE, graph_intr, graph_trap,
    },
};

const GPCS: usize = 4;

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
    trap: u32,
    enable: u32,
    macro_trap: u32,
    macro_at: u32,
    macro_word: u32,
    gpc_trap: u32,
    gpcs: [u32; GPCS],
    tpcs: [u32; GPCS],
    textures: [u32; GPCS],
    warps: [u32; GPCS],
    globals: [u32; GPCS],
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
    pub(super) fn read(&self, reg: Bar0Reg) -> Option<u32> {
        let of = |words: &[u32; GPCS], index: u16| words.get(usize::from(index)).copied();
        Some(match reg {
            Bar0Reg::Pgraph(PgraphReg::GraphTrap) => self.trap,
            Bar0Reg::Pgraph(PgraphReg::GraphTrapEnable) => self.enable,
            Bar0Reg::Pgraph(PgraphReg::GraphMacroTrap) => self.macro_trap,
            Bar0Reg::Pgraph(PgraphReg::GraphMacroTrapAt) => self.macro_at,
            Bar0Reg::Pgraph(PgraphReg::GraphMacroTrapWord) => self.macro_word,
            Bar0Reg::Pgraph(PgraphReg::GraphGpcTrap) => self.gpc_trap,
            Bar0Reg::Pgraph(PgraphReg::GpcTrap(index)) => of(&self.gpcs, index)?,
            Bar0Reg::Pgraph(PgraphReg::TpcTrap(index)) => of(&self.tpcs, index)?,
            Bar0Reg::Pgraph(PgraphReg::TextureTrap(index)) => of(&self.textures, index)?,
            Bar0Reg::Pgraph(PgraphReg::MpWarpError(index)) => of(&self.warps, index)?,
            Bar0Reg::Pgraph(PgraphReg::MpGlobalError(index)) => of(&self.globals, index)?,
            _ => return None,
        })
    }

    pub(super) fn write(&mut self, reg: Bar0Reg, value: u32) -> bool {
        let acknowledge = |words: &mut [u32; GPCS], index: u16| {
            if let Some(word) = words.get_mut(usize::from(index)) {
                *word &= !value;
            }
        };
        match reg {
            Bar0Reg::Pgraph(PgraphReg::GraphTrap) => self.trap &= !value,
            Bar0Reg::Pgraph(PgraphReg::GraphTrapEnable) => self.enable = value,
            Bar0Reg::Pgraph(PgraphReg::GraphMacroTrap) => {
                let left = if value & TRAP_ACKNOWLEDGE != 0 {
                    0
                } else {
                    self.macro_trap & !TRAP_ENABLE
                };
                self.macro_trap = left | value & TRAP_ENABLE;
            }
            Bar0Reg::Pgraph(PgraphReg::GraphMacroTrapAt) | Bar0Reg::Pgraph(PgraphReg::GraphMacroTrapWord) => {
            }
            Bar0Reg::Pgraph(PgraphReg::GraphGpcTrap) => self.gpc_trap &= !value,
            Bar0Reg::Pgraph(PgraphReg::GpcTrap(index)) => acknowledge(&mut self.gpcs, index),
            Bar0Reg::Pgraph(PgraphReg::TpcTrap(index)) => acknowledge(&mut self.tpcs, index),
            Bar0Reg::Pgraph(PgraphReg::MpGlobalError(index)) => acknowledge(&mut self.globals, index),
            Bar0Reg::Pgraph(PgraphReg::TextureTrap(index)) => {
                if let Some(word) = self.textures.get_mut(usize::from(index))
                    && value & TRAP_ACKNOWLEDGE != 0
                {
                    *word = 0;
                }
            }
            Bar0Reg::Pgraph(PgraphReg::MpWarpError(index)) => {
                if let Some(word) = self.warps.get_mut(usize::from(index)) {
                    *word = value;
                }
            }
            _ => return false,
        }
        true
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
