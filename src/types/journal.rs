//! What large collections were before they are changed, element by element: so that a change costs what it changes, not what
//! the collection holds.
//!
//! Elements are changed through an [`Edit`] alone, which is a collection and, if changes are to be undone, a journal.
//! [`crate::keyspace`] makes it: a journal that has begun ([`Journal::begin`]) notes what undoes each step: a field's old value,
//! the element that was popped, the index where one was inserted. [`Journal::play_back`] does that from the last note to the
//! first. Each note so finds the value as it was right after its step: an index means what it meant then.
//!
//! ```text
//!   items  | Absent 5 | Popped(Back) 3 | Absent 2 |      a note and the length of its text
//!   bytes  | f i e l d . e n d . k k |                   the texts, one behind the other
//! ```
//!
//! A value that takes another form as a whole (integers that become a table) moves into the journal as it is. What cannot be
//! noted is the order of a small hash's fields; such values ([`Value::can_be_noted`] is false) are to be copied.

use std::ops::Deref;

use super::Value;
use super::list::{End, Limits as ListLimits};
use crate::clock::Deadline;
use crate::collections::packed::Element;

/// Notes and bytes for which memory is kept.
const ITEMS_KEPT: usize = 256;
const BYTES_KEPT: usize = 16 * 1024;

/// How an element is put back. What "the text" is comes with the note.
#[derive(Debug)]
pub(super) enum Note {
    /// The field or member, which is the text, was not there.
    Absent,
    /// The text was a member of the set.
    Present,
    /// The text had this score.
    Score(f64),
    /// The text is a field and its value, which has so many bytes.
    Field {
        value: u32,
    },
    /// The same with a deadline.
    VolatileField {
        value: u32,
        deadline: Deadline,
    },
    /// The encoding was the one of small collections.
    WasSmall(bool),
    /// An element was added at this end of the list.
    Pushed(End),
    /// The text was taken from this end.
    Popped(End),
    /// The element at this index was the text.
    Set(usize),
    /// An element was inserted at this index.
    Inserted(usize),
    /// The text was removed at this index.
    Removed(usize),
    /// The value was this one.
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
    /// Of the lists that were changed last.
    list_limits: Option<ListLimits>,
    /// Bytes that may yet be noted.
    room: usize,
    /// There was not enough room; what followed was not noted.
    is_full: bool,
}

/// A note's text where it has none.
pub(super) const NO_TEXT: [&[u8]; 2] = [&[], &[]];

/// A collection that may be changed, and where to note how that is undone. Only the types see the collection to be changed:
/// nobody else can change elements past the journal.
#[derive(Debug)]
pub struct Edit<'a, C> {
    pub(super) value: &'a mut C,
    pub(super) journal: Option<&'a mut Journal>,
}

impl<'a, C> Edit<'a, C> {
    /// To change a collection; what undoes it goes into the journal, if there is one, between its [`Journal::begin`] and
    /// [`Journal::end`].
    #[inline]
    pub fn new(value: &'a mut C, journal: Option<&'a mut Journal>) -> Self {
        Edit { value, journal }
    }

    /// To fill a collection that is not in the keyspace yet.
    #[inline]
    pub fn unnoted(value: &'a mut C) -> Self {
        Edit { value, journal: None }
    }

    /// [`Journal::note`], if there is one.
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
    /// Begins to note, at most `room` bytes.
    pub fn begin(&mut self, room: usize) {
        self.room = room;
        self.is_full = false;
    }

    /// The bytes of room that are left; None if there was too little of it: then the last edit cannot be put back.
    pub fn end(&self) -> Option<usize> {
        (!self.is_full).then_some(self.room)
    }

    /// Notes what undoes a step just done, or about to be done, with a text in two parts.
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

    /// Takes note of how long a list's runs may be.
    #[cold]
    pub(super) fn note_list_limits(&mut self, limits: &ListLimits) {
        self.list_limits = Some(*limits);
    }

    /// How many notes there are.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Takes back the notes from number `first` on, the last one first, and has `value` be what it was before them. Without a
    /// value they are dropped.
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

    /// Drops all notes. Values that are in them are given to `discard`.
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
    /// Whether changes of its elements can be noted, and it takes more than `bytes` bytes. Cost: O(1).
    pub fn can_be_noted(&self, bytes: usize) -> bool {
        match self {
            Value::String(_) => false,
            Value::List(list) => list.can_be_noted(bytes),
            Value::Hash(hash) => hash.can_be_noted() && hash.heap_bytes() > bytes,
            Value::Set(set) => set.heap_bytes() > bytes,
            Value::SortedSet(set) => set.heap_bytes() > bytes,
            Value::Stream(stream) => stream.entries.are_more_than(bytes),
        }
    }

    fn put_back(&mut self, note: Note, text: &[u8], limits: &ListLimits) {
        match (self, note) {
            (value, Note::Form(old)) => *value = *old,
            (Value::List(list), note) => list.put_back(note, text, limits),
            (Value::Hash(hash), note) => hash.put_back(note, text),
            (Value::Set(set), note) => set.put_back(note, text),
            (Value::SortedSet(set), note) => set.put_back(note, text),
            (Value::Stream(stream), Note::Stream(note)) => stream.entries.put_back(*note),
            (Value::String(_) | Value::Stream(_), _) => {
                unreachable!("a note is played back on the value it is about")
            }
        }
    }
}

#[cfg(test)]
mod tests;
