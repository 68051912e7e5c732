//! Any bytes as an intset and as packed elements: nothing panics, what is valid stays so, and a
//! valid set does what a tree does.

use std::collections::BTreeSet;

use latchkey::collections::intset::{self, Intset};
use latchkey::collections::packed::{self, Element, Elements};

use super::{split_first, split_len};

pub fn run(input: &[u8]) {
    let (changes, bytes) = split_len(input);

    let mut written = Vec::new();
    let mut elements = Elements::new(bytes);
    for element in elements.by_ref() {
        // Another encoding of an integer, or of a length, becomes the shortest.
        Element::new(element.text().as_ref()).write(&mut written);
    }
    assert_eq!(packed::is_valid(bytes), elements.position() == bytes.len());
    assert!(packed::is_valid(&written));
    assert!(written.len() <= bytes.len());

    let mut set = bytes.to_vec();
    let is_valid = intset::is_valid(&set);
    let mut model: BTreeSet<i64> = Intset::new(&set).iter().collect();
    for change in changes.chunks_exact(9) {
        let (&[adds], value) = split_first(change);
        let (adds, value) =
            (adds % 2 == 1, i64::from_le_bytes(value.try_into().expect("eight bytes")));
        let (changed, expected) = if adds {
            (intset::insert(&mut set, value), model.insert(value))
        } else {
            (intset::remove(&mut set, value), model.remove(&value))
        };
        if is_valid {
            assert_eq!(changed, expected);
            assert!(intset::is_valid(&set));
        }
    }
    if is_valid {
        assert!(Intset::new(&set).iter().eq(model));
    }
}
