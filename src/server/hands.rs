//! The hands of the loop: reading clients, running what they ask, sending what is answered.
//!
//! They borrow the server's parts instead of owning them, as there are two who use them: the loop, once a turn, and, while a
//! script keeps the server busy, the stand-in for the loop that lets others be heard (`busy.rs`).

use std::io;

use mio::{Events, Token};
use smallvec::SmallVec;

use super::{FIRST_LISTENER, LISTENERS_MAX, WAKER};
use crate::client::{Client, ClientFlags, ClientId, Input, LargeInput};
use crate::collections::prefetch::Ahead;
use crate::collections::table::Table;
use crate::gate::admit::needs_password;
use crate::gate::blocking;
use crate::gate::context::Caller;
use crate::gate::execute::{Gate, Ran, Request};
use crate::gate::following::{self, PRIMARY};
use crate::gate::limits::{
    check_output_limit, clients_memory_max, describe_client, evict_clients, forget_client,
    output_limit,
};
use crate::gate::persistence::Persistence;
use crate::gate::spec::{Begin, Find, Flags, Group};
use crate::gate::state::State;
use crate::gate::table::Command;
use crate::gate::{tracking, transaction};
use crate::keyspace::Keyspace;
use crate::persist::aof::log::LogOffset;
use crate::resp::args::Args;
use crate::resp::args::Prehashed;
use crate::resp::reply::{OutputBuffer, ReplyWriter};
use crate::resp::request::{Limits, Parsed, Parser, ProtocolError, Range, encode};
use crate::sys::log::Level;
use crate::types::{PREFETCH_STAGES, Value};

/// Where requests are read to. Emptied with every batch.
const ARENA_BYTES: usize = 256 * 1024;
/// Read from one client in one turn; also its share of the turn: who sends more goes on in the next one.
const READ_BYTES: usize = 64 * 1024;
/// A request whose beginning is at least this long, or which waits for so much, gets a buffer of its own.
const LARGE_BYTES: usize = 16 * 1024;
/// Read of a large request in one turn, as long as there is so much: what a client announces is better taken in at once than
/// left to the system's buffers, and no more of the turn than the memory of a few copies.
const LARGE_READ_BYTES: usize = 1024 * 1024;
/// Requests are run in batches of about so many: enough to hide the latency of memory, few enough to stay in the cache.
const BATCH_REQUESTS: usize = 64;
/// Arguments' places for which memory is kept between batches, 64 KiB: beside the work on more of them allocating is little.
const RANGES_KEPT_MAX: usize = 8 * 1024;
/// Bytes that wait of one client, whatever the configured limit: the places of arguments have 32 bits.
const INPUT_MAX: u64 = u32::MAX as u64;
/// Keys of one request that are prefetched.
const PREFETCH_KEYS: usize = 64;
/// A client's limits are checked between its requests whenever so much more output has collected: a short pipeline can
/// ask for gigabytes.
const OUTPUT_CHECK_BYTES: usize = 64 * 1024;
/// Empty output buffers kept for the next turn, and the largest worth keeping.
const SPARE_BUFFERS: usize = 64;
const SPARE_BYTES_MAX: usize = 64 * 1024;

/// One request of a batch.
struct Queued {
    command: Option<&'static Command>,
    /// Its arguments among the batch's ranges.
    args: std::ops::Range<u32>,
    /// Its keys' hashes among the batch's.
    hashes: std::ops::Range<u32>,
}

/// The requests one client has sent, within a batch.
struct Run {
    client: ClientId,
    requests: std::ops::Range<u32>,
    /// What to answer behind them: the client broke the protocol.
    error: Option<ProtocolError>,
}

/// Which of a command's arguments are keys to be prefetched.
#[derive(Clone, Copy, Default)]
struct Keys {
    first: usize,
    /// To the end of the request, not only the first one.
    last: bool,
    step: usize,
}

/// The keys of a command whose places are fixed. Steps other than 1 and 2 do not occur.
#[inline]
fn keys_to_prefetch(command: &Command) -> Option<Keys> {
    let spec = command.spec.keys.first()?;
    match (spec.begin, spec.find) {
        (Begin::Index(first), Find::Range { last, step, .. }) => {
            Some(Keys { first: first as usize, last: last < 0, step: step as usize })
        }
        _ => None,
    }
}

