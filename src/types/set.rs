//! The set type: only integers, a few short members, or any members.
//!
//! ```text
//!   Ints     sorted integers (`collections/intset.rs`)              reported as intset
//!   Packed   elements one after the other, up to INLINE_MAX bytes  reported as listpack
//!   Table    a dense hash table (`collections/packed_table.rs`)     reported as listpack or hashtable
//! ```
//!
//! The encodings reported are Redis 7.2's, with the limits in [`Limits`]. A table is used for much
//! smaller sets than Redis's largest listpack, where a look-up would scan 8 KiB; it remembers to
//! report listpack. No form changes back when members are removed, except for the remainder of
//! [`Set::pop_many`].
//!
//! A member is bytes. [`Element`] represents the canonical text of an integer as an integer.

mod packed;
#[cfg(test)]
mod tests;

use std::collections::HashSet;

use super::journal::{Edit, Journal, NO_TEXT, Note};
use super::{Collection, INLINE_MAX, Stored, Value, kind};
use crate::collections::hash::KeyHasher;
use crate::collections::intset::{self, Intset};
use crate::collections::packed::{Element, Elements};
use crate::collections::packed_table::{Draws, Form, PackedTable, Take};
use crate::collections::table::ValueRef;
use crate::resp::number::{format_i64, parse_i64};
use packed::Search;

/// A set of integers never has more members than this, as in Redis.
const INTSET_ENTRIES_MAX: usize = 1 << 30;

/// If fewer members than this remain for each popped one, popping is one pass that rebuilds the
/// remainder. Redis's number, which is observable: the remainder of a hashtable may be a listpack.
const POP_WALK_RATIO: usize = 5;

/// A sample of more than one in this number of members is drawn in one pass over all.
const SAMPLE_WALK_RATIO: usize = 3;

/// The size limits of each encoding, and the hasher of a table.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Source: `set-max-intset-entries`.
    pub intset_entries: usize,
    /// Source: `set-max-listpack-entries`.
    pub listpack_entries: usize,
    /// Unit: bytes. Source: `set-max-listpack-value`.
    pub listpack_value: usize,
    pub hasher: KeyHasher,
}

/// A set.
#[derive(Clone, Debug)]
pub enum Set {
    Ints(Vec<u8>),
    /// At most [`INLINE_MAX`] bytes.
    Packed(Vec<u8>),
    Table(Members),
}

/// The members of a set that is neither packed nor only integers.
#[derive(Clone, Debug)]
pub struct Members {
    table: PackedTable,
    /// Whether Redis would still use a listpack.
    is_listpack: bool,
}

