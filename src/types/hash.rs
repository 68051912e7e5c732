//! The hash type.

use super::{Collection, INLINE_MAX, Stored, Value, kind};
use crate::collections::table::ValueRef;

/// A hash.
#[derive(Clone, Debug)]
pub enum Hash {
    Packed(Vec<u8>),
}

/// A hash, to be read.
#[derive(Clone, Copy, Debug)]
pub enum HashView<'a> {
    Packed(&'a [u8]),
}

impl Hash {
    pub fn encoding(&self) -> &'static str {
        "listpack"
    }

    pub fn heap_bytes(&self) -> usize {
        let Hash::Packed(bytes) = self;
        bytes.capacity()
    }

    pub fn free_effort(&self) -> usize {
        1
    }
}

impl Collection for Hash {
    type View<'a> = HashView<'a>;

    fn view(value: ValueRef<'_, Value>) -> Option<Self::View<'_>> {
        match value {
            ValueRef::Bytes { bytes, kind: kind::HASH } => Some(HashView::Packed(bytes)),
            ValueRef::Object(Value::Hash(Hash::Packed(bytes))) => Some(HashView::Packed(bytes)),
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
        let Hash::Packed(bytes) = self;
        bytes.is_empty()
    }
}
