//! MIGRATE beside other clients: the target is played by the test, so that it answers when the test
//! wants.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use crate::support::{Client, Reply, TestServer, decode, read_some};

fn ok() -> Reply {
    Reply::Simple(b"OK".to_vec())
}

fn bulk(text: &str) -> Reply {
    Reply::Bulk(text.as_bytes().to_vec())
}

fn error(text: &str) -> Reply {
    Reply::Error(text.as_bytes().to_vec())
}

const ON_ITS_WAY: &str = "TRYAGAIN The key is on its way to another server";

/// A target that reads requests and answers by hand.
struct Target {
    listener: TcpListener,
    stream: Option<TcpStream>,
    buffer: Vec<u8>,
}

impl Target {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        Target { listener, stream: None, buffer: Vec::new() }
    }

    fn port(&self) -> String {
        self.listener.local_addr().expect("it listens").port().to_string()
    }

    /// The next request, as words.
    fn request(&mut self) -> Vec<Vec<u8>> {
        let listener = &self.listener;
        let stream = self.stream.get_or_insert_with(|| {
            let (stream, _) = listener.accept().expect("a connection");
            stream.set_read_timeout(Some(Duration::from_secs(20))).expect("an option of sockets");
            stream
        });
        loop {
            let mut at = 0;
            if let Some(Reply::Array(words)) = decode(&self.buffer, &mut at) {
                self.buffer.drain(..at);
                let word = |word| match word {
                    Reply::Bulk(word) => word,
                    other => panic!("{other:?}"),
                };
                return words.into_iter().map(word).collect();
            }
            let mut bytes = [0; 64 * 1024];
            let count = read_some(stream, &mut bytes).expect("requests come");
            assert!(count > 0, "the source has closed");
            self.buffer.extend_from_slice(&bytes[..count]);
        }
    }

    /// Reads the first requests up to that of the first key.
    fn first_key(&mut self) -> Vec<Vec<u8>> {
        let select = self.request();
        assert_eq!(select, [b"SELECT".to_vec(), b"0".to_vec()]);
        self.say("+OK\r\n");
        self.request()
    }

    /// Reads the first requests up to that of the first key, and answers none.
    fn first_key_silently(&mut self) {
        assert_eq!(self.request(), [b"SELECT".to_vec(), b"0".to_vec()]);
        self.request();
    }

    fn say(&mut self, text: &str) {
        self.stream.as_mut().expect("connected").write_all(text.as_bytes()).expect("it is read");
    }
}

/// Starts to move `k` to a target, up to its request there.
fn under_way(server: &TestServer) -> (Client, Target, Vec<Vec<u8>>) {
    let mut target = Target::new();
    let mut client = server.connect();
    client.send(&["MIGRATE", "127.0.0.1", &target.port(), "k", "0", "1000"]);
    let request = target.first_key();
    // It has read the answer to SELECT.
    server.settle();
    (client, target, request)
}

