//! Accesses of warps as rows: bytes side by side, as [`crate::graph`] divides them when it performs them.

use fermi_spec::addr::SMALL_PAGE;

use super::{
    super::{
        coalesce::Places,
        outside::Outside,
        warp::{LANES, Lanes},
    },
    track::Kind,
};
use crate::mmu::Refusal;

/// Bytes of a row of lanes, each of which moves 16.
const ROW_BYTES: usize = LANES * 16;

/// Something that serves rows.
pub(super) trait Rows {
    fn fetch(&mut self, va: u64, bytes: &mut [u8]) -> Result<(), Refusal>;
    fn load(&mut self, kind: Kind, va: u64, data: &mut [u8]) -> Result<(), Refusal>;
    fn store(&mut self, kind: Kind, va: u64, data: &[u8]) -> Result<(), Refusal>;
    fn touch(&mut self, kind: Kind, va: u64);
    /// Atomic operations are performed in their turn alone, so none gets here.
    fn refuse_atomic(&mut self, va: u64) -> Refusal;
}

/// The accesses of a warp by rows.
pub(super) struct ByRows<R>(pub(super) R);

impl<R: Rows> Outside for ByRows<R> {
    fn fetch(&mut self, va: u64, bytes: &mut [u8]) -> Result<(), Refusal> {
        self.0.fetch(va, bytes)
    }

    fn read(&mut self, va: u64, data: &mut [u8]) -> Result<(), Refusal> {
        self.0.load(Kind::RowLoad, va, data)
    }

    fn write(&mut self, va: u64, data: &[u8]) -> Result<(), Refusal> {
        self.0.store(Kind::RowStore, va, data)
    }

    fn gather(&mut self, places: Places<'_>, words: &mut [Lanes]) -> Result<(), Refusal> {
        let bytes = places.bytes as usize;
        let mut data = [0; ROW_BYTES];
        let mut left = places.lanes;
        while let Some((first, count)) = places.row(left, SMALL_PAGE) {
            left &= !(u32::MAX >> (LANES - count) << first);
            let row = &mut data[..count * bytes];
            self.0.load(Kind::Load, places.addresses[first], row)?;
            places.load_row(first, row, words);
        }
        places.for_each_segment(|lane| self.0.touch(Kind::TouchLoad, places.addresses[lane]));
        Ok(())
    }

    fn scatter(&mut self, places: Places<'_>, words: &[Lanes]) -> Result<(), Refusal> {
        let bytes = places.bytes as usize;
        let mut data = [0; ROW_BYTES];
        let mut left = places.lanes;
        while let Some((first, count)) = places.row(left, SMALL_PAGE) {
            left &= !(u32::MAX >> (LANES - count) << first);
            let row = &mut data[..count * bytes];
            places.store_row(first, words, row);
            self.0.store(Kind::Store, places.addresses[first], row)?;
        }
        places.for_each_segment(|lane| self.0.touch(Kind::TouchStore, places.addresses[lane]));
        Ok(())
    }

    fn atomic(&mut self, va: u64, _: u32, _: &mut dyn FnMut(u64) -> u64) -> Result<u64, Refusal> {
        Err(self.0.refuse_atomic(va))
    }
}
