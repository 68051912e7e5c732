//! The keyspace: databases, and the only access to values.
//!
//! Every look-up goes through [`Keyspace`], so that lazy expiry, hit and miss counts, access bits,
//! type checks, keyspace events and the count of changes cannot be skipped. Handlers hold keys as
//! [`Key`] (bytes and hash); borrows from the keyspace end before the next change. One database is
//! selected at a time: the gate selects the client's before each command.
//!
//! This module refuses to know clients, replies and the network.
//!
//! - The data: `db_index` is the number of a database, and values kept for each; `tables` (with
//!   `table_id`), through which all changes go; `collection`, typed access; `transfer` moves and
//!   copies entries; `beside` replaces all databases.
//! - Changes that can be undone, and views that do not change: `undo`, `snapshot`, `held`.
//! - Changes without a command: `expire`, `field_deadlines`, `evict`, `hash_slots` (keys of slots
//!   that other nodes own now); `deletions` are to be replicated, `lazyfree` frees. Pending entries
//!   of streams are leased on the `lease_clock`. `lending` spares outputs copies of values.
//! - Notice of changes: `notify` (events), `waiting` (blocked clients), `due` (their alarms),
//!   `watch`, `tracking`, `flows` (counts of queues).
//! - Locks: `locks` keeps the index of held locks (`lock_index`), `coming` notes those that other
//!   servers bring, `lock_scan` looks at the index in slices, `lock_history` remembers ended locks,
//!   `lock_grants` has grants of which the clients have not learnt yet, `fences` numbers grants;
//!   `permits` is the index of permits with sessions, `semaphores` counts permits.

pub mod beside;
pub mod collection;
mod coming;
mod db_index;
pub mod deletions;
pub mod due;
pub mod evict;
pub mod expire;
mod fences;
pub mod field_deadlines;
pub mod flows;
mod hash_slots;
pub mod held;
pub mod lazyfree;
mod lease_clock;
mod lending;
mod lock_grants;
pub mod lock_history;
mod lock_index;
pub mod lock_scan;
pub mod locks;
pub mod notify;
pub mod permits;
pub mod semaphores;
pub mod snapshot;
mod table_id;
mod tables;
pub mod tracking;
pub mod transfer;
mod undo;
pub mod waiting;
pub mod watch;

#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;

pub use crate::clock::Expiry;
use crate::clock::{Deadline, ExpiryBy, Now};
use crate::collections::hash::KeyHasher;
use crate::collections::hash_slot::SlotSet;
use crate::collections::packed_table::Draws;
use crate::collections::shared_bytes::SharedBytes;
use crate::collections::table::{Entry, NewValue, Slot, Table, ValueRef};
use crate::config::{AccessKind, KeyspaceEvents};
use crate::error::CommandError;
use crate::resp::number::parse_i64;
use crate::stats::histogram::Histogram;
use crate::types::string::{StringMut, StringView};
use crate::types::{Value, kind, type_name};
use coming::Coming;
pub use db_index::{DatabaseKey, DbIndex, PerDatabase};
use deletions::Deletions;
use evict::Eviction;
pub use evict::{AccessPolicy, Accessed};
use expire::Expiring;
use field_deadlines::FieldDeadlines;
use flows::Flows;
use held::HeldBySnapshots;
use lazyfree::LazyFree;
use lease_clock::LeaseClock;
use locks::Locks;
use notify::Events;
use semaphores::Semaphores;
pub use table_id::TableId;
use tables::Tables;
use tracking::Tracking;
use waiting::{Waiting, Wanted};
use watch::Watch;

/// A key's bytes with their hash, computed once per request.
#[derive(Clone, Copy, Debug)]
pub struct Key<'a> {
    pub bytes: &'a [u8],
    pub hash: u64,
}

/// Counts since the last `CONFIG RESETSTAT`.
#[derive(Clone, Debug, Default)]
pub struct KeyspaceStats {
    pub hits: u64,
    pub misses: u64,
    pub expired: u64,
    /// Those of them that no command had looked up.
    pub expired_actively: u64,
    /// Fields of hashes.
    pub expired_fields: u64,
    /// Those of them that no command had named.
    pub expired_fields_actively: u64,
    pub evicted: u64,
    /// The same by the names of the keys' types.
    pub evicted_by_type: BTreeMap<&'static str, u64>,
    /// The time from a key's deadline to its active deletion.
    pub expiry_lag: Histogram,
}

