//! Peers that answer anything, on the connections that the server opens: an error, no data lost,
//! and no loop without a pause.

use std::io::{ErrorKind, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use crate::replication::following::{ID, Link, MARK, follower, info};
use crate::support::{Client, Reply, TestServer, decode, read_some, wait_for};

/// Replies that no Redis server gives to the requests of MIGRATE and of a replica's handshake.
const FOREIGN: [&str; 14] = [
    "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
    "$5\r\nhello\r\n",
    ">2\r\n$7\r\nmessage\r\n",
    "*0\r\n",
    ":1\r\n",
    "\r\n",
    "\n",
    "+\r\n",
    "+ok\r\n",
    "+OKAY\r\n",
    "+QUEUED\r\n",
    "220 mail.example ESMTP\r\n",
    "\u{0}\u{1}\u{2}\n",
    "_\r\n",
];

/// A file with values of all types and several databases, as a replica would be sent it.
fn whole_snapshot() -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a folder");
    let server = TestServer::start(&[format!("dir {}", folder.path().display())]);
    let mut client = server.connect();
    for request in [
        "SET string value",
        "SET expiring value EX 1000",
        "RPUSH list a b c",
        "SADD set a b c",
        "SADD numbers 1 2 3",
        "ZADD sorted 1 a 2 b",
        "HSET hash f v g w",
        "XADD stream * f v",
        "XGROUP CREATE stream group 0",
        "XREADGROUP GROUP group consumer STREAMS stream >",
        "SELECT 3",
        "SET string other",
    ] {
        let reply = client.call(&request.split(' ').collect::<Vec<_>>());
        assert!(!matches!(reply, Reply::Error(_)), "{request}: {reply:?}");
    }
    assert_eq!(client.call(&["SAVE"]).show(), "OK");
    std::fs::read(folder.path().join("dump.rdb")).expect("a saved file")
}

/// A follower with data of its own, which is in its RDB file too.
fn with_data(lines: &[&str]) -> (TestServer, TcpListener, Client, tempfile::TempDir) {
    let (server, listener, mut client, folder) = follower(lines);
    // It was a primary before, and has a history and data.
    assert_eq!(client.call(&["REPLICAOF", "NO", "ONE"]).show(), "OK");
    for number in 0..20 {
        client.call(&["SET", &format!("old:{number}"), "kept"]);
    }
    assert_eq!(client.call(&["SAVE"]).show(), "OK");
    (server, listener, client, folder)
}

fn follow(client: &mut Client, listener: &TcpListener) {
    let port = listener.local_addr().expect("an address").port().to_string();
    assert_eq!(client.call(&["REPLICAOF", "127.0.0.1", &port]).show(), "OK");
}

fn saved(folder: &Path) -> Vec<u8> {
    std::fs::read(folder.join("dump.rdb")).expect("the file stays")
}

/// Sends a snapshot with its length, or with a mark at its end.
fn send_snapshot(link: &mut Link, bytes: &[u8], by_mark: bool) {
    let id = "f".repeat(40);
    let (head, tail) = match by_mark {
        true => (format!("$EOF:{MARK}"), MARK),
        false => (format!("${}", bytes.len()), ""),
    };
    let head = format!("+FULLRESYNC {id} 700\r\n{head}\r\n");
    let all = [head.as_bytes(), bytes, tail.as_bytes()];
    // The replica may have closed the connection before it has read all.
    let _ = link.socket.get_mut().write_all(&all.concat());
}

