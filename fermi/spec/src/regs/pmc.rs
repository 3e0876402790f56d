//! PMC: identification, interrupt lines, unit enables (nouveau `mc/gf100.c`, envytools PMC).
//!
//! The bits of units in the interrupt and enable words are in [`crate::engine`].

use super::units::{UnitRange, unit};

/// Where PMC is.
pub const PMC: UnitRange = unit("PMC", 0x00_0000, 0x1000);

registers! {
    /// Words of PMC that nothing else depends on.
    pub enum PmcWord {
        /// L2 partitions with an interrupt.
        PmcLtcIntr = 0x00017c, ReadOnly;
        /// Memory partitions with an interrupt.
        PmcPartitionIntr = 0x000180, ReadOnly;
        /// Second enable word.
        PmcEnable2 = 0x000208, ReadWrite;
        /// Written around microcode loads.
        PmcUnknown260 = 0x000260, ReadWrite;
        /// Newer identification (NEW_ID), which GF100 has not.
        NewId = 0x000a00, ReadOnly;
    }
}

registers! {
    /// Registers of PMC: identification, interrupts, unit enables.
    pub enum PmcReg: PmcWord {
        /// Chip and revision (PMC_BOOT_0).
        Boot0 = 0x000000, ReadOnly;
        /// Byte order; bit 0 clear is little-endian.
        Endian = 0x000004, ReadWrite;
        /// Pending units, one word a line: 0 host (stall), 1 non-stall, 2 PMU.
        PmcIntr[3, 4] = 0x000100, ReadOnly;
        /// Line enable: bit 0 hardware, bit 1 software.
        PmcIntrEnable[3, 4] = 0x000140, ReadWrite;
        /// State of the interrupt lines.
        PmcIntrLine[3, 4] = 0x000160, ReadOnly;
        /// Unit enables (engine and unit bits in [`crate::engine`]).
        PmcEnable = 0x000200, ReadWrite;
        /// PBDMA enables; three bits stick.
        PbdmaEnable = 0x000204, ReadWrite;
        /// Mask of units let through to a line.
        PmcIntrMask[3, 4] = 0x000640, ReadWrite;
    }
}

/// PMC_INTR_ENABLE: hardware sources drive the line.
pub const LINE_HARDWARE: u32 = 1;
/// PMC_INTR_ENABLE: bits that the register has, for hardware and software sources.
pub const LINE_STORED: u32 = 3;
