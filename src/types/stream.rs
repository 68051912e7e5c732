//! The stream type.

/// A stream.
#[derive(Clone, Debug, Default)]
pub struct Stream {}

impl Stream {
    pub fn heap_bytes(&self) -> usize {
        0
    }

    pub fn free_effort(&self) -> usize {
        1
    }
}