/// A set, for reading.
#[derive(Clone, Copy, Debug)]
pub enum SetView<'a> {
    Ints(Intset<'a>),
    Packed(&'a [u8]),
    Table(&'a Members),
}

impl Set {
    /// An empty set for `count` members, `first` among them.
    pub fn with_hint(first: &[u8], count: usize, limits: &Limits) -> Set {
        if count <= limits.intset_entries && parse_i64(first).is_some() {
            Set::Ints(Vec::new())
        } else if count <= limits.listpack_entries {
            Set::Packed(Vec::new())
        } else {
            Set::table(limits, false)
        }
    }

    /// A set of `count` saved members. `walk` must pass the same members each time it is called;
    /// its argument returns false for duplicates. Errors: those of `walk`.
    pub fn saved<E>(
        count: usize,
        limits: &Limits,
        mut walk: impl FnMut(&mut Take<'_>) -> Result<(), E>,
    ) -> Result<Set, E> {
        if count > limits.listpack_entries.max(limits.intset_entries) {
            let table = PackedTable::build(limits.hasher, Form::Members, count, walk)?;
            return Ok(Set::Table(Members { table, is_listpack: false }));
        }
        let mut set = None;
        walk(&mut |entry| {
            let member = entry.field;
            let set = set.get_or_insert_with(|| Set::with_hint(member, count, limits));
            Edit::unnoted(set).add(member, limits)
        })?;
        Ok(set.unwrap_or_else(|| Set::Ints(Vec::new())))
    }

    fn table(limits: &Limits, is_listpack: bool) -> Set {
        let mut table = PackedTable::new(limits.hasher, Form::Members);
        // The insertion order need not be kept.
        table.spread();
        Set::Table(Members { table, is_listpack })
    }

    /// The set, for reading.
    pub fn as_view(&self) -> SetView<'_> {
        match self {
            Set::Ints(bytes) => SetView::Ints(Intset::new(bytes)),
            Set::Packed(bytes) => SetView::Packed(bytes),
            Set::Table(members) => SetView::Table(members),
        }
    }

    /// Undoes a recorded change.
    pub(super) fn put_back(&mut self, note: Note, member: &[u8]) {
        match (note, self) {
            (Note::Absent, set) => drop(Edit::unnoted(set).remove(member)),
            (Note::Present, Set::Ints(bytes)) => {
                let value = parse_i64(member).expect("it was one of integers");
                intset::insert(bytes, value);
            }
            (Note::Present, Set::Packed(bytes)) => Element::new(member).write(bytes),
            (Note::Present, Set::Table(members)) => drop(members.table.insert(member)),
            (Note::WasSmall(was_small), Set::Table(members)) => members.is_listpack = was_small,
            _ => unreachable!("no note of such a set"),
        }
    }

    /// The table, if the set is neither packed nor only integers.
    #[inline]
    pub fn as_table(&self) -> Option<&PackedTable> {
        match self {
            Set::Ints(_) | Set::Packed(_) => None,
            Set::Table(members) => Some(&members.table),
        }
    }

    pub fn encoding(&self) -> &'static str {
        match self {
            Set::Ints(_) => "intset",
            Set::Packed(_) | Set::Table(Members { is_listpack: true, .. }) => "listpack",
            Set::Table(_) => "hashtable",
        }
    }

    pub fn heap_bytes(&self) -> usize {
        match self {
            Set::Ints(bytes) | Set::Packed(bytes) => bytes.capacity(),
            Set::Table(members) => members.table.heap_bytes(),
        }
    }

    pub fn free_effort(&self) -> usize {
        match self {
            Set::Ints(_) | Set::Packed(_) => 1,
            Set::Table(members) => members.table.free_effort(),
        }
    }
}

impl Edit<'_, Set> {
    /// Before `count` members are added: converts to a hashtable if that exceeds the form's limit.
    pub fn expect_more(&mut self, count: usize, limits: &Limits) {
        let limit = match &mut *self.value {
            Set::Ints(_) => limits.intset_entries,
            Set::Table(Members { is_listpack: false, .. }) => return,
            Set::Packed(_) | Set::Table(_) => limits.listpack_entries,
        };
        if count > limit {
            self.become_table(false, limits);
        }
    }

    /// Adds a member; false if it exists.
    #[inline]
    pub fn add(&mut self, member: &[u8], limits: &Limits) -> bool {
        match &mut *self.value {
            Set::Ints(_) | Set::Packed(_) => self.add_small(Element::new(member), member, limits),
            Set::Table(members) => members.insert(member, limits, &mut self.journal),
        }
    }

    /// The same for an element of another set.
    pub fn add_element(&mut self, element: Element<'_>, limits: &Limits) -> bool {
        match element {
            Element::Bytes(member) => self.add(member, limits),
            Element::Integer(value) => match &mut *self.value {
                Set::Ints(_) => self.add_integer(value, limits),
                Set::Packed(_) => self.add_small(element, &format_i64(value), limits),
                Set::Table(members) => {
                    members.insert(&format_i64(value), limits, &mut self.journal)
                }
            },
        }
    }

    fn add_integer(&mut self, value: i64, limits: &Limits) -> bool {
        let Set::Ints(bytes) = &mut *self.value else {
            unreachable!("the caller has seen integers")
        };
        if !intset::insert(bytes, value) {
            return false;
        }
        let len = Intset::new(bytes).len();
        self.note_element(Note::Absent, Element::Integer(value));
        if len > limits.intset_entries.min(INTSET_ENTRIES_MAX) {
            self.become_table(false, limits);
        }
        true
    }

    /// Adds a member to a set that is no table: `element` represents the same bytes.
    fn add_small(&mut self, element: Element<'_>, member: &[u8], limits: &Limits) -> bool {
        let is_short = member.len() <= limits.listpack_value;
        match (&mut *self.value, element) {
            (Set::Ints(_), Element::Integer(value)) => return self.add_integer(value, limits),
            (Set::Ints(bytes), Element::Bytes(_)) => {
                let set = Intset::new(bytes);
                let longest = [0, set.len().saturating_sub(1)]
                    .iter()
                    .filter(|&&rank| rank < set.len())
                    .map(|&rank| Element::Integer(set.get(rank)).text_len())
                    .max();
                let fits = set.len() < limits.listpack_entries
                    && is_short
                    && longest.is_none_or(|longest| longest <= limits.listpack_value);
                if fits {
                    self.become_packed(element.encoded_len(), limits);
                } else {
                    self.become_table(false, limits);
                }
            }
            (Set::Packed(bytes), _) => {
                let Search::Absent { members } = packed::search(bytes, element) else {
                    return false;
                };
                if members >= limits.listpack_entries || !is_short {
                    self.become_table(false, limits);
                } else if bytes.len() + element.encoded_len() > INLINE_MAX {
                    self.become_table(true, limits);
                }
            }
            (Set::Table(_), _) => {}
        }
        match &mut *self.value {
            Set::Packed(bytes) => {
                element.write(bytes);
                self.note_element(Note::Absent, element);
            }
            Set::Table(members) => return members.insert(member, limits, &mut self.journal),
            Set::Ints(_) => unreachable!("integers have just been converted"),
        }
        true
    }

    /// Converts integers to packed or, if that would be too long with `room` bytes more, to a table
    /// that reports listpack.
    fn become_packed(&mut self, room: usize, limits: &Limits) {
        let mut bytes = Vec::new();
        self.as_view().for_each(|element| element.write(&mut bytes));
        if bytes.len() + room > INLINE_MAX {
            self.become_table(true, limits);
        } else {
            self.change_form(Set::Packed(bytes));
        }
    }

    fn become_table(&mut self, is_listpack: bool, limits: &Limits) {
        if let Set::Table(members) = &mut *self.value {
            members.set_listpack(is_listpack, &mut self.journal);
            return;
        }
        let mut table = Set::table(limits, is_listpack);
        if let Set::Table(members) = &mut table {
            self.as_view().for_each(|element| {
                members.table.insert(element.text().as_ref());
            });
        }
        self.change_form(table);
    }

    /// Replaces the form, with the same members.
    fn change_form(&mut self, new: Set) {
        let old = std::mem::replace(self.value, new);
        if let Some(journal) = &mut self.journal {
            journal.note(Note::Form(Box::new(Value::Set(old))), NO_TEXT);
        }
    }

    /// Converts a computed set back to integers if all members are, and they are not too many.
    pub fn prefer_integers(&mut self, limits: &Limits) {
        let view = self.as_view();
        if matches!(self.value, Set::Ints(_))
            || view.len() > limits.intset_entries.min(INTSET_ENTRIES_MAX)
        {
            return;
        }
        let mut integers = Vec::with_capacity(view.len());
        view.visit(|element| {
            let integer = match element {
                Element::Integer(value) => Some(value),
                Element::Bytes(member) => parse_i64(member),
            };
            integers.extend(integer);
            integer.is_some()
        });
        if integers.len() == view.len() {
            integers.sort_unstable();
            let mut bytes = Vec::new();
            for value in integers {
                intset::insert(&mut bytes, value);
            }
            self.change_form(Set::Ints(bytes));
        }
    }

    /// Removes a member; false if it does not exist.
    pub fn remove(&mut self, member: &[u8]) -> bool {
        let was_there = match &mut *self.value {
            Set::Ints(bytes) => parse_i64(member).is_some_and(|value| intset::remove(bytes, value)),
            Set::Packed(bytes) => remove_packed(bytes, Element::new(member)),
            Set::Table(members) => members.table.remove(member).is_some(),
        };
        if was_there {
            self.note(Note::Present, [member, &[]]);
        }
        was_there
    }

    /// The same for an element of another set.
    pub fn remove_element(&mut self, element: Element<'_>) -> bool {
        let was_there = match (&mut *self.value, element) {
            (Set::Ints(bytes), Element::Integer(value)) => intset::remove(bytes, value),
            (Set::Packed(bytes), Element::Integer(_)) => remove_packed(bytes, element),
            (_, element) => return self.remove(element.text().as_ref()),
        };
        if was_there {
            self.note_element(Note::Present, element);
        }
        was_there
    }

    /// Removes a random member, uniformly, after passing it to `visit`. There must be one.
    pub fn pop(&mut self, draws: &mut Draws, visit: impl FnOnce(Element<'_>)) {
        let journal = &mut self.journal;
        let visit = |element: Element<'_>| {
            if let Some(journal) = journal {
                journal.note_element(Note::Present, element);
            }
            visit(element);
        };
        match &mut *self.value {
            Set::Ints(bytes) => {
                let set = Intset::new(bytes);
                let rank = fastrand::usize(..set.len());
                visit(Element::Integer(set.get(rank)));
                intset::remove_rank(bytes, rank);
            }
            Set::Packed(bytes) => {
                let rank = fastrand::usize(..packed::count(bytes));
                let (element, place) = packed::nth(bytes, rank);
                visit(element);
                bytes.drain(place);
            }
            Set::Table(members) => {
                members.table.pop_random(draws, |entry| visit(Element::Bytes(entry.field)));
            }
        }
    }

    /// Removes `count` random members, fewer than there are. If nearly all members of a table are
    /// removed, the remainder is rebuilt in the form it fits in.
    pub fn pop_many(&mut self, count: usize, limits: &Limits, mut visit: impl FnMut(Element<'_>)) {
        let len = self.as_view().len();
        let mut draw = Draw { left: len, wanted: count };
        let journal = &mut self.journal;
        let mut take = |element: Element<'_>| {
            if let Some(journal) = journal {
                journal.note_element(Note::Present, element);
            }
            visit(element);
        };
        match &mut *self.value {
            Set::Ints(bytes) => intset::retain(bytes, |value| {
                let is_drawn = draw.next();
                if is_drawn {
                    take(Element::Integer(value));
                }
                !is_drawn
            }),
            Set::Packed(bytes) => packed::retain(bytes, |element| {
                let is_drawn = draw.next();
                if is_drawn {
                    take(element);
                }
                !is_drawn
            }),
            Set::Table(_) if (len - count).saturating_mul(POP_WALK_RATIO) > count => {
                for _ in 0..count {
                    self.pop(&mut Draws::new(), &mut visit);
                }
            }
            Set::Table(members) => {
                let mut rest = Set::Packed(Vec::new());
                for entry in members.table.iter() {
                    if draw.next() {
                        visit(Element::Bytes(entry.field));
                    } else {
                        Edit::unnoted(&mut rest).add(entry.field, limits);
                    }
                }
                self.change_form(rest);
            }
        }
    }

    #[inline(always)]
    fn note_element(&mut self, note: Note, element: Element<'_>) {
        if let Some(journal) = &mut self.journal {
            journal.note_element(note, element);
        }
    }
}

