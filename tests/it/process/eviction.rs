//! Eviction beside a snapshot, as a process: memory is counted for a whole process.
//!
//! A snapshot keeps copies and parts of what has changed since it began. That is not data: a server
//! that is a few megabytes below its limit evicts no key for it, and refuses no write, as Redis,
//! whose child process has those copies.
#![allow(clippy::disallowed_methods)] // the limit of patience is measured in real time

use std::io::Write;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::support::ports::free_port;
use crate::support::{Client, Reply, wait_for};

/// Memory left below the limit: for clients' buffers, and for what other threads have not counted
/// yet. Unit: bytes.
const ROOM: u64 = 6 << 20;

struct Process {
    child: Child,
    port: u16,
    _dir: TempDir,
}

impl Process {
    fn start(lines: &str) -> Process {
        let port = free_port();
        let dir = tempfile::tempdir().expect("a folder");
        let mut command = Command::new(env!("CARGO_BIN_EXE_latchkey"));
        command.env_remove("NOTIFY_SOCKET").env_remove("UPSTART_JOB").arg("-");
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().expect("the program starts");
        let dir_path = dir.path().display();
        let text = format!(
            "bind 127.0.0.1\nport {port}\ndir {dir_path}\nsave \"\"\nenable-debug-command yes\nmaxmemory-eviction-tenacity 100\n\
             rdb-key-save-delay 2000000\nrepl-diskless-sync yes\nrepl-diskless-sync-delay 0\n{lines}\n"
        );
        let mut stdin = child.stdin.take().expect("a pipe");
        stdin.write_all(text.as_bytes()).expect("it reads its configuration");
        drop(stdin);
        Process { child, port, _dir: dir }
    }

