//! The table of figures: all that the server counts and measures, each with its name, help, unit,
//! kind and source.
//!
//! INFO's lines, `/metrics` and JSON come from this table and from nothing else: a new row appears
//! wherever it has a name. Rows are in INFO's sections and in INFO's order, with a file for each
//! kind of section: `server`, `clients`, `memory`, `persistence`, `counters` (section Stats),
//! `replication`, `commands` (three sections), `locks`, `databases`; `turns` has the loop's own.
//! `exposition` writes Prometheus' text. The `redis_` names of metrics are those that
//! redis_exporter gives INFO's fields.
//!
//! The cost of a reading for `/metrics` does not depend on the number of keys, locks and clients:
//! figures that need a visit to each client are only in INFO ([`Cost::EachClient`]).

pub mod clients;
pub mod commands;
pub mod counters;
pub mod databases;
pub mod exposition;
pub mod locks;
pub mod memory;
pub mod persistence;
pub mod replication;
pub mod server;
pub mod turns;

use std::cell::OnceCell;
use std::fmt::Write;

use crate::config::Compatibility;
use crate::state::Core;
use crate::stats::Counters;
use crate::sys::machine::{self, CpuTimes};
use crate::sys::{alloc, jemalloc};
use exposition::Exposition;
use memory::{MemoryUse, human_bytes};

/// The state at one moment. Values that cost a system call or more are read at most once.
pub struct Reading<'a> {
    pub core: &'a Core,
    used: OnceCell<usize>,
    resident: OnceCell<usize>,
    allocator: OnceCell<jemalloc::AllocatorStats>,
    memory: OnceCell<MemoryUse>,
    cpu: OnceCell<CpuTimes>,
}

impl<'a> Reading<'a> {
    pub fn new(core: &'a Core) -> Self {
        Reading {
            core,
            used: OnceCell::new(),
            resident: OnceCell::new(),
            allocator: OnceCell::new(),
            memory: OnceCell::new(),
            cpu: OnceCell::new(),
        }
    }

    /// Bytes allocated.
    pub fn used(&self) -> usize {
        *self.used.get_or_init(alloc::allocated)
    }

    fn counters(&self) -> &Counters {
        &self.core.state.stats.counters
    }

    pub fn peak(&self) -> usize {
        self.core.state.stats.peak_memory.max(self.used())
    }

    /// Bytes of memory that the system has given.
    pub fn resident(&self) -> usize {
        *self.resident.get_or_init(machine::resident_bytes)
    }

    pub fn allocator(&self) -> jemalloc::AllocatorStats {
        *self.allocator.get_or_init(jemalloc::stats)
    }

    /// Memory by use. Visits each client.
    pub fn memory(&self) -> &MemoryUse {
        self.memory.get_or_init(|| MemoryUse { used: self.used(), ..MemoryUse::measure(self.core) })
    }

    pub fn cpu(&self) -> CpuTimes {
        *self.cpu.get_or_init(machine::cpu_times)
    }
}

/// The value of a figure.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// No value at present: no line, no sample.
    Absent,
    Count(u64),
    Whole(i64),
    /// A number, with this number of digits after the point.
    Decimal(f64, usize),
    Percent(f64),
    /// Bytes; INFO has a second line in a readable unit.
    Bytes(usize),
    /// `ok` or `err`.
    IsFine(bool),
    /// INFO shows the text unchanged, so it must not contain a line break.
    Text(String),
}

macro_rules! counts {
    ($($type:ty),*) => { $(
        impl From<$type> for Value {
            fn from(count: $type) -> Self {
                Value::Count(count as u64)
            }
        }
    )* };
}

// Of a bool: 0 or 1.
counts!(u64, usize, u32, u16, bool);

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Value::Whole(number)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Value::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Value::Text(text)
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Value::Absent, Into::into)
    }
}

impl Value {
    /// The value as a number; None: it is absent, or text.
    pub fn number(&self) -> Option<f64> {
        Some(match self {
            Value::Count(count) => *count as f64,
            Value::Whole(number) => *number as f64,
            Value::Decimal(number, _) | Value::Percent(number) => *number,
            Value::Bytes(bytes) => *bytes as f64,
            Value::IsFine(is_fine) => f64::from(u8::from(*is_fine)),
            Value::Absent | Value::Text(_) => return None,
        })
    }

