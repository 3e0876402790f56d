//! Durations by how long they were, for metrics: so many up to each of a few bounds.
//!
//! [`stats`](crate::stats) has finer ones for percentiles. These are a few numbers a VM, and their bounds are round, as a reader of metrics
//! expects; both count the same notices.

use vgpu::Notice;

/// Bounds in nanoseconds, each belonging to its own part. What is above the last has a part of its own.
pub const SPREAD_BOUNDS_NS: [u64; 17] = [
    10_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    50_000_000,
    100_000_000,
    150_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    5_000_000_000,
];

/// Durations of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Spread {
    /// How many were above the bound before and not above this one; the last, above all bounds.
    pub counts: [u64; SPREAD_BOUNDS_NS.len() + 1],
    /// All of them together, in nanoseconds.
    pub sum_ns: u64,
}

impl Spread {
    fn record(&mut self, ns: u64) {
        let part = SPREAD_BOUNDS_NS.partition_point(|bound| *bound < ns);
        self.counts[part] += 1;
        self.sum_ns = self.sum_ns.saturating_add(ns);
    }

    /// Number of durations.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// Those of one VM since it was attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VmSpreads {
    /// Suspensions for moves, also of those that were given up.
    pub pauses: Spread,
    /// The part of each that was the wait for what the channels had under way.
    pub drains: Spread,
    /// Suspensions for moves that were given up: what a roll-back cost.
    pub rollbacks: Spread,
    /// Accesses that waited for memory.
    pub demand_waits: Spread,
    /// Updates of page tables that waited for memory or for a move.
    pub sync_waits: Spread,
}

impl VmSpreads {
    /// Counts a notice of the VM.
    pub(crate) fn notice(&mut self, notice: &Notice) {
        match notice {
            Notice::Resumed {
                suspended_ns,
                drained_ns,
                is_rolled_back,
                ..
            } => {
                self.pauses.record(*suspended_ns);
                self.drains.record(*drained_ns);
                if *is_rolled_back {
                    self.rollbacks.record(*suspended_ns);
                }
            }
            Notice::DemandEnded { waited_ns, .. } => self.demand_waits.record(*waited_ns),
            Notice::SyncWaited { waited_ns, .. } => self.sync_waits.record(*waited_ns),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use vgpu::{MoveId, VmId};

    use super::*;

    #[test]
    fn notice_is_counted_where_it_belongs() {
        let (vm, id) = (VmId(1), MoveId(1));
        let mut spreads = VmSpreads::default();
        for is_rolled_back in [false, true] {
            spreads.notice(&Notice::Resumed {
                vm,
                id,
                suspended_ns: 3_000_000,
                drained_ns: 50_000,
                is_rolled_back,
            });
        }
        spreads.notice(&Notice::DemandEnded {
            vm,
            waited_ns: 7_000_000_000,
            in_host_ram: 0,
            waited_for: Vec::new(),
        });
        let counts = [
            spreads.pauses,
            spreads.drains,
            spreads.rollbacks,
            spreads.demand_waits,
            spreads.sync_waits,
        ];
        assert_eq!(counts.map(|spread| spread.count()), [2, 2, 1, 1, 0]);
        assert_eq!((spreads.pauses.counts[7], spreads.pauses.sum_ns), (2, 6_000_000));
        // A bound is part of what it bounds; what is above all has its own part.
        assert_eq!(spreads.drains.counts[1], 2);
        assert_eq!(spreads.demand_waits.counts.last(), Some(&1));
    }

    proptest! {
        #[test]
        fn counts_up_to_a_bound_are_the_durations_up_to_it(durations in prop::collection::vec(0u64..20_000_000_000, 0..100)) {
            let mut spread = Spread::default();
            durations.iter().for_each(|ns| spread.record(*ns));
            for (index, bound) in SPREAD_BOUNDS_NS.iter().enumerate() {
                let up_to: u64 = spread.counts[..=index].iter().sum();
                prop_assert_eq!(up_to, durations.iter().filter(|ns| *ns <= bound).count() as u64);
            }
            prop_assert_eq!(spread.count(), durations.len() as u64);
            prop_assert_eq!(spread.sum_ns, durations.iter().sum::<u64>());
        }
    }
}
