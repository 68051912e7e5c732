//! What the server owns besides the keyspace, as commands see it: clients, configuration, statistics, subscriptions.
//!
//! Each part keeps its own invariants; this struct only holds them side by side, so that a handler can borrow one while it
//! writes to another. Nothing here does I/O: what only the loop can do is left as a [`Task`] for it.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;

use mio::Poll;

use crate::acl::Acl;
use crate::client::blocked::Blocking;
use crate::client::{ClientId, Clients};
use crate::clock::{Clock, Now};
use crate::config::Config;
use crate::gate::effect::Effects;
use crate::gate::following::PrimaryLink;
use crate::gate::persistence::Persistence;
use crate::gate::table::{Command, CommandTable};
use crate::gate::users;
use crate::keyspace::Keyspace;
use crate::net::listener::Listener;
use crate::net::network::{Network, SystemNetwork};
use crate::net::outgoing::Outgoing;
use crate::net::tls::Tls;
use crate::persist::rdb::Encoder;
use crate::pubsub::PubSub;
use crate::replication::Replication;
use crate::replication::following::Progress;
use crate::script::{Engine, Scripts};
use crate::stats::command_log::CommandLogs;
use crate::stats::commands::CommandStats;
use crate::stats::latency::LatencyMonitor;
use crate::stats::{Counters, Rate};
use crate::sys::log::{Level, Logger};
use crate::sys::process::OomScore;
use crate::sys::random;
use crate::sys::title::Title;

/// A script can make up error prefixes; the table does not grow with them beyond this.
const ERROR_PREFIXES_MAX: usize = 128;

/// Something a command wants done that only the loop can do, at the end of the turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// `State::listeners` changed: wait for connections at the new ones.
    Listen,
    /// These clients go on with the requests they have sent.
    Resume(ClientId),
    /// CLIENT UNPAUSE, or the pause changed.
    Unpause,
    /// SHUTDOWN ABORT: those who asked for the end are told.
    RefuseShutdown,
}

/// What has come, or may have come, and was left for the next turn: the system will not announce it again.
#[derive(Debug, Default)]
pub struct Pending {
    /// Listeners where connections still wait after a full share was taken.
    pub accept_again: Vec<usize>,
    /// Listeners the system gave no connection, although some may wait: for the next periodic work.
    pub accept_later: Vec<usize>,
    /// Clients to be read in the next turn without waiting: the last read filled its buffer.
    pub read_again: Vec<ClientId>,
    /// Clients that go on with requests they have sent before.
    pub resumed: Vec<ClientId>,
    /// Clients whose handshakes can go on, for the end of the turn; who waited longest first.
    pub handshakes: VecDeque<ClientId>,
    /// Clients that have begun a handshake, and until when it must be over; boot-time clock, microseconds. In that order.
    pub handshaking: VecDeque<(i64, ClientId)>,
}

/// Why clients are paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseCause {
    /// CLIENT PAUSE
    Asked,
    /// SHUTDOWN waits for replicas.
    Shutdown,
    /// FAILOVER waits for a replica.
    Failover,
}

/// Whose requests wait, and until when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// Boot-time clock, microseconds.
    pub until_us: i64,
    /// Only commands that may write wait.
    pub writes_only: bool,
}

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

