//! Copies between pitch and block-linear surfaces, against a reference that moves one byte after the other.

use super::support::*;
use crate::Stepped;
use fermi_spec::{
    methods::{M2mfLaunch, m2mf},
    regs::{PfifoReg, PgraphReg, pgraph::graph_data_error, pgraph::graph_intr},
};
use proptest::prelude::*;

pub(super) const SOURCE: u64 = 0x800_0000;
pub(super) const TARGET: u64 = 0x900_0000;
/// Bytes mapped at each of them.
pub(super) const BYTES: u64 = 0x8_0000;
const M2MF: u8 = 2;

/// One side of a copy as a driver describes it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shape {
    Pitch(u32),
    Blocks {
        /// log2 of the GOBs in y and in z.
        height: u32,
        depth: u32,
        /// Bytes, lines, layers.
        size: [u32; 3],
        /// Byte, line, layer.
        origin: [u32; 3],
        /// Bytes and lines of a GOB.
        gob: [u32; 2],
    },
}

impl Shape {
    /// Where a byte of a line lies, by division.
    pub(super) fn at(&self, line: u32, byte: u32) -> usize {
        match *self {
            Self::Pitch(pitch) => (line * pitch + byte) as usize,
            Self::Blocks {
                height,
                depth,
                size,
                origin,
                gob: [gob_bytes, gob_lines],
            } => {
                let (x, y, z) = (origin[0] + byte, origin[1] + line, origin[2]);
                let (lines, layers) = (gob_lines << height, 1 << depth);
                let across = size[0].div_ceil(gob_bytes);
                let down = size[1].div_ceil(lines);
                let block = (z / layers * down + y / lines) * across + x / gob_bytes;
                let gob = ((z % layers) << height) + y % lines / gob_lines;
                let inside = y % gob_lines * gob_bytes + x % gob_bytes;
                ((block * layers * lines + gob * gob_lines) * gob_bytes + inside) as usize
            }
        }
    }

    pub(super) fn is_linear(&self) -> bool {
        matches!(self, Self::Pitch(_))
    }
}

/// Lines of bytes from one shape to another.
#[derive(Clone, Debug)]
pub(super) struct Copy {
    pub(super) source: Shape,
    pub(super) target: Shape,
    pub(super) bytes: u32,
    pub(super) lines: u32,
}

impl Copy {
    /// What the target's memory holds when `source` and `target` were there before.
    pub(super) fn expected(&self, source: &[u8], target: &[u8]) -> Vec<u8> {
        let mut result = target.to_vec();
        for line in 0..self.lines {
            for byte in 0..self.bytes {
                result[self.target.at(line, byte)] = source[self.source.at(line, byte)];
            }
        }
        result
    }
}

/// A shape that has room for `bytes` × `lines`, GOBs of `gob`.
pub(super) fn shape(
    bytes: u32,
    lines: u32,
    gob: impl Strategy<Value = [u32; 2]>,
) -> impl Strategy<Value = Shape> {
    let blocks = (
        0u32..4,
        0u32..3,
        [0u32..100, 0u32..20, 1u32..4],
        [0u32..200, 0u32..30, 0u32..9],
        gob,
    )
        .prop_map(move |(height, depth, more, [x, y, z], gob)| Shape::Blocks {
            height,
            depth,
            size: [x + bytes + more[0], y + lines + more[1], more[2]],
            origin: [x, y, z % more[2]],
            gob,
        });
    prop_oneof![1 => (bytes..bytes + 100).prop_map(Shape::Pitch), 3 => blocks]
}

pub(super) fn copies(gob: fn() -> BoxedStrategy<[u32; 2]>) -> impl Strategy<Value = Copy> {
    (1u32..300, 1u32..70).prop_flat_map(move |(bytes, lines)| {
        let sides = (shape(bytes, lines, gob()), shape(bytes, lines, gob()));
        sides.prop_map(move |(source, target)| Copy {
            source,
            target,
            bytes,
            lines,
        })
    })
}

fn gob_of_m2mf() -> BoxedStrategy<[u32; 2]> {
    Just([64, 8]).boxed()
}

/// A channel with random bytes at [`SOURCE`] in VRAM and other bytes at [`TARGET`] in system memory.
pub(super) struct Room {
    pub(super) bench: Bench,
    pub(super) channel: Channel,
    pub(super) source: Vec<u8>,
    pub(super) target: Vec<u8>,
}

