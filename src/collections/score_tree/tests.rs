use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

/// A naive score tree.
#[derive(Default)]
struct Model {
    scores: BTreeMap<Vec<u8>, i64>,
    order: BTreeSet<(i64, Vec<u8>)>,
}

impl Model {
    fn set(&mut self, member: &[u8], score: i64) {
        self.remove(member);
        self.scores.insert(member.to_vec(), score);
        self.order.insert((score, member.to_vec()));
    }

    fn remove(&mut self, member: &[u8]) -> Option<i64> {
        let score = self.scores.remove(member)?;
        self.order.remove(&(score, member.to_vec()));
        Some(score)
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// Many members of consecutive numbers with scores that go up, down, or stay.
    Run(u16, u16, i64),
    Set(u16, i64),
    Remove(u16),
    RemoveRanks(u16, u16),
}

fn member(number: u16) -> Vec<u8> {
    // Some members are long, some longer than a leaf.
    let padding = match number {
        _ if number.is_multiple_of(211) => 9000,
        _ if number.is_multiple_of(97) => 700,
        _ => number as usize % 20,
    };
    format!("{number}{}", "x".repeat(padding)).into_bytes()
}

fn set(tree: &mut ScoreTree, member: &[u8], score: f64) {
    match tree.find(member) {
        Some(position) => tree.set_score(position, score, member),
        None => tree.insert(score, member),
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        1 => (any::<u16>(), 1..600u16, -2..3i64).prop_map(|(a, b, c)| Step::Run(a % 4000, b, c)),
        4 => (0..4000u16, -50..50i64).prop_map(|(a, b)| Step::Set(a, b)),
        4 => (0..4000u16, -600..1200i64).prop_map(|(a, b)| Step::Set(a, b)),
        4 => (0..4000u16).prop_map(Step::Remove),
        2 => (any::<u16>(), 0..400u16).prop_map(|(a, b)| Step::RemoveRanks(a, b)),
    ];
    prop::collection::vec(step, 1..60)
}

fn play(tree: &mut ScoreTree, model: &mut Model, step: &Step) {
    match *step {
        Step::Run(first, count, slope) => {
            for i in 0..count {
                let (member, score) = (member(first + i), slope * i64::from(i));
                set(tree, &member, score as f64);
                model.set(&member, score);
            }
        }
        Step::Set(number, score) => {
            set(tree, &member(number), score as f64);
            model.set(&member(number), score);
        }
        Step::Remove(number) => {
            let removed = tree.remove(&member(number));
            assert_eq!(removed, model.remove(&member(number)).map(|score| score as f64));
        }
        Step::RemoveRanks(start, count) => {
            let start = start as usize % (model.order.len() + 1);
            let end = (start + count as usize).min(model.order.len());
            tree.remove_ranks(start..end);
            let gone: Vec<_> = model.order.iter().skip(start).take(end - start).cloned().collect();
            for (_, member) in gone {
                model.remove(&member);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_tree_is_its_elements_in_order(steps in steps()) {
        let (mut tree, mut model) = (ScoreTree::new(), Model::default());
        for step in &steps {
            play(&mut tree, &mut model, step);
        }
        tree.check();
        let expected: Vec<_> =
            model.order.iter().map(|(score, member)| (*score as f64, &member[..])).collect();
        let len = tree.len();
        prop_assert_eq!(&tree.range(0..len).collect::<Vec<_>>(), &expected);
        let reversed: Vec<_> = tree.range(0..len).rev().collect();
        prop_assert!(reversed.iter().eq(expected.iter().rev()));
        let middle = len / 3..len - len / 5;
        prop_assert!(tree.range(middle.clone()).eq(expected[middle].iter().copied()));
        for bound in [-60.0, -3.0, 0.0, 0.5, 7.0, 1000.0] {
            let before = expected.iter().filter(|(score, _)| *score < bound).count();
            let up_to = expected.iter().filter(|(score, _)| *score <= bound).count();
            prop_assert_eq!(tree.rank(Place::BeforeScore(bound)), before);
            prop_assert_eq!(tree.rank(Place::AfterScore(bound)), up_to);
        }
        for rank in [0, len / 2, len.saturating_sub(1), len] {
            prop_assert_eq!(tree.get(rank), expected.get(rank).copied());
        }
        let leaf_bytes: usize = tree.leaves.iter().map(Leaf::heap_bytes).sum();
        prop_assert_eq!(leaf_bytes, tree.leaf_bytes);
        // And it can be emptied from the front.
        while !tree.is_empty() {
            let first = tree.get(0).map(|(_, member)| member.to_vec());
            prop_assert!(tree.remove(&first.expect("it is not empty")).is_some());
        }
        tree.check();
    }

    #[test]
    fn a_tree_built_at_once_is_one_whose_elements_came_one_by_one(
        numbers in prop::collection::btree_map(any::<u16>(), -50..50i64, 0..1500),
        more in steps(),
        again: prop::sample::Index,
    ) {
        let mut model = Model::default();
        numbers.iter().for_each(|(&number, &score)| model.set(&member(number), score));
        let mut built = Descending::default();
        for (score, member) in model.order.iter().rev() {
            prop_assert!(built.push(*score as f64, member));
        }
        let mut tree = built.finish().expect("no member comes twice");
        tree.check();
        let leaf_bytes: usize = tree.leaves.iter().map(Leaf::heap_bytes).sum();
        prop_assert_eq!(leaf_bytes, tree.leaf_bytes);
        for step in &more {
            play(&mut tree, &mut model, step);
        }
        tree.check();
        let expected = model.order.iter().map(|(score, member)| (*score as f64, &member[..]));
        prop_assert!(tree.range(0..tree.len()).eq(expected));

        // A duplicate member is noticed, whatever its score.
        if model.order.is_empty() {
            return Ok(());
        }
        let twice = again.get(&model.scores.keys().collect::<Vec<_>>()).to_vec();
        model.order.insert((1_000_000, twice));
        let mut built = Descending::default();
        for (score, member) in model.order.iter().rev() {
            prop_assert!(built.push(*score as f64, member));
        }
        prop_assert!(built.finish().is_none());
    }

    #[test]
    fn members_of_equal_scores_are_found_by_their_bytes(
        numbers in prop::collection::btree_set(0..20_000u32, 0..400),
        bound in 0..20_000u32,
    ) {
        let mut tree = ScoreTree::new();
        let mut texts: Vec<Vec<u8>> =
            numbers.iter().map(|number| number.to_string().into_bytes()).collect();
        texts.iter().for_each(|text| tree.insert(0.0, text));
        texts.sort();
        let bound = bound.to_string().into_bytes();
        let before = texts.iter().filter(|text| **text < bound).count();
        let up_to = texts.iter().filter(|text| **text <= bound).count();
        prop_assert_eq!(tree.rank(Place::BeforeMember(&bound)), before);
        prop_assert_eq!(tree.rank(Place::AfterMember(&bound)), up_to);
    }

    #[test]
    fn a_walk_returns_what_stays_exactly_once(
        start in 0..1500u16,
        steps in steps(),
        between in steps(),
        most in 1..40usize,
    ) {
        let (mut tree, mut model) = (ScoreTree::new(), Model::default());
        play(&mut tree, &mut model, &Step::Run(0, start, 1));
        steps.iter().for_each(|step| play(&mut tree, &mut model, step));
        let mut stayed: BTreeSet<Vec<u8>> = model.scores.keys().cloned().collect();
        let mut seen: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
        let mut boundary = 0;
        let mut changes = between.iter();
        loop {
            let mut visited = 0;
            boundary = tree.scan(boundary, most, |_, member| {
                *seen.entry(member.to_vec()).or_default() += 1;
                visited += 1;
            });
            prop_assert!(visited <= most);
            if boundary == 0 {
                break;
            }
            if let Some(step) = changes.next() {
                play(&mut tree, &mut model, step);
                stayed.retain(|member| model.scores.contains_key(member));
            }
        }
        for member in &stayed {
            prop_assert_eq!(seen.get(member), Some(&1));
        }
    }
}

#[test]
fn members_take_little_memory() {
    let mut tree = ScoreTree::new();
    let count = if cfg!(miri) { 1000 } else { 100_000 };
    for number in 0..count {
        let scattered = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        tree.insert(scattered as f64, format!("member:{number:09}").as_bytes());
    }
    let bytes = tree.heap_bytes() as f64 / count as f64;
    assert!(bytes < 48.0, "{bytes:.1} bytes a member");
}

#[test]
fn looking_ahead_leads_to_the_leaf_of_a_member_at_any_size() {
    let member = |number: u32| number.to_string().into_bytes();
    let mut tree = ScoreTree::new();
    for number in 0..5000 {
        tree.insert(f64::from(number % 100), &member(number));
        if number % 500 != 0 {
            continue;
        }
        for wanted in [0, number / 2, number, number + 1] {
            let mut ahead = tree.ahead(&member(wanted));
            (0..6).for_each(|stage| tree.prefetch(&mut ahead, stage));
            if let Some(position) = tree.find(&member(wanted)) {
                let others = tree.height > 0
                    && tree
                        .index
                        .find(ahead.hash as u32, |(entry, _)| {
                            (entry != position.entry).then_some(())
                        })
                        .is_some();
                assert!(ahead.node == position.leaf || others);
            }
        }
    }
    assert!(tree.height > 0);
}

#[test]
fn elements_out_of_order_do_not_make_a_tree_at_once() {
    let mut built = Descending::default();
    assert!(built.push(2.0, b"b") && built.push(2.0, b"a") && built.push(-0.0, b"c"));
    assert!(!built.push(0.0, b"c") && !built.push(0.0, b"d") && !built.push(1.0, b"a"));
    assert!(built.push(0.0, b"aa"));
    assert_eq!(built.finish().map(|tree| tree.len()), Some(4));
}

#[test]
fn an_element_moves_by_little_from_any_place_of_its_leaf() {
    let count = 140;
    let member = |number: u32| number.to_string().into_bytes();
    let mut tree = ScoreTree::new();
    (0..count).for_each(|number| tree.insert(f64::from(10 * number), &member(number)));
    assert!(tree.height > 0);
    for number in 0..count {
        for by in [-15, -5, 5, 15, 325, 0] {
            let score = f64::from(10 * number as i32 + by);
            set(&mut tree, &member(number), score);
            tree.check();
        }
    }
}
