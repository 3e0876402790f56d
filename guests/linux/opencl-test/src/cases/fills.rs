//! Fills of buffers and images: every byte afterwards, in and around what was filled.

use anyhow::{Context as _, Result, ensure};
use report::Outcome;

use super::{Case, checked};
use crate::device::{Machine, Region, Shape};

pub(super) const CASES: &[Case] = &[
    checked("fill-buffer-1", |machine| buffers(machine, 1)),
    checked("fill-buffer-2", |machine| buffers(machine, 2)),
    checked("fill-buffer-4", |machine| buffers(machine, 4)),
    checked("fill-buffer-8", |machine| buffers(machine, 8)),
    checked("fill-buffer-16", |machine| buffers(machine, 16)),
    checked("fill-buffer-32", |machine| buffers(machine, 32)),
    checked("fill-buffer-64", |machine| buffers(machine, 64)),
    checked("fill-buffer-128", |machine| buffers(machine, 128)),
    checked("fill-image-1d", |machine| images(machine, IMAGE_1D, [301, 1, 1])),
    checked("fill-image-2d", |machine| images(machine, IMAGE_2D, [131, 77, 1])),
    checked("fill-image-3d", |machine| images(machine, IMAGE_3D, [37, 29, 11])),
    checked("fill-image-array", |machine| {
        images(machine, IMAGE_2D_ARRAY, [70, 33, 6])
    }),
];

/// First element and number of elements of a fill: few, many, and around the 16384 that Mesa puts in a line.
const SPANS: &[(usize, usize)] = &[
    (0, 1),
    (1, 3),
    (0, 257),
    (5, 1000),
    (300, 16_384),
    (0, 16_385),
    (17, 50_001),
];
/// Elements of the buffer behind those that are filled.
const BEHIND: usize = 9;

/// `count` bytes, none of which is like its neighbours.
fn noise(count: usize) -> Vec<u8> {
    (0..count)
        .map(|at| (at * 0x9d + (at >> 8) * 0x3b + 7) as u8)
        .collect()
}

/// The bytes of a pattern.
fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (0xc1 + at * 0x1d) as u8).collect()
}

/// The first byte that is not what it has to be.
fn check(found: &[u8], wanted: &[u8]) -> Result<()> {
    ensure!(
        found.len() == wanted.len(),
        "{} bytes instead of {}",
        found.len(),
        wanted.len()
    );
    let wrong = |at: &usize| found[*at] != wanted[*at];
    if let Some(at) = (0..found.len()).find(wrong) {
        let count = (0..found.len()).filter(wrong).count();
        anyhow::bail!(
            "byte {at} is {:#04x} instead of {:#04x}; {count} of {} are wrong",
            found[at],
            wanted[at],
            found.len()
        );
    }
    Ok(())
}

/// The largest pattern that Mesa's driver for this card knows: for more it sends nothing, and says so to nobody.
const PATTERN_MAX: usize = 16;

/// All spans with a pattern; how many are wrong, and how the first one is.
fn buffers(machine: &Machine, bytes: usize) -> Result<Outcome> {
    let pattern = pattern(bytes);
    let (mut wrong, mut untouched) = (Vec::new(), 0);
    for &(first, count) in SPANS {
        let content = noise((first + count + BEHIND) * bytes);
        let (offset, size) = (first * bytes, count * bytes);
        let mut wanted = content.clone();
        for (at, byte) in wanted[offset..offset + size].iter_mut().enumerate() {
            *byte = pattern[at % bytes];
        }
        let found = machine.fill_buffer(&content, &pattern, offset, size)?;
        untouched += usize::from(found == content);
        if let Err(error) = check(&found, &wanted) {
            wrong.push(error.context(format!("{size} bytes from {offset} on")));
        }
    }
    if bytes > PATTERN_MAX && untouched == SPANS.len() {
        let reason =
            format!("no fill did anything: Mesa's driver sends none with a pattern of {bytes} bytes");
        return Ok(Outcome::Skipped(reason));
    }
    let count = wrong.len();
    match wrong.into_iter().next() {
        None => Ok(Outcome::Passed),
        Some(first) => Err(first.context(format!("{count} of {} fills are wrong", SPANS.len()))),
    }
}

const IMAGE_2D: u32 = 0x10f1;
const IMAGE_3D: u32 = 0x10f2;
const IMAGE_2D_ARRAY: u32 = 0x10f3;
const IMAGE_1D: u32 = 0x10f4;

const R: u32 = 0x10b0;
const RG: u32 = 0x10b2;
const RGBA: u32 = 0x10b5;

