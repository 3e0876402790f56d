//! Textures: upload into the card's tiled layouts and readback, whole and in part, of many formats and sizes.

use anyhow::{Context as _, Result};
use report::Outcome;

use super::{Case, case};
use crate::bytes::{bytes, same};
use crate::egl::Egl;
use crate::gl::format::{Format, Size, image_bytes};
use crate::gl::{Gl, Place, number};

pub(super) const CASES: &[Case] = &[
    case("texture-2d", texture_2d),
    case("texture-formats", texture_formats),
    case("texture-3d", texture_3d),
    case("texture-array", texture_array),
    case("texture-cube", texture_cube),
    case("texture-levels", texture_levels),
    case("texture-part", texture_part),
    case("texture-row-length", texture_row_length),
    case("texture-compressed", texture_compressed),
    case("texture-copy", texture_copy),
    case("read-pixels", read_pixels),
];

/// Eight bits of four colours.
const RGBA8: Format = Format::new(0x8058, 0x1908, 0x1401, 4);
/// One integer of 32 bits.
const R32UI: Format = Format::new(0x8236, 0x8d94, 0x1405, 4);
/// Four integers of 32 bits.
const RGBA32UI: Format = Format::new(0x8d70, 0x8d99, 0x1405, 16);

/// Formats that Mesa keeps as client memory has them.
const FORMATS: &[(&str, Format)] = &[
    ("R8", Format::new(0x8229, 0x1903, 0x1401, 1)),
    ("RG8", Format::new(0x822b, 0x8227, 0x1401, 2)),
    ("RGBA8", RGBA8),
    ("RGB10_A2", Format::new(0x8059, 0x1908, 0x8368, 4)),
    ("R8UI", Format::new(0x8232, 0x8d94, 0x1401, 1)),
    ("RGBA8UI", Format::new(0x8d7c, 0x8d99, 0x1401, 4)),
    ("R16UI", Format::new(0x8234, 0x8d94, 0x1403, 2)),
    ("RG16UI", Format::new(0x823a, 0x8228, 0x1403, 4)),
    ("RGBA16UI", Format::new(0x8d76, 0x8d99, 0x1403, 8)),
    ("R32UI", R32UI),
    ("RG32UI", Format::new(0x823c, 0x8228, 0x1405, 8)),
    ("RGBA32UI", RGBA32UI),
];

/// Sizes at and around the borders of GOBs and blocks.
const SIZES: &[Size] = &[
    [1, 1, 1],
    [7, 5, 1],
    [16, 8, 1],
    [64, 64, 1],
    [65, 33, 1],
    [257, 129, 1],
    [640, 37, 1],
    [33, 700, 1],
    [512, 512, 1],
];

fn texture_2d(_: &Egl, gl: &Gl<'_>) -> Result<Outcome> {
    for (index, size) in SIZES.iter().enumerate() {
        let data = bytes(index as u32, image_bytes(*size, RGBA8));
        let texture = gl.texture(number::TEXTURE_2D);
        texture.set_levels(1)?;
        texture.upload(0, *size, RGBA8, &data)?;
        same(&texture.read(0, *size, RGBA8)?, &data).with_context(|| format!("{size:?}"))?;
    }
    Ok(Outcome::Passed)
}

fn texture_formats(_: &Egl, gl: &Gl<'_>) -> Result<Outcome> {
    for (name, format) in FORMATS {
        for (index, size) in [[37, 21, 1], [128, 64, 1], [300, 100, 1]].into_iter().enumerate() {
            let data = bytes(50 + index as u32, image_bytes(size, *format));
            let texture = gl.texture(number::TEXTURE_2D);
            texture.set_levels(1)?;
            texture.upload(0, size, *format, &data)?;
            same(&texture.read(0, size, *format)?, &data).with_context(|| format!("{name}, {size:?}"))?;
        }
    }
    Ok(Outcome::Passed)
}

/// Uploads and reads back a texture of layers.
fn layers(gl: &Gl<'_>, target: u32, sizes: &[Size]) -> Result<Outcome> {
    for (index, size) in sizes.iter().enumerate() {
        for format in [RGBA8, RGBA32UI] {
            let data = bytes(60 + index as u32, image_bytes(*size, format));
            let texture = gl.texture(target);
            texture.set_levels(1)?;
            texture.upload(0, *size, format, &data)?;
            let found = texture.read(0, *size, format)?;
            same(&found, &data).with_context(|| format!("{size:?}, {} bytes a texel", format.texel))?;
        }
    }
    Ok(Outcome::Passed)
}

fn texture_3d(_: &Egl, gl: &Gl<'_>) -> Result<Outcome> {
    let sizes = [[4, 4, 4], [17, 9, 5], [64, 64, 16], [33, 12, 40], [100, 3, 2]];
    layers(gl, number::TEXTURE_3D, &sizes)
}

