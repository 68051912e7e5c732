//! Sorted sets: members with scores, in the order of the scores.
//!
//! A small one is packed bytes (`sorted_set/packed.rs`) inside its key's entry, and is scanned from
//! the beginning. One that outgrows the entry is a score tree (`collections/score_tree.rs`) from
//! then on. Every range, by score, member or rank, is first converted to a range of ranks, then
//! read or removed: so all commands share one implementation.
//!
//! The encoding reported follows the configured limits as Redis's does: "listpack" until a member
//! or their number passes them, "skiplist" from then on. A sorted set reported as a skiplist is
//! always a tree here.

pub mod packed;

#[cfg(test)]
mod tests;

use std::ops::Range;

use super::journal::{Edit, NO_TEXT, Note};
use super::{Collection, INLINE_MAX, Stored, Value, kind};
use crate::collections::packed::Text;
use crate::collections::score_tree::{self, Place, ScoreTree};
use crate::collections::table::ValueRef;

/// The largest size at which a sorted set is reported as listpack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub entries: usize,
    /// Bytes of a member.
    pub value: usize,
}

/// A sorted set.
#[derive(Clone, Debug)]
pub enum SortedSet {
    Packed(Vec<u8>),
    Large(Box<Large>),
}

/// A sorted set outside its entry.
#[derive(Clone, Debug, Default)]
pub struct Large {
    tree: ScoreTree,
    is_skiplist: bool,
}

/// A sorted set, for reading.
#[derive(Clone, Copy, Debug)]
pub enum SortedSetView<'a> {
    Packed(&'a [u8]),
    Large(&'a Large),
}

/// The result of [`Edit::update`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Updated {
    /// The member was added.
    Added,
    /// The member got another score.
    Changed,
    Unchanged,
}

impl Default for SortedSet {
    fn default() -> Self {
        SortedSet::new()
    }
}

impl SortedSet {
    pub fn new() -> Self {
        SortedSet::Packed(Vec::new())
    }

    #[inline]
    pub fn as_view(&self) -> SortedSetView<'_> {
        match self {
            SortedSet::Packed(bytes) => SortedSetView::Packed(bytes),
            SortedSet::Large(large) => SortedSetView::Large(large),
        }
    }

    /// The tree, if the set is not packed.
    #[inline]
    pub fn as_tree(&self) -> Option<&ScoreTree> {
        match self {
            SortedSet::Packed(_) => None,
            SortedSet::Large(large) => Some(&large.tree),
        }
    }

    pub fn encoding(&self) -> &'static str {
        match self {
            SortedSet::Large(large) if large.is_skiplist => "skiplist",
            _ => "listpack",
        }
    }

    pub fn heap_bytes(&self) -> usize {
        match self {
            SortedSet::Packed(bytes) => bytes.capacity(),
            SortedSet::Large(large) => size_of::<Large>() + large.tree.heap_bytes(),
        }
    }

    pub fn free_effort(&self) -> usize {
        match self {
            SortedSet::Packed(_) => 1,
            SortedSet::Large(large) => large.tree.nodes(),
        }
    }

    pub fn len(&self) -> usize {
        self.as_view().len()
    }

    pub fn is_empty(&self) -> bool {
        self.as_view().is_empty()
    }

    /// Undoes a recorded change.
    pub(super) fn put_back(&mut self, note: Note, member: &[u8]) {
        // A packed one is copied instead.
        let SortedSet::Large(large) = self else { unreachable!("what is noted is large for good") };
        match note {
            Note::Absent => drop(large.tree.remove(member)),
            Note::Score(score) => match large.tree.find(member) {
                Some(position) => large.tree.set_score(position, score, member),
                None => large.tree.insert(score, member),
            },
            Note::WasSmall(was_small) => large.is_skiplist = !was_small,
            _ => unreachable!("no note of a sorted set"),
        }
    }

    /// An empty set that stays a tree while a result is computed; call [`SortedSet::settle`] at the
    /// end.
    pub fn for_result() -> Self {
        SortedSet::of_tree(ScoreTree::new())
    }

    /// As [`Self::for_result`], with the elements of a tree.
    pub fn of_tree(tree: ScoreTree) -> Self {
        SortedSet::Large(Box::new(Large { tree, is_skiplist: true }))
    }

    /// Adds a member to a result, without limits; `decide` returns the score, given the old one.
    pub fn put(&mut self, member: &[u8], decide: impl FnOnce(Option<f64>) -> f64) {
        let limits = Limits { entries: 0, value: 0 };
        let mut other_zero = None;
        Edit::unnoted(self).update(member, limits, |old| {
            let score = decide(old);
            other_zero = old.filter(|old| *old == score && old.to_bits() != score.to_bits());
            Some(score)
        });
        // Equal scores change nothing, but results of arithmetic distinguish -0 and 0.
        if let Some(zero) = other_zero {
            Edit::unnoted(self).remove(member);
            Edit::unnoted(self).insert(-zero, member, limits);
        }
    }

    /// The result's stored form: a listpack if it is within the limits.
    pub fn settle(self, limits: Limits) -> Self {
        let view = self.as_view();
        let mut longest = 0;
        if view.len() <= limits.entries {
            view.each(0..view.len(), false, |_, member| longest = longest.max(member.len()));
        }
        if view.len() > limits.entries || longest > limits.value {
            return self;
        }
        let mut packed = SortedSet::new();
        view.each(0..view.len(), false, |score, member| {
            Edit::unnoted(&mut packed).add(score, member, limits);
        });
        packed
    }
}

