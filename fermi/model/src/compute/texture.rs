//! Texture units: the textures and samplers of a launch, texels by place and samples by filters.
//!
//! ```text
//!   slots of the channel ─► pools in memory ─► Textures of the launch
//!   TLD: place ───────────────────────────────────────┐
//!   TEX, TLD4, TXD: coordinates ─► level ─► places ────┴► bits of a texel ─► components ─► filter ─► swizzle ─► result
//! ```
//!
//! assumptions: headers and samplers are as they were at the launch; TLD outside of a texture reads zeros, before
//! the swizzle; an access by way of a slot that has no valid entry traps; weights of a filter have 8 bits. Not
//! modelled: textures compressed in blocks or made for video (their texels are zeros), several samples in a texel,
//! anisotropic filters (linear), filters across the edges of a cube.

mod coordinates;
mod sample;
pub(crate) mod texel;

use fermi_spec::{
    surface::BlockLinear,
    texel::{TEXEL_BYTES_MAX, Texel},
    texture::{Header, LEVELS_MAX, Pyramid, Sampler, Shape, Source},
};

use super::outside::{Outside, VA_MASK};
use crate::mmu::Refusal;

pub(crate) use sample::{Gather, Lookup};

/// Memory as texels are read from it.
pub(crate) struct Reader<'a> {
    pub(crate) outside: &'a mut dyn Outside,
}

impl Reader<'_> {
    fn read(&mut self, va: u64, data: &mut [u8]) -> Result<(), Refusal> {
        self.outside.read(va & VA_MASK, data)
    }
}

/// Slots for textures; instructions could name twice as many, the vendor's guide says 128.
pub(crate) const TEXTURE_SLOTS: usize = 128;
/// Slots for samplers that instructions can name.
pub(crate) const SAMPLER_SLOTS: usize = 32;

/// Content of a slot.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) enum Slot<T> {
    /// Nothing, or an entry that is not in the pool or not valid.
    #[default]
    Empty,
    /// An entry that the MMU does not let us read.
    Refused(Refusal),
    /// A valid entry, decoded.
    Ready(T),
}

impl<T> Slot<T> {
    /// Reads an entry and decodes it with `make`; an entry that `make` rejects is not valid.
    pub(crate) fn and_then<U>(self, make: impl FnOnce(T) -> Option<U>) -> Slot<U> {
        match self {
            Self::Empty => Slot::Empty,
            Self::Refused(refusal) => Slot::Refused(refusal),
            Self::Ready(entry) => make(entry).map_or(Slot::Empty, Slot::Ready),
        }
    }
}

/// The textures and samplers of a launch.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Textures {
    pub(crate) textures: Vec<Slot<Texture>>,
    pub(crate) samplers: Vec<Slot<Sampler>>,
}

impl Textures {
    /// Content of a texture's slot.
    pub(crate) fn texture(&self, slot: u32) -> &Slot<Texture> {
        self.textures.get(slot as usize).unwrap_or(&Slot::Empty)
    }

    /// Content of a sampler's slot.
    pub(crate) fn sampler(&self, slot: u32) -> &Slot<Sampler> {
        self.samplers.get(slot as usize).unwrap_or(&Slot::Empty)
    }
}

/// Where texels lie in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Layout {
    /// Bytes from line to line.
    Pitch(u64),
    Blocks(Pyramid),
}

/// A texture that a header describes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Texture {
    header: Header,
    shape: Shape,
    /// `None`: of a kind that is not modelled.
    texel: Option<Texel>,
    layout: Layout,
    size: [u32; 3],
    layers: u32,
    /// First and last level that are seen.
    view: (u32, u32),
}

/// A texel's place in a level and layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct TexelPlace {
    level: u32,
    layer: u32,
    at: [u32; 3],
}

/// Components of a texel: bits of f32, or integers.
type Components = [u32; 4];

impl Texture {
    /// `None` if the header's shape is reserved.
    pub(crate) fn new(header: Header) -> Option<Self> {
        let shape = header.shape()?;
        let [width, height, depth] = header.size();
        let (size, layers) = match shape {
            Shape::Buffer => ([width, 1, 1], 1),
            Shape::OneD => ([width, 1, 1], 1),
            Shape::OneDArray => ([width, 1, 1], depth),
            Shape::TwoD | Shape::TwoDNoMipmap => ([width, height, 1], 1),
            Shape::TwoDArray => ([width, height, 1], depth),
            Shape::ThreeD => ([width, height, depth], 1),
            Shape::Cube => ([width, height, 1], 6),
            Shape::CubeArray => ([width, height, 1], depth.saturating_mul(6)),
        };
        let texel = header.texel();
        let texel_bytes = texel.map_or(1, |texel| u32::from(texel.bytes));
        let is_single = header.is_pitch() || matches!(shape, Shape::Buffer | Shape::TwoDNoMipmap);
        let layout = if header.is_pitch() || shape == Shape::Buffer {
            Layout::Pitch(header.pitch().into())
        } else {
            Layout::Blocks(Pyramid::new(texel_bytes, size, header.block(), header.levels()))
        };
        let (first, last) = header.view();
        let last = last.min(header.levels() - 1);
        let view = if is_single {
            (0, 0)
        } else {
            (first.min(last), last)
        };
        Some(Self {
            header,
            shape,
            texel,
            layout,
            size,
            layers,
            view,
        })
    }

