//! `--move` as a program: between two servers of this one, and with `MOVE_PEERS` (paths with `:`
//! between them) from others and back. `MOVE_KEYS` sets the size of a move, `MOVE_SAMPLES` the
//! number of keys that it compares, `MOVE_LATCHKEY` names another build of this server.

#![allow(clippy::disallowed_methods)] // processes have the real time

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::support::peer::Peer;
use crate::support::{Client, Reply, decode, encode, number_from, seed, wait_for};

/// Keys of all types, with and without deadlines, and a library of functions.
const FILL: &str = "
for i = 1, ARGV[1] do
  local k = KEYS[1] .. i
  local kind = i % 8
  if kind == 0 then redis.call('SET', k, 'value' .. i, 'PX', 3600000 + i)
  elseif kind == 1 then redis.call('SET', k, i)
  elseif kind == 2 then redis.call('RPUSH', k, 'a' .. i, 'b', i)
  elseif kind == 3 then redis.call('SADD', k, 'a' .. i, 'b', i)
  elseif kind == 4 then redis.call('SADD', k, 1, 2, i)
  elseif kind == 5 then redis.call('ZADD', k, 0.1, 'a' .. i, i, 'b', '-inf', 'c')
  elseif kind == 6 then redis.call('HSET', k, 'f', i, 'g' .. i, 'v') redis.call('PEXPIRE', k, 7200000)
  else redis.call('XADD', k, '1-' .. i, 'f', i) redis.call('XGROUP', 'CREATE', k, 'g', 0)
    redis.call('XREADGROUP', 'GROUP', 'g', 'c', 'STREAMS', k, '>') end
end";
const LIBRARY: &str =
    "#!lua name=moved\nredis.register_function('f', function() return 'moved' end)";

fn ours() -> PathBuf {
    std::env::var_os("MOVE_LATCHKEY")
        .map_or_else(|| env!("CARGO_BIN_EXE_latchkey").into(), PathBuf::from)
}

/// A server with its folder.
struct Node {
    peer: Peer,
    _dir: tempfile::TempDir,
}

impl Node {
    fn start(program: &Path, lines: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let lines: Vec<&str> = [&["repl-diskless-sync-delay 0", "logfile log"], lines].concat();
        let peer = Peer::start(program, dir.path(), &lines);
        Node { peer, _dir: dir }
    }

    fn ours(lines: &[&str]) -> Self {
        Node::start(&ours(), lines)
    }

    fn name(&self) -> String {
        self.peer.address.to_string()
    }

    fn ask(&self, request: &str) -> Reply {
        self.peer.connect().call(&request.split(' ').collect::<Vec<_>>())
    }

    fn info(&self) -> String {
        text_of(&self.ask("INFO replication"))
    }

    fn role(&self) -> String {
        let info = self.info();
        info.lines().find_map(|line| line.strip_prefix("role:")).expect("a role").trim().into()
    }

    /// Fills it with about this many keys in three databases.
    fn fill(&self, keys: u64) {
        let mut client = self.peer.connect();
        for database in ["0", "1", "9"] {
            client.call(&["SELECT", database]);
            for part in 0..keys.div_ceil(3000) {
                let prefix = format!("k{part}:");
                let reply = client.call(&["EVAL", FILL, "1", &prefix, "1000"]);
                assert!(!matches!(reply, Reply::Error(_)), "{reply:?}");
            }
        }
        assert_eq!(client.call(&["FUNCTION", "LOAD", "REPLACE", LIBRARY]).show(), "\"moved\"");
    }

    fn follow(&self, primary: &Node) {
        let address = primary.peer.address;
        self.ask(&format!("REPLICAOF 127.0.0.1 {}", address.port()));
        wait_for("the link", || {
            let info = self.info();
            info.contains("master_link_status:up").then_some(())
        });
    }
}

