//! Any deadline that a command accepts is there again, whatever way the data takes: through an RDB
//! file, a log as it was written or rewritten, DUMP and RESTORE, a replica.

use std::collections::BTreeMap;

use crate::support::{Client, Reply, START, TestServer, wait_for};

/// A time of Redis 7.4's fields is at most this, in Unix milliseconds.
const LATEST_OF_FIELDS: i64 = (1 << 48) - 2;

/// Commands that set a deadline: of a key `@` or of its fields, at a time `$`.
const COMMANDS: &[&str] = &[
    "SET @ v EX $",
    "SET @ v PX $",
    "SET @ v EXAT $",
    "SET @ v PXAT $",
    "SETEX @ $ v",
    "PSETEX @ $ v",
    "GETEX @ EX $",
    "GETEX @ PX $",
    "GETEX @ EXAT $",
    "GETEX @ PXAT $",
    "MSETEX 1 @ v PX $",
    "MSETEX 1 @ v PXAT $",
    "EXPIRE @ $",
    "PEXPIRE @ $",
    "EXPIREAT @ $",
    "PEXPIREAT @ $",
    "RESTORE @ $ payload REPLACE",
    "RESTORE @ $ payload REPLACE ABSTTL",
    "HEXPIRE @ $ FIELDS 1 f",
    "HPEXPIRE @ $ FIELDS 1 f",
    "HEXPIREAT @ $ FIELDS 1 f",
    "HPEXPIREAT @ $ FIELDS 1 f",
    "HSETEX @ EX $ FIELDS 1 f v",
    "HSETEX @ PX $ FIELDS 1 f v",
    "HSETEX @ EXAT $ FIELDS 1 f v",
    "HSETEX @ PXAT $ FIELDS 1 f v",
    "HGETEX @ EX $ FIELDS 1 f",
    "HGETEX @ PX $ FIELDS 1 f",
    "HGETEX @ EXAT $ FIELDS 1 f",
    "HGETEX @ PXAT $ FIELDS 1 f",
];

/// Times where something ends: 48 bits, 64 bits, each from now on and in seconds too, and around
/// each.
fn times() -> Vec<i64> {
    let now = START.0;
    let mut ends = vec![
        0,
        1 << 32,
        now,
        LATEST_OF_FIELDS,
        LATEST_OF_FIELDS - now,
        i64::MAX,
        i64::MAX - now,
        i64::MIN,
    ];
    ends.extend(ends.clone().iter().map(|end| end / 1000));
    let around = |end: i64| [-2, -1, 0, 1, 2].into_iter().filter_map(move |by| end.checked_add(by));
    let mut times: Vec<i64> = ends.into_iter().flat_map(around).collect();
    times.sort_unstable();
    times.dedup();
    times
}

fn call(client: &mut Client, line: &str) -> Reply {
    client.call(&line.split(' ').collect::<Vec<_>>())
}

fn ask(client: &mut Client, line: &str) -> String {
    call(client, line).show()
}

fn info(client: &mut Client, field: &str) -> String {
    let Reply::Bulk(text) = client.call(&["INFO", "everything"]) else { panic!("no text") };
    let text = String::from_utf8_lossy(&text).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {field}")).to_owned()
}

/// Each key with its deadline, or its field's.
fn deadlines(client: &mut Client) -> BTreeMap<String, String> {
    let Reply::Array(keys) = call(client, "KEYS *") else { panic!("no keys") };
    let keys = keys.iter().map(|key| match key {
        Reply::Bulk(name) => String::from_utf8(name.clone()).expect("a name of the test"),
        other => panic!("no name: {other:?}"),
    });
    let mut told = BTreeMap::new();
    for key in keys.collect::<Vec<_>>() {
        let asks = match key.starts_with('H') {
            true => format!("HPEXPIRETIME {key} FIELDS 1 f"),
            false => format!("PEXPIRETIME {key}"),
        };
        let deadline = ask(client, &asks);
        told.insert(key, deadline);
    }
    told
}

