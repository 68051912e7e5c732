//! The architecture's rules, read off the source: who may use whom, where `unsafe` lives, how long a file may grow.

use std::path::{Path, PathBuf};

/// The rows of the architecture, from the top. A module may use its own row and those below.
const ROWS: &[&[&str]] = &[
    &["main"],
    &["server"],
    &["command", "client", "net", "state"],
    &["script", "persist"],
    &["keyspace", "pubsub", "config", "stats"],
    &["types"],
    &["collections", "resp", "clock", "error", "ids", "sys"],
];

/// A file longer than this wants a reason, or a division by duty.
const LINES_MAX: usize = 1200;
/// Files that are longer, and why.
const LONG_FILES: &[(&str, &str)] = &[];

fn source_files() -> Vec<(PathBuf, String)> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut folders = vec![root];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder of the source can be read") {
            let path = entry.expect("an entry can be read").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).expect("a source file can be read");
                files.push((path, text));
            }
        }
    }
    assert!(files.len() > 20, "the source is where it is looked for");
    files.sort();
    files
}

/// The top-level module a file belongs to.
fn module_of(path: &Path) -> String {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src");
    let relative = path.strip_prefix(root).expect("a file of the source");
    let first = relative.components().next().expect("a path has a component");
    first.as_os_str().to_string_lossy().trim_end_matches(".rs").to_owned()
}

fn row_of(module: &str) -> Option<usize> {
    ROWS.iter().position(|row| row.contains(&module))
}

/// A file without its tests.
fn without_tests(text: &str) -> &str {
    text.split("\n#[cfg(test)]\n").next().unwrap_or(text)
}

#[test]
fn a_module_uses_only_its_own_row_and_those_below() {
    let mut faults = Vec::new();
    for (path, text) in source_files() {
        let module = module_of(&path);
        if module == "lib" {
            continue;
        }
        let row = row_of(&module).unwrap_or_else(|| panic!("{module} stands in no row"));
        for (number, line) in without_tests(&text).lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            for used in code.split("crate::").skip(1) {
                let end = used.find(|c: char| !c.is_alphanumeric() && c != '_');
                let used = &used[..end.unwrap_or(used.len())];
                if row_of(used).is_some_and(|used_row| used_row < row) {
                    faults.push(format!("{}:{}: {line}", path.display(), number + 1));
                }
            }
        }
    }
    assert!(faults.is_empty(), "uses of a row above:\n{}", faults.join("\n"));
}

#[test]
fn unsafe_code_lives_in_few_small_rooms() {
    for (path, text) in source_files() {
        let module = module_of(&path);
        let allows = text.contains("allow(unsafe_code)");
        // Of scripts: the room of the interpreter, and the libraries that speak to it.
        let rooms = ["lua/mod.rs", "library.rs", "cjson.rs", "cmsgpack.rs", "structs.rs", "bit.rs"];
        let is_room = module == "script" && rooms.iter().any(|room| path.ends_with(room));
        assert!(
            !allows || is_room || ["collections", "sys"].contains(&module.as_str()),
            "{} may hold no unsafe code",
            path.display()
        );
    }
}

#[test]
fn no_file_grows_for_ever() {
    for (path, text) in source_files() {
        let lines = text.lines().count();
        let known = LONG_FILES.iter().any(|(name, _)| path.ends_with(name));
        assert!(lines <= LINES_MAX || known, "{} has {lines} lines", path.display());
    }
}
