//! Following a primary: the connection to it, its stream, and the change between the roles.
//!
//! ```text
//! socket -> Link: handshake, snapshot, stream
//!   snapshot -> file or pipe -> databases beside the served ones -> replace them
//!   stream   -> the gate, as Caller::Primary -> the backlog, byte for byte -> acknowledgement
//! ```
//!
//! [`turn`] does all this in bounded pieces, once a turn of the loop: clients are served meanwhile. A snapshot
//! becomes visible when it is complete. The stream is applied without checking deadlines.
//!
//! Source: `replication.c` of Redis 7.0.15, whose log lines these are.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex};

use mio::Token;

use crate::client::{ClientFlags, ClientId};
use crate::config::{AppendFsync, PrimaryAddress, system_text};
use crate::error::CommandError;
use crate::gate::blocking;
use crate::gate::context::{Caller, Origin};
use crate::gate::execute::{Gate, Request};
use crate::gate::looked_up::LookedUp;
use crate::gate::monitor;
use crate::gate::persistence::{self, Moment};
use crate::gate::redirect::{self, Blocked};
use crate::gate::state::State;
use crate::keyspace::Keyspace;
use crate::net::dialer::Route;
use crate::net::stream::Stream;
use crate::net::tls::stream::Handshake;
use crate::persist::aof::log::LogOffset;
use crate::persist::saver::lock;
use crate::replication::backlog::Backlog;
use crate::replication::following::{Following, Progress, Transfer};
use crate::replication::link::{Broken, Event, HandshakeOptions, Link, Requests, Stage};
use crate::replication::{Ancestor, Replication, Restart};
use crate::resp::args::Args;
use crate::resp::reply::{OutputBuffer, Protocol, ReplyWriter};
use crate::sys::log::Level;

mod ahead;
mod sync;

use ahead::Ahead;
use sync::{Loaded, Sync};

/// The connection's token: above those of clients, below those of the server itself.
pub const PRIMARY: Token = Token(usize::MAX - 66);
/// Bytes read in one turn.
const READ_BYTES: usize = 64 * 1024;
/// Reads of a snapshot in one turn, of [`READ_BYTES`] each.
const SNAPSHOT_READS: usize = 8;
/// Bytes of the stream that are read while a pause postpones it.
const HELD_BYTES: usize = 1 << 20;
/// Interval of checks of the link, acknowledgements and attempts to connect. Unit: microseconds.
const PERIOD_US: i64 = 1_000_000;

/// Positions of the log that are kept to tell which offset of the stream is on disk.
const LOGGED_MAX: usize = 4096;

/// The error for blocked clients when a primary becomes a replica.
const UNBLOCKED: &[u8] =
    b"UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)";

/// The address of a host name, once a thread has resolved it.
type Resolving = Arc<Mutex<Option<io::Result<SocketAddr>>>>;

/// The connection to the primary.
pub struct PrimaryLink {
    socket_state: SocketState,
    /// The address connected to, once known.
    address: Option<SocketAddr>,
    link: Link,
    /// What is read into; empty between reads.
    buffer: Box<[u8]>,
    ahead: Ahead,
    /// A snapshot being received or loaded.
    sync: Option<Sync>,
    /// There may be bytes to read that the system will not announce again.
    can_read: bool,
    can_write: bool,
    /// The other end has closed: read on after a short read, until the end.
    is_closed: bool,
    /// CLIENT KILL.
    is_killed: bool,
    /// Part of the stream was received during a pause, and is applied after it.
    holds: bool,
    next_period_us: i64,
    /// Offsets of the stream, each with the log's position after it.
    logged: VecDeque<(u64, LogOffset)>,
    /// The last of those offsets known to be on disk.
    on_disk: Option<u64>,
}

/// The state of the connection itself.
enum SocketState {
    Resolving(Resolving),
    Connecting(Stream),
    Connected(Stream),
}

/// Why a link is closed.
enum Lost {
    /// Logged already.
    Logged,
    /// The connection has ended, with an error or without.
    Ended(Option<io::Error>),
    Broken(Broken),
}

// ---- roles -----------------------------------------------------------------------------------------------------------

