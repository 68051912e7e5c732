//! The keys of each hash slot of a cluster: counted by the tables of a cluster's node, and by no
//! others, and listed while somebody needs their names.
//!
//! The list is an ordered set with one number for each key: the slot in the upper 14 bits, below
//! them the upper 42 bits of the key's hash, by which the table finds the key's bucket: 26 bits at
//! most for the segment, and 16 for the tag. So a slot's keys are a range of the set. Two keys of a
//! slot whose hashes agree in 42 bits share a number, which stays until both are gone.
//!
//! Names are needed when slots move, which is rare, and a list takes some 7 bytes a key. So it is
//! made on demand, some segments at a time ([`Table::list_slots_on`]), in the order of hashes, and
//! keeps up with changes from its beginning on. Only a whole list can be read
//! ([`Table::slot_list`]).

use smallvec::SmallVec;

use super::{Bits, DEPTH_MAX, Entry, Slot, Table, tag_of};
use crate::collections::hash_slot::{HashSlot, SLOTS as HASH_SLOTS, SlotSet};
use crate::collections::numbers::{self, Numbers};

/// Bits of a hash that a number keeps.
const HASH_BITS: u32 = numbers::BITS - HASH_SLOTS.ilog2();
const HASH_SHIFT: u32 = 64 - HASH_BITS;
const _: () = assert!(HASH_BITS == DEPTH_MAX + u16::BITS);

/// See the module.
pub(super) struct SlotIndex {
    counts: Box<[u32; HASH_SLOTS]>,
    list: Option<List>,
}

/// The list, whole or under way.
struct List {
    numbers: Numbers,
    /// Keys whose hashes are below this are listed, and of the others those that are new. None: all
    /// are.
    next: Option<u64>,
}

/// The number of a key of this slot.
fn number(hash_slot: HashSlot, hash: u64) -> u64 {
    u64::from(hash_slot.number()) << HASH_BITS | hash >> HASH_SHIFT
}

impl SlotIndex {
    fn new() -> Box<SlotIndex> {
        Box::new(SlotIndex { counts: Box::new([0; HASH_SLOTS]), list: None })
    }

    #[cold]
    pub fn add(&mut self, hash: u64, key: &[u8]) {
        let slot = HashSlot::of(key);
        self.counts[slot.index()] += 1;
        if let Some(list) = &mut self.list {
            list.numbers.insert(number(slot, hash));
        }
    }
}

impl<O> Table<O> {
    /// Counts the keys of each hash slot from now on. The table must be empty.
    pub fn keep_slots(&mut self) {
        debug_assert!(self.is_empty());
        self.slots = Some(SlotIndex::new());
    }

    /// A key was removed.
    #[cold]
    pub(super) fn forget_in_slot(&mut self, key: &[u8]) {
        let slot = HashSlot::of(key);
        let Some(slots) = &mut self.slots else { return };
        slots.counts[slot.index()] -= 1;
        if slots.list.is_none() {
            return;
        }
        let hash = self.hash(key);
        let number = number(slot, hash);
        let is_shared = !self.all_numbered(slot, number).is_empty();
        let list = self.slots.as_mut().and_then(|slots| slots.list.as_mut());
        if let Some(list) = list.filter(|_| !is_shared) {
            list.numbers.remove(number);
        }
    }

    /// An empty table that computes hashes and counts slots' keys as this one does.
    pub fn alike(&self) -> Table<O> {
        let mut empty = Table::with_hashing(self.hashing, self.wall_offset_ms);
        empty.slots = self.slots.as_ref().map(|_| SlotIndex::new());
        empty
    }

    /// Keys of a hash slot, including expired ones. 0 if slots are not kept.
    pub fn count_in_slot(&self, slot: HashSlot) -> usize {
        self.slots.as_ref().map_or(0, |slots| slots.counts[slot.index()] as usize)
    }

    /// The hash slots that have keys.
    pub fn slots_with_keys(&self) -> SlotSet {
        HashSlot::all().filter(|slot| self.count_in_slot(*slot) > 0).collect()
    }

    /// Continues the list of the slots' keys by about `most` of them. Only if slots are kept.
    pub fn list_slots_on(&mut self, most: usize) {
        let mut added = 0;
        let Some(slots) = &mut self.slots else { return };
        let mut list =
            slots.list.take().unwrap_or(List { numbers: Numbers::default(), next: Some(0) });
        while let Some(from) = list.next.filter(|_| added < most) {
            let Some(id) = self.segment_of(from) else {
                list.next = None;
                break;
            };
            let (chunk, index) = self.chunk(id);
            for at in 0..chunk.segments[index].buckets() {
                let bucket = chunk.bucket(index, at);
                if at + 1 < chunk.segments[index].buckets() {
                    let next = chunk.bucket(index, at + 1);
                    next.occupied().for_each(|slot| next.link(slot).prefetch());
                }
                for slot in bucket.occupied() {
                    // SAFETY: an occupied slot's entry is alive while the table is borrowed, and
                    // has this table's `O`.
                    let entry = unsafe { Entry::<O>::new(bucket.link(slot).entry()) };
                    let key = entry.key();
                    list.numbers.insert(number(HashSlot::of(key), self.hash(key)));
                    added += 1;
                }
            }
            list.next = (from | u64::MAX >> chunk.segments[index].depth()).checked_add(1);
        }
        if let Some(slots) = &mut self.slots {
            slots.list = Some(list);
        }
    }

