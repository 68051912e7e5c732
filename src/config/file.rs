//! The configuration file: lines, and the loader that turns text into a [`Config`].
//!
//! Each line is split into arguments, and its directive sets a parameter or is returned for the
//! server (`user`, `rename-command`). `include` loads the files that match its pattern; their lines
//! are counted together, from 1, as in Redis. Nothing is printed here: errors are returned as a
//! [`ConfigError`], with Redis' messages.

use std::collections::{HashMap, HashSet};
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::kind::Origin;
use super::param::{ON_FOR_VALKEY, Param};
use super::params::Config;
use super::quoting::{parse_line, split_args, trim};
use super::reason::{Reason, system_text};
use crate::collections::glob;

/// Maximum bytes of a file or of standard input: far more than any real configuration has.
const TEXT_BYTES_MAX: u64 = 64 << 20;
const INCLUDE_DEPTH_MAX: u32 = 16;
/// Maximum number of `include` lines: if a file includes itself twice, the lines double at each
/// level.
const INCLUDES_MAX: u32 = 4096;

/// Directives of older versions that are accepted, with one argument, and ignored.
const IGNORED: [&str; 4] = [
    "events-per-io-thread",
    "list-max-ziplist-entries",
    "list-max-ziplist-value",
    "lua-replicate-commands",
];

/// Prefixes of the parameters of Redis 8's modules. Those of other modules have a dot in their
/// name.
const MODULE_PREFIXES: [&str; 4] = ["bf-", "cf-", "search-", "ts-"];

/// Maximum number of faults that a check collects.
const FAULTS_MAX: usize = 1000;

/// Where a line was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    File(PathBuf),
    StandardInput,
    /// An option.
    CommandLine,
}

/// A line of the file, for error messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Counted from 1. Options of the command line follow the last line of the file.
    pub number: usize,
    /// Without spaces at both ends.
    pub text: Vec<u8>,
    pub source: Source,
    /// Counted from 1 in its own source, unlike `number`.
    pub number_there: usize,
}

impl Line {
    /// Its first word, in lower case.
    pub fn directive(&self) -> Vec<u8> {
        let is_end = |byte: &u8| byte.is_ascii_whitespace();
        let word = self.text.split(is_end).next().unwrap_or_default();
        word.to_ascii_lowercase()
    }
}

/// Texts that are loaded as one, and the beginning of each.
#[derive(Debug, Default)]
pub(super) struct Text {
    pub bytes: Vec<u8>,
    parts: Vec<(usize, Source)>,
}

impl Text {
    pub fn of(bytes: Vec<u8>) -> Self {
        Text { bytes, parts: Vec::new() }
    }

    /// Notes that the following bytes, until the next call, are from this source.
    pub fn begin(&mut self, source: Source) {
        self.parts.push((self.bytes.len(), source));
    }

    /// All lines, without spaces at both ends.
    fn lines(&self) -> impl Iterator<Item = Line> {
        let (mut offset, mut number_there) = (0, 0);
        let mut part = 0;
        self.bytes.split(|byte| *byte == b'\n').enumerate().map(move |(index, bytes)| {
            while let Some((start, _)) = self.parts.get(part + 1).filter(|next| next.0 <= offset) {
                // If a text has no line end at its end, its last line and the first of the next
                // text are one line.
                number_there = usize::from(*start < offset);
                part += 1;
            }
            number_there += 1;
            offset += bytes.len() + 1;
            let source = self.parts.get(part).map_or(Source::StandardInput, |part| part.1.clone());
            Line { number: index + 1, text: trim(bytes).to_vec(), source, number_there }
        })
    }
}

/// A directive that the server must run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directive {
    /// The arguments after the directive's name.
    pub args: Vec<Vec<u8>>,
    /// Its line.
    pub line: Line,
}

impl Directive {
    /// The error that stops the start because of this directive.
    pub fn error(&self, reason: impl Into<String>) -> ConfigError {
        ConfigError::Line { line: self.line.clone(), reason: Reason::Other(reason.into()) }
    }
}

