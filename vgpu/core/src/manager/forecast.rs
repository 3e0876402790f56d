//! How long a pause will be, by those before it: said before it happens, and told beside what it became.
//!
//! A pause is a drain, a copy and the rest (flushes, looks for errors, the runlist). The drain is the VM's own habit: how long what it
//! has under way takes to end, if it is stopped at work; next to nothing otherwise. The copy goes by bytes, the rest by nothing. Each is
//! kept as a mean in which an older one counts an eighth less than the one behind it.

use serde::{Deserialize, Serialize};

use crate::inspect::{Inspect, Tree};

/// Parts of a mean that a new value does not change: one of so many it does.
const WEIGHT: u64 = 8;
/// Copies before any was seen, nanoseconds a MiB: what PCIe 2.0 with 16 lanes moves of its 8 GB/s (`Timing` of the software card).
const COPY_NS_PER_MIB: u64 = 175_000;
/// The same for the rest.
const REST_NS: u64 = 300_000;
/// And for the drain of a VM that was stopped at work.
const DRAIN_NS: u64 = 1_000_000;
/// A VM is waited for so many times as long as a drain would take.
const PATIENCE: u64 = 4;
/// But no longer than that, because nothing else moves meanwhile: a guest that waits for the memory stands still, too.
pub(super) const PATIENCE_MAX_NS: u64 = 20_000_000;
/// The same where nobody waits for the memory. The grid of another VM comes at the end of its own.
const PATIENCE_UNWAITED_NS: u64 = 60_000_000;
/// Suspensions in vain, one after the other, behind which the VM stays off the card until its work has ended.
const LATE_MAX: u32 = 3;
/// Waits in vain, one after the other, that each halve the next one. What is left then is one look.
const IN_VAIN_MAX: u32 = 8;
const MIB: u64 = 1 << 20;

/// A mean that follows.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Mean(Option<u64>);

impl Mean {
    pub(crate) fn note(&mut self, value: u64) {
        self.0 = Some(match self.0 {
            Some(mean) => {
                (u128::from(mean) * u128::from(WEIGHT - 1) + u128::from(value)).div_ceil(WEIGHT.into()) as u64
            }
            None => value,
        });
    }

    pub(crate) fn or(self, before_any: u64) -> u64 {
        self.0.unwrap_or(before_any)
    }
}

/// How a VM's channels get off the card: how long that takes if one of them is at work then, and if none is.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Drains {
    at_work: Mean,
    at_rest: Mean,
    /// Waits for a moment without work that ended without one, since the last that did not.
    in_vain: u32,
    /// Suspensions for moves that were given up because the drain did not end, since the last that was not.
    #[serde(default)]
    late: u32,
}

impl Drains {
    /// A drain took so long.
    pub(super) fn note(&mut self, was_at_work: bool, ns: u64) {
        match was_at_work {
            true => self.at_work.note(ns),
            false => self.at_rest.note(ns),
        }
    }

    /// What a drain will take.
    pub(super) fn expected(self, is_at_work: bool) -> u64 {
        match is_at_work {
            true => self.at_work.or(DRAIN_NS),
            false => self.at_rest.or(0),
        }
    }

    /// How long a moment is waited for at which none of the channels is at work: as long as it is likely to save more, but less if a
    /// guest waits for the memory. A VM that has the engines for itself is at work always.
    pub(super) fn patience(self, is_for_somebody: bool) -> u64 {
        let most = match is_for_somebody {
            true => PATIENCE_MAX_NS,
            false => PATIENCE_UNWAITED_NS,
        };
        self.expected(true).saturating_mul(PATIENCE).min(most) >> self.in_vain
    }

    /// A move was given up because the channels were not off the card in time.
    pub(super) fn was_late(&mut self) {
        self.late = self.late.saturating_add(1);
    }

    /// A suspension was not in vain.
    pub(super) fn was_in_time(&mut self) {
        self.late = 0;
    }

    /// Whether the VM would be stopped in vain for ever: what it has under way takes longer than any budget each time.
    pub(super) fn are_always_late(self) -> bool {
        self.late >= LATE_MAX
    }

    /// A wait is over, with such a moment or without.
    pub(super) fn waited(&mut self, is_found: bool) {
        self.in_vain = match is_found {
            true => 0,
            false => (self.in_vain + 1).min(IN_VAIN_MAX),
        };
    }
}

impl Inspect for Drains {
    fn inspect(&self, tree: &mut Tree<'_>) {
        tree.nanoseconds("drain_from_work", self.expected(true));
        tree.nanoseconds("drain_without_work", self.expected(false));
        tree.nanoseconds("is_waited_for", self.patience(false));
        tree.count("suspended_in_vain", self.late as usize);
    }
}

