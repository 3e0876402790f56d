//! Samples: the levels and texels of a sample, and how they are put together.

use fermi_spec::{
    texel::Number,
    texture::{Address, Compare, Filter, MipFilter, Sampler, Shape, Source},
};

use super::{
    Components, Reader, TexelPlace, Texture,
    coordinates::{Along, along, face},
};
use crate::mmu::Refusal;

/// Steps of a level.
const LEVEL_STEPS: f64 = 256.0;

/// Parameters of a sampling instruction.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Lookup {
    /// Coordinates, as the texture's header counts them.
    pub(crate) at: [f32; 3],
    pub(crate) layer: u32,
    /// Texels that are added.
    pub(crate) offset: [i32; 3],
    /// Level before the biases, from the view's first.
    pub(crate) level: f32,
    /// Value that is compared with the texels.
    pub(crate) reference: Option<f32>,
}

/// Parameters of TLD4.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Gather {
    /// Component of the result, after the swizzle.
    pub(crate) component: usize,
    /// An offset for each of the four, in place of their places side by side.
    pub(crate) offsets: Option<[[i32; 2]; 4]>,
}

/// A level and a layer with the texels along the axes.
struct Neighbours {
    level: u32,
    layer: u32,
    axes: [Along; 3],
}

impl Neighbours {
    /// The place of one: for each axis the first or the second; `None` is the border.
    fn place(&self, which: [usize; 3]) -> Option<TexelPlace> {
        let mut at = [0; 3];
        for axis in 0..3 {
            at[axis] = self.axes[axis].texels[which[axis] & 1]?;
        }
        Some(TexelPlace {
            level: self.level,
            layer: self.layer,
            at,
        })
    }
}

impl Texture {
    fn axes(&self) -> usize {
        match self.shape {
            Shape::OneD | Shape::OneDArray | Shape::Buffer => 1,
            Shape::ThreeD => 3,
            _ => 2,
        }
    }

    /// The level of a sample with all biases, in levels from the view's first.
    fn level_of(&self, sampler: &Sampler, level: f32) -> f64 {
        let biases = f64::from(sampler.lod_bias() + self.header.lod_bias()) / LEVEL_STEPS;
        let (least, most) = sampler.lod_range();
        let level = f64::from(level) + biases;
        let level = if level.is_nan() { 0.0 } else { level };
        // Not `clamp`: a range may be upside down.
        level
            .max(f64::from(least) / LEVEL_STEPS)
            .min(f64::from(most) / LEVEL_STEPS)
    }

    /// Level at which texels are as large as a step to the right or downwards; `steps` has both for each coordinate.
    pub(crate) fn level_for(&self, steps: [[f32; 2]; 3]) -> f32 {
        let size = self.level_size(self.view.0);
        let length = |direction: usize| {
            let axes = steps.iter().zip(size).take(self.axes());
            let squares = axes.map(|(step, texels)| {
                let scale = if self.header.is_normalized() {
                    f64::from(texels)
                } else {
                    1.0
                };
                (f64::from(step[direction]) * scale).powi(2)
            });
            squares.sum::<f64>().sqrt()
        };
        libm::log2(length(0).max(length(1))) as f32
    }

    /// Texels around the coordinates in a level.
    fn neighbours(&self, sampler: &Sampler, lookup: &Lookup, level: u32, filter: Filter) -> Neighbours {
        let size = self.level_size(level);
        let mut at = lookup.at.map(f64::from);
        let mut addresses = sampler.addresses();
        let mut layer = if self.shape.is_array() { lookup.layer } else { 0 };
        if self.shape.is_cube() {
            let (side, [s, t]) = face(at);
            at = [s, t, 0.0];
            layer = layer.saturating_mul(6).saturating_add(side);
            addresses = [Address::Edge; 3];
        }
        let mut axes = [Along::FIRST; 3];
        for axis in 0..self.axes() {
            let scale = if self.header.is_normalized() {
                f64::from(size[axis])
            } else {
                1.0
            };
            axes[axis] = along(
                at[axis] * scale,
                lookup.offset[axis],
                size[axis],
                addresses[axis],
                filter,
            );
        }
        Neighbours {
            level,
            layer: layer.min(self.layers.saturating_sub(1)),
            axes,
        }
    }

    fn one(
        &self,
        reader: &mut Reader<'_>,
        sampler: &Sampler,
        place: Option<TexelPlace>,
        reference: Option<f32>,
    ) -> Result<Components, Refusal> {
        let components = match place {
            Some(place) => self.components(reader, place)?,
            None => sampler.border(),
        };
        Ok(match reference {
            Some(reference) => compared(sampler.compare(), reference, self.depth_of(components)),
            None => components,
        })
    }

    /// The component that the first of a result comes from: of a depth texture the depth.
    fn depth_of(&self, components: Components) -> f32 {
        f32::from_bits(self.swizzled(components)[0])
    }

