//! Inputs: any word of any buffer from a seed, without the words before it.

/// Numbers for one buffer of one run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Noise(u64);

/// SplitMix64's increment and finalizer (Steele, Lea, Flood 2014): here of a position instead of a state.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(value: u64) -> u64 {
    let mixed = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

impl Noise {
    /// Numbers of a run with this seed.
    pub fn new(seed: u64) -> Self {
        Self(mix(seed.wrapping_add(STEP)))
    }

    /// Numbers of one of its buffers, or of anything else that has a number.
    pub fn of(self, number: usize) -> Self {
        Self(mix(self.0 ^ (number as u64 + 1).wrapping_mul(STEP)))
    }

    /// The word at `index`.
    #[inline]
    pub fn word(self, index: usize) -> u32 {
        (mix(self.0.wrapping_add((index as u64).wrapping_mul(STEP))) >> 32) as u32
    }

    /// A number from 0 to below 1 with 24 bits.
    #[inline]
    pub fn unit(self, index: usize) -> f32 {
        (self.word(index) >> 8) as f32 / (1 << 24) as f32
    }

    /// A multiple of 2^-11 from -1 to below 1: of two, the product has 22 bits behind the point, so that sums of up to
    /// 2^30 such products and their roundings are exact in `f64`.
    #[inline]
    pub(crate) fn short(self, index: usize) -> f32 {
        (self.word(index) as i32 >> 20) as f32 / 2048.0
    }

    /// A number below `end`, which is not 0.
    #[inline]
    pub fn below(self, index: usize, end: u32) -> u32 {
        ((u64::from(self.word(index)) * u64::from(end)) >> 32) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_in_their_ranges() {
        let noise = Noise::new(1).of(0);
        assert!((0..1000).all(|index| (0.0..1.0).contains(&noise.unit(index))));
        assert!((0..1000).all(|index| (-1.0..1.0).contains(&noise.short(index))));
        assert!((0..1000).all(|index| noise.below(index, 7) < 7));
        assert!((0..1000).any(|index| noise.short(index) < -0.9));
    }

    #[test]
    fn seeds_and_buffers_have_numbers_of_their_own() {
        let words =
            [Noise::new(1).of(0), Noise::new(1).of(1), Noise::new(2).of(0)].map(|noise| noise.word(5));
        assert!(words[0] != words[1] && words[0] != words[2] && words[1] != words[2]);
    }
}
