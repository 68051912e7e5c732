//! The databases' tables. All changes go through here, so that a script's changes can be undone,
//! and a snapshot copies each entry before it changes.
//!
//! Every change first calls [`Tables::before_change`] or, for an absent key,
//! [`Tables::before_insert`]. A table that is emptied or exchanged keeps its identity
//! ([`TableId`]).
//!
//! While a script runs, each change of an entry writes its previous state to the undo log
//! ([`Undo`]). Removing an entry or replacing its value needs no copy: the old entry moves into the
//! log. Changing a value in place copies it first, once for each key and script; changing elements
//! of a collection ([`Tables::elements_mut`]) records only those elements if it is large. Without a
//! script this costs one branch a change.
//!
//! Not recorded: access bits, which are not data, and removals by expiry or eviction
//! ([`Change::RemoveByServer`]).

use std::ops::Index;

use super::Key;
use super::db_index::{DbIndex, PerDatabase};
use super::evict::BLESSED;
use super::field_deadlines::FieldDeadlines;
use super::snapshot::Snapshot;
use super::table_id::TableId;
use super::undo::{Cleared, Undo};
use crate::clock::{Deadline, Now};
use crate::collections::hash::KeyHasher;
use crate::collections::lent::Lender;
use crate::collections::numbers::Numbers;
use crate::collections::table::{Drained, Entry, NewValue, Owned, Slot, Table, ValueRef};
use crate::types::Value;
use crate::types::journal::Journal;
use crate::types::stream::Stream;

/// A change of an entry that is about to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// The entry is replaced. The caller gives the old one to the log if [`Keep::Entry`] asks for
    /// it.
    Replace,
    /// The entry is removed. The caller does the same as for a replacement.
    Remove,
    /// Only its deadline changes.
    Deadline,
    /// Only its blessing changes.
    Blessing,
    /// Its value changes in place.
    Value,
    /// Elements of its collection change; they are recorded if [`Keep::Elements`] asks for it.
    Elements,
    /// The groups of its stream change.
    Groups,
    /// It moves to another key, which the log records.
    Transfer,
    /// It is removed by expiry or eviction: the log does not restore it.
    RemoveByServer,
    /// Some of its elements are removed by expiry.
    ElementsByServer,
    /// The log restores the previous state.
    PutBack,
    /// The log removes the entry, because the key was absent before.
    PutBackAbsent,
}

/// The kind of entry that is added under an absent key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arrival {
    New,
    /// An entry that existed before, or under another key: the log has it.
    Old,
}

/// The duty that the caller of [`Tables::before_change`] still has for the old entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keep {
    Nothing,
    /// Give the log the whole entry. Has the key's hash.
    Entry(u64),
    /// Record the changed elements until [`Tables::end_elements`].
    Elements,
}

/// All databases' tables.
pub(super) struct Tables {
    tables: PerDatabase<Table<Value>>,
    /// Indexed by database.
    ids: PerDatabase<TableId>,
    last_id: u64,
    hasher: KeyHasher,
    pub undo: Undo,
    pub snapshot: Option<Box<Snapshot>>,
    /// Whether values have been lent since [`Self::end_loans`].
    has_lent: bool,
    /// Of a snapshot whose walk has ended and that is not written yet: bytes of entries that it has
    /// copied, and of parts that were copied before it began.
    pub walked: Option<(usize, usize)>,
}

impl Index<DbIndex> for Tables {
    type Output = Table<Value>;

    #[inline]
    fn index(&self, database: DbIndex) -> &Table<Value> {
        &self.tables[database]
    }
}

impl Tables {
    pub fn new(databases: usize, hasher: KeyHasher, wall_offset_ms: i64) -> Self {
        let tables = PerDatabase::new(databases, |_| Table::new(hasher, wall_offset_ms));
        let ids = PerDatabase::new(databases, |database| TableId(database.get() as u64));
        Tables {
            tables,
            ids,
            last_id: databases as u64,
            hasher,
            undo: Undo::default(),
            snapshot: None,
            has_lent: false,
            walked: None,
        }
    }

