//! A byte string in pieces, which its clones share until one of them changes (copy-on-write).
//!
//! ```text
//!   pieces: | 64 KiB | 64 KiB | ... | 1 byte to 64 KiB |      an allocation each, counted
//! ```
//!
//! A clone costs a reference count for every 16 pieces ([`SharedVec`]), and a change copies at most
//! the pieces that it touches. So a snapshot clones a string of any length at once. Growing moves
//! nothing but the last piece.

use std::ops::Range;

use super::shared::{Arc, Part, SharedVec, own};

/// Bytes of a full piece. Copying one takes some 10 µs, and 8,192 of them are the longest string of
/// usual limits.
pub const PIECE: usize = 64 * 1024;

/// A piece. None only fills the places after the vector's end.
#[derive(Clone, Debug, Default)]
struct Piece(Option<Arc<Vec<u8>>>);

impl Part for Piece {
    /// Clones share the bytes.
    fn heap_bytes(&self) -> usize {
        0
    }

    fn freed_bytes(&self) -> usize {
        self.0.as_ref().map_or(0, Arc::freed_bytes)
    }
}

impl Piece {
    fn new(bytes: Vec<u8>) -> Piece {
        Piece(Some(Arc::new(bytes)))
    }

    #[inline]
    fn bytes(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], |bytes| bytes.as_slice())
    }

    /// The bytes, for changing: copied first if they are shared.
    #[inline]
    fn own(&mut self) -> &mut Vec<u8> {
        own(self.0.get_or_insert_default())
    }
}

/// A byte string, see the module's text. Every piece but the last is full, and none is empty.
#[derive(Clone, Debug, Default)]
pub struct SharedBytes {
    pieces: SharedVec<Piece>,
    len: usize,
}

impl From<&[u8]> for SharedBytes {
    fn from(bytes: &[u8]) -> Self {
        let mut shared = SharedBytes::default();
        shared.append(bytes);
        shared
    }
}

impl From<Vec<u8>> for SharedBytes {
    /// Copies nothing if one piece is enough.
    fn from(mut bytes: Vec<u8>) -> Self {
        if bytes.is_empty() || bytes.len() > PIECE {
            return SharedBytes::from(bytes.as_slice());
        }
        bytes.shrink_to(PIECE);
        let len = bytes.len();
        let mut pieces = SharedVec::default();
        pieces.push(Piece::new(bytes));
        SharedBytes { pieces, len }
    }
}

impl SharedBytes {
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All bytes, if they are in one piece.
    #[inline]
    pub fn as_slice(&self) -> Option<&[u8]> {
        match self.pieces.len() {
            0 => Some(&[]),
            1 => Some(self.pieces[0].bytes()),
            _ => None,
        }
    }

    /// All bytes, for changing, if they are in one piece.
    #[inline]
    pub fn as_mut_slice(&mut self) -> Option<&mut [u8]> {
        match self.pieces.len() {
            0 => Some(&mut []),
            1 => Some(self.pieces[0].own()),
            _ => None,
        }
    }

    /// The bytes of a range, which must lie within the string, piece by piece.
    pub fn pieces(&self, range: Range<usize>) -> impl Iterator<Item = &[u8]> + Clone {
        debug_assert!(range.start <= range.end && range.end <= self.len);
        let first = range.start / PIECE;
        let behind = if range.is_empty() { first } else { range.end.div_ceil(PIECE) };
        (first..behind).map(move |index| {
            let start = index * PIECE;
            let end = (range.end - start).min(PIECE);
            &self.pieces[index].bytes()[range.start.saturating_sub(start)..end]
        })
    }

    /// Number of allocations to free.
    pub fn count(&self) -> usize {
        self.pieces.len()
    }

    /// The last piece, for changing.
    fn last_mut(&mut self) -> Option<&mut Vec<u8>> {
        let last = self.pieces.len().checked_sub(1)?;
        Some(self.pieces[last].own())
    }

    /// The number of bytes that the last piece can still take.
    fn room(&self) -> usize {
        self.pieces.len() * PIECE - self.len
    }

