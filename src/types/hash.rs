//! The hash type: fields with values, some with a deadline of their own.
//!
//! Up to [`INLINE_MAX`] bytes the fields are packed inside the key's entry: field, value, field,
//! value ... A larger hash is a [`PackedTable`], and so is one that Redis would report as a hash
//! table: with more fields or a longer text than [`Limits`] allow, or with a deadline. The encoding
//! never goes back from `hashtable` to `listpack`; while it is `listpack`, fields keep the order in
//! which they were added.
//!
//! An expired field is hidden from reads here, and stays in memory until the keyspace calls
//! [`Hash::remove_due`].

use super::journal::{Edit, Journal, NO_TEXT, Note};
use super::{Collection, INLINE_MAX, Stored, Value, kind};
use crate::clock::{Deadline, Expiry, Now};
use crate::collections::hash::KeyHasher;
use crate::collections::packed::{Element, Elements, Text};
use crate::collections::packed_table::{Earliest, Entry, Form, PackedTable, Put, Take};
use crate::collections::table::ValueRef;

/// The largest size at which a hash is reported as listpack, and the hasher of a larger one.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// `hash-max-listpack-entries`
    pub entries_max: usize,
    /// `hash-max-listpack-value`: bytes of a field or value.
    pub bytes_max: usize,
    pub hasher: KeyHasher,
}

/// Bytes of the longest integer's text.
const INTEGER_BYTES_MAX: usize = 20;
/// The approximate bytes of a field and a short value besides the field's text.
const PAIR_BYTES: usize = 16;

/// A hash.
#[derive(Clone, Debug)]
pub enum Hash {
    Packed(Vec<u8>),
    Table(HashTable),
}

/// A hash that is too large to be packed, or has deadlines.
#[derive(Clone, Debug)]
pub struct HashTable {
    table: PackedTable,
    /// Whether its encoding is still `listpack`.
    is_listpack: bool,
    /// The deadlines under which the keyspace's index has the key.
    pub noted: Earliest,
}

/// A hash, for reading.
#[derive(Clone, Copy, Debug)]
pub enum HashView<'a> {
    Packed(&'a [u8]),
    Table(&'a HashTable),
}

/// A field's value and deadline.
pub struct Found<'a> {
    pub value: Text<'a>,
    pub deadline: Option<Deadline>,
}

impl Default for Hash {
    fn default() -> Self {
        Hash::Packed(Vec::new())
    }
}

impl Hash {
    /// The table, if the hash is not packed.
    #[inline]
    pub fn as_table(&self) -> Option<&PackedTable> {
        match self {
            Hash::Packed(_) => None,
            Hash::Table(hash) => Some(&hash.table),
        }
    }

