//! A primary tested with replicas that the test plays itself: what they are sent, byte for byte,
//! and when they are disconnected.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::support::{Client, PATIENCE, Reply, TestServer, encode, read_some, wait_for};

pub const SECOND: i64 = 1_000_000;

/// A connection to a server as a replica.
pub struct Replica {
    stream: TcpStream,
    /// Bytes received and not taken.
    buffer: Vec<u8>,
    /// Where it says that it accepts clients.
    pub port: u16,
}

impl Replica {
    pub fn connect(server: &TestServer) -> Self {
        let stream = TcpStream::connect(server.address).expect("the server takes connections");
        stream.set_nodelay(true).expect("an option of TCP");
        stream.set_read_timeout(Some(PATIENCE)).expect("an option of sockets");
        Replica { stream, buffer: Vec::new(), port: 7777 }
    }

    pub fn say(&mut self, line: &str) {
        self.stream.write_all(format!("{line}\r\n").as_bytes()).expect("the server reads");
    }

    /// Reads a piece. False: the connection has ended.
    fn read(&mut self) -> bool {
        let mut bytes = [0; 4096];
        match read_some(&mut self.stream, &mut bytes) {
            Ok(0) => false,
            Ok(count) => {
                self.buffer.extend_from_slice(&bytes[..count]);
                true
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => false,
            Err(error) => panic!("nothing came: {error}"),
        }
    }

    /// Takes the bytes up to `end`, with it. Skips newlines before them, which keep the connection
    /// alive.
    fn take_until(&mut self, end: &[u8]) -> Vec<u8> {
        loop {
            while self.buffer.first() == Some(&b'\n') {
                self.buffer.remove(0);
            }
            let found = self.buffer.windows(end.len()).position(|window| window == end);
            if let Some(at) = found {
                return self.buffer.drain(..at + end.len()).collect();
            }
            assert!(self.read(), "the connection has ended");
        }
    }

    pub fn line(&mut self) -> String {
        String::from_utf8(self.take_until(b"\r\n")).expect("text").trim_end().to_owned()
    }

    pub fn take(&mut self, count: usize) -> Vec<u8> {
        while self.buffer.len() < count {
            assert!(self.read(), "the connection has ended");
        }
        self.buffer.drain(..count).collect()
    }

    /// Waits until the server closes the connection.
    pub fn await_close(&mut self) {
        while self.read() {}
    }

    /// Does the handshake of Redis 7.0 before PSYNC.
    pub fn greet(&mut self) {
        self.say(&format!("REPLCONF listening-port {}", self.port));
        assert_eq!(self.line(), "+OK");
        self.say("REPLCONF capa eof capa psync2");
        assert_eq!(self.line(), "+OK");
    }

    /// Does a full synchronization. Returns the history's ID, and the snapshot's offset and bytes.
    pub fn sync(&mut self, server: &TestServer) -> (String, u64, Vec<u8>) {
        self.greet();
        self.say("PSYNC ? -1");
        server.settle();
        let line = self.line();
        let words: Vec<&str> = line.split(' ').collect();
        assert_eq!((words[0], words.len()), ("+FULLRESYNC", 3), "{line}");
        let offset = words[2].parse().expect("an offset");
        let header = self.line();
        let mark = header.strip_prefix("$EOF:").expect("a snapshot without a length");
        assert_eq!(mark.len(), 40);
        let mut snapshot = self.take_until(mark.as_bytes());
        snapshot.truncate(snapshot.len() - 40);
        (words[1].to_owned(), offset, snapshot)
    }
}

pub fn start(lines: &[&str]) -> TestServer {
    let mut all = vec!["repl-diskless-sync-delay 0".to_owned()];
    all.extend(lines.iter().map(|&line| line.to_owned()));
    TestServer::start(&all)
}

/// The bytes of requests in the stream.
pub fn stream(requests: &[&str]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for request in requests {
        let words: Vec<&str> = request.split(' ').collect();
        bytes.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
        for word in words {
            bytes.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
        }
    }
    bytes
}

/// A field of INFO.
pub fn field(client: &mut Client, name: &str) -> String {
    let Reply::Bulk(text) = client.call(&["INFO", "everything"]) else {
        panic!("INFO is a string")
    };
    let text = String::from_utf8(text).expect("text");
    let found = text.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
    found.unwrap_or_else(|| panic!("no field {name}")).to_owned()
}

#[test]
fn a_replica_gets_a_snapshot_and_after_its_first_acknowledgement_the_stream() {
    let server = start(&[]);
    let mut client = server.connect();
    client.call(&["SET", "before", "1"]);
    let mut replica = Replica::connect(&server);
    let (history, offset, snapshot) = replica.sync(&server);
    assert_eq!(offset, 0);
    assert_eq!(snapshot[..9], *b"REDIS0010");
    for wanted in ["before", "repl-id", &history, "repl-offset", "repl-stream-db"] {
        let is_there = snapshot.windows(wanted.len()).any(|part| part == wanted.as_bytes());
        assert!(is_there, "{wanted}");
    }
    client.call(&["SET", "k", "v"]);
    client.call(&["SELECT", "5"]);
    client.call(&["SET", "k", "w", "PX", "1000"]);
    server.settle();
    let state = "ip=127.0.0.1,port=7777,state=online,offset=0,lag=0";
    assert_eq!(field(&mut client, "slave0"), state);
    // Nothing is sent before the replica acknowledges the snapshot.
    replica.stream.set_nonblocking(true).expect("an option of sockets");
    let early = replica.stream.read(&mut [0; 1]);
    assert!(early.is_err_and(|error| error.kind() == ErrorKind::WouldBlock));
    replica.stream.set_nonblocking(false).expect("an option of sockets");
    replica.say("REPLCONF ACK 0");
    let expected = stream(&["SELECT 0", "SET k v", "SELECT 5", "SET k w PXAT 1700000001000"]);
    assert_eq!(replica.take(expected.len()), expected);
    let end = expected.len() as u64;
    assert_eq!(field(&mut client, "master_repl_offset"), end.to_string());
    // The deletion of an expired key is sent.
    server.advance(2 * SECOND);
    let expired = stream(&["DEL k"]);
    assert_eq!(replica.take(expired.len()), expired);

    // A replica that reconnects is sent what it lacks, from any offset on.
    drop(replica);
    server.settle();
    wait_for("the replica to be gone", || {
        (field(&mut client, "connected_slaves") == "0").then_some(())
    });
    client.call(&["INCR", "n"]);
    let all = [expected, expired, stream(&["INCR n"])].concat();
    for from in [1, 7, end + 1, all.len() as u64 + 1] {
        let mut replica = Replica::connect(&server);
        replica.greet();
        replica.say(&format!("PSYNC {} {from}", history.to_uppercase()));
        assert_eq!(replica.line(), format!("+CONTINUE {history}"));
        let rest = &all[from as usize - 1..];
        assert_eq!(replica.take(rest.len()), rest);
    }
    // Without `capa psync2` the history's ID is not sent.
    let mut old = Replica::connect(&server);
    old.say(&format!("PSYNC {history} 1"));
    assert_eq!(old.line(), "+CONTINUE");
    assert_eq!(field(&mut client, "sync_full"), "1");
    assert_eq!(field(&mut client, "sync_partial_ok"), "5");
    // An offset beyond the end or another history leads to a full synchronization.
    for asked in [format!("{history} {}", all.len() + 2), format!("{} 1", "a".repeat(40))] {
        let mut replica = Replica::connect(&server);
        replica.greet();
        replica.say(&format!("PSYNC {asked}"));
        assert_eq!(replica.line(), format!("+FULLRESYNC {history} {}", all.len()));
    }
    assert_eq!(field(&mut client, "sync_partial_err"), "2");
}

/// What `redis-cli --functions-rdb`, `redis-cli --rdb`, and replicas of Redis 7.0 and Valkey 9 send,
/// beside a hash with a field deadline.
#[test]
fn files_are_sent_beside_deadlines_of_fields_and_old_replicas_hear_why_not() {
    const FUNCTION: &str = "#!lua name=l\nredis.register_function('f', function() return 1 end)";
    let folder = tempfile::tempdir().expect("a folder");
    let dir = format!("dir {}", folder.path().display());
    let server = start(&[&dir, "redis-version 8.0.0"]);
    let mut client = server.connect();
    client.call(&["FUNCTION", "LOAD", FUNCTION]);
    client.call(&["HSET", "h", "f", "v", "g", "w"]);
    client.call(&["HPEXPIREAT", "h", "4000000000000", "FIELDS", "1", "f"]);
    let functions = "REPLCONF rdb-filter-only functions";
    let file_only = "REPLCONF rdb-only 1";
    let (by_pipe, by_file) = ("REPLCONF capa eof", "REPLCONF capa psync2");
    let refusal = "-ERR BGSAVE failed, replication can't continue: fields of hashes have deadlines, \
                   which it cannot read";
    // The requests; what the snapshot begins with; whether it has the hash.
    for (requests, magic, has_hash) in [
        (&[functions, by_pipe, file_only, "SYNC"][..], "REDIS0010", false),
        (&[functions, by_pipe, "PSYNC ? -1"], "REDIS0010", false),
        (&[functions, by_pipe, "REPLCONF version 7.2.0", "SYNC"], "REDIS0011", false),
        (&[by_pipe, file_only, "SYNC"], "VALKEY080", true),
        (&[by_file, file_only, "SYNC"], "VALKEY080", true),
        (&[by_pipe, "REPLCONF version 9.0.0", "PSYNC ? -1"], "VALKEY080", true),
        (&[by_pipe, "SYNC"], "", false),
        (&[by_pipe, "PSYNC ? -1"], "", false),
        (&[by_file, "SYNC"], "", false),
        (&[by_pipe, "REPLCONF version 8.1.0", "PSYNC ? -1"], "", false),
    ] {
        let begun = field(&mut client, "rdb_saves");
        let mut replica = Replica::connect(&server);
        for (index, request) in requests.iter().enumerate() {
            replica.say(request);
            if index + 1 < requests.len() {
                assert_eq!(replica.line(), "+OK", "{requests:?}");
            }
        }
        server.settle();
        if magic.is_empty() {
            // Refused replicas that asked again at once would keep the server busy.
            server.advance(1_100_000);
        }
        let first = wait_for("an answer", || {
            server.settle();
            replica.stream.set_nonblocking(true).expect("an option of sockets");
            let is_there = replica.stream.peek(&mut [0; 1]).is_ok();
            replica.stream.set_nonblocking(false).expect("an option of sockets");
            is_there.then(|| replica.line())
        });
        if magic.is_empty() {
            assert_eq!(first, refusal, "{requests:?}");
            replica.await_close();
            assert_eq!(field(&mut client, "rdb_saves"), begun, "{requests:?}: a file for nobody");
            continue;
        }
        let is_answered = first.starts_with("+FULLRESYNC ");
        let header = if is_answered { replica.line() } else { first };
        let file = match header.strip_prefix("$EOF:") {
            Some(mark) => {
                let file = replica.take_until(mark.as_bytes());
                file[..file.len() - mark.len()].to_vec()
            }
            None => {
                let length = header.strip_prefix('$').and_then(|length| length.parse().ok());
                replica.take(length.unwrap_or_else(|| panic!("{requests:?}: {header}")))
            }
        };
        assert_eq!(String::from_utf8_lossy(&file[..9]), magic, "{requests:?}");
        // A server starts with the file.
        let other = tempfile::tempdir().expect("a folder");
        std::fs::write(other.path().join("dump.rdb"), &file).expect("the file can be written");
        let other_dir = format!("dir {}", other.path().display());
        let reader = start(&[&other_dir, "redis-version 8.0.0"]);
        let mut reading = reader.connect();
        assert_eq!(reading.call(&["FCALL", "f", "0"]), Reply::Integer(1), "{requests:?}");
        let deadline = reading.call(&["HPEXPIRETIME", "h", "FIELDS", "1", "f"]).show();
        assert_eq!(deadline.contains("4000000000000"), has_hash, "{requests:?}: {deadline}");
        drop(replica);
        server.settle();
        wait_for("the replica to be gone", || {
            (field(&mut client, "connected_slaves") == "0").then_some(())
        });
    }
}

#[test]
fn a_replica_counts_once_it_has_acknowledged_the_snapshot() {
    let server = start(&[]);
    let mut client = server.connect();
    // Written before the stream begins: any acknowledgement covers it.
    client.call(&["SET", "before", "1"]);
    let mut replica = Replica::connect(&server);
    replica.sync(&server);
    client.send(&["WAIT", "1", "1000"]);
    server.settle();
    server.advance(2 * SECOND);
    assert_eq!(client.reply(), Some(Reply::Integer(0)));
    replica.say("REPLCONF ACK 0");
    assert_eq!(client.call(&["WAIT", "1", "0"]), Reply::Integer(1));
}

#[test]
fn transactions_and_scripts_are_sent_as_transactions() {
    let server = start(&[]);
    let mut client = server.connect();
    let mut replica = Replica::connect(&server);
    replica.sync(&server);
    replica.say("REPLCONF ACK 0");
    client.call(&["MULTI"]);
    client.call(&["SET", "a", "1"]);
    client.call(&["GET", "a"]);
    client.call(&["INCR", "a"]);
    client.call(&["EXEC"]);
    let script = "redis.call('sadd', 's', 'm') redis.call('spop', 's') return 1";
    client.call(&["EVAL", script, "0"]);
    let expected = stream(&[
        "SELECT 0", "MULTI", "SET a 1", "INCR a", "EXEC", "MULTI", "sadd s m", "SREM s m", "EXEC",
    ]);
    let got = replica.take(expected.len());
    let as_text = |bytes: &[u8]| String::from_utf8_lossy(bytes).to_ascii_lowercase();
    assert_eq!(as_text(&got), as_text(&expected));
}

#[test]
fn replicas_without_capa_eof_get_a_file_with_its_length() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = format!("dir {}", folder.path().display());
    let server = start(&[&dir]);
    let mut client = server.connect();
    client.call(&["SET", "before", "1"]);
    let mut replica = Replica::connect(&server);
    replica.say("SYNC");
    let take_file = |replica: &mut Replica| {
        wait_for("the file", || {
            server.settle();
            replica.stream.set_nonblocking(true).expect("an option of sockets");
            let is_there = replica.stream.peek(&mut [0; 1]).is_ok();
            replica.stream.set_nonblocking(false).expect("an option of sockets");
            is_there.then_some(())
        });
        let header = replica.line();
        let length = header.strip_prefix('$').and_then(|length| length.parse().ok());
        replica.take(length.expect("a length"))
    };
    let file = take_file(&mut replica);
    assert!(file.starts_with(b"REDIS0010") && file.len() > 50);
    // The stream follows at once.
    client.call(&["SET", "after", "1"]);
    let expected = stream(&["SELECT 0", "SET after 1"]);
    assert_eq!(replica.take(expected.len()), expected);
    assert_eq!(std::fs::read(folder.path().join("dump.rdb")).expect("a file"), file);
}

