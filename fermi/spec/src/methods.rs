//! Methods of the host (class 906f), M2MF (9039) and the copy engines (90b5).
//!
//! The methods that a copy engine has depend on its microcode: [`copy`] lists those of nouveau's,
//! [`nvidia_copy`] those of NVIDIA's.

pub mod nvidia_copy;

/// Class of 3D, compute, 2D, M2MF and copy objects.
pub mod class {
    /// M2MF on PGRAPH.
    pub const M2MF: u16 = 0x9039;
    /// Copy engine 0 (and 1).
    pub const COPY: u16 = 0x90b5;
    /// Second copy class, same methods.
    pub const COPY_1: u16 = 0x90b8;
    /// Compute on PGRAPH.
    pub const COMPUTE: u16 = 0x90c0;
    /// 3D on PGRAPH.
    pub const THREED: u16 = 0x9097;
    /// 2D on PGRAPH.
    pub const TWOD: u16 = 0x902d;
}

/// Host methods, executed by the PBDMA itself (`cl906f.h`).
pub mod host {
    /// Class \[15:0\] and engine \[20:16\] for this subchannel.
    pub const SET_OBJECT: u16 = 0x00;
    /// Raises the illegal-method interrupt.
    pub const ILLEGAL: u16 = 0x04;
    /// Does nothing at all.
    pub const NOP: u16 = 0x08;
    /// Semaphore address bits 39:32.
    pub const SEMAPHORE_A: u16 = 0x10;
    /// Semaphore address bits 31:2.
    pub const SEMAPHORE_B: u16 = 0x14;
    /// Semaphore payload: the value to write or to compare with.
    pub const SEMAPHORE_C: u16 = 0x18;
    /// Operation, see [`super::SemaphoreOp`]; starts it.
    pub const SEMAPHORE_D: u16 = 0x1c;
    /// Notify interrupt of the current engine.
    pub const NON_STALL_INTERRUPT: u16 = 0x20;
    /// Wait for writes to reach memory.
    pub const FB_FLUSH: u16 = 0x24;
    /// Operand of MEM_OP_B.
    pub const MEM_OP_A: u16 = 0x28;
    /// Memory operation by \[31:27\].
    pub const MEM_OP_B: u16 = 0x2c;
    /// Waits for idle and writes USERD REF.
    pub const SET_REFERENCE: u16 = 0x50;
    /// Compares the checksum of the methods before it.
    pub const CRC_CHECK: u16 = 0x7c;
    /// Gives up the time slice.
    pub const YIELD: u16 = 0x80;
    /// First method that goes to the bound engine.
    pub const FIRST_ENGINE_METHOD: u16 = 0x100;
}

/// Operand of SEMAPHORE_D.
#[bitfield_struct::bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct SemaphoreD {
    /// Operation, see [`SemaphoreOp`].
    #[bits(4)]
    pub operation: u8,
    __: u8,
    /// A failing acquire lets other channels run.
    pub acquire_switch: bool,
    #[bits(7)]
    __: u8,
    /// Release without waiting for idle.
    pub release_no_wait: bool,
    #[bits(3)]
    __: u8,
    /// Release writes 4 bytes instead of 16 with the time.
    pub release_short: bool,
    #[bits(7)]
    __: u8,
}

/// Operation of SEMAPHORE_D.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SemaphoreOp {
    /// Wait until memory equals the payload.
    AcquireEqual,
    /// Write the payload.
    Release,
    /// Wait until memory − payload, signed, is not negative.
    AcquireGreaterOrEqual,
    /// Wait until memory & payload is not zero.
    AcquireAnd,
    /// No such operation.
    Invalid(u8),
}

impl SemaphoreOp {
    /// Whether memory that holds `value` lets an acquire of `payload` go on; other operations never wait.
    pub fn is_satisfied(self, value: u32, payload: u32) -> bool {
        match self {
            Self::AcquireEqual => value == payload,
            Self::AcquireGreaterOrEqual => value.wrapping_sub(payload) as i32 >= 0,
            Self::AcquireAnd => value & payload != 0,
            Self::Release | Self::Invalid(_) => true,
        }
    }
}

impl SemaphoreD {
    /// The operation; total.
    pub fn op(self) -> SemaphoreOp {
        match self.operation() {
            1 => SemaphoreOp::AcquireEqual,
            2 => SemaphoreOp::Release,
            4 => SemaphoreOp::AcquireGreaterOrEqual,
            8 => SemaphoreOp::AcquireAnd,
            other => SemaphoreOp::Invalid(other),
        }
    }
}