impl Edit<'_, SortedSet> {
    /// Looks up a member once, passes its score, if any, to `decide`, and sets the returned score.
    /// None changes nothing. The new score must not be NaN.
    pub fn update(
        &mut self,
        member: &[u8],
        limits: Limits,
        decide: impl FnOnce(Option<f64>) -> Option<f64>,
    ) -> Updated {
        match &mut *self.value {
            SortedSet::Packed(bytes) => {
                let found = packed::find(bytes, member);
                let Some(score) = decide(found.as_ref().map(|found| found.score)) else {
                    return Updated::Unchanged;
                };
                match found {
                    Some(found) if found.score == score => Updated::Unchanged,
                    Some(found) => {
                        packed::remove(bytes, found.bytes);
                        packed::insert(bytes, score, member);
                        Updated::Changed
                    }
                    None => {
                        self.add(score, member, limits);
                        Updated::Added
                    }
                }
            }
            SortedSet::Large(large) => {
                let found = large.tree.find(member);
                let old = found.map(|position| large.tree.score_at(position));
                let Some(score) = decide(old) else { return Updated::Unchanged };
                let Some(position) = found else {
                    self.add(score, member, limits);
                    return Updated::Added;
                };
                if old == Some(score) {
                    return Updated::Unchanged;
                }
                if let Some(old) = old
                    && let Some(journal) = &mut self.journal
                {
                    journal.note(Note::Score(old), [member, &[]]);
                }
                let score = large.stored(score);
                large.tree.set_score(position, score, member);
                Updated::Changed
            }
        }
    }

    /// Sets a member's score. True if the member is new.
    pub fn insert(&mut self, score: f64, member: &[u8], limits: Limits) -> bool {
        self.update(member, limits, |_| Some(score)) == Updated::Added
    }

    /// Adds a new member.
    fn add(&mut self, score: f64, member: &[u8], limits: Limits) {
        if let SortedSet::Packed(bytes) = &mut *self.value {
            let fits = member.len() <= limits.value.min(INLINE_MAX)
                && bytes.len() + packed::bytes_of(score, member) <= INLINE_MAX
                // The byte length bounds the number of elements; if that is not enough, count them.
                && (bytes.len() / 2 < limits.entries || packed::len(bytes) < limits.entries);
            if fits {
                packed::insert(bytes, score, member);
                return;
            }
            let bytes = std::mem::take(bytes);
            *self.value = SortedSet::Large(Box::new(Large::unpack(&bytes)));
        }
        let SortedSet::Large(large) = &mut *self.value else { return };
        if large.tree.len() >= limits.entries || member.len() > limits.value {
            if !large.is_skiplist
                && let Some(journal) = &mut self.journal
            {
                journal.note(Note::WasSmall(true), NO_TEXT);
            }
            large.is_skiplist = true;
        }
        if let Some(journal) = &mut self.journal {
            journal.note(Note::Absent, [member, &[]]);
        }
        large.tree.insert(large.stored(score), member);
    }

    /// Removes a member; returns its score.
    pub fn remove(&mut self, member: &[u8]) -> Option<f64> {
        match &mut *self.value {
            SortedSet::Packed(bytes) => {
                let found = packed::find(bytes, member)?;
                packed::remove(bytes, found.bytes);
                Some(found.score)
            }
            SortedSet::Large(large) => {
                let score = large.tree.remove(member)?;
                if let Some(journal) = &mut self.journal {
                    journal.note(Note::Score(score), [member, &[]]);
                }
                Some(score)
            }
        }
    }

    /// Removes the elements of a range of ranks, which must be within the length.
    pub fn remove_ranks(&mut self, ranks: Range<usize>) {
        match &mut *self.value {
            SortedSet::Packed(bytes) => packed::remove_ranks(bytes, ranks),
            SortedSet::Large(large) => {
                if let Some(journal) = &mut self.journal {
                    for (score, member) in large.tree.range(ranks.clone()) {
                        journal.note(Note::Score(score), [member, &[]]);
                    }
                }
                large.tree.remove_ranks(ranks);
            }
        }
    }

    /// Removes the first element.
    pub fn pop_min(&mut self) -> Option<(f64, Vec<u8>)> {
        let first = self.as_view().first().map(|(score, member)| (score, member.as_ref().to_vec()));
        if first.is_some() {
            self.remove_ranks(0..1);
        }
        first
    }
}

