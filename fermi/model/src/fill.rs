//! Fills: every element of lines becomes the same one, or the bits of it that a mask names do.
//!
//! A fill is a transfer that has a target and no source: it runs in the same pieces, gives way like a copy, and its
//! faults are those of a store.

use crate::{
    memory::Place,
    mmu::{Access, AddressSpace, Refusal},
    model::FermiModel,
    side::{Pages, Side},
    timing::Traffic,
    transfer::{PIECE_BYTES, PIECE_RUNS, Transfer, charge_read, charge_write},
};

/// Four components of 32 bits.
const ELEMENT_BYTES_MAX: usize = 16;
/// Bytes of elements that are laid out side by side and stored at once.
const LAID_OUT: usize = 1024;

/// An element, and which of its bits are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fill {
    element: [u8; ELEMENT_BYTES_MAX],
    mask: [u8; ELEMENT_BYTES_MAX],
    /// Bytes of the element, 1 to 16.
    bytes: u8,
}

impl Fill {
    /// Writes those bits of an element of `bytes` bytes (1 to 16) that are set in `mask`; the first byte is the lowest.
    pub(crate) fn new(bytes: u8, element: u128, mask: u128) -> Self {
        Self {
            element: element.to_le_bytes(),
            mask: mask.to_le_bytes(),
            bytes: bytes.clamp(1, ELEMENT_BYTES_MAX as u8),
        }
    }

    /// Bytes of an element.
    pub(crate) fn bytes(&self) -> u32 {
        self.bytes.into()
    }

    /// Whether nothing of what was there before stays.
    fn is_whole(&self) -> bool {
        self.mask[..usize::from(self.bytes)]
            .iter()
            .all(|byte| *byte == 0xff)
    }

    /// `values` over and over from its first byte on.
    fn laid_out(&self, values: &[u8; ELEMENT_BYTES_MAX]) -> [u8; LAID_OUT] {
        let mut all = [0; LAID_OUT];
        for element in all.chunks_mut(self.bytes.into()) {
            element.copy_from_slice(&values[..element.len()]);
        }
        all
    }
}

/// Lines that are filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FilledLines {
    pub(crate) target: Side,
    pub(crate) fill: Fill,
    pub(crate) line_bytes: u32,
    pub(crate) lines: u32,
}

impl FermiModel {
    /// Fills up to a piece of a transfer.
    pub(crate) fn fill_piece(
        &mut self,
        space: &AddressSpace,
        transfer: &mut Transfer,
        fill: Fill,
        traffic: &mut Traffic,
    ) -> Result<(), Refusal> {
        let mut pages = Pages::new(&transfer.target, Access::WRITE);
        let (elements, masks) = (fill.laid_out(&fill.element), fill.laid_out(&fill.mask));
        let is_whole = fill.is_whole();
        let mut left = PIECE_BYTES;
        for _ in 0..PIECE_RUNS {
            let Some((va, phase, bytes)) = transfer.next_to_fill(fill.bytes()).filter(|_| left != 0) else {
                break;
            };
            // Whole elements of what is laid out stay behind the first byte.
            let most = (LAID_OUT - ELEMENT_BYTES_MAX) as u64;
            let bytes = bytes.min(left).min(most);
            let (place, bytes) = pages.translate(&mut self.mmu, &mut self.mem, space, va, bytes)?;
            let range = phase..phase + bytes as usize;
            if is_whole {
                self.mem.write(place, &elements[range]);
            } else {
                self.fill_bits(place, &elements[range.clone()], &masks[range]);
                charge_read(traffic, place.aperture, bytes);
            }
            charge_write(traffic, place.aperture, bytes);
            self.mem.counters.cleared_bytes += bytes;
            transfer.advance(bytes);
            left -= bytes;
        }
        Ok(())
    }

    /// Replaces the bits at `place` whose mask is set.
    fn fill_bits(&mut self, place: Place, values: &[u8], masks: &[u8]) {
        let mut data = [0; LAID_OUT];
        let data = &mut data[..values.len()];
        self.mem.read(place, data);
        for ((byte, value), mask) in data.iter_mut().zip(values).zip(masks) {
            *byte = *byte & !mask | value & mask;
        }
        self.mem.write(place, data);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_follow_each_other() {
        let fill = Fill::new(2, 0x1234, u128::MAX);
        assert_eq!(fill.laid_out(&fill.element)[..5], [0x34, 0x12, 0x34, 0x12, 0x34]);
        assert!(fill.is_whole());
        assert!(!Fill::new(2, 0, 0xff).is_whole());
    }
}
