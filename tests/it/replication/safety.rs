//! Optional safety: primaries that restart without their replicas' data, and WAIT ALL.

use crate::replication::replicas::{Replica, SECOND, field, start, stream};
use crate::support::{Client, Reply, TestServer, wait_for};

const HISTORY: &str = "0123456789012345678901234567890123456789";

/// Starts a server in an empty folder.
fn started(lines: &[&str]) -> (TestServer, Client, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = format!("dir {}", folder.path().display());
    let log = format!("logfile {}", folder.path().join("log").display());
    let server = start(&[&[&*dir, &*log], lines].concat());
    let client = server.connect();
    (server, client, folder)
}

fn log(folder: &tempfile::TempDir) -> String {
    std::fs::read_to_string(folder.path().join("log")).expect("a log")
}

/// The reply to PSYNC of a replica that has data.
fn psync(server: &TestServer, offset: u64) -> String {
    psync_from(server, HISTORY, offset)
}

fn psync_from(server: &TestServer, history: &str, offset: u64) -> String {
    let mut replica = Replica::connect(server);
    replica.greet();
    replica.say(&format!("PSYNC {history} {offset}"));
    server.settle();
    replica.line()
}

fn show(client: &mut Client, request: &[&str]) -> String {
    client.call(request).show()
}

const EMPTY: &str = "(error) READONLY This primary has started without data that its replicas have \
                     (repl-protect-empty-primary).";
const HELD_OFF: &str = "-NOMASTERLINK Can't SYNC: this primary has started without data that you have \
                        (repl-protect-empty-primary)";
const RESTARTED: &str = "(error) READONLY This primary has restarted, and takes no writes until its part is certain \
                         (primary-restart-read-only).";

#[test]
fn an_empty_primary_does_not_wipe_replicas_that_have_data() {
    let (server, mut client, folder) = started(&["repl-protect-empty-primary yes"]);
    let mut sentinel = server.connect();
    assert_eq!(show(&mut sentinel, &["CLIENT", "SETNAME", "sentinel-0a1b2c3d-cmd"]), "OK");
    assert_eq!(show(&mut sentinel, &["PING"]), "PONG");
    assert_eq!(psync(&server, 101), HELD_OFF);
    assert_eq!(psync(&server, 101), HELD_OFF);
    let text = log(&folder);
    assert_eq!(text.matches("This primary has started without data").count(), 1, "{text}");
    assert!(text.contains(&format!("127.0.0.1:7777 has some (history {HISTORY}, offset 100)")));
    assert_eq!(field(&mut client, "primary_lacks_data_of_replicas"), "1");
    // Writes are refused, and sentinels get an error from PING, so that they promote a replica.
    assert_eq!(show(&mut client, &["SET", "k", "v"]), EMPTY);
    assert_eq!(
        show(&mut client, &["EVAL", "return redis.call('SET', 'k', 'v')", "0"]).find("READONLY"),
        Some(8)
    );
    assert_eq!(show(&mut client, &["GET", "k"]), "(nil)");
    assert_eq!(show(&mut client, &["PING"]), "PONG");
    assert!(show(&mut sentinel, &["PING"]).starts_with("(error) ERR this primary has started"));
    // A replica without data is synchronized.
    let mut fresh = Replica::connect(&server);
    fresh.sync(&server);
    // Replicas have not asked for some seconds: PING is answered again.
    for _ in 0..10 {
        server.advance(SECOND);
    }
    assert_eq!(show(&mut sentinel, &["PING"]), "PONG");
    assert_eq!(show(&mut client, &["SET", "k", "v"]), EMPTY);
    // It was not made a replica for long: it accepts writes again.
    for _ in 0..50 {
        server.advance(SECOND);
    }
    assert_eq!(show(&mut client, &["SET", "k", "v"]), "OK");
    assert!(psync(&server, 101).starts_with("+FULLRESYNC"));
}

