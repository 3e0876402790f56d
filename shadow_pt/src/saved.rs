//! Address spaces as they are written and read: compact forms of long arrays, and the check of what was read.
//!
//! A state that was written by this program passes every check here. One that was not is refused, so that nothing behind
//! this module meets an index out of bounds, a list without end, or two owners of one table.

use fermi_spec::addr::{PHYS_BITS, SMALL_PAGE, VramAddr};

/// A state that no address space can have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the shadow of an address space is not sound: {0}")]
pub struct Unsound(pub(crate) &'static str);

impl Unsound {
    /// `claim` holds, or what is wrong is that it does not.
    pub(crate) fn unless(claim: bool, wrong: &'static str) -> Result<(), Self> {
        if claim { Ok(()) } else { Err(Self(wrong)) }
    }
}

/// Whether a table of that many bytes can lie there.
pub(crate) fn check_table(at: VramAddr, bytes: u64) -> Result<(), Unsound> {
    let end = at.checked_add(bytes);
    let fits = at.is_aligned(SMALL_PAGE) && end.is_some_and(|end| end.0 <= 1 << PHYS_BITS);
    Unsound::unless(fits, "a table of the shadow lies nowhere")
}

/// Arrays as runs of equal values: `[count, value]`, for `#[serde(with = "crate::saved::runs")]`.
pub(crate) mod runs {
    use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
    use serde::ser::{Serialize, Serializer};
    use std::marker::PhantomData;

    pub(crate) fn serialize<S, T, const N: usize>(array: &[T; N], serializer: S) -> Result<S::Ok, S::Error>
    where
        S: Serializer,
        T: Serialize + PartialEq,
    {
        serializer.collect_seq(array.chunk_by(PartialEq::eq).map(|run| (run.len(), &run[0])))
    }

    pub(crate) fn deserialize<'de, D, T, const N: usize>(deserializer: D) -> Result<Box<[T; N]>, D::Error>
    where
        D: Deserializer<'de>,
        T: Deserialize<'de> + Copy,
    {
        deserializer.deserialize_seq(Runs(PhantomData))
    }

    struct Runs<T, const N: usize>(PhantomData<T>);

    impl<'de, T: Deserialize<'de> + Copy, const N: usize> Visitor<'de> for Runs<T, N> {
        type Value = Box<[T; N]>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "runs of {N} values together")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut runs: A) -> Result<Self::Value, A::Error> {
            let mut values = Vec::with_capacity(N);
            while let Some((count, value)) = runs.next_element::<(usize, T)>()? {
                if count > N - values.len() {
                    return Err(A::Error::invalid_length(count, &self));
                }
                values.resize(values.len() + count, value);
            }
            let length = values.len();
            Box::try_from(values.into_boxed_slice()).map_err(|_| A::Error::invalid_length(length, &self))
        }
    }
}

/// The same for an array that may not be there.
pub(crate) mod runs_or_none {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    #[serde(transparent)]
    #[serde(bound(
        serialize = "T: Serialize + PartialEq",
        deserialize = "T: Deserialize<'de> + Copy"
    ))]
    struct Runs<T, const N: usize>(#[serde(with = "super::runs")] Box<[T; N]>);

    pub(crate) fn serialize<S, T, const N: usize>(
        array: &Option<Box<[T; N]>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error>
    where
        S: Serializer,
        T: Serialize + PartialEq + Clone,
    {
        array.clone().map(Runs).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D, T, const N: usize>(
        deserializer: D,
    ) -> Result<Option<Box<[T; N]>>, D::Error>
    where
        D: Deserializer<'de>,
        T: Deserialize<'de> + Copy,
    {
        let array = Option::<Runs<T, N>>::deserialize(deserializer)?;
        Ok(array.map(|Runs(array)| array))
    }
}

/// Pages of entries, some of which may not be there.
pub(crate) mod pages {
    use crate::region::EntryPage;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    #[serde(transparent)]
    struct Page(#[serde(with = "super::runs_or_none")] Option<Box<EntryPage>>);

    pub(crate) fn serialize<S: Serializer>(
        pages: &[Option<Box<EntryPage>>],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(pages.iter().cloned().map(Page))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<Option<Box<EntryPage>>>, D::Error> {
        let pages = Vec::<Page>::deserialize(deserializer)?;
        Ok(pages.into_iter().map(|Page(page)| page).collect())
    }
}
