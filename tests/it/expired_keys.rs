//! A key that has expired but still lies in its table disturbs no command that comes upon it; and
//! what is told of deadlines.

use crate::support::{Client, TestServer, split_args};

/// Strings beside the keys of a command. With 120 keys a table has room that it gives up as one of
/// 77 is deleted: whoever deletes that one moves all others.
const STRINGS_MOST: usize = 120;
const KEYS_LEFT: usize = 77;
/// Each round has other names, and so other places in the table.
const ROUNDS: usize = 12;

/// What makes the source, what makes the destination, the command, its reply, what then asks for
/// the source, and the answer.
type Case = (&'static str, &'static str, &'static str, &'static str, &'static str, &'static str);

const LIST: &str = "RPUSH @src a b c";
const SET: &str = "SADD @src a b c";
const SCORES: &str = "ZADD @src 1 a 2 b 3 c";
const OLD_LIST: &str = "RPUSH @dst x y";
const OLD_STRING: &str = "SET @dst x";
const LEFT_OF_LIST: &str = "LRANGE @src 0 -1";

const CASES: &[Case] = &[
    (LIST, OLD_LIST, "LMOVE @src @dst LEFT RIGHT", "\"a\"", LEFT_OF_LIST, "1) \"b\"\n2) \"c\""),
    (LIST, OLD_STRING, "LMOVE @src @dst LEFT RIGHT", "\"a\"", LEFT_OF_LIST, "1) \"b\"\n2) \"c\""),
    (LIST, OLD_LIST, "RPOPLPUSH @src @dst", "\"c\"", LEFT_OF_LIST, "1) \"a\"\n2) \"b\""),
    (LIST, OLD_LIST, "BLMOVE @src @dst LEFT RIGHT 0", "\"a\"", LEFT_OF_LIST, "1) \"b\"\n2) \"c\""),
    (LIST, OLD_LIST, "BRPOPLPUSH @src @dst 0", "\"c\"", LEFT_OF_LIST, "1) \"a\"\n2) \"b\""),
    (
        SCORES,
        OLD_LIST,
        "BZMOVEDUE @src @dst 0",
        "(integer) 1",
        "ZRANGE @src 0 -1",
        "1) \"b\"\n2) \"c\"",
    ),
    (SET, "SADD @dst x", "SMOVE @src @dst a", "(integer) 1", "SCARD @src", "(integer) 2"),
    (SET, "SADD @dst x", "SINTERSTORE @dst @src @src", "(integer) 3", "SCARD @src", "(integer) 3"),
    (SET, "SADD @dst x", "SUNIONSTORE @src @src @dst", "(integer) 3", "SCARD @src", "(integer) 3"),
    (SET, "SADD @dst x", "SDIFFSTORE @src @src @dst", "(integer) 3", "SCARD @src", "(integer) 3"),
    (
        SCORES,
        "ZADD @dst 1 a",
        "ZUNIONSTORE @src 2 @src @dst",
        "(integer) 3",
        "ZCARD @src",
        "(integer) 3",
    ),
    (
        SCORES,
        "ZADD @dst 1 a",
        "ZDIFFSTORE @dst 2 @src @dst",
        "(integer) 3",
        "ZCARD @src",
        "(integer) 3",
    ),
    (
        SCORES,
        "ZADD @dst 1 a",
        "ZRANGESTORE @dst @src 0 1",
        "(integer) 2",
        "ZCARD @src",
        "(integer) 3",
    ),
    ("SET @src ab", OLD_STRING, "BITOP OR @src @src @dst", "(integer) 2", "GET @src", "\"ab\""),
    ("SET @src ab", OLD_STRING, "LCS @src @dst", "\"\"", "GET @src", "\"ab\""),
    ("SET @src ab", OLD_STRING, "MSETNX @dst new @src more", "(integer) 0", "GET @src", "\"ab\""),
    ("PFADD @src a", "PFADD @dst b", "PFMERGE @src @dst", "OK", "PFCOUNT @src", "(integer) 1"),
    (
        LIST,
        OLD_STRING,
        "RENAME @src @dst",
        "OK",
        "LRANGE @dst 0 -1",
        "1) \"a\"\n2) \"b\"\n3) \"c\"",
    ),
    (LIST, OLD_STRING, "RENAMENX @src @dst", "(integer) 1", "LLEN @dst", "(integer) 3"),
    (LIST, OLD_STRING, "COPY @src @dst", "(integer) 1", "LLEN @dst", "(integer) 3"),
    (
        LIST,
        OLD_STRING,
        "SORT @src ALPHA BY @dst* GET @dst STORE @dst",
        "(integer) 3",
        "LLEN @src",
        "(integer) 3",
    ),
    (
        LIST,
        OLD_STRING,
        "LMPOP 2 @dst @src LEFT",
        "1) \"@src\"\n2) 1) \"a\"",
        LEFT_OF_LIST,
        "1) \"b\"\n2) \"c\"",
    ),
    (
        LIST,
        OLD_STRING,
        "EVAL \"redis.call('GET', KEYS[2]) return redis.call('LPOP', KEYS[1])\" 2 @src @dst",
        "\"a\"",
        "LLEN @src",
        "(integer) 2",
    ),
];

fn call(client: &mut Client, line: &str) -> String {
    client.call(&split_args(line)).show()
}

