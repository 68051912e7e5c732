//! Random operations against naive models.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::clock::UnixMillis;

fn hasher() -> KeyHasher {
    KeyHasher::new([11, 22])
}

fn now(ms: i64) -> Now {
    Now { wall_us: (1_700_000_000_000 + ms) * 1000, boot_us: ms * 1000, ignores_deadlines: false }
}

/// The invariants that no single operation shows.
fn check(table: &PackedTable) {
    assert_eq!(table.pages.iter().map(Page::len).sum::<usize>(), table.len);
    let large =
        table.large.as_ref().map_or(0, |large| large.iter().map(|large| large.bytes.len()).sum());
    let bytes = table.pages.iter().map(Page::heap_bytes).sum::<usize>() + large;
    assert_eq!(bytes, table.heap_bytes);
    let mut volatile = 0;
    for (number, page) in table.pages.iter().enumerate() {
        assert!(page.len() <= table.page_len_max as usize);
        for (_, mark, bytes) in page.iter() {
            let entry = table.decode(mark, bytes);
            let hash = table.hasher.hash(entry.field);
            assert_eq!(page_of(hash, table.pages.len()), number);
            if let Some(deadline) = entry.deadline {
                volatile += 1;
                let earliest =
                    table.deadlines.as_ref().expect("deadlines are counted").page(number);
                assert_eq!(earliest.min(Earliest::of(deadline)), earliest);
                assert_eq!(table.earliest().min(earliest), table.earliest());
            }
        }
    }
    assert_eq!(volatile, table.volatile_len());
    if !table.is_ordered {
        assert!(table.len <= table.pages.len() * LOAD_MAX);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Set(Vec<u8>, usize, Option<i64>),
    Keep(Vec<u8>, usize),
    Remove(Vec<u8>),
    SetDeadline(Vec<u8>, Option<i64>, bool),
    RemoveDue(usize),
    Wait(i64),
    Spread,
    RetainShort(usize),
    Many(u32),
}

fn field() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        8 => (0..40u32).prop_map(|number| format!("field:{number}").into_bytes()),
        1 => Just(vec![]),
        2 => (120..134usize).prop_map(|len| vec![b'f'; len]),
        1 => (250..260usize).prop_map(|len| vec![b'g'; len]),
    ]
}

fn length() -> impl Strategy<Value = usize> {
    prop_oneof![5 => 0..30usize, 2 => 110..140usize, 2 => 235..260usize, 1 => 0..5000usize]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (field(), length(), prop::option::weighted(0.3, 0..300i64))
            .prop_map(|(field, len, ms)| Step::Set(field, len, ms)),
        2 => (field(), length()).prop_map(|(field, len)| Step::Keep(field, len)),
        4 => field().prop_map(Step::Remove),
        3 => (field(), prop::option::of(0..300i64), any::<bool>())
            .prop_map(|(field, ms, wall)| Step::SetDeadline(field, ms, wall)),
        2 => (1..5usize).prop_map(Step::RemoveDue),
        2 => (0..60i64).prop_map(Step::Wait),
        1 => Just(Step::Spread),
        1 => (0..8usize).prop_map(Step::RetainShort),
        1 => (0..300u32).prop_map(Step::Many),
    ]
}

type Model = Vec<(Vec<u8>, Vec<u8>, Option<Deadline>)>;

