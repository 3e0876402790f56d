//! Shaders that load, store and change texels of images, compared with the software renderer.

use anyhow::{Context as _, Result};

use super::shaders::{from_bytes, input, output, read, to_bytes, words};
use super::{Case, compared};
use crate::gl::compute::Program;
use crate::gl::format::{Format, Size, image_bytes};
use crate::gl::texture::Texture;
use crate::gl::{Gl, number};

pub(super) const CASES: &[Case] = &[
    compared("shader-image-formats", formats, &[]),
    compared("shader-image-shapes", shapes, &[]),
    compared("shader-image-atomics", atomics, &[]),
];

pub(super) const R32UI: Format = Format::new(0x8236, 0x8d94, 0x1405, 4);
pub(super) const R32I: Format = Format::new(0x8235, 0x8d94, 0x1404, 4);
const RGBA16UI: Format = Format::new(0x8d76, 0x8d99, 0x1403, 8);
/// Types of image and texel in GLSL, and what is stored in place of a texel `x`.
const KINDS: [(&str, &str, &str); 5] = [
    ("image2D", "vec4", "-(x)"),
    ("image2D", "vec4", "1.0 - (x)"),
    ("iimage2D", "ivec4", "~(x)"),
    ("uimage2D", "uvec4", "(x) ^ 1u"),
    ("image2D", "vec4", "(x)"),
];
const FLOAT: usize = 0;
const UNORM: usize = 1;
const SINT: usize = 2;
const UINT: usize = 3;
/// Floats without a sign.
const UNSIGNED: usize = 4;
/// Bits that make no infinity and no NaN of the floats in a word: one of 32 bits, two of 16, three of 10 and 11.
pub(super) const FLOAT32: u32 = 0xbfff_ffff;
pub(super) const FLOAT16: u32 = 0xbfff_bfff;
pub(super) const FLOAT11: u32 = !(1 << 10 | 1 << 21 | 1 << 31);

/// Name in GLSL, index into [`KINDS`], mask of its words, and the format itself.
const FORMATS: &[(&str, usize, u32, Format)] = &[
    ("rgba32f", FLOAT, FLOAT32, Format::new(0x8814, 0x1908, 0x1406, 16)),
    ("rgba16f", FLOAT, FLOAT16, Format::new(0x881a, 0x1908, 0x140b, 8)),
    (
        "r11f_g11f_b10f",
        UNSIGNED,
        FLOAT11,
        Format::new(0x8c3a, 0x1907, 0x8c3b, 4),
    ),
    ("r32f", FLOAT, FLOAT32, Format::new(0x822e, 0x1903, 0x1406, 4)),
    ("rgba16", UNORM, !0, Format::new(0x805b, 0x1908, 0x1403, 8)),
    ("rgb10_a2", UNORM, !0, Format::new(0x8059, 0x1908, 0x8368, 4)),
    ("rgba8", UNORM, !0, Format::new(0x8058, 0x1908, 0x1401, 4)),
    ("r8", UNORM, !0, Format::new(0x8229, 0x1903, 0x1401, 1)),
    ("rgba8_snorm", FLOAT, !0, Format::new(0x8f97, 0x1908, 0x1400, 4)),
    ("rgba32ui", UINT, !0, Format::new(0x8d70, 0x8d99, 0x1405, 16)),
    ("rgba16ui", UINT, !0, RGBA16UI),
    ("rgba8ui", UINT, !0, Format::new(0x8d7c, 0x8d99, 0x1401, 4)),
    ("r32ui", UINT, !0, R32UI),
    ("r8ui", UINT, !0, Format::new(0x8232, 0x8d94, 0x1401, 1)),
    ("rgba32i", SINT, !0, Format::new(0x8d82, 0x8d99, 0x1404, 16)),
    ("rgba8i", SINT, !0, Format::new(0x8d8e, 0x8d99, 0x1400, 4)),
    ("r32i", SINT, !0, R32I),
];

/// A texture of one level that holds `data`.
pub(super) fn image<'a>(
    gl: &'a Gl<'a>,
    target: u32,
    size: Size,
    format: Format,
    data: &[u8],
) -> Result<Texture<'a>> {
    let texture = gl.texture(target);
    texture.set_levels(1)?;
    texture.set(number::TEXTURE_MIN_FILTER, number::NEAREST)?;
    texture.set(number::TEXTURE_MAG_FILTER, number::NEAREST)?;
    texture.upload(0, size, format, data)?;
    Ok(texture)
}

/// Texels for an image of `size`; only bits of `mask` are set in their words.
pub(super) fn texels(seed: u32, size: Size, format: Format, mask: u32) -> Vec<u8> {
    let count = image_bytes(size, format);
    let masked: Vec<_> = words(seed, count.div_ceil(4))
        .into_iter()
        .map(|word| word & mask)
        .collect();
    let mut data = to_bytes(&masked);
    data.truncate(count);
    data
}

/// Bytes as words, the last one filled up with zeros.
fn as_words(mut data: Vec<u8>) -> Vec<u32> {
    data.resize(data.len().next_multiple_of(4), 0);
    from_bytes(&data)
}