#[test]
fn nothing_is_added_to_the_stream_after_the_save_at_shutdown() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = format!("dir {}", folder.path().display());
    let server = start(&[&dir, "shutdown-timeout 2"]);
    let mut client = server.connect();
    let mut replica = Replica::connect(&server);
    let (history, ..) = replica.sync(&server);
    replica.say("REPLCONF ACK 0");
    client.call(&["SET", "k", "v", "PX", "1000"]);
    // The server waits for the lagging replica; the key's deadline comes meanwhile.
    client.send(&["SHUTDOWN", "SAVE"]);
    server.settle();
    server.clock.advance_us(3 * SECOND);
    // The loop takes a turn, its last one.
    drop(server.connect());
    replica.await_close();
    let bytes = replica.buffer.len();
    drop((client, server));
    let server = start(&[&dir]);
    let mut replica = Replica::connect(&server);
    replica.greet();
    replica.say(&format!("PSYNC {history} {}", bytes + 1));
    assert!(replica.line().starts_with("+CONTINUE"), "the replica has more than the file");
}

#[test]
fn a_shutdown_waits_for_changes_and_not_for_pings() {
    let server = start(&["shutdown-timeout 1000", "repl-ping-replica-period 1"]);
    let mut client = server.connect();
    let mut replica = Replica::connect(&server);
    replica.sync(&server);
    replica.say("REPLCONF ACK 0");
    client.call(&["SET", "k", "v"]);
    let bytes = stream(&["SELECT 0", "SET k v"]).len();
    client.send(&["SHUTDOWN", "NOSAVE"]);
    server.settle();
    server.advance(SECOND);
    // The next ping is there before the acknowledgement of the last one.
    replica.say(&format!("REPLCONF ACK {}", bytes - 1));
    server.advance(SECOND);
    replica.say(&format!("REPLCONF ACK {bytes}"));
    replica.await_close();
}

