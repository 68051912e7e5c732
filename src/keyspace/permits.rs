//! Permits with sessions: the server renews them while their client's connection shows life.
//!
//! This memory is the server's own. After a restart or on a replica, permits simply end at their
//! deadlines.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::db_index::DbIndex;
use crate::ids::ClientId;
use crate::types::lock;

/// An owner's permits of one semaphore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PermitSession {
    pub database: DbIndex,
    pub key: Box<[u8]>,
    pub owner: Box<[u8]>,
    pub permits: Vec<Box<[u8]>>,
    /// How long the permits last after the last sign of life, and after the connection has closed.
    /// Unit: milliseconds.
    pub lease_ms: i64,
    pub grace_ms: i64,
    /// None: the connection is closed.
    pub client: Option<ClientId>,
}

/// Database, key and owner.
type Name = (DbIndex, Box<[u8]>, Box<[u8]>);

/// All sessions of permits, by number.
#[derive(Default)]
pub struct PermitSessions {
    sessions: BTreeMap<u64, (PermitSession, i64)>,
    by_name: BTreeMap<Name, u64>,
    by_client: HashMap<ClientId, BTreeSet<u64>>,
    /// The time of each session's next check: boot-time clock, microseconds.
    looks: BTreeSet<(i64, u64)>,
    last_number: u64,
    /// While a script's changes can be undone: the former session of each name that has changed,
    /// and the time of its next check.
    undoable: Option<BTreeMap<Name, Option<(PermitSession, i64)>>>,
}

fn name_of(session: &PermitSession) -> Name {
    (session.database, session.key.clone(), session.owner.clone())
}

impl PermitSessions {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Adds a session, in place of the owner's earlier one. The server checks it at `at_us`,
    /// boot-time clock.
    pub fn insert(&mut self, session: PermitSession, at_us: i64) {
        let name = name_of(&session);
        self.note_undo(&name);
        if let Some(&old) = self.by_name.get(&name) {
            self.remove(old);
        }
        self.last_number += 1;
        let number = self.last_number;
        self.by_name.insert(name, number);
        if let Some(client) = session.client {
            self.by_client.entry(client).or_default().insert(number);
        }
        self.looks.insert((at_us, number));
        self.sessions.insert(number, (session, at_us));
    }

    pub fn remove(&mut self, number: u64) -> Option<PermitSession> {
        let name = self.sessions.get(&number).map(|(session, _)| name_of(session))?;
        self.note_undo(&name);
        let (session, at_us) = self.sessions.remove(&number)?;
        self.by_name.remove(&name);
        self.looks.remove(&(at_us, number));
        if let Some(client) = session.client
            && let Some(own) = self.by_client.get_mut(&client)
        {
            own.remove(&number);
            if own.is_empty() {
                self.by_client.remove(&client);
            }
        }
        Some(session)
    }

    /// The time of the next check: boot-time clock, microseconds.
    pub fn next_look_us(&self) -> Option<i64> {
        self.looks.first().map(|(at_us, _)| *at_us)
    }

    /// Takes out the next session whose check is due, and the planned time of the check.
    pub fn take_look(&mut self, now_us: i64) -> Option<(PermitSession, i64)> {
        let (at_us, number) = *self.looks.first()?;
        if at_us > now_us { None } else { Some((self.remove(number)?, at_us)) }
    }

    /// Whether a client has permits with sessions.
    pub fn has_sessions_of(&self, client: ClientId) -> bool {
        self.by_client.contains_key(&client)
    }

    /// Takes out the sessions of a client.
    pub fn take_of_client(&mut self, client: ClientId) -> Vec<PermitSession> {
        let own = self.by_client.get(&client).cloned().unwrap_or_default();
        own.into_iter().filter_map(|number| self.remove(number)).collect()
    }

    /// The keys in a database of which an owner has permits.
    pub fn keys_of(&self, database: DbIndex, owner: &[u8]) -> Vec<Box<[u8]>> {
        let all = self.sessions.values().map(|(session, _)| session);
        let own = all.filter(|one| one.database == database && *one.owner == *owner);
        own.map(|session| session.key.clone()).collect()
    }

