//! The program as a process: command line, log, exit codes, files it leaves and takes away.
//!
//! Every server here has a directory of its own and a free port. Waiting
//! is for something the server says (a line of its log, a file, its end), never for time to pass.

#![allow(clippy::disallowed_methods)] // the limit of patience is measured in real time

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use latchkey::config::system_text;

use crate::support::encode;
use crate::support::ports::free_port;

/// How long anything may take before the test fails: a limit against hanging, not a measure of
/// speed.
const PATIENCE: Duration = Duration::from_secs(30);

/// What became of a program that ended.
struct Ended {
    status: ExitStatus,
    stdout: String,
    stderr: String,
}

/// A server with a directory of its own; killed when this is dropped.
pub struct Process {
    child: Child,
    dir: TempDir,
}

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_latchkey"));
    command.env_remove("NOTIFY_SOCKET").env_remove("UPSTART_JOB");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Gives the program its configuration on standard input.
fn feed(child: &mut Child, text: &str) {
    let mut stdin = child.stdin.take().expect("standard input is a pipe");
    stdin.write_all(text.as_bytes()).expect("the program reads its configuration");
}

/// Runs the program with a configuration that makes it end at once.
fn run(args: &[&str], text: &str) -> Ended {
    let mut child = program().args(args).spawn().expect("the program starts");
    feed(&mut child, text);
    let start = Instant::now();
    while child.try_wait().expect("a child").is_none() {
        if start.elapsed() > PATIENCE {
            let _ = child.kill();
            panic!("waited too long for the end of the program {args:?}");
        }
        std::thread::yield_now();
    }
    let output = child.wait_with_output().expect("the program has ended");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    Ended { status: output.status, stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// Looks again and again, until there is something to see.
fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "waited too long for {what}");
        std::thread::yield_now();
    }
}

impl Process {
    /// Starts a server with further lines of configuration; its log is `log` in its directory.
    pub fn start(lines: &str) -> Self {
        let process = Process::spawn(lines, |_| {});
        process.wait_for_log("eady to accept connections");
        process
    }

    fn spawn(lines: &str, prepare: impl FnOnce(&mut Command)) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let text = format!("dir {}\nlogfile log\nbind 127.0.0.1\n{lines}\n", dir.path().display());
        let mut command = program();
        prepare(&mut command);
        let mut child = command.arg("-").spawn().expect("the program starts");
        feed(&mut child, &text);
        Process { child, dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    fn wait_for_log(&self, text: &str) {
        wait_for(text, || self.log().contains(text).then_some(()));
    }

    fn signal(&self, signal: libc::c_int) {
        send_signal(self.child.id(), signal);
    }

    /// Waits for the end.
    fn exit_code(&mut self) -> Option<i32> {
        wait_for("the end of the program", || self.child.try_wait().expect("a child")).code()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn send_signal(pid: u32, signal: libc::c_int) {
    let pid = rustix::process::Pid::from_raw(pid as i32).expect("a process id");
    let signal = rustix::process::Signal::from_named_raw(signal).expect("a signal");
    rustix::process::kill_process(pid, signal).expect("the process is there");
}

fn connect(port: u16) -> redis::Connection {
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}/")).expect("an address");
    let connection = client.get_connection().expect("the server takes connections");
    connection.set_read_timeout(Some(PATIENCE)).expect("an option of sockets");
    connection
}

#[test]
fn the_version_has_the_fields_that_scripts_look_for() {
    let ended = run(&["--version"], "");
    assert_eq!(ended.status.code(), Some(0));
    let shown = ended.stdout.trim_end();
    let fields: Vec<(&str, &str)> =
        shown.split(' ').skip(2).filter_map(|field| field.split_once('=')).collect();
    let names: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["v", "sha", "malloc", "bits", "build", "latchkey"], "{shown}");
    // As hiredis, redis-rs and roles of ansible read it: the third word has the number of Redis.
    let own = env!("CARGO_PKG_VERSION");
    assert!(shown.starts_with(&format!("Latchkey/{own} server v=7.2.4 sha=")), "{shown}");
    assert_eq!(shown, run(&["-v"], "").stdout.trim_end());
    let hexadecimal = |text: &str| text.bytes().all(|digit| digit.is_ascii_hexdigit());
    let (commit, is_modified) =
        fields[1].1.split_once(':').expect("a commit and whether it was changed");
    assert!(
        commit.len() == 8 && hexadecimal(commit) && ["0", "1"].contains(&is_modified),
        "{shown}"
    );
    assert!(fields[2].1.starts_with("jemalloc-5."), "{shown}");
    assert!(fields[4].1.len() == 16 && hexadecimal(fields[4].1), "{shown}");
    assert_eq!((fields[3].1, fields[5].1), ("64", env!("CARGO_PKG_VERSION")));
    assert_eq!(run(&["-h"], "").status.code(), Some(1));
}

#[test]
fn a_bad_line_of_the_configuration_stops_the_start_and_is_shown() {
    for (line, reason) in [
        ("port eighty", "argument couldn't be parsed into an integer"),
        ("nosuch 1", "Bad directive or wrong number of arguments"),
        ("rename-command NOSUCH X", "No such command in rename-command"),
        ("rename-command GET SET", "Target command name already exists"),
        ("user bob on nonsense", "Error in user declaration 'nonsense': Syntax error"),
        ("user bob (~a", "Error in user declaration '(~a': Wrong format"),
        ("dir /nosuch/place", "No such file or directory"),
    ] {
        let ended = run(&["-"], &format!("timeout 5\n{line}\n"));
        assert_eq!(ended.status.code(), Some(1), "{line}");
        let shown = format!(
            "\n*** FATAL CONFIG FILE ERROR (Latchkey {}) ***\nReading the configuration file, at line 2\n>>> '{line}'\n{reason}\n",
            env!("CARGO_PKG_VERSION")
        );
        assert_eq!(ended.stderr, shown);
    }
}

#[test]
fn files_that_other_servers_ship_start_this_one() {
    const SHIPPED: &str = include_str!("../../data/config-shipped.tsv");
    let rows: Vec<(&str, &str)> = SHIPPED
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split_once('\t').expect("a directive and who ships it"))
        .collect();
    for server in ["redis-7.0", "redis-7.2", "redis-8.0", "valkey-9.1"] {
        let of_it = rows.iter().filter(|(_, servers)| servers.split(' ').any(|one| one == server));
        let lines: Vec<&str> = of_it.map(|(line, _)| *line).collect();
        assert!(lines.len() > 70, "{server}: {lines:?}");
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("shipped.conf");
        std::fs::write(&file, lines.join("\n")).expect("the file can be written");
        let port = free_port().to_string();
        let mut command = program();
        command.current_dir(dir.path()).arg(&file);
        command.args(["--port", &port, "--logfile", "log", "--pidfile", ""]);
        let process = Process { child: command.spawn().expect("the program starts"), dir };
        process.wait_for_log("eady to accept connections");
    }
}

