//! Parsed requests that have not run yet, and prefetching for their look-ups.

use smallvec::SmallVec;

use super::Turn;
use crate::client::ClientId;
use crate::collections::packed_table::{Draw, Draws};
use crate::collections::prefetch::{Ahead, prefetch_bytes};
use crate::collections::table::{Table, ValueRef};
use crate::gate::execute::Request;
use crate::resp::args::Args;
use crate::resp::request::{Limits, Parsed, Parser, ProtocolError, Range};
use crate::state::State;
use crate::state::context::Origin;
use crate::state::spec::{Flags, Group};
use crate::state::table::{Command, FixedKeys, LastName};
use crate::types::{PREFETCH_STAGES, Value, Wanted};

/// The approximate number of requests in a batch: enough to hide memory latency, few enough to stay
/// in the cache.
pub(super) const BATCH_REQUESTS: usize = 64;
/// The number of argument ranges whose memory (64 KiB) is kept between batches. For a larger batch
/// an allocation costs little in comparison.
const RANGES_KEPT_MAX: usize = 8 * 1024;
/// The most keys of one request that are prefetched.
const PREFETCH_KEYS: u32 = 64;

/// Choices made in advance for a random member: about half of a page's possible places have a
/// member.
const DRAWS: usize = 2;

/// Parsed requests that have not run yet.
#[derive(Default)]
pub(super) struct Batch {
    pub runs: Vec<Run>,
    pub requests: Vec<Queued>,
    pub ranges: Vec<Range>,
    /// Hashes of the prefetched keys.
    pub hashes: Vec<u64>,
    /// The command of the request before.
    pub last_name: LastName,
}

impl Batch {
    pub fn clear(&mut self) {
        self.runs.clear();
        self.requests.clear();
        self.ranges.clear();
        self.ranges.shrink_to(RANGES_KEPT_MAX);
        self.hashes.clear();
    }
}

/// One request of a batch.
pub(super) struct Queued {
    command: &'static Command,
    /// Index range of its arguments in the batch's ranges.
    args: std::ops::Range<u32>,
    /// Index range of its keys' hashes in the batch's.
    hashes: std::ops::Range<u32>,
}

/// One client's requests in a batch.
pub(super) struct Run {
    pub client: ClientId,
    requests: std::ops::Range<u32>,
    /// The reply to a breach of the protocol after these requests.
    pub error: Option<ProtocolError>,
}

impl Run {
    /// This client's part of the batch's requests.
    fn of<'a>(&self, requests: &'a [Queued]) -> &'a [Queued] {
        &requests[self.requests.start as usize..self.requests.end as usize]
    }

    /// Whether one of the requests is a command with one of these flags.
    pub fn has_any(&self, requests: &[Queued], flags: Flags) -> bool {
        self.of(requests).iter().any(|request| request.command.is(flags))
    }
}

/// One client's requests, with the batch's ranges and hashes.
#[derive(Clone, Copy)]
pub(super) struct Requests<'a> {
    requests: &'a [Queued],
    ranges: &'a [Range],
    hashes: &'a [u64],
    buffer: &'a [u8],
}

impl<'a> Requests<'a> {
    /// The requests of `run`; the batch's ranges lie in `buffer`.
    #[inline]
    pub fn new(
        run: &Run,
        requests: &'a [Queued],
        ranges: &'a [Range],
        hashes: &'a [u64],
        buffer: &'a [u8],
    ) -> Self {
        Requests { requests: run.of(requests), ranges, hashes, buffer }
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    #[inline]
    pub fn args(&self, index: usize) -> Args<'a> {
        let args = &self.requests[index].args;
        Args::new(self.buffer, &self.ranges[args.start as usize..args.end as usize])
    }

    /// Whether a request's reply shows no stored data, as PING's; and those that say how the server
    /// is, which must not wait while the AOF cannot be written.
    #[inline]
    pub fn shows_no_data(&self, index: usize) -> bool {
        let command = self.requests[index].command;
        match command.spec.group {
            Group::Connection => true,
            Group::Server => !command.is(Flags::WRITE | Flags::READONLY),
            _ => false,
        }
    }

