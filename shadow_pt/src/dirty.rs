//! The guest table pages that may have changed.

use crate::store::TableAt;
#[cfg(test)]
use fermi_spec::addr::SMALL_PAGE;
#[cfg(test)]
use std::collections::BTreeSet;

/// Says which table pages may have changed since the last finished refresh.
///
/// A page may be reported clean only if every store to it would have been seen: it is tracked, and no GPU mapping of
/// another address space, window alias or guest-RAM alias of it is writable. A refresh asks once for each page, when it
/// begins or soon after.
pub trait DirtyPages {
    /// Whether the 4 KiB page must be read and compared.
    fn is_dirty(&self, page: TableAt) -> bool;
}

/// Tracks nothing: each refresh compares every table whole.
#[derive(Clone, Copy, Debug, Default)]
pub struct AllDirty;

impl DirtyPages for AllDirty {
    fn is_dirty(&self, _page: TableAt) -> bool {
        true
    }
}

/// Pages marked by trapped stores. All other pages count as clean, so it suits address spaces whose
/// tables are all tracked.
#[cfg(test)]
#[derive(Clone, Debug, Default)]
pub(crate) struct DirtySet {
    pages: BTreeSet<TableAt>,
    everything: bool,
}

#[cfg(test)]
impl DirtySet {
    /// Marks beyond this many pages make everything dirty: a guest cannot make the set grow without bound.
    pub(crate) const PAGES_MAX: usize = 4096;

    /// Marks the pages that a store of `bytes` at `at` touches.
    pub(crate) fn mark(&mut self, at: TableAt, bytes: u64) {
        let within = match at {
            TableAt::Vram(at) => at.within(SMALL_PAGE),
            TableAt::Ram(at) => at.within(SMALL_PAGE),
        };
        let pages = within.saturating_add(bytes).div_ceil(SMALL_PAGE);
        if pages.saturating_add(self.pages.len() as u64) > Self::PAGES_MAX as u64 {
            self.mark_all();
        }
        if !self.everything {
            self.pages
                .extend((0..pages).map(|page| at.page().offset(page * SMALL_PAGE)));
        }
    }

    /// Marks everything, for instance after a harvest that could not be complete.
    pub(crate) fn mark_all(&mut self) {
        self.everything = true;
        self.pages.clear();
    }

    /// Forgets all marks, after a refresh of everything that reads these pages.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
impl DirtyPages for DirtySet {
    fn is_dirty(&self, page: TableAt) -> bool {
        self.everything || self.pages.contains(&page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fermi_spec::addr::GuestVramAddr;

    fn at(address: u64) -> TableAt {
        TableAt::Vram(GuestVramAddr(address))
    }

    #[test]
    fn store_across_a_page_end_marks_both_pages() {
        let mut dirty = DirtySet::default();
        dirty.mark(at(0x1ffc), 8);
        assert_eq!(
            [0x0000, 0x1000, 0x2000, 0x3000].map(|page| dirty.is_dirty(at(page))),
            [false, true, true, false]
        );
    }

    #[test]
    fn too_many_marks_make_everything_dirty() {
        let mut dirty = DirtySet::default();
        dirty.mark(at(0), u64::MAX);
        assert!(dirty.is_dirty(at(0x7777_0000)));
        assert!(dirty.pages.is_empty());
    }
}
