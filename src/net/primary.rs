//! The socket to the primary: connecting, reading, and sending. Also used for other servers
//! (`lines`).
//!
//! The socket stays in the state while the link is taken out of the state to work: a script in the
//! stream may keep the server busy, and nested turns then note readiness and send acknowledgements.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex};

use mio::event::Event;
use mio::{Registry, Token};

use super::stream::Stream;
use super::tls::stream::Handshake;
use crate::persist::saver::lock;
use crate::sys::background::Background;

/// The connection's token: above those of clients, below those of the server itself.
pub const PRIMARY: Token = Token(usize::MAX - 66);

/// The addresses of a host name, once a thread has resolved it.
type Resolving = Arc<Mutex<Option<io::Result<Vec<SocketAddr>>>>>;

/// The most addresses of a host name that are tried.
const ADDRESSES_MAX: usize = 16;

/// See the module.
pub struct Socket {
    phase: SocketState,
    /// The address connected to, once known.
    pub address: Option<SocketAddr>,
    /// There may be bytes to read that the system will not announce again.
    pub can_read: bool,
    can_write: bool,
    /// The other end has closed: reading continues after a short read, until the end.
    is_closed: bool,
    /// Requests to be sent. The first `sent` bytes are sent already.
    outgoing: Vec<u8>,
    sent: usize,
    /// Further addresses of the host name, the next one last.
    others: Vec<SocketAddr>,
    /// The time of the next sign of life to the primary: boot-time clock, microseconds.
    pub next_period_us: i64,
}

/// The state of the connection itself.
enum SocketState {
    Resolving(Resolving),
    Connecting(Stream),
    Connected(Stream),
}

/// The result of a read.
pub enum Reading {
    Bytes(usize),
    Nothing,
    /// The connection has ended, with an error or without.
    Ended(Option<io::Error>),
}

impl Socket {
    /// A connection being established to an address. `next_period_us`: as [`Self::next_period_us`].
    pub fn connecting(stream: Stream, address: SocketAddr, next_period_us: i64) -> Self {
        Self::new(SocketState::Connecting(stream), Some(address), next_period_us)
    }

    /// A connection to a host name, which a thread resolves; then the thread calls `wake`. Errors:
    /// the thread cannot be started.
    pub fn resolving(
        host: String,
        port: u16,
        background: &Background,
        wake: Arc<dyn Fn() + Send + Sync>,
        next_period_us: i64,
    ) -> io::Result<Self> {
        let resolving = resolve(host, port, background, wake)?;
        Ok(Self::new(SocketState::Resolving(resolving), None, next_period_us))
    }

    fn new(phase: SocketState, address: Option<SocketAddr>, next_period_us: i64) -> Self {
        Socket {
            phase,
            address,
            can_read: false,
            can_write: false,
            is_closed: false,
            outgoing: Vec::new(),
            sent: 0,
            others: Vec::new(),
            next_period_us,
        }
    }

    /// Notes readiness events.
    pub fn look(&mut self, events: &mio::Events) {
        events.iter().filter(|event| event.token() == PRIMARY).for_each(|event| self.note(event));
    }

    /// Notes a readiness event.
    pub fn note(&mut self, event: &Event) {
        let is_over = event.is_read_closed() || event.is_error();
        self.can_read |= event.is_readable() || is_over;
        self.can_write |= event.is_writable() || event.is_error();
        self.is_closed |= is_over;
    }

    /// The established connection.
    pub fn stream(&self) -> Option<&Stream> {
        match &self.phase {
            SocketState::Connected(stream) => Some(stream),
            _ => None,
        }
    }

    /// The connection, established or not.
    pub fn stream_mut(&mut self) -> Option<&mut Stream> {
        match &mut self.phase {
            SocketState::Connecting(stream) | SocketState::Connected(stream) => Some(stream),
            SocketState::Resolving(_) => None,
        }
    }

    pub fn is_connected(&self) -> bool {
        matches!(self.phase, SocketState::Connected(_))
    }

    /// Whether a read may find bytes.
    pub fn may_read(&self) -> bool {
        self.can_read && !matches!(self.phase, SocketState::Resolving(_))
    }

