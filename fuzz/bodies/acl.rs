//! Any text is a file of users or an error that can be told; and whatever users rules make, the file that is written of them
//! makes them again.

use std::collections::BTreeSet;

use latchkey::acl::{Acl, Form, is_user_name};
use latchkey::command::TABLE;
use latchkey::gate::users::catalogue;

pub fn run(input: &[u8]) {
    let mut acl = Acl::new(catalogue(&TABLE));
    if let Err(error) = acl.load_text(input, b"file", false) {
        assert!(!error.is_empty());
    }
    for line in input.split(|byte| *byte == b'\n') {
        let mut words = line.split(|byte| *byte == b' ');
        let name = words.next().unwrap_or_default();
        if is_user_name(name) {
            let rules: Vec<&[u8]> = words.collect();
            // Refused or not: either way the users can be written.
            let _ = acl.set_user(name, &rules, line.len() % 2 == 1);
        }
    }
    for form in [Form::Redis70, Form::Redis72, Form::Valkey9] {
        makes_the_same_users(&acl, form);
    }
}

fn makes_the_same_users(acl: &Acl, form: Form) {
    let text = acl.file_text(form);
    let mut again = Acl::new(catalogue(&TABLE));
    if let Err(error) = again.load_text(&text, b"file", true) {
        panic!("{}: {}", String::from_utf8_lossy(&text), String::from_utf8_lossy(&error));
    }
    assert_eq!(again.file_text(form), text);
    let names: BTreeSet<&[u8]> = acl.names().collect();
    assert_eq!(again.names().collect::<BTreeSet<_>>(), names);
}
