//! Which page of VRAM lives at which place of a window file.
//!
//! A client maps a *window file* in the place of windows that translate. A page that a window shows lives in the file, at the place
//! where the window shows it. It lives in one place: if several show it, in the one that was mapped last, and those of the first
//! window go before others. The rest are *aliases*, which show zeros until it is their turn. Drivers map what they use once.
//!
//! This says what has to be done and does nothing: the owner moves bytes and mappings.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// A run of pages and of the places where they live, both without gaps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PageRun {
    /// The first place, in pages of the window file.
    pub place: u32,
    /// The first page of VRAM.
    pub page: u32,
    /// Number of pages.
    pub pages: u32,
}

/// What changes when windows show something else. All that goes comes before all that comes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Changes {
    /// Pages that live there no more.
    pub back: Vec<PageRun>,
    /// Pages that live there from now on.
    pub lent: Vec<PageRun>,
}

/// The pages that live in one window file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Living {
    /// Places of the window that goes before others.
    first: u32,
    /// What each place showed when it was last looked at; places that show nothing are not here.
    #[serde(with = "crate::saved::pairs")]
    shown: BTreeMap<u32, u32>,
    #[serde(with = "crate::saved::pairs")]
    living: BTreeMap<u32, u32>,
    #[serde(with = "crate::saved::pairs")]
    homes: BTreeMap<u32, u32>,
    aliases: BTreeSet<u32>,
}

impl Living {
    /// Nothing is shown yet. Places below `first` go before others that show the same page.
    pub fn new(first: u32) -> Self {
        Self {
            first,
            ..Self::default()
        }
    }

    /// What the windows showed at the last look, by place.
    pub fn shown(&self) -> &BTreeMap<u32, u32> {
        &self.shown
    }

    /// Whether a page lives in the file.
    pub fn lives(&self, page: u32) -> bool {
        self.homes.contains_key(&page)
    }

    /// Pages that live in the file, in order.
    pub fn pages(&self) -> impl Iterator<Item = u32> {
        self.homes.keys().copied()
    }

    /// The page that lives at a place.
    pub fn at(&self, place: u32) -> Option<u32> {
        self.living.get(&place).copied()
    }

    /// Runs of pages that live here, neighbours in both memories.
    pub fn runs(&self) -> usize {
        let mut runs = Vec::new();
        for (place, page) in &self.living {
            join(&mut runs, *place, *page);
        }
        runs.len()
    }

    /// Places that show a page which lives elsewhere.
    pub fn aliases(&self) -> usize {
        self.aliases.len()
    }

    /// Nothing is shown any more, and nothing lives here: what did is gone.
    pub fn forget(&mut self) {
        *self = Self::new(self.first);
    }

    /// The windows show this from now on.
    pub fn show(&mut self, shown: BTreeMap<u32, u32>) -> Changes {
        let changed = differing(&self.shown, &shown);
        for place in &changed {
            self.aliases.remove(place);
        }
        let mut changes = Changes::default();
        self.take_back(changed.iter().copied(), &mut changes.back);
        // A place that is mapped now takes its page from the place where it was mapped before.
        let (mut moved, mut chosen) = (BTreeSet::new(), BTreeMap::new());
        for place in changed {
            let Some(&page) = shown.get(&place) else { continue };
            let is_taken = self.homes.contains_key(&page) || chosen.contains_key(&page);
            if place >= self.first && is_taken {
                self.aliases.insert(place);
            } else if let Some(before) = chosen.insert(page, place) {
                self.aliases.insert(before);
            } else if let Some(before) = self.homes.get(&page) {
                moved.insert(*before);
            }
        }
        self.take_back(moved.iter().copied(), &mut changes.back);
        self.aliases.extend(moved);
        // A place that gave its page up, or never had it, has its turn when the page lives nowhere.
        self.aliases.retain(|place| {
            let page = shown.get(place).copied();
            let is_next = page.filter(|page| !self.homes.contains_key(page) && !chosen.contains_key(page));
            if let Some(page) = is_next {
                chosen.insert(page, *place);
            }
            is_next.is_none()
        });
        let new: BTreeMap<u32, u32> = chosen.into_iter().map(|(page, place)| (place, page)).collect();
        for (place, page) in new {
            self.living.insert(place, page);
            self.homes.insert(page, place);
            join(&mut changes.lent, place, page);
        }
        self.shown = shown;
        changes
    }