#[test]
fn others_are_served_and_whoever_would_write_the_key_waits() {
    let server = TestServer::start(&[]);
    let mut other = server.connect();
    other.call(&["MSET", "k", "v", "free", "1"]);
    let (mut mover, mut target, request) = under_way(&server);
    assert_eq!(request[..2], [b"RESTORE".to_vec(), b"k".to_vec()]);
    assert_eq!(other.call(&["GET", "k"]), bulk("v"));
    assert_eq!(other.call(&["SET", "free", "2"]), ok());
    let mut waiting: Vec<Client> = (0..4).map(|_| server.connect()).collect();
    waiting[0].send(&["APPEND", "k", "!"]);
    server.settle();
    waiting[1].call(&["MULTI"]);
    assert_eq!(waiting[1].call(&["APPEND", "k", "?"]), Reply::Simple(b"QUEUED".to_vec()));
    waiting[1].send(&["EXEC"]);
    server.settle();
    waiting[2].send(&["EVAL", "return redis.call('incr', KEYS[1])", "1", "k"]);
    server.settle();
    waiting[3].send(&["RENAME", "free", "k"]);
    server.settle();
    for client in &mut waiting {
        assert_eq!(client.try_message(), None);
    }
    // What cannot wait is refused.
    let text = error(ON_ITS_WAY);
    let payload = other.call(&["DUMP", "k"]);
    let Reply::Bulk(payload) = payload else { panic!("{payload:?}") };
    let restore = [&b"RESTORE"[..], b"k", b"0", &payload];
    let busy = error("BUSYKEY Target key name already exists.");
    assert_eq!(other.call(&restore), busy);
    assert_eq!(other.call(&[&restore[..], &[b"REPLACE"]].concat()), text);
    let undeclared = other.call(&["EVAL", "return redis.pcall('del', 'k')", "0"]);
    assert!(
        matches!(&undeclared, Reply::Error(text) if text.starts_with(b"TRYAGAIN")),
        "{undeclared:?}"
    );
    assert_eq!(other.call(&["EVAL", "return redis.call('get', 'k')", "0"]), bulk("v"));
    assert_eq!(other.call(&["EXISTS", "k"]), Reply::Integer(1));
    target.say("+OK\r\n");
    assert_eq!(mover.reply(), Some(ok()));
    assert_eq!(waiting[0].reply(), Some(Reply::Integer(1)));
    assert_eq!(waiting[1].reply(), Some(Reply::Array(vec![Reply::Integer(2)])));
    assert!(matches!(waiting[2].reply(), Some(Reply::Error(_))));
    assert_eq!(waiting[3].reply(), Some(ok()));
    assert_eq!(other.call(&["GET", "k"]), bulk("2"));
}

#[test]
fn a_group_reads_no_stream_that_is_on_its_way() {
    let server = TestServer::start(&[]);
    let mut other = server.connect();
    other.call(&["XADD", "k", "1-1", "f", "v"]);
    assert_eq!(other.call(&["XGROUP", "CREATE", "k", "g", "0"]), ok());
    let (mut mover, mut target, _) = under_way(&server);
    let mut waiting: Vec<Client> = (0..2).map(|_| server.connect()).collect();
    waiting[0].send(&["XREADGROUP", "GROUP", "g", "c", "STREAMS", "k", ">"]);
    waiting[1].send(&["XREADGROUP", "GROUP", "g", "c", "BLOCK", "0", "STREAMS", "k", ">"]);
    server.settle();
    for client in &mut waiting {
        assert_eq!(client.try_message(), None);
    }
    // Who only reads is served.
    let entries = other.call(&["XREAD", "STREAMS", "k", "0"]);
    assert!(matches!(entries, Reply::Array(_)), "{entries:?}");
    target.say("+OK\r\n");
    assert_eq!(mover.reply(), Some(ok()));
    for client in &mut waiting {
        // What was delivered here would be unknown to the target.
        let reply = client.reply();
        assert!(
            matches!(&reply, Some(Reply::Error(text)) if text.starts_with(b"NOGROUP")),
            "{reply:?}"
        );
    }
}

/// A command that waits and, when it is woken, would write `k`, which is on its way then.
struct Woken {
    before: &'static [&'static str],
    wait: &'static str,
    /// Wakes it; empty: time does. `{due}` is a Unix time in milliseconds that comes.
    wake: &'static str,
    /// What is left at the source after the move, and the reply then.
    left: (&'static str, i64),
}

const fn woken(
    before: &'static [&'static str],
    wait: &'static str,
    wake: &'static str,
    left: (&'static str, i64),
) -> Woken {
    Woken { before, wait, wake, left }
}

