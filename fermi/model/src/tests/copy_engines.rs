//! Copies by the copy engines with the methods of either microcode, against the reference of `surfaces`.

use super::{
    support::*,
    surfaces::{BYTES, Copy, Room, SOURCE, Shape, TARGET, copies},
};
use crate::{CopyMicrocode, Stepped};
use fermi_spec::{
    methods::{
        CopyExec,
        copy::{self, tile},
        nvidia_copy::{self, AddressingMode, LaunchDma, surface},
    },
    regs::{
        PcopyReg, PfifoReg,
        pcopy::{copy_error, copy_intr},
    },
};
use proptest::prelude::*;

const CE: u8 = 1;
const BIND: u32 = 0x0004_90b5;

fn halves(va: u64) -> [u32; 2] {
    [(va >> 32) as u32, va as u32]
}

/// What is done to each element: the reference's way of saying so.
#[derive(Clone, Copy, Debug)]
struct Format {
    /// Selectors: 0 to 3 a component, 4 and 5 a constant, 6 zero or nothing.
    select: [u32; 4],
    /// Bytes of a component, components of source and target.
    sizes: [u32; 3],
    constants: [u32; 2],
    /// Selector 6 leaves the target as it is.
    keeps: bool,
}

impl Format {
    fn bits(&self) -> u32 {
        let [x, y, z, w] = self.select;
        let [bytes, source, target] = self.sizes;
        x | y << 4 | z << 8 | w << 12 | (bytes - 1) << 16 | (source - 1) << 20 | (target - 1) << 24
    }

    fn source_bytes(&self) -> u32 {
        self.sizes[0] * self.sizes[1]
    }

    fn target_bytes(&self) -> u32 {
        self.sizes[0] * self.sizes[2]
    }

    /// What the target's memory holds after `copy`, whose shapes count in bytes and whose lines in elements.
    fn expected(&self, copy: &Copy, source: &[u8], target: &[u8]) -> Vec<u8> {
        let mut result = target.to_vec();
        let bytes = self.sizes[0];
        for line in 0..copy.lines {
            for byte in 0..copy.bytes * self.target_bytes() {
                let (element, inside) = (byte / self.target_bytes(), byte % self.target_bytes());
                let (component, inside) = (inside / bytes, inside % bytes);
                let at = copy.target.at(line, byte);
                match self.select[component as usize] {
                    which @ 0..=3 if which < self.sizes[1] => {
                        let from = element * self.source_bytes() + which * bytes + inside;
                        result[at] = source[copy.source.at(line, from)];
                    }
                    which @ 4..=5 => {
                        result[at] = (self.constants[which as usize - 4] >> (8 * inside)) as u8;
                    }
                    6 if self.keeps => {}
                    _ => result[at] = 0,
                }
            }
        }
        result
    }
}

/// Formats, with the largest selector.
fn formats(keeps: bool) -> impl Strategy<Value = Format> {
    (
        [0u32..7, 0u32..7, 0u32..7, 0u32..7],
        [1u32..5, 1u32..5, 1u32..5],
        any::<[u32; 2]>(),
    )
        .prop_map(move |(select, sizes, constants)| Format {
            select,
            sizes,
            constants,
            keeps,
        })
}

/// The same copy of as many elements, with room for them.
fn in_elements(copy: &Copy, format: &Format) -> Copy {
    let scale = |shape: Shape, element: u32| match shape {
        Shape::Pitch(pitch) => Shape::Pitch(pitch.max(copy.bytes) * element),
        Shape::Blocks {
            height,
            depth,
            size,
            origin,
            gob,
        } => Shape::Blocks {
            height,
            depth,
            size: [size[0] * element, size[1], size[2]],
            origin: [origin[0] * element, origin[1], origin[2]],
            gob,
        },
    };
    Copy {
        source: scale(copy.source, format.source_bytes()),
        target: scale(copy.target, format.target_bytes()),
        ..copy.clone()
    }
}

