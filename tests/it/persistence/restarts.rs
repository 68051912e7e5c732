//! Persistence: a server restarted in the same folder has the same data.

use crate::support::{self, Client, Reply, TestServer};

fn start(dir: &std::path::Path, lines: &[&str]) -> TestServer {
    let mut all = vec![format!("dir {}", dir.display())];
    all.extend(lines.iter().map(|line| (*line).to_owned()));
    TestServer::start(&all)
}

/// Writes values of every type, deadlines, two databases and a function library.
fn fill(client: &mut Client) {
    for line in [
        "SET text value",
        "SET number 42",
        "APPEND text more",
        "SET session x PX 90000",
        "RPUSH list a b c 1 2 3",
        "HSET hash f v g w",
        "HPEXPIRE hash 80000 FIELDS 1 g",
        "SADD numbers 1 2 3",
        "SADD names x y z",
        "ZADD scores 1 a 2.5 b inf c",
        "XADD stream 1-1 f v",
        "XADD stream 2-1 g w",
        "XGROUP CREATE stream group 0",
        "XREADGROUP GROUP group consumer COUNT 1 STREAMS stream >",
        "INCRBYFLOAT float 1.5",
        "LPOP list",
        "MULTI",
        "INCR number",
        "DEL gone",
        "EXEC",
        "SELECT 3",
        "SET elsewhere 1",
        "SELECT 0",
    ] {
        let reply = client.call(&line.split(' ').collect::<Vec<_>>());
        assert!(!matches!(reply, Reply::Error(_)), "{line}: {reply:?}");
    }
    let script = "redis.call('SET', 'by-script', '1') redis.call('INCR', 'by-script')";
    client.call(&["EVAL", script, "0"]);
    let library = "#!lua name=lib\nserver.register_function('f', function() return 7 end)";
    client.call(&["FUNCTION", "LOAD", library]);
}

/// The data that is compared.
fn contents(client: &mut Client) -> Vec<Reply> {
    let digest = client.call(&["DEBUG", "DIGEST"]);
    let deadline = client.call(&["PEXPIRETIME", "session"]);
    let of_field = client.call(&["HPEXPIRETIME", "hash", "FIELDS", "1", "g"]);
    let pending = client.call(&["XPENDING", "stream", "group"]);
    let function = client.call(&["FCALL", "f", "0"]);
    vec![digest, deadline, of_field, pending, function]
}

fn info(client: &mut Client, field: &str) -> String {
    let Reply::Bulk(text) = client.call(&["INFO", "persistence"]) else { panic!("no text") };
    let text = String::from_utf8_lossy(&text).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {field}")).to_owned()
}

/// Runs turns of the server until a field of INFO has a value.
fn wait_for(server: &TestServer, client: &mut Client, field: &str, wanted: &str) {
    support::wait_for(&format!("{field} to be {wanted}"), || {
        server.advance(1_000);
        (info(client, field) == wanted).then_some(())
    });
}

#[test]
fn a_saved_file_is_loaded_by_the_next_start() {
    let dir = tempfile::tempdir().expect("a folder");
    let server = start(dir.path(), &[]);
    let mut client = server.connect();
    fill(&mut client);
    assert_eq!(client.call(&["SAVE"]), Reply::Simple(b"OK".to_vec()));
    assert_eq!(info(&mut client, "rdb_changes_since_last_save"), "0");
    let before = contents(&mut client);
    drop((client, server));
    let server = start(dir.path(), &[]);
    assert_eq!(contents(&mut server.connect()), before);
}

#[test]
fn a_background_save_holds_the_data_of_its_beginning() {
    let dir = tempfile::tempdir().expect("a folder");
    let server = start(dir.path(), &[]);
    let mut client = server.connect();
    client.call(&["DEBUG", "POPULATE", "5000"]);
    let before = client.call(&["DEBUG", "DIGEST"]);
    client.call(&["BGSAVE"]);
    // FLUSHALL would end the save.
    client.call(&["FLUSHDB"]);
    client.call(&["SET", "later", "1"]);
    wait_for(&server, &mut client, "rdb_bgsave_in_progress", "0");
    assert_eq!(info(&mut client, "rdb_last_bgsave_status"), "ok");
    drop((client, server));
    let server = start(dir.path(), &[]);
    assert_eq!(server.connect().call(&["DEBUG", "DIGEST"]), before);
}

