//! What falls due by the clock alone, and the wake-up that is asked for because of it.
//!
//! ```text
//! Off ─something falls due later─► Set(at) ─Wake─► Off
//!                                   ▲  └─ something else falls due first, or nothing does any more
//!                                   └──┘
//! ```
//!
//! The earliest time is sought after every event; the edge hears of it when it is another one than before.

use super::Cx;
use super::limits::has_to_lose;
use super::running::Running;
use crate::event::{Action, Tick};
use crate::host::Card;
use crate::inspect::{Inspect, Tree};

/// Looks at least in the time that the watchdog gives, if they do not come closer than [`LOOK_WHILE_MOVING_NS`].
const WATCHDOG_LOOKS: u64 = 8;
/// Longest time between two looks at the card's interrupt registers while channels are on the runlist.
const LOOK_NS: u64 = 100_000_000;
/// The same while a move waits for the card.
const LOOK_WHILE_MOVING_NS: u64 = 10_000_000;

/// The wake-up last asked for, and the last look at the card.
#[derive(Debug, Default)]
pub(super) struct Wakeups {
    alarm: Alarm,
    /// When the card was last asked what it has to say.
    looked_at: Tick,
}

/// The wake-up that the edge was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Alarm {
    #[default]
    Off,
    Set(Tick),
}

impl Wakeups {
    /// The edge kept its word, or came by itself.
    pub(super) fn rang(&mut self) {
        self.alarm = Alarm::Off;
    }

    /// Whether the time asked for has come, however the core was entered.
    fn is_due(&self, now: Tick) -> bool {
        matches!(self.alarm, Alarm::Set(at) if at <= now)
    }

    /// Asks for the time, unless it was asked for already.
    fn set(&mut self, next: Option<Tick>, cx: &mut Cx<'_>) {
        let alarm = next.map_or(Alarm::Off, Alarm::Set);
        if alarm != self.alarm
            && let Alarm::Set(at) = alarm
        {
            cx.actions.push(Action::WakeAt { at });
        }
        self.alarm = alarm;
    }
}

impl Running {
    /// Whether [`Running::settle`] has nothing to do before some event but a register's load: nothing that is looked at
    /// again and again is under way, and nothing has fallen due.
    pub(super) fn is_settled(&self, now: Tick) -> bool {
        self.mover.is_idle()
            && self.mover.begun.is_empty()
            && self.demands.is_empty()
            && self.volatile.ready.is_empty()
            && !self.pass_wanted
            && now < self.pass_at
            && !self.volatile.wakeups.is_due(now)
    }

    /// Reads what the card has to say, and when that was.
    pub(super) fn look_at_card(&mut self, cx: &mut Cx<'_>) {
        self.volatile.wakeups.looked_at = cx.now;
        let Card { tokens, .. } = &mut self.card;
        self.volatile.scan.start(tokens, cx.actions);
    }

    /// When the card is looked at next without an interrupt: one may be lost, and a faulted engine stops everybody.
    /// `None` while nothing runs.
    pub(super) fn look_at(&self) -> Option<Tick> {
        let interval = match self.mover.is_idle() {
            false => LOOK_WHILE_MOVING_NS,
            // A channel that does not leave may have stopped with an error that nobody has heard of.
            true if !self.leaving.is_empty() => LOOK_WHILE_MOVING_NS,
            true if self.may_run() => self.look_interval(),
            true => return None,
        };
        Some(self.volatile.wakeups.looked_at.after(interval))
    }

    /// A watchdog of little patience looks more often, so that it sees an engine change hands.
    fn look_interval(&self) -> u64 {
        match self.config.watchdog_ns / WATCHDOG_LOOKS {
            0 => LOOK_NS,
            patience => patience.clamp(LOOK_WHILE_MOVING_NS, LOOK_NS),
        }
    }

    /// When something is due that no event announces.
    fn next_wake(&self, now: Tick) -> Option<Tick> {
        let is_calm = self.mover.is_idle() && self.demands.is_empty();
        let pass = (is_calm && self.policy.wants_tick(self.usage())).then_some(self.pass_at);
        let demand = self.demands.next_deadline();
        let copy = self.mover.next_check(now);
        let above = self
            .vms
            .values()
            .filter(|vgpu| has_to_lose(vgpu) && !vgpu.leaves() && self.mover.is_idle())
            .filter(|vgpu| !self.mover.is_aside(vgpu.id))
            .map(|vgpu| vgpu.passed_over_until)
            .min();
        let notify = self
            .vms
            .values()
            .filter(|vgpu| !vgpu.notify_engines.is_empty())
            .map(|vgpu| vgpu.notify_at)
            .min();
        let turn = self.next_turn();
        let aside = self.mover.next_check_aside();
        let sample = self.next_sample();
        let share_look = self.next_share_look();
        let parking = self.next_parking();
        let shown = self.next_to_show_at();
        let part = self.next_part_at();
        let held = self.next_held();
        [
            pass,
            demand,
            copy,
            aside,
            above,
            notify,
            turn,
            sample,
            share_look,
            parking,
            shown,
            part,
            held,
            self.progress_at,
            self.look_at(),
        ]
        .into_iter()
        .flatten()
        .min()
        .map(|at| at.max(now))
    }

    /// Asks to be woken when the next thing is due.
    pub(super) fn ask_wake(&mut self, cx: &mut Cx<'_>) {
        let next = self.next_wake(cx.now);
        self.volatile.wakeups.set(next, cx);
    }
}

impl Inspect for Wakeups {
    fn inspect(&self, tree: &mut Tree<'_>) {
        tree.age("looked_at_the_card", self.looked_at);
        match self.alarm {
            Alarm::Off => tree.name("wakes_in", "nothing falls due"),
            Alarm::Set(at) => tree.due_in("wakes_in", at),
        }
    }
}
