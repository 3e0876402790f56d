//! The live windows: BAR3 and PRAMIN as memory that the client maps.
//!
//! The client is given a *window file* and maps it in the place of BAR3 and of PRAMIN, so its accesses there come here no
//! more. A VRAM page that a window shows *lives* in the window file, at the place where the window shows it, and this
//! process's mapping of VRAM shows the page from there: model and client touch the same bytes.
//!
//! ```text
//!   flush of BAR3's directory, write of 1714 or 1700 ─► what the windows show now ─► differences to what lives where
//!        page shown no more   window file ──bytes──► home          the place reads as zero
//!        page shown anew      home ──bytes──► window file
//! ```
//!
//! Rules:
//! 1. A VRAM page lives in one place, see [`Living`]; BAR3 goes before PRAMIN. Drivers map what they use once, and leave PRAMIN
//!    when BAR3 works.
//! 2. A place in a window that shows other memory, or nothing, is memory without effect: no fault is raised.
//! 3. All of it happens under the card's lock and before the access that caused it is answered. A client must therefore
//!    wait for the answer to each write to BAR0 before it touches a window; QEMU posts no writes to a function of which it
//!    maps anything.
//!
//! A client that sends messages instead is answered by the model as ever, and sees the same bytes. The file holds
//! this client's VRAM and its own stores; the next client gets another. Decision 0008 gives the reasons.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use broker::{Loan, PAGE, punch_hole};
use fermi_model::FermiModel;
use fermi_spec::addr::VramAddr;
use fermi_spec::board::BAR3_BYTES;
use fermi_spec::regs::PRAMIN_BYTES;
use vgpu::{Living, PageRun};

use super::vram::{Vram, VramError};

const BAR3_PAGES: usize = (BAR3_BYTES / PAGE) as usize;
const PRAMIN_PAGES: usize = PRAMIN_BYTES as usize / PAGE as usize;
/// Pages of the file: BAR3, then PRAMIN.
const PLACES: usize = BAR3_PAGES + PRAMIN_PAGES;
/// Where PRAMIN begins in the window file, which is where BAR3 ends. Bytes.
pub(super) const PRAMIN_OFFSET: u64 = BAR3_BYTES;
/// Bytes of the window file.
pub(super) const FILE_BYTES: u64 = PLACES as u64 * PAGE;

/// Ones written at once; divides the file.
const ONES_BYTES: usize = 1 << 20;
const _: () = assert!(FILE_BYTES.is_multiple_of(ONES_BYTES as u64));

/// Counts of the windows' changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct LiveCounts {
    /// Number of looks at the tables.
    pub(super) looks: u64,
    /// Pages that were moved into the window.
    pub(super) lent: u64,
    /// Pages that were moved home.
    pub(super) taken_back: u64,
    /// Runs of pages, either way.
    pub(super) moves: u64,
    /// Places that show a page which lives elsewhere: the largest number at a time.
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
            "windows: {looks} looks at what they show, {lent} pages lent and {taken_back} taken back in {moves} moves, at most \
             {aliases_max} shown in a second place"
        )
    }
}

/// The two windows of one client, and the VRAM pages that live in them.
pub(super) struct LiveWindows {
    vram: Arc<Vram>,
    file: Arc<File>,
    /// [`FermiModel::bar3_changes`] and the first byte that PRAMIN showed, at the last look.
    seen: (u64, Option<VramAddr>),
    living: Living,
    scratch: Vec<Option<u32>>,
    pub(super) counts: LiveCounts,
}

impl LiveWindows {
    /// Windows that show nothing yet, in a file of [`FILE_BYTES`].
    pub(super) fn new(vram: Arc<Vram>, file: Arc<File>) -> Self {
        Self {
            vram,
            file,
            seen: (0, None),
            living: Living::new(BAR3_PAGES as u32),
            scratch: Vec::new(),
            counts: LiveCounts::default(),
        }
    }

    /// Follows the card, if anything changed.
    pub(super) fn follow(&mut self, model: &mut FermiModel) -> Result<(), VramError> {
        let now = (model.bar3_changes(), model.pramin_address());
        if now == self.seen {
            return Ok(());
        }
        let is_bar3_changed = now.0 != self.seen.0;
        self.seen = now;
        self.counts.looks += 1;
        // Without a flush the tables may be half written.
        let mut shown: BTreeMap<u32, u32> = match is_bar3_changed {
            true => {
                model.bar3_pages(&mut self.scratch);
                let pages = (0..).zip(&self.scratch).take(BAR3_PAGES);
                pages
                    .filter_map(|(place, page)| Some((place, (*page)?)))
                    .collect()
            }
            false => {
                let before = self.living.shown().range(..BAR3_PAGES as u32);
                before.map(|(place, page)| (*place, *page)).collect()
            }
        };
        let pramin = (BAR3_PAGES as u32..).zip(self.pramin_pages(now.1));
        shown.extend(pramin.filter_map(|(place, page)| Some((place, page?))));
        self.show(shown)
    }

    fn pramin_pages(&self, base: Option<VramAddr>) -> impl Iterator<Item = Option<u32>> + use<> {
        let first = base.map(|base| base.0 / PAGE);
        let vram_pages = self.vram.bytes() / PAGE;
        (0..PRAMIN_PAGES as u64).map(move |place| {
            let page = first?.checked_add(place).filter(|page| *page < vram_pages)?;
            u32::try_from(page).ok()
        })
    }

    /// Starts anew with a new card of cleared VRAM: no page lives here any more, and the file reads as zero.
    pub(super) fn forget(&mut self) -> Result<(), VramError> {
        punch_hole(&self.file, 0, FILE_BYTES).map_err(|source| VramError::Move {
            at: 0,
            bytes: FILE_BYTES,
            source,
        })?;
        self.seen = (0, None);
        self.living.forget();
        Ok(())
    }

    /// Makes the windows those of a card without power, which [remembers nothing](Self::forget): the client reads
    /// ones. It reads its own stores back, which a dead card's windows would not do.
    pub(super) fn show_ones(&mut self) -> Result<(), VramError> {
        let ones = vec![0xff; ONES_BYTES];
        let mut parts = (0..FILE_BYTES).step_by(ONES_BYTES);
        parts
            .try_for_each(|at| self.file.write_all_at(&ones, at))
            .map_err(|source| VramError::Move {
                at: 0,
                bytes: FILE_BYTES,
                source,
            })
    }

    fn show(&mut self, shown: BTreeMap<u32, u32>) -> Result<(), VramError> {
        let changes = self.living.show(shown);
        for run in changes.back {
            self.vram.take_back(loan(run), &self.file)?;
            self.counts.moves += 1;
            self.counts.taken_back += u64::from(run.pages);
        }
        for run in changes.lent {
            self.vram.lend(loan(run), &self.file)?;
            self.counts.moves += 1;
            self.counts.lent += u64::from(run.pages);
        }
        self.counts.aliases_max = self.counts.aliases_max.max(self.living.aliases() as u64);
        Ok(())
    }
}

fn loan(PageRun { place, page, pages }: PageRun) -> Loan {
    let bytes = |pages: u32| u64::from(pages) * PAGE;
    Loan {
        at: bytes(page),
        offset: bytes(place),
        bytes: bytes(pages),
    }
}

#[cfg(test)]
mod tests;
