//! The cluster bus: listeners and connections between nodes, in both directions.
//!
//! Bytes come in, whole messages go out; `crate::cluster` reads and writes these. The connections
//! are no clients: `link` is one of them, with its queue of messages. An idle connection owns no
//! buffers, and no memory is reserved before bytes arrive. Anybody who reaches the port can
//! connect, so the number of connections is bounded, and so are the bytes that a turn reads from
//! each.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use mio::event::Event;
use mio::{Registry, Token};
use rustls::ServerConfig;
use slab::Slab;

use super::http::LAST_TOKEN as LAST_OF_HTTP;
use super::listener::{Listener, set_keepalive};
use super::stream::{Address, Stream};
use crate::cluster::action::LinkId;
use link::{Link, Step};

pub mod link;
#[cfg(test)]
mod tests;

/// The most connections at once, in both directions.
pub const LINKS_MAX: usize = 1 << 17;
/// The most listeners: addresses of `bind`.
const LISTENERS_MAX: usize = 64;
/// Connections accepted in one turn, and with TLS, where each costs more.
const ACCEPTS_MAX: usize = 1000;
const ACCEPTS_TLS_MAX: usize = 8;
/// The most bytes read from one connection in one turn; the rest follows in the next.
const READ_BYTES: usize = 64 * 1024;

/// Nothing is read from an accepted connection whose queue is longer, as each of its requests would
/// lengthen the queue. Unit: bytes.
const UNTAKEN_MAX: usize = 1 << 20;

/// Tokens below those of HTTP: one for each listener, then one for each connection.
const FIRST_LISTENER: usize = LAST_OF_HTTP;
const FIRST_LINK: usize = FIRST_LISTENER - LISTENERS_MAX;
/// The next lower token is free.
pub const LAST_TOKEN: usize = FIRST_LINK - LINKS_MAX;

/// Numbers of accepted connections are below this; the state machine numbers its own from here on.
const FIRST_OPENED: u64 = 1 << 63;

/// The listeners and connections.
pub struct Bus {
    listeners: Vec<Listener>,
    links: Slab<Link>,
    /// The connections that the state machine knows. Those that end once all is sent are no longer
    /// here.
    by_id: HashMap<LinkId, usize>,
    /// Slots of connections that may have something to do, in order.
    ready: VecDeque<usize>,
    /// Slots of connections with messages to be sent.
    to_send: Vec<usize>,
    /// Listeners at which connections may wait.
    accepts: Vec<usize>,
    /// Connections that were not accepted when they were announced may be waiting.
    is_postponed: bool,
    /// Connections that could not be made or have ended, and whose end the state machine does not
    /// know yet.
    ended: Vec<LinkId>,
    accepted: u64,
    /// The last save that a message may have to wait for, and the last one on disk.
    awaited: u64,
    saved: u64,
    /// The buffer for reading from any connection.
    scratch: Vec<u8>,
    /// Connections closed for too long a queue.
    pub limit_exceeded: u64,
}

/// A connection that was accepted.
#[derive(Clone, Copy, Debug)]
pub struct Accepted {
    pub link: LinkId,
    pub peer: IpAddr,
    pub local: IpAddr,
}

/// The facts about a connection that are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkFacts {
    /// Unix milliseconds.
    pub created_ms: i64,
    pub waits_to_write: bool,
    /// Bytes of the queue.
    pub queued: usize,
}

/// A connection's progress in a step.
#[derive(Debug)]
pub enum Progress {
    Waits,
    /// It is established; this is its local address, if it is known.
    Connected(LinkId, Option<IpAddr>),
    /// These bytes have arrived, after those left over before. The caller gives unused ones back
    /// with [`Bus::keep`].
    Bytes(LinkId, Vec<u8>),
    Ended(LinkId),
}

impl Default for Bus {
    fn default() -> Self {
        Bus {
            listeners: Vec::new(),
            links: Slab::new(),
            by_id: HashMap::new(),
            ready: VecDeque::new(),
            to_send: Vec::new(),
            accepts: Vec::new(),
            is_postponed: false,
            ended: Vec::new(),
            accepted: 0,
            awaited: 0,
            saved: 0,
            scratch: Vec::new(),
            limit_exceeded: 0,
        }
    }
}

impl Bus {
    // ---- listeners ------------------------------------------------------------------------------

    /// Replaces the listeners. The open connections stay. Listeners beyond the number of tokens are
    /// dropped.
    pub fn listen(&mut self, listeners: Vec<Listener>) {
        self.listeners = listeners;
        self.listeners.truncate(LISTENERS_MAX);
        self.accepts.clear();
    }