    /// A request in the form that the gate takes.
    #[inline]
    pub fn get(&self, index: usize) -> Request<'a> {
        let Queued { command, hashes, .. } = &self.requests[index];
        let hashes = &self.hashes[hashes.start as usize..hashes.end as usize];
        Request { args: self.args(index), command, hashes, origin: Origin::Client }
    }
}

/// The element of the key's value that a command probably looks up. `earlier`: the number of
/// earlier requests of the batch with the same key.
#[inline]
fn element_to_prefetch<'a>(
    command: &Command,
    args: &[Range],
    buffer: &'a [u8],
    earlier: usize,
) -> Option<Wanted<'a>> {
    // Slow commands ask for ranges or many members.
    if !command.is(Flags::FAST) {
        return None;
    }
    let argument = match command.spec.group {
        Group::Set if command.is(Flags::TAKES_RANDOM) => {
            return (args.len() == 2).then_some(Wanted::Random);
        }
        Group::Hash | Group::Set => 2,
        // Scores and options come before the member.
        Group::SortedSet if args.len() > 2 => args.len() - 1,
        Group::SortedSet if command.is(Flags::TAKES_LOWEST) => {
            return Some(Wanted::FromLowest(earlier));
        }
        Group::SortedSet if command.is(Flags::TAKES_HIGHEST) => {
            return Some(Wanted::FromHighest(earlier));
        }
        _ => return None,
    };
    args.get(argument).map(|member| Wanted::Named(member.of(buffer)))
}

/// The value of the key of the previous request.
struct Recent<'a> {
    hash: u64,
    value: Option<&'a Value>,
    /// The number of requests with this key so far.
    requests: usize,
}

/// Prefetches the elements' places in large collections, and small collections, after the keys.
/// Only a guess: correctness does not depend on it.
fn prefetch_elements(
    table: &Table<Value>,
    requests: &[Queued],
    ranges: &[Range],
    hashes: &[u64],
    buffer: &[u8],
    draws: &mut Draws,
) {
    let mut found = SmallVec::<[(&Value, Ahead); BATCH_REQUESTS]>::new();
    let mut drawn = 0;
    let mut recent: Option<Recent<'_>> = None;
    for request in requests {
        let Some(&hash) = hashes.get(request.hashes.start as usize) else { continue };
        let args = &ranges[request.args.start as usize..request.args.end as usize];
        // Many requests for the same key are common.
        let earlier = recent.as_ref().filter(|it| it.hash == hash).map_or(0, |it| it.requests);
        let Some(wanted) = element_to_prefetch(request.command, args, buffer, earlier) else {
            continue;
        };
        match &mut recent {
            Some(recent) if recent.hash == hash => recent.requests += 1,
            _ => {
                let value = match table.probable_value(hash) {
                    Some(ValueRef::Object(object)) => Some(object),
                    Some(ValueRef::Bytes { bytes, .. }) => {
                        prefetch_bytes(bytes);
                        None
                    }
                    None => None,
                };
                recent = Some(Recent { hash, value, requests: 1 });
            }
        }
        let Some(value) = recent.as_ref().and_then(|recent| recent.value) else { continue };
        found.extend(value.ahead(wanted).map(|ahead| (value, ahead)));
        if matches!(wanted, Wanted::Random) {
            for _ in 0..DRAWS {
                if drawn == draws.len() {
                    draws.push_back(Draw::make());
                }
                found.extend(value.ahead_of_draw(draws[drawn]).map(|ahead| (value, ahead)));
                drawn += 1;
            }
        }
    }
    if found.len() < 2 {
        return;
    }
    for stage in 0..PREFETCH_STAGES {
        found.iter_mut().for_each(|(value, ahead)| value.prefetch(ahead, stage));
    }
}

/// Whether other clients may be served during a command, or during the commands of a transaction.
#[inline]
fn may_be_long(command: &Command) -> bool {
    command.is(Flags::LONG | Flags::RUNS_QUEUED)
}

