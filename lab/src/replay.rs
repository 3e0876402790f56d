//! Traces replayed on a memory that is too small for them, under any policy.
//!
//! Nothing is executed: a quantum takes the time that it took on the card, and what its policy does to the link comes on top.

pub(crate) mod shared;

use std::collections::{BTreeMap, BTreeSet};

use adaptive::{Choice, Manager, Outcome, Place, Setup, runs};

use crate::traces::{PAGE, Quantum, Touch, Trace};
use crate::{KIB, MIB};

/// Bytes of a large page.
pub(crate) const LARGE: u64 = 2 * MIB;
/// From a fault until its page can come: what the thesis measured on a GTX 1080 Ti (section 3.2.1). A group of faults takes it once.
const FAULT_NS: f64 = 45_000.0;
/// The link's rate with long transfers: 11 GB/s each way, as in the thesis (section 3.1.3).
const BYTES_PER_NS: f64 = 11.0;
/// What each transfer takes before its first byte. Ours: with it 4 KiB come at 3 GB/s and 64 KiB at 9, which has the form of the thesis's Figure 6.
const TRANSFER_NS: f64 = 1_000.0;
/// Bytes that one access of a warp moves across the link.
const ACCESS_BYTES: u64 = 128;

/// What a policy works by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unit {
    Page,
    Block,
}

impl Figures {
    /// Bytes across the link, in both directions and by single accesses.
    pub(crate) fn link_bytes(&self) -> u64 {
        self.bytes_in + self.bytes_out + self.remote * ACCESS_BYTES
    }
}

impl Unit {
    pub(crate) const fn bytes(self) -> u64 {
        match self {
            Self::Page => PAGE,
            Self::Block => 64 * KIB,
        }
    }

    /// Pages of a unit.
    const fn pages(self) -> u32 {
        (self.bytes() / PAGE) as u32
    }
}

/// What a replay came to.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Figures {
    /// Bytes that came.
    pub(crate) bytes_in: u64,
    /// Those of units that had been there before.
    pub(crate) again: u64,
    /// Bytes that were written back.
    pub(crate) bytes_out: u64,
    /// Groups of faults.
    pub(crate) groups: u64,
    /// Accesses of warps across the link.
    pub(crate) remote: u64,
    pub(crate) gpu_ns: f64,
}

/// What moves at a time.
#[derive(Default)]
pub(crate) struct Transfers {
    /// Units that come, by allocation.
    pub(crate) came: BTreeMap<usize, Vec<u32>>,
    /// Units that are written back.
    pub(crate) went: BTreeMap<usize, Vec<u32>>,
    remote: u64,
}

impl Transfers {
    pub(crate) fn is_empty(&self) -> bool {
        self.came.is_empty() && self.went.is_empty()
    }

    /// Nanoseconds of all of it: both directions go at once.
    pub(crate) fn ns(mut self, unit: Unit) -> f64 {
        let [come, go] = [&mut self.came, &mut self.went].map(|units| Self::time(units, unit));
        come.max(go)
    }

    /// Time of units that move one way: neighbours in one transfer.
    fn time(units: &mut BTreeMap<usize, Vec<u32>>, unit: Unit) -> f64 {
        let mut ns = 0.0;
        for list in units.values_mut() {
            list.sort_unstable();
            for run in runs(list) {
                ns += TRANSFER_NS + (u64::from(run.end - run.start) * unit.bytes()) as f64 / BYTES_PER_NS;
            }
        }
        ns
    }

    fn count(units: &BTreeMap<usize, Vec<u32>>) -> u64 {
        units.values().map(|list| list.len() as u64).sum()
    }
}

/// Adds quanta up.
struct Sum {
    unit: Unit,
    ns_per_step: f64,
    seen: BTreeSet<Place>,
    figures: Figures,
}

impl Sum {
    fn new(trace: &Trace, unit: Unit) -> Self {
        Self {
            unit,
            ns_per_step: trace.gpu_ns as f64 / trace.steps().max(1) as f64,
            seen: BTreeSet::new(),
            figures: Figures::default(),
        }
    }

