//! The log of what a script has changed: what each key was before, so that all of it can be put back.
//!
//! [`Tables`](super::tables::Tables) notes each change here while a script is recorded. The log is a list of steps, and is played
//! back from its end: each step finds things as they were just after its change. Of a key that is in the log whole, further
//! changes are not noted, unless it has moved or its database was emptied or exchanged since.
//!
//! A large collection is not copied when single elements of it change: it notes itself what these were
//! ([`Noting`](crate::collections::notes::Noting)), and the log only says so.
//!
//! What the log copies is limited (`script-undo-limit`): beyond, nothing more is noted and nothing can be put back. What was
//! taken out or overwritten as a whole is kept for as long as the script runs, without counting: it is no more memory than
//! before. It counts where the script may have made it itself.
//!
//! What is put back counts as changed for those who watch, track, or wait; the count of changes is what it was before. Events
//! that were published and messages that were sent stay so.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::field_deadlines::FieldDeadlines;
use super::{Key, Keyspace};
use crate::clock::Deadline;
use crate::collections::table::{Owned, Table, ValueRef};
use crate::types::Value;

/// Steps and bytes for which memory is kept from one script to the next.
const STEPS_KEPT: usize = 256;
const BYTES_KEPT: usize = 16 * 1024;

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
    pub fields: FieldDeadlines,
    pub keys: usize,
    pub bytes: usize,
}

/// What was changed, as it was before.
enum Before {
    /// The key was not there.
    Absent(Span),
    Entry(Owned<Value>),
    /// The value has notes of what its elements were.
    Inside(Span),
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
    /// There was too much to be noted, and values still have notes of their own.
    Ending,
    /// There was too much to be noted.
    Full,
}

/// Values up to so many bytes are copied before they are changed, and larger ones only if the server is to roll back by
/// itself: a copy of this size takes two microseconds.
const COPIED_MAX: usize = 16 * 1024;

/// Keys come with their hash.
#[derive(Default)]
struct AsItIs(u64);

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
    /// The step that holds a key whole, by database and hash. Two keys of one hash take turns: that costs a step.
    whole: HashMap<u64, usize, BuildHasherDefault<AsItIs>>,
    /// Bytes of copies that may yet be made, and of one of them.
    room: usize,
    copied_max: usize,
    /// Some value makes notes.
    has_notes: bool,
    /// Values may have moved from one database to another.
    has_swapped: bool,
    /// Keys have moved, or databases were emptied: what is taken out now may be what the script itself has made, and counts.
    has_moved: bool,
    /// The databases that were emptied once, as bits.
    cleared: u64,
    /// When recording began.
    dirty: u64,
    expired: u64,
}

