//! Conversions against an oracle of one lane, and the oracle against `rustc_apfloat`.

mod oracle;

use super::*;
use proptest::prelude::*;
use rustc_apfloat::{Float as _, FloatConvert as _, Round as R, ieee};

const ROUNDS: [Round; 4] = [Round::Nearest, Round::Down, Round::Up, Round::Zero];
const THEIRS: [R; 4] = [
    R::NearestTiesToEven,
    R::TowardNegative,
    R::TowardPositive,
    R::TowardZero,
];
const FLOATS: [Float; 3] = [Float::Half, Float::Single, Float::Double];
const PLAIN: Options = Options {
    abs: false,
    neg: false,
    ftz: false,
    sat: false,
    round: Round::Nearest,
    integral: false,
};
const S32: Integer = Integer {
    bits: 32,
    signed: true,
};
const U32: Integer = Integer {
    bits: 32,
    signed: false,
};

/// Whole numbers, ties, bounds of integers and of the floats of three sizes.
const VALUES: &[f64] = &[
    0.0,
    0.25,
    0.5,
    0.75,
    1.0,
    1.5,
    2.0,
    2.5,
    127.5,
    128.0,
    255.5,
    32767.5,
    32768.5,
    65503.0,
    65504.0,
    65519.99,
    65520.0,
    65535.5,
    65536.0,
    2147483647.5,
    2147483648.0,
    4294967295.5,
    4294967296.0,
    9.2e18,
    9.3e18,
    1.8e19,
    1.9e19,
    1e30,
    6e-8,
    3e-8,
    2.9e-8,
    6.1e-5,
    1e-40,
    1e-45,
    7e-46,
    3.5e38,
    1e300,
    1e-300,
    f64::INFINITY,
];

fn integers() -> impl Iterator<Item = Integer> {
    (0..8).map(Integer::from_bits)
}

fn options() -> impl Iterator<Item = Options> {
    (0..128).map(|bits| Options {
        abs: bits & 4 != 0,
        neg: bits & 8 != 0,
        ftz: bits & 16 != 0,
        sat: bits & 32 != 0,
        round: ROUNDS[bits & 3],
        integral: bits & 64 != 0,
    })
}

/// The 64 bits of sources: bounds of all types, ties, NaN, denormals, noise.
fn sources() -> Vec<u64> {
    let mut values = vec![];
    for bit in [
        0, 1, 7, 8, 9, 10, 11, 15, 16, 23, 24, 25, 31, 32, 52, 53, 54, 62, 63,
    ] {
        let power = 1u64 << bit;
        values.extend([power - 1, power, power + 1, power.wrapping_neg(), !power]);
    }
    // Floats of the three sizes around whole numbers, ties and the bounds of integers.
    for value in VALUES {
        for value in [*value, -value] {
            let (double, single) = (value.to_bits(), u64::from((value as f32).to_bits()));
            let half = u64::from(oracle::half_bits(value, Round::Nearest));
            values.extend([double.wrapping_sub(1), double, double + 1]);
            values.extend([
                single,
                single + 1,
                single << 32 | single.wrapping_sub(1) & 0xffff_ffff,
            ]);
            values.extend([half, half << 16 | half.wrapping_sub(1) & 0xffff]);
        }
    }
    for nan in [
        0x7ff0_0000_0000_0001,
        0xfff8_1234_5678_9abc,
        0x7f80_0001,
        0xffc0_0000,
        0x7c01,
        0xfe00,
    ] {
        values.push(nan);
    }
    let mut state = 1u64;
    values.extend((0..200).map(|_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        state ^ state >> 29
    }));
    values
}