fn remove_packed(bytes: &mut Vec<u8>, element: Element<'_>) -> bool {
    match packed::search(bytes, element) {
        Search::Found(place) => {
            bytes.drain(place);
            true
        }
        Search::Absent { .. } => false,
    }
}

impl Members {
    /// Adds a member, possibly beyond the limits of a listpack.
    #[inline]
    fn insert(
        &mut self,
        member: &[u8],
        limits: &Limits,
        journal: &mut Option<&mut Journal>,
    ) -> bool {
        let is_new = self.table.insert(member);
        if is_new && let Some(journal) = journal {
            journal.note(Note::Absent, [member, &[]]);
        }
        if is_new
            && self.is_listpack
            && (self.table.len() > limits.listpack_entries || member.len() > limits.listpack_value)
        {
            self.set_listpack(false, journal);
        }
        is_new
    }

    #[cold]
    fn set_listpack(&mut self, is_listpack: bool, journal: &mut Option<&mut Journal>) {
        if let Some(journal) = journal {
            journal.note(Note::WasSmall(self.is_listpack), NO_TEXT);
        }
        self.is_listpack = is_listpack;
    }
}

/// Chooses `wanted` of `left` visited members, all subsets being equally likely.
struct Draw {
    left: usize,
    wanted: usize,
}

