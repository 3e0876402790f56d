//! Durations and rates by how large they were, for metrics: so many up to each of a few bounds.
//!
//! [`stats`](crate::stats) has finer ones for percentiles. These are a few numbers a VM, and their bounds are round, as a reader of metrics
//! expects; both count the same notices.

use vgpu::{MoveId, MoveStage, Notice};

/// Number of bounds.
const BOUNDS: usize = 17;

/// Bounds of durations in nanoseconds, each belonging to its own part. What is above the last has a part of its own.
pub const SPREAD_BOUNDS_NS: [u64; BOUNDS] = [
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

/// Bounds of rates of copies in bytes a second: from a card behind a slow link, or by a window, to memory within a host.
pub const SPREAD_BOUNDS_RATE: [u64; BOUNDS] = [
    10_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    1_500_000_000,
    2_000_000_000,
    3_000_000_000,
    4_000_000_000,
    5_000_000_000,
    6_000_000_000,
    8_000_000_000,
    10_000_000_000,
    12_000_000_000,
    16_000_000_000,
    32_000_000_000,
];

/// Values of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Spread {
    /// How many were above the bound before and not above this one; the last, above all bounds.
    pub counts: [u64; BOUNDS + 1],
    /// All of them together.
    pub sum: u64,
}

impl Spread {
    fn record(&mut self, ns: u64) {
        self.record_within(&SPREAD_BOUNDS_NS, ns);
    }

    fn record_within(&mut self, bounds: &[u64; BOUNDS], value: u64) {
        let part = bounds.partition_point(|bound| *bound < value);
        self.counts[part] += 1;
        self.sum = self.sum.saturating_add(value);
    }

    /// Number of values.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// Those of one VM since it was attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VmSpreads {
    /// Suspensions for moves, also of those that were given up.
    pub pauses: Spread,
    /// How long each would be, as it was said when it began.
    pub predictions: Spread,
    /// The part of each that was the wait for what the channels had under way.
    pub drains: Spread,
    /// Suspensions for moves that were given up: what a roll-back cost.
    pub rollbacks: Spread,
    /// Accesses that waited for memory.
    pub demand_waits: Spread,
    /// Updates of page tables that waited for memory or for a move.
    pub sync_waits: Spread,
    /// Work that waited for memory that its launches use.
    pub work_waits: Spread,
    /// Bytes a second of each move's copy, by [`SPREAD_BOUNDS_RATE`].
    pub copy_rates: Spread,
    /// The copy of a move that has not ended, and how long it took.
    copying: Option<(MoveId, u64)>,
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
            Notice::Suspended { predicted_ns, .. } => self.predictions.record(*predicted_ns),
            Notice::MoveStage {
                id,
                stage: MoveStage::Copying,
                took_ns,
                ..
            } => self.copying = Some((*id, *took_ns)),
            Notice::Moved { id, copied, .. } => {
                // What nothing was copied for has no rate.
                if let Some((_, ns)) = self.copying.take_if(|(of, _)| of == id)
                    && *copied > 0
                {
                    let rate = u128::from(*copied) * 1_000_000_000 / u128::from(ns.max(1));
                    self.copy_rates
                        .record_within(&SPREAD_BOUNDS_RATE, rate.try_into().unwrap_or(u64::MAX));
                }
            }
            Notice::DemandEnded { waited_ns, .. } => self.demand_waits.record(*waited_ns),
            Notice::SyncWaited { waited_ns, .. } => self.sync_waits.record(*waited_ns),
            Notice::WorkWaited { waited_ns, .. } => self.work_waits.record(*waited_ns),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use vgpu::{Direction, MoveCause, VmId};

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
        assert_eq!((spreads.pauses.counts[7], spreads.pauses.sum), (2, 6_000_000));
        // A bound is part of what it bounds; what is above all has its own part.
        assert_eq!(spreads.drains.counts[1], 2);
        assert_eq!(spreads.demand_waits.counts.last(), Some(&1));
    }

    #[test]
    fn rate_is_of_the_bytes_that_were_copied_in_the_time_of_the_copy() {
        let vm = VmId(1);
        let mut spreads = VmSpreads::default();
        for (id, copied) in [(1, 2_000_000), (2, 0), (3, 2_000_000)] {
            let id = MoveId(id);
            spreads.notice(&Notice::MoveStage {
                vm,
                id,
                stage: MoveStage::Copying,
                took_ns: 1_000_000,
            });
            // The third is given up.
            if id == MoveId(3) {
                continue;
            }
            spreads.notice(&Notice::Moved {
                vm,
                id,
                direction: Direction::Spill,
                cause: MoveCause::FreeRoom,
                chunks: 1,
                bytes: 2_000_000,
                copied,
                pause_ns: None,
            });
        }
        assert_eq!(
            (spreads.copy_rates.count(), spreads.copy_rates.sum),
            (1, 2_000_000_000)
        );
        assert_eq!(spreads.copy_rates.counts[7], 1);
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
            prop_assert_eq!(spread.sum, durations.iter().sum::<u64>());
        }
    }
}
