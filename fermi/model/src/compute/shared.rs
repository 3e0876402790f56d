//! Shared memory of a block, and how its banks serve a warp.

use super::warp::{LANES, Lanes, each, lanes_of, union_of};

/// Banks, of 4 bytes.
const BANKS: usize = 32;

/// The memory, in words.
pub(crate) struct SharedMemory {
    words: Vec<u32>,
    counted: Counted,
}

/// Accesses whose passes were counted last: a program has few patterns, and makes an access of each again and again.
#[derive(Default)]
struct Counted {
    patterns: [Pattern; 4],
    next: usize,
}

/// How an access lies from the place of its first lane on. Where that is does not matter to the number of passes.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Pattern {
    /// Zero for lanes that take no part.
    from_first: Lanes,
    lanes: u32,
    bytes: u32,
    passes: u32,
}

impl SharedMemory {
    /// `bytes` bytes of zeros.
    pub(crate) fn new(bytes: u32) -> Self {
        Self {
            words: vec![0; bytes.div_ceil(4) as usize],
            counted: Counted::default(),
        }
    }

    /// Passes that an aligned access takes: in each, every bank serves one word, to as many lanes as want it.
    ///
    /// Eight bytes go by half-warps, sixteen by quarters with one pass more (vendor's programming guide, compute capability
    /// 2.x).
    #[inline(always)]
    pub(crate) fn passes(&mut self, offsets: &Lanes, lanes: u32, bytes: u32) -> u64 {
        passes_of_stride(offsets, lanes, bytes).unwrap_or_else(|| self.counted.passes(offsets, lanes, bytes))
    }

    /// Sets all words to zero.
    pub(crate) fn clear(&mut self) {
        self.words.fill(0);
    }

    /// The words of an access of `bytes` bytes at each lane's offset, which are in it; a byte or half is in the low bits.
    #[inline(always)]
    pub(crate) fn load<const N: usize>(&self, offsets: &Lanes, lanes: u32, bytes: u32) -> [Lanes; N] {
        let words = match Stride::of(offsets, lanes) {
            Some(stride) if stride.is_row(bytes) => self.row(stride.first),
            Some(Stride { first, step: 0 }) => self.at(first).map(|words| [*words; LANES]),
            _ => None,
        };
        let words = words.unwrap_or_else(|| {
            let mut words = [[0; N]; LANES];
            for (lane, words) in words.iter_mut().enumerate() {
                *words = *self.at(offsets[lane]).unwrap_or(&[0; N]);
            }
            words
        });
        let mut values = [[0; LANES]; N];
        for (number, value) in values.iter_mut().enumerate() {
            *value = each(|lane| words[lane][number]);
        }
        if bytes < 4 {
            for value in &mut values {
                *value = each(|lane| value[lane] >> (8 * (offsets[lane] & 3)));
            }
        }
        values
    }

    /// `N` words from the one that has the byte at `offset`.
    #[inline(always)]
    fn at<const N: usize>(&self, offset: u32) -> Option<&[u32; N]> {
        self.words.get((offset / 4) as usize..)?.first_chunk()
    }

    /// `N` words for each lane, side by side.
    #[inline(always)]
    fn row<const N: usize>(&self, offset: u32) -> Option<[[u32; N]; LANES]> {
        let words = self.words.get((offset / 4) as usize..)?;
        words.as_chunks().0.first_chunk().copied()
    }

    /// Stores such words, lane after lane.
    #[inline(always)]
    pub(crate) fn store<const N: usize>(
        &mut self,
        offsets: &Lanes,
        lanes: u32,
        bytes: u32,
        values: [&Lanes; N],
    ) {
        let stride = Stride::of(offsets, lanes);
        if let Some(stride) = stride
            && stride.is_row(bytes)
            && let Some(words) = self.words.get_mut((stride.first / 4) as usize..)
            && let Some(words) = words.as_chunks_mut::<N>().0.first_chunk_mut::<LANES>()
        {
            *words = by_lanes(values);
            return;
        }
        // Of one place the last lane's words stay, where they are whole.
        let lanes = match stride {
            Some(Stride { step: 0, .. }) if bytes >= 4 => 1 << (LANES - 1),
            _ => lanes,
        };
        for lane in lanes_of(lanes) {
            let at = (offsets[lane] / 4) as usize;
            let Some(words) = self
                .words
                .get_mut(at..)
                .and_then(|words| words.first_chunk_mut::<N>())
            else {
                continue;
            };
            if bytes >= 4 {
                for (value, word) in values.iter().zip(words) {
                    *word = value[lane];
                }
            } else if let ([word, ..], [value, ..]) = (&mut words[..], &values[..]) {
                let shift = 8 * (offsets[lane] & 3);
                let mask = ((1u32 << (8 * bytes)) - 1) << shift;
                *word = *word & !mask | value[lane] << shift & mask;
            }
        }
    }
}

