//! Components of a texel, from bits and to bits.

use fermi_spec::texel::{Component, Number, Texel};

use crate::compute::alu::{
    Round,
    convert::{half_bits, half_value},
};

/// A texel's bytes as a number, the first byte lowest.
pub(crate) type Bits = u128;

fn raw(component: Component, bits: Bits) -> u32 {
    (bits >> component.low) as u32 & mask(component.bits)
}

fn mask(bits: u8) -> u32 {
    u32::MAX >> (32 - u32::from(bits).clamp(1, 32))
}

fn signed(value: u32, bits: u8) -> i32 {
    let unused = 32 - u32::from(bits).clamp(1, 32);
    (value << unused) as i32 >> unused
}

/// Largest magnitude of a normalized number.
fn most(number: Number, bits: u8) -> f64 {
    match number {
        Number::Snorm => f64::from(mask(bits) >> 1),
        _ => f64::from(mask(bits)),
    }
}

/// Bits of the significand of an unsigned float.
fn significand_bits(bits: u8) -> Option<u32> {
    match bits {
        11 => Some(6),
        10 => Some(5),
        _ => None,
    }
}

/// The components of a texel as results: bits of an f32, or integers. One that is not there is zero.
pub(crate) fn unpack(texel: &Texel, bits: Bits) -> [u32; 4] {
    let mut values = [0; 4];
    for component in texel.components() {
        let value = unpack_one(component, raw(component, bits));
        let is_curved = texel.is_srgb && component.index < 3 && component.number == Number::Unorm;
        values[usize::from(component.index & 3)] = if is_curved {
            (from_srgb(f64::from(f32::from_bits(value))) as f32).to_bits()
        } else {
            value
        };
    }
    values
}

fn unpack_one(component: Component, value: u32) -> u32 {
    let bits = component.bits;
    match component.number {
        Number::Uint => value,
        Number::Sint => signed(value, bits) as u32,
        Number::Unorm => ((f64::from(value) / most(Number::Unorm, bits)) as f32).to_bits(),
        Number::Snorm => {
            let value = f64::from(signed(value, bits)) / most(Number::Snorm, bits);
            (value.max(-1.0) as f32).to_bits()
        }
        Number::Float => match (bits, significand_bits(bits)) {
            (32, _) => value,
            (16, _) => (half_value(value as u16) as f32).to_bits(),
            // Sign and the lower bits of the significand are zero, all else is as in a half.
            (_, Some(significand)) => (half_value((value << (10 - significand)) as u16) as f32).to_bits(),
            _ => 0,
        },
    }
}

/// Three components of nine bits with one exponent of five.
pub(crate) fn unpack_shared_exponent(bits: Bits) -> [u32; 4] {
    let word = bits as u32;
    let scale = 2f32.powi((word >> 27) as i32 - 15 - 9);
    let value = |low: u32| ((word >> low & 0x1ff) as f32 * scale).to_bits();
    [value(0), value(9), value(18), 1f32.to_bits()]
}

/// A texel's bits from components as registers hold them. Values beyond a component's range become the nearest inside, a
/// NaN becomes zero but in floats (assumption: as render targets do; floats round to the nearest).
pub(crate) fn pack(texel: &Texel, values: [u32; 4]) -> Bits {
    texel.components().fold(0, |bits, component| {
        let value = values[usize::from(component.index & 3)];
        let is_curved = texel.is_srgb && component.index < 3 && component.number == Number::Unorm;
        let value = if is_curved {
            (to_srgb(f64::from(f32::from_bits(value))) as f32).to_bits()
        } else {
            value
        };
        let raw = pack_one(component, value) & mask(component.bits);
        bits | Bits::from(raw) << component.low
    })
}

/// Bits of a texel that belong to components whose bit in `components` is set.
pub(crate) fn mask_of(texel: &Texel, components: u32) -> Bits {
    texel
        .components()
        .filter(|component| components >> component.index & 1 != 0)
        .fold(0, |bits, component| {
            bits | Bits::from(mask(component.bits)) << component.low
        })
}

fn pack_one(component: Component, value: u32) -> u32 {
    let bits = component.bits;
    let float = f64::from(f32::from_bits(value));
    match component.number {
        Number::Uint => value.min(mask(bits)),
        Number::Sint => {
            let most = (mask(bits) >> 1) as i32;
            (value as i32).clamp(-most - 1, most) as u32
        }
        Number::Unorm => (float.clamp(0.0, 1.0) * most(Number::Unorm, bits)).round_ties_even() as u32,
        Number::Snorm => (float.clamp(-1.0, 1.0) * most(Number::Snorm, bits)).round_ties_even() as i32 as u32,
        Number::Float => match (bits, significand_bits(bits)) {
            (32, _) => value,
            (16, _) => half_bits(float, Round::Nearest).into(),
            (_, Some(significand)) => unsigned_float(float, significand),
            _ => 0,
        },
    }
}

/// A float without a sign and with five bits of exponent: what is below zero is zero.
fn unsigned_float(value: f64, significand: u32) -> u32 {
    const INFINITE: u32 = 31;
    if value.is_nan() {
        return INFINITE << significand | 1;
    }
    let half = half_bits(value.max(0.0), Round::Zero);
    let exact = half_value(half) == value.max(0.0);
    let (kept, dropped) = (
        u32::from(half) >> (10 - significand),
        u32::from(half) & mask(10 - significand as u8),
    );
    let middle = 1 << (9 - significand);
    // Halfway between two values it is the even one, as for halves.
    let rounds_up = dropped > middle || dropped == middle && (!exact || kept & 1 != 0);
    if value.is_infinite() && value > 0.0 {
        INFINITE << significand
    } else {
        (kept + u32::from(rounds_up)).min(INFINITE << significand)
    }
}