    pub fn listeners(&self) -> &[Listener] {
        &self.listeners
    }

    /// Registers all listeners for readiness.
    pub fn register(&mut self, registry: &Registry) -> io::Result<()> {
        for (index, listener) in self.listeners.iter_mut().enumerate() {
            // Fails harmlessly for a new listener.
            let _ = listener.deregister(registry);
            listener.register(registry, Token(FIRST_LISTENER - index))?;
        }
        self.is_postponed = true;
        self.accept_postponed();
        Ok(())
    }

    /// Accepts connections that waited earlier: edge-triggered, they are not announced again.
    pub fn accept_postponed(&mut self) {
        if std::mem::take(&mut self.is_postponed) {
            self.accepts = (0..self.listeners.len()).collect();
        }
    }

    /// Whether [`Self::accept_postponed`] would try again.
    pub fn is_postponed(&self) -> bool {
        self.is_postponed
    }

    /// Leaves waiting connections where they are.
    pub fn postpone(&mut self) {
        self.accepts.clear();
        self.is_postponed = true;
    }

    /// Accepts waiting connections, as long as there are fewer than `links_max` in all. `tls`: they
    /// begin with a handshake. Errors: the system's, probably for lack of file descriptors;
    /// `accept_postponed` tries again.
    pub fn accept(
        &mut self,
        registry: &Registry,
        tls: Option<&Arc<ServerConfig>>,
        keepalive_seconds: u64,
        links_max: usize,
        now_ms: i64,
    ) -> (Vec<Accepted>, io::Result<()>) {
        let mut accepted = Vec::new();
        let mut left = if tls.is_some() { ACCEPTS_TLS_MAX } else { ACCEPTS_MAX };
        let listeners = std::mem::take(&mut self.accepts);
        for index in listeners {
            loop {
                if left == 0 {
                    self.accepts.push(index);
                    break;
                }
                left -= 1;
                let Some(listener) = self.listeners.get(index) else { break };
                let (stream, peer, local) = match listener.accept() {
                    Ok(found) => found,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                    Err(error) => {
                        self.is_postponed = true;
                        return (accepted, Err(error));
                    }
                };
                if self.links.len() >= links_max.min(LINKS_MAX) {
                    continue;
                }
                let stream = match tls {
                    None => Ok(stream),
                    Some(tls) => stream.with_tls(tls),
                };
                let Ok(stream) = stream else { continue };
                // Without keepalive, a vanished peer is only noticed when something is sent.
                let _ = set_keepalive(&stream, keepalive_seconds);
                accepted.extend(self.take_in(registry, stream, &peer, &local, now_ms));
            }
        }
        (accepted, Ok(()))
    }

    /// Takes in a connection as if accepted. None: the system refuses it.
    pub fn take_in(
        &mut self,
        registry: &Registry,
        stream: Stream,
        peer: &Address,
        local: &Address,
        now_ms: i64,
    ) -> Option<Accepted> {
        let (Address::Tcp(peer), Address::Tcp(local)) = (peer, local) else { return None };
        let link = LinkId(self.accepted);
        self.accepted += 1;
        self.add(registry, Link::accepted(link, stream, now_ms)).ok()?;
        let ip = |address: IpAddr| address.to_canonical();
        Some(Accepted { link, peer: ip(peer.ip()), local: ip(local.ip()) })
    }

    // ---- connections ----------------------------------------------------------------------------

    /// Takes in a connection that is being made. Without a stream, connecting has already failed.
    pub fn open(
        &mut self,
        registry: &Registry,
        id: LinkId,
        stream: io::Result<Stream>,
        now_ms: i64,
    ) {
        let has_room = self.links.len() < LINKS_MAX;
        let added = match stream {
            Ok(stream) if has_room => self.add(registry, Link::connecting(id, stream, now_ms)),
            Ok(_) => Err(io::ErrorKind::QuotaExceeded.into()),
            Err(error) => Err(error),
        };
        if added.is_err() {
            self.ended.push(id);
        }
    }

    fn add(&mut self, registry: &Registry, mut link: Link) -> io::Result<()> {
        let entry = self.links.vacant_entry();
        let slot = entry.key();
        // Both directions, edge-triggered: announced when they change.
        link.stream.stream_mut().register(registry, Token(FIRST_LINK - slot))?;
        link.stream.stream_mut().reregister(registry, Token(FIRST_LINK - slot), true)?;
        self.by_id.insert(link.id, slot);
        entry.insert(link);
        self.enqueue(slot);
        Ok(())
    }

