//! Shared memory of a block, and how its banks serve a warp.

use super::warp::{LANES, Lanes, each, lanes_of, mask_of};

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

    /// Word `number` of an access of `bytes` bytes at each lane's offset, which are in it; a byte or half is in the low
    /// bits.
    #[inline(always)]
    pub(crate) fn load(&self, offsets: &Lanes, lanes: u32, bytes: u32, number: u32) -> Lanes {
        let word = |lane: usize| {
            let at = offsets[lane] / 4 + number;
            self.words.get(at as usize).map_or(0, |word| *word)
        };
        if bytes >= 4 {
            return each(word);
        }
        let mut values = [0; LANES];
        for lane in lanes_of(lanes) {
            values[lane] = word(lane) >> (8 * (offsets[lane] & 3));
        }
        values
    }

    /// Stores such words, lane after lane.
    #[inline(always)]
    pub(crate) fn store(&mut self, offsets: &Lanes, lanes: u32, bytes: u32, number: u32, values: &Lanes) {
        for lane in lanes_of(lanes) {
            let at = offsets[lane] / 4 + number;
            let Some(word) = self.words.get_mut(at as usize) else {
                continue;
            };
            *word = match bytes {
                1 | 2 => {
                    let shift = 8 * (offsets[lane] & 3);
                    let mask = ((1u32 << (8 * bytes)) - 1) << shift;
                    *word & !mask | values[lane] << shift & mask
                }
                _ => values[lane],
            };
        }
    }
}

/// Passes that an access takes: in each, every bank serves one word, to as many lanes as want it.
///
/// Eight bytes go by half-warps, sixteen by quarters with one pass more (vendor's programming guide, compute capability
/// 2.x).
#[inline(always)]
pub(crate) fn passes(offsets: &Lanes, lanes: u32, bytes: u32) -> u64 {
    let words = bytes.div_ceil(4);
    if words == 1 && is_free_of_conflicts(offsets, lanes) {
        return 1;
    }
    let group = LANES / words as usize;
    let more = u64::from(words == 4);
    (0..words as usize)
        .map(|number| {
            let part = (u32::MAX >> (LANES - group)) << (number * group);
            match lanes & part {
                0 => 0,
                lanes => more + busiest(offsets, lanes, words),
            }
        })
        .sum()
}

/// Whether no bank has to serve two words. It checks only the two quick cases: each lane has a bank of its own, or
/// all lanes want one word.
#[inline(always)]
fn is_free_of_conflicts(offsets: &Lanes, lanes: u32) -> bool {
    let banks = each(|lane| (lanes >> lane & 1) << (offsets[lane] / 4 % BANKS as u32));
    let all = banks.iter().fold(0, |all, bank| all | bank);
    if all.count_ones() == lanes.count_ones() {
        return true;
    }
    let first = offsets[lanes.trailing_zeros() as usize % LANES] / 4;
    mask_of(|lane| offsets[lane] / 4 != first) & lanes == 0
}

/// Number of different words that the busiest bank has to serve, for at most 32 words of lanes.
fn busiest(offsets: &Lanes, lanes: u32, words: u32) -> u64 {
    const NONE: u8 = u8::MAX;
    // Chains of the words of each bank.
    let mut heads = [NONE; BANKS];
    let mut counts = [0u8; BANKS];
    let mut chain = [(0u32, NONE); LANES];
    let mut used = 0;
    for lane in lanes_of(lanes) {
        for number in 0..words {
            let word = (offsets[lane] / 4).wrapping_add(number);
            let bank = word as usize % BANKS;
            let mut at = heads[bank];
            while at != NONE && chain[usize::from(at) % LANES].0 != word {
                at = chain[usize::from(at) % LANES].1;
            }
            if at != NONE {
                continue;
            }
            chain[used % LANES] = (word, heads[bank]);
            heads[bank] = (used % LANES) as u8;
            used += 1;
            counts[bank] += 1;
        }
    }
    counts.iter().max().map_or(0, |most| u64::from(*most))
}

#[cfg(test)]
mod tests {
    use super::*;

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
        memory.store(&each(|_| 0), 1, 4, 0, &[u32::MAX; 32]);
        memory.store(&offsets, 0b10, 1, 0, &[0x1234; 32]);
        memory.store(&each(|_| 6), 1, 2, 0, &[0xabcd; 32]);
        assert_eq!(memory.load(&each(|_| 0), 1, 4, 0)[0], 0xffff_34ff);
        assert_eq!(memory.load(&each(|_| 0), 1, 8, 1)[0], 0xabcd_0000);
        assert_eq!(memory.load(&each(|_| 7), 1, 1, 0)[0] & 0xff, 0xab);
    }
}