#[test]
fn a_replica_that_shuts_down_takes_no_failover() {
    let primary = start(&[]);
    let server = start(&["shutdown-timeout 1000"]);
    let mut client = server.connect();
    client.call(&["REPLICAOF", "127.0.0.1", &primary.address.port().to_string()]);
    wait_for("the link", || (field(&mut client, "master_link_status") == "up").then_some(()));
    let mut lagging = Replica::connect(&server);
    let (history, offset, _) = lagging.sync(&server);
    lagging.say(&format!("REPLCONF ACK {offset}"));
    primary.connect().call(&["SET", "k", "v"]);
    wait_for("the key", || (client.call(&["EXISTS", "k"]) == Reply::Integer(1)).then_some(()));
    client.send(&["SHUTDOWN", "NOSAVE"]);
    server.settle();
    let mut other = Replica::connect(&server);
    other.say(&format!("PSYNC {history} {} FAILOVER", offset + 1));
    let told = other.line();
    assert_eq!(told, "-ERR PSYNC FAILOVER can't be sent to a server that is shutting down.");
    assert_eq!(field(&mut server.connect(), "role"), "slave");
}

#[test]
fn a_primary_sends_pings_and_disconnects_silent_replicas() {
    let server = start(&["repl-ping-replica-period 3", "repl-timeout 8"]);
    let mut client = server.connect();
    let mut silent = Replica::connect(&server);
    silent.sync(&server);
    silent.say("REPLCONF ACK 0");
    server.settle();
    let ping = stream(&["PING"]);
    for _ in 0..7 {
        server.advance(SECOND);
    }
    assert_eq!(silent.take(2 * ping.len()), [&ping[..], &ping].concat());
    assert_eq!(field(&mut client, "connected_slaves"), "1");
    for _ in 0..3 {
        server.advance(SECOND);
    }
    silent.await_close();
    assert_eq!(field(&mut client, "connected_slaves"), "0");
}

