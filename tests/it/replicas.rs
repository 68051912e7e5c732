//! A primary, seen by replicas written by hand: what they are sent, byte for byte, and who is let go.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::support::{Client, PATIENCE, Reply, TestServer, wait_for};

pub const SECOND: i64 = 1_000_000;

/// A replica that only reads.
pub struct Replica {
    stream: TcpStream,
    /// What has come and was not taken.
    buffer: Vec<u8>,
}

impl Replica {
    pub fn connect(server: &TestServer) -> Self {
        let stream = TcpStream::connect(server.address).expect("the server takes connections");
        stream.set_nodelay(true).expect("an option of TCP");
        stream.set_read_timeout(Some(PATIENCE)).expect("an option of sockets");
        Replica { stream, buffer: Vec::new() }
    }

    pub fn say(&mut self, line: &str) {
        self.stream.write_all(format!("{line}\r\n").as_bytes()).expect("the server reads");
    }

    /// Reads a piece. False: the connection has ended.
    fn read(&mut self) -> bool {
        let mut bytes = [0; 4096];
        match self.stream.read(&mut bytes) {
            Ok(0) => false,
            Ok(count) => {
                self.buffer.extend_from_slice(&bytes[..count]);
                true
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => false,
            Err(error) => panic!("nothing came: {error}"),
        }
    }

    /// Takes bytes up to and with an end. Newlines in front, which are signs of life, are left out.
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

    pub fn ended(&mut self) {
        while self.read() {}
    }

    /// Says what Redis 7.0 says before PSYNC.
    pub fn greet(&mut self) {
        self.say("REPLCONF listening-port 7777");
        assert_eq!(self.line(), "+OK");
        self.say("REPLCONF capa eof capa psync2");
        assert_eq!(self.line(), "+OK");
    }

    /// Asks for all. The history, the offset of the snapshot, and the snapshot.
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

/// Requests in the form of the stream.
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

pub fn field(client: &mut Client, name: &str) -> String {
    let Reply::Bulk(text) = client.call(&["INFO", "everything"]) else { panic!("INFO has text") };
    let text = String::from_utf8(text).expect("text");
    let found = text.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
    found.unwrap_or_else(|| panic!("no field {name}")).to_owned()
}

#[test]
fn a_replica_gets_a_snapshot_and_what_follows_behind_its_first_acknowledgement() {
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
    // Nothing is sent before the replica says that it has found the end.
    replica.stream.set_nonblocking(true).expect("an option of sockets");
    let early = replica.stream.read(&mut [0; 1]);
    assert!(early.is_err_and(|error| error.kind() == ErrorKind::WouldBlock));
    replica.stream.set_nonblocking(false).expect("an option of sockets");
    replica.say("REPLCONF ACK 0");
    let expected = stream(&["SELECT 0", "SET k v", "SELECT 5", "SET k w PXAT 1700000001000"]);
    assert_eq!(replica.take(expected.len()), expected);
    let end = expected.len() as u64;
    assert_eq!(field(&mut client, "master_repl_offset"), end.to_string());
    // What expires is deleted, and told.
    server.advance(2 * SECOND);
    let expired = stream(&["DEL k"]);
    assert_eq!(replica.take(expired.len()), expired);

    // Who comes back is sent what it lacks, from any offset on.
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
    // An old one is not told of the history's name.
    let mut old = Replica::connect(&server);
    old.say(&format!("PSYNC {history} 1"));
    assert_eq!(old.line(), "+CONTINUE");
    assert_eq!(field(&mut client, "sync_full"), "1");
    assert_eq!(field(&mut client, "sync_partial_ok"), "5");
    // Neither an offset that was never reached nor another history.
    for asked in [format!("{history} {}", all.len() + 2), format!("{} 1", "a".repeat(40))] {
        let mut replica = Replica::connect(&server);
        replica.greet();
        replica.say(&format!("PSYNC {asked}"));
        assert_eq!(replica.line(), format!("+FULLRESYNC {history} {}", all.len()));
    }
    assert_eq!(field(&mut client, "sync_partial_err"), "2");
}

#[test]
fn a_replica_counts_when_it_has_told_that_it_has_the_data() {
    let server = start(&[]);
    let mut client = server.connect();
    // Before there is a stream: its offset is that of all that was changed so far.
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
fn transactions_and_scripts_reach_replicas_as_one() {
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
fn replicas_without_the_mark_get_a_file_with_a_length() {
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
fn nothing_comes_into_the_stream_behind_what_shutdown_saves() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = format!("dir {}", folder.path().display());
    let server = start(&[&dir, "shutdown-timeout 2"]);
    let mut client = server.connect();
    let mut replica = Replica::connect(&server);
    let (history, ..) = replica.sync(&server);
    replica.say("REPLCONF ACK 0");
    client.call(&["SET", "k", "v", "PX", "1000"]);
    // It lags, and is waited for; the key's time comes meanwhile.
    client.send(&["SHUTDOWN", "SAVE"]);
    server.settle();
    server.clock.advance_us(3 * SECOND);
    // The loop takes a turn, its last one.
    drop(server.connect());
    replica.ended();
    let bytes = replica.buffer.len();
    drop((client, server));
    let server = start(&[&dir]);
    let mut replica = Replica::connect(&server);
    replica.greet();
    replica.say(&format!("PSYNC {history} {}", bytes + 1));
    assert!(replica.line().starts_with("+CONTINUE"), "the replica has more than the file");
}

#[test]
fn a_primary_pings_and_lets_go_who_is_silent() {
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
    silent.ended();
    assert_eq!(field(&mut client, "connected_slaves"), "0");
}

#[test]
fn the_backlog_goes_with_its_history_when_nobody_comes_back() {
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
fn a_replica_that_falls_too_far_behind_is_closed_and_the_others_are_not() {
    let server = start(&["client-output-buffer-limit replica 20mb 0 0", "repl-backlog-size 100kb"]);
    let mut client = server.connect();
    let mut slow = Replica::connect(&server);
    slow.sync(&server);
    slow.say("REPLCONF ACK 0");
    let mut quick = Replica::connect(&server);
    // An acknowledgement that comes before the snapshot is whole says nothing.
    quick.sync(&server);
    quick.say("REPLCONF ACK 0");
    let value = "x".repeat(1 << 20);
    let read = Arc::new(AtomicU64::new(0));
    let theirs = read.clone();
    let reader = std::thread::spawn(move || {
        let mut bytes = 0u64;
        let mut buffer = vec![0; 1 << 16];
        while bytes < 40 << 20 {
            match quick.stream.read(&mut buffer) {
                Ok(0) | Err(_) => break,
                Ok(count) => bytes += count as u64,
            }
            theirs.store(bytes, Ordering::Relaxed);
        }
        (bytes, quick)
    });
    for written in 0..40 {
        client.call(&["SET", "k", &value]);
        // However busy the machine is.
        wait_for("the quick one to keep up", || {
            (read.load(Ordering::Relaxed) + (5 << 20) >= written << 20).then_some(())
        });
    }
    let (bytes, quick) = reader.join().expect("the reader ends");
    assert!(bytes >= 40 << 20, "{bytes}");
    slow.ended();
    assert_eq!(field(&mut client, "connected_slaves"), "1");
    drop(quick);
    server.settle();
    // What nobody needs any more is freed.
    client.call(&["SET", "k", "v"]);
    server.settle();
    let kept: u64 = field(&mut client, "repl_backlog_histlen").parse().expect("a number");
    assert!((100 << 10..2 << 20).contains(&kept), "{kept}");
}

#[test]
fn what_a_replica_says_is_checked() {
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
    // Requests in one piece: the reply to the first is not sent yet.
    let mut hasty = server.connect();
    hasty.send_raw(b"PING\r\nSYNC\r\n");
    assert_eq!(hasty.reply(), Some(Reply::Simple(b"PONG".to_vec())));
    let text = "ERR SYNC and PSYNC are invalid with pending output";
    assert_eq!(error(hasty.reply().expect("a reply")), text);
    // A replica that asks for replies is none.
    let mut talker = Replica::connect(&server);
    talker.sync(&server);
    talker.say("PING");
    talker.ended();
}

#[test]
fn min_replicas_to_write_asks_for_replicas_that_acknowledge() {
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
fn wait_counts_who_has_acknowledged_this_clients_writes() {
    let server = start(&[]);
    let (mut first, mut second) = (server.connect(), server.connect());
    let mut replica = Replica::connect(&server);
    replica.sync(&server);
    replica.say("REPLCONF ACK 0");
    first.call(&["SET", "a", "1"]);
    let written = stream(&["SELECT 0", "SET a 1"]);
    assert_eq!(replica.take(written.len()), written);
    first.send(&["WAIT", "1", "0"]);
    let question = stream(&["REPLCONF GETACK *"]);
    assert_eq!(replica.take(question.len()), question);
    replica.say(&format!("REPLCONF ACK {}", written.len() - 1));
    server.settle();
    assert_eq!(first.try_message(), None);
    replica.say(&format!("REPLCONF ACK {}", written.len()));
    assert_eq!(first.reply(), Some(Reply::Integer(1)));
    // What others write behind it is none of its business.
    second.call(&["SET", "b", "1"]);
    assert_eq!(first.call(&["WAIT", "1", "0"]), Reply::Integer(1));
    second.send(&["WAIT", "1", "50"]);
    server.settle();
    server.advance(60_000);
    assert_eq!(second.reply(), Some(Reply::Integer(0)));
}
