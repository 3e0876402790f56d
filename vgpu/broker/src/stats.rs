//! Sums of the core's notices: the figures of `vramd demo`, `top` and the metrics.

use std::collections::{BTreeMap, VecDeque};

use fermi_spec::bar::Bar;
use serde::Serialize;
use vgpu::{Direction, Event, MoveStage, Notice, Request, VmId};

use crate::spread::VmSpreads;

/// Number of VMs that are gone whose figures are kept.
const DETACHED_KEPT: usize = 64;

/// Steps of the histogram between a power of two and the next.
const STEPS: u64 = 16;
/// Powers of two of 64 bits, each in steps.
const BUCKETS: usize = 64 * STEPS as usize;

/// Durations, counted in buckets at most 1/16 wide: percentiles are that exact, the largest is exact.
#[derive(Clone, Debug)]
pub(crate) struct Histogram {
    counts: Box<[u64; BUCKETS]>,
    count: u64,
    max: u64,
    last: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            counts: Box::new([0; BUCKETS]),
            count: 0,
            max: 0,
            last: 0,
        }
    }
}

/// The bucket of a value.
fn bucket(value: u64) -> usize {
    if value < STEPS {
        return value as usize;
    }
    let shift = value.ilog2() - STEPS.ilog2();
    let step = value >> shift;
    (u64::from(shift + 1) * STEPS + (step - STEPS)) as usize
}

impl Histogram {
    /// Counts one value in its bucket.
    pub(crate) fn record(&mut self, value: u64) {
        self.counts[bucket(value)] += 1;
        self.count += 1;
        self.max = self.max.max(value);
        self.last = value;
    }

    /// Number of values counted.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// The largest, 0 if there is none.
    pub(crate) fn max(&self) -> u64 {
        self.max
    }

    /// A value that `percent` of all do not exceed, at most 1/16 above the least such; 0 if there is none.
    pub(crate) fn percentile(&self, percent: u64) -> u64 {
        let rank = (self.count * percent).div_ceil(100).max(1);
        let mut seen = 0;
        let index = self.counts.iter().position(|count| {
            seen += count;
            seen >= rank
        });
        index.map_or(0, |index| upper_end(index as u64).min(self.max))
    }
}

/// The largest value of a bucket.
fn upper_end(index: u64) -> u64 {
    match index.checked_sub(STEPS) {
        None => index,
        Some(above) => {
            let shift = above / STEPS;
            let step = above % STEPS + STEPS;
            (step << shift) + ((1 << shift) - 1)
        }
    }
}

/// Times for which a VM's channels were suspended for moves, from off the card to their doorbells, also of moves that were given
/// up. Nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Pauses {
    /// Number of suspensions.
    pub count: u64,
    /// Length of the latest one.
    pub last_ns: u64,
    /// Median of their lengths.
    pub p50_ns: u64,
    /// 99 of 100 are no longer.
    pub p99_ns: u64,
    /// Length of the longest one.
    pub max_ns: u64,
}

/// Accesses of a VM that reached the broker.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Accesses {
    /// Loads from BAR0.
    pub bar0_reads: u64,
    /// Stores to BAR0.
    pub bar0_writes: u64,
    /// Loads from BAR1.
    pub bar1_reads: u64,
    /// Stores to BAR1.
    pub bar1_writes: u64,
    /// Loads from BAR3.
    pub bar3_reads: u64,
    /// Stores to BAR3.
    pub bar3_writes: u64,
    /// DMA maps and unmaps.
    pub dma_changes: u64,
    /// INTx masked or let through again.
    pub intx_changes: u64,
    /// Doorbells that were found in memory, each GP_PUT that a look finds changed.
    pub doorbells_found: u64,
    /// Resets of the device.
    pub resets: u64,
}