/// Copy-engine methods of nouveau's microcode (`ce/fuc/com.fuc`, whose table also has the bits that may be set).
pub mod copy {
    /// Does nothing at all.
    pub const NOP: u16 = 0x100;
    /// Trigger for performance monitors; nothing is copied.
    pub const PM_TRIGGER: u16 = 0x140;
    /// Block size of a tiled source; the other methods of [`tile`] follow.
    pub const SRC_TILE: u16 = 0x200;
    /// Block size of a tiled destination.
    pub const DST_TILE: u16 = 0x220;
    /// Starts the copy, see [`super::CopyExec`].
    pub const EXEC: u16 = 0x300;
    /// Flush of write caches.
    pub const WRCACHE_FLUSH: u16 = 0x304;
    /// Source address bits 39:32; the low word follows.
    pub const SRC_HIGH: u16 = 0x30c;
    /// Source address bits 31:0.
    pub const SRC_LOW: u16 = 0x310;
    /// Destination address bits 39:32; the low word follows.
    pub const DST_HIGH: u16 = 0x314;
    /// Destination address bits 31:0.
    pub const DST_LOW: u16 = 0x318;
    /// Bytes from one source line to the next, 19 bits.
    pub const SRC_PITCH: u16 = 0x31c;
    /// Bytes from one destination line to the next, 19 bits.
    pub const DST_PITCH: u16 = 0x320;
    /// Elements of a line, 16 bits; bytes unless EXEC asks for a format.
    pub const LINE_BYTES: u16 = 0x324;
    /// Lines, 13 bits.
    pub const LINES: u16 = 0x328;
    /// Component selectors and sizes, see [`super::CopyFormat`].
    pub const FORMAT: u16 = 0x32c;
    /// Constant for [`super::copy_component::CONSTANT_A`].
    pub const CONSTANT_A: u16 = 0x330;
    /// Constant for [`super::copy_component::CONSTANT_B`].
    pub const CONSTANT_B: u16 = 0x334;
    /// Query address bits 39:32.
    pub const QUERY_HIGH: u16 = 0x338;
    /// Query address bits 31:0.
    pub const QUERY_LOW: u16 = 0x33c;
    /// Payload of the query.
    pub const QUERY_COUNTER: u16 = 0x340;
    /// Largest value of LINES.
    pub const LINES_MAX: u32 = 0x1fff;
    /// Largest value of LINE_BYTES.
    pub const LINE_BYTES_MAX: u32 = 0xffff;
    /// Largest value of both pitches.
    pub const PITCH_MAX: u32 = 0x7_ffff;

    /// Where the microcode keeps its table of methods, in words of data memory: behind the context.
    pub const TABLE_WORD: usize = 0x40;
    /// Entries of the table begin with first method >> 2 \[15:0\] and the number of methods \[31:16\]; two
    /// words for each method follow. This entry ends the table.
    pub const TABLE_END: u32 = 0x800;
    /// Entries that every version of the table has: EXEC with the method behind it, and addresses to
    /// QUERY_COUNTER.
    pub const TABLE_ENTRIES: [u32; 2] = [0x0002_00c0, 0x000e_00c3];

    /// Methods of a tiled surface, from [`SRC_TILE`] or [`DST_TILE`] on, with the bits that may be set.
    pub mod tile {
        /// Block size, see [`crate::surface::BlockSize`].
        pub const BLOCK_SIZE: (u16, u32) = (0x00, 0xfff);
        /// Width in elements.
        pub const WIDTH: (u16, u32) = (0x04, 0x7_ffff);
        /// Number of lines.
        pub const HEIGHT: (u16, u32) = (0x08, 0x1fff);
        /// Number of layers.
        pub const DEPTH: (u16, u32) = (0x0c, 0x7ff);
        /// Layer to copy.
        pub const LAYER: (u16, u32) = (0x10, 0xfff);
        /// First element of a line.
        pub const X: (u16, u32) = (0x14, 0x7_ffff);
        /// First line to copy.
        pub const Y: (u16, u32) = (0x18, 0x1fff);
    }
}