/// A save shares the parts of large collections; each change after its beginning copies a part.
#[test]
fn large_collections_are_saved_as_they_were_while_they_change() {
    const LARGE: u32 = 20_000;
    let dir = tempfile::tempdir().expect("a folder");
    let server = start(dir.path(), &["save \"\""]);
    let mut client = server.connect();
    let each = |client: &mut Client, what: &str, to: u32| {
        let script = format!("for i = 1, {to} do {what} end");
        let reply = client.call(&["EVAL", &script, "0"]);
        assert!(!matches!(reply, Reply::Error(_)), "{what}: {reply:?}");
    };
    each(&mut client, "redis.call('RPUSH', 'list', 'element:' .. i)", LARGE);
    each(&mut client, "redis.call('HSET', 'hash', 'field:' .. i, 'value:' .. i)", LARGE);
    // Values too long to be stored in a page.
    each(&mut client, "redis.call('HSET', 'wide', i, string.rep('x', 300) .. i)", 2_000);
    each(&mut client, "redis.call('SADD', 'set', 'member:' .. i)", LARGE);
    each(&mut client, "redis.call('ZADD', 'scores', i % 1000, 'member:' .. i)", LARGE);
    each(&mut client, "redis.call('XADD', 'stream', i .. '-1', 'f', 'v' .. i)", LARGE);
    let before = client.call(&["DEBUG", "DIGEST"]);
    // The thread waits at each key; meanwhile the others change.
    client.call(&["CONFIG", "SET", "rdb-key-save-delay", "200000"]);
    client.call(&["BGSAVE"]);
    for round in 0..3 {
        each(&mut client, "redis.call('RPUSH', 'list', i) redis.call('LPOP', 'list')", 5_000);
        client.call(&["LSET", "list", "7000", "changed"]);
        client.call(&["LREM", "list", "0", &format!("element:{}", 9_000 + round)]);
        each(&mut client, "redis.call('HSET', 'hash', 'field:' .. i * 3, 'changed')", LARGE / 3);
        each(&mut client, "redis.call('HDEL', 'hash', 'field:' .. i * 7)", LARGE / 7);
        each(&mut client, "redis.call('HSET', 'wide', i, string.rep('y', 300 + i % 7))", 2_000);
        each(&mut client, "redis.call('SREM', 'set', 'member:' .. i * 2)", LARGE / 2);
        each(&mut client, "redis.call('ZINCRBY', 'scores', 500, 'member:' .. i)", LARGE);
        each(&mut client, "redis.call('ZREM', 'scores', 'member:' .. i * 5)", LARGE / 5);
        each(&mut client, "redis.call('XDEL', 'stream', i * 3 .. '-1')", LARGE / 3);
        client.call(&["XADD", "stream", "*", "f", "new"]);
    }
    assert_ne!(client.call(&["DEBUG", "DIGEST"]), before);
    client.call(&["CONFIG", "SET", "rdb-key-save-delay", "0"]);
    wait_for(&server, &mut client, "rdb_bgsave_in_progress", "0");
    assert_eq!(info(&mut client, "rdb_last_bgsave_status"), "ok");
    // Each part of the collections was copied once: together they take 2 MB.
    let copied: u32 = info(&mut client, "rdb_last_cow_size").parse().expect("bytes");
    assert!((500_000..10_000_000).contains(&copied), "{copied} bytes");
    client.call(&["DEBUG", "RELOAD", "NOSAVE"]);
    assert_eq!(client.call(&["DEBUG", "DIGEST"]), before);
}

