//! Servers as processes that follow each other, through a link that is cut at random bytes again and again, under a load of random
//! commands, transactions, scripts, functions, deadlines and commands that wait: what they hold is the same, and so are offsets.
//!
//! `PAIRS_PEERS=/path/redis-server:/path/valkey-server` names others, which follow this server and are followed by it (`make peer`
//! names some). `PAIRS_KEYS` and `PAIRS_CUTS` make a run large, `PAIRS_SEED` repeats one as far as processes allow, `PAIRS_LATCHKEY`
//! names another build of this server.
#![allow(clippy::disallowed_methods)] // processes have the real time

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::effects::SCRIPT;
use crate::effects_peer::{BLOCKING, MORE};
use crate::support::grammar::{Generator, parse, rules};
use crate::support::peer::Peer;
use crate::support::{Client, Reply, wait_for};

type Args = Vec<Vec<u8>>;

/// Besides: deadlines that pass at once, and functions.
const DEADLINES: &str = "
= *8 PEXPIRE k 1|10|100|1000
= *8 SET t v PX 1|10|100|1000
*6 FCALL put 1 t v
";
const LIBRARY: &str = "#!lua name=pairs\nredis.register_function('put', function(keys, args) \
                       redis.call('set', keys[1], args[1]) return redis.call('expire', keys[1], 1000) end)";
/// Of the keys that are filled, in this order.
const KINDS: [&str; 7] = ["t", "h", "l", "s", "z", "g", "x"];
/// Requests sent at once.
const BATCH: usize = 50;
/// Databases in use: 0 for many keys, NARROW for a few that all clients have to do with, and what COPY and MOVE reach.
const DATABASES: [&str; 4] = ["0", "1", "2", NARROW];
const NARROW: &str = "9";
/// Cuts while the first snapshot is on its way.
const CUTS_IN_SNAPSHOT: usize = 2;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().expect("a number"))
}

fn ours() -> PathBuf {
    std::env::var_os("PAIRS_LATCHKEY")
        .map_or_else(|| env!("CARGO_BIN_EXE_latchkey").into(), PathBuf::from)
}

/// A moment for processes to go on in, where looking again and again would take it from them.
fn rest() {
    std::thread::sleep(Duration::from_millis(5));
}

// ---- the link ----------------------------------------------------------------------------------------------------------

/// Passes connections on to a server; each can be cut.
struct Proxy {
    address: SocketAddr,
    /// Bytes from the server until the connection is cut, if it is to be.
    left: Arc<Mutex<Option<u64>>>,
    connections: Arc<AtomicU64>,
}

impl Proxy {
    fn start(server: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let (left, connections) = (Arc::new(Mutex::new(None)), Arc::new(AtomicU64::new(0)));
        let proxy = Proxy { address, left: left.clone(), connections: connections.clone() };
        std::thread::spawn(move || {
            for replica in listener.incoming() {
                // The server has ended, and the test with it.
                let (Ok(replica), Ok(primary)) = (replica, TcpStream::connect(server)) else {
                    return;
                };
                connections.fetch_add(1, Ordering::Relaxed);
                let ends = || {
                    (replica.try_clone().expect("a handle"), primary.try_clone().expect("a handle"))
                };
                let (to, from) = ends();
                let left = left.clone();
                std::thread::spawn(move || pass_on(from, to, Some(left)));
                let (from, to) = ends();
                std::thread::spawn(move || pass_on(from, to, None));
            }
        });
        proxy
    }

    fn cut_after(&self, bytes: u64) {
        *self.left.lock().expect("a lock") = Some(bytes);
    }

    /// Waits for the cut.
    fn await_cut(&self) {
        wait_for("the cut", || {
            rest();
            self.left.lock().expect("a lock").is_none().then_some(())
        });
    }
}

fn pass_on(mut from: TcpStream, mut to: TcpStream, left: Option<Arc<Mutex<Option<u64>>>>) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let (count, is_cut) = match &left {
            Some(left) => take_from(&mut left.lock().expect("a lock"), count),
            None => (count, false),
        };
        if to.write_all(&buffer[..count]).is_err() || is_cut {
            break;
        }
    }
    for end in [from, to] {
        // The other side may have done it.
        let _ = end.shutdown(Shutdown::Both);
    }
}

