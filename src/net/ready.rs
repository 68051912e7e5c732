//! A stream and its readiness, as the system announces it: edge-triggered, in both directions.
//!
//! Connecting, the TLS handshake, reading and writing are the same for a link of the cluster bus,
//! a connection to another server and one of HTTP. What they do with the bytes is theirs.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::os::fd::AsRawFd;
use std::time::Duration;

use mio::event::Event;

use super::stream::Stream;
use super::tls::stream::Handshake;
use crate::sys::process::{self, Readiness};

/// See the module.
pub struct ReadyStream {
    stream: Stream,
    phase: Phase,
    /// There may be bytes to read that the system will not announce again.
    can_read: bool,
    can_write: bool,
    /// The other end has closed: reading continues after a short read, until the end.
    is_closed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Connecting,
    /// A TLS handshake.
    Handshake,
    Open,
}

/// The result of a read.
#[derive(Debug)]
pub enum ReadResult {
    Bytes(usize),
    Nothing,
    /// The connection has ended, with an error or without.
    Ended(Option<io::Error>),
}

impl ReadyStream {
    /// A stream that is being connected.
    pub fn connecting(stream: Stream) -> Self {
        Self::new(stream, Phase::Connecting, false)
    }

    /// A stream that was accepted; a TLS handshake may still be to come.
    pub fn accepted(stream: Stream) -> Self {
        let phase = if stream.is_handshaking() { Phase::Handshake } else { Phase::Open };
        Self::new(stream, phase, true)
    }

    fn new(stream: Stream, phase: Phase, is_ready: bool) -> Self {
        ReadyStream { stream, phase, can_read: is_ready, can_write: is_ready, is_closed: false }
    }

    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    pub fn stream_mut(&mut self) -> &mut Stream {
        &mut self.stream
    }

    /// Whether bytes can be read and written: it is connected, and the handshake is over.
    pub fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    /// Whether a step may succeed without a further event.
    pub fn may_read(&self) -> bool {
        self.can_read
    }

    /// Whether the system may take bytes.
    pub fn may_write(&self) -> bool {
        self.can_write && self.is_open()
    }

    /// Notes a readiness event.
    pub fn note(&mut self, event: &Event) {
        let is_closed = event.is_read_closed() || event.is_error();
        self.can_read |= event.is_readable() || is_closed;
        self.can_write |= event.is_writable() || event.is_error();
        self.is_closed |= is_closed;
    }

    /// Treats the stream as ready, as the system's announcements are unknown.
    pub fn assume_ready(&mut self) {
        (self.can_read, self.can_write) = (true, true);
    }

    /// Waits for readiness and notes it, while nobody takes the system's events. `has_more`: the
    /// caller has bytes to write. False: nothing within this time. A signal ends the wait early.
    pub fn await_ready(&mut self, has_more: bool, timeout: Duration) -> bool {
        let is_connecting = self.phase == Phase::Connecting;
        let writes = has_more || self.stream.has_unsent() || is_connecting;
        let wanted = Readiness { reads: true, writes };
        let ready = process::await_ready(self.stream.as_raw_fd(), wanted, Some(timeout));
        let Ok(ready) = ready else { return true };
        self.can_read |= ready.reads;
        self.can_write |= ready.writes;
        !ready.is_none()
    }

    /// Continues to connect and to shake hands. Done: it has just become open. Unfinished: a
    /// further step needs no event. Errors: connecting or the handshake has failed.
    pub fn open(&mut self) -> io::Result<Handshake> {
        if !self.can_read && !self.can_write {
            return Ok(Handshake::Waits);
        }
        let mut step = Handshake::Waits;
        if self.phase != Phase::Connecting || self.stream.is_connected()? {
            self.phase = Phase::Handshake;
            step = self.stream.handshake()?;
        }
        match step {
            Handshake::Done => {
                self.phase = Phase::Open;
                // Bytes after the handshake may be buffered already.
                self.assume_ready();
            }
            Handshake::Waits => (self.can_read, self.can_write) = (false, false),
            Handshake::Unfinished => {}
        }
        Ok(step)
    }

    /// Reads once.
    pub fn read(&mut self, buffer: &mut [u8]) -> ReadResult {
        if !self.can_read || !self.is_open() {
            return ReadResult::Nothing;
        }
        match self.stream.read(buffer) {
            Ok(0) => {
                self.can_read = false;
                ReadResult::Ended(None)
            }
            Ok(count) => {
                self.can_read = count == buffer.len() || self.is_closed || self.stream.has_more();
                ReadResult::Bytes(count)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.can_read = false;
                ReadResult::Nothing
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => ReadResult::Nothing,
            Err(error) => ReadResult::Ended(Some(error)),
        }
    }

    /// Writes once. 0: the system takes nothing now. The pieces must not be empty.
    pub fn write(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        while self.may_write() {
            match self.stream.write_vectored(pieces) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.can_write = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                written => return written,
            }
        }
        Ok(0)
    }

    /// Gives the system what TLS has encrypted and the system has not taken yet.
    pub fn flush(&mut self) -> io::Result<()> {
        if self.may_write() && self.stream.has_unsent() {
            match self.stream.flush() {
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.can_write = false,
                flushed => return flushed,
            }
        }
        Ok(())
    }
}
