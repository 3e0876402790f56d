//! How often blocks were used, and how often they came back: what tells hot blocks from cold ones.

/// Bits of the number of accesses; those above are the number of round trips.
const ACCESS_BITS: u32 = 27;
const ACCESSES_MAX: u32 = (1 << ACCESS_BITS) - 1;
const ROUND_TRIPS_MAX: u32 = (1 << (32 - ACCESS_BITS)) - 1;

/// A word for each block: 27 bits of accesses, 5 bits of round trips (thesis, section 5.2.3). Accesses count wherever the block is.
///
/// Where a number of one block has reached its end, that number of every block is halved, so that hot ones stay hotter than cold ones.
#[derive(Clone, Debug)]
pub(crate) struct Counters {
    words: Vec<u32>,
}

impl Counters {
    /// For so many blocks, of which none was used.
    pub(crate) fn new(blocks: usize) -> Self {
        Self {
            words: vec![0; blocks],
        }
    }

    /// Accesses of a block; 0 for one that is not there.
    pub(crate) fn accesses(&self, block: usize) -> u32 {
        self.words.get(block).map_or(0, |word| word & ACCESSES_MAX)
    }

    /// How often a block was evicted; 0 for one that is not there.
    pub(crate) fn round_trips(&self, block: usize) -> u32 {
        self.words.get(block).map_or(0, |word| word >> ACCESS_BITS)
    }

    /// A block was used so many times. What would go beyond the end of the number is not counted.
    pub(crate) fn used(&mut self, block: usize, times: u32) {
        let sum = self.accesses(block).saturating_add(times).min(ACCESSES_MAX);
        let trips = self.round_trips(block);
        self.set(block, sum, trips);
        if sum == ACCESSES_MAX {
            self.each(|accesses, trips| (accesses / 2, trips));
        }
    }

    /// A block was evicted.
    pub(crate) fn evicted(&mut self, block: usize) {
        let trips = (self.round_trips(block) + 1).min(ROUND_TRIPS_MAX);
        let accesses = self.accesses(block);
        self.set(block, accesses, trips);
        if trips == ROUND_TRIPS_MAX {
            self.each(|accesses, trips| (accesses, trips / 2));
        }
    }

    fn set(&mut self, block: usize, accesses: u32, trips: u32) {
        if let Some(word) = self.words.get_mut(block) {
            *word = trips << ACCESS_BITS | accesses;
        }
    }

    fn each(&mut self, change: impl Fn(u32, u32) -> (u32, u32)) {
        for block in 0..self.words.len() {
            let (accesses, trips) = change(self.accesses(block), self.round_trips(block));
            self.set(block, accesses, trips);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_that_reached_its_end_is_halved_for_all_and_the_other_one_is_not() {
        let mut counters = Counters::new(3);
        counters.used(0, 1000);
        counters.evicted(0);
        counters.used(1, ACCESSES_MAX - 1);
        assert_eq!(counters.accesses(0), 1000);
        counters.used(1, 1);
        assert_eq!(
            [counters.accesses(0), counters.accesses(1)],
            [500, ACCESSES_MAX / 2]
        );
        assert_eq!(counters.round_trips(0), 1);
        for _ in 0..30 {
            counters.evicted(2);
        }
        assert_eq!([counters.round_trips(0), counters.round_trips(2)], [1, 30]);
        counters.evicted(2);
        assert_eq!([counters.round_trips(0), counters.round_trips(2)], [0, 15]);
        assert_eq!(counters.accesses(0), 500);
    }

    #[test]
    fn block_that_is_not_there_has_no_numbers() {
        let mut counters = Counters::new(1);
        counters.used(7, 5);
        counters.evicted(7);
        assert_eq!((counters.accesses(7), counters.round_trips(7)), (0, 0));
    }
}