/// How many of the bytes go on, and whether the connection is cut then.
fn take_from(left: &mut Option<u64>, count: usize) -> (usize, bool) {
    match left {
        Some(bytes) if *bytes > count as u64 => {
            *bytes -= count as u64;
            (count, false)
        }
        Some(bytes) => {
            let count = *bytes as usize;
            *left = None;
            (count, true)
        }
        None => (count, false),
    }
}

// ---- the load ----------------------------------------------------------------------------------------------------------

/// Clients that write until they are told to stop.
struct Load {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    /// `rest_of_keys` are filled meanwhile.
    fn start(
        primary: SocketAddr,
        seed: u64,
        keys: u64,
        rest_of_keys: std::ops::Range<u64>,
    ) -> Load {
        let mut load = Load { stop: Arc::default(), sent: Arc::default(), threads: Vec::new() };
        let fill = Fill { random: fastrand::Rng::with_seed(seed), numbers: rest_of_keys };
        load.spawn(primary, "0", Author::new(seed, keys.div_ceil(7) as u32, fill));
        for number in 1..3 {
            let fill = Fill { random: fastrand::Rng::new(), numbers: 0..0 };
            load.spawn(primary, NARROW, Author::new(seed + number, 4, fill));
        }
        for number in 3..5 {
            let mut waits = Generator::new(seed + number, parse(BLOCKING));
            load.spawn_client(primary, NARROW, move |client| {
                let mut args = waits.request().args;
                // Its time: before the keys' number, or at the end.
                match args[0].starts_with(b"BLMPOP") || args[0].starts_with(b"BZMPOP") {
                    true => args[1] = b"0.02".to_vec(),
                    false => *args.last_mut().expect("words") = b"0.02".to_vec(),
                }
                client.call(&args);
                1
            });
        }
        load
    }

    fn spawn(&mut self, primary: SocketAddr, database: &'static str, mut author: Author) {
        self.spawn_client(primary, database, move |client| author.write(client));
    }

    /// `act` writes something, and returns how many commands that were.
    fn spawn_client(
        &mut self,
        primary: SocketAddr,
        database: &'static str,
        mut act: impl FnMut(&mut Client) -> u64 + Send + 'static,
    ) {
        let (stop, sent) = (self.stop.clone(), self.sent.clone());
        self.threads.push(std::thread::spawn(move || {
            let mut client = Client::connect(primary);
            client.call(&["SELECT", database]);
            while !stop.load(Ordering::Relaxed) {
                sent.fetch_add(act(&mut client), Ordering::Relaxed);
            }
        }));
    }

    /// Ends it, and returns how many commands there were.
    fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().expect("a client has panicked");
        }
        self.sent.load(Ordering::Relaxed)
    }
}

/// Makes keys of all types, with few and many elements.
struct Fill {
    random: fastrand::Rng,
    numbers: std::ops::Range<u64>,
}

impl Iterator for Fill {
    type Item = Args;

    fn next(&mut self) -> Option<Args> {
        let number = self.numbers.next()?;
        let kind = KINDS[(number % 7) as usize];
        let random = &mut self.random;
        let elements = match random.u32(..200) {
            0 => random.u32(200..600),
            1..10 => random.u32(20..80),
            _ => random.u32(1..8),
        };
        let (command, more): (&str, fn(u32) -> String) = match kind {
            "t" => ("SET", |_| String::new()),
            "h" => ("HSET", |index| format!("m{index} {}", index * 7)),
            "l" => ("RPUSH", |index| format!("m{index}")),
            "s" => ("SADD", |index| format!("m{index}")),
            "z" => ("ZADD", |index| format!("{} m{index}", index % 50)),
            "g" => ("GEOADD", |index| format!("{} {} m{index}", index % 20, 30 + index % 20)),
            _ => ("XADD", |index| format!("f{index} {index}")),
        };
        let mut words = vec![command.to_owned(), format!("{kind}{}", number / 7)];
        match kind {
            "t" => words.push("v".repeat(elements as usize)),
            // Lower than those that the load makes up.
            "x" => words.push("0-1".to_owned()),
            _ => {}
        }
        for index in (0..elements).filter(|_| kind != "t") {
            words.extend(more(index).split(' ').map(str::to_owned));
        }
        Some(words.into_iter().map(String::into_bytes).collect())
    }
}

