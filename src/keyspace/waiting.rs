//! The queues of blocked clients, by key.
//!
//! Every change of a key is reported here ([`Keyspace::changed`](super::Keyspace::changed)). If
//! clients wait for the key, it is added to the list of ready keys. Before the next request, the
//! server runs the waiting commands in the order of their arrival. Commands that wait for different
//! types have different queues, because a key has one type at a time: so a change visits no client
//! that it cannot serve.
//!
//! Clients that wait until a sorted set's member is due are also woken by time: one alarm for each
//! key and unit, on the wall clock.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::RangeInclusive;

use super::db_index::{DbIndex, PerDatabase};
use crate::collections::sparse::Sparse;
use crate::ids::ClientId;

/// The change for which a blocked command waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Wanted {
    /// An element of a list.
    List,
    /// A member of a sorted set.
    SortedSet,
    /// A member of a sorted set whose score, a Unix time in seconds, has passed.
    DueSeconds,
    /// The same in milliseconds.
    DueMilliseconds,
    /// An entry of a stream.
    Stream,
    /// An entry of a stream for a consumer group. The deletion of the stream also gives a result.
    StreamGroup,
    /// A lock: any change of its key may free it.
    Lock,
    /// Permits of a semaphore: a sorted set whose scores are the permits' deadlines in Unix
    /// milliseconds.
    Semaphore,
}

impl Wanted {
    /// Whether a client that is served takes elements out of the key's value.
    pub fn is_taken(self) -> bool {
        use Wanted::{DueMilliseconds, DueSeconds, List, SortedSet};
        matches!(self, List | SortedSet | DueSeconds | DueMilliseconds)
    }
}

/// A unique position in a queue, in the order of arrival. Positions at the head come before that
/// order.
pub type Ticket = u64;
/// Lower tickets are at the head of a queue.
const ARRIVED: Ticket = 1 << (Position::TICKET_BITS - 1);

/// A queue and a position in it, in eight bytes, because there may be many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Position(u64);

impl Position {
    const TICKET_BITS: u32 = 56;
    const TICKET_MAX: Ticket = (1 << Self::TICKET_BITS) - 1;

    fn new(wanted: Wanted, ticket: Ticket) -> Self {
        Position((wanted as u64) << Self::TICKET_BITS | ticket.min(Self::TICKET_MAX))
    }

    fn ticket(self) -> Ticket {
        self.0 & Self::TICKET_MAX
    }

    fn is_for(self, wanted: Wanted) -> bool {
        self.0 >> Self::TICKET_BITS == wanted as u64
    }

    /// All positions of a queue after a ticket.
    fn after(wanted: Wanted, ticket: Ticket) -> RangeInclusive<Self> {
        Self::new(wanted, ticket + 1)..=Self::new(wanted, Self::TICKET_MAX)
    }
}

/// The queues of one key, in the order of [`Position`]. If many keys are awaited, most of them have
/// one client each.
enum Queues {
    One(Option<(Position, ClientId)>),
    Many(BTreeMap<Position, ClientId>),
}

impl Default for Queues {
    fn default() -> Self {
        Queues::One(None)
    }
}

impl Queues {
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn len(&self) -> usize {
        match self {
            Queues::One(one) => usize::from(one.is_some()),
            Queues::Many(all) => all.len(),
        }
    }

    fn insert(&mut self, position: Position, id: ClientId) {
        match self {
            Queues::Many(all) => drop(all.insert(position, id)),
            Queues::One(Some((first, first_id))) if *first != position => {
                *self = Queues::Many(BTreeMap::from([(*first, *first_id), (position, id)]));
            }
            Queues::One(one) => *one = Some((position, id)),
        }
    }

    fn remove(&mut self, position: Position) {
        match self {
            Queues::Many(all) => drop(all.remove(&position)),
            Queues::One(one) => *one = one.filter(|(first, _)| *first != position),
        }
    }

    /// The first position and the last.
    fn ends(&self) -> Option<(Position, Position)> {
        match self {
            Queues::One(one) => one.map(|(first, _)| (first, first)),
            Queues::Many(all) => Some((*all.first_key_value()?.0, *all.last_key_value()?.0)),
        }
    }

    fn range(
        &self,
        range: RangeInclusive<Position>,
    ) -> impl Iterator<Item = (Position, ClientId)> + use<'_> {
        let (one, many) = match self {
            Queues::One(one) => (one.filter(|(first, _)| range.contains(first)), None),
            Queues::Many(all) => (None, Some(all.range(range))),
        };
        let many = many.into_iter().flatten().map(|(position, id)| (*position, *id));
        one.into_iter().chain(many)
    }

    fn all(&self) -> impl Iterator<Item = (Position, ClientId)> + use<'_> {
        self.range(Position(0)..=Position(u64::MAX))
    }
}

