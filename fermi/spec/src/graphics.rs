//! Methods of the classes on PGRAPH: what all have, 3D (9097) and compute (90c0).
//!
//! Sources: NVIDIA's `cl9097.h`, `cl90c0.h` and `cl902d.h`; envytools `rnndb/graph/gf100_3d.xml` and
//! `gf100_compute.xml`. 2D and M2MF have modules of their own.

/// Methods that every class on PGRAPH has.
pub mod front_end {
    /// Nothing; a notification that was asked for is written.
    pub const NO_OPERATION: u16 = 0x100;
    /// Notification address bits 39:32; the low word follows.
    pub const NOTIFY_HIGH: u16 = 0x104;
    /// Notification address bits 31:0.
    pub const NOTIFY_LOW: u16 = 0x108;
    /// Asks for a notification; see [`NOTIFY_AWAKEN`].
    pub const NOTIFY: u16 = 0x10c;
    /// NOTIFY: write it, then interrupt.
    pub const NOTIFY_AWAKEN: u32 = 1;
    /// Waits until nothing runs.
    pub const WAIT_FOR_IDLE: u16 = 0x110;
    /// Where the next word of macro code goes, in words.
    pub const MACRO_CODE_POINTER: u16 = 0x114;
    /// A word of macro code; the pointer moves on.
    pub const MACRO_CODE: u16 = 0x118;
    /// Which macro's start is set next.
    pub const MACRO_START_POINTER: u16 = 0x11c;
    /// Start of a macro, in words; the pointer moves on.
    pub const MACRO_START: u16 = 0x120;
    /// What becomes of methods and of the values that macros read, \[1:0\] (NV9097_SET_MME_SHADOW_RAM_CONTROL).
    pub const SHADOW_CONTROL: u16 = 0x124;
    /// SHADOW_CONTROL: methods have effect, and their data is kept for macros to read.
    pub const SHADOW_TRACK: u32 = 0;
    /// SHADOW_CONTROL: methods have effect with the data that was kept, not with their own.
    pub const SHADOW_REPLAY: u32 = 3;
    /// First of the words that macros and drivers keep values in; the same for all classes.
    pub const MACRO_SCRATCH: u16 = 0x3400;
    /// First macro call: each macro has two methods, one that starts it and one for further parameters.
    pub const MACRO_CALL: u16 = 0x3800;
}

/// Bytes of a notification: time in nanoseconds (8), information (4), status (4, zero is success).
pub const NOTIFICATION_BYTES: usize = 16;

/// Methods that 3D and compute share.
pub mod shader {
    /// nouveau's software method (shader exceptions); no such method in hardware.
    pub const SOFTWARE_EXCEPTIONS: u16 = 0x1528;
    /// Report semaphore address bits 39:32; the low word follows.
    pub const REPORT_HIGH: u16 = 0x1b00;
    /// Payload: the value that a release writes or an acquire compares with.
    pub const REPORT_PAYLOAD: u16 = 0x1b08;
    /// Performs the operation of its operand, see [`super::ReportSemaphore`].
    pub const REPORT: u16 = 0x1b0c;
    /// Bytes of the constant buffer that the next methods are about.
    pub const CONSTANT_BYTES: u16 = 0x2380;
    /// Its address, bits 39:32; the low word follows.
    pub const CONSTANT_HIGH: u16 = 0x2384;
    /// Offset in it of the next word, \[15:0\].
    pub const CONSTANT_OFFSET: u16 = 0x238c;
    /// A word for it; the offset moves on. Sixteen methods that do the same.
    pub const CONSTANT_DATA: u16 = 0x2390;
    /// Last of the sixteen CONSTANT_DATA methods.
    pub const CONSTANT_DATA_LAST: u16 = 0x23cc;
}

/// Methods of 3D alone.
pub mod threed {
    /// First of the firmware methods, which PGRAPH's context-switching microcode executes.
    pub const FIRMWARE: u16 = 0x2300;
    /// Last of the firmware methods.
    pub const FIRMWARE_LAST: u16 = 0x237c;
}