#[test]
fn everything_is_restored_from_the_append_only_file() {
    for policy in ["always", "everysec", "no"] {
        let dir = tempfile::tempdir().expect("a folder");
        let policy = format!("appendfsync {policy}");
        let lines = ["appendonly yes", &policy];
        let server = start(dir.path(), &lines);
        let mut client = server.connect();
        fill(&mut client);
        let before = contents(&mut client);
        drop((client, server));
        let server = start(dir.path(), &lines);
        let mut client = server.connect();
        assert_eq!(contents(&mut client), before, "{policy}");
        // The same after a rewrite.
        client.call(&["BGREWRITEAOF"]);
        client.call(&["SET", "behind", "1"]);
        wait_for(&server, &mut client, "aof_rewrite_in_progress", "0");
        assert_eq!(info(&mut client, "aof_last_bgrewrite_status"), "ok");
        client.call(&["SET", "behind", "2"]);
        let before = contents(&mut client);
        drop((client, server));
        let server = start(dir.path(), &lines);
        assert_eq!(contents(&mut server.connect()), before, "{policy}");
    }
}

#[test]
fn the_append_only_file_can_be_switched_on_and_off() {
    let dir = tempfile::tempdir().expect("a folder");
    let server = start(dir.path(), &[]);
    let mut client = server.connect();
    fill(&mut client);
    assert_eq!(client.call(&["CONFIG", "SET", "appendonly", "yes"]), Reply::Simple(b"OK".to_vec()));
    client.call(&["SET", "after", "1"]);
    wait_for(&server, &mut client, "aof_rewrite_in_progress", "0");
    client.call(&["SET", "after", "2"]);
    let before = contents(&mut client);
    client.call(&["CONFIG", "SET", "appendonly", "no"]);
    assert_eq!(info(&mut client, "aof_enabled"), "0");
    client.call(&["SET", "forgotten", "1"]);
    drop((client, server));
    let server = start(dir.path(), &["appendonly yes"]);
    assert_eq!(contents(&mut server.connect()), before);
}

/// WAITAOF ends when the append-only file is switched off, even if it is switched on again at once.
#[test]
fn waitaof_ends_when_the_append_only_file_is_switched_off() {
    let dir = tempfile::tempdir().expect("a folder");
    let server = start(dir.path(), &["appendonly yes", "appendfsync no"]);
    let (mut waiting, mut other) = (server.connect(), server.connect());
    waiting.call(&["SET", "key", "value"]);
    waiting.send(&["WAITAOF", "1", "0", "0"]);
    server.settle();
    assert_eq!(waiting.try_message(), None);
    let switch = |to: &str| format!("CONFIG SET appendonly {to}\r\n");
    other.send_raw(format!("{}{}", switch("no"), switch("yes")).as_bytes());
    assert_eq!(other.reply(), Some(Reply::Simple(b"OK".to_vec())));
    assert_eq!(other.reply(), Some(Reply::Simple(b"OK".to_vec())));
    let both = Reply::Array(vec![Reply::Integer(1), Reply::Integer(0)]);
    assert_eq!(waiting.reply(), Some(both));
    // The new file is waited for like the old one.
    wait_for(&server, &mut other, "aof_rewrite_in_progress", "0");
    other.call(&["SET", "key", "another"]);
    waiting.send(&["WAITAOF", "1", "0", "100"]);
    server.settle();
    assert_eq!(waiting.try_message(), None);
    server.advance(200_000);
    let none = Reply::Array(vec![Reply::Integer(0), Reply::Integer(0)]);
    assert_eq!(waiting.reply(), Some(none));
    // Without a file there is nothing to wait for.
    waiting.send(&["WAITAOF", "1", "0", "0"]);
    server.settle();
    assert_eq!(waiting.try_message(), None);
    other.call(&["CONFIG", "SET", "appendonly", "no"]);
    let error =
        "(error) ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.";
    assert_eq!(waiting.reply().expect("an answer").show(), error);
}

