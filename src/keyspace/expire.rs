//! Deletes expired keys: lazily, when a look-up meets them, and actively, in the turn in which they
//! are due by the table's index of deadlines. For fields of hashes see `field_deadlines.rs`.
//!
//! A look-up that meets an expired key hides it, announces it, and notes it here. The key is
//! deleted after the command, or when it is written. So a look-up never invalidates slots.

use std::collections::{BTreeSet, HashSet};
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::mem;

use super::db_index::DbIndex;
use crate::clock::{Deadline, ExpiryBy};
use crate::collections::table::Slot;

use super::deletions::Deleted;
use super::hash_slots::is_of;
use super::undo::{AsItIs, place};
use super::{Cause, Key, Keyspace, Mode};
use crate::config::KeyspaceEvents;

/// Who lets keys expire, and those that have expired or are kept.
pub struct Expiring {
    pub(super) by: ExpiryBy,
    /// DEBUG SET-ACTIVE-EXPIRE.
    pub is_active: bool,
    /// Databases and keys with deadlines set by a replica's own clients: the primary does not
    /// delete those.
    own_deadlines: BTreeSet<(DbIndex, Box<[u8]>)>,
    /// Keys that look-ups have found and announced, but that are still in their tables.
    found: HashSet<ExpiredKey, BuildHasherDefault<AsItIs>>,
}

impl Default for Expiring {
    fn default() -> Self {
        let by = ExpiryBy::Server;
        Expiring { by, is_active: true, own_deadlines: BTreeSet::new(), found: HashSet::default() }
    }
}

#[derive(PartialEq, Eq)]
struct ExpiredKey {
    database: DbIndex,
    hash: u64,
    bytes: Box<[u8]>,
}

impl Hash for ExpiredKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(place(self.database, self.hash));
    }
}

impl ExpiredKey {
    fn new(database: DbIndex, key: Key<'_>) -> ExpiredKey {
        ExpiredKey { database, hash: key.hash, bytes: key.bytes.into() }
    }
}

impl Keyspace {
    /// Whether look-ups have found expired keys that must be deleted.
    #[inline]
    pub fn has_found_expired(&self) -> bool {
        !self.expiring.found.is_empty()
    }

    /// Notes that a look-up found an expired key of the selected database. The key is announced
    /// now, so that its event comes before the command's, and only once.
    #[cold]
    pub(super) fn note_expired(&mut self, key: Key<'_>) {
        if !self.mode.hides_expired
            && self.expiring.found.insert(ExpiredKey::new(self.selected, key))
        {
            if let Some(slot) = self.table().find(key.hash, key.bytes) {
                self.note_owner_at(slot, key);
            }
            self.announce_expired(key.bytes);
        }
    }

    /// Deletes the expired keys that look-ups have found. Call this after each command, and before
    /// anything else that deletes, counts or exchanges keys.
    #[inline]
    pub fn delete_found_expired(&mut self) {
        if self.has_found_expired() {
            self.delete_all_found_expired();
        }
    }

    #[cold]
    fn delete_all_found_expired(&mut self) {
        for key in mem::take(&mut self.expiring.found) {
            self.delete_noted(&key);
        }
    }

