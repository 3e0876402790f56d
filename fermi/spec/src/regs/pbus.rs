//! PBUS: failed accesses, and where the windows of BAR0, BAR1 and BAR3 point (envytools PBUS).

use super::units::{UnitRange, unit};

/// Where PBUS is, but for the failed access, which is among the registers of PTIMER.
pub const PBUS: UnitRange = unit("PBUS", 0x00_1000, 0x1000);

registers! {
    /// Registers of PBUS: failed accesses, and where the windows of BAR0, BAR1 and BAR3 point.
    pub enum PbusReg {
        /// Pending bus errors, a bit for each kind.
        PbusIntr = 0x001100, WriteOneClears;
        /// Bus error enables, host line.
        PbusIntrEnable = 0x001140, ReadWrite;
        /// Bus error enables, non-stall line.
        PbusIntrEnableNonStall = 0x001144, ReadWrite;
        /// PRAMIN window base.
        PraminBase = 0x001700, ReadWrite;
        /// BAR1 instance block.
        Bar1Block = 0x001704, ReadWrite;
        /// BAR3 instance block.
        Bar3Block = 0x001714, ReadWrite;
        /// Failed access: address.
        PbusErrorAddress = 0x009084, ReadWrite;
        /// Failed access: data.
        PbusErrorData = 0x009088, ReadOnly;
    }
}

/// Bits of PBUS_INTR (1100).
pub mod bus_intr {
    /// An access to a unit that PMC_ENABLE keeps off.
    pub const SQUASHED: u32 = 1 << 1;
}

/// Fields of PBUS_ERROR_ADDRESS (9084).
pub mod bus_error {
    /// There is something to read.
    pub const VALID: u32 = 1;
    /// The access was a write; its data is in PBUS_ERROR_DATA.
    pub const WRITE: u32 = 1 << 1;
    /// BAR0 offset of the access.
    pub const ADDRESS: u32 = 0x00ff_fffc;
}
