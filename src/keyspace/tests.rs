//! The keyspace against a naive model: ordered maps, with each deadline checked on its own.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::clock::{Clock, ManualClock, UnixMillis};

thread_local! {
    static LOOKED_UP: RefCell<BTreeSet<Vec<u8>>> = const { RefCell::new(BTreeSet::new()) };
}

/// Called by each look-up, in tests of this crate.
pub fn note_look_up(key: &[u8]) {
    LOOKED_UP.with_borrow_mut(|seen| seen.insert(key.to_vec()));
}

/// The keys that this thread has looked up since the last call.
pub fn take_looked_up() -> BTreeSet<Vec<u8>> {
    LOOKED_UP.take()
}

const DATABASES: usize = 3;
const START_MS: i64 = 1_700_000_000_000;

/// The time at which a key of the model expires.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Goes {
    Never,
    /// Strictly later than this number of milliseconds of passed time.
    Passed(i64),
    /// Strictly later than this Unix time in milliseconds.
    Unix(i64),
}

#[derive(Clone, Debug, PartialEq)]
struct Held {
    value: Vec<u8>,
    goes: Goes,
}

#[derive(Clone, Debug)]
enum Operation {
    Set { key: u8, value: Vec<u8>, ttl_ms: Option<i64>, keep: bool },
    Delete { key: u8 },
    ExpireAfter { key: u8, ms: i64 },
    ExpireAt { key: u8, ms: i64 },
    Persist { key: u8 },
    Transfer { from: u8, database: DbIndex, to: u8 },
    Duplicate { from: u8, database: DbIndex, to: u8 },
    Append { key: u8, bytes: usize },
    Select { database: DbIndex },
    Clear { database: DbIndex, sync: bool },
    Swap { a: DbIndex, b: DbIndex },
    Pass { ms: i64 },
    StepWall { ms: i64 },
    ExpireDue,
    Random,
    Scan,
}

fn operation() -> impl Strategy<Value = Operation> {
    use Operation::*;
    let key = 0..10u8;
    let database = (0..DATABASES).prop_map(DbIndex::new);
    let value = prop_oneof![
        4 => prop::collection::vec(any::<u8>(), 0..40),
        1 => prop::collection::vec(any::<u8>(), 60..200),
    ];
    let ttl = prop::option::of(1..200i64);
    prop_oneof![
        8 => (key.clone(), value, ttl, any::<bool>())
            .prop_map(|(key, value, ttl_ms, keep)| Set { key, value, ttl_ms, keep }),
        2 => key.clone().prop_map(|key| Delete { key }),
        3 => (key.clone(), 1..200i64).prop_map(|(key, ms)| ExpireAfter { key, ms }),
        3 => (key.clone(), 1..200i64).prop_map(|(key, ms)| ExpireAt { key, ms }),
        1 => key.clone().prop_map(|key| Persist { key }),
        3 => (key.clone(), database.clone(), key.clone())
            .prop_map(|(from, database, to)| Transfer { from, database, to }),
        3 => (key.clone(), database.clone(), key.clone())
            .prop_map(|(from, database, to)| Duplicate { from, database, to }),
        1 => (key, 0..2000usize).prop_map(|(key, bytes)| Append { key, bytes }),
        2 => database.clone().prop_map(|database| Select { database }),
        1 => (database.clone(), any::<bool>())
            .prop_map(|(database, sync)| Clear { database, sync }),
        1 => (database.clone(), database).prop_map(|(a, b)| Swap { a, b }),
        4 => (0..60i64).prop_map(|ms| Pass { ms }),
        1 => (-100..100i64).prop_map(|ms| StepWall { ms }),
        2 => Just(ExpireDue),
        1 => Just(Random),
        1 => Just(Scan),
    ]
}

/// The keyspace and its model, side by side.
struct Pair {
    hands: ManualClock,
    db: Keyspace,
    model: PerDatabase<BTreeMap<Vec<u8>, Held>>,
    passed_ms: i64,
    unix_ms: i64,
}