    /// Appends bytes.
    pub fn append(&mut self, bytes: &[u8]) {
        let (first, rest) = bytes.split_at(bytes.len().min(self.room()));
        if !first.is_empty()
            && let Some(last) = self.last_mut()
        {
            reserve(last, first.len());
            last.extend_from_slice(first);
        }
        rest.chunks(PIECE).for_each(|piece| self.pieces.push(Piece::new(piece.to_vec())));
        self.len += bytes.len();
    }

    /// Appends at most [`PIECE`] bytes; copies nothing if they become a piece of their own.
    pub fn append_piece(&mut self, bytes: Vec<u8>) {
        if bytes.is_empty() || bytes.len() > PIECE || self.room() > 0 {
            return self.append(&bytes);
        }
        self.len += bytes.len();
        self.pieces.push(Piece::new(bytes));
    }

    /// Appends zeros up to this length, if the string is shorter.
    pub fn grow(&mut self, len: usize) {
        let mut more = len.saturating_sub(self.len);
        self.len += more;
        let room = self.pieces.len() * PIECE - (self.len - more);
        let first = more.min(room);
        if first > 0
            && let Some(last) = self.last_mut()
        {
            reserve(last, first);
            last.resize(last.len() + first, 0);
            more -= first;
        }
        while more > 0 {
            let piece = more.min(PIECE);
            self.pieces.push(Piece::new(vec![0; piece]));
            more -= piece;
        }
    }

    /// Writes bytes from an offset on. The string grows as needed, with zeros up to the offset.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        self.grow(at);
        let (mut over, more) = bytes.split_at(bytes.len().min(self.len - at));
        let mut at = at;
        while !over.is_empty() {
            let piece = self.pieces[at / PIECE].own();
            let from = at % PIECE;
            let (now, rest) = over.split_at(over.len().min(PIECE - from));
            piece[from..from + now.len()].copy_from_slice(now);
            at += now.len();
            over = rest;
        }
        self.append(more);
    }

    /// Calls `edit` with all bytes, whose number may change. Copies them twice if they are in
    /// several pieces.
    pub fn edit<R>(&mut self, edit: impl FnOnce(&mut Vec<u8>) -> R) -> R {
        if self.pieces.len() != 1 {
            let mut bytes = self.to_vec();
            let result = edit(&mut bytes);
            *self = SharedBytes::from(bytes);
            return result;
        }
        let bytes = self.pieces[0].own();
        let result = edit(bytes);
        match bytes.len() {
            len @ 1..=PIECE => {
                bytes.shrink_to(PIECE);
                self.len = len;
            }
            _ => {
                let bytes = std::mem::take(bytes);
                *self = SharedBytes::from(bytes);
            }
        }
        result
    }

    /// A copy in one piece.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len);
        self.pieces(0..self.len).for_each(|piece| bytes.extend_from_slice(piece));
        bytes
    }

    /// Bytes reserved for more.
    pub fn spare(&self) -> usize {
        let last = self.pieces.len().checked_sub(1).and_then(|last| self.pieces[last].0.as_ref());
        last.map_or(0, |last| last.capacity() - last.len())
    }

    /// Bytes of heap memory, including pieces that clones share.
    pub fn heap_bytes(&self) -> usize {
        let head = size_of::<Vec<u8>>() + size_of::<usize>();
        self.pieces.heap_bytes() + self.pieces.len() * head + self.len + self.spare()
    }

    /// Whether no other string shares any of its pieces.
    #[cfg(test)]
    pub fn is_unshared(&self) -> bool {
        self.pieces.iter().all(|piece| piece.0.as_ref().is_none_or(Arc::is_unique))
    }
}

