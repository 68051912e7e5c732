//! Locks: how fast a released lock reaches who waits for it, what a held lock and a waiter cost,
//! and how late leases end.
//!
//! Hand-over is measured from sending the release until the next holder knows that it has the lock.
//! Here are the commands of the server under test, and a recipe of the field over BLPOP; libraries
//! are programs of their own ([`library`]), since they cannot be had in this language:
//! `benches/locks`. Taking and giving back without contention is among [`crate::cases`].

use crate::cases::{self, AGAIN, KEY, Keys, NEXT, Template};
use crate::client::Client;
use crate::load::{Load, Random};
use crate::options::Options;
use crate::report::{self, Section, Table, duration, figure};
use crate::resp::Reply;
use crate::server::{Server, ServerSpec};
use crate::sys::CpuTime;
use crate::{Result, clock, sys};
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Clients that wait for the lock.
const WAITERS: [usize; 3] = [1, 100, 1000];
/// Hand-overs of a run; libraries, which are slower, may end after [`LIBRARY_SECONDS`].
const ROUNDS: usize = 5000;
const LIBRARY_SECONDS: u64 = 15;
/// Descriptors that are no clients: ours and the server's log, epoll, timers.
const RESERVED: u64 = 100;
/// Longer than a run.
const LEASE: &str = "3600000";

/// Gives a lock back, and wakes one that waits: the recipe of python-redis-lock.
const SIGNAL: &str = "if redis.call('get',KEYS[1])~=ARGV[1] then return 1 end \
    redis.call('del',KEYS[2]) redis.call('lpush',KEYS[2],1) redis.call('pexpire',KEYS[2],3600000) \
    redis.call('del',KEYS[1]) return 0";

pub fn measure(options: &Options) -> Result<()> {
    sys::raise_open_files(20_000 + RESERVED);
    let mut versions = Vec::new();
    let mut tables = Vec::new();
    if options.wants("hand-over") {
        tables
            .push(("Hand-over to the next holder".to_owned(), hand_over(options, &mut versions)?));
    }
    if options.wants("memory") {
        tables
            .push(("Resident memory for each, bytes".to_owned(), memory(options, &mut versions)?));
    }
    if options.wants("leases") {
        tables.push(("Leases that end among others".to_owned(), leases(options)?));
    }
    let section = Section {
        title: "Locks",
        method: format!(
            "Hand-over: from sending the release until the next holder has its reply, 5000 times (libraries as often as they \
             can in {LIBRARY_SECONDS} s); CPU is all that the server did for one, with the next question of who released. `LOCK.ACQUIRE`: BLOCK 0. BLPOP: SET NX PX after BLPOP, and a script that \
             deletes and pushes (python-redis-lock's recipe). Redisson: RLock, the waiters in up to ten clients of one \
             process. redis-py: Lock, which asks every 100 ms. Leases: {EXPIRING} of the held locks end at random times, each \
             with one that waits; how late it is served, counted from when the lease was asked for."
        ),
        tables,
        notes: Vec::new(),
    };
    section.print();
    match &options.out {
        Some(directory) => section.write(directory, &report::facts(options, &versions)),
        None => Ok(()),
    }
}

fn note(versions: &mut Vec<(String, String)>, server: &Server) {
    let version = (server.name.clone(), server.version.clone());
    if !versions.contains(&version) {
        versions.push(version);
    }
}

fn has_locks(server: &Server) -> Result<bool> {
    let mut client = Client::connect(server.address)?;
    Ok(!matches!(client.call(&["LOCK.ACQUIRE", "probe", "x", "PX", "1"])?, Reply::Error(_)))
}

// ---- hand-over ----------------------------------------------------------------------------------

/// What a run of hand-overs saw.
struct Times {
    ns: Vec<u64>,
    cpu: CpuTime,
}

/// A way to take and give back one lock. Clients are numbered; who waits has sent `ask`.
trait Recipe {
    fn ask(&self, client: &mut Client, number: usize) -> Result<()>;
    /// Reads until the lock is held.
    fn obtain(&self, client: &mut Client, number: usize) -> Result<()>;
    fn release(&self, client: &mut Client, number: usize) -> Result<()>;
}

struct Native;

impl Recipe for Native {
    fn ask(&self, client: &mut Client, number: usize) -> Result<()> {
        let request = format!("LOCK.ACQUIRE lock owner-{number} PX {LEASE} BLOCK 0\r\n");
        client.send(request.as_bytes())
    }