impl Large {
    fn unpack(bytes: &[u8]) -> Large {
        let mut large = Large::default();
        for (score, member) in packed::Iter::new(bytes) {
            large.tree.insert(score, member.text().as_ref());
        }
        large
    }

    /// The stored score: a listpack stores -0 as the integer 0.
    fn stored(&self, score: f64) -> f64 {
        if self.is_skiplist { score } else { score + 0.0 }
    }
}

impl<'a> SortedSetView<'a> {
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            SortedSetView::Packed(bytes) => packed::len(bytes),
            SortedSetView::Large(large) => large.tree.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        match self {
            SortedSetView::Packed(bytes) => bytes.is_empty(),
            SortedSetView::Large(large) => large.tree.is_empty(),
        }
    }

    pub fn encoding(&self) -> &'static str {
        match self {
            SortedSetView::Large(large) if large.is_skiplist => "skiplist",
            _ => "listpack",
        }
    }

    pub fn score(&self, member: &[u8]) -> Option<f64> {
        match self {
            SortedSetView::Packed(bytes) => packed::find(bytes, member).map(|found| found.score),
            SortedSetView::Large(large) => large.tree.score(member),
        }
    }

    /// A member's rank and score.
    pub fn rank(&self, member: &[u8]) -> Option<(usize, f64)> {
        match self {
            SortedSetView::Packed(bytes) => {
                packed::find(bytes, member).map(|found| (found.rank, found.score))
            }
            SortedSetView::Large(large) => {
                let position = large.tree.find(member)?;
                Some((large.tree.rank_at(position), large.tree.score_at(position)))
            }
        }
    }

    /// Number of elements before a place.
    pub fn rank_of(&self, place: Place<'_>) -> usize {
        match self {
            SortedSetView::Packed(bytes) => packed::Iter::new(bytes)
                .take_while(|(score, member)| place.is_behind(*score, || member.text()))
                .count(),
            SortedSetView::Large(large) => large.tree.rank(place),
        }
    }

    /// The element of a rank.
    pub fn get(&self, rank: usize) -> Option<(f64, Text<'a>)> {
        match self {
            SortedSetView::Packed(bytes) => {
                packed::Iter::new(bytes).nth(rank).map(|(score, member)| (score, member.text()))
            }
            SortedSetView::Large(large) => {
                large.tree.get(rank).map(|(score, member)| (score, Text::Bytes(member)))
            }
        }
    }

    pub fn first(&self) -> Option<(f64, Text<'a>)> {
        self.get(0)
    }

    /// All elements in order.
    pub fn iter(&self) -> Iter<'a> {
        match *self {
            SortedSetView::Packed(bytes) => Iter::Packed(packed::Iter::new(bytes)),
            SortedSetView::Large(large) => Iter::Large(large.tree.range(0..large.tree.len())),
        }
    }

    /// Visits the elements of a range of ranks, which must be within the length, in reverse if
    /// `is_reversed`.
    #[inline]
    pub fn each(&self, ranks: Range<usize>, is_reversed: bool, mut visit: impl FnMut(f64, &[u8])) {
        match self {
            SortedSetView::Packed(bytes) => {
                let elements = packed::Iter::new(bytes).skip(ranks.start).take(ranks.len());
                if is_reversed {
                    let elements: smallvec::SmallVec<[_; 32]> = elements.collect();
                    for (score, member) in elements.iter().rev() {
                        visit(*score, member.text().as_ref());
                    }
                } else {
                    elements.for_each(|(score, member)| visit(score, member.text().as_ref()));
                }
            }
            SortedSetView::Large(large) => {
                let elements = large.tree.range(ranks);
                if is_reversed {
                    elements.rev().for_each(|(score, member)| visit(score, member));
                } else {
                    elements.for_each(|(score, member)| visit(score, member));
                }
            }
        }
    }

    /// Visits the elements of a range of ranks in order, until `visit` returns false.
    pub fn each_while(&self, ranks: Range<usize>, mut visit: impl FnMut(f64, &[u8]) -> bool) {
        match self {
            SortedSetView::Packed(bytes) => {
                let mut elements = packed::Iter::new(bytes).skip(ranks.start).take(ranks.len());
                elements.all(|(score, member)| visit(score, member.text().as_ref()));
            }
            SortedSetView::Large(large) => {
                large.tree.range(ranks).all(|(score, member)| visit(score, member));
            }
        }
    }

    /// Visits about `most` members from a boundary on; returns the next boundary, 0 at the end. A
    /// member present throughout is visited exactly once; see [`ScoreTree::scan`]. A sorted set
    /// that Redis stores as a listpack is visited at once.
    pub fn scan(&self, boundary: u32, most: usize, visit: impl FnMut(f64, &[u8])) -> u32 {
        match self {
            SortedSetView::Large(large) if large.is_skiplist => {
                large.tree.scan(boundary, most, visit)
            }
            _ => {
                self.each(0..self.len(), false, visit);
                0
            }
        }
    }
}

