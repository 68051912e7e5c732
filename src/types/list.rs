//! The list type: one run of entries while it is short, a [`Quicklist`] afterwards.
//!
//! Inside an entry of the keyspace: the number of elements (2 bytes, little-endian; nothing at all
//! for an empty list), then the listpack entries (`collections/listpack.rs`).
//!
//! `OBJECT ENCODING` shows the form of a list, so the form changes when Redis's does:
//! [`List::make_room`] before elements are added, [`List::settle`] after some were removed.

use super::journal::{Edit, Journal, NO_TEXT, Note};
use super::{Collection, INLINE_MAX, Stored, Value, kind};
use crate::collections::listpack;
use crate::collections::packed::Element;
use crate::collections::quicklist::{Backwards, Forwards, Quicklist};
use crate::collections::run::{Run, RunView};
use crate::collections::table::ValueRef;

pub use crate::collections::quicklist::Limits;
pub use crate::collections::run::End;

/// Bytes of the count before inline entries.
const COUNT_BYTES: usize = 2;

/// A list.
#[derive(Clone, Debug)]
pub enum List {
    /// "listpack".
    Packed(Run),
    /// "quicklist".
    Long(Quicklist),
}

/// A list, for reading.
#[derive(Clone, Copy, Debug)]
pub enum ListView<'a> {
    Packed(RunView<'a>),
    Long(&'a Quicklist),
}

impl Default for List {
    fn default() -> Self {
        List::Packed(Run::default())
    }
}

impl List {
    /// The list of these runs, in the form that Redis gives a loaded list: a single run within the
    /// limits is a listpack.
    pub fn from_runs(runs: Quicklist, limits: &Limits) -> Self {
        let is_short = match runs.runs().next() {
            Some(run) => !limits.are_exceeded(run.entries.len(), run.count),
            None => true,
        };
        if runs.nodes() <= 1 && is_short { List::Packed(runs.into_run()) } else { List::Long(runs) }
    }

    #[inline]
    pub fn len(&self) -> usize {
        match self {
            List::Packed(run) => run.count(),
            List::Long(list) => list.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn as_view(&self) -> ListView<'_> {
        match self {
            List::Packed(run) => ListView::Packed(run.view()),
            List::Long(list) => ListView::Long(list),
        }
    }

    /// Whether adding these elements changes its form.
    #[inline]
    pub fn outgrows(&self, bytes: usize, count: usize, limits: &Limits) -> bool {
        match self {
            List::Packed(run) => limits.are_exceeded(run.len() + bytes, run.count() + count),
            List::Long(_) => false,
        }
    }

    /// Whether changes of elements can be recorded, and they take more than `bytes` bytes.
    pub(super) fn can_be_noted(&self, bytes: usize) -> bool {
        match self {
            // A copy is cheaper.
            List::Packed(_) => false,
            // Summing the bytes of many runs costs more than checking their number.
            List::Long(list) => list.nodes() > bytes / 64 || list.heap_bytes() > bytes,
        }
    }

    /// Undoes a recorded change.
    pub(super) fn put_back(&mut self, note: Note, text: &[u8], limits: &Limits) {
        match note {
            Note::WasSmall(was_small) => *self = self.in_form(was_small),
            Note::Pushed(end) => drop(Edit::unnoted(self).pop(end, |_| ())),
            Note::Popped(end) => Edit::unnoted(self).push(end, text, limits),
            Note::Set(index) => drop(Edit::unnoted(self).set(index, text, limits)),
            Note::Inserted(index) => match self {
                List::Packed(run) => run.remove_at(run.seek(index)),
                List::Long(list) => list.remove_at(index, limits),
            },
            Note::Removed(index) => match self {
                List::Packed(run) => run.insert(run.seek(index), Element::new(text)),
                List::Long(list) => list.insert_before(index, text, limits),
            },
            _ => unreachable!("no note of a list"),
        }
    }

    /// The same elements in another form.
    fn in_form(&mut self, is_packed: bool) -> List {
        match (std::mem::take(self), is_packed) {
            (List::Packed(run), false) => List::Long(Quicklist::from_run(run)),
            (List::Long(list), true) => List::Packed(list.into_run()),
            (list, _) => list,
        }
    }

    pub fn encoding(&self) -> &'static str {
        match self {
            List::Packed(_) => "listpack",
            List::Long(_) => "quicklist",
        }
    }

    pub fn heap_bytes(&self) -> usize {
        match self {
            List::Packed(run) => run.heap_bytes(),
            List::Long(list) => list.heap_bytes(),
        }
    }

    pub fn free_effort(&self) -> usize {
        match self {
            List::Packed(_) => 1,
            List::Long(list) => list.nodes(),
        }
    }
}

impl Edit<'_, List> {
    /// Chooses the form for `count` more elements of `bytes` bytes in total.
    #[inline]
    pub fn make_room(&mut self, bytes: usize, count: usize, limits: &Limits) {
        if self.outgrows(bytes, count, limits)
            && let List::Packed(run) = &mut *self.value
        {
            let run = std::mem::take(run);
            self.note(Note::WasSmall(true), NO_TEXT);
            *self.value = List::Long(Quicklist::from_run(run));
        }
    }

    /// Chooses the form after elements were removed.
    #[inline]
    pub fn settle(&mut self, limits: &Limits) {
        if let List::Long(list) = &mut *self.value
            && list.nodes() == 1
            && let Some(run) = list.take_short(limits)
        {
            self.note(Note::WasSmall(false), NO_TEXT);
            *self.value = List::Packed(run);
        }
    }

    /// Adds an element at an end. [`Self::make_room`] must have been called.
    #[inline]
    pub fn push(&mut self, end: End, text: &[u8], limits: &Limits) {
        if let Some(journal) = &mut self.journal {
            journal.note_list_limits(limits);
            journal.note(Note::Pushed(end), NO_TEXT);
        }
        match &mut *self.value {
            List::Packed(run) => run.push(end, Element::new(text), limits.entry_bytes()),
            List::Long(list) => list.push(end, text, limits),
        }
    }

    /// Removes the element at an end and passes it to `show`. None if the list is empty.
    #[inline]
    pub fn pop<R>(&mut self, end: End, show: impl FnOnce(Element<'_>) -> R) -> Option<R> {
        let journal = &mut self.journal;
        let show = |element: Element<'_>| {
            if let Some(journal) = journal {
                journal.note_element(Note::Popped(end), element);
            }
            show(element)
        };
        match &mut *self.value {
            List::Packed(run) => {
                let (element, len) = run.peek(end)?;
                let result = show(element);
                run.drop_one(end, len);
                run.shrink();
                Some(result)
            }
            List::Long(list) => list.pop(end, show),
        }
    }

    /// Removes `count` elements at an end, or all if there are fewer.
    pub fn drop_many(&mut self, end: End, count: usize) {
        if let Some(journal) = &mut self.journal {
            let view = self.value.as_view();
            let mut note = |element| journal.note_element(Note::Popped(end), element);
            match end {
                End::Front => view.forwards(0).take(count).for_each(&mut note),
                End::Back => view.backwards(view.len()).take(count).for_each(&mut note),
            }
        }
        match &mut *self.value {
            List::Packed(run) => run.drop_many(end, count),
            List::Long(list) => list.drop_many(end, count),
        }
    }

    /// Sets element `index`. False if there is none.
    pub fn set(&mut self, index: usize, text: &[u8], limits: &Limits) -> bool {
        let journal = &mut self.journal;
        let mut note = |old: Element<'_>| {
            if let Some(journal) = journal {
                journal.note_list_limits(limits);
                journal.note_element(Note::Set(index), old);
            }
        };
        match &mut *self.value {
            List::Packed(run) if index < run.count() => {
                let at = run.seek(index);
                if let Some((old, _)) = listpack::first(&run.entries()[at..]) {
                    note(old);
                }
                run.replace(at, Element::new(text))
            }
            List::Packed(_) => false,
            List::Long(list) => list.set(index, text, limits, note),
        }
    }

    /// Inserts an element before or after the first one equal to `pivot`. False if there is none.
    pub fn insert(&mut self, pivot: &[u8], behind: bool, text: &[u8], limits: &Limits) -> bool {
        let pivot = Element::new(pivot);
        let index = match &mut *self.value {
            List::Packed(run) => {
                let found = Forwards::of_run(run.view(), 0).position(|element| element == pivot);
                let Some(found) = found else { return false };
                let index = found + usize::from(behind);
                run.insert(run.seek(index), Element::new(text));
                index
            }
            List::Long(list) => match list.insert(pivot, behind, text, limits) {
                Some(index) => index,
                None => return false,
            },
        };
        if let Some(journal) = &mut self.journal {
            journal.note_list_limits(limits);
            journal.note(Note::Inserted(index), NO_TEXT);
        }
        true
    }

    /// Removes at most `most` elements equal to `text`, from an end. Returns their number.
    pub fn remove(&mut self, end: End, text: &[u8], most: usize, limits: &Limits) -> usize {
        let element = Element::new(text);
        if let Some(journal) = &mut self.journal {
            journal.note_list_limits(limits);
            note_removal(journal, self.value.as_view(), end, element, most);
        }
        match &mut *self.value {
            List::Packed(run) => run.remove(end, element, most),
            List::Long(list) => list.remove(end, element, most, limits),
        }
    }
}

