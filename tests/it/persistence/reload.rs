//! DEBUG RELOAD and LOADAOF while other clients are there: they are served as at the start.
//!
//! Each key takes a while to load until `key-load-delay` is set to 0, which ends the loading soon;
//! each reading of the clock moves it, so that clients are served after each key.

use crate::support::{Client, Reply, TestServer, encode, wait_for};

const LOADING: &str = "(error) LOADING Redis is loading the dataset in memory";
/// Loading so many slowly takes longer than any test.
const KEYS: &str = "20000";

fn start(dir: &std::path::Path, lines: &[&str]) -> TestServer {
    let mut all = vec![format!("dir {}", dir.display())];
    all.extend(lines.iter().map(|line| (*line).to_owned()));
    let server = TestServer::start(&all);
    server.clock.set_tick_us(6_000);
    server
}

fn show(client: &mut Client, line: &str) -> String {
    client.call(&line.split(' ').collect::<Vec<_>>()).show()
}

fn next(client: &mut Client) -> String {
    client.reply().expect("a reply").show()
}

fn send(client: &mut Client, line: &str) {
    client.send(&line.split(' ').collect::<Vec<_>>());
}

fn info(client: &mut Client, field: &str) -> String {
    let Reply::Bulk(text) = client.call(&["INFO", "everything"]) else { panic!("no text") };
    let text = String::from_utf8_lossy(&text).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {field}")).to_owned()
}

/// Has one client begin a slow loading, and returns another one that is served meanwhile.
fn begin(server: &TestServer, client: &mut Client, line: &str) -> Client {
    let mut other = server.connect();
    assert_eq!(show(&mut other, "CONFIG SET key-load-delay 2000"), "OK");
    send(client, line);
    wait_for("loading", || (info(&mut other, "loading") == "1").then_some(()));
    other
}

/// Loads the rest at once.
fn end(other: &mut Client) {
    assert_eq!(show(other, "CONFIG SET key-load-delay 0"), "OK");
    wait_for("the end of loading", || (info(other, "loading") == "0").then_some(()));
}

#[test]
fn others_are_told_that_the_data_is_being_loaded() {
    let dir = tempfile::tempdir().expect("a folder");
    let server = start(dir.path(), &["appendonly yes"]);
    let mut client = server.connect();
    assert_eq!(show(&mut client, &format!("DEBUG POPULATE {KEYS}")), "OK");
    assert_eq!(show(&mut client, "SET k v"), "OK");
    // DEBUG POPULATE is not in the log.
    assert_eq!(show(&mut client, "BGREWRITEAOF"), "Background append only file rewriting started");
    wait_for("a rewrite", || (info(&mut client, "aof_rewrite_in_progress") == "0").then_some(()));
    for reload in ["DEBUG RELOAD", "DEBUG LOADAOF"] {
        let mut queuing = server.connect();
        assert_eq!(show(&mut queuing, "MULTI"), "OK");
        assert_eq!(show(&mut queuing, "GET k"), "QUEUED");
        let mut other = begin(&server, &mut client, reload);
        send(&mut client, "GET k");
        for line in ["PING", "GET k", "SET k w", "DEBUG RELOAD", "DEBUG LOADAOF", "EVAL return 0"] {
            assert_eq!(show(&mut other, line), LOADING, "{line}");
        }
        let refused = "(error) EXECABORT Transaction discarded because of: LOADING Redis is loading the dataset in memory";
        assert_eq!(show(&mut queuing, "EXEC"), refused);
        assert_eq!(show(&mut other, "CONFIG SET appendonly no"), LOADING);
        assert_eq!(show(&mut other, "CLIENT SETNAME other"), "OK");
        assert_eq!(info(&mut other, "async_loading"), "0");
        let mut bytes = |field| info(&mut other, field).parse::<u64>().expect("bytes");
        assert!(bytes("loading_loaded_bytes") < bytes("loading_total_bytes"));
        end(&mut other);
        assert_eq!((next(&mut client), next(&mut client)), ("OK".into(), "\"v\"".into()));
        assert_eq!(show(&mut other, "DBSIZE"), "(integer) 20001");
        assert_eq!(show(&mut queuing, "PING"), "PONG");
    }
}