const WOKEN: &[Woken] = &[
    woken(&["RPUSH k a"], "BLMOVE s k LEFT LEFT 9", "RPUSH s b", ("EXISTS s k", 1)),
    woken(&["RPUSH k a"], "BRPOPLPUSH s k 9", "RPUSH s b", ("EXISTS s k", 1)),
    woken(
        &["RPUSH k a"],
        "BLMOVEM s k LEFT LEFT 9 EXACTLY 2 OBO",
        "RPUSH s b c",
        ("EXISTS s k", 1),
    ),
    woken(&["ZADD k 1 a"], "BZMOVE s k MIN 9", "ZADD s 1 b", ("EXISTS s k", 1)),
    woken(&["RPUSH k a", "ZADD s {due} b"], "BZMOVEDUE s k 9 UNIT MS", "", ("EXISTS s k", 1)),
    woken(
        &["XADD k 1-1 f v", "ZADD s {due} b"],
        "BZMOVEDUE s k 9 STREAM UNIT MS",
        "",
        ("EXISTS s k", 1),
    ),
    woken(&["ZADD k {due} b"], "BZMOVEDUE k d 9 UNIT MS", "", ("EXISTS k d", 0)),
    woken(&["ZADD k {due} b"], "BZPOPDUE k 9 UNIT MS", "", ("EXISTS k", 0)),
    woken(
        &["XGROUP CREATE k g 0 MKSTREAM", "ZADD s {due} b"],
        "XREADGROUP GROUP g c BLOCK 9000 DUE s UNIT MS STREAMS k >",
        "",
        ("EXISTS s k", 1),
    ),
    woken(
        &["XGROUP CREATE s g 0 MKSTREAM", "ZADD k {due} b"],
        "XREADGROUP GROUP g c BLOCK 9000 DUE k UNIT MS STREAMS s >",
        "",
        ("XLEN s", 0),
    ),
    woken(
        &["XGROUP CREATE k g 0 MKSTREAM", "XADD k 1-1 f v", "XREADGROUP GROUP g a STREAMS k >"],
        "XREADGROUP GROUP g c BLOCK 9000 CLAIM 500 STREAMS k >",
        "",
        ("EXISTS k", 0),
    ),
    woken(
        &[
            "XADD k 1-1 f v",
            "XGROUP CREATE s g 0 MKSTREAM",
            "XADD s 1-1 f v",
            "XREADGROUP GROUP g a STREAMS s >",
        ],
        "XREADGROUP GROUP g c BLOCK 9000 CLAIM 500 MAXDELIVERIES 1 DEADLETTER k STREAMS s >",
        "",
        ("EXISTS k", 1),
    ),
    woken(
        &["LOCK.ACQUIRE k w PX 90000", "LOCK.ACQUIRE s h PX 500"],
        "LOCK.MACQUIRE 2 s k w PX 90000 BLOCK 9000",
        "",
        ("EXISTS s k", 2),
    ),
    woken(
        &["SEM.ACQUIRE k a LIMIT 2 PX 500", "SEM.ACQUIRE k b LIMIT 2 PX 90000"],
        "SEM.ACQUIRE k c LIMIT 2 PX 90000 BLOCK 9000",
        "",
        ("EXISTS k", 1),
    ),
];

#[test]
fn a_waiting_command_that_is_woken_writes_no_key_that_is_on_its_way() {
    for (Woken { before, wait, wake, left }, is_taken) in
        WOKEN.iter().flat_map(|row| [(row, true), (row, false)])
    {
        let server = TestServer::start(&[]);
        let mut other = server.connect();
        let due = (server.clock_ms() + 2000).to_string();
        let words = |line: &str| -> Vec<String> {
            line.split(' ').map(|word| word.replace("{due}", &due)).collect()
        };
        for line in *before {
            let reply = other.call(&words(line));
            assert!(!matches!(reply, Reply::Error(_)), "{line}: {reply:?}");
        }
        let mut waiting = server.connect();
        waiting.send(&words(wait));
        server.settle();
        let mut target = Target::new();
        let mut mover = server.connect();
        mover.send(&["MIGRATE", "127.0.0.1", &target.port(), "k", "0", "60000"]);
        target.first_key();
        server.settle();
        server.advance(3_000_000);
        if !wake.is_empty() {
            other.call(&words(wake));
        }
        server.settle();
        assert_eq!(waiting.try_message(), None, "{wait}: it has written a key on its way");
        if !is_taken {
            target.say("-ERR no\r\n");
            assert!(matches!(mover.reply(), Some(Reply::Error(_))), "{wait}");
            if wait.contains("DEADLETTER") {
                // It gets nothing: the entry is buried now.
                server.settle();
                assert_eq!(other.call(&["XLEN", "k"]), Reply::Integer(2), "{wait}");
                continue;
            }
            let reply = waiting.reply();
            let is_given = !matches!(reply, None | Some(Reply::Error(_) | Reply::NullArray));
            assert!(is_given, "{wait}: {reply:?}");
            continue;
        }
        target.say("+OK\r\n");
        // A second RESTORE would replace what the target has written by now.
        assert_eq!(mover.reply(), Some(ok()), "{wait}: the key was sent again");
        server.settle();
        let (look, count) = left;
        assert_eq!(other.call(&words(look)), Reply::Integer(*count), "{wait}: {look}");
    }
}

