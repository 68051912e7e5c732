//! A node: consecutive entries in one buffer.
//!
//! ```text
//!   fields of the first entry | entry | entry | ...
//!
//!   entry:  head | ms | seq | number of fields | pieces
//! ```
//!
//! The head is one byte of flags. IDs are relative to the previous entry: without [`NEW_MS`] the
//! time is the same, without [`HAS_SEQ`] the sequence number is the next one (or 0 at a new time),
//! so that an ID mostly takes no byte or two. Most entries have the fields of the node's first one:
//! then only values are stored; with [`OWN_FIELDS`] their number, and fields and values
//! alternately. Pieces are packed elements. A deleted entry is only marked, until its node has no
//! other entries.
//!
//! **Where a node ends is Redis's choice and observable**: approximate trimming removes whole
//! nodes. So each node knows the size of Redis's listpack of the same entries (`listpack.md`:
//! header 6, end 1, each element followed by its length; per node two counts, the fields and a
//! zero; per entry flags, two differences to the node's ID, values and their number).

use crate::collections::packed::{Element, Elements};
use crate::collections::shared::{Arc, own};

use super::id::StreamId;

const DELETED: u8 = 1;
/// The entry has fields of its own.
const OWN_FIELDS: u8 = 2;
/// After the head: milliseconds since the previous entry.
const NEW_MS: u8 = 4;
/// After that: the sequence number, if the time is the same, as a difference.
const HAS_SEQ: u8 = 8;

/// Listpack header and end.
const LISTPACK_FRAME: usize = 7;

/// Consecutive entries, at least one, though all may be marked as deleted.
#[derive(Clone, Debug)]
pub(super) struct Node {
    /// ID of the first entry, deleted or not.
    pub first: StreamId,
    /// ID of the last entry, deleted or not.
    pub last: StreamId,
    /// Shared by clones of the node until one of them changes.
    bytes: Arc<Vec<u8>>,
    /// Offset of the first entry.
    entries_at: u32,
    /// Offset of the last entry.
    last_at: u32,
    /// Number of fields of the first entry.
    fields: u32,
    /// Size of Redis's listpack of these entries, without the two counts.
    listpack_bytes: u32,
    /// Entries that are not deleted.
    pub live: u32,
    /// Entries that are deleted.
    pub dead: u32,
}

/// The end of a node's entries.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    last: StreamId,
    bytes: u32,
    listpack_bytes: u32,
    live: u32,
}

/// An entry to be added: `2 * fields` pieces, fields and values alternately.
pub(super) struct NewEntry<'a, F: Fn(usize) -> &'a [u8]> {
    pub id: StreamId,
    pub fields: usize,
    pub piece: F,
}

/// Bytes of an element in a listpack, with the length after it.
fn listpack_len(element: &Element<'_>) -> usize {
    let len = element.encoded_len();
    len + match len {
        0..128 => 1,
        128..16_383 => 2,
        16_383..2_097_151 => 3,
        2_097_151..268_435_455 => 4,
        _ => 5,
    }
}

fn listpack_integer_len(value: i64) -> usize {
    listpack_len(&Element::Integer(value))
}

