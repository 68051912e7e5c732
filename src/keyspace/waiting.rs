//! Who waits for which key: the queues of blocked commands.
//!
//! Every change of a key comes by here ([`Keyspace::changed`](super::Keyspace::changed)). If somebody waits for that key it is
//! put on the list of ready ones, and the server runs the commands that wait for it, in the order they came, before the
//! next request. Commands that wait for different types stand in different queues, for a key has one type at a time; so
//! a change looks at no waiter it cannot serve.
//!
//! Who waits for members of a sorted set to be due is also woken by time: one alarm for each key and unit, on the wall
//! clock, however many wait.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::ids::ClientId;

/// What a blocked command waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Wanted {
    /// An element of a list.
    List,
    /// A member of a sorted set.
    SortedSet,
    /// A member of a sorted set whose score, a Unix time in seconds, has come.
    DueSeconds,
    /// The same in milliseconds.
    DueMilliseconds,
    /// An entry of a stream.
    Stream,
    /// An entry of a stream for a consumer group: the stream's end is an answer too.
    StreamGroup,
}

/// Position in the order of arrival.
pub type Ticket = u64;

/// Who waits for one key.
#[derive(Default)]
struct Waiters {
    queues: BTreeMap<(Wanted, Ticket), ClientId>,
    /// On the list of ready keys.
    is_ready: bool,
    /// Unix milliseconds at which the key's queues of each unit are to be looked at.
    alarms: [Option<i64>; 2],
}

/// All queues.
#[derive(Default)]
pub struct Waiting {
    /// By database, then by key.
    databases: Vec<HashMap<Box<[u8]>, Waiters>>,
    /// Keys somebody waits for.
    keys: usize,
    ready: Vec<(usize, Box<[u8]>)>,
    /// Unix milliseconds, database, key, unit.
    alarms: BTreeSet<(i64, usize, Box<[u8]>, Wanted)>,
    last_ticket: Ticket,
}

fn alarm_index(wanted: Wanted) -> usize {
    usize::from(wanted == Wanted::DueMilliseconds)
}