    /// The list of the slots' keys, if it is whole.
    pub fn slot_list(&self) -> Option<SlotList<'_, O>> {
        let list = self.slots.as_ref()?.list.as_ref().filter(|list| list.next.is_none())?;
        Some(SlotList { table: self, numbers: &list.numbers })
    }

    /// Whether slots are kept, and the list is not whole.
    pub fn lacks_slot_list(&self) -> bool {
        self.slots.is_some() && self.slot_list().is_none()
    }

    /// Drops the list. Returns its memory, for a thread to free.
    pub fn take_slot_list(&mut self) -> Option<Numbers> {
        Some(self.slots.as_mut()?.list.take()?.numbers)
    }

    /// Bytes of the list's memory.
    pub fn slot_list_memory(&self) -> usize {
        let list = self.slots.as_ref().and_then(|slots| slots.list.as_ref());
        list.map_or(0, |list| list.numbers.memory())
    }

    /// The first place of a hash slot's keys, for [`SlotList::keys_from`].
    pub fn first_place(slot: HashSlot) -> u64 {
        number(slot, 0)
    }

    /// The hash slot of a place; None: the place belongs to none.
    pub fn slot_of_place(place: u64) -> Option<HashSlot> {
        HashSlot::new((place >> HASH_BITS) as usize)
    }

    /// The place of a key in the order of [`SlotList::keys_after`].
    pub fn number_in_slots(&self, hash: u64, key: &[u8]) -> u64 {
        number(HashSlot::of(key), hash)
    }

    /// The keys of this number: nearly always one.
    fn all_numbered(&self, hash_slot: HashSlot, number: u64) -> SmallVec<[Slot; 1]> {
        let mut found = SmallVec::new();
        let hash = number << HASH_SHIFT;
        let Some(id) = self.segment_of(hash) else { return found };
        let (chunk, index) = self.chunk(id);
        let segment = &chunk.segments[index];
        let tag = tag_of(hash, segment.depth());
        let mut at = segment.home(tag);
        for _ in 0..segment.buckets() {
            let bucket = chunk.bucket(index, at);
            for slot in Bits(bucket.matches(tag)) {
                // SAFETY: an occupied slot's entry is alive while the table is borrowed, and has
                // this table's `O`.
                let entry = unsafe { Entry::<O>::new(bucket.link(slot).entry()) };
                let key = entry.key();
                if self.hash(key) >> HASH_SHIFT == hash >> HASH_SHIFT
                    && HashSlot::of(key) == hash_slot
                {
                    found.push(self.slot(id, at, slot));
                }
            }
            if !bucket.is_full() {
                break;
            }
            at = segment.after(at);
        }
        found
    }
}

/// The keys of each hash slot of a table.
pub struct SlotList<'a, O> {
    table: &'a Table<O>,
    numbers: &'a Numbers,
}

