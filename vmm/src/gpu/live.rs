//! The live window: BAR3 as memory that the client maps.
//!
//! The client is given a *window file* as long as BAR3 and maps it in the region's place, so its accesses to BAR3 come
//! here no more. A VRAM page that BAR3 shows *lives* in the window file, at the place where BAR3 shows it, and this
//! process's mapping of VRAM shows the page from there: model and client touch the same bytes.
//!
//! ```text
//!   flush of BAR3's directory, write of 1714 ─► tables as they are ─► differences to what lives where
//!        page shown no more   window file ──bytes──► home          the place reads as zero
//!        page shown anew      home ──bytes──► window file
//! ```
//!
//! Rules:
//! 1. A VRAM page lives in one place. If BAR3 shows it in several, it lives in the one that was mapped last; the others
//!    show zeros until it is shown in one of them only (`aliases` counts these). Drivers map what they use once.
//! 2. What BAR3 shows of other memory, and where it shows nothing, is memory without effect: no fault is raised.
//! 3. All of it happens under the card's lock and before the access that caused it is answered, so a driver that waits
//!    for its flush finds the window as it asked for.
//!
//! A client that sends messages instead is answered by the model as ever, and sees the same bytes. The file holds this
//! client's VRAM and what it stored itself; the next client gets another.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::fs::File;
use std::sync::Arc;

use fermi_model::FermiModel;

use super::remap::PAGE;
use super::vram::{Loan, Vram, VramError};

/// What happened to a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct LiveCounts {
    /// Looks at the tables.
    pub(super) looks: u64,
    /// Pages that came to live in the window.
    pub(super) lent: u64,
    /// Pages that went home.
    pub(super) taken_back: u64,
    /// Runs of pages, either way.
    pub(super) moves: u64,
    /// Places that show a page which lives elsewhere, the most at a time.
    pub(super) aliases_max: u64,
}

impl LiveCounts {
    /// Those of another client's window.
    pub(super) fn add(&mut self, other: &Self) {
        self.looks += other.looks;
        self.lent += other.lent;
        self.taken_back += other.taken_back;
        self.moves += other.moves;
        self.aliases_max = self.aliases_max.max(other.aliases_max);
    }
}

impl fmt::Display for LiveCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            looks,
            lent,
            taken_back,
            moves,
            aliases_max,
        } = self;
        write!(
            f,
            "BAR3: {looks} looks at its tables, {lent} pages lent and {taken_back} taken back in {moves} moves, at most \
             {aliases_max} shown in a second place"
        )
    }
}

/// See the module.
pub(super) struct LiveWindow {
    vram: Arc<Vram>,
    file: Arc<File>,
    /// [`FermiModel::bar3_changes`] at the last look.
    seen: u64,
    /// What BAR3 showed at the last look, by page.
    shown: Vec<Option<u32>>,
    /// Which VRAM page lives at a place.
    living: Vec<Option<u32>>,
    /// Where a VRAM page lives.
    places: HashMap<u32, u32>,
    /// Places whose page lives elsewhere (rule 1).
    aliases: BTreeSet<u32>,
    scratch: Vec<Option<u32>>,
    pub(super) counts: LiveCounts,
}

impl LiveWindow {
    /// A window that shows nothing yet, of `bytes` bytes.
    pub(super) fn new(vram: Arc<Vram>, file: Arc<File>, bytes: u64) -> Self {
        let pages = (bytes / PAGE) as usize;
        Self {
            vram,
            file,
            seen: 0,
            shown: vec![None; pages],
            living: vec![None; pages],
            places: HashMap::new(),
            aliases: BTreeSet::new(),
            scratch: Vec::new(),
            counts: LiveCounts::default(),
        }
    }

    /// Follows the card, if anything changed.
    pub(super) fn follow(&mut self, model: &mut FermiModel) -> Result<(), VramError> {
        if model.bar3_changes() == self.seen {
            return Ok(());
        }
        self.seen = model.bar3_changes();
        self.counts.looks += 1;
        let mut shown = std::mem::take(&mut self.scratch);
        model.bar3_pages(&mut shown);
        let followed = self.show(&shown);
        self.scratch = std::mem::replace(&mut self.shown, shown);
        followed
    }