    /// The name OBJECT ENCODING gives.
    pub fn encoding(&self) -> &'static str {
        if self.is_listpack() { "listpack" } else { "hashtable" }
    }

    fn is_listpack(&self) -> bool {
        match self {
            Hash::Packed(_) => true,
            Hash::Table(hash) => hash.is_listpack,
        }
    }

    pub fn heap_bytes(&self) -> usize {
        match self {
            Hash::Packed(bytes) => bytes.capacity(),
            Hash::Table(hash) => hash.table.heap_bytes(),
        }
    }

    pub fn free_effort(&self) -> usize {
        match self {
            Hash::Packed(_) => 1,
            Hash::Table(hash) => hash.table.free_effort(),
        }
    }

    pub fn as_view(&self) -> HashView<'_> {
        match self {
            Hash::Packed(bytes) => HashView::Packed(bytes),
            Hash::Table(hash) => HashView::Table(hash),
        }
    }

    /// A hash of `count` saved fields, whose deadlines may have passed. `walk` must pass the same
    /// fields each time it is called; its argument returns false for duplicates. Errors: those of
    /// `walk`.
    pub fn saved<E>(
        count: usize,
        limits: &Limits,
        mut walk: impl FnMut(&mut Take<'_>) -> Result<(), E>,
    ) -> Result<Hash, E> {
        if count > limits.entries_max {
            let table = PackedTable::build(limits.hasher, Form::Pairs, count, walk)?;
            let noted = Earliest::NEVER;
            return Ok(Hash::Table(HashTable { table, is_listpack: false, noted }));
        }
        let mut hash = Hash::default();
        walk(&mut |Entry { field, value, deadline }| {
            let expiry = deadline.map_or(Expiry::Clear, Expiry::At);
            Edit::unnoted(&mut hash).put(field, value, expiry, limits) == Put::New
        })?;
        Ok(hash)
    }

    /// Removes expired fields and shows their names; returns their number. Visits at most `budget`
    /// pages and deducts them.
    pub fn remove_due(
        &mut self,
        now: &Now,
        budget: &mut usize,
        mut removed: impl FnMut(Vec<u8>),
    ) -> usize {
        match self {
            Hash::Packed(_) => 0,
            Hash::Table(hash) => {
                hash.table.remove_due(now, budget, |entry| removed(entry.field.to_vec()))
            }
        }
    }

    /// The table, if the hash is one.
    pub fn table_mut(&mut self) -> Option<&mut HashTable> {
        match self {
            Hash::Packed(_) => None,
            Hash::Table(hash) => Some(hash),
        }
    }

    /// Whether changes of fields can be recorded: not while their order matters.
    pub(super) fn can_be_noted(&self) -> bool {
        matches!(self, Hash::Table(hash) if !hash.table.is_ordered())
    }

    /// Undoes a recorded change.
    pub(super) fn put_back(&mut self, note: Note, text: &[u8]) {
        let Hash::Table(hash) = self else { unreachable!("nothing is noted of packed fields") };
        let split = |value: u32| text.split_at(text.len() - value as usize);
        match note {
            Note::Absent => drop(hash.table.remove(text)),
            Note::Field { value } => {
                let (field, value) = split(value);
                hash.table.set(field, value, Expiry::Clear);
            }
            Note::VolatileField { value, deadline } => {
                let (field, value) = split(value);
                hash.table.set(field, value, Expiry::At(deadline));
            }
            Note::WasSmall(was_small) => hash.is_listpack = was_small,
            _ => unreachable!("no note of a hash"),
        }
    }

    fn make_table(&mut self, limits: &Limits) -> &mut HashTable {
        if let Hash::Packed(bytes) = self {
            let mut table = PackedTable::new(limits.hasher, Form::Pairs);
            for (field, value) in pairs(bytes) {
                table.set(field.text().as_ref(), value.text().as_ref(), Expiry::Clear);
            }
            *self = Hash::Table(HashTable { table, is_listpack: true, noted: Earliest::NEVER });
        }
        match self {
            Hash::Table(hash) => hash,
            Hash::Packed(_) => unreachable!("what was packed has become a table above"),
        }
    }
}

impl Hash {
    /// A hash of fields that all differ, with the same bytes as if they were set one after the
    /// other, in a buffer that need not be empty. None: the hash would not stay packed.
    pub fn packed_of(
        fields: &[(&[u8], Element<'_>)],
        limits: &Limits,
        mut bytes: Vec<u8>,
    ) -> Option<Hash> {
        let is_short = |element: &Element<'_>| match element {
            Element::Bytes(bytes) => bytes.len() <= limits.bytes_max,
            Element::Integer(_) => limits.bytes_max >= INTEGER_BYTES_MAX,
        };
        bytes.clear();
        bytes.reserve(fields.iter().map(|(field, _)| field.len() + PAIR_BYTES).sum());
        for (field, value) in fields {
            if field.len() > limits.bytes_max || !is_short(value) {
                return None;
            }
            Element::new(field).write(&mut bytes);
            value.write(&mut bytes);
        }
        (fields.len() <= limits.entries_max && bytes.len() <= INLINE_MAX)
            .then_some(Hash::Packed(bytes))
    }
}

impl Edit<'_, Hash> {
    /// Sets a field's value and deadline. True if it is new.
    pub fn set(
        &mut self,
        field: &[u8],
        value: &[u8],
        expiry: Expiry,
        limits: &Limits,
        now: &Now,
    ) -> bool {
        match self.put(field, value, expiry, limits) {
            Put::New => true,
            Put::Replaced(deadline) => deadline.is_some_and(|it| now.is_past(it)),
        }
    }