/// The clients that wait for one key.
#[derive(Default)]
struct Waiters {
    queues: Queues,
    /// The key is on the list of ready keys.
    is_ready: bool,
    /// When the queues of each unit must be checked: Unix milliseconds.
    alarms: [Option<i64>; ALARMS.len()],
}

/// What must be possible again before a key's clients are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    Writes,
    /// Locks are granted: `lock-recovery-delay`.
    Grants,
}

/// All queues.
#[derive(Default)]
pub struct Waiting {
    /// By database, then by key.
    databases: PerDatabase<HashMap<Box<[u8]>, Waiters>>,
    /// Keys with waiting clients.
    keys: usize,
    ready: Vec<(DbIndex, Box<[u8]>)>,
    /// Unix milliseconds, database, key, unit.
    alarms: BTreeSet<(i64, DbIndex, Box<[u8]>, Wanted)>,
    last_ticket: Ticket,
    /// Keys that were ready while their clients could be given nothing, by what they wait for:
    /// [`Until`].
    postponed: [BTreeSet<(DbIndex, Box<[u8]>)>; 2],
    /// Keys whose first client needs more replicas than have acknowledged an earlier grant.
    held_back: BTreeSet<(DbIndex, Box<[u8]>)>,
}

/// The awaited changes that can also happen by time alone, and then wake clients.
const ALARMS: [Wanted; 3] = [Wanted::DueSeconds, Wanted::DueMilliseconds, Wanted::Semaphore];

fn alarm_index(wanted: Wanted) -> usize {
    ALARMS.iter().position(|alarm| *alarm == wanted).unwrap_or(0)
}

