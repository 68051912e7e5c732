//! Clients that wait for locks without being blocked: LOCK.ACQUIRE and LOCK.MACQUIRE with ASYNC.
//!
//! A client can wait for thousands of locks at once, so each wait is kept small: it has its request
//! in one piece, and little more.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};

use crate::client::places::Asker;
use crate::collections::sparse::Sparse;
use crate::ids::{ClientId, CommandId};
use crate::keyspace::DbIndex;
use crate::keyspace::waiting::{Ticket, Wanted};
use crate::resp::args::Args;
use crate::resp::request::Range;

/// The length of a longer argument takes four more bytes.
const SHORT_MAX: usize = 254;

/// A request in one piece: each argument after its length.
#[derive(Debug, Default)]
pub struct PackedRequest(Box<[u8]>);

impl PackedRequest {
    pub fn new(args: Args<'_>) -> Self {
        let mut bytes = Vec::with_capacity(args.iter_from(0).map(|one| one.len() + 1).sum());
        for argument in args.iter_from(0) {
            match argument.len() {
                short @ ..=SHORT_MAX => bytes.push(short as u8),
                long => {
                    bytes.push(u8::MAX);
                    bytes.extend((long as u32).to_le_bytes());
                }
            }
            bytes.extend_from_slice(argument);
        }
        PackedRequest(bytes.into_boxed_slice())
    }

