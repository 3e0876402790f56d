//! PCLOCK: sources, dividers and PLLs of the clocks (nouveau `clk/gf100.c`).

use super::units::{UnitRange, unit};

/// Where PCLOCK is.
pub const PCLOCK: UnitRange = unit("PCLOCK", 0x13_0000, 0x1_0000);

/// The part of it that holds sources, dividers and PLLs.
pub const PCLOCK_PLLS: UnitRange = unit("PCLOCK", 0x13_2000, 0x6000);

registers! {
    /// Registers of PCLOCK, none of which anything else depends on.
    pub enum PclockReg {
        /// Clocks that come from their PLL.
        ClockPllSelect = 0x137100, ReadWrite;
        /// A clock's source.
        ClockSource[16, 4] = 0x137160, ReadWrite;
        /// A clock's divider before its PLL.
        ClockDivider[16, 4] = 0x1371d0, ReadWrite;
        /// A clock's divider behind it.
        ClockPostDivider[16, 4] = 0x137250, ReadWrite;
        /// Source of the memory clock.
        MemoryClockSource = 0x137300, ReadWrite;
        /// What the memory clock is made of.
        MemoryClockState = 0x1373f0, ReadWrite;
    }
}