/// 0.2, 0.6, 1 and 0 as f32: none is halfway between two numbers of any format.
const FLOATS: [u32; 4] = [0x3e4c_cccd, 0x3f19_999a, 0x3f80_0000, 0];
/// 0.25, 0.625, 1 and 0: what a half holds, as Mesa rounds others towards zero.
const HALVES: [u32; 4] = [0x3e80_0000, 0x3f20_0000, 0x3f80_0000, 0];
const SIGNED: [u32; 4] = [-5_i32 as u32, 100, -100_i32 as u32, 7];
const UNSIGNED: [u32; 4] = [5, 200, 100, 7];

/// A format: order and type of its components, the color that is asked for, and the bytes of a texel of that color.
type Filled = (&'static str, u32, u32, [u32; 4], &'static [u8]);

#[rustfmt::skip]
const FORMATS: &[Filled] = &[
    ("R snorm8", R, 0x10d0, FLOATS, &[25]),
    ("R unorm8", R, 0x10d2, FLOATS, &[51]),
    ("RG unorm8", RG, 0x10d2, FLOATS, &[51, 153]),
    ("RGBA snorm8", RGBA, 0x10d0, FLOATS, &[25, 76, 127, 0]),
    ("RGBA unorm8", RGBA, 0x10d2, FLOATS, &[51, 153, 255, 0]),
    ("R unorm16", R, 0x10d3, FLOATS, &[0x33, 0x33]),
    ("RGBA unorm16", RGBA, 0x10d3, FLOATS, &[0x33, 0x33, 0x99, 0x99, 0xff, 0xff, 0, 0]),
    ("RGBA snorm16", RGBA, 0x10d1, FLOATS, &[0x99, 0x19, 0xcc, 0x4c, 0xff, 0x7f, 0, 0]),
    ("R sint8", R, 0x10d7, SIGNED, &[0xfb]),
    ("RGBA sint8", RGBA, 0x10d7, SIGNED, &[0xfb, 100, 0x9c, 7]),
    ("RG sint16", RG, 0x10d8, SIGNED, &[0xfb, 0xff, 100, 0]),
    ("RGBA sint32", RGBA, 0x10d9, SIGNED, &[0xfb, 0xff, 0xff, 0xff, 100, 0, 0, 0, 0x9c, 0xff, 0xff, 0xff, 7, 0, 0, 0]),
    ("R uint8", R, 0x10da, UNSIGNED, &[5]),
    ("RGBA uint8", RGBA, 0x10da, UNSIGNED, &[5, 200, 100, 7]),
    ("RGBA uint16", RGBA, 0x10db, UNSIGNED, &[5, 0, 200, 0, 100, 0, 7, 0]),
    ("R uint32", R, 0x10dc, UNSIGNED, &[5, 0, 0, 0]),
    ("RG uint32", RG, 0x10dc, UNSIGNED, &[5, 0, 0, 0, 200, 0, 0, 0]),
    ("RGBA half", RGBA, 0x10dd, HALVES, &[0, 0x34, 0, 0x39, 0, 0x3c, 0, 0]),
    ("R float", R, 0x10de, FLOATS, &[0xcd, 0xcc, 0x4c, 0x3e]),
    ("RGBA float", RGBA, 0x10de, FLOATS, &[0xcd, 0xcc, 0x4c, 0x3e, 0x9a, 0x99, 0x19, 0x3f, 0, 0, 0x80, 0x3f, 0, 0, 0, 0]),
];

/// The part of an image of this size that is filled: not from its first texel to its last, where there is room.
fn inner(size: [usize; 3]) -> Region {
    let origin = size.map(|size| size / 5);
    let size = size.map(|size| (size * 3).div_ceil(5));
    Region { origin, size }
}

fn images(machine: &Machine, kind: u32, size: [usize; 3]) -> Result<Outcome> {
    let whole = Region { origin: [0; 3], size };
    for (name, order, component, color, texel) in FORMATS {
        let shape = Shape {
            kind,
            order: *order,
            component: *component,
            texel: texel.len(),
            size,
        };
        for region in [whole, inner(size)] {
            let mut content = noise(shape.bytes());
            let mut wanted = content.clone();
            for (at, place) in wanted.chunks_exact_mut(texel.len()).enumerate() {
                let position = [at % size[0], at / size[0] % size[1], at / size[0] / size[1]];
                let is_in =
                    |axis: usize| position[axis].wrapping_sub(region.origin[axis]) < region.size[axis];
                if (0..3).all(is_in) {
                    place.copy_from_slice(texel);
                }
            }
            let found = machine.fill_image(&shape, &mut content, *color, &region);
            found
                .and_then(|found| check(&found, &wanted))
                .with_context(|| format!("{name}, {region:?}"))?;
        }
    }
    Ok(Outcome::Passed)
}
