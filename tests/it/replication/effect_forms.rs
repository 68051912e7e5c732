//! In what form changes are repeated elsewhere where commands wait, run others, expire keys, or are
//! newer than Redis 7.0; and that what is loaded later than it was written comes to the same.
//!
//! What Redis 7.0.15 knows was read from its replication stream.

use crate::support::{Client, Reply, TestServer, decode, split_args};

/// The requests since the last time, each a line; a time that lies `ms` behind now is shown as
/// `now+ms`.
fn taken(server: &TestServer) -> String {
    // Not by a client that may be in a transaction.
    let Reply::Bulk(stream) = server.connect().call(&["DEBUG", "EFFECTS", "TAKE"]) else {
        panic!("no stream")
    };
    let now_ms = server.clock_ms();
    let mut at = 0;
    let mut lines = Vec::new();
    while let Some(reply) = (at < stream.len()).then(|| decode(&stream, &mut at)).flatten() {
        let Reply::Array(words) = reply else { panic!("no request") };
        let words = words.iter().map(|word| {
            let Reply::Bulk(bytes) = word else { panic!("no word") };
            let text = String::from_utf8_lossy(bytes).into_owned();
            match text.parse::<i64>() {
                Ok(time) if (0..10_000_000).contains(&(time - now_ms)) => {
                    format!("now+{}", time - now_ms)
                }
                _ => text,
            }
        });
        lines.push(words.collect::<Vec<_>>().join(" "));
    }
    lines.join("\n")
}

fn start(lines: &[&str]) -> (TestServer, Client) {
    let lines: Vec<String> = lines.iter().map(|line| line.to_string()).collect();
    let server = TestServer::start(&lines);
    let mut client = server.connect();
    client.call(&["DEBUG", "EFFECTS", "ON"]);
    client.call(&["SET", "begin", "1"]);
    taken(&server);
    (server, client)
}

/// Runs commands, one after the other, and compares what is repeated of each.
fn check(server: &TestServer, client: &mut Client, cases: &[(&str, &str)]) {
    for (command, expected) in cases {
        client.call(&split_args(command));
        server.settle();
        let found = taken(server);
        assert_eq!(found.replace('\n', " | "), *expected, "{command}");
    }
}

#[test]
fn for_valkey_they_are_those_of_9_1_2() {
    let (server, mut client) = start(&["compatible-with valkey-9"]);
    check(
        &server,
        &mut client,
        &[
            ("SET a 1", "SET a 1"),
            ("EXPIRE a -1", "UNLINK a"),
            ("SET a 1 PXAT 1", ""),
            ("SET a 1", "SET a 1"),
            ("SET a 2 PXAT 1", "UNLINK a"),
            ("SET a 1", "SET a 1"),
            ("GETDEL a", "DEL a"),
            ("SADD s 1 2", "SADD s 1 2"),
            ("SPOP s 2", "UNLINK s"),
            ("MSETEX 2 a 1 EX 2", "MSETEX 2 a 1 EX 2"),
            ("MSETEX 2 PX 1 b 2 NX EX 10", "MSETEX 2 PX 1 b 2 NX PXAT now+10000"),
            ("XADD y IDMP p i * f v", "XADD y 1700000000000-0 f v"),
            ("XADD y IDMP p i * f v", ""),
            ("XCFGSET y IDMP-MAXSIZE 5", ""),
            ("SELECT 3", ""),
            (
                "EVAL \"redis.call('set', 'a', 1) redis.call('set', 'b', 2)\" 0",
                "MULTI | SELECT 3 | set a 1 | set b 2 | EXEC",
            ),
        ],
    );
    client.call(&["CONFIG", "SET", "lazyfree-lazy-expire", "no"]);
    check(&server, &mut client, &[("PEXPIREAT a 1", "DEL a")]);
}