#[test]
fn a_target_that_says_nothing_costs_the_timeout_and_no_key() {
    let server = TestServer::start(&[]);
    let mut other = server.connect();
    other.call(&["SET", "k", "v"]);
    let (mut mover, _target, _) = under_way(&server);
    let mut waiting = server.connect();
    waiting.send(&["APPEND", "k", "!"]);
    server.advance(999_000);
    assert_eq!((mover.try_message(), waiting.try_message()), (None, None));
    server.advance(1_000);
    assert_eq!(mover.reply(), Some(error("IOERR error or timeout reading to target instance")));
    assert_eq!(waiting.reply(), Some(Reply::Integer(2)));
    let info = other.call(&["INFO"]);
    let Reply::Bulk(info) = info else { panic!("{info:?}") };
    let info = String::from_utf8_lossy(&info);
    assert!(
        info.contains("migrate_cached_sockets:0\r\n") && info.contains("blocked_clients:0\r\n")
    );
}

#[test]
fn a_key_that_changes_all_the_same_is_sent_again() {
    let server = TestServer::start(&[]);
    let mut other = server.connect();
    other.call(&["SET", "k", "old"]);
    let (mut mover, mut target, _) = under_way(&server);
    other.call(&["SELECT", "1"]);
    // In a database of another number: nobody is in the way.
    other.call(&["SET", "k", "new"]);
    assert_eq!(other.call(&["SWAPDB", "0", "1"]), ok());
    target.say("+OK\r\n");
    let again = target.request();
    assert_eq!(again.last().map(Vec::as_slice), Some(&b"REPLACE"[..]));
    assert!(again[3].windows(3).any(|some| some == b"new"));
    target.say("+OK\r\n");
    assert_eq!(mover.reply(), Some(ok()));
    assert_eq!(other.call(&["GET", "k"]), bulk("old"));
    other.call(&["SELECT", "0"]);
    assert_eq!(other.call(&["EXISTS", "k"]), Reply::Integer(0));
}

#[test]
fn a_key_that_is_gone_meanwhile_is_not_missed() {
    let server = TestServer::start(&[]);
    let mut other = server.connect();
    other.call(&["SET", "k", "v"]);
    let (mut mover, mut target, _) = under_way(&server);
    assert_eq!(other.call(&["FLUSHALL"]), ok());
    target.say("+OK\r\n");
    assert_eq!(mover.reply(), Some(ok()));
}

#[test]
fn a_migrate_goes_on_when_its_client_is_gone() {
    let server = TestServer::start(&[]);
    let mut other = server.connect();
    other.call(&["SET", "k", "v"]);
    let (mover, mut target, _) = under_way(&server);
    assert_eq!(other.call(&["CLIENT", "KILL", "TYPE", "normal"]), Reply::Integer(1));
    drop(mover);
    let mut waiting = server.connect();
    waiting.send(&["SET", "k", "w", "GET"]);
    server.settle();
    target.say("+OK\r\n");
    assert_eq!(waiting.reply(), Some(Reply::NullBulk));
}