#[test]
fn a_primary_with_an_older_file_does_not_wipe_replicas_that_have_more() {
    for is_logged in [false, true] {
        let (server, mut client, folder) = started(&[]);
        let mut replica = Replica::connect(&server);
        replica.sync(&server);
        replica.say("REPLCONF ACK 0");
        assert_eq!(show(&mut client, &["SET", "k", "v"]), "OK");
        assert_eq!(show(&mut client, &["SAVE"]), "OK");
        let offset: u64 = field(&mut client, "master_repl_offset").parse().expect("a number");
        if is_logged {
            assert_eq!(show(&mut client, &["CONFIG", "SET", "appendonly", "yes"]), "OK");
            wait_for("the log's base", || {
                server.settle();
                let info = show(&mut client, &["INFO", "persistence"]);
                let is_there = info.contains("aof_rewrite_in_progress:0")
                    && info.contains("aof_rewrite_scheduled:0");
                is_there.then_some(())
            });
        }
        // Disconnected first, as shutdown waits for lagging replicas.
        drop(replica);
        server.settle();
        drop((client, server));
        let dir = format!("dir {}", folder.path().display());
        let log_file = format!("logfile {}", folder.path().join("log").display());
        let appendonly = format!("appendonly {}", if is_logged { "yes" } else { "no" });
        let server = start(&[&dir, &log_file, &appendonly, "repl-protect-empty-primary yes"]);
        let mut client = server.connect();
        assert_eq!(show(&mut client, &["GET", "k"]), "\"v\"");
        // A replica that has no more than the file, of any history, loses nothing.
        assert!(psync(&server, offset + 1).starts_with("+FULLRESYNC"));
        if is_logged {
            // The append-only file has everything that was answered.
            assert!(psync(&server, offset + 2).starts_with("+FULLRESYNC"));
            continue;
        }
        assert_eq!(psync(&server, offset + 2), HELD_OFF);
        assert_eq!(show(&mut client, &["SET", "k", "w"]), EMPTY);
        let has = format!("with the data of offset {offset}, and replica 127.0.0.1:7777 has more");
        assert!(log(&folder).contains(&has), "{}", log(&folder));
        assert_eq!(show(&mut client, &["REPLICAOF", "NO", "ONE"]), "OK");
        assert!(psync(&server, offset + 2).starts_with("+FULLRESYNC"));
    }
}

#[test]
fn an_operator_can_allow_replicas_of_an_empty_primary() {
    for words in
        [&["REPLICAOF", "NO", "ONE"][..], &["CONFIG", "SET", "repl-protect-empty-primary", "no"]]
    {
        let (server, mut client, _folder) = started(&["repl-protect-empty-primary yes"]);
        assert_eq!(psync(&server, 2), HELD_OFF);
        assert_eq!(show(&mut client, words), "OK");
        assert_eq!(show(&mut client, &["SET", "k", "v"]), "OK");
        assert!(psync(&server, 2).starts_with("+FULLRESYNC"));
    }
    // By default it is as in Redis. A replica at the beginning of a history has no data.
    let (server, ..) = started(&[]);
    assert!(psync(&server, 101).starts_with("+FULLRESYNC"));
    let (server, ..) = started(&["repl-protect-empty-primary yes"]);
    assert!(psync(&server, 1).starts_with("+FULLRESYNC"));
}

#[test]
fn a_primary_that_has_data_or_is_made_a_replica_refuses_no_replica() {
    let (server, mut client, _folder) = started(&["repl-protect-empty-primary yes"]);
    assert_eq!(show(&mut client, &["SET", "k", "v"]), "OK");
    (0..61).for_each(|_| server.advance(SECOND));
    assert!(psync(&server, 101).starts_with("+FULLRESYNC"));
    // Writes before the first replica asks do not end the protection.
    let (server, mut client, _folder) = started(&["repl-protect-empty-primary yes"]);
    assert_eq!(show(&mut client, &["SET", "k", "v"]), "OK");
    for _ in 0..100 {
        assert_eq!(psync(&server, 101), HELD_OFF);
        server.advance(SECOND);
    }
    assert_eq!(show(&mut client, &["SET", "k", "v"]), EMPTY);
    assert_eq!(show(&mut client, &["REPLICAOF", "127.0.0.1", "1"]), "OK");
    assert_eq!(show(&mut client, &["REPLICAOF", "NO", "ONE"]), "OK");
    assert_eq!(show(&mut client, &["SET", "k", "v"]), "OK");
}