#[test]
fn the_backlog_and_its_history_end_when_no_replica_reconnects() {
    let server = start(&["repl-backlog-ttl 60"]);
    let mut client = server.connect();
    let mut replica = Replica::connect(&server);
    let (history, ..) = replica.sync(&server);
    drop(replica);
    wait_for("the replica to be gone", || {
        (field(&mut client, "connected_slaves") == "0").then_some(())
    });
    client.call(&["SET", "k", "v"]);
    assert_eq!(field(&mut client, "repl_backlog_active"), "1");
    server.advance(59 * SECOND);
    assert_eq!(field(&mut client, "repl_backlog_active"), "1");
    server.advance(3 * SECOND);
    assert_eq!(field(&mut client, "repl_backlog_active"), "0");
    assert_ne!(field(&mut client, "master_replid"), history);
    let mut replica = Replica::connect(&server);
    replica.greet();
    replica.say(&format!("PSYNC {history} 1"));
    server.settle();
    assert!(replica.line().starts_with("+FULLRESYNC"));
}

#[test]
fn only_a_replica_that_falls_too_far_behind_is_disconnected() {
    let server = start(&["client-output-buffer-limit replica 20mb 0 0", "repl-backlog-size 100kb"]);
    let mut client = server.connect();
    let mut slow = Replica::connect(&server);
    slow.sync(&server);
    slow.say("REPLCONF ACK 0");
    let mut quick = Replica::connect(&server);
    // Synchronized first: an acknowledgement during the snapshot would not count.
    quick.sync(&server);
    quick.say("REPLCONF ACK 0");
    let value = "x".repeat(1 << 20);
    let read = Arc::new(AtomicU64::new(0));
    let in_thread = read.clone();
    let reader = std::thread::spawn(move || {
        let mut bytes = 0u64;
        let mut buffer = vec![0; 1 << 16];
        while bytes < 40 << 20 {
            match read_some(&mut quick.stream, &mut buffer) {
                Ok(0) | Err(_) => break,
                Ok(count) => bytes += count as u64,
            }
            in_thread.store(bytes, Ordering::Relaxed);
        }
        (bytes, quick)
    });
    for written in 0..40 {
        client.call(&["SET", "k", &value]);
        // Independent of the machine's speed.
        wait_for("the quick one to keep up", || {
            (read.load(Ordering::Relaxed) + (5 << 20) >= written << 20).then_some(())
        });
    }
    let (bytes, quick) = reader.join().expect("the reader ends");
    assert!(bytes >= 40 << 20, "{bytes}");
    slow.await_close();
    assert_eq!(field(&mut client, "connected_slaves"), "1");
    drop(quick);
    server.settle();
    // The backlog frees what no replica needs.
    client.call(&["SET", "k", "v"]);
    server.settle();
    let kept: u64 = field(&mut client, "repl_backlog_histlen").parse().expect("a number");
    assert!((100 << 10..2 << 20).contains(&kept), "{kept}");
}

