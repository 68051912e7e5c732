//! The index of held locks: which keys are locks, since when, and which client asked for each.
//!
//! The locks themselves are plain values (`types/lock.rs`). The index serves LOCK.LIST, INFO, eviction, which spares locks,
//! and the notice that a lock was lost: each change of an indexed key by anything but a LOCK command is noted here, and
//! `gate/locks.rs` compares the key with the index before the next request. Grants are numbered by [`Fences`].
//!
//! A lock has one holder, or several readers. Until when each of these holds it only the index knows exactly: what its field
//! says is a Unix time, and somebody may set the wall clock.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::ops::Bound;

use smallvec::SmallVec;

use super::Key;
use super::fences::Fences;
pub use super::lock_history::{End, EndReason};
use super::lock_history::{History, LockHistory};
use crate::clock::{Deadline, Now};
use crate::collections::table::ValueRef;
use crate::ids::ClientId;
use crate::types::{Value, lock};

/// The number of grants on their way above which released ones are dropped.
const GRANTED_MAX: usize = 1024;
/// Locks that have become free and that the next clients have not been granted yet: more are not measured.
const FREED_KEPT: usize = 64;

/// The place of a holding: a key, or one of the readers of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At<'a> {
    pub database: usize,
    pub key: &'a [u8],
    /// The reader's owner.
    pub reader: Option<&'a [u8]>,
}

impl<'a> At<'a> {
    /// A lock that one owner has alone.
    pub fn key(database: usize, key: &'a [u8]) -> Self {
        At { database, key, reader: None }
    }

    /// One of a lock's readers.
    pub fn reader(database: usize, key: &'a [u8], owner: &'a [u8]) -> Self {
        At { database, key, reader: Some(owner) }
    }

    pub fn to_place(self) -> Place {
        let At { database, key, reader } = self;
        Place { database, key: key.into(), reader: reader.map(Box::from) }
    }
}

/// An [`At`] that lasts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    database: usize,
    key: Box<[u8]>,
    reader: Option<Box<[u8]>>,
}

impl Place {
    pub fn at(&self) -> At<'_> {
        At { database: self.database, key: &self.key, reader: self.reader.as_deref() }
    }
}

/// The server's knowledge of a held lock, or of one of its readers, besides its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    pub fence: u64,
    /// The client that asked for it; None: it was granted before the start or at the primary.
    pub client: Option<ClientId>,
    /// When it was granted here: boot-time clock, microseconds.
    pub since_us: i64,
    pub renewals: u32,
    /// None: its lease is renewed by requests alone.
    pub session: Option<Box<Session>>,
    /// Nobody holds it: it is withheld for a time (KEEP, `lock-delay`).
    pub is_kept: bool,
    /// Only a reader's.
    pub reading: Option<Box<Reading>>,
}

/// How long a reader holds a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// On the boot-time clock.
    until: Deadline,
    /// Unix milliseconds; None: it was granted before the start or at the primary.
    pub since_ms: Option<i64>,
}

impl Held {
    /// When a reader's lease ends, on the boot-time clock.
    pub fn until(&self) -> Option<Deadline> {
        self.reading.as_ref().map(|reading| reading.until)
    }

    /// The holding of a reader until `until`, as other holdings have none.
    pub fn read_until(self, until: Deadline, since_ms: Option<i64>) -> Self {
        debug_assert!(until.is_on_boot_clock(), "somebody may set the other one");
        Held { reading: Some(Box::new(Reading { until, since_ms })), ..self }
    }

    /// When it ends as a reader's: boot-time clock, microseconds. A lease ends strictly later than its deadline.
    fn ends_us(&self) -> Option<i64> {
        let until = self.until()?;
        Some(until.ms().saturating_add(1).saturating_mul(1000))
    }

    /// Grace and lease of its session, in milliseconds.
    pub fn session_ms(&self) -> Option<(i64, i64)> {
        self.session.as_ref().map(|session| (session.grace_ms, session.lease_ms))
    }
}

/// Those who hold a lock.
enum Holders {
    One(Held),
    /// Readers, by owner. Never empty.
    Readers(BTreeMap<Box<[u8]>, Held>),
}

