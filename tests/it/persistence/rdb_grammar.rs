//! RDB files whose records stand in any order that Redis's loader accepts: attributes before or
//! after other records, several of one kind, hints that are wrong, empty databases. The file is
//! loaded here, and by a real Redis if there is one. The model is the loader's rule: an attribute
//! belongs to the next key, whatever stands between them, and the last one of its kind counts.
//!
//! Values are dumps of every type and encoding; a value's digest is that after RESTORE.
//!
//! One test needs a peer's binary: `FILES_PEER=/path/to/redis-server` (`make peer` names one).

use std::collections::BTreeSet;
use std::path::Path;

use fastrand::Rng;

use crate::support::peer::Peer;
use crate::support::{Client, Reply, TestServer, seed};
use latchkey::persist::rdb::{CHECKSUM, opcode};

const DUMPS: &str = include_str!("../../data/rdb/dumps-redis-7.0.15.txt");
/// Unix milliseconds in 2096 and in 2001: before and after the present of both clocks.
const LATER: i64 = 4_000_000_000_000;
const EARLIER: i64 = 1_000_000_000_000;
const FILES: u64 = 100;

/// A value: its type and bytes, and its digest.
struct Value {
    bytes: Vec<u8>,
    digest: String,
}

/// The values of all dumps, restored by a server for their digests.
fn values(client: &mut Client) -> Vec<Value> {
    let bytes_of = |hex: &str| -> Vec<u8> {
        let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal digits");
        (0..hex.len()).step_by(2).map(byte).collect()
    };
    DUMPS
        .lines()
        .filter_map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let ["same" | "content", _, _, payload] = words[..] else { return None };
            let payload = bytes_of(payload);
            let reply = client.call(&[&b"RESTORE"[..], b"k", b"0", &payload, b"REPLACE"]).show();
            assert_eq!(reply, "OK", "{line}");
            // A payload ends with a version and a checksum.
            let bytes = payload[..payload.len() - 10].to_vec();
            Some(Value { bytes, digest: digest(client, "k") })
        })
        .collect()
}

/// A key that a file brings, as it must be after loading.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Loaded {
    db: u8,
    key: String,
    digest: String,
    deadline_ms: i64,
    /// The idle time under an LRU policy.
    idle: Option<u64>,
}

/// A file, and the keys that must be there after loading.
struct File {
    bytes: Vec<u8>,
    loaded: BTreeSet<Loaded>,
    /// The records, for the message of a failure.
    told: Vec<String>,
}

/// The records that only a newer version than the peer's has are left out for a peer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Loader {
    Ours,
    Redis7,
}

fn string(bytes: &mut Vec<u8>, text: &[u8]) {
    bytes.push(u8::try_from(text.len()).expect("a short text"));
    bytes.extend_from_slice(text);
}

/// A length in any of its forms.
fn length(bytes: &mut Vec<u8>, rng: &mut Rng, number: u32) {
    match rng.u8(..4) {
        0 if number < 64 => bytes.push(number as u8),
        0 | 1 if number < 1 << 14 => bytes.extend((0x4000 | number as u16).to_be_bytes()),
        0..=2 => {
            bytes.push(0x80);
            bytes.extend(number.to_be_bytes());
        }
        _ => {
            bytes.push(0x81);
            bytes.extend(u64::from(number).to_be_bytes());
        }
    }
}

fn draw(rng: &mut Rng, values: &[Value], loader: Loader) -> File {
    let version = match loader {
        Loader::Ours => rng.choice([9, 10, 11]).expect("a choice"),
        Loader::Redis7 => rng.choice([9, 10]).expect("a choice"),
    };
    let mut bytes = format!("REDIS{version:04}").into_bytes();
    let (mut loaded, mut told) = (BTreeSet::new(), Vec::new());
    let (mut deadline_ms, mut idle, mut db, mut has_library) = (-1, None, 0, false);
    for number in 0..rng.usize(1..40) {
        match rng.u8(..12) {
            0 => {
                let base = rng.choice([LATER, EARLIER, i64::MIN, i64::MAX - 1_000_000]);
                let drawn = base.expect("a choice") + rng.i64(0..1_000_000);
                // No deadline, and that of a key that has expired.
                deadline_ms = *rng.choice(&[drawn, drawn, drawn, -1, -2, 0]).expect("a choice");
                told.push(format!("deadline {deadline_ms}"));
                bytes.push(opcode::EXPIRE_MS);
                bytes.extend(deadline_ms.to_le_bytes());
            }
            1 => {
                // 32 bits of seconds end in 2038.
                let seconds = if rng.bool() { 2_100_000_000 } else { 1_000_000_000 };
                told.push(format!("deadline in seconds {seconds}"));
                deadline_ms = i64::from(seconds) * 1000;
                bytes.push(opcode::EXPIRE_SECONDS);
                bytes.extend(i32::to_le_bytes(seconds));
            }
            2 => {
                let seconds = rng.u32(..100_000);
                told.push(format!("idle {seconds}"));
                idle = Some(seconds.into());
                bytes.push(opcode::IDLE);
                length(&mut bytes, rng, seconds);
            }
            3 => {
                told.push("frequency".to_owned());
                bytes.extend([opcode::FREQ, rng.u8(..)]);
            }
            4 => {
                let name = rng.choice(["mvcc-tstamp", "ctime", "redis-bits", "anything", ""]);
                told.push(format!("field {name:?}"));
                bytes.push(opcode::AUX);
                string(&mut bytes, name.expect("a choice").as_bytes());
                string(&mut bytes, b"15");
            }
            5 => {
                db = rng.u8(..16);
                told.push(format!("database {db}"));
                bytes.push(opcode::SELECT_DB);
                length(&mut bytes, rng, db.into());
            }
            6 => {
                told.push("sizes".to_owned());
                bytes.push(opcode::RESIZE_DB);
                for _ in 0..2 {
                    let number = rng.u32(..1000);
                    length(&mut bytes, rng, number);
                }
            }
            7 if !has_library => {
                has_library = true;
                told.push("functions".to_owned());
                bytes.push(opcode::FUNCTION);
                let text = "#!lua name=l\nredis.register_function('f', function() end)";
                string(&mut bytes, text.as_bytes());
            }
            8 if loader == Loader::Ours && version == 11 => {
                told.push("sizes of a slot".to_owned());
                bytes.push(opcode::SLOT_INFO);
                for _ in 0..3 {
                    let number = rng.u32(..1000);
                    length(&mut bytes, rng, number);
                }
            }
            8 if loader == Loader::Ours => {
                told.push("a module's field".to_owned());
                // The module, an integer, when; its data: an integer, the end.
                bytes.extend([opcode::MODULE_AUX, 5, 2, 1, 2, 7, 0]);
            }
            _ => {
                let value = &values[rng.usize(..values.len())];
                let key = format!("k{number}");
                told.push(format!("{db} {key} of type {}", value.bytes[0]));
                bytes.push(value.bytes[0]);
                string(&mut bytes, key.as_bytes());
                bytes.extend(&value.bytes[1..]);
                if deadline_ms == -1 || deadline_ms >= LATER || deadline_ms == 2_100_000_000_000 {
                    let digest = value.digest.clone();
                    loaded.insert(Loaded { db, key, digest, deadline_ms, idle });
                }
                (deadline_ms, idle) = (-1, None);
            }
        }
    }
    bytes.push(opcode::END);
    let checksum = CHECKSUM.checksum(&bytes);
    bytes.extend(checksum.to_le_bytes());
    File { bytes, loaded, told }
}

