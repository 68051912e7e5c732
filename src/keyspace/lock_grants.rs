//! Grants of locks whose replies are on their way to the clients. If a client goes before, the
//! grant is taken back: `gate/locks.rs`.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use smallvec::SmallVec;

use super::db_index::DbIndex;
use super::lock_index::{At, Held, Place};
use crate::clock::Deadline;
use crate::ids::ClientId;

/// A grant whose reply is on its way to the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    pub client: ClientId,
    pub fence: u64,
    /// The client's count of sent bytes when the reply has left; None: not known yet.
    pub sent_at: Option<u64>,
    /// What the grant has replaced. None: nobody held the lock.
    pub former: Option<Box<Former>>,
}

impl Granted {
    /// Joins a later grant of the same lock to the same client. What there was before the first one
    /// stays.
    pub fn join(&mut self, later: Granted) {
        if let (Some(before), Some(last)) = (&mut self.former, &later.former) {
            before.replaced_by = last.replaced_by;
        }
        (self.fence, self.sent_at) = (later.fence, later.sent_at);
    }
}

/// A lock that its owner held before a further grant replaced the fence, or renewed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Former {
    /// Empty for one reader of several.
    pub fields: Vec<(Vec<u8>, Vec<u8>)>,
    pub deadline: Option<Deadline>,
    /// The deadline that the further grant has set.
    pub replaced_by: Option<Deadline>,
    pub holdings: Vec<(Place, Held)>,
}

/// What becomes of a grant on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Goes,
    /// The client has its reply, or needs none.
    Ended,
    /// The client will never learn of it.
    Lost,
}

/// A grant whose reply is on its way. A short key needs no allocation.
#[derive(Clone)]
pub(super) struct OnItsWay {
    pub database: DbIndex,
    pub key: SmallVec<[u8; 32]>,
    pub reader: Option<Box<[u8]>>,
    pub granted: Granted,
}

impl OnItsWay {
    pub fn at(&self) -> At<'_> {
        At { database: self.database, key: &self.key, reader: self.reader.as_deref() }
    }
}

/// Joins what one client was granted of the same lock again and again, if `joins` says so of it.
pub(super) fn join(granted: Vec<OnItsWay>, joins: impl Fn(&Granted) -> bool) -> Vec<OnItsWay> {
    let mut merged: Vec<OnItsWay> = Vec::new();
    let mut places: BTreeMap<(Place, ClientId), usize> = BTreeMap::new();
    for one in granted {
        if !joins(&one.granted) {
            merged.push(one);
            continue;
        }
        match places.entry((one.at().to_place(), one.granted.client)) {
            Entry::Vacant(place) => {
                place.insert(merged.len());
                merged.push(one);
            }
            Entry::Occupied(place) => merged[*place.get()].granted.join(one.granted),
        }
    }
    merged
}
