//! Code of launches that lies in VRAM, kept for a while: to read a page of it from a card takes a thousand loads across the bus.

use std::collections::BTreeMap;

use fermi_spec::addr::SMALL_PAGE;

use crate::event::Tick;
use crate::memory::GuestPage;

/// How long a page is taken for what it was. A guest that changes its code has that part of its work placed by what stood there before.
const KEPT_NS: u64 = 250_000_000;
/// Pages of one VM.
const PAGES_MAX: usize = 64;

/// Pages of one VM's code.
#[derive(Debug, Default)]
pub(super) struct Codes {
    /// When each was read, and its bytes.
    pages: BTreeMap<GuestPage, (Tick, Box<[u8; SMALL_PAGE as usize]>)>,
}

impl Codes {
    /// What stood in a page a short time ago.
    pub(super) fn page(&self, page: GuestPage, now: Tick) -> Option<&[u8; SMALL_PAGE as usize]> {
        let (read_at, bytes) = self.pages.get(&page)?;
        (now.since(*read_at) < KEPT_NS).then_some(&**bytes)
    }

    /// A page was read. The one that was read first goes for it where there are too many.
    pub(super) fn keep(&mut self, page: GuestPage, bytes: &[u8; SMALL_PAGE as usize], now: Tick) {
        if self.pages.len() >= PAGES_MAX && !self.pages.contains_key(&page) {
            let oldest = self.pages.iter().min_by_key(|(_, (read_at, _))| *read_at);
            if let Some(oldest) = oldest.map(|(page, _)| *page) {
                self.pages.remove(&oldest);
            }
        }
        self.pages.insert(page, (now, Box::new(*bytes)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: [u8; SMALL_PAGE as usize] = [7; SMALL_PAGE as usize];

    #[test]
    fn page_is_kept_for_a_while() {
        let mut codes = Codes::default();
        codes.keep(GuestPage(3), &PAGE, Tick(1));
        assert_eq!(codes.page(GuestPage(3), Tick(KEPT_NS)), Some(&PAGE));
        assert_eq!(codes.page(GuestPage(3), Tick(KEPT_NS + 1)), None);
        assert_eq!(codes.page(GuestPage(4), Tick(1)), None);
    }

    #[test]
    fn oldest_page_goes_for_one_too_many() {
        let mut codes = Codes::default();
        for page in 0..=PAGES_MAX as u32 {
            codes.keep(GuestPage(page), &PAGE, Tick(page.into()));
        }
        let now = Tick(PAGES_MAX as u64);
        assert_eq!(codes.page(GuestPage(0), now), None);
        assert!((1..=PAGES_MAX as u32).all(|page| codes.page(GuestPage(page), now).is_some()));
    }
}