#[test]
fn users_that_cannot_be_stop_the_start() {
    for (lines, last) in [
        ("user a +nosuch", "# Critical error while loading ACLs. Exiting."),
        (
            "aclfile users\nuser a on",
            "or declare users directly in your configuration, but not both.",
        ),
        (
            "aclfile nosuch",
            "# Aborting Latchkey's start because of ACL errors: Error loading ACLs, opening file 'nosuch': No such file or directory",
        ),
    ] {
        let ended = run(&["-"], &format!("port {}\nbind 127.0.0.1\n{lines}", free_port()));
        assert_eq!(ended.status.code(), Some(1), "{lines}");
        assert!(ended.stdout.trim_end().ends_with(last), "{lines}: {}", ended.stdout);
    }
}

#[test]
fn a_server_with_nowhere_to_listen_does_not_start() {
    let ended = run(&["-"], "port 0");
    assert_eq!(ended.status.code(), Some(1));
    assert!(
        ended.stdout.ends_with("# Configured to not listen anywhere, exiting.\n"),
        "{}",
        ended.stdout
    );
}

/// The C library's words.
fn in_use() -> String {
    system_text(&std::io::Error::from_raw_os_error(libc::EADDRINUSE))
}

#[test]
fn a_port_in_use_stops_the_start() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = taken.local_addr().expect("a bound socket has an address").port();
    let ended = run(&["-", "--bind", "127.0.0.1"], &format!("port {port}"));
    assert_eq!(ended.status.code(), Some(1));
    let warning = format!(
        "# Warning: Could not create server TCP listening socket 127.0.0.1:{port}: bind: {}\n",
        in_use()
    );
    assert!(ended.stdout.contains(&warning), "{}", ended.stdout);
    let end = format!("# Failed listening on port {port} (TCP), aborting.\n");
    assert!(ended.stdout.ends_with(&end), "{}", ended.stdout);
}

/// Each would truncate what the other one has answered.
#[test]
fn a_second_server_with_the_same_append_only_file_is_refused() {
    let first = Process::start("port 0\nunixsocket a.sock\nappendonly yes");
    let lock = first.path("appendonlydir/appendonly.aof.lock");
    let refusal =
        format!("Another server uses this append-only file: it has {} locked", lock.display());
    let dir = format!("dir {}\nport 0\nunixsocket b.sock\n", first.dir.path().display());
    let ended = run(&["-"], &format!("{dir}appendonly yes"));
    assert_eq!(ended.status.code(), Some(1));
    assert!(ended.stdout.contains(&refusal), "{}", ended.stdout);
    // With a name of its own it starts; CONFIG SET is refused alike.
    let port = free_port();
    let text = format!("{dir}bind 127.0.0.1\nport {port}\nlogfile log\n");
    let mut child = program().arg("-").spawn().expect("the program starts");
    feed(&mut child, &text);
    let mut connection = reconnect(port);
    let set =
        redis::cmd("CONFIG").arg("SET").arg("appendonly").arg("yes").query::<()>(&mut connection);
    assert!(set.expect_err("it is refused").to_string().contains("Unable to turn on AOF"));
    first.wait_for_log(&refusal);
    child.kill().expect("it runs");
    child.wait().expect("it ends");
}

#[test]
fn the_log_of_a_whole_life_is_that_of_redis() {
    let port = free_port();
    let mut process = Process::start(&format!("port {port}\npidfile pid"));
    let pid = process.child.id();
    assert_eq!(std::fs::read_to_string(process.path("pid")).expect("a file"), format!("{pid}\n"));
    process.signal(libc::SIGTERM);
    assert_eq!(process.exit_code(), Some(0));
    assert!(!process.path("pid").exists());
    let log = process.log();
    let messages: Vec<&str> = log
        .lines()
        .map(|line| line.splitn(6, ' ').last().expect("a message"))
        .filter(|line| !line.contains("open files"))
        .collect();
    let version = env!("CARGO_PKG_VERSION");
    let (commit, is_modified) = latchkey::sys::build::commit();
    assert_eq!(
        messages,
        [
            "# oO0OoO0OoO0Oo Latchkey is starting oO0OoO0OoO0Oo",
            &format!(
                "# Latchkey version={version}, bits=64, commit={commit}, modified={is_modified}, pid={pid}, just started"
            ),
            "# Configuration loaded",
            &format!("* Running mode=standalone, port={port}."),
            "# Server initialized",
            "* Ready to accept connections",
            "# Received SIGTERM scheduling shutdown...",
            "# User requested shutdown...",
            "* Saving the final RDB snapshot before exiting.",
            "* DB saved on disk",
            "* Removing the pid file.",
            "# Latchkey is now ready to exit, bye bye...",
        ],
        "{log}"
    );
}

/// A log of a server with modules. A start without the key would lose it at the next rewrite.
#[test]
fn a_restore_of_a_modules_value_stops_the_start() {
    let dir = tempfile::tempdir().expect("a directory");
    let folder = dir.path().join("appendonlydir");
    std::fs::create_dir(&folder).expect("a folder");
    std::fs::write(
        folder.join("appendonly.aof.manifest"),
        "file appendonly.aof.1.incr.aof seq 1 type i\n",
    )
    .expect("a manifest");
    let request = encode(&[&b"RESTORE"[..], b"doc", b"0", b"\x07\x81rest-of-it"]);
    std::fs::write(folder.join("appendonly.aof.1.incr.aof"), request).expect("a log");
    let text = format!(
        "dir {}\nbind 127.0.0.1\nport 0\nunixsocket sock\nappendonly yes\n",
        dir.path().display()
    );
    let ended = run(&["-"], &text);
    assert_eq!(ended.status.code(), Some(1));
    let told = "Key 'doc' is a module's value, which cannot be read without the module";
    assert!(ended.stdout.contains(told), "{}", ended.stdout);
}

