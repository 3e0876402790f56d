//! Channels that stand still while memory moves: off the card before the copy, back behind the flush.
//!
//! ```text
//!  suspend ──► drained (off the card) ──► copy, redirect, flush ──► put back ──► doorbells written: the pause is over
//!     └──────────────── what a pause lasts, rolled back or not ────────────────────────┘
//! ```
//!
//! What a move leaves to be done besides is done when the pause is over.

use planted::Fault;
use shadow_pt::{GuestFrame, Work};

use super::Cx;
use super::mover::{Head, Move, Stage, Suspension};
use super::running::Running;
use crate::device::{Space, Vgpu};
use crate::event::{Tick, VmId};
use crate::host::card::Off;
use crate::host::{Job, Pause, PhysChannel};
use crate::memory::{GuestPage, Piece};
use crate::notice::{MoveId, Notice};
use crate::reason::RollBack;

/// Most work of looking for entries that lead to pieces of images, for all address spaces of a VM together, ns. What is not seen by then counts as found.
pub(super) const LOOK_WORK: u64 = 100_000;

impl Running {
    /// Takes the channels that can write the chunks off the card; with those that are suspended already, if the move stood aside.
    pub(super) fn suspend(
        &mut self,
        mut head: Head,
        writers: Vec<(u8, PhysChannel)>,
        was_at_work: bool,
        cx: &mut Cx<'_>,
    ) {
        let id = head.id;
        let vgpu = self.vms.get(&head.vm);
        if let Some(vgpu) = vgpu.filter(|_| head.suspension.is_none()) {
            let (comes, halves) = match head.leaves_a_rest(&vgpu.chunks) {
                true => (0, 1),
                false => (head.bytes_then(vgpu), head.halves()),
            };
            let bytes = head.bytes(vgpu) + comes;
            let drain_ns = vgpu.drains.expected(was_at_work);
            cx.tell(Notice::Suspended {
                vm: head.vm,
                id,
                channels: writers.len() as u32,
                predicted_ns: self.forecast.pause_ns(bytes, halves, drain_ns),
            });
        }
        // The guest may have unbound one of them, and its number be another VM's; or have bound it anew.
        let is_held = |held: &(u8, PhysChannel)| {
            let channel = vgpu.and_then(|vgpu| vgpu.channels.get(&held.0));
            let is_same = channel.is_some_and(|channel| channel.physical == held.1 && channel.suspended);
            is_same && !writers.contains(held)
        };
        let suspension = head.suspension.get_or_insert_with(|| Suspension {
            channels: Vec::new(),
            since: cx.now,
            drained_ns: None,
            was_at_work,
        });
        suspension.channels.retain(is_held);
        suspension.channels.extend(writers);
        let channels = suspension.channels.iter();
        let physical: Vec<PhysChannel> = channels.map(|(_, physical)| *physical).collect();
        self.mover.current = Some(Move::new(head, Stage::Suspending, cx.now));
        self.card.take_off(
            &physical,
            Off::Stay,
            self.config.suspend_budget_ns,
            Job::Suspended(id),
        );
    }

    /// The channels are off the card, or one of them was not in time.
    pub(super) fn suspended(&mut self, id: MoveId, ok: bool, cx: &mut Cx<'_>) {
        if !self
            .mover
            .get(id)
            .is_some_and(|moving| matches!(moving.stage, Stage::Suspending))
        {
            return;
        }
        if !ok {
            if !self.put_aside(cx) {
                self.give_up(RollBack::NotIdle, cx);
            }
            return;
        }
        self.commit_host_runlist(Job::Nothing);
        if let Some(mut moving) = self.mover.current.take() {
            moving.tell_stage(cx);
            if let Some(suspension) = &mut moving.head.suspension {
                suspension.drained_ns = Some(cx.now.since(suspension.since));
            }
            self.map_copy(moving.head, cx);
        }
    }

    /// The doorbells of channels that were suspended are written.
    pub(super) fn resumed(&mut self, pause: Pause, cx: &mut Cx<'_>) {
        let suspended_ns = cx.now.since(pause.since);
        if let Some(vgpu) = self.vms.get_mut(&pause.vm) {
            vgpu.drains.note(pause.was_at_work, pause.drained_ns);
            match pause {
                Pause { is_late: true, .. } => vgpu.drains.was_late(),
                Pause {
                    is_rolled_back: false,
                    ..
                } => vgpu.drains.was_in_time(),
                _ => {}
            }
            vgpu.last_pause = Some((cx.now, suspended_ns));
        }
        if !pause.is_rolled_back {
            let known = pause.drained_ns.saturating_add(pause.copying_ns);
            self.forecast
                .note_rest(suspended_ns.saturating_sub(known) / pause.halves);
        }
        cx.tell(Notice::Resumed {
            vm: pause.vm,
            id: pause.id,
            suspended_ns,
            drained_ns: pause.drained_ns,
            is_rolled_back: pause.is_rolled_back,
        });
        self.finish_move(pause.id, Some(suspended_ns), cx);
    }

