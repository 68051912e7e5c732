//! Streams: entries in the order of their IDs, and groups of consumers that read them.
//!
//! Entries are stored in nodes (`node`) in a tree that clones share: appended at its end, trimmed
//! at its front, found by binary search. A node has as many entries as Redis's, because approximate
//! trimming removes whole nodes. A deleted entry stays in its node, marked, until the node has no
//! other entries.
//!
//! Besides its entries a stream keeps the last ID it generated, the number of entries ever added,
//! and the greatest deleted ID. From these the lag of a group ([`Entries::lag`]) is computed, if it
//! can be known. Groups are in `groups`, producers that name their entries in `producers`.

mod groups;
mod id;
mod journal;
mod node;
mod producers;
mod saved;
#[cfg(test)]
mod tests;

pub use groups::{Consumer, ConsumerId, Group, Groups, PAUSED, Pending, RELEASED, shifted};
pub use id::{IdText, StreamId};
use journal::Change;
pub use journal::Note;
pub use node::Entry;
use node::{NewEntry, Node, Place, Walk};
pub use producers::{ProducerLimits, Producers};
pub use saved::{Loader, LoaderError, SavedEntry, SavedNode};

use super::journal::Edit;
use crate::collections::packed::Elements;
use crate::collections::shared::{Arc, Part, own};
use crate::collections::shared_tree::{Item, SharedTree};

/// The largest size of an entry's fields and values, and of a node. Unit: bytes.
const NODE_BYTES_MAX: usize = 1 << 30;

/// Bytes reserved for a stream's first node.
const FIRST_ROOM: usize = 64;

/// Extra bytes reserved for a further node beyond the previous one's size.
const SPARE_ROOM: usize = 64;

/// A stream. Clones share entries, groups and producers until one changes.
#[derive(Clone, Debug, Default)]
pub struct Stream {
    entries: Arc<Entries>,
    pub groups: Groups,
    /// None: no entry was added by a named producer, and the server's limits apply.
    pub producers: Option<Box<Producers>>,
}

/// The limits of a node: `stream-node-max-bytes` and `stream-node-max-entries`. 0 is no limit.
#[derive(Clone, Copy, Debug)]
pub struct NodeLimits {
    pub bytes: usize,
    pub entries: u64,
}

/// The entries that trimming keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// At most this number of entries, the newest.
    Newest(u64),
    /// The entries with at least this ID.
    From(StreamId),
}

/// Options of trimming.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trim {
    pub keep: Keep,
    /// Removes whole nodes only.
    pub is_approximate: bool,
    /// At most this many entries are removed. 0 is no limit.
    pub limit: u64,
}

/// Why an entry cannot be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddError {
    /// Its ID is not greater than the last one.
    NotAbove,
    TooLarge,
}

/// The choice of a new entry's ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewId {
    /// The given time, or the last entry's where that is later, and the next sequence number.
    Now(u64),
    /// This time, and the next sequence number.
    At(u64),
    Given(StreamId),
}

impl Stream {
    /// A stream of these entries, without groups.
    pub fn new(entries: Entries) -> Self {
        Stream { entries: Arc::new(entries), ..Stream::default() }
    }

    #[inline]
    pub fn entries(&self) -> &Entries {
        &self.entries
    }

    #[inline]
    pub fn entries_mut(&mut self) -> &mut Entries {
        own(&mut self.entries)
    }

    /// The entries, and the groups to be changed.
    pub fn entries_and_groups(&mut self) -> (&Entries, &mut Groups) {
        (&self.entries, &mut self.groups)
    }

    /// A copy without the entries.
    pub fn beside_entries(&self) -> Stream {
        let (groups, producers) = (self.groups.clone(), self.producers.clone());
        Stream { entries: Arc::default(), groups, producers }
    }

    /// Sets all but the entries to what [`Self::beside_entries`] has copied.
    pub fn put_back_beside_entries(&mut self, copy: Stream) {
        (self.groups, self.producers) = (copy.groups, copy.producers);
    }

    /// Bytes of the stream's heap memory.
    pub fn heap_bytes(&self) -> usize {
        self.entries.heap_bytes() + self.heap_bytes_beside_entries()
    }

