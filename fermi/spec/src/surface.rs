//! Where the bytes of a block-linear surface lie.
//!
//! A surface is `width` bytes × `height` lines × `depth` layers. It is cut into *GOBs* ("groups of bytes") of 64 bytes
//! × 8 lines, and these into *blocks* of 2ⁿ GOBs in each direction. Within a GOB the lines follow each other; GOBs
//! follow each other in x, then y, then z within their block, and so do blocks within the surface, whose edges are
//! rounded up to blocks. The engines count in bytes: a texel of 4 bytes is 4 bytes of width.
//!
//! ```text
//!   block 0                   block 1                          address of (x, y, z) = base
//!   ┌───────┐ GOB 0 (512 B)   ┌───────┐    next row of           + block index × bytes of a block
//!   │ line 0│ 64 bytes        │       │ …  blocks follows        + GOB index in the block × bytes of a GOB
//!   │ …     │                 │       │    the whole row         + line in the GOB × 64 + byte in the line
//!   ├───────┤ GOB 1           ├───────┤
//!   │       │                 │       │
//!   └───────┘                 └───────┘
//! ```
//!
//! This is the order of *virtual* addresses, the same for every unit that reaches the surface through the page
//! tables (envytools `docs/hw/memory/g80-surface.rst`, "Blocklinear surfaces"; the formula in nouveau's
//! `ce/fuc/com.fuc` agrees). What a page's kind does further to the bytes of a GOB in memory is not visible as long
//! as all mappings of a page have the same kind; see `docs/unverified.md`.
//!
//! Everything here is total: what no memory can hold gives an address beyond any memory, never an overflow.

/// Largest logarithm that a field of a block size can hold.
const LOG2_MAX: u32 = 15;

/// The unit that blocks are made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gob {
    width_log2: u32,
    lines_log2: u32,
}

impl Gob {
    /// GF100's: 64 bytes × 8 lines.
    pub const FERMI: Self = Self {
        width_log2: 6,
        lines_log2: 3,
    };

    /// The GOB of a copy engine's surface: a quarter as wide (16 bytes) or as high as on G80 (4 lines) if asked for
    /// (`cl90b5.h`, WIDTH_QUARTER_GOB and GOB_HEIGHT_TESLA_4).
    pub const fn new(quarter: bool, tesla: bool) -> Self {
        Self {
            width_log2: if quarter { 4 } else { 6 },
            lines_log2: if tesla { 2 } else { 3 },
        }
    }

    /// Bytes of one line.
    #[inline]
    pub const fn width(self) -> u64 {
        1 << self.width_log2
    }

    /// Lines of a GOB: 8, or 4 on G80.
    pub const fn lines(self) -> u64 {
        1 << self.lines_log2
    }
}

/// Operand of the methods that set a block size, in all classes that have one.
#[bitfield_struct::bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct BlockSize {
    /// log2 of the GOBs in x; `Self::QUARTER_GOB` is one GOB of 16 bytes.
    #[bits(4)]
    pub width: u8,
    /// log2 of the GOBs in y.
    #[bits(4)]
    pub height: u8,
    /// log2 of the GOBs in z.
    #[bits(4)]
    pub depth: u8,
    /// Copy engine with NVIDIA's microcode: lines of a GOB, see [`Self::GOB_TESLA`] and `Self::GOB_FERMI`.
    #[bits(4)]
    pub gob_height: u8,
    __: u16,
}

impl BlockSize {
    /// Width of a block that is a quarter of a GOB wide.
    pub(crate) const QUARTER_GOB: u8 = 0xe;
    /// GOBs of 4 lines.
    pub const GOB_TESLA: u8 = 0;
    /// GOBs of 8 lines.
    pub(crate) const GOB_FERMI: u8 = 1;
    /// Largest height or depth that has a name: 32 GOBs.
    pub const NAMED_MAX: u8 = 5;

    /// The block of GOBs of GF100 that M2MF, 2D and 3D take this for: all three fields are logarithms.
    pub const fn block(self) -> Block {
        Block {
            gob: Gob::FERMI,
            width_log2: self.width() as u32,
            height_log2: self.height() as u32,
            depth_log2: self.depth() as u32,
        }
    }

    /// The block of a copy engine: one GOB wide, or a quarter of one.
    pub const fn copy_block(self, tesla: bool) -> Block {
        Block {
            gob: Gob::new(self.width() == Self::QUARTER_GOB, tesla),
            width_log2: 0,
            height_log2: self.height() as u32,
            depth_log2: self.depth() as u32,
        }
    }
}

