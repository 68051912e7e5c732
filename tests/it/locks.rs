//! Locks over restarts, promotions and lost connections.

use crate::support::{Client, Reply, TestServer};

const DAY_US: i64 = 24 * 3_600 * 1_000_000;

fn start(dir: &std::path::Path, lines: &[&str]) -> TestServer {
    let mut all = vec![format!("dir {}", dir.display())];
    all.extend(lines.iter().map(|line| (*line).to_owned()));
    TestServer::start(&all)
}

fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

/// The fence and the milliseconds left of a lock that is granted.
fn granted(client: &mut Client, line: &str) -> (i64, i64) {
    match client.call(&words(line)) {
        Reply::Array(items) => match items[..] {
            [Reply::Integer(fence), _, Reply::Integer(ms_left)] => (fence, ms_left),
            _ => panic!("{line}: not granted: {items:?}"),
        },
        reply => panic!("{line}: {reply:?}"),
    }
}

fn integer(client: &mut Client, line: &str) -> i64 {
    match client.call(&words(line)) {
        Reply::Integer(number) => number,
        reply => panic!("{line}: {reply:?}"),
    }
}

fn listed(client: &mut Client) -> usize {
    match client.call(&["LOCK.LIST"]) {
        Reply::Array(items) => match &items[1] {
            Reply::Array(locks) => locks.len(),
            reply => panic!("{reply:?}"),
        },
        reply => panic!("{reply:?}"),
    }
}

#[test]
fn locks_are_back_after_a_restart_and_fences_go_on_growing() {
    for lines in [&["appendonly yes"][..], &["appendonly yes", "aof-use-rdb-preamble no"], &[]] {
        let dir = tempfile::tempdir().expect("a folder");
        let server = start(dir.path(), lines);
        let mut client = server.connect();
        let (fence, _) = granted(&mut client, "LOCK.ACQUIRE jobs alice PX 60000");
        granted(&mut client, "LOCK.ACQUIRE kept bob PX 60000 SESSION GRACE 5000");
        // One that a listpack does not hold.
        let long = "w".repeat(200);
        granted(&mut client, &format!("LOCK.ACQUIRE long {long} PX 60000 SESSION GRACE 5000"));
        let (last, _) = granted(&mut client, "LOCK.ACQUIRE gone carol PX 60000");
        integer(&mut client, "LOCK.RELEASE gone carol");
        // A rewritten file and one that goes on from there.
        if lines.len() == 1 {
            client.call(&["BGREWRITEAOF"]);
            server.settle();
            server.advance(1_000_000);
        }
        client.call(&if lines.is_empty() { ["SAVE"] } else { ["PING"] });
        drop(server);

        let server = start(dir.path(), lines);
        // Somebody has set the clock back meanwhile.
        server.step_wall(-DAY_US);
        let mut client = server.connect();
        assert_eq!(listed(&mut client), 3, "{lines:?}");
        assert_eq!(integer(&mut client, "LOCK.GUARD jobs alice"), 1);
        let (again, _) = granted(&mut client, "LOCK.ACQUIRE jobs alice PX 1");
        assert_eq!(again, fence, "{lines:?}");
        let (next, _) = granted(&mut client, "LOCK.ACQUIRE other dave PX 1000");
        assert!(next > last, "{lines:?}: {next} after {last}");
        // The connection of a session is gone with the process.
        assert!((1..=5000).contains(&integer(&mut client, "PTTL kept")), "{lines:?}");
        assert!((1..=5000).contains(&integer(&mut client, "PTTL long")), "{lines:?}");
        assert_eq!(integer(&mut client, "LOCK.ATTACH bob"), 1);
        assert_eq!(integer(&mut client, "PTTL kept"), 60_000);
    }
}

#[test]
fn a_promoted_replica_has_the_locks_and_grants_higher_fences() {
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let primary = start(folders[0].path(), &[]);
    let replica = start(folders[1].path(), &[]);
    let mut client = primary.connect();
    granted(&mut client, "LOCK.ACQUIRE early alice PX 60000");
    let port = primary.address.port().to_string();
    let mut there = replica.connect();
    there.call(&["REPLICAOF", "127.0.0.1", &port]);
    crate::support::wait_for("the replica", || {
        primary.advance(100_000);
        replica.advance(100_000);
        let reply = there.call(&["ROLE"]).show();
        reply.contains("connected").then_some(())
    });
    let (last, _) = granted(&mut client, "LOCK.ACQUIRE jobs alice PX 60000 SESSION GRACE 2000");
    crate::support::wait_for("the lock", || {
        primary.advance(1000);
        replica.advance(1000);
        (listed(&mut there) == 2).then_some(())
    });
    there.call(&["REPLICAOF", "NO", "ONE"]);
    assert_eq!(listed(&mut there), 2);
    assert_eq!(integer(&mut there, "LOCK.GUARD jobs alice"), 1);
    let left = integer(&mut there, "PTTL jobs");
    assert!((1..=2000).contains(&left), "a session has its grace after a promotion: {left}");
    let (next, _) = granted(&mut there, "LOCK.ACQUIRE other bob PX 1000");
    assert!(next >> 21 > last >> 21, "{next} after {last}");
}

