//! Typed values and contents of memory, as a launch file has them.

use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, Visitor, value::MapAccessDeserializer};

/// Most bytes that a content can make up.
pub(super) const CONTENT_BYTES_MAX: u64 = 1 << 30;

/// A number as written: an integer of any of our types, or a fraction.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Number {
    Whole(i128),
    Fraction(f64),
}

struct NumberVisitor;

impl Visitor<'_> for NumberVisitor {
    type Value = Number;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number, or a text such as \"0xffffffffffffffff\"")
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Number, E> {
        Ok(Number::Whole(value.into()))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Number, E> {
        Ok(Number::Whole(value.into()))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Number, E> {
        Ok(Number::Fraction(value))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Number, E> {
        let wrong = || E::invalid_value(de::Unexpected::Str(text), &self);
        let parsed = match text.strip_prefix("0x") {
            Some(digits) if digits.starts_with(|c: char| c.is_ascii_hexdigit()) => {
                u64::from_str_radix(digits, 16)
            }
            Some(_) => return Err(wrong()),
            None => text.parse(),
        };
        parsed
            .map(|value| Number::Whole(value.into()))
            .map_err(|_| wrong())
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NumberVisitor)
    }
}

/// A type of values.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Type {
    U8,
    U16,
    U32,
    I32,
    U64,
    I64,
    F32,
    F64,
}

impl Type {
    pub(super) fn bytes(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::U16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }

    /// The bits of a number, if the type has it.
    fn bits(self, number: Number) -> Result<u64, String> {
        let whole = match (self, number) {
            (Self::F32, number) => return Ok((as_f64(number) as f32).to_bits().into()),
            (Self::F64, number) => return Ok(as_f64(number).to_bits()),
            (_, Number::Whole(whole)) => whole,
            (_, Number::Fraction(fraction)) => {
                return Err(format!(
                    "{fraction} is not a whole number; f32 and f64 take fractions"
                ));
            }
        };
        let (least, most) = match self {
            Self::I32 => (i32::MIN.into(), i32::MAX.into()),
            Self::I64 => (i64::MIN.into(), i64::MAX.into()),
            _ => (0, (1i128 << (8 * self.bytes())) - 1),
        };
        if !(least..=most).contains(&whole) {
            return Err(format!("{whole} is not from {least} to {most}"));
        }
        Ok(whole as u64)
    }
}

fn as_f64(number: Number) -> f64 {
    match number {
        Number::Whole(whole) => whole as f64,
        Number::Fraction(fraction) => fraction,
    }
}

/// A value as written: `{ f32 = 2.5 }`, `{ address = "x" }`, `{ hex = "00ff" }`.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum RawValue {
    U8(Number),
    U16(Number),
    U32(Number),
    I32(Number),
    U64(Number),
    I64(Number),
    F32(Number),
    F64(Number),
    /// Address of a buffer by its name, with `+N` behind it for a place in it: 8 bytes.
    Address(String),
    /// Bytes in their order.
    Hex(String),
}

/// A value that has been checked, except for the names of buffers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Value {
    /// The low bytes of the bits, at a multiple of their number.
    Number {
        bits: u64,
        bytes: usize,
    },
    Address {
        buffer: String,
        offset: u64,
    },
    Bytes(Vec<u8>),
}

impl RawValue {
    pub(super) fn check(&self) -> Result<Value, String> {
        let number = |kind: Type, number: &Number| {
            let name = format!("{kind:?}").to_lowercase();
            let bits = kind.bits(*number).map_err(|error| format!("{name}: {error}"))?;
            Ok(Value::Number {
                bits,
                bytes: kind.bytes(),
            })
        };
        match self {
            Self::U8(value) => number(Type::U8, value),
            Self::U16(value) => number(Type::U16, value),
            Self::U32(value) => number(Type::U32, value),
            Self::I32(value) => number(Type::I32, value),
            Self::U64(value) => number(Type::U64, value),
            Self::I64(value) => number(Type::I64, value),
            Self::F32(value) => number(Type::F32, value),
            Self::F64(value) => number(Type::F64, value),
            Self::Address(text) => address(text),
            Self::Hex(text) => parse_hex(text).map(Value::Bytes),
        }
    }
}

/// `NAME` or `NAME+OFFSET`.
fn address(text: &str) -> Result<Value, String> {
    let (name, offset) = text.split_once('+').unwrap_or((text, "0"));
    let offset = NumberVisitor
        .visit_str::<serde::de::value::Error>(offset.trim())
        .map_err(|_| format!("address: {offset:?} is not an offset such as 64 or 0x40"))?;
    let Number::Whole(offset) = offset else {
        return Err(format!("address: {text:?} has no whole offset"));
    };
    Ok(Value::Address {
        buffer: name.trim().to_owned(),
        offset: offset as u64,
    })
}

/// Bytes from pairs of digits; white space between the pairs, and underscores, do not count.
pub(super) fn parse_hex(text: &str) -> Result<Vec<u8>, String> {
    let digits: Vec<u8> = text
        .bytes()
        .filter(|byte| !byte.is_ascii_whitespace() && *byte != b'_')
        .collect();
    if !digits.len().is_multiple_of(2) {
        return Err(format!(
            "hex: {} digits are not a whole number of bytes",
            digits.len()
        ));
    }
    let value = |digit: u8| char::from(digit).to_digit(16);
    let byte = |pair: &[u8; 2]| Some((value(pair[0])? << 4 | value(pair[1])?) as u8);
    digits
        .as_chunks()
        .0
        .iter()
        .map(|pair| {
            let shown = || String::from_utf8_lossy(pair).into_owned();
            byte(pair).ok_or_else(|| format!("hex: {:?} is not a hexadecimal byte", shown()))
        })
        .collect()
}

