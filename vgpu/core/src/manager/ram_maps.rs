//! Maps of guest RAM come onto the bus, and go off it like those of images, as many at a time as their VM has a turn for.
//!
//! A VMM with an IOMMU maps page by page, thousands of them, and takes them all away with one message, or with its end. Where maps pin memory one
//! of all of a guest's RAM takes as long as it takes to have and pin that, seconds for a large guest, so it comes in pieces, each of which is a map
//! of its own. A map that comes or goes is a system call there, and an entry of a table on a software card.

use fermi_spec::addr::{Gpa, Iova, SMALL_PAGE};
use planted::Fault;

use super::Cx;
use super::images::{check_image, unmap_pieces};
use super::requests::Step;
use super::running::Running;
use crate::config::BUS_UNIT;
use crate::device::ram::{GPA_END, RamMap};
use crate::device::{Blocked, Pointing, Remap, RemapStage};
use crate::event::{Action, Place, Refusal, Reply, VmId};
use crate::reason::Inconsistency;
use crate::share::SLICE;

/// Work of a map that comes or goes, and of each of its pages where maps pin them.
const MAP_CHANGED: u64 = 2_000;
const PAGE_PINNED: u64 = 50;
/// Where maps pin memory: bytes of a piece at least, and most pieces that a request is cut into.
const PIECE_MIN: u64 = 4 << 20;
const PIECES_MAX: u64 = 128;
/// Work for a piece of a VM's bus addresses that a search for free ones looks at.
const ADDRESS_LOOKED_AT: u64 = 10;

impl Running {
    /// Gives a range of guest RAM bus addresses, for as many maps as it takes. An error: nothing changed, and the guest is told what it asked for.
    pub(super) fn reserve_ram(
        &mut self,
        vm: VmId,
        (gpa, bytes): (Gpa, u64),
        writable: bool,
        cx: &mut Cx<'_>,
    ) -> Result<(), Refusal> {
        let vgpu = self.vms.get(&vm).ok_or(Refusal::NotAttached)?;
        vgpu.ram.check(gpa, bytes)?;
        let (mapped, most) = (vgpu.ram.bytes(), vgpu.config.ram);
        if bytes > most.saturating_sub(mapped) {
            let what = || {
                format!(
                    "a map of {}K of RAM is refused: {}K are mapped, and its `ram` is {}M",
                    bytes >> 10,
                    mapped >> 10,
                    most >> 20
                )
            };
            self.guest_error(vm, what, cx);
            return Err(Refusal::TooMuchRam);
        }
        let piece = match self.config.bus.pins {
            true => bytes
                .div_ceil(PIECES_MAX)
                .next_multiple_of(BUS_UNIT)
                .max(PIECE_MIN),
            false => bytes,
        };
        let mut reserved = 0;
        while reserved < bytes {
            let (at, length) = (gpa.offset(reserved), piece.min(bytes - reserved));
            let map = RamMap {
                bytes: length,
                iova: Iova(0),
                writable,
                is_first: reserved == 0,
            };
            if let Err(refusal) = self.reserve_map(vm, at, map) {
                self.forget_ram(vm, (gpa, reserved));
                if refusal == Refusal::TooMuchRam {
                    let what = || {
                        format!(
                            "a map of {}K of RAM is refused: its bus addresses have no room of that size in one piece",
                            length >> 10
                        )
                    };
                    self.guest_error(vm, what, cx);
                }
                return Err(refusal);
            }
            reserved += length;
        }
        if let Some(vgpu) = self.vms.get_mut(&vm) {
            vgpu.ram.hide(Some((gpa, bytes)));
        }
        Ok(())
    }

    /// Gives a map bus addresses.
    fn reserve_map(&mut self, vm: VmId, gpa: Gpa, map: RamMap) -> Result<(), Refusal> {
        let vgpu = self.vms.get_mut(&vm).ok_or(Refusal::NotAttached)?;
        let (found, looked_at) = vgpu.bus.allocate(map.bytes, Some(vm));
        vgpu.share.charge(looked_at * ADDRESS_LOOKED_AT);
        let iova = found.ok_or(Refusal::TooMuchRam)?;
        if self.iova.check_held(&vgpu.bus, vm, iova, map.bytes).is_err() {
            self.inconsistent(vm, Inconsistency::on_bus(iova));
            return Err(Refusal::NotAttached);
        }
        if !self.iova.reserve_ram_map(vgpu.ram.count(), vm) {
            // It was given just now.
            let _ = vgpu.bus.release(iova, vm);
            return Err(Refusal::TooManyMaps);
        }
        vgpu.ram.insert(gpa, RamMap { iova, ..map });
        Ok(())
    }

