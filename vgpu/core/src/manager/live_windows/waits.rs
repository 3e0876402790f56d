//! Chunks that windows wait for: whose turn it is, and how long a guest's store waits.

use std::ops::Bound;

use planted::Fault;

use super::{LiveWindows, Patience};
use crate::device::Vgpu;
use crate::event::{Tick, VmId};
use crate::manager::Cx;
use crate::manager::preparing::What;
use crate::manager::running::Running;
use crate::memory::{ChunkNo, Piece};
use crate::reason::MoveCause;

/// Longest wait of a guest's store for pages that the GPU reaches. Its VM's own move is what it waits for, which takes a few milliseconds
/// unless copies fail; what it stored to a page that is not shown would be lost.
const WAIT_NS: u64 = 4_500_000_000;
/// Time until a chunk is tried again that could not move.
const AGAIN_NS: u64 = 10_000_000;

/// What windows wait for.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Waited {
    /// A chunk goes to host RAM.
    Spill(ChunkNo),
    /// Nothing reaches these pieces of the image for a moment.
    Stand(Vec<Piece>),
}

/// A chunk that windows wait for and that is still in VRAM, or else what nothing may reach for a moment. A look while its move was made ready has named
/// it once more.
fn next_of(vgpu: &Vgpu) -> Option<Waited> {
    let live = vgpu.live.as_ref()?;
    let mut waited_for = live.waits_for.iter();
    let is_in_vram = |chunk: ChunkNo| vgpu.chunks.place(chunk).is_in_vram() || vgpu.chunks.is_split(chunk);
    let spill = waited_for.find(|chunk| is_in_vram(**chunk));
    let stand = (!live.stands_for.is_empty()).then(|| live.stands_for.iter().copied().collect());
    spill.copied().map(Waited::Spill).or(stand.map(Waited::Stand))
}

impl LiveWindows {
    /// Whether a guest's store has waited as long as it may, and the windows do not show all that they are to yet.
    pub(crate) fn is_late(&self) -> bool {
        self.patience == Patience::Over
    }

    /// Chunks that have to leave before a store is answered, or to be mapped behind it.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = ChunkNo> {
        self.waits_for.iter().chain(&self.adopted).copied()
    }
}

impl Running {
    /// Lets stores go on that have waited long enough for windows. `true` if there are any.
    pub(in crate::manager) fn end_patience(&mut self, cx: &Cx<'_>) -> bool {
        let mut any = false;
        for vgpu in self.vms.values_mut() {
            if let Some(live) = &mut vgpu.live
                && let Patience::Waits(since) = live.patience
                && cx.now.since(since) >= WAIT_NS
            {
                live.patience = Patience::Over;
                vgpu.chunks.end_keeping_out();
                self.volatile.ready.insert(vgpu.id);
                any = true;
            }
        }
        any
    }

    /// What a VM's windows wait for, and may have now.
    fn next_to_show(&self, now: Tick) -> Option<(VmId, Waited)> {
        // Those behind the last one first.
        let (behind, before) = match self.mover.window_of {
            Some(last) => (
                (Bound::Excluded(last), Bound::Unbounded),
                (Bound::Unbounded, Bound::Included(last)),
            ),
            None => (
                (Bound::Unbounded, Bound::Unbounded),
                (Bound::Unbounded, Bound::Excluded(VmId(0))),
            ),
        };
        self.vms
            .range(behind)
            .chain(self.vms.range(before))
            .find_map(|(_, vgpu)| {
                let may_move =
                    !vgpu.leaves() && vgpu.passed_over_until <= now && !self.mover.is_aside(vgpu.id);
                Some((vgpu.id, next_of(vgpu).filter(|_| may_move)?))
            })
    }

    /// When the next such chunk may move, if nothing moves now, or the patience of a guest's store ends.
    pub(in crate::manager) fn next_to_show_at(&self) -> Option<Tick> {
        let stays = self.vms.values().filter(|vgpu| !vgpu.leaves());
        let due = stays.filter_map(|vgpu| {
            let live = vgpu.live.as_ref()?;
            let may_move = self.mover.is_idle() && !self.mover.is_aside(vgpu.id);
            let moves = next_of(vgpu).filter(|_| may_move).map(|_| vgpu.passed_over_until);
            let ends = match live.patience {
                Patience::Waits(since) => Some(since.after(WAIT_NS)),
                Patience::Calm | Patience::Over => None,
            };
            moves.into_iter().chain(ends).min()
        });
        due.min()
    }

    /// Brings a chunk to host RAM that a window is to show a page of, or has what reaches images stand still for it. `true` if anything changed.
    pub(in crate::manager) fn move_to_show(&mut self, cx: &mut Cx<'_>) -> bool {
        let Some((vm, waited)) = self.next_to_show(cx.now) else {
            return false;
        };
        // Whatever `host_ram` says: a page that is not shown reads as zero, and the chunk's image was promised when the VM attached.
        let is_started = match &waited {
            Waited::Spill(chunk) => self.start_move(vm, MoveCause::Shown, What::Spill(vec![*chunk]), cx),
            Waited::Stand(pieces) => self.start_standing(vm, pieces.clone(), cx),
        };
        if is_started {
            if let Some(vgpu) = self.vms.get_mut(&vm)
                && let Some(live) = &mut vgpu.live
            {
                match waited {
                    Waited::Spill(chunk) => {
                        live.waits_for.remove(&chunk);
                        // The store is tried again when it has its turn, which others can delay: the chunk would be back by then.
                        if live.is_waited_for() && !planted::is(Fault::ShownNotKeptOut) {
                            vgpu.chunks.keep_out(chunk);
                        }
                    }
                    Waited::Stand(_) => live.stands_for.clear(),
                }
            }
            (self.mover.was_for_window, self.mover.window_of) = (true, Some(vm));
            return true;
        }
        // No shadow table to point to host RAM with.
        if let Some(vgpu) = self.vms.get_mut(&vm) {
            vgpu.passed_over_until = cx.now.after(AGAIN_NS);
        }
        false
    }
}
