//! The table against a naive model: random operations through growth, splits, shrinking, merges and
//! colliding hashes.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use proptest::prelude::*;

use super::*;
use crate::clock::UnixMillis;

type Object = Vec<u32>;

const START: Now =
    Now { wall_us: 1_700_000_000_000_000, boot_us: 3_600_000_000, ignores_deadlines: false };

fn later(ms: i64) -> Now {
    Now {
        wall_us: START.wall_us + ms * 1000,
        boot_us: START.boot_us + ms * 1000,
        ignores_deadlines: false,
    }
}

fn keyed() -> Table<Object> {
    Table::new(KeyHasher::new([1, 2]), START.wall_offset_ms())
}

fn chosen(hash: fn(&[u8]) -> u64) -> Table<Object> {
    Table::with_hashing(Hashing::Chosen(hash), START.wall_offset_ms())
}

fn key(number: usize) -> Vec<u8> {
    format!("key:{number}").into_bytes()
}

/// Hashes that differ in few bits, so that tags, homes and whole hashes collide.
fn clumsy(key: &[u8]) -> u64 {
    let hash = KeyHasher::new([3, 4]).hash(key);
    hash & 0xc000_1800_0000_0003 | (hash >> 62) << 40
}

impl<O> Table<O> {
    fn pop_due(&mut self, now: &Now, budget: &mut usize) -> Option<Owned<O>> {
        self.find_due(now, budget, |_| false).map(|slot| self.remove(slot))
    }

    fn at(&self, key: &[u8]) -> Option<Slot> {
        self.find(self.hash(key), key)
    }

    fn put(&mut self, key: &[u8], value: &[u8], deadline: Option<Deadline>) -> Slot {
        let value = NewValue::Bytes { bytes: value, kind: 0 };
        match self.at(key) {
            Some(slot) => {
                self.replace(slot, value, deadline);
                slot
            }
            None => self.insert(self.hash(key), key, value, deadline, 7),
        }
    }

    fn delete(&mut self, key: &[u8]) -> bool {
        self.at(key).map(|slot| self.remove(slot)).is_some()
    }

