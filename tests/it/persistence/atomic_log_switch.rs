//! What changes where effects go, within transactions: the log is switched on and off, rewritten,
//! the data reloaded, while a replica follows. A transaction is never divided: the replica has the
//! primary's data after each, and so has a restart.
//!
//! `UNITS_SEED` repeats a run, `UNITS_RUNS` is how many there are.

use fastrand::Rng;

use crate::replication::replicas;
use crate::support::{Client, Reply, TestServer, encode, number_from, seed, wait_for};

/// Transactions of a run.
const STEPS: usize = 60;

/// A command that changes data.
fn change(random: &mut Rng) -> Vec<String> {
    let key = ["a", "b", "c"][random.usize(..3)];
    let line = match random.u32(..12) {
        0..3 => format!("INCR {key}"),
        3..5 => format!("SET {key} {}", random.u32(..9)),
        5 => format!("DEL {key}"),
        6 => format!("SELECT {}", random.u32(..3)),
        7 => "SWAPDB 0 1".to_owned(),
        8 => ["FLUSHALL", "FLUSHDB"][random.usize(..2)].to_owned(),
        9 => format!("APPEND {key} 1"),
        10 => format!("SET {key} 5 PX 10000000"),
        _ => {
            let fails = if random.bool() { " error('x')" } else { "" };
            let script = format!("redis.call('INCR', 'a') redis.call('INCR', '{key}'){fails}");
            return vec!["EVAL".into(), script, "0".into()];
        }
    };
    line.split(' ').map(str::to_owned).collect()
}

/// A command that changes where effects go.
fn switch(random: &mut Rng) -> Vec<String> {
    let line = match random.u32(..13) {
        0..3 => "CONFIG SET appendonly no",
        3..6 => "CONFIG SET appendonly yes",
        6 => ["CONFIG SET appendfsync always", "CONFIG SET appendfsync no"][random.usize(..2)],
        7 => ["CONFIG SET repl-backlog-size 16kb", "CONFIG SET repl-backlog-size 1mb"]
            [random.usize(..2)],
        8 => "BGREWRITEAOF",
        9 => ["BGSAVE", "SAVE"][random.usize(..2)],
        10 => "DEBUG RELOAD",
        11 => "REPLICAOF NO ONE",
        _ => "DEBUG REPLICATE PING",
    };
    line.split(' ').map(str::to_owned).collect()
}

fn request(random: &mut Rng) -> Vec<String> {
    if random.u32(..3) == 0 { switch(random) } else { change(random) }
}

fn field(client: &mut Client, section: &str, name: &str) -> String {
    let Reply::Bulk(text) = client.call(&["INFO", section]) else { panic!("no text") };
    let text = String::from_utf8_lossy(&text).into_owned();
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.expect("a field").to_owned()
}

fn run(seed: u64) {
    let mut random = Rng::with_seed(seed);
    let folders = [tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder")];
    let lines = |at: usize| {
        let dir = format!("dir {}", folders[at].path().display());
        let rest = [
            "repl-diskless-sync-delay 0",
            "repl-timeout 100000",
            "shutdown-timeout 0",
            "appendonly yes",
        ];
        [dir].into_iter().chain(rest.map(str::to_owned)).collect::<Vec<_>>()
    };
    let (primary, replica) = (TestServer::start(&lines(0)), TestServer::start(&lines(1)));
    let (mut client, mut reader) = (primary.connect(), replica.connect());
    let port = primary.address.port().to_string();
    reader.call(&["REPLICAOF", "127.0.0.1", &port]);
    let mut history = vec![format!("UNITS_SEED={seed}")];
    let mut settle = |client: &mut Client, history: &[String]| {
        wait_for("the replica", || {
            [&primary, &replica].into_iter().for_each(TestServer::settle);
            let is_up = field(&mut reader, "replication", "master_link_status") == "up";
            let end = field(client, "replication", "master_repl_offset");
            (is_up && field(&mut reader, "replication", "master_repl_offset") == end).then_some(())
        });
        let digests = [client, &mut reader].map(|client| client.call(&["DEBUG", "DIGEST"]));
        assert_eq!(digests[0], digests[1], "the replica differs after\n{}", history.join("\n"));
    };
    for step in 0..STEPS {
        let is_transaction = random.u32(..4) > 0;
        let mut requests: Vec<Vec<String>> =
            std::iter::repeat_with(|| request(&mut random)).take(1 + step % 5).collect();
        if is_transaction {
            requests.insert(0, vec!["MULTI".into()]);
            requests.push(vec!["EXEC".into()]);
        }
        history.extend(requests.iter().map(|request| request.join(" ")));
        // All in one turn.
        let together: Vec<u8> = requests.iter().flat_map(|it| encode(it)).collect();
        client.send_raw(&together);
        for request in &requests {
            let reply = client.reply();
            assert!(reply.is_some(), "the server has ended at {request:?}\n{}", history.join("\n"));
        }
        primary.advance(200_000);
        if step % 4 == 3 {
            settle(&mut client, &history);
        }
    }
    // What a restart loads is the data, whatever came before.
    client.call(&["CONFIG", "SET", "appendonly", "yes"]);
    wait_for("the base", || {
        primary.advance(200_000);
        let idle = ["aof_rewrite_in_progress", "aof_rewrite_scheduled"]
            .map(|name| field(&mut client, "persistence", name));
        (idle == ["0", "0"]).then_some(())
    });
    for _ in 0..10 {
        let request = change(&mut random);
        history.push(request.join(" "));
        client.call(&request);
    }
    settle(&mut client, &history);
    let before = client.call(&["DEBUG", "DIGEST"]);
    drop((client, reader, primary, replica));
    for (at, lines) in [lines(0), lines(1)].iter().enumerate() {
        let again = TestServer::start(lines).connect().call(&["DEBUG", "DIGEST"]);
        assert_eq!(again, before, "server {at} after a restart, after\n{}", history.join("\n"));
    }
}

#[test]
fn no_transaction_is_divided_where_the_log_is_switched() {
    let first = seed("UNITS_SEED");
    for seed in first..first + number_from("UNITS_RUNS", 6) {
        run(seed);
    }
}

#[test]
fn a_transaction_that_switches_the_log_off_reaches_a_replica_whole() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = format!("dir {}", folder.path().display());
    let server = replicas::start(&[&dir, "appendonly yes"]);
    let (mut client, mut replica) = (server.connect(), replicas::Replica::connect(&server));
    let (_, offset, _) = replica.sync(&server);
    replica.say(&format!("REPLCONF ACK {offset}"));
    server.settle();
    let together: Vec<u8> =
        ["SET before 1", "MULTI", "SET a 1", "CONFIG SET appendonly no", "SET b 2", "EXEC"]
            .iter()
            .flat_map(|line| encode(&line.split(' ').collect::<Vec<_>>()))
            .collect();
    client.send_raw(&together);
    // The second SELECT is for a log that may begin within the transaction.
    let expected = replicas::stream(&[
        "SELECT 0",
        "SET before 1",
        "SELECT 0",
        "MULTI",
        "SET a 1",
        "SET b 2",
        "EXEC",
    ]);
    let got = replica.take(expected.len());
    assert_eq!(String::from_utf8_lossy(&got), String::from_utf8_lossy(&expected));
}
