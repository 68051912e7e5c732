//! The cost of a snapshot to the loop for values of every shape: of the step that copies the value,
//! and of the first change after it.
//!
//! The thread's allocated bytes are measured: a shared part that is not copied allocates nothing.

use super::tests::snapshot_of;
use super::*;
use crate::clock::{Clock, Expiry};
use crate::collections::table::Slot;
use crate::sys::jemalloc;
use crate::types::hash::{self, Hash};
use crate::types::journal::Edit;
use crate::types::list::{self, End, List};
use crate::types::set::{self, Set};
use crate::types::sorted_set::{self, SortedSet};
use crate::types::stream::{Entries, Group, NewId, NodeLimits, Pending, Stream, StreamId};

/// The limit of allocations for taking a value, or for the first change after it: some ten
/// microseconds. The maximum is the split of a leaf of a sorted set, which changes some dozen pages
/// of its index. Unit: bytes.
const COPIED_MAX: u64 = 512 * 1024;
/// The limit of allocations for a step of the walk, with a chunk's buffer that grows. Unit: bytes.
const STEP_MAX: u64 = 1024 * 1024;
/// Elements of a large collection: a copy of eight bytes for each would exceed the limit.
const MANY: usize = 80_000;

const NODES: NodeLimits = NodeLimits { bytes: 4096, entries: 100 };

fn hasher() -> KeyHasher {
    KeyHasher::new([3, 4])
}

/// Bytes that this thread has allocated since its beginning.
fn allocated() -> u64 {
    jemalloc::number("thread.allocated", None).expect("the allocator counts")
}

/// The number of forms that [`form_of`] distinguishes.
const FORMS: usize = 9;

/// A number for each form in which a table holds a value. A new form needs a shape in [`shapes`].
fn form_of(value: ValueRef<'_, Value>) -> usize {
    match value {
        ValueRef::Bytes { .. } => 0,
        ValueRef::Object(value) => match value {
            Value::String(_) => 1,
            Value::List(List::Packed(_)) => 2,
            Value::List(List::Long(_)) => 3,
            // As long as these are packed, they are inside their entries.
            Value::Hash(Hash::Packed(_))
            | Value::Set(Set::Packed(_))
            | Value::SortedSet(SortedSet::Packed(_)) => 0,
            Value::Hash(Hash::Table(_)) => 4,
            Value::Set(Set::Ints(_)) => 5,
            Value::Set(Set::Table(_)) => 6,
            Value::SortedSet(SortedSet::Large(_)) => 7,
            Value::Stream(_) => 8,
        },
    }
}

/// A value, and small changes of it.
struct Shape {
    name: &'static str,
    value: fn(&mut Keyspace, &[u8]),
    changes: &'static [fn(&mut Keyspace, Slot)],
}

fn text(number: usize) -> Vec<u8> {
    format!("element:{number}").into_bytes()
}

fn list(setting: i32, count: usize, element: impl Fn(usize) -> Vec<u8>) -> List {
    let limits = list::Limits::from_setting(setting);
    let mut list = List::default();
    let mut edit = Edit::unnoted(&mut list);
    for number in 0..count {
        let element = element(number);
        edit.make_room(element.len(), 1, &limits);
        edit.push(End::Back, &element, &limits);
    }
    list
}

fn hash(count: usize, value: &[u8], expiry: fn(usize, &Keyspace) -> Expiry, db: &Keyspace) -> Hash {
    let limits = hash::Limits { entries_max: 128, bytes_max: 64, hasher: hasher() };
    let mut hash = Hash::default();
    for number in 0..count {
        Edit::unnoted(&mut hash).set(&text(number), value, expiry(number, db), &limits, &db.now());
    }
    hash
}

fn set_field(db: &mut Keyspace, slot: Slot, number: usize) {
    let limits = hash::Limits { entries_max: 128, bytes_max: 64, hasher: hasher() };
    let now = db.now();
    db.edit(slot, |hash: &mut Edit<'_, Hash>| {
        hash.set(&text(number), b"changed", Expiry::At(now.after(5)), &limits, &now);
    });
}

fn set(count: usize, member: impl Fn(usize) -> Vec<u8>) -> Set {
    let limits = set_limits();
    let mut set = Set::with_hint(&member(0), 1, &limits);
    for number in 0..count {
        Edit::unnoted(&mut set).add(&member(number), &limits);
    }
    set
}

