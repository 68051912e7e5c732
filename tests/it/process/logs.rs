//! The log's formats, and what it tells of clients and keys.

use std::path::Path;

use crate::support::{Client, Reply, TestServer, wait_for};

fn start(dir: &Path, lines: &[&str]) -> TestServer {
    let own = [format!("dir {}", dir.display()), format!("logfile {}", log_path(dir))];
    let all = own.into_iter().chain(lines.iter().map(|line| (*line).to_owned()));
    TestServer::start(&all.collect::<Vec<_>>())
}

fn log_path(dir: &Path) -> String {
    dir.join("log").display().to_string()
}

/// Empty if nothing has been written yet.
fn log(dir: &Path) -> String {
    std::fs::read_to_string(log_path(dir)).unwrap_or_default()
}

fn ok(client: &mut Client, args: &[&str]) {
    assert_eq!(client.call(args), Reply::Simple(b"OK".to_vec()), "{args:?}");
}

#[test]
fn the_format_of_lines_and_times_is_changed_while_the_server_runs() {
    let dir = tempfile::tempdir().expect("a folder");
    let server = start(dir.path(), &["log-timestamp-format milliseconds"]);
    let mut client = server.connect();
    let message = "a \"b\" \\ \n\t\x01é";
    for format in ["legacy", "logfmt", "json"] {
        ok(&mut client, &["CONFIG", "SET", "log-format", format]);
        ok(&mut client, &["DEBUG", "LOG", message]);
    }
    ok(&mut client, &["REPLICAOF", "127.0.0.1", "1"]);
    ok(&mut client, &["CONFIG", "SET", "log-timestamp-format", "iso8601"]);
    ok(&mut client, &["DEBUG", "LOG", "last"]);
    let (log, pid, ms) = (log(dir.path()), std::process::id(), server.clock_ms());
    let told = [
        format!("{pid}:M {ms} # DEBUG LOG: {message}\n"),
        format!(
            "pid={pid} role=primary timestamp=\"{ms}\" level=warning message=\"DEBUG LOG: a 'b' \\  \t\x01é\"\n"
        ),
        format!(
            "{{\"pid\":{pid},\"role\":\"primary\",\"timestamp\":\"{ms}\",\"level\":\"warning\",\
             \"message\":\"DEBUG LOG: a \\\"b\\\" \\\\ \\n\\t\\u0001é\"}}\n"
        ),
    ];
    for line in told {
        assert!(log.contains(&line), "{line} is missing in:\n{log}");
    }
    let last = log.lines().find(|line| line.ends_with("\"message\":\"DEBUG LOG: last\"}"));
    let start = format!("{{\"pid\":{pid},\"role\":\"replica\",\"timestamp\":\"");
    let time = last.and_then(|line| line.strip_prefix(&start)).expect("a line of a replica");
    let shape: String =
        time.chars().take(29).map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    assert!(
        ["0000-00-00T00:00:00.000+00:00", "0000-00-00T00:00:00.000-00:00"].contains(&&*shape),
        "{log}"
    );
}

/// The line about a named client that does not speak the protocol.
fn line_of_protocol_error(dir: &Path, server: &TestServer, setting: &[&str]) -> String {
    let mut client = server.connect();
    if let [name, value] = setting {
        ok(&mut client, &["CONFIG", "SET", name, value]);
    }
    ok(&mut client, &["CLIENT", "SETNAME", "bob"]);
    let before = log(dir).len();
    client.send_raw(b"*x\r\n");
    assert!(matches!(client.reply(), Some(Reply::Error(_))));
    wait_for("the line", || {
        let log = log(dir);
        log[before..].lines().find(|line| line.contains("Protocol error")).map(str::to_owned)
    })
}

