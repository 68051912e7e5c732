//! The sorted set type.

use super::{Collection, INLINE_MAX, Stored, Value, kind};
use crate::collections::table::ValueRef;

/// A sorted set.
#[derive(Clone, Debug)]
pub enum SortedSet {
    Packed(Vec<u8>),
}

/// A sorted set, to be read.
#[derive(Clone, Copy, Debug)]
pub enum SortedSetView<'a> {
    Packed(&'a [u8]),
}

impl SortedSet {
    pub fn encoding(&self) -> &'static str {
        "listpack"
    }

    pub fn heap_bytes(&self) -> usize {
        let SortedSet::Packed(bytes) = self;
        bytes.capacity()
    }

    pub fn free_effort(&self) -> usize {
        1
    }
}

impl Collection for SortedSet {
    type View<'a> = SortedSetView<'a>;

    fn view(value: ValueRef<'_, Value>) -> Option<Self::View<'_>> {
        match value {
            ValueRef::Bytes { bytes, kind: kind::SORTED_SET } => Some(SortedSetView::Packed(bytes)),
            ValueRef::Object(Value::SortedSet(SortedSet::Packed(bytes))) => {
                Some(SortedSetView::Packed(bytes))
            }
            _ => None,
        }
    }

    fn boxed(value: &mut Value) -> Option<&mut Self> {
        match value {
            Value::SortedSet(value) => Some(value),
            _ => None,
        }
    }

    fn unpack(_kind: u8, bytes: Vec<u8>) -> Self {
        SortedSet::Packed(bytes)
    }

    fn store(self) -> Stored {
        match self {
            SortedSet::Packed(bytes) if bytes.len() <= INLINE_MAX => {
                Stored::Inline { kind: kind::SORTED_SET, bytes }
            }
            large => Stored::Boxed(Value::SortedSet(large)),
        }
    }

    fn is_empty(&self) -> bool {
        let SortedSet::Packed(bytes) = self;
        bytes.is_empty()
    }
}
