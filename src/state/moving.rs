//! Keys on their way to another server: the MIGRATEs that run beside the clients' requests, and the
//! keys that may not be written until the other server has answered.
//!
//! In Redis nothing else happens during a MIGRATE. Here reads continue; a request that would write
//! a moving key waits.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::mem;
use std::sync::{Arc, Mutex};

use crate::collections::hash_slot::{HashSlot, SlotSet};
use crate::ids::ClientId;
use crate::keyspace::{DbIndex, PerDatabase};
use crate::net::lines::Peer;

/// The arguments of a MIGRATE.
#[derive(Clone, Debug)]
pub struct MoveOrder {
    pub peer: Peer,
    /// The database at the target, as it was given.
    pub target_database: Box<[u8]>,
    pub timeout_us: i64,
    pub copies: bool,
    pub replaces: bool,
    /// Password, or user and password.
    pub credentials: Vec<Box<[u8]>>,
    /// The database on this server.
    pub database: DbIndex,
    pub names: Names,
}

/// The names of keys, in one piece.
#[derive(Clone, Debug, Default)]
pub struct Names {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl<'a> FromIterator<&'a [u8]> for Names {
    fn from_iter<T: IntoIterator<Item = &'a [u8]>>(names: T) -> Self {
        let mut all = Names::default();
        for name in names {
            all.bytes.extend_from_slice(name);
            // A request is shorter than 4 GiB.
            all.ends.push(all.bytes.len() as u32);
        }
        all
    }
}

impl Names {
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    pub fn get(&self, index: usize) -> &[u8] {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        &self.bytes[start..self.ends[index] as usize]
    }
}

/// A key that is being sent, or whose reply is awaited.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    /// The key's index among the names.
    pub name: usize,
    /// The key's count of changes when its value was read.
    pub changes: u64,
    /// The other server has accepted an older value of the key.
    pub replaces: bool,
}

/// The reply that comes next.
#[derive(Clone, Copy, Debug)]
pub enum Awaited {
    /// The reply to AUTH or SELECT.
    Preamble,
    Key(Sent),
}

/// The place where a thread leaves its result.
pub type ThreadResult<T> = Arc<Mutex<Option<T>>>;
/// A payload that a thread makes.
pub type Payload = ThreadResult<Vec<u8>>;

/// A request that is sent in pieces. A large payload is a part of its own, so that it is not
/// copied.
#[derive(Default)]
pub struct Outgoing {
    parts: VecDeque<Vec<u8>>,
    /// Bytes of the first part that were taken.
    taken: usize,
}

impl Outgoing {
    pub fn new(parts: impl Into<VecDeque<Vec<u8>>>) -> Self {
        Outgoing { parts: parts.into(), taken: 0 }
    }

    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Takes the next bytes, at most `max`.
    pub fn take(&mut self, max: usize) -> Vec<u8> {
        let Some(part) = self.parts.front() else { return Vec::new() };
        if self.taken == 0 && part.len() <= max {
            return self.parts.pop_front().unwrap_or_default();
        }
        let end = part.len().min(self.taken + max);
        let piece = part[self.taken..end].to_vec();
        self.taken = end;
        if end == part.len() {
            self.taken = 0;
            self.parts.pop_front();
        }
        piece
    }
}

/// A MIGRATE under way, by the loop's turns or at once.
pub struct Migration {
    pub order: MoveOrder,
    /// The connection. None: it was not made yet.
    pub line: Option<usize>,
    /// The connection was kept from an earlier MIGRATE. If it breaks before the first reply,
    /// another one is made.
    pub is_kept_line: bool,
    /// The preamble was sent on this connection.
    pub has_begun: bool,
    /// The index of the first name that was not sent yet.
    pub next: usize,
    /// Names to be sent again, each with whether the other server has accepted an older value.
    pub again: VecDeque<(usize, bool)>,
    /// The number of keys sent again because they had changed, and whether a key was given up for
    /// that.
    pub repeated: usize,
    pub is_unstable: bool,
    pub awaited: VecDeque<Awaited>,
    /// The key whose payload a thread makes.
    pub encoding: Option<(Sent, Payload)>,
    /// The request that is being sent.
    pub request: Outgoing,
    /// The keys that were deleted here, and whose deletion is not replicated yet.
    pub taken: Vec<usize>,
    /// Whether AUTH or SELECT was refused, and the first error reply of all.
    pub preamble_refused: bool,
    pub refused: Option<Vec<u8>>,
    /// When bytes have last moved: boot-time clock, microseconds.
    pub progress_us: i64,
}

impl Migration {
    pub fn new(order: MoveOrder, now_us: i64) -> Self {
        Migration {
            order,
            line: None,
            is_kept_line: false,
            has_begun: false,
            next: 0,
            again: VecDeque::new(),
            repeated: 0,
            is_unstable: false,
            awaited: VecDeque::new(),
            encoding: None,
            request: Outgoing::default(),
            taken: Vec::new(),
            preamble_refused: false,
            refused: None,
            progress_us: now_us,
        }
    }

    /// When its time is over, unless bytes move: boot-time clock, microseconds.
    pub fn late_us(&self) -> i64 {
        self.progress_us.saturating_add(self.order.timeout_us)
    }

    /// Whether nothing is left to be sent or answered.
    pub fn is_done(&self) -> bool {
        self.next == self.order.names.len()
            && self.again.is_empty()
            && self.awaited.is_empty()
            && self.encoding.is_none()
            && self.request.is_empty()
    }
}