impl Room {
    pub(super) fn new() -> Self {
        Self::on(ready())
    }

    pub(super) fn on(mut bench: Bench) -> Self {
        let channel = bench.channel(1);
        let vram = bench.allocate(BYTES);
        bench.map(channel.space, SOURCE, Page::Vram(vram), BYTES);
        bench.map(channel.space, TARGET, Page::Ram(0), BYTES);
        bench.flush();
        let source: Vec<u8> = (0..BYTES).map(|i| (i * 7 + (i >> 8) * 13) as u8).collect();
        bench.set_vram_bytes(vram, &source);
        let target = vec![0xa5; BYTES as usize];
        bench.set_ram_bytes(0, &target);
        bench.runlist(&[1]);
        bench.run();
        Self {
            bench,
            channel,
            source,
            target,
        }
    }

    pub(super) fn submit(&mut self, methods: &Methods) -> Stepped {
        self.bench.submit(&mut self.channel, &methods.0);
        self.bench.run()
    }

    pub(super) fn result(&self) -> Vec<u8> {
        self.bench.ram_bytes(0, BYTES as usize)
    }

    /// Whether memory holds what the reference makes of it.
    pub(super) fn is_as_expected(&self, copy: &Copy) -> bool {
        self.result() == copy.expected(&self.source, &self.target)
    }
}

/// The methods that describe a copy to M2MF, without the launch.
fn m2mf_setup(copy: &Copy) -> Methods {
    let mut methods = Methods::new().to(M2MF, 0, &[0x9039]);
    let sides = [
        (
            copy.source,
            m2mf::OFFSET_IN_HIGH,
            SOURCE,
            m2mf::PITCH_IN,
            m2mf::SRC_BLOCK_SIZE,
            m2mf::SRC_ORIGIN_X,
        ),
        (
            copy.target,
            m2mf::OFFSET_OUT_HIGH,
            TARGET,
            m2mf::PITCH_OUT,
            m2mf::DST_BLOCK_SIZE,
            m2mf::DST_ORIGIN_X,
        ),
    ];
    for (shape, address, va, pitch_at, block_size, origin_x) in sides {
        methods = methods.to(M2MF, address, &[(va >> 32) as u32, va as u32]);
        methods = match shape {
            Shape::Pitch(pitch) => methods.to(M2MF, pitch_at, &[pitch]),
            Shape::Blocks {
                height,
                depth,
                size: [width, lines, layers],
                origin: [x, y, z],
                ..
            } => methods
                .to(
                    M2MF,
                    block_size,
                    &[height << 4 | depth << 8, width, lines, layers, z],
                )
                .to(M2MF, origin_x, &[x, y]),
        };
    }
    methods.to(M2MF, m2mf::LINE_LENGTH, &[copy.bytes, copy.lines])
}

fn layouts(copy: &Copy) -> M2mfLaunch {
    M2mfLaunch::new()
        .with_src_linear(copy.source.is_linear())
        .with_dst_linear(copy.target.is_linear())
}

/// A copy of 100 × 10 bytes from a pitch surface into the middle of a block-linear one.
fn into_blocks() -> Copy {
    Copy {
        source: Shape::Pitch(128),
        target: Shape::Blocks {
            height: 1,
            depth: 0,
            size: [200, 40, 1],
            origin: [33, 5, 0],
            gob: [64, 8],
        },
        bytes: 100,
        lines: 10,
    }
}

/// The methods of [`into_blocks`] with one of them changed.
fn changed(method: u16, data: u32) -> Methods {
    let copy = into_blocks();
    m2mf_setup(&copy)
        .to(M2MF, method, &[data])
        .to(M2MF, m2mf::LAUNCH, &[layouts(&copy).into_bits()])
}

fn data_error(methods: &Methods) -> (u32, u32, bool) {
    let mut room = Room::new();
    room.submit(methods);
    let intr = room.bench.read(PgraphReg::GraphIntr);
    let code = room.bench.read(PgraphReg::GraphDataError);
    (intr, code, room.result() == room.target)
}

#[test]
fn lines_beyond_the_surface_are_a_data_error_and_move_nothing() {
    let error = (graph_intr::DATA_ERROR, graph_data_error::XY_OUT_OF_BOUNDS, true);
    assert_eq!(data_error(&changed(m2mf::LINE_COUNT, 36)), error);
    assert_eq!(data_error(&changed(m2mf::LINE_LENGTH, 168)), error);
}