    fn add(&mut self, steps: u64, moved: Transfers) {
        let figures = &mut self.figures;
        figures.gpu_ns += steps as f64 * self.ns_per_step;
        let bytes = self.unit.bytes();
        for (&allocation, units) in &moved.came {
            for &unit in units {
                figures.bytes_in += bytes;
                let is_again = !self.seen.insert(Place { allocation, unit });
                figures.again += u64::from(is_again) * bytes;
            }
        }
        figures.bytes_out += Transfers::count(&moved.went) * bytes;
        figures.remote += moved.remote;
        figures.gpu_ns += (moved.remote * ACCESS_BYTES) as f64 / BYTES_PER_NS;
        if !moved.came.is_empty() {
            figures.groups += 1;
            figures.gpu_ns += FAULT_NS + moved.ns(self.unit);
        }
    }
}

/// Accesses of a quantum by unit, in the order of the first one.
fn by_unit(quantum: &Quantum, unit: Unit) -> Vec<Touch> {
    let mut all: Vec<Touch> = Vec::new();
    let mut at: BTreeMap<(usize, u32), usize> = BTreeMap::new();
    for touch in &quantum.touches {
        let page = touch.page / unit.pages();
        let index = *at.entry((touch.allocation, page)).or_insert_with(|| {
            all.push(Touch {
                page,
                loads: 0,
                stores: 0,
                ..*touch
            });
            all.len() - 1
        });
        all[index].loads += touch.loads;
        all[index].stores += touch.stores;
    }
    all
}

/// Units of each allocation.
fn units(trace: &Trace, unit: Unit) -> Vec<u32> {
    trace
        .allocations
        .iter()
        .map(|pages| pages.div_ceil(unit.pages()))
        .collect()
}

/// Units that fit if the trace's pages are so many percent of what fits.
pub(crate) fn capacity(trace: &Trace, unit: Unit, percent: u64) -> u32 {
    (trace.pages() * PAGE * 100 / percent.max(1) / unit.bytes()) as u32
}

/// Replays a trace whose pages are so many percent of what fits.
pub(crate) fn replay(trace: &Trace, unit: Unit, choice: Choice, percent: u64, seed: u64) -> Figures {
    replay_in(trace, unit, choice, capacity(trace, unit, percent), seed)
}

/// Replays a trace on a memory of `capacity` units.
pub(crate) fn replay_in(trace: &Trace, unit: Unit, choice: Choice, capacity: u32, seed: u64) -> Figures {
    let mut manager = Manager::new(Setup {
        capacity,
        units_of_large: (LARGE / unit.bytes()) as u32,
        allocations: units(trace, unit),
        choice,
        reserve_percent: 0,
        seed,
    });
    let mut sum = Sum::new(trace, unit);
    for grid in &trace.grids {
        for quantum in grid {
            let mut moved = Transfers::default();
            for touch in by_unit(quantum, unit) {
                let place = Place {
                    allocation: touch.allocation,
                    unit: touch.page,
                };
                match manager.access(place, touch.loads, touch.stores) {
                    Outcome::Local => {}
                    Outcome::Remote => moved.remote += u64::from(touch.loads + touch.stores),
                    Outcome::Comes { units, gone, remote } => {
                        moved.remote += u64::from(remote);
                        moved.came.entry(touch.allocation).or_default().extend(units);
                        for one in gone.iter().filter(|one| one.is_dirty) {
                            let of = moved.went.entry(one.place.allocation).or_default();
                            of.push(one.place.unit);
                        }
                    }
                }
            }
            sum.add(quantum.steps, moved);
        }
        manager.kernel_ends();
    }
    sum.figures
}