/// Everything commands act upon besides the keyspace.
pub struct State {
    pub clients: Clients,
    pub config: Config,
    pub commands: &'static CommandTable,
    /// `rename-command`: lower-case new names; None forbids the name.
    pub renamed: HashMap<Box<[u8]>, Option<&'static Command>>,
    pub pubsub: PubSub,
    pub acl: Acl,
    pub clock: Clock,
    /// The turn's sample of the clocks.
    pub now: Now,
    pub identity: Identity,
    pub logger: Logger,
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
    /// Microseconds of a turn.
    pub turn_time: Rate,
    pub peak_memory: usize,
    /// Bytes in use when the server had started, before it had any data.
    pub startup_memory: usize,
    pub replication: Replication,
    /// The connection to the primary that is followed, while there is one.
    pub link: Option<Box<PrimaryLink>>,
    /// Sockets that take connections: the Unix socket first, which stays, then TCP. Their tokens follow from their places.
    pub listeners: Vec<Listener>,
    /// TCP addresses listened on, those for TLS last.
    pub listening: Vec<SocketAddr>,
    /// What connections over TLS are made from, once the configuration has asked for it.
    pub tls: Option<Tls>,
    monitors: Vec<ClientId>,
    pub blocking: Blocking,
    pub scripts: Scripts,
    pub effects: Effects,
    pub persistence: Persistence,
    /// How a primary is reached.
    pub network: Box<dyn Network>,
    /// Connections to other servers, kept for the next MIGRATE.
    pub outgoing: Outgoing,
    /// See [`State::payload_encoder`]; and whether it compresses.
    encoder: Option<(bool, Box<Encoder>)>,
    /// Serves other clients for a moment while a script runs on and on. Set by the server.
    pub serve_while_busy: fn(&mut Keyspace, &mut State),
    /// By [`PauseCause`].
    pauses: [Option<Pause>; 3],
    /// What they come to together.
    pause: Option<Pause>,
    /// See [`State::closes_gate`].
    gate_is_closed: bool,
    /// Who waits for the pause to end, in the order they came.
    pub paused: Vec<ClientId>,
    pub shutdown: Option<Shutdown>,
    /// Where the system says what has come from whom.
    pub poll: Poll,
    /// What the loop has not come to yet.
    pub pending: Pending,
    /// For the loop, at the end of the turn.
    pub tasks: Vec<Task>,
    pub timing: Timing,
    /// DEBUG PAUSE-CRON: the periodic work waits.
    pub cron_paused: bool,
    /// DEBUG SET-SKIP-CHECKSUM-VALIDATION: payloads of RESTORE may have a wrong checksum.
    pub skips_payload_checksum: bool,
    pub oom_score: OomScore,
    /// The process' title, of a server that is a program of its own.
    pub title: Option<Title>,
}

/// The processor's time stamp counter and the thresholds in its ticks: each command costs one reading, each turn two.
pub struct Timing {
    clock: quanta::Clock,
    /// Reading at the end of the last command.
    last: u64,
    /// Ticks that commands have taken, those within a script once.
    command_ticks: u64,
    /// Reading when the loop had waited.
    turn_begun: u64,
    /// Turns that have ended, and their ticks without the wait for events.
    turns: u64,
    turn_ticks: u64,
    /// A command that took as many ticks is looked at more closely: slow log or latency monitor. u64::MAX: neither is on.
    notable_ns: u64,
    /// As many bytes of arguments or of a reply may be for the command log.
    notable_bytes: usize,
}

/// Bytes of a request at most that are no arguments nor between them.
const REQUEST_FRAME_MAX: usize = 64;

impl Timing {
    pub fn new(clock: quanta::Clock) -> Self {
        Timing {
            clock,
            last: 0,
            command_ticks: 0,
            turn_begun: 0,
            turns: 0,
            turn_ticks: 0,
            notable_ns: u64::MAX,
            notable_bytes: usize::MAX,
        }
    }

    /// The loop has waited; a turn's work begins now.
    pub fn begin_turn(&mut self) {
        self.turn_begun = self.clock.raw();
    }

    /// The turn's work is done.
    pub fn end_turn(&mut self) {
        self.turns += 1;
        self.turn_ticks += self.clock.raw().saturating_sub(self.turn_begun);
    }

    /// Turns that have ended.
    pub fn turns(&self) -> u64 {
        self.turns
    }

    /// Microseconds that the turns took, without the wait for events.
    pub fn turns_us(&self) -> u64 {
        self.clock.delta_as_nanos(0, self.turn_ticks) / 1000
    }

