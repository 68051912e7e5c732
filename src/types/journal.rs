//! Undo records for changes of large collections, element by element: so that the cost of an
//! undoable change follows the change, not the collection's size.
//!
//! Elements are only changed through an [`Edit`]: a collection and, if changes are to be undone, a
//! journal. Once [`crate::keyspace`] has started the journal ([`Journal::begin`]), it notes the
//! inverse of each step: a field's old value, the popped element, the index of an insertion.
//! [`Journal::play_back`] applies these from the last to the first. So each inverse finds the value
//! as it was right after its step, and an index has the same meaning as then.
//!
//! ```text
//!   items  | Absent 5 | Popped(Back) 3 | Absent 2 |      a note and the length of its text
//!   bytes  | f i e l d . e n d . k k |                   the texts, one after the other
//! ```
//!
//! A value whose form changes as a whole (integers that become a table) moves into the journal. The
//! order of a small hash's fields cannot be recorded; such values (for which
//! [`Value::can_be_noted`] is false) must be copied.

use std::ops::Deref;

use super::Value;
use super::list::{End, Limits as ListLimits};
use crate::clock::Deadline;
use crate::collections::packed::Element;

/// Capacity kept for further use: notes and bytes.
const ITEMS_KEPT: usize = 256;
const BYTES_KEPT: usize = 16 * 1024;

/// The inverse of a change. "The text" is stored with it.
#[derive(Debug)]
pub(super) enum Note {
    /// The field or member, which is the text, was absent.
    Absent,
    /// The text was a member of the set.
    Present,
    /// The text had this score.
    Score(f64),
    /// The text is a field and its value, which has this many bytes.
    Field {
        value: u32,
    },
    /// The same with a deadline.
    VolatileField {
        value: u32,
        deadline: Deadline,
    },
    /// Whether the encoding was the one of small collections.
    WasSmall(bool),
    /// An element was added at this end of the list.
    Pushed(End),
    /// The text was popped from this end.
    Popped(End),
    /// The element at this index was the text.
    Set(usize),
    /// An element was inserted at this index.
    Inserted(usize),
    /// The text was removed at this index.
    Removed(usize),
    /// The whole value was this one.
    Form(Box<Value>),
    Stream(Box<super::stream::Note>),
}

#[derive(Debug)]
struct Item {
    note: Note,
    text_len: u32,
}

/// Notes in the order in which things were changed.
#[derive(Debug, Default)]
pub struct Journal {
    items: Vec<Item>,
    bytes: Vec<u8>,
    /// Limits of the list that was changed last.
    list_limits: Option<ListLimits>,
    /// Bytes that may still be recorded.
    room: usize,
    /// There was not enough room; later changes were not recorded.
    is_full: bool,
}

/// The text of a note without one.
pub(super) const NO_TEXT: [&[u8]; 2] = [&[], &[]];

/// A collection to be changed, and its journal, if any. Only `types` gets mutable access to the
/// collection, so that no change can bypass the journal.
#[derive(Debug)]
pub struct Edit<'a, C> {
    pub(super) value: &'a mut C,
    pub(super) journal: Option<&'a mut Journal>,
}

impl<'a, C> Edit<'a, C> {
    /// For changing a collection; inverses go to the journal, if any, between [`Journal::begin`]
    /// and [`Journal::end`].
    #[inline]
    pub fn new(value: &'a mut C, journal: Option<&'a mut Journal>) -> Self {
        Edit { value, journal }
    }

    /// For filling a collection that is not in the keyspace yet.
    #[inline]
    pub fn unnoted(value: &'a mut C) -> Self {
        Edit { value, journal: None }
    }

    /// [`Journal::note`], if there is a journal.
    #[inline(always)]
    pub(super) fn note(&mut self, note: Note, text: [&[u8]; 2]) {
        if let Some(journal) = &mut self.journal {
            journal.note(note, text);
        }
    }
}

