//! Objects in VRAM and system memory, as the CPU sees them, and as the driver moves them when VRAM is short.

use anyhow::{Context as _, Result, ensure};
use report::Outcome;

use super::{Case, Nodes, quiet};
use crate::channel::{Channel, reads, writes};
use crate::copy::{Copier, copy_range, upload_inline};
use crate::device::{Device, Mapped, Object};
use crate::pattern::Pattern;
use crate::push::{Push, Unit};
use crate::uapi::{domain, param};

pub(super) const CASES: &[Case] = &[
    quiet("vram-mapped", vram_mapped),
    quiet("gart-mapped", gart_mapped),
    quiet("objects-apart", objects_apart),
    quiet("big-object", big_object),
    quiet("vram-pressure", vram_pressure),
];

/// Distance of the places where large objects are looked at through BAR1, where each access may be a trap.
const STRIDE: usize = 256 << 10;

fn vram_mapped(nodes: &Nodes) -> Result<Outcome> {
    let device = Device::open(&nodes.render)?;
    let object = device.vram(32 << 10)?;
    Pattern(1).fill(object.memory());
    Pattern(1).check(object.memory())?;
    let memory = object.memory();
    memory.write_wide(8, 0x0123_4567_89ab_cdef);
    let halves = (memory.read(8), memory.read(12));
    ensure!(
        halves == (0x89ab_cdef, 0x0123_4567),
        "halves of a double word are {halves:x?}"
    );
    memory.write(12, 0);
    let wide = memory.read_wide(8);
    ensure!(wide == 0x89ab_cdef, "double word is {wide:#x}");
    Ok(Outcome::Passed)
}

fn gart_mapped(nodes: &Nodes) -> Result<Outcome> {
    let device = Device::open(&nodes.render)?;
    let object = device.gart(4 << 20)?;
    Pattern(2).fill(object.memory());
    Pattern(2).check(object.memory())?;
    let coherent = device
        .object(domain::GART | domain::MAPPABLE | domain::COHERENT, 64 << 10)?
        .map()?;
    Pattern(3).fill(coherent.memory());
    Pattern(3).check(coherent.memory())?;
    Ok(Outcome::Passed)
}

/// Objects of all sizes have memory and addresses of their own.
fn objects_apart(nodes: &Nodes) -> Result<Outcome> {
    let device = Device::open(&nodes.render)?;
    let sizes = [
        0x1000_u64, 0x2000, 0x1_0000, 0x1_1000, 0x2_0000, 0x4_3000, 0x10_0000,
    ];
    let mut objects = Vec::new();
    for bytes in sizes {
        objects.push(device.vram(bytes)?);
        objects.push(device.gart(bytes)?);
    }
    let ends = |object: &Mapped| [0, object.bytes() as usize - 4];
    for (index, object) in objects.iter().enumerate() {
        for at in ends(object) {
            object.memory().write(at, Pattern(index as u32).word(at as u64));
        }
    }
    for (index, object) in objects.iter().enumerate() {
        for at in ends(object) {
            let found = object.memory().read(at);
            let wanted = Pattern(index as u32).word(at as u64);
            ensure!(
                found == wanted,
                "object {index}: {found:#x} at {at:#x} instead of {wanted:#x}"
            );
        }
    }
    let mut ranges: Vec<(u64, u64)> = objects.iter().map(|o| (o.address(), o.bytes())).collect();
    ranges.sort_unstable();
    for pair in ranges.windows(2) {
        ensure!(pair[0].0 + pair[0].1 <= pair[1].0, "addresses overlap: {pair:x?}");
    }
    for object in &objects {
        let info = object.ask()?;
        ensure!(
            info.offset == object.address() && info.size == object.bytes(),
            "the driver changed its mind: {info:?}"
        );
    }
    Ok(Outcome::Passed)
}

