//! Copy-engine methods of NVIDIA's microcode (`cl90b5.h`).

use crate::surface::BlockSize;

/// Does nothing at all.
pub const NOP: u16 = 0x100;
/// Trigger for performance monitors; nothing is copied.
pub const PM_TRIGGER: u16 = 0x140;
/// Selects the set of methods, see [`APPLICATION_NORMAL`].
pub const SET_APPLICATION_ID: u16 = 0x200;
/// Application with the methods listed here.
pub const APPLICATION_NORMAL: u32 = 1;
/// Application whose methods drive the unit itself.
pub const APPLICATION_LOW_LEVEL: u32 = 3;
/// Time that a copy may take.
pub const SET_WATCHDOG_TIMER: u16 = 0x204;
/// Semaphore address bits 39:32; the low word follows.
pub const SEMAPHORE_A: u16 = 0x240;
/// Semaphore address bits 31:0.
pub const SEMAPHORE_B: u16 = 0x244;
/// Payload that a release writes.
pub const SEMAPHORE_PAYLOAD: u16 = 0x248;
/// Virtual or physical addresses, see [`AddressingMode`].
pub const ADDRESSING_MODE: u16 = 0x250;
/// Address of the condition, bits 39:32; the low word follows.
pub const RENDER_ENABLE_A: u16 = 0x254;
/// Address of the condition, bits 31:0.
pub const RENDER_ENABLE_B: u16 = 0x258;
/// How the condition is evaluated, see [`super::RenderEnable`].
pub const RENDER_ENABLE_C: u16 = 0x25c;
/// Starts the copy, see [`LaunchDma`].
pub const LAUNCH_DMA: u16 = 0x300;
/// Source address bits 39:32; the low word follows.
pub const OFFSET_IN_UPPER: u16 = 0x400;
/// Source address bits 31:0.
pub const OFFSET_IN_LOWER: u16 = 0x404;
/// Destination address bits 39:32; the low word follows.
pub const OFFSET_OUT_UPPER: u16 = 0x408;
/// Destination address bits 31:0.
pub const OFFSET_OUT_LOWER: u16 = 0x40c;
/// Bytes from one source line to the next.
pub const PITCH_IN: u16 = 0x410;
/// Bytes from one destination line to the next.
pub const PITCH_OUT: u16 = 0x414;
/// Elements of a line; bytes unless components are remapped.
pub const LINE_LENGTH_IN: u16 = 0x418;
/// Number of lines.
pub const LINE_COUNT: u16 = 0x41c;
/// Constant for [`super::copy_component::CONSTANT_A`].
pub const SET_REMAP_CONST_A: u16 = 0x700;
/// Constant for [`super::copy_component::CONSTANT_B`].
pub const SET_REMAP_CONST_B: u16 = 0x704;
/// Component selectors and sizes, see [`super::CopyFormat`].
pub const SET_REMAP_COMPONENTS: u16 = 0x708;
/// Block size of a block-linear destination; the other methods of [`surface`] follow.
pub const SET_DST_BLOCK_SIZE: u16 = 0x70c;
/// Last word of the destination: its origin.
pub const SET_DST_ORIGIN: u16 = 0x720;
/// Block size of a block-linear source.
pub const SET_SRC_BLOCK_SIZE: u16 = 0x728;
/// Last word of the source: its origin.
pub const SET_SRC_ORIGIN: u16 = 0x73c;
/// Trigger for performance monitors after the copy.
pub const PM_TRIGGER_END: u16 = 0x1114;

/// Methods of a block-linear surface, from its block size on.
pub mod surface {
    /// Width in elements.
    pub const WIDTH: u16 = 0x04;
    /// Number of lines.
    pub const HEIGHT: u16 = 0x08;
    /// Number of layers.
    pub const DEPTH: u16 = 0x0c;
    /// Layer to copy.
    pub const LAYER: u16 = 0x10;
    /// First element \[15:0\] and line \[31:16\].
    pub const ORIGIN: u16 = 0x14;
}

/// Operand of LAUNCH_DMA.
#[bitfield_struct::bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct LaunchDma {
    /// 0 no copy, 1 pipelined, 2 after the copies before; see [`Self::TRANSFER_MAX`].
    #[bits(2)]
    pub transfer: u8,
    /// Writes are flushed at the end.
    pub flush: bool,
    /// 0 none, 1 one word, 2 four words with the time; see [`Self::SEMAPHORE_MAX`].
    #[bits(2)]
    pub semaphore: u8,
    /// 0 none, 1 the engine waits for its acknowledgement, 2 it does not; see [`Self::INTERRUPT_MAX`].
    #[bits(2)]
    pub interrupt: u8,
    /// The source is linear (pitch).
    pub src_linear: bool,
    /// The destination is linear (pitch).
    pub dst_linear: bool,
    /// LINE_COUNT lines instead of one.
    pub multi_line: bool,
    /// Components are remapped.
    pub remap: bool,
    #[bits(21)]
    __: u32,
}

impl LaunchDma {
    /// All bits that the microcode defines.
    pub const BITS: u32 = 0x7ff;
    /// Largest transfer type.
    pub const TRANSFER_MAX: u8 = 2;
    /// Transfer after the copies before.
    pub const NON_PIPELINED: u8 = 2;
    /// Largest semaphore type: four words.
    pub const SEMAPHORE_MAX: u8 = 2;
    /// Semaphore of one word.
    pub const ONE_WORD: u8 = 1;
    /// Value of `interrupt`: the engine waits for its acknowledgement.
    pub const BLOCKING: u8 = 1;
    /// Largest interrupt type: the engine does not wait.
    pub const INTERRUPT_MAX: u8 = 2;
}

/// Operand of ADDRESSING_MODE.
#[bitfield_struct::bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct AddressingMode {
    /// Source addresses are physical.
    pub src_physical: bool,
    #[bits(3)]
    __: u8,
    /// Memory of a physical source: 0 VRAM, 1 coherent, 2 non-coherent system memory.
    #[bits(2)]
    pub src_target: u8,
    #[bits(2)]
    __: u8,
    /// Destination addresses are physical.
    pub dst_physical: bool,
    #[bits(3)]
    __: u8,
    /// Memory of a physical destination, as in `src_target`.
    #[bits(2)]
    pub dst_target: u8,
    #[bits(18)]
    __: u32,
}

impl AddressingMode {
    /// All bits that the microcode defines.
    pub const BITS: u32 = 0x3131;
    /// Largest valid target.
    pub const TARGET_MAX: u8 = 2;
}

/// Whether a block size is one of the class header's: one GOB or a quarter wide, up to 32 GOBs high and deep, GOBs of
/// 4 or 8 lines.
pub const fn is_block_size(size: BlockSize) -> bool {
    (size.width() == 0 || size.width() == BlockSize::QUARTER_GOB)
        && size.height() <= BlockSize::NAMED_MAX
        && size.depth() <= BlockSize::NAMED_MAX
        && size.gob_height() <= BlockSize::GOB_FERMI
}
