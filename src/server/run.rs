//! Running a batch: each client's requests in order, through the gate; replies collect in its
//! output.

use super::Turn;
use super::batch::{BATCH_REQUESTS, Batch, Queued, Requests, Run, Unparsed};
use super::intake::{INPUT_MAX, LARGE_BYTES};
use crate::client::waits::Answer;
use crate::client::{Client, ClientFlags, ClientId, Input, LargeInput};
use crate::durability::persistence::spread_effects;
use crate::gate::execute::{Gate, Ran};
use crate::gate::limits::{
    check_output_limit, counts_output, describe_for_log, evict_clients, output_limit,
};
use crate::ids::CommandId;
use crate::resp::Protocol;
use crate::resp::reply::{OutputBuffer, ReplyWriter};
use crate::resp::request::{ProtocolError, encode, encoded_len};
use crate::roles::replicas;
use crate::state::context::Caller;
use crate::state::spec::Flags;
use crate::sys::log::verbose;
use crate::waiting::{self, waking};

/// A client's limits are checked between its requests, each time they have made this amount of
/// output: a short pipeline can ask for gigabytes. Unit: bytes.
const OUTPUT_CHECK_BYTES: usize = 64 * 1024;

/// The place of a client's only request if it did not run: it stays in its buffer, or is copied to
/// the client's input.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unrun {
    Stays,
    Copied,
}

/// A client whose requests run: what was taken from it, and is given back with the replies. While a
/// command runs, its handler may change anything of the client, so that no reference to it is kept.
struct Served {
    id: ClientId,
    /// Its flags before the next request.
    flags: ClientFlags,
    protocol: Protocol,
    output: OutputBuffer,
    /// The command of the last request, if it has run and is not counted at the client yet.
    uncounted: Option<CommandId>,
}

impl Served {
    fn of(client: &mut Client) -> Self {
        let &mut Client { id, flags, protocol, .. } = client;
        Served { id, flags, protocol, output: std::mem::take(&mut client.output), uncounted: None }
    }

    /// Counts the last request at the client, and takes over its flags.
    fn renew(&mut self, client: &mut Client) {
        if let Some(command) = self.uncounted.take() {
            client.count_command(command);
        }
        self.flags = client.flags;
    }
}