#[test]
fn layer_beyond_the_surface_is_a_data_error() {
    let error = (graph_intr::DATA_ERROR, graph_data_error::Z_OUT_OF_BOUNDS, true);
    assert_eq!(data_error(&changed(m2mf::DST_LAYER, 1)), error);
}

#[test]
fn block_wider_than_a_gob_is_a_data_error() {
    let error = (graph_intr::DATA_ERROR, graph_data_error::INVALID_ENUM);
    let (intr, code, _) = data_error(&changed(m2mf::DST_BLOCK_SIZE, 0x011));
    assert_eq!((intr, code), error);
    let (intr, code, _) = data_error(&changed(m2mf::SRC_BLOCK_SIZE, 0x060));
    assert_eq!((intr, code), error);
}

#[test]
fn reserved_bits_are_a_data_error() {
    let error = (graph_intr::DATA_ERROR, graph_data_error::INVALID_BITFIELD);
    for (method, data) in [
        (m2mf::DST_BLOCK_SIZE, 0x1000),
        (m2mf::DST_ORIGIN_X, 0x10_0000),
        (m2mf::SRC_ORIGIN_Y, 0x1_0000),
        (m2mf::OFFSET_IN_HIGH, 0x100),
        (m2mf::LAUNCH, 0x112),
    ] {
        let (intr, code, _) = data_error(&changed(method, data));
        assert_eq!((intr, code), error);
    }
}

#[test]
fn completion_without_a_name_is_a_data_error() {
    let launch = layouts(&into_blocks());
    for launch in [launch.with_completion(3), launch.with_interrupt(2)] {
        let methods = m2mf_setup(&into_blocks()).to(M2MF, m2mf::LAUNCH, &[launch.into_bits()]);
        let error = (graph_intr::DATA_ERROR, graph_data_error::INVALID_ENUM, true);
        assert_eq!(data_error(&methods), error);
    }
}

#[test]
fn semaphore_of_a_tiled_copy_is_released_after_its_bytes() {
    for short in [false, true] {
        let mut room = Room::new();
        let copy = into_blocks();
        let launch = layouts(&copy)
            .with_completion(M2mfLaunch::RELEASE_SEMAPHORE)
            .with_semaphore_short(short)
            .with_interrupt(M2mfLaunch::INTERRUPT);
        let semaphore = TARGET + BYTES - 16;
        let methods = m2mf_setup(&copy)
            .to(M2MF, m2mf::SEMAPHORE_HIGH, &[0, semaphore as u32, 0x1234_5678])
            .to(M2MF, m2mf::LAUNCH, &[launch.into_bits()]);
        assert_eq!(room.submit(&methods), Stepped::Idle);
        let result = room.result();
        let mut expected = copy.expected(&room.source, &room.target);
        let report = expected.len() - 16;
        expected[report..report + 4].copy_from_slice(&0x1234_5678u32.to_le_bytes());
        if !short {
            expected[report + 4..report + 8].fill(0);
            expected[report + 8..].copy_from_slice(&result[report + 8..]);
            assert_ne!(result[report + 8..], room.target[report + 8..]);
        }
        assert!(result == expected);
        assert_ne!(room.bench.read(PfifoReg::EngineIntr(0)), 0);
    }
}

#[test]
fn copy_takes_place_only_if_rendering_is_enabled() {
    // Mode of the method, override, whether it copies; the condition's report is not zero.
    for (mode, over, copies) in [
        (0, 0, false),
        (1, 0, true),
        (2, 0, true),
        (0, 1, true),
        (1, 2, false),
    ] {
        let mut room = Room::new();
        room.bench.set_ram_bytes(BYTES - 16, &[1; 16]);
        room.target = room.result();
        let copy = into_blocks();
        let report = TARGET + BYTES - 16;
        let methods = m2mf_setup(&copy)
            .to(M2MF, m2mf::RENDER_ENABLE_A, &[0, report as u32, mode])
            .to(M2MF, m2mf::RENDER_ENABLE_OVERRIDE, &[over])
            .to(M2MF, m2mf::LAUNCH, &[layouts(&copy).into_bits()]);
        room.submit(&methods);
        let lines = if copies { copy.lines } else { 0 };
        assert!(room.is_as_expected(&Copy { lines, ..copy }));
    }
}