#[test]
fn as_redis_8_the_append_only_file_can_be_switched_during_loading_and_is_after_it() {
    let dir = tempfile::tempdir().expect("a folder");
    let server = start(dir.path(), &["compatible-with redis-8"]);
    let mut client = server.connect();
    show(&mut client, &format!("DEBUG POPULATE {KEYS}"));
    let aof = |client: &mut Client| info(client, "aof_enabled");
    for (word, wanted) in [("yes", "1"), ("no", "0"), ("yes", "1")] {
        let mut other = begin(&server, &mut client, "DEBUG RELOAD");
        assert_eq!(show(&mut other, &format!("CONFIG SET appendonly {word}")), "OK");
        assert_ne!(aof(&mut other), wanted);
        end(&mut other);
        assert_eq!((next(&mut client), aof(&mut other)), ("OK".into(), wanted.into()));
    }
    wait_for("a rewrite", || (info(&mut client, "aof_rewrite_in_progress") == "0").then_some(()));
    assert_eq!(show(&mut client, "SET k v"), "OK");
    drop(server);
    let server = start(dir.path(), &["appendonly yes"]);
    let mut client = server.connect();
    assert_eq!(show(&mut client, "DBSIZE"), "(integer) 20001");
}

#[test]
fn a_reload_goes_on_without_its_client() {
    let dir = tempfile::tempdir().expect("a folder");
    let server = start(dir.path(), &[]);
    let mut client = server.connect();
    show(&mut client, &format!("DEBUG POPULATE {KEYS}"));
    let mut other = begin(&server, &mut client, "DEBUG RELOAD");
    drop(client);
    assert_eq!(show(&mut other, "PING"), LOADING);
    end(&mut other);
    assert_eq!(show(&mut other, "DBSIZE"), "(integer) 20000");
    let mut client = server.connect();
    let id = client.call(&["CLIENT", "ID"]).show().replace("(integer) ", "");
    let mut other = begin(&server, &mut client, "DEBUG RELOAD NOSAVE");
    assert_eq!(show(&mut other, &format!("CLIENT KILL ID {id}")), "(integer) 1");
    assert_eq!(show(&mut other, "PING"), LOADING);
    end(&mut other);
    assert_eq!(client.reply(), None);
    assert_eq!(show(&mut other, "DBSIZE"), "(integer) 20000");
}

#[test]
fn a_shutdown_ends_it_and_saves_no_part_of_the_data() {
    let dir = tempfile::tempdir().expect("a folder");
    for shutdown in ["SHUTDOWN", "SHUTDOWN SAVE", "SHUTDOWN NOSAVE"] {
        let server = start(dir.path(), &["save 3600 1"]);
        let mut client = server.connect();
        show(&mut client, &format!("DEBUG POPULATE {KEYS}"));
        let mut other = begin(&server, &mut client, "DEBUG RELOAD");
        send(&mut other, shutdown);
        assert_eq!((client.reply(), other.reply()), (None, None), "{shutdown}");
        drop(server);
        let server = start(dir.path(), &[]);
        assert_eq!(show(&mut server.connect(), "DBSIZE"), "(integer) 20000", "{shutdown}");
    }
}