/// Makes up what one client writes.
struct Author {
    commands: Generator,
    fill: Fill,
}

impl Author {
    fn new(seed: u64, keys: u32, fill: Fill) -> Self {
        let mut all = rules();
        all.extend(parse(MORE));
        all.extend(parse(DEADLINES));
        // Many keys are to stay.
        all.retain(|rule| keys == 4 || rule.words[0] != "FLUSHDB");
        let mut commands = Generator::new(seed, all);
        commands.keys = keys;
        Author { commands, fill }
    }

    /// Writes some requests at once. Returns how many.
    fn write(&mut self, client: &mut Client) -> u64 {
        let mut requests: Vec<Args> = self.fill.by_ref().take(BATCH).collect();
        while requests.len() < 2 * BATCH {
            match self.commands.random.u32(..30) {
                0 => self.transaction(&mut requests),
                1 => requests.push(self.script()),
                _ => requests.push(self.commands.request().args),
            }
        }
        requests.iter().for_each(|request| client.send(request));
        for _ in &requests {
            client.reply().expect("the primary stays");
        }
        requests.len() as u64
    }

    fn transaction(&mut self, requests: &mut Vec<Args>) {
        requests.push(vec![b"MULTI".to_vec()]);
        for _ in 0..self.commands.random.usize(..6) {
            requests.push(self.commands.request().args);
        }
        requests.push(vec![b"EXEC".to_vec()]);
    }

    fn script(&mut self) -> Args {
        let mut args: Args = vec![b"EVAL".to_vec(), SCRIPT.into(), b"0".to_vec()];
        for _ in 0..self.commands.random.usize(..5) {
            let command = self.commands.request().args;
            args.push(command.len().to_string().into_bytes());
            args.extend(command);
        }
        args
    }
}

// ---- what is compared --------------------------------------------------------------------------------------------------

fn info(client: &mut Client, name: &str) -> String {
    let Reply::Bulk(text) = client.call(&["INFO"]) else { panic!("INFO is a string") };
    let text = String::from_utf8(text).expect("INFO is text");
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
    line.unwrap_or_default().trim_end().to_owned()
}

fn count(client: &mut Client, name: &str) -> u64 {
    info(client, name).parse().expect("a number")
}

/// Has the primary meet all keys, so that it deletes those whose time has come.
fn sweep(primary: &mut Client) {
    for database in DATABASES {
        primary.call(&["SELECT", database]);
        let mut cursor = b"0".to_vec();
        loop {
            let reply = primary.call(&[b"SCAN", &cursor[..], b"COUNT", b"5000"]);
            let Reply::Array(parts) = reply else { panic!("no cursor: {}", reply.show()) };
            let Some(Reply::Bulk(next)) = parts.into_iter().next() else { panic!("no cursor") };
            cursor = next;
            if cursor == b"0" {
                break;
            }
        }
    }
}

/// What differs between servers that should hold the same, for some keys.
fn different(first: &mut Client, second: &mut Client) -> String {
    let mut shown = String::new();
    for database in DATABASES {
        first.call(&["SELECT", database]);
        second.call(&["SELECT", database]);
        let mut keys: Vec<Vec<u8>> = Vec::new();
        for client in [&mut *first, &mut *second] {
            let Reply::Array(found) = client.call(&["KEYS", "*"]) else { panic!("no keys") };
            keys.extend(found.into_iter().filter_map(|key| match key {
                Reply::Bulk(key) => Some(key),
                _ => None,
            }));
        }
        keys.sort();
        keys.dedup();
        for key in keys {
            let asked = [&b"DEBUG"[..], b"DIGEST-VALUE", &key];
            if first.call(&asked) == second.call(&asked) || shown.len() > 3000 {
                continue;
            }
            shown += &format!("database {database}, key {}\n", String::from_utf8_lossy(&key));
            for client in [&mut *first, &mut *second] {
                for word in ["TYPE", "PEXPIRETIME", "DUMP"] {
                    shown += &format!(
                        "  {word} {:.300}\n",
                        client.call(&[word.as_bytes(), &key]).show()
                    );
                }
            }
        }
    }
    shown
}

