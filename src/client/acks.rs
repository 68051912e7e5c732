//! Acknowledgements by replicas for which clients wait: of earlier writes (WAIT, WAITAOF), and of
//! grants of locks.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{ClientId, CommandId};
use crate::keyspace::DbIndex;
use crate::keyspace::locks::Former;
use crate::persist::aof::log::LogOffset;

/// The number of replicas that must acknowledge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replicas {
    /// A fixed number of replicas.
    Count(i64),
    /// All that could be promoted: the connected ones, but at least `wait-all-replicas`.
    All,
}

/// The offset of writes that no replica will ever acknowledge.
pub const LOST: u64 = u64::MAX;

/// The wait of WAIT and WAITAOF for replicas that acknowledge an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcksAwaited {
    /// The replication offset; [`LOST`] if a full synchronisation has discarded the writes.
    pub offset: u64,
    pub replicas: Replicas,
    /// For WAITAOF: replicas must have the offset on disk.
    pub on_disk: Option<OnDisk>,
    /// Boot-time clock, microseconds; None: no timeout.
    pub deadline_us: Option<i64>,
}

/// The part of WAITAOF that concerns this server's own log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnDisk {
    /// The log offset to be on disk.
    pub logged: LogOffset,
    /// Whether to wait for this server's disk.
    pub here_too: bool,
}

/// The demand of a LOCK command: replicas must have acknowledged its effects before the reply
/// leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AcksAsked {
    /// The number of replicas; at least 1.
    pub replicas: i64,
    /// The longest wait for them. Unit: milliseconds.
    pub ms: i64,
}

/// The reply that a LOCK command gets once replicas have acknowledged its effects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Confirmed {
    /// LOCK.ACQUIRE: fence, holds, and the milliseconds left when the reply is sent.
    Lock { holds: i64 },
    /// LOCK.MACQUIRE: fence, and the milliseconds left when the reply is sent.
    Locks,
    /// LOCK.RENEW: the fences.
    Renewal(Vec<i64>),
}

/// A grant or renewal that replicas have to acknowledge, or that a push message announces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unconfirmed {
    /// None: its push message is sent at once.
    pub asked: Option<AcksAsked>,
    /// The client is not blocked, and gets a push message.
    pub is_pushed: bool,
    pub database: DbIndex,
    pub keys: Vec<Box<[u8]>>,
    pub owner: Box<[u8]>,
    /// The fence of the grant; 0 for a renewal.
    pub fence: u64,
    pub confirmed: Confirmed,
    /// The keys that this request has newly locked. They are unlocked again if too few replicas
    /// acknowledge.
    pub taken: Vec<Box<[u8]>>,
    /// Whether this request has counted one more hold, which is then taken back too.
    pub counted_hold: bool,
    /// The locks whose fences this request has replaced, which then get their former ones.
    pub former: Vec<(Box<[u8]>, Box<Former>)>,
}

/// An [`Unconfirmed`] that replicas have not acknowledged yet.
#[derive(Debug)]
pub struct Confirmation {
    pub client: ClientId,
    pub command: CommandId,
    pub awaited: AcksAwaited,
    pub unconfirmed: Unconfirmed,
}

/// The grants that wait for replicas.
#[derive(Debug, Default)]
pub struct Confirmations {
    /// The grants by number, in the order of their offsets.
    pending: BTreeMap<u64, Confirmation>,
    deadlines: BTreeSet<(i64, u64)>,
    last_number: u64,
    /// The latest offset that too few replicas have acknowledged in time, and the number of
    /// replicas that have acknowledged it by now. A grant that needs more replicas is not tried
    /// until they have acknowledged this offset.
    pub failed: Option<(u64, i64)>,
    /// Grants for which no client waits. They are taken back before the turn ends, outside of any
    /// command.
    pub given_up: Vec<Confirmation>,
}

impl Confirmations {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    pub fn len(&self) -> usize {
        self.pending.len()
    }

    /// Adds a confirmation. Returns its number.
    pub fn add(&mut self, confirmation: Confirmation) -> u64 {
        self.last_number += 1;
        let number = self.last_number;
        if let Some(deadline) = confirmation.awaited.deadline_us {
            self.deadlines.insert((deadline, number));
        }
        self.pending.insert(number, confirmation);
        number
    }

    pub fn remove(&mut self, number: u64) -> Option<Confirmation> {
        let confirmation = self.pending.remove(&number)?;
        if let Some(deadline) = confirmation.awaited.deadline_us {
            self.deadlines.remove(&(deadline, number));
        }
        Some(confirmation)
    }

    /// Gives up a confirmation for which its client no longer waits: the grant must be taken back.
    pub fn give_up(&mut self, number: u64) {
        if let Some(confirmation) = self.remove(number) {
            self.given_up.push(confirmation);
        }
    }

    /// Gives up the confirmations of a client that is being closed, which cannot receive its
    /// grants.
    pub fn forget_client(&mut self, client: ClientId) {
        let own = self.iter().filter(|(_, confirmation)| confirmation.client == client);
        let own: Vec<u64> = own.map(|(number, _)| number).collect();
        own.into_iter().for_each(|number| self.give_up(number));
    }

    pub fn iter(&self) -> impl Iterator<Item = (u64, &Confirmation)> {
        self.pending.iter().map(|(number, confirmation)| (*number, confirmation))
    }

    /// Takes out all confirmations: their offsets are of a history that has ended.
    pub fn take_all(&mut self) -> Vec<Confirmation> {
        self.deadlines.clear();
        std::mem::take(&mut self.pending).into_values().collect()
    }

    /// The next deadline: boot-time clock, microseconds.
    pub fn next_deadline_us(&self) -> Option<i64> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// The number of a confirmation whose deadline has passed.
    pub fn overdue(&self, now_us: i64) -> Option<u64> {
        let (deadline, number) = self.deadlines.first()?;
        (*deadline <= now_us).then_some(*number)
    }
}
