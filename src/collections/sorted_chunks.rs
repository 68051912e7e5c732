//! A map ordered by key, compact if keys are mostly added in ascending and removed in any order.
//!
//! Items are in sorted chunks of at most [`CHUNK`]. Appending fills chunks completely, where a B-tree leaves its
//! nodes half empty: the reason for this structure. A look-up is two binary searches.

use std::collections::VecDeque;

/// The most items of a chunk.
const CHUNK: usize = 64;

/// A map for keys that are mostly added in ascending order.
#[derive(Clone, Debug)]
pub struct SortedChunks<K, V> {
    /// None is empty.
    chunks: VecDeque<Vec<(K, V)>>,
    len: usize,
}

impl<K, V> Default for SortedChunks<K, V> {
    fn default() -> Self {
        SortedChunks { chunks: VecDeque::new(), len: 0 }
    }
}

impl<K: Ord + Copy, V> SortedChunks<K, V> {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of heap memory.
    pub fn heap_bytes(&self) -> usize {
        let items: usize = self.chunks.iter().map(Vec::capacity).sum();
        self.chunks.capacity() * size_of::<Vec<(K, V)>>() + items * size_of::<(K, V)>()
    }

    /// The chunk in which a key would be.
    fn chunk_of(&self, key: &K) -> usize {
        // Keys greater than all others are the most frequent.
        match self.chunks.back().and_then(|chunk| chunk.last()) {
            Some((last, _)) if last < key => self.chunks.len(),
            _ => self
                .chunks
                .partition_point(|chunk| chunk.last().is_some_and(|(last, _)| last < key)),
        }
    }

    pub fn get(&self, key: &K) -> Option<&V> {
        let chunk = self.chunks.get(self.chunk_of(key))?;
        let index = chunk.binary_search_by(|(other, _)| other.cmp(key)).ok()?;
        Some(&chunk[index].1)
    }

    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let index = self.chunk_of(key);
        let chunk = self.chunks.get_mut(index)?;
        let index = chunk.binary_search_by(|(other, _)| other.cmp(key)).ok()?;
        Some(&mut chunk[index].1)
    }

    /// Sets a key's value; returns the old one.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        let index = self.chunk_of(&key);
        let Some(chunk) = self.chunks.get_mut(index) else {
            self.len += 1;
            match self.chunks.back_mut() {
                Some(chunk) if chunk.len() < CHUNK => chunk.push((key, value)),
                _ => self.chunks.push_back(vec![(key, value)]),
            }
            return None;
        };
        match chunk.binary_search_by(|(other, _)| other.cmp(&key)) {
            Ok(at) => Some(std::mem::replace(&mut chunk[at].1, value)),
            Err(at) => {
                self.len += 1;
                if chunk.len() < CHUNK {
                    chunk.insert(at, (key, value));
                    return None;
                }
                let mut upper = chunk.split_off(CHUNK / 2);
                match at.checked_sub(CHUNK / 2) {
                    Some(at) => upper.insert(at, (key, value)),
                    None => chunk.insert(at, (key, value)),
                }
                self.chunks.insert(index + 1, upper);
                None
            }
        }
    }

    /// Removes a key; returns its value.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let index = self.chunk_of(key);
        let chunk = self.chunks.get_mut(index)?;
        let at = chunk.binary_search_by(|(other, _)| other.cmp(key)).ok()?;
        let (_, value) = chunk.remove(at);
        self.len -= 1;
        if chunk.is_empty() {
            self.chunks.remove(index);
        } else if chunk.len() * 4 <= chunk.capacity() {
            chunk.shrink_to(chunk.len() * 2);
        }
        Some(value)
    }

    pub fn first(&self) -> Option<&(K, V)> {
        self.chunks.front()?.first()
    }

    pub fn last(&self) -> Option<&(K, V)> {
        self.chunks.back()?.last()
    }

    pub fn iter(&self) -> impl Iterator<Item = &(K, V)> {
        self.chunks.iter().flatten()
    }

    /// The items from this key on.
    pub fn from(&self, start: K) -> impl Iterator<Item = &(K, V)> {
        let index = self.chunk_of(&start);
        let skipped = self
            .chunks
            .get(index)
            .map_or(0, |chunk| chunk.partition_point(|(key, _)| *key < start));
        self.chunks.range(index..).flatten().skip(skipped)
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
        fn chunks_hold_what_a_tree_holds(
            steps in prop::collection::vec((0..5u8, 0..600u32), 1..800),
        ) {
            let (mut chunks, mut tree) = (SortedChunks::default(), BTreeMap::new());
            let mut top = 0;
            for (number, (action, key)) in steps.into_iter().enumerate() {
                match action {
                    0 | 1 => {
                        top += key % 3;
                        prop_assert_eq!(chunks.insert(top, number), tree.insert(top, number));
                    }
                    2 => prop_assert_eq!(chunks.insert(key, number), tree.insert(key, number)),
                    3 => prop_assert_eq!(chunks.remove(&key), tree.remove(&key)),
                    _ => {
                        prop_assert_eq!(chunks.get(&key), tree.get(&key));
                        prop_assert_eq!(chunks.get_mut(&key), tree.get_mut(&key));
                        let above: Vec<_> = chunks.from(key).copied().collect();
                        let expected: Vec<_> =
                            tree.range(key..).map(|(key, value)| (*key, *value)).collect();
                        prop_assert_eq!(above, expected);
                    }
                }
                prop_assert_eq!(chunks.len(), tree.len());
                prop_assert_eq!(chunks.is_empty(), tree.is_empty());
                prop_assert_eq!(chunks.first().map(|(key, _)| *key), tree.keys().next().copied());
                prop_assert_eq!(chunks.last().map(|(key, _)| *key), tree.keys().last().copied());
            }
            let all: Vec<_> = chunks.iter().copied().collect();
            let expected: Vec<_> = tree.into_iter().collect();
            prop_assert_eq!(all, expected);
        }
    }

    #[test]
    fn keys_that_ascend_fill_their_chunks() {
        let mut chunks = SortedChunks::default();
        for key in 0..10_000u64 {
            chunks.insert(key, ());
        }
        assert!(chunks.heap_bytes() < 10_000 * 9, "{}", chunks.heap_bytes());
        for key in (0..10_000).filter(|key| key % 64 > 0) {
            chunks.remove(&key);
        }
        assert!(chunks.heap_bytes() < 160 * 60, "{}", chunks.heap_bytes());
    }
}
