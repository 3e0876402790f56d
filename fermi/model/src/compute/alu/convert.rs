//! Conversions between floats and integers of all sizes, of all lanes at once.
//!
//! A float of any size is an f64 on the way, exactly, and so is an integer of at most 32 bits. One of 64 bits is the f64
//! nearest to it and the rest. Whatever is rounded is rounded once.

use fermi_spec::isa::{Opcode, field};

use super::{
    Round, double,
    single::{all_if, flushed, modify, narrowed, saturate},
};
use crate::compute::warp::{LANES, Lanes, Wide, each, wide_each};

/// Values of all lanes.
pub(crate) type Values = [f64; LANES];

/// `f` of each lane. (`map` of an array of this length becomes no loop of vectors.)
#[inline(always)]
fn values_each(mut f: impl FnMut(usize) -> f64) -> Values {
    let mut values = [0.0; LANES];
    for (lane, value) in values.iter_mut().enumerate() {
        *value = f(lane);
    }
    values
}

/// Size of a float.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Float {
    Half,
    Single,
    Double,
}

impl Float {
    /// Decodes its number in an instruction; the reserved one is a single.
    pub(crate) fn from_bits(bits: u32) -> Self {
        match bits & 3 {
            1 => Self::Half,
            3 => Self::Double,
            _ => Self::Single,
        }
    }
}

/// Size and sign of an integer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Integer {
    /// 8, 16, 32 or 64.
    pub(crate) bits: u32,
    pub(crate) signed: bool,
}

impl Integer {
    /// Decodes its number in an instruction: size in bits 1:0, sign in bit 2.
    pub(crate) fn from_bits(bits: u32) -> Self {
        Self {
            bits: 8 << (bits & 3),
            signed: bits & 4 != 0,
        }
    }

    /// The low bits of `value`, extended as a number of this type, which has at most 32.
    #[inline(always)]
    fn extended(self, value: u32) -> u32 {
        let unused = 32u32.wrapping_sub(self.bits);
        let upper = value.wrapping_shl(unused);
        if self.signed {
            (upper as i32).wrapping_shr(unused) as u32
        } else {
            upper.wrapping_shr(unused)
        }
    }

    /// Magnitudes of the least and the largest number.
    fn bounds(self) -> (u64, u64) {
        let half = 1 << (self.bits - 1);
        if self.signed {
            (half, half - 1)
        } else {
            (0, half - 1 + half)
        }
    }
}

/// Modifiers and rounding of a conversion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Options {
    pub(crate) abs: bool,
    pub(crate) neg: bool,
    pub(crate) ftz: bool,
    pub(crate) sat: bool,
    pub(crate) round: Round,
    /// Rounded to a whole number.
    pub(crate) integral: bool,
}

/// A conversion as its instruction says it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Conversion {
    float_from: Float,
    float_to: Float,
    int_from: Integer,
    int_to: Integer,
    /// The source is a register pair.
    pub(crate) is_from_wide: bool,
    /// First bit of the part of a register that the source is.
    pub(crate) shift: u32,
    options: Options,
}

impl Conversion {
    /// Of a conversion; for others it has no meaning.
    pub(crate) fn decode(opcode: Opcode, word: u64) -> Self {
        const WIDE: u32 = 3;
        let bit = |number: u32| word >> number & 1 != 0;
        let (from, is_float) = (field::CVT_FROM.get(word), opcode == Opcode::F2f);
        let is_from_float = matches!(opcode, Opcode::F2f | Opcode::F2i);
        Self {
            float_from: Float::from_bits(from),
            float_to: Float::from_bits(field::CVT_TO.get(word)),
            int_from: Integer::from_bits(field::CVT_FROM_INT.get(word)),
            int_to: Integer::from_bits(field::CVT_TO_INT.get(word)),
            is_from_wide: from == WIDE,
            shift: match from {
                0 if !is_from_float => 8 * field::CVT_BYTE.get(word),
                1 => 16 * field::CVT_HALF.get(word),
                _ => 0,
            },
            options: Options {
                abs: bit(6),
                neg: bit(8),
                ftz: bit(55),
                sat: bit(5) && (is_float || opcode == Opcode::I2i),
                round: Round::from_bits(field::ROUND_CVT.get(word)),
                integral: bit(7) && is_float,
            },
        }
    }

