//! The segments of memory that the L2 cache holds: for the time that accesses of the shader cores
//! take, never for data.
//!
//! 768 KiB in lines of 128 bytes (envytools, `ltc`; the vendor's white paper). assumptions: four ways, the oldest line
//! goes first, system memory is cached as well (MEM_OP has a flush for it), and what copy engines and hosts store does not
//! drop a line. A line costs its transfer when it is read into the cache, and when a store makes it one that has to be
//! written back; a line that is stored to without having been read is not fetched.

use fermi_spec::addr::Aperture;

use crate::memory::Place;

const LINE_BYTES: u64 = 128;
const WAYS: usize = 4;
const SETS: usize = (768 << 10) / LINE_BYTES as usize / WAYS;

/// A line: its number plus one, and whether it has to be written back. 0: none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Line(u64);

impl Line {
    const DIRTY: u64 = 1 << 63;

    fn is(self, number: u64) -> bool {
        self.0 & !Self::DIRTY == number + 1
    }
}

/// Cost of an access to a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Touch {
    /// The cache has it.
    Hit,
    /// It moves between the cache and its memory.
    Miss,
}

/// The tags of all lines.
pub(crate) struct L2 {
    sets: Box<[[Line; WAYS]]>,
    /// The way of each set that is replaced next.
    next: Box<[u8]>,
}

impl L2 {
    /// An empty cache.
    pub(crate) fn new() -> Self {
        Self {
            sets: vec![[Line::default(); WAYS]; SETS].into_boxed_slice(),
            next: vec![0; SETS].into_boxed_slice(),
        }
    }

    /// An access to the segment at `place`.
    #[inline]
    pub(crate) fn touch(&mut self, place: Place, is_store: bool) -> Touch {
        let number = (place.at.0 / LINE_BYTES) << 1 | u64::from(place.aperture != Aperture::Vram);
        let number = number & (Line::DIRTY - 1);
        // Two neighbours in different sets, and VRAM not apart from system memory.
        let index = (number >> 1) as usize % SETS;
        let dirty = if is_store { Line::DIRTY } else { 0 };
        let set = &mut self.sets[index];
        if let Some(line) = set.iter_mut().find(|line| line.is(number)) {
            let is_clean = line.0 & Line::DIRTY == 0;
            line.0 |= dirty;
            return if is_store && is_clean {
                Touch::Miss
            } else {
                Touch::Hit
            };
        }
        let next = &mut self.next[index];
        set[usize::from(*next) % WAYS] = Line((number + 1) | dirty);
        *next = (*next + 1) % WAYS as u8;
        Touch::Miss
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fermi_spec::addr::PhysAddr;

    fn at(byte: u64) -> Place {
        Place {
            aperture: Aperture::Vram,
            at: PhysAddr(byte),
        }
    }

    #[test]
    fn second_access_hits_until_others_have_taken_the_place() {
        let mut l2 = L2::new();
        assert_eq!(l2.touch(at(0), false), Touch::Miss);
        assert_eq!(l2.touch(at(64), false), Touch::Hit);
        let other = Place {
            aperture: Aperture::SysCoherent,
            ..at(0)
        };
        assert_eq!(l2.touch(other, false), Touch::Miss);
        for way in 1..=WAYS as u64 {
            l2.touch(at(way * (768 << 10)), false);
        }
        assert_eq!(l2.touch(at(0), false), Touch::Miss);
    }

    #[test]
    fn store_to_a_line_that_was_read_costs_its_way_back_once() {
        let mut l2 = L2::new();
        let costs = [false, true, true, false].map(|is_store| l2.touch(at(256), is_store));
        assert_eq!(costs, [Touch::Miss, Touch::Miss, Touch::Hit, Touch::Hit]);
        assert_eq!(l2.touch(at(512), true), Touch::Miss);
        assert_eq!(l2.touch(at(512), true), Touch::Hit);
    }
}
