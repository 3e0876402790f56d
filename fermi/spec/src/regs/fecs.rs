//! FECS, the falcon that switches PGRAPH's contexts, and the falcons of the GPCs: nouveau `gr/fuc/hub.fuc`.

use super::falcon::{FALCON_BYTES, FalconReg};
use super::units::{UnitRange, unit};
use crate::addr::PAGE_NUMBER_MASK;

/// Where FECS is; a falcon.
pub const FECS: UnitRange = unit("PGRAPH.FECS", 0x40_9000, FALCON_BYTES);
/// Where the falcons of all GPCs are written at once.
pub const GPCCS: UnitRange = unit("PGRAPH.GPCCS", 0x41_a000, FALCON_BYTES);

registers! {
    /// Registers of FECS, which switches PGRAPH's contexts, and of the GPCs' falcons.
    pub enum FecsReg {
        /// FECS interrupts to set; bit 8 a context switch.
        FecsIntrSet = FECS.first + FalconReg::IntrTrigger.offset(), WriteOnly;
        /// FECS control; bit 1 starts it.
        FecsControl = FECS.first + FalconReg::Control.offset(), ReadWrite;
        /// Operand of a command.
        FecsData = 0x409500, ReadWrite;
        /// Command to the microcode of FECS.
        FecsCommand = 0x409504, ReadWrite;
        /// Words that microcode and driver share.
        FecsScratch[8, 4] = 0x409800, ReadWrite;
        /// Sets bits in them.
        FecsScratchSet[8, 4] = 0x409820, WriteOnly;
        /// Clears bits in them.
        FecsScratchClear[8, 4] = 0x409840, WriteOnly;
        /// Instance block of the context on PGRAPH, bit 31 valid.
        FecsChannel = 0x409b00, ReadWrite;
        /// Instance block of the next context, bit 31 valid.
        FecsNextChannel = 0x409b04, ReadWrite;
        /// Interrupts that the microcode sends to the host.
        FecsHostIntr = 0x409c18, ReadOnly;
        /// Sets bits of FecsHostIntr.
        FecsHostIntrSet = 0x409c1c, WriteOnly;
        /// Clears bits of FecsHostIntr.
        FecsHostIntrClear = 0x409c20, WriteOnly;
        /// Enables of FecsHostIntr's bits.
        FecsHostIntrEnable = 0x409c24, ReadWrite;
        /// Control of all GPC falcons; bit 1 starts them.
        GpccsControl = GPCCS.first + FalconReg::Control.offset(), ReadWrite;
    }
}

/// FECS_INTR_SET: as if PFIFO asked for a context switch.
pub const FECS_SWITCH_REQUEST: u32 = 1 << 8;
/// FECS_CHANNEL, FECS_NEXT_CHANNEL and operands: an instance block is named.
pub const FECS_CHANNEL_VALID: u32 = 1 << 31;
/// The block's address >> 12.
pub const FECS_CHANNEL_FRAME: u32 = PAGE_NUMBER_MASK;

/// Bits of FECS_HOST_INTR (409c18).
pub mod fecs_intr {
    /// nouveau's microcode reports an error: code in scratch 5.
    pub const ERROR: u32 = 1 << 0;
    /// NVIDIA's microcode does not know the command (nvgpu `unimp_firmware_method`; unverified on GF100).
    pub const UNKNOWN_COMMAND: u32 = 1 << 17;
}

/// Commands and answers of nouveau's microcode.
pub mod fecs_nouveau {
    /// Makes a channel current without loading its state.
    pub const SET_CHANNEL: u32 = 1;
    /// Saves the current channel's state.
    pub const SAVE: u32 = 2;
    /// Scratch 0: started, or a command is done.
    pub const DONE: u32 = 1 << 31;
    /// Error in scratch 5: no such command, which is in bits 31:16.
    pub const BAD_COMMAND: u32 = 1;
    /// Error in scratch 5: a firmware method came. Scratch 2 has the class, 3 the method, 4 the data.
    pub const BAD_FIRMWARE_METHOD: u32 = 3;
}

/// Commands and answers of NVIDIA's microcode.
pub mod fecs_nvidia {
    /// Binds a channel.
    pub const BIND_CHANNEL: u32 = 0x03;
    /// Halts the microcode.
    pub const HALT: u32 = 0x04;
    /// Waits for idle and saves a channel's state as the golden image.
    pub const SAVE_GOLDEN: u32 = 0x09;
    /// Asks for the size of the context image.
    pub const IMAGE_BYTES: u32 = 0x10;
    /// Asks for the size of the zcull image.
    pub const ZCULL_BYTES: u32 = 0x16;
    /// Sets the watchdog.
    pub const WATCHDOG: u32 = 0x21;
    /// Asks for the size of the performance-monitor image.
    pub const MONITOR_BYTES: u32 = 0x25;
    /// Asks for the size of the register-list image.
    pub const LIST_BYTES: u32 = 0x30;
    /// Binds a register list's instance block.
    pub const LIST_BLOCK: u32 = 0x31;
    /// Sets a register list's address.
    pub const LIST_ADDRESS: u32 = 0x32;
    /// Stops context switching.
    pub const STOP_SWITCHING: u32 = 0x38;
    /// Allows context switching again.
    pub const START_SWITCHING: u32 = 0x39;
    /// Scratch 0: started; SAVE_GOLDEN worked; a list command worked. Scratch 1: a switching command worked.
    pub const DONE: u32 = 1;
    /// Scratch 0: SAVE_GOLDEN failed.
    pub const FAILED: u32 = 2;
    /// Scratch 0: BIND_CHANNEL worked.
    pub const BOUND: u32 = 1 << 4;
    /// Scratch 0: BIND_CHANNEL failed.
    pub const NOT_BOUND: u32 = 1 << 5;
}

/// The register list of a context: the first words of its image, for nouveau's microcode (`gr/fuc/hub.fuc`, `ctx_mmio_exec`; nouveau
/// `gr/ctxgf100.c` writes them). A pair is the offset of a register in BAR0 and its value, 32 bits each.
pub mod context_list {
    /// Byte of the image where the number of pairs is, 32 bits. The microcode clears it once it has written the list.
    pub const COUNT: u64 = 0;
    /// Byte of the image where the list's address in the channel's space is, shifted, 32 bits.
    pub const AT: u64 = 4;
    /// How far the address is shifted to the right.
    pub const AT_SHIFT: u32 = 8;
    /// Bytes of a pair.
    pub const PAIR_BYTES: u64 = 8;
}

/// Value of FECS's falcon register Caps: 16 KiB of code, 4 KiB of data (envytools); FIFO and slots as a copy engine's.
pub const FECS_CAPS: u32 = 0x2040_2040;
/// The same of a GPC's falcon. unverified: sizes.
pub const GPCCS_CAPS: u32 = 0x2040_2020;
/// Version of both falcons.
pub const FECS_VERSION: u32 = 3;

/// Bytes of a context image, as drivers read them from FECS: what a context of the software card takes. A guest's FECS answers the same.
/// unverified: that it is enough for a card; nouveau's lists for a GF100 (`gr/ctxgf100.c`) come to somewhat less.
pub const CONTEXT_BYTES: u32 = 0x2_0000;
/// Bytes of the zcull image that NVIDIA's microcode answers. assumption: nothing is stored there.
pub const ZCULL_BYTES: u32 = 0x1000;
/// The same of the performance-monitor image.
pub const MONITOR_BYTES: u32 = 0x1000;
/// The same of the register-list image.
pub const LIST_BYTES: u32 = 0x1000;
