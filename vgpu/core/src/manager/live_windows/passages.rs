//! What the edge is told of pages that go to the window file or come back.

use std::collections::BTreeSet;

use fermi_spec::addr::SMALL_PAGE;
use planted::Fault;

use super::{PAGE_MOVED, RUN_MOVED, RUN_MOVED_STILL};
use crate::device::Vgpu;
use crate::device::living::{Changes, PageRun};
use crate::event::{Action, Passage, VmId};
use crate::manager::Cx;
use crate::manager::images::{map_piece, unmap_pieces};
use crate::memory::{ChunkNo, GuestPage, Piece, Reach};

/// Work for a map of a piece of an image that goes and comes again, and for each of its pages, which the host pins.
const MAP_RENEWED: u64 = 50_000;
const PAGE_PINNED: u64 = 500;

/// Tells the edge which pages live where from now on. A map that pins memory shows what was there when it was made: pieces of the image whose
/// pages change their place are unmapped before and mapped again behind, what has changed apart from the rest.
pub(super) fn carry_out(vgpu: &mut Vgpu, changes: &Changes, cx: &mut Cx<'_>) {
    let vm = vgpu.id;
    for run in &changes.back {
        // Nobody saw what was stored there.
        pages_of(run).for_each(|page| vgpu.stores.note(page.base()));
    }
    let runs = changes.back.iter().chain(&changes.lent);
    let changed: BTreeSet<GuestPage> = runs.flat_map(pages_of).collect();
    let maps = vgpu.chunks.maps();
    let pinned: BTreeSet<Piece> = match planted::is(Fault::PinnedPageChanged) {
        true => BTreeSet::new(),
        false => changed.iter().filter_map(|page| maps.of(*page)).collect(),
    };
    unmap_pieces(vgpu, pinned.iter().copied(), cx);
    for (runs, is_lent) in [(&changes.back, false), (&changes.lent, true)] {
        for run in runs {
            let is_reached = pinned.is_empty() && is_reached(vgpu, run);
            let work = if is_reached { RUN_MOVED_STILL } else { RUN_MOVED };
            vgpu.share.charge(work + u64::from(run.pages) * PAGE_MOVED);
            cx.actions.push(passage(vm, run, is_lent, is_reached));
        }
    }
    for piece in pinned {
        for part in parts(vgpu, piece, &changed) {
            vgpu.share
                .charge(MAP_RENEWED + u64::from(part.pages) * PAGE_PINNED);
            cx.actions.push(map_piece(vgpu, part, false));
        }
    }
}

/// How a piece is mapped again: the pages that have changed apart from the others, as far as the VM has maps for that.
fn parts(vgpu: &Vgpu, piece: Piece, changed: &BTreeSet<GuestPage>) -> Vec<Piece> {
    let wanted = || piece.all().filter(|page| vgpu.chunks.wants_map(*page));
    let mut parts = Piece::runs(wanted().filter(|page| changed.contains(page)));
    parts.extend(Piece::runs(wanted().filter(|page| !changed.contains(page))));
    match vgpu.chunks.maps().may_be_apart(parts.len()) {
        true => parts,
        false => vec![piece],
    }
}

/// The action by which pages go to the window file, or come back.
fn passage(vm: VmId, run: &PageRun, is_lent: bool, is_reached: bool) -> Action {
    let passage = Passage {
        vm,
        offset: u64::from(run.place) * SMALL_PAGE,
        at: GuestPage(run.page).base(),
        bytes: u64::from(run.pages) * SMALL_PAGE,
        is_reached,
    };
    match is_lent {
        true => Action::Lend(passage),
        false => Action::TakeBack(passage),
    }
}

pub(super) fn pages_of(run: &PageRun) -> impl Iterator<Item = GuestPage> + use<> {
    (run.page..run.page + run.pages).map(GuestPage)
}

/// Chunks that pages of a run lie in.
fn chunks_of(vgpu: &Vgpu, run: &PageRun) -> BTreeSet<ChunkNo> {
    let chunks = pages_of(run).filter_map(|page| vgpu.chunks.of(page.base()));
    chunks.collect()
}

/// Whether the GPU may store to one of the pages while they change their place.
fn is_reached(vgpu: &Vgpu, run: &PageRun) -> bool {
    chunks_of(vgpu, run)
        .into_iter()
        .any(|chunk| vgpu.chunks.reach(chunk) == Reach::Writable)
}