/// A key that may not be written.
#[derive(Default)]
struct Locked {
    /// How often the key is being moved: MIGRATE may name it twice.
    times: usize,
    /// Clients whose requests wait for the key.
    waiting: Vec<ClientId>,
}

/// All keys and slots on their way.
#[derive(Default)]
pub struct Moving {
    /// Those that clients wait for; a client may be gone.
    pub migrations: BTreeMap<u64, (ClientId, Box<Migration>)>,
    last: u64,
    /// Payloads that threads are making.
    pub encoding: usize,
    /// The keys that may not be written, by database.
    locked: PerDatabase<HashMap<Box<[u8]>, Locked>>,
    count: usize,
    /// Slots whose keys may not be written, because another node is about to take them, and the
    /// clients that wait for that.
    paused: Option<SlotSet>,
    held: Vec<ClientId>,
    /// Clients whose key may be written again.
    freed: Vec<ClientId>,
    /// A key or slot may be written again, and waiting commands have not been tried since.
    pub has_freed: bool,
}

impl Moving {
    /// Begins a MIGRATE of a client; returns its number.
    pub fn begin(&mut self, client: ClientId, migration: Migration) -> u64 {
        self.last += 1;
        self.migrations.insert(self.last, (client, Box::new(migration)));
        self.last
    }

    /// Whether any key may not be written.
    #[inline]
    pub fn is_in_the_way(&self) -> bool {
        self.count > 0 || self.paused.is_some()
    }

    /// Whether a key may not be written.
    pub fn holds(&self, database: DbIndex, name: &[u8]) -> bool {
        self.pauses(name) || self.is_locked(database, name)
    }

    /// Whether writes to any slot are paused.
    #[inline]
    pub fn is_pausing(&self) -> bool {
        self.paused.is_some()
    }

    /// Whether writes to a key's slot are paused.
    #[inline]
    pub fn pauses(&self, name: &[u8]) -> bool {
        self.paused.as_ref().is_some_and(|paused| paused.contains(HashSlot::of(name)))
    }

    /// Pauses writes to these slots, and to no others. All waiting clients try again:
    /// [`Self::take_freed`].
    pub fn pause(&mut self, paused: Option<SlotSet>) {
        self.paused = paused;
        self.has_freed = true;
        self.freed.append(&mut self.held);
    }

    pub fn is_locked(&self, database: DbIndex, name: &[u8]) -> bool {
        self.locked.get(database).is_some_and(|names| names.contains_key(name))
    }

    pub fn lock(&mut self, database: DbIndex, name: &[u8]) {
        let names = self.locked.entry(database);
        if !names.contains_key(name) {
            self.count += 1;
            names.insert(name.into(), Locked::default());
        }
        if let Some(locked) = names.get_mut(name) {
            locked.times += 1;
        }
    }

    /// Ends a lock. The requests that waited for it can be tried again: [`Self::take_freed`].
    pub fn unlock(&mut self, database: DbIndex, name: &[u8]) {
        let Some(names) = self.locked.get_mut(database) else { return };
        let Some(locked) = names.get_mut(name) else { return };
        locked.times -= 1;
        if locked.times == 0 {
            self.count -= 1;
            self.has_freed = true;
            self.freed.extend(names.remove(name).into_iter().flat_map(|locked| locked.waiting));
            if self.count == 0 {
                self.locked = PerDatabase::default();
            }
        }
    }

    /// Makes a client wait until this key may be written.
    pub fn wait(&mut self, database: DbIndex, name: &[u8], client: ClientId) {
        if let Some(locked) = self.locked.get_mut(database).and_then(|names| names.get_mut(name)) {
            locked.waiting.push(client);
        } else {
            self.held.push(client);
        }
    }

    /// Clients whose requests can be tried again.
    pub fn take_freed(&mut self) -> Vec<ClientId> {
        mem::take(&mut self.freed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_locked_as_often_as_it_is_under_way() {
        let client = ClientId { slot: 1, number: 7 };
        let mut moving = Moving::default();
        moving.lock(DbIndex::ZERO, b"k");
        moving.lock(DbIndex::ZERO, b"k");
        moving.lock(DbIndex::new(3), b"k");
        moving.wait(DbIndex::ZERO, b"k", client);
        moving.unlock(DbIndex::ZERO, b"k");
        assert!(moving.is_locked(DbIndex::ZERO, b"k") && moving.take_freed().is_empty());
        moving.unlock(DbIndex::ZERO, b"k");
        moving.unlock(DbIndex::ZERO, b"k");
        assert_eq!(
            (moving.is_locked(DbIndex::ZERO, b"k"), moving.take_freed()),
            (false, vec![client])
        );
        assert!(moving.is_locked(DbIndex::new(3), b"k") && moving.is_in_the_way());
        moving.unlock(DbIndex::new(3), b"k");
        assert!(!moving.is_in_the_way() && moving.take_freed().is_empty());
    }

    #[test]
    fn a_request_is_taken_in_pieces() {
        let mut request = Outgoing::new([b"head".to_vec(), b"payload".to_vec(), b"".to_vec()]);
        let mut taken = Vec::new();
        while !request.is_empty() {
            let piece = request.take(3);
            assert!(piece.len() <= 3);
            taken.extend(piece);
        }
        assert_eq!((&taken[..], request.take(3).len()), (&b"headpayload"[..], 0));
    }

    #[test]
    fn names_are_told_apart() {
        let names: Names = [&b"one"[..], b"", b"two"].into_iter().collect();
        assert_eq!(
            (names.get(0), names.get(1), names.get(2)),
            (&b"one"[..], &b""[..], &b"two"[..])
        );
        assert_eq!(names.len(), 3);
    }
}