impl Holders {
    /// The one, or the first of the readers.
    fn any(&self) -> Option<&Held> {
        match self {
            Holders::One(held) => Some(held),
            Holders::Readers(readers) => readers.values().next(),
        }
    }
}

/// A lease that the server renews while the connection of its client shows life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    pub owner: Box<[u8]>,
    /// How long the lease lasts after the connection has closed, and after its last sign of life. Unit: milliseconds.
    pub grace_ms: i64,
    pub lease_ms: i64,
    /// When the server looks for signs of life next: boot-time clock, microseconds; None: never, as no client is bound.
    look_at_us: Option<i64>,
    /// Its connection was to another primary, before this server was promoted.
    pub is_left_behind: bool,
}

impl Session {
    pub fn new(owner: &[u8], grace_ms: i64, lease_ms: i64) -> Self {
        let (owner, look_at_us) = (owner.into(), None);
        Session { owner, grace_ms, lease_ms, look_at_us, is_left_behind: false }
    }
}

/// The data of a lock from a file or the primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    pub fence: u64,
    pub session: Option<Session>,
    pub is_kept: bool,
    /// Those who hold it, if several may.
    pub readers: Vec<(Box<[u8]>, lock::Reader)>,
}

impl Loaded {
    /// A value that is a lock granted by a LOCK command. Costs little for other values.
    pub fn of(value: ValueRef<'_, Value>, now: &Now) -> Option<Self> {
        let fence = lock::fence_of(value, now)?;
        let found = lock::read(value, now).ok()??;
        if found.readers > 0 {
            let readers = lock::readers(value, now);
            return Some(Loaded { fence, session: None, is_kept: false, readers });
        }
        let session = found
            .session
            .map(|(grace_ms, lease_ms)| Session::new(&found.owner, grace_ms, lease_ms));
        let is_kept = *found.owner == *lock::KEEP;
        Some(Loaded { fence, session, is_kept, readers: Vec::new() })
    }
}

/// A grant whose reply is on its way to the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    pub client: ClientId,
    pub fence: u64,
    /// The client's count of sent bytes when the reply has left; None: not known yet.
    pub sent_at: Option<u64>,
}

/// Counts since the start or the last CONFIG RESETSTAT.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockStats {
    pub grants: u64,
    /// Waits that ended without the lock.
    pub timeouts: u64,
    pub expired: u64,
    pub broken: u64,
    /// Leases that ended because the session's connection had gone.
    pub sessions_ended: u64,
    /// Those of owners that did not come back after a promotion.
    pub promoted: u64,
    /// Grants that too few replicas acknowledged in time.
    pub no_replicas: u64,
    pub released: u64,
    /// Keys that were deleted or overwritten.
    pub deleted: u64,
    /// By requests and by sessions.
    pub renewals: u64,
    /// Renewals that were asked for by others than the owner, or too late.
    pub renewals_refused: u64,
    /// Renewals that too few replicas acknowledged in time.
    pub renewals_unconfirmed: u64,
    /// Requests for which there was no memory.
    pub out_of_memory: u64,
    /// Waits that ended with an error: CLIENT UNBLOCK, another role, a slot that left.
    pub unblocked: u64,
}

/// How many holdings were granted when: boot-time clock, microseconds. Most are given back in the turn of the latest grants, which
/// are counted apart.
#[derive(Default)]
struct Since {
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

    fn oldest_us(&self) -> Option<i64> {
        let earlier = self.earlier.first_key_value().map(|(since_us, _)| *since_us);
        earlier.or_else(|| (self.latest > 0).then_some(self.latest_us))
    }
}

/// A grant whose reply is on its way, without an allocation where the key is short.
struct OnItsWay {
    database: usize,
    key: SmallVec<[u8; 32]>,
    reader: Option<Box<[u8]>>,
    granted: Granted,
}

impl OnItsWay {
    fn at(&self) -> At<'_> {
        At { database: self.database, key: &self.key, reader: self.reader.as_deref() }
    }
}

/// Database and key.
type Name = (usize, Box<[u8]>);

