//! A point-in-time snapshot of all databases, taken while they change, without fork.
//!
//! Each table is iterated in small steps (`collections/table/walk.rs`); a turn makes as many as its
//! time allows. An entry that changes before the iteration reaches it is copied first. Copies are
//! passed on in [`Chunk`]s, and another thread encodes them. A table that is emptied or exchanged
//! keeps its identity ([`TableId`]). An emptied one moves here and is iterated to its end.
//!
//! Keys, values, deadlines and access bits are copied. A value stored inside its entry is copied as
//! bytes. Other values are cloned. A clone shares the parts of a large value
//! (`collections/shared.rs`), and a later change copies only the changed part.

use std::sync::Arc;
use std::{mem, vec};

use super::Keyspace;
use super::db_index::DbIndex;
use super::held::Held;
use super::table_id::TableId;
use crate::clock::Deadline;
use crate::collections::hash::KeyHasher;
use crate::collections::shared::copied_bytes;
use crate::collections::table::{Entry, Owned, Table, ValueRef};
use crate::sys::alloc;
use crate::types::Value;

/// The size at which a chunk is sent. Unit: bytes.
const CHUNK_BYTES: usize = 256 * 1024;

/// The limit of bytes that a step of the iteration copies: some hundred small entries. A step takes
/// a part of a turn's time. Counts [`ENTRY_COST`] or [`OBJECT_COST`] for each entry too.
const STEP_COST: usize = 128 * 1024;
/// The cost of finding and copying an entry, without its bytes.
const ENTRY_COST: usize = 64;
/// The same for an object, whose parts are counted. Below it, the usual limit of bytes that cloning
/// an object copies.
/// copies.
const OBJECT_COST: usize = 1024;
const CLONED_BYTES_MAX: usize = 64 * 1024;

/// The limits of allocations for copying an entry, and for a step: checked if assertions are on.
/// Unit: bytes.
const ENTRY_BYTES_MAX: isize = 1 << 20;
const STEP_BYTES_MAX: isize = 2 << 20;

/// Some entries of one database, as they were when the snapshot began.
#[derive(Default)]
pub struct Chunk {
    /// The database's number when the snapshot began.
    pub database: DbIndex,
    /// Keys, and the values inside entries, concatenated.
    bytes: Vec<u8>,
    heads: Vec<Head>,
    /// Values outside of their entries.
    objects: Vec<Value>,
    /// Bytes of memory owned by the objects.
    object_bytes: usize,
}

/// An entry without its bytes.
struct Head {
    key_len: usize,
    /// The value's length and kind; None: the value is the next of the objects.
    value: Option<(usize, u8)>,
    deadline: Option<Deadline>,
    access: u32,
}

/// An entry of a chunk.
pub struct Copied<'a> {
    pub key: &'a [u8],
    pub value: ValueRef<'a, Value>,
    pub deadline: Option<Deadline>,
    pub access: u32,
}

impl Chunk {
    /// Adds a copy of an entry. Returns the cost, as [`STEP_COST`] counts it.
    fn push(&mut self, entry: Entry<'_, Value>) -> usize {
        let mut cost = ENTRY_COST + entry.key().len();
        self.bytes.extend_from_slice(entry.key());
        let value = match entry.value() {
            ValueRef::Bytes { bytes, kind } => {
                self.bytes.extend_from_slice(bytes);
                cost += bytes.len();
                Some((bytes.len(), kind))
            }
            ValueRef::Object(object) => {
                let bytes = object.heap_bytes();
                cost += OBJECT_COST + bytes.min(CLONED_BYTES_MAX);
                self.object_bytes += bytes;
                self.objects.push(object.clone());
                None
            }
        };
        let (deadline, access) = (entry.deadline(), entry.access());
        self.heads.push(Head { key_len: entry.key().len(), value, deadline, access });
        cost
    }

    /// Approximate bytes of memory.
    pub fn memory(&self) -> usize {
        self.bytes.len() + self.heads.len() * size_of::<Head>() + self.object_bytes
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.heads.len()
    }