/// Servers, each of which follows the one before it.
struct Chain {
    nodes: Vec<Peer>,
    clients: Vec<Client>,
    /// Before each but the first.
    proxies: Vec<Proxy>,
    _folder: tempfile::TempDir,
}

impl Chain {
    fn start(programs: &[PathBuf]) -> Chain {
        let folder = tempfile::tempdir().expect("a folder");
        let lines = ["repl-backlog-size 64mb", "repl-diskless-sync-delay 0"];
        let start = |(number, program): (usize, &PathBuf)| {
            let dir = folder.path().join(number.to_string());
            std::fs::create_dir(&dir).expect("a folder");
            Peer::start(program, &dir, &lines)
        };
        let nodes: Vec<Peer> = programs.iter().enumerate().map(start).collect();
        let clients = nodes.iter().map(Peer::connect).collect();
        let followed = &nodes[..nodes.len() - 1];
        let proxies = followed.iter().map(|node| Proxy::start(node.address)).collect();
        Chain { nodes, clients, proxies, _folder: folder }
    }

    /// A connection that was cut is made anew and in use.
    fn await_link(&mut self, link: usize, connections: u64) {
        let (proxy, replica) = (&self.proxies[link], &mut self.clients[link + 1]);
        wait_for("the link", || {
            rest();
            let is_new = proxy.connections.load(Ordering::Relaxed) > connections;
            (is_new && info(replica, "master_link_status") == "up").then_some(())
        });
    }

    /// Follows; the first snapshots are cut. The number of full synchronisations then.
    fn follow(&mut self, random: &mut fastrand::Rng) -> u64 {
        for link in 0..self.proxies.len() {
            let proxy = &self.proxies[link];
            proxy.cut_after(random.u64(200..20_000));
            let (host, port) = (proxy.address.ip().to_string(), proxy.address.port().to_string());
            self.clients[link + 1].call(&["REPLICAOF", &host, &port]);
            proxy.await_cut();
            for _ in 1..CUTS_IN_SNAPSHOT {
                proxy.cut_after(random.u64(200..20_000));
                proxy.await_cut();
            }
            self.await_link(link, 0);
        }
        self.sum("sync_full")
    }

    /// Cuts the link somewhere in the stream, now and then also in what is said first then. Returns how many cuts that were.
    fn cut(&mut self, random: &mut fastrand::Rng) -> u64 {
        let link = random.usize(..self.proxies.len());
        let proxy = &self.proxies[link];
        let before = proxy.connections.load(Ordering::Relaxed);
        proxy.cut_after(random.u64(1..200_000));
        proxy.await_cut();
        let again = u64::from(random.u32(..4) == 0);
        if again == 1 {
            proxy.cut_after(random.u64(1..250));
            proxy.await_cut();
        }
        self.await_link(link, before + again);
        1 + again
    }

    fn sum(&mut self, name: &str) -> u64 {
        self.clients.iter_mut().map(|client| count(client, name)).sum()
    }

    /// Waits until all have the same. Panics if they never do.
    fn compare(&mut self) {
        let offset = |client: &mut Client| info(client, "master_repl_offset");
        let told = |client: &mut Client| {
            let functions = client.call(&["FUNCTION", "LIST", "WITHCODE"]);
            (client.call(&["DEBUG", "DIGEST"]).show(), functions.show())
        };
        sweep(&mut self.clients[0]);
        let (primary, replicas) = self.clients.split_first_mut().expect("some nodes");
        wait_for("equal offsets", || {
            rest();
            let end = offset(primary);
            replicas.iter_mut().all(|replica| offset(replica) == end).then_some(())
        });
        let start = Instant::now();
        loop {
            // Deadlines that pass meanwhile change them, one after the other.
            sweep(primary);
            let end = offset(primary);
            rest();
            let first = told(primary);
            let are_same = replicas.iter_mut().all(|it| offset(it) == end && told(it) == first);
            if are_same {
                return;
            }
            if start.elapsed() > Duration::from_secs(30) {
                let shown: Vec<_> = replicas.iter_mut().map(|it| different(primary, it)).collect();
                let offsets: Vec<_> = replicas.iter_mut().map(offset).collect();
                panic!("offsets {end} and {offsets:?}; {}", shown.join("\n"));
            }
        }
    }
}

