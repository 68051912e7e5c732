//! A scan of all held locks in slices: an operator's question may take many turns of the loop, but
//! only a small part of each.

use std::collections::BTreeSet;

use super::db_index::DbIndex;
use super::locks::{Held, Locks};

/// A scan of all locks, from the first database's first key on. Locks that are added or removed
/// during the scan may be missed.
#[derive(Debug, Default)]
pub struct LockScan {
    database: DbIndex,
    after: Option<Box<[u8]>>,
    /// The wanted number of locks that are first by rank: rank, database, key.
    pub first: BTreeSet<(i64, DbIndex, Box<[u8]>)>,
}

impl LockScan {
    /// Visits up to `count` further locks. `visit` gets the database, the key and the lock. True:
    /// all locks were visited.
    pub fn step(
        &mut self,
        locks: &Locks,
        databases: usize,
        mut count: usize,
        mut visit: impl FnMut(&mut BTreeSet<(i64, DbIndex, Box<[u8]>)>, DbIndex, &[u8], &Held),
    ) -> bool {
        while self.database.get() < databases {
            let after = self.after.take();
            let mut last = None;
            let mut left = locks.iter_after(self.database, after.as_deref());
            for (key, held) in left.by_ref().take(count) {
                visit(&mut self.first, self.database, key, held);
                count -= 1;
                last = Some(key);
            }
            let is_at_end = left.next().is_none();
            let last = last.map(Box::from);
            drop(left);
            self.after = last.or(after);
            if !is_at_end {
                return false;
            }
            (self.database, self.after) = (self.database.next(), None);
            if count == 0 {
                return self.database.get() >= databases;
            }
        }
        true
    }
}

/// Keeps a lock if it is among the first `wanted` by rank.
pub fn keep_first(
    first: &mut BTreeSet<(i64, DbIndex, Box<[u8]>)>,
    wanted: usize,
    rank: i64,
    database: DbIndex,
    key: &[u8],
) {
    let is_later =
        |last: &(i64, DbIndex, Box<[u8]>)| (last.0, last.1, &*last.2) < (rank, database, key);
    if first.len() >= wanted && first.last().is_none_or(is_later) {
        return;
    }
    first.insert((rank, database, key.into()));
    if first.len() > wanted {
        first.pop_last();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyspace::locks::At;

    #[test]
    fn all_locks_are_seen_once_whatever_the_slices() {
        let mut locks = Locks::default();
        let held = |since_us| Held::new(1, since_us);
        for number in 0..50u8 {
            locks.insert(
                At::key(DbIndex::new(usize::from(number % 3)), &[number]),
                held(i64::from(number ^ 21)),
            );
        }
        for slice in [1, 7, 16, 17, 100] {
            let (mut scan, mut seen) = (LockScan::default(), Vec::new());
            let mut steps = 0;
            while !scan.step(&locks, 16, slice, |first, database, key, held| {
                seen.push(key[0]);
                keep_first(first, 5, held.since_us, database, key);
            }) {
                steps += 1;
                assert!(steps < 200);
            }
            seen.sort_unstable();
            assert_eq!(seen, (0..50).collect::<Vec<u8>>(), "{slice}");
            let ranks: Vec<i64> = scan.first.iter().map(|(rank, ..)| *rank).collect();
            assert_eq!(ranks, [0, 1, 2, 3, 4], "{slice}");
        }
    }
}
