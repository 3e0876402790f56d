//! Windows on cards behind an IOMMU, whose maps pin memory: such a map shows what lay there when it was made, whatever the broker's own
//! mapping shows since.
//!
//! A page of the image that is not mapped changes its place as on other cards: a map that is made later pins what is there then. One
//! that is mapped does so while nothing reaches the piece that it is mapped with:
//!
//! ```text
//! the guest's store waits ─► a move in which chunks stay: channels that reach these pieces of images are off the card
//!                              ─► pieces unmapped, pages change their place, mapped again, apart ─► channels go on, the store is tried again
//! ```
//!
//! Bus addresses stay what they are, so no entry changes and no TLB has to forget anything. Of a chunk in VRAM only instance memory is
//! mapped: a table beside data is reached by nobody through the image, and no channel is stopped for it, busy as the data may be.

use std::collections::{BTreeMap, BTreeSet};

use super::{part_of, show};
use crate::device::living::differing;
use crate::event::VmId;
use crate::manager::Cx;
use crate::manager::running::Running;
use crate::memory::{GuestPage, Piece};

/// Pieces that one move has stand still. What windows are to show beyond that takes others.
const PIECES_AT_ONCE: usize = 64;

impl Running {
    /// What of it windows may show while nothing reaches these pieces of the image, and the first of those that this would have to be so of
    /// for the rest. Places whose turn it is not show what they have shown.
    pub(super) fn showable(
        &self,
        vm: VmId,
        shown: &BTreeMap<u32, u32>,
        standing: &[Piece],
    ) -> (BTreeMap<u32, u32>, BTreeSet<Piece>) {
        let mut stand = BTreeSet::new();
        let vgpu = self.vms.get(&vm);
        let Some((vgpu, live)) = vgpu.and_then(|vgpu| Some((vgpu, vgpu.live.as_ref()?))) else {
            return (shown.clone(), stand);
        };
        let before = live.living.shown();
        let mut next = before.clone();
        for place in differing(before, shown) {
            let pages = [before.get(&place), shown.get(&place)].into_iter().flatten();
            let pieces = pages.filter_map(|page| vgpu.chunks.maps().of(GuestPage(*page)));
            let held: Vec<Piece> = pieces.filter(|piece| !standing.contains(piece)).collect();
            // Those of one place stand still together, or it would never show another page.
            if stand.len() < PIECES_AT_ONCE {
                stand.extend(&held);
            }
            match shown.get(&place) {
                _ if !held.is_empty() => {}
                Some(page) => drop(next.insert(place, *page)),
                None => drop(next.remove(&place)),
            }
        }
        (next, stand)
    }

    /// Has windows show what they wait for, as far as nothing reaches these pieces of the image for it.
    pub(in crate::manager) fn show_while_standing(&mut self, vm: VmId, standing: &[Piece], cx: &mut Cx<'_>) {
        let live = self.vms.get_mut(&vm).and_then(|vgpu| vgpu.live.as_mut());
        let Some(wanted) = live.map(|live| std::mem::take(&mut live.wanted)) else {
            return;
        };
        if wanted.is_empty() {
            return;
        }
        let (mut next, _) = self.showable(vm, &wanted, standing);
        let Some(vgpu) = self.vms.get_mut(&vm) else { return };
        let Some(live) = &vgpu.live else { return };
        // It may have become data again since.
        next.retain(|_, page| vgpu.chunks.is_instance(GuestPage(*page)));
        let (next, _) = part_of(live.living.shown(), next);
        show(vgpu, next, cx);
    }

    /// Maps pages that have become instance memory, where an entry may lead to them from now on.
    pub(super) fn map_instance(&mut self, vm: VmId, cx: &mut Cx<'_>) {
        let live = self.vms.get_mut(&vm).and_then(|vgpu| vgpu.live.as_mut());
        let adopted = live.map(|live| {
            live.asked_for.clear();
            std::mem::take(&mut live.adopted)
        });
        for chunk in adopted.into_iter().flatten() {
            self.map_backed(vm, chunk, cx);
        }
    }
}