#[test]
fn what_came_before_it_in_a_turn_and_a_transaction_is_logged() {
    let dir = tempfile::tempdir().expect("a folder");
    let server = start(dir.path(), &["appendonly yes"]);
    let mut client = server.connect();
    let mut other = server.connect();
    for line in
        ["SET a 1", "DEBUG RELOAD", "INCR a", "MULTI", "INCR a", "DEBUG RELOAD", "INCR a", "EXEC"]
    {
        send(&mut client, line);
    }
    let replies: Vec<String> = (0..8).map(|_| next(&mut client)).collect();
    let after = "1) (integer) 3\n2) OK\n3) (integer) 4";
    assert_eq!(replies[..3], ["OK", "OK", "(integer) 2"]);
    assert_eq!(replies[7], after);
    // Others' requests do not end the transaction's unit in the log.
    show(&mut other, &format!("DEBUG POPULATE {KEYS}"));
    show(&mut other, "CONFIG SET key-load-delay 2000");
    for line in ["MULTI", "INCR a", "DEBUG RELOAD", "INCR a", "EXEC"] {
        send(&mut client, line);
    }
    wait_for("loading", || (info(&mut other, "loading") == "1").then_some(()));
    assert_eq!(show(&mut other, "PING"), LOADING);
    assert_eq!(show(&mut other, "PUBLISH channel message"), "(integer) 0");
    end(&mut other);
    assert_eq!(show(&mut other, "GET a"), "\"6\"");
    server.settle();
    let path = dir.path().join("appendonlydir/appendonly.aof.1.incr.aof");
    let log = String::from_utf8(std::fs::read(path).expect("a log")).expect("text");
    let words: Vec<&str> = log.lines().filter(|line| !line.starts_with(['*', '$'])).collect();
    let unit = "MULTI INCR a INCR a EXEC";
    assert_eq!(words.join(" "), format!("SELECT 0 SET a 1 INCR a {unit} {unit}"));
    assert_eq!(show(&mut other, "DEBUG LOADAOF"), "OK");
    assert_eq!(show(&mut other, "GET a"), "\"6\"");
}

#[test]
fn nothing_is_evicted_and_nobody_woken_before_all_is_there() {
    let dir = tempfile::tempdir().expect("a folder");
    let server = start(dir.path(), &[]);
    let mut client = server.connect();
    show(&mut client, &format!("DEBUG POPULATE {KEYS}"));
    let mut waiting = server.connect();
    send(&mut waiting, "BLPOP list 0");
    let mut watching = server.connect();
    show(&mut watching, "WATCH key:1");
    let mut tracking = server.connect();
    for line in ["HELLO 3", "CLIENT TRACKING ON", "GET key:1"] {
        show(&mut tracking, line);
    }
    let mut other = begin(&server, &mut client, "DEBUG RELOAD");
    for line in ["CONFIG SET maxmemory-policy allkeys-random", "CONFIG SET maxmemory 1"] {
        assert_eq!(show(&mut other, line), "OK");
    }
    assert_eq!(show(&mut other, "PING"), LOADING);
    assert_eq!(info(&mut other, "evicted_keys"), "0");
    assert_eq!(info(&mut other, "blocked_clients"), "1");
    assert_eq!(show(&mut other, "CONFIG SET maxmemory 0"), "OK");
    end(&mut other);
    assert_eq!(show(&mut other, "DBSIZE"), "(integer) 20000");
    assert_eq!(show(&mut other, "RPUSH list x"), "(integer) 1");
    assert_eq!(next(&mut waiting), "1) \"list\"\n2) \"x\"");
    for line in ["MULTI", "PING"] {
        show(&mut watching, line);
    }
    assert_eq!(show(&mut watching, "EXEC"), "(nil array)");
    let told = tracking.next_message().map(|message| message.show());
    assert_eq!(told.as_deref(), Some("1) \"invalidate\"\n2) (null)"));
}

