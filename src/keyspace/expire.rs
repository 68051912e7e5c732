//! Deleting keys whose deadline has passed: when they are met (lazily), and all of them within the turn they are due
//! (actively), from the index of deadlines inside the table. Fields of hashes: `field_deadlines.rs`.
//!
//! A look-up that meets one hides it, announces it, and notes it here; it is deleted behind the command, or when something is
//! put under its key. So a look-up moves nothing that somebody holds a slot of.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::mem;

use crate::collections::table::Slot;

use super::deletions::Deleted;
use super::undo::{AsItIs, place};
use super::{Cause, Key, Keyspace};
use crate::config::KeyspaceEvents;

/// Keys that look-ups have found expired, announced already, and that still lie in their tables.
#[derive(Default)]
pub(super) struct FoundExpired {
    keys: HashSet<ExpiredKey, BuildHasherDefault<AsItIs>>,
}

#[derive(PartialEq, Eq)]
struct ExpiredKey {
    database: usize,
    hash: u64,
    bytes: Box<[u8]>,
}

impl Hash for ExpiredKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(place(self.database, self.hash));
    }
}

impl ExpiredKey {
    fn new(database: usize, key: Key<'_>) -> ExpiredKey {
        ExpiredKey { database, hash: key.hash, bytes: key.bytes.into() }
    }
}

impl FoundExpired {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}

impl Keyspace {
    /// Whether look-ups have found keys expired that are to be deleted.
    #[inline]
    pub fn has_found_expired(&self) -> bool {
        !self.found_expired.is_empty()
    }

    /// Takes note that a look-up found a key of the selected database expired. It is announced now, so that its event comes
    /// before those of the command, and once.
    #[cold]
    pub(super) fn note_expired(&mut self, key: Key<'_>) {
        if !self.keeps_expired
            && self.found_expired.keys.insert(ExpiredKey::new(self.selected, key))
        {
            self.announce_expired(key.bytes);
        }
    }

    /// Deletes the keys that look-ups have found expired. To be called behind each command, and before anything else that
    /// deletes, counts, or exchanges keys.
    #[inline]
    pub fn delete_found_expired(&mut self) {
        if self.has_found_expired() {
            self.delete_all_found_expired();
        }
    }

    #[cold]
    fn delete_all_found_expired(&mut self) {
        for key in mem::take(&mut self.found_expired.keys) {
            self.delete_noted(&key);
        }
    }

    /// Deletes what lies under a key of the selected database that was found expired, for something else to come there.
    #[cold]
    pub(super) fn make_way_for(&mut self, key: Key<'_>) {
        let key = ExpiredKey::new(self.selected, key);
        if self.found_expired.keys.remove(&key) {
            self.delete_noted(&key);
        }
    }

    fn delete_noted(&mut self, key: &ExpiredKey) {
        let slot = self.tables[key.database].find(key.hash, &key.bytes);
        debug_assert!(slot.is_some(), "a key that was found expired lies there until now");
        if let Some(slot) = slot {
            let owned = self.tables.remove_for_good(key.database, slot);
            self.lazyfree.discard(owned);
        }
    }

    /// Deletes the key at `slot`, which is past its deadline.
    #[cold]
    pub(super) fn remove_expired(&mut self, slot: Slot) {
        let owned = self.tables.remove_for_good(self.selected, slot);
        self.announce_expired(owned.key());
        self.lazyfree.discard(owned);
    }

    fn announce_expired(&mut self, key: &[u8]) {
        self.stats.expired += 1;
        self.deletions.note_key(self.selected, key, Deleted::Expired);
        self.touch(self.selected, key, 1, Cause::Server);
        self.dirty_by_expiry += 1;
        self.notify(KeyspaceEvents::EXPIRED, "expired", key);
    }

    /// Deletes due keys, at most about `budget` buckets' worth. True if more may be due now.
    pub fn expire_due(&mut self, budget: usize) -> bool {
        if !self.active_expire || self.follows || self.now.is_loading {
            return false;
        }
        self.delete_found_expired();
        let now = self.now;
        let mut budget = budget;
        let before = self.selected;
        for index in 0..self.tables.len() {
            if self.tables[index].volatile_len() == 0 {
                continue;
            }
            self.selected = index;
            while let Some(owned) = self.tables.pop_due(index, &now, &mut budget) {
                self.announce_expired(owned.key());
                self.lazyfree.discard(owned);
            }
            if budget == 0 {
                self.selected = before;
                return true;
            }
        }
        self.selected = before;
        false
    }

    /// Milliseconds until a deadline may have passed; None if no key and no field has one. Never too long.
    pub fn next_due_in_ms(&self) -> Option<i64> {
        if !self.active_expire || self.follows {
            return None;
        }
        let keys = self.tables.iter().filter_map(|table| table.next_due_boot_ms()).min();
        let next = keys.into_iter().chain(self.next_field_boot_ms()).min()?;
        // Gone strictly later than the deadline.
        Some(next.saturating_add(1).saturating_sub(self.now.boot_ms()).max(0))
    }
}
