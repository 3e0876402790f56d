//! The registers of the units on the host's side: PMC, PBUS and PTIMER.

use crate::model::FermiModel;
use fermi_spec::{
    bar::Bar,
    engine::{Engine, PBDMAS_PRESENT, pmc_enable},
    regs::{
        PbusReg, PmcReg, PtimerReg,
        pcopy::PCOPY,
        pgraph::{GPCS_BASE, GPCS_BYTES, GRAPH_BYTES, PGRAPH},
        pmc,
        pmu::PMU,
    },
};

impl FermiModel {
    pub(super) fn read_pmc(&self, reg: PmcReg) -> u32 {
        match reg {
            PmcReg::Boot0 => self.board.boot0(),
            // Little-endian, and it stays so.
            PmcReg::Endian => 0,
            PmcReg::PmcIntr(line) => self.pmc_interrupts(usize::from(line)),
            PmcReg::PmcIntrEnable(line) => self.interrupts.enable[usize::from(line)],
            PmcReg::PmcIntrLine(line) => u32::from(self.pmc_line(usize::from(line))),
            PmcReg::PmcIntrMask(line) => self.interrupts.mask[usize::from(line)],
            PmcReg::PmcEnable => self.pmc_enable,
            PmcReg::PbdmaEnable => self.pbdma_enable,
            PmcReg::Word(word) => self.storage.load(word),
        }
    }

    pub(super) fn write_pmc(&mut self, reg: PmcReg, value: u32) {
        match reg {
            PmcReg::PmcIntrEnable(line) => {
                self.interrupts.enable[usize::from(line)] = value & pmc::LINE_STORED;
            }
            PmcReg::PmcIntrMask(line) => self.interrupts.mask[usize::from(line)] = value,
            PmcReg::PmcEnable => self.set_pmc_enable(value),
            PmcReg::PbdmaEnable => self.pbdma_enable = value & PBDMAS_PRESENT,
            PmcReg::Boot0 | PmcReg::Endian | PmcReg::PmcIntr(_) | PmcReg::PmcIntrLine(_) => {}
            PmcReg::Word(word) => self.storage.store(word, value),
        }
    }

    pub(super) fn read_pbus(&self, reg: PbusReg) -> u32 {
        match reg {
            PbusReg::PbusIntr => self.interrupts.bus,
            PbusReg::PbusIntrEnable => self.interrupts.bus_enable,
            PbusReg::PbusIntrEnableNonStall => self.interrupts.bus_enable_nonstall,
            PbusReg::PbusErrorAddress => self.interrupts.bus_error_address,
            PbusReg::PbusErrorData => self.interrupts.bus_error_data,
            PbusReg::PraminBase => self.windows.pramin.into_bits(),
            PbusReg::Bar1Block => self.windows.bar1.block.into_bits(),
            PbusReg::Bar3Block => self.windows.bar3.block.into_bits(),
        }
    }

    pub(super) fn write_pbus(&mut self, reg: PbusReg, value: u32) {
        match reg {
            PbusReg::PbusIntr => self.interrupts.bus &= !value,
            PbusReg::PbusIntrEnable => self.interrupts.bus_enable = value,
            PbusReg::PbusIntrEnableNonStall => self.interrupts.bus_enable_nonstall = value,
            PbusReg::PbusErrorAddress => self.interrupts.bus_error_address = value,
            PbusReg::PbusErrorData => {}
            PbusReg::PraminBase => self.windows.pramin = value.into(),
            PbusReg::Bar1Block => self.set_window(Bar::Bar1, value),
            PbusReg::Bar3Block => self.set_window(Bar::Bar3, value),
        }
    }

    pub(super) fn read_ptimer(&mut self, reg: PtimerReg) -> u32 {
        match reg {
            PtimerReg::PtimerIntr => self.clock.intr,
            PtimerReg::PtimerIntrEnable => self.clock.intr_enable,
            PtimerReg::PtimerLow => self.clock.read() as u32,
            PtimerReg::PtimerHigh => (self.clock.read() >> 32) as u32,
            PtimerReg::PtimerAlarm => self.clock.alarm(),
            PtimerReg::Word(word) => self.storage.load(word),
        }
    }

    pub(super) fn write_ptimer(&mut self, reg: PtimerReg, value: u32) {
        match reg {
            PtimerReg::PtimerIntr => self.clock.intr &= !value,
            PtimerReg::PtimerIntrEnable => self.clock.intr_enable = value,
            PtimerReg::PtimerLow => self.clock.set_low(value),
            PtimerReg::PtimerHigh => self.clock.set_high(value),
            PtimerReg::PtimerAlarm => self.clock.set_alarm(value),
            PtimerReg::Word(word) => self.storage.store(word, value),
        }
    }

    /// Writes PMC_ENABLE: a falling bit resets its unit, a rising one starts it.
    pub(crate) fn set_pmc_enable(&mut self, value: u32) {
        let fell = self.pmc_enable & !value;
        let rose = value & !self.pmc_enable;
        self.pmc_enable = value;
        if fell & pmc_enable::PFIFO != 0 {
            self.reset_pfifo();
        }
        if fell & pmc_enable::PMU != 0 {
            self.pmu.reset();
            self.storage.clear(PMU.range());
        }
        for unit in 0..self.units.len() {
            let bit = 1 << self.units[unit].engine.enable_bit();
            if fell & bit != 0 {
                self.reset_unit(unit);
                match self.units[unit].engine {
                    Engine::Copy0 => self.storage.clear(PCOPY.nth(0)),
                    Engine::Copy1 => self.storage.clear(PCOPY.nth(1)),
                    Engine::Graph => {
                        self.storage.clear(PGRAPH.first..PGRAPH.first + GRAPH_BYTES);
                        self.storage.clear(GPCS_BASE..GPCS_BASE + GPCS_BYTES);
                    }
                    Engine::Ppdec | Engine::Pppp | Engine::Pvld => {}
                }
            } else if rose & bit != 0 {
                self.enable_unit(unit);
            }
        }
    }
}
