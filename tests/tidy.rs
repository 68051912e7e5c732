//! The architecture's rules, read off the source: who may use whom, where `unsafe` lives, how long
//! a file may grow. Circles of files are in `circles.rs`, figures that
//! documents quote in `figures.rs`.

use std::path::{Path, PathBuf};

#[path = "tidy/circles.rs"]
mod circles;
#[path = "tidy/dependencies.rs"]
mod dependencies;
#[path = "tidy/figures.rs"]
mod figures;

/// The rows of the architecture, from the top. A module may use its own row and those below.
const ROWS: &[&[&str]] = &[
    &["main"],
    &["server", "tools"],
    &["http"],
    &["command"],
    &["figures"],
    &["roles"],
    &["durability"],
    &["waiting"],
    &["gate"],
    &["state"],
    &["client"],
    &["net"],
    &["script", "persist", "replication", "cluster"],
    &["keyspace", "pubsub", "acl", "config", "stats"],
    &["types"],
    &["collections", "resp", "clock", "error", "facts", "ids", "sys"],
];

/// Maximum lines of a file. A longer one must be divided by duty.
const LINES_MAX: usize = 1000;

/// Maximum arguments of a function, `self` among them, in rooms that act on the whole state. A tuple
/// counts as its parts.
const ARGUMENTS_MAX: usize = 4;

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

/// A file without what only tests compile, line by line: what is left out becomes empty lines, so
/// that numbers stay.
///
/// An item behind `#[cfg(test)]` ends with the first line, indented as it is, that ends in `}`, `;`
/// or `,`: rustfmt's layout.
fn without_tests(path: &Path, text: &str) -> Vec<String> {
    let is_test_file =
        path.file_stem().is_some_and(|stem| stem.to_string_lossy().ends_with("tests"));
    let mut cut = Vec::new();
    // How far the item is indented that is being left out.
    let mut leaving: Option<usize> = is_test_file.then_some(usize::MAX);
    for line in text.lines() {
        let code = line.trim_start();
        let indent = line.len() - code.len();
        let is_attribute = code.starts_with("#[") || code.starts_with("//");
        if leaving.is_none() && code.starts_with("#[cfg(test)]") {
            leaving = Some(indent);
        }
        cut.push(if leaving.is_some() { String::new() } else { line.to_owned() });
        if leaving == Some(indent) && !is_attribute && code.ends_with(['}', ';', ',']) {
            leaving = None;
        }
    }
    cut
}

/// A line without its comment.
fn code_of(line: &str) -> &str {
    line.split("//").next().unwrap_or_default()
}

#[test]
fn only_what_tests_compile_is_left_out() {
    let text = "\
use crate::a;
enum E {
    #[cfg(test)]
    Chosen(fn(&[u8]) -> u64),
    Other,
}
#[cfg(test)]
mod tests;
impl E {
    #[cfg(test)]
    #[inline]
    fn check(
        &self,
    ) -> u64 {
        if true {
            1
        }
    }

    fn kept(&self) {}
}
#[cfg(test)]
mod tests {
    use crate::b;
}
";
    let left = without_tests(Path::new("x.rs"), text);
    let left: Vec<&str> = left.iter().map(String::as_str).filter(|line| !line.is_empty()).collect();
    let expected =
        ["use crate::a;", "enum E {", "    Other,", "}", "impl E {", "    fn kept(&self) {}", "}"];
    assert_eq!(left, expected);
    // A file whose tests stand in the middle is looked at to its end.
    let (path, text) = source_files()
        .into_iter()
        .find(|(path, _)| path.ends_with("collections/table.rs"))
        .expect("the table");
    assert!(without_tests(&path, &text).iter().any(|line| line.contains("pub fn random(")));
}