    /// The ranges of the arguments in [`Self::bytes`].
    pub fn ranges(&self) -> Vec<Range> {
        let (mut ranges, mut at) = (Vec::new(), 0);
        while let Some(&first) = self.0.get(at) {
            at += 1;
            let mut len = usize::from(first);
            if len > SHORT_MAX {
                let Some(long) = self.0[at..].first_chunk() else { break };
                len = u32::from_le_bytes(*long) as usize;
                at += 4;
            }
            ranges.push(Range { start: at as u32, len: len as u32 });
            at += len;
        }
        ranges
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// A client's wait for a lock or several.
#[derive(Debug)]
pub struct AsyncWait {
    pub client: ClientId,
    pub command: CommandId,
    pub database: DbIndex,
    /// The index of the first key argument, and the index after the last one, which is the owner's.
    /// A request has at most 100 keys.
    pub keys: (u8, u8),
    /// Boot-time clock, microseconds; `i64::MAX`: no timeout.
    pub deadline_us: i64,
    /// When it began to wait: boot-time clock, microseconds.
    pub since_us: i64,
    /// How long the place is kept while the client is away: milliseconds; 0: not at all.
    pub grace_ms: i64,
    pub request: PackedRequest,
}

/// Bytes of memory that a wait costs in queues and indexes.
const PLACE_BYTES: usize = 160;

const _: () =
    assert!(size_of::<AsyncWait>() <= 64, "allocators have nothing between 64 and 80 bytes");

impl AsyncWait {
    /// Approximate bytes of memory.
    fn memory(&self) -> usize {
        size_of::<AsyncWait>() + PLACE_BYTES + self.request.bytes().len()
    }

    /// The asker and its place, if the place is kept while the client is away.
    pub fn kept_place(&self, ticket: Ticket) -> Option<(Asker, Ticket, i64)> {
        let asker = Asker::new(Wanted::Lock, self.database, &self.names());
        (self.grace_ms > 0).then_some((asker, ticket, self.grace_ms))
    }

    /// The keys and the owner.
    pub fn names(&self) -> Vec<&[u8]> {
        let ranges = self.request.ranges();
        let args = Args::new(self.request.bytes(), &ranges);
        let (first, owner) = self.keys;
        let bytes = self.request.bytes();
        (first..=owner)
            .filter(|&index| usize::from(index) < args.len())
            .map(|index| ranges[usize::from(index)])
            .map(|range| &bytes[range.start as usize..][..range.len as usize])
            .collect()
    }
}

/// The waits of a client.
#[derive(Default)]
struct Own {
    tickets: Vec<Ticket>,
    /// Bytes of memory of the waits that have not ended.
    bytes: usize,
}

/// All these waits, by their places, which have the order of arrival.
#[derive(Default)]
pub struct AsyncWaits {
    waits: BTreeMap<Ticket, Box<AsyncWait>>,
    deadlines: BTreeSet<(i64, Ticket)>,
    /// The waits of a client, including some that have ended.
    by_client: HashMap<ClientId, Own>,
    /// The place by the hash of client, database, keys and owner.
    by_asker: HashMap<u64, Ticket>,
    hasher: RandomState,
}

impl AsyncWaits {
    pub fn len(&self) -> usize {
        self.waits.len()
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.waits.is_empty()
    }

    pub fn get(&self, ticket: Ticket) -> Option<&AsyncWait> {
        self.waits.get(&ticket).map(|wait| &**wait)
    }

    /// Takes a wait's request to run it. Afterwards, give it back or remove the wait.
    pub fn take_request(&mut self, ticket: Ticket) -> Option<PackedRequest> {
        self.waits.get_mut(&ticket).map(|wait| std::mem::take(&mut wait.request))
    }

    pub fn give_request(&mut self, ticket: Ticket, request: PackedRequest) {
        if let Some(wait) = self.waits.get_mut(&ticket) {
            wait.request = request;
        }
    }

    fn asker(&self, wait: &AsyncWait) -> u64 {
        self.hasher.hash_one((wait.client.number, wait.database, wait.names()))
    }

    /// The place of a client that waits for the same keys and owner already.
    pub fn place_of(&self, wait: &AsyncWait) -> Option<Ticket> {
        let ticket = *self.by_asker.get(&self.asker(wait))?;
        let found = self.waits.get(&ticket)?;
        let is_same = found.client == wait.client
            && found.database == wait.database
            && found.names() == wait.names();
        is_same.then_some(ticket)
    }

    /// Adds a wait, replacing an earlier one at this place.
    pub fn insert(&mut self, ticket: Ticket, wait: AsyncWait) {
        let asker = self.asker(&wait);
        let deadline_us = wait.deadline_us;
        let own = self.by_client.entry(wait.client).or_default();
        own.bytes += wait.memory();
        match self.waits.insert(ticket, Box::new(wait)) {
            Some(old) => {
                own.bytes -= old.memory();
                self.deadlines.remove(&(old.deadline_us, ticket));
            }
            None => {
                if own.tickets.len() == own.tickets.capacity() {
                    own.tickets.retain(|ticket| self.waits.contains_key(ticket));
                }
                own.tickets.push(ticket);
                self.by_asker.insert(asker, ticket);
            }
        }
        if deadline_us < i64::MAX {
            self.deadlines.insert((deadline_us, ticket));
        }
    }

    pub fn remove(&mut self, ticket: Ticket) -> Option<AsyncWait> {
        let wait = self.waits.remove(&ticket)?;
        self.deadlines.remove(&(wait.deadline_us, ticket));
        if let Some(own) = self.by_client.get_mut(&wait.client) {
            own.bytes -= wait.memory();
        }
        let asker = self.asker(&wait);
        if self.by_asker.get(&asker) == Some(&ticket) {
            self.by_asker.remove(&asker);
            self.by_asker.shrink_if_sparse();
        }
        if self.waits.is_empty() {
            // No memory is kept for waits that have ended.
            *self = AsyncWaits::default();
        }
        Some(*wait)
    }

    /// The places of a client.
    pub fn of_client(&self, client: ClientId) -> Vec<Ticket> {
        let own = self.by_client.get(&client).into_iter().flat_map(|own| &own.tickets);
        own.copied().filter(|ticket| self.waits.contains_key(ticket)).collect()
    }

    /// Forgets a client without waits.
    pub fn forget_client(&mut self, client: ClientId) {
        self.by_client.remove(&client);
        self.by_client.shrink_if_sparse();
    }

    /// All waits in the order of arrival.
    pub fn iter(&self) -> impl Iterator<Item = (Ticket, &AsyncWait)> {
        self.waits.iter().map(|(ticket, wait)| (*ticket, &**wait))
    }

    /// All places.
    pub fn tickets(&self) -> Vec<Ticket> {
        self.waits.keys().copied().collect()
    }

    /// When the first of them began: boot-time clock, microseconds.
    pub fn oldest_us(&self) -> Option<i64> {
        self.waits.first_key_value().map(|(_, wait)| wait.since_us)
    }

    /// Bytes of memory of a client's waits.
    pub fn memory(&self, client: ClientId) -> usize {
        self.by_client.get(&client).map_or(0, |own| own.bytes)
    }

    /// The next deadline: boot-time clock, microseconds.
    pub fn next_deadline_us(&self) -> Option<i64> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// A place whose deadline has passed.
    pub fn overdue(&self, now_us: i64) -> Option<Ticket> {
        let (deadline, ticket) = self.deadlines.first()?;
        (*deadline <= now_us).then_some(*ticket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(arguments: &[&[u8]]) -> PackedRequest {
        let (mut buffer, mut ranges) = (Vec::new(), Vec::new());
        for argument in arguments {
            ranges.push(Range { start: buffer.len() as u32, len: argument.len() as u32 });
            buffer.extend_from_slice(argument);
        }
        PackedRequest::new(Args::new(&buffer, &ranges))
    }

    fn wait(client: u64, key: &[u8], deadline_us: i64) -> AsyncWait {
        AsyncWait {
            client: ClientId { slot: 0, number: client },
            command: CommandId(0),
            database: DbIndex::ZERO,
            keys: (1, 2),
            deadline_us,
            since_us: 0,
            grace_ms: 0,
            request: request(&[b"LOCK.ACQUIRE", key, b"owner"]),
        }
    }

    #[test]
    fn a_request_is_unpacked_as_it_was() {
        let long = vec![b'x'; 70_000];
        let arguments: [&[u8]; 5] = [b"LOCK.ACQUIRE", b"", &long[..254], &long[..255], &long];
        let packed = request(&arguments);
        let ranges = packed.ranges();
        let args = Args::new(packed.bytes(), &ranges);
        assert_eq!(args.iter_from(0).collect::<Vec<_>>(), arguments);
    }

    #[test]
    fn a_client_has_one_place_for_the_same_lock() {
        let mut waits = AsyncWaits::default();
        waits.insert(7, wait(1, b"a", 50));
        assert_eq!(waits.place_of(&wait(1, b"a", 90)), Some(7));
        assert_eq!(waits.place_of(&wait(2, b"a", 90)), None);
        assert_eq!(waits.place_of(&wait(1, b"b", 90)), None);
        waits.insert(7, wait(1, b"a", 90));
        waits.insert(8, wait(1, b"b", i64::MAX));
        assert_eq!((waits.overdue(89), waits.overdue(90)), (None, Some(7)));
        assert_eq!(waits.of_client(ClientId { slot: 0, number: 1 }), [7, 8]);
        waits.remove(7);
        assert_eq!(waits.place_of(&wait(1, b"a", 90)), None);
        assert_eq!((waits.len(), waits.next_deadline_us()), (1, None));
    }
}
