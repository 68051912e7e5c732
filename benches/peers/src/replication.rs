//! What replicas cost: the primary's CPU for each SET with none, one and two of them, a replica's
//! for each that it applies, and latency, memory and time while a replica is sent the whole
//! keyspace.
//!
//! The primary has a core of its own for the CPU accounts, its replicas share the generator's and
//! come behind it. For the full synchronisation both have all cores, and writes and PINGs go on as
//! in [`crate::saving`].

use crate::client::Client;
use crate::load::{self, Load, Random};
use crate::options::Options;
use crate::report::{self, Section, Table, figure};
use crate::resp::encode_request;
use crate::saving::{self, Work};
use crate::server::{Server, ServerSpec};
use crate::sys::CpuTime;
use crate::{Result, clock};
use std::io::Read;
use std::net::{Shutdown, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

const PIPELINE: u64 = 16;
const CONNECTIONS: usize = 50;
/// SETs of one round, and of how many keys.
const WRITES: u64 = 1_000_000;
const KEYS: u64 = 100_000;
const REPLICAS_MAX: usize = 2;
/// Replicas that have not caught up by then never will.
const PATIENCE: Duration = Duration::from_secs(60);
/// No waiting for further replicas, and a backlog that one round fits into.
const SETTINGS: [&str; 4] = ["--repl-diskless-sync-delay", "0", "--repl-backlog-size", "256mb"];

pub fn measure(options: &Options) -> Result<()> {
    let mut costs = Table::new(&[
        "server",
        "no replica, CPU ns/SET",
        "one",
        "two",
        "of the replica, CPU ns/SET",
    ]);
    let mut sync = Table::new(&saving::COLUMNS);
    let mut versions = Vec::new();
    for spec in &options.servers {
        let row = costs_of(spec, options, &mut versions)?;
        eprintln!("replication: {}", row.join("  "));
        costs.row(row);
        for row in sync_of(spec, saving::keys(options))? {
            eprintln!("full synchronisation: {}", row.join("  "));
            sync.row(row);
        }
    }
    let section = Section {
        title: "Replication",
        method: format!(
            "SETs of 32 random bytes to {KEYS} keys at pipeline {PIPELINE}, {CONNECTIONS} connections; CPU times are \
             read when the replicas have everything, the median of {} rounds. The full synchronisation sends the data \
             of the section above, under the same writes, until the replica's link is up: once with the replica on the \
             same cores, and once as if it had a machine of its own: then the generator receives the data and drops \
             it. Memory is the primary's.",
            options.rounds
        ),
        tables: vec![("CPU".into(), costs), ("While a replica is sent everything".into(), sync)],
        notes: Vec::new(),
    };
    section.print();
    match &options.out {
        Some(directory) => section.write(directory, &report::facts(options, &versions)),
        None => Ok(()),
    }
}

/// A primary with more and more replicas.
fn costs_of(
    spec: &ServerSpec,
    options: &Options,
    versions: &mut Vec<(String, String)>,
) -> Result<Vec<String>> {
    let count = if options.quick { WRITES / 20 } else { WRITES };
    let mut random = Random(1);
    let requests = load::Requests::build(count, PIPELINE, 1, |out| {
        let key = load::key(random.below(KEYS) as u32);
        let value = saving::value(&mut random);
        encode_request(out, &[b"SET", key.as_bytes(), &value]);
    });
    let primary = Server::start(spec, &SETTINGS)?;
    versions.push((primary.name.clone(), primary.version.clone()));
    let mut load = Load::connect(primary.address, CONNECTIONS)?;
    load.run(&requests, 0)?;
    let mut replicas: Vec<Server> = Vec::new();
    let mut row = vec![spec.name.clone()];
    let mut applied_ns = Vec::new();
    for wanted in 0..=REPLICAS_MAX {
        if replicas.len() < wanted {
            let replica = Server::start_replica(spec, &SETTINGS, false)?;
            follow(&replica, &primary)?;
            replicas.push(replica);
        }
        let mut written_ns = Vec::new();
        // The first one warms up.
        for round in 0..=options.rounds {
            primary.wait_until_quiet()?;
            let accounts = || -> Result<(CpuTime, Option<CpuTime>)> {
                Ok((primary.cpu()?, replicas.first().map(Server::cpu).transpose()?))
            };
            let before = accounts()?;
            load.run(&requests, 0)?;
            for replica in &replicas {
                catch_up(replica, &primary)?;
            }
            let now = accounts()?;
            let each_ns = |now: &CpuTime, before| now.since(before).run_ns as f64 / count as f64;
            if round > 0 {
                written_ns.push(each_ns(&now.0, &before.0));
            }
            if let (Some(now), Some(before), 1, 1..) = (&now.1, &before.1, wanted, round) {
                applied_ns.push(each_ns(now, before));
            }
        }
        row.push(figure(median(written_ns)));
    }
    row.push(figure(median(applied_ns)));
    Ok(row)
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Makes a server the replica of another one, and waits until it has the data.
fn follow(replica: &Server, primary: &Server) -> Result<()> {
    let mut control = Client::connect(replica.address)?;
    let (host, port) = place(primary);
    control.must(&["REPLICAOF", &host, &port])?;
    let start = clock::now();
    while field(&mut control, "master_link_status")? != "up" {
        wait(start)?;
    }
    Ok(())
}

fn place(server: &Server) -> (String, String) {
    (server.address.ip().to_string(), server.address.port().to_string())
}

/// Waits until a replica has applied all that its primary has written.
fn catch_up(replica: &Server, primary: &Server) -> Result<()> {
    let end = field(&mut Client::connect(primary.address)?, "master_repl_offset")?;
    let mut control = Client::connect(replica.address)?;
    let start = clock::now();
    let end: u64 = end.parse()?;
    while field(&mut control, "slave_repl_offset")?.parse::<u64>()? < end {
        wait(start)?;
    }
    Ok(())
}

fn wait(since: std::time::Instant) -> Result<()> {
    if clock::now() - since > PATIENCE {
        return Err("a replica does not catch up".into());
    }
    std::thread::sleep(Duration::from_millis(2));
    Ok(())
}

fn field(control: &mut Client, name: &str) -> Result<String> {
    let reply = control.must(&["INFO", "replication"])?;
    let text = reply.text();
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    Ok(value.ok_or_else(|| format!("INFO without {name}"))?.trim_end().to_owned())
}

/// A replica on a machine of its own, as far as the primary can tell: it takes what it is sent, and
/// does nothing with it.
struct Reader {
    stream: TcpStream,
    thread: Option<JoinHandle<()>>,
}

impl Reader {
    /// Connects, and returns when the primary has taken it for a replica.
    fn follow(primary: &Server) -> Result<Reader> {
        let mut client = Client::connect(primary.address)?;
        client.must(&["REPLCONF", "capa", "eof", "capa", "psync2"])?;
        let mut request = Vec::new();
        encode_request(&mut request, &[b"PSYNC", b"?", b"-1"]);
        client.send(&request)?;
        let stream = client.into_stream();
        let mut reading = stream.try_clone()?;
        let thread = std::thread::spawn(move || {
            let mut buffer = vec![0; 1 << 20];
            // The end of the connection ends it.
            while reading.read(&mut buffer).is_ok_and(|bytes| bytes > 0) {}
        });
        let reader = Reader { stream, thread: Some(thread) };
        let (mut control, start) = (Client::connect(primary.address)?, clock::now());
        while field(&mut control, "connected_slaves")? == "0" {
            wait(start)?;
        }
        Ok(reader)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The primary without a replica, and while one is sent everything.
fn sync_of(spec: &ServerSpec, keys: u32) -> Result<Vec<Vec<String>>> {
    let primary = Server::start_on_all_cores(spec, &SETTINGS)?;
    saving::fill(&primary, keys)?;
    let quiet = saving::phase(&primary, keys, "no replica", || Ok(None))?;
    let (host, port) = place(&primary);
    let mut replica = None;
    let sync = saving::phase(&primary, keys, "full synchronisation", || {
        // Another one has nothing yet.
        let new = replica.insert(Server::start_replica(spec, &SETTINGS, true)?);
        let command = ["REPLICAOF", &host, &port].map(String::from).into();
        let (section, sign) = ("replication", "master_link_status:down");
        Ok(Some(Work { whom: new.address, command, section, sign }))
    })?;
    // It would take its part of the cores.
    drop(replica);
    let mut reader = None;
    let elsewhere = saving::phase(&primary, keys, "the same, replica elsewhere", || {
        reader.take();
        reader = Some(Reader::follow(&primary)?);
        let (whom, command) = (primary.address, vec!["PING".into()]);
        Ok(Some(Work { whom, command, section: "replication", sign: "state=wait_bgsave" }))
    })?;
    Ok([quiet, sync, elsewhere].iter().map(|phase| saving::row_of(spec, phase)).collect())
}