/// Has every command set every time; returns how many of them were accepted and are to come.
fn set_all(client: &mut Client) -> usize {
    let mut accepted = 0;
    assert_eq!(ask(client, "SET payload v"), "OK");
    let Reply::Bulk(payload) = call(client, "DUMP payload") else { panic!("no payload") };
    for (index, command) in COMMANDS.iter().enumerate() {
        for time in times() {
            let name = command.split(' ').next().expect("a name");
            let key = format!("{name}:{index}:{time}");
            match name.starts_with('H') {
                true => ask(client, &format!("HSET {key} f v other w")),
                false => ask(client, &format!("SET {key} v")),
            };
            let time = time.to_string();
            let words: Vec<&[u8]> = command
                .split(' ')
                .map(|word| match word {
                    "@" => key.as_bytes(),
                    "$" => time.as_bytes(),
                    "payload" => payload.as_slice(),
                    word => word.as_bytes(),
                })
                .collect();
            accepted += usize::from(!matches!(client.call(&words), Reply::Error(_)));
        }
    }
    accepted
}

fn rewrite(client: &mut Client) {
    ask(client, "BGREWRITEAOF");
    wait_for("a rewrite", || (info(client, "aof_rewrite_in_progress") == "0").then_some(()));
    assert_eq!(info(client, "aof_last_bgrewrite_status"), "ok");
}

fn survive(line: &str) {
    let dir = tempfile::tempdir().expect("a folder");
    let dir_line = format!("dir {}", dir.path().display());
    let lines = [dir_line.as_str(), "appendonly yes", "repl-diskless-sync-delay 0", line]
        .map(str::to_owned);
    let server = TestServer::start(&lines);
    let mut client = server.connect();
    let accepted = set_all(&mut client);
    assert!(accepted > 500, "only {accepted} were accepted");
    let expected = deadlines(&mut client);
    let ways: &[&[&str]] = &[
        &["DEBUG LOADAOF"],
        &["DEBUG RELOAD"],
        &["BGREWRITEAOF", "DEBUG LOADAOF"],
        &["CONFIG SET aof-use-rdb-preamble no", "BGREWRITEAOF", "DEBUG LOADAOF"],
    ];
    for way in ways {
        for step in *way {
            match *step {
                "BGREWRITEAOF" => rewrite(&mut client),
                step => assert_eq!(ask(&mut client, step), "OK", "{step}"),
            }
        }
        assert_eq!(deadlines(&mut client), expected, "after {way:?}");
    }
    // A snapshot, then the stream.
    let replica = TestServer::start(&[]);
    let mut there = replica.connect();
    let port = server.address.port().to_string();
    assert_eq!(ask(&mut there, &format!("REPLICAOF 127.0.0.1 {port}")), "OK");
    let follow = |client: &mut Client, there: &mut Client| {
        assert_eq!(ask(client, "SET mark 1"), "OK");
        wait_for("the replica", || {
            [&server, &replica].into_iter().for_each(TestServer::settle);
            (ask(there, "GET mark") == "\"1\"").then_some(())
        });
        assert_eq!(ask(client, "DEL mark"), "(integer) 1");
        wait_for("the replica", || {
            [&server, &replica].into_iter().for_each(TestServer::settle);
            (ask(there, "EXISTS mark") == "(integer) 0").then_some(())
        });
    };
    follow(&mut client, &mut there);
    assert_eq!(deadlines(&mut there), expected, "with a replica that loads a snapshot");
    ask(&mut client, "FLUSHALL");
    set_all(&mut client);
    follow(&mut client, &mut there);
    assert_eq!(deadlines(&mut there), expected, "with a replica that follows the stream");
    // Each alone.
    for (key, deadline) in &expected {
        // RESTORE deletes what is due in this very millisecond.
        if *deadline == format!("(integer) {}", START.0) {
            continue;
        }
        let Reply::Bulk(payload) = client.call(&["DUMP", key]) else { panic!("{key} is gone") };
        let ms = match deadline.strip_prefix("(integer) ") {
            Some("-1") | None => "0",
            Some(ms) => ms,
        };
        let request = [b"RESTORE", key.as_bytes(), ms.as_bytes(), &payload, b"REPLACE", b"ABSTTL"];
        assert_eq!(client.call(&request).show(), "OK", "{key}");
    }
    assert_eq!(deadlines(&mut client), expected, "after DUMP and RESTORE");
}

#[test]
fn every_deadline_that_is_accepted_is_there_again() {
    survive("compatible-with redis-7.0");
}

#[test]
fn every_deadline_that_valkey_accepts_is_there_again() {
    survive("compatible-with valkey-9");
}
