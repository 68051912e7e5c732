//! Consumer groups: what a group has read, and the entries that its consumers have not acknowledged.
//!
//! A pending entry is in the group's list, with its consumer, and in that consumer's list, so that both can be read
//! in the order of IDs. [`Group`] keeps the two consistent.

use std::collections::BTreeMap;

use crate::collections::sorted_chunks::SortedChunks;

use super::id::StreamId;

/// A stream's groups, in the order of their names.
pub type Groups = BTreeMap<Box<[u8]>, Group>;

/// A consumer's index in its group. Not reused while the group exists.
pub type ConsumerId = u32;

/// An entry that was delivered and not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    pub consumer: ConsumerId,
    /// Unix milliseconds of its last delivery.
    pub delivered_ms: i64,
    pub deliveries: i64,
}

/// A consumer, identified by its name.
#[derive(Clone, Debug)]
pub struct Consumer {
    pub name: Box<[u8]>,
    /// Unix milliseconds of its last attempt to read or claim.
    pub seen_ms: i64,
    /// Unix milliseconds when it last received an entry; None: never.
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
    /// Number of entries read; None: unknown.
    pub read: Option<i64>,
    pending: SortedChunks<StreamId, Pending>,
    names: BTreeMap<Box<[u8]>, ConsumerId>,
    consumers: BTreeMap<ConsumerId, Consumer>,
    next_consumer: ConsumerId,
}

/// Overhead of an item in a B-tree, about, in bytes: nodes are two thirds full.
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

    /// A consumer by its index, from [`Group::find_consumer`] or a pending entry.
    pub fn consumer(&self, id: ConsumerId) -> &Consumer {
        &self.consumers[&id]
    }

    pub fn consumer_mut(&mut self, id: ConsumerId) -> &mut Consumer {
        self.consumers.get_mut(&id).expect("a consumer's place is known from the group itself")
    }

    /// The consumer with this name, created if needed; updates when it was seen. True: it was created.
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

    /// Removes a consumer and its pending entries; returns their number.
    pub fn remove_consumer(&mut self, id: ConsumerId) -> usize {
        let Some(consumer) = self.consumers.remove(&id) else { return 0 };
        self.names.remove(&consumer.name);
        for (id, ()) in consumer.pending.iter() {
            self.pending.remove(id);
        }
        consumer.pending.len()
    }

    /// Assigns an entry to a consumer as pending, taking it from any other.
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

    /// Increments a pending entry's delivery count; returns its new state.
    pub fn redeliver(&mut self, id: StreamId, now_ms: i64) -> Option<Pending> {
        let pending = self.pending.get_mut(&id)?;
        pending.delivered_ms = now_ms;
        pending.deliveries = pending.deliveries.wrapping_add(1);
        Some(*pending)
    }

    /// Removes a pending entry. False if it was not pending.
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
        // An allocation holds about 32 items, in the group's list and in a consumer's.
        1 + self.consumers.len() + self.pending.len() / 16
    }
}
