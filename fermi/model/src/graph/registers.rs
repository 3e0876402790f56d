//! PGRAPH's registers and those of FECS.

use super::UNIT;
use crate::model::FermiModel;
use fermi_spec::regs::{
    FecsReg, PgraphReg,
    falcon::FalconReg,
    pgraph::{METHOD_MASK, METHOD_PORT_GO, POWER_MODE_BUSY},
};

impl FermiModel {
    pub(crate) fn read_graph(&self, reg: PgraphReg) -> u32 {
        let unit = &self.units[UNIT];
        let traps = &self.graph.traps;
        match reg {
            PgraphReg::GraphIntr => unit.intr,
            PgraphReg::GraphIntrEnable => unit.intr_enable,
            PgraphReg::GraphDataError => unit.error,
            PgraphReg::GraphTrappedMethod => unit.error_method,
            PgraphReg::GraphTrappedData => unit.error_data,
            PgraphReg::GraphFifoControl => self.graph.fifo_control,
            PgraphReg::GraphActivity | PgraphReg::GraphStatus => u32::from(unit.is_working()),
            PgraphReg::GraphPowerMode => self.graph.power_mode,
            // The method is sent when the write returns.
            PgraphReg::GraphMethodPort => 0,
            PgraphReg::GraphMethodPortData => self.graph.port_data,
            PgraphReg::GraphSubchannelClass(index) => u32::from(unit.registers.class(index as u8)),
            PgraphReg::GraphUnits => self.identity.graph_units(),
            PgraphReg::GpcTpcs(gpc) => self.identity.tpcs(gpc),
            PgraphReg::GraphTrap => traps.trap,
            PgraphReg::GraphTrapEnable => traps.enable,
            PgraphReg::GraphGpcTrap => traps.gpc_trap,
            PgraphReg::GraphMacroTrap => traps.macro_trap,
            PgraphReg::GraphMacroTrapAt => traps.macro_at,
            PgraphReg::GraphMacroTrapWord => traps.macro_word,
            PgraphReg::GpcTrap(gpc) => traps.gpcs[usize::from(gpc)],
            PgraphReg::TpcTrap(gpc) => traps.tpcs[usize::from(gpc)],
            PgraphReg::TextureTrap(gpc) => traps.textures[usize::from(gpc)],
            PgraphReg::MpWarpError(gpc) => traps.warps[usize::from(gpc)],
            PgraphReg::MpGlobalError(gpc) => traps.globals[usize::from(gpc)],
            PgraphReg::Word(word) => self.storage.load(word),
        }
    }

    pub(crate) fn write_graph(&mut self, reg: PgraphReg, value: u32) {
        let traps = &mut self.graph.traps;
        match reg {
            PgraphReg::GraphIntr => self.acknowledge_unit(UNIT, value),
            PgraphReg::GraphIntrEnable => self.units[UNIT].intr_enable = value,
            PgraphReg::GraphFifoControl => {
                self.graph.fifo_control = value;
                self.unit_became_idle();
            }
            PgraphReg::GraphPowerMode => self.graph.power_mode = value & !POWER_MODE_BUSY,
            PgraphReg::GraphMethodPortData => self.graph.port_data = value,
            PgraphReg::GraphMethodPort if value & METHOD_PORT_GO != 0 => {
                let method = (value >> 14 & METHOD_MASK) as u16;
                self.set_by_port(value as u16, method, self.graph.port_data);
            }
            PgraphReg::GraphSubchannelClass(index) => {
                self.units[UNIT].registers.bind(index as u8, value as u16);
            }
            PgraphReg::GraphMethodPort
            | PgraphReg::GraphDataError
            | PgraphReg::GraphTrappedMethod
            | PgraphReg::GraphTrappedData
            | PgraphReg::GraphActivity
            | PgraphReg::GraphStatus
            | PgraphReg::GraphUnits
            | PgraphReg::GpcTpcs(_) => {}
            PgraphReg::GraphTrap => traps.trap &= !value,
            PgraphReg::GraphTrapEnable => traps.enable = value,
            PgraphReg::GraphGpcTrap => traps.gpc_trap &= !value,
            PgraphReg::GraphMacroTrap => traps.write_macro(value),
            PgraphReg::GpcTrap(gpc) => traps.gpcs[usize::from(gpc)] &= !value,
            PgraphReg::TpcTrap(gpc) => traps.tpcs[usize::from(gpc)] &= !value,
            PgraphReg::TextureTrap(gpc) => traps.write_texture(usize::from(gpc), value),
            PgraphReg::MpWarpError(gpc) => traps.warps[usize::from(gpc)] = value,
            PgraphReg::MpGlobalError(gpc) => traps.globals[usize::from(gpc)] &= !value,
            // Where a macro trapped stays to be read.
            PgraphReg::GraphMacroTrapAt | PgraphReg::GraphMacroTrapWord => {}
            PgraphReg::Word(word) => self.storage.store(word, value),
        }
    }

    pub(crate) fn read_fecs(&mut self, reg: FecsReg) -> u32 {
        let fecs = &mut self.graph.fecs;
        match reg {
            FecsReg::FecsIntrSet => fecs.falcon.read(FalconReg::IntrTrigger),
            FecsReg::FecsControl => fecs.falcon.read(FalconReg::Control),
            FecsReg::GpccsControl => fecs.gpccs.read(FalconReg::Control),
            FecsReg::FecsScratchSet(_) | FecsReg::FecsScratchClear(_) => 0,
            FecsReg::FecsHostIntrSet | FecsReg::FecsHostIntrClear => 0,
            FecsReg::FecsData => fecs.data,
            FecsReg::FecsCommand => fecs.command,
            FecsReg::FecsScratch(index) => fecs.scratch[usize::from(index)],
            FecsReg::FecsChannel => self.current_context(),
            FecsReg::FecsNextChannel => fecs.next,
            FecsReg::FecsHostIntr => fecs.host_intr,
            FecsReg::FecsHostIntrEnable => fecs.host_intr_enable,
        }
    }

    pub(crate) fn write_fecs(&mut self, reg: FecsReg, value: u32) {
        let fecs = &mut self.graph.fecs;
        match reg {
            FecsReg::FecsIntrSet => self.write_fecs_falcon(FalconReg::IntrTrigger, value),
            FecsReg::FecsControl => self.write_fecs_falcon(FalconReg::Control, value),
            FecsReg::GpccsControl => self.write_gpccs(FalconReg::Control, value),
            FecsReg::FecsData => fecs.data = value,
            FecsReg::FecsCommand => self.command_fecs(value),
            FecsReg::FecsScratch(index) => fecs.scratch[usize::from(index)] = value,
            FecsReg::FecsScratchSet(index) => fecs.scratch[usize::from(index)] |= value,
            FecsReg::FecsScratchClear(index) => fecs.scratch[usize::from(index)] &= !value,
            FecsReg::FecsChannel => fecs.channel = value,
            FecsReg::FecsNextChannel => fecs.next = value,
            FecsReg::FecsHostIntr => {}
            FecsReg::FecsHostIntrSet => self.raise_fecs(value),
            FecsReg::FecsHostIntrClear => fecs.host_intr &= !value,
            FecsReg::FecsHostIntrEnable => {
                fecs.host_intr_enable = value;
                self.raise_fecs(0);
            }
        }
    }
}
