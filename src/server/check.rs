//! `--check-config`: reports all faults that would prevent a start, without serving clients.
//!
//! The rule: a configuration that passes starts, and one that is refused does not; except for ports
//! that are in use, and for the data. So each step calls the same function as the start (`names`,
//! `open_files`, the room of TLS, `net::listener`), or a `try_` function beside it that leaves
//! nothing behind. A step is left out if a line on which it depends is refused already: its fault
//! might only follow from that. `tests/it/process/check_config.rs` compares the check with starts.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::accept::unix_socket;
use super::names::{self, renamed_commands, user_lines};
use super::open_files::allow_files;
use super::start::NOWHERE;
use crate::acl::Acl;
use crate::clock::Clock;
use crate::command::TABLE;
use crate::config::{
    Config, ConfigError, Line, Loaded, PrimaryAddress, Refused, Source, is_sensitive, system_text,
};
use crate::gate::users;
use crate::http::json::Json;
use crate::net::listener::{Entry, bind_tcp, open_entry, refusal, try_unix};
use crate::net::tls::Tls;
use crate::roles::cluster;
use crate::sys::log::Level;
use crate::sys::machine;

/// A fault or a warning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Finding {
    directive: String,
    /// The line that sets the value. None: the value is the default, or the finding is not about a
    /// line.
    line: Option<Line>,
    reason: String,
}

/// The result of a check.
#[derive(Debug, Default)]
pub struct Report {
    faults: Vec<Finding>,
    warnings: Vec<Finding>,
    /// Directives that are accepted and do nothing.
    without_effect: Vec<(&'static str, Option<Line>)>,
    places: HashMap<&'static str, Line>,
    /// Directives with a refused line, whose values are unknown.
    refused: HashSet<Vec<u8>>,
}

/// Bytes of an empty database: a million took 430 MB of resident memory.
const DATABASE_BYTES: u64 = 400;

/// Checks a configuration. Moves the process to `dir`, as a start does, and raises its limit of
/// open files.
pub fn check_config(loaded: Loaded) -> Report {
    let Loaded { settings, faults, places, refused } = loaded;
    let mut report = Report { places, refused, ..Report::default() };
    for refused in faults {
        report.refuse(refused);
    }
    for name in settings.without_effect {
        report.without_effect.push((name, report.places.get(name).cloned()));
    }
    let (_, errors) = renamed_commands(&settings.renamed_commands);
    let (lines, wrong) = user_lines(&settings.users);
    for error in errors.into_iter().chain(wrong) {
        report.refuse(Refused { line: None, error });
    }
    let mut config = settings.config;
    if let Err(error) = std::env::set_current_dir(&config.dir) {
        report.fault("dir", system_text(&error));
    }
    report.check_databases(&config);
    report.check_open_files(&mut config);
    report.check_tls(&config);
    report.check_addresses(&config);
    report.check_unix_socket(&config);
    report.check_users(&config, &lines);
    report.check_folders(&config);
    report.check_nodes_file(&config);
    report.check_primary(&config);
    report
}

impl Report {
    /// Whether a server would start.
    pub fn is_good(&self) -> bool {
        self.faults.is_empty()
    }

    fn find(&self, directive: &str, reason: String) -> Finding {
        let line = self.places.get(directive).cloned();
        Finding { directive: directive.to_owned(), line, reason }
    }

    fn fault(&mut self, directive: &str, reason: String) {
        self.faults.push(self.find(directive, reason));
    }

    fn warn(&mut self, directive: &str, reason: String) {
        self.warnings.push(self.find(directive, reason));
    }

    /// Whether a line that sets one of these directives is refused. A name that ends with a hyphen
    /// stands for a family.
    fn is_refused(&self, directives: &[&str]) -> bool {
        self.refused.iter().any(|refused| {
            directives.iter().any(|known| match known.ends_with('-') {
                true => refused.starts_with(known.as_bytes()),
                false => *refused == known.as_bytes(),
            })
        })
    }