    fn put(&mut self, field: &[u8], value: &[u8], expiry: Expiry, limits: &Limits) -> Put {
        let is_long = field.len() > limits.bytes_max || value.len() > limits.bytes_max;
        if self.is_listpack() && (is_long || matches!(expiry, Expiry::At(_))) {
            self.end_listpack(limits);
        }
        let (put, len) = match &mut *self.value {
            Hash::Packed(bytes) => match find(bytes, field) {
                Ok(pair) => {
                    replace(bytes, pair.value, pair.end, value);
                    (Put::Replaced(None), 0)
                }
                Err(len) => {
                    Element::new(field).write(bytes);
                    Element::new(value).write(bytes);
                    (Put::New, len + 1)
                }
            },
            Hash::Table(hash) => {
                if let Some(journal) = &mut self.journal {
                    hash.note_field(field, journal);
                }
                let put = hash.table.set(field, value, expiry);
                (put, hash.table.len())
            }
        };
        if len > limits.entries_max && self.is_listpack() {
            self.end_listpack(limits);
        } else if let Hash::Packed(bytes) = &mut *self.value
            && bytes.len() > INLINE_MAX
        {
            self.value.make_table(limits);
        }
        put
    }

    /// Converts a listpack if one of the texts to be stored is too long, as Redis does before it
    /// looks at the fields.
    pub fn prepare<'t>(&mut self, mut texts: impl Iterator<Item = &'t [u8]>, limits: &Limits) {
        if self.is_listpack() && texts.any(|text| text.len() > limits.bytes_max) {
            self.end_listpack(limits);
        }
    }

    /// Removes a field. False if it did not exist.
    pub fn remove(&mut self, field: &[u8], now: &Now) -> bool {
        match &mut *self.value {
            Hash::Packed(bytes) => match find(bytes, field) {
                Ok(pair) => {
                    bytes.drain(pair.start..pair.end);
                    true
                }
                Err(_) => false,
            },
            // An expired field is deleted, and announced, elsewhere.
            Hash::Table(hash) => {
                if let Some(journal) = &mut self.journal {
                    hash.note_field(field, journal);
                }
                (hash.table.volatile_len() == 0 || hash.get(field, now).is_some())
                    && hash.table.remove(field).is_some()
            }
        }
    }

    /// Sets or clears the deadline of an existing field.
    pub fn set_deadline(&mut self, field: &[u8], deadline: Option<Deadline>, limits: &Limits) {
        if deadline.is_some() {
            self.end_listpack(limits);
        }
        if let Hash::Table(hash) = &mut *self.value {
            if let Some(journal) = &mut self.journal {
                hash.note_field(field, journal);
            }
            hash.table.set_deadline(field, deadline);
        }
    }

    fn end_listpack(&mut self, limits: &Limits) {
        let hash = self.value.make_table(limits);
        if let Some(journal) = &mut self.journal {
            journal.note(Note::WasSmall(hash.is_listpack), NO_TEXT);
        }
        hash.is_listpack = false;
        hash.table.spread();
    }
}

