//! The server's state besides the keyspace, as commands see it: clients, configuration, statistics,
//! subscriptions.
//!
//! Each part keeps its own invariants; [`State`] only holds them side by side, so that a handler
//! can borrow one while it writes to another. No I/O here: work that only the loop can do is queued
//! as a [`Task`].
//!
//! - Parts: `network`, with unfinished answers of HTTP (`http_job`), `pauses`, `process`,
//!   `persistence` (saving and the AOF), `replicas` (those of this server), `moving` (keys on their
//!   way to another server), `arriving` (values of RESTORE), `slot_moves` (slots on their way),
//!   `cluster_work` (the loop's work for the cluster).
//! - `promoted` notes promotions of replicas by sentinels.
//! - `writes` says whether writes are possible now, for requests and for all that time starts.
//! - Commands: `table` numbers and finds them, `spec` is the specification of one, `context` the
//!   input of its handler. These three belong together: a specification names its handler, the
//!   handler gets the state, and the state has the table.

pub mod arriving;
pub mod cluster_work;
pub mod context;
pub mod http_job;
pub mod moving;
mod network;
mod pauses;
pub mod persistence;
mod process;
pub mod promoted;
mod replicas;
pub mod slot_moves;
pub mod spec;
pub mod table;
pub mod writes;

use std::collections::HashMap;

use mio::Poll;

use crate::acl::Acl;
use crate::client::field_sets::FieldSets;
use crate::client::handed::OnTheWay;
use crate::client::waits::Waits;
use crate::client::{ClientFlags, ClientId, Clients};
use crate::clock::{Clock, ExpiryBy, Now};
use crate::config::{Compatibility, Config};
use crate::keyspace::Keyspace;
use crate::keyspace::locks::LostLock;
use crate::persist::rdb::{Encoder, Newer, Version};
use crate::pubsub::PubSub;
use crate::replication::Replication;
use crate::replication::effects::Effects;
use crate::replication::following::Progress;
use crate::resp::args::Args;
use crate::script::shebang::{self, ScriptFlags};
use crate::script::{Engine, Scripts};
use crate::state::arriving::Arriving;
use crate::state::moving::Moving;
use crate::state::spec::Flags;
use crate::state::table::{Command, CommandTable, FastPath};
use crate::state::writes::WriteRule;
use crate::stats::Statistics;
use crate::sys::log::{Level, Logger};

pub use cluster_work::{ClusterWork, ThisNode};
pub use network::{Network, Pending};
pub use pauses::{Pause, PauseCause, Pauses};
use persistence::Persistence;
pub use process::{Identity, Process, Shutdown};

/// A command's order to the loop for the end of the turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// `State::listeners` has changed: register the new ones.
    Listen,
    /// Resume this client's pending requests.
    Resume(ClientId),
    /// CLIENT UNPAUSE, or the pause has changed.
    Unpause,
    /// SHUTDOWN ABORT: reply an error to the clients of SHUTDOWN.
    RefuseShutdown,
}

/// Everything that commands act upon.
pub struct Core {
    pub keyspace: Keyspace,
    pub state: State,
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
    /// The clocks, read once a turn.
    pub now: Now,
    pub process: Process,
    pub logger: Logger,
    pub stats: Statistics,
    pub replication: Replication,
    pub net: Network,
    pub waits: Waits,
    /// Elements and permits whose replies have not left yet.
    pub handed: OnTheWay,
    /// No lock is granted until this time: boot-time clock, microseconds.
    pub locks_recovered_us: i64,
    pub scripts: Scripts,
    pub in_script: InScript,
    pub effects: Effects,
    pub persistence: Persistence,
    /// See [`State::payload_encoder`]. True: the encoder compresses.
    encoder: Option<(bool, Box<Encoder>)>,
    /// Serves other clients for a moment during a long-running script. Set by the server.
    pub serve_while_busy: fn(&mut Core),
    pub pauses: Pauses,
    pub moving: Moving,
    pub arriving: Arriving,
    /// See [`State::allowed_fast_path`].
    fast_path: FastPath,
    /// Work for the loop at the end of the turn.
    pub tasks: Vec<Task>,
    pub debug: DebugSwitches,
    pub node: ThisNode,
}