/// The held locks of all databases.
#[derive(Default)]
pub struct Locks {
    /// By database, then by key: in order for LOCK.LIST.
    databases: Vec<BTreeMap<Box<[u8]>, Holders>>,
    len: usize,
    /// Those who hold them: each lock's owner or readers.
    holdings: usize,
    since: Since,
    /// Indexed keys that changed, to be compared with the index.
    changed: BTreeSet<(usize, Box<[u8]>)>,
    /// Databases of which any key may have changed.
    all_changed: BTreeSet<usize>,
    /// Keys found expired, whose end is not a deletion.
    expired: BTreeSet<(usize, Box<[u8]>)>,
    /// A LOCK command is changing its key: it keeps the index itself.
    is_own_change: bool,
    pub history: LockHistory,
    /// The owners of locks whose keys have been deleted or overwritten, until [`Self::forget_owners`].
    owners: HashMap<Name, Box<[u8]>>,
    /// When locks that clients wait for became free: boot-time clock, microseconds.
    freed: Vec<(Name, i64)>,
    /// The locks with sessions, by owner; those of a client; and the time of each next check.
    by_owner: HashMap<Box<[u8]>, BTreeSet<Place>>,
    by_client: HashMap<ClientId, BTreeSet<Place>>,
    looks: BTreeSet<(i64, Place)>,
    /// When each reader's lease ends: boot-time clock, microseconds.
    ends_us: BTreeSet<(i64, Place)>,
    /// While changes can be undone: the last fence granted before, and the holdings that were older, as they were before each
    /// change since.
    undoable: Option<(u64, Vec<(Place, Held)>)>,
    /// Grants whose replies have not left yet.
    granted: Vec<OnItsWay>,
    pub fences: Fences,
    pub stats: LockStats,
}

impl Locks {
    /// Number of held locks.
    pub fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether a key is a lock that somebody holds.
    pub fn is_held(&self, database: usize, key: &[u8]) -> bool {
        self.databases.get(database).is_some_and(|locks| locks.contains_key(key))
    }

    /// An indexed holding.
    pub fn get(&self, at: At<'_>) -> Option<&Held> {
        match (self.databases.get(at.database)?.get(at.key)?, at.reader) {
            (Holders::One(held), None) => Some(held),
            (Holders::Readers(readers), Some(owner)) => readers.get(owner),
            _ => None,
        }
    }

    fn get_mut(&mut self, at: At<'_>) -> Option<&mut Held> {
        match (self.databases.get_mut(at.database)?.get_mut(at.key)?, at.reader) {
            (Holders::One(held), None) => Some(held),
            (Holders::Readers(readers), Some(owner)) => readers.get_mut(owner),
            _ => None,
        }
    }

