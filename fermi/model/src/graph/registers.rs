//! PGRAPH's registers that have an effect or are computed; the others are plain words.

use super::UNIT;
use crate::model::FermiModel;
use fermi_spec::regs::{
    Bar0Reg,
    pgraph::{METHOD_MASK, METHOD_PORT_GO, POWER_MODE_BUSY},
};

impl FermiModel {
    pub(crate) fn read_graph(&self, reg: Bar0Reg) -> Option<u32> {
        let unit = &self.units[UNIT];
        let fecs = &self.graph.fecs;
        let busy = u32::from(unit.is_working());
        Some(match reg {
            Bar0Reg::GraphIntr => unit.intr,
            Bar0Reg::GraphIntrEnable => unit.intr_enable,
            Bar0Reg::GraphDataError => unit.error,
            Bar0Reg::GraphTrappedMethod => unit.error_method,
            Bar0Reg::GraphTrappedData => unit.error_data,
            Bar0Reg::GraphFifoControl => self.graph.fifo_control,
            Bar0Reg::GraphActivity | Bar0Reg::GraphStatus => busy,
            Bar0Reg::GraphPowerMode => self.graph.power_mode,
            Bar0Reg::GraphMethodPortData => self.graph.port_data,
            Bar0Reg::GraphSubchannelClass(index) => u32::from(unit.registers.class(index as u8)),
            Bar0Reg::FecsScratchSet(_) | Bar0Reg::FecsScratchClear(_) => 0,
            Bar0Reg::FecsHostIntrSet | Bar0Reg::FecsHostIntrClear => 0,
            Bar0Reg::FecsData => fecs.data,
            Bar0Reg::FecsCommand => fecs.command,
            Bar0Reg::FecsScratch(index) => *fecs.scratch.get(usize::from(index))?,
            Bar0Reg::FecsChannel => self.current_context(),
            Bar0Reg::FecsNextChannel => fecs.next,
            Bar0Reg::FecsHostIntr => fecs.host_intr,
            Bar0Reg::FecsHostIntrEnable => fecs.host_intr_enable,
            _ => return self.graph.traps.read(reg),
        })
    }

    pub(crate) fn write_graph(&mut self, reg: Bar0Reg, value: u32) -> bool {
        match reg {
            Bar0Reg::GraphIntr => self.acknowledge_unit(UNIT, value),
            Bar0Reg::GraphIntrEnable => self.units[UNIT].intr_enable = value,
            Bar0Reg::GraphFifoControl => {
                self.graph.fifo_control = value;
                self.unit_became_idle();
            }
            Bar0Reg::GraphPowerMode => self.graph.power_mode = value & !POWER_MODE_BUSY,
            Bar0Reg::GraphMethodPortData => self.graph.port_data = value,
            Bar0Reg::GraphMethodPort if value & METHOD_PORT_GO != 0 => {
                let method = (value >> 14 & METHOD_MASK) as u16;
                self.set_by_port(value as u16, method, self.graph.port_data);
            }
            Bar0Reg::GraphSubchannelClass(index) => {
                self.units[UNIT].registers.bind(index as u8, value as u16);
            }
            Bar0Reg::GraphMethodPort
            | Bar0Reg::GraphDataError
            | Bar0Reg::GraphTrappedMethod
            | Bar0Reg::GraphTrappedData
            | Bar0Reg::GraphActivity
            | Bar0Reg::GraphStatus => {}
            _ => return self.graph.traps.write(reg, value) || self.write_fecs(reg, value),
        }
        true
    }

    fn write_fecs(&mut self, reg: Bar0Reg, value: u32) -> bool {
        let fecs = &mut self.graph.fecs;
        match reg {
            Bar0Reg::FecsData => fecs.data = value,
            Bar0Reg::FecsCommand => self.command_fecs(value),
            Bar0Reg::FecsScratch(index) => set_scratch(&mut fecs.scratch, index, |_| value),
            Bar0Reg::FecsScratchSet(index) => set_scratch(&mut fecs.scratch, index, |word| word | value),
            Bar0Reg::FecsScratchClear(index) => set_scratch(&mut fecs.scratch, index, |word| word & !value),
            Bar0Reg::FecsChannel => fecs.channel = value,
            Bar0Reg::FecsNextChannel => fecs.next = value,
            Bar0Reg::FecsHostIntr => {}
            Bar0Reg::FecsHostIntrSet => self.raise_fecs(value),
            Bar0Reg::FecsHostIntrClear => fecs.host_intr &= !value,
            Bar0Reg::FecsHostIntrEnable => {
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