/// The last lines are those of redis-server 7.0.15 and valkey-server 9.1.2, which scripts look for.
#[test]
fn a_file_of_an_unknown_version_stops_the_start() {
    let redis = "Fatal error loading the DB: Invalid argument. Exiting.";
    let valkey = "Fatal error loading the DB, check server logs. Exiting.";
    let damaged = "Terminating server after rdb file reading failure.";
    let (as_valkey, relaxed) = ("compatible-with valkey-9", "rdb-version-check relaxed");
    let unread = "1 to 15 of Redis and 80 of Valkey can";
    for (file, lines, exact, line, last) in [
        (&b"REDIS0075"[..], "", unread, "Can't handle RDB format version 75", redis),
        (b"VALKEY987", as_valkey, unread, "Can't handle RDB format version 987", valkey),
        (
            b"FOOBAR0010",
            "",
            "does not begin as an RDB file does",
            "Wrong signature trying to load DB from file",
            redis,
        ),
        (
            b"REDIS0075\x96\x01k",
            relaxed,
            "type 150 is not known (byte 10)",
            "Can't handle foreign type or opcode 150 in RDB with version 75",
            redis,
        ),
        (
            b"REDIS0010\x96\x01k",
            "",
            "Server initialized",
            "type 150 is not known (byte 10)",
            damaged,
        ),
    ] {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("dump.rdb"), file).expect("a file");
        let port = free_port();
        let text = format!("dir {}\nbind 127.0.0.1\nport {port}\n{lines}\n", dir.path().display());
        let ended = run(&["-"], &text);
        assert_eq!(ended.status.code(), Some(1));
        let log: Vec<&str> = ended.stdout.lines().rev().take(3).collect();
        assert!(log[0].ends_with(&format!(" # {last}")), "{log:?}");
        assert!(log[1].ends_with(line), "{log:?}");
        assert!(log[2].ends_with(exact), "{log:?}");
        assert!(log[1..].iter().any(|line| line.contains("dump.rdb: ")), "{log:?}");
    }
}

#[test]
fn an_interrupt_and_a_hangup_are_told_apart() {
    let mut process = Process::start(&format!("port {}", free_port()));
    process.signal(libc::SIGHUP);
    process.signal(libc::SIGINT);
    assert_eq!(process.exit_code(), Some(0));
    process.wait_for_log("Received SIGINT scheduling shutdown...");
}

#[test]
fn a_shutdown_by_a_signal_can_be_taken_back_while_it_is_put_off() {
    let port = free_port();
    let mut process = Process::start(&format!("port {port}\nenable-debug-command yes"));
    let mut connection = connect(port);
    let mut ask = |words: &[&str]| -> redis::RedisResult<String> {
        redis::cmd(words[0]).arg(&words[1..]).query(&mut connection)
    };
    assert!(ask(&["SHUTDOWN", "ABORT"]).is_err());
    assert_eq!(ask(&["DEBUG", "PAUSE-CRON", "1"]).as_deref(), Ok("OK"));
    process.signal(libc::SIGTERM);
    process.wait_for_log("Received SIGTERM scheduling shutdown...");
    assert_eq!(ask(&["PING"]).as_deref(), Ok("PONG"));
    assert_eq!(ask(&["SHUTDOWN", "ABORT"]).as_deref(), Ok("OK"));
    process.wait_for_log("Shutdown manually aborted.");
    assert_eq!(ask(&["DEBUG", "PAUSE-CRON", "0"]).as_deref(), Ok("OK"));
    assert_eq!(ask(&["PING"]).as_deref(), Ok("PONG"));
    assert_eq!(ask(&["DEBUG", "PAUSE-CRON", "1"]).as_deref(), Ok("OK"));
    process.signal(libc::SIGTERM);
    assert_eq!(ask(&["DEBUG", "PAUSE-CRON", "0"]).as_deref(), Ok("OK"));
    assert_eq!(process.exit_code(), Some(0));
}

#[test]
fn expiring_many_keys_at_once_is_seen_by_the_latency_monitor() {
    let port = free_port();
    let lines = "latency-monitor-threshold 1\nnotify-keyspace-events Ex";
    let _process = Process::start(&format!("port {port}\n{lines}"));
    // Who is told of each makes it take long enough.
    let mut listeners: Vec<_> = (0..50).map(|_| connect(port)).collect();
    for listener in &mut listeners {
        let subscribe = redis::cmd("SUBSCRIBE").arg("__keyevent@0__:expired").get_packed_command();
        listener.send_packed_command(&subscribe).expect("the server reads");
    }
    let mut connection = connect(port);
    let soon = std::time::SystemTime::now() + Duration::from_millis(50);
    let soon = soon.duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_millis() as u64;
    let mut pipe = redis::pipe();
    for key in 0..2_000 {
        pipe.cmd("SET").arg(key).arg("v").arg("PXAT").arg(soon).ignore();
    }
    pipe.query::<()>(&mut connection).expect("OK");
    wait_for("the event", || {
        let events: Vec<(String, u64, u64, u64)> =
            redis::cmd("LATENCY").arg("LATEST").query(&mut connection).expect("an array");
        events.iter().any(|event| event.0 == "expire-cycle").then_some(())
    });
}

#[test]
fn telling_of_evicted_keys_evicts_no_others() {
    let port = free_port();
    let _process = Process::start(&format!("port {port}\nmaxmemory-policy allkeys-lru"));
    let mut connection = connect(port);
    let name = |key: u32| format!("{key}:{}", "x".repeat(1000));
    for key in 0..300 {
        redis::cmd("SET").arg(name(key)).arg("v").query::<()>(&mut connection).expect("OK");
    }
    let readers: Vec<TcpStream> = (0..10)
        .map(|_| {
            let mut reader = TcpStream::connect(("127.0.0.1", port)).expect("served");
            let reads: String = (0..300).map(|key| format!("GET {}\r\n", name(key))).collect();
            let begin = "HELLO 3\r\nCLIENT TRACKING on\r\n";
            write!(reader, "{begin}{reads}").expect("the server reads");
            reader
        })
        .collect();
    let mut number = |command: &str, field: &str| -> u64 {
        let info: String = redis::cmd("INFO").arg(command).query(&mut connection).expect("a text");
        let line = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        line.and_then(|number| number.parse().ok()).expect("a number")
    };
    wait_for("all keys to be read", || {
        (number("stats", "tracking_total_items") == 3000).then_some(())
    });
    let limit = number("memory", "used_memory") - 40_000;
    let mut connection = connect(port);
    let mut set = redis::cmd("CONFIG");
    set.arg("SET").arg("maxmemory").arg(limit).arg("maxmemory-eviction-tenacity").arg(100);
    set.query::<()>(&mut connection).expect("OK");
    for _ in 0..10 {
        let size: u64 = redis::cmd("DBSIZE").query(&mut connection).expect("a number");
        assert!((230..300).contains(&size), "{size} keys are left");
    }
    drop(readers);
}

/// A number that INFO tells.
fn number_of(connection: &mut redis::Connection, section: &str, name: &str) -> usize {
    let info: String = redis::cmd("INFO").arg(section).query(connection).expect("a text");
    let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.and_then(|value| value.parse().ok()).expect("a number")
}

