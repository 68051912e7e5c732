//! The command line: `[--check-config | --check-system] [file] [-] [--directive value ...]`, parsed
//! as by redis-server 7.0.15.
//!
//! Options become lines after the file's text, and are loaded with it: so they override the file,
//! and errors show their line numbers.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::file::{
    ConfigError, Directive, Line, Loader, Purpose, Refused, Source, Text, read_all, read_files,
};
use super::params::Config;
use super::quoting::{quoted, split_args};

/// The request of the command line.
#[derive(Debug)]
pub enum Startup {
    /// Serve clients.
    Serve(Box<Settings>),
    /// `--check-config`, `--check-system`: report, and serve nobody. `json`: as one JSON document.
    Check { what: Examined, json: bool, loaded: Box<Loaded> },
    /// `-v`, `--version`: print the version and exit with 0.
    Version,
    /// `-h`, `--help`: print [`USAGE`] and exit with 1, as Redis does.
    Help,
}

/// The subject of a check that replaces a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Examined {
    Configuration,
    /// The machine on which a server with this configuration would run.
    System,
}

/// A configuration that is only checked.
#[derive(Debug)]
pub struct Loaded {
    /// Directives with a fault are left out.
    pub settings: Settings,
    pub faults: Vec<Refused>,
    /// The line of each directive that has set it.
    pub places: HashMap<&'static str, Line>,
    /// Directives whose last line was refused: their values differ from the intended ones.
    pub refused: HashSet<Vec<u8>>,
}

/// The settings of a start.
#[derive(Debug)]
pub struct Settings {
    pub config: Config,
    /// `user` lines: name and ACL rules, in order. [`Directive::error`] makes the error for a bad
    /// one.
    pub users: Vec<Directive>,
    /// `rename-command` lines: the command's name and its new name, empty to remove the command.
    pub renamed_commands: Vec<Directive>,
    /// Directives of the file or command line that are accepted and have no effect, each name once.
    pub without_effect: Vec<&'static str>,
}

/// The text of `--help`.
pub const USAGE: &str = "\
Usage: latchkey [/path/to/redis.conf] [options] [-]
       latchkey -            reads the configuration from standard input
       latchkey --check-config [--json] [/path/to/redis.conf] [options] [-]
                             reports every fault that would prevent a start
       latchkey --check-system [--json] [/path/to/redis.conf] [options] [-]
                             reports unfavourable settings of the machine
       latchkey --check-rdb <file> [--rdb-version-check relaxed]
       latchkey --check-aof [--fix | --truncate-to-timestamp <seconds>] <file or manifest>
       latchkey --backup <host>:<port> <folder> [options]
                             takes a snapshot of a running server
       latchkey --restore <file> [/path/to/redis.conf] [options]
                             puts a snapshot into the data folder
       latchkey --move <host>:<port> <host>:<port> [options]
                             moves from a running server to another one
       latchkey --completions bash | zsh | fish
       latchkey -v | --version
       latchkey -h | --help

Examples:
       latchkey                                the defaults
       latchkey /etc/redis/6379.conf           a file
       latchkey --port 7777                    a directive of the file as an option
       latchkey /etc/redis.conf --maxmemory 1gb --save \"\"
       echo 'maxmemory 128mb' | latchkey -
";

/// Options that are no directives, and their effects. They are recognised as the first argument
/// only.
pub(super) const TOOL_OPTIONS: [(&str, &str); 10] = [
    ("check-config", "Reports every fault that would prevent a start"),
    ("check-system", "Reports unfavourable settings of the machine"),
    ("check-rdb", "Checks an RDB file"),
    ("check-aof", "Checks an append-only file or its manifest"),
    ("backup", "Takes a snapshot of a running server"),
    ("restore", "Puts a snapshot into the data folder"),
    ("move", "Moves from a running server to another one"),
    ("completions", "Prints the completions for a shell"),
    ("version", "Prints the version"),
    ("help", "Prints a summary"),
];

impl Config {
    /// Parses the command line (without the program's name), and reads its file and, for `-`,
    /// standard input.
    ///
    /// Errors: the first bad line, or a file that cannot be read. [`ConfigError::message`] is the
    /// text to print.
    pub fn load(args: &[OsString]) -> Result<Startup, ConfigError> {
        load(args, &mut std::io::stdin())
    }

    /// A configuration from text, with defaults for other parameters. No file is read or written:
    /// `include` is an error, `user` and `rename-command` lines are only parsed. `dir` must exist.
    pub fn from_text(text: &[u8]) -> Result<Config, ConfigError> {
        let mut loader = Loader::new(Purpose::Text);
        loader.load_text(&Text::of(text.to_vec()), 0)?;
        Ok(loader.config)
    }
}

