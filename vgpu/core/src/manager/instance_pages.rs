//! Pages of tables that lie in VRAM become instance memory: from then on they are in the VM's image, where they are read and
//! stored to without the card (decision 0026).
//!
//! ```text
//! in VRAM ── a sync reads it, or the guest stores through PRAMIN or BAR3 ──► fetched ── no entry leads there ──► in the image
//!    ▲                                                                          └ some entry does: stays ─┐
//!    └────────────────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Nothing has to be redirected or flushed, because only pages move that the GPU cannot reach: the CPU's stores are the core's own, and
//! those of the VM wait while the page is fetched.

use std::collections::BTreeMap;

use planted::Fault;
use shadow_pt::{Placement, Work};

use super::Cx;
use super::running::Running;
use crate::device::Vgpu;
use crate::event::{Place, Token, VmId};
use crate::memory::GuestPage;

/// Most work for one page: some 400 slots that reach its frame.
const LOOK_WORK: u64 = 20_000;

impl Running {
    /// Whether a page in VRAM may become instance memory. Looking costs the VM some of its share.
    pub(super) fn may_adopt(&mut self, vm: VmId, page: GuestPage) -> bool {
        let Some(vgpu) = self.vms.get_mut(&vm) else {
            return false;
        };
        let Some(chunk) = vgpu.chunks.of(page.base()) else {
            return false;
        };
        let is_in_vram = matches!(vgpu.chunks.locate(page.base()), Placement::Vram(_));
        // Where maps of the image pin memory, a page of it takes a whole chunk's, unless the VM has maps to spare for windows.
        let is_reached =
            !self.config.bus.pins || vgpu.chunks.maps().of(page).is_some() || vgpu.live.is_some();
        is_in_vram
            && is_reached
            && !vgpu.chunks.is_instance(page)
            && !vgpu.chunks.is_moving(chunk)
            && is_unnamed(vgpu, page)
    }

    /// Loads a page in VRAM that is about to be stored to as instance memory, so that it becomes that first; once for a request.
    pub(super) fn fetch_to_adopt(
        &mut self,
        vm: VmId,
        page: GuestPage,
        cx: &mut Cx<'_>,
    ) -> Option<BTreeMap<Token, GuestPage>> {
        let was_fetched = self.vms.get(&vm)?.fetched.contains_key(&page);
        let fetching = (!was_fetched && self.may_adopt(vm, page)).then(|| self.fetch(vm, &[page], cx));
        fetching.filter(|pages| !pages.is_empty())
    }

    /// Makes a page instance memory whose bytes were fetched for the request at hand. It stays where it is if it may not, or if the card gave
    /// less than a page.
    pub(super) fn adopt(&mut self, vm: VmId, page: GuestPage, cx: &mut Cx<'_>) {
        if !self.may_adopt(vm, page) {
            return;
        }
        let Some(vgpu) = self.vms.get_mut(&vm) else { return };
        let Some(bytes) = vgpu.fetched.remove(&page) else {
            return;
        };
        vgpu.chunks.set_instance(page);
        let at = page.base();
        cx.memory.write(Place::Image { vm, at }, &*bytes);
        let Some(chunk) = vgpu.chunks.of(at) else { return };
        let live = vgpu.live.as_mut();
        if !live.is_some_and(|live| live.note_adopted(page, chunk)) {
            self.map_backed(vm, chunk, cx);
        }
    }
}

/// Whether the GPU cannot reach the page through any of the VM's address spaces.
fn is_unnamed(vgpu: &mut Vgpu, page: GuestPage) -> bool {
    let mut work = Work::limited(LOOK_WORK);
    let mut spaces = vgpu.spaces.values();
    let is_named = spaces.any(|space| space.shadow.may_name(page.base(), &mut work));
    vgpu.share.charge(work.done());
    !is_named || planted::is(Fault::NamedPageAdopted)
}
