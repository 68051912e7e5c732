//! What saving and loading cost: latency, memory and throughput while the whole keyspace is written
//! out, how long that takes, how long a start takes, and what the append-only file costs each
//! write.
//!
//! The server has all cores here, for a peer's forked child and this server's threads want one too.
//! One thread sends writes at a fixed rate and PINGs about every 200 µs. A reply's time is that of
//! its arrival in the kernel, so that the generator's own pauses, of which the longest is shown, do
//! not look like the server's. The memory of the server and its children is added up in a second
//! save, as that keeps the kernel, and with it a core, busy for some milliseconds each time.

use crate::client::{Client, Probe};
use crate::load::{self, LATENCY_NS_MAX, Load, Random};
use crate::options::Options;
use crate::report::{self, Section, Table, duration, figure};
use crate::resp::encode_request;
use crate::server::{Server, ServerSpec};
use crate::{Result, clock};
use hdrhistogram::Histogram;
use std::fs::File;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The generator sleeps so long between two looks, which is what a latency may be told too long.
const TURN: Duration = Duration::from_micros(50);
const PROBE_INTERVAL: Duration = Duration::from_micros(200);
/// Writes a second that are asked for, and how many are sent at a time.
const WRITES_A_SECOND: u64 = 20_000;
const WRITES_AT_ONCE: u64 = 20;
/// So many of those go to each large collection.
const ELEMENTS_AT_ONCE: u64 = 1;
/// How long is measured without a save.
const QUIET: Duration = Duration::from_secs(3);
/// So often it is asked whether the save has ended.
const ASK_INTERVAL: Duration = Duration::from_millis(50);
/// A save that takes longer has failed.
const SAVE_TIMEOUT: Duration = Duration::from_secs(120);
/// Elements of each of the large collections, for each key.
const ELEMENTS_SHARE: f64 = 1.0 / 3.0;
/// Writes of the measurement of `appendfsync`.
const LOGGED_WRITES: u64 = 400_000;
const WRITERS: usize = 50;

/// What takes a while: how it is begun, and how it is seen that it has ended.
pub struct Work {
    /// Who is told and asked; the server that is measured, or another one.
    pub whom: SocketAddr,
    pub command: Vec<String>,
    /// Of INFO, and what stands there until it has ended.
    pub section: &'static str,
    pub sign: &'static str,
}

/// The columns of a table of phases.
pub const COLUMNS: [&str; 8] = [
    "server",
    "phase",
    "seconds",
    "p99 of PING",
    "longest PING",
    "memory, times before",
    "thousand writes/s",
    "generator's longest pause",
];

/// What one phase came to.
pub struct Phase {
    name: &'static str,
    elapsed: Duration,
    latency_ns: Histogram<u64>,
    writes: u64,
    /// The highest sum of memory, bytes, and the one before.
    memory_peak: u64,
    memory_before: u64,
    longest_own_pause: Duration,
}

pub fn measure(options: &Options) -> Result<()> {
    let keys = keys(options);
    let mut saving = Table::new(&COLUMNS);
    let mut loading =
        Table::new(&["server", "RDB, s", "AOF with an RDB base, s", "AOF of SETs, s"]);
    let mut logging = Table::new(&[
        "server",
        "no AOF, CPU ns/SET",
        "everysec, CPU ns/SET",
        "always, 50 writers, thousand SETs/s",
    ]);
    let mut versions = Vec::new();
    for spec in &options.servers {
        let server = Server::start_on_all_cores(spec, &[])?;
        versions.push((server.name.clone(), server.version.clone()));
        fill(&server, keys)?;
        for phase in saves(&server, keys)? {
            let row = row_of(spec, &phase);
            eprintln!("saving: {}", row.join("  "));
            saving.row(row);
        }
        let row = starts(spec, &server, keys)?;
        eprintln!("loading: {}", row.join("  "));
        loading.row(row);
        drop(server);
        let row = logs(spec, options)?;
        eprintln!("logging: {}", row.join("  "));
        logging.row(row);
    }
    let syncs = syncs_a_second()?;
    let section = Section {
        title: "Saving and loading",
        method: format!(
            "{keys} keys of 32 random bytes, and a list, a hash and a sorted set of a third as many elements; \
             {WRITES_A_SECOND} writes a second, three in 20 of them to the collections. Memory is the sum of the \
             proportional shares of the server and its children. Starts are measured until PING is answered. The log \
             of SETs is at pipeline 16, that of 50 writers at pipeline 1; a file to which 3 KB are appended can be \
             synced {} times a second here.",
            figure(syncs)
        ),
        tables: vec![
            ("While it is saved".into(), saving),
            ("Loading".into(), loading),
            ("The append-only file".into(), logging),
        ],
        notes: Vec::new(),
    };
    section.print();
    match &options.out {
        Some(directory) => section.write(directory, &report::facts(options, &versions)),
        None => Ok(()),
    }
}

