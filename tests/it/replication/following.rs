//! A replica tested with a primary that the test plays itself: the protocol of the link, and what
//! clients see meanwhile.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use latchkey::clock::{Clock, ManualClock};
use latchkey::config::Config;
use latchkey::server::Server;
use latchkey::sys::log::Logger;

use crate::support::http::get;
use crate::support::{Client, PATIENCE, Reply, START, TestServer, encode, wait_for};

pub const ID: &str = "0123456789012345678901234567890123456789";
pub const OTHER_ID: &str = "9876543210987654321098765432109876543210";
pub const MARK: &str = "abcdefabcdefabcdefabcdefabcdefabcdefabcd";

/// The primary's side of one connection.
pub struct Link {
    pub socket: BufReader<TcpStream>,
}

impl Link {
    pub fn accept(listener: &TcpListener) -> Self {
        let (socket, _) = listener.accept().expect("the replica connects");
        Link::of(socket)
    }

    pub fn of(socket: TcpStream) -> Self {
        socket.set_read_timeout(Some(PATIENCE)).expect("an option of sockets");
        Link { socket: BufReader::new(socket) }
    }

    /// The replica's next request, its arguments joined by spaces. Skips empty lines.
    fn request(&mut self) -> String {
        let mut line = || {
            let mut line = String::new();
            self.socket.read_line(&mut line).expect("the replica speaks");
            line.trim_end().to_owned()
        };
        let mut first = line();
        while first.is_empty() {
            first = line();
        }
        let count = first.strip_prefix('*').and_then(|count| count.parse().ok());
        let Some(count) = count else { return first };
        let mut words = Vec::new();
        for _ in 0..count {
            line();
            words.push(line());
        }
        words.join(" ")
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.socket.get_mut().write_all(bytes.as_ref()).expect("the replica reads");
    }

    /// Waits until the replica has closed the connection.
    pub fn await_end(&mut self) {
        // A reset is an end too: the replica may have left bytes unread.
        let _ = self.socket.read_to_end(&mut Vec::new());
    }

    /// Sends a request, and returns its bytes.
    fn stream(&mut self, words: &[&str]) -> u64 {
        let request = encode(words);
        self.send(&request);
        request.len() as u64
    }

    /// Does the handshake up to the replica's PSYNC, which it returns.
    pub fn greet(&mut self) -> String {
        assert_eq!(self.request(), "PING");
        self.send("+PONG\r\n");
        assert!(self.request().starts_with("REPLCONF listening-port "));
        let capabilities = self.request();
        assert!(
            capabilities.starts_with("REPLCONF capa eof capa psync2 capa run-id="),
            "{capabilities}"
        );
        assert_eq!(self.request(), "REPLCONF version 9.0.0");
        self.send("+OK\r\n+OK\r\n-ERR Unrecognized REPLCONF option: version\r\n");
        self.request()
    }

    /// Asks for an acknowledgement, and waits until the replica has applied the stream up to
    /// `offset`. Returns the acknowledged offset, and the bytes of the request for it.
    fn await_ack(&mut self, offset: u64) -> (u64, u64) {
        let bytes = self.stream(&["REPLCONF", "GETACK", "*"]);
        loop {
            let request = self.request();
            let acknowledged = request.strip_prefix("REPLCONF ACK ");
            let acknowledged = acknowledged.and_then(|offset| offset.parse().ok());
            if let Some(acknowledged) = acknowledged.filter(|&acknowledged| acknowledged >= offset)
            {
                return (acknowledged, bytes);
            }
        }
    }
}

/// A snapshot of database 1 with these strings, without a checksum.
fn snapshot(pairs: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = b"REDIS0010\xfa\x0erepl-stream-db\x011\xfe\x01".to_vec();
    for (key, value) in pairs {
        bytes.push(0);
        for text in [key, value] {
            bytes.push(text.len() as u8);
            bytes.extend_from_slice(text.as_bytes());
        }
    }
    bytes.extend_from_slice(&[0xff, 0, 0, 0, 0, 0, 0, 0, 0]);
    bytes
}

/// Starts a server as a replica of the returned listener.
pub fn follower(lines: &[&str]) -> (TestServer, TcpListener, Client, tempfile::TempDir) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let folder = tempfile::tempdir().expect("a folder");
    let mut lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
    lines.push(format!("dir {}", folder.path().display()));
    let server = TestServer::start(&lines);
    let mut client = server.connect();
    let port = listener.local_addr().expect("an address").port().to_string();
    assert_eq!(client.call(&["REPLICAOF", "127.0.0.1", &port]).show(), "OK");
    (server, listener, client, folder)
}

