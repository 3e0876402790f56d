//! Sizes in binary units, as operators write them: `512M`, `1.5G`, `128K`, or bare bytes.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, Visitor};

/// Units, largest first, with their power of two.
const UNITS: [(char, u32); 4] = [('T', 40), ('G', 30), ('M', 20), ('K', 10)];
/// Digits after the point that are read.
const FRACTION_DIGITS_MAX: usize = 9;

/// A number of bytes. Shown in the largest unit that divides it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Size(pub u64);

/// Why a text is not a size.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ParseSizeError {
    /// The text has another form.
    #[error("{text:?} is not a size such as 512M, 1.5G, 128K or a number of bytes")]
    Malformed {
        /// The text as given.
        text: String,
    },
    /// A fraction that is not a whole number of bytes.
    #[error("{text:?} is not a whole number of bytes")]
    Fraction {
        /// The text as given.
        text: String,
    },
    /// The size needs more than 64 bits.
    #[error("{text:?} is too large")]
    TooLarge {
        /// The text as given.
        text: String,
    },
}

/// Reads a size; the units are K, M, G and T, in either case.
pub fn parse_size(text: &str) -> Result<u64, ParseSizeError> {
    let shown = || text.chars().take(40).collect::<String>();
    let malformed = || ParseSizeError::Malformed { text: shown() };
    let last = text.chars().next_back().ok_or_else(malformed)?;
    let unit = UNITS
        .into_iter()
        .find(|(letter, _)| last.eq_ignore_ascii_case(letter));
    let (number, shift) = match unit {
        Some((_, shift)) => (text.get(..text.len() - 1).unwrap_or_default(), shift),
        None => (text, 0),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let is_digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !is_digits(whole) || !is_digits(fraction) || fraction.len() > FRACTION_DIGITS_MAX {
        return Err(malformed());
    }
    let too_large = || ParseSizeError::TooLarge { text: shown() };
    let whole: u64 = whole.parse().map_err(|_| too_large())?;
    let fraction_of: u64 = fraction.parse().map_err(|_| malformed())?;
    // Both factors are below 2^40 and 10^9, about 2^30.
    let scaled = u128::from(fraction_of) << shift;
    let divisor = 10u128.pow(fraction.len() as u32);
    if !scaled.is_multiple_of(divisor) {
        return Err(ParseSizeError::Fraction { text: shown() });
    }
    let bytes = (u128::from(whole) << shift) + scaled / divisor;
    u64::try_from(bytes).map_err(|_| too_large())
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |(_, shift): &(char, u32)| self.0 != 0 && self.0.is_multiple_of(1 << shift);
        match UNITS.into_iter().find(fits) {
            Some((letter, shift)) => write!(f, "{}{letter}", self.0 >> shift),
            None => write!(f, "{}", self.0),
        }
    }
}

struct SizeVisitor;

impl Visitor<'_> for SizeVisitor {
    type Value = Size;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a size such as \"512M\", \"1.5G\", \"128K\" or a number of bytes")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Size, E> {
        parse_size(text).map(Size).map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<Size, E> {
        Ok(Size(bytes))
    }

    fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<Size, E> {
        let negative = || E::invalid_value(de::Unexpected::Signed(bytes), &self);
        u64::try_from(bytes).map(Size).map_err(|_| negative())
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Size, D::Error> {
        deserializer.deserialize_any(SizeVisitor)
    }
}

/// A size, or `"max"` for no bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bound(pub u64);

struct BoundVisitor;

impl Visitor<'_> for BoundVisitor {
    type Value = Bound;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        SizeVisitor.expecting(f)?;
        f.write_str(", or \"max\"")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Bound, E> {
        if text == "max" {
            return Ok(Bound(u64::MAX));
        }
        SizeVisitor.visit_str(text).map(|size| Bound(size.0))
    }

    fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<Bound, E> {
        Ok(Bound(bytes))
    }

    fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<Bound, E> {
        SizeVisitor.visit_i64(bytes).map(|size| Bound(size.0))
    }
}

impl<'de> Deserialize<'de> for Bound {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Bound, D::Error> {
        deserializer.deserialize_any(BoundVisitor)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn documented_sizes_are_read() {
        let sizes = ["512M", "1.5G", "128K", "4096", "0", "2t"].map(|text| parse_size(text).unwrap());
        assert_eq!(sizes, [512 << 20, 3 << 29, 128 << 10, 4096, 0, 2 << 40]);
    }

    #[test]
    fn other_texts_are_refused_with_the_reason() {
        let is_malformed = |text| matches!(parse_size(text), Err(ParseSizeError::Malformed { .. }));
        let texts = [
            "", "M", "-1M", "1.M", ".5G", "1 M", "0x10", "max", "1MiB", "1.5.5G", "٣M", "１K",
        ];
        assert_eq!(texts.map(is_malformed), [true; 12]);
        assert!(matches!(parse_size("1.5"), Err(ParseSizeError::Fraction { .. })));
        assert!(matches!(
            parse_size("1.0000001K"),
            Err(ParseSizeError::Fraction { .. })
        ));
        assert!(matches!(
            parse_size("99999999T"),
            Err(ParseSizeError::TooLarge { .. })
        ));
    }

    proptest! {
        #[test]
        fn shown_size_is_read_back(bytes: u64) {
            prop_assert_eq!(parse_size(&Size(bytes).to_string()), Ok(bytes));
        }

        #[test]
        fn round_size_is_read_back(number in 0u64..1 << 20, shift in 0u32..44) {
            prop_assert_eq!(parse_size(&Size(number << shift).to_string()), Ok(number << shift));
        }

        #[test]
        fn half_units_are_half(number in 0u64..1 << 20, unit in 0usize..4) {
            let (letter, shift) = UNITS[unit];
            let text = format!("{number}.5{letter}");
            prop_assert_eq!(parse_size(&text), Ok((2 * number + 1) << (shift - 1)));
        }

        #[test]
        fn any_text_is_a_size_or_an_error(text: String) {
            let _ = parse_size(&text);
        }
    }
}
