//! A bucket: eight slots in one cache line; a block: sixteen buckets in one kilobyte.
//!
//! ```text
//!   | tag u16 x 8 | address bits 32-47, u16 x 8 | address bits 0-31, u32 x 8 |      64 bytes
//! ```
//!
//! Tag 0 is an empty slot. Entries' addresses are divisible by 8: the lowest bit is set if the
//! entry has a deadline, so that others can be skipped without a cache miss. The second bit is set
//! if the running iteration has shown the entry (`walk.rs`); it moves with the entry.

use super::entry::RawEntry;
use crate::collections::prefetch::prefetch;

/// Slots of a bucket.
pub(super) const SLOTS: usize = 8;
/// Buckets of a block.
pub(super) const BLOCK_BUCKETS: usize = 16;

const VOLATILE: u64 = 1;
const SHOWN: u64 = 2;
/// The bytes that a look-up reads of most entries.
const BEGINNING: usize = 48;

/// An entry's address, whether it has a deadline, and whether the iteration has shown it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Link(u64);

impl Link {
    #[inline]
    pub(super) fn new(entry: RawEntry, volatile: bool) -> Link {
        let address = entry.to_address();
        assert!(
            address >> 48 == 0 && address & 7 == 0,
            "the allocator gave an address beyond 48 bits"
        );
        Link(address | if volatile { VOLATILE } else { 0 })
    }

    #[inline]
    pub(super) fn is_volatile(self) -> bool {
        self.0 & VOLATILE != 0
    }

    #[inline]
    pub(super) fn is_shown(self) -> bool {
        self.0 & SHOWN != 0
    }

    /// The same link, marked as shown or not.
    #[inline]
    pub(super) fn marked(self, is_shown: bool) -> Link {
        Link(self.0 & !SHOWN | if is_shown { SHOWN } else { 0 })
    }

    /// The entry. The caller must know that it still exists: a link in an occupied slot does.
    #[inline]
    pub(super) fn entry(self) -> RawEntry {
        // SAFETY: a link is made only from an entry; those who read or free it vouch for its being
        // alive.
        unsafe { RawEntry::from_address(self.0 & !7) }
    }

    /// Prefetches the entry's beginning: the header and the key, which often lie in two cache
    /// lines.
    #[inline]
    pub(super) fn prefetch(self) {
        let address = (self.0 & !7) as usize;
        prefetch(address);
        prefetch(address + BEGINNING);
    }
}

#[repr(C, align(64))]
pub(super) struct Bucket {
    tags: [u16; SLOTS],
    high: [u16; SLOTS],
    low: [u32; SLOTS],
}

#[repr(C, align(64))]
pub(super) struct Block(pub(super) [Bucket; BLOCK_BUCKETS]);

impl Block {
    pub(super) const EMPTY: Block = Block(
        [const { Bucket { tags: [0; SLOTS], high: [0; SLOTS], low: [0; SLOTS] } }; BLOCK_BUCKETS],
    );
}

impl Bucket {
    /// A bit mask of the slots with this tag.
    #[inline]
    #[cfg(target_arch = "x86_64")]
    pub(super) fn matches(&self, tag: u16) -> u32 {
        use std::arch::x86_64::{
            __m128i, _mm_cmpeq_epi16, _mm_loadu_si128, _mm_movemask_epi8, _mm_packs_epi16,
            _mm_set1_epi16, _mm_setzero_si128,
        };
        // SAFETY: SSE2 is part of every x86-64; the load reads the sixteen bytes of the tags.
        unsafe {
            let tags = _mm_loadu_si128(self.tags.as_ptr().cast::<__m128i>());
            let equal = _mm_cmpeq_epi16(tags, _mm_set1_epi16(tag as i16));
            _mm_movemask_epi8(_mm_packs_epi16(equal, _mm_setzero_si128())) as u32
        }
    }

    /// A bit mask of the slots with this tag.
    #[inline]
    #[cfg(not(target_arch = "x86_64"))]
    pub(super) fn matches(&self, tag: u16) -> u32 {
        self.matches_portable(tag)
    }

    #[inline]
    #[cfg(any(test, not(target_arch = "x86_64")))]
    fn matches_portable(&self, tag: u16) -> u32 {
        self.tags.iter().rev().fold(0, |bits, &other| bits << 1 | u32::from(other == tag))
    }

    #[inline]
    pub(super) fn empty_slots(&self) -> u32 {
        self.matches(0)
    }

    #[inline]
    pub(super) fn occupied(&self) -> Bits {
        Bits(!self.matches(0) & 0xff)
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.matches(0) == 0
    }

    #[inline]
    pub(super) fn tag(&self, slot: usize) -> u16 {
        self.tags[slot]
    }

    #[inline]
    pub(super) fn link(&self, slot: usize) -> Link {
        Link(u64::from(self.high[slot]) << 32 | u64::from(self.low[slot]))
    }

    #[inline]
    pub(super) fn set(&mut self, slot: usize, tag: u16, link: Link) {
        self.tags[slot] = tag;
        self.set_link(slot, link);
    }

    #[inline]
    pub(super) fn set_link(&mut self, slot: usize, link: Link) {
        self.high[slot] = (link.0 >> 32) as u16;
        self.low[slot] = link.0 as u32;
    }

    /// Marks the entry in a slot as shown.
    #[inline]
    pub(super) fn mark(&mut self, slot: usize) {
        self.low[slot] |= SHOWN as u32;
    }

    /// Marks no entry as shown.
    #[inline]
    pub(super) fn clear_marks(&mut self) {
        self.low.iter_mut().for_each(|low| *low &= !(SHOWN as u32));
    }

    #[inline]
    pub(super) fn clear_slot(&mut self, slot: usize) {
        self.tags[slot] = 0;
    }

    #[inline]
    pub(super) fn clear(&mut self) {
        self.tags = [0; SLOTS];
    }
}

/// Iterates over the set bits of a number, lowest first.
#[derive(Clone, Copy)]
pub(super) struct Bits(pub(super) u32);

impl Iterator for Bits {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let bit = self.0.trailing_zeros() as usize;
        self.0 &= self.0 - 1;
        Some(bit)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_vector_comparison_agrees_with_the_portable_one(tags in any::<[u16; SLOTS]>(), small in any::<[u8; SLOTS]>(), tag in 0u16..4) {
            let mut bucket = Bucket { tags, high: [0; SLOTS], low: [0; SLOTS] };
            prop_assert_eq!(bucket.matches(tags[3]), bucket.matches_portable(tags[3]));
            bucket.tags = small.map(|tag| u16::from(tag % 4));
            prop_assert_eq!(bucket.matches(tag), bucket.matches_portable(tag));
        }
    }
}