fn name(key: u8) -> Vec<u8> {
    format!("key:{key}").into_bytes()
}

impl Pair {
    fn new() -> Self {
        let hands = ManualClock::new(UnixMillis(START_MS));
        let now = Clock::Manual(hands.clone()).now();
        Pair {
            hands,
            db: Keyspace::new(DATABASES, KeyHasher::new([3, 4]), now),
            model: PerDatabase::new(DATABASES, |_| BTreeMap::new()),
            passed_ms: 0,
            unix_ms: START_MS,
        }
    }

    fn is_alive(&self, held: &Held) -> bool {
        match held.goes {
            Goes::Never => true,
            Goes::Passed(ms) => self.passed_ms <= ms,
            Goes::Unix(ms) => self.unix_ms <= ms,
        }
    }

    /// The model's value of a key in the selected database.
    fn held(&self, key: u8) -> Option<Held> {
        let held = self.model[self.db.selected()].get(&name(key))?;
        self.is_alive(held).then(|| held.clone())
    }

    fn model_mut(&mut self) -> &mut BTreeMap<Vec<u8>, Held> {
        &mut self.model[self.db.selected]
    }

    /// Drops what is past from the model, as lazy and active expiry do.
    fn drop_past(&mut self) {
        let mut model = std::mem::take(&mut self.model);
        for database in model.iter_mut() {
            database.retain(|_, held| self.is_alive(held));
        }
        self.model = model;
    }

    fn run(&mut self, operation: &Operation) {
        match *operation {
            Operation::Set { key, ref value, ttl_ms, keep } => self.set(key, value, ttl_ms, keep),
            Operation::Delete { key } => {
                let bytes = name(key);
                let deleted = self.db.delete(self.db.key(&bytes), "del");
                assert_eq!(deleted, self.held(key).is_some());
                self.model_mut().remove(&bytes);
            }
            Operation::ExpireAfter { key, ms } => {
                let deadline = self.db.now().after(ms);
                self.set_deadline(key, Some(deadline), Goes::Passed(self.passed_ms + ms));
            }
            Operation::ExpireAt { key, ms } => {
                let when = self.unix_ms + ms;
                let deadline = self.db.now().at(UnixMillis(when));
                self.set_deadline(key, Some(deadline), Goes::Unix(when));
            }
            Operation::Persist { key } => self.set_deadline(key, None, Goes::Never),
            Operation::Transfer { from, database, to } => self.transfer(from, database, to),
            Operation::Duplicate { from, database, to } => self.duplicate(from, database, to),
            Operation::Append { key, bytes } => self.append(key, bytes),
            Operation::Select { database } => self.db.select(database),
            Operation::Clear { database, sync } => {
                self.db.clear(database, sync);
                self.model[database].clear();
            }
            Operation::Swap { a, b } => {
                self.db.swap(a, b);
                self.model.swap(a, b);
            }
            Operation::Pass { ms } => {
                self.hands.advance_us(ms * 1000);
                self.passed_ms += ms;
                self.unix_ms += ms;
                self.db.set_now(Clock::Manual(self.hands.clone()).now());
            }
            Operation::StepWall { ms } => {
                // No key comes back: keys that a step to the past would spare are deleted already.
                while self.db.expire_due(usize::MAX) {}
                self.drop_past();
                self.hands.step_wall_us(ms * 1000);
                self.unix_ms += ms;
                self.db.set_now(Clock::Manual(self.hands.clone()).now());
            }
            Operation::ExpireDue => {
                while self.db.expire_due(usize::MAX) {}
                self.drop_past();
                for (database, model) in self.model.numbered() {
                    assert_eq!(self.db.table_of(database).len(), model.len());
                }
            }
            Operation::Random => {
                let chosen = self.db.random_key();
                let model = &self.model[self.db.selected()];
                match chosen {
                    Some(key) => assert!(self.is_alive(&model[&key])),
                    None => assert!(!model.values().any(|held| self.is_alive(held))),
                }
            }
            Operation::Scan => self.scan(),
        }
    }

