//! From an offset to a register in constant time, by a table that is made when this crate is compiled.
//!
//! ```text
//!   offset ─► page (4 KiB) ─► a bit for each word: is a register there? ─► how many lie before it ─► the register
//! ```
//!
//! Registers lie close together in few pages, so the table for all of BAR0 takes 46 KB.

pub(super) const PAGE_BYTES: u32 = 0x1000;
const PAGE_WORDS: usize = PAGE_BYTES as usize / 4;
/// Words that one element of a page's bit map stands for.
const GROUP: usize = u64::BITS as usize;
const GROUPS: usize = PAGE_WORDS / GROUP;

#[derive(Clone, Copy)]
struct Page {
    /// A bit for each word.
    present: [u64; GROUPS],
    /// Registers before each group of words.
    before: [u16; GROUPS],
}

const NO_PAGE: Page = Page {
    present: [0; GROUPS],
    before: [0; GROUPS],
};

/// Decodes offsets in a space of `SPACE` pages, of which fewer than `PAGES` have registers; there are `COUNT` registers.
pub(super) struct Decoder<R, const SPACE: usize, const PAGES: usize, const COUNT: usize> {
    /// Index in `pages`; the first of those is empty and stands for all pages without a register.
    page_of: [u8; SPACE],
    pages: [Page; PAGES],
    /// The registers, ascending by offset.
    registers: [R; COUNT],
}

/// `PAGES` of [`Decoder`]: one more than pages with a register.
pub(super) const fn count_pages<const SPACE: usize, const COUNT: usize>(offsets: &[u32; COUNT]) -> usize {
    let mut seen = [false; SPACE];
    let mut count = 1;
    let mut i = 0;
    while i < COUNT {
        let page = (offsets[i] / PAGE_BYTES) as usize;
        if !seen[page] {
            seen[page] = true;
            count += 1;
        }
        i += 1;
    }
    count
}

impl<R: Copy, const SPACE: usize, const PAGES: usize, const COUNT: usize> Decoder<R, SPACE, PAGES, COUNT> {
    /// A decoder of `registers`, which lie at `offsets`. Two registers at one offset, or one that is not aligned, do not
    /// compile.
    pub(super) const fn new(registers: [R; COUNT], offsets: [u32; COUNT]) -> Self {
        assert!(PAGES <= u8::MAX as usize && COUNT <= u16::MAX as usize);
        let mut decoder = Self {
            page_of: [0; SPACE],
            pages: [NO_PAGE; PAGES],
            registers,
        };
        let (mut used, mut i) = (1, 0);
        while i < COUNT {
            let page = (offsets[i] / PAGE_BYTES) as usize;
            if decoder.page_of[page] == 0 {
                decoder.page_of[page] = used;
                used += 1;
            }
            let (group, bit) = place(offsets[i]);
            let present = &mut decoder.pages[decoder.page_of[page] as usize].present[group];
            assert!(offsets[i].is_multiple_of(4), "a register is not aligned");
            assert!(*present & bit == 0, "two registers at one offset");
            *present |= bit;
            i += 1;
        }
        let (mut page, mut before) = (0, 0);
        while page < SPACE {
            let mut group = 0;
            while group < GROUPS && decoder.page_of[page] != 0 {
                let here = &mut decoder.pages[decoder.page_of[page] as usize];
                here.before[group] = before;
                before += here.present[group].count_ones() as u16;
                group += 1;
            }
            page += 1;
        }
        i = 0;
        while i < COUNT {
            if let Some(rank) = decoder.rank(offsets[i]) {
                decoder.registers[rank] = registers[i];
            }
            i += 1;
        }
        decoder
    }

    /// How many registers lie before the one at `offset`, if there is one.
    const fn rank(&self, offset: u32) -> Option<usize> {
        let page = (offset / PAGE_BYTES) as usize;
        if page >= SPACE || !offset.is_multiple_of(4) {
            return None;
        }
        let page = &self.pages[self.page_of[page] as usize];
        let (group, bit) = place(offset);
        if page.present[group] & bit == 0 {
            return None;
        }
        let in_group = (page.present[group] & (bit - 1)).count_ones();
        Some(page.before[group] as usize + in_group as usize)
    }

    /// The register at `offset`.
    pub(super) const fn decode(&self, offset: u32) -> Option<R> {
        match self.rank(offset) {
            Some(rank) => Some(self.registers[rank]),
            None => None,
        }
    }

    /// All registers by offset.
    pub(super) const fn registers(&self) -> &[R; COUNT] {
        &self.registers
    }
}

/// Group of words in its page, and bit in the group.
const fn place(offset: u32) -> (usize, u64) {
    let word = (offset % PAGE_BYTES / 4) as usize;
    (word / GROUP, 1 << (word % GROUP))
}
