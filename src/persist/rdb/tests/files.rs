//! Whole files.

use std::io::{self, Read};

use super::*;
use crate::collections::hash_slot::{HashSlot, SLOTS};

const REDIS_FILE: &[u8] = include_bytes!("../../../../tests/data/rdb/redis-7.0.15.rdb");

/// A source that returns at most this many bytes at once.
struct Drip<'a>(&'a [u8], usize);

impl Read for Drip<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.0.len().min(self.1).min(buffer.len());
        let (given, rest) = self.0.split_at(len);
        buffer[..len].copy_from_slice(given);
        self.0 = rest;
        Ok(len)
    }
}

/// The records of a file, and the error if there is one.
fn records(file: &[u8], at_once: usize) -> (Vec<String>, Option<FileError>) {
    records_of(file, at_once, VersionCheck::Strict)
}

fn records_of(
    file: &[u8],
    at_once: usize,
    check: VersionCheck,
) -> (Vec<String>, Option<FileError>) {
    let mut parser = Parser::new(Drip(file, at_once), true).with_versions(check);
    let mut lines = Vec::new();
    let limits = limits(512);
    loop {
        let line = match parser.next_event() {
            Ok(Event::Header(version)) => version.to_string(),
            Ok(Event::Aux { name, value }) => format!("{} = {}", shown(&name), shown(&value)),
            Ok(Event::SelectDb(db)) => format!("database {db}"),
            Ok(Event::ResizeDb { keys, volatile_keys, .. }) => format!("{keys} {volatile_keys}"),
            Ok(Event::Function(text)) => format!("function {}", shown(&text)),
            Ok(Event::SlotImport { name, ranges }) => format!("{} {ranges:?}", shown(&name)),
            Ok(Event::Entry(entry)) => {
                let decoder = Decoder { limits: &limits, now: NOW, version: entry.version };
                let RawEntry { value_type, value, offset, .. } = entry;
                // Hashes that share their names of fields were put together.
                if !(29..=32).contains(&value_type) {
                    assert_eq!(&file[offset as usize..offset as usize + value.len()], value);
                }
                let content = match decoder.value(value_type, value, offset) {
                    Ok(stored) => content(&stored),
                    Err(error) => {
                        let place = Box::new(entry.place());
                        return (lines, Some(FileError::Fault { place, error }));
                    }
                };
                let RawEntry { db, key, deadline_ms, idle_seconds, frequency, .. } = entry;
                let (key, blessed) = (shown(&key), if entry.is_blessed { " blessed" } else { "" });
                format!(
                    "{db} {key} {deadline_ms:?} {idle_seconds:?} {frequency:?} {content:?}{blessed}"
                )
            }
            Ok(Event::End(checksum)) => {
                lines.push(format!("{checksum:?}"));
                return (lines, None);
            }
            Err(error) => return (lines, Some(error)),
        };
        lines.push(line);
    }
}

#[test]
fn a_file_of_redis_is_read_however_it_comes() {
    let (lines, error) = records(REDIS_FILE, usize::MAX);
    assert!(error.is_none(), "{error:?}");
    for expected in [
        "REDIS0010",
        "redis-ver = 7.0.15",
        "aof-base = 0",
        "database 0",
        "11 0",
        "0 number None Some(0) None [\"-70000\"]",
        "0 list None Some(0) None [\"a\", \"1\", \"b\", \"inline 2\"]",
        "0 hash None Some(0) None [\"f = v None\", \"inline 3\"]",
        "database 3",
        "2 1",
        "3 volatile Some(4000000000000) Some(0) None [\"v\"]",
        "Right",
    ] {
        assert!(lines.iter().any(|line| line == expected), "{expected} in {lines:#?}");
    }
    assert!(lines.iter().any(|line| line.starts_with("function #!lua name=lib\\nredis.reg")));
    assert_eq!(lines.iter().filter(|line| line.contains(" Some(0) ")).count(), 13);
    for at_once in [1, 2, 3, 7, 100] {
        assert_eq!(records(REDIS_FILE, at_once).0, lines);
    }
}

#[test]
fn a_file_of_redis_8_6_is_read() {
    let file = include_bytes!("../../../../tests/data/rdb/redis-8.6.3.rdb");
    let (lines, error) = records(file, 7);
    assert!(error.is_none(), "{error:?}");
    for expected in [
        "REDIS0013",
        "redis-ver = 8.6.3",
        "6 1",
        "0 t Some(4102444800000) None None [\"v\"]",
        "Right",
    ] {
        assert!(lines.iter().any(|line| line == expected), "{expected} in {lines:#?}");
    }
    let hash = lines.iter().find(|line| line.starts_with("0 h ")).expect("the hash");
    assert!(hash.contains("a = 1 Some(4102444800000)") && hash.contains("b = 2 None"), "{hash}");
    for at_once in [1, 2, 3, 100] {
        assert_eq!(records(file, at_once).0, lines);
    }
}

