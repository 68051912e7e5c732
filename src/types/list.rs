//! The list type.

use super::{Collection, INLINE_MAX, Stored, Value, kind};
use crate::collections::table::ValueRef;

/// A list.
#[derive(Clone, Debug)]
pub enum List {
    Packed(Vec<u8>),
}

/// A list, to be read.
#[derive(Clone, Copy, Debug)]
pub enum ListView<'a> {
    Packed(&'a [u8]),
}

impl List {
    pub fn encoding(&self) -> &'static str {
        "listpack"
    }

    pub fn heap_bytes(&self) -> usize {
        let List::Packed(bytes) = self;
        bytes.capacity()
    }

    pub fn free_effort(&self) -> usize {
        1
    }
}

impl Collection for List {
    type View<'a> = ListView<'a>;

    fn view(value: ValueRef<'_, Value>) -> Option<Self::View<'_>> {
        match value {
            ValueRef::Bytes { bytes, kind: kind::LIST } => Some(ListView::Packed(bytes)),
            ValueRef::Object(Value::List(List::Packed(bytes))) => Some(ListView::Packed(bytes)),
            _ => None,
        }
    }

    fn boxed(value: &mut Value) -> Option<&mut Self> {
        match value {
            Value::List(value) => Some(value),
            _ => None,
        }
    }

    fn unpack(_kind: u8, bytes: Vec<u8>) -> Self {
        List::Packed(bytes)
    }

    fn store(self) -> Stored {
        match self {
            List::Packed(bytes) if bytes.len() <= INLINE_MAX => {
                Stored::Inline { kind: kind::LIST, bytes }
            }
            large => Stored::Boxed(Value::List(large)),
        }
    }

    fn is_empty(&self) -> bool {
        let List::Packed(bytes) = self;
        bytes.is_empty()
    }
}