#[test]
fn fault_within_a_tiled_copy_stops_that_channel_alone() {
    let mut room = Room::new();
    let other = room.bench.channel(2);
    room.bench.runlist(&[1, 2]);
    room.bench.run();
    // Blocks of 4 KiB: the second block of each row of blocks has no page.
    let entry = room.bench.small_entry(room.channel.space, TARGET + 0x1000);
    room.bench.set_vram_u64(entry, 0);
    room.bench.flush();
    let copy = Copy {
        source: Shape::Pitch(256),
        target: Shape::Blocks {
            height: 3,
            depth: 0,
            size: [256, 64, 1],
            origin: [0; 3],
            gob: [64, 8],
        },
        bytes: 256,
        lines: 64,
    };
    let methods = m2mf_setup(&copy).to(M2MF, m2mf::LAUNCH, &[layouts(&copy).into_bits()]);
    room.submit(&methods);
    assert_eq!(room.bench.read(PfifoReg::FaultUnits), 1);
    // What lies before the missing page in the first line has been copied, nothing behind it.
    let result = room.result();
    assert_eq!(result[..64], room.source[..64]);
    assert_eq!(result[64..0x1000], room.target[64..0x1000]);
    assert_eq!(result[0x2000..], room.target[0x2000..]);
    let mut other = other;
    room.bench.map(other.space, TARGET, Page::Ram(BYTES), 0x1000);
    room.bench.flush();
    room.bench
        .submit(&mut other, &Methods::new().release(TARGET, 77).0);
    room.bench.run();
    assert_eq!(room.bench.ram_u32(BYTES), 77);
}

#[test]
fn other_channel_runs_in_the_middle_of_a_tiled_copy() {
    let mut room = Room::new();
    let mut other = room.bench.channel(2);
    let semaphores = room.bench.allocate(0x1000);
    room.bench
        .map(other.space, TARGET, Page::Vram(semaphores), 0x1000);
    room.bench
        .map(room.channel.space, 0xa00_0000, Page::Vram(semaphores), 0x1000);
    room.bench.flush();
    room.bench.runlist(&[1, 2]);
    room.bench.run();
    let copy = Copy {
        source: Shape::Pitch(1024),
        target: Shape::Blocks {
            height: 4,
            depth: 0,
            size: [1024, 500, 1],
            origin: [0; 3],
            gob: [64, 8],
        },
        bytes: 1024,
        lines: 500,
    };
    let methods = m2mf_setup(&copy)
        .to(M2MF, m2mf::LAUNCH, &[layouts(&copy).into_bits()])
        .release(0xa00_0000, 1);
    room.bench.submit(&mut room.channel, &methods.0);
    room.bench.card.step(0, 40);
    room.bench
        .submit(&mut other, &Methods::new().release(TARGET + 4, 2).0);
    while room.bench.vram_u32(semaphores + 4) != 2 {
        room.bench.card.step(0, 1);
        assert_eq!(room.bench.vram_u32(semaphores), 0);
    }
    room.bench.run();
    assert_eq!(room.bench.vram_u32(semaphores), 1);
    assert!(room.is_as_expected(&copy));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn m2mf_moves_what_the_reference_moves(copy in copies(gob_of_m2mf)) {
        let mut room = Room::new();
        let methods = m2mf_setup(&copy).to(M2MF, m2mf::LAUNCH, &[layouts(&copy).into_bits()]);
        prop_assert_eq!(room.submit(&methods), Stepped::Idle);
        prop_assert_eq!(room.bench.read(PgraphReg::GraphIntr), 0);
        prop_assert!(room.is_as_expected(&copy));
    }

    #[test]
    fn inline_data_arrives_where_the_reference_puts_it(copy in copies(gob_of_m2mf)) {
        let mut room = Room::new();
        let lines = copy.lines.min(9);
        let words = copy.bytes.div_ceil(4);
        // Lines of inline data are padded to words.
        let copy = Copy { source: Shape::Pitch(4 * words), lines, ..copy };
        let launch = layouts(&copy).with_inline(true);
        let setup = m2mf_setup(&copy).to(M2MF, m2mf::LAUNCH, &[launch.into_bits()]);
        room.submit(&setup);
        let data: Vec<u32> = room.source.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
        for chunk in data[..(words * lines) as usize].chunks(500) {
            room.submit(&Methods::new().repeated(M2MF, m2mf::DATA, chunk));
        }
        prop_assert_eq!(room.bench.read(PgraphReg::GraphIntr), 0);
        prop_assert!(room.is_as_expected(&copy));
    }
}
