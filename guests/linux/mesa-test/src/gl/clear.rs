// UNSAFETY: OpenGL's functions are called by pointer and take addresses.
//! Clears: of framebuffers, of parts of buffers and textures.
#![expect(unsafe_code)]

use std::ffi::c_uint;
use std::ops::Range;

use anyhow::{Result, ensure};

use super::format::{Format, Size};
use super::texture::Texture;
use super::{Buffer, Gl, Place, int, number};

const SCISSOR_TEST: c_uint = 0x0c11;
const FRAMEBUFFER_SRGB: c_uint = 0x8db9;
const COLOR_ATTACHMENTS: Range<u32> = number::COLOR_ATTACHMENT..number::COLOR_ATTACHMENT + 8;
const COLOR: c_uint = 0x1800;
const COLOR_BIT: c_uint = 0x4000;
const DEPTH_BIT: c_uint = 0x100;
const STENCIL_BIT: c_uint = 0x400;

/// Attachments of a framebuffer besides its colors.
pub(crate) mod attachment {
    /// The depth alone.
    pub(crate) const DEPTH: u32 = 0x8d00;
    /// Depth and stencil.
    pub(crate) const DEPTH_STENCIL: u32 = 0x821a;
}

/// What a framebuffer is cleared to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value {
    /// A color of floats.
    Floats([f32; 4]),
    /// A color of signed integers.
    Signed([i32; 4]),
    /// A color of unsigned integers.
    Unsigned([u32; 4]),
    /// A depth, a stencil or both.
    Depth(Option<f32>, Option<u8>),
}

/// The part of a texture that a framebuffer has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attached {
    /// Which attachment it is.
    pub(crate) attachment: u32,
    /// Level of the texture, 0 the largest.
    pub(crate) level: usize,
    /// One layer, or all.
    pub(crate) layer: Option<usize>,
}

