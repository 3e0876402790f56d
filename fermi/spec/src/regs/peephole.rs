//! PEEPHOLE: a window of one word into an address space (envytools `gf100_peephole.xml`).

use super::units::{UnitRange, unit};

/// Where PEEPHOLE is; its instance block is set in PBUS.
pub const PEEPHOLE: UnitRange = unit("PEEPHOLE", 0x06_0000, 0x1000);

registers! {
    /// Registers of PEEPHOLE, which shows one word of an address space.
    pub enum PeepholeReg {
        /// PEEPHOLE instance block.
        PeepholeBlock = 0x001718, ReadWrite;
        /// Virtual address bits 39:32.
        PeepholeHigh = 0x06000c, ReadWrite;
        /// Virtual address bits 31:0.
        PeepholeLow = 0x060010, ReadWrite;
        /// Data; the address advances by 4.
        PeepholeData = 0x060014, ReadWrite;
    }
}

/// PEEPHOLE_HIGH (6000c): bits of the address that the register has.
pub const HIGH_MASK: u32 = 0xff;
