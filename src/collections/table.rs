//! The hash table of a keyspace: extendible hashing, with all positions ordered by the key's hash.
//!
//! Keys come with their hash (computed once by the caller, who prefetches whole batches with it),
//! entries are referred to by [`Slot`]. The table owns keys, values, deadlines and access bits, one
//! allocation each (`entry.rs`); it does not know values, types, or the effects of a key's expiry.
//!
//! ```text
//!   directory: Vec<u32>       the top `depth` bits of the hash -> segment number
//!   chunks of 64 segments     never move
//!   segment                   1..=7 blocks of 16 buckets; all hashes whose top `segment.depth` bits are its prefix
//!   bucket                    8 slots in one cache line (`bucket.rs`)
//!   tag                       the 16 hash bits after the segment's depth bits (0 counts as 1: 0 is an empty slot)
//!   home bucket               tag * buckets / 65536; if full, the next one, around the segment's end
//! ```
//!
//! Growth: a segment at 80% gains a block, redistributed by tags alone; at seven blocks it splits
//! in two. When emptied, it drops blocks and merges with its sibling. No operation touches more
//! than two segments, except doubling and halving the directory (4 bytes a segment), dropping a
//! cleared table and `set_wall_offset`. The directory's size is bounded by the number of segments:
//! if hashes collide, by a bug or a leaked secret, a segment grows beyond seven blocks instead of
//! splitting. That is slow, but works.
//!
//! Invariant of look-up: an entry is in its home bucket, or all buckets from there to the one
//! before its own are full. Removal restores it by moving entries back, so a look-up ends at the
//! first bucket that is not full.
//!
//! # Deadlines
//! A tree of minima over the table: for each bucket the earliest deadline in it (4 bytes a bucket,
//! created when a segment gets its first deadline), for each segment, each chunk, and the whole
//! table. These are *hints*: possibly too early, never too late. Adding a deadline lowers them;
//! removing or extending one leaves them, and `find_due` corrects a hint when its time has come.
//! Keys that are set and deleted a million times leave no garbage. Hints are milliseconds of the
//! boot-time clock relative to `base_ms`, which `find_due` advances every 24 days.
//!
//! # SCAN
//! The cursor is a boundary in the order of hashes, which no growth, split, shrinking or merge
//! changes. So a key that is present from the first call to the last is visited exactly once.

#![allow(unsafe_code)] // entries are allocations of exactly their size behind 48-bit addresses: no safe type is

mod bucket;
mod deadlines;
mod entry;
mod growth;
mod loans;
mod slots;
#[cfg(test)]
mod tests;
mod walk;

use std::array;
use std::iter;
use std::marker::PhantomData;
use std::mem;
use std::num::NonZeroU64;

use smallvec::SmallVec;

use crate::clock::{Deadline, Now};
use crate::collections::hash::KeyHasher;

use super::lent::Loans;
use super::prefetch::prefetch;
use super::scan::cut;
use bucket::{BLOCK_BUCKETS, Bits, Block, Bucket, Link, SLOTS};
pub use deadlines::KEPT_MS;
use entry::RawEntry;
pub use entry::{Entry, KIND_MAX, NewValue, Owned, ValueRef};
use slots::SlotIndex;
pub use slots::SlotList;
use walk::{Shown, WalkState};

/// The most blocks of a segment that can split. Seven pointers and two numbers fill a cache line.
const BLOCKS_MAX: usize = 7;
/// Entries per block at which a segment grows: 80% of the slots.
const BLOCK_FULL: usize = BLOCK_BUCKETS * SLOTS * 8 / 10;
/// Entries per block below which a segment shrinks: 40%.
const BLOCK_SPARSE: usize = BLOCK_FULL / 2;
/// Entries per block after shrinking: 60%, far from both growing and shrinking again.
const BLOCK_EASY: usize = BLOCK_FULL * 3 / 4;
/// Two siblings with at most this many entries merge: 60% of the slots of a segment of four blocks.
const MERGE_MAX: usize = 3 * BLOCK_FULL;
const CHUNK: usize = 64;
/// The directory has at most 2^26 slots, 256 MiB: enough for 2^35 keys.
const DEPTH_MAX: u32 = 26;
/// Directory slots per segment beyond which the directory does not double. Uniform hashes need 2 to
/// 4.
const DIRECTORY_SLACK: usize = 32;
/// A cursor is the upper 53 bits of a hash, as doubles in JavaScript are exact to 53 bits.
const CURSOR_SHIFT: u32 = 11;
/// The access bits of entries that [`Table::pinned_len`] counts: all are set.
pub const PINNED: u32 = 0xff_ffff;

