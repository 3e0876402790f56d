//! Clears of 3D (CLEAR_BUFFERS): one layer of a color target, of the depth target, or of both.
//!
//! ```text
//!   screen scissor, CLEAR_FLAGS' cuts ─► Rectangle in pixels ─► × samples ─► ∩ target ─► lines of samples
//!   clear color, format ─► bits of a sample and their mask ─► Fill ─┘         layout ─► Side ─► Transfer
//! ```
//!
//! Masks of colors and depth do not matter to a clear (Mesa, `nvc0_surface.c`). assumptions: the number of a color target
//! is the target's own, whatever RT_CONTROL maps; a layer that the target does not have, a format of number 0 and a depth
//! target that is off are cleared without effect; a sample whose components are all cleared is zero in the bits without
//! meaning; samples of a pixel lie side by side.
//!
//! Not modelled, and counted: clip rectangles, numbers of windows, modes and formats that count coverage.

use super::state::{Area, GraphState};
use crate::{
    compute::{mask_of, pack},
    engine::Effect,
    fill::{Fill, FilledLines},
    model::FermiModel,
    side::{Layout as Lines, Side},
    transfer::{Completion, Condition, Interrupt, Transfer},
};
use fermi_spec::{
    addr::GpuVa,
    methods::RenderEnable,
    surface::{BlockLinear, BlockSize},
    target::{Clear, ClearFlags, DepthFormat, Edges, Layers, Layout, Span, color, method, samples_log2},
    texel::Texel,
    twod::Format,
};

const NOTHING: Completion = Completion {
    release: None,
    interrupt: Interrupt::None,
};
/// All components of a texel.
const ALL: u32 = 15;
/// Methods from the x of a rectangle to its y.
const Y: u16 = 4;

fn get(state: &GraphState, method: u16) -> u32 {
    state.method(Area::THREED, method)
}

/// The clear is of a kind that is not modelled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Unmodelled;

/// What is cleared along x and y: the first place and the one behind the last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Rectangle([[u32; 2]; 2]);

impl Rectangle {
    fn of_spans(spans: [Span; 2]) -> Self {
        Self(spans.map(|span| {
            let first = u32::from(span.first());
            [first, first + u32::from(span.count())]
        }))
    }

    fn of_edges(edges: [Edges; 2]) -> Self {
        Self(edges.map(|edges| [edges.first(), edges.end()].map(u32::from)))
    }

    fn cut(self, other: Self) -> Self {
        Self([0, 1].map(|axis| {
            let ([first, end], [low, high]) = (self.0[axis], other.0[axis]);
            [first.max(low), end.min(high)]
        }))
    }

    /// The same rectangle in samples.
    fn in_samples(self, log2: [u32; 2]) -> Self {
        Self([0, 1].map(|axis| self.0[axis].map(|place| place << log2[axis])))
    }

    fn is_empty(self) -> bool {
        self.0.iter().any(|[first, end]| first >= end)
    }
}

/// What the screen scissor and the cuts that the flags name leave, in pixels.
fn rectangle(state: &GraphState) -> Rectangle {
    let spans =
        |first: u16| Rectangle::of_spans([0, Y].map(|after| Span::from_bits(get(state, first + after))));
    let flags = ClearFlags::from_bits(get(state, method::CLEAR_FLAGS));
    let mut rectangle = spans(method::SCREEN_SCISSOR);
    if flags.viewport() {
        rectangle = rectangle.cut(spans(method::VIEWPORT));
    }
    if flags.scissor() && get(state, method::SCISSOR_ENABLE) & 1 != 0 {
        let edges = [0, Y].map(|after| Edges::from_bits(get(state, method::SCISSOR + after)));
        rectangle = rectangle.cut(Rectangle::of_edges(edges));
    }
    rectangle
}

/// A layer of a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Plane {
    base: u64,
    /// Samples of a line and lines; bytes from line to line of a linear one.
    size: [u32; 2],
    layout: Layout,
    /// Which slice of a volume, and how many it has.
    slice: [u64; 2],
}

impl Plane {
    /// Layer `layer` of what begins at `base`; `None` if it has no such layer. Each takes `stride` words.
    fn new(
        base: u64,
        size: [u32; 2],
        layout: Layout,
        layers: Layers,
        stride: u32,
        layer: u64,
    ) -> Option<Self> {
        let slices = u64::from(layers.count());
        if layer >= slices {
            return None;
        }
        let (base, slice) = if layout.is_volume() && !layout.is_linear() {
            (base, [layer, slices])
        } else {
            (base + layer * 4 * u64::from(stride), [0, 1])
        };
        Some(Self {
            base,
            size,
            layout,
            slice,
        })
    }

