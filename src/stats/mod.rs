//! Counters and logs: per command, slow requests, latency events.
//!
//! `commands` counts calls, which `timing` measures; `command_log` keeps slow and large ones,
//! `latency` long events, `histogram` durations; `slots` sums up the costs of each hash slot,
//! `hot_keys` those of keys; `history` keeps figures of the last ten minutes.

pub mod command_log;
pub mod commands;
pub mod histogram;
pub mod history;
pub mod hot_keys;
pub mod latency;
pub mod slots;
pub mod timing;

use std::borrow::Cow;
use std::collections::HashMap;

use command_log::CommandLogs;
use commands::CommandStats;
use histogram::Histogram;
use history::History;
use hot_keys::HotKeys;
use latency::LatencyMonitor;
use timing::Timing;

/// The longest code of an error in bytes.
const ERROR_CODE_LEN_MAX: usize = 30;
/// From this number of codes on, Valkey counts further ones that scripts make up as one.
const SCRIPTS_CODES_MAX: usize = 128;

/// All statistics of the server.
pub struct Statistics {
    pub counters: Counters,
    /// By command number.
    pub command_stats: Vec<CommandStats>,
    /// By the error's first word.
    pub error_stats: HashMap<Box<str>, u64>,
    pub command_logs: CommandLogs,
    pub latency: LatencyMonitor,
    pub commands_rate: Rate,
    pub input_rate: Rate,
    pub output_rate: Rate,
    pub turns_rate: Rate,
    /// Microseconds per turn.
    pub turn_time: Rate,
    pub peak_memory: usize,
    /// When that was. Unit: Unix seconds.
    pub peak_memory_unix: i64,
    /// Bytes in use after the start, before any data.
    pub startup_memory: usize,
    pub timing: Timing,
    pub durations: Durations,
    pub history: History,
    /// What HOTKEYS looks at, or has looked at.
    pub hot_keys: Option<Box<HotKeys>>,
}

/// Durations of the server's waits and holds.
#[derive(Debug, Default)]
pub struct Durations {
    /// Waits for locks and permits that were granted.
    pub lock_wait: Histogram,
    /// Locks that have ended.
    pub lock_hold: Histogram,
    /// From the end of a lock to the grant to a client that has waited for it.
    pub lock_handover: Histogram,
}

impl Statistics {
    /// The statistics of a new server with `commands` commands.
    pub fn new(commands: usize) -> Self {
        Statistics {
            counters: Counters::default(),
            command_stats: (0..commands).map(|_| CommandStats::default()).collect(),
            error_stats: HashMap::new(),
            command_logs: CommandLogs::default(),
            latency: LatencyMonitor::default(),
            commands_rate: Rate::default(),
            input_rate: Rate::default(),
            output_rate: Rate::default(),
            turns_rate: Rate::default(),
            turn_time: Rate::default(),
            peak_memory: 0,
            peak_memory_unix: 0,
            startup_memory: 0,
            timing: Timing::new(quanta::Clock::new()),
            durations: Durations::default(),
            history: History::default(),
            hot_keys: None,
        }
    }

    /// Counts an error reply by its code.
    pub fn count_error(&mut self, text: &[u8]) {
        self.count_code(&code_of(text));
    }

    /// Error replies for lack of memory since the start or CONFIG RESETSTAT.
    pub fn out_of_memory_errors(&self) -> u64 {
        self.error_stats.get("OOM").copied().unwrap_or(0)
    }

    /// Counts an error that a script has made up. Only Valkey's dialect limits the number of codes.
    pub fn count_scripts_error(&mut self, text: &[u8], is_valkey: bool) {
        let code = code_of(text);
        let is_over = self.error_stats.len() >= SCRIPTS_CODES_MAX;
        match is_valkey && is_over && !self.error_stats.contains_key(&*code) {
            true => self.count_code("ERRORSTATS_OVERFLOW"),
            false => self.count_code(&code),
        }
    }

    fn count_code(&mut self, code: &str) {
        self.counters.error_replies += 1;
        match self.error_stats.get_mut(code) {
            Some(count) => *count += 1,
            None => drop(self.error_stats.insert(code.into(), 1)),
        }
    }
}

/// An error's first word, if it is short and another one follows; otherwise ERR.
fn code_of(text: &[u8]) -> Cow<'_, str> {
    let space = text.iter().take(ERROR_CODE_LEN_MAX + 1).position(|&byte| byte == b' ');
    let line_end = text.iter().position(|byte| matches!(byte, b'\r' | b'\n'));
    match space.filter(|space| line_end.is_none_or(|end| *space < end)) {
        Some(space) => String::from_utf8_lossy(&text[..space]),
        None => Cow::Borrowed("ERR"),
    }
}

/// Counts since the start or the last `CONFIG RESETSTAT`.
#[derive(Debug, Default)]
pub struct Counters {
    pub connections: u64,
    pub rejected_connections: u64,
    pub commands: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub error_replies: u64,
    pub evicted_clients: u64,
    pub query_buffer_limit_disconnections: u64,
    pub output_buffer_limit_disconnections: u64,
    pub reads: u64,
    pub writes: u64,
    pub pubsub_messages: u64,
    pub expired_slices_exhausted: u64,
    pub acl_denied_auth: u64,
    pub acl_denied_cmd: u64,
    pub acl_denied_key: u64,
    pub acl_denied_channel: u64,
    pub acl_denied_db: u64,
    pub full_syncs: u64,
    pub partial_syncs: u64,
    pub partial_syncs_refused: u64,
    pub replica_bytes_out: u64,
    /// Received by importing slots, and sent by exporting them.
    pub slot_bytes_in: u64,
    pub slot_bytes_out: u64,
    /// Received from the primary.
    pub replication_bytes_in: u64,
    /// Commands of the primary that failed here.
    pub unexpected_error_replies: u64,
}

/// A rate, per second or per another count, over the last 16 samples, taken every 100 ms:
/// `instantaneous_*`.
#[derive(Debug, Default)]
pub struct Rate {
    samples: [u64; 16],
    next: usize,
    last_count: u64,
    last_base: i64,
}

impl Rate {
    /// Adds a sample: the count, and the time in microseconds.
    pub fn sample(&mut self, count: u64, now_us: i64) {
        self.sample_by(count, now_us, 1_000_000);
    }

    /// Adds a sample: a sum and its number of addends; the rate is `unit` times their quotient.
    pub fn sample_by(&mut self, count: u64, base: i64, unit: u64) {
        let elapsed = base - self.last_base;
        if self.last_base != 0 && elapsed > 0 {
            let made = count.saturating_sub(self.last_count);
            self.samples[self.next] = made.saturating_mul(unit) / elapsed as u64;
            self.next = (self.next + 1) % self.samples.len();
        }
        self.last_count = count;
        self.last_base = base;
    }

    /// The mean of the samples, per second or per addend.
    pub fn per_second(&self) -> u64 {
        self.samples.iter().sum::<u64>() / self.samples.len() as u64
    }
}
