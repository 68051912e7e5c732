//! Following a primary: the connection to it, its stream, and the change between the roles.
//!
//! ```text
//! socket -> Link: handshake, snapshot, stream
//!   snapshot -> file or pipe -> databases beside the served ones -> replace them
//!   stream   -> the gate, as Caller::Primary -> the backlog, byte for byte -> acknowledgement
//! ```
//!
//! [`turn`] does all this in bounded pieces, once a turn of the loop: clients are served in
//! between. A snapshot becomes visible when it is complete. The stream is applied without checking
//! deadlines.
//!
//! Source: `replication.c` of Redis 7.0.15, whose log lines these are.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;

use socket2::SockRef;

use crate::client::ClientFlags;
use crate::client::waits::Answer;
use crate::clock::Due;
use crate::config::{PrimaryAddress, system_text};
use crate::durability::persistence;
use crate::durability::unexpected;
use crate::error::CommandError;
use crate::gate::execute::Gate;
use crate::gate::link_line::LinkLine;
use crate::gate::looked_up::LookedUp;
use crate::gate::monitor;
use crate::gate::redirect;
use crate::gate::sessions;
use crate::keyspace::DbIndex;
use crate::keyspace::waiting::Ticket;
use crate::net::primary::{PRIMARY, ReadResult, Socket};
use crate::net::stream::Stream;
use crate::replication::backlog::Backlog;
use crate::replication::following::{Following, Progress, Transfer};
use crate::replication::incoming::Sync;
use crate::replication::link::{
    Broken, Event, HandshakeOptions, Link, Requests, Stage, acknowledge,
};
use crate::replication::primary_link::PrimaryLink;
use crate::replication::{Ancestor, Replication, Restart};
use crate::resp::args::Args;
use crate::resp::reply::{OutputBuffer, Protocol, ReplyWriter};
use crate::roles::replicas;
use crate::state::context::{Caller, Origin};
use crate::state::persistence::Moment;
use crate::state::spec::Flags;
use crate::state::{Core, State};
use crate::sys::log::{Level, notice, warning};
use crate::sys::process;
use crate::waiting::{self, waking};

mod ahead;
mod sync;

use ahead::Ahead;
use sync::Loaded;

/// Bytes read in one turn.
const READ_BYTES: usize = 64 * 1024;
/// Reads of a snapshot in one turn, of [`READ_BYTES`] each.
const SNAPSHOT_READS: usize = 8;
/// Bytes of the stream that are read while a pause postpones it.
const HELD_BYTES: usize = 1 << 20;
/// Bytes of a unit that are added to the stream at once.
const FEED_BYTES: usize = 1 << 20;
/// Interval of checks of the link, acknowledgements and attempts to connect. Unit: microseconds.
const PERIOD_US: i64 = 1_000_000;
/// How often a lost link is replaced at once in that time.
const AT_ONCE_MAX: u32 = 4;

/// Positions of the AOF that are kept to find the offset of the stream that is on disk.
const LOGGED_MAX: usize = 4096;

/// Why a link is closed.
enum Lost {
    /// Logged already.
    Logged,
    /// The snapshot cannot be loaded, which is logged.
    Unloadable,
    /// The connection has ended, with an error or without.
    Ended(Option<io::Error>),
    Broken(Broken),
}

// ---- roles --------------------------------------------------------------------------------------

/// Starts to follow a primary other than the present one.
pub fn follow(core: &mut Core, host: &[u8], port: u16, is_failover: bool) {
    let was_primary = !core.state.replication.is_replica();
    core.state.effects.end_unit();
    persistence::spread_effects(&mut core.state);
    let known = close_link(core);
    // Valkey waits for the failover's success: after an abort this is the primary again.
    if !(is_failover && core.state.config.compatible_with.is_valkey()) {
        end_blocking(core, host, port);
    }
    let mut following = Following::new(host.to_vec(), port);
    following.is_failover = is_failover;
    if was_primary {
        notice!(
            core.state,
            "Before turning into a replica, using my own master parameters to synthesize a cached master: I may be able \
                 to synchronize with the new master with just a partial transfer."
        );
        following.knows_history = true;
    } else if let Some((knows_history, selected)) = known {
        (following.knows_history, following.selected) = (knows_history, selected);
    }
    take_role(core, Some(following));
    notice!(core.state, "Connecting to MASTER {}", primary_name(&core.state));
    connect(&mut core.state);
}

