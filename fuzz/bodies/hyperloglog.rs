//! Any bytes behind a valid header: nothing panics, and no addition makes a valid value corrupt or
//! a corrupt one valid.

use latchkey::types::hyperloglog as hll;

use super::{split_first, split_len};

pub fn run(input: &[u8]) {
    let (&[as_written, sparse_max_bytes], rest) = split_first(input);
    let (as_written, sparse_max_bytes) = (as_written % 2 == 1, 20 * usize::from(sparse_max_bytes));
    let (opcodes, elements) = split_len(rest);
    let mut value = [&hll::new_sparse()[..16], opcodes].concat();
    if as_written {
        // The header is the fuzzer's too.
        value = opcodes.to_vec();
    }
    let registers_of = |value: &[u8]| {
        let mut registers = [0; hll::REGISTERS];
        hll::merge(&mut registers, value).map(|()| registers)
    };
    let is_valid = registers_of(&value).is_ok();
    assert_eq!(hll::count(&value).is_ok(), is_valid);
    hll::cached_count(&value);
    hll::decode(&value);
    hll::raise_all(&mut value.clone(), &[7; hll::REGISTERS], sparse_max_bytes).ok();
    for element in elements.split(|byte| *byte == b'\n') {
        hll::add(&mut value, element, sparse_max_bytes).ok();
        assert_eq!(registers_of(&value).is_ok(), is_valid);
    }
    if is_valid {
        let before = registers_of(&value);
        hll::make_dense(&mut value).expect("a valid value can be made dense");
        assert!(before == registers_of(&value));
    }
}
