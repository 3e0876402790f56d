//! PGRAPH's registers that have an effect or are computed; the others are plain words.

use super::UNIT;
use crate::model::FermiModel;
use fermi_spec::regs::{
    Bar0Reg, FecsReg, PgraphReg,
    pgraph::{METHOD_MASK, METHOD_PORT_GO, POWER_MODE_BUSY},
};

impl FermiModel {
    pub(crate) fn read_graph(&self, reg: Bar0Reg) -> Option<u32> {
        let unit = &self.units[UNIT];
        let fecs = &self.graph.fecs;
        let busy = u32::from(unit.is_working());
        Some(match reg {
            Bar0Reg::Pgraph(PgraphReg::GraphIntr) => unit.intr,
            Bar0Reg::Pgraph(PgraphReg::GraphIntrEnable) => unit.intr_enable,
            Bar0Reg::Pgraph(PgraphReg::GraphDataError) => unit.error,
            Bar0Reg::Pgraph(PgraphReg::GraphTrappedMethod) => unit.error_method,
            Bar0Reg::Pgraph(PgraphReg::GraphTrappedData) => unit.error_data,
            Bar0Reg::Pgraph(PgraphReg::GraphFifoControl) => self.graph.fifo_control,
            Bar0Reg::Pgraph(PgraphReg::GraphActivity) | Bar0Reg::Pgraph(PgraphReg::GraphStatus) => busy,
            Bar0Reg::Pgraph(PgraphReg::GraphPowerMode) => self.graph.power_mode,
            Bar0Reg::Pgraph(PgraphReg::GraphMethodPortData) => self.graph.port_data,
            Bar0Reg::Pgraph(PgraphReg::GraphSubchannelClass(index)) => {
                u32::from(unit.registers.class(index as u8))
            }
            Bar0Reg::Fecs(FecsReg::FecsScratchSet(_)) | Bar0Reg::Fecs(FecsReg::FecsScratchClear(_)) => 0,
            Bar0Reg::Fecs(FecsReg::FecsHostIntrSet) | Bar0Reg::Fecs(FecsReg::FecsHostIntrClear) => 0,
            Bar0Reg::Fecs(FecsReg::FecsData) => fecs.data,
            Bar0Reg::Fecs(FecsReg::FecsCommand) => fecs.command,
            Bar0Reg::Fecs(FecsReg::FecsScratch(index)) => *fecs.scratch.get(usize::from(index))?,
            Bar0Reg::Fecs(FecsReg::FecsChannel) => self.current_context(),
            Bar0Reg::Fecs(FecsReg::FecsNextChannel) => fecs.next,
            Bar0Reg::Fecs(FecsReg::FecsHostIntr) => fecs.host_intr,
            Bar0Reg::Fecs(FecsReg::FecsHostIntrEnable) => fecs.host_intr_enable,
            _ => return self.graph.traps.read(reg),
        })
    }

    pub(crate) fn write_graph(&mut self, reg: Bar0Reg, value: u32) -> bool {
        match reg {
            Bar0Reg::Pgraph(PgraphReg::GraphIntr) => self.acknowledge_unit(UNIT, value),
            Bar0Reg::Pgraph(PgraphReg::GraphIntrEnable) => self.units[UNIT].intr_enable = value,
            Bar0Reg::Pgraph(PgraphReg::GraphFifoControl) => {
                self.graph.fifo_control = value;
                self.unit_became_idle();
            }
            Bar0Reg::Pgraph(PgraphReg::GraphPowerMode) => self.graph.power_mode = value & !POWER_MODE_BUSY,
            Bar0Reg::Pgraph(PgraphReg::GraphMethodPortData) => self.graph.port_data = value,
            Bar0Reg::Pgraph(PgraphReg::GraphMethodPort) if value & METHOD_PORT_GO != 0 => {
                let method = (value >> 14 & METHOD_MASK) as u16;
                self.set_by_port(value as u16, method, self.graph.port_data);
            }
            Bar0Reg::Pgraph(PgraphReg::GraphSubchannelClass(index)) => {
                self.units[UNIT].registers.bind(index as u8, value as u16);
            }
            Bar0Reg::Pgraph(PgraphReg::GraphMethodPort)
            | Bar0Reg::Pgraph(PgraphReg::GraphDataError)
            | Bar0Reg::Pgraph(PgraphReg::GraphTrappedMethod)
            | Bar0Reg::Pgraph(PgraphReg::GraphTrappedData)
            | Bar0Reg::Pgraph(PgraphReg::GraphActivity)
            | Bar0Reg::Pgraph(PgraphReg::GraphStatus) => {}
            _ => return self.graph.traps.write(reg, value) || self.write_fecs(reg, value),
        }
        true
    }

    fn write_fecs(&mut self, reg: Bar0Reg, value: u32) -> bool {
        let fecs = &mut self.graph.fecs;
        match reg {
            Bar0Reg::Fecs(FecsReg::FecsData) => fecs.data = value,
            Bar0Reg::Fecs(FecsReg::FecsCommand) => self.command_fecs(value),
            Bar0Reg::Fecs(FecsReg::FecsScratch(index)) => set_scratch(&mut fecs.scratch, index, |_| value),
            Bar0Reg::Fecs(FecsReg::FecsScratchSet(index)) => {
                set_scratch(&mut fecs.scratch, index, |word| word | value)
            }
            Bar0Reg::Fecs(FecsReg::FecsScratchClear(index)) => {
                set_scratch(&mut fecs.scratch, index, |word| word & !value)
            }
            Bar0Reg::Fecs(FecsReg::FecsChannel) => fecs.channel = value,
            Bar0Reg::Fecs(FecsReg::FecsNextChannel) => fecs.next = value,
            Bar0Reg::Fecs(FecsReg::FecsHostIntr) => {}
            Bar0Reg::Fecs(FecsReg::FecsHostIntrSet) => self.raise_fecs(value),
            Bar0Reg::Fecs(FecsReg::FecsHostIntrClear) => fecs.host_intr &= !value,
            Bar0Reg::Fecs(FecsReg::FecsHostIntrEnable) => {
                fecs.host_intr_enable = value;
                self.raise_fecs(0);
            }
            _ => return false,
        }
        true
    }
}

fn set_scratch(scratch: &mut [u32; 8], index: u16, change: impl Fn(u32) -> u32) {
    if let Some(word) = scratch.get_mut(usize::from(index)) {
        *word = change(*word);
    }
}