#[test]
fn a_grant_whose_client_is_killed_before_the_reply_leaves_is_passed_on() {
    let server = TestServer::start(&[]);
    let [mut holder, mut killed, mut next] = [(); 3].map(|()| server.connect());
    let id = integer(&mut killed, "CLIENT ID").to_string();
    granted(&mut holder, "LOCK.ACQUIRE jobs alice PX 60000");
    killed.send(&words("LOCK.ACQUIRE jobs bob PX 60000 BLOCK 0"));
    server.settle();
    next.send(&words("LOCK.ACQUIRE jobs carol PX 60000 BLOCK 0"));
    server.settle();
    // In one turn: bob is granted the lock, and killed before the reply leaves.
    let mut pipeline = crate::support::encode(&["LOCK.RELEASE", "jobs", "alice"]);
    pipeline.extend(crate::support::encode(&["CLIENT", "KILL", "ID", &id]));
    holder.send_raw(&pipeline);
    assert_eq!(holder.reply(), Some(Reply::Integer(0)));
    assert_eq!(holder.reply(), Some(Reply::Integer(1)));
    server.settle();
    let reply = next.reply().expect("carol is served").show();
    assert!(reply.contains("(integer) 60000"), "{reply}");
    assert_eq!(integer(&mut holder, "LOCK.GUARD jobs carol"), 1);
}

#[test]
fn locks_are_never_evicted() {
    let server =
        TestServer::start(&["maxmemory-policy volatile-ttl".into(), "maxmemory-samples 3".into()]);
    let mut client = server.connect();
    for number in 0..200 {
        granted(&mut client, &format!("LOCK.ACQUIRE lock:{number} alice PX 100"));
    }
    for policy in
        ["volatile-ttl", "allkeys-lru", "allkeys-random", "volatile-random", "allkeys-lfu"]
    {
        client.call(&["CONFIG", "SET", "maxmemory", "0"]);
        client.call(&["CONFIG", "SET", "maxmemory-policy", policy]);
        for number in 0..100 {
            let key = format!("data:{number}");
            client.call(&["SET", &key, &"x".repeat(1000), "PX", "100000"]);
        }
        client.call(&["CONFIG", "SET", "maxmemory", "1"]);
        for _ in 0..300 {
            client.call(&["SET", "more", "x"]);
        }
        assert_eq!(listed_all(&mut client), 200, "{policy}");
        let Reply::Array(keys) = client.call(&["KEYS", "data:*"]) else { panic!("no keys") };
        assert!(keys.len() < 100, "{policy}: nothing was evicted");
    }
}

fn listed_all(client: &mut Client) -> usize {
    match client.call(&["LOCK.LIST", "COUNT", "1000"]) {
        Reply::Array(items) => match &items[1] {
            Reply::Array(locks) => locks.len(),
            reply => panic!("{reply:?}"),
        },
        reply => panic!("{reply:?}"),
    }
}

#[test]
fn a_script_that_is_rolled_back_gives_back_the_locks_that_it_released() {
    let server = TestServer::start(&[
        "busy-reply-threshold 10".into(),
        "busy-script-policy rollback".into(),
    ]);
    let [mut holder, mut other] = [(); 2].map(|()| server.connect());
    let (fence, _) = granted(&mut holder, "LOCK.ACQUIRE held alice PX 60000 SESSION GRACE 500");
    granted(&mut holder, "LOCK.ACQUIRE broken alice PX 60000");
    let script = "redis.call('LOCK.RELEASE', 'held', 'alice') redis.call('LOCK.BREAK', 'broken') \
                  redis.call('LOCK.ACQUIRE', 'held', 'bob', 'PX', 1000) \
                  redis.call('LOCK.ACQUIRE', 'new', 'bob', 'PX', 1000) while true do end";
    let reply = other.call(&["EVAL", script, "0"]);
    assert!(matches!(reply, Reply::Error(_)), "{reply:?}");
    server.settle();
    assert_eq!(listed(&mut other), 2);
    let guard = format!("LOCK.GUARD held alice FENCE {fence}");
    assert_eq!(integer(&mut other, &guard), 1);
    // Its session still belongs to its connection.
    drop(holder);
    server.settle();
    assert_eq!(integer(&mut other, "PTTL held"), 500);
}

#[test]
fn semaphores_and_kept_locks_are_not_evicted_either() {
    let server = TestServer::start(&["maxmemory-policy allkeys-random".into()]);
    let mut client = server.connect();
    client.call(&words("SEM.ACQUIRE pool alice LIMIT 3 PX 600000 COUNT 3"));
    granted(&mut client, "LOCK.ACQUIRE kept alice PX 600000");
    integer(&mut client, "LOCK.RELEASE kept alice KEEP 600000");
    for number in 0..50 {
        client.call(&["SET", &format!("data:{number}"), &"x".repeat(1000)]);
    }
    client.call(&["CONFIG", "SET", "maxmemory", "1"]);
    for _ in 0..300 {
        client.call(&["SET", "more", "x"]);
    }
    assert_eq!(integer(&mut client, "EXISTS pool kept"), 2);
    assert_eq!(integer(&mut client, "EXISTS data:1 data:2 data:3"), 0);
}