    /// Microseconds that commands took; what a script calls is part of the script.
    pub fn commands_us(&self) -> u64 {
        self.clock.delta_as_nanos(0, self.command_ticks) / 1000
    }

    /// Begins the sums anew.
    pub fn reset(&mut self) {
        (self.turns, self.turn_ticks, self.command_ticks) = (0, 0, 0);
    }

    /// The next command begins now.
    #[inline]
    pub fn start(&mut self) {
        self.last = self.clock.raw();
    }

    /// The beginning of the command that runs, to come back to with [`Timing::go_back`].
    pub fn mark(&self) -> u64 {
        self.last
    }

    /// Has the next lap count from a mark: the command that began there has run others.
    pub fn go_back(&mut self, mark: u64) {
        let nested = self.last.saturating_sub(mark);
        self.command_ticks = self.command_ticks.saturating_sub(nested);
        self.last = mark;
    }

    /// Nanoseconds from a mark to now.
    pub fn since(&self, mark: u64) -> u64 {
        self.clock.delta_as_nanos(mark, self.clock.raw())
    }

    /// Nanoseconds since the start or the last lap.
    #[inline]
    pub fn lap(&mut self) -> u64 {
        let before = std::mem::replace(&mut self.last, self.clock.raw());
        self.command_ticks += self.last.saturating_sub(before);
        self.clock.delta_as_nanos(before, self.last)
    }

    /// Whether a duration is worth a closer look.
    #[inline]
    pub fn is_notable(&self, nanoseconds: u64) -> bool {
        nanoseconds >= self.notable_ns
    }

    /// Whether this many bytes of a request's arguments or of its reply may be worth a closer look.
    #[inline]
    pub fn is_large(&self, bytes: usize) -> bool {
        bytes >= self.notable_bytes
    }

    /// Takes the thresholds of the command log and of the latency monitor.
    pub fn set_thresholds(&mut self, config: &Config) {
        let slow = u64::try_from(config.slowlog_log_slower_than);
        let slow = slow.map_or(u64::MAX, |us| us.saturating_mul(1000));
        let latency = match u64::try_from(config.latency_monitor_threshold) {
            Ok(0) | Err(_) => u64::MAX,
            Ok(ms) => ms.saturating_mul(1_000_000),
        };
        self.notable_ns = slow.min(latency);
        let bytes = |threshold| usize::try_from(threshold).unwrap_or(usize::MAX);
        let request = bytes(config.commandlog_request_larger_than);
        let request = request.saturating_sub(REQUEST_FRAME_MAX);
        self.notable_bytes = request.min(bytes(config.commandlog_reply_larger_than));
    }
}

impl State {
    /// The state of a server that starts now, without clients.
    pub fn new(
        commands: &'static CommandTable,
        config: Config,
        clock: Clock,
        logger: Logger,
        poll: Poll,
    ) -> Self {
        let now = clock.now();
        let identity = Identity {
            run_id: random::hex_id(),
            started_us: now.boot_us,
            started_unix: now.unix_seconds(),
            executable: std::env::current_exe()
                .map_or_else(|_| String::new(), |path| path.to_string_lossy().into_owned()),
            invoked_as: Vec::new(),
            port: config.port,
            tls_port: config.tls_port,
        };
        let scripts = Scripts::default();
        let mut acl = Acl::new(users::catalogue(commands));
        acl.set_default_password(&config.requirepass);
        let command_stats = commands.commands.iter().map(|_| CommandStats::default()).collect();
        State {
            clients: Clients::default(),
            config,
            commands,
            renamed: HashMap::new(),
            pubsub: PubSub::default(),
            acl,
            clock,
            now,
            identity,
            logger,
            counters: Counters::default(),
            command_stats,
            error_stats: HashMap::new(),
            command_logs: CommandLogs::default(),
            latency: LatencyMonitor::default(),
            commands_rate: Rate::default(),
            input_rate: Rate::default(),
            output_rate: Rate::default(),
            turns_rate: Rate::default(),
            turn_time: Rate::default(),
            peak_memory: 0,
            startup_memory: 0,
            replication: Replication::default(),
            link: None,
            listeners: Vec::new(),
            listening: Vec::new(),
            tls: None,
            monitors: Vec::new(),
            blocking: Blocking::default(),
            scripts,
            effects: Effects::default(),
            persistence: Persistence::new(now.unix_seconds()),
            network: Box::new(SystemNetwork),
            outgoing: Outgoing::default(),
            encoder: None,
            serve_while_busy: |_, _| {},
            pauses: [None; 3],
            pause: None,
            // Until the configuration has been applied.
            gate_is_closed: true,
            paused: Vec::new(),
            shutdown: None,
            poll,
            pending: Pending::default(),
            tasks: Vec::new(),
            timing: Timing::new(quanta::Clock::new()),
            cron_paused: false,
            skips_payload_checksum: false,
            oom_score: OomScore::default(),
            title: None,
        }
    }

