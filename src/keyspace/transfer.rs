//! Moving and copying entries to another key or database, and adding values from DUMP payloads.
//!
//! A moved entry keeps its deadline, access bits and encoding; a copied one is new and keeps only
//! deadline and encoding. Both replace the target key's value without an event: the handler
//! announces it.

use super::db_index::DbIndex;
use crate::clock::Deadline;
use crate::collections::table::{NewValue, Slot, ValueRef};
use crate::config::KeyspaceEvents;
use crate::types::{Stored, Value, lock};

use super::{Cause, Key, Keyspace};

impl Keyspace {
    /// Moves key `from` of the selected database to `to` in `database`. False if `from` does not
    /// exist. Announces `new`.
    pub fn transfer(&mut self, from: Key<'_>, database: DbIndex, to: Key<'_>) -> bool {
        let Some(slot) = self.make_way(from, database, to) else {
            return false;
        };
        self.note_owner_at(slot, from);
        let slot = self.tables.transfer(self.selected, slot, database, to);
        // This is for clients that wait for, watch or track the old name. The handler announces the
        // new one.
        self.touch(self.selected, from.bytes, 0, Cause::Client);
        self.in_database(database, |db| {
            db.note_moved_field_deadlines(slot, to.bytes);
            db.note_moved_permits(slot, to.bytes);
            db.notify(KeyspaceEvents::NEW, "new", to.bytes);
        });
        true
    }

    /// Copies key `from` of the selected database to `to` in `database`. False if `from` does not
    /// exist. Announces `new`. Cost: the value's size.
    pub fn duplicate(&mut self, from: Key<'_>, database: DbIndex, to: Key<'_>) -> bool {
        let Some(slot) = self.make_way(from, database, to) else {
            return false;
        };
        let entry = self.entry(slot);
        let deadline = entry.deadline();
        // The table may move entries when it grows for the copy.
        let copied;
        let value = match entry.value() {
            ValueRef::Bytes { bytes, kind } => {
                copied = bytes.to_vec();
                NewValue::Bytes { bytes: &copied, kind }
            }
            ValueRef::Object(object) => NewValue::Object(Box::new(object.clone())),
        };
        self.in_database(database, |db| {
            let slot = db.insert(to, value, deadline);
            db.note_moved_field_deadlines(slot, to.bytes);
            db.note_moved_permits(slot, to.bytes);
            db.notify(KeyspaceEvents::NEW, "new", to.bytes);
        });
        true
    }

    /// Notes a semaphore under its new name: its permits end by time.
    fn note_moved_permits(&mut self, slot: Slot, key: &[u8]) {
        if lock::is_semaphore(self.entry(slot).value()) {
            self.semaphores.note(self.selected, key);
        }
    }

    /// Sets a key to a value, replacing any other. A blessed key stays blessed. Announces `new`.
    pub fn restore(&mut self, key: Key<'_>, value: Stored, deadline: Option<Deadline>) -> Slot {
        let was_blessed = self.find(key).is_some_and(|slot| self.is_blessed(slot));
        self.clear_way(key);
        let slot = match value {
            Stored::Inline { kind, bytes } => {
                self.insert(key, NewValue::Bytes { bytes: &bytes, kind }, deadline)
            }
            Stored::Boxed(mut value) => {
                // Pending entries that come from elsewhere have Unix times.
                if let Value::Stream(stream) = &mut value
                    && self.lease_shift_ms() != 0
                {
                    stream.groups.move_times(-self.lease_shift_ms());
                }
                let slot = self.insert(key, NewValue::Object(Box::new(value)), deadline);
                self.note_loaded_producers(slot);
                self.note_moved_field_deadlines(slot, key.bytes);
                slot
            }
        };
        if was_blessed {
            self.set_blessed(slot, true);
        }
        self.notify(KeyspaceEvents::NEW, "new", key.bytes);
        slot
    }

    /// Deletes `to` in `database`, unless `from` is absent. Returns the slot of `from`, which must
    /// be another key.
    fn make_way(&mut self, from: Key<'_>, database: DbIndex, to: Key<'_>) -> Option<Slot> {
        debug_assert!(database != self.selected || from.bytes != to.bytes);
        self.find(from)?;
        self.in_database(database, |db| db.clear_way(to));
        // Looked up again, as the deletion may have moved it.
        self.find(from)
    }

    /// Deletes a key without an event.
    pub fn clear_way(&mut self, key: Key<'_>) {
        match self.find(key) {
            Some(slot) => {
                self.note_owner_at(slot, key);
                if let Some(owned) = self.tables.remove(self.selected, slot) {
                    self.lazyfree.discard(owned);
                }
            }
            None => self.make_way_for(key),
        }
    }
}