    pub fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    /// Calls `visit` with each entry. Errors: those of `visit`.
    pub fn each<E>(&self, mut visit: impl FnMut(Copied<'_>) -> Result<(), E>) -> Result<(), E> {
        let mut rest = self.bytes.as_slice();
        let mut objects = self.objects.iter();
        for head in &self.heads {
            let (key, after) = rest.split_at(head.key_len);
            let value = match head.value {
                Some((len, kind)) => {
                    let (bytes, after) = after.split_at(len);
                    rest = after;
                    ValueRef::Bytes { bytes, kind }
                }
                None => {
                    rest = after;
                    ValueRef::Object(objects.next().expect("each head without bytes has an object"))
                }
            };
            visit(Copied { key, value, deadline: head.deadline, access: head.access })?;
        }
        Ok(())
    }
}

/// A receiver of chunks.
pub type Send = Box<dyn FnMut(Chunk) + std::marker::Send>;

/// A snapshot in progress.
pub(super) struct Snapshot {
    /// Tables still to be copied, with their databases' numbers at the beginning; the last one is
    /// in progress.
    left: Vec<(TableId, DbIndex)>,
    /// Tables that were emptied since the beginning.
    emptied: Vec<Emptied>,
    chunk: Chunk,
    send: Send,
    /// Bytes of entries copied because they were about to change, without parts of large values.
    copied_bytes: usize,
    /// [`copied_bytes`] of parts when this snapshot began.
    parts_before: usize,
    held: Arc<Held>,
}

/// The table of an emptied database.
struct Emptied {
    id: TableId,
    table: Table<Value>,
    /// The table's approximate memory. Unit: bytes.
    bytes: usize,
}

impl Snapshot {
    /// Copies the next entries of the table `id`. False at its end.
    pub(super) fn walk(&mut self, id: TableId, table: &mut Table<Value>) -> bool {
        let before = alloc::balance();
        let has_more = table.walk_on(STEP_COST, &mut |entry| self.take(id, entry));
        let made = alloc::balance() - before;
        debug_assert!(made <= STEP_BYTES_MAX, "a step allocates {made} bytes");
        has_more
    }

    /// Copies an entry of the table `id`. Returns the cost: [`STEP_COST`].
    fn take(&mut self, id: TableId, entry: Entry<'_, Value>) -> usize {
        let Some(&(_, number)) = self.left.iter().find(|(table, _)| *table == id) else { return 0 };
        if self.chunk.database != number || self.chunk.memory() >= CHUNK_BYTES {
            self.send_chunk();
            self.chunk.database = number;
        }
        let Snapshot { held, chunk, .. } = self;
        let before = alloc::balance();
        let cost = held.count_made(|| chunk.push(entry));
        let made = alloc::balance() - before;
        debug_assert!(made <= ENTRY_BYTES_MAX, "copying an entry allocates {made} bytes");
        cost
    }

    /// Copies an entry that is about to change.
    pub(super) fn take_before_change(&mut self, id: TableId, entry: Entry<'_, Value>) {
        let value = match entry.value() {
            ValueRef::Bytes { bytes, .. } => bytes.len(),
            // Parts are counted when they are copied.
            ValueRef::Object(_) => 0,
        };
        self.copied_bytes += entry.key().len() + value + size_of::<Head>();
        self.take(id, entry);
    }

    fn send_chunk(&mut self) {
        if !self.chunk.is_empty() {
            (self.send)(mem::take(&mut self.chunk));
        }
    }

    /// Takes ownership of the table of an emptied database, which has about `bytes` bytes.
    pub(super) fn take_over(&mut self, id: TableId, table: Table<Value>, bytes: usize) {
        self.held.add(bytes as isize);
        self.emptied.push(Emptied { id, table, bytes });
    }
}

/// An entry read from a file, to be added to a database.
pub struct LoadedEntry {
    pub database: DbIndex,
    pub entry: Owned<Value>,
    /// The key's hash.
    hash: u64,
}

impl LoadedEntry {
    /// `hasher` is [`Keyspace::hasher`].
    pub fn new(database: DbIndex, entry: Owned<Value>, hasher: KeyHasher) -> Self {
        LoadedEntry { database, hash: hasher.hash(entry.key()), entry }
    }