#[test]
fn a_module_uses_only_its_own_row_and_those_below() {
    let mut faults = Vec::new();
    for (path, text) in source_files() {
        let module = module_of(&path);
        if module == "lib" {
            continue;
        }
        let row = row_of(&module).unwrap_or_else(|| {
            panic!("src/{module} is in no row: add it to ROWS in tests/tidy.rs, as in src/lib.rs")
        });
        for (number, line) in without_tests(&path, &text).iter().enumerate() {
            for used in code_of(line).split("crate::").skip(1) {
                let end = used.find(|c: char| !c.is_alphanumeric() && c != '_');
                let used = &used[..end.unwrap_or(used.len())];
                if row_of(used).is_some_and(|used_row| used_row < row) {
                    faults.push(format!("{}:{}: {line}", path.display(), number + 1));
                }
            }
        }
    }
    assert!(
        faults.is_empty(),
        "these lines use a module of a row above their own (ROWS in tests/tidy.rs):\n{}",
        faults.join("\n")
    );
}

/// The head of a room names all its parts. The families of commands need no list.
#[test]
fn a_room_is_listed_in_its_head() {
    const FAMILIES: &str = "command";
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src");
    let files = source_files();
    let mut missing = Vec::new();
    let mut count = 0;
    for (path, _) in &files {
        let name = path.strip_prefix(&root).expect("a file of the source").with_extension("");
        let words: Vec<_> = name.iter().map(|word| word.to_string_lossy()).collect();
        let [room, part, ..] = &words[..] else { continue };
        if ["mod", "tests"].contains(&&**part) || room == FAMILIES {
            continue;
        }
        count += 1;
        let heads = [root.join(format!("{room}.rs")), root.join(format!("{room}/mod.rs"))];
        let (_, head) = files.iter().find(|(path, _)| heads.contains(path)).expect("a room's head");
        let header = head.lines().take_while(|line| line.starts_with("//!"));
        let quoted = header.flat_map(|line| line.split('`').skip(1).step_by(2));
        let first = |word: &str| word.split("::").next().unwrap_or_default().to_owned();
        let named: Vec<String> = quoted.map(first).collect();
        let (file, folder) = (format!("{part}.rs"), format!("{part}/"));
        let is_part = |named: &String| [&**part, &file, &folder].contains(&named.as_str());
        if !named.iter().any(is_part) {
            missing.push(format!("{room}: {part}"));
        }
    }
    missing.dedup();
    assert!(count > 100, "rooms have parts");
    assert!(
        missing.is_empty(),
        "name these in backquotes in the head (`//!`) of their folder: {missing:#?}"
    );
}

#[test]
fn unsafe_code_lives_in_few_small_rooms() {
    for (path, text) in source_files() {
        let module = module_of(&path);
        let allows = text.contains("allow(unsafe_code)");
        // Of scripts: the room of the interpreter, and the libraries that speak to it.
        let rooms = [
            "lua/mod.rs",
            "libraries/mod.rs",
            "helpers.rs",
            "cjson.rs",
            "cmsgpack.rs",
            "structs.rs",
            "bit.rs",
        ];
        let is_room = module == "script" && rooms.iter().any(|room| path.ends_with(room));
        assert!(
            !allows || is_room || ["collections", "sys"].contains(&module.as_str()),
            "{}: only src/collections, src/sys and a few files of src/script may allow unsafe code",
            path.display()
        );
    }
}

/// What differs between operating systems, or their C libraries, is in one room, a file for each.
#[test]
fn only_sys_asks_which_system_it_is() {
    const QUESTIONS: [&str; 6] =
        ["target_os", "target_env", "target_vendor", "target_family", "std::os::linux", "cfg(unix"];
    let asks = |line: &&str| QUESTIONS.iter().any(|question| code_of(line).contains(question));
    let (mut within, mut faults) = (0, Vec::new());
    for (path, text) in source_files() {
        let count = text.lines().filter(asks).count();
        match module_of(&path).as_str() {
            "sys" => within += count,
            _ if count > 0 => faults.push(format!("{}: {count} lines", path.display())),
            _ => {}
        }
    }
    assert!(within > 5, "src/sys asks");
    assert!(faults.is_empty(), "what a system does differently belongs to src/sys: {faults:#?}");
}