impl HashTable {
    #[inline]
    fn get(&self, field: &[u8], now: &Now) -> Option<Entry<'_>> {
        self.table.get(field).filter(|entry| is_alive(entry, now))
    }

    /// Records a field before a change.
    #[cold]
    fn note_field(&self, field: &[u8], journal: &mut Journal) {
        let Some(entry) = self.table.get(field) else {
            return journal.note(Note::Absent, [field, &[]]);
        };
        let value = entry.value.len() as u32;
        let note = match entry.deadline {
            Some(deadline) => Note::VolatileField { value, deadline },
            None => Note::Field { value },
        };
        journal.note(note, [field, entry.value]);
    }

    /// The earliest deadlines.
    pub fn earliest(&self) -> Earliest {
        self.table.earliest()
    }

    /// Number of fields with a deadline.
    pub fn volatile_len(&self) -> usize {
        self.table.volatile_len()
    }
}

#[inline]
fn is_alive(entry: &Entry<'_>, now: &Now) -> bool {
    entry.deadline.is_none_or(|deadline| !now.is_past(deadline))
}

impl<'a> HashView<'a> {
    /// A field's value.
    #[inline]
    pub fn get(&self, field: &[u8], now: &Now) -> Option<Found<'a>> {
        match *self {
            HashView::Packed(bytes) => {
                let pair = find(bytes, field).ok()?;
                let (value, _) = Element::read(&bytes[pair.value..])?;
                Some(Found { value: value.text(), deadline: None })
            }
            HashView::Table(hash) => hash
                .get(field, now)
                .map(|entry| Found { value: Text::Bytes(entry.value), deadline: entry.deadline }),
        }
    }

    /// Number of fields.
    pub fn len(&self, now: &Now) -> usize {
        match self {
            HashView::Packed(bytes) => Elements::new(bytes).count() / 2,
            HashView::Table(hash) => hash.table.len() - hash.table.due_len(now),
        }
    }

    /// Shows each field with its value: in insertion order while it is a listpack.
    pub fn for_each(&self, now: &Now, mut visit: impl FnMut(&[u8], &[u8])) {
        self.for_each_text(now, |field, value| visit(field.as_ref(), value.as_ref()));
    }

    /// The same with texts that may outlive the visit.
    #[inline]
    pub fn for_each_text(&self, now: &Now, mut visit: impl FnMut(Text<'a>, Text<'a>)) {
        match *self {
            HashView::Packed(bytes) => {
                for (field, value) in pairs(bytes) {
                    visit(field.text(), value.text());
                }
            }
            HashView::Table(hash) => {
                for entry in hash.table.iter().filter(|entry| is_alive(entry, now)) {
                    visit(Text::Bytes(entry.field), Text::Bytes(entry.value));
                }
            }
        }
    }

    /// All fields with their values as packed elements, if they are packed: in insertion order.
    pub fn packed_bytes(&self) -> Option<&'a [u8]> {
        match *self {
            HashView::Packed(bytes) => Some(bytes),
            HashView::Table(_) => None,
        }
    }

    /// The fields with their values, if they are packed: in insertion order.
    pub fn packed_fields(
        &self,
    ) -> Option<impl Iterator<Item = (Element<'a>, Element<'a>)> + use<'a>> {
        match *self {
            HashView::Packed(bytes) => Some(pairs(bytes)),
            HashView::Table(_) => None,
        }
    }

    /// As [`Self::for_each`], including expired fields.
    pub fn for_each_kept(&self, mut visit: impl FnMut(&[u8], &[u8])) {
        match self {
            HashView::Packed(bytes) => {
                for (field, value) in pairs(bytes) {
                    visit(field.text().as_ref(), value.text().as_ref());
                }
            }
            HashView::Table(hash) => {
                hash.table.iter().for_each(|entry| visit(entry.field, entry.value));
            }
        }
    }

    /// As [`Self::for_each_kept`], with the deadlines.
    pub fn for_each_saved(&self, mut visit: impl FnMut(&[u8], &[u8], Option<Deadline>)) {
        match self {
            HashView::Packed(_) => self.for_each_kept(|field, value| visit(field, value, None)),
            HashView::Table(hash) => {
                hash.table.iter().for_each(|entry| visit(entry.field, entry.value, entry.deadline));
            }
        }
    }

    /// Number of fields in memory, including expired ones.
    pub fn kept_len(&self) -> usize {
        match self {
            HashView::Packed(bytes) => Elements::new(bytes).count() / 2,
            HashView::Table(hash) => hash.table.len(),
        }
    }

    /// Whether its encoding is `listpack`.
    pub fn is_listpack(&self) -> bool {
        match self {
            HashView::Packed(_) => true,
            HashView::Table(hash) => hash.is_listpack,
        }
    }

    /// A random field and its value, uniformly. None if there is none.
    pub fn random(&self, now: &Now) -> Option<(Text<'a>, Text<'a>)> {
        match *self {
            HashView::Packed(bytes) => {
                let len = self.len(now);
                let rank = if len == 0 { 0 } else { fastrand::usize(0..len) };
                pairs(bytes).nth(rank).map(|(field, value)| (field.text(), value.text()))
            }
            HashView::Table(hash) => {
                let due = hash.table.due_len(now);
                if due == 0 {
                    let entry = hash.table.random()?;
                    return Some((Text::Bytes(entry.field), Text::Bytes(entry.value)));
                }
                // Rare: expired fields are in between.
                let alive = hash.table.len() - due;
                let rank = if alive == 0 { 0 } else { fastrand::usize(0..alive) };
                let mut entries = hash.table.iter().filter(|entry| is_alive(entry, now));
                let entry = entries.nth(rank)?;
                Some((Text::Bytes(entry.field), Text::Bytes(entry.value)))
            }
        }
    }

    /// Shows the fields from a cursor up to the returned one, at most about `most`; 0 is start and
    /// end. A listpack is shown at once.
    pub fn scan(
        &self,
        cursor: u64,
        most: usize,
        now: &Now,
        mut visit: impl FnMut(&[u8], &[u8]),
    ) -> u64 {
        match self {
            HashView::Packed(_) | HashView::Table(HashTable { is_listpack: true, .. }) => {
                self.for_each(now, visit);
                0
            }
            HashView::Table(hash) => hash.table.scan(cursor, most, |entry| {
                if is_alive(&entry, now) {
                    visit(entry.field, entry.value);
                }
            }),
        }
    }

    /// Whether some fields have deadlines.
    pub fn is_volatile(&self) -> bool {
        match self {
            HashView::Packed(_) => false,
            HashView::Table(hash) => hash.volatile_len() > 0,
        }
    }
}