/// Starts to follow a primary, another one than before.
pub fn follow(db: &mut Keyspace, server: &mut State, host: &[u8], port: u16, is_failover: bool) {
    let was_primary = !server.replication.is_replica();
    server.effects.end_unit();
    persistence::spread_effects(server);
    let known = close_link(db, server);
    // Valkey waits for the failover's success: after an abort this is the primary again.
    if !(is_failover && server.config.compatible_with.is_valkey()) {
        end_blocking(db, server, host, port);
    }
    let mut following = Following::new(host.to_vec(), port);
    following.is_failover = is_failover;
    if was_primary {
        server.log(
            Level::Notice,
            format_args!(
                "Before turning into a replica, using my own master parameters to synthesize a cached master: I may be able \
                 to synchronize with the new master with just a partial transfer."
            ),
        );
        following.knows_history = true;
    } else if let Some((knows_history, selected)) = known {
        (following.knows_history, following.selected) = (knows_history, selected);
    }
    take_role(db, server, Some(following));
    server.log(Level::Notice, format_args!("Connecting to MASTER {}", primary_name(server)));
    connect(server);
}

/// At the start, after loading: follows the configured primary, continuing at the history and offset saved in the RDB
/// file, if it has them and no append-only file was loaded.
pub fn follow_at_start(db: &mut Keyspace, server: &mut State) {
    let Moment { id, offset, stream_db } = std::mem::take(&mut server.persistence.moment);
    let moment = id.zip(offset).filter(|_| !server.config.appendonly);
    let Some(PrimaryAddress { host, port }) = server.config.replicaof.clone() else { return };
    let mut following = Following::new(host, port);
    if let Some((id, offset)) = moment {
        (server.replication.id, server.replication.offset) = (id, offset);
        following.knows_history = true;
        following.selected = stream_db.min(db.databases() - 1);
    }
    take_role(db, server, Some(following));
}

/// Stops following: this server becomes a primary with its present data; replicas that know its history can continue.
pub fn unfollow(db: &mut Keyspace, server: &mut State) {
    if !server.replication.is_replica() {
        return;
    }
    server.effects.end_unit();
    persistence::spread_effects(server);
    close_link(db, server);
    server.replication.branch_off();
    server.replication.without_replicas_since_us = server.now.boot_us;
    close_replicas(server);
    take_role(db, server, None);
    server.effects.select_anew();
    if server.config.appendonly && !server.persistence.is_aof_on() {
        restart_log(db, server);
    }
}

fn take_role(db: &mut Keyspace, server: &mut State, following: Option<Following>) {
    let address = following.as_ref();
    server.config.replicaof = address
        .map(|following| PrimaryAddress { host: following.host.clone(), port: following.port });
    let follows = following.is_some();
    server.replication.restart = Restart::default();
    server.replication.following = following.map(Box::new);
    server.logger.set_role(follows);
    (db.follows, db.keeps_expired) = (follows, follows);
    persistence::note_listeners(db, server);
    server.note_gate();
}

/// Unblocks the clients that this server's following another one concerns.
pub fn end_blocking(db: &mut Keyspace, server: &mut State, host: &[u8], port: u16) {
    let blocked = server.clients.iter().filter(|client| client.blocked.is_some());
    let blocked: Vec<ClientId> = blocked.map(|client| client.id).collect();
    blocked.into_iter().for_each(|id| unblock_and_close(db, server, id, host, port));
}

/// Unblocks a client that the change of role concerns, and closes it, or sends it to the primary.
fn unblock_and_close(db: &mut Keyspace, server: &mut State, id: ClientId, host: &[u8], port: u16) {
    match redirect::blocked(server, id) {
        Blocked::Stays => return,
        Blocked::Redirected => {
            blocking::unblock_with(db, server, id, &redirect::error(host, port).wire());
            return;
        }
        Blocked::Closed => {}
    }
    blocking::unblock_with(db, server, id, UNBLOCKED);
    if let Some(client) = server.clients.get_mut(id) {
        client.flags |= ClientFlags::CLOSE_AFTER_REPLY;
        server.clients.last_replies.push(id);
        server.clients.flush_later(id);
    }
}

/// Closes this server's replicas: they learn of the change when they reconnect.
fn close_replicas(server: &mut State) {
    for id in server.replication.replicas.clone() {
        server.clients.close(id);
    }
}

