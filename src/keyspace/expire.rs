//! Deleting keys whose deadline has passed: when they are met (lazily), and all of them within the turn they are due
//! (actively), from the index of deadlines inside the table. Fields of hashes: `field_deadlines.rs`.

use crate::collections::table::Slot;

use super::Keyspace;
use crate::config::KeyspaceEvents;

impl Keyspace {
    /// Deletes the key at `slot`, which is past its deadline.
    #[cold]
    pub(super) fn remove_expired(&mut self, slot: Slot) {
        let owned = self.tables.remove_for_good(self.selected, slot);
        self.announce_expired(owned.key());
        self.lazyfree.discard(owned);
    }

    fn announce_expired(&mut self, key: &[u8]) {
        self.stats.expired += 1;
        self.changed(KeyspaceEvents::EXPIRED, "expired", key);
    }

    /// Deletes due keys, at most about `budget` buckets' worth. True if more may be due now.
    pub fn expire_due(&mut self, budget: usize) -> bool {
        if !self.active_expire {
            return false;
        }
        let now = self.now;
        let mut budget = budget;
        let before = self.selected;
        for index in 0..self.tables.len() {
            if self.tables[index].volatile_len() == 0 {
                continue;
            }
            self.selected = index;
            while let Some(owned) = self.tables.pop_due(index, &now, &mut budget) {
                self.announce_expired(owned.key());
                self.lazyfree.discard(owned);
            }
            if budget == 0 {
                self.selected = before;
                return true;
            }
        }
        self.selected = before;
        false
    }

    /// Milliseconds until a deadline may have passed; None if no key and no field has one. Never too long.
    pub fn next_due_in_ms(&self) -> Option<i64> {
        if !self.active_expire {
            return None;
        }
        let keys = self.tables.iter().filter_map(|table| table.next_due_boot_ms()).min();
        let next = keys.into_iter().chain(self.next_field_boot_ms()).min()?;
        // Gone strictly later than the deadline.
        Some(next.saturating_add(1).saturating_sub(self.now.boot_ms()).max(0))
    }
}
