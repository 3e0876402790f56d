//! Whole numbers of requests as JSON Schema has them: 5, and 5.0 as well (2020-12, validation, section 6.1.1). Some languages write all
//! numbers with a point.

use std::fmt;

use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};

/// One such number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Whole(pub(crate) u64);

impl Whole {
    /// The number that `number` is, if it is a whole one from 0 on. One that no `u64` holds is more than any host has, as the largest is.
    pub(crate) fn of<E: Error>(number: f64, expected: &dyn serde::de::Expected) -> Result<Self, E> {
        match number.fract() == 0.0 && number >= 0.0 {
            true => Ok(Self(number as u64)),
            false => Err(E::invalid_value(Unexpected::Float(number), expected)),
        }
    }
}

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Numbers)
    }
}

struct Numbers;

impl Visitor<'_> for Numbers {
    type Value = Whole;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number from 0 on")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Whole, E> {
        Ok(Whole(number))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Whole, E> {
        Whole::of(number, &self)
    }
}

/// Reads a field of a request.
pub(crate) fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    Whole::deserialize(deserializer).map(|Whole(number)| number)
}

/// Reads a list that may be absent or null. What no `u32` holds is the last number, which is nobody's.
pub(crate) fn list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<u32>>, D::Error> {
    let numbers = Option::<Vec<Whole>>::deserialize(deserializer)?;
    let fits = |Whole(number)| u32::try_from(number).unwrap_or(u32::MAX);
    Ok(numbers.map(|numbers| numbers.into_iter().map(fits).collect()))
}

/// Reads a field that may be absent or null.
pub(crate) fn optional<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<u64>,
{
    let number = Option::<Whole>::deserialize(deserializer)?;
    let fits = |Whole(number)| {
        T::try_from(number).map_err(|_| D::Error::invalid_value(Unexpected::Unsigned(number), &"less"))
    };
    number.map(fits).transpose()
}