/// What the running script or function leaves behind until it ends.
#[derive(Default)]
pub struct InScript {
    /// Locks that it has ended.
    pub lost_locks: Vec<LostLock>,
    /// The names of fields of its HIMPORT.
    pub field_sets: FieldSets,
}

/// Switches set by DEBUG.
#[derive(Clone, Copy, Debug, Default)]
pub struct DebugSwitches {
    /// DEBUG PAUSE-CRON: no periodic work.
    pub cron_paused: bool,
    /// DEBUG SET-SKIP-CHECKSUM-VALIDATION: RESTORE accepts payloads with a wrong checksum.
    pub skips_payload_checksum: bool,
}

impl State {
    /// The state of a new server without clients.
    pub fn new(
        commands: &'static CommandTable,
        config: Config,
        clock: Clock,
        logger: Logger,
        poll: Poll,
    ) -> Self {
        let now = clock.now();
        let identity = Identity::new(&config, now);
        let scripts = Scripts::default();
        let mut acl = Acl::new(commands.catalogue());
        acl.set_default_password(&config.requirepass);
        State {
            clients: Clients::default(),
            config,
            commands,
            renamed: HashMap::new(),
            pubsub: PubSub::default(),
            acl,
            clock,
            now,
            process: Process::new(identity),
            logger,
            stats: Statistics::new(commands.commands.len()),
            replication: Replication::default(),
            net: Network::new(poll),
            waits: Waits::default(),
            handed: OnTheWay::default(),
            in_script: InScript::default(),
            locks_recovered_us: 0,
            scripts,
            effects: Effects::default(),
            persistence: Persistence::new(now.unix_seconds()),
            encoder: None,
            serve_while_busy: |_| {},
            pauses: Pauses::default(),
            moving: Moving::default(),
            arriving: Arriving::default(),
            // The gate is closed until the configuration is applied.
            fast_path: FastPath::Closed,
            tasks: Vec::new(),
            debug: DebugSwitches::default(),
            node: ThisNode::default(),
        }
    }

    /// Takes the script engine out, to run a script or change the compiled ones. None while a
    /// script runs.
    pub fn take_engine(&mut self) -> Option<Box<Engine>> {
        let deprecated = self.config.lua_enable_deprecated_api;
        let config = &self.config;
        let is_valkey = config.compatible_with.is_valkey();
        self.scripts.take_engine(&config.redis_version, is_valkey, deprecated)
    }

    /// The encoder of DUMP and MIGRATE, kept because its compression table is large.
    /// `lease_shift_ms`: the keyspace's.
    pub fn payload_encoder(&mut self, lease_shift_ms: i64) -> &mut Encoder {
        let (compresses, newer) = (self.config.rdbcompression, self.newer());
        let kept = self.encoder.take().filter(|(did, _)| *did == compresses);
        let new = || (compresses, Box::new(Encoder::new(compresses)));
        let encoder = &mut self.encoder.insert(kept.unwrap_or_else(new)).1;
        encoder.newer = newer;
        encoder.leases.shift_ms = lease_shift_ms;
        encoder
    }

    /// The forms of data that Redis 7.0 does not know: Redis and Valkey read different ones.
    pub fn newer(&self) -> Newer {
        match self.config.compatible_with {
            Compatibility::Redis8 => Newer { volatile: Version::REDIS_12, producers: true },
            Compatibility::Redis72 => Newer { volatile: Version::VALKEY_80, producers: true },
            _ => Newer { volatile: Version::VALKEY_80, producers: false },
        }
    }

    /// Whether replicas and the AOF are told the names that producers give entries (XADD IDMP).
    pub fn repeats_names(&self) -> bool {
        self.newer().producers && !self.replication.had_older_replica
    }

    /// Writes a line to the log.
    pub fn log(&self, level: Level, message: std::fmt::Arguments<'_>) {
        self.logger.write(self.real_now(), level, message);
    }

    /// The current time. While a script keeps the server busy it differs from `State::now`, which
    /// stands still then, possibly for minutes.
    fn real_now(&self) -> Now {
        if self.scripts.is_busy() { self.clock.now() } else { self.now }
    }

