//! f32 arithmetic against `rustc_apfloat`, in every mode.

use super::*;
use proptest::prelude::*;
use rustc_apfloat::{
    Float as _, FloatConvert as _, Round as R,
    ieee::{Double, Single},
};

const ROUNDS: [Round; 4] = [Round::Nearest, Round::Down, Round::Up, Round::Zero];

/// Magnitudes where something changes: zero, denormals, ties, overflow, NaN.
const SPECIAL: [u32; 25] = [
    0,
    1,
    2,
    0x0040_0000,
    0x007f_ffff,
    0x0080_0000,
    0x0080_0001,
    0x1a00_0000,
    0x3300_0000,
    0x3380_0000,
    0x3f00_0000,
    0x3f7f_ffff,
    0x3f80_0000,
    0x3f80_0001,
    0x3fc0_0000,
    0x4020_0000,
    0x4040_0000,
    0x4b80_0000,
    0x4b80_0001,
    0x7f7f_fffe,
    0x7f7f_ffff,
    0x7f80_0000,
    0x7f80_0001,
    0x7fc0_0000,
    0x7fff_ffff,
];

fn specials() -> Vec<u32> {
    SPECIAL.iter().flat_map(|bits| [*bits, *bits | SIGN]).collect()
}

fn modes() -> impl Iterator<Item = Mode> {
    (0..32).map(|bits| Mode {
        round: ROUNDS[bits & 3],
        ftz: bits & 4 != 0,
        fmz: bits & 8 != 0,
        sat: bits & 16 != 0,
    })
}

fn bits(value: f32) -> u32 {
    value.to_bits()
}

fn add1(a: u32, b: u32, mode: Mode) -> u32 {
    add(&[a; 32], &[b; 32], mode)[31]
}

fn mul1(a: u32, b: u32, exponent: i32, mode: Mode) -> u32 {
    mul(&[a; 32], &[b; 32], exponent, mode)[31]
}

fn fma1(a: u32, b: u32, c: u32, mode: Mode) -> u32 {
    fma(&[a; 32], &[b; 32], &[c; 32], mode)[31]
}

fn round_of(round: Round) -> R {
    match round {
        Round::Nearest => R::NearestTiesToEven,
        Round::Down => R::TowardNegative,
        Round::Up => R::TowardPositive,
        Round::Zero => R::TowardZero,
    }
}

/// What an operation gives by the library: a product if there is no `c`, a sum if there is no `b`.
fn expected(a: u32, b: Option<u32>, c: Option<u32>, exponent: i32, mode: Mode) -> u32 {
    let round = round_of(mode.round);
    let flushes = mode.ftz || mode.fmz;
    let is_denormal = |value: Single| value.is_denormal();
    let flush = |value: Single| {
        if flushes && is_denormal(value) {
            Single::ZERO.copy_sign(value)
        } else {
            value
        }
    };
    let single = |bits: u32| flush(Single::from_bits(bits.into()));
    let mut a = single(a);
    let mut b = b.map(single);
    if let Some(factor) = b
        && mode.fmz
        && (a.is_zero() || factor.is_zero())
    {
        (a, b) = (Single::ZERO, Some(Single::ZERO));
    }
    let value = match (b, c.map(single)) {
        (Some(b), Some(c)) => a.mul_add_r(b, c, round).value,
        (None, Some(c)) => a.add_r(c, round).value,
        (Some(b), None) => {
            let mut loses = false;
            let double = |value: Single| -> Double { value.convert(&mut false).value };
            let product = (double(a) * double(b)).value.scalbn(exponent);
            product.convert_r(round, &mut loses).value
        }
        (None, None) => a,
    };
    let value = flush(value);
    if !mode.sat {
        return if value.is_nan() {
            NAN
        } else {
            value.to_bits() as u32
        };
    }
    let one = Single::from_bits(ONE.into());
    if value >= one {
        ONE
    } else if value > Single::ZERO {
        value.to_bits() as u32
    } else {
        0
    }
}

/// Operands side by side in lanes, so that lanes differ.
fn lanes_of_operands(operands: &[[u32; 3]]) -> [Lanes; 3] {
    std::array::from_fn(|number| each(|lane| operands[lane % operands.len()][number]))
}

fn check(operands: &[[u32; 3]], mode: Mode) {
    for part in operands.chunks(LANES) {
        let [a, b, c] = lanes_of_operands(part);
        let (sums, products, fused) = (add(&a, &b, mode), mul(&a, &b, 0, mode), fma(&a, &b, &c, mode));
        for (lane, [a, b, c]) in part.iter().copied().enumerate() {
            let what = || format!("{a:#010x} {b:#010x} {c:#010x} {mode:?}");
            let only_sum = Mode { fmz: false, ..mode };
            if !mode.fmz {
                assert_eq!(
                    sums[lane],
                    expected(a, None, Some(b), 0, only_sum),
                    "sum {}",
                    what()
                );
            }
            assert_eq!(
                products[lane],
                expected(a, Some(b), None, 0, mode),
                "product {}",
                what()
            );
            assert_eq!(
                fused[lane],
                expected(a, Some(b), Some(c), 0, mode),
                "both {}",
                what()
            );
        }
    }
}

