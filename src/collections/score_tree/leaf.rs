//! A leaf of the score tree: up to a few dozen elements in one allocation.
//!
//! ```text
//!   scores    n × f64, little-endian
//!   tags      n × u32: 32 bits of each member's hash
//!   ends      n × u32: where each member ends, counted from the first member's beginning
//!   members   their bytes, one after the other
//! ```
//!
//! Adding or removing elements moves four arrays; each kind of field is contiguous, so that a search by score reads
//! only scores, and one by member only tags and that member.

use std::cmp::Ordering;
use std::ops::Range;

use super::Place;
use crate::collections::prefetch::prefetch_bytes;
use crate::collections::shared::Part;

/// Bytes of an element without its member.
const FIELDS: usize = 16;

/// A sorted run of elements.
#[derive(Clone, Debug, Default)]
pub struct Leaf {
    bytes: Vec<u8>,
    len: u32,
    /// The parent node; undefined in the root.
    pub parent: u32,
}

/// An element of a new leaf.
#[derive(Clone, Debug)]
pub struct Element {
    pub score: f64,
    pub tag: u32,
    /// Its member's range in the bytes of all.
    pub member: Range<usize>,
}

impl Part for Leaf {
    fn heap_bytes(&self) -> usize {
        self.bytes.capacity()
    }
}

