// UNSAFETY: OpenGL's functions are called by pointer and take addresses.
//! Textures: upload, readback, and as programs see them.
#![expect(unsafe_code)]

use std::ffi::c_uint;

use anyhow::{Result, ensure};

use super::format::{Format, Size, image_bytes};
use super::{Buffer, Gl, Place, int, number};

const FIRST_UNIT: c_uint = 0x84c0;
const READ_WRITE: c_uint = 0x88ba;

/// A texture object; deleted when dropped.
#[derive(Debug)]
pub(crate) struct Texture<'a> {
    pub(super) gl: &'a Gl<'a>,
    pub(super) name: c_uint,
    pub(super) target: c_uint,
}

impl Texture<'_> {
    pub(super) fn bind(&self) {
        // SAFETY: a name and a number.
        unsafe { (self.gl.functions.bind_texture)(self.target, self.name) }
    }

    /// Sets its number of levels.
    pub(crate) fn set_levels(&self, levels: usize) -> Result<()> {
        self.bind();
        // SAFETY: numbers only.
        unsafe {
            (self.gl.functions.tex_parameter)(self.target, number::TEXTURE_BASE_LEVEL, 0);
            (self.gl.functions.tex_parameter)(self.target, number::TEXTURE_MAX_LEVEL, int(levels - 1));
        }
        self.gl.check("glTexParameteri")
    }

    /// Sets a parameter.
    pub(crate) fn set(&self, parameter: u32, value: usize) -> Result<()> {
        self.bind();
        // SAFETY: numbers only.
        unsafe { (self.gl.functions.tex_parameter)(self.target, parameter, int(value)) };
        self.gl.check("glTexParameteri")
    }

    /// Sets the border's color.
    pub(crate) fn set_border(&self, color: [f32; 4]) -> Result<()> {
        self.bind();
        // SAFETY: the parameter has four values.
        unsafe {
            (self.gl.functions.tex_parameter_floats)(
                self.target,
                number::TEXTURE_BORDER_COLOR,
                color.as_ptr(),
            );
        }
        self.gl.check("glTexParameterfv")
    }

    /// Binds it to a texture unit.
    pub(crate) fn bind_to(&self, unit: c_uint) -> Result<()> {
        // SAFETY: numbers only.
        unsafe { (self.gl.functions.active_texture)(FIRST_UNIT + unit) };
        self.bind();
        // SAFETY: a number.
        unsafe { (self.gl.functions.active_texture)(FIRST_UNIT) };
        self.gl.check("glActiveTexture")
    }

    /// Binds level 0 to an image unit, all layers or one.
    pub(crate) fn bind_image(&self, unit: c_uint, layer: Option<usize>, internal: u32) -> Result<()> {
        let is_layered = u8::from(layer.is_none());
        // SAFETY: a name and numbers.
        unsafe {
            (self.gl.functions.bind_image)(
                unit,
                self.name,
                0,
                is_layered,
                int(layer.unwrap_or(0)),
                READ_WRITE,
                internal,
            );
        }
        self.gl.check("glBindImageTexture")
    }

    /// Makes a buffer the texture's texels.
    pub(crate) fn show_buffer(&self, buffer: &Buffer<'_>, internal: u32) -> Result<()> {
        self.bind();
        // SAFETY: names and numbers.
        unsafe { (self.gl.functions.tex_buffer)(self.target, internal, buffer.name) };
        self.gl.check("glTexBuffer")
    }

    /// Makes a 2D texture of that many levels that cannot be made anew.
    pub(crate) fn make_immutable(
        &self,
        [width, height, _]: Size,
        levels: usize,
        format: Format,
    ) -> Result<()> {
        self.bind();
        // SAFETY: numbers only.
        unsafe {
            (self.gl.functions.tex_storage_2d)(
                self.target,
                int(levels),
                format.internal,
                int(width),
                int(height),
            );
        }
        self.gl.check("glTexStorage2D")
    }

    /// Makes a level and uploads it.
    pub(crate) fn upload(&self, level: usize, size: Size, format: Format, data: &[u8]) -> Result<()> {
        self.upload_to(self.target, level, size, format, data)
    }

    /// The same for a face of a cube.
    pub(crate) fn upload_face(&self, face: u32, size: Size, format: Format, data: &[u8]) -> Result<()> {
        self.upload_to(number::TEXTURE_CUBE_FIRST + face, 0, size, format, data)
    }

    fn upload_to(&self, target: u32, level: usize, size: Size, format: Format, data: &[u8]) -> Result<()> {
        ensure!(
            data.len() >= image_bytes(size, format),
            "{} bytes for {size:?}",
            data.len()
        );
        self.bind();
        let [width, height, depth] = size.map(int);
        let (level, internal, at) = (int(level), format.internal as i32, data.as_ptr().cast());
        let functions = &self.gl.functions;
        // SAFETY: `data` was checked to hold the image, whose lines are packed (alignment 1, no row length).
        unsafe {
            match self.target {
                number::TEXTURE_3D | number::TEXTURE_2D_ARRAY => (functions.tex_image_3d)(
                    target,
                    level,
                    internal,
                    width,
                    height,
                    depth,
                    0,
                    format.format,
                    format.kind,
                    at,
                ),
                number::TEXTURE_1D => (functions.tex_image_1d)(
                    target,
                    level,
                    internal,
                    width,
                    0,
                    format.format,
                    format.kind,
                    at,
                ),
                _ => (functions.tex_image_2d)(
                    target,
                    level,
                    internal,
                    width,
                    height,
                    0,
                    format.format,
                    format.kind,
                    at,
                ),
            }
        }
        self.gl.check("glTexImage")
    }

    /// Replaces a rectangle of level 0 of a 2D texture.
    pub(crate) fn replace(&self, place: Place, size: Size, format: Format, data: &[u8]) -> Result<()> {
        ensure!(
            data.len() >= image_bytes(size, format),
            "{} bytes for {size:?}",
            data.len()
        );
        self.bind();
        let [width, height, _] = size.map(int);
        // SAFETY: `data` was checked to hold the image, whose lines are packed.
        unsafe {
            (self.gl.functions.tex_sub_image_2d)(
                self.target,
                0,
                int(place.x),
                int(place.y),
                width,
                height,
                format.format,
                format.kind,
                data.as_ptr().cast(),
            );
        }
        self.gl.check("glTexSubImage2D")
    }

    /// Reads a level back.
    pub(crate) fn read(&self, level: usize, size: Size, format: Format) -> Result<Vec<u8>> {
        self.read_from(self.target, level, size, format)
    }

    /// Reads a face of a cube back.
    pub(crate) fn read_face(&self, face: u32, size: Size, format: Format) -> Result<Vec<u8>> {
        self.read_from(number::TEXTURE_CUBE_FIRST + face, 0, size, format)
    }

    fn read_from(&self, target: u32, level: usize, size: Size, format: Format) -> Result<Vec<u8>> {
        self.bind();
        let mut data = vec![0xa5; image_bytes(size, format)];
        // SAFETY: `data` has room for the level, whose lines are packed (alignment 1, no row length).
        unsafe {
            (self.gl.functions.get_tex_image)(
                target,
                int(level),
                format.format,
                format.kind,
                data.as_mut_ptr().cast(),
            );
        }
        self.gl.check("glGetTexImage")?;
        Ok(data)
    }

    /// Makes a level of a compressed 2D texture.
    pub(crate) fn upload_compressed(
        &self,
        internal: u32,
        [width, height, _]: Size,
        data: &[u8],
    ) -> Result<()> {
        self.bind();
        // SAFETY: OpenGL checks that the size is right for the format; `data` has it.
        unsafe {
            (self.gl.functions.compressed_2d)(
                self.target,
                0,
                internal,
                int(width),
                int(height),
                0,
                int(data.len()),
                data.as_ptr().cast(),
            );
        }
        self.gl.check("glCompressedTexImage2D")
    }

    /// Reads a compressed level back; it has `bytes`.
    pub(crate) fn read_compressed(&self, bytes: usize) -> Result<Vec<u8>> {
        self.bind();
        let mut data = vec![0xa5; bytes];
        // SAFETY: the level was uploaded with as many bytes.
        unsafe { (self.gl.functions.get_compressed)(self.target, 0, data.as_mut_ptr().cast()) };
        self.gl.check("glGetCompressedTexImage")?;
        Ok(data)
    }
}

impl Drop for Texture<'_> {
    fn drop(&mut self) {
        // SAFETY: one name is deleted.
        unsafe { (self.gl.functions.delete_textures)(1, &raw const self.name) }
    }
}
