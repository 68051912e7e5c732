//! Publish and subscribe: the subscribers of channels, shard channels and patterns.
//!
//! A subscription is stored twice: here by name, to find a message's subscribers, and in the
//! subscriber's own [`Subscriptions`], to find them all when it leaves. Both change together, by
//! [`PubSub::subscribe`] and its counterparts; a name without subscribers is removed. Names are
//! stored once and shared.
//!
//! Messages are encoded and sent by `command/pubsub.rs`; this module knows clients only by ID.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use crate::collections::glob;
use crate::collections::sparse::Sparse;
use crate::ids::ClientId;

/// The kind of a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Channel,
    Pattern,
    Shard,
}

/// A channel or pattern.
pub type Name = Arc<[u8]>;

/// The subscriptions of one client.
#[derive(Debug, Default)]
pub struct Subscriptions {
    channels: HashSet<Name>,
    patterns: HashSet<Name>,
    shard_channels: HashSet<Name>,
}

impl Subscriptions {
    pub fn of(&self, kind: Kind) -> &HashSet<Name> {
        match kind {
            Kind::Channel => &self.channels,
            Kind::Pattern => &self.patterns,
            Kind::Shard => &self.shard_channels,
        }
    }

    fn of_mut(&mut self, kind: Kind) -> &mut HashSet<Name> {
        match kind {
            Kind::Channel => &mut self.channels,
            Kind::Pattern => &mut self.patterns,
            Kind::Shard => &mut self.shard_channels,
        }
    }

    /// The count in confirmations: channels and patterns together, shard channels apart.
    pub fn count(&self, kind: Kind) -> usize {
        match kind {
            Kind::Channel | Kind::Pattern => self.channels.len() + self.patterns.len(),
            Kind::Shard => self.shard_channels.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.channels.is_empty() && self.patterns.is_empty() && self.shard_channels.is_empty()
    }

    /// The approximate bytes of memory in the client's sets.
    pub fn memory(&self) -> usize {
        let slots = [&self.channels, &self.patterns, &self.shard_channels];
        let slots: usize = slots.iter().map(|names| names.capacity()).sum();
        size_of::<Self>() + slots * (size_of::<Name>() + 1)
    }
}

/// All subscriptions by name.
#[derive(Debug, Default)]
pub struct PubSub {
    channels: HashMap<Name, Listeners>,
    /// Ordered, so that a client with several matching patterns gets messages in a fixed order.
    patterns: BTreeMap<Name, Listeners>,
    shard_channels: HashMap<Name, Listeners>,
}

impl PubSub {
    /// Adds a subscription. False: it existed. Expected O(1), for a pattern O(log patterns).
    pub fn subscribe(
        &mut self,
        kind: Kind,
        own: &mut Subscriptions,
        who: ClientId,
        name: &[u8],
    ) -> bool {
        if own.of(kind).contains(name) {
            return false;
        }
        let known = match kind {
            Kind::Channel => self.channels.get_key_value(name),
            Kind::Pattern => self.patterns.get_key_value(name),
            Kind::Shard => self.shard_channels.get_key_value(name),
        };
        let name = known.map_or_else(|| Name::from(name), |(name, _)| name.clone());
        own.of_mut(kind).insert(name.clone());
        let listeners = match kind {
            Kind::Channel => self.channels.entry(name).or_default(),
            Kind::Pattern => self.patterns.entry(name).or_default(),
            Kind::Shard => self.shard_channels.entry(name).or_default(),
        };
        listeners.add(who);
        true
    }

    /// Removes a subscription. False: there was none. Expected O(1), for a pattern O(log patterns).
    pub fn unsubscribe(
        &mut self,
        kind: Kind,
        own: &mut Subscriptions,
        who: ClientId,
        name: &[u8],
    ) -> bool {
        if !own.of_mut(kind).remove(name) {
            return false;
        }
        own.of_mut(kind).shrink_if_sparse();
        match kind {
            Kind::Channel => leave(&mut self.channels, name, who),
            Kind::Shard => leave(&mut self.shard_channels, name, who),
            Kind::Pattern => {
                if self.patterns.get_mut(name).is_some_and(|listeners| listeners.remove(who)) {
                    self.patterns.remove(name);
                }
            }
        }
        true
    }

    /// Removes all subscriptions of a client.
    pub fn forget(&mut self, own: &mut Subscriptions, who: ClientId) {
        for kind in [Kind::Channel, Kind::Pattern, Kind::Shard] {
            for name in own.of(kind).iter().cloned().collect::<Vec<_>>() {
                self.unsubscribe(kind, own, who, &name);
            }
        }
    }

    /// The subscribers of a channel or shard channel.
    pub fn listeners(&self, kind: Kind, name: &[u8]) -> &[ClientId] {
        let found = match kind {
            Kind::Channel => self.channels.get(name),
            Kind::Pattern => self.patterns.get(name),
            Kind::Shard => self.shard_channels.get(name),
        };
        found.map_or(&[], |listeners| &listeners.list)
    }

