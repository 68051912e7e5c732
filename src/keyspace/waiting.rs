//! The queues of blocked clients, by key.
//!
//! Every change of a key is reported here ([`Keyspace::changed`](super::Keyspace::changed)). If
//! clients wait for the key, it is added to the list of ready keys. Before the next request, the
//! server runs the waiting commands in the order of their arrival. Commands that wait for different
//! types have different queues, because a key has one type at a time: so a change visits no client
//! that it cannot serve.
//!
//! Clients that wait until a sorted set's member is due, or a pending entry of a stream may be
//! claimed, are also woken by time: one alarm for each key and [`Alarm`]. Readers of a stream's
//! groups are also kept by what they read ([`Readers`]), so that one that gets nothing stands for
//! all others of its kind.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::num::NonZeroU64;
use std::ops::{Bound, RangeBounds, RangeInclusive};

use super::db_index::{DbIndex, PerDatabase};
use crate::collections::sparse::Sparse;

/// What a client waits for: most often a change of a key.
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
    /// The same, or a pending entry of the group that may be claimed, or a due member of a sorted
    /// set that moves to the stream.
    StreamClaim,
    /// A lock: any change of its key may free it.
    Lock,
    /// Permits of a semaphore: a sorted set whose scores are the permits' deadlines in Unix
    /// milliseconds.
    Semaphore,
    /// No change of a key: replicas' acknowledgements.
    Acks,
    /// Replicas' acknowledgements of the grant of a lock.
    Confirmation,
    /// The end of a MIGRATE.
    Move,
}

impl Wanted {
    /// All kinds, in order.
    pub const ALL: [Wanted; Wanted::COUNT] = [
        Wanted::List,
        Wanted::SortedSet,
        Wanted::DueSeconds,
        Wanted::DueMilliseconds,
        Wanted::Stream,
        Wanted::StreamGroup,
        Wanted::StreamClaim,
        Wanted::Lock,
        Wanted::Semaphore,
        Wanted::Acks,
        Wanted::Confirmation,
        Wanted::Move,
    ];
    /// The number of kinds.
    pub const COUNT: usize = Wanted::Move as usize + 1;

    /// Whether a client that is served takes elements out of the key's value.
    pub fn is_taken(self) -> bool {
        use Wanted::{DueMilliseconds, DueSeconds, List, SortedSet};
        matches!(self, List | SortedSet | DueSeconds | DueMilliseconds)
    }

    /// Whether it may come by time alone, without a change of a key.
    pub fn may_come_by_time(self) -> bool {
        self == Wanted::StreamClaim || self.alarm().is_some()
    }

    /// The alarm of all that wait for it at a key, if they have the same.
    pub fn alarm(self) -> Option<Alarm> {
        match self {
            Wanted::DueSeconds => Some(Alarm::DueSeconds),
            Wanted::DueMilliseconds => Some(Alarm::DueMilliseconds),
            Wanted::Semaphore => Some(Alarm::Permits),
            _ => None,
        }
    }

    /// Whether it is a lock, or permits.
    pub fn is_lock(self) -> bool {
        matches!(self, Wanted::Lock | Wanted::Semaphore)
    }
}

/// The name of a wait: what is wanted, and the wait's position among all that want it, in the order
/// of arrival. Positions at the head come before that order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(NonZeroU64);

impl Ticket {
    const POSITION_BITS: u32 = 56;
    const POSITION_MAX: u64 = (1 << Self::POSITION_BITS) - 1;
    /// Lower positions are at the head of a queue.
    const ARRIVED: u64 = 1 << (Self::POSITION_BITS - 1);

    fn new(wanted: Wanted, position: u64) -> Self {
        let bits = (wanted as u64 + 1) << Self::POSITION_BITS | position.min(Self::POSITION_MAX);
        Ticket(NonZeroU64::new(bits).expect("1 was added"))
    }

    fn position(self) -> u64 {
        self.0.get() & Self::POSITION_MAX
    }

    fn is_at_head(self) -> bool {
        self.position() < Self::ARRIVED
    }

