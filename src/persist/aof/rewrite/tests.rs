//! The commands must be those that Redis 7.0.15 wrote for the same values
//! (`tests/data/aof/values-7.0.15.aof`); the values are read from its RDB file beside it.

use std::collections::BTreeMap;

use super::*;
use crate::collections::hash::KeyHasher;
use crate::collections::table::ValueRef;
use crate::persist::aof::reader::{Item, Reader};
use crate::persist::rdb::{Decoder, Event, Limits, Parser};
use crate::types::{Stored, hash, list, set, sorted_set};

const VALUES: &[u8] = include_bytes!("../../../../tests/data/aof/values-7.0.15.rdb");
const COMMANDS: &[u8] = include_bytes!("../../../../tests/data/aof/values-7.0.15.aof");
const NOW: Now =
    Now { wall_us: 1_700_000_000_000_000, boot_us: 5_000_000, ignores_deadlines: false };

/// The commands of a file by database and key, as the order of keys is arbitrary.
fn by_key(file: &[u8]) -> BTreeMap<(u64, String), Vec<Vec<String>>> {
    let shown = |word: &[u8]| word.escape_ascii().to_string();
    let mut reader = Reader::new(file, 0, file.len() as u64);
    let mut found = BTreeMap::<_, Vec<_>>::new();
    let mut db = 0;
    loop {
        let words: Vec<String> = match reader.next().unwrap() {
            Item::Request(request) => request.arguments().map(shown).collect(),
            Item::Annotation(_) => continue,
            Item::End(end) => {
                assert_eq!(end.valid_up_to, file.len() as u64);
                return found;
            }
        };
        match words[0].as_str() {
            "SELECT" => db = words[1].parse().unwrap(),
            "XGROUP" => found.entry((db, words[2].clone())).or_default().push(words),
            _ => found.entry((db, words[1].clone())).or_default().push(words),
        }
    }
}

fn limits() -> Limits {
    let hasher = KeyHasher::new([1, 2]);
    Limits {
        list: list::Limits::from_setting(-2),
        hash: hash::Limits { entries_max: 512, bytes_max: 64, hasher },
        set: set::Limits { intset_entries: 512, listpack_entries: 128, listpack_value: 64, hasher },
        sorted_set: sorted_set::Limits { entries: 128, value: 64 },
    }
}

/// The commands written for the values of an RDB file.
fn rewritten(file: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut writer = CommandWriter::new(&mut out, None, LeaseTimes::default(), true);
    let mut parser = Parser::new(file, true);
    let limits = limits();
    loop {
        match parser.next_event().unwrap() {
            Event::SelectDb(db) => writer.select_db(db).unwrap(),
            Event::Function(text) => writer.load([b"FUNCTION", b"LOAD", &text]).unwrap(),
            Event::Entry(raw) => {
                let decoder = Decoder { limits: &limits, now: NOW, version: raw.version };
                let stored = decoder.value(raw.value_type, raw.value, raw.offset).unwrap();
                let value = match &stored {
                    Stored::Inline { kind, bytes } => ValueRef::Bytes { bytes, kind: *kind },
                    Stored::Boxed(value) => ValueRef::Object(value),
                };
                let entry = SavedEntry {
                    key: &raw.key,
                    value,
                    deadline_ms: raw.deadline_ms,
                    idle_seconds: None,
                    frequency: None,
                    is_blessed: false,
                };
                writer.entry(&entry, &NOW).unwrap();
            }
            Event::End(_) => break,
            _ => {}
        }
    }
    writer.finish().unwrap();
    out
}

#[test]
fn commands_are_those_that_redis_writes() {
    let (ours, theirs) = (by_key(&rewritten(VALUES)), by_key(COMMANDS));
    // 16 keys and the library.
    assert_eq!(theirs.len(), 17);
    for (key, commands) in &theirs {
        assert_eq!(ours.get(key), Some(commands), "{key:?}");
    }
    assert_eq!(ours.len(), theirs.len());
}

#[test]
fn no_command_is_too_long_to_be_read() {
    let long = |fill: char, len: usize| fill.to_string().repeat(len);
    let mut out = Vec::new();
    let mut commands = Commands(Output::new(&mut out), LeaseTimes::default());
    // Each element is a third of what a command may have.
    let element = long('e', COMMAND_BYTES_MAX / 3);
    let mut grouped = Grouped::new(&mut commands, "RPUSH", b"l", 7, 1, Longest(element.len()));
    (0..7).for_each(|_| grouped.next().arg(&element));
    let text = [long('a', COMMAND_BYTES_MAX), long('b', COMMAND_BYTES_MAX), "c".into()].concat();
    string(&mut commands, b"s", text.as_bytes().into());
    string(&mut commands, b"t", StringView::default());
    commands.0.finish().unwrap();
    let found = by_key(&out);
    let sizes = |key: &str| -> Vec<(String, usize)> {
        let words = found[&(0, key.to_owned())].iter();
        words.map(|words| (words[0].clone(), words.len())).collect()
    };
    let pushes = [("RPUSH", 5), ("RPUSH", 5), ("RPUSH", 3)].map(|(name, len)| (name.into(), len));
    assert_eq!(sizes("l"), pushes);
    let written: Vec<_> =
        found[&(0, "s".to_owned())].iter().map(|words| words[0].clone()).collect();
    assert_eq!(written, ["SET", "APPEND", "APPEND"]);
    let joined: String = found[&(0, "s".to_owned())].iter().map(|words| words[2].clone()).collect();
    assert_eq!(joined, text);
    assert_eq!(sizes("t"), [("SET".to_owned(), 3)]);
}