    /// Whether the place of a file is unknown, because its name is relative to `dir`, which is
    /// refused.
    fn is_unknown(&self, name: &[u8]) -> bool {
        !name.starts_with(b"/") && self.is_refused(&["dir"])
    }

    /// Adds a fault of loading.
    fn refuse(&mut self, refused: Refused) {
        let (line, reason) = match refused.error {
            ConfigError::Line { line, reason } => (Some(line), reason.to_string()),
            ConfigError::Whole(reason) => (refused.line, reason.to_string()),
            ConfigError::File { path, error } => {
                let path = path.display();
                let why = system_text(&error);
                (refused.line, format!("Can't open config file '{path}': {why}"))
            }
        };
        let Some(line) = line else {
            // Among the faults without a line, those of the log file and the primary belong to
            // directives.
            let directive = match () {
                () if reason.starts_with("Can't open the log file") => "logfile",
                () if reason.starts_with("replicaof") => "replicaof",
                () => "",
            };
            return self.fault(directive, reason);
        };
        let directive = String::from_utf8_lossy(&line.directive()).into_owned();
        self.faults.push(Finding { directive, line: Some(line), reason });
    }

    /// Refuses more databases than fit into memory: the kernel would end the start.
    fn check_databases(&mut self, config: &Config) {
        let bytes = config.database_count() as u64 * DATABASE_BYTES;
        let total = machine::total_memory() as u64;
        if bytes > total && total > 0 {
            let (bytes, total) = (bytes >> 20, total >> 20);
            let text = format!("Empty databases take {bytes} MB, of {total} MB of memory");
            self.fault("databases", text);
        }
    }

    fn check_open_files(&mut self, config: &mut Config) {
        let allowed = allow_files(config);
        let lines = allowed.lines.into_iter().filter(|(level, _)| *level == Level::Warning);
        let lines: Vec<String> = lines.map(|(_, line)| line).collect();
        match (lines.is_empty(), allowed.is_enough) {
            (true, _) => {}
            (false, true) => self.warn("maxclients", lines.join(" ")),
            (false, false) => self.fault("maxclients", lines.join(" ")),
        }
    }

    fn check_tls(&mut self, config: &Config) {
        // A relative name is in `dir`.
        let is_left_out = self.is_refused(&["tls-", "http-tls", "http-port", "dir"]);
        if is_left_out || !Tls::is_wanted(config) {
            return;
        }
        let mut notes = Vec::new();
        let faults = Tls::faults(config, &Clock::System, &mut notes);
        for fault in faults {
            self.fault(fault.directive, fault.text);
        }
        for note in notes {
            let directive = note.split([':', ' ']).next().unwrap_or_default().to_owned();
            self.warn(&directive, note);
        }
    }

