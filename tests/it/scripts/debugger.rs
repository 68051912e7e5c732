//! Sessions of the debugger (SCRIPT DEBUG), as `redis-cli --ldb` and `--ldb-sync-mode` have them.
//!
//! `SCRIPTS_PEER=127.0.0.1:port` names a Redis 7.0.15, beside which all sessions run (`make peer`).
#![allow(clippy::disallowed_methods)] // child processes have the real time

use std::net::{Shutdown, SocketAddr};

use crate::support::{Client, Reply, TestServer, wait_for};

/// A script whose lines are reached in the same order by both interpreters.
const SCRIPT: &str = "local a = 1
local b = 'x\\ny\\0'
local t = {1, 2, {3, 'z'}}
local f = function(x)
  local y = x + 1
  return y
end
for i = 1, 2 do
  a = f(a)
end
redis.call('set', KEYS[1], ARGV[1])
local r = redis.call('get', KEYS[1])
redis.debug(a, b, {x = 1}, nil, true)
redis.breakpoint()
local e = redis.pcall('lpush', KEYS[1], 1)
local m = redis.call('mset', 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)
while a < 6 do
  a = a + 1
end
return {r, a}

";

/// Commands of a session; the words of one are divided by blanks, and `#` is a blank in a word.
type Session = (&'static str, &'static str, &'static [&'static str]);

const SESSIONS: &[Session] = &[
    (
        SCRIPT,
        "1 k v",
        &[
            "p", "s", "n", "b 8", "c", "b -8", "print", "p a", "p t", "p KEYS", "p ARGV", "p none",
            "b 6", "c", "t", "p", "p x", "p a", "l", "c", "b 0", "c", "s", "s", "s", "s", "s", "s",
            "s", "s", "p", "c",
        ],
    ),
    (
        SCRIPT,
        "1 k v",
        &[
            "l",
            "l 3",
            "list 0 1",
            "l 4 1",
            "w",
            "b",
            "b 5",
            "b 5",
            "b 99",
            "b x",
            "b -5",
            "b -5",
            "b 5 9",
            "b",
            "b 0",
            "h",
            "unknown",
            "r",
            "e 1+1",
            "e x#=#5",
            "e return#{1,{'a'}}",
            "e KEYS[1]",
            "e -0",
            "e nil",
            "e 1e100",
            "e 0.1",
            "e 1/0",
            "e '\\1\\200\"'",
            "r set q 1",
            "r get q",
            "r lpush q 1",
            "r mget q none",
            "r nothing",
            "r set long 0123456789012345678901234567890123456789\
             0123456789012345678901234567890123456789",
            "m 60",
            "r get long",
            "m",
            "m 0",
            "r get long",
            "m 10",
            "m",
            "redis lrange none 0 -1",
            "a",
        ],
    ),
    ("return 1", "0", &["abort"]),
    ("local x = 1\nreturn x", "0", &["s", "s"]),
    ("return 1", "nothing", &[]),
    ("return 1", "3", &[]),
    ("redis.call('nothing')\nreturn 1", "0", &["s"]),
    ("redis.call('set', 'a', 'b', 'c', 'd')\nreturn 1", "0", &["s"]),
    ("#!lua\nlocal x = 1\nreturn x", "0", &["w", "s", "p", "s"]),
    (
        "\n\nlocal x = 1\n\nif x == 1 then\n  x = 2\nelse\n  x = 3\nend\nreturn x\n\n",
        "0",
        &["w", "s", "s", "s", "s"],
    ),
    (
        "redis.setresp(3)\nlocal x = redis.call('hgetall', 'h')\nlocal y = redis.call('smembers', 's')\n\
      local z = redis.call('zscore', 'z', 'm')\nreturn redis.call('get', 'none')",
        "0",
        &["s", "s", "s", "s", "s"],
    ),
    ("redis.debug()\nreturn redis.error_reply('MY x')", "0", &["s", "s"]),
    (
        "local f = function() return redis.call('lpush', 'k') end\nlocal ok, e = pcall(f)\nreturn ok",
        "0",
        &["s", "s", "s", "p ok", "s"],
    ),
    ("return 1", "0", &["p", "\0help", "help\0", "s"]),
    ("local x = 1\nlocal y = 2\nreturn x", "0", &["step", "next"]),
    NESTED,
];

/// Variables of blocks within blocks, some with the name of an outer one.
const NESTED: Session = (
    "local a = 1
do
  local a = 2
  local b = 3
  do
    local c, a = 4, 5
    b = b + 1
  end
  b = b + 1
end
local f = function(x)
  do local x = 6
    redis.breakpoint()
    return x end
end
local r = f(7)
return r",
    "0",
    &["b 7 9", "c", "p", "p a", "p b", "p x", "c", "p", "p a", "c", "p", "p x", "p a"],
);