impl<C> Deref for Edit<'_, C> {
    type Target = C;

    #[inline(always)]
    fn deref(&self) -> &C {
        self.value
    }
}

impl Journal {
    /// Starts recording, up to `room` bytes.
    pub fn begin(&mut self, room: usize) {
        self.room = room;
        self.is_full = false;
    }

    /// Bytes of room left; None if there was too little: then the last edit cannot be undone.
    pub fn end(&self) -> Option<usize> {
        (!self.is_full).then_some(self.room)
    }

    /// Records the inverse of a step before or after it, with a text in two parts.
    #[cold]
    pub(super) fn note(&mut self, note: Note, text: [&[u8]; 2]) {
        let len = text[0].len() + text[1].len();
        let boxed = match note {
            Note::Stream(_) => size_of::<super::stream::Note>(),
            _ => 0,
        };
        let cost = size_of::<Item>() + boxed + len;
        match (u32::try_from(len), self.room.checked_sub(cost)) {
            (Ok(text_len), Some(room)) if !self.is_full => {
                self.room = room;
                self.items.push(Item { note, text_len });
                self.bytes.extend_from_slice(text[0]);
                self.bytes.extend_from_slice(text[1]);
            }
            _ => self.is_full = true,
        }
    }

    /// The same with an element as the text.
    #[cold]
    pub(super) fn note_element(&mut self, note: Note, element: Element<'_>) {
        self.note(note, [element.text().as_ref(), &[]]);
    }

    /// Records the limits of a list's runs.
    #[cold]
    pub(super) fn note_list_limits(&mut self, limits: &ListLimits) {
        self.list_limits = Some(*limits);
    }

    /// Number of notes.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Applies and removes the notes from number `first` on, the last one first, to `value`.
    /// Without a value they are dropped.
    pub fn play_back(&mut self, first: usize, mut value: Option<&mut Value>) {
        let limits = self.list_limits.unwrap_or(ListLimits::from_setting(-2));
        for item in self.items.drain(first..).rev() {
            let at = self.bytes.len() - item.text_len as usize;
            if let Some(value) = &mut value {
                value.put_back(item.note, &self.bytes[at..], &limits);
            }
            self.bytes.truncate(at);
        }
    }

    /// Drops all notes; values in them are passed to `discard`.
    pub fn forget(&mut self, mut discard: impl FnMut(Box<Value>)) {
        for item in self.items.drain(..) {
            if let Note::Form(value) = item.note {
                discard(value);
            }
        }
        self.bytes.clear();
        self.items.shrink_to(ITEMS_KEPT);
        self.bytes.shrink_to(BYTES_KEPT);
    }
}

impl Value {
    /// Whether changes of the value's elements can be recorded, and the value takes more than
    /// `bytes` bytes. Cost: O(1).
    pub fn can_be_noted(&self, bytes: usize) -> bool {
        match self {
            Value::String(_) => false,
            Value::List(list) => list.can_be_noted(bytes),
            Value::Hash(hash) => hash.can_be_noted() && hash.heap_bytes() > bytes,
            Value::Set(set) => set.heap_bytes() > bytes,
            Value::SortedSet(set) => set.heap_bytes() > bytes,
            Value::Stream(stream) => stream.entries().are_more_than(bytes),
        }
    }

    fn put_back(&mut self, note: Note, text: &[u8], limits: &ListLimits) {
        match (self, note) {
            (value, Note::Form(old)) => *value = *old,
            (Value::List(list), note) => list.put_back(note, text, limits),
            (Value::Hash(hash), note) => hash.put_back(note, text),
            (Value::Set(set), note) => set.put_back(note, text),
            (Value::SortedSet(set), note) => set.put_back(note, text),
            (Value::Stream(stream), Note::Stream(note)) => stream.entries_mut().put_back(*note),
            (Value::String(_) | Value::Stream(_), _) => {
                unreachable!("a note is played back on the value it is about")
            }
        }
    }
}

#[cfg(test)]
mod tests;
