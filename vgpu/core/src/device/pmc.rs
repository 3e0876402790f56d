//! PMC of a guest's GPU: identification, unit enables, and the line at the end of the interrupt tree.

use fermi_spec::engine::{PBDMAS_PRESENT, pmc_enable};
use fermi_spec::regs::{PmcReg, pmc::LINE_HARDWARE};
use mmio::Storage;
use serde::{Deserialize, Serialize};

use super::effect::Effect;
use crate::inspect::{Inspect, Tree};

/// Lines of PMC; the first is the host's.
const LINES: usize = 3;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Pmc {
    boot0: u32,
    enable: u32,
    pbdma_enable: u32,
    line_enable: [u32; LINES],
    mask: [u32; LINES],
    /// What the line was when it was last looked at.
    was_up: bool,
}

impl Pmc {
    pub(crate) fn new(boot0: u32) -> Self {
        Self {
            boot0,
            enable: 0,
            pbdma_enable: 0,
            line_enable: [0; LINES],
            mask: [0; LINES],
            was_up: false,
        }
    }

    /// Units that are switched on.
    pub(super) fn enabled(&self) -> u32 {
        self.enable
    }

    fn is_up(&self, pending: u32) -> bool {
        self.line_enable[0] & LINE_HARDWARE != 0 && pending & self.mask[0] != 0
    }

    /// Whether the line rose since the last look.
    pub(crate) fn rose(&mut self, pending: u32) -> bool {
        let up = self.is_up(pending);
        let rose = up && !self.was_up;
        self.was_up = up;
        rose
    }

    /// A message is due again if the line is still up.
    pub(crate) fn rearm(&mut self) {
        self.was_up = false;
    }

    pub(crate) fn read(&self, reg: PmcReg, pending: impl Fn() -> u32, words: &Storage) -> u32 {
        let line = |lines: &[u32; LINES], i: u16| lines.get(usize::from(i)).copied().unwrap_or(0);
        match reg {
            PmcReg::Boot0 => self.boot0,
            // Little-endian, and it stays so.
            PmcReg::Endian => 0,
            PmcReg::PmcIntr(0) => pending(),
            // Nothing is sent to the other lines.
            PmcReg::PmcIntr(_) => 0,
            PmcReg::PmcIntrEnable(i) => line(&self.line_enable, i),
            PmcReg::PmcIntrLine(i) => u32::from(i == 0 && self.is_up(pending())),
            PmcReg::PmcIntrMask(i) => line(&self.mask, i),
            PmcReg::PmcEnable => self.enable,
            PmcReg::PbdmaEnable => self.pbdma_enable,
            PmcReg::Word(word) => words.load(word),
        }
    }

    pub(crate) fn write(&mut self, reg: PmcReg, value: u32, words: &mut Storage) -> Effect {
        let set = |lines: &mut [u32; LINES], i: u16| {
            if let Some(line) = lines.get_mut(usize::from(i)) {
                *line = value;
            }
        };
        match reg {
            PmcReg::PmcIntrEnable(i) => set(&mut self.line_enable, i),
            PmcReg::PmcIntrMask(i) => set(&mut self.mask, i),
            PmcReg::PmcEnable => {
                let fell = self.enable & !value;
                self.enable = value;
                if fell & pmc_enable::PFIFO != 0 {
                    return Effect::ResetFifo;
                }
            }
            PmcReg::PbdmaEnable => self.pbdma_enable = value & PBDMAS_PRESENT,
            PmcReg::Boot0 | PmcReg::Endian | PmcReg::PmcIntr(_) | PmcReg::PmcIntrLine(_) => {}
            PmcReg::Word(word) => words.store(word, value),
        }
        Effect::None
    }
}

impl Inspect for Pmc {
    fn inspect(&self, tree: &mut Tree<'_>) {
        tree.bits("units_enabled", self.enable);
        tree.bits("pbdmas_enabled", self.pbdma_enable);
        for (line, (&enable, &mask)) in self.line_enable.iter().zip(&self.mask).enumerate() {
            tree.group(format_args!("line_{line}"), |tree| {
                tree.bits("enabled", enable);
                tree.bits("let_through", mask);
            });
        }
        tree.flag("line_was_up", self.was_up);
    }
}
