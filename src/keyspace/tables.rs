//! The databases' tables, and the one door through which they change: so that what a script has changed can be put back.
//!
//! While a script is recorded, each change of an entry leaves in the log ([`Undo`]) what the entry was before. Who takes an entry
//! out or gives it another value does so without a copy: the old entry moves into the log whole. Who changes a value where it
//! lies has a copy made first, once for each key and script; who changes elements of a collection ([`Tables::begin_elements`])
//! has only them noted if it is large. While nothing is recorded all this costs one branch a change.
//!
//! Not recorded: access bits, which are no data, and what [`Tables::remove_for_good`] takes out.

use std::ops::Index;

use super::Key;
use super::field_deadlines::FieldDeadlines;
use super::undo::{Cleared, Undo};
use crate::clock::{Deadline, Now};
use crate::collections::hash::KeyHasher;
use crate::collections::table::{Drained, Entry, NewValue, Owned, Slot, Table, ValueRef};
use crate::types::Value;
use crate::types::stream::Stream;

/// All databases' tables.
pub(super) struct Tables {
    tables: Vec<Table<Value>>,
    hasher: KeyHasher,
    pub undo: Undo,
}

impl Index<usize> for Tables {
    type Output = Table<Value>;

    #[inline]
    fn index(&self, database: usize) -> &Table<Value> {
        &self.tables[database]
    }
}

impl Tables {
    pub fn new(databases: usize, hasher: KeyHasher, wall_offset_ms: i64) -> Self {
        let tables = (0..databases).map(|_| Table::new(hasher, wall_offset_ms)).collect();
        Tables { tables, hasher, undo: Undo::default() }
    }

    pub fn len(&self) -> usize {
        self.tables.len()
    }

