//! Requests that wait for their answers.

use std::collections::VecDeque;

/// A map whose keys come in about ascending order, and go in about the order in which they came, as requests and
/// answers do: then each operation costs a few instructions and no allocation. Any other order works too, in time
/// that grows with the number of entries. Its memory grows with the largest number that ever waited at once.
#[derive(Debug, Clone)]
pub struct Pending<K, V>(VecDeque<(K, V)>);

impl<K, V> Default for Pending<K, V> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<K: Ord + Copy, V> Pending<K, V> {
    /// Number of entries that wait.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no entry waits.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds an entry under `key`; gives the entry that waited under it before.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        if self.0.back().is_none_or(|(last, _)| *last < key) {
            self.0.push_back((key, value));
            return None;
        }
        match self.at(key) {
            Ok(index) => self
                .0
                .get_mut(index)
                .map(|(_, old)| std::mem::replace(old, value)),
            Err(index) => {
                self.0.insert(index, (key, value));
                None
            }
        }
    }

    /// The entry that waits under `key`.
    pub fn get(&self, key: K) -> Option<&V> {
        self.0.get(self.at(key).ok()?).map(|(_, value)| value)
    }

    /// The entry that waits under `key`, to be changed.
    pub fn get_mut(&mut self, key: K) -> Option<&mut V> {
        let index = self.at(key).ok()?;
        self.0.get_mut(index).map(|(_, value)| value)
    }

    /// Removes the entry that waits under `key`.
    pub fn remove(&mut self, key: K) -> Option<V> {
        let taken = match self.at(key).ok()? {
            0 => self.0.pop_front(),
            index => self.0.remove(index),
        };
        taken.map(|(_, value)| value)
    }

    fn at(&self, key: K) -> Result<usize, usize> {
        match self.0.front() {
            Some((first, _)) if *first == key => Ok(0),
            _ => self.0.binary_search_by_key(&key, |(key, _)| *key),
        }
    }
}

impl<K, V> IntoIterator for Pending<K, V> {
    type Item = (K, V);
    type IntoIter = std::collections::vec_deque::IntoIter<(K, V)>;

    /// The entries in ascending order of their keys.
    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn behaves_as_a_map_whatever_the_order(steps in prop::collection::vec((0u8..4, 0u8..12), 0..200)) {
            let (mut map, mut pending) = (BTreeMap::new(), Pending::default());
            for (number, (step, key)) in steps.into_iter().enumerate() {
                match step {
                    0 => prop_assert_eq!(pending.insert(key, number), map.insert(key, number)),
                    1 => prop_assert_eq!(pending.remove(key), map.remove(&key)),
                    2 => prop_assert_eq!(pending.get(key), map.get(&key)),
                    _ => prop_assert_eq!(pending.get_mut(key), map.get_mut(&key)),
                }
                prop_assert_eq!((pending.len(), pending.is_empty()), (map.len(), map.is_empty()));
            }
            prop_assert!(pending.into_iter().eq(map));
        }
    }
}