    fn obtain(&self, client: &mut Client, _: usize) -> Result<()> {
        client.receive().map(drop)
    }

    fn release(&self, client: &mut Client, number: usize) -> Result<()> {
        client.send(format!("LOCK.RELEASE lock owner-{number}\r\n").as_bytes())
    }
}

struct OverList {
    /// The script's hash.
    signal: String,
}

impl Recipe for OverList {
    fn ask(&self, client: &mut Client, _: usize) -> Result<()> {
        client.send(b"BLPOP lock-signal 0\r\n")
    }

    fn obtain(&self, client: &mut Client, number: usize) -> Result<()> {
        client.receive()?;
        match client.call(&["SET", "lock", &format!("owner-{number}"), "NX", "PX", LEASE])? {
            Reply::Error(error) => Err(error.into()),
            reply if reply.text() == "OK" => Ok(()),
            reply => Err(format!("the lock was not free: {}", reply.text()).into()),
        }
    }

    fn release(&self, client: &mut Client, number: usize) -> Result<()> {
        let signal = &self.signal;
        client.send(format!("EVALSHA {signal} 2 lock lock-signal owner-{number}\r\n").as_bytes())
    }
}

fn hand_over(options: &Options, versions: &mut Vec<(String, String)>) -> Result<Table> {
    let mut cells: Cells = Vec::new();
    let rounds = if options.quick { ROUNDS / 10 } else { ROUNDS };
    for waiters in WAITERS {
        for (at, spec) in options.servers.iter().enumerate() {
            let mut note_times = |recipe: &str, times: Times| {
                let mut ns = times.ns;
                ns.sort_unstable();
                let quantile = |share| duration(ns[((ns.len() - 1) as f64 * share) as usize]);
                let cpu_us = figure(times.cpu.run_ns as f64 / ns.len() as f64 / 1e3);
                let latency = format!("{} ({})", quantile(0.5), quantile(0.99));
                let (longest, count) = (quantile(1.0), ns.len());
                eprintln!(
                    "locks: {waiters} {recipe} {}: {latency}, {longest} at most, {cpu_us} µs, {count} hand-overs",
                    spec.name
                );
                let row = vec![waiters.to_string(), recipe.to_owned()];
                put(&mut cells, row, at, vec![latency, cpu_us]);
            };
            let server = start(spec)?;
            note(versions, &server);
            if has_locks(&server)? {
                note_times("LOCK.ACQUIRE", by_wire(&server, &Native, waiters, rounds)?);
            }
            let mut client = Client::connect(server.address)?;
            let signal = client.must(&["SCRIPT", "LOAD", SIGNAL])?.text();
            note_times("BLPOP", by_wire(&server, &OverList { signal }, waiters, rounds)?);
            for (name, program) in &options.libraries {
                let server = start(spec)?;
                note_times(name, library(&server, program, waiters, rounds)?);
            }
        }
    }
    Ok(side_by_side(options, &["waiters", "recipe"], &["p50 (p99)", "CPU µs"], cells))
}

/// The names of each row, with what was measured there: by server, then by column.
type Cells = Vec<(Vec<String>, Vec<(usize, Vec<String>)>)>;

/// Adds what a server has measured to its row, which may be new.
fn put(cells: &mut Cells, row: Vec<String>, server: usize, measured: Vec<String>) {
    match cells.iter_mut().find(|(names, _)| *names == row) {
        Some((_, servers)) => servers.push((server, measured)),
        None => cells.push((row, vec![(server, measured)])),
    }
}

/// A table with the servers beside each other: each has all of `columns`.
fn side_by_side(options: &Options, names: &[&str], columns: &[&str], cells: Cells) -> Table {
    let mut heading: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
    for spec in &options.servers {
        heading.extend(columns.iter().map(|column| format!("{} {column}", spec.name)));
    }
    let mut table = Table::new(&heading.iter().map(String::as_str).collect::<Vec<_>>());
    for (mut row, servers) in cells {
        for at in 0..options.servers.len() {
            let measured = servers.iter().find(|(server, _)| *server == at);
            row.extend(
                measured.map_or(vec!["-".into(); columns.len()], |(_, cells)| cells.clone()),
            );
        }
        table.row(row);
    }
    table
}

fn start(spec: &ServerSpec) -> Result<Server> {
    Server::start(spec, &["--maxclients", "20000"])
}