/// A string of at most this length stays inside its entry when edited; a longer one gets its own
/// allocation at its first growth, so that APPEND does not copy it each time.
const INLINE_EDIT_MAX: usize = 1024;

/// The most that two readings of the clocks may differ without a change of the wall clock. Also the
/// longest delay with which a deadline on a slewed wall clock is noticed.
const WALL_JITTER_MS: u64 = 2;

/// The most random keys tried to find one that is not expired, if expired keys are kept.
const RANDOM_TRIES: usize = 100;

/// Keys sampled to estimate a database's bytes.
const BYTES_SAMPLES: usize = 64;

/// The cause of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// A command.
    Client,
    /// Expiry or eviction.
    Server,
}

/// The keys that the running command has announced to change. None: it did not name them.
#[cfg(debug_assertions)]
pub type Announced = Option<std::collections::BTreeSet<Vec<u8>>>;

/// How look-ups and reads treat keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mode {
    /// Reads do not update access bits: CLIENT NO-TOUCH.
    pub no_touch: bool,
    /// Look-ups hide expired keys without deleting them: while clients are paused, and for reads
    /// where another server decides ([`ExpiryBy`]). Must not be set for commands that write.
    pub hides_expired: bool,
}

/// Counts of changes.
#[derive(Clone, Copy, Debug, Default)]
struct Changes {
    all: u64,
    /// Those made by expiry of keys and fields, without a command.
    by_expiry: u64,
}

/// All databases of the server.
pub struct Keyspace {
    tables: Tables,
    #[cfg(debug_assertions)]
    announced: Announced,
    fields: PerDatabase<FieldDeadlines>,
    selected: DbIndex,
    hasher: KeyHasher,
    now: Now,
    /// [`evict::lru_clock_at`] of it, which each access needs.
    lru_clock: u32,
    /// How far the wall clock is ahead of the boot-time clock, for the tables' hints.
    wall_offset_ms: i64,
    /// The same rounded up, for all deadlines that are shown: see [`Now::shown_offset_ms`].
    shown_offset_ms: i64,
    lease_clock: LeaseClock,
    pub access: AccessPolicy,
    /// Random choices that SPOP will make, whose memory has been prefetched.
    pub draws: Draws,
    /// Set for a command or for what time starts, and reset after it ([`Self::reset_mode`]).
    pub mode: Mode,
    pub stats: KeyspaceStats,
    pub events: Events,
    /// Since the start; only changed by [`Keyspace::touch`] and similar methods.
    changes: Changes,
    pub expiring: Expiring,
    pub deletions: Deletions,
    pub lazyfree: LazyFree,
    pub eviction: Eviction,
    /// Memory that is not data.
    pub held: HeldBySnapshots,
    pub waiting: Waiting,
    pub locks: Locks,
    pub coming: Coming,
    pub semaphores: Semaphores,
    pub flows: Flows,
    pub watch: Watch,
    /// Slots whose keys are not shown: they are still being moved here, or being deleted.
    pub hidden_slots: Option<SlotSet>,
    pub tracking: Tracking,
    /// Whether a stream has remembered producers since the start.
    may_have_producers: bool,
    /// Buffer for unpacking a packed collection to change it.
    scratch: Vec<u8>,
}

impl Keyspace {
    /// `databases` empty databases.
    pub fn new(databases: usize, hasher: KeyHasher, now: Now) -> Self {
        Keyspace {
            tables: Tables::new(databases, hasher, now.wall_offset_ms()),
            #[cfg(debug_assertions)]
            announced: None,
            fields: PerDatabase::new(databases, |_| FieldDeadlines::default()),
            selected: DbIndex::ZERO,
            hasher,
            now,
            lru_clock: evict::lru_clock_at(now),
            wall_offset_ms: now.wall_offset_ms(),
            shown_offset_ms: now.shown_offset_ms(),
            lease_clock: LeaseClock::new(now),
            draws: Draws::new(),
            access: AccessPolicy::default(),
            mode: Mode::default(),
            stats: KeyspaceStats::default(),
            events: Events::default(),
            changes: Changes::default(),
            expiring: Expiring::default(),
            deletions: Deletions::default(),
            lazyfree: LazyFree::start(),
            held: HeldBySnapshots::default(),
            eviction: Eviction::default(),
            waiting: Waiting::default(),
            locks: Locks::default(),
            coming: Coming::default(),
            semaphores: Semaphores::default(),
            flows: Flows::default(),
            watch: Watch::default(),
            hidden_slots: None,
            tracking: Tracking::default(),
            may_have_producers: false,
            scratch: Vec::new(),
        }
    }

