//! The index of held locks: the keys that are locks, the times of their grants, and the clients
//! that asked for them.
//!
//! The locks themselves are plain values (`types/lock.rs`). The index serves LOCK.LIST, INFO,
//! eviction (which spares locks), and the notice that a lock was lost: each change of an indexed
//! key by anything but a LOCK command is noted here, and `gate/locks.rs` compares the key with the
//! index before the next request. Grants are numbered by [`Fences`].
//!
//! A lock has one holder, or several readers. Only the index has the exact end of each reader's
//! lease: the reader's field has a Unix time, and somebody may set the wall clock.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;

use smallvec::SmallVec;

use super::db_index::DbIndex;
use super::fences::Fences;
pub use super::lock_grants::{Former, Granted, Way};
use super::lock_grants::{OnItsWay, join};
use super::lock_history::LockHistory;
pub use super::lock_history::{End, EndReason};
pub use super::lock_index::{At, Gone, Held, Place, Session};
use super::lock_index::{Holders, Index, remove_place};
use super::{Key, Keyspace};
use crate::clock::{Deadline, Now};
use crate::collections::table::ValueRef;
use crate::ids::ClientId;
use crate::types::{Value, lock};

/// If more grants are on their way, released ones are dropped.
const GRANTED_MAX: usize = 1024;
/// The most locks whose hand-over is measured at a time: they have become free, and the next
/// clients have not been granted them yet.
pub const FREED_KEPT: usize = 64;

/// The data of a lock from a file or the primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    pub fence: u64,
    pub session: Option<Session>,
    pub is_kept: bool,
    /// The readers, if the lock is shared.
    pub readers: Vec<(Box<[u8]>, lock::Reader)>,
}

impl Loaded {
    /// The lock that a value is, if a LOCK command granted it. Costs little for other values.
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
    /// Leases of owners that did not come back after a promotion.
    pub promoted: u64,
    /// Grants that were lost or given up before enough replicas had acknowledged them.
    pub no_replicas: u64,
    pub released: u64,
    /// Keys that were deleted or overwritten.
    pub deleted: u64,
    /// Locks that went on at another server.
    pub moved: u64,
    /// Renewals by requests and by sessions.
    pub renewals: u64,
    /// Renewals that were too late, or not asked for by the owner.
    pub renewals_refused: u64,
    /// Renewals that too few replicas acknowledged in time.
    pub renewals_unconfirmed: u64,
    /// Requests that failed for lack of memory.
    pub out_of_memory: u64,
    /// Waits that ended with an error: CLIENT UNBLOCK, another role, a slot that left.
    pub unblocked: u64,
}

/// Database and key.
type Name = (DbIndex, Box<[u8]>);

/// Why a key has gone that no command has deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vanished {
    Expired,
    /// Another server has it now.
    Moved,
}

/// The state of the index before a change that can be undone.
enum Before {
    Holding(Place, Held),
    Databases(Gone),
}

/// A lock whose holder is to be notified that it is lost.
#[derive(Clone, Debug)]
pub struct LostLock {
    pub client: ClientId,
    pub key: Box<[u8]>,
    pub fence: u64,
    pub reason: EndReason,
}

/// The former state of the index, while a script's changes can be undone.
struct Undoable {
    /// The last fence granted before.
    last: u64,
    before: Vec<Before>,
    /// The holdings whose former state is in `before`; none for most scripts.
    noted: Option<BTreeSet<Place>>,
    /// Ends of holdings, which count once the changes are final.
    ends: Vec<End>,
}

/// The held locks of all databases.
#[derive(Default)]
pub struct Locks {
    index: Index,
    /// Indexed keys that changed, to be compared with the index.
    changed: BTreeSet<(DbIndex, Box<[u8]>)>,
    /// Databases of which any key may have changed.
    all_changed: BTreeSet<DbIndex>,
    /// The changed keys that were not deleted by a command.
    vanished: BTreeMap<Name, Vanished>,
    /// See [`Keyspace::change_lock`].
    is_own_change: bool,
    pub history: LockHistory,
    /// The owners of locks whose keys have been deleted or overwritten, until
    /// [`Self::forget_owners`].
    owners: HashMap<Name, Box<[u8]>>,
    /// When locks that clients wait for became free: boot-time clock, microseconds.
    freed: Vec<(Name, i64)>,
    undoable: Option<Undoable>,
    /// Grants whose replies have not left yet.
    granted: Vec<OnItsWay>,
    pub fences: Fences,
    pub stats: LockStats,
}

