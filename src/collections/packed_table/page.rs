//! A page of a packed table: some dozen entries in one allocation, in insertion order.
//!
//! ```text
//!   count: u32 | bytes of entries: u32 | slot 0 | slot 1 | ... -> free <- ... | entry 1 | entry 0
//!   slot: mark: u8 | length of the entry: u8
//! ```
//!
//! Slots grow from the front, entries from the end, so that appending moves nothing. An entry's
//! offset is the sum of the previous lengths, four at a time: that is faster than a list of
//! offsets, which would also take two more bytes an entry. A page has the size of one of the
//! allocator's size classes, and is moved to the next one when it is full.

use crate::collections::prefetch::prefetch_bytes;
use crate::collections::shared::Part;
use crate::sys::alloc::size_class;

const HEADER: usize = 8;
const SLOT: usize = 2;
/// The longest entry.
pub const ENTRY_MAX: usize = u8::MAX as usize;
/// The bits of a mark compared by [`Page::find`]. The other bit is the caller's flag.
pub const TAG_BITS: u8 = 0x7f;

/// The lowest bit of each of the four slots in 8 bytes.
const LANES: u64 = 0x0001_0001_0001_0001;

#[derive(Clone, Debug, Default)]
pub struct Page(Box<[u8]>);

/// An entry's position. Valid until the page changes.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    index: usize,
    /// Total length of the previous entries.
    before: usize,
}

impl Part for Page {
    fn heap_bytes(&self) -> usize {
        self.0.len()
    }
}

impl Page {
    /// An empty page with room for `entries` entries of together `bytes` bytes.
    pub fn with_room(entries: usize, bytes: usize) -> Page {
        let mut page = Page::default();
        if entries > 0 {
            page.move_to(HEADER + SLOT * entries + bytes);
        }
        page
    }

    fn number(&self, at: usize) -> usize {
        match self.0.get(at..at + 4) {
            Some(bytes) => u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize,
            None => 0,
        }
    }

    fn set_number(&mut self, at: usize, number: usize) {
        self.0[at..at + 4].copy_from_slice(&(number as u32).to_le_bytes());
    }

    /// Number of entries.
    #[inline]
    pub fn len(&self) -> usize {
        self.number(0)
    }

    /// Bytes of all entries.
    fn used(&self) -> usize {
        self.number(4)
    }

    pub fn heap_bytes(&self) -> usize {
        self.0.len()
    }

    #[inline]
    fn slots(&self) -> &[u8] {
        self.0.get(HEADER..HEADER + SLOT * self.len()).unwrap_or_default()
    }

    fn slot(&self, index: usize) -> (u8, usize) {
        let at = HEADER + SLOT * index;
        (self.0[at], usize::from(self.0[at + 1]))
    }