fn program(from: &str, to: &str) -> Command {
    let mut command = Command::new(ours());
    command.env_remove("REDISCLI_AUTH").env_remove("LATCHKEY_TO_AUTH");
    command.args(["--move", from, to]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn succeed(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().expect("the program runs");
    let (out, err) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{out}{err}");
    out.into_owned()
}

/// Runs a move that must stop with this reason. Returns all that it has printed.
fn stop(command: &mut Command, why: &str) -> String {
    let Output { status, stdout, stderr } = command.output().expect("the program runs");
    let (out, err) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.code() == Some(1) && err.contains(why), "not '{why}': {out}{err}");
    format!("{out}{err}")
}

#[test]
fn a_move_that_cannot_be_stops_before_it_changes_anything() {
    let from = Node::ours(&[]);
    from.fill(3000);
    let refused = |to: &Node, why: &str, options: &[&str]| {
        let before = to.ask("DBSIZE");
        stop(program(&from.name(), &to.name()).arg("--yes").args(options), why);
        assert_eq!((to.role().as_str(), to.ask("DBSIZE")), ("master", before), "{why}");
        let info = from.info();
        assert!(info.contains("role:master") && info.contains("connected_slaves:0"), "{info}");
    };
    let to = Node::ours(&[]);
    stop(&mut program(&from.name(), &from.name()), "it is the same server");
    to.ask("SET a 1");
    refused(&to, "it has 1 keys, which the move would delete", &[]);
    to.ask("FLUSHALL");
    to.peer.connect().call(&["FUNCTION", "LOAD", LIBRARY]);
    refused(&to, "it has functions, which the move would delete", &[]);
    to.ask("FUNCTION FLUSH");
    to.ask("CONFIG SET maxmemory 1000");
    refused(&to, "its maxmemory is 1000", &[]);
    to.ask("CONFIG SET maxmemory 0");
    refused(&Node::ours(&["databases 9"]), "it has 9 databases, and database 9 has keys", &[]);
    refused(&Node::ours(&["cluster-enabled yes"]), "it is a node of a cluster", &[]);
    // FROM could not follow it.
    to.ask("CONFIG SET requirepass s2");
    stop(&mut program(&from.name(), &to.name()), "NOAUTH");
    stop(program(&from.name(), &to.name()).env("LATCHKEY_TO_AUTH", "wrong"), "WRONGPASS");
    let text = stop(
        program(&from.name(), &to.name()).args(["--to-pass", "s2"]),
        "its masteruser and masterauth do not let it follow the other server",
    );
    assert!(text.contains(&format!("{}: its masteruser", from.name())), "{text}");
    // A user without the rights.
    from.ask("ACL SETUSER mover on >s1 ~* &* +@all -failover");
    stop(
        program(&from.name(), &to.name()).args([
            "--user",
            "mover",
            "--pass",
            "s1",
            "--to-user",
            "default",
            "--to-pass",
            "s2",
        ]),
        "has no permissions to run the 'failover' command",
    );
    from.ask("ACL SETUSER mover -info");
    stop(
        program(&from.name(), &to.name()).args([
            "--user",
            "mover",
            "--pass",
            "s1",
            "--to-user",
            "default",
            "--to-pass",
            "s2",
        ]),
        "NOPERM",
    );
    // Other roles.
    let (replica, other) = (Node::ours(&[]), Node::ours(&[]));
    replica.follow(&other);
    stop(&mut program(&replica.name(), &from.name()), "it is a replica of");
    stop(&mut program(&from.name(), &replica.name()), "REPLICAOF NO ONE there");
    assert_eq!(from.ask("DBSIZE").show(), "(integer) 1000");
}

#[test]
fn a_peer_that_is_no_server_or_hangs_ends_the_move() {
    let from = Node::ours(&[]);
    let replies: [(&[u8], &str); 6] = [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak the protocol"),
        (b"$99999999999\r\n", "a reply is too large"),
        (b"*2147483647\r\n", "no answer within 1 seconds"),
        (&[b'x'; 100_000], "does not speak the protocol"),
        (b"", "no answer within 1 seconds"),
        (b"+OK\r\n+OK\r\n+OK\r\n+OK\r\n", "none of this protocol"),
    ];
    for (bytes, why) in replies {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address").to_string();
        std::thread::spawn(move || {
            let mut kept = Vec::new();
            for stream in listener.incoming() {
                let mut stream = stream.expect("a connection");
                stream.write_all(bytes).expect("it is read");
                kept.push(stream);
            }
        });
        stop(program(&address, &from.name()).args(["--timeout", "1"]), why);
        stop(program(&from.name(), &address).args(["--timeout", "1"]), why);
    }
    let nobody = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = nobody.local_addr().expect("an address").to_string();
    drop(nobody);
    stop(&mut program(&from.name(), &address), "Connection refused");
    assert_eq!(from.role(), "master");
}

/// A server before another one that changes its replies.
fn liar(behind: SocketAddr, lie: fn(&str, String) -> String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address").to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut asks, mut server) = (stream.expect("a connection"), Client::connect(behind));
            std::thread::spawn(move || {
                let mut bytes = Vec::new();
                loop {
                    let mut at = 0;
                    if let Some(Reply::Array(words)) = decode(&bytes, &mut at) {
                        bytes.drain(..at);
                        let words: Vec<String> = words.iter().map(text_of).collect();
                        let reply = server.call(&words);
                        let line = words.join(" ");
                        let raw = match &reply {
                            Reply::Bulk(text) => {
                                let text = lie(&line, String::from_utf8_lossy(text).into_owned());
                                raw(&Reply::Bulk(text.into_bytes()))
                            }
                            other => raw(other),
                        };
                        if asks.write_all(&raw).is_err() {
                            return;
                        }
                        continue;
                    }
                    let mut more = [0; 4096];
                    let Ok(count @ 1..) = TcpStream::read(&mut asks, &mut more) else { return };
                    bytes.extend_from_slice(&more[..count]);
                }
            });
        }
    });
    address
}