/// At the start, after loading: follows a primary, continuing at the history and offset saved in
/// the RDB file, if it has them and no append-only file was loaded.
pub fn follow_at_start(core: &mut Core, primary: Option<PrimaryAddress>) {
    let Moment { id, offset, stream_database } = std::mem::take(&mut core.state.persistence.moment);
    let moment = id.zip(offset).filter(|_| !core.state.config.appendonly);
    let Some(PrimaryAddress { host, port }) = primary else { return };
    let mut following = Following::new(host, port);
    if let Some((id, offset)) = moment {
        (core.state.replication.id, core.state.replication.offset) = (id, offset);
        following.knows_history = true;
        following.selected = stream_database.min(core.keyspace.last_database());
    }
    take_role(core, Some(following));
}

/// Stops following: this server becomes a primary with its present data. Replicas that know its
/// history can continue.
pub fn unfollow(core: &mut Core) {
    if !core.state.replication.is_replica() {
        return;
    }
    core.state.effects.end_unit();
    persistence::spread_effects(&mut core.state);
    close_link(core);
    core.state.replication.branch_off();
    core.state.replication.without_replicas_since_us = core.state.now.boot_us;
    close_replicas(&mut core.state);
    take_role(core, None);
    core.state.effects.select_anew();
    if core.state.config.appendonly && !core.state.persistence.is_aof_on() {
        restart_log(core);
    }
    sessions::be_promoted(core);
}

fn take_role(core: &mut Core, following: Option<Following>) {
    let address = following.as_ref();
    // In a cluster the primary is not part of the configuration.
    if !core.state.config.cluster_enabled {
        core.state.config.replicaof = address
            .map(|following| PrimaryAddress { host: following.host.clone(), port: following.port });
    }
    let follows = following.is_some();
    core.state.replication.restart = Restart::default();
    core.state.replication.following = following.map(Box::new);
    // The failed grant belongs to another history.
    core.state.waits.failed = None;
    core.state.logger.set_role(follows);
    core.keyspace.set_expiry_by(core.state.expiry_by());
    persistence::note_listeners(core);
    core.state.refresh_fast_path();
}

/// Ends the waits that are concerned when this server starts to follow another one: the primary
/// decides about grants.
pub fn end_blocking(core: &mut Core, host: &[u8], port: u16) {
    let waits: Vec<Ticket> = core.state.waits.iter().map(|wait| wait.ticket).collect();
    waits.into_iter().for_each(|ticket| end_wait(core, ticket, &redirect::error(host, port)));
    core.state.waits.given_up.clear();
    core.state.waits.failed = None;
}

/// Ends a wait that the change of role concerns. A blocked client is redirected to the primary, or
/// closed.
fn end_wait(core: &mut Core, ticket: Ticket, redirection: &CommandError) {
    let Some(wait) = core.state.waits.get(ticket) else { return };
    let blocked = match wait.answer {
        Answer::Kept => return,
        Answer::Push => None,
        Answer::Reply => core.state.clients.get(wait.client),
    };
    // WAIT has no replicas left to wait for, even if its client reads here. (In Valkey the client
    // keeps waiting.)
    let can = |flag| wait.is_on_keys() && blocked.is_some_and(|client| client.flags.contains(flag));
    let writes = core.state.commands.get(wait.command).is(Flags::WRITE);
    if can(ClientFlags::READS_HERE) && !writes {
        return;
    }
    if can(ClientFlags::CAN_REDIRECT) {
        return waiting::end_with(core, ticket, &redirection.wire());
    }
    let blocked = blocked.map(|client| client.id);
    waiting::end_with(core, ticket, CommandError::DEMOTED.as_bytes());
    if let Some(id) = blocked {
        core.state.clients.close_after_reply(id, core.state.now);
    }
}

/// Closes this server's replicas: they learn of the change when they reconnect.
fn close_replicas(state: &mut State) {
    for id in state.replication.replicas.clone() {
        state.clients.close(id);
    }
}

/// Closes the link, if one is open. Returns whether the primary knows this server's history, and
/// the database that its stream has selected. None: no primary is followed.
fn close_link(core: &mut Core) -> Option<(bool, DbIndex)> {
    let following = core.state.replication.following.as_deref()?;
    let known = (following.knows_history, following.selected);
    if following.progress == Progress::Connected {
        log_lost(&core.state);
        notice!(core.state, "Caching the disconnected master state.");
    }
    if let Some(link) = core.state.replication.link.take() {
        link.close(core);
    }
    Some(known)
}

fn log_lost(state: &State) {
    warning!(state, "Connection with master lost.");
}

/// The primary's host and port for the log.
fn primary_name(state: &State) -> String {
    state.replication.following.as_ref().map_or_else(String::new, |following| following.name())
}