/// Methods of compute alone.
pub mod compute {
    /// Bytes of local memory of a lane from address 0 up, \[19:0\].
    pub const LOCAL_POSITIVE: u16 = 0x204;
    /// Bytes of local memory of a lane below the end of its addresses, \[19:0\].
    pub const LOCAL_NEGATIVE: u16 = 0x208;
    /// Bytes of control stack of a warp, \[19:0\].
    pub const STACK_BYTES: u16 = 0x20c;
    /// Generic address of the shared window; the low 24 bits do not count.
    pub const SHARED_WINDOW: u16 = 0x214;
    /// Blocks of the grid: x \[15:0\], y \[31:16\]; z in the next method.
    pub const GRID_XY: u16 = 0x238;
    /// Blocks of the grid: z \[15:0\].
    pub const GRID_Z: u16 = 0x23c;
    /// Bytes of shared memory of a block, \[17:0\].
    pub const SHARED_BYTES: u16 = 0x24c;
    /// Threads of a block.
    pub const THREADS: u16 = 0x250;
    /// Barriers of a block, \[4:0\].
    pub const BARRIERS: u16 = 0x254;
    /// In front of a launch; operand 0.
    pub const GRID_BEGIN: u16 = 0x29c;
    /// Registers of a lane, \[7:0\].
    pub const REGISTERS: u16 = 0x2c0;
    /// 0: the table of [`GLOBAL_ENTRY`] is being written; 1: it is in force.
    pub const GLOBAL_TABLE: u16 = 0x2c4;
    /// What address bits 39:32 of a global access become, see [`super::GlobalEntry`]; 256 entries by index.
    pub const GLOBAL_ENTRY: u16 = 0x2c8;
    /// How an SM's 64 KiB are divided, see [`CACHE_SPLIT_48K_SHARED`].
    pub const CACHE_SPLIT: u16 = 0x308;
    /// CACHE_SPLIT: 48 KiB shared memory, 16 KiB L1.
    pub const CACHE_SPLIT_48K_SHARED: u32 = 3;
    /// Behind a launch; operand 1. No known name.
    pub const GRID_DONE: u16 = 0x360;
    /// Gives a sampler's slot an entry of the pool, see [`super::BindSampler`].
    pub const BIND_SAMPLER: u16 = 0x228;
    /// Gives a texture's slot an entry of the pool, see [`super::BindTexture`].
    pub const BIND_TEXTURE: u16 = 0x22c;
    /// Starts a grid.
    pub const LAUNCH: u16 = 0x368;
    /// Operand of LAUNCH that drivers use; programs can read it.
    pub const LAUNCH_OPERAND: u32 = 0x1000;
    /// Threads of a block: x \[15:0\], y \[31:16\]; z in the next method.
    pub const BLOCK_XY: u16 = 0x3ac;
    /// Threads of a block: z \[15:0\].
    pub const BLOCK_Z: u16 = 0x3b0;
    /// Entry point, in bytes from the code's address.
    pub const ENTRY: u16 = 0x3b4;
    /// Generic address of the local window; the low 24 bits do not count.
    pub const LOCAL_WINDOW: u16 = 0x77c;
    /// A number for the programs of a grid.
    pub const GRID_ID: u16 = 0x780;
    /// Memory behind local memory, address bits 39:32; the low word follows.
    pub const TEMP_HIGH: u16 = 0x790;
    /// Its bytes, bits 39:32; the low word follows. A multiple of [`TEMP_BYTES_UNIT`].
    pub const TEMP_BYTES_HIGH: u16 = 0x798;
    /// Unit of the bytes behind local memory.
    pub const TEMP_BYTES_UNIT: u64 = 0x2_0000;
    /// Bytes of it for each warp; 0 lets the hardware choose.
    pub const TEMP_PER_WARP: u16 = 0x7a0;
    /// Behind a launch; operand 0.
    pub const GRID_END: u16 = 0xa04;
    /// Between GRID_BEGIN and LAUNCH; operand 0. No known name.
    pub const GRID_READY: u16 = 0xa08;
    /// Depth of counted calls as a power of two; 15 is no limit.
    pub const CALL_LIMIT: u16 = 0xd64;
    /// Empties all slots, see [`super::UnbindAll`].
    pub const UNBIND_ALL: u16 = 0x10f4;
    /// Pool of samplers, address bits 39:32; the low word and the highest entry's number follow.
    pub const SAMPLER_POOL_HIGH: u16 = 0x155c;
    /// Pool of texture headers, address bits 39:32; the low word and the highest entry's number follow.
    pub const TEXTURE_POOL_HIGH: u16 = 0x1574;
    /// First method of surface 0, see [`super::surface`].
    pub const SURFACES: u16 = 0x2700;
    /// Bytes of methods from one surface to the next.
    pub const SURFACE_STEP: u16 = 0x20;
    /// Code address bits 39:32; the low word follows.
    pub const CODE_HIGH: u16 = 0x1608;
    /// Binds the constant buffer of CONSTANT_BYTES to a bank, see [`super::BindConstants`].
    pub const BIND_CONSTANTS: u16 = 0x1694;
    /// Caches to flush, see [`super::ShaderCaches`].
    pub const FLUSH_CACHES: u16 = 0x1698;
    /// First of the firmware methods, which PGRAPH's context-switching microcode executes.
    pub const FIRMWARE: u16 = 0x500;
    /// Last of the firmware methods.
    pub const FIRMWARE_LAST: u16 = 0x57c;

