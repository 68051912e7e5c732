//! CPU per operation: all servers are up at the same time and take turns, case by case and round by round (A B C, B C A,
//! ...), so that the drift of a shared machine falls on all alike. What counts is the server's own time on the core.

use crate::Result;
use crate::cases::{self, CASES, Case, Keys, Setup};
use crate::chart::{Group, grouped_bars};
use crate::client::Client;
use crate::load::{Load, Requests};
use crate::options::Options;
use crate::report::{self, Section, Table, figure, maybe, median};
use crate::resp::Reply;
use crate::server::Server;
use std::fs;

/// One run of a case against a server.
#[derive(Clone, Copy, Debug)]
struct Sample {
    cpu_ns: f64,
    /// The part of `cpu_ns` in user mode; `None` where the run was too short to tell.
    user_ns: Option<f64>,
    thousands_per_second: f64,
    p50_us: f64,
    p99_us: f64,
}

/// A server, the connections to it, and what lies in it.
struct Lane {
    server: Server,
    load: Load,
    control: Client,
    holds: Setup,
}

/// A case at one pipeline depth: samples by server, then by round. No samples where the server refused the request.
struct Line {
    case: &'static Case,
    depth: u64,
    samples: Vec<Vec<Sample>>,
}

/// Requests of a run, by pipeline depth: what takes about a second, or a tenth of it when in a hurry.
fn run_length(options: &Options, case: &Case, depth: u64) -> u64 {
    let requests = match depth {
        0..4 => 100_000,
        4..32 => 500_000,
        _ => 1_000_000,
    };
    let keys = case
        .request
        .iter()
        .filter(|&&argument| argument == cases::KEY)
        .count()
        .max(1);
    let requests = if options.quick {
        requests / 20
    } else {
        requests
    };
    (requests / keys as u64).max(depth * options.connections as u64)
}

/// Measures all cases that were asked for.
pub fn measure(options: &Options) -> Result<()> {
    let mut lanes = Vec::new();
    for spec in &options.servers {
        let server = Server::start(spec, &[])?;
        let load = Load::connect(server.address, options.connections)?;
        let control = Client::connect(server.address)?;
        lanes.push(Lane {
            server,
            load,
            control,
            holds: Setup::Any,
        });
    }
    let versions: Vec<_> = lanes
        .iter()
        .map(|lane| (lane.server.name.clone(), lane.server.version.clone()))
        .collect();
    let begin: Vec<_> = lanes
        .iter()
        .map(|lane| lane.server.cpu())
        .collect::<Result<_>>()?;

    let mut notes = Vec::new();
    let mut lines = Vec::new();
    let mut fill: Option<(Setup, Requests)> = None;
    for case in CASES.iter().filter(|case| options.wants(case.name)) {
        let keys = match case.setup {
            Setup::Some(keys, _) => keys,
            _ => options.keys,
        };
        if let Setup::Each(template) | Setup::Some(_, template) = case.setup
            && fill.as_ref().is_none_or(|(setup, _)| *setup != case.setup)
        {
            let count = u64::from(keys);
            fill = Some((
                case.setup,
                cases::encode(template, Keys::Once, keys, count, 64),
            ));
        }
        for &depth in &options.depths {
            let count = run_length(options, case, depth);
            let requests = cases::encode(case.request, case.keys, keys, count, depth);
            let mut samples = vec![Vec::new(); lanes.len()];
            for round in 0..options.rounds {
                for turn in 0..lanes.len() {
                    let at = (round + turn) % lanes.len();
                    let lane = &mut lanes[at];
                    lane.prepare(case.setup, fill.as_ref().map(|(_, requests)| requests))
                        .map_err(|error| {
                            format!("{}, before {}: {error}", lane.server.name, case.name)
                        })?;
                    let sample = lane
                        .sample(case, &requests)
                        .map_err(|error| format!("{}, {}: {error}", lane.server.name, case.name))?;
                    match sample {
                        Ok(sample) => samples[at].push(sample),
                        Err(refusal) => {
                            let note = format!("{}, {}: {refusal}", lane.server.name, case.name);
                            if !notes.contains(&note) {
                                notes.push(note);
                            }
                        }
                    }
                }
            }
            let line = Line {
                case,
                depth,
                samples,
            };
            eprintln!("{}", line.progress(&versions));
            lines.push(line);
        }
    }
    for (lane, begin) in lanes.iter().zip(&begin) {
        let cpu = lane.server.cpu()?.since(begin);
        let waited = cpu.wait_ns as f64 / (cpu.wait_ns + cpu.run_ns).max(1) as f64;
        if waited > 0.02 {
            let percent = waited * 100.0;
            notes.push(format!(
                "{} waited for its core {percent:.0}% of its time: the machine was busy.",
                lane.server.name
            ));
        }
    }
    drop(lanes);
    publish(options, &versions, &lines, notes)
}

