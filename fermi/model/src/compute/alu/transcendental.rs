//! Sine, cosine, exponent and logarithm of all lanes at once.
//!
//! Each is a polynomial in f64 whose error is far below the distance of two f32. So rounding it gives what rounding libm's
//! value gives, unless that is all but halfway between two f32. Such lanes, one in some hundred thousand, are libm's.

use super::convert::{MAGIC, Values};
use crate::compute::warp::{LANES, Lanes, lanes_of, mask_of};

/// Lanes whose value is too near to the middle between two f32 for an error of 2^-43 of it.
#[inline(always)]
pub(super) fn undecided(values: &Values) -> u32 {
    const CUT: u64 = (1 << 29) - 1;
    const MIDDLE: u64 = 1 << 28;
    const ERROR: u64 = 1 << 9;
    mask_of(|lane| {
        let beyond = (values[lane].to_bits() & CUT).wrapping_sub(MIDDLE - ERROR) as u32;
        beyond < 2 * ERROR as u32
    })
}

/// Sum of `coefficients[n] * x^n`, by Horner's rule.
#[inline(always)]
fn polynomial<const N: usize>(coefficients: [f64; N], x: f64) -> f64 {
    let mut sum = coefficients[N - 1];
    for number in (0..N - 1).rev() {
        sum = sum.mul_add(x, coefficients[number]);
    }
    sum
}

/// Kernels of FreeBSD's msun on ±π/4: sine by odd powers from the third on, cosine by even ones from the fourth.
const SINE: [f64; 6] = [
    -1.666_666_666_666_663_2e-1,
    8.333_333_333_322_49e-3,
    -1.984_126_982_985_795e-4,
    2.755_731_370_707_006_8e-6,
    -2.505_076_025_340_686_3e-8,
    1.589_690_995_211_55e-10,
];
const COSINE: [f64; 6] = [
    4.166_666_666_666_66e-2,
    -1.388_888_888_887_411e-3,
    2.480_158_728_947_673e-5,
    -2.755_731_435_139_066_3e-7,
    2.087_572_321_298_175e-9,
    -1.135_964_755_778_819_5e-11,
];

/// Magnitudes from which on π/2 in two pieces is not enough.
const LARGE: f32 = 2_147_483_648.0;

/// Sine of `x`, or cosine: that is the sine a quarter further.
#[inline(always)]
pub(super) fn sine(bits: &Lanes, quarters: u32) -> Values {
    const PIECES: [f64; 2] = [std::f64::consts::FRAC_PI_2, 6.123_233_995_736_766e-17];
    let mut rests = [0.0; LANES];
    let mut counts = [0; LANES];
    for lane in 0..LANES {
        let x = f64::from(f32::from_bits(bits[lane]));
        let count = (x * std::f64::consts::FRAC_2_PI).round_ties_even();
        // The first difference is exact: both are multiples of 2^-52, and it is below 2.
        rests[lane] = (-count).mul_add(PIECES[1], (-count).mul_add(PIECES[0], x));
        counts[lane] = (count + MAGIC).to_bits() as u32;
    }
    let large = mask_of(|lane| {
        let magnitude = f32::from_bits(bits[lane] & !(1 << 31));
        (LARGE..f32::INFINITY).contains(&magnitude)
    });
    if large != 0 {
        for lane in lanes_of(large) {
            (counts[lane], rests[lane]) = reduced(bits[lane]);
        }
    }
    let mut values = [0.0; LANES];
    for lane in 0..LANES {
        let (rest, quarter) = (rests[lane], counts[lane].wrapping_add(quarters));
        let square = rest * rest;
        let sine = (square * rest).mul_add(polynomial(SINE, square), rest);
        let cosine = (square * square).mul_add(polynomial(COSINE, square), 1.0 - 0.5 * square);
        let value = if quarter & 1 == 0 { sine } else { cosine };
        let sign = u64::from(quarter & 2) << 62;
        values[lane] = f64::from_bits(value.to_bits() ^ sign);
    }
    if quarters == 0 {
        // A zero keeps its sign, which the reduction lost.
        for lane in 0..LANES {
            let x = f64::from(f32::from_bits(bits[lane]));
            values[lane] = if x == 0.0 { x } else { values[lane] };
        }
    }
    values
}

/// Exponents of the last digit of an f32 that is at least [`LARGE`], and finite.
const LARGE_EXPONENTS: std::ops::Range<u32> = 8..105;

/// 2/π times 2 to each of the [`LARGE_EXPONENTS`], modulo 4, in three pieces. The first two times 24 bits are exact.
const QUARTERS: [[f64; 3]; 97] = quarters();