    /// Checks every invariant stated in this module.
    fn check(&self) {
        let (mut len, mut volatile, mut pinned, mut bytes) = (0, 0, 0, 0);
        let mut depth_counts = [0; DEPTH_MAX as usize + 1];
        let mut named = BTreeSet::new();
        for (number, &id) in self.directory.iter().enumerate() {
            let (chunk, index) = self.chunk(id);
            let shift = self.depth - chunk.segments[index].depth();
            assert_eq!((number >> shift) as u32, chunk.annexes[index].prefix);
            named.insert(id);
        }
        assert_eq!(named.len(), self.segments as usize);
        assert!(
            self.directory.len() <= (2 * DIRECTORY_SLACK * self.segments as usize).max(4)
                || self.segments < 8
        );
        for id in 0..self.segments {
            let (chunk, index) = self.chunk(id);
            let (segment, annex) = (&chunk.segments[index], &chunk.annexes[index]);
            depth_counts[segment.depth() as usize] += 1;
            bytes += segment.block_count() * 1024 + annex.hints.len() * 4;
            assert_eq!(
                segment.blocks.iter().flatten().count() + annex.extra.len(),
                segment.block_count()
            );
            assert!(segment.len as usize <= segment.block_count() * BLOCK_FULL);
            let (mut here, mut volatile_here) = (0, 0);
            for at in 0..segment.buckets() {
                let bucket = chunk.bucket(index, at);
                for slot in bucket.occupied() {
                    let link = bucket.link(slot);
                    let entry = self.entry(self.slot(id, at, slot));
                    let hash = self.hash(entry.key());
                    assert_eq!(prefix_of(hash, segment.depth()) as u32, annex.prefix);
                    assert_eq!(tag_of(hash, segment.depth()), bucket.tag(slot));
                    let mut passed = segment.home(bucket.tag(slot));
                    while passed != at {
                        assert!(chunk.bucket(index, passed).is_full());
                        passed = segment.after(passed);
                    }
                    assert_eq!(link.is_volatile(), entry.deadline().is_some());
                    if let Some(deadline) = entry.deadline() {
                        volatile_here += 1;
                        let exact = self.relative(deadline.boot_ms(self.wall_offset_ms));
                        assert!(annex.hints[at] <= exact);
                        assert!(chunk.minima[index] <= annex.hints[at]);
                    }
                    pinned += usize::from(entry.access() == PINNED);
                    here += 1;
                }
            }
            assert_eq!((here, volatile_here), (segment.len as usize, annex.volatile as usize));
            assert!(self.chunk_minima[id as usize / CHUNK] <= chunk.minima[index]);
            (len, volatile) = (len + here, volatile + volatile_here);
        }
        assert!(self.chunk_minima.iter().all(|&hint| self.minimum <= hint));
        assert_eq!((len, volatile, bytes), (self.len, self.volatile, self.segment_bytes));
        assert_eq!(pinned, self.pinned);
        assert_eq!(depth_counts, self.depth_counts);
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Value {
    Bytes(Vec<u8>, u8),
    Object(Object),
}

impl Value {
    fn to_new(&self) -> NewValue<'_, Object> {
        match self {
            Value::Bytes(bytes, kind) => NewValue::Bytes { bytes, kind: *kind },
            Value::Object(object) => NewValue::Object(Box::new(object.clone())),
        }
    }

    fn of(entry: Entry<'_, Object>) -> Value {
        match entry.value() {
            ValueRef::Bytes { bytes, kind } => Value::Bytes(bytes.to_vec(), kind),
            ValueRef::Object(object) => Value::Object(object.clone()),
        }
    }
}

#[derive(Clone, Debug)]
enum Operation {
    Put(usize, Value, Option<i64>, u32),
    PutMany(usize, usize, Option<i64>),
    Remove(usize),
    RemoveMany(usize, usize),
    SetDeadline(usize, Option<i64>),
    SetAccess(usize, u32),
    Resize(usize, usize, u8),
    Edit(usize),
    Advance(i64),
    StepWall(i64),
    Scan(usize),
    Clear,
}

fn value() -> impl Strategy<Value = Value> {
    let len = prop_oneof![8 => 0usize..40, 4 => 120usize..136, 1 => 65_530usize..65_545];
    prop_oneof![
        4 => (len, any::<u8>(), 0..16u8).prop_map(|(len, byte, kind)| Value::Bytes(vec![byte; len], kind)),
        1 => prop::collection::vec(any::<u32>(), 0..3).prop_map(Value::Object),
    ]
}

fn deadline() -> impl Strategy<Value = Option<i64>> {
    prop_oneof![2 => Just(None), 3 => (-1_000_000i64..1_000_000).prop_map(Some), 1 => Just(Some(i64::MAX))]
}

fn operation(keys: usize) -> impl Strategy<Value = Operation> {
    let some = 0..keys;
    let many = 0..keys / 2;
    prop_oneof![
        6 => (some.clone(), value(), deadline(), any::<u32>()).prop_map(|(k, v, d, a)| Operation::Put(k, v, d, a)),
        4 => (some.clone(), many.clone(), deadline()).prop_map(|(k, n, d)| Operation::PutMany(k, n, d)),
        4 => some.clone().prop_map(Operation::Remove),
        3 => (some.clone(), many).prop_map(|(k, n)| Operation::RemoveMany(k, n)),
        4 => (some.clone(), deadline()).prop_map(|(k, d)| Operation::SetDeadline(k, d)),
        2 => (some.clone(), any::<u32>()).prop_map(|(k, a)| Operation::SetAccess(k, a)),
        3 => (some.clone(), prop_oneof![0usize..200, 65_500usize..65_600], 0..16u8)
            .prop_map(|(k, n, m)| Operation::Resize(k, n, m)),
        2 => some.prop_map(Operation::Edit),
        3 => (0i64..300_000).prop_map(Operation::Advance),
        1 => prop_oneof![-500_000i64..500_000, Just(1), Just(-1)].prop_map(Operation::StepWall),
        6 => (1usize..20).prop_map(Operation::Scan),
        1 => Just(Operation::Clear),
    ]
}

/// The table, its model, and a SCAN in progress.
struct Machine {
    table: Table<Object>,
    model: HashMap<Vec<u8>, (Value, Option<Deadline>, u32)>,
    now: Now,
    cursor: u64,
    /// Keys present since the scan began, and those it visited.
    steady: BTreeSet<Vec<u8>>,
    visited: BTreeMap<Vec<u8>, usize>,
}

impl Machine {
    fn new(table: Table<Object>) -> Machine {
        let (model, now) = (HashMap::new(), START);
        Machine { table, model, now, cursor: 0, steady: BTreeSet::new(), visited: BTreeMap::new() }
    }

