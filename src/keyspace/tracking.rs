//! Keys that clients hold copies of, so that each copy is declared invalid when its key changes.
//!
//! A client that tracks what it reads stands at each key it has read, until the key changes: that ends the entry, for the
//! client will read the key anew if it wants it again. A client that tracks prefixes stands at those instead, and nothing is
//! kept for the keys. Every change of a key comes by here ([`Keyspace::changed`](super::Keyspace::changed)) and is put on a
//! list, if it concerns anybody; `command/client_tracking.rs` takes it from there once the command has run, sends the
//! readers their messages, and collects the keys of each prefix for the end of the turn.
//!
//! A client that goes, or ends its tracking, stays at the keys it has read: to find them all would take long. Whoever gets a
//! list of readers sees which of them are still there.
//!
//! Databases are not told apart: a key of that name has changed somewhere.

use std::collections::{BTreeMap, HashMap};
use std::mem;
use std::ops::Bound;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::ids::ClientId;

/// Who has read a key, in the order of their ids. Most keys have one reader.
pub type Readers = SmallVec<[ClientId; 1]>;

/// Something that makes copies invalid.
#[derive(Debug, PartialEq, Eq)]
pub enum Change {
    /// A key has changed, or gone.
    Key {
        key: Arc<[u8]>,
        readers: Readers,
        /// Not by its time or by eviction, but by what a client did.
        by_client: bool,
    },
    /// Whole databases were emptied.
    All,
}

/// A key and who has read it.
struct Read {
    key: Arc<[u8]>,
    readers: Readers,
}

/// A prefix and what has happened under it in this turn.
#[derive(Default)]
struct Prefix {
    /// In the order of their ids.
    clients: Vec<ClientId>,
    /// The keys that changed, each with the client that changed it last.
    changed: BTreeMap<Arc<[u8]>, Option<ClientId>>,
}

/// The keys that changed under one prefix, each with the client that changed it last, and who tracks the prefix.
pub struct Broadcast {
    pub keys: BTreeMap<Arc<[u8]>, Option<ClientId>>,
    pub clients: Vec<ClientId>,
}

/// Who holds copies of what.
#[derive(Default)]
pub struct Tracking {
    /// Clients that track, in either way.
    clients: usize,
    /// In no order, so that a random one is found at once.
    read: Vec<Read>,
    /// Places in `read`.
    places: HashMap<Arc<[u8]>, usize>,
    /// Readers of all keys together.
    items: usize,
    prefixes: BTreeMap<Box<[u8]>, Prefix>,
    changes: Vec<Change>,
    /// About how many bytes `changes` holds.
    changes_bytes: usize,
    /// A key has changed under some prefix since the last broadcast.
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

    /// Keys that somebody has read.
    pub fn keys(&self) -> usize {
        self.read.len()
    }

    /// Readers of all keys together; who has gone since is counted.
    pub fn items(&self) -> usize {
        self.items
    }

    /// Prefixes that somebody tracks.
    pub fn prefixes(&self) -> usize {
        self.prefixes.len()
    }

    /// Counts a client that begins to track.
    pub fn enter(&mut self) {
        self.clients += 1;
    }

    /// Counts a client out that tracks no more, and takes it from its prefixes.
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

    /// Has a client track all keys that begin so. It may do so already.
    pub fn add_prefix(&mut self, id: ClientId, prefix: &[u8]) {
        let prefix = self.prefixes.entry(prefix.into()).or_default();
        if let Err(at) = prefix.clients.binary_search(&id) {
            prefix.clients.insert(at, id);
        }
    }

    /// Notes that a client has read a key.
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

    /// Takes out the entry at a place of `read`.
    fn remove(&mut self, place: usize) -> Read {
        let read = self.read.swap_remove(place);
        self.places.remove(&read.key);
        self.items -= read.readers.len();
        if let Some(moved) = self.read.get(place) {
            *self.places.get_mut(&moved.key).expect("each entry is found by its key") = place;
        }
        read
    }

    /// Says that a key changed.
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

    /// Says that whole databases were emptied, others perhaps not: nobody knows which keys were in which.
    pub fn note_all(&mut self) {
        self.read = Vec::new();
        self.places = HashMap::new();
        self.items = 0;
        if self.is_on() {
            self.changes.push(Change::All);
        }
    }

    /// Whether there is something to tell.
    #[inline]
    pub fn has_changes(&self) -> bool {
        !self.changes.is_empty()
    }

    /// About how many bytes it takes to remember what there is to tell: free again once the command has run.
    pub fn changes_bytes(&self) -> usize {
        self.changes_bytes
    }

    /// What there is to tell, in the order it happened.
    pub fn take_changes(&mut self) -> Vec<Change> {
        self.changes_bytes = 0;
        mem::take(&mut self.changes)
    }

    /// Bytes of the longest prefix that `text` begins with. Cost: a look-up for each length at which a prefix parts from it.
    fn longest_prefix(&self, text: &[u8]) -> Option<usize> {
        let mut text = text;
        loop {
            // A prefix stands before what it begins; what lies between the two begins with it too.
            let up_to = (Bound::Unbounded, Bound::Included(text));
            let (name, _) = self.prefixes.range::<[u8], _>(up_to).next_back()?;
            let same = name.iter().zip(text).take_while(|(a, b)| a == b).count();
            if same == name.len() {
                return Some(same);
            }
            // No prefix of the text is longer than what it shares with this one.
            text = &text[..same];
        }
    }

    /// Collects a changed key for who tracks its prefixes. `by`: the client that changed it.
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

    /// The collected keys, the prefixes in their order.
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

    /// Whether more keys are remembered than may be, while somebody tracks. `keys_max` 0: no limit.
    #[inline]
    pub fn is_over(&self, keys_max: usize) -> bool {
        self.read.len() > keys_max && keys_max > 0 && self.is_on()
    }

    /// Forgets a random key, which has not changed. Its readers are to be told: they would not hear of its next change.
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
