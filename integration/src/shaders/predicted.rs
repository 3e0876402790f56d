//! What launches reach in global memory, against what `kernel_sets` says that they may.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use fermi_model::{GlobalAccess, WarpStep, WarpWatcher};
use kernel_sets::{Access, Bank, Bound, Kernel, Kind, Limits, Sets, analyse};

use super::Launch;
use super::runner::Runner;

/// Banks that can be bound.
const BANKS: u32 = 18;
/// Accesses of a launch that are told.
const TOLD_MAX: usize = 8;

/// How the accesses of launches were known, each executed instruction counted once.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// By bound: exact, run, space.
    pub accesses: [u64; 3],
    /// Accesses outside of what was said.
    pub outside: Vec<String>,
}

/// What a launch may reach, as its code and constants say.
pub fn sets(launch: &Launch) -> Sets {
    let words = |bank: u32| {
        let words = launch.banks.get(&bank).map_or(&[][..], Vec::as_slice);
        words.iter().copied().map(Some).collect()
    };
    let words: Vec<Vec<Option<u32>>> = (0..BANKS).map(words).collect();
    let banks: Vec<Bank<'_>> = words.iter().map(|words| Bank { words }).collect();
    let kernel = Kernel {
        entry: launch.entry,
        grid: launch.grid,
        block: launch.block,
        banks: &banks,
        windows: [launch.shared_window.into(), launch.local_window.into()],
    };
    let mut code = |at: u32| launch.code.get(at as usize / 8).copied();
    analyse(&kernel, &mut code, Limits::default())
}

/// Holds each access against the sets.
struct Judge {
    by_pc: BTreeMap<u32, Vec<Access>>,
    is_understood: bool,
    tally: Arc<Mutex<Tally>>,
}

impl Judge {
    fn judge(&self, pc: u32, global: &GlobalAccess) {
        let mut tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.is_understood {
            tally.accesses[Bound::Space as usize] += 1;
            return;
        }
        let known = self.by_pc.get(&pc).map_or(&[][..], Vec::as_slice);
        let lanes = (0..32).filter(|lane| global.lanes >> lane & 1 != 0);
        for address in lanes.map(|lane| global.addresses[lane]) {
            let end = address + u64::from(global.bytes);
            let holds = |access: &Access| {
                access.kind == Kind::Global
                    && (access.is_load || !global.is_load)
                    && (access.is_store || !global.is_store)
                    && access.bytes.start <= address
                    && end <= access.bytes.end
            };
            if !known.iter().any(holds) && tally.outside.len() < TOLD_MAX {
                let told = format!("{pc:#x} reaches {address:#x}, not in {known:x?}");
                tally.outside.push(told);
            }
        }
        let worst = known.iter().map(|access| access.bound).max();
        tally.accesses[worst.unwrap_or(Bound::Space) as usize] += 1;
    }
}

impl WarpWatcher for Judge {
    fn see(&mut self, step: &WarpStep<'_>) {
        // One that stopped has reached nothing that counts.
        if let Some(global) = &step.global
            && global.lanes != 0
            && !step.is_stop
        {
            self.judge(step.pc, global);
        }
    }
}

/// Lets the card hold what launches reach from now on against the sets of one of them.
pub fn watch(runner: &mut Runner, sets: &Sets) -> Arc<Mutex<Tally>> {
    let tally = Arc::new(Mutex::new(Tally::default()));
    let mut by_pc: BTreeMap<u32, Vec<Access>> = BTreeMap::new();
    for access in &sets.accesses {
        by_pc.entry(access.pc).or_default().push(access.clone());
    }
    runner.watch(Box::new(Judge {
        by_pc,
        is_understood: sets.reason.is_none(),
        tally: Arc::clone(&tally),
    }));
    tally
}