#[test]
fn an_empty_primary_does_not_hold_off_replicas_that_had_its_own_data() {
    let (server, mut client, _folder) =
        started(&["repl-protect-empty-primary yes", "repl-backlog-ttl 5"]);
    let mut former = Vec::new();
    for _ in 0..2 {
        let mut replica = Replica::connect(&server);
        replica.sync(&server);
        assert_eq!(show(&mut client, &["SET", "k", "v"]), "OK");
        former.push(field(&mut client, "master_replid"));
        drop(replica);
        server.settle();
        // Its history ends with the backlog.
        (0..8).for_each(|_| server.advance(SECOND));
        assert_ne!(field(&mut client, "master_replid"), former[former.len() - 1]);
    }
    assert_eq!(show(&mut client, &["FLUSHALL"]), "OK");
    for history in former {
        assert!(psync_from(&server, &history, 20).starts_with("+FULLRESYNC"));
    }
    assert_eq!(show(&mut client, &["SET", "k", "v"]), "OK");
    assert_eq!(psync(&server, 20), HELD_OFF);
}

#[test]
fn a_restarted_primary_refuses_writes_until_its_replicas_were_connected_for_a_while() {
    let (server, mut client, folder) = started(&["primary-restart-read-only 5"]);
    let mut replica = Replica::connect(&server);
    replica.sync(&server);
    replica.say("REPLCONF ACK 0");
    server.settle();
    let write = ["SET", "k", "v"];
    assert_eq!(show(&mut client, &write), RESTARTED);
    assert_eq!(show(&mut client, &["PING"]), "PONG");
    for _ in 0..4 {
        server.advance(SECOND);
    }
    assert_eq!(show(&mut client, &write), RESTARTED);
    // If a replica leaves, perhaps for another primary, the time begins again.
    drop(replica);
    server.settle();
    for _ in 0..4 {
        server.advance(SECOND);
    }
    assert_eq!(show(&mut client, &write), RESTARTED);
    assert_eq!(field(&mut client, "primary_restart_read_only_seconds_left"), "5");
    let mut replica = Replica::connect(&server);
    replica.sync(&server);
    replica.say("REPLCONF ACK 0");
    server.settle();
    for _ in 0..7 {
        server.advance(SECOND);
    }
    assert_eq!(show(&mut client, &write), "OK");
    assert!(log(&folder).contains("The primary's part is certain: writes are accepted."));
}

#[test]
fn an_operator_can_allow_writes_to_a_restarted_primary() {
    for words in
        [&["REPLICAOF", "NO", "ONE"][..], &["CONFIG", "SET", "primary-restart-read-only", "0"]]
    {
        let (_server, mut client, _folder) = started(&["primary-restart-read-only 5"]);
        assert_eq!(show(&mut client, &["INCR", "k"]), RESTARTED);
        show(&mut client, &["MULTI"]);
        assert_eq!(show(&mut client, &["INCR", "k"]), RESTARTED);
        assert!(show(&mut client, &["EXEC"]).starts_with("(error) EXECABORT"));
        assert_eq!(show(&mut client, words), "OK");
        assert_eq!(show(&mut client, &["INCR", "k"]), "(integer) 1");
    }
}

