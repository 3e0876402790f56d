//! What the broker keeps in VRAM for itself, and the blocks and entries that it makes for channels.

use fermi_spec::addr::{Aperture, GpuVa, PDE_SPAN, PhysAddr, SMALL_PAGE, VramAddr};
use fermi_spec::instance::{
    AddressSpacePointer, CHANNELS, INSTANCE_BYTES, RAMFC_DEFAULTS, USERD_BYTES, offset,
};
use fermi_spec::pte::{LARGE_PT_BYTES, PD_BYTES, Pde, PdeAperture, SMALL_PT_BYTES};
use serde::{Deserialize, Serialize};

/// Tables and blocks made at bring-up.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct OwnTables {
    /// USERD array, 128 pages.
    pub(crate) userd: VramAddr,
    /// Two runlist buffers.
    pub(crate) runlists: [VramAddr; 2],
    /// Directory of the copy channel.
    pub(crate) directory: VramAddr,
    /// Its instance block.
    pub(crate) instance: VramAddr,
    /// Small-page table of the copy window.
    pub(crate) window: VramAddr,
    /// Large-page table of BAR1: USERD, and the window that the CPU copies through.
    pub(crate) bar1_table: VramAddr,
}

impl OwnTables {
    /// Where they lie, and their lengths.
    pub(super) fn ranges(&self) -> impl Iterator<Item = (VramAddr, u64)> {
        [
            (self.userd, CHANNELS as u64 * USERD_BYTES),
            (self.runlists[0], SMALL_PAGE),
            (self.runlists[1], SMALL_PAGE),
            (self.directory, PD_BYTES),
            (self.instance, INSTANCE_BYTES),
            (self.window, SMALL_PT_BYTES),
            (self.bar1_table, LARGE_PT_BYTES),
        ]
        .into_iter()
    }
}

/// A fresh instance block for a channel: defaults, USERD, ring, address space.
pub(crate) fn instance_block(
    userd: VramAddr,
    ring: GpuVa,
    ring_log2: u32,
    directory: VramAddr,
) -> [u8; INSTANCE_BYTES as usize] {
    let mut block = [0; INSTANCE_BYTES as usize];
    let mut put =
        |at: u64, word: u32| block[at as usize..at as usize + 4].copy_from_slice(&word.to_le_bytes());
    for (at, word) in RAMFC_DEFAULTS {
        put(at, word);
    }
    put(offset::USERD_LO, userd.0 as u32);
    put(offset::USERD_HI, (userd.0 >> 32) as u32);
    put(offset::GP_BASE_LO, ring.0 as u32);
    put(offset::GP_BASE_HI, (ring.0 >> 32) as u32 | ring_log2 << 16);
    let pointer = AddressSpacePointer {
        aperture: Aperture::Vram,
        directory: PhysAddr(directory.0),
        limit: (1 << fermi_spec::addr::VA_BITS) - 1,
    };
    for (i, word) in pointer.into_words().into_iter().enumerate() {
        put(offset::PD_LO + 4 * i as u64, word);
    }
    block
}

/// A directory entry with tables in VRAM.
pub(crate) fn pde(large: Option<VramAddr>, small: Option<VramAddr>) -> Pde {
    let mut pde = Pde::new();
    if let Some(at) = large {
        pde = pde
            .with_large_aperture(PdeAperture::Vram)
            .with_large_frame((at.0 >> 12) as u32);
    }
    if let Some(at) = small {
        pde = pde
            .with_small_aperture(PdeAperture::Vram)
            .with_small_frame((at.0 >> 12) as u32);
    }
    pde
}

/// Bytes of large-page tables that map `vram_bytes` linearly.
pub(crate) fn linear_tables(vram_bytes: u64) -> u64 {
    vram_bytes.div_ceil(PDE_SPAN)
}