    /// The time for connections to the primary and replicas: boot-time clock, microseconds.
    pub fn time_us(&self) -> i64 {
        self.real_now().boot_us
    }

    /// The number of databases.
    pub fn database_count(&self) -> usize {
        self.config.database_count()
    }

    /// Whether this is a node of a cluster with only one database, as in Redis: commands that name
    /// another database are then refused for that reason.
    pub fn has_one_database(&self) -> bool {
        self.node.cluster.is_some()
            && self.config.cluster_databases == 1
            && !self.config.compatible_with.is_valkey()
    }

    /// Whether clients may not write because this server is a replica.
    #[inline]
    pub fn is_read_only(&self) -> bool {
        self.replication.is_replica() && self.config.replica_read_only
    }

    /// Whether this is a replica that is disconnected from its primary and may not serve possibly
    /// stale data.
    #[inline]
    pub fn is_stale(&self) -> bool {
        !self.config.replica_serve_stale_data
            && self
                .replication
                .following
                .as_deref()
                .is_some_and(|following| following.progress != Progress::Connected)
    }

    /// Whether a client with these flags has to authenticate before it may do anything else.
    pub fn needs_password(&self, flags: ClientFlags) -> bool {
        !flags.contains(ClientFlags::AUTHENTICATED) && self.acl.requires_auth()
    }

    /// Whether `maxmemory` applies: a replica leaves eviction to its primary, unless configured
    /// otherwise.
    #[inline]
    pub fn applies_maxmemory(&self) -> bool {
        let leaves = self.config.replica_ignore_maxmemory && self.replication.is_replica();
        self.config.maxmemory > 0 && !leaves
    }

    /// Whether clients may still hold locks that were lost with the last writes before a start or a
    /// promotion: see `lock-recovery-delay`.
    pub fn is_recovering_locks(&self) -> bool {
        self.now.boot_us < self.locks_recovered_us
    }

    /// Whether writes are refused for lack of replicas. On a replica the primary decides.
    #[inline]
    pub fn lacks_replicas(&self) -> bool {
        let wanted = self.config.min_replicas_to_write;
        wanted > 0
            && self.config.min_replicas_max_lag > 0
            && self.replication.good_replicas < wanted
            && !self.replication.is_replica()
    }

    /// A primary's offset after all changes that commands have made so far.
    #[inline]
    pub fn stream_end(&self) -> u64 {
        self.replication.offset + self.effects.len_for_replicas() as u64
    }

    /// The flags for the gate's checks. For a command that runs a script or function, the flags
    /// that the script declares.
    pub fn flags_of(&self, command: &Command, args: Args<'_>) -> Flags {
        let flags = command.spec.flags;
        if !command.is(Flags::RUNS_SCRIPT) {
            return flags;
        }
        let named = args.get(1);
        let declared = if command.is(Flags::RUNS_BODY) {
            shebang::parse(named).ok().map(|(flags, _)| flags)
        } else if command.is(Flags::RUNS_SHA) {
            self.scripts.flags_of_script(named)
        } else {
            self.scripts.flags_of_function(named)
        };
        let Some(declared) = declared.filter(|flags| !flags.contains(ScriptFlags::UNDECLARED))
        else {
            return flags;
        };
        let may = |flag, needed| if declared.intersects(flag) { Flags::empty() } else { needed };
        let stale = declared.contains(ScriptFlags::ALLOW_STALE);
        flags.difference(Flags::MAY_REPLICATE | Flags::STALE)
            | if stale { Flags::STALE } else { Flags::empty() }
            | may(ScriptFlags::NO_WRITES, Flags::WRITE)
            | may(ScriptFlags::NO_WRITES | ScriptFlags::ALLOW_OOM, Flags::DENYOOM)
    }

    /// The server that decides when keys expire, by role and configuration.
    pub fn expiry_by(&self) -> ExpiryBy {
        if self.replication.is_replica() {
            ExpiryBy::Primary
        } else if self.config.import_mode {
            ExpiryBy::ImportSource
        } else {
            ExpiryBy::Server
        }
    }