    /// All methods below the macro calls (`cl90c0.h`; the sizes of its arrays from envytools).
    #[rustfmt::skip]
    pub const METHODS: &super::Methods = &[
        (0x100, 0x124),
        (0x130, 0x140),
        (0x150, 0x154),
        (0x204, 0x214),
        (0x21c, 0x21c),
        (0x228, 0x23c),
        (0x244, 0x244),
        (0x24c, 0x254),
        (0x28c, 0x28c),
        (0x29c, 0x2a0),
        (0x2c0, 0x2c8),
        (0x308, 0x30c),
        (0x360, 0x360),
        (0x368, 0x36c),
        (0x3ac, 0x3b4),
        (0x500, 0x57c),
        (0x758, 0x758),
        (0x77c, 0x780),
        (0x790, 0x7a0),
        (0xa04, 0xa08),
        (0xd64, 0xd64),
        (0xd94, 0xd94),
        (0xde4, 0xde4),
        (0xf44, 0xf50),
        (0x1004, 0x1004),
        (0x1040, 0x106c),
        (0x10f4, 0x10f4),
        (0x1234, 0x1234),
        (0x1288, 0x1288),
        (0x12ac, 0x12ac),
        (0x1330, 0x1338),
        (0x1354, 0x1354),
        (0x1424, 0x1424),
        (0x1524, 0x1528),
        (0x1550, 0x1564),
        (0x1574, 0x157c),
        (0x1608, 0x160c),
        (0x1664, 0x1664),
        (0x1690, 0x1698),
        (0x1930, 0x1930),
        (0x1944, 0x1944),
        (0x1a2c, 0x1a3c),
        (0x1b00, 0x1b0c),
        (0x2380, 0x23cc),
        (0x2700, 0x2714),
        (0x2720, 0x2734),
        (0x2740, 0x2754),
        (0x2760, 0x2774),
        (0x2780, 0x2794),
        (0x27a0, 0x27b4),
        (0x27c0, 0x27d4),
        (0x27e0, 0x27f4),
        (0x335c, 0x33dc),
        (0x3400, 0x37fc),
    ];
}

/// Methods of a class: runs of words as (first, last), ascending.
pub type Methods = [(u16, u16)];