impl Turn<'_> {
    /// Runs the requests parsed from the arena, and empties it. Requests of resumed clients come
    /// first, because they were sent earlier.
    pub(super) fn run_batch(&mut self) {
        if !self.is_nested {
            self.resume_all();
        }
        if !self.intake.batch.runs.is_empty() {
            let arena = std::mem::take(&mut self.intake.arena);
            self.run_requests(&arena, Unrun::Copied);
            self.intake.arena = arena;
        }
        self.intake.arena_used = 0;
    }

    /// Runs the batch, whose ranges lie in `buffer`. Returns whether its only request did not run
    /// and stays there.
    fn run_requests(&mut self, buffer: &[u8], unrun: Unrun) -> bool {
        let mut batch = std::mem::take(&mut self.intake.batch);
        let may_be_long = self.prefetch(&mut batch, buffer);
        let Batch { runs, requests, ranges, hashes, .. } = &mut batch;
        if may_be_long && runs.len() > 1 {
            self.put_long_last(runs, requests);
        }
        let mut stays = false;
        for run in runs {
            let requests = Requests::new(run, requests, ranges, hashes, buffer);
            stays = self.run_client(run, requests, unrun);
        }
        batch.clear();
        self.intake.batch = batch;
        stays
    }

    /// Moves clients that run scripts or DEBUG to the end. While a script or a loading keeps the
    /// server busy, nested turns can then serve the other clients, one of which may want to end it.
    /// The clients at the end are marked as held until they run.
    #[cold]
    fn put_long_last(&mut self, runs: &mut [Run], requests: &[Queued]) {
        let clients = &self.core.state.clients;
        let has_queued_long = |run: &Run| {
            let transaction = clients.get(run.client).and_then(|it| it.transaction.as_deref());
            transaction.is_some_and(|transaction| transaction.has_any(Flags::LONG))
        };
        // An EXEC without such a command keeps its place: later clients' changes must not come
        // before it.
        let may_be_long = |run: &Run| {
            run.has_any(requests, Flags::LONG)
                || run.has_any(requests, Flags::RUNS_QUEUED) && has_queued_long(run)
        };
        runs.sort_by_cached_key(may_be_long);
        let long: Vec<_> =
            runs.iter().filter(|run| may_be_long(run)).map(|run| run.client).collect();
        long.into_iter().for_each(|id| self.hold(id, true));
    }

    /// Runs the requests of one client, in order. Returns whether its only request did not run and
    /// stays in the buffer.
    fn run_client(&mut self, run: &mut Run, requests: Requests<'_>, unrun: Unrun) -> bool {
        let id = run.client;
        let stays = unrun == Unrun::Stays && requests.len() == 1;
        // Evict before each client. So other clients' replies in this turn do not cause the
        // eviction of keys, and the client's own replies are not counted.
        evict_clients(&mut self.core.state);
        let Some(client) = self.core.state.clients.get_with_buffer(id) else { return false };
        if client.is_closing() {
            return false;
        }
        client.reading.is_held = false;
        // Suspended by another client's command since parsing: all requests wait.
        let waits = client.is_suspended();
        let was_plain = client.log_wait.is_needless(client.output.len());
        let mut served = Served::of(client);
        self.core.keyspace.select(client.database);
        served.output.set_limit(output_limit(&self.core.state.config, served.flags));
        served.output.borrow_values();
        let (done, goes_on) = match waits {
            true => (0, false),
            false => self.run_while_it_may(&mut served, requests),
        };
        if goes_on && let Some(error) = run.error.take() {
            self.end_for_protocol(&mut served, &error);
        }
        let is_plain = was_plain
            && self.core.state.persistence.may_hold_replies()
            && (0..done).all(|index| requests.shows_no_data(index));
        let Some(client) = self.give_back(served, is_plain) else { return false };
        // A closing client's further requests are not answered.
        let is_unrun = done < requests.len() && !client.is_closing();
        if is_unrun && !stays {
            keep(client, requests, done);
        }
        if !client.output.is_empty() || client.output.is_cut() {
            if counts_output(client) {
                check_output_limit(&mut self.core.state, id);
            }
            self.count_memory(id);
        }
        stays && is_unrun
    }

    /// Runs requests until all have run or the client must stop. Returns how many have run, and
    /// whether it may continue.
    fn run_while_it_may(&mut self, served: &mut Served, requests: Requests<'_>) -> (usize, bool) {
        let id = served.id;
        let (mut done, mut goes_on) = (0, true);
        let mut checked = 0;
        while goes_on && done < requests.len() {
            if done > 0 && !self.renew(served) {
                return (requests.len(), false);
            }
            let reply = ReplyWriter::new(&mut served.output, served.protocol);
            let mut gate = Gate::new(self.core, Caller::Client(id), reply);
            let ran = gate.execute(&requests.get(done), served.flags);
            (served.protocol, served.uncounted) = (gate.reply.protocol(), gate.uncounted);
            let is_awaited = self.core.keyspace.has_awaited_changes() && !self.is_nested;
            if is_awaited || !matches!(ran, Ran::Done) {
                self.renew(served);
            }
            match ran {
                Ran::Done => done += 1,
                Ran::DoneMuch => {
                    done += 1;
                    self.spread_early();
                }
                Ran::NotYet => goes_on = false,
                Ran::Suspended => {
                    done += 1;
                    goes_on = false;
                }
                Ran::Waits(wait) => {
                    done += 1;
                    goes_on = wait.answer == Answer::Push;
                    waiting::begin(self.core, wait);
                }
                Ran::Closes => {
                    self.core.state.clients.close_after_reply(id, self.core.state.now);
                    done = requests.len();
                }
            }
            if self.core.keyspace.has_awaited_changes() && !self.is_nested {
                let database = self.core.keyspace.selected();
                waking::serve(self.core);
                self.core.keyspace.select(database);
            }
            if served.output.len() > checked + OUTPUT_CHECK_BYTES || served.output.is_cut() {
                goes_on &= self.enforce_limits(served);
                checked = served.output.len();
            }
        }
        (done, goes_on)
    }

    /// Looks a client up between its requests: the last one is counted, and may have changed the
    /// client. False: it is gone.
    fn renew(&mut self, served: &mut Served) -> bool {
        let client = self.core.state.clients.get_mut(served.id);
        client.is_some_and(|client| {
            served.renew(client);
            true
        })
    }

    /// In the middle of a turn with many changes: passes them on, and sends replicas as much as is
    /// allowed.
    #[cold]
    fn spread_early(&mut self) {
        spread_effects(&mut self.core.state);
        replicas::send(&mut self.core.state);
    }

    /// Sends a protocol error to a client, and closes it.
    #[cold]
    fn end_for_protocol(&mut self, served: &mut Served, error: &ProtocolError) {
        let id = served.id;
        let Some(client) = self.core.state.clients.get_mut(id) else { return };
        served.renew(client);
        if client.is_closing() {
            return;
        }
        let text = error.text();
        if client.replies().at_request().are_sent() {
            ReplyWriter::new(&mut served.output, served.protocol).error(&text);
        }
        self.core.state.stats.count_error(&text);
        let line = describe_for_log(&self.core.state, id);
        let shown = String::from_utf8_lossy(&text);
        verbose!(self.core.state, "Protocol error ({shown}) from client: {line}");
        self.core.state.clients.close_after_reply(id, self.core.state.now);
    }

    /// Moves replies to the client's output. `is_plain`: none of them shows stored data. None: the
    /// client is gone.
    fn give_back(&mut self, mut served: Served, is_plain: bool) -> Option<&mut Client> {
        let state = &mut self.core.state;
        let reached = state.replication.backlog.is_some().then(|| state.stream_end());
        let (client, queues) = state.clients.get_with_queues(served.id)?;
        served.renew(client);
        let Served { mut output, protocol, .. } = served;
        client.log_wait.note_plain(is_plain.then_some(output.len()));
        client.protocol = protocol;
        if let Some(reached) = reached {
            client.reached = (client.commands, reached);
        }
        // The limit was only for the replies: `check_output_limit` checks them together with pushed
        // messages.
        output.set_limit(usize::MAX);
        // Messages pushed during the command follow its reply.
        let pushed = std::mem::replace(&mut client.output, output);
        client.output.append(&pushed);
        if client.output.is_empty() && !client.output.is_cut() {
            queues.keep_spare(client);
        } else {
            queues.flush_later(client);
        }
        Some(client)
    }

    /// Applies the client's memory and output limits to its replies, which are not in its output
    /// yet. False: the client is being closed.
    fn enforce_limits(&mut self, served: &mut Served) -> bool {
        let id = served.id;
        let Some(client) = self.core.state.clients.get_mut(id) else { return false };
        served.renew(client);
        let pushed = std::mem::replace(&mut client.output, std::mem::take(&mut served.output));
        check_output_limit(&mut self.core.state, id);
        self.count_memory(id);
        evict_clients(&mut self.core.state);
        let Some(client) = self.core.state.clients.get_mut(id) else { return false };
        served.output = std::mem::replace(&mut client.output, pushed);
        !client.is_closing_now()
    }

    /// Parses and runs complete requests in a client's own buffer. Remaining bytes go back to the
    /// client.
    pub(super) fn run_own(&mut self, id: ClientId, input: LargeInput) {
        // The client's bytes are taken out, so nested turns must not read from it.
        self.hold(id, true);
        self.run_held(id, input);
        self.hold(id, false);
    }

    fn run_held(&mut self, id: ClientId, mut input: LargeInput) {
        self.run_batch();
        let mut at = 0;
        loop {
            let Some(client) = self.core.state.clients.get(id) else { return };
            if client.is_closing() {
                return;
            }
            if client.is_suspended() {
                break;
            }
            let limits = self.limits(client);
            let most = if limits.authenticated { BATCH_REQUESTS } else { 1 };
            let LargeInput { buffer, parser, .. } = &mut input;
            let before = at;
            let mut unparsed = Unparsed { bytes: buffer, at, parser };
            self.intake.batch.parse(&self.core.state, id, &mut unparsed, &limits, most);
            at = unparsed.at;
            if self.intake.batch.runs.is_empty() {
                break;
            }
            // A large request that must wait is not copied. This needs the request as it was sent:
            // the parser changes inline requests, and skips `*0`.
            let is_as_sent = matches!(input.buffer[before..], [b'*', b'1'..=b'9', ..]);
            let unrun = if is_as_sent { Unrun::Stays } else { Unrun::Copied };
            if self.run_requests(&input.buffer, unrun) {
                // The parser may have begun with the next request.
                input.parser.reset();
                at = before;
                break;
            }
        }
        let Some(client) = self.core.state.clients.get_mut(id) else { return };
        input.buffer.drain(..at);
        if at > LARGE_BYTES {
            // The requests after a large one do not need its memory.
            input.buffer.shrink_to(2 * input.buffer.len());
        }
        match &mut client.input {
            // The client was suspended: requests that were parsed but did not run come first.
            Input::Waiting(bytes) => bytes.extend_from_slice(&input.buffer),
            _ if input.buffer.is_empty() => client.input = Input::Empty,
            _ if input.buffer.len() + input.parser.bytes_wanted() < LARGE_BYTES => {
                client.input = Input::Waiting(input.buffer);
            }
            _ => client.input = Input::Large(Box::new(input)),
        }
        self.count_memory(id);
    }

    /// Continues the requests of resumed clients.
    fn resume_all(&mut self) {
        if self.core.state.net.pending.resumed.is_empty() {
            return;
        }
        // The batch may already hold requests of clients that nested turns must not read.
        let (batch, used) = (std::mem::take(&mut self.intake.batch), self.intake.arena_used);
        batch.runs.iter().for_each(|run| self.hold(run.client, true));
        for id in std::mem::take(&mut self.core.state.net.pending.resumed) {
            self.resume(id);
        }
        (self.intake.batch, self.intake.arena_used) = (batch, used);
    }

    /// Continues the requests a client sent while it was suspended.
    fn resume(&mut self, id: ClientId) {
        let client = self.core.state.clients.get(id);
        if client.is_some_and(|client| matches!(client.input, Input::Lent(_))) {
            return;
        }
        self.core.state.clients.release(id);
        let Some(client) = self.core.state.clients.get_mut(id) else { return };
        // Requests that did not run were put back before later input: together they may exceed the
        // limit.
        if client.input.len() as u64 > INPUT_MAX && !self.check_query_limit(id) {
            return;
        }
        let Some(client) = self.core.state.clients.get_mut(id) else { return };
        match std::mem::take(&mut client.input) {
            Input::Empty | Input::Lent(_) => {}
            Input::Waiting(buffer) => {
                self.run_own(id, LargeInput { buffer, ..LargeInput::default() });
            }
            Input::Large(large) => self.run_own(id, *large),
        }
    }

    fn hold(&mut self, id: ClientId, held: bool) {
        if let Some(client) = self.core.state.clients.get_mut(id) {
            client.reading.is_held = held;
        }
    }

    pub(super) fn is_held(&self, id: ClientId) -> bool {
        self.core.state.clients.get(id).is_some_and(|client| client.reading.is_held)
    }
}