#[test]
fn the_loop_sleeps_while_a_save_is_written() {
    let port = free_port();
    let process = Process::start(&format!("port {port}\nenable-debug-command yes"));
    let mut connection = connect(port);
    let mut call = |words: &str| {
        let words: Vec<&str> = words.split(' ').collect();
        redis::cmd(words[0]).arg(&words[1..]).exec(&mut connection).expect("OK");
    };
    call("DEBUG POPULATE 300");
    // The walk is over at once, the thread needs 300 ms.
    call("CONFIG SET rdb-key-save-delay 1000");
    call("BGSAVE");
    let before = number_of(&mut connection, "stats", "eventloop_cycles");
    process.wait_for_log("Background saving terminated with success");
    let turns = number_of(&mut connection, "stats", "eventloop_cycles") - before;
    assert!(turns < 200, "{turns} turns of the loop");
}

#[test]
fn a_length_that_is_only_announced_takes_no_memory() {
    let port = free_port();
    let _process = Process::start(&format!("port {port}"));
    let mut connection = connect(port);
    let received = |connection: &mut redis::Connection| {
        number_of(connection, "stats", "total_net_input_bytes")
    };
    let before = number_of(&mut connection, "memory", "used_memory");
    let (start, mut sent) = (received(&mut connection), 0);
    let mut clients = Vec::new();
    for index in 0..20 {
        let head: &[u8] = match index % 2 {
            0 => b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$536870912\r\nabc",
            _ => b"*2147483647\r\n$3\r\nDEL\r\n$1\r\nk\r\n",
        };
        let mut client = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
        client.write_all(head).expect("the server reads");
        clients.push(client);
        sent += head.len();
    }
    wait_for("all to be read", || (received(&mut connection) >= start + sent).then_some(()));
    let grown = number_of(&mut connection, "memory", "used_memory").saturating_sub(before);
    assert!(grown < 4 << 20, "{grown} bytes for 20 announcements");
}

#[test]
fn requests_of_many_arguments_leave_no_memory_behind() {
    let port = free_port();
    let _process = Process::start(&format!("port {port}\nslowlog-log-slower-than 0"));
    let mut connection = connect(port);
    let used = |connection: &mut redis::Connection| number_of(connection, "memory", "used_memory");
    let before = used(&mut connection);
    for _ in 0..3 {
        let members: Vec<u32> = (0..100_000).collect();
        let mut ask = |command: &mut redis::Cmd| -> usize {
            command.query(&mut connection).expect("a number")
        };
        assert_eq!(ask(redis::cmd("SADD").arg("s").arg(members)), 100_000);
        assert_eq!(ask(redis::cmd("UNLINK").arg("s")), 1);
    }
    let left = || (used(&mut connection) < 2 * before).then_some(());
    wait_for("memory in use to be as before", left);
}

