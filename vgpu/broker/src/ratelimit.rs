//! Limits the log lines that a guest can cause.

use std::time::{Duration, Instant};

/// Lines that pass at once.
const BURST: u32 = 10;
/// Time after which one more line may pass.
const REFILL: Duration = Duration::from_secs(1);

/// A token bucket. One for each source of messages that a guest or client can trigger.
#[derive(Debug)]
pub(crate) struct RateLimit {
    tokens: u32,
    refilled: Instant,
    suppressed: u64,
}

impl RateLimit {
    /// A bucket with all tokens, from `now` on.
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            tokens: BURST,
            refilled: now,
            suppressed: 0,
        }
    }

    /// Whether a line may be written now: `Some(n)` if so, where `n` lines were suppressed since the last one.
    pub(crate) fn pass(&mut self, now: Instant) -> Option<u64> {
        let earned = now.saturating_duration_since(self.refilled).as_nanos() / REFILL.as_nanos();
        if earned > 0 {
            self.tokens = BURST.min(self.tokens.saturating_add(u32::try_from(earned).unwrap_or(BURST)));
            self.refilled = now;
        }
        if self.tokens == 0 {
            self.suppressed += 1;
            return None;
        }
        self.tokens -= 1;
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burst_is_followed_by_silence() {
        let start = Instant::now();
        let mut limit = RateLimit::new(start);
        let passed = (0..100).filter(|_| limit.pass(start).is_some()).count();
        assert_eq!(passed, BURST as usize);
    }

    #[test]
    fn line_after_silence_tells_how_many_were_kept_back() {
        let start = Instant::now();
        let mut limit = RateLimit::new(start);
        (0..BURST + 5).for_each(|_| {
            limit.pass(start);
        });
        assert_eq!(limit.pass(start + REFILL), Some(5));
        assert_eq!(limit.pass(start + REFILL), None);
    }
}