fn by_wire(server: &Server, recipe: &dyn Recipe, waiters: usize, rounds: usize) -> Result<Times> {
    let mut clients = Vec::new();
    for _ in 0..=waiters {
        clients.push(Client::connect(server.address)?);
    }
    // The first holds it, by a release of nobody's in the recipe that needs a signal.
    clients[0].must(&["DEL", "lock", "lock-signal"])?;
    clients[0].must(&["RPUSH", "lock-signal", "1"])?;
    recipe.ask(&mut clients[0], 0)?;
    recipe.obtain(&mut clients[0], 0)?;
    for (number, client) in clients.iter_mut().enumerate().skip(1) {
        recipe.ask(client, number)?;
    }
    server.wait_until_quiet()?;
    let before = server.cpu()?;
    let mut ns = Vec::with_capacity(rounds);
    for round in 0..rounds {
        // They are served in the order in which they asked, and ask again in that order.
        let (holder, next) = (round % clients.len(), (round + 1) % clients.len());
        let begin = clock::now();
        recipe.release(&mut clients[holder], holder)?;
        recipe.obtain(&mut clients[next], next)?;
        ns.push((clock::now() - begin).as_nanos() as u64);
        clients[holder].receive()?;
        recipe.ask(&mut clients[holder], holder)?;
    }
    let cpu = server.cpu()?.since(&before);
    Ok(Times { ns, cpu })
}

