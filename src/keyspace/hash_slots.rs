//! The keys of a cluster's hash slots, and their deletion when a slot belongs to another node.

use super::db_index::DbIndex;
use super::{Key, Keyspace};
use crate::collections::hash_slot::{HashSlot, SlotSet};
use crate::collections::table::Table;

impl Keyspace {
    /// Counts the keys of each hash slot, for a node of a cluster. Call this before there are keys.
    pub fn keep_slots(&mut self) {
        self.tables.keep_slots();
    }

    /// Keys of a slot in a database, including expired ones.
    pub fn count_in_slot(&self, database: DbIndex, slot: HashSlot) -> usize {
        self.tables[database].count_in_slot(slot)
    }

    /// Whether any database has keys of a slot.
    pub fn has_keys_in_slot(&self, slot: HashSlot) -> bool {
        self.tables.iter().any(|table| table.count_in_slot(slot) > 0)
    }

    /// Continues the lists of the slots' keys, until more than about `most` keys were added or the
    /// lists are whole. True: they are.
    pub fn list_slots_on(&mut self, most: usize) -> bool {
        self.tables.list_slots_on(most)
    }

    /// The number of keys in all databases, including expired ones.
    pub fn keys_in_all(&self) -> usize {
        self.tables.iter().map(Table::len).sum()
    }

    /// Makes the lists whole. O(N), N being the number of keys.
    pub fn list_slots(&mut self) {
        while !self.list_slots_on(usize::MAX) {}
    }

    /// Whether the lists of the slots' keys are whole.
    pub fn are_slots_listed(&self) -> bool {
        !self.tables.iter().any(Table::lacks_slot_list)
    }

    /// Drops the lists of the slots' keys. A thread frees their memory.
    pub fn forget_slot_lists(&mut self) {
        let bytes = self.slot_lists_bytes();
        self.lazyfree.discard_index(self.tables.take_slot_lists(), bytes);
    }

    /// Bytes of the lists of the slots' keys.
    pub fn slot_lists_bytes(&self) -> usize {
        self.tables.iter().map(Table::slot_list_memory).sum()
    }

    /// The place of a key in the order of a slot's list.
    pub fn number_in_slots(&self, key: Key<'_>) -> u64 {
        self.table().number_in_slots(key.hash, key.bytes)
    }

    /// Whether a key is hidden, because its slot is hidden.
    pub fn is_hidden(&self, key: &[u8]) -> bool {
        is_of(self.hidden_slots.as_ref(), key)
    }

    /// The number of keys of a database that are not hidden.
    pub fn shown_len(&self, database: DbIndex) -> usize {
        let table = &self.tables[database];
        let hidden = self.hidden_slots.iter().flat_map(SlotSet::iter);
        table.len() - hidden.map(|slot| table.count_in_slot(slot)).sum::<usize>()
    }

    /// The slots with keys in any database.
    pub fn slots_with_keys(&self) -> SlotSet {
        let mut slots = SlotSet::default();
        for table in self.tables.iter() {
            slots.extend(table.slots_with_keys().iter());
        }
        slots
    }

    /// A key of a slot, with its database. Deletes expired keys of the slot until it finds one. The
    /// slots' keys are listed first, if they are not.
    pub fn key_in_slot(&mut self, slot: HashSlot) -> Option<(DbIndex, Box<[u8]>)> {
        self.delete_found_expired();
        if !self.has_keys_in_slot(slot) {
            return None;
        }
        self.list_slots();
        for database in DbIndex::all(self.databases()) {
            loop {
                let list = self.tables[database].slot_list();
                let first = list.and_then(|list| list.keys_in_slot(slot).next());
                let Some(at) = first else { break };
                let entry = self.tables[database].entry(at);
                if !entry.deadline().is_some_and(|deadline| self.now.is_past(deadline)) {
                    return Some((database, entry.key().into()));
                }
                self.in_database(database, |keyspace| keyspace.remove_expired(at));
            }
        }
        None
    }
}

