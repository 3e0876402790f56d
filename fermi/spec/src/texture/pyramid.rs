//! Where the levels and layers of a block-linear texture lie.
//!
//! Levels follow each other, from the largest down; each side is half of the level's before it, rounded down, and 1 at
//! least. Blocks of a level are those of the header, cut to the power of two of GOBs that holds the level's lines and
//! depth. The layers of an array and the squares of a cube each have all their levels, and begin at multiples of a block
//! of level 0 (Mesa: `nvc0_miptree.c`; that the unit cuts blocks so follows from Mesa setting those of level 0 alone).

use super::LEVELS_MAX;
use crate::surface::{Block, BlockLinear, Gob};

/// Places of all levels and layers of one texture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pyramid {
    texel_bytes: u32,
    size: [u32; 3],
    block_log2: [u32; 3],
    /// Bytes from one layer to the next.
    layer_bytes: u64,
    offsets: [u64; LEVELS_MAX as usize],
}

/// One level of one layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Level {
    /// Texels in x, y, z.
    pub size: [u32; 3],
    /// Bytes from the beginning of the layer to the level.
    pub offset: u64,
    /// Where the level's bytes lie, from `offset` on.
    pub surface: BlockLinear,
}

impl Pyramid {
    /// A texture whose texels have `texel_bytes` bytes. `size` is that of level 0 of a layer, at least 1 each;
    /// `levels` is 1 to [`LEVELS_MAX`].
    pub fn new(texel_bytes: u32, size: [u32; 3], block: Block, levels: u32) -> Self {
        let mut pyramid = Self {
            texel_bytes,
            size: size.map(|side| side.max(1)),
            block_log2: block.log2(),
            layer_bytes: 0,
            offsets: [0; LEVELS_MAX as usize],
        };
        let mut bytes = 0_u64;
        for number in 0..levels.clamp(1, LEVELS_MAX) {
            pyramid.offsets[number as usize] = bytes;
            bytes = bytes.saturating_add(pyramid.level(number).surface.bytes());
        }
        let block_bytes = pyramid.block_of(pyramid.size).bytes();
        pyramid.layer_bytes = bytes.div_ceil(block_bytes).saturating_mul(block_bytes);
        pyramid
    }

    /// Bytes from one layer to the next.
    pub fn layer_bytes(&self) -> u64 {
        self.layer_bytes
    }

    /// Place of a level; a number beyond the last level with memory gives the last one's place.
    pub fn level(&self, number: u32) -> Level {
        let number = number.min(LEVELS_MAX - 1);
        let size = self.size.map(|side| (side >> number).max(1));
        let width = u64::from(size[0]) * u64::from(self.texel_bytes);
        let surface = BlockLinear::new(self.block_of(size), [width, size[1].into(), size[2].into()]);
        Level {
            size,
            offset: self.offsets[number as usize],
            surface,
        }
    }

    fn block_of(&self, size: [u32; 3]) -> Block {
        let gobs = size[1].div_ceil(Gob::FERMI.lines() as u32);
        // Logarithm of the least power of two that is not below `count`.
        let holding = |count: u32| u32::BITS - count.saturating_sub(1).leading_zeros();
        let [width, height, depth] = self.block_log2;
        Block::new(
            Gob::FERMI,
            [width, height.min(holding(gobs)), depth.min(holding(size[2]))],
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn block(height: u32, depth: u32) -> Block {
        Block::new(Gob::FERMI, [0, height, depth])
    }

    #[test]
    fn blocks_shrink_with_their_levels() {
        let pyramid = Pyramid::new(4, [256, 128, 1], block(4, 0), 8);
        let sizes = [0, 1, 4, 5].map(|level| pyramid.level(level).surface.bytes());
        // 16, 8, 1 and 1 GOBs high; 64 bytes wide at least.
        assert_eq!(sizes, [0x2_0000, 0x8000, 0x200, 0x200]);
        assert_eq!(pyramid.level(2).offset, 0x2_8000);
    }

    #[test]
    fn layers_begin_at_blocks_of_the_first_level() {
        let pyramid = Pyramid::new(4, [50, 70, 1], block(4, 0), 7);
        assert_eq!(pyramid.layer_bytes() % (512 * 16), 0);
        let last = pyramid.level(6);
        assert!(last.offset + last.surface.bytes() <= pyramid.layer_bytes());
    }

    #[test]
    fn depth_of_blocks_shrinks_too() {
        let pyramid = Pyramid::new(1, [64, 8, 8], block(0, 3), 2);
        assert_eq!(pyramid.level(0).surface.offset([0, 0, 1]), 512);
        assert_eq!(pyramid.level(1).surface.bytes(), 4 * 512);
    }

    proptest! {
        #[test]
        fn levels_lie_behind_each_other(
            size in prop::array::uniform3(1u32..300),
            log2 in [0u32..6, 0u32..6],
            bytes in 1u32..=16,
            levels in 1u32..=16,
        ) {
            let pyramid = Pyramid::new(bytes, size, block(log2[0], log2[1]), levels);
            let mut next = 0;
            for number in 0..levels {
                let level = pyramid.level(number);
                prop_assert_eq!(level.offset, next);
                next += level.surface.bytes();
                let [x, y, z] = level.size.map(|side| u64::from(side - 1));
                let last = level.surface.offset([x * u64::from(bytes) + u64::from(bytes) - 1, y, z]);
                prop_assert!(last < level.surface.bytes());
            }
            prop_assert!(pyramid.layer_bytes() >= next);
        }

        #[test]
        fn any_size_has_levels_without_overflow(
            size in any::<[u32; 3]>(), block_log2 in prop::array::uniform3(0u32..8), levels in any::<u32>(), number in any::<u32>(),
        ) {
            let pyramid = Pyramid::new(16, size, Block::new(Gob::FERMI, block_log2), levels);
            prop_assert!(pyramid.level(number).size.iter().all(|side| *side > 0));
        }
    }
}
