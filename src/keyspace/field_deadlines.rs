//! An index of hashes with expiring fields, so that fields are deleted in the turn in which they
//! are due.
//!
//! Each database has the keys of such hashes in the order of their first deadline, one set for each
//! clock. An item is valid only if the hash under its key has noted the same deadline
//! ([`HashTable::noted`]). So deleting, overwriting or moving a key need not update the index: a
//! stale item is dropped at its time, or in a sweep. Only the hash itself knows the deadlines of
//! single fields.

use std::collections::{BTreeSet, HashSet};

use super::db_index::DbIndex;
use crate::clock::{ExpiryBy, Now};
use crate::collections::packed_table::Earliest;
use crate::collections::table::{KEPT_MS, Slot, ValueRef};
use crate::config::KeyspaceEvents;
use crate::types::Value;
use crate::types::hash::{Hash, HashTable};

use super::{Key, Keyspace};

/// Stale items are not swept below this number of items.
const SWEEP_MIN: usize = 1024;

/// Items sampled to count keys with expiring fields.
const COUNTED_MAX: usize = 10_000;

/// One database's keys by the deadlines of their fields.
#[derive(Debug, Default)]
pub struct FieldDeadlines {
    boot: BTreeSet<(i64, Box<[u8]>)>,
    wall: BTreeSet<(i64, Box<[u8]>)>,
    /// Number of items at which stale ones are swept.
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

    /// The first item's deadline in milliseconds of the boot-time clock.
    #[inline]
    fn next_boot_ms(&self, wall_offset_ms: i64) -> Option<i64> {
        // Each turn asks all databases twice, and most of them have no such field.
        if self.len() == 0 {
            return None;
        }
        let boot = self.boot.first().map(|item| item.0);
        let wall = self.wall.first().map(|item| item.0.saturating_sub(wall_offset_ms));
        boot.into_iter().chain(wall).min()
    }
}

impl Keyspace {
    /// The hash table at `slot`, only for noting deadlines, which a script's rollback need not
    /// undo.
    fn hash_table_mut(&mut self, slot: Slot) -> Option<&mut HashTable> {
        match self.tables.unchanged_object_mut(self.selected, slot) {
            Some(Value::Hash(hash)) => hash.table_mut(),
            _ => None,
        }
    }

