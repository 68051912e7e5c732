//! Consumer groups: the position of a group, and the entries that its consumers have not
//! acknowledged.
//!
//! A pending entry is in the group's list, with its consumer, and in that consumer's list, so that
//! both can be read in the order of IDs. [`Group`] keeps the two consistent.
//!
//! Clones share all of it: groups, consumers and lists of pending entries ([`SharedMap`]). A change
//! copies some dozen items.

use std::sync;

use crate::collections::shared::{Arc, Part, own};
use crate::collections::shared_map::SharedMap;

use super::id::StreamId;

/// The name of a group or consumer.
type Name = sync::Arc<[u8]>;

/// A stream's groups, in the order of their names.
#[derive(Clone, Debug, Default)]
pub struct Groups(SharedMap<Name, Arc<Group>>);

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
#[derive(Clone, Debug, Default)]
pub struct Consumer {
    pub name: Name,
    /// Unix milliseconds of its last attempt to read or claim.
    pub seen_ms: i64,
    /// Unix milliseconds when it last received an entry; None: never.
    pub active_ms: Option<i64>,
    pending: SharedMap<StreamId, ()>,
}

impl Consumer {
    /// IDs of its pending entries.
    pub fn pending(&self) -> &SharedMap<StreamId, ()> {
        &self.pending
    }
}

const KNOWN: &str = "a consumer's index is known from the group itself";

/// A group of consumers.
#[derive(Clone, Debug, Default)]
pub struct Group {
    /// The last ID delivered.
    pub last: StreamId,
    /// Number of entries read; None: unknown.
    pub read: Option<i64>,
    pending: SharedMap<StreamId, Pending>,
    names: SharedMap<Name, ConsumerId>,
    consumers: SharedMap<ConsumerId, Arc<Consumer>>,
    next_consumer: ConsumerId,
}

/// Groups and consumers sampled to estimate the size of all.
const SAMPLES: usize = 64;

/// The sum over `all`, estimated from the first ones if there are many.
fn sum_of<T>(all: impl ExactSizeIterator<Item = T>, size: impl Fn(T) -> usize) -> usize {
    let len = all.len();
    let sum = all.take(SAMPLES).map(size).sum::<usize>();
    if len > SAMPLES { (sum as u128 * len as u128 / SAMPLES as u128) as usize } else { sum }
}

impl Part for Group {
    /// Its lists are shared in parts.
    fn heap_bytes(&self) -> usize {
        0
    }
}

impl Part for Consumer {
    fn heap_bytes(&self) -> usize {
        0
    }
}

impl Groups {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn contains_key(&self, name: &[u8]) -> bool {
        self.0.contains_key(name)
    }

    pub fn get(&self, name: &[u8]) -> Option<&Group> {
        self.0.get(name).map(|group| &**group)
    }

    pub fn get_mut(&mut self, name: &[u8]) -> Option<&mut Group> {
        self.0.get_mut(name).map(own)
    }

    /// Adds a group. False: it replaces another one.
    pub fn insert(&mut self, name: &[u8], group: Group) -> bool {
        self.0.insert(name.into(), Arc::new(group)).is_none()
    }

    /// Removes a group. False: there is none with this name.
    pub fn remove(&mut self, name: &[u8]) -> bool {
        self.0.remove(name).is_some()
    }

    /// Names and groups, in the order of the names.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&[u8], &Group)> + Clone {
        self.0.iter().map(|(name, group)| (&**name, &**group))
    }

    /// The approximate bytes of heap memory.
    pub(super) fn heap_bytes(&self) -> usize {
        self.0.heap_bytes() + sum_of(self.iter(), |(name, group)| name.len() + group.heap_bytes())
    }

    /// The approximate number of allocations to free with them.
    pub(super) fn free_effort(&self) -> usize {
        self.0.nodes() + sum_of(self.iter(), |(_, group)| group.free_effort())
    }
}

impl Group {
    pub fn new(last: StreamId, read: Option<i64>) -> Self {
        Group { last, read, ..Group::default() }
    }

    /// All pending entries, in the order of IDs.
    pub fn pending(&self) -> &SharedMap<StreamId, Pending> {
        &self.pending
    }

    /// The consumers, in the order of their names.
    pub fn consumers(&self) -> impl ExactSizeIterator<Item = &Consumer> + Clone {
        self.names.iter().map(|(_, id)| self.consumer(*id))
    }

    pub fn find_consumer(&self, name: &[u8]) -> Option<ConsumerId> {
        self.names.get(name).copied()
    }

    /// A consumer by its index, from [`Group::find_consumer`] or a pending entry.
    pub fn consumer(&self, id: ConsumerId) -> &Consumer {
        self.consumers.get(&id).expect(KNOWN)
    }

    pub fn consumer_mut(&mut self, id: ConsumerId) -> &mut Consumer {
        own(self.consumers.get_mut(&id).expect(KNOWN))
    }

    /// The consumer with this name, created if needed; updates when it was seen. True: it was
    /// created.
    pub fn meet_consumer(&mut self, name: &[u8], now_ms: i64) -> (ConsumerId, bool) {
        if let Some(id) = self.find_consumer(name) {
            self.consumer_mut(id).seen_ms = now_ms;
            return (id, false);
        }
        let id = self.next_consumer;
        self.next_consumer += 1;
        let name = Name::from(name);
        let consumer = Consumer {
            name: name.clone(),
            seen_ms: now_ms,
            active_ms: None,
            pending: SharedMap::default(),
        };
        self.names.insert(name, id);
        self.consumers.insert(id, Arc::new(consumer));
        (id, true)
    }

    /// Removes a consumer and its pending entries; returns their number.
    pub fn remove_consumer(&mut self, id: ConsumerId) -> usize {
        let Some(consumer) = self.consumers.remove(&id) else { return 0 };
        self.names.remove(&*consumer.name);
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

    fn heap_bytes(&self) -> usize {
        let consumer = size_of::<Consumer>() + size_of::<usize>();
        let consumers = self.consumers.iter();
        let consumers =
            sum_of(consumers, |(_, one)| consumer + one.name.len() + one.pending.heap_bytes());
        let lists =
            self.pending.heap_bytes() + self.names.heap_bytes() + self.consumers.heap_bytes();
        size_of::<Group>() + lists + consumers
    }

    fn free_effort(&self) -> usize {
        // A node holds about as many items in the group's list and in the consumers'.
        1 + self.consumers.len() + 2 * self.pending.nodes()
    }
}
