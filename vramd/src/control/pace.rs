//! How often somebody may ask: each user so many times a second, and some at once. It costs a number for each user who asked in the last
//! seconds.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// A pace that many keep, each his own.
pub(super) struct Pace {
    /// Time that a request stands for.
    each: Duration,
    /// So many may come at once.
    burst: u32,
    /// Until when the requests of a user stand, one behind the other. Who has none is not here.
    until: BTreeMap<u32, Instant>,
}

impl Pace {
    pub(super) fn new(per_second: u32, burst: u32) -> Self {
        Self {
            each: Duration::from_secs(1) / per_second.max(1),
            burst,
            until: BTreeMap::new(),
        }
    }

    /// Whether a user may ask now. One who may not waits that long until he may.
    pub(super) fn ask(&mut self, user: u32, now: Instant) -> Result<(), Duration> {
        self.until.retain(|_, until| *until > now);
        let until = self.until.get(&user).copied().unwrap_or(now) + self.each;
        let ahead = until - now;
        match ahead.checked_sub(self.each * self.burst) {
            Some(late) if !late.is_zero() => Err(late),
            _ => {
                self.until.insert(user, until);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn burst_passes_and_then_one_at_a_time_and_other_users_are_not_concerned() {
        let (mut pace, start) = (Pace::new(50, 10), Instant::now());
        let passed = |pace: &mut Pace, user, now| (0..30).filter(|_| pace.ask(user, now).is_ok()).count();
        assert_eq!(passed(&mut pace, 7, start), 10);
        assert_eq!(pace.ask(7, start), Err(20 * MS));
        assert_eq!(passed(&mut pace, 8, start), 10);
        assert_eq!(passed(&mut pace, 7, start + 20 * MS), 1);
        // A second at rest is a whole burst, and no more.
        assert_eq!(passed(&mut pace, 7, start + 1_020 * MS), 10);
    }

    #[test]
    fn who_asks_no_more_is_forgotten() {
        let (mut pace, start) = (Pace::new(50, 10), Instant::now());
        for user in 0..1_000 {
            assert_eq!(pace.ask(user, start), Ok(()));
        }
        assert_eq!(pace.ask(0, start + 21 * MS), Ok(()));
        assert_eq!(pace.until.len(), 1);
    }
}
