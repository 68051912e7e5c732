//! Reading: every ready client is read once a turn, and its bytes are parsed into the batch.
//!
//! Clients are read into one arena, after the unfinished part of their last request. Requests are
//! ranges into the arena, without a copy. An incomplete request goes back to its client. A large
//! one gets its own buffer, where parsing continues from where it stopped.

use std::io;

use mio::Events;

use super::Turn;
use super::batch::{BATCH_REQUESTS, Batch, Unparsed};
use crate::client::queues::Queues;
use crate::client::readiness::LogWait;
use crate::client::{Client, ClientFlags, ClientId, Input, LargeInput};
use crate::gate::limits::{describe_for_log, spare_memory};
use crate::net::source::Source;
use crate::resp::request::{CLIENT_REQUEST_BYTES_MAX, Limits, Parser};
use crate::state::State;
use crate::stats::Counters;
use crate::sys::log::{verbose, warning};

/// Size of the arena. It is emptied with every batch.
const ARENA_BYTES: usize = 256 * 1024;
/// The most bytes read from one client in one turn, for fairness. Others are read in the next turn.
const READ_BYTES: usize = 64 * 1024;
/// An incomplete request of this size, announced or received, gets its own buffer.
pub(super) const LARGE_BYTES: usize = 16 * 1024;
/// The most bytes read of a large request in one turn. An announced payload is better read at once
/// than left in the system's buffers, but must not take more of the turn than the copying of these
/// bytes.
const LARGE_READ_BYTES: usize = 1024 * 1024;
/// The limit of a client's unprocessed bytes, even if `client-query-buffer-limit` is higher:
/// argument ranges have 32 bits.
pub(super) const INPUT_MAX: u64 = CLIENT_REQUEST_BYTES_MAX;

/// The arena and batch that requests pass through.
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

/// Notes the readiness of all connections but those of clients, before any of them is served.
pub(super) fn note_readiness(state: &mut State, events: &Events) {
    for event in events {
        match Source::of(event.token()) {
            Source::Primary => {
                if let Some(socket) = &mut state.net.primary {
                    socket.note(event);
                }
            }
            Source::Http => state.net.http.note_readiness(event),
            Source::Bus => state.net.bus.note_readiness(event),
            Source::Lines => state.net.lines.note_readiness(event),
            Source::Client(_) | Source::Listener(_) | Source::Waker => {}
        }
    }
}

