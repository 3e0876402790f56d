//! Windows on cards behind an IOMMU, whose maps pin memory: such a map shows what lay there when it was made, whatever the broker's own
//! mapping shows since.
//!
//! A page whose chunk's image is not mapped changes its place as on other cards: a map that is made later pins what is there then. One
//! whose chunk is mapped does so while nothing reaches that image:
//!
//! ```text
//! the guest's store waits ─► a move in which the chunks stay: channels that reach their images are off the card
//!                              ─► images unmapped, pages change their place, images mapped ─► channels go on, the store is tried again
//! ```
//!
//! Bus addresses stay what they are, so no entry changes and no TLB has to forget anything. A chunk of tables beside data is reached by
//! nobody through its image, though its data may be busy: then no channel is stopped.

use std::collections::{BTreeMap, BTreeSet};

use super::{part_of, show};
use crate::device::living::differing;
use crate::event::VmId;
use crate::manager::Cx;
use crate::manager::running::Running;
use crate::memory::{ChunkNo, GuestPage};

impl Running {
    /// What of it windows may show while only these chunks stand still, and the chunks that would have to for the rest. Places whose turn it
    /// is not show what they have shown.
    pub(super) fn showable(
        &self,
        vm: VmId,
        shown: &BTreeMap<u32, u32>,
        standing: &[ChunkNo],
    ) -> (BTreeMap<u32, u32>, BTreeSet<ChunkNo>) {
        let mut stand = BTreeSet::new();
        let Some(vgpu) = self.vms.get(&vm).filter(|_| self.config.bus.pins) else {
            return (shown.clone(), stand);
        };
        let Some(live) = &vgpu.live else {
            return (shown.clone(), stand);
        };
        let before = live.living.shown();
        let mut next = before.clone();
        for place in differing(before, shown) {
            let pages = [before.get(&place), shown.get(&place)];
            let chunks = pages
                .into_iter()
                .flatten()
                .filter_map(|page| vgpu.chunks.of(GuestPage(*page).base()));
            let held = chunks.filter(|chunk| vgpu.chunks.is_mapped(*chunk) && !standing.contains(chunk));
            let held: Vec<ChunkNo> = held.collect();
            stand.extend(&held);
            match shown.get(&place) {
                _ if !held.is_empty() => {}
                Some(page) => drop(next.insert(place, *page)),
                None => drop(next.remove(&place)),
            }
        }
        (next, stand)
    }

    /// Has windows show what they wait for, as far as these chunks stand still for it.
    pub(in crate::manager) fn show_while_standing(
        &mut self,
        vm: VmId,
        standing: &[ChunkNo],
        cx: &mut Cx<'_>,
    ) {
        let Some(wanted) = self
            .vms
            .get(&vm)
            .and_then(|vgpu| vgpu.live.as_ref())
            .map(|live| &live.wanted)
        else {
            return;
        };
        if wanted.is_empty() {
            return;
        }
        let (mut next, _) = self.showable(vm, wanted, standing);
        let Some(vgpu) = self.vms.get_mut(&vm) else { return };
        let Some(live) = &mut vgpu.live else { return };
        live.wanted.clear();
        // It may have become data again since.
        next.retain(|_, page| vgpu.chunks.is_instance(GuestPage(*page)));
        let (next, _) = part_of(live.living.shown(), next);
        show(vgpu, next, cx);
    }
}
