//! The images that the card reaches, for cards behind an IOMMU whose maps pin memory.
//!
//! Without pins a VM's image is mapped whole for as long as the VM is attached. With pins it is mapped chunk by chunk:
//!
//! ```text
//! unmapped ─ chunk goes to host RAM, or is about to ─► mapped ─ nothing points there, TLBs flushed ─► unmapped
//! ```
//!
//! * Memory that a shadow entry names is mapped: chunks in host RAM, and backed chunks with instance memory, which
//!   stays in the image while its chunk is in VRAM.
//! * A chunk that will be spilled is mapped before its channels are suspended. The host may refuse that (its bound
//!   of locked memory): the move is rolled back, and the chunk stays where it is.
//! * A map goes after the flush that follows a redirect, and before the image's pages are given back. A page that
//!   is given back while it is mapped would stay the card's, and the broker would see another.

use fermi_spec::addr::Iova;

use super::Cx;
use super::running::Running;
use crate::config::VmConfig;
use crate::device::Vgpu;
use crate::device::ram::IovaSpace;
use crate::event::{Action, Place, VmId};
use crate::memory::{ChunkNo, Chunks};
use crate::reason::Inconsistency;

/// Most DMA maps that the image of such a VM takes.
pub(super) fn maps_of(config: &VmConfig, pins: bool) -> u32 {
    let chunks = config.guest_vram.div_ceil(config.chunk_bytes);
    u32::try_from(if pins { chunks } else { 1 }).unwrap_or(u32::MAX)
}

impl Running {
    /// Lets the card reach the images of chunks that it does not reach yet. With `refusable` it is for a move,
    /// which is rolled back if the host refuses; otherwise a refusal costs the VM its vGPU.
    pub(super) fn map_images(&mut self, vm: VmId, chunks: &[ChunkNo], refusable: bool, cx: &mut Cx<'_>) {
        if !self.config.bus.pins {
            return;
        }
        let Some(vgpu) = self.vms.get_mut(&vm) else { return };
        if let Err(what) = check_image(vgpu, &self.iova) {
            return self.inconsistent(vm, what);
        }
        for &chunk in chunks {
            if vgpu.chunks.is_mapped(chunk) {
                continue;
            }
            vgpu.chunks.set_mapped(chunk, true);
            let at = vgpu.chunks.base(chunk);
            cx.actions.push(Action::MapDma {
                iova: vgpu.chunks.image().offset(at.0),
                bytes: vgpu.chunks.bytes(chunk),
                memory: Place::Image { vm, at },
                writable: true,
                refusable,
            });
        }
    }

    /// Maps the image of a chunk that has just got memory, if an entry may point there.
    pub(super) fn map_backed(&mut self, vm: VmId, chunk: ChunkNo, cx: &mut Cx<'_>) {
        if self.vms.get(&vm).is_some_and(|vgpu| vgpu.chunks.wants_map(chunk)) {
            self.map_images(vm, &[chunk], false, cx);
        }
    }

    /// Unmaps the images of those chunks that no entry points to any more. The TLBs have been flushed since.
    pub(super) fn unmap_images(
        &mut self,
        vm: VmId,
        chunks: impl IntoIterator<Item = ChunkNo>,
        cx: &mut Cx<'_>,
    ) {
        let Some(vgpu) = self.vms.get_mut(&vm) else { return };
        match check_image(vgpu, &self.iova) {
            Ok(()) => unmap(&mut vgpu.chunks, chunks, cx),
            Err(what) => self.inconsistent(vm, what),
        }
    }

    /// Handles the host's refusal to map a chunk's image for a move.
    pub(super) fn map_refused(&mut self, iova: Iova) {
        let Self { vms, iova: bus, .. } = self;
        let mut sound = vms.values_mut().filter(|vgpu| check_image(vgpu, bus).is_ok());
        let found = sound.find_map(|vgpu| {
            let at = iova.0.checked_sub(vgpu.chunks.image().0)?;
            let chunk = vgpu.chunks.of(fermi_spec::addr::GuestVramAddr(at))?;
            Some((vgpu, chunk))
        });
        let Some((vgpu, chunk)) = found else { return };
        vgpu.chunks.set_mapped(chunk, false);
        let vm = vgpu.id;
        if let Some(moving) = self.mover.current.as_mut().filter(|moving| moving.head.vm == vm) {
            moving.head.is_refused |= moving.head.chunks.contains(&chunk);
        }
    }
}

/// Checks that a VM's image lies at bus addresses of its own.
pub(super) fn check_image(vgpu: &Vgpu, bus: &IovaSpace) -> Result<(), Inconsistency> {
    bus.check_held(&vgpu.bus, vgpu.id, vgpu.chunks.image(), vgpu.config.guest_vram)
}

/// Joins neighbours: each unmap costs the host a flush of its IOMMU.
fn unmap(chunks: &mut Chunks, which: impl IntoIterator<Item = ChunkNo>, cx: &mut Cx<'_>) {
    let unused = |chunks: &Chunks, chunk: &ChunkNo| chunks.is_mapped(*chunk) && !chunks.wants_map(*chunk);
    let mut unused: Vec<_> = which.into_iter().filter(|chunk| unused(chunks, chunk)).collect();
    unused.sort_unstable();
    unused.dedup();
    let mut runs: Vec<(Iova, u64)> = Vec::new();
    for chunk in unused {
        chunks.set_mapped(chunk, false);
        let (iova, length) = (chunks.image().offset(chunks.base(chunk).0), chunks.bytes(chunk));
        match runs.last_mut() {
            Some((start, bytes)) if start.offset(*bytes) == iova => *bytes += length,
            _ => runs.push((iova, length)),
        }
    }
    for (iova, bytes) in runs {
        cx.actions.push(Action::UnmapDma { iova, bytes });
    }
}