/// What copies and the rest take on this card.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Forecast {
    copy_ns_per_mib: Mean,
    rest_ns: Mean,
}

impl Forecast {
    /// A copy took so long.
    pub(super) fn note_copy(&mut self, bytes: u64, ns: u64) {
        if bytes > 0 {
            let per_mib = u128::from(ns) * u128::from(MIB) / u128::from(bytes);
            self.copy_ns_per_mib
                .note(u64::try_from(per_mib).unwrap_or(u64::MAX));
        }
    }

    /// So much of a pause was neither drain nor copy.
    pub(super) fn note_rest(&mut self, ns: u64) {
        self.rest_ns.note(ns);
    }

    /// What copying will take.
    pub(super) fn copy_ns(&self, bytes: u64) -> u64 {
        let per_mib = self.copy_ns_per_mib.or(COPY_NS_PER_MIB);
        let ns = u128::from(per_mib) * u128::from(bytes) / u128::from(MIB);
        u64::try_from(ns).unwrap_or(u64::MAX)
    }

    /// What a pause will take in which so many bytes move, in one half or the two of an exchange, with such a drain.
    pub(super) fn pause_ns(&self, bytes: u64, halves: u64, drain_ns: u64) -> u64 {
        let rest = self.rest_ns.or(REST_NS).saturating_mul(halves);
        let rest = rest.saturating_add(drain_ns);
        self.copy_ns(bytes).saturating_add(rest)
    }

    /// Most bytes whose copy will take no longer than that.
    pub(super) fn bytes_within(&self, ns: u64) -> u64 {
        let per_mib = u128::from(self.copy_ns_per_mib.or(COPY_NS_PER_MIB).max(1));
        u64::try_from(u128::from(ns) * u128::from(MIB) / per_mib).unwrap_or(u64::MAX)
    }
}

impl Inspect for Forecast {
    fn inspect(&self, tree: &mut Tree<'_>) {
        tree.nanoseconds("copy_of_a_mebibyte", self.copy_ns_per_mib.or(COPY_NS_PER_MIB));
        tree.nanoseconds("rest_of_a_pause", self.rest_ns.or(REST_NS));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forecast_comes_to_what_is_always_so() {
        let (mut forecast, mut drains) = (Forecast::default(), Drains::default());
        assert_eq!(forecast.pause_ns(2 * MIB, 1, 0), 2 * COPY_NS_PER_MIB + REST_NS);
        for _ in 0..100 {
            forecast.note_copy(4 * MIB, 2_000_000);
            forecast.note_rest(100_000);
            drains.note(true, 700_000);
            drains.note(false, 20_000);
        }
        for (is_at_work, drain) in [(true, 700_000), (false, 20_000)] {
            let pause = forecast.pause_ns(2 * MIB, 1, drains.expected(is_at_work));
            assert!(pause.abs_diff(1_100_000 + drain) < 100, "{pause}");
        }
        assert_eq!(forecast.bytes_within(2_000_000), 4 * MIB);
    }

    #[test]
    fn one_that_is_out_of_the_way_moves_the_forecast_by_an_eighth() {
        let mut forecast = Forecast::default();
        (0..10).for_each(|_| forecast.note_copy(MIB, 200_000));
        forecast.note_copy(MIB, 1_000_000);
        assert_eq!(forecast.copy_ns(MIB), 300_000);
        // No figure of the host's clock brings it out of its numbers.
        forecast.note_copy(1, u64::MAX);
        forecast.note_rest(u64::MAX);
        assert_eq!(forecast.pause_ns(u64::MAX, 2, u64::MAX), u64::MAX);
        let mut drains = Drains::default();
        drains.note(true, u64::MAX);
        assert_eq!(drains.patience(true), PATIENCE_MAX_NS);
        assert_eq!(drains.patience(false), PATIENCE_UNWAITED_NS);
    }

    #[test]
    fn vm_that_is_always_at_work_is_waited_for_less_and_less() {
        let mut drains = Drains::default();
        drains.note(true, 2_000_000);
        let waits: Vec<u64> = (0..12)
            .map(|_| {
                drains.waited(false);
                drains.patience(true)
            })
            .collect();
        assert_eq!(waits[..3], [4_000_000, 2_000_000, 1_000_000]);
        assert!(waits[11] < 100_000, "{waits:?}");
        drains.waited(true);
        assert_eq!(drains.patience(true), 8_000_000);
    }
}
