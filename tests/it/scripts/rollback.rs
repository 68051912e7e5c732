//! A script that is rolled back leaves no trace: whatever it has written, all keys are what they
//! were.
//!
//! Commands come from the grammar of the comparison with other servers, and from more lines here:
//! whole databases, deadlines, deadlines of fields. A run is repeated by its seed: `ROLLBACK_SEED`.

use std::collections::BTreeMap;

use crate::support::grammar::{Generator, Rule, parse, rules};
use crate::support::{Client, Reply, TestServer, seed, split_args, wait_for};

const DATABASES: usize = 3;

/// Commands that wait unless a script calls them.
const WAITING: [&[u8]; 3] = [b"BLPOP", b"BLMOVEM", b"BZMOVE"];

const MORE: &str = "
*8 SELECT 0|1|2
*3 SWAPDB 0|1|2 0|1|2
*2 FLUSHDB [ SYNC|ASYNC ]
*1 FLUSHALL
*8 MOVE k 0|1|2
*8 COPY k k DB 0|1|2 [ REPLACE ]
*12 RENAME k k
*12 EXPIRE k p
*12 PEXPIRE k r
*6 PERSIST k
*8 GETEX t [ PX r ]
*8 SET t v PX r
*6 INCR t
*6 INCREX t BYINT p UBOUND 50 SATURATE PX r
*4 CL.THROTTLE t 5 1 1
*6 DECRBY t p
*6 SETRANGE t p v
*6 BITFIELD t SET u8 p p INCRBY i5 c 1
*6 GETDEL t
*12 DEL k < k >
*6 UNLINK k < k >
*30 HPEXPIRE h r FIELDS 1 f
*10 HPERSIST h FIELDS 1 f
*6 HGETDEL h FIELDS 1 f
*6 HSETEX h PX r FIELDS 1 f v
*6 PFMERGE g g
*6 PFCOUNT g
*4 XREADGROUP GROUP grp con STREAMS x >
*6 LMOVEM l l LEFT|RIGHT LEFT|RIGHT COUNT p OBO|BULK
*4 BLMOVEM l l LEFT|RIGHT LEFT|RIGHT 0 EXACTLY 2 OBO|BULK
*6 ZMOVE z z MIN|MAX
*4 BZMOVE z z MIN|MAX 0
*4 ZMOVEMEMBER z z f
*6 XACKDEL x grp ACKED IDS 1 id
*6 XDELEX x DELREF IDS 1 id
*4 XTRIM x MAXLEN 1 DELREF
*4 XTRIM x MAXLEN 1 ACKED
*4 XADD x ACKED MAXLEN 2 * f v
*6 XNACK x grp FAIL IDS 1 id FORCE
*6 XREADGROUP GROUP grp con CLAIM 0 STREAMS x >
*6 XREADGROUP GROUP grp con CLAIM 1 DUE z UNIT MS STREAMS x >
*6 XREADGROUP GROUP grp con CLAIM 1 MAXDELIVERIES 1 DEADLETTER x STREAMS x >
*6 XNACK x grp SILENT|FAIL IDS 1 id DELAY 100000
*4 XCLAIM x grp con 0 id JUSTID OWNER con
*4 XREDRIVE x x COUNT p
*4 ZMOVEDUE z x STREAM
*2 XGROUP CREATECONSUMER x grp :paused
*4 XGROUP DELCONSUMER x grp :paused
*2 XGROUP DELCONSUMER x grp con RELEASE
*4 BLPOP l 0
*4 SPOP s
*4 SPOP s c
";

/// Runs the commands that ARGV brings, each as a number of arguments and these, and then goes on
/// for ever.
const BODY: &str = "local at = 1 \
    while at <= #ARGV do \
        local count = tonumber(ARGV[at]) \
        redis.pcall(unpack(ARGV, at + 1, at + count)) \
        at = at + count + 1 \
    end \
    while true do end";

fn number(reply: &Reply) -> i64 {
    match reply {
        Reply::Integer(number) => *number,
        other => panic!("no integer: {other:?}"),
    }
}

fn bulk(reply: Reply) -> Vec<u8> {
    match reply {
        Reply::Bulk(bytes) => bytes,
        other => panic!("no string: {other:?}"),
    }
}

