//! For how long an access of a VM is held for others' sake.

use vgpu::Tick;

/// What is known of the access of a VM that is under way.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Held {
    /// When it was last seen to wait for its own windows to show their pages.
    showed_at: Option<Tick>,
    /// Work of the broker for the VM when the access came.
    work_before: u64,
}

/// A VM waits so many times as long as its own work took, so that the others may have their parts (`vgpu::share`).
const WAITS_FOR_WORK: u64 = 4;

impl Held {
    /// Most nanoseconds that the access waits for turns which its VM has used up since it came. `work` is what was done for the VM so far.
    pub(super) fn for_own_work(&mut self, is_held: bool, work: u64) -> u64 {
        if !is_held {
            self.work_before = work;
        }
        work.saturating_sub(self.work_before)
            .saturating_mul(WAITS_FOR_WORK)
    }

    /// How long it has been held since it waited for its own windows, if it did; until then `ns`. Whether it does is asked if it is held for
    /// longer than `long`.
    pub(super) fn for_others(&mut self, ns: u64, long: u64, now: Tick, waits: impl FnOnce() -> bool) -> u64 {
        if ns <= long {
            self.showed_at = None;
        } else if waits() {
            self.showed_at = Some(now);
        }
        self.showed_at.map_or(ns, |at| now.since(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_access_waits_for_its_own_work_counts_from_when_it_came() {
        let mut held = Held::default();
        assert_eq!(held.for_own_work(false, 700), 0);
        assert_eq!(held.for_own_work(true, 700), 0);
        assert_eq!(held.for_own_work(true, 800), 400);
        assert_eq!(held.for_own_work(false, 800), 0);
    }

    #[test]
    fn only_time_behind_the_wait_for_own_windows_is_others() {
        let mut held = Held::default();
        assert_eq!(held.for_others(90, 100, Tick(90), || true), 90);
        assert_eq!(held.for_others(110, 100, Tick(110), || false), 110);
        assert_eq!(held.for_others(300, 100, Tick(300), || true), 0);
        assert_eq!(held.for_others(350, 100, Tick(350), || false), 50);
        // The next access.
        assert_eq!(held.for_others(10, 100, Tick(400), || false), 10);
        assert_eq!(held.for_others(120, 100, Tick(510), || false), 120);
    }
}
