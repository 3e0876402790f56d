//! The instance block (RAMIN: RAMFC, address space, engine contexts) and USERD, by byte offset.
//!
//! nouveau `fifo/gf100.c` writes the values; the RAMFC part is the PBDMA register file saved, so its offsets equal
//! the PBDMA's register offsets (envytools `rnndb/fifo/gf100_pfifo.xml`). USERD: `cl906f.h`.

use crate::addr::{Aperture, PhysAddr};

/// Bytes of an instance block.
pub const INSTANCE_BYTES: u64 = 0x1000;
/// Bytes of one channel's USERD on GF100; the array has one for each of the 128 channels.
pub const USERD_BYTES: u64 = 0x1000;
/// Channels of a card.
pub const CHANNELS: usize = 128;

/// Offsets in the instance block of the words that drivers or hardware use.
pub mod offset {
    /// USERD address: low word, \[1:0\] aperture, \[31:12\] address.
    pub const USERD_LO: u64 = 0x08;
    /// USERD address, bits 39:32.
    pub const USERD_HI: u64 = 0x0c;
    /// Word that marks a valid block, [`super::SIGNATURE`].
    pub const SIGNATURE: u64 = 0x10;
    /// GP_GET, an entry index; hardware-owned.
    pub const GP_GET: u64 = 0x14;
    /// GET low (pushbuffer position); hardware-owned, as are all up to REF.
    pub const GET_LO: u64 = 0x18;
    /// GET high word (pushbuffer position).
    pub const GET_HI: u64 = 0x1c;
    /// TOP_LEVEL_GET low word: pushbuffer position outside of subroutines.
    pub const TOP_GET_LO: u64 = 0x20;
    /// TOP_LEVEL_GET high word; bit 31 says that it is valid.
    pub const TOP_GET_HI: u64 = 0x24;
    /// Last value of SET_REFERENCE.
    pub const REF: u64 = 0x28;
    /// Acquire retry and time-out.
    pub const ACQUIRE: u64 = 0x30;
    /// Acquire deadline; hardware-owned, with the SEMAPHORE words behind it.
    pub const ACQUIRE_DEADLINE: u64 = 0x34;
    /// Latched SEMAPHORE_A; B, C and D follow.
    pub const SEMAPHORE_A: u64 = 0x38;
    /// GPFIFO address, low word.
    pub const GP_BASE_LO: u64 = 0x48;
    /// GPFIFO address bits 39:32 in \[7:0\], log2 of the number of entries in \[20:16\].
    pub const GP_BASE_HI: u64 = 0x4c;
    /// GPFIFO fetch index; hardware-owned.
    pub const GP_FETCH: u64 = 0x50;
    /// Pushbuffer fetch, low; drivers write 2.
    pub const PB_FETCH_LO: u64 = 0x54;
    /// Pushbuffer fetch, high; hardware-owned.
    pub const PB_FETCH_HI: u64 = 0x58;
    /// PUT low word; unused in GPFIFO mode.
    pub const PUT_LO: u64 = 0x5c;
    /// PUT high word; unused in GPFIFO mode.
    pub const PUT_HI: u64 = 0x60;
    /// Current method header.
    pub const PB_HEADER: u64 = 0x84;
    /// Data words left of the current header.
    pub const PB_COUNT: u64 = 0x88;
    /// Which board methods are for, see [`super::Subdevice`].
    pub const SUBDEVICE: u64 = 0x94;
    /// Formats of pushbuffer and GPFIFO that drivers set (nouveau writes 0x100).
    pub const FORMATS: u64 = 0x9c;
    /// Engine bound to subchannels 0–3, one byte each (0x1f none).
    pub const SUBCHANNELS_LO: u64 = 0xa4;
    /// Engine bound to subchannels 4–7.
    pub const SUBCHANNELS_HI: u64 = 0xa8;
    /// Engine that the channel is on.
    pub const TARGET: u64 = 0xac;
    /// Unknown constant that nouveau writes (0xf8000000).
    pub const WORD_B8: u64 = 0xb8;
    /// Latched method and data, four words.
    pub const METHOD0: u64 = 0xc0;
    /// Data of the latched method.
    pub const DATA0: u64 = 0xc4;
    /// A word without a name that the hardware saves. The software card keeps there which engine has a copy of the channel to go on with: its
    /// number plus 1, or 0.
    pub const WORD_D4: u64 = 0xd4;
    /// Time slice: \[7:0\] time-out, \[15:12\] scale, 28 enable.
    pub const TIMESLICE: u64 = 0xf8;
    /// Second time-slice word.
    pub(crate) const TIMESLICE_PB: u64 = 0xfc;
    /// Page directory: \[31:12\] address, \[1:0\] aperture, bit 2 volatile.
    pub const PD_LO: u64 = 0x200;
    /// Page directory address bits 39:32.
    pub const PD_HI: u64 = 0x204;
    /// Last valid virtual address, low word; bits 39:32 follow.
    pub const LIMIT_LO: u64 = 0x208;
    /// PGRAPH context address | 4; PCOPY0 at 0x230, PCOPY1 0x240, PPDEC 0x250, PPPP 0x260, PVLD 0x270.
    pub const ENGINE_CONTEXTS: u64 = 0x210;
    /// One past the last engine context word.
    pub const ENGINE_CONTEXTS_END: u64 = 0x278;
}

