//! A small sorted set as packed bytes: member and score in turn, in the order of (score, member).
//!
//! A member is a packed element (`collections/packed.rs`). So is an integer score; any other is a
//! string of 8 bytes, the double in little-endian order. Negative zero is the integer 0, as in
//! Redis.

use std::ops::Range;

use crate::collections::packed::{Element, Elements};
use crate::collections::score_tree::Place;
use crate::resp::number::f64_as_i64;

/// Integers beyond this are not exact as doubles.
const EXACT_MAX: i64 = 1 << 53;

/// A member that was found.
#[derive(Clone, Debug)]
pub struct Found {
    pub rank: usize,
    pub score: f64,
    /// The bytes of member and score.
    pub bytes: Range<usize>,
}

/// Elements in order.
#[derive(Clone, Debug)]
pub struct Iter<'a>(Elements<'a>);

impl<'a> Iter<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Iter(Elements::new(bytes))
    }

    /// Offset of the next element.
    fn position(&self) -> usize {
        self.0.position()
    }
}

impl<'a> Iterator for Iter<'a> {
    type Item = (f64, Element<'a>);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let member = self.0.next()?;
        let score = self.0.next()?;
        Some((read_score(score), member))
    }
}

#[inline]
fn read_score(element: Element<'_>) -> f64 {
    match element {
        Element::Integer(score) => score as f64,
        Element::Bytes(bytes) => bytes.try_into().map_or(0.0, f64::from_le_bytes),
    }
}

/// Calls `write` with a score's element.
fn with_score<R>(score: f64, write: impl FnOnce(Element<'_>) -> R) -> R {
    match f64_as_i64(score).filter(|score| (-EXACT_MAX..=EXACT_MAX).contains(score)) {
        Some(score) => write(Element::Integer(score)),
        None => write(Element::Bytes(&score.to_le_bytes())),
    }
}

/// The number of members.
pub fn len(bytes: &[u8]) -> usize {
    Elements::new(bytes).count() / 2
}

/// Bytes of an element.
pub fn bytes_of(score: f64, member: &[u8]) -> usize {
    Element::new(member).encoded_len() + with_score(score, |score| score.encoded_len())
}

/// Looks for a member.
pub fn find(bytes: &[u8], member: &[u8]) -> Option<Found> {
    let member = Element::new(member);
    let mut elements = Iter::new(bytes);
    let (mut rank, mut start) = (0, 0);
    while let Some((score, found)) = elements.next() {
        let end = elements.position();
        if found == member {
            return Some(Found { rank, score, bytes: start..end });
        }
        (rank, start) = (rank + 1, end);
    }
    None
}

/// Adds a new member.
pub fn insert(bytes: &mut Vec<u8>, score: f64, member: &[u8]) {
    let place = Place::Before(score, member);
    let mut elements = Iter::new(bytes);
    let mut at = 0;
    while let Some((found, other)) = elements.next() {
        if !place.is_behind(found, || other.text()) {
            break;
        }
        at = elements.position();
    }
    // Appended, then rotated to its position.
    let old = bytes.len();
    Element::new(member).write(bytes);
    with_score(score, |score| score.write(bytes));
    let added = bytes.len() - old;
    bytes[at..].rotate_right(added);
}

/// Removes an element.
pub fn remove(bytes: &mut Vec<u8>, element: Range<usize>) {
    bytes.drain(element);
}

/// Removes the elements of a range of ranks.
pub fn remove_ranks(bytes: &mut Vec<u8>, ranks: Range<usize>) {
    let mut elements = Iter::new(bytes);
    elements.by_ref().take(ranks.start).for_each(drop);
    let start = elements.position();
    elements.by_ref().take(ranks.len()).for_each(drop);
    let end = elements.position();
    bytes.drain(start..end);
}