fn set_limits() -> set::Limits {
    set::Limits { intset_entries: 512, listpack_entries: 128, listpack_value: 64, hasher: hasher() }
}

fn add_member(db: &mut Keyspace, slot: Slot, member: &[u8]) {
    let added = db.edit(slot, |set: &mut Edit<'_, Set>| set.add(member, &set_limits()));
    assert!(added);
}

const SORTED: sorted_set::Limits = sorted_set::Limits { entries: 128, value: 64 };

fn sorted_set(count: usize, score: fn(usize) -> f64) -> SortedSet {
    let mut set = SortedSet::new();
    for number in 0..count {
        Edit::unnoted(&mut set).insert(score(number), &text(number), SORTED);
    }
    set
}

fn add_entry(entries: &mut Edit<'_, Entries>) {
    entries.add(NewId::Now(1), 1, |_| b"field", NODES).expect("there are more IDs");
}

/// A stream with groups. The consumers of each group have `pending` pending entries in total.
fn stream(entries: usize, groups: usize, consumers: usize, pending: usize) -> Stream {
    let mut stream = Stream::default();
    for _ in 0..entries {
        add_entry(&mut Edit::unnoted(stream.entries_mut()));
    }
    for name in 0..groups {
        let mut group = Group::new(StreamId::MIN, None);
        for number in 0..consumers {
            group.meet_consumer(&text(number), 1);
        }
        for number in 0..pending {
            let consumer = (number % consumers) as u32;
            let id = StreamId { ms: 1, seq: number as u64 };
            group.assign(id, Pending { consumer, delivered_ms: 1, deliveries: 1 });
        }
        stream.groups.insert(&text(name), group);
    }
    stream
}

/// Changes the first group.
fn change_group(db: &mut Keyspace, slot: Slot, change: impl FnOnce(&mut Group)) {
    let (_, groups) = db.groups_mut(slot).expect("a stream");
    change(groups.get_mut(&text(0)).expect("its first group"));
}

fn insert_stream(db: &mut Keyspace, key: &[u8], value: Stream) {
    db.insert_stream(db.key(key), value);
}

fn insert_collection<C: crate::types::Collection>(db: &mut Keyspace, key: &[u8], value: C) {
    db.insert_collection(db.key(key), value);
}

fn shapes() -> Vec<Shape> {
    vec![
        Shape {
            name: "a string inside its entry",
            value: |db, key| db.set_string(db.key(key), &[b'x'; 4000], Expiry::Clear),
            changes: &[|db, slot| db.edit_string(slot, |text| text.push(b'!'))],
        },
        Shape {
            name: "a large string",
            value: |db, key| db.set_string(db.key(key), &vec![b'x'; 4 << 20], Expiry::Clear),
            // How its pieces change is tested where they are.
            changes: &[],
        },
        Shape {
            name: "a list in one run",
            value: |db, key| insert_collection(db, key, list(-5, 100, |_| vec![b'x'; 600])),
            changes: &[|db, slot| {
                let limits = list::Limits::from_setting(-5);
                db.edit(slot, |list: &mut Edit<'_, List>| list.push(End::Back, b"x", &limits));
            }],
        },
        Shape {
            name: "a list with an element in each run",
            value: |db, key| insert_collection(db, key, list(1, MANY, text)),
            changes: &[
                |db, slot| {
                    let limits = list::Limits::from_setting(1);
                    db.edit(slot, |list: &mut Edit<'_, List>| {
                        list.push(End::Front, b"x", &limits);
                        list.push(End::Back, b"x", &limits);
                    });
                },
                |db, slot| {
                    let limits = list::Limits::from_setting(1);
                    db.edit(slot, |list: &mut Edit<'_, List>| {
                        assert!(list.set(MANY / 2, b"x", &limits));
                        assert!(list.insert(&text(MANY / 3), true, b"y", &limits));
                    });
                },
            ],
        },
        Shape {
            name: "a list of full runs",
            value: |db, key| insert_collection(db, key, list(-2, MANY, text)),
            changes: &[|db, slot| {
                let limits = list::Limits::from_setting(-2);
                db.edit(slot, |list: &mut Edit<'_, List>| {
                    list.push(End::Back, b"x", &limits);
                    assert!(list.set(MANY / 2, b"x", &limits));
                });
            }],
        },
        Shape {
            name: "a small hash",
            value: |db, key| {
                let hash = hash(20, b"value", |_, _| Expiry::Clear, db);
                insert_collection(db, key, hash);
            },
            changes: &[|db, slot| set_field(db, slot, 5)],
        },
        Shape {
            name: "a hash",
            value: |db, key| {
                let hash = hash(MANY, b"value", |_, _| Expiry::Clear, db);
                insert_collection(db, key, hash);
            },
            changes: &[|db, slot| set_field(db, slot, 5), |db, slot| set_field(db, slot, MANY + 1)],
        },
        Shape {
            name: "a hash of long values",
            value: |db, key| {
                let hash = hash(20_000, &[b'x'; 1000], |_, _| Expiry::Clear, db);
                insert_collection(db, key, hash);
            },
            changes: &[|db, slot| set_field(db, slot, 5)],
        },
        Shape {
            name: "a hash whose long values were deleted",
            value: |db, key| {
                let mut hash = hash(MANY, &[b'x'; 300], |_, _| Expiry::Clear, db);
                let limits = hash::Limits { entries_max: 128, bytes_max: 64, hasher: hasher() };
                for number in 200..MANY {
                    let expiry = Expiry::Clear;
                    let mut edit = Edit::unnoted(&mut hash);
                    edit.set(&text(number), b"short", expiry, &limits, &db.now());
                }
                insert_collection(db, key, hash);
            },
            changes: &[|db, slot| set_field(db, slot, 5)],
        },
        Shape {
            name: "a hash of expiring fields",
            value: |db, key| {
                let after =
                    |number, db: &Keyspace| Expiry::At(db.now().after(1000 + number as i64));
                let hash = hash(MANY, b"value", after, db);
                insert_collection(db, key, hash);
                let slot = db.find(db.key(key)).expect("it was just added");
                db.note_field_deadlines(slot, key);
            },
            changes: &[|db, slot| set_field(db, slot, 5)],
        },
        Shape {
            name: "a set of integers",
            value: |db, key| {
                let member = |number: usize| (number * 1_000_000_000_000).to_string().into_bytes();
                insert_collection(db, key, set(512, member));
            },
            changes: &[|db, slot| add_member(db, slot, b"17")],
        },
        Shape {
            name: "a set",
            value: |db, key| insert_collection(db, key, set(MANY, text)),
            changes: &[|db, slot| add_member(db, slot, b"new")],
        },
        Shape {
            name: "a sorted set",
            value: |db, key| insert_collection(db, key, sorted_set(MANY, |number| number as f64)),
            changes: &[
                |db, slot| {
                    db.edit(slot, |set: &mut Edit<'_, SortedSet>| {
                        set.insert(40_000.5, b"new", SORTED)
                    });
                },
                |db, slot| drop(db.edit(slot, |set: &mut Edit<'_, SortedSet>| set.pop_min())),
            ],
        },
        Shape {
            name: "a sorted set of equal scores",
            value: |db, key| insert_collection(db, key, sorted_set(MANY, |_| 1.0)),
            changes: &[|db, slot| {
                db.edit(slot, |set: &mut Edit<'_, SortedSet>| {
                    set.insert(1.0, b"element:5x", SORTED)
                });
            }],
        },
        Shape {
            name: "a small stream",
            value: |db, key| insert_stream(db, key, stream(3, 1, 2, 3)),
            changes: &[
                |db, slot| db.edit_entries(slot, add_entry).expect("a stream"),
                |db, slot| change_group(db, slot, |group| group.last = StreamId::MAX),
            ],
        },
        Shape {
            name: "a stream of many entries",
            value: |db, key| insert_stream(db, key, stream(20 * MANY, 0, 0, 0)),
            changes: &[
                |db, slot| db.edit_entries(slot, add_entry).expect("a stream"),
                |db, slot| {
                    let deleted = [StreamId { ms: 1, seq: 555 }, StreamId { ms: 1, seq: 30_000 }];
                    assert_eq!(db.edit_entries(slot, |it| it.delete(&deleted)), Ok(2));
                },
            ],
        },
        Shape {
            name: "a stream with many pending entries",
            value: |db, key| insert_stream(db, key, stream(10, 2, 3, MANY)),
            changes: &[
                |db, slot| {
                    change_group(db, slot, |group| {
                        assert!(group.acknowledge(StreamId { ms: 1, seq: 30_000 }));
                    });
                },
                |db, slot| {
                    change_group(db, slot, |group| {
                        let pending = Pending { consumer: 1, delivered_ms: 2, deliveries: 2 };
                        group.assign(StreamId { ms: 2, seq: 0 }, pending);
                        group.redeliver(StreamId { ms: 1, seq: 1000 }, 5);
                    });
                },
            ],
        },
        Shape {
            name: "a stream with many consumers",
            value: |db, key| insert_stream(db, key, stream(10, 1, MANY, MANY)),
            changes: &[|db, slot| {
                change_group(db, slot, |group| {
                    assert!(!group.meet_consumer(b"element:77", 9).1);
                    assert!(group.meet_consumer(b"new", 9).1);
                });
            }],
        },
        Shape {
            name: "a stream with many groups",
            value: |db, key| insert_stream(db, key, stream(10, 10_000, 1, 2)),
            changes: &[
                |db, slot| change_group(db, slot, |group| group.last = StreamId::MAX),
                |db, slot| {
                    let (_, groups) = db.groups_mut(slot).expect("a stream");
                    assert!(groups.remove(b"element:500"));
                },
            ],
        },
    ]
}

