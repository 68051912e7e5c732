//! The facts about held locks besides their values, and the indexes that find each lock: by key, by
//! session, and by time.
//!
//! [`Locks`](super::locks::Locks) decides which locks are added and removed; here all parts of the
//! index agree. The locks of a whole database are taken out at once ([`Index::take_databases`]).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;

use super::db_index::{DbIndex, PerDatabase};
use crate::clock::Deadline;
use crate::collections::sparse::Sparse;
use crate::ids::ClientId;

/// The place of a holding: a key, or one of the readers of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At<'a> {
    pub database: DbIndex,
    pub key: &'a [u8],
    /// The reader's owner.
    pub reader: Option<&'a [u8]>,
}

impl<'a> At<'a> {
    /// The place of an exclusive lock.
    pub fn key(database: DbIndex, key: &'a [u8]) -> Self {
        At { database, key, reader: None }
    }

    /// The place of one of a lock's readers.
    pub fn reader(database: DbIndex, key: &'a [u8], owner: &'a [u8]) -> Self {
        At { database, key, reader: Some(owner) }
    }

    pub fn to_place(self) -> Place {
        let At { database, key, reader } = self;
        Place { database, key: key.into(), reader: reader.map(Box::from) }
    }
}

/// An owned [`At`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    database: DbIndex,
    key: Box<[u8]>,
    reader: Option<Box<[u8]>>,
}

impl Place {
    pub fn at(&self) -> At<'_> {
        At { database: self.database, key: &self.key, reader: self.reader.as_deref() }
    }
}

/// The server's facts about a held lock, or about one of its readers, besides the value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    pub fence: u64,
    /// The client that asked for the lock; None: the lock was granted before the start or at the
    /// primary.
    pub client: Option<ClientId>,
    /// When the lock was granted here: boot-time clock, microseconds.
    pub since_us: i64,
    pub renewals: u32,
    /// None: only requests renew the lease.
    pub session: Option<Box<Session>>,
    /// No owner holds the lock: it is withheld for a time (KEEP, `lock-delay`).
    pub is_kept: bool,
    /// Only for a reader.
    pub reading: Option<Box<Reading>>,
}

/// The time for which a reader holds a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The end of the lease, on the boot-time clock.
    pub(super) until: Deadline,
    /// The grant in Unix milliseconds; None: it was before the start or at the primary.
    pub since_ms: Option<i64>,
}

impl Held {
    /// A holding without a client and a session. `since_us`: boot-time clock.
    pub fn new(fence: u64, since_us: i64) -> Self {
        let (client, renewals, session) = (None, 0, None);
        Held { fence, client, since_us, renewals, session, is_kept: false, reading: None }
    }

    /// When a reader's lease ends, on the boot-time clock.
    pub fn until(&self) -> Option<Deadline> {
        self.reading.as_ref().map(|reading| reading.until)
    }

    /// Makes this the holding of a reader until `until`. Other holdings have no such time.
    pub fn read_until(self, until: Deadline, since_ms: Option<i64>) -> Self {
        debug_assert!(until.is_on_boot_clock(), "somebody may set the other one");
        Held { reading: Some(Box::new(Reading { until, since_ms })), ..self }
    }

    /// When a reader's lease ends: boot-time clock, microseconds. A lease ends strictly later than
    /// its deadline.
    pub(super) fn ends_us(&self) -> Option<i64> {
        let until = self.until()?;
        Some(until.ms().saturating_add(1).saturating_mul(1000))
    }

    /// Grace and lease of its session, in milliseconds.
    pub fn session_ms(&self) -> Option<(i64, i64)> {
        self.session.as_ref().map(|session| (session.grace_ms, session.lease_ms))
    }
}

/// The holders of a lock.
pub(super) enum Holders {
    One(Held),
    /// Readers, by owner. Never empty.
    Readers(BTreeMap<Box<[u8]>, Held>),
}

impl Holders {
    /// The exclusive holder, or the first of the readers.
    pub(super) fn any(&self) -> Option<&Held> {
        match self {
            Holders::One(held) => Some(held),
            Holders::Readers(readers) => readers.values().next(),
        }
    }

    /// All holders, each with its owner if it is a reader.
    pub(super) fn all(&self) -> impl DoubleEndedIterator<Item = (Option<&[u8]>, &Held)> {
        let (one, readers) = match self {
            Holders::One(held) => (Some((None, held)), None),
            Holders::Readers(readers) => (None, Some(readers)),
        };
        let readers = readers.into_iter().flatten();
        one.into_iter().chain(readers.map(|(owner, held)| (Some(&**owner), held)))
    }
}