fn write_number(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Reads the number at `at` and advances `at`.
#[inline]
fn read_number(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let (mut value, mut shift) = (0u64, 0);
    loop {
        let byte = *bytes.get(*at)?;
        *at += 1;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
        shift += 7;
        if shift > 63 {
            return None;
        }
    }
}

impl Node {
    /// A node with its first entry. Reserves `room` bytes.
    pub fn new<'a, F: Fn(usize) -> &'a [u8]>(entry: &NewEntry<'a, F>, room: usize) -> Node {
        let mut node = Node {
            first: entry.id,
            last: entry.id,
            bytes: Arc::default(),
            entries_at: 0,
            last_at: 0,
            fields: entry.fields as u32,
            listpack_bytes: 0,
            live: 0,
            dead: 0,
        };
        let mut bytes = Vec::with_capacity(room);
        let mut listpack = LISTPACK_FRAME + listpack_integer_len(entry.fields as i64);
        for index in 0..entry.fields {
            let field = Element::new((entry.piece)(2 * index));
            field.write(&mut bytes);
            listpack += listpack_len(&field);
        }
        node.entries_at = bytes.len() as u32;
        node.bytes = Arc::new(bytes);
        node.listpack_bytes = (listpack + listpack_integer_len(0)) as u32;
        node.push(entry);
        node
    }

    /// Size of Redis's listpack of these entries.
    pub fn listpack_bytes(&self) -> usize {
        self.listpack_bytes as usize
            + listpack_integer_len(self.live.into())
            + listpack_integer_len(self.dead.into())
    }

    /// Number of entries, including deleted ones.
    pub fn entries(&self) -> u64 {
        u64::from(self.live) + u64::from(self.dead)
    }

    /// Bytes in use.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn heap_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    /// Bytes of heap memory that are freed with it.
    pub fn freed_bytes(&self) -> usize {
        self.bytes.freed_bytes()
    }

    /// Frees reserved memory: no entry will be added. Bytes that a clone shares stay as they are.
    pub fn close(&mut self) {
        if let Some(bytes) = Arc::get_mut(&mut self.bytes) {
            bytes.shrink_to_fit();
        }
    }

    fn has_fields_of<'a, F: Fn(usize) -> &'a [u8]>(&self, entry: &NewEntry<'a, F>) -> bool {
        if entry.fields != self.fields as usize {
            return false;
        }
        let mut own = Elements::new(&self.bytes[..self.entries_at as usize]);
        (0..entry.fields).all(|index| own.next() == Some(Element::new((entry.piece)(2 * index))))
    }

    /// Adds an entry, whose ID must be greater than the last one's.
    pub fn push<'a, F: Fn(usize) -> &'a [u8]>(&mut self, entry: &NewEntry<'a, F>) {
        let is_first = self.entries() == 0;
        let own_fields = !is_first && !self.has_fields_of(entry);
        let StreamId { ms, seq } = entry.id;
        let ms_later = ms - self.last.ms;
        let (usual, seq_number) = match ms_later {
            0 => (1, seq.wrapping_sub(self.last.seq)),
            _ => (0, seq),
        };
        let mut head = 0;
        head |= if own_fields { OWN_FIELDS } else { 0 };
        head |= if ms_later > 0 { NEW_MS } else { 0 };
        head |= if seq_number != usual { HAS_SEQ } else { 0 };
        let bytes = own(&mut self.bytes);
        self.last_at = bytes.len() as u32;
        bytes.push(head);
        if ms_later > 0 {
            write_number(bytes, ms_later);
        }
        if seq_number != usual {
            write_number(bytes, seq_number);
        }
        let mut pieces = 3 + entry.fields;
        // Redis keeps differences to the node's ID; that of the sequence numbers may be negative.
        // Flags are one small integer.
        let mut listpack = listpack_integer_len(0)
            + listpack_integer_len(ms.wrapping_sub(self.first.ms) as i64)
            + listpack_integer_len(seq.wrapping_sub(self.first.seq) as i64);
        if own_fields {
            write_number(bytes, entry.fields as u64);
            pieces += 1 + entry.fields;
            listpack += listpack_integer_len(entry.fields as i64);
        }
        for index in 0..entry.fields {
            if own_fields {
                let field = Element::new((entry.piece)(2 * index));
                field.write(bytes);
                listpack += listpack_len(&field);
            }
            let value = Element::new((entry.piece)(2 * index + 1));
            value.write(bytes);
            listpack += listpack_len(&value);
        }
        self.listpack_bytes += (listpack + listpack_integer_len(pieces as i64)) as u32;
        self.live += 1;
        self.last = entry.id;
    }

    /// Marks the entry at `offset` as deleted.
    pub fn mark_deleted(&mut self, offset: u32) {
        own(&mut self.bytes)[offset as usize] |= DELETED;
        self.live -= 1;
        self.dead += 1;
    }

    /// Removes the mark.
    pub fn unmark_deleted(&mut self, offset: u32) {
        own(&mut self.bytes)[offset as usize] &= !DELETED;
        self.live += 1;
        self.dead -= 1;
    }

    /// The end of its entries.
    pub fn end(&self) -> End {
        let (last, listpack_bytes) = (self.last, self.listpack_bytes);
        End { last, bytes: self.bytes.len() as u32, listpack_bytes, live: self.live }
    }

    /// Removes the entry that was added at this end.
    pub fn cut_off(&mut self, end: End) {
        own(&mut self.bytes).truncate(end.bytes as usize);
        self.last = end.last;
        self.listpack_bytes = end.listpack_bytes;
        self.live = end.live;
    }

    /// Iterates over all entries, including deleted ones.
    #[inline]
    pub fn walk(&self) -> Walk<'_> {
        Walk { node: self, at: self.entries_at as usize, before: self.first }
    }

    /// The last entry, deleted or not, found without a scan.
    pub fn last_place(&self) -> Option<Place> {
        let mut walk = Walk { node: self, at: self.last_at as usize, before: self.first };
        // Its ID is relative to the previous entry, which is unknown here.
        Some(Place { id: self.last, ..walk.next()? })
    }

    /// The number of fields of the first entry, and the fields.
    pub fn names(&self) -> (usize, Elements<'_>) {
        (self.fields as usize, Elements::new(&self.bytes[..self.entries_at as usize]))
    }

    /// The fields (unless they are the node's) and values of an entry, alternately.
    pub fn pieces(&self, place: &Place) -> Elements<'_> {
        Elements::new(&self.bytes[place.pieces_at as usize..place.end as usize])
    }

    /// Marks the last entry as deleted.
    pub fn mark_last_deleted(&mut self) {
        self.mark_deleted(self.last_at);
    }

    /// The position of the entry with this ID, unless deleted.
    pub fn find(&self, id: StreamId) -> Option<Place> {
        if id > self.last {
            return None;
        }
        self.walk().find(|place| place.id >= id).filter(|place| place.id == id && !place.is_deleted)
    }

    /// The entry at a position from [`Node::walk`].
    pub fn entry(&self, place: Place) -> Entry<'_> {
        let names = &self.bytes[..self.entries_at as usize];
        Entry {
            id: place.id,
            fields: place.fields as usize,
            names: (!place.own_fields).then(|| Elements::new(names)),
            pieces: Elements::new(&self.bytes[place.pieces_at as usize..place.end as usize]),
        }
    }
}

