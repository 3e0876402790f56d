//! Clears of 3D, against a reference that decides about one byte after the other.

use super::{
    support::*,
    surfaces::{BYTES, Shape, TARGET},
};
use crate::Stepped;
use fermi_spec::{
    engine::Engine,
    methods::class,
    regs::{PfifoReg, PgraphReg},
};
use proptest::prelude::*;

const R8_UINT: u32 = 0xf6;
const R32_UINT: u32 = 0xe4;
const RGBA32_UINT: u32 = 0xc2;
const RGBA8_UNORM: u32 = 0xd5;

/// A color target, and how it is cleared.
#[derive(Clone, Debug)]
struct Target {
    format: u32,
    /// Bytes of a pixel.
    pixel: u32,
    /// log2 of the GOBs in y and in z; `None`: pitch.
    block: Option<[u32; 2]>,
    /// Pixels, or bytes of a line of a linear one; lines; layers.
    size: [u32; 3],
    is_volume: bool,
    /// Bytes from layer to layer.
    layer_bytes: u32,
    /// x, y, width, height.
    scissor: [u32; 4],
    layer: u32,
}

const LINEAR: Target = Target {
    format: R32_UINT,
    pixel: 4,
    block: None,
    size: [0x100, 8, 1],
    is_volume: false,
    layer_bytes: 0,
    scissor: [0, 0, 64, 8],
    layer: 0,
};

impl Target {
    /// The methods that a driver sends before CLEAR, for target `index`.
    fn methods(&self, index: u16, color: [u32; 4]) -> Methods {
        let [x, y, width, height] = self.scissor;
        let layout = match self.block {
            None => 1 << 12,
            Some([y, z]) => y << 4 | z << 8 | u32::from(self.is_volume) << 16,
        };
        Methods::new()
            .to(0, 0xd80, &color)
            .to(0, 0xff4, &[width << 16 | x, height << 16 | y])
            .to(
                0,
                0x800 + 0x40 * index,
                &[
                    (TARGET >> 32) as u32,
                    TARGET as u32,
                    self.size[0],
                    self.size[1],
                    self.format,
                    layout,
                    self.size[2],
                    self.layer_bytes / 4,
                    0,
                ],
            )
            .to(0, 0x1538, &[0])
            .to(0, 0x1558, &[1])
    }

    /// Where byte `byte` of a pixel lies; `None` outside of the target.
    fn at(&self, [x, y]: [u32; 2], byte: u32) -> Option<usize> {
        let [width, height, layers] = self.size;
        let Some([block_y, block_z]) = self.block else {
            let is_inside = y < height && (x + 1) * self.pixel <= width && self.layer < layers;
            return is_inside.then(|| (y * width + x * self.pixel + byte) as usize);
        };
        if x >= width || y >= height || self.layer >= layers {
            return None;
        }
        let (depth, z, base) = if self.is_volume {
            (layers, self.layer, 0)
        } else {
            (1, 0, self.layer * self.layer_bytes)
        };
        let shape = Shape::Blocks {
            height: block_y,
            depth: block_z,
            size: [width * self.pixel, height, depth],
            origin: [0, 0, z],
            gob: [64, 8],
        };
        Some(base as usize + shape.at(y, x * self.pixel + byte))
    }

    /// The memory afterwards: `before` with `texel` wherever the scissor lets a pixel be.
    fn expected(&self, before: &[u8], texel: &[u8]) -> Vec<u8> {
        let mut after = before.to_vec();
        let [left, top, width, height] = self.scissor;
        for y in top..top + height {
            for x in left..left + width {
                for byte in 0..self.pixel {
                    if let Some(at) = self.at([x, y], byte) {
                        after[at] = texel[byte as usize];
                    }
                }
            }
        }
        after
    }
}

fn noise() -> Vec<u8> {
    (0..BYTES).map(|at| (at * 0x9d + (at >> 9) * 7) as u8).collect()
}

/// A channel with 3D on subchannel 0 and memory at [`TARGET`]; where that memory is.
fn with_target(bench: &mut Bench, before: &[u8]) -> (Channel, u64) {
    let mut channel = bench.channel(1);
    let vram = bench.allocate_aligned(BYTES, 0x2_0000);
    bench.map(channel.space, TARGET, Page::Vram(vram), BYTES);
    bench.set_vram_bytes(vram, before);
    bench.flush();
    bench.runlist(&[1]);
    let bind = Methods::new().to(0, 0, &[u32::from(class::THREED)]);
    bench.submit(&mut channel, &bind.0);
    (channel, vram)
}