/// Operand of the copy engine's EXEC.
#[bitfield_struct::bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct CopyExec {
    /// Components are converted as FORMAT says.
    pub format: bool,
    #[bits(3)]
    __: u8,
    /// The source is linear.
    pub src_linear: bool,
    #[bits(3)]
    __: u8,
    /// The destination is linear.
    pub dst_linear: bool,
    #[bits(3)]
    __: u8,
    /// Write the query when done.
    pub query: bool,
    /// The query is 4 bytes instead of 16 with the time.
    pub query_short: bool,
    #[bits(18)]
    __: u32,
}

/// Source of each component of an element that a copy engine writes; the layout is the same in both microcodes.
#[bitfield_struct::bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct CopyFormat {
    /// First component of the destination, see [`copy_component`].
    #[bits(4)]
    pub x: u8,
    /// Second component of the destination.
    #[bits(4)]
    pub y: u8,
    /// Third component of the destination.
    #[bits(4)]
    pub z: u8,
    /// Fourth component of the destination.
    #[bits(4)]
    pub w: u8,
    /// Bytes of a component, less one.
    #[bits(2)]
    pub component_bytes_less_one: u8,
    #[bits(2)]
    __: u8,
    /// Components of a source element, less one.
    #[bits(2)]
    pub source_components_less_one: u8,
    #[bits(2)]
    __: u8,
    /// Components of a destination element, less one.
    #[bits(2)]
    pub target_components_less_one: u8,
    #[bits(6)]
    __: u8,
}

impl CopyFormat {
    /// Bits that nouveau's microcode accepts.
    pub const BITS: u32 = 0x0333_ffff;
    /// Bits that NVIDIA's microcode defines.
    pub const NVIDIA_BITS: u32 = 0x0333_7777;

    /// The four selectors, first component first.
    pub const fn selectors(self) -> [u8; 4] {
        [self.x(), self.y(), self.z(), self.w()]
    }
}

/// Selectors of [`CopyFormat`] above 3; 0 to 3 name components of the source.
pub mod copy_component {
    /// Constant set by CONSTANT_A.
    pub const CONSTANT_A: u8 = 4;
    /// Constant set by CONSTANT_B.
    pub const CONSTANT_B: u8 = 5;
    /// With NVIDIA's microcode the destination's component stays. With nouveau's, this and all higher numbers
    /// write zero.
    pub const NO_WRITE: u8 = 6;
}