/// Sends a replica a snapshot with offset 100 that holds `a` in database 1.
fn send_snapshot(listener: &TcpListener, client: &mut Client) -> Link {
    let mut link = Link::accept(listener);
    assert!(link.greet().starts_with("PSYNC "));
    link.send(format!("+FULLRESYNC {ID} 100\r\n$EOF:{MARK}\r\n"));
    link.send([&snapshot(&[("a", "old")]), MARK.as_bytes()].concat());
    await_link(client, "up");
    assert_eq!(link.request(), "REPLCONF ACK 100");
    link
}

/// As [`follower`], and sends it a snapshot with offset 100 that holds `a` in database 1.
fn synced(lines: &[&str]) -> (TestServer, TcpListener, Link, Client, tempfile::TempDir) {
    let (server, listener, mut client, folder) = follower(lines);
    let link = send_snapshot(&listener, &mut client);
    client.call(&["SELECT", "1"]);
    (server, listener, link, client, folder)
}

pub fn info(client: &mut Client, name: &str) -> String {
    let Reply::Bulk(text) = client.call(&["INFO"]) else { panic!("INFO is a string") };
    let text = String::from_utf8(text).expect("INFO is text");
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
    line.unwrap_or_default().trim_end().to_owned()
}

fn await_link(client: &mut Client, state: &str) {
    wait_for("the link", || (info(client, "master_link_status") == state).then_some(()));
}

#[test]
fn the_stream_is_applied_where_the_snapshot_ends() {
    let (_server, _listener, mut link, mut client, _folder) = synced(&[]);
    assert_eq!(client.call(&["GET", "a"]).show(), "\"old\"");
    let refused = "(error) READONLY You can't write against a read only replica.";
    assert_eq!(client.call(&["SET", "a", "1"]).show(), refused);
    // The snapshot says that the stream has selected database 1.
    let mut offset = 100;
    offset += link.stream(&["SET", "b", "1"]);
    offset += link.stream(&["MULTI"]);
    offset += link.stream(&["SELECT", "2"]);
    offset += link.stream(&["INCR", "c"]);
    link.send("\n");
    // The transaction is not visible before it is complete.
    assert_eq!(client.call(&["EXISTS", "c"]).show(), "(integer) 0");
    offset += link.stream(&["EXEC"]);
    let (acknowledged, bytes) = link.await_ack(offset);
    assert_eq!(acknowledged, offset);
    assert_eq!(info(&mut client, "slave_repl_offset"), (offset + bytes).to_string());
    assert_eq!(client.call(&["GET", "b"]).show(), "\"1\"");
    client.call(&["SELECT", "2"]);
    assert_eq!(client.call(&["GET", "c"]).show(), "\"1\"");
    let role = client.call(&["ROLE"]).show();
    assert!(role.contains("\"slave\"") && role.contains("\"connected\""), "{role}");
}

#[test]
fn a_replica_hides_expired_keys_until_its_primary_deletes_them() {
    let (server, _listener, mut link, mut client, _folder) = synced(&[]);
    let at = (server.clock_ms() + 1000).to_string();
    let mut offset = 100;
    for key in ["x", "y", "z"] {
        offset += link.stream(&["SET", key, "1", "PXAT", &at]);
    }
    offset += link.await_ack(offset).1;
    server.advance(5_000_000);
    assert_eq!(client.call(&["EXISTS", "x", "y", "z"]).show(), "(integer) 0");
    assert_eq!(client.call(&["DBSIZE"]).show(), "(integer) 4");
    offset += link.stream(&["PERSIST", "x"]);
    offset += link.stream(&["RENAME", "y", "w"]);
    offset += link.stream(&["DEL", "z"]);
    // A key that is already expired when it is set is stored nevertheless.
    offset += link.stream(&["SET", "v", "1", "PXAT", &at]);
    offset += link.stream(&["PEXPIREAT", "a", &at]);
    link.await_ack(offset);
    assert_eq!(client.call(&["GET", "x"]).show(), "\"1\"");
    for key in ["w", "v", "a"] {
        assert_eq!(client.call(&["EXISTS", key]).show(), "(integer) 0", "{key}");
    }
    assert_eq!(client.call(&["DBSIZE"]).show(), "(integer) 4");
    assert_eq!(client.call(&["REPLICAOF", "NO", "ONE"]).show(), "OK");
    // As a primary it deletes expired keys.
    server.settle();
    assert_eq!(client.call(&["DBSIZE"]).show(), "(integer) 1");
}

