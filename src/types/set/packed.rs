//! Members of a small set: packed elements in insertion order.

use std::ops::Range;

use smallvec::SmallVec;

use crate::collections::packed::{Element, Elements};

/// The result of a search for a member.
pub(super) enum Search {
    /// Its byte range.
    Found(Range<usize>),
    /// The number of members.
    Absent { members: usize },
}

/// Looks for a member. Each element has only one encoding, so encodings are compared without
/// decoding.
#[inline]
pub(super) fn search(bytes: &[u8], wanted: Element<'_>) -> Search {
    let mut encoded = SmallVec::<[u8; 96]>::new();
    encode(wanted, &mut encoded);
    let (mut at, mut members) = (0, 0);
    while let Some(len) = element_len(&bytes[at..]) {
        let end = at + len;
        if len == encoded.len() && bytes[at..end] == encoded[..] {
            return Search::Found(at..end);
        }
        at = end;
        members += 1;
    }
    Search::Absent { members }
}

pub(super) fn contains(bytes: &[u8], wanted: Element<'_>) -> bool {
    matches!(search(bytes, wanted), Search::Found(_))
}

/// The number of members.
pub(super) fn count(bytes: &[u8]) -> usize {
    let (mut at, mut members) = (0, 0);
    while let Some(len) = element_len(&bytes[at..]) {
        at += len;
        members += 1;
    }
    members
}

/// The member of this rank and its byte range. It must exist.
pub(super) fn nth(bytes: &[u8], rank: usize) -> (Element<'_>, Range<usize>) {
    let mut elements = Elements::new(bytes);
    let mut left = rank;
    loop {
        let start = elements.position();
        let element = elements.next().expect("a rank is less than the number of members");
        if left == 0 {
            return (element, start..elements.position());
        }
        left -= 1;
    }
}

/// Removes the members for which `keep` returns false.
pub(super) fn retain(bytes: &mut Vec<u8>, mut keep: impl FnMut(Element<'_>) -> bool) {
    let (mut at, mut kept) = (0, 0);
    while let Some((element, len)) = Element::read(&bytes[at..]) {
        if keep(element) {
            bytes.copy_within(at..at + len, kept);
            kept += len;
        }
        at += len;
    }
    bytes.truncate(kept);
}

/// Length of the element that begins here; None at the end.
#[inline]
fn element_len(bytes: &[u8]) -> Option<usize> {
    match *bytes.first()? {
        0..0x80 => Some(1),
        head @ 0x80..0xc0 => {
            let len = 1 + usize::from(head & 0x3f);
            (len <= bytes.len()).then_some(len)
        }
        _ => Element::read(bytes).map(|(_, len)| len),
    }
}

fn encode(element: Element<'_>, out: &mut SmallVec<[u8; 96]>) {
    match element {
        Element::Bytes(bytes) if bytes.len() < 64 => {
            out.push(0x80 | bytes.len() as u8);
            out.extend_from_slice(bytes);
        }
        _ => {
            let mut encoded = Vec::with_capacity(element.encoded_len());
            element.write(&mut encoded);
            out.extend_from_slice(&encoded);
        }
    }
}