/// The memory after these methods.
fn after(before: &[u8], methods: &Methods) -> Vec<u8> {
    let mut bench = ready();
    let (mut channel, vram) = with_target(&mut bench, before);
    bench.submit(&mut channel, &methods.0);
    assert_eq!(bench.run(), Stepped::Idle);
    assert_eq!(bench.read(PgraphReg::GraphIntr), 0);
    assert_eq!(bench.read(PfifoReg::FaultUnits), 0);
    bench.vram_bytes(vram, BYTES as usize)
}

fn clear(target: &Target, color: [u32; 4], operand: u32) -> Methods {
    target
        .methods(0, color)
        .to(0, 0x19d0, &[operand | target.layer << 10])
}

fn is_cleared(target: &Target, color: [u32; 4], texel: &[u8]) {
    let before = noise();
    let found = after(&before, &clear(target, color, 0x3c));
    assert!(
        found == target.expected(&before, texel),
        "{target:x?}: first {:x?}",
        &found[..16]
    );
}

#[test]
fn linear_target_is_filled_line_by_line() {
    let before = noise();
    let target = Target {
        size: [0x200, 4, 1],
        scissor: [0, 0, 100, 3],
        ..LINEAR
    };
    let found = after(&before, &clear(&target, [0x1234_5678, 0, 0, 0], 0x3c));
    assert_eq!(found[..8], [0x78, 0x56, 0x34, 0x12, 0x78, 0x56, 0x34, 0x12]);
    assert_eq!(found[400..0x200], before[400..0x200]);
    assert!(found == target.expected(&before, &[0x78, 0x56, 0x34, 0x12]));
}

/// What Mesa makes of a fill of 40 000 bytes: three lines of 13 312, and a rest that it sends inline.
#[test]
fn lines_of_a_buffer_follow_each_other() {
    let target = Target {
        format: R8_UINT,
        pixel: 1,
        size: [13_312, 3, 1],
        scissor: [0, 0, 13_312, 3],
        ..LINEAR
    };
    let before = noise();
    let found = after(&before, &clear(&target, [0xab, 0, 0, 0], 0x3c));
    assert!(found[..39_936].iter().all(|byte| *byte == 0xab));
    assert_eq!(found[39_936..], before[39_936..]);
}

#[test]
fn elements_of_sixteen_bytes_are_whole() {
    let target = Target {
        format: RGBA32_UINT,
        pixel: 16,
        size: [0x1_0000, 4, 1],
        scissor: [3, 1, 4000, 2],
        ..LINEAR
    };
    let texel: Vec<u8> = (0x10..0x20).collect();
    let color = [0x1312_1110, 0x1716_1514, 0x1b1a_1918, 0x1f1e_1d1c];
    is_cleared(&target, color, &texel);
}

const ONE: u32 = 0x3f80_0000;
const HALF: u32 = 0x3f00_0000;
/// 0.2 and 0.6.
const FIFTH: u32 = 0x3e4c_cccd;
const THREE_FIFTHS: u32 = 0x3f19_999a;
const FLOATS: [u32; 4] = [FIFTH, THREE_FIFTHS, ONE, 0];
const NEGATIVE: [u32; 4] = [FIFTH | 1 << 31, ONE, ONE | 1 << 31, HALF];
const INTEGERS: [u32; 4] = [5, 200, 100, 3];
const SIGNED: [u32; 4] = [-5_i32 as u32, 100, -100_i32 as u32, 3];

