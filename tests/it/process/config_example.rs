//! `redis.conf.example`, the manual page latchkey.conf(5) and the completions of shells are what
//! the table of parameters says. `UPDATE_EXAMPLE=1 cargo test --test it config_example` writes them
//! anew.

use std::path::Path;

use latchkey::config::{Config, SHELLS, completions, example_file, manual_page};

/// Compares a file of the repository with what the table says, or writes it.
fn check(path: &str, wanted: &[u8]) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if std::env::var_os("UPDATE_EXAMPLE").is_some() {
        std::fs::write(&file, wanted).expect("the file can be written");
    }
    let found = std::fs::read(&file).unwrap_or_default();
    assert!(
        found == wanted,
        "{path} differs from the table of parameters; this writes it anew: \
         UPDATE_EXAMPLE=1 cargo test --test it config_example"
    );
}

#[test]
fn the_example_file_follows_the_table() {
    check("redis.conf.example", &example_file());
}

#[test]
fn the_manual_page_and_the_completions_follow_the_table() {
    check("man/latchkey.conf.5", manual_page().as_bytes());
    for shell in SHELLS {
        let text = completions(shell).expect("completions");
        check(&format!("packaging/completions/latchkey.{shell}"), text.as_bytes());
    }
    assert_eq!(completions("tcsh"), None);
}

#[test]
fn the_example_file_is_a_configuration_that_changes_nothing() {
    assert_eq!(Config::from_text(&example_file()).expect("comments only"), Config::default());
}

#[test]
fn uncommenting_every_directive_of_the_example_changes_nothing() {
    let text = String::from_utf8(example_file()).expect("text");
    let is_directive = |line: &&str| {
        line.starts_with('#') && line[1..].starts_with(|c: char| c.is_ascii_lowercase())
    };
    let directives: Vec<&str> = text.lines().filter(is_directive).map(|line| &line[1..]).collect();
    assert!(directives.len() > 190);
    assert_eq!(
        Config::from_text(directives.join("\n").as_bytes()).expect("directives"),
        Config::default()
    );
}
