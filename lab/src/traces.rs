//! Traces of kernels: which pages their grids used, in which order, recorded from real runs on a bare card.

mod file;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use fermi_model::{GridStart, WarpStep, WarpWatcher};
use launches::Work;
use vgpu::VmId;

use crate::KIB;
use crate::host::LabError;
use crate::jobs::{self, Onlooker};
use crate::observed::ObservedMachine;
use crate::programs::Kernel;
use crate::settings::Settings;

pub use file::TraceError;

/// Bytes of a page.
pub(crate) const PAGE: u64 = 4 * KIB;
/// Instructions of warps in a quantum: what the GPU executes between two times at which its host hears of faults.
pub(crate) const QUANTUM: u64 = 8192;

/// Accesses of warps to one page within a quantum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Touch {
    pub(crate) allocation: usize,
    /// Which of its pages.
    pub(crate) page: u32,
    pub(crate) loads: u32,
    pub(crate) stores: u32,
}

/// A part of a grid.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Quantum {
    /// Instructions of warps.
    pub(crate) steps: u64,
    /// In the order of the first access to each page.
    pub(crate) touches: Vec<Touch>,
}

/// A whole run of a program: which pages its kernels used, in which order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trace {
    pub(crate) name: String,
    /// Pages of each allocation.
    pub(crate) allocations: Vec<u32>,
    /// Grids in their order.
    pub(crate) grids: Vec<Vec<Quantum>>,
    /// The grids' time on the card's clock.
    pub(crate) gpu_ns: u64,
}

/// Loads and stores of pages by address.
#[derive(Default)]
struct Open {
    steps: u64,
    order: Vec<u64>,
    counts: BTreeMap<u64, [u32; 2]>,
}

/// A quantum by address.
struct Seen {
    steps: u64,
    touches: Vec<(u64, [u32; 2])>,
}

/// What is recorded, by address.
#[derive(Default)]
struct Recording {
    grids: Vec<Vec<Seen>>,
    open: Open,
}

impl Recording {
    fn close(&mut self) {
        let open = std::mem::take(&mut self.open);
        if open.steps == 0 {
            return;
        }
        let touches = open.order.iter().map(|page| (*page, open.counts[page]));
        let seen = Seen {
            steps: open.steps,
            touches: touches.collect(),
        };
        if let Some(grid) = self.grids.last_mut() {
            grid.push(seen);
        }
    }
}

struct Recorder(Arc<Mutex<Recording>>);

impl WarpWatcher for Recorder {
    fn start(&mut self, _: &GridStart) {
        let mut recording = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        recording.close();
        recording.grids.push(Vec::new());
    }

    fn see(&mut self, step: &WarpStep<'_>) {
        let mut recording = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let open = &mut recording.open;
        open.steps += 1;
        if let Some(global) = &step.global {
            let lanes = (0..32).filter(|lane| global.lanes >> lane & 1 != 0);
            // An access of a warp is one to each page that it reaches.
            let pages: BTreeSet<u64> = lanes.map(|lane| global.addresses[lane] / PAGE).collect();
            for page in pages {
                let counts = open.counts.entry(page).or_insert_with(|| {
                    open.order.push(page);
                    [0; 2]
                });
                counts[0] += u32::from(global.is_load);
                counts[1] += u32::from(global.is_store);
            }
        }
        if open.steps >= QUANTUM {
            recording.close();
        }
    }
}

/// What a watcher of a card records.
#[derive(Default)]
pub(crate) struct Recorded(Arc<Mutex<Recording>>);

impl Recorded {
    /// The watcher whose card is recorded.
    pub(crate) fn watcher(&self) -> Box<dyn WarpWatcher> {
        Box::new(Recorder(Arc::clone(&self.0)))
    }

    /// The trace of all grids so far; allocations begin at the pages in `pointers`.
    pub(crate) fn trace(self, name: String, pointers: &BTreeSet<u64>, gpu_ns: u64) -> Trace {
        let mut recording = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        recording.close();
        let grids = std::mem::take(&mut recording.grids);
        Trace::of(name, pointers, &grids, gpu_ns)
    }
}

/// Pages that are an allocation each: from a pointer of a launch to the next one, as far as they are used.
fn allocations(pointers: &BTreeSet<u64>, used: &BTreeSet<u64>) -> Vec<Range<u64>> {
    let starts: Vec<u64> = pointers.iter().copied().collect();
    let mut ranges: Vec<Range<u64>> = Vec::new();
    let mut of = None;
    for &page in used {
        // 0: below all pointers.
        let at = starts.partition_point(|start| *start <= page);
        match ranges.last_mut() {
            Some(range) if of == Some(at) => range.end = page + 1,
            _ => ranges.push(at.checked_sub(1).map_or(page, |at| starts[at])..page + 1),
        }
        of = Some(at);
    }
    ranges
}

