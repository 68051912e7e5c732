//! Nodes of a cluster under hostile or unlucky conditions: strangers at the bus, parameters at
//! their ends, keys that are deleted in steps, and the counts of keys in slots after all that can
//! happen to keys.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::cluster::nodes::{Node, cluster, cluster_with, eventually};
use crate::support::{Client, Reply, START};
use latchkey::clock::ManualClock;

fn bus(node: &Node) -> TcpStream {
    let address = SocketAddr::from(([127, 0, 0, 1], node.bus_port));
    let stream = TcpStream::connect(address).expect("the bus listens");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    stream.set_write_timeout(Some(Duration::from_millis(500))).expect("a timeout");
    stream
}

/// The beginning of a message of this type with this length.
fn begin(kind: u16, length: u32) -> Vec<u8> {
    let mut bytes = b"RCmb".to_vec();
    bytes.extend_from_slice(&length.to_be_bytes());
    for number in [1, 7000, kind, 0] {
        bytes.extend_from_slice(&u16::to_be_bytes(number));
    }
    bytes
}

/// PING of a node that nobody knows.
fn stranger() -> Vec<u8> {
    let mut bytes = begin(0, 2_256);
    bytes.resize(40, 0);
    bytes.extend_from_slice(&[b'f'; 40]);
    bytes.resize(2_256, 0);
    bytes
}

#[test]
fn a_stranger_is_not_believed_to_send_a_large_message() {
    let node = Node::start();
    let mut stream = bus(&node);
    // PUBLISH of a gigabyte.
    stream.write_all(&begin(4, 1 << 30)).expect("it takes some");
    let mut rest = [0; 16];
    assert!(matches!(stream.read(&mut rest), Ok(0) | Err(_)), "the connection goes on");
    assert!(node.log().contains("Bad message length or signature received from Cluster bus."));
}

#[test]
fn who_asks_and_does_not_listen_is_not_served_without_end() {
    let node = Node::start();
    let mut stream = bus(&node);
    let questions: Vec<u8> = stranger().repeat(16);
    let mut written = 0;
    while stream.write_all(&questions).is_ok() {
        written += questions.len();
        assert!(written < 256 << 20, "{written}");
    }
    // It continues once the answers are read.
    let mut answer = vec![0; 2_256];
    stream.read_exact(&mut answer).expect("an answer");
    assert_eq!(&answer[..4], b"RCmb");
}

#[test]
fn parameters_at_their_ends_do_no_harm() {
    let clock = ManualClock::new(START);
    let node = Node::start_on(&clock);
    for line in [
        "cluster-node-timeout 9223372036854775807",
        "cluster-blacklist-ttl 9223372036854775807",
        "cluster-manual-failover-timeout 2147483647",
        "cluster-replica-validity-factor 2147483647",
        "repl-ping-replica-period 2147483647",
        "cluster-node-timeout 0",
        "cluster-node-timeout 9223372036854775807",
    ] {
        node.ok(&format!("CONFIG SET {line}"));
        drop(bus(&node));
        node.ok("CLUSTER MEET 127.0.0.1 1 1");
        clock.advance_us(150_000);
        node.settle();
        assert_eq!(node.text("PING"), "PONG");
    }
}

#[test]
fn what_would_break_nodes_conf_is_not_announced() {
    let node = Node::start();
    let mut client = node.connect();
    let mut set = |name: &str, value: &str| client.call(&["CONFIG", "SET", name, value]).show();
    for value in ["a b", "a,b", "a\nb", "10.0.0.1 x"] {
        let error = set("cluster-announce-ip", value);
        assert!(error.ends_with("cluster-announce-ip contains invalid character"), "{error}");
        let error = set("availability-zone", value);
        assert!(error.contains("invalid character"), "{error}");
    }
    assert!(set("cluster-announce-ip", &"1".repeat(46)).ends_with("is too long"));
    for value in ["::1", "10.0.0.1", "host.example", ""] {
        assert_eq!(set("cluster-announce-ip", value), "OK");
    }
    assert_eq!(set("availability-zone", "eu-west-1a"), "OK");
    assert_eq!(set("availability-zone", ""), "OK");
}

#[test]
fn a_script_says_nothing_of_its_callers_connection() {
    let nodes = cluster(3, 2);
    // The third node follows the first, which owns slot 0.
    let mut client = nodes[2].connect();
    client.call(&["EVAL", "return redis.call('READONLY')", "0"]);
    assert!(client.call(&["GET", "{06S}"]).show().contains("MOVED"));
    client.call(&["READONLY"]);
    client.call(&["EVAL", "return redis.call('READWRITE')", "0"]);
    assert_eq!(client.call(&["GET", "{06S}"]).show(), "(nil)");
    let id = nodes[1].id();
    nodes[0].ok(&format!("CLUSTER SETSLOT 12182 IMPORTING {id}"));
    let mut client = nodes[0].connect();
    client.call(&["EVAL", "return redis.call('ASKING')", "0"]);
    assert!(client.call(&["GET", "foo"]).show().contains("MOVED"));
    client.call(&["ASKING"]);
    assert_eq!(client.call(&["GET", "foo"]).show(), "(nil)");
}

