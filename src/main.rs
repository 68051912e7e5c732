//! The `latchkey` program: from arguments and configuration file to a running server.
//!
//! Everything that can prevent a start comes first, with a message on standard error or in the log
//! and exit code 1: the configuration, then the process' environment, then the sockets. Daemonizing
//! comes before the first thread.

use std::cell::OnceCell;
use std::ffi::{OsStr, OsString};
use std::io::{BufRead, IsTerminal, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use indicatif::ProgressBar;
use latchkey::clock::Clock;
use latchkey::command::log_level;
use latchkey::config::{
    Config, ConfigError, Examined, Loaded, SHELLS, Settings, Startup, USAGE, completions,
};
use latchkey::persist::check::rdb::{CheckRdb, check_file, check_image};
use latchkey::persist::check::{CheckAof, Environment};
use latchkey::persist::rdb::VersionCheck;
use latchkey::server::{
    Ending, NO_EFFECT, NOWHERE, Server, allow_files, check_config, check_system, renamed_commands,
    user_lines,
};
use latchkey::sys::disk::RealDisk;
use latchkey::sys::log::{Level, Logger};
use latchkey::sys::process::{self, Supervisor};
use latchkey::sys::restart::{self, Invocation};
use latchkey::sys::system::{self, Title};
use latchkey::sys::{build, crash, jemalloc};
use latchkey::tools::access::PASSWORD_VARIABLE;
use latchkey::tools::backup::{Backup, Done, Step};
use latchkey::tools::moving::{Move, Operator, TO_PASSWORD_VARIABLE};
use latchkey::tools::restore::{Restore, Restored};

/// The pidfile of a daemon without `pidfile`.
const DEFAULT_PIDFILE: &[u8] = b"/var/run/redis.pid";

fn main() -> ExitCode {
    let mut args = std::env::args_os();
    let name = args.next().unwrap_or_default();
    let args: Vec<OsString> = args.collect();
    if let Some(code) = check_tool(&name, &args) {
        return ExitCode::from(code);
    }
    if asks_for_sentinel(&name, &args) {
        eprintln!("{NO_SENTINEL}");
        return ExitCode::FAILURE;
    }
    let invocation = Invocation::new(name.clone(), args.clone());
    Clock::System.sleep(restart::delay());
    let served = match Config::load(&args) {
        Ok(Startup::Serve(settings)) => serve(*settings, &name, args.is_empty(), invocation),
        Ok(Startup::Check { what, json, loaded }) => return check(what, json, *loaded),
        Ok(Startup::Version) => {
            println!("{}", version());
            return ExitCode::SUCCESS;
        }
        Ok(Startup::Help) => {
            eprint!("{USAGE}");
            return ExitCode::FAILURE;
        }
        Err(error) => Err(error),
    };
    match served {
        Ok(code) => code,
        Err(error) => {
            // Fails harmlessly if standard error is closed.
            let _ = std::io::stderr().write_all(&error.message());
            ExitCode::FAILURE
        }
    }
}

const NO_SENTINEL: &str = "Latchkey has no Sentinel of its own: redis-sentinel and valkey-sentinel watch its nodes and fail over \
    between them, see docs/failover.md.";

/// Whether Sentinel mode is requested, by the program's name or an option.
fn asks_for_sentinel(name: &OsStr, args: &[OsString]) -> bool {
    let file_name = Path::new(name).file_name().unwrap_or_default();
    file_name == "redis-sentinel"
        || file_name == "valkey-sentinel"
        || args.iter().any(|arg| arg == "--sentinel")
}

/// Runs the check tool requested by the program's name or first argument; returns its exit code.
fn check_tool(name: &OsStr, args: &[OsString]) -> Option<u8> {
    let file_name = Path::new(name).file_name().unwrap_or_default();
    let first = args.first().map(OsString::as_os_str);
    let code = if file_name == "redis-check-rdb" || file_name == "valkey-check-rdb" {
        check_rdb("redis-check-rdb", args)
    } else if file_name == "redis-check-aof" || file_name == "valkey-check-aof" {
        check_aof("redis-check-aof", args)
    } else if first == Some(OsStr::new("--check-rdb")) {
        check_rdb("latchkey --check-rdb", &args[1..])
    } else if first == Some(OsStr::new("--check-aof")) {
        check_aof("latchkey --check-aof", &args[1..])
    } else if first == Some(OsStr::new("--backup")) {
        told(backup(&args[1..]))
    } else if first == Some(OsStr::new("--restore")) {
        told(restore(&args[1..]))
    } else if first == Some(OsStr::new("--move")) {
        told(move_data(&args[1..]))
    } else if first == Some(OsStr::new("--completions")) {
        print_completions(&args[1..])
    } else {
        return None;
    };
    Some(code as u8)
}

/// The exit code of a tool. Its text is printed to standard output, or to standard error if it has
/// failed.
fn told(result: Result<String, String>) -> i32 {
    // Writing fails harmlessly if nobody reads the output.
    match result {
        Ok(text) => {
            let _ = std::io::stdout().write_all(text.as_bytes());
            0
        }
        Err(text) => {
            let _ = writeln!(std::io::stderr(), "{}", text.trim_end());
            1
        }
    }
}

/// `--backup`.
fn backup(args: &[OsString]) -> Result<String, String> {
    let backup = Backup::parse(args, std::env::var_os(PASSWORD_VARIABLE))?;
    let (receives, checks) = (Bar::default(), Bar::default());
    let done = backup.take(&RealDisk, &Clock::System, &mut |step| match step {
        Step::Received(done, total) if total > 0 => receives.show(done, total),
        Step::Received(..) => {}
        Step::Checked(done, total) => checks.show(done, total),
    })?;
    let Done { path, facts, history } = done;
    let mut text = format!("{}: {} keys, {} bytes", path.display(), facts.keys, facts.bytes);
    if let Some((id, offset)) = history {
        text += &format!(", at offset {offset} of {id}");
    }
    Ok(text + "\n")
}

const RESTORE_USAGE: &str = "\
Usage: latchkey --restore <file> /path/to/redis.conf [options]
       latchkey --restore <file> --dir <folder> [options]
       The file and options are those with which the server is started.";

/// `--restore`.
fn restore(args: &[OsString]) -> Result<String, String> {
    let [file, start @ ..] = args else { return Err(RESTORE_USAGE.into()) };
    if start.is_empty() {
        return Err(RESTORE_USAGE.into());
    }
    let loaded = Config::load(start);
    let loaded = loaded.map_err(|error| String::from_utf8_lossy(&error.message()).into_owned())?;
    let Startup::Serve(settings) = loaded else { return Err(RESTORE_USAGE.into()) };
    let mut config = settings.config;
    let absolute =
        |path: &Path| path.canonicalize().map_err(|error| format!("{}: {error}", path.display()));
    let file = absolute(Path::new(file))?;
    config.dir = absolute(&config.dir)?;
    let bar = Bar::default();
    let restore =
        Restore { disk: Arc::new(RealDisk), clock: &Clock::System, file: &file, config: &config };
    let Restored { facts, has_record, placed, kept, left } =
        restore.run(&mut |done, size| bar.show(done, size))?;
    let by = if has_record { "the record beside it" } else { "its own checksum alone" };
    let mut text =
        format!("{}: {} keys, {} bytes, right by {by}\n", file.display(), facts.keys, facts.bytes);
    for path in placed {
        text += &format!("Restored: {}\n", path.display());
    }
    for (old, new) in &kept {
        text += &format!("Kept:     {} as {}\n", old.display(), new.display());
    }
    for path in left {
        text += &format!("Not needed any more, and still there: {}\n", path.display());
    }
    if let Some(primary) = &config.replicaof {
        text += &format!(
            "The server follows {}:{} by its configuration, which will replace this data\n",
            String::from_utf8_lossy(&primary.host),
            primary.port
        );
    }
    Ok(text)
}

/// `--move`.
fn move_data(args: &[OsString]) -> Result<String, String> {
    let passwords = [PASSWORD_VARIABLE, TO_PASSWORD_VARIABLE].map(std::env::var_os);
    let asked = Move::parse(args, passwords)?;
    let interrupted = process::note_interrupts().map_err(|error| error.to_string())?;
    let mut terminal = Terminal { bar: Bar::default(), interrupted: interrupted.clone() };
    asked.run(&Clock::System, &interrupted, &mut terminal)?;
    Ok(String::new())
}

/// Who has started `--move`.
struct Terminal {
    bar: Bar,
    interrupted: Arc<AtomicBool>,
}

impl Terminal {
    fn end_bar(&mut self) {
        if let Some(bar) = self.bar.0.take() {
            bar.finish_and_clear();
        }
    }
}

impl Operator for Terminal {
    fn line(&mut self, text: &str) {
        self.end_bar();
        // Writing fails harmlessly if nobody reads the output.
        let _ = writeln!(std::io::stdout(), "{text}");
    }

    fn progress(&mut self, done: u64, total: u64) {
        if total > 0 {
            self.bar.show(done, total);
        }
    }

    fn word(&mut self, prompt: &str) -> bool {
        self.end_bar();
        let _ = write!(std::io::stdout(), "{prompt}").and_then(|()| std::io::stdout().flush());
        let (said, hears) = std::sync::mpsc::channel();
        // The thread ends with the process: nothing else ends the wait for a line.
        std::thread::spawn(move || {
            let mut answer = String::new();
            // A missing answer means no.
            let _ = std::io::stdin().lock().take(100).read_line(&mut answer);
            let _ = said.send(answer.trim() == "move");
        });
        let word = loop {
            match hears.recv_timeout(Duration::from_millis(50)) {
                Err(RecvTimeoutError::Timeout) if !self.interrupted.load(Ordering::SeqCst) => {}
                heard => break heard.unwrap_or(false),
            }
        };
        if !word || !std::io::stdin().is_terminal() {
            let _ = writeln!(std::io::stdout());
        }
        word
    }
}

fn print_completions(args: &[OsString]) -> i32 {
    let text = match args {
        [shell] => shell.to_str().and_then(completions),
        _ => None,
    };
    match text {
        // Fails harmlessly if nobody reads the whole text.
        Some(text) => _ = std::io::stdout().write_all(text.as_bytes()),
        None => {
            eprintln!("Usage: latchkey --completions {}", SHELLS.join(" | "));
            return 1;
        }
    }
    0
}

fn check_rdb(program: &str, args: &[OsString]) -> i32 {
    match CheckRdb::parse(program, args) {
        Ok(CheckRdb::File(path, check)) => {
            let bar = Bar::default();
            let (mut out, now) = (std::io::stdout().lock(), Clock::System.now());
            let progress = &mut |done, size| bar.show(done, size);
            check_file(&path, check, &RealDisk, &mut out, now, progress)
        }
        Ok(CheckRdb::Version) => {
            println!("redis-check-rdb {}", env!("CARGO_PKG_VERSION"));
            0
        }
        Err(usage) => {
            eprint!("{usage}");
            1
        }
    }
}

fn check_aof(program: &str, args: &[OsString]) -> i32 {
    let check = match CheckAof::parse(program, args) {
        Ok(check) => check,
        Err(usage) => {
            print!("{usage}");
            return 1;
        }
    };
    let now = Clock::System.now();
    check.run(Environment {
        disk: &RealDisk,
        out: &mut std::io::stdout(),
        answer: &mut || {
            let mut answer = String::new();
            // A missing answer means no.
            let _ = std::io::stdin().read_line(&mut answer);
            answer.starts_with(['y', 'Y'])
        },
        rdb: &mut |name, mut source, size, out| {
            let bar = Bar::default();
            let progress = &mut |done| bar.show(done, size);
            check_image(name, VersionCheck::Strict, &mut source, out, now, progress)
        },
    })
}

/// The progress of a check, shown if standard error is a terminal.
#[derive(Default)]
struct Bar(OnceCell<ProgressBar>);

impl Bar {
    fn show(&self, done: u64, size: u64) {
        let bar = self.0.get_or_init(|| match std::io::stderr().is_terminal() {
            true => ProgressBar::new(size),
            false => ProgressBar::hidden(),
        });
        bar.set_position(done);
        if done == size {
            bar.finish_and_clear();
        }
    }
}

/// The line of `--version`. Its first word has this server's own version. The words after it are
/// redis-server's, which scripts parse: `v` is the Redis version announced to clients, as they
/// choose features by it.
fn version() -> String {
    let jemalloc = tikv_jemalloc_ctl::version::read().unwrap_or_default();
    let (commit, is_modified) = build::commit();
    format!(
        "Latchkey/{version} server v={} sha={commit}:{is_modified} malloc=jemalloc-{} bits={} build={} latchkey={version}",
        String::from_utf8_lossy(&Config::default().redis_version),
        jemalloc.split('-').next().unwrap_or_default(),
        usize::BITS,
        build::id(),
        version = build::VERSION,
    )
}

/// `--check-config` and `--check-system`. Fails if a server would not start, or if there are
/// warnings about the system.
fn check(what: Examined, json: bool, loaded: Loaded) -> ExitCode {
    let (is_good, findings, shown) = match what {
        Examined::Configuration => {
            let report = check_config(loaded);
            let shown = if json { report.json() + "\n" } else { report.summary() };
            (report.is_good(), report.findings(), shown)
        }
        Examined::System => {
            let report = check_system(loaded);
            let shown = if json { report.json() + "\n" } else { report.text() };
            (report.is_good(), String::new(), shown)
        }
    };
    // Writing fails harmlessly if nobody reads the output.
    if !json {
        let _ = std::io::stderr().write_all(findings.as_bytes());
    }
    let _ = std::io::stdout().write_all(shown.as_bytes());
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs a server until it ends. Errors: in the configuration; other failures are logged.
fn serve(
    settings: Settings,
    name: &OsStr,
    is_bare: bool,
    invocation: Option<Invocation>,
) -> Result<ExitCode, ConfigError> {
    let Settings { mut config, users, renamed_commands: renames, without_effect } = settings;
    let (renamed, errors) = renamed_commands(&renames);
    let (users, wrong) = user_lines(&users);
    if let Some(first) = errors.into_iter().chain(wrong).next() {
        return Err(first);
    }
    if let Err(error) = std::env::set_current_dir(&config.dir) {
        eprintln!("Can't chdir to '{}': {error}", config.dir.display());
        return Ok(ExitCode::FAILURE);
    }
    let mut log = Log(Logger::new(log_level(&config), &config.logfile));
    log.0.set_format(config.log_format, config.log_timestamp_format);
    if config.syslog_enabled {
        log.0.also_to_syslog(&config.syslog_ident, config.syslog_facility);
    }
    process::ignore_signals();
    let supervisor = find_supervisor(config.supervised, &log);
    if config.daemonize
        && matches!(supervisor, Supervisor::Nobody)
        && !daemonize(&mut config, &mut log)
    {
        return Ok(ExitCode::FAILURE);
    }
    log_start(name, is_bare, &log);
    if !without_effect.is_empty() {
        log.warn(format_args!("{NO_EFFECT}: {}", without_effect.join(", ")));
    }
    let files = allow_files(&mut config);
    for (level, line) in files.lines {
        log.0.write(Clock::System.now(), level, format_args!("{line}"));
    }
    if !files.is_enough {
        return Ok(ExitCode::FAILURE);
    }
    // Must come before the first thread.
    let title = Title::claim();
    if !jemalloc::purge_beside(config.jemalloc_bg_thread) {
        log.warn(format_args!("Can't start the thread that returns memory to the system"));
    }
    crash::enable(config.crash_log_enabled);
    if let Err(error) = crash::install(log.0.clone()) {
        log.warn(format_args!("Can't report crashes: {error}"));
    }
    let greeting = Greeting::of(&config);
    let mut server = match Server::start(config, Clock::System, log.0.clone()) {
        Ok(server) => server,
        Err(text) => {
            log.warn(format_args!("{text}"));
            return Ok(ExitCode::FAILURE);
        }
    };
    server.rename_commands(renamed);
    server.allow_restart(invocation);
    if !server.is_listening() {
        log.warn(format_args!("{NOWHERE}"));
        return Ok(ExitCode::FAILURE);
    }
    server.set_title(title, name.as_bytes().to_vec());
    server.write_pidfile();
    greeting.write(&log);
    if let Err(error) = server.catch_signals() {
        log.warn(format_args!("Can't catch signals: {error}"));
        return Ok(ExitCode::FAILURE);
    }
    if !server.load_users(&users) {
        return Ok(ExitCode::FAILURE);
    }
    Ok(run(server, supervisor, &log))
}

/// Moves the process to the background. False on an error, which is logged.
fn daemonize(config: &mut Config, log: &mut Log) -> bool {
    if let Err(error) = process::daemonize() {
        log.warn(format_args!("Can't go to the background: {error}"));
        return false;
    }
    log.0.pid_changed();
    if config.pidfile.is_empty() {
        config.pidfile = DEFAULT_PIDFILE.to_vec();
    }
    true
}

/// The text of the log once the server listens.
struct Greeting {
    port: u16,
    backlog: u32,
    show_logo: bool,
    mode: &'static str,
}

impl Greeting {
    fn of(config: &Config) -> Self {
        let on_terminal =
            config.logfile.is_empty() && !config.syslog_enabled && std::io::stdout().is_terminal();
        Greeting {
            port: if config.port != 0 { config.port } else { config.tls_port },
            backlog: config.tcp_backlog,
            mode: if config.cluster_enabled { "cluster" } else { "standalone" },
            show_logo: config.always_show_logo || on_terminal,
        }
    }

    fn write(&self, log: &Log) {
        if self.show_logo {
            log.0.write_raw(&logo(self.port, self.mode));
        } else {
            log.notice(format_args!("Running mode={}, port={}.", self.mode, self.port));
        }
        warn_of_backlog(self.backlog, log);
        log.warn(format_args!("Server initialized"));
    }
}

/// Loads the data, and runs until the server ends.
fn run(mut server: Server, supervisor: Supervisor, log: &Log) -> ExitCode {
    supervisor.loading();
    if server.load().is_err() {
        return ExitCode::FAILURE;
    }
    server.announce(supervisor);
    match server.run() {
        Ok(Ending::InOrder) => ExitCode::SUCCESS,
        Ok(Ending::ToRestart { delay }) => start_again(server, delay, log),
        Ok(Ending::WithoutChanges) => ExitCode::FAILURE,
        Err(error) => {
            log.warn(format_args!("Waiting for events failed: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Starts the program again in this process. Returns only if that fails.
fn start_again(server: Server, delay: Duration, log: &Log) -> ExitCode {
    if let Some(invocation) = server.make_way() {
        let error = invocation.start_again(delay);
        log.warn(format_args!("Can't restart: {error}"));
    }
    ExitCode::FAILURE
}

/// The first lines of the log.
fn log_start(name: &OsStr, is_bare: bool, log: &Log) {
    log.warn(format_args!("oO0OoO0OoO0Oo Latchkey is starting oO0OoO0OoO0Oo"));
    let (commit, is_modified) = build::commit();
    log.warn(format_args!(
        "Latchkey version={}, bits={}, commit={commit}, modified={is_modified}, pid={}, just started",
        build::VERSION,
        usize::BITS,
        std::process::id()
    ));
    if is_bare {
        log.warn(format_args!(
            "Warning: no config file specified, using the default config. In order to specify a config file use {} \
             /path/to/redis.conf",
            name.display()
        ));
    } else {
        log.warn(format_args!("Configuration loaded"));
    }
}

/// The log during the start.
struct Log(Logger);

impl Log {
    fn notice(&self, message: std::fmt::Arguments<'_>) {
        self.0.write(Clock::System.now(), Level::Notice, message);
    }

    fn warn(&self, message: std::fmt::Arguments<'_>) {
        self.0.write(Clock::System.now(), Level::Warning, message);
    }
}

/// The process supervisor, among those allowed by `supervised`.
fn find_supervisor(supervised: &str, log: &Log) -> Supervisor {
    let found = match supervised {
        "upstart" => Supervisor::upstart(),
        "systemd" => Supervisor::systemd(),
        "auto" => Supervisor::upstart().or_else(Supervisor::systemd),
        _ => return Supervisor::Nobody,
    };
    match (&found, supervised) {
        (Some(Supervisor::Upstart), _) => {
            log.notice(format_args!("supervised by upstart, will stop to signal readiness"));
        }
        (Some(Supervisor::Systemd(_)), _) => {
            log.notice(format_args!("supervised by systemd. Please make sure you set appropriate values for TimeoutStartSec and TimeoutStopSec in your service unit."));
        }
        (_, "upstart") => {
            log.warn(format_args!("upstart supervision requested, but UPSTART_JOB not found!"));
        }
        (_, "systemd") => {
            log.warn(format_args!("systemd supervision requested or auto-detected, but Latchkey can't reach the socket that NOTIFY_SOCKET names"));
        }
        _ => {}
    }
    let found = found.unwrap_or(Supervisor::Nobody);
    if let Err(error) = found.stop_for_upstart() {
        log.warn(format_args!("Stopping for upstart: {error}"));
    }
    found
}

/// Warns if the kernel's limit of the accept queue is below `tcp-backlog`.
fn warn_of_backlog(backlog: u32, log: &Log) {
    let path = system::ACCEPT_QUEUE;
    let Some(text) = system::setting(path.as_ref()) else {
        return;
    };
    if let Ok(limit) = text.trim().parse::<u32>()
        && limit > 0
        && limit < backlog
    {
        log.warn(format_args!(
            "WARNING: The TCP backlog setting of {backlog} cannot be enforced because {path} is set to the lower \
             value of {limit}."
        ));
    }
}

/// The logo shown on a terminal.
fn logo(port: u16, mode: &str) -> String {
    format!(
        "
     .-------.
     |  .-.  |      Latchkey {} {} bit
     |  '-'  |
     |   |   |      Running in {mode} mode
     |   |-' |      Port: {port}
     |   |-' |      PID: {}
     '-------'

",
        build::VERSION,
        usize::BITS,
        std::process::id(),
    )
}
