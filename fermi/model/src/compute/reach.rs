//! What an instruction is about to reach beyond its block: for cards that look at that before it is executed.

use fermi_spec::addr::SMALL_PAGE;

use super::outside::{Outside, VA_MASK};
use crate::mmu::Refusal;

/// A page of 4 KiB that an instruction reaches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ReachedPage {
    /// First byte in it that a lane reaches, of the first lane that does.
    pub(crate) va: u64,
    pub(crate) is_load: bool,
    pub(crate) is_store: bool,
}

/// The pages of an instruction, each once, in the order of its lanes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reach {
    pub(crate) pages: Vec<ReachedPage>,
    /// It is the texture unit that reaches them.
    pub(crate) is_texture: bool,
}

impl Reach {
    /// Begins with the next instruction.
    pub(crate) fn clear(&mut self) {
        self.pages.clear();
        self.is_texture = false;
    }

    /// Adds the bytes of a lane; no access of a lane is longer than a page.
    pub(crate) fn add(&mut self, va: u64, bytes: u64, is_load: bool, is_store: bool) {
        let last = va.saturating_add(bytes.saturating_sub(1));
        let beyond = last / SMALL_PAGE * SMALL_PAGE;
        for va in [Some(va), (beyond > va).then_some(beyond)].into_iter().flatten() {
            self.add_page(va, is_load, is_store);
        }
    }

    fn add_page(&mut self, va: u64, is_load: bool, is_store: bool) {
        // Lanes mostly follow each other, so the last page is the likeliest.
        let mut known = self.pages.iter_mut().rev();
        match known.find(|page| page.va / SMALL_PAGE == va / SMALL_PAGE) {
            Some(page) => {
                page.is_load |= is_load;
                page.is_store |= is_store;
            }
            None => self.pages.push(ReachedPage {
                va,
                is_load,
                is_store,
            }),
        }
    }
}

/// Notes what is asked for and reads zeros: where the texture unit reads does not depend on what it finds.
pub(crate) struct Noting<'a>(pub(crate) &'a mut Reach);

impl Outside for Noting<'_> {
    fn fetch(&mut self, va: u64, bytes: &mut [u8]) -> Result<(), Refusal> {
        self.read(va, bytes)
    }

    fn read(&mut self, va: u64, data: &mut [u8]) -> Result<(), Refusal> {
        data.fill(0);
        self.0.add(va & VA_MASK, data.len() as u64, true, false);
        Ok(())
    }

    fn write(&mut self, va: u64, data: &[u8]) -> Result<(), Refusal> {
        self.0.add(va & VA_MASK, data.len() as u64, false, true);
        Ok(())
    }

    fn atomic(&mut self, va: u64, bytes: u32, change: &mut dyn FnMut(u64) -> u64) -> Result<u64, Refusal> {
        self.0.add(va & VA_MASK, bytes.into(), true, true);
        change(0);
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_come_once_and_an_access_across_a_border_has_two() {
        let mut reach = Reach::default();
        reach.add(0x1ffc, 4, true, false);
        reach.add(0x5000, 16, true, false);
        reach.add(0x1ff8, 16, false, true);
        let page = |va, is_load, is_store| ReachedPage {
            va,
            is_load,
            is_store,
        };
        assert_eq!(
            reach.pages,
            [
                page(0x1ffc, true, true),
                page(0x5000, true, false),
                page(0x2000, false, true)
            ]
        );
        reach.clear();
        assert_eq!(reach.pages, []);
    }
}