/// How many keys there are.
pub fn keys(options: &Options) -> u32 {
    match options.quick {
        true => options.keys,
        false => options.keys.max(3_000_000),
    }
}

pub fn row_of(spec: &ServerSpec, phase: &Phase) -> Vec<String> {
    let seconds = phase.elapsed.as_secs_f64();
    vec![
        spec.name.clone(),
        phase.name.into(),
        figure(seconds),
        duration(phase.latency_ns.value_at_quantile(0.99)),
        duration(phase.latency_ns.max()),
        format!("{:.2}", phase.memory_peak as f64 / phase.memory_before.max(1) as f64),
        figure(phase.writes as f64 / seconds / 1e3),
        duration(phase.longest_own_pause.as_nanos() as u64),
    ]
}

/// 32 bytes that nothing compresses.
pub fn value(random: &mut Random) -> [u8; 32] {
    let mut text = [0; 32];
    text.fill_with(|| b'!' + random.below(90) as u8);
    text
}

fn elements(keys: u32) -> u64 {
    (f64::from(keys) * ELEMENTS_SHARE) as u64
}

/// A SET of each key, in their order.
fn sets(keys: u32, random: &mut Random) -> load::Requests {
    let mut number = 0;
    load::Requests::build(u64::from(keys), 64, 1, |out| {
        encode_request(out, &[b"SET", load::key(number).as_bytes(), &value(random)]);
        number += 1;
    })
}

pub fn fill(server: &Server, keys: u32) -> Result<()> {
    let mut random = Random(1);
    let mut load = Load::connect(server.address, 1)?;
    let sets = sets(keys, &mut random);
    load.run(&sets, 0)?;
    for name in ["RPUSH", "HSET", "ZADD"] {
        let mut element = 0;
        let requests = load::Requests::build(elements(keys), 64, 1, |out| {
            write_element(out, name, element, &mut random);
            element += 1;
        });
        if let Some(error) = load.run(&requests, 0)?.first_error {
            return Err(error.into());
        }
    }
    server.wait_until_quiet()
}

/// A write of element `number` of the collection that the command is about.
fn write_element(out: &mut Vec<u8>, name: &str, number: u64, random: &mut Random) {
    let text = number.to_string();
    let value = value(random);
    match name {
        "RPUSH" => encode_request(out, &[b"RPUSH", b"list", &value]),
        "LPOP" => encode_request(out, &[b"LPOP", b"list"]),
        "HSET" => encode_request(out, &[b"HSET", b"hash", text.as_bytes(), &value]),
        _ => {
            let score = random.below(1 << 30).to_string();
            let member = format!("member:{number:025}");
            encode_request(out, &[b"ZADD", b"scores", score.as_bytes(), member.as_bytes()]);
        }
    }
}

fn saves(server: &Server, keys: u32) -> Result<Vec<Phase>> {
    let quiet = phase(server, keys, "no save", || Ok(None))?;
    let save = |name: &'static str, sign| {
        let (whom, section) = (server.address, "persistence");
        phase(server, keys, name, || {
            Ok(Some(Work { whom, command: vec![name.into()], section, sign }))
        })
    };
    let snapshot = save("BGSAVE", "rdb_bgsave_in_progress:1")?;
    let mut control = Client::connect(server.address)?;
    // The first rewrite comes with it.
    control.must(&["CONFIG", "SET", "appendonly", "yes"])?;
    wait_for_save(&mut control, "aof_rewrite_in_progress:1")?;
    server.wait_until_quiet()?;
    let rewrite = save("BGREWRITEAOF", "aof_rewrite_in_progress:1")?;
    Ok(vec![quiet, snapshot, rewrite])
}

fn is_saving(control: &mut Client, sign: &str) -> Result<bool> {
    Ok(control.must(&["INFO", "persistence"])?.text().contains(sign))
}