impl Locks {
    /// Number of held locks.
    pub fn len(&self) -> usize {
        self.index.len
    }

    /// Number of a database's held locks.
    pub fn len_of(&self, database: DbIndex) -> usize {
        self.index.databases.get(database).map_or(0, BTreeMap::len)
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.index.len == 0
    }

    /// Whether a key is a lock in the index.
    pub fn is_held(&self, database: DbIndex, key: &[u8]) -> bool {
        self.index.databases.get(database).is_some_and(|locks| locks.contains_key(key))
    }

    /// An indexed holding.
    pub fn get(&self, at: At<'_>) -> Option<&Held> {
        match (self.index.databases.get(at.database)?.get(at.key)?, at.reader) {
            (Holders::One(held), None) => Some(held),
            (Holders::Readers(readers), Some(owner)) => readers.get(owner),
            _ => None,
        }
    }

    /// A lock's readers, with their owners.
    pub fn readers<'a>(
        &'a self,
        database: DbIndex,
        key: &[u8],
    ) -> impl ExactSizeIterator<Item = (&'a [u8], &'a Held)> + use<'a> {
        static NONE: BTreeMap<Box<[u8]>, Held> = BTreeMap::new();
        let readers = match self.index.databases.get(database).and_then(|locks| locks.get(key)) {
            Some(Holders::Readers(readers)) => readers,
            _ => &NONE,
        };
        readers.iter().map(|(owner, held)| (&**owner, held))
    }

    /// All holdings of a lock.
    pub fn holdings(&self, database: DbIndex, key: &[u8]) -> Vec<Place> {
        let readers = self.readers(database, key);
        let readers = readers.map(|(owner, _)| At::reader(database, key, owner).to_place());
        let one = Some(At::key(database, key)).filter(|at| self.get(*at).is_some());
        readers.chain(one.map(At::to_place)).collect()
    }

    /// How often a lock was granted, including its present holders, as far as its history is
    /// remembered.
    pub fn grants_of(&self, database: DbIndex, key: Key<'_>) -> u64 {
        let held = match self.index.databases.get(database).and_then(|locks| locks.get(key.bytes)) {
            Some(Holders::Readers(readers)) => readers.len() as u64,
            Some(Holders::One(held)) => u64::from(!held.is_kept),
            None => 0,
        };
        held + self.history.ended(database, key)
    }

    /// Counts a renewal by a request.
    pub fn count_renewal(&mut self, at: At<'_>) {
        if let Some(held) = self.get_mut(at) {
            held.renewals = held.renewals.saturating_add(1);
            self.stats.renewals += 1;
        }
    }

    /// Adds a holding, in place of an earlier one. A reader also ends an exclusive holding, and an
    /// exclusive one ends readers.
    pub fn insert(&mut self, at: At<'_>, held: Held) {
        let At { database, key, reader } = at;
        // Most holdings are found only by their key, so no copy is needed for other parts of the
        // index.
        let linked = (reader.is_some() || held.session.is_some()).then(|| held.clone());
        if linked.is_none() {
            self.index.count(&held);
        }
        let locks = self.index.databases.entry(database);
        let len_before = locks.len();
        let before = match reader {
            None => locks.insert(key.into(), Holders::One(held)),
            Some(owner) => match locks.get_mut(key) {
                Some(Holders::Readers(readers)) => {
                    let before = readers.insert(owner.into(), held);
                    before.map(|before| Holders::Readers([(owner.into(), before)].into()))
                }
                _ => {
                    let readers = BTreeMap::from([(owner.into(), held)]);
                    locks.insert(key.into(), Holders::Readers(readers))
                }
            },
        };
        self.index.len += locks.len() - len_before;
        if let Some(before) = before {
            self.forget_all(database, key, before);
        }
        if let Some(linked) = linked {
            self.index.link(at, &linked);
        }
    }

    /// Removes a holding, and the lock with its last.
    pub fn remove(&mut self, at: At<'_>) -> Option<Held> {
        let locks = self.index.databases.get_mut(at.database)?;
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
        self.index.len -= usize::from(is_last);
        self.forget(at, &held);
        Some(held)
    }

    /// Makes removed locks restorable until [`Self::end_undo`].
    pub fn begin_undo(&mut self) {
        let last = self.fences.last();
        self.history.begin_undo();
        self.undoable = Some(Undoable { last, before: Vec::new(), noted: None, ends: Vec::new() });
    }

    /// Makes the changes since [`Self::begin_undo`] final. Returns the locks whose freeing may take
    /// long.
    #[inline]
    pub fn end_undo(&mut self) -> Vec<Gone> {
        let Some(Undoable { before, ends, .. }) = self.undoable.take() else { return Vec::new() };
        self.history.end_undo();
        ends.into_iter().for_each(|end| self.note_end(end));
        let gone = before.into_iter().filter_map(|before| match before {
            Before::Databases(gone) => Some(gone),
            Before::Holding(..) => None,
        });
        gone.collect()
    }

    /// Restores the holdings that were changed or removed since [`Self::begin_undo`]. All of them
    /// are then compared with their keys.
    pub fn roll_back(&mut self) {
        let Some(Undoable { last, before, .. }) = self.undoable.take() else { return };
        self.history.roll_back();
        // From the latest, so that each holding ends as it was before its first change.
        for before in before.into_iter().rev() {
            match before {
                Before::Holding(place, held) => self.insert(place.at(), held),
                Before::Databases(gone) => {
                    for (at, held) in gone.holdings().filter(|(_, held)| held.fence <= last) {
                        self.insert(at, held.clone());
                    }
                }
            }
        }
        for database in DbIndex::all(self.index.databases.databases()) {
            self.note_all(database);
        }
    }

    /// Notes a holding before it is first changed or removed, if that can be undone. Its client,
    /// its session and its lease are memory of the server, which the undo log of keys lacks.
    fn note_undo(&mut self, at: At<'_>, held: &Held) {
        if let Some(Undoable { last, before, noted, .. }) = &mut self.undoable
            && held.fence <= *last
            && noted.get_or_insert_default().insert(at.to_place())
        {
            before.push(Before::Holding(at.to_place(), held.clone()));
        }
    }

    /// A holding that is about to be changed.
    fn get_mut(&mut self, at: At<'_>) -> Option<&mut Held> {
        if self.undoable.is_some()
            && let Some(held) = self.get(at).cloned()
        {
            self.note_undo(at, &held);
        }
        match (self.index.databases.get_mut(at.database)?.get_mut(at.key)?, at.reader) {
            (Holders::One(held), None) => Some(held),
            (Holders::Readers(readers), Some(owner)) => readers.get_mut(owner),
            _ => None,
        }
    }

    /// Removes a holding that is no longer under its key from all other parts of the index.
    fn forget(&mut self, at: At<'_>, held: &Held) {
        self.note_undo(at, held);
        self.index.unlink(at, held);
    }

    fn forget_all(&mut self, database: DbIndex, key: &[u8], holders: Holders) {
        match holders {
            Holders::One(held) => self.forget(At::key(database, key), &held),
            Holders::Readers(readers) => {
                for (owner, held) in &readers {
                    self.forget(At::reader(database, key, owner), held);
                }
            }
        }
    }

    // ---- readers --------------------------------------------------------------------------------

    /// Sets when a reader's lease ends, on the boot-time clock.
    pub fn set_until(&mut self, at: At<'_>, until: Deadline) {
        let Some(held) = self.get(at).filter(|held| held.until() != Some(until)).cloned() else {
            return;
        };
        self.note_undo(at, &held);
        if let Some(ends_us) = held.ends_us() {
            self.index.ends_us.remove(&(ends_us, at.to_place()));
        }
        let Some(held) = self.get_mut(at) else { return };
        let Some(reading) = &mut held.reading else { return };
        reading.until = until;
        if let Some(ends_us) = held.ends_us() {
            self.index.ends_us.insert((ends_us, at.to_place()));
        }
    }

    /// The end of the reader's lease that ends last, on the boot-time clock. O(n).
    pub fn last_until(&self, database: DbIndex, key: &[u8]) -> Option<Deadline> {
        let all = self.readers(database, key).filter_map(|(_, held)| held.until());
        all.max_by_key(|until| until.ms())
    }

    /// When the next reader's lease ends: boot-time clock, microseconds.
    pub fn next_end_us(&self) -> Option<i64> {
        self.index.ends_us.first().map(|(at_us, _)| *at_us)
    }

    /// A reader whose lease has ended by now.
    pub fn ended_reader(&self, now_us: i64) -> Option<Place> {
        let (at_us, place) = self.index.ends_us.first()?;
        (*at_us <= now_us).then(|| place.clone())
    }

    /// Notes a reader that was loaded from a file or came from another server. True: it is new.
    pub fn note_reader(&mut self, at: At<'_>, reader: lock::Reader, now: &Now) -> bool {
        let lock::Reader { fence, until, session } = reader;
        self.fences.learn(fence);
        let until = now.on_boot_clock(now.at(until));
        let known = self.get(at).map(|held| (held.fence, held.session_ms()));
        if known == Some((fence, session)) {
            self.set_until(at, until);
            return false;
        }
        let owner = at.reader.unwrap_or_default();
        let session =
            session.map(|(grace_ms, lease_ms)| Box::new(Session::new(owner, grace_ms, lease_ms)));
        let held = Held { session, ..Held::new(fence, now.boot_us) };
        self.insert(at, held.read_until(until, None));
        true
    }

    // ---- sessions -------------------------------------------------------------------------------

    /// Whether there are locks with sessions.
    #[inline]
    pub fn has_sessions(&self) -> bool {
        !self.index.by_owner.is_empty()
    }

    /// Sets the client to which a lock belongs. From now on, a lock with a session is renewed for
    /// that client, or no longer.
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
            remove_place(&mut self.index.by_client, &before, &place);
        }
        match client {
            Some(client) => drop(self.index.by_client.entry(client).or_default().insert(place)),
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
            self.index.looks.remove(&(before, at.to_place()));
        }
        if let Some(at_us) = at_us {
            self.index.looks.insert((at_us, at.to_place()));
        }
    }

    /// The time of the next session's check: boot-time clock, microseconds.
    pub fn next_look_us(&self) -> Option<i64> {
        self.index.looks.first().map(|(at_us, _)| *at_us)
    }

    /// The next session whose check is due, and the time at which it was due.
    pub fn take_look(&mut self, now_us: i64) -> Option<(i64, Place)> {
        let (at_us, _) = self.index.looks.first()?;
        if *at_us > now_us {
            return None;
        }
        let (at_us, place) = self.index.looks.pop_first()?;
        let held = self.get_mut(place.at());
        if let Some(session) = held.and_then(|held| held.session.as_mut()) {
            session.look_at_us = None;
        }
        Some((at_us, place))
    }

    /// Whether a client holds locks with sessions.
    pub fn has_sessions_of(&self, client: ClientId) -> bool {
        self.index.by_client.contains_key(&client)
    }

    /// A client's locks with sessions.
    pub fn of_client(&self, client: ClientId) -> Vec<Place> {
        self.index.by_client.get(&client).into_iter().flatten().cloned().collect()
    }

    /// An owner's locks with sessions.
    pub fn of_owner(&self, owner: &[u8]) -> Vec<Place> {
        self.index.by_owner.get(owner).into_iter().flatten().cloned().collect()
    }

    /// All locks with sessions.
    pub fn with_sessions(&self) -> Vec<Place> {
        self.index.by_owner.values().flatten().cloned().collect()
    }

    /// The time of the oldest grant that is still held: boot-time clock, microseconds.
    pub fn oldest_us(&self) -> Option<i64> {
        self.index.since.oldest_us()
    }

    /// One holding of a lock, if it has any.
    pub fn any(&self, database: DbIndex, key: &[u8]) -> Option<&Held> {
        self.index.databases.get(database)?.get(key)?.any()
    }

    /// The locks of a database in the order of their keys, after the key `after`. Of several
    /// readers, only one is returned.
    pub fn iter_after<'a>(
        &'a self,
        database: DbIndex,
        after: Option<&[u8]>,
    ) -> impl Iterator<Item = (&'a [u8], &'a Held)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let locks = self.index.databases.get(database);
        let range = locks.map(|locks| locks.range::<[u8], _>((from, Bound::Unbounded)));
        range.into_iter().flatten().filter_map(|(key, holders)| Some((&**key, holders.any()?)))
    }

    /// The key of a database's next lock in that order.
    pub fn key_after(&self, database: DbIndex, after: Option<&[u8]>) -> Option<Box<[u8]>> {
        self.iter_after(database, after).next().map(|(key, _)| key.into())
    }

    /// Notes a lock that was loaded from a file or came from another server: a value with a fence.
    /// True: it, or a reader of it, is new.
    pub fn note_loaded(
        &mut self,
        database: DbIndex,
        key: &[u8],
        loaded: Loaded,
        now: &Now,
    ) -> bool {
        let Loaded { fence, session, is_kept, readers } = loaded;
        self.fences.learn(fence);
        if !readers.is_empty() {
            let mut is_new = false;
            for (owner, reader) in readers {
                is_new |= self.note_reader(At::reader(database, key, &owner), reader, now);
            }
            return is_new;
        }
        let at = At::key(database, key);
        let is_known = self.get(at).is_some_and(|held| held.fence == fence);
        if !is_known {
            let session = session.map(Box::new);
            self.insert(at, Held { session, is_kept, ..Held::new(fence, now.boot_us) });
        }
        !is_known
    }

    // ---- changes --------------------------------------------------------------------------------

    /// Records that a key changed.
    #[inline]
    pub fn note_change(&mut self, database: DbIndex, key: &[u8]) {
        if self.index.len > 0 && !self.is_own_change {
            self.note_change_of_lock(database, key);
        }
    }

    #[cold]
    fn note_change_of_lock(&mut self, database: DbIndex, key: &[u8]) {
        if self.is_held(database, key) {
            self.changed.insert((database, key.into()));
        }
    }

    /// Records that a key was found expired.
    pub fn note_expired(&mut self, database: DbIndex, key: &[u8]) {
        self.note_vanished(database, key, Vanished::Expired);
    }

    /// Records that a key is about to be deleted because another server has it now.
    #[inline]
    pub fn note_moved(&mut self, database: DbIndex, key: &[u8]) {
        if self.index.len > 0 {
            self.note_vanished(database, key, Vanished::Moved);
        }
    }

    fn note_vanished(&mut self, database: DbIndex, key: &[u8], how: Vanished) {
        if self.is_held(database, key) {
            self.vanished.insert((database, key.into()), how);
        }
    }

    /// Records that any key of a database may have changed.
    pub fn note_all(&mut self, database: DbIndex) {
        if self.index.databases.get(database).is_some_and(|locks| !locks.is_empty()) {
            self.all_changed.insert(database);
        }
    }

    /// Whether indexed keys must be compared with the index.
    #[inline]
    pub fn has_changed(&self) -> bool {
        !self.changed.is_empty() || !self.all_changed.is_empty()
    }

    /// Takes the keys that changed one by one, each with the way in which it has vanished if no
    /// command has deleted it.
    pub fn take_changed(&mut self) -> Vec<(DbIndex, Box<[u8]>, Option<Vanished>)> {
        let changed = std::mem::take(&mut self.changed);
        let vanished = std::mem::take(&mut self.vanished);
        let with_way = |name: Name| {
            let how = vanished.get(&name).copied();
            (name.0, name.1, how)
        };
        changed.into_iter().map(with_way).collect()
    }

    /// Takes the databases of which any key may have changed.
    pub fn take_all_changed(&mut self) -> BTreeSet<DbIndex> {
        std::mem::take(&mut self.all_changed)
    }

    /// Takes all locks of these databases out of the index, but for those whose keys are `left`.
    pub fn take_databases(
        &mut self,
        databases: &BTreeSet<DbIndex>,
        left: &BTreeSet<(DbIndex, Box<[u8]>)>,
    ) -> Gone {
        self.index.take_databases(databases, left)
    }

    /// Drops the locks of [`Self::take_databases`]. Call this when all their clients are notified.
    /// Returns the locks whose freeing may take long.
    pub fn forget_gone(&mut self, gone: Gone) -> Option<Gone> {
        match &mut self.undoable {
            Some(undoable) => undoable.before.push(Before::Databases(gone)),
            None => return Some(gone),
        }
        None
    }

    /// An empty index, for databases that are filled beside the served ones.
    pub fn beside(&self) -> Self {
        Locks { fences: self.fences.clone(), ..Locks::default() }
    }

    /// Replaces the index by that of databases that replace the served ones. Returns the old index,
    /// whose freeing may take long.
    pub fn put_in_place(&mut self, beside: Locks) -> impl Send + 'static {
        self.fences.learn(beside.fences.last());
        (self.changed, self.all_changed, self.vanished) = Default::default();
        std::mem::replace(&mut self.index, beside.index)
    }

    // ---- replies on their way -------------------------------------------------------------------

    /// Notes a grant whose reply is on its way to a client.
    pub fn note_granted(&mut self, at: At<'_>, fence: u64, client: ClientId) {
        self.note_granted_again(at, fence, client, None);
    }

    /// The writer has become this reader: a grant that is on its way is the reader's now. If it
    /// replaced an earlier grant, that one stays as what the reader has.
    pub fn note_downgraded(&mut self, at: At<'_>) {
        let writer = At { reader: None, ..at };
        self.granted.retain(|one| one.at() != writer || one.granted.former.is_none());
        for one in self.granted.iter_mut().filter(|one| one.at() == writer) {
            one.reader = at.reader.map(Box::from);
        }
    }

    /// The same for a grant that replaces another one of the same owner.
    pub fn note_granted_again(
        &mut self,
        at: At<'_>,
        fence: u64,
        client: ClientId,
        former: Option<Box<Former>>,
    ) {
        // A script may take and release locks without end.
        if self.granted.len() >= GRANTED_MAX.max(2 * self.index.holdings) {
            let granted = std::mem::take(&mut self.granted);
            // Of others it is known when they arrive, each at its own time.
            let mut granted = join(granted, |granted| granted.sent_at.is_none());
            granted.retain(|one| {
                self.get(one.at()).is_some_and(|held| held.fence == one.granted.fence)
            });
            self.granted = granted;
        }
        let granted = Granted { client, fence, sent_at: None, former };
        let At { database, key, reader } = at;
        let (key, reader) = (SmallVec::from_slice(key), reader.map(Box::from));
        self.granted.push(OnItsWay { database, key, reader, granted });
    }

    /// Whether any grants are on their way.
    #[inline]
    pub fn has_granted(&self) -> bool {
        !self.granted.is_empty()
    }

    /// Whether a grant that replaced another one of the same owner is on its way to a client.
    pub fn is_granted_again(&self, at: At<'_>, client: ClientId) -> bool {
        let granted = |one: &OnItsWay| one.granted.client == client && one.granted.former.is_some();
        self.granted.iter().any(|one| granted(one) && one.at() == at)
    }

    /// Calls `look` with each grant on its way, and keeps those that go on. Returns the lost ones:
    /// those of the same lock to the same client as one.
    pub fn take_lost(
        &mut self,
        mut look: impl FnMut(&mut Granted) -> Way,
    ) -> Vec<(Place, Granted)> {
        let mut lost = Vec::new();
        self.granted.retain_mut(|one| {
            let way = look(&mut one.granted);
            if way == Way::Lost {
                lost.push(one.clone());
            }
            way == Way::Goes
        });
        let lost = join(lost, |_| true).into_iter();
        lost.map(|one| (one.at().to_place(), one.granted)).collect()
    }

    /// Counts an involuntary end, and remembers it.
    pub fn note_end(&mut self, end: End) {
        if let Some(undoable) = &mut self.undoable {
            return undoable.ends.push(end);
        }
        match end.reason {
            EndReason::Expired => self.stats.expired += 1,
            EndReason::SessionEnded => self.stats.sessions_ended += 1,
            EndReason::Promoted => self.stats.promoted += 1,
            EndReason::Broken => self.stats.broken += 1,
            EndReason::Deleted | EndReason::Overwritten => self.stats.deleted += 1,
            EndReason::Moved => {}
        }
        self.history.note_end(end);
    }

    // ---- owners of locks that are lost ----------------------------------------------------------

    /// Notes the owner of a value before it is deleted or overwritten, if the value is a lock that
    /// is about to be lost.
    #[inline]
    pub fn note_owner_of(
        &mut self,
        database: DbIndex,
        key: &[u8],
        value: ValueRef<'_, Value>,
        now: &Now,
    ) {
        if self.index.len == 0 || self.is_own_change || lock::fence_of(value, now).is_none() {
            return;
        }
        if self.is_held(database, key)
            && let Ok(Some(lock)) = lock::read(value, now)
        {
            self.note_owner(database, key, &lock.owner);
        }
    }

    pub fn note_owner(&mut self, database: DbIndex, key: &[u8], owner: &[u8]) {
        self.owners.insert((database, key.into()), owner.into());
    }

    /// The owner of a lock that is being lost, if it was noted.
    pub fn take_owner(&mut self, database: DbIndex, key: &[u8]) -> Option<Box<[u8]>> {
        if self.owners.is_empty() {
            return None;
        }
        self.owners.remove(&(database, key.into()))
    }

    /// Forgets noted owners. Call this once all changes have been compared with the index.
    pub fn forget_owners(&mut self) {
        self.owners.clear();
    }

    // ---- hand-over ------------------------------------------------------------------------------

    /// Notes that a lock for which a client waits has become free. `at_us`: boot-time clock.
    pub fn note_freed(&mut self, database: DbIndex, key: &[u8], at_us: i64) {
        self.take_freed(database, key);
        if self.freed.len() < FREED_KEPT {
            self.freed.push(((database, key.into()), at_us));
        }
    }

    /// When a lock that is granted now became free, if that was noted: boot-time clock,
    /// microseconds.
    #[inline]
    pub fn take_freed(&mut self, database: DbIndex, key: &[u8]) -> Option<i64> {
        let is_it =
            |((in_database, name), _): &(Name, i64)| *in_database == database && **name == *key;
        let index = self.freed.iter().position(is_it)?;
        Some(self.freed.swap_remove(index).1)
    }
}

