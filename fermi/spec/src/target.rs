//! Targets of 3D (class 9097): where colors and depths go, and how they are cleared.
//!
//! Sources: envytools `rnndb/graph/gf100_3d.xml` (RT, ZETA, CLEAR_BUFFERS, CLEAR_FLAGS) and `rnndb/g80_defs.xml`
//! (formats, `g80_msaa_mode`, `g80_cond_mode`); NVIDIA's `cl9097.h`. Color formats are [`crate::twod::Format`].

use crate::{
    surface::BlockSize,
    texel::{Number, Texel},
};

/// Methods of class 9097 about targets.
pub mod method {
    /// First method of color target 0, see [`super::color`].
    pub const COLORS: u16 = 0x800;
    /// Bytes of methods from one color target to the next.
    pub const COLOR_STEP: u16 = 0x40;
    /// Viewport 0 as a rectangle: x and width, see [`super::Span`]; those of y follow.
    pub const VIEWPORT: u16 = 0xc00;
    /// Clear color: a number for each of red, green, blue and opacity, as the format reads it.
    pub const CLEAR_COLOR: u16 = 0xd80;
    /// Clear depth, a float.
    pub const CLEAR_DEPTH: u16 = 0xd90;
    /// Clear stencil, \[7:0\].
    pub const CLEAR_STENCIL: u16 = 0xda0;
    /// Whether scissor 0 cuts.
    pub const SCISSOR_ENABLE: u16 = 0xe00;
    /// Scissor 0: first and last x, see [`super::Edges`]; those of y follow.
    pub const SCISSOR: u16 = 0xe04;
    /// Depth target, address bits 39:32; the low word follows.
    pub const DEPTH_HIGH: u16 = 0xfe0;
    /// Its format, see [`super::DepthFormat`].
    pub const DEPTH_FORMAT: u16 = 0xfe8;
    /// Its block size.
    pub const DEPTH_BLOCK_SIZE: u16 = 0xfec;
    /// Words from one of its layers to the next.
    pub const DEPTH_LAYER_STRIDE: u16 = 0xff0;
    /// The rectangle outside of which nothing is drawn or cleared: x and width, see [`super::Span`]; those of y follow.
    pub const SCREEN_SCISSOR: u16 = 0xff4;
    /// What cuts a clear besides, see [`super::ClearFlags`].
    pub const CLEAR_FLAGS: u16 = 0x10f8;
    /// Samples of a line of the depth target; lines and [`super::Layers`] follow.
    pub const DEPTH_WIDTH: u16 = 0x1228;
    /// Bits of a stencil that front faces write, \[7:0\].
    pub const STENCIL_MASK: u16 = 0x139c;
    /// Whether there is a depth target.
    pub const DEPTH_ENABLE: u16 = 0x1538;
    /// Address of the condition for drawing, bits 39:32; the low word follows.
    pub const CONDITION_HIGH: u16 = 0x1550;
    /// When anything is drawn, see [`crate::methods::RenderEnable`].
    pub const CONDITION: u16 = 0x1558;
    /// How many samples a pixel has, see [`super::samples_log2`].
    pub const SAMPLES: u16 = 0x15d0;
    /// First layer of the depth target.
    pub const DEPTH_BASE_LAYER: u16 = 0x179c;
    /// Whether up to eight rectangles cut what is drawn and cleared.
    pub const CLIP_RECTANGLES: u16 = 0x194c;
    /// Whether numbers of windows cut what is drawn and cleared.
    pub const CLIP_IDS: u16 = 0x197c;
    /// Clears targets, see [`super::Clear`].
    pub const CLEAR: u16 = 0x19d0;
}

/// Methods that begin a draw.
pub mod draw {
    /// A draw of several methods, up to an end.
    pub const BEGIN: u16 = 0x1618;
    /// Vertices in order, in one method: the first instance; the next ones follow.
    pub const ARRAY: u16 = 0x1214;
    /// The same for further instances.
    pub const ARRAY_NEXT: u16 = 0x1218;
    /// Vertices by an index of 32, 16 or 8 bits, for a first instance and for further ones: six methods.
    pub const INDEXED: u16 = 0x17e4;
    /// Last of the six.
    pub const INDEXED_LAST: u16 = 0x17f8;
}

/// Methods of a color target, from its first one on.
pub mod color {
    /// Color targets there are.
    pub const COUNT: u8 = 8;
    /// Address bits 39:32; the low word follows.
    pub const ADDRESS_HIGH: u16 = 0x00;
    /// Samples of a line; of a linear target bytes from one line to the next.
    pub const WIDTH: u16 = 0x08;
    /// Number of lines.
    pub const HEIGHT: u16 = 0x0c;
    /// Format, see [`crate::twod::Format`]; 0: no target.
    pub const FORMAT: u16 = 0x10;
    /// Layout, see [`super::Layout`].
    pub const LAYOUT: u16 = 0x14;
    /// Layers, see [`super::Layers`].
    pub const LAYERS: u16 = 0x18;
    /// Words from one layer to the next.
    pub const LAYER_STRIDE: u16 = 0x1c;
    /// Number of the layer that CLEAR and drawing count from.
    pub const BASE_LAYER: u16 = 0x20;
}

/// Layout of a color target.
#[bitfield_struct::bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Layout {
    /// Block size, see [`Self::blocks`].
    #[bits(12)]
    block: u16,
    /// Pitch, not block-linear.
    pub is_linear: bool,
    #[bits(3)]
    __: u8,
    /// Layers are slices of one volume: the third coordinate within its blocks.
    pub is_volume: bool,
    #[bits(15)]
    __: u16,
}