    /// Puts the suspended channels back; what was submitted meanwhile runs now. [`Running::resumed`] follows when their
    /// doorbells are written. `false`: none was suspended.
    pub(super) fn resume(&mut self, is_rolled_back: bool, now: Tick) -> bool {
        let Some(head) = self.mover.current.as_mut().map(|moving| &mut moving.head) else {
            return false;
        };
        let (vm, id) = (head.vm, head.id);
        let first_ns = head.first_half.as_ref().map(|first| first.copying_ns);
        let copying_ns = head.copying_ns + first_ns.unwrap_or(0);
        let Some(suspension) = head.suspension.take() else {
            return false;
        };
        let Suspension { channels, since, .. } = suspension;
        let pause = Pause {
            vm,
            id,
            since,
            drained_ns: suspension.drained_ns.unwrap_or(now.since(since)),
            was_at_work: suspension.was_at_work,
            copying_ns,
            halves: 1 + u64::from(first_ns.is_some()),
            is_rolled_back,
            is_late: is_rolled_back && suspension.drained_ns.is_none(),
        };
        self.put_back(vm, channels);
        // Behind the doorbells, which may wait for a preempt.
        self.card.fifo_steps(Vec::new(), Job::Resumed(pause));
        true
    }

    /// Lets channels of a VM run again that were suspended, and rings their doorbells.
    fn put_back(&mut self, vm: VmId, channels: Vec<(u8, PhysChannel)>) {
        let Some(vgpu) = self.vms.get_mut(&vm) else {
            return;
        };
        let is_held = vgpu.hold.is_suspended;
        let mut ring = Vec::new();
        for (v, physical) in channels {
            // A channel that the guest unbound meanwhile, or bound anew, is not the one that was suspended.
            if let Some(channel) = vgpu
                .channels
                .get_mut(&v)
                .filter(|channel| channel.physical == physical)
            {
                channel.suspended = false;
                // One that an operator holds is rung when he lets it go, one with an error when the guest has acknowledged that.
                if !channel.killed && !channel.stands && !is_held {
                    channel.ring_again();
                    ring.push((physical, channel.runnable, channel.due()));
                }
            }
        }
        for (physical, runnable, _) in &ring {
            if *runnable {
                self.card.start(*physical);
            }
        }
        self.commit_host_runlist(Job::Nothing);
        for (physical, _, gp_put) in ring {
            if let Some(gp_put) = gp_put.filter(|_| !planted::is(Fault::DoorbellLost)) {
                self.card.ring_later(physical, gp_put);
            }
        }
    }
}

/// Channels that may not run while a move copies: those whose address space [is in its way](is_in_the_way).
pub(super) fn to_stop(vgpu: &Vgpu, head: &Head) -> Vec<(u8, PhysChannel)> {
    let (spaces, mut work) = (vgpu.spaces.iter(), Work::limited(LOOK_WORK));
    let in_the_way = spaces.filter(|(_, space)| is_in_the_way(vgpu, space, head, &mut work));
    let in_the_way: Vec<_> = in_the_way.map(|(&id, _)| id).collect();
    vgpu.channels
        .iter()
        .filter(|(_, channel)| in_the_way.contains(&channel.space) && !channel.killed && !channel.suspended)
        .map(|(&v, channel)| (v, channel.physical))
        .collect()
}

/// Whether an address space of the VM maps a chunk that moves for stores, or reaches the image of one that stays.
pub(super) fn is_in_the_way(vgpu: &Vgpu, space: &Space, head: &Head, work: &mut Work) -> bool {
    if head.stays() {
        let mut pieces = head.stands.iter();
        return !planted::is(Fault::StandingStopsNobody)
            && pieces.any(|&piece| reaches_image(vgpu, space, piece, work));
    }
    let moved = head.chunks.iter();
    let moved = moved.flat_map(|&chunk| head.guest_frames(&vgpu.chunks, chunk));
    let then = head.then.iter().filter(|_| !head.leaves_a_rest(&vgpu.chunks));
    let then = then.flat_map(|&chunk| vgpu.chunks.guest_frames(chunk));
    let mut frames = moved.chain(then);
    frames.any(|frame| space.shadow.reaches(frame).is_some_and(|reach| reach.writable))
}

/// Whether an address space may name a page of this piece of an image: one of a chunk in host RAM, or instance memory.
fn reaches_image(vgpu: &Vgpu, space: &Space, piece: Piece, work: &mut Work) -> bool {
    let is_near = |page: &GuestPage| {
        let frame = GuestFrame::of(page.base());
        frame.is_some_and(|frame| space.shadow.reaches(frame).is_some())
    };
    let mut pages = piece
        .all()
        .filter(|page| is_near(page) && vgpu.chunks.wants_map(*page));
    pages.any(|page| space.shadow.may_name(page.base(), work))
}