fn assert_same(table: &PackedTable, model: &Model) {
    let mut expected = model.clone();
    let mut found: Model = table
        .iter()
        .map(|entry| (entry.field.to_vec(), entry.value.to_vec(), entry.deadline))
        .collect();
    if !table.is_ordered() {
        expected.sort_by(|a, b| a.0.cmp(&b.0));
        found.sort_by(|a, b| a.0.cmp(&b.0));
    }
    assert_eq!(found, expected);
    for (field, value, deadline) in model {
        let entry = Entry { field, value, deadline: *deadline };
        assert_eq!(table.get(field), Some(entry));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_table_agrees_with_a_list_of_pairs(steps in prop::collection::vec(step(), 0..120)) {
        let mut table = PackedTable::new(hasher(), Form::Pairs);
        let mut model: Model = Vec::new();
        let mut time = now(1000);
        for step in steps {
            let at = |model: &Model, field: &[u8]| model.iter().position(|pair| pair.0 == field);
            match step {
                Step::Set(field, len, ms) => {
                    let value = vec![b'v'; len];
                    let deadline = ms.map(|ms| time.after(ms));
                    let expiry = deadline.map_or(Expiry::Clear, Expiry::At);
                    let put = table.set(&field, &value, expiry);
                    match at(&model, &field) {
                        Some(index) => {
                            prop_assert_eq!(put, Put::Replaced(model[index].2));
                            model[index] = (field, value, deadline);
                        }
                        None => {
                            prop_assert_eq!(put, Put::New);
                            model.push((field, value, deadline));
                        }
                    }
                }
                Step::Keep(field, len) => {
                    let value = vec![b'w'; len];
                    table.set(&field, &value, Expiry::Keep);
                    match at(&model, &field) {
                        Some(index) => model[index].1 = value,
                        None => model.push((field, value, None)),
                    }
                }
                Step::Remove(field) => {
                    let expected = at(&model, &field).map(|index| model.remove(index).2);
                    prop_assert_eq!(table.remove(&field), expected);
                }
                Step::SetDeadline(field, ms, wall) => {
                    let deadline = ms.map(|ms| match wall {
                        true => time.at(UnixMillis(time.unix().0 + ms)),
                        false => time.after(ms),
                    });
                    let found = at(&model, &field);
                    prop_assert_eq!(table.set_deadline(&field, deadline), found.is_some());
                    if let Some(index) = found {
                        model[index].2 = deadline;
                    }
                }
                Step::RemoveDue(budget) => {
                    let due = |deadline: Option<Deadline>| deadline.is_some_and(|it| time.is_past(it));
                    let mut gone = BTreeSet::new();
                    let mut left = budget;
                    let removed = table.remove_due(&time, &mut left, |entry| {
                        assert!(due(entry.deadline));
                        gone.insert(entry.field.to_vec());
                    });
                    prop_assert_eq!(removed, gone.len());
                    model.retain(|pair| !gone.contains(&pair.0));
                    if left > 0 {
                        prop_assert!(!model.iter().any(|pair| due(pair.2)));
                    }
                }
                Step::Wait(ms) => time = now(time.boot_ms() + ms),
                Step::Spread => table.spread(),
                Step::RetainShort(len) => {
                    table.retain(|entry| entry.field.len() != len);
                    model.retain(|pair| pair.0.len() != len);
                }
                Step::Many(count) => {
                    table.spread();
                    for number in 0..count {
                        let field = format!("many:{number}").into_bytes();
                        if table.set(&field, b"1", Expiry::Clear) == Put::New {
                            model.push((field, b"1".to_vec(), None));
                        } else {
                            let index = at(&model, &field).expect("what is replaced was there");
                            model[index] = (field, b"1".to_vec(), None);
                        }
                    }
                }
            }
            check(&table);
            prop_assert_eq!(table.len(), model.len());
            let due = model.iter().filter(|it| it.2.is_some_and(|it| time.is_past(it))).count();
            prop_assert_eq!(table.due_len(&time), due);
        }
        assert_same(&table, &model);
        assert_same(&table.clone(), &model);
    }

    #[test]
    fn a_table_built_at_once_is_as_if_its_entries_had_come_one_by_one(
        entries in prop::collection::vec((field(), length(), prop::option::weighted(0.3, 0..300i64)), 0..60),
        many in 0..200u32,
        has_twice: bool,
    ) {
        let time = now(1000);
        let others = (0..many).map(|number| (format!("many:{number}").into_bytes(), 1, None));
        let mut table = PackedTable::new(hasher(), Form::Pairs);
        table.spread();
        let (mut model, mut twice): (Model, Option<Vec<u8>>) = (Vec::new(), None);
        for (field, len, ms) in entries.into_iter().chain(others) {
            let deadline = ms.map(|ms| time.after(ms));
            if table.contains(&field) && !has_twice {
                continue;
            }
            let put = table.set(&field, &vec![b'v'; len], deadline.map_or(Expiry::Clear, Expiry::At));
            if put != Put::New {
                twice.get_or_insert_with(|| field.clone());
            }
            model.push((field, vec![b'v'; len], deadline));
        }
        let built = PackedTable::build(hasher(), Form::Pairs, model.len(), |take| {
            for (field, value, deadline) in &model {
                if !take(Entry { field, value, deadline: *deadline }) {
                    return Err(field.clone());
                }
            }
            Ok(())
        });
        match built {
            Err(field) => prop_assert_eq!(Some(field), twice),
            Ok(built) => {
                prop_assert_eq!(twice, None);
                check(&built);
                assert_same(&built, &model);
                prop_assert!(built.iter().eq(table.iter()));
                prop_assert_eq!(built.pages.len(), table.pages.len());
            }
        }
    }

    #[test]
    fn a_scan_visits_each_member_that_stays_exactly_once(
        stays in 0..400u32,
        changes in prop::collection::vec((any::<bool>(), 0..600u32), 0..40),
        is_spread: bool,
        most in 1..40usize,
    ) {
        let mut table = PackedTable::new(hasher(), Form::Members);
        if is_spread {
            table.spread();
        }
        for number in 0..stays {
            table.insert(format!("stays:{number}").as_bytes());
        }
        let mut others = BTreeSet::new();
        let mut seen: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
        let (mut cursor, mut changes) = (0, changes.into_iter());
        loop {
            let mut visited = 0;
            cursor = table.scan(cursor, most, |entry| {
                *seen.entry(entry.field.to_vec()).or_default() += 1;
                visited += 1;
            });
            prop_assert!(cursor < 1 << 53 && visited <= most);
            if cursor == 0 {
                break;
            }
            // Everything else comes and goes by hundreds.
            if let Some((add, count)) = changes.next() {
                for number in 0..count {
                    let member = format!("other:{number}");
                    if add {
                        table.insert(member.as_bytes());
                        others.insert(member);
                    } else {
                        table.remove(member.as_bytes());
                        others.remove(&member);
                    }
                }
                check(&table);
            }
        }
        for number in 0..stays {
            let member = format!("stays:{number}").into_bytes();
            prop_assert_eq!(seen.get(&member), Some(&1));
        }
        prop_assert_eq!(table.len(), stays as usize + others.len());
    }
}

#[test]
fn a_table_keeps_the_order_of_its_fields_until_it_is_spread() {
    let mut table = PackedTable::new(hasher(), Form::Pairs);
    for number in 0..600 {
        table.set(format!("{number}").as_bytes(), b"old", Expiry::Clear);
    }
    table.set(b"300", b"a longer value", Expiry::Clear);
    table.remove(b"200");
    let numbers: Vec<usize> = table
        .iter()
        .map(|entry| String::from_utf8_lossy(entry.field).parse().expect("a number"))
        .collect();
    assert_eq!(numbers, (0..600).filter(|number| *number != 200).collect::<Vec<_>>());
    assert_eq!(table.scan(0, 600, |_| ()), 0);
    table.spread();
    check(&table);
    assert!(table.pages.len() > 20);
}

#[test]
fn a_table_that_is_emptied_gives_its_memory_back() {
    let mut table = PackedTable::new(hasher(), Form::Members);
    table.spread();
    for number in 0..20_000u32 {
        assert!(table.insert(&number.to_le_bytes()));
        assert!(!table.insert(&number.to_le_bytes()));
    }
    check(&table);
    for number in 0..20_000u32 {
        assert_eq!(table.remove(&number.to_le_bytes()), Some(None));
    }
    check(&table);
    assert!(table.is_empty() && table.heap_bytes() < 1000, "{} bytes", table.heap_bytes());
}

#[test]
fn random_members_are_equally_likely() {
    let mut table = PackedTable::new(hasher(), Form::Members);
    assert_eq!(table.random(), None);
    table.spread();
    (0..100u8).for_each(|number| assert!(table.insert(&[number])));
    let mut counts = [0u32; 100];
    fastrand::seed(7);
    for _ in 0..100_000 {
        counts[usize::from(table.random().expect("there are members").field[0])] += 1;
    }
    assert!(counts.iter().all(|count| (800..1200).contains(count)), "{counts:?}");
}

#[test]
fn a_large_set_takes_few_bytes_a_member() {
    let mut table = PackedTable::new(hasher(), Form::Members);
    table.spread();
    for number in 0..200_000u32 {
        table.insert(format!("member:{number:09}").as_bytes());
    }
    let bytes = table.heap_bytes() as f64 / table.len() as f64;
    assert!(bytes < 24.0, "{bytes} bytes a member of 16");
    let mut table = PackedTable::new(hasher(), Form::Pairs);
    table.spread();
    for number in 0..200_000u32 {
        table.set(format!("field:{number:010}").as_bytes(), b"0123456789abcdef", Expiry::Clear);
    }
    let bytes = table.heap_bytes() as f64 / table.len() as f64;
    assert!(bytes < 42.0, "{bytes} bytes a pair of 32");
}

#[test]
fn looking_ahead_changes_nothing_at_any_size() {
    for form in [Form::Members, Form::Pairs] {
        let mut table = PackedTable::new(hasher(), form);
        for number in 0..300u32 {
            let field = number.to_string().repeat(1 + number as usize % 90).into_bytes();
            for stage in 0..4 {
                table.prefetch(&table.ahead(&field), stage);
                table.prefetch(&table.ahead(b"absent"), stage);
            }
            table.set(&field, b"", Expiry::Clear);
            for stage in 0..4 {
                table.prefetch(&table.ahead(&field), stage);
            }
            assert!(table.contains(&field) && !table.contains(b"absent"));
            if number == 100 {
                table.spread();
            }
        }
        check(&table);
    }
}
