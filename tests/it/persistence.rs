//! What outlives a server: started again in the same folder, it holds what it held.

use crate::support::{Client, Reply, TestServer};

fn start(dir: &std::path::Path, lines: &[&str]) -> TestServer {
    let mut all = vec![format!("dir {}", dir.display())];
    all.extend(lines.iter().map(|line| (*line).to_owned()));
    TestServer::start(&all)
}

/// Something of every type, deadlines, two databases, a library of functions.
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

/// All that is compared of a server.
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

/// Lets the server take turns until a field of INFO is so.
fn wait_for(server: &TestServer, client: &mut Client, field: &str, wanted: &str) {
    for _ in 0..2_000 {
        if info(client, field) == wanted {
            return;
        }
        server.advance(1_000);
        std::thread::yield_now();
    }
    panic!("{field} is {} and not {wanted}", info(client, field));
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
fn a_background_save_holds_the_moment_it_began_at() {
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

#[test]
fn the_append_only_file_brings_everything_back() {
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
        // And once more, behind a rewrite.
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

#[test]
fn what_expired_stays_gone_and_what_lives_keeps_its_time() {
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