/// Figures of one VM since it was attached. Bytes are of chunks; instance memory is not counted.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct VmStats {
    /// Name in the configuration.
    pub name: String,
    /// Whether the VM is still attached.
    pub is_attached: bool,
    /// VRAM that the guest sees.
    pub guest_vram_bytes: u64,
    /// Backed so far: memory that the guest ever mapped or touched.
    pub touched_bytes: u64,
    /// In VRAM now.
    pub resident_bytes: u64,
    /// The most that was ever in VRAM.
    pub resident_peak_bytes: u64,
    /// In host RAM now.
    pub spilled_bytes: u64,
    /// The most that was ever in host RAM.
    pub spilled_peak_bytes: u64,
    /// Chunks moved out.
    pub spills: u64,
    /// Bytes moved out.
    pub spilled_out_bytes: u64,
    /// Chunks moved back.
    pub refills: u64,
    /// Bytes moved back.
    pub refilled_bytes: u64,
    /// Bytes that were copied for these moves: equal copies and instance memory need no copy.
    pub copied_bytes: u64,
    /// Time of all copies together, in nanoseconds, those of moves that were given up included.
    pub copying_ns: u64,
    /// Moves given up and rolled back.
    pub rolled_back: u64,
    /// Suspensions for moves, and how long they took.
    pub pauses: Pauses,
    /// How long each would be, said as it began.
    pub predictions: Pauses,
    /// The part of each that was the wait for what the channels had under way.
    pub drains: Pauses,
    /// How many of them were for moves that were given up.
    pub pauses_in_vain: u64,
    /// Errors of the guest that drivers do not make.
    pub guest_errors: u64,
    /// Errors of channels that the guest was told of.
    pub channel_errors: u64,
    /// Channels stopped after a fault.
    pub channels_killed: u64,
    /// Pages of tables and of instance memory that were loaded from VRAM.
    pub tables_fetched: u64,
    /// Pages of 4 KiB that went to the VM's window file, and that came back from it.
    pub window_pages: (u64, u64),
    /// Number of interrupts raised.
    pub interrupts: u64,
    /// Accesses that reached the broker.
    pub accesses: Accesses,
}

/// Figures of one GPU.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct BrokerStats {
    /// VRAM of the card; 0 until it is up.
    pub vram_bytes: u64,
    /// VRAM that guests may hold; 0 until the card is up.
    pub usable_bytes: u64,
    /// VRAM taken now: all VMs, shadows, the broker's own.
    pub resident_bytes: u64,
    /// The most that was ever taken.
    pub resident_peak_bytes: u64,
    /// Failures of the card, or of the connection to it.
    pub host_errors: u64,
    /// Number of events that the core has applied.
    pub events: u64,
    /// Attached VMs by number, then the latest of those that are gone.
    pub vms: Vec<VmStats>,
}

#[derive(Debug, Default)]
struct VmCounters {
    figures: VmStats,
    pauses: Histogram,
    drains: Histogram,
    predictions: Histogram,
    spreads: VmSpreads,
}

impl From<&Histogram> for Pauses {
    fn from(times: &Histogram) -> Self {
        Self {
            count: times.count(),
            last_ns: times.last,
            p50_ns: times.percentile(50),
            p99_ns: times.percentile(99),
            max_ns: times.max(),
        }
    }
}

impl VmCounters {
    fn snapshot(&self) -> VmStats {
        VmStats {
            pauses: (&self.pauses).into(),
            drains: (&self.drains).into(),
            predictions: (&self.predictions).into(),
            ..self.figures.clone()
        }
    }
}

/// Counts events and notices as they come.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    gpu: BrokerStats,
    vms: BTreeMap<VmId, VmCounters>,
    detached: VecDeque<VmStats>,
}

impl Stats {
    pub(crate) fn attach(&mut self, vm: VmId, name: &str, guest_vram: u64) {
        let figures = VmStats {
            name: name.to_owned(),
            is_attached: true,
            guest_vram_bytes: guest_vram,
            ..VmStats::default()
        };
        self.vms.insert(
            vm,
            VmCounters {
                figures,
                ..VmCounters::default()
            },
        );
    }

    /// Pages went to a VM's window file, or came back from it.
    pub(crate) fn windows_moved(&mut self, vm: VmId, pages: u64, is_lent: bool) {
        if let Some(counters) = self.vms.get_mut(&vm) {
            let (lent, taken_back) = &mut counters.figures.window_pages;
            *(if is_lent { lent } else { taken_back }) += pages;
        }
    }

    pub(crate) fn detach(&mut self, vm: VmId) {
        let Some(counters) = self.vms.remove(&vm) else {
            return;
        };
        let last = VmStats {
            is_attached: false,
            ..counters.snapshot()
        };
        if self.detached.len() == DETACHED_KEPT {
            self.detached.pop_front();
        }
        self.detached.push_back(last);
    }

    /// Forgets a VM whose attach failed.
    pub(crate) fn forget(&mut self, vm: VmId) {
        self.vms.remove(&vm);
    }

    pub(crate) fn host_error(&mut self) {
        self.gpu.host_errors += 1;
    }

    pub(crate) fn interrupt(&mut self, vm: VmId) {
        if let Some(counters) = self.vms.get_mut(&vm) {
            counters.figures.interrupts += 1;
        }
    }