#[test]
fn what_queues_do_becomes_plain_commands() {
    let (server, mut client) = start(&[]);
    const CLAIM: &str = "0 1700000000000-0 TIME";
    const END: &str = "FORCE JUSTID LASTID 1700000000000-0";
    let taken_first = format!(
        "MULTI | XADD q 1700000000000-0 data job | ZREM later job | XCLAIM q g w {CLAIM} now+0 RETRYCOUNT 1 {END} | \
         XGROUP SETID q g 1700000000000-0 ENTRIESREAD 1 | EXEC"
    );
    let delayed = format!("XCLAIM q g :released {CLAIM} now+5000 RETRYCOUNT 1 {END}");
    let run_now = format!("XCLAIM q g w {CLAIM} now+0 RETRYCOUNT 1 {END}");
    let left = format!(
        "MULTI | XCLAIM q g :released {CLAIM} 0 RETRYCOUNT 0 {END} | XGROUP DELCONSUMER q g w | EXEC"
    );
    let fatal = format!("XCLAIM q g :released {CLAIM} 1 RETRYCOUNT {} {END}", i64::MAX);
    let buried = "MULTI | XADD dead 1700000000000-0 data job :stream q :group g :id 1700000000000-0 :consumer  :reason fatal | \
                  XACK q g 1700000000000-0 | XDEL q 1700000000000-0 | XGROUP CREATECONSUMER q g w | EXEC";
    check(
        &server,
        &mut client,
        &[
            ("ZADD later 1 job", "ZADD later 1 job"),
            ("XGROUP CREATE q g 0 MKSTREAM", "XGROUP CREATE q g 0 MKSTREAM"),
            ("XREADGROUP GROUP g w CLAIM 1000 DUE later STREAMS q >", &taken_first),
            ("XNACK q g FAIL IDS 1 1700000000000-0 OWNER w DELAY 5000", &delayed),
            ("XCLAIM q g w 0 1700000000000-0 JUSTID OWNER w", ""),
            ("XREADGROUP GROUP g w CLAIM 1 DUE later STREAMS q >", ""),
            ("XCLAIM q g w 1 1700000000000-0 JUSTID", &run_now),
            ("XGROUP DELCONSUMER q g w RELEASE", &left),
            ("XNACK q g FATAL IDS 1 1700000000000-0", &fatal),
            ("XREADGROUP GROUP g w CLAIM 1 MAXDELIVERIES 3 DEADLETTER dead STREAMS q >", buried),
            (
                "XREDRIVE dead q",
                "MULTI | XADD q 1700000000000-1 data job | XDEL dead 1700000000000-0 | EXEC",
            ),
            ("XREDRIVE dead q", ""),
            ("ZADD later 1 m", "ZADD later 1 m"),
            (
                "ZMOVEDUE later q STREAM FIELD f",
                "MULTI | XADD q 1700000000000-2 f m | ZREM later m | EXEC",
            ),
            ("ZMOVEDUE later q STREAM", ""),
            ("XGROUP CREATECONSUMER q g :paused", "XGROUP CREATECONSUMER q g :paused"),
            ("XREADGROUP GROUP g w STREAMS q >", ""),
        ],
    );
}