    /// Which commands the gate can run without asking `gate/admit.rs`.
    fn allowed_fast_path(&self) -> FastPath {
        // Replicas have a fast path of their own.
        const REFUSALS: [WriteRule; 3] = [WriteRule::Disk, WriteRule::Replicas, WriteRule::Restart];
        let is_closed = self.applies_maxmemory()
            || REFUSALS.iter().any(|rule| self.refusal_by(*rule).is_some())
            || self.scripts.is_busy()
            || !self.clients.monitors.is_empty()
            || self.stands_still()
            || self.moving.is_in_the_way()
            || self.is_stale()
            || self.config.import_mode
            || self.persistence.loading.is_some();
        match is_closed {
            true => FastPath::Closed,
            false if self.node.cluster.is_some() && self.replication.is_replica() => {
                FastPath::Closed
            }
            false if self.node.cluster.is_some() => FastPath::Owned,
            false if self.replication.is_replica() => FastPath::Reads,
            false => FastPath::All,
        }
    }

    /// Recomputes [`Self::fast_path`]. Call this where a cause of [`Self::allowed_fast_path`] may
    /// have changed.
    pub fn refresh_fast_path(&mut self) {
        self.fast_path = self.allowed_fast_path();
    }

    #[inline]
    pub fn fast_path(&self) -> FastPath {
        debug_assert!(
            self.fast_path <= self.allowed_fast_path(),
            "refresh_fast_path was not called"
        );
        self.fast_path
    }

    /// Sets or ends a pause. If less is paused than before, postponed requests are tried again;
    /// another cause may postpone some of them anew.
    pub fn set_pause(&mut self, cause: PauseCause, pause: Option<Pause>) {
        // From the strictest: all commands, writes, nothing.
        let rank = |pauses: &Pauses| pauses.strictest().map(|pause| !pause.writes_only);
        let before = rank(&self.pauses);
        self.pauses.set(cause, pause);
        if rank(&self.pauses) < before {
            self.tasks.push(Task::Unpause);
        }
        self.refresh_fast_path();
    }

    /// Ends a pause, as [`Self::set_pause`] does.
    pub fn end_pause(&mut self, cause: PauseCause) {
        self.set_pause(cause, None);
    }

    /// Ends the pauses whose time is up.
    pub fn end_due_pauses(&mut self) {
        for cause in PauseCause::ALL {
            if self.pauses.by(cause).is_some_and(|pause| pause.until_us <= self.now.boot_us) {
                self.end_pause(cause);
            }
        }
    }

    /// Whether a client monitors.
    #[inline]
    pub fn is_monitored(&self) -> bool {
        !self.clients.monitors.is_empty()
    }

    pub fn monitors(&self) -> &[ClientId] {
        &self.clients.monitors
    }

    pub fn add_monitor(&mut self, id: ClientId) {
        self.clients.monitors.push(id);
        self.refresh_fast_path();
    }

    pub fn remove_monitor(&mut self, id: ClientId) {
        self.clients.monitors.retain(|&monitor| monitor != id);
        self.refresh_fast_path();
    }

    /// The command of this name in a file or stream: clients' requests have the names that
    /// `rename-command` gives, those of the server itself the commands' own.
    #[inline]
    pub fn find_trusted(&self, name: &[u8]) -> Option<&'static Command> {
        self.find_command(name).or_else(|| self.commands.find(name))
    }

    /// The command of this name after `rename-command`.
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

    /// The command or subcommand of this full name (`get`, `client|kill`) after `rename-command`.
    pub fn find_full_command(&self, name: &[u8]) -> Option<&'static Command> {
        let mut parts = name.splitn(2, |&byte| byte == b'|');
        let command = self.find_command(parts.next()?)?;
        match parts.next() {
            None => Some(command),
            Some(subcommand) => self.commands.find_subcommand(command, subcommand),
        }
    }

    /// The commands and subcommands that `rename-command` has not removed.
    pub fn known_commands(&self) -> impl Iterator<Item = &'static Command> {
        let is_known = |command: &Command| {
            let own = command.parent.map_or(command, |parent| self.commands.get(parent));
            let mut given = self.renamed.values().flatten();
            !self.renamed.contains_key(own.full_name.as_bytes())
                || given.any(|known| known.id == own.id)
        };
        self.commands.commands.iter().filter(move |command| is_known(command))
    }
}