/// No deadline.
const NEVER: u32 = u32::MAX;
/// Later than a hint can express.
const FAR: u32 = u32::MAX - 1;
/// The largest age of the base of hints: half of their range.
const BASE_AGE_MAX_MS: i64 = 1 << 31;

/// The position of an entry. Valid until the next insert or remove (and what calls them: `clear`).
/// Used later, it may name another entry or panic; with debug assertions it always panics, as does
/// a slot of another table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slot {
    /// The segment's number; in the lower half one plus the number of the slot in it. Never 0, so
    /// that an optional slot fits a register.
    place: NonZeroU64,
    #[cfg(debug_assertions)]
    generation: Generation,
}

impl Slot {
    #[inline]
    fn segment(self) -> u32 {
        (self.place.get() >> 32) as u32
    }

    #[inline]
    fn position(self) -> usize {
        (self.place.get() as u32 - 1) as usize
    }

    #[inline]
    fn bucket(self) -> usize {
        self.position() / SLOTS
    }

    #[inline]
    fn slot(self) -> usize {
        self.position() % SLOTS
    }
}

/// A number for each state of a table's positions, unique among the last four billion states of all
/// tables.
#[cfg(debug_assertions)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Generation(u32);

#[cfg(debug_assertions)]
impl Generation {
    fn next() -> Generation {
        use std::sync::atomic::{AtomicU32, Ordering};
        static LAST: AtomicU32 = AtomicU32::new(0);
        Generation(LAST.fetch_add(1, Ordering::Relaxed))
    }
}

/// The part of a segment that look-ups read, in one cache line.
#[repr(C, align(64))]
struct Segment {
    blocks: [Option<Box<Block>>; BLOCKS_MAX],
    /// Depth in the lowest 5 bits, number of blocks above.
    shape: u32,
    len: u32,
}

impl Segment {
    fn new() -> Segment {
        Segment { blocks: [const { None }; BLOCKS_MAX], shape: 0, len: 0 }
    }

    #[inline]
    fn depth(&self) -> u32 {
        self.shape & 31
    }

    #[inline]
    fn block_count(&self) -> usize {
        (self.shape >> 5) as usize
    }

    #[inline]
    fn buckets(&self) -> usize {
        self.block_count() * BLOCK_BUCKETS
    }

    fn set_shape(&mut self, depth: u32, blocks: usize) {
        self.shape = (blocks as u32) << 5 | depth;
    }

    #[inline]
    fn home(&self, tag: u16) -> usize {
        (usize::from(tag) * self.buckets()) >> 16
    }

    #[inline]
    fn after(&self, bucket: usize) -> usize {
        if bucket + 1 == self.buckets() { 0 } else { bucket + 1 }
    }

    /// Distance of a bucket from a tag's home.
    #[inline]
    fn displacement(&self, tag: u16, bucket: usize) -> usize {
        self.distance(self.home(tag), bucket)
    }

    #[inline]
    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.buckets() - from }
    }
}

/// The part of a segment that only changes need.
struct Annex {
    /// The hash bits that all its entries share: as many as its depth.
    prefix: u32,
    /// Entries with a deadline.
    volatile: u32,
    /// For each bucket a lower bound of its earliest deadline. Empty until an entry has one.
    hints: Box<[u32]>,
    /// Blocks beyond the seventh: only for hashes that cannot be split.
    extra: Vec<Block>,
    /// The part of it that the iteration has shown.
    shown: Shown,
}

struct Chunk {
    segments: [Segment; CHUNK],
    /// Lower bounds of the segments' earliest deadlines.
    minima: [u32; CHUNK],
    annexes: [Annex; CHUNK],
}

impl Chunk {
    fn new() -> Box<Chunk> {
        Box::new(Chunk {
            segments: array::from_fn(|_| Segment::new()),
            minima: [NEVER; CHUNK],
            annexes: array::from_fn(|_| Annex {
                prefix: 0,
                volatile: 0,
                hints: Box::default(),
                extra: Vec::new(),
                shown: Shown::default(),
            }),
        })
    }

    #[inline]
    fn bucket(&self, segment: usize, bucket: usize) -> &Bucket {
        let block = bucket / BLOCK_BUCKETS;
        let block = match self.segments[segment].blocks.get(block) {
            Some(block) => block.as_ref().expect("a segment has all blocks that it counts"),
            None => &self.annexes[segment].extra[block - BLOCKS_MAX],
        };
        &block.0[bucket % BLOCK_BUCKETS]
    }

    #[inline]
    fn bucket_mut(&mut self, segment: usize, bucket: usize) -> &mut Bucket {
        let block = bucket / BLOCK_BUCKETS;
        let block = match self.segments[segment].blocks.get_mut(block) {
            Some(block) => block.as_mut().expect("a segment has all blocks that it counts"),
            None => &mut self.annexes[segment].extra[block - BLOCKS_MAX],
        };
        &mut block.0[bucket % BLOCK_BUCKETS]
    }