/// A block: GOBs in each direction, as powers of two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block {
    gob: Gob,
    width_log2: u32,
    height_log2: u32,
    depth_log2: u32,
}

impl Block {
    /// A block of `gob`s; the logarithms are those of the GOBs in x, y and z, at most 15 each (more is taken as 15).
    pub const fn new(gob: Gob, log2: [u32; 3]) -> Self {
        const fn at_most(log2: u32) -> u32 {
            if log2 > LOG2_MAX { LOG2_MAX } else { log2 }
        }
        Self {
            gob,
            width_log2: at_most(log2[0]),
            height_log2: at_most(log2[1]),
            depth_log2: at_most(log2[2]),
        }
    }

    /// Logarithms of the GOBs in x, y and z.
    pub const fn log2(self) -> [u32; 3] {
        [self.width_log2, self.height_log2, self.depth_log2]
    }

    #[inline]
    const fn x_log2(self) -> u32 {
        self.gob.width_log2 + self.width_log2
    }

    #[inline]
    const fn y_log2(self) -> u32 {
        self.gob.lines_log2 + self.height_log2
    }

    /// log2 of its bytes: at most 54.
    #[inline]
    const fn bytes_log2(self) -> u32 {
        self.x_log2() + self.y_log2() + self.depth_log2
    }

    /// Bytes of one whole block.
    #[inline]
    pub const fn bytes(self) -> u64 {
        1 << self.bytes_log2()
    }
}

/// A block-linear surface, with sizes in bytes, lines and layers. A size of zero makes rows of blocks
/// overlap, as in the hardware's arithmetic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockLinear {
    block: Block,
    /// Blocks of one row.
    row_blocks: u64,
    /// Blocks of one layer of blocks.
    layer_blocks: u64,
    /// Bytes of the whole.
    bytes: u64,
}

impl BlockLinear {
    /// A surface of `width` bytes by `height` lines by `depth` layers.
    pub const fn new(block: Block, [width, height, depth]: [u64; 3]) -> Self {
        let row_blocks = width.div_ceil(1 << block.x_log2());
        let layer_blocks = row_blocks.saturating_mul(height.div_ceil(1 << block.y_log2()));
        let blocks = layer_blocks.saturating_mul(depth.div_ceil(1 << block.depth_log2));
        Self {
            block,
            row_blocks,
            layer_blocks,
            bytes: blocks.saturating_mul(block.bytes()),
        }
    }

    /// Bytes of memory that it takes, unused edges included; `u64::MAX` for what is larger.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where byte `x` of line `y` of layer `z` lies, from the surface's first byte on; `u64::MAX` when that is
    /// beyond 64 bits. What lies beyond an edge of the surface is where the formula puts it, which in x and y is in
    /// a block that belongs to other bytes.
    // Inlined across crates by hand: a copy asks for each line of each GOB.
    #[inline]
    pub const fn offset(&self, [x, y, z]: [u64; 3]) -> u64 {
        let block = self.block;
        let (in_x, in_y, in_z) = (
            x & mask(block.x_log2()),
            y & mask(block.y_log2()),
            z & mask(block.depth_log2),
        );
        let gob = block.gob;
        let gob_bytes_log2 = gob.width_log2 + gob.lines_log2;
        // All of it is less than a block: no more than 54 bits.
        let gobs = in_x >> gob.width_log2
            | in_y >> gob.lines_log2 << block.width_log2
            | in_z << block.height_log2 << block.width_log2;
        let inside = gobs << gob_bytes_log2
            | (in_y & mask(gob.lines_log2)) << gob.width_log2
            | in_x & mask(gob.width_log2);
        let blocks = (x >> block.x_log2())
            .saturating_add((y >> block.y_log2()).saturating_mul(self.row_blocks))
            .saturating_add((z >> block.depth_log2).saturating_mul(self.layer_blocks));
        blocks.saturating_mul(block.bytes()).saturating_add(inside)
    }

    /// How many bytes of a line follow each other in memory from byte `x` on: to the edge of the GOB.
    #[inline]
    pub const fn run(&self, x: u64) -> u64 {
        let width = self.block.gob.width();
        width - (x & (width - 1))
    }
}