/// A reply as it is sent.
fn raw(reply: &Reply) -> Vec<u8> {
    match reply {
        Reply::Simple(text) => [b"+", text.as_slice(), b"\r\n"].concat(),
        Reply::Integer(number) => format!(":{number}\r\n").into_bytes(),
        Reply::Bulk(text) => encode(&[text]).split_off(4),
        Reply::NullBulk => b"$-1\r\n".to_vec(),
        Reply::Array(list) => {
            let head = format!("*{}\r\n", list.len()).into_bytes();
            std::iter::once(head).chain(list.iter().map(raw)).flatten().collect()
        }
        _ => b"-ERR unknown command\r\n".to_vec(),
    }
}

fn text_of(reply: &Reply) -> String {
    match reply {
        Reply::Bulk(text) => String::from_utf8_lossy(text).into_owned(),
        _ => String::new(),
    }
}

#[test]
fn a_server_that_lies_about_its_keys_is_found_out() {
    let (from, to) = (Node::ours(&[]), Node::ours(&[]));
    from.fill(3000);
    to.follow(&from);
    let lying = liar(to.peer.address, |request, text| match request {
        "INFO keyspace" => text.replace("db1:keys=1000", "db1:keys=999"),
        _ => text,
    });
    stop(
        program(&from.name(), &lying).arg("--yes"),
        "database 1 has 999 keys, its primary has 1000",
    );
    assert_eq!((from.role().as_str(), to.role().as_str()), ("master", "slave"));
}