/// Makes room for more bytes in a piece. Doubles its capacity, but not beyond a full piece.
#[inline]
fn reserve(piece: &mut Vec<u8>, more: usize) {
    let len = piece.len() + more;
    if len > piece.capacity() {
        let capacity = len.max(2 * piece.capacity()).min(PIECE);
        piece.reserve_exact(capacity - piece.len());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::collections::shared::copied_bytes;

    #[derive(Clone, Debug)]
    enum Step {
        Append(usize),
        Write(usize, usize),
        Grow(usize),
        Edit(usize),
        Share,
        Drop,
    }

    fn step() -> impl Strategy<Value = Step> {
        let len = || prop_oneof![0..100usize, PIECE - 2..PIECE + 3, 0..3 * PIECE];
        prop_oneof![
            3 => len().prop_map(Step::Append),
            3 => (0..8 * PIECE, len()).prop_map(|(at, len)| Step::Write(at, len)),
            1 => (0..8 * PIECE).prop_map(Step::Grow),
            1 => prop_oneof![0..10usize, len()].prop_map(Step::Edit),
            2 => Just(Step::Share),
            1 => Just(Step::Drop),
        ]
    }

    fn check(shared: &SharedBytes, model: &[u8]) {
        assert_eq!(shared.len(), model.len());
        assert_eq!(shared.is_empty(), model.is_empty());
        assert_eq!(shared.count(), model.len().div_ceil(PIECE));
        assert!(shared.to_vec() == model);
        assert!(shared.as_slice().is_none_or(|bytes| bytes == model));
        assert_eq!(shared.as_slice().is_some(), model.len() <= PIECE);
        let lens: Vec<usize> = shared.pieces(0..shared.len()).map(<[u8]>::len).collect();
        let full = lens.iter().rev().skip(1).all(|len| *len == PIECE);
        assert!(full && lens.iter().all(|len| (1..=PIECE).contains(len)), "{lens:?}");
        assert!(shared.spare() < PIECE && shared.heap_bytes() >= model.len());
        for range in [0..0, model.len()..model.len(), model.len() / 3..model.len() / 2 + 1] {
            let range = range.start..range.end.min(model.len()).max(range.start);
            let cut = shared.pieces(range.clone()).collect::<Vec<_>>().concat();
            assert!(cut == model[range]);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 96 }))]
        #[test]
        fn clones_stay_what_they_were_and_a_string_is_a_string(steps in prop::collection::vec(step(), 0..20)) {
            let (mut shared, mut model) = (SharedBytes::default(), Vec::new());
            let mut clones: Vec<(SharedBytes, Vec<u8>)> = Vec::new();
            for (number, step) in steps.into_iter().enumerate() {
                let text = |len| vec![number as u8 + 1; len];
                match step {
                    Step::Append(len) => {
                        shared.append(&text(len));
                        model.extend(text(len));
                    }
                    Step::Write(at, len) => {
                        shared.write(at, &text(len));
                        model.resize(model.len().max(at + len), 0);
                        model[at..at + len].copy_from_slice(&text(len));
                    }
                    Step::Grow(len) => {
                        shared.grow(len);
                        model.resize(model.len().max(len), 0);
                    }
                    Step::Edit(len) => {
                        shared.edit(|bytes| bytes.resize(len, number as u8));
                        model.resize(len, number as u8);
                    }
                    Step::Share => clones.push((shared.clone(), model.clone())),
                    Step::Drop => clones.truncate(clones.len() / 2),
                }
                check(&shared, &model);
            }
            check(&SharedBytes::from(model.clone()), &model);
            for (shared, model) in clones {
                check(&shared, &model);
            }
        }
    }

    #[test]
    fn a_change_copies_the_pieces_that_it_touches_once() {
        let mut shared = SharedBytes::from(vec![7; 100 * PIECE + 10]);
        let clone = shared.clone();
        let before = copied_bytes();
        shared.append(b"x");
        shared.write(50 * PIECE - 1, b"yy");
        shared.write(50 * PIECE - 1, b"zz");
        assert!(copied_bytes() - before < 3 * PIECE, "{}", copied_bytes() - before);
        let same = shared.pieces(0..clone.len()).zip(clone.pieces(0..clone.len()));
        let different = same.filter(|(a, b)| !std::ptr::eq(a.as_ptr(), b.as_ptr())).count();
        assert_eq!(different, 3);
        assert!(!shared.is_unshared());
        drop(clone);
        assert!(shared.is_unshared());
    }

    #[test]
    fn growing_by_few_bytes_moves_little_and_reserves_less_than_a_piece() {
        let mut shared = SharedBytes::default();
        for _ in 0..3 * PIECE / 16 {
            shared.append(&[1; 16]);
            assert!(shared.spare() <= shared.len().max(16));
        }
        assert_eq!((shared.len(), shared.count(), shared.spare()), (3 * PIECE, 3, 0));
    }
}
