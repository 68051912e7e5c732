//! CPU per operation: all servers are up at the same time and take turns, case by case and round by
//! round (A B C, B C A, ...), so that the drift of a shared machine falls on all alike. What counts
//! is the server's own time on the core.

use crate::Result;
use crate::cases::{self, CASES, Case, Keys, Setup};
use crate::chart::{Group, grouped_bars};
use crate::client::Client;
use crate::load::{Load, Requests};
use crate::options::Options;
use crate::report::{self, Section, Table, maybe, median};
use crate::resp::Reply;
use crate::server::Server;
use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

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

/// A case at one pipeline depth: samples by server, then by round. No samples where the server
/// refused the request.
struct Line {
    case: &'static Case,
    depth: u64,
    samples: Vec<Vec<Sample>>,
}

/// What a run may take where more operations would tell no more.
const RUN_MAX: Duration = Duration::from_secs(1);

/// Operations of a run, by pipeline depth: what takes about a second, or a twentieth of it when in
/// a hurry. Where they are slow, [`shortened`] makes them fewer.
fn run_length(options: &Options, case: &Case, depth: u64) -> u64 {
    let requests = match depth {
        0..4 => 100_000,
        4..32 => 500_000,
        _ => 1_000_000,
    };
    let keys = case.request.iter().filter(|&&argument| argument == cases::KEY).count().max(1);
    let requests = if options.quick { requests / 20 } else { requests };
    (requests / keys as u64).max(depth * options.connections as u64)
}

/// How many operations take about [`RUN_MAX`], `count` at most: found by doing a few.
fn shortened(
    options: &Options,
    case: &Case,
    depth: u64,
    count: u64,
    lane: &mut Lane,
) -> Result<u64> {
    let least = depth * options.connections as u64;
    let few = least.max(count / 50);
    let requests = cases::encode(case.request, case.keys, options.keys, few, depth);
    let elapsed = lane.load.run(&requests, heard_bytes(case, few))?.elapsed;
    let whole = RUN_MAX / if options.quick { 20 } else { 1 };
    let fits = few as f64 * whole.as_secs_f64() / elapsed.as_secs_f64();
    Ok(count.min(fits as u64).max(least))
}

/// What each listener of a case gets of so many operations.
fn heard_bytes(case: &Case, count: u64) -> u64 {
    match case.setup {
        Setup::Listeners(1..) => count * cases::message().len() as u64,
        _ => 0,
    }
}

