//! The expected texts are those of `redis-check-rdb` 7.0.15 for the same files, except the texts of
//! faults in values.

use super::*;
use crate::clock::Clock;
use crate::sys::disk::model::ModelDisk;

/// 16 keys in two databases, one of them with a deadline.
const FILE: &[u8] = include_bytes!("../../../../tests/data/aof/values-7.0.15.rdb");

fn check(file: &[u8]) -> (i32, Vec<String>) {
    check_as(file, VersionCheck::Strict)
}

fn check_as(file: &[u8], version_check: VersionCheck) -> (i32, Vec<String>) {
    let disk = ModelDisk::new(1);
    let path = std::path::Path::new("/f");
    disk.put(path, file);
    let mut out = Vec::new();
    let code =
        check_file(path, version_check, &disk, &mut out, Clock::System.now(), &mut |_, _| ());
    let lines = String::from_utf8(out).unwrap();
    (code, lines.lines().map(String::from).collect())
}

#[test]
fn a_valid_file() {
    let (code, lines) = check(FILE);
    let end = FILE.len();
    let last = [
        format!("[offset {end}] Checksum OK"),
        format!("[offset {end}] \\o/ RDB looks OK! \\o/"),
        "[info] 16 keys read".into(),
        "[info] 1 expires".into(),
        "[info] 0 already expired".into(),
    ];
    assert_eq!(code, 0);
    assert_eq!(
        lines[..2],
        ["[offset 0] Checking RDB file /f", "[offset 27] AUX FIELD redis-ver = '7.0.15'"]
    );
    assert_eq!(lines[lines.len() - 5..], last);
    let databases = lines.iter().filter(|line| line.contains("Selecting DB ID"));
    assert_eq!(databases.count(), 2);
}

#[test]
fn a_file_without_a_checksum() {
    let mut file = FILE.to_vec();
    let sum = file.len() - 8;
    file[sum..].fill(0);
    let (code, lines) = check(&file);
    let text = "RDB file was saved with checksum disabled: no check performed.";
    assert_eq!(
        (code, lines[lines.len() - 5].as_str()),
        (0, &*format!("[offset {}] {text}", file.len()))
    );
}

/// The lines after the heading of the fault, without the summary.
fn fault(file: &[u8]) -> Vec<String> {
    let (code, lines) = check(file);
    assert_eq!(code, 1);
    let begin = lines.iter().position(|line| line == "--- RDB ERROR DETECTED ---").unwrap();
    lines[begin + 1..lines.len() - 3].to_vec()
}

#[test]
fn faults_of_a_file() {
    let doing = |what| format!("[additional info] While doing: {what}");
    assert_eq!(fault(b""), ["[offset 0] Unexpected EOF reading RDB file", &doing("start")]);
    assert_eq!(
        fault(b"XEDIS0010rest"),
        ["[offset 9] Wrong signature trying to load DB from file", &doing("start")]
    );
    assert_eq!(
        fault(b"REDIS0099rest"),
        ["[offset 9] Can't handle RDB format version 99", &doing("start")]
    );
    assert_eq!(
        fault(b"REDIS0010\x63\x01a\x01b"),
        ["[offset 10] Invalid object type: 99", &doing("read-type")]
    );
    let mut file = FILE.to_vec();
    *file.last_mut().unwrap() ^= 1;
    let at = format!("[offset {}] RDB CRC error", file.len());
    assert_eq!(fault(&file), [at, doing("check-sum")]);
}

#[test]
fn a_fault_in_a_value_is_reported_with_its_key_and_type() {
    let truncated = fault(b"REDIS0010\x00\x03key\x05ab");
    assert_eq!(
        truncated[1..],
        [
            "[additional info] While doing: read-object-value",
            "[additional info] Reading key 'key'",
            "[additional info] Reading type 0 (string)"
        ]
    );
    // A listpack whose last element is longer than the listpack: the record's structure is valid,
    // the value is not.
    let damaged = fault(
        b"REDIS0010\x12\x01l\x01\x02\x0a\x0a\0\0\0\x01\0\xf0\x01\x01\xff\xff\0\0\0\0\0\0\0\0",
    );
    assert_eq!(
        damaged[1..],
        [
            "[additional info] While doing: read-object-value",
            "[additional info] Reading key 'l'",
            "[additional info] Reading type 18 (quicklist-v2)"
        ]
    );
}

#[test]
fn a_missing_file() {
    let disk = ModelDisk::new(1);
    let mut out = Vec::new();
    let path = std::path::Path::new("/none");
    let code = check_file(
        path,
        VersionCheck::Strict,
        &disk,
        &mut out,
        Clock::System.now(),
        &mut |_, _| (),
    );
    assert_eq!(code, 1);
    let out = String::from_utf8(out).unwrap();
    assert!(
        out.starts_with("[offset 0] Checking RDB file /none\nCannot open file /none: "),
        "{out}"
    );
}

/// As `valkey-check-rdb` 9.1.2 says it.
#[test]
fn versions_to_come_are_checked_if_asked_for() {
    let body = b"\x00\x01k\x01v\xff\0\0\0\0\0\0\0\0";
    for (magic, what) in [("REDIS0075", "Foreign"), ("VALKEY987", "Future")] {
        let number = &magic[magic.len() - 3..].trim_start_matches('0');
        let good = [magic.as_bytes(), body].concat();
        let (code, lines) = check(&good);
        assert_eq!(
            (code, &lines[2]),
            (1, &format!("[offset 9] Can't handle RDB format version {number}"))
        );
        let (code, lines) = check_as(&good, VersionCheck::Relaxed);
        assert_eq!(code, 0);
        assert_eq!(lines[1], format!("[offset 9] {what} RDB version {number} detected"));
        let last = "[offset 23] \\o/ RDB looks OK, but loading requires config 'rdb-version-check relaxed'";
        assert_eq!(lines[3], last);
        let unknown = [magic.as_bytes(), b"\x96\x01k"].concat();
        let (code, lines) = check_as(&unknown, VersionCheck::Relaxed);
        let what = what.to_lowercase();
        let text =
            format!("[offset 10] Unknown object type 150 in RDB file with {what} version {number}");
        assert_eq!((code, &lines[3]), (1, &text));
    }
    let (_, lines) = check_as(FILE, VersionCheck::Relaxed);
    assert!(lines.iter().any(|line| line.ends_with("\\o/ RDB looks OK! \\o/")), "{lines:?}");
}
