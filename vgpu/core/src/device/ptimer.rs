//! PTIMER of a guest's GPU. Its time is the broker's and cannot be set; the alarm is remembered and never rings.

use fermi_spec::regs::PtimerReg;
use fermi_spec::regs::ptimer::{HIGH_MASK, LOW_MASK};
use mmio::Storage;
use serde::{Deserialize, Serialize};

use crate::event::Tick;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Ptimer;

impl Ptimer {
    /// Nanoseconds in steps of 32. The time does not stand still, as the edge's clock does not.
    pub(crate) fn read(&self, reg: PtimerReg, now: Tick, words: &Storage) -> u32 {
        match reg {
            PtimerReg::PtimerLow => now.0 as u32 & LOW_MASK,
            PtimerReg::PtimerHigh => (now.0 >> 32) as u32 & HIGH_MASK,
            PtimerReg::PtimerIntr => 0,
            PtimerReg::PtimerIntrEnable | PtimerReg::PtimerAlarm => words.load(reg),
            PtimerReg::Word(word) => words.load(word),
        }
    }

    pub(crate) fn write(&self, reg: PtimerReg, value: u32, words: &mut Storage) {
        match reg {
            PtimerReg::PtimerLow | PtimerReg::PtimerHigh | PtimerReg::PtimerIntr => {}
            PtimerReg::PtimerIntrEnable | PtimerReg::PtimerAlarm => words.store(reg, value),
            PtimerReg::Word(word) => words.store(word, value),
        }
    }
}
