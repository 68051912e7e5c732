//! A blocked client: it waits for keys, with the request to run again when one is ready, or for
//! replicas' acknowledgements.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::client::acks::{AcksAwaited, Confirmations, Unconfirmed};
use crate::client::asynchronous::AsyncWaits;
use crate::client::places::{Asker, KeptPlaces};
use crate::ids::{ClientId, CommandId};
use crate::keyspace::DbIndex;
use crate::keyspace::waiting::{Ticket, Wanted};
use crate::resp::args::Args;
use crate::resp::request;

/// The wait of a command for a key's change.
#[derive(Debug)]
pub struct Wait {
    pub wanted: Wanted,
    /// The indices of the key arguments.
    pub keys: Range<usize>,
    /// Boot-time clock, microseconds; None: no timeout.
    pub deadline_us: Option<i64>,
    /// The request to run when a key is ready, if it differs from the sent one; its keys have the
    /// same indices.
    pub rewritten: Option<Vec<Vec<u8>>>,
    /// How long the place is kept while the client is away; None: not at all.
    pub grace_ms: Option<i64>,
    /// Whether the client waits at the head of the queues, before the order of arrival.
    pub is_first: bool,
}

impl Wait {
    /// A wait in the order of arrival, with the request as it was sent.
    pub fn new(wanted: Wanted, keys: Range<usize>, deadline_us: Option<i64>) -> Self {
        Wait { wanted, keys, deadline_us, rewritten: None, grace_ms: None, is_first: false }
    }
}

/// Why a client is blocked.
pub enum Cause {
    Keys {
        wanted: Wanted,
        /// The indices of the key arguments.
        keys: Range<usize>,
        ticket: Ticket,
    },
    Acks(AcksAwaited),
    /// Replicas repeat the request before this server runs it (CLUSTER SETSLOT).
    Repetition(AcksAwaited),
    /// The MIGRATE with this number.
    Move(u64),
    /// A granted lock's reply waits for replicas: its number in [`Confirmations`].
    Confirmation(u64),
}

/// A blocked client's request and the cause of its wait.
pub struct Blocked {
    pub command: CommandId,
    pub cause: Cause,
    /// Boot-time clock, microseconds; None: no timeout.
    pub deadline_us: Option<i64>,
    pub database: DbIndex,
    /// The request's arguments, concatenated.
    pub buffer: Vec<u8>,
    pub ranges: Vec<request::Range>,
    /// When it began to wait: boot-time clock, microseconds.
    pub since_us: i64,
    /// How long the place is kept while the client is away; None: not at all.
    pub grace_ms: Option<i64>,
}

impl Blocked {
    /// A wait that has no deadline yet, nor a request to run again.
    pub fn new(command: CommandId, cause: Cause) -> Self {
        Blocked {
            command,
            cause,
            deadline_us: None,
            database: DbIndex::ZERO,
            buffer: Vec::new(),
            ranges: Vec::new(),
            since_us: 0,
            grace_ms: None,
        }
    }

    /// The request.
    pub fn args(&self) -> Args<'_> {
        Args::new(&self.buffer, &self.ranges)
    }

    /// The keys and the argument after them: the owner for whom a client waits for locks.
    pub fn keys_and_next(&self) -> Vec<&[u8]> {
        let after = self.keys().last().map(|(last, _)| last + 1);
        let next = after.filter(|&index| index < self.args().len());
        let next = next.map(|index| self.args().get(index));
        self.keys().map(|(_, key)| key).chain(next).collect()
    }

    /// The asker of a lock or permits and its place, if the place is kept while the client is away.
    pub fn kept_place(&self) -> Option<(Asker, Ticket, i64)> {
        let Cause::Keys { wanted, ticket, .. } = self.cause else { return None };
        let asker = Asker::new(wanted, self.database, &self.keys_and_next());
        Some((asker, ticket, self.grace_ms?))
    }

    /// Whether the client waits for locks or permits.
    pub fn waits_for_lock(&self) -> bool {
        matches!(self.cause, Cause::Keys { wanted: Wanted::Lock | Wanted::Semaphore, .. })
    }

    /// Bytes of memory held.
    pub fn memory(&self) -> usize {
        size_of::<Blocked>()
            + self.buffer.capacity()
            + self.ranges.capacity() * size_of::<request::Range>()
    }

    /// The awaited change of the keys, if the client waits for one.
    pub fn wanted(&self) -> Option<Wanted> {
        match self.cause {
            Cause::Keys { wanted, .. } => Some(wanted),
            Cause::Acks(_) | Cause::Repetition(_) | Cause::Move(_) | Cause::Confirmation(_) => None,
        }
    }

    /// The keys, each with its argument index.
    pub fn keys(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let keys = match &self.cause {
            Cause::Keys { keys, .. } => keys.clone(),
            Cause::Acks(_) | Cause::Repetition(_) | Cause::Move(_) | Cause::Confirmation(_) => 0..0,
        };
        keys.map(|index| (index, self.args().get(index)))
    }
}

