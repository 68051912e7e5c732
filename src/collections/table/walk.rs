//! A walk iterates over a table while it changes: each entry that existed at the beginning is shown
//! once, as it was then.
//!
//! The iteration visits segments in the order of hashes ([`Table::walk_on`]), at any pace, and may
//! pause between any two entries. An entry is shown before it changes or is removed. Marks in the
//! links of a segment's entries record which were shown. Marks move with the entries, so no entry
//! need be shown because others move. Marks are valid once a segment was partly shown in this
//! iteration ([`Progress::Marked`]); entries store nothing, and without an iteration there is no
//! cost.
//!
//! Entries added during the iteration are marked as shown. Clearing or dropping a table ends its
//! iteration, unless the table is taken ([`Table::take`]) and iterated further.

use super::*;

/// The iteration of a table, if there is one.
#[derive(Default)]
pub(super) struct WalkState {
    /// Its number among the table's iterations; 0 before the first.
    number: u32,
    /// Segments of hashes below this have been shown. None: there is no iteration.
    next: Option<u64>,
}

/// A segment's progress, if it belongs to the current iteration.
#[derive(Clone, Copy, Default)]
pub(super) struct Shown {
    /// The iteration that it belongs to.
    walk: u32,
    is_whole: bool,
}

/// The part of a segment that the iteration has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Nothing: marks are invalid.
    None,
    /// The entries that are marked.
    Marked,
    /// All, or there is no iteration: marks are invalid.
    All,
}

impl Progress {
    /// Whether the entry of a link was shown.
    #[inline]
    pub fn has_shown(self, link: Link) -> bool {
        match self {
            Progress::None => false,
            Progress::Marked => link.is_shown(),
            Progress::All => true,
        }
    }
}

impl<O> Table<O> {
    /// Starts an iteration; an unfinished one ends.
    pub fn begin_walk(&mut self) {
        self.walk = WalkState { number: self.walk.number.wrapping_add(1), next: Some(0) };
    }

    /// Cancels the iteration.
    pub fn end_walk(&mut self) {
        self.walk.next = None;
    }

    /// Whether there is an iteration: then one of the functions below must be called before each
    /// change.
    #[inline]
    pub fn is_walked(&self) -> bool {
        self.walk.next.is_some()
    }

