//! `redis.conf.example` is what the table of parameters says. `UPDATE_EXAMPLE=1 cargo test --test
//! config_example` writes it anew.

use latchkey::config::{Config, example_file};

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/redis.conf.example");

#[test]
fn the_example_file_follows_the_table() {
    let wanted = example_file();
    if std::env::var_os("UPDATE_EXAMPLE").is_some() {
        std::fs::write(PATH, &wanted).expect("the example file can be written");
    }
    let found = std::fs::read(PATH).expect("redis.conf.example exists");
    assert!(
        found == wanted,
        "redis.conf.example is not what the table says: set UPDATE_EXAMPLE=1 and test again"
    );
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