    /// Appends INFO's line, or two.
    fn write_line(&self, out: &mut String, field: &str) {
        let _ = match self {
            Value::Absent => Ok(()),
            Value::Count(count) => write!(out, "{field}:{count}\r\n"),
            Value::Whole(number) => write!(out, "{field}:{number}\r\n"),
            Value::Decimal(number, digits) => write!(out, "{field}:{number:.digits$}\r\n"),
            Value::Percent(number) => write!(out, "{field}:{number:.2}%\r\n"),
            Value::Bytes(bytes) => {
                write!(out, "{field}:{bytes}\r\n{field}_human:{}\r\n", human_bytes(*bytes))
            }
            Value::IsFine(true) => write!(out, "{field}:ok\r\n"),
            Value::IsFine(false) => write!(out, "{field}:err\r\n"),
            Value::Text(text) => write!(out, "{field}:{text}\r\n"),
        }; // cannot fail
    }
}

/// Whether a figure may go down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        }
    }
}

/// The unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A number of things, or a state.
    One,
    Bytes,
    Seconds,
    Milliseconds,
    Microseconds,
    Percent,
    Ratio,
    /// Seconds since 1970.
    UnixSeconds,
}

impl Unit {
    pub fn name(self) -> &'static str {
        match self {
            Unit::One => "",
            Unit::Bytes => "bytes",
            Unit::Seconds => "seconds",
            Unit::Milliseconds => "milliseconds",
            Unit::Microseconds => "microseconds",
            Unit::Percent => "percent",
            Unit::Ratio => "ratio",
            Unit::UnixSeconds => "Unix seconds",
        }
    }
}

/// The cost of reading a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cost {
    Constant,
    /// Each client is visited: not for `/metrics`.
    EachClient,
}