#[test]
fn keys_that_are_being_deleted_are_gone_before_their_slot_comes_back() {
    let nodes = cluster(2, 2);
    let all: Vec<&Node> = nodes.iter().collect();
    let count = 30_000;
    let mut client = nodes[0].connect();
    for first in (0..count).step_by(1_000) {
        let script = "for n = ARGV[1], ARGV[1] + 999 do redis.call('SET', '{06S}' .. n, 'old') end";
        client.call(&["EVAL", script, "1", "{06S}", &first.to_string()]);
    }
    assert_eq!(nodes[0].call("CLUSTER COUNTKEYSINSLOT 0"), Reply::Integer(count));
    nodes[1].ok(&format!("CLUSTER SETSLOT 0 NODE {}", nodes[1].id()));
    nodes[1].call("CLUSTER BUMPEPOCH");
    eventually("the slot to go", &all, || client.call(&["GET", "{06S}1"]).show().contains("MOVED"));
    let id = nodes[1].id();
    // Whatever is left at this moment must not be taken for keys that have come.
    nodes[0].ok(&format!("CLUSTER SETSLOT 0 IMPORTING {id}"));
    assert_eq!(nodes[0].call("CLUSTER COUNTKEYSINSLOT 0"), Reply::Integer(0));
    client.call(&["ASKING"]);
    assert_eq!(client.call(&["SET", "{06S}1", "new"]).show(), "OK");
    // Some keys are deleted in each turn.
    for _ in 0..200 {
        client.call(&["PING"]);
    }
    assert_eq!(nodes[0].call("CLUSTER COUNTKEYSINSLOT 0"), Reply::Integer(1));
}

/// The keys of each slot as KEYS shows them.
fn by_slot(client: &mut Client) -> BTreeMap<i64, Vec<Vec<u8>>> {
    let Reply::Array(keys) = client.call(&["KEYS", "*"]) else { panic!("KEYS") };
    let mut slots: BTreeMap<i64, Vec<Vec<u8>>> = BTreeMap::new();
    for key in keys {
        let Reply::Bulk(key) = key else { panic!("a key") };
        let name = String::from_utf8(key.clone()).expect("a text");
        let Reply::Integer(slot) = client.call(&["CLUSTER", "KEYSLOT", &name]) else { panic!() };
        slots.entry(slot).or_default().push(key);
    }
    slots
}

/// Whether the counts and keys of all slots that ever had one agree with KEYS.
fn counts_agree(client: &mut Client, ever: &[i64]) -> bool {
    let slots = by_slot(client);
    ever.iter().all(|slot| {
        let mut keys = slots.get(slot).cloned().unwrap_or_default();
        let number = slot.to_string();
        let count = client.call(&["CLUSTER", "COUNTKEYSINSLOT", &number]);
        let Reply::Array(found) = client.call(&["CLUSTER", "GETKEYSINSLOT", &number, "100000"])
        else {
            return false;
        };
        let mut found: Vec<Vec<u8>> = found
            .into_iter()
            .map(|key| if let Reply::Bulk(key) = key { key } else { Vec::new() })
            .collect();
        keys.sort();
        found.sort();
        count == Reply::Integer(keys.len() as i64) && keys == found
    })
}