#[test]
fn requests_of_replicas_are_checked() {
    let server = start(&[]);
    let mut client = server.connect();
    let error = |reply: Reply| match reply {
        Reply::Error(text) => String::from_utf8(text).expect("text"),
        other => panic!("{other:?}"),
    };
    for (request, expected) in [
        ("REPLCONF a", "ERR syntax error"),
        ("REPLCONF rubbish 1", "ERR Unrecognized REPLCONF option: rubbish"),
        ("REPLCONF listening-port x", "ERR value is not an integer or out of range"),
        ("REPLCONF rdb-filter-only keys", "ERR Unsupported rdb-filter-only option: keys"),
        ("PSYNC ? x", "ERR value is not an integer or out of range"),
    ] {
        let words: Vec<&str> = request.split(' ').collect();
        assert_eq!(error(client.call(&words)), expected, "{request}");
    }
    client.call(&["REPLCONF", "rdb-filter-only", "functions"]);
    let text = "ERR Filtered replica requires EOF capability";
    assert_eq!(error(client.call(&["SYNC"])), text);
    // Two requests in one packet: the reply to the first is not sent yet when SYNC runs.
    let mut hasty = server.connect();
    hasty.send_raw(b"PING\r\nSYNC\r\n");
    assert_eq!(hasty.reply(), Some(Reply::Simple(b"PONG".to_vec())));
    let text = "ERR SYNC and PSYNC are invalid with pending output";
    assert_eq!(error(hasty.reply().expect("a reply")), text);
    // A replica whose command would be answered is disconnected.
    let mut talker = Replica::connect(&server);
    talker.sync(&server);
    talker.say("PING");
    talker.await_close();
}