/// The error texts in a line of code: a word in capitals, a blank, and more than a parameter's name
/// behind it. Help texts name optional parameters in brackets.
fn error_texts(line: &str) -> impl Iterator<Item = &str> {
    line.split('"').skip(1).step_by(2).filter(|text| {
        let (code, behind) = text.split_once(' ').unwrap_or_default();
        code.len() > 2
            && behind.len() > 4
            && !behind.starts_with('[')
            && code.bytes().all(|byte| byte.is_ascii_uppercase())
    })
}

#[test]
fn an_error_text_stands_in_one_file() {
    let mut places = std::collections::BTreeMap::<String, Vec<PathBuf>>::new();
    for (path, text) in source_files() {
        // Words in capitals of texts for the log are no errors.
        for line in without_tests(&path, &text).iter().filter(|line| !line.contains("log")) {
            for text in error_texts(code_of(line)) {
                let places = places.entry(text.to_owned()).or_default();
                if places.last() != Some(&path) {
                    places.push(path.clone());
                }
            }
        }
    }
    assert!(places.len() > 200, "error texts are found");
    places.retain(|_, places| places.len() > 1);
    assert!(
        places.is_empty(),
        "several files have the same error text, make it a constant of error.rs: {places:#?}"
    );
}

#[test]
fn no_file_grows_for_ever() {
    for (path, text) in source_files() {
        let lines = text.lines().count();
        assert!(
            lines <= LINES_MAX,
            "{} has {lines} lines, the limit is {LINES_MAX}: divide it by duty",
            path.display()
        );
    }
}

/// Comments wrap at this width; drawings, tables and links may be wider.
const COMMENT_WIDTH_MAX: usize = 100;

/// What stands between the commas of a list that begins with its `(`.
fn list(text: &str) -> Vec<&str> {
    let (mut depth, mut last, mut before, mut parts) = (0, 1, ' ', Vec::new());
    for (at, character) in text.char_indices() {
        depth += match character {
            '(' | '[' | '<' => 1,
            '>' if before == '-' => 0,
            ')' | ']' | '>' => -1,
            _ => 0,
        };
        if depth == 0 || (depth == 1 && character == ',') {
            parts.push(text[last..at].trim());
            last = at + 1;
        }
        if depth == 0 {
            break;
        }
        before = character;
    }
    parts.retain(|part| !part.is_empty());
    parts
}

/// The number of arguments in a signature that begins with its `(`. A tuple counts as its parts.
fn arguments(signature: &str) -> usize {
    let count = |argument: &&str| {
        let pattern_end = if argument.starts_with('(') { argument.find("):") } else { None };
        let (_, kind) = argument[pattern_end.unwrap_or(0)..].split_once(": ").unwrap_or_default();
        let kind = kind.trim_start_matches("&mut ").trim_start_matches('&');
        if kind.starts_with('(') { parts_of_kind(kind) } else { 1 }
    };
    list(signature).iter().map(count).sum()
}

fn parts_of_kind(kind: &str) -> usize {
    let count = |part: &&str| if part.starts_with('(') { parts_of_kind(part) } else { 1 };
    list(kind).iter().map(count).sum()
}

#[test]
fn arguments_are_counted() {
    assert_eq!(arguments("()"), 0);
    let signature = "(&mut self, (a, b): (u8, [u8; 2]), f: impl Fn(u8, u8) -> u8) {";
    assert_eq!(arguments(signature), 4);
    let signature = "(\n    core: &mut Core,\n    map: HashMap<u8, u8>,\n) -> (u8, u8)";
    assert_eq!(arguments(signature), 2);
    let signature = "(at: &(u8, u8), ((a, b), c): ((u8, &[u8]), u8), f: fn((u8, u8)))";
    assert_eq!(arguments(signature), 6);
}

