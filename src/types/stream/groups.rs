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

/// The consumer that holds the entries which others have released (XNACK). Redis 7.0, which knows
/// no pending entry without a consumer, gets it as one like others; here it is not shown.
pub const RELEASED: &[u8] = b":released";

/// A group with a consumer of this name hands out no entries but those of its consumers' history.
pub const PAUSED: &[u8] = b":paused";

/// Positions of released entries are lower; a Unix time in milliseconds is higher, since 2004.
const POSITIONS: i64 = 1 << 40;

/// The least number of pending entries for which a group orders them at once, even if nobody has
/// claimed yet: clients shall not wait for that later.
const ORDERED_FROM: usize = 1000;

/// A consumer's index in its group. Not reused while the group exists.
pub type ConsumerId = u32;

/// An entry that was delivered and not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    pub consumer: ConsumerId,
    /// Milliseconds of its last delivery, on the clock that nobody can set (`Keyspace::lease_ms`).
    /// Of a released one the time from which it may be claimed, or its position among those that
    /// may be claimed at once, from 0.
    pub delivered_ms: i64,
    pub deliveries: i64,
}

/// The time of a pending entry by a clock that is ahead by `ms`. A position among released entries
/// is no time.
pub fn shifted(delivered_ms: i64, ms: i64) -> i64 {
    if delivered_ms < POSITIONS { delivered_ms } else { delivered_ms.saturating_add(ms) }
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
    /// The consumer that holds released entries.
    holder: Option<ConsumerId>,
    is_paused: bool,
    /// None until somebody asks for an order, or there are [`ORDERED_FROM`] entries.
    by_time: Option<ByTime>,
    /// The position of the next released entry; None until one is released.
    next_release: Option<i64>,
    /// Entries that had been delivered too often since the start, and pending ones without data.
    pub buried: u64,
    pub gone: u64,
}

/// Pending entries by their times, which order those that may be claimed. Entries whose data are
/// gone leave when they are met.
#[derive(Clone, Debug, Default)]
struct ByTime {
    owned: Times,
    released: Times,
}

impl ByTime {
    fn of(&mut self, holder: Option<ConsumerId>, pending: Pending) -> &mut Times {
        match holder == Some(pending.consumer) {
            true => &mut self.released,
            false => &mut self.owned,
        }
    }
}

type Times = SharedMap<(i64, StreamId), ()>;

/// The entries with these times, up to the last one.
fn up_to(last_ms: i64, times: &Times) -> impl Iterator<Item = &((i64, StreamId), ())> {
    times.iter().take_while(move |((at_ms, _), ())| *at_ms <= last_ms)
}

/// Groups and consumers sampled to estimate the size of all.
const SAMPLES: usize = 64;

