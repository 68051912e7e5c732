//! Latency while the keyspace grows from nothing: one connection pipelines SETs of new keys without
//! pause, a second one sends PING and GET in turn, one at a time, about every 200 µs. A structure
//! that rehashes at once shows as a stall.
//!
//! One spinning thread serves both connections. Its own pauses would look like the server's, so the
//! longest is shown.

use crate::client::{Client, Probe};
use crate::load::{self, LATENCY_NS_MAX};
use crate::options::Options;
use crate::report::{self, Section, Table, duration, figure, maybe};
use crate::resp::{Reply, encode_request};
use crate::server::Server;
use crate::sys::CpuTime;
use crate::{Result, clock};
use hdrhistogram::Histogram;
use std::time::Duration;

const PROBE_INTERVAL: Duration = Duration::from_micros(200);
/// SETs under way at most: enough that the server never runs dry, few enough that a probe does not
/// wait long in line.
const IN_FLIGHT: u64 = 64;
/// A probe that took longer counts as a stall.
const STALL: Duration = Duration::from_millis(2);
const VALUE: &[u8] = b"vvv";

struct Growth {
    name: String,
    version: String,
    seconds: f64,
    latency_ns: Histogram<u64>,
    stalls: u64,
    /// Between two turns of the generator's loop.
    longest_own_pause: Duration,
    cpu: CpuTime,
    /// What the server itself recorded as its longest stall, ms, if it keeps such a record.
    own_stall_ms: Option<i64>,
    bytes_per_key: f64,
}

pub fn measure(options: &Options) -> Result<()> {
    let mut results = Vec::new();
    for spec in &options.servers {
        let server = Server::start(spec, &[])?;
        let result = grow(&server, options.growth_keys)
            .map_err(|error| format!("{}: {error}", spec.name))?;
        eprintln!("growth, {}: longest {}", spec.name, duration(result.latency_ns.max()));
        results.push(result);
    }
    publish(options, &results)
}

fn grow(server: &Server, keys: u32) -> Result<Growth> {
    let mut control = Client::connect(server.address)?;
    // Refused where there is no latency monitor; then there is no record of it either.
    let _ = control.call(&["CONFIG", "SET", "latency-monitor-threshold", "1"])?;
    let mut load = Probe::connect(server.address)?;
    let mut probe = Probe::connect(server.address)?;
    let mut ping = Vec::new();
    encode_request(&mut ping, &[b"PING"]);
    let mut get = Vec::new();
    encode_request(&mut get, &[b"GET", load::key(0).as_bytes()]);

    let mut latency_ns = Histogram::new_with_max(LATENCY_NS_MAX, 3)?;
    let (mut stalls, mut probes) = (0, 0_u64);
    let mut longest_own_pause = Duration::ZERO;
    let mut batch = Vec::new();
    let mut next_key = 0;
    let rss_before = server.rss_bytes()?;
    let cpu_before = server.cpu()?;
    let start = clock::now();
    let (mut last_turn, mut next_probe) = (start, start);
    loop {
        let now = clock::now();
        longest_own_pause = longest_own_pause.max(now - last_turn);
        last_turn = now;
        if let Some(took) = probe.poll()? {
            latency_ns.saturating_record(took.as_nanos() as u64);
            stalls += u64::from(took > STALL);
        }
        if !probe.is_outstanding() && now >= next_probe {
            let request = if probes % 2 == 0 { &ping } else { &get };
            probe.start(request, 1, now)?;
            probes += 1;
            next_probe = now + PROBE_INTERVAL;
        }
        load.poll()?;
        if !load.is_outstanding() {
            if next_key == keys {
                break;
            }
            batch.clear();
            let count = IN_FLIGHT.min(u64::from(keys - next_key));
            for _ in 0..count {
                encode_request(&mut batch, &[b"SET", load::key(next_key).as_bytes(), VALUE]);
                next_key += 1;
            }
            load.start(&batch, count, now)?;
        }
    }
    let seconds = (clock::now() - start).as_secs_f64();
    let cpu = server.cpu()?.since(&cpu_before);
    let rss = server.settled_rss_bytes()?;
    Ok(Growth {
        name: server.name.clone(),
        version: server.version.clone(),
        seconds,
        latency_ns,
        stalls,
        longest_own_pause,
        cpu,
        own_stall_ms: longest_event_ms(&control.call(&["LATENCY", "LATEST"])?),
        bytes_per_key: (rss as f64 - rss_before as f64) / f64::from(keys),
    })
}

/// The longest of all events in a reply to LATENCY LATEST: an array of (event, time, latest ms,
/// longest ms, ...).
fn longest_event_ms(reply: &Reply) -> Option<i64> {
    let Reply::Array(events) = reply else {
        return None;
    };
    let longest = events.iter().filter_map(|event| match event {
        Reply::Array(fields) => match fields.get(3) {
            Some(Reply::Integer(ms)) => Some(*ms),
            _ => None,
        },
        _ => None,
    });
    Some(longest.max().unwrap_or(0))
}

fn publish(options: &Options, results: &[Growth]) -> Result<()> {
    let mut latencies =
        Table::new(&["server", "probes", "p50", "p99", "p99.9", "p99.99", "longest", "over 2 ms"]);
    let mut costs = Table::new(&[
        "server",
        "thousand keys/s",
        "CPU ns/key",
        "bytes/key",
        "longest by its own record, ms",
        "generator's longest pause",
        "waited for its core, ms",
    ]);
    for result in results {
        let at = |quantile| duration(result.latency_ns.value_at_quantile(quantile));
        latencies.row(vec![
            result.name.clone(),
            result.latency_ns.len().to_string(),
            at(0.5),
            at(0.99),
            at(0.999),
            at(0.9999),
            duration(result.latency_ns.max()),
            result.stalls.to_string(),
        ]);
        let keys = f64::from(options.growth_keys);
        costs.row(vec![
            result.name.clone(),
            figure(keys / result.seconds / 1e3),
            figure(result.cpu.run_ns as f64 / keys),
            figure(result.bytes_per_key),
            maybe(result.own_stall_ms.map(|ms| ms as f64)),
            duration(result.longest_own_pause.as_nanos() as u64),
            figure(result.cpu.wait_ns as f64 / 1e6),
        ]);
    }
    let section = Section {
        title: "Growth",
        method: format!(
            "From no keys to {}, pipelined SETs of 3-byte values on one connection ({IN_FLIGHT} under way), while another \
             sends PING and GET in turn, one at a time, {} µs apart.",
            options.growth_keys,
            PROBE_INTERVAL.as_micros(),
        ),
        tables: vec![
            ("Latency of the second connection".into(), latencies),
            ("What it cost, and how far to trust it".into(), costs),
        ],
        notes: Vec::new(),
    };
    section.print();
    let versions: Vec<_> =
        results.iter().map(|result| (result.name.clone(), result.version.clone())).collect();
    match &options.out {
        Some(directory) => section.write(directory, &report::facts(options, &versions)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_of_all_latency_events_counts() {
        let event = |ms| {
            Reply::Array(vec![
                Reply::Bulk(b"command".to_vec()),
                Reply::Integer(1_700_000_000),
                Reply::Integer(1),
                Reply::Integer(ms),
            ])
        };
        assert_eq!(longest_event_ms(&Reply::Array(vec![event(3), event(7)])), Some(7));
        assert_eq!(longest_event_ms(&Reply::Array(Vec::new())), Some(0));
        assert_eq!(longest_event_ms(&Reply::Error("ERR unknown command".into())), None);
    }
}
