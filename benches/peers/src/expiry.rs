//! How late keys expire. Two measurements:
//!
//! - Few due among many: a number of volatile keys whose time is far off, and 500 keys due at one
//!   moment. A subscriber to the expired events notes how long after the moment each of them is
//!   announced. It stops after 8 s, because servers that find due keys by sampling would take far
//!   longer than anyone would watch.
//! - All due at once: every key has the same deadline. DBSIZE tells when all are gone, a PING every
//!   millisecond what other clients feel meanwhile.

use crate::cases::{self, FAR, KEY, Keys, V3};
use crate::client::{Client, Probe};
use crate::load::{self, LATENCY_NS_MAX, Load, Requests};
use crate::options::Options;
use crate::report::{self, Section, Table, duration, figure};
use crate::resp::{Reply, encode_request};
use crate::server::Server;
use crate::{Result, clock};
use hdrhistogram::Histogram;
use std::thread::sleep;
use std::time::Duration;

const DUE: u32 = 500;
const WATCH: Duration = Duration::from_secs(8);
/// How long a mass of due keys is watched.
const MASS_LIMIT: Duration = Duration::from_secs(60);

/// Few due among many.
struct Lateness {
    /// From the deadline to the event's arrival, ns.
    lag_ns: Histogram<u64>,
    /// The server's CPU from the deadline until the last event or the end of the watch, ms.
    cpu_ms: f64,
}

/// All due at once.
struct Mass {
    /// From the deadline until DBSIZE said 0; `None` if it never did.
    gone_after: Option<Duration>,
    /// What DBSIZE said last.
    left: i64,
    ping_ns: Histogram<u64>,
    cpu_ms: f64,
    wait_ms: f64,
}

pub fn measure(options: &Options) -> Result<()> {
    let mut versions = Vec::new();
    let mut few =
        Table::new(&["server", "announced", "of", "p50", "p99", "longest", "server's CPU, ms"]);
    let mut mass = Table::new(&[
        "server",
        "all gone after",
        "left",
        "PING p50",
        "PING p99",
        "PING longest",
        "server's CPU, ms",
        "waited for its core, ms",
    ]);
    for spec in &options.servers {
        let name = |error| format!("{}: {error}", spec.name);
        let server = Server::start(spec, &["--notify-keyspace-events", "Ex"])?;
        versions.push((server.name.clone(), server.version.clone()));
        let result = few_due(options, &server).map_err(name)?;
        drop(server);
        eprintln!("expiry, {}: {} of {DUE} keys announced", spec.name, result.lag_ns.len());
        let lag = |quantile| match result.lag_ns.is_empty() {
            true => "-".into(),
            false => duration(result.lag_ns.value_at_quantile(quantile)),
        };
        few.row(vec![
            spec.name.clone(),
            result.lag_ns.len().to_string(),
            DUE.to_string(),
            lag(0.5),
            lag(0.99),
            lag(1.0),
            figure(result.cpu_ms),
        ]);

        let server = Server::start(spec, &[])?;
        let result = all_due(options, &server).map_err(name)?;
        let ping = |quantile| duration(result.ping_ns.value_at_quantile(quantile));
        let gone = result.gone_after.map(|after| duration(after.as_nanos() as u64));
        let gone = gone.unwrap_or(format!("not within {} s", MASS_LIMIT.as_secs()));
        eprintln!("expiry, {}: all gone after {gone}", spec.name);
        mass.row(vec![
            spec.name.clone(),
            gone,
            result.left.to_string(),
            ping(0.5),
            ping(0.99),
            duration(result.ping_ns.max()),
            figure(result.cpu_ms),
            figure(result.wait_ms),
        ]);
    }
    let section = Section {
        title: "Expiry",
        method: format!(
            "Few due among many: {DUE} keys due at one moment beside {} volatile keys whose time is a day or more off; \
             the time from then until a subscriber gets the expired event of each, watched for {} s. All due at once: \
             {0} keys with one deadline; from the deadline until DBSIZE says 0, and the latency of a PING every \
             millisecond during it.",
            options.keys,
            WATCH.as_secs(),
        ),
        tables: vec![("Few due among many".into(), few), ("All due at once".into(), mass)],
        notes: Vec::new(),
    };
    section.print();
    match &options.out {
        Some(directory) => section.write(directory, &report::facts(options, &versions)),
        None => Ok(()),
    }
}

/// Runs requests that all must succeed.
fn fill(load: &mut Load, requests: &Requests) -> Result<()> {
    match load.run(requests, 0)?.first_error {
        Some(error) => Err(error.into()),
        None => Ok(()),
    }
}