impl Turn<'_> {
    /// Handles events: accepts new clients, and reads the ready ones.
    pub(super) fn take_in(&mut self, events: &Events) {
        // Taken first: clients added from now on were read in this turn.
        let read_again = std::mem::take(&mut self.core.state.clients.queues.to_read);
        for event in events {
            match Source::of(event.token()) {
                Source::Client(slot) => self.client_is_ready(slot, event),
                Source::Listener(listener) => self.accept(listener),
                // Noted by `note_readiness`.
                Source::Primary | Source::Http | Source::Bus | Source::Lines => {}
                Source::Waker => {}
            }
        }
        for listener in std::mem::take(&mut self.core.state.net.pending.accept_again) {
            self.accept(listener);
        }
        for id in read_again {
            self.read(id);
        }
    }

    fn client_is_ready(&mut self, slot: usize, event: &mio::event::Event) {
        self.make_room();
        let (state, is_nested) = (&mut self.core.state, self.is_nested);
        let Some((client, queues)) = state.clients.at_slot(slot) else { return };
        if event.is_read_closed() || event.is_error() {
            client.reading.is_end_announced = true;
        }
        let has_unsent = client.stream.has_unsent();
        if event.is_writable() && client.writability.announce() {
            queues.flush_later(client);
        }
        let readable =
            event.is_readable() || event.is_read_closed() || event.is_error() || has_unsent;
        // Only once a turn: with one run for each client in a batch, the order of its waiting
        // requests is kept.
        if readable && !client.reading.is_queued {
            let (id, now_us) = (client.id, state.now.boot_us);
            let mut reader = Reader { client, queues, counters: &mut state.stats.counters, now_us };
            let next = reader.read(self.intake, is_nested);
            self.go_on(id, next);
        }
    }

    /// Reads the clients whose inputs have been returned.
    pub(super) fn read_returned(&mut self) {
        for id in self.core.state.arriving.take_returned() {
            self.core.state.clients.read_later(id);
        }
    }

    /// Runs the batch if there is no room in it or in the arena for another client's requests.
    fn make_room(&mut self) {
        if ARENA_BYTES - self.intake.arena_used < READ_BYTES + LARGE_BYTES
            || self.intake.batch.requests.len() >= BATCH_REQUESTS
        {
            self.run_batch();
        }
    }

    /// A client, unless it is gone, to be read into the intake.
    fn reader(&mut self, id: ClientId) -> Option<(Reader<'_>, &mut Intake)> {
        let state = &mut self.core.state;
        let (client, queues) = state.clients.get_with_queues(id)?;
        let (counters, now_us) = (&mut state.stats.counters, state.now.boot_us);
        Some((Reader { client, queues, counters, now_us }, &mut *self.intake))
    }

    /// Reads a client once and parses the bytes.
    pub(super) fn read(&mut self, id: ClientId) {
        self.make_room();
        let is_nested = self.is_nested;
        if let Some((mut reader, intake)) = self.reader(id) {
            let next = reader.read(intake, is_nested);
            self.go_on(id, next);
        }
    }

    /// Continues after a client has been read.
    fn go_on(&mut self, id: ClientId, next: Next) {
        match next {
            Next::Nothing => {}
            Next::Handshake => self.queue_handshake(id),
            Next::Keep => self.read_for_later(id),
            Next::Large => self.read_large(id),
            Next::End => self.end_of_input(id),
            Next::Fail(error) => {
                verbose!(self.core.state, "Reading from client: {error}");
                self.core.state.clients.close(id);
            }
            Next::Parse(arrived) => {
                let has_more = arrived.has_more;
                if self.parse_arena(id, arrived) && has_more {
                    self.read_large(id);
                }
            }
        }
    }

    /// The number of bytes read. None: there are none to parse, and the rest is done.
    fn come(&mut self, id: ClientId, read: Result<usize, Next>) -> Option<usize> {
        read.map_err(|next| self.go_on(id, next)).ok()
    }

    /// Reads a client whose requests wait: the bytes are kept.
    fn read_for_later(&mut self, id: ClientId) {
        let Some((mut reader, intake)) = self.reader(id) else { return };
        let space = &mut intake.arena[intake.arena_used..][..READ_BYTES];
        let read = io::Read::read(&mut reader.client.stream, space);
        let read = reader.count(read, READ_BYTES);
        if let Ok(count) = read {
            let input = &mut reader.client.input;
            let mut bytes = std::mem::take(input).into_bytes();
            bytes.extend_from_slice(&space[..count]);
            *input = Input::Waiting(bytes);
        }
        if self.come(id, read).is_some() {
            self.check_query_limit(id);
        }
    }

    /// Reads more of a large request into its own buffer, and runs it if complete.
    fn read_large(&mut self, id: ClientId) {
        // Requests that other clients sent before come first.
        self.run_batch();
        let mut bytes = 0;
        while let Some(count) = self.read_piece(id)
            && count >= LARGE_BYTES
            && bytes < LARGE_READ_BYTES
        {
            bytes += count;
        }
    }

    /// Reads a piece of a large request. Returns the piece's size if the request is still
    /// incomplete.
    fn read_piece(&mut self, id: ClientId) -> Option<usize> {
        let (mut reader, _) = self.reader(id)?;
        let client = &mut *reader.client;
        // The client's earlier requests may just have suspended or closed it.
        if !matches!(client.input, Input::Large(_)) || client.is_suspended() || client.is_closing()
        {
            return None;
        }
        let count = match client.read_to_its_place(LARGE_READ_BYTES) {
            Some((read, room)) => {
                let read = reader.count(read, room);
                self.come(id, read)?
            }
            None => self.read_through_arena(id)?,
        };
        if !self.check_query_limit(id) {
            return None;
        }
        let client = self.core.state.clients.get_mut(id)?;
        if let Input::Large(large) = std::mem::take(&mut client.input) {
            self.run_own(id, *large);
        }
        let client = self.core.state.clients.get(id)?;
        let goes_on = matches!(client.input, Input::Large(_)) && !client.is_closing();
        goes_on.then_some(count)
    }

    /// Reads a piece of a large request through the arena, which is empty now. So memory for
    /// announced bytes is needed only when they come. Returns the piece's size.
    fn read_through_arena(&mut self, id: ClientId) -> Option<usize> {
        let (mut reader, intake) = self.reader(id)?;
        let read = io::Read::read(&mut reader.client.stream, &mut intake.arena);
        let read = reader.count(read, ARENA_BYTES);
        let count = self.come(id, read)?;
        let Input::Large(large) = &self.core.state.clients.get(id)?.input else { return None };
        let wanted = large.parser.bytes_wanted();
        let spare = (wanted >= LARGE_BYTES && large.is_short_of(count))
            .then(|| spare_memory(&self.core.state));
        let client = self.core.state.clients.get_mut(id)?;
        let Input::Large(large) = &mut client.input else { return None };
        if let Some(spare) = spare {
            large.make_room(count, wanted.saturating_sub(count), spare);
        }
        large.buffer.extend_from_slice(&self.intake.arena[..count]);
        Some(count)
    }

    /// Reads the `wanted` rest of a request to its place in the arena, if there is room. Returns
    /// the number of bytes that have come.
    fn read_rest(&mut self, id: ClientId, wanted: usize) -> Option<usize> {
        let (mut reader, intake) = self.reader(id)?;
        let space = intake.arena[intake.arena_used..].get_mut(..wanted)?;
        let read = io::Read::read(&mut reader.client.stream, space);
        let read = reader.count(read, wanted);
        let count = self.come(id, read)?;
        self.intake.arena_used += count;
        Some(count)
    }

    /// Handles the end of a client's input. The other end may still read, so the client gets its
    /// pending replies, until a write fails or the periodic work closes it. A client that only
    /// waits for messages or for CLIENT PAUSE is closed.
    fn end_of_input(&mut self, id: ClientId) {
        let Some(client) = self.core.state.clients.get_mut(id) else { return };
        let listens = client.flags.intersects(ClientFlags::SUBSCRIBED | ClientFlags::MONITOR);
        if client.output.is_empty() || listens || client.is_suspended() {
            self.core.state.clients.close(id);
        } else {
            self.core.state.clients.close_after_reply(id, self.core.state.now);
        }
    }

    /// Closes a client that exceeds its limit of unprocessed bytes. True if it is not closed.
    pub(super) fn check_query_limit(&mut self, id: ClientId) -> bool {
        let limit = self.core.state.config.client_query_buffer_limit;
        self.count_memory(id);
        let Some(client) = self.core.state.clients.get(id) else { return false };
        let authenticated = !self.core.state.needs_password(client.flags);
        let limit = if authenticated { limit } else { limit.min(1 << 20) };
        if client.input.len() as u64 <= limit.min(INPUT_MAX) {
            return true;
        }
        self.core.state.stats.counters.query_buffer_limit_disconnections += 1;
        let line = describe_for_log(&self.core.state, id);
        warning!(self.core.state, "Closing client that reached max query buffer length: {line}");
        self.core.state.clients.close(id);
        false
    }

    pub(super) fn limits(&self, client: &Client) -> Limits {
        let authenticated = !self.core.state.needs_password(client.flags);
        Limits::of_client(self.core.state.config.proto_max_bulk_len, authenticated)
    }

    /// Parses a client's bytes in the arena; an incomplete request goes back to the client. True:
    /// it is a large one.
    fn parse_arena(&mut self, id: ClientId, arrived: Arrived) -> bool {
        let Arrived { start, has_more, is_authenticated } = arrived;
        let end = self.intake.arena_used;
        if !is_authenticated {
            // Any request may authenticate and so change the limits of the next.
            let buffer = self.intake.arena[start..end].to_vec();
            self.run_own(id, LargeInput { buffer, ..LargeInput::default() });
            let client = self.core.state.clients.get(id);
            return client.is_some_and(|client| matches!(client.input, Input::Large(_)));
        }
        let limits = Limits::of_client(self.core.state.config.proto_max_bulk_len, true);
        let mut parser = Parser::default();
        let bytes = &mut self.intake.arena[..end];
        let mut unparsed = Unparsed { bytes, at: start, parser: &mut parser };
        let runs = self.intake.batch.runs.len();
        self.intake.batch.parse(&self.core.state, id, &mut unparsed, &limits, usize::MAX);
        let mut at = unparsed.at;
        let wanted = parser.bytes_wanted();
        // A request of somewhat more than one read, as of a value of 64 KiB, is not copied from the
        // arena. It must be the only one: a batch has one run for each client.
        let is_first = self.intake.batch.runs.len() == runs;
        if has_more
            && is_first
            && (1..=READ_BYTES).contains(&wanted)
            && self.read_rest(id, wanted).is_some()
        {
            let bytes = &mut self.intake.arena[..self.intake.arena_used];
            let mut unparsed = Unparsed { bytes, at, parser: &mut parser };
            self.intake.batch.parse(&self.core.state, id, &mut unparsed, &limits, 1);
            at = unparsed.at;
        }
        let tail = &self.intake.arena[at..self.intake.arena_used];
        if tail.is_empty() {
            return false;
        }
        let is_large = tail.len() + parser.bytes_wanted() >= LARGE_BYTES;
        let Some(client) = self.core.state.clients.get_mut(id) else { return false };
        client.input = if is_large {
            let announced = parser.bytes_wanted();
            let mut large = LargeInput { buffer: Vec::new(), parser };
            large.make_room(tail.len(), announced, (false, 0));
            large.buffer.extend_from_slice(tail);
            Input::Large(Box::new(large))
        } else {
            Input::Waiting(tail.to_vec())
        };
        is_large
    }
}