#[test]
fn each_clients_requests_keep_their_order() {
    let dir = tempfile::tempdir().expect("a folder");
    let server = start(dir.path(), &[]);
    show(&mut server.connect(), "DEBUG POPULATE 1000");
    let mut clients: Vec<Client> = (0..8).map(|_| server.connect()).collect();
    let reloads = |number: usize| number % 10 == 9;
    for number in 0..100 {
        for client in &mut clients {
            send(client, &format!("CLIENT SETNAME name{number}"));
            send(client, if reloads(number) { "DEBUG RELOAD" } else { "CLIENT GETNAME" });
        }
    }
    for client in &mut clients {
        for number in 0..100 {
            assert_eq!(next(client), "OK");
            let reply = next(client);
            match reloads(number) {
                true => assert!(reply == "OK" || reply == LOADING, "{number}: {reply}"),
                false => assert_eq!(reply, format!("\"name{number}\"")),
            }
        }
    }
    assert_eq!(show(&mut clients[0], "DBSIZE"), "(integer) 1000");
}

/// Whoever is woken by a change is told once the change is in the log, though a long command comes
/// right behind it.
#[test]
fn no_answer_is_sent_before_its_change_is_in_the_log() {
    let dir = tempfile::tempdir().expect("a folder");
    let lines = ["appendonly yes", "appendfsync always", "busy-reply-threshold 1"];
    let server = start(dir.path(), &lines);
    let mut client = server.connect();
    let mut other = server.connect();
    show(&mut client, &format!("DEBUG POPULATE {KEYS}"));
    show(&mut client, "CONFIG SET key-load-delay 2000");
    let script = "redis.call('SET', 'k', 'v') while true do end";
    let long = [
        vec![vec!["EVAL", script, "0"]],
        vec![vec!["DEBUG", "RELOAD"]],
        vec![vec!["MULTI"], vec!["SET", "k", "v"], vec!["DEBUG", "RELOAD"], vec!["EXEC"]],
    ];
    for (number, requests) in long.iter().enumerate() {
        let key = format!("list{number}");
        let mut waiting = server.connect();
        waiting.send(&["BLPOP", &key, "0"]);
        server.settle();
        // In one piece, so that all of it is in one turn.
        let mut bytes = encode(&["RPUSH", &key, "x"]);
        requests.iter().for_each(|request| bytes.extend(encode(request)));
        client.send_raw(&bytes);
        assert_eq!(next(&mut waiting), format!("1) \"{key}\"\n2) \"x\""));
        let path = dir.path().join("appendonlydir/appendonly.aof.1.incr.aof");
        let log = String::from_utf8(std::fs::read(path).expect("a log")).expect("text");
        assert!(log.contains(&key), "{key}");
        match number {
            0 => assert_eq!(show(&mut other, "SCRIPT KILL ROLLBACK"), "OK"),
            _ => end(&mut other),
        }
    }
}

#[test]
fn a_file_of_an_unknown_version_takes_nothing_away() {
    let folder = tempfile::tempdir().expect("a folder");
    let (log, file) = (folder.path().join("log"), folder.path().join("dump.rdb"));
    let lines = [
        format!("dir {}", folder.path().display()),
        format!("logfile {}", log.display()),
        "enable-debug-command yes".into(),
    ];
    let server = TestServer::start(&lines);
    let mut client = server.connect();
    client.call(&["SET", "a", "1"]);
    client.call(&["FUNCTION", "LOAD", "#!lua name=lib\nredis.register_function('f', print)"]);
    let libraries = client.call(&["FUNCTION", "LIST"]);
    let image = b"VALKEY987\x00\x01k\x01v\xff\0\0\0\0\0\0\0\0";
    std::fs::write(&file, image).expect("a file");
    let reply = client.call(&["DEBUG", "RELOAD", "NOSAVE"]);
    let refused = "(error) ERR Error trying to load the RDB dump, check server logs.";
    assert_eq!(reply.show(), refused);
    let text = std::fs::read_to_string(&log).expect("a log");
    assert!(text.contains(" # Can't handle RDB format version 987\n"), "{text}");
    assert!(text.contains("dump.rdb: the file has a version that cannot be read"), "{text}");
    assert_eq!(client.call(&["MGET", "a", "k"]).show(), "1) \"1\"\n2) (nil)");
    assert_eq!(client.call(&["FUNCTION", "LIST"]), libraries);
    client.call(&["CONFIG", "SET", "rdb-version-check", "relaxed"]);
    assert_eq!(client.call(&["DEBUG", "RELOAD", "NOSAVE"]).show(), "OK");
    assert_eq!(client.call(&["MGET", "a", "k"]).show(), "1) (nil)\n2) \"v\"");
}

