//! Names of hash fields that HIMPORT PREPARE has given to a connection, each list under a name.
//!
//! The sets end with the connection or its RESET. Those of a script end with the script.

use std::collections::HashMap;
use std::sync::Arc;

use crate::sys::alloc::size_class;

/// The fields of one set, in the order in which values are given. A server moves between threads.
pub type Fields = Arc<[Box<[u8]>]>;

/// The most that the sets of a connection may take. Unit: bytes.
pub const BYTES_MAX: usize = 16 << 20;

/// The sets of a connection.
#[derive(Debug, Default)]
pub struct FieldSets {
    sets: HashMap<Box<[u8]>, Fields>,
    /// Approximate bytes of all sets.
    bytes: usize,
}

/// Approximate bytes of a set. A table that has just grown is half empty.
fn bytes_of(name: &[u8], fields: &[Box<[u8]>]) -> usize {
    let text = |text: &[u8]| if text.is_empty() { 0 } else { size_class(text.len()) };
    let texts = text(name) + fields.iter().map(|field| text(field)).sum::<usize>();
    let counts = 2 * size_of::<usize>();
    2 * size_of::<(Box<[u8]>, Fields)>() + size_class(counts + size_of_val(fields)) + texts
}

impl FieldSets {
    /// Adds a set, instead of an earlier one of this name. False: the sets would take too much
    /// memory; nothing has changed then.
    pub fn prepare<'a>(&mut self, name: &[u8], fields: impl Iterator<Item = &'a [u8]>) -> bool {
        let fields: Fields = fields.map(Box::from).collect();
        let replaced = self.sets.get(name).map_or(0, |old| bytes_of(name, old));
        let bytes = self.bytes - replaced + bytes_of(name, &fields);
        if bytes > BYTES_MAX {
            return false;
        }
        self.bytes = bytes;
        self.sets.insert(name.into(), fields);
        true
    }

    /// The fields of a set.
    pub fn get(&self, name: &[u8]) -> Option<Fields> {
        self.sets.get(name).cloned()
    }

    /// Forgets a set. False: there is none of this name.
    pub fn discard(&mut self, name: &[u8]) -> bool {
        let Some(fields) = self.sets.remove(name) else { return false };
        self.bytes -= bytes_of(name, &fields);
        true
    }

    /// The number of sets.
    pub fn len(&self) -> usize {
        self.sets.len()
    }

    pub fn is_empty(&self) -> bool {
        self.sets.is_empty()
    }

    /// Approximate bytes of memory held.
    pub fn memory(&self) -> usize {
        size_of::<FieldSets>() + self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_those_of_the_sets_that_are_left() {
        let mut sets = FieldSets::default();
        let empty = sets.memory();
        assert!(sets.prepare(b"a", [&b"one"[..], b"two"].into_iter()));
        let with_a = sets.memory();
        assert!(with_a > empty + 6);
        assert!(sets.prepare(b"b", [&b"three"[..]].into_iter()));
        assert!(sets.prepare(b"b", [&b"3"[..]].into_iter()));
        assert_eq!(sets.get(b"b").as_deref(), Some(&[Box::from(&b"3"[..])][..]));
        assert!(sets.discard(b"b") && !sets.discard(b"b"));
        assert_eq!((sets.memory(), sets.len()), (with_a, 1));
        assert!(sets.discard(b"a"));
        assert_eq!((sets.memory(), sets.len()), (empty, 0));
    }

    #[test]
    fn a_set_beyond_the_limit_changes_nothing() {
        let mut sets = FieldSets::default();
        assert!(sets.prepare(b"a", [&b"one"[..]].into_iter()));
        let before = sets.memory();
        let long = vec![b'x'; BYTES_MAX];
        assert!(!sets.prepare(b"a", [&long[..]].into_iter()));
        assert!(!sets.prepare(b"b", [&long[..]].into_iter()));
        assert_eq!(sets.get(b"a").map(|fields| fields.len()), Some(1));
        assert_eq!((sets.memory(), sets.len()), (before, 1));
        // Another set of the same size takes the place of the first.
        let half = vec![b'x'; BYTES_MAX / 2 + 1];
        assert!(sets.prepare(b"a", [&half[..]].into_iter()));
        assert!(sets.prepare(b"a", [&half[..]].into_iter()));
    }
}