/// The words of each lane, side by side.
#[inline(always)]
fn by_lanes<const N: usize>(values: [&Lanes; N]) -> [[u32; N]; LANES] {
    let mut lanes = [[0; N]; LANES];
    for (lane, words) in lanes.iter_mut().enumerate() {
        for (value, word) in values.iter().zip(words) {
            *word = value[lane];
        }
    }
    lanes
}

/// Places of all lanes at the same distance from one another, the usual access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Stride {
    /// Of lane 0.
    first: u32,
    /// From a lane to the next, modulo 2^32.
    step: u32,
}

impl Stride {
    #[inline(always)]
    fn of(offsets: &Lanes, lanes: u32) -> Option<Self> {
        let (first, step) = (offsets[0], offsets[1].wrapping_sub(offsets[0]));
        let expected = |lane: usize| first.wrapping_add((lane as u32).wrapping_mul(step));
        let differs = union_of(|lane| offsets[lane] ^ expected(lane));
        (lanes == u32::MAX && differs == 0).then_some(Self { first, step })
    }

    /// Whether the lanes' words lie side by side.
    #[inline(always)]
    fn is_row(self, bytes: u32) -> bool {
        bytes >= 4 && self.step == bytes
    }
}

/// Passes of an access of all lanes at the same distance from one another.
#[inline(always)]
fn passes_of_stride(offsets: &Lanes, lanes: u32, bytes: u32) -> Option<u64> {
    let unit = bytes.max(4);
    let Stride { step, .. } = Stride::of(offsets, lanes).filter(|stride| stride.step.is_multiple_of(unit))?;
    // Lanes of a group whose numbers are so far apart want one column, each another place in it.
    let (groups, columns) = (unit / 4, BANKS as u32 / (unit / 4));
    let busiest = match step / unit {
        0 => 1,
        step => 1 << step.trailing_zeros().min(columns.trailing_zeros()),
    };
    Some(u64::from(groups * (busiest + u32::from(bytes == 16))))
}

impl Counted {
    #[inline(never)]
    fn passes(&mut self, offsets: &Lanes, lanes: u32, bytes: u32) -> u64 {
        // Parts of words: which word they are of depends on the first one's place.
        if bytes < 4 {
            return irregular_passes(offsets, lanes, 4);
        }
        let first = offsets[lanes.trailing_zeros() as usize % LANES];
        let mask = |lane: usize| 0u32.wrapping_sub(lanes >> lane & 1);
        let from_first = each(|lane| offsets[lane].wrapping_sub(first) & mask(lane));
        let is_it = |known: &&Pattern| {
            let differs = union_of(|lane| known.from_first[lane] ^ from_first[lane]);
            differs == 0 && (known.lanes, known.bytes) == (lanes, bytes)
        };
        if let Some(known) = self.patterns.iter().find(is_it) {
            return known.passes.into();
        }
        let passes = irregular_passes(offsets, lanes, bytes);
        self.patterns[self.next % self.patterns.len()] = Pattern {
            from_first,
            lanes,
            bytes,
            passes: passes as u32,
        };
        self.next = (self.next + 1) % self.patterns.len();
        passes
    }
}

/// Passes of any access.
fn irregular_passes(offsets: &Lanes, lanes: u32, unit: u32) -> u64 {
    match unit {
        8 => passes_of::<16>(offsets, lanes, 8),
        16 => passes_of::<8>(offsets, lanes, 16),
        _ => passes_of::<BANKS>(offsets, lanes, 4),
    }
}