    /// Texels in x, y and z of a level of the view, which is one of it.
    fn level_size(&self, level: u32) -> [u32; 3] {
        self.size.map(|side| (side >> level.min(LEVELS_MAX)).max(1))
    }

    /// Width, height, depth or layers of a level counted from the view's first, and how many levels there are. A level
    /// that is not there has the size of the last.
    pub(crate) fn dimensions(&self, level: u32) -> [u32; 4] {
        let (first, last) = self.view;
        let [width, height, depth] = self.level_size(first.saturating_add(level).min(last));
        let third = match self.shape {
            Shape::ThreeD => depth,
            Shape::CubeArray => self.layers / 6,
            shape if shape.is_array() => self.layers,
            _ => 1,
        };
        // The layers of lines come second in some interfaces; the unit has them third.
        [width, height, third, last - first + 1]
    }

    /// Components of a texel.
    fn components(&self, reader: &mut Reader<'_>, place: TexelPlace) -> Result<Components, Refusal> {
        let Some(texel) = self.texel else {
            return Ok([0; 4]);
        };
        let bytes = u64::from(texel.bytes);
        let [x, y, z] = place.at.map(u64::from);
        let base = self.header.address();
        let mut data = [0; TEXEL_BYTES_MAX];
        let data = &mut data[..usize::from(texel.bytes)];
        match &self.layout {
            Layout::Pitch(pitch) => {
                reader.read(
                    base.wrapping_add(x * bytes).wrapping_add(y.wrapping_mul(*pitch)),
                    data,
                )?;
            }
            Layout::Blocks(pyramid) => {
                let level = pyramid.level(place.level);
                let layer = pyramid.layer_bytes().wrapping_mul(place.layer.into());
                let start = base.wrapping_add(layer).wrapping_add(level.offset);
                read_line(reader, start, &level.surface, [x * bytes, y, z], data)?;
            }
        }
        let mut whole = [0; TEXEL_BYTES_MAX];
        whole[..data.len()].copy_from_slice(data);
        let bits = texel::Bits::from_le_bytes(whole);
        Ok(if self.header.has_shared_exponent() {
            texel::unpack_shared_exponent(bits)
        } else {
            texel::unpack(&texel, bits)
        })
    }

    /// The result of an instruction from components.
    fn swizzled(&self, components: Components) -> Components {
        self.header.sources().map(|source| match source {
            Source::Zero => 0,
            Source::Component(index) => components[usize::from(index & 3)],
            Source::OneInteger => 1,
            Source::OneFloat => 1f32.to_bits(),
        })
    }

    /// TLD: the texel at a place of a level counted from the view's first.
    pub(crate) fn fetch(
        &self,
        reader: &mut Reader<'_>,
        at: [i32; 3],
        layer: u32,
        level: u32,
    ) -> Result<Components, Refusal> {
        let (first, last) = self.view;
        let level = first.saturating_add(level);
        let size = self.level_size(level);
        let at = at.map(|coordinate| u32::try_from(coordinate).unwrap_or(u32::MAX));
        let at = match self.shape {
            Shape::Buffer | Shape::OneD | Shape::OneDArray => [at[0], 0, 0],
            Shape::ThreeD => at,
            _ => [at[0], at[1], 0],
        };
        let layer = if self.shape.is_array() { layer } else { 0 };
        let is_inside = level <= last && layer < self.layers && (0..3).all(|axis| at[axis] < size[axis]);
        let components = if is_inside {
            self.components(reader, TexelPlace { level, layer, at })?
        } else {
            [0; 4]
        };
        Ok(self.swizzled(components))
    }
}

/// Reads bytes of a line that may go over the edge of a GOB.
fn read_line(
    reader: &mut Reader<'_>,
    start: u64,
    surface: &BlockLinear,
    [x, y, z]: [u64; 3],
    data: &mut [u8],
) -> Result<(), Refusal> {
    let mut done = 0;
    while done < data.len() {
        let from = x + done as u64;
        let run = (surface.run(from) as usize).min(data.len() - done);
        let va = start.wrapping_add(surface.offset([from, y, z]));
        reader.read(va, &mut data[done..done + run])?;
        done += run;
    }
    Ok(())
}
