//! The server's start and end.

use std::ffi::OsStr;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use mio::net::UnixStream;
use mio::{Interest, Poll, Waker};
use sha1::{Digest, Sha1};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::intake::Intake;
use super::names::RenamedCommands;
use super::{Ending, Server, busy};
use crate::client::Client;
use crate::client::life::Suspension;
use crate::clock::Clock;
use crate::collections::hash::KeyHasher;
use crate::command::{
    RESTART_FAILED, TABLE, apply_config, configure_tls, listen, listen_for_http, set_oom_score,
    set_process_title,
};
use crate::config::{Config, ShutdownOptions};
use crate::durability::persistence::Closing;
use crate::durability::{load, persistence};
use crate::gate::sessions;
use crate::keyspace::Keyspace;
use crate::net::listener::Listener;
use crate::net::source::WAKER;
use crate::net::tls::Tls;
use crate::persist::aof::log::Fatal;
use crate::resp::reply::{OutputBuffer, ReplyWriter};
use crate::roles::{cluster, following, replicas, restart, slots};
use crate::state::{Core, PauseCause, Shutdown, State};
use crate::sys::alloc;
use crate::sys::log::{Level, Logger, notice, warning};
use crate::sys::process::{self, Score, Supervisor};
use crate::sys::random;
use crate::sys::restart::Invocation;
use crate::sys::system::Title;

/// The reason why a server that no client could reach does not start.
pub const NOWHERE: &str = "Configured to not listen anywhere, exiting.";

impl Server {
    /// Creates a listening server. Errors: an address that cannot be listened on.
    pub fn start(config: Config, clock: Clock, logger: Logger) -> Result<Self, String> {
        let told = |what: &str, error: io::Error| format!("{what}: {error}");
        random::check()
            .map_err(|error| told("Failed reading the system's random source", error))?;
        let poll = Poll::new().map_err(|error| told("Failed creating the event loop", error))?;
        let waker = Waker::new(poll.registry(), WAKER)
            .map_err(|error| told("Failed creating the event loop", error))?;
        let now = clock.now();
        let hasher = KeyHasher::new(hash_secret(&config));
        let keyspace = Keyspace::new(config.database_count(), hasher, now);
        let state = State::new(&TABLE, config, clock, logger, poll);
        let mut core = Core { keyspace, state };
        let Core { keyspace, state } = &mut core;
        state.now = now;
        if state.config.cluster_enabled {
            keyspace.keep_slots();
            state.node.cluster = Some(Box::new(cluster::alone(state)));
        }
        sessions::gain_authority(&mut core);
        let state = &mut core.state;
        state.serve_while_busy = busy::serve;
        let waker = Arc::new(waker);
        let wakes = waker.clone();
        // If waking fails, the loop still turns once a second.
        state.persistence.set_wake(Arc::new(move || drop(wakes.wake())));
        let mut server = Server {
            core,
            waker,
            intake: Intake::default(),
            expire_again: false,
            next_cron_us: 0,
            is_quiet: false,
            next_sample_us: 0,
            next_idle_us: 0,
            next_reload_us: 0,
            stop: Arc::new(AtomicUsize::new(0)),
            signal_wakes: None,
            stop_requested: Arc::new(AtomicBool::new(false)),
            stopping: false,
            ending: Ending::InOrder,
            supervisor: Supervisor::Nobody,
            owns_pidfile: false,
            turns: Arc::new(AtomicUsize::new(0)),
        };
        server.core.state.persistence.set_stop(server.stop.clone());
        apply_config(&mut server.core);
        if Tls::is_wanted(&server.core.state.config)
            && configure_tls(&mut server.core.state).is_err()
        {
            return Err("Failed to configure TLS. Check logs for more info.".into());
        }
        if let Err(which) = listen(&mut server.core.state) {
            // The address and reason are in the log.
            return Err(format!("Failed listening on {which}, aborting."));
        }
        if let Err(which) = listen_for_http(&mut server.core.state) {
            return Err(format!("Failed listening on {which}, aborting."));
        }
        if server.core.state.config.cluster_enabled {
            cluster::listen(&mut server.core.state)?;
        }
        server.listen_on_unix_socket()?;
        server
            .register_listeners()
            .map_err(|error| told("Failed waiting for connections", error))?;
        server.core.state.stats.startup_memory = alloc::allocated();
        Ok(server)
    }

