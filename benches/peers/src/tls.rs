//! TLS: CPU of a GET over it, and how clients fare beside a flood of handshakes that come to
//! nothing.
//!
//! Each server has a certificate on P-256 and asks for none; client and server agree on what the
//! client (rustls) prefers. The flood and the clients it may disturb are driven by one thread, so
//! that they do not take the core from each other.

use crate::client::Client;
use crate::load::{LATENCY_NS_MAX, Load, Random, Requests, key};
use crate::options::Options;
use crate::report::{self, Section, Table, duration, figure, median};
use crate::resp::{ReplyCounter, encode_request};
use crate::server::{Server, ServerSpec};
use crate::wire::Wire;
use crate::{Result, clock};
use hdrhistogram::Histogram;
use mio::net::TcpStream;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use std::collections::VecDeque;
use std::fs;
use std::io::{ErrorKind, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

const VALUE_BYTES: usize = 256;
/// More would leave the CPU's caches, which is what `ops` measures.
const KEYS_MAX: u32 = 100_000;
/// GETs of a round, at pipeline 1 and above.
const GETS: [u64; 2] = [100_000, 400_000];

/// Clients that the flood may disturb, and how often each asks.
const CLIENTS: usize = 50;
const ASK_INTERVAL: Duration = Duration::from_millis(10);
/// Handshakes that are begun and left.
const HALF_OPEN: usize = 1_000;
/// Handshakes that break.
const BROKEN: usize = 10_000;
/// How many of those are connected at the same time.
const BROKEN_AT_ONCE: usize = 50;
/// How long is measured without a flood.
const QUIET: Duration = Duration::from_secs(3);

/// A certificate, and a client's configuration that trusts it; the folder is removed in the end.
struct Trust {
    folder: PathBuf,
    client: Arc<ClientConfig>,
}

impl Drop for Trust {
    fn drop(&mut self) {
        // What cannot be removed is left to the system.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Trust {
    fn new() -> Result<Trust> {
        let folder = std::env::temp_dir().join(format!("bench-peers-{}-tls", std::process::id()));
        fs::create_dir_all(&folder)?;
        let made = rcgen::generate_simple_self_signed(vec![Ipv4Addr::LOCALHOST.to_string()])?;
        fs::write(folder.join("server.crt"), made.cert.pem())?;
        fs::write(folder.join("server.key"), made.signing_key.serialize_pem())?;
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from(made.cert.der().to_vec()))?;
        let client = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        Ok(Trust { folder, client: Arc::new(client) })
    }

    /// A server that takes TLS clients at the address.
    fn start(&self, spec: &ServerSpec) -> Result<(Server, SocketAddr)> {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = free.local_addr()?;
        drop(free);
        let port = address.port().to_string();
        let file = |name: &str| self.folder.join(name).display().to_string();
        let (certificate, key) = (file("server.crt"), file("server.key"));
        let extra = [
            ["--tls-port", &port],
            ["--tls-auth-clients", "no"],
            ["--tls-cert-file", &certificate],
            ["--tls-key-file", &key],
            ["--tls-ca-cert-file", &certificate],
        ];
        Ok((Server::start(spec, extra.as_flattened())?, address))
    }
}

/// A server and its connections.
struct Lane {
    server: Server,
    address: SocketAddr,
    load: Load,
}

pub fn measure(options: &Options) -> Result<()> {
    let trust = Trust::new()?;
    let keys = options.keys.min(KEYS_MAX);
    let (mut lanes, mut notes) = (Vec::new(), Vec::new());
    for spec in &options.servers {
        match trust.start(spec) {
            Ok((server, address)) => {
                fill(&server, keys)?;
                let load = Load::connect_over(address, options.connections, Some(&trust.client))?;
                lanes.push(Lane { server, address, load });
            }
            Err(error) => notes.push(format!("{} has no TLS: {error}.", spec.name)),
        }
    }
    let Some(first) = lanes.first() else {
        return Err("no server has TLS".into());
    };
    let agreed = first.load.agreed().unwrap_or_default();
    let cost = cost(options, &mut lanes, keys)?;
    let flood = flood(&lanes, &trust, keys)?;
    let versions: Vec<_> =
        lanes.iter().map(|lane| (lane.server.name.clone(), lane.server.version.clone())).collect();
    let section = Section {
        title: "TLS",
        method: format!(
            "{agreed}, a certificate on P-256. GETs of {VALUE_BYTES} bytes, {keys} keys, {} connections; medians of {} \
             rounds in which the servers take turns. In the flood {HALF_OPEN} clients send half a ClientHello and \
             wait, then {BROKEN} more, {BROKEN_AT_ONCE} at a time, send garbage, a part of a ClientHello, or a whole \
             one and then garbage; beside them {CLIENTS} clients over TLS each ask once in {} ms. The generator's own \
             pauses look like the server's: the longest is shown.",
            options.connections,
            options.rounds,
            ASK_INTERVAL.as_millis(),
        ),
        tables: vec![
            ("CPU of a GET, ns".into(), cost),
            ("GETs beside a flood of handshakes".into(), flood),
        ],
        notes,
    };
    section.print();
    match &options.out {
        Some(directory) => section.write(directory, &report::facts(options, &versions)),
        None => Ok(()),
    }
}

fn fill(server: &Server, keys: u32) -> Result<()> {
    let mut random = Random(1);
    let mut number = 0;
    let sets = Requests::build(u64::from(keys), 64, 1, |out| {
        let mut value = [0; VALUE_BYTES];
        value.fill_with(|| b'!' + random.below(90) as u8);
        encode_request(out, &[b"SET", key(number).as_bytes(), &value]);
        number += 1;
    });
    Load::connect(server.address, 1)?.run(&sets, 0)?;
    server.wait_until_quiet()
}

/// CPU of a GET by server and pipeline depth, and the subject's to that of the best peer.
fn cost(options: &Options, lanes: &mut [Lane], keys: u32) -> Result<Table> {
    let subject = &options.servers[options.subject].name;
    let mut heading = vec!["pipeline"];
    let names: Vec<String> = lanes.iter().map(|lane| lane.server.name.clone()).collect();
    heading.extend(names.iter().map(String::as_str));
    heading.push("to the best peer");
    let mut table = Table::new(&heading);
    for depth in [1, 16] {
        let count = GETS[usize::from(depth > 1)] / if options.quick { 20 } else { 1 };
        let mut random = Random(2);
        let gets = Requests::build(count, depth, 1, |out| {
            let key = key(random.below(u64::from(keys)) as u32);
            encode_request(out, &[b"GET", key.as_bytes()]);
        });
        let mut samples = vec![Vec::new(); lanes.len()];
        for round in 0..=options.rounds {
            for turn in 0..lanes.len() {
                let at = (round + turn) % lanes.len();
                let lane = &mut lanes[at];
                let before = lane.server.cpu()?;
                if let Some(error) = lane.load.run(&gets, 0)?.first_error {
                    return Err(error.into());
                }
                // The first round warms up.
                if round > 0 {
                    let used = lane.server.cpu()?.since(&before).run_ns;
                    samples[at].push(used as f64 / count as f64);
                }
            }
        }
        let medians: Vec<f64> = samples.iter().filter_map(|all| median(all)).collect();
        let of_peers = names.iter().zip(&medians).filter(|(name, _)| *name != subject);
        let best = of_peers.map(|(_, cost)| *cost).min_by(f64::total_cmp);
        let own = names.iter().position(|name| name == subject);
        let ratio = own.zip(best).map(|(own, best)| medians[own] / best);
        let mut row = vec![depth.to_string()];
        row.extend(medians.iter().map(|&cost| figure(cost)));
        row.push(ratio.map_or("-".into(), |ratio| format!("{ratio:.2}")));
        eprintln!("tls: {}", row.join("  "));
        table.row(row);
    }
    Ok(table)
}

// ---- the flood ----------------------------------------------------------------------------------

/// A client that asks from time to time.
struct Asker {
    wire: Wire,
    counter: ReplyCounter,
    next: Instant,
    /// When it has asked what is not answered.
    asked: Option<Instant>,
}

/// What the askers have seen.
struct Seen {
    latency_ns: Histogram<u64>,
    longest_own_pause: Duration,
    last_turn: Instant,
}

fn flood(lanes: &[Lane], trust: &Trust, keys: u32) -> Result<Table> {
    let mut table = Table::new(&[
        "server",
        "phase",
        "seconds",
        "p50",
        "p99",
        "longest",
        "generator's longest pause",
    ]);
    for lane in lanes {
        let mut askers = askers(lane.address, trust)?;
        let mut random = Random(3);
        let start = clock::now();
        let mut seen = Seen::new()?;
        while clock::now() - start < QUIET {
            turn(&mut askers, keys, &mut random, &mut seen)?;
        }
        let mut row = |phase: &str, start: Instant, seen: &Seen| {
            let row = vec![
                lane.server.name.clone(),
                phase.into(),
                figure((clock::now() - start).as_secs_f64()),
                duration(seen.latency_ns.value_at_quantile(0.5)),
                duration(seen.latency_ns.value_at_quantile(0.99)),
                duration(seen.latency_ns.max()),
                duration(seen.longest_own_pause.as_nanos() as u64),
            ];
            eprintln!("tls: {}", row.join("  "));
            table.row(row);
        };
        row("no flood", start, &seen);

        let hello = hello(trust)?;
        let start = clock::now();
        let mut seen = Seen::new()?;
        let mut waiting = Attackers::default();
        while !waiting.have_sent(HALF_OPEN) {
            if waiting.begun < HALF_OPEN {
                waiting.begin(lane.address, hello[..hello.len() / 2].to_vec())?;
            }
            waiting.push();
            turn(&mut askers, keys, &mut random, &mut seen)?;
        }
        row("half-open", start, &seen);

        let start = clock::now();
        let mut seen = Seen::new()?;
        let mut breaking = Attackers::default();
        while !breaking.have_sent(BROKEN) {
            if breaking.begun < BROKEN && breaking.trying.len() < BROKEN_AT_ONCE {
                let bytes = broken(&hello, breaking.begun);
                breaking.begin(lane.address, bytes)?;
            }
            breaking.push();
            breaking.leave(BROKEN_AT_ONCE);
            turn(&mut askers, keys, &mut random, &mut seen)?;
        }
        row("broken, beside the half-open", start, &seen);
        let mut control = Client::connect(lane.server.address)?;
        control.must(&["PING"])?;
    }
    Ok(table)
}

impl Seen {
    fn new() -> Result<Seen> {
        Ok(Seen {
            latency_ns: Histogram::new_with_max(LATENCY_NS_MAX, 3)?,
            longest_own_pause: Duration::ZERO,
            last_turn: clock::now(),
        })
    }
}

fn askers(address: SocketAddr, trust: &Trust) -> Result<Vec<Asker>> {
    let start = clock::now();
    let asker = |number: usize| -> Result<Asker> {
        Ok(Asker {
            wire: Wire::open(address, Some(&trust.client))?,
            counter: ReplyCounter::default(),
            // Spread, so that one does not wait behind the others.
            next: start + ASK_INTERVAL * number as u32 / CLIENTS as u32,
            asked: None,
        })
    };
    (0..CLIENTS).map(asker).collect()
}

/// Has those ask whose time has come, and takes the answers that are there.
fn turn(askers: &mut [Asker], keys: u32, random: &mut Random, seen: &mut Seen) -> Result<()> {
    let now = clock::now();
    seen.longest_own_pause = seen.longest_own_pause.max(now - seen.last_turn);
    seen.last_turn = now;
    let mut buffer = [0; 4096];
    for asker in askers {
        let Some(asked) = asker.asked else {
            if now >= asker.next {
                let mut request = Vec::new();
                let key = key(random.below(u64::from(keys)) as u32);
                encode_request(&mut request, &[b"GET", key.as_bytes()]);
                asker.counter.expect(1);
                asker.wire.write(&request)?;
                // From when it was to be asked: a generator that is late does not hide a server
                // that is.
                asker.asked = Some(now);
                asker.next = (asker.next + ASK_INTERVAL).max(now);
            }
            continue;
        };
        match asker.wire.read(&mut buffer) {
            Ok(0) => return Err("a client was closed".into()),
            Ok(bytes) => asker.counter.feed(&buffer[..bytes])?,
            Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error.into()),
        }
        if asker.counter.is_done() {
            asker.asked = None;
            seen.latency_ns.saturating_record((clock::now() - asked).as_nanos() as u64);
        }
    }
    Ok(())
}