    /// Checks that TCP addresses are available, allowed, and without conflicts. A program that
    /// listens on one now is only a warning.
    fn check_addresses(&mut self, config: &Config) {
        let bus_port = match config.cluster_enabled.then(|| cluster::bus_port(config)) {
            Some(Err(text)) => {
                let directive = if config.bind.is_empty() { "bind" } else { "port" };
                self.fault(directive, text);
                0
            }
            found => found.and_then(Result::ok).flatten().unwrap_or(0),
        };
        let places = [
            ("port", "bind", config.port, &config.bind),
            ("tls-port", "bind", config.tls_port, &config.bind),
            ("http-port", "http-bind", config.http_port, &config.http_bind),
            ("cluster-port", "bind", bus_port, &config.bind),
        ];
        let mut taken: Vec<(&str, SocketAddr)> = Vec::new();
        let faults_before = self.faults.len();
        for (port_directive, bind, port, entries) in places {
            let is_unknown = self.is_refused(&[port_directive, bind]);
            for entry in entries.iter().filter(|_| port != 0 && !is_unknown) {
                let mut is_in_use = false;
                let opened = open_entry(entry, port, |address| {
                    match bind_tcp(address) {
                        Err(error) if error.kind() == io::ErrorKind::AddrInUse => is_in_use = true,
                        bound => drop(bound?),
                    }
                    Ok(address)
                });
                let in_use = || {
                    let error = io::Error::from_raw_os_error(libc::EADDRINUSE);
                    refusal(entry, port, &error)
                };
                match opened {
                    Entry::PassedOver(text) => self.warn(bind, text),
                    Entry::Refused(text) => self.fault(bind, text),
                    Entry::Open(address) => {
                        let other = taken.iter().find(|(_, other)| overlap(*other, address));
                        if let Some((other, _)) = other {
                            let text = format!("{} (of {other})", in_use());
                            self.fault(port_directive, text);
                        } else if is_in_use {
                            self.warn(port_directive, in_use());
                        }
                        taken.push((port_directive, address));
                    }
                }
            }
        }
        let is_served = !config.unixsocket.is_empty()
            || taken
                .iter()
                .any(|(directive, _)| !["http-port", "cluster-port"].contains(directive));
        let is_unknown = self.is_refused(&["bind", "port", "tls-port", "unixsocket"]);
        if !is_served && !is_unknown && self.faults.len() == faults_before {
            self.fault("port", NOWHERE.to_owned());
        }
    }

    fn check_unix_socket(&mut self, config: &Config) {
        if self.is_unknown(&config.unixsocket) || self.is_refused(&["unixsocket"]) {
            return;
        }
        let tried = unix_socket(config, try_unix);
        if let Err(text) = tried {
            self.fault("unixsocket", text);
        }
    }

    fn check_users(&mut self, config: &Config, lines: &[names::UserLine]) {
        let mut config = config.clone();
        if self.is_unknown(&config.aclfile) || self.is_refused(&["aclfile"]) {
            config.aclfile = Vec::new();
        }
        let mut acl = Acl::new(TABLE.catalogue());
        let all_channels = users::all_channels(&config);
        let loaded = names::load(&mut acl, &config, lines, all_channels, false);
        for fault in loaded.faults {
            let directive = if fault.line.is_some() { "user" } else { "aclfile" };
            let line = fault.line.or_else(|| self.places.get(directive).cloned());
            let directive = directive.to_owned();
            self.faults.push(Finding { directive, line, reason: fault.text });
        }
        for note in loaded.notes {
            self.warn("user", note);
        }
    }