    /// Patterns that match a channel, and their subscribers. O(patterns).
    pub fn matching<'a>(
        &'a self,
        channel: &'a [u8],
    ) -> impl Iterator<Item = (&'a [u8], &'a [ClientId])> + 'a {
        self.patterns
            .iter()
            .filter(|(pattern, _)| glob::matches(pattern, channel, false))
            .map(|(pattern, listeners)| (&**pattern, &*listeners.list))
    }

    /// Names with subscribers.
    pub fn names(&self, kind: Kind) -> Box<dyn Iterator<Item = &[u8]> + '_> {
        match kind {
            Kind::Channel => Box::new(self.channels.keys().map(|name| &**name)),
            Kind::Pattern => Box::new(self.patterns.keys().map(|name| &**name)),
            Kind::Shard => Box::new(self.shard_channels.keys().map(|name| &**name)),
        }
    }

    /// Number of names with subscribers.
    pub fn count(&self, kind: Kind) -> usize {
        match kind {
            Kind::Channel => self.channels.len(),
            Kind::Pattern => self.patterns.len(),
            Kind::Shard => self.shard_channels.len(),
        }
    }

    /// Whether nobody subscribes to anything that a channel's message could reach.
    pub fn is_silent(&self) -> bool {
        self.channels.is_empty() && self.patterns.is_empty()
    }
}

fn leave(names: &mut HashMap<Name, Listeners>, name: &[u8], who: ClientId) {
    if names.get_mut(name).is_some_and(|listeners| listeners.remove(who)) {
        names.remove(name);
        names.shrink_if_sparse();
    }
}

/// From this many subscribers on, their indices are kept in a map.
const SEARCHED_MAX: usize = 16;

/// The subscribers of one name, unordered: a removal moves the last one into the gap.
#[derive(Debug, Default)]
struct Listeners {
    list: Vec<ClientId>,
    /// The index of each subscriber in `list`, once there are more than [`SEARCHED_MAX`].
    places: Option<HashMap<ClientId, usize>>,
}

impl Listeners {
    /// Adds a new subscriber.
    fn add(&mut self, who: ClientId) {
        self.list.push(who);
        match &mut self.places {
            Some(places) => drop(places.insert(who, self.list.len() - 1)),
            None if self.list.len() > SEARCHED_MAX => {
                let places = self.list.iter().enumerate().map(|(place, &who)| (who, place));
                self.places = Some(places.collect());
            }
            None => {}
        }
    }

    /// Removes a subscriber. True: it was the last.
    fn remove(&mut self, who: ClientId) -> bool {
        let place = match &mut self.places {
            Some(places) => {
                let place = places.remove(&who);
                places.shrink_if_sparse();
                place
            }
            None => self.list.iter().position(|&other| other == who),
        };
        if let Some(place) = place {
            self.list.swap_remove(place);
            self.list.shrink_if_sparse();
            if let (Some(places), Some(&moved)) = (&mut self.places, self.list.get(place)) {
                places.insert(moved, place);
            }
        }
        self.list.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const KINDS: [Kind; 3] = [Kind::Channel, Kind::Pattern, Kind::Shard];

    fn id(number: u8) -> ClientId {
        ClientId { slot: 0, number: number.into() }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Subscribe(usize, u8, u8),
        Unsubscribe(usize, u8, u8),
        Forget(u8),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (0..3usize, 0..40u8, 0..3u8).prop_map(|(k, l, n)| Step::Subscribe(k, l, n)),
            3 => (0..3usize, 0..40u8, 0..3u8).prop_map(|(k, l, n)| Step::Unsubscribe(k, l, n)),
            1 => (0..40u8).prop_map(Step::Forget),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn both_sides_agree_with_a_set_of_triples(steps in prop::collection::vec(step(), 0..400)) {
            let mut pubsub = PubSub::default();
            let mut owners: Vec<Subscriptions> = (0..40).map(|_| Subscriptions::default()).collect();
            let mut model: BTreeSet<(usize, u8, u8)> = BTreeSet::new();
            for step in steps {
                match step {
                    Step::Subscribe(kind, who, name) => {
                        let own = &mut owners[who as usize];
                        let new = pubsub.subscribe(KINDS[kind], own, id(who), &[name]);
                        prop_assert_eq!(new, model.insert((kind, who, name)));
                    }
                    Step::Unsubscribe(kind, who, name) => {
                        let own = &mut owners[who as usize];
                        let was = pubsub.unsubscribe(KINDS[kind], own, id(who), &[name]);
                        prop_assert_eq!(was, model.remove(&(kind, who, name)));
                    }
                    Step::Forget(who) => {
                        pubsub.forget(&mut owners[who as usize], id(who));
                        prop_assert!(owners[who as usize].is_empty());
                        model.retain(|&(_, other, _)| other != who);
                    }
                }
            }
            for (index, kind) in KINDS.into_iter().enumerate() {
                let names: BTreeSet<u8> =
                    model.iter().filter(|entry| entry.0 == index).map(|entry| entry.2).collect();
                prop_assert_eq!(pubsub.count(kind), names.len());
                prop_assert_eq!(pubsub.names(kind).map(|name| name[0]).collect::<BTreeSet<_>>(), names);
                for name in 0..3 {
                    let mut listeners = pubsub.listeners(kind, &[name]).to_vec();
                    listeners.sort_unstable_by_key(|who| who.number);
                    let is_there = |&who: &u8| model.contains(&(index, who, name));
                    let expected: Vec<_> = (0..40).filter(is_there).map(id).collect();
                    prop_assert_eq!(listeners, expected);
                }
            }
        }
    }

    #[test]
    fn a_channel_is_matched_by_every_pattern_that_fits_in_their_order() {
        let mut pubsub = PubSub::default();
        let mut own = Subscriptions::default();
        for pattern in [&b"n*"[..], b"*", b"news.?", b"x"] {
            pubsub.subscribe(Kind::Pattern, &mut own, id(1), pattern);
        }
        let found: Vec<_> = pubsub.matching(b"news.1").map(|(pattern, _)| pattern).collect();
        assert_eq!(found, [&b"*"[..], b"n*", b"news.?"]);
    }
}
