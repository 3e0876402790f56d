//! Which pages of guest VRAM the CPU stored to, and when: they decide which tables are compared.

use std::collections::BTreeMap;

use fermi_spec::addr::GuestVramAddr;
use serde::{Deserialize, Serialize};

use crate::memory::GuestPage;

/// Most pages that are told apart, some 2 MiB of host memory for each VM. A guest that stores to more of them feels it at
/// its next flush, which compares its tables in VRAM whole; drivers keep tables in a few hundred pages.
const PAGES_MAX: usize = 32_768;

/// Stores of the CPU, numbered.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Stores {
    /// The last one to each page.
    pages: BTreeMap<GuestPage, u64>,
    /// Up to this one any page may have been stored to: there were too many to tell them apart.
    anywhere: u64,
    count: u64,
}

impl Stores {
    pub(crate) fn note(&mut self, at: GuestVramAddr) {
        self.count += 1;
        let page = GuestPage::of(at);
        if self.pages.len() >= PAGES_MAX && !self.pages.contains_key(&page) {
            self.pages.clear();
            self.anywhere = self.count;
        } else {
            self.pages.insert(page, self.count);
        }
    }

    /// The number of the last one.
    pub(crate) fn last(&self) -> u64 {
        self.count
    }

    /// Whether a page may have been stored to after that one.
    pub(crate) fn is_newer(&self, page: GuestPage, store: u64) -> bool {
        self.anywhere > store || self.pages.get(&page).is_some_and(|&last| last > store)
    }

    /// The device is reset: nobody follows a table any more.
    pub(crate) fn forget(&mut self) {
        self.pages.clear();
    }

    /// Pages that are told apart.
    pub(crate) fn page_count(&self) -> usize {
        self.pages.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_everywhere_take_bounded_memory_and_none_is_forgotten() {
        let mut stores = Stores::default();
        let at = |page: u64| GuestVramAddr(page << 12);
        stores.note(at(7));
        let seen = stores.last();
        let pages = 3 * PAGES_MAX as u64;
        for page in 0..pages {
            stores.note(at(page));
            assert!(stores.page_count() <= PAGES_MAX);
        }
        assert!((0..pages).all(|page| stores.is_newer(GuestPage(page as u32), seen)));
        let seen = stores.last();
        assert!((0..pages).all(|page| !stores.is_newer(GuestPage(page as u32), seen)));
        stores.note(at(7));
        assert!(stores.is_newer(GuestPage(7), seen) && !stores.is_newer(GuestPage(8), seen));
    }
}
