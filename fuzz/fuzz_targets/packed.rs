//! Any bytes as an intset and as packed elements: nothing panics, what is valid stays so, and a valid set does what a tree does.
#![no_main]

use std::collections::BTreeSet;

use latchkey::collections::intset::{self, Intset};
use latchkey::collections::packed::{self, Element, Elements};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&[u8], Vec<(bool, i64)>)| {
    let (bytes, changes) = input;

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
    for (adds, value) in changes {
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
});
