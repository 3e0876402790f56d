//! Surfaces that shaders load and store, as a launch has them.
//!
//! ```text
//!   x in bytes (SULDB, SUSTB, SULEA) or texels (SUSTP), y, z ─► Surface::place ─► Lookup ─► address in the channel's space
//! ```
//!
//! A surface is one layer of one level. In the extended shape the third coordinate is added to the address in steps of
//! 256 bytes, which is how layers are reached (Mesa, `nv50_ir_lowering_nvc0.cpp`). assumptions: bounds are those of
//! width and height alone; of a pitch surface the width is in bytes; a third coordinate of the shape 3D must be zero, as
//! blocks have no depth here; an access that is not wholly inside is outside.

use fermi_spec::{
    graphics::{SurfaceFormat, SurfaceHeight},
    surface::{Block, BlockLinear, BlockSize},
    texel::Texel,
    twod::Format,
};

use super::outside::VA_MASK;

/// log2 of the steps of the third coordinate of the extended shape.
const LAYER_STEP_LOG2: u32 = 8;

/// How coordinates are given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shape {
    OneD,
    TwoD,
    ThreeD,
    /// Two, and a step in memory.
    Extended,
}

impl Shape {
    /// Decodes its number in the instruction.
    pub(crate) fn from_bits(bits: u32) -> Self {
        match bits {
            0 => Self::OneD,
            1 => Self::TwoD,
            2 => Self::ThreeD,
            _ => Self::Extended,
        }
    }

    /// Number of coordinates.
    pub(crate) fn coordinates(self) -> u8 {
        match self {
            Self::OneD => 1,
            Self::TwoD => 2,
            Self::ThreeD | Self::Extended => 3,
        }
    }
}

/// Treatment of an access outside of the surface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Clamp {
    /// Loads give zero, stores do nothing.
    Zero,
    /// The nearest place inside is taken.
    Edge,
    /// The warp traps.
    Trap,
}

impl Clamp {
    /// Decodes its number in the instruction.
    pub(crate) fn from_bits(bits: u32) -> Self {
        match bits {
            0 => Self::Zero,
            1 => Self::Edge,
            _ => Self::Trap,
        }
    }
}

/// Result of looking up a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lookup {
    /// At this address.
    Inside(u64),
    /// Outside; the nearest place inside is at this address.
    Clamped(u64),
    /// Outside; there is no place inside to take.
    Outside,
}

impl Lookup {
    /// The address that an access goes to.
    pub(crate) fn va(self) -> Option<u64> {
        match self {
            Self::Inside(va) | Self::Clamped(va) => Some(va),
            Self::Outside => None,
        }
    }
}

/// A surface that is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Bound {
    address: u64,
    width_bytes: u64,
    lines: u64,
    /// Blocks, or pitch.
    block: Option<Block>,
    texel: Option<Texel>,
    texel_bytes: u64,
}

/// A slot for a surface.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Surface {
    bound: Option<Bound>,
}

impl Surface {
    /// From the operands of its methods. One whose format is not that of a color is not there: depth surfaces are not
    /// modelled.
    pub(crate) fn new(
        address: u64,
        width: u32,
        height: SurfaceHeight,
        format: SurfaceFormat,
        block: BlockSize,
    ) -> Self {
        let color = Format(format.color().into());
        let Some(texel) = color.texel().filter(|_| !format.is_zeta()) else {
            return Self::default();
        };
        let texel_bytes = u64::from(texel.bytes);
        let unit = if height.is_pitch() { 1 } else { texel_bytes };
        Self {
            bound: Some(Bound {
                address,
                width_bytes: u64::from(width) * unit,
                lines: height.lines().into(),
                block: (!height.is_pitch()).then(|| block.with_depth(0).block()),
                texel: Some(texel),
                texel_bytes,
            }),
        }
    }

    /// Layout of its texels.
    pub(crate) fn texel(&self) -> Option<Texel> {
        self.bound.and_then(|bound| bound.texel)
    }

    /// Looks up `bytes` bytes from byte `x` of a line on. Every place is outside in a slot without a surface.
    pub(crate) fn place(&self, at: [u32; 3], shape: Shape, bytes: u32, clamps: bool) -> Lookup {
        match &self.bound {
            Some(bound) => bound.place(at.map(u64::from), shape, bytes.into(), clamps),
            None => Lookup::Outside,
        }
    }

