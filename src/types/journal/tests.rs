//! Large collections that are changed at random while a journal records, against copies made
//! before.

use fastrand::Rng;
use proptest::prelude::*;

use super::*;
use crate::clock::{Clock, Expiry, ManualClock, Now, UnixMillis};
use crate::collections::hash::KeyHasher;
use crate::types::hash::{self, Hash};
use crate::types::list::{self, List};
use crate::types::set::{self, Set, SetView};
use crate::types::sorted_set::{self, SortedSet};
use crate::types::stream::{Keep, NewId, NodeLimits, Stream, StreamId, Trim};

fn hasher() -> KeyHasher {
    KeyHasher::new([3, 4])
}
const ROOM: usize = 64 << 20;

fn now() -> Now {
    Clock::Manual(ManualClock::new(UnixMillis(1_700_000_000_000))).now()
}

/// Everything that a client can see of a value; elements without an order are sorted.
fn shown(value: &Value) -> Vec<String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut lines: Vec<String> = match value {
        Value::String(_) => Vec::new(),
        Value::List(list) => {
            list.as_view().forwards(0).map(|it| text(it.text().as_ref())).collect()
        }
        Value::Hash(hash) => {
            let mut fields = Vec::new();
            hash.as_view().for_each_kept(|field, _| fields.push(field.to_vec()));
            fields.sort();
            let show = |field: &Vec<u8>| {
                let found = hash.as_view().get(field, &now()).expect("the field is there");
                format!("{}={} {:?}", text(field), text(found.value.as_ref()), found.deadline)
            };
            fields.iter().map(show).collect()
        }
        Value::Set(set) => {
            let mut members = Vec::new();
            set.as_view().for_each(|it| members.push(text(it.text().as_ref())));
            members.sort();
            members
        }
        Value::SortedSet(set) => set
            .as_view()
            .iter()
            .map(|(score, it)| format!("{score} {}", text(it.as_ref())))
            .collect(),
        Value::Stream(stream) => {
            let entries = stream.entries();
            let show = |entry: crate::types::stream::Entry<'_>| {
                let id = entry.id;
                let pieces: Vec<_> = entry
                    .map(|(field, value)| {
                        (text(field.text().as_ref()), text(value.text().as_ref()))
                    })
                    .collect();
                format!("{id:?} {pieces:?}")
            };
            let mut lines: Vec<_> = entries.range(StreamId::MIN, StreamId::MAX).map(show).collect();
            lines.push(format!(
                "{} {:?} {:?} {:?} {:?} {} {}",
                entries.len(),
                entries.first(),
                entries.top(),
                entries.last,
                entries.max_deleted,
                entries.added,
                entries.nodes()
            ));
            lines
        }
    };
    lines.push(value.encoding().to_owned());
    lines
}

/// Lets `change` change a value in several edits, and plays them back in two parts.
fn check(mut value: Value, seed: u64, change: impl Fn(&mut Value, &mut Journal, &mut Rng)) {
    let mut random = Rng::with_seed(seed);
    let mut journal = Journal::default();
    let mut before = Vec::new();
    for _ in 0..random.usize(1..6) {
        before.push((journal.len(), shown(&value)));
        journal.begin(ROOM);
        for _ in 0..random.usize(0..30) {
            change(&mut value, &mut journal, &mut random);
        }
        assert!(journal.end().is_some());
    }
    for (first, was) in before.into_iter().rev() {
        if first == 0 || random.bool() {
            journal.play_back(first, Some(&mut value));
            assert_eq!(shown(&value), was);
        }
    }
    assert!(journal.is_empty() && journal.bytes.is_empty());
}

fn word(random: &mut Rng) -> Vec<u8> {
    match random.u8(..20) {
        0 => vec![b'x'; random.usize(..700)],
        1 => Vec::new(),
        2..12 => random.i32(-400..400).to_string().into_bytes(),
        _ => format!("word:{}", random.u16(..400)).into_bytes(),
    }
}

fn change_list(value: &mut Value, journal: &mut Journal, random: &mut Rng) {
    let Value::List(list) = value else { panic!("no list") };
    let mut list = Edit::new(list, Some(journal));
    let limits = list::Limits::from_setting(if random.bool() { -1 } else { 16 });
    let end = if random.bool() { End::Front } else { End::Back };
    let text = word(random);
    match random.u8(..20) {
        0..5 => {
            list.make_room(text.len(), 1, &limits);
            list.push(end, &text, &limits);
        }
        5..9 => drop(list.pop(end, |_| ())),
        9..12 => drop(list.set(random.usize(..=list.len()), &text, &limits)),
        12..15 => {
            list.make_room(text.len(), 1, &limits);
            list.insert(&word(random), random.bool(), &text, &limits);
        }
        15..18 => drop(list.remove(end, &text, random.usize(1..4), &limits)),
        18 => list.drop_many(end, random.usize(..list.len().min(50) + 1)),
        // Nearly all: it becomes short.
        _ => {
            let left = random.usize(..6);
            list.drop_many(end, list.len().saturating_sub(left));
        }
    }
    list.settle(&limits);
}

