//! A copy of all databases as they are at one moment, taken while they go on changing, without fork.
//!
//! Each table is walked segment by segment (`collections/table/walk.rs`), a slice at a time; what is about to change before the
//! walk has come there is copied first, with its bucket. Copies are handed on in [`Chunk`]s, to be encoded by another thread. A
//! table that is emptied or exchanged keeps its number of before ([`TableId`]): an emptied one is taken over whole and walked
//! to its end here.
//!
//! Copied are keys, values, deadlines and access bits. A value that lies in its entry is copied as bytes. A larger one is cloned,
//! which shares what a large one consists of (`collections/shared.rs`): who changes it then copies the part that changes.

use std::{mem, vec};

use super::Keyspace;
use super::tables::{TableId, Tables};
use crate::clock::Deadline;
use crate::collections::hash::KeyHasher;
use crate::collections::shared::copied_bytes;
use crate::collections::table::{Drained, Entry, Owned, Table, ValueRef};
use crate::types::Value;

/// A chunk is handed on when it holds this much. Unit: bytes.
const CHUNK_BYTES: usize = 256 * 1024;

/// Some entries of one database, as they were at the snapshot's moment.
#[derive(Default)]
pub struct Chunk {
    /// The database's number at that moment.
    pub database: usize,
    /// Keys and the values that lay in their entries, one behind the other.
    bytes: Vec<u8>,
    heads: Vec<Head>,
    objects: Vec<Value>,
    /// Bytes behind the objects.
    object_bytes: usize,
}

struct Head {
    key: usize,
    /// The value's length and kind; None: it is the next of the objects.
    value: Option<(usize, u8)>,
    deadline: Option<Deadline>,
    access: u32,
}

/// One entry of a chunk.
pub struct Copied<'a> {
    pub key: &'a [u8],
    pub value: ValueRef<'a, Value>,
    pub deadline: Option<Deadline>,
    pub access: u32,
}

impl Chunk {
    fn push(&mut self, entry: Entry<'_, Value>) {
        self.bytes.extend_from_slice(entry.key());
        let value = match entry.value() {
            ValueRef::Bytes { bytes, kind } => {
                self.bytes.extend_from_slice(bytes);
                Some((bytes.len(), kind))
            }
            ValueRef::Object(object) => {
                self.object_bytes += object.heap_bytes();
                self.objects.push(object.clone());
                None
            }
        };
        let (deadline, access) = (entry.deadline(), entry.access());
        self.heads.push(Head { key: entry.key().len(), value, deadline, access });
    }

    /// Bytes of memory held, about.
    pub fn memory(&self) -> usize {
        self.bytes.len() + self.heads.len() * size_of::<Head>() + self.object_bytes
    }

    /// How many entries.
    pub fn len(&self) -> usize {
        self.heads.len()
    }

    pub fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    /// Shows the entries.
    pub fn each<E>(&self, mut show: impl FnMut(Copied<'_>) -> Result<(), E>) -> Result<(), E> {
        let mut rest = self.bytes.as_slice();
        let mut objects = self.objects.iter();
        for head in &self.heads {
            let (key, behind) = rest.split_at(head.key);
            let value = match head.value {
                Some((len, kind)) => {
                    let (bytes, behind) = behind.split_at(len);
                    rest = behind;
                    ValueRef::Bytes { bytes, kind }
                }
                None => {
                    rest = behind;
                    ValueRef::Object(objects.next().expect("each head without bytes has an object"))
                }
            };
            show(Copied { key, value, deadline: head.deadline, access: head.access })?;
        }
        Ok(())
    }
}

/// Where chunks go.
pub type Send = Box<dyn FnMut(Chunk) + std::marker::Send>;

/// A snapshot that is being taken.
pub(super) struct Snapshot {
    /// The tables that are left, with the databases' numbers when it began; the last one is walked.
    left: Vec<(TableId, usize)>,
    /// Tables that were emptied meanwhile.
    emptied: Vec<(TableId, Table<Value>)>,
    chunk: Chunk,
    send: Send,
    /// Bytes copied since they were about to change, but those of parts of large values.
    copied: usize,
    /// Bytes of such parts that were copied since the process began, when this began.
    parts_copied: usize,
}

impl Snapshot {
    /// Copies an entry of the table `id`.
    pub(super) fn take(&mut self, id: TableId, entry: Entry<'_, Value>) {
        let Some(&(_, number)) = self.left.iter().find(|(table, _)| *table == id) else { return };
        if self.chunk.database != number || self.chunk.memory() >= CHUNK_BYTES {
            self.hand_on();
            self.chunk.database = number;
        }
        self.chunk.push(entry);
    }