    /// Lines of a rectangle of samples, filled.
    fn lines(&self, rectangle: Rectangle, fill: Fill) -> Option<FilledLines> {
        let bytes = fill.bytes();
        let [width, height] = self.size;
        let width = if self.layout.is_linear() {
            width / bytes
        } else {
            width
        };
        let cut = rectangle.cut(Rectangle([[0, width], [0, height]]));
        if cut.is_empty() {
            return None;
        }
        let [[x, x_end], [y, y_end]] = cut.0;
        Some(FilledLines {
            target: self.side(u64::from(x), u64::from(y), bytes.into()),
            fill,
            line_bytes: (x_end - x) * bytes,
            lines: y_end - y,
        })
    }

    /// The plane from a sample on.
    fn side(&self, x: u64, y: u64, bytes: u64) -> Side {
        let [width, height] = self.size.map(u64::from);
        if self.layout.is_linear() {
            let start = self.base + y * width + x * bytes;
            return Side::new(GpuVa(start), Lines::Pitch(self.size[0]));
        }
        let [slice, slices] = self.slice;
        let surface = BlockLinear::new(self.layout.blocks().block(), [width * bytes, height, slices]);
        Side::new(GpuVa(self.base), Lines::Blocks(surface, [x * bytes, y, slice]))
    }
}

/// Components of a texel that are cleared, as a fill; `None` if the texel has none of them.
fn fill(texel: &Texel, values: [u32; 4], components: u32) -> Option<Fill> {
    let stored = mask_of(texel, components);
    let mask = if stored == mask_of(texel, ALL) {
        u128::MAX
    } else {
        stored
    };
    (stored != 0).then(|| Fill::new(texel.bytes, pack(texel, values) & stored, mask))
}

/// The lines of a color target.
fn color_lines(
    state: &GraphState,
    clear: Clear,
    rectangle: Rectangle,
) -> Result<Option<FilledLines>, Unmodelled> {
    if clear.components() == 0 || clear.target() >= color::COUNT {
        return Ok(None);
    }
    let first = method::COLORS + u16::from(clear.target()) * method::COLOR_STEP;
    let value = |after: u16| get(state, first + after);
    let format = value(color::FORMAT);
    if format == 0 {
        return Ok(None);
    }
    let texel = Format(format).texel().ok_or(Unmodelled)?;
    let values = [0, 1, 2, 3].map(|index| get(state, method::CLEAR_COLOR + 4 * index));
    let plane = Plane::new(
        state.address(Area::THREED, first + color::ADDRESS_HIGH),
        [value(color::WIDTH), value(color::HEIGHT)],
        Layout::from_bits(value(color::LAYOUT)),
        Layers::from_bits(value(color::LAYERS)),
        value(color::LAYER_STRIDE),
        u64::from(value(color::BASE_LAYER)) + u64::from(clear.layer()),
    );
    let fill = fill(&texel, values, clear.components().into());
    Ok(plane
        .zip(fill)
        .and_then(|(plane, fill)| plane.lines(rectangle, fill)))
}

/// The lines of the depth target.
fn depth_lines(
    state: &GraphState,
    clear: Clear,
    rectangle: Rectangle,
) -> Result<Option<FilledLines>, Unmodelled> {
    if !(clear.depth() || clear.stencil()) || get(state, method::DEPTH_ENABLE) & 1 == 0 {
        return Ok(None);
    }
    let texel = DepthFormat(get(state, method::DEPTH_FORMAT))
        .texel()
        .ok_or(Unmodelled)?;
    let block = BlockSize::from_bits(get(state, method::DEPTH_BLOCK_SIZE));
    let plane = Plane::new(
        state.address(Area::THREED, method::DEPTH_HIGH),
        [0, 4].map(|after| get(state, method::DEPTH_WIDTH + after)),
        Layout::of_blocks(block),
        Layers::from_bits(get(state, method::DEPTH_WIDTH + 8)),
        get(state, method::DEPTH_LAYER_STRIDE),
        u64::from(get(state, method::DEPTH_BASE_LAYER)) + u64::from(clear.layer()),
    );
    let fill = depth_fill(state, clear, &texel);
    Ok(plane
        .zip(fill)
        .and_then(|(plane, fill)| plane.lines(rectangle, fill)))
}

