//! Shared memory of a block, and how its banks serve a warp.

use super::warp::{LANES, Lanes, each, lanes_of};

/// Banks, of 4 bytes.
const BANKS: usize = 32;

/// The memory, in words.
pub(crate) struct SharedMemory {
    words: Vec<u32>,
}

impl SharedMemory {
    /// `bytes` bytes of zeros.
    pub(crate) fn new(bytes: u32) -> Self {
        Self {
            words: vec![0; bytes.div_ceil(4) as usize],
        }
    }

    /// Sets all words to zero.
    pub(crate) fn clear(&mut self) {
        self.words.fill(0);
    }

    /// The words of an access of `bytes` bytes at each lane's offset, which are in it; a byte or half is in the low bits.
    #[inline(always)]
    pub(crate) fn load<const N: usize>(&self, offsets: &Lanes, lanes: u32, bytes: u32) -> [Lanes; N] {
        let mut values = [[0; LANES]; N];
        if let Some(start) = row(offsets, lanes, bytes)
            && let Some(words) = self.words.get(start..start + N * LANES)
        {
            for (lane, words) in words.as_chunks::<N>().0.iter().enumerate() {
                for (value, word) in values.iter_mut().zip(words) {
                    value[lane & 31] = *word;
                }
            }
            return values;
        }
        for lane in 0..LANES {
            let at = (offsets[lane] / 4) as usize;
            let Some(words) = self.words.get(at..).and_then(|words| words.first_chunk::<N>()) else {
                continue;
            };
            for (value, word) in values.iter_mut().zip(words) {
                value[lane] = *word;
            }
        }
        if bytes < 4 {
            for value in &mut values {
                *value = each(|lane| value[lane] >> (8 * (offsets[lane] & 3)));
            }
        }
        values
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
        if let Some(start) = row(offsets, lanes, bytes)
            && let Some(words) = self.words.get_mut(start..start + N * LANES)
        {
            for (lane, words) in words.as_chunks_mut::<N>().0.iter_mut().enumerate() {
                for (value, word) in values.iter().zip(words) {
                    *word = value[lane & 31];
                }
            }
            return;
        }
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

/// First word of an access of all lanes to places side by side, the usual one.
#[inline(always)]
fn row(offsets: &Lanes, lanes: u32, bytes: u32) -> Option<usize> {
    let first = offsets[0];
    let mut differs = 0;
    for (lane, offset) in offsets.iter().enumerate() {
        differs |= offset ^ first.wrapping_add((lane as u32).wrapping_mul(bytes));
    }
    (lanes == u32::MAX && bytes >= 4 && differs == 0).then_some((first / 4) as usize)
}

/// Passes that an access takes: in each, every bank serves one word, to as many lanes as want it.
///
/// Eight bytes go by half-warps, sixteen by quarters with one pass more (vendor's programming guide, compute capability
/// 2.x).
#[inline(always)]
pub(crate) fn passes(offsets: &Lanes, lanes: u32, bytes: u32) -> u64 {
    match bytes.div_ceil(4) {
        2 => passes_of::<16>(offsets, lanes, 8),
        4 => passes_of::<8>(offsets, lanes, 16),
        _ => passes_of::<BANKS>(offsets, lanes, 4),
    }
}

/// Lanes go by groups of `N`, whose accesses of `bytes` bytes take all banks once if they are side by side. An access is
/// aligned, so that its banks are those of one of `N` columns.
#[inline(always)]
fn passes_of<const N: usize>(offsets: &Lanes, lanes: u32, bytes: u32) -> u64 {
    let more = u64::from(bytes == 16);
    let mut passes = 0;
    for (number, places) in offsets.as_chunks::<N>().0.iter().enumerate() {
        let lanes = lanes >> (number * N) & (u32::MAX >> (LANES - N));
        if lanes != 0 {
            passes += more + busiest(places, lanes, bytes);
        }
    }
    passes
}

/// Number of different places that the busiest column has to serve.
#[inline(always)]
fn busiest<const N: usize>(places: &[u32; N], lanes: u32, bytes: u32) -> u64 {
    // An iterator's fold is not always inlined, and then it is compiled for any processor.
    let (mut all, shift) = (0, bytes.trailing_zeros());
    for (lane, place) in places.iter().enumerate() {
        all |= (lanes >> lane & 1) << ((place >> shift) & (N as u32 - 1));
    }
    // Each lane has a column of its own, or all want one place.
    if all.count_ones() == lanes.count_ones() {
        return 1;
    }
    let first = places[lanes.trailing_zeros() as usize % N] >> shift;
    let differ = !equal_lanes(places, first, shift);
    if differ & lanes == 0 {
        return 1;
    }
    let mut counts = [0u8; N];
    for lane in lanes_of(lanes) {
        let place = places[lane % N] >> shift;
        let same = equal_lanes(places, place, shift) & lanes;
        // The place counts once, for the first lane that wants it.
        counts[place as usize % N] += u8::from(same.trailing_zeros() as usize == lane);
    }
    counts.iter().max().map_or(0, |most| u64::from(*most))
}

/// Lanes of a group that want this place, as a mask.
#[inline(always)]
fn equal_lanes<const N: usize>(places: &[u32; N], place: u32, shift: u32) -> u32 {
    let mut mask = 0;
    for (lane, other) in places.iter().enumerate() {
        mask |= u32::from(other >> shift == place) << lane;
    }
    mask
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
        fn what_is_stored_is_loaded(first in 0u32..64, stride in 1u32..4, lanes: u32, values: [[u32; 32]; 4]) {
            for lanes in [lanes, u32::MAX] {
                let mut memory = SharedMemory::new(8192);
                let offsets = each(|lane| 16 * (first + stride * lane as u32));
                memory.store(&offsets, lanes, 16, values.each_ref());
                let found = memory.load::<4>(&offsets, lanes, 16);
                for lane in lanes_of(lanes) {
                    prop_assert_eq!(found.map(|word| word[lane]), values.map(|word| word[lane]));
                    let at = (offsets[lane] / 4) as usize;
                    prop_assert_eq!(&memory.words[at..at + 4], &values.map(|word| word[lane])[..]);
                }
                let stored = memory.words.iter().filter(|word| **word != 0).count();
                prop_assert!(stored <= 4 * lanes.count_ones() as usize);
            }
        }
    }
}
