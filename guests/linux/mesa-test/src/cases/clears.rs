//! Clears of buffers, textures and framebuffers: every byte afterwards, in and around what was cleared.
//!
//! Colors are none that lie halfway between two numbers of a format, and the bytes of a texel were worked out by hand.

use anyhow::{Context as _, Result};
use report::Outcome;

use super::{Case, case};
use crate::bytes::{bytes, same};
use crate::egl::Egl;
use crate::gl::clear::{Attached, Value, attachment};
use crate::gl::format::{Format, Size, image_bytes};
use crate::gl::{Gl, Place, number};

pub(super) const CASES: &[Case] = &[
    case("clear-buffer", buffer),
    case("clear-buffer-part", buffer_part),
    case("clear-color", color),
    case("clear-color-scissor", color_scissor),
    case("clear-srgb", srgb),
    case("clear-colors", colors),
    case("clear-depth", depth),
    case("clear-depth-stencil", depth_stencil),
    case("clear-layers", layers),
    case("clear-texture", texture),
    case("clear-texture-levels", texture_levels),
];

/// Formats of one to four components for clears of buffers.
const BUFFER_FORMATS: &[Format] = &[
    Format::new(0x8232, 0x8d94, 0x1401, 1),
    Format::new(0x8234, 0x8d94, 0x1403, 2),
    Format::new(0x8236, 0x8d94, 0x1405, 4),
    Format::new(0x823c, 0x8228, 0x1405, 8),
    Format::new(0x8d71, 0x8d98, 0x1405, 12),
    Format::new(0x8d70, 0x8d99, 0x1405, 16),
];
/// Uses that put a buffer into VRAM or system memory.
const USES: &[u32] = &[number::STATIC_DRAW, number::STREAM_READ];

fn buffer(_: &Egl, gl: &Gl<'_>) -> Result<Outcome> {
    for format in BUFFER_FORMATS {
        for (usage, elements) in USES
            .iter()
            .flat_map(|usage| [3, 1000, 40_003].map(|count| (*usage, count)))
        {
            let size = elements * format.texel;
            let texel = bytes(elements as u32, format.texel);
            let buffer = gl.buffer(size, Some(&bytes(1, size)), usage)?;
            buffer.clear(*format, &texel)?;
            same(&buffer.read(0, size)?, &texel.repeat(elements))
                .with_context(|| format!("{elements} elements of {} bytes", format.texel))?;
        }
    }
    Ok(Outcome::Passed)
}

/// First element and number of elements.
const SPANS: &[(usize, usize)] = &[
    (0, 1),
    (3, 100),
    (64, 4096),
    (5, 16_384),
    (0, 16_385),
    (1, 33_001),
];

fn buffer_part(_: &Egl, gl: &Gl<'_>) -> Result<Outcome> {
    for format in BUFFER_FORMATS {
        for (first, count) in SPANS {
            let size = (first + count + 7) * format.texel;
            let (texel, mut wanted) = (bytes(9, format.texel), bytes(2, size));
            let buffer = gl.buffer(size, Some(&wanted), number::STATIC_DRAW)?;
            let (at, bytes) = (first * format.texel, count * format.texel);
            buffer.clear_part(at, bytes, *format, &texel)?;
            wanted[at..at + bytes].copy_from_slice(&texel.repeat(*count));
            same(&buffer.read(0, size)?, &wanted)
                .with_context(|| format!("{bytes} bytes from {at} on, elements of {}", format.texel))?;
        }
    }
    Ok(Outcome::Passed)
}

const FLOATS: Value = Value::Floats([0.2, 0.6, 1.0, 0.0]);
const SIGNED: Value = Value::Signed([-5, 100, -100, 3]);
const UNSIGNED: Value = Value::Unsigned([5, 200, 100, 3]);

const RGBA8: Format = Format::new(0x8058, 0x1908, 0x1401, 4);
const RGBA8_TEXEL: [u8; 4] = [51, 153, 255, 0];

/// A color format, the color that is asked for, and the bytes of a texel of that color.
type Colored = (&'static str, Format, Value, &'static [u8]);