/// A lease that the server renews while the connection of its client shows life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    pub owner: Box<[u8]>,
    /// How long the lease lasts after the connection has closed, and after its last sign of life.
    /// Unit: milliseconds.
    pub grace_ms: i64,
    pub lease_ms: i64,
    /// When the server looks for signs of life next: boot-time clock, microseconds; None: never, as
    /// no client is bound.
    pub(super) look_at_us: Option<i64>,
    /// Its connection was to another primary, before this server was promoted.
    pub is_left_behind: bool,
}

impl Session {
    pub fn new(owner: &[u8], grace_ms: i64, lease_ms: i64) -> Self {
        let (owner, look_at_us) = (owner.into(), None);
        Session { owner, grace_ms, lease_ms, look_at_us, is_left_behind: false }
    }
}

/// The number of holdings granted at each time: boot-time clock, microseconds. Most holdings are
/// released in the turn of the latest grants, so these are counted apart.
#[derive(Default)]
pub struct Since {
    earlier: BTreeMap<i64, usize>,
    latest_us: i64,
    latest: usize,
}

impl Since {
    fn add(&mut self, since_us: i64) {
        if since_us > self.latest_us {
            if self.latest > 0 {
                *self.earlier.entry(self.latest_us).or_default() += self.latest;
            }
            (self.latest_us, self.latest) = (since_us, 0);
        }
        match since_us == self.latest_us {
            true => self.latest += 1,
            false => *self.earlier.entry(since_us).or_default() += 1,
        }
    }

    fn remove(&mut self, since_us: i64) {
        if since_us == self.latest_us {
            self.latest -= 1;
        } else if let Some(count) = self.earlier.get_mut(&since_us) {
            *count -= 1;
            if *count == 0 {
                self.earlier.remove(&since_us);
            }
        }
    }

    pub fn oldest_us(&self) -> Option<i64> {
        let earlier = self.earlier.first_key_value().map(|(since_us, _)| *since_us);
        earlier.or_else(|| (self.latest > 0).then_some(self.latest_us))
    }

    /// Each time with the number of holdings granted then.
    pub fn counts(&self) -> impl Iterator<Item = (i64, usize)> {
        let earlier = self.earlier.iter().map(|(since_us, count)| (*since_us, *count));
        earlier.chain((self.latest > 0).then_some((self.latest_us, self.latest)))
    }
}

/// Locks in the order of their keys, for LOCK.LIST.
type ByKey = BTreeMap<Box<[u8]>, Holders>;

/// The held locks of all databases.
#[derive(Default)]
pub(super) struct Index {
    pub(super) databases: PerDatabase<ByKey>,
    pub(super) len: usize,
    /// The number of holdings: each lock's owner or readers.
    pub(super) holdings: usize,
    /// When each was granted, without locks that are only withheld.
    pub(super) since: Since,
    /// The locks with sessions: by owner, by client, and by the time of the next check.
    pub(super) by_owner: HashMap<Box<[u8]>, BTreeSet<Place>>,
    pub(super) by_client: HashMap<ClientId, BTreeSet<Place>>,
    pub(super) looks: BTreeSet<(i64, Place)>,
    /// When each reader's lease ends: boot-time clock, microseconds.
    pub(super) ends_us: BTreeSet<(i64, Place)>,
}

impl Index {
    /// Adds a holding, which is among its key's holdings already, to the other parts of the index.
    pub(super) fn link(&mut self, at: At<'_>, held: &Held) {
        self.count(held);
        if let Some(ends_us) = held.ends_us() {
            self.ends_us.insert((ends_us, at.to_place()));
        }
        let Some(session) = &held.session else { return };
        let place = at.to_place();
        if let Some(client) = held.client {
            self.by_client.entry(client).or_default().insert(place.clone());
        }
        if let Some(at_us) = session.look_at_us {
            self.looks.insert((at_us, place.clone()));
        }
        self.by_owner.entry(session.owner.clone()).or_default().insert(place);
    }

    /// The same for a holding that has neither a session nor a reader's end.
    #[inline]
    pub(super) fn count(&mut self, held: &Held) {
        self.holdings += 1;
        if !held.is_kept {
            self.since.add(held.since_us);
        }
    }

    /// Undoes [`Self::link`] for a holding that is no longer among its key's.
    pub(super) fn unlink(&mut self, at: At<'_>, held: &Held) {
        self.holdings -= 1;
        if !held.is_kept {
            self.since.remove(held.since_us);
        }
        if let Some(ends_us) = held.ends_us() {
            self.ends_us.remove(&(ends_us, at.to_place()));
        }
        let Some(session) = &held.session else { return };
        let place = at.to_place();
        remove_place(&mut self.by_owner, &session.owner, &place);
        if let Some(client) = held.client {
            remove_place(&mut self.by_client, &client, &place);
        }
        if let Some(at_us) = session.look_at_us {
            self.looks.remove(&(at_us, place));
        }
    }

