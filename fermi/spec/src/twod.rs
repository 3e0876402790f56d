//! 2D (class 902d): the methods that a copy between two surfaces needs, and the color formats of 2D and 3D.
//!
//! Sources: NVIDIA's `cl902d.h`; envytools `rnndb/graph/g80_2d.xml` and `rnndb/g80_defs.xml` (formats).

/// Methods of class 902d (2D).
pub mod method {
    /// First method of the target surface; the source has the same methods from [`SOURCE`] on.
    pub const TARGET: u16 = 0x200;
    /// First method of the source surface.
    pub const SOURCE: u16 = 0x230;
    /// Address of the condition, bits 39:32; the low word follows.
    pub const CONDITION_HIGH: u16 = 0x264;
    /// When a copy is made, see [`crate::methods::RenderEnable`].
    pub const CONDITION: u16 = 0x26c;
    /// Clip rectangle: x, y, width, height.
    pub const CLIP: u16 = 0x280;
    /// Whether the rectangle clips.
    pub const CLIP_ENABLE: u16 = 0x290;
    /// What is done with a pixel, see [`super::OPERATION_COPY`].
    pub const OPERATION: u16 = 0x2ac;
    /// Rectangle in the target: x, y, width, height.
    pub const COPY_TARGET: u16 = 0x8b0;
    /// Steps in the source for a pixel to the right and a line down: fraction and integer of each.
    pub const COPY_STEPS: u16 = 0x8c0;
    /// Where the copy begins in the source: fraction and integer of x, then of y. The last of the four starts
    /// the copy.
    pub const COPY_SOURCE: u16 = 0x8d0;
    /// Integer part of y; starts the copy.
    pub const COPY_START: u16 = 0x8dc;
    /// First of the firmware methods, which PGRAPH's context-switching microcode executes.
    pub const FIRMWARE: u16 = 0x8e0;
    /// Last of the firmware methods.
    pub const FIRMWARE_LAST: u16 = 0x95c;

    /// All methods below the macro calls (`cl902d.h`; the sizes of its arrays from envytools).
    #[rustfmt::skip]
    pub const METHODS: &crate::graphics::Methods = &[
        (0x100, 0x124),
        (0x130, 0x140),
        (0x150, 0x154),
        (0x1ec, 0x1ec),
        (0x200, 0x574),
        (0x580, 0x58c),
        (0x5e0, 0x5e0),
        (0x600, 0x81c),
        (0x838, 0x860),
        (0x870, 0x870),
        (0x880, 0x88c),
        (0x8b0, 0x95c),
        (0xdec, 0xdec),
        (0x3400, 0x37fc),
    ];
}

/// Methods of a surface, from its first one on.
pub mod surface {
    /// Format, see [`super::Format`].
    pub const FORMAT: u16 = 0x00;
    /// 1: pitch, 0: block-linear.
    pub const LINEAR: u16 = 0x04;
    /// Size of a block, see [`crate::surface::BlockSize`].
    pub const BLOCK_SIZE: u16 = 0x08;
    /// Number of layers.
    pub const DEPTH: u16 = 0x0c;
    /// Layer of the target; the source's layer is always its first.
    pub const LAYER: u16 = 0x10;
    /// Bytes from one line to the next.
    pub const PITCH: u16 = 0x14;
    /// Pixels of a line.
    pub const WIDTH: u16 = 0x18;
    /// Number of lines.
    pub const HEIGHT: u16 = 0x1c;
    /// Address bits 39:32; the low word follows.
    pub const ADDRESS_HIGH: u16 = 0x20;
}

/// OPERATION: the source replaces the target.
pub const OPERATION_COPY: u32 = 3;

/// A color format, by its number in 2D and 3D methods.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Format(pub u32);

/// Meaning of one byte of a pixel with four 8-bit components.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Channel {
    /// Red, component 0.
    Red,
    /// Green, component 1.
    Green,
    /// Blue, component 2.
    Blue,
    /// Opacity, component 3.
    Alpha,
    /// A byte without meaning.
    Unused,
}

impl Format {
    /// Bytes of a pixel, `None` for a format that has no such number or does not exist.
    pub const fn bytes(self) -> Option<u32> {
        match self.0 {
            0xc0..=0xc5 => Some(16),
            0xc6..=0xce => Some(8),
            0xcf..=0xd2 | 0xd5..=0xe0 | 0xe3..=0xe7 | 0xf9 | 0xfa | 0xfd..=0xff => Some(4),
            0xe8..=0xf2 | 0xf8 | 0xfb | 0xfc => Some(2),
            0xf3..=0xf7 => Some(1),
            0x40 | 0x41 | 0x43 => Some(2),
            0x42 | 0x44 | 0x45 => Some(4),
            0x46 => Some(8),
            _ => None,
        }
    }

    /// The four bytes of a pixel, for formats with four normalized components of 8 bits.
    pub const fn channels(self) -> Option<[Channel; 4]> {
        use Channel::{Alpha, Blue, Green, Red, Unused};
        match self.0 {
            0xcf | 0xd0 => Some([Blue, Green, Red, Alpha]),
            0xe6 | 0xe7 => Some([Blue, Green, Red, Unused]),
            0xd5 | 0xd6 => Some([Red, Green, Blue, Alpha]),
            0xf9 | 0xfa => Some([Red, Green, Blue, Unused]),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pixels_with_channels_have_four_bytes() {
        for code in 0..0x200 {
            let format = Format(code);
            assert!(
                format.channels().is_none() || format.bytes() == Some(4),
                "{code:#x}"
            );
        }
    }
}