#[test]
fn commands_that_are_new_become_old_ones() {
    let (server, mut client) = start(&[]);
    check(
        &server,
        &mut client,
        &[
            ("SET a 1 IFNE 2", "SET a 1"),
            ("SET a 2 IFEQ 1 GET PX 5000", "SET a 2 PXAT now+5000"),
            ("SET a 3 IFEQ 2 KEEPTTL", "SET a 3 KEEPTTL"),
            ("SET a 3 IFEQ 2", ""),
            ("DELIFEQ a 2", ""),
            ("DELIFEQ a 3", "DEL a"),
            (
                "MSETEX 2 a 1 b 2 EX 5",
                "MULTI | SET a 1 PXAT now+5000 | SET b 2 PXAT now+5000 | EXEC",
            ),
            ("MSETEX 1 a 1 KEEPTTL", "SET a 1 KEEPTTL"),
            ("DELEX a IFEQ 1", "DEL a"),
            ("HSET h f 1 g 2 i 3", "HSET h f 1 g 2 i 3"),
            ("HEXPIRE h 5 FIELDS 2 f x", "HPEXPIREAT h now+5000 FIELDS 1 f"),
            ("HEXPIRE h 5 NX FIELDS 2 f g", "HPEXPIREAT h now+5000 FIELDS 1 g"),
            ("HINCRBYFLOAT h f 1.5", "HSETEX h KEEPTTL FIELDS 1 f 2.5"),
            ("HINCRBYFLOAT h i 1.5", "HSET h i 4.5"),
            ("HPEXPIRE h 0 FIELDS 2 g x", "HDEL h g"),
            ("HGETEX h PERSIST FIELDS 2 f i", "HPERSIST h FIELDS 1 f"),
            ("HGETEX h PX 70 FIELDS 1 f", "HPEXPIREAT h now+70 FIELDS 1 f"),
            ("HSETEX h PX 70 FIELDS 1 j 1", "HSETEX h PXAT now+70 FIELDS 1 j 1"),
            ("HSETEX h FIELDS 1 j 1", "HSET h j 1"),
            ("HSETEX h KEEPTTL FIELDS 1 j 1", "HSETEX h KEEPTTL FIELDS 1 j 1"),
            ("HSETEX h PXAT 1 FIELDS 2 j 1 k 1", "HDEL h j"),
            ("HGETDEL h FIELDS 2 i x", "HDEL h i"),
            ("HIMPORT PREPARE fs a b", ""),
            ("HIMPORT SET hi fs 1 2", "HSET hi a 1 b 2"),
            ("HIMPORT SET hi fs 3 4", "MULTI | DEL hi | HSET hi a 3 b 4 | EXEC"),
            ("HIMPORT SET hi fs 3", ""),
            ("BLESS SET hi NO-EVICT", "BLESS SET hi NO-EVICT"),
            ("BLESS SET hi NO-EVICT", ""),
            ("HIMPORT SET hi fs 5 6", "MULTI | HSET hi a 5 b 6 | PERSIST hi | EXEC"),
            ("BLESS CLEAR hi NO-EVICT", "BLESS CLEAR hi NO-EVICT"),
            ("BLESS CLEAR hi NO-EVICT", ""),
            ("HSET hi c 7", "HSET hi c 7"),
            ("BLESS SET hi NO-EVICT", "BLESS SET hi NO-EVICT"),
            ("HIMPORT SET hi fs 8 9", "MULTI | HSET hi a 8 b 9 | HDEL hi c | PERSIST hi | EXEC"),
            ("HIMPORT DISCARD fs", ""),
            ("XADD x 1-1 f v", "XADD x 1-1 f v"),
            ("XADD x 2-1 f v", "XADD x 2-1 f v"),
            ("XGROUP CREATE x g 0", "XGROUP CREATE x g 0"),
            ("XGROUP CREATE x i 0", "XGROUP CREATE x i 0"),
            (
                "XCLAIM x g a 0 1-1 2-1 FORCE JUSTID TIME 5",
                "MULTI | XCLAIM x g a 0 1-1 TIME 5 RETRYCOUNT 1 FORCE JUSTID LASTID 0-0 | XCLAIM x g a 0 2-1 TIME 5 RETRYCOUNT 1 FORCE JUSTID LASTID 0-0 | EXEC",
            ),
            ("XACKDEL x g ACKED IDS 2 1-1 9-9", "XACK x g 1-1"),
            ("XACKDEL x g ACKED IDS 1 9-9", ""),
            ("XDELEX x DELREF IDS 2 2-1 9-9", "MULTI | XACK x g 2-1 | XDEL x 2-1 | EXEC"),
            ("XDELEX x IDS 2 1-1 8-8", "XDEL x 1-1"),
            ("XADD x KEEPREF MAXLEN = 9 3-1 f v", "XADD x 3-1 f v"),
            ("XADD x DELREF 4-1 f v", "XADD x 4-1 f v"),
            ("XADD x 5-1 f v", "XADD x 5-1 f v"),
            ("XADD x 6-1 f v", "XADD x 6-1 f v"),
            (
                "XCLAIM x g a 0 3-1 5-1 FORCE JUSTID TIME 5 LASTID 6-1",
                "MULTI | XCLAIM x g a 0 3-1 TIME 5 RETRYCOUNT 1 FORCE JUSTID LASTID 6-1 | XCLAIM x g a 0 5-1 TIME 5 RETRYCOUNT 1 FORCE JUSTID LASTID 6-1 | EXEC",
            ),
            ("XGROUP DESTROY x i", "XGROUP DESTROY x i"),
            ("XTRIM x MAXLEN ~ 0 ACKED LIMIT 0", "XDEL x 4-1 6-1"),
            ("XTRIM x MAXLEN 1 DELREF", "MULTI | XACK x g 3-1 | XTRIM x MAXLEN = 1 | EXEC"),
            ("XTRIM x MAXLEN 0 ACKED", ""),
            (
                "XADD x DELREF MINID 6 * f v",
                "MULTI | XADD x 1700000000000-0 f v | XACK x g 5-1 | XTRIM x MAXLEN = 1 | EXEC",
            ),
            ("DEL x", "DEL x"),
            ("XADD x 1-1 f v", "XADD x 1-1 f v"),
            ("XADD x 2-1 f v", "XADD x 2-1 f v"),
            ("XGROUP CREATE x g 0", "XGROUP CREATE x g 0"),
            (
                "XREADGROUP GROUP g a COUNT 1 STREAMS x >",
                "MULTI | XCLAIM x g a 0 1-1 TIME now+0 RETRYCOUNT 1 FORCE JUSTID LASTID 1-1 | XGROUP SETID x g 1-1 ENTRIESREAD 1 | EXEC",
            ),
            (
                "XREADGROUP GROUP g b CLAIM 0 STREAMS x >",
                "MULTI | XCLAIM x g b 0 1-1 TIME now+0 RETRYCOUNT 2 FORCE JUSTID LASTID 1-1 | XCLAIM x g b 0 2-1 TIME now+0 RETRYCOUNT 1 FORCE JUSTID LASTID 2-1 | XGROUP SETID x g 2-1 ENTRIESREAD 2 | EXEC",
            ),
            ("XREADGROUP GROUP g b CLAIM 100 STREAMS x >", ""),
            (
                "XREADGROUP GROUP g c CLAIM 0 NOACK COUNT 1 STREAMS x >",
                "XCLAIM x g c 0 1-1 TIME now+0 RETRYCOUNT 3 FORCE JUSTID LASTID 2-1",
            ),
            (
                "XNACK x g SILENT IDS 3 2-1 1-1 7-7",
                "MULTI | XCLAIM x g :released 0 2-1 TIME 0 RETRYCOUNT 0 FORCE JUSTID LASTID 2-1 | XCLAIM x g :released 0 1-1 TIME 1 RETRYCOUNT 2 FORCE JUSTID LASTID 2-1 | EXEC",
            ),
            ("XNACK x g FAIL IDS 1 7-7 FORCE", ""),
            ("XCLAIM x g d 0 1-1 JUSTID OWNER c", "XGROUP CREATECONSUMER x g d"),
            ("XACK x g OWNER :released 1-1", ""),
            (
                "XCLAIM x g d 0 1-1 2-1 JUSTID TIME 5",
                "MULTI | XCLAIM x g d 0 1-1 TIME 5 RETRYCOUNT 2 FORCE JUSTID LASTID 2-1 | XCLAIM x g d 0 2-1 TIME 5 RETRYCOUNT 0 FORCE JUSTID LASTID 2-1 | EXEC",
            ),
            (
                "XCLAIM x g e 0 2-1 JUSTID TIME 5 OWNER d",
                "XCLAIM x g e 0 2-1 TIME 5 RETRYCOUNT 0 FORCE JUSTID LASTID 2-1",
            ),
            ("XNACK x g FAIL IDS 1 1-1 OWNER e", ""),
            ("XACK x g OWNER d 1-1 2-1 7-7", "XACK x g 1-1"),
            ("XACKDEL x g OWNER d IDS 1 2-1", ""),
            ("XADD y IDMP p i * f v", "XADD y IDMP p i 1700000000000-0 f v"),
            ("XADD y IDMP p i MAXLEN 1 * f v", "XADD y IDMP p i 1700000000000-0 f v"),
            (
                "XADD y IDMP p j MAXLEN 1 * f v",
                "MULTI | XADD y IDMP p j 1700000000000-1 f v | XTRIM y MAXLEN = 1 | EXEC",
            ),
            ("XIDMPRECORD y q k 1700000000000-1", "XIDMPRECORD y q k 1700000000000-1"),
            ("XIDMPRECORD y q k 1700000000000-1", ""),
            ("XCFGSET y IDMP-MAXSIZE 5", "XCFGSET y IDMP-MAXSIZE 5"),
            ("XCFGSET y IDMP-MAXSIZE 5", ""),
            ("RPUSH m 1 2 3 4", "RPUSH m 1 2 3 4"),
            ("LMOVEM m n LEFT LEFT COUNT 2 BULK", "MULTI | LPUSH n 2 1 | LPOP m 2 | EXEC"),
            ("LMOVEM m n RIGHT LEFT COUNT 9 OBO", "MULTI | LPUSH n 4 3 | RPOP m 2 | EXEC"),
            ("LMOVEM n m LEFT RIGHT", "LMOVE n m left right"),
            ("LMOVEM n n LEFT LEFT COUNT 9 BULK", ""),
            (
                "LMOVEM n n LEFT RIGHT COUNT 2 BULK",
                "MULTI | LMOVE n n left right | LMOVE n n left right | EXEC",
            ),
            ("LMOVEM n m LEFT RIGHT EXACTLY 9 BULK", ""),
            ("DEL m n", "DEL m n"),
            ("ZADD m 1.5 a 2 b", "ZADD m 1.5 a 2 b"),
            ("ZMOVE m n MIN", "MULTI | ZADD n 1.5 a | ZREM m a | EXEC"),
            ("ZMOVEMEMBER m n c", ""),
            ("ZMOVEMEMBER m n b", "MULTI | ZADD n 2 b | ZREM m b | EXEC"),
            ("ZADD m 7 a", "ZADD m 7 a"),
            ("ZUNIONSTORE o 2 m n AGGREGATE COUNT", "ZADD o 1 b 2 a"),
            (
                "ZINTERSTORE o 2 m n WEIGHTS 2 .5 AGGREGATE COUNT",
                "MULTI | DEL o | ZADD o 2.5 a | EXEC",
            ),
            ("ZUNIONSTORE o 1 missing AGGREGATE COUNT", "DEL o"),
            ("ZUNIONSTORE o 1 missing AGGREGATE COUNT", ""),
            ("INCREX q", "SET q 1 KEEPTTL"),
            ("INCREX q BYINT 5 EX 5 ENX", "SET q 6 PXAT now+5000"),
            ("INCREX q BYFLOAT 0.5 EX 9 ENX", "SET q 6.5 KEEPTTL"),
            ("INCREX q BYFLOAT 0.5 PERSIST", "SET q 7"),
            ("INCREX q UBOUND 7 PX 5", ""),
            ("INCREX q PXAT 1", "DEL q"),
            ("CL.THROTTLE q 1 1 2 0", ""),
            ("CL.THROTTLE q 1 1 2", "SET q 1700000002000000000 PXAT now+2000"),
            ("CL.THROTTLE q 1 1 2 2", ""),
            ("ZADD z 1 m 2 n 3 o 9e15 p", "ZADD z 1 m 2 n 3 o 9e15 p"),
            ("ZPOPDUE z COUNT 2", "ZREM z m n"),
            ("BZMOVEDUE z l 0", "MULTI | RPUSH l o | ZREM z o | EXEC"),
        ],
    );
}