    /// Odd keys get absolute deadlines, even ones relative.
    fn deadline(&self, number: usize, ms: Option<i64>) -> Option<Deadline> {
        ms.map(|ms| match number % 2 {
            0 => self.now.after(ms),
            _ => self.now.at(UnixMillis(self.now.unix().0.saturating_add(ms))),
        })
    }

    fn put(&mut self, number: usize, value: Value, ms: Option<i64>, access: u32) {
        let (key, deadline) = (key(number), self.deadline(number, ms));
        match self.table.at(&key) {
            Some(slot) => {
                let (old, _, access) = self.model[&key].clone();
                let object = self.table.replace(slot, value.to_new(), deadline);
                assert_eq!(
                    object.map(|object| Value::Object(*object)),
                    Some(old).filter(|old| matches!(old, Value::Object(_)))
                );
                assert_eq!(self.table.entry(slot).key(), key);
                self.model.insert(key, (value, deadline, access));
            }
            None => {
                assert!(!self.model.contains_key(&key));
                let slot = self.table.insert(
                    self.table.hash(&key),
                    &key,
                    value.to_new(),
                    deadline,
                    access,
                );
                assert_eq!(self.table.entry(slot).key(), key);
                self.model.insert(key, (value, deadline, access & 0xff_ffff));
            }
        }
    }

    fn remove(&mut self, number: usize) {
        let key = key(number);
        let owned = self.table.at(&key).map(|slot| self.table.remove(slot));
        let expected = self.model.remove(&key);
        assert_eq!(
            owned.as_ref().map(|owned| Value::of(owned.entry())),
            expected.as_ref().map(|(value, ..)| value.clone())
        );
        if let Some(owned) = owned {
            assert_eq!((owned.key(), owned.deadline()), (&*key, expected.as_ref().unwrap().1));
            let object = owned.into_object().map(|object| Value::Object(*object));
            assert_eq!(
                object,
                expected.map(|(value, ..)| value).filter(|value| matches!(value, Value::Object(_)))
            );
        }
        self.steady.remove(&key);
    }

    fn scan(&mut self, steps: usize) {
        for _ in 0..steps {
            if self.cursor == 0 {
                self.steady = self.model.keys().cloned().collect();
                self.visited.clear();
            }
            let visited = &mut self.visited;
            let most = if steps > 15 { usize::MAX } else { steps % 5 + 1 };
            self.cursor = self.table.scan(self.cursor, most, |entry| {
                *visited.entry(entry.key().to_vec()).or_default() += 1;
            });
            assert!(self.cursor < 1 << 53);
            if self.cursor == 0 {
                for key in &self.steady {
                    assert_eq!(self.visited.get(key), Some(&1), "{}", key.escape_ascii());
                }
            }
        }
    }

    fn expire(&mut self) {
        let mut due: BTreeSet<_> = self
            .model
            .iter()
            .filter(|(_, (_, deadline, _))| {
                deadline.is_some_and(|deadline| self.now.is_past(deadline))
            })
            .map(|(key, _)| key.clone())
            .collect();
        self.table.set_wall_offset(self.now.wall_offset_ms());
        if let Some(first) = self
            .model
            .values()
            .filter_map(|(_, deadline, _)| *deadline)
            .map(|d| d.boot_ms(self.now.wall_offset_ms()))
            .min()
        {
            assert!(self.table.next_due_boot_ms().unwrap() <= first || first < 0);
        } else {
            assert_eq!(self.table.next_due_boot_ms(), None);
        }
        let mut budget = usize::MAX;
        while let Some(owned) = self.table.pop_due(&self.now, &mut budget) {
            assert!(due.remove(owned.key()));
            self.model.remove(owned.key());
            self.steady.remove(owned.key());
        }
        assert!(due.is_empty());
        assert!(self.table.next_due_boot_ms().is_none_or(|ms| ms >= self.now.boot_ms()));
    }

