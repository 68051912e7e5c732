//! The leaf of each member: linear hashing by the members' tags, without storing members.
//!
//! A page has entries of 8 bytes, tag and leaf. A tag may have several leaves; the leaf's own tags
//! and the member itself decide. Pages are split and merged one at a time, so a change touches only
//! a page or two.
//!
//! The low bits of a tag select its page: as many bits as number the pages, or one less where that
//! page has not been split yet. In the order of bit-reversed tags each page is an interval, which
//! splitting halves: so a boundary in that order is a cursor that stays valid across splits and
//! merges.

use smallvec::SmallVec;

use crate::collections::find::find_lower;
use crate::collections::prefetch::prefetch;
use crate::collections::scan::cut;
use crate::collections::shared::SharedVec;

/// Average entries per page at which a page is added, or the last one merged.
const ENTRIES_MAX: usize = 24;
const ENTRIES_MIN: usize = 10;
/// Entries a page grows by.
const ENTRIES_STEP: usize = 4;
type Page = Vec<u64>;

const INDEXED: &str = "every member is in the index";

fn entry(tag: u32, leaf: u32) -> u64 {
    u64::from(leaf) << 32 | u64::from(tag)
}

/// A tag's page among `pages`, and how many of the tag's low bits select it.
#[inline]
fn page_of(tag: u32, pages: usize) -> (usize, u32) {
    // With 2^bits <= pages, the first pages - 2^bits ones have been split by one more bit.
    let bits = pages.ilog2();
    let split = pages - (1 << bits);
    let short = tag as usize & ((1 << bits) - 1);
    if short < split { (tag as usize & ((2 << bits) - 1), bits + 1) } else { (short, bits) }
}

/// A map of tags to leaves.
#[derive(Clone, Debug, Default)]
pub struct Index {
    pages: SharedVec<Page>,
    len: usize,
}

impl Index {
    /// Builds the index of `len` entries. `entries` is called twice and must return the same ones:
    /// the pages get their final number and size before the first is added.
    pub fn of<I: Iterator<Item = (u32, u32)>>(len: usize, entries: impl Fn() -> I) -> Index {
        let count = len.div_ceil(ENTRIES_MAX).max(1);
        let mut lens = vec![0; count];
        entries().for_each(|(tag, _)| lens[page_of(tag, count).0] += 1);
        let mut index = Index { pages: SharedVec::default(), len };
        lens.iter().for_each(|&len| index.pages.push(Page::with_capacity(len)));
        entries().for_each(|(tag, leaf)| index.pages[page_of(tag, count).0].push(entry(tag, leaf)));
        index
    }

    /// Whether `is` returns true for a tag with several entries; it gets their leaves, without
    /// duplicates.
    pub fn any_collision(&self, mut is: impl FnMut(u32, &[u32]) -> bool) -> bool {
        let (mut sorted, mut leaves) = (Page::new(), Vec::new());
        self.pages.iter().any(|page| {
            sorted.clear();
            sorted.extend(page.iter().map(|entry| entry.rotate_left(32)));
            sorted.sort_unstable();
            let same = sorted.chunk_by(|one, other| one >> 32 == other >> 32);
            same.filter(|same| same.len() > 1).any(|same| {
                leaves.clear();
                leaves.extend(same.iter().map(|&entry| entry as u32));
                leaves.dedup();
                is((same[0] >> 32) as u32, &leaves)
            })
        })
    }

    /// The page of a tag, and how many of the tag's low bits chose it. There is at least one page.
    #[inline]
    fn page_of(&self, tag: u32) -> (usize, u32) {
        page_of(tag, self.pages.len())
    }

    /// The first result that is not None for an entry with this tag: its place in the page, and its
    /// leaf, which comes once for each such member.
    #[inline(always)]
    pub fn find<R>(&self, tag: u32, is: impl Fn((usize, u32)) -> Option<R>) -> Option<R> {
        if self.pages.is_empty() {
            return None;
        }
        let page = &self.pages[self.page_of(tag).0];
        find_lower(page, tag, |place, entry| is((place, (entry >> 32) as u32)))
    }

    /// Prefetches the address of a tag's page.
    #[inline]
    pub fn prefetch_place(&self, tag: u32) {
        self.pages.prefetch(self.page_of(tag).0);
    }

    /// Prefetches a tag's page.
    #[inline]
    pub fn prefetch_page(&self, tag: u32) {
        let page = &self.pages[self.page_of(tag).0];
        for line in page.chunks(8).take(4) {
            prefetch(line.as_ptr().addr());
        }
    }