#[test]
fn a_unix_socket_has_its_permissions_and_is_removed_at_the_end() {
    let mut process = Process::start("port 0\nunixsocket server.sock\nunixsocketperm 700");
    let path = process.path("server.sock");
    let mode = std::fs::metadata(&path).expect("a socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    let client = redis::Client::open(format!("unix://{}", path.display())).expect("an address");
    let mut connection = client.get_connection().expect("a connection");
    let set: String = redis::cmd("SET").arg("k").arg("v").query(&mut connection).expect("OK");
    assert_eq!(set, "OK");
    process.signal(libc::SIGTERM);
    assert_eq!(process.exit_code(), Some(0));
    assert!(!path.exists());
    process.wait_for_log("The server is now ready to accept connections at server.sock");
}

#[test]
fn a_unix_socket_replaces_neither_a_file_nor_a_socket_in_use() {
    let mut first = Process::start("port 0\nunixsocket s.sock");
    let text = format!("dir {}\nport 0\nunixsocket s.sock", first.dir.path().display());
    let refused = |why: &str| {
        let ended = run(&["-"], &text);
        assert_eq!(ended.status.code(), Some(1));
        assert!(ended.stdout.contains(why), "{}", ended.stdout);
    };
    refused(&format!("Failed opening Unix socket: bind: {}", in_use()));
    let path = first.path("s.sock");
    let client = redis::Client::open(format!("unix://{}", path.display())).expect("an address");
    client.get_connection().expect("the first server's socket is still there");
    first.signal(libc::SIGKILL);
    first.exit_code();
    assert!(path.exists());
    // What it has left is replaced.
    let mut child = program().arg("-").spawn().expect("the program starts");
    feed(&mut child, &format!("{text}\nlogfile log2"));
    wait_for("the second start", || client.get_connection().ok());
    // A socket of another server is not removed at the end.
    std::fs::remove_file(&path).expect("a socket");
    std::fs::write(&path, "a user's").expect("a file");
    send_signal(child.id(), libc::SIGTERM);
    child.wait().expect("it ends");
    refused("Failed opening Unix socket: bind: File exists");
    assert_eq!(std::fs::read_to_string(&path).expect("a file"), "a user's");
}

#[test]
fn in_the_background_the_parent_ends_and_the_child_serves() {
    let port = free_port();
    let mut process = Process::spawn(&format!("port {port}\ndaemonize yes\npidfile pid"), |_| {});
    assert_eq!(process.exit_code(), Some(0));
    process.wait_for_log("Ready to accept connections");
    let text = std::fs::read_to_string(process.path("pid")).expect("the child's process id");
    let pid: u32 = text.trim().parse().expect("a number");
    assert_ne!(pid, process.child.id());
    let answer: redis::RedisResult<String> =
        redis::cmd("SET").arg("k").arg("v").query(&mut connect(port));
    send_signal(pid, libc::SIGTERM);
    wait_for("the child's end", || (!process.path("pid").exists()).then_some(()));
    process.wait_for_log("bye bye");
    assert_eq!(answer, Ok("OK".to_owned()));
}

#[test]
fn renamed_commands_answer_to_their_new_names_only() {
    let port = free_port();
    let lines = "rename-command SET \"\"\nrename-command GET FETCH\nrename-command DEL GET";
    let _process = Process::start(&format!("port {port}\n{lines}"));
    let mut connection = connect(port);
    let mut error = |name: &str| {
        let result: redis::RedisResult<redis::Value> =
            redis::cmd(name).arg("k").query(&mut connection);
        result.err().map(|error| error.to_string())
    };
    assert!(error("SET").is_some_and(|text| text.contains("unknown command 'SET'")));
    assert!(error("DEL").is_some_and(|text| text.contains("unknown command 'DEL'")));
    assert_eq!(error("FETCH"), None);
    assert_eq!(error("GET"), None);
}

#[test]
fn renamed_commands_are_described_by_their_new_names() {
    let port = free_port();
    let lines =
        "rename-command SORT \"\"\nrename-command GET FETCH\nrename-command CONFIG SETTINGS";
    let _process = Process::start(&format!("port {port}\n{lines}"));
    let mut connection = connect(port);
    let mut ask = |request: &str| -> redis::RedisResult<redis::Value> {
        let mut words = request.split(' ');
        let mut command = redis::cmd(words.next().unwrap_or_default());
        for word in words {
            command.arg(word);
        }
        command.query(&mut connection)
    };
    let own_name = |reply: &redis::Value| match reply {
        redis::Value::Array(commands) => match &commands[..] {
            [redis::Value::Array(facts)] => facts.first().cloned(),
            _ => None,
        },
        _ => None,
    };
    for (given, own) in [
        ("fetch", Some("get")),
        ("SETTINGS|get", Some("config|get")),
        ("get", None),
        ("config|get", None),
        ("sort", None),
    ] {
        let reply = ask(&format!("COMMAND INFO {given}")).expect("an array");
        let own = own.map(|own| redis::Value::BulkString(own.into()));
        assert_eq!(own_name(&reply), own, "{given}: {reply:?}");
        let documented = ask(&format!("COMMAND DOCS {given}")).expect("a map");
        let is_empty = documented == redis::Value::Array(Vec::new());
        assert_eq!(is_empty, own.is_none(), "{given}: {documented:?}");
    }
    assert!(ask("COMMAND GETKEYS FETCH k").is_ok());
    assert!(ask("COMMAND GETKEYS GET k").is_err());
    assert!(ask("COMMAND GETKEYS SORT k").is_err());
    assert!(ask("FETCH k").is_ok());
    for (given, is_found) in [("fetch", true), ("get", false)] {
        let known = ask(&format!("LATENCY HISTOGRAM {given}")).expect("a map");
        assert_eq!(known != redis::Value::Array(Vec::new()), is_found, "{given}: {known:?}");
    }
    // Lists have the commands' own names.
    let redis::Value::Array(listed) = ask("COMMAND LIST").expect("names") else { panic!("a list") };
    for (name, is_listed) in [("get", true), ("config|get", true), ("sort", false)] {
        let name = redis::Value::BulkString(name.into());
        assert_eq!(listed.contains(&name), is_listed, "{name:?}");
    }
    let redis::Value::Array(all) = ask("COMMAND").expect("commands") else { panic!("a list") };
    assert_eq!(ask("COMMAND COUNT").expect("a number"), redis::Value::Int(all.len() as i64));
}

#[test]
fn replicas_and_files_take_renamed_commands() {
    let (port, other_port) = (free_port(), free_port());
    let renames = "rename-command RPUSH ADD\nrename-command DEL REMOVE";
    let lines = format!("port {port}\nappendonly yes\nenable-debug-command yes\n{renames}");
    let _process = Process::start(&lines);
    let _replica =
        Process::start(&format!("port {other_port}\nreplicaof 127.0.0.1 {port}\n{renames}"));
    let mut connection = connect(port);
    let mut ask = |words: &str| -> redis::Value {
        let mut words = words.split(' ');
        let mut command = redis::cmd(words.next().expect("a command"));
        for word in words {
            command.arg(word);
        }
        command.query(&mut connection).expect("no error")
    };
    ask("ADD gone a");
    assert_eq!(ask("WAIT 1 20000"), redis::Value::Int(1));
    ask("ADD list a b");
    ask("REMOVE gone");
    assert_eq!(ask("WAIT 1 20000"), redis::Value::Int(1));
    let check = |port| {
        let mut connection = connect(port);
        let list: Vec<String> =
            redis::cmd("LRANGE").arg("list").arg(0).arg(-1).query(&mut connection).expect("a list");
        assert_eq!(list, ["a", "b"]);
        let size: i64 = redis::cmd("DBSIZE").query(&mut connection).expect("a number");
        assert_eq!(size, 1);
    };
    check(other_port);
    ask("DEBUG LOADAOF");
    check(port);
}

#[test]
fn systemd_is_told_of_the_beginning_and_the_end() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&path).expect("a socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout that is not zero");
    let lines = format!("port {}\nsupervised auto\ndaemonize yes", free_port());
    let mut process = Process::spawn(&lines, |command| {
        command.env("NOTIFY_SOCKET", &path);
    });
    let hear = || {
        let mut buffer = [0; 256];
        let length = socket.recv(&mut buffer).expect("the server tells");
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    };
    assert_eq!(hear(), "STATUS=Latchkey is loading...\n");
    assert_eq!(hear(), "STATUS=Ready to accept connections\nREADY=1\n");
    process.signal(libc::SIGTERM);
    assert_eq!(hear(), "STATUS=Saving the final RDB snapshot\n");
    assert_eq!(hear(), "STOPPING=1\n");
    // Supervised, it stays in the foreground.
    assert_eq!(process.exit_code(), Some(0));
}

#[test]
fn a_real_client_sets_gets_and_pipelines() {
    let port = free_port();
    let _process = Process::start(&format!("port {port}"));
    let mut connection = connect(port);
    let set: String = redis::cmd("SET").arg("k").arg("v").query(&mut connection).expect("OK");
    let got: String = redis::cmd("GET").arg("k").query(&mut connection).expect("v");
    assert_eq!((&*set, &*got), ("OK", "v"));
    let mut pipe = redis::pipe();
    for number in 0..1000 {
        pipe.cmd("INCRBY").arg("n").arg(number);
    }
    let sums: Vec<i64> = pipe.query(&mut connection).expect("sums");
    assert_eq!(sums.last(), Some(&(999 * 1000 / 2)));
}

#[test]
fn config_set_moves_the_server_to_another_port() {
    let port = free_port();
    let process = Process::start(&format!("port {port}"));
    let mut connection = connect(port);
    let mut set = |name: &str, value: &str| -> redis::RedisResult<String> {
        redis::cmd("CONFIG").arg("SET").arg(name).arg(value).query(&mut connection)
    };
    let other = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let taken = other.local_addr().expect("a bound socket has an address").port();
    let error = set("port", &taken.to_string()).expect_err("the port is taken").to_string();
    assert!(error.contains("Unable to listen on this port. Check server logs."), "{error}");
    process.wait_for_log(&format!("bind: {}", in_use()));
    // Back where it was.
    connect(port);
    let next = free_port();
    set("port", &next.to_string()).expect("a free port");
    connect(next);
}