#[test]
fn a_replica_ends_what_its_own_clients_wrote_with_a_deadline() {
    let (server, _listener, mut link, mut client, _folder) = synced(&["replica-read-only no"]);
    let at = (server.clock_ms() + 1000).to_string();
    let mut offset = 100;
    offset += link.stream(&["SET", "theirs", "1", "PXAT", &at]);
    offset += link.stream(&["HSETEX", "their-hash", "PXAT", &at, "FIELDS", "1", "f", "v"]);
    link.await_ack(offset);
    let lines = [
        "SET ours 1 PX 1000",
        "HSETEX all-due PX 1000 FIELDS 2 f v g w",
        "HSET some-due f v g w",
        "HPEXPIRE some-due 1000 FIELDS 1 f",
        "HSETEX moved PX 1000 FIELDS 1 f v",
        "RENAME moved to",
        "COPY to copied",
        "HSETEX two-times PX 1000 FIELDS 1 f v",
        "HPEXPIRE two-times 9000 FIELDS 1 f",
        "HSETEX later PX 5000 FIELDS 1 f v",
    ];
    for line in lines {
        client.call(&line.split(' ').collect::<Vec<_>>());
    }
    assert_eq!(info(&mut client, "slave_expires_tracked_keys"), "8");
    // The server looks every 100 ms.
    server.advance(2_000_000);
    for (key, fields) in [("some-due", 1), ("two-times", 1), ("later", 1), ("all-due", 0)] {
        let length = client.call(&["HLEN", key]).show();
        assert_eq!(length, format!("(integer) {fields}"), "{key}");
    }
    let Reply::Array(keys) = client.call(&["KEYS", "*"]) else { panic!("KEYS is a list") };
    let mut keys: Vec<String> = keys.iter().map(Reply::show).collect();
    keys.sort();
    let left = ["\"a\"", "\"later\"", "\"some-due\"", "\"their-hash\"", "\"two-times\""];
    assert_eq!(keys, left);
    assert_eq!(client.call(&["DBSIZE"]).show(), "(integer) 6", "theirs is hidden");
    server.advance(9_000_000);
    assert_eq!(client.call(&["EXISTS", "later", "two-times"]).show(), "(integer) 0");
    assert_eq!(info(&mut client, "slave_expires_tracked_keys"), "0");
}

#[test]
fn a_broken_link_continues_where_it_was() {
    let (_server, listener, mut link, mut client, _folder) = synced(&[]);
    let bytes = link.stream(&["SET", "b", "1"]);
    // An incomplete request does not count.
    let half = encode(&["APPEND", "b", "2"]);
    link.send(&half[..half.len() - 3]);
    drop(link);
    let mut link = Link::accept(&listener);
    assert_eq!(link.greet(), format!("PSYNC {ID} {}", 100 + bytes + 1));
    await_link(&mut client, "down");
    link.send(format!("+CONTINUE {OTHER_ID}\r\n"));
    link.send(&half);
    link.await_ack(100 + bytes + half.len() as u64);
    assert_eq!(client.call(&["GET", "b"]).show(), "\"12\"");
    assert_eq!(info(&mut client, "master_replid"), OTHER_ID);
    assert_eq!(info(&mut client, "master_replid2"), ID);
    assert_eq!(info(&mut client, "second_repl_offset"), (100 + bytes + 1).to_string());
    // Invalid bytes break the link, and the history is given up.
    link.send("PING\r\n");
    let mut link = Link::accept(&listener);
    assert_eq!(link.greet(), "PSYNC ? -1");
}