/// Formats, clear colors and the bytes of a pixel: worked out by hand.
#[rustfmt::skip]
const PIXELS: &[(u32, [u32; 4], &[u8])] = &[
    (0xc0, FLOATS, &[0xcd, 0xcc, 0x4c, 0x3e, 0x9a, 0x99, 0x19, 0x3f, 0, 0, 0x80, 0x3f, 0, 0, 0, 0]),
    (0xc1, SIGNED, &[0xfb, 0xff, 0xff, 0xff, 100, 0, 0, 0, 0x9c, 0xff, 0xff, 0xff, 3, 0, 0, 0]),
    (0xc6, FLOATS, &[0x33, 0x33, 0x99, 0x99, 0xff, 0xff, 0, 0]),
    (0xc7, NEGATIVE, &[0x67, 0xe6, 0xff, 0x7f, 1, 0x80, 0, 0x40]),
    (0xc8, SIGNED, &[0xfb, 0xff, 100, 0, 0x9c, 0xff, 3, 0]),
    (0xc9, INTEGERS, &[5, 0, 200, 0, 100, 0, 3, 0]),
    (0xca, FLOATS, &[0x66, 0x32, 0xcd, 0x38, 0, 0x3c, 0, 0]),
    (0xcb, FLOATS, &[0xcd, 0xcc, 0x4c, 0x3e, 0x9a, 0x99, 0x19, 0x3f]),
    (0xcc, SIGNED, &[0xfb, 0xff, 0xff, 0xff, 100, 0, 0, 0]),
    (0xcd, INTEGERS, &[5, 0, 0, 0, 200, 0, 0, 0]),
    (0xcf, FLOATS, &[255, 153, 51, 0]),
    // 0.2 and 0.6 in the curve are 0.4845 and 0.7977.
    (0xd0, FLOATS, &[255, 203, 124, 0]),
    (0xd6, FLOATS, &[124, 203, 255, 0]),
    // 205, 614 and 1023 in ten bits each.
    (0xd1, FLOATS, &[0xcd, 0x98, 0xf9, 0x3f]),
    (0xd2, INTEGERS, &[0x05, 0x20, 0x43, 0xc6]),
    (0xdf, FLOATS, &[0xff, 0x9b, 0xd9, 0x0c]),
    (0xd5, FLOATS, &[51, 153, 255, 0]),
    (0xd7, NEGATIVE, &[0xe7, 127, 0x81, 64]),
    (0xd8, SIGNED, &[0xfb, 100, 0x9c, 3]),
    (0xd9, INTEGERS, &[5, 200, 100, 3]),
    (0xda, FLOATS, &[0x33, 0x33, 0x99, 0x99]),
    (0xdd, INTEGERS, &[5, 0, 200, 0]),
    (0xde, FLOATS, &[0x66, 0x32, 0xcd, 0x38]),
    // 1, 0.5 and 0.5 with exponents of 15, 14 and 14: 3c0, 380 and 1c0.
    (0xe0, [ONE, HALF, HALF, 0], &[0xc0, 0x03, 0x1c, 0x70]),
    (0xe3, SIGNED, &[0xfb, 0xff, 0xff, 0xff]),
    (0xe5, FLOATS, &[0xcd, 0xcc, 0x4c, 0x3e]),
    // Opacity is no component of the next: zero.
    (0xe6, [FIFTH, THREE_FIFTHS, ONE, ONE], &[255, 153, 51, 0]),
    // Blue 31, green 38, red 6.
    (0xe8, FLOATS, &[0xdf, 0x34]),
    // Blue 31, green 19, red 6, opacity 1.
    (0xe9, [FIFTH, THREE_FIFTHS, ONE, ONE], &[0x7f, 0x9a]),
    (0xea, FLOATS, &[51, 153]),
    (0xed, INTEGERS, &[5, 200]),
    (0xee, FLOATS, &[0x33, 0x33]),
    (0xf1, INTEGERS, &[5, 0]),
    (0xf2, FLOATS, &[0x66, 0x32]),
    (0xf3, FLOATS, &[51]),
    (0xf4, NEGATIVE, &[0xe7]),
    (0xf5, SIGNED, &[0xfb]),
    (0xf6, INTEGERS, &[5]),
    (0xf7, [ONE, ONE, ONE, FIFTH], &[51]),
];

#[test]
fn color_becomes_the_bytes_of_each_format() {
    let mut bench = ready();
    let (mut channel, vram) = with_target(&mut bench, &[]);
    for (format, color, texel) in PIXELS {
        let target = Target {
            format: *format,
            ..LINEAR
        };
        bench.set_vram_bytes(vram, &[0xee; 0x40]);
        let methods = Target {
            scissor: [1, 0, 1, 1],
            ..target
        };
        bench.submit(&mut channel, &clear(&methods, *color, 0x3c).0);
        bench.run();
        let mut wanted = vec![0xee; 0x40];
        wanted[texel.len()..2 * texel.len()].copy_from_slice(texel);
        assert_eq!(bench.vram_bytes(vram, 0x40), wanted, "format {format:#x}");
    }
}