#[test]
fn config_rewrite_writes_the_file_of_the_command_line() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("latchkey.conf");
    let port = free_port();
    let text =
        format!("# mine\nport {port}\nbind 127.0.0.1\ndir {}\nlogfile log\n", dir.path().display());
    std::fs::write(&file, text).expect("a file");
    let child = program().arg(&file).spawn().expect("the program starts");
    let process = Process { child, dir };
    process.wait_for_log("Ready to accept connections");
    let mut connection = connect(port);
    let mut config = |args: &[&str]| -> String {
        redis::cmd("CONFIG").arg(args).query(&mut connection).expect("OK")
    };
    assert_eq!(config(&["SET", "maxmemory", "100mb"]), "OK");
    assert_eq!(config(&["REWRITE"]), "OK");
    let mut text = String::new();
    std::fs::File::open(&file).and_then(|mut file| file.read_to_string(&mut text)).expect("a file");
    assert!(text.starts_with("# mine\n") && text.contains("\nmaxmemory 100mb\n"), "{text}");
}

/// Sends a command whose answer does not matter: it ends the server, or comes late.
fn send(port: u16, args: &[&str]) {
    let _: redis::RedisResult<redis::Value> =
        redis::cmd(args[0]).arg(&args[1..]).query(&mut connect(port));
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "reads /proc")]
fn the_process_title_follows_its_template() {
    let port = free_port();
    let process =
        Process::start(&format!("port {port}\nunixsocket {{}}/socket").replace("{}", "."));
    let title = || {
        let bytes = std::fs::read(format!("/proc/{}/cmdline", process.child.id())).expect("/proc");
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        String::from_utf8(bytes[..end].to_vec()).expect("text")
    };
    let name = env!("CARGO_BIN_EXE_latchkey");
    assert_eq!(title(), format!("{name} 127.0.0.1:{port}"));
    let template = "  {{a} {server-mode}{port} {tls-port} {unixsocket} {config-file} ";
    let mut connection = connect(port);
    let mut set = |template: &str| -> redis::RedisResult<String> {
        let mut command = redis::cmd("CONFIG");
        command.arg(&["SET", "proc-title-template", template]).query(&mut connection)
    };
    set(template).expect("a valid template");
    assert_eq!(title(), format!("{{a}} {port} 0 ./socket -"));
    assert!(set("{nosuch}").is_err());
    // What does not fit is cut off.
    set(&format!("{{port}} {}", "x".repeat(100_000))).expect("a valid template");
    assert!(title().starts_with(&format!("{port} xxx")));
    let untitled_port = free_port();
    let untitled = Process::start(&format!("port {untitled_port}\nset-proc-title no"));
    let line = std::fs::read(format!("/proc/{}/cmdline", untitled.child.id())).expect("/proc");
    assert_eq!(line, format!("{name}\0-\0").as_bytes());
}

#[test]
fn a_failure_is_reported_with_the_stack_before_the_process_ends() {
    use std::os::unix::process::ExitStatusExt;
    let port = free_port();
    let mut process = Process::start(&format!("port {port}\nenable-debug-command yes"));
    send(port, &["DEBUG", "SEGFAULT"]);
    let status = wait_for("the end", || process.child.try_wait().expect("a child"));
    assert_eq!(status.signal(), Some(libc::SIGSEGV));
    let log = process.log();
    let places = [
        "LATCHKEY BUG REPORT START",
        "crashed by signal: 11",
        "Accessing address: 0x",
        "------ STACK TRACE ------",
        "access_bad_memory",
        "src/command/admin/debug.rs",
        "------ REGISTERS ------",
        "LATCHKEY BUG REPORT END",
    ]
    .map(|text| log.find(text).unwrap_or_else(|| panic!("{text} is missing in:\n{log}")));
    assert!(places.is_sorted(), "{log}");
}

#[test]
fn a_signal_from_outside_is_reported_with_its_sender_unless_reports_are_off() {
    use std::os::unix::process::ExitStatusExt;
    let ended = |process: &mut Process| {
        process.signal(libc::SIGABRT);
        let status = wait_for("the end", || process.child.try_wait().expect("a child"));
        (status.signal(), process.log())
    };
    let mut process = Process::start(&format!("port {}", free_port()));
    let (signal, log) = ended(&mut process);
    assert_eq!(signal, Some(libc::SIGABRT));
    // Its number differs between systems.
    let code = if cfg!(target_os = "linux") { "0" } else { "" };
    assert!(log.contains(&format!("crashed by signal: 6, si_code: {code}")), "{log}");
    assert!(log.contains(&format!("Killed by PID: {}, UID: ", std::process::id())), "{log}");
    let port = free_port();
    let mut process = Process::start(&format!("port {port}\ncrash-log-enabled yes"));
    send(port, &["CONFIG", "SET", "crash-log-enabled", "no"]);
    let (signal, log) = ended(&mut process);
    assert_eq!(signal, Some(libc::SIGABRT));
    assert!(!log.contains("crashed"), "{log}");
}

#[test]
fn bugs_and_want_of_memory_are_reported_too() {
    use std::os::unix::process::ExitStatusExt;
    for (what, lines, signal, code, told) in [
        ("PANIC", "", Some(libc::SIGABRT), None, "DEBUG PANIC asked for it"),
        ("PANIC", "log-format json", Some(libc::SIGABRT), None, "\"message\":\"=== LATCHKEY BUG"),
        ("ASSERT", "use-exit-on-panic yes", None, Some(1), "DEBUG ASSERT asked for it"),
        ("OOM", "", Some(libc::SIGABRT), None, "crashed by signal: 6"),
    ] {
        let port = free_port();
        let mut process =
            Process::start(&format!("port {port}\nenable-debug-command yes\n{lines}"));
        send(port, &["DEBUG", what]);
        let status = wait_for("the end", || process.child.try_wait().expect("a child"));
        assert_eq!((status.signal(), status.code()), (signal, code), "{what}");
        let log = process.log();
        assert!(
            log.contains(told) && log.contains("STACK TRACE") && log.contains("REPORT END"),
            "{log}"
        );
    }
}

#[test]
fn the_watchdog_shows_where_the_server_stands_still() {
    let port = free_port();
    let process = Process::start(&format!("port {port}\nenable-debug-command yes\nhz 100"));
    let mut connection = connect(port);
    let mut call = |args: &[&str]| -> redis::RedisResult<redis::Value> {
        redis::cmd(args[0]).arg(&args[1..]).query(&mut connection)
    };
    call(&["CONFIG", "SET", "watchdog-period", "1"]).expect("OK");
    let period = call(&["CONFIG", "GET", "watchdog-period"]).expect("a pair");
    assert_eq!(
        format!("{period:?}"),
        "array([bulk-string('\"watchdog-period\"'), bulk-string('\"20\"')])"
    );
    call(&["DEBUG", "SLEEP", "0.2"]).expect("OK");
    process.wait_for_log("--------\n");
    let log = process.log();
    assert!(log.contains("--- WATCHDOG TIMER EXPIRED ---") && log.contains("STACK TRACE"), "{log}");
    assert!(log.contains("src/command/admin/debug.rs"), "{log}");
    // It goes on, and sleeps when it is told to.
    call(&["CONFIG", "SET", "watchdog-period", "0"]).expect("OK");
    process.signal(libc::SIGALRM);
    call(&["DEBUG", "SLEEP", "0.05"]).expect("OK");
    call(&["PING"]).expect("the server is still there");
}