fn load(args: &[OsString], stdin: &mut dyn Read) -> Result<Startup, ConfigError> {
    let mut args: Vec<&[u8]> = args.iter().map(|arg| arg.as_bytes()).collect();
    let examined = match args.first() {
        Some(&b"--check-config") => Some(Examined::Configuration),
        Some(&b"--check-system") => Some(Examined::System),
        _ => None,
    };
    let mut json = false;
    if examined.is_some() {
        args.remove(0);
        while args.first() == Some(&&b"--json"[..]) {
            args.remove(0);
            json = true;
        }
    }
    match args.first() {
        Some(&(b"-v" | b"--version")) => return Ok(Startup::Version),
        Some(&(b"-h" | b"--help")) => return Ok(Startup::Help),
        _ => {}
    }
    let purpose = if examined.is_some() { Purpose::Check } else { Purpose::Start };
    let mut loader = Loader::new(purpose);
    if !args.is_empty() {
        let asks_for_json = examined.is_some().then_some(&mut json);
        let loaded = load_args(&mut loader, &args, asks_for_json, stdin);
        // A check ends early only when it has reached the limit of reported faults.
        if purpose != Purpose::Check {
            loaded?;
        }
    }
    let Loader { config, users, renamed_commands, without_effect, faults, places, refused, .. } =
        loader;
    let settings = Settings { config, users, renamed_commands, without_effect };
    Ok(match examined {
        None => Startup::Serve(Box::new(settings)),
        Some(what) => {
            let loaded = Box::new(Loaded { settings, faults, places, refused });
            Startup::Check { what, json, loaded }
        }
    })
}

/// Loads the file, standard input, and the options. `json`: set if `--json` is among them; without
/// it, that is no option.
fn load_args(
    loader: &mut Loader,
    args: &[&[u8]],
    json: Option<&mut bool>,
    stdin: &mut dyn Read,
) -> Result<(), ConfigError> {
    let mut text = Text::default();
    let mut options = args;
    if !args[0].starts_with(b"-") {
        let path = absolute(&loader.config.dir, args[0]);
        match read_files(path.as_os_str().as_bytes(), &loader.config.dir) {
            Ok(read) => text = read,
            Err(error) => loader.note_fault(None, error)?,
        }
        loader.config.config_file = Some(path);
        options = &args[1..];
    }
    let (from_stdin, lines) = option_lines(options, options.len() == args.len(), json);
    if from_stdin {
        let path = PathBuf::from("-");
        text.begin(Source::StandardInput);
        loader.config.is_from_stdin = true;
        let read = read_all(stdin, &mut text.bytes);
        read.or_else(|error| loader.note_fault(None, ConfigError::File { path, error }))?;
    }
    text.bytes.push(b'\n');
    text.begin(Source::CommandLine);
    text.bytes.extend_from_slice(&lines);
    loader.load_text(&text, 0)
}

/// Whether to read standard input (`-` is the first or last argument), and the options as lines.
/// `json`: see [`load_args`].
fn option_lines(
    options: &[&[u8]],
    first_is_option: bool,
    mut json: Option<&mut bool>,
) -> (bool, Vec<u8>) {
    let mut from_stdin = false;
    let mut lines = Vec::new();
    // The first argument after a directive is its value, even with dashes: in `--requirepass --x`,
    // `--x` is the password.
    let mut has_value = true;
    for (index, option) in options.iter().enumerate() {
        let last = index + 1 == options.len();
        if *option == b"-" && ((first_is_option && index == 0) || last) {
            from_stdin = true;
            continue;
        }
        let Some(directive) = option.strip_prefix(b"--").filter(|_| has_value) else {
            lines.extend(quoted(option));
            lines.push(b' ');
            has_value = true;
            continue;
        };
        if directive == b"json"
            && let Some(json) = &mut json
        {
            **json = true;
            continue;
        }
        if !lines.is_empty() {
            lines.push(b'\n');
        }
        lines.extend_from_slice(directive);
        lines.push(b' ');
        // `"--port 6380"` may be one argument.
        has_value = split_args(option).is_none_or(|words| words.len() != 1);
        let next_is_option = options.get(index + 1).is_some_and(|next| next.starts_with(b"--"));
        if !has_value && option.eq_ignore_ascii_case(b"--save") && (last || next_is_option) {
            // Programs that build the command line from a list of save points pass no value if the
            // list is empty.
            lines.extend(b"\"\"");
            has_value = true;
        } else if !has_value && option.eq_ignore_ascii_case(b"--sentinel") && next_is_option {
            has_value = true;
        }
    }
    (from_stdin, lines)
}