#[test]
fn incomplete_snapshots_are_never_visible() {
    let (_server, listener, mut link, mut client, _folder) = synced(&["repl-diskless-load swapdb"]);
    let whole = snapshot(&[("new", "1"), ("more", "2")]);
    // Same history: the old data is served until the new snapshot is complete, and stays if it
    // never is.
    for cut in [whole.len() / 2, whole.len() - 1] {
        drop(link);
        link = Link::accept(&listener);
        assert!(link.greet().starts_with("PSYNC "));
        link.send(format!("+FULLRESYNC {ID} 200\r\n$EOF:{MARK}\r\n"));
        link.send(&whole[..cut]);
        wait_for("loading", || (info(&mut client, "async_loading") == "1").then_some(()));
        assert_eq!(client.call(&["GET", "a"]).show(), "\"old\"");
    }
    drop(link);
    let mut link = Link::accept(&listener);
    assert!(link.greet().starts_with("PSYNC "));
    link.send(format!("+FULLRESYNC {OTHER_ID} 300\r\n${}\r\n", whole.len()));
    link.send(&whole[..whole.len() - 1]);
    // Another history: the old data is not served while the snapshot is loaded.
    wait_for("loading", || (info(&mut client, "loading") == "1").then_some(()));
    assert!(client.call(&["GET", "a"]).show().starts_with("(error) LOADING"));
    link.send(&whole[whole.len() - 1..]);
    await_link(&mut client, "up");
    assert_eq!(client.call(&["MGET", "a", "new", "more"]).show(), "1) (nil)\n2) \"1\"\n3) \"2\"");
    assert_eq!(info(&mut client, "master_replid"), OTHER_ID);
    assert_eq!(link.await_ack(0).0, 300);
}

#[test]
fn a_replica_that_has_lost_its_data_takes_no_primarys_part() {
    let (server, listener, link, mut client, _folder) =
        synced(&["repl-diskless-load flush-before-load"]);
    drop(link);
    let mut link = Link::accept(&listener);
    assert!(link.greet().starts_with("PSYNC "));
    link.send(format!("+FULLRESYNC {ID} 200\r\n$EOF:{MARK}\r\n"));
    let whole = snapshot(&[("new", "1")]);
    link.send(&whole[..whole.len() / 2]);
    wait_for("loading", || (info(&mut client, "loading") == "1").then_some(()));
    drop(link);
    wait_for("the end of loading", || (info(&mut client, "loading") == "0").then_some(()));
    let mut primary = server.connect();
    let refused = "(error) ERR PSYNC FAILOVER can't be sent to a replica that has lost its data.";
    assert_eq!(primary.call(&["PSYNC", ID, "101", "FAILOVER"]).show(), refused);
    assert_eq!(info(&mut client, "role"), "slave");
}

#[test]
fn probes_are_answered_while_a_snapshot_is_loaded() {
    let lines = ["repl-diskless-load flush-before-load", "http-auth no"];
    let (server, listener, link, mut client, _folder) = synced(&lines);
    let address = server.http_address.expect("HTTP is on");
    let whole = snapshot(&[("new", "1")]);
    drop(link);
    let mut link = Link::accept(&listener);
    assert!(link.greet().starts_with("PSYNC "));
    assert!(get(address, "/readyz").body.starts_with("[-]link-down "));
    link.send(format!("+FULLRESYNC {OTHER_ID} 300\r\n"));
    wait_for("the transfer", || {
        get(address, "/readyz").body.starts_with("[-]syncing ").then_some(())
    });
    link.send(format!("${}\r\n", whole.len()));
    link.send(&whole[..whole.len() - 1]);
    wait_for("loading", || get(address, "/readyz").body.starts_with("[-]loading ").then_some(()));
    assert!(client.call(&["PING"]).show().starts_with("(error) LOADING"));
    for (target, status) in
        [("/livez", 200), ("/readyz", 503), ("/primary", 503), ("/replica", 503)]
    {
        assert_eq!(get(address, target).status, status, "{target}");
    }
    assert!(get(address, "/metrics").body.contains("\nredis_loading_dump_file 1\n"));
    link.send(&whole[whole.len() - 1..]);
    await_link(&mut client, "up");
    assert_eq!((get(address, "/readyz").status, get(address, "/replica").status), (200, 200));
}

#[test]
fn a_shutdown_saves_nothing_while_a_snapshot_is_loaded() {
    let lines = ["repl-diskless-load flush-before-load", "save 3600 1"];
    let (_server, listener, link, mut client, folder) = synced(&lines);
    assert_eq!(client.call(&["SAVE"]).show(), "OK");
    let file = || std::fs::read(folder.path().join("dump.rdb")).expect("a saved file");
    let saved = file();
    drop(link);
    let mut link = Link::accept(&listener);
    assert!(link.greet().starts_with("PSYNC "));
    let whole = snapshot(&[("new", "1")]);
    link.send(format!("+FULLRESYNC {OTHER_ID} 300\r\n${}\r\n", whole.len()));
    link.send(&whole[..whole.len() - 1]);
    wait_for("loading", || (info(&mut client, "loading") == "1").then_some(()));
    client.send(&["SHUTDOWN", "SAVE"]);
    assert_eq!(client.reply(), None);
    assert_eq!(file(), saved);
}

