use super::*;
use crate::collections::packed_table::Draw;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

fn limits(intset_entries: usize, listpack_entries: usize, listpack_value: usize) -> Limits {
    let hasher = KeyHasher::new([1, 2]);
    Limits { intset_entries, listpack_entries, listpack_value, hasher }
}

/// The limits of an unchanged configuration.
fn usual() -> Limits {
    limits(512, 128, 64)
}

fn set_of(members: impl IntoIterator<Item = impl AsRef<[u8]>>, limits: &Limits) -> Set {
    let mut set = Set::Ints(Vec::new());
    for member in members {
        Edit::unnoted(&mut set).add(member.as_ref(), limits);
    }
    set
}

fn numbers(count: usize) -> Vec<String> {
    (0..count).map(|number| number.to_string()).collect()
}

fn words(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("word {number}")).collect()
}

fn members(view: SetView<'_>) -> BTreeSet<Vec<u8>> {
    let mut found = BTreeSet::new();
    view.for_each(|member| assert!(found.insert(member.text().as_ref().to_vec())));
    found
}

#[test]
fn encodings_change_at_the_limits() {
    let limits = usual();
    for (members, encoding) in [
        (numbers(512), "intset"),
        (numbers(513), "hashtable"),
        (words(1), "listpack"),
        (words(128), "listpack"),
        (words(129), "hashtable"),
        (vec!["x".repeat(64)], "listpack"),
        (vec!["x".repeat(65)], "hashtable"),
        ([numbers(127), words(1)].concat(), "listpack"),
        ([numbers(128), words(1)].concat(), "hashtable"),
        ([numbers(10), vec!["x".repeat(65)]].concat(), "hashtable"),
        ([words(1), numbers(127)].concat(), "listpack"),
        ([words(1), numbers(128)].concat(), "hashtable"),
    ] {
        assert_eq!(set_of(&members, &limits).encoding(), encoding, "{} {members:?}", members.len());
    }
}

#[test]
fn a_member_that_is_there_converts_nothing() {
    let limits = usual();
    for members in [numbers(512), words(128), vec!["x".repeat(64)]] {
        let mut set = set_of(&members, &limits);
        let encoding = set.encoding();
        assert!(
            members.iter().all(|member| !Edit::unnoted(&mut set).add(member.as_bytes(), &limits))
        );
        assert_eq!(set.encoding(), encoding);
    }
}

#[test]
fn a_hint_of_many_members_makes_a_hashtable() {
    let limits = usual();
    for (first, count, encoding) in [
        ("1", 512, "intset"),
        ("1", 513, "hashtable"),
        ("x", 128, "listpack"),
        ("x", 129, "hashtable"),
    ] {
        assert_eq!(Set::with_hint(first.as_bytes(), count, &limits).encoding(), encoding);
    }
    for (members, count, encoding) in [
        (numbers(1), 512, "intset"),
        (numbers(1), 513, "hashtable"),
        (words(1), 128, "listpack"),
        (words(1), 129, "hashtable"),
        (words(100), 129, "hashtable"),
    ] {
        let mut set = set_of(members, &limits);
        Edit::unnoted(&mut set).expect_more(count, &limits);
        assert_eq!(set.encoding(), encoding);
    }
}

#[test]
fn longest_integers_count_with_the_limit_of_a_listpack() {
    let limits = limits(512, 128, 3);
    for (integer, encoding) in [("-99", "listpack"), ("-100", "hashtable"), ("1000", "hashtable")] {
        assert_eq!(set_of([integer, "0", "x"], &limits).encoding(), encoding, "{integer}");
    }
}

#[test]
fn what_is_left_of_many_popped_is_made_anew() {
    let limits = usual();
    let mut set = set_of(words(200), &limits);
    Edit::unnoted(&mut set).pop_many(100, &limits, |_| {});
    assert_eq!(set.encoding(), "hashtable");
    Edit::unnoted(&mut set).pop_many(84, &limits, |_| {});
    assert_eq!((set.encoding(), set.as_view().len()), ("listpack", 16));
}

/// Each of 20 members should be drawn in about a twentieth of the draws.
fn assert_fair(counts: &BTreeMap<Vec<u8>, usize>, draws: usize) {
    assert_eq!(counts.len(), 20);
    let expected = draws / 20;
    for count in counts.values() {
        assert!(count.abs_diff(expected) < expected / 3, "{counts:?}");
    }
}

#[test]
fn random_members_are_equally_likely() {
    fastrand::seed(7);
    let integers = numbers(20);
    let long: Vec<String> = words(20).iter().map(|word| word.repeat(7)).collect();
    for members in [integers, words(20), long] {
        let set = set_of(&members, &usual());
        let (mut random, mut popped) = (BTreeMap::new(), BTreeMap::new());
        let (mut sampled, mut popped_many) = (BTreeMap::new(), BTreeMap::new());
        fn count(counts: &mut BTreeMap<Vec<u8>, usize>, member: Element<'_>) {
            *counts.entry(member.text().as_ref().to_vec()).or_default() += 1;
        }
        // Made before their set is known.
        let mut draws = Draws::from_iter((0..2000).map(|_| Draw::make()));
        for _ in 0..4000 {
            count(&mut random, set.as_view().random().expect("the set has members"));
            Edit::unnoted(&mut set.clone()).pop(&mut draws, |member| count(&mut popped, member));
            set.as_view().sample(3, |member| count(&mut sampled, member));
            Edit::unnoted(&mut set.clone())
                .pop_many(18, &usual(), |member| count(&mut popped_many, member));
        }
        assert_fair(&random, 4000);
        assert_fair(&popped, 4000);
        assert_fair(&sampled, 12_000);
        assert_fair(&popped_many, 72_000);
        assert_eq!(draws.is_empty(), matches!(set, Set::Table(_)), "only a table needs them");
    }
}