    fn hint(&self, segment: usize, bucket: usize) -> u32 {
        self.annexes[segment].hints.get(bucket).copied().unwrap_or(NEVER)
    }
}

/// An entry being moved.
#[derive(Clone, Copy)]
struct Moving {
    link: Link,
    tag: u16,
    hint: u32,
}

#[derive(Clone, Copy)]
enum Hashing {
    Keyed(KeyHasher),
    #[cfg(test)]
    Chosen(fn(&[u8]) -> u64),
}

/// The hash table. `O` is the type of values that are not plain bytes.
pub struct Table<O> {
    hashing: Hashing,
    /// `1 << depth` segment numbers; empty until the table has a key.
    directory: Vec<u32>,
    depth: u32,
    /// Number of segments.
    segments: u32,
    /// Number of segments of each depth, to know when the directory can be halved.
    depth_counts: [u32; DEPTH_MAX as usize + 1],
    chunks: Vec<Box<Chunk>>,
    /// Lower bounds of the chunks' earliest deadlines, and of the whole table's.
    chunk_minima: Vec<u32>,
    minimum: u32,
    /// The chunk where the last due key was found: the next one is probably there too.
    due_chunk: usize,
    /// The base of hints: boot-time milliseconds.
    base_ms: i64,
    wall_offset_ms: i64,
    len: usize,
    volatile: usize,
    /// Entries whose access bits are [`PINNED`].
    pinned: usize,
    /// Bytes of blocks and hints.
    segment_bytes: usize,
    /// Buffers for rebuilding.
    moving: [Vec<Moving>; 2],
    fill: Vec<u8>,
    walk: WalkState,
    /// The keys of each hash slot, at a cluster's node.
    slots: Option<Box<SlotIndex>>,
    /// Values that are lent, by their entries' addresses (`loans.rs`).
    loans: Loans,
    /// Changed by each insert and remove: older slots are stale.
    #[cfg(debug_assertions)]
    generation: Generation,
    objects: PhantomData<Box<O>>,
}

impl<O> Table<O> {
    /// An empty table, which owns no memory. `hasher` must be the one that computes the hashes
    /// given to the methods; `wall_offset_ms` is [`Now::wall_offset_ms`].
    pub fn new(hasher: KeyHasher, wall_offset_ms: i64) -> Self {
        Table::with_hashing(Hashing::Keyed(hasher), wall_offset_ms)
    }

    fn with_hashing(hashing: Hashing, wall_offset_ms: i64) -> Self {
        Table {
            hashing,
            directory: Vec::new(),
            depth: 0,
            segments: 0,
            depth_counts: [0; DEPTH_MAX as usize + 1],
            chunks: Vec::new(),
            chunk_minima: Vec::new(),
            minimum: NEVER,
            due_chunk: 0,
            base_ms: 0,
            wall_offset_ms,
            len: 0,
            volatile: 0,
            pinned: 0,
            segment_bytes: 0,
            moving: [Vec::new(), Vec::new()],
            fill: Vec::new(),
            walk: WalkState::default(),
            slots: None,
            loans: Loans::default(),
            #[cfg(debug_assertions)]
            generation: Generation::next(),
            objects: PhantomData,
        }
    }

    #[inline]
    fn slot(&self, segment: u32, bucket: usize, slot: usize) -> Slot {
        let place = u64::from(segment) << 32 | (bucket * SLOTS + slot + 1) as u64;
        Slot {
            place: NonZeroU64::new(place).expect("the lower half is not 0"),
            #[cfg(debug_assertions)]
            generation: self.generation,
        }
    }

    /// Makes all existing slots stale: entries were moved, added or removed.
    #[inline]
    fn outdate_slots(&mut self) {
        #[cfg(debug_assertions)]
        {
            self.generation = Generation::next();
        }
    }

    /// Number of keys, including expired ones.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of keys with a deadline.
    pub fn volatile_len(&self) -> usize {
        self.volatile
    }

    /// The number of keys whose access bits are [`PINNED`].
    pub fn pinned_len(&self) -> usize {
        self.pinned
    }

    /// Bytes of directory, segments and blocks, without entries.
    pub fn memory(&self) -> usize {
        self.directory.capacity() * size_of::<u32>()
            + self.chunks.len() * size_of::<Chunk>()
            + self.segment_bytes
            + self
                .moving
                .iter()
                .map(|moving| moving.capacity() * size_of::<Moving>())
                .sum::<usize>()
    }