    fn apply(&mut self, operation: Operation) {
        match operation {
            Operation::Put(number, value, ms, access) => self.put(number, value, ms, access),
            Operation::PutMany(first, count, ms) => {
                for number in first..first + count {
                    let ms =
                        ms.filter(|_| number % 3 != 0).map(|ms| ms.saturating_add(number as i64));
                    self.put(number, Value::Bytes(key(number), 0), ms, 0);
                }
            }
            Operation::Remove(number) => self.remove(number),
            Operation::RemoveMany(first, count) => {
                (first..first + count).for_each(|number| self.remove(number))
            }
            Operation::SetDeadline(number, ms) => {
                let (key, deadline) = (key(number), self.deadline(number, ms));
                if let Some(slot) = self.table.at(&key) {
                    self.table.set_deadline(slot, deadline);
                    assert_eq!(self.table.entry(slot).key(), key);
                    self.model.get_mut(&key).unwrap().1 = deadline;
                }
            }
            Operation::SetAccess(number, access) => {
                if let Some(slot) = self.table.at(&key(number)) {
                    self.table.set_access(slot, access);
                    self.model.get_mut(&key(number)).unwrap().2 = access & 0xff_ffff;
                }
            }
            Operation::Resize(number, len, kind) => {
                if let Some(slot) = self.table.at(&key(number)) {
                    let resized = self.table.resize_bytes(slot, len, kind).to_vec();
                    let (value, ..) = self.model.get_mut(&key(number)).unwrap();
                    let mut bytes = match value {
                        Value::Bytes(bytes, _) => mem::take(bytes),
                        Value::Object(_) => Vec::new(),
                    };
                    bytes.resize(len, 0);
                    assert_eq!(resized, bytes);
                    *value = Value::Bytes(bytes, kind);
                }
            }
            Operation::Edit(number) => {
                if let Some(slot) = self.table.at(&key(number)) {
                    match &mut self.model.get_mut(&key(number)).unwrap().0 {
                        Value::Bytes(bytes, _) => {
                            assert!(self.table.object_mut(slot).is_none());
                            self.table.bytes_mut(slot).unwrap().reverse();
                            bytes.reverse();
                        }
                        Value::Object(object) => {
                            assert!(self.table.bytes_mut(slot).is_none());
                            self.table.object_mut(slot).unwrap().push(9);
                            object.push(9);
                        }
                    }
                }
            }
            Operation::Advance(ms) => {
                self.now.wall_us += ms * 1000;
                self.now.boot_us += ms * 1000;
                self.expire();
            }
            Operation::StepWall(ms) => {
                self.now.wall_us += ms * 1000;
                self.expire();
            }
            Operation::Scan(steps) => self.scan(steps),
            Operation::Clear => {
                drop(self.table.clear());
                self.model.clear();
                self.steady.clear();
            }
        }
    }

    fn finish(mut self) {
        self.table.check();
        while self.cursor != 0 {
            self.scan(1);
        }
        assert_eq!(self.table.len(), self.model.len());
        for (key, (value, deadline, access)) in &self.model {
            let entry = self.table.entry(self.table.at(key).unwrap());
            assert_eq!(
                (&Value::of(entry), entry.deadline(), entry.access()),
                (value, *deadline, *access)
            );
        }
        let volatile = self.model.values().filter(|(_, deadline, _)| deadline.is_some()).count();
        assert_eq!(self.table.volatile_len(), volatile);
        let mut sampled = BTreeSet::new();
        self.table
            .sample(usize::MAX, true, |_, entry| assert!(sampled.insert(entry.key().to_vec())));
        assert_eq!(sampled.len(), volatile);
        self.table.sample(usize::MAX, false, |slot, entry| {
            assert_eq!(self.table.entry(slot).key(), entry.key());
            sampled.insert(entry.key().to_vec());
        });
        assert_eq!(sampled.len(), self.model.len());
        assert_eq!(
            self.table.iter().map(|entry| entry.key().to_vec()).collect::<BTreeSet<_>>(),
            sampled
        );
        for number in 0..2 * KEYS {
            self.remove(number);
        }
        self.table.check();
    }
}

const CASES: u32 = if cfg!(miri) { 2 } else { 96 };
const KEYS: usize = if cfg!(miri) { 300 } else { 4000 };
const STEPS: usize = if cfg!(miri) { 12 } else { 60 };

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_operations_agree_with_a_map(operations in prop::collection::vec(operation(KEYS), 1..STEPS)) {
        let mut machine = Machine::new(keyed());
        operations.into_iter().for_each(|operation| machine.apply(operation));
        machine.finish();
    }

    #[test]
    fn random_operations_agree_with_a_map_when_hashes_collide(operations in prop::collection::vec(operation(KEYS / 3), 1..STEPS)) {
        let mut machine = Machine::new(chosen(clumsy));
        operations.into_iter().for_each(|operation| machine.apply(operation));
        machine.finish();
    }