/// What a read of a client leads to.
enum Next {
    Nothing,
    /// A step of its handshake.
    Handshake,
    /// A read of bytes that are kept, because its requests wait.
    Keep,
    /// A read of more of its large request.
    Large,
    Parse(Arrived),
    /// The end of its input.
    End,
    /// The end of its connection.
    Fail(io::Error),
}

/// Bytes of a client in the arena, from its earlier incomplete request on.
struct Arrived {
    start: usize,
    /// More bytes have probably come.
    has_more: bool,
    is_authenticated: bool,
}

/// A client that is read: looked up once, for all that an ordinary read needs.
struct Reader<'a> {
    client: &'a mut Client,
    queues: &'a mut Queues,
    counters: &'a mut Counters,
    /// Boot-time clock.
    now_us: i64,
}

impl Reader<'_> {
    /// Reads a client once to the arena, if it may be read now.
    fn read(&mut self, intake: &mut Intake, is_nested: bool) -> Next {
        let Reader { client, queues, .. } = self;
        client.reading.is_queued = false;
        if is_nested && client.reading.is_held {
            queues.read_later(client);
            return Next::Nothing;
        }
        if client.is_closing() {
            return Next::Nothing;
        }
        if client.stream.is_handshaking() {
            return Next::Handshake;
        }
        // The client is read again when its input is back.
        if matches!(client.input, Input::Lent(_)) {
            return Next::Nothing;
        }
        if let LogWait::Waits { then_reads, .. } = &mut client.log_wait {
            // The client is read again when the output that comes before its replies has been sent.
            *then_reads = true;
            return Next::Nothing;
        }
        if client.is_suspended() {
            return Next::Keep;
        }
        let start = intake.arena_used;
        let waiting = match &client.input {
            Input::Empty | Input::Lent(_) => 0,
            Input::Waiting(bytes) => {
                intake.arena[start..][..bytes.len()].copy_from_slice(bytes);
                bytes.len()
            }
            Input::Large(_) => return Next::Large,
        };
        let space = &mut intake.arena[start + waiting..];
        let room = space.len().min(READ_BYTES);
        let read = io::Read::read(&mut client.stream, &mut space[..room]);
        match self.count(read, room) {
            Ok(count) => {
                self.client.input = Input::Empty;
                intake.arena_used = start + waiting + count;
                let is_authenticated = self.client.flags.contains(ClientFlags::AUTHENTICATED);
                Next::Parse(Arrived { start, has_more: count == room, is_authenticated })
            }
            Err(next) => next,
        }
    }

    /// Counts a read, for which there was this room. Errors: there are no bytes to parse.
    fn count(&mut self, read: io::Result<usize>, room: usize) -> Result<usize, Next> {
        let Reader { client, queues, counters, now_us } = self;
        counters.reads += 1;
        match read {
            Ok(0) => Err(Next::End),
            Ok(count) => {
                client.bytes_in += count as u64;
                client.active_us = *now_us;
                counters.bytes_in += count as u64;
                // Events are edge-triggered. A short read has drained the socket, unless the end of
                // the input was announced but not read yet.
                if count == room || client.reading.is_end_announced || client.stream.has_more() {
                    queues.read_later(client);
                }
                Ok(count)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                // Not closed after all: the event was for an earlier client in this slot.
                client.reading.is_end_announced = false;
                Err(Next::Nothing)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                queues.read_later(client);
                Err(Next::Nothing)
            }
            Err(error) => Err(Next::Fail(error)),
        }
    }
}
