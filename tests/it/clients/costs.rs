//! What one request, or one client, may cost the others: time, memory, the length of a reply.
//!
//! Where work must not grow with the square of what a request says, the size is such that it would
//! take minutes: the reply would not come in time.

use std::collections::BTreeSet;
use std::net::Shutdown;

use crate::support::{Client, Reply, TestServer};

fn server() -> TestServer {
    TestServer::start(&[])
}

fn ok() -> Reply {
    Reply::Simple(b"OK".to_vec())
}

/// A request whose arguments behind the first ones are made of numbers.
fn numbered(first: &[&str], numbers: std::ops::Range<usize>, each: &[&str]) -> Vec<String> {
    let first = first.iter().map(|&word| word.to_owned());
    let more = numbers
        .flat_map(|number| each.iter().map(move |word| word.replace('#', &number.to_string())));
    first.chain(more).collect()
}

// ---- time ---------------------------------------------------------------------------------------

#[test]
fn many_keys_are_watched_in_one_request() {
    let server = server();
    let mut client = server.connect();
    let mut other = server.connect();
    for index in ["0", "1"] {
        client.call(&["SELECT", index]);
        let keys = numbered(&["WATCH"], 0..200_000, &["key:#"]);
        assert_eq!(client.call(&keys), ok());
        assert_eq!(client.call(&keys), ok());
    }
    other.call(&["SELECT", "1"]);
    assert_eq!(other.call(&["SET", "key:199999", "x"]), ok());
    client.call(&["MULTI"]);
    assert_eq!(client.call(&["EXEC"]), Reply::NullArray);
    client.call(&["MULTI"]);
    assert_eq!(client.call(&["EXEC"]), Reply::Array(Vec::new()));
}

#[test]
fn many_prefixes_are_tracked_in_one_request() {
    let server = server();
    let mut client = server.connect();
    client.call(&["HELLO", "3"]);
    let prefixes =
        numbered(&["CLIENT", "TRACKING", "ON", "BCAST"], 0..300_000, &["PREFIX", "prefix:#:"]);
    assert_eq!(client.call(&prefixes), ok());
    let overlapping = ["CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", "new:1", "PREFIX", "new:12"];
    let Reply::Error(_) = client.call(&overlapping) else { panic!("they overlap") };
    // A changed key is compared with few of them.
    let keys = numbered(&["MSET"], 0..200_000, &["prefix:#:k", "v"]);
    let mut other = server.connect();
    assert_eq!(other.call(&keys), ok());
    assert_eq!(client.call(&["PING"]), Reply::Simple(b"PONG".to_vec()));
}

#[test]
fn many_sets_are_intersected_in_one_request() {
    let server = server();
    let mut client = server.connect();
    let sets = 400_000;
    for number in 0..sets {
        client.send(&["SADD", &format!("set:{number}"), "member", "other"]);
        if number % 1000 == 999 {
            (0..1000).for_each(|_| drop(client.reply()));
        }
    }
    let mut keys = numbered(&["SINTER"], 0..sets, &["set:#"]);
    let Reply::Array(members) = client.call(&keys) else { panic!("a list of members") };
    assert_eq!(members.len(), 2);
    keys.push("set:0".into());
    keys[0] = "SINTERSTORE".into();
    keys.insert(1, "target".into());
    assert_eq!(client.call(&keys), Reply::Integer(2));
}

#[test]
fn clients_to_be_killed_are_found_among_many_numbers() {
    let server = server();
    let mut others: Vec<Client> = (0..200).map(|_| server.connect()).collect();
    others.iter_mut().for_each(|other| drop(other.call(&["PING"])));
    let mut client = server.connect();
    let ids = numbered(&["CLIENT", "KILL", "ID"], 1_000..1_000_000, &["#"]);
    assert_eq!(client.call(&ids), Reply::Integer(0));
    assert_eq!(client.call(&["CLIENT", "KILL", "ID", "900", "7", "8"]), Reply::Integer(2));
}

#[test]
fn a_few_elements_that_sort_leaves_unsorted_cost_as_little_in_a_long_collection() {
    let server = server();
    let mut client = server.connect();
    let many = 0..300_000;
    client.call(&numbered(&["RPUSH", "list"], many.clone(), &["element:#"]));
    client.call(&numbered(&["SADD", "set"], many.clone(), &["member:#"]));
    client.call(&numbered(&["SADD", "ints"], many.clone(), &["#"]));
    client.call(&numbered(&["ZADD", "zset"], many, &["#", "member:#"]));
    for key in ["list", "set", "ints", "zset"] {
        for direction in ["ASC", "DESC"] {
            let sort = ["SORT", key, "BY", "nosort", direction, "LIMIT", "5", "3"];
            let rounds = 10_000;
            (0..rounds).for_each(|_| client.send(&sort));
            for _ in 0..rounds {
                let Some(Reply::Array(elements)) = client.reply() else { panic!("three elements") };
                assert_eq!(elements.len(), 3, "{key} {direction}");
            }
        }
    }
}

// ---- pages of a scan ----------------------------------------------------------------------------