impl<'a, O> SlotList<'a, O> {
    /// Keys of a hash slot, in no particular order.
    pub fn keys_in_slot(self, slot: HashSlot) -> impl Iterator<Item = Slot> + use<'a, O> {
        self.keys_from(Table::<O>::first_place(slot), slot).map(|(_, at)| at)
    }

    /// Keys of hash slots up to `last`, in an order that never changes, from a place in it: the
    /// slot's number above 42 bits of the key's hash. Each with its place, which a few share.
    pub fn keys_from(
        self,
        place: u64,
        last: HashSlot,
    ) -> impl Iterator<Item = (u64, Slot)> + use<'a, O> {
        let table = self.table;
        self.numbers_from(place, last).flat_map(move |number| {
            let slot = Table::<O>::slot_of_place(number);
            let found = slot.into_iter().flat_map(move |slot| table.all_numbered(slot, number));
            found.map(move |at| (number, at))
        })
    }

    /// The numbers of keys of hash slots up to `last`, from a place on.
    fn numbers_from(self, place: u64, last: HashSlot) -> impl Iterator<Item = u64> + use<'a, O> {
        let numbers = self.numbers;
        let end = Table::<O>::first_place(last) | (u64::MAX >> HASH_SHIFT);
        let from = (place <= end).then_some(place);
        from.into_iter().flat_map(move |from| numbers.range(from, end))
    }

    /// The keys of the next number after `after` in a hash slot, nearly always one, with that
    /// number.
    pub fn keys_after(
        self,
        slot: HashSlot,
        after: Option<u64>,
    ) -> Option<(u64, SmallVec<[Slot; 1]>)> {
        let table = self.table;
        let first = Table::<O>::first_place(slot);
        let from = after.map_or(first, |after| after.saturating_add(1).max(first));
        let number = self.numbers_from(from, slot).next()?;
        Some((number, table.all_numbered(slot, number)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collections::hash::KeyHasher;
    use crate::collections::table::{Hashing, NewValue};
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    fn table() -> Table<()> {
        let mut table = Table::new(KeyHasher::new([1, 2]), 0);
        table.keep_slots();
        table
    }

    fn list_all(table: &mut Table<()>) {
        while table.slot_list().is_none() {
            table.list_slots_on(100);
        }
    }

    fn check(table: &mut Table<()>, model: &BTreeMap<HashSlot, BTreeSet<Vec<u8>>>) {
        list_all(table);
        for (slot, keys) in model {
            assert_eq!(table.count_in_slot(*slot), keys.len());
            let list = table.slot_list().expect("it is whole");
            let found: BTreeSet<Vec<u8>> =
                list.keys_in_slot(*slot).map(|at| table.entry(at).key().to_vec()).collect();
            assert_eq!(&found, keys);
        }
        let with: Vec<HashSlot> =
            model.iter().filter(|(_, keys)| !keys.is_empty()).map(|(slot, _)| *slot).collect();
        assert_eq!(table.slots_with_keys().iter().collect::<Vec<_>>(), with);
    }

    proptest! {
        #[test]
        fn the_keys_of_a_slot_are_those_that_were_added(
            changes in proptest::collection::vec((0u8..9, 0u32..2_000, 0u32..4), 1..6_000),
        ) {
            let mut table = table();
            let mut model: BTreeMap<HashSlot, BTreeSet<Vec<u8>>> = BTreeMap::new();
            for (kind, number, tag) in changes {
                // Many keys of few slots, and few of many.
                let key = match tag {
                    0 => format!("key:{number}"),
                    tag => format!("{{{tag}}}{number}"),
                };
                let (key, hash) = (key.as_bytes(), table.hash(key.as_bytes()));
                let keys = model.entry(HashSlot::of(key)).or_default();
                match (table.find(hash, key), kind) {
                    (_, 0) if number < 5 => {
                        drop(table.clear());
                        model.clear();
                    }
                    // The list is begun, and goes on between changes.
                    (_, 8) => match number {
                        0..5 => drop(table.take_slot_list()),
                        5..10 => list_all(&mut table),
                        _ => table.list_slots_on(1),
                    },
                    (None, _) => {
                        table.insert(hash, key, NewValue::Bytes { bytes: b"v", kind: 0 }, None, 0);
                        keys.insert(key.to_vec());
                    }
                    (Some(slot), 1..=3) => {
                        drop(table.remove(slot));
                        keys.remove(key);
                    }
                    (Some(_), _) => {}
                }
            }
            check(&mut table, &model);
        }
    }

    #[test]
    fn keys_that_share_a_number_are_all_found() {
        // Three keys have each hash, and differ in bits that a number does not keep.
        let hashed = |key: &[u8]| u64::from(key[3] - b'a') << 50 | u64::from(key[4] - b'0');
        let mut table: Table<()> = Table::with_hashing(Hashing::Chosen(hashed), 0);
        table.keep_slots();
        let names: BTreeSet<Vec<u8>> = (b'a'..=b'z')
            .flat_map(|letter| {
                (b'0'..=b'2').map(move |digit| vec![b'{', b't', b'}', letter, digit])
            })
            .collect();
        for key in &names {
            let hash = table.hash(key);
            table.insert(hash, key, NewValue::Bytes { bytes: b"v", kind: 0 }, None, 0);
        }
        list_all(&mut table);
        let list = || table.slot_list().expect("it is whole");
        let slot = HashSlot::of(b"t");
        let shown = |at: Slot| table.entry(at).key().to_vec();
        assert_eq!(list().keys_in_slot(slot).map(shown).collect::<BTreeSet<_>>(), names);
        let first = Table::<()>::first_place(slot);
        let from: Vec<_> = list().keys_from(first, slot).collect();
        assert_eq!(from.len(), names.len());
        assert_eq!(from.iter().map(|(_, at)| shown(*at)).collect::<BTreeSet<_>>(), names);
        assert!(from.chunks(3).all(|three| three[0].0 == three[1].0 && three[0].0 == three[2].0));
        let (number, keys) = list().keys_after(slot, None).expect("there are keys");
        assert_eq!((number, keys.len()), (first, 3));
    }
}