    /// Takes all locks of some databases out, except those of the keys `left`. If no other locks
    /// remain, the whole index is dropped without visiting each lock.
    pub(super) fn take_databases(
        &mut self,
        databases: &BTreeSet<DbIndex>,
        left: &BTreeSet<(DbIndex, Box<[u8]>)>,
    ) -> Gone {
        let mut stay = Vec::new();
        for (database, key) in left {
            let found = self.databases.get_mut(*database).and_then(|locks| locks.remove_entry(key));
            stay.extend(found.map(|(key, holders)| (*database, key, holders)));
        }
        let mut gone = Gone::default();
        for &database in databases {
            if let Some(locks) = self.databases.get_mut(database) {
                gone.databases.push((database, std::mem::take(locks)));
            }
        }
        if self.databases.iter().all(BTreeMap::is_empty) {
            // The locks that stay do not belong to those that are gone.
            for (database, key, holders) in &stay {
                for (reader, held) in holders.all() {
                    self.unlink(At { database: *database, key, reader }, held);
                }
            }
            gone.rest = std::mem::take(self);
            gone.since = std::mem::take(&mut gone.rest.since);
            for (database, key, holders) in &stay {
                for (reader, held) in holders.all() {
                    self.link(At { database: *database, key, reader }, held);
                }
            }
        } else {
            for (database, locks) in &gone.databases {
                for (key, holders) in locks {
                    for (reader, held) in holders.all() {
                        self.unlink(At { database: *database, key, reader }, held);
                        if !held.is_kept {
                            gone.since.add(held.since_us);
                        }
                    }
                }
            }
        }
        for (database, key, holders) in stay {
            self.databases.entry(database).insert(key, holders);
        }
        self.len = self.databases.iter().map(BTreeMap::len).sum();
        gone
    }
}

/// The locks of whole databases that were taken out of the index.
#[derive(Default)]
pub struct Gone {
    pub(super) databases: Vec<(DbIndex, ByKey)>,
    /// When they were granted, without locks that were only withheld.
    pub since: Since,
    /// The rest of the index, to be freed.
    rest: Index,
}

impl Gone {
    /// All holdings, in the order of databases and keys.
    pub fn holdings(&self) -> impl DoubleEndedIterator<Item = (At<'_>, &Held)> {
        let locks = self.databases.iter().flat_map(|(database, locks)| {
            locks.iter().map(|(key, holders)| (*database, key, holders))
        });
        locks.flat_map(|(database, key, holders)| {
            let all = holders.all();
            all.map(move |(reader, held)| (At { database, key, reader }, held))
        })
    }

    /// The holdings of a key.
    pub fn of_key<'a>(
        &'a self,
        database: DbIndex,
        key: &[u8],
    ) -> impl Iterator<Item = (Option<&'a [u8]>, &'a Held)> + use<'a> {
        let mut its = self.databases.iter().filter(move |(its, _)| *its == database);
        its.find_map(|(_, locks)| locks.get(key)).into_iter().flat_map(Holders::all)
    }

    /// Whether a key was one of these locks.
    pub fn contains(&self, database: DbIndex, key: &[u8]) -> bool {
        self.databases.iter().any(|(its, locks)| *its == database && locks.contains_key(key))
    }

    /// The locks' databases and keys.
    pub fn keys(&self) -> impl Iterator<Item = (DbIndex, &[u8])> {
        self.databases
            .iter()
            .flat_map(|(database, locks)| locks.keys().map(move |key| (*database, &**key)))
    }

    /// A lock's database and key, if one of them has this key.
    pub fn find(&self, key: &[u8]) -> Option<(DbIndex, &[u8])> {
        for (database, locks) in &self.databases {
            if let Some((key, _)) = locks.get_key_value(key) {
                return Some((*database, key));
            }
        }
        None
    }
}

/// Removes a place from one of an index's sets, and the set with its last place.
pub(super) fn remove_place<K: Eq + Hash>(
    index: &mut HashMap<K, BTreeSet<Place>>,
    name: &K,
    place: &Place,
) {
    if let Some(places) = index.get_mut(name) {
        places.remove(place);
        if places.is_empty() {
            index.remove(name);
            index.shrink_if_sparse();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_grant_is_known_whatever_the_order() {
        let mut since = Since::default();
        let mut model: Vec<i64> = Vec::new();
        let mut number = 7u64;
        for step in 0..2000 {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let pick = (number >> 33) as usize;
            if pick.is_multiple_of(2) || model.is_empty() {
                // Mostly the present time, sometimes that of a holding that is put back.
                let since_us = step / 3 - if pick.is_multiple_of(5) { step / 7 } else { 0 };
                since.add(since_us);
                model.push(since_us);
            } else {
                since.remove(model.swap_remove(pick / 2 % model.len()));
            }
            assert_eq!(since.oldest_us(), model.iter().min().copied());
        }
    }
}