    /// Takes addresses back of maps in a range that are not on the bus.
    pub(super) fn forget_ram(&mut self, vm: VmId, (gpa, bytes): (Gpa, u64)) {
        while let Some(vgpu) = self.vms.get_mut(&vm)
            && let Some((start, map)) = vgpu.ram.first_within(gpa, bytes)
        {
            vgpu.ram.remove(start);
            let released = vgpu.bus.release(map.iova, vm);
            let released = released.and_then(|()| self.iova.release_map(vm));
            self.believe(vm, released);
        }
    }

    /// Has maps of a range that comes on the bus; the first one in any case, the others as far as their VM has its turn. Behind the last one
    /// entries may name the range.
    pub(super) fn map_some_ram(&mut self, vm: VmId, remap: &mut Remap, cx: &mut Cx<'_>) {
        let RemapStage::Mapping { mut next } = remap.stage else {
            return;
        };
        let end = remap.gpa.offset(remap.bytes);
        let mut is_first = true;
        while let Some(vgpu) = self.vms.get(&vm)
            && let Some((gpa, map)) = vgpu.ram.first_within(next, end.0 - next.0)
        {
            if !std::mem::take(&mut is_first) && !self.has_turn(vm, cx.now) {
                remap.stage = RemapStage::Mapping { next };
                return;
            }
            next = gpa.offset(map.bytes);
            cx.actions.push(Action::MapDma {
                iova: map.iova,
                bytes: map.bytes,
                memory: Place::Ram { vm, gpa },
                writable: map.writable,
                refusable: false,
            });
            // Whoever comes waits for others behind each piece, but not for as long as it took: its VMM waits for the answer.
            let work = self.work_of_map(map.bytes).min(SLICE);
            if let Some(vgpu) = self.vms.get_mut(&vm) {
                vgpu.share.charge(work);
            }
        }
        if let Some(vgpu) = self.vms.get_mut(&vm) {
            vgpu.ram.hide(None);
        }
        // Entries that named RAM before the device reached it lead there now: the guest has no reason to change them. The card keeps no
        // translation of an entry that is not present, so nothing is flushed.
        remap.stage = match planted::is(Fault::MappedRamNotReached) {
            true => RemapStage::Flushing,
            false => RemapStage::Pointing(Pointing::default()),
        };
    }

    fn work_of_map(&self, bytes: u64) -> u64 {
        let pinned = if self.config.bus.pins {
            bytes / SMALL_PAGE
        } else {
            0
        };
        MAP_CHANGED + pinned * PAGE_PINNED
    }

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
                vgpu.ram.hide(None);
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
                vgpu.ram.hide(None);
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
            let work = self.work_of_map(piece.bytes());
            let Some(vgpu) = self.vms.get_mut(&vm) else { break };
            if let Err(what) = check_image(vgpu, &self.iova) {
                self.inconsistent(vm, what);
                break;
            }
            vgpu.share.charge(work);
            unmap_pieces(vgpu, [piece], cx);
        }
        true
    }

    /// Takes maps that begin in a range off the bus, as long as their VM has its turn. `true`: none is left.
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
        let work = self.work_of_map(map.bytes);
        let Some(vgpu) = self.vms.get_mut(&vm) else {
            return Ok(());
        };
        self.iova.check_held(&vgpu.bus, vm, map.iova, map.bytes)?;
        vgpu.bus.release(map.iova, vm)?;
        self.iova.release_map(vm)?;
        vgpu.ram.remove(start);
        vgpu.share.charge(work);
        cx.actions.push(Action::UnmapDma {
            iova: map.iova,
            bytes: map.bytes,
        });
        Ok(())
    }
}