    /// The approximate bytes of heap memory of its groups and producers.
    pub fn heap_bytes_beside_entries(&self) -> usize {
        let producers = self.producers.as_ref().map_or(0, |producers| producers.heap_bytes());
        self.groups.heap_bytes() + producers
    }

    /// The approximate number of allocations to free with it.
    pub fn free_effort(&self) -> usize {
        let producers = self.producers.as_ref().map_or(0, |producers| producers.free_effort());
        self.entries.nodes.len() + self.groups.free_effort() + producers
    }
}

/// Nodes sampled to estimate the size of all.
const SAMPLES: usize = 64;

/// The server whose count of entries read by a group is emulated, where entries were deleted.
/// Source: `compatible-with`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counting {
    Redis,
    Valkey,
}

/// A stream's entries, and the records of deleted ones.
#[derive(Clone, Debug, Default)]
pub struct Entries {
    nodes: SharedTree<Node>,
    /// Entries that are not deleted.
    len: u64,
    /// ID of the first entry as Redis stores it: 0-0 without entries.
    first: StreamId,
    /// The greatest ID of an entry; undefined without entries.
    top: StreamId,
    /// The last generated ID.
    pub last: StreamId,
    /// The greatest deleted ID; 0-0: none.
    pub max_deleted: StreamId,
    /// Entries ever added.
    pub added: i64,
}

impl Part for Entries {
    /// Nodes are shared in parts.
    fn heap_bytes(&self) -> usize {
        0
    }

    fn freed_bytes(&self) -> usize {
        self.nodes.freed_bytes()
    }
}

impl Item for Node {
    type Key = StreamId;

    #[inline]
    fn key(&self) -> &StreamId {
        &self.first
    }

    fn freed_bytes(&self) -> usize {
        Node::freed_bytes(self)
    }
}

impl Entries {
    /// Number of entries.
    #[inline]
    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// ID of the first entry; 0-0 without any.
    pub fn first(&self) -> StreamId {
        self.first
    }

    /// The greatest ID of an entry; None without entries.
    #[inline]
    pub fn top(&self) -> Option<StreamId> {
        (self.len > 0).then_some(self.top)
    }

    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// The number of nodes that Redis's radix tree would have. Cost: the number of nodes.
    pub fn radix_tree_nodes(&self) -> usize {
        id::radix_tree_nodes(self.nodes.iter().map(|node| node.first))
    }

    /// Bytes of heap memory; for many nodes an estimate from some of them.
    fn heap_bytes(&self) -> usize {
        let step = self.nodes.len().div_ceil(SAMPLES).max(1);
        let sampled = (step / 2..self.nodes.len()).step_by(step);
        let samples = sampled.len().max(1);
        let nodes: usize = sampled.map(|index| self.nodes[index].heap_bytes()).sum();
        size_of::<Entries>() + self.nodes.heap_bytes() + nodes * self.nodes.len() / samples
    }

    /// The ID a new entry would get.
    pub fn next_id(&self, wanted: NewId) -> Result<StreamId, AddError> {
        let id = match wanted {
            NewId::Now(ms) if ms > self.last.ms => StreamId { ms, seq: 0 },
            NewId::Now(_) => self.last.next().ok_or(AddError::NotAbove)?,
            NewId::At(ms) if ms == self.last.ms => {
                let seq = self.last.seq.checked_add(1).ok_or(AddError::NotAbove)?;
                StreamId { ms, seq }
            }
            NewId::At(ms) => StreamId { ms, seq: 0 },
            NewId::Given(id) => id,
        };
        if id > self.last { Ok(id) } else { Err(AddError::NotAbove) }
    }

    /// The entries that trimming removes if each of them is asked for: those of which `goes` says
    /// so. The others do not count as removed, and may be followed by removed ones. An approximate
    /// trim then removes parts of nodes too, as Redis's does; its limit is that of whole nodes.
    pub fn trimmed_singly(&self, trim: Trim, goes: impl Fn(StreamId) -> bool) -> Vec<StreamId> {
        let mut gone = Vec::new();
        for node in self.nodes.iter() {
            let left = self.len - gone.len() as u64;
            let live = u64::from(node.live);
            let is_done = matches!(trim.keep, Keep::Newest(len) if left <= len);
            if is_done || (trim.limit > 0 && gone.len() as u64 + live > trim.limit) {
                break;
            }
            for place in node.walk() {
                let stays = match trim.keep {
                    Keep::Newest(len) => self.len - gone.len() as u64 <= len,
                    Keep::From(id) => place.id >= id,
                };
                if stays {
                    break;
                }
                if !place.is_deleted && goes(place.id) {
                    gone.push(place.id);
                }
            }
        }
        gone
    }