#[rustfmt::skip]
const COLORS: &[Colored] = &[
    ("R8", Format::new(0x8229, 0x1903, 0x1401, 1), FLOATS, &[51]),
    ("RG8", Format::new(0x822b, 0x8227, 0x1401, 2), FLOATS, &[51, 153]),
    ("RGBA8", RGBA8, FLOATS, &RGBA8_TEXEL),
    ("RGB10_A2", Format::new(0x8059, 0x1908, 0x8368, 4), FLOATS, &[0xcd, 0x98, 0xf9, 0x3f]),
    ("RGB10_A2UI", Format::new(0x906f, 0x8d99, 0x8368, 4), UNSIGNED, &[0x05, 0x20, 0x43, 0xc6]),
    ("R16", Format::new(0x822a, 0x1903, 0x1403, 2), FLOATS, &[0x33, 0x33]),
    ("RG16", Format::new(0x822c, 0x8227, 0x1403, 4), FLOATS, &[0x33, 0x33, 0x99, 0x99]),
    ("RGBA16", Format::new(0x805b, 0x1908, 0x1403, 8), FLOATS, &[0x33, 0x33, 0x99, 0x99, 0xff, 0xff, 0, 0]),
    ("R8_SNORM", Format::new(0x8f94, 0x1903, 0x1400, 1), FLOATS, &[25]),
    ("RGBA8_SNORM", Format::new(0x8f97, 0x1908, 0x1400, 4), FLOATS, &[25, 76, 127, 0]),
    ("R8I", Format::new(0x8231, 0x8d94, 0x1400, 1), SIGNED, &[0xfb]),
    ("RGBA8I", Format::new(0x8d8e, 0x8d99, 0x1400, 4), SIGNED, &[0xfb, 100, 0x9c, 3]),
    ("RGBA8UI", Format::new(0x8d7c, 0x8d99, 0x1401, 4), UNSIGNED, &[5, 200, 100, 3]),
    ("RG16I", Format::new(0x8239, 0x8228, 0x1402, 4), SIGNED, &[0xfb, 0xff, 100, 0]),
    ("RGBA16UI", Format::new(0x8d76, 0x8d99, 0x1403, 8), UNSIGNED, &[5, 0, 200, 0, 100, 0, 3, 0]),
    ("R32I", Format::new(0x8235, 0x8d94, 0x1404, 4), SIGNED, &[0xfb, 0xff, 0xff, 0xff]),
    ("RG32UI", Format::new(0x823c, 0x8228, 0x1405, 8), UNSIGNED, &[5, 0, 0, 0, 200, 0, 0, 0]),
    ("RGBA32UI", Format::new(0x8d70, 0x8d99, 0x1405, 16), UNSIGNED, &[5, 0, 0, 0, 200, 0, 0, 0, 100, 0, 0, 0, 3, 0, 0, 0]),
    ("R16F", Format::new(0x822d, 0x1903, 0x140b, 2), FLOATS, &[0x66, 0x32]),
    ("RGBA16F", Format::new(0x881a, 0x1908, 0x140b, 8), FLOATS, &[0x66, 0x32, 0xcd, 0x38, 0, 0x3c, 0, 0]),
    ("R32F", Format::new(0x822e, 0x1903, 0x1406, 4), FLOATS, &[0xcd, 0xcc, 0x4c, 0x3e]),
    ("RGBA32F", Format::new(0x8814, 0x1908, 0x1406, 16), FLOATS, &[0xcd, 0xcc, 0x4c, 0x3e, 0x9a, 0x99, 0x19, 0x3f, 0, 0, 0x80, 0x3f, 0, 0, 0, 0]),
    ("R11F_G11F_B10F", Format::new(0x8c3a, 0x1907, 0x8c3b, 4), Value::Floats([1.0, 0.5, 0.5, 0.0]), &[0xc0, 0x03, 0x1c, 0x70]),
    ("RGB565", Format::new(0x8d62, 0x1907, 0x8363, 2), FLOATS, &[0xdf, 0x34]),
];

const TARGET: Size = [131, 77, 1];
const COLOR: Attached = Attached {
    attachment: number::COLOR_ATTACHMENT,
    level: 0,
    layer: None,
};

/// Puts a texel everywhere in the rectangle (x, y, width, height) of each layer that is named.
fn put(image: &mut [u8], size: Size, rectangle: [usize; 4], layers: std::ops::Range<usize>, texel: &[u8]) {
    let [left, top, width, height] = rectangle;
    for z in layers {
        for y in top..top + height {
            for x in left..left + width {
                let at = ((z * size[1] + y) * size[0] + x) * texel.len();
                image[at..at + texel.len()].copy_from_slice(texel);
            }
        }
    }
}

/// Clears a texture of noise by a framebuffer, and compares all of it.
fn clear_one(
    gl: &Gl<'_>,
    format: Format,
    attached: Attached,
    scissor: Option<[usize; 4]>,
    value: Value,
    texel: &[u8],
) -> Result<()> {
    let mut wanted = bytes(5, image_bytes(TARGET, format));
    let texture = gl.texture(number::TEXTURE_2D);
    texture.set_levels(1)?;
    texture.upload(0, TARGET, format, &wanted)?;
    gl.clear_framebuffer(&[(&texture, attached)], scissor, value)?;
    let rectangle = scissor.unwrap_or([0, 0, TARGET[0], TARGET[1]]);
    put(&mut wanted, TARGET, rectangle, 0..1, texel);
    same(&texture.read(0, TARGET, format)?, &wanted)
}