/// The reason why the server cannot start. Its `Display` is for standard error; the process then
/// exits with 1.
#[derive(Debug)]
pub enum ConfigError {
    /// A line of the file or an option of the command line.
    Line { line: Line, reason: Reason },
    /// The configuration as a whole.
    Whole(Reason),
    /// A file that cannot be read.
    File { path: PathBuf, error: io::Error },
}

impl ConfigError {
    /// The message as bytes, with the line as in the file.
    pub fn message(&self) -> Vec<u8> {
        let heading = concat!(
            "\n*** FATAL CONFIG FILE ERROR (Latchkey ",
            env!("CARGO_PKG_VERSION"),
            ") ***\n"
        );
        match self {
            ConfigError::Line { line, reason } => {
                let place = format!(
                    "{heading}Reading the configuration file, at line {}\n>>> '",
                    line.number
                );
                [place.as_bytes(), &line.text, format!("'\n{reason}\n").as_bytes()].concat()
            }
            ConfigError::Whole(reason) => format!("{heading}{reason}\n").into_bytes(),
            ConfigError::File { path, error } => {
                let text = format!("': {}\n", system_text(error));
                [
                    b"Fatal error, can't open config file '",
                    path.as_os_str().as_bytes(),
                    text.as_bytes(),
                ]
                .concat()
            }
        }
    }
}

impl std::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.message()))
    }
}

impl std::error::Error for ConfigError {}

/// The purpose for which a configuration is loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The configuration is made of a text alone: no file is read or written.
    #[default]
    Text,
    /// The first fault ends the loading.
    Start,
    /// Faults are collected, and no file remains.
    Check,
}

/// A fault that a check has found.
#[derive(Debug)]
pub struct Refused {
    /// The faulty line, if the fault is in a single line.
    pub line: Option<Line>,
    pub error: ConfigError,
}

/// A configuration that is being loaded.
#[derive(Debug, Default)]
pub(super) struct Loader {
    pub config: Config,
    pub users: Vec<Directive>,
    pub renamed_commands: Vec<Directive>,
    /// Directives that were loaded and have no effect, each name once.
    pub without_effect: Vec<&'static str>,
    /// All faults, if this is a check.
    pub faults: Vec<Refused>,
    /// If this is a check: the line of each directive that has set it, and the directives whose
    /// last line was refused.
    pub places: HashMap<&'static str, Line>,
    pub refused: HashSet<Vec<u8>>,
    purpose: Purpose,
    /// A `save` line was loaded, and has replaced the default.
    save_seen: bool,
    /// Parameters that `compatible-with` sets too, and that have had a line of their own.
    said: Vec<&'static str>,
    includes: u32,
}

impl Loader {
    /// A loader that starts from the defaults.
    pub fn new(purpose: Purpose) -> Self {
        Loader { purpose, ..Loader::default() }
    }

    /// Loads each line of a text. `depth`: the number of `include` lines that led to it.
    pub fn load_text(&mut self, text: &Text, depth: u32) -> Result<(), ConfigError> {
        for line in text.lines() {
            if let Err(error) = self.load_line(&line, depth) {
                self.note_fault(Some(line), error)?;
            }
        }
        let checked = self.check().map_err(ConfigError::Whole);
        checked.or_else(|error| self.note_fault(None, error))
    }

    fn load_line(&mut self, line: &Line, depth: u32) -> Result<(), ConfigError> {
        let at_line = |reason| ConfigError::Line { line: line.clone(), reason };
        let Some(mut args) = parse_line(&line.text).map_err(at_line)? else {
            return Ok(());
        };
        if args.is_empty() {
            return Ok(());
        }
        let directive = args.remove(0).to_ascii_lowercase();
        if directive == b"include" && args.len() == 1 {
            return self.include(&args[0], depth).map_err(|error| match error {
                ConfigError::Whole(reason) => at_line(reason),
                other => other,
            });
        }
        match (directive.as_slice(), args.len()) {
            (b"user", 1..) => self.users.push(Directive { args, line: line.clone() }),
            (b"rename-command", 2) => {
                self.renamed_commands.push(Directive { args, line: line.clone() })
            }
            _ => {
                self.set(&directive, &args).map_err(at_line)?;
                self.note_place(&directive, line);
            }
        }
        Ok(())
    }