/// Elements of few bytes in small shapes: 16 times as wide they still fit.
fn small(copy: Copy) -> Copy {
    let shrink = |shape: Shape| match shape {
        Shape::Pitch(pitch) => Shape::Pitch(pitch / 8 + 1),
        Shape::Blocks {
            height,
            depth,
            size,
            origin,
            gob,
        } => Shape::Blocks {
            height: height.min(1),
            depth: depth.min(1),
            size: [size[0] / 8 + 3, size[1], size[2]],
            origin: [origin[0] / 8, origin[1], origin[2]],
            gob,
        },
    };
    Copy {
        source: shrink(copy.source),
        target: shrink(copy.target),
        bytes: copy.bytes / 8 + 1,
        lines: copy.lines,
    }
}

fn gob_of_nouveau() -> BoxedStrategy<[u32; 2]> {
    prop_oneof![3 => Just([64, 8]), 1 => Just([16, 8])].boxed()
}

fn gob_of_nvidia() -> BoxedStrategy<[u32; 2]> {
    proptest::sample::select(vec![[64, 8], [16, 8], [64, 4], [16, 4]]).boxed()
}

fn block_size(height: u32, depth: u32, gob: [u32; 2]) -> u32 {
    height << 4 | depth << 8 | if gob[0] == 16 { 0xe } else { 0 }
}

/// The methods of nouveau's microcode for a copy whose shapes are in bytes and whose elements have these.
fn nouveau(copy: &Copy, [source_bytes, target_bytes]: [u32; 2]) -> Methods {
    let mut methods = Methods::new().to(CE, 0, &[BIND]);
    let sides = [
        (
            copy.source,
            source_bytes,
            SOURCE,
            copy::SRC_HIGH,
            copy::SRC_PITCH,
            copy::SRC_TILE,
        ),
        (
            copy.target,
            target_bytes,
            TARGET,
            copy::DST_HIGH,
            copy::DST_PITCH,
            copy::DST_TILE,
        ),
    ];
    for (shape, element, va, address, pitch_at, tile_at) in sides {
        methods = methods.to(CE, address, &halves(va));
        methods = match shape {
            Shape::Pitch(pitch) => methods.to(CE, pitch_at, &[pitch]),
            Shape::Blocks {
                height,
                depth,
                size: [width, lines, layers],
                origin: [x, y, z],
                gob,
            } => methods.to(
                CE,
                tile_at + tile::BLOCK_SIZE.0,
                &[
                    block_size(height, depth, gob),
                    width / element,
                    lines,
                    layers,
                    z,
                    x / element,
                    y,
                ],
            ),
        };
    }
    methods.to(CE, copy::LINE_BYTES, &[copy.bytes, copy.lines])
}

fn exec(copy: &Copy) -> CopyExec {
    CopyExec::new()
        .with_src_linear(copy.source.is_linear())
        .with_dst_linear(copy.target.is_linear())
}

/// The same for NVIDIA's.
fn nvidia(copy: &Copy, [source_bytes, target_bytes]: [u32; 2]) -> Methods {
    let mut methods = Methods::new()
        .to(CE, 0, &[BIND])
        .to(CE, nvidia_copy::SET_APPLICATION_ID, &[1]);
    let sides = [
        (
            copy.source,
            source_bytes,
            SOURCE,
            nvidia_copy::OFFSET_IN_UPPER,
            nvidia_copy::PITCH_IN,
            nvidia_copy::SET_SRC_BLOCK_SIZE,
        ),
        (
            copy.target,
            target_bytes,
            TARGET,
            nvidia_copy::OFFSET_OUT_UPPER,
            nvidia_copy::PITCH_OUT,
            nvidia_copy::SET_DST_BLOCK_SIZE,
        ),
    ];
    for (shape, element, va, address, pitch_at, block_at) in sides {
        methods = methods.to(CE, address, &halves(va));
        methods = match shape {
            Shape::Pitch(pitch) => methods.to(CE, pitch_at, &[pitch]),
            Shape::Blocks {
                height,
                depth,
                size: [width, lines, layers],
                origin: [x, y, z],
                gob,
            } => {
                let gob_height = if gob[1] == 8 { 1 << 12 } else { 0 };
                let block = block_size(height, depth, gob) | gob_height;
                let origin = (x / element) | (y << 16);
                methods
                    .to(CE, block_at, &[block, width / element, lines, layers, z])
                    .to(CE, block_at + surface::ORIGIN, &[origin])
            }
        };
    }
    methods.to(CE, nvidia_copy::LINE_LENGTH_IN, &[copy.bytes, copy.lines])
}