#[test]
fn once_a_replica_of_redis_follows_entries_are_repeated_without_their_names() {
    let dir = tempfile::tempdir().expect("a temporary folder can be made");
    let folder = format!("dir {}", dir.path().display());
    let lines = [folder.as_str(), "appendonly yes", "appendfsync always"];
    let server = TestServer::start(&lines.map(str::to_owned));
    let mut client = server.connect();
    let mut add = |name: &str| client.call(&["XADD", "y", "IDMP", "p", name, "*", "f", "v"]).show();
    add("a");
    let follow = |says: &[&str]| {
        let mut replica = server.connect();
        says.iter().for_each(|says| drop(replica.call(&["REPLCONF", "capa", says])));
        replica.send(&["PSYNC", "?", "-1"]);
        server.settle();
        replica
    };
    let ours = follow(&["run-id=0123456789"]);
    add("b");
    // Redis says nothing of that kind. It may come back and continue with the backlog.
    let redis = follow(&["eof", "psync2"]);
    add("c");
    drop((ours, redis));
    server.settle();
    let last = add("d");
    assert_eq!(add("d"), last, "the names are remembered here");
    let log = std::fs::read(dir.path().join("appendonlydir/appendonly.aof.1.incr.aof"));
    let log = String::from_utf8_lossy(&log.unwrap()).replace("\r\n", " ");
    let requests = log.split("XADD").skip(1).map(|request| request.contains("IDMP"));
    assert_eq!(requests.collect::<Vec<_>>(), [true, true, false, false], "{log}");
}