    fn set(&mut self, key: u8, value: &[u8], ttl_ms: Option<i64>, keep: bool) {
        let bytes = name(key);
        let (expiry, goes) = match (ttl_ms, keep) {
            (_, true) => (Expiry::Keep, self.held(key).map_or(Goes::Never, |held| held.goes)),
            (None, _) => (Expiry::Clear, Goes::Never),
            (Some(ms), _) => {
                (Expiry::At(self.db.now().after(ms)), Goes::Passed(self.passed_ms + ms))
            }
        };
        let key = self.db.key(&bytes);
        self.db.set_string(key, value, expiry);
        self.model_mut().insert(bytes, Held { value: value.to_vec(), goes });
    }

    fn set_deadline(&mut self, key: u8, deadline: Option<Deadline>, goes: Goes) {
        let bytes = name(key);
        let is_alive = self.held(key).is_some();
        let found = self.db.find_for_write(self.db.key(&bytes));
        assert_eq!(found.is_some(), is_alive);
        if let Some(slot) = found {
            self.db.set_deadline(slot, deadline);
            self.model_mut().get_mut(&bytes).expect("it is there").goes = goes;
        }
    }

    fn transfer(&mut self, from: u8, database: DbIndex, to: u8) {
        if database == self.db.selected() && from == to {
            return;
        }
        let held = self.held(from);
        let (from, to) = (name(from), name(to));
        let moved = self.db.transfer(self.db.key(&from), database, self.db.key(&to));
        assert_eq!(moved, held.is_some());
        if let Some(held) = held {
            self.model_mut().remove(&from);
            self.model[database].insert(to, held);
        }
    }

    fn duplicate(&mut self, from: u8, database: DbIndex, to: u8) {
        if database == self.db.selected() && from == to {
            return;
        }
        let held = self.held(from);
        let (from, to) = (name(from), name(to));
        let copied = self.db.duplicate(self.db.key(&from), database, self.db.key(&to));
        assert_eq!(copied, held.is_some());
        if let Some(held) = held {
            self.model[database].insert(to, held);
        }
    }

    fn append(&mut self, key: u8, bytes: usize) {
        let name = name(key);
        let is_alive = self.held(key).is_some();
        let found = self.db.find_for_write(self.db.key(&name));
        assert_eq!(found.is_some(), is_alive);
        if let Some(slot) = found {
            let length = self.db.string_at(slot).expect("it is a string").len();
            self.db.grow_string(slot, length + bytes);
            let held = self.model_mut().get_mut(&name).expect("it is there");
            held.value.resize(length + bytes, 0);
        }
    }

    /// A whole walk returns every key once.
    fn scan(&self) {
        let mut seen = Vec::new();
        let mut cursor = 0;
        loop {
            cursor = self.db.table().scan(cursor, 3, |entry| seen.push(entry.key().to_vec()));
            if cursor == 0 {
                break;
            }
        }
        seen.sort();
        let listed: Vec<Vec<u8>> = {
            let mut keys: Vec<_> =
                self.db.table().iter().map(|entry| entry.key().to_vec()).collect();
            keys.sort();
            keys
        };
        assert_eq!(seen, listed);
        let model = &self.model[self.db.selected()];
        let alive = model.iter().filter(|(_, held)| self.is_alive(held));
        assert!(alive.map(|(key, _)| key).all(|key| seen.binary_search(key).is_ok()));
    }

    /// The remaining milliseconds, as TTL reports them.
    fn remaining_ms(&self, goes: Goes) -> Option<i64> {
        match goes {
            Goes::Never => None,
            Goes::Passed(ms) => Some(ms - self.passed_ms),
            Goes::Unix(ms) => Some(ms - self.unix_ms),
        }
    }