/// Whether a class has a method.
pub fn has_method(methods: &Methods, method: u16) -> bool {
    let after = methods.partition_point(|(first, _)| *first <= method);
    after
        .checked_sub(1)
        .is_some_and(|index| method <= methods[index].1)
}

/// Methods of a surface that shaders load and store, from its first one on.
pub mod surface {
    /// Surfaces there are.
    pub const COUNT: u16 = 8;
    /// Address bits 39:32; the low word follows.
    pub const ADDRESS_HIGH: u16 = 0x00;
    /// Texels of a line; of a pitch surface bytes (as nouveau sets it).
    pub const WIDTH: u16 = 0x08;
    /// Number of lines and layout, see [`super::SurfaceHeight`].
    pub const HEIGHT: u16 = 0x0c;
    /// Kind of surface and its texels, see [`super::SurfaceFormat`].
    pub const FORMAT: u16 = 0x10;
    /// Block size, without depth.
    pub const BLOCK_SIZE: u16 = 0x14;
}

/// Operand of a surface's HEIGHT.
#[bitfield_struct::bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct SurfaceHeight {
    /// Number of lines.
    #[bits(17)]
    pub lines: u32,
    #[bits(3)]
    __: u8,
    /// Pitch, not block-linear.
    pub is_pitch: bool,
    #[bits(11)]
    __: u16,
}

/// Operand of a surface's FORMAT.
#[bitfield_struct::bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct SurfaceFormat {
    /// The format is that of a depth surface.
    pub is_zeta: bool,
    #[bits(3)]
    __: u8,
    /// Color format, see [`crate::twod::Format`]; 0: no surface.
    #[bits(8)]
    pub color: u8,
    /// Depth format, meant if [`Self::is_zeta`].
    #[bits(5)]
    pub zeta: u8,
    #[bits(15)]
    __: u16,
}

/// Operand of BIND_TEXTURE.
#[bitfield_struct::bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct BindTexture {
    /// Bound; otherwise the slot is empty.
    pub valid: bool,
    /// Number of the texture's slot.
    pub slot: u8,
    /// Number of the entry in the pool of headers.
    #[bits(22)]
    pub entry: u32,
    __: bool,
}

/// Operand of BIND_SAMPLER.
#[bitfield_struct::bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct BindSampler {
    /// Bound; otherwise the slot is empty.
    pub valid: bool,
    #[bits(3)]
    __: u8,
    /// Number of the sampler's slot.
    pub slot: u8,
    /// Number of the entry in the pool of samplers.
    #[bits(13)]
    pub entry: u32,
    #[bits(7)]
    __: u8,
}

/// Operand of UNBIND_ALL.
#[bitfield_struct::bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct UnbindAll {
    /// Empties all texture slots.
    pub textures: bool,
    #[bits(3)]
    __: u8,
    /// Empties all sampler slots.
    pub samplers: bool,
    #[bits(3)]
    __: u8,
    /// Unbinds all constant banks.
    pub constants: bool,
    #[bits(23)]
    __: u32,
}

/// Operand of BIND_CONSTANTS of compute.
#[bitfield_struct::bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct BindConstants {
    /// Bound; otherwise the bank is empty.
    pub valid: bool,
    #[bits(7)]
    __: u8,
    /// Number of the bank.
    #[bits(5)]
    pub bank: u8,
    #[bits(19)]
    __: u32,
}

/// Operand of GLOBAL_ENTRY of compute.
#[bitfield_struct::bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct GlobalEntry {
    /// Number of the entry: address bits 39:32 that a program uses.
    pub index: u8,
    #[bits(8)]
    __: u8,
    /// The new address bits 39:32.
    pub high: u8,
    #[bits(6)]
    __: u8,
    /// Loads are allowed. Which of the two bits is which is not known; drivers set both.
    pub readable: bool,
    /// Stores are allowed.
    pub writable: bool,
}

