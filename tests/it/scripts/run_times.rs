//! Whose time is counted where, when commands run others: a command's time is its own, and that of
//! a script, function or transaction has all of what it runs.

use crate::support::{Reply, TestServer};

/// Long in Lua, compared with a command.
const BURN: &str = "local sum = 0 for i = 1, 3000000 do sum = sum + i % 7 end ";

/// The microseconds that INFO commandstats has of a command.
fn microseconds(server: &TestServer, command: &str) -> u64 {
    let reply = server.connect().call(&["INFO", "commandstats"]);
    let (Reply::Bulk(text) | Reply::Verbatim(text)) = reply else { panic!("a text") };
    let text = String::from_utf8_lossy(&text).into_owned();
    let start = format!("cmdstat_{command}:");
    let line = text.lines().find_map(|line| line.strip_prefix(&start));
    let line = line.unwrap_or_else(|| panic!("no {command} in {text}"));
    let value = line.split(',').find_map(|field| field.strip_prefix("usec="));
    value.and_then(|value| value.parse().ok()).expect("a number")
}

/// The commands in the slow log, the first one first.
fn slow(server: &TestServer) -> Vec<String> {
    let Reply::Array(entries) = server.connect().call(&["SLOWLOG", "GET", "-1"]) else {
        panic!("entries")
    };
    let name = |entry: &Reply| match entry {
        Reply::Array(facts) => match &facts[3] {
            Reply::Array(words) => words[0].show(),
            other => panic!("a request: {other:?}"),
        },
        other => panic!("an entry: {other:?}"),
    };
    entries.iter().rev().map(name).collect()
}

#[test]
fn what_a_script_does_itself_is_no_part_of_a_called_commands_time() {
    let library = format!(
        "#!lua name=library\nredis.register_function('burn', function(keys) {BURN} \
         return redis.call('GET', keys[1]) end)"
    );
    let script = format!("{BURN} return redis.call('GET', KEYS[1])");
    for caller in [&["EVAL", &script, "1", "k"][..], &["FCALL", "burn", "1", "k"]] {
        let server = TestServer::start(&["slowlog-log-slower-than 10000".into()]);
        let mut client = server.connect();
        client.call(&["FUNCTION", "LOAD", &library]);
        client.call(&["CONFIG", "RESETSTAT"]);
        client.call(&["SLOWLOG", "RESET"]);
        assert_eq!(client.call(caller), Reply::NullBulk);
        let name = caller[0].to_lowercase();
        let (all, get) = (microseconds(&server, &name), microseconds(&server, "get"));
        assert!(all > 4 * get, "{name}: {all} us, GET: {get} us");
        // On a busy machine the GET may be interrupted, too.
        if all >= 10_000 && get < 10_000 {
            assert_eq!(slow(&server), [format!("\"{}\"", caller[0])]);
        }
    }
}

#[test]
fn a_transaction_has_the_time_of_all_that_it_runs_and_its_commands_their_own() {
    let server = TestServer::start(&[]);
    let mut client = server.connect();
    let watch: Vec<String> =
        std::iter::once("WATCH".into()).chain((0..300_000).map(|key| format!("k{key}"))).collect();
    client.call(&watch);
    client.call(&["MULTI"]);
    client.call(&["GET", "k"]);
    client.call(&["EXEC"]);
    let (exec, get) = (microseconds(&server, "exec"), microseconds(&server, "get"));
    assert!(exec > 4 * get, "EXEC, which compares watched keys: {exec} us, GET: {get} us");
    client.call(&["MULTI"]);
    client.call(&["EVAL", BURN, "0"]);
    client.call(&["GET", "k"]);
    client.call(&["EXEC"]);
    let (exec, eval) = (microseconds(&server, "exec"), microseconds(&server, "eval"));
    assert!(exec >= eval, "EXEC: {exec} us, its EVAL: {eval} us");
}