#[test]
fn the_log_has_names_of_clients_unless_they_are_hidden() {
    let dir = tempfile::tempdir().expect("a folder");
    let server = start(dir.path(), &["loglevel verbose"]);
    let line = |setting: &[&str]| line_of_protocol_error(dir.path(), &server, setting);
    let (shown, hidden) =
        ([" name=bob ", " user=default "], [" name=*redacted* ", " user=*redacted* "]);
    for (setting, parts) in [
        (&[][..], shown),
        (&["hide-user-data-from-log", "yes"], hidden),
        (&["hide-user-data-from-log", "no"], shown),
        (&["compatible-with", "valkey-9"], hidden),
        (&["hide-user-data-from-log", "no"], shown),
    ] {
        let line = line(setting);
        assert!(parts.iter().all(|part| line.contains(part)), "{setting:?}: {line}");
    }
    // Not the log: an administrator asks for this.
    ok(&mut server.connect(), &["CONFIG", "SET", "hide-user-data-from-log", "yes"]);
    let list = server.connect().call(&["CLIENT", "LIST"]).show();
    assert!(list.contains(" user=default "), "{list}");
}

#[test]
fn the_log_names_empty_keys_of_a_file_unless_keys_are_hidden() {
    // A set without members.
    let file = b"REDIS0010\xfe\x00\x02\x06secret\x00\xff\0\0\0\0\0\0\0\0";
    for (line, told) in [
        ("compatible-with redis-7.0", "rdbLoadObject skipping empty key: secret\n"),
        ("compatible-with valkey-9", "rdbLoadObject skipping empty key\n"),
    ] {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::write(dir.path().join("dump.rdb"), file).expect("a file");
        let _server = start(dir.path(), &[line]);
        let log = log(dir.path());
        assert!(log.contains(told), "{line}:\n{log}");
    }
}

#[test]
fn what_is_wrong_with_a_file_is_told_without_its_keys_if_they_are_hidden() {
    let twice = b"REDIS0010\xfe\x00\x00\x06secret\x01v\x00\x06secret\x01v\xff\0\0\0\0\0\0\0\0";
    // A value that is malformed, and one that is cut off.
    let malformed = b"REDIS0010\xfe\x00\x0c\x06secret\x01v\xff\0\0\0\0\0\0\0\0";
    let cut = b"REDIS0010\xfe\x00\x00\x06secret\x20v";
    for file in [&twice[..], malformed, cut] {
        for hides in [false, true] {
            let dir = tempfile::tempdir().expect("a folder");
            let server = start(dir.path(), &["compatible-with valkey-9"]);
            let mut client = server.connect();
            let setting = if hides { "yes" } else { "no" };
            ok(&mut client, &["CONFIG", "SET", "hide-user-data-from-log", setting]);
            std::fs::write(dir.path().join("dump.rdb"), file).expect("a file");
            let reply = client.call(&["DEBUG", "RELOAD", "NOSAVE"]);
            assert!(matches!(reply, Reply::Error(_)), "{reply:?}");
            let log = log(dir.path());
            let line = log.lines().find(|line| line.contains("Fatal error loading the DB"));
            let line = line.unwrap_or_else(|| panic!("no error in:\n{log}"));
            assert!(line.contains("database 0"), "{line}");
            assert_eq!(line.contains("secret"), !hides, "{line}");
        }
    }
}

/// A folder whose log has a request that fails.
fn folder_with_failing_log() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    let appends = dir.path().join("appendonlydir");
    std::fs::create_dir(&appends).expect("a folder");
    let manifest = "file appendonly.aof.1.incr.aof seq 1 type i\n";
    std::fs::write(appends.join("appendonly.aof.manifest"), manifest).expect("a file");
    let requests = ["SELECT 0", "SET k v", "LPUSH k v", "MULTI", "SET l 1", "HSET k f v", "EXEC"];
    let requests = crate::replication::replicas::stream(&requests);
    std::fs::write(appends.join("appendonly.aof.1.incr.aof"), requests).expect("a file");
    dir
}

