//! The server: owns all state and runs one turn of the loop, in the order written in
//! [`Server::turn`].
//!
//! A request's way: every ready client is read once, and its bytes are parsed into a batch without
//! copying (as ranges of the arena into which they were read). The keys of the whole batch are
//! prefetched. Then the batch runs through the gate, each client's requests in order. Replies
//! collect in the clients' outputs; at the end of the turn each output is sent in one write. An
//! idle client owns no buffers.
//!
//! - A request: `accept`, `handshake` (TLS), `intake` reads and parses, `batch` prefetches, `run`
//!   runs, `flush` sends.
//! - Besides: `cron` is periodic work, `busy` nested turns during a script or loading, `start` the
//!   start and the end, with `names` (users and renamed commands) and `open_files`, and `driven` a
//!   server in a simulation.
//! - Instead of a start: `check` checks the configuration, `check_system` the machine.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use mio::net::UnixStream;
use mio::{Events, Waker};

use crate::clock::Due;
use crate::durability::{persistence, scripts};
use crate::gate::effect::note_deletions_apart;
use crate::gate::evict::evict;
use crate::gate::limits::evict_clients;
use crate::gate::publish::publish_events;
use crate::gate::{handed, locks, sessions, tracking};
use crate::keyspace::waiting::Until;
use crate::persist::aof::log::Fatal;
use crate::roles::following;
use crate::roles::{arriving, cluster, failover, moving, promoted, replicas, slots};
use crate::state::{Core, State, Task};
use crate::sys::log::warning;
use crate::sys::process::{self, Supervisor};
use crate::sys::random;
use crate::waiting::{confirm, waking};
use intake::{Intake, note_readiness};

pub mod accept;
mod batch;
mod busy;
mod check;
mod check_system;
pub mod cron;
pub mod driven;
mod flush;
mod handshake;
mod intake;
mod names;
mod open_files;
mod run;
pub mod start;

pub use check::{NO_EFFECT, check_config};
pub use check_system::check_system;
pub use names::{RenamedCommands, renamed_commands, user_lines};
pub use open_files::allow_files;
pub use start::NOWHERE;

/// Pages of hash fields checked for due ones in one turn: under a millisecond of work.
const EXPIRE_FIELD_PAGES: usize = 400;
/// Buckets checked for due keys in one turn: also under a millisecond of work.
const EXPIRE_BUCKETS: usize = 400;
/// A turn after which others may have the processor, if the next one only goes on with its work.
/// Unit: microseconds.
const LONG_TURN_US: u64 = 400;

/// The server.
pub struct Server {
    core: Core,
    waker: Arc<Waker>,
    intake: Intake,
    expire_again: bool,
    /// Boot-time clock, microseconds.
    next_cron_us: i64,
    /// The periodic work has run since the last event that was not of the cluster's bus.
    is_quiet: bool,
    next_sample_us: i64,
    next_idle_us: i64,
    next_reload_us: i64,
    /// The signal that asked the server to stop, 0: none. Set by signal handlers and by [`Handle`].
    stop: Arc<AtomicUsize>,
    /// Readable when a signal has come. Never read: each byte is an event of its own.
    signal_wakes: Option<UnixStream>,
    /// A signal came already: a further SIGINT ends the process at once.
    stop_requested: Arc<AtomicBool>,
    stopping: bool,
    ending: Ending,
    supervisor: Supervisor,
    /// `pidfile` was written, and is removed at the end.
    owns_pidfile: bool,
    /// Number of turns, for threads that wait for one to pass.
    turns: Arc<AtomicUsize>,
}

/// A turn's work for clients, borrowing the server's parts: for the loop's own turns, and for
/// nested ones while a script keeps the server busy (`busy`).
struct Turn<'a> {
    core: &'a mut Core,
    intake: &'a mut Intake,
    /// The outer turn has not ended: clients with requests in it
    /// ([`crate::client::readiness::Reading::is_held`]) are skipped.
    is_nested: bool,
}

/// How a server has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    InOrder,
    /// In order, and the program is to start again.
    ToRestart {
        delay: Duration,
    },
    /// Changes could not be made durable. Their replies were not sent. The process's exit code must
    /// show this.
    WithoutChanges,
}