/// A rule for values: number `first`, then each by `step` more, and again from `first` after `modulo` of them.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Ramp {
    #[serde(rename = "type")]
    pub(super) kind: Type,
    #[serde(default = "zero")]
    pub(super) first: Number,
    #[serde(default = "one")]
    pub(super) step: Number,
    pub(super) modulo: Option<u64>,
}

const fn zero() -> Number {
    Number::Whole(0)
}

const fn one() -> Number {
    Number::Whole(1)
}

impl Ramp {
    /// 0, 1, 2 … as 32-bit words.
    pub(super) const WORDS: Self = Self {
        kind: Type::U32,
        first: zero(),
        step: one(),
        modulo: None,
    };

    pub(super) fn check(&self) -> Result<(), String> {
        if self.modulo == Some(0) {
            return Err("modulo: there is nothing after 0 values; leave it away for no end".to_owned());
        }
        // A negative step is no value of an unsigned type, and still a step.
        let is_float = matches!(self.kind, Type::F32 | Type::F64);
        for (name, number) in [("first", self.first), ("step", self.step)] {
            match number {
                Number::Fraction(fraction) if !is_float => {
                    return Err(format!("{name}: {fraction} is not a whole number"));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The first `bytes` bytes of it. Whole numbers wrap.
    pub(super) fn bytes(&self, bytes: usize) -> Vec<u8> {
        let width = self.kind.bytes();
        let mut data = Vec::with_capacity(bytes.next_multiple_of(width));
        for index in 0..bytes.div_ceil(width) as u64 {
            let index = self.modulo.map_or(index, |modulo| index % modulo);
            let bits = match (self.kind, self.first, self.step) {
                (Type::F32, first, step) => ((as_f64(first) + as_f64(step) * index as f64) as f32)
                    .to_bits()
                    .into(),
                (Type::F64, first, step) => (as_f64(first) + as_f64(step) * index as f64).to_bits(),
                (_, Number::Whole(first), Number::Whole(step)) => {
                    (first as u64).wrapping_add((step as u64).wrapping_mul(index))
                }
                // Refused by the check.
                _ => 0,
            };
            data.extend_from_slice(&bits.to_le_bytes()[..width]);
        }
        data.truncate(bytes);
        data
    }
}

/// Contents of a buffer at the start, as written: `"zero"`, `"ramp"`, or a table of one key.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum RawContent {
    Zero,
    Table(ContentTable),
}

#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ContentTable {
    Hex(String),
    File(std::path::PathBuf),
    Values(Vec<RawValue>),
    Ramp(Ramp),
}

struct ContentVisitor;

impl<'de> Visitor<'de> for ContentVisitor {
    type Value = RawContent;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "\"zero\", \"ramp\", { hex = \"…\" }, { file = \"…\" }, { values = […] } or { ramp = { type = \"f32\" } }",
        )
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<RawContent, E> {
        match text {
            "zero" => Ok(RawContent::Zero),
            "ramp" => Ok(RawContent::Table(ContentTable::Ramp(Ramp::WORDS))),
            _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
        }
    }

    fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<RawContent, M::Error> {
        ContentTable::deserialize(MapAccessDeserializer::new(map)).map(RawContent::Table)
    }
}

impl<'de> Deserialize<'de> for RawContent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ContentVisitor)
    }
}

/// Contents of a buffer at the start.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Content {
    Zero,
    Ramp(Ramp),
    File(std::path::PathBuf),
    Values(Vec<Value>),
}

impl RawContent {
    pub(super) fn check(&self) -> Result<Content, String> {
        match self {
            Self::Zero => Ok(Content::Zero),
            Self::Table(ContentTable::Ramp(ramp)) => ramp.check().map(|()| Content::Ramp(*ramp)),
            Self::Table(ContentTable::File(path)) => Ok(Content::File(path.clone())),
            Self::Table(ContentTable::Hex(text)) => {
                parse_hex(text).map(|bytes| Content::Values(vec![Value::Bytes(bytes)]))
            }
            Self::Table(ContentTable::Values(values)) => values
                .iter()
                .map(RawValue::check)
                .collect::<Result<_, _>>()
                .map(Content::Values),
        }
    }
}

impl Value {
    /// Length in bytes.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Number { bytes, .. } => *bytes,
            Self::Address { .. } => 8,
            Self::Bytes(bytes) => bytes.len(),
        }
    }
}

/// Bytes of values one behind the other, numbers and addresses at multiples of their size from the start; `address`
/// finds a buffer.
pub(super) fn lay_out(
    values: &[Value],
    mut address: impl FnMut(&str, u64) -> Option<u64>,
) -> Result<Vec<u8>, String> {
    let mut data = Vec::new();
    for value in values {
        let (bits, bytes) = match value {
            Value::Bytes(bytes) => {
                data.extend_from_slice(bytes);
                continue;
            }
            Value::Number { bits, bytes } => (*bits, *bytes),
            Value::Address { buffer, offset } => {
                let found = address(buffer, *offset);
                let unknown = || format!("address: {buffer:?} at offset {offset} is not a place in a buffer");
                (found.ok_or_else(unknown)?, 8)
            }
        };
        data.resize(data.len().next_multiple_of(bytes), 0);
        data.extend_from_slice(&bits.to_le_bytes()[..bytes]);
    }
    Ok(data)
}
