//! A compact hash table of byte strings: the fields and values of a large hash, the members of a
//! large set.
//!
//! Fields are hashed here, and looked up in one page; results are borrowed from it. An entry of a
//! short field and value takes its bytes, 2 or 3 more, and a share of its page's slack: no
//! allocation of its own, no pointer. The table knows neither the meaning of fields nor when
//! expired entries are hidden or deleted.
//!
//! ```text
//!   hash:  tag (upper 7 bits) ............................................ page (lower bits)
//!   pages: linear hashing: page p holds the hashes whose low `depth` bits are p; at n pages, of which 2^k is the largest
//!          power of two, the first n - 2^k pages and the last n - 2^k ones have depth k + 1, those between depth k
//!   page:  on average 24 entries in one allocation (`page.rs`)
//!   entry: a member:  its bytes
//!          a pair:    head: u8 | field length: u8, if the head says 127 | deadline: u64, if the head says so | field | value
//!          if longer than 255 bytes: u32, a number in the slab of large entries, which have an allocation each
//! ```
//!
//! Growth: at 24 entries per page on average, one page splits; at 10, the last page is merged into
//! the one it was split from. So no operation touches more than three pages, apart from moving the
//! list of groups of pages.
//!
//! # Order
//! A new table is one page that keeps the insertion order; a changed value keeps its position.
//! [`PackedTable::spread`] ends that, as does reaching 4,096 entries: in a page, changing an
//! entry's length moves all that follow. It is never ordered again.
//!
//! # SCAN
//! A cursor is a boundary in the order of bit-reversed hashes, in which each page is a contiguous
//! range: so no split or merge moves an entry across it, and an entry present from the first call
//! to the last is visited exactly once.

mod build;
mod deadlines;
mod page;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::clock::{Deadline, Expiry, Now};
use crate::collections::hash::KeyHasher;
use crate::collections::prefetch::Ahead;
use crate::collections::scan::cut;
use crate::collections::shared::{Part, SharedSlab, SharedVec, give_up};

pub use build::Take;
use deadlines::Deadlines;
pub use deadlines::Earliest;
use page::{ENTRY_MAX, Page, Place, TAG_BITS};

/// Entries per page at which one splits. With fewer, page headers cost more; with more, scans are
/// longer.
const LOAD_MAX: usize = 24;
/// Entries per page below which two merge.
const LOAD_MIN: usize = 10;
/// Entries at which the order is given up.
const ORDERED_MAX: usize = 4096;
/// Flag in a mark: the entry is the number of a large one.
const LARGE: u8 = !TAG_BITS;
/// Bytes of that number.
const NUMBER: usize = size_of::<u32>();
/// In a pair's head: a deadline follows.
const HAS_DEADLINE: u8 = 0x80;
/// In a pair's head: the field's length follows.
const LONG_FIELD: u8 = 0x7f;
/// A cursor is the upper 53 bits of a reversed hash, as doubles in JavaScript are exact to 53 bits.
const CURSOR_SHIFT: u32 = 11;
/// Random pages tried before entries are counted.
const RANDOM_TRIES: usize = 128;

/// The kind of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Fields without values or deadlines.
    Members,
    Pairs,
}

impl Form {
    /// Bytes of an entry inside a page; None if it is too long.
    fn len_of(self, entry: Entry<'_>) -> usize {
        match self {
            Form::Members => entry.field.len(),
            Form::Pairs => pair_len(entry),
        }
    }
}

/// A field, its value (empty in a table of members) and its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    pub field: &'a [u8],
    pub value: &'a [u8],
    pub deadline: Option<Deadline>,
}

/// A random choice of an entry, made without reading the table, so that the table's memory can be
/// prefetched. As it does not depend on the table, entries are equally likely at any time of its
/// use.
#[derive(Clone, Copy, Debug)]
pub struct Draw {
    page: u64,
    index: u64,
}

/// Choices that have been made ahead.
pub type Draws = VecDeque<Draw>;

impl Draw {
    pub fn make() -> Self {
        Draw { page: fastrand::u64(..), index: fastrand::u64(..) }
    }

