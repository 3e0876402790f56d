//! PGRAPH's contexts: the host's memory in a guest's address space.
//!
//! ```text
//! directory of a shadow, entry HOST_ENTRY ─► large-page table ─┬─ the VM's buffers and the list of registers
//!                                                              └─ images of its channels' contexts, privileged
//! ```
//!
//! FECS loads a channel's image and writes the registers of its list with full privilege, so neither may be memory that a guest
//! writes (decision 0030). The image that the guest's instance block names is a decoy: only that it names one counts. The pages here are
//! supervisor's, so nothing that a channel of the guest does reaches them, but for the buffers of rendering, which hold only what that VM draws.
//!
//! A channel has an image as long as it has a number on the card. What the image held is kept by the host when the channel leaves the card,
//! by a *ticket*, which the decoy got when the channel was bound. A driver that suspends saves its images, takes its channels off and
//! binds them anew later: wherever it copies an image to, the ticket goes with it, and a channel that is bound with it goes on from there.

use std::collections::{BTreeMap, BTreeSet};

use fermi_spec::addr::{FRAME, GpuVa, PDE_SPAN, SMALL_PAGE, VramAddr};
use fermi_spec::instance::CHANNELS;
use fermi_spec::pte::{LARGE_PT_BYTES, LARGE_PT_ENTRIES};
use serde::{Deserialize, Serialize};
use shadow_pt::{HOST_ENTRY, ShadowWriter, TableAt, TablePages, TableRange};

use super::tables::{ArenaWriter, TableBudget};
use crate::host::card::pde;
use crate::host::copy::vram_pte;
use crate::host::graph::{BUFFER_PAGES, IMAGE_PAGES_MAX, is_open};
use crate::saved::Unsound;

/// Where the host's part of each address space begins.
pub(crate) const HOST_VA: GpuVa = GpuVa(HOST_ENTRY as u64 * PDE_SPAN);

const _: () = assert!(BUFFER_PAGES + CHANNELS * IMAGE_PAGES_MAX <= LARGE_PT_ENTRIES);

/// Number of an image in its space.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) struct ImageNo(u16);

/// A channel's context.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Context {
    /// The guest's own pointer, to its decoy.
    pub(crate) pointer: u64,
    /// Its instance block names it now.
    pub(crate) is_named: bool,
    /// By which its content is kept.
    pub(crate) ticket: u64,
}

/// Where a guest's image has its ticket, and the one that is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Decoy {
    pub(crate) at: TableAt,
    pub(crate) ticket: Option<u64>,
}

/// Bytes of a ticket in an image.
pub(crate) const TICKET_BYTES: usize = 16;
/// Offset of the ticket in an image, behind what drivers write there.
const TICKET_AT: u64 = 0xe0;
/// First word of a ticket.
const TICKET_MAGIC: u64 = u64::from_le_bytes(*b"vramdctx");

/// Where the image at a pointer has its ticket. The low bits of a pointer are flags.
pub(crate) fn ticket_va(pointer: u64) -> GpuVa {
    GpuVa((pointer & !0xff) + TICKET_AT)
}

/// A ticket as it stands in an image.
pub(crate) fn ticket_bytes(ticket: u64) -> [u8; TICKET_BYTES] {
    let words = [TICKET_MAGIC, ticket].map(u64::to_le_bytes);
    let mut bytes = [0; TICKET_BYTES];
    bytes.copy_from_slice(words.as_flattened());
    bytes
}

/// The ticket that an image has there, if it is one.
pub(crate) fn ticket_in(bytes: [u8; TICKET_BYTES]) -> Option<u64> {
    let number = (u128::from_le_bytes(bytes) >> 64) as u64;
    (ticket_bytes(number) == bytes).then_some(number)
}

/// What images of a VM held whose channels have left the card, by ticket; the newest ones.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Kept {
    /// Tickets given so far.
    tickets: u64,
    contents: BTreeMap<u64, Content>,
}