#[test]
fn without_the_word_or_after_an_interrupt_nothing_has_moved() {
    let (from, to) = (Node::ours(&[]), Node::ours(&[]));
    from.fill(3000);
    for word in ["", "no\n", "Move\n"] {
        let mut child = program(&from.name(), &to.name());
        let mut child = child.stdin(Stdio::piped()).spawn().expect("the program starts");
        let mut input = child.stdin.take().expect("a pipe");
        input.write_all(word.as_bytes()).expect("it is read");
        drop(input);
        let output = child.wait_with_output().expect("the program ends");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1));
        assert!(text.contains("The word was not said") && text.contains("FLUSHALL"), "{text}");
        assert_eq!((from.role().as_str(), to.role().as_str()), ("master", "master"));
        assert_eq!(to.ask("DBSIZE"), from.ask("DBSIZE"));
        to.ask("FLUSHALL");
        to.ask("FUNCTION FLUSH");
    }
    // Ctrl-C at the prompt.
    let mut child = program(&from.name(), &to.name());
    let mut child = child.stdin(Stdio::piped()).spawn().expect("the program starts");
    let mut output = child.stdout.take().expect("a pipe");
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains("Type 'move'") {
        let mut byte = [0];
        assert_eq!(output.read(&mut byte).expect("a pipe"), 1);
        seen.push(byte[0]);
    }
    assert_eq!(to.role(), "slave");
    let interrupted = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(interrupted.expect("kill").success());
    let output = child.wait_with_output().expect("the program ends");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("Interrupted") && text.contains("follows"), "{text}");
    assert_eq!((from.role().as_str(), to.role().as_str()), ("master", "master"));
}

#[test]
fn a_planted_difference_is_found() {
    let plants = [
        ("SET k0:1 other", "k0:1 (database 0): another value"),
        ("PEXPIRE k0:8 9000000", "k0:8 (database 0): another deadline"),
        ("PERSIST k0:8", "k0:8 (database 0): another deadline"),
        ("LSET k0:2 2 other", "k0:2 (database 0): another value"),
        ("ZADD k0:5 0.10000001 a5", "k0:5 (database 0): another value"),
        ("HPEXPIRE k0:6 9000000 FIELDS 1 f", "k0:6 (database 0): another value"),
        ("XACK k0:7 g 1-7", "k0:7 (database 0): another value"),
        ("XGROUP SETID k0:7 g 0", "k0:7 (database 0): another value"),
        ("RENAME k0:3 other", "k0:3 (database 0): it is missing"),
    ];
    let from = Node::ours(&[]);
    from.fill(3000);
    for (plant, expected) in plants {
        let to = Node::ours(&["replica-read-only no"]);
        to.follow(&from);
        to.ask(plant);
        let mut command = program(&from.name(), &to.name());
        let text = stop(command.args(["--yes", "--samples", "0"]), "1 keys differ");
        assert!(text.contains(expected), "{plant}: {text}");
        assert_eq!((from.role().as_str(), to.role().as_str()), ("master", "slave"));
    }
}

/// A client that counts upwards in a key, goes where it may write, and notes the longest gap.
struct Writer {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<(u64, Duration)>,
}

impl Writer {
    fn start(addresses: [SocketAddr; 2]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let ends = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut clients = addresses.map(Client::connect);
            let (mut now, mut count, mut longest) = (0, 0u64, Duration::ZERO);
            let mut last = Instant::now();
            while !ends.load(Ordering::Relaxed) {
                let next = (count + 1).to_string();
                let entry = format!("written:{}", next.len());
                match clients[now].call(&["HSET", &entry, &next, &next]) {
                    Reply::Integer(added) => {
                        assert_eq!(added, 1, "no write is given back");
                        count += 1;
                        longest = longest.max(last.elapsed());
                        last = Instant::now();
                    }
                    reply => {
                        assert!(reply.show().contains("READONLY"), "{reply:?}");
                        now = 1 - now;
                    }
                }
            }
            (count, longest)
        });
        Writer { stop, thread }
    }

    /// Ends it. Returns its acknowledged writes and its longest gap.
    fn end(self) -> (u64, Duration) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the writer ends")
    }
}

