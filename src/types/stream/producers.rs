//! Producers: the entries that each of them has added to a stream, so that a request that is sent
//! again adds nothing.
//!
//! A producer gives each entry a name. The stream remembers the last names with the entries' IDs,
//! up to a number and for a time, which counts from the milliseconds of the ID. An older name is no
//! longer found, counted or saved, and leaves when others are added.
//!
//! Clones share producers and their lists ([`SharedMap`]).

use std::sync;

use crate::collections::shared::{Arc, Part, own};
use crate::collections::shared_map::SharedMap;

use super::groups::sum_of;
use super::id::StreamId;

type Name = sync::Arc<[u8]>;

/// The limits of what a stream remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerLimits {
    /// Unit: seconds. Source: `stream-idmp-duration`, XCFGSET.
    pub duration: u32,
    /// Names of each producer. Source: `stream-idmp-maxsize`, XCFGSET.
    pub names: u32,
}

impl Default for ProducerLimits {
    fn default() -> Self {
        ProducerLimits { duration: 100, names: 100 }
    }
}

/// The most names of other producers that are looked at when one is added.
const SWEPT_MAX: usize = 4;

/// Producers that are looked at when a name is added: more than one, as each addition may bring a
/// new one after those that were looked at.
const SWEPT_PRODUCERS: usize = 4;

/// What a stream remembers of its producers.
#[derive(Clone, Debug, Default)]
pub struct Producers {
    pub limits: ProducerLimits,
    /// Names ever added.
    pub added: u64,
    /// Requests that were known already.
    pub repeated: u64,
    all: SharedMap<Name, Arc<Producer>>,
    /// The producer from which on the next look for old names begins.
    swept: Option<Name>,
}

#[derive(Clone, Debug, Default)]
struct Producer {
    /// The entry's ID, and its place in the order.
    names: SharedMap<Name, (StreamId, u64)>,
    /// In the order in which they were added.
    order: SharedMap<u64, (Name, StreamId)>,
}

impl Part for Producer {
    /// Its lists are shared in parts.
    fn heap_bytes(&self) -> usize {
        0
    }
}

impl Producer {
    fn forget_first(&mut self) {
        if let Some((place, (name, _))) = self.order.first().cloned() {
            self.order.remove(&place);
            self.names.remove(&*name);
        }
    }

    fn heap_bytes(&self) -> usize {
        let names = sum_of(self.names.iter(), |(name, _)| size_of::<[usize; 2]>() + name.len());
        size_of::<Producer>() + self.names.heap_bytes() + self.order.heap_bytes() + names
    }
}

impl Producers {
    pub fn new(limits: ProducerLimits) -> Self {
        Producers { limits, ..Producers::default() }
    }

    /// Whether they are as those of a new stream by default.
    pub fn is_new(&self) -> bool {
        self.limits == ProducerLimits::default()
            && self.all.is_empty()
            && (self.added, self.repeated) == (0, 0)
    }

    /// Whether an entry with this ID is too old to be remembered.
    fn is_old(&self, id: StreamId, now_ms: u64) -> bool {
        id.ms.saturating_add(u64::from(self.limits.duration) * 1000) < now_ms
    }

    /// The ID of the entry that a producer has added under this name, of whatever age.
    pub fn find(&self, producer: &[u8], name: &[u8]) -> Option<StreamId> {
        self.all.get(producer)?.names.get(name).map(|(id, _)| *id)
    }

    /// The same, unless it is too old.
    pub fn find_at(&self, producer: &[u8], name: &[u8], now_ms: u64) -> Option<StreamId> {
        self.find(producer, name).filter(|id| !self.is_old(*id, now_ms))
    }

    /// Remembers an entry as the last one of a producer; forgets its first one beyond the limit,
    /// and some of those that were old when this one was added.
    pub fn add(&mut self, producer: &[u8], name: &[u8], id: StreamId) {
        self.added += 1;
        self.put(producer, name, id);
        (0..SWEPT_PRODUCERS).for_each(|_| self.sweep(id.ms));
    }

    /// Remembers an entry, without counting it.
    pub fn put(&mut self, producer: &[u8], name: &[u8], id: StreamId) {
        if self.all.get(producer).is_none() {
            self.all.insert(producer.into(), Arc::default());
        }
        let known = own(self.all.get_mut(producer).expect("it was there or is now"));
        let place = known.order.last().map_or(0, |(place, _)| place + 1);
        let name = Name::from(name);
        if let Some((_, before)) = known.names.insert(name.clone(), (id, place)) {
            known.order.remove(&before);
        }
        known.order.insert(place, (name, id));
        if known.order.len() > self.limits.names as usize {
            known.forget_first();
        }
    }