    /// Converts the source, which is shifted already.
    #[inline(always)]
    pub(crate) fn convert(&self, opcode: Opcode, source: Bits<'_>) -> Converted {
        let Self { options, .. } = *self;
        match opcode {
            Opcode::F2f => float_to_float(source, self.float_from, self.float_to, options),
            Opcode::F2i => float_to_integer(source, self.float_from, self.int_to, options),
            Opcode::I2f => integer_to_float(source, self.int_from, self.float_to, options),
            _ => integer_to_integer(source, self.int_from, self.int_to, options),
        }
    }
}

/// Bits of the source: one register, or two.
#[derive(Clone, Copy)]
pub(crate) enum Bits<'a> {
    /// What is shorter is in the low bits; others are ignored.
    One(&'a Lanes),
    Two(&'a Wide),
}

/// The result: one register, or two.
pub(crate) enum Converted {
    One(Lanes),
    /// Low words and high words.
    Two(Lanes, Lanes),
}

impl Converted {
    #[inline(always)]
    fn wide(values: &Wide) -> Self {
        Self::Two(
            each(|lane| values[lane] as u32),
            each(|lane| (values[lane] >> 32) as u32),
        )
    }
}

/// 2^52, and half as much more: an integer of up to 51 bits that is added to it has its bits in the sum's low ones.
pub(super) const MAGIC: f64 = 6_755_399_441_055_744.0;

/// The low 32 bits of a whole number of a magnitude below 2^51.
#[inline(always)]
fn low_bits(whole: f64) -> u32 {
    (whole + MAGIC).to_bits() as u32
}

/// The values of floats after `abs`, `neg` and `ftz`.
#[inline(always)]
fn values_of(source: Bits<'_>, from: Float, options: Options) -> Values {
    let Options { abs, neg, ftz, .. } = options;
    let mut values = [0.0; LANES];
    match (from, source) {
        (Float::Half, Bits::One(bits)) => {
            let sign = if neg { 0x8000 } else { 0 };
            let kept = if abs { 0x7fff } else { 0xffff };
            for lane in 0..LANES {
                values[lane] = half(bits[lane] & kept ^ sign).into();
            }
        }
        (_, Bits::One(bits)) => {
            let mut bits = each(|lane| modify(bits[lane], abs, neg));
            if ftz {
                bits = flushed(&bits);
            }
            for lane in 0..LANES {
                values[lane] = f32::from_bits(bits[lane]).into();
            }
        }
        (_, Bits::Two(bits)) => {
            for lane in 0..LANES {
                values[lane] = f64::from_bits(double::modify(bits[lane], abs, neg));
            }
        }
    }
    values
}

/// The whole number that a value rounds to.
#[inline(always)]
fn whole_of(value: f64, round: Round) -> f64 {
    match round {
        Round::Nearest => value.round_ties_even(),
        Round::Down => value.floor(),
        Round::Up => value.ceil(),
        Round::Zero => value.trunc(),
    }
}

#[inline(always)]
fn whole(values: &Values, round: Round) -> Values {
    // A loop for each direction.
    match round {
        Round::Nearest => values_each(|lane| whole_of(values[lane], Round::Nearest)),
        Round::Down => values_each(|lane| whole_of(values[lane], Round::Down)),
        Round::Up => values_each(|lane| whole_of(values[lane], Round::Up)),
        Round::Zero => values_each(|lane| whole_of(values[lane], Round::Zero)),
    }
}

/// Float to float. assumption: a NaN of an f64 that stays one keeps its payload, quiet.
#[inline(always)]
pub(crate) fn float_to_float(source: Bits<'_>, from: Float, to: Float, options: Options) -> Converted {
    const QUIET: u64 = 1 << 51;
    const WIDENED_NAN: u64 = 0x7fff_ffff_e000_0000;
    let mut values = values_of(source, from, options);
    if options.integral {
        values = whole(&values, options.round);
    }
    let Options { sat, round, .. } = options;
    match to {
        Float::Half => {
            if sat {
                values = values_each(|lane| saturated(values[lane]));
            }
            if from == Float::Double {
                values = values_each(|lane| double::without_denormal(values[lane]));
            }
            Converted::One(half_bits_of(&values, round))
        }
        Float::Single => {
            let mut bits = narrowed(|lane| values[lane], round);
            if options.ftz {
                bits = flushed(&bits);
            }
            Converted::One(if sat {
                each(|lane| saturate(bits[lane]))
            } else {
                bits
            })
        }
        Float::Double if sat => Converted::wide(&wide_each(|lane| saturated(values[lane]).to_bits())),
        Float::Double => {
            let payload = |lane: usize| match source {
                Bits::Two(bits) => double::modify(bits[lane], options.abs, options.neg) | QUIET,
                Bits::One(_) => WIDENED_NAN,
            };
            Converted::wide(&wide_each(|lane| {
                if values[lane].is_nan() {
                    payload(lane)
                } else {
                    values[lane].to_bits()
                }
            }))
        }
    }
}

/// Clamped to 0 to 1; NaN and a negative zero become a positive one, as in arithmetic.
#[inline(always)]
fn saturated(value: f64) -> f64 {
    let value = if value > 0.0 { value } else { 0.0 };
    if value < 1.0 { value } else { 1.0 }
}

/// Float to integer: rounded to a whole number, then clamped; 16-bit results are extended as typed. NaN is 0, but the
/// upper bit alone where an f64 or an integer of 64 bits takes part.
#[inline(always)]
pub(crate) fn float_to_integer(source: Bits<'_>, from: Float, to: Integer, options: Options) -> Converted {
    let values = whole(&values_of(source, from, options), options.round);
    if to.bits == 64 {
        return float_to_wide(&values, to.signed);
    }
    let (least, most) = to.bounds();
    let (least, most) = (-(least as f64), most as f64);
    let nan = if from == Float::Double {
        to.extended(1 << (to.bits - 1))
    } else {
        0
    };
    Converted::One(each(|lane| {
        let value = values[lane];
        let clamped = if value > least { value } else { least };
        let clamped = if clamped < most { clamped } else { most };
        let is_nan = all_if(value.is_nan());
        low_bits(clamped) & !is_nan | nan & is_nan
    }))
}

/// Whole numbers to 64 bits, of which an f64 has the upper and the lower 32 exactly.
#[inline(always)]
fn float_to_wide(values: &Values, signed: bool) -> Converted {
    const UNIT: f64 = 4_294_967_296.0;
    // Beyond the largest integer, and what it is.
    let (end, most) = if signed {
        (UNIT * UNIT / 2.0, 0x7fff_ffff)
    } else {
        (UNIT * UNIT, u32::MAX)
    };
    let least = if signed { -end } else { 0.0 };
    let clamped = values_each(|lane| {
        let value = values[lane];
        let value = if value > least { value } else { least };
        // The end itself has no place in 64 bits; it is replaced below.
        if value < end { value } else { 0.0 }
    });
    let high = values_each(|lane| (clamped[lane] * (1.0 / UNIT)).floor());
    let low = each(|lane| low_bits_unsigned(clamped[lane] - high[lane] * UNIT));
    let special = |lane: usize| (all_if(values[lane] >= end), all_if(values[lane].is_nan()));
    Converted::Two(
        each(|lane| {
            let (is_beyond, is_nan) = special(lane);
            (low[lane] | is_beyond) & !is_nan
        }),
        each(|lane| {
            let (is_beyond, is_nan) = special(lane);
            let number = low_bits(high[lane]) & !is_beyond | most & is_beyond;
            number & !is_nan | 1 << 31 & is_nan
        }),
    )
}

/// [`low_bits`] of a number that is not negative.
#[inline(always)]
fn low_bits_unsigned(whole: f64) -> u32 {
    const UNSIGNED_MAGIC: f64 = 4_503_599_627_370_496.0;
    (whole + UNSIGNED_MAGIC).to_bits() as u32
}

/// Integer to float, rounded once, after absolute value and negation.
#[inline(always)]
pub(crate) fn integer_to_float(source: Bits<'_>, from: Integer, to: Float, options: Options) -> Converted {
    let Options { abs, neg, round, .. } = options;
    if let (Bits::One(bits), Float::Single) = (source, to)
        && from.bits < 32
    {
        // All of them are f32 exactly.
        return Converted::One(each(|lane| {
            (turned(from, bits[lane], abs, neg) as i32 as f32).to_bits()
        }));
    }
    // A zero has no sign.
    let with_sign = |value: f64| {
        let value = if abs { value.abs() } else { value };
        if neg { 0.0 - value } else { value }
    };
    let (mut values, mut rests) = ([0.0; LANES], [0.0; LANES]);
    match source {
        Bits::One(bits) => {
            for lane in 0..LANES {
                let bits = from.extended(bits[lane]);
                values[lane] = with_sign(if from.signed {
                    f64::from(bits as i32)
                } else {
                    f64::from(bits)
                });
            }
        }
        Bits::Two(bits) => {
            for lane in 0..LANES {
                let high = (bits[lane] >> 32) as u32;
                let high = if from.signed {
                    f64::from(high as i32)
                } else {
                    f64::from(high)
                };
                let (value, rest) = double::of_integer(high, bits[lane] as u32);
                // The rest turns with the value.
                let turns = abs & (value < 0.0);
                rests[lane] = if turns != neg { -rest } else { rest };
                values[lane] = with_sign(value);
            }
        }
    }
    let is_wide = matches!(source, Bits::Two(_));
    match to {
        // A value with a rest is beyond the largest f16 anyhow.
        Float::Half => Converted::One(half_bits_of(&values, round)),
        Float::Single if is_wide => {
            Converted::One(narrowed(|lane| double::odd(values[lane], rests[lane]), round))
        }
        Float::Single => Converted::One(narrowed(|lane| values[lane], round)),
        Float::Double if is_wide => Converted::wide(&double::directed!(round, |lane, sides| {
            double::stepped(values[lane], rests[lane], sides)
        })),
        Float::Double => Converted::wide(&wide_each(|lane| values[lane].to_bits())),
    }
}

/// The low 32 bits of a number of at most 32 after absolute value and negation.
#[inline(always)]
fn turned(from: Integer, bits: u32, abs: bool, neg: bool) -> u32 {
    let value = from.extended(bits);
    let negative = (value as i32 >> 31) as u32 & all_if(from.signed & abs) ^ all_if(neg);
    (value ^ negative).wrapping_sub(negative)
}

/// Integer to integer: absolute value and negation, then cut or clamped, and extended as typed.
#[inline(always)]
pub(crate) fn integer_to_integer(
    source: Bits<'_>,
    from: Integer,
    to: Integer,
    options: Options,
) -> Converted {
    let Options { abs, neg, sat, .. } = options;
    if let Bits::One(bits) = source
        && to.bits < 64
        && !sat
    {
        // What is cut off has no influence.
        return Converted::One(each(|lane| to.extended(turned(from, bits[lane], abs, neg))));
    }
    let bits = match source {
        Bits::One(bits) if from.signed => wide_each(|lane| from.extended(bits[lane]) as i32 as u64),
        Bits::One(bits) => wide_each(|lane| from.extended(bits[lane]).into()),
        Bits::Two(bits) => *bits,
    };
    let (least, most) = to.bounds();
    let values = wide_each(|lane| {
        let value = bits[lane];
        let negative = if from.signed {
            (value as i64 >> 63) as u64
        } else {
            0
        };
        let magnitude = (value ^ negative).wrapping_sub(negative);
        let negative = if abs { 0 } else { negative };
        let negative = if neg { !negative } else { negative };
        let magnitude = if sat {
            magnitude.min(least & negative | most & !negative)
        } else {
            magnitude
        };
        (magnitude ^ negative).wrapping_sub(negative)
    });
    match (to.bits, sat) {
        (64, _) => Converted::wide(&values),
        (_, true) => Converted::One(each(|lane| values[lane] as u32)),
        (_, false) => Converted::One(each(|lane| to.extended(values[lane] as u32))),
    }
}

/// The value of a binary16 in the low 16 bits; others are ignored. NaN keeps no payload.
#[inline(always)]
fn half(bits: u32) -> f32 {
    const REBIAS: u32 = 112 << 23;
    let (sign, magnitude) = ((bits & 0x8000) << 16, bits & 0x7fff);
    // Denormals are integers of units of 2^-24; numbers have another bias of their exponent.
    let denormal = (magnitude as i32 as f32 * (1.0 / 16_777_216.0)).to_bits();
    let number = (magnitude << 13).wrapping_add(REBIAS);
    let is_denormal = all_if(magnitude < 0x400);
    let is_special = all_if(magnitude >= 0x7c00);
    let number = number | 0x7f80_0000 & is_special;
    f32::from_bits(sign | denormal & is_denormal | number & !is_denormal)
}

/// The binary16 that values round to; NaN becomes 7fff.
#[inline(always)]
fn half_bits_of(values: &Values, round: Round) -> Lanes {
    // A loop for each direction.
    match round {
        Round::Nearest => each(|lane| half_of(values[lane], Round::Nearest)),
        Round::Down => each(|lane| half_of(values[lane], Round::Down)),
        Round::Up => each(|lane| half_of(values[lane], Round::Up)),
        Round::Zero => each(|lane| half_of(values[lane], Round::Zero)),
    }
}

#[inline(always)]
fn half_of(value: f64, round: Round) -> u32 {
    const INFINITY: u32 = 0x7c00;
    const BIAS: u32 = 1023;
    let (bits, is_negative) = (value.to_bits(), value.to_bits() >> 63 != 0);
    // 11 bits from the leading one down, no finer than 2^-24; from 2^16 on all overflow.
    let exponent = ((bits >> 52) as u32 & 0x7ff).clamp(BIAS - 14, BIAS + 16);
    let scale = f64::from_bits(u64::from((2 * BIAS + 10).wrapping_sub(exponent)) << 52);
    let units = whole_of(value * scale, round).abs();
    let units = if units < 4096.0 { units } else { 4096.0 };
    // The leading one of the units is one more of the exponent; a denormal has none.
    let magnitude = (exponent.wrapping_sub(BIAS - 14) << 10).wrapping_add(low_bits_unsigned(units));
    let stays = match round {
        Round::Nearest => false,
        Round::Down => !is_negative,
        Round::Up => is_negative,
        Round::Zero => true,
    };
    let last = INFINITY.wrapping_sub(u32::from(stays & (value.abs() < f64::INFINITY)));
    let magnitude = if magnitude < INFINITY { magnitude } else { last };
    let half = magnitude | u32::from(is_negative) << 15;
    if value.is_nan() { 0x7fff } else { half }
}

/// Value of a binary16.
pub(crate) fn half_value(bits: u16) -> f64 {
    half(bits.into()).into()
}

/// The binary16 that a number rounds to.
pub(crate) fn half_bits(value: f64, round: Round) -> u16 {
    half_of(value, round) as u16
}

#[cfg(test)]
mod tests;