    fn find_first(&mut self) {
        let first = self.range(StreamId::MIN, StreamId::MAX).next().map(|entry| entry.id);
        self.first = first.unwrap_or_default();
    }

    // ---- reading --------------------------------------------------------------------------------

    /// The node in which an entry with this ID would be.
    fn node_of(&self, id: StreamId) -> Option<usize> {
        self.nodes.partition_point(|first| *first <= id).checked_sub(1)
    }

    /// Whether there is an entry with this ID.
    pub fn contains(&self, id: StreamId) -> bool {
        self.node_of(id).is_some_and(|index| self.nodes[index].find(id).is_some())
    }

    /// The entry with this ID.
    pub fn get(&self, id: StreamId) -> Option<Entry<'_>> {
        let node = &self.nodes[self.node_of(id)?];
        Some(node.entry(node.find(id)?))
    }

    /// The entries from `start` to `end`, both included.
    #[inline]
    pub fn range(&self, start: StreamId, end: StreamId) -> Range<'_> {
        // Readers are mostly at the end of a stream.
        let index = match self.nodes.back() {
            Some(node) if node.first <= start => self.nodes.len() - 1,
            _ => self.node_of(start).unwrap_or(0),
        };
        Range { entries: self, next_node: index, walk: None, start, end }
    }

    /// The same in reverse order.
    pub fn backwards(&self, start: StreamId, end: StreamId) -> Backwards<'_> {
        let nodes = self.node_of(end).map_or(0, |index| index + 1);
        Backwards { entries: self, nodes, places: Vec::new(), last: None, start, end }
    }

    // ---- statistics of deleted entries ----------------------------------------------------------

    /// Whether an entry with at least this ID may have been deleted from the middle; for Valkey,
    /// from the start too.
    fn has_gap_from(&self, id: StreamId, counting: Counting) -> bool {
        self.len > 0
            && self.max_deleted != StreamId::MIN
            && (counting == Counting::Valkey || self.first <= self.max_deleted)
            && id <= self.max_deleted
    }

    /// Number of entries ever added up to this ID; None if unknown.
    pub fn estimate_read(&self, id: StreamId, counting: Counting) -> Option<i64> {
        if self.added == 0 {
            return Some(0);
        }
        if self.len == 0 && id <= self.last {
            return Some(self.added);
        }
        if counting == Counting::Valkey && id != StreamId::MIN && id < self.max_deleted {
            return None;
        }
        if id == self.last {
            return Some(self.added);
        }
        if id > self.last {
            return None;
        }
        let before_first = self.added.wrapping_sub(self.len as i64);
        let is_whole = self.max_deleted == StreamId::MIN || self.max_deleted < self.first;
        match id.cmp(&self.first) {
            std::cmp::Ordering::Less if is_whole => Some(before_first),
            std::cmp::Ordering::Equal if is_whole => Some(before_first.wrapping_add(1)),
            _ => None,
        }
    }

    /// A group's lag: the number of entries it has not read, given its last ID and read count; None
    /// if unknown.
    pub fn lag(&self, last: StreamId, read: Option<i64>, counting: Counting) -> Option<i64> {
        if self.added == 0 {
            return Some(0);
        }
        let read = match read {
            Some(read) if !self.has_gap_from(last, counting) => Some(read),
            _ => self.estimate_read(last, counting),
        };
        read.map(|read| self.added.wrapping_sub(read))
    }

    /// The read count of a group, whose last ID and count these are, after it has also read `id`.
    pub fn read_after(
        &self,
        id: StreamId,
        last: StreamId,
        read: Option<i64>,
        counting: Counting,
    ) -> Option<i64> {
        let counts_on = match counting {
            Counting::Redis => !self.has_gap_from(id, counting),
            Counting::Valkey => last >= self.first && !self.has_gap_from(last, counting),
        };
        match read {
            Some(read) if counts_on => Some(read.wrapping_add(1)),
            _ if self.added != 0 => self.estimate_read(id, counting),
            _ => read,
        }
    }
}