fn elements(reply: Reply) -> Vec<Reply> {
    match reply {
        Reply::Array(elements) => elements,
        other => panic!("no array: {other:?}"),
    }
}

/// What can be seen of a key: its value, encoding and deadline, and those of a hash's fields.
type Seen = BTreeMap<(usize, Vec<u8>), (String, i64)>;

fn look(client: &mut Client) -> Seen {
    let mut seen = Seen::new();
    for database in 0..DATABASES {
        client.call(&["SELECT", &database.to_string()]);
        for key in elements(client.call(&["KEYS", "*"])) {
            let key = bulk(key);
            let mut ask = |words: &str| {
                let mut request = split_args(words);
                for arg in &mut request {
                    if arg == b"@" {
                        arg.clone_from(&key);
                    }
                }
                client.call(&request)
            };
            let kind = ask("TYPE @");
            let mut shown = format!("{} {}", kind.show(), ask("OBJECT ENCODING @").show());
            shown += &ask("DEBUG DIGEST-VALUE @").show();
            if kind == Reply::Simple(b"hash".to_vec()) {
                let mut fields: Vec<Vec<u8>> =
                    elements(ask("HKEYS @")).into_iter().map(bulk).collect();
                fields.sort();
                for field in fields {
                    let request = [&b"HPTTL"[..], &key, b"FIELDS", b"1", &field];
                    shown += &client.call(&request).show();
                }
            } else if kind == Reply::Simple(b"list".to_vec()) {
                shown += &ask("LRANGE @ 0 -1").show();
            } else if kind == Reply::Simple(b"stream".to_vec()) {
                shown += &ask("XINFO STREAM @ FULL").show();
            }
            let deadline = number(&client.call(&[&b"PTTL"[..], &key]));
            seen.insert((database, key), (shown, deadline));
        }
    }
    client.call(&["SELECT", "0"]);
    seen
}

fn info(client: &mut Client, section: &str, name: &str) -> String {
    let text = String::from_utf8(bulk(client.call(&["INFO", section]))).expect("text");
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name}")).to_owned()
}

fn sizes(client: &mut Client) -> Vec<i64> {
    let size = |database: usize| {
        client.call(&["SELECT", &database.to_string()]);
        number(&client.call(&["DBSIZE"]))
    };
    (0..DATABASES).map(size).collect()
}

fn all_rules() -> Vec<Rule> {
    let mut rules = rules();
    rules.extend(parse(MORE));
    rules
}

/// Makes some keys large collections, of which elements are noted when they change.
fn fill(client: &mut Client, generator: &mut Generator) {
    for (command, key, with) in [
        ("HSET", "h0", "value"),
        ("HSET", "h1", "value"),
        ("RPUSH", "l0", ""),
        ("RPUSH", "l1", ""),
        ("SADD", "s0", ""),
        ("SADD", "s1", ""),
        ("ZADD", "z0", ""),
        ("ZADD", "z1", ""),
    ] {
        client.call(&["DEL", key]);
        let mut request = vec![command.to_owned(), key.to_owned()];
        for number in 0..generator.random.usize(400..900) {
            if command == "ZADD" {
                request.push((number % 20).to_string());
            }
            request.push(format!("m{number}"));
            if !with.is_empty() {
                request.push(format!("{with}:{number}"));
            }
        }
        client.call(&request);
    }
    client.call(&["DEL", "x0"]);
    for number in 0..generator.random.usize(150..250) {
        let id = format!("{}-*", generator.stream_ms);
        generator.stream_ms += 1;
        client.call(&["XADD", "x0", &id, "field", &format!("a longer value {number}")]);
    }
    client.call(&["XGROUP", "CREATE", "x0", "grp0", "0"]);
    client.call(&["XREADGROUP", "GROUP", "grp0", "con0", "COUNT", "30", "STREAMS", "x0", ">"]);
}

fn leaves_no_trace(lines: &[&str], rounds: usize, seed: u64) {
    leaves_no_trace_of(|_, _| (), lines, rounds, seed);
}