fn launch(copy: &Copy) -> LaunchDma {
    LaunchDma::new()
        .with_transfer(LaunchDma::NON_PIPELINED)
        .with_multi_line(true)
        .with_src_linear(copy.source.is_linear())
        .with_dst_linear(copy.target.is_linear())
}

fn nvidia_room() -> Room {
    Room::on(ready_with_microcode(CopyMicrocode::Nvidia))
}

fn is_clean(room: &mut Room) -> bool {
    room.bench.read(PcopyReg::CopyIntr(0)) == 0 && room.bench.read(PfifoReg::FaultUnits) == 0
}

/// A copy of 40 × 20 bytes out of a tiled surface.
fn out_of_tiles() -> Copy {
    Copy {
        source: Shape::Blocks {
            height: 1,
            depth: 0,
            size: [128, 64, 1],
            origin: [50, 3, 0],
            gob: [64, 8],
        },
        target: Shape::Pitch(64),
        bytes: 40,
        lines: 20,
    }
}

fn fill() -> Format {
    Format {
        select: [4; 4],
        sizes: [4, 1, 1],
        constants: [0x0102_0304, 0],
        keeps: false,
    }
}

#[test]
fn fill_from_a_constant_needs_no_source() {
    let mut room = Room::new();
    let copy = Copy {
        source: Shape::Pitch(0),
        target: Shape::Pitch(64),
        bytes: 10,
        lines: 4,
    };
    let methods = nouveau(&copy, [4, 4])
        .to(CE, copy::SRC_HIGH, &[0xff, 0])
        .to(CE, copy::FORMAT, &[fill().bits(), fill().constants[0]])
        .to(CE, copy::EXEC, &[exec(&copy).with_format(true).into_bits()]);
    room.submit(&methods);
    assert!(is_clean(&mut room));
    assert!(room.result() == fill().expected(&copy, &room.source, &room.target));
}

#[test]
fn query_is_written_when_the_tiled_copy_is_done() {
    for short in [false, true] {
        let mut room = Room::new();
        let copy = out_of_tiles();
        let at = TARGET + BYTES - 16;
        let exec = exec(&copy).with_query(true).with_query_short(short);
        let methods = nouveau(&copy, [1, 1])
            .to(CE, copy::QUERY_HIGH, &[0, at as u32, 99])
            .to(CE, copy::EXEC, &[exec.into_bits()]);
        room.submit(&methods);
        let result = room.result();
        let report = BYTES as usize - 16;
        assert_eq!(result[report..report + 4], [99, 0, 0, 0]);
        let others_untouched = result[report + 4..] == room.target[report + 4..];
        assert_eq!(others_untouched, short);
        assert!(result[..report] == copy.expected(&room.source, &room.target)[..report]);
    }
}

#[test]
fn dispatch_error_names_method_and_data_and_stops_until_acknowledged() {
    let mut room = Room::new();
    let copy = out_of_tiles();
    let methods =
        nouveau(&copy, [1, 1])
            .to(CE, copy::LINES, &[0x2000])
            .to(CE, copy::EXEC, &[exec(&copy).into_bits()]);
    room.submit(&methods);
    assert_eq!(room.bench.read(PcopyReg::CopyIntr(0)), copy_intr::DISPATCH);
    let code = copy_error::INVALID_BITFIELD | u32::from(copy::LINES >> 2 | u16::from(CE) << 11) << 16;
    assert_eq!(room.bench.read(PcopyReg::CopyError(0)), code);
    assert_eq!(room.bench.read(PcopyReg::CopyErrorData(0)), 0x2000);
    assert!(room.result() == room.target);
    // The method is lost, what follows is not: 20 lines are still set.
    room.bench.write(PcopyReg::CopyIntrAck(0), copy_intr::DISPATCH);
    room.bench.run();
    assert!(room.is_as_expected(&copy));
}

#[test]
fn fault_in_a_tiled_copy_is_the_engines() {
    let mut room = Room::new();
    let entry = room.bench.small_entry(room.channel.space, SOURCE);
    room.bench.set_vram_u64(entry, 0);
    room.bench.flush();
    let copy = out_of_tiles();
    let methods = nouveau(&copy, [1, 1]).to(CE, copy::EXEC, &[exec(&copy).into_bits()]);
    room.submit(&methods);
    assert_eq!(room.bench.read(PfifoReg::FaultUnits), 1 << 0x15);
    assert!(room.result() == room.target);
}

