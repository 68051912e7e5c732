//! No circle of files within a room: files that use each other can only be understood together.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::{code_of, source_files, without_tests};

/// A file's path in the crate, without `mod`: `["gate", "admit"]`.
type Module = Vec<String>;

/// The circles that stay, each with its reason.
const CIRCLES: &[(&[&str], &str)] = &[
    (
        &["config::param", "config::params"],
        "a parameter reads and writes a field of the configuration, whose fields are made of the table of parameters",
    ),
    (
        &["state::context", "state::spec", "state::table"],
        "a specification names its handler, whose context has the command's place in the table of specifications",
    ),
    (
        &["types::journal", "types::stream::journal"],
        "one journal holds the notes of all types, and a stream's own notes are too many for it",
    ),
];

/// Who uses whom.
struct Source {
    files: BTreeMap<Module, String>,
    /// What a module passes on with `pub use`: the module that has it.
    passed_on: BTreeMap<(Module, String), Module>,
}

impl Source {
    fn read() -> Self {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src");
        let files = source_files().into_iter().map(|(path, text)| {
            let name = path.strip_prefix(&root).expect("a file of the source");
            let is_test = name.iter().any(|part| part == "tests");
            let lines = if is_test { Vec::new() } else { without_tests(&path, &text) };
            let code: Vec<&str> = lines.iter().map(|line| code_of(line)).collect();
            (module_of(name), code.join("\n"))
        });
        Source::of(files.collect())
    }

    fn of(files: BTreeMap<Module, String>) -> Self {
        let mut source = Source { files, passed_on: BTreeMap::new() };
        let mut passed_on = BTreeMap::new();
        for (module, text) in &source.files {
            for (path, _) in paths(text).into_iter().filter(|(_, is_passed_on)| *is_passed_on) {
                if let Some((found, Some(name))) = source.resolve(module, &path) {
                    passed_on.insert((module.clone(), name), found);
                }
            }
        }
        source.passed_on = passed_on;
        source
    }

    /// The module that a path leads to, and the name that is meant in it. None: it does not begin
    /// in this crate.
    fn resolve(&self, from: &Module, path: &str) -> Option<(Module, Option<String>)> {
        let mut words = path.split("::").map(str::trim).peekable();
        let mut found = match *words.peek()? {
            "crate" => Module::new(),
            "super" | "self" => from.clone(),
            first => {
                let mut child = from.clone();
                child.push(first.to_owned());
                self.files.contains_key(&child).then(|| from.clone())?
            }
        };
        while let Some(word) = words.next_if(|word| ["crate", "super", "self"].contains(word)) {
            if word == "super" {
                found.pop();
            }
        }
        for word in words {
            found.push(word.to_owned());
            if !self.files.contains_key(&found) {
                found.pop();
                return Some((found, Some(word.to_owned())));
            }
        }
        Some((found, None))
    }

    /// The modules that a module uses, those excepted that it lies in: they hold what their parts
    /// share.
    fn used_by(&self, module: &Module) -> BTreeSet<Module> {
        let mut used = BTreeSet::new();
        for (path, _) in paths(&self.files[module]).into_iter().filter(|(_, passed_on)| !passed_on)
        {
            let Some((mut found, name)) = self.resolve(module, &path) else { continue };
            let mut seen = BTreeSet::new();
            while let Some(name) = &name
                && let Some(next) = self.passed_on.get(&(found.clone(), name.clone()))
                && seen.insert(next.clone())
            {
                found = next.clone();
            }
            if !module.starts_with(&found) {
                used.insert(found);
            }
        }
        used
    }

    /// The circles, each with its modules in order.
    fn circles(&self) -> BTreeSet<Vec<String>> {
        let within = |module: &Module| -> BTreeSet<Module> {
            self.used_by(module).into_iter().filter(|used| used.first() == module.first()).collect()
        };
        let uses: BTreeMap<&Module, BTreeSet<Module>> =
            self.files.keys().map(|module| (module, within(module))).collect();
        let reached = |from: &Module| {
            let (mut reached, mut left) = (BTreeSet::new(), vec![from.clone()]);
            while let Some(module) = left.pop() {
                for used in uses.get(&module).into_iter().flatten() {
                    if reached.insert(used.clone()) {
                        left.push(used.clone());
                    }
                }
            }
            reached
        };
        let reaches: BTreeMap<&Module, BTreeSet<Module>> =
            self.files.keys().map(|module| (module, reached(module))).collect();
        let mut circles = BTreeSet::new();
        for (module, reached) in reaches.iter().filter(|(module, all)| all.contains(**module)) {
            let back =
                |other: &&Module| reaches.get(other).is_some_and(|all| all.contains(*module));
            circles.insert(reached.iter().filter(back).map(|other| other.join("::")).collect());
        }
        circles
    }
}