/// Which of a command's arguments may be a member or field of its key.
#[inline]
fn member_to_prefetch(command: &Command, args: usize) -> Option<usize> {
    // Those that are slow ask for ranges, or for many.
    if !command.is(Flags::FAST) {
        return None;
    }
    match command.spec.group {
        Group::Hash | Group::Set if args > 2 => Some(2),
        // Scores and options come before it.
        Group::SortedSet if args > 2 => Some(args - 1),
        _ => None,
    }
}

/// Prefetches what the look-ups in large collections will need, behind the keys themselves. It is a guess: nothing depends on
/// it.
fn prefetch_members(
    table: &Table<Value>,
    requests: &[Queued],
    ranges: &[Range],
    hashes: &[u64],
    buffer: &[u8],
) {
    let mut found = SmallVec::<[(&Value, Ahead); BATCH_REQUESTS]>::new();
    let mut last: Option<(u64, Option<&Value>)> = None;
    for request in requests {
        let Some(command) = request.command else { continue };
        let args = &ranges[request.args.start as usize..request.args.end as usize];
        let Some(member) = member_to_prefetch(command, args.len()) else { continue };
        let Some(&key) = hashes.get(request.hashes.start as usize) else { continue };
        // Many requests for the same key are the usual case.
        let value = match last {
            Some((hash, value)) if hash == key => value,
            _ => table.probable_object(key),
        };
        last = Some((key, value));
        if let Some(value) = value
            && let Some(ahead) = value.ahead(args[member].of(buffer))
        {
            found.push((value, ahead));
        }
    }
    if found.len() < 2 {
        return;
    }
    for stage in 0..PREFETCH_STAGES {
        found.iter_mut().for_each(|(value, ahead)| value.prefetch(ahead, stage));
    }
}

/// Whether a command may keep the server busy for so long that others are heard meanwhile: a script, or a transaction with one.
#[inline]
fn may_be_long(command: &Command) -> bool {
    matches!(command.spec.group, Group::Scripting | Group::Transactions)
}

/// Whether a client's output may leave: nothing shows a change before the log's policy has it kept. If not, it is noted what the
/// output waits for.
fn may_be_sent(persistence: &Persistence, client: &mut Client) -> bool {
    let length = client.output.len();
    if !client.flags.contains(ClientFlags::AWAITS_LOG) || length > client.awaited.1 {
        client.awaited = (persistence.depends_on().0, length);
    }
    let may = client.flags.contains(ClientFlags::CLOSE_NOW)
        || persistence.may_leave(LogOffset(client.awaited.0));
    if !may {
        client.flags |= ClientFlags::AWAITS_LOG;
    }
    may
}

/// Parsed requests that have not run.
#[derive(Default)]
struct Batch {
    runs: Vec<Run>,
    requests: Vec<Queued>,
    ranges: Vec<Range>,
    /// Hashes of keys, as far as they were prefetched.
    hashes: Vec<u64>,
}

impl Batch {
    fn clear(&mut self) {
        self.runs.clear();
        self.requests.clear();
        self.ranges.clear();
        self.ranges.shrink_to(RANGES_KEPT_MAX);
        self.hashes.clear();
    }
}

/// Where requests are on their way from a client's socket to the gate.
pub(super) struct Intake {
    arena: Box<[u8]>,
    arena_used: usize,
    batch: Batch,
}

impl Default for Intake {
    fn default() -> Self {
        let arena = vec![0; ARENA_BYTES].into_boxed_slice();
        Intake { arena, arena_used: 0, batch: Batch::default() }
    }
}

/// The server's parts, lent for the work on clients.
pub(super) struct Hands<'a> {
    pub keyspace: &'a mut Keyspace,
    pub state: &'a mut State,
    pub intake: &'a mut Intake,
    /// A script keeps the loop busy: whoever is in the loop's hands is let be.
    pub stands_in: bool,
}