#[test]
fn an_empty_member_is_sampled_once() {
    let set = set_of([vec![String::new()], words(400)].concat(), &usual());
    for _ in 0..50 {
        let mut drawn = BTreeSet::new();
        set.as_view().sample(100, |member| assert!(drawn.insert(member.text().as_ref().to_vec())));
        assert_eq!(drawn.len(), 100);
    }
}

#[derive(Clone, Debug)]
enum Change {
    Add(Vec<u8>),
    Remove(Vec<u8>),
    Pop,
    PopMany(usize),
}

fn member() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        6 => (0..60i64).prop_map(|value| value.to_string().into_bytes()),
        1 => any::<i64>().prop_map(|value| value.to_string().into_bytes()),
        2 => prop::collection::vec(b'a'..=b'c', 0..4),
        1 => (60..300usize).prop_map(|len| vec![b'x'; len]),
        1 => Just(b"007".to_vec()),
    ]
}

fn integer() -> impl Strategy<Value = Vec<u8>> {
    (-60..60i64).prop_map(|value| value.to_string().into_bytes())
}

fn changes<S: Strategy<Value = Vec<u8>>>(member: fn() -> S) -> impl Strategy<Value = Vec<Change>> {
    prop::collection::vec(
        prop_oneof![
            8 => member().prop_map(Change::Add),
            3 => member().prop_map(Change::Remove),
            1 => Just(Change::Pop),
            1 => (1..20usize).prop_map(Change::PopMany),
        ],
        0..150,
    )
}

/// The set after it was kept in the keyspace in between, as each change does.
fn stored_and_unpacked(set: Set) -> Set {
    match set.store() {
        Stored::Inline { kind, bytes } => {
            assert!(bytes.len() <= INLINE_MAX);
            Set::unpack(kind, bytes)
        }
        Stored::Boxed(Value::Set(set)) => set,
        Stored::Boxed(_) => unreachable!("a set stays one"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn a_set_does_what_a_tree_does(
        changes in prop_oneof![changes(member), changes(integer)],
        probes in prop::collection::vec(member(), 8),
        (intset_entries, listpack_entries) in (0..50usize, 0..50usize),
    ) {
        let limits = limits(intset_entries, listpack_entries, 64);
        let (mut set, mut model) = (Set::Packed(Vec::new()), BTreeSet::new());
        for change in changes {
            match change {
                Change::Add(member) => {
                    prop_assert_eq!(Edit::unnoted(&mut set).add(&member, &limits), model.insert(member));
                }
                Change::Remove(member) => {
                    prop_assert_eq!(Edit::unnoted(&mut set).remove(&member), model.remove(&member));
                }
                Change::Pop if !model.is_empty() => {
                    Edit::unnoted(&mut set).pop(&mut Draws::new(), |member| assert!(model.remove(member.text().as_ref())));
                }
                Change::PopMany(count) if count < model.len() => {
                    let before = model.len();
                    Edit::unnoted(&mut set).pop_many(count, &limits, |member| {
                        assert!(model.remove(member.text().as_ref()));
                    });
                    prop_assert_eq!(model.len(), before - count);
                }
                Change::Pop | Change::PopMany(_) => {}
            }
            set = stored_and_unpacked(set);
            prop_assert_eq!(set.is_empty(), model.is_empty());
        }
        let view = set.as_view();
        prop_assert_eq!(view.len(), model.len());
        prop_assert_eq!(&members(view), &model);
        for probe in probes {
            prop_assert_eq!(view.contains(&probe), model.contains(&probe));
            prop_assert_eq!(view.contains_element(Element::new(&probe)), model.contains(&probe));
        }
        for in_parts in [false, true] {
            let mut scanned = BTreeSet::new();
            let mut cursor = 0;
            loop {
                let visit = |member: Element<'_>| {
                    assert!(scanned.insert(member.text().as_ref().to_vec()));
                };
                cursor = match in_parts {
                    true => view.scan_in_parts(cursor, 10, &limits, visit),
                    false => view.scan(cursor, 10, visit),
                };
                if cursor == 0 {
                    break;
                }
            }
            prop_assert_eq!(&scanned, &model);
        }
        for count in [0, 1, model.len() / 5, model.len() / 2, model.len() + 3] {
            let mut sample = BTreeSet::new();
            view.sample(count, |member| {
                assert!(sample.insert(member.text().as_ref().to_vec()));
            });
            prop_assert_eq!(sample.len(), count.min(model.len()));
            prop_assert!(sample.is_subset(&model));
        }
        let encoding = set.encoding();
        let all_integers = model.iter().all(|member| parse_i64(member).is_some());
        Edit::unnoted(&mut set).prefer_integers(&limits);
        if all_integers && model.len() <= intset_entries {
            prop_assert_eq!(set.encoding(), "intset");
        } else {
            prop_assert_eq!(set.encoding(), encoding);
        }
        prop_assert_eq!(&members(set.as_view()), &model);
    }
}
