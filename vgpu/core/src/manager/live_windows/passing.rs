//! Data that BAR1 shows: it is instance memory while it is shown, and belongs to its chunk afterwards.
//!
//! What BAR3 and PRAMIN show are tables and instance blocks, which stay instance memory. BAR1 shows what the GPU works with. Such a page
//! goes back without a copy when its chunk is in host RAM, where a page of either kind lies in the image and the GPU reaches both alike.

use std::collections::{BTreeMap, BTreeSet};

use super::Needs;
use crate::device::Vgpu;
use crate::event::VmId;
use crate::manager::running::Running;
use crate::memory::{ChunkNo, ChunkPlace, GuestPage};

impl Running {
    /// Pages that BAR1 shows and no other window.
    pub(super) fn shown_as_data(&self, vm: VmId, shown: &BTreeMap<u32, u32>) -> BTreeSet<u32> {
        let Some(live) = self.vms.get(&vm).and_then(|vgpu| vgpu.live.as_ref()) else {
            return BTreeSet::new();
        };
        let bar1 = &live.places.bar1;
        let mut data: BTreeSet<u32> = shown.range(bar1.clone()).map(|(_, page)| *page).collect();
        let others = shown.range(..bar1.start).chain(shown.range(bar1.end..));
        for (_, page) in others {
            data.remove(page);
        }
        data
    }

    /// Notes whether a page that is about to be shown is data. One that is instance memory already stays what it is.
    pub(super) fn note_passing(&mut self, vm: VmId, page: GuestPage, data: &BTreeSet<u32>, needs: &Needs) {
        let Some(live) = self.vms.get_mut(&vm).and_then(|vgpu| vgpu.live.as_mut()) else {
            return;
        };
        let was_fetched = live.coming.remove(&page.0);
        match (data.contains(&page.0), needs) {
            (false, _) => drop(live.passing.remove(&page.0)),
            (true, Needs::Fetch) => drop(live.coming.insert(page.0)),
            (true, Needs::Becoming) => drop(live.passing.insert(page.0)),
            (true, Needs::Nothing) if was_fetched => drop(live.passing.insert(page.0)),
            (true, _) => {}
        }
    }
}

/// A chunk is where a move has brought it: if that is host RAM, pages of it that windows have shown as data belong to it again.
pub(in crate::manager) fn give_back_to(vgpu: &mut Vgpu, chunk: ChunkNo) {
    let Some(live) = &vgpu.live else { return };
    let base = vgpu.chunks.base(chunk);
    let pages = GuestPage::of(base).0..GuestPage::of(base.offset(vgpu.chunks.bytes(chunk))).0;
    let hidden = live
        .passing
        .range(pages)
        .filter(|page| !live.living.lives(**page));
    let hidden: Vec<GuestPage> = hidden.map(|page| GuestPage(*page)).collect();
    give_back(vgpu, &hidden);
}

/// Pages of data that no window shows any more belong to their chunks again, where these are in host RAM.
pub(super) fn give_back(vgpu: &mut Vgpu, pages: &[GuestPage]) {
    let Some(live) = &mut vgpu.live else { return };
    for &page in pages {
        let is_spilled = vgpu.chunks.of(page.base()).is_some_and(|chunk| {
            *vgpu.chunks.place(chunk) == ChunkPlace::Spilled && !vgpu.chunks.is_moving(chunk)
        });
        if is_spilled && live.passing.remove(&page.0) {
            vgpu.chunks.unset_instance(page);
        }
    }
}
