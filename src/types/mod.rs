//! What the values mean: the kinds of value a key can hold, and the structures kept inside strings.

pub mod bitmap;
pub mod hyperloglog;
pub mod lcs;

/// A value too large or too structured to lie inside its entry.
#[derive(Clone, Debug)]
pub enum Value {
    /// A string that grew in place: kept apart from its key, with room to grow further.
    String(Vec<u8>),
}

impl Value {
    /// The name `TYPE` gives.
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::String(_) => "string",
        }
    }

    /// The name `OBJECT ENCODING` gives.
    pub fn encoding(&self) -> &'static str {
        match self {
            Value::String(_) => "raw",
        }
    }

    /// Heap bytes behind this value.
    pub fn heap_bytes(&self) -> usize {
        match self {
            Value::String(bytes) => bytes.capacity(),
        }
    }

    /// How many allocations freeing this value costs: large ones are freed in the background.
    pub fn free_effort(&self) -> usize {
        match self {
            Value::String(_) => 1,
        }
    }
}