fn texture_array(_: &Egl, gl: &Gl<'_>) -> Result<Outcome> {
    let sizes = [[4, 4, 3], [65, 33, 7], [128, 128, 4], [9, 200, 12]];
    layers(gl, number::TEXTURE_2D_ARRAY, &sizes)
}

fn texture_cube(_: &Egl, gl: &Gl<'_>) -> Result<Outcome> {
    for edge in [8, 33, 128] {
        let size = [edge, edge, 1];
        let texture = gl.texture(number::TEXTURE_CUBE);
        texture.set_levels(1)?;
        for face in 0..6 {
            let data = bytes(70 + face, image_bytes(size, RGBA8));
            texture.upload_face(face, size, RGBA8, &data)?;
        }
        for face in 0..6 {
            let data = bytes(70 + face, image_bytes(size, RGBA8));
            let found = texture.read_face(face, size, RGBA8)?;
            same(&found, &data).with_context(|| format!("face {face} of {edge}"))?;
        }
    }
    Ok(Outcome::Passed)
}

/// All levels of a pyramid, each with contents of its own.
fn texture_levels(_: &Egl, gl: &Gl<'_>) -> Result<Outcome> {
    for (target, size) in [
        (number::TEXTURE_2D, [200, 75, 1]),
        (number::TEXTURE_2D, [256, 256, 1]),
        (number::TEXTURE_3D, [40, 20, 10]),
        (number::TEXTURE_2D_ARRAY, [50, 70, 3]),
    ] {
        let level_size = |level: usize| {
            let part = |length: usize| (length >> level).max(1);
            match target {
                number::TEXTURE_3D => size.map(part),
                _ => [part(size[0]), part(size[1]), size[2]],
            }
        };
        let is_last = |level: usize| level_size(level)[..2] == [1, 1];
        let levels = (0..16).position(is_last).map_or(16, |last| last + 1);
        let texture = gl.texture(target);
        texture.set_levels(levels)?;
        let data = |level| bytes(80 + level as u32, image_bytes(level_size(level), RGBA8));
        for level in 0..levels {
            texture.upload(level, level_size(level), RGBA8, &data(level))?;
        }
        for level in 0..levels {
            let found = texture.read(level, level_size(level), RGBA8)?;
            same(&found, &data(level)).with_context(|| format!("level {level} of {size:?}"))?;
        }
    }
    Ok(Outcome::Passed)
}

/// Puts the rectangle `data` of `size` at `place` of an image whose lines have `width` texels.
fn put(image: &mut [u8], width: usize, place: Place, size: Size, texel: usize, data: &[u8]) {
    let line = size[0] * texel;
    for (y, part) in data.chunks_exact(line).take(size[1]).enumerate() {
        let at = ((place.y + y) * width + place.x) * texel;
        image[at..at + line].copy_from_slice(part);
    }
}

/// Rectangles of an immutable texture are replaced.
fn texture_part(_: &Egl, gl: &Gl<'_>) -> Result<Outcome> {
    const SIZE: Size = [333, 222, 1];
    let texture = gl.texture(number::TEXTURE_2D);
    texture.make_immutable(SIZE, 1, RGBA8)?;
    let mut wanted = bytes(90, image_bytes(SIZE, RGBA8));
    texture.replace(Place { x: 0, y: 0, z: 0 }, SIZE, RGBA8, &wanted)?;
    for (index, (x, y, size)) in [
        (0, 0, [1, 1, 1]),
        (3, 5, [60, 30, 1]),
        (100, 0, [233, 7, 1]),
        (17, 111, [200, 111, 1]),
        (332, 221, [1, 1, 1]),
    ]
    .into_iter()
    .enumerate()
    {
        let (place, data) = (
            Place { x, y, z: 0 },
            bytes(91 + index as u32, image_bytes(size, RGBA8)),
        );
        texture.replace(place, size, RGBA8, &data)?;
        put(&mut wanted, SIZE[0], place, size, 4, &data);
    }
    same(&texture.read(0, SIZE, RGBA8)?, &wanted)?;
    Ok(Outcome::Passed)
}

/// Lines in client memory that are further apart than they are long.
fn texture_row_length(_: &Egl, gl: &Gl<'_>) -> Result<Outcome> {
    const SIZE: Size = [50, 40, 1];
    const LINE: usize = 77;
    let data = bytes(100, LINE * SIZE[1] * 4);
    let texture = gl.texture(number::TEXTURE_2D);
    texture.set_levels(1)?;
    gl.pixel_store(number::UNPACK_ROW_LENGTH, LINE)?;
    let uploaded = texture.upload(0, SIZE, RGBA8, &data);
    gl.pixel_store(number::UNPACK_ROW_LENGTH, 0)?;
    uploaded?;
    let mut wanted = Vec::new();
    for line in data.chunks_exact(LINE * 4) {
        wanted.extend_from_slice(&line[..SIZE[0] * 4]);
    }
    same(&texture.read(0, SIZE, RGBA8)?, &wanted)?;
    Ok(Outcome::Passed)
}