#[test]
fn min_replicas_to_write_needs_replicas_that_acknowledge() {
    let server = start(&["min-replicas-to-write 1", "min-replicas-max-lag 5"]);
    let mut client = server.connect();
    let refused = Reply::Error(b"NOREPLICAS Not enough good replicas to write.".to_vec());
    assert_eq!(client.call(&["SET", "k", "v"]), refused);
    let mut replica = Replica::connect(&server);
    replica.sync(&server);
    replica.say("REPLCONF ACK 0");
    server.settle();
    assert_eq!(client.call(&["SET", "k", "v"]), Reply::Simple(b"OK".to_vec()));
    assert_eq!(field(&mut client, "min_slaves_good_slaves"), "1");
    server.advance(7 * SECOND);
    assert_eq!(client.call(&["SET", "k", "v"]), refused);
    replica.say("REPLCONF ACK 1");
    server.settle();
    server.advance(SECOND);
    assert_eq!(client.call(&["SET", "k", "v"]), Reply::Simple(b"OK".to_vec()));
}

#[test]
fn wait_counts_replicas_that_have_this_clients_writes() {
    let server = start(&[]);
    let (mut first, mut second) = (server.connect(), server.connect());
    let mut replica = Replica::connect(&server);
    replica.sync(&server);
    replica.say("REPLCONF ACK 0");
    first.call(&["SET", "a", "1"]);
    let written = stream(&["SELECT 0", "SET a 1"]);
    assert_eq!(replica.take(written.len()), written);
    first.send(&["WAIT", "1", "0"]);
    let request = stream(&["REPLCONF GETACK *"]);
    assert_eq!(replica.take(request.len()), request);
    replica.say(&format!("REPLCONF ACK {}", written.len() - 1));
    server.settle();
    assert_eq!(first.try_message(), None);
    replica.say(&format!("REPLCONF ACK {}", written.len()));
    assert_eq!(first.reply(), Some(Reply::Integer(1)));
    // Later writes of other clients do not matter.
    second.call(&["SET", "b", "1"]);
    assert_eq!(first.call(&["WAIT", "1", "0"]), Reply::Integer(1));
    second.send(&["WAIT", "1", "50"]);
    server.settle();
    server.advance(60_000);
    assert_eq!(second.reply(), Some(Reply::Integer(0)));
}