    /// Checks `dir` and the folder of the append-only file, in which a start creates files. Also
    /// checks the pidfile, without which a server starts all the same.
    fn check_folders(&mut self, config: &Config) {
        if !self.is_refused(&["dir"]) {
            let tried = try_create(&config.dir);
            let folder = config.dir.join(OsStr::from_bytes(&config.appenddirname));
            let data = config.dir.join(OsStr::from_bytes(&config.dbfilename));
            let no_data = match std::fs::metadata(&data) {
                Ok(found) if found.is_dir() => Some("is a directory".to_owned()),
                Err(error) if error.kind() != io::ErrorKind::NotFound => Some(system_text(&error)),
                _ => None,
            };
            let in_folder = match std::fs::metadata(&folder) {
                Ok(found) if found.is_dir() => try_create(&folder),
                Ok(_) => Err(io::Error::from_raw_os_error(libc::EEXIST)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => try_create(&config.dir),
                Err(error) => Err(error),
            };
            // The longest name in the folder: that of the file that replaces the manifest.
            let manifest = [b"temp-".as_slice(), &config.appendfilename, b".manifest"].concat();
            if let Err(error) = in_folder
                && config.appendonly
                && !self.is_refused(&["appenddirname"])
            {
                let (folder, why) = (folder.display(), system_text(&error));
                let text = format!("Can't open or create append-only dir {folder}: {why}");
                self.fault("appendonly", text);
            } else if config.appendonly && !fits(&config.dir, &manifest) {
                self.fault("appendfilename", "The names of the files are too long".to_owned());
            } else if let (Some(why), false) = (no_data, config.appendonly) {
                self.fault("dbfilename", format!("{}: {why}", data.display()));
            } else if let Err(error) = tried {
                let (folder, why) = (config.dir.display(), system_text(&error));
                self.warn("dir", format!("No file can be created in {folder}: {why}"));
            }
        }
        if config.pidfile.is_empty() || self.is_unknown(&config.pidfile) {
            return;
        }
        let path = Path::new(OsStr::from_bytes(&config.pidfile));
        let tried = match std::fs::metadata(path) {
            Ok(_) => std::fs::OpenOptions::new().append(true).open(path).map(drop),
            Err(_) => match path.parent() {
                Some(folder) if !folder.as_os_str().is_empty() => try_create(folder),
                _ => try_create(Path::new(".")),
            },
        };
        if let Err(error) = tried {
            let (path, why) = (path.display(), system_text(&error));
            self.warn("pidfile", format!("{path} can't be written: {why}"));
        }
    }

    /// Checks nodes.conf, which a node opens and then replaces by a file beside it. Its content is
    /// data, and is not checked.
    fn check_nodes_file(&mut self, config: &Config) {
        if !config.cluster_enabled || self.is_refused(&["cluster-config-file", "dir"]) {
            return;
        }
        let name = OsStr::from_bytes(&config.cluster_config_file);
        let path = config.dir.join(name);
        let opened = match std::fs::metadata(&path) {
            Ok(found) if found.is_dir() => Err(io::Error::from_raw_os_error(libc::EISDIR)),
            Ok(found) if !found.is_file() => Err(io::Error::from_raw_os_error(libc::ENXIO)),
            Ok(_) => std::fs::OpenOptions::new().append(true).open(&path).map(drop),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        };
        let mut beside = path.into_os_string();
        beside.push(format!(".tmp-{}", std::process::id()));
        if let Err(error) = opened.and_then(|()| try_new(Path::new(&beside))) {
            let (name, why) = (name.to_string_lossy(), system_text(&error));
            let text = format!("Can't open {name} in order to acquire a lock: {why}");
            self.fault("cluster-config-file", text);
        }
    }

    fn check_primary(&mut self, config: &Config) {
        let Some(PrimaryAddress { host, port }) = &config.replicaof else { return };
        let is_here = [&b"127.0.0.1"[..], b"localhost", b"::1"].contains(&&host[..]);
        let ports = [config.port, config.tls_port];
        if is_here && ports.iter().any(|own| *own != 0 && u32::from(*own) == u32::from(*port)) {
            self.warn("replicaof", "The primary is this server itself.".to_owned());
        }
    }

    // ---- what is shown --------------------------------------------------------------------------

    /// The findings of the check, for standard error: a line for each fault and warning, then the
    /// line of the configuration.
    pub fn findings(&self) -> String {
        let mut text = String::new();
        for (what, findings) in [("", &self.faults), ("warning: ", &self.warnings)] {
            for finding in findings {
                let Finding { directive, line, reason } = finding;
                let place = line.as_ref().map_or_else(String::new, |line| place(line) + ": ");
                let colon = if directive.is_empty() { "" } else { ": " };
                text.push_str(&format!("{place}{what}{directive}{colon}{reason}\n"));
                if let Some(shown) = shown(finding) {
                    text.push_str(&format!("    {shown}\n"));
                }
            }
        }
        text
    }

    /// The last lines, for standard output.
    pub fn summary(&self) -> String {
        let mut text = match self.faults.len() {
            0 => "The configuration is in order\n".to_owned(),
            1 => "1 fault: a server would not start\n".to_owned(),
            count => format!("{count} faults: a server would not start\n"),
        };
        if !self.without_effect.is_empty() {
            let names: Vec<&str> = self.without_effect.iter().map(|(name, _)| *name).collect();
            text.push_str(&format!("{NO_EFFECT}: {}\n", names.join(", ")));
        }
        text
    }

    /// The whole report as one document.
    pub fn json(&self) -> String {
        let mut json = Json::default();
        json.open('{');
        json.named("ok", self.is_good());
        for (name, findings) in [("faults", &self.faults), ("warnings", &self.warnings)] {
            json.name(name);
            json.open('[');
            for finding in findings {
                json.open('{');
                json.named_text("directive", &finding.directive);
                write_place(&mut json, finding.line.as_ref());
                match shown(finding) {
                    Some(shown) => json.named_text("text", shown),
                    None => json.named("text", "null"),
                }
                json.named_text("reason", &finding.reason);
                json.close('}');
            }
            json.close(']');
        }
        json.name("without_effect");
        json.open('[');
        for (name, line) in &self.without_effect {
            json.open('{');
            json.named_text("directive", name);
            write_place(&mut json, line.as_ref());
            json.close('}');
        }
        json.close(']');
        json.close('}');
        json.finish()
    }
}

/// Introduces a list of directives.
pub const NO_EFFECT: &str = "Directives without effect in this server";

/// Whether the server cannot listen on both addresses.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let is_all = |address: IpAddr| address.is_unspecified();
    let (first, second) = (one.ip(), other.ip());
    one.port() == other.port()
        && first.is_ipv4() == second.is_ipv4()
        && (is_all(first) || is_all(second) || one == other)
}

/// Whether a file could be created in a folder.
fn try_create(folder: &Path) -> io::Result<()> {
    try_new(&folder.join(format!("latchkey-check-{}", std::process::id())))
}

fn try_new(path: &Path) -> io::Result<()> {
    File::create_new(path)?;
    std::fs::remove_file(path)
}

/// Whether a file in a folder could have this name.
fn fits(folder: &Path, name: &[u8]) -> bool {
    let found = std::fs::metadata(folder.join(OsStr::from_bytes(name)));
    found.map_or_else(|error| error.raw_os_error() != Some(libc::ENAMETOOLONG), |_| true)
}

/// The text `file:line`. A line of the command line has no number, because nobody could count it.
fn place(line: &Line) -> String {
    match &line.source {
        Source::File(path) => format!("{}:{}", path.display(), line.number_there),
        Source::StandardInput => format!("-:{}", line.number_there),
        Source::CommandLine => "command line".to_owned(),
    }
}

fn write_place(json: &mut Json, line: Option<&Line>) {
    match line.map(|line| (&line.source, line.number_there)) {
        Some((Source::File(path), number)) => {
            json.named_text("file", path.as_os_str().as_bytes());
            json.named("line", number);
        }
        Some((Source::StandardInput, number)) => {
            json.named_text("file", "-");
            json.named("line", number);
        }
        Some((Source::CommandLine, _)) | None => {
            json.named("file", "null");
            json.named("line", "null");
        }
    }
}

/// The line as it was written. None: the finding has no line, or the line may have a secret.
fn shown(finding: &Finding) -> Option<String> {
    let line = finding.line.as_ref()?;
    let directive = line.directive();
    let is_secret = directive == b"user" || is_sensitive(&directive);
    (!is_secret).then(|| String::from_utf8_lossy(&line.text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_overlap_if_one_is_the_other_or_all() {
        let overlaps = |one: &str, other: &str| {
            overlap(one.parse().expect("an address"), other.parse().expect("an address"))
        };
        assert!(overlaps("127.0.0.1:7", "127.0.0.1:7"));
        assert!(overlaps("0.0.0.0:7", "127.0.0.1:7") && overlaps("[::1]:7", "[::]:7"));
        assert!(!overlaps("0.0.0.0:7", "[::]:7") && !overlaps("127.0.0.1:7", "127.0.0.2:7"));
        assert!(!overlaps("127.0.0.1:7", "127.0.0.1:8"));
    }
}
