//! Clients that do not read what they are sent, and messages too large to be copied to each
//! listener.

use std::io::Write;
use std::net::TcpStream;

use crate::support::{Reply, TestServer};

/// More than the system's socket buffers and any limit here take.
const PLENTY: usize = 400;

fn config(lines: &[&str]) -> TestServer {
    let lines: Vec<String> = lines.iter().map(|&line| line.into()).collect();
    TestServer::start(&lines)
}

#[test]
fn a_large_message_reaches_listeners_of_both_protocols_whole() {
    let server = config(&[]);
    let payload = "0123456789".repeat(20_000);
    let mut old = server.connect();
    let mut new = server.connect();
    old.call(&["PSUBSCRIBE", "c*"]);
    new.call(&["HELLO", "3"]);
    new.send(&["SUBSCRIBE", "c"]);
    new.next_message().expect("a confirmation");
    let mut publisher = server.connect();
    for _ in 0..3 {
        assert_eq!(publisher.call(&["PUBLISH", "c", &payload]), Reply::Integer(2));
    }
    let bulk = |text: &str| Reply::Bulk(text.into());
    for _ in 0..3 {
        let message = vec![bulk("pmessage"), bulk("c*"), bulk("c"), bulk(&payload)];
        assert_eq!(old.next_message(), Some(Reply::Array(message)));
        let message = vec![bulk("message"), bulk("c"), bulk(&payload)];
        assert_eq!(new.next_message(), Some(Reply::Push(message)));
    }
}

#[test]
fn a_subscriber_that_does_not_read_is_cut_off_at_the_hard_limit() {
    let server = config(&["client-output-buffer-limit pubsub 256kb 0 0"]);
    let mut publisher = server.connect();
    // Small ones are copied to each listener, large ones shared.
    for payload in ["x".repeat(10_000), "x".repeat(100_000)] {
        let mut deaf = server.connect();
        deaf.call(&["SUBSCRIBE", "c"]);
        let cut = (0..PLENTY * 10)
            .any(|_| publisher.call(&["PUBLISH", "c", &payload]) == Reply::Integer(0));
        assert!(cut, "still connected");
    }
}

#[test]
fn a_subscriber_that_stays_over_the_soft_limit_is_cut_off_when_its_time_is_up() {
    let server = config(&["client-output-buffer-limit pubsub 0 64kb 10"]);
    let mut deaf = server.connect();
    deaf.call(&["SUBSCRIBE", "c"]);
    let mut publisher = server.connect();
    let payload = "x".repeat(100_000);
    for _ in 0..PLENTY {
        assert_eq!(publisher.call(&["PUBLISH", "c", &payload]), Reply::Integer(1));
    }
    server.advance(9_000_000);
    assert_eq!(publisher.call(&["PUBLISH", "c", "x"]), Reply::Integer(1));
    server.advance(2_000_000);
    server.settle();
    assert_eq!(publisher.call(&["PUBLISH", "c", "x"]), Reply::Integer(0));
}

#[test]
fn a_subscriber_that_catches_up_in_time_stays() {
    let server = config(&["client-output-buffer-limit pubsub 0 64kb 10"]);
    let mut slow = server.connect();
    slow.call(&["SUBSCRIBE", "c"]);
    let mut publisher = server.connect();
    let payload = "x".repeat(100_000);
    for _ in 0..PLENTY {
        publisher.call(&["PUBLISH", "c", &payload]);
    }
    server.advance(9_000_000);
    for _ in 0..PLENTY {
        slow.next_message().expect("a message");
    }
    server.advance(20_000_000);
    server.settle();
    assert_eq!(publisher.call(&["PUBLISH", "c", "x"]), Reply::Integer(1));
}

/// The beginning of a SET whose value never ends, so that the server keeps what comes of it.
const ENDLESS: &[u8] = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$200000000\r\n";

#[test]
fn the_largest_client_goes_when_all_together_hold_too_much() {
    let server = config(&["maxmemory-clients 32mb"]);
    let mut spared = server.connect();
    spared.call(&["CLIENT", "NO-EVICT", "on"]);
    let mut small = server.connect();
    for (client, bytes) in [(&mut spared, 2_000_000), (&mut small, 100_000)] {
        client.send_raw(ENDLESS);
        client.send_raw("x".repeat(bytes).as_bytes());
    }
    let mut large = TcpStream::connect(server.address).expect("the server takes connections");
    large.write_all(ENDLESS).expect("the server reads");
    let piece = [b'x'; 100_000];
    let cut = (0..1000).any(|_| large.write_all(&piece).is_err());
    assert!(cut, "still connected");
    let mut other = server.connect();
    assert_eq!(other.call(&["PING"]), Reply::Simple(b"PONG".into()));
    let Reply::Bulk(lines) = other.call(&["CLIENT", "LIST"]) else { panic!("not a list") };
    let lines = String::from_utf8(lines).expect("text");
    let ids: Vec<&str> = lines.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(ids, ["id=1", "id=2", "id=4"]);
}