impl Hands<'_> {
    /// Takes in what has come: new clients, and the bytes of those that are ready.
    pub fn take_in(&mut self, events: &Events) {
        // Those whom the last turn left: who is put on the list now has been read in this one.
        let read_again = std::mem::take(&mut self.state.pending.read_again);
        for event in events {
            match event.token() {
                WAKER => {}
                PRIMARY => following::is_ready(self.state, event),
                Token(token) if token > FIRST_LISTENER - LISTENERS_MAX => {
                    self.accept(FIRST_LISTENER - token);
                }
                Token(slot) => self.client_is_ready(slot, event),
            }
        }
        for listener in std::mem::take(&mut self.state.pending.accept_again) {
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

    fn is_held(&self, id: ClientId) -> bool {
        self.state.clients.get(id).is_some_and(|client| client.flags.contains(ClientFlags::HELD))
    }

    /// Has a client be read in the next turn.
    pub(super) fn read_later(&mut self, id: ClientId) {
        if let Some(client) = self.state.clients.get_mut(id)
            && !client.is_closing()
        {
            client.flags |= ClientFlags::READ_PENDING;
            self.state.pending.read_again.push(id);
        }
    }

    fn is_to_be_read(&self, id: ClientId) -> bool {
        let client = self.state.clients.get(id);
        client.is_some_and(|client| client.flags.contains(ClientFlags::READ_PENDING))
    }

    // ---- bytes in ------------------------------------------------------------------------------------------------

    /// Reads a client once and parses what came.
    pub fn read(&mut self, id: ClientId) {
        if self.stands_in && self.is_held(id) {
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
        self.state.counters.reads += 1;
        match read {
            Ok(0) => {
                self.end_of_input(id);
                None
            }
            Ok(count) => {
                client.bytes_in += count as u64;
                client.active_us = self.state.now.boot_us;
                self.state.counters.bytes_in += count as u64;
                // Edge-triggered: a short read has drained the socket, unless its end is still to be seen.
                let more = count == room
                    || client.flags.contains(ClientFlags::READ_CLOSED)
                    || client.stream.has_more();
                if more && !client.flags.contains(ClientFlags::READ_PENDING) {
                    client.flags |= ClientFlags::READ_PENDING;
                    self.state.pending.read_again.push(id);
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
                self.state.pending.read_again.push(id);
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
    fn check_query_limit(&mut self, id: ClientId) -> bool {
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
        self.state.counters.query_buffer_limit_disconnections += 1;
        let line = describe_client(self.state, id);
        self.state.log(
            Level::Warning,
            format_args!("Closing client that reached max query buffer length: {line}"),
        );
        self.state.clients.close(id);
        false
    }

    fn limits(&self, client: &Client) -> Limits {
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
        let mut at = start;
        let bytes = &mut self.intake.arena[..end];
        self.intake.batch.parse(self.state, id, bytes, &mut at, &mut parser, &limits, usize::MAX);
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

    /// Parses and runs what is complete in a client's own buffer; the rest goes back to the client.
    fn run_own(&mut self, id: ClientId, input: LargeInput) {
        // The client's bytes are here, not with it: nobody may read on for it.
        self.hold(id, true);
        self.run_held(id, input);
        self.hold(id, false);
    }

    fn hold(&mut self, id: ClientId, held: bool) {
        if let Some(client) = self.state.clients.get_mut(id) {
            client.flags.set(ClientFlags::HELD, held);
        }
    }

    fn run_held(&mut self, id: ClientId, mut input: LargeInput) {
        self.run_batch();
        let mut at = 0;
        loop {
            let Some(client) = self.state.clients.get(id) else { return };
            if client.is_closing() {
                return;
            }
            if client.flags.intersects(ClientFlags::SUSPENDED | ClientFlags::PAUSED) {
                break;
            }
            let limits = self.limits(client);
            let most = if limits.authenticated { BATCH_REQUESTS } else { 1 };
            let LargeInput { buffer, parser, .. } = &mut input;
            self.intake.batch.parse(self.state, id, buffer, &mut at, parser, &limits, most);
            if self.intake.batch.runs.is_empty() {
                break;
            }
            self.run_requests(&input.buffer);
        }
        let Some(client) = self.state.clients.get_mut(id) else { return };
        input.buffer.drain(..at);
        if at > LARGE_BYTES {
            // What follows a large request is no reason to keep its memory.
            input.buffer.shrink_to(2 * input.buffer.len());
        }
        match &mut client.input {
            // Suspended in the middle: the requests that were parsed but did not run come first.
            Input::Waiting(bytes) => bytes.extend_from_slice(&input.buffer),
            _ if input.buffer.is_empty() => client.input = Input::Empty,
            _ if input.buffer.len() + input.parser.bytes_wanted() < LARGE_BYTES => {
                client.input = Input::Waiting(input.buffer);
            }
            _ => client.input = Input::Large(Box::new(input)),
        }
    }

    /// Takes up the requests a client sent while it was suspended.
    pub fn resume(&mut self, id: ClientId) {
        let Some(client) = self.state.clients.get_mut(id) else { return };
        client.flags.remove(ClientFlags::SUSPENDED | ClientFlags::PAUSED);
        // What had been parsed was put back in front of what came behind it: together they may be longer than what is read.
        if client.input.len() as u64 > INPUT_MAX && !self.check_query_limit(id) {
            return;
        }
        let Some(client) = self.state.clients.get_mut(id) else { return };
        match std::mem::take(&mut client.input) {
            Input::Empty => {}
            Input::Waiting(buffer) => {
                self.run_own(id, LargeInput { buffer, ..LargeInput::default() });
            }
            Input::Large(large) => self.run_own(id, *large),
        }
    }

    // ---- running -------------------------------------------------------------------------------------------------

    /// Runs what is parsed from the arena, and empties it.
    pub fn run_batch(&mut self) {
        if !self.intake.batch.runs.is_empty() {
            let arena = std::mem::take(&mut self.intake.arena);
            self.run_requests(&arena);
            self.intake.arena = arena;
        }
        self.intake.arena_used = 0;
    }

    /// Runs the batch, whose ranges lie in `buffer`.
    fn run_requests(&mut self, buffer: &[u8]) {
        let mut batch = std::mem::take(&mut self.intake.batch);
        let may_be_long = self.prefetch(&mut batch, buffer);
        let Batch { runs, requests, ranges, hashes } = &mut batch;
        let of = |run: &Run| run.requests.start as usize..run.requests.end as usize;
        if may_be_long && runs.len() > 1 {
            self.put_long_last(runs, requests);
        }
        for run in runs {
            let requests = &requests[of(run)];
            self.run_client(run, requests, ranges, hashes, buffer);
        }
        batch.clear();
        self.intake.batch = batch;
    }

    /// Puts the clients behind the others that run scripts: while one keeps the server busy nobody waits for it in here whom
    /// the stand-in could hear, were it only to end the script. Those that have to wait are held.
    #[cold]
    fn put_long_last(&mut self, runs: &mut [Run], requests: &[Queued]) {
        let is_long = |run: &Run| {
            let requests = &requests[run.requests.start as usize..run.requests.end as usize];
            requests.iter().filter_map(|request| request.command).any(may_be_long)
        };
        runs.sort_by_cached_key(is_long);
        for run in runs.iter().filter(|run| is_long(run)) {
            self.hold(run.client, true);
        }
    }

    /// Hashes the keys of the batch, and brings the memory they will need into the cache, stage by stage, so that the
    /// latencies of a whole batch overlap. A single request with a single key would wait all the same. True if one of the
    /// commands may keep the server busy.
    fn prefetch(&mut self, batch: &mut Batch, buffer: &[u8]) -> bool {
        let Batch { runs, requests, ranges, hashes } = batch;
        let mut is_long = false;
        for request in requests.iter_mut() {
            let Some(command) = request.command else { continue };
            is_long |= may_be_long(command);
            let Some(Keys { first, last, step }) = keys_to_prefetch(command) else { continue };
            let args = &ranges[request.args.start as usize..request.args.end as usize];
            let end = if last { args.len() } else { args.len().min(first + 1) };
            let start = hashes.len() as u32;
            for index in (first..end).step_by(step).take(PREFETCH_KEYS) {
                hashes.push(self.keyspace.hash(args[index].of(buffer)));
            }
            request.hashes = start..hashes.len() as u32;
        }
        if hashes.len() < 2 {
            return is_long;
        }
        // Clients on the same database are taken together: with one request each there is nothing to overlap otherwise.
        let database = |run: &Run| self.state.clients.get(run.client).map(|client| client.db);
        for runs in runs.chunk_by(|a, b| database(a) == database(b)) {
            let Some(database) = database(&runs[0]) else { continue };
            let table = self.keyspace.table_of(database);
            let (start, end) = (runs[0].requests.start, runs[runs.len() - 1].requests.end);
            let requests = &requests[start as usize..end as usize];
            let (Some(first), Some(last)) = (
                requests.iter().find(|request| !request.hashes.is_empty()),
                requests.iter().rev().find(|request| !request.hashes.is_empty()),
            ) else {
                continue;
            };
            let keys = &hashes[first.hashes.start as usize..last.hashes.end as usize];
            for stage in [
                Table::prefetch_directory,
                Table::prefetch_segment,
                Table::prefetch_bucket,
                Table::prefetch_entry,
            ] {
                keys.iter().for_each(|hash| stage(table, *hash));
            }
            prefetch_members(table, requests, ranges, hashes, buffer);
        }
        is_long
    }

    /// Runs the requests of one client in their order.
    fn run_client(
        &mut self,
        run: &mut Run,
        requests: &[Queued],
        ranges: &[Range],
        hashes: &[u64],
        buffer: &[u8],
    ) {
        let id = run.client;
        // Before each client, so that replies to the others of this turn do not push keys out, nor its own be seen.
        evict_clients(self.state);
        let Some(client) = self.state.clients.get_with_buffer(id) else { return };
        if client.is_closing() {
            return;
        }
        // Suspended by what another client did since this was parsed: all of it waits.
        let mut next = 0;
        let mut runs = !client.flags.intersects(ClientFlags::SUSPENDED | ClientFlags::PAUSED);
        client.flags.remove(ClientFlags::HELD);
        let mut output = std::mem::take(&mut client.output);
        output.set_limit(output_limit(&self.state.config, client.flags));
        let mut protocol = client.protocol;
        let mut checked = 0;
        self.keyspace.select(client.db);
        while runs && next < requests.len() {
            let request = &requests[next];
            let args = &ranges[request.args.start as usize..request.args.end as usize];
            let keys = request.command.and_then(keys_to_prefetch).unwrap_or_default();
            let prehashed = Prehashed {
                first: keys.first,
                step: keys.step,
                hashes: &hashes[request.hashes.start as usize..request.hashes.end as usize],
            };
            let request =
                Request { args: Args::new(buffer, args), command: request.command, prehashed };
            let mut gate = Gate {
                db: self.keyspace,
                server: self.state,
                caller: Caller::Client(id),
                reply: ReplyWriter::new(&mut output, protocol),
            };
            let ran = gate.execute(&request);
            protocol = gate.reply.protocol();
            match ran {
                Ran::Done => next += 1,
                Ran::NotYet => runs = false,
                Ran::Waits => {
                    next += 1;
                    runs = false;
                }
                Ran::Closes => {
                    self.close_after_reply(id);
                    next = requests.len();
                }
            }
            if self.keyspace.waiting.has_ready() && !self.stands_in {
                let database = self.keyspace.selected();
                blocking::serve(self.keyspace, self.state);
                self.keyspace.select(database);
            }
            if output.len() > checked + OUTPUT_CHECK_BYTES || output.is_cut() {
                runs &= self.may_go_on(id, &mut output);
                checked = output.len();
            }
        }
        let Some(client) = self.state.clients.get_mut(id) else { return };
        if next < requests.len() && !client.is_closing() {
            // What was parsed but did not run is kept in its wire form, before what was read behind it.
            let mut kept = Vec::new();
            for request in &requests[next..] {
                let args = &ranges[request.args.start as usize..request.args.end as usize];
                encode(Args::new(buffer, args).iter_from(0), &mut kept);
            }
            match std::mem::take(&mut client.input) {
                Input::Empty => {}
                Input::Waiting(bytes) => kept.extend_from_slice(&bytes),
                Input::Large(large) => kept.extend_from_slice(&large.buffer),
            }
            client.input = Input::Waiting(kept);
        } else if let Some(error) = run.error.take().filter(|_| runs && !client.is_closing()) {
            let text = error.text();
            let muted = ClientFlags::REPLY_OFF | ClientFlags::REPLY_SKIP_NEXT;
            if !client.flags.intersects(muted) {
                ReplyWriter::new(&mut output, protocol).error(&text);
            }
            self.state.count_error(&text);
            let line = describe_client(self.state, id);
            self.state.log(
                Level::Verbose,
                format_args!(
                    "Protocol error ({}) from client: {line}",
                    String::from_utf8_lossy(&text)
                ),
            );
            self.close_after_reply(id);
        }
        let reached = self.state.stream_end();
        let Some(client) = self.state.clients.get_mut(id) else { return };
        client.protocol = protocol;
        if self.state.replication.backlog.is_some() {
            client.reached = (client.commands, reached);
        }
        // It holds for replies alone; what others push is measured as a whole (`check_output_limit`).
        output.set_limit(usize::MAX);
        // What others pushed meanwhile goes behind the replies.
        let pushed = std::mem::replace(&mut client.output, output);
        client.output.append(&pushed);
        if !client.output.is_empty() || client.output.is_cut() {
            self.state.clients.flush_later(id);
            check_output_limit(self.state, id);
            self.count_memory(id);
        } else {
            self.keep_spare(id);
        }
    }

    /// Measures a client by its replies so far, which are still apart from it. False: it is to be closed.
    fn may_go_on(&mut self, id: ClientId, output: &mut OutputBuffer) -> bool {
        let Some(client) = self.state.clients.get_mut(id) else { return false };
        let pushed = std::mem::replace(&mut client.output, std::mem::take(output));
        check_output_limit(self.state, id);
        self.count_memory(id);
        evict_clients(self.state);
        let Some(client) = self.state.clients.get_mut(id) else { return false };
        *output = std::mem::replace(&mut client.output, pushed);
        !client.flags.contains(ClientFlags::CLOSE_NOW)
    }

    fn close_after_reply(&mut self, id: ClientId) {
        if let Some(client) = self.state.clients.get_mut(id)
            && !client.flags.contains(ClientFlags::CLOSE_AFTER_REPLY)
        {
            client.flags |= ClientFlags::CLOSE_AFTER_REPLY;
            // From now on it has its time to take them.
            client.active_us = self.state.now.boot_us;
            self.state.clients.last_replies.push(id);
            self.state.clients.flush_later(id);
        }
    }

    /// Sends what has collected, one write per client.
    pub fn flush(&mut self) {
        for id in std::mem::take(&mut self.state.clients.to_flush) {
            let Some(client) = self.state.clients.get_mut(id) else { continue };
            if self.stands_in && client.flags.contains(ClientFlags::HELD) {
                self.state.clients.to_flush.push(id);
                continue;
            }
            if !may_be_sent(&self.state.persistence, client) {
                self.state.clients.to_flush.push(id);
                continue;
            }
            client.flags.remove(ClientFlags::FLUSH_PENDING);
            if client.flags.contains(ClientFlags::AWAITS_LOG) {
                let reads = client.flags.contains(ClientFlags::READ_WHEN_SENT);
                client.flags.remove(ClientFlags::AWAITS_LOG | ClientFlags::READ_WHEN_SENT);
                if reads && !client.flags.contains(ClientFlags::READ_PENDING) {
                    client.flags |= ClientFlags::READ_PENDING;
                    self.state.pending.read_again.push(id);
                }
            }
            let full = ClientFlags::WANTS_WRITE;
            if client.flags.contains(ClientFlags::CLOSE_NOW)
                || client.flags & (full | ClientFlags::CAN_WRITE) == full
            {
                self.count_memory(id);
                continue;
            }
            client.flags.remove(ClientFlags::CAN_WRITE);
            let result = match client.output.is_empty() {
                true => io::Write::flush(&mut client.stream).map(|()| 0),
                false => client.output.write_to(&mut client.stream),
            };
            self.state.counters.writes += 1;
            match result {
                Ok(sent) => {
                    client.bytes_out += sent as u64;
                    if sent > 0 {
                        client.active_us = self.state.now.boot_us;
                    }
                    self.state.counters.bytes_out += sent as u64;
                }
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                    ) => {}
                Err(error) => {
                    self.state
                        .log(Level::Verbose, format_args!("Error writing to client: {error}"));
                    self.state.clients.close(id);
                    continue;
                }
            }
            self.after_write(id);
            self.count_memory(id);
        }
    }

    /// Counts what a client holds towards `maxmemory-clients`, if there is such a limit.
    fn count_memory(&mut self, id: ClientId) {
        if clients_memory_max(self.state) > 0 {
            self.state.clients.count_memory(id);
        }
    }

    /// All sent: the buffer is kept for others, or the client closed if that was all. Else: waits until it is writable.
    fn after_write(&mut self, id: ClientId) {
        let Some(client) = self.state.clients.get_mut(id) else { return };
        let done = client.output.is_empty() && !client.stream.has_unsent();
        let waited = client.flags.contains(ClientFlags::WANTS_WRITE);
        if done && client.flags.contains(ClientFlags::CLOSE_AFTER_REPLY) {
            return self.state.clients.close(id);
        }
        if waited || !done {
            // Registered anew also when it was before: with more pieces than one write takes the socket may still have
            // room, and would never become writable again.
            client.flags.set(ClientFlags::WANTS_WRITE, !done);
            let token = Token(id.slot as usize);
            let registry = self.state.poll.registry();
            if client.stream.reregister(registry, token, !done).is_err() {
                return self.state.clients.close(id);
            }
        }
        if done {
            client.over_soft_limit_since_us = None;
            self.keep_spare(id);
        }
    }

    /// Takes an idle client's empty buffer for others.
    fn keep_spare(&mut self, id: ClientId) {
        let Some(client) = self.state.clients.get_mut(id) else { return };
        let storage = client.output.take_storage();
        if self.state.clients.spare_buffers.len() < SPARE_BUFFERS
            && (1..=SPARE_BYTES_MAX).contains(&storage.capacity())
        {
            self.state.clients.spare_buffers.push(storage);
        }
    }

    /// Ends the connections that are to be ended: the only place where clients go.
    pub fn close_clients(&mut self) {
        for id in std::mem::take(&mut self.state.clients.to_close) {
            if self.stands_in && self.is_held(id) {
                self.state.clients.to_close.push(id);
                continue;
            }
            blocking::forget(self.keyspace, self.state, id);
            forget_client(self.state, id);
            tracking::stop(self.keyspace, self.state, id);
            if let Some(mut client) = self.state.clients.remove(id) {
                transaction::abandon(self.keyspace, &mut client);
                // A socket the system has dropped already needs no deregistration.
                let _ = client.stream.deregister(self.state.poll.registry());
            }
        }
    }
}

impl Batch {
    /// Parses up to `most` requests of a client from `bytes` at `*at`, and advances `*at` past them. Bytes that broke the
    /// protocol are left: if the requests before them have to wait, they will break it again.
    #[allow(clippy::too_many_arguments)] // parts of the server that are borrowed apart
    fn parse(
        &mut self,
        state: &State,
        client: ClientId,
        bytes: &mut [u8],
        at: &mut usize,
        parser: &mut Parser,
        limits: &Limits,
        most: usize,
    ) {
        let first = self.requests.len();
        let mut error = None;
        while self.requests.len() - first < most {
            let args = self.ranges.len();
            match parser.next(bytes, at, &mut self.ranges, limits) {
                Ok(Parsed::Incomplete) => break,
                Ok(Parsed::Empty) => {}
                Ok(Parsed::Request) => self.requests.push(Queued {
                    command: state.find_command(self.ranges[args].of(bytes)),
                    args: args as u32..self.ranges.len() as u32,
                    hashes: 0..0,
                }),
                Err(broken) => {
                    error = Some(broken);
                    break;
                }
            }
        }
        let requests = first as u32..self.requests.len() as u32;
        if !requests.is_empty() || error.is_some() {
            self.runs.push(Run { client, requests, error });
        }
    }
}