    /// Whether the components that a result comes from can be mixed.
    fn is_filterable(&self) -> bool {
        let sources = self.header.sources();
        let is_used = |index: u8| sources.contains(&Source::Component(index));
        self.texel.is_none_or(|texel| {
            texel.components().all(|component| {
                !is_used(component.index) || !matches!(component.number, Number::Sint | Number::Uint)
            })
        })
    }

    /// The sample of a level.
    fn level_sample(
        &self,
        reader: &mut Reader<'_>,
        sampler: &Sampler,
        lookup: &Lookup,
        level: u32,
        filter: Filter,
    ) -> Result<[f64; 4], Refusal> {
        let neighbours = self.neighbours(sampler, lookup, level, filter);
        let mut sum = [0.0; 4];
        for corner in 0..8usize {
            let which = [corner & 1, corner >> 1 & 1, corner >> 2 & 1];
            let weight: f64 = (0..3)
                .map(|axis| match (which[axis], neighbours.axes[axis].weight) {
                    (0, weight) => 1.0 - weight,
                    (_, weight) => weight,
                })
                .product();
            if weight == 0.0 {
                continue;
            }
            let place = neighbours.place(which);
            let found = self.one(reader, sampler, place, lookup.reference)?;
            for (sum, value) in sum.iter_mut().zip(found) {
                *sum += weight * f64::from(f32::from_bits(value));
            }
        }
        Ok(sum)
    }

    /// TEX and TXD.
    pub(crate) fn sample(
        &self,
        reader: &mut Reader<'_>,
        sampler: &Sampler,
        lookup: &Lookup,
    ) -> Result<Components, Refusal> {
        let (first, last) = self.view;
        let level = self.level_of(sampler, lookup.level);
        let filter = if level <= 0.0 {
            sampler.magnification()
        } else {
            sampler.minification()
        };
        let highest = f64::from(last - first);
        let nth = |level: f64| first + level.clamp(0.0, highest) as u32;
        if !self.is_filterable() {
            // Integers are not mixed.
            let number = match sampler.levels() {
                MipFilter::None => first,
                _ => nth(nearest(level)),
            };
            let place = self
                .neighbours(sampler, lookup, number, Filter::Point)
                .place([0; 3]);
            let found = self.one(reader, sampler, place, lookup.reference)?;
            return Ok(self.result(found, lookup));
        }
        let mixed = match sampler.levels() {
            MipFilter::None => self.level_sample(reader, sampler, lookup, first, filter)?,
            MipFilter::Point => self.level_sample(reader, sampler, lookup, nth(nearest(level)), filter)?,
            MipFilter::Linear => {
                let steps = (level.clamp(0.0, highest) * LEVEL_STEPS).round_ties_even() / LEVEL_STEPS;
                let (below, weight) = (steps.floor(), steps.fract());
                let near = self.level_sample(reader, sampler, lookup, nth(below), filter)?;
                if weight == 0.0 {
                    near
                } else {
                    let far = self.level_sample(reader, sampler, lookup, nth(below + 1.0), filter)?;
                    std::array::from_fn(|index| near[index] * (1.0 - weight) + far[index] * weight)
                }
            }
        };
        Ok(self.result(mixed.map(|value| (value as f32).to_bits()), lookup))
    }

    /// A comparison has the same result in all components.
    fn result(&self, components: Components, lookup: &Lookup) -> Components {
        match lookup.reference {
            Some(_) => self.swizzled([components[0]; 4]),
            None => self.swizzled(components),
        }
    }

    /// TLD4: a component of the four texels that a linear filter would mix.
    pub(crate) fn gather(
        &self,
        reader: &mut Reader<'_>,
        sampler: &Sampler,
        lookup: &Lookup,
        gather: Gather,
    ) -> Result<Components, Refusal> {
        /// Which of the neighbours in x and y each result is.
        const ORDER: [[usize; 3]; 4] = [[0, 1, 0], [1, 1, 0], [1, 0, 0], [0, 0, 0]];
        let mut results = [0; 4];
        for (index, result) in results.iter_mut().enumerate() {
            let mut lookup = *lookup;
            let mut which = ORDER[index];
            if let Some(offsets) = gather.offsets {
                lookup.offset = [offsets[index][0], offsets[index][1], 0];
                which = [0; 3];
            }
            let neighbours = self.neighbours(sampler, &lookup, self.view.0, Filter::Linear);
            let found = self.one(reader, sampler, neighbours.place(which), lookup.reference)?;
            *result = self.result(found, &lookup)[gather.component & 3];
        }
        Ok(results)
    }
}

/// The nearest level; of two that are equally near the larger texture (OpenGL 4.6, 8.14.3).
fn nearest(level: f64) -> f64 {
    (level + 0.5).ceil() - 1.0
}

fn compared(compare: Compare, reference: f32, depth: f32) -> Components {
    let passes = compare.passes(reference, depth);
    [if passes { 1f32.to_bits() } else { 0 }; 4]
}