/// Operand of FLUSH_CACHES of compute.
#[bitfield_struct::bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct ShaderCaches {
    /// Cache of code.
    pub code: bool,
    #[bits(3)]
    __: u8,
    /// L1, the cache of data.
    pub data: bool,
    #[bits(3)]
    __: u8,
    /// Cache of uniform loads.
    pub uniform: bool,
    #[bits(3)]
    __: u8,
    /// Cache of constant banks.
    pub constants: bool,
    #[bits(19)]
    __: u32,
}

/// Operand of REPORT. Compute has fewer fields: operations 0 and 3, flush, awaken, size.
#[bitfield_struct::bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct ReportSemaphore {
    /// Number of a [`ReportOperation`].
    #[bits(2)]
    pub operation: u8,
    /// Without flushing caches before.
    pub flush_disable: bool,
    __: bool,
    /// Release after preceding writes, not reads.
    pub after_writes: bool,
    /// Which of a report's counters.
    #[bits(3)]
    pub sub_report: u8,
    /// Acquire before following reads, not writes.
    pub before_reads: bool,
    #[bits(3)]
    __: u8,
    /// Where in the pipeline it happens.
    #[bits(4)]
    pub location: u8,
    /// Acquire: memory at least the payload (signed difference), not equal.
    pub at_least: bool,
    #[bits(3)]
    __: u8,
    /// Interrupt when done.
    pub awaken: bool,
    /// Which word of the counter a one-word report writes.
    pub high_word: bool,
    __: bool,
    /// Which counter, see [`report`].
    #[bits(5)]
    pub report: u8,
    /// One word instead of four.
    pub one_word: bool,
    #[bits(3)]
    __: u8,
}

/// Operation of REPORT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReportOperation {
    /// Write payload, zero and time, or the payload alone.
    Release,
    /// Wait until memory compares.
    Acquire,
    /// Write a counter and the time.
    Report,
    /// Release and interrupt the host.
    Trap,
}

impl ReportSemaphore {
    /// The operation; total.
    pub fn op(self) -> ReportOperation {
        match self.operation() {
            0 => ReportOperation::Release,
            1 => ReportOperation::Acquire,
            2 => ReportOperation::Report,
            _ => ReportOperation::Trap,
        }
    }
}

/// Counters of REPORT that are 32 bits wide: the report is payload, counter, time. The others are 64 bits wide: counter,
/// time (envytools; Mesa waits for the payload of these).
pub mod report {
    /// No counter: zero.
    pub const NONE: u8 = 0x00;
    /// Samples that passed.
    pub const SAMPLES: u8 = 0x02;
    /// Bytes written by transform feedback.
    pub const STREAMED_BYTES: u8 = 0x1a;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_methods_are_in_order() {
        for methods in [compute::METHODS, crate::twod::method::METHODS] {
            assert!(
                methods
                    .iter()
                    .all(|(first, last)| first <= last && (first | last) & 3 == 0)
            );
            assert!(methods.windows(2).all(|pair| pair[0].1 < pair[1].0));
        }
    }

    #[test]
    fn method_between_two_runs_does_not_exist() {
        let found = [0x100, 0x124, 0x128, 0x368, 0x5fc, 0x37fc].map(|m| has_method(compute::METHODS, m));
        assert_eq!(found, [true, true, false, true, false, true]);
    }

    /// What Mesa sends for a fence, a sample counter and a time stamp.
    #[test]
    fn operands_of_mesa_decode() {
        let fence = ReportSemaphore::from_bits(0x1000_f010);
        assert_eq!((fence.op(), fence.one_word()), (ReportOperation::Release, true));
        let samples = ReportSemaphore::from_bits(0x0100_f002);
        assert_eq!(
            (samples.op(), samples.report()),
            (ReportOperation::Report, report::SAMPLES)
        );
        let time = ReportSemaphore::from_bits(0x0000_5002);
        assert_eq!((time.report(), time.one_word()), (report::NONE, false));
    }
}