/// The first message of a handshake.
fn hello(trust: &Trust) -> Result<Vec<u8>> {
    let name = ServerName::from(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let mut bytes = Vec::new();
    ClientConnection::new(trust.client.clone(), name)?.write_tls(&mut bytes)?;
    Ok(bytes)
}

/// What is sent in place of a handshake: garbage, a part of a ClientHello, or a whole one and
/// garbage behind it.
fn broken(hello: &[u8], number: usize) -> Vec<u8> {
    match number % 3 {
        0 => b"GET / HTTP/1.1\r\nno handshake at all\r\n\r\n".to_vec(),
        1 => hello[..1 + number % (hello.len() - 1)].to_vec(),
        _ => [hello, &[0x17; 64]].concat(),
    }
}

/// Connections that send some bytes and read nothing.
#[derive(Default)]
struct Attackers {
    begun: usize,
    /// Those that are not connected yet or have not sent, and what they are to send.
    trying: Vec<(TcpStream, Vec<u8>)>,
    /// Those that have.
    sent: VecDeque<TcpStream>,
    left: usize,
}

impl Attackers {
    fn begin(&mut self, address: SocketAddr, bytes: Vec<u8>) -> Result<()> {
        self.trying.push((TcpStream::connect(address)?, bytes));
        self.begun += 1;
        Ok(())
    }

    /// Sends what can be sent now. Nobody waits for a connection: a full queue would hold up the
    /// generator for a second.
    fn push(&mut self) {
        let mut at = 0;
        while let Some((stream, bytes)) = self.trying.get_mut(at) {
            match stream.write(bytes) {
                Err(error)
                    if [ErrorKind::WouldBlock, ErrorKind::NotConnected].contains(&error.kind()) =>
                {
                    at += 1;
                }
                // If the server has closed already, that is as well.
                _ => self.sent.push_back(self.trying.swap_remove(at).0),
            }
        }
    }

    /// Closes all but so many of those that have sent.
    fn leave(&mut self, kept: usize) {
        while self.sent.len() > kept {
            self.sent.pop_front();
            self.left += 1;
        }
    }

    fn have_sent(&self, count: usize) -> bool {
        self.sent.len() + self.left >= count
    }
}