#[test]
fn a_limit_that_no_client_could_keep_closes_none() {
    for lines in [&["maxmemory-clients 1"][..], &["maxmemory-clients 5%", "maxmemory 1mb"]] {
        let server = config(lines);
        let mut client = server.connect();
        for _ in 0..3 {
            client.send(&["PING"]);
            assert_eq!(client.reply(), Some(Reply::Simple(b"PONG".into())), "{lines:?}");
        }
        // 128 KiB remain the limit.
        let large = "x".repeat(200_000);
        client.send(&["SET", "k", &large]);
        client.send(&["PING"]);
        let mut other = server.connect();
        assert_eq!(other.call(&["PING"]), Reply::Simple(b"PONG".into()));
        other.send_raw(ENDLESS);
        other.send_raw(large.as_bytes());
        while other.reply().is_some() {}
    }
}

#[test]
fn watched_keys_count_as_the_clients_memory() {
    let server = config(&["maxmemory-clients 200kb"]);
    let mut other = server.connect();
    let mut watcher = server.connect();
    let name = "x".repeat(100);
    let kept = (0..5_000).take_while(|key| {
        watcher.send(&["WATCH", &format!("{name}{key}")]);
        watcher.reply().is_some()
    });
    let kept = kept.count();
    assert!((500..2_000).contains(&kept), "{kept} keys");
    assert_eq!(other.call(&["PING"]), Reply::Simple(b"PONG".into()));
    let mut watcher = server.connect();
    for key in 0..5_000 {
        let reply = watcher.call(&["WATCH", &format!("{name}{key}")]);
        assert_eq!(reply, Reply::Simple(b"OK".into()));
        watcher.call(&["UNWATCH"]);
    }
}

#[test]
fn a_large_request_is_shown_by_what_is_complete_and_what_is_not() {
    let server = config(&[]);
    let mut sender = TcpStream::connect(server.address).expect("the server takes connections");
    sender.write_all(ENDLESS).expect("the server reads");
    sender.write_all(&[b'x'; 700_000]).expect("the server reads");
    let mut other = server.connect();
    let mut line = String::new();
    for _ in 0..1_000 {
        server.settle();
        let (Reply::Verbatim(text) | Reply::Bulk(text)) =
            other.call(&["CLIENT", "LIST", "ID", "1"])
        else {
            panic!("a line");
        };
        line = String::from_utf8(text).expect("text");
        if line.contains(" qbuf=700000 ") {
            break;
        }
    }
    assert!(line.contains(" qbuf=700000 "), "{line}");
    assert!(line.contains(&format!(" argv-mem={} ", ENDLESS.len())), "{line}");
}

#[test]
fn info_tells_how_long_memory_has_been_over_its_limit() {
    let server = TestServer::start(&["maxmemory 1".into()]);
    let mut client = server.connect();
    let refused = client.call(&["SET", "k", "v"]);
    assert!(matches!(refused, Reply::Error(text) if text.starts_with(b"OOM")));
    server.advance(1_500_000);
    let Reply::Bulk(info) = client.call(&["INFO", "stats"]) else { panic!("INFO is a bulk") };
    let info = String::from_utf8_lossy(&info);
    assert!(info.contains("\r\ncurrent_eviction_exceeded_time:1500\r\n"), "{info}");
    assert!(info.contains("\r\ntotal_eviction_exceeded_time:1500\r\n"), "{info}");
}

#[test]
fn a_transaction_of_many_commands_is_queued_shown_and_run() {
    let server = config(&[]);
    let mut client = server.connect();
    client.call(&["MULTI"]);
    for _ in 0..100_000 {
        client.send(&["INCR", "n"]);
    }
    for _ in 0..100_000 {
        assert_eq!(client.reply(), Some(Reply::Simple(b"QUEUED".to_vec())));
    }
    let (Reply::Verbatim(line) | Reply::Bulk(line)) =
        server.connect().call(&["CLIENT", "LIST", "ID", "1"])
    else {
        panic!("a line");
    };
    let line = String::from_utf8(line).expect("text");
    assert!(line.contains(" multi=100000 ") && line.contains(" flags=x "), "{line}");
    let memory = line.split("multi-mem=").nth(1).and_then(|rest| rest.split(' ').next());
    let memory: usize = memory.and_then(|text| text.parse().ok()).expect("a number");
    assert!(memory > 100_000 * "INCRn".len(), "{line}");
    let Reply::Array(replies) = client.call(&["EXEC"]) else { panic!("an array") };
    assert_eq!(replies.len(), 100_000);
    assert_eq!(replies.last(), Some(&Reply::Integer(100_000)));
}