    /// Notes a fault of a check, which continues until `FAULTS_MAX` are noted. Otherwise returns
    /// the error.
    pub fn note_fault(
        &mut self,
        line: Option<Line>,
        error: ConfigError,
    ) -> Result<(), ConfigError> {
        if self.purpose != Purpose::Check || self.faults.len() == FAULTS_MAX {
            return Err(error);
        }
        self.refused.extend(line.as_ref().map(Line::directive));
        // Rules about the whole configuration are checked again after each included text.
        let is_known = line.is_none()
            && self.faults.iter().any(|known| known.error.message() == error.message());
        if !is_known {
            self.faults.push(Refused { line, error });
        }
        Ok(())
    }

    fn note_place(&mut self, directive: &[u8], line: &Line) {
        if self.purpose != Purpose::Check {
            return;
        }
        let ignored = IGNORED.into_iter().find(|known| known.as_bytes() == directive);
        if let Some(name) = Param::find(directive).map(|param| param.name).or(ignored) {
            self.places.insert(name, line.clone());
            self.refused.remove(directive);
        }
    }

    /// Sets a parameter.
    fn set(&mut self, directive: &[u8], args: &[Vec<u8>]) -> Result<(), Reason> {
        if let Some(ignored) = IGNORED.iter().find(|known| known.as_bytes() == directive)
            && args.len() == 1
        {
            self.note_without_effect(ignored);
            return Ok(());
        }
        let Some(param) = Param::find(directive) else {
            return match (directive, args.len()) {
                (b"loadmodule", 1..) => Err(Reason::NoModules),
                (b"sentinel", 0) => Err(Reason::NoSentinel),
                (b"sentinel", _) => Err(Reason::SentinelDirective),
                (_, 0) if directive.contains(&b'.') => Err(Reason::ModuleConfigWithoutValue),
                (_, _) if is_module_parameter(directive) => Err(Reason::NoModules),
                _ => Err(Reason::BadDirective),
            };
        };
        let split;
        let args = match args {
            // A quoted option of the command line has all arguments in one: `--save "900 1"`.
            [all] if param.field.is_multi() && !all.is_empty() => {
                split = split_args(all).unwrap_or_default();
                &split
            }
            _ if !param.field.is_multi() && args.len() != 1 => {
                return Err(Reason::WrongNumberOfArguments);
            }
            _ => args,
        };
        if param.name == "save" && !self.save_seen {
            self.save_seen = true;
            self.config.save.clear();
        }
        let args: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
        if param.name == "compatible-with" {
            let mut before = self.config.clone();
            self.config.update(param, &args, Origin::File)?;
            // Parameters with a line of their own override `compatible-with`, in any order.
            if self.said.contains(&"redis-version") {
                self.config.redis_version = before.redis_version.clone();
            }
            for (_, field) in ON_FOR_VALKEY.iter().filter(|(name, _)| self.said.contains(name)) {
                *field(&mut self.config) = *field(&mut before);
            }
            return Ok(());
        }
        if param.name == "redis-version"
            || ON_FOR_VALKEY.iter().any(|(name, _)| *name == param.name)
        {
            self.said.push(param.name);
        }
        self.config.update(param, &args, Origin::File)?;
        if param.traits.only_stored {
            self.note_without_effect(param.name);
        }
        Ok(())
    }

    fn note_without_effect(&mut self, name: &'static str) {
        if !self.without_effect.contains(&name) {
            self.without_effect.push(name);
        }
    }

    /// Checks the whole configuration at the end of each text.
    fn check(&self) -> Result<(), Reason> {
        if self.purpose != Purpose::Text && !self.config.logfile.is_empty() {
            // Checked now, as a server in the background could not report a failure.
            let path = self.config.dir.join(path_of(&self.config.logfile));
            let opened = match self.purpose {
                Purpose::Check if self.is_unknown(&path) => Ok(()),
                Purpose::Check => try_append(&path),
                _ => OpenOptions::new().append(true).create(true).open(path).map(drop),
            };
            opened.map_err(|error| Reason::LogFile(system_text(&error)))?;
        }
        if self.config.cluster_enabled && self.config.replicaof.is_some() {
            return Err(Reason::ReplicaOfInCluster);
        }
        Ok(())
    }

