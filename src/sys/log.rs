//! The server's log, in Redis's line format: `pid:role day month year time.ms level message`; or in
//! Valkey's logfmt and JSON, byte for byte.
//!
//! The logo and the lines of a signal handler (`crash.rs`) never have these formats, as in Valkey.
#![allow(unsafe_code)] // localtime_r, as the log tells local time, and syslog.

use std::ffi::CString;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use crate::clock::Now;

/// A line's importance. `loglevel` is the least one written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Debug,
    Verbose,
    Notice,
    Warning,
}

/// Logs a line of level Verbose, formatted as by `format!`: `verbose!(state, "text {x}")`.
macro_rules! verbose {
    ($state:expr, $($line:tt)*) => {
        $state.log($crate::sys::log::Level::Verbose, format_args!($($line)*))
    };
}
pub(crate) use verbose;

/// Logs a line of level Notice, formatted as by `format!`: `notice!(state, "text {x}")`.
macro_rules! notice {
    ($state:expr, $($line:tt)*) => {
        $state.log($crate::sys::log::Level::Notice, format_args!($($line)*))
    };
}
pub(crate) use notice;

/// Logs a line of level Warning, formatted as by `format!`: `warning!(state, "text {x}")`.
macro_rules! warning {
    ($state:expr, $($line:tt)*) => {
        $state.log($crate::sys::log::Level::Warning, format_args!($($line)*))
    };
}
pub(crate) use warning;

impl Level {
    /// In a legacy line.
    fn mark(self) -> char {
        match self {
            Level::Debug => '.',
            Level::Verbose => '-',
            Level::Notice => '*',
            Level::Warning => '#',
        }
    }

    /// In logfmt and JSON.
    fn word(self) -> &'static str {
        match self {
            Level::Debug => "debug",
            Level::Verbose => "info",
            Level::Notice => "notice",
            Level::Warning => "warning",
        }
    }
}

/// The form of a line. Source: `log-format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineFormat {
    Legacy,
    Logfmt,
    Json,
}

/// The form of a line's time. Source: `log-timestamp-format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeFormat {
    /// `21 Nov 2026 03:54:00.123`, local time.
    Legacy,
    /// `2026-11-21T03:54:00.123+01:00`, local time.
    Iso8601,
    /// Since 1970.
    Milliseconds,
}

/// A log's destination.
#[derive(Clone, Debug)]
pub struct Logger {
    /// The lowest level that is written; None: nothing is.
    pub level: Option<Level>,
    shared: Arc<Shared>,
    /// None: standard output.
    file: Option<PathBuf>,
    pid: u32,
    syslog: bool,
}

/// Settings that change while the server runs, for all clones, including that of crash reports.
#[derive(Debug, Default)]
struct Shared {
    is_replica: AtomicBool,
    /// A [`LineFormat`].
    lines: AtomicU8,
    /// A [`TimeFormat`].
    times: AtomicU8,
}

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

impl Logger {
    /// Writes to `file`, opened again for each line so that it can be rotated; an empty name is
    /// standard output.
    pub fn new(level: Option<Level>, file: &[u8]) -> Self {
        use std::os::unix::ffi::OsStrExt;
        let file = (!file.is_empty()).then(|| std::ffi::OsStr::from_bytes(file).into());
        Logger { level, shared: Arc::default(), file, pid: std::process::id(), syslog: false }
    }

    /// Also writes lines to syslog, with a name and a facility: `user` or `local0` to `local7`.
    pub fn also_to_syslog(&mut self, ident: &[u8], facility: &str) {
        let facility = match facility.strip_prefix("local").and_then(|number| number.parse().ok()) {
            Some(number @ 0..=7) => libc::LOG_LOCAL0 + (number << 3),
            _ => libc::LOG_USER,
        };
        // syslog keeps the pointer, and loggers live as long as the process: the name is never
        // freed.
        let ident = CString::new(ident).unwrap_or_default().into_raw();
        // SAFETY: `ident` ends with a NUL and lives as long as the process.
        unsafe {
            libc::openlog(ident, libc::LOG_PID | libc::LOG_NDELAY | libc::LOG_NOWAIT, facility)
        };
        self.syslog = true;
    }