    #[test]
    #[cfg_attr(miri, ignore)] // minutes
    fn any_cursor_is_safe(count in 0..3000usize, cursor in any::<u64>(), shift in 0..64u32) {
        let mut table = keyed();
        (0..count).for_each(|number| _ = table.put(&key(number), b"", None));
        prop_assert!(table.scan(cursor >> shift, shift as usize, |_| ()) < 1 << 53);
    }
}

#[test]
fn a_scan_visits_no_more_keys_than_asked_for() {
    let mut table = keyed();
    for number in 0..if cfg!(miri) { 300 } else { 20_000 } {
        table.put(&key(number), b"", None);
        if !number.is_power_of_two() && number % 4999 != 0 {
            continue;
        }
        let (mut cursor, mut all) = (0, 0);
        loop {
            let most = all % 7 + 1;
            let mut seen = 0;
            cursor = table.scan(cursor, most, |_| seen += 1);
            assert!(seen <= most, "{seen} instead of {most}");
            all += seen;
            if cursor == 0 {
                break;
            }
        }
        assert_eq!(all, number + 1);
    }
}

#[test]
fn an_empty_table_owns_no_memory_and_answers_everything() {
    let mut table = keyed();
    assert_eq!(table.memory(), 0);
    assert!(table.at(b"a").is_none() && table.random().is_none() && table.is_empty());
    assert_eq!(table.scan(0, 10, |_| unreachable!()), 0);
    assert_eq!(table.scan(12345, 10, |_| unreachable!()), 0);
    table.sample(5, false, |_, _| unreachable!());
    assert_eq!(table.next_due_boot_ms(), None);
    assert!(table.pop_due(&START, &mut 100).is_none());
    table.set_wall_offset(5);
    table.prefetch_directory(9);
    table.prefetch_segment(9);
    table.prefetch_bucket(9);
    table.prefetch_entry(9);
    drop(table.clear());
    assert_eq!(table.iter().count(), 0);
}

#[test]
fn every_form_keeps_its_content_at_its_length_limits() {
    let key_lens: &[usize] = match cfg!(miri) {
        true => &[0, 2, 63, 65_536],
        false => &[0, 1, 2, 3, 16, 63, 64, 65_535, 65_536],
    };
    let value_lens: &[usize] = match cfg!(miri) {
        true => &[0, 2, 128],
        false => &[0, 1, 2, 3, 127, 128, 65_535, 65_536],
    };
    let deadlines = [None, Some(START.after(5)), Some(START.at(UnixMillis(77)))];
    for &key_len in key_lens {
        for &value_len in value_lens {
            for kind in [0, 9] {
                let key: Vec<u8> = (0..key_len).map(|n| n as u8).collect();
                let bytes: Vec<u8> = (0..value_len).map(|n| !(n as u8)).collect();
                let mut table = keyed();
                let slot = table.insert(
                    table.hash(&key),
                    &key,
                    NewValue::Bytes { bytes: &bytes, kind },
                    None,
                    0xab_cdef,
                );
                // Through every change of deadline, kind and type.
                for deadline in deadlines.into_iter().chain(deadlines.into_iter().rev()) {
                    let check = |table: &Table<Object>, value: Value, deadline| {
                        let entry = table.entry(slot);
                        assert!(
                            entry.key() == key && Value::of(entry) == value,
                            "{key_len} {value_len}"
                        );
                        assert_eq!((entry.deadline(), entry.access()), (deadline, 0xab_cdef));
                        assert!(
                            entry.allocated() >= 5 + key_len && entry.allocated().is_multiple_of(8)
                        );
                    };
                    table.set_deadline(slot, deadline);
                    check(&table, Value::Bytes(bytes.clone(), kind), deadline);
                    for next in deadlines {
                        let object = Value::Object(vec![1, 2]);
                        table.replace(slot, object.to_new(), next);
                        check(&table, object, next);
                        table.set_access(slot, 0x12_3456);
                        table.set_access(slot, 0xffab_cdef);
                        table.set_deadline(slot, deadline);
                        let old = table.replace(
                            slot,
                            NewValue::Bytes { bytes: &bytes, kind: 9 - kind },
                            next,
                        );
                        assert_eq!(old.as_deref(), Some(&vec![1, 2]));
                        check(&table, Value::Bytes(bytes.clone(), 9 - kind), next);
                        table.resize_bytes(slot, value_len + 1, kind);
                        table.resize_bytes(slot, value_len, kind);
                        check(&table, Value::Bytes(bytes.clone(), kind), next);
                    }
                    table.set_deadline(slot, deadline);
                }
                table.check();
            }
        }
    }
}

