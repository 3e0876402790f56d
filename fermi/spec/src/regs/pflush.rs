//! Flushes of host writes and of the L2 cache (nouveau `bar/gf100.c`, envytools PFLUSH).

use super::units::{UnitRange, unit};

/// Where the flushes are.
pub(crate) const PFLUSH: UnitRange = unit("PFLUSH", 0x07_0000, 0x1000);

registers! {
    /// Flushes of host writes and of the L2 cache.
    pub enum PflushReg {
        /// BAR writes to memory; bits 0–1 while running.
        HostFlush = 0x070000, ReadWrite;
        /// L2: invalidate system-memory lines.
        L2InvalidateSysram = 0x070004, ReadWrite;
        /// L2: invalidate peer lines.
        L2InvalidatePeer = 0x070008, ReadWrite;
        /// L2: clean compression tags.
        L2CleanTags = 0x07000c, ReadWrite;
        /// L2: flush dirty lines.
        L2FlushDirty = 0x070010, ReadWrite;
    }
}

/// HOST_FLUSH (070000): a flush is pending or outstanding.
pub const FLUSH_BUSY: u32 = 3;