/// The absolute path; leading `../` are resolved.
fn absolute(dir: &Path, path: &[u8]) -> PathBuf {
    let mut dir = dir;
    let mut path = path;
    while let Some(rest) = path.strip_prefix(b"../") {
        dir = dir.parent().unwrap_or(dir);
        path = rest;
    }
    dir.join(OsString::from_vec(path.to_vec()).as_os_str() as &OsStr)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse_line;

    /// How Redis 7.0.15 parsed options. The format is described at the beginning of the file.
    const RECORDED: &str = include_str!("../../tests/data/config-command-line-7.0.15.tsv");

    fn run(args: &[&[u8]], mut stdin: &[u8]) -> Result<Settings, ConfigError> {
        let args: Vec<OsString> = args.iter().map(|arg| OsString::from_vec(arg.to_vec())).collect();
        match load(&args, &mut stdin)? {
            Startup::Serve(settings) => Ok(*settings),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn options_after_a_file_are_parsed_as_by_redis() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("redis.conf");
        std::fs::write(&file, "port 0\nunixsocket /tmp/unused.sock\ntimeout 9\n").unwrap();
        let mut rows = 0;
        for row in RECORDED.lines().filter(|line| line.starts_with("FILE")) {
            let row: Vec<&str> = row.split('\t').collect();
            let mut args = parse_line(row[0].as_bytes()).unwrap().unwrap();
            args[0] = file.as_os_str().as_bytes().to_vec();
            let args: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
            match (run(&args, b""), row[1]) {
                (Ok(settings), "ok") => {
                    for change in row[2].split("; ") {
                        let (name, value) = change.split_once('=').unwrap();
                        let ours = settings.config.get(&[name.as_bytes()]).remove(0).1;
                        assert_eq!(ours, value.as_bytes(), "{}", row[0]);
                    }
                }
                (Err(ConfigError::Line { line, reason }), "error") => {
                    assert_eq!(
                        (line.number.to_string(), reason.to_string()),
                        (row[2].into(), row[3].into())
                    );
                }
                (result, wanted) => panic!("{}: {wanted}, but {result:?}", row[0]),
            }
            rows += 1;
        }
        assert!(rows > 30);
    }

    #[test]
    fn standard_input_overrides_the_file_and_options_override_both() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("redis.conf");
        std::fs::write(&file, "timeout 1\nhz 11\nmaxclients 21\n").unwrap();
        let path = file.as_os_str().as_bytes();
        let config = run(&[path, b"--timeout", b"3", b"-"], b"timeout 2\nhz 12\n").unwrap().config;
        assert_eq!((config.timeout, config.hz, config.maxclients), (3, 12, 21));
        assert_eq!(config.config_file, Some(file));
    }

    #[test]
    fn without_a_file_lines_are_counted_from_the_second() {
        let error = run(&[b"--port", b"x"], b"").unwrap_err().to_string();
        assert!(error.contains(
            "at line 2\n>>> 'port \"x\"'\nargument couldn't be parsed into an integer\n"
        ));
        let config = run(&[b"-"], b"port 7").unwrap().config;
        assert!(config.is_from_stdin && config.config_file.is_none());
    }

    #[test]
    fn a_value_may_look_like_an_option_or_contain_any_byte() {
        for password in [&b"--x"[..], b"a b", b"a\nb\xff\"", b"'"] {
            assert_eq!(
                run(&[b"--requirepass", password], b"").unwrap().config.requirepass,
                password
            );
        }
    }

    #[test]
    fn version_and_help_are_recognised_as_the_first_argument_only() {
        let first = |arg: &str| load(&[arg.into(), "--port".into()], &mut &b""[..]);
        assert!(matches!(first("-v"), Ok(Startup::Version)));
        assert!(matches!(first("--help"), Ok(Startup::Help)));
        assert!(run(&[b"--port", b"7", b"-v"], b"").is_err());
    }

    #[test]
    fn leading_parents_of_a_path_are_resolved() {
        let dir = Path::new("/a/b");
        assert_eq!(absolute(dir, b"../x.conf"), Path::new("/a/x.conf"));
        assert_eq!(absolute(dir, b"../../../x"), Path::new("/x"));
        assert_eq!(absolute(dir, b"/x/../y"), Path::new("/x/../y"));
    }
}