    /// Whether a path is uncertain: it lies below `dir`, and the line that should set `dir` is
    /// refused.
    fn is_unknown(&self, path: &Path) -> bool {
        path.starts_with(&self.config.dir) && self.refused.contains(&b"dir"[..])
    }

    /// Loads the files that match a pattern.
    fn include(&mut self, pattern: &[u8], depth: u32) -> Result<(), ConfigError> {
        if self.purpose == Purpose::Text {
            return Err(ConfigError::Whole(Reason::IncludeForbidden));
        }
        self.includes += 1;
        if depth == INCLUDE_DEPTH_MAX || self.includes > INCLUDES_MAX {
            return Err(ConfigError::Whole(Reason::IncludeDepth));
        }
        let text = read_files(pattern, &self.config.dir)?;
        self.load_text(&text, depth + 1)
    }
}

fn is_module_parameter(directive: &[u8]) -> bool {
    directive.contains(&b'.')
        || MODULE_PREFIXES.iter().any(|prefix| directive.starts_with(prefix.as_bytes()))
}

fn path_of(bytes: &[u8]) -> &Path {
    Path::new(std::ffi::OsStr::from_bytes(bytes))
}

/// Tries whether lines could be appended to a file, or a new file created; a new file is removed
/// again.
fn try_append(path: &Path) -> io::Result<()> {
    match OpenOptions::new().append(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            OpenOptions::new().append(true).create_new(true).open(path)?;
            std::fs::remove_file(path)
        }
        opened => opened.map(drop),
    }
}

/// The text of a file. If the name has `*`, `?` or `[`: the joined texts of all files that match,
/// possibly none. Relative names start at `dir`.
pub(super) fn read_files(name: &[u8], dir: &Path) -> Result<Text, ConfigError> {
    if name.is_empty() {
        let error = io::Error::from(rustix::io::Errno::NOENT);
        return Err(ConfigError::File { path: PathBuf::new(), error });
    }
    let mut text = Text::default();
    let paths = if is_pattern(name) { expand(name, dir) } else { vec![dir.join(path_of(name))] };
    for path in paths {
        text.begin(Source::File(path.clone()));
        let file = std::fs::File::open(&path);
        let read = file.and_then(|file| read_all(file, &mut text.bytes));
        // In errors, a plain name is shown as written.
        let shown = if is_pattern(name) { path } else { path_of(name).to_owned() };
        read.map_err(|error| ConfigError::File { path: shown, error })?;
    }
    Ok(text)
}

/// Appends everything from the source.
pub(super) fn read_all(source: impl Read, text: &mut Vec<u8>) -> io::Result<()> {
    let read = source.take(TEXT_BYTES_MAX + 1).read_to_end(text)?;
    if read as u64 > TEXT_BYTES_MAX {
        return Err(io::Error::from(io::ErrorKind::FileTooLarge));
    }
    Ok(())
}

fn is_pattern(name: &[u8]) -> bool {
    name.iter().any(|byte| matches!(byte, b'*' | b'?' | b'['))
}

