//! PMC's interrupt tree and the message it ends in.
//!
//! ```text
//!   unit & its enable ─► PMC_INTR ─& mask─► line enabled (000140) ─► line ─► one MSI, then silence until 088704
//! ```

use crate::model::FermiModel;
use fermi_spec::{
    engine::{Engine, pmc_intr},
    regs::{
        pbus::{bus_error, bus_intr},
        pmc::LINE_HARDWARE,
    },
};

/// Lines to the host: stall and non-stall. The third goes to the PMU.
const HOST_LINES: usize = 2;
/// The third line.
const PMU_LINE: usize = 2;

/// State of the tree.
#[derive(Clone, Debug)]
pub(crate) struct Interrupts {
    pub(crate) enable: [u32; 3],
    /// Units that each line lets through. assumption: all after a reset; nouveau sets them one by one.
    pub(crate) mask: [u32; 3],
    /// Value of PBUS_INTR (001100).
    pub(crate) bus: u32,
    pub(crate) bus_enable: u32,
    pub(crate) bus_enable_nonstall: u32,
    /// Value of PBUS_ERROR_ADDRESS (009084).
    pub(crate) bus_error_address: u32,
    /// Value of PBUS_ERROR_DATA (009088).
    pub(crate) bus_error_data: u32,
    /// The next rise of the line sends a message.
    armed: bool,
    was_high: bool,
    pending_message: bool,
}

impl Interrupts {
    pub(crate) fn new() -> Self {
        Self {
            enable: [0; 3],
            mask: [u32::MAX; 3],
            bus: 0,
            bus_enable: 0,
            bus_enable_nonstall: 0,
            bus_error_address: 0,
            bus_error_data: 0,
            armed: true,
            was_high: false,
            pending_message: false,
        }
    }

    /// Takes the message that was sent, if there was one.
    pub(crate) fn take_message(&mut self) -> bool {
        std::mem::take(&mut self.pending_message)
    }
}

impl FermiModel {
    /// PMC_INTR of a line: units with an enabled interrupt.
    pub(crate) fn pmc_interrupts(&self, line: usize) -> u32 {
        let on = |condition: bool, bit: u32| if condition { bit } else { 0 };
        let pfifo = self.pfifo.interrupts(self.pbdma_sources());
        match line {
            // The units let the PMU know of the same.
            0 | PMU_LINE => {
                let engines = self.units.iter().fold(0, |mask, unit| {
                    mask | on(unit.interrupts() != 0, 1 << unit.engine.interrupt_bit())
                });
                engines
                    | on(pfifo & self.pfifo.intr_enable != 0, pmc_intr::PFIFO)
                    | on(self.pmu.is_interrupting(), pmc_intr::PMU)
                    | on(self.clock.intr & self.clock.intr_enable != 0, pmc_intr::PTIMER)
                    | on(
                        self.interrupts.bus & self.interrupts.bus_enable != 0,
                        pmc_intr::PBUS,
                    )
            }
            1 => {
                on(pfifo & self.pfifo.intr_enable_nonstall != 0, pmc_intr::PFIFO)
                    | on(
                        self.interrupts.bus & self.interrupts.bus_enable_nonstall != 0,
                        pmc_intr::PBUS,
                    )
            }
            _ => 0,
        }
    }

    /// Whether a line is asserted.
    pub(crate) fn pmc_line(&self, line: usize) -> bool {
        self.interrupts.enable[line] & LINE_HARDWARE != 0
            && self.pmc_interrupts(line) & self.interrupts.mask[line] != 0
    }

    pub(crate) fn is_line_high(&self) -> bool {
        (0..HOST_LINES).any(|line| self.pmc_line(line))
    }

    /// Sends a message if the line rose. Called at the end of everything that may have raised it.
    pub(crate) fn update_line(&mut self) {
        let high = self.is_line_high();
        if high && !self.interrupts.was_high {
            self.send_message();
        }
        self.interrupts.was_high = high;
    }

    /// MSI_REARM was written: a line that is still high sends again.
    ///
    /// unverified: that a rise without this write before it sends nothing; nouveau always writes it.
    pub(crate) fn rearm(&mut self) {
        self.interrupts.armed = true;
        if self.is_line_high() {
            self.send_message();
        }
    }

    fn send_message(&mut self) {
        if !self.interrupts.armed {
            return;
        }
        self.interrupts.armed = false;
        if crate::faults::take(&mut self.faults.lost_interrupts) {
            return;
        }
        self.interrupts.pending_message = true;
        self.mem.counters.interrupts += 1;
    }

    /// Records an access to a unit that PMC_ENABLE keeps off, unless another record is still there.
    ///
    /// unverified: which of several failed accesses is shown; here the first until a driver clears PBUS_ERROR_ADDRESS.
    pub(crate) fn raise_squashed_access(&mut self, offset: u32, written: Option<u32>) {
        self.interrupts.bus |= bus_intr::SQUASHED;
        if self.interrupts.bus_error_address & bus_error::VALID == 0 {
            let write = if written.is_some() { bus_error::WRITE } else { 0 };
            self.interrupts.bus_error_address = offset & bus_error::ADDRESS | write | bus_error::VALID;
            self.interrupts.bus_error_data = written.unwrap_or(0);
        }
    }

    /// Value of ENGINE_FAULT: engines stopped by a fault.
    pub(crate) fn faulted_engines(&self) -> u32 {
        let faulted = self.units.iter().filter(|unit| unit.faulted);
        faulted.fold(0, |mask, unit| mask | 1 << unit.engine.number())
    }

    /// Acknowledges engine faults, as a write of ENGINE_FAULT does.
    pub(crate) fn recover_engines(&mut self, mask: u32) {
        for unit in 0..self.units.len() {
            let engine: Engine = self.units[unit].engine;
            if mask & 1 << engine.number() != 0 {
                self.recover_unit(unit);
            }
        }
    }
}