/// Reads a value.
pub type Read = fn(&Reading<'_>) -> Value;

/// One figure.
pub struct Figure {
    /// Its field in INFO; empty: it has none.
    pub field: &'static str,
    /// Its name in `/metrics`; empty: it has none.
    pub metric: &'static str,
    pub kind: Kind,
    pub unit: Unit,
    pub help: &'static str,
    pub cost: Cost,
    pub read: Read,
}

/// A row of the table.
pub enum Row {
    One(Figure),
    /// Several lines of INFO about things of one kind.
    Lines(fn(&Reading<'_>, &mut String)),
    /// Metrics with labels, about things of one kind.
    Samples(fn(&Reading<'_>, &mut Exposition)),
}

/// A field of INFO that is no metric: a text, or a number of no use in Prometheus.
const fn field(field: &'static str, read: Read) -> Row {
    figure(field, "", Kind::Gauge, Unit::One, "", read)
}

const fn gauge(
    field: &'static str,
    metric: &'static str,
    unit: Unit,
    help: &'static str,
    read: Read,
) -> Row {
    figure(field, metric, Kind::Gauge, unit, help, read)
}

const fn counter(
    field: &'static str,
    metric: &'static str,
    unit: Unit,
    help: &'static str,
    read: Read,
) -> Row {
    figure(field, metric, Kind::Counter, unit, help, read)
}

const fn figure(
    field: &'static str,
    metric: &'static str,
    kind: Kind,
    unit: Unit,
    help: &'static str,
    read: Read,
) -> Row {
    Row::One(Figure { field, metric, kind, unit, help, cost: Cost::Constant, read })
}

/// A figure that is counted by visiting each client.
const fn by_client(field: &'static str, unit: Unit, help: &'static str, read: Read) -> Row {
    let (kind, cost) = (Kind::Gauge, Cost::EachClient);
    Row::One(Figure { field, metric: "", kind, unit, help, cost, read })
}

/// A section of INFO.
pub struct Section {
    /// Lower case; the heading has a capital. Empty: not in INFO.
    pub name: &'static str,
    heading: &'static str,
    /// Shown if no section is requested.
    pub by_default: bool,
    /// Whether `all` has it.
    pub in_all: fn(Compatibility) -> bool,
    pub rows: &'static [Row],
}

const fn section(name: &'static str, heading: &'static str, rows: &'static [Row]) -> Section {
    Section { name, heading, by_default: true, in_all: |_| true, rows }
}

const fn on_request(name: &'static str, heading: &'static str, rows: &'static [Row]) -> Section {
    Section { by_default: false, ..section(name, heading, rows) }
}

/// The whole table.
pub const SECTIONS: &[Section] = &[
    section("server", "Server", server::ROWS),
    Section { in_all: Compatibility::is_valkey, ..on_request("tls", "TLS", server::TLS) },
    section("clients", "Clients", clients::ROWS),
    section("memory", "Memory", memory::ROWS),
    section("persistence", "Persistence", persistence::ROWS),
    section("stats", "Stats", counters::ROWS),
    section("replication", "Replication", replication::ROWS),
    section("cpu", "CPU", turns::CPU),
    Section {
        in_all: Compatibility::is_redis_8,
        ..on_request("hotkeys", "Hotkeys", commands::HOT_KEYS)
    },
    section("modules", "Modules", &[]),
    on_request("commandstats", "Commandstats", commands::CALLS),
    section("errorstats", "Errorstats", commands::ERRORS),
    on_request("latencystats", "Latencystats", commands::LATENCIES),
    section("locks", "Locks", locks::ROWS),
    section("cluster", "Cluster", databases::CLUSTER),
    Section {
        in_all: Compatibility::is_valkey,
        ..on_request("cluster_info", "Cluster Info", databases::CLUSTER_INFO)
    },
    section("keyspace", "Keyspace", databases::ROWS),
    on_request("", "", turns::ROWS),
];

impl Section {
    /// Appends the section as INFO shows it.
    pub fn write_info(&self, reading: &Reading<'_>, out: &mut String) {
        let _ = write!(out, "# {}\r\n", self.heading); // cannot fail
        for row in self.rows {
            match row {
                Row::One(figure) if figure.field.is_empty() => {}
                Row::One(figure) => (figure.read)(reading).write_line(out, figure.field),
                Row::Lines(write) => write(reading, out),
                Row::Samples(_) => {}
            }
        }
    }
}

/// The single figures of the table, without `Lines` and `Samples`.
pub fn figures() -> impl Iterator<Item = &'static Figure> {
    let rows = SECTIONS.iter().flat_map(|section| section.rows);
    rows.filter_map(|row| if let Row::One(figure) = row { Some(figure) } else { None })
}

/// All metrics as Prometheus' text.
pub fn metrics(reading: &Reading<'_>) -> String {
    let mut out = Exposition::default();
    for row in SECTIONS.iter().flat_map(|section| section.rows) {
        match row {
            Row::One(figure) if figure.metric.is_empty() => {}
            Row::One(figure) => {
                if let Some(number) = (figure.read)(reading).number() {
                    out.family(figure.metric, figure.kind.name(), figure.help);
                    out.sample(figure.metric, &[], number);
                }
            }
            Row::Lines(_) => {}
            Row::Samples(write) => write(reading, &mut out),
        }
    }
    out.text()
}

/// Appends a line of INFO.
fn line(out: &mut String, name: &str, value: impl std::fmt::Display) {
    let _ = write!(out, "{name}:{value}\r\n"); // cannot fail
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_metric_has_a_name_of_its_own_and_a_help() {
        let mut seen = HashSet::new();
        let metrics: Vec<_> = figures().filter(|figure| !figure.metric.is_empty()).collect();
        assert!(metrics.len() > 100, "{} metrics", metrics.len());
        for figure in metrics {
            let name = figure.metric;
            assert!(seen.insert(name), "{name} stands there twice");
            assert!(name.starts_with("redis_") || name.starts_with("latchkey_"), "{name}");
            assert!(figure.help.ends_with('.'), "{name}: {}", figure.help);
            assert_eq!(figure.cost, Cost::Constant, "{name} is too expensive");
            let is_total = name.ends_with("_total");
            // redis_exporter's names do not always match the counted things.
            let is_foreign = name.starts_with("redis_");
            assert!(is_total == (figure.kind == Kind::Counter) || is_foreign, "{name}");
        }
    }

    #[test]
    fn a_field_stands_in_one_row_of_its_section() {
        for section in SECTIONS {
            let mut seen = HashSet::new();
            for row in section.rows {
                if let Row::One(figure) = row {
                    let is_new = figure.field.is_empty() || seen.insert(figure.field);
                    assert!(is_new, "{} stands there twice", figure.field);
                }
            }
        }
    }
}
