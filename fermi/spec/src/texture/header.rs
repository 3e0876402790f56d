//! An entry of the pool of texture headers.

use super::{ENTRY_BYTES, LEVELS_MAX, WORDS, bits, signed_bits, words_of};
use crate::{
    surface::{Block, Gob},
    texel::{Number, Texel},
};

/// How the texels of a texture are numbered.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Shape {
    /// A line of texels.
    OneD,
    /// A rectangle of texels.
    TwoD,
    /// A box of texels.
    ThreeD,
    /// Six squares, the faces of a cube.
    Cube,
    /// Layers that are lines.
    OneDArray,
    /// Layers that are rectangles.
    TwoDArray,
    /// A line of up to 2^30 texels, without filters.
    Buffer,
    /// A rectangle of one level.
    TwoDNoMipmap,
    /// Many times six squares.
    CubeArray,
}

impl Shape {
    /// Whether a level has layers, all of its size.
    pub const fn is_array(self) -> bool {
        matches!(self, Self::OneDArray | Self::TwoDArray | Self::CubeArray)
    }

    /// Whether a layer has six squares.
    pub const fn is_cube(self) -> bool {
        matches!(self, Self::Cube | Self::CubeArray)
    }
}

/// Where a component of a result comes from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Source {
    /// The value zero.
    Zero,
    /// A component of the texel: red, green, blue, opacity.
    Component(u8),
    /// The integer 1.
    OneInteger,
    /// The float 1.0.
    OneFloat,
}

/// A texture header. Bits without a meaning here are not looked at.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Header {
    words: [u32; WORDS],
}

impl Header {
    /// The header with the bytes of a pool's entry.
    pub fn from_bytes(bytes: &[u8; ENTRY_BYTES]) -> Self {
        Self {
            words: words_of(bytes),
        }
    }

    /// The header with the words of a pool's entry.
    pub const fn from_words(words: [u32; WORDS]) -> Self {
        Self { words }
    }

    /// Components of a texel; `None` for a layout that is reserved, compressed in blocks or made for video, or whose
    /// data types are reserved.
    pub const fn texel(&self) -> Option<Texel> {
        let Some((bytes, widths)) = component_bits(bits(self.words[0], 5, 0)) else {
            return None;
        };
        let mut numbers = [Number::Unorm; 4];
        let mut index = 0;
        while index < 4 {
            let low = 6 + 3 * index as u32;
            match number(bits(self.words[0], low + 2, low)) {
                Some(number) => numbers[index] = number,
                None if widths[index] != 0 => return None,
                None => {}
            }
            index += 1;
        }
        let parts = [(0, widths[0]), (1, widths[1]), (2, widths[2]), (3, widths[3])];
        Some(Texel::new(bytes, parts, numbers).with_srgb(bits(self.words[2], 10, 10) != 0))
    }

    /// Whether three components of nine bits share an exponent of five, which is then the fourth.
    pub const fn has_shared_exponent(&self) -> bool {
        bits(self.words[0], 5, 0) == SHARED_EXPONENT
    }

    /// Where the components of a result come from; reserved numbers give zero.
    pub fn sources(&self) -> [Source; 4] {
        core::array::from_fn(|index| {
            let low = 18 + 3 * index as u32;
            match bits(self.words[0], low + 2, low) {
                component @ 2..=5 => Source::Component(component as u8 - 2),
                6 => Source::OneInteger,
                7 => Source::OneFloat,
                _ => Source::Zero,
            }
        })
    }

    /// Address of the texture in the channel's address space, 40 bits.
    pub const fn address(&self) -> u64 {
        (bits(self.words[2], 7, 0) as u64) << 32 | self.words[1] as u64
    }

    /// The texture's shape; `None` if its number is reserved.
    pub const fn shape(&self) -> Option<Shape> {
        Some(match bits(self.words[2], 17, 14) {
            0 => Shape::OneD,
            1 => Shape::TwoD,
            2 => Shape::ThreeD,
            3 => Shape::Cube,
            4 => Shape::OneDArray,
            5 => Shape::TwoDArray,
            6 => Shape::Buffer,
            7 => Shape::TwoDNoMipmap,
            8 => Shape::CubeArray,
            _ => return None,
        })
    }

    /// Whether lines follow each other at [`Self::pitch`], in place of blocks.
    pub const fn is_pitch(&self) -> bool {
        bits(self.words[2], 18, 18) != 0
    }

    /// Blocks of level 0, before they are cut to its size.
    pub const fn block(&self) -> Block {
        let word = self.words[2];
        Block::new(
            Gob::FERMI,
            [bits(word, 21, 19), bits(word, 24, 22), bits(word, 27, 25)],
        )
    }

    /// Whether coordinates of samples go from 0 to 1 along a side, in place of its texels.
    pub const fn is_normalized(&self) -> bool {
        bits(self.words[2], 31, 31) != 0
    }

    /// Bytes from line to line of a pitch texture.
    pub const fn pitch(&self) -> u32 {
        bits(self.words[3], 19, 0)
    }

    /// Texels in x, y and z of level 0; in an array, z is the number of layers.
    pub const fn size(&self) -> [u32; 3] {
        [
            bits(self.words[4], 29, 0),
            bits(self.words[5], 15, 0),
            bits(self.words[5], 27, 16),
        ]
    }