/// An entry's position in its node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub id: StreamId,
    /// Offset of its head.
    pub offset: u32,
    pieces_at: u32,
    end: u32,
    pub fields: u32,
    pub own_fields: bool,
    pub is_deleted: bool,
}

/// Iterates over a node's entries.
#[derive(Clone, Debug)]
pub(super) struct Walk<'a> {
    node: &'a Node,
    at: usize,
    /// ID of the previous entry.
    before: StreamId,
}

impl<'a> Walk<'a> {
    pub fn node(&self) -> &'a Node {
        self.node
    }
}

impl Iterator for Walk<'_> {
    type Item = Place;

    #[inline]
    fn next(&mut self) -> Option<Place> {
        let bytes = self.node.bytes.as_slice();
        let offset = self.at;
        let head = *bytes.get(offset)?;
        let mut at = offset + 1;
        let mut id = self.before;
        if head & NEW_MS != 0 {
            id.ms = id.ms.wrapping_add(read_number(bytes, &mut at)?);
            id.seq = if head & HAS_SEQ != 0 { read_number(bytes, &mut at)? } else { 0 };
        } else {
            let later = if head & HAS_SEQ != 0 { read_number(bytes, &mut at)? } else { 1 };
            id.seq = id.seq.wrapping_add(later);
        }
        let own_fields = head & OWN_FIELDS != 0;
        let (fields, pieces) = if own_fields {
            let fields = read_number(bytes, &mut at)? as u32;
            (fields, 2 * u64::from(fields))
        } else {
            (self.node.fields, self.node.fields.into())
        };
        let pieces_at = at;
        for _ in 0..pieces {
            at += Element::read(&bytes[at..])?.1;
        }
        self.at = at;
        self.before = id;
        Some(Place {
            id,
            offset: offset as u32,
            pieces_at: pieces_at as u32,
            end: at as u32,
            fields,
            own_fields,
            is_deleted: head & DELETED != 0,
        })
    }
}

/// An entry, for reading. Iterates over its fields and values.
#[derive(Clone, Debug)]
pub struct Entry<'a> {
    pub id: StreamId,
    /// Number of fields.
    pub fields: usize,
    /// The fields, unless they are stored with the values.
    names: Option<Elements<'a>>,
    pieces: Elements<'a>,
}

impl<'a> Iterator for Entry<'a> {
    type Item = (Element<'a>, Element<'a>);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let field = match &mut self.names {
            Some(names) => names.next()?,
            None => self.pieces.next()?,
        };
        Some((field, self.pieces.next()?))
    }
}
