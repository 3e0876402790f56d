//! Maps of guest RAM and of images go off the bus, as many at a time as their VM has a turn for.
//!
//! A VMM with an IOMMU maps page by page, thousands of them, and takes them all away with one message, or with its end. A map that goes is a
//! system call where the host's IOMMU has it, which also unpins its pages, and an entry of a table on a software card.

use fermi_spec::addr::{Gpa, SMALL_PAGE};

use super::Cx;
use super::images::{check_image, unmap_pieces};
use super::requests::Step;
use super::running::Running;
use crate::device::ram::{GPA_END, RamMap};
use crate::device::{Blocked, Remap, RemapStage};
use crate::event::{Action, Reply, VmId};
use crate::reason::Inconsistency;

/// Work of a map that goes, and of each of its pages where maps pin them.
const MAP_RELEASED: u64 = 2_000;
const PAGE_UNPINNED: u64 = 50;

impl Running {
    /// The card has forgotten a range that goes.
    pub(super) fn unmap_flushed(&mut self, vm: VmId, cx: &mut Cx<'_>) {
        let Some(vgpu) = self.vms.get_mut(&vm) else { return };
        let is_flushed = |blocked: &mut Blocked| match blocked {
            Blocked::Remap(remap) => remap.is_going && remap.stage == RemapStage::Flushing,
            _ => false,
        };
        let Some(Blocked::Remap(mut remap)) = vgpu.blocked.take_if(is_flushed) else {
            return;
        };
        remap.stage = RemapStage::Releasing;
        if self.release_remapped(vm, remap, cx).is_some() {
            self.volatile.ready.insert(vm);
        }
    }

    /// Takes maps of a range that goes off the bus, and answers behind the last of them. `None`: it waits for its VM's turn, and has been put
    /// back.
    pub(super) fn release_remapped(&mut self, vm: VmId, remap: Remap, cx: &mut Cx<'_>) -> Option<Step> {
        let released = self.release_maps(vm, (remap.gpa, remap.bytes), cx);
        let vgpu = self.vms.get_mut(&vm)?;
        match released {
            Ok(true) => {
                vgpu.ram.set_leaving(None);
                self.free_tables(vm, &remap.freed);
                cx.actions.push(Action::Reply {
                    vm,
                    request: remap.request.id,
                    reply: Reply::Done,
                });
                Some(Step::Done(Reply::Done))
            }
            Ok(false) => {
                vgpu.blocked = Some(Blocked::Remap(remap));
                None
            }
            Err(what) => {
                vgpu.ram.set_leaving(None);
                self.inconsistent(vm, what);
                None
            }
        }
    }

    /// Takes maps of a VM off the bus whose VRAM is free; behind the last of them it is gone, or as after power-on.
    pub(super) fn go_on_unmapping(&mut self, vm: VmId, cx: &mut Cx<'_>) {
        if !self.release_images(vm, cx) {
            return;
        }
        if self.vms.get(&vm).is_some_and(|vgpu| !vgpu.is_detaching()) {
            return self.end_reset(vm, cx);
        }
        // What its accounts have wrong is told when it is forgotten.
        if self.release_maps(vm, (Gpa(0), GPA_END), cx) != Ok(false) {
            self.forget(vm, cx);
        }
    }

    /// Takes maps of the VM's image off the bus as long as it has its turn. `true`: none is left.
    fn release_images(&mut self, vm: VmId, cx: &mut Cx<'_>) -> bool {
        while let Some(piece) = self.vms.get(&vm).and_then(|vgpu| vgpu.chunks.maps().first()) {
            if !self.has_turn(vm, cx.now) {
                return false;
            }
            let Some(vgpu) = self.vms.get_mut(&vm) else { break };
            if let Err(what) = check_image(vgpu, &self.iova) {
                self.inconsistent(vm, what);
                break;
            }
            vgpu.share
                .charge(MAP_RELEASED + u64::from(piece.pages) * PAGE_UNPINNED);
            unmap_pieces(vgpu, [piece], cx);
        }
        true
    }

    /// Takes maps that begin in a range off the bus as long as their VM has its turn. `true`: none is left.
    fn release_maps(
        &mut self,
        vm: VmId,
        (gpa, bytes): (Gpa, u64),
        cx: &mut Cx<'_>,
    ) -> Result<bool, Inconsistency> {
        loop {
            let first = self
                .vms
                .get(&vm)
                .and_then(|vgpu| vgpu.ram.first_within(gpa, bytes));
            let Some((start, map)) = first else {
                return Ok(true);
            };
            if !self.has_turn(vm, cx.now) {
                return Ok(false);
            }
            self.release_map(vm, (start, map), cx)?;
        }
    }

    fn release_map(
        &mut self,
        vm: VmId,
        (start, map): (Gpa, RamMap),
        cx: &mut Cx<'_>,
    ) -> Result<(), Inconsistency> {
        let Some(vgpu) = self.vms.get_mut(&vm) else {
            return Ok(());
        };
        self.iova.check_held(&vgpu.bus, vm, map.iova, map.bytes)?;
        vgpu.bus.release(map.iova, vm)?;
        self.iova.release_map(vm)?;
        vgpu.ram.remove(start);
        let pinned = if self.config.bus.pins {
            map.bytes / SMALL_PAGE
        } else {
            0
        };
        vgpu.share.charge(MAP_RELEASED + pinned * PAGE_UNPINNED);
        cx.actions.push(Action::UnmapDma {
            iova: map.iova,
            bytes: map.bytes,
        });
        Ok(())
    }
}