fn change_hash(value: &mut Value, journal: &mut Journal, random: &mut Rng) {
    let Value::Hash(hash) = value else { panic!("no hash") };
    let mut hash = Edit::new(hash, Some(journal));
    let limits = hash::Limits { entries_max: 420, bytes_max: 64, hasher: hasher() };
    let (field, text) = (word(random), word(random));
    let deadline = now().after(random.i64(1..1000));
    match random.u8(..12) {
        0..3 => drop(hash.set(&field, &text, Expiry::Clear, &limits, &now())),
        3 => drop(hash.set(&field, &text, Expiry::At(deadline), &limits, &now())),
        4 => drop(hash.set(&field, &text, Expiry::Keep, &limits, &now())),
        5..8 => drop(hash.remove(&field, &now())),
        8 => hash.set_deadline(&field, Some(deadline), &limits),
        9 => hash.set_deadline(&field, None, &limits),
        _ => hash.prepare([&text[..]].into_iter(), &limits),
    }
}

fn change_set(value: &mut Value, journal: &mut Journal, random: &mut Rng) {
    let Value::Set(set) = value else { panic!("no set") };
    let mut set = Edit::new(set, Some(journal));
    let limits = set_limits(900);
    let member = match random.u8(..10) {
        0 => word(random),
        _ => random.i32(-400..1200).to_string().into_bytes(),
    };
    match random.u16(..200) {
        0..90 => drop(set.add(&member, &limits)),
        90..150 => drop(set.remove(&member)),
        150..190 if !set.as_view().is_empty() => set.pop(&mut Default::default(), |_| ()),
        190 => set.expect_more(random.usize(..2000), &limits),
        len => {
            let there = set.as_view().len();
            let most = if len.is_multiple_of(2) { there } else { there.min(20) };
            if most > 0 {
                set.pop_many(random.usize(..most), &limits, |_| ());
            }
        }
    }
}

fn set_limits(intset_entries: usize) -> set::Limits {
    set::Limits { intset_entries, listpack_entries: 300, listpack_value: 64, hasher: hasher() }
}

fn change_sorted_set(value: &mut Value, journal: &mut Journal, random: &mut Rng) {
    let Value::SortedSet(set) = value else { panic!("no sorted set") };
    let mut set = Edit::new(set, Some(journal));
    let limits = sorted_set::Limits { entries: 420, value: 64 };
    let member = word(random);
    let score = match random.u8(..5) {
        0 => -0.0,
        1 => f64::INFINITY,
        _ => f64::from(random.i8(..)) / 4.0,
    };
    match random.u8(..10) {
        0..5 => drop(set.insert(score, &member, limits)),
        5..8 => drop(set.remove(&member)),
        8 => drop(set.pop_min()),
        _ => {
            let start = random.usize(..=set.len());
            let end = set.len().min(start + random.usize(..40));
            set.remove_ranks(start..end);
        }
    }
}

fn change_stream(value: &mut Value, journal: &mut Journal, random: &mut Rng) {
    let Value::Stream(stream) = value else { panic!("no stream") };
    let mut entries = Edit::new(stream.entries_mut(), Some(journal));
    let limits = NodeLimits { bytes: 4096, entries: 10 };
    let id = |random: &mut Rng| StreamId { ms: random.u64(..400), seq: random.u64(..3) };
    match random.u8(..12) {
        0..6 => {
            let words: Vec<_> = (0..4).map(|_| word(random)).collect();
            let wanted = NewId::Now(random.u64(..400));
            let fields = random.usize(1..3);
            let _ = entries.add(wanted, fields, |index| &words[index], limits);
        }
        6..9 => {
            let ids: Vec<_> = (0..random.usize(1..8)).map(|_| id(random)).collect();
            entries.delete(&ids);
        }
        9..11 => {
            let keep = match random.bool() {
                true => Keep::Newest(entries.len().saturating_sub(random.u64(..40))),
                false => Keep::From(StreamId { ms: random.u64(..80), seq: 0 }),
            };
            entries.trim(Trim { keep, is_approximate: random.bool(), limit: 0 });
        }
        _ => {
            let added = random.bool().then(|| random.i64(..1000));
            let last = entries.last;
            entries.set_remembered(last, added, Some(id(random)));
        }
    }
}

