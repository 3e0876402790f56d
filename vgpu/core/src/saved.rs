//! The core's state as text: forms of what JSON has no name for, and why a text is refused.
//!
//! What survives a restart derives serde's traits where it is defined; `manager::saved` writes and reads all of it. Each
//! type has a `check` beside it that says what it relies on, for a state that was read may come from anywhere.

use fermi_spec::addr::SMALL_PAGE;

/// Number of the format that [`Manager::save`](crate::Manager::save) writes.
pub(crate) const FORMAT: u32 = 17;

/// Why a state cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The text is cut off, or holds something else.
    #[error("it is no state of a GPU, or a part of one")]
    Malformed(#[source] serde_json::Error),
    /// Another version wrote it.
    #[error("it has format {found}, this program reads format {FORMAT}")]
    Format {
        /// Number of the format in the text.
        found: u32,
    },
    /// Its parts contradict each other, or a number is out of range.
    #[error("it contradicts itself: {0}")]
    Unsound(#[from] Unsound),
    /// The policy does not know what it is told that it remembered.
    #[error("the policy cannot go on from it: {reason}")]
    Policy {
        /// Text from the policy.
        reason: String,
    },
    /// What is outstanding belongs to a card that is not up, or the other way round.
    #[error("what it waits for belongs to another state")]
    Volatile,
}

/// A contradiction in a state that was read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{what}")]
pub struct Unsound {
    what: String,
}

impl Unsound {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self { what: what.into() }
    }

    /// `claim` holds, or what is wrong is that it does not.
    pub(crate) fn unless(claim: bool, wrong: &'static str) -> Result<(), Self> {
        if claim { Ok(()) } else { Err(Self::new(wrong)) }
    }

    /// The same of a part, whose name is put in front.
    pub(crate) fn of(self, part: impl std::fmt::Display) -> Self {
        Self::new(format!("{part}: {}", self.what))
    }
}

impl From<shadow_pt::Unsound> for Unsound {
    fn from(inner: shadow_pt::Unsound) -> Self {
        Self::new(inner.to_string())
    }
}

/// Arrays of any length, for `#[serde(with = "crate::saved::array")]`.
pub(crate) mod array {
    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::{Serialize, Serializer};

    pub(crate) fn serialize<S, T, const N: usize>(array: &[T; N], serializer: S) -> Result<S::Ok, S::Error>
    where
        S: Serializer,
        T: Serialize,
    {
        array.as_slice().serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D, T, const N: usize>(deserializer: D) -> Result<Box<[T; N]>, D::Error>
    where
        D: Deserializer<'de>,
        T: Deserialize<'de>,
    {
        let wanted = "as many values as the hardware has of them";
        let values = Box::<[T]>::deserialize(deserializer)?;
        values
            .try_into()
            .map_err(|values: Box<[T]>| D::Error::invalid_length(values.len(), &wanted))
    }
}

/// Long lists as runs of equal values: `[count, value]`.
pub(crate) mod runs {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    /// Most values of a list: frames of a card with 128 GiB. A text of a few bytes shall not fill memory.
    const VALUES_MAX: usize = 1 << 20;

    pub(crate) fn serialize<S, T>(values: &[T], serializer: S) -> Result<S::Ok, S::Error>
    where
        S: Serializer,
        T: Serialize + PartialEq,
    {
        serializer.collect_seq(values.chunk_by(PartialEq::eq).map(|run| (run.len(), &run[0])))
    }

    pub(crate) fn deserialize<'de, D, T>(deserializer: D) -> Result<Box<[T]>, D::Error>
    where
        D: Deserializer<'de>,
        T: Deserialize<'de> + Clone,
    {
        let mut values = Vec::new();
        for (count, value) in Vec::<(usize, T)>::deserialize(deserializer)? {
            if count > VALUES_MAX - values.len() {
                return Err(D::Error::custom("more values than any card has frames"));
            }
            values.resize(values.len() + count, value);
        }
        Ok(values.into())
    }
}

/// Maps whose keys are no numbers or names, as lists of pairs.
pub(crate) mod pairs {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::collections::BTreeMap;

    pub(crate) fn serialize<S, K, V>(map: &BTreeMap<K, V>, serializer: S) -> Result<S::Ok, S::Error>
    where
        S: Serializer,
        K: Serialize,
        V: Serialize,
    {
        serializer.collect_seq(map)
    }

    pub(crate) fn deserialize<'de, D, K, V>(deserializer: D) -> Result<BTreeMap<K, V>, D::Error>
    where
        D: Deserializer<'de>,
        K: Deserialize<'de> + Ord,
        V: Deserialize<'de>,
    {
        Ok(Vec::<(K, V)>::deserialize(deserializer)?.into_iter().collect())
    }
}

/// Pages of bytes by their numbers.
pub(crate) mod pages {
    use super::SMALL_PAGE;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
    use std::collections::BTreeMap;

    type Page = Box<[u8; SMALL_PAGE as usize]>;

    #[derive(Serialize, Deserialize)]
    struct Bytes(#[serde(with = "crate::hex")] Vec<u8>);

    pub(crate) fn serialize<S: Serializer, K: Serialize>(
        pages: &BTreeMap<K, Page>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_map(pages.iter().map(|(number, page)| (number, Bytes(page.to_vec()))))
    }

    pub(crate) fn deserialize<'de, D, K>(deserializer: D) -> Result<BTreeMap<K, Page>, D::Error>
    where
        D: Deserializer<'de>,
        K: Deserialize<'de> + Ord,
    {
        let pages = BTreeMap::<K, Bytes>::deserialize(deserializer)?;
        let whole = |Bytes(bytes): Bytes| {
            let bytes = bytes.into_boxed_slice();
            Page::try_from(bytes)
                .map_err(|bytes| D::Error::invalid_length(bytes.len(), &"the bytes of a page"))
        };
        pages
            .into_iter()
            .map(|(number, bytes)| Ok((number, whole(bytes)?)))
            .collect()
    }
}
