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
pub fn granted(client: &mut Client, line: &str) -> (i64, i64) {
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

/// The fence of a permit that is granted.
fn permitted(client: &mut Client, line: &str) -> i64 {
    match client.call(&words(line)) {
        Reply::Array(items) => match items[..] {
            [Reply::Array(_), Reply::Integer(fence), _] => fence,
            _ => panic!("{line}: not granted: {items:?}"),
        },
        reply => panic!("{line}: {reply:?}"),
    }
}

/// The time does not help: it starts again within a second.
#[test]
fn fences_of_semaphores_go_on_growing_after_a_restart() {
    for lines in [&["appendonly yes"][..], &["appendonly yes", "aof-use-rdb-preamble no"], &[]] {
        let dir = tempfile::tempdir().expect("a folder");
        let server = start(dir.path(), lines);
        let mut client = server.connect();
        permitted(&mut client, "SEM.ACQUIRE kept alice LIMIT 2 PX 60000");
        let last = permitted(&mut client, "SEM.ACQUIRE gone bob LIMIT 2 PX 60000");
        let permit = format!("SEM.RELEASE gone bob#{last}#1");
        assert_eq!(integer(&mut client, &permit), 1);
        client.call(&if lines.is_empty() { ["SAVE"] } else { ["PING"] });
        drop(server);

        let server = start(dir.path(), lines);
        let mut client = server.connect();
        let next = permitted(&mut client, "SEM.ACQUIRE other carol LIMIT 2 PX 60000");
        assert!(next > last, "{lines:?}: {next} after {last}");
    }
}

/// Makes `replica` follow `primary`, and waits for the link. Returns a client of the replica.
fn following(replica: &TestServer, primary: &TestServer) -> Client {
    let port = primary.address.port().to_string();
    let mut there = replica.connect();
    there.call(&["REPLICAOF", "127.0.0.1", &port]);
    crate::support::wait_for("the replica", || {
        primary.advance(100_000);
        replica.advance(100_000);
        there.call(&["ROLE"]).show().contains("connected").then_some(())
    });
    there
}

#[test]
fn a_promoted_replica_has_the_locks_and_grants_higher_fences() {
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let primary = start(folders[0].path(), &[]);
    let replica = start(folders[1].path(), &[]);
    let mut client = primary.connect();
    granted(&mut client, "LOCK.ACQUIRE early alice PX 60000");
    let mut there = following(&replica, &primary);
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
fn a_lease_is_not_moved_by_a_clock_that_is_set_after_a_restart() {
    let dir = tempfile::tempdir().expect("a folder");
    let lines = &["appendonly yes"];
    let server = start(dir.path(), lines);
    let mut client = server.connect();
    granted(&mut client, "LOCK.ACQUIRE jobs alice PX 60000");
    drop(server);
    let server = start(dir.path(), lines);
    let mut client = server.connect();
    server.step_wall(DAY_US);
    assert_eq!(integer(&mut client, "LOCK.GUARD jobs alice"), 1);
    let reply = client.call(&["DEBUG", "RELOAD"]).show();
    assert_eq!(reply, "OK");
    server.step_wall(-2 * DAY_US);
    assert!((1..=60_000).contains(&integer(&mut client, "PTTL jobs")));
}

#[test]
fn a_session_goes_on_if_the_next_turn_comes_a_little_late() {
    let server = TestServer::start(&[]);
    let [mut holder, mut other] = [(); 2].map(|()| server.connect());
    granted(&mut holder, "LOCK.ACQUIRE jobs alice PX 60 SESSION GRACE 1");
    server.advance(50_000);
    holder.call(&["PING"]);
    // The server looks after it, and has heard nothing since.
    server.advance(30_000);
    server.advance(10_000);
    holder.call(&["PING"]);
    // Its lease ends meanwhile.
    server.advance(25_000);
    assert_eq!(integer(&mut other, "LOCK.GUARD jobs alice"), 1);
    assert_eq!(integer(&mut other, "PTTL jobs"), 35);
    server.advance(36_000);
    assert_eq!(integer(&mut other, "LOCK.GUARD jobs alice"), 0);
}

#[test]
fn a_wait_that_ends_during_a_pause_leaves_a_lease_to_its_session() {
    let server = TestServer::start(&[]);
    let [mut holder, mut waiting, mut other] = [(); 3].map(|()| server.connect());
    granted(&mut holder, "LOCK.ACQUIRE jobs alice PX 1000 SESSION GRACE 1");
    waiting.send(&words("LOCK.ACQUIRE jobs bob PX 1000 BLOCK 1500"));
    server.settle();
    other.call(&words("CLIENT PAUSE 2000 ALL"));
    // The lease has ended when the wait ends.
    server.advance(1_600_000);
    assert!(waiting.reply().expect("it is over").show().starts_with("1) (integer) 0"));
    holder.send(&words("LOCK.GUARD jobs alice"));
    server.settle();
    server.advance(500_000);
    assert_eq!(holder.reply(), Some(Reply::Integer(1)));
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
fn a_grant_whose_reply_was_sent_stays_though_its_client_quits_in_the_same_packet() {
    let server = TestServer::start(&[]);
    let mut other = server.connect();
    for (request, look) in [
        ("LOCK.ACQUIRE a alice PX 60000", "LOCK.GUARD a alice"),
        ("LOCK.ACQUIRE b alice PX 60000 SHARED", "LOCK.GUARD b alice"),
        ("LOCK.MACQUIRE 1 c alice PX 60000", "LOCK.GUARD c alice"),
        ("SEM.ACQUIRE d alice LIMIT 1 PX 60000", "ZCARD d"),
        ("EVAL return(redis.call('LOCK.ACQUIRE','e','alice','PX',60000)) 0", "LOCK.GUARD e alice"),
    ] {
        let mut client = server.connect();
        let mut packet = crate::support::encode(&words(request));
        packet.extend(crate::support::encode(&["QUIT"]));
        client.send_raw(&packet);
        assert!(matches!(client.reply(), Some(Reply::Array(_))), "{request}");
        assert_eq!(client.reply(), Some(Reply::Simple(b"OK".to_vec())), "{request}");
        server.settle();
        assert_eq!(integer(&mut other, look), 1, "{request}");
    }
}

#[test]
fn a_reader_that_never_learns_that_it_is_the_writer_stays_a_reader_with_its_fence() {
    let server = TestServer::start(&[]);
    let [mut reader, mut second, mut killed] = [(); 3].map(|()| server.connect());
    let id = integer(&mut killed, "CLIENT ID").to_string();
    let (fence, _) = granted(&mut reader, "LOCK.ACQUIRE jobs alice PX 60000 SHARED");
    granted(&mut second, "LOCK.ACQUIRE jobs bob PX 60000 SHARED");
    killed.send(&words("LOCK.ACQUIRE jobs alice PX 90000 BLOCK 0"));
    server.settle();
    // In one turn: alice becomes the writer, and the client that asked is killed.
    let mut pipeline = crate::support::encode(&["LOCK.RELEASE", "jobs", "bob"]);
    pipeline.extend(crate::support::encode(&["CLIENT", "KILL", "ID", &id]));
    second.send_raw(&pipeline);
    assert_eq!(second.reply(), Some(Reply::Integer(0)));
    assert_eq!(second.reply(), Some(Reply::Integer(1)));
    server.settle();
    let owners = readers(&mut second, "jobs");
    assert_eq!(owners.len(), 1);
    assert_eq!(owners[0].0, "alice");
    assert_eq!(integer(&mut reader, &format!("LOCK.GUARD jobs alice FENCE {fence}")), 1);
    // Others may read again, too.
    granted(&mut second, "LOCK.ACQUIRE jobs bob PX 60000 SHARED");
    assert_eq!(integer(&mut reader, &format!("LOCK.RELEASE jobs alice FENCE {fence}")), 0);
}

#[test]
fn a_script_that_is_rolled_back_has_told_nobody_that_a_lock_is_lost() {
    let server = TestServer::start(&[
        "busy-reply-threshold 10".into(),
        "busy-script-policy rollback".into(),
    ]);
    let [mut holder, mut other] = [(); 2].map(|()| server.connect());
    holder.call(&["HELLO", "3"]);
    granted(&mut holder, "LOCK.ACQUIRE broken alice PX 60000");
    granted(&mut holder, "LOCK.ACQUIRE shared alice PX 60000 SHARED");
    granted(&mut other, "LOCK.ACQUIRE shared bob PX 60000 SHARED");
    granted(&mut holder, "LOCK.ACQUIRE deleted alice PX 60000");
    let loses = "redis.call('LOCK.BREAK', 'broken') redis.call('LOCK.BREAK', 'shared') \
                 redis.call('DEL', 'deleted') redis.call('LOCK.ACQUIRE', 'deleted', 'bob', 'PX', 9)";
    let reply = other.call(&["EVAL", &format!("{loses} while true do end"), "0"]);
    assert!(matches!(reply, Reply::Error(_)), "{reply:?}");
    server.settle();
    holder.call(&["PING"]);
    assert_eq!(holder.pushes, []);
    let info = other.call(&["INFO", "locks"]).show();
    assert!(info.contains("lock_broken_total:0"), "{info}");
    assert!(other.call(&["LOCK.INFO", "broken"]).show().contains("\"last-end\"\n"), "no end");
    // One that ends by itself tells it.
    assert_eq!(other.call(&["EVAL", loses, "0"]), Reply::NullBulk);
    holder.call(&["PING"]);
    assert_eq!(holder.pushes.len(), 3, "{:?}", holder.pushes);
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

#[test]
fn what_may_be_evicted_is_found_among_locks() {
    let server = TestServer::start(&["maxmemory-samples 1".into()]);
    let mut client = server.connect();
    for number in 0..20 {
        granted(&mut client, &format!("LOCK.ACQUIRE lock:{number} alice PX 60000"));
    }
    client.call(&["SELECT", "1"]);
    for policy in ["volatile-random", "allkeys-random", "volatile-lru", "allkeys-lfu"] {
        for number in 0..20 {
            client.call(&["SET", &format!("data:{number}"), &"x".repeat(1000), "PX", "100000"]);
        }
        client.call(&["CONFIG", "SET", "maxmemory-policy", policy]);
        client.call(&["CONFIG", "SET", "maxmemory", "1"]);
        // Refused in the end, as the limit cannot be kept: but only after the others have gone.
        client.call(&["SET", "more", "x"]);
        assert!(integer(&mut client, "DBSIZE") < 10, "{policy} found only locks");
        client.call(&["CONFIG", "SET", "maxmemory", "0"]);
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

/// Each command that changes what the server remembers of locks and permits beside their keys, in a
/// script that is rolled back: everything is as it was, and nothing hangs on the script's client.
#[test]
fn a_script_that_is_rolled_back_leaves_sessions_and_places_where_they_were() {
    let cases = [
        "'LOCK.RENEW',1,'x','a','PX',90000",
        "'LOCK.RENEW',1,'r','a','PX',90000",
        "'LOCK.ACQUIRE','x','a','PX',90000",
        "'LOCK.ACQUIRE','x','a','PX',90000,'SESSION','GRACE',7",
        "'LOCK.ACQUIRE','x','a','PX',90000,'REENTRANT'",
        "'LOCK.ACQUIRE','r','a','PX',90000,'SHARED'",
        "'LOCK.ACQUIRE','r','a','PX',90000,'SHARED','SESSION','GRACE',7",
        "'LOCK.ACQUIRE','r','a','PX',90000",
        "'LOCK.ACQUIRE','x','a','PX',90000,'SHARED'",
        "'LOCK.MACQUIRE',2,'x','y','a','PX',90000",
        "'LOCK.MACQUIRE',2,'x','y','a','PX',90000,'SESSION','GRACE',7",
        "'LOCK.ATTACH','a'",
        "'LOCK.RELEASE','x','a'",
        "'LOCK.RELEASE','x','a','KEEP',500",
        "'LOCK.RELEASE','r','a'",
        "'LOCK.BREAK','x'",
        "'SEM.ACQUIRE','s','a','LIMIT',2,'PX',90000",
        "'SEM.ACQUIRE','s','a','LIMIT',2,'PX',90000,'SESSION','GRACE',7",
        "'SEM.RELEASE','s',redis.call('ZRANGE','s',0,0)[1]",
        "'SEM.RENEW','s',redis.call('ZRANGE','s',0,0)[1],'PX',90000",
        "'DEL','x','r','s'",
        "'RENAME','x','y'",
        "'FLUSHALL'",
        "'SWAPDB',0,1",
        "'SET','x','a'",
        // A kept place is given up by a grant.
        "'DEL','w') redis.call('LOCK.ACQUIRE','w','k','PX',90000",
    ];
    for case in cases {
        let server = TestServer::start(&[
            "busy-reply-threshold 10".into(),
            "busy-script-policy rollback".into(),
        ]);
        let [mut holder, mut other, mut away] = [(); 3].map(|()| server.connect());
        granted(&mut holder, "LOCK.ACQUIRE x a PX 60000 SESSION GRACE 500");
        granted(&mut holder, "LOCK.ACQUIRE r a PX 60000 SHARED SESSION GRACE 500");
        granted(&mut holder, "LOCK.ACQUIRE w z PX 60000");
        holder.call(&words("SEM.ACQUIRE s a LIMIT 2 PX 60000 COUNT 1 SESSION GRACE 500"));
        away.send(&words("LOCK.ACQUIRE w k PX 60000 SESSION GRACE 60000 BLOCK 0"));
        server.settle();
        drop(away);
        server.settle();
        let look = |client: &mut Client| {
            let lines = ["LOCK.INFO x", "LOCK.INFO r", "LOCK.INFO w", "SEM.INFO s", "PTTL x"];
            let mut told: Vec<String> =
                lines.iter().map(|line| client.call(&words(line)).show()).collect();
            told.push(client.call(&words("PTTL r")).show());
            told.iter_mut().for_each(|text| {
                let lines = text.lines().filter(|line| !line.contains("renewals"));
                *text = lines.collect::<Vec<_>>().join("\n");
            });
            told
        };
        let before = look(&mut holder);
        let script = format!("redis.call({case}) while true do end");
        let reply = other.call(&["EVAL", &script, "0"]);
        assert!(matches!(reply, Reply::Error(_)), "{case}: {reply:?}");
        server.settle();
        assert_eq!(look(&mut holder), before, "{case}");
        drop(other);
        server.settle();
        assert_eq!(look(&mut holder), before, "{case}: the script's client has left");
        // The kept place is before that of whoever asks now.
        let [mut second, mut back] = [(); 2].map(|()| server.connect());
        second.send(&words("LOCK.ACQUIRE w l PX 60000 BLOCK 0"));
        server.settle();
        back.send(&words("LOCK.ACQUIRE w k PX 60000 SESSION GRACE 60000 BLOCK 0"));
        server.settle();
        holder.call(&words("LOCK.RELEASE w z"));
        assert!(back.reply().is_some_and(|reply| reply.show().contains("60000")), "{case}");
        assert_eq!(second.try_message(), None, "{case}");
        // The sessions still belong to the holder.
        drop(holder);
        server.settle();
        let mut looks = server.connect();
        assert_eq!(integer(&mut looks, "PTTL x"), 500, "{case}");
        assert_eq!(integer(&mut looks, "PTTL r"), 500, "{case}");
        assert_eq!(integer(&mut looks, "PTTL s"), 500, "{case}");
    }
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

/// The owners, fences and milliseconds left of a lock's readers, as LOCK.INFO tells them.
fn readers(client: &mut Client, key: &str) -> Vec<(String, i64, i64)> {
    let Reply::Array(info) = client.call(&["LOCK.INFO", key]) else { panic!("no map") };
    assert_eq!(info[1], Reply::Bulk(b"shared".to_vec()), "{info:?}");
    let Reply::Array(owners) = &info[3] else { panic!("no owners: {info:?}") };
    let reader = |owner: &Reply| match owner {
        Reply::Array(items) => match &items[..] {
            [_, Reply::Bulk(name), _, _, _, Reply::Integer(fence), _, Reply::Integer(left), ..] => {
                (String::from_utf8_lossy(name).into_owned(), *fence, *left)
            }
            _ => panic!("{items:?}"),
        },
        reply => panic!("{reply:?}"),
    };
    owners.iter().map(reader).collect()
}

#[test]
fn readers_are_back_after_a_restart_and_end_at_their_own_times() {
    let long = "w".repeat(200);
    for lines in [&["appendonly yes"][..], &["appendonly yes", "aof-use-rdb-preamble no"], &[]] {
        let dir = tempfile::tempdir().expect("a folder");
        let server = start(dir.path(), lines);
        let mut client = server.connect();
        let mut fences = Vec::new();
        for line in [
            "LOCK.ACQUIRE jobs alice PX 30000 SHARED",
            "LOCK.ACQUIRE jobs bob PX 60000 SHARED",
            "LOCK.ACQUIRE jobs carol PX 60000 SHARED",
            "LOCK.ACQUIRE jobs dave PX 60000 SHARED SESSION GRACE 5000",
            &format!("LOCK.ACQUIRE long {long} PX 20000 SHARED"),
            "LOCK.ACQUIRE long eve PX 1000 SHARED",
        ] {
            fences.push(granted(&mut client, line).0);
        }
        // Half of it is in a rewritten file.
        if lines.len() == 1 {
            client.call(&["BGREWRITEAOF"]);
            server.settle();
            server.advance(1_000_000);
        }
        integer(&mut client, "LOCK.RELEASE jobs carol");
        client.call(&words("LOCK.RENEW 1 jobs bob PX 90000"));
        let upgraded = granted(&mut client, "LOCK.ACQUIRE writer alice PX 40000 SHARED").0;
        granted(&mut client, "LOCK.ACQUIRE writer alice PX 40000");
        if lines.len() == 2 {
            client.call(&["BGREWRITEAOF"]);
            server.settle();
        }
        client.call(&if lines.is_empty() { ["SAVE"] } else { ["PING"] });
        let now_ms = server.clock_ms();
        drop(server);

        let server = start(dir.path(), lines);
        server.advance((now_ms - server.clock_ms()) * 1000);
        let mut client = server.connect();
        assert_eq!(listed(&mut client), 3, "{lines:?}");
        // Somebody sets the clock back: that keeps no reader.
        server.step_wall(-DAY_US);
        let found = readers(&mut client, "jobs");
        let owners: Vec<&str> = found.iter().map(|(owner, ..)| owner.as_str()).collect();
        assert_eq!(owners, ["alice", "bob", "dave"], "{lines:?}");
        assert_eq!([found[0].1, found[1].1, found[2].1], [fences[0], fences[1], fences[3]]);
        assert!(found[0].2 <= 30_000 && (89_000..=90_000).contains(&found[1].2), "{found:?}");
        // The connection of a session is gone with the process.
        assert!(found[2].2 <= 5000, "{found:?}");
        assert_eq!(integer(&mut client, "LOCK.GUARD writer alice"), 1);
        let again = granted(&mut client, "LOCK.ACQUIRE jobs alice PX 1 SHARED");
        assert_eq!(again.0, fences[0]);
        let (next, _) = granted(&mut client, "LOCK.ACQUIRE other dave PX 1000");
        assert!(next > upgraded, "{lines:?}: {next} after {upgraded}");
        server.advance(5_001_000);
        let found = readers(&mut client, "jobs");
        assert_eq!(found.len(), 2, "{lines:?}: {found:?}");
        server.advance(found[0].2 * 1000);
        assert_eq!(integer(&mut client, "LOCK.GUARD jobs alice"), 1);
        server.advance(1000);
        assert_eq!(integer(&mut client, "LOCK.GUARD jobs alice"), 0);
        assert_eq!(integer(&mut client, "LOCK.GUARD jobs bob"), 1);
        let last = readers(&mut client, "jobs")[0].2;
        server.advance(last * 1000 + 1000);
        assert_eq!(integer(&mut client, "EXISTS jobs long"), 0, "{lines:?}");
    }
}

#[test]
fn a_step_of_the_wall_clock_ends_no_reader_and_keeps_none() {
    let server = TestServer::start(&[]);
    let mut client = server.connect();
    granted(&mut client, "LOCK.ACQUIRE jobs alice PX 1000 SHARED");
    granted(&mut client, "LOCK.ACQUIRE jobs bob PX 3000 SHARED");
    server.step_wall(DAY_US);
    granted(&mut client, "LOCK.ACQUIRE jobs carol PX 2000 SHARED");
    client.call(&words("LOCK.RENEW 1 jobs alice PX 1500"));
    server.advance(1_500_000);
    let left: Vec<i64> = readers(&mut client, "jobs").iter().map(|reader| reader.2).collect();
    assert_eq!(left, [0, 1500, 500]);
    server.step_wall(-2 * DAY_US);
    for (owner, ms) in [("alice", 1), ("carol", 500), ("bob", 1000)] {
        assert_eq!(integer(&mut client, &format!("LOCK.GUARD jobs {owner}")), 1);
        server.advance(ms * 1000);
        assert_eq!(integer(&mut client, &format!("LOCK.GUARD jobs {owner}")), 0, "{owner}");
    }
    assert_eq!(integer(&mut client, "EXISTS jobs"), 0);
}

#[test]
fn a_promoted_replica_knows_the_readers() {
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let primary = start(folders[0].path(), &[]);
    let replica = start(folders[1].path(), &[]);
    let mut client = primary.connect();
    granted(&mut client, "LOCK.ACQUIRE jobs early PX 60000 SHARED");
    let mut there = following(&replica, &primary);
    granted(&mut client, "LOCK.ACQUIRE jobs short PX 50 SHARED");
    granted(&mut client, "LOCK.ACQUIRE jobs gone PX 90000 SHARED");
    granted(&mut client, "LOCK.ACQUIRE jobs kept PX 90000 SHARED SESSION GRACE 2000");
    granted(&mut client, "LOCK.ACQUIRE other alice PX 90000 SHARED");
    granted(&mut client, "LOCK.ACQUIRE other alice PX 90000");
    integer(&mut client, "LOCK.RELEASE jobs gone");
    primary.advance(51_000);
    let (last, _) = granted(&mut client, "LOCK.ACQUIRE jobs last PX 70000 SHARED");
    let known = crate::support::wait_for("the readers", || {
        primary.advance(1000);
        replica.advance(1000);
        let owners = there.call(&["LOCK.INFO", "jobs"]).show();
        owners.contains("last").then(|| readers(&mut there, "jobs"))
    });
    let owners: Vec<&str> = known.iter().map(|(owner, ..)| owner.as_str()).collect();
    assert_eq!(owners, ["early", "kept", "last"]);
    there.call(&["REPLICAOF", "NO", "ONE"]);
    assert_eq!(listed(&mut there), 2);
    assert_eq!(integer(&mut there, "LOCK.GUARD other alice"), 1);
    assert_eq!(integer(&mut there, &format!("LOCK.GUARD jobs last FENCE {last}")), 1);
    let (next, _) = granted(&mut there, "LOCK.ACQUIRE jobs new PX 1000 SHARED");
    assert!(next >> 21 > last >> 21, "{next} after {last}");
    // A session has its grace after a promotion, and the others have their time.
    replica.advance(2_001_000);
    let owners: Vec<String> =
        readers(&mut there, "jobs").into_iter().map(|(owner, ..)| owner).collect();
    assert_eq!(owners, ["early", "last"]);
    replica.advance(70_001_000);
    assert_eq!(integer(&mut there, "EXISTS jobs"), 0);
}

#[test]
fn a_reader_that_is_killed_in_the_turn_of_its_grant_keeps_nobody_out() {
    let server = TestServer::start(&[]);
    let [mut holder, mut killed, mut reader, mut writer] = [(); 4].map(|()| server.connect());
    let id = integer(&mut killed, "CLIENT ID").to_string();
    granted(&mut holder, "LOCK.ACQUIRE jobs alice PX 60000");
    for (client, line) in [
        (&mut killed, "LOCK.ACQUIRE jobs bob PX 60000 SHARED BLOCK 0"),
        (&mut reader, "LOCK.ACQUIRE jobs carol PX 60000 SHARED BLOCK 0"),
        (&mut writer, "LOCK.ACQUIRE jobs dave PX 60000 BLOCK 0"),
    ] {
        client.send(&words(line));
        server.settle();
    }
    let mut pipeline = crate::support::encode(&["LOCK.RELEASE", "jobs", "alice"]);
    pipeline.extend(crate::support::encode(&["CLIENT", "KILL", "ID", &id]));
    holder.send_raw(&pipeline);
    assert_eq!(holder.reply(), Some(Reply::Integer(0)));
    assert_eq!(holder.reply(), Some(Reply::Integer(1)));
    server.settle();
    assert!(reader.reply().expect("carol is served").show().contains("(integer) 60000"));
    let owners: Vec<String> =
        readers(&mut holder, "jobs").into_iter().map(|(owner, ..)| owner).collect();
    assert_eq!(owners, ["carol"]);
    integer(&mut reader, "LOCK.RELEASE jobs carol");
    assert!(writer.reply().expect("dave is served").show().contains("(integer) 60000"));
}

#[test]
fn a_script_that_is_rolled_back_leaves_the_readers_as_they_were() {
    let server = TestServer::start(&[
        "busy-reply-threshold 10".into(),
        "busy-script-policy rollback".into(),
    ]);
    let [mut alice, mut bob, mut other] = [(); 3].map(|()| server.connect());
    granted(&mut alice, "LOCK.ACQUIRE held alice PX 1000 SHARED");
    granted(&mut bob, "LOCK.ACQUIRE held bob PX 60000 SHARED SESSION GRACE 500");
    granted(&mut alice, "LOCK.ACQUIRE alone alice PX 60000 SHARED");
    granted(&mut alice, "LOCK.ACQUIRE taken alice PX 60000");
    let before = readers(&mut other, "held");
    let script = "redis.call('LOCK.RENEW', 1, 'held', 'alice', 'PX', 5000) \
                  redis.call('LOCK.RELEASE', 'held', 'bob') \
                  redis.call('LOCK.ACQUIRE', 'held', 'alice', 'PX', 9000) \
                  redis.call('LOCK.RELEASE', 'held', 'alice') \
                  redis.call('LOCK.ACQUIRE', 'held', 'carol', 'PX', 9000, 'SHARED') \
                  redis.call('LOCK.ACQUIRE', 'alone', 'bob', 'PX', 1000, 'SHARED') \
                  redis.call('LOCK.RELEASE', 'taken', 'alice') \
                  redis.call('LOCK.ACQUIRE', 'taken', 'bob', 'PX', 1000, 'SHARED') \
                  redis.call('LOCK.ACQUIRE', 'new', 'bob', 'PX', 1000, 'SHARED') while true do end";
    let reply = other.call(&["EVAL", script, "0"]);
    assert!(matches!(reply, Reply::Error(_)), "{reply:?}");
    server.settle();
    assert_eq!(listed(&mut other), 3);
    assert_eq!(readers(&mut other, "held"), before);
    assert_eq!(readers(&mut other, "alone").len(), 1);
    assert_eq!(integer(&mut other, "LOCK.GUARD taken alice"), 1);
    server.advance(1_001_000);
    assert_eq!(integer(&mut other, "LOCK.GUARD held alice"), 0);
    assert_eq!(integer(&mut other, "LOCK.GUARD held bob"), 1);
    // Its session still belongs to its connection.
    drop(bob);
    server.settle();
    assert_eq!(integer(&mut other, "PTTL held"), 500);
}

#[test]
fn a_lock_has_a_thousand_readers_and_waits_for_the_next() {
    let server = TestServer::start(&["maxmemory-policy allkeys-random".into()]);
    let [mut client, mut next] = [(); 2].map(|()| server.connect());
    for number in 0..1000 {
        granted(
            &mut client,
            &format!("LOCK.ACQUIRE jobs owner-{number} PX {} SHARED", 90_000 + number),
        );
    }
    let refused = client.call(&words("LOCK.ACQUIRE jobs one-more PX 90000 SHARED")).show();
    assert!(refused.contains("(integer) 0") && refused.contains("owner-"), "{refused}");
    next.send(&words("LOCK.ACQUIRE jobs one-more PX 90000 SHARED BLOCK 0"));
    server.settle();
    assert_eq!(next.try_message(), None);
    integer(&mut client, "LOCK.RELEASE jobs owner-999");
    assert!(next.reply().expect("it is served").show().contains("(integer) 90000"));
    assert_eq!(integer(&mut client, "PTTL jobs"), 90_998);
    // It is not evicted.
    for number in 0..50 {
        client.call(&["SET", &format!("data:{number}"), &"x".repeat(1000)]);
    }
    client.call(&["CONFIG", "SET", "maxmemory", "1"]);
    for _ in 0..300 {
        client.call(&["SET", "more", "x"]);
    }
    assert_eq!(integer(&mut client, "EXISTS jobs data:1 data:2"), 1);
    client.call(&["CONFIG", "SET", "maxmemory", "0"]);
    server.advance(90_001_000);
    assert_eq!(readers(&mut client, "jobs").len(), 998);
    server.advance(998_000);
    assert_eq!(integer(&mut client, "EXISTS jobs"), 0);
}

#[test]
fn replies_stay_in_order_beside_events_and_grants_by_push() {
    let server = TestServer::start(&["notify-keyspace-events KL".into()]);
    let [mut holder, mut client, mut third] = [(); 3].map(|()| server.connect());
    granted(&mut holder, "LOCK.ACQUIRE jobs x PX 60000");
    client.call(&["HELLO", "3"]);
    // All of it comes in one turn.
    third.call(&words("CLIENT PAUSE 100 ALL"));
    let mut pipeline = crate::support::encode(&["ECHO", "one"]);
    pipeline.extend(crate::support::encode(&words("LOCK.ACQUIRE jobs o PX 1000 ASYNC 0")));
    pipeline.extend(crate::support::encode(&["ECHO", "two"]));
    client.send_raw(&pipeline);
    server.settle();
    holder.send(&words("LOCK.RELEASE jobs x"));
    server.settle();
    server.advance(200_000);
    let told: Vec<String> =
        (0..4).map(|_| client.next_message().expect("a message").show()).collect();
    let place = |text: &str| told.iter().position(|told| told.contains(text));
    let places = ["one", "\"x\"", "two", "lock-granted"].map(place);
    assert_eq!(places, [Some(0), Some(1), Some(2), Some(3)], "{told:#?}");
}

#[test]
fn nobody_waits_for_pushes_after_reset_or_hello_2() {
    let server = TestServer::start(&[]);
    let mut holder = server.connect();
    granted(&mut holder, "LOCK.ACQUIRE jobs x PX 60000");
    for end in [&["HELLO", "2"][..], &["RESET"]] {
        let mut client = server.connect();
        client.call(&["HELLO", "3"]);
        client.call(&words("LOCK.ACQUIRE jobs o PX 1000 ASYNC 0"));
        assert!(holder.call(&["LOCK.WAITERS", "jobs"]).show().contains("\"o\""));
        client.call(end);
        assert_eq!(holder.call(&["LOCK.WAITERS", "jobs"]).show(), "(empty array)", "{end:?}");
    }
}

#[test]
fn who_waits_without_being_blocked_is_not_idle() {
    let dir = tempfile::tempdir().expect("a folder");
    let server = start(dir.path(), &["timeout 10"]);
    let (mut holder, mut waiting) = (server.connect(), server.connect());
    let (mut blocked, mut silent) = (server.connect(), server.connect());
    waiting.call(&["HELLO", "3"]);
    silent.call(&["PING"]);
    granted(&mut holder, "LOCK.ACQUIRE jobs alice PX 60000");
    waiting.call(&words("LOCK.ACQUIRE jobs bob PX 60000 ASYNC 0"));
    blocked.send(&words("LOCK.ACQUIRE jobs carol PX 60000 BLOCK 0"));
    for _ in 0..6 {
        server.advance(5_000_000);
        holder.call(&["PING"]);
        server.settle();
    }
    let clients = holder.call(&["INFO", "clients"]).show();
    assert!(clients.contains("connected_clients:3"), "the silent one alone is closed: {clients}");
    let waiting = holder.call(&["LOCK.WAITERS", "jobs"]).show();
    assert!(waiting.contains("\"bob\"") && waiting.contains("\"carol\""), "{waiting}");
}

#[test]
fn a_session_has_all_permits_of_its_owner() {
    let server = TestServer::start(&[]);
    let mut client = server.connect();
    client.call(&words("SEM.ACQUIRE slots o LIMIT 9 PX 1000 COUNT 3 SESSION GRACE 100"));
    // Asked once more, it is told of one of them.
    client.call(&words("SEM.ACQUIRE slots o LIMIT 9 PX 1000 COUNT 1 SESSION GRACE 100"));
    for _ in 0..10 {
        server.advance(400_000);
        client.call(&["PING"]);
    }
    let held = client.call(&words("ZRANGE slots 0 -1 WITHSCORES")).show();
    assert_eq!(integer(&mut client, "ZCARD slots"), 3, "{held}");
}

#[test]
fn permits_end_by_time_wherever_their_semaphore_has_gone() {
    let server = TestServer::start(&["notify-keyspace-events KEAL".into()]);
    let mut client = server.connect();
    for (number, moves) in [
        &[][..],
        &["RENAME s t"],
        &["RENAME s t", "RENAME t s", "RENAME s t"],
        &["COPY s t", "DEL s"],
        &["MOVE s 1", "SELECT 1", "RENAME s t"],
    ]
    .into_iter()
    .enumerate()
    {
        client.call(&["FLUSHALL"]);
        client.call(&["SELECT", "0"]);
        client.call(&words("SEM.ACQUIRE s a LIMIT 5 PX 100"));
        client.call(&words("SEM.ACQUIRE s b LIMIT 5 PX 600000"));
        moves.iter().for_each(|line| drop(client.call(&words(line))));
        let key = if moves.is_empty() { "s" } else { "t" };
        assert_eq!(integer(&mut client, &format!("ZCARD {key}")), 2, "{moves:?}");
        client.call(&["WATCH", key]);
        server.advance(101_000);
        assert_eq!(integer(&mut client, &format!("ZCARD {key}")), 1, "{number}: {moves:?}");
        client.call(&["MULTI"]);
        client.call(&["PING"]);
        assert_eq!(client.call(&["EXEC"]), Reply::NullArray, "{moves:?}");
    }
    // A payload without a deadline, too.
    client.call(&["SELECT", "0"]);
    client.call(&words("SEM.ACQUIRE s a LIMIT 5 PX 100"));
    client.call(&words("SEM.ACQUIRE s b LIMIT 5 PX 600000"));
    let Reply::Bulk(payload) = client.call(&["DUMP", "s"]) else { panic!("a payload") };
    client.call(&["DEL", "s"]);
    client.call(&[&b"RESTORE"[..], b"s", b"0", &payload]);
    server.advance(101_000);
    assert_eq!(integer(&mut client, "ZCARD s"), 1);
}

#[test]
fn a_replica_counts_the_permits_of_a_semaphore_that_keeps_its_limit() {
    let (dir, other) = (tempfile::tempdir(), tempfile::tempdir());
    let (dir, other) = (dir.expect("a folder"), other.expect("a folder"));
    let primary = start(dir.path(), &[]);
    let mut client = primary.connect();
    for line in ["SEM.LIMIT empty 3", "SEM.LIMIT pool 1"] {
        assert_eq!(client.call(&words(line)).show(), "OK");
    }
    permitted(&mut client, "SEM.ACQUIRE pool alice PX 600000");
    let replica = start(other.path(), &[]);
    let mut there = following(&replica, &primary);
    assert!(there.ask("INFO locks").text().contains("sem_permits_held:1\r\n"));
}