    pub fn wanted(self) -> Wanted {
        Wanted::ALL[(self.0.get() >> Self::POSITION_BITS) as usize - 1]
    }

    pub fn is_for(self, wanted: Wanted) -> bool {
        self.wanted() == wanted
    }

    /// The last ticket for what this one wants.
    fn last_alike(self) -> Self {
        Ticket(self.0 | Self::POSITION_MAX)
    }

    /// All tickets for what is wanted.
    pub fn all(wanted: Wanted) -> RangeInclusive<Self> {
        Self::new(wanted, 0)..=Self::new(wanted, Self::POSITION_MAX)
    }
}

/// The queues of one key, in the order of tickets. If many keys are awaited, most of them have one
/// client each.
enum Queues {
    One(Option<Ticket>),
    Many(BTreeSet<Ticket>),
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

    fn insert(&mut self, ticket: Ticket) {
        match self {
            Queues::Many(all) => drop(all.insert(ticket)),
            Queues::One(Some(first)) if *first != ticket => {
                *self = Queues::Many(BTreeSet::from([*first, ticket]));
            }
            Queues::One(one) => *one = Some(ticket),
        }
    }

    fn remove(&mut self, ticket: Ticket) {
        match self {
            Queues::Many(all) => drop(all.remove(&ticket)),
            Queues::One(one) => *one = one.filter(|first| *first != ticket),
        }
    }

    /// The first ticket and the last.
    fn ends(&self) -> Option<(Ticket, Ticket)> {
        match self {
            Queues::One(one) => one.map(|first| (first, first)),
            Queues::Many(all) => Some((*all.first()?, *all.last()?)),
        }
    }

    fn range<R>(&self, range: R) -> impl Iterator<Item = Ticket> + use<'_, R>
    where
        R: RangeBounds<Ticket>,
    {
        let (one, many) = match self {
            Queues::One(one) => (one.filter(|first| range.contains(first)), None),
            Queues::Many(all) => (None, Some(all.range(range).copied())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }
}

/// The clients that wait for one key.
#[derive(Default)]
struct Waiters {
    queues: Queues,
    /// The key is on the list of ready keys.
    is_ready: bool,
    /// When the queues must be checked, in milliseconds of each alarm's clock. None: no queue of
    /// any.
    alarms: Option<Box<[Option<i64>; Alarm::ALL.len()]>>,
    readers: Option<BTreeMap<Reading, Readers>>,
}

/// What may come by time at a key, and then wakes clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Alarm {
    DueSeconds,
    DueMilliseconds,
    Permits,
    /// A member that XREADGROUP moves to a stream is due.
    DueToStream,
    /// A pending entry may be claimed: on the clock that nobody can set
    /// ([`Keyspace::lease_ms`](super::Keyspace::lease_ms)). The others are on the wall clock.
    Claim,
}

impl Alarm {
    const ALL: [Alarm; 5] = [
        Alarm::DueSeconds,
        Alarm::DueMilliseconds,
        Alarm::Permits,
        Alarm::DueToStream,
        Alarm::Claim,
    ];
}

/// What clients that wait for [`Wanted::StreamClaim`] read at a key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reading {
    pub group: Box<[u8]>,
    /// The key is a sorted set whose due members, in this unit, move to this stream.
    pub due: Option<(Wanted, Box<[u8]>)>,
}

/// The clients that read the same at a key.
#[derive(Default)]
struct Readers {
    in_order: BTreeSet<Ticket>,
    /// By the idle time from which they claim; `i64::MAX`: they do not.
    by_idle: BTreeSet<(i64, Ticket)>,
}

/// What must be possible again before a key's clients are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    Writes,
    /// Locks are granted: `lock-recovery-delay`.
    Grants,
    /// A key that one of the clients would write is no longer on its way to another server.
    Moves,
}

