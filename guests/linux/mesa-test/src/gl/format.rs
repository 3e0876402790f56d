//! How texels are named and counted.

/// Size of a level of a texture: texels, lines, layers.
pub(crate) type Size = [usize; 3];

/// How texels are laid out in client memory, and the texture's own format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Format {
    /// Internal format of the texture.
    pub(crate) internal: u32,
    /// Components in client memory.
    pub(crate) format: u32,
    /// Type of the components in client memory.
    pub(crate) kind: u32,
    /// Bytes of a texel.
    pub(crate) texel: usize,
}

impl Format {
    /// Numbers of OpenGL, and the bytes of a texel in client memory.
    pub(crate) const fn new(internal: u32, format: u32, kind: u32, texel: usize) -> Self {
        Self {
            internal,
            format,
            kind,
            texel,
        }
    }
}

/// Bytes of an image in client memory, without gaps.
pub(crate) fn image_bytes([width, height, depth]: Size, format: Format) -> usize {
    width * height * depth * format.texel
}
