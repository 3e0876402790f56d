//! 2D: copies between surfaces, pixel for pixel.
//!
//! Scaling, filtering, raster operations and drawing are not modelled: such an operation moves nothing and is
//! counted. Pixels outside of either surface or of the clip rectangle are not copied. The components of 8-bit
//! formats change places; an absent one becomes opaque. Other formats are copied as they are, if they are equal.

use super::state::{Area, GraphState};
use crate::{
    engine::Effect,
    model::FermiModel,
    remap::{Component, Remap},
    side::{Layout, Side},
    transfer::{Completion, Condition, Interrupt, Transfer},
};
use fermi_spec::{
    addr::GpuVa,
    methods::RenderEnable,
    surface::{BlockLinear, BlockSize},
    twod::{Channel, Format, OPERATION_COPY, method, surface},
};

const NOTHING: Completion = Completion {
    release: None,
    interrupt: Interrupt::None,
};
const OPAQUE: u32 = 0xff;

/// A rectangle of pixels in two surfaces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Rectangle {
    /// x and y in the target.
    target: [i64; 2],
    /// x and y in the source.
    source: [i64; 2],
    /// Width and height.
    size: [i64; 2],
}

impl Rectangle {
    /// Cuts off what lies outside of `[low, high)` in the target, along an axis.
    fn clip_target(&mut self, axis: usize, low: i64, high: i64) {
        let cut = (low - self.target[axis]).max(0);
        self.target[axis] += cut;
        self.source[axis] += cut;
        self.size[axis] = (self.size[axis] - cut).min(high - self.target[axis]);
    }

    /// The same cut in the source.
    fn clip_source(&mut self, axis: usize, low: i64, high: i64) {
        let offset = self.target[axis] - self.source[axis];
        self.clip_target(axis, low + offset, high + offset);
    }

    fn is_empty(&self) -> bool {
        self.size.iter().any(|size| *size <= 0)
    }
}

fn get(state: &GraphState, method: u16) -> u32 {
    state.method(Area::TWOD, method)
}

fn signed(state: &GraphState, method: u16) -> i64 {
    i64::from(get(state, method) as i32)
}

/// The rectangle that the methods ask for; `None` if pixels would change their size.
fn rectangle(state: &GraphState) -> Option<Rectangle> {
    let step = |after: u16| {
        [
            get(state, method::COPY_STEPS + after),
            get(state, method::COPY_STEPS + after + 4),
        ]
    };
    if [step(0), step(8)] != [[0, 1]; 2] {
        return None;
    }
    let mut rectangle = Rectangle {
        target: [0, 4].map(|after| signed(state, method::COPY_TARGET + after)),
        source: [4, 12].map(|after| signed(state, method::COPY_SOURCE + after)),
        size: [8, 12].map(|after| signed(state, method::COPY_TARGET + after)),
    };
    for axis in 0..2u16 {
        let index = usize::from(axis);
        let bytes = 4 * axis;
        if get(state, method::CLIP_ENABLE) & 1 != 0 {
            let low = signed(state, method::CLIP + bytes);
            let high = low + signed(state, method::CLIP + 8 + bytes);
            rectangle.clip_target(index, low, high);
        }
        let edge = |first: u16| signed(state, first + surface::WIDTH + bytes);
        rectangle.clip_target(index, 0, edge(method::TARGET));
        rectangle.clip_source(index, 0, edge(method::SOURCE));
    }
    Some(rectangle)
}

/// A surface from pixel `at` on; pixels have `bytes` bytes.
fn side(state: &GraphState, first: u16, at: [i64; 2], bytes: u32, layer: u64) -> Side {
    let value = |after: u16| get(state, first + after);
    let base = state.address(Area::TWOD, first + surface::ADDRESS_HIGH);
    let [x, y] = at.map(|place| u64::try_from(place).unwrap_or(0));
    let x = x * u64::from(bytes);
    if value(surface::LINEAR) & 1 != 0 {
        let pitch = value(surface::PITCH);
        let start = base + y * u64::from(pitch) + x;
        return Side::new(GpuVa(start), Layout::Pitch(pitch));
    }
    let block = BlockSize::from_bits(value(surface::BLOCK_SIZE)).block();
    let size = [
        u64::from(value(surface::WIDTH)) * u64::from(bytes),
        u64::from(value(surface::HEIGHT)),
        u64::from(value(surface::DEPTH)),
    ];
    Side::new(
        GpuVa(base),
        Layout::Blocks(BlockLinear::new(block, size), [x, y, layer]),
    )
}

