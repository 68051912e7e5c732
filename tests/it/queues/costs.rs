//! What a change costs where very many wait, are delayed or pending: look-ups and woken clients are
//! counted. Each run of a waiting read looks its stream up once.

use crate::support::{Client, Reply, START, TestServer};

const WAITERS: usize = 200;
const READ: &str = "COUNT 1 BLOCK 0 CLAIM 30000 DUE later UNIT MS \
                    MAXDELIVERIES 5 DEADLETTER dead STREAMS jobs >";

fn ask(client: &mut Client, line: &str) -> Reply {
    client.call(&line.split(' ').collect::<Vec<_>>())
}

fn queue() -> (TestServer, Client) {
    let server = TestServer::start(&[]);
    let mut client = server.connect();
    ask(&mut client, "XGROUP CREATE jobs g 0 MKSTREAM");
    (server, client)
}

/// Adds entries with these numbers as IDs.
fn add(client: &mut Client, numbers: std::ops::Range<u64>) {
    let count = numbers.end - numbers.start;
    for number in numbers {
        client.send(&["XADD", "jobs", &format!("{number}-0"), "data", "x"]);
    }
    (0..count).for_each(|_| drop(client.reply()));
}

fn figure(client: &mut Client, name: &str) -> u64 {
    let Reply::Bulk(text) = ask(client, "INFO everything") else { panic!("a text") };
    let text = String::from_utf8_lossy(&text).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
    line.and_then(|figure| figure.parse().ok()).expect("a figure")
}

/// The look-ups to read while this happens, and the waiting clients that are served.
fn cost(server: &TestServer, client: &mut Client, cause: impl FnOnce(&mut Client)) -> (u64, u64) {
    server.settle();
    let before = ["keyspace_hits", "blocked_clients"].map(|name| figure(client, name));
    cause(client);
    server.settle();
    let after = ["keyspace_hits", "blocked_clients"].map(|name| figure(client, name));
    (after[0] - before[0], before[1] - after[1])
}

/// How many entries the reply to a read of one stream has.
fn entries(reply: &Reply) -> usize {
    let Reply::Array(streams) = reply else { return 0 };
    let Some(Reply::Array(stream)) = streams.first() else { return 0 };
    let Some(Reply::Array(entries)) = stream.get(1) else { return 0 };
    entries.len()
}

#[test]
fn a_job_wakes_one_of_many_workers_and_runs_at_most_three() {
    let (server, mut client) = queue();
    let mut workers: Vec<Client> = (0..WAITERS).map(|_| server.connect()).collect();
    for (number, worker) in workers.iter_mut().enumerate() {
        let line = format!("XREADGROUP GROUP g w{number} {READ}");
        worker.send(&line.split(' ').collect::<Vec<_>>());
    }
    while figure(&mut client, "blocked_clients") < WAITERS as u64 {
        server.settle();
    }
    let due = format!("ZADD later {} b", START.0 + 60_000);
    let causes: [(&str, u64); 6] = [
        ("XADD jobs 1-0 data a", 1),
        (&due, 0),
        ("XNACK jobs g FAIL IDS 1 1-0", 1),
        ("XNACK jobs g FAIL IDS 1 1-0 DELAY 1000", 0),
        ("XACKDEL jobs g IDS 1 1-0", 0),
        ("PING", 0),
    ];
    for (line, served) in causes {
        let (runs, were_served) = cost(&server, &mut client, |client| drop(ask(client, line)));
        assert_eq!(were_served, served, "{line}");
        assert!(runs <= served + 2, "{line}: {runs} looked for entries");
        if line.ends_with("1000") {
            let (runs, were_served) = cost(&server, &mut client, |_| server.advance(1_000_000));
            assert_eq!(were_served, 1, "the pause has ended");
            assert!(runs <= 3, "{runs} looked for entries after the pause");
        }
    }
    let (runs, were_served) = cost(&server, &mut client, |_| server.advance(60_000_000));
    assert_eq!(were_served, 1, "a delayed job is due");
    assert!(runs <= 4, "{runs} looked for entries when a job was due");
}

#[test]
fn pending_entries_without_data_are_passed_in_steps_and_once() {
    let (server, mut client) = queue();
    add(&mut client, 1..5002);
    assert_eq!(entries(&ask(&mut client, "XREADGROUP GROUP g w0 COUNT 5001 STREAMS jobs >")), 5001);
    ask(&mut client, "XTRIM jobs MAXLEN 1");
    server.advance(10_000_000);
    let read = "XREADGROUP GROUP g w1 COUNT 1 BLOCK 0 CLAIM 5000 STREAMS jobs >";
    let mut worker = server.connect();
    // The first run, and one a turn for each further thousand, after which the last entry is met.
    let (runs, _) = cost(&server, &mut client, |_| {
        worker.send(&read.split(' ').collect::<Vec<_>>());
        assert_eq!(entries(&worker.reply().expect("the last entry")), 1);
    });
    assert_eq!(runs, 6);
    // They are not met again.
    server.advance(10_000_000);
    let (runs, _) = cost(&server, &mut client, |_| {
        worker.send(&read.split(' ').collect::<Vec<_>>());
        assert_eq!(entries(&worker.reply().expect("the last entry")), 1);
    });
    assert_eq!(runs, 1);
    // Who cannot wait is answered at once.
    ask(&mut client, "DEBUG RELOAD");
    server.advance(10_000_000);
    let read = "XREADGROUP GROUP g w2 COUNT 1 CLAIM 5000 STREAMS jobs >";
    assert_eq!(entries(&ask(&mut client, read)), 1);
}

#[test]
fn an_alarm_rings_for_what_it_was_set_for_among_many() {
    let (server, mut client) = queue();
    add(&mut client, 1..20_001);
    let read = "XREADGROUP GROUP g w0 COUNT 20000 STREAMS jobs >";
    assert_eq!(entries(&ask(&mut client, read)), 20_000);
    for number in 0..20_000_i64 {
        let due_ms = START.0 + 3_600_000 + number;
        client.send(&["ZADD", "later", &due_ms.to_string(), &format!("job{number}")]);
    }
    (0..20_000).for_each(|_| drop(client.reply()));
    let mut worker = server.connect();
    let line = format!("XREADGROUP GROUP g w1 {READ}");
    worker.send(&line.split(' ').collect::<Vec<_>>());
    // Nothing rings before the first lease ends.
    let (runs, served) = cost(&server, &mut client, |_| server.advance(29_999_000));
    assert!(runs <= 1 && served == 0, "{runs} runs, {served} served before the end of a lease");
    let (runs, served) = cost(&server, &mut client, |_| server.advance(2_000));
    assert_eq!((runs, served), (1, 1));
    assert_eq!(entries(&worker.reply().expect("an abandoned entry")), 1);
}
