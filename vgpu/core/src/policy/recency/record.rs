//! What trials have found out about a VM's chunks, and how fast the VM is.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::event::{Tick, VmId};
use crate::policy::ChunkNo;

/// Doorbells to whose time figures refer.
pub(super) const UNIT: u64 = 64;
/// Least doorbells of a window, and the most that an unsteady guest is asked for.
pub(super) const DOORBELLS: [u64; 2] = [8, 256];
/// A difference of less than one in so many is none.
const TELLS: u64 = 64;
/// A guest whose pace changed by one in so many by itself does something else: what is known of its chunks is void.
const ANOTHER_PHASE: u64 = 4;

/// Time of [`UNIT`] doorbells, and by how much two windows without an exchange differed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Pace {
    pub(super) ns: u64,
    pub(super) noise: u64,
}

impl Pace {
    /// The least difference that tells something.
    pub(super) fn tells(self) -> u64 {
        (2 * self.noise).max(self.ns / TELLS).max(1)
    }
}

/// What is known of one VM.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Record {
    /// By how much a chunk in host RAM makes the time of [`UNIT`] doorbells longer, where that was found out.
    pub(super) heat: BTreeMap<ChunkNo, u64>,
    /// Trials in a row that made no difference.
    pub(super) barren: u32,
    /// No trial before this time.
    pub(super) next_at: Tick,
    /// When it was last known, and beside whom.
    pub(super) pace: Option<(Pace, BTreeSet<VmId>)>,
    /// Doorbells that a window of it takes.
    pub(super) doorbells: u64,
}

impl Default for Record {
    fn default() -> Self {
        Self {
            heat: BTreeMap::new(),
            barren: 0,
            next_at: Tick::default(),
            pace: None,
            doorbells: DOORBELLS[0],
        }
    }
}

impl Record {
    /// The VM's pace while nothing moved.
    pub(super) fn meet(&mut self, pace: Pace, beside: &BTreeSet<VmId>) {
        let before = self.pace.replace((pace, beside.clone()));
        let before = before.filter(|(_, others)| others == beside);
        if before.is_some_and(|(before, _)| before.ns.abs_diff(pace.ns) > before.ns / ANOTHER_PHASE) {
            self.heat.clear();
            self.barren = 0;
        }
    }

    /// With `hot` in VRAM instead of `cold` work takes so much less time.
    pub(super) fn learn(&mut self, hot: &[ChunkNo], cold: &[ChunkNo], difference: u64) {
        let each = difference / (hot.len().max(1) as u64);
        let known = cold
            .iter()
            .filter_map(|chunk| self.heat.get(chunk).copied())
            .max();
        let least = known.unwrap_or(0);
        for &chunk in cold {
            self.heat.entry(chunk).or_insert(0);
        }
        for &chunk in hot {
            self.heat.insert(chunk, least.saturating_add(each));
        }
    }

    /// Those of which something is known say what the others are. Whether there were both.
    pub(super) fn are_alike(&mut self, some: &[ChunkNo], others: &[ChunkNo]) -> bool {
        let all = || some.iter().chain(others);
        let known = all().filter_map(|chunk| self.heat.get(chunk).copied()).max();
        let before = self.heat.len();
        if let Some(heat) = known {
            for &chunk in all() {
                self.heat.entry(chunk).or_insert(heat);
            }
        }
        self.heat.len() > before
    }
}
