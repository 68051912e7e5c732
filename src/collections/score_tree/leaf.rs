//! A leaf of the score tree: up to a few dozen elements in one allocation.
//!
//! ```text
//!   scores    n × f64, little-endian
//!   tags      n × u16: the upper half of each member's tag
//!   ends      n × u16: where each member ends, counted from the first member's beginning; that of
//!             the last one is where the bytes end, and undefined here if it is too long
//!   members   their bytes, one after the other
//! ```
//!
//! A leaf with a single long member is shared by its clones until it changes.
//!
//! Adding or removing elements moves four arrays; each kind of field is contiguous, so that a
//! search by score reads only scores, and one by member only tags and that member.

use std::ops::{Deref, DerefMut, Range};

use super::{LEAF_BYTES_MAX, Place, tag_of};
use crate::collections::find::find_short;
use crate::collections::prefetch::prefetch_bytes;
use crate::collections::shared::{Arc, Part, own};

/// Bytes of an element without its member.
const FIELDS: usize = 12;

/// The part of a tag that a leaf keeps. The index divides tags by their other bits.
#[inline]
fn short(tag: u32) -> u16 {
    (tag >> 16) as u16
}

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
    fn short(self, at: usize) -> u16 {
        u16::from_le_bytes(self.bytes[at..at + 2].try_into().expect("two bytes"))
    }

    #[inline]
    fn score(self, at: usize) -> f64 {
        debug_assert!(at < self.len);
        f64::from_le_bytes(self.bytes[8 * at..8 * at + 8].try_into().expect("eight bytes"))
    }

    /// The tags of all elements, in order.
    #[inline]
    fn tags(self) -> &'a [[u8; 2]] {
        self.bytes[8 * self.len..10 * self.len].as_chunks().0
    }

    /// Offset of a member, relative to the first one.
    #[inline]
    fn begin(self, at: usize) -> usize {
        if at == 0 {
            0
        } else if at == self.len {
            self.bytes.len() - FIELDS * self.len
        } else {
            usize::from(self.short(10 * self.len + 2 * (at - 1)))
        }
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
        let tags = elements.clone();
        tags.for_each(|element| bytes.extend_from_slice(&short(element.tag).to_le_bytes()));
        let mut end = 0;
        for element in elements.clone() {
            end += element.member.len();
            bytes.extend_from_slice(&(end as u16).to_le_bytes());
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

    /// The tags of all members, in order: hashed again.
    pub fn tags(&self) -> impl ExactSizeIterator<Item = u32> {
        (0..self.len()).map(|at| tag_of(self.member(at)))
    }

    /// The members that may have this tag, with their places.
    pub fn tagged(&self, tag: u32) -> impl Iterator<Item = (usize, &[u8])> {
        let wanted = short(tag).to_le_bytes();
        let tags = self.fields().tags().iter().enumerate();
        tags.filter(move |&(_, &tag)| tag == wanted).map(|(at, _)| (at, self.member(at)))
    }

    #[inline]
    pub fn member(&self, at: usize) -> &[u8] {
        self.fields().member(at)
    }

    /// The element with this member.
    #[inline]
    pub fn find(&self, tag: u32, member: &[u8]) -> Option<usize> {
        let fields = self.fields();
        let is = |at| (fields.member(at) == member).then_some(at);
        find_short(fields.tags(), short(tag), is)
    }

    /// Prefetches the tags.
    #[inline]
    pub fn prefetch_tags(&self) {
        let n = self.len();
        prefetch_bytes(&self.bytes[8 * n..10 * n]);
    }

    /// Prefetches the element that probably has this tag: its score, end, and member, assuming
    /// equal lengths.
    #[inline]
    pub fn prefetch_element(&self, tag: u32) {
        let n = self.len();
        if let Some(at) = find_short(self.fields().tags(), short(tag), Some) {
            let members = &self.bytes[FIELDS * n..];
            prefetch_bytes(&self.bytes[8 * at..8 * at + 8]);
            prefetch_bytes(&self.bytes[10 * n + 2 * at..][..2]);
            prefetch_bytes(&members[members.len() * at / n..members.len() * (at + 1) / n]);
        }
    }

    /// Number of elements before a place.
    #[inline]
    pub fn position(&self, place: Place<'_>) -> usize {
        let fields = self.fields();
        let (scores, _) = fields.bytes[..8 * fields.len].as_chunks::<8>();
        place.position(scores, |score| f64::from_le_bytes(*score), |at| fields.member(at))
    }

    /// Sets the score of the element at `at`, which has this tag and member, and moves it so that
    /// `to` elements come before it.
    pub fn rescore(&mut self, at: usize, to: usize, score: f64, (tag, member): (u32, &[u8])) {
        if at != to {
            self.remove(at..at + 1);
            self.insert(to, score, tag, member);
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
        bytes.copy_within(10 * n + 2 * at..members, 10 * n + 2 * at + FIELDS);
        bytes.copy_within(8 * n + 2 * at..10 * n + 2 * at, 8 * n + 2 * at + 10);
        bytes.copy_within(8 * at..8 * n + 2 * at, 8 * at + 8);
        self.len += 1;
        let n = n + 1;
        set_score(bytes, at, score);
        set_short(bytes, 8 * n + 2 * at, short(tag));
        set_short(bytes, 10 * n + 2 * at, begin as u16);
        bytes[FIELDS * n + begin..][..member.len()].copy_from_slice(member);
        move_ends(&mut bytes[10 * n + 2 * at..FIELDS * n], member.len());
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
        bytes.copy_within(8 * end..8 * n + 2 * start, 8 * start);
        let fields = 8 * n + 2 * end..10 * n + 2 * start;
        bytes.copy_within(fields.clone(), fields.start - 10 * count);
        let fields = 10 * n + 2 * end..FIELDS * n + begin;
        bytes.copy_within(fields.clone(), fields.start - FIELDS * count);
        let taken = after - begin;
        let members = FIELDS * n + after;
        bytes.copy_within(members..old, members - FIELDS * count - taken);
        bytes.truncate(old - FIELDS * count - taken);
        self.len -= count as u32;
        let n = n - count;
        move_ends(&mut bytes[10 * n + 2 * start..FIELDS * n], taken.wrapping_neg());
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
            bytes.extend_from_slice(&leaf.bytes[tags + 2 * range.start..tags + 2 * range.end]);
        }
        let mut begin = 0;
        for (leaf, range) in &parts {
            let offset = leaf.begin(range.start);
            for at in range.clone() {
                let end = leaf.begin(at + 1) - offset + begin;
                bytes.extend_from_slice(&(end as u16).to_le_bytes());
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

fn set_short(bytes: &mut [u8], at: usize, short: u16) {
    bytes[at..at + 2].copy_from_slice(&short.to_le_bytes());
}

fn set_score(bytes: &mut [u8], at: usize, score: f64) {
    bytes[8 * at..8 * at + 8].copy_from_slice(&score.to_le_bytes());
}

/// Adds `by` to each of these ends, modulo 2^16.
fn move_ends(ends: &mut [u8], by: usize) {
    for end in ends.as_chunks_mut::<2>().0 {
        *end = u16::from_le_bytes(*end).wrapping_add(by as u16).to_le_bytes();
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