/// Depth and stencil that are cleared, as a fill.
fn depth_fill(state: &GraphState, clear: Clear, texel: &Texel) -> Option<Fill> {
    let (depth, stencil) = (
        get(state, method::CLEAR_DEPTH),
        get(state, method::CLEAR_STENCIL) & 0xff,
    );
    let values = [depth, stencil, 0, 0];
    let components =
        u32::from(clear.depth()) << DepthFormat::DEPTH | u32::from(clear.stencil()) << DepthFormat::STENCIL;
    let flags = ClearFlags::from_bits(get(state, method::CLEAR_FLAGS));
    let mask = get(state, method::STENCIL_MASK) & 0xff;
    if !flags.stencil_mask() || mask == 0xff {
        return fill(texel, values, components);
    }
    let stencil = texel
        .components()
        .find(|component| component.index == DepthFormat::STENCIL);
    let kept = stencil.map_or(0, |stencil| u128::from(!mask & 0xff) << stencil.low);
    let stored = mask_of(texel, components) & !kept;
    (stored != 0).then(|| Fill::new(texel.bytes, pack(texel, values) & stored, stored))
}

/// The clear that the methods describe; `None` if it has nothing to do.
fn clear(state: &GraphState, operand: Clear) -> Result<Option<Transfer>, Unmodelled> {
    let is_cut = [method::CLIP_RECTANGLES, method::CLIP_IDS].map(|enable| get(state, enable) & 1 != 0);
    if is_cut.contains(&true) {
        return Err(Unmodelled);
    }
    let samples = samples_log2(get(state, method::SAMPLES)).ok_or(Unmodelled)?;
    let rectangle = rectangle(state).in_samples(samples);
    let depth = depth_lines(state, operand, rectangle)?;
    let color = color_lines(state, operand, rectangle)?;
    let mode = RenderEnable::from_bits(get(state, method::CONDITION)).unwrap_or(RenderEnable::True);
    let condition = Condition {
        mode,
        at: GpuVa(state.address(Area::THREED, method::CONDITION_HIGH)),
    };
    Ok(depth.or(color).map(|first| {
        let second = color.filter(|_| depth.is_some());
        Transfer::filled(first, second, NOTHING).on_condition(condition)
    }))
}

impl FermiModel {
    /// Executes CLEAR: starts the fill of what is left of the targets after all cuts.
    pub(super) fn clear_targets(&mut self, operand: Clear) -> Effect {
        match clear(&self.graph.state, operand) {
            Ok(Some(transfer)) => Effect::Start(transfer),
            Ok(None) => Effect::None,
            Err(Unmodelled) => {
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
        fn any_state_gives_lines_within_the_target(
            words in proptest::collection::vec((0u16..0x700, any::<u32>()), 0..80),
            near in proptest::collection::vec((proptest::sample::select(METHODS.to_vec()), 0u32..0x40), 0..40),
            operand in any::<u32>(),
        ) {
            let mut state = GraphState::default();
            state.set_method(Area::THREED, method::DEPTH_ENABLE, 1);
            for (word, value) in words.into_iter().map(|(word, value)| (word * 4, value)).chain(near) {
                state.set_method(Area::THREED, word, value);
            }
            // What is found is that no value overflows: tests are built with checks.
            if let Ok(Some(transfer)) = clear(&state, Clear::from_bits(operand)) {
                let next = transfer.next_to_fill(1);
                prop_assert!(next.is_some_and(|(_, _, bytes)| bytes > 0 && bytes <= 1 << 39));
            }
        }
    }

    const METHODS: &[u16] = &[
        0x808, 0x80c, 0x810, 0x814, 0x818, 0x81c, 0x820, 0xff4, 0xff8, 0x1228, 0x122c, 0x1230, 0xfe8, 0xfec,
        0x10f8, 0x1538, 0x15d0, 0x1558,
    ];

    #[test]
    fn rectangles_that_do_not_meet_are_empty() {
        let left = Rectangle([[0, 4], [0, 9]]);
        let right = Rectangle([[4, 8], [0, 9]]);
        assert!(left.cut(right).is_empty());
        assert_eq!(left.cut(Rectangle([[3, 8], [2, 20]])).0, [[3, 4], [2, 9]]);
    }
}