    /// The address that a thread has found for the host name, once.
    pub fn take_resolved(&mut self) -> Option<io::Result<SocketAddr>> {
        let SocketState::Resolving(resolving) = &self.phase else { return None };
        let found = lock(resolving).take()?;
        Some(found.and_then(|mut found| {
            found.truncate(ADDRESSES_MAX);
            found.reverse();
            self.others = found;
            let none = || io::Error::new(io::ErrorKind::NotFound, "Name or service not known");
            self.take_other().ok_or_else(none)
        }))
    }

    /// The host's next address, to be tried if the last one fails.
    pub fn take_other(&mut self) -> Option<SocketAddr> {
        let next = self.others.pop()?;
        self.address = Some(next);
        Some(next)
    }

    /// Continues with a connection to the address that was found.
    pub fn connect(&mut self, stream: Stream) {
        self.phase = SocketState::Connecting(stream);
    }

    /// Continues to connect. True: the connection has just been established.
    pub fn continue_connecting(&mut self) -> io::Result<bool> {
        let SocketState::Connecting(stream) = &mut self.phase else { return Ok(false) };
        if !self.can_write && !self.can_read {
            return Ok(false);
        }
        let shaken = if stream.is_connected()? { stream.handshake()? } else { Handshake::Waits };
        match shaken {
            Handshake::Done => {}
            Handshake::Unfinished => return Ok(false),
            Handshake::Waits => {
                (self.can_read, self.can_write) = (false, false);
                return Ok(false);
            }
        }
        // Bytes after the handshake may be buffered already.
        (self.can_read, self.can_write) = (true, true);
        let waiting = SocketState::Resolving(Resolving::default());
        if let SocketState::Connecting(stream) = std::mem::replace(&mut self.phase, waiting) {
            self.phase = SocketState::Connected(stream);
        }
        Ok(true)
    }

    /// Reads once.
    pub fn read(&mut self, buffer: &mut [u8]) -> Reading {
        let SocketState::Connected(stream) = &mut self.phase else { return Reading::Nothing };
        match stream.read(buffer) {
            Ok(0) => {
                self.can_read = false;
                Reading::Ended(None)
            }
            Ok(count) => {
                self.can_read = count == buffer.len() || self.is_closed || stream.has_more();
                Reading::Bytes(count)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.can_read = false;
                Reading::Nothing
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Reading::Nothing,
            Err(error) => Reading::Ended(Some(error)),
        }
    }

    /// Adds whole requests, or newlines, to the output.
    pub fn push(&mut self, requests: &mut Vec<u8>) {
        self.outgoing.drain(..std::mem::take(&mut self.sent));
        self.outgoing.append(requests);
    }

    /// Bytes that were pushed and that the system has not taken.
    pub fn unsent(&self) -> usize {
        self.outgoing.len() - self.sent
    }

    /// Whether [`Self::write`] may send something now.
    pub fn may_write(&self) -> bool {
        self.can_write && self.is_connected()
    }

    /// Sends as much as the system takes.
    pub fn write(&mut self) -> io::Result<()> {
        let SocketState::Connected(stream) = &mut self.phase else { return Ok(()) };
        while self.sent < self.outgoing.len() && self.can_write {
            match stream.write(&self.outgoing[self.sent..]) {
                Ok(sent) => self.sent += sent,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.can_write = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if self.sent == self.outgoing.len() {
            self.outgoing.clear();
            self.sent = 0;
        }
        if self.can_write && stream.has_unsent() {
            match stream.flush() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.can_write = false,
                flushed => flushed?,
            }
        }
        Ok(())
    }

    pub fn close(self, registry: &Registry) {
        if let SocketState::Connecting(mut stream) | SocketState::Connected(mut stream) = self.phase
        {
            // If the system has dropped the socket already, deregistering fails harmlessly.
            let _ = stream.deregister(registry);
        }
    }
}

/// Starts a thread that resolves a host name.
fn resolve(
    host: String,
    port: u16,
    background: &Background,
    wake: Arc<dyn Fn() + Send + Sync>,
) -> io::Result<Resolving> {
    let resolving = Resolving::default();
    let theirs = resolving.clone();
    background.spawn("resolver", move || {
        let found = (host.as_str(), port).to_socket_addrs();
        *lock(&theirs) = Some(found.map(Iterator::collect));
        wake();
    })?;
    Ok(resolving)
}