/// Closes the link, if there is one. Returns whether the primary knows the history here, and the database that its
/// stream has selected.
fn close_link(db: &mut Keyspace, server: &mut State) -> Option<(bool, usize)> {
    let following = server.replication.following.as_deref()?;
    let known = (following.knows_history, following.selected);
    if following.progress == Progress::Connected {
        log_lost(server);
        server.log(Level::Notice, format_args!("Caching the disconnected master state."));
    }
    if let Some(link) = server.link.take() {
        link.close(db, server);
    }
    Some(known)
}

fn log_lost(server: &State) {
    server.log(Level::Warning, format_args!("Connection with master lost."));
}

/// The primary's host and port for the log.
fn primary_name(server: &State) -> String {
    server.replication.following.as_ref().map_or_else(String::new, |following| following.name())
}

/// The primary's address, while the link is in use.
pub fn link_address(server: &State) -> Option<String> {
    let following = server.replication.following.as_deref()?;
    let address = server.link.as_deref()?.address?;
    following.is_connected().then(|| address.to_string())
}

/// `CLIENT KILL` of the link. False: no link is in use.
pub fn kill_link(server: &mut State) -> bool {
    let is_connected = |following: &Following| following.progress == Progress::Connected;
    match &mut server.link {
        Some(link) if server.replication.following.as_deref().is_some_and(is_connected) => {
            link.is_killed = true;
            true
        }
        _ => false,
    }
}

// ---- connecting ------------------------------------------------------------------------------------------------------

/// Starts to connect. An immediate failure is tried again after [`PERIOD_US`].
fn connect(server: &mut State) {
    let Some(following) = server.replication.following.as_deref_mut() else { return };
    let (host, port) = (String::from_utf8_lossy(&following.host).into_owned(), following.port);
    following.heard_us = server.now.boot_us;
    let ip = host.parse();
    let address = ip.clone().ok().map(|ip| SocketAddr::new(ip, port));
    let socket_state = match ip {
        Ok(ip) => match open(server, SocketAddr::new(ip, port)) {
            Ok(stream) => SocketState::Connecting(stream),
            Err(error) => return cannot_connect(server, &error),
        },
        Err(_) => match resolve(server, host, port) {
            Ok(resolving) => SocketState::Resolving(resolving),
            Err(error) => return cannot_connect(server, &error),
        },
    };
    let hello = hello(server);
    let next_period_us = server.now.boot_us + PERIOD_US;
    server.link = Some(Box::new(PrimaryLink {
        socket_state,
        address,
        link: Link::new(hello),
        buffer: vec![0; READ_BYTES].into(),
        ahead: Ahead::default(),
        sync: None,
        can_read: false,
        can_write: false,
        is_closed: false,
        is_killed: false,
        holds: false,
        next_period_us,
        logged: VecDeque::new(),
        on_disk: None,
    }));
    set_progress(server, Progress::Connecting);
    server.log(Level::Notice, format_args!("MASTER <-> REPLICA sync started"));
}

fn cannot_connect(server: &mut State, error: &io::Error) {
    let why = system_text(error);
    server.log(Level::Warning, format_args!("Unable to connect to MASTER: {why}"));
    set_progress(server, Progress::Connect);
}

/// Has a thread resolve a host name.
fn resolve(server: &State, host: String, port: u16) -> io::Result<Resolving> {
    let resolving = Resolving::default();
    let (theirs, wake) = (resolving.clone(), server.persistence.wake());
    server.persistence.background().spawn("resolver", move || {
        let none = || io::Error::new(io::ErrorKind::NotFound, "Name or service not known");
        let found = (host.as_str(), port).to_socket_addrs();
        let found = found.and_then(|mut found| found.next().ok_or_else(none));
        *lock(&theirs) = Some(found);
        wake();
    })?;
    Ok(resolving)
}

/// Opens a connection that is not established yet.
fn open(server: &State, to: SocketAddr) -> io::Result<Stream> {
    let from = String::from_utf8_lossy(&server.config.bind_source_addr).parse().ok();
    let tls = server.net.tls.as_ref().filter(|_| server.config.tls_replication);
    let route = Route { to, from, tls: tls.map(|tls| &tls.client) };
    let mut stream = server.net.dialer.connect(&route)?;
    let registry = server.net.poll.registry();
    stream.register(registry, PRIMARY)?;
    stream.reregister(registry, PRIMARY, true)?;
    Ok(stream)
}

