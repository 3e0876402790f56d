//! Copies by M2MF and both copy engines between all kinds of memory, linear and block-linear, and inline data.

use anyhow::{Context as _, Result, ensure};
use report::Outcome;

use super::{Case, Nodes, quiet};
use crate::channel::{Channel, reads, writes};
use crate::copy::{Blocks, Copier, Extent, Side, copy_lines, copy_range, upload_inline};
use crate::device::{Device, Mapped};
use crate::layout::BlockShape;
use crate::pattern::Pattern;
use crate::push::{Push, Unit};
use crate::uapi::domain;

pub(super) const CASES: &[Case] = &[
    quiet("copy-m2mf", |nodes| copies(nodes, Copier::M2mf)),
    quiet("copy-engine-0", |nodes| {
        copies(nodes, Copier::Engine(Unit::Copy0))
    }),
    quiet("copy-engine-1", |nodes| {
        copies(nodes, Copier::Engine(Unit::Copy1))
    }),
    quiet("copy-bytes-m2mf", copy_bytes),
    quiet("copy-pitch", copy_pitch),
    quiet("inline-data", inline_data),
    quiet("tiled-m2mf", |nodes| tiled(nodes, Copier::M2mf)),
    quiet("tiled-engine-0", |nodes| {
        tiled(nodes, Copier::Engine(Unit::Copy0))
    }),
    quiet("tiled-engine-1", |nodes| {
        tiled(nodes, Copier::Engine(Unit::Copy1))
    }),
    quiet("tiled-order", tiled_order),
];

/// Storage type of block-linear surfaces without compression.
const KIND_TILED: u8 = 0xfe;
/// Bytes of the buffers that are copied about.
const BYTES: u64 = 1 << 20;

/// System memory → VRAM → VRAM → system memory → system memory, each step by `who`.
fn copies(nodes: &Nodes, who: Copier) -> Result<Outcome> {
    let device = Device::open(&nodes.render)?;
    let channel = Channel::with_units(&device, &[who.unit()])?;
    let (source, between, target) = (device.gart(BYTES)?, device.gart(BYTES)?, device.gart(BYTES)?);
    let first = device.object(domain::VRAM, BYTES)?;
    let second = device.object(domain::VRAM, BYTES)?;
    for (round, bytes) in [4, 4096, 4100, 0x3_f00c, BYTES].into_iter().enumerate() {
        let pattern = Pattern(16 + round as u32);
        pattern.fill(source.memory());
        Pattern(1).fill(target.memory());
        let path = [&*source, &first, &second, &*between, &*target];
        for step in path.windows(2) {
            let mut push = Push::new();
            copy_range(&mut push, who, step[0].address(), step[1].address(), bytes);
            channel.run(&push, &[reads(step[0]), writes(step[1])])?;
        }
        let bytes = bytes as usize;
        let after = BYTES as usize - bytes;
        pattern
            .check_range(target.memory(), 0, bytes, 0)
            .with_context(|| format!("{bytes:#x} bytes"))?;
        Pattern(1)
            .check_range(target.memory(), bytes, after, bytes as u64 / 4)
            .with_context(|| format!("behind {bytes:#x} bytes"))?;
    }
    Ok(Outcome::Passed)
}

/// M2MF takes any byte address and length.
fn copy_bytes(nodes: &Nodes) -> Result<Outcome> {
    let device = Device::open(&nodes.render)?;
    let channel = Channel::with_units(&device, &[Unit::M2mf])?;
    let (source, target) = (device.gart(4096)?, device.gart(4096)?);
    Pattern(2).fill(source.memory());
    Pattern(3).fill(target.memory());
    let places = [
        (0_u64, 0_u64, 1_u64),
        (1, 10, 3),
        (5, 20, 1),
        (7, 32, 250),
        (300, 511, 777),
    ];
    let mut push = Push::new();
    for (from, to, bytes) in places {
        copy_range(
            &mut push,
            Copier::M2mf,
            source.address() + from,
            target.address() + to,
            bytes,
        );
    }
    channel.run(&push, &[reads(&source), writes(&target)])?;
    let mut wanted: Vec<u8> = (0..4096).map(|at| Pattern(3).byte(at)).collect();
    for (from, to, bytes) in places {
        for index in 0..bytes {
            wanted[(to + index) as usize] = Pattern(2).byte(from + index);
        }
    }
    check_bytes(&target, &wanted)
}