fn leaves_no_trace_of(
    fill: impl Fn(&mut Client, &mut Generator),
    lines: &[&str],
    rounds: usize,
    seed: u64,
) {
    println!("ROLLBACK_SEED={seed}");
    let mut config = vec!["busy-reply-threshold 15".into(), "busy-script-policy rollback".into()];
    config.extend(lines.iter().map(|line| (*line).to_owned()));
    let server = TestServer::start(&config);
    let (mut client, mut watcher) = (server.connect(), server.connect());
    let mut generator = Generator::new(seed, all_rules());
    for round in 0..rounds {
        // Mostly further from where the last round has left off.
        if round % 8 == 7 {
            client.call(&["FLUSHALL"]);
        }
        for _ in 0..generator.random.usize(1..300) {
            let request = generator.request();
            if !WAITING.contains(&request.args[0].as_slice()) {
                client.call(&request.args);
            }
        }
        fill(&mut client, &mut generator);
        let before = look(&mut client);
        let digest = client.call(&["DEBUG", "DIGEST"]);
        let changes = info(&mut client, "persistence", "rdb_changes_since_last_save");
        let unwatched = format!("nobody:{round}");
        watcher.call(&["WATCH", &unwatched]);
        let mut script = vec![b"EVAL".to_vec(), BODY.into(), b"0".to_vec()];
        for _ in 0..generator.random.usize(1..120) {
            let args = generator.request().args;
            script.push(args.len().to_string().into_bytes());
            script.extend(args);
        }
        let ended = client.call(&script).show();
        assert!(ended.contains("Script killed by the server"), "{ended}");
        let after = look(&mut client);
        for (key, was) in &before {
            assert_eq!(Some(was), after.get(key), "round {round}: {key:?}");
        }
        assert_eq!(before.len(), after.len(), "round {round}");
        assert_eq!(digest, client.call(&["DEBUG", "DIGEST"]), "round {round}");
        let now = info(&mut client, "persistence", "rdb_changes_since_last_save");
        assert_eq!(changes, now, "round {round}");
        watcher.call(&["MULTI"]);
        assert_eq!(watcher.call(&["EXEC"]), Reply::Array(Vec::new()));
        // What is due goes without being looked at: the indices of deadlines hold what was put
        // back.
        let ms = generator.random.i64(1..900);
        server.advance(ms * 1000);
        server.settle();
        let sizes = sizes(&mut client);
        for (database, size) in sizes.iter().enumerate() {
            let mut keys = 0;
            for ((at, _), (shown, deadline)) in &before {
                let is_there = *deadline < 0 || *deadline >= ms;
                // A hash may have gone with its last field.
                let may_empty = shown.contains("hash");
                keys += i64::from(*at == database && is_there && !may_empty);
            }
            let hashes = before.iter().filter(|((at, _), (shown, deadline))| {
                *at == database && shown.contains("hash") && (*deadline < 0 || *deadline >= ms)
            });
            let most = keys + hashes.count() as i64;
            assert!((keys..=most).contains(size), "round {round}: {size} of {keys} to {most}");
        }
    }
}

/// Waits until the server says that it is busy.
fn wait_until_busy(client: &mut Client) {
    for _ in 0..10_000 {
        if client.call(&["PING"]).show().starts_with("(error) BUSY") {
            return;
        }
        std::thread::yield_now();
    }
    panic!("never busy");
}

/// Runs a script that never ends and kills it with ROLLBACK; what the killer is answered. The
/// script is ended without if it has to be.
fn kill(server: &TestServer, script: &[&str], container: &str) -> (String, Option<String>) {
    let (mut runner, mut killer) = (server.connect(), server.connect());
    runner.send(script);
    wait_until_busy(&mut killer);
    let answer = killer.call(&[container, "KILL", "ROLLBACK"]).show();
    let ended = (answer == "OK").then(|| runner.reply().expect("an answer").show());
    (answer, ended)
}

/// Waits until no script keeps the server busy.
fn wait_until_served(client: &mut Client) {
    wait_for("the server to be free", || (client.call(&["PING"]).show() == "PONG").then_some(()));
}