impl Collection for Hash {
    type View<'a> = HashView<'a>;

    fn view(value: ValueRef<'_, Value>) -> Option<Self::View<'_>> {
        match value {
            ValueRef::Bytes { bytes, kind: kind::HASH } => Some(HashView::Packed(bytes)),
            ValueRef::Object(Value::Hash(hash)) => Some(hash.as_view()),
            _ => None,
        }
    }

    fn boxed(value: &mut Value) -> Option<&mut Self> {
        match value {
            Value::Hash(value) => Some(value),
            _ => None,
        }
    }

    fn unpack(_kind: u8, bytes: Vec<u8>) -> Self {
        Hash::Packed(bytes)
    }

    fn store(self) -> Stored {
        match self {
            Hash::Packed(bytes) if bytes.len() <= INLINE_MAX => {
                Stored::Inline { kind: kind::HASH, bytes }
            }
            large => Stored::Boxed(Value::Hash(large)),
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Hash::Packed(bytes) => bytes.is_empty(),
            Hash::Table(hash) => hash.table.is_empty(),
        }
    }
}

// ---- packed pairs -------------------------------------------------------------------------------

/// A pair's position.
struct PackedPair {
    start: usize,
    value: usize,
    end: usize,
}

/// The position of a field and its value; without the field, the number of pairs.
fn find(bytes: &[u8], field: &[u8]) -> Result<PackedPair, usize> {
    let wanted = Element::new(field);
    let mut elements = Elements::new(bytes);
    let mut len = 0;
    loop {
        let start = elements.position();
        let Some(element) = elements.next() else {
            return Err(len);
        };
        let value = elements.position();
        elements.next();
        if element == wanted {
            return Ok(PackedPair { start, value, end: elements.position() });
        }
        len += 1;
    }
}

/// Replaces the element from `start` to `end` by a text.
fn replace(bytes: &mut Vec<u8>, start: usize, end: usize, text: &[u8]) {
    let before = bytes.len();
    Element::new(text).write(bytes);
    let len = bytes.len() - before;
    if len == end - start {
        bytes.copy_within(before.., start);
        bytes.truncate(before);
    } else {
        bytes[start..].rotate_right(len);
        bytes.drain(start + len..end + len);
    }
}

fn pairs(bytes: &[u8]) -> impl Iterator<Item = (Element<'_>, Element<'_>)> {
    let mut elements = Elements::new(bytes);
    std::iter::from_fn(move || Some((elements.next()?, elements.next()?)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Set(usize, usize, Option<i64>),
        Remove(usize),
        SetDeadline(usize, Option<i64>),
        RemoveDue(usize),
        Wait(i64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            8 => (0..60usize, 0..90usize, prop::option::weighted(0.1, 0..50i64))
                .prop_map(|(field, value, ms)| Step::Set(field, value, ms)),
            3 => (0..60usize).prop_map(Step::Remove),
            1 => (0..60usize, prop::option::of(0..50i64))
                .prop_map(|(field, ms)| Step::SetDeadline(field, ms)),
            1 => (1..4usize).prop_map(Step::RemoveDue),
            1 => (0..20i64).prop_map(Step::Wait),
        ]
    }

    type Model = Vec<(Vec<u8>, Vec<u8>, Option<Deadline>)>;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(96))]