impl Lane {
    /// Brings the keyspace into the state the next case asks for, unless it is in it.
    fn prepare(&mut self, setup: Setup, fill: Option<&Requests>) -> Result<()> {
        if setup == Setup::Any || (setup == self.holds && setup != Setup::Empty) {
            return Ok(());
        }
        // Where FLUSHALL is asynchronous by default, the freeing would be charged to the case that follows.
        if let Reply::Error(_) = self.control.call(&["FLUSHALL", "SYNC"])? {
            self.control.must(&["FLUSHALL"])?;
        }
        if let (Setup::Each(_) | Setup::Some(..), Some(fill)) = (setup, fill) {
            let outcome = self.load.run(fill)?;
            if let Some(error) = outcome.first_error {
                return Err(error.into());
            }
        }
        self.holds = setup;
        self.server.wait_until_quiet()
    }

    /// Runs a case once. The inner error is the server's refusal, which need not end the other measurements.
    fn sample(
        &mut self,
        case: &Case,
        requests: &Requests,
    ) -> Result<std::result::Result<Sample, String>> {
        let before = self.server.cpu()?;
        let outcome = self.load.run(requests)?;
        let cpu = self.server.cpu()?.since(&before);
        if !case.keeps_setup {
            self.holds = Setup::Any;
        }
        if let Some(error) = outcome.first_error {
            return Ok(Err(format!(
                "{} error replies, the first: {error}",
                outcome.errors
            )));
        }
        let count = requests.count() as f64;
        let cpu_ns = cpu.run_ns as f64 / count;
        Ok(Ok(Sample {
            cpu_ns,
            user_ns: cpu.user_share().map(|share| share * cpu_ns),
            thousands_per_second: count / outcome.elapsed.as_secs_f64() / 1e3,
            p50_us: outcome.latency_ns.value_at_quantile(0.5) as f64 / 1e3,
            p99_us: outcome.latency_ns.value_at_quantile(0.99) as f64 / 1e3,
        }))
    }
}

impl Line {
    fn name(&self) -> String {
        format!("{} P{}", self.case.name, self.depth)
    }

    /// The median of one of a server's figures.
    fn median(&self, server: usize, figure: impl Fn(&Sample) -> f64) -> Option<f64> {
        median(&self.samples[server].iter().map(figure).collect::<Vec<_>>())
    }

    fn median_cpu_ns(&self, server: usize) -> Option<f64> {
        self.median(server, |sample| sample.cpu_ns)
    }

    fn least_cpu_ns(&self, server: usize) -> Option<f64> {
        self.samples[server]
            .iter()
            .map(|sample| sample.cpu_ns)
            .min_by(f64::total_cmp)
    }

    /// The subject's CPU divided by a peer's: the median of the rounds' ratios, since the two halves of a ratio were
    /// measured within seconds of each other.
    fn ratio(&self, subject: usize, peer: usize) -> Option<f64> {
        let pairs = self.samples[subject].iter().zip(&self.samples[peer]);
        median(&pairs.map(|(a, b)| a.cpu_ns / b.cpu_ns).collect::<Vec<_>>())
    }

    /// The ratio to the peer with the lowest median.
    fn ratio_to_best(&self, subject: usize) -> Option<f64> {
        let peers = (0..self.samples.len()).filter(|&server| server != subject);
        let best = peers
            .filter_map(|peer| Some((self.median_cpu_ns(peer)?, peer)))
            .min_by(|a, b| a.0.total_cmp(&b.0))?;
        self.ratio(subject, best.1)
    }