#[test]
fn components_that_are_not_named_stay() {
    let before = noise();
    let clear_green = |format, pixel: usize| {
        let target = Target { format, ..LINEAR };
        after(&before, &clear(&target, [ONE; 4], 8))[..pixel].to_vec()
    };
    assert_eq!(
        clear_green(RGBA8_UNORM, 4),
        [before[0], 0xff, before[2], before[3]]
    );
    // Green of B5G6R5 is bits 5 to 10.
    assert_eq!(clear_green(0xe8, 2), [before[0] | 0xe0, before[1] | 0x07]);
    // A format without green has nothing to clear.
    assert_eq!(clear_green(0xf3, 2), before[..2]);
}

/// A depth target of this format, cleared with an operand.
fn clear_depth(format: u32, depth: f32, operand: u32) -> Methods {
    Methods::new()
        .to(0, 0xd90, &[depth.to_bits()])
        .to(0, 0xda0, &[0x1a5])
        .to(0, 0xff4, &[1 << 16, 1 << 16])
        .to(0, 0xfe0, &[(TARGET >> 32) as u32, TARGET as u32, format, 0, 0])
        .to(0, 0x1228, &[16, 8, 1 << 16 | 1])
        .to(0, 0x179c, &[0])
        .to(0, 0x1538, &[1])
        .to(0, 0x1558, &[1])
        .to(0, 0x19d0, &[operand])
}

#[test]
fn depth_and_stencil_lie_where_the_format_says() {
    let before = noise();
    let [a, b, c, d] = [0, 1, 2, 3].map(|at: usize| before[at]);
    for (format, operand, wanted) in [
        // 0.25 of 65535 is 16383.75, of 16777215 it is 4194303.75.
        (0x13, 1, vec![0x00, 0x40, c, d]),
        (0x14, 1, vec![a, 0x00, 0x00, 0x40]),
        (0x14, 2, vec![0xa5, b, c, d]),
        (0x14, 3, vec![0xa5, 0x00, 0x00, 0x40]),
        (0x16, 1, vec![0x00, 0x00, 0x40, d]),
        (0x16, 2, vec![a, b, c, 0xa5]),
        (0x16, 3, vec![0x00, 0x00, 0x40, 0xa5]),
        (0x15, 1, vec![0x00, 0x00, 0x40, 0]),
        (0x0a, 1, vec![0, 0, 0x80, 0x3e]),
        (0x19, 1, vec![0, 0, 0x80, 0x3e, before[4], before[5]]),
        (0x19, 2, vec![a, b, c, d, 0xa5, before[5]]),
        (0x19, 3, vec![0, 0, 0x80, 0x3e, 0xa5, 0, 0, 0]),
    ] {
        let found = after(&before, &clear_depth(format, 0.25, operand));
        assert_eq!(found[..wanted.len()], wanted, "format {format:#x}, {operand}");
        assert_eq!(found[8..], before[8..], "format {format:#x}, {operand}");
    }
}

#[test]
fn stencil_mask_counts_if_the_flags_say_so() {
    let before = noise();
    let masked = |flags| {
        let methods = Methods::new().to(0, 0x139c, &[0x0f]).to(0, 0x10f8, &[flags]);
        let words = [methods.0, clear_depth(0x14, 0.0, 2).0].concat();
        after(&before, &Methods(words))[0]
    };
    assert_eq!([masked(0), masked(1)], [0xa5, before[0] & 0xf0 | 5]);
}

#[test]
fn depth_and_color_are_cleared_by_one_method() {
    let before = noise();
    let color = Target {
        block: Some([0, 0]),
        size: [16, 8, 1],
        scissor: [0, 0, 16, 8],
        ..LINEAR
    };
    let place = TARGET + 0x1000;
    let methods = color
        .methods(0, [7, 0, 0, 0])
        .to(0, 0xd90, &[ONE])
        .to(0, 0xfe0, &[(place >> 32) as u32, place as u32, 0x0a, 0, 0])
        .to(0, 0x1228, &[10, 8, 1])
        .to(0, 0x1538, &[1])
        .to(0, 0x19d0, &[0x3d]);
    let found = after(&before, &methods);
    let mut wanted = color.expected(&before, &[7, 0, 0, 0]);
    for line in 0..8 {
        for pixel in 0..10 {
            let at = 0x1000 + line * 64 + pixel * 4;
            wanted[at..at + 4].copy_from_slice(&[0, 0, 0x80, 0x3f]);
        }
    }
    assert!(found == wanted);
}