/// Measures all cases that were asked for.
pub fn measure(options: &Options) -> Result<()> {
    let mut lanes = Vec::new();
    for spec in &options.servers {
        let server = Server::start(spec, &[])?;
        let load = Load::connect(server.address, options.connections)?;
        let control = Client::connect(server.address)?;
        lanes.push(Lane { server, load, control, holds: Setup::Any });
    }
    let versions: Vec<_> =
        lanes.iter().map(|lane| (lane.server.name.clone(), lane.server.version.clone())).collect();
    let begin: Vec<_> = lanes.iter().map(|lane| lane.server.cpu()).collect::<Result<_>>()?;

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
            fill = Some((case.setup, cases::encode(template, Keys::Once, keys, count, 64)));
        }
        for &depth in &options.depths {
            let mut count = run_length(options, case, depth);
            if case.keeps_setup {
                let lane = &mut lanes[0];
                lane.prepare(case.setup, fill.as_ref().map(|(_, requests)| requests))?;
                count = shortened(options, case, depth, count, lane)?;
            }
            let requests = cases::encode(case.request, case.keys, keys, count, depth);
            let mut samples = vec![Vec::new(); lanes.len()];
            for round in 0..options.rounds {
                for turn in 0..lanes.len() {
                    let at = (round + turn) % lanes.len();
                    let lane = &mut lanes[at];
                    lane.prepare(case.setup, fill.as_ref().map(|(_, requests)| requests)).map_err(
                        |error| format!("{}, before {}: {error}", lane.server.name, case.name),
                    )?;
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
            let line = Line { case, depth, samples };
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
        let listeners = match setup {
            Setup::Listeners(count) => count,
            _ => 0,
        };
        self.load.listen(listeners as usize, cases::CHANNEL)?;
        if matches!(setup, Setup::Any | Setup::Listeners(_))
            || (setup == self.holds && setup != Setup::Empty)
        {
            return Ok(());
        }
        // Where FLUSHALL is asynchronous by default, the freeing would be charged to the case that
        // follows.
        if let Reply::Error(_) = self.control.call(&["FLUSHALL", "SYNC"])? {
            self.control.must(&["FLUSHALL"])?;
        }
        if let (Setup::Each(_) | Setup::Some(..), Some(fill)) = (setup, fill) {
            let outcome = self.load.run(fill, 0)?;
            if let Some(error) = outcome.first_error {
                return Err(error.into());
            }
        }
        self.holds = setup;
        self.server.wait_until_quiet()
    }

    /// Runs a case once. The inner error is the server's refusal, which need not end the other
    /// measurements.
    fn sample(
        &mut self,
        case: &Case,
        requests: &Requests,
    ) -> Result<std::result::Result<Sample, String>> {
        let before = self.server.cpu()?;
        let outcome = self.load.run(requests, heard_bytes(case, requests.count()))?;
        let cpu = self.server.cpu()?.since(&before);
        if !case.keeps_setup {
            self.holds = Setup::Any;
        }
        if let Some(error) = outcome.first_error {
            // Not the arguments, which fill lines and say nothing.
            let error = error.split(", with args").next().unwrap_or_default();
            return Ok(Err(match outcome.errors {
                few if few < requests.count() => format!("{few} error replies: {error}"),
                _ => error.to_owned(),
            }));
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
        self.samples[server].iter().map(|sample| sample.cpu_ns).min_by(f64::total_cmp)
    }

    /// The subject's CPU divided by a peer's: the median of the rounds' ratios, since the two
    /// halves of a ratio were measured within seconds of each other.
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
        format!("{:<24} ns per operation: {}", self.name(), servers.collect::<Vec<_>>().join(", "))
    }
}

fn publish(
    options: &Options,
    versions: &[(String, String)],
    lines: &[Line],
    notes: Vec<String>,
) -> Result<()> {
    let subject = options.subject;
    let peers: Vec<usize> = (0..versions.len()).filter(|&server| server != subject).collect();
    let name = |server: usize| versions[server].0.as_str();

    let ratio = match peers[..] {
        [peer] => format!("{}/{}", name(subject), name(peer)),
        _ => TO_THE_BEST.to_owned(),
    };
    let mut heading = vec!["case".to_owned()];
    heading.extend(versions.iter().map(|(name, _)| format!("{name} ns")));
    if !peers.is_empty() {
        heading.push(ratio.clone());
    }
    heading.extend(versions.iter().map(|(name, _)| format!("{name} p99 µs")));
    heading.push("commit".into());
    let commit = report::commit();
    let mut cpu = Table::new(&heading.iter().map(String::as_str).collect::<Vec<_>>());
    let mut detail = Table::new(&[
        "case",
        "server",
        "least ns",
        "user ns",
        "kernel ns",
        "thousand/s",
        "p50 µs",
        "p99 µs",
    ]);
    for line in lines {
        let servers = 0..versions.len();
        let p99 = |server: usize| maybe(line.median(server, |sample| sample.p99_us));
        let mut cells = vec![line.name()];
        cells.extend(servers.clone().map(|server| maybe(line.median_cpu_ns(server))));
        if !peers.is_empty() {
            cells.push(maybe(line.ratio_to_best(subject)));
        }
        cells.extend(servers.clone().map(p99));
        cells.push(commit.clone());
        cpu.row(cells);
        for server in servers {
            let user: Vec<f64> = line.samples[server].iter().filter_map(|s| s.user_ns).collect();
            let user = median(&user);
            let system = user.and_then(|user| Some(line.median_cpu_ns(server)? - user));
            detail.row(vec![
                line.name(),
                name(server).into(),
                maybe(line.least_cpu_ns(server)),
                maybe(user),
                maybe(system),
                maybe(line.median(server, |sample| sample.thousands_per_second)),
                maybe(line.median(server, |sample| sample.p50_us)),
                p99(server),
            ]);
        }
    }
    // For the terminal alone: nobody chooses a server by these, and they are long.
    println!("{}", detail.to_text());
    let mut section = Section {
        title: TITLE,
        method: format!(
            "ns: the server's time on its core per operation, as the scheduler counts it, the median of {} rounds in which \
             the servers took turns; `{TO_THE_BEST}` is the ratio to the peer that took less. p99: the latency of a whole \
             batch. {} connections, each with one batch of P operations under way; {} keys of 16 bytes; the server on one \
             core, the load generator on another. MSET of ten keys is one operation, and so is MULTI with all that belongs \
             to it; PUBLISH includes sending the message to all listeners. Each line names the commit of the last run that \
             measured it, perhaps on another machine.",
            options.rounds, options.connections, options.keys,
        ),
        tables: vec![(String::new(), cpu)],
        notes,
    };
    section.print();
    let Some(directory) = &options.out else {
        return Ok(());
    };
    for (new, old) in section.tables.iter_mut().zip(report::former_tables(directory, TITLE)) {
        new.1.take_over(old, place_of);
    }
    section.write(directory, &report::facts(options, versions))?;
    if peers.is_empty() {
        return Ok(());
    }
    let against = match peers[..] {
        [peer] => name(peer),
        _ => "the best peer",
    };
    let title = title_of(name(subject), against);
    let (series, groups) = bars(&section.tables[0].1, &ratio);
    fs::write(directory.join("benchmarks.svg"), grouped_bars(&title, &series, &groups))?;
    Ok(())
}

fn title_of(subject: &str, against: &str) -> String {
    format!("{TITLE}, {subject} / {against}")
}

const TITLE: &str = "CPU per operation";
const TO_THE_BEST: &str = "to the best";

/// Where a line belongs: after the table of cases, then by depth. None: there is no such case.
fn place_of(line: &str) -> Option<(usize, u64)> {
    let (name, depth) = line.rsplit_once(" P")?;
    let case = CASES.iter().position(|case| case.name == name)?;
    Some((case, depth.parse().ok()?))
}

/// A column of the table as a chart: a group each case, a bar each depth.
fn bars(table: &Table, column: &str) -> (Vec<String>, Vec<Group>) {
    let ratios: Vec<((usize, u64), Option<f64>)> = table
        .column(column)
        .filter_map(|(line, ratio)| Some((place_of(line)?, ratio.parse().ok())))
        .collect();
    let depths: BTreeSet<u64> = ratios.iter().map(|((_, depth), _)| *depth).collect();
    let groups = ratios.chunk_by(|a, b| a.0.0 == b.0.0).map(|lines| {
        let of = |depth| lines.iter().find(|((_, other), _)| *other == depth)?.1;
        Group {
            name: CASES[lines[0].0.0].name.into(),
            values: depths.iter().map(|&depth| of(depth)).collect(),
        }
    });
    let groups = groups.collect();
    let series = depths.iter().map(|depth| format!("pipeline {depth}"));
    (series.collect(), groups)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn lines_are_ordered_by_case_and_depth_and_unknown_ones_have_no_place() {
        assert!(place_of("PING P64") < place_of("SET P1"));
        assert!(place_of("SET P16") < place_of("SET P64"));
        assert_eq!(place_of("SOMETHING ELSE P1"), None);
    }

    #[test]
    fn the_chart_has_a_gap_where_a_depth_was_not_measured() {
        let mut table = Table::new(&["case", "to the best"]);
        for (line, ratio) in [("GET P1", "0.5"), ("GET P16", "0.4"), ("PING P16", "-")] {
            table.row(vec![line.into(), ratio.into()]);
        }
        let (series, groups) = bars(&table, "to the best");
        assert_eq!(series, ["pipeline 1", "pipeline 16"]);
        assert_eq!(groups[0].values, [Some(0.5), Some(0.4)]);
        assert_eq!(groups[1].values, [None, None]);
    }

    #[test]
    fn the_chart_shows_the_table_of_the_document() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        let table = &report::former_tables(&directory, TITLE)[0];
        let (series, groups) = bars(table, TO_THE_BEST);
        let chart = grouped_bars(&title_of("latchkey", "the best peer"), &series, &groups);
        let path = directory.join("benchmarks.svg");
        if std::env::var_os("WRITE").is_some() {
            fs::write(&path, &chart).unwrap();
        }
        assert_eq!(fs::read_to_string(path).unwrap(), chart, "WRITE=1 writes it");
    }
}
