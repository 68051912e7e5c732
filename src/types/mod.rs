//! The types of values, and the structures inside strings.
//!
//! A small list, hash, set or sorted set is packed bytes inside its key's entry
//! ([`Stored::Inline`]); a larger one, and every stream, is a box ([`Value`]). Users of this module
//! cannot see which: reads use a view ([`Collection::view`]), changes use [`crate::keyspace`]'s
//! `edit`, which unpacks, changes, and stores again.
//!
//! - The types: `string`, `list`, `hash`, `set`, `sorted_set`, `stream`. `journal` records changes
//!   of large ones, for undoing.
//! - Inside strings: `bitmap`, `hyperloglog`, `lcs`; inside the scores of sorted sets: `geo`;
//!   `lock` reads hashes and strings as locks.

pub mod bitmap;
pub mod geo;
pub mod hash;
pub mod hyperloglog;
pub mod journal;
pub mod lcs;
pub mod list;
pub mod lock;
pub mod set;
pub mod sorted_set;
pub mod stream;
pub mod string;

use crate::collections::packed_table::Draw;
use crate::collections::prefetch::Ahead;
use crate::collections::shared_bytes::{PIECE, SharedBytes};
use crate::collections::table::{NewValue, ValueRef};
use hash::Hash;
use list::List;
use set::Set;
use sorted_set::SortedSet;
use stream::Stream;

/// Kinds of bytes inside an entry.
pub mod kind {
    pub const STRING: u8 = 0;
    /// A string that was edited in place: its encoding is "raw".
    pub const EDITED_STRING: u8 = 1;
    pub const LIST: u8 = 2;
    pub const HASH: u8 = 3;
    pub const SET: u8 = 4;
    pub const INTSET: u8 = 5;
    pub const SORTED_SET: u8 = 6;
    /// A string that looks like an integer but was not stored as one: its encoding is "embstr".
    pub const UNENCODED_STRING: u8 = 7;
}

/// The longest packed collection inside an entry. Unit: bytes.
pub const INLINE_MAX: usize = 512;

/// Stages of [`Value::prefetch`].
pub const PREFETCH_STAGES: usize = 5;

/// A value too large or too complex to be inside its entry.
#[derive(Clone, Debug)]
pub enum Value {
    /// A string that grew in place, with room to grow, or a large one, whose pieces a snapshot
    /// shares.
    String(SharedBytes),
    List(List),
    Hash(Hash),
    Set(Set),
    SortedSet(SortedSet),
    Stream(Stream),
}

/// Where a collection is stored.
#[derive(Debug)]
pub enum Stored {
    /// Inside the entry; the kind is one of [`kind`].
    Inline {
        kind: u8,
        bytes: Vec<u8>,
    },
    Boxed(Value),
}

impl Stored {
    /// Where a string that has not been edited is stored.
    pub fn string(bytes: Vec<u8>) -> Stored {
        match bytes.len() < Value::LARGE_STRING {
            true => Stored::Inline { kind: kind::STRING, bytes },
            false => Stored::Boxed(Value::String(bytes.into())),
        }
    }
}

/// A type whose small values are stored inside their entries.
pub trait Collection: Sized {
    /// A borrowed value for reading.
    type View<'a>;

