//! The server side of client tracking: the clients to notify when a key changes.
//!
//! A client that tracks its reads is listed at each key that it has read, until the key changes.
//! The change removes the entry, because the client will read the key again if needed. A client
//! that tracks prefixes is listed at the prefixes instead. Every change of a key is reported here
//! ([`Keyspace::changed`](super::Keyspace::changed)), and queued if it concerns any client. After
//! the command, `gate/tracking.rs` takes the queue, sends the readers their messages, and collects
//! each prefix's keys for the end of the turn.
//!
//! A client that leaves, or stops tracking, stays listed at the keys it has read: finding them all
//! would take long. The sender checks which readers still exist.
//!
//! Databases are not distinguished: a message only says that a key of that name has changed.

use std::collections::{BTreeMap, HashMap};
use std::mem;
use std::ops::Bound;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::collections::sparse::Sparse;
use crate::ids::ClientId;

/// The clients that have read a key, ordered by ID. Most keys have one.
pub type Readers = SmallVec<[ClientId; 1]>;

/// A change that invalidates copies.
#[derive(Debug, PartialEq, Eq)]
pub enum Change {
    /// A key was changed or deleted.
    Key {
        key: Arc<[u8]>,
        readers: Readers,
        /// Whether a client made the change, not expiry or eviction.
        by_client: bool,
    },
    /// A database was emptied.
    All,
}

/// A key and its readers.
struct Read {
    key: Arc<[u8]>,
    readers: Readers,
}

/// A prefix and the keys that changed under it in this turn.
#[derive(Default)]
struct Prefix {
    /// Clients that track it, ordered by ID.
    clients: Vec<ClientId>,
    /// Changed keys, each with the client that changed it last.
    changed: BTreeMap<Arc<[u8]>, Option<ClientId>>,
}

/// The changed keys of a prefix, each with the client that changed it last, and the clients that
/// track the prefix.
pub struct Broadcast {
    pub keys: BTreeMap<Arc<[u8]>, Option<ClientId>>,
    pub clients: Vec<ClientId>,
}

/// The tracked keys and prefixes, and pending changes.
#[derive(Default)]
pub struct Tracking {
    /// Clients that track, in either mode.
    clients: usize,
    /// Unordered, so that a random key is found at once.
    read: Vec<Read>,
    /// Indices in `read`.
    places: HashMap<Arc<[u8]>, usize>,
    /// Sum of the numbers of readers.
    items: usize,
    /// Index in `read` below which the next look for readers that have gone begins.
    look: usize,
    /// Keys that have not been looked at since a reader has gone.
    unlooked: usize,
    prefixes: BTreeMap<Box<[u8]>, Prefix>,
    changes: Vec<Change>,
    /// Approximate bytes held by `changes`.
    changes_bytes: usize,
    /// A key under some prefix has changed since the last broadcast.
    has_broadcasts: bool,
}