    pub fn insert(&mut self, tag: u32, leaf: u32) {
        if self.len >= self.pages.len() * ENTRIES_MAX {
            self.add_page();
        }
        let number = self.page_of(tag).0;
        let page = &mut self.pages[number];
        if page.len() == page.capacity() {
            page.reserve_exact(ENTRIES_STEP);
        }
        page.push(entry(tag, leaf));
        self.len += 1;
    }

    /// Removes one member with this tag from a leaf.
    pub fn remove(&mut self, tag: u32, leaf: u32) {
        let number = self.page_of(tag).0;
        let page = &mut self.pages[number];
        let is = |at, found| (found == entry(tag, leaf)).then_some(at);
        page.swap_remove(find_lower(page, tag, is).expect(INDEXED));
        if page.capacity() >= page.len() + 2 * ENTRIES_STEP {
            page.shrink_to(page.len().next_multiple_of(ENTRIES_STEP));
        }
        self.len -= 1;
        if self.len < (self.pages.len() - 1) * ENTRIES_MIN {
            self.merge_last_page();
        }
    }

    /// Updates the leaf of one member with this tag.
    #[inline]
    pub fn relocate(&mut self, tag: u32, from: u32, to: u32) {
        let number = self.page_of(tag).0;
        let page = &mut self.pages[number];
        let is = |at, found| (found == entry(tag, from)).then_some(at);
        let at = find_lower(page, tag, is).expect(INDEXED);
        page[at] = entry(tag, to);
    }
    /// The same where the place of the entry in its page is known: none was added or removed since
    /// it was found.
    /// was found.
    #[inline]
    pub fn relocate_at(&mut self, tag: u32, place: usize, from: u32, to: u32) {
        let number = self.page_of(tag).0;
        let found = &mut self.pages[number][place];
        if *found == entry(tag, from) {
            *found = entry(tag, to);
        } else {
            self.relocate(tag, from, to);
        }
    }

    fn add_page(&mut self) {
        let mut new = Page::new();
        if !self.pages.is_empty() {
            let bits = self.pages.len().ilog2();
            let bit = 1u64 << bits;
            let number = self.pages.len() - (1 << bits);
            let old = std::mem::take(&mut self.pages[number]);
            let moving = old.iter().filter(|&&entry| entry & bit != 0).count();
            let mut kept = Page::with_capacity(old.len() - moving);
            new.reserve_exact(moving);
            for entry in old {
                if entry & bit != 0 { new.push(entry) } else { kept.push(entry) }
            }
            self.pages[number] = kept;
        }
        self.pages.push(new);
    }

    fn merge_last_page(&mut self) {
        if self.pages.len() < 2 {
            return;
        }
        let Some(last) = self.pages.pop() else { return };
        let number = self.pages.len() - (1 << self.pages.len().ilog2());
        let page = &mut self.pages[number];
        page.reserve_exact(last.len());
        page.extend_from_slice(&last);
    }

    /// Visits the entries of one page from a boundary on, each pair of tag and leaf once, at most
    /// about `most` (at least 1, and all of one tag); returns the next boundary, 0 at the end. A
    /// boundary is a bit-reversed tag.
    pub fn scan(&self, boundary: u32, most: usize, mut visit: impl FnMut(u32, u32)) -> u32 {
        if self.pages.is_empty() {
            return 0;
        }
        let (number, bits) = self.page_of(boundary.reverse_bits());
        let page = &self.pages[number];
        let width = 1u64 << (32 - bits);
        let mut next = (u64::from(boundary) / width + 1) * width;
        if page.len() > most {
            let places = page.iter().map(|&entry| u64::from((entry as u32).reverse_bits()));
            let behind = places.filter(|&place| place >= boundary.into());
            let mut behind = SmallVec::<[u64; 64]>::from_iter(behind);
            next = cut(&mut behind, most, 0).unwrap_or(next);
        }
        for (at, &entry) in page.iter().enumerate() {
            let tag = entry as u32;
            let is_wanted = (boundary.into()..next).contains(&u64::from(tag.reverse_bits()));
            if is_wanted && !page[..at].contains(&entry) {
                visit(tag, (entry >> 32) as u32);
            }
        }
        next as u32
    }

    pub fn heap_bytes(&self) -> usize {
        // An estimate from the pages' number: most are nearly full.
        self.pages.heap_bytes()
            + (self.len + self.pages.len() * ENTRIES_STEP / 2) * size_of::<u64>()
    }
}
