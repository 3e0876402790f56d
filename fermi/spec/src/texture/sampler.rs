//! An entry of the pool of samplers.

use super::{ENTRY_BYTES, WORDS, bits, signed_bits, words_of};

/// Treatment of a coordinate beyond the edges.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Address {
    /// Begins again at the other edge.
    Wrap,
    /// Turns back at each edge.
    Mirror,
    /// The texel at the edge.
    Edge,
    /// The border's color.
    Border,
    /// Half the edge's texel and half the border's color.
    EdgeAndBorder,
    /// Turns back once, then the edge.
    MirrorOnceEdge,
    /// Turns back once, then the border.
    MirrorOnceBorder,
    /// Turns back once, then as [`Self::EdgeAndBorder`].
    MirrorOnceEdgeAndBorder,
}

/// How a sample is made of the texels of a level.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Filter {
    /// Takes the nearest texel.
    Point,
    /// Weighs the neighbours by their distance.
    Linear,
}

/// How a sample is made of the levels of a texture.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MipFilter {
    /// Takes the first level alone.
    None,
    /// Takes the nearest level.
    Point,
    /// Weighs two levels by their distance.
    Linear,
}

/// When a reference value passes against a depth: reference on the left.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Compare {
    bits: u8,
}

impl Compare {
    /// Whether the reference passes. A NaN passes only in the comparisons "always" and "not equal".
    pub fn passes(self, reference: f32, depth: f32) -> bool {
        let (less, equal, greater) = (self.bits & 1 != 0, self.bits & 2 != 0, self.bits & 4 != 0);
        match reference.partial_cmp(&depth) {
            Some(core::cmp::Ordering::Less) => less,
            Some(core::cmp::Ordering::Equal) => equal,
            Some(core::cmp::Ordering::Greater) => greater,
            None => less && greater,
        }
    }
}

/// A sampler. A reserved number is taken as the value before it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Sampler {
    words: [u32; WORDS],
}

impl Sampler {
    /// The sampler with the bytes of a pool's entry.
    pub fn from_bytes(bytes: &[u8; ENTRY_BYTES]) -> Self {
        Self {
            words: words_of(bytes),
        }
    }

    /// The sampler with the words of a pool's entry.
    pub const fn from_words(words: [u32; WORDS]) -> Self {
        Self { words }
    }

    /// Treatment of coordinates beyond the edges in x, y and z.
    pub fn addresses(&self) -> [Address; 3] {
        core::array::from_fn(|axis| {
            let low = 3 * axis as u32;
            match bits(self.words[0], low + 2, low) {
                0 => Address::Wrap,
                1 => Address::Mirror,
                2 => Address::Edge,
                3 => Address::Border,
                4 => Address::EdgeAndBorder,
                5 => Address::MirrorOnceEdge,
                6 => Address::MirrorOnceBorder,
                _ => Address::MirrorOnceEdgeAndBorder,
            }
        })
    }

    /// Comparison that instructions with a depth reference make.
    pub const fn compare(&self) -> Compare {
        Compare {
            bits: bits(self.words[0], 12, 10) as u8,
        }
    }

    /// Filter where a texel is larger than the sampled area.
    pub const fn magnification(&self) -> Filter {
        filter(bits(self.words[1], 2, 0))
    }

    /// Filter where a texel is smaller than the sampled area. Anisotropic filters count as linear.
    pub const fn minification(&self) -> Filter {
        filter(bits(self.words[1], 5, 4))
    }

    /// Filter between the levels of a texture.
    pub const fn levels(&self) -> MipFilter {
        match bits(self.words[1], 7, 6) {
            0 | 1 => MipFilter::None,
            2 => MipFilter::Point,
            _ => MipFilter::Linear,
        }
    }

    /// Added to the level of a sample, in 1/256.
    pub const fn lod_bias(&self) -> i32 {
        signed_bits(self.words[1], 24, 12)
    }

    /// Least and largest level of a sample, in 1/256.
    pub const fn lod_range(&self) -> (i32, i32) {
        (
            bits(self.words[2], 11, 0) as i32,
            bits(self.words[2], 23, 12) as i32,
        )
    }

    /// The border's color, as the components of a texel are after their conversion.
    pub const fn border(&self) -> [u32; 4] {
        [self.words[4], self.words[5], self.words[6], self.words[7]]
    }
}

const fn filter(number: u32) -> Filter {
    match number {
        0 | 1 => Filter::Point,
        _ => Filter::Linear,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What Mesa makes of linear filters with repeating, mirroring and clamping.
    #[test]
    fn sampler_of_mesa_decodes() {
        let words = [
            0x0002_6000 | 2 << 6 | 1 << 3,
            2 | 2 << 4 | 3 << 6,
            0xf00 << 12,
            0,
            1,
            2,
            3,
            4,
        ];
        let sampler = Sampler::from_words(words);
        assert_eq!(
            sampler.addresses(),
            [Address::Wrap, Address::Mirror, Address::Edge]
        );
        assert_eq!(
            (sampler.magnification(), sampler.minification()),
            (Filter::Linear, Filter::Linear)
        );
        assert_eq!(
            (sampler.levels(), sampler.lod_range()),
            (MipFilter::Linear, (0, 0xf00))
        );
        assert_eq!(sampler.border(), [1, 2, 3, 4]);
    }

    #[test]
    fn comparison_has_the_reference_on_the_left() {
        let with = |function: u32| Sampler::from_words([function << 10, 0, 0, 0, 0, 0, 0, 0]).compare();
        assert!(with(3).passes(0.5, 0.5) && with(3).passes(0.25, 0.5) && !with(3).passes(0.75, 0.5));
        assert!(
            with(5).passes(f32::NAN, 0.5) && !with(3).passes(f32::NAN, 0.5) && with(7).passes(f32::NAN, 0.0)
        );
    }

    #[test]
    fn bias_has_a_sign() {
        let sampler = Sampler::from_words([0, 0x1f80 << 12, 0, 0, 0, 0, 0, 0]);
        assert_eq!(sampler.lod_bias(), -128);
    }
}