    fn connect(&self) -> Client {
        let address = ([127, 0, 0, 1], self.port).into();
        wait_for("the server", || std::net::TcpStream::connect(address).ok());
        Client::connect(address)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn ask(client: &mut Client, line: &str) -> String {
    client.call(&line.split(' ').collect::<Vec<_>>()).show()
}

fn info(client: &mut Client, field: &str) -> u64 {
    let Reply::Bulk(text) = client.call(&["INFO", "everything"]) else { panic!("no text") };
    let text = String::from_utf8_lossy(&text).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {field}"))
}

/// Keys of 20 KB, so many.
const KEYS: usize = 800;
/// Of 200 KB: a snapshot shares them.
const LARGE_KEYS: usize = 60;
/// Elements of 5 KB in each collection.
const ELEMENTS: usize = 500;

fn value(bytes: usize) -> Vec<u8> {
    vec![b'x'; bytes]
}

fn fill(client: &mut Client) {
    for index in 0..KEYS {
        client.call(&[b"SET", format!("k{index}").as_bytes(), &value(20_000), b"EX", b"100000"]);
    }
    for index in 0..LARGE_KEYS {
        client.call(&[
            b"SET",
            format!("large{index}").as_bytes(),
            &value(200_000),
            b"EX",
            b"100000",
        ]);
    }
    for index in 0..ELEMENTS {
        client.call(&[b"RPUSH", &b"list"[..], &value(5_000)]);
        client.call(&[b"HSET", &b"hash"[..], format!("f{index}").as_bytes(), &value(5_000)]);
        client.call(&[b"XADD", &b"stream"[..], b"*", b"f", &value(5_000)]);
    }
}

/// Changes that leave as much data as there was, but a snapshot keeps all that was there before.
fn change(client: &mut Client) {
    let mut change = |request: &[&[u8]]| {
        let reply = client.call(request);
        assert!(!matches!(reply, Reply::Error(_)), "{}", reply.show());
    };
    for _ in 0..200 {
        change(&[b"SET", b"k0", &value(20_000), b"EX", b"100000"]);
    }
    for index in 0..KEYS {
        change(&[b"SET", format!("k{index}").as_bytes(), &value(20_000), b"EX", b"100000"]);
    }
    for index in 0..LARGE_KEYS {
        change(&[b"SET", format!("large{index}").as_bytes(), &value(200_000), b"EX", b"100000"]);
    }
    for index in 0..ELEMENTS {
        change(&[b"LPOP", b"list"]);
        change(&[b"RPUSH", b"list", &value(5_000)]);
        change(&[b"HSET", b"hash", format!("f{index}").as_bytes(), &value(5_000)]);
        change(&[b"XADD", b"stream", b"MAXLEN", b"500", b"*", b"f", &value(5_000)]);
    }
}

/// The memory that counts for the limit.
fn counted(client: &mut Client) -> u64 {
    info(client, "used_memory") - info(client, "mem_not_counted_for_evict")
}

fn limit_memory(client: &mut Client, bytes: u64) {
    assert_eq!(ask(client, &format!("CONFIG SET maxmemory {bytes}")), "OK");
}

fn evicts_nothing(
    policy: &str,
    lines: &str,
    begin: impl FnOnce(&Process, &mut Client) -> Option<Client>,
) {
    let server = Process::start(&format!("maxmemory-policy {policy}\n{lines}"));
    let mut client = server.connect();
    fill(&mut client);
    // Values that have changed take more room.
    change(&mut client);
    let before = counted(&mut client);
    limit_memory(&mut client, before + ROOM);
    let keys = ask(&mut client, "DBSIZE");
    let _other = begin(&server, &mut client);
    wait_for("the snapshot", || {
        (info(&mut client, "mem_not_counted_for_evict") > 4 << 20).then_some(())
    });
    change(&mut client);
    assert_eq!(info(&mut client, "evicted_keys"), 0, "{policy}");
    assert_eq!(ask(&mut client, "DBSIZE"), keys);
    let (used, not_counted) =
        (info(&mut client, "used_memory"), info(&mut client, "mem_not_counted_for_evict"));
    assert!(used > before + 4 * ROOM, "the snapshot holds much: {used} of {before}");
    assert!(used - not_counted < before + ROOM, "{used} less {not_counted} is more than {before}");
    // What is needed is evicted, and not more: the snapshot is no reason not to.
    if policy == "allkeys-lru" {
        limit_memory(&mut client, before - (10 << 20));
        let evicted = info(&mut client, "evicted_keys");
        assert!((1..KEYS as u64).contains(&evicted), "{evicted}");
    }
}

fn bgsave(_: &Process, client: &mut Client) -> Option<Client> {
    assert_eq!(ask(client, "BGSAVE"), "Background saving started");
    None
}

#[test]
fn nothing_is_evicted_for_a_save() {
    evicts_nothing("allkeys-lru", "", bgsave);
}

#[test]
fn no_key_with_a_deadline_is_evicted_for_a_save() {
    evicts_nothing("volatile-ttl", "", bgsave);
}

#[test]
fn nothing_is_refused_for_a_save() {
    evicts_nothing("noeviction", "", bgsave);
}

#[test]
fn nothing_is_evicted_for_a_rewrite_of_the_log() {
    evicts_nothing(
        "allkeys-lfu",
        "appendonly yes\nappendfsync no\nauto-aof-rewrite-percentage 0",
        |_, client| {
            assert_eq!(
                ask(client, "BGREWRITEAOF"),
                "Background append only file rewriting started"
            );
            None
        },
    );
}

#[test]
fn nothing_is_evicted_for_a_replica_that_synchronizes() {
    evicts_nothing("allkeys-lru", "", |server, client| {
        let mut replica = server.connect();
        replica.send_raw(b"SYNC\r\n");
        wait_for("the snapshot", || (info(client, "rdb_bgsave_in_progress") == 1).then_some(()));
        Some(replica)
    });
}

#[test]
fn an_eviction_that_frees_nothing_ends() {
    let server = Process::start(
        "maxmemory-policy allkeys-random\nnotify-keyspace-events Ee\nclient-output-buffer-limit pubsub 0 0 0",
    );
    let mut client = server.connect();
    const NAMED: u64 = 20_000;
    let name = |index| format!("{index}{}", "x".repeat(1000));
    for index in 0..NAMED {
        client.call(&["SET", &name(index), "v"]);
    }
    // Each key that is evicted costs more than it frees.
    let mut listeners: Vec<Client> = (0..8).map(|_| server.connect()).collect();
    for listener in &mut listeners {
        listener.call(&["SUBSCRIBE", "__keyevent@0__:evicted"]);
    }
    let used = counted(&mut client);
    limit_memory(&mut client, used - (4 << 20));
    let Reply::Integer(left) = client.call(&["DBSIZE"]) else { panic!("no number") };
    assert!(left as u64 > NAMED / 2, "{left} of {NAMED} are left");
}

/// A line of the log says at once that keys go, and which; MEMORY DOCTOR says it later. Keys that
/// `maxmemory-protect` names stay.
#[test]
fn what_memory_s_limit_costs_is_told_and_protected_keys_stay() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("log");
    let server = Process::start(&format!("logfile {}", log.display()));
    let mut client = server.connect();
    let used = info(&mut client, "used_memory");
    for request in [
        format!("CONFIG SET maxmemory {} maxmemory-policy allkeys-lru", used + ROOM),
        "CONFIG SET maxmemory-protect job:*".to_owned(),
        "RPUSH job:1 a".to_owned(),
        "ZADD job:2 1 a".to_owned(),
        "RPUSH list a".to_owned(),
    ] {
        let reply = ask(&mut client, &request);
        assert!(!reply.starts_with("(error)"), "{request}: {reply}");
    }
    for index in 0..2 * ROOM / 20_000 {
        client.call(&[b"SET", format!("k{index}").as_bytes(), &value(20_000)]);
    }
    assert!(info(&mut client, "evicted_keys") > 10);
    assert_eq!(ask(&mut client, "EXISTS job:1 job:2"), "(integer) 2");
    let doctor = ask(&mut client, "MEMORY DOCTOR");
    assert!(doctor.contains(" keys were evicted ("), "{doctor}");
    assert!(doctor.contains(" string) and 0 requests refused"), "{doctor}");
    let text = std::fs::read_to_string(&log).expect("a log");
    let told: Vec<&str> = text.lines().filter(|line| line.contains("reached maxmemory")).collect();
    // The next one comes after a minute.
    let [line] = told[..] else { panic!("{told:?}") };
    assert!(line.contains("bytes, allkeys-lru). So far: keys evicted: "), "{line}");
    assert!(line.contains("requests refused: 0."), "{line}");
    ask(&mut client, "CONFIG SET maxmemory-policy noeviction maxmemory 1mb");
    assert!(ask(&mut client, "SET more x").starts_with("(error) OOM"));
    let doctor = ask(&mut client, "MEMORY DOCTOR");
    assert!(doctor.contains(" and 1 requests refused"), "{doctor}");
}

#[test]
fn a_semaphore_that_keeps_its_limit_is_not_evicted_with_permits_or_without() {
    let server = Process::start("maxmemory-policy allkeys-lru");
    let mut client = server.connect();
    assert_eq!(ask(&mut client, "SEM.LIMIT empty 3"), "OK");
    let limit = info(&mut client, "used_memory") + ROOM;
    assert_eq!(ask(&mut client, &format!("CONFIG SET maxmemory {limit}")), "OK");
    let fill = |client: &mut Client| {
        ask(client, "DEBUG POPULATE 20000 filler 1000");
        for number in 0..1000 {
            assert_eq!(ask(client, &format!("SET more:{number} value")), "OK");
        }
        assert!(info(client, "evicted_keys") > 1000);
    };
    fill(&mut client);
    assert_eq!(ask(&mut client, "EXISTS empty"), "(integer) 1");
    assert_eq!(ask(&mut client, "FLUSHALL"), "OK");
    for line in ["SEM.LIMIT empty 3", "SEM.LIMIT pool 1", "SEM.ACQUIRE pool alice PX 600000"] {
        ask(&mut client, line);
    }
    fill(&mut client);
    assert_eq!(ask(&mut client, "EXISTS empty pool"), "(integer) 2");
}