/// The link as CLIENT LIST and CLIENT KILL see it, while it is in use.
pub fn link_line(state: &State) -> Option<LinkLine> {
    let following = state.replication.following.as_deref().filter(|it| it.is_connected())?;
    let socket = state.net.primary.as_deref()?;
    let stream = SockRef::from(socket.stream()?);
    let local = stream.local_addr().ok().and_then(|address| address.as_socket());
    let seconds_since = |us: i64| (state.now.boot_us - us).max(0) / 1_000_000;
    Some(LinkLine {
        number: following.number,
        address: socket.address?,
        local,
        file: stream.as_raw_fd(),
        age_s: seconds_since(following.up_since_us),
        idle_s: seconds_since(following.last_sign_us),
        database: following.selected,
        input: following.unapplied,
    })
}

/// `CLIENT KILL` of the link. False: no link is in use.
pub fn kill_link(state: &mut State) -> bool {
    let is_connected = |following: &Following| following.progress == Progress::Connected;
    match &mut state.replication.link {
        Some(link) if state.replication.following.as_deref().is_some_and(is_connected) => {
            link.is_killed = true;
            true
        }
        _ => false,
    }
}

// ---- connecting ---------------------------------------------------------------------------------

/// Starts to connect. An immediate failure is tried again after [`PERIOD_US`].
fn connect(state: &mut State) {
    let Some(following) = state.replication.following.as_deref_mut() else { return };
    let (host, port) = (String::from_utf8_lossy(&following.host).into_owned(), following.port);
    following.last_sign_us = state.now.boot_us;
    following.attempts += 1;
    following.attempts_now += 1;
    let socket = match open_socket(state, host, port) {
        Ok(socket) => socket,
        Err(error) => return cannot_connect(state, &error),
    };
    let hello = hello(state);
    state.net.primary = Some(Box::new(socket));
    state.replication.link = Some(Box::new(PrimaryLink {
        link: Link::new(hello),
        buffer: vec![0; READ_BYTES].into(),
        sync: None,
        is_killed: false,
        holds: false,
        logged: VecDeque::new(),
        on_disk: None,
    }));
    set_progress(state, Progress::Connecting);
    notice!(state, "MASTER <-> REPLICA sync started");
}

/// Starts to connect to an address or a host name.
fn open_socket(state: &State, host: String, port: u16) -> io::Result<Socket> {
    let next_period_us = state.now.boot_us + PERIOD_US;
    match host.parse().ok().map(|ip| SocketAddr::new(ip, port)) {
        Some(address) => Ok(Socket::connecting(open(state, address)?, address, next_period_us)),
        None => {
            let (background, wake) = (state.persistence.background(), state.persistence.wake());
            Socket::resolving(host, port, background, wake, next_period_us)
        }
    }
}

/// Opens a connection that is not established yet.
fn open(state: &State, to: SocketAddr) -> io::Result<Stream> {
    let mut stream = state.net.dial(&state.config, to, state.config.tls_replication)?;
    let registry = state.net.poll.registry();
    stream.register(registry, PRIMARY)?;
    stream.reregister(registry, PRIMARY, true)?;
    Ok(stream)
}

fn cannot_connect(state: &mut State, error: &io::Error) {
    let why = system_text(error);
    warning!(state, "Unable to connect to MASTER: {why}");
    note_failure(state, format!("Unable to connect: {why}"));
    set_progress(state, Progress::Connect);
}

/// Keeps the reason why the link is down, for INFO.
fn note_failure(state: &mut State, why: String) {
    if let Some(following) = state.replication.following.as_deref_mut() {
        following.failure = why;
    }
}

/// The announcements of this server in the handshake.
fn hello(state: &State) -> HandshakeOptions {
    let config = &state.config;
    let text = |text: &Vec<u8>| Some(text.clone()).filter(|text| !text.is_empty());
    let own_port =
        if config.tls_replication && config.tls_port != 0 { config.tls_port } else { config.port };
    let port = match (config.replica_announce_port, own_port) {
        (0, 0) => state.process.identity.port,
        (0, port) | (port, _) => port,
    };
    let Replication { id, offset, following, .. } = &state.replication;
    let following = following.as_deref();
    let knows_history = following.is_some_and(|following| following.knows_history);
    HandshakeOptions {
        password: text(&config.masterauth),
        user: text(&config.masteruser),
        port,
        address: text(&config.replica_announce_ip),
        continues: knows_history.then(|| (id.clone(), offset + 1)),
        run_id: state.process.identity.run_id.clone(),
        node_id: state.node.cluster.as_ref().map(|cluster| cluster.myself().id),
        is_failover: following.is_some_and(|following| following.is_failover),
        snapshot_only: false,
    }
}