/// Controls a server that runs in another thread.
#[derive(Clone)]
pub struct Handle {
    waker: Arc<Waker>,
    stop: Arc<AtomicUsize>,
    turns: Arc<AtomicUsize>,
}

impl Handle {
    /// Number of ended turns.
    pub fn turns(&self) -> usize {
        self.turns.load(Ordering::SeqCst)
    }

    /// Makes the loop take a turn, after a test moved the clock.
    pub fn wake(&self) -> io::Result<()> {
        self.waker.wake()
    }

    /// Stops the server as SIGTERM does.
    pub fn stop(&self) -> io::Result<()> {
        self.stop.store(15, Ordering::SeqCst);
        self.waker.wake()
    }
}

impl Server {
    pub fn handle(&self) -> Handle {
        let Server { waker, stop, turns, .. } = self;
        Handle { waker: waker.clone(), stop: stop.clone(), turns: turns.clone() }
    }

    /// Runs until SHUTDOWN or a signal.
    pub fn run(&mut self) -> io::Result<Ending> {
        random::seed_statistics();
        let mut events = Events::with_capacity(1024);
        while !self.stopping {
            let timeout = self.timeout();
            if timeout == Some(Duration::ZERO) && self.gives_way() {
                std::thread::yield_now();
            }
            self.turn(&mut events, timeout)?;
        }
        self.finish();
        Ok(self.ending)
    }

    /// One turn of the loop, which waits at most `timeout` for events.
    fn turn(&mut self, events: &mut Events, timeout: Option<Duration>) -> io::Result<()> {
        match self.core.state.net.poll.poll(events, timeout) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
        self.begin_turn(events);
        self.take_in(events);
        self.run_requests();
        // The stream must end with the data that SHUTDOWN has saved: a replica with more data could
        // not continue when this server is back.
        if !self.stopping {
            self.settle();
        }
        self.make_durable();
        if self.ending == Ending::WithoutChanges {
            // No reply may leave.
            return Ok(());
        }
        self.send();
        self.end_turn();
        Ok(())
    }

    fn begin_turn(&mut self, events: &Events) {
        self.core.state.stats.timing.begin_turn();
        self.note_activity(events);
        self.sample_clock();
        self.end_pauses();
        self.take_signal();
        self.expire_fields();
        self.core.state.stats.timing.start();
    }

    /// Reads what has arrived. Other servers come first, so that clients see the primary's earlier
    /// changes, or its loss.
    fn take_in(&mut self, events: &Events) {
        note_readiness(&mut self.core.state, events);
        cluster::turn(&mut self.core.state);
        following::turn(&mut self.core);
        cluster::act(&mut self.core);
        self.clients().take_in(events);
        // Received bytes are a sign of life, so their clients' leases are renewed before any lock
        // is found expired.
        self.core.by_time(sessions::on_time);
        self.core.by_time(locks::on_time);
    }

    /// Runs the clients' requests, and serves the clients that wait for what these have changed.
    fn run_requests(&mut self) {
        self.clients().run_batch();
        self.clients().read_returned();
        self.core.by_time(waking::on_time);
        waking::serve(&mut self.core);
        waking::serve_acks(&mut self.core);
        self.core.by_time(confirm::serve);
        self.core.by_time(moving::turn);
        arriving::turn(&mut self.core.state);
        self.do_tasks();
    }

    /// Makes the changes that are due, and those that a role or a limit demands.
    fn settle(&mut self) {
        self.core.by_time(sessions::on_time);
        self.core.by_time(locks::on_time);
        self.expire();
        self.evict();
        waking::retry(&mut self.core);
        // Locks that have just expired are granted to the next clients in this turn.
        waking::serve(&mut self.core);
        failover::turn(&mut self.core);
        promoted::turn(&mut self.core);
        cluster::end_turn(&mut self.core);
        replicas::ask_for_acks(&mut self.core.state);
        self.core.by_time(scripts::turn);
    }

    /// Writes the turn's changes to the AOF, before replies that show them are sent.
    fn make_durable(&mut self) {
        self.invalidate();
        self.persist();
    }

