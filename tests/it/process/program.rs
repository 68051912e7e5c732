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

use crate::support::ports::free_port;
use crate::support::{Client, PATIENCE, Reply, encode, wait_for};

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

fn connect(port: u16) -> Client {
    Client::connect(([127, 0, 0, 1], port).into())
}

/// A field of INFO.
fn info(client: &mut Client, section: &str, name: &str) -> String {
    let info = client.ask(&format!("INFO {section}")).text();
    let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.expect("INFO has the field").to_owned()
}

/// A number that INFO tells.
fn number_of(client: &mut Client, section: &str, name: &str) -> usize {
    info(client, section, name).parse().expect("a number")
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
    let error = reconnect(port).error_of("CONFIG SET appendonly yes");
    assert!(error.contains("Unable to turn on AOF"), "{error}");
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
    connection.error_of("SHUTDOWN ABORT");
    let mut ask = |line| connection.ask(line).text();
    assert_eq!(ask("DEBUG PAUSE-CRON 1"), "OK");
    process.signal(libc::SIGTERM);
    process.wait_for_log("Received SIGTERM scheduling shutdown...");
    assert_eq!(ask("PING"), "PONG");
    assert_eq!(ask("SHUTDOWN ABORT"), "OK");
    process.wait_for_log("Shutdown manually aborted.");
    assert_eq!(ask("DEBUG PAUSE-CRON 0"), "OK");
    assert_eq!(ask("PING"), "PONG");
    assert_eq!(ask("DEBUG PAUSE-CRON 1"), "OK");
    process.signal(libc::SIGTERM);
    assert_eq!(ask("DEBUG PAUSE-CRON 0"), "OK");
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
        listener.send(&["SUBSCRIBE", "__keyevent@0__:expired"]);
    }
    let mut connection = connect(port);
    let soon = std::time::SystemTime::now() + Duration::from_millis(50);
    let soon = soon.duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_millis() as u64;
    let sets: Vec<_> = (0..2_000).map(|key| format!("SET {key} v PXAT {soon}")).collect();
    for reply in connection.ask_all(&sets) {
        assert_eq!(reply.text(), "OK");
    }
    wait_for("the event", || {
        let events = connection.ask("LATENCY LATEST").items();
        let is_of_expiry = |event: Reply| match &event.items()[..] {
            [Reply::Bulk(name), Reply::Integer(_), Reply::Integer(_), Reply::Integer(_)] => {
                name == b"expire-cycle"
            }
            other => panic!("not an event: {other:?}"),
        };
        events.into_iter().any(is_of_expiry).then_some(())
    });
}

