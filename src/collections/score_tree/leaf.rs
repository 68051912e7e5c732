//! A leaf of the score tree: up to a few dozen elements in one allocation.
//!
//! ```text
//!   scores    n × f64, little-endian
//!   tags      n × u32: 32 bits of each member's hash
//!   ends      n × u32: where each member ends, counted from the first member's beginning
//!   members   their bytes, one after the other
//! ```
//!
//! A leaf with a single long member is shared by its clones until it changes.
//!
//! Adding or removing elements moves four arrays; each kind of field is contiguous, so that a
//! search by score reads only scores, and one by member only tags and that member.

use std::cmp::Ordering;
use std::ops::{Deref, DerefMut, Range};

use super::{LEAF_BYTES_MAX, Place};
use crate::collections::prefetch::prefetch_bytes;
use crate::collections::shared::{Arc, Part, own};

/// Bytes of an element without its member.
const FIELDS: usize = 16;

/// A leaf's allocation.
#[derive(Clone, Debug)]
enum Bytes {
    Own(Vec<u8>),
    /// The allocation of one long member, which clones share.
    Shared(Arc<Vec<u8>>),
}

impl Default for Bytes {
    fn default() -> Self {
        Bytes::Own(Vec::new())
    }
}

impl Deref for Bytes {
    type Target = Vec<u8>;

    #[inline]
    fn deref(&self) -> &Vec<u8> {
        match self {
            Bytes::Own(bytes) => bytes,
            Bytes::Shared(bytes) => bytes,
        }
    }
}

impl DerefMut for Bytes {
    #[inline]
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        match self {
            Bytes::Own(bytes) => bytes,
            Bytes::Shared(bytes) => own(bytes),
        }
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        match bytes.len() > LEAF_BYTES_MAX {
            true => Bytes::Shared(Arc::new(bytes)),
            false => Bytes::Own(bytes),
        }
    }
}

/// A sorted run of elements.
#[derive(Clone, Debug, Default)]
pub struct Leaf {
    bytes: Bytes,
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
        match &self.bytes {
            Bytes::Own(bytes) => bytes.capacity(),
            Bytes::Shared(_) => 0,
        }
    }

    fn freed_bytes(&self) -> usize {
        match &self.bytes {
            Bytes::Own(bytes) => bytes.capacity(),
            Bytes::Shared(bytes) => bytes.freed_bytes(),
        }
    }
}

/// The fields of a leaf, found once for several accesses.
#[derive(Clone, Copy)]
struct Fields<'a> {
    bytes: &'a [u8],
    len: usize,
}

impl<'a> Fields<'a> {
    #[inline]
    fn word(self, at: usize) -> u32 {
        u32::from_le_bytes(self.bytes[at..at + 4].try_into().expect("four bytes"))
    }

    #[inline]
    fn score(self, at: usize) -> f64 {
        debug_assert!(at < self.len);
        f64::from_le_bytes(self.bytes[8 * at..8 * at + 8].try_into().expect("eight bytes"))
    }

    #[inline]
    fn tag(self, at: usize) -> u32 {
        self.word(8 * self.len + 4 * at)
    }

    /// The tags of all elements, in order.
    #[inline]
    fn tags(self) -> impl ExactSizeIterator<Item = u32> {
        let tags = self.bytes[8 * self.len..12 * self.len].chunks_exact(4);
        tags.map(|tag| u32::from_le_bytes(tag.try_into().expect("four bytes")))
    }

    /// Offset of a member, relative to the first one.
    #[inline]
    fn begin(self, at: usize) -> usize {
        if at == 0 { 0 } else { self.word(12 * self.len + 4 * (at - 1)) as usize }
    }

    #[inline]
    fn member(self, at: usize) -> &'a [u8] {
        let members = FIELDS * self.len;
        &self.bytes[members + self.begin(at)..members + self.begin(at + 1)]
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
        Leaf { bytes: bytes.into(), len: len as u32, parent: super::NONE }
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

