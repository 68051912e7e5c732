//! Consumer groups: how far a group has read, and who has which entries that are not acknowledged yet.
//!
//! A pending entry stands in the group's list with its consumer, and its ID in that consumer's list, so that both are read in
//! the order of IDs. [`Group`] keeps the two in step; nobody else changes them.

use std::collections::BTreeMap;

use crate::collections::sorted_chunks::SortedChunks;

use super::id::StreamId;

/// A stream's groups, in the order of their names.
pub type Groups = BTreeMap<Box<[u8]>, Group>;

/// A consumer's place in its group. Not used again while the group lives.
pub type ConsumerId = u32;

/// An entry that was delivered and not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    pub consumer: ConsumerId,
    /// Unix milliseconds of its last delivery.
    pub delivered_ms: i64,
    pub deliveries: i64,
}

/// A consumer, known by its name.
#[derive(Clone, Debug)]
pub struct Consumer {
    pub name: Box<[u8]>,
    /// Unix milliseconds of its last attempt to read or claim.
    pub seen_ms: i64,
    /// Unix milliseconds at which it last got something; None: never.
    pub active_ms: Option<i64>,
    pending: SortedChunks<StreamId, ()>,
}

impl Consumer {
    /// IDs of its pending entries.
    pub fn pending(&self) -> &SortedChunks<StreamId, ()> {
        &self.pending
    }
}

/// A group of consumers.
#[derive(Clone, Debug, Default)]
pub struct Group {
    /// The last ID delivered.
    pub last: StreamId,
    /// How many entries were read; None: not known.
    pub read: Option<i64>,
    pending: SortedChunks<StreamId, Pending>,
    names: BTreeMap<Box<[u8]>, ConsumerId>,
    consumers: BTreeMap<ConsumerId, Consumer>,
    next_consumer: ConsumerId,
}

/// Bytes an item of a B-tree takes besides its own, about: nodes are two thirds full.
const TREE_OVERHEAD: usize = 16;

impl Group {
    pub fn new(last: StreamId, read: Option<i64>) -> Self {
        Group { last, read, ..Group::default() }
    }

    /// All pending entries, in the order of IDs.
    pub fn pending(&self) -> &SortedChunks<StreamId, Pending> {
        &self.pending
    }

    /// The consumers, in the order of their names.
    pub fn consumers(&self) -> impl ExactSizeIterator<Item = &Consumer> + Clone {
        self.names.values().map(|id| &self.consumers[id])
    }

    pub fn find_consumer(&self, name: &[u8]) -> Option<ConsumerId> {
        self.names.get(name).copied()
    }

    /// A consumer by its place, which [`Group::find_consumer`] or a pending entry gave.
    pub fn consumer(&self, id: ConsumerId) -> &Consumer {
        &self.consumers[&id]
    }

    pub fn consumer_mut(&mut self, id: ConsumerId) -> &mut Consumer {
        self.consumers.get_mut(&id).expect("a consumer's place is known from the group itself")
    }

    /// The consumer of this name, seen now; made if there is none. Also whether it was made.
    pub fn meet_consumer(&mut self, name: &[u8], now_ms: i64) -> (ConsumerId, bool) {
        if let Some(id) = self.find_consumer(name) {
            self.consumer_mut(id).seen_ms = now_ms;
            return (id, false);
        }
        let id = self.next_consumer;
        self.next_consumer += 1;
        let consumer = Consumer {
            name: name.into(),
            seen_ms: now_ms,
            active_ms: None,
            pending: SortedChunks::default(),
        };
        self.names.insert(name.into(), id);
        self.consumers.insert(id, consumer);
        (id, true)
    }

    /// Removes a consumer with its pending entries; returns how many it had.
    pub fn remove_consumer(&mut self, id: ConsumerId) -> usize {
        let Some(consumer) = self.consumers.remove(&id) else { return 0 };
        self.names.remove(&consumer.name);
        for (id, ()) in consumer.pending.iter() {
            self.pending.remove(id);
        }
        consumer.pending.len()
    }

    /// Makes an entry pending at a consumer, whoever had it before.
    pub fn assign(&mut self, id: StreamId, pending: Pending) {
        let before = self.pending.insert(id, pending);
        if let Some(before) = before {
            if before.consumer == pending.consumer {
                return;
            }
            self.consumer_mut(before.consumer).pending.remove(&id);
        }
        self.consumer_mut(pending.consumer).pending.insert(id, ());
    }

    /// Counts another delivery of a pending entry to its consumer; what it is then.
    pub fn redeliver(&mut self, id: StreamId, now_ms: i64) -> Option<Pending> {
        let pending = self.pending.get_mut(&id)?;
        pending.delivered_ms = now_ms;
        pending.deliveries = pending.deliveries.wrapping_add(1);
        Some(*pending)
    }

    /// Takes an entry off the list. False if it was not pending.
    pub fn acknowledge(&mut self, id: StreamId) -> bool {
        let Some(pending) = self.pending.remove(&id) else { return false };
        self.consumer_mut(pending.consumer).pending.remove(&id);
        true
    }

    pub(super) fn heap_bytes(&self) -> usize {
        let consumer = size_of::<Consumer>() + 2 * size_of::<ConsumerId>() + 3 * TREE_OVERHEAD;
        let consumers = self
            .consumers
            .values()
            .map(|one| consumer + 2 * one.name.len() + one.pending.heap_bytes());
        size_of::<Group>() + self.pending.heap_bytes() + consumers.sum::<usize>()
    }

    pub(super) fn free_effort(&self) -> usize {
        // About 32 items lie in an allocation, in the group's list and in a consumer's.
        1 + self.consumers.len() + self.pending.len() / 16
    }
}
