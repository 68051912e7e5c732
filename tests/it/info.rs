//! INFO, line by line: which fields there are in each section, in which order, and how their values
//! are written.
//!
//! `tests/data/info.txt` holds what sessions showed before INFO's lines came from the table of
//! figures. Values that depend on the machine or the moment are kept as their shape: each number as
//! `0`, each unit of memory as `U`. `UPDATE_INFO=1` writes the file anew; read the difference
//! before you commit it.

use crate::support::{Client, Reply, TestServer, wait_for};

/// Beginnings of fields whose values depend on the machine or the moment.
const VOLATILE: &[&str] = &[
    "redis_git",
    "redis_build_id",
    "os",
    "multiplexing_api",
    "process_id",
    "run_id",
    "tcp_port",
    "lru_clock",
    "executable",
    "listener",
    "latchkey_version",
    "client_recent",
    "used_",
    "allocator_",
    "total_system_memory",
    "rss_",
    "mem_",
    "instantaneous_",
    "total_net_",
    "total_reads",
    "total_writes",
    "eventloop_",
    "slave0",
    "master_repl",
    "second_repl",
    "repl_backlog_first",
    "repl_backlog_histlen",
    "master_port",
    "aof_current_size",
    "aof_base_size",
    "aof_buffer",
    "aof_pending_bio",
    "slave_read_repl",
    "slave_repl",
    "latency_percentiles",
    "cmdstat_",
    "number_of",
    "total_forks",
    "rdb_last",
    "current_",
    "lock_longest",
    "lazyfree",
    "io_threads",
    "rdb_changes",
    "total_commands",
    "total_connections",
    "sync_",
    "rdb_saves",
    "aof_last_cow",
    "master_sync",
    "connected_clients",
    "pubsub_clients",
    "loading",
    "rdb_bgsave",
    "repl_",
    "rdb_current",
    "server_time_usec",
    "aof_delayed_fsync",
    "aof_last_rewrite_time",
    "aof_current_rewrite",
    "rdb_current_bgsave",
    "uptime",
    "master_last_io",
    "master_current_sync",
    "master_total_sync",
    "master_link_up",
    "db",
];

fn shape(value: &str) -> String {
    let mut shape = String::new();
    let mut in_number = false;
    for letter in value.chars() {
        let is_digit = letter.is_ascii_digit();
        match letter {
            _ if is_digit && in_number => {}
            _ if is_digit => shape.push('0'),
            '-' if !in_number => {}
            'B' | 'K' | 'M' | 'G' | 'T' if in_number => shape.push('U'),
            _ => shape.push(letter),
        }
        in_number = is_digit;
    }
    shape.replace("0.0U", "0U")
}

fn masked(info: &str) -> String {
    let mut masked = String::new();
    for line in info.split("\r\n") {
        match line.split_once(':') {
            // Words of a random or foreign kind.
            Some((name, _))
                if [
                    "run_id",
                    "executable",
                    "os",
                    "redis_git_sha1",
                    "redis_build_id",
                    "listener0",
                    "master_replid",
                    "master_replid2",
                ]
                .contains(&name) =>
            {
                masked.push_str(&format!("{name}:...\n"));
            }
            Some((name, value)) if VOLATILE.iter().any(|start| name.starts_with(start)) => {
                masked.push_str(&format!("{name}:{}\n", shape(value)));
            }
            _ => masked.push_str(&format!("{line}\n")),
        }
    }
    masked
}

fn info(client: &mut Client, what: &str) -> String {
    match client.call(&["INFO", what]) {
        Reply::Bulk(text) => String::from_utf8(text).expect("INFO is text"),
        other => panic!("{other:?}"),
    }
}

fn run(client: &mut Client, request: &str) {
    client.call(&request.split(' ').collect::<Vec<_>>());
}