/// Snapshots that cannot be loaded.
fn bad_snapshots() -> Vec<(&'static str, Vec<u8>)> {
    let whole = whole_snapshot();
    let changed = |at: usize, byte: u8| {
        let mut bytes = whole.clone();
        bytes[at] = byte;
        bytes
    };
    let entry = b"\xfe\x00\x00\x01k\x01v";
    let of = |parts: &[&[u8]]| parts.concat();
    let end = [0xff, 0, 0, 0, 0, 0, 0, 0, 0];
    let head = &b"REDIS0010"[..];
    vec![
        ("nothing", Vec::new()),
        ("a page", b"<html><body>no such page</body></html>".to_vec()),
        ("a newer version", of(&[b"REDIS0099", entry, &end])),
        ("an unknown type", of(&[head, b"\xfe\x00\x63\x01k\x01v", &end])),
        ("an unknown type after good keys", of(&[head, entry, b"\x63\x01l\x01v", &end])),
        ("a wrong checksum", changed(whole.len() - 1, whole[whole.len() - 1] ^ 1)),
        ("the first half", whole[..whole.len() / 2].to_vec()),
        ("all but the last byte", whole[..whole.len() - 1].to_vec()),
        ("a key twice", of(&[head, entry, b"\x00\x01k\x01w", &end])),
        ("a database too many", of(&[head, b"\xfe\x40\xff\x00\x01k\x01v", &end])),
        ("a damaged hash", of(&[head, b"\xfe\x00\x10\x01k\x03abc", &end])),
        (
            "a length that cannot be",
            of(&[head, b"\xfe\x00\x00\x81\xff\xff\xff\xff\xff\xff\xff\xffk"]),
        ),
    ]
}

#[test]
fn a_snapshot_that_cannot_be_loaded_costs_no_data() {
    let bad = bad_snapshots();
    for mode in ["disabled", "on-empty-db", "swapdb"] {
        for log in ["no", "yes"] {
            let mode_line = format!("repl-diskless-load {mode}");
            let log_line = format!("appendonly {log}");
            let (server, listener, mut client, folder) = with_data(&[&mode_line, &log_line]);
            let digest = client.call(&["DEBUG", "DIGEST"]);
            let file = saved(folder.path());
            while waiting_link(&listener).is_some() {}
            follow(&mut client, &listener);
            for (number, (what, bytes)) in bad.iter().enumerate() {
                let by_mark = number % 2 == 0;
                let mut link = Link::accept(&listener);
                assert!(link.greet().starts_with("PSYNC "));
                send_snapshot(&mut link, bytes, by_mark);
                if mode == "swapdb" && *what == "a length that cannot be" && by_mark {
                    link.socket.get_mut().shutdown(std::net::Shutdown::Write).expect("open");
                }
                link.await_end();
                assert_eq!(client.call(&["DEBUG", "DIGEST"]), digest, "{mode}, {what}");
                assert_eq!(saved(folder.path()), file, "{mode}, {what}");
                server.settle();
                let at_once = waiting_link(&listener);
                assert!(at_once.is_none(), "{mode}, {what}: it is asked again at once");
                server.advance(1_000_000);
            }
            let names: Vec<String> = std::fs::read_dir(folder.path())
                .expect("a folder")
                .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
                .filter(|name| name.starts_with("temp-"))
                .collect();
            assert!(names.is_empty(), "{names:?}");
            // The next one can be loaded, and then has the file's name.
            let whole = whole_snapshot();
            let mut link = Link::accept(&listener);
            assert!(link.greet().starts_with("PSYNC "));
            send_snapshot(&mut link, &whole, false);
            wait_for("the link", || {
                (info(&mut client, "master_link_status") == "up").then_some(())
            });
            assert_eq!(client.call(&["GET", "string"]).show(), "\"value\"");
            assert_eq!(client.call(&["EXISTS", "old:1"]), Reply::Integer(0));
            if mode != "swapdb" {
                assert_eq!(saved(folder.path()), whole, "{mode}");
            }
            assert_eq!(info(&mut client, "aof_enabled"), if log == "yes" { "1" } else { "0" });
            // A server whose log has no base yet does not stop.
            wait_for("the new log", || {
                let running = ["aof_rewrite_in_progress", "aof_rewrite_scheduled"];
                running.iter().all(|name| info(&mut client, name) == "0").then_some(())
            });
        }
    }
}