#[test]
fn stale_data_is_not_served_if_configured_so() {
    let (server, listener, mut client, _folder) = follower(&["replica-serve-stale-data no"]);
    let refused =
        "(error) MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.";
    assert_eq!(client.call(&["GET", "a"]).show(), refused);
    assert_eq!(client.call(&["EVAL", "return 1", "0"]).show(), refused);
    let reads = "#!lua flags=allow-stale,no-writes\nreturn redis.call('get', 'a')";
    let reads = client.call(&["EVAL", reads, "0"]).show();
    assert!(reads.contains("Can not execute the command on a stale replica"), "{reads}");
    let flagged = "#!lua flags=no-writes\nreturn 1";
    assert!(client.call(&["EVAL", flagged, "0"]).show().starts_with("(error) MASTERDOWN"));
    let stale = "#!lua flags=allow-stale,no-writes\nreturn 1";
    assert_eq!(client.call(&["EVAL", stale, "0"]).show(), "(integer) 1");
    // After a refusal the replica tries again a second later.
    let mut link = Link::accept(&listener);
    assert_eq!(link.request(), "PING");
    link.send("-ERR not now\r\n");
    assert_eq!(link.socket.read(&mut [0; 9]).expect("an end"), 0);
    server.advance(1_100_000);
    let mut link = Link::accept(&listener);
    assert!(link.greet().starts_with("PSYNC "));
    // So it does if neither way to synchronise is permitted.
    link.send("-NOAUTH Authentication required.\r\n");
    assert_eq!(link.request(), "SYNC");
    link.send("-NOAUTH Authentication required.\r\n");
    assert_eq!(link.socket.read(&mut [0; 9]).expect("an end"), 0);
    server.settle();
    listener.set_nonblocking(true).expect("an option of sockets");
    let error = listener.accept().expect_err("no connection").kind();
    assert_eq!(error, std::io::ErrorKind::WouldBlock);
    listener.set_nonblocking(false).expect("an option of sockets");
    server.advance(1_100_000);
    let mut link = Link::accept(&listener);
    assert!(link.greet().starts_with("PSYNC "));
    // A silent primary is given up after the timeout.
    server.advance(70_000_000);
    let mut link = Link::accept(&listener);
    assert!(link.greet().starts_with("PSYNC "));
    link.send("-ERR unknown command\r\n");
    assert_eq!(link.request(), "SYNC");
    let whole = snapshot(&[("a", "1")]);
    link.send(format!("${}\r\n", whole.len()));
    link.send(&whole);
    await_link(&mut client, "up");
    client.call(&["SELECT", "1"]);
    assert_eq!(client.call(&["GET", "a"]), Reply::Bulk(b"1".to_vec()));
}

#[test]
fn a_stale_replica_can_be_promoted_within_a_transaction() {
    let (_server, listener, link, mut client, _folder) = synced(&["replica-serve-stale-data no"]);
    for words in [&["MULTI"][..], &["GET", "a"], &["EXEC"]] {
        client.call(words);
    }
    assert_eq!(client.call(&["GET", "a"]).show(), "\"old\"");
    drop((link, listener));
    await_link(&mut client, "down");
    client.call(&["MULTI"]);
    // As Sentinel does.
    client.call(&["SLAVEOF", "NO", "ONE"]);
    client.call(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    assert_eq!(client.call(&["EXEC"]).show(), "1) OK\n2) (integer) 0");
}

#[test]
fn a_snapshot_of_an_unknown_version_is_taken_only_if_it_may_be() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("log");
    let lines = [&*format!("logfile {}", log.display()), "repl-diskless-load swapdb"];
    let (server, listener, link, mut client, _folder) = synced(&lines);
    drop(link);
    let later = [b"VALKEY987", &snapshot(&[("a", "new")])[9..]].concat();
    for (setting, value) in [("strict", "\"old\""), ("relaxed", "\"new\"")] {
        client.call(&["CONFIG", "SET", "rdb-version-check", setting]);
        let mut link = Link::accept(&listener);
        assert!(link.greet().starts_with("PSYNC "));
        link.send(format!("+FULLRESYNC {ID} 200\r\n$EOF:{MARK}\r\n"));
        link.send([&later, MARK.as_bytes()].concat());
        if setting == "strict" {
            let said = || std::fs::read_to_string(&log).expect("a log");
            let line = " # Can't handle RDB format version 987\n";
            wait_for("the line", || said().contains(line).then_some(()));
            // The next attempt is a second away.
            server.settle();
            server.advance(1_000_000);
        } else {
            await_link(&mut client, "up");
        }
        assert_eq!(client.call(&["GET", "a"]).show(), value);
    }
}

