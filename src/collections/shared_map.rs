//! A map ordered by key whose clones share its nodes ([`SharedTree`]), compact if keys are mostly
//! added in ascending order.

use std::borrow::Borrow;
use std::fmt::Debug;

use super::shared_tree::{Item, Iter, SharedTree};

impl<K: Clone + Debug, V: Clone> Item for (K, V) {
    type Key = K;

    #[inline]
    fn key(&self) -> &K {
        &self.0
    }
}

/// A map, see the module's text. A clone copies the values of some dozen keys at a time when it or
/// the original changes: they should be small.
#[derive(Clone, Debug)]
pub struct SharedMap<K: Clone + Debug, V: Clone> {
    items: SharedTree<(K, V)>,
}

impl<K: Clone + Debug, V: Clone> Default for SharedMap<K, V> {
    fn default() -> Self {
        SharedMap { items: SharedTree::default() }
    }
}

impl<K: Clone + Debug, V: Clone> SharedMap<K, V> {
    pub fn len(&self) -> usize {
        self.items.len()
    }

    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The approximate bytes of heap memory, without memory owned by keys and values.
    pub fn heap_bytes(&self) -> usize {
        self.items.heap_bytes()
    }

    /// The approximate number of allocations.
    pub fn nodes(&self) -> usize {
        self.items.nodes()
    }

    /// The index of a key, or the one that it would have.
    fn find<Q: Ord + ?Sized>(&self, key: &Q) -> Result<usize, usize>
    where
        K: Borrow<Q>,
    {
        // Keys greater than all others are the most frequent.
        if self.items.back().is_none_or(|(last, _)| last.borrow() < key) {
            return Err(self.len());
        }
        let index = self.items.partition_point(|other| other.borrow() < key);
        match self.items.get(index) {
            Some((other, _)) if other.borrow() == key => Ok(index),
            _ => Err(index),
        }
    }

    pub fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.find(key).is_ok()
    }

    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let index = self.find(key).ok()?;
        self.items.get(index).map(|(_, value)| value)
    }

    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let index = self.find(key).ok()?;
        self.items.get_mut(index).map(|(_, value)| value)
    }

    /// Sets a key's value; returns the old one.
    pub fn insert(&mut self, key: K, value: V) -> Option<V>
    where
        K: Ord,
    {
        match self.find(&key) {
            Ok(index) => Some(std::mem::replace(&mut self.items[index].1, value)),
            Err(index) => {
                self.items.insert(index, (key, value));
                None
            }
        }
    }

    /// Removes a key; returns its value.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let index = self.find(key).ok()?;
        self.items.remove(index).map(|(_, value)| value)
    }

    pub fn first(&self) -> Option<&(K, V)> {
        self.items.front()
    }

    pub fn last(&self) -> Option<&(K, V)> {
        self.items.back()
    }

    pub fn iter(&self) -> Iter<'_, (K, V)> {
        self.items.iter()
    }

    /// The items from this key on.
    pub fn from<Q: Ord + ?Sized>(&self, start: &Q) -> Iter<'_, (K, V)>
    where
        K: Borrow<Q>,
    {
        let index = match self.find(start) {
            Ok(index) | Err(index) => index,
        };
        self.items.range(index, self.len())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_map_holds_what_a_btree_map_holds(
            steps in prop::collection::vec((0..5u8, 0..600u32), 1..800),
        ) {
            let (mut map, mut tree) = (SharedMap::default(), BTreeMap::new());
            let mut top = 0;
            let mut clones = Vec::new();
            for (number, (action, key)) in steps.into_iter().enumerate() {
                match action {
                    0 | 1 => {
                        top += key % 3;
                        prop_assert_eq!(map.insert(top, number), tree.insert(top, number));
                    }
                    2 => prop_assert_eq!(map.insert(key, number), tree.insert(key, number)),
                    3 => prop_assert_eq!(map.remove(&key), tree.remove(&key)),
                    _ => {
                        prop_assert_eq!(map.get(&key), tree.get(&key));
                        prop_assert_eq!(map.get_mut(&key), tree.get_mut(&key));
                        let above: Vec<_> = map.from(&key).copied().collect();
                        let expected: Vec<_> =
                            tree.range(key..).map(|(key, value)| (*key, *value)).collect();
                        prop_assert_eq!(above, expected);
                    }
                }
                if number % 100 == 50 {
                    clones.push((map.clone(), tree.clone()));
                }
                prop_assert_eq!(map.len(), tree.len());
                prop_assert_eq!(map.is_empty(), tree.is_empty());
                prop_assert_eq!(map.first().map(|(key, _)| *key), tree.keys().next().copied());
                prop_assert_eq!(map.last().map(|(key, _)| *key), tree.keys().last().copied());
            }
            clones.push((map, tree));
            for (map, tree) in clones {
                let all: Vec<_> = map.iter().copied().collect();
                let expected: Vec<_> = tree.into_iter().collect();
                prop_assert_eq!(all, expected);
            }
        }
    }

    #[test]
    fn keys_that_ascend_fill_their_nodes() {
        let mut map = SharedMap::default();
        for key in 0..10_000u64 {
            map.insert(key, ());
        }
        assert!(map.heap_bytes() < 10_000 * 10, "{}", map.heap_bytes());
        for key in (0..10_000).filter(|key| key % 64 > 0) {
            map.remove(&key);
        }
        assert!(map.heap_bytes() < 160 * 60, "{}", map.heap_bytes());
    }
}