fn set_progress(state: &mut State, progress: Progress) {
    if let Some(following) = state.replication.following.as_deref_mut() {
        following.progress = progress;
        if progress == Progress::Connected {
            (following.number, following.up_since_us) =
                (state.clients.take_number(), state.now.boot_us);
            let down_since_us = following.down_since_us.take();
            following.was_down_us +=
                down_since_us.map_or(0, |since_us| state.now.boot_us - since_us);
            following.transfer = Transfer::default();
            following.failure.clear();
        }
    }
    state.refresh_fast_path();
}

// ---- each turn ----------------------------------------------------------------------------------

/// When [`turn`] has work without an event.
pub fn due(state: &State) -> Due {
    let (Some(link), Some(socket)) = (&state.replication.link, &state.net.primary) else {
        return Due::NEVER;
    };
    Due::now_if(link.wants_turn(socket, link.is_paused(state)))
}

/// Continues the link's handshake, snapshot or stream, for a bounded time.
pub fn turn(core: &mut Core) {
    let Some(mut link) = core.state.replication.link.take() else { return };
    let database = core.keyspace.selected();
    match link.go_on(core) {
        Ok(()) => core.state.replication.link = Some(link),
        Err(lost) => lose(core, link, lost),
    }
    core.keyspace.select(database);
}

/// Several times a second: acknowledges, tries to connect, and closes a link after a timeout.
pub fn periodic(core: &mut Core) {
    let Some(following) = core.state.replication.following.as_deref() else { return };
    let now_us = core.state.now.boot_us;
    let silent_us = now_us - following.last_sign_us;
    let progress = following.progress;
    let Some(mut link) = core.state.replication.link.take() else {
        if silent_us >= PERIOD_US {
            let name = following.name();
            notice!(core.state, "Connecting to MASTER {name}");
            connect(&mut core.state);
        }
        return;
    };
    if take_period(&mut core.state, now_us) {
        if link.sync.as_ref().is_some_and(Sync::is_loading) {
            link.link.output.push(b'\n');
        } else if progress == Progress::Connected {
            // A rewrite may have synced data, which is reported even if no write follows.
            link.note_logged(&mut core.state);
            link.acknowledge(&core.state, core.state.replication.offset);
        }
    }
    let timeout_us = i64::from(core.state.config.repl_timeout) * 1_000_000;
    if !link.waits_for_bytes(&core.state) {
        note_heard(&mut core.state, now_us);
    } else if silent_us > timeout_us && progress != Progress::Connect {
        return end_silent(core, link);
    }
    core.state.replication.link = Some(link);
}

/// Whether the link's periodic work is due. If so, notes it as done.
fn take_period(state: &mut State, now_us: i64) -> bool {
    let Some(socket) = &mut state.net.primary else { return false };
    let is_due = now_us >= socket.next_period_us;
    if is_due {
        socket.next_period_us = now_us + PERIOD_US;
    }
    is_due
}

/// Notes a sign of life of the primary, or the end of a time in which none could have been noticed.
fn note_heard(state: &mut State, now_us: i64) {
    if let Some(following) = state.replication.following.as_deref_mut() {
        following.last_sign_us = now_us;
    }
}

/// In nested turns, while a script or a loading keeps the server busy: acknowledges once a second,
/// so that the primary does not consider this server dead.
pub fn keep_alive(state: &mut State) {
    let now_us = state.time_us();
    let is_connected = state.replication.following.as_deref().is_some_and(Following::is_connected);
    if !is_connected || !take_period(state, now_us) {
        return;
    }
    let mut request = Vec::new();
    acknowledge(state.replication.offset, None, &mut request);
    if let Some(socket) = &mut state.net.primary {
        socket.push(&mut request);
        // An error is found again when the link is read.
        let _ = socket.write();
    }
}

/// Closes a link whose primary has been silent for too long.
fn end_silent(core: &mut Core, link: Box<PrimaryLink>) {
    let Some(following) = core.state.replication.following.as_deref() else { return };
    let progress = following.progress;
    let text = match progress {
        Progress::Connect | Progress::Connecting | Progress::Handshake => {
            "Timeout connecting to the MASTER..."
        }
        Progress::Sync => {
            "Timeout receiving bulk data from MASTER... If the problem persists try to set the 'repl-timeout' parameter in \
             the configuration to a larger value."
        }
        Progress::Connected => "MASTER timeout: no data nor PING received...",
    };
    warning!(core.state, "{text}");
    if progress != Progress::Connected {
        set_progress(&mut core.state, Progress::Sync);
    }
    lose(core, link, Lost::Logged);
}