#[test]
fn limits_and_settings_are_for_clients_and_not_for_the_primary() {
    let lines = [
        "proto-max-bulk-len 1mb",
        "script-source-limit 1mb",
        "script-memory-limit 1mb",
        "min-replicas-to-write 3",
        "maxmemory 1mb",
        "replica-ignore-maxmemory no",
        "maxmemory-policy noeviction",
        "enable-debug-command no",
    ];
    let (_server, _listener, mut link, mut client, _folder) = synced(&lines);
    let mut offset = 100;
    let mut send = |words: &[&str]| offset += link.stream(words);
    for id in ["1-1", "1-2", "1-3", "1-4"] {
        send(&["XADD", "x", "MAXLEN", "=", "3", "LIMIT", "10", id, "f", "v"]);
    }
    send(&["XTRIM", "x", "MINID", "=", "1-3", "LIMIT", "0"]);
    let long = "v".repeat(1 << 20);
    send(&["SETRANGE", "long", "9", &long]);
    send(&["APPEND", "long", &long]);
    send(&["SETBIT", "bits", "9000000", "1"]);
    send(&["BITFIELD", "fields", "SET", "u8", "9000000", "1"]);
    let library = format!(
        "#!lua name=l\n--{long}\nredis.register_function('f', function() local t = {{}} for i = 1, 200000 do t[i] = i end \
         return redis.call('set', 'by-function', #t) end)"
    );
    send(&["FUNCTION", "LOAD", &library]);
    send(&["FCALL", "f", "0"]);
    send(&["EVAL", "return redis.call('set', 'by-script', 1)", "0"]);
    link.await_ack(offset);
    assert_eq!(info(&mut client, "unexpected_error_replies"), "0");
    assert_eq!(client.call(&["XRANGE", "x", "-", "+"]).show().matches("-").count(), 2);
    let length = (1 << 20) + 9 + (1 << 20);
    assert_eq!(client.call(&["STRLEN", "long"]), Reply::Integer(length));
    assert_eq!(client.call(&["STRLEN", "bits"]), Reply::Integer(1_125_001));
    assert_eq!(client.call(&["STRLEN", "fields"]), Reply::Integer(1_125_001));
    assert_eq!(
        client.call(&["MGET", "by-function", "by-script"]).show(),
        "1) \"200000\"\n2) \"1\""
    );
}

#[test]
fn a_primary_may_not_debug_where_clients_may_not() {
    for (setting, errors, kept) in [("no", "1", "\"old\""), ("local", "0", "(nil)")] {
        let line = format!("enable-debug-command {setting}");
        let (_server, _listener, mut link, mut client, _folder) = synced(&[&line]);
        let stream = encode(&["DEL", "a"]);
        let words: [&[u8]; 4] = [b"DEBUG", b"EFFECTS", b"LOAD", &stream];
        let bytes = encode(&words);
        link.send(&bytes);
        link.await_ack(100 + bytes.len() as u64);
        assert_eq!(info(&mut client, "unexpected_error_replies"), errors);
        assert_eq!(client.call(&["GET", "a"]).show(), kept);
    }
}