    /// Deletes a key of the selected database that was found expired, before the key is written.
    #[cold]
    pub(super) fn make_way_for(&mut self, key: Key<'_>) {
        let key = ExpiredKey::new(self.selected, key);
        if self.expiring.found.remove(&key) {
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

    /// Deletes the expired key at `slot`.
    #[cold]
    pub(super) fn remove_expired(&mut self, slot: Slot) {
        let owned = self.tables.remove_for_good(self.selected, slot);
        self.locks.note_owner_of(self.selected, owned.key(), owned.value(), &self.now);
        self.announce_expired(owned.key());
        self.lazyfree.discard(owned);
    }

    /// Deletes the key at `slot`, for which a command has set a deadline in the past.
    pub fn delete_as_expired(&mut self, slot: Slot, key: Key<'_>) {
        self.note_owner_at(slot, key);
        if let Some(owned) = self.tables.remove(self.selected, slot) {
            self.lazyfree.discard(owned);
        }
        self.stats.expired += 1;
        self.changed(KeyspaceEvents::EXPIRED, "expired", key.bytes);
    }

    fn announce_expired(&mut self, key: &[u8]) {
        self.stats.expired += 1;
        self.deletions.note_key(self.selected, key, Deleted::Expired);
        self.locks.note_expired(self.selected, key);
        self.touch(self.selected, key, 1, Cause::Server);
        self.changes.by_expiry += 1;
        self.notify(KeyspaceEvents::EXPIRED, "expired", key);
    }

    /// Sets the server that decides when keys expire.
    pub fn set_expiry_by(&mut self, expiry_by: ExpiryBy) {
        self.expiring.by = expiry_by;
        self.reset_mode();
    }

    pub fn expiry_by(&self) -> ExpiryBy {
        self.expiring.by
    }

    /// Whether another server decides when keys expire.
    #[inline]
    pub fn leaves_expiry(&self) -> bool {
        self.expiring.by != ExpiryBy::Server
    }

    /// Whether a key or field with this deadline is deleted at once, because the deadline has come.
    pub fn ends_at_once(&self, deadline: Deadline) -> bool {
        self.now.has_come(deadline) && self.expiring.by != ExpiryBy::ImportSource
    }

    /// Ends the mode of a command or of a part of a turn.
    pub fn reset_mode(&mut self) {
        self.mode = Mode { no_touch: false, hides_expired: self.expiring.by == ExpiryBy::Primary };
    }

    /// Whether due keys are deleted actively.
    pub(super) fn expires_by_itself(&self) -> bool {
        self.expiring.is_active && !self.leaves_expiry() && !self.now.ignores_deadlines
    }

    /// Notes a deadline that a replica's own client sets on a key of the selected database.
    #[inline]
    pub(super) fn note_own_deadline(&mut self, key: &[u8], deadline: Option<Deadline>) {
        if deadline.is_some() {
            self.note_own_volatile(key);
        }
    }

    /// Notes that a replica's own client has set a deadline on a key of the selected database, or
    /// on one of its fields.
    #[inline]
    pub(super) fn note_own_volatile(&mut self, key: &[u8]) {
        if self.expiring.by == ExpiryBy::Primary && !self.now.ignores_deadlines {
            self.expiring.own_deadlines.insert((self.selected, key.into()));
        }
    }

    /// Number of keys whose deadlines a replica checks itself.
    pub fn own_deadlines(&self) -> usize {
        self.expiring.own_deadlines.len()
    }

    /// On a replica: deletes keys and fields whose deadlines were set by its own clients and have
    /// passed.
    pub fn expire_own(&mut self) {
        if self.expiring.by != ExpiryBy::Primary {
            return self.expiring.own_deadlines.clear();
        }
        let mut own = mem::take(&mut self.expiring.own_deadlines);
        own.retain(|(database, key)| {
            self.in_database(*database, |db| {
                let Some(slot) = db.table().find(db.hash(key), key) else { return false };
                let deadline = db.entry(slot).deadline();
                if deadline.is_some_and(|deadline| db.now.is_past(deadline)) {
                    db.remove_expired(slot);
                    return false;
                }
                db.expire_own_fields(slot, key) || deadline.is_some()
            })
        });
        self.expiring.own_deadlines = own;
    }

    /// Deletes due keys, checking at most about `budget` buckets. True if more may be due.
    pub fn expire_due(&mut self, budget: usize) -> bool {
        if !self.expires_by_itself() {
            return false;
        }
        self.delete_found_expired();
        let now = self.now;
        let mut budget = budget;
        let before = self.selected;
        for database in DbIndex::all(self.tables.len()) {
            if self.tables[database].volatile_len() == 0 {
                continue;
            }
            self.selected = database;
            loop {
                // The server that brings hidden keys decides when they end.
                let hidden = self.hidden_slots.as_ref();
                let is_kept = |key: &[u8]| is_of(hidden, key);
                let due = self.tables.pop_due(database, &now, &mut budget, is_kept);
                let Some(owned) = due else { break };
                if let Some(deadline) = owned.deadline() {
                    let late_ms = now.remaining_ms(deadline).min(0).unsigned_abs();
                    self.stats.expiry_lag.record_us(late_ms.saturating_mul(1000));
                }
                self.locks.note_owner_of(database, owned.key(), owned.value(), &now);
                self.stats.expired_actively += 1;
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

    /// Milliseconds until a key or field may be due; None if none has a deadline. May be too short.
    /// Too long only for hidden keys.
    pub fn next_due_in_ms(&self) -> Option<i64> {
        if !self.expiring.is_active || self.leaves_expiry() {
            return None;
        }
        let keys = self.tables.iter().filter_map(|table| table.next_due_boot_ms()).min();
        let next = keys.into_iter().chain(self.next_field_boot_ms()).min()?;
        // A key is expired strictly later than its deadline.
        Some(next.saturating_add(1).saturating_sub(self.now.boot_ms()).max(0))
    }
}