    /// The log file; None: standard output.
    pub fn path(&self) -> Option<&[u8]> {
        use std::os::unix::ffi::OsStrExt;
        self.file.as_ref().map(|file| file.as_os_str().as_bytes())
    }

    /// Writes text without a line prefix: the logo.
    pub fn write_raw(&self, text: &str) {
        self.append(text.as_bytes());
    }

    /// A logger that writes nothing.
    pub fn silent() -> Self {
        let file = Some("/dev/null".into());
        Logger { level: None, shared: Arc::default(), file, pid: 0, syslog: false }
    }

    /// Sets the role shown in lines: a replica's or a primary's.
    pub fn set_role(&self, is_replica: bool) {
        self.shared.is_replica.store(is_replica, Ordering::Relaxed);
    }

    /// Sets the form of lines and of their times, also for clones.
    pub fn set_format(&self, lines: LineFormat, times: TimeFormat) {
        self.shared.lines.store(lines as u8, Ordering::Relaxed);
        self.shared.times.store(times as u8, Ordering::Relaxed);
    }

    fn format(&self) -> (LineFormat, TimeFormat) {
        let find = |stored: &AtomicU8| stored.load(Ordering::Relaxed);
        let lines = [LineFormat::Legacy, LineFormat::Logfmt, LineFormat::Json];
        let times = [TimeFormat::Legacy, TimeFormat::Iso8601, TimeFormat::Milliseconds];
        let lines = lines.into_iter().find(|format| *format as u8 == find(&self.shared.lines));
        let times = times.into_iter().find(|format| *format as u8 == find(&self.shared.times));
        (lines.unwrap_or(LineFormat::Legacy), times.unwrap_or(TimeFormat::Legacy))
    }

    /// Call this after a fork: lines have the new process ID.
    pub fn pid_changed(&mut self) {
        self.pid = std::process::id();
    }

    /// Writes a line if its level is enabled. File errors are ignored: there is nowhere to report
    /// them.
    pub fn write(&self, now: Now, level: Level, message: std::fmt::Arguments<'_>) {
        if self.level.is_none_or(|least| level < least) {
            return;
        }
        let (lines, times) = self.format();
        let message = message.to_string();
        let line = Line {
            pid: self.pid,
            is_replica: self.shared.is_replica.load(Ordering::Relaxed),
            time: &time_text(times, &local_time(now), now.unix().0),
            level,
            message: &message,
        };
        let line = line.text(lines);
        self.append(line.as_bytes());
        if self.syslog {
            let priority = match level {
                Level::Debug => libc::LOG_DEBUG,
                Level::Verbose => libc::LOG_INFO,
                Level::Notice => libc::LOG_NOTICE,
                Level::Warning => libc::LOG_WARNING,
            };
            let text = CString::new(message.replace('\0', "")).unwrap_or_default();
            // SAFETY: the format takes one string, and both end with a NUL.
            unsafe { libc::syslog(priority, c"%s".as_ptr(), text.as_ptr()) };
        }
    }

    /// File errors are ignored: there is nowhere to report them.
    fn append(&self, bytes: &[u8]) {
        let _ = match &self.file {
            None => std::io::stdout().write_all(bytes),
            Some(path) => OpenOptions::new()
                .append(true)
                .create(true)
                .open(path)
                .and_then(|mut file| file.write_all(bytes)),
        };
    }
}

/// The parts of a line.
struct Line<'a> {
    pid: u32,
    is_replica: bool,
    time: &'a str,
    level: Level,
    message: &'a str,
}

impl Line<'_> {
    /// The line, with its end.
    fn text(&self, format: LineFormat) -> String {
        let Line { pid, is_replica, time, level, message } = *self;
        let (word, role) = (level.word(), if is_replica { "replica" } else { "primary" });
        match format {
            LineFormat::Legacy => {
                let (role, mark) = (if is_replica { 'S' } else { 'M' }, level.mark());
                format!("{pid}:{role} {time} {mark} {message}\n")
            }
            LineFormat::Logfmt => format!(
                "pid={pid} role={role} timestamp=\"{time}\" level={word} message=\"{}\"\n",
                logfmt_text(message)
            ),
            LineFormat::Json => format!(
                "{{\"pid\":{pid},\"role\":\"{role}\",\"timestamp\":\"{time}\",\"level\":\"{word}\",\"message\":\"{}\"}}\n",
                json_text(message)
            ),
        }
    }
}

