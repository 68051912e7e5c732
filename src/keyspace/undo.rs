//! The log of what a script has changed: what each key was before, so that all of it can be put back.
//!
//! [`Tables`](super::tables::Tables) notes each change here while a script is recorded. The log is a list of steps, and is played
//! back from its end: each step finds things as they were just after its change. Of a key that is in the log whole, further
//! changes are not noted, unless it has moved or its database was emptied or exchanged since.
//!
//! A small value is copied before it is changed. Of a large collection the log keeps what undoes each change of an element
//! ([`Journal`]), so that recording costs what a script changes, not what its keys hold. Only when a script has changed so
//! much of a collection that its notes take more than a copy would, it is copied after all: a script that changes one field
//! for ever is not at its limit soon.
//!
//! Copied before they change are: strings, lists and hashes as long as they count as a listpack, and the groups of a large
//! stream, all of them with their pending entries but without the stream's own.
//!
//! What the log copies and notes is limited (`script-undo-limit`): beyond, nothing more is noted and nothing can be put back.
//! What was taken out or overwritten as a whole is kept for as long as the script runs, without counting: it is no more memory
//! than before. It counts where the script may have made it itself.
//!
//! What is put back counts as changed for those who watch, track, or wait; the count of changes is what it was before. Events
//! that were published and messages that were sent stay so.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::field_deadlines::FieldDeadlines;
use super::tables::TableId;
use super::{Cause, Key, Keyspace};
use crate::clock::Deadline;
use crate::collections::table::{Owned, Table, ValueRef};
use crate::types::Value;
use crate::types::journal::Journal;
use crate::types::stream::{Groups, Stream};

/// Steps and bytes for which memory is kept from one script to the next.
const STEPS_KEPT: usize = 256;
const BYTES_KEPT: usize = 16 * 1024;

/// A value with more bytes than this is not copied for a change of its elements. Also bytes of notes at which a copy is
/// thought of.
const COPIED_MAX: usize = 4096;

/// Part of the log's bytes: a key.
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

/// What was changed, as it was before.
enum Before {
    /// The key was not there.
    Absent(Span),
    Entry(Owned<Value>),
    /// Elements of the key's value: the notes from this number on.
    Elements {
        key: Span,
        first: usize,
    },
    /// The groups of the key's stream.
    Groups(Span, Box<Groups>),
    /// The key's value was the same.
    Deadline(Span, Option<Deadline>),
    /// The key has come from another one.
    Elsewhere {
        database: usize,
        from: Span,
        from_hash: u64,
        key: Span,
    },
    Cleared(Box<Cleared>),
    /// The database was this one.
    Swapped(usize),
}