    /// Shows entries of the next segment until they have cost more than `budget`, at least one
    /// unless all were shown; `show` returns the cost of each. False at the end of the table.
    pub fn walk_on(&mut self, budget: usize, show: &mut impl FnMut(Entry<'_, O>) -> usize) -> bool {
        let Some(from) = self.walk.next else { return false };
        if let Some(id) = self.segment_of(from) {
            if !self.show_segment(id, budget, show) {
                return true;
            }
            let last = from | u64::MAX >> self.segment(id).depth();
            self.walk.next = last.checked_add(1);
        } else {
            self.walk.next = None;
        }
        self.is_walked()
    }

    /// Call this before the entry at `slot` is changed in place or removed.
    pub fn show_before_change(&mut self, slot: Slot, show: &mut impl FnMut(Entry<'_, O>)) {
        let (id, at) = (slot.segment(), slot.bucket());
        if self.progress(id) == Progress::All {
            return;
        }
        self.begin_marking(id);
        let (chunk, index) = self.chunk_mut(id);
        let bucket = chunk.bucket_mut(index, at);
        let link = bucket.link(slot.slot());
        if !link.is_shown() {
            // SAFETY: an occupied slot's entry is alive and unchanged while the table is borrowed.
            show(unsafe { Entry::new(link.entry()) });
            bucket.mark(slot.slot());
        }
    }

    /// Call this before a key with this hash is inserted: marks must be valid, as the new entry is
    /// marked.
    pub fn mark_before_insert(&mut self, hash: u64) {
        if let Some(id) = self.segment_of(hash) {
            self.begin_marking(id);
        }
    }

    /// The part of a segment that was shown.
    #[inline]
    pub(super) fn progress(&self, id: u32) -> Progress {
        if !self.is_walked() {
            return Progress::All;
        }
        let (chunk, index) = self.chunk(id);
        match chunk.annexes[index].shown {
            Shown { walk, .. } if walk != self.walk.number => Progress::None,
            Shown { is_whole: true, .. } => Progress::All,
            Shown { .. } => Progress::Marked,
        }
    }

    /// Sets the progress of a segment whose links are marked accordingly. It cannot go back to
    /// none.
    pub(super) fn set_progress(&mut self, id: u32, progress: Progress) {
        let shown = Shown { walk: self.walk.number, is_whole: progress == Progress::All };
        let (chunk, index) = self.chunk_mut(id);
        chunk.annexes[index].shown = shown;
    }

    /// Makes the marks of a segment valid, of which nothing was shown.
    fn begin_marking(&mut self, id: u32) {
        if self.progress(id) != Progress::None {
            return;
        }
        let (chunk, index) = self.chunk_mut(id);
        for at in 0..chunk.segments[index].buckets() {
            chunk.bucket_mut(index, at).clear_marks();
        }
        self.set_progress(id, Progress::Marked);
    }

    /// Shows the rest of a segment, within a budget. False: there is more.
    fn show_segment(
        &mut self,
        id: u32,
        budget: usize,
        show: &mut impl FnMut(Entry<'_, O>) -> usize,
    ) -> bool {
        let progress = self.progress(id);
        let (chunk, index) = self.chunk(id);
        let buckets = chunk.segments[index].buckets();
        let mut cost = 0;
        let mut paused = None;
        if progress != Progress::All {
            'walk: for at in 0..buckets {
                if at + 1 < buckets {
                    let next = chunk.bucket(index, at + 1);
                    next.occupied().for_each(|slot| next.link(slot).prefetch());
                }
                let bucket = chunk.bucket(index, at);
                for slot in bucket.occupied().filter(|&slot| !progress.has_shown(bucket.link(slot)))
                {
                    if cost > budget {
                        paused = Some((at, slot));
                        break 'walk;
                    }
                    // SAFETY: an occupied slot's entry is alive and unchanged while the table is
                    // borrowed.
                    cost += show(unsafe { Entry::new(bucket.link(slot).entry()) });
                }
            }
        }
        match paused {
            None => self.set_progress(id, Progress::All),
            Some((at, slot)) => {
                self.begin_marking(id);
                let (chunk, index) = self.chunk_mut(id);
                (0..at).for_each(|at| {
                    (0..SLOTS).for_each(|slot| chunk.bucket_mut(index, at).mark(slot))
                });
                (0..slot).for_each(|slot| chunk.bucket_mut(index, at).mark(slot));
            }
        }
        paused.is_none()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    type Shot = BTreeMap<Vec<u8>, Vec<u8>>;

    /// Notes the shown entries. Nothing may be shown twice.
    fn take(shot: &mut Shot) -> impl FnMut(Entry<'_, ()>) + '_ {
        |entry| {
            let ValueRef::Bytes { bytes, .. } = entry.value() else { panic!("a string") };
            assert!(shot.insert(entry.key().to_vec(), bytes.to_vec()).is_none(), "shown twice");
        }
    }

    /// Continues with a budget in entries; one more may be shown.
    fn walk_on(table: &mut Table<()>, budget: usize, shot: &mut Shot) -> bool {
        let mut count = 0;
        let has_more = table.walk_on(budget, &mut |entry| {
            count += 1;
            take(shot)(entry);
            1
        });
        assert!(count <= budget.saturating_add(1), "{count} entries");
        has_more
    }

    /// Steps of some operations each: keys are set or deleted, or the walk continues.
    #[derive(Clone, Debug)]
    enum Step {
        Set(std::ops::Range<u32>),
        Delete(std::ops::Range<u32>),
        /// With this budget, in entries.
        Walk(usize),
        /// The walk is given up, and another one begins.
        Restart,
    }

    fn step() -> impl Strategy<Value = Step> {
        let range = || (0u32..3000, 1u32..600).prop_map(|(first, count)| first..first + count);
        prop_oneof![
            3 => range().prop_map(Step::Set),
            3 => range().prop_map(Step::Delete),
            4 => prop_oneof![Just(usize::MAX), 0..300usize].prop_map(Step::Walk),
            1 => prop::option::weighted(0.2, Just(())).prop_map(|it| it.map_or(Step::Walk(0), |()| Step::Restart)),
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
                        table.mark_before_insert(hash);
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
        let mut expected = model.clone();
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
                            table.show_before_change(slot, &mut take(&mut shot));
                            drop(table.remove(slot));
                            model.remove(&key);
                        }
                    }
                }
                Step::Walk(budget) => drop(walk_on(&mut table, budget, &mut shot)),
                Step::Restart => {
                    table.begin_walk();
                    (expected, shot) = (model.clone(), Shot::new());
                }
            }
        }
        while walk_on(&mut table, 100, &mut shot) {}
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