#[test]
fn kill_rollback_ends_a_script_that_has_written() {
    let server = TestServer::start(&["busy-reply-threshold 5".into()]);
    let mut client = server.connect();
    assert_eq!(
        client.call(&["SCRIPT", "KILL", "ROLLBACK"]).show(),
        "(error) NOTBUSY No scripts in execution right now."
    );
    let arity = "(error) ERR wrong number of arguments for 'script|kill' command";
    assert_eq!(client.call(&["SCRIPT", "KILL", "SOON"]).show(), arity);
    assert_eq!(client.call(&["SCRIPT", "KILL", "ROLLBACK", "x"]).show(), arity);
    client.call(&["SET", "k", "before", "PX", "5000"]);
    client.call(&["RPUSH", "l", "a"]);
    let body = "redis.call('set', 'k', 'after') redis.call('del', 'l') redis.call('flushall') redis.call('set', 'n', 1) \
                while true do pcall(function() while true do end end) end";
    // Who waits for what the script brings is served with what there is when it has ended.
    let mut waiting = server.connect();
    waiting.send(&["BLPOP", "queue", "0"]);
    let mut watching = server.connect();
    watching.call(&["WATCH", "k"]);
    let push = format!("redis.call('rpush', 'queue', 'x') {body}");
    let (answer, ended) = kill(&server, &["EVAL", &push, "0"], "SCRIPT");
    assert_eq!(answer, "OK");
    assert!(ended.expect("it has ended").contains("Script killed by user with SCRIPT KILL"));
    assert_eq!(client.call(&["GET", "k"]).show(), "\"before\"");
    assert_eq!(client.call(&["PTTL", "k"]).show(), "(integer) 5000");
    assert_eq!(client.call(&["LLEN", "l"]).show(), "(integer) 1");
    assert_eq!(client.call(&["DBSIZE"]).show(), "(integer) 2");
    watching.call(&["MULTI"]);
    assert_eq!(watching.call(&["EXEC"]), Reply::NullArray);
    client.call(&["RPUSH", "queue", "y"]);
    assert_eq!(waiting.reply().expect("an answer").show(), "1) \"queue\"\n2) \"y\"");

    let library = format!("#!lua name=l\nredis.register_function('f', function() {body} end)");
    client.call(&["FUNCTION", "LOAD", &library]);
    let (answer, ended) = kill(&server, &["FCALL", "f", "0"], "FUNCTION");
    assert_eq!(answer, "OK");
    assert!(ended.is_some());
    assert_eq!(client.call(&["GET", "k"]).show(), "\"before\"");
    assert_eq!(client.call(&["GET", "n"]).show(), "(nil)");
}