/// Moves under load from another server and back, twice, the second time killed at all moments.
fn there_and_back(other: &Path, keys: u64) {
    let from = Node::start(other, &[]);
    from.fill(keys);
    let to = Node::ours(&[]);
    let samples = number_from("MOVE_SAMPLES", 500).to_string();
    let writer = Writer::start([from.peer.address, to.peer.address]);
    let mut figures = Vec::new();
    for (here, there) in [(&from, &to), (&to, &from)] {
        let begun = Instant::now();
        let text =
            succeed(program(&here.name(), &there.name()).args(["--yes", "--samples", &samples]));
        figures.push(format!("{:.1} s\n{text}", begun.elapsed().as_secs_f64()));
        let way_back = format!("latchkey --move {} {}", there.name(), here.name());
        assert!(text.contains(" 0 differ") && text.contains(&way_back), "{text}");
        assert_eq!((there.role().as_str(), here.role().as_str()), ("master", "slave"));
    }
    let (count, longest) = writer.end();
    let sum: i64 = (1..=20)
        .filter_map(|digits| match from.ask(&format!("HLEN written:{digits}")) {
            Reply::Integer(number) => Some(number),
            _ => None,
        })
        .sum();
    assert_eq!(sum as u64, count, "no acknowledged write is lost");
    println!("{}: {count} writes, longest gap {longest:?}", other.display());
    println!("{}", figures.join("\n"));
    assert!(longest < Duration::from_secs(9), "{longest:?}");
}

/// Kills the program again and again, and lets the last run come to its end.
fn killed_at_each_step(other: &Path, keys: u64) {
    let mut random = fastrand::Rng::with_seed(seed("MOVE_SEED"));
    let from = Node::start(other, &[]);
    from.fill(keys);
    let to = Node::ours(&[]);
    let writer = Writer::start([from.peer.address, to.peer.address]);
    for (here, there) in [(&from, &to), (&to, &from)] {
        let mut killed_at = Vec::new();
        for step in ["From", "To ", "follows", "Compared", "is the primary"] {
            let mut child: Child = program(&here.name(), &there.name())
                .args(["--yes", "--samples", "300"])
                .spawn()
                .expect("the program starts");
            let mut output = child.stdout.take().expect("a pipe");
            let (mut seen, mut bytes) = (String::new(), [0; 4096]);
            while !seen.contains(step) {
                let Ok(count @ 1..) = output.read(&mut bytes) else { break };
                seen += &String::from_utf8_lossy(&bytes[..count]);
            }
            std::thread::sleep(Duration::from_micros(random.u64(..5000)));
            child.kill().expect("a child");
            child.wait().expect("a child");
            killed_at.push((step, here.role(), there.role()));
        }
        let text = succeed(program(&here.name(), &there.name()).arg("--yes"));
        assert!(text.contains("The way back"), "{text}");
        assert_eq!((there.role().as_str(), here.role().as_str()), ("master", "slave"));
        println!("killed at {killed_at:?}");
    }
    let (count, _) = writer.end();
    let lengths = (1..=20).map(|digits| from.ask(&format!("HLEN written:{digits}")));
    let sum: i64 = lengths
        .filter_map(|reply| if let Reply::Integer(number) = reply { Some(number) } else { None })
        .sum();
    assert_eq!(sum as u64, count, "no acknowledged write is lost");
}

#[test]
fn a_move_and_the_way_back_lose_no_write() {
    there_and_back(&ours(), number_from("MOVE_KEYS", 6000));
}

#[test]
fn a_run_that_was_killed_is_continued_by_the_next() {
    killed_at_each_step(&ours(), 3000);
}

#[test]
#[ignore = "needs servers of others: MOVE_PEERS names them"]
fn moves_from_other_servers_and_back() {
    let peers = std::env::var("MOVE_PEERS").expect("MOVE_PEERS names servers");
    for peer in peers.split(':') {
        there_and_back(Path::new(peer), number_from("MOVE_KEYS", 6000));
        killed_at_each_step(Path::new(peer), 3000);
    }
}