/// What a session shows with one `compatible-with`.
fn session(compatibility: &str) -> String {
    let lines = |more: &[&str]| {
        // How often the clock is moved until a replica is there differs, and pings would be counted.
        let own = ["maxmemory 1gb", "repl-timeout 1000000", "repl-ping-replica-period 1000000"];
        let compatible = format!("compatible-with {compatibility}");
        let own = own.map(str::to_owned).into_iter().chain([compatible]);
        own.chain(more.iter().map(|line| (*line).to_owned())).collect::<Vec<_>>()
    };
    let mut text = format!("==== {compatibility}: new, default\n");
    let primary =
        TestServer::start(&lines(&["repl-diskless-sync-delay 0", "min-replicas-to-write 0"]));
    let mut client = primary.connect();
    text.push_str(&masked(&info(&mut client, "default")));
    for request in [
        "SET a 1",
        "SET b 2 EX 1000000",
        "GET a",
        "GET nothing",
        "LPUSH a x",
        "NOSUCH",
        "HSET h f v",
        "SELECT 3",
        "SET c 1 PX 5",
        "SELECT 0",
        "EVAL return(1) 0",
        "CONFIG SET latency-tracking yes",
        "CONFIG SET appendonly yes",
        "LOCK.ACQUIRE lock me PX 100000000",
        "SUBSCRIBE channel",
        "UNSUBSCRIBE channel",
        "CLIENT TRACKING on",
        "CLIENT PAUSE 100000 WRITE",
        "CLIENT UNPAUSE",
    ] {
        run(&mut client, request);
    }
    let mut waiting = primary.connect();
    waiting.send(&["LOCK.ACQUIRE", "lock", "you", "PX", "100000000", "BLOCK", "0"]);
    let mut popping = primary.connect();
    popping.send(&["BLPOP", "queue", "0"]);
    wait_for("both to wait", || {
        primary.settle();
        info(&mut client, "clients").contains("blocked_clients:2").then_some(())
    });
    // The replica gets no deletion of the key whose time is over.
    wait_for("the key's end", || {
        primary.step(10_000);
        (!info(&mut client, "keyspace").contains("db3")).then_some(())
    });
    let replica = TestServer::start(&lines(&[]));
    let mut of_replica = replica.connect();
    run(&mut of_replica, &format!("REPLICAOF 127.0.0.1 {}", primary.address.port()));
    wait_for("the link", || {
        primary.step(100_000);
        replica.step(100_000);
        let is_up = info(&mut of_replica, "replication").contains("master_link_status:up");
        (is_up && info(&mut client, "replication").contains("state=online")).then_some(())
    });
    wait_for("the rewrite", || {
        primary.step(100_000);
        info(&mut client, "persistence").contains("aof_rewrite_in_progress:0").then_some(())
    });
    text.push_str(&format!("==== {compatibility}: a primary, everything\n"));
    text.push_str(&masked(&info(&mut client, "everything")));
    text.push_str(&format!("==== {compatibility}: a replica, all\n"));
    text.push_str(&masked(&info(&mut of_replica, "all")));
    run(&mut of_replica, "REPLICAOF 127.0.0.1 1");
    wait_for("the failed link", || {
        info(&mut of_replica, "replication").contains("master_link_failure").then_some(())
    });
    text.push_str(&format!("==== {compatibility}: without its primary, replication\n"));
    text.push_str(&masked(&info(&mut of_replica, "replication")));
    text
}

const REWRITE: &str =
    "if the change is meant, UPDATE_INFO=1 cargo test --test it info:: writes it anew";

#[test]
fn info_is_written_as_it_always_was() {
    let sessions = ["redis-7.2", "redis-8", "valkey-9"].map(session).concat();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/info.txt");
    if std::env::var_os("UPDATE_INFO").is_some() {
        std::fs::write(path, &sessions).expect("the file can be written");
    }
    let kept = std::fs::read_to_string(path).expect("the file is there");
    for (number, (shown, kept)) in sessions.lines().zip(kept.lines()).enumerate() {
        assert_eq!(shown, kept, "tests/data/info.txt:{}: {REWRITE}", number + 1);
    }
    assert_eq!(
        sessions.lines().count(),
        kept.lines().count(),
        "lines of tests/data/info.txt: {REWRITE}"
    );
}
