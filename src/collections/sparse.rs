//! Tables that give memory back. A standard table keeps the memory of its largest size, which is
//! right for data that comes and goes, but not for one client's hundred thousand subscriptions.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hash};

/// Smaller tables keep their memory.
const KEPT_MIN: usize = 256;
/// The part of a table that may be empty: all but one in this number.
const SPARSE: usize = 8;

/// The capacity that a table should shrink to, if it is sparse: twice its length, so that as many
/// changes as it has elements come before it is moved again.
fn wanted(len: usize, capacity: usize) -> Option<usize> {
    (capacity > KEPT_MIN && len < capacity / SPARSE).then_some(2 * len)
}

/// A table with more memory than its elements need.
pub trait Sparse {
    /// Gives back memory if the table is sparse. Call this after a removal; each costs O(1) then,
    /// amortised.
    fn shrink_if_sparse(&mut self);
}

impl<K: Eq + Hash, V, S: BuildHasher> Sparse for HashMap<K, V, S> {
    #[inline]
    fn shrink_if_sparse(&mut self) {
        if let Some(capacity) = wanted(self.len(), self.capacity()) {
            self.shrink_to(capacity);
        }
    }
}

impl<T: Eq + Hash, S: BuildHasher> Sparse for HashSet<T, S> {
    #[inline]
    fn shrink_if_sparse(&mut self) {
        if let Some(capacity) = wanted(self.len(), self.capacity()) {
            self.shrink_to(capacity);
        }
    }
}

impl<T> Sparse for Vec<T> {
    #[inline]
    fn shrink_if_sparse(&mut self) {
        if let Some(capacity) = wanted(self.len(), self.capacity()) {
            self.shrink_to(capacity);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_shrinks_with_its_elements_and_is_moved_rarely() {
        let mut table: HashMap<usize, usize> = (0..100_000).map(|key| (key, key)).collect();
        let (mut moves, mut capacity) = (0, table.capacity());
        for key in 0..100_000 {
            table.remove(&key);
            table.shrink_if_sparse();
            // Less than half: a removal alone leaves a table's room as it is, or nearly so.
            if table.capacity() < capacity / 2 {
                (moves, capacity) = (moves + 1, table.capacity());
            }
        }
        assert!(table.capacity() <= KEPT_MIN && moves <= 10, "{capacity}, moved {moves} times");
    }
}