/// Whether a lost link is replaced at once: only a few times in [`PERIOD_US`]. A primary that
/// breaks each link would be asked in a busy loop, perhaps each time for a snapshot.
fn may_reconnect_at_once(state: &mut State) -> bool {
    let now_us = state.now.boot_us;
    let Some(following) = state.replication.following.as_deref_mut() else { return false };
    let (since_us, times) = following.replaced;
    following.replaced = match now_us - since_us >= PERIOD_US {
        true => (now_us, 1),
        false => (since_us, times.saturating_add(1)),
    };
    following.replaced.1 <= AT_ONCE_MAX
}

/// Closes a link and reconnects: at once if it worked before, otherwise after [`PERIOD_US`].
fn lose(core: &mut Core, link: Box<PrimaryLink>, lost: Lost) {
    let Some(following) = core.state.replication.following.as_deref_mut() else { return };
    let progress = following.progress;
    // A target that cannot be reached is tried again; one that has refused would refuse again.
    if following.is_failover
        && progress == Progress::Handshake
        && matches!(lost, Lost::Logged | Lost::Unloadable | Lost::Broken(_))
    {
        following.failover_failed = true;
    }
    if progress == Progress::Connected {
        following.down_since_us = Some(core.state.now.boot_us);
        following.heard_before_us = following.last_sign_us;
        following.attempts_now = 0;
        following.knows_history = !matches!(lost, Lost::Broken(_));
    }
    let why = match &lost {
        Lost::Ended(Some(error)) => system_text(error),
        _ => "connection lost".into(),
    };
    let stage = link.link.stage();
    if matches!(lost, Lost::Ended(_)) {
        note_failure(&mut core.state, why.clone());
    }
    if link.sync.as_ref().is_some_and(|sync| sync.is_loading() && !sync.reads_file()) {
        let at = core.state.persistence.loading.map_or(0, |loading| loading.loaded_bytes);
        warning!(
            core.state,
            "Internal error in RDB reading offset {at}: the connection has ended. Failure loading rdb format from socket, \
                 assuming connection error, resuming operation."
        );
    }
    link.close(core);
    let is_again = matches!(progress, Progress::Sync | Progress::Connected)
        && !matches!(lost, Lost::Unloadable)
        && may_reconnect_at_once(&mut core.state);
    set_progress(&mut core.state, Progress::Connect);
    let name = primary_name(&core.state);
    match (progress, lost) {
        (Progress::Connected, lost) => {
            if let Lost::Broken(Broken(text)) = &lost {
                warning!(core.state, "{text}");
            }
            log_lost(&core.state);
            if !matches!(lost, Lost::Broken(_)) {
                notice!(core.state, "Caching the disconnected master state.");
            }
            if is_again {
                notice!(core.state, "Reconnecting to MASTER {name}");
            }
        }
        (Progress::Sync, lost) => {
            if let Lost::Ended(_) = lost {
                warning!(core.state, "I/O error trying to sync with MASTER: {why}");
            }
            if is_again {
                notice!(core.state, "Reconnecting to MASTER {name} after failure");
            }
        }
        (Progress::Connecting, Lost::Ended(_)) => {
            warning!(core.state, "Error condition on socket for SYNC: {why}");
        }
        (_, Lost::Ended(_)) if stage == Stage::Sync => {
            warning!(core.state, "I/O error reading bulk count from MASTER: {why}");
        }
        (_, Lost::Ended(_)) if stage == Stage::Handshake => {
            warning!(core.state, "Failed to read response from the server: {why}");
            warning!(core.state, "Master did not respond to command during SYNC handshake");
        }
        _ => {}
    }
    if is_again {
        connect(&mut core.state);
    }
}

impl PrimaryLink {
    /// Whether CLIENT PAUSE postpones the stream: the data must not change, so bytes wait here or
    /// at the primary.
    fn is_paused(&self, state: &State) -> bool {
        let following = state.replication.following.as_deref();
        state.stands_still() && following.is_some_and(Following::is_connected)
    }

    fn wants_turn(&self, socket: &Socket, is_paused: bool) -> bool {
        let sync = self.sync.as_ref();
        let may_read = sync.is_none_or(|sync| !sync.is_full()) && !self.holds_enough(is_paused);
        may_read && socket.may_read() || self.is_killed || sync.is_some_and(Sync::wants_turn)
    }

    /// Whether enough bytes were received during a pause that further ones should wait at the
    /// primary.
    fn holds_enough(&self, is_paused: bool) -> bool {
        is_paused && self.link.waiting() >= HELD_BYTES
    }