#[test]
fn telling_of_evicted_keys_evicts_no_others() {
    let port = free_port();
    let _process = Process::start(&format!("port {port}\nmaxmemory-policy allkeys-lru"));
    let mut connection = connect(port);
    let name = |key: u32| format!("{key}:{}", "x".repeat(1000));
    for key in 0..300 {
        connection.ask(&format!("SET {} v", name(key)));
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
    wait_for("all keys to be read", || {
        (number_of(&mut connection, "stats", "tracking_total_items") == 3000).then_some(())
    });
    let limit = number_of(&mut connection, "memory", "used_memory") - 40_000;
    let mut connection = connect(port);
    connection.ask(&format!("CONFIG SET maxmemory {limit} maxmemory-eviction-tenacity 100"));
    for _ in 0..10 {
        let size = connection.ask("DBSIZE").number();
        assert!((230..300).contains(&size), "{size} keys are left");
    }
    drop(readers);
}

#[test]
fn the_loop_sleeps_while_a_save_is_written() {
    let port = free_port();
    let process = Process::start(&format!("port {port}\nenable-debug-command yes"));
    let mut connection = connect(port);
    connection.ask("DEBUG POPULATE 300");
    // The walk is over at once, the thread needs 300 ms.
    connection.ask("CONFIG SET rdb-key-save-delay 1000");
    connection.ask("BGSAVE");
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
    let received = |client: &mut Client| number_of(client, "stats", "total_net_input_bytes");
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
    let used = |client: &mut Client| number_of(client, "memory", "used_memory");
    let before = used(&mut connection);
    for _ in 0..3 {
        let members: String = (0..100_000).map(|member| format!(" {member}")).collect();
        assert_eq!(connection.ask(&format!("SADD s{members}")).number(), 100_000);
        assert_eq!(connection.ask("UNLINK s").number(), 1);
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
    let mut connection = Client::try_connect_unix(&path).expect("a connection");
    assert_eq!(connection.ask("SET k v").text(), "OK");
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
    let served = || Client::try_connect_unix(&path).ok()?.if_served();
    assert!(served().is_some(), "the first server's socket is still there");
    first.signal(libc::SIGKILL);
    first.exit_code();
    assert!(path.exists());
    // What it has left is replaced.
    let mut child = program().arg("-").spawn().expect("the program starts");
    feed(&mut child, &format!("{text}\nlogfile log2"));
    wait_for("the second start", served);
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
    let answer = connect(port).try_ask("SET k v");
    send_signal(pid, libc::SIGTERM);
    wait_for("the child's end", || (!process.path("pid").exists()).then_some(()));
    process.wait_for_log("bye bye");
    assert_eq!(answer, Some(Reply::Simple(b"OK".to_vec())));
}

#[test]
fn renamed_commands_answer_to_their_new_names_only() {
    let port = free_port();
    let lines = "rename-command SET \"\"\nrename-command GET FETCH\nrename-command DEL GET";
    let _process = Process::start(&format!("port {port}\n{lines}"));
    let mut connection = connect(port);
    assert!(connection.error_of("SET k").contains("unknown command 'SET'"));
    assert!(connection.error_of("DEL k").contains("unknown command 'DEL'"));
    assert_eq!(connection.ask("FETCH k"), Reply::NullBulk);
    assert_eq!(connection.ask("GET k"), Reply::Integer(0));
}

#[test]
fn renamed_commands_are_described_by_their_new_names() {
    let port = free_port();
    let lines =
        "rename-command SORT \"\"\nrename-command GET FETCH\nrename-command CONFIG SETTINGS";
    let _process = Process::start(&format!("port {port}\n{lines}"));
    let mut connection = connect(port);
    let empty = Reply::Array(Vec::new());
    let own_name = |reply: Reply| match &reply.items()[..] {
        [Reply::Array(facts)] => facts.first().cloned(),
        _ => None,
    };
    for (given, own) in [
        ("fetch", Some("get")),
        ("SETTINGS|get", Some("config|get")),
        ("get", None),
        ("config|get", None),
        ("sort", None),
    ] {
        let reply = connection.ask(&format!("COMMAND INFO {given}"));
        let own = own.map(|own| Reply::Bulk(own.into()));
        assert_eq!(own_name(reply.clone()), own, "{given}: {reply:?}");
        let documented = connection.ask(&format!("COMMAND DOCS {given}"));
        assert_eq!(documented == empty, own.is_none(), "{given}: {documented:?}");
    }
    connection.ask("COMMAND GETKEYS FETCH k");
    connection.error_of("COMMAND GETKEYS GET k");
    connection.error_of("COMMAND GETKEYS SORT k");
    connection.ask("FETCH k");
    for (given, is_found) in [("fetch", true), ("get", false)] {
        let known = connection.ask(&format!("LATENCY HISTOGRAM {given}"));
        assert_eq!(known != empty, is_found, "{given}: {known:?}");
    }
    // Lists have the commands' own names.
    let listed = connection.ask("COMMAND LIST").texts();
    for (name, is_listed) in [("get", true), ("config|get", true), ("sort", false)] {
        assert_eq!(listed.iter().any(|one| one == name), is_listed, "{name}");
    }
    let all = connection.ask("COMMAND").items();
    assert_eq!(connection.ask("COMMAND COUNT").number(), all.len() as i64);
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
    connection.ask("ADD gone a");
    assert_eq!(connection.ask("WAIT 1 20000").number(), 1);
    connection.ask("ADD list a b");
    connection.ask("REMOVE gone");
    assert_eq!(connection.ask("WAIT 1 20000").number(), 1);
    let check = |port| {
        let mut connection = connect(port);
        assert_eq!(connection.ask("LRANGE list 0 -1").texts(), ["a", "b"]);
        assert_eq!(connection.ask("DBSIZE").number(), 1);
    };
    check(other_port);
    connection.ask("DEBUG LOADAOF");
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
fn config_set_moves_the_server_to_another_port() {
    let port = free_port();
    let process = Process::start(&format!("port {port}"));
    let mut connection = connect(port);
    let other = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let taken = other.local_addr().expect("a bound socket has an address").port();
    let error = connection.error_of(&format!("CONFIG SET port {taken}"));
    assert!(error.contains("Unable to listen on this port. Check server logs."), "{error}");
    process.wait_for_log(&format!("bind: {}", in_use()));
    // Back where it was.
    connect(port);
    let next = free_port();
    connection.ask(&format!("CONFIG SET port {next}"));
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
    assert_eq!(connection.ask("CONFIG SET maxmemory 100mb").text(), "OK");
    assert_eq!(connection.ask("CONFIG REWRITE").text(), "OK");
    let mut text = String::new();
    std::fs::File::open(&file).and_then(|mut file| file.read_to_string(&mut text)).expect("a file");
    assert!(text.starts_with("# mine\n") && text.contains("\nmaxmemory 100mb\n"), "{text}");
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
    let mut set =
        |template: &str| connection.call(&["CONFIG", "SET", "proc-title-template", template]);
    assert_eq!(set(template).text(), "OK");
    assert_eq!(title(), format!("{{a}} {port} 0 ./socket -"));
    set("{nosuch}").error();
    // What does not fit is cut off.
    assert_eq!(set(&format!("{{port}} {}", "x".repeat(100_000))).text(), "OK");
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
    connect(port).try_ask("DEBUG SEGFAULT");
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
    connect(port).ask("CONFIG SET crash-log-enabled no");
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
        connect(port).try_ask(&format!("DEBUG {what}"));
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
    connection.ask("CONFIG SET watchdog-period 1");
    let period = connection.ask("CONFIG GET watchdog-period").texts();
    assert_eq!(period, ["watchdog-period", "20"]);
    // On a busy machine it may stand still elsewhere first.
    wait_for("a report of DEBUG SLEEP", || {
        connection.ask("DEBUG SLEEP 0.2");
        process.log().contains("src/command/admin/debug.rs").then_some(())
    });
    let log = process.log();
    assert!(log.contains("--- WATCHDOG TIMER EXPIRED ---") && log.contains("STACK TRACE"), "{log}");
    // It goes on, and sleeps when it is told to.
    connection.ask("CONFIG SET watchdog-period 0");
    process.signal(libc::SIGALRM);
    connection.ask("DEBUG SLEEP 0.05");
    connection.ask("PING");
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
    other.ask("CLIENT NO-EVICT ON");
    client.write_all(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$200000000\r\n").expect("the server reads");
    client.write_all(&[b'x'; 2_000_000]).expect("the server reads");
    let line = "Over client maxmemory after evicting all evictable clients";
    process.wait_for_log(line);
    for _ in 0..100 {
        other.ask("PING");
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
fn reconnect(port: u16) -> Client {
    wait_for("the server to answer again", || {
        Client::try_connect(([127, 0, 0, 1], port).into()).ok()?.if_served()
    })
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
        let done = connection.ask(&format!("CONFIG SET jemalloc-bg-thread {value}"));
        assert_eq!(done.text(), "OK");
        // The thread takes its name itself.
        wait_for("the thread", || (has_thread() == is_wanted).then_some(()));
    }
}

#[test]
fn a_restart_keeps_the_process_the_data_and_what_config_set_has_changed() {
    let (process, port) = start_with_file("save 3600 1\nunixsocket sock\npidfile pid");
    let mut connection = connect(port);
    let before = ["process_id", "run_id"].map(|name| info(&mut connection, "server", name));
    let files = || {
        let entries = std::fs::read_dir(format!("/proc/{}/fd", process.child.id()));
        entries.map_or(0, Iterator::count)
    };
    let files_before = files();
    connection.ask("SET k v");
    connection.ask("CONFIG SET maxmemory 100mb");
    assert_eq!(connection.try_ask("DEBUG RESTART"), None);
    let mut connection = reconnect(port);
    let after = ["process_id", "run_id"].map(|name| info(&mut connection, "server", name));
    assert_eq!(before[0], after[0]);
    assert_ne!(before[1], after[1]);
    assert_eq!(connection.ask("GET k").text(), "v");
    assert_eq!(connection.ask("CONFIG GET maxmemory").texts()[1], "104857600");
    // All files of the former program are closed.
    assert_eq!(files(), files_before);
    let pid = std::fs::read_to_string(process.path("data/pid")).expect("the process id");
    assert_eq!(pid.trim(), process.child.id().to_string());
    let socket = process.path("data/sock");
    Client::try_connect_unix(&socket).expect("a connection").ask("PING");
}

#[test]
fn what_a_crash_leaves_is_there_when_the_server_has_recovered() {
    for (lines, survives) in [("save \"\"\nappendonly yes", true), ("save 3600 1", false)] {
        let (process, port) = start_with_file(lines);
        let mut connection = connect(port);
        let pid = info(&mut connection, "server", "process_id");
        connection.ask("SET k v");
        let start = Instant::now();
        assert_eq!(connection.try_ask("DEBUG CRASH-AND-RECOVER 300"), None);
        let mut connection = reconnect(port);
        assert!(start.elapsed() >= Duration::from_millis(300));
        assert_eq!(info(&mut connection, "server", "process_id"), pid);
        let there = connection.ask("EXISTS k");
        assert_eq!(there, Reply::Integer(survives.into()), "{lines}");
        assert!(!process.log().contains("User requested shutdown"));
    }
}

#[test]
fn a_restart_that_cannot_save_is_refused_and_the_server_goes_on() {
    let (process, port) = start_with_file("save 3600 1");
    std::fs::create_dir(process.path("data/dump.rdb")).expect("a directory");
    let mut connection = connect(port);
    connection.ask("SET k v");
    let error = connection.error_of("DEBUG RESTART");
    assert!(error.contains("failed to restart the server. Check server logs."), "{error}");
    let error = connection.error_of("DEBUG RESTART soon");
    assert!(error.contains("value is not an integer or out of range"), "{error}");
    process.wait_for_log("Can't restart: error preparing for shutdown");
    assert_eq!(connection.ask("GET k").text(), "v");
    std::fs::remove_file(process.path("conf")).expect("a file");
    std::fs::create_dir(process.path("conf")).expect("a directory");
    assert!(connection.error_of("DEBUG RESTART").contains("failed to restart"));
    process.wait_for_log("Can't restart: configuration rewrite");
}

#[test]
fn a_transaction_with_a_restart_is_finished_before() {
    let (_process, port) = start_with_file("save 3600 1");
    let mut connection = connect(port);
    let mut replies = connection.ask_all(&["MULTI", "DEBUG RESTART", "SET k v", "EXEC"]);
    assert_eq!(replies.remove(3).texts(), ["OK", "OK"]);
    wait_for("the end", || connection.try_ask("PING").is_none().then_some(()));
    assert_eq!(reconnect(port).ask("GET k").text(), "v");
}

#[test]
fn what_came_from_standard_input_cannot_be_read_for_a_restart() {
    let port = free_port();
    let process = Process::start(&format!("port {port}\nenable-debug-command yes"));
    for name in ["RESTART", "CRASH-AND-RECOVER"] {
        let error = connect(port).error_of(&format!("DEBUG {name}"));
        assert!(error.contains("failed to restart the server"), "{error}");
    }
    process.wait_for_log("Can't restart: the configuration came from standard input");
}