/// Signature in [`offset::SIGNATURE`]; the hardware checks the low 16 bits.
pub const SIGNATURE: u32 = 0x0000_face;
/// Values that nouveau writes at creation of a channel, as (offset, value); what is absent is zero or an address.
pub const RAMFC_DEFAULTS: [(u64, u32); 13] = [
    (offset::SIGNATURE, SIGNATURE),
    (offset::ACQUIRE, 0xffff_f902),
    (offset::PB_FETCH_LO, 0x0000_0002),
    (offset::PB_HEADER, 0x2040_0000),
    (offset::SUBDEVICE, 0x3000_0fff),
    (offset::FORMATS, 0x0000_0100),
    (offset::SUBCHANNELS_LO, 0x1f1f_1f1f),
    (offset::SUBCHANNELS_HI, 0x1f1f_1f1f),
    (offset::TARGET, 0x0000_001f),
    (offset::WORD_B8, 0xf800_0000),
    (offset::TIMESLICE, 0x1000_3080),
    (offset::TIMESLICE_PB, 0x1000_0010),
    (offset::GP_GET, 0),
];

/// RAMFC words that the hardware writes when a channel leaves its PBDMA: where it is in its ring and pushbuffer, and what it has latched
/// (envytools `fifo/puller.rst`; which words these are was found with drivers, unverified). Word 0 is GP_PUT; those from 0xd0 on have no name.
pub const RAMFC_SAVED: [u64; 30] = [
    0x00,
    offset::GP_GET,
    offset::GET_LO,
    offset::GET_HI,
    offset::TOP_GET_LO,
    offset::TOP_GET_HI,
    offset::REF,
    offset::ACQUIRE_DEADLINE,
    offset::SEMAPHORE_A,
    offset::SEMAPHORE_A + 4,
    offset::SEMAPHORE_A + 8,
    offset::SEMAPHORE_A + 12,
    offset::GP_FETCH,
    offset::PB_FETCH_HI,
    offset::PUT_LO,
    offset::PUT_HI,
    offset::PB_HEADER,
    offset::PB_COUNT,
    offset::SUBDEVICE,
    offset::SUBCHANNELS_LO,
    offset::SUBCHANNELS_HI,
    offset::TARGET,
    offset::METHOD0,
    offset::METHOD0 + 4,
    offset::METHOD0 + 8,
    offset::METHOD0 + 12,
    0xd0,
    offset::WORD_D4,
    0xd8,
    0xdc,
];