#[test]
fn a_set_that_is_popped_nearly_empty_has_a_smaller_encoding_than_where_it_is_repeated() {
    let (_server, mut client) = start(&[]);
    let long = "y".repeat(80);
    client.call(&["SADD", "s", &long, "1", "2", "3", "4", "5"]);
    // The long one needs a hashtable; it is left in one of six pops.
    while !client.call(&["SPOP", "s", "5"]).show().contains(&long) {
        client.call(&["SADD", "s", "1", "2", "3", "4", "5"]);
    }
    let Reply::Bulk(stream) = client.call(&["DEBUG", "EFFECTS", "TAKE"]) else {
        panic!("no stream")
    };
    let elsewhere = TestServer::start(&[]);
    let mut reader = elsewhere.connect();
    reader.call(&[b"DEBUG", &b"EFFECTS"[..], b"LOAD", &stream]);
    assert_eq!(client.call(&["SMEMBERS", "s"]), reader.call(&["SMEMBERS", "s"]));
    assert_eq!(client.call(&["OBJECT", "ENCODING", "s"]).show(), "\"listpack\"");
    assert_eq!(reader.call(&["OBJECT", "ENCODING", "s"]).show(), "\"hashtable\"");
}

#[test]
fn who_waits_is_repeated_behind_who_serves() {
    let (server, mut client) = start(&[]);
    let mut waiting = Vec::new();
    for command in [
        "BLMOVE one two LEFT RIGHT 0",
        "BLPOP two 0",
        "BZMPOP 0 1 z MAX COUNT 5",
        "BZPOPMIN y 0",
        "BLMPOP 0 1 three RIGHT COUNT 5",
        "BRPOPLPUSH four five 0",
        "BZMOVEDUE due list 0 COUNT 5 LEFT",
        "BLMOVEM six seven LEFT LEFT 0 EXACTLY 2 BULK",
        "BZMOVE w v MAX 0",
    ] {
        let mut one = server.connect();
        one.send(&split_args(command));
        server.settle();
        waiting.push(one);
    }
    check(
        &server,
        &mut client,
        &[
            ("RPUSH one a", "RPUSH one a | LMOVE one two left right | LPOP two"),
            ("ZADD z 1 a 2 b", "ZADD z 1 a 2 b | ZPOPMAX z 2"),
            (
                "EVAL \"redis.call('zadd', 'y', 1, 'a') redis.call('set', 'k', 1)\" 0",
                "MULTI | zadd y 1 a | set k 1 | EXEC | ZPOPMIN y",
            ),
            ("RPUSH three a b", "RPUSH three a b | RPOP three 2"),
            ("RPUSH four a", "RPUSH four a | RPOPLPUSH four five"),
            ("RPUSH six a", "RPUSH six a"),
            ("RPUSH six b c", "RPUSH six b c | MULTI | LPUSH seven b a | LPOP six 2 | EXEC"),
            ("ZADD w 1 a 2 b", "ZADD w 1 a 2 b | MULTI | ZADD v 2 b | ZREM w b | EXEC"),
            ("ZADD due 1 a 2 b", "ZADD due 1 a 2 b | MULTI | LPUSH list a b | ZREM due a b | EXEC"),
        ],
    );
}