/// What this server announces in the handshake.
fn hello(server: &State) -> HandshakeOptions {
    let config = &server.config;
    let text = |text: &Vec<u8>| Some(text.clone()).filter(|text| !text.is_empty());
    let own_port =
        if config.tls_replication && config.tls_port != 0 { config.tls_port } else { config.port };
    let port = match (config.replica_announce_port, own_port) {
        (0, 0) => server.process.identity.port,
        (0, port) | (port, _) => port,
    };
    let Replication { id, offset, following, .. } = &server.replication;
    let following = following.as_deref();
    let knows_history = following.is_some_and(|following| following.knows_history);
    HandshakeOptions {
        password: text(&config.masterauth),
        user: text(&config.masteruser),
        port,
        address: text(&config.replica_announce_ip),
        continues: knows_history.then(|| (id.clone(), offset + 1)),
        is_failover: following.is_some_and(|following| following.is_failover),
    }
}

fn set_progress(server: &mut State, progress: Progress) {
    if let Some(following) = server.replication.following.as_deref_mut() {
        following.progress = progress;
        if progress == Progress::Connected {
            following.down_since_us = None;
            following.transfer = Transfer::default();
        }
    }
    server.note_gate();
}

// ---- each turn -------------------------------------------------------------------------------------------------------

/// Notes the connection's readiness events.
pub fn look(server: &mut State, events: &mio::Events) {
    let Some(link) = &mut server.link else { return };
    for event in events.iter().filter(|event| event.token() == PRIMARY) {
        let is_over = event.is_read_closed() || event.is_error();
        link.can_read |= event.is_readable() || is_over;
        link.can_write |= event.is_writable() || event.is_error();
        link.is_closed |= is_over;
    }
}

/// Whether [`turn`] has work now, without waiting for an event.
pub fn wants_turn(server: &State) -> bool {
    server.link.as_deref().is_some_and(|link| link.wants_turn(link.is_paused(server)))
}

/// Continues the link's handshake, snapshot or stream, for a bounded time.
pub fn turn(db: &mut Keyspace, server: &mut State) {
    let Some(mut link) = server.link.take() else { return };
    let database = db.selected();
    match link.go_on(db, server) {
        Ok(()) => server.link = Some(link),
        Err(lost) => lose(db, server, link, lost),
    }
    db.select(database);
}

/// Once a second: acknowledges, tries to connect, and closes a link after a timeout.
pub fn periodic(db: &mut Keyspace, server: &mut State) {
    let Some(following) = server.replication.following.as_deref() else { return };
    let now_us = server.now.boot_us;
    let silent_us = now_us - following.heard_us;
    let progress = following.progress;
    let Some(mut link) = server.link.take() else {
        if silent_us >= PERIOD_US {
            let name = following.name();
            server.log(Level::Notice, format_args!("Connecting to MASTER {name}"));
            connect(server);
        }
        return;
    };
    if now_us >= link.next_period_us {
        link.next_period_us = now_us + PERIOD_US;
        if link.sync.as_ref().is_some_and(Sync::is_loading) {
            link.link.output.push(b'\n');
        } else if progress == Progress::Connected {
            link.acknowledge(server, server.replication.offset);
        }
    }
    // No bytes are expected while a file is loaded.
    let reads_file = link.sync.as_ref().is_some_and(Sync::reads_file);
    let timeout_us = i64::from(server.config.repl_timeout) * 1_000_000;
    if silent_us <= timeout_us || reads_file || progress == Progress::Connect {
        server.link = Some(link);
        return;
    }
    let text = match progress {
        Progress::Connect | Progress::Connecting | Progress::Handshake => {
            "Timeout connecting to the MASTER..."
        }
        Progress::Sync => {
            "Timeout receiving bulk data from MASTER... If the problem persists try to set the 'repl-timeout' parameter in \
             redis.conf to a larger value."
        }
        Progress::Connected => "MASTER timeout: no data nor PING received...",
    };
    server.log(Level::Warning, format_args!("{text}"));
    if progress != Progress::Connected {
        set_progress(server, Progress::Sync);
    }
    lose(db, server, link, Lost::Logged);
}