fn filled(mut value: Value, steps: usize, fill: impl Fn(&mut Value, usize)) -> Value {
    for step in 0..steps {
        fill(&mut value, step);
    }
    value
}

fn large_list(len: usize) -> Value {
    let limits = list::Limits::from_setting(-1);
    filled(Value::List(List::default()), len, |value, step| {
        let Value::List(list) = value else { unreachable!() };
        let text = format!("word:{}", step % 400);
        Edit::unnoted(list).make_room(text.len(), 1, &limits);
        Edit::unnoted(list).push(End::Back, text.as_bytes(), &limits);
    })
}

fn large_hash(len: usize) -> Value {
    let limits = hash::Limits { entries_max: len / 2, bytes_max: 64, hasher: hasher() };
    filled(Value::Hash(Hash::default()), len, |value, step| {
        let Value::Hash(hash) = value else { unreachable!() };
        Edit::unnoted(hash).set(
            format!("word:{step}").as_bytes(),
            b"value",
            Expiry::Clear,
            &limits,
            &now(),
        );
    })
}

fn large_set(len: usize, intset_entries: usize) -> Value {
    let limits = set_limits(intset_entries);
    filled(Value::Set(Set::with_hint(b"0", 1, &limits)), len, |value, step| {
        let Value::Set(set) = value else { unreachable!() };
        Edit::unnoted(set).add(step.to_string().as_bytes(), &limits);
    })
}

fn large_sorted_set(len: usize, entries: usize) -> Value {
    let limits = sorted_set::Limits { entries, value: 64 };
    filled(Value::SortedSet(SortedSet::new()), len, |value, step| {
        let Value::SortedSet(set) = value else { unreachable!() };
        Edit::unnoted(set).insert((step % 50) as f64, format!("word:{step}").as_bytes(), limits);
    })
}

fn large_stream(len: usize) -> Value {
    filled(Value::Stream(Stream::default()), len, |value, _| {
        let Value::Stream(stream) = value else { unreachable!() };
        let piece = |index: usize| if index == 0 { &b"field"[..] } else { b"value" };
        let limits = NodeLimits { bytes: 4096, entries: 10 };
        let _ = Edit::unnoted(stream.entries_mut()).add(NewId::Now(1), 1, piece, limits);
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn lists_are_put_back(seed in any::<u64>(), len in 0..1500usize) {
        check(large_list(len), seed, change_list);
    }

    #[test]
    fn hashes_are_put_back(seed in any::<u64>(), len in 10..600usize) {
        check(large_hash(len), seed, change_hash);
    }

    #[test]
    fn sets_are_put_back(seed in any::<u64>(), len in 0..1100usize, many in any::<bool>()) {
        check(large_set(len, if many { 5000 } else { 100 }), seed, change_set);
    }

    #[test]
    fn sorted_sets_are_put_back(seed in any::<u64>(), len in 100..600usize, few in any::<bool>()) {
        check(large_sorted_set(len, if few { 10 } else { 420 }), seed, change_sorted_set);
    }

    #[test]
    fn streams_are_put_back(seed in any::<u64>(), len in 0..100usize) {
        check(large_stream(len), seed, change_stream);
    }
}

#[test]
fn a_journal_takes_no_more_than_its_room() {
    let mut value = large_set(2000, 100);
    let Value::Set(set) = &mut value else { unreachable!() };
    let mut journal = Journal::default();
    journal.begin(100);
    for member in 0..50 {
        assert!(Edit::new(&mut *set, Some(&mut journal)).remove(member.to_string().as_bytes()));
    }
    assert_eq!(journal.end(), None);
    assert!(journal.len() * size_of::<Item>() <= 100);
}

#[test]
fn a_form_that_is_given_up_is_not_copied() {
    let mut value = large_set(900, 5000);
    let Value::Set(set) = &mut value else { unreachable!() };
    let SetView::Ints(_) = set.as_view() else { panic!("no integers") };
    let mut journal = Journal::default();
    journal.begin(200);
    assert!(Edit::new(set, Some(&mut journal)).add(b"no integer", &set_limits(5000)));
    assert!(journal.end().is_some(), "there was room for little more than the member");
    let mut given_up = 0;
    journal.forget(|_| given_up += 1);
    assert_eq!(given_up, 1);
}
