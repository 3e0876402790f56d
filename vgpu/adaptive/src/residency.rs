//! What is in the card's memory: units of allocations, by large page, with when and how they were used.

use std::collections::BTreeSet;

use crate::tree::Tree;

/// A unit of an allocation: a block, or a page where a policy works by pages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Place {
    /// Its number in [`Setup::allocations`](crate::Setup::allocations).
    pub allocation: usize,
    /// Which of its units.
    pub unit: u32,
}

/// A large page, or the end of an allocation.
#[derive(Clone, Debug)]
pub(crate) struct Large {
    pub(crate) allocation: usize,
    /// Its first unit in the allocation.
    pub(crate) first: u32,
    pub(crate) tree: Tree,
    /// When each unit was used or came.
    stamps: Vec<u64>,
    dirty: Vec<bool>,
    /// When one of its units was used or came.
    pub(crate) stamp: u64,
    /// Whether one of its units was ever stored to.
    pub(crate) is_written: bool,
}

/// All large pages of all allocations.
#[derive(Clone, Debug)]
pub(crate) struct Residency {
    larges: Vec<Large>,
    /// First large page of each allocation, and its units.
    allocations: Vec<(usize, u32)>,
    units_of_large: u32,
    /// Units that are in memory, by when they were used.
    by_age: BTreeSet<(u64, Place)>,
    clock: u64,
}

/// A unit that went, and whether it has to be written back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gone {
    /// Where it was.
    pub place: Place,
    /// It was stored to since it came.
    pub is_dirty: bool,
}

impl Residency {
    pub(crate) fn new(units_of_large: u32, allocations: &[u32]) -> Self {
        let units_of_large = units_of_large.max(1);
        let mut larges = Vec::new();
        let mut starts = Vec::new();
        for (allocation, units) in allocations.iter().enumerate() {
            starts.push((larges.len(), *units));
            for first in (0..*units).step_by(units_of_large as usize) {
                let count = (units - first).min(units_of_large);
                larges.push(Large {
                    allocation,
                    first,
                    tree: Tree::new(count),
                    stamps: vec![0; count as usize],
                    dirty: vec![false; count as usize],
                    stamp: 0,
                    is_written: false,
                });
            }
        }
        Self {
            larges,
            allocations: starts,
            units_of_large,
            by_age: BTreeSet::new(),
            clock: 0,
        }
    }

    /// The large page of a unit, and which of its units that is; `None` if there is no such unit.
    pub(crate) fn find(&self, place: Place) -> Option<(usize, u32)> {
        let (start, units) = self.allocations.get(place.allocation)?;
        (place.unit < *units).then(|| {
            let large = place.unit / self.units_of_large;
            (start + large as usize, place.unit % self.units_of_large)
        })
    }

    pub(crate) fn larges(&self) -> &[Large] {
        &self.larges
    }

    /// Units in memory.
    pub(crate) fn count(&self) -> usize {
        self.by_age.len()
    }

    pub(crate) fn has(&self, place: Place) -> bool {
        self.find(place)
            .is_some_and(|(large, unit)| self.larges[large].tree.is_valid(unit))
    }

    /// The units in memory, those first that were used least recently.
    pub(crate) fn by_age(&self) -> impl Iterator<Item = Place> + '_ {
        self.by_age.iter().map(|(_, place)| *place)
    }

    /// A unit is used where it is.
    pub(crate) fn used(&mut self, place: Place, is_store: bool) {
        let Some((large, unit)) = self.find(place) else {
            return;
        };
        self.clock += 1;
        let (clock, large) = (self.clock, &mut self.larges[large]);
        large.is_written |= is_store;
        if !large.tree.is_valid(unit) {
            return;
        }
        large.stamp = clock;
        large.dirty[unit as usize] |= is_store;
        let stamp = std::mem::replace(&mut large.stamps[unit as usize], clock);
        self.by_age.remove(&(stamp, place));
        self.by_age.insert((clock, place));
    }

    /// Units of a large page come: the tree has them already.
    pub(crate) fn came(&mut self, large: usize, units: &[u32]) {
        let large = &mut self.larges[large];
        for unit in units {
            self.clock += 1;
            large.stamp = self.clock;
            large.stamps[*unit as usize] = self.clock;
            large.dirty[*unit as usize] = false;
            let place = Place {
                allocation: large.allocation,
                unit: large.first + unit,
            };
            self.by_age.insert((self.clock, place));
        }
    }

    /// Units of a large page go: the tree has them no more.
    pub(crate) fn went(&mut self, large: usize, units: &[u32]) -> Vec<Gone> {
        let large = &mut self.larges[large];
        let gone = units.iter().map(|unit| {
            let place = Place {
                allocation: large.allocation,
                unit: large.first + unit,
            };
            self.by_age.remove(&(large.stamps[*unit as usize], place));
            Gone {
                place,
                is_dirty: std::mem::take(&mut large.dirty[*unit as usize]),
            }
        });
        gone.collect()
    }

    pub(crate) fn tree(&mut self, large: usize) -> &mut Tree {
        &mut self.larges[large].tree
    }
}

impl Large {
    /// Its unit in memory that was used least recently.
    pub(crate) fn oldest(&self) -> Option<u32> {
        self.tree
            .valid_blocks()
            .min_by_key(|unit| self.stamps[*unit as usize])
    }
}