    /// The drawn page and index in a table of `pages` pages with at most `entries` entries each.
    fn place(self, pages: usize, entries: usize) -> (usize, usize) {
        let scale = |random: u64, to: usize| ((u128::from(random) * to as u128) >> 64) as usize;
        (scale(self.page, pages), scale(self.index, entries))
    }
}

/// The result of setting a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    New,
    /// The field existed, with this deadline.
    Replaced(Option<Deadline>),
}

/// An entry too long for a page.
#[derive(Clone, Debug, Default)]
struct Large {
    /// Field and value.
    bytes: Arc<[u8]>,
    field_len: u32,
    deadline: Option<Deadline>,
}

impl Large {
    fn new(entry: Entry<'_>) -> Large {
        let bytes = [entry.field, entry.value].concat().into();
        Large { bytes, field_len: entry.field.len() as u32, deadline: entry.deadline }
    }

    fn entry(&self) -> Entry<'_> {
        let (field, value) = self.bytes.split_at(self.field_len as usize);
        Entry { field, value, deadline: self.deadline }
    }
}

impl Part for Large {
    /// Clones share the bytes.
    fn heap_bytes(&self) -> usize {
        0
    }

    fn freed_bytes(&self) -> usize {
        if Arc::strong_count(&self.bytes) == 1 { self.bytes.len() } else { 0 }
    }
}

impl Drop for Large {
    fn drop(&mut self) {
        if Arc::strong_count(&self.bytes) > 1 {
            give_up(self.bytes.len());
        }
    }
}

/// The table. A clone shares its pages.
#[derive(Clone, Debug)]
pub struct PackedTable {
    hasher: KeyHasher,
    form: Form,
    is_ordered: bool,
    /// Upper bound of the entries in a page, for random choices.
    page_len_max: u32,
    len: usize,
    /// Never empty.
    pages: SharedVec<Page>,
    large: Option<Box<SharedSlab<Large>>>,
    /// None until an entry has a deadline.
    deadlines: Option<Box<Deadlines>>,
    /// Bytes of pages and large entries.
    heap_bytes: usize,
}

impl PackedTable {
    /// An empty table that keeps the order of its fields until it is spread.
    pub fn new(hasher: KeyHasher, form: Form) -> Self {
        let mut pages = SharedVec::default();
        pages.push(Page::default());
        PackedTable {
            hasher,
            form,
            is_ordered: true,
            page_len_max: 0,
            len: 0,
            pages,
            large: None,
            deadlines: None,
            heap_bytes: 0,
        }
    }

    /// Number of entries, including expired ones.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the insertion order is kept.
    pub fn is_ordered(&self) -> bool {
        self.is_ordered
    }

    /// Bytes of heap memory.
    pub fn heap_bytes(&self) -> usize {
        let slab = self.large.as_ref().map_or(0, |large| large.heap_bytes());
        let deadlines = self.deadlines.as_ref().map_or(0, |deadlines| deadlines.heap_bytes());
        self.heap_bytes + self.pages.heap_bytes() + slab + deadlines
    }

    /// Number of allocations to free.
    pub fn free_effort(&self) -> usize {
        self.pages.len() + self.large.as_ref().map_or(0, |large| large.len())
    }

    /// Removes everything; the table is ordered again.
    pub fn clear(&mut self) {
        *self = PackedTable::new(self.hasher, self.form);
    }

    // ---- look-up --------------------------------------------------------------------------------

