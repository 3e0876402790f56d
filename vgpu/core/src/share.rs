//! What one VM has of the broker's time, and when it has to wait for the others.
//!
//! Work is counted in units of about a nanosecond and not timed, so that a replay takes the same turns. It drains with the
//! clock, as fast as the VM's fair part of one core. Who has more than a slice on its account waits until the others could
//! have had theirs: its requests stay queued, a sync stops between two steps. Nobody else notices, and no event of another
//! VM comes behind more than a slice of this one's work, and one indivisible step.

use planted::Fault;
use serde::{Deserialize, Serialize};

use crate::event::Tick;
use crate::inspect::{Inspect, Tree};

/// Work that a VM may have on its account, and the most that a step of a sync is given. A guest with large tables feels
/// it: its flush takes several turns.
pub(crate) const SLICE: u64 = 100_000;
/// A request by itself.
pub(crate) const REQUEST: u64 = 200;
/// A page of tables that is fetched from VRAM.
pub(crate) const PAGE_FETCHED: u64 = 3_000;
/// An error of a channel that its guest is told of: a look at the card's interrupt, a runlist and a preempt, and an engine that stood for all
/// meanwhile. It is several times what that takes, so that who makes errors on purpose leaves the others most of it.
pub(crate) const ERROR_FORWARDED: u64 = 500_000;
/// An image of a context that is stored to the card or loaded from it: 128 KiB across PCIe.
pub(crate) const CONTEXT_MOVED: u64 = 100_000;
/// A channel that the card is asked about: a load across PCIe.
pub(crate) const CHANNEL_ASKED: u64 = 2_000;
/// A policy that is asked about the VM's own work, whatever the other VMs are.
pub(crate) const POLICY_ASKED: u64 = 1_000;
/// A frame that is looked up in the index of an address space.
pub(crate) const FRAME_LOOKED_UP: u64 = 5;
/// A VM's part is never less than one in so many, however many others there are: they are seldom all busy.
const PARTS_MAX: u64 = 4;
/// Longest wait for a turn, so that a step that cannot be divided does not hold up its own VM for long.
const WAIT_MAX: u64 = 50_000_000;

/// One VM's account of the broker's time.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Share {
    /// Work that has not drained yet.
    owed: u64,
    /// Until when it has drained.
    drained_at: Tick,
    /// When its turn comes, if it waits for one.
    turn_at: Option<Tick>,
    /// All work since the VM was attached.
    work: u64,
    /// How often it waited for its turn, and for how long together.
    waits: u64,
    waited_ns: u64,
}

impl Share {
    /// Work was done for the VM.
    #[inline]
    pub(crate) fn charge(&mut self, work: u64) {
        self.owed = self.owed.saturating_add(work);
        self.work = self.work.saturating_add(work);
    }

    /// All work since the VM was attached.
    pub(crate) fn work(&self) -> u64 {
        self.work
    }

    /// Work that the next step may take.
    pub(crate) fn left(&self) -> u64 {
        SLICE.saturating_sub(self.owed)
    }

    /// Whether a VM among `vms` may go on. If not, it waits for its turn from now on.
    #[inline]
    pub(crate) fn has_turn(&mut self, vms: usize, now: Tick) -> bool {
        planted::is(Fault::TurnsIgnored)
            || self.turn_at.is_none() && (self.owed < SLICE || self.drains(vms, now))
    }

    #[cold]
    fn drains(&mut self, vms: usize, now: Tick) -> bool {
        let parts = (vms as u64).clamp(1, PARTS_MAX);
        self.owed = self.owed.saturating_sub(now.since(self.drained_at) / parts);
        self.drained_at = now;
        if self.owed < SLICE {
            return true;
        }
        // From the beginning of the work, which is when the clock was read. Alone it waits for nobody.
        let wait = if parts == 1 {
            0
        } else {
            self.owed.saturating_mul(parts)
        };
        let wait = wait.min(WAIT_MAX);
        self.turn_at = Some(now.after(wait));
        self.waits += 1;
        self.waited_ns = self.waited_ns.saturating_add(wait);
        false
    }

    /// When its turn comes, if it waits for one.
    pub(crate) fn turn_at(&self) -> Option<Tick> {
        self.turn_at
    }

    /// It is its turn: what it owed is paid.
    pub(crate) fn begin_turn(&mut self, now: Tick) {
        self.turn_at = None;
        self.owed = 0;
        self.drained_at = now;
    }
}

impl Inspect for Share {
    fn inspect(&self, tree: &mut Tree<'_>) {
        tree.nanoseconds("work", self.work);
        tree.nanoseconds("owed", self.owed);
        tree.nanoseconds("slice", SLICE);
        tree.count("waits_for_a_turn", self.waits as usize);
        tree.nanoseconds("waited_for_turns", self.waited_ns);
        match self.turn_at {
            Some(at) => tree.due_in("turn_in", at),
            None => tree.name("turn_in", "does not wait"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_used_up_its_slice_waits_as_long_as_the_others_may_take() {
        for (vms, wait) in [(1, 0), (2, 2 * SLICE), (4, 4 * SLICE), (60, 4 * SLICE)] {
            let mut share = Share::default();
            share.charge(SLICE);
            assert!(!share.has_turn(vms, Tick(0)), "{vms} VMs");
            assert_eq!(share.turn_at(), Some(Tick(wait)), "{vms} VMs");
            assert!(!share.has_turn(vms, Tick(wait)), "its turn is given to it");
            share.begin_turn(Tick(wait));
            assert!(share.has_turn(vms, Tick(wait)));
        }
    }

    #[test]
    fn work_below_the_fair_part_never_waits() {
        let mut share = Share::default();
        for now in 1..10_000 {
            share.charge(SLICE / 10);
            assert!(share.has_turn(4, Tick(now * SLICE / 10 * 4)), "at {now}");
        }
    }

    #[test]
    fn half_of_the_time_is_a_vms_of_two() {
        let (mut share, mut now, mut worked) = (Share::default(), 0, 0);
        while now < 1_000 * SLICE {
            if share.has_turn(2, Tick(now)) {
                share.charge(SLICE / 4);
                worked += SLICE / 4;
                now += SLICE / 4;
            } else {
                now = share.turn_at().expect("it waits").0;
                share.begin_turn(Tick(now));
            }
        }
        let part = 1_000 * worked / now;
        assert!((480..=560).contains(&part), "{part} thousandths");
    }

    #[test]
    fn step_that_could_not_be_divided_costs_its_vm_a_bounded_wait() {
        let mut share = Share::default();
        share.charge(u64::MAX);
        share.charge(1);
        assert!(!share.has_turn(2, Tick(7)));
        assert_eq!(share.turn_at(), Some(Tick(7 + WAIT_MAX)));
    }
}