fn formats(gl: &Gl<'_>) -> Result<Vec<u32>> {
    /// Neither is a multiple of a group's.
    const SIZE: Size = [19, 11, 1];
    const GROUPS: [u32; 3] = [3, 2, 1];
    const WORDS: usize = 24 * 16 * 4;
    let mut all = Vec::new();
    for (index, (name, kind, mask, format)) in (0..).zip(FORMATS) {
        let (image_type, texel, changed) = KINDS[*kind];
        let source = format!(
            "#version 430\n#define FORMAT {name}\n#define IMAGE {image_type}\n#define TEXEL {texel}\n\
             #define CHANGED(x) ({changed})\n{}",
            include_str!("../../shaders/image-formats.glsl")
        );
        let program = Program::new(gl, &source).context(*name)?;
        let mut given = texels(300 + index, SIZE, *format, *mask);
        if name.ends_with("snorm") {
            // Mesa's code for this card makes the smallest number less than -1.
            given.iter_mut().for_each(|byte| *byte |= 1);
        }
        let source = image(gl, number::TEXTURE_2D, SIZE, *format, &given)?;
        let target = image(gl, number::TEXTURE_2D, SIZE, *format, &vec![0; given.len()])?;
        let results = output(gl, WORDS)?;
        source.bind_image(0, None, format.internal)?;
        target.bind_image(1, None, format.internal)?;
        program.run(GROUPS, &[&results]).context(*name)?;
        all.extend(read(&results, WORDS)?);
        all.extend(as_words(target.read(0, SIZE, *format).context(*name)?));
    }
    Ok(all)
}

fn shapes(gl: &Gl<'_>) -> Result<Vec<u32>> {
    const VOLUME: Size = [16, 16, 8];
    const FLAT: Size = [16, 16, 1];
    let program = Program::new(gl, include_str!("../../shaders/image-shapes.glsl"))?;
    let give = |seed, size| texels(seed, size, R32UI, !0);
    let volume = image(gl, number::TEXTURE_3D, VOLUME, R32UI, &give(340, VOLUME))?;
    let layers = image(gl, number::TEXTURE_2D_ARRAY, VOLUME, R32UI, &give(341, VOLUME))?;
    let cube = gl.texture(number::TEXTURE_CUBE);
    cube.set_levels(1)?;
    cube.set(number::TEXTURE_MIN_FILTER, number::NEAREST)?;
    for face in 0..6 {
        cube.upload_face(face, FLAT, R32UI, &give(342 + face, FLAT))?;
    }
    let others = image(gl, number::TEXTURE_2D_ARRAY, VOLUME, R32UI, &give(350, VOLUME))?;
    let line = input(gl, &words(351, 2048))?;
    let line_texture = gl.texture(number::TEXTURE_BUFFER);
    line_texture.show_buffer(&line, R32UI.internal)?;
    let row_size = [64, 1, 1];
    let row = image(
        gl,
        number::TEXTURE_1D,
        row_size,
        RGBA16UI,
        &texels(352, row_size, RGBA16UI, !0),
    )?;
    volume.bind_image(0, None, R32UI.internal)?;
    layers.bind_image(1, None, R32UI.internal)?;
    cube.bind_image(2, None, R32UI.internal)?;
    others.bind_image(3, Some(5), R32UI.internal)?;
    line_texture.bind_image(4, None, R32UI.internal)?;
    row.bind_image(5, None, RGBA16UI.internal)?;
    let results = output(gl, 2 * 2048)?;
    program.run([4, 4, 2], &[&results])?;
    let mut all = read(&results, 2 * 2048)?;
    all.extend(from_bytes(&volume.read(0, VOLUME, R32UI)?));
    all.extend(from_bytes(&layers.read(0, VOLUME, R32UI)?));
    for face in 0..6 {
        all.extend(from_bytes(&cube.read_face(face, FLAT, R32UI)?));
    }
    all.extend(read(&line, 2048)?);
    Ok(all)
}

fn atomics(gl: &Gl<'_>) -> Result<Vec<u32>> {
    const TEXELS: Size = [32, 20, 1];
    const EXTREMES: Size = [16, 8, 1];
    const VOLUME: Size = [8, 8, 4];
    /// The texel whose last value depends on the order.
    const SLOT: usize = 16 * TEXELS[0];
    let program = Program::new(gl, include_str!("../../shaders/image-atomics.glsl"))?;
    let column = |count: usize, width: usize| (0..count).map(move |index| index % width);
    let start = |range: std::ops::Range<usize>, value, size: Size| {
        let values = column(size[0] * size[1], size[0]).map(|x| if range.contains(&x) { value } else { 0 });
        to_bytes(&values.collect::<Vec<u32>>())
    };
    let texels = image(
        gl,
        number::TEXTURE_2D,
        TEXELS,
        R32UI,
        &start(8..16, u32::MAX, TEXELS),
    )?;
    let extremes = start(0..8, i32::MAX as u32, EXTREMES);
    let extremes = image(gl, number::TEXTURE_2D, EXTREMES, R32I, &extremes)?;
    let volume = image(gl, number::TEXTURE_3D, VOLUME, R32UI, &[0; 8 * 8 * 4 * 4])?;
    let line = output(gl, 256)?;
    let line_texture = gl.texture(number::TEXTURE_BUFFER);
    line_texture.show_buffer(&line, R32UI.internal)?;
    texels.bind_image(0, None, R32UI.internal)?;
    extremes.bind_image(1, None, R32I.internal)?;
    volume.bind_image(2, None, R32UI.internal)?;
    line_texture.bind_image(3, None, R32UI.internal)?;
    let (given, results) = (input(gl, &words(360, 1024))?, output(gl, 2)?);
    program.run([4, 4, 1], &[&given, &results])?;
    let mut found = read(&results, 2)?;
    let mut last = from_bytes(&texels.read(0, TEXELS, R32UI)?);
    found[0] = found[0].wrapping_add(last[SLOT]);
    last[SLOT] = 0;
    found.extend(last);
    found.extend(from_bytes(&extremes.read(0, EXTREMES, R32I)?));
    found.extend(from_bytes(&volume.read(0, VOLUME, R32UI)?));
    found.extend(read(&line, 256)?);
    Ok(found)
}
