//! How the addresses of an access lie, lane by lane: it decides which lanes memory can serve together.

use super::warp::{LANES, Lanes, lanes_of, union_of};

/// Memory moves to and from the shader cores in segments of so many bytes.
pub(crate) const SEGMENT_BYTES: u64 = 128;

/// Addresses of the lanes of an access.
#[derive(Clone, Copy)]
pub(crate) struct Places<'a> {
    pub(crate) addresses: &'a [u64; LANES],
    /// Lanes that take part.
    pub(crate) lanes: u32,
    /// Bytes of each: 1, 2, 4, 8 or 16.
    pub(crate) bytes: u32,
}

/// Pattern of the addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shape {
    /// Lanes `first` to `first + count − 1`, side by side.
    Row {
        first: usize,
        count: usize,
    },
    /// All at one address.
    Point,
    Scattered,
}

impl Places<'_> {
    /// All ones where the lane takes part.
    #[inline(always)]
    fn mask(&self, lane: usize) -> u64 {
        0u64.wrapping_sub(u64::from(self.lanes >> lane & 1))
    }

    /// Whether each address is a multiple of its size.
    #[inline(always)]
    pub(crate) fn are_aligned(&self) -> bool {
        let all = union_of(|lane| self.addresses[lane] & self.mask(lane));
        all & u64::from(self.bytes - 1) == 0
    }

    /// The shape. Some lane takes part.
    #[inline(always)]
    pub(crate) fn shape(&self) -> Shape {
        let first = self.lanes.trailing_zeros() as usize & (LANES - 1);
        let count = self.lanes.count_ones() as usize;
        let start = self.addresses[first];
        let step = u64::from(self.bytes);
        // Where lane 0 would be.
        let base = start.wrapping_sub(first as u64 * step);
        let differs = |place: u64, lane: usize| (self.addresses[lane] ^ place) & self.mask(lane);
        let row = union_of(|lane| differs(base.wrapping_add(lane as u64 * step), lane));
        let is_run = self.lanes >> first == u32::MAX >> (LANES - count);
        if row == 0 && is_run {
            return Shape::Row { first, count };
        }
        match union_of(|lane| differs(start, lane)) {
            0 => Shape::Point,
            _ => Shape::Scattered,
        }
    }

    /// The first of these lanes, and how many from it on lie side by side within `bytes_max` aligned bytes; `None` if there are none.
    #[inline(always)]
    pub(crate) fn row(&self, lanes: u32, bytes_max: u64) -> Option<(usize, usize)> {
        let first = lanes.trailing_zeros() as usize;
        let start = *self.addresses.get(first)?;
        let room = (bytes_max - start % bytes_max) / u64::from(self.bytes);
        let most = ((lanes >> first).trailing_ones() as usize).min(room as usize);
        let is_next = |count: &usize| {
            self.addresses[first + count] == start.wrapping_add(*count as u64 * u64::from(self.bytes))
        };
        Some((first, 1 + (1..most).take_while(is_next).count()))
    }

    /// Puts the values of `row`, which lie side by side in memory, into the words of lanes from `first` on.
    #[inline(always)]
    pub(crate) fn load_row(&self, first: usize, row: &[u8], words: &mut [Lanes]) {
        for (lane, value) in (first..).zip(row.chunks_exact(self.bytes as usize)) {
            for (word, part) in words.iter_mut().zip(value.chunks(4)) {
                let mut whole = [0; 4];
                whole[..part.len()].copy_from_slice(part);
                word[lane] = u32::from_le_bytes(whole);
            }
        }
    }

    /// Makes a row of the words of lanes from `first` on.
    #[inline(always)]
    pub(crate) fn store_row(&self, first: usize, words: &[Lanes], row: &mut [u8]) {
        for (lane, value) in (first..).zip(row.chunks_exact_mut(self.bytes as usize)) {
            for (word, part) in words.iter().zip(value.chunks_mut(4)) {
                part.copy_from_slice(&word[lane].to_le_bytes()[..part.len()]);
            }
        }
    }

    /// Calls `each` with a lane of each segment that is touched, once for each.
    #[inline(always)]
    pub(crate) fn for_each_segment(&self, mut each: impl FnMut(usize)) {
        let mut seen = Seen::new();
        let mut last = u64::MAX;
        for lane in lanes_of(self.lanes) {
            let segment = self.addresses[lane] / SEGMENT_BYTES;
            if segment != last && seen.insert(segment) {
                each(lane);
            }
            last = segment;
        }
    }
}