    /// Levels that have memory.
    pub const fn levels(&self) -> u32 {
        bits(self.words[5], 31, 28) + 1
    }

    /// First and last level that are seen. A header of the first version shows all.
    pub const fn view(&self) -> (u32, u32) {
        let is_second_version = bits(self.words[4], 31, 31) != 0;
        if is_second_version {
            (bits(self.words[7], 3, 0), bits(self.words[7], 7, 4))
        } else {
            (0, bits(self.words[5], 31, 28))
        }
    }

    /// Added to the level of a sample, in 1/256.
    pub const fn lod_bias(&self) -> i32 {
        signed_bits(self.words[6], 17, 5)
    }
}

/// Nine bits of three components and five of their exponent.
const SHARED_EXPONENT: u32 = 0x20;

const fn number(data_type: u32) -> Option<Number> {
    Some(match data_type {
        1 | 5 => Number::Snorm,
        2 | 6 => Number::Unorm,
        3 => Number::Sint,
        4 => Number::Uint,
        7 => Number::Float,
        _ => return None,
    })
}

/// Bytes of a texel, and bits of red, green, blue and opacity, from bit 0 up.
const fn component_bits(sizes: u32) -> Option<(u8, [u8; 4])> {
    Some(match sizes {
        0x01 => (16, [32; 4]),
        0x02 => (12, [32, 32, 32, 0]),
        0x03 => (8, [16; 4]),
        0x04 => (8, [32, 32, 0, 0]),
        // R32_B24G8.
        0x05 => (8, [32, 8, 24, 0]),
        0x07 => (4, [8, 8, 8, 0]),
        0x08 => (4, [8; 4]),
        0x09 => (4, [10, 10, 10, 2]),
        0x0c => (4, [16, 16, 0, 0]),
        // G8R24 and G24R8.
        0x0d => (4, [24, 8, 0, 0]),
        0x0e => (4, [8, 24, 0, 0]),
        0x0f => (4, [32, 0, 0, 0]),
        0x12 => (2, [4; 4]),
        0x13 => (2, [1, 5, 5, 5]),
        0x14 => (2, [5, 5, 5, 1]),
        0x15 => (2, [5, 6, 5, 0]),
        0x16 => (2, [5, 5, 6, 0]),
        0x18 => (2, [8, 8, 0, 0]),
        0x1b => (2, [16, 0, 0, 0]),
        0x1d => (1, [8, 0, 0, 0]),
        0x1e => (1, [4, 4, 0, 0]),
        SHARED_EXPONENT => (4, [9, 9, 9, 5]),
        0x21 => (4, [11, 11, 10, 0]),
        // Z24S8, X8Z24, S8Z24.
        0x29 => (4, [8, 24, 0, 0]),
        0x2a => (4, [24, 0, 0, 0]),
        0x2b => (4, [24, 8, 0, 0]),
        // ZF32, ZF32_X24S8, Z16.
        0x2f => (4, [32, 0, 0, 0]),
        0x30 => (8, [32, 8, 0, 0]),
        0x3a => (2, [16, 0, 0, 0]),
        _ => return None,
    })
}

const _: () = assert!(LEVELS_MAX == 16);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What Mesa makes of an RGBA8 texture of 300 × 100 with five levels.
    const MESA: Header = Header::from_words([
        0x2a92_a488 & !0x3f | 8,
        0x0123_4500,
        0xd100_5402 & !0x3c000 | 0x4000,
        0x0030_0000,
        1 << 31 | 300,
        4 << 28 | 1 << 16 | 100,
        0x0300_0000,
        4 << 4,
    ]);

    #[test]
    fn header_of_mesa_decodes() {
        assert_eq!(MESA.address(), 0x02_0123_4500);
        assert_eq!(MESA.shape(), Some(Shape::TwoD));
        assert_eq!(
            (MESA.size(), MESA.levels(), MESA.view()),
            ([300, 100, 1], 5, (0, 4))
        );
        assert!(MESA.is_normalized() && !MESA.is_pitch());
        assert_eq!(MESA.texel().unwrap().bytes, 4);
        assert_eq!(
            MESA.sources()
                .map(|source| matches!(source, Source::Component(_))),
            [true; 4]
        );
    }

    #[test]
    fn reserved_data_type_of_a_component_that_is_there_is_no_texel() {
        let word = 0x1d | 2 << 6;
        let header = |word| Header::from_words([word, 0, 0, 0, 0, 0, 0, 0]);
        assert!(header(word).texel().is_some());
        assert!(header(0x1d).texel().is_none());
        assert!(header(0x3f | 2 << 6).texel().is_none());
    }

    proptest! {
        #[test]
        fn any_words_are_some_header(words in any::<[u32; 8]>()) {
            let header = Header::from_words(words);
            prop_assert!(header.address() < 1 << 40);
            if let Some(texel) = header.texel() {
                prop_assert!(texel.bytes <= 16 && texel.components().count() > 0);
            }
            prop_assert!((-4096..4096).contains(&header.lod_bias()));
            prop_assert!(header.levels() <= LEVELS_MAX);
        }
    }
}