/// Content of an image, without the zeros behind it.
#[derive(Debug, Serialize, Deserialize)]
struct Content(#[serde(with = "crate::hex")] Vec<u8>);

/// Most images that are kept for a VM: one for each channel that it may have, and as many again; and their bytes. Those of channels that it
/// has are kept in any case.
const KEPT_MAX: usize = 2 * CHANNELS;
const KEPT_BYTES_MAX: usize = 16 << 20;

impl Kept {
    /// A number that no image of the VM's has.
    fn next_ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }

    /// Keeps what an image held. If there are too many the oldest one goes that no channel has (`used`).
    pub(crate) fn keep(&mut self, ticket: u64, mut content: Vec<u8>, used: &BTreeSet<u64>) {
        let end = content.iter().rposition(|byte| *byte != 0);
        content.truncate(end.map_or(0, |last| last + 1));
        self.contents.insert(ticket, Content(content));
        while self.contents.len() > KEPT_MAX || self.bytes() > KEPT_BYTES_MAX {
            let oldest = self.contents.keys().find(|of| !used.contains(of)).copied();
            let Some(oldest) = oldest else { break };
            self.contents.remove(&oldest);
        }
    }

    /// Bytes of all that is kept.
    fn bytes(&self) -> usize {
        self.contents.values().map(|content| content.0.len()).sum()
    }

    /// A context that begins as the one with ticket `from` was left, and its ticket.
    pub(crate) fn copy(&mut self, from: Option<u64>, used: &BTreeSet<u64>) -> u64 {
        let content = from.and_then(|from| self.content(from)).map(<[u8]>::to_vec);
        let ticket = self.next_ticket();
        if let Some(content) = content {
            self.keep(ticket, content, used);
        }
        ticket
    }

    /// What the image with that ticket held, if it is known.
    pub(crate) fn content(&self, ticket: u64) -> Option<&[u8]> {
        self.contents.get(&ticket).map(|content| content.0.as_slice())
    }

    /// Checks what was read.
    pub(crate) fn check(&self) -> Result<(), Unsound> {
        let most = IMAGE_PAGES_MAX * FRAME as usize;
        let fits = self.contents.len() <= KEPT_MAX
            && self.contents.values().all(|content| content.0.len() <= most)
            && self.contents.keys().all(|ticket| *ticket <= self.tickets)
            && self.tickets < u64::MAX / 2;
        Unsound::unless(fits, "contexts that are kept")
    }
}

/// The images of one address space.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Contexts {
    table: Option<VramAddr>,
    /// The pages of 128 KiB of each, in order.
    images: BTreeMap<ImageNo, Vec<VramAddr>>,
}

/// What a VM's rendering goes through, the same in all its spaces, and the list of registers that says so.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Buffers {
    pub(crate) pages: Vec<VramAddr>,
}

/// Where an image of so many pages begins, in pages from [`HOST_VA`] on.
fn first_page(number: ImageNo, pages: usize) -> u64 {
    (BUFFER_PAGES + usize::from(number.0) * pages) as u64
}

fn free_pages(pages: impl IntoIterator<Item = VramAddr>, budget: &mut TableBudget<'_>) {
    pages.into_iter().for_each(|at| budget.free(at, FRAME));
}

/// `count` pages of 128 KiB, of any content; all or none.
fn allocate_pages(count: usize, budget: &mut TableBudget<'_>) -> Option<Vec<VramAddr>> {
    let mut pages = Vec::new();
    while pages.len() < count {
        let Some(at) = budget.allocate_frame() else {
            free_pages(pages, budget);
            return None;
        };
        pages.push(at);
    }
    Some(pages)
}

impl Buffers {
    /// Takes `count` pages of memory for them, of any content. `None`: there is none.
    pub(crate) fn allocate(count: usize, budget: &mut TableBudget<'_>) -> Option<Self> {
        allocate_pages(count, budget).map(|pages| Self { pages })
    }

    pub(crate) fn ranges(&self) -> impl Iterator<Item = TableRange> {
        self.pages.iter().map(|&at| TableRange { at, bytes: FRAME })
    }

    /// Checks those that were read.
    pub(crate) fn check(&self) -> Result<(), Unsound> {
        let fits = [0, BUFFER_PAGES].contains(&self.pages.len());
        Unsound::unless(fits, "buffers of rendering")?;
        self.ranges().try_for_each(check_range)
    }
}

fn check_range(range: TableRange) -> Result<(), Unsound> {
    let align = if range.bytes == FRAME { FRAME } else { SMALL_PAGE };
    Unsound::unless(range.at.0.is_multiple_of(align), "memory of a context lies askew")
}

impl Contexts {
    /// An image of `pages` pages for one more channel of the space whose directory that is: of any content, and mapped. The buffers are
    /// mapped with the first one. `None`: no memory is left for it.
    pub(crate) fn take(
        &mut self,
        (directory, pages): (VramAddr, usize),
        buffers: &Buffers,
        budget: &mut TableBudget<'_>,
        writer: &mut ArenaWriter,
    ) -> Option<ImageNo> {
        let number = (0..CHANNELS as u16)
            .map(ImageNo)
            .find(|number| !self.images.contains_key(number))?;
        let table = match self.table {
            Some(table) => table,
            None => self.add_table(directory, buffers, budget, writer)?,
        };
        let pages = allocate_pages(pages, budget)?;
        let entries: Vec<u64> = pages
            .iter()
            .map(|&at| vram_pte(at).with_privileged(true).into_bits())
            .collect();
        writer.write(table.offset(first_page(number, pages.len()) * 8), &entries);
        self.images.insert(number, pages);
        Some(number)
    }

    /// The channel that had the image is off the card. Its pages are free when the TLB has forgotten them.
    pub(crate) fn remove(&mut self, number: ImageNo, writer: &mut ArenaWriter) -> Vec<VramAddr> {
        let pages = self.images.remove(&number).unwrap_or_default();
        if let Some(table) = self.table {
            let at = table.offset(first_page(number, pages.len()) * 8);
            writer.write(at, &vec![0; pages.len()]);
        }
        pages
    }