    /// The value as this type; None if it is of another one.
    fn view(value: ValueRef<'_, Value>) -> Option<Self::View<'_>>;

    /// The boxed value as this type; None if it is of another one.
    fn boxed(value: &mut Value) -> Option<&mut Self>;

    /// The reverse of [`Stored::Inline`].
    fn unpack(kind: u8, bytes: Vec<u8>) -> Self;

    /// The form in which it is stored: inline if packed and short.
    fn store(self) -> Stored;

    fn is_empty(&self) -> bool;
}

/// The name `TYPE` gives.
pub fn type_name(value: ValueRef<'_, Value>) -> &'static str {
    match value {
        ValueRef::Bytes { kind: kind::LIST, .. } | ValueRef::Object(Value::List(_)) => "list",
        ValueRef::Bytes { kind: kind::HASH, .. } | ValueRef::Object(Value::Hash(_)) => "hash",
        ValueRef::Bytes { kind: kind::SET | kind::INTSET, .. }
        | ValueRef::Object(Value::Set(_)) => "set",
        ValueRef::Bytes { kind: kind::SORTED_SET, .. } | ValueRef::Object(Value::SortedSet(_)) => {
            "zset"
        }
        ValueRef::Object(Value::Stream(_)) => "stream",
        ValueRef::Bytes { .. } | ValueRef::Object(Value::String(_)) => "string",
    }
}

/// A smaller collection is mostly in the processor's cache: prefetching gains nothing.
const PREFETCH_MIN: usize = 4096;

/// An element that a command will look up.
#[derive(Clone, Copy, Debug)]
pub enum Wanted<'a> {
    /// A member or field.
    Named(&'a [u8]),
    /// The member with this number of lower scores.
    FromLowest(usize),
    FromHighest(usize),
    /// A random member; see [`Value::ahead_of_draw`].
    Random,
}

impl Value {
    /// Starts a prefetching look-up of an element; None if that would gain nothing.
    #[inline]
    pub fn ahead(&self, wanted: Wanted<'_>) -> Option<Ahead> {
        if let Value::SortedSet(set) = self {
            let tree = set.as_tree().filter(|tree| tree.len() >= PREFETCH_MIN)?;
            return match wanted {
                Wanted::Named(member) => Some(tree.ahead(member)),
                Wanted::FromLowest(before) => tree.ahead_of_rank(before),
                Wanted::FromHighest(behind) => {
                    tree.ahead_of_rank((tree.len() - 1).checked_sub(behind)?)
                }
                Wanted::Random => None,
            };
        }
        let Wanted::Named(member) = wanted else { return None };
        let table = match self {
            Value::Hash(hash) => hash.as_table(),
            Value::Set(set) => set.as_table(),
            _ => None,
        };
        table.filter(|table| table.len() >= PREFETCH_MIN).map(|table| table.ahead(member))
    }

    /// Starts prefetching the random member that a choice means; None if that would gain nothing.
    pub fn ahead_of_draw(&self, draw: Draw) -> Option<Ahead> {
        let Value::Set(set) = self else { return None };
        let table = set.as_table().filter(|table| table.len() >= PREFETCH_MIN)?;
        Some(table.ahead_of_draw(draw))
    }

    /// Prefetches memory for the look-up's next step. There are [`PREFETCH_STAGES`] steps.
    #[inline]
    pub fn prefetch(&self, ahead: &mut Ahead, stage: usize) {
        let table = match self {
            Value::Hash(hash) => hash.as_table(),
            Value::Set(set) => set.as_table(),
            Value::SortedSet(set) => {
                if let Some(tree) = set.as_tree() {
                    tree.prefetch(ahead, stage);
                }
                return;
            }
            _ => None,
        };
        if let Some(table) = table {
            table.prefetch(ahead, stage);
        }
    }

    /// The name `OBJECT ENCODING` gives.
    pub fn encoding(&self) -> &'static str {
        match self {
            Value::String(_) => "raw",
            Value::List(list) => list.encoding(),
            Value::Hash(hash) => hash.encoding(),
            Value::Set(set) => set.encoding(),
            Value::SortedSet(set) => set.encoding(),
            Value::Stream(_) => "stream",
        }
    }

    /// Strings of this length or more are never inside their entries, so that a snapshot shares
    /// them instead of copying them. Unit: bytes.
    pub const LARGE_STRING: usize = PIECE;

    /// A string that has not been edited, to be added to a table.
    #[inline]
    pub fn new_string(bytes: &[u8]) -> NewValue<'_, Value> {
        match bytes.len() < Value::LARGE_STRING {
            true => NewValue::Bytes { bytes, kind: kind::STRING },
            false => Value::new_shared_string(bytes.into()),
        }
    }

    /// A string outside its entry, to be added to a table.
    #[cold]
    pub fn new_shared_string<'v>(bytes: SharedBytes) -> NewValue<'v, Value> {
        NewValue::Object(Box::new(Value::String(bytes)))
    }

    /// Bytes of heap memory owned.
    pub fn heap_bytes(&self) -> usize {
        match self {
            Value::String(bytes) => bytes.heap_bytes(),
            Value::List(list) => list.heap_bytes(),
            Value::Hash(hash) => hash.heap_bytes(),
            Value::Set(set) => set.heap_bytes(),
            Value::SortedSet(set) => set.heap_bytes(),
            Value::Stream(stream) => stream.heap_bytes(),
        }
    }

    /// The number of allocations to free with this value: large values are freed in the background.
    pub fn free_effort(&self) -> usize {
        match self {
            Value::String(bytes) => bytes.count(),
            Value::List(list) => list.free_effort(),
            Value::Hash(hash) => hash.free_effort(),
            Value::Set(set) => set.free_effort(),
            Value::SortedSet(set) => set.free_effort(),
            Value::Stream(stream) => stream.free_effort(),
        }
    }
}