/// M2MF methods (`cl9039.h`).
pub mod m2mf {
    /// Does nothing at all.
    pub const NOP: u16 = 0x100;
    /// Waits until the methods before are done.
    pub const WAIT_FOR_IDLE: u16 = 0x110;
    /// Sends the unit to idle.
    pub const SEND_GO_IDLE: u16 = 0x13c;
    /// Trigger for performance monitors.
    pub const PM_TRIGGER: u16 = 0x140;
    /// Block size of a block-linear source, see [`crate::surface::BlockSize`].
    pub const SRC_BLOCK_SIZE: u16 = 0x204;
    /// Width in bytes of a block-linear source; height, depth and layer follow.
    pub const SRC_WIDTH: u16 = 0x208;
    /// Layer of a block-linear source.
    pub const SRC_LAYER: u16 = 0x214;
    /// Block size of a block-linear destination.
    pub const DST_BLOCK_SIZE: u16 = 0x220;
    /// Width in bytes of a block-linear destination; height, depth and layer follow.
    pub const DST_WIDTH: u16 = 0x224;
    /// Layer of a block-linear destination.
    pub const DST_LAYER: u16 = 0x230;
    /// First of the methods that do nothing: SET_SPARE_NOOP, and SET_FALCON that only microcode knows.
    pub const SPARE_FIRST: u16 = 0x240;
    /// Last of the methods that do nothing.
    pub const SPARE_LAST: u16 = 0x2fc;
    /// Destination address bits 39:32; the low word follows.
    pub const OFFSET_OUT_HIGH: u16 = 0x238;
    /// Destination address bits 31:0.
    pub const OFFSET_OUT_LOW: u16 = 0x23c;
    /// Starts the copy, see [`super::M2mfLaunch`].
    pub const LAUNCH: u16 = 0x300;
    /// Inline data, one word of it.
    pub const DATA: u16 = 0x304;
    /// Source address bits 39:32; the low word follows.
    pub const OFFSET_IN_HIGH: u16 = 0x30c;
    /// Source address bits 31:0.
    pub const OFFSET_IN_LOW: u16 = 0x310;
    /// Bytes from one source line to the next.
    pub const PITCH_IN: u16 = 0x314;
    /// Bytes from one destination line to the next.
    pub const PITCH_OUT: u16 = 0x318;
    /// Bytes of a line.
    pub const LINE_LENGTH: u16 = 0x31c;
    /// Number of lines.
    pub const LINE_COUNT: u16 = 0x320;
    /// Semaphore address bits 39:32.
    pub const SEMAPHORE_HIGH: u16 = 0x32c;
    /// Semaphore address bits 31:0.
    pub const SEMAPHORE_LOW: u16 = 0x330;
    /// Payload that a release writes.
    pub const SEMAPHORE_PAYLOAD: u16 = 0x334;
    /// 0 copies if the condition allows it, 1 always, 2 never; see [`RENDER_OVERRIDE_MAX`].
    pub const RENDER_ENABLE_OVERRIDE: u16 = 0x308;
    /// Largest valid override.
    pub const RENDER_OVERRIDE_MAX: u32 = 2;
    /// Address of the condition, bits 39:32; the low word follows.
    pub const RENDER_ENABLE_A: u16 = 0x338;
    /// Address of the condition, bits 31:0.
    pub const RENDER_ENABLE_B: u16 = 0x33c;
    /// How the condition is evaluated, see [`super::RenderEnable`].
    pub const RENDER_ENABLE_C: u16 = 0x340;
    /// First byte in x of a block-linear source, 20 bits; the line follows.
    pub const SRC_ORIGIN_X: u16 = 0x344;
    /// First line of a block-linear source, 16 bits.
    pub const SRC_ORIGIN_Y: u16 = 0x348;
    /// First byte in x of a block-linear destination, 20 bits; the line follows.
    pub const DST_ORIGIN_X: u16 = 0x34c;
    /// First line of a block-linear destination, 16 bits.
    pub const DST_ORIGIN_Y: u16 = 0x350;
    /// Largest origin in x.
    pub const ORIGIN_X_MAX: u32 = 0xf_ffff;
    /// Largest origin in y.
    pub const ORIGIN_Y_MAX: u32 = 0xffff;
    /// Most lines of 4 KiB that nouveau puts in one launch.
    pub const LINE_COUNT_MAX: u32 = 2047;
}

/// Operand of M2MF LAUNCH.
#[bitfield_struct::bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct M2mfLaunch {
    /// Data comes inline through DATA.
    pub inline: bool,
    #[bits(3)]
    __: u8,
    /// The source is linear (pitch).
    pub src_linear: bool,
    #[bits(3)]
    __: u8,
    /// The destination is linear (pitch).
    pub dst_linear: bool,
    #[bits(3)]
    __: u8,
    /// What happens at the end: 0 nothing, 1 flush, 2 release the semaphore.
    #[bits(2)]
    pub completion: u8,
    #[bits(2)]
    __: u8,
    /// 0 none, 1 an interrupt at the end.
    #[bits(2)]
    pub interrupt: u8,
    #[bits(2)]
    __: u8,
    /// The semaphore is 4 bytes instead of 16 with the time.
    pub semaphore_short: bool,
    #[bits(11)]
    __: u16,
}

impl M2mfLaunch {
    /// All bits that the hardware defines.
    pub const BITS: u32 = 0x0013_3111;
    /// Value of `completion`: the semaphore is released.
    pub const RELEASE_SEMAPHORE: u8 = 2;
    /// Value of `interrupt`: one at the end.
    pub const INTERRUPT: u8 = 1;
}

/// Condition under which copies, draws and launches take place: operand of RENDER_ENABLE_C in several
/// classes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RenderEnable {
    /// They never take place.
    False,
    /// They always take place.
    True,
    /// If the report at the condition's address is not zero.
    Conditional,
    /// If the report there equals the one 16 bytes further on.
    IfEqual,
    /// If the report there differs from the one 16 bytes further on.
    IfNotEqual,
}

impl RenderEnable {
    /// Largest number that is a mode.
    pub const MAX: u32 = 4;

    /// The mode, `None` for a number without one.
    pub const fn from_bits(bits: u32) -> Option<Self> {
        Some(match bits {
            0 => Self::False,
            1 => Self::True,
            2 => Self::Conditional,
            3 => Self::IfEqual,
            4 => Self::IfNotEqual,
            _ => return None,
        })
    }
}