    /// A hash of the key and its database.
    pub fn hash_in_all(&self) -> u64 {
        let database = self.database.get() as u64;
        self.hash ^ database.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

/// The progress of a snapshot.
pub enum Walked {
    /// More entries must be copied.
    More,
    /// All entries are copied and sent.
    Done,
}

impl Keyspace {
    /// Starts a snapshot. No other snapshot may be in progress. `send` receives the chunks; `held`
    /// counts their memory.
    pub fn begin_snapshot(&mut self, send: Send, held: Arc<Held>) {
        self.delete_found_expired();
        let left = self.tables.begin_walks();
        let (emptied, chunk) = (Vec::new(), Chunk::default());
        let parts_before = copied_bytes();
        let snapshot = Snapshot { left, emptied, chunk, send, copied_bytes: 0, parts_before, held };
        self.tables.snapshot = Some(Box::new(snapshot));
    }

    pub fn has_snapshot(&self) -> bool {
        self.tables.snapshot.is_some()
    }

    /// Bytes copied because of changes, by the current snapshot or the last one.
    pub fn snapshot_copied(&self) -> usize {
        let snapshot = self.tables.snapshot.as_ref();
        let current = snapshot.map(|snapshot| (snapshot.copied_bytes, snapshot.parts_before));
        let counted = current.or(self.tables.walked);
        counted.map_or(0, |(entries, before)| entries + copied_bytes().saturating_sub(before))
    }

    /// Copies the next entries, some hundred small ones.
    pub fn walk_snapshot(&mut self) -> Walked {
        let Some(mut snapshot) = self.tables.snapshot.take() else { return Walked::Done };
        let Some(&(id, _)) = snapshot.left.last() else {
            snapshot.send_chunk();
            self.tables.walked = Some((snapshot.copied_bytes, snapshot.parts_before));
            return Walked::Done;
        };
        let has_more = match snapshot.emptied.iter().position(|emptied| emptied.id == id) {
            Some(at) => {
                let mut emptied = snapshot.emptied.swap_remove(at);
                let has_more = snapshot.walk(id, &mut emptied.table);
                match has_more {
                    true => snapshot.emptied.push(emptied),
                    false => self.free(emptied, &snapshot.held),
                }
                has_more
            }
            None => self.tables.walk_on(id, &mut snapshot),
        };
        if !has_more {
            snapshot.left.pop();
        }
        self.tables.snapshot = Some(snapshot);
        Walked::More
    }

    /// Cancels the snapshot.
    pub fn abort_snapshot(&mut self) {
        self.tables.walked = None;
        if let Some(snapshot) = self.tables.snapshot.take() {
            self.tables.end_walks();
            let Snapshot { chunk, emptied, held, .. } = *snapshot;
            emptied.into_iter().for_each(|emptied| self.free(emptied, &held));
            // A value that was deleted since may have no other owner.
            self.lazyfree.discard_copies(chunk);
        }
    }

    fn free(&mut self, mut emptied: Emptied, held: &Held) {
        held.add(-(emptied.bytes as isize));
        self.lazyfree.discard_all(emptied.table.clear(), 0, emptied.bytes);
    }

    // ---- loading --------------------------------------------------------------------------------

    /// Adds the next `count` entries to their databases. Adding some dozens together overlaps the
    /// cache misses of their look-ups, which halves the time. Errors: an entry whose key exists.
    pub fn load_some(
        &mut self,
        entries: &mut vec::IntoIter<LoadedEntry>,
        count: usize,
    ) -> Result<(), LoadedEntry> {
        let group = &entries.as_slice()[..count.min(entries.len())];
        let stages = [Table::prefetch_directory, Table::prefetch_segment, Table::prefetch_bucket];
        for stage in stages {
            for loaded in group {
                stage(&self.tables[loaded.database], loaded.hash);
            }
        }
        for LoadedEntry { database, entry, hash } in entries.by_ref().take(count) {
            let slot = self.tables.load(database, hash, entry);
            let slot = slot.map_err(|entry| LoadedEntry { database, entry, hash })?;
            self.index_lock_at(database, slot);
            // Pending entries have Unix times in files.
            let is_stream = matches!(
                self.tables[database].entry(slot).value(),
                ValueRef::Object(Value::Stream(_))
            );
            let shift_ms = self.lease_shift_ms();
            if is_stream
                && shift_ms != 0
                && let Some(stream) = self.tables.groups_mut(database, slot)
            {
                stream.groups.move_times(-shift_ms);
            }
            let entry = self.tables[database].entry(slot);
            if let ValueRef::Object(Value::Hash(_)) = entry.value() {
                let key = entry.key().to_vec();
                self.in_database(database, |db| db.note_moved_field_deadlines(slot, &key));
            }
        }
        Ok(())
    }

    /// Reserves memory for `keys` keys in an empty database that is about to be loaded. The caller
    /// limits `keys`.
    pub fn expect_keys(&mut self, database: DbIndex, keys: usize) {
        self.tables.expect(database, keys);
    }

    /// After loading: frees memory reserved for keys that did not come.
    pub fn fit_tables(&mut self) {
        self.tables.fit();
    }
}

#[cfg(test)]
mod shapes;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};