#[test]
fn what_cannot_be_put_back_is_not_put_back_by_halves() {
    let lines = ["busy-reply-threshold 5".into(), "script-undo-limit 10kb".into()];
    let server = TestServer::start(&lines);
    let mut client = server.connect();
    client.call(&["SET", "k", "before"]);
    let body = "redis.call('set', 'k', 'after') for i = 1, 1000 do redis.call('set', 'k' .. i, string.rep('x', 9000)) end \
                local n = 0 while redis.call('exists', 'k1') == 1 and n < 1000000 do n = n + 1 end";
    let (answer, _) = kill(&server, &["EVAL", body, "0"], "SCRIPT");
    assert!(
        answer.starts_with("(error) UNKILLABLE Sorry the script has changed more than"),
        "{answer}"
    );
    wait_until_served(&mut client);
    assert_eq!(client.call(&["GET", "k"]).show(), "\"after\"");
    assert_eq!(client.call(&["DBSIZE"]).show(), "(integer) 1001");
    // What the script has made itself counts. A few rounds reach the limit: a machine that is busy
    // with something else leaves the script no more than that until it is called busy.
    for body in [
        "while redis.call('exists', 'stop') == 0 do redis.call('set', 'x', string.rep('x', 9000)) redis.call('rename', 'x', 'y') n = n + 1 end",
        "while redis.call('exists', 'stop') == 0 do redis.call('set', 'x', string.rep('x', 9000)) redis.call('flushdb') n = n + 1 end",
    ] {
        let body = format!("local n = 0 {}", body.replace("== 0", "== 0 and n < 30000"));
        let (answer, _) = kill(&server, &["EVAL", &body, "0"], "SCRIPT");
        assert!(
            answer.starts_with("(error) UNKILLABLE Sorry the script has changed more"),
            "{answer}"
        );
        wait_until_served(&mut client);
    }
    // What is overwritten or deleted as a whole needs no copy, however large it is.
    client.call(&["FLUSHALL"]);
    client.call(&["CONFIG", "SET", "script-undo-limit", "64mb"]);
    client.call(&["SETRANGE", "large", "1000000", "x"]);
    let digest = client.call(&["DEBUG", "DIGEST"]);
    let body = "redis.call('rename', 'large', 'b') redis.call('set', 'b', 1) redis.call('expire', 'b', 1) \
                while true do end";
    let (answer, _) = kill(&server, &["EVAL", body, "0"], "SCRIPT");
    assert_eq!(answer, "OK");
    assert_eq!(client.call(&["DEBUG", "DIGEST"]), digest);
    // To be changed where it lies it would have to be copied.
    client.call(&["CONFIG", "SET", "script-undo-limit", "64mb", "busy-reply-threshold", "1000000"]);
    client.call(&["EVAL", "redis.call('setrange', 'large', 0, 'y')", "0"]);
    client.call(&["CONFIG", "SET", "busy-reply-threshold", "5"]);
    let body =
        "redis.call('setrange', 'large', 0, 'z') local n = 0 while n < 30000000 do n = n + 1 end";
    let (answer, _) = kill(&server, &["EVAL", body, "0"], "SCRIPT");
    assert!(answer.starts_with("(error) UNKILLABLE"), "{answer}");
    wait_until_served(&mut client);
    client.call(&["CONFIG", "SET", "busy-script-policy", "rollback"]);
    let answer = client.call(&["EVAL", body, "0"]).show();
    assert!(answer.contains("Script killed by the server"), "{answer}");
    assert_eq!(client.call(&["GETRANGE", "large", "0", "0"]).show(), "\"z\"");
}

#[test]
fn kill_readonly_spares_a_script_that_has_written() {
    let lines = ["busy-reply-threshold 5".into(), "busy-script-policy kill-readonly".into()];
    let server = TestServer::start(&lines);
    let mut client = server.connect();
    let reading = "while true do pcall(redis.call, 'get', 'k') end";
    assert!(client.call(&["EVAL", reading, "0"]).show().contains("Script killed by the server"));
    let writing =
        "redis.call('set', 'k', 1) local n = 0 while n < 30000000 do n = n + 1 end return 'done'";
    assert_eq!(client.call(&["EVAL", writing, "0"]).show(), "\"done\"");
    assert_eq!(client.call(&["GET", "k"]).show(), "\"1\"");
}

#[test]
fn large_collections_are_put_back_without_a_copy() {
    let lines = ["busy-reply-threshold 5".into(), "script-undo-limit 10mb".into()];
    let server = TestServer::start(&lines);
    let mut client = server.connect();
    let fill = "for i = 1, 20000 do redis.call('zadd', 'z', i, i) redis.call('hset', 'h', i, i) \
                redis.call('sadd', 's', 'm' .. i) redis.call('rpush', 'l', 'element ' .. i) end";
    client.call(&["CONFIG", "SET", "busy-reply-threshold", "0"]);
    assert_eq!(client.call(&["EVAL", fill, "0"]).show(), "(nil)");
    client.call(&["CONFIG", "SET", "busy-reply-threshold", "5"]);
    let digest = client.call(&["DEBUG", "DIGEST"]);
    let body = "for i = 1, 20 do redis.call('zadd', 'z', i, 100 - i, 0, 'new' .. i) redis.call('zrem', 'z', 500 + i) \
                redis.call('hset', 'h', i, 'x', 'new' .. i, 1) redis.call('hdel', 'h', i + 100) \
                redis.call('sadd', 's', 'n' .. i) redis.call('srem', 's', 'm' .. i) redis.call('spop', 's') \
                redis.call('rpush', 'l', i) redis.call('lpop', 'l') redis.call('lmove', 'l', 'l', 'right', 'left') end \
                redis.call('zremrangebyrank', 'z', 0, 9) redis.call('rename', 'z', 'y') redis.call('zadd', 'y', 5, 'z') \
                redis.call('swapdb', 0, 1) redis.call('select', 1) redis.call('del', 's') redis.call('hset', 'h', 'last', 1) \
                while true do end";
    let (answer, _) = kill(&server, &["EVAL", body, "0"], "SCRIPT");
    assert_eq!(answer, "OK");
    assert_eq!(client.call(&["DEBUG", "DIGEST"]), digest);
    // Nothing is noted any more by what an earlier script has changed.
    let ended = body.replace("while true do end", "redis.call('swapdb', 0, 1)");
    client.call(&["EVAL", &ended, "0"]);
    let digest = client.call(&["DEBUG", "DIGEST"]);
    let body = body.replace("'z'", "'y'");
    let (answer, _) = kill(&server, &["EVAL", &body, "0"], "SCRIPT");
    assert_eq!(answer, "OK");
    assert_eq!(client.call(&["DEBUG", "DIGEST"]), digest);
}

