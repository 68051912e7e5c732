//! The inputs kept for the fuzz targets are replayed: what a fuzzer once found stays found, without
//! a fuzzer.

use std::path::PathBuf;

#[path = "../../fuzz/bodies/mod.rs"]
mod bodies;

/// Makes a test of each target.
macro_rules! targets {
    ($($name:ident),* $(,)?) => {
        $(
            #[test]
            fn $name() {
                replay(stringify!($name), bodies::$name::run);
            }
        )*

        #[test]
        fn every_target_is_replayed() {
            let names: Vec<String> =
                [$(stringify!($name)),*].iter().map(|name| format!("{name}.rs")).collect();
            let mut bodies = names.clone();
            bodies.push("mod.rs".into());
            bodies.sort();
            assert_eq!(files("fuzz_targets"), names, "fuzz/fuzz_targets and the list in tests/it/fuzz_corpus.rs");
            assert_eq!(files("bodies"), bodies, "fuzz/bodies");
            let manifest = include_str!("../../fuzz/Cargo.toml");
            for name in names {
                assert!(manifest.contains(&format!("path = \"fuzz_targets/{name}\"")), "{name}");
            }
        }
    };
}

targets! {
    acl,
    aof,
    cluster_message,
    config,
    function_payload,
    glob,
    http,
    hyperloglog,
    inline,
    link,
    listpack,
    manifest,
    packed,
    primary,
    rdb,
    replica,
    request,
    restore,
    script_libraries,
    stream,
}

/// The names in a folder of `fuzz`, sorted.
fn files(folder: &str) -> Vec<String> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fuzz").join(folder);
    let entries = std::fs::read_dir(&folder).expect("a folder of the fuzz targets");
    let mut names: Vec<String> = entries
        .map(|entry| {
            entry.expect("an entry can be read").file_name().to_string_lossy().into_owned()
        })
        .collect();
    names.sort();
    names
}

/// Runs a target on each input of its corpus, and on what it becomes when it is cut off anywhere.
fn replay(target: &str, run: fn(&[u8])) {
    let names = files(&format!("corpus/{target}"));
    assert!(names.len() > 2, "{target} has a corpus");
    for name in names {
        let path =
            PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target).join(&name);
        let input = std::fs::read(&path).expect("an input");
        for end in 0..=input.len() {
            // Shown if it fails.
            println!("{target}/{name}, its first {end} bytes");
            run(&input[..end]);
        }
    }
}
