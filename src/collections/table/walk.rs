//! A walk iterates over a table while it changes: each entry that existed at the beginning is shown once, as it was then.
//!
//! The iteration visits segments in the order of hashes ([`Table::walk_on`]), at any pace. Before a change it is
//! shown what will change: the entry's bucket, and before entries move, all buckets they leave or enter, which are
//! whole segments for splitting, rebuilding and merging. A bit per bucket records what was shown; so entries store
//! nothing, and without an iteration there is no cost.
//!
//! Entries added during the iteration come into buckets that were shown, and are not shown. Clearing or dropping a
//! table ends its iteration, unless the table is taken ([`Table::take`]) and iterated further.

use super::growth::Shrinking;
use super::*;

/// The iteration of a table, if there is one.
#[derive(Default)]
pub(super) struct WalkState {
    /// Its number among the table's iterations; 0 before the first.
    number: u32,
    /// Segments of hashes below this have been shown. None: there is no iteration.
    next: Option<u64>,
}

/// A bit for each bucket of a segment that was shown; for a segment with more buckets than bits, all or none.
#[derive(Clone, Copy, Default)]
pub(super) struct Shown {
    /// The iteration that the bits belong to; they are invalid for another one.
    walk: u32,
    buckets: [u64; 2],
}

const ALL: [u64; 2] = [u64::MAX; 2];
const _: () = assert!(BLOCKS_MAX * BLOCK_BUCKETS <= 128);

impl<O> Table<O> {
    /// Starts an iteration; an unfinished one ends.
    pub fn begin_walk(&mut self) {
        self.walk = WalkState { number: self.walk.number.wrapping_add(1), next: Some(0) };
    }

    /// Cancels the iteration.
    pub fn end_walk(&mut self) {
        self.walk.next = None;
    }

    /// Whether there is an iteration: then one of the functions below must be called before each change.
    #[inline]
    pub fn is_walked(&self) -> bool {
        self.walk.next.is_some()
    }

