//! Shaders that take texels and samples of textures, compared with the software renderer.

use anyhow::{Context as _, Result};

use super::images::{FLOAT11, FLOAT16, FLOAT32, image, texels};
use super::shaders::{floats, input, output, read, to_bytes, words};
use super::{Case, compared};
use crate::gl::compute::Program;
use crate::gl::format::{Format, Size, image_bytes};
use crate::gl::texture::Texture;
use crate::gl::{Gl, number};
use crate::reference::Bound::{self, Ulps, Within};

pub(super) const CASES: &[Case] = &[
    compared("shader-texel-formats", formats, FORMAT_BOUND),
    compared("shader-texel-srgb", srgb, &[Within(2e-3)]),
    compared("shader-texture-shapes", shapes, &[]),
    compared("shader-texture-filters", filters, FILTER_BOUND),
    compared("shader-texture-solids", solids, FILTER_BOUND),
    compared("shader-texture-gather", gather, FILTER_BOUND),
];

/// A normalized number may be multiplied by the rounded inverse of the largest.
const FORMAT_BOUND: &[Bound] = &[Ulps(4)];
/// Samples lie at multiples of 1/256 of a texel, so that weights of 8 bits are exact; sums may be in any order.
const FILTER_BOUND: &[Bound] = &[Within(2e-6)];

const RGBA32F: Format = Format::new(0x8814, 0x1908, 0x1406, 16);
const RGBA32UI: Format = Format::new(0x8d70, 0x8d99, 0x1405, 16);
const DEPTH32F: Format = Format::new(0x8cac, 0x1902, 0x1406, 4);
const FLOAT: &str = "sampler2D";
const SINT: &str = "isampler2D";
const UINT: &str = "usampler2D";

/// Name, type of the sampler, mask of its words, and the format.
type FetchedFormat = (&'static str, &'static str, u32, Format);

const FORMATS: &[FetchedFormat] = &[
    ("RGBA32F", FLOAT, FLOAT32, RGBA32F),
    ("RGBA16F", FLOAT, FLOAT16, Format::new(0x881a, 0x1908, 0x140b, 8)),
    (
        "R11F_G11F_B10F",
        FLOAT,
        FLOAT11,
        Format::new(0x8c3a, 0x1907, 0x8c3b, 4),
    ),
    ("RGB9_E5", FLOAT, !0, Format::new(0x8c3d, 0x1907, 0x8c3e, 4)),
    ("R32F", FLOAT, FLOAT32, Format::new(0x822e, 0x1903, 0x1406, 4)),
    ("RGB10_A2", FLOAT, !0, Format::new(0x8059, 0x1908, 0x8368, 4)),
    ("RGBA8", FLOAT, !0, Format::new(0x8058, 0x1908, 0x1401, 4)),
    ("RGBA8_SNORM", FLOAT, !0, Format::new(0x8f97, 0x1908, 0x1400, 4)),
    ("RG16_SNORM", FLOAT, !0, Format::new(0x8f99, 0x8227, 0x1402, 4)),
    ("R8", FLOAT, !0, Format::new(0x8229, 0x1903, 0x1401, 1)),
    ("RGB565", FLOAT, !0, Format::new(0x8d62, 0x1907, 0x8363, 2)),
    ("RGBA32UI", UINT, !0, RGBA32UI),
    ("RGBA8UI", UINT, !0, Format::new(0x8d7c, 0x8d99, 0x1401, 4)),
    ("RGB10_A2UI", UINT, !0, Format::new(0x906f, 0x8d99, 0x8368, 4)),
    ("RGBA8I", SINT, !0, Format::new(0x8d8e, 0x8d99, 0x1400, 4)),
];

/// The software renderer approximates the curve of sRGB.
fn srgb(gl: &Gl<'_>) -> Result<Vec<u32>> {
    let format = Format::new(0x8c43, 0x1908, 0x1401, 4);
    fetched(gl, &[("SRGB8_A8", FLOAT, !0, format)])
}

fn formats(gl: &Gl<'_>) -> Result<Vec<u32>> {
    fetched(gl, FORMATS)
}