    pub fn hash(&self, key: &[u8]) -> u64 {
        match self.hashing {
            Hashing::Keyed(hasher) => hasher.hash(key),
            #[cfg(test)]
            Hashing::Chosen(hash) => hash(key),
        }
    }

    #[inline]
    fn segment_of(&self, hash: u64) -> Option<u32> {
        self.directory.get(prefix_of(hash, self.depth)).copied()
    }

    #[inline]
    fn chunk(&self, id: u32) -> (&Chunk, usize) {
        (&self.chunks[id as usize / CHUNK], id as usize % CHUNK)
    }

    #[inline]
    fn chunk_mut(&mut self, id: u32) -> (&mut Chunk, usize) {
        (&mut self.chunks[id as usize / CHUNK], id as usize % CHUNK)
    }

    #[inline]
    fn segment(&self, id: u32) -> &Segment {
        let (chunk, index) = self.chunk(id);
        &chunk.segments[index]
    }

    // Look-up

    /// The key's position. `hash` is the key's hash by this table's hasher.
    #[inline]
    pub fn find(&self, hash: u64, key: &[u8]) -> Option<Slot> {
        let id = self.segment_of(hash)?;
        let (chunk, index) = self.chunk(id);
        let segment = &chunk.segments[index];
        let tag = tag_of(hash, segment.depth());
        let mut at = segment.home(tag);
        for _ in 0..segment.buckets() {
            let bucket = chunk.bucket(index, at);
            for slot in Bits(bucket.matches(tag)) {
                // SAFETY: an occupied slot's entry is alive while the table is borrowed.
                if unsafe { bucket.link(slot).entry().key() } == key {
                    return Some(self.slot(id, at, slot));
                }
            }
            if !bucket.is_full() {
                return None;
            }
            at = segment.after(at);
        }
        None
    }

    fn link(&self, slot: Slot) -> Link {
        #[cfg(debug_assertions)]
        assert_eq!(slot.generation, self.generation, "a slot was used after its table had changed");
        let (chunk, index) = self.chunk(slot.segment());
        let bucket = chunk.bucket(index, slot.bucket());
        assert!(bucket.tag(slot.slot()) != 0, "a slot is used while it is valid");
        bucket.link(slot.slot())
    }