/// Closes a link and reconnects: at once if it worked before, otherwise after [`PERIOD_US`].
fn lose(db: &mut Keyspace, server: &mut State, link: Box<PrimaryLink>, lost: Lost) {
    let Some(following) = server.replication.following.as_deref_mut() else { return };
    let progress = following.progress;
    // A target that cannot be reached is tried again; one that has refused would refuse again.
    if following.is_failover
        && progress == Progress::Handshake
        && matches!(lost, Lost::Logged | Lost::Broken(_))
    {
        following.failover_failed = true;
    }
    if progress == Progress::Connected {
        following.down_since_us = Some(server.now.boot_us);
        following.knows_history = !matches!(lost, Lost::Broken(_));
    }
    let why = match &lost {
        Lost::Ended(Some(error)) => system_text(error),
        _ => "connection lost".into(),
    };
    let stage = link.link.stage();
    if link.sync.as_ref().is_some_and(|sync| sync.is_loading() && !sync.reads_file()) {
        let at = server.persistence.loading.map_or(0, |loading| loading.loaded_bytes);
        server.log(
            Level::Warning,
            format_args!(
                "Internal error in RDB reading offset {at}: the connection has ended. Failure loading rdb format from socket, \
                 assuming connection error, resuming operation."
            ),
        );
    }
    link.close(db, server);
    let is_again = matches!(progress, Progress::Sync | Progress::Connected);
    set_progress(server, Progress::Connect);
    let name = primary_name(server);
    match (progress, lost) {
        (Progress::Connected, lost) => {
            if let Lost::Broken(Broken(text)) = &lost {
                server.log(Level::Warning, format_args!("{text}"));
            }
            log_lost(server);
            if !matches!(lost, Lost::Broken(_)) {
                let text = "Caching the disconnected master state.";
                server.log(Level::Notice, format_args!("{text}"));
            }
            server.log(Level::Notice, format_args!("Reconnecting to MASTER {name}"));
        }
        (Progress::Sync, lost) => {
            if let Lost::Ended(_) = lost {
                let text = "I/O error trying to sync with MASTER";
                server.log(Level::Warning, format_args!("{text}: {why}"));
            }
            let text = "Reconnecting to MASTER";
            server.log(Level::Notice, format_args!("{text} {name} after failure"));
        }
        (Progress::Connecting, Lost::Ended(_)) => {
            let text = "Error condition on socket for SYNC";
            server.log(Level::Warning, format_args!("{text}: {why}"));
        }
        (_, Lost::Ended(_)) if stage == Stage::Handshake => {
            let text = "Failed to read response from the server";
            server.log(Level::Warning, format_args!("{text}: {why}"));
            let text = "Master did not respond to command during SYNC handshake";
            server.log(Level::Warning, format_args!("{text}"));
        }
        _ => {}
    }
    if is_again {
        connect(server);
    }
}

impl PrimaryLink {
    /// Whether CLIENT PAUSE postpones the stream: the data must not change, so bytes wait here or at the primary.
    fn is_paused(&self, server: &State) -> bool {
        let following = server.replication.following.as_deref();
        server.pauses.strictest().is_some() && following.is_some_and(Following::is_connected)
    }

    fn wants_turn(&self, is_paused: bool) -> bool {
        let sync = self.sync.as_ref();
        let holds_enough = is_paused && self.link.waiting() >= HELD_BYTES;
        let may_read = sync.is_none_or(|sync| !sync.is_full()) && !holds_enough;
        let reads =
            !matches!(self.socket_state, SocketState::Resolving(_)) && self.can_read && may_read;
        reads || self.is_killed || sync.is_some_and(Sync::wants_turn)
    }

    fn close(self: Box<Self>, db: &mut Keyspace, server: &mut State) {
        if let SocketState::Connecting(mut stream) | SocketState::Connected(mut stream) =
            self.socket_state
        {
            // If the system has dropped the socket already, deregistering fails harmlessly.
            let _ = stream.deregister(server.net.poll.registry());
        }
        if let Some(sync) = self.sync {
            sync.abort(db, server);
        }
    }