/// A start refuses a file with a library that does not compile here. A synchronization skips it.
#[test]
fn a_snapshot_with_a_library_that_does_not_compile_does_not_replace_the_file() {
    let (_server, listener, mut client, folder) = with_data(&["repl-diskless-load disabled"]);
    let file = saved(folder.path());
    while waiting_link(&listener).is_some() {}
    follow(&mut client, &listener);
    let library = b"#!lua name=bad\nthis is no Lua";
    let head = b"REDIS0010\xfe\x00\x00\x01k\x01v\xf5".to_vec();
    let end = [0xff, 0, 0, 0, 0, 0, 0, 0, 0];
    let all = [&head[..], &[library.len() as u8], library, &end].concat();
    let mut link = Link::accept(&listener);
    assert!(link.greet().starts_with("PSYNC "));
    send_snapshot(&mut link, &all, false);
    wait_for("the link", || (info(&mut client, "master_link_status") == "up").then_some(()));
    assert_eq!(client.call(&["GET", "k"]).show(), "\"v\"");
    assert_eq!(saved(folder.path()), file);
    let left = std::fs::read_dir(folder.path()).expect("a folder");
    let names = left.map(|entry| entry.expect("an entry").file_name().into_string().expect("text"));
    assert!(!names.collect::<Vec<_>>().iter().any(|name| name.starts_with("temp-")));
}

/// Sends what no primary sends at some point of the handshake, or as snapshot or stream.
fn play(random: &mut fastrand::Rng, link: &mut Link, whole: &[u8]) {
    let foreign = |random: &mut fastrand::Rng| match random.u8(0..4) {
        0 => (0..random.usize(1..200)).map(|_| random.u8(..)).collect(),
        _ => FOREIGN[random.usize(..FOREIGN.len())].as_bytes().to_vec(),
    };
    let mut all = Vec::new();
    // PING, three REPLCONFs and PSYNC are answered well up to some point.
    let good = random.usize(0..9);
    for (step, reply) in ["+PONG\r\n", "+OK\r\n", "+OK\r\n", "+OK\r\n"].iter().enumerate() {
        if step == good {
            all.extend(foreign(random));
        }
        all.extend_from_slice(reply.as_bytes());
    }
    match random.u8(0..6) {
        0 => all.extend(foreign(random)),
        1 => all.extend_from_slice(b"+FULLRESYNC what 18446744073709551615\r\n"),
        2 => {
            all.extend_from_slice(format!("+CONTINUE {ID}\r\n").as_bytes());
            all.extend(foreign(random));
        }
        3 => all.extend_from_slice(b"-ERR what?\r\n"),
        _ => {
            // A snapshot with a flipped bit, cut, or with bytes between its own.
            let mut bytes = whole.to_vec();
            let at = random.usize(9..bytes.len());
            match random.u8(0..3) {
                0 => bytes[at] ^= 1 << random.u8(0..8),
                1 => bytes.truncate(at),
                _ => {
                    let more: Vec<u8> = (0..random.usize(1..20)).map(|_| random.u8(..)).collect();
                    bytes.splice(at..at, more);
                }
            }
            all.extend_from_slice(format!("+FULLRESYNC {ID} 5\r\n${}\r\n", bytes.len()).as_bytes());
            all.extend(bytes);
        }
    }
    let _ = link.socket.get_mut().write_all(&all);
    let _ = link.socket.get_mut().shutdown(std::net::Shutdown::Write);
    link.await_end();
}

#[test]
fn a_primary_that_answers_anything_costs_no_data_and_no_rest() {
    const LINKS: usize = 120;
    let whole = whole_snapshot();
    for (seed, mode) in [(1, "disabled"), (2, "on-empty-db"), (3, "swapdb")] {
        let mut random = fastrand::Rng::with_seed(seed);
        let mode_line = format!("repl-diskless-load {mode}");
        let (server, listener, mut client, folder) = with_data(&[&mode_line]);
        let digest = client.call(&["DEBUG", "DIGEST"]);
        let file = saved(folder.path());
        while waiting_link(&listener).is_some() {}
        follow(&mut client, &listener);
        let (mut at_once, mut waiting) = (0, None);
        for number in 0..LINKS {
            let mut link = waiting.take().unwrap_or_else(|| Link::accept(&listener));
            play(&mut random, &mut link, &whole);
            assert_eq!(client.call(&["DEBUG", "DIGEST"]), digest, "{mode}, link {number}");
            assert_eq!(saved(folder.path()), file, "{mode}, link {number}");
            server.settle();
            waiting = waiting_link(&listener);
            if waiting.is_some() {
                at_once += 1;
                assert!(at_once <= 4, "{mode}, link {number}: it is asked again and again");
            } else {
                at_once = 0;
                server.advance(1_000_000);
            }
        }
    }
}