    /// The card was made anew and its VRAM cleared: nothing lives here any more, and the file reads as zero.
    pub(super) fn forget(&mut self) -> Result<(), VramError> {
        let pages = self.living.len();
        let bytes = pages as u64 * PAGE;
        super::vram::punch(&self.file, 0, bytes).map_err(|source| VramError::Move {
            at: 0,
            bytes,
            source,
        })?;
        self.seen = 0;
        self.shown = vec![None; pages];
        self.living = vec![None; pages];
        self.places.clear();
        self.aliases.clear();
        Ok(())
    }

    /// `self.shown` is still what was shown before.
    fn show(&mut self, shown: &[Option<u32>]) -> Result<(), VramError> {
        let changed: Vec<u32> = (0..)
            .zip(shown.iter().zip(&self.shown))
            .filter(|(_, (new, old))| new != old)
            .map(|(place, _)| place)
            .collect();
        for place in &changed {
            self.aliases.remove(place);
        }
        let gone: Vec<u32> = changed
            .iter()
            .copied()
            .filter(|place| self.living[*place as usize].is_some())
            .collect();
        self.take_back(&gone)?;
        // Rule 1: what is mapped now takes its page from where it was mapped before.
        let wanted: Vec<u32> = changed
            .into_iter()
            .filter(|place| shown[*place as usize].is_some())
            .collect();
        let mut moved: Vec<u32> = Vec::new();
        let mut chosen: HashMap<u32, u32> = HashMap::new();
        for place in wanted {
            let Some(page) = shown[place as usize] else {
                continue;
            };
            if let Some(before) = chosen.insert(page, place) {
                self.aliases.insert(before);
            } else if let Some(before) = self.places.get(&page) {
                moved.push(*before);
            }
        }
        moved.sort_unstable();
        self.take_back(&moved)?;
        self.aliases.extend(moved);
        // A place that gave its page up, or never had it, has its turn when the page lives nowhere.
        let orphaned: Vec<u32> = self.aliases.iter().copied().collect();
        for place in orphaned {
            if let Some(page) = shown[place as usize]
                && !self.places.contains_key(&page)
                && !chosen.contains_key(&page)
            {
                chosen.insert(page, place);
                self.aliases.remove(&place);
            }
        }
        let mut new: Vec<(u32, u32)> = chosen.into_iter().map(|(page, place)| (place, page)).collect();
        new.sort_unstable();
        self.lend(&new)?;
        self.counts.aliases_max = self.counts.aliases_max.max(self.aliases.len() as u64);
        Ok(())
    }

    /// Sends home what lives at these places, in ascending order.
    fn take_back(&mut self, places: &[u32]) -> Result<(), VramError> {
        let living: Vec<(u32, u32)> = places
            .iter()
            .filter_map(|place| Some((*place, self.living[*place as usize]?)))
            .collect();
        for run in runs(&living) {
            self.vram.take_back(run, &self.file)?;
            self.counts.moves += 1;
        }
        for (place, page) in &living {
            self.living[*place as usize] = None;
            self.places.remove(page);
        }
        self.counts.taken_back += living.len() as u64;
        Ok(())
    }

    /// Lets pages live at places, in ascending order of the places.
    fn lend(&mut self, new: &[(u32, u32)]) -> Result<(), VramError> {
        for run in runs(new) {
            self.vram.lend(run, &self.file)?;
            self.counts.moves += 1;
        }
        for (place, page) in new {
            self.living[*place as usize] = Some(*page);
            self.places.insert(*page, *place);
        }
        self.counts.lent += new.len() as u64;
        Ok(())
    }
}

/// Joins neighbours in both memories. `pairs` are (place, VRAM page) in ascending order of the places.
fn runs(pairs: &[(u32, u32)]) -> Vec<Loan> {
    let mut runs: Vec<Loan> = Vec::new();
    for (place, page) in pairs {
        let (offset, at) = (u64::from(*place) * PAGE, u64::from(*page) * PAGE);
        match runs.last_mut() {
            Some(run) if run.offset + run.bytes == offset && run.at + run.bytes == at => run.bytes += PAGE,
            _ => runs.push(Loan {
                at,
                offset,
                bytes: PAGE,
            }),
        }
    }
    runs
}

#[cfg(test)]
mod tests;