impl Keyspace {
    /// Runs a change of a lock's key that is not compared with the index: the caller updates the
    /// index itself.
    #[inline]
    pub fn change_lock<R>(&mut self, change: impl FnOnce(&mut Self) -> R) -> R {
        self.locks.is_own_change = true;
        let result = change(self);
        self.locks.is_own_change = false;
        result
    }
}

#[cfg(test)]
mod tests {
    use super::super::lock_index::Since;
    use super::*;

    fn held(fence: u64) -> Held {
        Held::new(fence, fence as i64 * 10)
    }

    #[test]
    fn only_changes_of_indexed_keys_by_others_are_noted() {
        let mut locks = Locks::default();
        locks.note_change(DbIndex::ZERO, b"a");
        locks.insert(At::key(DbIndex::ZERO, b"a"), held(1));
        locks.insert(At::key(DbIndex::new(2), b"b"), held(2));
        locks.note_change(DbIndex::ZERO, b"b");
        locks.is_own_change = true;
        locks.note_change(DbIndex::ZERO, b"a");
        locks.is_own_change = false;
        assert!(!locks.has_changed());
        locks.note_change(DbIndex::ZERO, b"a");
        locks.note_expired(DbIndex::ZERO, b"a");
        locks.note_all(DbIndex::new(1));
        locks.note_all(DbIndex::new(2));
        let gone = Some(Vanished::Expired);
        assert_eq!(locks.take_changed(), [(DbIndex::ZERO, b"a"[..].into(), gone)]);
        assert_eq!(locks.take_all_changed(), [DbIndex::new(2)].into());
        assert!(!locks.has_changed());
    }