    fn add_table(
        &mut self,
        directory: VramAddr,
        buffers: &Buffers,
        budget: &mut TableBudget<'_>,
        writer: &mut ArenaWriter,
    ) -> Option<VramAddr> {
        let table = budget.allocate(LARGE_PT_BYTES)?;
        let mut entries = [0; LARGE_PT_ENTRIES];
        for (number, (entry, &at)) in entries.iter_mut().zip(&buffers.pages).enumerate() {
            *entry = vram_pte(at).with_privileged(!is_open(number)).into_bits();
        }
        for (at, part) in (table.0..).step_by(SMALL_PAGE as usize).zip(entries.chunks(512)) {
            writer.write(VramAddr(at), part);
        }
        let entry = pde(Some(table), None).into_bits();
        writer.write(directory.offset(u64::from(HOST_ENTRY) * 8), &[entry]);
        self.table = Some(table);
        Some(table)
    }

    /// Where the channels of the space see an image.
    pub(crate) fn va(&self, number: ImageNo) -> GpuVa {
        let page = first_page(number, self.pages(number).len());
        GpuVa(HOST_VA.0 + page * FRAME)
    }

    /// Where the pages of an image lie.
    pub(crate) fn pages(&self, number: ImageNo) -> &[VramAddr] {
        self.images.get(&number).map_or(&[], Vec::as_slice)
    }

    /// The parts of the arena that it has.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = TableRange> {
        let table = self.table.map(|at| TableRange {
            at,
            bytes: LARGE_PT_BYTES,
        });
        let pages = self.images.values().flatten();
        table
            .into_iter()
            .chain(pages.map(|&at| TableRange { at, bytes: FRAME }))
    }

    /// Gives all of it back. The space is gone, and the TLB has been flushed since.
    pub(crate) fn release(self, budget: &mut TableBudget<'_>) {
        self.ranges().for_each(|range| budget.free(range.at, range.bytes));
    }

    /// Checks where those are that were read.
    pub(crate) fn check_memory(&self) -> Result<(), Unsound> {
        let each = self.images.values().next().map_or(0, Vec::len);
        let fits = |(number, pages): (&ImageNo, &Vec<VramAddr>)| {
            usize::from(number.0) < CHANNELS && pages.len() == each && (1..=IMAGE_PAGES_MAX).contains(&each)
        };
        let are_images = self.images.iter().all(fits) && (self.table.is_some() || self.images.is_empty());
        Unsound::unless(are_images, "images of contexts")?;
        self.ranges().try_for_each(check_range)
    }

    /// Checks those that were read. `users` are the images of the channels that use the space.
    pub(crate) fn check(&self, users: impl Iterator<Item = ImageNo>) -> Result<(), Unsound> {
        self.check_memory()?;
        let mut used: Vec<ImageNo> = users.collect();
        used.sort_unstable();
        let is_theirs = self.images.keys().copied().eq(used);
        Unsound::unless(is_theirs, "an image is no channel's, or two channels'")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_bounded_and_what_channels_have_stays() {
        let mut kept = Kept::default();
        let first = kept.copy(None, &BTreeSet::new());
        let used = BTreeSet::from([first]);
        let whole = || vec![1; IMAGE_PAGES_MAX * FRAME as usize];
        kept.keep(first, whole(), &used);
        for _ in 0..100 {
            let ticket = kept.copy(None, &used);
            kept.keep(ticket, whole(), &used);
            assert!(kept.bytes() <= KEPT_BYTES_MAX && kept.content(first).is_some());
        }
        for _ in 0..2 * KEPT_MAX {
            let ticket = kept.copy(None, &used);
            kept.keep(ticket, vec![2, 0], &used);
            assert_eq!(kept.content(ticket), Some(&[2][..]));
        }
        assert!(kept.contents.len() <= KEPT_MAX && kept.content(first).is_some());
        assert!(kept.check().is_ok());
    }

    #[test]
    fn copy_begins_as_the_other_was_left() {
        let mut kept = Kept::default();
        let (a, none) = (kept.copy(None, &BTreeSet::new()), BTreeSet::new());
        kept.keep(a, vec![7; 300], &none);
        let b = kept.copy(Some(a), &none);
        assert_ne!(a, b);
        assert_eq!(kept.content(b), kept.content(a));
        let c = kept.copy(Some(99), &none);
        assert_eq!(kept.content(c), None);
    }

    #[test]
    fn ticket_is_found_again_and_nothing_else_is_one() {
        for ticket in [0, 1, u64::MAX] {
            assert_eq!(ticket_in(ticket_bytes(ticket)), Some(ticket));
        }
        assert_eq!(ticket_in([0; TICKET_BYTES]), None);
        assert_eq!(ticket_va(0x1234_5604), GpuVa(0x1234_56e0));
    }
}