/// Until its base and its manifest are there, no start would load the log.
#[test]
fn waitaof_counts_a_log_that_was_switched_on_once_a_start_would_load_it() {
    let dir = tempfile::tempdir().expect("a folder");
    let server = start(dir.path(), &["rdb-key-save-delay 20000"]);
    let mut client = server.connect();
    client.call(&["DEBUG", "POPULATE", "10"]);
    client.call(&["CONFIG", "SET", "appendonly", "yes"]);
    client.call(&["SET", "z", "1"]);
    let [counted, not] =
        [1, 0].map(|here| Reply::Array(vec![here, 0].into_iter().map(Reply::Integer).collect()));
    client.call(&["MULTI"]);
    client.call(&["WAITAOF", "1", "0", "0"]);
    assert_eq!(client.call(&["EXEC"]), Reply::Array(vec![not]));
    assert_eq!(client.call(&["WAITAOF", "1", "0", "0"]), counted);
    // What a kill would leave now.
    let left = tempfile::tempdir().expect("a folder");
    support::copy_folder(dir.path(), left.path());
    let server = start(left.path(), &["appendonly yes"]);
    let mut client = server.connect();
    assert_eq!(client.call(&["GET", "z"]).show(), "\"1\"");
    assert_eq!(client.call(&["DBSIZE"]), Reply::Integer(11));
}

#[test]
fn the_progress_of_a_long_loading_is_logged() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = dir.path().join("log");
    let server = start(dir.path(), &[&format!("logfile {}", log.display())]);
    let mut client = server.connect();
    client.call(&["DEBUG", "POPULATE", "1000"]);
    // Each group of keys now takes a minute, by the clock.
    server.clock.set_tick_us(60_000_000);
    assert_eq!(client.call(&["DEBUG", "RELOAD"]), Reply::Simple(b"OK".to_vec()));
    server.clock.set_tick_us(0);
    let text = std::fs::read_to_string(log).expect("a log");
    let lines: Vec<&str> =
        text.lines().filter_map(|line| line.split("* Loading: ").nth(1)).collect();
    assert!(lines.len() > 10, "{text}");
    let keys = |line: &str| -> u32 {
        let (progress, keys) = line.split_once("% of 0 MB, ").expect("a share of the file");
        let percent: f64 = progress.parse().expect("a number");
        assert!((0.1..=100.0).contains(&percent), "{line}");
        keys.strip_suffix(" keys so far").expect("a count of keys").parse().expect("a number")
    };
    let keys: Vec<u32> = lines.into_iter().map(keys).collect();
    assert!(keys.is_sorted() && keys[0] < 200 && keys.last() > Some(&900), "{keys:?}");
}

#[test]
fn a_file_with_any_ctime_is_loaded() {
    for ctime in [i64::MIN, i64::MAX] {
        let dir = tempfile::tempdir().expect("a folder");
        let ctime = ctime.to_string();
        let mut file = b"REDIS0010\xfa\x05ctime".to_vec();
        file.push(ctime.len() as u8);
        file.extend_from_slice(ctime.as_bytes());
        // A key, and the end without a checksum.
        file.extend_from_slice(b"\x00\x01k\x01v\xff\0\0\0\0\0\0\0\0");
        std::fs::write(dir.path().join("dump.rdb"), file).expect("a file");
        let server = start(dir.path(), &[]);
        assert_eq!(server.connect().call(&["GET", "k"]), Reply::Bulk(b"v".to_vec()));
    }
}

#[test]
fn expired_keys_stay_deleted_and_others_keep_their_deadlines() {
    let dir = tempfile::tempdir().expect("a folder");
    let server = start(dir.path(), &["appendonly yes"]);
    let mut client = server.connect();
    client.call(&["SET", "short", "1", "PX", "50"]);
    client.call(&["SET", "long", "1", "PX", "5000000"]);
    server.advance(60_000);
    assert_eq!(client.call(&["SETNX", "short", "2"]), Reply::Integer(1));
    let deadline = client.call(&["PEXPIRETIME", "long"]);
    drop((client, server));
    let server = start(dir.path(), &["appendonly yes"]);
    let mut client = server.connect();
    assert_eq!(client.call(&["GET", "short"]), Reply::Bulk(b"2".to_vec()));
    assert_eq!(client.call(&["PTTL", "short"]), Reply::Integer(-1));
    assert_eq!(client.call(&["PEXPIRETIME", "long"]), deadline);
}