#[inline]
const fn mask(log2: u32) -> u64 {
    (1 << log2) - 1
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use proptest::prelude::*;
    use std::{collections::BTreeMap, vec::Vec};

    /// Addresses by laying the surface out from its first byte to its last, with nothing but counting.
    fn laid_out(gob: (u64, u64), gobs: [u64; 3], size: [u64; 3]) -> BTreeMap<[u64; 3], u64> {
        let block = [gob.0 * gobs[0], gob.1 * gobs[1], gobs[2]];
        let blocks = [0, 1, 2].map(|i: usize| size[i].div_ceil(block[i]));
        let mut addresses = BTreeMap::new();
        let mut next = 0;
        for [bz, by, bx] in each([blocks[2], blocks[1], blocks[0]]) {
            for [gz, gy, gx] in each([gobs[2], gobs[1], gobs[0]]) {
                for [_, line, byte] in each([1, gob.1, gob.0]) {
                    let x = bx * block[0] + gx * gob.0 + byte;
                    let y = by * block[1] + gy * gob.1 + line;
                    addresses.insert([x, y, bz * block[2] + gz], next);
                    next += 1;
                }
            }
        }
        addresses
    }

    /// All triples below `ends`, the last one running fastest.
    fn each(ends: [u64; 3]) -> Vec<[u64; 3]> {
        let mut all = Vec::new();
        for a in 0..ends[0] {
            for b in 0..ends[1] {
                for c in 0..ends[2] {
                    all.push([a, b, c]);
                }
            }
        }
        all
    }

    #[test]
    fn example_of_the_documentation_has_its_addresses() {
        // g80-surface.rst: 13 × 17 × 3 texels of 16 bytes, blocks of 2 × 2 × 2 GOBs of G80.
        let block = Block::new(Gob::new(false, true), [1, 1, 1]);
        let surface = BlockLinear::new(block, [13 * 16, 17, 3]);
        let at = |x: u64, y, z| surface.offset([x * 16, y, z]);
        assert_eq!(surface.bytes(), 0x6000);
        assert_eq!([at(12, 0, 0), at(3, 3, 0), at(0, 4, 0)], [0x900, 0xf0, 0x200]);
        assert_eq!(
            [at(8, 7, 1), at(0, 16, 0), at(12, 16, 2)],
            [0xec0, 0x2000, 0x5900]
        );
    }

    #[test]
    fn next_gob_in_y_follows_in_the_block() {
        let surface = BlockLinear::new(BlockSize::from_bits(0x010).block(), [128, 32, 1]);
        assert_eq!(surface.offset([0, 8, 0]), 512);
        assert_eq!(surface.offset([64, 0, 0]), 1024);
        assert_eq!(surface.offset([0, 16, 0]), 2048);
    }

    #[test]
    fn quarter_gob_has_lines_of_16_bytes() {
        let surface = BlockLinear::new(BlockSize::from_bits(0x00e).copy_block(false), [64, 8, 1]);
        assert_eq!([surface.offset([0, 1, 0]), surface.offset([16, 0, 0])], [16, 128]);
        assert_eq!(surface.run(5), 11);
    }

    #[test]
    fn huge_surface_ends_at_the_largest_address() {
        let block = Block::new(Gob::FERMI, [15, 15, 15]);
        let surface = BlockLinear::new(block, [u64::MAX; 3]);
        assert_eq!(surface.bytes(), u64::MAX);
        assert_eq!(surface.offset([u64::MAX; 3]), u64::MAX);
    }

    fn gob() -> impl Strategy<Value = (bool, bool)> {
        prop_oneof![4 => Just((false, false)), 1 => any::<(bool, bool)>()]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn each_byte_is_where_counting_puts_it(
            (quarter, tesla) in gob(),
            log2 in [0u32..2, 0u32..3, 0u32..3],
            size in [1u64..200, 1u64..40, 1u64..5],
        ) {
            let gob = Gob::new(quarter, tesla);
            let surface = BlockLinear::new(Block::new(gob, log2), size);
            let slow = laid_out((gob.width(), gob.lines()), log2.map(|log2| 1 << log2), size);
            prop_assert_eq!(surface.bytes(), slow.len() as u64);
            for (position, address) in slow {
                prop_assert_eq!(surface.offset(position), address);
            }
        }

        #[test]
        fn bytes_of_a_run_follow_each_other(
            (quarter, tesla) in gob(),
            log2 in [0u32..16, 0u32..6, 0u32..6],
            size in [0u64..1 << 20, 0u64..1 << 16, 0u64..1 << 11],
            [x, y, z] in [0u64..1 << 20, 0u64..1 << 16, 0u64..1 << 11],
        ) {
            let surface = BlockLinear::new(Block::new(Gob::new(quarter, tesla), log2), size);
            let first = surface.offset([x, y, z]);
            let last = surface.run(x) - 1;
            prop_assert_eq!(surface.offset([x + last, y, z]), first + last);
        }
    }
}