    /// Byte of a line at which texel `x` begins.
    pub(crate) fn byte_of(&self, x: u32) -> u32 {
        let bytes = self.bound.map_or(1, |bound| bound.texel_bytes);
        u32::try_from(u64::from(x) * bytes).unwrap_or(u32::MAX)
    }
}

impl Bound {
    fn place(&self, [mut x, mut y, z]: [u64; 3], shape: Shape, bytes: u64, clamps: bool) -> Lookup {
        if shape == Shape::OneD {
            y = 0;
        }
        let is_empty = self.width_bytes < bytes || self.lines == 0;
        let is_inside = !is_empty
            && x.saturating_add(bytes) <= self.width_bytes
            && y < self.lines
            && (shape != Shape::ThreeD || z == 0);
        if !is_inside && (is_empty || !clamps) {
            return Lookup::Outside;
        }
        // The last whole access of a line, at a multiple of its size.
        x = x.min((self.width_bytes - bytes) / bytes * bytes);
        y = y.min(self.lines - 1);
        let inside = match self.block {
            None => x + y * self.width_bytes,
            Some(block) => BlockLinear::new(block, [self.width_bytes, self.lines, 1]).offset([x, y, 0]),
        };
        let step = match shape {
            Shape::Extended => z << LAYER_STEP_LOG2,
            _ => 0,
        };
        let va = self.address.wrapping_add(inside).wrapping_add(step) & VA_MASK;
        if is_inside {
            Lookup::Inside(va)
        } else {
            Lookup::Clamped(va)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RGBA8: u8 = 0xd5;
    const R32_UINT: u8 = 0xe4;

    fn surface(width: u32, lines: u32, is_pitch: bool, color: u8) -> Surface {
        Surface::new(
            0x1_0000,
            width,
            SurfaceHeight::new().with_lines(lines).with_is_pitch(is_pitch),
            SurfaceFormat::new().with_color(color),
            BlockSize::from_bits(0x010),
        )
    }

    #[test]
    fn place_in_blocks_is_where_the_blocks_put_it() {
        let surface = surface(32, 32, false, RGBA8);
        let at = |x, y| surface.place([x, y, 0], Shape::TwoD, 4, false);
        assert_eq!(at(4, 1), Lookup::Inside(0x1_0044));
        assert_eq!(at(64, 0), Lookup::Inside(0x1_0400));
        assert_eq!(at(0, 8), Lookup::Inside(0x1_0200));
    }

    #[test]
    fn place_outside_is_nowhere_or_at_the_edge() {
        let surface = surface(32, 16, false, RGBA8);
        for at in [[128, 0, 0], [0, 16, 0], [126, 0, 0]] {
            assert_eq!(surface.place(at, Shape::TwoD, 4, false), Lookup::Outside);
        }
        let clamped = surface.place([4000, 99, 0], Shape::TwoD, 4, true);
        let Lookup::Inside(corner) = surface.place([124, 15, 0], Shape::TwoD, 4, false) else {
            panic!("the corner is inside");
        };
        assert_eq!(clamped, Lookup::Clamped(corner));
    }

    #[test]
    fn third_coordinate_of_the_extended_shape_steps_by_256_bytes() {
        let surface = surface(32, 16, false, RGBA8);
        let at = |z, shape| surface.place([0, 0, z], shape, 4, false);
        assert_eq!(at(3, Shape::Extended), Lookup::Inside(0x1_0300));
        assert_eq!(at(3, Shape::ThreeD), Lookup::Outside);
        assert_eq!(at(3, Shape::TwoD), Lookup::Inside(0x1_0000));
    }

    #[test]
    fn width_of_a_pitch_surface_is_in_bytes() {
        let surface = surface(256, 1, true, R32_UINT);
        let at = |x| surface.place([x, 0, 0], Shape::OneD, 4, false);
        assert_eq!((at(252), at(256)), (Lookup::Inside(0x1_00fc), Lookup::Outside));
    }

    #[test]
    fn nothing_is_inside_without_a_surface() {
        for surface in [
            Surface::default(),
            surface(32, 32, false, 0),
            surface(0, 0, false, RGBA8),
        ] {
            assert_eq!(surface.place([0; 3], Shape::TwoD, 4, true), Lookup::Outside);
        }
    }
}