/// Holds the start of an object against bytes.
fn check_bytes(object: &Mapped, wanted: &[u8]) -> Result<Outcome> {
    for (index, chunk) in wanted.chunks_exact(4).enumerate() {
        let found = object.memory().read(index * 4).to_le_bytes();
        ensure!(
            found == chunk,
            "bytes at {:#x} are {found:02x?} instead of {chunk:02x?}",
            index * 4
        );
    }
    Ok(Outcome::Passed)
}

/// Lines with different distances: a rectangle is cut out and put elsewhere.
fn copy_pitch(nodes: &Nodes) -> Result<Outcome> {
    let device = Device::open(&nodes.render)?;
    let (source, target) = (device.gart(BYTES)?, device.gart(BYTES)?);
    Pattern(6).fill(source.memory());
    let channel = Channel::with_units(&device, &Copier::ALL.map(Copier::unit))?;
    for who in Copier::ALL {
        Pattern(7).fill(target.memory());
        let extent = Extent {
            line: 100,
            lines: 300,
        };
        let side = |object: &Mapped, offset, pitch| Side::Pitch {
            address: object.address() + offset,
            pitch,
        };
        let mut push = Push::new();
        copy_lines(
            &mut push,
            who,
            side(&source, 64, 512),
            side(&target, 128, 1024),
            extent,
        );
        channel.run(&push, &[reads(&source), writes(&target)])?;
        for line in 0..300_usize {
            let at = 128 + line * 1024;
            Pattern(6)
                .check_range(target.memory(), at, 100, (64 + line as u64 * 512) / 4)
                .with_context(|| format!("line {line} by {who:?}"))?;
            Pattern(7)
                .check_range(target.memory(), at + 100, 924, (at as u64 + 100) / 4)
                .with_context(|| format!("behind line {line} by {who:?}"))?;
        }
    }
    Ok(Outcome::Passed)
}

fn inline_data(nodes: &Nodes) -> Result<Outcome> {
    let device = Device::open(&nodes.render)?;
    let channel = Channel::with_units(&device, &[Unit::M2mf])?;
    let vram = device.object(domain::VRAM, 64 << 10)?;
    let target = device.gart(64 << 10)?;
    for words in [1, 2, 33, 1024, 5000] {
        Pattern(9).fill(target.memory());
        let mut push = Push::new();
        copy_range(
            &mut push,
            Copier::M2mf,
            target.address(),
            vram.address(),
            64 << 10,
        );
        upload_inline(
            &mut push,
            vram.address() + 0x104,
            &Pattern(words as u32).words(words),
        );
        copy_range(
            &mut push,
            Copier::M2mf,
            vram.address(),
            target.address(),
            64 << 10,
        );
        channel.run(&push, &[writes(&vram), writes(&target)])?;
        let end = 0x104 + words * 4;
        Pattern(9).check_range(target.memory(), 0, 0x104, 0)?;
        Pattern(words as u32).check_range(target.memory(), 0x104, words * 4, 0)?;
        Pattern(9)
            .check_range(target.memory(), end, (64 << 10) - end, end as u64 / 4)
            .with_context(|| format!("behind {words} words"))?;
    }
    Ok(Outcome::Passed)
}

/// Shapes and sizes of surfaces: bytes of a line, lines, layers.
const SURFACES: &[(BlockShape, [u32; 3])] = &[
    (shape(0, 0), [64, 8, 1]),
    (shape(0, 0), [256, 24, 1]),
    (shape(1, 0), [200, 33, 1]),
    (shape(4, 0), [1024, 256, 1]),
    (shape(3, 0), [332, 100, 3]),
    (shape(2, 2), [128, 50, 9]),
    (shape(1, 3), [68, 16, 8]),
];

const fn shape(height_log2: u32, depth_log2: u32) -> BlockShape {
    BlockShape {
        height_log2,
        depth_log2,
    }
}