/// Each of the results of `convert`, of a source as wide as `bits` says.
fn converted(
    values: &[u64],
    bits: u32,
    convert: impl Fn(Bits<'_>) -> Converted,
    mut see: impl FnMut(u64, u64),
) {
    for part in values.chunks(LANES) {
        let wide = wide_each(|lane| part[lane % part.len()]);
        let low = each(|lane| wide[lane] as u32);
        let result = convert(if bits == 64 {
            Bits::Two(&wide)
        } else {
            Bits::One(&low)
        });
        for (lane, value) in part.iter().enumerate() {
            let found = match &result {
                Converted::One(words) => words[lane].into(),
                Converted::Two(low, high) => u64::from(high[lane]) << 32 | u64::from(low[lane]),
            };
            see(*value, found);
        }
    }
}

fn bits_of_float(float: Float) -> u32 {
    match float {
        Float::Half => 16,
        Float::Single => 32,
        Float::Double => 64,
    }
}

/// Bits of a result that the oracle's has as well: registers.
fn mask(bits: u32) -> u64 {
    if bits == 64 { u64::MAX } else { 0xffff_ffff }
}

#[test]
fn floats_become_floats_as_the_oracle_has_it() {
    let sources = sources();
    for (from, to) in FLOATS.iter().flat_map(|from| FLOATS.map(|to| (*from, to))) {
        for options in options() {
            let convert = |bits: Bits<'_>| float_to_float(bits, from, to, options);
            converted(&sources, bits_of_float(from), convert, |source, found| {
                let bits = if from == Float::Half {
                    source & 0xffff
                } else {
                    source
                };
                let expected = oracle::float_to_float(bits, from, to, options) & mask(bits_of_float(to));
                assert_eq!(found, expected, "{source:#x} {from:?} to {to:?} {options:?}");
            });
        }
    }
}

#[test]
fn floats_become_integers_as_the_oracle_has_it() {
    let sources = sources();
    for (from, to) in FLOATS.iter().flat_map(|from| integers().map(|to| (*from, to))) {
        for options in options().filter(|options| !options.sat && !options.integral) {
            let convert = |bits: Bits<'_>| float_to_integer(bits, from, to, options);
            converted(&sources, bits_of_float(from), convert, |source, found| {
                let expected = oracle::float_to_integer(source, from, to, options) & mask(to.bits);
                assert_eq!(found, expected, "{source:#x} {from:?} to {to:?} {options:?}");
            });
        }
    }
}

#[test]
fn integers_become_floats_as_the_oracle_has_it() {
    let sources = sources();
    for (from, to) in integers().flat_map(|from| FLOATS.map(|to| (from, to))) {
        for options in options().filter(|options| !options.sat && !options.integral && !options.ftz) {
            let convert = |bits: Bits<'_>| integer_to_float(bits, from, to, options);
            converted(&sources, from.bits, convert, |source, found| {
                let value = oracle::signs(oracle::of(from, source), options.abs, options.neg);
                let expected = oracle::integer_to_float(value, to, options.round) & mask(bits_of_float(to));
                assert_eq!(found, expected, "{source:#x} {from:?} to {to:?} {options:?}");
            });
        }
    }
}

#[test]
fn integers_become_integers_as_the_oracle_has_it() {
    let sources = sources();
    for (from, to) in integers().flat_map(|from| integers().map(move |to| (from, to))) {
        for options in options().filter(|options| options.round == Round::Nearest && !options.integral) {
            let Options { abs, neg, sat, .. } = options;
            let convert = |bits: Bits<'_>| integer_to_integer(bits, from, to, options);
            converted(&sources, from.bits, convert, |source, found| {
                let value = oracle::of(from, source);
                let expected = oracle::integer_to_integer(value, to, abs, neg, sat) & mask(to.bits);
                assert_eq!(found, expected, "{source:#x} {from:?} to {to:?} {options:?}");
            });
        }
    }
}

fn to_integer(bits: u32, to: Integer, round: Round) -> u32 {
    let options = Options { round, ..PLAIN };
    match float_to_integer(Bits::One(&[bits; 32]), Float::Single, to, options) {
        Converted::One(words) => words[9],
        Converted::Two(low, _) => low[9],
    }
}

#[test]
fn vectors_of_the_instruction_set_page() {
    assert_eq!(to_integer(0xc020_0000, S32, Round::Zero), 0xffff_fffe);
    assert_eq!(to_integer(0xc020_0000, S32, Round::Down), 0xffff_fffd);
    assert_eq!(to_integer(0x4020_0000, S32, Round::Nearest), 2);
    assert_eq!(to_integer(0xbf80_0000, U32, Round::Zero), 0);
    assert_eq!(to_integer(0x7f80_0000, S32, Round::Zero), 0x7fff_ffff);
    assert_eq!(to_integer(0x7fc0_0000, S32, Round::Zero), 0);
    let float = |value: i128| oracle::integer_to_float(value, Float::Single, Round::Nearest);
    assert_eq!(float(oracle::of(U32, 0xffff_ffff)), 0x4f80_0000);
    assert_eq!(float(oracle::of(S32, 0xffff_ffff)), 0xbf80_0000);
    assert_eq!(float(0xc8), 0x4348_0000);
    let u8 = Integer::from_bits(0);
    assert_eq!(oracle::integer_to_integer(0x12c, u8, false, false, true), 0xff);
    let nan = f64::NAN.to_bits();
    let s16 = Integer::from_bits(5);
    assert_eq!(
        oracle::float_to_integer(nan, Float::Double, s16, PLAIN) as u32,
        0xffff_8000
    );
    assert_eq!(
        oracle::float_to_integer(nan, Float::Double, U32, PLAIN) as u32,
        0x8000_0000
    );
}

#[test]
fn saturated_half_is_no_nan_and_has_no_sign() {
    let sat = Options { sat: true, ..PLAIN };
    let half = |bits: u64| oracle::float_to_float(bits, Float::Half, Float::Half, sat);
    assert_eq!([0x7e00, 0x8000, 0x4000, 0x3800].map(half), [0, 0, 0x3c00, 0x3800]);
}

#[test]
fn halves_round_trip_and_overflow() {
    for bits in 0..=u16::MAX {
        let value = half_value(bits);
        if !value.is_nan() {
            assert_eq!(half_bits(value, Round::Nearest), bits);
            assert_eq!(oracle::half_value(bits).to_bits(), value.to_bits());
        }
    }
    assert_eq!(half_bits(f64::NAN, Round::Nearest), 0x7fff);
    assert_eq!(half_bits(65520.0, Round::Nearest), 0x7c00);
    assert_eq!(half_bits(65519.0, Round::Nearest), 0x7bff);
    assert_eq!(half_bits(1e9, Round::Zero), 0x7bff);
    assert_eq!(half_bits(-1e9, Round::Down), 0xfc00);
    assert_eq!(half_bits(2f64.powi(-30), Round::Up), 1);
}

proptest! {
    #[test]
    fn narrowing_agrees_with_an_independent_library(bits in any::<u64>(), which in 0usize..4) {
        let round = ROUNDS[which];
        let double = ieee::Double::from_bits(u128::from(bits));
        prop_assume!(!double.is_nan());
        let mut loses = false;
        let single: ieee::Single = double.convert_r(THEIRS[which], &mut loses).value;
        let options = Options { round, ..PLAIN };
        let ours = oracle::float_to_float(bits, Float::Double, Float::Single, options);
        prop_assert_eq!(ours, single.to_bits() as u64);
        let half: ieee::Half = double.convert_r(THEIRS[which], &mut loses).value;
        let ours = oracle::float_to_float(bits, Float::Double, Float::Half, options);
        prop_assert_eq!(ours, half.to_bits() as u64);
    }

    #[test]
    fn integers_agree_with_an_independent_library(bits in any::<u64>(), shift in 0u32..64, which in 0usize..4) {
        let round = ROUNDS[which];
        let value = (bits as i64 >> shift).into();
        let single = ieee::Single::from_i128_r(value, THEIRS[which]).value;
        prop_assert_eq!(oracle::integer_to_float(value, Float::Single, round), single.to_bits() as u64);
        let double = ieee::Double::from_i128_r(value, THEIRS[which]).value;
        prop_assert_eq!(oracle::integer_to_float(value, Float::Double, round), double.to_bits() as u64);
        // And back, out of any f64.
        let double = ieee::Double::from_bits(u128::from(bits));
        prop_assume!(!double.is_nan());
        let mut is_exact = false;
        let theirs = double.to_i128_r(32, THEIRS[which], &mut is_exact).value as u32;
        let options = Options { round, ..PLAIN };
        let ours = oracle::float_to_integer(bits, Float::Double, S32, options);
        prop_assert_eq!(ours as u32, theirs);
    }
}