#[test]
fn info_counts_who_tracks_and_what() {
    let server = config(&["tracking-table-max-keys 3"]);
    let mut observer = server.connect();
    let mut counted = || {
        let Reply::Bulk(info) = observer.call(&["INFO"]) else { panic!("INFO is a bulk") };
        let info = String::from_utf8_lossy(&info).into_owned();
        let fields = ["clients", "total_keys", "total_items", "total_prefixes"];
        fields.map(|field| {
            let start = format!("tracking_{field}:");
            let line = info.lines().find_map(|line| line.strip_prefix(&start));
            line.and_then(|count| count.parse::<usize>().ok()).expect("a field of that name")
        })
    };
    let mut clients: Vec<_> = (0..3).map(|_| server.connect()).collect();
    clients[0].call(&["CLIENT", "TRACKING", "ON"]);
    clients[0].call(&["CLIENT", "TRACKING", "ON", "NOLOOP"]);
    clients[1].call(&["CLIENT", "TRACKING", "ON"]);
    clients[2].call(&["CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", "a", "PREFIX", "b"]);
    clients[0].call(&["MGET", "k", "l"]);
    clients[1].call(&["MGET", "l", "m"]);
    clients[2].call(&["MGET", "m", "n"]);
    assert_eq!(counted(), [3, 3, 4, 2]);
    clients[2].call(&["SET", "l", "1"]);
    assert_eq!(counted(), [3, 2, 2, 2]);
    let names: Vec<String> = (0..1500).map(|number| format!("key:{number}")).collect();
    let request: Vec<&str> =
        std::iter::once("MGET").chain(names.iter().map(|name| &**name)).collect();
    clients[0].call(&request);
    server.settle();
    assert_eq!(counted()[1], 3);
    clients.pop();
    server.settle();
    assert_eq!(counted()[0], 2);
    assert_eq!(counted()[3], 0);
    clients[1].call(&["CLIENT", "TRACKING", "OFF"]);
    clients[0].call(&["RESET"]);
    assert_eq!(counted()[0], 0);
    server.connect().call(&["FLUSHALL"]);
    assert_eq!(counted(), [0, 0, 0, 0]);
}

#[test]
fn blocked_clients_are_counted() {
    let server = config(&[]);
    let mut observer = server.connect();
    let mut counted = || match observer.call(&["INFO", "clients"]) {
        Reply::Bulk(text) => {
            let text = String::from_utf8_lossy(&text).into_owned();
            let line = text.lines().find(|line| line.starts_with("blocked_clients:"));
            line.expect("a line of that name").to_owned()
        }
        other => panic!("{other:?}"),
    };
    let mut waiting: Vec<_> = (0..3).map(|_| server.connect()).collect();
    waiting[0].send(&["BLPOP", "k", "0"]);
    waiting[1].send(&["BRPOP", "k", "other", "1"]);
    waiting[2].send(&["BLMPOP", "0", "1", "k", "LEFT"]);
    server.settle();
    assert_eq!(counted(), "blocked_clients:3");
    server.advance(1_000_000);
    assert_eq!(counted(), "blocked_clients:2");
    waiting.remove(0);
    server.settle();
    assert_eq!(counted(), "blocked_clients:1");
    assert_eq!(server.connect().call(&["RPUSH", "k", "x"]), Reply::Integer(1));
    assert_eq!(counted(), "blocked_clients:0");
}

#[test]
fn the_request_of_a_client_that_asks_for_itself_is_in_its_buffer_but_not_in_valkeys() {
    let server = config(&[]);
    let mut client = server.connect();
    let request = "*2\r\n$6\r\nCLIENT\r\n$4\r\nINFO\r\n";
    for (setting, expected) in [("redis-7.0", " qbuf=26 "), ("valkey-9", " qbuf=0 qbuf-free=0 ")] {
        client.call(&["CONFIG", "SET", "compatible-with", setting]);
        // Alone, and first and last of three.
        for count in [1, 3] {
            client.send_raw(request.repeat(count).as_bytes());
            for _ in 0..count {
                let reply = client.reply().expect("a line").show();
                assert!(reply.contains(expected), "{setting}: {reply}");
            }
        }
    }
}

/// A page of SCAN: the next cursor, and the keys.
fn scan(client: &mut crate::support::Client, cursor: &[u8]) -> (Vec<u8>, Vec<Reply>) {
    let reply = client.call(&[b"SCAN", cursor, b"COUNT", b"20"]);
    match reply {
        Reply::Array(mut parts) => match (parts.pop(), parts.pop()) {
            (Some(Reply::Array(keys)), Some(Reply::Bulk(cursor))) => (cursor, keys),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

#[test]
fn servers_with_one_hash_seed_continue_each_others_scans() {
    let servers =
        [config(&["hash-seed abc"]), config(&["hash-seed abc"]), config(&["hash-seed b"])];
    let mut clients = servers.each_ref().map(TestServer::connect);
    for number in 0..500 {
        // In another order.
        for (client, step) in clients.iter_mut().zip([1, 499, 1]) {
            client.call(&["SET", &format!("key:{}", number * step % 500), "x"]);
        }
    }
    let (mut cursor, mut found, mut pages) = (b"0".to_vec(), Vec::new(), 0);
    loop {
        let (next, keys) = scan(&mut clients[pages % 2], &cursor);
        (cursor, pages) = (next, pages + 1);
        found.extend(keys);
        if cursor == b"0" {
            break;
        }
    }
    found.sort_by_key(|key| format!("{key:?}"));
    found.dedup();
    assert!(pages > 10 && found.len() == 500, "{pages} pages, {} keys", found.len());
    let [first, .., other] = clients.each_mut().map(|client| client.call(&["KEYS", "*"]));
    assert_ne!(first, other, "another seed, another order");
}