/// Linear → block-linear of one shape → block-linear of another → linear, layer by layer and in parts.
fn tiled(nodes: &Nodes, who: Copier) -> Result<Outcome> {
    let device = Device::open(&nodes.render)?;
    let channel = Channel::with_units(&device, &[who.unit()])?;
    for (index, (shape, size)) in SURFACES.iter().enumerate() {
        let other = SURFACES[(index + 3) % SURFACES.len()].0;
        tiled_round_trip(&device, &channel, who, [*shape, other], *size)
            .with_context(|| format!("{shape:?}, then {other:?}, {size:?}"))?;
    }
    Ok(Outcome::Passed)
}

fn tiled_round_trip(
    device: &Device,
    channel: &Channel,
    who: Copier,
    shapes: [BlockShape; 2],
    [width, height, depth]: [u32; 3],
) -> Result<()> {
    let layer = u64::from(width) * u64::from(height);
    let linear_bytes = (layer * u64::from(depth)).next_multiple_of(4096);
    let (source, target) = (device.gart(linear_bytes)?, device.gart(linear_bytes)?);
    Pattern(11).fill(source.memory());
    Pattern(12).fill(target.memory());
    let surface = |shape: BlockShape| {
        device.object_of_kind(
            domain::VRAM,
            shape.surface_bytes(width, height, depth),
            shape.mode(),
            KIND_TILED,
        )
    };
    let (first, second) = (surface(shapes[0])?, surface(shapes[1])?);
    let extent = Extent {
        line: width,
        lines: height,
    };
    for z in 0..depth {
        let blocks = |address, shape| {
            Side::Blocks(Blocks {
                address,
                shape,
                width,
                height,
                depth,
                x: 0,
                y: 0,
                z,
            })
        };
        let linear = |object: &Mapped| Side::Pitch {
            address: object.address() + u64::from(z) * layer,
            pitch: width,
        };
        let (a, b) = (
            blocks(first.address(), shapes[0]),
            blocks(second.address(), shapes[1]),
        );
        let mut push = Push::new();
        copy_lines(&mut push, who, linear(&source), a, extent);
        channel.run(&push, &[reads(&source), writes(&first)])?;
        let mut push = Push::new();
        copy_lines(&mut push, who, a, b, extent);
        channel.run(&push, &[reads(&first), writes(&second)])?;
        let mut push = Push::new();
        copy_lines(&mut push, who, b, linear(&target), extent);
        channel.run(&push, &[reads(&second), writes(&target)])?;
    }
    let bytes = (layer * u64::from(depth)) as usize & !3;
    Pattern(11).check_range(target.memory(), 0, bytes, 0)
}

/// The order of bytes in a block-linear surface, seen through a plain copy of its addresses, is the documented one;
/// rectangles that start inside of a block land where they should.
fn tiled_order(nodes: &Nodes) -> Result<Outcome> {
    let device = Device::open(&nodes.render)?;
    let channel = Channel::with_units(&device, &[Unit::M2mf])?;
    let shape = shape(2, 0);
    let [width, height] = [256_u32, 80_u32];
    let bytes = shape.surface_bytes(width, height, 1);
    let surface = device.object_of_kind(domain::VRAM, bytes, shape.mode(), KIND_TILED)?;
    let (source, target) = (device.gart(bytes)?, device.gart(bytes)?);
    Pattern(13).fill(source.memory());
    Pattern(14).fill(target.memory());
    let (x, y) = (36, 5);
    let extent = Extent { line: 180, lines: 70 };
    let mut push = Push::new();
    copy_range(
        &mut push,
        Copier::M2mf,
        target.address(),
        surface.address(),
        bytes,
    );
    let from = Side::Pitch {
        address: source.address(),
        pitch: extent.line,
    };
    let blocks = Blocks {
        address: surface.address(),
        shape,
        width,
        height,
        depth: 1,
        x,
        y,
        z: 0,
    };
    copy_lines(&mut push, Copier::M2mf, from, Side::Blocks(blocks), extent);
    copy_range(
        &mut push,
        Copier::M2mf,
        surface.address(),
        target.address(),
        bytes,
    );
    channel.run(&push, &[reads(&source), writes(&surface), writes(&target)])?;
    let mut wanted: Vec<u8> = (0..bytes).map(|at| Pattern(14).byte(at)).collect();
    for line in 0..extent.lines {
        for column in 0..extent.line {
            let at = shape.offset([width, height], [x + column, y + line, 0]);
            wanted[at as usize] = Pattern(13).byte(u64::from(line * extent.line + column));
        }
    }
    check_bytes(&target, &wanted)
}