    fn go_on(&mut self, db: &mut Keyspace, server: &mut State) -> Result<(), Lost> {
        if self.is_killed {
            return Err(Lost::Logged);
        }
        self.continue_connecting(server)?;
        if !matches!(self.socket_state, SocketState::Connected(_)) {
            return Ok(());
        }
        let is_paused = self.is_paused(server);
        if !is_paused && std::mem::take(&mut self.holds) {
            self.apply(db, server)?;
        }
        let reads = if self.sync.is_some() { SNAPSHOT_READS } else { 1 };
        for _ in 0..reads {
            if !self.can_read || self.sync.as_ref().is_some_and(Sync::is_full) {
                break;
            }
            if is_paused && self.link.waiting() >= HELD_BYTES {
                break;
            }
            let ended = self.read(server);
            self.take_events(db, server)?;
            if is_paused {
                self.hold(server);
            } else if self.sync.is_none() {
                self.apply(db, server)?;
            }
            if let Some(error) = ended {
                // A complete snapshot is loaded even if the link is closed.
                return Err(Lost::Ended(error));
            }
        }
        if let Some(sync) = &mut self.sync
            && sync.load(db, server)? == Loaded::All
            && let Some(sync) = self.sync.take()
        {
            self.finish_sync(db, server, sync);
            self.take_events(db, server)?;
            self.apply(db, server)?;
        }
        self.write()
    }

    /// Continues to connect.
    fn continue_connecting(&mut self, server: &mut State) -> Result<(), Lost> {
        if let SocketState::Resolving(resolving) = &self.socket_state {
            let Some(found) = lock(resolving).take() else { return Ok(()) };
            self.address = found.as_ref().ok().copied();
            let opened = found.and_then(|address| open(server, address));
            self.socket_state =
                SocketState::Connecting(opened.map_err(|error| Lost::Ended(Some(error)))?);
        }
        if let SocketState::Connecting(stream) = &mut self.socket_state
            && (self.can_write || self.can_read)
        {
            let is_connected = stream.is_connected().and_then(|is_connected| {
                if is_connected { stream.handshake() } else { Ok(Handshake::Waits) }
            });
            match is_connected.map_err(|error| Lost::Ended(Some(error)))? {
                Handshake::Done => {}
                Handshake::Unfinished => return Ok(()),
                Handshake::Waits => {
                    (self.can_read, self.can_write) = (false, false);
                    return Ok(());
                }
            }
            // Bytes behind the handshake may be buffered already.
            (self.can_read, self.can_write) = (true, true);
            let waiting = SocketState::Resolving(Resolving::default());
            if let SocketState::Connecting(stream) =
                std::mem::replace(&mut self.socket_state, waiting)
            {
                self.socket_state = SocketState::Connected(stream);
            }
            set_progress(server, Progress::Handshake);
            let text = "Non blocking connect for SYNC fired the event.";
            server.log(Level::Notice, format_args!("{text}"));
        }
        Ok(())
    }

    /// Reads once. Some: the connection has ended after these bytes, with an error or without.
    fn read(&mut self, server: &mut State) -> Option<Option<io::Error>> {
        let SocketState::Connected(stream) = &mut self.socket_state else { return None };
        let buffer = &mut self.buffer;
        match stream.read(buffer) {
            Ok(0) => {
                self.can_read = false;
                Some(None)
            }
            Ok(count) => {
                self.can_read = count == buffer.len() || self.is_closed || stream.has_more();
                self.link.receive(&buffer[..count]);
                server.stats.counters.reads += 1;
                server.stats.counters.bytes_in += count as u64;
                server.stats.counters.replication_bytes_in += count as u64;
                if let Some(following) = server.replication.following.as_deref_mut() {
                    following.heard_us = server.now.boot_us;
                }
                None
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.can_read = false;
                None
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => None,
            Err(error) => Some(Some(error)),
        }
    }

    fn write(&mut self) -> Result<(), Lost> {
        let SocketState::Connected(stream) = &mut self.socket_state else { return Ok(()) };
        while !self.link.output.is_empty() && self.can_write {
            match stream.write(&self.link.output) {
                Ok(sent) => drop(self.link.output.drain(..sent)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.can_write = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Lost::Ended(Some(error))),
            }
        }
        if self.can_write && stream.has_unsent() {
            match stream.flush() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.can_write = false,
                flushed => flushed.map_err(|error| Lost::Ended(Some(error)))?,
            }
        }
        Ok(())
    }

