//! One card's memory under a policy.

use std::ops::Range;

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::counters::Counters;
use crate::pattern::{History, Pattern};
use crate::residency::{Gone, Place, Residency};
use crate::rules::{Bring, Choice, Evict, Rules};
use crate::threshold::Fill;

/// What the memory is, and what its policy.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Units that fit.
    pub capacity: u32,
    /// Units of a large page: 32 blocks of 64 KiB, or 512 pages of 4 KiB, in 2 MiB.
    pub units_of_large: u32,
    /// Units of each allocation.
    pub allocations: Vec<u32>,
    /// Who chooses the rules.
    pub choice: Choice,
    /// Share of what is in memory that is not evicted though it is oldest, in percent (section 4.1.3).
    pub reserve_percent: u32,
    /// Of the draws.
    pub seed: u64,
}

/// What becomes of an access.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The unit is in memory.
    Local,
    /// The unit stays on the host, and is reached across the link.
    Remote,
    /// The unit comes.
    Comes {
        /// Units of the allocation that come, upwards.
        units: Vec<u32>,
        /// Units that have to go first, of whatever allocation.
        gone: Vec<Gone>,
        /// Loads that had reached the host before the threshold was met.
        remote: u32,
    },
}

/// Draws for a victim by chance before the oldest unit is taken.
const DRAWS: usize = 1024;

/// Which units are in memory, and who has to go for whom.
#[derive(Clone, Debug)]
pub struct Manager {
    residency: Residency,
    counters: Counters,
    histories: Vec<History>,
    /// First unit of each allocation among all units.
    bases: Vec<usize>,
    setup: Setup,
    /// Allocations of which nothing goes while others have something in memory.
    spared: Range<usize>,
    is_oversubscribed: bool,
    rng: ChaCha8Rng,
}

/// What victims are sought for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Seek {
    /// The large page that something comes to: what is in it goes last.
    coming_to: usize,
    /// So many units that are older do not go.
    reserve: usize,
    /// Nothing of the spared allocations goes.
    is_sparing: bool,
}

impl Manager {
    /// Nothing is in memory.
    pub fn new(setup: Setup) -> Self {
        let mut units = 0;
        let bases = setup.allocations.iter().map(|of| {
            let base = units;
            units += *of as usize;
            base
        });
        Self {
            bases: bases.collect(),
            residency: Residency::new(setup.units_of_large, &setup.allocations),
            counters: Counters::new(units),
            histories: vec![History::default(); setup.allocations.len()],
            spared: 0..0,
            is_oversubscribed: false,
            rng: ChaCha8Rng::seed_from_u64(setup.seed),
            setup,
        }
    }

    /// Units in memory.
    pub fn resident(&self) -> usize {
        self.residency.count()
    }

    /// How an allocation is used, as far as it was seen.
    pub fn pattern(&self, allocation: usize) -> Pattern {
        self.histories
            .get(allocation)
            .map(History::pattern)
            .unwrap_or_default()
    }

    /// The kernel under way is over.
    pub fn kernel_ends(&mut self) {
        self.histories.iter_mut().for_each(History::kernel_ends);
    }

    /// Nothing of these allocations goes while others have something in memory: the memory of the program that the link prefers
    /// (section 7.2.2). An empty range is nobody's.
    pub fn spare(&mut self, allocations: Range<usize>) {
        self.spared = allocations;
    }

    /// The program of these allocations is over: all of them goes. Returns what it was.
    pub fn leave(&mut self, allocations: Range<usize>) -> Vec<Gone> {
        let is_its = |large: &usize| allocations.contains(&self.residency.larges()[*large].allocation);
        let larges: Vec<usize> = (0..self.residency.larges().len()).filter(is_its).collect();
        let mut gone = Vec::new();
        for large in larges {
            let units = self.residency.tree(large).evict_all();
            gone.extend(self.residency.went(large, &units));
        }
        gone
    }