#[test]
fn writes_are_refused_while_saves_fail() {
    let dir = tempfile::tempdir().expect("a folder");
    let server = start(dir.path(), &[]);
    let mut client = server.connect();
    client.call(&["CONFIG", "SET", "save", "3600 1"]);
    std::fs::remove_dir(dir.path()).expect("an empty folder");
    assert!(matches!(client.call(&["BGSAVE"]), Reply::Error(_)));
    let Reply::Error(text) = client.call(&["SET", "a", "1"]) else {
        panic!("the write is refused")
    };
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(text.starts_with("MISCONF Redis is configured to save RDB snapshots"), "{text}");
    assert!(matches!(client.call(&["PING"]), Reply::Error(_)));
    assert!(!matches!(client.call(&["GET", "a"]), Reply::Error(_)));
    client.call(&["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"]);
    assert_eq!(client.call(&["SET", "a", "1"]), Reply::Simple(b"OK".to_vec()));
    client.call(&["CONFIG", "SET", "save", ""]);
}

#[test]
fn a_cancelled_save_leaves_nothing_behind() {
    let dir = tempfile::tempdir().expect("a folder");
    let server = start(dir.path(), &[]);
    let mut client = server.connect();
    client.call(&["CONFIG", "SET", "save", "3600 1"]);
    client.call(&["SET", "a", "1"]);
    // Each key takes 100 seconds.
    client.call(&["CONFIG", "SET", "rdb-key-save-delay", "100000000"]);
    let files = || std::fs::read_dir(dir.path()).expect("the folder").count();
    for _ in 0..2 {
        assert_eq!(client.call(&["BGSAVE"]).show(), "Background saving started");
        assert_eq!(files(), 1, "the temporary one");
        assert_eq!(info(&mut client, "rdb_bgsave_in_progress"), "1");
        assert_eq!(client.call(&["BGSAVE", "cancel"]).show(), "Background saving cancelled");
        assert_eq!(files(), 0);
        assert_eq!(info(&mut client, "rdb_bgsave_in_progress"), "0");
    }
    assert_eq!(info(&mut client, "rdb_last_bgsave_status"), "ok");
    assert_eq!(info(&mut client, "rdb_last_bgsave_time_sec"), "0");
    assert_eq!(info(&mut client, "rdb_changes_since_last_save"), "1");
    assert_eq!(client.call(&["SET", "b", "1"]).show(), "OK");
    let nothing = "(error) ERR Background saving is currently not in progress or scheduled";
    assert_eq!(client.call(&["BGSAVE", "CANCEL"]).show(), nothing);
    // One that waits for a rewrite never begins.
    client.call(&["BGREWRITEAOF"]);
    assert_eq!(client.call(&["BGSAVE", "SCHEDULE"]).show(), "Background saving scheduled");
    let cancelled = "Scheduled background saving cancelled";
    assert_eq!(client.call(&["BGSAVE", "CANCEL"]).show(), cancelled);
    assert_eq!(client.call(&["BGSAVE", "CANCEL"]).show(), nothing);
    // No waiting for the rewrite's keys at the end.
    client.call(&["CONFIG", "SET", "save", ""]);
}

