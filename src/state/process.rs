//! The server as a process: its identity, title and shutdown.

use crate::clock::Now;
use crate::config::Config;
use crate::sys::process::OomScore;
use crate::sys::random;
use crate::sys::restart::Invocation;
use crate::sys::system::Title;

/// A requested shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shutdown {
    /// Requested by a signal, which is handled in periodic work: DEBUG PAUSE-CRON delays it.
    pub by_signal: bool,
    pub save: Option<bool>,
    pub now: bool,
    pub force: bool,
    /// In a cluster: refuse if this node's vote or slots are needed, unless with `force`.
    pub safe: bool,
    /// In a cluster: let a replica that has all data take this primary's place.
    pub failover: bool,
    /// The latest time until which the shutdown waits for replicas: boot-time clock, microseconds.
    pub waits_until_us: Option<i64>,
    /// The program starts again after this delay in milliseconds.
    pub restart_ms: Option<u64>,
}

/// Facts that never change after the start.
#[derive(Clone, Debug)]
pub struct Identity {
    /// 40 hexadecimal digits, new at each start.
    pub run_id: String,
    pub started_us: i64,
    pub started_unix: i64,
    pub executable: String,
    /// The path or name by which the program was called.
    pub invoked_as: Vec<u8>,
    /// TCP port in use; that of TLS if there is no plain one.
    pub port: u16,
    /// The port for TLS in use, or 0.
    pub tls_port: u16,
}

impl Identity {
    /// The identity of a server that starts now.
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

/// The process' identity, title and requested shutdown.
pub struct Process {
    pub identity: Identity,
    pub oom_score: OomScore,
    /// The process title, if the server is a program of its own.
    pub title: Option<Title>,
    pub shutdown: Option<Shutdown>,
    /// How to start the program again, if the server is one of its own.
    pub invocation: Option<Invocation>,
}

impl Process {
    pub fn new(identity: Identity) -> Self {
        Process {
            identity,
            oom_score: OomScore::default(),
            title: None,
            shutdown: None,
            invocation: None,
        }
    }
}