    /// A field's entry.
    #[inline]
    pub fn get(&self, field: &[u8]) -> Option<Entry<'_>> {
        let hash = self.hasher.hash(field);
        let page = page_of(hash, self.pages.len());
        let place = self.find(page, hash, field)?;
        Some(self.entry(page, place))
    }

    #[inline]
    pub fn contains(&self, field: &[u8]) -> bool {
        let hash = self.hasher.hash(field);
        self.find(page_of(hash, self.pages.len()), hash, field).is_some()
    }

    #[inline]
    fn find(&self, page: usize, hash: u64, field: &[u8]) -> Option<Place> {
        self.pages[page].find(tag_of(hash), |mark, bytes| match (mark & LARGE != 0, self.form) {
            (true, _) => self.large(bytes).entry().field == field,
            (false, Form::Members) => bytes == field,
            (false, Form::Pairs) => field_of(bytes) == field,
        })
    }

    #[inline]
    fn entry(&self, page: usize, place: Place) -> Entry<'_> {
        let (mark, bytes) = self.pages[page].entry(place);
        self.decode(mark, bytes)
    }

    #[inline]
    fn deadline_at(&self, page: usize, place: Place) -> Option<Deadline> {
        // Most tables have no deadlines, and need not look at the entry.
        self.deadlines.as_ref().and_then(|_| self.entry(page, place).deadline)
    }

    /// The number of a large entry.
    #[inline]
    fn large_at(&self, page: usize, place: Place) -> Option<u32> {
        self.large.as_ref()?;
        let (mark, bytes) = self.pages[page].entry(place);
        (mark & LARGE != 0).then(|| number_of(bytes))
    }

    #[inline]
    fn decode<'a>(&'a self, mark: u8, bytes: &'a [u8]) -> Entry<'a> {
        match (mark & LARGE != 0, self.form) {
            (true, _) => self.large(bytes).entry(),
            (false, Form::Members) => Entry { field: bytes, value: &[], deadline: None },
            (false, Form::Pairs) => decode_pair(bytes),
        }
    }

    fn large(&self, number: &[u8]) -> &Large {
        let large = self.large.as_ref().expect("a number of a large entry leads to one");
        large.get(number_of(number))
    }

    /// All entries: in insertion order, or unordered.
    pub fn iter(&self) -> impl Iterator<Item = Entry<'_>> {
        self.pages
            .iter()
            .flat_map(|page| page.iter())
            .map(|(_, mark, bytes)| self.decode(mark, bytes))
    }

    /// A random entry, uniformly.
    pub fn random(&self) -> Option<Entry<'_>> {
        self.random_place(Draw::make).map(|(page, place)| self.entry(page, place))
    }

    fn random_place(&self, mut draw: impl FnMut() -> Draw) -> Option<(usize, Place)> {
        if self.len == 0 {
            return None;
        }
        // Rejection sampling, so that all entries of all pages are equally likely.
        for _ in 0..RANDOM_TRIES {
            let (page, index) = draw().place(self.pages.len(), self.page_len_max as usize);
            let entries = &self.pages[page];
            if index < entries.len() {
                return Some((page, entries.place(index)));
            }
        }
        let mut rank = fastrand::usize(0..self.len);
        for (number, page) in self.pages.iter().enumerate() {
            if rank < page.len() {
                return Some((number, page.place(rank)));
            }
            rank -= page.len();
        }
        None
    }

    /// Visits the entries from a cursor up to the returned one: a page's, but at most about `most`
    /// (at least 1, and all with the same cursor). 0 is start and end. Cost: O(entries of the
    /// page).
    pub fn scan<'a>(&'a self, cursor: u64, most: usize, mut visit: impl FnMut(Entry<'a>)) -> u64 {
        if cursor >> (64 - CURSOR_SHIFT) != 0 {
            return 0;
        }
        let from = cursor << CURSOR_SHIFT;
        let number = page_of(from.reverse_bits(), self.pages.len());
        // If a merge has moved the page's start before the cursor, hashes show which entries follow
        // it.
        let is_whole = (number as u64).reverse_bits() == from;
        let page = &self.pages[number];
        let place = |entry: &Entry<'_>| self.hasher.hash(entry.field).reverse_bits();
        let entries = page.iter().map(|(_, mark, bytes)| self.decode(mark, bytes));
        if page.len() > most {
            let places = entries.clone().map(|entry| place(&entry));
            let places = SmallVec::<[u64; 64]>::from_iter(places);
            let mut behind = places.clone();
            behind.retain(|place| *place >= from);
            if let Some(next) = cut(&mut behind, most, CURSOR_SHIFT) {
                for (place, entry) in places.into_iter().zip(entries) {
                    if place >= from && place >> CURSOR_SHIFT < next {
                        visit(entry);
                    }
                }
                return next;
            }
        }
        for entry in entries {
            if is_whole || place(&entry) >= from {
                visit(entry);
            }
        }
        let depth = depth_of(number, self.pages.len());
        if depth == 0 {
            return 0;
        }
        let unit = 1 << (64 - depth);
        (number as u64).reverse_bits().wrapping_add(unit) >> CURSOR_SHIFT
    }

    /// Starts a prefetching look-up of a field.
    #[inline]
    pub fn ahead(&self, field: &[u8]) -> Ahead {
        Ahead { hash: self.hasher.hash(field), node: 0 }
    }

    /// Starts prefetching the entry that a choice means.
    #[inline]
    pub fn ahead_of_draw(&self, draw: Draw) -> Ahead {
        let (page, index) = draw.place(self.pages.len(), self.page_len_max as usize);
        Ahead { hash: page as u64, node: index as u32 + 1 }
    }

    /// Prefetches memory for the next step: the page's address, its slots, the entry. In `ahead`
    /// are a field's hash and 0, or a page and one more than an index in it.
    #[inline]
    pub fn prefetch(&self, ahead: &Ahead, stage: usize) {
        let index = (ahead.node as usize).checked_sub(1);
        let page = match index {
            None => page_of(ahead.hash, self.pages.len()),
            Some(_) => ahead.hash as usize,
        };
        match (stage, index) {
            (0, _) => self.pages.prefetch(page),
            (1, _) => self.pages[page].prefetch_slots(),
            (2, None) => self.pages[page].prefetch_entry(tag_of(ahead.hash)),
            (2, Some(index)) => self.pages[page].prefetch_place(index),
            _ => {}
        }
    }

    // ---- change ---------------------------------------------------------------------------------

    /// Sets a field's value and deadline.
    pub fn set(&mut self, field: &[u8], value: &[u8], expiry: Expiry) -> Put {
        debug_assert!(self.form == Form::Pairs || (value.is_empty() && expiry == Expiry::Clear));
        let hash = self.hasher.hash(field);
        let page = page_of(hash, self.pages.len());
        let found = self.find(page, hash, field);
        let (deadline, put) = match found {
            Some(place) => {
                let old = self.deadline_at(page, place);
                let new = expiry.replacing(|| old);
                self.count_deadline(page, old, new);
                (new, Put::Replaced(old))
            }
            None => {
                let new = expiry.replacing(|| None);
                self.count_deadline(page, None, new);
                (new, Put::New)
            }
        };
        self.write(page, found, tag_of(hash), Entry { field, value, deadline });
        if put == Put::New {
            self.len += 1;
            self.page_len_max = self.page_len_max.max(self.pages[page].len() as u32);
            self.grow();
        }
        put
    }

    /// Adds a member. False if it exists.
    pub fn insert(&mut self, member: &[u8]) -> bool {
        let added = self.add(Entry { field: member, value: &[], deadline: None });
        if added {
            self.grow();
        }
        added
    }

    /// Adds an entry without growing. False if its field exists.
    fn add(&mut self, entry: Entry<'_>) -> bool {
        let hash = self.hasher.hash(entry.field);
        let page = page_of(hash, self.pages.len());
        if self.find(page, hash, entry.field).is_some() {
            return false;
        }
        self.count_deadline(page, None, entry.deadline);
        self.write(page, None, tag_of(hash), entry);
        self.len += 1;
        self.page_len_max = self.page_len_max.max(self.pages[page].len() as u32);
        true
    }

    /// Sets or clears a field's deadline. False if there is no such field.
    pub fn set_deadline(&mut self, field: &[u8], deadline: Option<Deadline>) -> bool {
        let hash = self.hasher.hash(field);
        let page = page_of(hash, self.pages.len());
        let Some(place) = self.find(page, hash, field) else {
            return false;
        };
        let (mark, bytes) = self.pages[page].entry(place);
        let old = self.decode(mark, bytes);
        let (is_large, old_deadline) = (mark & LARGE != 0, old.deadline);
        if is_large {
            let number = number_of(bytes);
            let large = self.large.as_mut().expect("a number of a large entry leads to one");
            large.get_mut(number).deadline = deadline;
        } else {
            let value: SmallVec<[u8; 256]> = SmallVec::from_slice(old.value);
            let entry = Entry { field, value: &value, deadline };
            self.write(page, Some(place), tag_of(hash), entry);
        }
        self.count_deadline(page, old_deadline, deadline);
        true
    }

    /// Removes a field; returns its deadline, if it existed.
    pub fn remove(&mut self, field: &[u8]) -> Option<Option<Deadline>> {
        let hash = self.hasher.hash(field);
        let page = page_of(hash, self.pages.len());
        let place = self.find(page, hash, field)?;
        let deadline = self.deadline_at(page, place);
        self.remove_at(page, place);
        self.shrink();
        Some(deadline)
    }

    /// Removes a random entry, uniformly, after passing it to `visit`. Uses the choices made ahead
    /// first. False if there is none.
    pub fn pop_random(&mut self, draws: &mut Draws, visit: impl FnOnce(Entry<'_>)) -> bool {
        let draw = || draws.pop_front().unwrap_or_else(Draw::make);
        let Some((page, place)) = self.random_place(draw) else {
            return false;
        };
        visit(self.entry(page, place));
        self.remove_at(page, place);
        self.shrink();
        true
    }

    /// Removes the entries for which `keep` returns false.
    pub fn retain(&mut self, mut keep: impl FnMut(Entry<'_>) -> bool) {
        for page in 0..self.pages.len() {
            for index in (0..self.pages[page].len()).rev() {
                let place = self.pages[page].place(index);
                if !keep(self.entry(page, place)) {
                    self.remove_at(page, place);
                }
            }
        }
        self.shrink_wholly();
    }

    fn remove_at(&mut self, page: usize, place: Place) {
        let deadline = self.deadline_at(page, place);
        if let Some(number) = self.large_at(page, place) {
            self.forget_large(number);
        }
        self.change_page(page, |page| page.remove(place));
        self.count_deadline(page, deadline, None);
        self.len -= 1;
    }

    /// Writes an entry at a position of its page, or appends it.
    fn write(&mut self, page: usize, found: Option<Place>, tag: u8, entry: Entry<'_>) {
        let len = self.form.len_of(entry);
        let old_number = found.and_then(|place| self.large_at(page, place));
        if len > ENTRY_MAX {
            let number = self.keep_large(old_number, Large::new(entry));
            self.change_page(page, |page| {
                let bytes = match found {
                    Some(place) => page.resize(place, tag | LARGE, NUMBER),
                    None => page.push(tag | LARGE, NUMBER),
                };
                bytes.copy_from_slice(&number.to_le_bytes());
            });
            return;
        }
        if let Some(number) = old_number {
            self.forget_large(number);
        }
        let form = self.form;
        self.change_page(page, |page| {
            let bytes = match found {
                Some(place) => page.resize(place, tag, len),
                None => page.push(tag, len),
            };
            match form {
                Form::Members => bytes.copy_from_slice(entry.field),
                Form::Pairs => encode_pair(entry, bytes),
            }
        });
    }

    #[inline]
    fn change_page(&mut self, page: usize, change: impl FnOnce(&mut Page)) {
        let page = &mut self.pages[page];
        let before = page.heap_bytes();
        change(page);
        self.heap_bytes = self.heap_bytes + page.heap_bytes() - before;
    }

    fn keep_large(&mut self, old: Option<u32>, new: Large) -> u32 {
        let slab = self.large.get_or_insert_default();
        self.heap_bytes += new.bytes.len();
        match old {
            Some(number) => {
                let kept = slab.get_mut(number);
                self.heap_bytes -= kept.bytes.len();
                *kept = new;
                number
            }
            None => slab.add(new),
        }
    }

    fn forget_large(&mut self, number: u32) {
        let Some(slab) = &mut self.large else { return };
        self.heap_bytes -= slab.take(number).bytes.len();
        if slab.is_empty() {
            self.large = None;
        }
    }

    // ---- growth ---------------------------------------------------------------------------------

    /// Gives up the insertion order: the table gets as many pages as its size needs.
    pub fn spread(&mut self) {
        if self.is_ordered {
            self.is_ordered = false;
            while self.len > self.pages.len() * LOAD_MAX {
                self.split();
            }
            let longest = self.pages.iter().map(Page::len).max();
            self.page_len_max = longest.unwrap_or(0) as u32;
        }
    }

    #[inline]
    fn grow(&mut self) {
        if self.is_ordered {
            if self.len >= ORDERED_MAX {
                self.spread();
            }
        } else if self.len > self.pages.len() * LOAD_MAX {
            self.split();
        }
    }

    /// Splits the next page.
    fn split(&mut self) {
        let new = self.pages.len();
        let level = new.ilog2();
        let old = new - (1 << level);
        let page = std::mem::take(&mut self.pages[old]);
        let moves: SmallVec<[bool; 128]> = page
            .iter()
            .map(|(_, mark, bytes)| {
                self.hasher.hash(self.decode(mark, bytes).field) >> level & 1 != 0
            })
            .collect();
        let (mut counts, mut bytes) = ([0; 2], [0; 2]);
        for ((_, _, entry), &moves) in page.iter().zip(&moves) {
            counts[usize::from(moves)] += 1;
            bytes[usize::from(moves)] += entry.len();
        }
        let mut halves =
            [Page::with_room(counts[0], bytes[0]), Page::with_room(counts[1], bytes[1])];
        for ((_, mark, entry), &moves) in page.iter().zip(&moves) {
            halves[usize::from(moves)].push(mark, entry.len()).copy_from_slice(entry);
        }
        let [stays, leaves] = halves;
        self.heap_bytes += stays.heap_bytes() + leaves.heap_bytes();
        self.heap_bytes -= page.heap_bytes();
        self.pages[old] = stays;
        self.pages.push(leaves);
        if let Some(deadlines) = &mut self.deadlines {
            deadlines.push();
            self.correct_deadlines(old);
            self.correct_deadlines(new);
        }
    }

    #[inline]
    fn shrink(&mut self) {
        if !self.is_ordered && self.pages.len() > 1 && self.len < self.pages.len() * LOAD_MIN {
            self.merge();
        }
    }

    fn shrink_wholly(&mut self) {
        while !self.is_ordered && self.pages.len() > 1 && self.len < self.pages.len() * LOAD_MIN {
            self.merge();
        }
    }

    /// Merges the last page into the one from which it was split.
    fn merge(&mut self) {
        let Some(last) = self.pages.pop() else { return };
        let to = self.pages.len() - (1 << self.pages.len().ilog2());
        self.heap_bytes -= last.heap_bytes();
        self.change_page(to, |page| {
            for (_, mark, bytes) in last.iter() {
                page.push(mark, bytes.len()).copy_from_slice(bytes);
            }
        });
        self.page_len_max = self.page_len_max.max(self.pages[to].len() as u32);
        if let Some(deadlines) = &mut self.deadlines {
            let earliest = deadlines.pop();
            deadlines.lower(to, earliest);
        }
    }

    // ---- deadlines ------------------------------------------------------------------------------

    /// Number of entries with a deadline.
    pub fn volatile_len(&self) -> usize {
        self.deadlines.as_ref().map_or(0, |deadlines| deadlines.count)
    }

    /// Lower bounds of the earliest deadlines: possibly too early, never too late.
    pub fn earliest(&self) -> Earliest {
        self.deadlines.as_ref().map_or(Earliest::NEVER, |deadlines| deadlines.earliest())
    }

    /// Number of expired entries. Visits only pages that may have some.
    pub fn due_len(&self, now: &Now) -> usize {
        let Some(deadlines) = &self.deadlines else { return 0 };
        let (mut page, mut due) = (0, 0);
        while let Some(number) = deadlines.next_due(page, now) {
            let entries =
                self.pages[number].iter().map(|(_, mark, bytes)| self.decode(mark, bytes));
            due += entries.filter(|entry| is_due(entry, now)).count();
            page = number + 1;
        }
        due
    }

    /// Removes expired entries after passing them to `visit`. Visits at most `budget` pages and
    /// deducts them. If budget is left, no expired entry remains.
    pub fn remove_due(
        &mut self,
        now: &Now,
        budget: &mut usize,
        mut visit: impl FnMut(Entry<'_>),
    ) -> usize {
        let (mut page, mut removed) = (0, 0);
        while *budget > 0
            && let Some(number) =
                self.deadlines.as_ref().and_then(|deadlines| deadlines.next_due(page, now))
        {
            *budget -= 1;
            for index in (0..self.pages[number].len()).rev() {
                let place = self.pages[number].place(index);
                let entry = self.entry(number, place);
                if is_due(&entry, now) {
                    visit(entry);
                    self.remove_at(number, place);
                    removed += 1;
                }
            }
            self.correct_deadlines(number);
            page = number + 1;
        }
        if removed > 0 {
            self.shrink_wholly();
        }
        removed
    }

    #[inline]
    fn count_deadline(&mut self, page: usize, old: Option<Deadline>, new: Option<Deadline>) {
        if old.is_some() || new.is_some() {
            let pages = self.pages.len();
            let deadlines = self.deadlines.get_or_insert_with(|| Box::new(Deadlines::new(pages)));
            deadlines.count =
                deadlines.count + usize::from(new.is_some()) - usize::from(old.is_some());
            if let Some(deadline) = new {
                deadlines.lower(page, Earliest::of(deadline));
            }
        }
    }

    /// Recomputes a page's bound.
    fn correct_deadlines(&mut self, page: usize) {
        let entries = self.pages[page].iter().map(|(_, mark, bytes)| self.decode(mark, bytes));
        let earliest = entries
            .filter_map(|entry| entry.deadline)
            .fold(Earliest::NEVER, |earliest, deadline| earliest.min(Earliest::of(deadline)));
        if let Some(deadlines) = &mut self.deadlines {
            deadlines.set(page, earliest);
        }
    }
}

fn is_due(entry: &Entry<'_>, now: &Now) -> bool {
    entry.deadline.is_some_and(|deadline| now.is_past(deadline))
}

#[inline]
fn tag_of(hash: u64) -> u8 {
    (hash >> 57) as u8
}

/// A hash's page, for this number of pages.
#[inline]
fn page_of(hash: u64, pages: usize) -> usize {
    let half = 1usize << pages.ilog2();
    let page = hash as usize & (2 * half - 1);
    if page < pages { page } else { page & (half - 1) }
}

/// Number of low hash bits that select a page.
fn depth_of(page: usize, pages: usize) -> u32 {
    let level = pages.ilog2();
    let half = 1 << level;
    if page >= half || page < pages - half { level + 1 } else { level }
}

fn number_of(bytes: &[u8]) -> u32 {
    let mut number = [0; NUMBER];
    number.copy_from_slice(bytes);
    u32::from_le_bytes(number)
}

// ---- pairs --------------------------------------------------------------------------------------

fn pair_len(entry: Entry<'_>) -> usize {
    let head = if entry.field.len() < LONG_FIELD.into() { 1 } else { 2 };
    let deadline = if entry.deadline.is_some() { size_of::<u64>() } else { 0 };
    head + deadline + entry.field.len() + entry.value.len()
}

fn encode_pair(entry: Entry<'_>, bytes: &mut [u8]) {
    let flag = if entry.deadline.is_some() { HAS_DEADLINE } else { 0 };
    let len = entry.field.len() as u8;
    let mut at = if len < LONG_FIELD {
        bytes[0] = flag | len;
        1
    } else {
        bytes[..2].copy_from_slice(&[flag | LONG_FIELD, len]);
        2
    };
    if let Some(deadline) = entry.deadline {
        bytes[at..at + 8].copy_from_slice(&deadline.to_bits().to_le_bytes());
        at += 8;
    }
    let (field, value) = bytes[at..].split_at_mut(entry.field.len());
    field.copy_from_slice(entry.field);
    value.copy_from_slice(entry.value);
}

/// Length of the field, offset of its deadline or itself, and whether there is a deadline.
#[inline]
fn head_of(bytes: &[u8]) -> (usize, usize, bool) {
    let has_deadline = bytes[0] & HAS_DEADLINE != 0;
    match bytes[0] & !HAS_DEADLINE {
        LONG_FIELD => (bytes[1].into(), 2, has_deadline),
        len => (len.into(), 1, has_deadline),
    }
}

#[inline]
fn field_of(bytes: &[u8]) -> &[u8] {
    let (len, at, has_deadline) = head_of(bytes);
    let at = if has_deadline { at + 8 } else { at };
    &bytes[at..at + len]
}

#[inline]
fn decode_pair(bytes: &[u8]) -> Entry<'_> {
    let (len, mut at, has_deadline) = head_of(bytes);
    let mut deadline = None;
    if has_deadline {
        let mut bits = [0; 8];
        bits.copy_from_slice(&bytes[at..at + 8]);
        deadline = Some(Deadline::from_bits(u64::from_le_bytes(bits)));
        at += 8;
    }
    let (field, value) = bytes[at..].split_at(len);
    Entry { field, value, deadline }
}