    #[inline]
    pub fn hash(&self, key: &[u8]) -> u64 {
        self.hasher.hash(key)
    }

    /// Bytes and hash of a key that is not from the request.
    pub fn key<'k>(&self, bytes: &'k [u8]) -> Key<'k> {
        Key { bytes, hash: self.hasher.hash(bytes) }
    }

    /// The hasher for fields and members of large collections.
    pub fn hasher(&self) -> KeyHasher {
        self.hasher
    }

    pub fn now(&self) -> Now {
        self.now
    }

    /// Sets the current time. If the wall clock has moved against the boot-time clock by more than
    /// the jitter of reading both, updates the tables' hints, so that no wall-clock deadline is
    /// noticed late, and the offset for showing boot-time deadlines.
    #[inline]
    pub fn set_now(&mut self, now: Now) {
        self.now = Now { ignores_deadlines: self.now.ignores_deadlines, ..now };
        self.lease_clock.set_now(now);
        self.lru_clock = evict::lru_clock_at(now);
        let offset = now.wall_offset_ms();
        if offset.abs_diff(self.wall_offset_ms) > WALL_JITTER_MS {
            (self.wall_offset_ms, self.shown_offset_ms) = (offset, now.shown_offset_ms());
            self.tables.set_wall_offset(offset);
            self.lease_clock.note_step(now);
        }
    }

    /// Stops expiry until [`Self::end_loading`]. Call this before a file is loaded. Keys that
    /// existed for the file's writer must exist for the file's later commands, and keep their
    /// deadlines; the file itself deletes the keys that expired in it.
    pub fn begin_loading(&mut self) {
        self.ignore_deadlines(true);
    }

    /// Lets keys expire again after loading.
    pub fn end_loading(&mut self) {
        self.ignore_deadlines(false);
    }

    /// Sets whether every key and field counts as alive, even after its deadline. Returns the
    /// previous setting. For files, the primary's stream, and the commands of a client that imports
    /// data: these contain all deletions.
    pub fn ignore_deadlines(&mut self, ignore: bool) -> bool {
        self.delete_found_expired();
        std::mem::replace(&mut self.now.ignores_deadlines, ignore)
    }

    /// Returns the count of changes. A load does not count as unsaved changes: restore the count
    /// with [`Keyspace::end_uncounted`].
    pub fn begin_uncounted(&mut self) -> u64 {
        self.delete_found_expired();
        self.changes.all
    }

    pub fn end_uncounted(&mut self, count: u64) {
        self.changes.all = count;
    }

    /// How far the wall clock is ahead of the boot-time clock, for showing deadlines
    /// ([`Deadline::unix`]): constant until the wall clock is set.
    pub fn shown_offset_ms(&self) -> i64 {
        self.shown_offset_ms
    }

    pub fn databases(&self) -> usize {
        self.tables.len()
    }

    pub fn last_database(&self) -> DbIndex {
        DbIndex::new(self.databases() - 1)
    }

    #[inline]
    pub fn selected(&self) -> DbIndex {
        self.selected
    }

    /// Selects a database, which must exist: see [`Self::databases`].
    #[inline]
    pub fn select(&mut self, database: DbIndex) {
        debug_assert!(database.get() < self.tables.len());
        self.selected = database;
    }

    /// Runs `f` with another database selected.
    pub fn in_database<R>(&mut self, database: DbIndex, f: impl FnOnce(&mut Self) -> R) -> R {
        let before = std::mem::replace(&mut self.selected, database);
        let result = f(self);
        self.selected = before;
        result
    }

    /// The selected database's table, for iteration (SCAN, KEYS, statistics).
    #[inline]
    pub fn table(&self) -> &Table<Value> {
        &self.tables[self.selected]
    }

    /// The identity of a database's table.
    pub fn table_id(&self, database: DbIndex) -> TableId {
        self.tables.id_of(database)
    }

    /// The table of any database.
    pub fn table_of(&self, database: DbIndex) -> &Table<Value> {
        &self.tables[database]
    }

    // ---- look-up --------------------------------------------------------------------------------
    //
    // A look-up changes no table: slots that a command holds stay valid while it looks up other
    // keys. A key that has expired counts as absent at once, and is deleted when the command is
    // done ([`Keyspace::delete_found_expired`]).

    /// Finds a key to change it or to read its metadata (TYPE, TTL); counts nothing. An expired key
    /// is not found, and is announced unless [`Mode::hides_expired`].
    #[inline]
    pub fn find(&mut self, key: Key<'_>) -> Option<Slot> {
        #[cfg(test)]
        tests::note_look_up(key.bytes);
        let slot = self.table().find(key.hash, key.bytes)?;
        if let Some(deadline) = self.table().entry(slot).deadline()
            && self.now.is_past(deadline)
        {
            self.note_expired(key);
            return None;
        }
        Some(slot)
    }

    /// As [`Self::find`], but leaves an expired key alone.
    pub fn find_quietly(&self, key: Key<'_>) -> Option<Slot> {
        let slot = self.table().find(key.hash, key.bytes)?;
        let deadline = self.table().entry(slot).deadline();
        deadline.is_none_or(|deadline| !self.now.is_past(deadline)).then_some(slot)
    }

    /// As [`Self::find_quietly`], but finds expired keys where they stay until the primary deletes
    /// them.
    pub fn find_kept(&self, key: Key<'_>) -> Option<Slot> {
        if self.mode.hides_expired {
            self.table().find(key.hash, key.bytes)
        } else {
            self.find_quietly(key)
        }
    }

    /// As [`Self::find_quietly`], but finds expired keys too. Finds nothing while any expired key
    /// that a look-up has found is not deleted yet.
    pub fn find_even_expired(&self, key: Key<'_>) -> Option<Slot> {
        let slot = self.table().find(key.hash, key.bytes)?;
        (!self.has_found_expired()).then_some(slot)
    }

    /// An entry of any database, for inspection only: counts nothing, and does not find an expired
    /// entry.
    pub fn entry_quietly(&self, database: DbIndex, key: &[u8]) -> Option<Entry<'_, Value>> {
        let table = self.table_of(database);
        let entry = table.entry(table.find(self.hash(key), key)?);
        entry.deadline().is_none_or(|deadline| !self.now.is_past(deadline)).then_some(entry)
    }

    /// Finds a key to change its value: updates its access bits.
    #[inline]
    pub fn find_for_write(&mut self, key: Key<'_>) -> Option<Slot> {
        let slot = self.find(key)?;
        self.mark_access(slot);
        Some(slot)
    }

    /// Finds a key to read its value: counts the hit or miss and updates the access bits.
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

    /// Finds a key to read its metadata (EXISTS, TYPE, TTL): counts the hit or miss, but does not
    /// update the access bits.
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

    /// The string at `slot`, or WRONGTYPE.
    #[inline(always)]
    pub fn string_at(&self, slot: Slot) -> Result<StringView<'_>, CommandError> {
        StringView::new(self.table().entry(slot).value()).ok_or(CommandError::WrongType)
    }

    /// A key's string, for reading; None if the key does not exist.
    #[inline(always)]
    pub fn string(&mut self, key: Key<'_>) -> Result<Option<StringView<'_>>, CommandError> {
        match self.find_for_read(key) {
            Some(slot) => self.string_at(slot).map(Some),
            None => Ok(None),
        }
    }

    /// The slot of a string to be changed; None if the key does not exist. Errors: WRONGTYPE.
    pub fn string_slot(&mut self, key: Key<'_>) -> Result<Option<Slot>, CommandError> {
        match self.find_for_write(key) {
            Some(slot) => self.string_at(slot).map(|_| Some(slot)),
            None => Ok(None),
        }
    }

    // ---- strings --------------------------------------------------------------------------------

    /// Sets a key to a string, replacing any value. Announces nothing: the handler does.
    #[inline]
    pub fn set_string(&mut self, key: Key<'_>, bytes: &[u8], expiry: Expiry) {
        let found = self.find(key);
        self.set_string_at(found, key, bytes, expiry);
    }

    /// The same after a look-up: `found` is the key's slot, None if absent.
    #[inline]
    pub fn set_string_at(
        &mut self,
        found: Option<Slot>,
        key: Key<'_>,
        bytes: &[u8],
        expiry: Expiry,
    ) {
        let before = self.type_to_announce(found);
        self.update_string_at(found, key, bytes, expiry);
        self.announce_overwritten(key, before);
    }

    /// The same for a value that is changed rather than replaced: it is not announced as
    /// overwritten.
    #[inline]
    pub fn update_string_at(
        &mut self,
        found: Option<Slot>,
        key: Key<'_>,
        bytes: &[u8],
        expiry: Expiry,
    ) {
        self.set_value_at(found, key, Value::new_string(bytes), expiry);
    }

    /// The type of a value that is about to be replaced, if that is to be announced.
    #[inline]
    pub fn type_to_announce(&self, found: Option<Slot>) -> Option<&'static str> {
        let wanted = KeyspaceEvents::OVERWRITTEN | KeyspaceEvents::TYPE_CHANGED;
        let slot = if self.events.wants(wanted) { found } else { None };
        slot.map(|slot| type_name(self.entry(slot).value()))
    }

    /// Announces that a value of the type `before` was replaced ([`Self::type_to_announce`]).
    #[inline]
    pub fn announce_overwritten(&mut self, key: Key<'_>, before: Option<&'static str>) {
        if let Some(before) = before {
            self.push_overwritten(key, before);
        }
    }

    #[cold]
    fn push_overwritten(&mut self, key: Key<'_>, before: &'static str) {
        let after = self.find_quietly(key).map(|slot| type_name(self.entry(slot).value()));
        self.notify(KeyspaceEvents::OVERWRITTEN, "overwritten", key.bytes);
        if after.is_some_and(|after| after != before) {
            self.notify(KeyspaceEvents::TYPE_CHANGED, "type_changed", key.bytes);
        }
    }

    /// As [`Self::set_string_at`], for a computed string: its encoding is `raw`, as after an edit.
    pub fn set_computed_string_at(
        &mut self,
        found: Option<Slot>,
        key: Key<'_>,
        bytes: SharedBytes,
        expiry: Expiry,
    ) {
        let before = self.type_to_announce(found);
        match bytes.as_slice() {
            Some(short) if short.len() <= INLINE_EDIT_MAX => {
                let value = NewValue::Bytes { bytes: short, kind: kind::EDITED_STRING };
                self.set_value_at(found, key, value, expiry);
            }
            _ => self.set_value_at(found, key, Value::new_shared_string(bytes), expiry),
        }
        self.announce_overwritten(key, before);
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
                self.note_owner_at(slot, key);
                self.note_own_deadline(key.bytes, deadline);
                if let Some(object) = self.tables.replace(self.selected, slot, value, deadline) {
                    self.lazyfree.discard_value(object);
                }
                self.mark_access(slot);
            }
            None => {
                let deadline = expiry.replacing(|| None);
                self.note_own_deadline(key.bytes, deadline);
                self.insert(key, value, deadline);
                self.notify(KeyspaceEvents::NEW, "new", key.bytes);
            }
        }
    }

    /// Replaces the string of a looked-up key, as INCR does; its deadline stays, and its encoding
    /// is that of a new value. Text of the same length is copied in place.
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
        self.update_string_at(found, key, text, Expiry::Keep);
    }

    /// Replaces the string of a looked-up key by a number's text, encoded as a string, as
    /// INCRBYFLOAT does; its deadline stays.
    pub fn set_number_text_at(&mut self, found: Option<Slot>, key: Key<'_>, text: &[u8]) {
        let is_integer = parse_i64(text).is_some();
        let kind = if is_integer { kind::UNENCODED_STRING } else { kind::STRING };
        self.set_value_at(found, key, NewValue::Bytes { bytes: text, kind }, Expiry::Keep);
    }

    /// Adds an empty string under an absent key, for editing: its encoding is `raw`.
    pub fn create_string(&mut self, key: Key<'_>) -> Slot {
        let value = NewValue::Bytes { bytes: b"", kind: kind::EDITED_STRING };
        let slot = self.insert(key, value, None);
        self.notify(KeyspaceEvents::NEW, "new", key.bytes);
        slot
    }

    /// Writes bytes into the string at `slot`, from an offset on; it grows as needed, with zeros up
    /// to the offset. Its encoding becomes `raw`. Returns its length.
    pub fn write_string(&mut self, slot: Slot, at: usize, bytes: &[u8]) -> usize {
        let end = at + bytes.len();
        if let ValueRef::Bytes { bytes: old, .. } = self.entry(slot).value() {
            let length = old.len().max(end);
            if length <= INLINE_EDIT_MAX {
                self.resize_inline(slot, length)[at..end].copy_from_slice(bytes);
                return length;
            }
        }
        let Some(shared) = self.outside_string(slot) else { return 0 };
        shared.write(at, bytes);
        shared.len()
    }

    /// The string at `slot`, for editing in place: padded with zeros to at least this length. Its
    /// encoding becomes `raw`.
    pub fn grow_string(&mut self, slot: Slot, length: usize) -> StringMut<'_> {
        let length = length.max(self.string_at(slot).map_or(0, StringView::len));
        let is_inline = matches!(self.entry(slot).value(), ValueRef::Bytes { .. });
        if is_inline && length <= INLINE_EDIT_MAX {
            return StringMut::Whole(self.resize_inline(slot, length));
        }
        match self.outside_string(slot) {
            Some(shared) => {
                shared.grow(length);
                shared.into()
            }
            None => StringMut::Whole(&mut []),
        }
    }

    /// Calls `edit` with the string at `slot`, whose length may change. Its encoding becomes `raw`.
    /// A string inside its entry is copied out and back, and so is one in several pieces.
    pub fn edit_string<R>(&mut self, slot: Slot, edit: impl FnOnce(&mut Vec<u8>) -> R) -> R {
        if let Some(Value::String(bytes)) = self.tables.object_mut(self.selected, slot) {
            return bytes.edit(edit);
        }
        let entry = self.entry(slot);
        let deadline = entry.deadline();
        let mut bytes = match entry.value() {
            ValueRef::Bytes { bytes, .. } => bytes.to_vec(),
            ValueRef::Object(_) => Vec::new(),
        };
        let result = edit(&mut bytes);
        if bytes.len() <= INLINE_EDIT_MAX {
            self.resize_inline(slot, bytes.len()).copy_from_slice(&bytes);
        } else {
            let value = Value::new_shared_string(bytes.into());
            self.tables.replace(self.selected, slot, value, deadline);
        }
        result
    }

    /// Sets the length of the string at `slot`, which is inside its entry and stays there. New
    /// bytes are zeros.
    #[inline]
    fn resize_inline(&mut self, slot: Slot, length: usize) -> &mut [u8] {
        self.tables.resize_bytes(self.selected, slot, length, kind::EDITED_STRING)
    }

    /// The string at `slot`, for changing, after moving it out of its entry.
    fn outside_string(&mut self, slot: Slot) -> Option<&mut SharedBytes> {
        let entry = self.entry(slot);
        let deadline = entry.deadline();
        if let ValueRef::Bytes { bytes, .. } = entry.value() {
            let value = Value::new_shared_string(bytes.into());
            self.tables.replace(self.selected, slot, value, deadline);
        }
        match self.tables.object_mut(self.selected, slot) {
            Some(Value::String(bytes)) => Some(bytes),
            _ => None,
        }
    }

    // ---- keys -----------------------------------------------------------------------------------

    /// Adds a value under a key that a look-up has not found: absent, or expired but still in the
    /// table.
    #[inline]
    fn insert(
        &mut self,
        key: Key<'_>,
        value: NewValue<'_, Value>,
        deadline: Option<Deadline>,
    ) -> Slot {
        if self.has_found_expired() {
            self.make_way_for(key);
        }
        let access = self.fresh_access();
        self.tables.insert(self.selected, key, value, deadline, access)
    }

    /// Deletes a key. False if it did not exist. `how`: the event's name (`del`).
    pub fn delete(&mut self, key: Key<'_>, how: &'static str) -> bool {
        let Some(slot) = self.find(key) else { return false };
        self.delete_at(slot, key, how);
        true
    }

    /// The same for a looked-up key.
    pub fn delete_at(&mut self, slot: Slot, key: Key<'_>, how: &'static str) {
        self.note_owner_at(slot, key);
        if let Some(owned) = self.tables.remove(self.selected, slot) {
            self.lazyfree.discard(owned);
        }
        self.changed(KeyspaceEvents::GENERIC, how, key.bytes);
    }

    /// Notes the owner of the lock at `slot`, if the value is one. Call this before the value goes.
    #[inline]
    fn note_owner_at(&mut self, slot: Slot, key: Key<'_>) {
        if !self.locks.is_empty() {
            let value = self.tables[self.selected].entry(slot).value();
            self.locks.note_owner_of(self.selected, key.bytes, value, &self.now);
        }
    }

    /// Sets or clears the deadline of the key at `slot`.
    pub fn set_deadline(&mut self, slot: Slot, deadline: Option<Deadline>) {
        if self.expiring.by == ExpiryBy::Primary {
            let key = self.entry(slot).key().to_vec();
            self.note_own_deadline(&key, deadline);
        }
        self.tables.set_deadline(self.selected, slot, deadline);
    }

    /// A random key of the selected database, uniformly. Not a look-up: expired keys that it meets
    /// are deleted at once. If expired keys are kept and all keys have deadlines, it may return an
    /// expired key, as in Redis.
    pub fn random_key(&mut self) -> Option<Vec<u8>> {
        self.delete_found_expired();
        let now = self.now;
        let is_alive = |entry: &Entry<'_, Value>| {
            !entry.deadline().is_some_and(|deadline| now.is_past(deadline))
        };
        let mut tries = RANDOM_TRIES;
        loop {
            let slot = self.table().random()?;
            let entry = self.table().entry(slot);
            if self.is_hidden(entry.key()) {
                let shown = |entry: &Entry<'_, Value>| !self.is_hidden(entry.key());
                if tries == 0 {
                    let found = self.table().iter().find(|it| is_alive(it) && shown(it));
                    return found.map(|entry| entry.key().to_vec());
                }
                tries -= 1;
                continue;
            }
            if is_alive(&entry) {
                return Some(entry.key().to_vec());
            }
            if !self.mode.hides_expired {
                self.remove_expired(slot);
                continue;
            }
            if tries == 0 {
                let all_may_expire = self.table().volatile_len() == self.table().len();
                let found = match all_may_expire {
                    true => entry,
                    false => self.table().iter().find(is_alive).unwrap_or(entry),
                };
                return Some(found.key().to_vec());
            }
            tries -= 1;
        }
    }

    /// Empties a database; each key counts as a change. Frees it in the background unless `sync`.
    pub fn clear(&mut self, database: DbIndex, sync: bool) {
        self.delete_found_expired();
        self.clear_one(database, sync);
        self.tracking.note_all();
    }

    /// Empties all databases.
    pub fn clear_all(&mut self, sync: bool) {
        self.delete_found_expired();
        for database in DbIndex::all(self.databases()) {
            self.clear_one(database, sync);
        }
        self.tracking.note_all();
    }

    fn clear_one(&mut self, database: DbIndex, sync: bool) {
        let keys = self.tables[database].len();
        if keys == 0 {
            return;
        }
        self.touch_all(database, database, keys as u64);
        if self.tables.undo.is_recording() {
            self.semaphores.note_all(database);
        } else {
            if let Some(known) = self.semaphores.clear(database) {
                self.lazyfree.discard_index(known, 0);
            }
            if let Some(sessions) = self.semaphores.sessions.clear(database) {
                self.lazyfree.discard_index(sessions, 0);
            }
        }
        let bytes = self.estimate_bytes(database);
        let fields = std::mem::take(&mut self.fields[database]);
        match self.tables.clear(database, fields, keys, bytes) {
            Some(old) if sync => drop(old),
            Some(old) => self.lazyfree.discard_all(old, keys, bytes),
            None => {}
        }
    }

    /// A database's bytes, estimated from a sample of its keys.
    fn estimate_bytes(&self, database: DbIndex) -> usize {
        let table = &self.tables[database];
        let (mut seen, mut bytes) = (0, 0);
        table.sample(BYTES_SAMPLES, false, |_, entry| {
            seen += 1;
            bytes += entry.allocated();
            if let ValueRef::Object(object) = entry.value() {
                bytes += object.heap_bytes();
            }
        });
        table.memory()
            + table.slot_list_memory()
            + (bytes / seen.max(1)).saturating_mul(table.len())
    }

    /// Exchanges two databases. One change.
    pub fn swap(&mut self, a: DbIndex, b: DbIndex) {
        if a == b {
            // Counts as a change, as in Redis, but changes no key.
            self.changes.all += 1;
            return;
        }
        self.expire_watched(a, b);
        self.expire_watched(b, a);
        self.delete_found_expired();
        self.touch_all(a, b, 1);
        self.touch_all(b, a, 0);
        self.tables.swap(a, b);
        self.fields.swap(a, b);
        self.semaphores.swap(a, b);
        self.tracking.note_all();
    }

    /// Whether a change concerns clients that wait or locks that are held: the gate must call
    /// `waking::serve`.
    #[inline]
    pub fn has_awaited_changes(&self) -> bool {
        self.waiting.has_ready() || self.locks.has_changed()
    }

    // ---- changes --------------------------------------------------------------------------------

    /// Changes since the start; `rdb_changes_since_last_save`.
    pub fn dirty(&self) -> u64 {
        self.changes.all
    }

    /// Changes by commands: without expiry.
    #[inline]
    pub fn changes_by_commands(&self) -> u64 {
        self.changes.all - self.changes.by_expiry
    }

    /// Notes what the command that runs now has announced to change. Returns what was noted before.
    #[cfg(debug_assertions)]
    pub fn announce(&mut self, announced: Announced) -> Announced {
        std::mem::replace(&mut self.announced, announced)
    }

    /// Records that a command changed a key of the selected database: counts the change and
    /// announces the event.
    #[inline]
    pub fn changed(&mut self, class: KeyspaceEvents, event: &'static str, key: &[u8]) {
        self.changed_by(1, class, event, key);
    }

    /// The same for `elements` changes by one command; 0 if they were counted for another key.
    #[inline]
    pub fn changed_by(
        &mut self,
        elements: u64,
        class: KeyspaceEvents,
        event: &'static str,
        key: &[u8],
    ) {
        self.touch(self.selected, key, elements, Cause::Client);
        self.flows.note(self.selected, key, event, elements);
        self.notify(class, event, key);
    }

    /// Counts changes that do not concern clients which wait for, watch or track the key: changes
    /// of a stream's groups, as in Redis.
    pub fn changed_aside(&mut self, key: &[u8], changes: u64) {
        self.changes.all += changes;
        if changes > 0 && self.access.kind == AccessKind::Modified {
            self.mark_modified(self.selected, key);
        }
    }

    /// Records a change of a stream's pending entries: it wakes those that wait to claim some.
    #[inline]
    pub fn pending_changed(&mut self, key: &[u8]) {
        let database = self.selected;
        if !self.waiting.is_empty()
            && self.waiting.first(database, key, Wanted::StreamClaim).is_some()
        {
            self.waiting.note_change(database, key);
        }
    }

    /// Records a change of a key everywhere except in events. Every change of a key's value,
    /// deadline or existence must call this.
    #[inline]
    fn touch(&mut self, database: DbIndex, key: &[u8], changes: u64, cause: Cause) {
        #[cfg(debug_assertions)]
        if cause == Cause::Client
            && let Some(announced) = &self.announced
        {
            let shown = key.escape_ascii();
            assert!(announced.contains(key), "the key {shown} changes, which was not announced");
        }
        self.changes.all += changes;
        if self.access.kind == AccessKind::Modified {
            self.mark_modified(database, key);
        }
        self.waiting.note_change(database, key);
        self.locks.note_change(database, key);
        self.semaphores.note_change(database, key);
        self.watch.note_change(database, key);
        self.tracking.note_change(key, cause == Cause::Client);
    }

    /// Records a change of all keys of a database, and of keys that come from the `other` one.
    fn touch_all(&mut self, database: DbIndex, other: DbIndex, changes: u64) {
        self.changes.all += changes;
        self.waiting.note_all(database);
        self.locks.note_all(database);
        self.touch_watched(database, other);
    }

    /// Announces an event in the selected database, if `notify-keyspace-events` asks for its class.
    #[inline]
    pub fn notify(&mut self, class: KeyspaceEvents, event: &'static str, key: &[u8]) {
        if self.events.wants(class) {
            self.events.push(event, self.selected, key);
        }
    }

    /// Announces the fields of a hash that an event is about, if `notify-keyspace-events` asks for
    /// fields.
    #[inline]
    pub fn notify_fields<'f>(
        &mut self,
        event: &'static str,
        key: &[u8],
        fields: impl Iterator<Item = &'f [u8]>,
    ) {
        if self.events.wants_fields() {
            let fields = fields.map(Box::from).collect();
            self.events.push_fields(event, self.selected, key, fields);
        }
    }
}
