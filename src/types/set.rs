//! The set type.

use super::{Collection, INLINE_MAX, Stored, Value, kind};
use crate::collections::table::ValueRef;

/// A set.
#[derive(Clone, Debug)]
pub enum Set {
    Packed(Vec<u8>),
}

/// A set, to be read.
#[derive(Clone, Copy, Debug)]
pub enum SetView<'a> {
    Packed(&'a [u8]),
}

impl Set {
    pub fn encoding(&self) -> &'static str {
        "listpack"
    }

    pub fn heap_bytes(&self) -> usize {
        let Set::Packed(bytes) = self;
        bytes.capacity()
    }

    pub fn free_effort(&self) -> usize {
        1
    }
}

impl Collection for Set {
    type View<'a> = SetView<'a>;

    fn view(value: ValueRef<'_, Value>) -> Option<Self::View<'_>> {
        match value {
            ValueRef::Bytes { bytes, kind: kind::SET } => Some(SetView::Packed(bytes)),
            ValueRef::Object(Value::Set(Set::Packed(bytes))) => Some(SetView::Packed(bytes)),
            _ => None,
        }
    }

    fn boxed(value: &mut Value) -> Option<&mut Self> {
        match value {
            Value::Set(value) => Some(value),
            _ => None,
        }
    }

    fn unpack(_kind: u8, bytes: Vec<u8>) -> Self {
        Set::Packed(bytes)
    }

    fn store(self) -> Stored {
        match self {
            Set::Packed(bytes) if bytes.len() <= INLINE_MAX => {
                Stored::Inline { kind: kind::SET, bytes }
            }
            large => Stored::Boxed(Value::Set(large)),
        }
    }

    fn is_empty(&self) -> bool {
        let Set::Packed(bytes) = self;
        bytes.is_empty()
    }
}