#[test]
fn that_nobody_can_be_evicted_is_logged_once() {
    let port = free_port();
    let process = Process::start(&format!("port {port}\nmaxmemory-clients 1mb"));
    let mut client = TcpStream::connect(("127.0.0.1", port)).expect("the server takes connections");
    let mut reply = [0; 5];
    client.write_all(b"CLIENT NO-EVICT ON\r\n").expect("the server reads");
    client.read_exact(&mut reply).expect("OK");
    let mut other = connect(port);
    redis::cmd("CLIENT").arg("NO-EVICT").arg("ON").exec(&mut other).expect("OK");
    client.write_all(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$200000000\r\n").expect("the server reads");
    client.write_all(&[b'x'; 2_000_000]).expect("the server reads");
    let line = "Over client maxmemory after evicting all evictable clients";
    process.wait_for_log(line);
    for _ in 0..100 {
        redis::cmd("PING").exec(&mut other).expect("PONG");
    }
    assert_eq!(process.log().matches(line).count(), 1);
}

/// A program whose files cannot be longer than some 32 KB: a full disk.
fn short_of_room(command: &mut Command) {
    let mut limited = Command::new("sh");
    let script = "trap '' XFSZ; ulimit -f 64; exec \"$0\" \"$@\"";
    limited.args(["-c", script, env!("CARGO_BIN_EXE_latchkey")]);
    limited.env_remove("NOTIFY_SOCKET").env_remove("UPSTART_JOB");
    limited.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    *command = limited;
}

/// Sends lines in one write, after a SET that the disk has no room for; what is answered until the
/// connection ends.
fn answered(port: u16, lines: &[&str]) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the server listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("an option of sockets");
    let value = "x".repeat(100_000);
    let mut request = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${}\r\n{value}\r\n", value.len());
    lines.iter().for_each(|line| request.push_str(&format!("{line}\r\n")));
    stream.write_all(request.as_bytes()).expect("the server reads");
    let mut answer = Vec::new();
    // A server that ends may reset the connection.
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).expect("text")
}

#[test]
fn what_the_disk_has_no_room_for_is_not_answered_when_the_server_ends() {
    for end in
        ["SHUTDOWN", "SHUTDOWN NOSAVE", "SHUTDOWN NOSAVE FORCE", "CONFIG SET appendonly no", "PING"]
    {
        let port = free_port();
        let lines = format!("port {port}\nsave \"\"\nappendonly yes\nappendfsync always");
        let mut process = Process::spawn(&lines, short_of_room);
        process.wait_for_log("eady to accept connections");
        assert_eq!(answered(port, &[end]), "", "{end}");
        assert_eq!(process.exit_code(), Some(1), "{end}: {}", process.log());
    }
}

#[test]
fn a_shutdown_is_refused_where_the_log_cannot_be_written_unless_it_is_forced() {
    let port = free_port();
    let lines = format!("port {port}\nsave \"\"\nappendonly yes\nappendfsync everysec");
    let mut process = Process::spawn(&lines, short_of_room);
    process.wait_for_log("eady to accept connections");
    let refused = "+OK\r\n-ERR Errors trying to SHUTDOWN. Check logs.\r\n+OK\r\n";
    assert_eq!(answered(port, &["SHUTDOWN NOSAVE", "QUIT"]), refused);
    assert!(process.log().contains("Error trying to write the AOF, can't exit."));
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the server listens");
    stream.write_all(b"SHUTDOWN NOSAVE FORCE\r\n").expect("the server reads");
    assert_eq!(process.exit_code(), Some(1), "{}", process.log());
}

#[test]
fn who_finds_its_connection_closed_by_a_shutdown_cannot_connect_again() {
    for _ in 0..5 {
        let port = free_port();
        let mut process = Process::start(&format!("port {port}\nsave \"\""));
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the server listens");
        stream.write_all(b"SHUTDOWN\r\n").expect("the server reads");
        let _ = stream.read_to_end(&mut Vec::new());
        assert!(TcpStream::connect(("127.0.0.1", port)).is_err(), "the server still listens");
        assert_eq!(process.exit_code(), Some(0));
    }
}

#[test]
fn of_files_that_look_temporary_only_cut_snapshots_are_removed_at_the_start() {
    let mut process = Process::spawn("port 0\nunixsocket sock\nsave \"\"", |_| {});
    process.wait_for_log("accept connections");
    process.signal(libc::SIGKILL);
    process.exit_code();
    let names = ["temp-1.rdb", "temp-99999999.rdb", "temp-rewriteaof-99999999.aof"];
    let left = process.path("temp-99999998.rdb");
    std::fs::write(&left, "REDIS0010\u{1}cut").expect("a file");
    names.iter().for_each(|name| std::fs::write(process.path(name), "a user's").expect("a file"));
    let text = format!(
        "dir {}\nport 0\nunixsocket sock\nlogfile log\nsave \"\"\n",
        process.dir.path().display()
    );
    let mut child = program().arg("-").spawn().expect("the program starts");
    feed(&mut child, &text);
    wait_for("the second start", || {
        (process.log().matches("accept connections").count() == 2).then_some(())
    });
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    names.iter().for_each(|name| assert!(process.path(name).exists(), "{name}"));
    assert!(!left.exists());
}

/// A server whose configuration is a file, named relative to the folder in which the server starts.
/// Its data are in `data` there.
fn start_with_file(lines: &str) -> (Process, u16) {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(dir.path().join("data")).expect("a directory");
    let port = free_port();
    let data = dir.path().join("data").display().to_string();
    let text =
        format!("port {port}\nbind 127.0.0.1\nenable-debug-command yes\ndir {data}\n{lines}\n");
    std::fs::write(dir.path().join("conf"), text).expect("a file");
    let mut command = program();
    command.args(["conf", "--logfile", "../log"]).current_dir(dir.path());
    let child = command.spawn().expect("the program starts");
    let process = Process { child, dir };
    process.wait_for_log("eady to accept connections");
    (process, port)
}

/// A connection to a server that starts again: until then the port is closed.
fn reconnect(port: u16) -> redis::Connection {
    wait_for("the server to answer again", || {
        let client = redis::Client::open(format!("redis://127.0.0.1:{port}/")).ok()?;
        let mut connection = client.get_connection().ok()?;
        redis::cmd("PING").query::<String>(&mut connection).ok()?;
        Some(connection)
    })
}