/// The same with Belady's choice: blocks come alone when they are used, and the one goes whose next use is farthest.
pub(crate) fn belady(trace: &Trace, percent: u64) -> Figures {
    let unit = Unit::Block;
    let capacity = capacity(trace, unit, percent) as usize;
    let quanta: Vec<(u64, Vec<Touch>)> = trace
        .quanta()
        .map(|quantum| (quantum.steps, by_unit(quantum, unit)))
        .collect();
    let mut uses: BTreeMap<Place, Vec<usize>> = BTreeMap::new();
    let place = |touch: &Touch| Place {
        allocation: touch.allocation,
        unit: touch.page,
    };
    for (number, (_, touches)) in quanta.iter().enumerate() {
        for touch in touches {
            uses.entry(place(touch)).or_default().push(number);
        }
    }
    let next_use = |place: Place, after: usize| {
        let of = &uses[&place];
        of.get(of.partition_point(|at| *at <= after))
            .copied()
            .unwrap_or(usize::MAX)
    };
    // By the quantum of the next use; whether a unit is dirty.
    let mut resident: BTreeSet<(usize, Place)> = BTreeSet::new();
    let mut held: BTreeMap<Place, (usize, bool)> = BTreeMap::new();
    let mut sum = Sum::new(trace, unit);
    for (number, (steps, touches)) in quanta.iter().enumerate() {
        let mut moved = Transfers::default();
        for touch in touches {
            let place = place(touch);
            let mut is_dirty = touch.stores > 0;
            match held.remove(&place) {
                Some((next, was_dirty)) => {
                    resident.remove(&(next, place));
                    is_dirty |= was_dirty;
                }
                None => {
                    moved.came.entry(place.allocation).or_default().push(place.unit);
                    while held.len() >= capacity.max(1) {
                        let Some((_, victim)) = resident.pop_last() else {
                            break;
                        };
                        if held.remove(&victim).is_some_and(|(_, is_dirty)| is_dirty) {
                            moved.went.entry(victim.allocation).or_default().push(victim.unit);
                        }
                    }
                }
            }
            let next = next_use(place, number);
            resident.insert((next, place));
            held.insert(place, (next, is_dirty));
        }
        sum.add(*steps, moved);
    }
    sum.figures
}

#[cfg(test)]
mod tests {
    use adaptive::Rules;

    use super::*;

    /// A load of each page of a vector, a quantum for each block, so many times over.
    pub(super) fn scans(blocks: u32, times: usize) -> Trace {
        let pages = Unit::Block.pages();
        let quantum = |block: u32| Quantum {
            steps: 10,
            touches: (0..pages)
                .map(|page| Touch {
                    allocation: 0,
                    page: block * pages + page,
                    loads: 1,
                    stores: 0,
                })
                .collect(),
        };
        Trace {
            name: "scan".to_owned(),
            allocations: vec![blocks * pages],
            grids: vec![(0..blocks).map(quantum).collect(); times],
            gpu_ns: 1000,
        }
    }

    const BLOCK: u64 = 64 * KIB;

    #[test]
    fn what_fits_comes_once() {
        let once = replay(&scans(64, 3), Unit::Block, Choice::Fixed(Rules::DRIVER), 100, 1);
        assert_eq!((once.bytes_in, once.again, once.bytes_out), (64 * BLOCK, 0, 0));
        // The driver's tree brings half of each large page with the seventeenth block at the latest.
        assert!(once.groups < 64, "{once:?}");
    }

    #[test]
    fn belady_brings_again_what_does_not_fit_and_no_more() {
        // 10 blocks, 8 fit: each scan but the first finds two of them missing at least.
        let figures = belady(&scans(10, 4), 125);
        assert_eq!(figures.bytes_in - figures.again, 10 * BLOCK);
        assert_eq!(figures.again, 3 * 2 * BLOCK);
        let oldest = Rules {
            evict: adaptive::Evict::Oldest,
            bring: adaptive::Bring::Alone,
            ..Rules::DRIVER
        };
        let lru = replay(&scans(10, 4), Unit::Block, Choice::Fixed(oldest), 125, 1);
        assert_eq!(lru.bytes_in, 40 * BLOCK);
    }

    #[test]
    fn time_is_the_cards_and_that_of_faults_and_transfers() {
        let trace = scans(1, 1);
        let figures = replay(&trace, Unit::Block, Choice::Fixed(Rules::DRIVER), 100, 1);
        let wanted = 1000.0 + FAULT_NS + TRANSFER_NS + BLOCK as f64 / BYTES_PER_NS;
        assert!((figures.gpu_ns - wanted).abs() < 1.0, "{figures:?}");
    }
}