    fn progress(&self, versions: &[(String, String)]) -> String {
        let servers = versions
            .iter()
            .enumerate()
            .map(|(server, (name, _))| format!("{name} {}", maybe(self.median_cpu_ns(server))));
        format!(
            "{:<24} ns per operation: {}",
            self.name(),
            servers.collect::<Vec<_>>().join(", ")
        )
    }
}

fn publish(
    options: &Options,
    versions: &[(String, String)],
    lines: &[Line],
    notes: Vec<String>,
) -> Result<()> {
    let subject = options.subject;
    let peers: Vec<usize> = (0..versions.len())
        .filter(|&server| server != subject)
        .collect();
    let name = |server: usize| versions[server].0.as_str();

    let mut heading = vec!["case".to_owned()];
    heading.extend(versions.iter().map(|(name, _)| format!("{name} (least)")));
    heading.extend(
        peers
            .iter()
            .map(|&peer| format!("{}/{}", name(subject), name(peer))),
    );
    if peers.len() > 1 {
        heading.push("to the best".into());
    }
    let mut cpu = Table::new(&heading.iter().map(String::as_str).collect::<Vec<_>>());
    let mut detail = Table::new(&[
        "case",
        "server",
        "user ns",
        "kernel ns",
        "thousand/s",
        "p50 µs",
        "p99 µs",
    ]);
    for line in lines {
        let mut cells = vec![line.name()];
        for server in 0..versions.len() {
            let (median, least) = (line.median_cpu_ns(server), line.least_cpu_ns(server));
            cells.push(match (median, least) {
                (Some(median), Some(least)) => format!("{} ({})", figure(median), figure(least)),
                _ => "-".into(),
            });
        }
        cells.extend(peers.iter().map(|&peer| maybe(line.ratio(subject, peer))));
        if peers.len() > 1 {
            cells.push(maybe(line.ratio_to_best(subject)));
        }
        cpu.row(cells);
        for server in 0..versions.len() {
            let user: Vec<f64> = line.samples[server]
                .iter()
                .filter_map(|s| s.user_ns)
                .collect();
            let user = median(&user);
            let system = user.and_then(|user| Some(line.median_cpu_ns(server)? - user));
            detail.row(vec![
                line.name(),
                name(server).into(),
                maybe(user),
                maybe(system),
                maybe(line.median(server, |sample| sample.thousands_per_second)),
                maybe(line.median(server, |sample| sample.p50_us)),
                maybe(line.median(server, |sample| sample.p99_us)),
            ]);
        }
    }
    let against = if peers.len() > 1 {
        "the best peer"
    } else {
        peers.first().map_or("", |&peer| name(peer))
    };
    let section = Section {
        title: "CPU per operation",
        method: format!(
            "The server's time on its core per operation, as the scheduler counts it, in ns: median of {} rounds in which \
             the servers took turns (and the least of them). {} connections, each with one batch of P requests under way; \
             {} keys of 16 bytes; the server on one core, the load generator on another. MSET of ten keys is one \
             operation. Ratios below 1 mean less CPU. Latency is that of a whole batch.",
            options.rounds, options.connections, options.keys,
        ),
        tables: vec![
            ("CPU, ns per operation".into(), cpu),
            ("User and kernel time, throughput, latency".into(), detail),
        ],
        notes,
    };
    section.print();
    let Some(directory) = &options.out else {
        return Ok(());
    };
    section.write(directory, &report::facts(options, versions))?;
    if peers.is_empty() {
        return Ok(());
    }
    let title = format!("CPU per operation, {} / {against}", name(subject));
    let series: Vec<String> = options
        .depths
        .iter()
        .map(|depth| format!("pipeline {depth}"))
        .collect();
    let groups: Vec<Group> = lines
        .chunk_by(|a, b| a.case.name == b.case.name)
        .map(|lines| Group {
            name: lines[0].case.name.into(),
            values: lines
                .iter()
                .map(|line| line.ratio_to_best(subject))
                .collect(),
        })
        .collect();
    fs::write(
        directory.join("benchmarks.svg"),
        grouped_bars(&title, &series, &groups),
    )?;
    Ok(())
}