    use proptest::prelude::*;

    use super::*;
    use crate::clock::{Clock, Expiry};

    type Model = BTreeMap<(DbIndex, Vec<u8>), Vec<u8>>;

    /// Begins a snapshot. Returns the place that collects its chunks.
    pub(super) fn snapshot_of(db: &mut Keyspace) -> Arc<Mutex<Vec<Chunk>>> {
        let chunks = Arc::new(Mutex::new(Vec::new()));
        let sink = chunks.clone();
        let held = db.held.begin();
        let send = move |chunk| sink.lock().expect("one thread").push(chunk);
        db.begin_snapshot(Box::new(send), held);
        chunks
    }

    #[derive(Clone, Debug)]
    enum Step {
        Set(DbIndex, std::ops::Range<u32>),
        Delete(DbIndex, std::ops::Range<u32>),
        Clear(DbIndex),
        Swap(DbIndex, DbIndex),
        /// A script sets keys of a database, empties it, and sets them again.
        Script {
            database: DbIndex,
            keys: std::ops::Range<u32>,
            rolls_back: bool,
        },
        Walk(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        let database = || (0..2usize).prop_map(DbIndex::new);
        let range = || (0u32..2000, 1u32..300).prop_map(|(first, count)| first..first + count);
        prop_oneof![
            4 => (database(), range()).prop_map(|(db, keys)| Step::Set(db, keys)),
            3 => (database(), range()).prop_map(|(db, keys)| Step::Delete(db, keys)),
            1 => database().prop_map(Step::Clear),
            1 => (database(), database()).prop_map(|(a, b)| Step::Swap(a, b)),
            1 => (database(), range(), any::<bool>())
                .prop_map(|(database, keys, rolls_back)| Step::Script { database, keys, rolls_back }),
            3 => (1..4usize).prop_map(Step::Walk),
        ]
    }

    fn set(db: &mut Keyspace, database: DbIndex, keys: std::ops::Range<u32>, text: &[u8]) {
        for number in keys {
            let name = number.to_string();
            let value = [text, name.as_bytes()].concat();
            db.in_database(database, |db| {
                db.set_string(db.key(name.as_bytes()), &value, Expiry::Clear)
            });
        }
    }

    fn contents(db: &Keyspace) -> Model {
        let mut model = Model::new();
        for database in DbIndex::all(db.databases()) {
            let mut cursor = 0;
            loop {
                cursor = db.table_of(database).scan(cursor, usize::MAX, |entry| {
                    let ValueRef::Bytes { bytes, .. } = entry.value() else { panic!("a string") };
                    model.insert((database, entry.key().to_vec()), bytes.to_vec());
                });
                if cursor == 0 {
                    break;
                }
            }
        }
        model
    }

