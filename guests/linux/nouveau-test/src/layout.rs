//! The block-linear layout, byte by byte: the reference that tiled copies are held against.
//!
//! A surface is cut into blocks, a block into GOBs of 64 bytes by 8 lines. Blocks follow each other in lines of the
//! surface, then lines, then layers of blocks; GOBs in a block by line, then layer (a block is one GOB wide on Fermi);
//! the bytes of a GOB line by line. This is the order of virtual addresses, which is all that a client of the driver
//! sees. Source: envytools `docs/hw/memory/g80-surface.rst`.

/// Bytes of a GOB's line.
pub(crate) const GOB_WIDTH: u32 = 64;
/// Lines of a GOB.
pub(crate) const GOB_HEIGHT: u32 = 8;

/// Size of a block in GOBs, as powers of two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BlockShape {
    /// GOBs above each other.
    pub(crate) height_log2: u32,
    /// GOBs behind each other.
    pub(crate) depth_log2: u32,
}

impl BlockShape {
    /// The shape as methods and GEM objects take it.
    pub(crate) fn mode(self) -> u32 {
        self.height_log2 << 4 | self.depth_log2 << 8
    }

    /// Lines of a block.
    fn lines(self) -> u32 {
        GOB_HEIGHT << self.height_log2
    }

    /// Bytes of a block.
    fn bytes(self) -> u64 {
        u64::from(GOB_WIDTH * GOB_HEIGHT) << (self.height_log2 + self.depth_log2)
    }

    /// Bytes of a surface of `depth` layers of `height` lines of `width` bytes.
    pub(crate) fn surface_bytes(self, width: u32, height: u32, depth: u32) -> u64 {
        let across = u64::from(width.div_ceil(GOB_WIDTH));
        let down = u64::from(height.div_ceil(self.lines()));
        let behind = u64::from(depth.div_ceil(1 << self.depth_log2));
        across * down * behind * self.bytes()
    }

    /// Where byte `x` of line `y` of layer `z` is in a surface of lines of `width` bytes, `height` of them in a layer.
    pub(crate) fn offset(self, [width, height]: [u32; 2], [x, y, z]: [u32; 3]) -> u64 {
        let across = u64::from(width.div_ceil(GOB_WIDTH));
        let down = u64::from(height.div_ceil(self.lines()));
        let block_x = u64::from(x / GOB_WIDTH);
        let block_y = u64::from(y / self.lines());
        let block_z = u64::from(z >> self.depth_log2);
        let block = (block_z * down + block_y) * across + block_x;
        let gob_y = y % self.lines() / GOB_HEIGHT;
        let gob_z = z % (1 << self.depth_log2);
        let gob = (gob_z << self.height_log2) + gob_y;
        block * self.bytes()
            + u64::from(gob * GOB_WIDTH * GOB_HEIGHT)
            + u64::from(offset_in_gob(x % GOB_WIDTH, y % GOB_HEIGHT))
    }
}

/// Byte `x` of line `y` of a GOB.
fn offset_in_gob(x: u32, y: u32) -> u32 {
    y * GOB_WIDTH + x
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn gob_holds_each_byte_once() {
        let all = (0..GOB_HEIGHT).flat_map(|y| (0..GOB_WIDTH).map(move |x| offset_in_gob(x, y)));
        assert_eq!(all.collect::<BTreeSet<_>>(), (0..512).collect());
    }

    #[test]
    fn second_gob_of_a_tall_block_is_below_the_first() {
        let shape = BlockShape {
            height_log2: 1,
            depth_log2: 0,
        };
        assert_eq!(shape.offset([128, 16], [0, 8, 0]), 512);
        assert_eq!(shape.offset([128, 16], [64, 0, 0]), 1024);
        assert_eq!(shape.mode(), 0x10);
    }

    proptest! {
        #[test]
        fn surface_holds_each_byte_once(
            height_log2 in 0u32..4, depth_log2 in 0u32..3, width in 1u32..150, height in 1u32..40, depth in 1u32..5,
        ) {
            let shape = BlockShape { height_log2, depth_log2 };
            let bytes = shape.surface_bytes(width, height, depth);
            let mut seen = BTreeSet::new();
            for z in 0..depth {
                for y in 0..height {
                    for x in 0..width {
                        let at = shape.offset([width, height], [x, y, z]);
                        prop_assert!(at < bytes);
                        prop_assert!(seen.insert(at));
                    }
                }
            }
        }
    }
}