/// All queues.
#[derive(Default)]
pub struct Waiting {
    /// By database, then by key.
    databases: PerDatabase<HashMap<Box<[u8]>, Waiters>>,
    /// Keys with waiting clients.
    keys: usize,
    ready: Vec<(DbIndex, Box<[u8]>)>,
    /// Milliseconds of the wall clock, and those of leases; database, key, alarm.
    alarms: BTreeSet<(i64, DbIndex, Box<[u8]>, Alarm)>,
    claims: BTreeSet<(i64, DbIndex, Box<[u8]>, Alarm)>,
    last_position: u64,
    /// Keys that were ready while their clients could be given nothing, by what they wait for:
    /// [`Until`].
    postponed: [BTreeSet<(DbIndex, Box<[u8]>)>; 3],
    /// Keys whose first client needs more replicas than have acknowledged an earlier grant.
    held_back: BTreeSet<(DbIndex, Box<[u8]>)>,
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
        let (from, to) = (Ticket::all(Wanted::StreamGroup), Ticket::all(Wanted::Semaphore));
        let awaited = *from.start()..=*to.end();
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
    pub fn next_ticket(&mut self, wanted: Wanted, is_first: bool) -> Ticket {
        self.last_position += 1;
        let before = if is_first { 0 } else { Ticket::ARRIVED };
        Ticket::new(wanted, before + self.last_position)
    }

    fn queues(&self, database: DbIndex, key: &[u8]) -> Option<&Queues> {
        Some(&self.databases.get(database)?.get(key)?.queues)
    }

    /// The first wait in a key's queue, if it is at the head, before the order of arrival.
    pub fn at_head(&self, database: DbIndex, key: &[u8], wanted: Wanted) -> Option<Ticket> {
        self.first(database, key, wanted).filter(|ticket| ticket.is_at_head())
    }

    /// Adds a wait to a key's queue. One that waits for a key twice (`BLPOP k k 0`) is added once.
    pub fn add(&mut self, database: DbIndex, key: &[u8], ticket: Ticket) {
        let waiters = self.databases.entry(database).entry(key.into()).or_default();
        if waiters.queues.is_empty() {
            self.keys += 1;
        }
        waiters.queues.insert(ticket);
    }

