//! `--check-config` and `--check-system`.
//!
//! The rule of the first: what it passes starts, and what it refuses does not. Configurations are
//! drawn from a table of good and bad lines, and each is checked and started. A server is ready
//! when it says so to its supervisor, so nobody has to look for a log.
#![allow(clippy::disallowed_methods)] // the limit of patience is measured in real time

use std::io::Read;
use std::net::TcpListener;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::support::ports::free_port;
use crate::support::{PATIENCE, number_from, seed};

const PROGRAM: &str = env!("CARGO_BIN_EXE_latchkey");
/// As musl says it, and with "already " glibc.
const IN_USE: [&str; 2] = ["Address in use", "Address already in use"];

fn program() -> Command {
    let mut command = Command::new(PROGRAM);
    command.env_remove("NOTIFY_SOCKET").env_remove("UPSTART_JOB");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Files that lines name.
struct Fixtures(tempfile::TempDir);

impl Fixtures {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| {
            std::fs::write(dir.path().join(name), text).expect("a file");
        };
        write("good.acl", "user default on nopass ~* &* +@all\nuser ann on >x ~a +get\n");
        write("bad.acl", "user ann on +nosuch\nann\n");
        write("twice.acl", "user ann on\nuser ann off\n");
        write("more.conf", "timeout 7\nhz 20\n");
        write("wrong.conf", "timeout 7\nnosuch 1\n");
        write("garbage.pem", "-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----\n");
        write("empty", "");
        std::fs::create_dir(dir.path().join("folder")).expect("a folder");
        for name in ["one", "two"] {
            let pair = rcgen::generate_simple_self_signed(["localhost".to_owned()]);
            let pair = pair.expect("a certificate");
            write(&format!("{name}.crt"), &pair.cert.pem());
            write(&format!("{name}.key"), &pair.signing_key.serialize_pem());
        }
        Fixtures(dir)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

/// Lines that stand together, and whether a server starts with them. `%F` is the folder of
/// fixtures, `%1` to `%3` are free ports, `%G` is the own group; the server's own folder is the
/// working directory.
struct Choice(&'static str, bool);

const fn good(lines: &'static str) -> Choice {
    Choice(lines, true)
}

const fn bad(lines: &'static str) -> Choice {
    Choice(lines, false)
}

/// TLS that works, but for what follows.
macro_rules! tls {
    ($lines:literal) => {
        concat!(
            "tls-port %2\ntls-cert-file %F/one.crt\ntls-key-file %F/one.key\ntls-ca-cert-file %F/one.crt\n",
            $lines
        )
    };
}

/// 83 letters: three make a name that has no room for an ending.
macro_rules! long {
    () => {
        "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcde"
    };
}

/// Choices that exclude each other are in one group.
const GROUPS: &[&[Choice]] = &[
    &[bad("port x"), bad("port 70000"), bad("port 0"), good("port 0\nunixsocket other.sock")],
    &[
        good("bind 127.0.0.1 -192.0.2.7"),
        good("bind 127.0.0.1 127.0.0.2"),
        bad("bind 127.0.0.1 192.0.2.7"),
        bad("bind -192.0.2.7"),
        bad("bind 127.0.0.1 127.0.0.1"),
        bad("bind \"\""),
        bad("bind 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17"),
        bad("bind ::ffff:127.0.0.1"),
    ],
    &[
        good(tls!("")),
        good(tls!("tls-auth-clients no\ntls-protocols TLSv1.3\ntls-ciphers nonsense:DEFAULT")),
        good(tls!("tls-client-cert-file %F/two.crt\ntls-client-key-file %F/two.key")),
        good("tls-cert-file %F/gone.crt"),
        good("tls-port %2\ntls-port 0"),
        good(tls!("tls-ca-cert-dir %F")),
        bad("tls-port %2"),
        bad("tls-replication yes"),
        bad(tls!("tls-port %1")),
        bad(tls!("tls-key-file %F/two.key")),
        bad(tls!("tls-key-file %F/gone.key")),
        bad(tls!("tls-cert-file %F/garbage.pem")),
        bad(tls!("tls-cert-file %F/empty")),
        bad(tls!("tls-ca-cert-file %F/gone.crt")),
        bad(tls!("tls-ca-cert-file \"\"")),
        bad(tls!("tls-ca-cert-dir %F/gone")),
        bad(tls!("tls-protocols TLSv1.1")),
        bad(tls!("tls-ciphers nonsense")),
        bad(tls!("tls-ciphersuites nonsense")),
        bad(tls!("tls-dh-params-file %F/empty")),
        bad(tls!("tls-client-cert-file %F/one.crt\ntls-client-key-file %F/two.key")),
        bad(tls!("tls-auth-clients maybe")),
    ],
    &[
        good("unixsocket server.sock\nunixsocketperm 700"),
        good("unixsocket %F/new.sock\nunixsocketgroup %G"),
        good("unixsocketgroup nosuchgroup"),
        bad("unixsocket gone/server.sock"),
        bad("unixsocket %F/folder"),
        bad("unixsocket %F/empty"),
        bad("unixsocket %F/empty/server.sock"),
        bad("unixsocket server.sock/"),
        bad("unixsocket server.sock\nunixsocketperm 999"),
        bad("unixsocket server.sock\nunixsocketgroup nosuchgroup"),
        bad(concat!(
            "unixsocket 0123456789012345678901234567890123456789012345678901234567890123456789",
            "0123456789012345678901234567890123456789"
        )),
    ],
    &[
        good("http-port %3"),
        good("http-port %3\nhttp-bind 127.0.0.2 -192.0.2.7"),
        good("http-bind 192.0.2.7"),
        good("http-tls yes"),
        bad("http-port %1\nport %1"),
        bad("http-port %3\nhttp-bind 192.0.2.7"),
        bad("http-port -1"),
        bad("http-port %3\nhttp-tls yes\ntls-cert-file \"\""),
    ],
    &[
        good("user ann on >secret ~a* +@read"),
        good("user ann off\nuser default on nopass +@all ~*"),
        good("aclfile %F/good.acl"),
        bad("aclfile %F/good.acl\nuser ann on"),
        bad("aclfile %F/bad.acl"),
        bad("aclfile %F/twice.acl"),
        bad("aclfile gone.acl"),
        bad("aclfile %F/folder"),
        bad("user ann +nosuch"),
        bad("user ann on\nuser ann off"),
        bad("user ann on nonsense"),
        bad("user ann (~a"),
        bad("user"),
        bad("user \"a b\" on"),
    ],
    &[
        good("rename-command GET FETCH\nrename-command SET GET"),
        good("rename-command FLUSHALL \"\""),
        bad("rename-command NOSUCH X"),
        bad("rename-command GET SET"),
        bad("rename-command GET"),
    ],
    &[
        good("dir ."),
        good("dir /proc"),
        bad("dir gone"),
        bad("dir %F/empty"),
        bad("dir \"\""),
        bad("dir /proc\nappendonly yes"),
    ],
    &[
        good("logfile log"),
        good("logfile /dev/null"),
        bad("logfile gone/log"),
        bad("logfile %F/folder"),
        bad("logfile /proc/nosuch"),
    ],
    &[good("pidfile pid"), good("pidfile gone/pid"), good("pidfile /proc/pid")],
    &[
        good("dbfilename other.rdb"),
        bad("dbfilename a/b"),
        bad("dbfilename ."),
        bad(concat!("dbfilename ", long!(), long!(), long!(), long!())),
        good(concat!("appendfilename ", long!(), long!(), long!())),
        bad(concat!("appendonly yes\nappendfilename ", long!(), long!(), long!())),
        bad("appendfilename \"\""),
        bad("appenddirname a/b"),
    ],
    &[
        good("include %F/more.conf"),
        good("include %F/gone*.conf"),
        bad("include %F/gone.conf"),
        bad("include %F/wrong.conf"),
        bad("include %F/folder"),
        bad("include"),
    ],
    &[
        good("replicaof 127.0.0.1 1"),
        good("replicaof no one"),
        bad("replicaof 127.0.0.1"),
        bad("replicaof 127.0.0.1 70000"),
        good("cluster-enabled yes\ncluster-port %3"),
        good("cluster-config-file gone/nodes.conf"),
        bad("cluster-enabled yes\ncluster-port %3\ncluster-config-file gone/nodes.conf"),
        bad("cluster-enabled yes\ncluster-port %3\ncluster-config-file %F/folder"),
        bad("cluster-enabled yes\ncluster-port %3\ncluster-config-file \"\""),
        bad(concat!(
            "cluster-enabled yes\ncluster-port %3\ncluster-config-file ",
            long!(),
            long!(),
            long!()
        )),
        bad("cluster-enabled yes\ncluster-port %1"),
        bad("cluster-enabled yes\nport 55536"),
        bad("cluster-enabled yes\nbind \"\""),
        bad("cluster-enabled yes\nreplicaof 127.0.0.1 1"),
        bad("sentinel monitor a 127.0.0.1 1 2"),
    ],
    &[
        good("maxclients 4294967295"),
        good("io-threads 4\nactivedefrag no"),
        good("compatible-with valkey-9\nredis-version 8.0.0"),
        good("save 900 1\nsave 300 10"),
        good("requirepass \"a b\""),
        bad("databases 2147483647"),
        bad("databases 0"),
        bad("maxmemory lots"),
        bad("maxmemory-policy none"),
        bad("save 900"),
        bad("timeout"),
        bad("timeout 1 2"),
        bad("nosuch 1"),
        bad("loadmodule /x.so"),
        bad("search.timeout 1"),
        bad("requirepass \"a"),
        bad("mptcp yes"),
        bad("proc-title-template {nosuch}"),
        bad("client-output-buffer-limit normal 1 2"),
        bad("notify-keyspace-events ?"),
        bad("oom-score-adj-values 1 2 3000"),
    ],
];

/// A configuration in a folder of its own.
struct Case {
    folder: tempfile::TempDir,
    file: PathBuf,
    text: String,
}

impl Case {
    fn new(fixtures: &Fixtures, choices: &[&Choice]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut lines = "bind 127.0.0.1\nport %1\nsave \"\"\npidfile \"\"\n".to_owned();
        for Choice(chosen, _) in choices {
            lines.push_str(chosen);
            lines.push('\n');
        }
        let mut text = lines.replace("%F", &fixtures.path().display().to_string());
        // Others may not be given to a file.
        text = text.replace("%G", &rustix::process::getegid().as_raw().to_string());
        for place in ["%1", "%2", "%3"] {
            text = text.replace(place, &free_port().to_string());
        }
        let file = fixtures.path().join("server.conf");
        std::fs::write(&file, &text).expect("a file");
        Case { folder, file, text }
    }

    fn check(&self, options: &[&str]) -> Output {
        let before = self.files();
        let mut command = program();
        command.current_dir(self.folder.path()).arg("--check-config").arg(&self.file);
        let output = command.args(options).output().expect("the program starts");
        assert_eq!(self.files(), before, "a check leaves nothing behind:\n{}", self.text);
        output
    }

    fn files(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.folder.path()).expect("a folder");
        let mut files: Vec<PathBuf> =
            entries.map(|entry| entry.expect("an entry").path()).collect();
        files.sort();
        files
    }

    /// Whether a server starts, and its log.
    fn start(&self) -> (bool, String) {
        let sockets = tempfile::tempdir().expect("a folder");
        let path = sockets.path().join("notify");
        let socket = UnixDatagram::bind(&path).expect("a socket");
        socket.set_read_timeout(Some(Duration::from_millis(5))).expect("an option of sockets");
        let mut command = program();
        command.current_dir(self.folder.path()).env("NOTIFY_SOCKET", &path);
        command.arg(&self.file).args(["--supervised", "systemd"]);
        let mut server = Killed(command.spawn().expect("the program starts"));
        let begun = Instant::now();
        let is_ready = loop {
            let mut message = [0; 1000];
            let len = socket.recv(&mut message).unwrap_or(0);
            if text(&message[..len]).contains("READY=1") {
                break true;
            }
            if server.0.try_wait().expect("a child").is_some() {
                break false;
            }
            assert!(begun.elapsed() < PATIENCE, "neither ready nor ended:\n{}", self.text);
        };
        // Its end closes the pipes.
        let _ = server.0.kill();
        let mut log = String::new();
        let pipes = (server.0.stdout.take(), server.0.stderr.take());
        pipes.0.expect("a pipe").read_to_string(&mut log).expect("text");
        pipes.1.expect("a pipe").read_to_string(&mut log).expect("text");
        log += &std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        (is_ready, log)
    }
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Checks and starts; returns whether both went well, which must agree.
fn agree(fixtures: &Fixtures, choices: &[&Choice]) -> bool {
    for _ in 0..5 {
        let case = Case::new(fixtures, choices);
        let checked = case.check(&[]);
        let told = text(&checked.stderr) + &text(&checked.stdout);
        let (starts, log) = case.start();
        let passes = checked.status.success();
        if passes && !starts && IN_USE.iter().any(|text| log.contains(text)) {
            // Somebody else has taken the port meanwhile.
            continue;
        }
        assert!(checked.status.code().is_some(), "the check ended by a signal:\n{}", case.text);
        assert_eq!(passes, starts, "checked and started:\n{}\n{told}\n{log}", case.text);
        return starts;
    }
    panic!("all ports are taken")
}

#[test]
fn each_good_line_passes_and_starts_and_each_bad_one_neither() {
    let fixtures = Fixtures::new();
    for choice in GROUPS.iter().flat_map(|group| group.iter()) {
        let Choice(lines, is_good) = choice;
        // A start with so many databases takes all memory: only checked.
        if *lines == "databases 2147483647" {
            assert!(!Case::new(&fixtures, &[choice]).check(&[]).status.success());
            continue;
        }
        assert_eq!(agree(&fixtures, &[choice]), *is_good, "{lines}");
    }
}

/// `CHECKED_CONFIGURATIONS` is how many are drawn.
#[test]
fn what_the_check_passes_starts_and_what_it_refuses_does_not() {
    let fixtures = Fixtures::new();
    let mut random = fastrand::Rng::with_seed(seed("CHECK_SEED"));
    let count = number_from("CHECKED_CONFIGURATIONS", 150);
    let mut started = 0;
    for _ in 0..count {
        let mut chosen: Vec<&Choice> = Vec::new();
        for group in GROUPS {
            let drawn: Vec<&Choice> =
                group.iter().filter(|choice| choice.1 || random.u8(..) < 40).collect();
            if random.u8(..) < 100 && !drawn.is_empty() {
                chosen.push(drawn[random.usize(..drawn.len())]);
            }
        }
        chosen.retain(|choice| choice.0 != "databases 2147483647");
        random.shuffle(&mut chosen);
        started += u64::from(agree(&fixtures, &chosen));
    }
    assert!(started > count / 10 && started < count * 9 / 10, "{started} of {count}");
}

#[test]
fn directives_without_effect_are_listed() {
    let fixtures = Fixtures::new();
    let lines = "io-threads 4\nactivedefrag yes\nio-threads 2\nlua-replicate-commands yes";
    let case = Case::new(&fixtures, &[&good(lines)]);
    let output = case.check(&[]);
    let wanted = "The configuration is in order\n\
        Directives without effect in this server: io-threads, activedefrag, lua-replicate-commands\n";
    assert_eq!((text(&output.stdout), text(&output.stderr)), (wanted.to_owned(), String::new()));
    let json = text(&case.check(&["--json"]).stdout);
    let file = case.file.display();
    let listed = format!(
        "{{\"ok\":true,\"faults\":[],\"warnings\":[],\"without_effect\":[\
         {{\"directive\":\"io-threads\",\"file\":\"{file}\",\"line\":7}},\
         {{\"directive\":\"activedefrag\",\"file\":\"{file}\",\"line\":6}},\
         {{\"directive\":\"lua-replicate-commands\",\"file\":\"{file}\",\"line\":8}}]}}\n"
    );
    assert_eq!(json, listed);
}

#[test]
fn a_file_that_cannot_be_read_is_a_fault() {
    let fixtures = Fixtures::new();
    let case = Case::new(&fixtures, &[]);
    std::fs::remove_file(&case.file).expect("a file");
    let output = case.check(&["--hz", "x"]);
    let file = case.file.display();
    let wanted = format!(
        "Can't open config file '{file}': No such file or directory\n\
         command line: hz: argument couldn't be parsed into an integer\n    hz \"x\"\n"
    );
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(1), wanted));
    assert_eq!(text(&output.stdout), "2 faults: a server would not start\n");
}

#[test]
fn all_faults_are_told_at_once_with_file_and_line() {
    let fixtures = Fixtures::new();
    let lines = "port eighty\nio-threads 4\nuser bob on +nosuch +@no >the-secret\nuser eve nonsense (~a\n\
        aclfile gone.acl\ntls-port %2\ntls-cert-file gone.crt\ntls-key-file gone.key\ntls-protocols TLSv9\n\
        unixsocket gone/x.sock\nappendonly yes\nbind 192.0.2.7 127.0.0.1 127.0.0.1\ninclude %F/wrong.conf\n\
        requirepass \"a\nlogfile gone/log\nrename-command NOSUCH X\nrename-command GET SET";
    let case = Case::new(&fixtures, &[&bad(lines)]);
    let output = case.check(&["--hz", "x", "--json", "--loadmodule", "y"]);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(1), String::new()));
    let json = text(&output.stdout);
    let found = |directive: &str, line: Option<usize>| {
        // After four lines of every configuration.
        let line = line.map_or("null".to_owned(), |line| (line + 4).to_string());
        json.match_indices(&format!("{{\"directive\":\"{directive}\",\"file\":"))
            .filter(|(at, _)| {
                json[*at..].split('}').next().is_some_and(|object| {
                    object.contains(&format!("\"line\":{line},"))
                        || object.ends_with(&format!("\"line\":{line}"))
                })
            })
            .count()
    };
    for (directive, line, count) in [
        ("port", Some(1), 1),
        ("io-threads", Some(2), 1),
        ("user", Some(3), 2),
        ("user", Some(4), 1),
        // That there are users besides, and that it is not there.
        ("aclfile", Some(5), 2),
        ("tls-cert-file", Some(7), 1),
        ("tls-key-file", Some(8), 1),
        ("tls-protocols", Some(9), 1),
        ("tls-ca-cert-file", None, 1),
        ("unixsocket", Some(10), 1),
        ("bind", Some(12), 1),
        ("tls-port", Some(6), 1),
        ("requirepass", Some(14), 1),
        ("logfile", Some(15), 1),
        ("rename-command", Some(16), 1),
        ("rename-command", Some(17), 1),
        ("hz", None, 1),
        ("loadmodule", None, 1),
    ] {
        assert_eq!(found(directive, line), count, "{directive} {line:?}: {json}");
    }
    assert_eq!(json.matches("\"reason\":").count(), 20, "{json}");
    let wrong =
        format!("\"file\":\"{}\",\"line\":2,", fixtures.path().join("wrong.conf").display());
    assert!(json.contains(&wrong), "{json}");
    // No secret of a line is told.
    assert!(
        !json.contains("the-secret") && json.starts_with("{\"ok\":false,\"faults\":[{"),
        "{json}"
    );

    let told = text(&case.check(&[]).stderr);
    let first = format!(
        "{}:5: port: argument couldn't be parsed into an integer\n    port eighty\n",
        case.file.display()
    );
    assert!(told.starts_with(&first), "{told}");
}

