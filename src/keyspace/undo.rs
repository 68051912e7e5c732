//! The undo log of a script: the previous state of each changed key, for a rollback.
//!
//! [`Tables`](super::tables::Tables) records each change here while a script runs. The log is a
//! list of steps, undone from its end: each step finds the state that its change left. Once a whole
//! value is logged, further changes of its key are not recorded, unless the key has moved or its
//! database was emptied or exchanged since.
//!
//! A small value is copied before its change. For a large collection the log has an inverse of each
//! element's change ([`Journal`]), so that the cost depends on the script's changes and not on the
//! size of its keys. If the inverses would take more memory than a copy, the collection is copied
//! after all. A script that changes one field again and again therefore does not reach the limit.
//!
//! Strings, lists, and hashes encoded as listpack are copied before a change. The groups of a large
//! stream are cloned; they count with their pending entries, but without the stream's own entries.
//!
//! `script-undo-limit` bounds the copies and records in the log. Beyond it nothing more is
//! recorded, and a rollback is impossible. Values that were removed or replaced as a whole move
//! into the log without counting, because they take no more memory than before. They count if the
//! script may have made them itself.
//!
//! Restored keys count as changed for clients that watch, track or wait; the count of changes is
//! reset. Published events and messages are not undone.
//!
//! Memory beside the tables that a script changes has an undo log of its own: the index of locks
//! ([`Locks`](super::locks::Locks)), the sessions of permits
//! ([`PermitSessions`](super::permits::PermitSessions)), and kept places in queues, of which the
//! gate knows.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::db_index::DbIndex;
use super::field_deadlines::FieldDeadlines;
use super::table_id::TableId;
use super::{Cause, Key, Keyspace};
use crate::clock::Deadline;
use crate::collections::table::{Owned, Table, ValueRef};
use crate::types::Value;
use crate::types::journal::Journal;
use crate::types::stream::Stream;

/// Capacity kept from one script to the next: steps and bytes.
const STEPS_KEPT: usize = 256;
const BYTES_KEPT: usize = 16 * 1024;

/// A larger value is not copied for a change of its elements. Also the size at which a journal may
/// be replaced by a copy. Unit: bytes.
const COPIED_MAX: usize = 4096;

/// A range of the log's bytes: a key.
#[derive(Clone, Copy, Debug)]
struct Span {
    start: usize,
    len: usize,
}

impl Span {
    fn of(self, bytes: &[u8]) -> &[u8] {
        &bytes[self.start..self.start + self.len]
    }
}

/// A database that was emptied.
pub(super) struct Cleared {
    pub table: Table<Value>,
    pub id: TableId,
    pub fields: FieldDeadlines,
    pub keys: usize,
    pub bytes: usize,
}

/// The state before a change.
enum Before {
    /// The key was absent.
    Absent(Span),
    Entry(Owned<Value>),
    /// Elements of the key's value: journal entries from this number on.
    Elements {
        key: Span,
        first: usize,
    },
    /// The key's stream without its entries: its groups and producers.
    Groups(Span, Box<Stream>),
    /// The key's deadline; its value did not change.
    Deadline(Span, Option<Deadline>),
    /// The key's access bits; only its blessing changed.
    Blessing(Span, u32),
    /// The key was moved here from another one.
    Elsewhere {
        database: DbIndex,
        from: Span,
        from_hash: u64,
        key: Span,
    },
    Cleared(Box<Cleared>),
    /// The database was exchanged with this one.
    Swapped(DbIndex),
}

