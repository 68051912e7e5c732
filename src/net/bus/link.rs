//! A connection of the cluster bus: making it, one read at a time, and the queue of messages to be
//! sent.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::sync::Arc;

use crate::cluster::action::LinkId;
use crate::net::ready::{ReadResult, ReadyStream};
use crate::net::stream::Stream;
use crate::net::tls::stream::Handshake;

/// Messages given to the system in one call.
const PIECES_MAX: usize = 64;

/// See the module.
pub struct Link {
    pub(super) id: LinkId,
    pub(super) stream: ReadyStream,
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

/// The result of a step.
pub(super) enum Step {
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
    fn new(id: LinkId, stream: ReadyStream, created_ms: i64) -> Self {
        Link {
            id,
            stream,
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
        Self::new(id, ReadyStream::accepted(stream), created_ms)
    }

    pub(super) fn connecting(id: LinkId, stream: Stream, created_ms: i64) -> Self {
        Self::new(id, ReadyStream::connecting(stream), created_ms)
    }

    /// Continues to connect, or reads once.
    pub(super) fn go_on(&mut self, buffer: &mut [u8]) -> Step {
        if std::mem::take(&mut self.rereads) {
            return Step::Bytes(0);
        }
        if self.is_held || self.is_held_back {
            return Step::Waits;
        }
        if !self.stream.is_open() {
            return match self.stream.open() {
                Ok(Handshake::Done) => Step::Connected(self.stream.stream().local_ip()),
                Ok(Handshake::Unfinished) => Step::GoesOn,
                Ok(Handshake::Waits) => Step::Waits,
                Err(_) => Step::Ended,
            };
        }
        match self.stream.read(buffer) {
            ReadResult::Bytes(count) => Step::Bytes(count),
            // A signal came.
            ReadResult::Nothing if self.stream.may_read() => Step::GoesOn,
            ReadResult::Nothing => Step::Waits,
            ReadResult::Ended(_) => Step::Ended,
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
        !self.queue.is_empty() || self.stream.stream().has_unsent()
    }

    /// Whether the next message waits for a save later than this one.
    pub(super) fn waits_for(&self, saved: u64) -> bool {
        self.queue.front().is_some_and(|first| first.after_save > saved)
    }

    /// Sends as much as the system takes of the messages that need no save later than this one.
    pub(super) fn write(&mut self, saved: u64) -> io::Result<()> {
        while self.stream.may_write() && !self.queue.is_empty() && !self.waits_for(saved) {
            let may_leave = self.queue.iter().take_while(|queued| queued.after_save <= saved);
            let mut pieces: Vec<IoSlice<'_>> =
                may_leave.take(PIECES_MAX).map(|queued| IoSlice::new(&queued.message)).collect();
            let mut from = &mut pieces[..];
            IoSlice::advance_slices(&mut from, self.sent);
            let sent = self.stream.write(from)?;
            self.note_sent(sent);
        }
        self.stream.flush()
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