impl Waiting {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.keys == 0
    }

    /// How many keys somebody waits for.
    pub fn keys(&self) -> usize {
        self.keys
    }

    /// How many of them somebody waits for who is also woken when the key goes. Looks at all: for INFO.
    pub fn keys_awaited_on_end(&self) -> usize {
        let awaited = (Wanted::StreamGroup, 0)..=(Wanted::StreamGroup, Ticket::MAX);
        let all = self.databases.iter().flat_map(HashMap::values);
        all.filter(|waiters| waiters.queues.range(awaited.clone()).next().is_some()).count()
    }

    /// Whether a key somebody waits for has changed.
    #[inline]
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// The next place in the order of arrival.
    pub fn next_ticket(&mut self) -> Ticket {
        self.last_ticket += 1;
        self.last_ticket
    }

    /// Puts a client at the end of a key's queue. A client may wait for a key twice (`BLPOP k k 0`): it stands there once.
    pub fn add(&mut self, db: usize, key: &[u8], wanted: Wanted, ticket: Ticket, id: ClientId) {
        if self.databases.len() <= db {
            self.databases.resize_with(db + 1, HashMap::new);
        }
        let waiters = self.databases[db].entry(key.into()).or_default();
        if waiters.queues.is_empty() {
            self.keys += 1;
        }
        waiters.queues.insert((wanted, ticket), id);
    }

    /// Takes a client out of a key's queue.
    pub fn remove(&mut self, db: usize, key: &[u8], wanted: Wanted, ticket: Ticket) {
        let Some(waiters) = self.databases.get_mut(db).and_then(|keys| keys.get_mut(key)) else {
            return;
        };
        waiters.queues.remove(&(wanted, ticket));
        if waiters.queues.is_empty() {
            for (index, wanted) in [Wanted::DueSeconds, Wanted::DueMilliseconds].iter().enumerate()
            {
                if let Some(at) = waiters.alarms[index] {
                    self.alarms.remove(&(at, db, key.into(), *wanted));
                }
            }
            self.databases[db].remove(key);
            self.keys -= 1;
        }
    }

    /// Says that a key changed.
    #[inline]
    pub fn note_change(&mut self, db: usize, key: &[u8]) {
        if !self.is_empty() {
            self.make_ready(db, key);
        }
    }

    #[cold]
    fn make_ready(&mut self, db: usize, key: &[u8]) {
        if let Some(waiters) = self.databases.get_mut(db).and_then(|keys| keys.get_mut(key))
            && !waiters.is_ready
        {
            waiters.is_ready = true;
            self.ready.push((db, key.into()));
        }
    }

    /// Says that any key of a database may have changed.
    pub fn note_all(&mut self, db: usize) {
        let Some(keys) = self.databases.get_mut(db) else { return };
        let waiting = keys.iter_mut().filter(|(_, waiters)| !waiters.is_ready);
        let mut ready: Vec<_> = waiting
            .map(|(key, waiters)| {
                waiters.is_ready = true;
                (waiters.queues.keys().map(|(_, ticket)| *ticket).min(), key.clone())
            })
            .collect();
        ready.sort_unstable();
        self.ready.extend(ready.into_iter().map(|(_, key)| (db, key)));
    }

    /// The keys that changed, in the order they did. Further changes of them count anew.
    pub fn take_ready(&mut self) -> Vec<(usize, Box<[u8]>)> {
        let ready = std::mem::take(&mut self.ready);
        for (db, key) in &ready {
            if let Some(waiters) = self.databases.get_mut(*db).and_then(|keys| keys.get_mut(key)) {
                waiters.is_ready = false;
            }
        }
        ready
    }

    /// The first in a key's queue who came after `ticket`.
    pub fn next_after(
        &self,
        db: usize,
        key: &[u8],
        wanted: Wanted,
        ticket: Ticket,
    ) -> Option<(Ticket, ClientId)> {
        let waiters = self.databases.get(db)?.get(key)?;
        let range = (wanted, ticket + 1)..=(wanted, Ticket::MAX);
        let (&(_, ticket), &id) = waiters.queues.range(range).next()?;
        Some((ticket, id))
    }

    /// Has a key looked at for who waits in this unit at a Unix time in milliseconds; None: not by time.
    pub fn set_alarm(&mut self, db: usize, key: &[u8], wanted: Wanted, at_ms: Option<i64>) {
        let Some(waiters) = self.databases.get_mut(db).and_then(|keys| keys.get_mut(key)) else {
            return;
        };
        let alarm = &mut waiters.alarms[alarm_index(wanted)];
        if *alarm == at_ms {
            return;
        }
        if let Some(old) = std::mem::replace(alarm, at_ms) {
            self.alarms.remove(&(old, db, key.into(), wanted));
        }
        if let Some(at) = at_ms {
            self.alarms.insert((at, db, key.into(), wanted));
        }
    }

    /// The Unix time in milliseconds of the earliest alarm.
    pub fn next_alarm_ms(&self) -> Option<i64> {
        self.alarms.first().map(|(at, ..)| *at)
    }

    /// Makes the keys ready whose alarm is at or before a Unix time in milliseconds.
    pub fn ring(&mut self, now_ms: i64) {
        while let Some((at, ..)) = self.alarms.first()
            && *at <= now_ms
        {
            let (_, db, key, wanted) = self.alarms.pop_first().expect("the first was just seen");
            if let Some(waiters) = self.databases[db].get_mut(&key) {
                waiters.alarms[alarm_index(wanted)] = None;
            }
            self.make_ready(db, &key);
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
        for number in 1..=3 {
            let ticket = waiting.next_ticket();
            waiting.add(0, b"k", Wanted::List, ticket, client(number));
        }
        assert_eq!(waiting.next_after(0, b"k", Wanted::List, 0), Some((1, client(1))));
        waiting.remove(0, b"k", Wanted::List, 2);
        assert_eq!(waiting.next_after(0, b"k", Wanted::List, 1), Some((3, client(3))));
        assert_eq!(waiting.next_after(0, b"k", Wanted::SortedSet, 0), None);
        assert_eq!(waiting.next_after(1, b"k", Wanted::List, 0), None);
    }

    #[test]
    fn a_change_makes_only_awaited_keys_ready_and_once() {
        let mut waiting = Waiting::default();
        waiting.note_change(0, b"k");
        assert!(!waiting.has_ready());
        waiting.add(0, b"k", Wanted::Stream, 1, client(1));
        waiting.note_change(0, b"other");
        waiting.note_change(1, b"k");
        assert!(!waiting.has_ready());
        waiting.note_change(0, b"k");
        waiting.note_change(0, b"k");
        assert_eq!(waiting.take_ready(), [(0, Box::from(&b"k"[..]))]);
        waiting.remove(0, b"k", Wanted::Stream, 1);
        assert!(waiting.is_empty());
    }

    #[test]
    fn where_all_keys_change_those_come_first_that_were_awaited_first() {
        let mut waiting = Waiting::default();
        let keys: Vec<Box<[u8]>> = (0..20u8).map(|number| Box::from([number ^ 0x15])).collect();
        for key in &keys {
            let ticket = waiting.next_ticket();
            waiting.add(0, key, Wanted::List, ticket, client(ticket));
        }
        waiting.note_change(0, &keys[7]);
        waiting.note_all(0);
        let ready: Vec<Box<[u8]>> = waiting.take_ready().into_iter().map(|(_, key)| key).collect();
        assert_eq!(ready[0], keys[7]);
        assert_eq!(ready[1..], [&keys[..7], &keys[8..]].concat());
    }

    #[test]
    fn an_alarm_rings_once_and_goes_with_its_last_waiter() {
        let mut waiting = Waiting::default();
        waiting.add(0, b"k", Wanted::DueSeconds, 1, client(1));
        waiting.set_alarm(0, b"k", Wanted::DueSeconds, Some(5000));
        waiting.set_alarm(0, b"k", Wanted::DueSeconds, Some(3000));
        assert_eq!(waiting.next_alarm_ms(), Some(3000));
        waiting.ring(2999);
        assert!(!waiting.has_ready());
        waiting.ring(3000);
        assert_eq!(waiting.take_ready().len(), 1);
        assert_eq!(waiting.next_alarm_ms(), None);
        waiting.set_alarm(0, b"k", Wanted::DueSeconds, Some(9000));
        waiting.remove(0, b"k", Wanted::DueSeconds, 1);
        assert_eq!(waiting.next_alarm_ms(), None);
    }
}