/// A session with the commands and words of Valkey, and what it says there.
const VALKEY_SESSION: Session = (
    "local t = {1, x = 'y'}
server.debug(t, 'a\"b', {server.call} ~= nil)
server.breakpoint()
local r = server.call('set', KEYS[1], ARGV[1])
return r",
    "1 k v",
    &[
        "s",
        "p t",
        "server get k",
        "v set k 2",
        "valkey get k",
        "redis get k",
        "m",
        "max 5",
        "maxlen",
        "max 0",
        "serv ping",
        "b 1 2",
        "s 1",
        "p ARGV",
        "s",
        "s",
        "s",
        "c",
    ],
);
const SAID_BY_VALKEY: &[&str] = &[
    "OK",
    "* Stopped at 1, stop reason = step over",
    "-> 1   local t = {1, x = 'y'}",
    "> s",
    "* Stopped at 2, stop reason = step over",
    "-> 2   server.debug(t, 'a\"b', {server.call} ~= nil)",
    "> p t",
    "<value> {[1]=1; [x]=y; }",
    "> server get k",
    "<command> get k",
    "<reply> NULL",
    "> v set k 2",
    "<command> set k 2",
    "<reply> \"+OK\"",
    "> valkey get k",
    "<command> get k",
    "<reply> \"2\"",
    "> redis get k",
    "<command> get k",
    "<reply> \"2\"",
    "> m",
    "<error> Unknown debugger command or wrong number of arguments.",
    "> max 5",
    "<value> replies are truncated at 60 bytes.",
    "> maxlen",
    "Current maxlen is 60",
    "> max 0",
    "<value> replies are not truncated.",
    "> serv ping",
    "<error> Unknown debugger command or wrong number of arguments.",
    "> b 1 2",
    "<error> Unknown debugger command or wrong number of arguments.",
    "> s 1",
    "<error> Unknown debugger command or wrong number of arguments.",
    "> p ARGV",
    "<value> {v; }",
    "> s",
    "<debug> line 2: {[1]=1; [x]=y; }, a\"b, true",
    "* Stopped at 3, stop reason = step over",
    "-> 3   server.breakpoint()",
    "> s",
    "* Stopped at 4, stop reason = server.breakpoint() called",
    "-> 4   local r = server.call('set', KEYS[1], ARGV[1])",
    "> s",
    "<command> set k v",
    "<reply> \"+OK\"",
    "* Stopped at 5, stop reason = step over",
    "-> 5   return r",
    "> c",
    "<endsession>",
    "OK",
];

/// A line without the address of a function, which differs each time.
fn without_address(line: String) -> String {
    match line.find("function@0x") {
        Some(at) => line[..at].to_owned(),
        None => line,
    }
}

/// The lines of a session.
fn session(address: SocketAddr, mode: &str, (script, arguments, commands): Session) -> Vec<String> {
    let mut client = Client::connect(address);
    client.call(&["FLUSHALL"]);
    for line in ["HSET h f v", "SADD s m", "ZADD z 1.5 m", "RPUSH l a b"] {
        client.call(&line.split(' ').collect::<Vec<_>>());
    }
    let mut lines = vec![client.call(&["SCRIPT", "DEBUG", mode]).show()];
    let mut eval = vec!["EVAL", script];
    eval.extend(arguments.split(' '));
    client.send(&eval);
    let mut commands = commands.iter();
    while let Some(reply) = client.reply() {
        let Reply::Array(logs) = &reply else {
            lines.push(reply.show());
            continue;
        };
        let text = |log: &Reply| match log {
            Reply::Simple(text) => without_address(text.escape_ascii().to_string()),
            other => other.show(),
        };
        lines.extend(logs.iter().map(text));
        if lines.last().is_some_and(|last| last == "<endsession>") {
            continue;
        }
        let Some(command) = commands.next() else {
            client.shutdown(Shutdown::Both);
            break;
        };
        lines.push(format!("> {}", command.escape_default()));
        let words: Vec<String> = command.split(' ').map(|word| word.replace('#', " ")).collect();
        client.send(&words);
    }
    let mut client = Client::connect(address);
    let keys = client.call(&["DBSIZE"]).show();
    lines.push(format!("{keys} keys"));
    lines
}