    /// The session of an owner and a key.
    pub fn of(&self, database: DbIndex, key: &[u8], owner: &[u8]) -> Option<&PermitSession> {
        let number = self.by_name.get(&(database, key.into(), owner.into()))?;
        self.sessions.get(number).map(|(session, _)| session)
    }

    /// Takes out the session of an owner and a key.
    pub fn take(&mut self, database: DbIndex, key: &[u8], owner: &[u8]) -> Option<PermitSession> {
        let number = *self.by_name.get(&(database, key.into(), owner.into()))?;
        self.remove(number)
    }

    /// Forgets a permit that is no longer held, and with the owner's last one the session.
    pub fn forget_permit(&mut self, database: DbIndex, key: &[u8], permit: &[u8]) {
        if self.is_empty() {
            return;
        }
        let name: Name = (database, key.into(), lock::owner_of_permit(permit).into());
        let Some(&number) = self.by_name.get(&name) else { return };
        self.note_undo(&name);
        let Some((session, _)) = self.sessions.get_mut(&number) else { return };
        session.permits.retain(|own| **own != *permit);
        if session.permits.is_empty() {
            self.remove(number);
        }
    }

    /// Forgets the sessions of a semaphore that is gone.
    pub fn forget_key(&mut self, database: DbIndex, key: &[u8]) {
        let from = (database, key.into(), Box::default());
        let of_key = self.by_name.range(from..);
        let of_key = of_key.take_while(|(name, _)| name.0 == database && *name.1 == *key);
        for number in of_key.map(|(_, number)| *number).collect::<Vec<_>>() {
            self.remove(number);
        }
    }