#[test]
fn nothing_is_deleted_while_writes_are_paused() {
    let server = TestServer::start(&[]);
    let mut other = server.connect();
    other.call(&["SET", "k", "v"]);
    let (mut mover, mut target, _) = under_way(&server);
    assert_eq!(other.call(&["CLIENT", "PAUSE", "100000", "WRITE"]), ok());
    target.say("+OK\r\n");
    server.advance(5_000_000);
    assert_eq!(mover.try_message(), None);
    assert_eq!(other.call(&["EXISTS", "k"]), Reply::Integer(1));
    assert_eq!(other.call(&["CLIENT", "UNPAUSE"]), ok());
    assert_eq!(mover.reply(), Some(ok()));
    assert_eq!(other.call(&["EXISTS", "k"]), Reply::Integer(0));
}

#[test]
fn a_server_that_becomes_a_replica_ends_it() {
    let (server, primary) = (TestServer::start(&[]), TestServer::start(&[]));
    let mut other = server.connect();
    other.call(&["SET", "k", "v"]);
    let (mut mover, _target, _) = under_way(&server);
    let port = primary.address.port().to_string();
    assert_eq!(other.call(&["REPLICAOF", "127.0.0.1", &port]), ok());
    let Some(Reply::Error(text)) = mover.reply() else { panic!("an error") };
    assert!(text.starts_with(b"UNBLOCKED "), "{}", String::from_utf8_lossy(&text));
    assert_eq!(mover.reply(), None);
}

#[test]
fn a_server_moves_keys_to_itself() {
    let server = TestServer::start(&[]);
    let mut client = server.connect();
    let port = server.address.port().to_string();
    client.call(&["SET", "k", "v"]);
    let said = "ERR Target instance replied with error: ";
    let migrate = ["MIGRATE", "127.0.0.1", &port, "k", "0", "1000"];
    let busy = format!("{said}BUSYKEY Target key name already exists.");
    assert_eq!(client.call(&migrate), error(&busy));
    let replacing = [&migrate[..], &["REPLACE"]].concat();
    assert_eq!(client.call(&replacing), error(&format!("{said}{ON_ITS_WAY}")));
    assert_eq!(client.call(&["MIGRATE", "127.0.0.1", &port, "k", "3", "1000"]), ok());
    client.call(&["SELECT", "3"]);
    assert_eq!(client.call(&["GET", "k"]), bulk("v"));
}

#[test]
fn large_values_and_many_keys_arrive_as_they_were() {
    let (source, target) = (TestServer::start(&[]), TestServer::start(&[]));
    let (mut here, mut there) = (source.connect(), target.connect());
    let port = target.address.port().to_string();
    let fill = "for i = 1, 50000 do redis.call('hset', 'hash', 'field:'..i, 'value:'..i) end \
                for i = 1, 20000 do redis.call('set', 'key:'..i, i, 'px', 100000 + i) end \
                redis.call('set', 'text', string.rep('x', 3000000))";
    here.call(&["EVAL", fill, "0"]);
    let keys = (1..=20_000).map(|number| format!("key:{number}"));
    let keys: Vec<String> =
        ["hash".into(), "none".into(), "text".into()].into_iter().chain(keys).collect();
    let digest = here.call(&["DEBUG", "DIGEST"]);
    let mut request =
        ["MIGRATE", "127.0.0.1", &port, "", "0", "60000", "KEYS"].map(str::to_owned).to_vec();
    request.extend(keys);
    assert_eq!(here.call(&request), ok());
    assert_eq!(here.call(&["DBSIZE"]), Reply::Integer(0));
    assert_eq!(there.call(&["DBSIZE"]), Reply::Integer(20_002));
    assert_eq!(there.call(&["DEBUG", "DIGEST"]), digest);
}

#[test]
fn in_a_transaction_it_blocks_as_in_redis() {
    let (source, target) = (TestServer::start(&[]), TestServer::start(&[]));
    let mut here = source.connect();
    let port = target.address.port().to_string();
    here.call(&["SET", "k", "v"]);
    here.call(&["MULTI"]);
    here.call(&["MIGRATE", "127.0.0.1", &port, "k", "0", "1000"]);
    assert_eq!(here.call(&["EXEC"]), Reply::Array(vec![ok()]));
    assert_eq!(target.connect().call(&["GET", "k"]), bulk("v"));
    assert_eq!(here.call(&["EXISTS", "k"]), Reply::Integer(0));
}

