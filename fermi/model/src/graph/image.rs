//! A context as an image in memory. On hardware the microcode decides the layout; this one is the model's own.
//!
//! | bytes | |
//! | --- | --- |
//! | 0x000–0x07f | the driver's: nouveau's register list (words 0 and 1) and what NVIDIA's firmware expects |
//! | 0x080 | [`MAGIC`] |
//! | 0x084–0x0a3 | which pages are there, a bit each |
//! | 0x0a4–0x0ff | unused |
//! | 0x100 + 0x100·p | page p: 64 words; page 0 is M2MF's words, the others are [`GraphState`]'s |
//!
//! A page that is not there is zero. An image without the magic word, such as memory that nothing was saved to, is
//! a fresh context, or none at all on a strict card; an image of any other bytes is a valid context. A switch moves the
//! pages that are there, a few KiB.
//!
//! The register list that nouveau hands over with a context (`list.rs`) sets up buffers for rendering, which is not modelled:
//! only a strict card writes it.

use super::{
    UNIT,
    state::{GraphState, PAGE_WORDS, PAGES},
};
use crate::{
    context::{IMAGE_BYTES, Registers},
    engine::{LOAD_CONTEXT, SAVE_CONTEXT},
    mmu::{AddressSpace, Refusal},
    model::FermiModel,
};
use fermi_spec::{addr::GpuVa, fault::Reason, regs::fecs::CONTEXT_BYTES};

/// First word of a saved image, behind the driver's words.
const MAGIC: u32 = 0x3147_4643;
const HEADER: u64 = 0x80;
const MAP_WORDS: usize = 8;
const HEADER_BYTES: usize = 4 + 4 * MAP_WORDS;
const FIRST_PAGE: u64 = 0x100;
const PAGE_BYTES: usize = 4 * PAGE_WORDS;

const _: () = assert!(PAGES <= 32 * MAP_WORDS && IMAGE_BYTES == PAGE_BYTES);
const _: () = assert!(FIRST_PAGE as usize + PAGES * PAGE_BYTES <= CONTEXT_BYTES as usize);
const _: () = assert!(HEADER as usize + HEADER_BYTES <= FIRST_PAGE as usize);

/// Runs of consecutive pages among those that are there.
fn runs(is_there: &[bool; PAGES]) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for (page, _) in is_there.iter().enumerate().filter(|(_, there)| **there) {
        match runs.last_mut() {
            Some((_, end)) if *end == page => *end += 1,
            _ => runs.push((page, page + 1)),
        }
    }
    runs
}

fn page_va(image: GpuVa, page: usize) -> GpuVa {
    GpuVa(image.0 + FIRST_PAGE + (page * PAGE_BYTES) as u64)
}

fn words_of(bytes: &[u8; PAGE_BYTES]) -> [u32; PAGE_WORDS] {
    let mut words = [0; PAGE_WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    words
}

fn bytes_of(words: &[u32; PAGE_WORDS]) -> [u8; PAGE_BYTES] {
    let mut bytes = [0; PAGE_BYTES];
    for (bytes, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
        *bytes = word.to_le_bytes();
    }
    bytes
}

impl FermiModel {
    /// Reads the context of a channel from its image at `at`.
    ///
    /// A strict card refuses an image that it never saved: PGRAPH would make of such bytes what they happen to say. Of the
    /// reasons that there are the kind of the memory is nearest to that, and no driver for GF100 makes pages that the MMU
    /// itself refuses for it (assumption: there is no such fault on a card, which may hang or go on with garbage).
    pub(super) fn load_graph_image(
        &mut self,
        space: &AddressSpace,
        at: GpuVa,
    ) -> Result<(GraphState, Registers), Refusal> {
        match self.read_graph_image(space, at)? {
            Some(context) => Ok(context),
            None if self.strict => Err(Refusal {
                va: at,
                reason: Reason::InvalidKind,
                write: false,
            }),
            None => Ok(Default::default()),
        }
    }

    /// Reads the image at `at`; `None` if it is nothing that was saved.
    pub(super) fn read_graph_image(
        &mut self,
        space: &AddressSpace,
        at: GpuVa,
    ) -> Result<Option<(GraphState, Registers)>, Refusal> {
        let mut header = [0; HEADER_BYTES];
        let header_at = GpuVa(at.0 + HEADER);
        self.mmu
            .read(&mut self.mem, space, LOAD_CONTEXT, header_at, &mut header)?;
        let word = |index: usize| u32::from_le_bytes(std::array::from_fn(|byte| header[4 * index + byte]));
        if word(0) != MAGIC {
            return Ok(None);
        }
        let (mut state, mut m2mf) = (GraphState::default(), Registers::default());
        let is_there = std::array::from_fn(|page| word(1 + page / 32) & 1 << (page % 32) != 0);
        for (first, end) in runs(&is_there) {
            let mut bytes = vec![0; (end - first) * PAGE_BYTES];
            self.mmu
                .read(&mut self.mem, space, LOAD_CONTEXT, page_va(at, first), &mut bytes)?;
            for (page, bytes) in (first..end).zip(bytes.as_chunks().0) {
                match page {
                    0 => m2mf = Registers::from_image(bytes),
                    _ => state.set_page(page, words_of(bytes)),
                }
            }
        }
        Ok(Some((state, m2mf)))
    }

    /// Stores the context on the engine as the image at `at`.
    pub(super) fn write_graph_image(&mut self, space: &AddressSpace, at: GpuVa) -> Result<(), Refusal> {
        let m2mf = self.units[UNIT].registers;
        let state = &self.graph.state;
        let is_there: [bool; PAGES] = std::array::from_fn(|page| match page {
            0 => m2mf != Registers::default(),
            _ => state.page(page).is_some(),
        });
        let mut header = [0; HEADER_BYTES];
        header[..4].copy_from_slice(&MAGIC.to_le_bytes());
        for page in (0..PAGES).filter(|page| is_there[*page]) {
            header[4 + page / 8] |= 1 << (page % 8);
        }
        let header_at = GpuVa(at.0 + HEADER);
        self.mmu
            .write(&mut self.mem, space, SAVE_CONTEXT, header_at, &header)?;
        for (first, end) in runs(&is_there) {
            let mut bytes = Vec::with_capacity((end - first) * PAGE_BYTES);
            for page in first..end {
                match self.graph.state.page(page) {
                    Some(words) => bytes.extend_from_slice(&bytes_of(words)),
                    None => bytes.extend_from_slice(&m2mf.to_image()),
                }
            }
            self.mmu
                .write(&mut self.mem, space, SAVE_CONTEXT, page_va(at, first), &bytes)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_join_neighbours() {
        let mut is_there = [false; PAGES];
        for page in [0, 1, 2, 9, 11, PAGES - 1] {
            is_there[page] = true;
        }
        assert_eq!(runs(&is_there), [(0, 3), (9, 10), (11, 12), (PAGES - 1, PAGES)]);
    }
}