fn color(_: &Egl, gl: &Gl<'_>) -> Result<Outcome> {
    for (name, format, value, texel) in COLORS {
        clear_one(gl, *format, COLOR, None, *value, texel).context(*name)?;
    }
    Ok(Outcome::Passed)
}

fn color_scissor(_: &Egl, gl: &Gl<'_>) -> Result<Outcome> {
    // Noise in floats might be what reading changes.
    let is_exact = |color: &&Colored| !color.0.ends_with('F') && !color.0.ends_with("SNORM");
    for (name, format, value, texel) in COLORS.iter().filter(is_exact) {
        for scissor in [[0, 0, 1, 1], [17, 9, 100, 41], [130, 0, 1, 77]] {
            clear_one(gl, *format, COLOR, Some(scissor), *value, texel)
                .with_context(|| format!("{name}, {scissor:?}"))?;
        }
    }
    Ok(Outcome::Passed)
}

/// A format with a curve: 0.2 and 0.6 in it are 0.4845 and 0.7977.
fn srgb(_: &Egl, gl: &Gl<'_>) -> Result<Outcome> {
    const SRGB8: Format = Format::new(0x8c43, 0x1908, 0x1401, 4);
    for (is_curved, texel) in [(false, RGBA8_TEXEL), (true, [124, 203, 255, 0])] {
        gl.set_srgb(is_curved)?;
        let cleared = clear_one(gl, SRGB8, COLOR, None, FLOATS, &texel);
        gl.set_srgb(false)?;
        cleared.with_context(|| format!("curve: {is_curved}"))?;
    }
    Ok(Outcome::Passed)
}

/// Two targets of one framebuffer.
fn colors(_: &Egl, gl: &Gl<'_>) -> Result<Outcome> {
    let make = || {
        let texture = gl.texture(number::TEXTURE_2D);
        texture.set_levels(1)?;
        texture.upload(0, TARGET, RGBA8, &bytes(6, image_bytes(TARGET, RGBA8)))?;
        anyhow::Ok(texture)
    };
    let textures = [make()?, make()?];
    let second = Attached {
        attachment: COLOR.attachment + 1,
        ..COLOR
    };
    gl.clear_framebuffer(&[(&textures[0], COLOR), (&textures[1], second)], None, FLOATS)?;
    let wanted = RGBA8_TEXEL.repeat(TARGET[0] * TARGET[1]);
    for (index, texture) in textures.iter().enumerate() {
        same(&texture.read(0, TARGET, RGBA8)?, &wanted).with_context(|| format!("target {index}"))?;
    }
    Ok(Outcome::Passed)
}

const DEPTH: Attached = Attached {
    attachment: attachment::DEPTH,
    level: 0,
    layer: None,
};
const QUARTER: Value = Value::Depth(Some(0.25), None);

fn depth(_: &Egl, gl: &Gl<'_>) -> Result<Outcome> {
    let formats: [(&str, Format, &[u8]); 2] = [
        ("16", Format::new(0x81a5, 0x1902, 0x1403, 2), &[0, 0x40]),
        ("32F", Format::new(0x8cac, 0x1902, 0x1406, 4), &[0, 0, 0x80, 0x3e]),
    ];
    for (name, format, texel) in formats {
        clear_one(gl, format, DEPTH, None, QUARTER, texel).context(name)?;
    }
    let (name, format, texel) = formats[0];
    clear_one(gl, format, DEPTH, Some([3, 5, 99, 60]), QUARTER, texel).context(name)?;
    Ok(Outcome::Passed)
}

/// Depth of 24 bits and stencil of 8, together and each alone. What is there before was cleared, too: Mesa would draw an
/// upload of this format.
fn depth_stencil(_: &Egl, gl: &Gl<'_>) -> Result<Outcome> {
    const FORMAT: Format = Format::new(0x88f0, 0x84f9, 0x84fa, 4);
    const BOTH: Attached = Attached {
        attachment: attachment::DEPTH_STENCIL,
        ..DEPTH
    };
    // 0.625 of 16777215 is 10485759.375, 0.25 of it 4194303.75.
    const BEFORE: [u8; 4] = [0x3c, 0xff, 0xff, 0x9f];
    let rectangle = [10, 20, 100, 50];
    for (depth, stencil, after) in [
        (Some(0.25), Some(0xa5), [0xa5, 0, 0, 0x40]),
        (Some(0.25), None, [0x3c, 0, 0, 0x40]),
        (None, Some(0x5a), [0x5a, 0xff, 0xff, 0x9f]),
    ] {
        let texture = gl.texture(number::TEXTURE_2D);
        texture.make_immutable(TARGET, 1, FORMAT)?;
        let attached = [(&texture, BOTH)];
        gl.clear_framebuffer(&attached, None, Value::Depth(Some(0.625), Some(0x3c)))?;
        gl.clear_framebuffer(&attached, Some(rectangle), Value::Depth(depth, stencil))?;
        let mut wanted = BEFORE.repeat(TARGET[0] * TARGET[1]);
        put(&mut wanted, TARGET, rectangle, 0..1, &after);
        same(&texture.read(0, TARGET, FORMAT)?, &wanted)
            .with_context(|| format!("{depth:?}, {stencil:?}"))?;
    }
    Ok(Outcome::Passed)
}

