//! The socket to the primary: connecting, reading, and sending. Also used for other servers
//! (`lines`).
//!
//! The socket stays in the state while the link is taken out of the state to work: a script in the
//! stream may keep the server busy, and nested turns then note readiness and send acknowledgements.

use std::io::{self, IoSlice};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mio::event::Event;
use mio::{Registry, Token};

pub use super::ready::ReadResult;
use super::ready::ReadyStream;
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
    Connection(ReadyStream),
}

impl Socket {
    /// A connection being established to an address. `next_period_us`: as [`Self::next_period_us`].
    pub fn connecting(stream: Stream, address: SocketAddr, next_period_us: i64) -> Self {
        Self::new(
            SocketState::Connection(ReadyStream::connecting(stream)),
            Some(address),
            next_period_us,
        )
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
        Socket { phase, address, outgoing: Vec::new(), sent: 0, others: Vec::new(), next_period_us }
    }

    /// Notes a readiness event.
    pub fn note(&mut self, event: &Event) {
        if let SocketState::Connection(stream) = &mut self.phase {
            stream.note(event);
        }
    }

    /// As [`ReadyStream::await_ready`]. Does not wait for a thread that resolves.
    pub fn await_ready(&mut self, timeout: Duration) -> bool {
        let has_more = self.unsent() > 0;
        match &mut self.phase {
            SocketState::Connection(stream) => stream.await_ready(has_more, timeout),
            SocketState::Resolving(_) => false,
        }
    }

    fn connection(&self) -> Option<&ReadyStream> {
        match &self.phase {
            SocketState::Connection(stream) => Some(stream),
            SocketState::Resolving(_) => None,
        }
    }

    /// The established connection.
    pub fn stream(&self) -> Option<&Stream> {
        self.connection().filter(|stream| stream.is_open()).map(ReadyStream::stream)
    }

    /// The connection, established or not.
    pub fn stream_mut(&mut self) -> Option<&mut Stream> {
        match &mut self.phase {
            SocketState::Connection(stream) => Some(stream.stream_mut()),
            SocketState::Resolving(_) => None,
        }
    }

    pub fn is_connected(&self) -> bool {
        self.stream().is_some()
    }

    /// Whether a thread still looks for the address.
    pub fn is_resolving(&self) -> bool {
        matches!(self.phase, SocketState::Resolving(_))
    }

    /// Whether a read may find bytes.
    pub fn may_read(&self) -> bool {
        self.connection().is_some_and(ReadyStream::may_read)
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
        self.phase = SocketState::Connection(ReadyStream::connecting(stream));
    }

    /// Continues to connect. True: the connection has just been established.
    pub fn continue_connecting(&mut self) -> io::Result<bool> {
        match &mut self.phase {
            SocketState::Connection(stream) if !stream.is_open() => {
                Ok(stream.open()? == Handshake::Done)
            }
            _ => Ok(false),
        }
    }

    /// Reads once.
    pub fn read(&mut self, buffer: &mut [u8]) -> ReadResult {
        match &mut self.phase {
            SocketState::Connection(stream) => stream.read(buffer),
            SocketState::Resolving(_) => ReadResult::Nothing,
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
        self.connection().is_some_and(ReadyStream::may_write)
    }

    /// Sends as much as the system takes.
    pub fn write(&mut self) -> io::Result<()> {
        let SocketState::Connection(stream) = &mut self.phase else { return Ok(()) };
        while self.sent < self.outgoing.len() && stream.may_write() {
            self.sent += stream.write(&[IoSlice::new(&self.outgoing[self.sent..])])?;
        }
        if self.sent == self.outgoing.len() {
            self.outgoing.clear();
            self.sent = 0;
        }
        stream.flush()
    }

    pub fn close(mut self, registry: &Registry) {
        if let Some(stream) = self.stream_mut() {
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