/// A client's unparsed bytes from `at` on, and the parser's state there.
pub(super) struct Unparsed<'a> {
    pub bytes: &'a mut [u8],
    pub at: usize,
    pub parser: &'a mut Parser,
}

impl Batch {
    /// Parses up to `most` requests of a client and advances past them. Bytes that break the
    /// protocol are kept: if the requests before them have to wait, they are parsed again.
    pub fn parse(
        &mut self,
        state: &State,
        client: ClientId,
        unparsed: &mut Unparsed<'_>,
        limits: &Limits,
        most: usize,
    ) {
        let Unparsed { bytes, at, parser } = unparsed;
        let first = self.requests.len();
        let mut error = None;
        while self.requests.len() - first < most {
            let args = self.ranges.len();
            match parser.next(bytes, at, &mut self.ranges, limits) {
                Ok(Parsed::Incomplete) => break,
                Ok(Parsed::Empty) => {}
                Ok(Parsed::Request) => self.requests.push(Queued {
                    command: self
                        .last_name
                        .find(self.ranges[args].of(bytes), |name| state.find_command(name))
                        .unwrap_or(&state.commands.unknown),
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

impl Turn<'_> {
    /// Hashes the batch's keys, and prefetches the memory that their look-ups need, stage by stage,
    /// so that cache misses of the whole batch overlap. Useless for a single key. True: a command
    /// may keep the server busy.
    pub(super) fn prefetch(&mut self, batch: &mut Batch, buffer: &[u8]) -> bool {
        let Batch { runs, requests, ranges, hashes, .. } = batch;
        let mut is_long = false;
        for request in requests.iter_mut() {
            is_long |= may_be_long(request.command);
            let FixedKeys { first, step } = request.command.fixed_keys;
            if first == 0 {
                continue;
            }
            let args = &ranges[request.args.start as usize..request.args.end as usize];
            let start = hashes.len() as u32;
            let mut index = usize::from(first);
            while index < args.len() && hashes.len() as u32 - start < PREFETCH_KEYS {
                hashes.push(self.core.keyspace.hash(args[index].of(buffer)));
                if step == 0 {
                    break;
                }
                index += usize::from(step);
            }
            request.hashes = start..hashes.len() as u32;
        }
        if hashes.len() < 2 {
            return is_long;
        }
        // Clients on the same database are prefetched together: otherwise, with one request for
        // each client, no cache misses would overlap.
        let database =
            |run: &Run| self.core.state.clients.get(run.client).map(|client| client.database);
        let mut draws = std::mem::take(&mut self.core.keyspace.draws);
        for runs in runs.chunk_by(|a, b| database(a) == database(b)) {
            let Some(database) = database(&runs[0]) else { continue };
            let table = self.core.keyspace.table_of(database);
            let (start, end) = (runs[0].requests.start, runs[runs.len() - 1].requests.end);
            let requests = &requests[start as usize..end as usize];
            let (Some(first), Some(last)) = (
                requests.iter().find(|request| !request.hashes.is_empty()),
                requests.iter().rev().find(|request| !request.hashes.is_empty()),
            ) else {
                continue;
            };
            let keys = &hashes[first.hashes.start as usize..last.hashes.end as usize];
            table.prefetch(keys.iter().copied());
            prefetch_elements(table, requests, ranges, hashes, buffer, &mut draws);
        }
        self.core.keyspace.draws = draws;
        is_long
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::TABLE;

    #[test]
    fn what_ends_a_script_does_not_wait_behind_it() {
        for name in ["EVAL", "EVALSHA_RO", "FCALL", "DEBUG", "EXEC"] {
            assert!(may_be_long(TABLE.find(name.as_bytes()).expect("a command")), "{name}");
        }
        for name in ["SCRIPT", "FUNCTION", "MULTI", "SHUTDOWN", "PING"] {
            assert!(!may_be_long(TABLE.find(name.as_bytes()).expect("a command")), "{name}");
        }
    }
}
