//! The state that the methods of a channel have set, in pages of 64 words that exist once one of their
//! words is not zero.

use fermi_spec::mme::{CODE_WORDS, MACROS};

/// Words of a page.
pub(crate) const PAGE_WORDS: usize = 64;
/// Pages of a context; the first is M2MF's and not kept here.
pub(crate) const PAGES: usize = 176;

/// A part of the context: consecutive pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Area {
    first: usize,
    pages: usize,
}

impl Area {
    /// Methods of 9039 that all classes have.
    pub(crate) const M2MF: Self = Self { first: 1, pages: 2 };
    /// Methods of 9097 below the macro calls.
    pub(crate) const THREED: Self = Self { first: 8, pages: 56 };
    /// Methods of 90c0.
    pub(crate) const COMPUTE: Self = Self { first: 64, pages: 56 };
    /// Methods of 902d.
    pub(crate) const TWOD: Self = Self {
        first: 120,
        pages: 16,
    };
    /// Uploaded macro code.
    pub(crate) const MACRO_CODE: Self = Self {
        first: 136,
        pages: 32,
    };
    /// Where each macro starts.
    pub(crate) const MACRO_STARTS: Self = Self { first: 168, pages: 2 };
    /// Constant banks of compute: four words each, see `launch.rs`.
    pub(crate) const BANKS: Self = Self { first: 171, pages: 2 };
    /// Texture slots of compute: a word each, the operand that bound it.
    pub(crate) const TEXTURES: Self = Self { first: 173, pages: 2 };
    /// Sampler slots of compute: a word each, the operand that bound it.
    pub(crate) const SAMPLERS: Self = Self { first: 175, pages: 1 };
    /// Upload pointers and the macro that waits for a parameter.
    pub(crate) const MACRO: Self = Self { first: 170, pages: 1 };

    #[cfg(test)]
    /// Bytes of methods that the area has words for.
    pub(crate) const fn bytes(self) -> u16 {
        (self.pages * PAGE_WORDS * 4) as u16
    }
}

type Page = Box<[u32; PAGE_WORDS]>;

/// The words; all zero by default.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct GraphState {
    pages: [Option<Page>; PAGES],
}

impl Default for GraphState {
    fn default() -> Self {
        Self {
            pages: std::array::from_fn(|_| None),
        }
    }
}

impl GraphState {
    /// Word `index` of an area; zero beyond its end.
    pub(crate) fn get(&self, area: Area, index: usize) -> u32 {
        if index / PAGE_WORDS >= area.pages {
            return 0;
        }
        self.pages[area.first + index / PAGE_WORDS]
            .as_ref()
            .map_or(0, |page| page[index % PAGE_WORDS])
    }

    /// Sets word `index` of an area; one beyond its end is not kept.
    pub(crate) fn set(&mut self, area: Area, index: usize, value: u32) {
        if index / PAGE_WORDS >= area.pages {
            return;
        }
        let page = &mut self.pages[area.first + index / PAGE_WORDS];
        if value != 0 || page.is_some() {
            page.get_or_insert_with(|| Box::new([0; PAGE_WORDS]))[index % PAGE_WORDS] = value;
        }
    }

    /// Makes all words of an area zero.
    pub(crate) fn clear(&mut self, area: Area) {
        self.pages[area.first..area.first + area.pages].fill_with(|| None);
    }

    /// Value of a method.
    pub(crate) fn method(&self, area: Area, method: u16) -> u32 {
        self.get(area, usize::from(method / 4))
    }

    /// Sets the value of a method.
    pub(crate) fn set_method(&mut self, area: Area, method: u16, value: u32) {
        self.set(area, usize::from(method / 4), value);
    }

    /// The 40-bit address in the methods `high` and the one after it.
    pub(crate) fn address(&self, area: Area, high: u16) -> u64 {
        u64::from(self.method(area, high) & 0xff) << 32 | u64::from(self.method(area, high + 4))
    }

    /// The words of a page, if it exists.
    pub(crate) fn page(&self, index: usize) -> Option<&[u32; PAGE_WORDS]> {
        self.pages.get(index)?.as_deref()
    }

    /// Sets a whole page.
    pub(crate) fn set_page(&mut self, index: usize, words: [u32; PAGE_WORDS]) {
        if let Some(page) = self.pages.get_mut(index) {
            *page = (words != [0; PAGE_WORDS]).then(|| Box::new(words));
        }
    }
}

const _: () = assert!(Area::SAMPLERS.first + Area::SAMPLERS.pages <= PAGES);
const _: () = assert!(Area::MACRO.first + Area::MACRO.pages <= PAGES);
const _: () = assert!(Area::MACRO_CODE.pages * PAGE_WORDS == CODE_WORDS);
const _: () = assert!(Area::MACRO_STARTS.pages * PAGE_WORDS == MACROS);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_do_not_share_words() {
        let mut state = GraphState::default();
        state.set_method(Area::THREED, Area::THREED.bytes() - 4, 1);
        state.set_method(Area::COMPUTE, 0, 2);
        state.set_method(Area::COMPUTE, Area::COMPUTE.bytes() - 4, 3);
        state.set_method(Area::TWOD, 0, 4);
        assert_eq!(state.method(Area::THREED, 0x37fc), 1);
        assert_eq!(state.method(Area::COMPUTE, 0), 2);
        assert_eq!(state.method(Area::COMPUTE, 0x37fc), 3);
        assert_eq!(state.method(Area::TWOD, 0), 4);
    }

    #[test]
    fn word_beyond_an_area_is_not_kept() {
        let mut state = GraphState::default();
        state.set_method(Area::TWOD, Area::TWOD.bytes(), 1);
        assert_eq!(state.method(Area::TWOD, Area::TWOD.bytes()), 0);
        assert_eq!(state, GraphState::default());
    }
}