fn few_due(options: &Options, server: &Server) -> Result<Lateness> {
    let mut load = Load::connect(server.address, 4)?;
    let count = u64::from(options.keys);
    let far = ["SET", KEY, V3, "EX", FAR];
    fill(&mut load, &cases::encode(&far, Keys::Once, options.keys, count, 64))?;
    server.wait_until_quiet()?;

    let mut subscriber = Client::connect(server.address)?;
    subscriber.must(&["SUBSCRIBE", "__keyevent@0__:expired"])?;
    let deadline_ms = clock::wall_us() / 1000 + 1000;
    let at = deadline_ms.to_string();
    let mut number = 0;
    let due = Requests::build(2 * u64::from(DUE), 64, 1, |out| {
        let key = format!("due:{:012}", number / 2);
        match number % 2 {
            0 => encode_request(out, &[b"SET", key.as_bytes(), b"vvv"]),
            _ => encode_request(out, &[b"PEXPIREAT", key.as_bytes(), at.as_bytes()]),
        }
        number += 1;
    });
    // One connection, so that each key is set before its time is.
    fill(&mut Load::connect(server.address, 1)?, &due)?;
    if clock::wall_us() / 1000 >= deadline_ms {
        return Err("setting the keys took longer than their time".into());
    }

    let mut lag_ns = Histogram::new_with_max(LATENCY_NS_MAX, 3)?;
    let end_us = deadline_ms * 1000 + WATCH.as_micros() as i64;
    let before = server.cpu()?;
    while lag_ns.len() < u64::from(DUE) {
        let left_us = end_us - clock::wall_us();
        if left_us <= 0 {
            break;
        }
        subscriber.set_timeout(Duration::from_micros(left_us as u64))?;
        // Time is up, or the connection broke: the server's next measurement will tell.
        let Ok(push) = subscriber.receive() else {
            break;
        };
        let lag_us = clock::wall_us() - deadline_ms * 1000;
        let Reply::Array(push) = push else { continue };
        if push.last().is_some_and(|key| key.text().starts_with("due:")) {
            if lag_us < 0 {
                return Err(format!("a key went {} µs before its time", -lag_us).into());
            }
            lag_ns.saturating_record(lag_us as u64 * 1000);
        }
    }
    let cpu = server.cpu()?.since(&before);
    Ok(Lateness { lag_ns, cpu_ms: cpu.run_ns as f64 / 1e6 })
}

fn all_due(options: &Options, server: &Server) -> Result<Mass> {
    let mut load = Load::connect(server.address, 4)?;
    // The slowest peer sets a million in two seconds on a free core; the deadline is far enough for
    // a quarter of that.
    let allowed_ms = 3000 + i64::from(options.keys) / 150;
    let mut number = 0;
    let mut requests = |at: i64| {
        let at = at.to_string();
        Requests::build(u64::from(options.keys), 64, 1, |out| {
            let key = load::key(number % options.keys);
            encode_request(out, &[b"SET", key.as_bytes(), b"vvv", b"PXAT", at.as_bytes()]);
            number += 1;
        })
    };
    let deadline_ms = clock::wall_us() / 1000 + allowed_ms;
    fill(&mut load, &requests(deadline_ms))?;
    let mut control = Client::connect(server.address)?;
    let held = control.must(&["DBSIZE"])?;
    if held != Reply::Integer(i64::from(options.keys)) || clock::wall_us() / 1000 >= deadline_ms {
        return Err("setting the keys took longer than their time".into());
    }
    let until_ms = deadline_ms - 200 - clock::wall_us() / 1000;
    sleep(Duration::from_millis(u64::try_from(until_ms).unwrap_or(0)));

    let mut ping = Vec::new();
    encode_request(&mut ping, &[b"PING"]);
    let mut size = Vec::new();
    encode_request(&mut size, &[b"DBSIZE"]);
    let mut pinger = Probe::connect(server.address)?;
    let mut counter = Probe::connect(server.address)?;
    let mut ping_ns = Histogram::new_with_max(LATENCY_NS_MAX, 3)?;
    let mut left = i64::from(options.keys);
    let mut gone_after = None;
    let before = server.cpu()?;
    let until_us = deadline_ms * 1000 - clock::wall_us();
    let deadline = clock::now() + Duration::from_micros(u64::try_from(until_us).unwrap_or(0));
    let (mut next_ping, mut next_count) = (clock::now(), deadline);
    loop {
        let now = clock::now();
        // Until the deadline PINGs only warm up.
        if let Some(took) = pinger.poll()?
            && now >= deadline
        {
            ping_ns.saturating_record(took.as_nanos() as u64);
        }
        if !pinger.is_outstanding() && now >= next_ping {
            pinger.start(&ping, 1, now)?;
            next_ping = now + Duration::from_millis(1);
        }
        if counter.poll()?.is_some() {
            left = counter.integer().ok_or("DBSIZE gave no number")?;
            if left == 0 {
                gone_after = Some(now - deadline);
                break;
            }
        }
        if !counter.is_outstanding() && now >= next_count {
            counter.start(&size, 1, now)?;
            next_count = now + Duration::from_millis(10);
        }
        if now >= deadline + MASS_LIMIT {
            break;
        }
    }
    // A PING on its way when the last key went was part of it.
    while pinger.is_outstanding() {
        if let Some(took) = pinger.poll()? {
            ping_ns.saturating_record(took.as_nanos() as u64);
        }
    }
    let cpu = server.cpu()?.since(&before);
    Ok(Mass {
        gone_after,
        left,
        ping_ns,
        cpu_ms: cpu.run_ns as f64 / 1e6,
        wait_ms: cpu.wait_ns as f64 / 1e6,
    })
}
