//! PBDMAs, which fetch the commands of channels (nouveau `fifo/gf100.c`, envytools PSPOON).

use super::units::{UnitRange, units};
use crate::engine::pmc_enable;

/// Where the PBDMAs are. The first [`RAMFC_BYTES`] of each are the RAMFC of the channel that it has loaded.
pub const PBDMA: UnitRange = units("PBDMA", 0x04_0000, 0x2000, 3, &[]).enabled_by(&[pmc_enable::PFIFO]);

/// Bytes of a PBDMA's registers that are RAMFC words.
pub const RAMFC_BYTES: u32 = 0x100;

registers! {
    /// Registers of the PBDMAs.
    pub enum PbdmaReg {
        /// Interrupts of PBDMA 0–2.
        PbdmaIntr[PBDMA.count, PBDMA.bytes] = 0x040108, WriteOneClears;
        /// Interrupt enables of PBDMA 0–2.
        PbdmaIntrEnable[PBDMA.count, PBDMA.bytes] = 0x04010c, ReadWrite;
        /// GPFIFO entry that failed, low word.
        PbdmaGpShadowLow[PBDMA.count, PBDMA.bytes] = 0x040110, ReadOnly;
        /// GPFIFO entry that failed, high word.
        PbdmaGpShadowHigh[PBDMA.count, PBDMA.bytes] = 0x040114, ReadOnly;
        /// Header that failed.
        PbdmaHeaderShadow[PBDMA.count, PBDMA.bytes] = 0x040118, ReadOnly;
        /// Channel on a PBDMA: \[6:0\] id, 8 active.
        PbdmaChannel[PBDMA.count, PBDMA.bytes] = 0x040120, ReadOnly;
        /// Interrupts of a PBDMA that stall it.
        PbdmaStall[PBDMA.count, PBDMA.bytes] = 0x04013c, ReadWrite;
        /// Latched method: \[13:2\] method, \[18:16\] subchannel, 31 valid.
        PbdmaMethod0[PBDMA.count, PBDMA.bytes] = 0x0400c0, ReadWrite;
        /// Data of the latched method.
        PbdmaData0[PBDMA.count, PBDMA.bytes] = 0x0400c4, ReadWrite;
    }
}

/// PBDMA_INTR_ENABLE (4010c) as nouveau leaves it: all but bit 8.
pub const INTR_USUAL: u32 = 0xffff_feff;
/// PBDMA_STALL (4013c): bits that nouveau clears.
pub const STALL_CLEARED: u32 = 0x1000_0100;
/// PBDMA_CHANNEL (40120), and ENGINE_CHANNEL of PFIFO: there is a channel.
pub const CHANNEL_ACTIVE: u32 = 1 << 8;

/// Bits of PBDMA_INTR (40108).
pub mod pbdma_intr {
    /// GP_PUT beyond the ring.
    pub const GP_POINTER: u32 = 1 << 14;
    /// Bad GPFIFO entry.
    pub const GP_ENTRY: u32 = 1 << 15;
    /// Bad pushbuffer word.
    pub const PB_ENTRY: u32 = 1 << 18;
    /// A method that the PBDMA refuses.
    pub const METHOD: u32 = 1 << 21;
    /// Empty subchannel or software method.
    pub const DEVICE: u32 = 1 << 23;
    /// Bad semaphore operation.
    pub const SEMAPHORE: u32 = 1 << 25;
    /// Acquire timed out.
    pub const ACQUIRE: u32 = 1 << 26;
    /// The channel would have to give way inside a segment that forbids it.
    pub const NO_SWITCH_SEGMENT: u32 = 1 << 29;
    /// Wrong signature in the instance block.
    pub const SIGNATURE: u32 = 1 << 31;
}

/// Value that nouveau writes to PBDMA_METHOD0 to turn a stuck method into a NOP.
pub const METHOD_NOP: u32 = 0x8060_0008;