/// The blocked clients and their deadlines.
#[derive(Default)]
pub struct Blocking {
    pub deadlines: BTreeSet<(i64, ClientId)>,
    /// Clients that wait for replicas, in order.
    pub for_acks: Vec<ClientId>,
    pub confirmations: Confirmations,
    /// The unconfirmed grant of the command that has just run, for the gate to take.
    pub unconfirmed: Option<Box<Unconfirmed>>,
    /// Clients that wait for locks without being blocked.
    pub asynchronous: AsyncWaits,
    /// Whether the running command is one of theirs: its grant is sent as a push message.
    pub serves_async: bool,
    /// The places of clients that are away.
    pub places: KeptPlaces,
    count: usize,
    /// The numbers of blocked clients, by command number.
    by_command: Vec<usize>,
    /// Clients that wait for locks or permits, each after the time when its wait began: boot-time
    /// clock, microseconds.
    for_locks: BTreeSet<(i64, ClientId)>,
    /// The number of these clients that wait for locks.
    lock_waiters: usize,
    due_waiters: usize,
}

impl Blocking {
    /// Adds a client that begins to wait.
    pub fn add(&mut self, id: ClientId, blocked: &Blocked) {
        if let Some(deadline) = blocked.deadline_us {
            self.deadlines.insert((deadline, id));
        }
        self.count += 1;
        let command = blocked.command.index();
        if self.by_command.len() <= command {
            self.by_command.resize(command + 1, 0);
        }
        self.by_command[command] += 1;
        match blocked.wanted() {
            Some(wanted @ (Wanted::Lock | Wanted::Semaphore)) => {
                self.for_locks.insert((blocked.since_us, id));
                self.lock_waiters += usize::from(wanted == Wanted::Lock);
            }
            Some(Wanted::DueSeconds | Wanted::DueMilliseconds) => self.due_waiters += 1,
            _ => {}
        }
    }

    /// Removes a client that no longer waits.
    pub fn remove(&mut self, id: ClientId, blocked: &Blocked) {
        if let Some(deadline) = blocked.deadline_us {
            self.deadlines.remove(&(deadline, id));
        }
        self.count -= 1;
        self.by_command[blocked.command.index()] -= 1;
        match blocked.wanted() {
            Some(wanted @ (Wanted::Lock | Wanted::Semaphore)) => {
                self.for_locks.remove(&(blocked.since_us, id));
                self.lock_waiters -= usize::from(wanted == Wanted::Lock);
            }
            Some(Wanted::DueSeconds | Wanted::DueMilliseconds) => self.due_waiters -= 1,
            _ => {}
        }
    }

    /// Number of blocked clients.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Number of blocked clients by command, of those commands that have any.
    pub fn by_command(&self) -> impl Iterator<Item = (CommandId, usize)> {
        let counts = self.by_command.iter().enumerate().filter(|(_, count)| **count > 0);
        counts.map(|(index, count)| (CommandId::new(index), *count))
    }

    /// Number of clients that wait for locks, blocked or not.
    pub fn lock_waiters(&self) -> usize {
        self.lock_waiters + self.asynchronous.len()
    }

    /// Whether clients wait for locks or permits, blocked or not.
    pub fn has_lock_waiters(&self) -> bool {
        !self.for_locks.is_empty() || !self.asynchronous.is_empty()
    }

    /// Number of clients that wait for permits.
    pub fn semaphore_waiters(&self) -> usize {
        self.for_locks.len() - self.lock_waiters
    }

    /// Number of clients that wait until a sorted set's member is due.
    pub fn due_waiters(&self) -> usize {
        self.due_waiters
    }

    /// The clients that wait for locks or permits, each after the time when its wait began: the
    /// longest waiting first; boot-time clock, microseconds.
    pub fn for_locks(&self) -> impl Iterator<Item = (i64, ClientId)> {
        self.for_locks.iter().copied()
    }

    /// When the longest of these waits began: boot-time clock, microseconds.
    pub fn waits_for_lock_since_us(&self) -> Option<i64> {
        let blocked = self.for_locks.first().map(|(since_us, _)| *since_us);
        blocked.into_iter().chain(self.asynchronous.oldest_us()).min()
    }

    /// Number of blocked clients with a timeout.
    pub fn timing_out(&self) -> usize {
        self.deadlines.len()
    }

    /// The next deadline of a wait, other than for a confirmation: boot-time clock, microseconds.
    pub fn next_deadline_us(&self) -> Option<i64> {
        let deadlines = [
            self.deadlines.first().map(|(deadline, _)| *deadline),
            self.asynchronous.next_deadline_us(),
        ];
        deadlines.into_iter().flatten().min()
    }

    /// Number of clients that wait for locks and permits, blocked or not, including those that are
    /// away.
    pub fn all_lock_waiters(&self) -> usize {
        self.for_locks.len()
            + self.asynchronous.len()
            + self.places.len()
            + self.confirmations.len()
    }

    /// Keeps the place of a client that is away, from `now_us` (boot-time clock) for `grace_ms`.
    pub fn keep_place(&mut self, (asker, ticket, grace_ms): (Asker, Ticket, i64), now_us: i64) {
        let until_us = now_us.saturating_add(grace_ms.saturating_mul(1000));
        self.places.keep(asker, ticket, until_us);
    }
}