/// Numbers of segments, one for each lane at most.
struct Seen([u64; Self::SLOTS]);

impl Seen {
    /// Twice as many as there are lanes, so that few meet.
    const SLOTS: usize = 2 * LANES;
    const EMPTY: u64 = u64::MAX;

    fn new() -> Self {
        Self([Self::EMPTY; Self::SLOTS])
    }

    /// Adds a segment; whether it is new.
    fn insert(&mut self, segment: u64) -> bool {
        // Fibonacci hashing: the upper bits of a product with 2^64 divided by the golden ratio.
        let hash = segment.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58;
        for probe in 0..Self::SLOTS {
            let slot = &mut self.0[(hash as usize + probe) % Self::SLOTS];
            if *slot == segment {
                return false;
            }
            if *slot == Self::EMPTY {
                *slot = segment;
                return true;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(lanes: u32, bytes: u32, address: impl Fn(u64) -> u64) -> Shape {
        let addresses = std::array::from_fn(|lane| address(lane as u64));
        Places {
            addresses: &addresses,
            lanes,
            bytes,
        }
        .shape()
    }

    fn segments(lanes: u32, address: impl Fn(u64) -> u64) -> u32 {
        let addresses = std::array::from_fn(|lane| address(lane as u64));
        let mut segments = 0;
        let places = Places {
            addresses: &addresses,
            lanes,
            bytes: 4,
        };
        places.for_each_segment(|_| segments += 1);
        segments
    }

    #[test]
    fn lanes_side_by_side_are_a_row_wherever_it_begins() {
        let row = |lanes| shape(lanes, 8, |lane| 0x1000 + 8 * lane);
        assert_eq!(row(u32::MAX), Shape::Row { first: 0, count: 32 });
        assert_eq!(row(0xff0), Shape::Row { first: 4, count: 8 });
        assert_eq!(row(1 << 31), Shape::Row { first: 31, count: 1 });
        assert_eq!(row(0xf0f), Shape::Scattered);
    }

    #[test]
    fn rows_end_with_lanes_addresses_and_pages() {
        let addresses = std::array::from_fn(|lane| 0x1fc0 + 0x400 * (lane as u64 / 20) + 4 * lane as u64);
        let places = Places {
            addresses: &addresses,
            lanes: u32::MAX,
            bytes: 4,
        };
        let row = |lanes| places.row(lanes, 0x1000);
        assert_eq!(row(u32::MAX), Some((0, 16)), "the page ends");
        assert_eq!(row(u32::MAX << 16), Some((16, 4)), "they go on elsewhere");
        assert_eq!(row(u32::MAX << 20), Some((20, 12)));
        assert_eq!(row(0b1101 << 20), Some((20, 1)));
        assert_eq!(row(0), None);
    }

    #[test]
    fn one_address_is_a_point_and_others_are_scattered() {
        assert_eq!(shape(u32::MAX, 4, |_| 64), Shape::Point);
        assert_eq!(shape(0x8001, 4, |_| 64), Shape::Point);
        assert_eq!(shape(u32::MAX, 4, |lane| 4 * (31 - lane)), Shape::Scattered);
        assert_eq!(shape(u32::MAX, 4, |lane| 8 * lane), Shape::Scattered);
    }

    #[test]
    fn segment_counts_once_however_often_lanes_come_back_to_it() {
        assert_eq!(segments(u32::MAX, |lane| 4 * lane), 1);
        assert_eq!(segments(u32::MAX, |lane| 0x40 + 4 * lane), 2);
        assert_eq!(segments(u32::MAX, |lane| 128 * (lane % 2)), 2);
        assert_eq!(segments(u32::MAX, |lane| 128 * lane), 32);
        assert_eq!(segments(0xffff, |lane| 0x1_0000 * lane), 16);
    }

    #[test]
    fn lanes_that_take_no_part_may_lie_anywhere() {
        let addresses = std::array::from_fn(|lane| if lane == 3 { 0x40 } else { 1 });
        let places = Places {
            addresses: &addresses,
            lanes: 8,
            bytes: 16,
        };
        assert!(places.are_aligned());
        assert!(!Places { lanes: 9, ..places }.are_aligned());
    }
}
