//! Bytes in: every ready client is read once a turn, and what it sent is parsed into the batch.
//!
//! Clients are read into one arena, behind what was left of their last request; requests are ranges into it, nothing is copied. What
//! is no whole request goes back to its client; a large request gets a buffer of its own and is parsed on from where it stopped.

use std::io;

use mio::{Events, Token};

use super::batch::{BATCH_REQUESTS, Batch, Unparsed};
use super::{FIRST_LISTENER, LISTENERS_MAX, Turn, WAKER};
use crate::client::{Client, ClientFlags, ClientId, Input, LargeInput};
use crate::gate::admit::needs_password;
use crate::gate::following::PRIMARY;
use crate::gate::limits::describe_client;
use crate::resp::request::{Limits, Parser};
use crate::sys::log::Level;

/// Where requests are read to. Emptied with every batch.
const ARENA_BYTES: usize = 256 * 1024;
/// Read from one client in one turn; also its share of the turn: who sends more goes on in the next one.
const READ_BYTES: usize = 64 * 1024;
/// A request whose beginning is at least this long, or which waits for so much, gets a buffer of its own.
pub(super) const LARGE_BYTES: usize = 16 * 1024;
/// Read of a large request in one turn, as long as there is so much: what a client announces is better taken in at once than
/// left to the system's buffers, and no more of the turn than the memory of a few copies.
const LARGE_READ_BYTES: usize = 1024 * 1024;
/// Bytes that wait of one client, whatever the configured limit: the places of arguments have 32 bits.
pub(super) const INPUT_MAX: u64 = u32::MAX as u64;

/// Where requests are on their way from a client's socket to the gate.
pub(super) struct Intake {
    pub arena: Box<[u8]>,
    pub arena_used: usize,
    pub batch: Batch,
}

impl Default for Intake {
    fn default() -> Self {
        let arena = vec![0; ARENA_BYTES].into_boxed_slice();
        Intake { arena, arena_used: 0, batch: Batch::default() }
    }
}

