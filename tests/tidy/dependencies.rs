//! The rules of `deny.toml` for what others wrote, checked without a network: licences, versions
//! that stand twice, sources.

use std::collections::BTreeMap;
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

#[test]
fn licences_of_dependencies_are_allowed() {
    let allowed = listed("allow", None);
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = Command::new(cargo)
        .args(["tree", "--locked", "--offline", "--edges", "normal,build,dev"])
        .args(["--prefix", "none", "--format", "{p}|{l}"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let tree = String::from_utf8(output.stdout).expect("cargo writes UTF-8");
    let mut packages = 0;
    for line in tree.lines() {
        let Some((package, licence)) = line.trim_end_matches(" (*)").split_once('|') else {
            continue;
        };
        packages += 1;
        let licence = spdx::Expression::parse_mode(licence, spdx::ParseMode::LAX)
            .unwrap_or_else(|error| panic!("{package}: {error}"));
        let is_allowed = licence.evaluate(|required| {
            required.license.id().is_some_and(|id| allowed.contains(&id.name))
        });
        assert!(is_allowed, "{package} has the licence {licence}, which deny.toml does not allow");
    }
    assert!(packages > 50, "the list was read");
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