#[test]
fn wait_all_counts_absent_replicas_too() {
    let server = start(&[]);
    let (mut writer, mut other) = (server.connect(), server.connect());
    let unknown = "(error) ERR WAIT ALL needs to know how many replicas could be promoted: set 'wait-all-replicas'";
    assert_eq!(show(&mut writer, &["WAIT", "ALL", "10"]), unknown);
    assert_eq!(show(&mut writer, &["CONFIG", "SET", "wait-all-replicas", "2"]), "OK");
    let mut replicas: Vec<Replica> = (0..3).map(|_| Replica::connect(&server)).collect();
    replicas.iter_mut().take(2).for_each(|replica| {
        replica.sync(&server);
        replica.say("REPLCONF ACK 0");
    });
    writer.call(&["SET", "a", "1"]);
    let end = stream(&["SELECT 0", "SET a 1"]).len();
    // WAIT ALL on another connection than the writer's.
    other.send(&["WAIT", "all", "0"]);
    replicas[0].say(&format!("REPLCONF ACK {end}"));
    server.settle();
    assert_eq!(other.try_message(), None);
    replicas[1].say(&format!("REPLCONF ACK {end}"));
    assert_eq!(other.reply(), Some(Reply::Integer(2)));
    // A third replica may be promoted too, and counts. GETACK is part of the stream.
    let end = end + stream(&["REPLCONF GETACK *"]).len();
    replicas[..2].iter_mut().for_each(|replica| replica.say(&format!("REPLCONF ACK {end}")));
    replicas[2].sync(&server);
    writer.send(&["WAIT", "ALL", "50"]);
    server.settle();
    server.advance(60_000);
    assert_eq!(
        writer.reply().map(|reply| reply.show()),
        Some("(error) NOTALL 2 of 3 replicas have acknowledged".into())
    );
    // Two have left: the remaining one has everything, which is not enough.
    replicas.truncate(1);
    replicas[0].say("REPLCONF ACK 1000");
    server.settle();
    writer.call(&["MULTI"]);
    writer.call(&["WAIT", "ALL", "0"]);
    let reply = writer.call(&["EXEC"]).show();
    assert_eq!(reply, "1) (error) NOTALL 1 of 2 replicas have acknowledged");
    for wrong in ["x", "ALLX", ""] {
        let error = "(error) ERR value is not an integer or out of range";
        assert_eq!(show(&mut writer, &["WAIT", wrong, "0"]), error);
    }
}

#[test]
fn wait_counts_nobody_for_what_a_full_synchronisation_has_thrown_away() {
    let (server, mut client, _folder) = started(&["appendonly yes"]);
    let (other, ..) = started(&[]);
    let mut onlooker = server.connect();
    assert_eq!(show(&mut client, &["SET", "k", "lost"]), "OK");
    let port = other.address.port().to_string();
    assert_eq!(show(&mut onlooker, &["REPLICAOF", "127.0.0.1", &port]), "OK");
    wait_for("the link", || {
        [&server, &other].into_iter().for_each(TestServer::settle);
        (field(&mut onlooker, "master_link_status") == "up").then_some(())
    });
    assert_eq!(show(&mut onlooker, &["REPLICAOF", "NO", "ONE"]), "OK");
    let mut replica = Replica::connect(&server);
    let (_, offset, _) = replica.sync(&server);
    replica.say(&format!("REPLCONF ACK {} FACK {}", offset + 1000, offset + 1000));
    server.settle();
    // Whatever else the client reads, and however often it asks.
    assert_eq!(show(&mut client, &["GET", "k"]), "(nil)");
    for _ in 0..2 {
        assert_eq!(show(&mut client, &["WAIT", "1", "0"]), "(integer) 0");
        let shown = show(&mut client, &["WAITAOF", "1", "1", "0"]);
        assert_eq!(shown, "1) (integer) 0\n2) (integer) 0");
    }
    // What it writes now is counted.
    assert_eq!(show(&mut client, &["SET", "k", "new"]), "OK");
    assert_eq!(show(&mut client, &["WAIT", "1", "0"]), "(integer) 1");
    assert_eq!(
        show(&mut client, &["WAITAOF", "0", "1", "0"]).lines().last(),
        Some("2) (integer) 1")
    );
}