impl Leaf {
    /// A leaf of these elements, in ascending order.
    pub fn of<'a>(
        elements: impl ExactSizeIterator<Item = &'a Element> + Clone,
        members: &[u8],
    ) -> Leaf {
        let len = elements.len();
        let mut bytes = Vec::new();
        bytes.reserve_exact(allocation(Leaf::bytes_of(len, members.len())));
        elements.clone().for_each(|element| bytes.extend_from_slice(&element.score.to_le_bytes()));
        elements.clone().for_each(|element| bytes.extend_from_slice(&element.tag.to_le_bytes()));
        let mut end = 0;
        for element in elements.clone() {
            end += element.member.len() as u32;
            bytes.extend_from_slice(&end.to_le_bytes());
        }
        elements.for_each(|element| bytes.extend_from_slice(&members[element.member.clone()]));
        Leaf { bytes, len: len as u32, parent: super::NONE }
    }

    /// Size of a leaf, from the number of elements and the bytes of their members.
    pub fn bytes_of(len: usize, members: usize) -> usize {
        FIELDS * len + members
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Bytes of all fields and members.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    pub fn heap_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    fn word(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.bytes[at..at + 4].try_into().expect("four bytes"))
    }

    fn set_word(&mut self, at: usize, word: u32) {
        self.bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
    }

    #[inline]
    pub fn score(&self, at: usize) -> f64 {
        debug_assert!(at < self.len());
        f64::from_le_bytes(self.bytes[8 * at..8 * at + 8].try_into().expect("eight bytes"))
    }

    fn set_score(&mut self, at: usize, score: f64) {
        self.bytes[8 * at..8 * at + 8].copy_from_slice(&score.to_le_bytes());
    }

    #[inline]
    pub fn tag(&self, at: usize) -> u32 {
        self.word(8 * self.len() + 4 * at)
    }

    /// The tags of all elements, in order.
    pub fn tags(&self) -> impl ExactSizeIterator<Item = u32> {
        let n = self.len();
        let tags = self.bytes[8 * n..12 * n].chunks_exact(4);
        tags.map(|tag| u32::from_le_bytes(tag.try_into().expect("four bytes")))
    }

    /// Offset of a member, relative to the first one.
    #[inline]
    fn begin(&self, at: usize) -> usize {
        if at == 0 { 0 } else { self.word(12 * self.len() + 4 * (at - 1)) as usize }
    }

    #[inline]
    pub fn member(&self, at: usize) -> &[u8] {
        let members = FIELDS * self.len();
        &self.bytes[members + self.begin(at)..members + self.begin(at + 1)]
    }

    /// The element with this member.
    #[inline]
    pub fn find(&self, tag: u32, member: &[u8]) -> Option<usize> {
        let found = |(at, found)| (found == tag && self.member(at) == member).then_some(at);
        self.tags().enumerate().find_map(found)
    }

    /// Prefetches the tags.
    #[inline]
    pub fn prefetch_tags(&self) {
        let n = self.len();
        prefetch_bytes(&self.bytes[8 * n..12 * n]);
    }

    /// Prefetches the element that probably has this tag: its score, end, and member, assuming equal lengths.
    #[inline]
    pub fn prefetch_element(&self, tag: u32) {
        let n = self.len();
        if let Some(at) = self.tags().position(|found| found == tag) {
            let members = &self.bytes[FIELDS * n..];
            prefetch_bytes(&self.bytes[8 * at..8 * at + 8]);
            prefetch_bytes(&self.bytes[12 * n + 4 * at..][..4]);
            prefetch_bytes(&members[members.len() * at / n..members.len() * (at + 1) / n]);
        }
    }

    /// Number of elements before a place.
    #[inline]
    pub fn position(&self, place: Place<'_>) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = (low + high) / 2;
            if place.is_behind(self.score(middle), || self.member(middle)) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// Whether the element at `at` can get this score without moving.
    pub fn fits(&self, at: usize, score: f64) -> bool {
        let member = self.member(at);
        let order = |other: usize| {
            let by_score = self.score(other).partial_cmp(&score).expect("no score is NaN");
            by_score.then_with(|| self.member(other).cmp(member))
        };
        (at == 0 || order(at - 1) == Ordering::Less)
            && (at + 1 == self.len() || order(at + 1) == Ordering::Greater)
    }

    /// Sets the score of the element at `at` and moves it so that `to` elements come before it.
    pub fn rescore(&mut self, at: usize, to: usize, score: f64) {
        if at != to {
            let (tag, member) = (self.tag(at), self.member(at).to_vec());
            self.remove(at..at + 1);
            self.insert(to, score, tag, &member);
        } else {
            self.set_score(at, score);
        }
    }

    /// Inserts an element, so that `at` elements come before it.
    pub fn insert(&mut self, at: usize, score: f64, tag: u32, member: &[u8]) {
        let n = self.len();
        let begin = self.begin(at);
        let old = self.bytes.len();
        let added = FIELDS + member.len();
        self.reserve(added);
        self.bytes.resize(old + added, 0);
        let members = FIELDS * n + begin;
        self.bytes.copy_within(members..old, members + added);
        self.bytes.copy_within(12 * n + 4 * at..members, 12 * n + 4 * at + 16);
        self.bytes.copy_within(8 * n + 4 * at..12 * n + 4 * at, 8 * n + 4 * at + 12);
        self.bytes.copy_within(8 * at..8 * n + 4 * at, 8 * at + 8);
        self.len += 1;
        let n = n + 1;
        self.set_score(at, score);
        self.set_word(8 * n + 4 * at, tag);
        self.set_word(12 * n + 4 * at, begin as u32);
        self.bytes[FIELDS * n + begin..][..member.len()].copy_from_slice(member);
        self.move_ends(at, member.len() as i64);
    }

    /// Removes elements.
    pub fn remove(&mut self, range: Range<usize>) {
        let n = self.len();
        let Range { start, end } = range;
        let (begin, behind) = (self.begin(start), self.begin(end));
        let old = self.bytes.len();
        let count = end - start;
        self.bytes.copy_within(8 * end..8 * n + 4 * start, 8 * start);
        let fields = 8 * n + 4 * end..12 * n + 4 * start;
        self.bytes.copy_within(fields.clone(), fields.start - 12 * count);
        let fields = 12 * n + 4 * end..FIELDS * n + begin;
        self.bytes.copy_within(fields.clone(), fields.start - 16 * count);
        let taken = behind - begin;
        let members = FIELDS * n + behind;
        self.bytes.copy_within(members..old, members - FIELDS * count - taken);
        self.bytes.truncate(old - FIELDS * count - taken);
        self.len -= count as u32;
        self.move_ends(start, -(taken as i64));
        if self.bytes.capacity() > 2 * self.bytes.len() {
            self.bytes.shrink_to(allocation(self.bytes.len()));
        }
    }

    /// Adds `by` to the ends of the members from `from` on.
    fn move_ends(&mut self, from: usize, by: i64) {
        let n = self.len();
        for end in self.bytes[12 * n + 4 * from..FIELDS * n].chunks_exact_mut(4) {
            let old = u32::from_le_bytes((&*end).try_into().expect("four bytes"));
            end.copy_from_slice(&(old.wrapping_add(by as u32)).to_le_bytes());
        }
    }

    /// Splits off the elements from `at` on.
    pub fn split_off(&mut self, at: usize) -> Leaf {
        let n = self.len();
        let mut right = Leaf { parent: self.parent, ..Leaf::default() };
        right.append_range(self, at..n);
        self.remove(at..n);
        self.bytes.shrink_to(allocation(self.bytes.len()));
        right
    }

    /// Appends all elements of the next leaf.
    pub fn append(&mut self, other: &Leaf) {
        let mut joined = Leaf { parent: self.parent, ..Leaf::default() };
        joined.concatenate([(self, 0..self.len()), (other, 0..other.len())]);
        *self = joined;
    }

    fn append_range(&mut self, other: &Leaf, range: Range<usize>) {
        self.concatenate([(other, range), (&Leaf::default(), 0..0)]);
    }

    /// Fills this empty leaf with ranges of others.
    fn concatenate(&mut self, parts: [(&Leaf, Range<usize>); 2]) {
        let sizes = parts.iter().map(|(leaf, range)| {
            FIELDS * range.len() + leaf.begin(range.end) - leaf.begin(range.start)
        });
        self.bytes.reserve_exact(allocation(sizes.sum()));
        for (leaf, range) in &parts {
            self.bytes.extend_from_slice(&leaf.bytes[8 * range.start..8 * range.end]);
            self.len += range.len() as u32;
        }
        for (leaf, range) in &parts {
            let tags = 8 * leaf.len();
            self.bytes.extend_from_slice(&leaf.bytes[tags + 4 * range.start..tags + 4 * range.end]);
        }
        let mut begin = 0;
        for (leaf, range) in &parts {
            let offset = leaf.begin(range.start);
            for at in range.clone() {
                let end = leaf.begin(at + 1) - offset + begin;
                self.bytes.extend_from_slice(&(end as u32).to_le_bytes());
            }
            begin += leaf.begin(range.end) - offset;
        }
        for (leaf, range) in &parts {
            let members = FIELDS * leaf.len();
            let (from, to) = (leaf.begin(range.start), leaf.begin(range.end));
            self.bytes.extend_from_slice(&leaf.bytes[members + from..members + to]);
        }
    }

    fn reserve(&mut self, added: usize) {
        let needed = self.bytes.len() + added;
        if needed > self.bytes.capacity() {
            self.bytes.reserve_exact(allocation(needed) - self.bytes.len());
        }
    }
}

/// Bytes to allocate for `needed`: the allocator's next size class, four per power of two. A `Vec`'s doubling would
/// leave a quarter of the memory unused.
fn allocation(needed: usize) -> usize {
    let step = (needed.next_power_of_two() / 8).max(16);
    needed.next_multiple_of(step)
}