    /// Removes some old names of the next producer.
    fn sweep(&mut self, now_ms: u64) {
        let from = self.swept.take();
        let next = match &from {
            Some(name) => self.all.from(&**name).next(),
            None => self.all.first(),
        };
        let Some((name, producer)) = next else { return };
        let (name, oldest) = (name.clone(), producer.order.iter().take(SWEPT_MAX));
        let old = oldest.take_while(|(_, (_, id))| self.is_old(*id, now_ms)).count();
        if old > 0 {
            let producer = own(self.all.get_mut(&*name).expect("it was found"));
            (0..old).for_each(|_| producer.forget_first());
            if producer.order.is_empty() {
                self.all.remove(&*name);
            }
        }
        // One that may have more of them is looked at again.
        self.swept = match old {
            SWEPT_MAX => Some(name),
            _ => {
                let after = self.all.from(&*name).find(|(other, _)| *other != name);
                after.map(|(other, _)| other.clone())
            }
        };
    }

    /// Forgets all of them, but for the counters.
    pub fn forget_all(&mut self) {
        (self.all, self.swept) = (SharedMap::default(), None);
    }

    /// The producers that have names which are not too old, and these names with their entries'
    /// IDs, in the order in which they were added.
    pub fn live(
        &self,
        now_ms: u64,
    ) -> impl Iterator<Item = (&[u8], impl Iterator<Item = (&[u8], StreamId)>)> {
        let is_live = move |id: StreamId| !self.is_old(id, now_ms);
        let has_live = move |one: &Producer| one.order.iter().any(|(_, (_, id))| is_live(*id));
        self.all.iter().filter(move |(_, one)| has_live(one)).map(move |(name, one)| {
            let all = one.order.iter().map(|(_, (name, id))| (&**name, *id));
            (&**name, all.filter(move |(_, id)| is_live(*id)))
        })
    }

    /// The approximate bytes of heap memory.
    pub(super) fn heap_bytes(&self) -> usize {
        let producers = sum_of(self.all.iter(), |(name, one)| name.len() + one.heap_bytes());
        size_of::<Producers>() + self.all.heap_bytes() + producers
    }

    /// The approximate number of allocations to free with them.
    pub(super) fn free_effort(&self) -> usize {
        1 + sum_of(self.all.iter(), |(_, one)| 1 + one.names.len())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, VecDeque};

    use super::*;

    fn id(ms: u64) -> StreamId {
        StreamId { ms, seq: 0 }
    }

    /// Producers with their names and the milliseconds of the entries.
    type Model = BTreeMap<Vec<u8>, VecDeque<(Vec<u8>, u64)>>;

    fn shown(producers: &Producers, now_ms: u64) -> Model {
        let live = producers.live(now_ms).map(|(producer, names)| {
            (producer.to_vec(), names.map(|(name, id)| (name.to_vec(), id.ms)).collect())
        });
        live.collect()
    }

    #[test]
    fn they_remember_what_a_simple_model_remembers() {
        let random = &mut fastrand::Rng::with_seed(7);
        for _ in 0..200 {
            let limits = ProducerLimits { duration: random.u32(1..5), names: random.u32(1..8) };
            let duration_ms = u64::from(limits.duration) * 1000;
            let (mut producers, mut model) = (Producers::new(limits), Model::new());
            let mut clones = Vec::new();
            let mut now_ms = 10_000;
            for _ in 0..random.usize(1..300) {
                now_ms += random.u64(0..400) * random.u64(0..2);
                let producer = [random.u8(b'a'..b'a' + 6)];
                let name = [random.u8(..12)];
                let names = model.entry(producer.to_vec()).or_default();
                names.retain(|(_, ms)| ms + duration_ms >= now_ms);
                let known = names.iter().find(|(known, _)| *known == name).map(|(_, ms)| id(*ms));
                assert_eq!(producers.find_at(&producer, &name, now_ms), known);
                if known.is_none() {
                    producers.add(&producer, &name, id(now_ms));
                    names.push_back((name.to_vec(), now_ms));
                    if names.len() > limits.names as usize {
                        names.pop_front();
                    }
                }
                for names in model.values_mut() {
                    names.retain(|(_, ms)| ms + duration_ms >= now_ms);
                }
                model.retain(|_, names| !names.is_empty());
                assert_eq!(shown(&producers, now_ms), model);
                if random.u8(..50) == 0 {
                    clones.push((producers.clone(), now_ms, model.clone()));
                }
            }
            for (producers, now_ms, model) in clones {
                assert_eq!(shown(&producers, now_ms), model);
            }
        }
    }

    #[test]
    fn names_of_producers_that_have_gone_do_not_stay() {
        let mut producers = Producers::default();
        for number in 0..10_000u64 {
            producers.add(&number.to_be_bytes(), b"once", id(number * 1000));
            assert!(producers.all.len() < 300, "{} after {number}", producers.all.len());
        }
    }
}
