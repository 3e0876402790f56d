//! Fields of the engines' registers (nouveau `nvkm/falcon.c`, `engine/ce/gf100.c`, `gr/gf100.c`; envytools).

/// Bits of COPY_INTR (104008).
pub mod copy_intr {
    /// The microcode halted.
    pub const HALTED: u32 = 1 << 4;
    /// Dispatch error: code in COPY_ERROR, data in COPY_ERROR_DATA.
    pub const DISPATCH: u32 = 1 << 6;
    /// A copy has ended that asked for an interrupt and waits for its acknowledgement (envytools `pcopy.xml`).
    pub const COPY_BLOCK: u32 = 1 << 10;
    /// A copy has ended that asked for an interrupt and does not wait.
    pub const COPY_NONBLOCK: u32 = 1 << 11;
    /// What nouveau's microcode lets through to the host: all but its own two, methods and channel switches
    /// (`ce/fuc/com.fuc`).
    pub const ROUTE: u32 = 0xfff3;
}

/// Code in COPY_ERROR (104040) \[15:0\]; \[31:16\] holds method >> 2 | subchannel << 11.
pub mod copy_error {
    /// No such method.
    pub const ILLEGAL_METHOD: u32 = 1;
    /// A value that cannot be.
    pub const INVALID_VALUE: u32 = 0x4;
    /// A value that is none of its enumeration.
    pub const INVALID_ENUM: u32 = 2;
    /// A reserved bit is set.
    pub const INVALID_BITFIELD: u32 = 3;
}

/// Value of COPY_CAPS (104108): 0x12 code pages, 8 data pages, FIFO of 16, 8 slots (envytools `fifo/pcopy.rst`).
pub const COPY_CAPS: u32 = 0x2040_1012;
/// Value of COPY_VERSION (10412c): falcon version 3.
pub const COPY_VERSION: u32 = 3;

/// Codes in GRAPH_DATA_ERROR (400110), from nouveau's `nv50_data_error_names`.
pub mod graph_data_error {
    /// A value that cannot be.
    pub const INVALID_VALUE: u32 = 0x4;
    /// A value that is none of its enumeration.
    pub const INVALID_ENUM: u32 = 0x5;
    /// A reserved bit is set.
    pub const INVALID_BITFIELD: u32 = 0xc;
    /// A copy reaches beyond the layers of its surface (envytools `g80_defs.xml`: M2MF at least).
    pub const Z_OUT_OF_BOUNDS: u32 = 0x21;
    /// A copy reaches beyond the lines of its surface, or beyond their ends (envytools likewise).
    pub const XY_OUT_OF_BOUNDS: u32 = 0x23;
}

/// Bytes of a message ring of the PMU: \[31:16\] of PMU_COMMAND_RING and PMU_MESSAGE_RING (10a4d0, 10a4dc), whose
/// \[15:0\] is the place in data memory (nouveau `pmu/gt215.c`).
pub const PMU_RING_BYTES: u32 = 0x80;
/// Where the microcode's ring of commands is in data memory. Any place does: nothing is sent at probe.
pub const PMU_COMMAND_RING: u32 = 0x400;
/// Where its ring of messages to the host is.
pub const PMU_MESSAGE_RING: u32 = 0x480;