    /// The same for one that is about to change.
    pub(super) fn take_before_change(&mut self, id: TableId, entry: Entry<'_, Value>) {
        let value = match entry.value() {
            ValueRef::Bytes { bytes, .. } => bytes.len(),
            ValueRef::Object(Value::String(text)) => text.len(),
            // What is copied of it is counted where that happens.
            ValueRef::Object(_) => 0,
        };
        self.copied += entry.key().len() + value + size_of::<Head>();
        self.take(id, entry);
    }

    fn hand_on(&mut self) {
        if !self.chunk.is_empty() {
            (self.send)(mem::take(&mut self.chunk));
        }
    }

    /// Takes over a table whose database is emptied.
    pub(super) fn take_over(&mut self, id: TableId, table: Table<Value>) {
        self.emptied.push((id, table));
    }
}

/// An entry of a file, to be put into a database.
pub struct LoadedEntry {
    pub database: usize,
    pub entry: Owned<Value>,
    /// The key's.
    hash: u64,
}

impl LoadedEntry {
    /// `hasher` is [`Keyspace::hasher`].
    pub fn new(database: usize, entry: Owned<Value>, hasher: KeyHasher) -> Self {
        LoadedEntry { database, hash: hasher.hash(entry.key()), entry }
    }
}

/// What there is to do of a snapshot.
pub enum Walked {
    /// It goes on.
    More,
    /// All is handed on.
    Done,
}

impl Keyspace {
    /// Begins a snapshot of this moment; there is no other one. `send` gets the chunks.
    pub fn begin_snapshot(&mut self, send: Send) {
        self.delete_found_expired();
        let left = self.tables.begin_walks();
        let (emptied, chunk) = (Vec::new(), Chunk::default());
        let (copied, parts_copied) = (0, copied_bytes());
        let snapshot = Snapshot { left, emptied, chunk, send, copied, parts_copied };
        self.tables.snapshot = Some(Box::new(snapshot));
    }

    pub fn has_snapshot(&self) -> bool {
        self.tables.snapshot.is_some()
    }

    /// Bytes copied since writers were ahead of the walk.
    pub fn snapshot_copied(&self) -> usize {
        let Tables { snapshot, walked, .. } = &self.tables;
        let walking = snapshot.as_ref().map(|snapshot| (snapshot.copied, snapshot.parts_copied));
        let counted = walking.or(*walked);
        counted.map_or(0, |(entries, parts)| entries + copied_bytes().saturating_sub(parts))
    }

    /// Copies the next segment, some hundred entries.
    pub fn walk_snapshot(&mut self) -> Walked {
        let Some(mut snapshot) = self.tables.snapshot.take() else { return Walked::Done };
        let Some(&(id, _)) = snapshot.left.last() else {
            snapshot.hand_on();
            self.tables.walked = Some((snapshot.copied, snapshot.parts_copied));
            return Walked::Done;
        };
        let goes_on = match snapshot.emptied.iter().position(|(table, _)| *table == id) {
            Some(at) => {
                let (id, mut table) = snapshot.emptied.swap_remove(at);
                let goes_on = table.walk_on(&mut |entry| snapshot.take(id, entry));
                match goes_on {
                    true => snapshot.emptied.push((id, table)),
                    false => self.free(table.clear()),
                }
                goes_on
            }
            None => self.tables.walk_on(id, &mut snapshot),
        };
        if !goes_on {
            snapshot.left.pop();
        }
        self.tables.snapshot = Some(snapshot);
        Walked::More
    }

    /// Ends a snapshot that is not wanted any more.
    pub fn abort_snapshot(&mut self) {
        self.tables.walked = None;
        if let Some(snapshot) = self.tables.snapshot.take() {
            self.tables.end_walks();
            snapshot.emptied.into_iter().for_each(|(_, mut table)| self.free(table.clear()));
        }
    }