    /// Units of a kernel are used: some loads and stores of one unit. An access to what is no unit is remote.
    pub fn access(&mut self, place: Place, loads: u32, stores: u32) -> Outcome {
        let Some((large, unit)) = self.residency.find(place) else {
            return Outcome::Remote;
        };
        let index = self.bases[place.allocation] + place.unit as usize;
        let before = self.counters.accesses(index);
        self.counters.used(index, loads.saturating_add(stores));
        self.histories[place.allocation].used(place.unit);
        let is_store = stores > 0;
        if self.residency.has(place) {
            self.residency.used(place, is_store);
            return Outcome::Local;
        }
        let rules = self.rules(place.allocation);
        let fill = Fill {
            used: self.residency.count() as u64,
            total: self.setup.capacity.into(),
            is_oversubscribed: self.is_oversubscribed,
        };
        let threshold = rules.migration.threshold(fill, self.counters.round_trips(index));
        let comes = |least| is_store || u64::from(self.counters.accesses(index)) >= least;
        if self.setup.capacity == 0 || !threshold.is_some_and(comes) {
            self.residency.used(place, is_store);
            return Outcome::Remote;
        }
        let units = self.bring(large, unit, rules.bring);
        let gone = self.make_room(large, units.len());
        self.residency.came(large, &units);
        self.residency.used(place, is_store);
        let first = self.residency.larges()[large].first;
        // In which order loads and a store came is not known: the store is taken for the first.
        let waited = threshold
            .filter(|_| !is_store)
            .map_or(0, |least| least.saturating_sub(1));
        let remote = waited.saturating_sub(before.into()).min(loads.into());
        Outcome::Comes {
            remote: remote as u32,
            units: units.into_iter().map(|unit| first + unit).collect(),
            gone,
        }
    }

    fn rules(&self, allocation: usize) -> Rules {
        match self.setup.choice {
            Choice::Fixed(rules) => rules,
            Choice::ByPattern if self.is_oversubscribed => Rules::of(self.pattern(allocation)),
            Choice::ByPattern => Rules::DRIVER,
        }
    }

    /// Has a unit come with what comes with it, as far as memory could hold it alone.
    fn bring(&mut self, large: usize, unit: u32, bring: Bring) -> Vec<u32> {
        let before = self.residency.larges()[large].tree.count();
        let fits = self.setup.capacity.saturating_sub(before);
        let others = self.setup.units_of_large;
        let other = self.rng.random_range(0..others);
        let tree = self.residency.tree(large);
        let spread = match bring {
            Bring::Tree(spread) => Some(spread),
            Bring::Alone | Bring::Random => None,
        };
        let mut units = tree.bring(unit, spread);
        if bring == Bring::Random {
            units.extend(tree.bring(other, None));
            units.sort_unstable();
        }
        // What would have to evict itself does not come.
        while units.len() as u32 > fits.max(1) {
            let Some(at) = units.iter().rposition(|one| *one != unit) else {
                break;
            };
            tree.evict(units.remove(at), false);
        }
        units
    }

    /// Evicts until so many units more fit. What is in the large page that they come to goes last.
    fn make_room(&mut self, coming_to: usize, more: usize) -> Vec<Gone> {
        let mut gone = Vec::new();
        while self.residency.count() + more > self.setup.capacity as usize {
            self.is_oversubscribed = true;
            let Some((large, units)) = self.victims(coming_to) else {
                break;
            };
            let went = self.residency.went(large, &units);
            for one in &went {
                let index = self.bases[one.place.allocation] + one.place.unit as usize;
                self.counters.evicted(index);
            }
            gone.extend(went);
        }
        gone
    }

    /// Takes the next victims off their tree: a large page and some of its units.
    fn victims(&mut self, coming_to: usize) -> Option<(usize, Vec<u32>)> {
        let reserve = self.residency.count() * self.setup.reserve_percent.min(100) as usize / 100;
        let seeks =
            [(true, reserve), (true, 0), (false, reserve), (false, 0)].map(|(is_sparing, reserve)| Seek {
                coming_to,
                reserve,
                is_sparing,
            });
        let (large, unit, evict) = seeks.into_iter().find_map(|seek| self.candidate(seek))?;
        let tree = self.residency.tree(large);
        let units = match evict {
            Evict::Random | Evict::Oldest | Evict::Local => tree.evict(unit, false),
            Evict::Tree => tree.evict(unit, true),
            Evict::Large | Evict::Coldest => tree.evict_all(),
        };
        Some((large, units))
    }