impl Tracking {
    /// Whether any client tracks.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.clients > 0
    }

    /// Clients that track.
    pub fn clients(&self) -> usize {
        self.clients
    }

    /// Tracked keys.
    pub fn keys(&self) -> usize {
        self.read.len()
    }

    /// Sum of the numbers of readers, including clients that have left.
    pub fn items(&self) -> usize {
        self.items
    }

    /// Tracked prefixes.
    pub fn prefixes(&self) -> usize {
        self.prefixes.len()
    }

    /// Counts a client that starts to track.
    pub fn enter(&mut self) {
        self.clients += 1;
    }

    /// Uncounts a client that stops tracking, and removes it from its prefixes.
    pub fn leave<'a>(&mut self, id: ClientId, prefixes: impl Iterator<Item = &'a [u8]>) {
        self.clients -= 1;
        for name in prefixes {
            let Some(prefix) = self.prefixes.get_mut(name) else { continue };
            if let Ok(at) = prefix.clients.binary_search(&id) {
                prefix.clients.remove(at);
            }
            if prefix.clients.is_empty() {
                self.prefixes.remove(name);
            }
        }
        if self.clients == 0 {
            self.take_changes();
        }
    }

    fn forget_read(&mut self) {
        self.read = Vec::new();
        self.places = HashMap::new();
        self.items = 0;
    }

    /// Adds a client to a prefix, if it is not listed there yet.
    pub fn add_prefix(&mut self, id: ClientId, prefix: &[u8]) {
        let prefix = self.prefixes.entry(prefix.into()).or_default();
        if let Err(at) = prefix.clients.binary_search(&id) {
            prefix.clients.insert(at, id);
        }
    }

    /// Adds a client to a key's readers.
    pub fn remember(&mut self, id: ClientId, key: &[u8]) {
        let Some(&place) = self.places.get(key) else {
            let key: Arc<[u8]> = key.into();
            self.places.insert(key.clone(), self.read.len());
            self.read.push(Read { key, readers: Readers::from_buf([id]) });
            self.items += 1;
            return;
        };
        let readers = &mut self.read[place].readers;
        if let Err(at) = readers.binary_search(&id) {
            readers.insert(at, id);
            self.items += 1;
        }
    }

    /// Whether readers that have gone are still to be forgotten.
    #[inline]
    pub fn has_gone(&self) -> bool {
        self.unlooked > 0
    }

    /// A client that has read keys has gone: [`Self::forget_gone`] has work.
    pub fn note_gone(&mut self) {
        self.unlooked = self.read.len();
    }

    /// Looks at up to `keys` keys, and forgets the readers that `is_there` denies.
    pub fn forget_gone(&mut self, keys: usize, is_there: impl Fn(ClientId) -> bool) {
        for _ in 0..keys.min(self.unlooked) {
            // Downwards: a removal moves the last key to the place that was looked at.
            let from =
                if self.look == 0 { self.read.len() } else { self.look.min(self.read.len()) };
            let Some(place) = from.checked_sub(1) else { break };
            let readers = &mut self.read[place].readers;
            let before = readers.len();
            readers.retain(|reader| is_there(*reader));
            self.items -= before - readers.len();
            if readers.is_empty() {
                self.remove(place);
            }
            self.look = place;
            self.unlooked -= 1;
        }
        if self.read.is_empty() {
            self.unlooked = 0;
        }
    }

    /// Removes the entry at an index of `read`.
    fn remove(&mut self, place: usize) -> Read {
        let read = self.read.swap_remove(place);
        self.places.remove(&read.key);
        self.read.shrink_if_sparse();
        self.places.shrink_if_sparse();
        self.items -= read.readers.len();
        if let Some(moved) = self.read.get(place) {
            *self.places.get_mut(&moved.key).expect("each entry is found by its key") = place;
        }
        read
    }

    /// Records that a key changed.
    #[inline]
    pub fn note_change(&mut self, key: &[u8], by_client: bool) {
        if !self.read.is_empty() || !self.prefixes.is_empty() {
            self.note(key, by_client);
        }
    }

    #[cold]
    fn note(&mut self, key: &[u8], by_client: bool) {
        let read = self.places.get(key).copied().map(|place| self.remove(place));
        let is_broadcast = self.longest_prefix(key).is_some();
        if !self.is_on() || (read.is_none() && !is_broadcast) {
            return;
        }
        let Read { key, readers } =
            read.unwrap_or_else(|| Read { key: key.into(), readers: Readers::new() });
        let readers_bytes = if readers.spilled() { size_of_val(&*readers) } else { 0 };
        self.changes_bytes += size_of::<Change>() + key.len() + readers_bytes;
        self.changes.push(Change::Key { key, readers, by_client });
    }

    /// Records that databases were emptied. All keys are forgotten, because their databases are not
    /// known.
    pub fn note_all(&mut self) {
        self.forget_read();
        if self.is_on() {
            self.changes.push(Change::All);
        }
    }

    /// Whether there are pending changes.
    #[inline]
    pub fn has_changes(&self) -> bool {
        !self.changes.is_empty()
    }

    /// Approximate bytes of pending changes, which are freed after the command.
    pub fn changes_bytes(&self) -> usize {
        self.changes_bytes
    }

    /// Takes the pending changes, in order.
    pub fn take_changes(&mut self) -> Vec<Change> {
        self.changes_bytes = 0;
        mem::take(&mut self.changes)
    }

    /// Length of the longest tracked prefix of `text`. Cost: a look-up for each length at which
    /// prefixes diverge from it.
    fn longest_prefix(&self, text: &[u8]) -> Option<usize> {
        let mut text = text;
        loop {
            // A prefix sorts before the text; keys between the two share it.
            let up_to = (Bound::Unbounded, Bound::Included(text));
            let (name, _) = self.prefixes.range::<[u8], _>(up_to).next_back()?;
            let same = name.iter().zip(text).take_while(|(a, b)| a == b).count();
            if same == name.len() {
                return Some(same);
            }
            // A prefix of the text is not longer than what the text shares with this one.
            text = &text[..same];
        }
    }

    /// Collects a changed key for clients that track its prefixes. `by`: the client that changed
    /// it.
    pub fn collect(&mut self, key: &Arc<[u8]>, by: Option<ClientId>) {
        let mut rest = Some(&**key);
        while let Some(len) = rest.and_then(|rest| self.longest_prefix(rest)) {
            if let Some(prefix) = self.prefixes.get_mut(&key[..len]) {
                prefix.changed.insert(key.clone(), by);
                self.has_broadcasts = true;
            }
            rest = len.checked_sub(1).map(|len| &key[..len]);
        }
    }

    /// Whether keys have been collected.
    pub fn has_broadcasts(&self) -> bool {
        self.has_broadcasts
    }

    /// Takes the collected keys, ordered by prefix.
    pub fn take_broadcasts(&mut self) -> Vec<Broadcast> {
        self.has_broadcasts = false;
        let changed = self.prefixes.values_mut().filter(|prefix| !prefix.changed.is_empty());
        changed
            .map(|prefix| Broadcast {
                keys: mem::take(&mut prefix.changed),
                clients: prefix.clients.clone(),
            })
            .collect()
    }

    /// Whether more keys are tracked than `keys_max`. 0: no limit.
    #[inline]
    pub fn is_over(&self, keys_max: usize) -> bool {
        self.read.len() > keys_max && keys_max > 0 && self.is_on()
    }

    /// Removes a random key that has not changed. Its readers must be notified, as they would miss
    /// its next change.
    pub fn forget_random(&mut self) -> Option<(Arc<[u8]>, Readers)> {
        if self.read.is_empty() {
            return None;
        }
        let Read { key, readers } = self.remove(fastrand::usize(..self.read.len()));
        Some((key, readers))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn client(number: u64) -> ClientId {
        ClientId { slot: number as u32, number }
    }

    fn on() -> Tracking {
        let mut tracking = Tracking::default();
        tracking.enter();
        tracking
    }

    fn changed(key: &str, readers: &[u64], by_client: bool) -> Change {
        let readers = readers.iter().copied().map(client).collect();
        Change::Key { key: key.as_bytes().into(), readers, by_client }
    }

    #[test]
    fn a_change_is_told_to_each_reader_once() {
        let mut tracking = on();
        for number in [2, 1, 2] {
            tracking.remember(client(number), b"k");
        }
        assert_eq!((tracking.keys(), tracking.items()), (1, 2));
        tracking.note_change(b"other", true);
        assert!(!tracking.has_changes());
        tracking.note_change(b"k", false);
        tracking.note_change(b"k", true);
        assert_eq!(tracking.take_changes(), [changed("k", &[1, 2], false)]);
        assert_eq!((tracking.keys(), tracking.items()), (0, 0));
        assert!(!tracking.has_changes());
    }

    #[test]
    fn nobody_is_told_while_nobody_tracks() {
        let mut tracking = on();
        tracking.remember(client(1), b"k");
        tracking.remember(client(1), b"l");
        tracking.leave(client(1), std::iter::empty());
        tracking.note_change(b"k", true);
        tracking.note_all();
        assert!(!tracking.has_changes());
        assert_eq!((tracking.keys(), tracking.items()), (0, 0));
    }

    #[test]
    fn keys_are_collected_under_each_prefix_they_begin_with() {
        let mut tracking = on();
        for (number, prefix) in [(1, "a"), (2, "ab"), (2, ""), (2, ""), (3, "b")] {
            tracking.add_prefix(client(number), prefix.as_bytes());
        }
        assert_eq!(tracking.prefixes(), 4);
        for (key, by) in [("abc", Some(1)), ("a", None), ("abc", Some(2)), ("", None)] {
            tracking.note_change(key.as_bytes(), true);
            for change in tracking.take_changes() {
                let Change::Key { key, .. } = change else { panic!("no database was emptied") };
                tracking.collect(&key, by.map(client));
            }
        }
        assert!(tracking.has_broadcasts());
        let told: Vec<_> = tracking
            .take_broadcasts()
            .into_iter()
            .map(|told| {
                let keys = told.keys.into_iter();
                let keys = keys.map(|(key, by)| (String::from_utf8_lossy(&key).into_owned(), by));
                (told.clients, keys.collect::<Vec<_>>())
            })
            .collect();
        let key = |name: &str, by: Option<u64>| (name.to_owned(), by.map(client));
        assert_eq!(
            told,
            [
                (vec![client(2)], vec![key("", None), key("a", None), key("abc", Some(2))]),
                (vec![client(1)], vec![key("a", None), key("abc", Some(2))]),
                (vec![client(2)], vec![key("abc", Some(2))]),
            ]
        );
        assert!(!tracking.has_broadcasts());
        tracking.leave(client(1), [&b"a"[..]].into_iter());
        assert_eq!(tracking.prefixes(), 3);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn the_longest_prefix_is_found_as_by_trying_each(
            prefixes in prop::collection::vec("[ab]{0,4}", 0..8),
            keys in prop::collection::vec("[abc]{0,6}", 1..8),
        ) {
            let mut tracking = on();
            prefixes.iter().for_each(|prefix| tracking.add_prefix(client(1), prefix.as_bytes()));
            for key in &keys {
                let fitting = prefixes.iter().filter(|prefix| key.starts_with(prefix.as_str()));
                let longest = fitting.clone().map(String::len).max();
                prop_assert_eq!(tracking.longest_prefix(key.as_bytes()), longest);
                tracking.collect(&key.as_bytes().into(), None);
                let told = tracking.take_broadcasts().len();
                prop_assert_eq!(told, fitting.collect::<BTreeSet<_>>().len());
            }
        }

        /// Against a map from keys to readers.
        #[test]
        fn the_table_remembers_as_a_map_does(steps in prop::collection::vec((0..20u8, 0..5u64, 0..8u8), 1..200)) {
            let mut tracking = on();
            let mut model: BTreeMap<Vec<u8>, BTreeSet<ClientId>> = BTreeMap::new();
            for (key, number, step) in steps {
                let key = vec![b'k', key];
                match step {
                    0 => {
                        tracking.note_change(&key, true);
                        let told = model.remove(&key).map(|readers| Change::Key {
                            key: key.as_slice().into(),
                            readers: readers.into_iter().collect(),
                            by_client: true,
                        });
                        prop_assert_eq!(tracking.take_changes(), told.into_iter().collect::<Vec<_>>());
                    }
                    1 => match tracking.forget_random() {
                        Some((key, readers)) => {
                            let expected = model.remove(&*key).expect("a key that was read");
                            prop_assert_eq!(readers.to_vec(), expected.into_iter().collect::<Vec<_>>());
                        }
                        None => prop_assert!(model.is_empty()),
                    },
                    2 => {
                        tracking.note_gone();
                        while tracking.has_gone() {
                            tracking.forget_gone(3, |reader| reader != client(number));
                        }
                        for readers in model.values_mut() {
                            readers.remove(&client(number));
                        }
                        model.retain(|_, readers| !readers.is_empty());
                    }
                    _ => {
                        tracking.remember(client(number), &key);
                        model.entry(key).or_default().insert(client(number));
                    }
                }
                prop_assert_eq!(tracking.keys(), model.len());
                prop_assert_eq!(tracking.items(), model.values().map(BTreeSet::len).sum::<usize>());
                prop_assert_eq!(tracking.is_over(3), model.len() > 3);
            }
        }
    }
}