fn big_object(nodes: &Nodes) -> Result<Outcome> {
    let device = Device::open(&nodes.render)?;
    // As large as half of BAR1 at most, so that all of it can be mapped at once.
    let half = device
        .parameter(param::VRAM_BYTES)?
        .min(device.parameter(param::BAR1_BYTES)?)
        / 2;
    let object = device.vram(half & !0xfffff)?;
    let places = || (0..object.bytes() as usize).step_by(STRIDE);
    for at in places() {
        object.memory().write(at, Pattern(4).word(at as u64));
    }
    for at in places() {
        let found = object.memory().read(at);
        ensure!(
            found == Pattern(4).word(at as u64),
            "{found:#x} at {at:#x} of {half:#x}"
        );
    }
    Ok(Outcome::Passed)
}

/// Bytes of one object under pressure.
const PIECE: u64 = 8 << 20;

/// More objects than VRAM holds: the driver has to move some to system memory and back, without losing a byte.
fn vram_pressure(nodes: &Nodes) -> Result<Outcome> {
    let device = Device::open(&nodes.render)?;
    let vram = device.parameter(param::VRAM_BYTES)?;
    let total = vram + vram / 8 + 3 * PIECE;
    let spare = total.saturating_sub(vram) + 3 * PIECE;
    if let Some(free) = memory_available()?
        && free < spare + spare / 2
    {
        return Ok(Outcome::Skipped(format!(
            "{spare:#x} bytes would move to {free:#x} of free memory"
        )));
    }
    let channel = Channel::with_units(&device, &[Unit::M2mf])?;
    let (source, target) = (device.gart(PIECE)?, device.gart(PIECE)?);
    Pattern(5).fill(source.memory());
    let pieces = (0..total / PIECE)
        .map(|index| {
            let piece = device.object(domain::VRAM, PIECE)?;
            write_piece(&channel, &source, &piece, index as u32)?;
            Ok(piece)
        })
        .collect::<Result<Vec<Object>>>()
        .context("while VRAM fills")?;
    for round in 0..2 {
        for (index, piece) in pieces.iter().enumerate() {
            read_piece(&channel, piece, &target, index as u32)
                .with_context(|| format!("piece {index} of {}, round {round}", pieces.len()))?;
        }
    }
    Ok(Outcome::Passed)
}

/// Words at both ends of a piece that say which it is.
const TAG_WORDS: usize = 16;

fn tag(index: u32) -> Vec<u32> {
    Pattern(0x100 + index).words(TAG_WORDS)
}

fn write_piece(channel: &Channel, source: &Mapped, piece: &Object, index: u32) -> Result<()> {
    let mut push = Push::new();
    copy_range(&mut push, Copier::M2mf, source.address(), piece.address(), PIECE);
    upload_inline(&mut push, piece.address(), &tag(index));
    let end = piece.address() + PIECE - TAG_WORDS as u64 * 4;
    upload_inline(&mut push, end, &tag(index));
    channel.run(&push, &[reads(source), writes(piece)])
}

fn read_piece(channel: &Channel, piece: &Object, target: &Mapped, index: u32) -> Result<()> {
    let mut push = Push::new();
    copy_range(&mut push, Copier::M2mf, piece.address(), target.address(), PIECE);
    channel.run(&push, &[reads(piece), writes(target)])?;
    let (tag_bytes, end) = (TAG_WORDS * 4, PIECE as usize - TAG_WORDS * 4);
    let tag = Pattern(0x100 + index);
    tag.check_range(target.memory(), 0, tag_bytes, 0)?;
    tag.check_range(target.memory(), end, tag_bytes, 0)?;
    Pattern(5).check_range(target.memory(), tag_bytes, end - tag_bytes, TAG_WORDS as u64)
}

/// Memory that the kernel could hand out, if it says so.
fn memory_available() -> Result<Option<u64>> {
    let text = std::fs::read_to_string("/proc/meminfo").context("cannot read /proc/meminfo")?;
    let kilobytes = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))
        .and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    Ok(kilobytes.map(|kilobytes| kilobytes << 10))
}