    #[test]
    fn the_oldest_lock_is_known_whatever_ends() {
        let mut locks = Locks::default();
        for fence in 1..=3 {
            locks.insert(At::key(DbIndex::ZERO, &[fence as u8]), held(fence));
        }
        assert_eq!((locks.len(), locks.oldest_us()), (3, Some(10)));
        locks.remove(At::key(DbIndex::ZERO, &[1]));
        locks.insert(At::key(DbIndex::ZERO, &[2]), held(7));
        assert_eq!((locks.len(), locks.oldest_us()), (2, Some(30)));
        let keys: Vec<&[u8]> =
            locks.iter_after(DbIndex::ZERO, Some(&[2])).map(|(key, _)| key).collect();
        assert_eq!(keys, [&[3]]);
        locks.remove(At::key(DbIndex::ZERO, &[2]));
        locks.remove(At::key(DbIndex::ZERO, &[3]));
        assert_eq!((locks.len(), locks.oldest_us()), (0, None));
    }

    impl Index {
        /// All other parts of the index follow from the locks by key.
        fn assert_agrees(&self) {
            let mut anew = Index::default();
            for (database, locks) in self.databases.numbered() {
                for (key, holders) in locks {
                    for (reader, held) in holders.all() {
                        anew.link(At { database, key, reader }, held);
                    }
                }
            }
            assert_eq!(self.len, self.databases.iter().map(BTreeMap::len).sum());
            assert_eq!(self.holdings, anew.holdings);
            let counts = |since: &Since| {
                let mut counts = BTreeMap::new();
                since.counts().for_each(|(us, count)| *counts.entry(us).or_insert(0) += count);
                counts
            };
            assert_eq!(counts(&self.since), counts(&anew.since));
            assert_eq!((&self.by_owner, &self.by_client), (&anew.by_owner, &anew.by_client));
            assert_eq!((&self.looks, &self.ends_us), (&anew.looks, &anew.ends_us));
        }