#[test]
fn a_session_steps_prints_and_changes_data_or_not() {
    let server = TestServer::start(&[]);
    for (mode, keys) in [("sync", 11), ("yes", 4)] {
        let lines = session(server.address, mode, SESSIONS[3]);
        let expected = [
            "OK",
            "* Stopped at 1, stop reason = step over",
            "-> 1   local x = 1",
            "> s",
            "* Stopped at 2, stop reason = step over",
            "-> 2   return x",
            "> s",
            "<endsession>",
            "(integer) 1",
            "(integer) 4 keys",
        ];
        assert_eq!(lines, expected, "{mode}");
        let lines = session(server.address, mode, SESSIONS[7]);
        let error = "-ERR syntax error";
        assert!(lines.iter().any(|line| *line == format!("<error> {error}")), "{lines:#?}");
        let lines = session(server.address, mode, SESSIONS[0]);
        assert_eq!(lines.last(), Some(&format!("(integer) {keys} keys")));
        let said = |line: &str| lines.iter().any(|said| said == line);
        for line in [
            "<value> a = 1",
            "<value> {1; 2; {3; \"z\"}}",
            "<value> {\"k\"}",
            "No such variable.",
            "* Stopped at 6, stop reason = break point",
            "In f:",
            "From top level:",
            "<debug> line 13: 3, \"x\\ny\\x00\", {[\"x\"]=1}, nil, true",
            "* Stopped at 15, stop reason = redis.breakpoint() called",
            "<redis> lpush k 1",
            "<redis> mset 1 2 3 4 5 6 7 8 9 ... (2 more)",
            "<reply> \"+OK\"",
            "<endsession>",
        ] {
            let line = line.as_bytes().escape_ascii().to_string();
            assert!(said(&line), "{mode}: {line}: {lines:#?}");
        }
    }
}

#[test]
fn variables_are_printed_in_the_order_of_their_declaration() {
    let server = TestServer::start(&[]);
    for mode in ["sync", "yes"] {
        let lines = session(server.address, mode, NESTED);
        let values: Vec<&str> =
            lines.iter().filter_map(|line| line.strip_prefix("<value> ")).collect();
        let expected = [
            "a = 1", "a = 2", "b = 3", "c = 4", "a = 5", "1", "3", "a = 1", "a = 2", "b = 4", "1",
            "x = 7", "x = 6", "7", "1",
        ];
        assert_eq!(values, expected, "{mode}: {lines:#?}");
    }
}

#[test]
fn a_forked_session_holds_nobody_up_and_ends_with_its_client() {
    let server = TestServer::start(&[]);
    let mut client = server.connect();
    client.call(&["SET", "k", "before"]);
    let mut debugging = server.connect();
    debugging.call(&["SCRIPT", "DEBUG", "YES"]);
    debugging.send(&[
        "EVAL",
        "local v = redis.call('get', 'k')\nredis.call('set', 'k', 'x')\nreturn v",
        "0",
    ]);
    assert!(debugging.reply().is_some());
    // The server goes on; the session has the data of its beginning.
    client.call(&["SET", "k", "meanwhile"]);
    assert_eq!(client.call(&["GET", "k"]).show(), "\"meanwhile\"");
    let seen = debugging.call(&["redis", "get", "k"]).show();
    assert!(seen.contains("before"), "{seen}");
    // At most some sessions at once.
    let mut others: Vec<Client> = Vec::new();
    let refused = loop {
        let mut other = server.connect();
        other.call(&["SCRIPT", "DEBUG", "YES"]);
        let reply = other.call(&["EVAL", "return 1", "0"]);
        if matches!(reply, Reply::Error(_)) {
            break reply.show();
        }
        others.push(other);
        assert!(others.len() < 20);
    };
    assert_eq!(
        (refused.as_str(), others.len()),
        ("(error) ERR Too many scripts are being debugged", 7)
    );
    // Those whose clients go away end.
    drop(others);
    wait_for("a place for another", || {
        let mut other = server.connect();
        other.call(&["SCRIPT", "DEBUG", "YES"]);
        let reply = other.call(&["EVAL", "return 1", "0"]);
        (!matches!(reply, Reply::Error(_))).then_some(())
    });
    debugging.send(&["c"]);
    assert!(debugging.reply().is_some_and(|reply| reply.show().contains("<endsession>")));
    assert_eq!(debugging.reply().map(|reply| reply.show()), Some("\"before\"".into()));
    assert!(debugging.reply().is_none());
    assert_eq!(client.call(&["GET", "k"]).show(), "\"meanwhile\"");
    // An endless script of a client that is gone does not stay.
    client.call(&["CONFIG", "SET", "busy-reply-threshold", "1"]);
    let mut endless = server.connect();
    endless.call(&["SCRIPT", "DEBUG", "YES"]);
    endless.call(&["EVAL", "local i = 0\nwhile true do\n  i = i + 1\nend", "0"]);
    endless.shutdown(Shutdown::Both);
    // SHUTDOWN ends those that are left.
    let mut last = server.connect();
    last.call(&["SCRIPT", "DEBUG", "YES"]);
    last.call(&["EVAL", "return 1", "0"]);
    drop(server);
    assert!(last.reply().is_none());
}

