//! Any text is a file of users, or an error with a text; and users that are written to a file are
//! the same when they are loaded from it.

use std::collections::BTreeSet;

use latchkey::acl::{Acl, Format, is_user_name};
use latchkey::command::TABLE;

pub fn run(input: &[u8]) {
    let mut acl = Acl::new(TABLE.catalogue());
    if let Err(error) = acl.load_file_text(input, b"file", false) {
        assert!(!error.is_empty());
    }
    for line in input.split(|byte| *byte == b'\n') {
        let mut words = line.split(|byte| *byte == b' ');
        let name = words.next().unwrap_or_default();
        if is_user_name(name) {
            let rules: Vec<&[u8]> = words.collect();
            // In both cases the users can be written.
            let _ = acl.set_user(name, &rules, line.len() % 2 == 1);
        }
    }
    for format in [Format::Redis70, Format::Redis72, Format::Valkey9] {
        check_file_of(&acl, format);
    }
}

fn check_file_of(acl: &Acl, format: Format) {
    let text = acl.to_file_text(format);
    let mut again = Acl::new(TABLE.catalogue());
    if let Err(error) = again.load_file_text(&text, b"file", true) {
        panic!("{}: {}", String::from_utf8_lossy(&text), String::from_utf8_lossy(&error));
    }
    assert_eq!(again.to_file_text(format), text);
    let names: BTreeSet<&[u8]> = acl.names().collect();
    assert_eq!(again.names().collect::<BTreeSet<_>>(), names);
}