    /// Notes an event's announcement.
    pub fn note_readiness(&mut self, event: &Event) {
        let token = event.token();
        if token.0 > FIRST_LINK {
            let index = FIRST_LISTENER - token.0;
            if !self.accepts.contains(&index) {
                self.accepts.push(index);
            }
            return;
        }
        let slot = FIRST_LINK - token.0;
        let Some(link) = self.links.get_mut(slot) else { return };
        link.stream.note(event);
        self.enqueue(slot);
    }

    /// Treats all connections and listeners as ready, as the system's announcements are unknown.
    pub fn look_at_all(&mut self) {
        self.accepts = (0..self.listeners.len()).collect();
        let slots: Vec<usize> = self.links.iter().map(|(slot, _)| slot).collect();
        for slot in slots {
            self.links[slot].stream.assume_ready();
            self.enqueue(slot);
        }
    }

    fn enqueue(&mut self, slot: usize) {
        if let Some(link) = self.links.get_mut(slot)
            && !std::mem::replace(&mut link.is_ready, true)
        {
            self.ready.push_back(slot);
        }
    }

    /// Whether there is something to do now.
    #[inline]
    pub fn has_work(&self) -> bool {
        !self.ready.is_empty()
            || !self.accepts.is_empty()
            || !self.ended.is_empty()
            || !self.to_send.is_empty() && self.awaited <= self.saved
    }

    /// Whether a listener has announced connections.
    pub fn has_arrivals(&self) -> bool {
        !self.accepts.is_empty()
    }

    /// Takes the connections whose end the state machine does not know yet.
    pub fn take_ended(&mut self) -> Vec<LinkId> {
        std::mem::take(&mut self.ended)
    }

    /// Number of connections that may have something to do.
    pub fn ready(&self) -> usize {
        self.ready.len()
    }

    /// Continues with the connection that has waited longest: a step of connecting, or one read.
    pub fn serve_next(&mut self) -> Progress {
        let Some(slot) = self.ready.pop_front() else { return Progress::Waits };
        let Some(link) = self.links.get_mut(slot) else { return Progress::Waits };
        link.is_ready = false;
        let (id, is_known) = (link.id, self.by_id.get(&link.id) == Some(&slot));
        if link.has_output() {
            self.send_later(slot);
        }
        let link = &mut self.links[slot];
        link.is_held_back = link_is_accepted(id) && link.queued() > UNTAKEN_MAX;
        if self.scratch.is_empty() {
            self.scratch = vec![0; READ_BYTES];
        }
        match link.go_on(&mut self.scratch) {
            Step::Waits => Progress::Waits,
            Step::GoesOn => {
                self.enqueue(slot);
                Progress::Waits
            }
            Step::Connected(local) => {
                self.enqueue(slot);
                match link_is_accepted(id) {
                    true => Progress::Waits,
                    false => Progress::Connected(id, local),
                }
            }
            // Bytes from a connection that only sends its last messages are ignored.
            Step::Bytes(_) if !is_known => {
                self.enqueue(slot);
                Progress::Waits
            }
            Step::Bytes(count) => {
                let mut bytes = std::mem::take(&mut link.input);
                bytes.extend_from_slice(&self.scratch[..count]);
                if link.stream.may_read() {
                    self.enqueue(slot);
                }
                Progress::Bytes(id, bytes)
            }
            Step::Ended => {
                self.remove(slot);
                if is_known { Progress::Ended(id) } else { Progress::Waits }
            }
        }
    }

    /// Gives back a connection's bytes, of which the first `done` were used; a later read continues
    /// with the others.
    pub fn keep(&mut self, id: LinkId, mut bytes: Vec<u8>, done: usize) {
        let Some(&slot) = self.by_id.get(&id) else { return };
        bytes.drain(..done);
        if bytes.capacity() > READ_BYTES && bytes.len() < READ_BYTES {
            bytes.shrink_to(bytes.len());
        }
        self.links[slot].input = if bytes.is_empty() { Vec::new() } else { bytes };
    }

    /// Reads nothing more until [`Self::read_again`].
    pub fn hold(&mut self, id: LinkId) {
        if let Some(&slot) = self.by_id.get(&id) {
            self.links[slot].is_held = true;
        }
    }

    /// Gives a held connection a turn without an event: whole messages may have been kept for it.
    pub fn read_again(&mut self, id: LinkId) {
        if let Some(&slot) = self.by_id.get(&id) {
            self.links[slot].rereads = true;
            self.links[slot].is_held = false;
            self.enqueue(slot);
        }
    }

    /// Whether the state machine still has this connection.
    pub fn knows(&self, id: LinkId) -> bool {
        self.by_id.contains_key(&id)
    }

