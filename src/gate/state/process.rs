//! What the server is as a process of the system: its identity, its title, its end.

use crate::clock::Now;
use crate::config::Config;
use crate::sys::process::OomScore;
use crate::sys::random;
use crate::sys::title::Title;

/// SHUTDOWN was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shutdown {
    /// A signal asked for it, which is periodic work: DEBUG PAUSE-CRON puts it off.
    pub by_signal: bool,
    pub save: Option<bool>,
    pub now: bool,
    pub force: bool,
    /// It waits for replicas until then: boot-time clock, microseconds.
    pub waits_until_us: Option<i64>,
}

/// What is fixed from the start on.
#[derive(Clone, Debug)]
pub struct Identity {
    /// 40 hexadecimal digits, new at each start.
    pub run_id: String,
    pub started_us: i64,
    pub started_unix: i64,
    pub executable: String,
    /// The program's name as it was called.
    pub invoked_as: Vec<u8>,
    /// TCP port in use; that of TLS if there is no other.
    pub port: u16,
    /// The port for TLS in use, or 0.
    pub tls_port: u16,
}

impl Identity {
    /// Of a server that starts now.
    pub fn new(config: &Config, now: Now) -> Self {
        Identity {
            run_id: random::hex_id(),
            started_us: now.boot_us,
            started_unix: now.unix_seconds(),
            executable: std::env::current_exe()
                .map_or_else(|_| String::new(), |path| path.to_string_lossy().into_owned()),
            invoked_as: Vec::new(),
            port: config.port,
            tls_port: config.tls_port,
        }
    }
}

/// The process and what is to become of it.
pub struct Process {
    pub identity: Identity,
    pub oom_score: OomScore,
    /// The process' title, of a server that is a program of its own.
    pub title: Option<Title>,
    pub shutdown: Option<Shutdown>,
}

impl Process {
    pub fn new(identity: Identity) -> Self {
        Process { identity, oom_score: OomScore::default(), title: None, shutdown: None }
    }
}