    /// Counts an event.
    pub(crate) fn event(&mut self, event: &Event) {
        self.gpu.events += 1;
        if let Event::Doorbells { vm, channels } = event
            && let Some(counters) = self.vms.get_mut(vm)
        {
            counters.figures.accesses.doorbells_found += channels.len() as u64;
        }
        let Event::Request { vm, request, .. } = event else {
            return;
        };
        let Some(counters) = self.vms.get_mut(vm) else {
            return;
        };
        let accesses = &mut counters.figures.accesses;
        *match request {
            Request::Read { bar, .. } => match bar {
                Bar::Bar0 => &mut accesses.bar0_reads,
                Bar::Bar1 => &mut accesses.bar1_reads,
                Bar::Bar3 => &mut accesses.bar3_reads,
            },
            Request::Write { bar, .. } => match bar {
                Bar::Bar0 => &mut accesses.bar0_writes,
                Bar::Bar1 => &mut accesses.bar1_writes,
                Bar::Bar3 => &mut accesses.bar3_writes,
            },
            // Too rare for a figure.
            Request::ReadConfig { .. } | Request::WriteConfig { .. } => return,
            Request::MaskIntx { .. } => &mut accesses.intx_changes,
            Request::Reset => &mut accesses.resets,
            Request::MapRam { .. } | Request::UnmapRam { .. } => &mut accesses.dma_changes,
        } += 1;
    }

    /// Counts a notice.
    pub(crate) fn notice(&mut self, notice: &Notice) {
        match notice {
            Notice::Started {
                vram_bytes,
                usable_bytes,
            } => {
                self.gpu.vram_bytes = *vram_bytes;
                self.gpu.usable_bytes = *usable_bytes;
            }
            Notice::StartFailed { .. } | Notice::HostError { .. } => self.gpu.host_errors += 1,
            Notice::Usage { card, .. } => {
                self.gpu.resident_bytes = *card;
                self.gpu.resident_peak_bytes = self.gpu.resident_peak_bytes.max(*card);
            }
            _ => {}
        }
        let counters = notice.vm().and_then(|vm| self.vms.get_mut(&vm));
        if let Some(counters) = counters {
            counters.notice(notice);
            counters.spreads.notice(notice);
        }
    }

    /// Those of an attached VM.
    pub(crate) fn of_vm(&self, vm: VmId) -> Option<VmStats> {
        self.vms.get(&vm).map(VmCounters::snapshot)
    }

    /// Durations of an attached VM by how long they were.
    pub(crate) fn spreads_of(&self, vm: VmId) -> Option<VmSpreads> {
        self.vms.get(&vm).map(|counters| counters.spreads)
    }

    /// Those of the card, without VMs.
    pub(crate) fn of_card(&self) -> BrokerStats {
        self.gpu.clone()
    }

    /// All figures as they are now.
    pub(crate) fn snapshot(&self) -> BrokerStats {
        let attached = self.vms.values().map(VmCounters::snapshot);
        BrokerStats {
            vms: attached.chain(self.detached.iter().cloned()).collect(),
            ..self.gpu.clone()
        }
    }
}