#[test]
fn errors_of_a_logs_requests_are_told_while_it_is_loaded() {
    let dir = folder_with_failing_log();
    let server = start(dir.path(), &["appendonly yes"]);
    let log = log(dir.path());
    for command in ["lpush", "hset"] {
        // The text of Redis 7.0.15.
        let told = format!(
            "== CRITICAL == This server is sending an error to its AOF-loading-client: '-WRONGTYPE Operation against a key \
             holding the wrong kind of value' after processing the command '{command}'\n"
        );
        assert!(log.contains(&told), "{log}");
    }
    let mut client = server.connect();
    assert_eq!(crate::replication::replicas::field(&mut client, "unexpected_error_replies"), "2");
    assert_eq!(client.call(&["GET", "l"]), Reply::Bulk(b"1".to_vec()));
}

#[test]
fn an_error_of_a_logs_request_ends_the_start_if_that_is_asked_for() {
    use latchkey::clock::Clock;
    use latchkey::config::Config;
    use latchkey::server::Server;
    use latchkey::sys::log::Logger;
    for (behavior, starts) in [("panic", false), ("panic-on-replicas", true), ("ignore", true)] {
        let dir = folder_with_failing_log();
        let text = format!(
            "port 0\nbind\nappendonly yes\ndir {}\npropagation-error-behavior {behavior}\n",
            dir.path().display()
        );
        let config = Config::from_text(text.as_bytes()).expect("the test's configuration is good");
        let mut server =
            Server::start(config, Clock::System, Logger::silent()).expect("the server starts");
        let loaded = server.load().map_err(|error| error.text);
        let expected = "This server panicked sending an error to its AOF-loading-client after processing the command 'lpush' (";
        assert_eq!(loaded.is_ok(), starts, "{behavior}: {loaded:?}");
        assert!(loaded.err().is_none_or(|text| text.starts_with(expected)));
    }
}

#[test]
fn a_script_that_only_luau_refuses_is_logged() {
    let dir = tempfile::tempdir().expect("a folder");
    let server = start(dir.path(), &[]);
    let mut client = server.connect();
    let source = |body: &str| client.call(&["SCRIPT", "LOAD", body]).show();
    // A sum of as many terms, and as many branches, as Lua 5.1 compiles.
    let sum = format!("local a = 1 return {}", vec!["a"; 300].join(" + "));
    let branches = format!("local a = 1 if a then {} end", "elseif a then ".repeat(1000));
    let refused = [sum.as_str(), "return return", &branches].map(source);
    assert!(refused.iter().all(|shown| shown.contains("Error compiling script")), "{refused:?}");
    let log = log(dir.path());
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("a limit of Luau")).collect();
    assert_eq!(lines.len(), 2, "{log}");
    assert!(lines[0].contains("may not have: user_script:1: Out of registers"), "{log}");
    assert!(lines[1].contains("Exceeded allowed recursion depth"), "{log}");
}

#[test]
fn the_log_says_that_a_limit_of_the_compiler_has_refused_a_script() {
    let dir = tempfile::tempdir().expect("a folder");
    let server = start(dir.path(), &[]);
    let mut client = server.connect();
    let sum = format!("return 0{}", "+ARGV[1]".repeat(400));
    let library =
        format!("#!lua name=l\nredis.register_function('f', function(keys, ARGV) {sum} end)");
    let wrong = "#!lua name=l\nlocal function";
    for (words, count) in [
        (["SCRIPT", "LOAD", &*sum], 1),
        (["FUNCTION", "LOAD", &*library], 2),
        (["FUNCTION", "LOAD", wrong], 2),
    ] {
        let reply = client.call(&words);
        assert!(matches!(reply, Reply::Error(_)), "{words:?}: {reply:?}");
        let told = log(dir.path()).matches("A script was refused by a limit of Luau").count();
        assert_eq!(told, count, "{words:?}: {reply:?}");
    }
}