#[test]
fn a_script_of_the_primary_is_never_ended_here() {
    for policy in ["wait", "kill-readonly", "rollback"] {
        let policy = format!("busy-script-policy {policy}");
        let (server, _listener, mut link, mut client, _folder) =
            synced(&[&policy, "busy-reply-threshold 5", "repl-timeout 60"]);
        link.stream(&["EVAL", "while true do end", "0"]);
        wait_for("the script", || client.call(&["PING"]).show().contains("BUSY").then_some(()));
        let refused = "(error) UNKILLABLE The busy script was sent by a master instance in the context of replication and \
                       cannot be killed.";
        for words in
            [&["SCRIPT", "KILL"][..], &["SCRIPT", "KILL", "ROLLBACK"], &["FUNCTION", "KILL"]]
        {
            assert_eq!(client.call(words).show(), refused);
        }
        // Meanwhile the primary hears that this server is alive.
        for _ in 0..3 {
            server.clock.advance_us(1_100_000);
            assert_eq!(link.request(), "REPLCONF ACK 100");
        }
        assert!(client.call(&["GET", "a"]).show().contains("BUSY"));
        client.send(&["SHUTDOWN", "NOSAVE"]);
        assert_eq!(client.reply(), None);
    }
}

#[test]
fn a_replica_that_loads_for_longer_than_its_timeout_keeps_its_link() {
    for mode in ["disabled", "on-empty-db", "swapdb", "flush-before-load"] {
        let load = format!("repl-diskless-load {mode}");
        // A slice ends at the first key after which time has passed.
        let (server, listener, mut client, _folder) =
            follower(&[&load, "repl-timeout 5", "key-load-delay 1"]);
        let keys: Vec<String> = (0..3000).map(|number| format!("key{number}")).collect();
        let pairs: Vec<(&str, &str)> = keys.iter().map(|key| (key.as_str(), "v")).collect();
        let mut link = Link::accept(&listener);
        assert!(link.greet().starts_with("PSYNC "));
        link.send(format!("+FULLRESYNC {ID} 100\r\n$EOF:{MARK}\r\n"));
        link.send([&snapshot(&pairs), MARK.as_bytes()].concat());
        let begun_ms = server.clock_ms();
        // Each look at the clock takes so long.
        server.clock.set_tick_us(2_000);
        await_link(&mut client, "up");
        server.clock.set_tick_us(0);
        assert!(server.clock_ms() - begun_ms > 5_000, "{mode}");
        assert_eq!(link.request(), "REPLCONF ACK 100", "{mode}");
        for _ in 0..3 {
            server.advance(1_000_000);
        }
        assert_eq!(info(&mut client, "master_link_status"), "up", "{mode}");
        client.call(&["SELECT", "1"]);
        assert_eq!(client.call(&["DBSIZE"]), Reply::Integer(3000), "{mode}");
    }
}

#[test]
fn a_pause_that_leaves_the_stream_unread_costs_no_link() {
    let (server, _listener, mut link, mut client, _folder) = synced(&["repl-timeout 5"]);
    assert_eq!(client.call(&["CLIENT", "PAUSE", "100000000", "WRITE"]).show(), "OK");
    let long = "v".repeat(3 << 20);
    let request = encode(&["SET", "b", &long]);
    link.send(&request[..request.len() / 2]);
    for _ in 0..10 {
        server.advance(2_000_000);
    }
    assert_eq!(info(&mut client, "master_link_status"), "up");
    assert_eq!(client.call(&["CLIENT", "UNPAUSE"]).show(), "OK");
    link.send(&request[request.len() / 2..]);
    link.await_ack(100 + request.len() as u64);
    assert_eq!(client.call(&["STRLEN", "b"]), Reply::Integer(3 << 20));
    // A primary that is silent is given up all the same.
    server.advance(6_000_000);
    wait_for("the end", || (info(&mut client, "master_link_status") == "down").then_some(()));
}