impl Turn<'_> {
    /// Takes in what has come: new clients, and the bytes of those that are ready.
    pub(super) fn take_in(&mut self, events: &Events) {
        // Those whom the last turn left: who is put on the list now has been read in this one.
        let read_again = std::mem::take(&mut self.state.net.pending.read_again);
        for event in events {
            match event.token() {
                WAKER => {}
                // `following::look` sees it.
                PRIMARY => {}
                Token(token) if token > FIRST_LISTENER - LISTENERS_MAX => {
                    self.accept(FIRST_LISTENER - token);
                }
                Token(slot) => self.client_is_ready(slot, event),
            }
        }
        for listener in std::mem::take(&mut self.state.net.pending.accept_again) {
            self.accept(listener);
        }
        for id in read_again {
            self.read(id);
        }
    }

    fn client_is_ready(&mut self, slot: usize, event: &mio::event::Event) {
        let Some(client) = self.state.clients.at_slot(slot) else { return };
        let id = client.id;
        if event.is_read_closed() || event.is_error() {
            client.flags |= ClientFlags::READ_CLOSED;
        }
        let has_unsent = client.stream.has_unsent();
        if event.is_writable() && client.flags.contains(ClientFlags::WANTS_WRITE) {
            client.flags |= ClientFlags::CAN_WRITE;
            self.state.clients.flush_later(id);
        }
        let readable =
            event.is_readable() || event.is_read_closed() || event.is_error() || has_unsent;
        // Once in a turn: a client has one run in a batch, so that what waits of it keeps its order.
        if readable && !self.is_to_be_read(id) {
            self.read(id);
        }
    }

    /// Has a client be read in the next turn.
    pub(super) fn read_later(&mut self, id: ClientId) {
        if let Some(client) = self.state.clients.get_mut(id)
            && !client.is_closing()
        {
            client.flags |= ClientFlags::READ_PENDING;
            self.state.net.pending.read_again.push(id);
        }
    }

    fn is_to_be_read(&self, id: ClientId) -> bool {
        let client = self.state.clients.get(id);
        client.is_some_and(|client| client.flags.contains(ClientFlags::READ_PENDING))
    }

    /// Reads a client once and parses what came.
    pub(super) fn read(&mut self, id: ClientId) {
        if self.is_nested && self.is_held(id) {
            return self.read_later(id);
        }
        if ARENA_BYTES - self.intake.arena_used < READ_BYTES + LARGE_BYTES
            || self.intake.batch.requests.len() >= BATCH_REQUESTS
        {
            self.run_batch();
        }
        let Some(client) = self.state.clients.get_mut(id) else { return };
        client.flags.remove(ClientFlags::READ_PENDING);
        if client.is_closing() {
            return;
        }
        if client.stream.is_handshaking() {
            return self.shake_hands_later(id);
        }
        if client.flags.contains(ClientFlags::AWAITS_LOG) {
            // Its requests are read when what they are to be answered behind has been sent.
            client.flags |= ClientFlags::READ_WHEN_SENT;
            return;
        }
        if client.flags.intersects(ClientFlags::SUSPENDED | ClientFlags::PAUSED) {
            return self.read_for_later(id);
        }
        let waiting = match &mut client.input {
            Input::Empty => 0,
            Input::Waiting(bytes) => {
                let space = &mut self.intake.arena[self.intake.arena_used..];
                space[..bytes.len()].copy_from_slice(bytes);
                bytes.len()
            }
            Input::Large(_) => return self.read_large(id),
        };
        let start = self.intake.arena_used;
        let space = &mut self.intake.arena[start + waiting..];
        let room = space.len().min(READ_BYTES);
        let read = io::Read::read(&mut client.stream, &mut space[..room]);
        let Some(count) = self.count_read(id, read, room) else { return };
        if let Some(client) = self.state.clients.get_mut(id) {
            client.input = Input::Empty;
        }
        self.intake.arena_used = start + waiting + count;
        self.parse_arena(id, start);
        let is_large = |client: &Client| matches!(client.input, Input::Large(_));
        if count == room && self.state.clients.get(id).is_some_and(is_large) {
            self.read_large(id);
        }
    }

    /// Reads for a client whose requests wait: the bytes are kept.
    fn read_for_later(&mut self, id: ClientId) {
        let Some(client) = self.state.clients.get_mut(id) else { return };
        let space = &mut self.intake.arena[self.intake.arena_used..][..READ_BYTES];
        let read = io::Read::read(&mut client.stream, space);
        let Some(count) = self.count_read(id, read, READ_BYTES) else { return };
        let Some(client) = self.state.clients.get_mut(id) else { return };
        let mut bytes = match std::mem::take(&mut client.input) {
            Input::Empty => Vec::new(),
            Input::Waiting(bytes) => bytes,
            Input::Large(large) => large.buffer,
        };
        bytes.extend_from_slice(&self.intake.arena[self.intake.arena_used..][..count]);
        client.input = Input::Waiting(bytes);
        self.check_query_limit(id);
    }

    /// Reads more of a large request into its own buffer, and runs it if it is complete.
    fn read_large(&mut self, id: ClientId) {
        // What others sent before comes first.
        self.run_batch();
        let mut bytes = 0;
        while let Some(count) = self.read_piece(id)
            && count >= LARGE_BYTES
            && bytes < LARGE_READ_BYTES
        {
            bytes += count;
        }
    }

    /// The same with a single read. Its bytes, if the request is still not complete.
    fn read_piece(&mut self, id: ClientId) -> Option<usize> {
        let client = self.state.clients.get_mut(id)?;
        // The requests before it, which ran just now, may have suspended the client, or ended the connection.
        let waits = ClientFlags::SUSPENDED | ClientFlags::PAUSED;
        if !matches!(client.input, Input::Large(_))
            || client.flags.intersects(waits)
            || client.is_closing()
        {
            return None;
        }
        // By way of the arena, which is empty now: what is announced costs nothing before it comes, and room in the
        // request's own buffer would have to be cleared for each read, however little that brings.
        let room = self.intake.arena.len();
        let read = io::Read::read(&mut client.stream, &mut self.intake.arena);
        let count = self.count_read(id, read, room)?;
        let client = self.state.clients.get_mut(id)?;
        let Input::Large(large) = &mut client.input else { return None };
        let wanted = large.parser.bytes_wanted();
        if wanted >= LARGE_BYTES {
            large.make_room(count, wanted.saturating_sub(count));
        }
        large.buffer.extend_from_slice(&self.intake.arena[..count]);
        if !self.check_query_limit(id) {
            return None;
        }
        let client = self.state.clients.get_mut(id)?;
        if let Input::Large(large) = std::mem::take(&mut client.input) {
            self.run_own(id, *large);
        }
        let client = self.state.clients.get(id)?;
        let goes_on = matches!(client.input, Input::Large(_)) && !client.is_closing();
        goes_on.then_some(count)
    }

    /// Books a read; None if there is nothing to parse. A client whose other end is gone is closed.
    fn count_read(&mut self, id: ClientId, read: io::Result<usize>, room: usize) -> Option<usize> {
        let client = self.state.clients.get_mut(id)?;
        self.state.stats.counters.reads += 1;
        match read {
            Ok(0) => {
                self.end_of_input(id);
                None
            }
            Ok(count) => {
                client.bytes_in += count as u64;
                client.active_us = self.state.now.boot_us;
                self.state.stats.counters.bytes_in += count as u64;
                // Edge-triggered: a short read has drained the socket, unless its end is still to be seen.
                let more = count == room
                    || client.flags.contains(ClientFlags::READ_CLOSED)
                    || client.stream.has_more();
                if more && !client.flags.contains(ClientFlags::READ_PENDING) {
                    client.flags |= ClientFlags::READ_PENDING;
                    self.state.net.pending.read_again.push(id);
                }
                Some(count)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                // Not closed at all: the event was meant for who had this place before.
                client.flags.remove(ClientFlags::READ_CLOSED);
                None
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                client.flags |= ClientFlags::READ_PENDING;
                self.state.net.pending.read_again.push(id);
                None
            }
            Err(error) => {
                self.state.log(Level::Verbose, format_args!("Reading from client: {error}"));
                self.state.clients.close(id);
                None
            }
        }
    }

    /// The other end sends no more. Whether it still reads is not known: it gets the replies that wait, or the system says
    /// that it is gone, or the periodic work finds that it takes nothing. Who only waits for messages or for CLIENT PAUSE is
    /// done.
    fn end_of_input(&mut self, id: ClientId) {
        let Some(client) = self.state.clients.get_mut(id) else { return };
        let waiting = ClientFlags::SUBSCRIBED
            | ClientFlags::MONITOR
            | ClientFlags::SUSPENDED
            | ClientFlags::PAUSED;
        if client.output.is_empty() || client.flags.intersects(waiting) {
            self.state.clients.close(id);
        } else {
            self.close_after_reply(id);
        }
    }

    /// Closes a client that has sent more than it may without completing a request. True if it may go on.
    pub(super) fn check_query_limit(&mut self, id: ClientId) -> bool {
        let limit = self.state.config.client_query_buffer_limit;
        self.count_memory(id);
        let Some(client) = self.state.clients.get_mut(id) else { return false };
        let flags = client.flags;
        let authenticated = !needs_password(self.state, flags);
        let Some(client) = self.state.clients.get_mut(id) else { return false };
        let limit = if authenticated { limit } else { limit.min(1 << 20) };
        if client.input.len() as u64 <= limit.min(INPUT_MAX) {
            return true;
        }
        self.state.stats.counters.query_buffer_limit_disconnections += 1;
        let line = describe_client(self.state, id);
        self.state.log(
            Level::Warning,
            format_args!("Closing client that reached max query buffer length: {line}"),
        );
        self.state.clients.close(id);
        false
    }

    pub(super) fn limits(&self, client: &Client) -> Limits {
        Limits {
            bulk_len_max: self.state.config.proto_max_bulk_len,
            authenticated: !needs_password(self.state, client.flags),
            ..Limits::default()
        }
    }

    /// Parses what a client has in the arena from `start` on; what is no whole request goes back to the client.
    fn parse_arena(&mut self, id: ClientId, start: usize) {
        let end = self.intake.arena_used;
        let Some(client) = self.state.clients.get(id) else { return };
        if !client.flags.contains(ClientFlags::AUTHENTICATED) {
            // Each request may be the one that authenticates and so changes the limits of the next.
            let buffer = self.intake.arena[start..end].to_vec();
            return self.run_own(id, LargeInput { buffer, ..LargeInput::default() });
        }
        let limits = self.limits(client);
        let mut parser = Parser::default();
        let bytes = &mut self.intake.arena[..end];
        let mut unparsed = Unparsed { bytes, at: start, parser: &mut parser };
        self.intake.batch.parse(self.state, id, &mut unparsed, &limits, usize::MAX);
        let at = unparsed.at;
        let tail = &self.intake.arena[at..end];
        if tail.is_empty() {
            return;
        }
        let is_large = tail.len() + parser.bytes_wanted() >= LARGE_BYTES;
        let Some(client) = self.state.clients.get_mut(id) else { return };
        client.input = if is_large {
            let announced = parser.bytes_wanted();
            let mut large = LargeInput { buffer: Vec::new(), parser };
            large.make_room(tail.len(), announced);
            large.buffer.extend_from_slice(tail);
            Input::Large(Box::new(large))
        } else {
            Input::Waiting(tail.to_vec())
        };
    }
}