fn value(connection: &mut redis::Connection, args: &[&str]) -> redis::Value {
    redis::cmd(args[0]).arg(&args[1..]).query(connection).expect("an answer")
}

fn text_of(connection: &mut redis::Connection, args: &[&str]) -> String {
    redis::from_redis_value(value(connection, args)).expect("a text")
}

/// A line of INFO server.
fn info_line(connection: &mut redis::Connection, name: &str) -> String {
    let info = text_of(connection, &["INFO", "server"]);
    let line = info.lines().find(|line| line.starts_with(name)).expect("a line of INFO");
    line.to_owned()
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "reads /proc")]
fn a_thread_returns_memory_to_the_system_if_it_is_wanted() {
    let port = free_port();
    let process = Process::start(&format!("port {port}"));
    let has_thread = || {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", process.child.id()));
        tasks.expect("/proc").flatten().any(|task| {
            let name = std::fs::read_to_string(task.path().join("comm"));
            name.is_ok_and(|name| name.starts_with("jemalloc_bg"))
        })
    };
    let mut connection = connect(port);
    wait_for("the thread", || has_thread().then_some(()));
    for (value, is_wanted) in [("no", false), ("yes", true), ("yes", true)] {
        let set = ["SET", "jemalloc-bg-thread", value];
        let done: String = redis::cmd("CONFIG").arg(&set).query(&mut connection).expect("OK");
        assert_eq!(done, "OK");
        // The thread takes its name itself.
        wait_for("the thread", || (has_thread() == is_wanted).then_some(()));
    }
}

#[test]
fn a_restart_keeps_the_process_the_data_and_what_config_set_has_changed() {
    let (process, port) = start_with_file("save 3600 1\nunixsocket sock\npidfile pid");
    let mut connection = connect(port);
    let before: Vec<String> =
        ["process_id", "run_id"].map(|name| info_line(&mut connection, name)).into();
    let files = || {
        let entries = std::fs::read_dir(format!("/proc/{}/fd", process.child.id()));
        entries.map_or(0, Iterator::count)
    };
    let files_before = files();
    value(&mut connection, &["SET", "k", "v"]);
    value(&mut connection, &["CONFIG", "SET", "maxmemory", "100mb"]);
    let ended: redis::RedisResult<redis::Value> =
        redis::cmd("DEBUG").arg("RESTART").query(&mut connection);
    assert!(ended.expect_err("no reply").is_io_error());
    let mut connection = reconnect(port);
    let after: Vec<String> =
        ["process_id", "run_id"].map(|name| info_line(&mut connection, name)).into();
    assert_eq!(before[0], after[0]);
    assert_ne!(before[1], after[1]);
    assert_eq!(text_of(&mut connection, &["GET", "k"]), "v");
    let changed: Vec<String> =
        redis::cmd("CONFIG").arg(&["GET", "maxmemory"]).query(&mut connection).expect("its value");
    assert_eq!(changed[1], "104857600");
    // All files of the former program are closed.
    assert_eq!(files(), files_before);
    let pid = std::fs::read_to_string(process.path("data/pid")).expect("the process id");
    assert_eq!(pid.trim(), process.child.id().to_string());
    let path = format!("unix://{}", process.path("data/sock").display());
    redis::Client::open(path).and_then(|client| client.get_connection()).expect("a connection");
}

#[test]
fn what_a_crash_leaves_is_there_when_the_server_has_recovered() {
    for (lines, survives) in [("save \"\"\nappendonly yes", true), ("save 3600 1", false)] {
        let (process, port) = start_with_file(lines);
        let mut connection = connect(port);
        let pid = info_line(&mut connection, "process_id");
        value(&mut connection, &["SET", "k", "v"]);
        let start = Instant::now();
        let ended: redis::RedisResult<redis::Value> =
            redis::cmd("DEBUG").arg("CRASH-AND-RECOVER").arg(300).query(&mut connection);
        assert!(ended.expect_err("no reply").is_io_error());
        let mut connection = reconnect(port);
        assert!(start.elapsed() >= Duration::from_millis(300));
        assert_eq!(info_line(&mut connection, "process_id"), pid);
        let there = value(&mut connection, &["EXISTS", "k"]);
        assert_eq!(there, redis::Value::Int(survives.into()), "{lines}");
        assert!(!process.log().contains("User requested shutdown"));
    }
}

#[test]
fn a_restart_that_cannot_save_is_refused_and_the_server_goes_on() {
    let (process, port) = start_with_file("save 3600 1");
    std::fs::create_dir(process.path("data/dump.rdb")).expect("a directory");
    let mut connection = connect(port);
    value(&mut connection, &["SET", "k", "v"]);
    let mut error = |args: &[&str]| {
        let reply: redis::RedisResult<redis::Value> =
            redis::cmd("DEBUG").arg(args).query(&mut connection);
        reply.expect_err("an error").to_string()
    };
    assert!(error(&["RESTART"]).contains("failed to restart the server. Check server logs."));
    assert!(error(&["RESTART", "soon"]).contains("value is not an integer or out of range"));
    process.wait_for_log("Can't restart: error preparing for shutdown");
    assert_eq!(text_of(&mut connection, &["GET", "k"]), "v");
    std::fs::remove_file(process.path("conf")).expect("a file");
    std::fs::create_dir(process.path("conf")).expect("a directory");
    let refused: redis::RedisResult<redis::Value> =
        redis::cmd("DEBUG").arg("RESTART").query(&mut connection);
    assert!(refused.expect_err("an error").to_string().contains("failed to restart"));
    process.wait_for_log("Can't restart: configuration rewrite");
}

#[test]
fn a_transaction_with_a_restart_is_finished_before() {
    let (_process, port) = start_with_file("save 3600 1");
    let mut connection = connect(port);
    let replies: Vec<String> = redis::pipe()
        .atomic()
        .cmd("DEBUG")
        .arg("RESTART")
        .cmd("SET")
        .arg("k")
        .arg("v")
        .query(&mut connection)
        .expect("replies");
    assert_eq!(replies, ["OK", "OK"]);
    wait_for("the end", || redis::cmd("PING").query::<String>(&mut connection).err());
    assert_eq!(text_of(&mut reconnect(port), &["GET", "k"]), "v");
}

#[test]
fn what_came_from_standard_input_cannot_be_read_for_a_restart() {
    let port = free_port();
    let process = Process::start(&format!("port {port}\nenable-debug-command yes"));
    for name in ["RESTART", "CRASH-AND-RECOVER"] {
        let reply: redis::RedisResult<redis::Value> =
            redis::cmd("DEBUG").arg(name).query(&mut connect(port));
        let error = reply.expect_err("an error").to_string();
        assert!(error.contains("failed to restart the server"), "{error}");
    }
    process.wait_for_log("Can't restart: the configuration came from standard input");
}
