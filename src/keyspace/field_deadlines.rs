//! Which hashes have fields that expire, and when: so that fields are deleted in the turn they are due.
//!
//! For each database the keys of such hashes lie in order of their first deadline, separately for the two clocks. An item here
//! counts only if the hash under its key has noted the same deadline ([`HashTable::noted`]); so nobody who deletes,
//! overwrites or moves a key has to think of it: an item whose hash is gone costs a look when its time comes, or when there
//! are many of them. What a deadline is and which fields have one, the hash knows alone.

use std::collections::BTreeSet;

use crate::clock::Now;
use crate::collections::packed_table::Earliest;
use crate::collections::table::{Slot, ValueRef};
use crate::config::KeyspaceEvents;
use crate::types::Value;
use crate::types::hash::{Hash, HashTable};

use super::Keyspace;

/// Items up to which stale ones are not worth looking for.
const SWEEP_MIN: usize = 1024;

/// One database's keys by the deadlines of their fields.
#[derive(Debug, Default)]
pub struct FieldDeadlines {
    boot: BTreeSet<(i64, Box<[u8]>)>,
    wall: BTreeSet<(i64, Box<[u8]>)>,
    /// Number of items at which stale ones are dropped.
    sweep_at: usize,
}

/// One of the two clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClockOf {
    Boot,
    Wall,
}

impl ClockOf {
    fn ms(self, now: &Now) -> i64 {
        match self {
            ClockOf::Boot => now.boot_ms(),
            ClockOf::Wall => now.unix().0,
        }
    }

    fn of(self, earliest: &mut Earliest) -> &mut i64 {
        match self {
            ClockOf::Boot => &mut earliest.boot_ms,
            ClockOf::Wall => &mut earliest.wall_ms,
        }
    }
}

const CLOCKS: [ClockOf; 2] = [ClockOf::Boot, ClockOf::Wall];

impl FieldDeadlines {
    fn of(&mut self, clock: ClockOf) -> &mut BTreeSet<(i64, Box<[u8]>)> {
        match clock {
            ClockOf::Boot => &mut self.boot,
            ClockOf::Wall => &mut self.wall,
        }
    }

    fn len(&self) -> usize {
        self.boot.len() + self.wall.len()
    }

    /// Milliseconds of the boot-time clock at which the first item's deadline ends.
    fn next_boot_ms(&self, wall_offset_ms: i64) -> Option<i64> {
        let boot = self.boot.first().map(|item| item.0);
        let wall = self.wall.first().map(|item| item.0.saturating_sub(wall_offset_ms));
        boot.into_iter().chain(wall).min()
    }
}

impl Keyspace {
    fn hash_table_mut(&mut self, slot: Slot) -> Option<&mut HashTable> {
        match self.table_mut().object_mut(slot) {
            Some(Value::Hash(hash)) => hash.table_mut(),
            _ => None,
        }
    }

    /// Takes note of when the first field of the hash at `slot` is due. To be called when a field has got a deadline, and
    /// when a hash has come to lie under this key; anything else at `slot` is passed over.
    pub fn note_field_deadlines(&mut self, slot: Slot, key: &[u8]) {
        let Some(hash) = self.hash_table_mut(slot) else { return };
        let mut earliest = hash.earliest();
        let mut noted = hash.noted;
        if earliest.min(noted) == noted {
            return;
        }
        hash.noted = noted.min(earliest);
        let fields = &mut self.fields[self.selected];
        for clock in CLOCKS {
            let (new, old) = (*clock.of(&mut earliest), *clock.of(&mut noted));
            if new < old {
                let items = fields.of(clock);
                items.remove(&(old, key.into()));
                items.insert((new, key.into()));
            }
        }
        if fields.len() > fields.sweep_at.max(SWEEP_MIN) {
            self.sweep_field_deadlines();
        }
    }

    /// The same for a hash that came to this key from another one, noted there or not.
    pub(super) fn note_moved_field_deadlines(&mut self, slot: Slot, key: &[u8]) {
        if let Some(hash) = self.hash_table_mut(slot) {
            hash.noted = Earliest::NEVER;
            self.note_field_deadlines(slot, key);
        }
    }

    /// Drops items whose hash is gone, as often as their number has doubled.
    fn sweep_field_deadlines(&mut self) {
        let mut fields = std::mem::take(&mut self.fields[self.selected]);
        for clock in CLOCKS {
            fields.of(clock).retain(|(ms, key)| self.noting(clock, *ms, key).is_some());
        }
        fields.sweep_at = 2 * fields.len();
        self.fields[self.selected] = fields;
    }

    /// The slot of the hash that has noted this deadline.
    fn noting(&self, clock: ClockOf, ms: i64, key: &[u8]) -> Option<Slot> {
        let slot = self.table().find(self.hash(key), key)?;
        match self.entry(slot).value() {
            ValueRef::Object(Value::Hash(Hash::Table(hash))) => {
                let mut noted = hash.noted;
                (*clock.of(&mut noted) == ms).then_some(slot)
            }
            _ => None,
        }
    }

    /// Deletes due fields, looking at no more than about `budget` pages of hashes. True if more may be due now. Announces
    /// `hexpired` for each hash, and `del` for one that has lost its last field.
    pub fn expire_fields(&mut self, budget: usize) -> bool {
        if !self.active_expire || self.next_field_boot_ms().is_none() {
            return false;
        }
        let now = self.now;
        let mut budget = budget;
        let before = self.selected;
        for index in 0..self.tables.len() {
            self.selected = index;
            for clock in CLOCKS {
                while budget > 0
                    && let Some(first) = self.fields[index].of(clock).first()
                    && first.0 < clock.ms(&now)
                {
                    budget -= 1;
                    if let Some((ms, key)) = self.fields[index].of(clock).pop_first()
                        && let Some(slot) = self.noting(clock, ms, &key)
                    {
                        self.expire_fields_of(slot, &key, clock, &mut budget);
                    }
                }
            }
        }
        self.selected = before;
        budget == 0
    }

    /// Deletes the due fields of the hash at `slot`, whose item for this clock has been taken out.
    fn expire_fields_of(&mut self, slot: Slot, key: &[u8], clock: ClockOf, budget: &mut usize) {
        let now = self.now;
        let Some(Value::Hash(hash)) = self.table_mut().object_mut(slot) else { return };
        if let Some(hash) = hash.table_mut() {
            *clock.of(&mut hash.noted) = i64::MAX;
        }
        let removed = hash.remove_due(&now, budget);
        if removed > 0 {
            self.stats.expired_fields += removed as u64;
            self.changed(KeyspaceEvents::HASH, "hexpired", key);
            self.dirty += removed as u64 - 1;
            let key = self.key(key);
            if self.delete_if_empty::<Hash>(slot, key) {
                return;
            }
        }
        self.note_field_deadlines(slot, key);
    }

    /// Milliseconds of the boot-time clock at which a field may be due.
    pub(super) fn next_field_boot_ms(&self) -> Option<i64> {
        let offset = self.now.wall_offset_ms();
        self.fields.iter().filter_map(|fields| fields.next_boot_ms(offset)).min()
    }
}