    /// The entry at a position.
    #[inline]
    pub fn entry(&self, slot: Slot) -> Entry<'_, O> {
        // SAFETY: an occupied slot's entry is alive and unchanged while the table is borrowed, and
        // has this table's `O`.
        unsafe { Entry::new(self.link(slot).entry()) }
    }

    /// The string at a position, for changing in place; `None` for an object.
    pub fn bytes_mut(&mut self, slot: Slot) -> Option<&mut [u8]> {
        let entry = self.link(slot).entry();
        self.end_loans_of(entry);
        // SAFETY: as in `entry`, and the table is borrowed mutably.
        unsafe { entry.bytes_mut() }
    }

    /// The object at a position; `None` for a string.
    pub fn object_mut(&mut self, slot: Slot) -> Option<&mut O> {
        let entry = self.link(slot).entry();
        self.end_loans_of(entry);
        // SAFETY: as in `entry`, and the table is borrowed mutably.
        unsafe { entry.object_mut() }
    }

    /// Sets the lower 24 bits of `access` as the entry's access bits.
    pub fn set_access(&mut self, slot: Slot, access: u32) {
        let entry = self.link(slot).entry();
        self.pinned -= usize::from(entry.access() == PINNED);
        entry.update_access(|_| access);
        self.pinned += usize::from(entry.access() == PINNED);
    }

    /// Sets the lower 24 bits of what `update` makes of the entry's access bits. It must leave
    /// [`PINNED`] as it is, and make it of nothing else.
    #[inline]
    pub fn update_access(&mut self, slot: Slot, update: impl FnOnce(u32) -> u32) {
        self.link(slot).entry().update_access(update);
    }

    // Prefetching: each step for a whole batch before the next one.

    /// Prefetches memory for a look-up of keys with these hashes.
    #[inline]
    pub fn prefetch(&self, hashes: impl Iterator<Item = u64> + Clone) {
        for stage in [
            Self::prefetch_directory,
            Self::prefetch_segment,
            Self::prefetch_bucket,
            Self::prefetch_entry,
        ] {
            hashes.clone().for_each(|hash| stage(self, hash));
        }
    }

    /// First step: the directory's slot.
    #[inline]
    pub fn prefetch_directory(&self, hash: u64) {
        if let Some(slot) = self.directory.get(prefix_of(hash, self.depth)) {
            prefetch(std::ptr::from_ref(slot).addr());
        }
    }

    /// Second step: the segment.
    #[inline]
    pub fn prefetch_segment(&self, hash: u64) {
        if let Some(id) = self.segment_of(hash) {
            prefetch(std::ptr::from_ref(self.segment(id)).addr());
        }
    }

    /// Third step: the home bucket.
    #[inline]
    pub fn prefetch_bucket(&self, hash: u64) {
        if let Some(id) = self.segment_of(hash) {
            let (chunk, index) = self.chunk(id);
            let segment = &chunk.segments[index];
            let home = segment.home(tag_of(hash, segment.depth()));
            prefetch(std::ptr::from_ref(chunk.bucket(index, home)).addr());
        }
    }

    /// Fourth step: the entry that probably has the key.
    #[inline(always)]
    pub fn prefetch_entry(&self, hash: u64) {
        if let Some(id) = self.segment_of(hash) {
            let (chunk, index) = self.chunk(id);
            let segment = &chunk.segments[index];
            let tag = tag_of(hash, segment.depth());
            let mut at = segment.home(tag);
            // Some keys of a fuller segment are in the bucket after their own.
            for _ in 0..2 {
                let bucket = chunk.bucket(index, at);
                if let Some(slot) = Bits(bucket.matches(tag)).next() {
                    return bucket.link(slot).prefetch();
                }
                if !bucket.is_full() {
                    return;
                }
                at = segment.after(at);
            }
        }
    }

    /// The value of the entry that probably has the key, so that its memory can be prefetched next.
    #[inline]
    pub fn probable_value(&self, hash: u64) -> Option<ValueRef<'_, O>> {
        let (chunk, index) = self.chunk(self.segment_of(hash)?);
        let segment = &chunk.segments[index];
        let tag = tag_of(hash, segment.depth());
        let bucket = chunk.bucket(index, segment.home(tag));
        let slot = Bits(bucket.matches(tag)).next().filter(|slot| bucket.tag(*slot) != 0)?;
        // SAFETY: as in `entry`.
        Some(unsafe { Entry::<O>::new(bucket.link(slot).entry()) }.value())
    }

    // Changes

    /// Adds a new key. Returns its position.
    pub fn insert(
        &mut self,
        hash: u64,
        key: &[u8],
        value: NewValue<'_, O>,
        deadline: Option<Deadline>,
        access: u32,
    ) -> Slot {
        debug_assert!(self.find(hash, key).is_none(), "the key is absent");
        debug_assert_eq!(hash, self.hash(key), "the hash is this table's");
        if let Some(slots) = &mut self.slots {
            slots.add(hash, key);
        }
        self.insert_entry(hash, RawEntry::new(key, value, deadline, access), deadline)
    }

    /// Adds an entry with a new key. Returns its position.
    pub fn insert_owned(&mut self, hash: u64, entry: Owned<O>) -> Slot {
        debug_assert!(self.find(hash, entry.key()).is_none(), "the key is absent");
        if let Some(slots) = &mut self.slots {
            slots.add(hash, entry.key());
        }
        let deadline = entry.deadline();
        self.insert_entry(hash, entry.into_raw(), deadline)
    }

    fn insert_entry(&mut self, hash: u64, entry: RawEntry, deadline: Option<Deadline>) -> Slot {
        // It is newer than the iteration.
        let link = Link::new(entry, deadline.is_some()).marked(true);
        let id = self.make_room(hash);
        let (chunk, index) = self.chunk_mut(id);
        let segment = &mut chunk.segments[index];
        segment.len += 1;
        let tag = tag_of(hash, segment.depth());
        let mut at = segment.home(tag);
        let slot = loop {
            let bucket = chunk.bucket_mut(index, at);
            // The loop ends, as a fifth of the slots is empty.
            if let Some(slot) = Bits(bucket.empty_slots()).next() {
                bucket.set(slot, tag, link);
                break slot;
            }
            at = chunk.segments[index].after(at);
        };
        self.len += 1;
        self.pinned += usize::from(entry.access() == PINNED);
        if let Some(deadline) = deadline {
            self.count_volatile(id, 1);
            self.note(id, at, self.hint_of(deadline));
        }
        self.outdate_slots();
        self.slot(id, at, slot)
    }

    /// Replaces a key's value and deadline; key, access bits and position stay. Returns the old
    /// value if it was an object.
    pub fn replace(
        &mut self,
        slot: Slot,
        value: NewValue<'_, O>,
        deadline: Option<Deadline>,
    ) -> Option<Box<O>> {
        let old = self.link(slot);
        self.end_loans_of(old.entry());
        // SAFETY: the entry is alive and of this `O`; its slot gets the new place at once.
        let (entry, object) = unsafe { old.entry().replace(value, deadline) };
        self.relink(slot, old, entry, deadline);
        object
    }

    /// Replaces an entry by another one of the same key, and returns it; the position stays.
    pub fn exchange(&mut self, slot: Slot, entry: Owned<O>) -> Owned<O> {
        let old = self.link(slot);
        self.end_loans_of(old.entry());
        debug_assert_eq!(self.entry(slot).key(), entry.key());
        let deadline = entry.deadline();
        self.pinned += usize::from(entry.entry().access() == PINNED);
        self.pinned -= usize::from(old.entry().access() == PINNED);
        self.relink(slot, old, entry.into_raw(), deadline);
        // SAFETY: the entry was alive and of this `O`, and its slot leads to the other one now.
        unsafe { Owned::new(old.entry()) }
    }

    /// Sets, changes or removes a key's deadline; the position stays.
    pub fn set_deadline(&mut self, slot: Slot, deadline: Option<Deadline>) {
        let old = self.link(slot);
        self.end_loans_of(old.entry());
        // SAFETY: the entry is alive; its slot gets the new place at once.
        let entry = unsafe { old.entry().set_deadline(deadline) };
        self.relink(slot, old, entry, deadline);
    }

    /// Sets the length of a string and its kind and returns its bytes, padded with zeros. An object
    /// is replaced by a string of zeros. The position stays. The caller must limit `len`: running
    /// out of memory ends the process.
    pub fn resize_bytes(&mut self, slot: Slot, len: usize, kind: u8) -> &mut [u8] {
        let old = self.link(slot);
        self.end_loans_of(old.entry());
        let deadline = old.entry().deadline();
        let entry = match self.entry(slot).value() {
            // SAFETY: the entry is alive and a string; its slot gets the new place at once.
            ValueRef::Bytes { .. } => unsafe { old.entry().resize_bytes(len, kind) },
            ValueRef::Object(_) => {
                self.replace(slot, NewValue::Bytes { bytes: b"", kind }, deadline);
                return self.resize_bytes(slot, len, kind);
            }
        };
        self.relink(slot, old, entry, deadline);
        self.bytes_mut(slot).expect("a string was resized")
    }

    fn relink(&mut self, slot: Slot, old: Link, entry: RawEntry, deadline: Option<Deadline>) {
        let link = Link::new(entry, deadline.is_some()).marked(old.is_shown());
        if link != old {
            let (chunk, index) = self.chunk_mut(slot.segment());
            chunk.bucket_mut(index, slot.bucket()).set_link(slot.slot(), link);
        }
        match (old.is_volatile(), deadline) {
            (false, Some(_)) => self.count_volatile(slot.segment(), 1),
            (true, None) => self.count_volatile(slot.segment(), -1),
            _ => {}
        }
        if let Some(deadline) = deadline {
            self.note(slot.segment(), slot.bucket(), self.hint_of(deadline));
        }
    }

    fn count_volatile(&mut self, id: u32, change: i32) {
        let (chunk, index) = self.chunk_mut(id);
        let annex = &mut chunk.annexes[index];
        annex.volatile = annex.volatile.wrapping_add_signed(change);
        self.volatile = self.volatile.wrapping_add_signed(change as isize);
    }

    /// Removes a key.
    pub fn remove(&mut self, slot: Slot) -> Owned<O> {
        let link = self.link(slot);
        self.end_loans_of(link.entry());
        let (chunk, index) = self.chunk_mut(slot.segment());
        chunk.segments[index].len -= 1;
        Self::vacate(chunk, index, slot.bucket(), slot.slot());
        if link.is_volatile() {
            self.count_volatile(slot.segment(), -1);
        }
        self.len -= 1;
        self.pinned -= usize::from(link.entry().access() == PINNED);
        self.shrink(slot.segment());
        self.outdate_slots();
        // SAFETY: the entry was alive and of this `O`, and no slot leads to it any more.
        let owned: Owned<O> = unsafe { Owned::new(link.entry()) };
        if self.slots.is_some() {
            self.forget_in_slot(owned.key());
        }
        owned
    }

    /// Empties a slot. If its bucket was full, entries displaced from it move back.
    fn vacate(chunk: &mut Chunk, index: usize, bucket: usize, slot: usize) {
        let (mut hole_bucket, mut hole_slot) = (bucket, slot);
        let mut at = bucket;
        let mut was_full = chunk.bucket(index, bucket).is_full();
        chunk.bucket_mut(index, bucket).clear_slot(slot);
        while was_full {
            let segment = &chunk.segments[index];
            at = segment.after(at);
            let other = chunk.bucket(index, at);
            was_full = other.is_full();
            let gap = segment.distance(hole_bucket, at);
            let found =
                other.occupied().find(|&slot| segment.displacement(other.tag(slot), at) >= gap);
            if let Some(slot) = found {
                let (tag, link) = (other.tag(slot), other.link(slot));
                let hint = chunk.hint(index, at);
                chunk.bucket_mut(index, hole_bucket).set(hole_slot, tag, link);
                chunk.bucket_mut(index, at).clear_slot(slot);
                if link.is_volatile() {
                    let to = &mut chunk.annexes[index].hints[hole_bucket];
                    *to = hint.min(*to);
                }
                (hole_bucket, hole_slot) = (at, slot);
            }
        }
    }

    /// Empties the table at once. Dropping the returned value frees the content, in any thread.
    pub fn clear(&mut self) -> Drained<O> {
        Drained { _table: self.take() }
    }

    /// Moves the content to a table of its own.
    pub fn take(&mut self) -> Table<O> {
        self.loans = Loans::default();
        let mut empty = self.alike();
        empty.base_ms = self.base_ms;
        mem::replace(self, empty)
    }

    // Iteration

    /// Visits the keys of one home bucket, at most about `most` (at least 1, and all with the same
    /// cursor), from the cursor's position in the order of hashes on. Returns the next cursor, or 0
    /// at the end. Cursors are below 2^53; any other number ends the scan, and any number is safe.
    pub fn scan(&self, cursor: u64, most: usize, mut visit: impl FnMut(Entry<'_, O>)) -> u64 {
        if cursor >> (64 - CURSOR_SHIFT) != 0 {
            return 0;
        }
        let from = cursor << CURSOR_SHIFT;
        let Some(id) = self.segment_of(from) else {
            return 0;
        };
        let (chunk, index) = self.chunk(id);
        let segment = &chunk.segments[index];
        let depth = segment.depth();
        let unit = 1u64 << (48 - depth); // hashes that share a tag
        // Tag 1 also stands for 0: both are visited together.
        let first_tag = tag_of(from, depth);
        let home = segment.home(first_tag);
        let last_tag = if segment.len == 0 {
            u16::MAX
        } else {
            // The last tag with the same home. Beyond 65536 buckets each tag has its own.
            let last = ((home + 1) << 16).div_ceil(segment.buckets()) - 1;
            u16::try_from(last).unwrap_or(u16::MAX)
        };
        // The boundary may be within a tag, especially after merges: then that tag's entries are
        // compared by hash.
        let inexact = !from.is_multiple_of(unit) || first_tag == 1;
        let mut at = home;
        let mut found = SmallVec::<[(u16, Link); 2 * SLOTS]>::new();
        for _ in 0..segment.buckets() {
            let bucket = chunk.bucket(index, at);
            for slot in bucket.occupied() {
                let tag = bucket.tag(slot);
                if (first_tag..=last_tag).contains(&tag) {
                    bucket.link(slot).prefetch();
                    found.push((tag, bucket.link(slot)));
                }
            }
            if !bucket.is_full() {
                break;
            }
            at = segment.after(at);
        }
        // SAFETY: an occupied slot's entry is alive and unchanged while the table is borrowed.
        let entry = |link: Link| unsafe { Entry::new(link.entry()) };
        if found.len() > most {
            let hashes = found.iter().map(|&(_, link)| self.hash(entry(link).key()));
            let hashes = SmallVec::<[u64; 2 * SLOTS]>::from_iter(hashes);
            let mut places = hashes.clone();
            places.retain(|hash| *hash >= from);
            if let Some(next) = cut(&mut places, most, CURSOR_SHIFT) {
                for (&hash, &(_, link)) in hashes.iter().zip(&found) {
                    if hash >= from && hash >> CURSOR_SHIFT < next {
                        visit(entry(link));
                    }
                }
                return next;
            }
        }
        for (tag, link) in found {
            if tag > first_tag || !inexact || self.hash(entry(link).key()) >= from {
                visit(entry(link));
            }
        }
        let last = from & !(u64::MAX >> depth) | u64::from(last_tag) << (48 - depth) | (unit - 1);
        last.wrapping_add(1) >> CURSOR_SHIFT
    }

    /// All entries, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = Entry<'_, O>> {
        // SAFETY: an occupied slot's entry is alive and unchanged while the table is borrowed.
        self.links().map(|link| unsafe { Entry::new(link.entry()) })
    }

    /// The links of all entries; prefetches those of the next bucket.
    fn links(&self) -> impl Iterator<Item = Link> {
        (0..self.segments).flat_map(move |id| {
            let (chunk, index) = self.chunk(id);
            let buckets = chunk.segments[index].buckets();
            (0..buckets).flat_map(move |at| {
                if at + 1 < buckets {
                    let next = chunk.bucket(index, at + 1);
                    next.occupied().for_each(|slot| next.link(slot).prefetch());
                }
                let bucket = chunk.bucket(index, at);
                bucket.occupied().map(|slot| bucket.link(slot))
            })
        })
    }

    /// A random key, uniformly.
    pub fn random(&self) -> Option<Slot> {
        if self.len == 0 {
            return None;
        }
        // Rejection sampling, so that all slots of all segments are equally likely.
        let buckets =
            if self.segments == 1 { self.segment(0).buckets() } else { BLOCKS_MAX * BLOCK_BUCKETS };
        for _ in 0..128 {
            let id = fastrand::u32(0..self.segments);
            let (at, slot) = (fastrand::usize(0..buckets), fastrand::usize(0..SLOTS));
            let (chunk, index) = self.chunk(id);
            let segment = &chunk.segments[index];
            if segment.block_count() > BLOCKS_MAX {
                break;
            }
            if at < segment.buckets() && chunk.bucket(index, at).tag(slot) != 0 {
                return Some(self.slot(id, at, slot));
            }
        }
        // Less than a slot in thirty is occupied, or hashes collide: count to a random rank,
        // segment by segment.
        let mut rank = fastrand::usize(0..self.len);
        for id in 0..self.segments {
            let (chunk, index) = self.chunk(id);
            let segment = &chunk.segments[index];
            if rank >= segment.len as usize {
                rank -= segment.len as usize;
                continue;
            }
            for at in 0..segment.buckets() {
                let occupied = chunk.bucket(index, at).occupied();
                match occupied.clone().nth(rank) {
                    Some(slot) => return Some(self.slot(id, at, slot)),
                    None => rank -= occupied.count(),
                }
            }
        }
        None
    }

    /// Visits up to `count` adjacent keys from a random position on (adjacent keys only have
    /// similar hashes), optionally only those with a deadline. Fewer if there are not enough.
    pub fn sample(
        &self,
        count: usize,
        volatile_only: bool,
        mut visit: impl FnMut(Slot, Entry<'_, O>),
    ) {
        let mut left = count.min(if volatile_only { self.volatile } else { self.len });
        if left == 0 {
            return;
        }
        let start = fastrand::u32(0..self.segments);
        let start_at = fastrand::usize(0..self.segment(start).buckets());
        // Once around, ending with the first part of the first segment.
        let mut id = start;
        let mut range = start_at..self.segment(start).buckets();
        for _ in 0..=self.segments {
            let (chunk, index) = self.chunk(id);
            let hint = self.chunk_minima[id as usize / CHUNK];
            if !volatile_only || hint != NEVER && chunk.annexes[index].volatile > 0 {
                for at in range {
                    if volatile_only && chunk.hint(index, at) == NEVER {
                        continue;
                    }
                    let bucket = chunk.bucket(index, at);
                    for slot in bucket.occupied() {
                        let link = bucket.link(slot);
                        if volatile_only && !link.is_volatile() {
                            continue;
                        }
                        // SAFETY: an occupied slot's entry is alive and unchanged while the table
                        // is borrowed.
                        visit(self.slot(id, at, slot), unsafe { Entry::new(link.entry()) });
                        left -= 1;
                        if left == 0 {
                            return;
                        }
                    }
                }
            }
            id = if id + 1 == self.segments { 0 } else { id + 1 };
            range = 0..if id == start { start_at } else { self.segment(id).buckets() };
        }
    }
}