impl Trace {
    /// The program's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs a kernel on a card of its own.
    pub(crate) fn record(kernel: Kernel) -> Result<Self, LabError> {
        let recorded = Recorded::default();
        let mut machine = ObservedMachine::watched_by(kernel.bare_machine()?, recorded.watcher());
        let summary = kernel
            .run(&mut machine)
            .map_err(|what| LabError::Guest { vm: VmId(0), what })?;
        let launches = machine.found.iter().filter_map(|(_, item)| match &item.work {
            Work::Launch(launch) => Some(launch),
            _ => None,
        });
        let roots = launches.flat_map(|launch| launch.sets.accesses.iter().filter_map(|access| access.root));
        // Buffers begin with a page; other pointers are to their middle.
        let starts = roots
            .map(|root| root.address)
            .filter(|at| at.is_multiple_of(PAGE));
        let pointers: BTreeSet<u64> = starts.map(|at| at / PAGE).collect();
        Ok(recorded.trace(kernel.name.to_owned(), &pointers, summary.gpu_ns))
    }

    fn of(name: String, pointers: &BTreeSet<u64>, grids: &[Vec<Seen>], gpu_ns: u64) -> Self {
        let touches = grids.iter().flatten().flat_map(|quantum| &quantum.touches);
        let used: BTreeSet<u64> = touches.map(|(page, _)| *page).collect();
        let ranges = allocations(pointers, &used);
        let touch = |(page, [loads, stores]): &(u64, [u32; 2])| {
            let allocation = ranges.partition_point(|range| range.end <= *page);
            Touch {
                allocation,
                page: (page - ranges[allocation].start) as u32,
                loads: *loads,
                stores: *stores,
            }
        };
        let quantum = |seen: &Seen| Quantum {
            steps: seen.steps,
            touches: seen.touches.iter().map(touch).collect(),
        };
        Self {
            name,
            allocations: ranges
                .iter()
                .map(|range| (range.end - range.start) as u32)
                .collect(),
            grids: grids
                .iter()
                .map(|grid| grid.iter().map(quantum).collect())
                .collect(),
            gpu_ns,
        }
    }

    /// The operator's traces, or those of these kernels, of which the onlooker is told.
    pub(crate) fn all(
        kernels: &[Kernel],
        settings: &Settings,
        onlooker: &dyn Onlooker,
    ) -> Result<Vec<Self>, LabError> {
        if !settings.traces.is_empty() {
            return Ok(settings.traces.clone());
        }
        let name = |kernel: &Kernel| kernel.name.to_owned();
        jobs::all(kernels, onlooker, name, |&kernel, onlooker| {
            let trace = Self::record(kernel)?;
            onlooker.recorded(&trace);
            Ok(trace)
        })
    }

    /// Pages that were used.
    pub(crate) fn pages(&self) -> u64 {
        let places: BTreeSet<(usize, u32)> = self
            .quanta()
            .flat_map(|quantum| &quantum.touches)
            .map(|touch| (touch.allocation, touch.page))
            .collect();
        places.len() as u64
    }

    /// All quanta in their order.
    pub(crate) fn quanta(&self) -> impl Iterator<Item = &Quantum> {
        self.grids.iter().flatten()
    }

    /// Instructions of warps.
    pub(crate) fn steps(&self) -> u64 {
        self.quanta().map(|quantum| quantum.steps).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocation_goes_from_its_pointer_to_the_next_as_far_as_it_is_used() {
        let pointers = BTreeSet::from([10, 20, 40]);
        let used = BTreeSet::from([5, 11, 12, 19, 20, 33]);
        assert_eq!(allocations(&pointers, &used), [5..6, 10..20, 20..34]);
    }

    #[test]
    fn trace_of_a_kernel_has_its_accesses_and_its_buffers() {
        let kernel = Kernel {
            name: "triad",
            footprint: 384 * KIB,
            repeats: 1,
        };
        let trace = Trace::record(kernel).unwrap();
        // Three vectors of equal length, each used whole.
        assert_eq!(trace.allocations, [32, 32, 32]);
        assert_eq!(trace.pages(), 96);
        assert!(trace.gpu_ns > 0 && trace.steps() > 0);
        let sum = |of: fn(&Touch) -> u32| -> Vec<u32> {
            let touches = trace.quanta().flat_map(|quantum| &quantum.touches);
            let mut sums = vec![0; 3];
            touches.for_each(|touch| sums[touch.allocation] += of(touch));
            sums
        };
        let (loads, stores) = (sum(|touch| touch.loads), sum(|touch| touch.stores));
        // One warp reaches 128 bytes of each: two are loaded, one is stored.
        let mut kinds: Vec<_> = loads.into_iter().zip(stores).collect();
        kinds.sort_unstable();
        assert_eq!(kinds, [(0, 1024), (1024, 0), (1024, 0)]);
    }
}
