use super::*;

const ABLE: Abilities = Abilities { tells_deadlines: true, has_field_deadlines: true };

fn text(text: &str) -> Reply {
    Reply::Text(text.into())
}

fn list(items: &[&str]) -> Reply {
    Reply::List(items.iter().map(|item| text(item)).collect())
}

fn scan(cursor: &str, items: &[&str]) -> Reply {
    Reply::List(vec![text(cursor), list(items)])
}

fn kind(kind: &str, deadline: i64) -> Vec<Reply> {
    vec![Reply::Status(kind.into()), Reply::Number(deadline)]
}

/// Reads a key whose parts are answered with these replies.
fn seen(parts: &[Vec<Reply>]) -> Result<Seen, String> {
    let mut reader = Reader::new(b"k", ABLE);
    for part in parts {
        let mut batch = Batch::default();
        reader.ask(&mut batch);
        assert_eq!(batch.len(), part.len(), "requests of {:?}", reader.next);
        reader.take(part)?;
    }
    let mut batch = Batch::default();
    reader.ask(&mut batch);
    assert!(batch.is_empty(), "{:?} is the end", reader.next);
    Ok(reader.seen)
}

fn same(a: &[Vec<Reply>], b: &[Vec<Reply>]) -> Option<&'static str> {
    seen(a).expect("a key").difference(&seen(b).expect("a key"))
}

#[test]
fn order_and_repetition_of_a_scan_do_not_matter() {
    let deadlines = |of: &[i64]| {
        vec![Reply::List(of.iter().map(|deadline| Reply::Number(*deadline)).collect())]
    };
    let a = [
        kind("hash", -1),
        vec![scan("5", &["f", "1", "g", "2"])],
        deadlines(&[-1, 7000]),
        vec![scan("0", &["f", "1"])],
        deadlines(&[-1]),
    ];
    let b = [kind("hash", -1), vec![scan("0", &["g", "2", "f", "1"])], deadlines(&[7000, -1])];
    let later = [kind("hash", -1), vec![scan("0", &["g", "2", "f", "1"])], deadlines(&[9000, -1])];
    let other = [kind("hash", -1), vec![scan("0", &["g", "1", "f", "2"])], deadlines(&[7000, -1])];
    assert_eq!(same(&a, &b), None);
    assert_eq!(same(&a, &later), Some("another deadline"));
    assert_eq!(same(&a, &other), Some("another value"));
}

#[test]
fn values_deadlines_and_types_are_compared() {
    let string = |value: &str, deadline| [kind("string", deadline), vec![text(value)]];
    assert_eq!(same(&string("a", -1), &string("a", -1)), None);
    assert_eq!(same(&string("a", -1), &string("b", -1)), Some("another value"));
    assert_eq!(same(&string("a", 5000), &string("a", -1)), Some("another deadline"));
    assert_eq!(same(&string("a", 5000), &string("a", 6000)), None);
    assert_eq!(same(&string("a", 5000), &string("a", 6001)), Some("another deadline"));
    let l = [kind("list", -1), vec![list(&["a"])]];
    assert_eq!(same(&string("a", -1), &l), Some("another type"));
    let divided = [kind("list", -1), vec![list(&["", "a"])]];
    assert_eq!(same(&l, &divided), Some("another value"));
    assert_eq!(same(&l, &[kind("none", -2)]), Some("it is missing"));
    assert_eq!(same(&[kind("none", -2)], &l), Some("it should not be there"));
    assert_eq!(same(&[kind("none", -2)], &[kind("none", -2)]), None);
}

#[test]
fn scores_are_numbers_however_they_are_written() {
    let zset = |score: &str| [kind("zset", -1), vec![list(&["m", score])]];
    assert_eq!(same(&zset("0.10000000000000001"), &zset("0.1")), None);
    assert_eq!(same(&zset("-0"), &zset("0")), None);
    assert_eq!(same(&zset("inf"), &zset("-inf")), Some("another value"));
    assert!(seen(&zset("x")).is_err());
}

#[test]
fn long_strings_and_lists_come_in_parts() {
    let full = "x".repeat(TEXT_BYTES as usize);
    let long = |end: &str| [kind("string", -1), vec![text(&full)], vec![text(end)]];
    assert_eq!(same(&long("a"), &long("b")), Some("another value"));
    let items = vec!["i"; FIRST_ELEMENTS as usize];
    let rows = |end: &str| [kind("list", -1), vec![list(&items)], vec![list(&[end])]];
    assert_eq!(same(&rows("a"), &rows("a")), None);
    assert_eq!(same(&rows("a"), &rows("b")), Some("another value"));
}

#[test]
fn groups_of_streams_and_their_entries_are_compared() {
    let stream = |consumer: &str, idle: i64, deliveries: i64| {
        let entry = Reply::List(vec![text("1-1"), list(&["f", "v"])]);
        let group = list(&["name", "g", "last-delivered-id", "1-1"]);
        let pending = Reply::List(vec![
            text("1-1"),
            text(consumer),
            Reply::Number(idle),
            Reply::Number(deliveries),
        ]);
        [
            kind("stream", -1),
            vec![Reply::List(vec![entry])],
            vec![list(&["last-generated-id", "1-1"]), Reply::List(vec![group])],
            vec![Reply::List(vec![pending])],
        ]
    };
    assert_eq!(same(&stream("c", 5, 1), &stream("c", 9, 1)), None);
    assert_eq!(same(&stream("c", 5, 1), &stream("c", 5, 2)), Some("another value"));
    assert_eq!(same(&stream("c", 5, 1), &stream("d", 5, 1)), Some("another value"));
}

#[test]
fn replies_of_other_forms_are_errors_and_a_change_is_no_equality() {
    for bad in [Reply::Null, Reply::Number(1), list(&["a", "b", "c"]), scan("0", &["f"])] {
        assert!(seen(&[kind("hash", -1), vec![bad]]).is_err());
    }
    assert!(seen(&[kind("string", -1), vec![Reply::Error(b"NOPERM no".to_vec())]]).is_err());
    assert!(seen(&[vec![Reply::Number(1), Reply::Number(1)]]).is_err());
    let torn = [kind("string", -1), vec![Reply::Error(b"WRONGTYPE x".to_vec())]];
    assert_eq!(same(&torn, &torn), Some("it changes"));
}
