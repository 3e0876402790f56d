//! What the edge is told of pages that go to the window file or come back.

use std::collections::BTreeSet;

use fermi_spec::addr::{Iova, SMALL_PAGE};
use planted::Fault;

use super::{PAGE_MOVED, RUN_MOVED, RUN_MOVED_STILL};
use crate::device::Vgpu;
use crate::device::living::{Changes, PageRun};
use crate::event::{Action, Passage, Place, VmId};
use crate::manager::Cx;
use crate::memory::{ChunkNo, GuestPage, Reach};

/// Work for a map of a chunk's image that goes and comes again: the host pins each page.
const MAP_RENEWED: u64 = 300_000;

/// Tells the edge which pages live where from now on. A map that pins memory shows what was there when it was made: those of chunks whose
/// pages change their place go before and come again behind.
pub(super) fn carry_out(vgpu: &mut Vgpu, changes: &Changes, cx: &mut Cx<'_>) {
    let vm = vgpu.id;
    for run in &changes.back {
        // Nobody saw what was stored there.
        pages_of(run).for_each(|page| vgpu.stores.note(page.base()));
    }
    let runs = changes.back.iter().chain(&changes.lent);
    let chunks: BTreeSet<ChunkNo> = runs.flat_map(|run| chunks_of(vgpu, run)).collect();
    let pinned: Vec<ChunkNo> = chunks
        .into_iter()
        .filter(|chunk| vgpu.chunks.is_mapped(*chunk) && !planted::is(Fault::PinnedPageChanged))
        .collect();
    for &chunk in &pinned {
        let (iova, bytes) = (image_of(vgpu, chunk), vgpu.chunks.bytes(chunk));
        cx.actions.push(Action::UnmapDma { iova, bytes });
    }
    for (runs, is_lent) in [(&changes.back, false), (&changes.lent, true)] {
        for run in runs {
            let is_reached = pinned.is_empty() && is_reached(vgpu, run);
            let work = if is_reached { RUN_MOVED_STILL } else { RUN_MOVED };
            vgpu.share.charge(work + u64::from(run.pages) * PAGE_MOVED);
            cx.actions.push(passage(vm, run, is_lent, is_reached));
        }
    }
    for &chunk in &pinned {
        vgpu.share.charge(MAP_RENEWED);
        cx.actions.push(Action::MapDma {
            iova: image_of(vgpu, chunk),
            bytes: vgpu.chunks.bytes(chunk),
            memory: Place::Image {
                vm,
                at: vgpu.chunks.base(chunk),
            },
            writable: true,
            refusable: false,
        });
    }
}

fn image_of(vgpu: &Vgpu, chunk: ChunkNo) -> Iova {
    vgpu.chunks.image().offset(vgpu.chunks.base(chunk).0)
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