#[test]
fn functions_that_act_on_the_whole_state_take_few_arguments() {
    let mut counted = 0;
    for (path, text) in source_files() {
        if !matches!(&*module_of(&path), "roles" | "durability" | "waiting" | "gate") {
            continue;
        }
        let lines = without_tests(&path, &text);
        for (number, line) in lines.iter().enumerate() {
            let code = code_of(line);
            let Some((_, rest)) = code.split_once("fn ") else { continue };
            let name = rest.split(['(', '<']).next().unwrap_or_default();
            let end = lines.len().min(number + 20);
            let rest = [rest, &lines[number + 1..end].join("\n")].join("\n");
            let generic = rest[name.len()..].starts_with('<').then(|| rest.find(">(")).flatten();
            let signature = &rest[generic.map_or(name.len(), |at| at + 1)..];
            let count = arguments(signature);
            counted += 1;
            assert!(
                count <= ARGUMENTS_MAX,
                "{}:{}: {name} takes {count} arguments: a type has to hold some of them",
                path.display(),
                number + 1
            );
        }
    }
    assert!(counted > 500, "{counted} functions were found");
}

#[test]
fn comments_wrap() {
    let mut wide = Vec::new();
    for (path, text) in source_files() {
        let mut is_drawing = false;
        for (index, line) in text.lines().enumerate() {
            let Some(comment) = line.trim_start().strip_prefix("//") else {
                is_drawing = false;
                continue;
            };
            let comment = comment.trim_start_matches(['/', '!']).trim_start();
            is_drawing ^= comment.starts_with("```");
            let is_wide = line.chars().count() > COMMENT_WIDTH_MAX;
            if is_wide && !is_drawing && !comment.starts_with(['|', '[']) {
                wide.push(format!("{}:{}", path.display(), index + 1));
            }
        }
    }
    assert!(wide.is_empty(), "these comments are wider than {COMMENT_WIDTH_MAX}: {wide:#?}");
}

/// Tables that rustfmt leaves alone have two lines for a command and one or two for a figure.
const TABLE_WIDTH_MAX: usize = 160;

#[test]
fn only_tables_are_left_unformatted() {
    let (mut tables, mut faults) = (0, Vec::new());
    for (path, text) in source_files() {
        let mut lines = text.lines().enumerate();
        while let Some((index, line)) = lines.next() {
            if !code_of(line).contains("rustfmt::skip") {
                continue;
            }
            let place = format!("{}:{}", path.display(), index + 1);
            let head = lines.next().map_or("", |(_, head)| head);
            let is_const = head.starts_with("const ") || head.starts_with("pub const ");
            let is_table = [": &[CommandSpec] =", ": CommandSpec =", ": &[Row] ="]
                .iter()
                .any(|kind| head.contains(kind));
            if line != "#[rustfmt::skip]" || !is_const || !is_table {
                faults.push(format!("{place}: no const table of commands or figures"));
                continue;
            }
            tables += 1;
            for (index, row) in lines.by_ref().take_while(|(_, row)| !row.ends_with(';')) {
                if row.chars().count() > TABLE_WIDTH_MAX || row.ends_with(' ') {
                    faults.push(format!("{}:{}: too wide", path.display(), index + 1));
                }
            }
        }
    }
    assert!(tables > 60, "{tables} tables");
    assert!(faults.is_empty(), "{faults:#?}");
}

/// Limits that the configuration sets for clients. What comes from a file or from the primary must
/// not meet them: these places know who asks.
const CLIENT_LIMITS: &[&str] =
    &["config.proto_max_bulk_len", "config.script_source_limit", "config.script_memory_limit"];
const LIMIT_READERS: &[&str] = &["state/context.rs", "server/intake.rs"];