/// Out of the sRGB curve (IEC 61966-2-1).
fn from_srgb(value: f64) -> f64 {
    if value <= 0.04045 {
        value / 12.92
    } else {
        libm::pow((value + 0.055) / 1.055, 2.4)
    }
}

/// Into the sRGB curve.
fn to_srgb(value: f64) -> f64 {
    let value = value.clamp(0.0, 1.0);
    if value <= 0.003_130_8 {
        value * 12.92
    } else {
        1.055 * libm::pow(value, 1.0 / 2.4) - 0.055
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fermi_spec::twod::Format;
    use proptest::prelude::*;

    fn texel(format: u32) -> Texel {
        Format(format).texel().expect("a format")
    }

    fn floats(values: [u32; 4]) -> [f32; 4] {
        values.map(f32::from_bits)
    }

    #[test]
    fn normalized_bytes_are_fractions() {
        let found = floats(unpack(&texel(0xd5), 0x80ff_3300));
        assert_eq!(found, [0.0, 0.2, 1.0, 128.0 / 255.0]);
        let found = floats(unpack(&texel(0xd7), 0x8081_7f40));
        assert_eq!(found, [64.0 / 127.0, 1.0, -1.0, -1.0]);
    }

    #[test]
    fn integers_keep_their_sign() {
        assert_eq!(
            unpack(&texel(0xd8), 0x0180_7fff),
            [u32::MAX, 127, -128i32 as u32, 1]
        );
        assert_eq!(unpack(&texel(0xd9), 0x0180_7fff), [255, 127, 128, 1]);
    }

    #[test]
    fn small_floats_have_no_sign() {
        // 1.0, 0.5, 2.0.
        let bits = 0x3c0 | 0x380 << 11 | 0x200 << 22;
        assert_eq!(floats(unpack(&texel(0xe0), bits))[..3], [1.0, 0.5, 2.0]);
        assert_eq!(pack(&texel(0xe0), [1f32, 0.5, 2.0, 0.0].map(f32::to_bits)), bits);
        assert_eq!(pack(&texel(0xe0), [-1f32, -0.0, -9.0, 0.0].map(f32::to_bits)), 0);
    }

    #[test]
    fn small_floats_round_to_the_nearest_and_overflow() {
        assert_eq!(unsigned_float(1.0 + 1.0 / 128.0, 6), 0x3c0);
        assert_eq!(unsigned_float(1.0 + 3.0 / 128.0, 6), 0x3c2);
        assert_eq!(unsigned_float(1.0 + 1.0 / 128.0 + 1e-9, 6), 0x3c1);
        assert_eq!(unsigned_float(1e9, 6), 0x7c0);
        assert_eq!(unsigned_float(f64::INFINITY, 5), 0x3e0);
        assert_eq!(unsigned_float(f64::NAN, 5) >> 5, 31);
    }

    #[test]
    fn shared_exponent_scales_all() {
        let found = floats(unpack_shared_exponent(0x100 | 0x80 << 9 | 0x1ff << 18 | 16 << 27));
        assert_eq!(found, [1.0, 0.5, 511.0 / 256.0, 1.0]);
    }

    #[test]
    fn stores_clamp_to_the_range() {
        assert_eq!(pack(&texel(0xd9), [1000, 5, u32::MAX, 0]), 0x00ff_05ff);
        assert_eq!(pack(&texel(0xd8), [1000, -1000i32 as u32, 0, 1]), 0x0100_807f);
        let values = [2.0f32, -1.0, 0.5, f32::NAN].map(f32::to_bits);
        assert_eq!(pack(&texel(0xd5), values), 0x0080_00ff);
    }

    #[test]
    fn srgb_goes_there_and_back() {
        for byte in 0..=255u32 {
            let bits = Bits::from(byte * 0x0001_0101);
            assert_eq!(pack(&texel(0xd6), unpack(&texel(0xd6), bits)), bits);
        }
        let middle = f32::from_bits(unpack(&texel(0xd6), 0x80)[0]);
        assert!((middle - 0.215_86).abs() < 1e-5, "{middle}");
    }

    proptest! {
        #[test]
        fn what_was_unpacked_packs_to_the_same(format in 0xc0u32..0x100, bits in any::<u128>()) {
            if let Some(texel) = Format(format).texel() {
                let bits = bits & mask_of(&texel, 15);
                let again = pack(&texel, unpack(&texel, bits));
                // The smallest signed number and the one above it are one; NaNs change their bits; 32 bits of a
                // normalized number do not fit an f32.
                let same = texel.components().all(|component| {
                    let (was, is) = (raw(component, bits), raw(component, again));
                    let is_lowest = component.number == Number::Snorm && was == mask(component.bits) / 2 + 1;
                    let is_wide = component.number == Number::Unorm && component.bits > 24;
                    let is_nan = component.number == Number::Float
                        && f32::from_bits(unpack_one(component, was)).is_nan();
                    was == is || is_lowest || is_wide || is_nan
                });
                prop_assert!(same, "{:x} {:x}", bits, again);
            }
        }
    }
}
