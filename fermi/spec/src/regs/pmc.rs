//! Fields of PMC, host-flush and MMU registers.

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

/// TLB_INVALIDATE (100cbc): go.
pub const TLB_GO: u32 = 1 << 31;
/// TLB_INVALIDATE: all pages of the directory in TLB_DIRECTORY.
pub const TLB_ALL_PAGES: u32 = 1;
/// TLB_INVALIDATE: all directories.
pub const TLB_ALL_DIRECTORIES: u32 = 2;
/// TLB_INVALIDATE: hub TLBs only.
pub const TLB_HUB_ONLY: u32 = 4;

/// PMC_INTR_ENABLE: hardware sources drive the line.
pub const LINE_HARDWARE: u32 = 1;
/// POST1 (2240c): the initialisation scripts ran.
pub const POST_SCRIPTS_RAN: u32 = 1 << 1;
/// Strap value of a Quadro 6000 (read from a card by GPUvm): 27 MHz crystal.
pub const STRAPS: u32 = 0xb040_609a;
/// Second strap word of a Quadro 6000 (likewise).
pub const STRAPS2: u32 = 0x8003_b010;
/// POST0 (22400) after the VBIOS.
pub const POST0_AFTER_VBIOS: u32 = 0x0001_0000;
/// PCI_VERSION (2241c): PCI Express 2 at full speed.
pub const PCI_VERSION_2_FULL_SPEED: u32 = 0x81;
/// HOST_FLUSH (070000): a flush is pending or outstanding.
pub const FLUSH_BUSY: u32 = 3;

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
    /// Where it went.
    pub const ADDRESS: u32 = 0x00ff_fffc;
}
