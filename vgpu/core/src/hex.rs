//! Bytes as a hexadecimal string in recordings, for `#[serde(with = "crate::hex")]`.

use serde::{Deserialize, Deserializer, Serializer, de::Error};

/// Writes two digits a byte.
pub(crate) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    serializer.serialize_str(&text)
}

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// Reads the digits; an odd number of them or another character is an error.
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text.len() % 2 != 0 {
        return Err(D::Error::custom("odd number of hexadecimal digits"));
    }
    let digit = |byte: u8| {
        char::from(byte)
            .to_digit(16)
            .map(|d| d as u8)
            .ok_or_else(|| D::Error::custom("not a hexadecimal digit"))
    };
    text.as_bytes()
        .chunks_exact(2)
        .map(|pair| Ok(digit(pair[0])? << 4 | digit(pair[1])?))
        .collect()
}