    /// A lock's readers, with their owners.
    pub fn readers<'a>(
        &'a self,
        database: usize,
        key: &[u8],
    ) -> impl ExactSizeIterator<Item = (&'a [u8], &'a Held)> + use<'a> {
        static NONE: BTreeMap<Box<[u8]>, Held> = BTreeMap::new();
        let readers = match self.databases.get(database).and_then(|locks| locks.get(key)) {
            Some(Holders::Readers(readers)) => readers,
            _ => &NONE,
        };
        readers.iter().map(|(owner, held)| (&**owner, held))
    }

    /// All holdings of a lock.
    pub fn holdings(&self, database: usize, key: &[u8]) -> Vec<Place> {
        let readers = self.readers(database, key);
        let readers = readers.map(|(owner, _)| At::reader(database, key, owner).to_place());
        let one = Some(At::key(database, key)).filter(|at| self.get(*at).is_some());
        readers.chain(one.map(At::to_place)).collect()
    }

    /// How often a lock was granted, as far as that is remembered, with those who hold it.
    pub fn grants_of(&self, database: usize, key: Key<'_>) -> u64 {
        let held = match self.databases.get(database).and_then(|locks| locks.get(key.bytes)) {
            Some(Holders::Readers(readers)) => readers.len() as u64,
            Some(Holders::One(held)) => u64::from(!held.is_kept),
            None => 0,
        };
        held + self.history.of(database, key).map_or(0, History::ended)
    }

    /// Counts a renewal by a request.
    pub fn count_renewal(&mut self, at: At<'_>) {
        if let Some(held) = self.get_mut(at) {
            held.renewals = held.renewals.saturating_add(1);
            self.stats.renewals += 1;
        }
    }

    /// Adds a holding. It ends another one in its place; a reader also ends an exclusive holding,
    /// and an exclusive one ends readers.
    pub fn insert(&mut self, at: At<'_>, held: Held) {
        let At { database, key, reader } = at;
        if self.databases.len() <= database {
            self.databases.resize_with(database + 1, BTreeMap::new);
        }
        self.since.add(held.since_us);
        self.holdings += 1;
        if let (None, None) = (reader, &held.session) {
            // No other index has it.
            self.len += 1;
            let before = self.databases[database].insert(key.into(), Holders::One(held));
            if let Some(before) = before {
                self.len -= 1;
                self.forget_all(database, key, before);
            }
            return;
        }
        let (client, ends_us) = (held.client, held.ends_us());
        let session = held.session.as_ref().map(|session| session.owner.clone());
        let unbound = Held { client: client.filter(|_| session.is_none()), ..held };
        let before = match reader {
            None => self.databases[database].insert(key.into(), Holders::One(unbound)),
            Some(owner) => match self.databases[database].get_mut(key) {
                Some(Holders::Readers(readers)) => {
                    let before = readers.insert(owner.into(), unbound);
                    if let Some(before) = before {
                        self.forget(at, &before);
                    }
                    None
                }
                _ => {
                    let readers = BTreeMap::from([(owner.into(), unbound)]);
                    self.len += 1;
                    self.databases[database].insert(key.into(), Holders::Readers(readers))
                }
            },
        };
        self.len += usize::from(reader.is_none());
        if let Some(before) = before {
            self.len -= 1;
            self.forget_all(database, key, before);
        }
        if let Some(owner) = session {
            self.by_owner.entry(owner).or_default().insert(at.to_place());
            self.bind(at, client);
        }
        if let Some(ends_us) = ends_us {
            self.ends_us.insert((ends_us, at.to_place()));
        }
    }

    /// Removes a holding, and the lock with its last.
    pub fn remove(&mut self, at: At<'_>) -> Option<Held> {
        let locks = self.databases.get_mut(at.database)?;
        let (held, is_last) = match at.reader {
            None => match locks.remove_entry(at.key)? {
                (_, Holders::One(held)) => (held, true),
                (key, readers) => {
                    locks.insert(key, readers);
                    return None;
                }
            },
            Some(owner) => {
                let Holders::Readers(readers) = locks.get_mut(at.key)? else { return None };
                let held = readers.remove(owner)?;
                let is_last = readers.is_empty();
                if is_last {
                    locks.remove(at.key);
                }
                (held, is_last)
            }
        };
        self.len -= usize::from(is_last);
        self.forget(at, &held);
        Some(held)
    }

    /// From now on until [`Self::end_undo`] removed locks can be put back.
    pub fn begin_undo(&mut self) {
        self.undoable = Some((self.fences.last(), Vec::new()));
    }

    /// Keeps the removals since [`Self::begin_undo`].
    #[inline]
    pub fn end_undo(&mut self) {
        self.undoable = None;
    }

    /// Puts the holdings back that were changed or removed since [`Self::begin_undo`]. All are compared with their keys then.
    pub fn roll_back(&mut self) {
        let Some((_, before)) = self.undoable.take() else { return };
        // As each was before its first change.
        for (place, held) in before.into_iter().rev() {
            self.insert(place.at(), held);
        }
        for database in 0..self.databases.len() {
            self.note_all(database);
        }
    }

    /// Before a holding is changed or removed: notes how it was, if that can be undone.
    fn note_undo(&mut self, at: At<'_>, held: &Held) {
        if let Some((last, before)) = &mut self.undoable
            && held.fence <= *last
        {
            before.push((at.to_place(), held.clone()));
        }
    }

    /// Removes a holding that is no longer in the index from all indexes that refer to it.
    fn forget(&mut self, at: At<'_>, held: &Held) {
        self.holdings -= 1;
        self.note_undo(at, held);
        self.since.remove(held.since_us);
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

    fn forget_all(&mut self, database: usize, key: &[u8], holders: Holders) {
        match holders {
            Holders::One(held) => self.forget(At::key(database, key), &held),
            Holders::Readers(readers) => {
                for (owner, held) in &readers {
                    self.forget(At::reader(database, key, owner), held);
                }
            }
        }
    }

    // ---- readers -------------------------------------------------------------------------------------------------

    /// Sets when a reader's lease ends, on the boot-time clock.
    pub fn set_until(&mut self, at: At<'_>, until: Deadline) {
        let Some(held) = self.get(at).filter(|held| held.until() != Some(until)).cloned() else {
            return;
        };
        self.note_undo(at, &held);
        if let Some(ends_us) = held.ends_us() {
            self.ends_us.remove(&(ends_us, at.to_place()));
        }
        let Some(held) = self.get_mut(at) else { return };
        let Some(reading) = &mut held.reading else { return };
        reading.until = until;
        if let Some(ends_us) = held.ends_us() {
            self.ends_us.insert((ends_us, at.to_place()));
        }
    }

    /// When the last of a lock's readers ends, on the boot-time clock. O(n).
    pub fn last_until(&self, database: usize, key: &[u8]) -> Option<Deadline> {
        let all = self.readers(database, key).filter_map(|(_, held)| held.until());
        all.max_by_key(|until| until.ms())
    }

    /// When the next reader's lease ends: boot-time clock, microseconds.
    pub fn next_end_us(&self) -> Option<i64> {
        self.ends_us.first().map(|(at_us, _)| *at_us)
    }

    /// A reader whose lease has ended by now.
    pub fn ended_reader(&self, now_us: i64) -> Option<Place> {
        let (at_us, place) = self.ends_us.first()?;
        (*at_us <= now_us).then(|| place.clone())
    }

    /// Notes a reader of a file, or of the primary.
    pub fn note_reader(&mut self, at: At<'_>, reader: lock::Reader, now: &Now) {
        let lock::Reader { fence, until, session } = reader;
        self.fences.learn(fence);
        let until = now.on_boot_clock(now.at(until));
        let known = self.get(at).map(|held| (held.fence, held.session_ms()));
        if known == Some((fence, session)) {
            return self.set_until(at, until);
        }
        let owner = at.reader.unwrap_or_default();
        let session =
            session.map(|(grace_ms, lease_ms)| Box::new(Session::new(owner, grace_ms, lease_ms)));
        let (since_us, reading) = (now.boot_us, None);
        let held =
            Held { fence, client: None, since_us, renewals: 0, session, is_kept: false, reading };
        self.insert(at, held.read_until(until, None));
    }

    // ---- sessions ------------------------------------------------------------------------------------------------

    /// Whether there are locks with sessions.
    #[inline]
    pub fn has_sessions(&self) -> bool {
        !self.by_owner.is_empty()
    }

    /// Sets the client that a lock belongs to. A lock with a session is renewed from now on, or no
    /// longer.
    pub fn bind(&mut self, at: At<'_>, client: Option<ClientId>) {
        let Some(held) = self.get_mut(at) else { return };
        let before = std::mem::replace(&mut held.client, client);
        let Some(session) = &mut held.session else { return };
        session.is_left_behind &= client.is_none();
        if before == client {
            return;
        }
        let place = at.to_place();
        if let Some(before) = before {
            remove_place(&mut self.by_client, &before, &place);
        }
        match client {
            Some(client) => drop(self.by_client.entry(client).or_default().insert(place)),
            None => self.look_at(at, None),
        }
    }

    /// Notes that the connection of a session was to another primary.
    pub fn leave_behind(&mut self, at: At<'_>) {
        if let Some(session) = self.get_mut(at).and_then(|held| held.session.as_mut()) {
            session.is_left_behind = true;
        }
    }

    /// Sets the time of a session's next check: boot-time clock, microseconds.
    pub fn look_at(&mut self, at: At<'_>, at_us: Option<i64>) {
        let session = self.get_mut(at).and_then(|held| held.session.as_mut());
        let Some(session) = session else { return };
        let before = std::mem::replace(&mut session.look_at_us, at_us);
        if let Some(before) = before {
            self.looks.remove(&(before, at.to_place()));
        }
        if let Some(at_us) = at_us {
            self.looks.insert((at_us, at.to_place()));
        }
    }

    /// The time of the next session's check: boot-time clock, microseconds.
    pub fn next_look_us(&self) -> Option<i64> {
        self.looks.first().map(|(at_us, _)| *at_us)
    }

    /// The next session whose check is due, and the time at which it was due.
    pub fn take_look(&mut self, now_us: i64) -> Option<(i64, Place)> {
        let (at_us, _) = self.looks.first()?;
        if *at_us > now_us {
            return None;
        }
        let (at_us, place) = self.looks.pop_first()?;
        let held = self.get_mut(place.at());
        if let Some(session) = held.and_then(|held| held.session.as_mut()) {
            session.look_at_us = None;
        }
        Some((at_us, place))
    }

    /// The locks with sessions of a client.
    pub fn of_client(&self, client: ClientId) -> Vec<Place> {
        self.by_client.get(&client).into_iter().flatten().cloned().collect()
    }

    /// The locks with sessions of an owner.
    pub fn of_owner(&self, owner: &[u8]) -> Vec<Place> {
        self.by_owner.get(owner).into_iter().flatten().cloned().collect()
    }

    /// All locks with sessions.
    pub fn with_sessions(&self) -> Vec<Place> {
        self.by_owner.values().flatten().cloned().collect()
    }

    /// The time of the oldest grant that is still held: boot-time clock, microseconds.
    pub fn oldest_us(&self) -> Option<i64> {
        self.since.oldest_us()
    }

    /// One holding of a lock, if it has any.
    pub fn any(&self, database: usize, key: &[u8]) -> Option<&Held> {
        self.databases.get(database)?.get(key)?.any()
    }

    /// The locks of a database in the order of their keys, from after `after` on; of several readers, one.
    pub fn iter_after<'a>(
        &'a self,
        database: usize,
        after: Option<&[u8]>,
    ) -> impl Iterator<Item = (&'a [u8], &'a Held)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let locks = self.databases.get(database);
        let range = locks.map(|locks| locks.range::<[u8], _>((from, Bound::Unbounded)));
        range.into_iter().flatten().filter_map(|(key, holders)| Some((&**key, holders.any()?)))
    }

    /// The key of a database's next lock in that order.
    pub fn key_after(&self, database: usize, after: Option<&[u8]>) -> Option<Box<[u8]>> {
        self.iter_after(database, after).next().map(|(key, _)| key.into())
    }

    /// Notes a lock of a file, or of the primary: one with a fence.
    pub fn note_loaded(&mut self, database: usize, key: &[u8], loaded: Loaded, now: &Now) {
        let Loaded { fence, session, is_kept, readers } = loaded;
        self.fences.learn(fence);
        if !readers.is_empty() {
            for (owner, reader) in readers {
                self.note_reader(At::reader(database, key, &owner), reader, now);
            }
            return;
        }
        let at = At::key(database, key);
        let is_known = self.get(at).is_some_and(|held| held.fence == fence);
        if !is_known {
            let (session, since_us) = (session.map(Box::new), now.boot_us);
            let (client, renewals, reading) = (None, 0, None);
            let held = Held { fence, client, since_us, renewals, session, is_kept, reading };
            self.insert(at, held);
        }
    }

    // ---- changes -------------------------------------------------------------------------------------------------

    /// Calls `change` as a LOCK command's own: it keeps the index itself.
    pub fn begin_own_change(&mut self) {
        self.is_own_change = true;
    }

    pub fn end_own_change(&mut self) {
        self.is_own_change = false;
    }

    /// Records that a key changed.
    #[inline]
    pub fn note_change(&mut self, database: usize, key: &[u8]) {
        if self.len > 0 && !self.is_own_change {
            self.note_change_of_lock(database, key);
        }
    }

    #[cold]
    fn note_change_of_lock(&mut self, database: usize, key: &[u8]) {
        if self.is_held(database, key) {
            self.changed.insert((database, key.into()));
        }
    }

    /// Records that a key was found expired.
    pub fn note_expired(&mut self, database: usize, key: &[u8]) {
        if self.is_held(database, key) {
            self.expired.insert((database, key.into()));
        }
    }

    /// Records that any key of a database may have changed.
    pub fn note_all(&mut self, database: usize) {
        if self.databases.get(database).is_some_and(|locks| !locks.is_empty()) {
            self.all_changed.insert(database);
        }
    }

    /// Whether indexed keys must be compared with the index.
    #[inline]
    pub fn has_changed(&self) -> bool {
        !self.changed.is_empty() || !self.all_changed.is_empty()
    }

    /// Takes the changed keys, each with whether it was found expired.
    pub fn take_changed(&mut self) -> Vec<(usize, Box<[u8]>, bool)> {
        let mut changed = std::mem::take(&mut self.changed);
        for database in std::mem::take(&mut self.all_changed) {
            let keys = self.databases[database].keys();
            changed.extend(keys.map(|key| (database, key.clone())));
        }
        let expired = std::mem::take(&mut self.expired);
        let with_expired = |place: (usize, Box<[u8]>)| {
            let is_expired = expired.contains(&place);
            (place.0, place.1, is_expired)
        };
        changed.into_iter().map(with_expired).collect()
    }

    // ---- replies on their way ------------------------------------------------------------------------------------

    /// Notes a grant whose reply is on its way to a client.
    pub fn note_granted(&mut self, at: At<'_>, fence: u64, client: ClientId) {
        // A script may take and release locks without end.
        if self.granted.len() >= GRANTED_MAX.max(2 * self.holdings) {
            let mut granted = std::mem::take(&mut self.granted);
            granted.retain(|one| {
                self.get(one.at()).is_some_and(|held| held.fence == one.granted.fence)
            });
            self.granted = granted;
        }
        let granted = Granted { client, fence, sent_at: None };
        let At { database, key, reader } = at;
        let (key, reader) = (SmallVec::from_slice(key), reader.map(Box::from));
        self.granted.push(OnItsWay { database, key, reader, granted });
    }

    /// Whether there are such grants.
    #[inline]
    pub fn has_granted(&self) -> bool {
        !self.granted.is_empty()
    }

    /// Calls `keep` with each of these grants; those for which it returns false are no longer on their way.
    pub fn retain_granted(&mut self, mut keep: impl FnMut(At<'_>, &mut Granted) -> bool) {
        self.granted.retain_mut(|one| {
            let OnItsWay { database, key, reader, granted } = one;
            let at = At { database: *database, key, reader: reader.as_deref() };
            keep(at, granted)
        });
    }

    /// Counts an involuntary end, and remembers it.
    pub fn note_end(&mut self, end: End) {
        match end.reason {
            EndReason::Expired => self.stats.expired += 1,
            EndReason::SessionEnded => self.stats.sessions_ended += 1,
            EndReason::Promoted => self.stats.promoted += 1,
            EndReason::Broken => self.stats.broken += 1,
            EndReason::Deleted | EndReason::Overwritten => self.stats.deleted += 1,
        }
        self.history.note_end(end);
    }

    // ---- owners of locks that are lost ---------------------------------------------------------------------------

    /// Before a value is deleted or overwritten: notes the owner, if it is a lock that somebody is about to lose.
    #[inline]
    pub fn note_owner_of(
        &mut self,
        database: usize,
        key: &[u8],
        value: ValueRef<'_, Value>,
        now: &Now,
    ) {
        if self.len == 0 || self.is_own_change || lock::fence_of(value, now).is_none() {
            return;
        }
        if self.is_held(database, key)
            && let Ok(Some(lock)) = lock::read(value, now)
        {
            self.note_owner(database, key, &lock.owner);
        }
    }

    pub fn note_owner(&mut self, database: usize, key: &[u8], owner: &[u8]) {
        self.owners.insert((database, key.into()), owner.into());
    }

    /// The owner of a lock that is being lost, if it was noted.
    pub fn take_owner(&mut self, database: usize, key: &[u8]) -> Option<Box<[u8]>> {
        if self.owners.is_empty() {
            return None;
        }
        self.owners.remove(&(database, key.into()))
    }

    /// Once all changes have been compared with the index.
    pub fn forget_owners(&mut self) {
        self.owners.clear();
    }

    // ---- hand-over -----------------------------------------------------------------------------------------------

    /// Notes that a lock has become free that a client waits for. `at_us`: boot-time clock.
    pub fn note_freed(&mut self, database: usize, key: &[u8], at_us: i64) {
        self.take_freed(database, key);
        if self.freed.len() < FREED_KEPT {
            self.freed.push(((database, key.into()), at_us));
        }
    }

    /// When a lock that is granted now became free, if that was noted: boot-time clock, microseconds.
    #[inline]
    pub fn take_freed(&mut self, database: usize, key: &[u8]) -> Option<i64> {
        let is_it =
            |((in_database, name), _): &(Name, i64)| *in_database == database && **name == *key;
        let index = self.freed.iter().position(is_it)?;
        Some(self.freed.swap_remove(index).1)
    }
}

