//! A move whose VM is not off the card in time: it stands aside until the VM's work is over, and other moves go on.
//!
//! ```text
//! Suspending ─not in time─► Draining ─its work is over, and nothing else moves─► Suspending: off at once
//!                              └ not in another budget, or the VM goes ──► rolled back; three in a row: a spill waits for the end
//! ```
//!
//! To give the move up at once would have the VM stand still for nothing, and the next try would meet the next grid. Its channels
//! are not scheduled any more, so what is under way is the last. The VM is passed over meanwhile, and what somebody waits for is taken
//! from others. It goes on otherwise: its syncs, its stores, channels that it binds. So what the move relies on is looked at anew.
//!
//! A move stands aside once, and one at a time. The pause is told as one, from the first stop to the doorbells.
//!
//! A VM whose work outlasts both budgets each time would keep its memory for ever, and be stopped for nothing again and again. After three
//! suspensions in vain the next spill waits for the end of its work: what is above the budgets is the length of its own grid.

use planted::Fault;

use super::Cx;
use super::engine_looks::DRIVEN;
use super::live_windows::give_back_to;
use super::mover::{Move, Stage};
use super::running::Running;
use crate::host::Job;
use crate::notice::Direction;
use crate::reason::RollBack;

/// Time between two looks at the engines. What did not end within a budget does not end in microseconds.
const LOOK_NS: u64 = 500_000;
/// From the first stop on, a move that stands aside has so many times the budget of a suspension: with the copy, a pause stays below 50 ms.
const BUDGETS: u64 = 2;
/// A spill of a VM whose suspensions were in vain stands aside for that long. Nobody else's late move can meanwhile.
const TO_THE_END_NS: u64 = 1_000_000_000;

impl Running {
    /// Puts the move under way aside: its channels are not off the card in time. `false` if it has to be given up.
    pub(super) fn put_aside(&mut self, cx: &mut Cx<'_>) -> bool {
        if self.mover.aside.is_some() {
            return false;
        }
        let vms = &self.vms;
        let may_wait = |moving: &mut Move| {
            let stays = vms.get(&moving.head.vm).is_some_and(|vgpu| !vgpu.leaves());
            stays && !moving.head.was_aside
        };
        let Some(mut moving) = self.mover.current.take_if(may_wait) else {
            return false;
        };
        moving.head.was_aside = true;
        moving.head.is_refused = false;
        let (vm, chunks) = (moving.head.vm, moving.head.standing().collect::<Vec<_>>());
        if let Some(vgpu) = self.vms.get_mut(&vm) {
            for &chunk in &chunks {
                vgpu.chunks.set_moving(chunk, false);
                give_back_to(vgpu, chunk);
            }
        }
        let is_always_late = self
            .vms
            .get(&vm)
            .is_some_and(|vgpu| vgpu.drains.are_always_late());
        let patience = match moving.head.direction {
            _ if planted::is(Fault::AsideForgotten) => u64::MAX,
            Direction::Spill if is_always_late => TO_THE_END_NS,
            // The frames that a refill has taken are nobody's meanwhile.
            Direction::Spill | Direction::Refill => self.config.suspend_budget_ns.saturating_mul(BUDGETS),
        };
        let since = moving.head.suspension.as_ref().map_or(cx.now, |held| held.since);
        let stage = Stage::Draining {
            until: since.after(patience),
            look_at: cx.now.after(LOOK_NS),
            is_over: false,
        };
        moving.enter(stage, cx);
        self.mover.aside = Some(moving);
        self.commit_host_runlist(Job::Nothing);
        self.unmap_images(vm, chunks, cx);
        self.wake_after_move(vm);
        true
    }

    /// Goes on with the move aside, or gives it up, when it is time. `true` if that changed something.
    pub(super) fn check_aside(&mut self, cx: &mut Cx<'_>) -> bool {
        let Some(Move {
            head,
            stage:
                Stage::Draining {
                    until,
                    look_at,
                    is_over,
                },
            ..
        }) = &self.mover.aside
        else {
            return false;
        };
        let id = head.id;
        let leaves = self.vms.get(&head.vm).is_none_or(|vgpu| vgpu.leaves());
        if *is_over && self.mover.is_idle() && !leaves {
            if let Some(moving) = self.mover.aside.take() {
                self.stop_for(moving, false, cx);
            }
            return true;
        }
        if leaves || *until <= cx.now {
            let reason = match leaves {
                true => RollBack::Leaving,
                false => RollBack::NotIdle,
            };
            self.give_up_aside(reason, cx);
            return true;
        }
        if *is_over || cx.now < *look_at || self.are_engines_asked(id) {
            return false;
        }
        self.ask_engines(id, &DRIVEN, cx);
        true
    }

    /// The engines were looked at for the move aside.
    pub(super) fn looked_aside(&mut self, is_at_work: bool, cx: &mut Cx<'_>) {
        if let Some(moving) = &mut self.mover.aside
            && let Stage::Draining { look_at, is_over, .. } = &mut moving.stage
        {
            *look_at = cx.now.after(LOOK_NS);
            *is_over = !is_at_work && !planted::is(Fault::AsideForgotten);
        }
    }

    /// Rolls the move aside back, whatever else moves.
    fn give_up_aside(&mut self, reason: RollBack, cx: &mut Cx<'_>) {
        let other = std::mem::replace(&mut self.mover.current, self.mover.aside.take());
        self.give_up(reason, cx);
        self.mover.current = other;
    }
}