impl Edit<'_, Entries> {
    // ---- adding ---------------------------------------------------------------------------------

    /// Adds an entry of `fields` fields; `piece` returns fields and values alternately.
    #[inline]
    pub fn add<'a>(
        &mut self,
        wanted: NewId,
        fields: usize,
        piece: impl Fn(usize) -> &'a [u8],
        limits: NodeLimits,
    ) -> Result<StreamId, AddError> {
        let id = self.next_id(wanted)?;
        let bytes = (0..2 * fields).map(|index| piece(index).len()).sum::<usize>();
        if bytes > NODE_BYTES_MAX {
            return Err(AddError::TooLarge);
        }
        self.note_growth(id, bytes, limits);
        let entry = NewEntry { id, fields, piece };
        let entries = &mut *self.value;
        match entries.nodes.back_mut() {
            Some(node) if has_room(node, id, bytes, limits) => node.push(&entry),
            Some(node) => {
                node.close();
                let room = node.len() + SPARE_ROOM;
                entries.nodes.push_back(Node::new(&entry, room));
            }
            None => entries.nodes.push_back(Node::new(&entry, FIRST_ROOM)),
        }
        entries.len += 1;
        entries.added = entries.added.wrapping_add(1);
        entries.last = id;
        entries.top = id;
        if entries.len == 1 {
            entries.first = id;
        }
        Ok(id)
    }

    /// Sets the last generated ID and, if given, the number of entries ever added and the greatest
    /// deleted ID.
    pub fn set_remembered(
        &mut self,
        last: StreamId,
        added: Option<i64>,
        max_deleted: Option<StreamId>,
    ) {
        self.note_change(|| Change::Remembered);
        let entries = &mut *self.value;
        entries.last = last;
        entries.added = added.unwrap_or(entries.added);
        entries.max_deleted = max_deleted.unwrap_or(entries.max_deleted);
    }

    // ---- removing -------------------------------------------------------------------------------

    /// Deletes entries; returns how many existed.
    pub fn delete(&mut self, ids: &[StreamId]) -> u64 {
        self.delete_each(ids, |entries, id| entries.max_deleted = entries.max_deleted.max(id))
    }

    /// Deletes entries that trimming removes from the beginning: no gap is remembered.
    pub fn delete_first(&mut self, ids: &[StreamId]) -> u64 {
        self.delete_each(ids, |_, _| {})
    }

    fn delete_each(&mut self, ids: &[StreamId], remember: fn(&mut Entries, StreamId)) -> u64 {
        let (mut deleted, mut had_first) = (0, false);
        for id in ids {
            if self.delete_one(*id) {
                deleted += 1;
                had_first |= *id == self.first;
                remember(self.value, *id);
            }
        }
        if deleted > 0 && (self.len == 0 || had_first) {
            self.value.find_first();
        }
        if deleted > 0 && ids.contains(&self.top) {
            let top = self.backwards(StreamId::MIN, StreamId::MAX).next().map(|entry| entry.id);
            self.value.top = top.unwrap_or_default();
        }
        deleted
    }

    fn delete_one(&mut self, id: StreamId) -> bool {
        let Some(index) = self.node_of(id) else { return false };
        let node = &self.value.nodes[index];
        let Some(place) = node.find(id) else { return false };
        if node.live == 1 {
            let gone = self.value.nodes.remove(index);
            self.note_gone(index, gone);
        } else {
            self.value.nodes[index].mark_deleted(place.offset);
            self.note_change(|| Change::Marked { index, offset: place.offset });
        }
        self.value.len -= 1;
        true
    }

    /// Trims entries from the beginning; returns their number.
    pub fn trim(&mut self, trim: Trim) -> u64 {
        let mut removed = 0;
        while let Some(node) = self.value.nodes.front() {
            let live = u64::from(node.live);
            let is_done = matches!(trim.keep, Keep::Newest(len) if self.value.len <= len);
            if is_done || (trim.limit > 0 && removed + live > trim.limit) {
                break;
            }
            let goes_whole = match trim.keep {
                Keep::Newest(len) => self.value.len - live >= len,
                Keep::From(id) => node.last < id,
            };
            if goes_whole {
                let gone = self.value.nodes.pop_front();
                self.note_gone(0, gone);
                self.value.len -= live;
                removed += live;
                continue;
            }
            if !trim.is_approximate {
                let len = self.value.len;
                let marked = trim_node(node, trim.keep, len);
                if marked.is_empty() {
                    break;
                }
                let node = &mut self.value.nodes[0];
                marked.iter().for_each(|offset| node.mark_deleted(*offset));
                for &offset in &marked {
                    self.note_change(|| Change::Marked { index: 0, offset });
                }
                self.value.len -= marked.len() as u64;
                removed += marked.len() as u64;
            }
            break;
        }
        if removed > 0 || self.len == 0 {
            self.value.find_first();
        }
        removed
    }
}

