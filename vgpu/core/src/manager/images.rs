//! The images that the card reaches, for cards behind an IOMMU whose maps pin memory.
//!
//! Without pins a VM's image is mapped whole for as long as the VM is attached. With pins it is mapped in pieces:
//!
//! ```text
//! unmapped ─ chunk goes to host RAM, or is about to ─► mapped ─ nothing points there, TLBs flushed ─► unmapped
//! ```
//!
//! * Memory that a shadow entry names is mapped: chunks in host RAM, and pages of backed chunks that are instance memory, which
//!   stay in the image while their chunk is in VRAM.
//! * A chunk that will be spilled is mapped before its channels are suspended. The host may refuse that (its bound
//!   of locked memory): the move is rolled back, and the chunk stays where it is.
//! * A map goes after the flush that follows a redirect, and before the image's pages are given back. A page that
//!   is given back while it is mapped would stay the card's, and the broker would see another.
//! * A VM whose client maps windows has more maps than chunks, so that what changes its place there is mapped apart from the rest
//!   (`live_windows::pinned`). Beyond that a chunk is mapped as a whole.

use fermi_spec::addr::{GuestVramAddr, Iova};

use super::Cx;
use super::running::Running;
use crate::config::VmConfig;
use crate::device::Vgpu;
use crate::device::ram::IovaSpace;
use crate::event::{Action, Place, VmId};
use crate::memory::{ChunkNo, GuestPage, Piece};
use crate::reason::Inconsistency;

/// Most DMA maps that the image of such a VM takes, if no window shows it.
pub(super) fn maps_of(config: &VmConfig, pins: bool) -> u32 {
    if pins { chunks_of(config) } else { 1 }
}

/// Further maps for one whose client maps windows: two for each chunk and so many.
pub(super) fn maps_for_windows(config: &VmConfig) -> u32 {
    chunks_of(config).saturating_mul(2).saturating_add(1024)
}

fn chunks_of(config: &VmConfig) -> u32 {
    u32::try_from(config.guest_vram.div_ceil(config.chunk_bytes)).unwrap_or(u32::MAX)
}

/// The action that has a piece of a VM's image mapped, which is noted.
pub(super) fn map_piece(vgpu: &mut Vgpu, piece: Piece, refusable: bool) -> Action {
    vgpu.chunks.maps_mut().insert(piece);
    let (vm, at) = (vgpu.id, piece.at());
    Action::MapDma {
        iova: vgpu.chunks.image().offset(at.0),
        bytes: piece.bytes(),
        memory: Place::Image { vm, at },
        writable: true,
        refusable,
    }
}

/// Unmaps pieces of a VM's image. Neighbours go together: each unmap costs the host a flush of its IOMMU.
pub(super) fn unmap_pieces(vgpu: &mut Vgpu, pieces: impl IntoIterator<Item = Piece>, cx: &mut Cx<'_>) {
    let mut runs: Vec<(Iova, u64)> = Vec::new();
    for piece in pieces {
        vgpu.chunks.maps_mut().remove(piece);
        let (iova, length) = (vgpu.chunks.image().offset(piece.at().0), piece.bytes());
        match runs.last_mut() {
            Some((start, bytes)) if start.offset(*bytes) == iova => *bytes += length,
            _ => runs.push((iova, length)),
        }
    }
    for (iova, bytes) in runs {
        cx.actions.push(Action::UnmapDma { iova, bytes });
    }
}

impl Running {
    /// Lets the card reach all of the images of chunks. With `refusable` it is for a move, which is rolled back if the host refuses;
    /// otherwise a refusal costs the VM its vGPU.
    pub(super) fn map_images(&mut self, vm: VmId, chunks: &[ChunkNo], refusable: bool, cx: &mut Cx<'_>) {
        if !self.config.bus.pins {
            return;
        }
        let Some(vgpu) = self.vms.get_mut(&vm) else { return };
        if let Err(what) = check_image(vgpu, &self.iova) {
            return self.inconsistent(vm, what);
        }
        for &chunk in chunks {
            for gap in vgpu.chunks.maps().gaps(vgpu.chunks.whole(chunk)) {
                cx.actions.push(map_piece(vgpu, gap, refusable));
            }
        }
    }

    /// Maps what of a chunk an entry may name and has no map yet: it has just got memory, or pages of it became instance memory.
    pub(super) fn map_backed(&mut self, vm: VmId, chunk: ChunkNo, cx: &mut Cx<'_>) {
        let Some(vgpu) = self.vms.get_mut(&vm).filter(|_| self.config.bus.pins) else {
            return;
        };
        let unmapped = vgpu.chunks.unmapped(chunk);
        if unmapped.is_empty() {
            return;
        }
        if !vgpu.chunks.maps().may_be_apart(unmapped.len()) {
            return self.map_images(vm, &[chunk], false, cx);
        }
        if let Err(what) = check_image(vgpu, &self.iova) {
            return self.inconsistent(vm, what);
        }
        for piece in unmapped {
            cx.actions.push(map_piece(vgpu, piece, false));
        }
    }

    /// Unmaps what of the images of those chunks no entry points to any more. The TLBs have been flushed since.
    pub(super) fn unmap_images(
        &mut self,
        vm: VmId,
        chunks: impl IntoIterator<Item = ChunkNo>,
        cx: &mut Cx<'_>,
    ) {
        let Some(vgpu) = self.vms.get_mut(&vm) else { return };
        if let Err(what) = check_image(vgpu, &self.iova) {
            return self.inconsistent(vm, what);
        }
        let mut chunks: Vec<ChunkNo> = chunks.into_iter().collect();
        chunks.sort_unstable();
        chunks.dedup();
        let in_vain = chunks
            .into_iter()
            .flat_map(|chunk| vgpu.chunks.mapped_in_vain(chunk));
        let in_vain: Vec<Piece> = in_vain.collect();
        unmap_pieces(vgpu, in_vain, cx);
    }

    /// Handles the host's refusal to map a piece of a chunk's image for a move.
    pub(super) fn map_refused(&mut self, iova: Iova) {
        let Self { vms, iova: bus, .. } = self;
        let mut sound = vms.values_mut().filter(|vgpu| check_image(vgpu, bus).is_ok());
        let found = sound.find_map(|vgpu| {
            let at = GuestVramAddr(iova.0.checked_sub(vgpu.chunks.image().0)?);
            let chunk = vgpu.chunks.of(at)?;
            Some((vgpu, GuestPage::of(at), chunk))
        });
        let Some((vgpu, page, chunk)) = found else { return };
        if let Some(piece) = vgpu.chunks.maps().of(page) {
            vgpu.chunks.maps_mut().remove(piece);
        }
        let vm = vgpu.id;
        if let Some(moving) = self.mover.current.as_mut().filter(|moving| moving.head.vm == vm) {
            let concerns = moving.head.standing().any(|of| of == chunk);
            moving.head.is_refused |= concerns;
        }
    }
}

/// Checks that a VM's image lies at bus addresses of its own.
pub(super) fn check_image(vgpu: &Vgpu, bus: &IovaSpace) -> Result<(), Inconsistency> {
    bus.check_held(&vgpu.bus, vgpu.id, vgpu.chunks.image(), vgpu.config.guest_vram)
}
