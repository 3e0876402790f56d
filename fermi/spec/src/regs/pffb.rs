//! PFFB, the hub's way to memory with its MMU, and the memory partitions (nouveau `mmu/gf100.c`, `fb/gf100.c`).

use super::units::{UnitRange, unit, units};

/// Where PFFB is.
pub const PFFB: UnitRange = unit("PFFB", 0x10_0000, 0x1000);
/// Where all memory partitions are reached at once.
pub const PBFBS: UnitRange = unit("PBFBS", 0x10_f000, 0x1000);
/// Where the memory partitions are.
pub const PBFB: UnitRange = units("PBFB", 0x11_0000, 0x1000, 8, &[]);

registers! {
    /// Words of PFFB that nothing else depends on.
    pub enum PffbWord {
        /// Bus address >> 8 of the flush page.
        FlushPage = 0x100c10, ReadWrite;
        /// Single page to invalidate.
        TlbPage = 0x100cb4, ReadWrite;
        /// MMU debug control.
        MmuDebugControl = 0x100cc4, ReadWrite;
        /// MMU debug page for writes.
        MmuDebugWrite = 0x100cc8, ReadWrite;
        /// MMU debug page for reads.
        MmuDebugRead = 0x100ccc, ReadWrite;
    }
}

registers! {
    /// Registers of PFFB, its MMU, and of the memory partitions behind it.
    pub enum PffbReg: PffbWord {
        /// Configuration of the memory partitions.
        PartitionConfig = 0x100800, ReadOnly;
        /// MMU configuration and flush status.
        MmuConfig = 0x100c80, ReadWrite;
        /// Page directory to invalidate.
        TlbDirectory = 0x100cb8, ReadWrite;
        /// Invalidate: 31 go, 0 the directory's pages, 1 all directories, 2 hub only.
        TlbInvalidate = 0x100cbc, ReadWrite;
        /// MiB of a partition (older drivers).
        PartitionMebibytesOld = 0x10f20c, ReadOnly;
        /// MiB of a partition.
        PartitionMebibytes[PBFB.count, PBFB.bytes] = 0x11020c, ReadOnly;
    }
}

/// Memory partitions of a GF100.
pub const PARTITIONS_MAX: u32 = 6;
/// Value of MMU_CONFIG (100c80) besides the bits a driver wrote: the flush FIFO is empty and has space. A constant
/// satisfies nouveau, which waits for bits 15 and 23:16, and pscnv, which waits for the value it read before.
pub const MMU_CONFIG_READY: u32 = 0x00ff_8000;
/// Bits of MMU_CONFIG that a driver may set: bit 0 large-page size, bit 12 comptag width.
pub const MMU_CONFIG_STORED: u32 = 0x0000_1001;
/// MMU_CONFIG: large pages have 64 KiB.
pub const MMU_CONFIG_64K_PAGES: u32 = 1;
/// MMU_CONFIG: the flush FIFO is empty.
pub const MMU_CONFIG_FLUSHED: u32 = 1 << 15;
/// MMU_CONFIG: space in the flush FIFO.
pub const MMU_CONFIG_SPACE: u32 = 0xff << 16;

/// TLB_DIRECTORY (100cb8): address >> 12 of the directory, from this bit up; its aperture below.
pub const TLB_DIRECTORY_FRAME_SHIFT: u32 = 4;
/// TLB_INVALIDATE (100cbc): go.
pub const TLB_GO: u32 = 1 << 31;
/// TLB_INVALIDATE: all pages of the directory in TLB_DIRECTORY.
pub const TLB_ALL_PAGES: u32 = 1;
/// TLB_INVALIDATE: all directories.
pub const TLB_ALL_DIRECTORIES: u32 = 2;
/// TLB_INVALIDATE: hub TLBs only.
pub const TLB_HUB_ONLY: u32 = 4;
