//! HTTP/1.1 connections for probes, metrics and the page: bounded in number, size and time.
//!
//! Bytes come in, complete requests go out, and responses come back ([`Http::respond`]);
//! `crate::http` decides about the answers. `head` parses a request's head, `connection` is one
//! connection, `response` its response.
//!
//! The connections are no clients: only this file counts them. When all places are taken, the least
//! important connection gives up its place to a new one, so that nobody keeps a probe out.

use std::collections::VecDeque;
use std::sync::Arc;

use mio::event::Event;
use mio::{Registry, Token};
use rustls::ServerConfig;

use super::listener::Listener;
use super::primary::PRIMARY;
use super::stream::{Address, Stream};
use connection::{Connection, Progress};

pub mod connection;
pub mod head;
pub mod response;

/// The most connections at once.
pub const CONNECTIONS_MAX: usize = 64;
/// The most listeners: addresses of `http-bind`.
const LISTENERS_MAX: usize = 16;
/// Connections accepted in one turn.
const ACCEPTS_MAX: usize = 32;

/// Tokens below that of the primary's connection: one for each connection, then one for each
/// listener.
const FIRST_CONNECTION: usize = PRIMARY.0 - 1;
const FIRST_LISTENER: usize = FIRST_CONNECTION - CONNECTIONS_MAX;
/// The first token below them.
pub const LAST_TOKEN: usize = FIRST_LISTENER - LISTENERS_MAX;

/// The listeners and connections. `J`: an answer that takes more than one turn.
pub struct Http<J> {
    listeners: Vec<Listener>,
    connections: Vec<Option<Box<Connection<J>>>>,
    /// The slots that may have something to do, in order.
    ready: VecDeque<usize>,
    /// Listeners at which connections may wait.
    accepts: Vec<usize>,
    /// Requests that have been answered.
    pub answered: u64,
    /// The earliest deadline of a connection: boot-time clock, microseconds; i64::MAX: none.
    next_deadline_us: i64,
}

impl<J> Default for Http<J> {
    fn default() -> Self {
        let connections = (0..CONNECTIONS_MAX).map(|_| None).collect();
        Http {
            listeners: Vec::new(),
            connections,
            ready: VecDeque::new(),
            accepts: Vec::new(),
            answered: 0,
            next_deadline_us: i64::MAX,
        }
    }
}

impl<J> Http<J> {
    /// Replaces the listeners. The open connections stay. Listeners beyond the number of tokens are
    /// dropped.
    pub fn listen(&mut self, listeners: Vec<Listener>) {
        self.listeners = listeners;
        self.listeners.truncate(LISTENERS_MAX);
        self.accepts.clear();
    }

    /// Closes all connections; the listeners stay.
    pub fn close_all(&mut self) {
        self.connections.iter_mut().for_each(|connection| *connection = None);
    }

    /// Adds a listener.
    pub fn listen_besides(&mut self, listener: Listener) {
        if self.listeners.len() < LISTENERS_MAX {
            self.listeners.push(listener);
        }
    }

    /// Whether anything is listened on.
    pub fn is_listening(&self) -> bool {
        !self.listeners.is_empty()
    }

    /// The listeners.
    pub fn listeners(&self) -> &[Listener] {
        &self.listeners
    }

    /// Registers all listeners for readiness.
    pub fn register(&mut self, registry: &Registry) -> std::io::Result<()> {
        for (index, listener) in self.listeners.iter_mut().enumerate() {
            // Fails harmlessly for a new listener.
            let _ = listener.deregister(registry);
            listener.register(registry, Token(FIRST_LISTENER - index))?;
        }
        // Edge-triggered: earlier connections may not be announced.
        self.accepts = (0..self.listeners.len()).collect();
        Ok(())
    }

    /// Notes an event's announcement.
    pub fn note_readiness(&mut self, event: &Event) {
        let token = event.token().0;
        if token <= FIRST_LISTENER {
            let index = FIRST_LISTENER - token;
            if !self.accepts.contains(&index) {
                self.accepts.push(index);
            }
            return;
        }
        let slot = FIRST_CONNECTION - token;
        if let Some(connection) = self.connections.get_mut(slot).and_then(Option::as_deref_mut) {
            connection.note_readiness(event);
            self.enqueue(slot);
        }
    }

    /// Queues a connection for another turn.
    pub fn enqueue(&mut self, slot: usize) {
        if !self.ready.contains(&slot) {
            self.ready.push_back(slot);
        }
    }