        fn fences(&self) -> Vec<u64> {
            let locks = self.databases.iter().flat_map(BTreeMap::values);
            locks.flat_map(|holders| holders.all().map(|(_, held)| held.fence)).collect()
        }
    }

    #[test]
    fn all_parts_of_the_index_agree_whatever_happens() {
        let mut random = fastrand::Rng::with_seed(11);
        let now = crate::clock::Clock::System.now();
        let mut locks = Locks::default();
        let mut before_undo = None;
        for _ in 0..20_000 {
            let database = DbIndex::new(random.usize(..3));
            let key = [random.u8(..12)];
            let owner = [b'a' + random.u8(..3)];
            let at = match random.bool() {
                true => At::key(database, &key),
                false => At::reader(database, &key, &owner),
            };
            let client = random.bool().then(|| ClientId { slot: 0, number: random.u64(1..4) });
            match random.u32(..30) {
                0..16 => {
                    let fence = locks.fences.grant();
                    let session = random.bool().then(|| Box::new(Session::new(&owner, 1, 1)));
                    let is_kept = client.is_none() && at.reader.is_none() && random.bool();
                    let mut new = Held { client, session, is_kept, ..held(fence) };
                    if at.reader.is_some() {
                        new = new.read_until(now.on_boot_clock(now.after(random.i64(..9))), None);
                    }
                    locks.insert(at, new);
                }
                16..21 => drop(locks.remove(at)),
                21..23 => locks.bind(at, client),
                23..25 => locks.look_at(at, random.bool().then(|| random.i64(..9))),
                25 => locks.set_until(at, now.on_boot_clock(now.after(random.i64(..9)))),
                26 | 27 => {
                    let databases = DbIndex::all(3).filter(|_| random.bool()).collect();
                    let keys = (0..3)
                        .map(|_| (DbIndex::new(random.usize(..3)), [random.u8(..12)][..].into()));
                    let left: BTreeSet<_> = keys.collect();
                    let gone = locks.take_databases(&databases, &left);
                    let times: usize = gone.since.counts().map(|(_, count)| count).sum();
                    assert_eq!(gone.holdings().filter(|(_, held)| !held.is_kept).count(), times);
                    for (at, _) in gone.holdings() {
                        assert!(databases.contains(&at.database) && locks.get(at).is_none());
                        assert!(!left.contains(&(at.database, at.key.into())));
                    }
                    for database in databases {
                        let is_left = |key: &[u8]| left.contains(&(database, key.into()));
                        assert!(locks.iter_after(database, None).all(|(key, _)| is_left(key)));
                    }
                    drop(locks.forget_gone(gone));
                }
                28 => match before_undo.take() {
                    None => {
                        locks.begin_undo();
                        before_undo = Some((locks.fences.last(), locks.index.fences()));
                    }
                    Some((last, before)) => {
                        locks.roll_back();
                        let mut after = locks.index.fences();
                        after.retain(|fence| *fence <= last);
                        assert_eq!(after, before);
                    }
                },
                _ => {
                    drop(locks.end_undo());
                    before_undo = None;
                }
            }
            locks.index.assert_agrees();
        }
    }
}