/// A rewrite that is given up has begun an increment. The next one's base contains what is in it.
#[test]
fn what_was_written_before_a_second_rewrite_is_not_repeated_after_a_restart() {
    for gives_up in ["SAVE", "DEBUG RELOAD", "SHUTDOWN SAVE"] {
        let dir = tempfile::tempdir().expect("a temporary folder can be made");
        let server = start(dir.path(), &["appendonly yes", "enable-debug-command yes"]);
        let mut client = server.connect();
        client.call(&["DEBUG", "POPULATE", "1000"]);
        client.call(&["CONFIG", "SET", "rdb-key-save-delay", "100000"]);
        client.call(&["BGREWRITEAOF"]);
        let increment = dir.path().join("appendonlydir/appendonly.aof.2.incr.aof");
        client.call(&["CONFIG", "SET", "rdb-key-save-delay", "0"]);
        client.call(&["RPUSH", "list", "a"]);
        support::wait_for("the write in another increment", || {
            server.settle();
            std::fs::metadata(&increment).ok().filter(|file| file.len() > 0)
        });
        // SHUTDOWN fails: a folder has the file's name.
        let in_the_way = dir.path().join("dump.rdb");
        let fails = gives_up.starts_with("SHUTDOWN");
        if fails {
            std::fs::create_dir(&in_the_way).expect("a folder can be made");
        }
        let words: Vec<&str> = gives_up.split(' ').collect();
        client.call(&words);
        if fails {
            std::fs::remove_dir(&in_the_way).expect("the folder is there");
        }
        client.call(&["BGREWRITEAOF"]);
        wait_for(&server, &mut client, "aof_rewrite_scheduled", "0");
        wait_for(&server, &mut client, "aof_rewrite_in_progress", "0");
        assert_eq!(info(&mut client, "aof_last_bgrewrite_status"), "ok", "{gives_up}");
        client.call(&["RPUSH", "list", "b"]);
        drop((client, server));
        let server = start(dir.path(), &["appendonly yes"]);
        let reply = server.connect().call(&["LRANGE", "list", "0", "-1"]);
        assert_eq!(reply.show(), "1) \"a\"\n2) \"b\"", "{gives_up}");
    }
}

/// Limits are for clients: what one was allowed is loaded under any.
#[test]
fn a_log_written_under_larger_limits_is_loaded_whole() {
    let dir = tempfile::tempdir().expect("a folder");
    let server = start(dir.path(), &["appendonly yes"]);
    let mut client = server.connect();
    let long = "x".repeat(1_200_000);
    let comment = format!("-- {}", "x".repeat(5_000));
    let library =
        format!("#!lua name=lib\nserver.register_function('f', function() return 7 end) {comment}");
    for request in [
        &["SET", "set", &long][..],
        &["APPEND", "appended", &long],
        &["APPEND", "appended", "more"],
        &["SETRANGE", "range", "1200000", "x"],
        &["SETBIT", "bit", "12000000", "1"],
        &["BITFIELD", "field", "SET", "u8", "12000000", "7"],
        &["RPUSH", "list", &long],
        &["FUNCTION", "LOAD", &library],
    ] {
        let reply = client.call(request);
        assert!(!matches!(reply, Reply::Error(_)), "{}: {reply:?}", request[0]);
    }
    let before = client.call(&["DEBUG", "DIGEST"]);
    drop((client, server));
    let lines = [
        "appendonly yes",
        "proto-max-bulk-len 1mb",
        "script-source-limit 1kb",
        "client-query-buffer-limit 1mb",
    ];
    let server = start(dir.path(), &lines);
    let mut client = server.connect();
    assert_eq!(client.call(&["DEBUG", "DIGEST"]), before);
    assert_eq!(client.call(&["FCALL", "f", "0"]), Reply::Integer(7));
    let refused = client.call(&["APPEND", "appended", "x"]);
    assert!(matches!(refused, Reply::Error(_)), "{refused:?}");
}