        #[test]
        fn a_hash_made_at_once_is_the_one_that_is_made_field_by_field(
            entries_max in prop_oneof![Just(0usize), 1..6usize, Just(512)],
            bytes_max in prop_oneof![Just(0usize), Just(19), Just(64), Just(1000)],
            values in prop::collection::vec(prop_oneof!["-?[0-9]{1,20}", "[a-z]{0,300}"], 0..8),
        ) {
            let limits = Limits { entries_max, bytes_max, hasher: KeyHasher::new([1, 2]) };
            let now = Now { wall_us: 1, boot_us: 1, ignores_deadlines: false };
            let names: Vec<String> = (0..values.len()).map(|number| format!("{number}")).collect();
            let fields: Vec<(&[u8], Element<'_>)> = names
                .iter()
                .zip(&values)
                .map(|(name, value)| (name.as_bytes(), Element::new(value.as_bytes())))
                .collect();
            let mut expected = Hash::default();
            for (name, value) in names.iter().zip(&values) {
                let (name, value) = (name.as_bytes(), value.as_bytes());
                Edit::unnoted(&mut expected).set(name, value, Expiry::Clear, &limits, &now);
            }
            if let Some(Hash::Packed(bytes)) = Hash::packed_of(&fields, &limits, vec![7; 3]) {
                prop_assert!(matches!(expected, Hash::Packed(expected) if expected == bytes));
            }
        }

        #[test]
        fn a_hash_agrees_with_a_list_of_pairs(
            entries_max in prop_oneof![Just(0usize), 1..20usize, Just(512)],
            bytes_max in prop_oneof![Just(64usize), Just(1000)],
            steps in prop::collection::vec(step(), 0..100),
        ) {
            let limits = Limits { entries_max, bytes_max, hasher: KeyHasher::new([1, 2]) };
            let mut now = Now { wall_us: 1_700_000_000_000_000, boot_us: 5_000_000, ignores_deadlines: false };
            let mut hash = Hash::default();
            let mut model: Model = Vec::new();
            let mut is_listpack = true;
            for step in steps {
                let alive = |it: Option<Deadline>| it.is_none_or(|it| !now.is_past(it));
                let at = |model: &Model, field: &[u8]| model.iter().position(|it| it.0 == field);
                let name = |number: usize| match number % 3 {
                    0 => number.to_string().into_bytes(),
                    _ => format!("field:{number}").into_bytes(),
                };
                match step {
                    Step::Set(field, len, ms) => {
                        let (field, value) = (name(field), vec![b'7'; len]);
                        let deadline = ms.map(|ms| now.after(ms));
                        let expiry = deadline.map_or(Expiry::Clear, Expiry::At);
                        let is_new = Edit::unnoted(&mut hash).set(&field, &value, expiry, &limits, &now);
                        is_listpack &= len <= bytes_max && ms.is_none();
                        match at(&model, &field) {
                            Some(index) => {
                                prop_assert_eq!(is_new, !alive(model[index].2));
                                model[index] = (field, value, deadline);
                            }
                            None => {
                                prop_assert!(is_new);
                                model.push((field, value, deadline));
                            }
                        }
                        is_listpack &= model.len() <= entries_max;
                    }
                    Step::Remove(field) => {
                        let field = name(field);
                        let found = at(&model, &field).filter(|&it| alive(model[it].2));
                        prop_assert_eq!(Edit::unnoted(&mut hash).remove(&field, &now), found.is_some());
                        if let Some(index) = found {
                            model.remove(index);
                        }
                    }
                    Step::SetDeadline(field, ms) => {
                        let field = name(field);
                        if let Some(index) = at(&model, &field) {
                            model[index].2 = ms.map(|ms| now.after(ms));
                            Edit::unnoted(&mut hash).set_deadline(&field, model[index].2, &limits);
                            is_listpack &= ms.is_none();
                        }
                    }
                    Step::RemoveDue(budget) => {
                        let mut budget = budget;
                        let removed = hash.remove_due(&now, &mut budget, |_| ());
                        if budget > 0 {
                            let before = model.len();
                            model.retain(|pair| alive(pair.2));
                            prop_assert_eq!(removed, before - model.len());
                        } else {
                            let mut kept = Vec::new();
                            if let Hash::Table(hash) = &hash {
                                kept.extend(hash.table.iter().map(|entry| entry.field.to_vec()));
                            }
                            model.retain(|pair| kept.contains(&pair.0));
                        }
                    }
                    Step::Wait(ms) => {
                        now.boot_us += ms * 1000;
                        now.wall_us += ms * 1000;
                    }
                }
                // As the keyspace keeps it between two commands.
                hash = match hash.store() {
                    Stored::Inline { kind, bytes } => {
                        prop_assert!(bytes.len() <= INLINE_MAX);
                        Hash::unpack(kind, bytes)
                    }
                    Stored::Boxed(Value::Hash(hash)) => hash,
                    Stored::Boxed(_) => unreachable!("a hash stays a hash"),
                };
                prop_assert_eq!(hash.encoding(), if is_listpack { "listpack" } else { "hashtable" });
                let mut expected: Vec<_> = model
                    .iter()
                    .filter(|pair| pair.2.is_none_or(|it| !now.is_past(it)))
                    .map(|pair| (pair.0.clone(), pair.1.clone()))
                    .collect();
                let mut found = Vec::new();
                let view = hash.as_view();
                view.for_each(&now, |field, value| found.push((field.to_vec(), value.to_vec())));
                if !is_listpack {
                    expected.sort();
                    found.sort();
                }
                prop_assert_eq!(&found, &expected);
                prop_assert_eq!(view.len(&now), expected.len());
                prop_assert_eq!(hash.is_empty(), model.is_empty());
                for (field, value) in &expected {
                    let found = view.get(field, &now).expect("each field is found");
                    prop_assert_eq!(found.value.as_ref(), value.as_slice());
                }
                match view.random(&now) {
                    Some((field, value)) => {
                        let pair = (field.as_ref().to_vec(), value.as_ref().to_vec());
                        prop_assert!(expected.contains(&pair));
                    }
                    None => prop_assert!(expected.is_empty()),
                }
            }
        }
    }
}