#[test]
fn only_an_eval_outside_of_transactions_is_debugged() {
    let server = TestServer::start(&[]);
    let mut client = server.connect();
    assert_eq!(client.call(&["SCRIPT", "DEBUG", "SYNC"]).show(), "OK");
    client.call(&["MULTI"]);
    client.call(&["EVAL", "return redis.breakpoint()", "0"]);
    assert_eq!(client.call(&["EXEC"]).show(), "1) (nil)");
    let sha = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db";
    assert_eq!(
        client.call(&["EVALSHA", sha, "0"]).show(),
        "(error) ERR Please use EVAL instead of EVALSHA for debugging"
    );
    assert_eq!(client.call(&["SCRIPT", "DEBUG", "NO"]).show(), "OK");
    assert_eq!(client.call(&["EVAL", "return 1", "0"]).show(), "(integer) 1");
    assert_eq!(
        client.call(&["SCRIPT", "DEBUG", "maybe"]).show(),
        "(error) ERR Use SCRIPT DEBUG YES/SYNC/NO"
    );
    client.send_raw(b"*1\r\n$4\r\nPING\r\n*3\r\n$6\r\nSCRIPT\r\n$5\r\nDEBUG\r\n$3\r\nYES\r\n");
    assert_eq!(client.reply().map(|reply| reply.show()), Some("PONG".into()));
    let refused = client.reply().map(|reply| reply.show());
    let expected = "(error) ERR SCRIPT DEBUG must be called outside a pipeline";
    assert_eq!(refused, Some(expected.into()));
    // Another client's scripts run as always, also after a session.
    assert_eq!(server.connect().call(&["EVAL", "return redis.breakpoint()", "0"]).show(), "(nil)");
    let mut broken = server.connect();
    broken.call(&["SCRIPT", "DEBUG", "SYNC"]);
    broken.call(&["EVAL", "return 1", "0"]);
    broken.send_raw(b"*1\r\nx\r\n");
    assert!(broken.reply().is_some_and(|reply| reply.show().contains("<endsession>")));
    let error = broken.reply().map(|reply| reply.show()).unwrap_or_default();
    assert!(error.contains("protocol error"), "{error}");
    assert_eq!(server.connect().call(&["EVAL", "return redis.breakpoint()", "0"]).show(), "(nil)");
}

/// `VALKEY_SCRIPTS_PEER=127.0.0.1:port` tells whether the table is right itself.
#[test]
fn the_words_are_those_of_valkey_under_its_dialect() {
    let server = TestServer::start(&["compatible-with valkey-9".into()]);
    let peer = std::env::var("VALKEY_SCRIPTS_PEER").ok();
    let address = peer.map_or(server.address, |peer| peer.parse().expect("an address"));
    for mode in ["sync", "yes"] {
        let lines = session(address, mode, VALKEY_SESSION);
        let expected = SAID_BY_VALKEY.iter().map(|line| line.as_bytes().escape_ascii().to_string());
        let expected: Vec<String> = expected.collect();
        let (said, last) = lines.split_at(lines.len() - 1);
        for (number, (line, wanted)) in said.iter().zip(&expected).enumerate() {
            let is_own = line.starts_with('>') || line == "OK";
            assert!(line == wanted || is_own, "{mode}, {number}: {line} instead of {wanted}");
        }
        assert_eq!((said.len(), last.len()), (expected.len(), 1), "{mode}");
    }
}

#[test]
#[ignore = "needs SCRIPTS_PEER=host:port"]
fn sessions_have_the_words_of_the_peer() {
    let peer = std::env::var("SCRIPTS_PEER").expect("SCRIPTS_PEER names a server");
    let peer: SocketAddr = peer.parse().expect("an address");
    let server = TestServer::start(&[]);
    for (number, one) in SESSIONS.iter().enumerate() {
        for mode in ["sync", "yes"] {
            let (theirs, ours) = (session(peer, mode, *one), session(server.address, mode, *one));
            assert_eq!(ours, theirs, "session {number}, {mode}");
        }
    }
}