#[test]
fn semaphore_alone_moves_nothing() {
    let mut room = nvidia_room();
    let copy = out_of_tiles();
    let launch = launch(&copy).with_transfer(0).with_semaphore(LaunchDma::ONE_WORD);
    let methods = nvidia(&copy, [1, 1])
        .to(CE, nvidia_copy::SEMAPHORE_A, &[0, TARGET as u32 + 0x40, 7])
        .to(CE, nvidia_copy::LAUNCH_DMA, &[launch.into_bits()]);
    room.submit(&methods);
    let mut expected = room.target.clone();
    expected[0x40..0x44].copy_from_slice(&[7, 0, 0, 0]);
    assert!(room.result() == expected);
}

#[test]
fn copy_without_multi_line_is_one_line() {
    let mut room = nvidia_room();
    let copy = out_of_tiles();
    let launch = launch(&copy).with_multi_line(false);
    let methods = nvidia(&copy, [1, 1]).to(CE, nvidia_copy::LAUNCH_DMA, &[launch.into_bits()]);
    room.submit(&methods);
    assert!(room.is_as_expected(&Copy { lines: 1, ..copy }));
}

#[test]
fn blocking_interrupt_holds_the_engine_until_acknowledged() {
    let mut room = nvidia_room();
    let copy = out_of_tiles();
    let blocking = launch(&copy).with_interrupt(LaunchDma::BLOCKING);
    let methods = nvidia(&copy, [1, 1])
        .to(CE, nvidia_copy::LAUNCH_DMA, &[blocking.into_bits()])
        .to(CE, nvidia_copy::OFFSET_OUT_UPPER, &halves(TARGET + 0x8000))
        .to(CE, nvidia_copy::LAUNCH_DMA, &[launch(&copy).into_bits()]);
    room.submit(&methods);
    assert_eq!(room.bench.read(PcopyReg::CopyIntr(0)), copy_intr::COPY_BLOCK);
    assert!(room.is_as_expected(&copy));
    room.bench.write(PcopyReg::CopyIntrAck(0), copy_intr::COPY_BLOCK);
    assert_eq!(room.bench.run(), Stepped::Idle);
    let result = room.result();
    assert!(result[0x8000..0x8500] == result[..0x500]);
}

#[test]
fn non_blocking_interrupt_is_the_engines_notification() {
    let mut room = nvidia_room();
    let copy = out_of_tiles();
    let launch = launch(&copy).with_interrupt(LaunchDma::INTERRUPT_MAX);
    let methods = nvidia(&copy, [1, 1]).to(CE, nvidia_copy::LAUNCH_DMA, &[launch.into_bits()]);
    assert_eq!(room.submit(&methods), Stepped::Idle);
    assert_ne!(room.bench.read(PfifoReg::EngineIntrSource), 0);
}

#[test]
fn physical_addresses_reach_vram_and_end_where_it_ends() {
    let mut room = nvidia_room();
    let at = room.bench.allocate(0x1000);
    room.bench.set_vram_bytes(at, &[7; 64]);
    let copy = Copy {
        source: Shape::Pitch(64),
        target: Shape::Pitch(64),
        bytes: 64,
        lines: 1,
    };
    let mode = AddressingMode::new().with_src_physical(true);
    let to = |from: u64, target: u64| {
        nvidia(&copy, [1, 1])
            .to(CE, nvidia_copy::ADDRESSING_MODE, &[mode.into_bits()])
            .to(CE, nvidia_copy::OFFSET_IN_UPPER, &halves(from))
            .to(CE, nvidia_copy::OFFSET_OUT_UPPER, &halves(target))
            .to(CE, nvidia_copy::LAUNCH_DMA, &[launch(&copy).into_bits()])
    };
    room.submit(&to(at, TARGET));
    room.submit(&to(VRAM_BYTES, TARGET + 64));
    let result = room.result();
    assert!(is_clean(&mut room));
    assert_eq!(result[..64], [7; 64]);
    assert_eq!(result[64..128], [0xff; 64]);
    assert!(room.bench.card.counters().vram_missing_reads > 0);
}