/// Replies of servers that are no Redis, or have gone wrong. None says that a key is stored.
const FOREIGN: [&str; 12] = [
    "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
    "$5\r\nhello\r\n",
    ">2\r\n$7\r\nmessage\r\n",
    "*0\r\n",
    ":1\r\n",
    "\r\n",
    "+\r\n",
    "+ok\r\n",
    "+OKAY\r\n",
    "+QUEUED\r\n",
    "220 mail.example ESMTP\r\n",
    "\u{0}\u{1}\u{2}\n",
];

#[test]
fn only_ok_says_that_a_key_is_stored() {
    let server = TestServer::start(&[]);
    let mut other = server.connect();
    let failed = error("IOERR error or timeout reading to target instance");
    for reply in FOREIGN {
        other.call(&["MSET", "k", "v", "l", "w"]);
        let (mut mover, mut target, _) = under_way(&server);
        target.say(reply);
        assert_eq!(mover.reply(), Some(failed.clone()), "{reply:?}");
        assert_eq!(other.call(&["EXISTS", "k"]), Reply::Integer(1), "{reply:?}");
        // With the first answer, to SELECT, and with several keys, of which only one is stored.
        for (replies, left) in [(["", reply], 2), (["+OK\r\n+OK\r\n", reply], 1)] {
            other.call(&["MSET", "k", "v", "l", "w"]);
            let mut target = Target::new();
            let port = target.port();
            let mut mover = server.connect();
            let request = ["MIGRATE", "127.0.0.1", &port, "", "0", "1000", "KEYS", "k", "l"];
            mover.send(&request);
            (0..3).for_each(|_| _ = target.request());
            target.say(&replies.concat());
            assert_eq!(mover.reply(), Some(failed.clone()), "{reply:?}");
            assert_eq!(other.call(&["EXISTS", "k", "l"]), Reply::Integer(left), "{reply:?}");
        }
    }
}

#[test]
fn only_ok_says_that_a_key_is_stored_while_the_loop_waits() {
    let server = TestServer::start(&[]);
    let mut client = server.connect();
    for reply in FOREIGN {
        for (replies, left) in [(reply.to_owned(), 2), (format!("+OK\r\n+OK\r\n{reply}"), 1)] {
            client.call(&["MSET", "k", "v", "l", "w"]);
            let mut target = Target::new();
            let port = target.port();
            client.call(&["MULTI"]);
            client.call(&["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS", "k", "l"]);
            client.send(&["EXEC"]);
            (0..3).for_each(|_| _ = target.request());
            target.say(&replies);
            let failed = error("IOERR error or timeout reading to target instance");
            assert_eq!(client.reply(), Some(Reply::Array(vec![failed])), "{reply:?}");
            assert_eq!(client.call(&["EXISTS", "k", "l"]), Reply::Integer(left), "{reply:?}");
        }
    }
}

#[test]
fn a_connection_with_unrequested_bytes_is_not_used_again() {
    let server = TestServer::start(&[]);
    let mut client = server.connect();
    for is_blocking in [false, true] {
        client.call(&["SET", "k", "v"]);
        let mut target = Target::new();
        let port = target.port();
        for replies in ["+OK\r\n+OK\r\n+OK\r\n", "+OK\r\n+OK\r\n"] {
            client.call(&["SET", "k", "v"]);
            let migrate = ["MIGRATE", "127.0.0.1", &port, "k", "0", "5000"];
            if is_blocking {
                client.call(&["MULTI"]);
                client.call(&migrate);
                client.send(&["EXEC"]);
            } else {
                client.send(&migrate);
            }
            // A new connection, as the first request is SELECT again.
            target.stream = None;
            target.first_key_silently();
            target.say(replies);
            let stored = if is_blocking { Reply::Array(vec![ok()]) } else { ok() };
            assert_eq!(client.reply(), Some(stored));
            server.settle();
        }
    }
}
