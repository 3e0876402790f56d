//! The L2 cache as far as a driver sees it: flushes that take no time, tags that need no clearing, and the table of
//! clear values ("zero-bandwidth clear").
//!
//! The model keeps no compression tags and caches nothing, so interrupts never come and whatever is asked for is done.

use crate::storage::Storage;
use fermi_spec::regs::{
    LtcReg,
    ltc::{SLICES_OF_AN_LTC, SLICES_SHIFT, SliceReg, ZBC_ENTRIES, ZBC_INDEX_MASK},
};

/// An entry of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct ClearValue {
    colour: [u32; 4],
    depth: u32,
}

/// The table of clear values, with its write position.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ltc {
    index: u32,
    table: [ClearValue; ZBC_ENTRIES],
}

impl Ltc {
    fn entry(&mut self) -> &mut ClearValue {
        &mut self.table[(self.index & ZBC_INDEX_MASK) as usize]
    }

    pub(crate) fn read(&mut self, reg: LtcReg, words: &Storage) -> u32 {
        match reg {
            LtcReg::LtcSlices => SLICES_OF_AN_LTC << SLICES_SHIFT,
            LtcReg::ZbcIndex => self.index,
            LtcReg::ZbcColour(word) => self.entry().colour[usize::from(word)],
            LtcReg::ZbcDepth => self.entry().depth,
            LtcReg::Word(word) => words.load(word),
        }
    }

    pub(crate) fn write(&mut self, reg: LtcReg, value: u32, words: &mut Storage) {
        match reg {
            LtcReg::LtcSlices => {}
            LtcReg::ZbcIndex => self.index = value,
            LtcReg::ZbcColour(word) => self.entry().colour[usize::from(word)] = value,
            LtcReg::ZbcDepth => self.entry().depth = value,
            // There are no tags to clear.
            LtcReg::Word(word) => words.store(word, value),
        }
    }

    /// Value of a slice's register: nothing is pending, nothing busy.
    pub(crate) fn read_slice(reg: SliceReg) -> u32 {
        match reg {
            SliceReg::SliceIntr | SliceReg::TagClearBusy => 0,
        }
    }

    pub(crate) fn write_slice(reg: SliceReg) {
        match reg {
            SliceReg::SliceIntr | SliceReg::TagClearBusy => {}
        }
    }
}