struct Step {
    database: usize,
    /// Of the key.
    hash: u64,
    before: Before,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Mode {
    #[default]
    Off,
    On,
    /// There was too much to be noted.
    Full,
}

/// What has to be copied as a whole is copied up to so many bytes, and a larger value only if the server is to roll back by
/// itself. Every form of a collection that has no notes fits in, as far as the usual limits go; a copy of this size takes
/// some ten microseconds.
const COPIED_LARGE: usize = 64 * 1024;

/// What the log knows of a key.
#[derive(Clone, Copy, Debug)]
enum Known {
    /// The step that holds it whole.
    Whole(usize),
    /// Notes of its elements.
    Elements {
        bytes: usize,
        /// Bytes of notes at which their number is next compared with the value.
        look_at: usize,
        /// The step that holds its groups, if it is a stream of which they were changed.
        groups: Option<usize>,
    },
}

impl Known {
    fn elements(bytes: usize) -> Known {
        Known::Elements { bytes, look_at: COPIED_MAX, groups: None }
    }
}

/// Keys come with their hash.
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

/// The log of the script that runs.
#[derive(Default)]
pub(super) struct Undo {
    mode: Mode,
    steps: Vec<Step>,
    /// The keys that the steps name.
    bytes: Vec<u8>,
    /// By database and hash. Two keys of one hash take turns: that costs a step.
    known: HashMap<u64, Known, BuildHasherDefault<AsItIs>>,
    pub journal: Journal,
    /// Bytes of copies and notes that may yet be made.
    room: usize,
    /// Bytes that one copy may have.
    copied_max: usize,
    /// Whose elements are noted just now: its place, and the room there was.
    noting: Option<(u64, usize)>,
    /// Keys have moved, or databases were emptied or exchanged: what is taken out now may be what the script itself has made,
    /// and counts.
    has_moved: bool,
    has_swapped: bool,
    /// The databases that were emptied once, as bits.
    cleared: u64,
    /// When recording began.
    dirty: u64,
    expired: u64,
}

pub(super) fn place(database: usize, hash: u64) -> u64 {
    hash ^ (database as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Undo {
    #[inline]
    pub fn is_recording(&self) -> bool {
        self.mode == Mode::On
    }

    /// Whether the log holds what a key was, as a whole.
    pub fn holds(&self, database: usize, key: Key<'_>) -> bool {
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

    /// Whether so many bytes may be copied; they count as copied then. If not, nothing more is noted.
    pub fn has_room(&mut self, bytes: usize) -> bool {
        match self.room.checked_sub(bytes) {
            Some(room) => self.room = room,
            None => self.mode = Mode::Full,
        }
        self.mode == Mode::On
    }

    /// The same for the copy of a value, which may also have as many bytes as the notes of its elements.
    pub fn may_copy(&mut self, database: usize, key: Key<'_>, bytes: usize) -> bool {
        let paid = match self.known.get(&place(database, key.hash)) {
            Some(Known::Elements { bytes, .. }) => *bytes,
            _ => 0,
        };
        self.has_room(if bytes > self.copied_max.max(paid) { usize::MAX } else { bytes })
    }

    fn push_key(&mut self, key: &[u8]) -> Span {
        let span = Span { start: self.bytes.len(), len: key.len() };
        self.bytes.extend_from_slice(key);
        span
    }

    fn push(&mut self, database: usize, hash: u64, before: Before) {
        self.steps.push(Step { database, hash, before });
    }

    fn push_whole(&mut self, database: usize, hash: u64, before: Before) {
        self.known.insert(place(database, hash), Known::Whole(self.steps.len()));
        self.push(database, hash, before);
    }

    /// A key is about to appear.
    #[cold]
    pub fn note_absent(&mut self, database: usize, key: Key<'_>) {
        if !self.holds(database, key) && self.has_room(size_of::<Step>() + key.bytes.len()) {
            let span = self.push_key(key.bytes);
            self.push_whole(database, key.hash, Before::Absent(span));
        }
    }

    /// An entry was taken out, or a copy of it made. It is dropped if there is no room.
    pub fn note_entry(&mut self, database: usize, hash: u64, entry: Owned<Value>) {
        let mut bytes = size_of::<Step>();
        if self.has_moved {
            bytes += entry.entry().allocated();
            if let ValueRef::Object(object) = entry.value() {
                bytes += object.heap_bytes();
            }
        }
        if self.has_room(bytes) {
            self.push_whole(database, hash, Before::Entry(entry));
        }
    }

    /// A key's deadline is about to change.
    pub fn note_deadline(&mut self, database: usize, key: Key<'_>, deadline: Option<Deadline>) {
        if !self.holds(database, key) && self.has_room(size_of::<Step>() + key.bytes.len()) {
            let span = self.push_key(key.bytes);
            self.push(database, key.hash, Before::Deadline(span, deadline));
        }
    }

    /// An entry has left a key for another one.
    pub fn note_transfer(&mut self, database: usize, from: Key<'_>, target: usize, to: Key<'_>) {
        if self.has_room(size_of::<Step>() + from.bytes.len() + to.bytes.len()) {
            self.has_moved = true;
            self.known.remove(&place(database, from.hash));
            self.known.remove(&place(target, to.hash));
            let (from_hash, from) = (from.hash, self.push_key(from.bytes));
            let key = self.push_key(to.bytes);
            self.push(target, to.hash, Before::Elsewhere { database, from, from_hash, key });
        }
    }

    /// Whether a change of a key's elements is better noted than the value copied. The log does not hold the key whole.
    pub fn prefers_notes(&mut self, database: usize, key: Key<'_>, object: &Value) -> bool {
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

    /// Elements of a key's value are about to change: has the journal begin. False if there is no room for it.
    pub fn begin_elements(&mut self, database: usize, key: Key<'_>) -> bool {
        let is_same = self.steps.last().is_some_and(|step| match step.before {
            Before::Elements { key: last, .. } => {
                step.database == database && last.of(&self.bytes) == key.bytes
            }
            _ => false,
        });
        if !is_same {
            if !self.has_room(size_of::<Step>() + key.bytes.len()) {
                return false;
            }
            let (span, first) = (self.push_key(key.bytes), self.journal.len());
            self.push(database, key.hash, Before::Elements { key: span, first });
        }
        self.noting = Some((place(database, key.hash), self.room));
        self.journal.begin(self.room);
        true
    }

    /// The change that [`Self::begin_elements`] announced is done.
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

    /// The groups of a stream are about to change.
    pub fn note_groups(&mut self, database: usize, key: Key<'_>, stream: &Stream) {
        let known = self.known.get(&place(database, key.hash));
        if let Some(&Known::Elements { groups: Some(step), .. }) = known
            && let Before::Groups(held, _) = &self.steps[step].before
            && self.steps[step].database == database
            && held.of(&self.bytes) == key.bytes
        {
            return;
        }
        if self.may_copy(database, key, stream.groups_heap_bytes())
            && self.has_room(size_of::<Step>() + key.bytes.len())
        {
            let step = self.steps.len();
            let span = self.push_key(key.bytes);
            self.push(database, key.hash, Before::Groups(span, Box::new(stream.groups.clone())));
            let known = self.known.entry(place(database, key.hash));
            match known.or_insert(Known::elements(0)) {
                Known::Elements { groups, .. } => *groups = Some(step),
                other => {
                    *other = Known::Elements { bytes: 0, look_at: COPIED_MAX, groups: Some(step) }
                }
            }
        }
    }

    /// Whether the log takes a database of so many bytes that is about to be emptied.
    pub fn may_keep_cleared(&mut self, database: usize, bytes: usize) -> bool {
        let bit = u32::try_from(database).ok().and_then(|database| 1_u64.checked_shl(database));
        let bit = bit.unwrap_or(0);
        // The first time it is what was there before the script.
        let is_first = bit & !self.cleared != 0 && !self.has_swapped;
        self.cleared |= bit;
        self.has_room(size_of::<Step>() + size_of::<Cleared>() + if is_first { 0 } else { bytes })
    }

    /// A database was emptied.
    pub fn note_cleared(&mut self, database: usize, cleared: Cleared) {
        self.has_moved = true;
        self.known.clear();
        self.push(database, 0, Before::Cleared(Box::new(cleared)));
    }

    /// Two databases are about to be exchanged.
    pub fn note_swapped(&mut self, a: usize, b: usize) {
        (self.has_swapped, self.has_moved) = (true, true);
        self.known.clear();
        if self.has_room(size_of::<Step>()) {
            self.push(a, 0, Before::Swapped(b));
        }
    }
}

impl Keyspace {
    /// Begins to record changes. Copies of old values and notes may take `room` bytes; 0: nothing is recorded. `copies_large`:
    /// so may the copy of one value.
    #[inline]
    pub fn begin_undo(&mut self, room: usize, copies_large: bool) {
        let undo = &mut self.tables.undo;
        if room > 0 {
            undo.mode = Mode::On;
            undo.room = room;
            undo.copied_max = if copies_large { room } else { COPIED_LARGE };
            (undo.has_moved, undo.has_swapped, undo.cleared) = (false, false, 0);
            undo.dirty = self.dirty;
            undo.expired = self.dirty_by_expiry;
        } else {
            undo.mode = Mode::Full;
        }
    }

    /// Whether all that was changed since recording began can be put back.
    pub fn can_roll_back(&self) -> bool {
        self.tables.undo.is_recording()
    }

    /// Ends recording and forgets what things were.
    #[inline]
    pub fn end_undo(&mut self) {
        self.tables.undo.mode = Mode::Off;
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
                Before::Cleared(mut cleared) => {
                    let (keys, bytes) = (cleared.keys, cleared.bytes);
                    self.lazyfree.discard_all(cleared.table.clear(), keys, bytes);
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

    /// Ends recording and puts back what was changed since it began.
    pub fn roll_back(&mut self) {
        debug_assert!(self.can_roll_back());
        self.delete_found_expired();
        self.tables.undo.mode = Mode::Off;
        let steps = std::mem::take(&mut self.tables.undo.steps);
        let bytes = std::mem::take(&mut self.tables.undo.bytes);
        let mut journal = std::mem::take(&mut self.tables.undo.journal);
        for step in steps.into_iter().rev() {
            let (database, hash) = (step.database, step.hash);
            match step.before {
                Before::Absent(span) => {
                    self.put_back(database, Key { bytes: span.of(&bytes), hash }, None);
                }
                Before::Entry(entry) => {
                    let name = entry.key().to_vec();
                    self.put_back(database, Key { bytes: &name, hash }, Some(entry));
                }
                Before::Elements { key, first } => {
                    let key = key.of(&bytes);
                    let slot = self.tables[database].find(hash, key);
                    let value = slot.and_then(|slot| self.tables.object_mut(database, slot));
                    journal.play_back(first, value);
                    if let Some(slot) = slot {
                        self.in_database(database, |db| db.note_moved_field_deadlines(slot, key));
                        self.touch(database, key, 0, Cause::Client);
                    }
                }
                Before::Groups(span, groups) => {
                    let key = span.of(&bytes);
                    if let Some(slot) = self.tables[database].find(hash, key)
                        && let Some(stream) = self.tables.groups_mut(database, slot)
                    {
                        stream.groups = *groups;
                        self.touch(database, key, 0, Cause::Client);
                    }
                }
                Before::Deadline(span, deadline) => {
                    let key = span.of(&bytes);
                    if let Some(slot) = self.tables[database].find(hash, key) {
                        self.tables.set_deadline(database, slot, deadline);
                        self.touch(database, key, 0, Cause::Client);
                    }
                }
                Before::Elsewhere { database: source, from, from_hash, key } => {
                    let (key, from) = (key.of(&bytes), from.of(&bytes));
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
                Before::Cleared(cleared) => {
                    self.touch_all(database, database, 0);
                    let Cleared { table, id, fields, .. } = *cleared;
                    let keys = self.tables[database].len();
                    let bytes = self.estimate_bytes(database);
                    let since = self.tables.put_back_table(database, table, id);
                    self.lazyfree.discard_all(since, keys, bytes);
                    self.fields[database] = fields;
                    self.touch_all(database, database, 0);
                    self.tracking.note_all();
                }
                Before::Swapped(other) => self.swap(database, other),
            }
        }
        let undo = &mut self.tables.undo;
        undo.known.clear();
        self.dirty = undo.dirty + (self.dirty_by_expiry - undo.expired);
    }

    /// Has a key be what it was.
    fn put_back(&mut self, database: usize, key: Key<'_>, old: Option<Owned<Value>>) {
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