#[test]
fn the_counts_of_keys_in_slots_are_right_whatever_happens_to_keys() {
    let lines = "enable-debug-command yes\nappendonly yes\nappendfsync no\nmaxmemory-policy allkeys-random\n";
    let nodes = cluster_with(2, 1, lines);
    let all: Vec<&Node> = nodes.iter().collect();
    let (mut client, mut reader) = (nodes[0].connect(), nodes[1].connect());
    let tags = ["{06S}", "{foo}", "{bar}", "{a}", ""];
    let ever: Vec<i64> = (0..400)
        .filter_map(|number| {
            let key = format!("{}{}", tags[number % 5], number / 5);
            match client.call(&["CLUSTER", "KEYSLOT", &key]) {
                Reply::Integer(slot) => Some(slot),
                _ => None,
            }
        })
        .collect();
    let mut random = fastrand::Rng::with_seed(7);
    for round in 0..12 {
        for _ in 0..300 {
            let tag = tags[random.usize(..5)];
            let mut key = || format!("{tag}{}", random.u32(..80));
            let (one, other) = (key(), key());
            let (one, other) = (one.as_str(), other.as_str());
            let request: Vec<&str> = match random.u8(..24) {
                0..5 => vec!["SET", one, "value"],
                5 => vec!["SET", one, "value", "PX", "20"],
                6 => vec!["PEXPIRE", one, "5"],
                7 => vec!["EXPIRE", one, "-1"],
                8 => vec!["RENAME", one, other],
                9 => vec!["COPY", one, other, "REPLACE"],
                10 => vec!["COPY", one, other],
                11 => vec!["DEL", one, other],
                12 => vec!["UNLINK", one],
                13 => vec!["RPUSH", other, "a", "b"],
                14 => vec!["LPOP", other, "5"],
                15 => vec!["SUNIONSTORE", one, other],
                16 => vec![
                    "EVAL",
                    "redis.call('SET', KEYS[1], 1) redis.call('DEL', KEYS[2]) error('x')",
                    "2",
                    one,
                    other,
                ],
                17 => vec!["GETDEL", one],
                18 => vec!["XADD", one, "*", "f", "v"],
                19 => vec!["RESTORE", one, "0", "bad", "REPLACE"],
                20 => vec!["GETEX", one, "PX", "1"],
                21 => vec!["SETEX", one, "100", "v"],
                22 => vec!["MSETNX", one, "1", other, "2"],
                _ => vec!["BITOP", "NOT", one, other],
            };
            client.call(&request);
        }
        match round % 6 {
            0 => {
                // As in Redis, a reload drops the keys that expire in that moment, and tells no
                // replica.
                for number in 0..400 {
                    let key = format!("{}{}", tags[number % 5], number / 5);
                    client.call(&["EXPIRE", &key, "100", "XX"]);
                }
                client.call(&["DEBUG", "RELOAD"]);
            }
            1 => drop(client.call(&["FLUSHALL", "ASYNC"])),
            2 => {
                let dumped = client.call(&["DUMP", "{foo}1"]);
                if let Reply::Bulk(payload) = dumped {
                    let request: [&[u8]; 5] = [b"RESTORE", b"{foo}79", b"0", &payload, b"REPLACE"];
                    client.call(&request);
                }
            }
            3 => {
                client.call(&["CONFIG", "SET", "maxmemory", "1"]);
                client.call(&["SET", "{a}1", "x"]);
                client.call(&["CONFIG", "SET", "maxmemory", "0"]);
            }
            4 => drop(client.call(&["DEBUG", "LOADAOF"])),
            _ => drop(client.call(&["FLUSHALL", "SYNC"])),
        }
        eventually("the counts to agree", &all, || counts_agree(&mut client, &ever));
        eventually("the replica's counts to agree", &all, || {
            reader.call(&["DBSIZE"]) == client.call(&["DBSIZE"]) && counts_agree(&mut reader, &ever)
        });
    }
    // A replica that gets all data anew.
    nodes[1].ok("CONFIG SET repl-diskless-load swapdb");
    for line in ["DEBUG CHANGE-REPL-ID", "CLIENT KILL TYPE replica"] {
        client.call(&line.split(' ').collect::<Vec<_>>());
    }
    client.call(&["SET", "{a}last", "x"]);
    eventually("the replica to have all anew", &all, || {
        reader.call(&["DBSIZE"]) == client.call(&["DBSIZE"]) && counts_agree(&mut reader, &ever)
    });
}

#[test]
fn requests_after_a_change_of_role_see_it_in_the_same_turn() {
    let nodes = cluster(3, 2);
    let all: Vec<&Node> = nodes.iter().collect();
    nodes[0].ok("SET {06S} one");
    eventually("the replica to have it", &all, || {
        nodes[2].field("slave_repl_offset") == nodes[0].field("master_repl_offset")
    });
    let pipeline = |node: &Node, requests: &[&str]| -> Vec<String> {
        let mut client = node.connect();
        let lines: String = requests.iter().map(|line| format!("{line}\r\n")).collect();
        client.send_raw(lines.as_bytes());
        requests.iter().map(|_| client.reply().expect("a reply").show()).collect()
    };
    let replies = pipeline(&nodes[2], &["CLUSTER FAILOVER TAKEOVER", "SET {06S} two", "GET {06S}"]);
    assert_eq!(replies, ["OK", "OK", "\"two\""]);
    eventually("the old primary to follow", &all, || {
        nodes[0].field("role") == "slave" && nodes[0].field("master_link_status") == "up"
    });
    let replies = pipeline(&nodes[0], &["DBSIZE", "CLUSTER RESET", "DBSIZE", "CLUSTER RESET HARD"]);
    assert_eq!(replies, ["(integer) 1", "OK", "(integer) 0", "OK"]);
}