/// Runs servers that follow each other, and shows a row of the table.
fn run(programs: &[PathBuf], names: &str, keys: u64, cuts: u64) {
    let seed = number("PAIRS_SEED", fastrand::u64(..1 << 32));
    println!("{names}: PAIRS_SEED={seed} PAIRS_KEYS={keys} PAIRS_CUTS={cuts}");
    let start = Instant::now();
    let mut random = fastrand::Rng::with_seed(seed);
    let mut chain = Chain::start(programs);
    let primary = &mut chain.clients[0];
    let loaded = primary.call(&["FUNCTION", "LOAD", LIBRARY]).show();
    assert_eq!(loaded, "\"pairs\"");
    let fill: Vec<Args> = Fill { random: random.fork(), numbers: 0..keys / 2 }.collect();
    for requests in fill.chunks(BATCH) {
        requests.iter().for_each(|request| primary.send(request));
        for _ in requests {
            let reply = primary.reply().expect("the primary stays");
            assert!(!matches!(reply, Reply::Error(_)), "{}", reply.show());
        }
    }
    let load = Load::start(chain.nodes[0].address, seed, keys, keys / 2..keys);
    let full = chain.follow(&mut random);
    let partial = chain.sum("sync_partial_ok");
    let mut made = 0;
    while made < cuts {
        made += chain.cut(&mut random);
    }
    let sent = load.end();
    chain.compare();
    let bytes = count(&mut chain.clients[0], "master_repl_offset");
    let (full_then, partial_then) = (chain.sum("sync_full"), chain.sum("sync_partial_ok"));
    let left: u64 = DATABASES
        .iter()
        .map(|database| {
            chain.clients[0].call(&["SELECT", database]);
            match chain.clients[0].call(&["DBSIZE"]) {
                Reply::Integer(keys) => keys as u64,
                other => panic!("no number: {}", other.show()),
            }
        })
        .sum();
    println!(
        "| {names} | {left} keys | {sent} commands | {} MB | {made} cuts | {} partial | {} full | {} s |",
        bytes >> 20,
        partial_then - partial,
        full_then - full,
        start.elapsed().as_secs()
    );
    assert_eq!(full_then, full, "the backlog has held all that a replica lacked");
    for client in &mut chain.clients {
        let failed = info(client, "unexpected_error_replies");
        assert!(failed.is_empty() || failed == "0", "{failed} commands of the stream have failed");
    }
}

#[test]
fn servers_that_follow_each_other_hold_the_same() {
    let (keys, cuts) = (number("PAIRS_KEYS", 1400), number("PAIRS_CUTS", 12));
    run(&[ours(), ours()], "latchkey, latchkey", keys, cuts);
    run(&[ours(), ours(), ours()], "latchkey, latchkey, latchkey", keys, cuts);
}

#[test]
#[ignore = "needs PAIRS_PEERS=/path/to/a/server:/path/to/another"]
fn other_servers_follow_this_one_and_are_followed() {
    let peers = std::env::var("PAIRS_PEERS").expect("PAIRS_PEERS names no server");
    let (keys, cuts) = (number("PAIRS_KEYS", 7000), number("PAIRS_CUTS", 20));
    for peer in peers.split(':').map(Path::new) {
        let name = peer.file_name().and_then(|name| name.to_str()).expect("a name");
        run(&[ours(), peer.into()], &format!("latchkey, {name}"), keys, cuts);
        run(&[peer.into(), ours()], &format!("{name}, latchkey"), keys, cuts);
    }
}
