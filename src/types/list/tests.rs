//! Lists against a vector that does the same, through all forms.

use proptest::prelude::*;

use super::*;
use crate::collections::listpack;

#[derive(Clone, Debug)]
enum Step {
    /// The number of elements, and the text of each.
    Push(End, usize, Vec<u8>),
    Pop(End),
    Drop(End, usize),
    Set(usize, Vec<u8>),
    /// Beside the element at this index, after it if `true`.
    Insert(usize, bool, Vec<u8>),
    /// The elements equal to the one at this index.
    Remove(End, usize, usize),
    Read(usize),
}

fn text() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => (-300..300i64).prop_map(|value| value.to_string().into_bytes()),
        3 => (0..40usize, b'a'..=b'c').prop_map(|(len, byte)| vec![byte; len]),
        1 => (0..2500usize).prop_map(|len| vec![b'x'; len]),
        1 => Just(vec![b'y'; 5000]),
    ]
}

fn end() -> impl Strategy<Value = End> {
    prop_oneof![Just(End::Front), Just(End::Back)]
}

fn step() -> impl Strategy<Value = Step> {
    let index = any::<usize>;
    prop_oneof![
        6 => (end(), 1..60usize, text()).prop_map(|(end, count, text)| Step::Push(end, count, text)),
        3 => end().prop_map(Step::Pop),
        2 => (end(), 0..120usize).prop_map(|(end, count)| Step::Drop(end, count)),
        3 => (index(), text()).prop_map(|(index, text)| Step::Set(index, text)),
        6 => (index(), any::<bool>(), text())
            .prop_map(|(index, behind, text)| Step::Insert(index, behind, text)),
        2 => (end(), index(), 1..50usize)
            .prop_map(|(end, index, most)| Step::Remove(end, index, most)),
        2 => index().prop_map(Step::Read),
    ]
}

fn texts<'a>(elements: impl Iterator<Item = Element<'a>>) -> Vec<Vec<u8>> {
    elements.map(|element| element.text().as_ref().to_vec()).collect()
}

fn check(list: &List, model: &[Vec<u8>], limits: &Limits) {
    let view = list.as_view();
    assert_eq!(view.len(), model.len());
    assert_eq!(texts(view.forwards(0)), model);
    let reversed: Vec<_> = model.iter().rev().cloned().collect();
    assert_eq!(texts(view.backwards(model.len())), reversed);
    let mut elements = 0;
    for run in view.runs() {
        assert_eq!(listpack::count(run.entries), Some(run.count));
        assert!(run.count > 0 || model.is_empty());
        // As in Redis, a list that is still a single listpack is measured by the added texts, other
        // lists by their entries, which are shorter if texts are numbers.
        let texts: usize = Forwards::of_run(run, 0).map(|element| element.text_len()).sum();
        let measured = texts.min(run.entries.len());
        assert!(run.count <= 1 || !limits.are_exceeded(measured, 0));
        elements += run.count;
    }
    assert_eq!(elements, model.len());
}