/// Offsets in USERD.
pub mod userd {
    /// PUT low; unused in GPFIFO mode.
    pub const PUT_LO: u64 = 0x40;
    /// GET low, written by the GPU.
    pub const GET_LO: u64 = 0x44;
    /// Operand of the last SET_REFERENCE, written by the GPU.
    pub const REF: u64 = 0x48;
    /// PUT high word; unused in GPFIFO mode.
    pub const PUT_HI: u64 = 0x4c;
    /// Threshold that a driver may write.
    pub const REF_THRESHOLD: u64 = 0x50;
    /// TOP_LEVEL_GET low word, written by the GPU.
    pub const TOP_GET_LO: u64 = 0x58;
    /// TOP_LEVEL_GET high word, written by the GPU.
    pub const TOP_GET_HI: u64 = 0x5c;
    /// GET high word, written by the GPU.
    pub const GET_HI: u64 = 0x60;
    /// GP_GET, entry index, written by the GPU.
    pub const GP_GET: u64 = 0x88;
    /// GP_PUT, entry index, written by the driver: the doorbell.
    pub const GP_PUT: u64 = 0x8c;
}

/// TIMESLICE (RAMFC f8) and its default (2310). unverified: the unit, taken as 1 µs << scale.
#[bitfield_struct::bitfield(u32)]
#[derive(PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Timeslice {
    /// Units of the slice.
    pub timeout: u8,
    #[bits(4)]
    __: u8,
    /// Power of two by which the unit is scaled.
    #[bits(4)]
    pub scale: u8,
    #[bits(12)]
    __: u16,
    /// The slice ends; without it the channel runs until it has nothing to do.
    pub enable: bool,
    #[bits(3)]
    __: u8,
}

/// SUBDEVICE (RAMFC 94; NVIDIA nvgpu `hw_pbdma_gk20a.h`). unverified: where the stored mask is.
#[bitfield_struct::bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Subdevice {
    /// Which of a set of linked boards this one is, as a mask.
    #[bits(12)]
    pub id: u16,
    #[bits(4)]
    __: u8,
    /// Mask kept by the STORE header.
    #[bits(12)]
    pub stored: u16,
    /// Methods are executed; otherwise they are skipped.
    pub active: bool,
    /// The channel has a pushbuffer.
    pub dma: bool,
    #[bits(2)]
    __: u8,
}

impl Subdevice {
    /// With methods executed if this board is in `mask`.
    #[must_use]
    pub fn selected_by(self, mask: u16) -> Self {
        self.with_active(self.id() & mask != 0)
    }
}

/// ACQUIRE (RAMFC 30), in units of 1024 ns (NVIDIA nvgpu `hw_pbdma_gk20a.h`).
#[bitfield_struct::bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Acquire {
    /// Mantissa of the time between two attempts.
    #[bits(7)]
    pub retry_mantissa: u8,
    /// Exponent of the time between two attempts.
    #[bits(4)]
    pub retry_exponent: u8,
    /// Exponent of the time-out.
    #[bits(4)]
    pub timeout_exponent: u8,
    /// Mantissa of the time-out.
    pub timeout_mantissa: u16,
    /// The acquire times out.
    pub timeout_enable: bool,
}

/// The page-directory pointer of an instance block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddressSpacePointer {
    /// Which memory the directory is in; `Peer` is invalid.
    pub aperture: Aperture,
    /// The directory's address.
    pub directory: PhysAddr,
    /// Last valid virtual address.
    pub limit: u64,
}

impl AddressSpacePointer {
    /// Decodes the four words at 0x200; total.
    pub fn from_words(words: [u32; 4]) -> Self {
        Self {
            aperture: Aperture::from_bits(words[0] as u8),
            directory: PhysAddr(u64::from(words[0] & 0xffff_f000) | u64::from(words[1] & 0xff) << 32),
            limit: u64::from(words[2]) | u64::from(words[3] & 0xff) << 32 | 0xfff,
        }
    }

    /// The four words at 0x200.
    pub fn into_words(self) -> [u32; 4] {
        let volatile = if self.aperture.is_sysram() { 4 } else { 0 };
        [
            self.directory.0 as u32 & 0xffff_f000 | volatile | u32::from(self.aperture.into_bits()),
            (self.directory.0 >> 32) as u32 & 0xff,
            self.limit as u32,
            (self.limit >> 32) as u32 & 0xff,
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointer_survives_its_words() {
        let pointer = AddressSpacePointer {
            aperture: Aperture::Vram,
            directory: PhysAddr(0x12_3456_7000),
            limit: 0xff_ffff_ffff,
        };
        assert_eq!(AddressSpacePointer::from_words(pointer.into_words()), pointer);
    }
}