#[test]
fn special_values_meet_in_every_mode() {
    let specials = specials();
    let mut operands = Vec::new();
    for a in &specials {
        for b in &specials {
            // Two of the third operand for each pair in turn, and those that cancel.
            for c in 0..3 {
                let c = specials[(operands.len() * 7 + c) % specials.len()];
                operands.push([*a, *b, c]);
            }
            let product = (f(*a) * f(*b)).to_bits() ^ SIGN;
            operands.push([*a, *b, product]);
        }
    }
    for mode in modes() {
        check(&operands, mode);
    }
}

#[test]
fn products_are_scaled_before_they_are_rounded() {
    let specials = specials();
    for exponent in -3..=3 {
        for mode in modes() {
            for a in &specials {
                for b in &specials {
                    let expected = expected(*a, Some(*b), None, exponent, mode);
                    assert_eq!(
                        mul1(*a, *b, exponent, mode),
                        expected,
                        "{a:#x} {b:#x} {exponent} {mode:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn vectors_of_the_instruction_set_page() {
    assert_eq!(add1(0x3f80_0000, 0x3380_0000, Mode::PLAIN), 0x3f80_0000);
    assert_eq!(plain_add(0x3f80_0000, 0x3380_0000), 0x3f80_0000);
    assert_eq!(
        fma1(0x3f80_0001, 0x3f80_0001, 0xbf80_0002, Mode::PLAIN),
        0x2880_0000
    );
    assert_eq!(mul1(0x4040_0000, 0x4000_0000, -2, Mode::PLAIN), 0x3fc0_0000);
    let nan = [0x7fc0_0000; 32];
    assert_eq!(compare(&nan, &[0; 32], Comparison(9), false), u32::MAX);
    assert_eq!(compare(&nan, &[0; 32], Comparison(1), false), 0);
}

#[test]
fn comparisons_hold_for_what_they_name() {
    let specials = specials();
    for ftz in [false, true] {
        for number in 0..16 {
            for a in &specials {
                let b = each(|lane| specials[(lane + *a as usize) % specials.len()]);
                let found = compare(&[*a; 32], &b, Comparison(number), ftz);
                for (lane, b) in b.iter().enumerate() {
                    let value = |bits: u32| f(if ftz { flush(bits) } else { bits });
                    let holds = Comparison(number).holds(value(*a).partial_cmp(&value(*b)));
                    assert_eq!(found >> lane & 1 != 0, holds, "{a:#x} {b:#x} {number} {ftz}");
                }
            }
        }
    }
}

#[test]
fn minimum_prefers_numbers_and_negative_zero() {
    let lower = |a: u32, b: u32, wants_min| min_max(&[a; 32], &[b; 32], wants_min, false)[5];
    assert_eq!(lower(NAN, bits(1.0), u32::MAX), bits(1.0));
    assert_eq!(lower(bits(1.0), NAN | SIGN, 0), bits(1.0));
    assert_eq!(lower(bits(0.0), bits(-0.0), 1 << 5), bits(-0.0));
    assert_eq!(lower(bits(-0.0), bits(0.0), !(1 << 5)), bits(0.0));
    assert_eq!(lower(0x7fc0_0001, 0xffff_ffff, 0), NAN);
    assert_eq!(lower(bits(-2.0), bits(1.0), 1 << 5), bits(-2.0));
    assert_eq!(min_max(&[1; 32], &[SIGN | 1; 32], u32::MAX, true)[0], bits(-0.0));
}

#[test]
fn cancelled_sum_has_the_sign_of_the_direction() {
    let mode = |round| Mode { round, ..Mode::PLAIN };
    assert_eq!(add1(bits(1.5), bits(-1.5), mode(Round::Down)), bits(-0.0));
    assert_eq!(add1(bits(1.5), bits(-1.5), mode(Round::Up)), bits(0.0));
    assert_eq!(add1(bits(-0.0), bits(-0.0), mode(Round::Up)), bits(-0.0));
}

#[test]
fn overflow_stops_at_the_largest_number_on_the_near_side() {
    let mode = |round| Mode { round, ..Mode::PLAIN };
    assert_eq!(
        mul1(bits(f32::MAX), bits(2.0), 0, mode(Round::Zero)),
        bits(f32::MAX)
    );
    assert_eq!(
        mul1(bits(f32::MAX), bits(2.0), 0, mode(Round::Up)),
        bits(f32::INFINITY)
    );
    assert_eq!(
        mul1(bits(f32::MIN), bits(2.0), 0, mode(Round::Down)),
        bits(f32::NEG_INFINITY)
    );
}

/// Values near each other, so that sums cancel and round in interesting places.
fn floats() -> impl Strategy<Value = u32> {
    let near = |range: std::ops::Range<u32>| {
        (range, any::<bool>()).prop_map(|(bits, neg)| bits | u32::from(neg) << 31)
    };
    prop_oneof![any::<u32>(), near(0x3f00_0000..0x4100_0000), near(0..0x0180_0000)]
}

proptest! {
    #[test]
    fn arithmetic_agrees_with_an_independent_library(
        operands in prop::collection::vec([floats(), floats(), floats()], 32)
    ) {
        for mode in modes() {
            check(&operands, mode);
        }
    }
}