impl Waiting {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.keys == 0
    }

    /// Number of keys with waiting clients.
    pub fn keys(&self) -> usize {
        self.keys
    }

    /// The databases with waiting clients.
    pub fn databases(&self) -> impl Iterator<Item = DbIndex> {
        let waiting = self.databases.numbered().filter(|(_, keys)| !keys.is_empty());
        waiting.map(|(database, _)| database)
    }

    /// Number of keys whose deletion wakes a client too. O(n): for INFO.
    pub fn keys_awaited_on_end(&self) -> usize {
        let last = Position::new(Wanted::Semaphore, Position::TICKET_MAX);
        let awaited = Position::new(Wanted::StreamGroup, 0)..=last;
        let all = self.databases.iter().flat_map(HashMap::values);
        all.filter(|waiters| waiters.queues.range(awaited.clone()).next().is_some()).count()
    }

    /// Whether a key with waiting clients has changed.
    #[inline]
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// The keys that have changed, with their databases.
    pub fn ready(&self) -> impl Iterator<Item = (DbIndex, &[u8])> {
        self.ready.iter().map(|(database, key)| (*database, &**key))
    }

    /// The next ticket: in the order of arrival, or at the head, after those already at the head.
    pub fn next_ticket(&mut self, is_first: bool) -> Ticket {
        self.last_ticket += 1;
        if is_first { self.last_ticket } else { ARRIVED + self.last_ticket }
    }

    /// The first client in a key's queue, if it is at the head, before the order of arrival.
    pub fn at_head(
        &self,
        database: DbIndex,
        key: &[u8],
        wanted: Wanted,
    ) -> Option<(Ticket, ClientId)> {
        self.next_after(database, key, wanted, 0).filter(|(ticket, _)| *ticket < ARRIVED)
    }

    /// Adds a client to a key's queue by its ticket. A client that waits for a key twice
    /// (`BLPOP k k 0`) is added once.
    pub fn add(
        &mut self,
        database: DbIndex,
        key: &[u8],
        wanted: Wanted,
        ticket: Ticket,
        id: ClientId,
    ) {
        let waiters = self.databases.entry(database).entry(key.into()).or_default();
        if waiters.queues.is_empty() {
            self.keys += 1;
        }
        waiters.queues.insert(Position::new(wanted, ticket), id);
    }

    /// Removes a client from a key's queue.
    pub fn remove(&mut self, database: DbIndex, key: &[u8], wanted: Wanted, ticket: Ticket) {
        let Some(waiters) = self.databases.get_mut(database).and_then(|keys| keys.get_mut(key))
        else {
            return;
        };
        waiters.queues.remove(Position::new(wanted, ticket));
        if waiters.queues.is_empty() {
            for (index, wanted) in ALARMS.iter().enumerate() {
                if let Some(at) = waiters.alarms[index] {
                    self.alarms.remove(&(at, database, key.into(), *wanted));
                }
            }
            self.databases[database].remove(key);
            self.databases[database].shrink_if_sparse();
            self.keys -= 1;
            for keys in self.postponed.iter_mut().chain([&mut self.held_back]) {
                if !keys.is_empty() {
                    keys.remove(&(database, key.into()));
                }
            }
        }
    }

    /// Records that a key changed.
    #[inline]
    pub fn note_change(&mut self, database: DbIndex, key: &[u8]) {
        if !self.is_empty() {
            self.make_ready(database, key);
        }
    }

    #[cold]
    fn make_ready(&mut self, database: DbIndex, key: &[u8]) {
        if let Some(waiters) = self.databases.get_mut(database).and_then(|keys| keys.get_mut(key))
            && !waiters.is_ready
        {
            waiters.is_ready = true;
            self.ready.push((database, key.into()));
        }
    }

    /// Records that any key of a database may have changed.
    pub fn note_all(&mut self, database: DbIndex) {
        let Some(keys) = self.databases.get_mut(database) else { return };
        let waiting = keys.iter_mut().filter(|(_, waiters)| !waiters.is_ready);
        let mut ready: Vec<_> = waiting
            .map(|(key, waiters)| {
                waiters.is_ready = true;
                let tickets = waiters.queues.all().map(|(position, _)| position.ticket());
                (tickets.min(), key.clone())
            })
            .collect();
        ready.sort_unstable();
        self.ready.extend(ready.into_iter().map(|(_, key)| (database, key)));
    }

    /// Takes the changed keys, in order. A further change adds a key again.
    pub fn take_ready(&mut self) -> Vec<(DbIndex, Box<[u8]>)> {
        let ready = std::mem::take(&mut self.ready);
        for (keyspace, key) in &ready {
            if let Some(waiters) =
                self.databases.get_mut(*keyspace).and_then(|keys| keys.get_mut(key))
            {
                waiters.is_ready = false;
            }
        }
        ready
    }

    /// Postpones serving a key's clients until [`Self::retry_postponed`].
    pub fn postpone(&mut self, database: DbIndex, key: &[u8], until: Until) {
        if self.databases.get(database).is_some_and(|keys| keys.contains_key(key)) {
            self.postponed[until as usize].insert((database, key.into()));
        }
    }

    #[inline]
    pub fn has_postponed(&self, until: Until) -> bool {
        !self.postponed[until as usize].is_empty()
    }

    /// Adds the postponed keys to the ready ones.
    pub fn retry_postponed(&mut self, until: Until) {
        for (database, key) in std::mem::take(&mut self.postponed[until as usize]) {
            self.make_ready(database, &key);
        }
    }

    /// Postpones serving a key's clients until [`Self::retry_held_back`].
    pub fn hold_back(&mut self, database: DbIndex, key: &[u8]) {
        self.held_back.insert((database, key.into()));
    }

    /// Adds the keys that were held back to the ready ones.
    pub fn retry_held_back(&mut self) {
        for (database, key) in std::mem::take(&mut self.held_back) {
            self.make_ready(database, &key);
        }
    }

    /// The first client in a key's queue after `ticket`.
    pub fn next_after(
        &self,
        database: DbIndex,
        key: &[u8],
        wanted: Wanted,
        ticket: Ticket,
    ) -> Option<(Ticket, ClientId)> {
        let waiters = self.databases.get(database)?.get(key)?;
        let (position, id) = waiters.queues.range(Position::after(wanted, ticket)).next()?;
        Some((position.ticket(), id))
    }

    /// Number of clients in a key's queue. O(n) if clients wait there for values of another type
    /// too.
    pub fn len(&self, database: DbIndex, key: &[u8], wanted: Wanted) -> usize {
        let waiters = self.databases.get(database).and_then(|keys| keys.get(key));
        let Some(queues) = waiters.map(|waiters| &waiters.queues) else { return 0 };
        match queues.ends() {
            Some((first, last)) if !first.is_for(wanted) || !last.is_for(wanted) => {
                self.iter(database, key, wanted).count()
            }
            _ => queues.len(),
        }
    }

    /// The position of a ticket in a key's queue, from 1. O(n) for any but the last.
    pub fn place(&self, database: DbIndex, key: &[u8], wanted: Wanted, ticket: Ticket) -> usize {
        let waiters = self.databases.get(database).and_then(|keys| keys.get(key));
        let Some(queues) = waiters.map(|waiters| &waiters.queues) else { return 0 };
        match queues.ends() {
            Some((_, last)) if last == Position::new(wanted, ticket) => {
                self.len(database, key, wanted)
            }
            _ => queues.range(Position::new(wanted, 0)..=Position::new(wanted, ticket)).count(),
        }
    }

    /// The keys that clients wait for in this way: database, key, number of clients. O(n) with n
    /// such keys and clients.
    pub fn queues_for(&self, wanted: Wanted) -> impl Iterator<Item = (DbIndex, &[u8], usize)> {
        let databases = self.databases.numbered();
        let all = databases.flat_map(|(database, keys)| keys.iter().map(move |it| (database, it)));
        all.filter_map(move |(database, (key, waiters))| {
            let count = waiters.queues.range(Position::after(wanted, 0)).count();
            (count > 0).then_some((database, &**key, count))
        })
    }

    /// The keys that clients wait for in any of these ways.
    pub fn keys_for<'a>(
        &'a self,
        wanted: &'a [Wanted],
    ) -> impl Iterator<Item = (DbIndex, &'a [u8])> {
        let databases = self.databases.numbered();
        let all = databases.flat_map(|(database, keys)| keys.iter().map(move |it| (database, it)));
        all.filter_map(move |(database, (key, waiters))| {
            let queues = &waiters.queues;
            let is_wanted = |wanted: &Wanted| match queues {
                Queues::One(one) => one.is_some_and(|(position, _)| position.is_for(*wanted)),
                Queues::Many(_) => queues.range(Position::after(*wanted, 0)).next().is_some(),
            };
            wanted.iter().any(is_wanted).then_some((database, &**key))
        })
    }

    /// The clients in a key's queue, in order.
    pub fn iter(
        &self,
        database: DbIndex,
        key: &[u8],
        wanted: Wanted,
    ) -> impl Iterator<Item = (Ticket, ClientId)> {
        let waiters = self.databases.get(database).and_then(|keys| keys.get(key));
        waiters
            .into_iter()
            .flat_map(move |waiters| waiters.queues.range(Position::after(wanted, 0)))
            .map(|(position, id)| (position.ticket(), id))
    }

    /// Sets when a key is checked for clients that wait in this unit: Unix milliseconds; None:
    /// never.
    pub fn set_alarm(&mut self, database: DbIndex, key: &[u8], wanted: Wanted, at_ms: Option<i64>) {
        let Some(waiters) = self.databases.get_mut(database).and_then(|keys| keys.get_mut(key))
        else {
            return;
        };
        let alarm = &mut waiters.alarms[alarm_index(wanted)];
        if *alarm == at_ms {
            return;
        }
        if let Some(old) = std::mem::replace(alarm, at_ms) {
            self.alarms.remove(&(old, database, key.into(), wanted));
        }
        if let Some(at) = at_ms {
            self.alarms.insert((at, database, key.into(), wanted));
        }
    }

    /// The Unix time in milliseconds of the earliest alarm.
    pub fn next_alarm_ms(&self) -> Option<i64> {
        self.alarms.first().map(|(at, ..)| *at)
    }

    /// Marks keys as ready whose alarm is due at `now_ms`, Unix milliseconds.
    pub fn ring(&mut self, now_ms: i64) {
        while let Some((at, ..)) = self.alarms.first()
            && *at <= now_ms
        {
            let (_, keyspace, key, wanted) =
                self.alarms.pop_first().expect("the first was just seen");
            if let Some(waiters) = self.databases[keyspace].get_mut(&key) {
                waiters.alarms[alarm_index(wanted)] = None;
            }
            self.make_ready(keyspace, &key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(number: u64) -> ClientId {
        ClientId { slot: number as u32, number }
    }

    #[test]
    fn waiters_are_found_in_the_order_they_came() {
        let mut waiting = Waiting::default();
        let [first, second, third] = [1, 2, 3].map(|number| {
            let ticket = waiting.next_ticket(false);
            waiting.add(DbIndex::ZERO, b"k", Wanted::List, ticket, client(number));
            ticket
        });
        assert_eq!(
            waiting.next_after(DbIndex::ZERO, b"k", Wanted::List, 0),
            Some((first, client(1)))
        );
        waiting.remove(DbIndex::ZERO, b"k", Wanted::List, second);
        assert_eq!(
            waiting.next_after(DbIndex::ZERO, b"k", Wanted::List, first),
            Some((third, client(3)))
        );
        assert_eq!(waiting.at_head(DbIndex::ZERO, b"k", Wanted::List), None);
        let head = waiting.next_ticket(true);
        waiting.add(DbIndex::ZERO, b"k", Wanted::List, head, client(4));
        assert_eq!(
            waiting.next_after(DbIndex::ZERO, b"k", Wanted::List, 0),
            Some((head, client(4)))
        );
        assert_eq!(waiting.at_head(DbIndex::ZERO, b"k", Wanted::List), Some((head, client(4))));
        assert_eq!(waiting.next_after(DbIndex::ZERO, b"k", Wanted::SortedSet, 0), None);
        assert_eq!(waiting.next_after(DbIndex::new(1), b"k", Wanted::List, 0), None);
    }

    #[test]
    fn one_client_and_many_are_queued_alike() {
        let position = |ticket| Position::new(Wanted::Lock, ticket);
        let mut queues = Queues::default();
        queues.remove(position(1));
        assert!(queues.is_empty() && queues.ends().is_none());
        for ticket in [3, 3, 1, 2] {
            queues.insert(position(ticket), client(ticket));
        }
        let after = |queues: &Queues, ticket| {
            let range = Position::after(Wanted::Lock, ticket);
            queues.range(range).map(|(position, id)| (position.ticket(), id.number)).collect()
        };
        assert_eq!((queues.len(), queues.ends()), (3, Some((position(1), position(3)))));
        let later: Vec<(Ticket, u64)> = after(&queues, 1);
        assert_eq!(later, [(2, 2), (3, 3)]);
        for ticket in [1, 3, 3] {
            queues.remove(position(ticket));
        }
        assert_eq!((queues.len(), queues.ends()), (1, Some((position(2), position(2)))));
        let mut one = Queues::default();
        one.insert(position(2), client(2));
        for queues in [&queues, &one] {
            let (first, none): (Vec<(Ticket, u64)>, Vec<_>) = (after(queues, 0), after(queues, 2));
            assert_eq!((first, none), (vec![(2, 2)], vec![]));
            assert_eq!(queues.range(Position::after(Wanted::List, 0)).count(), 0);
        }
    }

    #[test]
    fn a_change_makes_only_awaited_keys_ready_and_once() {
        let mut waiting = Waiting::default();
        waiting.note_change(DbIndex::ZERO, b"k");
        assert!(!waiting.has_ready());
        waiting.add(DbIndex::ZERO, b"k", Wanted::Stream, 1, client(1));
        waiting.note_change(DbIndex::ZERO, b"other");
        waiting.note_change(DbIndex::new(1), b"k");
        assert!(!waiting.has_ready());
        waiting.note_change(DbIndex::ZERO, b"k");
        waiting.note_change(DbIndex::ZERO, b"k");
        assert_eq!(waiting.take_ready(), [(DbIndex::ZERO, Box::from(&b"k"[..]))]);
        waiting.remove(DbIndex::ZERO, b"k", Wanted::Stream, 1);
        assert!(waiting.is_empty());
    }

    #[test]
    fn where_all_keys_change_those_come_first_that_were_awaited_first() {
        let mut waiting = Waiting::default();
        let keys: Vec<Box<[u8]>> = (0..20u8).map(|number| Box::from([number ^ 0x15])).collect();
        for key in &keys {
            let ticket = waiting.next_ticket(false);
            waiting.add(DbIndex::ZERO, key, Wanted::List, ticket, client(ticket - ARRIVED));
        }
        waiting.note_change(DbIndex::ZERO, &keys[7]);
        waiting.note_all(DbIndex::ZERO);
        let ready: Vec<Box<[u8]>> = waiting.take_ready().into_iter().map(|(_, key)| key).collect();
        assert_eq!(ready[0], keys[7]);
        assert_eq!(ready[1..], [&keys[..7], &keys[8..]].concat());
    }

    #[test]
    fn an_alarm_rings_once_and_goes_with_its_last_waiter() {
        let mut waiting = Waiting::default();
        waiting.add(DbIndex::ZERO, b"k", Wanted::DueSeconds, 1, client(1));
        waiting.set_alarm(DbIndex::ZERO, b"k", Wanted::DueSeconds, Some(5000));
        waiting.set_alarm(DbIndex::ZERO, b"k", Wanted::DueSeconds, Some(3000));
        assert_eq!(waiting.next_alarm_ms(), Some(3000));
        waiting.ring(2999);
        assert!(!waiting.has_ready());
        waiting.ring(3000);
        assert_eq!(waiting.take_ready().len(), 1);
        assert_eq!(waiting.next_alarm_ms(), None);
        waiting.set_alarm(DbIndex::ZERO, b"k", Wanted::DueSeconds, Some(9000));
        waiting.remove(DbIndex::ZERO, b"k", Wanted::DueSeconds, 1);
        assert_eq!(waiting.next_alarm_ms(), None);
    }
}