fn module_of(name: &Path) -> Module {
    let name = name.with_extension("");
    let mut words: Module = name.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    if words.last().is_some_and(|word| word == "mod") {
        words.pop();
    }
    words
}

/// The paths in a text: of `use` lines, and those within code that begin with `crate` or `super`;
/// and whether `pub use` passes one on.
fn paths(text: &str) -> Vec<(String, bool)> {
    let mut paths = Vec::new();
    let mut rest = String::new();
    let mut in_use: Option<(String, bool)> = None;
    for line in text.lines() {
        let code = line.trim();
        if in_use.is_none()
            && let Some((before, used)) = code.split_once("use ")
            && (before.is_empty() || before == "pub " || before.starts_with("pub("))
        {
            in_use = Some((used.to_owned(), !before.is_empty()));
        } else if let Some((used, _)) = &mut in_use {
            used.push_str(code);
        } else {
            rest.push_str(code);
            rest.push('\n');
        }
        if let Some((used, passed_on)) = in_use.take_if(|(used, _)| used.ends_with(';')) {
            let used = used.trim_end_matches(';');
            paths.extend(expanded(used).into_iter().map(|path| (path, passed_on)));
        }
    }
    let is_of_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let words = rest.split(|c: char| !is_of_path(c));
    let begins = |word: &&str| word.starts_with("crate::") || word.starts_with("super::");
    paths.extend(words.filter(begins).map(|word| (word.trim_end_matches(':').to_owned(), false)));
    paths
}

/// A path with braces as several without.
fn expanded(path: &str) -> Vec<String> {
    let path = path.trim();
    let Some((before, inner)) = path.split_once('{') else {
        let name = path.split(" as ").next().unwrap_or_default();
        return if name.is_empty() { Vec::new() } else { vec![name.to_owned()] };
    };
    let inner = inner.strip_suffix('}').unwrap_or(inner);
    let (mut parts, mut depth) = (vec![String::new()], 0);
    for c in inner.chars() {
        depth += i32::from(c == '{') - i32::from(c == '}');
        match parts.last_mut() {
            Some(part) if c != ',' || depth > 0 => part.push(c),
            _ => parts.push(String::new()),
        }
    }
    parts.iter().flat_map(|part| expanded(part)).map(|part| format!("{before}{part}")).collect()
}

#[test]
fn files_within_a_room_use_each_other_in_no_circle() {
    let found = Source::read().circles();
    let known: BTreeSet<Vec<String>> = CIRCLES
        .iter()
        .map(|(circle, _)| circle.iter().map(|module| (*module).to_owned()).collect())
        .collect();
    let new: Vec<_> = found.difference(&known).collect();
    let gone: Vec<_> = known.difference(&found).collect();
    assert!(
        new.is_empty(),
        "these files use each other; move the shared part to a file below them: {new:#?}"
    );
    assert!(gone.is_empty(), "no longer circles, take them out of CIRCLES: {gone:#?}");
    assert!(CIRCLES.len() <= 3, "three circles are enough");
}

#[test]
fn circles_are_found() {
    let circles = |files: &[(&str, &str)]| {
        let files =
            files.iter().map(|(name, text)| (module_of(Path::new(name)), (*text).to_owned()));
        Source::of(files.collect()).circles().into_iter().collect::<Vec<_>>()
    };
    let head = ("a/mod.rs", "pub mod b;\npub mod c;\npub use c::Thing;");
    // By `use` over several lines, by a name passed on, and by a path within code.
    let files = [
        head,
        ("a/b.rs", "use crate::{\n    a::{c::{Other, more}, d},\n    x,\n};"),
        ("a/c.rs", "fn f() { super::b::g(); }"),
    ];
    assert_eq!(circles(&files), [["a::b", "a::c"]]);
    let files =
        [head, ("a/b.rs", "use super::Thing;"), ("a/c.rs", "pub(super) fn f() {}\nuse super::b;")];
    assert_eq!(circles(&files), [["a::b", "a::c"]]);
    // Not by using the head of one's own folder, nor by what only goes one way or lies in another
    // room.
    let files = [
        ("a/mod.rs", "mod b;\nmod c;\nuse b::f;"),
        ("a/b.rs", "use super::Shared;\nuse a::c;\nuse std::fmt;"),
        ("a/c.rs", "use crate::e::b;\nuse super::Shared;"),
        ("e/b.rs", "use crate::a::b;"),
    ];
    assert!(circles(&files).is_empty());
}