    /// Removes a wait from a key's queue.
    pub fn remove(&mut self, database: DbIndex, key: &[u8], ticket: Ticket) {
        let Some(waiters) = self.databases.get_mut(database).and_then(|keys| keys.get_mut(key))
        else {
            return;
        };
        waiters.queues.remove(ticket);
        if waiters.queues.is_empty() {
            let alarms = waiters.alarms.take();
            for (at, alarm) in alarms.iter().flat_map(|alarms| alarms.iter().zip(Alarm::ALL)) {
                if let Some(at) = at {
                    self.alarms_of(alarm).remove(&(*at, database, key.into(), alarm));
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
                let positions = waiters.queues.range(..).map(|ticket| ticket.position());
                (positions.min(), key.clone())
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

    /// The first wait in a key's queue.
    pub fn first(&self, database: DbIndex, key: &[u8], wanted: Wanted) -> Option<Ticket> {
        self.iter(database, key, wanted).next()
    }

    /// The wait after `ticket` in a key's queue.
    pub fn next_after(&self, database: DbIndex, key: &[u8], ticket: Ticket) -> Option<Ticket> {
        let later = (Bound::Excluded(ticket), Bound::Included(ticket.last_alike()));
        self.queues(database, key)?.range(later).next()
    }

    /// Number of waits in a key's queue. O(n) if clients wait there for values of another type too.
    pub fn len(&self, database: DbIndex, key: &[u8], wanted: Wanted) -> usize {
        let Some(queues) = self.queues(database, key) else { return 0 };
        match queues.ends() {
            Some((first, last)) if !first.is_for(wanted) || !last.is_for(wanted) => {
                queues.range(Ticket::all(wanted)).count()
            }
            _ => queues.len(),
        }
    }

    /// The position from 1 that a wait has in a key's queue, or will have. O(n) for any but the
    /// last.
    pub fn place(&self, database: DbIndex, key: &[u8], wanted: Wanted, ticket: Ticket) -> usize {
        let Some(queues) = self.queues(database, key) else { return 1 };
        match queues.ends() {
            Some((_, last)) if last < ticket => self.len(database, key, wanted) + 1,
            Some((_, last)) if last == ticket => self.len(database, key, wanted),
            _ => queues.range(*Ticket::all(wanted).start()..ticket).count() + 1,
        }
    }

    /// The keys that clients wait for in this way: database, key, number of clients. O(n) with n
    /// such keys and clients.
    pub fn queues_for(&self, wanted: Wanted) -> impl Iterator<Item = (DbIndex, &[u8], usize)> {
        let databases = self.databases.numbered();
        let all = databases.flat_map(|(database, keys)| keys.iter().map(move |it| (database, it)));
        all.filter_map(move |(database, (key, waiters))| {
            let count = waiters.queues.range(Ticket::all(wanted)).count();
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
                Queues::One(one) => one.is_some_and(|ticket| ticket.is_for(*wanted)),
                Queues::Many(_) => queues.range(Ticket::all(*wanted)).next().is_some(),
            };
            wanted.iter().any(is_wanted).then_some((database, &**key))
        })
    }

    /// The waits in a key's queue, in order.
    pub fn iter(
        &self,
        database: DbIndex,
        key: &[u8],
        wanted: Wanted,
    ) -> impl Iterator<Item = Ticket> {
        let queues = self.queues(database, key);
        queues.into_iter().flat_map(move |queues| queues.range(Ticket::all(wanted)))
    }

    /// Sets when a key is checked for clients that wait for this, in milliseconds of the alarm's
    /// clock; None: never.
    pub fn set_alarm(&mut self, database: DbIndex, key: &[u8], alarm: Alarm, at_ms: Option<i64>) {
        let Some(waiters) = self.databases.get_mut(database).and_then(|keys| keys.get_mut(key))
        else {
            return;
        };
        let place = match &mut waiters.alarms {
            None if at_ms.is_none() => return,
            alarms => &mut alarms.get_or_insert_default()[alarm as usize],
        };
        if *place == at_ms {
            return;
        }
        let old = std::mem::replace(place, at_ms);
        let alarms = self.alarms_of(alarm);
        if let Some(old) = old {
            alarms.remove(&(old, database, key.into(), alarm));
        }
        if let Some(at) = at_ms {
            alarms.insert((at, database, key.into(), alarm));
        }
    }

    fn alarms_of(&mut self, alarm: Alarm) -> &mut BTreeSet<(i64, DbIndex, Box<[u8]>, Alarm)> {
        if alarm == Alarm::Claim { &mut self.claims } else { &mut self.alarms }
    }

    /// The Unix time in milliseconds of the earliest alarm.
    pub fn next_alarm_ms(&self) -> Option<i64> {
        self.alarms.first().map(|(at, ..)| *at)
    }

    /// The time of the earliest alarm on the clock of leases, in milliseconds.
    pub fn next_claim_ms(&self) -> Option<i64> {
        self.claims.first().map(|(at, ..)| *at)
    }

    /// Marks keys as ready whose alarm is due, by the wall clock and by that of leases.
    pub fn ring(&mut self, unix_ms: i64, lease_ms: i64) {
        for (alarm, now_ms) in [(Alarm::DueToStream, unix_ms), (Alarm::Claim, lease_ms)] {
            while let Some((at, ..)) = self.alarms_of(alarm).first()
                && *at <= now_ms
            {
                let first = self.alarms_of(alarm).pop_first();
                let (_, keyspace, key, alarm) = first.expect("the first was just seen");
                let waiters = self.databases[keyspace].get_mut(&key);
                if let Some(alarms) = waiters.and_then(|waiters| waiters.alarms.as_deref_mut()) {
                    alarms[alarm as usize] = None;
                }
                self.make_ready(keyspace, &key);
            }
        }
    }

    // ---- readers of groups ----------------------------------------------------------------------

    fn readers(&self, database: DbIndex, key: &[u8]) -> Option<&BTreeMap<Reading, Readers>> {
        self.databases.get(database)?.get(key)?.readers.as_ref()
    }

    /// Notes what a client that waits at a key reads there. Call this after [`Self::add`].
    pub fn add_reader(
        &mut self,
        database: DbIndex,
        key: &[u8],
        reading: Reading,
        (idle_ms, ticket): (i64, Ticket),
    ) {
        let waiters = self.databases.get_mut(database).and_then(|keys| keys.get_mut(key));
        if let Some(waiters) = waiters {
            let readers = waiters.readers.get_or_insert_default().entry(reading).or_default();
            readers.in_order.insert(ticket);
            readers.by_idle.insert((idle_ms, ticket));
        }
    }

    /// Forgets what a client read. Call this before [`Self::remove`].
    pub fn remove_reader(
        &mut self,
        database: DbIndex,
        key: &[u8],
        reading: &Reading,
        (idle_ms, ticket): (i64, Ticket),
    ) {
        let waiters = self.databases.get_mut(database).and_then(|keys| keys.get_mut(key));
        if let Some(all) = waiters.and_then(|waiters| waiters.readers.as_mut())
            && let Some(readers) = all.get_mut(reading)
        {
            readers.in_order.remove(&ticket);
            readers.by_idle.remove(&(idle_ms, ticket));
            if readers.in_order.is_empty() {
                all.remove(reading);
            }
        }
    }

    /// What clients read at a key, each with the least idle time from which one of them claims.
    pub fn readings(&self, database: DbIndex, key: &[u8]) -> Vec<(Reading, i64)> {
        let all = self.readers(database, key).into_iter().flatten();
        let with_idle = |(reading, readers): (&Reading, &Readers)| {
            Some((reading.clone(), readers.by_idle.first()?.0))
        };
        all.filter_map(with_idle).collect()
    }

    /// The next reader after this one, in the order of arrival.
    pub fn reader_after(
        &self,
        database: DbIndex,
        key: &[u8],
        reading: &Reading,
        after: Option<Ticket>,
    ) -> Option<Ticket> {
        let readers = self.readers(database, key)?.get(reading)?;
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        readers.in_order.range((from, Bound::Unbounded)).next().copied()
    }

    /// The next reader after this one, in the order of the idle times from which they claim.
    pub fn claimer_after(
        &self,
        database: DbIndex,
        key: &[u8],
        reading: &Reading,
        after: Option<(i64, Ticket)>,
    ) -> Option<(i64, Ticket)> {
        let readers = self.readers(database, key)?.get(reading)?;
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        readers.by_idle.range((from, Bound::Unbounded)).next().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiters_are_found_in_the_order_they_came() {
        let mut waiting = Waiting::default();
        let first_of = |waiting: &Waiting, wanted| waiting.first(DbIndex::ZERO, b"k", wanted);
        let [first, second, third] = [(); 3].map(|()| {
            let ticket = waiting.next_ticket(Wanted::List, false);
            waiting.add(DbIndex::ZERO, b"k", ticket);
            ticket
        });
        assert_eq!(first_of(&waiting, Wanted::List), Some(first));
        let places = [first, second, third]
            .map(|ticket| waiting.place(DbIndex::ZERO, b"k", Wanted::List, ticket));
        assert_eq!(places, [1, 2, 3]);
        waiting.remove(DbIndex::ZERO, b"k", second);
        assert_eq!(waiting.next_after(DbIndex::ZERO, b"k", first), Some(third));
        assert_eq!(waiting.place(DbIndex::ZERO, b"k", Wanted::List, second), 2);
        assert_eq!(waiting.at_head(DbIndex::ZERO, b"k", Wanted::List), None);
        let last = waiting.next_ticket(Wanted::List, false);
        assert_eq!(waiting.place(DbIndex::ZERO, b"k", Wanted::List, last), 3);
        let head = waiting.next_ticket(Wanted::List, true);
        assert_eq!(waiting.place(DbIndex::ZERO, b"k", Wanted::List, head), 1);
        waiting.add(DbIndex::ZERO, b"k", head);
        assert_eq!(first_of(&waiting, Wanted::List), Some(head));
        assert_eq!(waiting.at_head(DbIndex::ZERO, b"k", Wanted::List), Some(head));
        assert_eq!(waiting.next_after(DbIndex::ZERO, b"k", third), None);
        assert_eq!(first_of(&waiting, Wanted::SortedSet), None);
        assert_eq!(waiting.first(DbIndex::new(1), b"k", Wanted::List), None);
    }

    #[test]
    fn one_client_and_many_are_queued_alike() {
        let ticket = |position| Ticket::new(Wanted::Lock, position);
        let mut queues = Queues::default();
        queues.remove(ticket(1));
        assert!(queues.is_empty() && queues.ends().is_none());
        for position in [3, 3, 1, 2] {
            queues.insert(ticket(position));
        }
        let all = |queues: &Queues, wanted| -> Vec<u64> {
            queues.range(Ticket::all(wanted)).map(Ticket::position).collect()
        };
        assert_eq!((queues.len(), queues.ends()), (3, Some((ticket(1), ticket(3)))));
        assert_eq!(all(&queues, Wanted::Lock), [1, 2, 3]);
        for position in [1, 3, 3] {
            queues.remove(ticket(position));
        }
        assert_eq!((queues.len(), queues.ends()), (1, Some((ticket(2), ticket(2)))));
        let mut one = Queues::default();
        one.insert(ticket(2));
        for queues in [&queues, &one] {
            assert_eq!(all(queues, Wanted::Lock), [2]);
            assert_eq!(all(queues, Wanted::List), [0; 0]);
            assert_eq!(queues.range(..ticket(2)).count(), 0);
        }
    }

    #[test]
    fn a_change_makes_only_awaited_keys_ready_and_once() {
        let mut waiting = Waiting::default();
        waiting.note_change(DbIndex::ZERO, b"k");
        assert!(!waiting.has_ready());
        let ticket = waiting.next_ticket(Wanted::Stream, false);
        waiting.add(DbIndex::ZERO, b"k", ticket);
        waiting.note_change(DbIndex::ZERO, b"other");
        waiting.note_change(DbIndex::new(1), b"k");
        assert!(!waiting.has_ready());
        waiting.note_change(DbIndex::ZERO, b"k");
        waiting.note_change(DbIndex::ZERO, b"k");
        assert_eq!(waiting.take_ready(), [(DbIndex::ZERO, Box::from(&b"k"[..]))]);
        waiting.remove(DbIndex::ZERO, b"k", ticket);
        assert!(waiting.is_empty());
    }

    #[test]
    fn where_all_keys_change_those_come_first_that_were_awaited_first() {
        let mut waiting = Waiting::default();
        let keys: Vec<Box<[u8]>> = (0..20u8).map(|number| Box::from([number ^ 0x15])).collect();
        for key in &keys {
            let ticket = waiting.next_ticket(Wanted::List, false);
            waiting.add(DbIndex::ZERO, key, ticket);
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
        let ticket = waiting.next_ticket(Wanted::DueSeconds, false);
        waiting.add(DbIndex::ZERO, b"k", ticket);
        waiting.set_alarm(DbIndex::ZERO, b"k", Alarm::DueSeconds, Some(5000));
        waiting.set_alarm(DbIndex::ZERO, b"k", Alarm::DueSeconds, Some(3000));
        assert_eq!(waiting.next_alarm_ms(), Some(3000));
        waiting.ring(2999, 9000);
        assert!(!waiting.has_ready());
        waiting.ring(3000, 0);
        assert_eq!(waiting.take_ready().len(), 1);
        assert_eq!(waiting.next_alarm_ms(), None);
        waiting.set_alarm(DbIndex::ZERO, b"k", Alarm::DueSeconds, Some(9000));
        waiting.set_alarm(DbIndex::ZERO, b"k", Alarm::Claim, Some(7000));
        assert_eq!(waiting.next_claim_ms(), Some(7000));
        waiting.ring(6999, 7000);
        assert_eq!((waiting.take_ready().len(), waiting.next_claim_ms()), (1, None));
        waiting.set_alarm(DbIndex::ZERO, b"k", Alarm::Claim, Some(7000));
        waiting.remove(DbIndex::ZERO, b"k", ticket);
        assert_eq!((waiting.next_alarm_ms(), waiting.next_claim_ms()), (None, None));
    }
}