#[test]
fn limits_of_clients_are_read_where_it_is_known_who_asks() {
    let mut readers = std::collections::BTreeSet::new();
    for (path, text) in source_files() {
        let reads = |line: &String| CLIENT_LIMITS.iter().any(|limit| code_of(line).contains(limit));
        if without_tests(&path, &text).iter().any(reads) {
            let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src");
            readers.insert(path.strip_prefix(root).expect("a file of the source").to_owned());
        }
    }
    let known = LIMIT_READERS.iter().map(PathBuf::from).collect();
    assert_eq!(
        readers, known,
        "only LIMIT_READERS read the limits of clients; others ask `Context::size_limits`"
    );
}

/// Who draws numbers that can be guessed, how often they are named, and what for: statistics, no
/// secret. Secrets come from `sys/random.rs`.
const GUESSABLE: &[(&str, usize, &str)] = &[
    ("cluster/mod.rs", 2, "whom a node pings and tells of, and how long an election waits"),
    ("cluster/tests/world.rs", 2, "misfortunes of tests"),
    ("collections/packed_table.rs", 3, "a random element of a large hash or set"),
    ("collections/table.rs", 6, "RANDOMKEY, and where a sample for eviction begins"),
    ("command/hash/mod.rs", 1, "HRANDFIELD"),
    ("command/sorted_set/mod.rs", 3, "ZRANDMEMBER"),
    ("command/string/hyperloglog.rs", 1, "PFSELFTEST"),
    ("keyspace/evict.rs", 3, "candidates for eviction, LFU's counter"),
    ("keyspace/tracking.rs", 1, "which key is forgotten when there are too many"),
    ("stats/hot_keys.rs", 1, "which keys a sample of HOTKEYS has"),
    ("sys/disk/model.rs", 2, "what a disk of tests loses in a crash"),
    ("sys/random.rs", 2, "seeds this thread's generator"),
    ("types/hash.rs", 2, "HRANDFIELD"),
    ("types/hyperloglog.rs", 1, "PFSELFTEST"),
    ("types/set.rs", 6, "SRANDMEMBER, SPOP"),
];

#[test]
fn what_nobody_may_guess_does_not_come_from_statistics() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut users = Vec::new();
    for (path, text) in source_files() {
        let lines = without_tests(&path, &text);
        let count: usize = lines.iter().map(|line| code_of(line).matches("fastrand").count()).sum();
        if count > 0 {
            let name = path.strip_prefix(&root).expect("a file of the source");
            users.push((name.to_string_lossy().into_owned(), count));
        }
    }
    let known: Vec<(String, usize)> =
        GUESSABLE.iter().map(|(name, count, _)| ((*name).to_owned(), *count)).collect();
    assert_eq!(
        users, known,
        "uses of fastrand, and GUESSABLE, which lists them: add statistics there; \
         what must not be guessed comes from sys/random.rs"
    );
    for (path, text) in source_files() {
        let repeats = without_tests(&path, &text).iter().any(|line| line.contains("repeat_from("));
        let is_home = path.ends_with("sys/random.rs");
        assert!(!repeats || is_home, "{}: secrets of a simulation", path.display());
    }
}

/// Every file and folder of the repository, from its root; what is built and what git keeps left
/// out.
fn repository() -> Vec<String> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let mut folders = vec![root.clone()];
    let mut names = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder can be read") {
            let path = entry.expect("an entry can be read").path();
            let name = path.strip_prefix(&root).expect("a path below the root").to_string_lossy();
            if [".git", "target"].contains(&&*name) {
                continue;
            }
            names.push(format!("/{name}"));
            if path.is_dir() {
                folders.push(path);
            }
        }
    }
    names
}