/// Runs `program PORT WAITERS ROUNDS SECONDS`. It says `ready` when all wait, begins when it reads
/// a line, and then prints the nanoseconds of each hand-over, a line each, and an empty line.
fn library(server: &Server, program: &str, waiters: usize, rounds: usize) -> Result<Times> {
    let mut child = Command::new(program)
        .args([server.address.port().to_string(), waiters.to_string(), rounds.to_string()])
        .arg(LIBRARY_SECONDS.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{program}: {error}"))?;
    let mut lines = BufReader::new(child.stdout.take().ok_or("no output")?).lines();
    let ready = lines.next().transpose()?;
    if ready.as_deref() != Some("ready") {
        return Err(format!("{program} said {ready:?}").into());
    }
    server.wait_until_quiet()?;
    let before = server.cpu()?;
    child.stdin.take().ok_or("no input")?.write_all(b"go\n")?;
    let mut ns = Vec::new();
    let mut cpu = None;
    for line in lines {
        let line = line?;
        // The first comes when all are over.
        cpu = cpu.or(Some(server.cpu()?.since(&before)));
        match line.is_empty() {
            true => break,
            false => ns.push(line.parse()?),
        }
    }
    child.kill()?;
    child.wait()?;
    let cpu = cpu.filter(|_| !ns.is_empty()).ok_or(format!("{program} has measured nothing"))?;
    Ok(Times { ns, cpu })
}

// ---- memory -------------------------------------------------------------------------------------

const OWNER: &str = "9b2f1c2e-7d4a-4a53-b1c3-0d6f5f0a1234:1";
const ACQUIRE: Template = &["LOCK.ACQUIRE", KEY, OWNER, "PX", LEASE];
/// What LOCK.ACQUIRE leaves, as anybody can write it.
const HASH: Template = &[
    "HSET",
    KEY,
    OWNER,
    "1",
    ":fence",
    "3765330862145537",
    ":since",
    "1795460670684",
    NEXT,
    "PEXPIRE",
    AGAIN,
    LEASE,
];

fn memory(options: &Options, versions: &mut Vec<(String, String)>) -> Result<Table> {
    let mut cells: Cells = Vec::new();
    let mut note_growth = |what: &str, count: usize, at: usize, grown: u64| {
        let each = figure(grown as f64 / count as f64);
        eprintln!("locks: {what} {count} {} {each}", options.servers[at].name);
        put(&mut cells, vec![what.to_owned(), count.to_string()], at, vec![each]);
    };
    for (at, spec) in options.servers.iter().enumerate() {
        for (what, template) in [("lock held", ACQUIRE), ("the same hash", HASH)] {
            let server = start(spec)?;
            note(versions, &server);
            if what == "lock held" && !has_locks(&server)? {
                continue;
            }
            let grown = filled(&server, template, options.keys)?;
            note_growth(what, options.keys as usize, at, grown);
        }
        for (what, request) in [
            ("idle connection", "PING\r\n".to_owned()),
            ("waits in BLPOP", "BLPOP list 0\r\n".to_owned()),
            ("waits in LOCK.ACQUIRE", format!("LOCK.ACQUIRE lock OWNER PX {LEASE} BLOCK 0\r\n")),
        ] {
            let server = start(spec)?;
            if what.ends_with("ACQUIRE") && !has_locks(&server)? {
                continue;
            }
            let grown = waiting(&server, &request, options.idle)?;
            note_growth(what, options.idle, at, grown);
        }
    }
    Ok(side_by_side(options, &["what", "count"], &["bytes"], cells))
}

/// How much resident memory grows with one request for each of so many keys.
fn filled(server: &Server, template: Template, keys: u32) -> Result<u64> {
    let fill = cases::encode(template, Keys::Once, keys, u64::from(keys), 64);
    let mut load = Load::connect(server.address, 1)?;
    let before = server.settled_rss_bytes()?;
    let outcome = load.run(&fill, 0)?;
    match outcome.first_error {
        Some(error) => Err(error.into()),
        None => Ok(server.settled_rss_bytes()?.saturating_sub(before)),
    }
}

/// How much it grows with so many connections that have each sent a request. `OWNER` becomes a name
/// of each.
fn waiting(server: &Server, request: &str, count: usize) -> Result<u64> {
    let mut first = Client::connect(server.address)?;
    first.call(&["LOCK.ACQUIRE", "lock", "holder", "PX", LEASE])?;
    let before = server.settled_rss_bytes()?;
    let mut clients = Vec::with_capacity(count);
    for number in 0..count {
        let mut client = Client::connect(server.address)?;
        client.must(&["PING"])?;
        client.send(request.replace("OWNER", &format!("owner-{number}-{OWNER}")).as_bytes())?;
        clients.push(client);
    }
    Ok(server.settled_rss_bytes()?.saturating_sub(before))
}

// ---- leases that end ----------------------------------------------------------------------------

/// Locks that end, each with one that waits.
const EXPIRING: usize = 500;
/// When their leases end, counted from the grant.
const ENDS_MS: std::ops::Range<u64> = 5_000..15_000;

fn leases(options: &Options) -> Result<Table> {
    let mut table =
        Table::new(&["server", "locks held", "waiters", "late p50", "late p99", "late at most"]);
    for spec in &options.servers {
        let server = start(spec)?;
        if !has_locks(&server)? {
            continue;
        }
        filled(&server, ACQUIRE, options.keys)?;
        let mut late_ns = lateness(&server, options.keys)?;
        late_ns.sort_unstable();
        let at = |share: f64| duration(late_ns[((late_ns.len() - 1) as f64 * share) as usize]);
        let row = vec![
            spec.name.clone(),
            options.keys.to_string(),
            late_ns.len().to_string(),
            at(0.5),
            at(0.99),
            at(1.0),
        ];
        eprintln!("locks: {}", row.join("  "));
        table.row(row);
    }
    Ok(table)
}

/// Gives some of the held locks to others for a while, has one wait for each, and returns how late
/// each of them is served.
fn lateness(server: &Server, keys: u32) -> Result<Vec<u64>> {
    let mut random = Random(7);
    let mut control = Client::connect(server.address)?;
    let mut due: Vec<Instant> = Vec::new();
    let mut waiting = Vec::new();
    let mut poll = Poll::new()?;
    for number in 0..EXPIRING {
        let key = crate::load::key((number as u64 * u64::from(keys) / EXPIRING as u64) as u32);
        control.must(&["LOCK.RELEASE", &key, OWNER])?;
        let lease_ms = ENDS_MS.start + random.below(ENDS_MS.end - ENDS_MS.start);
        due.push(clock::now() + Duration::from_millis(lease_ms));
        control.must(&["LOCK.ACQUIRE", &key, "first", "PX", &lease_ms.to_string()])?;
        let mut client = Client::connect(server.address)?;
        client.send(format!("LOCK.ACQUIRE {key} second PX {LEASE} BLOCK 0\r\n").as_bytes())?;
        let stream = client.into_stream();
        stream.set_nonblocking(true)?;
        let mut stream = TcpStream::from_std(stream);
        poll.registry().register(&mut stream, Token(number), Interest::READABLE)?;
        waiting.push(Some(stream));
    }
    let (mut late_ns, mut events) = (Vec::new(), Events::with_capacity(64));
    while late_ns.len() < EXPIRING {
        poll.poll(&mut events, Some(Duration::from_secs(30)))?;
        if events.is_empty() {
            return Err("waiters were forgotten".into());
        }
        let now = clock::now();
        for event in &events {
            let number = event.token().0;
            // Its reply is short and comes at once; the connection goes with it.
            if waiting[number].take().is_some() {
                late_ns.push(now.saturating_duration_since(due[number]).as_nanos() as u64);
            }
        }
    }
    Ok(late_ns)
}