#[test]
fn who_connects_in_the_turn_of_a_primarys_script_is_told_that_the_server_is_busy() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().display();
    let text = format!("bind 127.0.0.1\nport 0\nsave \"\"\nbusy-reply-threshold 5\ndir {dir}\n");
    let config = Config::from_text(text.as_bytes()).expect("a good configuration");
    let clock = Clock::Manual(ManualClock::new(START));
    let mut server = Server::start(config, clock, Logger::silent()).expect("the server starts");
    let address =
        server.listen_on("127.0.0.1:0".parse().expect("an address")).expect("a free port");
    let [may_turn, has_stopped] = [true, false].map(|value| Arc::new(AtomicBool::new(value)));
    let (may_go_on, stopped) = (may_turn.clone(), has_stopped.clone());
    let thread = std::thread::spawn(move || {
        loop {
            match may_go_on.load(Ordering::SeqCst) {
                true if !server.turn_now().expect("a turn") => return,
                true => {}
                false => stopped.store(true, Ordering::SeqCst),
            }
        }
    });
    let mut client = Client::connect(address);
    let port = listener.local_addr().expect("an address").port().to_string();
    client.call(&["REPLICAOF", "127.0.0.1", &port]);
    let mut link = send_snapshot(&listener, &mut client);
    // Both are announced to the same turn, which looks at the link first.
    may_turn.store(false, Ordering::SeqCst);
    wait_for("the turn's end", || has_stopped.load(Ordering::SeqCst).then_some(()));
    link.stream(&["EVAL", "while true do end", "0"]);
    let mut other = Client::connect(address);
    other.send(&["PING"]);
    may_turn.store(true, Ordering::SeqCst);
    let reply = other.reply().expect("the server answers").show();
    assert!(reply.starts_with("(error) BUSY"), "{reply}");
    other.send(&["SHUTDOWN", "NOSAVE"]);
    assert_eq!(other.reply(), None);
    thread.join().expect("the server ends in order");
}

/// What a rewrite has synced is told under each policy, also one that asks for no sync, and before
/// anything is written.
#[test]
fn a_replica_tells_what_the_rewrite_after_its_synchronisation_has_on_disk() {
    for policy in ["no", "everysec", "always"] {
        let policy_line = format!("appendfsync {policy}");
        let (server, _listener, mut link, mut client, _folder) =
            synced(&["appendonly yes", &policy_line]);
        wait_for("the rewrite's end", || {
            (info(&mut client, "aof_rewrite_in_progress") == "0").then_some(())
        });
        server.advance(1_100_000);
        assert_eq!(link.request(), "REPLCONF ACK 100 FACK 100", "{policy}");
    }
}

#[test]
fn the_link_to_the_primary_and_the_keys_that_clients_wait_for_are_listed() {
    let (server, _listener, link, mut client, _folder) = synced(&[]);
    let lines = |client: &mut Client, request: &str| {
        let text = client.call(&request.split(' ').collect::<Vec<_>>()).show();
        text.split("\\n").filter(|line| line.contains("id=")).map(str::to_owned).collect::<Vec<_>>()
    };
    let all = lines(&mut client, "CLIENT LIST");
    assert_eq!(all.len(), 2, "{all:?}");
    let of_type = lines(&mut client, "CLIENT LIST TYPE master");
    let [line] = &*of_type else { panic!("one line: {of_type:?}") };
    for field in [" flags=M ", " user=(superuser) ", " redir=-1 ", " resp=2 "] {
        assert!(line.contains(field), "{field} in {line}");
    }
    let field = |name: &str| {
        let rest = line.split_once(&format!("{name}=")).expect("a field").1;
        rest.split(' ').next().expect("a value").to_owned()
    };
    let (id, address) = (field("id"), field(" addr"));
    for filter in [&*format!("ID {id}"), &format!("ADDR {address}"), "FLAGS M", "NOT-TYPE normal"] {
        assert_eq!(lines(&mut client, &format!("CLIENT LIST {filter}")).len(), 1, "{filter}");
    }
    for filter in ["TYPE replica", "USER default FLAGS M", "IDLE 1000"] {
        assert_eq!(lines(&mut client, &format!("CLIENT LIST {filter}")).len(), 0, "{filter}");
    }
    // A filter that only happens to fit ends no link.
    client.call(&["CLIENT", "KILL", "MAXAGE", "0", "SKIPME", "yes"]);
    assert_eq!(lines(&mut client, "CLIENT LIST TYPE master").len(), 1);
    assert_eq!(client.call(&["CLIENT", "KILL", "ID", &id]).show(), "(integer) 1");
    drop(link);
    await_link(&mut client, "down");
    assert_eq!(lines(&mut client, "CLIENT LIST TYPE master").len(), 0);
    client.call(&["REPLICAOF", "NO", "ONE"]);
    let mut waiting = server.connect();
    waiting.send(&["BLPOP", "a b", "c,d", "0"]);
    server.settle();
    let waits = |line: &&String| line.contains(" cmd=blpop ");
    let all = lines(&mut client, "CLIENT LIST");
    let line = all.iter().find(waits).expect("the one that waits");
    assert!(line.contains(" keys=a%20b,c%2Cd"), "{line}");
    assert!(all.iter().filter(|line| !waits(line)).all(|line| !line.contains("keys=")), "{all:?}");
}