impl<O> Drop for Table<O> {
    fn drop(&mut self) {
        self.loans.end_all();
        // SAFETY: the table owned the entries, and nobody looks at its slots again.
        self.links().for_each(|link| unsafe { link.entry().free::<O>() });
    }
}

/// A table's former content. Dropping it frees all, in any thread.
pub struct Drained<O> {
    _table: Table<O>,
}

/// The top `depth` bits of a hash.
#[inline]
fn prefix_of(hash: u64, depth: u32) -> usize {
    // In two steps, because a shift by 64 bits (depth 0) overflows.
    (hash >> 1 >> (63 - depth)) as usize
}

/// The 16 hash bits after the depth bits, but never 0.
#[inline]
fn tag_of(hash: u64, depth: u32) -> u16 {
    ((hash << depth >> 48) as u16).max(1)
}

fn blocks_for(len: usize, per_block: usize) -> usize {
    len.div_ceil(per_block).max(1)
}

fn earliest(hints: &[u32]) -> u32 {
    hints.iter().fold(NEVER, |least, &hint| least.min(hint))
}

fn first_below(hints: &[u32], limit: u32) -> Option<usize> {
    // In groups of sixteen, which the compiler vectorizes, unlike a search that may end anywhere.
    const LANES: usize = 16;
    let group = hints.chunks(LANES).position(|hints| earliest(hints) < limit)? * LANES;
    hints[group..].iter().position(|&hint| hint < limit).map(|index| group + index)
}