struct Step {
    database: DbIndex,
    /// The key's hash.
    hash: u64,
    before: Before,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Mode {
    #[default]
    Off,
    On,
    /// The limit was reached: nothing more is recorded.
    Full,
}

/// The limit of a copy for changes that have no journal, unless the server itself may roll back.
/// Under usual limits, collections without a journal are smaller; a copy of this size takes some
/// ten microseconds. Unit: bytes.
const COPIED_LARGE: usize = 64 * 1024;

/// The state of a key in the log.
#[derive(Clone, Copy, Debug)]
enum Known {
    /// The log has the whole value, in this step.
    Whole(usize),
    /// The log has journal entries of its elements.
    Elements {
        bytes: usize,
        /// The size of the journal at which it is next compared with the value's. Unit: bytes.
        look_at: usize,
        /// The step with its groups, if it is a stream whose groups were changed.
        groups: Option<usize>,
    },
}

impl Known {
    fn elements(bytes: usize) -> Known {
        Known::Elements { bytes, look_at: COPIED_MAX, groups: None }
    }
}

/// A hasher for keys that are hashes already: it returns them unchanged.
#[derive(Default)]
pub(super) struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

/// The log of the running script.
#[derive(Default)]
pub(super) struct Undo {
    mode: Mode,
    steps: Vec<Step>,
    /// The keys named by the steps.
    bytes: Vec<u8>,
    /// The known keys by database and hash. Keys with equal hashes replace each other here, which
    /// costs only an additional step.
    known: HashMap<u64, Known, BuildHasherDefault<AsItIs>>,
    pub journal: Journal,
    /// Bytes of copies and journal that may still be added.
    room: usize,
    /// Limit of one copy in bytes.
    copied_max: usize,
    /// The key whose elements are being recorded, and the room before.
    noting: Option<(u64, usize)>,
    /// Keys have moved, or databases were emptied or exchanged. A value that is removed from now on
    /// may have been made by the script itself, so it counts.
    has_moved: bool,
    has_swapped: bool,
    /// A bit set of the databases that were emptied.
    cleared: u64,
    /// The count of changes when recording began.
    dirty: u64,
    expired: u64,
}

pub(super) fn place(database: DbIndex, hash: u64) -> u64 {
    hash ^ (database.get() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Undo {
    #[inline]
    pub fn is_recording(&self) -> bool {
        self.mode == Mode::On
    }

    /// Whether the log has a key's whole value.
    pub fn holds(&self, database: DbIndex, key: Key<'_>) -> bool {
        let Some(&Known::Whole(step)) = self.known.get(&place(database, key.hash)) else {
            return false;
        };
        let step = &self.steps[step];
        let held = match &step.before {
            Before::Absent(span) => span.of(&self.bytes),
            Before::Entry(entry) => entry.key(),
            _ => return false,
        };
        step.database == database && held == key.bytes
    }

    /// Takes bytes of the room. False: the room is too small, and nothing more is recorded.
    pub fn take_room(&mut self, bytes: usize) -> bool {
        match self.room.checked_sub(bytes) {
            Some(room) => self.room = room,
            None => self.mode = Mode::Full,
        }
        self.mode == Mode::On
    }

    /// Takes room for a copy of a value, which may have `copied_max` bytes, or as many bytes as its
    /// journal.
    pub fn take_room_for_copy(&mut self, database: DbIndex, key: Key<'_>, bytes: usize) -> bool {
        let paid = match self.known.get(&place(database, key.hash)) {
            Some(Known::Elements { bytes, .. }) => *bytes,
            _ => 0,
        };
        self.take_room(if bytes > self.copied_max.max(paid) { usize::MAX } else { bytes })
    }

    fn push_key(&mut self, key: &[u8]) -> Span {
        let span = Span { start: self.bytes.len(), len: key.len() };
        self.bytes.extend_from_slice(key);
        span
    }

    fn push(&mut self, database: DbIndex, hash: u64, before: Before) {
        self.steps.push(Step { database, hash, before });
    }

    fn push_whole(&mut self, database: DbIndex, hash: u64, before: Before) {
        self.known.insert(place(database, hash), Known::Whole(self.steps.len()));
        self.push(database, hash, before);
    }

    /// Records that a key is absent, before it is added.
    #[cold]
    pub fn note_absent(&mut self, database: DbIndex, key: Key<'_>) {
        if !self.holds(database, key) && self.take_room(size_of::<Step>() + key.bytes.len()) {
            let span = self.push_key(key.bytes);
            self.push_whole(database, key.hash, Before::Absent(span));
        }
    }

    /// Records a removed entry, or a copy of one. Drops it if there is no room.
    pub fn note_entry(&mut self, database: DbIndex, hash: u64, entry: Owned<Value>) {
        let mut bytes = size_of::<Step>();
        if self.has_moved {
            bytes += entry.entry().allocated();
            if let ValueRef::Object(object) = entry.value() {
                bytes += object.heap_bytes();
            }
        }
        if self.take_room(bytes) {
            self.push_whole(database, hash, Before::Entry(entry));
        }
    }

    /// Records a key's deadline before a change.
    pub fn note_deadline(&mut self, database: DbIndex, key: Key<'_>, deadline: Option<Deadline>) {
        if !self.holds(database, key) && self.take_room(size_of::<Step>() + key.bytes.len()) {
            let span = self.push_key(key.bytes);
            self.push(database, key.hash, Before::Deadline(span, deadline));
        }
    }

    /// Records a key's access bits before its blessing changes.
    pub fn note_blessing(&mut self, database: DbIndex, key: Key<'_>, access: u32) {
        if !self.holds(database, key) && self.take_room(size_of::<Step>() + key.bytes.len()) {
            let span = self.push_key(key.bytes);
            self.push(database, key.hash, Before::Blessing(span, access));
        }
    }

    /// Records that an entry was moved to another key.
    pub fn note_transfer(
        &mut self,
        database: DbIndex,
        from: Key<'_>,
        target: DbIndex,
        to: Key<'_>,
    ) {
        if self.take_room(size_of::<Step>() + from.bytes.len() + to.bytes.len()) {
            self.has_moved = true;
            self.known.remove(&place(database, from.hash));
            self.known.remove(&place(target, to.hash));
            let (from_hash, from) = (from.hash, self.push_key(from.bytes));
            let key = self.push_key(to.bytes);
            self.push(target, to.hash, Before::Elsewhere { database, from, from_hash, key });
        }
    }

    /// Whether recording a change of a key's elements is better than copying the value. The log
    /// must not have the whole value.
    pub fn prefers_notes(&mut self, database: DbIndex, key: Key<'_>, object: &Value) -> bool {
        if !object.can_be_noted(COPIED_MAX) {
            return false;
        }
        match self.known.get_mut(&place(database, key.hash)) {
            Some(Known::Elements { bytes, look_at, .. }) if *bytes >= *look_at => {
                *look_at = 2 * *bytes;
                *bytes < object.heap_bytes()
            }
            _ => true,
        }
    }

    /// Starts the journal, before elements of a key's value change. False if there is no room.
    pub fn begin_elements(&mut self, database: DbIndex, key: Key<'_>) -> bool {
        let is_same = self.steps.last().is_some_and(|step| match step.before {
            Before::Elements { key: last, .. } => {
                step.database == database && last.of(&self.bytes) == key.bytes
            }
            _ => false,
        });
        if !is_same {
            if !self.take_room(size_of::<Step>() + key.bytes.len()) {
                return false;
            }
            let (span, first) = (self.push_key(key.bytes), self.journal.len());
            self.push(database, key.hash, Before::Elements { key: span, first });
        }
        self.noting = Some((place(database, key.hash), self.room));
        self.journal.begin(self.room);
        true
    }

    /// Ends the change that [`Self::begin_elements`] started.
    pub fn end_elements(&mut self) {
        let left = self.journal.end();
        let (place, room) = self.noting.take().expect("noting has begun");
        let Some(left) = left else {
            self.mode = Mode::Full;
            return;
        };
        self.room = left;
        let noted = room - left;
        match self.known.get_mut(&place) {
            Some(Known::Elements { bytes, .. }) => *bytes += noted,
            _ => drop(self.known.insert(place, Known::elements(noted))),
        }
    }

    /// Records a stream's groups before a change.
    pub fn note_groups(&mut self, database: DbIndex, key: Key<'_>, stream: &Stream) {
        let known = self.known.get(&place(database, key.hash));
        if let Some(&Known::Elements { groups: Some(step), .. }) = known
            && let Before::Groups(held, _) = &self.steps[step].before
            && self.steps[step].database == database
            && held.of(&self.bytes) == key.bytes
        {
            return;
        }
        if self.take_room_for_copy(database, key, stream.heap_bytes_beside_entries())
            && self.take_room(size_of::<Step>() + key.bytes.len())
        {
            let step = self.steps.len();
            let span = self.push_key(key.bytes);
            let copy = Box::new(stream.beside_entries());
            self.push(database, key.hash, Before::Groups(span, copy));
            let known = self.known.entry(place(database, key.hash));
            match known.or_insert(Known::elements(0)) {
                Known::Elements { groups, .. } => *groups = Some(step),
                other => {
                    *other = Known::Elements { bytes: 0, look_at: COPIED_MAX, groups: Some(step) }
                }
            }
        }
    }

    /// Takes room for a database of `bytes` bytes that is about to be emptied. False: the room is
    /// too small.
    pub fn take_room_for_cleared(&mut self, database: DbIndex, bytes: usize) -> bool {
        let bit = 1_u64.checked_shl(database.get() as u32).unwrap_or(0);
        // The first time, it is the data from before the script.
        let is_first = bit & !self.cleared != 0 && !self.has_swapped;
        self.cleared |= bit;
        self.take_room(size_of::<Step>() + size_of::<Cleared>() + if is_first { 0 } else { bytes })
    }

    /// Records an emptied database.
    pub fn note_cleared(&mut self, database: DbIndex, cleared: Cleared) {
        self.has_moved = true;
        self.known.clear();
        self.push(database, 0, Before::Cleared(Box::new(cleared)));
    }

    /// The tables of emptied databases.
    pub fn cleared_tables(&mut self) -> impl Iterator<Item = &mut Table<Value>> {
        self.steps.iter_mut().filter_map(|step| match &mut step.before {
            Before::Cleared(cleared) => Some(&mut cleared.table),
            _ => None,
        })
    }

    /// Records an exchange of two databases, before it.
    pub fn note_swapped(&mut self, a: DbIndex, b: DbIndex) {
        (self.has_swapped, self.has_moved) = (true, true);
        self.known.clear();
        if self.take_room(size_of::<Step>()) {
            self.push(a, 0, Before::Swapped(b));
        }
    }
}

impl Keyspace {
    /// Starts recording. Copies and journals may take `room` bytes; 0: nothing is recorded.
    /// `copies_large`: a single copy may take all of the room.
    #[inline]
    pub fn begin_undo(&mut self, room: usize, copies_large: bool) {
        let undo = &mut self.tables.undo;
        if room > 0 {
            undo.mode = Mode::On;
            undo.room = room;
            undo.copied_max = if copies_large { room } else { COPIED_LARGE };
            (undo.has_moved, undo.has_swapped, undo.cleared) = (false, false, 0);
            undo.dirty = self.changes.all;
            undo.expired = self.changes.by_expiry;
            self.locks.begin_undo();
            self.semaphores.sessions.begin_undo();
        } else {
            undo.mode = Mode::Full;
        }
    }

    /// Whether all changes since recording began can be undone.
    pub fn can_roll_back(&self) -> bool {
        self.tables.undo.is_recording()
    }

    /// Ends recording and drops the log.
    #[inline]
    pub fn end_undo(&mut self) {
        self.tables.undo.mode = Mode::Off;
        self.semaphores.sessions.end_undo();
        for gone in self.locks.end_undo() {
            self.lazyfree.discard_index(gone, 0);
        }
        if !self.tables.undo.steps.is_empty() {
            self.forget_steps();
        }
    }

    #[cold]
    fn forget_steps(&mut self) {
        let mut steps = std::mem::take(&mut self.tables.undo.steps);
        for step in steps.drain(..) {
            match step.before {
                Before::Entry(entry) => self.lazyfree.discard(entry),
                Before::Cleared(cleared) => {
                    let Cleared { mut table, id, keys, bytes, .. } = *cleared;
                    match &mut self.tables.snapshot {
                        Some(snapshot) if table.is_walked() => {
                            snapshot.take_over(id, table, bytes);
                        }
                        _ => self.lazyfree.discard_all(table.clear(), keys, bytes),
                    }
                }
                _ => {}
            }
        }
        steps.shrink_to(STEPS_KEPT);
        let undo = &mut self.tables.undo;
        undo.steps = steps;
        undo.bytes.clear();
        undo.bytes.shrink_to(BYTES_KEPT);
        undo.known.clear();
        undo.known.shrink_to(STEPS_KEPT);
        undo.journal.forget(|value| self.lazyfree.discard_value(value));
    }

    /// Ends recording and undoes all changes since it began.
    pub fn roll_back(&mut self) {
        debug_assert!(self.can_roll_back());
        self.delete_found_expired();
        self.tables.undo.mode = Mode::Off;
        let steps = std::mem::take(&mut self.tables.undo.steps);
        let bytes = std::mem::take(&mut self.tables.undo.bytes);
        let mut journal = std::mem::take(&mut self.tables.undo.journal);
        for step in steps.into_iter().rev() {
            self.undo_step(step, &bytes, &mut journal);
        }
        let undo = &mut self.tables.undo;
        undo.known.clear();
        self.changes.all = undo.dirty + (self.changes.by_expiry - undo.expired);
        self.locks.roll_back();
        self.semaphores.sessions.roll_back();
    }

    /// Undoes one step. `bytes`: the keys named by the steps.
    fn undo_step(&mut self, step: Step, bytes: &[u8], journal: &mut Journal) {
        let (database, hash) = (step.database, step.hash);
        match step.before {
            Before::Absent(span) => {
                self.put_back(database, Key { bytes: span.of(bytes), hash }, None);
            }
            Before::Entry(entry) => {
                let name = entry.key().to_vec();
                self.put_back(database, Key { bytes: &name, hash }, Some(entry));
            }
            Before::Elements { key, first } => {
                let key = key.of(bytes);
                let slot = self.tables[database].find(hash, key);
                let value = slot.and_then(|slot| self.tables.object_mut(database, slot));
                journal.play_back(first, value);
                if let Some(slot) = slot {
                    self.in_database(database, |db| db.note_moved_field_deadlines(slot, key));
                    self.touch(database, key, 0, Cause::Client);
                }
            }
            Before::Groups(span, copy) => {
                let key = span.of(bytes);
                if let Some(slot) = self.tables[database].find(hash, key)
                    && let Some(stream) = self.tables.groups_mut(database, slot)
                {
                    stream.put_back_beside_entries(*copy);
                    self.touch(database, key, 0, Cause::Client);
                }
            }
            Before::Deadline(span, deadline) => {
                let key = span.of(bytes);
                if let Some(slot) = self.tables[database].find(hash, key) {
                    self.tables.set_deadline(database, slot, deadline);
                    self.touch(database, key, 0, Cause::Client);
                }
            }
            Before::Blessing(span, access) => {
                let key = span.of(bytes);
                if let Some(slot) = self.tables[database].find(hash, key) {
                    self.tables.set_blessing(database, slot, access);
                    self.touch(database, key, 0, Cause::Client);
                }
            }
            Before::Elsewhere { database: source, from, from_hash, key } => {
                let (key, from) = (key.of(bytes), from.of(bytes));
                if let Some(slot) = self.tables[database].find(hash, key) {
                    let from = Key { bytes: from, hash: from_hash };
                    let slot = self.tables.transfer(database, slot, source, from);
                    self.in_database(source, |db| {
                        db.note_moved_field_deadlines(slot, from.bytes);
                    });
                    self.touch(database, key, 0, Cause::Client);
                    self.touch(source, from.bytes, 0, Cause::Client);
                }
            }
            Before::Cleared(cleared) => self.put_back_database(database, *cleared),
            Before::Swapped(other) => self.swap(database, other),
        }
    }

    /// Restores a database that was emptied.
    fn put_back_database(&mut self, database: DbIndex, cleared: Cleared) {
        self.touch_all(database, database, 0);
        let Cleared { table, id, fields, .. } = cleared;
        let keys = self.tables[database].len();
        let bytes = self.estimate_bytes(database);
        let since = self.tables.put_back_table(database, table, id);
        self.lazyfree.discard_all(since, keys, bytes);
        self.fields[database] = fields;
        self.touch_all(database, database, 0);
        self.tracking.note_all();
    }

    /// Restores a key.
    fn put_back(&mut self, database: DbIndex, key: Key<'_>, old: Option<Owned<Value>>) {
        let (since, slot) = self.tables.put_back(database, key, old);
        if let Some(since) = since {
            self.lazyfree.discard(since);
        }
        if let Some(slot) = slot {
            self.in_database(database, |db| db.note_moved_field_deadlines(slot, key.bytes));
        }
        self.touch(database, key.bytes, 0, Cause::Client);
    }
}
