use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const LIMITS: Limits = Limits { entries: 128, value: 64 };

fn sorted(model: &BTreeMap<Vec<u8>, f64>) -> Vec<(f64, Vec<u8>)> {
    let mut all: Vec<_> = model.iter().map(|(member, score)| (*score, member.clone())).collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
    all
}

fn contents(view: SortedSetView<'_>) -> Vec<(f64, Vec<u8>)> {
    view.iter().map(|(score, member)| (score, member.as_ref().to_vec())).collect()
}

/// Stores and takes up again, as the keyspace does between two commands.
fn through_the_keyspace(set: SortedSet) -> SortedSet {
    match set.store() {
        Stored::Inline { kind, bytes } => {
            assert!(bytes.len() <= INLINE_MAX);
            SortedSet::unpack(kind, bytes)
        }
        Stored::Boxed(Value::SortedSet(set)) => set,
        Stored::Boxed(other) => panic!("a sorted set became {other:?}"),
    }
}

fn score() -> impl Strategy<Value = f64> {
    prop_oneof![
        (-20..20i64).prop_map(|score| score as f64),
        (-20..20i64).prop_map(|score| score as f64 / 8.0),
        any::<i64>().prop_map(|score| score as f64),
        Just(f64::INFINITY),
        Just(f64::NEG_INFINITY),
        Just(1e-300),
        Just(-0.0),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn a_sorted_set_is_the_same_in_every_form(
        steps in prop::collection::vec((0..4u8, 0..200u16, score(), any::<bool>()), 1..300)
    ) {
        let (mut set, mut model) = (SortedSet::new(), BTreeMap::new());
        for (what, number, score, is_number) in steps {
            let member = match is_number {
                true => number.to_string().into_bytes(),
                false => format!("member-{number}").into_bytes(),
            };
            if what == 0 {
                prop_assert_eq!(Edit::unnoted(&mut set).remove(&member), model.remove(&member));
            } else {
                let score = score + 0.0;
                let before = model.insert(member.clone(), score);
                let expected = match before {
                    None => Updated::Added,
                    Some(old) if old == score => Updated::Unchanged,
                    Some(_) => Updated::Changed,
                };
                prop_assert_eq!(Edit::unnoted(&mut set).update(&member, LIMITS, |_| Some(score)), expected);
            }
            set = through_the_keyspace(set);
        }
        let expected = sorted(&model);
        let view = set.as_view();
        prop_assert_eq!(view.len(), expected.len());
        prop_assert_eq!(&contents(view), &expected);
        for (rank, (score, member)) in expected.iter().enumerate() {
            prop_assert_eq!(view.rank(member), Some((rank, *score)));
            prop_assert_eq!(view.score(member), Some(*score));
        }
        let mut reversed = Vec::new();
        view.each(0..view.len(), true, |score, member| reversed.push((score, member.to_vec())));
        reversed.reverse();
        prop_assert_eq!(&reversed, &expected);
        let (from, to) = (expected.len() / 3, expected.len() / 2);
        Edit::unnoted(&mut set).remove_ranks(from..to);
        let mut left = expected;
        left.drain(from..to);
        prop_assert_eq!(contents(set.as_view()), left);
    }
}

#[test]
fn the_reported_encoding_follows_the_limits_and_stays() {
    let limits = Limits { entries: 3, value: 8 };
    let mut set = SortedSet::new();
    for number in 0..3 {
        Edit::unnoted(&mut set).insert(number.into(), format!("m{number}").as_bytes(), limits);
    }
    assert_eq!(set.encoding(), "listpack");
    Edit::unnoted(&mut set).insert(3.0, b"m3", limits);
    assert_eq!(set.encoding(), "skiplist");
    Edit::unnoted(&mut set).remove(b"m3");
    let mut set = through_the_keyspace(set);
    Edit::unnoted(&mut set).insert(4.0, b"m4", limits);
    assert_eq!(set.encoding(), "skiplist");
    Edit::unnoted(&mut set).remove(b"m4");
    assert_eq!(set.settle(limits).encoding(), "listpack");

    let mut set = SortedSet::new();
    Edit::unnoted(&mut set).insert(1.0, b"123456789", limits);
    assert_eq!(set.encoding(), "skiplist");

    let mut set = SortedSet::new();
    for number in 0..100 {
        Edit::unnoted(&mut set).insert(0.5, format!("a longer member {number}").as_bytes(), LIMITS);
    }
    assert!(matches!(set, SortedSet::Large(_)));
    assert_eq!(set.encoding(), "listpack");
}

#[test]
fn a_listpack_knows_no_negative_zero() {
    let mut set = SortedSet::new();
    Edit::unnoted(&mut set).insert(-0.0, b"a", LIMITS);
    assert!(set.as_view().score(b"a").is_some_and(f64::is_sign_positive));
    let limits = Limits { entries: 0, ..LIMITS };
    let mut set = SortedSet::new();
    Edit::unnoted(&mut set).insert(-0.0, b"a", limits);
    assert!(set.as_view().score(b"a").is_some_and(f64::is_sign_negative));
}

#[test]
fn the_first_is_popped() {
    let mut set = SortedSet::new();
    assert_eq!(Edit::unnoted(&mut set).pop_min(), None);
    Edit::unnoted(&mut set).insert(2.0, b"b", LIMITS);
    Edit::unnoted(&mut set).insert(1.0, b"10", LIMITS);
    assert_eq!(Edit::unnoted(&mut set).pop_min(), Some((1.0, b"10".to_vec())));
    assert_eq!(Edit::unnoted(&mut set).pop_min(), Some((2.0, b"b".to_vec())));
    assert!(set.is_empty());
}

#[test]
fn a_result_is_stored_in_the_form_its_size_asks_for() {
    let mut set = SortedSet::for_result();
    set.put(b"a", |_| -0.0);
    set.put(b"b", |old| old.unwrap_or(1.0));
    set.put(b"b", |old| old.map_or(0.0, |score| score + 1.0));
    assert!(set.as_view().score(b"a").is_some_and(f64::is_sign_negative));
    let settled = set.settle(LIMITS);
    assert!(matches!(settled, SortedSet::Packed(_)));
    assert_eq!(contents(settled.as_view()), [(0.0, b"a".to_vec()), (2.0, b"b".to_vec())]);
    let mut set = SortedSet::for_result();
    set.put(&[b'x'; 65], |_| 1.0);
    assert_eq!(set.settle(LIMITS).encoding(), "skiplist");
}