    #[inline]
    fn fields(&self) -> Fields<'_> {
        Fields { bytes: &self.bytes, len: self.len() }
    }

    #[inline]
    pub fn score(&self, at: usize) -> f64 {
        self.fields().score(at)
    }

    #[inline]
    pub fn tag(&self, at: usize) -> u32 {
        self.fields().tag(at)
    }

    /// The tags of all elements, in order.
    pub fn tags(&self) -> impl ExactSizeIterator<Item = u32> {
        self.fields().tags()
    }

    #[inline]
    pub fn member(&self, at: usize) -> &[u8] {
        self.fields().member(at)
    }

    /// The element with this member.
    #[inline]
    pub fn find(&self, tag: u32, member: &[u8]) -> Option<usize> {
        let fields = self.fields();
        let found = |(at, found)| (found == tag && fields.member(at) == member).then_some(at);
        fields.tags().enumerate().find_map(found)
    }

    /// Prefetches the tags.
    #[inline]
    pub fn prefetch_tags(&self) {
        let n = self.len();
        prefetch_bytes(&self.bytes[8 * n..12 * n]);
    }

    /// Prefetches the element that probably has this tag: its score, end, and member, assuming
    /// equal lengths.
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
        let fields = self.fields();
        let (mut low, mut high) = (0, fields.len);
        while low < high {
            let middle = (low + high) / 2;
            if place.is_behind(fields.score(middle), || fields.member(middle)) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// Whether the element at `at` can get this score without moving.
    pub fn fits(&self, at: usize, score: f64) -> bool {
        let fields = self.fields();
        let member = fields.member(at);
        let order = |other: usize| {
            let by_score = fields.score(other).partial_cmp(&score).expect("no score is NaN");
            by_score.then_with(|| fields.member(other).cmp(member))
        };
        (at == 0 || order(at - 1) == Ordering::Less)
            && (at + 1 == fields.len || order(at + 1) == Ordering::Greater)
    }

    /// Sets the score of the element at `at` and moves it so that `to` elements come before it.
    pub fn rescore(&mut self, at: usize, to: usize, score: f64) {
        if at != to {
            let (tag, member) = (self.tag(at), self.member(at).to_vec());
            self.remove(at..at + 1);
            self.insert(to, score, tag, &member);
        } else {
            set_score(&mut self.bytes, at, score);
        }
    }

    /// Inserts an element, so that `at` elements come before it.
    pub fn insert(&mut self, at: usize, score: f64, tag: u32, member: &[u8]) {
        let n = self.len();
        let begin = self.fields().begin(at);
        let added = FIELDS + member.len();
        let bytes = &mut *self.bytes;
        let old = bytes.len();
        reserve(bytes, added);
        bytes.resize(old + added, 0);
        let members = FIELDS * n + begin;
        bytes.copy_within(members..old, members + added);
        bytes.copy_within(12 * n + 4 * at..members, 12 * n + 4 * at + 16);
        bytes.copy_within(8 * n + 4 * at..12 * n + 4 * at, 8 * n + 4 * at + 12);
        bytes.copy_within(8 * at..8 * n + 4 * at, 8 * at + 8);
        self.len += 1;
        let n = n + 1;
        set_score(bytes, at, score);
        set_word(bytes, 8 * n + 4 * at, tag);
        set_word(bytes, 12 * n + 4 * at, begin as u32);
        bytes[FIELDS * n + begin..][..member.len()].copy_from_slice(member);
        move_ends(&mut bytes[12 * n + 4 * at..FIELDS * n], member.len() as i64);
        if added > LEAF_BYTES_MAX {
            self.bytes = std::mem::take(bytes).into();
        }
    }

    /// Removes elements.
    pub fn remove(&mut self, range: Range<usize>) {
        let n = self.len();
        if range.is_empty() {
            return;
        }
        if range.len() == n {
            *self = Leaf { parent: self.parent, ..Leaf::default() };
            return;
        }
        let Range { start, end } = range;
        let (begin, after) = (self.fields().begin(start), self.fields().begin(end));
        let bytes = &mut *self.bytes;
        let old = bytes.len();
        let count = end - start;
        bytes.copy_within(8 * end..8 * n + 4 * start, 8 * start);
        let fields = 8 * n + 4 * end..12 * n + 4 * start;
        bytes.copy_within(fields.clone(), fields.start - 12 * count);
        let fields = 12 * n + 4 * end..FIELDS * n + begin;
        bytes.copy_within(fields.clone(), fields.start - 16 * count);
        let taken = after - begin;
        let members = FIELDS * n + after;
        bytes.copy_within(members..old, members - FIELDS * count - taken);
        bytes.truncate(old - FIELDS * count - taken);
        self.len -= count as u32;
        let n = n - count;
        move_ends(&mut bytes[12 * n + 4 * start..FIELDS * n], -(taken as i64));
        if bytes.capacity() > 2 * bytes.len() {
            shrink(bytes);
        }
    }

    /// Splits off the elements from `at` on.
    pub fn split_off(&mut self, at: usize) -> Leaf {
        let n = self.len();
        let mut right = Leaf { parent: self.parent, ..Leaf::default() };
        if at == n {
            return right;
        }
        if at == 0 {
            return std::mem::replace(self, right);
        }
        right.append_range(self, at..n);
        self.remove(at..n);
        shrink(&mut self.bytes);
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
        let parts = parts.map(|(leaf, range)| (leaf.fields(), range));
        let sizes = parts.iter().map(|(leaf, range)| {
            FIELDS * range.len() + leaf.begin(range.end) - leaf.begin(range.start)
        });
        let bytes = &mut *self.bytes;
        bytes.reserve_exact(allocation(sizes.sum()));
        for (leaf, range) in &parts {
            bytes.extend_from_slice(&leaf.bytes[8 * range.start..8 * range.end]);
            self.len += range.len() as u32;
        }
        for (leaf, range) in &parts {
            let tags = 8 * leaf.len;
            bytes.extend_from_slice(&leaf.bytes[tags + 4 * range.start..tags + 4 * range.end]);
        }
        let mut begin = 0;
        for (leaf, range) in &parts {
            let offset = leaf.begin(range.start);
            for at in range.clone() {
                let end = leaf.begin(at + 1) - offset + begin;
                bytes.extend_from_slice(&(end as u32).to_le_bytes());
            }
            begin += leaf.begin(range.end) - offset;
        }
        for (leaf, range) in &parts {
            let members = FIELDS * leaf.len;
            let (from, to) = (leaf.begin(range.start), leaf.begin(range.end));
            bytes.extend_from_slice(&leaf.bytes[members + from..members + to]);
        }
    }
}

fn set_word(bytes: &mut [u8], at: usize, word: u32) {
    bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
}

fn set_score(bytes: &mut [u8], at: usize, score: f64) {
    bytes[8 * at..8 * at + 8].copy_from_slice(&score.to_le_bytes());
}

/// Adds `by` to each of these ends.
fn move_ends(ends: &mut [u8], by: i64) {
    for end in ends.chunks_exact_mut(4) {
        let old = u32::from_le_bytes((&*end).try_into().expect("four bytes"));
        end.copy_from_slice(&(old.wrapping_add(by as u32)).to_le_bytes());
    }
}

fn reserve(bytes: &mut Vec<u8>, added: usize) {
    let needed = bytes.len() + added;
    if needed > bytes.capacity() {
        bytes.reserve_exact(allocation(needed) - bytes.len());
    }
}

fn shrink(bytes: &mut Vec<u8>) {
    bytes.shrink_to(allocation(bytes.len()));
}

/// Bytes to allocate for `needed`: the allocator's next size class, four per power of two. A
/// `Vec`'s doubling would leave a quarter of the memory unused.
fn allocation(needed: usize) -> usize {
    let step = (needed.next_power_of_two() / 8).max(16);
    needed.next_multiple_of(step)
}
