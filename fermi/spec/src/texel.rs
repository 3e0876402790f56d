//! The layout of texels: components at bits, and the meaning of a component's bits.
//!
//! Two tables lead here: the component sizes and data types of a texture header ([`crate::texture`]) and the color
//! formats of surfaces ([`crate::twod::Format`]). Sources: NVIDIA's `cl9097tex.h` and `cl90c0.h` (names list the
//! highest bits first, but those of 16 and 32 bits, which list the lowest address first); Mesa's `nv50_formats.c`
//! agrees.

use crate::twod::Format;

/// Bytes of the largest texel.
pub const TEXEL_BYTES_MAX: usize = 16;

/// Meaning of a component's bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Number {
    /// From 0 to 1.
    Unorm,
    /// From -1 to 1.
    Snorm,
    /// Signed integer (two's complement).
    Sint,
    /// Unsigned integer value.
    Uint,
    /// Float: of 32 and 16 bits as IEEE has them, of 11 and 10 bits without a sign.
    Float,
}

/// One of the four values of a texel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Component {
    /// Number of the component: 0 red, 1 green, 2 blue, 3 opacity.
    pub index: u8,
    /// First bit in the texel.
    pub low: u8,
    /// Number of bits.
    pub bits: u8,
    /// How the bits are read.
    pub number: Number,
}

/// A texel: its size and the components that it has.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Texel {
    /// Bytes, 1 to 16.
    pub bytes: u8,
    components: [Option<Component>; 4],
    /// Red, green and blue are stored in the sRGB curve.
    pub is_srgb: bool,
}

impl Texel {
    /// Components in ascending bits: `(index, bits)`, 0 bits for one that is not there.
    pub(crate) const fn new(bytes: u8, parts: [(u8, u8); 4], numbers: [Number; 4]) -> Self {
        let mut components = [None; 4];
        let (mut part, mut low) = (0, 0);
        while part < 4 {
            let (index, bits) = parts[part];
            if bits != 0 {
                components[part] = Some(Component {
                    index,
                    low,
                    bits,
                    number: numbers[index as usize],
                });
                low += bits;
            }
            part += 1;
        }
        Self {
            bytes,
            components,
            is_srgb: false,
        }
    }

    /// The components that are there.
    pub fn components(&self) -> impl Iterator<Item = Component> + '_ {
        self.components.iter().flatten().copied()
    }

    /// The same texel, stored in the sRGB curve or not.
    pub(crate) const fn with_srgb(mut self, is_srgb: bool) -> Self {
        self.is_srgb = is_srgb;
        self
    }
}

const RGBA: [u8; 4] = [0, 1, 2, 3];
const BGRA: [u8; 4] = [2, 1, 0, 3];

const fn texel(bytes: u8, order: [u8; 4], bits: [u8; 4], number: Number) -> Texel {
    let mut parts = [(0, 0); 4];
    let mut part = 0;
    while part < 4 {
        parts[part] = (order[part], bits[part]);
        part += 1;
    }
    Texel::new(bytes, parts, [number; 4])
}