/// Texels of images of these formats.
fn fetched(gl: &Gl<'_>, formats: &[FetchedFormat]) -> Result<Vec<u32>> {
    const SIZE: Size = [13, 7, 1];
    const GROUPS: [u32; 3] = [2, 1, 1];
    const WORDS: usize = 16 * 8 * 4;
    let mut all = Vec::new();
    for (index, (name, sampler, mask, format)) in (0..).zip(formats) {
        let texel = sampler.replace("sampler2D", "vec4");
        let source = format!(
            "#version 430\n#define SAMPLER {sampler}\n#define TEXEL {texel}\n{}",
            include_str!("../../shaders/texel-fetch.glsl")
        );
        let program = Program::new(gl, &source).context(*name)?;
        let given = texels(400 + index, SIZE, *format, *mask);
        let texture = image(gl, number::TEXTURE_2D, SIZE, *format, &given).context(*name)?;
        texture.bind_to(0)?;
        let results = output(gl, WORDS)?;
        program.run(GROUPS, &[&results]).context(*name)?;
        all.extend(read(&results, WORDS)?);
    }
    Ok(all)
}

/// A texture of several levels; `make` gives the bytes of a level.
fn pyramid<'a>(
    gl: &'a Gl<'a>,
    target: u32,
    sizes: &[Size],
    format: Format,
    make: impl Fn(u32, Size) -> Vec<u8>,
) -> Result<Texture<'a>> {
    let texture = gl.texture(target);
    texture.set_levels(sizes.len())?;
    for (level, size) in sizes.iter().enumerate() {
        texture.upload(level, *size, format, &make(level as u32, *size))?;
    }
    Ok(texture)
}

fn shapes(gl: &Gl<'_>) -> Result<Vec<u32>> {
    let program = Program::new(gl, include_str!("../../shaders/texture-shapes.glsl"))?;
    let make = |seed: u32| move |level, size| texels(seed + level, size, RGBA32UI, !0);
    let flat_sizes = [16, 8, 4, 2, 1].map(|edge| [edge, edge, 1]);
    let flat = pyramid(gl, number::TEXTURE_2D, &flat_sizes, RGBA32UI, make(440))?;
    let volume_sizes = [[16, 16, 8], [8, 8, 4]];
    let volume = pyramid(gl, number::TEXTURE_3D, &volume_sizes, RGBA32UI, make(450))?;
    let layers = pyramid(gl, number::TEXTURE_2D_ARRAY, &[[16, 16, 7]], RGBA32UI, make(460))?;
    let row = pyramid(gl, number::TEXTURE_1D, &[[32, 1, 1]], RGBA32UI, make(461))?;
    for texture in [&flat, &volume, &layers, &row] {
        texture.set(number::TEXTURE_MIN_FILTER, number::NEAREST_MIPMAP_NEAREST)?;
        texture.set(number::TEXTURE_MAG_FILTER, number::NEAREST)?;
    }
    let line_words = input(gl, &words(470, 4 * 2048))?;
    let line = gl.texture(number::TEXTURE_BUFFER);
    line.show_buffer(&line_words, RGBA32UI.internal)?;
    for (unit, texture) in (0..).zip([&flat, &volume, &layers, &line, &row]) {
        texture.bind_to(unit)?;
    }
    let results = output(gl, 2 * 2048)?;
    program.run([4, 4, 2], &[&results])?;
    read(&results, 2 * 2048)
}

fn colors(seed: u32, size: Size) -> Vec<u8> {
    to_bytes(&floats(seed, image_bytes(size, RGBA32F) / 4, 1.0, 10))
}

/// How a texture is sampled: filters of levels that are smaller and larger, edges in x and y.
fn set_modes(texture: &Texture<'_>, modes: [usize; 4]) -> Result<()> {
    let [minification, magnification, s, t] = modes;
    texture.set(number::TEXTURE_MIN_FILTER, minification)?;
    texture.set(number::TEXTURE_MAG_FILTER, magnification)?;
    texture.set(number::TEXTURE_WRAP_S, s)?;
    texture.set(number::TEXTURE_WRAP_T, t)?;
    texture.set(number::TEXTURE_WRAP_R, number::CLAMP_TO_EDGE)?;
    texture.set_border([0.25, 0.5, 0.75, 1.0])
}