    /// Sends replies, and what other servers are to know.
    fn send(&mut self) {
        slots::turn(&mut self.core);
        replicas::turn(&mut self.core);
        self.clients().send();
        self.core.keyspace.end_loans();
    }

    fn end_turn(&mut self) {
        persistence::walk(&mut self.core);
        evict_clients(&mut self.core.state);
        if !self.stopping {
            self.cron_if_due();
        }
        self.clients().close_clients();
        self.core.by_time(confirm::take_back_given_up);
        self.core.by_time(locks::take_back);
        self.core.by_time(handed::take_back);
        self.core.state.clients.informed = Default::default();
        self.core.state.stats.timing.end_turn();
        self.turns.fetch_add(1, Ordering::Release);
    }

    /// The part of the turn that concerns clients.
    fn clients(&mut self) -> Turn<'_> {
        let Server { core, intake, .. } = self;
        Turn { core, intake, is_nested: false }
    }

    /// Whether other threads of this processor may run before the next turn, which continues work
    /// that takes many turns. The system delivers packets in one of them when there is much to do,
    /// and would otherwise let requests wait for a whole time slice of this thread.
    fn gives_way(&self) -> bool {
        let state = &self.core.state;
        let is_long = state.stats.timing.last_turn_us() >= LONG_TURN_US;
        let due = || cluster::due(state).min(moving::due(state)).min(slots::due(state));
        is_long && (!state.clients.queues.to_read.is_empty() || due() == Due::NOW)
    }

    /// How long to wait for events: until a key may be due, a timeout, or the periodic work.
    fn timeout(&self) -> Option<Duration> {
        let state = &self.core.state;
        if self.has_work() {
            return Some(Duration::ZERO);
        }
        let due = [
            Due::at(self.next_cron_wake_us()),
            self.due_data(),
            state.persistence.due(&self.core.keyspace),
            following::due(state),
            cluster::due(state),
            moving::due(state),
            promoted::due(state),
            slots::due(state),
            Due::at(state.waits.deadlines.next_us()),
            sessions::due(&self.core),
            locks::due(&self.core),
            confirm::due(state),
        ];
        due.into_iter().min().map(|due| due.left(state.now.boot_us))
    }

    /// Whether the last turn has left work that waits for nothing.
    fn has_work(&self) -> bool {
        let Core { state, keyspace, .. } = &self.core;
        let pending = &state.net.pending;
        self.expire_again
            || !state.clients.queues.to_read.is_empty()
            || !pending.resumed.is_empty()
            || !pending.handshakes.is_empty()
            || !pending.accept_again.is_empty()
            || !state.tasks.is_empty()
            || state.replication.has_more
            || state.net.http.has_work()
            || keyspace.has_awaited_changes()
            || waking::may_retry_moves(&self.core)
            || keyspace.eviction.unfinished
            || keyspace.tracking.is_over(state.config.tracking_table_max_keys)
    }

    /// When time changes the data next, or serves a client.
    fn due_data(&self) -> Due {
        let Core { state, keyspace, .. } = &self.core;
        let now_us = state.now.boot_us;
        let keys = match state.pauses.strictest() {
            // Nothing that time starts changes the data until then.
            Some(pause) => Due::at(pause.until_us),
            // Part of this turn has passed since the clock was read; the deadline is checked
            // against the next reading.
            None => {
                let in_ms = keyspace.next_due_in_ms();
                Due::at(in_ms.map(|ms| now_us.saturating_add(ms.saturating_mul(1000))))
            }
        };
        let is_recovering =
            keyspace.waiting.has_postponed(Until::Grants) && state.is_recovering_locks();
        let recovered = Due::at(is_recovering.then_some(state.locks_recovered_us));
        let alarm_ms = keyspace.waiting.next_alarm_ms();
        let boot_us = |wall_ms: i64| {
            wall_ms.saturating_mul(1000).saturating_sub(state.now.wall_us).saturating_add(now_us)
        };
        let claim_ms = keyspace.waiting.next_claim_ms();
        let claim_us = claim_ms.map(|at_ms| now_us.saturating_add(keyspace.until_lease_us(at_ms)));
        keys.min(recovered).min(Due::at(alarm_ms.map(boot_us))).min(Due::at(claim_us))
    }

    fn sample_clock(&mut self) {
        let now = self.core.state.clock.now();
        self.core.state.now = now;
        self.core.keyspace.set_now(now);
    }

    /// Ends the pauses whose time is up, also those that ended late in the last turn: postponed
    /// requests come before newer ones.
    fn end_pauses(&mut self) {
        if self.core.state.stands_still() {
            self.core.state.end_due_pauses();
        }
        let State { pauses, net, .. } = &mut self.core.state;
        if pauses.strictest().is_none() {
            net.pending.resumed.append(&mut pauses.waiting);
        }
    }

    // ---- end of the turn ------------------------------------------------------------------------

    /// Does the tasks that commands have queued.
    fn do_tasks(&mut self) {
        for task in std::mem::take(&mut self.core.state.tasks) {
            match task {
                Task::Listen => self.listen_again(),
                Task::Resume(id) => self.core.state.net.pending.resumed.push(id),
                Task::Unpause => {
                    self.core.state.net.pending.resumed.append(&mut self.core.state.pauses.waiting)
                }
                Task::RefuseShutdown => self.refuse_shutdown(),
            }
        }
        let waits = self.core.state.debug.cron_paused;
        if let Some(shutdown) =
            self.core.state.process.shutdown.take_if(|order| !(order.by_signal && waits))
        {
            self.shut_down(shutdown);
        }
    }

    /// Adds keys deleted outside of commands to the effects, and publishes their events.
    fn announce_deletions(&mut self) {
        if !self.core.keyspace.deletions.is_empty() {
            note_deletions_apart(&mut self.core);
        }
        if !self.core.keyspace.events.is_empty() {
            publish_events(&mut self.core);
        }
    }

    /// Deletes due hash fields, in a bounded slice. Runs before the turn's commands, so that a key
    /// whose last field has expired is gone for them.
    fn expire_fields(&mut self) {
        self.expire_again =
            !self.core.state.stands_still() && self.core.keyspace.expire_fields(EXPIRE_FIELD_PAGES);
        self.announce_deletions();
    }

    /// Deletes due keys, in a bounded slice.
    fn expire(&mut self) {
        // Paused clients must find the data unchanged; the end of the pause starts a turn.
        if self.core.state.stands_still() {
            self.expire_again = false;
            return;
        }
        let threshold_ms = self.core.state.config.latency_monitor_threshold;
        let start_us = (threshold_ms > 0).then(|| self.core.state.clock.now().boot_us);
        self.expire_again |= self.core.keyspace.expire_due(EXPIRE_BUCKETS);
        self.announce_deletions();
        if let Some(start_us) = start_us {
            let ms = (self.core.state.clock.now().boot_us - start_us) / 1000;
            if ms >= threshold_ms {
                let time = self.core.state.now.unix_seconds();
                self.core.state.stats.latency.add("expire-cycle", time, ms as u64);
            }
        }
    }

    /// Sends invalidation messages about changes outside of commands, and messages to clients that
    /// track prefixes.
    fn invalidate(&mut self) {
        let tracking = &self.core.keyspace.tracking;
        if tracking.is_on() || tracking.has_gone() {
            tracking::end_turn(&mut self.core);
        }
    }

    /// Writes the turn's changes to the AOF. Finishes a save.
    fn persist(&mut self) {
        if self.ending == Ending::WithoutChanges {
            return;
        }
        match persistence::turn(&mut self.core) {
            Ok(ended) => replicas::job_ended(&mut self.core.state, ended),
            Err(fatal) => self.fail(&fatal),
        }
    }

    /// Continues an eviction that exceeded its time limit.
    fn evict(&mut self) {
        if self.core.keyspace.eviction.unfinished {
            evict(&mut self.core);
            self.announce_deletions();
        }
    }
}

/// Ends the process within a nested turn, because changes cannot be made durable.
fn die(state: &State, fatal: &Fatal) -> ! {
    warning!(state, "{fatal}");
    process::end(1);
}