    /// Whether the primary's silence means anything: not while this server loads received bytes, or
    /// leaves bytes unread.
    fn waits_for_bytes(&self, state: &State) -> bool {
        let sync = self.sync.as_ref();
        let loads = sync.is_some_and(|sync| sync.wants_turn() || sync.is_full());
        let leaves = state.net.primary.as_ref().is_some_and(|socket| socket.may_read());
        !loads && !leaves && !self.holds_enough(self.is_paused(state))
    }

    fn close(self: Box<Self>, core: &mut Core) {
        if let Some(socket) = core.state.net.primary.take() {
            socket.close(core.state.net.poll.registry());
        }
        if let Some(sync) = self.sync {
            sync.abort(core);
        }
    }

    fn go_on(&mut self, core: &mut Core) -> Result<(), Lost> {
        if self.is_killed {
            return Err(Lost::Logged);
        }
        self.continue_connecting(&mut core.state)?;
        if !core.state.net.primary.as_ref().is_some_and(|socket| socket.is_connected()) {
            return Ok(());
        }
        let is_paused = self.is_paused(&core.state);
        if !is_paused && std::mem::take(&mut self.holds) {
            self.apply(core)?;
        }
        let reads = if self.sync.is_some() { SNAPSHOT_READS } else { 1 };
        for _ in 0..reads {
            let may_read = core.state.net.primary.as_ref().is_some_and(|socket| socket.may_read());
            let is_full = self.sync.as_ref().is_some_and(Sync::is_full);
            if !may_read || is_full || self.holds_enough(is_paused) {
                break;
            }
            let ended = self.read(&mut core.state);
            self.take_events(core)?;
            if is_paused {
                self.hold(&mut core.state);
            } else if self.sync.is_none() {
                self.apply(core)?;
            }
            if let Some(error) = ended {
                // A complete snapshot is loaded even if the link is closed.
                return Err(Lost::Ended(error));
            }
        }
        if let Some(sync) = &mut self.sync
            && sync.load(core)? == Loaded::All
            && let Some(sync) = self.sync.take()
        {
            self.finish_sync(core, sync);
            self.take_events(core)?;
            self.apply(core)?;
        }
        self.write(&mut core.state)
    }

    /// Continues to connect.
    fn continue_connecting(&mut self, state: &mut State) -> Result<(), Lost> {
        let ended = |error| Lost::Ended(Some(error));
        let resolved = state.net.primary.as_mut().and_then(|socket| socket.take_resolved());
        if let Some(found) = resolved {
            let stream = found.and_then(|address| open(state, address)).map_err(ended)?;
            if let Some(socket) = &mut state.net.primary {
                socket.connect(stream);
            }
        }
        let Some(socket) = &mut state.net.primary else { return Ok(()) };
        if socket.continue_connecting().map_err(ended)? {
            set_progress(state, Progress::Handshake);
            notice!(state, "Non blocking connect for SYNC fired the event.");
        }
        Ok(())
    }

    /// Reads once. Some: the connection has ended after these bytes, with an error or without.
    fn read(&mut self, state: &mut State) -> Option<Option<io::Error>> {
        let count = match state.net.primary.as_mut()?.read(&mut self.buffer) {
            ReadResult::Bytes(count) => count,
            ReadResult::Nothing => return None,
            ReadResult::Ended(error) => return Some(error),
        };
        self.link.receive(&self.buffer[..count]);
        state.stats.counters.reads += 1;
        state.stats.counters.bytes_in += count as u64;
        state.stats.counters.replication_bytes_in += count as u64;
        note_heard(state, state.now.boot_us);
        None
    }

    fn write(&mut self, state: &mut State) -> Result<(), Lost> {
        let Some(socket) = &mut state.net.primary else { return Ok(()) };
        socket.push(&mut self.link.output);
        socket.write().map_err(|error| Lost::Ended(Some(error)))
    }