fn wait_for_save(control: &mut Client, sign: &str) -> Result<()> {
    let start = clock::now();
    std::thread::sleep(ASK_INTERVAL);
    while is_saving(control, sign)? {
        if clock::now() - start > SAVE_TIMEOUT {
            return Err("a save takes too long".into());
        }
        std::thread::sleep(ASK_INTERVAL);
    }
    Ok(())
}

/// Writes and pings until some work has ended, or for a while: once for the latencies, and once for
/// the memory. `work` is asked for the work of each time.
pub fn phase(
    server: &Server,
    keys: u32,
    name: &'static str,
    mut work: impl FnMut() -> Result<Option<Work>>,
) -> Result<Phase> {
    let memory_before = server.memory_with_children()?;
    let driven = drive(server, keys, work()?)?;
    server.wait_until_quiet()?;
    let work = work()?;
    let (stop, peak) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let watching = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                // A child that ends meanwhile is not counted.
                if let Ok(bytes) = server.memory_with_children() {
                    peak.fetch_max(bytes, Ordering::Relaxed);
                }
                std::thread::sleep(ASK_INTERVAL);
            }
        });
        let again = drive(server, keys, work);
        stop.store(true, Ordering::Relaxed);
        let _ = watching.join();
        again.map(drop)
    })?;
    let memory_peak = peak.load(Ordering::Relaxed);
    server.wait_until_quiet()?;
    Ok(Phase { name, memory_peak, memory_before, ..driven })
}

fn drive(server: &Server, keys: u32, work: Option<Work>) -> Result<Phase> {
    let mut writer = Probe::connect(server.address)?;
    let mut pinger = Probe::connect(server.address)?;
    let mut asker = Probe::connect(work.as_ref().map_or(server.address, |work| work.whom))?;
    let (mut ping, mut info) = (Vec::new(), Vec::new());
    encode_request(&mut ping, &[b"PING"]);
    let mut random = Random(2);
    let mut latency_ns = Histogram::new_with_max(LATENCY_NS_MAX, 3)?;
    let mut longest_own_pause = Duration::ZERO;
    let mut writes = 0;
    let start = clock::now();
    if let Some(work) = &work {
        let mut request = Vec::new();
        let words: Vec<&[u8]> = work.command.iter().map(|word| word.as_bytes()).collect();
        encode_request(&mut request, &words);
        asker.start(&request, 1, start)?;
        encode_request(&mut info, &[b"INFO", work.section.as_bytes()]);
    }
    let (mut last_turn, mut next_ping, mut next_write) = (start, start, start);
    let mut next_question = start + ASK_INTERVAL;
    let write_interval = Duration::from_secs(WRITES_AT_ONCE) / WRITES_A_SECOND as u32;
    let end = loop {
        let now = clock::now();
        longest_own_pause = longest_own_pause.max(now - last_turn);
        last_turn = now;
        if let Some(took) = pinger.poll()? {
            latency_ns.saturating_record(took.as_nanos() as u64);
        }
        if !pinger.is_outstanding() && now >= next_ping {
            pinger.start(&ping, 1, now)?;
            next_ping = now + PROBE_INTERVAL;
        }
        if writer.poll()?.is_some() {
            writes += WRITES_AT_ONCE;
        }
        if !writer.is_outstanding() && now >= next_write {
            writer.start(&batch(keys, &mut random), WRITES_AT_ONCE, now)?;
            // What could not be sent in time is not made up for.
            next_write = (next_write + write_interval).max(now);
        }
        match &work {
            None if now - start > QUIET => break now,
            None => {}
            Some(work) => {
                let answered = asker.poll()?.is_some();
                let text = String::from_utf8_lossy(&asker.replies);
                // The command itself is answered by a simple string.
                let is_info = text.starts_with('$');
                if answered && is_info && !text.contains(work.sign) {
                    break now;
                }
                if !asker.is_outstanding() && now >= next_question {
                    asker.start(&info, 1, now)?;
                    next_question = now + ASK_INTERVAL;
                }
                if now - start > SAVE_TIMEOUT {
                    return Err(format!("{:?} takes too long", work.command).into());
                }
            }
        }
        // Spinning would take the core that the server's other thread or child wants.
        std::thread::sleep(TURN);
    };
    finish(&mut writer)?;
    Ok(Phase {
        name: "",
        elapsed: end - start,
        latency_ns,
        writes,
        memory_peak: 0,
        memory_before: 0,
        longest_own_pause,
    })
}