/// How pixels of four bytes change from one format to another.
fn remap(source: Format, target: Format) -> Option<Remap> {
    let (from, to) = source.channels().zip(target.channels())?;
    let components = to.map(|channel| {
        let place = from.iter().position(|other| *other == channel);
        match (place, channel) {
            (Some(place), channel) if channel != Channel::Unused => Component::Source(place as u8),
            _ => Component::Constant(OPAQUE),
        }
    });
    Some(Remap {
        component_bytes: 1,
        source_components: 4,
        target_components: 4,
        components,
    })
}

/// The copy that the methods describe; `None` if it is not modelled.
fn copy(state: &GraphState) -> Option<Transfer> {
    let format = |first: u16| Format(get(state, first + surface::FORMAT));
    let (source, target) = (format(method::SOURCE), format(method::TARGET));
    let bytes = target.bytes()?;
    let rectangle = rectangle(state)?;
    if get(state, method::OPERATION) != OPERATION_COPY {
        return None;
    }
    let [width, height] = if rectangle.is_empty() {
        [0, 0]
    } else {
        rectangle.size.map(|size| u32::try_from(size).unwrap_or(0))
    };
    let layer = u64::from(get(state, method::TARGET + surface::LAYER));
    let from = side(state, method::SOURCE, rectangle.source, bytes, 0);
    let to = side(state, method::TARGET, rectangle.target, bytes, layer);
    let transfer = if source == target {
        Transfer::new(from, to, width.saturating_mul(bytes), height, NOTHING)
    } else {
        Transfer::remapped(from, to, remap(source, target)?, width, height, NOTHING)
    };
    let mode = RenderEnable::from_bits(get(state, method::CONDITION)).unwrap_or(RenderEnable::True);
    Some(transfer.on_condition(Condition {
        mode,
        at: GpuVa(state.address(Area::TWOD, method::CONDITION_HIGH)),
    }))
}

impl FermiModel {
    /// The last method of a copy was sent.
    pub(super) fn copy_pixels(&mut self) -> Effect {
        match copy(&self.graph.state) {
            Some(transfer) => Effect::Start(transfer),
            None => {
                self.mem.counters.unmodelled_draws += 1;
                Effect::None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn clipped_rectangle_lies_in_both_surfaces(
            target in prop::array::uniform2(-50i64..150),
            source in prop::array::uniform2(-50i64..150),
            size in prop::array::uniform2(-5i64..200),
            edges in prop::array::uniform2(0i64..100),
        ) {
            let mut rectangle = Rectangle { target, source, size };
            for axis in 0..2 {
                rectangle.clip_target(axis, 0, edges[0]);
                rectangle.clip_source(axis, 0, edges[1]);
            }
            if !rectangle.is_empty() {
                for axis in 0..2 {
                    prop_assert!(rectangle.target[axis] >= 0 && rectangle.source[axis] >= 0);
                    prop_assert!(rectangle.target[axis] + rectangle.size[axis] <= edges[0]);
                    prop_assert!(rectangle.source[axis] + rectangle.size[axis] <= edges[1]);
                    prop_assert_eq!(
                        rectangle.target[axis] - rectangle.source[axis],
                        target[axis] - source[axis]);
                }
            }
        }
    }

    #[test]
    fn channels_change_places_and_an_absent_one_is_opaque() {
        let map = remap(Format(0xe6), Format(0xd5)).unwrap();
        let mut pixel = [0; 4];
        map.apply(&[1, 2, 3, 4], &mut pixel);
        assert_eq!(pixel, [3, 2, 1, 0xff]);
    }
}