#[test]
fn a_script_that_is_rolled_back_leaves_no_trace() {
    leaves_no_trace(&[], 40, seed("ROLLBACK_SEED"));
}

#[test]
fn nor_does_one_that_changes_elements_of_large_collections() {
    leaves_no_trace_of(fill, &[], 12, seed("ROLLBACK_SEED"));
    // Lists of many short runs; sets of integers alone that are large; hashes and sorted sets that
    // grow out of their encoding.
    let lines = [
        "list-max-listpack-size 20",
        "stream-node-max-entries 7",
        "hash-max-listpack-entries 700",
        "zset-max-listpack-entries 700",
        "set-max-listpack-entries 700",
        "set-max-intset-entries 4000",
    ];
    leaves_no_trace_of(fill, &lines, 12, seed("ROLLBACK_SEED"));
}

#[test]
fn one_element_changed_for_ever_is_not_too_much() {
    let lines = ["busy-reply-threshold 100".into(), "script-undo-limit 1mb".into()];
    let server = TestServer::start(&lines);
    let mut client = server.connect();
    fill(&mut client, &mut Generator::new(1, all_rules()));
    let digest = client.call(&["DEBUG", "DIGEST"]);
    let body = "while true do redis.call('hincrby', 'h0', 'n', 1) redis.call('zincrby', 'z0', 1, 'm1') \
                redis.call('rpush', 'l0', 'x') redis.call('rpop', 'l0') end";
    let (answer, ended) = kill(&server, &["EVAL", body, "0"], "SCRIPT");
    assert_eq!(answer, "OK");
    assert!(ended.is_some());
    assert_eq!(client.call(&["DEBUG", "DIGEST"]), digest);
}

#[test]
fn nor_does_one_that_changes_large_collections() {
    let lines = [
        "hash-max-listpack-entries 2",
        "list-max-listpack-size 3",
        "set-max-intset-entries 2",
        "set-max-listpack-entries 3",
        "zset-max-listpack-entries 2",
    ];
    leaves_no_trace(&lines, 40, seed("ROLLBACK_SEED"));
}

#[test]
fn a_script_that_a_shutdown_cuts_is_not_repeated() {
    for undo in ["64mb", "0"] {
        let folder = tempfile::tempdir().expect("a folder");
        let lines = [
            format!("dir {}", folder.path().display()),
            "appendonly yes".to_owned(),
            "busy-reply-threshold 5".to_owned(),
            format!("script-undo-limit {undo}"),
        ];
        let server = TestServer::start(&lines);
        let (mut client, mut other) = (server.connect(), server.connect());
        assert_eq!(client.call(&["SET", "before", "1"]).show(), "OK");
        client.send(&["EVAL", "redis.call('set', 'cut', 1) while true do end", "0"]);
        wait_for("the script", || other.call(&["PING"]).show().contains("BUSY").then_some(()));
        other.send(&["SHUTDOWN", "NOSAVE"]);
        assert_eq!(other.reply(), None);
        drop((client, other, server));
        let server = TestServer::start(&lines);
        let keys = server.connect().call(&["KEYS", "*"]).show();
        assert_eq!(keys, "1) \"before\"", "undo {undo}");
    }
}
