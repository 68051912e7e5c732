//! Watched keys: whether a key has changed since WATCH.
//!
//! Each watched key has one count of its changes for all clients, so that a change costs one
//! look-up, and only if keys are watched. A watching client stores the first count and compares.

use std::collections::HashMap;

use super::Keyspace;
use super::db_index::{DbIndex, PerDatabase};
use crate::collections::sparse::Sparse;

/// A key's number of watching clients, and its count of changes.
struct Watched {
    watchers: usize,
    changes: u64,
}

/// All watched keys, by database.
#[derive(Default)]
pub struct Watch {
    databases: PerDatabase<HashMap<Box<[u8]>, Watched>>,
    keys: usize,
    /// One count for all keys: a key that is removed and watched again never repeats a count.
    changes: u64,
}

impl Watch {
    /// The number of watched keys.
    pub fn keys(&self) -> usize {
        self.keys
    }

    /// Records that a key changed.
    #[inline]
    pub fn note_change(&mut self, database: DbIndex, key: &[u8]) {
        if self.keys > 0 {
            self.count(database, key);
        }
    }

    #[cold]
    fn count(&mut self, database: DbIndex, key: &[u8]) {
        if let Some(watched) = self.databases.get_mut(database).and_then(|keys| keys.get_mut(key)) {
            self.changes += 1;
            watched.changes = self.changes;
        }
    }

    /// Records a change of the watched keys that `is_meant` chooses, even absent ones.
    pub fn note_changes(&mut self, is_meant: impl Fn(&[u8]) -> bool) {
        for keys in self.databases.iter_mut() {
            for (_, watched) in keys.iter_mut().filter(|(key, _)| is_meant(key)) {
                self.changes += 1;
                watched.changes = self.changes;
            }
        }
    }

    /// Adds a watching client to a key. Returns the key's count of changes.
    pub fn add(&mut self, database: DbIndex, key: &[u8]) -> u64 {
        let changes = self.changes;
        let keys = self.databases.entry(database);
        let watched = keys.entry(key.into()).or_insert_with(|| {
            self.keys += 1;
            Watched { watchers: 0, changes }
        });
        watched.watchers += 1;
        watched.changes
    }

    /// Removes one watching client of a key.
    pub fn remove(&mut self, database: DbIndex, key: &[u8]) {
        let Some(keys) = self.databases.get_mut(database) else { return };
        let Some(watched) = keys.get_mut(key) else { return };
        watched.watchers -= 1;
        if watched.watchers == 0 {
            keys.remove(key);
            keys.shrink_if_sparse();
            self.keys -= 1;
        }
    }

    /// Whether a watched key has changed since its count was `changes`.
    pub fn has_changed(&self, database: DbIndex, key: &[u8], changes: u64) -> bool {
        let watched = self.databases.get(database).and_then(|keys| keys.get(key));
        watched.is_none_or(|watched| watched.changes != changes)
    }
}

impl Keyspace {
    /// Notes watched keys, and keys of the same name in the other database, that have expired. Call
    /// this before an exchange of databases: an absent key then does not count as changed if an
    /// expired one takes its place.
    pub(super) fn expire_watched(&mut self, database: DbIndex, other: DbIndex) {
        let Some(keys) = self.watch.databases.get(database) else { return };
        let keys: Vec<Box<[u8]>> = keys.keys().cloned().collect();
        for key in keys {
            for at in [database, other] {
                self.in_database(at, |keyspace| keyspace.find(keyspace.key(&key)));
            }
        }
    }

    /// Records a change of a database's watched keys that exist there or in another one, before the
    /// two are exchanged or the one is emptied.
    pub(super) fn touch_watched(&mut self, database: DbIndex, other: DbIndex) {
        let Some(keys) = self.watch.databases.get_mut(database) else { return };
        for (key, watched) in keys {
            let hash = self.hasher.hash(key);
            if [database, other].iter().any(|&at| self.tables[at].find(hash, key).is_some()) {
                self.watch.changes += 1;
                watched.changes = self.watch.changes;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_watcher_sees_the_changes_since_it_began() {
        let mut watch = Watch::default();
        let first = watch.add(DbIndex::ZERO, b"k");
        watch.note_change(DbIndex::ZERO, b"other");
        watch.note_change(DbIndex::new(1), b"k");
        assert!(!watch.has_changed(DbIndex::ZERO, b"k", first));
        watch.note_change(DbIndex::ZERO, b"k");
        let second = watch.add(DbIndex::ZERO, b"k");
        assert!(watch.has_changed(DbIndex::ZERO, b"k", first));
        assert!(!watch.has_changed(DbIndex::ZERO, b"k", second));
        watch.remove(DbIndex::ZERO, b"k");
        watch.remove(DbIndex::ZERO, b"k");
        assert_eq!(watch.keys, 0);
        let third = watch.add(DbIndex::ZERO, b"k");
        watch.note_change(DbIndex::ZERO, b"k");
        assert!(watch.has_changed(DbIndex::ZERO, b"k", third));
    }
}