fn finish(probe: &mut Probe) -> Result<()> {
    while probe.is_outstanding() {
        probe.poll()?;
    }
    Ok(())
}

/// Some writes to random keys and elements.
fn batch(keys: u32, random: &mut Random) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..ELEMENTS_AT_ONCE {
        let element = random.below(elements(keys));
        // The list keeps its length, about.
        let of_list = if random.below(2) == 0 { "RPUSH" } else { "LPOP" };
        write_element(&mut out, of_list, element, random);
        write_element(&mut out, "HSET", element, random);
        write_element(&mut out, "ZADD", element, random);
    }
    for _ in 3 * ELEMENTS_AT_ONCE..WRITES_AT_ONCE {
        let key = load::key(random.below(u64::from(keys)) as u32);
        encode_request(&mut out, &[b"SET", key.as_bytes(), &value(random)]);
    }
    out
}

/// Times of starts with what a server has saved: the RDB file, the append-only file with it as a
/// base, and one of SETs alone.
fn starts(spec: &ServerSpec, server: &Server, keys: u32) -> Result<Vec<String>> {
    let mut row = vec![spec.name.clone()];
    let folder = server.directory().display().to_string();
    for appendonly in ["no", "yes"] {
        row.push(figure(start_with(spec, &folder, appendonly)?));
    }
    let commands = Server::start_on_all_cores(spec, &["--appendonly", "yes"])?;
    let mut random = Random(3);
    let sets = sets(keys, &mut random);
    let mut control = Client::connect(commands.address)?;
    control.must(&["CONFIG", "SET", "auto-aof-rewrite-percentage", "0"])?;
    Load::connect(commands.address, 1)?.run(&sets, 0)?;
    let folder = commands.directory().display().to_string();
    row.push(figure(start_with(spec, &folder, "yes")?));
    Ok(row)
}

/// Seconds of a start in a folder, the shortest of three. Whoever wrote there lives on and writes
/// no more.
fn start_with(spec: &ServerSpec, folder: &str, appendonly: &str) -> Result<f64> {
    let mut least = f64::MAX;
    for _ in 0..3 {
        let start = clock::now();
        let extra = ["--dir", folder, "--appendonly", appendonly];
        let server = Server::start_on_all_cores(spec, &extra)?;
        least = least.min((clock::now() - start).as_secs_f64());
        drop(server);
    }
    Ok(least)
}

/// What the append-only file costs each SET.
fn logs(spec: &ServerSpec, options: &Options) -> Result<Vec<String>> {
    let mut row = vec![spec.name.clone()];
    let count = if options.quick { LOGGED_WRITES / 20 } else { LOGGED_WRITES };
    let mut random = Random(4);
    let mut build = |count, pipeline| {
        load::Requests::build(count, pipeline, 1, |out| {
            let key = load::key(random.below(100_000) as u32);
            encode_request(out, &[b"SET", key.as_bytes(), &value(&mut random)]);
        })
    };
    let pipelined = build(count, 16);
    for appendonly in ["no", "yes"] {
        let server = Server::start(spec, &["--appendonly", appendonly])?;
        let mut load = Load::connect(server.address, 10)?;
        load.run(&pipelined, 0)?;
        let before = server.cpu()?;
        load.run(&pipelined, 0)?;
        let cpu = server.cpu()?.since(&before);
        row.push(figure(cpu.run_ns as f64 / count as f64));
    }
    let singly = build(count / 4, 1);
    let extra = ["--appendonly", "yes", "--appendfsync", "always"];
    let server = Server::start_on_all_cores(spec, &extra)?;
    let mut load = Load::connect(server.address, WRITERS)?;
    let elapsed = load.run(&singly, 0)?.elapsed;
    row.push(figure((count / 4) as f64 / elapsed.as_secs_f64() / 1e3));
    Ok(row)
}

/// How often a second a file can be synced to which as much is appended as 50 writers do at a time.
fn syncs_a_second() -> Result<f64> {
    let path = std::env::temp_dir().join(format!("bench-peers-{}-sync", std::process::id()));
    let mut file = File::create(&path)?;
    let (start, mut syncs) = (clock::now(), 0);
    let second = Duration::from_secs(1);
    while clock::now() - start < second {
        file.write_all(&[b'x'; 3 * 1024])?;
        file.sync_data()?;
        syncs += 1;
    }
    std::fs::remove_file(&path)?;
    Ok(f64::from(syncs) / (clock::now() - start).as_secs_f64())
}