    /// Checks that every key of every database agrees with the model.
    fn check(&mut self) {
        for database in DbIndex::all(DATABASES) {
            self.db.select(database);
            for key in 0..10 {
                let bytes = name(key);
                let expected = self.held(key);
                let found = self.db.find_untouched(self.db.key(&bytes)).map(|slot| {
                    let deadline = self.db.entry(slot).deadline();
                    let value =
                        self.db.string_at(slot).expect("it is a string").whole().into_owned();
                    (value, deadline.map(|deadline| self.db.now().remaining_ms(deadline)))
                });
                let expected = expected.map(|held| (held.value, self.remaining_ms(held.goes)));
                assert_eq!(found, expected);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn the_keyspace_does_what_ordered_maps_do(
        operations in prop::collection::vec(operation(), 1..120),
    ) {
        let mut pair = Pair::new();
        for operation in &operations {
            pair.run(operation);
        }
        pair.check();
    }
}

#[test]
fn a_renamed_key_keeps_its_access_bits_and_stays_raw() {
    let mut pair = Pair::new();
    pair.run(&Operation::Set { key: 1, value: b"1".to_vec(), ttl_ms: None, keep: false });
    pair.run(&Operation::Append { key: 1, bytes: 0 });
    pair.run(&Operation::Pass { ms: 10_000 });
    let (from, to) = (name(1), name(2));
    pair.db.transfer(pair.db.key(&from), DbIndex::new(2), pair.db.key(&to));
    pair.db.select(DbIndex::new(2));
    let slot = pair.db.find(pair.db.key(&to)).expect("it was moved");
    let entry = pair.db.entry(slot);
    assert_eq!(pair.db.idle_seconds(entry.access()), 10);
    assert!(matches!(entry.value(), ValueRef::Bytes { kind: kind::EDITED_STRING, .. }));
}

#[test]
fn a_table_keeps_its_identity_where_databases_are_exchanged_and_not_where_they_are_emptied() {
    let now = Clock::Manual(ManualClock::new(UnixMillis(1_700_000_000_000))).now();
    let mut db = Keyspace::new(3, KeyHasher::new([1, 2]), now);
    let ids = |db: &Keyspace| [0, 1, 2].map(|number| db.table_id(DbIndex::new(number)));
    let first = ids(&db);
    assert!(first[0] != first[1] && first[1] != first[2]);
    db.swap(DbIndex::ZERO, DbIndex::new(2));
    assert_eq!(ids(&db), [first[2], first[1], first[0]]);
    let key = db.key(b"k");
    db.set_string(key, b"v", Expiry::Clear);
    db.begin_undo(1 << 20, false);
    db.clear_all(false);
    db.swap(DbIndex::ZERO, DbIndex::new(1));
    assert!(!ids(&db).contains(&first[2]));
    db.roll_back();
    assert_eq!(ids(&db), [first[2], first[1], first[0]]);
    db.clear(DbIndex::ZERO, true);
    assert!(!first.contains(&db.table_id(DbIndex::ZERO)));
}

#[test]
fn a_look_up_moves_nothing() {
    let hands = ManualClock::new(UnixMillis(1_700_000_000_000));
    let clock = Clock::Manual(hands.clone());
    let mut db = Keyspace::new(1, KeyHasher::new([1, 2]), clock.now());
    for number in 0..100 {
        let name = format!("due:{number}");
        let key = db.key(name.as_bytes());
        db.set_string(key, b"v", Expiry::At(clock.now().after(1)));
    }
    let key = db.key(b"stays");
    db.set_string(key, b"v", Expiry::Clear);
    hands.advance_us(5_000);
    db.set_now(clock.now());
    let slot = db.find(key).expect("it is there");
    for number in 0..100 {
        let name = format!("due:{number}");
        let key = db.key(name.as_bytes());
        assert!(db.find(key).is_none());
        assert!(db.find(key).is_none());
    }
    // With debug assertions this fails if the table has changed.
    assert!(db.string_at(slot).expect("a string") == b"v"[..]);
    assert_eq!((db.stats.expired, db.dirty(), db.table().len()), (100, 100, 101));
    let due = db.key(b"due:7");
    db.set_string(due, b"new", Expiry::Clear);
    assert_eq!(db.table().len(), 101);
    db.delete_found_expired();
    assert_eq!(db.table().len(), 2);
    assert!(db.find(due).is_some());
}