fn filters(gl: &Gl<'_>) -> Result<Vec<u32>> {
    const WORDS: usize = 32 * 32 * 4;
    let program = Program::new(gl, include_str!("../../shaders/texture-filters.glsl"))?;
    let sizes = [32, 16, 8, 4, 2, 1].map(|edge| [edge, edge, 1]);
    let given = pyramid(gl, number::TEXTURE_2D, &sizes, RGBA32F, |level, size| {
        colors(480 + level, size)
    })?;
    given.bind_to(0)?;
    let modes = [
        [
            number::LINEAR_MIPMAP_LINEAR,
            number::LINEAR,
            number::REPEAT,
            number::MIRRORED_REPEAT,
        ],
        [
            number::LINEAR_MIPMAP_NEAREST,
            number::NEAREST,
            number::CLAMP_TO_EDGE,
            number::CLAMP_TO_BORDER,
        ],
    ];
    let mut all = Vec::new();
    for modes in modes {
        set_modes(&given, modes)?;
        let results = output(gl, WORDS)?;
        program.run([4, 4, 1], &[&results])?;
        all.extend(read(&results, WORDS)?);
    }
    Ok(all)
}

fn solids(gl: &Gl<'_>) -> Result<Vec<u32>> {
    const WORDS: usize = 32 * 32 * 3 * 4;
    let program = Program::new(gl, include_str!("../../shaders/texture-solids.glsl"))?;
    let make = |seed: u32| move |level, size| colors(seed + level, size);
    let volume = pyramid(gl, number::TEXTURE_3D, &[[8, 8, 8]], RGBA32F, make(490))?;
    let layers = pyramid(gl, number::TEXTURE_2D_ARRAY, &[[16, 16, 4]], RGBA32F, make(491))?;
    let cube = gl.texture(number::TEXTURE_CUBE);
    cube.set_levels(1)?;
    for face in 0..6 {
        cube.upload_face(face, [4, 4, 1], RGBA32F, &colors(492 + face, [4, 4, 1]))?;
    }
    let (near, linear) = (number::NEAREST, number::LINEAR);
    set_modes(&volume, [linear, linear, number::REPEAT, number::CLAMP_TO_EDGE])?;
    set_modes(&layers, [near, near, number::MIRRORED_REPEAT, number::REPEAT])?;
    set_modes(&cube, [near, near, number::CLAMP_TO_EDGE, number::CLAMP_TO_EDGE])?;
    for (unit, texture) in (0..).zip([&volume, &layers, &cube]) {
        texture.bind_to(unit)?;
    }
    let results = output(gl, WORDS)?;
    program.run([4, 4, 1], &[&results])?;
    read(&results, WORDS)
}

fn gather(gl: &Gl<'_>) -> Result<Vec<u32>> {
    const SIZE: Size = [16, 16, 1];
    const WORDS: usize = 16 * 16 * 3 * 4;
    let program = Program::new(gl, include_str!("../../shaders/texture-gather.glsl"))?;
    let given = image(gl, number::TEXTURE_2D, SIZE, RGBA32F, &colors(500, SIZE))?;
    let depths: Vec<_> = floats(501, SIZE[0] * SIZE[1], 1.0, 10)
        .iter()
        .map(|word| word & !(1 << 31))
        .collect();
    let depths = image(gl, number::TEXTURE_2D, SIZE, DEPTH32F, &to_bytes(&depths))?;
    depths.set(number::TEXTURE_MIN_FILTER, number::LINEAR)?;
    depths.set(number::TEXTURE_MAG_FILTER, number::LINEAR)?;
    depths.set(number::TEXTURE_COMPARE_MODE, number::COMPARE_REF_TO_TEXTURE)?;
    depths.set(number::TEXTURE_COMPARE_FUNC, number::LESS_OR_EQUAL)?;
    given.bind_to(0)?;
    depths.bind_to(1)?;
    let results = output(gl, WORDS)?;
    program.run([2, 2, 1], &[&results])?;
    read(&results, WORDS)
}