    /// Forgets the sessions of a database that is emptied. Returns what may take long to free.
    pub fn clear(&mut self, database: DbIndex) -> Option<impl Send + 'static + use<>> {
        let ends = [self.by_name.first_key_value(), self.by_name.last_key_value()];
        if !self.is_empty() && ends.into_iter().flatten().all(|(name, _)| name.0 == database) {
            let last_number = self.last_number;
            return Some(std::mem::replace(self, Self { last_number, ..Self::default() }));
        }
        let from = (database, Box::default(), Box::default());
        let own = self.by_name.range(from..).take_while(|(name, _)| name.0 == database);
        for number in own.map(|(_, number)| *number).collect::<Vec<_>>() {
            self.remove(number);
        }
        None
    }

    /// Makes changes from now on undoable until [`Self::end_undo`].
    #[inline]
    pub fn begin_undo(&mut self) {
        self.undoable = Some(BTreeMap::new());
    }

    /// Makes the changes since [`Self::begin_undo`] final.
    #[inline]
    pub fn end_undo(&mut self) {
        self.undoable = None;
    }

    /// Restores the sessions as they were at [`Self::begin_undo`].
    pub fn roll_back(&mut self) {
        for (name, before) in self.undoable.take().unwrap_or_default() {
            if let Some(&number) = self.by_name.get(&name) {
                self.remove(number);
            }
            if let Some((session, at_us)) = before {
                self.insert(session, at_us);
            }
        }
    }

    /// Notes an owner's session before it is first changed, if that can be undone.
    fn note_undo(&mut self, name: &Name) {
        if let Some(before) = &mut self.undoable
            && !before.contains_key(name)
        {
            let number = self.by_name.get(name);
            let session = number.and_then(|number| self.sessions.get(number).cloned());
            before.insert(name.clone(), session);
        }
    }

    /// Takes out all sessions.
    pub fn take_all(&mut self) -> Vec<PermitSession> {
        let all = std::mem::take(self);
        all.sessions.into_values().map(|(session, _)| session).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(key: &[u8], owner: &[u8], client: u64) -> PermitSession {
        let client = Some(ClientId { slot: 0, number: client });
        let permits = [b"#1#1", b"#1#2"].map(|end| [owner, end].concat().into_boxed_slice());
        let permits = Vec::from(permits);
        let (key, owner) = (key.into(), owner.into());
        PermitSession {
            database: DbIndex::ZERO,
            key,
            owner,
            permits,
            lease_ms: 10,
            grace_ms: 5,
            client,
        }
    }

    #[test]
    fn an_owner_has_one_session_for_a_key() {
        let mut sessions = PermitSessions::default();
        sessions.insert(session(b"k", b"a", 1), 50);
        sessions.insert(session(b"k", b"a", 2), 70);
        sessions.insert(session(b"j", b"a", 2), 60);
        assert_eq!((sessions.len(), sessions.next_look_us()), (2, Some(60)));
        assert!(sessions.take_of_client(ClientId { slot: 0, number: 1 }).is_empty());
        assert_eq!(sessions.keys_of(DbIndex::ZERO, b"a"), [b"k"[..].into(), b"j"[..].into()]);
        assert!(sessions.take_look(59).is_none());
        assert_eq!(sessions.take_look(60).map(|(session, _)| session.key), Some(b"j"[..].into()));
        assert_eq!(sessions.take_of_client(ClientId { slot: 0, number: 2 }).len(), 1);
        assert!(sessions.is_empty() && sessions.next_look_us().is_none());
    }

    #[test]
    fn sessions_go_with_their_permits_keys_and_databases() {
        let mut sessions = PermitSessions::default();
        for (key, owner) in [(b"j", b"a"), (b"k", b"a"), (b"k", b"b"), (b"l", b"a")] {
            sessions.insert(session(key, owner, 1), 50);
        }
        let keys = |sessions: &PermitSessions| sessions.by_name.len();
        sessions.forget_permit(DbIndex::ZERO, b"j", b"a#1#2");
        sessions.forget_permit(DbIndex::ZERO, b"j", b"a#1#2");
        assert_eq!(keys(&sessions), 4);
        sessions.forget_permit(DbIndex::ZERO, b"j", b"a#1#1");
        assert_eq!(keys(&sessions), 3);
        sessions.forget_key(DbIndex::ZERO, b"k");
        assert_eq!(keys(&sessions), 1);
        let elsewhere = PermitSession { database: DbIndex::new(2), ..session(b"j", b"a", 1) };
        sessions.insert(elsewhere, 50);
        assert!(sessions.clear(DbIndex::new(1)).is_none() && keys(&sessions) == 2);
        assert!(sessions.clear(DbIndex::ZERO).is_none() && keys(&sessions) == 1);
        assert!(sessions.clear(DbIndex::new(2)).is_some() && sessions.is_empty());
        assert_eq!((sessions.looks.len(), sessions.by_client.len()), (0, 0));
    }

    #[test]
    fn changes_are_undone_whatever_they_are() {
        let shown = |sessions: &PermitSessions| {
            let all = sessions.sessions.values();
            let mut all: Vec<_> = all
                .map(|(one, at_us)| (name_of(one), one.permits.len(), one.client, *at_us))
                .collect();
            all.sort();
            (all, sessions.looks.len(), sessions.by_client.len(), sessions.by_name.len())
        };
        let mut random = fastrand::Rng::with_seed(3);
        let mut sessions = PermitSessions::default();
        for _ in 0..500 {
            let before = shown(&sessions);
            sessions.begin_undo();
            for _ in 0..random.usize(..6) {
                let (key, owner) = ([b'j' + random.u8(..3)], [b'a' + random.u8(..2)]);
                match random.u32(..7) {
                    0 | 1 | 6 => {
                        let at_us = random.i64(..90);
                        sessions.insert(session(&key, &owner, random.u64(..3)), at_us);
                    }
                    2 => drop(sessions.take(DbIndex::ZERO, &key, &owner)),
                    3 => sessions.forget_key(DbIndex::ZERO, &key),
                    4 => {
                        let permit = [&owner[..], b"#1#", &[b'1' + random.u8(..2)]].concat();
                        sessions.forget_permit(DbIndex::ZERO, &key, &permit);
                    }
                    _ => drop(sessions.take_of_client(ClientId { slot: 0, number: 1 })),
                }
            }
            if random.bool() {
                sessions.roll_back();
                assert_eq!(shown(&sessions), before);
            }
            sessions.end_undo();
        }
        assert!(!sessions.is_empty());
    }
}
