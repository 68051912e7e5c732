//! The keyspace: databases, and the one way to a value.
//!
//! Every look-up goes through [`Keyspace`], so lazy expiry, hit and miss counts, access bits, type checks, keyspace events
//! and the change count cannot be skipped. Handlers hold keys as [`Key`] (bytes and hash); what they borrow from here
//! ends before the next change. One database is selected at a time: the gate selects the client's before each command.
//!
//! What this module refuses to know: clients, replies, the network.

pub mod beside;
pub mod collection;
pub mod deletions;
pub mod due;
pub mod evict;
pub mod expire;
pub mod field_deadlines;
pub mod lazyfree;
pub mod notify;
pub mod snapshot;
mod tables;
pub mod tracking;
pub mod transfer;
mod undo;
pub mod waiting;
pub mod watch;

#[cfg(test)]
mod tests;

use std::ops::Range;

pub use crate::clock::Expiry;
use crate::clock::{Deadline, Now};
use crate::collections::hash::KeyHasher;
use crate::collections::table::{Entry, NewValue, Slot, Table, ValueRef};
use crate::config::KeyspaceEvents;
use crate::error::CommandError;
use crate::resp::number::parse_i64;
use crate::types::{Value, kind};
use deletions::Deletions;
pub use evict::Accessed;
use evict::Eviction;
use expire::FoundExpired;
use field_deadlines::FieldDeadlines;
use lazyfree::LazyFree;
use notify::Events;
pub use tables::TableId;
use tables::Tables;
use tracking::Tracking;
use waiting::Waiting;
use watch::Watch;

/// A key's bytes with their hash, computed once per request.
#[derive(Clone, Copy, Debug)]
pub struct Key<'a> {
    pub bytes: &'a [u8],
    pub hash: u64,
}

/// How access bits are kept: `maxmemory-policy`, `lfu-log-factor`, `lfu-decay-time`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessPolicy {
    pub lfu: bool,
    pub lfu_log_factor: u32,
    /// Minutes after which a counter loses one.
    pub lfu_decay_minutes: u32,
}

/// Counts since the last `CONFIG RESETSTAT`.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeyspaceStats {
    pub hits: u64,
    pub misses: u64,
    pub expired: u64,
    /// Fields of hashes.
    pub expired_fields: u64,
    pub evicted: u64,
}

/// A string at most this long lies inside its entry even after it was edited; a longer one moves out at its first growth, so
/// that APPEND does not copy it each time.
const INLINE_EDIT_MAX: usize = 1024;

/// How far two readings of the clocks may differ without the wall clock having moved; also how late a deadline on a slewed
/// wall clock may be noticed.
const WALL_JITTER_MS: u64 = 2;

/// Random keys tried for one that is not expired, where expired ones stay.
const RANDOM_TRIES: usize = 100;

/// Keys looked at to estimate how many bytes a database takes.
const BYTES_SAMPLES: usize = 64;

/// Who causes a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// By a command.
    Client,
    /// By itself: the key has expired or is evicted.
    Server,
}

/// All databases of the server.
pub struct Keyspace {
    tables: Tables,
    /// Of each database.
    fields: Vec<FieldDeadlines>,
    selected: usize,
    hasher: KeyHasher,
    now: Now,
    /// The wall clock's lead that the tables' hints and all told deadlines reckon with.
    wall_offset_ms: i64,
    pub access: AccessPolicy,
    /// Reads leave the access bits alone: the client said CLIENT NO-TOUCH.
    pub no_touch: bool,
    /// Reads hide expired keys and leave them: while clients are paused the data stands still, and on a replica it is its
    /// primary that deletes. Only to be set where nothing is written.
    pub keeps_expired: bool,
    /// This server is a replica: nothing goes because of its age before the primary says so. Set by the gate.
    pub follows: bool,
    pub stats: KeyspaceStats,
    pub events: Events,
    /// Changes since the start; written by [`Keyspace::touch`] and its kin alone.
    dirty: u64,
    /// Those of them that no command has made: keys and fields that have expired.
    dirty_by_expiry: u64,
    /// DEBUG SET-ACTIVE-EXPIRE.
    pub active_expire: bool,
    found_expired: FoundExpired,
    pub deletions: Deletions,
    pub lazyfree: LazyFree,
    pub eviction: Eviction,
    pub waiting: Waiting,
    pub watch: Watch,
    pub tracking: Tracking,
    /// Where a packed collection is taken apart to be changed.
    scratch: Vec<u8>,
}