/// Puts back the requests from number `done` on, in wire form, before the client's later input.
fn keep(client: &mut Client, requests: Requests<'_>, done: usize) {
    let requests = (done..requests.len()).map(|index| requests.args(index).iter_from(0));
    let mut kept = Vec::with_capacity(requests.clone().map(encoded_len).sum());
    requests.for_each(|request| encode(request, &mut kept));
    kept.extend_from_slice(&std::mem::take(&mut client.input).into_bytes());
    client.input = Input::Waiting(kept);
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use mio::net::UnixStream;

    use super::super::Server;
    use crate::clock::{Clock, ManualClock, UnixMillis};
    use crate::config::Config;
    use crate::net::stream::{Address, Stream};
    use crate::sys::log::Logger;

    #[test]
    fn a_client_is_looked_up_four_times_for_a_request_that_runs_alone() {
        let clock = Clock::Manual(ManualClock::new(UnixMillis(1_700_000_000_000)));
        let config = Config::from_text(b"bind 127.0.0.1\nport 0\n").expect("a configuration");
        let mut server = Server::start(config, clock, Logger::silent()).expect("it starts");
        let (mut client, stream) = UnixStream::pair().expect("a pair of sockets");
        let local = || Address::Unix("socket".into());
        server.clients().add_client(Stream::Unix(stream), false, local(), local());
        server.turn_now().expect("a turn");
        for request in ["SET key value EX 5", "GET key", "DEL key"] {
            let before = server.core.state.clients.look_ups.get();
            writeln!(client, "{request}").expect("a request is sent");
            server.turn_now().expect("a turn");
            let mut reply = [0; 64];
            assert!(client.read(&mut reply).expect("a reply") > 0);
            // When it is read, before and after the request runs, and when the reply is sent.
            assert_eq!(server.core.state.clients.look_ups.get() - before, 4, "{request}");
        }
    }
}
