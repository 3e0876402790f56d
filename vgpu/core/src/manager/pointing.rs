//! Entries of a VM's shadows are pointed to where its memory is: step by step, because a guest decides how many name a chunk or a page of RAM.
//!
//! ```text
//! chunks in their new place ─┐
//! a range of RAM comes ──────┼─► a step: entries of some tables ─► all tables? ─► flush, where something is no longer there
//! a range of RAM goes ───────┘        ▲                              └ no: another event comes before the next step
//! ```
//!
//! Between two steps some entries name the old place and some the new one. Of a move both have the same bytes, and none of the channels that could
//! store to them runs; the old one is given up behind the flush that follows the last step. Entries that others write meanwhile name the new place. The
//! first step has all entries of a guest that maps a chunk once or a few times.

use fermi_spec::addr::Gpa;
use planted::Fault;
use shadow_pt::{GuestFrame, RedirectAt, TableRange, Work};

use super::Cx;
use super::isolation::Shadows;
use super::mover::Stage;
use super::requests::Step;
use super::running::Running;
use crate::device::{Blocked, Pointing, Remap, RemapStage};
use crate::event::{Reply, VmId};
use crate::host::Job;

/// Whose entries are looked for.
enum Of<'a> {
    Frames(&'a [GuestFrame]),
    Ram(Gpa, u64),
}

/// What a step did.
struct Pointed {
    /// Where the next one begins; `None`: there is none.
    rest: Option<Pointing>,
    /// Tables that were given up.
    freed: Vec<TableRange>,
    work: u64,
}

impl Running {
    /// Takes a step for the VM, of a slice of work or a little more.
    fn point_some(&mut self, vm: VmId, of: &Of<'_>, from: Pointing, cx: &mut Cx<'_>) -> Pointed {
        let mut work = Work::limited(self.config.step_work);
        let doing = match of {
            Of::Frames(_) => "pointing entries to the new place",
            Of::Ram(..) => "pointing entries to its RAM",
        };
        let done = self.on_shadows(vm, doing, cx, |shadows| {
            let Shadows {
                spaces,
                places,
                budget,
                writer,
                built,
                ..
            } = shadows;
            for (&id, space) in spaces.range_mut(from.space..) {
                let mut at = match id == from.space {
                    true => from.at,
                    false => RedirectAt::default(),
                };
                if work.is_used_up() {
                    return Some((id, at));
                }
                let shadow = &mut space.shadow;
                let done = match *of {
                    Of::Frames(frames) => {
                        shadow.redirect(frames, &mut at, *places, *budget, *writer, &mut work)
                    }
                    Of::Ram(gpa, bytes) => {
                        shadow.redirect_ram((gpa, bytes), &mut at, *places, *budget, *writer, &mut work)
                    }
                };
                let is_complete = done.is_complete;
                built.add(done);
                if !is_complete {
                    return Some((id, at));
                }
            }
            None
        });
        let (next, built) = done.unwrap_or_default();
        let rest = next.map(|(space, at)| Pointing {
            space,
            at,
            due: cx.now.after(1),
        });
        Pointed {
            rest,
            freed: built.freed,
            work: work.done(),
        }
    }

    /// Goes on with a move whose chunks are in their new place. `true`: it took a step.
    pub(super) fn go_on_pointing(&mut self, cx: &mut Cx<'_>) -> bool {
        let moving = self.mover.current.as_ref();
        let is_due = moving.is_some_and(|moving| match &moving.stage {
            Stage::Redirecting { rest: Some(rest), .. } => rest.due <= cx.now,
            _ => false,
        });
        if is_due {
            self.point_to_new_place(cx);
        }
        is_due
    }

    /// Takes a step of a move, or has the card forget the old place behind the last one.
    pub(super) fn point_to_new_place(&mut self, cx: &mut Cx<'_>) {
        let Some(moving) = &self.mover.current else { return };
        let Stage::Redirecting { rest: Some(from), .. } = moving.stage else {
            return;
        };
        let (vm, id) = (moving.head.vm, moving.head.id);
        let Some(vgpu) = self.vms.get(&vm) else { return };
        let frames = moving.head.redirected(&vgpu.chunks);
        let Pointed { rest, freed, work } = self.point_some(vm, &Of::Frames(&frames), from, cx);
        let rest = rest.filter(|_| !planted::is(Fault::PointedInPart));
        if let Some(vgpu) = self.vms.get_mut(&vm).filter(|_| from != Pointing::default()) {
            // The first step is everybody's.
            vgpu.share.charge(work);
        }
        if let Some(moving) = &mut self.mover.current
            && let Stage::Redirecting {
                rest: left,
                freed: all,
                ..
            } = &mut moving.stage
        {
            *left = rest;
            all.extend(freed);
        }
        if rest.is_none() {
            self.card.flush_tlb(None, Job::MoveFlushed(id));
        }
    }

    /// Goes on with a range of RAM that comes or goes, as far as the VM has its turn; the first step is taken in any case. `None`: it waits, and
    /// has been put back. `Some(Step::Done)`: it was answered.
    pub(super) fn advance_remap(&mut self, vm: VmId, mut remap: Remap, cx: &mut Cx<'_>) -> Option<Step> {
        self.map_some_ram(vm, &mut remap, cx);
        while let RemapStage::Pointing(from) = remap.stage
            && (from == Pointing::default() || self.has_turn(vm, cx.now))
        {
            let Pointed { rest, freed, work } =
                self.point_some(vm, &Of::Ram(remap.gpa, remap.bytes), from, cx);
            remap.stage = rest.map_or(RemapStage::Flushing, RemapStage::Pointing);
            remap.freed.extend(freed);
            self.vms.get_mut(&vm)?.share.charge(work);
        }
        if remap.stage == RemapStage::Releasing {
            return self.release_remapped(vm, remap, cx);
        }
        let vgpu = self.vms.get_mut(&vm)?;
        if remap.stage == RemapStage::Flushing && !remap.is_going {
            // Entries that appear give no table up. If they did, it would be free with the VM's last flush.
            vgpu.orphans.extend(remap.freed);
            self.finish(vm, remap.request.id, Step::Done(Reply::Done), cx);
            return Some(Step::Done(Reply::Done));
        }
        if remap.stage == RemapStage::Flushing {
            self.card.flush_tlb(None, Job::UnmapFlushed(vm));
        }
        vgpu.blocked = Some(Blocked::Remap(remap));
        if planted::is(Fault::DmaUnmappedBeforeFlush) {
            self.unmap_flushed(vm, cx);
        }
        None
    }
}