    /// Whether a string lies in an allocation that something else shares.
    fn is_shared(db: &mut Keyspace, name: &[u8]) -> bool {
        let slot = db.find(db.key(name)).expect("the key is there");
        match db.entry(slot).value() {
            ValueRef::Object(Value::String(text)) => !text.is_unshared(),
            _ => panic!("the string is not large"),
        }
    }

    #[test]
    fn large_strings_are_shared_until_they_change() {
        let mut db = Keyspace::new(1, KeyHasher::new([3, 4]), Clock::System.now());
        let old = vec![b'x'; Value::LARGE_STRING];
        for name in [b"a", b"b", b"c"] {
            db.set_string(db.key(name), &old, Expiry::Clear);
        }
        let chunks = snapshot_of(&mut db);
        let slot = db.find(db.key(b"a")).expect("the key is there");
        db.edit_string(slot, |text| text.push(b'!'));
        while let Walked::More = db.walk_snapshot() {}
        assert!(!is_shared(&mut db, b"a") && is_shared(&mut db, b"b") && is_shared(&mut db, b"c"));
        let slot = db.find(db.key(b"b")).expect("the key is there");
        db.edit_string(slot, |text| text.truncate(3));
        db.delete(db.key(b"c"), "del");
        let mut seen = 0;
        for chunk in chunks.lock().expect("one thread").drain(..) {
            let _ = chunk.each(|copied| -> Result<(), ()> {
                seen += 1;
                match copied.value {
                    ValueRef::Object(Value::String(text)) => assert!(text.to_vec() == old),
                    _ => panic!("a large string was copied"),
                }
                Ok(())
            });
        }
        assert_eq!(seen, 3);
        let slot = db.find(db.key(b"a")).expect("the key is there");
        assert_eq!(db.string_at(slot).expect("a string").len(), old.len() + 1);
        let slot = db.find(db.key(b"b")).expect("the key is there");
        assert!(db.string_at(slot).expect("a string") == b"xxx"[..]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_snapshot_holds_the_content_at_its_beginning(steps in prop::collection::vec(step(), 0..40)) {
            let mut db = Keyspace::new(2, KeyHasher::new([3, 4]), Clock::System.now());
            set(&mut db, DbIndex::ZERO, 0..1500, b"old");
            set(&mut db, DbIndex::new(1), 900..1300, b"other");
            let expected = contents(&db);
            let taken = Arc::new(Mutex::new(Model::new()));
            let sink = taken.clone();
            let held = db.held.begin();
            db.begin_snapshot(Box::new(move |chunk: Chunk| {
                let _ = chunk.each(|copied| -> Result<(), ()> {
                    let ValueRef::Bytes { bytes, .. } = copied.value else { panic!("a string") };
                    let place = (chunk.database, copied.key.to_vec());
                    assert!(sink.lock().expect("one thread").insert(place, bytes.to_vec()).is_none(), "copied twice");
                    Ok(())
                });
            }), held);
            for step in steps {
                match step {
                    Step::Set(database, keys) => set(&mut db, database, keys, b"new"),
                    Step::Delete(database, keys) => keys.for_each(|number| {
                        let name = number.to_string();
                        db.in_database(database, |db| db.delete(db.key(name.as_bytes()), "del"));
                    }),
                    Step::Clear(database) => db.clear(database, false),
                    Step::Swap(a, b) if a != b => db.swap(a, b),
                    Step::Swap(..) => {}
                    Step::Script { database, keys, rolls_back } => {
                        db.begin_undo(1 << 20, false);
                        set(&mut db, database, keys.clone(), b"script");
                        db.clear(database, false);
                        set(&mut db, database, keys, b"then");
                        match rolls_back {
                            true => db.roll_back(),
                            false => db.end_undo(),
                        }
                    }
                    Step::Walk(times) => (0..times).for_each(|_| {
                        db.walk_snapshot();
                    }),
                }
            }
            while let Walked::More = db.walk_snapshot() {}
            prop_assert!(!db.has_snapshot());
            prop_assert_eq!(&*taken.lock().expect("one thread"), &expected);
        }
    }
}