    /// A victim, and what goes with it.
    fn candidate(&mut self, seek: Seek) -> Option<(usize, u32, Evict)> {
        let by_unit = match self.setup.choice {
            Choice::Fixed(rules) => rules.evict,
            Choice::ByPattern => Evict::Large,
        };
        let chosen = match by_unit {
            Evict::Random => self.by_chance(seek),
            Evict::Oldest => self.oldest(seek),
            Evict::Coldest => self.coldest(seek),
            Evict::Local | Evict::Tree | Evict::Large => self.oldest_large(seek),
        };
        let (large, unit) = chosen.or_else(|| self.beside(seek))?;
        // What comes and what stays in its own large page are told apart by unit.
        if large == seek.coming_to {
            return Some((large, unit, Evict::Local));
        }
        let allocation = self.residency.larges()[large].allocation;
        Some((large, unit, self.rules(allocation).evict))
    }

    fn is_spared(&self, seek: Seek, allocation: usize) -> bool {
        seek.is_sparing && self.spared.contains(&allocation)
    }

    /// Any unit in memory, each as likely as another. Memory is full when one is sought, so few draws do.
    fn by_chance(&mut self, seek: Seek) -> Option<(usize, u32)> {
        let all: usize = self.setup.allocations.iter().map(|units| *units as usize).sum();
        for _ in 0..DRAWS {
            let index = self.rng.random_range(0..all.max(1));
            let allocation = self.bases.partition_point(|base| *base <= index).checked_sub(1)?;
            let unit = (index - self.bases[allocation]) as u32;
            let place = Place { allocation, unit };
            if let Some((large, unit)) = self.residency.find(place)
                && large != seek.coming_to
                && !self.is_spared(seek, allocation)
                && self.residency.has(place)
            {
                return Some((large, unit));
            }
        }
        self.oldest(Seek { reserve: 0, ..seek })
    }

    fn oldest(&self, seek: Seek) -> Option<(usize, u32)> {
        let places = self.residency.by_age().skip(seek.reserve);
        let mut found = places
            .filter(|place| !self.is_spared(seek, place.allocation))
            .filter_map(|place| self.residency.find(place));
        found.find(|(large, _)| *large != seek.coming_to)
    }

    fn oldest_large(&self, seek: Seek) -> Option<(usize, u32)> {
        let mut larges = self.others(seek);
        larges.sort_unstable_by_key(|large| self.residency.larges()[*large].stamp);
        let mut older = 0;
        let large = larges.into_iter().find(|large| {
            let is_reserved = older < seek.reserve;
            older += self.residency.larges()[*large].tree.count() as usize;
            !is_reserved
        })?;
        Some((large, self.residency.larges()[large].oldest()?))
    }

    fn coldest(&self, seek: Seek) -> Option<(usize, u32)> {
        let accesses = |large: usize| -> u64 {
            let of = &self.residency.larges()[large];
            let base = self.bases[of.allocation] + of.first as usize;
            let units = of.tree.valid_blocks();
            units
                .map(|unit| u64::from(self.counters.accesses(base + unit as usize)))
                .sum()
        };
        let large = self.others(seek).into_iter().min_by_key(|large| {
            let of = &self.residency.larges()[*large];
            (of.is_written, accesses(*large), of.stamp)
        })?;
        Some((large, self.residency.larges()[large].oldest()?))
    }

    /// The unit that was used least recently where others come to, and is in memory.
    fn beside(&self, seek: Seek) -> Option<(usize, u32)> {
        let mut places = self.residency.by_age();
        places.find_map(|place| {
            let (large, unit) = self.residency.find(place)?;
            let may_go = large == seek.coming_to && !self.is_spared(seek, place.allocation);
            may_go.then_some((large, unit))
        })
    }

    /// Large pages that something can go from. One that would go whole has to be populated, unless there is no such one: the driver takes
    /// none that is being filled (section 2.2.3).
    fn others(&self, seek: Seek) -> Vec<usize> {
        let larges = self.residency.larges();
        let is_other = |number: &usize| {
            let large = &larges[*number];
            *number != seek.coming_to && large.tree.count() > 0 && !self.is_spared(seek, large.allocation)
        };
        let all: Vec<usize> = (0..larges.len()).filter(is_other).collect();
        let rules: Vec<Rules> = (0..self.bases.len()).map(|of| self.rules(of)).collect();
        let may_go = |number: &usize| {
            let evict = rules[larges[*number].allocation].evict;
            let goes_whole = matches!(evict, Evict::Large | Evict::Coldest);
            !goes_whole || larges[*number].tree.is_full()
        };
        let populated: Vec<usize> = all.iter().copied().filter(may_go).collect();
        match populated.is_empty() {
            true => all,
            false => populated,
        }
    }
}

#[cfg(test)]
mod tests;