/// Walks from cursor 0 on; how many elements each call returned, and all of them.
fn walk(client: &mut Client, scan: &[&str], count: &str, width: usize) -> (Vec<usize>, Vec<Reply>) {
    let (mut cursor, mut lengths, mut all) = ("0".to_owned(), Vec::new(), Vec::new());
    loop {
        let request = [scan, &[&cursor, "COUNT", count]].concat();
        let Reply::Array(mut reply) = client.call(&request) else { panic!("a page") };
        let (Some(Reply::Array(page)), Some(Reply::Bulk(next))) = (reply.pop(), reply.pop()) else {
            panic!("a cursor and elements")
        };
        lengths.push(page.len() / width);
        all.extend(page.into_iter().step_by(width));
        cursor = String::from_utf8(next).expect("a number");
        if cursor == "0" {
            return (lengths, all);
        }
    }
}

#[test]
fn a_page_of_a_scan_holds_no_more_than_was_asked_for() {
    let server = server();
    let mut client = server.connect();
    let long = "x".repeat(100);
    for size in [72, 1_000, 10_000] {
        client.call(&["FLUSHALL"]);
        let range = || 0..size;
        client.call(&numbered(&["MSET"], range(), &["key:#", "v"]));
        client.call(&numbered(&["HSET", "hash", "long", &long], 1..size, &["field:#", "v"]));
        client.call(&numbered(&["SADD", "set", &long], 1..size, &["member:#"]));
        client.call(&numbered(&["ZADD", "zset", "0.5", &long], 1..size, &["#", "member:#"]));
        for (scan, width, len) in [
            (&["SCAN"][..], 1, size + 3),
            (&["HSCAN", "hash"], 2, size),
            (&["SSCAN", "set"], 1, size),
            (&["ZSCAN", "zset"], 2, size),
        ] {
            for count in [1, 10, 50, 1_000_000] {
                let (lengths, all) = walk(&mut client, scan, &count.to_string(), width);
                let longest = lengths.iter().max().copied().unwrap_or_default();
                // Those whose hashes are equal as far as a cursor tells come together.
                let most = count + 3;
                assert!(longest <= most, "{scan:?} {size} COUNT {count}: {longest}");
                let different: BTreeSet<String> = all.iter().map(Reply::show).collect();
                assert_eq!((all.len(), different.len()), (len, len), "{scan:?} COUNT {count}");
            }
        }
    }
}

#[test]
fn fifty_of_seventy_two_fields_make_a_page() {
    let server = server();
    let mut client = server.connect();
    let long = "x".repeat(100);
    client.call(&numbered(&["HSET", "hash"], 0..72, &["field:#", &long]));
    assert_eq!(walk(&mut client, &["HSCAN", "hash"], "50", 2).0, [50, 22]);
    // A listpack is returned whole.
    client.call(&numbered(&["HSET", "small"], 0..72, &["field:#", "v"]));
    client.call(&numbered(&["ZADD", "scores"], 0..72, &["#", "member:#"]));
    client.call(&numbered(&["SADD", "numbers"], 0..72, &["#"]));
    for (scan, width) in
        [(["HSCAN", "small"], 2), (["ZSCAN", "scores"], 2), (["SSCAN", "numbers"], 1)]
    {
        assert_eq!(walk(&mut client, &scan, "10", width).0, [72], "{scan:?}");
    }
}

// ---- clients that do not read -------------------------------------------------------------------

fn connected(client: &mut Client) -> usize {
    let Reply::Bulk(lines) = client.call(&["CLIENT", "LIST"]) else { panic!("a list") };
    lines.iter().filter(|&&byte| byte == b'\n').count()
}

#[test]
fn who_sends_no_more_and_takes_no_replies_is_closed() {
    let server = server();
    let mut other = server.connect();
    other.call(&["SET", "k", &"v".repeat(1_000_000)]);
    let mut ended = Vec::new();
    for words in [&["GET", "k"][..], &["QUIT"]] {
        let mut client = server.connect();
        (0..40).for_each(|_| client.send(&["GET", "k"]));
        client.send(words);
        server.settle();
        if words[0] != "QUIT" {
            client.shutdown(Shutdown::Write);
        }
        server.settle();
        ended.push(client);
    }
    assert_eq!(connected(&mut other), 3);
    // One takes something from time to time, the other nothing.
    for _ in 0..5 {
        server.advance(6_000_000);
        for _ in 0..4 {
            ended[0].reply().expect("a value");
            server.settle();
        }
    }
    assert_eq!(connected(&mut other), 2);
    (0..41 - 20).for_each(|_| drop(ended[0].reply().expect("a value")));
    assert_eq!(ended[0].reply(), None);
    assert_eq!(connected(&mut other), 1);
}

#[test]
fn a_blocked_client_is_listed_with_the_command_it_waits_in() {
    let server = server();
    let mut client = server.connect();
    client.send(&["BLPOP", "k", "0"]);
    server.settle();
    let Reply::Bulk(line) = server.connect().call(&["CLIENT", "LIST", "ID", "1"]) else {
        panic!("a line")
    };
    let line = String::from_utf8(line).expect("text");
    assert!(line.contains(" cmd=blpop "), "{line}");
}
