//! For how long an access of a VM is held for others' sake.

use vgpu::Tick;

/// What is known of the access of a VM that is under way.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Held {
    /// When it was last seen to wait for its own windows to show their pages.
    showed_at: Option<Tick>,
}

impl Held {
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
