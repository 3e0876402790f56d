//! Operands that are something special: the bench measures with them, and the tests of levels compare with them.

/// Bounds of integers of all sizes.
pub(crate) const INTEGERS: &[u32] = &[
    0,
    1,
    2,
    31,
    32,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0x8000,
    0xffff,
    0x100_0001,
    0x7fff_ffff,
    0x8000_0000,
    0x8000_0001,
    0xffff_ff7f,
    0xffff_fffe,
    0xffff_ffff,
];

/// f16 values: zeros, denormals, ties, the largest, infinities, NaN.
pub(crate) const HALVES: &[u32] = &[
    0, 0x8000, 1, 0x8001, 0x3ff, 0x400, 0x3800, 0xb800, 0x3c00, 0x3e00, 0x7bff, 0xfbff, 0x7c00, 0xfc00,
    0x7e00, 0x7c01,
];

/// f32 values of those kinds.
pub(crate) const SINGLES: &[u32] = &[
    0,
    0x8000_0000,
    1,
    0x8000_0001,
    0x007f_ffff,
    0x0080_0000,
    0x0080_0001,
    0x3380_0000,
    0x3f00_0000,
    0xbf00_0000,
    0x3f80_0000,
    0x3f80_0001,
    0x3fc0_0000,
    0x4020_0000,
    0x477f_f000,
    0x4f00_0000,
    0xcf00_0000,
    0x5f00_0000,
    0x7f7f_ffff,
    0xff7f_ffff,
    0x7f80_0000,
    0xff80_0000,
    0x7fc0_0000,
    0x7f80_0001,
    0xffff_ffff,
];

/// f64 values of those kinds.
pub(crate) const DOUBLES: &[u64] = &[
    0,
    1 << 63,
    1,
    1 << 63 | 1,
    0x000f_ffff_ffff_ffff,
    0x0010_0000_0000_0000,
    0x3690_0000_0000_0000,
    0x3810_0000_0000_0001,
    0x3fe0_0000_0000_0000,
    0xbfe0_0000_0000_0000,
    0x3ff0_0000_0000_0000,
    0x3ff0_0000_0000_0001,
    0x4004_0000_0000_0000,
    0x40ef_fe00_0000_0000,
    0x41e0_0000_0000_0000,
    0x43e0_0000_0000_0000,
    0xc3e0_0000_0000_0000,
    0x47ef_ffff_f000_0000,
    0x7fef_ffff_ffff_ffff,
    0xffef_ffff_ffff_ffff,
    0x7ff0_0000_0000_0000,
    0xfff0_0000_0000_0000,
    0x7ff8_0000_0000_0000,
    0x7ff0_0000_0000_0001,
];