    /// The TCP addresses in use, with ports chosen by the system.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.core.state.net.listening
    }

    /// Makes SIGTERM and SIGINT shut the server down; a further SIGINT ends the process at once,
    /// with code 1.
    pub fn catch_signals(&mut self) -> io::Result<()> {
        let stop_requested = &self.stop_requested;
        // A signal interrupts a wait for events. The byte that its handler writes ends one that
        // begins right after the loop has looked.
        let (mut wakes, write_end) = UnixStream::pair()?;
        let write_end = OwnedFd::from(write_end);
        let registry = self.core.state.net.poll.registry();
        registry.register(&mut wakes, WAKER, Interest::READABLE)?;
        // Handlers run in the order they were registered: this one sees the flag that an earlier
        // signal has set.
        process::end_at_interrupt(Arc::clone(stop_requested))?;
        for signal in [SIGTERM, SIGINT] {
            let stop = Arc::clone(&self.stop);
            signal_hook::flag::register_usize(signal, stop, signal as usize)?;
            signal_hook::flag::register(signal, Arc::clone(stop_requested))?;
            signal_hook::low_level::pipe::register(signal, write_end.try_clone()?)?;
        }
        self.signal_wakes = Some(wakes);
        Ok(())
    }

    /// Checks for a signal, which has ended the wait for events, and starts the shutdown.
    pub(super) fn take_signal(&mut self) {
        let config = &self.core.state.config;
        let (name, options) = match self.stop.swap(0, Ordering::SeqCst) {
            0 => {
                if self.core.state.process.shutdown.is_none() {
                    // The earlier shutdown was aborted or refused.
                    self.stop_requested.store(false, Ordering::Relaxed);
                }
                return;
            }
            2 => ("SIGINT", config.shutdown_on_sigint),
            _ => ("SIGTERM", config.shutdown_on_sigterm),
        };
        let message = format_args!("Received {name} scheduling shutdown...");
        self.core.state.log(Level::Warning, message);
        let save = match options {
            options if options.contains(ShutdownOptions::SAVE) => Some(true),
            options if options.contains(ShutdownOptions::NOSAVE) => Some(false),
            _ => None,
        };
        let now = options.contains(ShutdownOptions::NOW);
        let force = options.contains(ShutdownOptions::FORCE);
        self.core.state.process.shutdown.get_or_insert(Shutdown {
            by_signal: true,
            save,
            now,
            force,
            safe: options.contains(ShutdownOptions::SAFE),
            failover: options.contains(ShutdownOptions::FAILOVER),
            waits_until_us: None,
            restart_ms: None,
        });
    }

    /// Applies `rename-command`; see [`super::renamed_commands`].
    pub fn rename_commands(&mut self, renamed: RenamedCommands) {
        self.core.state.renamed = renamed;
    }

    /// Sets the process title, if `set-proc-title` is on. `invoked_as`: the path or name the
    /// program was called by.
    pub fn set_title(&mut self, title: Option<Title>, invoked_as: Vec<u8>) {
        self.core.state.process.title = title;
        self.core.state.process.identity.invoked_as = invoked_as;
        if self.core.state.config.set_proc_title {
            set_process_title(&mut self.core.state);
        }
    }

    /// Lets DEBUG start the program again.
    pub fn allow_restart(&mut self, invocation: Option<Invocation>) {
        self.core.state.process.invocation = invocation;
    }

    /// Ends a server whose program is to start again: closes all connections and files.
    pub fn make_way(mut self) -> Option<Invocation> {
        // The new program adds to the score that it finds. Only lowering it needs privileges, and
        // if they are gone, the score stays.
        let _ = self.core.state.process.oom_score.set(Score::Untouched);
        self.core.state.process.invocation.take()
    }

    /// Whether the server has a listener.
    pub fn is_listening(&self) -> bool {
        !self.core.state.net.listeners.is_empty()
    }

    /// Writes the process ID to `pidfile`, if set. A failure is ignored, as in Redis.
    pub fn write_pidfile(&mut self) {
        let pidfile = &self.core.state.config.pidfile;
        if !pidfile.is_empty() {
            let line = format!("{}\n", std::process::id());
            self.owns_pidfile = std::fs::write(OsStr::from_bytes(pidfile), line).is_ok();
        }
    }

    /// Notifies the log and the supervisor that clients are served, and finishes the process'
    /// setup.
    pub fn announce(&mut self, supervisor: Supervisor) {
        self.sample_clock();
        if !self.core.state.net.listening.is_empty() {
            notice!(self.core.state, "Ready to accept connections");
        }
        let config = &self.core.state.config;
        if !config.unixsocket.is_empty() {
            let path = String::from_utf8_lossy(&config.unixsocket);
            notice!(self.core.state, "The server is now ready to accept connections at {path}");
        }
        supervisor.ready();
        self.supervisor = supervisor;
        if (1..1 << 20).contains(&config.maxmemory) {
            warning!(
                self.core.state,
                "WARNING: You specified a maxmemory value that is less than 1MB (current value is {} bytes). Are \
                     you sure this is what you really want?",
                config.maxmemory
            );
        }
        // An error is in the log.
        let _ = set_oom_score(&mut self.core.state);
    }

    /// Registers the listeners that CONFIG SET has opened.
    pub(super) fn listen_again(&mut self) {
        if let Err(error) = self.register_listeners() {
            warning!(self.core.state, "Waiting for connections: {error}");
        }
    }

    /// Loads the data. Call this once, before clients are served. Errors: logged already.
    pub fn load(&mut self) -> Result<(), load::LoadError> {
        self.sample_clock();
        let core = &mut self.core;
        if core.state.config.cluster_enabled {
            let begun = cluster::begin(&mut core.state);
            begun.map_err(|text| load::LoadError::logged(&core.state, text))?;
        }
        let reports_expired = load::reports_expired(&core.state);
        if reports_expired {
            replicas::begin_stream_at_start(&mut core.state);
        }
        let loaded = load::load_at_start(core);
        if reports_expired && loaded.is_ok() {
            replicas::continue_history_of_file(core);
        }
        match loaded {
            Err(error) if error.text.contains(load::INTERRUPTED) => {
                // Only a part of the file is in memory.
                error.log(&self.core.state);
                self.stopping = true;
                Ok(())
            }
            Err(error) => {
                error.log(&self.core.state);
                if !self.core.state.config.appendonly {
                    // The last lines of Redis and Valkey, for which scripts look.
                    let is_valkey = self.core.state.config.compatible_with.is_valkey();
                    let text = match &error.refusal {
                        None => "Terminating server after rdb file reading failure.",
                        Some(_) if is_valkey => {
                            "Fatal error loading the DB, check server logs. Exiting."
                        }
                        Some(_) => "Fatal error loading the DB: Invalid argument. Exiting.",
                    };
                    warning!(self.core.state, "{text}");
                }
                Err(error)
            }
            Ok(()) => {
                replicas::follow_appendonly(&mut self.core, false)
                    .map_err(|text| load::LoadError::logged(&self.core.state, text))?;
                let primary = cluster::primary_at_start(&self.core.state);
                following::follow_at_start(&mut self.core, primary);
                restart::begin(&mut self.core);
                cluster::loaded(&mut self.core)
                    .map_err(|text| load::LoadError::logged(&self.core.state, text))?;
                slots::loaded(&mut self.core);
                if !self.core.state.replication.is_replica() {
                    sessions::gain_authority(&mut self.core);
                }
                Ok(())
            }
        }
    }

    /// Ends the loop, unless it must wait for replicas or saving fails.
    pub(super) fn shut_down(&mut self, mut order: Shutdown) {
        if self.core.state.persistence.loading.is_some() {
            // Memory holds only a part of the data, which can be neither saved nor continued.
            order = Shutdown { save: Some(false), now: true, force: true, ..order };
        }
        if order.waits_until_us.is_none() {
            warning!(self.core.state, "User requested shutdown...");
        }
        if order.safe && !cluster::may_end(&self.core.state, order.force) {
            return self.refuse_shutdown();
        }
        if replicas::hold_shutdown(&mut self.core.state, order) {
            return;
        }
        if order.failover {
            cluster::hand_over(&mut self.core.state);
        }
        if order.waits_until_us.is_some() {
            self.core.state.end_pause(PauseCause::Shutdown);
        }
        if order.save.unwrap_or(!self.core.state.config.save.is_empty()) {
            self.supervisor.saving();
        }
        // The append-only file may have been completed while a script ran.
        self.persist();
        if self.ending == Ending::WithoutChanges {
            return;
        }
        let core = &mut self.core;
        let closing = match persistence::begin_shut_down(core, order.force) {
            Ok(ended) => {
                replicas::job_ended(&mut core.state, ended);
                persistence::shut_down(core, order.save, order.force)
            }
            Err(closing) => closing,
        };
        match closing {
            Closing::Done => {}
            Closing::Refused => {
                warning!(
                    self.core.state,
                    "Errors trying to shut down the server. Check the logs for more information."
                );
                return match order.restart_ms {
                    Some(_) => self.refuse_restart(),
                    None => self.refuse_shutdown(),
                };
            }
            Closing::Failed(fatal) => return self.fail(&fatal),
        }
        match order.restart_ms {
            // A supervisor that hears of the end would not believe in the new beginning.
            Some(ms) => self.ending = Ending::ToRestart { delay: Duration::from_millis(ms) },
            None => self.supervisor.stopping(),
        }
        self.stopping = true;
        self.close_listeners();
    }

    /// Ends the loop, because changes cannot be made durable. No further reply may leave.
    pub(super) fn fail(&mut self, fatal: &Fatal) {
        warning!(self.core.state, "{fatal}");
        (self.stopping, self.ending) = (true, Ending::WithoutChanges);
        self.close_listeners();
    }

    /// Stops accepting connections before the existing ones end: a client whose connection is
    /// closed must not reach this server again.
    fn close_listeners(&mut self) {
        if self.owns_pidfile {
            self.owns_pidfile = false;
            notice!(self.core.state, "Removing the pid file.");
            // Fails harmlessly if it was removed already.
            let _ = std::fs::remove_file(OsStr::from_bytes(&self.core.state.config.pidfile));
        }
        let listeners = &mut self.core.state.net.listeners;
        let had_path = listeners.iter().any(|listener| matches!(listener, Listener::Unix(..)));
        listeners.clear();
        self.core.state.net.http.end();
        self.core.state.net.bus.listen(Vec::new());
        if had_path {
            notice!(self.core.state, "Removing the unix socket file.");
        }
    }

    /// Replies an error to the clients of SHUTDOWN.
    pub(super) fn refuse_shutdown(&mut self) {
        self.refuse("ERR Errors trying to SHUTDOWN. Check logs.");
    }

    fn refuse_restart(&mut self) {
        warning!(self.core.state, "Can't restart: error preparing for shutdown");
        self.refuse(RESTART_FAILED);
    }

    fn refuse(&mut self, text: &str) {
        let has_asked = |client: &&Client| {
            client.suspension() == Suspension::UntilReply && client.blocked.is_none()
        };
        let asked = self.core.state.clients.iter().filter(has_asked);
        let ids: Vec<_> = asked.map(|client| client.id).collect();
        for id in ids {
            self.core.state.clients.release(id);
            if let Some(client) = self.core.state.clients.get_to_push(id) {
                let mut reply = OutputBuffer::default();
                ReplyWriter::new(&mut reply, client.protocol).error(text.as_bytes());
                client.push_reply(&reply);
                self.core.state.net.pending.resumed.push(id);
            }
        }
    }

    /// Cleans up before the process ends.
    pub(super) fn finish(&mut self) {
        self.close_listeners();
        process::kill_children(&mut self.core.state.scripts.debugged);
        if self.ending == Ending::WithoutChanges {
            return;
        }
        replicas::send(&mut self.core.state);
        self.clients().flush();
        cluster::end(&mut self.core.state);
        warning!(self.core.state, "Latchkey is now ready to exit, bye bye...");
    }
}

/// The secret for hashing keys: random, or made of `hash-seed`.
fn hash_secret(config: &Config) -> [u64; 2] {
    if config.hash_seed.is_empty() {
        return [random::number(), random::number()];
    }
    let digest = Sha1::digest(&config.hash_seed);
    let part =
        |from: usize| digest[from..from + 8].iter().fold(0, |sum, &b| sum << 8 | u64::from(b));
    [part(0), part(8)]
}