    /// Takes the interpreter out, to run a script or to change what it has compiled. None while a script runs.
    pub fn take_engine(&mut self) -> Option<Box<Engine>> {
        let deprecated = self.config.lua_enable_deprecated_api;
        self.scripts.take_engine(&self.config.redis_version, deprecated)
    }

    /// The encoder of DUMP and MIGRATE. It is kept: the table it compresses with is not small.
    pub fn payload_encoder(&mut self) -> &mut Encoder {
        let compresses = self.config.rdbcompression;
        let kept = self.encoder.take().filter(|(did, _)| *did == compresses);
        let new = || (compresses, Box::new(Encoder::new(compresses)));
        &mut self.encoder.insert(kept.unwrap_or_else(new)).1
    }

    /// Writes a line to the log.
    pub fn log(&self, level: Level, message: std::fmt::Arguments<'_>) {
        // Time stands still for commands while a script keeps the server busy, for minutes perhaps.
        let now = if self.scripts.is_busy() { self.clock.now() } else { self.now };
        self.logger.write(now, level, message);
    }

    /// Whether clients may not write because this server is a replica.
    #[inline]
    pub fn is_read_only(&self) -> bool {
        self.replication.is_replica() && self.config.replica_read_only
    }

    /// Whether this is a replica without a link, which may not show data that may be old.
    #[inline]
    pub fn is_stale(&self) -> bool {
        !self.config.replica_serve_stale_data
            && self
                .replication
                .following
                .as_deref()
                .is_some_and(|following| following.progress != Progress::Connected)
    }

    /// Whether `maxmemory` counts here: a replica leaves eviction to its primary, unless it is told otherwise.
    #[inline]
    pub fn minds_memory(&self) -> bool {
        let leaves = self.config.replica_ignore_maxmemory && self.replication.is_replica();
        self.config.maxmemory > 0 && !leaves
    }

    /// Whether writes are refused for want of replicas. What a replica writes is its primary's business.
    #[inline]
    pub fn lacks_replicas(&self) -> bool {
        let wanted = self.config.min_replicas_to_write;
        wanted > 0
            && self.config.min_replicas_max_lag > 0
            && self.replication.good_replicas < wanted
            && !self.replication.is_replica()
    }

    /// The stream's offset behind all that commands have changed so far, of a primary.
    #[inline]
    pub fn stream_end(&self) -> u64 {
        let waiting = self.effects.len() + self.replication.messages.len();
        self.replication.offset + waiting as u64
    }

    /// Whether the gate has to ask [`admit`](super::admit::admit) for each command.
    fn closes_gate(&self) -> bool {
        self.config.maxmemory > 0
            || self.lacks_replicas()
            || self.scripts.is_busy()
            || !self.monitors.is_empty()
            || self.pause.is_some()
            || self.replication.is_replica()
            || self.config.import_mode
            || self.persistence.loading.is_some()
            || self.disk_refusal().is_some()
    }

    /// To be called where one of the causes of [`Self::closes_gate`] may have changed.
    pub fn note_gate(&mut self) {
        self.gate_is_closed = self.closes_gate();
    }