    /// Shows the rest of the next segment, some hundred entries. False at the end.
    pub fn walk_on(&mut self, show: &mut impl FnMut(Entry<'_, O>)) -> bool {
        let Some(from) = self.walk.next else { return false };
        if let Some(id) = self.segment_of(from) {
            self.show_segment(id, show);
            let last = from | u64::MAX >> self.segment(id).depth();
            self.walk.next = last.checked_add(1);
        } else {
            self.walk.next = None;
        }
        self.is_walked()
    }

    /// To be called before the entry at `slot` is changed in place.
    pub fn show_before_change(&mut self, slot: Slot, show: &mut impl FnMut(Entry<'_, O>)) {
        self.show_bucket(slot.segment(), slot.bucket(), show);
    }

    /// To be called before a key with this hash is inserted.
    pub fn show_before_insert(&mut self, hash: u64, show: &mut impl FnMut(Entry<'_, O>)) {
        let Some(id) = self.segment_of(hash) else { return };
        let (chunk, index) = self.chunk(id);
        let segment = &chunk.segments[index];
        if segment.len as usize >= segment.block_count() * BLOCK_FULL {
            return self.show_segment(id, show);
        }
        let mut at = segment.home(tag_of(hash, segment.depth()));
        while chunk.bucket(index, at).is_full() {
            at = segment.after(at);
        }
        self.show_bucket(id, at, show);
    }

    /// To be called before the entry at `slot` is removed.
    pub fn show_before_remove(&mut self, slot: Slot, show: &mut impl FnMut(Entry<'_, O>)) {
        let id = slot.segment();
        match self.plan_shrinking(id, self.segment(id).len as usize - 1) {
            Shrinking::None => {}
            Shrinking::Resize(_) => return self.show_segment(id, show),
            Shrinking::Merge(lower, upper) => {
                self.show_segment(lower, show);
                return self.show_segment(upper, show);
            }
        }
        // Displaced entries move back.
        let mut at = slot.bucket();
        loop {
            self.show_bucket(id, at, show);
            let (chunk, index) = self.chunk(id);
            if !chunk.bucket(index, at).is_full() {
                return;
            }
            at = chunk.segments[index].after(at);
        }
    }

    fn shown(&self, id: u32) -> [u64; 2] {
        let (chunk, index) = self.chunk(id);
        let shown = &chunk.annexes[index].shown;
        if shown.walk == self.walk.number { shown.buckets } else { [0; 2] }
    }

    fn set_shown(&mut self, id: u32, buckets: [u64; 2]) {
        let walk = self.walk.number;
        let (chunk, index) = self.chunk_mut(id);
        chunk.annexes[index].shown = Shown { walk, buckets };
    }

    /// Whether a segment was shown completely, or there is no iteration.
    pub(super) fn is_shown(&self, id: u32) -> bool {
        !self.is_walked() || self.shown(id) == ALL
    }

    /// Marks a segment as shown.
    pub(super) fn mark_shown(&mut self, id: u32) {
        if self.is_walked() {
            self.set_shown(id, ALL);
        }
    }

    fn show_bucket(&mut self, id: u32, at: usize, show: &mut impl FnMut(Entry<'_, O>)) {
        if self.segment(id).block_count() > BLOCKS_MAX {
            return self.show_segment(id, show);
        }
        let mut shown = self.shown(id);
        if self.is_walked() && shown[at / 64] >> (at % 64) & 1 == 0 {
            self.show_entries(id, at, show);
            shown[at / 64] |= 1 << (at % 64);
            self.set_shown(id, shown);
        }
    }

    fn show_segment(&mut self, id: u32, show: &mut impl FnMut(Entry<'_, O>)) {
        if self.is_shown(id) {
            return;
        }
        let shown = self.shown(id);
        for at in 0..self.segment(id).buckets() {
            // In a segment with more buckets than bits no bit is set.
            if at >= 128 || shown[at / 64] >> (at % 64) & 1 == 0 {
                self.show_entries(id, at, show);
            }
        }
        self.mark_shown(id);
    }

    fn show_entries(&self, id: u32, at: usize, show: &mut impl FnMut(Entry<'_, O>)) {
        let (chunk, index) = self.chunk(id);
        let bucket = chunk.bucket(index, at);
        bucket.occupied().for_each(|slot| bucket.link(slot).prefetch());
        for slot in bucket.occupied() {
            // SAFETY: an occupied slot's entry is alive and unchanged while the table is borrowed.
            show(unsafe { Entry::new(bucket.link(slot).entry()) });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    type Shot = BTreeMap<Vec<u8>, Vec<u8>>;

    /// Notes what is shown. Nothing may be shown twice.
    fn take(shot: &mut Shot) -> impl FnMut(Entry<'_, ()>) + '_ {
        |entry| {
            let ValueRef::Bytes { bytes, .. } = entry.value() else { panic!("a string") };
            assert!(shot.insert(entry.key().to_vec(), bytes.to_vec()).is_none(), "shown twice");
        }
    }

    /// Steps of some operations each: keys are set, deleted, or the walk goes on.
    #[derive(Clone, Debug)]
    enum Step {
        Set(std::ops::Range<u32>),
        Delete(std::ops::Range<u32>),
        Walk,
    }

    fn step() -> impl Strategy<Value = Step> {
        let range = || (0u32..3000, 1u32..600).prop_map(|(first, count)| first..first + count);
        prop_oneof![
            3 => range().prop_map(Step::Set),
            3 => range().prop_map(Step::Delete),
            2 => Just(Step::Walk),
        ]
    }

    fn check(mut table: Table<()>, before: u32, steps: Vec<Step>) {
        let mut model = Shot::new();
        let mut shot = Shot::new();
        let set =
            |table: &mut Table<()>, model: &mut Shot, shot: &mut Shot, number: u32, value: &str| {
                let (key, value) = (format!("key:{number}").into_bytes(), value.as_bytes());
                let hash = table.hash(&key);
                let new = NewValue::Bytes { bytes: value, kind: 0 };
                match table.find(hash, &key) {
                    Some(slot) => {
                        table.show_before_change(slot, &mut take(shot));
                        table.replace(slot, new, None);
                    }
                    None => {
                        table.show_before_insert(hash, &mut take(shot));
                        table.insert(hash, &key, new, None, 0);
                    }
                }
                model.insert(key, value.to_vec());
            };
        for number in 0..before {
            set(&mut table, &mut model, &mut shot, number, "before");
        }
        assert!(shot.is_empty());
        table.begin_walk();
        let expected = model.clone();
        for step in steps {
            match step {
                Step::Set(numbers) => {
                    for number in numbers {
                        set(&mut table, &mut model, &mut shot, number, "since");
                    }
                }
                Step::Delete(numbers) => {
                    for number in numbers {
                        let key = format!("key:{number}").into_bytes();
                        if let Some(slot) = table.find(table.hash(&key), &key) {
                            table.show_before_remove(slot, &mut take(&mut shot));
                            drop(table.remove(slot));
                            model.remove(&key);
                        }
                    }
                }
                Step::Walk => drop(table.walk_on(&mut take(&mut shot))),
            }
        }
        while table.walk_on(&mut take(&mut shot)) {}
        assert_eq!(shot, expected);
        assert_eq!(table.len(), model.len());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 64 }))]

        #[test]
        fn a_walk_shows_what_was_there_when_it_began(
            before in 0u32..3000,
            steps in prop::collection::vec(step(), 0..30)
        ) {
            check(Table::new(KeyHasher::new([1, 2]), 0), before, steps.clone());
            // All in one segment that cannot be split: more buckets than bits.
            let colliding = Hashing::Chosen(|key| key.len() as u64);
            check(Table::with_hashing(colliding, 0), before.min(1500), steps.into_iter().take(4).collect());
        }
    }
}