impl Layout {
    /// A block-linear layout.
    pub fn of_blocks(size: BlockSize) -> Self {
        Self::new().with_block(size.into_bits() as u16 & 0xfff)
    }

    /// The block size.
    pub fn blocks(self) -> BlockSize {
        BlockSize::from_bits(self.block().into())
    }
}

/// Layers of a target.
#[bitfield_struct::bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Layers {
    /// Number of layers, the base layer's number included.
    pub count: u16,
    /// A volume, or of a depth target a plane texture: what it changes is not known.
    pub is_volume: bool,
    #[bits(15)]
    __: u16,
}

/// A first coordinate and a length.
#[bitfield_struct::bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Span {
    /// Coordinate of the first pixel.
    pub first: u16,
    /// Number of pixels.
    pub count: u16,
}

/// A first coordinate and the one behind the last.
#[bitfield_struct::bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Edges {
    /// Coordinate of the first pixel.
    pub first: u16,
    /// The pixel behind the last one.
    pub end: u16,
}

/// Operand of CLEAR (CLEAR_BUFFERS).
#[bitfield_struct::bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Clear {
    /// Clears the depth of the depth target.
    pub depth: bool,
    /// Clears its stencil.
    pub stencil: bool,
    /// Components of the color target, red lowest.
    #[bits(4)]
    pub components: u8,
    /// Number of the color target.
    #[bits(4)]
    pub target: u8,
    /// Layer, counted from the base layer.
    #[bits(11)]
    pub layer: u16,
    #[bits(11)]
    __: u16,
}

/// What cuts a clear besides the screen scissor.
#[bitfield_struct::bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct ClearFlags {
    /// The mask of front faces' stencils.
    pub stencil_mask: bool,
    #[bits(7)]
    __: u8,
    /// Scissor 0, if it is enabled.
    pub scissor: bool,
    #[bits(3)]
    __: u8,
    /// The rectangle of viewport 0.
    pub viewport: bool,
    #[bits(19)]
    __: u32,
}

/// A depth format, by its number in 3D methods.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DepthFormat(pub u32);

impl DepthFormat {
    /// Index of the depth among the components of [`Self::texel`].
    pub const DEPTH: u8 = 0;
    /// Index of the stencil among them.
    pub const STENCIL: u8 = 1;

    /// Components of a sample; `None` for a number without a format, and for formats with counts of coverage.
    pub const fn texel(self) -> Option<Texel> {
        const NONE: (u8, u8) = (0, 0);
        const fn depth(bits: u8) -> (u8, u8) {
            (DepthFormat::DEPTH, bits)
        }
        const STENCIL: (u8, u8) = (DepthFormat::STENCIL, 8);
        let (bytes, parts, number) = match self.0 {
            0x0a => (4, [depth(32), NONE, NONE, NONE], Number::Float),
            0x13 => (2, [depth(16), NONE, NONE, NONE], Number::Unorm),
            0x14 => (4, [STENCIL, depth(24), NONE, NONE], Number::Unorm),
            0x15 => (4, [depth(24), NONE, NONE, NONE], Number::Unorm),
            0x16 => (4, [depth(24), STENCIL, NONE, NONE], Number::Unorm),
            0x19 => (8, [depth(32), STENCIL, NONE, NONE], Number::Float),
            _ => return None,
        };
        let numbers = [number, Number::Uint, Number::Uint, Number::Uint];
        Some(Texel::new(bytes, parts, numbers))
    }
}

/// Logarithms of the samples of a pixel in x and y, by the operand of SAMPLES; `None` for a mode without a name and for
/// those that count coverage besides.
pub const fn samples_log2(mode: u32) -> Option<[u32; 2]> {
    match mode {
        0 => Some([0, 0]),
        1 | 5 => Some([1, 0]),
        2 => Some([1, 1]),
        3 | 4 => Some([2, 1]),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What Mesa sends to clear all of a color target, and depth and stencil of a layer.
    #[test]
    fn operands_of_mesa_decode() {
        let color = Clear::from_bits(0x3c | 2 << 6);
        assert_eq!((color.components(), color.target(), color.layer()), (15, 2, 0));
        let both = Clear::from_bits(3 | 5 << 10);
        assert!(both.depth() && both.stencil() && both.components() == 0 && both.layer() == 5);
        let layout = Layout::from_bits(0x1_0230);
        assert!(layout.is_volume() && !layout.is_linear());
        assert_eq!(layout.blocks().height(), 3);
        assert_eq!(layout.blocks().depth(), 2);
        assert!(Layout::from_bits(1 << 12).is_linear());
    }

    #[test]
    fn stencil_is_below_the_depth_or_above() {
        let places = |code| {
            let texel = DepthFormat(code).texel().unwrap();
            let place = |index| texel.components().find(|part| part.index == index).unwrap();
            let (depth, stencil) = (place(DepthFormat::DEPTH), place(DepthFormat::STENCIL));
            (texel.bytes, depth.low, depth.bits, stencil.low, stencil.bits)
        };
        assert_eq!(places(0x14), (4, 8, 24, 0, 8));
        assert_eq!(places(0x16), (4, 0, 24, 24, 8));
        assert_eq!(places(0x19), (8, 0, 32, 32, 8));
        assert_eq!(DepthFormat(0x18).texel(), None);
    }
}