/// All elements of a sorted set in order.
#[derive(Clone, Debug)]
pub enum Iter<'a> {
    Packed(packed::Iter<'a>),
    Large(score_tree::Elements<'a>),
}

impl<'a> Iterator for Iter<'a> {
    type Item = (f64, Text<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Iter::Packed(elements) => elements.next().map(|(score, member)| (score, member.text())),
            Iter::Large(elements) => {
                elements.next().map(|(score, member)| (score, Text::Bytes(member)))
            }
        }
    }
}

impl Collection for SortedSet {
    type View<'a> = SortedSetView<'a>;

    fn view(value: ValueRef<'_, Value>) -> Option<Self::View<'_>> {
        match value {
            ValueRef::Bytes { bytes, kind: kind::SORTED_SET } => Some(SortedSetView::Packed(bytes)),
            ValueRef::Object(Value::SortedSet(set)) => Some(set.as_view()),
            _ => None,
        }
    }

    fn boxed(value: &mut Value) -> Option<&mut Self> {
        match value {
            Value::SortedSet(value) => Some(value),
            _ => None,
        }
    }

    fn unpack(_kind: u8, bytes: Vec<u8>) -> Self {
        SortedSet::Packed(bytes)
    }

    fn store(self) -> Stored {
        match self {
            SortedSet::Packed(bytes) if bytes.len() <= INLINE_MAX => {
                Stored::Inline { kind: kind::SORTED_SET, bytes }
            }
            large => Stored::Boxed(Value::SortedSet(large)),
        }
    }

    fn is_empty(&self) -> bool {
        self.as_view().is_empty()
    }
}