#[test]
fn a_save_goes_where_it_was_told_when_it_began() {
    let (dir, other) =
        (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let server = start(dir.path(), &["enable-protected-configs yes"]);
    let mut client = server.connect();
    client.call(&["DEBUG", "POPULATE", "3"]);
    let other = other.path().display().to_string();
    for (name, value, target) in
        [("dbfilename", "later.rdb", "dump.rdb"), ("dir", other.as_str(), "later.rdb")]
    {
        client.call(&["CONFIG", "SET", "rdb-key-save-delay", "2000"]);
        client.call(&["BGSAVE"]);
        assert_eq!(client.call(&["CONFIG", "SET", name, value]), Reply::Simple(b"OK".to_vec()));
        wait_for(&server, &mut client, "rdb_bgsave_in_progress", "0");
        let names = || {
            std::fs::read_dir(dir.path())
                .expect("a folder")
                .map(|it| it.expect("an entry").file_name())
        };
        assert!(names().any(|it| it == target), "{name}: {:?}", names().collect::<Vec<_>>());
    }
    assert_eq!(std::fs::read_dir(&other).expect("a folder").count(), 0);
}

/// The answer of a write under `always` waits until the data is in a file that has a name again.
#[test]
fn a_removed_append_only_folder_is_made_anew_before_a_write_is_answered() {
    let dir = tempfile::tempdir().expect("a folder");
    let lines = ["save \"\"", "appendonly yes", "appendfsync always"];
    let server = start(dir.path(), &lines);
    let mut client = server.connect();
    client.call(&["SET", "before", "1"]);
    let folder = dir.path().join("appendonlydir");
    for (round, removed) in ["", "appendonly.aof.2.incr.aof"].into_iter().enumerate() {
        match removed {
            "" => std::fs::remove_dir_all(&folder),
            name => std::fs::rename(folder.join(name), dir.path().join("elsewhere")),
        }
        .expect("removed");
        let mut writer = server.connect();
        writer.send(&["SET", &format!("after{round}"), "1"]);
        let answer = support::wait_for("the answer", || {
            server.advance(1_000);
            writer.try_message()
        });
        assert_eq!(answer, Reply::Simple(b"OK".to_vec()));
        assert_eq!(info(&mut client, "aof_last_write_status"), "ok");
        // As after a kill.
        let copy = tempfile::tempdir().expect("a folder");
        let inside = copy.path().join("appendonlydir");
        std::fs::create_dir(&inside).expect("a folder");
        for file in std::fs::read_dir(&folder).expect("the folder is there again") {
            let file = file.expect("a name");
            std::fs::copy(file.path(), inside.join(file.file_name())).expect("copied");
        }
        let again = start(copy.path(), &lines);
        let mut client = again.connect();
        let kept = client.call(&["EXISTS", "before", "after0", "after1"]);
        assert_eq!(kept, Reply::Integer(2 + round as i64));
    }
}

#[test]
fn a_start_with_a_new_append_only_file_warns_of_an_rdb_file_that_it_does_not_load() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = dir.path().join("log");
    let server = start(dir.path(), &[]);
    server.connect().call(&["SET", "saved", "1"]);
    server.connect().call(&["SAVE"]);
    drop(server);
    let logfile = format!("logfile {}", log.display());
    let count = || {
        let server = start(dir.path(), &[&logfile, "appendonly yes"]);
        assert_eq!(server.connect().call(&["DBSIZE"]), Reply::Integer(0));
        drop(server);
        let text = std::fs::read_to_string(&log).expect("a log");
        text.matches("starts without the data of").count()
    };
    assert_eq!(count(), 1);
    // The second start loads the append-only file.
    assert_eq!(count(), 1);
}