#[test]
fn an_expired_destination_moves_nothing_under_the_command() {
    let server = TestServer::start(&[]);
    let mut client = server.connect();
    call(&mut client, "DEBUG SET-ACTIVE-EXPIRE 0");
    for (source, destination, command, reply, question, answer) in CASES {
        for round in 0..ROUNDS {
            let named = |line: &str| {
                line.replace("@src", &format!("src:{round}"))
                    .replace("@dst", &format!("dst:{round}"))
            };
            call(&mut client, "FLUSHALL");
            call(&mut client, &named(source));
            call(&mut client, &named(destination));
            for number in 0..STRINGS_MOST {
                call(&mut client, &format!("SET {round}:{number} {number}"));
            }
            call(&mut client, &named("PEXPIRE @dst 1"));
            let left = KEYS_LEFT - 2;
            for number in left..STRINGS_MOST {
                call(&mut client, &format!("DEL {round}:{number}"));
            }
            server.advance(3_000);
            assert_eq!(call(&mut client, "DBSIZE"), format!("(integer) {KEYS_LEFT}"));
            assert_eq!(call(&mut client, &named(command)), named(reply), "{command}");
            assert_eq!(call(&mut client, &named(question)), *answer, "{command}");
            for number in 0..left {
                let value = call(&mut client, &format!("GET {round}:{number}"));
                assert_eq!(value, format!("\"{number}\""), "{command}");
            }
        }
    }
}

#[test]
fn an_expired_key_is_counted_and_announced_once_and_before_the_command() {
    let server = TestServer::start(&["notify-keyspace-events KEA".into()]);
    let (mut client, mut listener) = (server.connect(), server.connect());
    call(&mut client, "DEBUG SET-ACTIVE-EXPIRE 0");
    listener.call(&["PSUBSCRIBE", "__keyevent*"]);
    let mut told = |client: &mut Client, command: &str| {
        call(client, "PUBLISH __keyevent-end x");
        call(client, "SET k v PX 1");
        server.advance(3_000);
        call(client, "PUBLISH __keyevent-begin x");
        call(client, command);
        call(client, "PUBLISH __keyevent-end x");
        let mut events = Vec::new();
        let mut is_heard = false;
        loop {
            let message = listener.next_message().expect("a message").show();
            if message.contains("keyevent-end") {
                if is_heard {
                    return events;
                }
            } else if message.contains("keyevent-begin") {
                is_heard = true;
            } else if is_heard {
                let event = message.split("__:").nth(1).and_then(|rest| rest.split('"').next());
                events.push(event.expect("an event").to_owned());
            }
        }
    };
    assert_eq!(told(&mut client, "GET k"), ["expired"]);
    assert_eq!(told(&mut client, "MGET k k k"), ["expired"]);
    assert_eq!(told(&mut client, "EXISTS k k"), ["expired"]);
    assert_eq!(told(&mut client, "SET k new"), ["expired", "set"]);
    assert_eq!(told(&mut client, "APPEND k new"), ["expired", "append"]);
    assert_eq!(told(&mut client, "RPUSH k new"), ["expired", "rpush"]);
    assert_eq!(told(&mut client, "DEL k"), ["expired"]);
    assert_eq!(told(&mut client, "FLUSHALL"), [""; 0]);
    assert_eq!(
        told(&mut client, r#"EVAL "redis.call('GET', 'k') redis.call('GET', 'k')" 0"#),
        ["expired"]
    );
    call(&mut client, "SET k v PX 1");
    call(&mut client, "SET other v");
    server.advance(3_000);
    assert_eq!(call(&mut client, "DBSIZE"), "(integer) 2");
    let script = r#"EVAL "redis.call('GET', 'k') return redis.call('DBSIZE')" 0"#;
    assert_eq!(call(&mut client, script), "(integer) 1");
    let info = call(&mut client, "INFO stats");
    assert!(info.contains("expired_keys:9\\r\\n"), "{info}");
}

#[test]
fn a_deadline_is_told_alike_until_the_wall_clock_steps() {
    let server = TestServer::start(&[]);
    let mut client = server.connect();
    call(&mut client, "SET k v EX 100");
    call(&mut client, "HSET h f v");
    call(&mut client, "HPEXPIRE h 100000 FIELDS 1 f");
    let asked =
        ["PEXPIRETIME k", "EXPIRETIME k", "HPEXPIRETIME h FIELDS 1 f", "HEXPIRETIME h FIELDS 1 f"];
    let told = |client: &mut Client| asked.map(|question| call(client, question));
    let first = told(&mut client);
    // Both clocks are read one after the other: their difference wavers.
    for jitter_us in [900, -1000, 100, -900, 1900, -1500, 400] {
        server.step_wall(jitter_us);
        server.advance(1_234_567);
        assert_eq!(told(&mut client), first);
    }
    server.step_wall(60_000_000);
    let later = told(&mut client);
    for (first, later) in first.iter().zip(&later) {
        let number = |text: &str| -> i64 {
            let digits: String = text.chars().filter(char::is_ascii_digit).collect();
            digits.parse().expect("a number")
        };
        let step = if number(first) > 1_000_000_000_000 { 60_000 } else { 60 };
        assert!((number(later) - number(first) - step).abs() <= 2, "{first} {later}");
    }
}