/// The sum over `all`, estimated from the first ones if there are many.
pub(super) fn sum_of<T>(all: impl ExactSizeIterator<Item = T>, size: impl Fn(T) -> usize) -> usize {
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

    /// Moves the times of all pending entries by `ms`, as another clock has them.
    pub fn move_times(&mut self, ms: i64) {
        let names: Vec<Name> = self.0.iter().map(|(name, _)| name.clone()).collect();
        for name in names {
            if let Some(group) = self.get_mut(&name) {
                group.settle_loaded(ms);
            }
        }
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

    /// The consumers that are shown to clients.
    pub fn shown_consumers(&self) -> impl Iterator<Item = &Consumer> + Clone {
        self.consumers().filter(|consumer| *consumer.name != *RELEASED)
    }

    /// Whether entries of this consumer have been released.
    pub fn is_released(&self, consumer: ConsumerId) -> bool {
        self.holder == Some(consumer)
    }

    /// The released entries, those with a pause included.
    pub fn released(&self) -> impl Iterator<Item = &Pending> {
        let held = self.holder.map(|holder| self.consumer(holder).pending());
        let ids = held.into_iter().flat_map(SharedMap::iter);
        ids.filter_map(|(id, ())| self.pending.get(id))
    }

    /// Number of released entries.
    pub fn released_len(&self) -> usize {
        self.holder.map_or(0, |holder| self.consumer(holder).pending().len())
    }

    /// Number of released entries that may not be claimed yet. O(n) until somebody claims here.
    pub fn delayed_len(&self, now_ms: i64) -> usize {
        match &self.by_time {
            Some(by_time) => by_time.released.from(&(now_ms + 1, StreamId::MIN)).len(),
            None => self.released().filter(|pending| pending.delivered_ms > now_ms).count(),
        }
    }

    /// Whether it hands out no entries.
    #[inline]
    pub fn is_paused(&self) -> bool {
        self.is_paused
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
        match &*name {
            RELEASED => self.holder = Some(id),
            PAUSED => self.is_paused = true,
            _ => {}
        }
        self.names.insert(name, id);
        self.consumers.insert(id, Arc::new(consumer));
        (id, true)
    }

    /// Removes a consumer and its pending entries; returns their number.
    pub fn remove_consumer(&mut self, id: ConsumerId) -> usize {
        let Some(consumer) = self.consumers.remove(&id) else { return 0 };
        self.names.remove(&*consumer.name);
        for (id, ()) in consumer.pending.iter() {
            if let Some(gone) = self.pending.remove(id) {
                self.forget_time(*id, gone);
            }
        }
        match &*consumer.name {
            RELEASED => (self.holder, self.next_release) = (None, None),
            PAUSED => self.is_paused = false,
            _ => {}
        }
        consumer.pending.len()
    }

    /// Assigns an entry to a consumer as pending, taking it from any other.
    pub fn assign(&mut self, id: StreamId, pending: Pending) {
        self.load(id, pending);
        self.order_many();
    }

    /// As [`Group::assign`], for a group that is loaded: [`Group::settle_loaded`] ends that.
    pub fn load(&mut self, id: StreamId, pending: Pending) {
        let before = self.pending.insert(id, pending);
        if let Some(by_time) = &mut self.by_time {
            if let Some(before) = before {
                by_time.of(self.holder, before).remove(&(before.delivered_ms, id));
            }
            by_time.of(self.holder, pending).insert((pending.delivered_ms, id), ());
        }
        if let Some(before) = before {
            if before.consumer == pending.consumer {
                return;
            }
            self.consumer_mut(before.consumer).pending.remove(&id);
        }
        self.consumer_mut(pending.consumer).pending.insert(id, ());
    }

    fn order_many(&mut self) {
        if self.by_time.is_none() && self.pending.len() >= ORDERED_FROM {
            self.by_time();
        }
    }

    /// Increments a pending entry's delivery count; returns its new state.
    pub fn redeliver(&mut self, id: StreamId, now_ms: i64) -> Option<Pending> {
        let pending = self.pending.get_mut(&id)?;
        let before = std::mem::replace(&mut pending.delivered_ms, now_ms);
        pending.deliveries = pending.deliveries.saturating_add(1);
        let pending = *pending;
        if let Some(by_time) = &mut self.by_time {
            let times = by_time.of(self.holder, pending);
            times.remove(&(before, id));
            times.insert((now_ms, id), ());
        }
        Some(pending)
    }

    /// Removes a pending entry. False if it was not pending.
    pub fn acknowledge(&mut self, id: StreamId) -> bool {
        let Some(pending) = self.pending.remove(&id) else { return false };
        self.consumer_mut(pending.consumer).pending.remove(&id);
        self.forget_time(id, pending);
        true
    }

    fn forget_time(&mut self, id: StreamId, gone: Pending) {
        if let Some(by_time) = &mut self.by_time {
            by_time.of(self.holder, gone).remove(&(gone.delivered_ms, id));
        }
    }

    /// Takes an entry from its consumer, if it has one. It may be claimed from a time on, whoever
    /// had it; without one (`from_ms`) it is the last of those that may be claimed at once, before
    /// all others. `seen_ms`: Unix milliseconds. Returns its new state.
    pub fn release(
        &mut self,
        id: StreamId,
        deliveries: i64,
        from_ms: Option<i64>,
        seen_ms: i64,
    ) -> Pending {
        let (consumer, _) = self.meet_consumer(RELEASED, seen_ms);
        let delivered_ms = from_ms.unwrap_or_else(|| {
            let position = self.next_release.unwrap_or_else(|| {
                let positions = self.released().map(|pending| pending.delivered_ms);
                positions.filter(|at| *at < POSITIONS).max().map_or(0, |last| last + 1)
            });
            self.next_release = Some(position + 1);
            position
        });
        let pending = Pending { consumer, delivered_ms, deliveries };
        self.assign(id, pending);
        pending
    }

    /// Moves all times by `ms`, as another clock has them. For a group that was just loaded: also
    /// orders its entries if they are many.
    pub fn settle_loaded(&mut self, ms: i64) {
        if ms != 0 {
            let all: Vec<_> = self.pending.iter().copied().collect();
            for (id, pending) in all {
                let delivered_ms = shifted(pending.delivered_ms, ms);
                self.assign(id, Pending { delivered_ms, ..pending });
            }
        }
        self.order_many();
    }

    /// Whether there may be entries for [`Group::settle_future`].
    pub fn may_have_future(&self, now_ms: i64) -> bool {
        let last = self.by_time.as_ref().map(|by_time| by_time.owned.last());
        last.is_none_or(|last| last.is_some_and(|((at_ms, _), ())| *at_ms > now_ms))
    }

    /// Pending entries with an owner that were delivered after now, by another server's clock:
    /// they were delivered now. Returns them with their new states. Also makes the order in which
    /// entries may be claimed.
    pub fn settle_future(&mut self, now_ms: i64) -> Vec<(StreamId, Pending)> {
        let mut settled = Vec::new();
        while let Some(&((at_ms, id), ())) = self.by_time().owned.last()
            && at_ms > now_ms
            && let Some(pending) = self.pending.get(&id).copied()
        {
            let pending = Pending { delivered_ms: now_ms, ..pending };
            self.assign(id, pending);
            settled.push((id, pending));
        }
        settled
    }

    fn by_time(&mut self) -> &mut ByTime {
        let (pending, holder) = (&self.pending, self.holder);
        self.by_time.get_or_insert_with(|| {
            let mut times: Vec<_> = pending
                .iter()
                .map(|(id, pending)| (holder == Some(pending.consumer), pending.delivered_ms, *id))
                .collect();
            times.sort_unstable();
            let mut by_time = ByTime::default();
            for (is_released, at_ms, id) in times {
                let times = if is_released { &mut by_time.released } else { &mut by_time.owned };
                times.insert((at_ms, id), ());
            }
            by_time
        })
    }

    /// The entries that may be claimed: released ones whose pause is over, then those delivered up
    /// to `until_ms`, each in the order of these times. Data may be gone: see
    /// [`Group::pass_over`]. Only after [`Group::settle_future`].
    pub fn claimable(
        &self,
        now_ms: i64,
        until_ms: i64,
    ) -> impl Iterator<Item = (StreamId, &Pending)> {
        let by_time = self.by_time.iter();
        let ids = by_time.flat_map(move |by_time| {
            up_to(now_ms, &by_time.released).chain(up_to(until_ms, &by_time.owned))
        });
        ids.filter_map(|((_, id), ())| Some((*id, self.pending.get(id)?)))
    }

    /// Takes a pending entry whose data are gone out of the order in which entries may be claimed.
    pub fn pass_over(&mut self, id: StreamId) {
        if let Some(pending) = self.pending.get(&id).copied() {
            self.forget_time(id, pending);
        }
    }

    /// When the first entry may be claimed by clients that claim after `idle_ms`.
    pub fn next_claim_ms(&self, idle_ms: i64) -> Option<i64> {
        let of_owned = |at_ms: i64| at_ms.saturating_add(idle_ms);
        match &self.by_time {
            Some(by_time) => {
                let released = by_time.released.first().map(|((at_ms, _), ())| *at_ms);
                let owned = by_time.owned.first().map(|((at_ms, _), ())| of_owned(*at_ms));
                released.into_iter().chain(owned).min()
            }
            None => {
                let times = self.pending.iter().map(|(_, pending)| {
                    let at_ms = pending.delivered_ms;
                    if self.is_released(pending.consumer) { at_ms } else { of_owned(at_ms) }
                });
                times.min()
            }
        }
    }

    fn heap_bytes(&self) -> usize {
        let consumer = size_of::<Consumer>() + size_of::<usize>();
        let consumers = self.consumers.iter();
        let consumers =
            sum_of(consumers, |(_, one)| consumer + one.name.len() + one.pending.heap_bytes());
        let by_time = self.by_time.as_ref();
        let by_time = by_time.map_or(0, |it| it.owned.heap_bytes() + it.released.heap_bytes());
        let lists = self.pending.heap_bytes()
            + by_time
            + self.names.heap_bytes()
            + self.consumers.heap_bytes();
        size_of::<Group>() + lists + consumers
    }

    fn free_effort(&self) -> usize {
        // A node holds about as many items in the group's list and in the consumers'.
        1 + self.consumers.len() + 2 * self.pending.nodes()
    }
}