    #[inline]
    pub fn is_gate_closed(&self) -> bool {
        debug_assert!(self.gate_is_closed || !self.closes_gate(), "note_gate was not called");
        self.gate_is_closed
    }

    /// Whether clients are paused: the strictest of all pauses, and when the last such ends.
    #[inline]
    pub fn pause(&self) -> Option<Pause> {
        self.pause
    }

    /// What a single cause asks for.
    pub fn pause_by(&self, cause: PauseCause) -> Option<Pause> {
        self.pauses[cause as usize]
    }

    pub fn set_pause(&mut self, cause: PauseCause, pause: Option<Pause>) {
        self.pauses[cause as usize] = pause;
        let writes_only = self.pauses.iter().flatten().all(|pause| pause.writes_only);
        let strictest =
            self.pauses.iter().flatten().filter(|pause| pause.writes_only == writes_only);
        self.pause = strictest.max_by_key(|pause| pause.until_us).copied();
        self.note_gate();
    }

    /// Ends a pause; who waited for it is asked again.
    pub fn end_pause(&mut self, cause: PauseCause) {
        self.set_pause(cause, None);
        self.tasks.push(Task::Unpause);
    }

    /// Ends the pauses whose time is up.
    pub fn end_due_pauses(&mut self) {
        for cause in [PauseCause::Asked, PauseCause::Shutdown, PauseCause::Failover] {
            if self.pause_by(cause).is_some_and(|pause| pause.until_us <= self.now.boot_us) {
                self.end_pause(cause);
            }
        }
    }

    /// Whether somebody monitors.
    #[inline]
    pub fn is_monitored(&self) -> bool {
        !self.monitors.is_empty()
    }

    pub fn monitors(&self) -> &[ClientId] {
        &self.monitors
    }

    pub fn add_monitor(&mut self, id: ClientId) {
        self.monitors.push(id);
        self.note_gate();
    }

    pub fn remove_monitor(&mut self, id: ClientId) {
        self.monitors.retain(|&monitor| monitor != id);
        self.note_gate();
    }

    /// Counts an error reply by its first word.
    pub fn count_error(&mut self, text: &[u8]) {
        self.counters.error_replies += 1;
        let word = text.split(|&byte| byte == b' ').next().unwrap_or_default();
        let word = String::from_utf8_lossy(word);
        if let Some(count) = self.error_stats.get_mut(&*word) {
            *count += 1;
        } else if self.error_stats.len() < ERROR_PREFIXES_MAX {
            self.error_stats.insert(word.into(), 1);
        }
    }

    /// The command of a name as this server knows it, after `rename-command`.
    #[inline]
    pub fn find_command(&self, name: &[u8]) -> Option<&'static Command> {
        if self.renamed.is_empty() {
            return self.commands.find(name);
        }
        match self.renamed.get(name.to_ascii_lowercase().as_slice()) {
            Some(command) => *command,
            None => self.commands.find(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_script_calls_is_counted_once_and_waiting_not_at_all() {
        let (clock, mock) = quanta::Clock::mock();
        let mut timing = Timing::new(clock);
        mock.increment(5_000u64);
        timing.begin_turn();
        timing.start();
        mock.increment(10_000u64);
        assert_eq!(timing.lap(), 10_000);
        // A script that calls two commands and takes a while itself.
        let begun = timing.mark();
        for _ in 0..2 {
            mock.increment(20_000u64);
            assert_eq!(timing.lap(), 20_000);
        }
        timing.go_back(begun);
        mock.increment(5_000u64);
        assert_eq!(timing.lap(), 45_000);
        mock.increment(7_000u64);
        timing.end_turn();
        assert_eq!((timing.turns(), timing.turns_us(), timing.commands_us()), (1, 62, 55));
        timing.reset();
        assert_eq!((timing.turns(), timing.turns_us(), timing.commands_us()), (0, 0, 0));
    }
}