    /// Acts on the events of the handshake and the snapshot.
    fn take_events(&mut self, db: &mut Keyspace, server: &mut State) -> Result<(), Lost> {
        while let Some(event) = self.link.next_event() {
            match event {
                Event::Log(level, text) => server.log(level, format_args!("{text}")),
                Event::Alive => {}
                Event::Failed { .. } => return Err(Lost::Logged),
                Event::Continues { id } => {
                    end_failover(server);
                    continue_history(server, id);
                    set_progress(server, Progress::Connected);
                    let text =
                        "MASTER <-> REPLICA sync: Master accepted a Partial Resynchronization.";
                    server.log(Level::Notice, format_args!("{text}"));
                }
                Event::FullSync { history } => {
                    end_failover(server);
                    set_progress(server, Progress::Sync);
                    self.sync = Some(Sync::begin(db, server, history).ok_or(Lost::Logged)?);
                }
                Event::Begins { bytes } => {
                    if let Some(sync) = &mut self.sync {
                        sync.begins(db, server, bytes);
                    }
                }
                Event::Snapshot(bytes) => {
                    if let Some(following) = server.replication.following.as_deref_mut() {
                        following.transfer.read += bytes.len() as u64;
                    }
                    if let Some(sync) = &mut self.sync {
                        sync.take(server, &bytes).ok_or(Lost::Logged)?;
                    }
                }
                Event::Ends { by_mark } => {
                    if let Some(sync) = &mut self.sync {
                        sync.ends(db, server, by_mark).ok_or(Lost::Logged)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Replaces the data by the loaded snapshot.
    fn finish_sync(&mut self, db: &mut Keyspace, server: &mut State, sync: Sync) {
        let by_mark = sync.is_by_mark();
        if !sync.put_in_place(db, server) {
            return;
        }
        set_progress(server, Progress::Connected);
        self.logged.clear();
        self.on_disk = None;
        let text = "MASTER <-> REPLICA sync: Finished with success";
        server.log(Level::Notice, format_args!("{text}"));
        if by_mark {
            self.acknowledge(server, server.replication.offset);
        }
        if server.config.appendonly {
            restart_log(db, server);
        }
    }

    /// Tells the primary the offset that was applied, and the one on disk.
    fn acknowledge(&mut self, server: &State, offset: u64) {
        let synced = server.persistence.on_disk();
        let synced = synced.filter(|_| server.config.appendfsync != AppendFsync::No);
        while let (Some(synced), Some(&(applied, logged))) = (synced, self.logged.front())
            && logged <= synced
        {
            self.on_disk = Some(applied);
            self.logged.pop_front();
        }
        self.link.acknowledge(offset, self.on_disk.filter(|_| synced.is_some()));
    }

    /// Notes the log's position for the offset applied so far.
    fn note_logged(&mut self, server: &mut State) {
        if !server.persistence.is_aof_on() || server.config.appendfsync == AppendFsync::No {
            return self.logged.clear();
        }
        persistence::spread_effects(server);
        let logged = (server.replication.offset, server.persistence.depends_on());
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

    // ---- the stream ----------------------------------------------------------------------------------------------

    /// Keeps received bytes until the pause is over.
    fn hold(&mut self, server: &mut State) {
        self.holds = true;
        if let Some(following) = server.replication.following.as_deref_mut() {
            following.unapplied = self.link.waiting() as u64;
        }
    }

    /// Applies received bytes of the stream, whole units only.
    fn apply(&mut self, db: &mut Keyspace, server: &mut State) -> Result<(), Lost> {
        let Some(following) = server.replication.following.as_deref() else { return Ok(()) };
        let mut selected = following.selected;
        self.ahead.forget();
        let applied = self.apply_units(db, server, &mut selected);
        self.link.shrink();
        self.note_logged(server);
        if let Some(following) = server.replication.following.as_deref_mut() {
            following.selected = selected;
            following.unapplied = self.link.waiting() as u64;
        }
        applied.map_err(Lost::Broken)
    }

    fn apply_units(
        &mut self,
        db: &mut Keyspace,
        server: &mut State,
        selected: &mut usize,
    ) -> Result<(), Broken> {
        loop {
            self.ahead.look(&mut self.link, db, server, *selected);
            let Some(unit) = self.link.next_unit()? else { return Ok(()) };
            let asked = run_unit(db, server, unit, selected, &mut self.ahead);
            self.link.applied();
            if let Some(offset) = asked {
                self.acknowledge(server, offset);
            }
        }
    }
}

fn end_failover(server: &mut State) {
    if let Some(following) = server.replication.following.as_deref_mut() {
        following.is_failover = false;
    }
}

/// Continues the primary's history, which may have a new replication ID.
fn continue_history(server: &mut State, id: Option<String>) {
    if let Some(id) = id.filter(|id| *id != server.replication.id) {
        server.log(Level::Warning, format_args!("Master replication ID changed to {id}"));
        let replication = &mut server.replication;
        let old = std::mem::replace(&mut replication.id, id);
        replication.ancestor = Some(Ancestor { id: old, end: replication.offset + 1 });
        close_replicas(server);
    }
    begin_backlog(server);
}

/// A replica always has a backlog, because it may become a primary.
fn begin_backlog(server: &mut State) {
    let size = usize::try_from(server.config.repl_backlog_size).unwrap_or(usize::MAX);
    let replication = &mut server.replication;
    if replication.backlog.is_none() {
        replication.backlog = Some(Backlog::new(size, replication.offset + 1));
    }
}

/// Switches the append-only file, which the snapshot has ended, on again.
fn restart_log(db: &mut Keyspace, server: &mut State) {
    if let Err(why) = persistence::begin_aof(db, server, false) {
        let text = "Failed enabling the AOF after successful master synchronization!";
        server.log(Level::Warning, format_args!("{text} {why}"));
    }
}

/// Runs one unit, and adds its bytes to the stream. Some: the offset before a REPLCONF GETACK in it, which is to be acknowledged.
fn run_unit(
    db: &mut Keyspace,
    server: &mut State,
    unit: Requests<'_>,
    selected: &mut usize,
    ahead: &mut Ahead,
) -> Option<u64> {
    let (raw, before) = (unit.raw(), server.replication.offset);
    let mut asked = false;
    db.begin_loading();
    for (buffer, ranges) in unit {
        let args = Args::new(buffer, ranges);
        db.select(*selected);
        match args.get(0) {
            name if name.eq_ignore_ascii_case(b"SELECT") && args.len() == 2 => {
                let number = args.integer(1).ok().and_then(|number| usize::try_from(number).ok());
                match number.filter(|&number| number < db.databases()) {
                    Some(number) => *selected = number,
                    None => note_error(server, args, &CommandError::DbIndexOutOfRange.wire()),
                }
            }
            name if name.eq_ignore_ascii_case(b"REPLCONF") => {
                asked |= args.len() > 1 && args.get(1).eq_ignore_ascii_case(b"GETACK");
            }
            _ => run_request(db, server, args, ahead.take(ranges)),
        }
    }
    db.end_loading();
    server.effects.end_unit();
    server.replication.feed(raw);
    if db.waiting.has_ready() {
        blocking::serve(db, server);
    }
    asked.then_some(before)
}

/// Runs one request. `ahead`: what was looked up of it.
fn run_request(db: &mut Keyspace, server: &mut State, args: Args<'_>, ahead: Option<LookedUp>) {
    let looked_up = ahead.unwrap_or_else(|| LookedUp::without_key(server, args));
    let command = looked_up.command;
    let mut output = OutputBuffer::default();
    let reply = ReplyWriter::new(&mut output, Protocol::Resp2);
    let mut gate = Gate { db, server, caller: Caller::Primary, reply };
    let request = Request { args, command, prehashed: looked_up.prehashed() };
    let ran = gate.run_trusted(&request, Origin::Transaction);
    if let (true, Some(command)) = (server.is_monitored(), command) {
        let database = db.selected();
        monitor::feed_followed(server, database, command, args);
    }
    match (ran, output.whole().strip_prefix(b"-")) {
        (Err(error), _) => note_error(server, args, &error.wire()),
        (Ok(()), Some(error)) => note_error(server, args, error),
        (Ok(()), None) => {}
    }
}

/// A command of the primary has failed here: the data may differ from now on, and `propagation-error-behavior` may
/// stop the server.
#[cold]
fn note_error(server: &mut State, args: Args<'_>, error: &[u8]) {
    server.stats.counters.unexpected_error_replies += 1;
    let name = String::from_utf8_lossy(args.get(0)).to_ascii_lowercase();
    let error = String::from_utf8_lossy(error);
    let error = error.trim_end();
    server.log(
        Level::Warning,
        format_args!(
            "== CRITICAL == This replica is sending an error to its master: '{error}' after processing the command '{name}'"
        ),
    );
    if server.config.propagation_error_behavior != "ignore" && server.config.replica_read_only {
        let text =
            "This replica panicked sending an error to its master after processing the command";
        server.log(Level::Warning, format_args!("{text} '{name}'"));
        std::process::exit(1);
    }
}