#[test]
fn entries_are_as_small_as_designed() {
    let mut table = keyed();
    let mut size = |value: usize, deadline| {
        let slot = table.put(b"key:000000012345", &vec![b'v'; value], deadline);
        table.entry(slot).allocated()
    };
    let deadline = Some(START.after(1000));
    assert_eq!(
        (size(3, None), size(32, None), size(32, deadline), size(200, None)),
        (24, 56, 64, 224)
    );
    assert_eq!((size_of::<Bucket>(), size_of::<Block>(), size_of::<Segment>()), (64, 1024, 64));
}

#[test]
#[cfg_attr(miri, ignore)] // minutes
fn keys_that_all_share_one_hash_are_kept_apart() {
    let mut table = chosen(|_| 0x1234_5678_9abc_def0);
    let count = 3000;
    for number in 0..count {
        table.put(&key(number), &key(number), Some(START.after(number as i64)));
    }
    table.check();
    assert!(table.directory.len() < 1000);
    let mut seen = 0;
    let mut cursor = 0;
    loop {
        cursor = table.scan(cursor, 10, |_| seen += 1);
        if cursor == 0 {
            break;
        }
    }
    assert_eq!(seen, count);
    assert!(table.random().is_some());
    for number in (0..count).rev() {
        assert_eq!(
            table.entry(table.at(&key(number)).unwrap()).deadline(),
            Some(START.after(number as i64))
        );
        assert!(table.delete(&key(number)));
    }
    table.check();
    assert!(table.memory() < 60_000, "{}", table.memory());
}

#[test]
#[cfg_attr(miri, ignore)] // minutes
fn memory_goes_back_after_mass_deletion() {
    let mut table = keyed();
    let count = 200_000;
    (0..count).for_each(|number| _ = table.put(&key(number), b"v", Some(START.after(5))));
    let full = table.memory();
    table.check();
    (0..count)
        .filter(|number| number % 50 != 0)
        .for_each(|number| assert!(table.delete(&key(number))));
    table.check();
    assert!(table.memory() < full / 8, "{full} {}", table.memory());
    (0..count)
        .filter(|number| number % 50 == 0)
        .for_each(|number| assert!(table.delete(&key(number))));
    table.check();
    assert!(table.is_empty() && table.memory() < 100_000, "{}", table.memory());
}

#[test]
fn hints_left_by_deleted_and_prolonged_keys_are_corrected_when_their_time_comes() {
    let mut table = keyed();
    const COUNT: usize = if cfg!(miri) { 150 } else { 1000 };
    for number in 0..COUNT {
        table.put(&key(number), b"", Some(START.after(100)));
    }
    for number in 0..COUNT {
        let slot = table.at(&key(number)).unwrap();
        match number % 3 {
            0 => table.set_deadline(slot, None),
            1 => drop(table.remove(slot)),
            _ => table.set_deadline(slot, Some(START.after(5000))),
        }
    }
    assert_eq!(table.next_due_boot_ms(), Some(START.boot_ms() + 100));
    assert!(table.pop_due(&later(101), &mut 10_000).is_none());
    assert_eq!(table.next_due_boot_ms(), Some(START.boot_ms() + 5000));
    assert!(table.pop_due(&later(5000), &mut 10_000).is_none());
    assert_eq!(iter::from_fn(|| table.pop_due(&later(5001), &mut 10_000)).count(), COUNT / 3);
    assert_eq!(table.next_due_boot_ms(), None);
    table.check();
}

#[test]
fn the_budget_bounds_the_buckets_looked_at() {
    let mut table = keyed();
    (0..500).for_each(|number| _ = table.put(&key(number), b"", Some(START.after(1))));
    let mut popped = 0;
    loop {
        let mut budget = 10;
        while table.pop_due(&later(2), &mut budget).is_some() {
            popped += 1;
        }
        if budget > 0 {
            break;
        }
    }
    assert_eq!(popped, 500);
}

