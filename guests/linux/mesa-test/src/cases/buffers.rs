//! Buffer objects: upload, copies between them, mappings of all kinds, readback.

use anyhow::{Context as _, Result};
use report::Outcome;

use super::{Case, case};
use crate::bytes::{bytes, same};
use crate::egl::Egl;
use crate::gl::{Gl, number};

pub(super) const CASES: &[Case] = &[
    case("buffer-upload", upload),
    case("buffer-part", part),
    case("buffer-copy", copy),
    case("buffer-map", map),
    case("buffer-map-write", map_write),
    case("buffer-persistent", persistent),
];

/// Sizes that are no whole words, pages or lines among them.
const SIZES: &[usize] = &[1, 4, 255, 4096, 70_001, 2 << 20];
/// Uses that put a buffer into VRAM or system memory.
const USES: &[u32] = &[number::STATIC_DRAW, number::STREAM_READ, number::DYNAMIC_COPY];

fn upload(_: &Egl, gl: &Gl<'_>) -> Result<Outcome> {
    for (index, (size, usage)) in SIZES
        .iter()
        .flat_map(|size| USES.iter().map(move |usage| (*size, *usage)))
        .enumerate()
    {
        let data = bytes(index as u32, size);
        let buffer = gl.buffer(size, Some(&data), usage)?;
        same(&buffer.read(0, size)?, &data).with_context(|| format!("{size} bytes, use {usage:#x}"))?;
    }
    Ok(Outcome::Passed)
}

/// Parts are written over others and read apart.
fn part(_: &Egl, gl: &Gl<'_>) -> Result<Outcome> {
    const SIZE: usize = 300_000;
    for usage in USES {
        let mut wanted = bytes(1, SIZE);
        let buffer = gl.buffer(SIZE, Some(&wanted), *usage)?;
        for (index, (at, size)) in [(0, 3), (17, 4000), (99_999, 65_537), (SIZE - 5, 5), (128, 256)]
            .into_iter()
            .enumerate()
        {
            let data = bytes(10 + index as u32, size);
            buffer.write(at, &data)?;
            wanted[at..at + size].copy_from_slice(&data);
        }
        same(&buffer.read(0, SIZE)?, &wanted).with_context(|| format!("use {usage:#x}"))?;
        same(&buffer.read(99_000, 5001)?, &wanted[99_000..104_001]).context("a part")?;
    }
    Ok(Outcome::Passed)
}

fn copy(_: &Egl, gl: &Gl<'_>) -> Result<Outcome> {
    const SIZE: usize = 1 << 20;
    let data = bytes(3, SIZE);
    let source = gl.buffer(SIZE, Some(&data), number::STATIC_DRAW)?;
    let target = gl.buffer(SIZE, Some(&bytes(4, SIZE)), number::STATIC_DRAW)?;
    let third = gl.buffer(SIZE, Some(&bytes(5, SIZE)), number::STREAM_READ)?;
    let mut wanted = bytes(4, SIZE);
    for (from, to, size) in [
        (0, 0, 262_144),
        (5, 300_001, 131_075),
        (SIZE - 9, 700_000, 9),
        (1 << 19, 800_000, 4),
    ] {
        gl.copy(&source, from, &target, to, size)?;
        wanted[to..to + size].copy_from_slice(&data[from..from + size]);
    }
    same(&target.read(0, SIZE)?, &wanted)?;
    gl.copy(&target, 0, &third, 0, SIZE)?;
    same(&third.read(0, SIZE)?, &wanted).context("onwards")?;
    // Within one buffer, without overlap.
    gl.copy(&third, 0, &third, SIZE / 2, SIZE / 4)?;
    let (first, rest) = wanted.split_at_mut(SIZE / 2);
    rest[..SIZE / 4].copy_from_slice(&first[..SIZE / 4]);
    same(&third.read(0, SIZE)?, &wanted).context("within a buffer")?;
    Ok(Outcome::Passed)
}

fn map(_: &Egl, gl: &Gl<'_>) -> Result<Outcome> {
    const SIZE: usize = 150_000;
    for usage in USES {
        let data = bytes(6, SIZE);
        let buffer = gl.buffer(SIZE, Some(&data), *usage)?;
        let read = buffer.mapped(1234, 70_000, number::MAP_READ, |range| Ok(range.read()))?;
        same(&read, &data[1234..71_234]).with_context(|| format!("use {usage:#x}"))?;
    }
    Ok(Outcome::Passed)
}

fn map_write(_: &Egl, gl: &Gl<'_>) -> Result<Outcome> {
    const SIZE: usize = 150_000;
    let kinds = [
        number::MAP_WRITE,
        number::MAP_WRITE | number::MAP_READ,
        number::MAP_WRITE | number::MAP_INVALIDATE_RANGE,
        number::MAP_WRITE | number::MAP_UNSYNCHRONIZED,
        number::MAP_WRITE | number::MAP_FLUSH_EXPLICIT,
    ];
    for usage in USES {
        let mut wanted = bytes(7, SIZE);
        let buffer = gl.buffer(SIZE, Some(&wanted), *usage)?;
        for (index, flags) in kinds.into_iter().enumerate() {
            let (at, size) = (1000 + index * 20_000, 12_345);
            let data = bytes(20 + index as u32, size);
            // So that writing without waiting meets no work that is still to be done.
            gl.finish();
            buffer.mapped(at, size, flags, |range| {
                range.write(0, &data);
                match flags & number::MAP_FLUSH_EXPLICIT {
                    0 => Ok(()),
                    _ => range.flush(0, size),
                }
            })?;
            wanted[at..at + size].copy_from_slice(&data);
        }
        same(&buffer.read(0, SIZE)?, &wanted).with_context(|| format!("use {usage:#x}"))?;
    }
    Ok(Outcome::Passed)
}

/// A mapping that stays while the GPU copies from and to its buffer.
fn persistent(_: &Egl, gl: &Gl<'_>) -> Result<Outcome> {
    const SIZE: usize = 200_000;
    let flags = number::MAP_READ | number::MAP_WRITE | number::MAP_PERSISTENT | number::MAP_COHERENT;
    let buffer = gl.immutable_buffer(SIZE, flags)?;
    let other = gl.buffer(SIZE, Some(&bytes(8, SIZE)), number::STATIC_DRAW)?;
    buffer.mapped(0, SIZE, flags, |range| {
        for round in 0..3 {
            let data = bytes(30 + round, SIZE);
            range.write(0, &data);
            gl.copy(&buffer, 0, &other, 0, SIZE)?;
            gl.finish();
            same(&other.read(0, SIZE)?, &data).context("out of a mapped buffer")?;
            let data = bytes(40 + round, SIZE);
            other.write(0, &data)?;
            gl.copy(&other, 0, &buffer, 0, SIZE)?;
            gl.finish();
            same(&range.read(), &data).context("into a mapped buffer")?;
        }
        Ok(())
    })?;
    Ok(Outcome::Passed)
}