#[test]
fn physical_system_memory_is_what_the_bus_has() {
    let mut room = nvidia_room();
    let copy = Copy {
        source: Shape::Pitch(64),
        target: Shape::Pitch(64),
        bytes: 64,
        lines: 1,
    };
    let mode = AddressingMode::new().with_dst_physical(true).with_dst_target(1);
    let methods = nvidia(&copy, [1, 1])
        .to(CE, nvidia_copy::ADDRESSING_MODE, &[mode.into_bits()])
        .to(CE, nvidia_copy::OFFSET_OUT_UPPER, &halves(RAM_BASE + 0x100))
        .to(CE, nvidia_copy::LAUNCH_DMA, &[launch(&copy).into_bits()]);
    room.submit(&methods);
    assert_eq!(room.result()[0x100..0x140], room.source[..64]);
}

#[test]
fn copy_takes_place_only_if_its_condition_holds() {
    // Reports of 8 bytes at the start of the target, 16 apart.
    for (mode, first, second, copies) in [
        (0, 1, 1, false),
        (1, 0, 1, true),
        (2, 0, 0, false),
        (2, 1 << 40, 0, true),
        (3, 5, 5, true),
        (3, 5, 6, false),
        (4, 5, 5, false),
        (4, 5, 6, true),
    ] {
        let mut room = nvidia_room();
        let mut reports = [0u8; 32];
        reports[..8].copy_from_slice(&u64::to_le_bytes(first));
        reports[16..24].copy_from_slice(&u64::to_le_bytes(second));
        room.bench.set_ram_bytes(BYTES - 32, &reports);
        room.target = room.result();
        let copy = out_of_tiles();
        let [high, low] = halves(TARGET + BYTES - 32);
        let methods = nvidia(&copy, [1, 1])
            .to(CE, nvidia_copy::RENDER_ENABLE_A, &[high, low, mode])
            .to(CE, nvidia_copy::LAUNCH_DMA, &[launch(&copy).into_bits()]);
        room.submit(&methods);
        let lines = if copies { copy.lines } else { 0 };
        assert!(room.is_as_expected(&Copy { lines, ..copy }));
    }
}

#[test]
fn context_of_either_microcode_survives_other_channels() {
    for microcode in [CopyMicrocode::Nouveau, CopyMicrocode::Nvidia] {
        let mut room = Room::on(ready_with_microcode(microcode));
        let mut other = room.bench.channel(2);
        room.bench.map(other.space, SOURCE, Page::Ram(BYTES), 0x1000);
        let context = room.bench.allocate(0x1000);
        room.bench
            .map(room.channel.space, 0xb00_0000, Page::Vram(context), 0x1000);
        room.bench
            .set_vram_u32(room.channel.instance + 0x230, 0xb00_0000 | 4);
        room.bench.flush();
        room.bench.runlist(&[1, 2]);
        room.bench.run();
        let copy = out_of_tiles();
        let (setup, start) = match microcode {
            CopyMicrocode::Nvidia => (
                nvidia(&copy, [1, 1]),
                Methods::new().to(CE, nvidia_copy::LAUNCH_DMA, &[launch(&copy).into_bits()]),
            ),
            _ => (
                nouveau(&copy, [1, 1]),
                Methods::new().to(CE, copy::EXEC, &[exec(&copy).into_bits()]),
            ),
        };
        room.submit(&setup);
        let noise = Methods::new().to(CE, 0, &[BIND]).to(CE, copy::NOP, &[0]);
        room.bench.submit(&mut other, &noise.0);
        room.bench.run();
        assert_ne!(room.bench.vram_bytes(context, 256), [0; 256]);
        room.submit(&start);
        assert!(room.is_as_expected(&copy));
    }
}