    /// Nothing lives at these places any more; those in ascending order make longer runs.
    fn take_back(&mut self, places: impl Iterator<Item = u32>, back: &mut Vec<PageRun>) {
        for place in places {
            if let Some(page) = self.living.remove(&place) {
                self.homes.remove(&page);
                join(back, place, page);
            }
        }
    }

    /// Whether each page that lives somewhere is shown there and found by its number.
    pub(crate) fn is_sound(&self) -> bool {
        self.living.len() == self.homes.len()
            && self.living.iter().all(|(place, page)| {
                self.homes.get(page) == Some(place) && self.shown.get(place) == Some(page)
            })
            && self
                .aliases
                .iter()
                .all(|place| self.shown.contains_key(place) && !self.living.contains_key(place))
    }
}

/// Places that do not show the same, in ascending order.
pub(crate) fn differing(before: &BTreeMap<u32, u32>, after: &BTreeMap<u32, u32>) -> Vec<u32> {
    let gone = before
        .iter()
        .filter(|(place, page)| after.get(place) != Some(page));
    let come = after
        .iter()
        .filter(|(place, page)| before.get(place) != Some(page));
    let both: BTreeSet<u32> = gone.chain(come).map(|(place, _)| *place).collect();
    both.into_iter().collect()
}

/// Adds a page to the last run, or begins another.
fn join(runs: &mut Vec<PageRun>, place: u32, page: u32) {
    match runs.last_mut() {
        Some(run) if run.place + run.pages == place && run.page + run.pages == page => run.pages += 1,
        _ => runs.push(PageRun {
            place,
            page,
            pages: 1,
        }),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(pairs: &[(u32, u32)]) -> BTreeMap<u32, u32> {
        pairs.iter().copied().collect()
    }

    fn run(place: u32, page: u32, pages: u32) -> PageRun {
        PageRun { place, page, pages }
    }

    #[test]
    fn neighbours_come_and_go_together() {
        let mut living = Living::new(100);
        let changes = living.show(shown(&[(3, 10), (4, 11), (5, 20)]));
        assert_eq!(changes.lent, [run(3, 10, 2), run(5, 20, 1)]);
        assert_eq!(changes.back, []);
        let changes = living.show(shown(&[(4, 11)]));
        assert_eq!(changes.back, [run(3, 10, 1), run(5, 20, 1)]);
        assert_eq!(changes.lent, []);
    }

    #[test]
    fn page_lives_where_it_was_mapped_last_and_the_first_window_goes_before() {
        let mut living = Living::new(100);
        living.show(shown(&[(100, 7)]));
        assert_eq!(living.at(100), Some(7));
        // BAR3 takes it over from PRAMIN, which has it again when BAR3 lets it go.
        let changes = living.show(shown(&[(5, 7), (100, 7)]));
        assert_eq!(
            (changes.back, changes.lent),
            (vec![run(100, 7, 1)], vec![run(5, 7, 1)])
        );
        assert_eq!(living.aliases(), 1);
        let changes = living.show(shown(&[(5, 7), (100, 7), (101, 7)]));
        assert_eq!(changes, Changes::default());
        assert_eq!(living.aliases(), 2);
        let changes = living.show(shown(&[(100, 7), (101, 7)]));
        assert_eq!(
            (changes.back, changes.lent),
            (vec![run(5, 7, 1)], vec![run(100, 7, 1)])
        );
    }

    proptest! {
        #[test]
        fn each_page_that_is_shown_lives_in_one_place_that_shows_it(
            looks in prop::collection::vec(prop::collection::btree_map(0u32..12, 0u32..8, 0..10), 1..30),
        ) {
            let mut living = Living::new(8);
            let mut held: BTreeMap<u32, u32> = BTreeMap::new();
            for look in looks {
                let changes = living.show(look.clone());
                for run in changes.back {
                    for i in 0..run.pages {
                        prop_assert_eq!(held.remove(&(run.place + i)), Some(run.page + i));
                    }
                }
                for run in changes.lent {
                    for i in 0..run.pages {
                        prop_assert!(!held.values().any(|page| *page == run.page + i), "a page lives twice");
                        prop_assert_eq!(held.insert(run.place + i, run.page + i), None);
                    }
                }
                let pages: BTreeSet<u32> = look.values().copied().collect();
                let alive: BTreeSet<u32> = held.values().copied().collect();
                prop_assert_eq!(pages, alive);
                prop_assert!(held.iter().all(|(place, page)| look.get(place) == Some(page)));
                prop_assert_eq!(living.aliases(), look.len() - held.len());
                prop_assert!(living.is_sound());
            }
        }
    }
}
