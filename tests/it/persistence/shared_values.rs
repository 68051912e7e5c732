//! Values of megabytes that change during a save: it has them as they were, and a change copies
//! little of them.

use crate::support::{Client, Reply, TestServer};

/// More than a change of few bytes copies of a string: two pieces. Unit: bytes.
const COPIED_OF_STRING: i64 = 140_000;
/// More than it copies of a collection: the runs, pages and leaves that it touches, with those that
/// they are shared with. Unit: bytes.
const COPIED_OF_COLLECTION: i64 = 400_000;

const MEGABYTE: usize = 1 << 20;

fn info(client: &mut Client, field: &str) -> String {
    let Reply::Bulk(text) = client.call(&["INFO", "persistence"]) else { panic!("no text") };
    let text = String::from_utf8_lossy(&text).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {field}")).to_owned()
}

fn copied(client: &mut Client) -> i64 {
    info(client, "current_cow_size").parse().expect("bytes")
}

fn call(client: &mut Client, request: &[&str]) -> Reply {
    let reply = client.call(request);
    assert!(!matches!(reply, Reply::Error(_)), "{:?}: {reply:?}", request[0]);
    reply
}

/// Strings of some megabytes, one for each way in which one comes into being.
const STRINGS: [&str; 13] = [
    "set",
    "appended",
    "grown",
    "restored",
    "copied",
    "renamed",
    "combined",
    "bit",
    "field",
    "by-script",
    "got-set",
    "many-set",
    "reloaded",
];

fn make_strings(client: &mut Client) {
    let text = "0123456789abcdef".repeat(3 * MEGABYTE / 16);
    call(client, &["SET", "reloaded", &text]);
    call(client, &["DEBUG", "RELOAD"]);
    call(client, &["SET", "set", &text]);
    for _ in 0..3 {
        call(client, &["APPEND", "appended", &text[..MEGABYTE]]);
    }
    call(client, &["SETRANGE", "grown", "3000000", "x"]);
    let Reply::Bulk(payload) = call(client, &["DUMP", "set"]) else { panic!("no payload") };
    let reply = client.call(&[&b"RESTORE"[..], b"restored", b"0", &payload]);
    assert_eq!(reply, Reply::Simple(b"OK".to_vec()));
    call(client, &["COPY", "set", "copied"]);
    call(client, &["COPY", "set", "other"]);
    call(client, &["RENAME", "other", "renamed"]);
    call(client, &["BITOP", "NOT", "combined", "set"]);
    call(client, &["SETBIT", "bit", "24000000", "1"]);
    call(client, &["BITFIELD", "field", "SET", "i64", "24000000", "-2"]);
    call(client, &["EVAL", "redis.call('SET', 'by-script', string.rep('x', 3000000))", "0"]);
    call(client, &["SET", "got-set", &text]);
    call(client, &["GETSET", "got-set", &text[1..]]);
    call(client, &["MSET", "many-set", &text]);
}

fn make_collections(client: &mut Client) {
    let long = |letter: &str| letter.repeat(MEGABYTE);
    for (at, letter) in ["a", "b", "c", "d"].into_iter().enumerate() {
        let text = long(letter);
        call(client, &["RPUSH", "list", "short", "other", &text, "short"]);
        call(client, &["HSET", "hash", letter, &text, &format!("field:{at}"), "short"]);
        call(client, &["SADD", "members", &text, letter]);
        call(client, &["ZADD", "scores", &at.to_string(), &text, "2", letter]);
        call(client, &["XADD", "stream", &format!("{at}-1"), "field", &text]);
    }
    // More than the parts that are copied with their collection.
    let fill = "for i = 1, 3000 do local text = string.rep('y', i % 7 == 0 and 20000 or 100) .. i \
                redis.call('RPUSH', 'long-list', text) redis.call('HSET', 'large-hash', i, text) \
                redis.call('SADD', 'large-set', text) redis.call('ZADD', 'large-scores', i, text) \
                redis.call('XADD', 'large-stream', i .. '-1', 'field', text) end";
    call(client, &["EVAL", fill, "0"]);
}