/// All layers of an array and of a volume at once, and one alone.
fn layers(_: &Egl, gl: &Gl<'_>) -> Result<Outcome> {
    const SIZE: Size = [50, 40, 7];
    for target in [number::TEXTURE_2D_ARRAY, number::TEXTURE_3D] {
        for layer in [None, Some(0), Some(4)] {
            let mut wanted = bytes(8, image_bytes(SIZE, RGBA8));
            let texture = gl.texture(target);
            texture.set_levels(1)?;
            texture.upload(0, SIZE, RGBA8, &wanted)?;
            gl.clear_framebuffer(&[(&texture, Attached { layer, ..COLOR })], None, FLOATS)?;
            let cleared = layer.map_or(0..SIZE[2], |layer| layer..layer + 1);
            put(&mut wanted, SIZE, [0, 0, SIZE[0], SIZE[1]], cleared, &RGBA8_TEXEL);
            same(&texture.read(0, SIZE, RGBA8)?, &wanted)
                .with_context(|| format!("target {target:#x}, layer {layer:?}"))?;
        }
    }
    Ok(Outcome::Passed)
}

/// A texture of noise, a box of which becomes a texel.
fn clear_box(gl: &Gl<'_>, target: u32, size: Size, format: Format, place: Place, part: Size) -> Result<()> {
    let (texel, mut wanted) = (bytes(12, format.texel), bytes(11, image_bytes(size, format)));
    let texture = gl.texture(target);
    texture.set_levels(1)?;
    texture.upload(0, size, format, &wanted)?;
    texture.clear_part(0, place, part, format, &texel)?;
    let rectangle = [place.x, place.y, part[0], part[1]];
    put(&mut wanted, size, rectangle, place.z..place.z + part[2], &texel);
    same(&texture.read(0, size, format)?, &wanted).with_context(|| {
        format!(
            "{} bytes a texel, {part:?} at {place:?} of {size:?}",
            format.texel
        )
    })
}

fn texture(_: &Egl, gl: &Gl<'_>) -> Result<Outcome> {
    let of_whole_words = |format: &&Format| format.texel.is_power_of_two();
    for format in BUFFER_FORMATS.iter().filter(of_whole_words) {
        let flat = [number::TEXTURE_2D].map(|target| (target, [200, 75, 1], [90, 40, 1]));
        let deep =
            [number::TEXTURE_3D, number::TEXTURE_2D_ARRAY].map(|target| (target, [40, 33, 9], [21, 20, 4]));
        for (target, size, part) in flat.into_iter().chain(deep) {
            let place = Place {
                x: 13,
                y: 7,
                z: size[2] / 3,
            };
            clear_box(gl, target, size, *format, place, part)?;
            clear_box(gl, target, size, *format, Place { x: 0, y: 0, z: 0 }, size)?;
        }
    }
    Ok(Outcome::Passed)
}

/// Each level is cleared alone, from the smallest to the largest.
fn texture_levels(_: &Egl, gl: &Gl<'_>) -> Result<Outcome> {
    const SIZE: usize = 128;
    const LEVELS: usize = 8;
    let size = |level: usize| [SIZE >> level, SIZE >> level, 1];
    let texture = gl.texture(number::TEXTURE_2D);
    texture.set_levels(LEVELS)?;
    let data = |level| bytes(20 + level as u32, image_bytes(size(level), RGBA8));
    for level in 0..LEVELS {
        texture.upload(level, size(level), RGBA8, &data(level))?;
    }
    for cleared in (0..LEVELS).rev() {
        let texel = |level: usize| bytes(40 + level as u32, 4);
        texture.clear(cleared, RGBA8, &texel(cleared))?;
        for level in 0..LEVELS {
            let wanted = if level < cleared {
                data(level)
            } else {
                texel(level).repeat(size(level)[0] * size(level)[1])
            };
            same(&texture.read(level, size(level), RGBA8)?, &wanted)
                .with_context(|| format!("level {level} after that of {cleared}"))?;
        }
    }
    Ok(Outcome::Passed)
}