    /// Ends a connection that has broken the protocol. The caller tells the state machine.
    pub fn cut(&mut self, id: LinkId) {
        if let Some(slot) = self.by_id.get(&id).copied() {
            self.remove(slot);
        }
    }

    fn remove(&mut self, slot: usize) {
        let link = self.links.remove(slot);
        if self.by_id.get(&link.id) == Some(&slot) {
            self.by_id.remove(&link.id);
        }
    }

    // ---- sending --------------------------------------------------------------------------------

    /// Queues a message. The message waits for the saves that were awaited before it.
    pub fn send(&mut self, id: LinkId, message: Arc<[u8]>) {
        let Some(&slot) = self.by_id.get(&id) else { return };
        self.links[slot].push(message, self.awaited);
        self.send_later(slot);
    }

    fn send_later(&mut self, slot: usize) {
        if let Some(link) = self.links.get_mut(slot)
            && !std::mem::replace(&mut link.is_to_send, true)
        {
            self.to_send.push(slot);
        }
    }

    /// Ends a connection once its messages are sent, or at once if the peer does not take them.
    pub fn close(&mut self, id: LinkId) {
        let Some(slot) = self.by_id.remove(&id) else { return };
        let link = &mut self.links[slot];
        link.is_closing = true;
        if !link.stream.is_open() || !link.has_output() {
            self.remove(slot);
            return;
        }
        self.send_later(slot);
    }

    /// Makes further messages wait until this save is on disk.
    pub fn await_save(&mut self, number: u64) {
        self.awaited = self.awaited.max(number);
    }

    /// Makes messages wait for no save, because saves fail.
    pub fn wait_for_no_save(&mut self) {
        self.saved = self.awaited;
    }

    /// Notes that saves up to this number are on disk.
    pub fn note_saved(&mut self, number: u64) {
        self.saved = self.saved.max(number);
    }

    /// Sends as much as the system takes of all messages that need not wait.
    pub fn flush(&mut self) {
        for slot in std::mem::take(&mut self.to_send) {
            let Some(link) = self.links.get_mut(slot) else { continue };
            link.is_to_send = false;
            let sent = link.write(self.saved);
            let waits_for_save = link.waits_for(self.saved);
            let is_over = link.is_closing && !waits_for_save;
            let reads_again = link.is_held_back && link.queued() <= UNTAKEN_MAX;
            match sent {
                Err(_) => {
                    let id = link.id;
                    let is_known = self.by_id.get(&id) == Some(&slot);
                    self.remove(slot);
                    if is_known {
                        self.ended.push(id);
                    }
                }
                Ok(()) if is_over => self.remove(slot),
                Ok(()) if waits_for_save => self.send_later(slot),
                // The rest follows when the socket is writable.
                Ok(()) => {}
            }
            if reads_again {
                self.enqueue(slot);
            }
        }
    }

    /// Closes the connections that take more bytes than this, with their queues. Returns their
    /// number.
    pub fn close_slow(&mut self, bytes_max: u64) -> usize {
        let is_slow = |link: &Link| (size_of::<Link>() + link.queued()) as u64 > bytes_max;
        let slow = self.links.iter().filter(|(_, link)| is_slow(link));
        let slow: Vec<(usize, LinkId)> = slow.map(|(slot, link)| (slot, link.id)).collect();
        for &(slot, id) in &slow {
            if self.by_id.get(&id) == Some(&slot) {
                self.ended.push(id);
            }
            self.remove(slot);
        }
        self.limit_exceeded += slow.len() as u64;
        slow.len()
    }

    // ---- figures --------------------------------------------------------------------------------

    /// Number of connections.
    pub fn len(&self) -> usize {
        self.links.len()
    }

    pub fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    /// Bytes of all connections and their queues.
    pub fn memory(&self) -> usize {
        let own = self.links.len() * size_of::<Link>() + self.scratch.capacity();
        own + self
            .links
            .iter()
            .map(|(_, link)| link.queued() + link.input.capacity())
            .sum::<usize>()
    }

    pub fn facts(&self, id: LinkId) -> Option<LinkFacts> {
        let link = &self.links[*self.by_id.get(&id)?];
        Some(LinkFacts {
            created_ms: link.created_ms,
            waits_to_write: link.has_output(),
            queued: link.queued(),
        })
    }

    /// Closes everything.
    pub fn end(&mut self) {
        *self = Self::default();
    }
}

/// Whether a connection was accepted, rather than requested by the state machine.
fn link_is_accepted(id: LinkId) -> bool {
    id.0 < FIRST_OPENED
}