/// A clear of both kinds of targets, one piece at a time.
#[test]
fn clear_goes_on_piece_by_piece() {
    let before = noise();
    let mut bench = ready();
    let (mut channel, vram) = with_target(&mut bench, &before);
    let tall = Target {
        block: Some([0, 0]),
        size: [16, 0x400, 1],
        scissor: [0, 0, 16, 0x400],
        ..LINEAR
    };
    let place = TARGET + 0x1_0000;
    let methods = tall
        .methods(0, [7, 0, 0, 0])
        .to(0, 0xd90, &[ONE])
        .to(0, 0xfe0, &[(place >> 32) as u32, place as u32, 0x0a, 0, 0])
        .to(0, 0x1228, &[16, 0x400, 1])
        .to(0, 0x1538, &[1])
        .to(0, 0x19d0, &[0x3d]);
    bench.submit(&mut channel, &methods.0);
    let mut steps = 0;
    while bench.card.step(bench.now_ns, 1) == Stepped::Busy {
        steps += 1;
    }
    // 128 KiB in pieces of 1024 lines of 64 bytes.
    assert!(steps > 2, "{steps}");
    let found = bench.vram_bytes(vram, BYTES as usize);
    assert!(
        found[..0x1_0000]
            .chunks_exact(4)
            .all(|pixel| pixel == [7, 0, 0, 0])
    );
    let depths = &found[0x1_0000..0x2_0000];
    assert!(depths.chunks_exact(4).all(|depth| depth == [0, 0, 0x80, 0x3f]));
    assert_eq!(found[0x2_0000..], before[0x2_0000..]);
    assert_eq!(bench.card.counters().cleared_bytes, 0x2_0000);
}

#[test]
fn flags_let_scissor_and_viewport_cut() {
    let before = noise();
    let cleared = |flags| {
        let methods = Methods::new()
            .to(0, 0xc00, &[4 << 16 | 2, 8 << 16])
            .to(0, 0xe00, &[1, 5 << 16 | 3, 8 << 16])
            .to(0, 0x10f8, &[flags]);
        let words = [methods.0, clear(&LINEAR, [0, 0, 0, 0], 0x3c).0].concat();
        let found = after(&before, &Methods(words));
        let is_cleared = |pixel: &usize| found[4 * pixel..4 * pixel + 4] == [0; 4];
        (0..64).filter(is_cleared).collect::<Vec<_>>()
    };
    assert_eq!(cleared(0).len(), 64);
    assert_eq!(cleared(1 << 8), [3, 4]);
    assert_eq!(cleared(1 << 12), [2, 3, 4, 5]);
    assert_eq!(cleared(1 << 8 | 1 << 12), [3, 4]);
}

#[test]
fn samples_multiply_the_scissor() {
    let before = noise();
    let target = Target {
        block: Some([0, 0]),
        size: [32, 16, 1],
        scissor: [1, 1, 3, 2],
        ..LINEAR
    };
    let methods = Methods::new().to(0, 0x15d0, &[3]);
    let words = [methods.0, clear(&target, [9, 0, 0, 0], 0x3c).0].concat();
    let scaled = Target {
        scissor: [4, 2, 12, 4],
        ..target
    };
    assert!(after(&before, &Methods(words)) == scaled.expected(&before, &[9, 0, 0, 0]));
}

#[test]
fn condition_decides_whether_anything_is_cleared() {
    let before = noise();
    let on = |mode, report: u64| {
        let at = TARGET + report;
        let methods = LINEAR
            .methods(0, [1, 0, 0, 0])
            .to(0, 0x1550, &[(at >> 32) as u32, at as u32, mode])
            .to(0, 0x19d0, &[0x3c]);
        after(&before, &methods)[..4] == [1, 0, 0, 0]
    };
    assert_eq!([on(0, 0), on(1, 0), on(2, 0x4000)], [false, true, true]);
}

#[test]
fn target_that_ends_in_no_page_is_a_fault() {
    let mut bench = ready();
    let (mut channel, vram) = with_target(&mut bench, &noise());
    let target = Target {
        size: [0x100, 0x2000, 1],
        scissor: [0, 0, 64, 0x2000],
        ..LINEAR
    };
    bench.submit(&mut channel, &clear(&target, [0; 4], 0x3c).0);
    bench.run();
    assert_eq!(bench.read(PfifoReg::FaultUnits), 1 << Engine::Graph.fault_unit());
    assert_eq!(bench.read(PfifoReg::FaultRecord(1)), (TARGET + BYTES) as u32);
    // What lies in front of the page was cleared.
    let last = bench.vram_bytes(vram + BYTES - 0x100, 0x100);
    assert_eq!(last, [0; 0x100]);
    assert_eq!(bench.card.counters().clears, 0);
}