    pub fn iter(&self) -> std::slice::Iter<'_, Table<Value>> {
        self.tables.iter()
    }

    pub fn set_wall_offset(&mut self, offset_ms: i64) {
        self.tables.iter_mut().for_each(|table| table.set_wall_offset(offset_ms));
    }

    #[inline]
    pub fn set_access(&mut self, database: usize, slot: Slot, access: u32) {
        self.tables[database].set_access(slot, access);
    }

    // ---- changes that are recorded -------------------------------------------------------------------------------

    /// [`Table::insert`].
    #[inline]
    pub fn insert(
        &mut self,
        database: usize,
        key: Key<'_>,
        value: NewValue<'_, Value>,
        deadline: Option<Deadline>,
        access: u32,
    ) -> Slot {
        if self.undo.is_recording() {
            self.undo.note_absent(database, key);
        }
        self.tables[database].insert(key.hash, key.bytes, value, deadline, access)
    }

    /// [`Table::replace`]. An object that went into the log is not returned.
    #[inline]
    pub fn replace(
        &mut self,
        database: usize,
        slot: Slot,
        value: NewValue<'_, Value>,
        deadline: Option<Deadline>,
    ) -> Option<Box<Value>> {
        if let Some(hash) = self.new_to_log(database, slot) {
            let table = &mut self.tables[database];
            let entry = table.entry(slot);
            let new = Owned::make(entry.key(), value, deadline, entry.access());
            let old = table.exchange(slot, new);
            self.undo.note_entry(database, hash, old);
            return None;
        }
        self.tables[database].replace(slot, value, deadline)
    }

    /// [`Table::set_deadline`].
    #[inline]
    pub fn set_deadline(&mut self, database: usize, slot: Slot, deadline: Option<Deadline>) {
        if self.undo.is_recording() {
            let entry = self.tables[database].entry(slot);
            match entry.value() {
                // The value stays as it is: no reason to copy a large one.
                ValueRef::Object(_) => {
                    let key = Key { bytes: entry.key(), hash: self.hasher.hash(entry.key()) };
                    self.undo.note_deadline(database, key, entry.deadline());
                }
                ValueRef::Bytes { .. } => self.keep_copy(database, slot),
            }
        }
        self.tables[database].set_deadline(slot, deadline);
    }

    /// [`Table::resize_bytes`].
    #[inline]
    pub fn resize_bytes(&mut self, database: usize, slot: Slot, len: usize, kind: u8) -> &mut [u8] {
        if self.undo.is_recording() {
            self.keep_copy(database, slot);
        }
        self.tables[database].resize_bytes(slot, len, kind)
    }

    /// [`Table::bytes_mut`].
    #[inline]
    pub fn bytes_mut(&mut self, database: usize, slot: Slot) -> Option<&mut [u8]> {
        if self.undo.is_recording() {
            self.keep_copy(database, slot);
        }
        self.tables[database].bytes_mut(slot)
    }

    /// [`Table::object_mut`].
    #[inline]
    pub fn object_mut(&mut self, database: usize, slot: Slot) -> Option<&mut Value> {
        if self.undo.is_recording() {
            self.keep_object(database, slot);
        }
        self.tables[database].object_mut(slot)
    }

    /// To be called before elements of what lies at `slot` are changed by way of [`Self::noted_object_mut`]. If it is true,
    /// [`Self::end_elements`] is to be called afterwards.
    #[inline]
    pub fn begin_elements(&mut self, database: usize, slot: Slot) -> bool {
        self.undo.is_recording() && self.keep_elements(database, slot)
    }

    #[cold]
    pub fn end_elements(&mut self) {
        self.undo.end_elements();
    }

    /// [`Table::object_mut`] where [`Self::begin_elements`] was called, or for changes that are none to anybody.
    #[inline]
    pub fn noted_object_mut(&mut self, database: usize, slot: Slot) -> Option<&mut Value> {
        self.tables[database].object_mut(slot)
    }

    /// The stream at `slot`, of which the groups may be changed.
    #[inline]
    pub fn groups_mut(&mut self, database: usize, slot: Slot) -> Option<&mut Stream> {
        if self.undo.is_recording() {
            self.keep_groups(database, slot);
        }
        match self.tables[database].object_mut(slot) {
            Some(Value::Stream(stream)) => Some(stream),
            _ => None,
        }
    }

    /// [`Table::remove`]. An entry that went into the log is not returned.
    #[inline]
    pub fn remove(&mut self, database: usize, slot: Slot) -> Option<Owned<Value>> {
        let hash = self.new_to_log(database, slot);
        let old = self.tables[database].remove(slot);
        if let Some(hash) = hash {
            self.undo.note_entry(database, hash, old);
            return None;
        }
        Some(old)
    }

    /// Moves the entry at `slot` under another key, which is absent, of any database; deadline and access bits stay.
    pub fn transfer(&mut self, database: usize, slot: Slot, target: usize, to: Key<'_>) -> Slot {
        let old = self.tables[database].remove(slot);
        if self.undo.is_recording() {
            let from = Key { bytes: old.key(), hash: self.hasher.hash(old.key()) };
            self.undo.note_transfer(database, from, target, to);
        }
        self.put_under(target, to, old)
    }

    /// Puts an entry under a key, which is absent.
    fn put_under(&mut self, database: usize, key: Key<'_>, entry: Owned<Value>) -> Slot {
        let (deadline, access) = (entry.deadline(), entry.entry().access());
        let table = &mut self.tables[database];
        if let ValueRef::Bytes { bytes, kind } = entry.value() {
            let value = NewValue::Bytes { bytes, kind };
            return table.insert(key.hash, key.bytes, value, deadline, access);
        }
        let object = entry.into_object().expect("what are no bytes is an object");
        table.insert(key.hash, key.bytes, NewValue::Object(object), deadline, access)
    }

    /// Empties a database. What went into the log is not returned. `fields` are the database's, `keys` and `bytes` what it
    /// holds, about.
    pub fn clear(
        &mut self,
        database: usize,
        fields: FieldDeadlines,
        keys: usize,
        bytes: usize,
    ) -> Option<Drained<Value>> {
        if self.undo.is_recording() && self.undo.may_keep_cleared(database, bytes) {
            let table = self.tables[database].take();
            self.undo.note_cleared(database, Cleared { table, fields, keys, bytes });
            return None;
        }
        Some(self.tables[database].clear())
    }

    /// Exchanges two databases.
    pub fn swap(&mut self, a: usize, b: usize) {
        if self.undo.is_recording() {
            self.undo.note_swapped(a, b);
        }
        self.tables.swap(a, b);
    }

    /// The key's hash, if changes are recorded and the log does not hold yet what the entry at `slot` was.
    #[inline]
    fn new_to_log(&self, database: usize, slot: Slot) -> Option<u64> {
        if self.undo.is_recording() { self.not_held(database, slot) } else { None }
    }

    #[cold]
    fn not_held(&self, database: usize, slot: Slot) -> Option<u64> {
        let bytes = self.tables[database].entry(slot).key();
        let hash = self.hasher.hash(bytes);
        (!self.undo.holds(database, Key { bytes, hash })).then_some(hash)
    }

    /// Keeps a copy of the entry at `slot`, which holds bytes, before it is changed.
    #[cold]
    fn keep_copy(&mut self, database: usize, slot: Slot) {
        let entry = self.tables[database].entry(slot);
        let key = Key { bytes: entry.key(), hash: self.hasher.hash(entry.key()) };
        let ValueRef::Bytes { bytes, kind } = entry.value() else {
            return self.keep_object(database, slot);
        };
        if self.undo.holds(database, key) || !self.undo.has_room(entry.allocated()) {
            return;
        }
        let value = NewValue::Bytes { bytes, kind };
        let copy = Owned::make(key.bytes, value, entry.deadline(), entry.access());
        self.undo.note_entry(database, key.hash, copy);
    }

    /// The same for an object.
    #[cold]
    fn keep_object(&mut self, database: usize, slot: Slot) {
        let entry = self.tables[database].entry(slot);
        let ValueRef::Object(object) = entry.value() else { return };
        let key = Key { bytes: entry.key(), hash: self.hasher.hash(entry.key()) };
        if !self.undo.holds(database, key) {
            keep_object(&mut self.undo, database, key, entry, object);
        }
    }

    /// The same for an object of which elements are going to change, if it is one. Whether they are noted instead.
    #[cold]
    fn keep_elements(&mut self, database: usize, slot: Slot) -> bool {
        let entry = self.tables[database].entry(slot);
        let ValueRef::Object(object) = entry.value() else { return false };
        let key = Key { bytes: entry.key(), hash: self.hasher.hash(entry.key()) };
        if self.undo.holds(database, key) {
            return false;
        }
        if self.undo.prefers_notes(database, key, object) {
            return self.undo.begin_elements(database, key);
        }
        keep_object(&mut self.undo, database, key, entry, object);
        false
    }

    /// Keeps a copy of the groups of the stream at `slot` before they are changed.
    #[cold]
    fn keep_groups(&mut self, database: usize, slot: Slot) {
        let entry = self.tables[database].entry(slot);
        let ValueRef::Object(object @ Value::Stream(stream)) = entry.value() else { return };
        let key = Key { bytes: entry.key(), hash: self.hasher.hash(entry.key()) };
        if self.undo.holds(database, key) {
            return;
        }
        if self.undo.prefers_notes(database, key, object) {
            self.undo.note_groups(database, key, stream);
        } else {
            keep_object(&mut self.undo, database, key, entry, object);
        }
    }

    // ---- changes that are not ------------------------------------------------------------------------------------

    /// Takes out an entry that has expired or is evicted: it was gone already, or goes without a client's doing, and does
    /// not come back.
    pub fn remove_for_good(&mut self, database: usize, slot: Slot) -> Owned<Value> {
        self.tables[database].remove(slot)
    }

    /// [`Table::pop_due`].
    pub fn pop_due(
        &mut self,
        database: usize,
        now: &Now,
        budget: &mut usize,
    ) -> Option<Owned<Value>> {
        self.tables[database].pop_due(now, budget)
    }

    // ---- playing back --------------------------------------------------------------------------------------------

    /// Has a key be what it was: this entry, or absent. Returns what it was since, and where the entry is.
    pub(super) fn put_back(
        &mut self,
        database: usize,
        key: Key<'_>,
        old: Option<Owned<Value>>,
    ) -> (Option<Owned<Value>>, Option<Slot>) {
        let table = &mut self.tables[database];
        match (table.find(key.hash, key.bytes), old) {
            (Some(slot), Some(old)) => (Some(table.exchange(slot, old)), Some(slot)),
            (Some(slot), None) => (Some(table.remove(slot)), None),
            (None, Some(old)) => (None, Some(table.insert_owned(key.hash, old))),
            (None, None) => (None, None),
        }
    }

    /// Puts a database's old table back, and returns what has been there since.
    pub(super) fn put_back_table(
        &mut self,
        database: usize,
        table: Table<Value>,
    ) -> Drained<Value> {
        let since = self.tables[database].clear();
        self.tables[database] = table;
        since
    }
}

/// Keeps a copy of an entry that holds an object, if there is room for it.
fn keep_object(
    undo: &mut Undo,
    database: usize,
    key: Key<'_>,
    entry: Entry<'_, Value>,
    object: &Value,
) {
    if undo.may_copy(database, key, object.heap_bytes()) {
        let value = NewValue::Object(Box::new(object.clone()));
        let copy = Owned::make(key.bytes, value, entry.deadline(), entry.access());
        undo.note_entry(database, key.hash, copy);
    }
}
