//! Locks and semaphores that have come from another server by RESTORE or with their slot, and are
//! not in the index of locks yet. Those of hidden slots wait until this node owns the slots.

use std::collections::{BTreeMap, BTreeSet};

use super::db_index::DbIndex;
use super::locks::Loaded;
use super::{Key, Keyspace};
use crate::collections::hash_slot::{HashSlot, SlotSet};
use crate::collections::table::Slot;
use crate::types::lock;

/// Names of a slot that are kept besides those of its keys, before gone ones are looked for.
const GONE_KEPT: usize = 1000;

/// Database and key.
type Name = (DbIndex, Box<[u8]>);

/// See the module. A name may be that of a key that has gone since.
#[derive(Default)]
pub struct Coming {
    hidden: BTreeMap<HashSlot, BTreeSet<Name>>,
    shown: BTreeMap<HashSlot, BTreeSet<Name>>,
}

impl Coming {
    /// Notes a lock. Returns the number of names of its slot.
    fn note(&mut self, database: DbIndex, key: &[u8], hidden: Option<&SlotSet>) -> usize {
        let slot = HashSlot::of(key);
        let is_hidden = hidden.is_some_and(|hidden| hidden.contains(slot));
        let names = if is_hidden { &mut self.hidden } else { &mut self.shown };
        let names = names.entry(slot).or_default();
        names.insert((database, key.into()));
        names.len()
    }

    /// Shows the locks of slots that are no longer hidden.
    fn reveal(&mut self, hidden: Option<&SlotSet>) {
        let is_shown = |slot: &HashSlot| !hidden.is_some_and(|hidden| hidden.contains(*slot));
        let slots: Vec<HashSlot> = self.hidden.keys().copied().filter(is_shown).collect();
        for slot in slots {
            // Millions of names are not moved one by one.
            let mut names = self.hidden.remove(&slot).unwrap_or_default();
            let shown = self.shown.entry(slot).or_default();
            if shown.len() < names.len() {
                std::mem::swap(shown, &mut names);
            }
            shown.append(&mut names);
        }
    }

    /// Whether locks of shown slots are to be indexed.
    #[inline]
    pub fn has_shown(&self) -> bool {
        !self.shown.is_empty()
    }

    /// Whether a key of a shown slot is to be indexed.
    pub fn is_shown(&self, database: DbIndex, key: &[u8]) -> bool {
        let names = self.shown.get(&HashSlot::of(key));
        names.is_some_and(|names| names.contains(&(database, key.into())))
    }

    /// Takes the next name of a shown slot.
    pub fn take_shown(&mut self) -> Option<Name> {
        let mut first = self.shown.first_entry()?;
        let name = first.get_mut().pop_first();
        if first.get().is_empty() {
            first.remove();
        }
        name
    }
}

impl Keyspace {
    /// Sets the slots whose keys are hidden: those that are still arriving, and those whose keys
    /// are being deleted.
    pub fn hide_slots(&mut self, hidden: Option<SlotSet>) {
        self.coming.reveal(hidden.as_ref());
        self.hidden_slots = hidden;
    }

    /// Notes a lock or semaphore of the selected database that comes from another server and is
    /// indexed later.
    pub fn note_coming(&mut self, key: &[u8]) {
        self.note_coming_to(self.selected, key);
    }

    fn note_coming_to(&mut self, database: DbIndex, key: &[u8]) {
        let names = self.coming.note(database, key, self.hidden_slots.as_ref());
        if names <= GONE_KEPT || !self.is_hidden(key) {
            return;
        }
        let slot = HashSlot::of(key);
        let keys: usize = self.tables.iter().map(|table| table.count_in_slot(slot)).sum();
        // At the source any number of locks may come and go.
        if names > 2 * keys + GONE_KEPT {
            let mut names = self.coming.hidden.remove(&slot).unwrap_or_default();
            names.retain(|(database, name)| {
                let key = self.key(name);
                self.tables[*database].find(key.hash, key.bytes).is_some()
            });
            self.coming.hidden.insert(slot, names);
        }
    }

    /// Adds the value of a key of the selected database to the index, if it is a lock or semaphore.
    /// True: it is a lock that was not there.
    pub fn index_lock(&mut self, key: Key<'_>) -> bool {
        self.find_quietly(key).is_some_and(|slot| self.index_lock_at(self.selected, slot))
    }

    /// The same for a looked-up key. One of a hidden slot is indexed later.
    pub(super) fn index_lock_at(&mut self, database: DbIndex, slot: Slot) -> bool {
        let entry = self.tables[database].entry(slot);
        // A lock has a deadline, and a semaphore usually has one.
        let loaded = entry.deadline().and_then(|_| Loaded::of(entry.value(), &self.now));
        if loaded.is_none() && !lock::is_semaphore(entry.value()) {
            return false;
        }
        if self.is_hidden(entry.key()) {
            let key = entry.key().to_vec();
            self.note_coming_to(database, &key);
            return false;
        }
        match loaded {
            Some(loaded) => self.locks.note_loaded(database, entry.key(), loaded, &self.now),
            None => {
                self.locks.fences.learn(lock::newest_fence(entry.value()));
                self.semaphores.note(database, entry.key());
                false
            }
        }
    }

    /// Notes a restored key: a lock or semaphore is indexed. If a client has restored it, the index
    /// first loses the lock that it has replaced, whose holder is notified.
    pub fn note_restored(&mut self, slot: Slot, key: &[u8], is_repeated: bool) {
        let value = self.entry(slot).value();
        if lock::fence_of(value, &self.now).is_none() && !lock::is_semaphore(value) {
            return;
        }
        match is_repeated {
            true => _ = self.index_lock_at(self.selected, slot),
            false => self.note_coming(key),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_of_hidden_slots_are_shown_with_their_slot() {
        let mut coming = Coming::default();
        let database = DbIndex::new(2);
        let hidden: SlotSet = [HashSlot::of(b"{a}"), HashSlot::of(b"{b}")].into_iter().collect();
        for key in [&b"{a}1"[..], b"{a}2", b"{b}1", b"{a}1", b"{c}1"] {
            coming.note(database, key, Some(&hidden));
        }
        assert!(coming.is_shown(database, b"{c}1") && !coming.is_shown(database, b"{a}1"));
        assert!(!coming.is_shown(DbIndex::ZERO, b"{c}1") && !coming.is_shown(database, b"{c}"));
        assert_eq!(coming.take_shown(), Some((database, b"{c}1"[..].into())));
        assert!(!coming.has_shown() && coming.take_shown().is_none());
        coming.reveal(Some(&[HashSlot::of(b"{b}")].into_iter().collect()));
        assert!(coming.is_shown(database, b"{a}2") && !coming.is_shown(database, b"{b}1"));
        coming.reveal(None);
        let mut names = Vec::new();
        while let Some((_, key)) = coming.take_shown() {
            names.push(key);
        }
        names.sort();
        assert_eq!(names, [b"{a}1"[..].into(), b"{a}2"[..].into(), b"{b}1"[..].into()]);
    }
}