#[test]
fn what_a_start_only_logs_is_a_warning() {
    let fixtures = Fixtures::new();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = taken.local_addr().expect("an address").port().to_string();
    let lines = "bind 127.0.0.1 -192.0.2.7\npidfile gone/pid\nuser ann +get\ntls-port 0";
    let case = Case::new(&fixtures, &[&good(lines)]);
    let output = case.check(&["--port", &port, "--replicaof", "127.0.0.1", &port]);
    assert_eq!(output.status.code(), Some(0));
    let told = text(&output.stderr);
    for part in [
        "server.conf:5: warning: bind: Could not create server TCP listening socket 192.0.2.7:",
        "command line: warning: port: Could not create server TCP listening socket 127.0.0.1:",
        "server.conf:6: warning: pidfile: gone/pid can't be written: No such file or directory\n",
        "warning: user: The user 'ann' is disabled",
        "command line: warning: replicaof: The primary is this server itself.\n",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert_eq!(told.matches("warning: ").count(), 5, "{told}");
    assert_eq!(text(&output.stdout), "The configuration is in order\n");
    // A value is no option, whatever it looks like.
    let output = case.check(&["--requirepass", "--json"]);
    assert_eq!(text(&output.stdout), "The configuration is in order\n");
}

#[test]
fn the_machine_is_checked_with_a_configuration() {
    let fixtures = Fixtures::new();
    let case = Case::new(&fixtures, &[&good("maxmemory 100pb\ntcp-backlog 2147483647\nnosuch 1")]);
    let check = |options: &[&str]| {
        let mut command = program();
        command.current_dir(case.folder.path()).arg("--check-system");
        let output = command.args(options).output().expect("the program starts");
        assert!(case.files().is_empty());
        assert_eq!(text(&output.stderr), "");
        (output.status.code(), text(&output.stdout))
    };
    let file = case.file.display().to_string();
    let (code, told) = check(&[&file]);
    assert_eq!(code, Some(1));
    let is_told = |mark: &str, name: &str| {
        told.lines().any(|line| line.starts_with(&format!("{mark} {name}: ")))
    };
    for name in ["queue of new connections", "configuration"] {
        assert!(is_told("warning", name), "{told}");
    }
    assert!(is_told("ok     ", "disk sync") || is_told("warning", "disk sync"), "{told}");
    let (_, json) = check(&["--json", &file]);
    assert!(json.starts_with("{\"ok\":false,\"items\":[{\"name\":"), "{json}");
    assert_eq!(json.matches("\"change\":").count(), told.lines().count());
}