    /// The first entry whose mark has the bits of `tag` and for which `is` returns true, given flag
    /// and bytes.
    #[inline]
    pub fn find(&self, tag: u8, mut is: impl FnMut(u8, &[u8]) -> bool) -> Option<Place> {
        let pattern = LANES * u64::from(tag);
        let (words, rest) = self.slots().as_chunks::<8>();
        let (mut index, mut before) = (0, 0);
        for word in words {
            let word = u64::from_le_bytes(*word);
            if let Some(place) = self.find_in_word(word, pattern, 4, index, before, &mut is) {
                return Some(place);
            }
            index += 4;
            before += sum(lengths(word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        let word = u64::from_le_bytes(last);
        self.find_in_word(word, pattern, rest.len() / SLOT, index, before, &mut is)
    }

    #[inline]
    fn find_in_word(
        &self,
        word: u64,
        pattern: u64,
        slots: usize,
        index: usize,
        before: usize,
        is: &mut impl FnMut(u8, &[u8]) -> bool,
    ) -> Option<Place> {
        const TAGS: u64 = LANES * TAG_BITS as u64;
        // Bit 7 of each lane's sum is clear exactly if the tags are equal.
        let different = ((word ^ pattern) & TAGS) + TAGS;
        let mut same = !different & (LANES << 7);
        while same != 0 {
            let lane = same.trailing_zeros() as usize / 16;
            if lane >= slots {
                return None;
            }
            same &= same - 1;
            let earlier = lengths(word) & ((1 << (16 * lane)) - 1);
            let place = Place { index: index + lane, before: before + sum(earlier) };
            let (mark, bytes) = self.entry(place);
            if is(mark, bytes) {
                return Some(place);
            }
        }
        None
    }

    /// Mark and bytes of an entry.
    #[inline]
    pub fn entry(&self, place: Place) -> (u8, &[u8]) {
        let (mark, len) = self.slot(place.index);
        let end = self.0.len() - place.before;
        (mark, &self.0[end - len..end])
    }

    /// Prefetches the slots of an average page.
    #[inline]
    pub fn prefetch_slots(&self) {
        prefetch_bytes(&self.0[..self.0.len().min(HEADER + SLOT * 28)]);
    }

    /// Prefetches the place of a short new entry.
    #[inline]
    pub fn prefetch_room(&self) {
        let end = self.0.len().saturating_sub(self.used());
        prefetch_bytes(&self.0[end.saturating_sub(64)..end]);
    }

    /// Prefetches the entry that probably has this tag.
    #[inline]
    pub fn prefetch_entry(&self, tag: u8) {
        if let Some(place) = self.find(tag, |_, _| true) {
            prefetch_bytes(self.entry(place).1);
        }
    }

    /// Prefetches entry `index`, if there is one.
    #[inline]
    pub fn prefetch_place(&self, index: usize) {
        if index < self.len() {
            prefetch_bytes(self.entry(self.place(index)).1);
        }
    }

    /// Entry `index`, which must be less than [`Page::len`].
    pub fn place(&self, index: usize) -> Place {
        let before =
            self.slots().as_chunks::<SLOT>().0[..index].iter().map(|slot| usize::from(slot[1]));
        Place { index, before: before.sum() }
    }

    /// All entries in order.
    pub fn iter(&self) -> Iter<'_> {
        Iter { page: self, place: Place { index: 0, before: 0 }, len: self.len() }
    }

    /// Appends an entry and returns its bytes, to be written by the caller.
    pub fn push(&mut self, mark: u8, len: usize) -> &mut [u8] {
        debug_assert!(len <= ENTRY_MAX);
        let (count, used) = (self.len(), self.used());
        self.make_room(SLOT + len);
        let slot = HEADER + SLOT * count;
        self.0[slot..slot + SLOT].copy_from_slice(&[mark, len as u8]);
        self.set_number(0, count + 1);
        self.set_number(4, used + len);
        let end = self.0.len() - used;
        &mut self.0[end - len..end]
    }

    /// Sets an entry's mark and length, and returns its bytes, which are undefined if the length
    /// changes and unchanged otherwise. The order stays.
    pub fn resize(&mut self, place: Place, mark: u8, len: usize) -> &mut [u8] {
        debug_assert!(len <= ENTRY_MAX);
        let (_, old) = self.slot(place.index);
        if len != old {
            if len > old {
                self.make_room(len - old);
            }
            let used = self.used();
            let total = self.0.len();
            let (low, start) = (total - used, total - place.before - old);
            // Entries at lower addresses were added later.
            self.0.copy_within(low..start, low + old - len);
            self.set_number(4, used + len - old);
        }
        let slot = HEADER + SLOT * place.index;
        self.0[slot..slot + SLOT].copy_from_slice(&[mark, len as u8]);
        let end = self.0.len() - place.before;
        &mut self.0[end - len..end]
    }

    /// Removes an entry; the others keep their order.
    pub fn remove(&mut self, place: Place) {
        self.resize(place, 0, 0);
        let count = self.len();
        let next = HEADER + SLOT * (place.index + 1);
        self.0.copy_within(next..HEADER + SLOT * count, next - SLOT);
        self.set_number(0, count - 1);
        let needed = HEADER + SLOT * (count - 1) + self.used();
        if count == 1 {
            self.0 = Box::default();
        } else if needed + needed / 2 < self.0.len() {
            self.move_to(needed);
        }
    }

    fn make_room(&mut self, more: usize) {
        let needed = HEADER + SLOT * self.len() + self.used() + more;
        if needed > self.0.len() {
            // In a page larger than a spread table's, reserve an eighth more each time.
            let spare = if needed > 4096 { needed / 8 } else { 0 };
            self.move_to(needed + spare);
        }
    }

    /// Moves everything to an allocation of at least `len` bytes.
    fn move_to(&mut self, len: usize) {
        let len = size_class(len);
        let (front, used) = (HEADER + SLOT * self.len(), self.used());
        let mut bytes = Vec::with_capacity(len);
        bytes.extend_from_slice(self.0.get(..front).unwrap_or_default());
        bytes.resize(len - used, 0);
        bytes.extend_from_slice(&self.0[self.0.len() - used..]);
        self.0 = bytes.into_boxed_slice();
    }
}

/// The lengths in four slots, in 16 bits each.
#[inline]
fn lengths(word: u64) -> u64 {
    word >> 8 & (LANES * 0xff)
}

/// The sum of four lengths.
#[inline]
fn sum(lengths: u64) -> usize {
    (lengths.wrapping_mul(LANES) >> 48) as usize
}

/// Iterates over a page.
#[derive(Clone, Debug)]
pub struct Iter<'a> {
    page: &'a Page,
    place: Place,
    len: usize,
}

impl<'a> Iterator for Iter<'a> {
    type Item = (Place, u8, &'a [u8]);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.place.index == self.len {
            return None;
        }
        let place = self.place;
        let (mark, bytes) = self.page.entry(place);
        self.place.index += 1;
        self.place.before += bytes.len();
        Some((place, mark, bytes))
    }
}
