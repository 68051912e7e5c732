//! A connection of the cluster bus: making it, one read at a time, and the queue of messages to be
//! sent.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Read, Write};
use std::net::IpAddr;
use std::sync::Arc;

use mio::event::Event;

use crate::cluster::action::LinkId;
use crate::net::stream::Stream;
use crate::net::tls::stream::Handshake;

/// Messages given to the system in one call.
const PIECES_MAX: usize = 64;

/// See the module.
pub struct Link {
    pub(super) id: LinkId,
    pub(super) stream: Stream,
    phase: Phase,
    can_read: bool,
    can_write: bool,
    /// The other end has closed: reading continues after a short read, until the end.
    is_over: bool,
    /// It waits for its turn.
    pub(super) is_ready: bool,
    pub(super) is_to_send: bool,
    /// It ends once its messages are sent.
    pub(super) is_closing: bool,
    /// The bytes in `input` are to be processed again.
    pub(super) rereads: bool,
    /// Nothing is read: received messages wait until no script runs.
    pub(super) is_held: bool,
    /// Nothing is read: the other end does not take its answers.
    pub(super) is_held_back: bool,
    /// Bytes of an incomplete message, or of messages that wait.
    pub(super) input: Vec<u8>,
    queue: VecDeque<Queued>,
    /// Bytes of the first message that are sent.
    sent: usize,
    queued: usize,
    pub(super) created_ms: i64,
}

/// A message, and the save that must be on disk before.
struct Queued {
    message: Arc<[u8]>,
    after_save: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Connecting,
    /// A handshake with TLS.
    Shaking,
    Open,
}

/// The result of a step.
pub(super) enum Reading {
    Waits,
    /// A further step needs no event.
    GoesOn,
    /// The connection is established, with this local address.
    Connected(Option<IpAddr>),
    /// Bytes that are in the buffer now.
    Bytes(usize),
    Ended,
}

impl Link {
    fn new(id: LinkId, stream: Stream, phase: Phase, created_ms: i64) -> Self {
        let is_open = phase != Phase::Connecting;
        Link {
            id,
            stream,
            phase,
            can_read: is_open,
            can_write: is_open,
            is_over: false,
            is_ready: false,
            is_to_send: false,
            is_closing: false,
            rereads: false,
            is_held: false,
            is_held_back: false,
            input: Vec::new(),
            queue: VecDeque::new(),
            sent: 0,
            queued: 0,
            created_ms,
        }
    }

    pub(super) fn accepted(id: LinkId, stream: Stream, created_ms: i64) -> Self {
        let phase = if stream.is_handshaking() { Phase::Shaking } else { Phase::Open };
        Self::new(id, stream, phase, created_ms)
    }

    pub(super) fn connecting(id: LinkId, stream: Stream, created_ms: i64) -> Self {
        Self::new(id, stream, Phase::Connecting, created_ms)
    }

    pub(super) fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    pub(super) fn look(&mut self, event: &Event) {
        let is_over = event.is_read_closed() || event.is_error();
        self.can_read |= event.is_readable() || is_over;
        self.can_write |= event.is_writable() || event.is_error();
        self.is_over |= is_over;
    }

    pub(super) fn look_anyway(&mut self) {
        (self.can_read, self.can_write) = (true, true);
    }

    /// Whether a read may find bytes that are not announced again.
    pub(super) fn may_read(&self) -> bool {
        self.can_read
    }

    /// Continues to connect, or reads once.
    pub(super) fn go_on(&mut self, buffer: &mut [u8]) -> Reading {
        if std::mem::take(&mut self.rereads) {
            return Reading::Bytes(0);
        }
        if self.is_held || self.is_held_back {
            return Reading::Waits;
        }
        match self.phase {
            Phase::Open => self.read(buffer),
            _ if !self.can_read && !self.can_write => Reading::Waits,
            _ => self.connect().unwrap_or(Reading::Ended),
        }
    }

    fn connect(&mut self) -> io::Result<Reading> {
        if self.phase == Phase::Connecting {
            if !self.stream.is_connected()? {
                (self.can_read, self.can_write) = (false, false);
                return Ok(Reading::Waits);
            }
            self.phase = Phase::Shaking;
        }
        match self.stream.handshake()? {
            Handshake::Done => {}
            Handshake::Unfinished => return Ok(Reading::GoesOn),
            Handshake::Waits => {
                (self.can_read, self.can_write) = (false, false);
                return Ok(Reading::Waits);
            }
        }
        self.phase = Phase::Open;
        // Bytes after the handshake may be buffered already.
        (self.can_read, self.can_write) = (true, true);
        Ok(Reading::Connected(self.stream.local_ip()))
    }

    fn read(&mut self, buffer: &mut [u8]) -> Reading {
        if !self.can_read {
            return Reading::Waits;
        }
        match self.stream.read(buffer) {
            Ok(0) => Reading::Ended,
            Ok(count) => {
                self.can_read = count == buffer.len() || self.is_over || self.stream.has_more();
                Reading::Bytes(count)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.can_read = false;
                Reading::Waits
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Reading::GoesOn,
            Err(_) => Reading::Ended,
        }
    }

    // ---- sending --------------------------------------------------------------------------------

    pub(super) fn push(&mut self, message: Arc<[u8]>, after_save: u64) {
        self.queued += message.len();
        self.queue.push_back(Queued { message, after_save });
    }

    /// Bytes of the queue.
    pub(super) fn queued(&self) -> usize {
        self.queued
    }

    pub(super) fn has_output(&self) -> bool {
        !self.queue.is_empty() || self.stream.has_unsent()
    }

    /// Whether the next message waits for a save later than this one.
    pub(super) fn waits_for(&self, saved: u64) -> bool {
        self.queue.front().is_some_and(|first| first.after_save > saved)
    }

    /// Sends as much as the system takes of the messages that need no save later than this one.
    pub(super) fn write(&mut self, saved: u64) -> io::Result<()> {
        if self.phase != Phase::Open {
            return Ok(());
        }
        while self.can_write && !self.queue.is_empty() && !self.waits_for(saved) {
            let may_leave = self.queue.iter().take_while(|queued| queued.after_save <= saved);
            let mut pieces: Vec<IoSlice<'_>> =
                may_leave.take(PIECES_MAX).map(|queued| IoSlice::new(&queued.message)).collect();
            let mut from = &mut pieces[..];
            IoSlice::advance_slices(&mut from, self.sent);
            match self.stream.write_vectored(from) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.note_sent(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.can_write = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if self.can_write && self.stream.has_unsent() {
            match self.stream.flush() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.can_write = false,
                flushed => flushed?,
            }
        }
        Ok(())
    }

    fn note_sent(&mut self, count: usize) {
        self.sent += count;
        while let Some(first) = self.queue.front()
            && self.sent >= first.message.len()
        {
            self.sent -= first.message.len();
            self.queued -= first.message.len();
            self.queue.pop_front();
        }
    }
}
