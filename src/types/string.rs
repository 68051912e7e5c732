//! The string type: bytes inside the key's entry while it is short, [`SharedBytes`] when it is long
//! or has been edited.
//!
//! Readers use a [`StringView`]: most strings are one slice, and code that works on parts takes a
//! long one piece by piece. Changes are made through [`crate::keyspace`], which gives out a
//! [`StringMut`].

use std::borrow::Cow;
use std::cmp::Ordering;
use std::ops::Range;

use super::{Value, kind};
use crate::collections::shared_bytes::{PIECE, SharedBytes};
use crate::collections::table::ValueRef;

/// A string, for reading.
#[derive(Clone, Copy, Debug)]
pub enum StringView<'a> {
    Whole(&'a [u8]),
    /// In at least two pieces.
    Pieces(&'a SharedBytes),
}

impl Default for StringView<'_> {
    fn default() -> Self {
        StringView::Whole(&[])
    }
}

impl<'a> From<&'a [u8]> for StringView<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        StringView::Whole(bytes)
    }
}

impl<'a> From<&'a SharedBytes> for StringView<'a> {
    #[inline]
    fn from(bytes: &'a SharedBytes) -> Self {
        bytes.as_slice().map_or(StringView::Pieces(bytes), StringView::Whole)
    }
}

impl PartialEq<[u8]> for StringView<'_> {
    fn eq(&self, other: &[u8]) -> bool {
        self.len() == other.len()
            && self.blocks(0..other.len()).all(|(at, piece)| piece == &other[at..at + piece.len()])
    }
}

impl PartialEq for StringView<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for StringView<'_> {}

impl PartialOrd for StringView<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// By bytes, as slices are ordered.
impl Ord for StringView<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        let pieces = self.len().min(other.len()) / PIECE;
        let unequal = (0..=pieces).map(|number| self.piece(number).cmp(other.piece(number)));
        unequal.into_iter().find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
    }
}

impl<'a> StringView<'a> {
    /// The value as a string; None if it is of another type.
    #[inline(always)]
    pub fn new(value: ValueRef<'a, Value>) -> Option<Self> {
        match value {
            ValueRef::Bytes {
                bytes,
                kind: kind::STRING | kind::EDITED_STRING | kind::UNENCODED_STRING,
            } => Some(StringView::Whole(bytes)),
            ValueRef::Object(Value::String(bytes)) => Some(bytes.into()),
            _ => None,
        }
    }

    #[inline]
    pub fn len(self) -> usize {
        match self {
            StringView::Whole(bytes) => bytes.len(),
            StringView::Pieces(bytes) => bytes.len(),
        }
    }

    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// All bytes. Copies a string that is in several pieces.
    pub fn whole(self) -> Cow<'a, [u8]> {
        match self {
            StringView::Whole(bytes) => Cow::Borrowed(bytes),
            StringView::Pieces(bytes) => Cow::Owned(bytes.to_vec()),
        }
    }

    /// All bytes of a string that is in one piece: one of at most 64 KiB.
    pub fn as_slice(self) -> Option<&'a [u8]> {
        match self {
            StringView::Whole(bytes) => Some(bytes),
            StringView::Pieces(_) => None,
        }
    }

    /// The bytes of a range, which must lie within the string, piece by piece.
    pub fn pieces(self, range: Range<usize>) -> impl Iterator<Item = &'a [u8]> + Clone {
        let (whole, pieces) = match self {
            StringView::Whole(bytes) => (Some(&bytes[range]), None),
            StringView::Pieces(bytes) => (None, Some(bytes.pieces(range))),
        };
        whole.into_iter().chain(pieces.into_iter().flatten())
    }

    /// The same, each piece with its offset in the string.
    pub fn blocks(self, range: Range<usize>) -> impl Iterator<Item = (usize, &'a [u8])> + Clone {
        let start = range.start;
        self.pieces(range).scan(start, |at, piece| {
            *at += piece.len();
            Some((*at - piece.len(), piece))
        })
    }

    /// The bytes of the `number`-th range of [`PIECE`] bytes; empty after the end.
    pub fn piece(self, number: usize) -> &'a [u8] {
        let start = (number * PIECE).min(self.len());
        let end = (start + PIECE).min(self.len());
        match self {
            StringView::Whole(bytes) => &bytes[start..end],
            StringView::Pieces(bytes) => bytes.pieces(start..end).next().unwrap_or_default(),
        }
    }

    /// The byte at an offset; None after the end.
    #[inline]
    pub fn byte(self, at: usize) -> Option<u8> {
        match self {
            StringView::Whole(bytes) => bytes.get(at).copied(),
            StringView::Pieces(_) => self.piece(at / PIECE).get(at % PIECE).copied(),
        }
    }

    /// The bytes from an offset on; zeros after the end.
    #[inline]
    pub fn window<const N: usize>(self, at: u64) -> [u8; N] {
        let mut window = [0; N];
        let start = usize::try_from(at).unwrap_or(usize::MAX).min(self.len());
        let end = start.saturating_add(N).min(self.len());
        if let StringView::Whole(bytes) = self {
            window[..end - start].copy_from_slice(&bytes[start..end]);
            return window;
        }
        for (at, piece) in self.blocks(start..end) {
            window[at - start..at - start + piece.len()].copy_from_slice(piece);
        }
        window
    }
}

/// A string, for changing in place.
#[derive(Debug)]
pub enum StringMut<'a> {
    Whole(&'a mut [u8]),
    Pieces(&'a mut SharedBytes),
}

impl<'a> From<&'a mut SharedBytes> for StringMut<'a> {
    fn from(bytes: &'a mut SharedBytes) -> Self {
        match bytes.as_slice() {
            Some(_) => StringMut::Whole(bytes.as_mut_slice().unwrap_or_default()),
            None => StringMut::Pieces(bytes),
        }
    }
}

impl StringMut<'_> {
    pub fn as_view(&self) -> StringView<'_> {
        match self {
            StringMut::Whole(bytes) => StringView::Whole(bytes),
            StringMut::Pieces(bytes) => StringView::Pieces(bytes),
        }
    }

    /// Writes bytes from an offset on. They must lie within the string.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        match self {
            StringMut::Whole(whole) => whole[at..at + bytes.len()].copy_from_slice(bytes),
            StringMut::Pieces(pieces) => {
                debug_assert!(at + bytes.len() <= pieces.len());
                pieces.write(at, bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_in_pieces_are_ordered_by_their_bytes() {
        let texts =
            [(0, None), (3, None), (PIECE, None), (2 * PIECE, None), (2 * PIECE, Some(PIECE + 5))];
        let texts = texts.map(|(len, odd): (usize, Option<usize>)| {
            let mut text = vec![b'x'; len];
            if let Some(at) = odd {
                text[at] = b'a';
            }
            text
        });
        let long = texts.each_ref().map(|text| SharedBytes::from(text.as_slice()));
        for (a, a_long) in texts.iter().zip(&long) {
            for (b, b_long) in texts.iter().zip(&long) {
                assert_eq!(StringView::from(a_long).cmp(&b_long.into()), a.cmp(b));
                assert_eq!(StringView::from(a_long).cmp(&b.as_slice().into()), a.cmp(b));
            }
        }
    }
}