#[test]
fn a_small_change_of_a_large_value_during_a_save_copies_little() {
    let dir = tempfile::tempdir().expect("a folder");
    let lines = [
        format!("dir {}", dir.path().display()),
        "save \"\"".into(),
        "busy-reply-threshold 1000000".into(),
    ];
    let server = TestServer::start(&lines);
    let mut client = server.connect();
    let client = &mut client;
    make_strings(client);
    make_collections(client);
    let before = call(client, &["DEBUG", "DIGEST"]);
    // The thread waits at each key; meanwhile they change.
    call(client, &["CONFIG", "SET", "rdb-key-save-delay", "250000"]);
    call(client, &["BGSAVE"]);
    let mut change_at_most = |copied_max: i64, request: &[&str]| {
        let before = copied(client);
        call(client, request);
        let copied = copied(client) - before;
        assert!(copied < copied_max, "{} {} copied {copied} bytes", request[0], request[1]);
    };
    let mut change = |request: &[&str]| change_at_most(COPIED_OF_STRING, request);
    for key in STRINGS {
        change(&["APPEND", key, "x"]);
        change(&["SETRANGE", key, "1048570", "crosses a border"]);
        change(&["SETBIT", key, "77777", "1"]);
        change(&["BITFIELD", key, "SET", "u63", "16777210", "5"]);
        change(&["EVAL", "return redis.call('APPEND', KEYS[1], 'y')", "1", key]);
        change(&["GETRANGE", key, "0", "10"]);
        change(&["RENAME", key, "moved"]);
        change(&["RENAME", "moved", key]);
    }
    change(&["COPY", "set", "another"]);
    change(&["GETDEL", "got-set"]);
    change(&["SET", "many-set", "short"]);
    let middle = "c".repeat(MEGABYTE);
    for request in [
        &["LSET", "list", "2", "short"][..],
        &["LSET", "list", "1", "short"],
        &["LINSERT", "list", "BEFORE", &middle, "inserted"],
        &["LREM", "list", "1", &middle],
        &["LPUSH", "list", "first"],
        &["RPUSH", "list", "last"],
        &["LPOP", "list"],
        &["RPOP", "list"],
        &["LTRIM", "list", "1", "-3"],
        &["LMOVE", "list", "list", "LEFT", "RIGHT"],
        &["HSET", "hash", "a", "short"],
        &["HSET", "hash", "field:1", "changed"],
        &["HDEL", "hash", "b"],
        &["HPEXPIRE", "hash", "100000", "FIELDS", "1", "c"],
        &["HINCRBY", "hash", "new", "1"],
        &["SADD", "members", "new"],
        &["SREM", "members", "a"],
        &["SREM", "members", &middle],
        &["ZADD", "scores", "1", "new"],
        &["ZINCRBY", "scores", "5", "a"],
        &["ZREM", "scores", &middle],
        &["ZPOPMIN", "scores"],
        &["ZREMRANGEBYRANK", "scores", "-1", "-1"],
        &["XADD", "stream", "*", "field", "short"],
        &["XDEL", "stream", "1-1"],
        &["XTRIM", "stream", "MAXLEN", "3"],
        &["RPUSH", "long-list", "last"],
        &["LSET", "long-list", "1500", "changed"],
        &["LREM", "long-list", "1", "none"],
        &["HSET", "large-hash", "1500", "changed"],
        &["HSET", "large-hash", "7", "changed"],
        &["HDEL", "large-hash", "1400"],
        &["SADD", "large-set", "new"],
        &["SPOP", "large-set"],
        &["ZADD", "large-scores", "1500.5", "new"],
        &["ZPOPMAX", "large-scores"],
        &["ZREMRANGEBYRANK", "large-scores", "5", "5"],
        &["XADD", "large-stream", "*", "field", "short"],
        &["XDEL", "large-stream", "1500-1"],
        &["XTRIM", "large-stream", "MAXLEN", "2990"],
    ] {
        change_at_most(COPIED_OF_COLLECTION, request);
    }
    assert_ne!(call(client, &["DEBUG", "DIGEST"]), before);
    assert_eq!(info(client, "rdb_bgsave_in_progress"), "1");
    call(client, &["CONFIG", "SET", "rdb-key-save-delay", "0"]);
    for _ in 0..400_000 {
        if info(client, "rdb_bgsave_in_progress") == "0" {
            break;
        }
        server.advance(1_000);
        std::thread::yield_now();
    }
    assert_eq!(info(client, "rdb_last_bgsave_status"), "ok");
    call(client, &["DEBUG", "RELOAD", "NOSAVE"]);
    assert_eq!(call(client, &["DEBUG", "DIGEST"]), before);
}
