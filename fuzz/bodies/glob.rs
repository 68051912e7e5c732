//! Any bytes are a pattern, and matching takes no more than pattern x text steps: libFuzzer's
//! timeout is the test.

use latchkey::collections::glob;

use super::at_line_end;

pub fn run(input: &[u8]) {
    let (pattern, text) = at_line_end(input);
    let minding_case = glob::matches(pattern, text, false);
    glob::matches(pattern, text, true);
    // A text always matches itself with each byte escaped.
    let escaped: Vec<u8> = text.iter().flat_map(|byte| [b'\\', *byte]).collect();
    assert!(glob::matches(&escaped, text, false));
    // A star in front only widens what matches, while the stars are fewer than the 1000 that are
    // honoured.
    let widened = pattern.len() < 1000 && !text.is_empty();
    assert!(!minding_case || !widened || glob::matches(&[b"*", pattern].concat(), text, false));
}
