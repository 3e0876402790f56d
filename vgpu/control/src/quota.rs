//! Quotas: what a VM may hold of its card's VRAM, in the words of memory in cgroup v2. `docs/quotas.md` says what each means.

use std::fmt;
use std::str::FromStr;

use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use sizes::{ParseSizeError, Size, parse_size};

use crate::whole::Whole;

/// A number of bytes, or "max": no bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(untagged)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Bound {
    /// So many bytes.
    Bytes(u64),
    /// As much as there is.
    None(Unbounded),
}

/// The word for no bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Unbounded {
    /// The same word as in cgroup v2.
    Max,
}

impl Bound {
    /// The bytes; no bound is the largest number.
    pub fn bytes(self) -> u64 {
        match self {
            Bound::Bytes(bytes) => bytes,
            Bound::None(Unbounded::Max) => u64::MAX,
        }
    }
}

impl From<u64> for Bound {
    fn from(bytes: u64) -> Self {
        match bytes {
            u64::MAX => Bound::None(Unbounded::Max),
            bytes => Bound::Bytes(bytes),
        }
    }
}

impl<'de> Deserialize<'de> for Bound {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Bounds)
    }
}

/// What JSON may have for a bound: a whole number, in any form of one, or the word.
struct Bounds;

impl Visitor<'_> for Bounds {
    type Value = Bound;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number of bytes, or \"max\"")
    }

    fn visit_u64<E: Error>(self, bytes: u64) -> Result<Bound, E> {
        Ok(Bound::Bytes(bytes))
    }

    fn visit_f64<E: Error>(self, bytes: f64) -> Result<Bound, E> {
        Whole::of(bytes, &self).map(|Whole(bytes)| Bound::Bytes(bytes))
    }

    fn visit_str<E: Error>(self, word: &str) -> Result<Bound, E> {
        match word {
            "max" => Ok(Bound::None(Unbounded::Max)),
            other => Err(E::invalid_value(Unexpected::Str(other), &self)),
        }
    }
}

impl FromStr for Bound {
    type Err = ParseSizeError;

    fn from_str(text: &str) -> Result<Self, ParseSizeError> {
        match text {
            "max" => Ok(Bound::None(Unbounded::Max)),
            text => parse_size(text).map(Bound::from),
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bound::Bytes(bytes) => f.pad(&Size(*bytes).to_string()),
            Bound::None(Unbounded::Max) => f.pad("max"),
        }
    }
}

/// What a VM may hold of its card's VRAM.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Quota {
    /// Bytes of VRAM that are never taken from the VM.
    pub min: Bound,
    /// Bytes of VRAM that are taken only when nothing unprotected is left.
    pub low: Bound,
    /// Bytes of VRAM above which the VM is spilled in the background.
    pub high: Bound,
    /// Most bytes of VRAM that the VM ever holds.
    pub max: Bound,
    /// Share of contended VRAM, relative to other VMs', 1 to 10000.
    pub weight: u32,
}

/// A change of a VM's quota. What is absent stays as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "cli", derive(clap::Args))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct QuotaChange {
    /// VRAM in bytes that is never taken from the VM
    #[cfg_attr(feature = "cli", arg(long, value_name = "SIZE"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<Bound>,
    /// VRAM in bytes that is taken only when nothing unprotected is left
    #[cfg_attr(feature = "cli", arg(long, value_name = "SIZE"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub low: Option<Bound>,
    /// VRAM in bytes above which the VM is spilled in the background, or max
    #[cfg_attr(feature = "cli", arg(long, value_name = "SIZE"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high: Option<Bound>,
    /// Most VRAM in bytes that the VM ever holds, or max
    #[cfg_attr(feature = "cli", arg(long, value_name = "SIZE"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<Bound>,
    /// Share of contended VRAM, relative to other VMs', 1 to 10000
    #[cfg_attr(feature = "cli", arg(long, value_name = "N"))]
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::whole::optional"
    )]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 10000))]
    pub weight: Option<u32>,
}

/// What went from one quota to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct QuotaChanged {
    /// The quota that the VM had.
    pub before: Quota,
    /// The quota that it has. The memory follows in the background.
    pub after: Quota,
    /// Whether a VMM is connected. If not, the quota holds when it connects.
    pub is_attached: bool,
}

/// Where a quota is from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum QuotaSource {
    /// The file of the host, or what the VM was attached with.
    File,
    /// An operator, by this API. It is kept when the broker is started anew.
    Control,
}
