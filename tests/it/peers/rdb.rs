//! Values as bytes, beside a real server: what it dumps is what was captured, what is written here
//! it restores, and a file written here it loads.
//!
//! The first needs a peer that runs already and may be emptied: `RDB_PEER=host:port` (`make peer`
//! names one).

use std::path::PathBuf;

use crate::support::{Client, Reply, split_args};
use latchkey::clock::Now;
use latchkey::collections::hash::KeyHasher;
use latchkey::collections::table::ValueRef;
use latchkey::persist::rdb::payload::{dump, restore, seal, verify};
use latchkey::persist::rdb::{Encoder, Limits, SavedEntry, Version, Writer};
use latchkey::types::{Stored, Value, hash, list, set, sorted_set};

const DUMPS: &str = include_str!("../../data/rdb/dumps-redis-7.0.15.txt");
const NOW: Now =
    Now { wall_us: 1_700_000_000_000_000, boot_us: 5_000_000, ignores_deadlines: false };

/// The limits of a real server; of one key, which is to stay a skiplist, those of the capture.
fn limits(key: &str) -> Limits {
    let hasher = KeyHasher::new([1, 2]);
    Limits {
        list: list::Limits::from_setting(-2),
        hash: hash::Limits { entries_max: 512, bytes_max: 64, hasher },
        set: set::Limits { intset_entries: 512, listpack_entries: 128, listpack_value: 64, hasher },
        sorted_set: sorted_set::Limits { entries: if key == "z2" { 3 } else { 128 }, value: 64 },
    }
}

fn value_of(stored: &Stored) -> ValueRef<'_, Value> {
    match stored {
        Stored::Inline { kind, bytes } => ValueRef::Bytes { bytes, kind: *kind },
        Stored::Boxed(value) => ValueRef::Object(value),
    }
}

fn bulk(reply: Reply, what: &str) -> Vec<u8> {
    match reply {
        Reply::Bulk(bytes) => bytes,
        other => panic!("{what}: {}", other.show()),
    }
}

fn digest(client: &mut Client, key: &str) -> String {
    client.call(&["DEBUG", "DIGEST-VALUE", key]).show()
}

#[test]
#[ignore = "needs RDB_PEER=host:port"]
fn a_real_server_reads_what_is_written_here() {
    let peer = std::env::var("RDB_PEER").expect("RDB_PEER=host:port");
    let mut client = Client::connect(peer.parse().expect("an address"));
    client.call(&["FLUSHALL"]);
    let mut writer = Writer::new(Vec::new(), Version::REDIS_10, Encoder::new(true), true)
        .expect("memory has room");
    writer.aux(b"redis-ver", b"7.0.15").expect("memory has room");
    writer.select_db(0, 100, 0).expect("memory has room");
    let mut digests: Vec<(&str, String, Vec<u8>)> = Vec::new();
    for line in DUMPS.lines() {
        if let Some(command) = line.strip_prefix("> ") {
            client.call(&split_args(command));
            continue;
        }
        let words: Vec<&str> = line.split(' ').collect();
        let [how @ ("same" | "content"), key, _, payload] = words[..] else { continue };
        let theirs = bulk(client.call(&["DUMP", key]), key);
        let hex: String = theirs.iter().map(|byte| format!("{byte:02x}")).collect();
        // Times of deliveries are those of today.
        if how == "same" && key != "x3" {
            assert_eq!(hex, payload, "{key}");
        }
        let stored = restore(&theirs, &limits(key), NOW).expect("a real server's dump");
        let mut encoder = Encoder::new(true);
        let mut ours = dump(&mut encoder, value_of(&stored), &NOW);
        if verify(&ours).map(|it| it.0) != Some(Version::REDIS_10) {
            ours = vec![19];
            encoder.write_value(value_of(&stored), 19, &NOW, &mut ours);
            seal(&mut ours, Version::REDIS_10);
        }
        let before = digest(&mut client, key);
        let reply = client.call(&[&b"RESTORE"[..], b"copy", b"0", &ours, b"REPLACE"]).show();
        assert_eq!(reply, "OK", "{key}");
        assert_eq!(digest(&mut client, "copy"), before, "{key}");
        // Some keys change on the way: the file has what each was in the end.
        digests.retain(|(other, ..)| *other != key);
        digests.push((key, before, ours));
    }
    for (key, _, payload) in &digests {
        let stored = restore(payload, &limits(key), NOW).expect("it was written here");
        let entry = SavedEntry {
            key: key.as_bytes(),
            value: value_of(&stored),
            deadline_ms: None,
            idle_seconds: None,
            frequency: None,
            is_blessed: false,
        };
        writer.entry(entry, &NOW).expect("memory has room");
    }
    let volatile = SavedEntry {
        key: b"volatile",
        value: ValueRef::Bytes { bytes: b"v", kind: 0 },
        deadline_ms: Some(4_000_000_000_000),
        idle_seconds: Some(5),
        frequency: None,
        is_blessed: false,
    };
    writer.entry(volatile, &NOW).expect("memory has room");
    let (file, _) = writer.finish().expect("memory has room");
    let setting = |client: &mut Client, name: &str| {
        let reply = client.call(&["CONFIG", "GET", name]);
        let Reply::Array(pair) = reply else { panic!("CONFIG GET {name}") };
        String::from_utf8(bulk(pair[1].clone(), name)).expect("a path")
    };
    let path = PathBuf::from(setting(&mut client, "dir")).join(setting(&mut client, "dbfilename"));
    std::fs::write(&path, file).expect("the peer's folder can be written");
    // So that what was a skiplist stays one: a listpack does not know -0.
    client.call(&["CONFIG", "SET", "zset-max-listpack-entries", "3"]);
    let reply = client.call(&["DEBUG", "RELOAD", "NOSAVE"]).show();
    std::fs::remove_file(&path).expect("it was just written");
    assert_eq!(reply, "OK");
    for (key, before, _) in &digests {
        assert_eq!(digest(&mut client, key), *before, "{key} of the file");
    }
    assert_eq!(client.call(&["PEXPIRETIME", "volatile"]), Reply::Integer(4_000_000_000_000));
    assert!(digests.len() > 100);
}
