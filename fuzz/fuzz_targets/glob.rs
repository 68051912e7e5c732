//! Any bytes are a pattern, and matching takes no more than pattern x text steps: libFuzzer's timeout is the test.
#![no_main]

use latchkey::collections::glob;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&[u8], &[u8])| {
    let (pattern, text) = input;
    let minding_case = glob::matches(pattern, text, false);
    glob::matches(pattern, text, true);
    // A text always matches itself with each byte escaped.
    let escaped: Vec<u8> = text.iter().flat_map(|byte| [b'\\', *byte]).collect();
    assert!(glob::matches(&escaped, text, false));
    // A star in front only widens what matches, while the stars are fewer than the 1000 that are honoured.
    let widened = pattern.len() < 1000 && !text.is_empty();
    assert!(!minding_case || !widened || glob::matches(&[b"*", pattern].concat(), text, false));
});