/// As Redis 8.10 writes them: the names of fields once, before all keys.
#[test]
fn hashes_refer_to_the_names_of_their_fields() {
    let body = [
        &b"\xf2\x05\x02\x01a\x01b\xf2\x00\x01\x04name"[..],
        // Values: a listpack that begins with the number, or the number and strings.
        b"\x1e\x02k1",
        &listpack(&["5", "1", "x"]),
        b"\x20\x02k2\x00\x03Ann",
        // What a module keeps for a key.
        b"\xf3\x01abcd\x05\x01v\x00",
        b"\x20\x02k3\x05\xc0\x07\x01y",
        b"\xff\0\0\0\0\0\0\0\0",
    ];
    let file = [&b"REDIS0015"[..], &body.concat()].concat();
    for at_once in [1, 3, 1000] {
        let (lines, error) = records(&file, at_once);
        assert!(error.is_none(), "{error:?}");
        let expected = [
            "REDIS0015",
            "0 k1 None None None [\"a = 1 None\", \"b = x None\", \"inline 3\"]",
            "0 k2 None None None [\"name = Ann None\", \"inline 3\"]",
            "0 k3 None None None [\"a = 7 None\", \"b = y None\", \"inline 3\"]",
            "Unchecked",
        ];
        assert_eq!(lines, expected);
    }
    for (body, expected) in [
        (&b"\x20\x01k\x05\x01v"[..], "key 'k', type 32: values whose fields are in no record"),
        (b"\xf2\x05\x00", "names of fields (byte 12)"),
        (b"\xf2\x05\x01\x01a\xf2\x05\x01\x01b", "names of fields with a number twice"),
        (b"\xf2\x05\x02\x01a\x01a\x20\x01k\x05\x01v\x01w", "a hash that has a field twice"),
        (b"\xf3\x08", "what modules keep for a key"),
        (b"\x1c\x01k", "key 'k', type 28: an array of Redis 8.8"),
    ] {
        let file = [&b"REDIS0015"[..], body].concat();
        let error = records(&file, usize::MAX).1.expect("a fault").to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_file_of_redis_is_written_again_with_the_same_bytes() {
    let mut parser = Parser::new(REDIS_FILE, true);
    let mut writer = None;
    let mut db = 0;
    let limits = limits(128);
    loop {
        let event = parser.next_event().expect("the file is whole");
        if let Event::Header(version) = event {
            let encoder = Encoder::new(true);
            writer = Some(Writer::new(Vec::new(), version, encoder, true).expect("memory"));
            continue;
        }
        let writer = writer.as_mut().expect("the header comes first");
        match event {
            Event::Header(_) => {}
            Event::Aux { name, value } => writer.aux(&name, &value).expect("memory"),
            Event::SelectDb(number) => db = number,
            Event::ResizeDb { keys, volatile_keys, .. } => {
                writer.select_db(db, keys, volatile_keys).expect("memory");
            }
            Event::Function(text) => writer.function(&text).expect("memory"),
            Event::SlotImport { .. } => unreachable!("Redis writes none"),
            Event::Entry(raw) => {
                let decoder = Decoder { limits: &limits, now: NOW, version: raw.version };
                let stored = decoder.value(raw.value_type, raw.value, raw.offset);
                let stored = stored.expect("Redis wrote it");
                let RawEntry { key, deadline_ms, idle_seconds, frequency, is_blessed, .. } = raw;
                let value = value_of(&stored);
                let entry = SavedEntry {
                    key: &key,
                    value,
                    deadline_ms,
                    idle_seconds,
                    frequency,
                    is_blessed,
                };
                writer.entry(entry, &NOW).expect("memory");
            }
            Event::End(_) => break,
        }
    }
    let (bytes, _) = writer.expect("the header came").finish().expect("memory");
    assert_eq!(bytes.escape_ascii().to_string(), REDIS_FILE.escape_ascii().to_string());
}

#[test]
fn a_file_that_is_cut_or_altered_is_refused() {
    let whole = records(REDIS_FILE, usize::MAX).0;
    for len in 0..REDIS_FILE.len() {
        let (lines, error) = records(&REDIS_FILE[..len], usize::MAX);
        assert!(error.is_some(), "cut to {len}");
        assert_eq!(lines, whole[..lines.len()]);
    }
    for at in 0..REDIS_FILE.len() {
        let mut altered = REDIS_FILE.to_vec();
        altered[at] ^= 1;
        assert!(records(&altered, usize::MAX).1.is_some(), "altered at {at}");
    }
}

#[test]
fn faults_are_reported_with_their_place() {
    let mut file = b"REDIS0012".to_vec();
    file.extend_from_slice(b"\xfe\x02\x07\x07bloom:a\x81");
    file.extend_from_slice(&(0x1234_5678_9abc_def0u64).to_be_bytes());
    let error = records(&file, 9).1.expect("a module's value");
    let text = error.to_string();
    assert!(
        text.starts_with("REDIS0012, database 2, key 'bloom:a', type 7: a value of module "),
        "{text}"
    );
    assert!(text.ends_with(" cannot be read without it (byte 29)"), "{text}");
    for (file, expected) in [
        (
            &b"REDIS0016"[..],
            "the file has a version that cannot be read: 1 to 15 of Redis and 80 of Valkey can",
        ),
        (
            b"VALKEY011",
            "the file has a version that cannot be read: 1 to 15 of Redis and 80 of Valkey can",
        ),
        (b"REDIS00x1", "the file does not begin as an RDB file does"),
        (b"*1\r\n$4\r\nPING", "the file does not begin as an RDB file does"),
        (b"REDIS", "database 0: the data ends within the header (byte 0)"),
        (
            b"REDIS0010\x04\x01k\x01\x01f",
            "REDIS0010, database 0, key 'k', type 4: the data ends within a field's value (byte 15)",
        ),
        (b"REDIS0010\x20\x01k", "REDIS0010, database 0, type 32: type 32 is not known (byte 10)"),
        (
            b"REDIS0010\xf6\x01k",
            "REDIS0010, database 0: functions as the release candidates of Redis 7.0 wrote them (byte 10)",
        ),
        (
            b"REDIS0010\x02\x01k\x02\x01a\x01a\xff",
            "REDIS0010, database 0, key 'k', type 2: a set that has a member twice (byte 17)",
        ),
        (b"REDIS0010\xff\x01\0\0\0\0\0\0\0", "the checksum"),
    ] {
        let error = records(file, usize::MAX).1.expect("a fault");
        if expected.starts_with("the checksum") {
            assert!(matches!(error, FileError::Checksum { stored: 1, .. }));
        } else {
            assert_eq!(error.to_string(), expected, "{}", file.escape_ascii());
        }
    }
}

#[test]
fn versions_to_come_are_read_if_they_may_be() {
    let body = b"\x00\x01k\x01v\xff\0\0\0\0\0\0\0\0";
    for magic in ["REDIS0016", "REDIS0075", "REDIS0079", "VALKEY081", "VALKEY987"] {
        let file = [magic.as_bytes(), body].concat();
        let (lines, error) = records(&file, 7);
        let error = error.expect("strictly, it is not read");
        assert!(lines.is_empty());
        let number = magic.trim_start_matches(char::is_alphabetic).parse::<u16>().unwrap();
        let line = format!("Can't handle RDB format version {number}");
        assert_eq!(error.refusal(VersionCheck::Strict, false), Some(line));
        let (lines, error) = records_of(&file, 7, VersionCheck::Relaxed);
        assert!(error.is_none(), "{error:?}");
        assert_eq!(lines, [magic, "0 k None None None [\"v\"]", "Unchecked"]);
    }
    for magic in ["REDIS0000", "REDIS0080", "VALKEY079", "VALKEY000"] {
        let file = [magic.as_bytes(), body].concat();
        let error = records_of(&file, 7, VersionCheck::Relaxed).1.expect("nobody writes it");
        assert!(matches!(error, FileError::Header(HeaderFault::Version(_))), "{magic}: {error}");
    }
    let error = records_of(b"FOOBAR001", 7, VersionCheck::Relaxed).1.expect("it is no file");
    let line = |is_valkey| error.refusal(VersionCheck::Relaxed, is_valkey);
    assert_eq!(line(false).unwrap(), "Wrong signature trying to load DB from file");
    assert_eq!(line(true).unwrap(), "Wrong signature trying to load DB from file: FOOBAR001");
}

#[test]
fn a_type_of_a_version_to_come_is_named_as_valkey_does() {
    for (file, expected) in [
        (
            &b"REDIS0075\x96\x01k\x01v"[..],
            Some("Can't handle foreign type or opcode 150 in RDB with version 75"),
        ),
        (
            b"REDIS0010\xf3\x01k\x01v",
            Some("Can't handle foreign type or opcode 243 in RDB with version 10"),
        ),
        (
            b"VALKEY987\x96\x01k\x01v",
            Some("Unknown type or opcode when loading DB. Unrecoverable error, aborting now."),
        ),
        (
            b"REDIS0075\x08\x01k\x01v",
            Some("Unknown type or opcode when loading DB. Unrecoverable error, aborting now."),
        ),
        // Damage, of whatever version.
        (b"REDIS0075\x00\x05k", None),
    ] {
        let error = records_of(file, 9, VersionCheck::Relaxed).1.expect("a fault");
        let line = error.refusal(VersionCheck::Relaxed, true);
        assert_eq!(line.as_deref(), expected, "{}", file.escape_ascii());
        assert_eq!(error.refusal(VersionCheck::Strict, true), None);
    }
}

#[test]
fn ignored_records_are_skipped() {
    let mut file = b"REDIS0003".to_vec();
    // A module's data with each kind of part, and a slot's sizes.
    file.extend_from_slice(
        b"\xf7\x05\x02\x02\x01\x07\x02\x07\x03\0\0\0\0\x04\0\0\0\0\0\0\0\0\x05\x03abc\x00",
    );
    file.extend_from_slice(b"\xf4\x01\x02\x03");
    file.extend_from_slice(b"\xfd\x10\0\0\0\xf9\x07\x00\x01k\x01v\xff");
    let (lines, error) = records(&file, usize::MAX);
    assert!(error.is_none(), "{error:?}");
    assert_eq!(lines, ["REDIS0003", "0 k Some(16000) None Some(7) [\"v\"]", "Unchecked"]);
}

#[test]
fn moves_of_slots_in_files_of_valkey_are_read() {
    let name = [b'a'; 40];
    let file = |ranges: &[u8]| [b"VALKEY080\xf3\x28", &name[..], ranges, b"\xff", &[0; 8]].concat();
    let (lines, error) = records(&file(b"\x02\x03\x05\x7f\xff\x7f\xff"), 7);
    assert!(error.is_none(), "{error:?}");
    let [first, last, end] = [3, 5, SLOTS - 1].map(|number| HashSlot::new(number).expect("a slot"));
    let job = format!("{} {:?}", shown(&name), [(first, last), (end, end)]);
    assert_eq!(lines, ["VALKEY080", &job, "Unchecked"]);
    // Ends before it begins; a slot too many; all slots twice.
    let twice = b"\x02\0\x7f\xff\0\x7f\xff";
    for damaged in [&b"\x01\x05\x03"[..], b"\x01\x03\x80\0\0\x40\0", twice] {
        let error = records(&file(damaged), 7).1.expect("a fault");
        assert!(error.to_string().contains("ranges of slots"), "{error}");
    }
    let error = records(b"VALKEY080\xf3\x03abc\x01\x03\x05\xff", 7).1.expect("a fault");
    assert!(error.to_string().contains("the name of a slot migration"), "{error}");
}

#[test]
fn bytes_after_the_image_are_left() {
    let both = [REDIS_FILE, b"*1\r\n$4\r\nPING\r\n"].concat();
    let mut parser = Parser::new(Drip(&both, 100), true);
    while !matches!(parser.next_event(), Ok(Event::End(Checksum::Right))) {}
    let (mut rest, source) = parser.into_rest();
    rest.extend_from_slice(source.0);
    assert_eq!(rest, b"*1\r\n$4\r\nPING\r\n");
}

/// Bytes read ahead are moved when the earlier record is dropped.
#[test]
fn little_is_read_ahead_of_a_large_record() {
    let large = [&b"\x00\x01k"[..], &string(&vec![b'x'; 3_000_000])].concat();
    let file = [&b"REDIS0010"[..], &large, &large, b"\xff\0\0\0\0\0\0\0\0"].concat();
    let mut parser = Parser::new(Drip(&file, usize::MAX), true);
    let mut entries = 0;
    loop {
        match parser.next_event() {
            Ok(Event::End(_)) => break,
            Ok(Event::Entry(_)) => entries += 1,
            other => assert!(matches!(other, Ok(Event::Header(_)))),
        }
        let read = (file.len() - parser.source().0.len()) as u64;
        assert!(read - parser.offset() <= 64 << 10, "{} bytes", read - parser.offset());
    }
    assert_eq!(entries, 2);
}

#[test]
fn a_hash_with_deadlines_is_written_as_valkey_and_redis_read_it() {
    let hash = Hash::saved::<()>(1, &limits(512).hash, |take| {
        assert!(take(Entry { field: b"f", value: b"v", deadline: Some(NOW.after(1000)) }));
        Ok(())
    });
    let stored = hash.expect("each field comes once").store();
    let entry = || SavedEntry {
        key: b"k",
        value: value_of(&stored),
        deadline_ms: None,
        idle_seconds: None,
        frequency: None,
        is_blessed: false,
    };
    let mut writer =
        Writer::new(Vec::new(), Version::REDIS_11, Encoder::new(true), true).expect("memory");
    let refused = writer.entry(entry(), &NOW).expect_err("the version is too low");
    assert_eq!(refused.to_string(), "the value needs version REDIS0012");
    let (file, _) = writer.finish().expect("memory");
    assert_eq!(file.len(), 9 + 9, "only the header and the end");
    for (version, value_type) in
        [(Version::VALKEY_80, value_type::HASH_22), (Version::REDIS_12, value_type::HASH_DEADLINES)]
    {
        let mut writer =
            Writer::new(Vec::new(), version, Encoder::new(true), false).expect("memory");
        writer.entry(entry(), &NOW).expect("memory");
        let (file, _) = writer.finish().expect("memory");
        assert_eq!(file[Version::MAGIC_BYTES], value_type);
        let (lines, error) = records(&file, usize::MAX);
        assert!(error.is_none());
        let expected = "0 k None None None [\"f = v Some(1700000001000)\", \"hashtable\"]";
        assert_eq!(lines[1], expected);
        assert_eq!(lines[2], "Unchecked");
    }
}

/// A file on a disk with this many bytes free.
struct Full(usize);

impl io::Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0 == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let taken = bytes.len().min(self.0);
        self.0 -= taken;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_is_reported_and_nothing_more_is_written() {
    let mut writer =
        Writer::new(Full(100_000), Version::REDIS_10, Encoder::new(false), true).expect("room");
    let text = vec![7; 70_000];
    let mut results = (0..3).map(|_| writer.aux(b"name", &text));
    assert!(results.next().expect("the first").is_ok());
    let error = results.next().expect("the second").expect_err("no room");
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    assert!(results.next().expect("the third").is_err());
    drop(results);
    assert!(writer.finish().is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_written_is_read(
        values in prop::collection::vec(value(512), 0..8),
        version in prop::sample::select(vec![Version::REDIS_11, Version::VALKEY_80]),
        at_once in prop::sample::select(vec![11usize, 1000, 1_000_000]),
    ) {
        let mut writer =
            Writer::new(Vec::new(), version, Encoder::new(true), true).expect("memory");
        writer.select_db(5, values.len() as u64, 0).expect("memory");
        let mut expected = Vec::new();
        for (number, stored) in values.iter().enumerate() {
            let key = number.to_string();
            let value = value_of(stored);
            let entry = SavedEntry {
                key: key.as_bytes(),
                value,
                deadline_ms: (number % 2 == 0).then_some(number as i64),
                idle_seconds: None,
                frequency: (number % 3 == 0).then_some(number as u8),
                is_blessed: number % 5 == 0,
            };
            let is_blessed = entry.is_blessed;
            if writer.entry(entry, &NOW).is_ok() {
                expected.push((key, is_blessed));
            }
        }
        let (file, _) = writer.finish().expect("memory");
        let (lines, error) = records(&file, at_once);
        prop_assert!(error.is_none(), "{:?}", error);
        // The field of a blessed key stands before it, and is passed on like any other.
        let keys: Vec<_> = lines[3..lines.len() - 1]
            .iter()
            .filter(|line| !line.starts_with("latchkey-blessed"))
            .map(|line| {
                (line.split(' ').nth(1).expect("a key").to_owned(), line.ends_with(" blessed"))
            })
            .collect();
        prop_assert_eq!(keys, expected);
        prop_assert_eq!(lines.last().map(String::as_str), Some("Right"));
    }

    #[test]
    fn any_bytes_behind_a_header_are_read_or_refused(
        bytes in prop::collection::vec(prop_oneof![0..30u8, 240..=255u8, any::<u8>()], 0..120),
        magic in prop::sample::select(vec![&b"REDIS0004"[..], b"REDIS0012", b"REDIS0015", b"VALKEY080"]),
    ) {
        records(&[magic, &bytes].concat(), 50);
    }
}