    /// Acts on the events of the handshake and the snapshot.
    fn take_events(&mut self, core: &mut Core) -> Result<(), Lost> {
        while let Some(event) = self.link.next_event() {
            match event {
                Event::Log(level, text) => {
                    core.state.log(level, format_args!("{text}"));
                    if level == Level::Warning {
                        note_failure(&mut core.state, text);
                    }
                }
                Event::Alive => {}
                Event::Failed { .. } => return Err(Lost::Logged),
                Event::Continues { id } => {
                    end_failover(&mut core.state);
                    continue_history(&mut core.state, id);
                    set_progress(&mut core.state, Progress::Connected);
                    notice!(
                        core.state,
                        "MASTER <-> REPLICA sync: Master accepted a Partial Resynchronization."
                    );
                }
                Event::FullSync { history } => {
                    end_failover(&mut core.state);
                    // Without a history SYNC was sent, which may be refused as PSYNC was.
                    if history.is_some() {
                        set_progress(&mut core.state, Progress::Sync);
                    }
                    self.sync = Some(Sync::begin(core, history).ok_or(Lost::Logged)?);
                }
                Event::Begins { bytes } => {
                    set_progress(&mut core.state, Progress::Sync);
                    if let Some(sync) = &mut self.sync {
                        sync.begins(core, bytes);
                    }
                }
                Event::Snapshot(bytes) => {
                    if let Some(following) = core.state.replication.following.as_deref_mut() {
                        following.transfer.read += bytes.len() as u64;
                    }
                    if let Some(sync) = &mut self.sync {
                        sync.take(&core.state, &bytes).ok_or(Lost::Logged)?;
                    }
                }
                Event::Ends { by_mark } => {
                    if let Some(sync) = &mut self.sync {
                        sync.ends(core, by_mark).ok_or(Lost::Logged)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Replaces the data by the loaded snapshot.
    fn finish_sync(&mut self, core: &mut Core, sync: Sync) {
        let by_mark = sync.is_by_mark();
        if !sync.put_in_place(core) {
            return;
        }
        set_progress(&mut core.state, Progress::Connected);
        self.logged.clear();
        self.on_disk = None;
        // Replacing the data may have taken long, and the primary may have waited in silence for
        // the acknowledgement.
        let now_us = core.state.clock.now().boot_us;
        note_heard(&mut core.state, now_us);
        notice!(core.state, "MASTER <-> REPLICA sync: Finished with success");
        if by_mark {
            self.acknowledge(&core.state, core.state.replication.offset);
        }
        if core.state.config.appendonly {
            restart_log(core);
        }
    }

    /// Reports the applied offset, and the one on disk, to the primary.
    fn acknowledge(&mut self, state: &State, offset: u64) {
        let synced = state.persistence.on_disk();
        while let (Some(synced), Some(&(applied, logged))) = (synced, self.logged.front())
            && logged <= synced
        {
            self.on_disk = Some(applied);
            self.logged.pop_front();
        }
        self.link.acknowledge(offset, self.on_disk.filter(|_| synced.is_some()));
    }

    /// Notes the AOF's position for the offset applied so far. Also under `appendfsync no`, because
    /// rewrites sync.
    fn note_logged(&mut self, state: &mut State) {
        if !state.persistence.is_aof_on() {
            return self.logged.clear();
        }
        persistence::spread_effects(state);
        let logged = (state.replication.offset, state.persistence.depends_on());
        if self.logged.back().is_none_or(|last| last.0 < logged.0) {
            self.logged.push_back(logged);
        }
        if self.logged.len() > LOGGED_MAX {
            // Keep every other entry: a later offset on disk implies the earlier ones.
            let mut behind = self.logged.len();
            self.logged.retain(|_| {
                behind -= 1;
                behind.is_multiple_of(2)
            });
        }
    }

    // ---- the stream -----------------------------------------------------------------------------

    /// Keeps received bytes until the pause is over.
    fn hold(&mut self, state: &mut State) {
        self.holds = true;
        if let Some(following) = state.replication.following.as_deref_mut() {
            following.unapplied = self.link.waiting() as u64;
        }
    }

    /// Applies received bytes of the stream, whole units only.
    fn apply(&mut self, core: &mut Core) -> Result<(), Lost> {
        let Some(following) = core.state.replication.following.as_deref() else { return Ok(()) };
        let mut selected = following.selected;
        let applied = self.apply_units(core, &mut selected);
        self.link.shrink();
        self.note_logged(&mut core.state);
        if let Some(following) = core.state.replication.following.as_deref_mut() {
            following.selected = selected;
            following.unapplied = self.link.waiting() as u64;
        }
        applied.map_err(Lost::Broken)
    }

    fn apply_units(&mut self, core: &mut Core, selected: &mut DbIndex) -> Result<(), Broken> {
        let mut ahead = Ahead::default();
        loop {
            ahead.look(&mut self.link, core, *selected);
            let Some(unit) = self.link.next_unit()? else { return Ok(()) };
            let asked = run_unit(core, unit, selected, &mut ahead);
            self.link.applied();
            if let Some(offset) = asked {
                self.acknowledge(&core.state, offset);
            }
        }
    }
}

fn end_failover(state: &mut State) {
    if let Some(following) = state.replication.following.as_deref_mut() {
        following.is_failover = false;
    }
}

/// Continues the primary's history, which may have a new replication ID.
fn continue_history(state: &mut State, id: Option<String>) {
    if let Some(id) = id.filter(|id| *id != state.replication.id) {
        warning!(state, "Master replication ID changed to {id}");
        let replication = &mut state.replication;
        let old = std::mem::replace(&mut replication.id, id);
        replication.ancestor = Some(Ancestor { id: old, end: replication.offset + 1 });
        close_replicas(state);
    }
    begin_backlog(state);
}

/// A replica always has a backlog, because it may become a primary.
fn begin_backlog(state: &mut State) {
    let size = usize::try_from(state.config.repl_backlog_size).unwrap_or(usize::MAX);
    let replication = &mut state.replication;
    if replication.backlog.is_none() {
        replication.backlog = Some(Backlog::new(size, replication.offset + 1));
    }
}

/// Switches the append-only file, which the snapshot has ended, on again.
fn restart_log(core: &mut Core) {
    if let Err(why) = replicas::begin_aof(core, false) {
        warning!(
            core.state,
            "Failed enabling the AOF after successful master synchronization! {why}"
        );
    }
}

/// Runs one unit, and adds its bytes to the stream. Some: the offset before a REPLCONF GETACK in
/// it, which is to be acknowledged.
fn run_unit(
    core: &mut Core,
    unit: Requests<'_>,
    selected: &mut DbIndex,
    ahead: &mut Ahead,
) -> Option<u64> {
    let (raw, before) = (unit.raw(), core.state.replication.offset);
    let mut asked = false;
    core.keyspace.begin_loading();
    for request in unit {
        let args = Args::new(request.buffer, request.ranges);
        core.keyspace.select(*selected);
        match args.get(0) {
            name if name.eq_ignore_ascii_case(b"SELECT") && args.len() == 2 => {
                let number = args.integer(1).ok();
                match number.and_then(|number| DbIndex::checked(number, core.keyspace.databases()))
                {
                    Some(database) => *selected = database,
                    None => {
                        note_error(&mut core.state, args, &CommandError::DbIndexOutOfRange.wire())
                    }
                }
            }
            name if name.eq_ignore_ascii_case(b"REPLCONF") => {
                asked |= args.len() > 1 && args.get(1).eq_ignore_ascii_case(b"GETACK");
            }
            _ => run_request(core, args, ahead.take(request.at)),
        }
    }
    core.keyspace.end_loading();
    core.state.effects.end_unit();
    feed(&mut core.state, raw);
    if core.keyspace.has_awaited_changes() {
        waking::serve(core);
    }
    asked.then_some(before)
}

/// Adds a unit's bytes to the stream: those of a large unit in pieces, so that they are not kept
/// twice.
fn feed(state: &mut State, raw: &[u8]) {
    if raw.len() <= FEED_BYTES {
        return state.replication.feed(raw);
    }
    for piece in raw.chunks(FEED_BYTES) {
        state.replication.feed(piece);
        state.trim_backlog();
    }
}

/// Runs one request. `ahead`: the command and hash, if they were looked up in advance.
fn run_request(core: &mut Core, args: Args<'_>, ahead: Option<LookedUp>) {
    let looked_up = ahead.unwrap_or_else(|| LookedUp::without_key(&core.state, args));
    let request = looked_up.request(args, Origin::Stream);
    let command = request.command;
    let mut output = OutputBuffer::default();
    let reply = ReplyWriter::new(&mut output, Protocol::Resp2);
    let mut gate = Gate::new(core, Caller::Primary, reply);
    let ran = gate.run_trusted(&request);
    if core.state.is_monitored() && !command.is_unknown() {
        let database = core.keyspace.selected();
        monitor::feed_followed(&mut core.state, database, command, args);
    }
    match (ran, output.whole().strip_prefix(b"-")) {
        (Err(error), _) => note_error(&mut core.state, args, &error.wire()),
        (Ok(()), Some(error)) => note_error(&mut core.state, args, error),
        (Ok(()), None) => {}
    }
}

/// A command of the primary has failed here: the data may differ from now on, and
/// `propagation-error-behavior` may stop the server.
#[cold]
fn note_error(state: &mut State, args: Args<'_>, error: &[u8]) {
    let command = state.find_trusted(args.get(0));
    let name = match command {
        Some(command) => command.full_name.to_string(),
        None => String::from_utf8_lossy(args.get(0)).to_ascii_lowercase(),
    };
    let wire = [b"-", error].concat();
    if let Some(line) = unexpected::note(state, Caller::Primary, &name, &wire) {
        warning!(state, "{line}");
        process::end(1);
    }
}
