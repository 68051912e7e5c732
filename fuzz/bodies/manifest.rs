//! A manifest that is read is written so that it is read as the same, and every change of it makes
//! one that can be read.

use latchkey::persist::aof::{BaseFormat, Manifest};

pub fn run(text: &[u8]) {
    let Ok(manifest) = Manifest::parse(text) else { return };
    let next = manifest.with_next_increment(b"a b");
    let seq = next.increments().last().expect("one was added").seq;
    let done = next.with_rewrite_finished(b"a b", BaseFormat::Rdb, seq);
    for state in [&manifest, &next, &done, &done.without_history()] {
        let text = state.text();
        if text.is_empty() || text.split(|byte| *byte == b'\n').any(|line| line.len() >= 1024) {
            // Of comments alone, or a name whose quotes make its line longer than is read.
            continue;
        }
        let read = Manifest::parse(&text).expect("what was written can be read");
        assert_eq!(read.text(), text);
    }
}