/// Removes a place from one of an index's sets, and the set with its last place.
fn remove_place<K: Eq + Hash>(index: &mut HashMap<K, BTreeSet<Place>>, name: &K, place: &Place) {
    if let Some(places) = index.get_mut(name) {
        places.remove(place);
        if places.is_empty() {
            index.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(fence: u64) -> Held {
        Held {
            fence,
            client: None,
            since_us: fence as i64 * 10,
            renewals: 0,
            session: None,
            is_kept: false,
            reading: None,
        }
    }

    #[test]
    fn only_changes_of_indexed_keys_by_others_are_noted() {
        let mut locks = Locks::default();
        locks.note_change(0, b"a");
        locks.insert(At::key(0, b"a"), held(1));
        locks.insert(At::key(2, b"b"), held(2));
        locks.note_change(0, b"b");
        locks.begin_own_change();
        locks.note_change(0, b"a");
        locks.end_own_change();
        assert!(!locks.has_changed());
        locks.note_change(0, b"a");
        locks.note_expired(0, b"a");
        locks.note_all(1);
        locks.note_all(2);
        let changed = [(0, b"a"[..].into(), true), (2, b"b"[..].into(), false)];
        assert_eq!(locks.take_changed(), changed);
        assert!(!locks.has_changed());
    }

    #[test]
    fn the_oldest_grant_is_known_whatever_the_order() {
        let mut since = Since::default();
        let mut model: Vec<i64> = Vec::new();
        let mut number = 7u64;
        for step in 0..2000 {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let pick = (number >> 33) as usize;
            if pick.is_multiple_of(2) || model.is_empty() {
                // Mostly now, at times one that is put back.
                let since_us = step / 3 - if pick.is_multiple_of(5) { step / 7 } else { 0 };
                since.add(since_us);
                model.push(since_us);
            } else {
                since.remove(model.swap_remove(pick / 2 % model.len()));
            }
            assert_eq!(since.oldest_us(), model.iter().min().copied());
        }
    }

    #[test]
    fn the_oldest_lock_is_known_whatever_ends() {
        let mut locks = Locks::default();
        for fence in 1..=3 {
            locks.insert(At::key(0, &[fence as u8]), held(fence));
        }
        assert_eq!((locks.len(), locks.oldest_us()), (3, Some(10)));
        locks.remove(At::key(0, &[1]));
        locks.insert(At::key(0, &[2]), held(7));
        assert_eq!((locks.len(), locks.oldest_us()), (2, Some(30)));
        let keys: Vec<&[u8]> = locks.iter_after(0, Some(&[2])).map(|(key, _)| key).collect();
        assert_eq!(keys, [&[3]]);
        locks.remove(At::key(0, &[2]));
        locks.remove(At::key(0, &[3]));
        assert_eq!((locks.len(), locks.oldest_us()), (0, None));
    }
}
