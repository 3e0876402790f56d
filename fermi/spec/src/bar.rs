//! The memory regions that the card decodes, named by their number in PCI configuration space.
//!
//! Source: envytools `docs/hw/bus/bars.rst`. BAR5 (I/O ports, 128 bytes) shows registers once more; nothing here uses
//! it. BAR1 and BAR3 are 64-bit, so BAR2 and BAR4 are their upper halves.

/// A memory BAR of the card, be it the host's or the one that a guest sees.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Bar {
    /// Registers, with the windows PRAMIN and PROM among them.
    Bar0,
    /// VRAM through the address space of [`Bar1Block`](crate::regs::PbusReg::Bar1Block); the polling area of USERD lies
    /// in it.
    Bar1,
    /// Instance memory through the address space of [`Bar3Block`](crate::regs::PbusReg::Bar3Block).
    Bar3,
}

impl Bar {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Bar0, Self::Bar1, Self::Bar3];

    /// The index of its base address register, which is also the index of its VFIO region.
    pub const fn number(self) -> u32 {
        match self {
            Self::Bar0 => 0,
            Self::Bar1 => 1,
            Self::Bar3 => 3,
        }
    }

    /// The BAR with that index; `None` if the card decodes no memory by it.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|bar| bar.number() == number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_name_the_bars_that_decode_memory() {
        let bars = [0, 1, 2, 3, 4, 5, u32::MAX].map(Bar::from_number);
        let [bar0, bar1, bar3] = Bar::ALL.map(Some);
        assert_eq!(bars, [bar0, bar1, None, bar3, None, None, None]);
    }
}