    /// Adds the hash at `slot` to the index with its first deadline. Call this when a field has
    /// been given a deadline, and when a hash was put under this key. Ignores other types.
    pub fn note_field_deadlines(&mut self, slot: Slot, key: &[u8]) {
        let Some(hash) = self.hash_table_mut(slot) else { return };
        let mut earliest = hash.earliest();
        let mut noted = hash.noted;
        hash.noted = noted.min(earliest);
        if earliest != Earliest::NEVER {
            self.note_own_volatile(key);
        }
        if earliest.min(noted) == noted {
            return;
        }
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

    /// The same for a hash that was moved from another key, and may be in the index for that key.
    pub(super) fn note_moved_field_deadlines(&mut self, slot: Slot, key: &[u8]) {
        if let Some(hash) = self.hash_table_mut(slot) {
            hash.noted = Earliest::NEVER;
            self.note_field_deadlines(slot, key);
        }
    }

    /// Drops stale items each time the number of items has doubled.
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

    /// Deletes due fields, checking at most about `budget` pages of hashes. True if more may be
    /// due. Announces `hexpired` for each hash, and `del` for an emptied one.
    pub fn expire_fields(&mut self, budget: usize) -> bool {
        if !self.expires_by_itself() || self.next_field_boot_ms().is_none() {
            return false;
        }
        self.delete_found_expired();
        let now = self.now;
        let mut budget = budget;
        let before = self.selected;
        for database in DbIndex::all(self.tables.len()) {
            self.selected = database;
            for clock in CLOCKS {
                while budget > 0
                    && let Some(first) = self.fields[database].of(clock).first()
                    && first.0 < clock.ms(&now)
                {
                    budget -= 1;
                    if let Some((ms, key)) = self.fields[database].of(clock).pop_first()
                        && let Some(slot) = self.noting(clock, ms, &key)
                    {
                        if self.is_hidden(&key) {
                            self.look_again(slot, key, clock);
                            continue;
                        }
                        let before = self.stats.expired_fields;
                        self.expire_fields_of(slot, &key, clock, &mut budget);
                        self.stats.expired_fields_actively += self.stats.expired_fields - before;
                    }
                }
            }
        }
        self.selected = before;
        budget == 0
    }

    /// Keeps a hash with due fields, and looks at it again after [`KEPT_MS`].
    #[cold]
    fn look_again(&mut self, slot: Slot, key: Box<[u8]>, clock: ClockOf) {
        let again = clock.ms(&self.now).saturating_add(KEPT_MS.into());
        if let Some(hash) = self.hash_table_mut(slot) {
            *clock.of(&mut hash.noted) = again;
            self.fields[self.selected].of(clock).insert((again, key));
        }
    }

    /// Deletes the due fields of the hash at `slot` before it is changed, if effects are recorded:
    /// replicas do not hide such fields but wait for their deletion. Returns the slot afterwards;
    /// None if no field is left.
    #[inline]
    pub fn settle_fields(&mut self, slot: Slot, key: Key<'_>) -> Option<Slot> {
        match self.deletions.is_heard() && self.expiry_by() != ExpiryBy::Primary {
            true => self.delete_due_fields(slot, key),
            false => Some(slot),
        }
    }

    /// Deletes the due fields of the hash at `slot`, of a replica whose own clients have set
    /// deadlines in it. Returns whether fields with deadlines are left.
    pub(super) fn expire_own_fields(&mut self, slot: Slot, key: &[u8]) -> bool {
        let left = self.delete_due_fields(slot, self.key(key));
        let left = left.and_then(|slot| self.hash_table_mut(slot));
        left.is_some_and(|hash| hash.volatile_len() > 0)
    }

    #[cold]
    fn delete_due_fields(&mut self, slot: Slot, key: Key<'_>) -> Option<Slot> {
        let mut slot = Some(slot);
        for clock in CLOCKS {
            let due = slot.filter(|slot| self.has_due_fields(*slot));
            let Some(due) = due else { break };
            let mut budget = usize::MAX;
            self.expire_fields_of(due, key.bytes, clock, &mut budget);
            slot = self.table().find(key.hash, key.bytes);
        }
        slot
    }

    fn has_due_fields(&self, slot: Slot) -> bool {
        let ValueRef::Object(Value::Hash(Hash::Table(hash))) = self.entry(slot).value() else {
            return false;
        };
        let mut earliest = hash.earliest();
        !self.now.ignores_deadlines
            && CLOCKS.iter().any(|clock| *clock.of(&mut earliest) < clock.ms(&self.now))
    }

    /// Deletes the due fields of the hash at `slot`, whose item for this clock was taken out.
    fn expire_fields_of(&mut self, slot: Slot, key: &[u8], clock: ClockOf, budget: &mut usize) {
        let now = self.now;
        // A rollback must not restore expired fields.
        let value = self.tables.expiring_object_mut(self.selected, slot);
        let Some(Value::Hash(hash)) = value else { return };
        if let Some(hash) = hash.table_mut() {
            *clock.of(&mut hash.noted) = i64::MAX;
        }
        let mut names = Vec::new();
        let is_told = self.events.wants_fields();
        let is_heard = self.deletions.is_heard() || is_told;
        let removed = hash.remove_due(&now, budget, |field| {
            if is_heard {
                names.push(field);
            }
        });
        let told = if is_told { names.clone() } else { Vec::new() };
        self.deletions.note_fields(self.selected, key, names);
        if removed > 0 {
            self.stats.expired_fields += removed as u64;
            self.changes.by_expiry += removed as u64;
            self.changed_by(removed as u64, KeyspaceEvents::HASH, "hexpired", key);
            self.notify_fields("hexpired", key, told.iter().map(Vec::as_slice));
            let key = self.key(key);
            if self.delete_if_empty::<Hash>(slot, key) {
                return;
            }
        }
        self.note_field_deadlines(slot, key);
    }

    /// Whether any fields may have deadlines.
    pub fn has_volatile_fields(&self) -> bool {
        self.next_field_boot_ms().is_some()
    }

    /// Number of a database's keys with expiring fields: counted up to [`COUNTED_MAX`] items,
    /// extrapolated beyond.
    pub fn keys_with_field_deadlines(&self, database: DbIndex) -> usize {
        let fields = &self.fields[database];
        let items = || fields.boot.iter().chain(&fields.wall).take(COUNTED_MAX);
        let keys: HashSet<&[u8]> = items().map(|(_, key)| &**key).collect();
        let table = self.table_of(database);
        let has_deadlines = |key: &&&[u8]| {
            let slot = table.find(self.hash(key), key);
            match slot.map(|slot| table.entry(slot).value()) {
                Some(ValueRef::Object(Value::Hash(Hash::Table(hash)))) => hash.volatile_len() > 0,
                _ => false,
            }
        };
        let found = keys.iter().filter(has_deadlines).count();
        found * fields.len() / items().count().max(1)
    }

    /// When a field may be due: milliseconds of the boot-time clock.
    pub(super) fn next_field_boot_ms(&self) -> Option<i64> {
        let offset = self.now.wall_offset_ms();
        self.fields.iter().filter_map(|fields| fields.next_boot_ms(offset)).min()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::super::db_index::PerDatabase;
    use super::*;
    use crate::clock::{Clock, Deadline, ManualClock, UnixMillis};
    use crate::collections::hash::KeyHasher;
    use crate::keyspace::{Expiry, Key};
    use crate::types::Collection;
    use crate::types::hash::Limits;
    use crate::types::journal::Edit;

    const DATABASES: usize = 2;

    #[derive(Clone, Debug)]
    enum Step {
        Set { key: u8, field: u8, ttl_ms: Option<i64>, on_wall: bool },
        Expire { key: u8, field: u8, ttl_ms: Option<i64>, on_wall: bool },
        Delete(u8),
        Overwrite(u8),
        Transfer { from: u8, database: DbIndex, to: u8 },
        Duplicate { from: u8, database: DbIndex, to: u8 },
        Select(DbIndex),
        Swap,
        Clear(DbIndex),
        Pass(i64),
        MoveWall(i64),
        ExpireSome(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        let ttl = || prop::option::weighted(0.8, 1..100i64);
        let (key, database) = (0..5u8, (0..DATABASES).prop_map(DbIndex::new));
        prop_oneof![
            6 => (key.clone(), 0..60u8, ttl(), any::<bool>())
                .prop_map(|(key, field, ttl_ms, on_wall)| Step::Set { key, field, ttl_ms, on_wall }),
            4 => (key.clone(), 0..60u8, ttl(), any::<bool>())
                .prop_map(|(key, field, ttl_ms, on_wall)| Step::Expire { key, field, ttl_ms, on_wall }),
            1 => key.clone().prop_map(Step::Delete),
            1 => key.clone().prop_map(Step::Overwrite),
            2 => (key.clone(), database.clone(), key.clone())
                .prop_map(|(from, database, to)| Step::Transfer { from, database, to }),
            2 => (key.clone(), database.clone(), key)
                .prop_map(|(from, database, to)| Step::Duplicate { from, database, to }),
            2 => database.clone().prop_map(Step::Select),
            1 => Just(Step::Swap),
            1 => database.prop_map(Step::Clear),
            4 => (0..60i64).prop_map(Step::Pass),
            1 => (-50..50i64).prop_map(Step::MoveWall),
            2 => (1..4usize).prop_map(Step::ExpireSome),
        ]
    }

    type Fields = BTreeMap<u8, Option<Deadline>>;
    type Model = PerDatabase<BTreeMap<u8, Fields>>;

    /// The fields in memory, and the time until the first deadline ends.
    fn kept(db: &mut Keyspace, now: &Now) -> (Model, Option<i64>) {
        let mut model: Model = PerDatabase::new(DATABASES, |_| BTreeMap::new());
        let mut next: Option<i64> = None;
        for index in DbIndex::all(DATABASES) {
            let keys = &mut model[index];
            for entry in db.table_of(index).iter() {
                let ValueRef::Object(Value::Hash(hash)) = entry.value() else { continue };
                let view = hash.as_view();
                let mut fields = Vec::new();
                view.for_each_kept(|field, _| fields.push(field.to_vec()));
                let mut held = Fields::new();
                for field in fields {
                    // A time long before, so that passed deadlines are seen too.
                    let before = Now { wall_us: 0, boot_us: 0, ignores_deadlines: false };
                    let found = view.get(&field, &before).expect("the field is there");
                    if let Some(deadline) = found.deadline {
                        let left = now.remaining_ms(deadline) + 1;
                        next = Some(next.map_or(left, |next| next.min(left)));
                    }
                    held.insert(field[0], found.deadline);
                }
                keys.insert(entry.key()[0], held);
            }
        }
        (model, next)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(96))]

        #[test]
        fn fields_go_when_they_are_due_wherever_their_hash_is(
            steps in prop::collection::vec(step(), 1..120)
        ) {
            let hands = ManualClock::new(UnixMillis(1_700_000_000_000));
            let clock = Clock::Manual(hands.clone());
            let hasher = KeyHasher::new([3, 4]);
            let limits = Limits { entries_max: 8, bytes_max: 64, hasher };
            let mut db = Keyspace::new(DATABASES, hasher, clock.now());
            let mut model: Model = PerDatabase::new(DATABASES, |_| BTreeMap::new());
            for step in steps {
                let now = clock.now();
                db.set_now(now);
                let at = db.selected();
                let deadline = |ttl_ms: Option<i64>, on_wall| {
                    ttl_ms.map(|ms| match on_wall {
                        true => now.at(UnixMillis(now.unix().0 + ms)),
                        false => now.after(ms),
                    })
                };
                let hash_of = |key: &[u8]| hasher.hash(key);
                match step {
                    Step::Set { key, field, ttl_ms, on_wall } => {
                        let bytes = [key];
                        let named = Key { bytes: &bytes, hash: hash_of(&bytes) };
                        let deadline = deadline(ttl_ms, on_wall);
                        let expiry = deadline.map_or(Expiry::Clear, Expiry::At);
                        let set = |hash: &mut Edit<'_, Hash>| hash.set(&[field], b"v", expiry, &limits, &now);
                        let found = db.slot_of::<Hash>(named);
                        let slot = match found {
                            Ok(Some(slot)) => {
                                db.edit(slot, set);
                                slot
                            }
                            Ok(None) => {
                                let mut hash = Hash::default();
                                set(&mut Edit::unnoted(&mut hash));
                                db.insert_collection(named, hash)
                            }
                            // A string is under the key.
                            Err(_) => continue,
                        };
                        db.note_field_deadlines(slot, &bytes);
                        model[at].entry(key).or_default().insert(field, deadline);
                    }
                    Step::Expire { key, field, ttl_ms, on_wall } => {
                        let bytes = [key];
                        let named = Key { bytes: &bytes, hash: hash_of(&bytes) };
                        if let Ok(Some(slot)) = db.slot_of::<Hash>(named)
                            && let Some(fields) = model[at].get_mut(&key)
                            && let Some(old) = fields.get_mut(&field)
                        {
                            *old = deadline(ttl_ms, on_wall);
                            let new = *old;
                            db.edit(slot, |hash: &mut Edit<'_, Hash>| hash.set_deadline(&[field], new, &limits));
                            db.note_field_deadlines(slot, &bytes);
                        }
                    }
                    Step::Delete(key) => {
                        let bytes = [key];
                        db.delete(Key { bytes: &bytes, hash: hash_of(&bytes) }, "del");
                        model[at].remove(&key);
                    }
                    Step::Overwrite(key) => {
                        let bytes = [key];
                        let named = Key { bytes: &bytes, hash: hash_of(&bytes) };
                        db.set_string(named, b"string", Expiry::Clear);
                        model[at].remove(&key);
                    }
                    Step::Transfer { from, database, to } | Step::Duplicate { from, database, to } => {
                        if from == to && database == at {
                            continue;
                        }
                        let (source, target) = ([from], [to]);
                        let source = Key { bytes: &source, hash: hash_of(&source) };
                        let target = Key { bytes: &target, hash: hash_of(&target) };
                        let moves = matches!(step, Step::Transfer { .. });
                        let done = match moves {
                            true => db.transfer(source, database, target),
                            false => db.duplicate(source, database, target),
                        };
                        if done {
                            let fields = model[at].get(&from).cloned();
                            model[database].remove(&to);
                            if moves {
                                model[at].remove(&from);
                            }
                            // None: it was a string.
                            if let Some(fields) = fields {
                                model[database].insert(to, fields);
                            }
                        }
                    }
                    Step::Select(database) => db.select(database),
                    Step::Swap => {
                        db.swap(DbIndex::ZERO, DbIndex::new(1));
                        model.swap(DbIndex::ZERO, DbIndex::new(1));
                    }
                    Step::Clear(database) => {
                        db.clear(database, true);
                        model[database].clear();
                    }
                    Step::Pass(ms) => hands.advance_us(ms * 1000),
                    Step::MoveWall(ms) => hands.step_wall_us(ms * 1000),
                    Step::ExpireSome(budget) => {
                        db.expire_fields(budget);
                        // The end of the test checks which keys have gone. Keys that must stay are
                        // still there.
                        let (kept, _) = kept(&mut db, &now);
                        for (keys, kept) in model.iter_mut().zip(kept.iter()) {
                            for (key, fields) in keys.iter_mut() {
                                fields.retain(|field, deadline| {
                                    deadline.is_none_or(|it| !now.is_past(it))
                                        || kept.get(key).is_some_and(|it| it.contains_key(field))
                                });
                            }
                            keys.retain(|_, fields| !fields.is_empty());
                        }
                    }
                }
                let now = clock.now();
                db.set_now(now);
                // Hashes without any deadline may lie inside their entries, where `kept` does not
                // look.
                let (kept, next) = kept(&mut db, &now);
                for (index, keys) in kept.numbered() {
                    for (key, fields) in keys {
                        prop_assert_eq!(Some(fields), model[index].get(key));
                    }
                }
                if let Some(next) = next {
                    prop_assert!(db.next_due_in_ms().expect("something is due") <= next.max(0));
                }
            }
            let now = clock.now();
            db.set_now(now);
            while db.expire_fields(3) {}
            for keys in model.iter_mut() {
                for fields in keys.values_mut() {
                    fields.retain(|_, deadline| deadline.is_none_or(|it| !now.is_past(it)));
                }
                keys.retain(|_, fields| !fields.is_empty());
            }
            let (kept, next) = kept(&mut db, &now);
            for (index, keys) in model.numbered() {
                for (key, fields) in keys {
                    prop_assert_eq!(kept[index].get(key).unwrap_or(fields), fields);
                }
                let strings = db.table_of(index).iter().filter(|it| {
                    Hash::view(it.value()).is_none()
                }).count();
                prop_assert_eq!(db.table_of(index).len() - strings, keys.len());
            }
            // No item that has passed keeps the loop awake.
            prop_assert!(db.next_due_in_ms().is_none_or(|due| due > 0));
            prop_assert_eq!(next.is_none() || db.next_due_in_ms().is_some(), true);
        }
    }

    #[test]
    fn keys_that_come_and_go_leave_nothing_behind() {
        let hands = ManualClock::new(UnixMillis(1_700_000_000_000));
        let clock = Clock::Manual(hands.clone());
        let hasher = KeyHasher::new([3, 4]);
        let limits = Limits { entries_max: 8, bytes_max: 64, hasher };
        let mut db = Keyspace::new(1, hasher, clock.now());
        for _ in 0..10 * SWEEP_MIN {
            hands.advance_us(1000);
            let now = clock.now();
            db.set_now(now);
            let key = db.key(b"k");
            let mut hash = Hash::default();
            Edit::unnoted(&mut hash).set(
                b"f",
                b"v",
                Expiry::At(now.after(1_000_000)),
                &limits,
                &now,
            );
            db.insert_collection(key, hash);
            assert!(db.delete(key, "del"));
        }
        assert!(
            db.fields[DbIndex::ZERO].len() <= SWEEP_MIN + 1,
            "{} items",
            db.fields[DbIndex::ZERO].len()
        );
    }
}