/// The list after it was stored in the keyspace.
fn stored(list: List) -> List {
    match list.store() {
        Stored::Inline { kind, bytes } => {
            assert!(bytes.len() <= INLINE_MAX);
            let view = List::view(ValueRef::Bytes { bytes: &bytes, kind }).expect("a list");
            let count = view.len();
            let list = List::unpack(kind, bytes);
            assert_eq!(list.len(), count);
            list
        }
        Stored::Boxed(Value::List(list)) => list,
        Stored::Boxed(_) => unreachable!("a list is stored as a list"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_list_does_what_a_vector_does(
        setting in prop_oneof![Just(-1), Just(-2), Just(1), Just(5), Just(64)],
        steps in prop::collection::vec(step(), 0..60),
    ) {
        let limits = Limits::from_setting(setting);
        let (mut list, mut model) = (List::default(), Vec::<Vec<u8>>::new());
        for step in steps {
            let len = model.len();
            match step {
                Step::Push(end, count, text) => {
                    Edit::unnoted(&mut list).make_room(count * text.len(), count, &limits);
                    for _ in 0..count {
                        Edit::unnoted(&mut list).push(end, &text, &limits);
                        model.insert(if end == End::Front { 0 } else { model.len() }, text.clone());
                    }
                }
                Step::Pop(end) => {
                    let popped = Edit::unnoted(&mut list).pop(end, |element| element.text().as_ref().to_vec());
                    let expected = match end {
                        _ if len == 0 => None,
                        End::Front => Some(model.remove(0)),
                        End::Back => model.pop(),
                    };
                    prop_assert_eq!(popped, expected);
                    Edit::unnoted(&mut list).settle(&limits);
                }
                Step::Drop(end, count) => {
                    Edit::unnoted(&mut list).drop_many(end, count);
                    let count = count.min(len);
                    model.drain(if end == End::Front { 0..count } else { len - count..len });
                    Edit::unnoted(&mut list).settle(&limits);
                }
                Step::Set(index, text) => {
                    let index = index % (len + 1);
                    Edit::unnoted(&mut list).make_room(text.len(), 1, &limits);
                    prop_assert_eq!(Edit::unnoted(&mut list).set(index, &text, &limits), index < len);
                    if index < len {
                        model[index] = text;
                    }
                    Edit::unnoted(&mut list).settle(&limits);
                }
                Step::Insert(index, behind, text) => {
                    let pivot = model.get(index % (len + 1)).cloned().unwrap_or(b"none".to_vec());
                    Edit::unnoted(&mut list).make_room(text.len(), 1, &limits);
                    let inserted = Edit::unnoted(&mut list).insert(&pivot, behind, &text, &limits);
                    let found = model.iter().position(|element| *element == pivot);
                    prop_assert_eq!(inserted, found.is_some());
                    if let Some(found) = found {
                        model.insert(found + usize::from(behind), text);
                    }
                }
                Step::Remove(end, index, most) => {
                    let text = model.get(index % (len + 1)).cloned().unwrap_or(b"none".to_vec());
                    let mut found: Vec<_> = (0..len).filter(|&at| model[at] == text).collect();
                    if end == End::Back {
                        found.reverse();
                    }
                    found.truncate(most);
                    prop_assert_eq!(Edit::unnoted(&mut list).remove(end, &text, most, &limits), found.len());
                    found.sort_unstable();
                    found.iter().rev().for_each(|&at| drop(model.remove(at)));
                    Edit::unnoted(&mut list).settle(&limits);
                }
                Step::Read(index) => {
                    let index = index % (len + 1);
                    let view = list.as_view();
                    prop_assert_eq!(texts(view.forwards(index)), &model[index..]);
                    let before: Vec<_> = model[..index].iter().rev().cloned().collect();
                    prop_assert_eq!(texts(view.backwards(index)), before);
                    let got = view.get(index).map(|element| element.text().as_ref().to_vec());
                    prop_assert_eq!(got.as_ref(), model.get(index));
                }
            }
            list = stored(list);
            check(&list, &model, &limits);
        }
        check(&list.clone(), &model, &limits);
    }
}

#[test]
fn the_form_changes_where_that_of_redis_does() {
    let limits = Limits::from_setting(3);
    let mut list = List::default();
    for count in 1..=4 {
        Edit::unnoted(&mut list).make_room(1, 1, &limits);
        Edit::unnoted(&mut list).push(End::Back, b"a", &limits);
        assert_eq!(list.encoding(), if count > 3 { "quicklist" } else { "listpack" });
    }
    // One run of two elements is still too long: half of the limit is one.
    for expected in ["quicklist", "quicklist", "listpack"] {
        Edit::unnoted(&mut list).pop(End::Front, |_| ());
        Edit::unnoted(&mut list).settle(&limits);
        assert_eq!(list.encoding(), expected, "{}", list.len());
    }
}

#[test]
fn a_list_that_was_long_gives_its_room_back() {
    let limits = Limits::from_setting(-2);
    let mut list = List::default();
    Edit::unnoted(&mut list).make_room(100_000, 1, &limits);
    for _ in 0..10_000 {
        Edit::unnoted(&mut list).push(End::Back, b"0123456789", &limits);
    }
    while list.len() > 20 {
        Edit::unnoted(&mut list).pop(End::Front, |_| ());
        Edit::unnoted(&mut list).settle(&limits);
    }
    assert_eq!(list.encoding(), "listpack");
    assert!(list.heap_bytes() < 1280, "{}", list.heap_bytes());
    assert_eq!(list.free_effort(), 1);
}