#[test]
fn a_replica_that_has_connected_anew_counts_once() {
    let server = start(&[]);
    let mut client = server.connect();
    let connect = |from: Option<&str>, offset: u64| {
        let mut replica = Replica::connect(&server);
        replica.greet();
        replica.say("REPLCONF capa run-id=a4");
        assert_eq!(replica.line(), "+OK");
        match from {
            Some(history) => {
                replica.say(&format!("PSYNC {history} {}", offset + 1));
                assert_eq!(replica.line(), format!("+CONTINUE {history}"));
            }
            None => drop(replica.sync(&server)),
        }
        replica.say(&format!("REPLCONF ACK {offset}"));
        server.settle();
        replica
    };
    let mut replica = connect(None, 0);
    client.call(&["SET", "a", "1"]);
    let written = stream(&["SELECT 0", "SET a 1"]);
    replica.take(written.len());
    replica.say(&format!("REPLCONF ACK {}", written.len()));
    assert_eq!(client.call(&["WAIT", "1", "0"]), Reply::Integer(1));
    client.send(&["WAIT", "2", "100"]);
    server.settle();
    // The server has not heard that its connection is gone.
    let history = field(&mut server.connect(), "master_replid");
    let _again = connect(Some(&history), written.len() as u64);
    replica.await_close();
    server.advance(100_000);
    assert_eq!(client.reply(), Some(Reply::Integer(1)));
}

#[test]
fn what_is_paused_twice_waits_for_the_end_of_both_pauses() {
    let server = start(&[]);
    let (mut operator, mut writer) = (server.connect(), server.connect());
    let mut replica = Replica::connect(&server);
    replica.sync(&server);
    replica.say("REPLCONF ACK 0");
    operator.call(&["SET", "k", "1"]);
    // As a sentinel of Valkey begins a failover; the replica does not acknowledge the write.
    let ok = Reply::Simple(b"OK".to_vec());
    assert_eq!(operator.call(&["CLIENT", "PAUSE", "10000", "WRITE"]), ok);
    assert_eq!(operator.call(&["FAILOVER"]), ok);
    writer.send(&["SET", "k", "2"]);
    server.settle();
    // The failover's pause ends, and in the same moment this is no primary any more.
    operator.call(&["MULTI"]);
    operator.call(&["FAILOVER", "ABORT"]);
    operator.call(&["REPLICAOF", "127.0.0.1", "1"]);
    assert_eq!(operator.call(&["EXEC"]), Reply::Array(vec![ok.clone(), ok.clone()]));
    server.settle();
    assert_eq!(writer.try_message(), None);
    assert_eq!(operator.call(&["CLIENT", "UNPAUSE"]), ok);
    let refused = b"READONLY You can't write against a read only replica.".to_vec();
    assert_eq!(writer.reply(), Some(Reply::Error(refused)));
}