impl Keyspace {
    /// `databases` empty databases.
    pub fn new(databases: usize, hasher: KeyHasher, now: Now) -> Self {
        Keyspace {
            tables: Tables::new(databases, hasher, now.wall_offset_ms()),
            fields: (0..databases).map(|_| FieldDeadlines::default()).collect(),
            selected: 0,
            hasher,
            now,
            wall_offset_ms: now.wall_offset_ms(),
            access: AccessPolicy { lfu: false, lfu_log_factor: 10, lfu_decay_minutes: 1 },
            no_touch: false,
            keeps_expired: false,
            follows: false,
            stats: KeyspaceStats::default(),
            events: Events::default(),
            dirty: 0,
            dirty_by_expiry: 0,
            active_expire: true,
            found_expired: FoundExpired::default(),
            deletions: Deletions::default(),
            lazyfree: LazyFree::start(),
            eviction: Eviction::default(),
            waiting: Waiting::default(),
            watch: Watch::default(),
            tracking: Tracking::default(),
            scratch: Vec::new(),
        }
    }

    #[inline]
    pub fn hash(&self, key: &[u8]) -> u64 {
        self.hasher.hash(key)
    }

    /// Bytes and hash of a key that came from elsewhere than the request.
    pub fn key<'k>(&self, bytes: &'k [u8]) -> Key<'k> {
        Key { bytes, hash: self.hasher.hash(bytes) }
    }

    /// What hashes the fields and members of large collections.
    pub fn hasher(&self) -> KeyHasher {
        self.hasher
    }

    pub fn now(&self) -> Now {
        self.now
    }

    /// A new sample of the clocks. A wall clock that moved against the boot-time clock by more than the jitter of reading
    /// both moves the tables' hints, so that no deadline on it is noticed late, and the Unix times of deadlines that count on the
    /// boot-time clock.
    #[inline]
    pub fn set_now(&mut self, now: Now) {
        self.now = Now { is_loading: self.now.is_loading, ..now };
        let offset = now.wall_offset_ms();
        if offset.abs_diff(self.wall_offset_ms) > WALL_JITTER_MS {
            self.wall_offset_ms = offset;
            self.tables.set_wall_offset(offset);
        }
    }

    /// A file is about to be loaded: until [`Self::end_loading`] nothing expires, whatever its deadline. What the file's writer
    /// saw alive is to be there for the commands that follow in it, and its deadline with it; what expired for the writer, the
    /// file deletes.
    pub fn begin_loading(&mut self) {
        self.delete_found_expired();
        self.now.is_loading = true;
    }

    /// The file is loaded: what is past its deadline goes, as always.
    pub fn end_loading(&mut self) {
        self.now.is_loading = false;
    }

    /// Lets `change` run without counting what it changes: what is in memory then is what is in a file.
    pub fn uncounted<R>(&mut self, change: impl FnOnce(&mut Self) -> R) -> R {
        self.delete_found_expired();
        let before = self.dirty;
        let result = change(self);
        self.dirty = before;
        result
    }

    /// How far the wall clock is ahead of the boot-time clock, for telling deadlines ([`Deadline::unix`]): the same until the
    /// wall clock is moved.
    pub fn wall_offset_ms(&self) -> i64 {
        self.wall_offset_ms
    }

    pub fn databases(&self) -> usize {
        self.tables.len()
    }

    #[inline]
    pub fn selected(&self) -> usize {
        self.selected
    }

    /// Selects a database for what follows. `index` has been checked against [`Self::databases`].
    #[inline]
    pub fn select(&mut self, index: usize) {
        debug_assert!(index < self.tables.len());
        self.selected = index;
    }

    /// Runs `f` with another database selected.
    pub fn in_database<R>(&mut self, index: usize, f: impl FnOnce(&mut Self) -> R) -> R {
        let before = std::mem::replace(&mut self.selected, index);
        let result = f(self);
        self.selected = before;
        result
    }

    /// The selected database's table, for walks (SCAN, KEYS, statistics).
    #[inline]
    pub fn table(&self) -> &Table<Value> {
        &self.tables[self.selected]
    }

    /// The identity of a database's table.
    pub fn table_id(&self, index: usize) -> TableId {
        self.tables.id_of(index)
    }

    /// The table of any database.
    pub fn table_of(&self, index: usize) -> &Table<Value> {
        &self.tables[index]
    }

    // ---- look-up -------------------------------------------------------------------------------------------------
    //
    // A look-up changes no table: slots that a command holds stay valid while it looks up other keys. A key that has
    // expired counts as absent at once, and is deleted when the command is done ([`Keyspace::delete_found_expired`]).

    /// Finds a key to change it or to look at its frame (TYPE, TTL); nothing is counted. One that has expired is not
    /// found; it is announced as expired, unless [`Keyspace::keeps_expired`].
    #[inline]
    pub fn find(&mut self, key: Key<'_>) -> Option<Slot> {
        let slot = self.table().find(key.hash, key.bytes)?;
        if let Some(deadline) = self.table().entry(slot).deadline()
            && self.now.is_past(deadline)
        {
            self.note_expired(key);
            return None;
        }
        Some(slot)
    }

    /// Finds a key to change its value: marks the access.
    #[inline]
    pub fn find_for_write(&mut self, key: Key<'_>) -> Option<Slot> {
        let slot = self.find(key)?;
        self.mark_access(slot);
        Some(slot)
    }

    /// Finds a key to read its value: counts the hit or miss and marks the access.
    #[inline]
    pub fn find_for_read(&mut self, key: Key<'_>) -> Option<Slot> {
        match self.find(key) {
            Some(slot) => {
                self.stats.hits += 1;
                self.mark_access(slot);
                Some(slot)
            }
            None => {
                self.stats.misses += 1;
                self.notify(KeyspaceEvents::KEY_MISS, "keymiss", key.bytes);
                None
            }
        }
    }

    /// Finds a key to look at its frame (EXISTS, TYPE, TTL): counts the hit or miss, but the access leaves no mark.
    #[inline]
    pub fn find_untouched(&mut self, key: Key<'_>) -> Option<Slot> {
        let found = self.find(key);
        if found.is_some() {
            self.stats.hits += 1;
        } else {
            self.stats.misses += 1;
            self.notify(KeyspaceEvents::KEY_MISS, "keymiss", key.bytes);
        }
        found
    }

    #[inline]
    pub fn entry(&self, slot: Slot) -> Entry<'_, Value> {
        self.table().entry(slot)
    }

    /// The bytes of the string at `slot`, or WRONGTYPE.
    #[inline]
    pub fn string_at(&self, slot: Slot) -> Result<&[u8], CommandError> {
        match self.table().entry(slot).value() {
            ValueRef::Bytes {
                bytes,
                kind: kind::STRING | kind::EDITED_STRING | kind::UNENCODED_STRING,
            } => Ok(bytes),
            ValueRef::Object(Value::String(bytes)) => Ok(bytes),
            _ => Err(CommandError::WrongType),
        }
    }

    /// The string a key holds, read; None if there is no such key.
    #[inline]
    pub fn string(&mut self, key: Key<'_>) -> Result<Option<&[u8]>, CommandError> {
        match self.find_for_read(key) {
            Some(slot) => self.string_at(slot).map(Some),
            None => Ok(None),
        }
    }

    /// The slot of a string to be changed; None if there is no such key; WRONGTYPE if it holds something else.
    pub fn string_slot(&mut self, key: Key<'_>) -> Result<Option<Slot>, CommandError> {
        match self.find_for_write(key) {
            Some(slot) => self.string_at(slot).map(|_| Some(slot)),
            None => Ok(None),
        }
    }

    // ---- strings -------------------------------------------------------------------------------------------------

    /// Sets a key to a string, whatever it held. Announces nothing: the handler says what changed.
    #[inline]
    pub fn set_string(&mut self, key: Key<'_>, bytes: &[u8], expiry: Expiry) {
        let found = self.find(key);
        self.set_string_at(found, key, bytes, expiry);
    }

    /// The same for a key just looked up: `found` is its slot, None if it is absent.
    #[inline]
    pub fn set_string_at(
        &mut self,
        found: Option<Slot>,
        key: Key<'_>,
        bytes: &[u8],
        expiry: Expiry,
    ) {
        self.set_value_at(found, key, NewValue::Bytes { bytes, kind: kind::STRING }, expiry);
    }

    /// Sets a key just looked up to a string that was computed: its encoding is `raw`, as if it had been edited.
    pub fn set_computed_string_at(
        &mut self,
        found: Option<Slot>,
        key: Key<'_>,
        bytes: Vec<u8>,
        expiry: Expiry,
    ) {
        if bytes.len() <= INLINE_EDIT_MAX {
            self.set_value_at(
                found,
                key,
                NewValue::Bytes { bytes: &bytes, kind: kind::EDITED_STRING },
                expiry,
            );
        } else {
            let value = NewValue::Object(Box::new(Value::String(bytes)));
            self.set_value_at(found, key, value, expiry);
        }
    }

    #[inline]
    fn set_value_at(
        &mut self,
        found: Option<Slot>,
        key: Key<'_>,
        value: NewValue<'_, Value>,
        expiry: Expiry,
    ) {
        match found {
            Some(slot) => {
                let deadline = expiry.replacing(|| self.table().entry(slot).deadline());
                if let Some(object) = self.tables.replace(self.selected, slot, value, deadline) {
                    self.lazyfree.discard_value(object);
                }
                self.mark_access(slot);
            }
            None => {
                let deadline = expiry.replacing(|| None);
                self.insert(key, value, deadline);
                self.notify(KeyspaceEvents::NEW, "new", key.bytes);
            }
        }
    }

    /// Sets the string of a key just looked up to another text, as INCR does; the deadline stays, and the value counts as
    /// newly set. Text of the same length is copied over the old one.
    #[inline]
    pub fn overwrite_string(&mut self, found: Option<Slot>, key: Key<'_>, text: &[u8]) {
        if let Some(slot) = found
            && let ValueRef::Bytes { bytes, kind: kind::STRING } = self.entry(slot).value()
            && bytes.len() == text.len()
            && let Some(bytes) = self.tables.bytes_mut(self.selected, slot)
        {
            bytes.copy_from_slice(text);
            return;
        }
        self.set_string_at(found, key, text, Expiry::Keep);
    }

    /// Sets the string of a key just looked up to a number's text that counts as text, as INCRBYFLOAT does; the deadline
    /// stays.
    pub fn set_number_text_at(&mut self, found: Option<Slot>, key: Key<'_>, text: &[u8]) {
        let is_integer = parse_i64(text).is_some();
        let kind = if is_integer { kind::UNENCODED_STRING } else { kind::STRING };
        self.set_value_at(found, key, NewValue::Bytes { bytes: text, kind }, Expiry::Keep);
    }

    /// Makes a string of `length` zero bytes under a key that is absent, to be edited: its encoding is `raw`.
    pub fn create_string(&mut self, key: Key<'_>, length: usize) -> &mut [u8] {
        let value = if length <= INLINE_EDIT_MAX {
            NewValue::Bytes { bytes: b"", kind: kind::EDITED_STRING }
        } else {
            NewValue::Object(Box::new(Value::String(vec![0; length])))
        };
        let slot = self.insert(key, value, None);
        self.notify(KeyspaceEvents::NEW, "new", key.bytes);
        self.resize_string(slot, length)
    }

    /// The bytes of the string at `slot`, to be edited in place; their number stays. The value counts as edited ("raw").
    pub fn string_mut(&mut self, slot: Slot) -> &mut [u8] {
        let length = match self.string_at(slot) {
            Ok(bytes) => bytes.len(),
            Err(_) => 0,
        };
        self.resize_string(slot, length)
    }

    /// Sets the length of the string at `slot`, filling with zeros, and returns its bytes. The value counts as edited: its
    /// encoding is `raw` from now on.
    pub fn resize_string(&mut self, slot: Slot, length: usize) -> &mut [u8] {
        let is_inline = matches!(self.entry(slot).value(), ValueRef::Bytes { .. });
        if is_inline && length <= INLINE_EDIT_MAX {
            return self.tables.resize_bytes(self.selected, slot, length, kind::EDITED_STRING);
        }
        if is_inline {
            let entry = self.entry(slot);
            let deadline = entry.deadline();
            let mut bytes = Vec::with_capacity(length);
            if let ValueRef::Bytes { bytes: old, .. } = entry.value() {
                bytes.extend_from_slice(old);
            }
            let value = NewValue::Object(Box::new(Value::String(bytes)));
            self.tables.replace(self.selected, slot, value, deadline);
        }
        match self.tables.object_mut(self.selected, slot) {
            Some(Value::String(bytes)) => {
                bytes.resize(length, 0);
                bytes
            }
            _ => &mut [],
        }
    }

    /// Lets `edit` change the string at `slot`, its length included; the value counts as edited ("raw"). One that lies inside
    /// its entry is copied out and back: where the length stays, [`Self::string_mut`] is cheaper.
    pub fn edit_string<R>(&mut self, slot: Slot, edit: impl FnOnce(&mut Vec<u8>) -> R) -> R {
        if let Some(Value::String(bytes)) = self.tables.object_mut(self.selected, slot) {
            return edit(bytes);
        }
        let entry = self.entry(slot);
        let deadline = entry.deadline();
        let mut bytes = match entry.value() {
            ValueRef::Bytes { bytes, .. } => bytes.to_vec(),
            ValueRef::Object(_) => Vec::new(),
        };
        let result = edit(&mut bytes);
        if bytes.len() <= INLINE_EDIT_MAX {
            self.resize_string(slot, bytes.len()).copy_from_slice(&bytes);
        } else {
            let value = NewValue::Object(Box::new(Value::String(bytes)));
            self.tables.replace(self.selected, slot, value, deadline);
        }
        result
    }

    // ---- keys ----------------------------------------------------------------------------------------------------

    /// Puts a value under a key that a look-up has not found: it is absent, or has expired and still lies there.
    #[inline]
    fn insert(
        &mut self,
        key: Key<'_>,
        value: NewValue<'_, Value>,
        deadline: Option<Deadline>,
    ) -> Slot {
        if !self.found_expired.is_empty() {
            self.make_way_for(key);
        }
        let access = self.fresh_access();
        self.tables.insert(self.selected, key, value, deadline, access)
    }

    /// Deletes a key. False if there was none. `how` names the event (`del`).
    pub fn delete(&mut self, key: Key<'_>, how: &'static str) -> bool {
        let Some(slot) = self.find(key) else { return false };
        self.delete_at(slot, key, how);
        true
    }

    /// The same for a key just looked up.
    pub fn delete_at(&mut self, slot: Slot, key: Key<'_>, how: &'static str) {
        if let Some(owned) = self.tables.remove(self.selected, slot) {
            self.lazyfree.discard(owned);
        }
        self.changed(KeyspaceEvents::GENERIC, how, key.bytes);
    }

    /// Sets or clears the deadline of the key at `slot`.
    pub fn set_deadline(&mut self, slot: Slot, deadline: Option<Deadline>) {
        self.tables.set_deadline(self.selected, slot, deadline);
    }

    /// Sets the access bits of the key at `slot` (OBJECT FREQ's and IDLETIME's source).
    pub fn set_access(&mut self, slot: Slot, access: u32) {
        self.tables.set_access(self.selected, slot, access);
    }

    /// A random key of the selected database, each as likely as the other. Expired ones that it comes upon are not returned
    /// but deleted: no look-up, it changes the table.
    pub fn random_key(&mut self) -> Option<Vec<u8>> {
        self.delete_found_expired();
        let mut tries = RANDOM_TRIES;
        loop {
            let slot = self.table().random()?;
            let entry = self.table().entry(slot);
            match entry.deadline() {
                Some(deadline) if self.now.is_past(deadline) => {}
                _ => return Some(entry.key().to_vec()),
            }
            match (self.keeps_expired, tries) {
                (false, _) => self.remove_expired(slot),
                (true, 0) => return None,
                (true, _) => tries -= 1,
            }
        }
    }

    /// Empties databases; each key counts as a change. Freed in the background unless `sync`.
    pub fn clear(&mut self, databases: Range<usize>, sync: bool) {
        self.delete_found_expired();
        for index in databases {
            let keys = self.tables[index].len();
            if keys == 0 {
                continue;
            }
            self.touch_all(index, index, keys as u64);
            let bytes = self.estimate_bytes(index);
            let fields = std::mem::take(&mut self.fields[index]);
            match self.tables.clear(index, fields, keys, bytes) {
                Some(old) if sync => drop(old),
                Some(old) => self.lazyfree.discard_all(old, keys, bytes),
                None => {}
            }
        }
        self.tracking.note_all();
    }

    /// About how many bytes a database takes, judging from a few of its keys.
    fn estimate_bytes(&self, index: usize) -> usize {
        let table = &self.tables[index];
        let (mut seen, mut bytes) = (0, 0);
        table.sample(BYTES_SAMPLES, false, |_, entry| {
            seen += 1;
            bytes += entry.allocated();
            if let ValueRef::Object(object) = entry.value() {
                bytes += object.heap_bytes();
            }
        });
        table.memory() + (bytes / seen.max(1)).saturating_mul(table.len())
    }

    /// Exchanges two databases. One change.
    pub fn swap(&mut self, a: usize, b: usize) {
        self.expire_watched(a, b);
        self.expire_watched(b, a);
        self.delete_found_expired();
        self.touch_all(a, b, 1);
        self.touch_all(b, a, 0);
        self.tables.swap(a, b);
        self.fields.swap(a, b);
    }

    // ---- what changed --------------------------------------------------------------------------------------------

    /// Changes since the start; `rdb_changes_since_last_save`.
    pub fn dirty(&self) -> u64 {
        self.dirty
    }

    /// The same without those keys and fields that have expired: what commands have changed.
    #[inline]
    pub fn changes_by_commands(&self) -> u64 {
        self.dirty - self.dirty_by_expiry
    }

    /// Says that a command changed a key of the selected database: counts the change and announces the event.
    #[inline]
    pub fn changed(&mut self, class: KeyspaceEvents, event: &'static str, key: &[u8]) {
        self.changed_by(1, class, event, key);
    }

    /// The same for a command that has changed several of the key's elements, each of which counts. None of them counts where
    /// another key's have been counted already.
    #[inline]
    pub fn changed_by(
        &mut self,
        elements: u64,
        class: KeyspaceEvents,
        event: &'static str,
        key: &[u8],
    ) {
        self.touch(self.selected, key, elements, Cause::Client);
        self.notify(class, event, key);
    }

    /// Counts changes that concern nobody who waits for the key, watches it, or holds a copy of it, as Redis has it of the groups
    /// of a stream.
    pub fn changed_aside(&mut self, changes: u64) {
        self.dirty += changes;
    }

    /// Says that a key changes: tells all who are to know, but for who listens to events. Whatever changes a key's value,
    /// deadline or existence comes by here, whoever causes it.
    #[inline]
    fn touch(&mut self, database: usize, key: &[u8], changes: u64, cause: Cause) {
        self.dirty += changes;
        self.waiting.note_change(database, key);
        self.watch.note_change(database, key);
        self.tracking.note_change(key, cause == Cause::Client);
    }

    /// The same of all keys that a database has, or will have from the other one. Who tracks keys is not told: that databases
    /// are exchanged is no change to them, as in Redis.
    fn touch_all(&mut self, database: usize, other: usize, changes: u64) {
        self.dirty += changes;
        self.waiting.note_all(database);
        self.touch_watched(database, other);
    }

    /// Announces an event in the selected database, if `notify-keyspace-events` asks for its class.
    #[inline]
    pub fn notify(&mut self, class: KeyspaceEvents, event: &'static str, key: &[u8]) {
        if self.events.wants(class) {
            self.events.push(event, self.selected, key);
        }
    }
}