/// The connection that waits to be accepted, if one does.
fn waiting_link(listener: &TcpListener) -> Option<Link> {
    listener.set_nonblocking(true).expect("an option of sockets");
    let accepted = listener.accept();
    listener.set_nonblocking(false).expect("an option of sockets");
    match accepted {
        Ok((socket, _)) => Some(Link::of(socket)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => None,
        Err(error) => panic!("the listener fails: {error}"),
    }
}

/// Answers the requests of one MIGRATE with `replies`, in as many pieces as there are requests.
fn answer(listener: &TcpListener, replies: &[Vec<u8>]) {
    let (mut stream, _): (TcpStream, _) = listener.accept().expect("a connection");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("an option of sockets");
    let (mut buffer, mut bytes, mut at) = (Vec::new(), [0; 4096], 0);
    for reply in replies {
        while decode(&buffer, &mut at).is_none() {
            let count = read_some(&mut stream, &mut bytes).unwrap_or(0);
            if count == 0 {
                return;
            }
            buffer.extend_from_slice(&bytes[..count]);
        }
        buffer.drain(..at);
        at = 0;
        if stream.write_all(reply).is_err() {
            return;
        }
    }
}

#[test]
fn a_target_that_answers_anything_costs_no_key() {
    const MOVES: usize = 300;
    let server = TestServer::start(&[]);
    let mut client = server.connect();
    let mut random = fastrand::Rng::with_seed(4);
    for number in 0..MOVES {
        client.call(&["MSET", "a", "1", "b", "2", "c", "3"]);
        let replies: Vec<Vec<u8>> = (0..4)
            .map(|_| match random.u8(0..8) {
                0..4 => b"+OK\r\n".to_vec(),
                4 => b"-ERR no\r\n".to_vec(),
                5 => {
                    let any = (0..random.usize(0..30)).map(|_| random.u8(..));
                    any.chain(*b"\r\n").collect()
                }
                _ => FOREIGN[random.usize(..FOREIGN.len())].as_bytes().to_vec(),
            })
            .collect();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port().to_string();
        let request = ["MIGRATE", "127.0.0.1", &port, "", "0", "60000", "KEYS", "a", "b", "c"];
        let is_blocking = random.bool();
        if is_blocking {
            client.call(&["MULTI"]);
            client.call(&request);
            client.send(&["EXEC"]);
        } else {
            client.send(&request);
        }
        answer(&listener, &replies);
        let reply = client.reply();
        // Lines count, not pieces: a reply may have several lines, and none is +OK then.
        let all = replies.concat();
        let lines: Vec<&[u8]> = all
            .split_inclusive(|byte| *byte == b'\n')
            .map(|line| line.strip_suffix(b"\n").unwrap_or(line))
            .map(|line| line.strip_suffix(b"\r").unwrap_or(line))
            .collect();
        let is_error = |line: &[u8]| line.starts_with(b"-");
        let known = lines.iter().position(|line| *line != b"+OK" && !is_error(line));
        let known = &lines[..known.unwrap_or(lines.len()).min(4)];
        for (index, key) in ["a", "b", "c"].into_iter().enumerate() {
            let stored = known.first().is_some_and(|line| *line == b"+OK")
                && known.get(index + 1).is_some_and(|line| *line == b"+OK");
            let exists = client.call(&["EXISTS", key]);
            assert_eq!(
                exists,
                Reply::Integer(i64::from(!stored)),
                "move {number}, {key}: {replies:?} and {reply:?}"
            );
        }
    }
}