/// Records the elements that [`Edit::remove`] is about to remove. Cost: their distance from that
/// end.
#[cold]
fn note_removal(
    journal: &mut Journal,
    view: ListView<'_>,
    end: End,
    element: Element<'_>,
    most: usize,
) {
    let mut note = |index| journal.note_element(Note::Removed(index), element);
    let len = view.len();
    let is_one = |(step, other): (usize, Element<'_>)| (other == element).then_some(step);
    match end {
        // Undone from the last note on, so the first element is recorded last.
        End::Front => {
            let found = view.forwards(0).enumerate().filter_map(is_one).take(most);
            found.collect::<Vec<_>>().into_iter().rev().for_each(&mut note);
        }
        End::Back => {
            let found = view.backwards(len).enumerate().filter_map(is_one).take(most);
            found.map(|step| len - 1 - step).for_each(&mut note);
        }
    }
}

impl<'a> ListView<'a> {
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            ListView::Packed(run) => run.count,
            ListView::Long(list) => list.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements from `index` on.
    #[inline]
    pub fn forwards(&self, index: usize) -> Forwards<'a> {
        match *self {
            ListView::Packed(run) => Forwards::of_run(run, index),
            ListView::Long(list) => list.forwards(index),
        }
    }

    /// The elements before `index` and those before them, in that order.
    #[inline]
    pub fn backwards(&self, index: usize) -> Backwards<'a> {
        match *self {
            ListView::Packed(run) => Backwards::of_run(run, index),
            ListView::Long(list) => list.backwards(index),
        }
    }

    pub fn get(&self, index: usize) -> Option<Element<'a>> {
        self.forwards(index).next()
    }

    /// The runs of entries.
    pub fn runs(&self) -> impl Iterator<Item = RunView<'a>> + use<'a> {
        let (single, many) = match *self {
            ListView::Packed(run) => (Some(run), None),
            ListView::Long(list) => (None, Some(list.runs())),
        };
        single.into_iter().chain(many.into_iter().flatten())
    }
}