/// The files that match a pattern, in the order of their names. As in a shell, names with a leading
/// dot are matched only by components with one.
fn expand(pattern: &[u8], dir: &Path) -> Vec<PathBuf> {
    let root = if pattern.starts_with(b"/") { Path::new("/") } else { dir };
    let mut paths = vec![root.to_owned()];
    for component in pattern.split(|byte| *byte == b'/').filter(|component| !component.is_empty()) {
        let mut next = Vec::new();
        for path in &paths {
            if !is_pattern(component) {
                next.push(path.join(path_of(component)));
                continue;
            }
            let Ok(entries) = std::fs::read_dir(path) else {
                continue;
            };
            let names = entries.filter_map(|entry| Some(entry.ok()?.file_name().into_vec()));
            let visible = |name: &Vec<u8>| component[0] == b'.' || name.first() != Some(&b'.');
            let matching =
                names.filter(visible).filter(|name| glob::matches(component, name, false));
            let mut found: Vec<_> = matching.collect();
            found.sort();
            next.extend(found.iter().map(|name| path.join(path_of(name))));
        }
        paths = next;
    }
    paths.retain(|path| path.exists());
    paths
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::quoting::quoted;
    use proptest::prelude::*;

    fn text_of(bytes: &[u8]) -> Text {
        Text::of(bytes.to_vec())
    }

    fn words(line: &[u8]) -> Option<Vec<String>> {
        let args = parse_line(line).ok()??;
        Some(args.iter().map(|arg| arg.escape_ascii().to_string()).collect())
    }

    #[test]
    fn quotes_may_contain_spaces_and_escapes() {
        assert_eq!(words(br#"a "b c" 'd e' "\x41\n\"\q" 'it\'s \n'"#).unwrap().len(), 5);
        assert_eq!(
            words(br#" x "\x41\xff\n\r\t\a\b\q\"" "#).unwrap(),
            ["x", r#"A\xff\n\r\t\x07\x08q\""#]
        );
        assert_eq!(words(br"x 'it\'s \n'").unwrap(), ["x", r"it\'s \\n"]);
        assert_eq!(words(br#"x """#).unwrap(), ["x", ""]);
        assert_eq!(words(br#"pre"fix""#).unwrap(), ["prefix"]);
        assert_eq!(words(b"a\0b c").unwrap(), ["a"]);
    }

    #[test]
    fn quotes_that_do_not_close_or_end_within_a_word_are_refused() {
        for line in [&br#"x "a"#[..], b"x 'a", br#"x "a"b"#, b"x 'a'b", br#"x "a\""#] {
            assert_eq!(parse_line(line), Err(Reason::UnbalancedQuotes), "{}", line.escape_ascii());
        }
    }

    #[test]
    fn blank_lines_and_comments_have_no_arguments() {
        for line in [&b""[..], b"  \t\r\n", b"# a \"b", b"  #"] {
            assert_eq!(parse_line(line), Ok(None));
        }
    }

    #[test]
    fn an_include_reads_matching_files_in_the_order_of_names() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        std::fs::create_dir(dir.path().join("conf.d")).unwrap();
        write("conf.d/b.conf", "timeout 2\n");
        write("conf.d/a.conf", "timeout 1\nhz 20\n");
        write("conf.d/.hidden.conf", "timeout 3\n");
        write("main.conf", "include conf.d/*.conf\ninclude nothing/*.conf\nmaxclients 7");
        let mut loader = Loader::new(Purpose::Start);
        loader.config.dir = dir.path().to_owned();
        let text = read_files(b"main.conf", dir.path()).unwrap();
        loader.load_text(&text, 0).unwrap();
        assert_eq!((loader.config.timeout, loader.config.hz, loader.config.maxclients), (2, 20, 7));
    }

    #[test]
    fn an_include_without_a_pattern_must_exist() {
        let dir = tempfile::tempdir().unwrap();
        let mut loader = Loader::new(Purpose::Start);
        loader.config.dir = dir.path().to_owned();
        let error = loader.load_text(&text_of(b"include nosuch.conf"), 0).unwrap_err();
        let text = "Fatal error, can't open config file 'nosuch.conf': No such file or directory\n";
        assert_eq!(error.message(), text.as_bytes());
    }

    #[test]
    fn a_file_that_includes_itself_is_refused_at_that_line() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a"), "hz 10\ninclude a\ninclude a\n").unwrap();
        let mut loader = Loader::new(Purpose::Start);
        loader.config.dir = dir.path().to_owned();
        let error = loader.load_text(&text_of(b"include a"), 0).unwrap_err();
        assert!(matches!(
            error,
            ConfigError::Line { line: Line { number: 2, .. }, reason: Reason::IncludeDepth }
        ));
    }

    #[test]
    fn relative_names_start_at_dir_as_set_at_that_line() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("sub")).unwrap();
        std::fs::write(dir.path().join("sub/x.conf"), "timeout 4").unwrap();
        let mut loader = Loader::new(Purpose::Start);
        loader.config.dir = dir.path().to_owned();
        loader.load_text(&text_of(b"dir sub\ninclude x.conf"), 0).unwrap();
        assert_eq!(loader.config.timeout, 4);
        assert!(loader.config.dir.is_absolute() && loader.config.dir.ends_with("sub"));
    }

    #[test]
    fn users_and_renamed_commands_are_returned_with_their_lines() {
        let mut loader = Loader::new(Purpose::Text);
        loader.load_text(&text_of(b"\nuser bob on >x\nrename-command CONFIG \"\"\n"), 0).unwrap();
        assert_eq!(loader.users[0].args, [&b"bob"[..], b"on", b">x"]);
        assert_eq!(loader.renamed_commands[0].args, [&b"CONFIG"[..], b""]);
        let message =
            loader.renamed_commands[0].error("No such command in rename-command").to_string();
        let end =
            "at line 3\n>>> 'rename-command CONFIG \"\"'\nNo such command in rename-command\n";
        assert!(
            message.starts_with("\n*** FATAL CONFIG FILE ERROR (") && message.ends_with(end),
            "{message}"
        );
    }

    #[test]
    fn modules_and_sentinel_are_refused_with_the_reason() {
        for (line, reason) in [
            (&b"loadmodule /x.so"[..], Reason::NoModules),
            (b"search.timeout 5", Reason::NoModules),
            (b"search-timeout 5", Reason::NoModules),
            (b"ts-", Reason::NoModules),
            (b"sentinel", Reason::NoSentinel),
            (b"include other.conf", Reason::IncludeForbidden),
        ] {
            let error = Config::from_text(line).unwrap_err();
            assert!(matches!(error, ConfigError::Line { reason: found, .. } if found == reason));
        }
    }

    #[test]
    fn lines_are_counted_in_each_source_of_a_joined_text() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a.conf"), "hz 1\n\nhz 3").unwrap();
        std::fs::write(dir.path().join("b.conf"), "hz 4\nhz 5\n").unwrap();
        let mut text = read_files(b"*.conf", dir.path()).unwrap();
        text.begin(Source::CommandLine);
        text.bytes.extend(b"hz 6");
        let file = |name| Source::File(dir.path().join(name));
        let found: Vec<_> = text.lines().map(|line| (line.number_there, line.source)).collect();
        // The first line of b.conf continues the last one of a.conf, as in Redis.
        let wanted = [
            (1, file("a.conf")),
            (2, file("a.conf")),
            (3, file("a.conf")),
            (2, file("b.conf")),
            (1, Source::CommandLine),
        ];
        assert_eq!(found, wanted);
    }

    #[test]
    fn a_check_collects_all_faults_and_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("more"), "nosuch 1\nlogfile gone/log\n").unwrap();
        let mut loader = Loader::new(Purpose::Check);
        loader.config.dir = dir.path().to_owned();
        let text = b"port x\nhz 20\nlogfile log\nx \"\ninclude more\ninclude gone\nhz 30";
        loader.load_text(&text_of(text), 0).unwrap();
        let lines: Vec<_> =
            loader.faults.iter().map(|fault| fault.line.as_ref().map(|line| line.number)).collect();
        assert_eq!(lines, [Some(1), Some(4), Some(1), None, Some(6)], "{:?}", loader.faults);
        assert_eq!((loader.config.hz, loader.places["hz"].number), (30, 7));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    proptest! {
        #[test]
        fn quoting_is_undone_by_parsing(
            args in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 1..5),
        ) {
            let mut line = b"x".to_vec();
            for arg in &args {
                line.push(b' ');
                line.extend(quoted(arg));
            }
            prop_assert_eq!(parse_line(&line).unwrap().unwrap()[1..].to_vec(), args);
        }

        #[test]
        fn any_bytes_are_parsed_or_refused(text in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse_line(&text);
            let _ = Config::from_text(&text);
        }

        #[test]
        fn any_values_are_accepted_or_refused(
            index in 0..super::super::PARAMS.len(),
            values in prop::collection::vec("[-+0-9a-zA-Z%*. \"'\\\\x]{0,24}", 0..5),
        ) {
            let name = super::super::PARAMS[index].name;
            let _ = Config::from_text(format!("{name} {}", values.join(" ")).as_bytes());
        }
    }
}
