//! Parsed requests that have not run yet, and prefetching what they will look up.

use smallvec::SmallVec;

use super::Turn;
use crate::client::ClientId;
use crate::collections::prefetch::Ahead;
use crate::collections::table::Table;
use crate::gate::execute::Request;
use crate::gate::spec::{Begin, Find, Flags, Group};
use crate::gate::state::State;
use crate::gate::table::Command;
use crate::resp::args::{Args, Prehashed};
use crate::resp::request::{Limits, Parsed, Parser, ProtocolError, Range};
use crate::types::{PREFETCH_STAGES, Value};

/// Requests in a batch, about: enough to hide memory latency, few enough to stay in the cache.
pub(super) const BATCH_REQUESTS: usize = 64;
/// Argument ranges for which memory is kept between batches, 64 KiB: for larger batches an allocation costs little.
const RANGES_KEPT_MAX: usize = 8 * 1024;
/// Keys of one request that are prefetched.
const PREFETCH_KEYS: usize = 64;

/// Parsed requests that have not run yet.
#[derive(Default)]
pub(super) struct Batch {
    pub runs: Vec<Run>,
    pub requests: Vec<Queued>,
    pub ranges: Vec<Range>,
    /// Hashes of the prefetched keys.
    pub hashes: Vec<u64>,
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
    command: Option<&'static Command>,
    /// Index range of its arguments in the batch's ranges.
    args: std::ops::Range<u32>,
    /// Index range of its keys' hashes in the batch's.
    hashes: std::ops::Range<u32>,
}

/// One client's requests in a batch.
pub(super) struct Run {
    pub client: ClientId,
    requests: std::ops::Range<u32>,
    /// The client broke the protocol behind them: the reply.
    pub error: Option<ProtocolError>,
}

impl Run {
    /// This client's part of the batch's requests.
    fn of<'a>(&self, requests: &'a [Queued]) -> &'a [Queued] {
        &requests[self.requests.start as usize..self.requests.end as usize]
    }

    /// Whether one of them is a command with one of these flags.
    pub fn has_any(&self, requests: &[Queued], flags: Flags) -> bool {
        self.of(requests)
            .iter()
            .filter_map(|request| request.command)
            .any(|command| command.is(flags))
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

    /// Whether a request's reply shows no stored data, as PING's.
    #[inline]
    pub fn shows_no_data(&self, index: usize) -> bool {
        self.requests[index].command.is_some_and(|command| command.spec.group == Group::Connection)
    }

    /// A request as the gate takes it.
    #[inline]
    pub fn get(&self, index: usize) -> Request<'a> {
        let Queued { command, hashes, .. } = &self.requests[index];
        let keys = command.and_then(keys_to_prefetch).unwrap_or_default();
        let prehashed = Prehashed {
            first: keys.first,
            step: keys.step,
            hashes: &self.hashes[hashes.start as usize..hashes.end as usize],
        };
        Request { args: self.args(index), command: *command, prehashed }
    }
}

/// Which of a command's arguments are keys to be prefetched.
#[derive(Clone, Copy, Default)]
struct Keys {
    first: usize,
    /// Up to the end of the request, not only the first key.
    last: bool,
    step: usize,
}

/// The keys of a command with fixed key positions. Steps other than 1 and 2 do not occur.
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

/// The argument that is probably a member or field of the key.
#[inline]
fn member_to_prefetch(command: &Command, args: usize) -> Option<usize> {
    // Slow commands ask for ranges or many members.
    if !command.is(Flags::FAST) {
        return None;
    }
    match command.spec.group {
        Group::Hash | Group::Set if args > 2 => Some(2),
        // Scores and options come before the member.
        Group::SortedSet if args > 2 => Some(args - 1),
        _ => None,
    }
}

/// Prefetches the members' places in large collections, after the keys. Only a guess: correctness does not depend on
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
        // Many requests for the same key are common.
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
    /// Parses up to `most` requests of a client and advances past them. Bytes that break the protocol are kept: if
    /// the requests before them have to wait, they are parsed again.
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

impl Turn<'_> {
    /// Hashes the batch's keys, and prefetches the memory that their look-ups need, stage by stage, so that cache
    /// misses of the whole batch overlap. Useless for a single key. True: a command may keep the server busy.
    pub(super) fn prefetch(&mut self, batch: &mut Batch, buffer: &[u8]) -> bool {
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
        // Clients on the same database are prefetched together: with one request each nothing would overlap otherwise.
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