/// What stands between single backquotes in a document and looks like a path of this repository:
/// with the ending of a file that we have, or beginning with a folder that we have.
fn paths_named(text: &str, repository: &[String]) -> Vec<String> {
    const ENDINGS: &[&str] = &["/", ".rs", ".md", ".toml", ".txt", ".tsv", ".tcl", ".yml"];
    let is_path = |word: &&str| {
        let known = |c: char| c.is_ascii_alphanumeric() || "_./*-".contains(c);
        let first = word.split('/').next().unwrap_or_default();
        word.chars().all(known)
            && !word.starts_with('/')
            && (ENDINGS.iter().any(|ending| word.ends_with(ending))
                || word.contains('/') && repository.contains(&format!("/{first}")))
    };
    let blocks = text.split("```").step_by(2);
    let words = blocks.flat_map(|block| block.split('`').skip(1).step_by(2));
    words.filter(is_path).map(str::to_owned).collect()
}

#[test]
fn documents_name_only_what_is_there() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let repository = repository();
    let is_there = |path: &str| {
        let path = path.trim_end_matches('/');
        // Of a pattern, what stands before the first star.
        let (fixed, is_pattern) =
            path.split_once('*').map_or((path, false), |(fixed, _)| (fixed, true));
        let suffix = format!("/{fixed}");
        repository
            .iter()
            .any(|name| name.ends_with(&suffix) || is_pattern && name.contains(&suffix))
    };
    assert!(is_there("collections/table.rs") && !is_there("collections/nosuch.rs"));
    let mut missing = Vec::new();
    let mut count = 0;
    let is_document = |name: &&String| {
        name.ends_with(".md") && (name.rfind('/') == Some(0) || name.starts_with("/docs/"))
    };
    for document in repository.iter().filter(is_document) {
        let text = std::fs::read_to_string(root.join(&document[1..])).expect("a document");
        for path in paths_named(&text, &repository) {
            count += 1;
            if !is_there(&path) {
                missing.push(format!("{document}: `{path}`"));
            }
        }
    }
    assert!(count > 40, "documents name paths");
    assert!(missing.is_empty(), "documents name files that do not exist:\n{}", missing.join("\n"));
}

#[test]
fn scanners_read_the_advisories_that_people_read() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    // What stands between `before` and the character `end`, of each line that begins with `before`.
    let names = |file: &str, before: &str, end: char| {
        let text = std::fs::read_to_string(root.join(file)).expect("a document can be read");
        let name =
            |line: &str| Some(line.trim().strip_prefix(before)?.split(end).next()?.to_owned());
        text.lines().filter_map(name).collect::<std::collections::BTreeSet<String>>()
    };
    let told = names("docs/advisories.md", "- **", '*');
    let listed = names("docs/latchkey.openvex.json", "\"name\": \"", '"');
    assert!(told.len() > 30, "the document has entries");
    assert_eq!(told, listed, "packaging/vex >docs/latchkey.openvex.json");
    let text = std::fs::read_to_string(root.join("docs/advisories.md")).expect("a document");
    let count = format!("\nOf {} CVEs ", told.len());
    assert!(text.contains(&count), "docs/advisories.md says how many there are");
}

#[test]
fn crossings_name_only_tests_that_are_there() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let table = std::fs::read_to_string(root.join("docs/crossings.md")).expect("the table");
    let is_source = |name: &&String| {
        name.ends_with(".rs") && (name.starts_with("/src/") || name.starts_with("/tests/"))
    };
    let files = repository();
    let texts = files.iter().filter(is_source).map(|name| {
        std::fs::read_to_string(root.join(&name[1..])).expect("a source file can be read")
    });
    let sources: String = texts.collect();
    let mut count = 0;
    for row in table.lines().filter(|line| line.starts_with("| ")) {
        let tests = row.split('|').nth(3).unwrap_or_default();
        for name in tests.split('`').skip(1).step_by(2) {
            count += 1;
            assert!(
                sources.contains(&format!("fn {name}(")),
                "docs/crossings.md: no test is called {name}"
            );
        }
    }
    assert!(count > 40, "the table names tests");
}
