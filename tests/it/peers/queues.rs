//! Queues on a replica of another make: after a random history it has the same jobs, and once it is
//! promoted each job that was not acknowledged can be had there.
//!
//! Needs a peer's binary, as `files` does: `FILES_PEER=/path/to/redis-server`. `QUEUES_SEED` repeats
//! a run.

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::support::peer::Peer;
use crate::support::{Client, Reply, TestServer, number_from, seed, wait_for};

fn ask(client: &mut Client, line: &str) -> Reply {
    client.call(&line.split(' ').collect::<Vec<_>>())
}

fn items(reply: Reply) -> Vec<Reply> {
    match reply {
        Reply::Array(items) => items,
        Reply::NullArray => Vec::new(),
        other => panic!("no array: {}", other.show()),
    }
}

fn text(reply: &Reply) -> String {
    match reply {
        Reply::Bulk(bytes) | Reply::Simple(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        other => panic!("no text: {}", other.show()),
    }
}

/// IDs and data of the entries in a list of them.
fn entries(reply: Reply) -> Vec<(String, String)> {
    let entry = |entry: Reply| {
        let parts = items(entry);
        let Some(Reply::Array(fields)) = parts.get(1) else { panic!("an entry without fields") };
        (text(&parts[0]), text(&fields[1]))
    };
    items(reply).into_iter().map(entry).collect()
}

/// As [`entries`], of the reply to a read of one stream.
fn read(reply: Reply) -> Vec<(String, String)> {
    match items(reply).pop() {
        Some(stream) => entries(items(stream).remove(1)),
        None => Vec::new(),
    }
}

/// All that a replica must have alike: entries, dead letters, delayed jobs, who has what and how
/// often it was delivered. Who has released entries is shown there alone.
fn state(client: &mut Client) -> Vec<String> {
    let mut state: Vec<String> = ["XRANGE jobs - +", "XRANGE dead - +", "ZRANGE later 0 -1"]
        .map(|line| ask(client, line).show())
        .into();
    for line in items(ask(client, "XPENDING jobs g - + 100000")) {
        let parts = items(line);
        let owner = text(&parts[1]).replace(":released", "");
        state.push(format!("{} {owner} {}", text(&parts[0]), parts[3].show()));
    }
    state
}

/// Random jobs at the primary, with a limit of two deliveries. Returns those that are not done.
fn work(client: &mut Client, server: &TestServer, random: &mut fastrand::Rng) -> BTreeSet<String> {
    ask(client, "XGROUP CREATE jobs g 0 MKSTREAM");
    let mut open = BTreeSet::new();
    let mut held: Vec<(String, String, u32)> = Vec::new();
    for number in 0..number_from("QUEUES_STEPS", 600) {
        let worker = random.u32(..3);
        let chosen = (!held.is_empty()).then(|| random.usize(..held.len()));
        let job = format!("job{number}");
        let reply = match (random.u32(..14), chosen) {
            (0..3, _) => {
                open.insert(job.clone());
                ask(client, &format!("XADD jobs * data {job}"))
            }
            (3..5, _) => {
                open.insert(job.clone());
                let at_ms = server.clock_ms() + random.i64(0..400);
                ask(client, &format!("ZADD later NX {at_ms} {job}"))
            }
            (5..8, _) => {
                let line = format!(
                    "XREADGROUP GROUP g w{worker} COUNT 2 CLAIM 100 DUE later UNIT MS \
                     MAXDELIVERIES 2 DEADLETTER dead STREAMS jobs >"
                );
                for (id, data) in read(ask(client, &line)) {
                    held.retain(|(other, ..)| *other != id);
                    held.push((id, data, worker));
                }
                Reply::Integer(0)
            }
            (8..10, Some(at)) => {
                let (id, data, owner) = held.swap_remove(at);
                let line = format!("XACKDEL jobs g ACKED OWNER w{owner} IDS 1 {id}");
                let reply = ask(client, &line);
                if reply == Reply::Array(vec![Reply::Integer(1)]) {
                    open.remove(&data);
                }
                reply
            }
            (10, Some(at)) => {
                let (id, _, owner) = held.swap_remove(at);
                let delay_ms = random.i64(0..300);
                let mode = random.choice(["SILENT", "FAIL"]).unwrap_or("FAIL");
                let line =
                    format!("XNACK jobs g {mode} IDS 1 {id} OWNER w{owner} DELAY {delay_ms}");
                ask(client, &line)
            }
            (11, _) if random.u32(..4) == 0 => {
                held.retain(|(_, _, owner)| *owner != worker);
                ask(client, &format!("XGROUP DELCONSUMER jobs g w{worker} RELEASE"))
            }
            (12, _) if random.u32(..4) == 0 => ask(client, "XREDRIVE dead jobs COUNT 3"),
            _ => {
                server.advance(random.i64(1..100_000));
                Reply::Integer(0)
            }
        };
        assert!(!matches!(reply, Reply::Error(_)), "{}", reply.show());
    }
    open
}

/// The jobs that are anywhere at a server, each of which a worker can get.
fn found(client: &mut Client) -> BTreeSet<String> {
    let jobs = |list: Vec<(String, String)>| list.into_iter().map(|(_, data)| data);
    let mut found: BTreeSet<String> =
        jobs(read(ask(client, "XREADGROUP GROUP g new COUNT 100000 STREAMS jobs >"))).collect();
    let mut from = String::from("0-0");
    loop {
        let mut reply = items(ask(client, &format!("XAUTOCLAIM jobs g new 0 {from} COUNT 1000")));
        found.extend(jobs(entries(reply.remove(1))));
        from = text(&reply[0]);
        if from == "0-0" {
            break;
        }
    }
    found.extend(jobs(entries(ask(client, "XRANGE dead - +"))));
    found.extend(items(ask(client, "ZRANGE later 0 -1")).iter().map(text));
    found
}

#[test]
#[ignore = "needs another server's binary: FILES_PEER"]
fn a_replica_of_another_make_has_the_jobs_and_keeps_them_when_promoted() {
    let program: PathBuf = std::env::var("FILES_PEER").expect("FILES_PEER names a binary").into();
    let mut random = fastrand::Rng::with_seed(seed("QUEUES_SEED"));
    for round in 0..8 {
        let server = TestServer::start(&["repl-diskless-sync-delay 0".to_owned()]);
        let folder = tempfile::tempdir().expect("a folder");
        let peer = Peer::start(&program, folder.path(), &[]);
        let (mut primary, mut replica) = (server.connect(), peer.connect());
        let follow = format!("REPLICAOF 127.0.0.1 {}", server.address.port());
        // From the stream, or from a snapshot.
        let by_stream = round % 2 == 0;
        let join = |replica: &mut Client| {
            ask(replica, &follow);
            wait_for("the replica to be in step", || {
                server.advance(10_000);
                ask(replica, "INFO replication")
                    .show()
                    .contains("master_link_status:up")
                    .then_some(())
            });
        };
        if by_stream {
            join(&mut replica);
        }
        let open = work(&mut primary, &server, &mut random);
        if !by_stream {
            join(&mut replica);
        }
        let expected = state(&mut primary);
        wait_for("the same jobs at the replica", || {
            server.advance(1_000);
            (state(&mut replica) == expected).then_some(())
        });
        ask(&mut replica, "REPLICAOF NO ONE");
        let found = found(&mut replica);
        let lost: Vec<_> = open.difference(&found).collect();
        assert!(lost.is_empty(), "round {round}: {lost:?} of {} jobs are lost", open.len());
        peer.stop();
    }
}