/// Formats of blocks of 4 × 4 texels, and bytes of a block.
const COMPRESSED: &[(&str, u32, usize)] = &[
    ("DXT1", 0x83f1, 8),
    ("DXT5", 0x83f3, 16),
    ("RGTC1", 0x8dbb, 8),
    ("RGTC2", 0x8dbd, 16),
    ("BPTC", 0x8e8c, 16),
];

fn texture_compressed(_: &Egl, gl: &Gl<'_>) -> Result<Outcome> {
    for (name, internal, block) in COMPRESSED {
        for size in [[4_usize, 4, 1], [64, 64, 1], [61, 30, 1], [260, 132, 1]] {
            let count = size[0].div_ceil(4) * size[1].div_ceil(4) * block;
            let data = bytes(110, count);
            let texture = gl.texture(number::TEXTURE_2D);
            texture.set_levels(1)?;
            texture.upload_compressed(*internal, size, &data)?;
            same(&texture.read_compressed(count)?, &data).with_context(|| format!("{name}, {size:?}"))?;
        }
    }
    Ok(Outcome::Passed)
}

/// Boxes are copied between textures and into layers. Between formats Mesa would draw.
fn texture_copy(_: &Egl, gl: &Gl<'_>) -> Result<Outcome> {
    const SIZE: Size = [150, 90, 1];
    let make = |format, seed| {
        let texture = gl.texture(number::TEXTURE_2D);
        texture.set_levels(1)?;
        texture.upload(0, SIZE, format, &bytes(seed, image_bytes(SIZE, format)))?;
        anyhow::Ok(texture)
    };
    let (from, to, size) = (
        Place { x: 13, y: 7, z: 0 },
        Place { x: 2, y: 31, z: 0 },
        [101, 55, 1],
    );
    let cut = |format: Format| {
        let original = bytes(120, image_bytes(SIZE, format));
        let lines = (from.y..from.y + size[1]).map(|y| (y * SIZE[0] + from.x) * format.texel);
        lines.fold(Vec::new(), |mut cut, at| {
            cut.extend_from_slice(&original[at..at + size[0] * format.texel]);
            cut
        })
    };
    for format in [RGBA32UI, R32UI, RGBA8] {
        let (source, target) = (make(format, 120)?, make(format, 121)?);
        gl.copy_image((&source, from), (&target, to), size)?;
        let mut wanted = bytes(121, image_bytes(SIZE, format));
        put(&mut wanted, SIZE[0], to, size, format.texel, &cut(format));
        same(&target.read(0, SIZE, format)?, &wanted)
            .with_context(|| format!("{} bytes a texel", format.texel))?;
    }
    let source = make(RGBA8, 120)?;
    let array = gl.texture(number::TEXTURE_2D_ARRAY);
    let layers = [120, 80, 4];
    array.set_levels(1)?;
    let mut wanted = bytes(123, image_bytes(layers, RGBA8));
    array.upload(0, layers, RGBA8, &wanted)?;
    gl.copy_image((&source, from), (&array, Place { z: 2, x: 3, y: 4 }), size)?;
    let layer = layers[0] * layers[1] * 4;
    put(
        &mut wanted[2 * layer..3 * layer],
        layers[0],
        Place { x: 3, y: 4, z: 0 },
        size,
        4,
        &cut(RGBA8),
    );
    same(&array.read(0, layers, RGBA8)?, &wanted).context("into a layer")?;
    Ok(Outcome::Passed)
}

/// The texture as a framebuffer, whole and with lines that are further apart.
fn read_pixels(_: &Egl, gl: &Gl<'_>) -> Result<Outcome> {
    const SIZE: Size = [200, 77, 1];
    const LINE: usize = 256;
    let data = bytes(140, image_bytes(SIZE, RGBA8));
    let texture = gl.texture(number::TEXTURE_2D);
    texture.set_levels(1)?;
    texture.upload(0, SIZE, RGBA8, &data)?;
    let mut found = vec![0; data.len()];
    gl.read_pixels(&texture, SIZE, RGBA8, &mut found)?;
    same(&found, &data)?;
    let mut apart = vec![0; LINE * SIZE[1] * 4];
    gl.pixel_store(number::PACK_ROW_LENGTH, LINE)?;
    let read = gl.read_pixels(&texture, SIZE, RGBA8, &mut apart);
    gl.pixel_store(number::PACK_ROW_LENGTH, 0)?;
    read?;
    for (line, wanted) in apart.chunks_exact(LINE * 4).zip(data.chunks_exact(SIZE[0] * 4)) {
        same(&line[..SIZE[0] * 4], wanted).context("lines apart")?;
    }
    Ok(Outcome::Passed)
}