/// Whether a node has room for another entry of `bytes` bytes.
fn has_room(node: &Node, id: StreamId, bytes: usize, limits: NodeLimits) -> bool {
    let bytes_max = match limits.bytes {
        1..=NODE_BYTES_MAX => limits.bytes,
        _ => NODE_BYTES_MAX,
    };
    // A deleted last entry may have a greater ID: XSETID may have set the stream back.
    node.last < id
        && node.listpack_bytes() + bytes < bytes_max
        && (limits.entries == 0 || node.entries() < limits.entries)
}

/// The offsets of a node's entries that trimming removes from its beginning. `len`: entries in the
/// stream.
fn trim_node(node: &Node, keep: Keep, len: u64) -> Vec<u32> {
    let mut marked = Vec::new();
    for place in node.walk() {
        let stays = match keep {
            Keep::Newest(kept) => len - marked.len() as u64 <= kept,
            Keep::From(id) => place.id >= id,
        };
        if stays {
            break;
        }
        if !place.is_deleted {
            marked.push(place.offset);
        }
    }
    marked
}

/// Iterates over entries in order.
#[derive(Clone, Debug)]
pub struct Range<'a> {
    entries: &'a Entries,
    next_node: usize,
    walk: Option<Walk<'a>>,
    start: StreamId,
    end: StreamId,
}

impl<'a> Iterator for Range<'a> {
    type Item = Entry<'a>;

    #[inline]
    fn next(&mut self) -> Option<Entry<'a>> {
        loop {
            if let Some(walk) = &mut self.walk {
                for place in walk.by_ref() {
                    if place.is_deleted || place.id < self.start {
                        continue;
                    }
                    return (place.id <= self.end).then(|| walk.node().entry(place));
                }
            }
            let node = self.entries.nodes.get(self.next_node)?;
            self.next_node += 1;
            if node.first > self.end {
                return None;
            }
            self.walk = (node.last >= self.start).then(|| node.walk());
        }
    }
}

/// Iterates over entries in reverse order.
#[derive(Clone, Debug)]
pub struct Backwards<'a> {
    entries: &'a Entries,
    /// Number of nodes that are not finished, the current one included.
    nodes: usize,
    /// Remaining entries of the current node, found by a forward scan, as an entry's offset follows
    /// from the previous one.
    places: Vec<Place>,
    /// The current node's last entry, read first: the others are only looked for when needed.
    last: Option<u32>,
    start: StreamId,
    end: StreamId,
}

impl<'a> Iterator for Backwards<'a> {
    type Item = Entry<'a>;

    fn next(&mut self) -> Option<Entry<'a>> {
        loop {
            if let Some(place) = self.places.pop() {
                // The node after the last one counted is the current one.
                return Some(self.entries.nodes[self.nodes].entry(place));
            }
            if self.last.is_none() {
                self.nodes = self.nodes.checked_sub(1)?;
                let node = &self.entries.nodes[self.nodes];
                if node.last < self.start {
                    self.nodes = 0;
                    return None;
                }
                if node.last <= self.end
                    && let Some(place) = node.last_place()
                {
                    self.last = Some(place.offset);
                    if !place.is_deleted {
                        return Some(node.entry(place));
                    }
                }
            }
            let node = &self.entries.nodes[self.nodes];
            let before = self.last.take().unwrap_or(u32::MAX);
            self.places.reserve(node.entries() as usize);
            let (start, end) = (self.start, self.end);
            let is_in = |place: &Place| !place.is_deleted && place.id >= start;
            let is_before = |place: &Place| place.id <= end && place.offset < before;
            self.places.extend(node.walk().take_while(is_before).filter(is_in));
        }
    }
}
