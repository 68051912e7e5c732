//! Connections to other servers that the loop serves: for MIGRATE, and for slot migrations. The
//! loop never waits for one.
//!
//! A line has a user, or is kept idle for a while for the next user of the same server.

use std::io;

use mio::event::Event;
use mio::{Registry, Token};
use slab::Slab;

use super::bus::LAST_TOKEN as LAST_OF_BUS;
use super::primary::{ReadResult, Socket};

/// Lines at once.
const LINES_MAX: usize = 1024;
/// Idle lines.
const KEPT_MAX: usize = 64;
/// An idle line is closed after this time. Unit: microseconds.
const UNUSED_MAX_US: i64 = 10_000_000;
/// The most bytes of one read.
const READ_BYTES: usize = 64 * 1024;

/// Tokens below those of the cluster bus.
const FIRST_TOKEN: usize = LAST_OF_BUS;
/// The next lower token is free.
pub const LAST_TOKEN: usize = FIRST_TOKEN - LINES_MAX;

/// The server at the other end, as it was named, and whether TLS is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    pub host: Box<[u8]>,
    pub port: u16,
    pub is_tls: bool,
}

/// A connection.
pub struct Line {
    pub socket: Socket,
    pub peer: Peer,
    /// The database known to be selected there.
    pub database: Option<i64>,
    /// Bytes that have come and were not used yet.
    pub input: Vec<u8>,
    /// The time since which it is idle: boot-time clock, microseconds. None: it has a user.
    idle_us: Option<i64>,
}

/// All connections.
#[derive(Default)]
pub struct Lines {
    lines: Slab<Line>,
    scratch: Vec<u8>,
}

impl Lines {
    /// Takes in a connection. None: there are too many.
    pub fn add(&mut self, peer: Peer, socket: Socket) -> Option<usize> {
        if self.lines.len() >= LINES_MAX {
            self.close_oldest();
        }
        if self.lines.len() >= LINES_MAX {
            return None;
        }
        let line = Line { socket, peer, database: None, input: Vec::new(), idle_us: None };
        Some(self.lines.insert(line))
    }

    /// Registers the new stream of a line, edge-triggered and for both directions.
    pub fn register(&mut self, registry: &Registry, line: usize) -> io::Result<()> {
        let stream = self.lines.get_mut(line).and_then(|line| line.socket.stream_mut());
        let Some(stream) = stream else { return Err(io::ErrorKind::NotConnected.into()) };
        let token = Token(FIRST_TOKEN - line);
        stream.register(registry, token)?;
        stream.reregister(registry, token, true)
    }

    pub fn get_mut(&mut self, line: usize) -> Option<&mut Line> {
        self.lines.get_mut(line)
    }

    pub fn get(&self, line: usize) -> Option<&Line> {
        self.lines.get(line)
    }

    /// Notes an event's announcement.
    pub fn note_readiness(&mut self, event: &Event) {
        if let Some(line) = self.lines.get_mut(FIRST_TOKEN - event.token().0) {
            line.socket.note(event);
        }
    }

    /// Reads once, and adds the bytes to the line's input.
    pub fn read(&mut self, line: usize) -> ReadResult {
        let Some(line) = self.lines.get_mut(line) else { return ReadResult::Ended(None) };
        if !line.socket.may_read() {
            return ReadResult::Nothing;
        }
        self.scratch.resize(READ_BYTES, 0);
        let reading = line.socket.read(&mut self.scratch);
        if let ReadResult::Bytes(count) = reading {
            line.input.extend_from_slice(&self.scratch[..count]);
        }
        reading
    }

    /// Takes an idle line to a server, if there is one whose other end is not known to have closed.
    pub fn take(&mut self, peer: &Peer) -> Option<usize> {
        loop {
            let is_it = |(_, line): &(usize, &Line)| line.idle_us.is_some() && line.peer == *peer;
            let (number, _) = self.lines.iter().find(is_it)?;
            match self.read(number) {
                ReadResult::Nothing => {
                    self.lines[number].idle_us = None;
                    return Some(number);
                }
                // The other end has closed, or has sent something unrequested.
                ReadResult::Ended(_) | ReadResult::Bytes(_) => self.close(number),
            }
        }
    }

    /// Keeps a line that is no longer used.
    pub fn keep(&mut self, line: usize, now_us: i64) {
        if self.kept() >= KEPT_MAX {
            self.close_oldest();
        }
        if let Some(line) = self.lines.get_mut(line) {
            line.idle_us = Some(now_us);
            line.input = Vec::new();
        }
    }

    fn close_oldest(&mut self) {
        let idle = self.lines.iter().filter_map(|(number, line)| Some((line.idle_us?, number)));
        if let Some((_, number)) = idle.min() {
            self.close(number);
        }
    }

    /// Closes idle lines that nobody has used for ten seconds.
    pub fn close_unused(&mut self, now_us: i64) {
        self.lines
            .retain(|_, line| line.idle_us.is_none_or(|idle_us| now_us - idle_us <= UNUSED_MAX_US));
    }

    /// Closes a line. Closing the socket also ends its registration for events.
    pub fn close(&mut self, line: usize) {
        self.lines.try_remove(line);
    }

    /// Number of idle lines.
    pub fn kept(&self) -> usize {
        self.lines.iter().filter(|(_, line)| line.idle_us.is_some()).count()
    }
}