fn digest(client: &mut Client, key: &str) -> String {
    let Reply::Array(digests) = client.call(&["DEBUG", "DIGEST-VALUE", key]) else {
        panic!("DEBUG DIGEST-VALUE has an array")
    };
    digests[0].show()
}

fn number(reply: &Reply) -> i64 {
    match reply {
        Reply::Integer(number) => *number,
        other => panic!("a number, not {}", other.show()),
    }
}

/// Makes a server load a file in place of its data, and returns its keys.
fn load(client: &mut Client, folder: &Path, file: &File) -> BTreeSet<Loaded> {
    std::fs::write(folder.join("dump.rdb"), &file.bytes).expect("the folder can be written");
    client.call(&["FUNCTION", "FLUSH"]);
    let reply = client.call(&["DEBUG", "RELOAD", "NOSAVE"]).show();
    assert_eq!(reply, "OK", "{:#?}", file.told);
    let mut loaded = BTreeSet::new();
    for db in 0..16u8 {
        client.call(&["SELECT", &db.to_string()]);
        let Reply::Array(keys) = client.call(&["KEYS", "*"]) else { panic!("KEYS has an array") };
        for key in keys {
            let key = key.show().trim_matches('"').to_owned();
            // First, since other commands use the key.
            let idle = number(&client.call(&["OBJECT", "IDLETIME", &key]));
            let deadline_ms = number(&client.call(&["PEXPIRETIME", &key]));
            // A digest says whether there is a deadline.
            client.call(&["PERSIST", &key]);
            let digest = digest(client, &key);
            let idle = Some(idle as u64);
            loaded.insert(Loaded { db, key, digest, deadline_ms, idle });
        }
    }
    client.call(&["SELECT", "0"]);
    loaded
}

fn check(client: &mut Client, folder: &Path, loader: Loader) {
    let values = values(client);
    let kinds: BTreeSet<u8> = values.iter().map(|value| value.bytes[0]).collect();
    assert!(kinds.len() >= 9, "{kinds:?}");
    let first = seed("RDB_SEED") * FILES;
    for number in first..first + FILES {
        let file = draw(&mut Rng::with_seed(number), &values, loader);
        let loaded = load(client, folder, &file);
        // Some seconds may pass after loading.
        let same = |(ours, theirs): (&Loaded, &Loaded)| {
            let idle = theirs.idle.unwrap_or(0);
            (&ours.key, ours.db, ours.deadline_ms) == (&theirs.key, theirs.db, theirs.deadline_ms)
                && ours.digest == theirs.digest
                && (idle..=idle + 5).contains(&ours.idle.expect("an idle time"))
        };
        assert!(
            loaded.len() == file.loaded.len() && loaded.iter().zip(&file.loaded).all(same),
            "RDB_SEED, file {number}: {:#?}\nloaded {loaded:#?}\nexpected {:#?}",
            file.told,
            file.loaded
        );
    }
}

#[test]
fn attributes_belong_to_the_next_key_whatever_stands_between() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = TestServer::start(&[format!("dir {}", folder.path().display())]);
    check(&mut server.connect(), folder.path(), Loader::Ours);
}

#[test]
#[ignore = "needs FILES_PEER=/path/to/a/server"]
fn a_real_server_loads_the_same_of_records_in_any_order() {
    let program = std::env::var("FILES_PEER").expect("FILES_PEER names a real server's binary");
    let folder = tempfile::tempdir().expect("a folder");
    let peer = Peer::start(Path::new(&program), folder.path(), &[]);
    check(&mut peer.connect(), folder.path(), Loader::Redis7);
}