    fn free(&mut self, drained: Drained<Value>) {
        self.lazyfree.discard_all(drained, 0, 0);
    }

    // ---- loading -------------------------------------------------------------------------------------------------

    /// Puts the next `most` entries that were read from a file into their databases. With some dozen at once the cache misses of
    /// looking for their places overlap, which halves the time. Errors: the entry whose key is there already.
    pub fn load_some(
        &mut self,
        entries: &mut vec::IntoIter<LoadedEntry>,
        most: usize,
    ) -> Result<(), LoadedEntry> {
        let together = &entries.as_slice()[..most.min(entries.len())];
        let stages = [Table::prefetch_directory, Table::prefetch_segment, Table::prefetch_bucket];
        for stage in stages {
            for loaded in together {
                stage(&self.tables[loaded.database], loaded.hash);
            }
        }
        for LoadedEntry { database, entry, hash } in entries.by_ref().take(most) {
            let slot = self.tables.load(database, hash, entry);
            let slot = slot.map_err(|entry| LoadedEntry { database, entry, hash })?;
            let entry = self.tables[database].entry(slot);
            if let ValueRef::Object(Value::Hash(_)) = entry.value() {
                let key = entry.key().to_vec();
                self.in_database(database, |db| db.note_moved_field_deadlines(slot, &key));
            }
        }
        Ok(())
    }

    /// A file says that a database will have so many keys: makes room for them, if it is empty. `keys` is the caller's to bound.
    pub fn expect_keys(&mut self, database: usize, keys: usize) {
        self.tables.expect(database, keys);
    }

    /// The file is loaded: gives up the room of keys that have not come.
    pub fn fit_tables(&mut self) {
        self.tables.fit();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};

    use proptest::prelude::*;

    use super::*;
    use crate::clock::{Clock, Expiry};

    type Model = BTreeMap<(usize, Vec<u8>), Vec<u8>>;

    #[derive(Clone, Debug)]
    enum Step {
        Set(usize, std::ops::Range<u32>),
        Delete(usize, std::ops::Range<u32>),
        Clear(usize),
        Swap(usize, usize),
        Walk(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        let range = || (0u32..2000, 1u32..300).prop_map(|(first, count)| first..first + count);
        prop_oneof![
            4 => (0..2usize, range()).prop_map(|(db, keys)| Step::Set(db, keys)),
            3 => (0..2usize, range()).prop_map(|(db, keys)| Step::Delete(db, keys)),
            1 => (0..2usize).prop_map(Step::Clear),
            1 => (0..2usize, 0..2usize).prop_map(|(a, b)| Step::Swap(a, b)),
            3 => (1..4usize).prop_map(Step::Walk),
        ]
    }

    fn set(db: &mut Keyspace, database: usize, keys: std::ops::Range<u32>, text: &[u8]) {
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
        for database in 0..db.databases() {
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

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_snapshot_holds_what_was_there_when_it_began(steps in prop::collection::vec(step(), 0..40)) {
            let mut db = Keyspace::new(2, KeyHasher::new([3, 4]), Clock::System.now());
            set(&mut db, 0, 0..1500, b"old");
            set(&mut db, 1, 900..1300, b"other");
            let expected = contents(&db);
            let taken = Arc::new(Mutex::new(Model::new()));
            let sink = taken.clone();
            db.begin_snapshot(Box::new(move |chunk: Chunk| {
                let _ = chunk.each(|copied| -> Result<(), ()> {
                    let ValueRef::Bytes { bytes, .. } = copied.value else { panic!("a string") };
                    let place = (chunk.database, copied.key.to_vec());
                    assert!(sink.lock().expect("one thread").insert(place, bytes.to_vec()).is_none(), "copied twice");
                    Ok(())
                });
            }));
            for step in steps {
                match step {
                    Step::Set(database, keys) => set(&mut db, database, keys, b"new"),
                    Step::Delete(database, keys) => keys.for_each(|number| {
                        let name = number.to_string();
                        db.in_database(database, |db| db.delete(db.key(name.as_bytes()), "del"));
                    }),
                    Step::Clear(database) => db.clear(database..database + 1, false),
                    Step::Swap(a, b) if a != b => db.swap(a, b),
                    Step::Swap(..) => {}
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