impl VmCounters {
    fn notice(&mut self, notice: &Notice) {
        let figures = &mut self.figures;
        match notice {
            Notice::Backed { bytes, .. } => figures.touched_bytes += bytes,
            Notice::Moved {
                direction,
                chunks,
                bytes,
                copied,
                ..
            } => {
                figures.copied_bytes += copied;
                let (moves, moved_bytes) = match direction {
                    Direction::Spill => (&mut figures.spills, &mut figures.spilled_out_bytes),
                    Direction::Refill => (&mut figures.refills, &mut figures.refilled_bytes),
                };
                *moves += u64::from(*chunks);
                *moved_bytes += bytes;
            }
            Notice::Resumed {
                suspended_ns,
                drained_ns,
                is_rolled_back,
                ..
            } => {
                self.pauses.record(*suspended_ns);
                self.drains.record(*drained_ns);
                figures.pauses_in_vain += u64::from(*is_rolled_back);
            }
            Notice::RolledBack { .. } => figures.rolled_back += 1,
            Notice::Usage {
                resident, spilled, ..
            } => {
                figures.resident_bytes = *resident;
                figures.spilled_bytes = *spilled;
                figures.resident_peak_bytes = figures.resident_peak_bytes.max(*resident);
                figures.spilled_peak_bytes = figures.spilled_peak_bytes.max(*spilled);
            }
            Notice::GuestError { .. } => figures.guest_errors += 1,
            Notice::ChannelError { .. } => figures.channel_errors += 1,
            Notice::TablesFetched { pages, .. } => figures.tables_fetched += u64::from(*pages),
            Notice::ChannelKilled { .. } => figures.channels_killed += 1,
            Notice::Suspended { predicted_ns, .. } => self.predictions.record(*predicted_ns),
            Notice::MoveStage {
                stage: MoveStage::Copying,
                took_ns,
                ..
            } => figures.copying_ns += took_ns,
            Notice::MoveStarted { .. }
            | Notice::MoveStage { .. }
            | Notice::DemandWaits { .. }
            | Notice::DemandEnded { .. }
            | Notice::SyncWaited { .. }
            | Notice::WorkWaited { .. }
            | Notice::EngineTime { .. }
            | Notice::Started { .. }
            | Notice::StartFailed { .. }
            | Notice::HostError { .. }
            | Notice::CopiesByWindow => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    use vgpu::{MoveCause, MoveId};

    const VM: VmId = VmId(1);

    fn stats() -> Stats {
        let mut stats = Stats::default();
        stats.attach(VM, "a", 64 << 20);
        stats
    }

    #[test]
    fn peaks_stay_when_usage_falls() {
        let mut stats = stats();
        stats.notice(&Notice::Usage {
            vm: VM,
            resident: 10,
            spilled: 2,
            card: 14,
        });
        stats.notice(&Notice::Usage {
            vm: VM,
            resident: 4,
            spilled: 8,
            card: 8,
        });
        let all = stats.snapshot();
        assert_eq!((all.resident_bytes, all.resident_peak_bytes), (8, 14));
        let vm = &all.vms[0];
        assert_eq!((vm.resident_bytes, vm.resident_peak_bytes), (4, 10));
        assert_eq!((vm.spilled_bytes, vm.spilled_peak_bytes), (8, 8));
    }

    #[test]
    fn moves_are_counted_by_direction_and_pause() {
        let mut stats = stats();
        let moved = |direction, chunks, pause_ns| Notice::Moved {
            vm: VM,
            id: MoveId(1),
            direction,
            cause: MoveCause::FreeRoom,
            chunks,
            bytes: 100,
            copied: 90,
            pause_ns,
        };
        let resumed = |suspended_ns, drained_ns, is_rolled_back| Notice::Resumed {
            vm: VM,
            id: MoveId(1),
            suspended_ns,
            drained_ns,
            is_rolled_back,
        };
        stats.notice(&resumed(1000, 400, false));
        stats.notice(&moved(Direction::Spill, 3, Some(1000)));
        stats.notice(&moved(Direction::Spill, 1, None));
        stats.notice(&resumed(7, 2, false));
        stats.notice(&moved(Direction::Refill, 2, Some(7)));
        stats.notice(&resumed(3000, 3000, true));
        for (stage, took_ns) in [
            (MoveStage::Copying, 600),
            (MoveStage::Mapping, 5),
            (MoveStage::Copying, 30),
        ] {
            let id = MoveId(1);
            stats.notice(&Notice::MoveStage {
                vm: VM,
                id,
                stage,
                took_ns,
            });
        }
        let vm = &stats.snapshot().vms[0];
        assert_eq!((vm.spills, vm.refills, vm.spilled_out_bytes), (4, 2, 200));
        assert_eq!((vm.copied_bytes, vm.copying_ns), (270, 630));
        assert_eq!(
            (vm.pauses.count, vm.pauses.max_ns, vm.pauses_in_vain),
            (3, 3000, 1)
        );
        assert_eq!((vm.drains.count, vm.drains.max_ns), (3, 3000));
        assert!((400..=400 + 400 / STEPS).contains(&vm.drains.p50_ns));
        assert_eq!((vm.pauses.last_ns, vm.drains.last_ns), (3000, 3000));
    }

    #[test]
    fn detached_vm_keeps_its_figures_and_a_bound_holds() {
        let mut stats = stats();
        stats.notice(&Notice::Backed {
            vm: VM,
            bytes: 5,
            resident: true,
        });
        stats.detach(VM);
        assert_eq!(stats.snapshot().vms[0].touched_bytes, 5);
        assert!(!stats.snapshot().vms[0].is_attached);
        (0..200).for_each(|_| {
            stats.attach(VM, "b", 1);
            stats.detach(VM);
        });
        assert_eq!(stats.snapshot().vms.len(), DETACHED_KEPT);
    }

    proptest! {
        #[test]
        fn percentile_is_at_most_a_sixteenth_above_the_sorted_one(
            mut values in prop::collection::vec(any::<u64>(), 1..200),
            percent in 1u64..=100,
        ) {
            let mut histogram = Histogram::default();
            values.iter().for_each(|value| histogram.record(*value));
            values.sort_unstable();
            let rank = (values.len() as u64 * percent).div_ceil(100) as usize;
            let exact = values[rank - 1];
            let told = histogram.percentile(percent);
            prop_assert!(told >= exact && told - exact <= exact / 16, "{told} for {exact}");
            prop_assert_eq!(histogram.max(), *values.last().unwrap());
        }

        #[test]
        fn bucket_and_its_upper_end_agree(value in any::<u64>()) {
            let index = bucket(value);
            prop_assert!(index < BUCKETS && upper_end(index as u64) >= value);
            prop_assert!(index == 0 || upper_end(index as u64 - 1) < value);
        }
    }
}