#[test]
#[cfg_attr(miri, ignore)] // minutes
fn hints_outlive_decades() {
    const YEAR_MS: i64 = 365 * 86_400_000;
    let mut table = keyed();
    for number in 0..100 {
        table.put(&key(number), b"", Some(START.after(number as i64 * YEAR_MS)));
    }
    let mut gone = 0;
    let mut ms = 0;
    while ms < 100 * YEAR_MS {
        ms += YEAR_MS / 50;
        let now = later(ms);
        while let Some(owned) = table.pop_due(&now, &mut 10_000) {
            assert!(now.is_past(owned.deadline().unwrap()));
            gone += 1;
        }
        assert_eq!(gone, (ms - 1) / YEAR_MS + 1);
        assert!(table.next_due_boot_ms().is_none_or(|due| due >= now.boot_ms()));
        table.check();
    }
}

#[test]
fn a_clock_read_between_two_milliseconds_neither_loops_nor_delays() {
    let mut table = keyed();
    table.put(b"a", b"", Some(START.at(UnixMillis(START.unix().0 + 10))));
    // The wall clock ticks a little before the boot-time clock or after it.
    for us in (0..12_000).step_by(100) {
        for wall_us in [0, 300, 999] {
            let now = Now {
                wall_us: START.wall_us + us + wall_us,
                boot_us: START.boot_us + us,
                ignores_deadlines: false,
            };
            let mut budget = 50;
            if let Some(owned) = table.pop_due(&now, &mut budget) {
                assert!(now.is_past(owned.deadline().unwrap()));
                assert!(us >= 10_000);
                return;
            }
            assert!(budget > 45);
        }
    }
    panic!("never due");
}

#[test]
#[cfg_attr(miri, ignore)] // minutes
fn random_keys_are_uniform() {
    let mut table = keyed();
    for count in [1, 5, 300, 3000] {
        (0..count).for_each(|number| _ = table.put(&key(number), b"", None));
        let mut hits: HashMap<&[u8], usize> = HashMap::new();
        for _ in 0..60 * count {
            *hits.entry(table.entry(table.random().unwrap()).key()).or_default() += 1;
        }
        // 60 expected each, standard deviation 7.7: beyond 8 deviations is no accident.
        assert_eq!(hits.len(), count);
        assert!(hits.values().all(|&hits| hits < 60 + 62));
    }
    // Sparse: the last key of many.
    (1..3000).for_each(|number| assert!(table.delete(&key(number))));
    assert_eq!(table.entry(table.random().unwrap()).key(), key(0));
}

#[test]
fn a_cleared_table_starts_afresh_and_its_content_is_freed_elsewhere() {
    let mut table = keyed();
    (0..2000).for_each(|number| _ = table.put(&key(number), b"", Some(START.after(9))));
    let slot = table.at(&key(3)).unwrap();
    table.replace(slot, NewValue::Object(Box::new(vec![1])), None);
    let drained = table.clear();
    std::thread::spawn(move || drop(drained)).join().unwrap();
    assert_eq!(
        (table.len(), table.volatile_len(), table.next_due_boot_ms(), table.memory()),
        (0, 0, None, 0)
    );
    table.put(b"a", b"b", None);
    table.check();
}

#[test]
fn a_table_made_for_many_keys_holds_them_and_gives_up_what_was_too_much() {
    const MADE_FOR: usize = if cfg!(miri) { 3_000 } else { 100_000 };
    for keys in [0, 5, MADE_FOR / 50, MADE_FOR, MADE_FOR * 3 / 2] {
        let mut table = Table::<()>::new(KeyHasher::new([1, 2]), 0);
        table.expect(MADE_FOR);
        table.check();
        let segments = table.segments;
        for number in 0..keys {
            let key = number.to_string().into_bytes();
            let hash = table.hash(&key);
            let value = NewValue::Bytes { bytes: b"value", kind: 0 };
            table.insert(hash, &key, value, None, 0);
        }
        table.check();
        if keys == MADE_FOR {
            assert!(table.segments < segments + segments / 8, "few segments had to be split");
        }
        table.fit();
        table.check();
        if keys < 100 {
            assert_eq!((table.segments, table.segment_bytes), (1, 1024));
        }
        for number in 0..keys {
            let key = number.to_string().into_bytes();
            assert!(table.find(table.hash(&key), &key).is_some());
        }
        // A table that has keys stays as it is.
        let segments = table.segments;
        table.expect(10 * MADE_FOR);
        assert_eq!(table.segments, segments);
    }
}