/// Whether a key is in one of these slots. None stands for no slots.
#[inline]
pub(super) fn is_of(slots: Option<&SlotSet>, key: &[u8]) -> bool {
    slots.is_some_and(|slots| slots.contains(HashSlot::of(key)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, ManualClock, UnixMillis};
    use crate::collections::hash::KeyHasher;
    use crate::collections::table::KEPT_MS;
    use crate::keyspace::Expiry;
    use crate::types::hash::{Hash, Limits};
    use crate::types::journal::Edit;

    #[test]
    fn due_keys_and_fields_that_are_not_shown_stay_until_they_are() {
        let hands = ManualClock::new(UnixMillis(1_700_000_000_000));
        let clock = Clock::Manual(hands.clone());
        let mut keyspace = Keyspace::new(1, KeyHasher::new([1, 2]), clock.now());
        keyspace.keep_slots();
        let soon = clock.now().after(100);
        let limits = Limits { entries_max: 8, bytes_max: 64, hasher: KeyHasher::new([1, 2]) };
        for tag in ["{coming}", "{own}"] {
            for number in 0..50 {
                let name = format!("{tag}{number}");
                let key = keyspace.key(name.as_bytes());
                keyspace.set_string(key, b"value", Expiry::At(soon));
            }
            let name = format!("{tag}hash");
            let key = keyspace.key(name.as_bytes());
            let mut hash = Hash::default();
            let at = Expiry::At(soon);
            Edit::unnoted(&mut hash).set(b"field", b"value", at, &limits, &clock.now());
            keyspace.insert_collection(key, hash);
            let slot = keyspace.find(key).expect("it is there");
            keyspace.note_field_deadlines(slot, key.bytes);
        }
        let coming = HashSlot::of(b"coming");
        keyspace.hidden_slots = Some([coming].into_iter().collect());
        let pass = |keyspace: &mut Keyspace, ms: i64| {
            hands.advance_us(ms * 1000);
            keyspace.set_now(clock.now());
            assert!(!keyspace.expire_due(10_000) && !keyspace.expire_fields(10_000));
            let due_ms = keyspace.next_due_in_ms();
            (keyspace.count_in_slot(DbIndex::ZERO, coming), keyspace.table().len(), due_ms)
        };
        // Kept keys are not checked again and again.
        let again_ms = Some(i64::from(KEPT_MS) + 1);
        assert_eq!(pass(&mut keyspace, 101), (51, 51, again_ms));
        assert_eq!(pass(&mut keyspace, 2_000), (51, 51, again_ms));
        keyspace.hidden_slots = None;
        assert_eq!(pass(&mut keyspace, i64::from(KEPT_MS) + 1), (0, 0, None));
    }

    #[test]
    fn the_keys_of_a_slot_are_deleted_in_all_databases() {
        let mut keyspace = Keyspace::new(2, KeyHasher::new([1, 2]), Clock::System.now());
        keyspace.keep_slots();
        for number in 0..100 {
            keyspace.select(DbIndex::new(number % 2));
            let key = format!("{{a}}{number}");
            let key = keyspace.key(key.as_bytes());
            keyspace.set_string(key, b"value", Expiry::Clear);
        }
        let slot = HashSlot::of(b"a");
        assert_eq!(
            (
                keyspace.count_in_slot(DbIndex::ZERO, slot),
                keyspace.count_in_slot(DbIndex::new(1), slot)
            ),
            (50, 50)
        );
        assert!(
            !keyspace.are_slots_listed() && keyspace.tables[DbIndex::new(1)].slot_list().is_none()
        );
        keyspace.list_slots();
        let list = keyspace.tables[DbIndex::new(1)].slot_list().expect("it is whole");
        assert_eq!(list.keys_in_slot(slot).count(), 50);
        assert!(keyspace.slot_lists_bytes() >= 600);
        keyspace.forget_slot_lists();
        assert_eq!(keyspace.slot_lists_bytes(), 0);
        let mut deleted = 0;
        while let Some((database, key)) = keyspace.key_in_slot(slot) {
            let is_deleted = keyspace.in_database(database, |keyspace| {
                let key = keyspace.key(&key);
                keyspace.delete(key, "del")
            });
            assert!(is_deleted);
            deleted += 1;
        }
        assert_eq!((deleted, keyspace.has_keys_in_slot(slot)), (100, false));
        assert!(keyspace.slots_with_keys().is_empty());
    }
}
