//! The server's beginning and end.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mio::{Poll, Waker};

use super::{ARENA_BYTES, Batch, Server, WAKER};
use crate::client::Clients;
use crate::clock::Clock;
use crate::collections::hash::KeyHasher;
use crate::command::apply_config;
use crate::command::table::TABLE;
use crate::config::Config;
use crate::keyspace::Keyspace;
use crate::pubsub::PubSub;
use crate::state::{Identity, Shutdown, State, Timing};
use crate::stats::commands::CommandStats;
use crate::stats::latency::LatencyMonitor;
use crate::stats::slowlog::Slowlog;
use crate::stats::{Counters, Rate};
use crate::sys::log::{Level, Logger};

impl Server {
    /// A server with this configuration and clock, listening. Errors: an address that cannot be listened on, in words.
    pub fn start(config: Config, clock: Clock, logger: Logger) -> Result<Self, String> {
        let told = |what: &str, error: io::Error| format!("{what}: {error}");
        let poll = Poll::new().map_err(|error| told("Failed creating the event loop", error))?;
        let waker = Waker::new(poll.registry(), WAKER)
            .map_err(|error| told("Failed creating the event loop", error))?;
        let now = clock.now();
        let hasher = KeyHasher::new([fastrand::u64(..), fastrand::u64(..)]);
        let keyspace = Keyspace::new(config.databases as usize, hasher, now);
        let identity = Identity {
            run_id: (0..5).map(|_| format!("{:08x}", fastrand::u32(..))).collect(),
            started_us: now.boot_us,
            started_unix: now.unix_seconds(),
            executable: std::env::current_exe()
                .map_or_else(|_| String::new(), |path| path.to_string_lossy().into_owned()),
            port: config.port as u16,
        };
        let commands = &*TABLE;
        let command_stats = commands.commands.iter().map(|_| CommandStats::default()).collect();
        let state = State {
            clients: Clients::default(),
            config,
            commands,
            renamed: HashMap::new(),
            pubsub: PubSub::default(),
            clock,
            now,
            identity,
            logger,
            counters: Counters::default(),
            command_stats,
            error_stats: HashMap::new(),
            slowlog: Slowlog::default(),
            latency: LatencyMonitor::default(),
            commands_rate: Rate::default(),
            input_rate: Rate::default(),
            output_rate: Rate::default(),
            peak_memory: 0,
            listening: Vec::new(),
            monitors: Vec::new(),
            pause: None,
            paused: Vec::new(),
            shutdown: None,
            tasks: Vec::new(),
            timing: Timing::new(quanta::Clock::new()),
        };
        let mut server = Server {
            keyspace,
            state,
            poll,
            waker: Arc::new(waker),
            listeners: Vec::new(),
            accept_again: Vec::new(),
            arena: vec![0; ARENA_BYTES].into_boxed_slice(),
            arena_used: 0,
            batch: Batch::default(),
            read_again: Vec::new(),
            resumed: Vec::new(),
            spare_buffers: Vec::new(),
            expire_again: false,
            next_cron_us: 0,
            next_sample_us: 0,
            stop: Arc::new(AtomicUsize::new(0)),
            stopping: false,
            turns: Arc::new(AtomicUsize::new(0)),
        };
        apply_config(&mut server.keyspace, &mut server.state);
        server.listen()?;
        Ok(server)
    }

    /// Where it listens: TCP addresses, with the port the system chose if it was asked to.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.state.listening
    }

    /// Has SIGTERM and SIGINT end the server in good order.
    pub fn catch_signals(&self) -> io::Result<()> {
        for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
            let stop = Arc::clone(&self.stop);
            signal_hook::flag::register_usize(signal, stop, signal as usize)?;
        }
        Ok(())
    }

    /// Looks whether a signal has come; it has ended the wait for events.
    pub(super) fn take_signal(&mut self) {
        let name = match self.stop.swap(0, Ordering::SeqCst) {
            0 => return,
            2 => "SIGINT",
            _ => "SIGTERM",
        };
        let message = format_args!("Received {name} scheduling shutdown...");
        self.state.log(Level::Warning, message);
        self.shut_down(Shutdown { save: None, now: false, force: false });
    }

    /// Listens anew after CONFIG SET bind, port or unixsocket; the old addresses stay if that fails.
    pub(super) fn listen_again(&mut self) {
        if let Err(text) = self.listen() {
            self.state.log(Level::Warning, format_args!("{text}"));
        }
    }

    /// Ends the loop.
    pub(super) fn shut_down(&mut self, _: Shutdown) {
        self.state.log(Level::Warning, format_args!("User requested shutdown..."));
        self.stopping = true;
    }

    /// The last things before the process ends.
    pub(super) fn finish(&mut self) {
        self.flush();
        let pidfile = &self.state.config.pidfile;
        if !pidfile.is_empty() {
            use std::os::unix::ffi::OsStrExt;
            // Not ours to complain about: it may never have been written.
            let _ = std::fs::remove_file(std::ffi::OsStr::from_bytes(pidfile));
        }
        self.listeners.clear();
        self.state.log(Level::Warning, format_args!("Latchkey is now ready to exit, bye bye..."));
    }
}