/// Until the new folder has everything, the old one has; then a start in the old one is refused.
#[test]
fn the_append_only_file_follows_dir() {
    let (dir, other) =
        (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let lines = ["appendonly yes", "appendfsync always", "enable-protected-configs yes"];
    let mut server = start(dir.path(), &[&lines[..], &["rdb-key-save-delay 3000"]].concat());
    let mut client = server.connect();
    fill(&mut client);
    let there = other.path().display().to_string();
    assert_eq!(client.call(&["CONFIG", "SET", "dir", &there]).show(), "OK");
    assert_eq!(info(&mut client, "aof_rewrite_in_progress"), "1");
    client.call(&["RPUSH", "moving", "1"]);
    client.call(&["SELECT", "5"]);
    client.call(&["SET", "there", "too"]);
    client.call(&["SELECT", "0"]);
    let refused = client.call(&["CONFIG", "REWRITE"]).show();
    assert!(refused.starts_with("(error) ERR The append only file is being moved"), "{refused}");
    let before = contents(&mut client);
    // A kill now: the old folder has all.
    let left = tempfile::tempdir().expect("a folder");
    support::copy_folder(dir.path(), left.path());
    assert_eq!(contents(&mut start(left.path(), &lines).connect()), before);
    wait_for(&server, &mut client, "aof_rewrite_in_progress", "0");
    client.call(&["RPUSH", "moving", "2"]);
    let before = contents(&mut client);
    support::copy_folder(other.path(), &left.path().join("moved"));
    assert_eq!(contents(&mut start(&left.path().join("moved"), &lines).connect()), before);
    // Rewrites are in the new folder too.
    client.call(&["BGREWRITEAOF"]);
    wait_for(&server, &mut client, "aof_rewrite_in_progress", "0");
    client.call(&["RPUSH", "moving", "3"]);
    let before = contents(&mut client);
    // And back, to the folder from which it has come.
    let here = dir.path().display().to_string();
    assert_eq!(client.call(&["CONFIG", "SET", "dir", &here]).show(), "OK");
    wait_for(&server, &mut client, "aof_rewrite_in_progress", "0");
    drop((client, server));
    server = start(dir.path(), &lines);
    client = server.connect();
    assert_eq!(contents(&mut client), before);
    // A folder with the log of another server stays as it is.
    let mark = other.path().join("appendonlydir/appendonly.aof.moved");
    assert_eq!(std::fs::read_to_string(&mark).expect("a file"), format!("{here}/appendonlydir\n"));
    std::fs::remove_file(mark).expect("a file");
    let refused = client.call(&["CONFIG", "SET", "dir", &there]).show();
    assert!(refused.contains("There is an append-only file already"), "{refused}");
    let dir_now = client.call(&["CONFIG", "GET", "dir"]).show();
    assert!(dir_now.contains(&here), "{dir_now}");
    client.call(&["RPUSH", "moving", "4"]);
    let before = contents(&mut client);
    drop((client, server));
    assert_eq!(contents(&mut start(dir.path(), &lines).connect()), before);
}

/// A file that is switched off in one folder and on again in another has moved too.
#[test]
fn the_folder_of_a_file_that_is_switched_on_elsewhere_is_marked() {
    let lines = ["appendonly yes", "appendfsync always", "enable-protected-configs yes"];
    for order in [["dir", "no", "yes"], ["no", "dir", "yes"]] {
        let (dir, other) =
            (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let server = start(dir.path(), &lines);
        let mut client = server.connect();
        fill(&mut client);
        let there = other.path().display().to_string();
        for step in order {
            let set = match step {
                "dir" => ["CONFIG", "SET", "dir", &there],
                value => ["CONFIG", "SET", "appendonly", value],
            };
            assert_eq!(client.call(&set).show(), "OK", "{order:?}");
        }
        wait_for(&server, &mut client, "aof_rewrite_in_progress", "0");
        client.call(&["SET", "only", "there"]);
        let mark = dir.path().join("appendonlydir/appendonly.aof.moved");
        let to = std::fs::read_to_string(&mark).expect("a mark");
        assert_eq!(to, format!("{there}/appendonlydir\n"), "{order:?}");
        assert!(!other.path().join("appendonlydir/appendonly.aof.moved").exists());
        // A file that is switched off and on in one folder has not moved.
        for value in ["no", "yes"] {
            client.call(&["CONFIG", "SET", "appendonly", value]);
        }
        wait_for(&server, &mut client, "aof_rewrite_in_progress", "0");
        assert!(!other.path().join("appendonlydir/appendonly.aof.moved").exists());
        let before = contents(&mut client);
        drop((client, server));
        assert_eq!(contents(&mut start(other.path(), &lines).connect()), before);
    }
}