/// A text for use between quotation marks in logfmt, which has no escapes: characters that would
/// end the value or the line are replaced.
fn logfmt_text(text: &str) -> String {
    let replaced = |c| match c {
        '"' => '\'',
        '\n' | '\r' => ' ',
        other => other,
    };
    text.chars().map(replaced).collect()
}

/// A text escaped for use between quotation marks in JSON (RFC 8259, section 7).
fn json_text(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' | '\\' => escaped.extend(['\\', c]),
            '\n' => escaped.push_str("\\n"),
            '\r' => escaped.push_str("\\r"),
            '\t' => escaped.push_str("\\t"),
            '\x08' => escaped.push_str("\\b"),
            '\x0c' => escaped.push_str("\\f"),
            '\0'..='\x1f' => escaped.push_str(&format!("\\u{:04x}", u32::from(c))),
            other => escaped.push(other),
        }
    }
    escaped
}

/// A time of the machine's time zone, by the second.
fn local_time(now: Now) -> libc::tm {
    let seconds = now.unix_seconds();
    // SAFETY: all-zero bytes are a valid `tm`.
    let mut parts: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to live locals.
    unsafe { libc::localtime_r(&seconds, &mut parts) };
    parts
}

/// A time as a line shows it. `local`: its parts by the second. `unix_ms`: the same time since
/// 1970.
fn time_text(format: TimeFormat, local: &libc::tm, unix_ms: i64) -> String {
    let (year, day, ms) = (local.tm_year + 1900, local.tm_mday, unix_ms.rem_euclid(1000));
    let clock = format!("{:02}:{:02}:{:02}.{ms:03}", local.tm_hour, local.tm_min, local.tm_sec);
    match format {
        TimeFormat::Legacy => {
            let month = MONTHS[local.tm_mon.rem_euclid(12) as usize];
            format!("{day:02} {month} {year} {clock}")
        }
        TimeFormat::Iso8601 => {
            let sign = if local.tm_gmtoff < 0 { '-' } else { '+' };
            let minutes = local.tm_gmtoff.abs() / 60;
            let (month, hours, minutes) = (local.tm_mon + 1, minutes / 60, minutes % 60);
            format!("{year}-{month:02}-{day:02}T{clock}{sign}{hours:02}:{minutes:02}")
        }
        TimeFormat::Milliseconds => unix_ms.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The text that was passed to valkey-server 9.1.2 by DEBUG LOG.
    const HARD: &str = "a\"q\\b\ttab\rcr\nnl\x01\x1f\x7fé\x08\x0c";

    fn line(format: LineFormat, is_replica: bool, level: Level, message: &str) -> String {
        Line { pid: 7, is_replica, time: "T", level, message }.text(format)
    }

    #[test]
    fn lines_are_those_of_valkey() {
        let shown = |format| line(format, false, Level::Warning, HARD);
        assert_eq!(shown(LineFormat::Legacy), format!("7:M T # {HARD}\n"));
        assert_eq!(
            shown(LineFormat::Logfmt),
            "pid=7 role=primary timestamp=\"T\" level=warning \
             message=\"a'q\\b\ttab cr nl\x01\x1f\x7fé\x08\x0c\"\n"
        );
        assert_eq!(
            shown(LineFormat::Json),
            "{\"pid\":7,\"role\":\"primary\",\"timestamp\":\"T\",\"level\":\"warning\",\
             \"message\":\"a\\\"q\\\\b\\ttab\\rcr\\nnl\\u0001\\u001f\x7fé\\b\\f\"}\n"
        );
    }

    #[test]
    fn lines_tell_the_role_and_the_level() {
        let shown = |format, level| line(format, true, level, "m");
        let levels = [
            (Level::Debug, '.', "debug"),
            (Level::Verbose, '-', "info"),
            (Level::Notice, '*', "notice"),
            (Level::Warning, '#', "warning"),
        ];
        for (level, mark, word) in levels {
            assert_eq!(shown(LineFormat::Legacy, level), format!("7:S T {mark} m\n"));
            assert!(
                shown(LineFormat::Logfmt, level)
                    .starts_with(&format!("pid=7 role=replica timestamp=\"T\" level={word} "))
            );
            assert!(shown(LineFormat::Json, level).contains(&format!(
                "\"role\":\"replica\",\"timestamp\":\"T\",\"level\":\"{word}\""
            )));
        }
    }

    /// 5 March 2026 at 07:08:09, this number of seconds east of Greenwich.
    fn at(offset_seconds: i64) -> libc::tm {
        // SAFETY: all-zero bytes are a valid `tm`.
        let zero: libc::tm = unsafe { std::mem::zeroed() };
        libc::tm {
            tm_year: 126,
            tm_mon: 2,
            tm_mday: 5,
            tm_hour: 7,
            tm_min: 8,
            tm_sec: 9,
            tm_gmtoff: offset_seconds,
            ..zero
        }
    }

    #[test]
    fn times_have_three_forms() {
        let shown = |format| time_text(format, &at(0), 1_772_694_489_042);
        assert_eq!(shown(TimeFormat::Legacy), "05 Mar 2026 07:08:09.042");
        assert_eq!(shown(TimeFormat::Iso8601), "2026-03-05T07:08:09.042+00:00");
        assert_eq!(shown(TimeFormat::Milliseconds), "1772694489042");
    }

    #[test]
    fn iso_times_tell_the_time_zone() {
        let zones = [
            (3600, "+01:00"),
            (20_700, "+05:45"),
            (49_500, "+13:45"),
            (-1800, "-00:30"),
            (-12_600, "-03:30"),
            (-36_000, "-10:00"),
        ];
        for (offset, zone) in zones {
            let shown = time_text(TimeFormat::Iso8601, &at(offset), 0);
            assert_eq!(shown, format!("2026-03-05T07:08:09.000{zone}"));
        }
    }

    #[test]
    fn clones_follow_format_and_role() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let logger = Logger::new(Some(Level::Notice), path.as_os_str().as_encoded_bytes());
        let clone = logger.clone();
        logger.set_format(LineFormat::Json, TimeFormat::Milliseconds);
        logger.set_role(true);
        let now = crate::clock::Clock::System.now();
        clone.write(now, Level::Notice, format_args!("b\na"));
        clone.write(now, Level::Verbose, format_args!("below the level"));
        let (pid, ms) = (std::process::id(), now.unix().0);
        assert_eq!(
            std::fs::read_to_string(path).unwrap(),
            format!(
                "{{\"pid\":{pid},\"role\":\"replica\",\"timestamp\":\"{ms}\",\"level\":\"notice\",\"message\":\"b\\na\"}}\n"
            )
        );
    }

    /// The meaning of a JSON string's text between its quotation marks; None: it is none.
    fn read_json(text: &str) -> Option<String> {
        let mut chars = text.chars();
        let mut read = String::new();
        while let Some(c) = chars.next() {
            read.push(match c {
                '"' | '\0'..='\x1f' => return None,
                '\\' => match chars.next()? {
                    c @ ('"' | '\\' | '/') => c,
                    'n' => '\n',
                    'r' => '\r',
                    't' => '\t',
                    'b' => '\x08',
                    'f' => '\x0c',
                    'u' => {
                        let digits: String = chars.by_ref().take(4).collect();
                        char::from_u32(u32::from_str_radix(&digits, 16).ok()?)?
                    }
                    _ => return None,
                },
                other => other,
            });
        }
        Some(read)
    }

    proptest! {
        #[test]
        fn json_stands_for_the_message(message in "(\\PC|[\\x00-\\x7f])*") {
            prop_assert_eq!(read_json(&json_text(&message)), Some(message));
        }

        #[test]
        fn logfmt_is_one_line_with_one_quoted_message(message in "(\\PC|[\\x00-\\x7f])*") {
            let line = line(LineFormat::Logfmt, false, Level::Notice, &message);
            let (_, value) = line.split_once(" message=\"").unwrap();
            let value = value.strip_suffix("\"\n").unwrap();
            prop_assert!(!value.contains(['"', '\n', '\r']));
            prop_assert_eq!(value.chars().count(), message.chars().count());
        }
    }
}