impl Gl<'_> {
    /// Sets whether what is drawn into sRGB formats goes through their curve.
    pub(crate) fn set_srgb(&self, is_curved: bool) -> Result<()> {
        let functions = &self.functions;
        let set = if is_curved {
            functions.enable
        } else {
            functions.disable
        };
        // SAFETY: a number.
        unsafe { set(FRAMEBUFFER_SRGB) };
        self.check("GL_FRAMEBUFFER_SRGB")
    }

    /// Clears a framebuffer with these parts of textures, within a scissor (x, y, width, height) if there is one.
    pub(crate) fn clear_framebuffer(
        &self,
        parts: &[(&Texture<'_>, Attached)],
        scissor: Option<[usize; 4]>,
        value: Value,
    ) -> Result<()> {
        let functions = &self.functions;
        let name = self.name(functions.gen_framebuffers);
        // SAFETY: names and numbers.
        unsafe { (functions.bind_framebuffer)(number::FRAMEBUFFER, name) };
        let mut colors = Vec::new();
        for (texture, part) in parts {
            self.attach(texture, *part);
            if COLOR_ATTACHMENTS.contains(&part.attachment) {
                colors.push(part.attachment);
            }
        }
        // SAFETY: as many numbers as the slice has; numbers.
        let status = unsafe {
            (functions.draw_buffers)(int(colors.len()), colors.as_ptr());
            (functions.framebuffer_status)(number::FRAMEBUFFER)
        };
        if status == number::FRAMEBUFFER_COMPLETE {
            self.clear_bound(scissor, value);
        }
        // SAFETY: one name is deleted.
        unsafe {
            (functions.bind_framebuffer)(number::FRAMEBUFFER, 0);
            (functions.delete_framebuffers)(1, &raw const name);
        }
        ensure!(
            status == number::FRAMEBUFFER_COMPLETE,
            "framebuffer status {status:#x}"
        );
        self.check("a clear")
    }

    fn attach(&self, texture: &Texture<'_>, part: Attached) {
        let (functions, level) = (&self.functions, int(part.level));
        // SAFETY: names and numbers.
        unsafe {
            match part.layer {
                None => {
                    (functions.framebuffer_whole)(number::FRAMEBUFFER, part.attachment, texture.name, level);
                }
                Some(layer) => (functions.framebuffer_layer)(
                    number::FRAMEBUFFER,
                    part.attachment,
                    texture.name,
                    level,
                    int(layer),
                ),
            }
        }
    }

    /// Clears the framebuffer that is bound.
    fn clear_bound(&self, scissor: Option<[usize; 4]>, value: Value) {
        let functions = &self.functions;
        if let Some([x, y, width, height]) = scissor.map(|scissor| scissor.map(int)) {
            // SAFETY: numbers.
            unsafe {
                (functions.enable)(SCISSOR_TEST);
                (functions.scissor)(x, y, width, height);
            }
        }
        // SAFETY: numbers, and colors of four.
        unsafe {
            match value {
                Value::Floats([red, green, blue, opacity]) => {
                    (functions.clear_color)(red, green, blue, opacity);
                    (functions.clear)(COLOR_BIT);
                }
                Value::Signed(color) => (functions.clear_signed)(COLOR, 0, color.as_ptr()),
                Value::Unsigned(color) => (functions.clear_unsigned)(COLOR, 0, color.as_ptr()),
                Value::Depth(depth, stencil) => {
                    let mut bits = 0;
                    if let Some(depth) = depth {
                        (functions.clear_depth)(depth);
                        bits |= DEPTH_BIT;
                    }
                    if let Some(stencil) = stencil {
                        (functions.clear_stencil)(stencil.into());
                        bits |= STENCIL_BIT;
                    }
                    (functions.clear)(bits);
                }
            }
            (functions.disable)(SCISSOR_TEST);
        }
    }
}

impl Buffer<'_> {
    /// Fills the whole buffer with a texel of this format.
    pub(crate) fn clear(&self, format: Format, texel: &[u8]) -> Result<()> {
        ensure!(texel.len() == format.texel, "{} bytes for a texel", texel.len());
        self.bind(number::COPY_WRITE_BUFFER);
        // SAFETY: the texel was checked to be one of the format.
        unsafe {
            (self.gl.functions.clear_buffer_data)(
                number::COPY_WRITE_BUFFER,
                format.internal,
                format.format,
                format.kind,
                texel.as_ptr().cast(),
            );
        }
        self.gl.check("glClearBufferData")
    }

    /// Fills `bytes` from `offset` on with a texel of this format.
    pub(crate) fn clear_part(&self, offset: usize, bytes: usize, format: Format, texel: &[u8]) -> Result<()> {
        ensure!(texel.len() == format.texel, "{} bytes for a texel", texel.len());
        self.bind(number::COPY_WRITE_BUFFER);
        // SAFETY: the texel was checked to be one of the format.
        unsafe {
            (self.gl.functions.clear_buffer_part)(
                number::COPY_WRITE_BUFFER,
                format.internal,
                offset as isize,
                bytes as isize,
                format.format,
                format.kind,
                texel.as_ptr().cast(),
            );
        }
        self.gl.check("glClearBufferSubData")
    }
}

impl Texture<'_> {
    /// Fills a level with a texel.
    pub(crate) fn clear(&self, level: usize, format: Format, texel: &[u8]) -> Result<()> {
        ensure!(texel.len() == format.texel, "{} bytes for a texel", texel.len());
        // SAFETY: the texel was checked to be one of the format.
        unsafe {
            (self.gl.functions.clear_texture)(
                self.name,
                int(level),
                format.format,
                format.kind,
                texel.as_ptr().cast(),
            );
        }
        self.gl.check("glClearTexImage")
    }

    /// Fills a box of a level with a texel.
    pub(crate) fn clear_part(
        &self,
        level: usize,
        place: Place,
        [width, height, depth]: Size,
        format: Format,
        texel: &[u8],
    ) -> Result<()> {
        ensure!(texel.len() == format.texel, "{} bytes for a texel", texel.len());
        // SAFETY: the texel was checked to be one of the format.
        unsafe {
            (self.gl.functions.clear_texture_part)(
                self.name,
                int(level),
                int(place.x),
                int(place.y),
                int(place.z),
                int(width),
                int(height),
                int(depth),
                format.format,
                format.kind,
                texel.as_ptr().cast(),
            );
        }
        self.gl.check("glClearTexSubImage")
    }
}
