//! The configuration file: lines, and the loader that turns text into a [`Config`].
//!
//! Each line is split into arguments, and its directive sets a parameter or is returned for the server (`user`,
//! `rename-command`). `include` loads the files that match its pattern; their lines are counted together, from 1, as in
//! Redis. Nothing is printed here: errors are returned as a [`ConfigError`], with Redis' messages.

use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::kind::Origin;
use super::param::{ON_FOR_VALKEY, Param};
use super::params::Config;
use super::quoting::{parse_line, split_args, trim};
use super::reason::{Reason, system_text};
use crate::collections::glob;

/// Maximum bytes of a file or of standard input: far more than any use needs.
const TEXT_BYTES_MAX: u64 = 64 << 20;
const INCLUDE_DEPTH_MAX: u32 = 16;
/// Maximum number of `include` lines: with a file that includes itself twice they double at each level.
const INCLUDES_MAX: u32 = 4096;

/// Directives of older versions that are accepted, with one argument, and ignored.
const IGNORED: [&str; 4] = [
    "events-per-io-thread",
    "list-max-ziplist-entries",
    "list-max-ziplist-value",
    "lua-replicate-commands",
];

/// Prefixes of the parameters of Redis 8's modules. Those of other modules have a dot in their name.
const MODULE_PREFIXES: [&str; 4] = ["bf-", "cf-", "search-", "ts-"];

/// A line of the file, for error messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Counted from 1. Options of the command line follow the last line of the file.
    pub number: usize,
    /// Without spaces at both ends.
    pub text: Vec<u8>,
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

/// Why the server cannot start. Its `Display` is for standard error; the process then exits with 1.
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

/// A configuration that is being loaded.
#[derive(Debug, Default)]
pub(super) struct Loader {
    pub config: Config,
    pub users: Vec<Directive>,
    pub renamed_commands: Vec<Directive>,
    /// Directives that were loaded and have no effect, each name once.
    pub without_effect: Vec<&'static str>,
    /// Whether files may be read.
    may_read_files: bool,
    /// A `save` line was loaded, and has replaced the default.
    save_seen: bool,
    /// Parameters with a line of their own that `compatible-with` sets too.
    said: Vec<&'static str>,
    includes: u32,
}

impl Loader {
    /// A loader that starts from the defaults.
    pub fn new(may_read_files: bool) -> Self {
        Loader { may_read_files, ..Loader::default() }
    }

    /// Loads each line of a text. `depth`: the number of `include` lines that led to it.
    pub fn load_text(&mut self, text: &[u8], depth: u32) -> Result<(), ConfigError> {
        for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
            let line = trim(line);
            let position = || Line { number: index + 1, text: line.to_vec() };
            let at_line = |reason| ConfigError::Line { line: position(), reason };
            let Some(mut args) = parse_line(line).map_err(at_line)? else {
                continue;
            };
            if args.is_empty() {
                continue;
            }
            let directive = args.remove(0).to_ascii_lowercase();
            if directive == b"include" && args.len() == 1 {
                self.include(&args[0], depth).map_err(|error| match error {
                    ConfigError::Whole(reason) => at_line(reason),
                    other => other,
                })?;
                continue;
            }
            match (directive.as_slice(), args.len()) {
                (b"user", 1..) => self.users.push(Directive { args, line: position() }),
                (b"rename-command", 2) => {
                    self.renamed_commands.push(Directive { args, line: position() })
                }
                _ => self.set(&directive, &args).map_err(at_line)?,
            }
        }
        self.check().map_err(ConfigError::Whole)
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
            // Lines of their own override what it says, in any order.
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
        if self.may_read_files && !self.config.logfile.is_empty() {
            // Checked now, as a server in the background could not report it.
            let path = self.config.dir.join(path_of(&self.config.logfile));
            let opened = std::fs::OpenOptions::new().append(true).create(true).open(path);
            opened.map_err(|error| Reason::LogFile(system_text(&error)))?;
        }
        if self.config.cluster_enabled && self.config.replicaof.is_some() {
            return Err(Reason::ReplicaOfInCluster);
        }
        Ok(())
    }

    /// Loads the files that match a pattern.
    fn include(&mut self, pattern: &[u8], depth: u32) -> Result<(), ConfigError> {
        if !self.may_read_files {
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

/// The text of a file, or the joined texts of all that match if the name has `*`, `?` or `[`: there may be none. Relative
/// names start at `dir`.
pub(super) fn read_files(name: &[u8], dir: &Path) -> Result<Vec<u8>, ConfigError> {
    if name.is_empty() {
        let error = io::Error::from(rustix::io::Errno::NOENT);
        return Err(ConfigError::File { path: PathBuf::new(), error });
    }
    let mut text = Vec::new();
    let paths = if is_pattern(name) { expand(name, dir) } else { vec![dir.join(path_of(name))] };
    for path in paths {
        let read = std::fs::File::open(&path).and_then(|file| read_all(file, &mut text));
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

/// The files that match a pattern, in the order of their names. As in a shell, names with a leading dot are matched only by
/// components with one.
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
        let mut loader = Loader::new(true);
        loader.config.dir = dir.path().to_owned();
        let text = read_files(b"main.conf", dir.path()).unwrap();
        loader.load_text(&text, 0).unwrap();
        assert_eq!((loader.config.timeout, loader.config.hz, loader.config.maxclients), (2, 20, 7));
    }

    #[test]
    fn an_include_without_a_pattern_must_exist() {
        let dir = tempfile::tempdir().unwrap();
        let mut loader = Loader::new(true);
        loader.config.dir = dir.path().to_owned();
        let error = loader.load_text(b"include nosuch.conf", 0).unwrap_err();
        let text = "Fatal error, can't open config file 'nosuch.conf': No such file or directory\n";
        assert_eq!(error.message(), text.as_bytes());
    }

    #[test]
    fn a_file_that_includes_itself_is_refused_at_that_line() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a"), "hz 10\ninclude a\ninclude a\n").unwrap();
        let mut loader = Loader::new(true);
        loader.config.dir = dir.path().to_owned();
        let error = loader.load_text(b"include a", 0).unwrap_err();
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
        let mut loader = Loader::new(true);
        loader.config.dir = dir.path().to_owned();
        loader.load_text(b"dir sub\ninclude x.conf", 0).unwrap();
        assert_eq!(loader.config.timeout, 4);
        assert!(loader.config.dir.is_absolute() && loader.config.dir.ends_with("sub"));
    }

    #[test]
    fn users_and_renamed_commands_are_returned_with_their_lines() {
        let mut loader = Loader::new(false);
        loader.load_text(b"\nuser bob on >x\nrename-command CONFIG \"\"\n", 0).unwrap();
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