#[test]
fn uploaded_microcode_decides_about_the_methods() {
    let table = [0x1_0000u32, 0, 0, 0x2_00c0, 0, 0, 0, 0, 0xe_00c3];
    let upload = |room: &mut Room, with_table: bool| {
        let base = 0x10_4000;
        room.bench.write_at(base + 0x180, 1 << 24);
        room.bench.write_at(base + 0x184, 0x1234_5678);
        room.bench.write_at(base + 0x1c0, 1 << 24 | 0x100);
        for word in table {
            room.bench.write_at(base + 0x1c4, word);
        }
        room.bench
            .write_at(base + 0x1c0, 1 << 24 | (0x100 + 4 * (9 + 28)));
        room.bench
            .write_at(base + 0x1c4, if with_table { 0x800 } else { 0x801 });
        room.bench.write_at(base + 0x100, 2);
    };
    let copy = out_of_tiles();
    let of_nvidia = nvidia(&copy, [1, 1]).to(CE, nvidia_copy::LAUNCH_DMA, &[launch(&copy).into_bits()]);
    let of_nouveau = nouveau(&copy, [1, 1]).to(CE, copy::EXEC, &[exec(&copy).into_bits()]);
    for (with_table, methods) in [(false, &of_nvidia), (true, &of_nouveau)] {
        let mut room = Room::new();
        upload(&mut room, with_table);
        room.submit(methods);
        assert!(is_clean(&mut room));
        assert!(room.is_as_expected(&copy));
    }
}

#[test]
fn engine_that_needs_microcode_copies_when_it_was_started_with_some() {
    let mut room = Room::on(ready_with_microcode(CopyMicrocode::Required));
    let base = 0x10_4000;
    let copy = out_of_tiles();
    let before = room.bench.read_at(base + 0x100);
    // Nothing is there to run.
    room.bench.write_at(base + 0x100, 2);
    let empty = room.bench.read_at(base + 0x100);
    assert_eq!(
        [before, empty].map(|control| control & 1 << 4),
        [1 << 4; 2],
        "stopped"
    );
    room.submit(&nvidia(&copy, [1, 1]).to(CE, nvidia_copy::LAUNCH_DMA, &[launch(&copy).into_bits()]));
    assert!(is_clean(&mut room) && !room.is_as_expected(&copy));
    room.bench.write_at(base + 0x180, 1 << 24);
    room.bench.write_at(base + 0x184, 0x1234_5678);
    room.bench.write_at(base + 0x100, 2);
    assert_eq!(room.bench.read_at(base + 0x100) & 1 << 4, 0, "not stopped");
    room.bench.run();
    assert!(is_clean(&mut room) && room.is_as_expected(&copy));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn nouveaus_methods_move_what_the_reference_moves(copy in copies(gob_of_nouveau)) {
        let mut room = Room::new();
        room.submit(&nouveau(&copy, [1, 1]).to(CE, copy::EXEC, &[exec(&copy).into_bits()]));
        prop_assert!(is_clean(&mut room));
        prop_assert!(room.is_as_expected(&copy));
    }

    #[test]
    fn nvidias_methods_move_what_the_reference_moves(copy in copies(gob_of_nvidia)) {
        let mut room = nvidia_room();
        room.submit(&nvidia(&copy, [1, 1]).to(CE, nvidia_copy::LAUNCH_DMA, &[launch(&copy).into_bits()]));
        prop_assert!(is_clean(&mut room));
        prop_assert!(room.is_as_expected(&copy));
    }

    #[test]
    fn nouveaus_formats_make_what_the_reference_makes(
        copy in copies(gob_of_nouveau).prop_map(small),
        format in formats(false),
    ) {
        let mut room = Room::new();
        let copy = in_elements(&copy, &format);
        let [a, b] = format.constants;
        let methods = nouveau(&copy, [format.source_bytes(), format.target_bytes()])
            .to(CE, copy::FORMAT, &[format.bits(), a, b])
            .to(CE, copy::EXEC, &[exec(&copy).with_format(true).into_bits()]);
        room.submit(&methods);
        prop_assert!(is_clean(&mut room));
        prop_assert!(room.result() == format.expected(&copy, &room.source, &room.target));
    }

    #[test]
    fn nvidias_components_make_what_the_reference_makes(
        copy in copies(gob_of_nvidia).prop_map(small),
        format in formats(true),
    ) {
        let mut room = nvidia_room();
        let copy = in_elements(&copy, &format);
        let [a, b] = format.constants;
        let methods = nvidia(&copy, [format.source_bytes(), format.target_bytes()])
            .to(CE, nvidia_copy::SET_REMAP_CONST_A, &[a, b, format.bits()])
            .to(CE, nvidia_copy::LAUNCH_DMA, &[launch(&copy).with_remap(true).into_bits()]);
        room.submit(&methods);
        prop_assert!(is_clean(&mut room));
        prop_assert!(room.result() == format.expected(&copy, &room.source, &room.target));
    }
}