/// A keyspace with a key `k` of this shape.
fn with(shape: &Shape) -> Keyspace {
    let mut db = Keyspace::new(1, hasher(), Clock::System.now());
    (shape.value)(&mut db, b"k");
    db
}

fn slot_of(db: &mut Keyspace) -> Slot {
    db.find(db.key(b"k")).expect("the key is there")
}

#[test]
fn a_value_of_any_shape_is_taken_and_changed_in_parts() {
    let mut seen = [false; FORMS];
    for shape in shapes() {
        let Shape { name, changes, .. } = shape;
        let mut db = with(&shape);
        let slot = slot_of(&mut db);
        seen[form_of(db.entry(slot).value())] = true;
        let before = allocated();
        let mut kept = vec![snapshot_of(&mut db)];
        while let Walked::More = db.walk_snapshot() {}
        let taken = allocated() - before;
        assert!(taken < COPIED_MAX, "taking {name} allocates {taken} bytes");
        for (number, change) in changes.iter().enumerate() {
            let slot = slot_of(&mut db);
            let before = allocated();
            change(&mut db, slot);
            let changed = allocated() - before;
            assert!(changed < COPIED_MAX, "change {number} of {name} allocates {changed} bytes");
            // The next change is the first one after another snapshot.
            kept.push(snapshot_of(&mut db));
            while let Walked::More = db.walk_snapshot() {}
        }
    }
    assert_eq!(seen, [true; FORMS], "each form has a shape");
}