fn place(database: usize, hash: u64) -> u64 {
    hash ^ (database as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Undo {
    #[inline]
    pub fn is_recording(&self) -> bool {
        matches!(self.mode, Mode::On | Mode::Ending)
    }

    /// Whether notes in values are to end, as nothing can be put back any more.
    pub fn is_ending(&self) -> bool {
        self.mode == Mode::Ending
    }

    /// They have ended.
    pub fn ended(&mut self) {
        self.mode = Mode::Full;
    }

    fn overflow(&mut self) {
        self.mode = if self.has_notes { Mode::Ending } else { Mode::Full };
    }

    /// Whether the log holds what a key was, as a whole.
    pub fn holds(&self, database: usize, key: Key<'_>) -> bool {
        let Some(&step) = self.whole.get(&place(database, key.hash)) else { return false };
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
        if self.mode != Mode::On {
            return false;
        }
        match self.room.checked_sub(bytes) {
            Some(room) => self.room = room,
            None => self.overflow(),
        }
        self.mode == Mode::On
    }

    /// Whether a value of so many bytes may be copied.
    pub fn may_copy(&mut self, bytes: usize) -> bool {
        if bytes > self.copied_max {
            self.overflow();
            return false;
        }
        self.has_room(bytes)
    }

    /// The keys whose values may have notes, each in a database or, if they were exchanged, in any.
    pub fn noting(&self) -> impl Iterator<Item = (Option<usize>, Key<'_>)> {
        self.steps.iter().filter_map(|step| match &step.before {
            Before::Inside(key) | Before::Elsewhere { key, .. } => {
                let database = (!self.has_swapped).then_some(step.database);
                Some((database, Key { bytes: key.of(&self.bytes), hash: step.hash }))
            }
            _ => None,
        })
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
        self.whole.insert(place(database, hash), self.steps.len());
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

    /// A value has begun to note changes of its elements.
    pub fn note_inside(&mut self, database: usize, key: Key<'_>) {
        self.has_notes = true;
        let span = self.push_key(key.bytes);
        self.push(database, key.hash, Before::Inside(span));
        self.has_room(size_of::<Step>() + key.bytes.len());
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
        let is_kept = self.has_room(size_of::<Step>() + from.bytes.len() + to.bytes.len());
        // Where notes are is to be known whatever comes.
        if is_kept || self.has_notes {
            self.has_moved = true;
            self.whole.remove(&place(database, from.hash));
            self.whole.remove(&place(target, to.hash));
            let (from_hash, from) = (from.hash, self.push_key(from.bytes));
            let key = self.push_key(to.bytes);
            self.push(target, to.hash, Before::Elsewhere { database, from, from_hash, key });
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
        self.whole.clear();
        self.push(database, 0, Before::Cleared(Box::new(cleared)));
    }

    /// Two databases are about to be exchanged.
    pub fn note_swapped(&mut self, a: usize, b: usize) {
        self.whole.clear();
        (self.has_swapped, self.has_moved) = (true, true);
        if self.has_room(size_of::<Step>()) {
            self.push(a, 0, Before::Swapped(b));
        }
    }
}

impl Keyspace {
    /// Begins to record changes. Copies of old values may take `room` bytes; 0: nothing is recorded. `copies_large`: so may
    /// the copy of one value.
    #[inline]
    pub fn begin_undo(&mut self, room: usize, copies_large: bool) {
        let undo = &mut self.tables.undo;
        if room > 0 {
            undo.mode = Mode::On;
            undo.room = room;
            undo.copied_max = if copies_large { room } else { COPIED_MAX };
            (undo.has_moved, undo.cleared) = (false, 0);
            undo.dirty = self.dirty;
            undo.expired = self.stats.expired;
        } else {
            undo.mode = Mode::Full;
        }
    }

    /// Whether all that was changed since recording began can be put back.
    pub fn can_roll_back(&self) -> bool {
        self.tables.undo.mode == Mode::On
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
        if self.tables.undo.has_notes {
            self.tables.end_notes();
            self.tables.undo.mode = Mode::Off;
        }
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
        undo.whole.clear();
        undo.whole.shrink_to(STEPS_KEPT);
        (undo.has_notes, undo.has_swapped) = (false, false);
    }

    /// Ends recording and puts back what was changed since it began.
    pub fn roll_back(&mut self) {
        debug_assert!(self.can_roll_back());
        self.tables.undo.mode = Mode::Off;
        let steps = std::mem::take(&mut self.tables.undo.steps);
        let bytes = std::mem::take(&mut self.tables.undo.bytes);
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
                Before::Inside(span) => {
                    let key = span.of(&bytes);
                    if let Some(slot) = self.tables[database].find(hash, key)
                        && let Some(value) = self.tables.object_unrecorded(database, slot)
                    {
                        value.undo();
                        self.in_database(database, |db| db.note_moved_field_deadlines(slot, key));
                        self.note_put_back(database, key);
                    }
                }
                Before::Deadline(span, deadline) => {
                    let key = span.of(&bytes);
                    if let Some(slot) = self.tables[database].find(hash, key) {
                        self.tables.set_deadline(database, slot, deadline);
                        self.note_put_back(database, key);
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
                        self.note_put_back(database, key);
                        self.note_put_back(source, from.bytes);
                    }
                }
                Before::Cleared(cleared) => {
                    self.touch_watched(database, database);
                    let Cleared { table, fields, .. } = *cleared;
                    let keys = self.tables[database].len();
                    let bytes = self.estimate_bytes(database);
                    let since = self.tables.put_back_table(database, table);
                    self.lazyfree.discard_all(since, keys, bytes);
                    self.fields[database] = fields;
                    self.touch_watched(database, database);
                    self.waiting.note_all(database);
                    self.tracking.note_all();
                }
                Before::Swapped(other) => self.swap(database, other),
            }
        }
        let undo = &mut self.tables.undo;
        undo.whole.clear();
        (undo.has_notes, undo.has_swapped) = (false, false);
        self.dirty = undo.dirty + (self.stats.expired - undo.expired);
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
        self.note_put_back(database, key.bytes);
    }

    /// Tells those who watch, track or wait that a key is what it was.
    fn note_put_back(&mut self, database: usize, key: &[u8]) {
        self.waiting.note_change(database, key);
        self.watch.note_change(database, key);
        self.tracking.note_change(key, true);
    }
}
