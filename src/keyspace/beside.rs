//! Databases that are filled beside the served ones and replace them when complete: how a replica
//! loads its primary's snapshot. Until then they can be dropped without effect.

use super::db_index::{DbIndex, PerDatabase};
use super::field_deadlines::FieldDeadlines;
use super::locks::{Loaded, Locks};
use super::{Key, Keyspace};
use crate::collections::table::{Owned, Table};
use crate::types::{Value, lock};

/// Databases that are not served yet.
pub struct StagedDatabases {
    tables: PerDatabase<Table<Value>>,
    fields: PerDatabase<FieldDeadlines>,
    /// The index of the locks among them.
    locks: Locks,
    semaphores: Vec<(DbIndex, Box<[u8]>)>,
}

impl StagedDatabases {
    /// See [`Keyspace::expect_keys`].
    pub fn expect_keys(&mut self, number: u64, keys: usize) {
        let database = DbIndex::read(number);
        if let Some(table) = database.and_then(|database| self.tables.get_mut(database)) {
            table.expect(keys);
        }
    }
}

impl Keyspace {
    /// New empty databases, as many as are served.
    pub fn beside(&self) -> StagedDatabases {
        let count = self.databases();
        StagedDatabases {
            tables: PerDatabase::new(count, |database| self.tables[database].alike()),
            fields: PerDatabase::new(count, |_| FieldDeadlines::default()),
            locks: self.locks.beside(),
            semaphores: Vec::new(),
        }
    }

    /// Adds an entry to a database beside. False: the key exists there, and the entry is dropped.
    pub fn load_beside(
        &mut self,
        beside: &mut StagedDatabases,
        database: DbIndex,
        entry: Owned<Value>,
    ) -> bool {
        let key = entry.key().to_vec();
        let key = Key { hash: self.hasher.hash(&key), bytes: &key };
        let table = &mut beside.tables[database];
        if table.find(key.hash, key.bytes).is_some() {
            return false;
        }
        let slot = table.insert_owned(key.hash, entry);
        // Pending entries have Unix times in files.
        if self.lease_shift_ms() != 0
            && let Some(Value::Stream(stream)) = table.object_mut(slot)
        {
            stream.groups.move_times(-self.lease_shift_ms());
        }
        let entry = table.entry(slot);
        if entry.deadline().is_some() {
            if let Some(loaded) = Loaded::of(entry.value(), &self.now) {
                beside.locks.note_loaded(database, key.bytes, loaded, &self.now);
            } else if lock::is_semaphore(entry.value()) {
                beside.locks.fences.learn(lock::newest_fence(entry.value()));
                beside.semaphores.push((database, key.bytes.into()));
            }
        }
        // Noting field deadlines needs the table among the served ones, so the tables are exchanged
        // for a moment.
        self.exchange(beside, database);
        self.in_database(database, |db| {
            db.note_moved_field_deadlines(slot, key.bytes);
            db.note_loaded_producers(slot);
        });
        self.exchange(beside, database);
        true
    }

    /// Replaces the served databases. Each key of the old ones counts as a change. The old ones are
    /// freed in the background unless `sync`.
    pub fn put_in_place(&mut self, mut beside: StagedDatabases, sync: bool) {
        self.clear_all(sync);
        for database in DbIndex::all(self.databases()) {
            beside.tables[database].fit();
            beside.tables[database].set_wall_offset(self.wall_offset_ms);
            self.exchange(&mut beside, database);
            self.tables.name_anew(database);
            // Keys that clients wait for or watch may exist now.
            self.touch_all(database, database, 0);
        }
        // No client is notified of lost locks here: a replica follows its primary, which notifies
        // them.
        let locks = self.locks.put_in_place(std::mem::take(&mut beside.locks));
        self.lazyfree.discard_index(locks, 0);
        for (database, key) in std::mem::take(&mut beside.semaphores) {
            self.semaphores.note(database, &key);
        }
    }

    /// Drops the filled databases, freeing them in the background.
    pub fn drop_beside(&mut self, mut beside: StagedDatabases) {
        beside.tables.iter_mut().for_each(|table| {
            let keys = table.len();
            self.lazyfree.discard_all(table.clear(), keys, 0);
        });
        self.lazyfree.discard_index(beside.locks, 0);
    }

    fn exchange(&mut self, beside: &mut StagedDatabases, database: DbIndex) {
        self.tables.exchange(database, &mut beside.tables[database]);
        std::mem::swap(&mut self.fields[database], &mut beside.fields[database]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::collections::hash::KeyHasher;
    use crate::collections::table::NewValue;
    use crate::keyspace::Expiry;
    use crate::types::kind;

    fn entry(key: &[u8], bytes: &[u8]) -> Owned<Value> {
        Owned::make(key, NewValue::Bytes { bytes, kind: kind::STRING }, None, 0)
    }

    #[test]
    fn what_is_filled_beside_is_seen_once_it_is_in_place() {
        let mut db = Keyspace::new(2, KeyHasher::new([3, 4]), Clock::System.now());
        db.set_string(db.key(b"old"), b"1", Expiry::Clear);
        let mut beside = db.beside();
        assert!(db.load_beside(&mut beside, DbIndex::new(1), entry(b"new", b"2")));
        assert!(!db.load_beside(&mut beside, DbIndex::new(1), entry(b"new", b"3")));
        assert!(db.find(db.key(b"old")).is_some() && db.table_of(DbIndex::new(1)).is_empty());
        db.put_in_place(beside, false);
        assert!(db.find(db.key(b"old")).is_none());
        db.select(DbIndex::new(1));
        assert!(db.string(db.key(b"new")).expect("a string").is_some_and(|text| text == b"2"[..]));
        let mut beside = db.beside();
        assert!(db.load_beside(&mut beside, DbIndex::ZERO, entry(b"never", b"2")));
        db.drop_beside(beside);
        assert_eq!((db.table_of(DbIndex::ZERO).len(), db.table_of(DbIndex::new(1)).len()), (0, 1));
    }
}
