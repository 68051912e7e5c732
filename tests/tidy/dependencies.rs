//! The rules of `deny.toml` for what others wrote, checked without a network: licences, versions
//! that stand twice, sources; and that tests build on what the server is built of.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

const RULES: &str = include_str!("../../deny.toml");
const LOCK: &str = include_str!("../../Cargo.lock");
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// The quoted words of an array of `deny.toml`; of its tables those with this key.
fn listed(array: &str, key: Option<&str>) -> Vec<&'static str> {
    let begin = RULES.find(&format!("\n{array} = [\n")).expect("the array is there");
    let lines = RULES[begin..].lines().skip(2).take_while(|line| *line != "]");
    let marker = key.map_or(String::new(), |key| format!("{key} = "));
    let words: Vec<&str> = lines
        .filter_map(|line| line.split_once(&format!("{marker}\""))?.1.split('"').next())
        .collect();
    assert!(!words.is_empty());
    words
}

/// The packages with these edges between them, and what the format says of each.
fn packages(edges: &str, format: &str) -> BTreeSet<(String, String)> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = Command::new(cargo)
        .args(["tree", "--locked", "--offline", "--edges", edges])
        .args(["--prefix", "none", "--format", &format!("{{p}}|{format}")])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let tree = String::from_utf8(output.stdout).expect("cargo writes UTF-8");
    let pairs = tree.lines().filter_map(|line| line.trim_end_matches(" (*)").split_once('|'));
    let packages: BTreeSet<_> = pairs.map(|(a, b)| (a.to_owned(), b.to_owned())).collect();
    assert!(packages.len() > 50, "the list was read");
    packages
}

/// Otherwise the crate and what depends on such a package are built once for tests and once more
/// for the server.
#[test]
fn tests_switch_on_no_features_of_what_the_server_is_built_of() {
    let with_tests = packages("normal,build,dev", "{f}");
    for (package, features) in packages("normal,build", "{f}") {
        let is_same = with_tests.contains(&(package.clone(), features.clone()));
        assert!(is_same, "tests build {package} with more features than {features:?}");
    }
}

#[test]
fn licences_of_dependencies_are_allowed() {
    let allowed = listed("allow", None);
    for (package, licence) in packages("normal,build,dev", "{l}") {
        let licence = spdx::Expression::parse_mode(&licence, spdx::ParseMode::LAX)
            .unwrap_or_else(|error| panic!("{package}: {error}"));
        let is_allowed = licence.evaluate(|required| {
            required.license.id().is_some_and(|id| allowed.contains(&id.name))
        });
        assert!(is_allowed, "{package} has the licence {licence}, which deny.toml does not allow");
    }
}

#[test]
fn no_dependency_stands_twice() {
    let skipped = listed("skip", Some("crate"));
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in LOCK.split("[[package]]").skip(1) {
        let value = |key: &str| {
            let rest = package.split_once(&format!("\n{key} = \""))?.1;
            rest.split('"').next()
        };
        let name = value("name").expect("a package has a name");
        assert!(
            value("source").is_none_or(|source| source == REGISTRY),
            "{name} is from elsewhere"
        );
        versions.entry(name).or_default().push(value("version").expect("and a version"));
    }
    for (name, versions) in versions {
        let is_skipped = |version: &&&str| {
            skipped.iter().filter_map(|entry| entry.split_once('@')).any(|(skipped, prefix)| {
                let rest = version.strip_prefix(prefix);
                skipped == name && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            })
        };
        let kept = versions.iter().filter(|version| !is_skipped(version)).count();
        assert!(
            kept <= 1,
            "{name} stands more than once: {versions:?}; deny.toml names exceptions"
        );
    }
}
