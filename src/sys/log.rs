//! The server's log, in Redis's line format: `pid:role day month year time.ms level message`.
#![allow(unsafe_code)] // localtime_r, as the log tells local time, and syslog.

use std::ffi::CString;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;

use crate::clock::Now;

/// A line's importance. `loglevel` is the least one written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Debug,
    Verbose,
    Notice,
    Warning,
}

/// A log's destination.
#[derive(Clone, Debug)]
pub struct Logger {
    /// The least that is written; None: nothing is.
    pub level: Option<Level>,
    /// The server's role: `M` of a primary, `S` of a replica.
    pub role: char,
    /// None: standard output.
    file: Option<PathBuf>,
    pid: u32,
    syslog: bool,
}

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

impl Logger {
    /// Writes to `file`, opened again for each line so that it can be rotated; an empty name is standard output.
    pub fn new(level: Option<Level>, file: &[u8]) -> Self {
        use std::os::unix::ffi::OsStrExt;
        let file = (!file.is_empty()).then(|| std::ffi::OsStr::from_bytes(file).into());
        Logger { level, role: 'M', file, pid: std::process::id(), syslog: false }
    }

    /// Also writes lines to syslog, with a name and a facility: `user` or `local0` to `local7`.
    pub fn also_to_syslog(&mut self, ident: &[u8], facility: &str) {
        let facility = match facility.strip_prefix("local").and_then(|number| number.parse().ok()) {
            Some(number @ 0..=7) => libc::LOG_LOCAL0 + (number << 3),
            _ => libc::LOG_USER,
        };
        // syslog keeps the pointer, and loggers live as long as the process: the name is never freed.
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
        Logger { level: None, role: 'M', file: Some("/dev/null".into()), pid: 0, syslog: false }
    }

    /// To be called after a fork: lines have the new process ID.
    pub fn pid_changed(&mut self) {
        self.pid = std::process::id();
    }

    /// Writes a line if its level is enabled. File errors are ignored: there is nowhere to report them.
    pub fn write(&self, now: Now, level: Level, message: std::fmt::Arguments<'_>) {
        if self.level.is_none_or(|least| level < least) {
            return;
        }
        let mark = match level {
            Level::Debug => '.',
            Level::Verbose => '-',
            Level::Notice => '*',
            Level::Warning => '#',
        };
        let time = local_time(now);
        let line = format!("{}:{} {time} {mark} {message}\n", self.pid, self.role);
        self.append(line.as_bytes());
        if self.syslog {
            let priority = match level {
                Level::Debug => libc::LOG_DEBUG,
                Level::Verbose => libc::LOG_INFO,
                Level::Notice => libc::LOG_NOTICE,
                Level::Warning => libc::LOG_WARNING,
            };
            let text = message.to_string().replace('\0', "");
            let text = CString::new(text).unwrap_or_default();
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

/// `21 Nov 2026 03:54:00.123`, in the machine's time zone.
fn local_time(now: Now) -> String {
    let seconds: libc::time_t = now.unix_seconds();
    // SAFETY: all-zero bytes are a valid `tm`.
    let mut parts: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to live locals.
    unsafe { libc::localtime_r(&seconds, &mut parts) };
    format!(
        "{:02} {} {} {:02}:{:02}:{:02}.{:03}",
        parts.tm_mday,
        MONTHS[parts.tm_mon.rem_euclid(12) as usize],
        parts.tm_year + 1900,
        parts.tm_hour,
        parts.tm_min,
        parts.tm_sec,
        now.unix().0.rem_euclid(1000),
    )
}