/// A rewrite as commands knows only pending entries that the stream still has.
#[test]
fn a_consumer_of_deleted_entries_is_there_after_a_rewrite_as_commands() {
    let dir = tempfile::tempdir().expect("a folder");
    let server = start(dir.path(), &["appendonly yes", "aof-use-rdb-preamble no"]);
    let mut client = server.connect();
    show(&mut client, "XADD x 1-1 f v");
    show(&mut client, "XGROUP CREATE x g 0");
    show(&mut client, "XREADGROUP GROUP g reader STREAMS x >");
    show(&mut client, "XDEL x 1-1");
    show(&mut client, "BGREWRITEAOF");
    wait_for("the rewrite", || {
        server.settle();
        (info(&mut client, "aof_rewrite_in_progress") == "0").then_some(())
    });
    assert_eq!(show(&mut client, "DEBUG LOADAOF"), "OK");
    let consumers = show(&mut client, "XINFO CONSUMERS x g");
    assert!(consumers.contains("reader"), "{consumers}");
}

/// What a stream remembers of its producers goes to every kind of file, and to replicas.
#[test]
fn names_of_entries_outlive_each_kind_of_file() {
    let kinds: [(&[&str], &str); 5] = [
        (&["appendonly yes"], ""),
        (&["appendonly yes"], "BGREWRITEAOF"),
        (&["appendonly yes", "aof-use-rdb-preamble no"], "BGREWRITEAOF"),
        (&[], "SAVE"),
        (&["compatible-with redis-8"], "SAVE"),
    ];
    for (lines, write) in kinds {
        let dir = tempfile::tempdir().expect("a folder");
        let server = start(dir.path(), lines);
        server.clock.set_tick_us(0);
        let mut client = server.connect();
        show(&mut client, "HSETEX h EX 1000 FIELDS 1 f v");
        let one = show(&mut client, "XADD x IDMP p one * f v");
        show(&mut client, "XADD x IDMP p two * f v");
        show(&mut client, "XADD x IDMP p two * f v");
        let three = show(&mut client, "XADD x IDMPAUTO q * f v g w");
        show(&mut client, "XADD y 1-1 f v");
        show(&mut client, "XCFGSET y IDMP-DURATION 7");
        if !write.is_empty() {
            show(&mut client, write);
            wait_for("the rewrite", || {
                server.settle();
                (info(&mut client, "aof_rewrite_in_progress") == "0").then_some(())
            });
        }
        drop(client);
        drop(server);
        let server = start(dir.path(), lines);
        server.clock.set_tick_us(0);
        let mut client = server.connect();
        show(&mut client, "CONFIG SET compatible-with redis-8");
        let mut again = |line: &str| show(&mut client, line);
        assert_eq!(again("XADD x IDMP p one * f v"), one, "{lines:?} {write}");
        assert_eq!(again("XADD x IDMPAUTO q * g w f v"), three, "{lines:?} {write}");
        assert_eq!(again("XLEN x"), "(integer) 3", "{lines:?} {write}");
        let shown = again("XINFO STREAM y");
        assert!(shown.contains("\"idmp-duration\"\n16) (integer) 7\n"), "{shown}");
        let shown = again("XINFO STREAM x");
        let are_counted = !lines.contains(&"aof-use-rdb-preamble no");
        let counts = "\"iids-added\"\n24) (integer) 3\n25) \"iids-duplicates\"\n26) (integer) 3\n";
        assert_eq!(shown.contains(counts), are_counted, "{lines:?} {write}: {shown}");
    }
}