#[test]
fn a_unit_is_what_one_request_did() {
    let (server, mut client) = start(&[]);
    let eval = |body: &str| format!("EVAL \"{body}\" 0");
    let several =
        eval("redis.call('select', 3) redis.call('set', 'a', 1) redis.call('expire', 'a', 5)");
    check(
        &server,
        &mut client,
        &[
            (&several, "SELECT 3 | MULTI | set a 1 | PEXPIREAT a now+5000 | EXEC"),
            (&eval("redis.pcall('set', 'a') redis.call('get', 'a')"), ""),
            (&eval("redis.call('set', 'a', 1) redis.call('incr')"), "SELECT 0 | set a 1"),
            ("SWAPDB 0 0", "SWAPDB 0 0"),
            ("FLUSHALL ASYNC", "FLUSHALL ASYNC"),
            ("MULTI", ""),
            ("SET a 1", ""),
            ("SELECT 5", ""),
            ("INCRBYFLOAT a 1.5", ""),
            ("EXEC", "MULTI | SET a 1 | SELECT 5 | SET a 1.5 KEEPTTL | EXEC"),
            ("MULTI", ""),
            ("GET a", ""),
            ("INCR b", ""),
            ("EXEC", "INCR b"),
        ],
    );
}

#[test]
fn keys_that_go_by_themselves_are_deleted_elsewhere() {
    let (server, mut client) = start(&["lazyfree-lazy-eviction yes"]);
    client.call(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"]);
    let expire = |client: &mut Client| {
        client.call(&["SET", "a", "1", "PX", "1"]);
        client.call(&["SET", "b", "1", "PX", "1"]);
        taken(&server);
        server.advance(10_000);
    };
    expire(&mut client);
    check(
        &server,
        &mut client,
        &[("GET a", "DEL a"), ("SET b 2", "MULTI | DEL b | SET b 2 | EXEC")],
    );
    expire(&mut client);
    check(&server, &mut client, &[("MGET a b", "MULTI | DEL a | DEL b | EXEC")]);
    client.call(&["CONFIG", "SET", "lazyfree-lazy-expire", "yes"]);
    expire(&mut client);
    check(&server, &mut client, &[("EXISTS a", "UNLINK a"), ("PEXPIRE b 0", "UNLINK b")]);
    // A field that has expired unseen is deleted elsewhere before a command does not see it.
    client.call(&["HSETEX", "h", "PX", "1", "FIELDS", "1", "f", "5"]);
    client.call(&["HSET", "h", "g", "1"]);
    taken(&server);
    server.advance(10_000);
    let expected = "MULTI | HDEL h f | HINCRBY h f 1 | EXEC";
    check(&server, &mut client, &[("HINCRBY h f 1", expected)]);
    client.call(&["FLUSHALL"]);
    client.call(&["SET", "c", "1"]);
    taken(&server);
    client.call(&["CONFIG", "SET", "maxmemory-policy", "allkeys-random"]);
    check(&server, &mut client, &[("CONFIG SET maxmemory 1", "UNLINK c")]);
}

#[test]
fn a_script_that_is_rolled_back_is_not_repeated() {
    let lines = ["busy-reply-threshold 1", "busy-script-policy rollback"];
    let (server, mut client) = start(&lines);
    client.call(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"]);
    client.call(&["SET", "gone", "1", "PX", "1"]);
    taken(&server);
    server.advance(10_000);
    let body = "redis.call('set', 'a', 1) redis.call('get', 'gone') redis.call('select', 2) \
                redis.call('set', 'a', 1) while true do end";
    let endless = format!("EVAL \"{body}\" 0");
    check(
        &server,
        &mut client,
        &[
            (&endless, "DEL gone"),
            ("EXISTS a", ""),
            ("MULTI", ""),
            ("SET b 1", ""),
            (&endless, ""),
            ("SET c 1", ""),
            ("EXEC", "MULTI | SET b 1 | SET c 1 | EXEC"),
            ("MULTI", ""),
            (&endless, ""),
            ("SET c 2", ""),
            ("EXEC", "SET c 2"),
        ],
    );
}

#[test]
fn what_has_expired_meanwhile_is_there_for_the_commands_that_saw_it() {
    let (server, mut client) = start(&[]);
    for line in [
        "SET a 1 PX 1000",
        "SADD s 1",
        "PEXPIRE s 1000",
        "HSETEX h PX 1000 FIELDS 1 f 1",
        "SET forever 1 PX 1000",
        "HSETEX kept PX 1000 FIELDS 1 f 1",
    ] {
        client.call(&split_args(line));
    }
    server.advance(500_000);
    // All of these see what will long have expired when the stream is repeated.
    for line in [
        "INCR a",
        "SADD s 2",
        "HINCRBY h f 1",
        "RENAME a b",
        "SET c 1 XX",
        "PERSIST forever",
        "HPERSIST kept FIELDS 1 f",
        "PEXPIRE b 100000 LT",
        "COPY s t",
    ] {
        client.call(&split_args(line));
    }
    let Reply::Bulk(stream) = client.call(&["DEBUG", "EFFECTS", "TAKE"]) else {
        panic!("no stream")
    };
    let elsewhere = TestServer::start(&[]);
    elsewhere.step_wall((server.clock_ms() + 100 - elsewhere.clock_ms()) * 1000);
    for (ms, expected) in
        [(0, "\"b\" \"forever\" \"h\" \"kept\" \"s\" \"t\""), (60_000, "\"forever\" \"kept\"")]
    {
        elsewhere.step_wall(ms * 1000);
        let mut reader = elsewhere.connect();
        reader.call(&["FLUSHALL"]);
        reader.call(&[b"DEBUG", &b"EFFECTS"[..], b"LOAD", &stream]);
        elsewhere.settle();
        let Reply::Array(keys) = reader.call(&["KEYS", "*"]) else { panic!("no keys") };
        let mut keys: Vec<String> = keys.iter().map(Reply::show).collect();
        keys.sort();
        assert_eq!(keys.join(" "), expected, "{ms} ms later");
        assert_eq!(reader.call(&["TTL", "forever"]), Reply::Integer(-1));
        let fields = reader.call(&["HTTL", "kept", "FIELDS", "1", "f"]);
        assert_eq!(fields, Reply::Array(vec![Reply::Integer(-1)]));
    }
}

#[test]
fn locks_are_hashes_with_deadlines() {
    let (server, mut client) = start(&[]);
    let fence = (1_700_000_000_u64 << 21) + 1;
    let granted = format!(
        "MULTI | HSET jobs a 1 :fence {fence} :since now+0 | PEXPIREAT jobs now+1000 | EXEC"
    );
    let twice = format!(
        "MULTI | HSET jobs a 2 :fence {fence} :since now+0 | PEXPIREAT jobs now+5000 | EXEC"
    );
    let once = twice.replace("a 2", "a 1");
    let keep_fence = fence + 1;
    let kept = format!(
        "MULTI | DEL jobs | HSET jobs :keep 1 :fence {keep_fence} :since now+0 | PEXPIREAT jobs now+50 | EXEC"
    );
    check(
        &server,
        &mut client,
        &[
            ("LOCK.ACQUIRE jobs a PX 1000", &granted),
            ("LOCK.ACQUIRE jobs a PX 1000", ""),
            ("LOCK.ACQUIRE jobs b PX 1000", ""),
            ("LOCK.ACQUIRE jobs a PX 4000", "PEXPIREAT jobs now+4000"),
            ("LOCK.RENEW 2 jobs other a PX 5000", "PEXPIREAT jobs now+5000"),
            ("LOCK.RENEW 1 jobs a PX 1000", ""),
            ("LOCK.ACQUIRE jobs a PX 1000 REENTRANT", &twice),
            ("LOCK.RELEASE jobs a", &once),
            ("LOCK.RELEASE jobs b", ""),
            ("LOCK.GUARD jobs a", ""),
            ("LOCK.RELEASE jobs a KEEP 50", &kept),
            ("LOCK.BREAK jobs", "DEL jobs"),
            ("LOCK.BREAK jobs", ""),
        ],
    );
    client.call(&["LOCK.ACQUIRE", "jobs", "a", "PX", "1000"]);
    taken(&server);
    let mut waiting = server.connect();
    waiting.send(&["LOCK.ACQUIRE", "jobs", "b", "PX", "1000", "BLOCK", "0"]);
    server.settle();
    client.call(&["LOCK.RELEASE", "jobs", "a"]);
    server.settle();
    let handed_over =
        granted.replace("a 1", "b 1").replace(&fence.to_string(), &(fence + 3).to_string());
    assert_eq!(taken(&server).replace('\n', " | "), format!("DEL jobs | {handed_over}"));
}

#[test]
fn a_lease_that_is_extended_in_a_transaction_is_part_of_it() {
    let (server, mut client) = start(&[]);
    client.call(&split_args("LOCK.ACQUIRE jobs a PX 1000 SESSION GRACE 50"));
    client.call(&split_args("LOCK.ACQUIRE reports a PX 1000 SHARED SESSION GRACE 50"));
    server.advance(400_000);
    taken(&server);
    client.send(&["MULTI"]);
    client.send(&["LOCK.ATTACH", "a"]);
    client.send(&["SET", "done", "1"]);
    client.send(&["EXEC"]);
    server.settle();
    let effects = taken(&server);
    let lines: Vec<&str> = effects.lines().collect();
    assert_eq!(
        (lines[0], lines[lines.len() - 2..].to_vec()),
        ("MULTI", vec!["SET done 1", "EXEC"])
    );
    assert!(lines.contains(&"PEXPIREAT jobs now+1000"), "{effects}");
}

#[test]
fn readers_are_fields_with_deadlines() {
    let (server, mut client) = start(&[]);
    let first = (1_700_000_000_u64 << 21) + 1;
    let reader = |owner: &str, fence: u64, ms: i64, more: &str| {
        format!(
            "HSET jobs :r:{owner} {fence} {}{more} :fence {fence} :mode shared",
            1_700_000_000_000 + ms
        )
    };
    let renewed = |owner: &str, fence: u64, ms: i64| {
        format!("HSET jobs :r:{owner} {fence} {}", 1_700_000_000_000 + ms)
    };
    let unit = |requests: &[&str]| format!("MULTI | {} | EXEC", requests.join(" | "));
    let alone = format!("HSET jobs c 1 :fence {} :since now+0", first + 4);
    check(
        &server,
        &mut client,
        &[
            (
                "LOCK.ACQUIRE jobs a PX 1000 SHARED",
                &unit(&[&reader("a", first, 1000, ""), "PEXPIREAT jobs now+1000"]),
            ),
            ("LOCK.ACQUIRE jobs a PX 1000 SHARED", ""),
            ("LOCK.ACQUIRE jobs b PX 500 SHARED", &reader("b", first + 1, 500, "")),
            (
                "LOCK.ACQUIRE jobs c PX 3000 SHARED SESSION GRACE 50",
                &unit(&[&reader("c", first + 2, 3000, " 50 3000"), "PEXPIREAT jobs now+3000"]),
            ),
            ("LOCK.ACQUIRE jobs d PX 1000", ""),
            ("LOCK.RENEW 1 jobs b PX 2000", &renewed("b", first + 1, 2000)),
            ("LOCK.ACQUIRE jobs a PX 2500 SHARED", &renewed("a", first, 2500)),
            ("LOCK.RELEASE jobs a", "HDEL jobs :r:a"),
            ("LOCK.RELEASE jobs c", &unit(&["HDEL jobs :r:c", "PEXPIREAT jobs now+2000"])),
            ("LOCK.RELEASE jobs b", "DEL jobs"),
            (
                "LOCK.ACQUIRE jobs c PX 1000 SHARED",
                &unit(&[&reader("c", first + 3, 1000, ""), "PEXPIREAT jobs now+1000"]),
            ),
            (
                "LOCK.ACQUIRE jobs c PX 500",
                &unit(&[&alone, "PEXPIREAT jobs now+1000", "HDEL jobs :r:c :mode"]),
            ),
            (
                "LOCK.DOWNGRADE jobs c",
                &unit(&[&reader("c", first + 4, 1000, ""), "HDEL jobs c :since"]),
            ),
            ("LOCK.DOWNGRADE jobs c", ""),
            ("LOCK.BREAK jobs", "DEL jobs"),
        ],
    );
    client.call(&["LOCK.ACQUIRE", "jobs", "a", "PX", "10", "SHARED"]);
    client.call(&["LOCK.ACQUIRE", "jobs", "b", "PX", "20", "SHARED"]);
    taken(&server);
    server.advance(11_000);
    assert_eq!(taken(&server), "HDEL jobs :r:a");
    server.advance(10_000);
    assert_eq!(taken(&server), "DEL jobs");
}

/// A semaphore that keeps its limit ends later than any permit.
const END: &str = "PEXPIREAT pool 9007199254740992";

#[test]
fn semaphores_are_sorted_sets_that_end_with_their_last_permit_or_keep_a_limit() {
    let (server, mut client) = start(&[]);
    let fence = (1_700_000_000_u64 << 21) + 1;
    let unit = |requests: &[&str]| format!("MULTI | {} | EXEC", requests.join(" | "));
    let permits = format!("a#{fence}#1 a#{fence}#2");
    let limit = |number: usize| format!("ZADD pool 9007199254740992 :limit#{number}");
    let both = |ms: i64| format!("ZADD pool now+{ms} a#{fence}#1 now+{ms} a#{fence}#2");
    check(
        &server,
        &mut client,
        &[
            (
                "SEM.ACQUIRE pool a LIMIT 2 PX 1000 COUNT 2",
                &unit(&[&both(1000), "PEXPIREAT pool now+1000"]),
            ),
            (
                &format!("SEM.RENEW pool {permits} PX 2000 ALLORNONE"),
                &unit(&[&both(2000), "PEXPIREAT pool now+2000"]),
            ),
            (&format!("SEM.RENEW pool {permits} x#1#1 PX 3000 ALLORNONE"), ""),
            ("SEM.LIMIT pool 5", &unit(&[&limit(5), END])),
            ("SEM.LIMIT pool 5", ""),
            ("SEM.LIMIT pool 6", &unit(&[&limit(6), END, "ZREM pool :limit#5"])),
            (&format!("SEM.RENEW pool {permits} PX 3000"), &unit(&[&both(3000), END])),
            ("SEM.LIMIT pool 0", &unit(&["ZREM pool :limit#6", "PEXPIREAT pool now+3000"])),
            (&format!("SEM.RELEASE pool {permits} x#1#1 ALLORNONE"), ""),
            (&format!("SEM.RELEASE pool {permits} ALLORNONE"), &format!("ZREM pool {permits}")),
            ("SEM.LIMIT pool 5", &unit(&[&limit(5), END])),
            ("SEM.LIMIT pool 0", "ZREM pool :limit#5"),
        ],
    );
}
