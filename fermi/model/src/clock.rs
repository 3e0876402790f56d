//! The GPU's clock and PTIMER on top of it.
//!
//! Engines advance the clock by the timing model; while they rest it follows the host's. PTIMER is the clock plus
//! the offset that a driver set (009400, 009410). Every read moves it on by at least one tick, so a driver that
//! waits by reading it always ends.

use fermi_spec::regs::ptimer::{HIGH_MASK, LOW_MASK};

/// Nanoseconds that one PTIMER tick lasts.
const TICK_NS: u64 = !LOW_MASK as u64 + 1;
/// Bits that both words of the time have together.
const TIME_MASK: u64 = (HIGH_MASK as u64) << 32 | u32::MAX as u64;

/// GPU time and PTIMER.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clock {
    now: u64,
    /// PTIMER minus the clock, modulo 2^64.
    offset: u64,
    last_read: u64,
    alarm: u32,
    alarm_at: Option<u64>,
    /// Value of PTIMER_INTR (009100).
    pub(crate) intr: u32,
    /// Value of PTIMER_INTR_ENABLE (009140).
    pub(crate) intr_enable: u32,
}

impl Clock {
    /// GPU time in nanoseconds.
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    /// The same time after a reset: PTIMER begins at zero and has no alarm.
    pub(crate) fn restarted(&self) -> Self {
        Self {
            now: self.now,
            offset: self.now.wrapping_neg(),
            ..Self::default()
        }
    }

    /// Moves on to `at`; earlier times change nothing.
    pub(crate) fn advance_to(&mut self, at: u64) {
        self.now = self.now.max(at);
        if self.alarm_at.is_some_and(|alarm| alarm <= self.now) {
            self.alarm_at = None;
            self.intr |= 1;
        }
    }

    /// Moves on by `ns`.
    pub(crate) fn advance_by(&mut self, ns: u64) {
        self.advance_to(self.now.saturating_add(ns));
    }

    /// PTIMER as a semaphore release writes it.
    pub(crate) fn timestamp(&self) -> u64 {
        self.now.wrapping_add(self.offset) & TIME_MASK & !(TICK_NS - 1)
    }

    /// PTIMER as a register read sees it.
    pub(crate) fn read(&mut self) -> u64 {
        if self.now < self.last_read.saturating_add(TICK_NS) {
            self.advance_to(self.last_read.saturating_add(TICK_NS));
        }
        self.last_read = self.now;
        self.timestamp()
    }

    /// Sets PTIMER's low word.
    pub(crate) fn set_low(&mut self, low: u32) {
        let time = self.timestamp() & !0xffff_ffff | u64::from(low);
        self.offset = time.wrapping_sub(self.now);
        self.arm();
    }

    /// Sets PTIMER's high word.
    pub(crate) fn set_high(&mut self, high: u32) {
        let time = self.timestamp() & 0xffff_ffff | u64::from(high) << 32;
        self.offset = time.wrapping_sub(self.now);
        self.arm();
    }

    /// The alarm register.
    pub(crate) fn alarm(&self) -> u32 {
        self.alarm
    }

    /// Sets the alarm: it goes off when PTIMER's low word next reaches `low`.
    pub(crate) fn set_alarm(&mut self, low: u32) {
        self.alarm = low;
        self.alarm_at = Some(0);
        self.arm();
    }

    /// Whether an alarm whose interrupt is enabled is still to come.
    pub(crate) fn is_alarm_pending(&self) -> bool {
        self.alarm_at.is_some() && self.intr_enable & 1 != 0
    }

    fn arm(&mut self) {
        if self.alarm_at.is_some() {
            let distance = self.alarm.wrapping_sub(self.timestamp() as u32);
            self.alarm_at = Some(self.now.saturating_add(u64::from(distance)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_read_is_later_than_the_one_before() {
        let mut clock = Clock::default();
        let first = clock.read();
        assert_eq!(clock.read(), first + TICK_NS);
    }

    #[test]
    fn time_that_a_driver_set_goes_on_from_there() {
        let mut clock = Clock::default();
        clock.advance_to(1_000_000);
        clock.set_high(7);
        clock.set_low(640);
        clock.advance_by(320);
        assert_eq!(clock.timestamp(), (7 << 32) + 960);
    }

    #[test]
    fn alarm_goes_off_when_its_time_comes() {
        let mut clock = Clock::default();
        clock.set_alarm(3200);
        clock.advance_to(3199);
        assert_eq!(clock.intr, 0);
        clock.advance_to(3200);
        assert_eq!(clock.intr, 1);
    }
}