/// Lanes go by groups of `N`, whose accesses of `bytes` bytes take all banks once if they are side by side. An access is
/// aligned, so that its banks are those of one of `N` columns.
#[inline(always)]
fn passes_of<const N: usize>(offsets: &Lanes, lanes: u32, bytes: u32) -> u64 {
    let places: Lanes = each(|lane| offsets[lane] / bytes);
    let (more, mut passes) = (u64::from(bytes == 16), 0);
    for first in (0..LANES).step_by(N) {
        let mut left = lanes & ((u32::MAX >> (LANES - N)) << first);
        if left != 0 {
            passes += more;
        }
        // In a pass each column serves one of the places that are wanted of it.
        while left != 0 {
            passes += 1;
            let mut served = [0; N];
            // Lanes that take no part want what the first one wants.
            let one = places[left.trailing_zeros() as usize % LANES];
            let wanted: [u32; N] = std::array::from_fn(|at| match left >> (first + at) & 1 {
                0 => one,
                _ => places[first + at],
            });
            for place in wanted {
                served[place as usize % N] = place;
            }
            let is_served = |at: usize| served[wanted[at] as usize % N] == wanted[at];
            let done = (0..N).fold(0, |done, at| done | u32::from(is_served(at)) << at);
            left &= !(done << first);
        }
    }
    passes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Passes as they are counted, and as they are known then.
    fn passes(offsets: &Lanes, lanes: u32, bytes: u32) -> u64 {
        let mut memory = SharedMemory::new(0);
        let first = memory.passes(offsets, lanes, bytes);
        // Elsewhere, as a loop has it.
        let shifted = offsets.map(|offset| offset.wrapping_add(20 * bytes.max(4)));
        assert_eq!(memory.passes(&shifted, lanes, bytes), first);
        first
    }

    fn of(bytes: u32, offset: impl Fn(u32) -> u32) -> u64 {
        passes(&each(|lane| offset(lane as u32)), u32::MAX, bytes)
    }

    #[test]
    fn words_of_one_bank_are_served_one_after_the_other() {
        assert_eq!(of(4, |lane| 4 * lane), 1);
        assert_eq!(of(4, |_| 64), 1);
        assert_eq!(of(1, |lane| lane), 1);
        assert_eq!(of(4, |lane| 8 * lane), 2);
        assert_eq!(of(4, |lane| 128 * lane), 32);
        // Two words of one bank, each wanted by half of the lanes in turns.
        assert_eq!(of(4, |lane| 128 * (lane % 2)), 2);
    }

    #[test]
    fn wide_accesses_go_by_halves_and_quarters() {
        assert_eq!(of(8, |lane| 8 * lane), 2);
        assert_eq!(of(8, |_| 0), 2);
        assert_eq!(of(8, |lane| 16 * lane), 4);
        assert_eq!(of(16, |lane| 16 * lane), 8);
    }

    #[test]
    fn lanes_that_take_no_part_cost_nothing() {
        let offsets = each(|lane| 128 * lane as u32);
        assert_eq!(passes(&offsets, 1, 4), 1);
        assert_eq!(passes(&offsets, 0xf, 8), 4);
    }

    #[test]
    fn part_of_a_word_leaves_the_rest() {
        let mut memory = SharedMemory::new(8);
        let offsets = each(|lane| lane as u32 % 8);
        memory.store(&each(|_| 0), 1, 4, [&[u32::MAX; 32]]);
        memory.store(&offsets, 0b10, 1, [&[0x1234; 32]]);
        memory.store(&each(|_| 6), 1, 2, [&[0xabcd; 32]]);
        assert_eq!(memory.load::<1>(&each(|_| 0), 1, 4)[0][0], 0xffff_34ff);
        assert_eq!(memory.load::<2>(&each(|_| 0), 1, 8)[1][0], 0xabcd_0000);
        assert_eq!(memory.load::<1>(&each(|_| 7), 1, 1)[0][0] & 0xff, 0xab);
    }

    /// Banks one by one, word by word, as the programming guide has it.
    fn passes_by_words(offsets: &Lanes, lanes: u32, bytes: u32) -> u64 {
        let words = bytes.div_ceil(4);
        let group = 32 / words;
        let mut passes = 0;
        for first in (0..32).step_by(group as usize) {
            let mut banks = vec![std::collections::BTreeSet::new(); BANKS];
            for lane in (first..first + group).filter(|lane| lanes >> lane & 1 != 0) {
                for number in 0..words {
                    let word = offsets[lane as usize] / 4 + number;
                    banks[word as usize % BANKS].insert(word);
                }
            }
            let most = banks.iter().map(|bank| bank.len()).max().unwrap_or(0) as u64;
            passes += if most == 0 {
                0
            } else {
                most + u64::from(words == 4)
            };
        }
        passes
    }

    proptest! {
        #[test]
        fn passes_are_those_of_the_busiest_bank(
            places in prop::collection::vec(0u32..96, 32), lanes: u32, few in 1u32..96, size in 0u32..5
        ) {
            let bytes = 1 << size;
            let offsets = each(|lane| places[lane] % few * bytes);
            prop_assert_eq!(passes(&offsets, lanes, bytes), passes_by_words(&offsets, lanes, bytes));
        }

        #[test]
        fn passes_of_strides_are_those_of_the_busiest_bank(first in 0u32..64, step in 0u32..80, size in 0u32..5) {
            let bytes = 1 << size;
            for step in [step, step.wrapping_neg()] {
                let offsets = each(|lane| (6000 + first).wrapping_add(step.wrapping_mul(lane as u32)) * bytes);
                let found = passes(&offsets, u32::MAX, bytes);
                prop_assert_eq!(found, passes_by_words(&offsets, u32::MAX, bytes));
            }
        }

        #[test]
        fn what_is_stored_is_loaded(first in 0u32..64, stride in 0u32..4, lanes: u32, values: [[u32; 32]; 4]) {
            for lanes in [lanes, u32::MAX] {
                let mut memory = SharedMemory::new(8192);
                let offsets = each(|lane| 16 * (first + stride * lane as u32));
                memory.store(&offsets, lanes, 16, values.each_ref());
                let found = memory.load::<4>(&offsets, lanes, 16);
                for lane in lanes_of(lanes) {
                    // Of one place the last lane's stays.
                    let last = if stride == 0 { 31 - lanes.leading_zeros() as usize } else { lane };
                    let values = values.map(|word| word[last]);
                    prop_assert_eq!(found.map(|word| word[lane]), values);
                    let at = (offsets[lane] / 4) as usize;
                    prop_assert_eq!(&memory.words[at..at + 4], &values[..]);
                }
                let stored = memory.words.iter().filter(|word| **word != 0).count();
                prop_assert!(stored <= 4 * lanes.count_ones() as usize);
            }
        }
    }
}