impl Collection for List {
    type View<'a> = ListView<'a>;

    #[inline]
    fn view(value: ValueRef<'_, Value>) -> Option<Self::View<'_>> {
        match value {
            ValueRef::Bytes { bytes, kind: kind::LIST } => {
                Some(ListView::Packed(match bytes.split_first_chunk::<COUNT_BYTES>() {
                    Some((count, entries)) => {
                        RunView { entries, count: u16::from_le_bytes(*count).into() }
                    }
                    None => RunView::default(),
                }))
            }
            ValueRef::Object(Value::List(list)) => Some(list.as_view()),
            _ => None,
        }
    }

    #[inline]
    fn boxed(value: &mut Value) -> Option<&mut Self> {
        match value {
            Value::List(value) => Some(value),
            _ => None,
        }
    }

    fn unpack(_kind: u8, bytes: Vec<u8>) -> Self {
        let (start, count) = match bytes.first_chunk::<COUNT_BYTES>() {
            Some(count) => (COUNT_BYTES, u16::from_le_bytes(*count).into()),
            None => (0, 0),
        };
        List::Packed(Run::from_entries(bytes, start, count))
    }

    fn store(self) -> Stored {
        match self {
            List::Packed(run) if run.len() <= INLINE_MAX - COUNT_BYTES => {
                let count = run.count() as u16;
                let (mut bytes, start) = run.into_storage(COUNT_BYTES);
                if count == 0 {
                    bytes.clear();
                } else {
                    bytes.drain(..start - COUNT_BYTES);
                    bytes[..COUNT_BYTES].copy_from_slice(&count.to_le_bytes());
                }
                Stored::Inline { kind: kind::LIST, bytes }
            }
            large => Stored::Boxed(Value::List(large)),
        }
    }

    fn is_empty(&self) -> bool {
        List::is_empty(self)
    }
}

#[cfg(test)]
mod tests;