#[test]
fn draw_is_counted_and_does_nothing() {
    let before = noise();
    let mut bench = ready();
    let (mut channel, vram) = with_target(&mut bench, &before);
    let methods = LINEAR
        .methods(0, [1, 0, 0, 0])
        .to(0, 0x1618, &[4])
        .to(0, 0xd74, &[0, 3])
        .to(0, 0x1614, &[0])
        .to(0, 0x17e4, &[0])
        // A clear within clip rectangles is not modelled either.
        .to(0, 0x194c, &[1])
        .to(0, 0x19d0, &[0x3c]);
    bench.submit(&mut channel, &methods.0);
    assert_eq!(bench.run(), Stepped::Idle);
    let counters = bench.card.counters();
    assert_eq!((counters.unmodelled_draws, counters.clears), (3, 0));
    assert!(bench.vram_bytes(vram, BYTES as usize) == before);
}

#[test]
fn clear_without_a_target_is_no_work() {
    let before = noise();
    for target in [
        Target { format: 0, ..LINEAR },
        Target {
            scissor: [0; 4],
            ..LINEAR
        },
        Target { layer: 1, ..LINEAR },
    ] {
        let found = after(&before, &clear(&target, [1; 4], 0x3c));
        assert!(found == before, "{target:?}");
    }
}

fn formats() -> impl Strategy<Value = (u32, u32)> {
    prop_oneof![
        Just((R8_UINT, 1)),
        Just((0xf1, 2)),
        Just((R32_UINT, 4)),
        Just((0xcd, 8)),
        Just((RGBA32_UINT, 16))
    ]
}

fn targets() -> impl Strategy<Value = Target> {
    let block = prop_oneof![1 => Just(None), 3 => [0u32..4, 0u32..3].prop_map(Some)];
    (
        formats(),
        block,
        [1u32..70, 1u32..60, 1u32..5],
        [0u32..40, 0u32..40, 0u32..80, 0u32..80],
        any::<bool>(),
        0u32..5,
    )
        .prop_map(
            |((format, pixel), block, [width, height, layers], scissor, is_volume, layer)| Target {
                format,
                pixel,
                block,
                size: match block {
                    None => [width * pixel + 3, height, 1],
                    Some(_) => [width, height, layers],
                },
                is_volume,
                layer_bytes: 0x1_8000,
                scissor,
                layer: if block.is_some() { layer } else { 0 },
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn rectangle_is_filled_and_nothing_else(target in targets()) {
        let before = noise();
        let color = [0x0403_0201, 0x0807_0605, 0x0c0b_0a09, 0x100f_0e0d];
        let narrow = match target.pixel {
            1 => [0x01, 0, 0, 0],
            2 => [0x0201, 0, 0, 0],
            _ => color,
        };
        let texel: Vec<u8> = (1..17).collect();
        let found = after(&before, &clear(&target, narrow, 0x3c));
        prop_assert!(found == target.expected(&before, &texel));
    }

    #[test]
    fn any_registers_end_in_pieces(
        words in proptest::collection::vec((proptest::sample::select(SETTING.to_vec()), any::<u32>()), 0..12),
        operand in any::<u32>(),
    ) {
        let mut bench = ready();
        let (mut channel, _) = with_target(&mut bench, &[]);
        let methods = words
            .into_iter()
            .fold(LINEAR.methods(0, [1; 4]).to(0, 0x1538, &[1]), |methods, (method, word)| {
                methods.to(0, method, &[word])
            })
            .to(0, 0x19d0, &[operand, operand ^ 0x3f])
            .to(0, 0x19d0, &[operand | 0x3f]);
        bench.submit(&mut channel, &methods.0);
        for _ in 0..50 {
            bench.now_ns += 1_000_000;
            bench.card.step(bench.now_ns, 200);
        }
    }
}

/// Methods about targets.
const SETTING: &[u16] = &[
    0x800, 0x804, 0x808, 0x80c, 0x810, 0x814, 0x818, 0x81c, 0x820, 0xc00, 0xc04, 0xe00, 0xe04, 0xe08, 0xfe0,
    0xfe4, 0xfe8, 0xfec, 0xff0, 0xff4, 0xff8, 0x10f8, 0x1228, 0x122c, 0x1230, 0x139c, 0x1538, 0x1550, 0x1554,
    0x1558, 0x15d0, 0x179c, 0x194c, 0x197c,
];