#[test]
fn a_step_copies_little_whatever_the_entries_are() {
    for shape in shapes() {
        let mut db = Keyspace::new(1, hasher(), Clock::System.now());
        (shape.value)(&mut db, b"0");
        let slot = db.find(db.key(b"0")).expect("it was just added");
        // Those of a shape that is shared need not be more.
        let bytes = match db.entry(slot).value() {
            ValueRef::Bytes { bytes, .. } => bytes.len(),
            ValueRef::Object(object) => object.heap_bytes(),
        };
        for number in 1..(2 << 20) / bytes.max(200) {
            (shape.value)(&mut db, number.to_string().as_bytes());
        }
        let _kept = snapshot_of(&mut db);
        loop {
            let before = allocated();
            let walked = db.walk_snapshot();
            let step = allocated() - before;
            assert!(step < STEP_MAX, "a step over {}: {step} bytes", shape.name);
            if let Walked::Done = walked {
                break;
            }
        }
    }
}

#[test]
fn a_change_beside_long_strings_copies_none_of_them() {
    let mut db = Keyspace::new(1, hasher(), Clock::System.now());
    for number in 0..1500 {
        let (name, value) = (number.to_string(), vec![b'x'; 16_000]);
        db.set_string(db.key(name.as_bytes()), &value, Expiry::Clear);
    }
    let sent = snapshot_of(&mut db);
    // Segments are split, rebuilt and merged.
    let before = allocated();
    for number in 1500..20_000 {
        let name = number.to_string();
        db.set_string(db.key(name.as_bytes()), b"", Expiry::Clear);
    }
    for number in 1500..20_000 {
        let name = number.to_string();
        db.delete(db.key(name.as_bytes()), "del");
    }
    let copied = db.snapshot_copied();
    assert_eq!((copied, sent.lock().expect("one thread").len()), (0, 0));
    assert!(allocated() - before < 20 << 20);
    // A string that changes is copied alone.
    db.set_string(db.key(b"7"), b"", Expiry::Clear);
    assert!((16_000..17_000).contains(&db.snapshot_copied()), "{}", db.snapshot_copied());
}