impl Format {
    /// Components of a pixel of the color format; `None` for one that does not exist.
    pub const fn texel(self) -> Option<Texel> {
        use Number::{Float, Sint, Snorm, Uint, Unorm};
        const FOUR: [u8; 4] = [8; 4];
        const THREE: [u8; 4] = [8, 8, 8, 0];
        const TEN: [u8; 4] = [10, 10, 10, 2];
        Some(match self.0 {
            0xc0 => texel(16, RGBA, [32; 4], Float),
            0xc1 => texel(16, RGBA, [32; 4], Sint),
            0xc2 => texel(16, RGBA, [32; 4], Uint),
            0xc3 => texel(16, RGBA, [32, 32, 32, 0], Float),
            0xc4 => texel(16, RGBA, [32, 32, 32, 0], Sint),
            0xc5 => texel(16, RGBA, [32, 32, 32, 0], Uint),
            0xc6 => texel(8, RGBA, [16; 4], Unorm),
            0xc7 => texel(8, RGBA, [16; 4], Snorm),
            0xc8 => texel(8, RGBA, [16; 4], Sint),
            0xc9 => texel(8, RGBA, [16; 4], Uint),
            0xca => texel(8, RGBA, [16; 4], Float),
            0xcb => texel(8, RGBA, [32, 32, 0, 0], Float),
            0xcc => texel(8, RGBA, [32, 32, 0, 0], Sint),
            0xcd => texel(8, RGBA, [32, 32, 0, 0], Uint),
            0xce => texel(8, RGBA, [16, 16, 16, 0], Float),
            0xcf => texel(4, BGRA, FOUR, Unorm),
            0xd0 => texel(4, BGRA, FOUR, Unorm).with_srgb(true),
            0xd1 => texel(4, RGBA, TEN, Unorm),
            0xd2 => texel(4, RGBA, TEN, Uint),
            0xd5 => texel(4, RGBA, FOUR, Unorm),
            0xd6 => texel(4, RGBA, FOUR, Unorm).with_srgb(true),
            0xd7 => texel(4, RGBA, FOUR, Snorm),
            0xd8 => texel(4, RGBA, FOUR, Sint),
            0xd9 => texel(4, RGBA, FOUR, Uint),
            0xda => texel(4, RGBA, [16, 16, 0, 0], Unorm),
            0xdb => texel(4, RGBA, [16, 16, 0, 0], Snorm),
            0xdc => texel(4, RGBA, [16, 16, 0, 0], Sint),
            0xdd => texel(4, RGBA, [16, 16, 0, 0], Uint),
            0xde => texel(4, RGBA, [16, 16, 0, 0], Float),
            0xdf => texel(4, BGRA, TEN, Unorm),
            0xe0 => texel(4, RGBA, [11, 11, 10, 0], Float),
            0xe3 => texel(4, RGBA, [32, 0, 0, 0], Sint),
            0xe4 => texel(4, RGBA, [32, 0, 0, 0], Uint),
            0xe5 => texel(4, RGBA, [32, 0, 0, 0], Float),
            0xe6 | 0xfd | 0xfe => texel(4, BGRA, THREE, Unorm),
            0xe7 => texel(4, BGRA, THREE, Unorm).with_srgb(true),
            0xe8 => texel(2, BGRA, [5, 6, 5, 0], Unorm),
            0xe9 => texel(2, BGRA, [5, 5, 5, 1], Unorm),
            0xea => texel(2, RGBA, [8, 8, 0, 0], Unorm),
            0xeb => texel(2, RGBA, [8, 8, 0, 0], Snorm),
            0xec => texel(2, RGBA, [8, 8, 0, 0], Sint),
            0xed => texel(2, RGBA, [8, 8, 0, 0], Uint),
            0xee => texel(2, RGBA, [16, 0, 0, 0], Unorm),
            0xef => texel(2, RGBA, [16, 0, 0, 0], Snorm),
            0xf0 => texel(2, RGBA, [16, 0, 0, 0], Sint),
            0xf1 => texel(2, RGBA, [16, 0, 0, 0], Uint),
            0xf2 => texel(2, RGBA, [16, 0, 0, 0], Float),
            0xf3 => texel(1, RGBA, [8, 0, 0, 0], Unorm),
            0xf4 => texel(1, RGBA, [8, 0, 0, 0], Snorm),
            0xf5 => texel(1, RGBA, [8, 0, 0, 0], Sint),
            0xf6 => texel(1, RGBA, [8, 0, 0, 0], Uint),
            0xf8 | 0xfb | 0xfc => texel(2, BGRA, [5, 5, 5, 0], Unorm),
            0xf9 => texel(4, RGBA, THREE, Unorm),
            0xfa => texel(4, RGBA, THREE, Unorm).with_srgb(true),
            0xff => texel(4, RGBA, [32, 0, 0, 0], Unorm),
            _ => return self.texel_with_opacity(),
        })
    }

    /// The formats of opacity, alone or with red.
    const fn texel_with_opacity(self) -> Option<Texel> {
        use Number::{Float, Unorm};
        const ALPHA: [u8; 4] = [3, 0, 0, 0];
        const RED_ALPHA: [u8; 4] = [0, 3, 1, 2];
        Some(match self.0 {
            0xf7 => texel(1, ALPHA, [8, 0, 0, 0], Unorm),
            0x40 => texel(2, ALPHA, [16, 0, 0, 0], Unorm),
            0x41 => texel(2, ALPHA, [16, 0, 0, 0], Float),
            0x42 => texel(4, ALPHA, [32, 0, 0, 0], Float),
            0x43 => texel(2, RED_ALPHA, [8, 8, 0, 0], Unorm),
            0x44 => texel(4, RED_ALPHA, [16, 16, 0, 0], Unorm),
            0x45 => texel(4, RED_ALPHA, [16, 16, 0, 0], Float),
            0x46 => texel(8, RED_ALPHA, [32, 32, 0, 0], Float),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texel_of_a_format_has_the_bytes_of_the_format() {
        for code in 0..0x200 {
            let format = Format(code);
            assert_eq!(
                format.texel().map(|texel| u32::from(texel.bytes)),
                format.bytes(),
                "{code:#x}"
            );
        }
    }

    #[test]
    fn components_lie_side_by_side_in_the_texel() {
        for texel in (0..0x100).filter_map(|code| Format(code).texel()) {
            let mut next = 0;
            for component in texel.components() {
                assert_eq!(component.low, next);
                next += component.bits;
            }
            assert!(u32::from(next) <= u32::from(texel.bytes) * 8);
        }
    }

    #[test]
    fn green_of_b5g6r5_is_in_the_middle() {
        let texel = Format(0xe8).texel().unwrap();
        let green = texel.components().find(|component| component.index == 1).unwrap();
        assert_eq!((green.low, green.bits), (5, 6));
    }
}
