//! The files that peers ship, and the names that they know. PEER_SOURCES: folders of their unpacked
//! sources, colons between.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use latchkey::config::{Config, ConfigError, PARAMS, Param};

fn sources() -> Vec<PathBuf> {
    let folders = std::env::var_os("PEER_SOURCES").expect("PEER_SOURCES names folders");
    std::env::split_paths(&folders).collect()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The file that a peer ships.
fn shipped(source: &Path) -> String {
    let names = ["redis.conf", "valkey.conf"];
    let found = names.iter().map(|name| source.join(name)).find(|path| path.exists());
    read(&found.unwrap_or_else(|| panic!("{} has no configuration", source.display())))
}

/// Names and aliases in a peer's table of parameters.
fn known_names(source: &Path) -> BTreeSet<String> {
    let text = read(&source.join("src/config.c"));
    let mut names = BTreeSet::new();
    for line in text.lines().filter(|line| line.trim_start().starts_with("create")) {
        let Some((_, rest)) = line.split_once("Config(\"") else { continue };
        let Some((name, rest)) = rest.split_once('"') else { continue };
        names.insert(name.to_owned());
        if let Some(rest) = rest.strip_prefix(", \"")
            && let Some((alias, _)) = rest.split_once('"')
        {
            names.insert(alias.to_owned());
        }
    }
    names
}

/// What Redis 8.6.3 has rewritten is taken, with parameters that are set there.
#[test]
fn a_file_that_redis_8_6_has_rewritten_is_taken() {
    let text = include_str!("../../data/config-rewritten-8.6.3.conf");
    let config = Config::from_text(text.as_bytes()).expect("a configuration");
    assert!(text.contains("maxmemory-policy allkeys-lrm"));
    assert!(config.maxmemory_policy.uses_time());
    assert_eq!((config.lookahead, config.stream_idmp_maxsize), (20, 50));
}

/// Names and values of Redis 7.0.15, 8.0.6, 8.6.3 and Valkey 9.1.2, and what becomes of each here.
const NAMES: &str = include_str!("../../data/config-names.tsv");

#[test]
fn every_directive_of_a_peer_is_taken_or_refused_with_a_reason() {
    let mut names = BTreeSet::new();
    for line in NAMES.lines().filter(|line| !line.starts_with('#')) {
        let row: Vec<&str> = line.split('\t').collect();
        let [name, value, servers, wanted] = row[..] else { panic!("not four columns: {line}") };
        let found = match Config::from_text(format!("{name} {value}").as_bytes()) {
            Ok(_) => "ok".to_owned(),
            Err(ConfigError::Line { reason, .. }) => reason.to_string(),
            Err(other) => panic!("{name} {value}: {other}"),
        };
        assert_eq!(found, wanted, "{name} {value}, of {servers}");
        names.insert(name);
    }
    assert_eq!(names.len(), 294);
}

/// Who goes back to another server finds what to take out of the file.
#[test]
fn directives_that_no_peer_knows_are_marked_in_the_example_file() {
    let known: BTreeSet<&str> = NAMES.lines().filter_map(|line| line.split('\t').next()).collect();
    for param in PARAMS.iter().filter(|param| !param.traits.hidden) {
        let is_ours = !known.contains(param.name);
        let words: Vec<&str> = param.doc.iter().flat_map(|line| line.split_whitespace()).collect();
        let is_marked = words.join(" ").contains("This server only.");
        assert_eq!(
            is_marked, is_ours,
            "{}: its doc comment says \"This server only.\" if and only if \
             tests/data/config-names.tsv does not have it",
            param.name
        );
    }
}

/// What is no parameter is told so, whichever server's file it stands in.
#[test]
fn parameters_of_modules_are_refused_by_name() {
    for line in ["loadmodule ./redisearch.so", "search-timeout 500", "ts-encoding COMPRESSED"] {
        let error = Config::from_text(line.as_bytes()).expect_err(line).to_string();
        let told = format!(">>> '{line}'\nModules are not supported by this server\n");
        assert!(error.ends_with(&told), "{error}");
    }
}

#[test]
#[ignore = "needs PEER_SOURCES"]
fn shipped_files_are_configurations() {
    for source in sources() {
        // A folder that a package makes.
        let text = shipped(&source).replace("\ndir /", "\n# dir /");
        let config = Config::from_text(text.as_bytes());
        assert!(config.is_ok(), "{}: {}", source.display(), config.unwrap_err());
    }
}

#[test]
#[ignore = "needs PEER_SOURCES"]
fn every_name_of_a_peer_is_known() {
    for source in sources() {
        let names = known_names(&source);
        assert!(names.len() > 150, "{}: {names:?}", source.display());
        let unknown: Vec<_> =
            names.iter().filter(|name| Param::find(name.as_bytes()).is_none()).collect();
        assert!(unknown.is_empty(), "{}: {unknown:?}", source.display());
    }
}