#[test]
fn a_replica_that_loads_its_snapshot_says_so_with_newlines() {
    let server = start(&["repl-timeout 5"]);
    let mut client = server.connect();
    let mut replica = Replica::connect(&server);
    let (_, offset, _) = replica.sync(&server);
    for _ in 0..10 {
        replica.stream.write_all(b"\n").expect("the server reads");
        server.settle();
        server.advance(2 * SECOND);
    }
    client.call(&["SET", "k", "v"]);
    replica.say(&format!("REPLCONF ACK {offset}"));
    server.settle();
    let sent = stream(&["SELECT 0", "SET k v"]);
    let mut received = replica.take(sent.len());
    // Pings came before it.
    while !received.ends_with(&sent) {
        received.extend(replica.take(1));
    }
    assert!(field(&mut client, "slave0").contains("state=online"));
    // One that says nothing is closed.
    server.advance(6 * SECOND);
    server.advance(SECOND);
    replica.await_close();
}

#[test]
fn replicas_are_never_paused() {
    let server = start(&["repl-timeout 5"]);
    let (mut client, mut other) = (server.connect(), server.connect());
    let (mut replica, mut talker) = (Replica::connect(&server), Replica::connect(&server));
    let (_, offset, _) = replica.sync(&server);
    talker.sync(&server);
    assert_eq!(client.call(&["CLIENT", "PAUSE", "18000", "ALL"]).show(), "OK");
    other.send(&["PING"]);
    for second in 1..9 {
        replica.say(&format!("REPLCONF ACK {}", offset + second));
        talker.say(&format!("REPLCONF ACK {offset}"));
        server.settle();
        server.advance(2 * SECOND);
    }
    // What is answered ends the connection: it is not put off.
    talker.say("PING");
    talker.await_close();
    assert_eq!(other.try_message(), None);
    replica.say(&format!("REPLCONF ACK {}", offset + 10));
    server.settle();
    server.advance(3 * SECOND);
    let shown = field(&mut client, "slave0");
    assert!(shown.contains(&format!("offset={},", offset + 10)), "{shown}");
}

#[test]
fn a_script_that_runs_longer_than_the_timeout_costs_no_link() {
    let server = start(&["repl-timeout 5", "repl-ping-replica-period 1", "busy-reply-threshold 5"]);
    let (mut client, mut other) = (server.connect(), server.connect());
    let (mut replica, mut loading) = (Replica::connect(&server), Replica::connect(&server));
    let (_, offset, _) = replica.sync(&server);
    replica.say(&format!("REPLCONF ACK {offset}"));
    loading.sync(&server);
    // In a transaction that has written before, behind a write of the same turn.
    let wait = "redis.call('set', 'k', 2) while true do end";
    let requests = [
        encode(&["SET", "k", "0"]),
        encode(&["MULTI"]),
        encode(&["SET", "k", "1"]),
        encode(&["EVAL", wait, "0"]),
        encode(&["EXEC"]),
    ];
    client.send_raw(&requests.concat());
    wait_for("the script", || other.call(&["PING"]).show().contains("BUSY").then_some(()));
    let ping = stream(&["PING"]);
    let mut received = Vec::new();
    for seconds in 1..=10 {
        server.clock.advance_us(SECOND);
        while received.windows(ping.len()).filter(|part| *part == ping).count() < seconds {
            received.extend(replica.take(1));
        }
        replica.say(&format!("REPLCONF ACK {offset}"));
        loading.stream.write_all(b"\n").expect("the server reads");
        assert!(other.call(&["PING"]).show().contains("BUSY"));
    }
    assert_eq!(other.call(&["SCRIPT", "KILL", "ROLLBACK"]).show(), "OK");
    for _ in 0..4 {
        client.reply().expect("the server answers");
    }
    client.reply().expect("the transaction's reply");
    server.settle();
    assert_eq!(field(&mut client, "connected_slaves"), "2");
    let sent = stream(&["SET k 1"]);
    while !received.ends_with(&sent) {
        received.extend(replica.take(1));
    }
}