    /// Whether there is something to do now.
    #[inline]
    pub fn has_work(&self) -> bool {
        !self.ready.is_empty() || !self.accepts.is_empty()
    }

    /// Whether there is something to do at this time: boot-time clock, microseconds.
    #[inline]
    pub fn has_work_at(&self, now_us: i64) -> bool {
        self.has_work() || self.next_deadline_us <= now_us
    }

    /// Number of connections.
    pub fn len(&self) -> usize {
        self.connections.iter().flatten().count()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Accepts waiting connections. `tls`: they begin with a handshake. Failures to accept are the
    /// system's; the next event tries again.
    pub fn accept(&mut self, registry: &Registry, tls: Option<&Arc<ServerConfig>>, now_us: i64) {
        let mut left = ACCEPTS_MAX;
        for index in std::mem::take(&mut self.accepts) {
            loop {
                if left == 0 {
                    self.accepts.push(index);
                    break;
                }
                left -= 1;
                let Some(listener) = self.listeners.get(index) else { break };
                let is_inside =
                    listener.local_address().is_some_and(|address| address.ip().is_loopback());
                let Ok((stream, peer, _)) = listener.accept() else { break };
                let stream = match tls {
                    None => Ok(stream),
                    Some(tls) => stream.with_tls(tls),
                };
                if let Ok(stream) = stream {
                    self.take_in(registry, stream, peer, is_inside, now_us);
                }
            }
        }
    }

    /// Leaves waiting connections where they are, until the next event.
    pub fn accept_nobody(&mut self) {
        self.accepts.clear();
    }

    /// Adds a connection. `is_inside`: its listener accepts local connections only.
    pub fn take_in(
        &mut self,
        registry: &Registry,
        mut stream: Stream,
        peer: Address,
        is_inside: bool,
        now_us: i64,
    ) {
        let free = self.connections.iter().position(Option::is_none);
        let Some(slot) = free.or_else(|| self.least_important(now_us)) else { return };
        let token = Token(FIRST_CONNECTION - slot);
        // Both directions, edge-triggered: announced when they change.
        let registered = stream
            .register(registry, token)
            .and_then(|()| stream.reregister(registry, token, true));
        if registered.is_err() {
            return;
        }
        let connection = Connection::new(stream, peer, is_inside, now_us);
        self.next_deadline_us = self.next_deadline_us.min(connection.deadline_us());
        self.connections[slot] = Some(Box::new(connection));
        self.enqueue(slot);
    }

    fn least_important(&self, now_us: i64) -> Option<usize> {
        let all = self.connections.iter().enumerate();
        let ranked = all.filter_map(|(slot, connection)| {
            Some((connection.as_deref()?.importance(now_us), slot))
        });
        ranked.min().map(|(_, slot)| slot)
    }

    /// Number of connections that may have something to do.
    pub fn ready(&self) -> usize {
        self.ready.len()
    }

    /// The connection that has waited longest for its turn.
    pub fn next_ready(&mut self) -> Option<usize> {
        self.ready.pop_front()
    }

    pub fn get_mut(&mut self, slot: usize) -> Option<&mut Connection<J>> {
        self.connections.get_mut(slot)?.as_deref_mut()
    }

    /// Reads, writes and continues handshakes of a connection, as far as that goes now. True: a
    /// request waits for its answer.
    pub fn serve(&mut self, slot: usize, now_us: i64) -> bool {
        let Some(connection) = self.get_mut(slot) else { return false };
        let progress = connection.serve(now_us);
        let deadline_us = connection.deadline_us();
        self.next_deadline_us = self.next_deadline_us.min(deadline_us);
        match progress {
            Progress::Asked => return true,
            Progress::Waits => {}
            Progress::GoesOn => self.enqueue(slot),
            Progress::Ends => self.close(slot),
        }
        false
    }

    pub fn close(&mut self, slot: usize) {
        if let Some(connection) = self.connections.get_mut(slot) {
            *connection = None;
        }
    }

    /// Closes the connections whose time is over.
    pub fn close_late(&mut self, now_us: i64) {
        if now_us < self.next_deadline_us {
            return;
        }
        for connection in &mut self.connections {
            if connection.as_ref().is_some_and(|connection| connection.deadline_us() <= now_us) {
                *connection = None;
            }
        }
        let all = self.connections.iter().flatten();
        self.next_deadline_us =
            all.map(|connection| connection.deadline_us()).min().unwrap_or(i64::MAX);
    }

    /// Closes everything.
    pub fn end(&mut self) {
        *self = Self::default();
    }
}