impl Draw {
    /// Whether to choose the next member.
    fn next(&mut self) -> bool {
        let is_drawn = fastrand::usize(..self.left) < self.wanted;
        self.left -= 1;
        self.wanted -= usize::from(is_drawn);
        is_drawn
    }
}

impl<'a> SetView<'a> {
    /// Number of members. O(n) for a packed set.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            SetView::Ints(set) => set.len(),
            SetView::Packed(bytes) => packed::count(bytes),
            SetView::Table(members) => members.table.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        match self {
            SetView::Ints(set) => set.is_empty(),
            SetView::Packed(bytes) => bytes.is_empty(),
            SetView::Table(members) => members.table.is_empty(),
        }
    }

    #[inline]
    pub fn contains(&self, member: &[u8]) -> bool {
        match self {
            SetView::Ints(set) => parse_i64(member).is_some_and(|value| set.contains(value)),
            SetView::Packed(bytes) => packed::contains(bytes, Element::new(member)),
            SetView::Table(members) => members.table.contains(member),
        }
    }

    /// The same for an element of another set.
    #[inline]
    pub fn contains_element(&self, element: Element<'_>) -> bool {
        match (self, element) {
            (_, Element::Bytes(member)) => self.contains(member),
            (SetView::Ints(set), Element::Integer(value)) => set.contains(value),
            (SetView::Packed(bytes), element) => packed::contains(bytes, element),
            (SetView::Table(members), Element::Integer(value)) => {
                members.table.contains(&format_i64(value))
            }
        }
    }

    /// Passes all members to `visit`, until it returns false: integers in ascending order, others
    /// unordered.
    #[inline]
    pub fn visit(&self, mut visit: impl FnMut(Element<'a>) -> bool) {
        match *self {
            SetView::Ints(set) => {
                set.iter().all(|value| visit(Element::Integer(value)));
            }
            SetView::Packed(bytes) => {
                Elements::new(bytes).all(visit);
            }
            SetView::Table(members) => {
                members.table.iter().all(|entry| visit(Element::Bytes(entry.field)));
            }
        }
    }

    /// Passes all members to `visit`.
    #[inline]
    pub fn for_each(&self, mut visit: impl FnMut(Element<'a>)) {
        self.visit(|element| {
            visit(element);
            true
        });
    }

    /// A random member, uniformly; None if there is none.
    pub fn random(&self) -> Option<Element<'a>> {
        match *self {
            _ if self.is_empty() => None,
            SetView::Ints(set) => Some(Element::Integer(set.get(fastrand::usize(..set.len())))),
            SetView::Packed(bytes) => {
                Some(packed::nth(bytes, fastrand::usize(..packed::count(bytes))).0)
            }
            SetView::Table(members) => {
                members.table.random().map(|entry| Element::Bytes(entry.field))
            }
        }
    }

    /// Passes `count` different random members to `visit`, or all if there are fewer.
    pub fn sample(&self, count: usize, mut visit: impl FnMut(Element<'a>)) {
        let len = self.len();
        if count >= len {
            return self.for_each(visit);
        }
        if count.saturating_mul(SAMPLE_WALK_RATIO) > len || matches!(self, SetView::Packed(_)) {
            let mut draw = Draw { left: len, wanted: count };
            return self.visit(|element| {
                if draw.next() {
                    visit(element);
                }
                draw.wanted > 0
            });
        }
        // A member is identified by its address, an integer by its rank: nothing is copied or
        // hashed.
        let mut seen = HashSet::new();
        while seen.len() < count {
            match *self {
                SetView::Ints(set) => {
                    let rank = fastrand::usize(..len);
                    if seen.insert(rank) {
                        visit(Element::Integer(set.get(rank)));
                    }
                }
                _ => match self.random() {
                    Some(element @ Element::Bytes(member)) => {
                        // The empty member may have the next one's address.
                        let place = member.as_ptr() as usize * 2 + usize::from(member.is_empty());
                        if seen.insert(place) {
                            visit(element);
                        }
                    }
                    _ => return,
                },
            }
        }
    }

    /// Visits about `most` members from a cursor on; returns the next cursor, 0 at the end. A set
    /// that Redis stores without a table is visited at once.
    pub fn scan(&self, cursor: u64, most: usize, mut visit: impl FnMut(Element<'a>)) -> u64 {
        match *self {
            SetView::Table(members @ Members { is_listpack: false, .. }) => {
                members.table.scan(cursor, most, |entry| visit(Element::Bytes(entry.field)))
            }
            _ => {
                self.for_each(visit);
                0
            }
        }
    }

    /// As [`Self::scan`], but as before Redis 7.2, which stored texts in a table: they are visited
    /// in parts, even if few. Cost: O(n).
    pub fn scan_in_parts(
        &self,
        cursor: u64,
        most: usize,
        limits: &Limits,
        mut visit: impl FnMut(Element<'_>),
    ) -> u64 {
        let mut made = PackedTable::new(limits.hasher, Form::Members);
        let table = match *self {
            SetView::Ints(_) => return self.scan(cursor, most, visit),
            SetView::Table(members) => &members.table,
            SetView::Packed(_) => {
                self.for_each(|element| {
                    made.insert(element.text().as_ref());
                });
                &made
            }
        };
        table.scan(cursor, most, |entry| visit(Element::Bytes(entry.field)))
    }
}

impl Collection for Set {
    type View<'a> = SetView<'a>;

    #[inline]
    fn view(value: ValueRef<'_, Value>) -> Option<Self::View<'_>> {
        match value {
            ValueRef::Bytes { bytes, kind: kind::INTSET } => {
                Some(SetView::Ints(Intset::new(bytes)))
            }
            ValueRef::Bytes { bytes, kind: kind::SET } => Some(SetView::Packed(bytes)),
            ValueRef::Object(Value::Set(set)) => Some(set.as_view()),
            _ => None,
        }
    }

    fn boxed(value: &mut Value) -> Option<&mut Self> {
        match value {
            Value::Set(value) => Some(value),
            _ => None,
        }
    }

    fn unpack(kind: u8, bytes: Vec<u8>) -> Self {
        match kind {
            kind::INTSET => Set::Ints(bytes),
            _ => Set::Packed(bytes),
        }
    }

    fn store(self) -> Stored {
        match self {
            Set::Ints(bytes) if bytes.len() <= INLINE_MAX => {
                Stored::Inline { kind: kind::INTSET, bytes }
            }
            Set::Packed(bytes) => Stored::Inline { kind: kind::SET, bytes },
            Set::Ints(mut bytes) => {
                // The buffer has spare capacity from editing.
                bytes.shrink_to_fit();
                Stored::Boxed(Value::Set(Set::Ints(bytes)))
            }
            Set::Table(members) => Stored::Boxed(Value::Set(Set::Table(members))),
        }
    }

    fn is_empty(&self) -> bool {
        self.as_view().is_empty()
    }
}
