//! The L2 cache as far as a driver sees it: flushes that take no time, tags that need no clearing, and the table of
//! clear values ("zero-bandwidth clear").
//!
//! The model keeps no compression tags and caches nothing, so interrupts never come and whatever is asked for is done.

use fermi_spec::regs::{
    Bar0Reg, LtcReg, LtcWord,
    ltc::{SLICES_SHIFT, SliceReg, ZBC_ENTRIES, ZBC_INDEX_MASK},
};

/// Slices of an LTC. unverified: 2 of 64 KiB make the 768 KiB of the data sheet.
const SLICES: u32 = 2;

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

    pub(crate) fn read(&mut self, reg: Bar0Reg) -> Option<u32> {
        Some(match reg {
            Bar0Reg::Ltc(LtcReg::LtcSlices) => SLICES << SLICES_SHIFT,
            // Writing it clears tags, of which there are none.
            Bar0Reg::Ltc(LtcReg::Word(LtcWord::LtcTagClear)) => 0,
            Bar0Reg::Ltc(LtcReg::ZbcIndex) => self.index,
            Bar0Reg::Ltc(LtcReg::ZbcColour(word)) => *self.entry().colour.get(usize::from(word))?,
            Bar0Reg::Ltc(LtcReg::ZbcDepth) => self.entry().depth,
            _ => return None,
        })
    }

    /// Whether the register belongs to the L2 cache.
    pub(crate) fn write(&mut self, reg: Bar0Reg, value: u32) -> bool {
        match reg {
            Bar0Reg::Ltc(LtcReg::LtcSlices) | Bar0Reg::Ltc(LtcReg::Word(LtcWord::LtcTagClear)) => {}
            Bar0Reg::Ltc(LtcReg::ZbcIndex) => self.index = value,
            Bar0Reg::Ltc(LtcReg::ZbcColour(word)) => {
                if let Some(colour) = self.entry().colour.get_mut(usize::from(word)) {
                    *colour = value;
                }
            }
            Bar0Reg::Ltc(LtcReg::ZbcDepth) => self.entry().depth = value,
            _ => return false,
        }
        true
    }

    /// Value of a slice's register: nothing is pending, nothing busy.
    pub(crate) fn slice(reg: SliceReg) -> u32 {
        match reg {
            SliceReg::SliceIntr | SliceReg::TagClearBusy => 0,
        }
    }
}