const fn quarters() -> [[f64; 3]; 97] {
    /// The first bits of 2/π behind the point.
    const BITS: [u128; 2] = [
        0xa2f9_836e_4e44_1529_fc27_57d1_f534_ddc0,
        0xdb62_9599_3c43_9041_fe51_63ab_debb_c561,
    ];
    let mut all = [[0.0; 3]; 97];
    let mut number = 0;
    while number < all.len() {
        // Bits above these make whole turns; the first is worth 2.
        let mut first = LARGE_EXPONENTS.start - 2 + number as u32;
        let mut weight = 2;
        let mut piece = 0;
        while piece < 3 {
            let count = if piece < 2 { 29 } else { 53 };
            let bits = if first < 128 {
                BITS[0] << first | if first == 0 { 0 } else { BITS[1] >> (128 - first) }
            } else {
                BITS[1] << (first - 128)
            };
            weight -= count;
            let unit = f64::from_bits(((1023 + weight) as u64) << 52);
            all[number][piece] = (bits >> (128 - count)) as f64 * unit;
            first += count as u32;
            piece += 1;
        }
        number += 1;
    }
    all
}

/// Quarters of a turn in a number of at least [`LARGE`], modulo 4 and to the nearest, and the angle that is left.
#[inline(always)]
fn reduced(bits: u32) -> (u32, f64) {
    let exponent = (bits >> 23 & 0xff).wrapping_sub(150 + LARGE_EXPONENTS.start);
    let [high, middle, low] = QUARTERS[exponent as usize % QUARTERS.len()];
    let digits = f64::from(bits & 0x007f_ffff | 0x0080_0000);
    let turns = digits * high;
    let count = turns.round_ties_even();
    // Of a sum below 1/8 no bit is lost.
    let rest = ((turns - count) + digits * middle) + digits * low;
    let (count, angle) = (
        (count + MAGIC).to_bits() as u32,
        rest * std::f64::consts::FRAC_PI_2,
    );
    if bits >> 31 == 0 {
        (count, angle)
    } else {
        (count.wrapping_neg(), -angle)
    }
}

/// 2^x. What has no normal f32 is zero.
#[inline(always)]
pub(super) fn exponential(bits: &Lanes) -> Values {
    /// ln(2)^n / n!
    const COEFFICIENTS: [f64; 12] = powers_of_ln2();
    let mut values = [0.0; LANES];
    for lane in 0..LANES {
        let x = f64::from(f32::from_bits(bits[lane]));
        let near = if x < 128.0 { x } else { 128.0 };
        let near = if near > -127.0 { near } else { -127.0 };
        let whole = near.round_ties_even();
        let power = f64::from_bits((whole + MAGIC).to_bits().wrapping_add(1023) << 52);
        let value = polynomial(COEFFICIENTS, near - whole) * power;
        let value = if x < -126.0 { 0.0 } else { value };
        values[lane] = if x.is_nan() { x } else { value };
    }
    values
}

const fn powers_of_ln2<const N: usize>() -> [f64; N] {
    let mut terms = [1.0; N];
    let mut number = 1;
    while number < N {
        terms[number] = terms[number - 1] * std::f64::consts::LN_2 / number as f64;
        number += 1;
    }
    terms
}

/// The logarithm of base 2 of numbers that are not denormal.
#[inline(always)]
pub(super) fn logarithm(bits: &Lanes) -> Values {
    /// Digits of the root of a half: what is left of a number lies between it and its double.
    const ROOT: u32 = 0x3f35_04f3;
    /// 2 / (ln(2) * (2n + 1)): of odd powers (the series of artanh).
    const COEFFICIENTS: [f64; 9] = odd_reciprocals();
    let mut values = [0.0; LANES];
    for lane in 0..LANES {
        let exponent = (bits[lane].wrapping_sub(ROOT) as i32) >> 23;
        let rest = f32::from_bits(bits[lane].wrapping_sub((exponent << 23) as u32));
        let rest = f64::from(rest);
        let ratio = (rest - 1.0) / (rest + 1.0);
        let value = polynomial(COEFFICIENTS, ratio * ratio).mul_add(ratio, f64::from(exponent));
        let x = f32::from_bits(bits[lane]);
        let value = if x < f32::INFINITY { value } else { f64::from(x) };
        let value = if x > 0.0 { value } else { f64::NEG_INFINITY };
        values[lane] = if (x < 0.0) | x.is_nan() { f64::NAN } else { value };
    }
    values
}

const fn odd_reciprocals<const N: usize>() -> [f64; N] {
    let mut terms = [0.0; N];
    let mut number = 0;
    while number < N {
        terms[number] = 2.0 / (std::f64::consts::LN_2 * (2 * number + 1) as f64);
        number += 1;
    }
    terms
}