    /// Counts the keys of each hash slot from now on. All tables must be empty.
    pub fn keep_slots(&mut self) {
        self.tables.iter_mut().for_each(Table::keep_slots);
    }

    /// See [`Keyspace::list_slots_on`](super::Keyspace::list_slots_on).
    pub fn list_slots_on(&mut self, most: usize) -> bool {
        if let Some(table) = self.tables.iter_mut().find(|table| table.lacks_slot_list()) {
            table.list_slots_on(most);
        }
        !self.iter().any(Table::lacks_slot_list)
    }

    /// Drops the lists of the slots' keys, and returns their memory.
    pub fn take_slot_lists(&mut self) -> Vec<Numbers> {
        self.tables.iter_mut().filter_map(Table::take_slot_list).collect()
    }

    /// The identity of a database's table.
    pub fn id_of(&self, database: DbIndex) -> TableId {
        self.ids[database]
    }

    fn new_id(&mut self) -> TableId {
        self.last_id += 1;
        TableId(self.last_id)
    }

    pub fn len(&self) -> usize {
        self.tables.databases()
    }

    pub fn numbered(&self) -> impl Iterator<Item = (DbIndex, &Table<Value>)> {
        self.tables.numbered()
    }

    pub fn iter(&self) -> std::slice::Iter<'_, Table<Value>> {
        self.tables.iter()
    }

    pub fn set_wall_offset(&mut self, offset_ms: i64) {
        self.tables.iter_mut().for_each(|table| table.set_wall_offset(offset_ms));
    }

    /// Sets the access bits of a key to what `update` makes of them, unless the key is blessed.
    #[inline]
    pub fn update_access(
        &mut self,
        database: DbIndex,
        slot: Slot,
        update: impl FnOnce(u32) -> u32,
    ) {
        let update = |old| if old == BLESSED { old } else { update(old) };
        self.tables[database].update_access(slot, update);
    }

    // ---- lending --------------------------------------------------------------------------------

    /// [`Table::lend`].
    pub fn lend<R>(
        &mut self,
        database: DbIndex,
        slot: Slot,
        lend: impl for<'x> FnOnce(ValueRef<'x, Value>, &mut Lender<'x, '_>) -> R,
    ) -> R {
        let table = &mut self.tables[database];
        let result = table.lend(slot, lend);
        self.has_lent |= table.has_loans();
        result
    }

    /// Ends all loans: outputs that are still to be sent copy what was lent to them.
    pub fn end_loans(&mut self) {
        if std::mem::take(&mut self.has_lent) {
            self.tables.iter_mut().for_each(Table::end_loans);
        }
    }

    // ---- before changes -------------------------------------------------------------------------

    /// Prepares the undo log and a snapshot for a change of the entry at `slot`. Must be called
    /// before any change, except of access bits. Costs one branch if there is neither.
    #[inline]
    fn before_change(&mut self, database: DbIndex, slot: Slot, change: Change) -> Keep {
        if self.snapshot.is_some() {
            self.copy_before_change(database, slot);
        }
        if self.undo.is_recording() { self.record(database, slot, change) } else { Keep::Nothing }
    }

    /// The same before an absent key is added.
    #[inline]
    fn before_insert(&mut self, database: DbIndex, key: Key<'_>, arrival: Arrival) {
        if self.snapshot.is_some() {
            self.tables[database].mark_before_insert(key.hash);
        }
        if self.undo.is_recording() && arrival == Arrival::New {
            self.undo.note_absent(database, key);
        }
    }

    /// Copies an entry for the snapshot.
    #[cold]
    fn copy_before_change(&mut self, database: DbIndex, slot: Slot) {
        let Some(snapshot) = &mut self.snapshot else { return };
        let (table, id) = (&mut self.tables[database], self.ids[database]);
        table.show_before_change(slot, &mut |entry| snapshot.take_before_change(id, entry));
    }

    // ---- snapshots ------------------------------------------------------------------------------

    /// Starts iterating all tables that are not empty; returns them.
    pub fn begin_walks(&mut self) -> Vec<(TableId, DbIndex)> {
        let ids = self.ids.numbered();
        let left = ids.filter(|(database, _)| !self.tables[*database].is_empty());
        let left = left.map(|(database, id)| (*id, database)).rev().collect();
        self.tables.iter_mut().filter(|table| !table.is_empty()).for_each(Table::begin_walk);
        left
    }

    pub fn end_walks(&mut self) {
        self.tables.iter_mut().chain(self.undo.cleared_tables()).for_each(Table::end_walk);
    }

    /// Copies the next entries of a table: [`Snapshot::walk`]. False at its end.
    pub fn walk_on(&mut self, id: TableId, snapshot: &mut Snapshot) -> bool {
        let found = self.ids.numbered().find(|(_, table)| **table == id);
        let Some((database, _)) = found else { return false };
        snapshot.walk(id, &mut self.tables[database])
    }

    /// Adds a file's entry under its key with this hash. Errors: the key exists; the entry is
    /// returned.
    pub fn load(
        &mut self,
        database: DbIndex,
        hash: u64,
        entry: Owned<Value>,
    ) -> Result<Slot, Owned<Value>> {
        let key = Key { bytes: entry.key(), hash };
        if let ValueRef::Bytes { bytes, kind } = entry.value() {
            debug_assert!(is_well_placed(&NewValue::Bytes { bytes, kind }));
        }
        if self.tables[database].find(hash, key.bytes).is_some() {
            return Err(entry);
        }
        self.before_insert(database, key, Arrival::Old);
        Ok(self.tables[database].insert_owned(hash, entry))
    }

    /// Reserves room in an empty table.
    pub fn expect(&mut self, database: DbIndex, keys: usize) {
        if let Some(table) = self.tables.get_mut(database) {
            table.expect(keys);
        }
    }

    /// Frees room reserved for keys that did not come.
    pub fn fit(&mut self) {
        self.tables.iter_mut().for_each(Table::fit);
    }

    /// Records an entry's previous state in the log.
    #[cold]
    fn record(&mut self, database: DbIndex, slot: Slot, change: Change) -> Keep {
        let entry = self.tables[database].entry(slot);
        match change {
            Change::Replace | Change::Remove => {
                let key = Key { bytes: entry.key(), hash: self.hasher.hash(entry.key()) };
                if !self.undo.holds(database, key) {
                    return Keep::Entry(key.hash);
                }
            }
            Change::Deadline => match entry.value() {
                // The value does not change: a large one need not be copied.
                ValueRef::Object(_) => {
                    let key = Key { bytes: entry.key(), hash: self.hasher.hash(entry.key()) };
                    self.undo.note_deadline(database, key, entry.deadline());
                }
                ValueRef::Bytes { .. } => self.keep_copy(database, slot),
            },
            Change::Blessing => match entry.value() {
                ValueRef::Object(_) => {
                    let key = Key { bytes: entry.key(), hash: self.hasher.hash(entry.key()) };
                    self.undo.note_blessing(database, key, entry.access());
                }
                ValueRef::Bytes { .. } => self.keep_copy(database, slot),
            },
            Change::Value => self.keep_copy(database, slot),
            Change::Elements => {
                if self.keep_elements(database, slot) {
                    return Keep::Elements;
                }
            }
            Change::Groups => self.keep_groups(database, slot),
            Change::Transfer
            | Change::RemoveByServer
            | Change::ElementsByServer
            | Change::PutBack
            | Change::PutBackAbsent => {}
        }
        Keep::Nothing
    }

    // ---- changes --------------------------------------------------------------------------------

    /// [`Table::insert`].
    #[inline]
    pub fn insert(
        &mut self,
        database: DbIndex,
        key: Key<'_>,
        value: NewValue<'_, Value>,
        deadline: Option<Deadline>,
        access: u32,
    ) -> Slot {
        debug_assert!(is_well_placed(&value));
        self.before_insert(database, key, Arrival::New);
        self.tables[database].insert(key.hash, key.bytes, value, deadline, access)
    }

    /// [`Table::replace`]. An object that moved into the log is not returned.
    #[inline]
    pub fn replace(
        &mut self,
        database: DbIndex,
        slot: Slot,
        value: NewValue<'_, Value>,
        deadline: Option<Deadline>,
    ) -> Option<Box<Value>> {
        debug_assert!(is_well_placed(&value));
        if let Keep::Entry(hash) = self.before_change(database, slot, Change::Replace) {
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
    pub fn set_deadline(&mut self, database: DbIndex, slot: Slot, deadline: Option<Deadline>) {
        self.before_change(database, slot, Change::Deadline);
        self.tables[database].set_deadline(slot, deadline);
    }

    /// Sets access bits that bless a key ([`BLESSED`]), or end that.
    pub fn set_blessing(&mut self, database: DbIndex, slot: Slot, access: u32) {
        self.before_change(database, slot, Change::Blessing);
        self.tables[database].set_access(slot, access);
    }

    /// [`Table::resize_bytes`].
    #[inline]
    pub fn resize_bytes(
        &mut self,
        database: DbIndex,
        slot: Slot,
        len: usize,
        kind: u8,
    ) -> &mut [u8] {
        debug_assert!(len < Value::LARGE_STRING);
        self.before_change(database, slot, Change::Value);
        self.tables[database].resize_bytes(slot, len, kind)
    }

    /// [`Table::bytes_mut`].
    #[inline]
    pub fn bytes_mut(&mut self, database: DbIndex, slot: Slot) -> Option<&mut [u8]> {
        self.before_change(database, slot, Change::Value);
        self.tables[database].bytes_mut(slot)
    }

    /// [`Table::object_mut`]. None if the entry holds bytes.
    #[inline]
    pub fn object_mut(&mut self, database: DbIndex, slot: Slot) -> Option<&mut Value> {
        if let ValueRef::Bytes { .. } = self.tables[database].entry(slot).value() {
            return None;
        }
        self.before_change(database, slot, Change::Value);
        self.tables[database].object_mut(slot)
    }

    /// The object at `slot`, for changing elements, and the journal that records them, if any: then
    /// [`Self::end_elements`] must be called afterwards. None if the entry holds bytes.
    #[inline]
    pub fn elements_mut(
        &mut self,
        database: DbIndex,
        slot: Slot,
    ) -> Option<(&mut Value, Option<&mut Journal>)> {
        let keep = self.before_change(database, slot, Change::Elements);
        let value = self.tables[database].object_mut(slot)?;
        let journal = (keep == Keep::Elements).then_some(&mut self.undo.journal);
        Some((value, journal))
    }

    #[cold]
    pub fn end_elements(&mut self) {
        self.undo.end_elements();
    }

    /// [`Table::object_mut`], for changes that are not data.
    #[inline]
    pub fn unchanged_object_mut(&mut self, database: DbIndex, slot: Slot) -> Option<&mut Value> {
        self.tables[database].object_mut(slot)
    }

    /// The stream at `slot`, for changing its groups.
    #[inline]
    pub fn groups_mut(&mut self, database: DbIndex, slot: Slot) -> Option<&mut Stream> {
        self.before_change(database, slot, Change::Groups);
        match self.tables[database].object_mut(slot) {
            Some(Value::Stream(stream)) => Some(stream),
            _ => None,
        }
    }

    /// [`Table::remove`]. An entry that moved into the log is not returned.
    #[inline]
    pub fn remove(&mut self, database: DbIndex, slot: Slot) -> Option<Owned<Value>> {
        let keep = self.before_change(database, slot, Change::Remove);
        let old = self.tables[database].remove(slot);
        if let Keep::Entry(hash) = keep {
            self.undo.note_entry(database, hash, old);
            return None;
        }
        Some(old)
    }

    /// Moves the entry at `slot` to another key, which is absent, in any database; deadline and
    /// access bits stay.
    pub fn transfer(
        &mut self,
        database: DbIndex,
        slot: Slot,
        target: DbIndex,
        to: Key<'_>,
    ) -> Slot {
        self.before_change(database, slot, Change::Transfer);
        self.before_insert(target, to, Arrival::Old);
        let old = self.tables[database].remove(slot);
        if self.undo.is_recording() {
            let from = Key { bytes: old.key(), hash: self.hasher.hash(old.key()) };
            self.undo.note_transfer(database, from, target, to);
        }
        self.put_under(target, to, old)
    }

    /// Adds an entry under an absent key.
    fn put_under(&mut self, database: DbIndex, key: Key<'_>, entry: Owned<Value>) -> Slot {
        let (deadline, access) = (entry.deadline(), entry.entry().access());
        let table = &mut self.tables[database];
        if let ValueRef::Bytes { bytes, kind } = entry.value() {
            let value = NewValue::Bytes { bytes, kind };
            return table.insert(key.hash, key.bytes, value, deadline, access);
        }
        let object = entry.into_object().expect("what are no bytes is an object");
        table.insert(key.hash, key.bytes, NewValue::Object(object), deadline, access)
    }

    /// Empties a database. Values that moved into the log are not returned. `fields`: the
    /// database's index of field deadlines; `keys` and `bytes`: its size, about.
    pub fn clear(
        &mut self,
        database: DbIndex,
        fields: FieldDeadlines,
        keys: usize,
        bytes: usize,
    ) -> Option<Drained<Value>> {
        let id = self.new_id();
        let id = std::mem::replace(&mut self.ids[database], id);
        let is_walked = self.snapshot.is_some() && self.tables[database].is_walked();
        // The log may restore the table: a snapshot gets it when the script has ended.
        if self.undo.is_recording() && self.undo.take_room_for_cleared(database, bytes) {
            let table = self.tables[database].take();
            self.undo.note_cleared(database, Cleared { table, id, fields, keys, bytes });
            return None;
        }
        if let Some(snapshot) = self.snapshot.as_mut().filter(|_| is_walked) {
            snapshot.take_over(id, self.tables[database].take(), bytes);
            return None;
        }
        Some(self.tables[database].clear())
    }

    /// Exchanges two databases.
    pub fn swap(&mut self, a: DbIndex, b: DbIndex) {
        if self.undo.is_recording() {
            self.undo.note_swapped(a, b);
        }
        self.tables.swap(a, b);
        self.ids.swap(a, b);
    }

    /// Exchanges a database's table with one that is not served yet. Its identity stays.
    pub fn exchange(&mut self, database: DbIndex, other: &mut Table<Value>) {
        std::mem::swap(&mut self.tables[database], other);
    }

    /// Gives a database's table a new identity.
    pub fn name_anew(&mut self, database: DbIndex) {
        self.ids[database] = self.new_id();
    }

    /// Records a copy of the entry at `slot`, which holds bytes, before a change.
    #[cold]
    fn keep_copy(&mut self, database: DbIndex, slot: Slot) {
        let entry = self.tables[database].entry(slot);
        let key = Key { bytes: entry.key(), hash: self.hasher.hash(entry.key()) };
        let ValueRef::Bytes { bytes, kind } = entry.value() else {
            return self.keep_object(database, slot);
        };
        if self.undo.holds(database, key) || !self.undo.take_room(entry.allocated()) {
            return;
        }
        let value = NewValue::Bytes { bytes, kind };
        let copy = Owned::make(key.bytes, value, entry.deadline(), entry.access());
        self.undo.note_entry(database, key.hash, copy);
    }

    /// The same for an object.
    #[cold]
    fn keep_object(&mut self, database: DbIndex, slot: Slot) {
        let entry = self.tables[database].entry(slot);
        let ValueRef::Object(object) = entry.value() else { return };
        let key = Key { bytes: entry.key(), hash: self.hasher.hash(entry.key()) };
        if !self.undo.holds(database, key) {
            keep_object(&mut self.undo, database, key, entry, object);
        }
    }

    /// The same for an object whose elements change. True: the elements are recorded instead.
    #[cold]
    fn keep_elements(&mut self, database: DbIndex, slot: Slot) -> bool {
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

    /// Records a copy of a stream's groups before they change.
    #[cold]
    fn keep_groups(&mut self, database: DbIndex, slot: Slot) {
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

    // ---- changes that are not undone ------------------------------------------------------------

    /// Removes an expired or evicted entry.
    pub fn remove_for_good(&mut self, database: DbIndex, slot: Slot) -> Owned<Value> {
        self.before_change(database, slot, Change::RemoveByServer);
        self.tables[database].remove(slot)
    }

    /// Removes an entry whose deadline has passed: [`Table::find_due`].
    pub fn pop_due(
        &mut self,
        database: DbIndex,
        now: &Now,
        budget: &mut usize,
        is_kept: impl Fn(&[u8]) -> bool,
    ) -> Option<Owned<Value>> {
        let slot = self.tables[database].find_due(now, budget, is_kept)?;
        Some(self.remove_for_good(database, slot))
    }

    /// [`Table::object_mut`] for removing expired elements.
    pub fn expiring_object_mut(&mut self, database: DbIndex, slot: Slot) -> Option<&mut Value> {
        self.before_change(database, slot, Change::ElementsByServer);
        self.tables[database].object_mut(slot)
    }

    // ---- rollback -------------------------------------------------------------------------------

    /// Restores a key: this entry, or absence. Returns the entry that it replaces, and the restored
    /// entry's slot.
    pub(super) fn put_back(
        &mut self,
        database: DbIndex,
        key: Key<'_>,
        old: Option<Owned<Value>>,
    ) -> (Option<Owned<Value>>, Option<Slot>) {
        let found = self.tables[database].find(key.hash, key.bytes);
        match (found, &old) {
            (Some(slot), Some(_)) => drop(self.before_change(database, slot, Change::PutBack)),
            (Some(slot), None) => drop(self.before_change(database, slot, Change::PutBackAbsent)),
            (None, Some(_)) => self.before_insert(database, key, Arrival::Old),
            (None, None) => {}
        }
        let table = &mut self.tables[database];
        match (found, old) {
            (Some(slot), Some(old)) => (Some(table.exchange(slot, old)), Some(slot)),
            (Some(slot), None) => (Some(table.remove(slot)), None),
            (None, Some(old)) => (None, Some(table.insert_owned(key.hash, old))),
            (None, None) => (None, None),
        }
    }

    /// Restores a database's old table. Returns the table that it replaces.
    pub(super) fn put_back_table(
        &mut self,
        database: DbIndex,
        table: Table<Value>,
        id: TableId,
    ) -> Drained<Value> {
        let since = self.tables[database].clear();
        self.tables[database] = table;
        self.ids[database] = id;
        since
    }
}

/// Whether a value may be stored in this form: inside an entry it must be short, because a snapshot
/// copies it.
fn is_well_placed(value: &NewValue<'_, Value>) -> bool {
    !matches!(value, NewValue::Bytes { bytes, .. } if bytes.len() >= Value::LARGE_STRING)
}

/// Records a copy of an entry that holds an object, if there is room.
fn keep_object(
    undo: &mut Undo,
    database: DbIndex,
    key: Key<'_>,
    entry: Entry<'_, Value>,
    object: &Value,
) {
    if undo.take_room_for_copy(database, key, object.heap_bytes()) {
        let value = NewValue::Object(Box::new(object.clone()));
        let copy = Owned::make(key.bytes, value, entry.deadline(), entry.access());
        undo.note_entry(database, key.hash, copy);
    }
}
