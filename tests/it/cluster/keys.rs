//! The names of the keys of a slot: a node with many keys lists them when somebody asks, some in
//! each turn.

use std::collections::BTreeSet;

use crate::cluster::nodes::{Node, cluster_with};
use crate::support::{Client, Reply, TestServer};

/// So many keys that no request lists them in its own turn.
const KEYS: usize = 60_000;

fn node_with_keys() -> Node {
    let mut nodes = cluster_with(1, 1, "enable-debug-command yes\nmaxmemory 1gb");
    let node = nodes.pop().expect("a node");
    node.ok(&format!("DEBUG POPULATE {KEYS} key 3"));
    let script = "for i = 1, 100 do redis.call('set', '{a}'..i, i) end";
    node.connect().call(&["EVAL", script, "1", "{a}"]);
    node
}

fn names(reply: Reply) -> BTreeSet<Vec<u8>> {
    let Reply::Array(names) = reply else { panic!("{reply:?}") };
    let name = |reply| match reply {
        Reply::Bulk(name) => name,
        other => panic!("{other:?}"),
    };
    names.into_iter().map(name).collect()
}

fn slot_of_a(node: &Node) -> String {
    match node.call("CLUSTER KEYSLOT {a}") {
        Reply::Integer(slot) => slot.to_string(),
        other => panic!("{other:?}"),
    }
}

fn keys_of(client: &mut Client, slot: &str) -> BTreeSet<Vec<u8>> {
    names(client.call(&["CLUSTER", "GETKEYSINSLOT", slot, "1000"]))
}

#[test]
fn many_keys_are_listed_while_they_change_and_others_are_served() {
    let node = node_with_keys();
    let slot = slot_of_a(&node);
    let (mut asks, mut writes) = (node.connect(), node.connect());
    asks.send(&["CLUSTER", "GETKEYSINSLOT", &slot, "1000"]);
    asks.send(&["CLUSTER", "GETKEYSINSLOT", &slot, "1000"]);
    asks.send(&["CLUSTER", "COUNTKEYSINSLOT", &slot]);
    for number in 1..=50 {
        writes.call(&["DEL", &format!("{{a}}{number}")]);
        writes.call(&["SET", &format!("{{a}}{}", number + 100), "1"]);
    }
    let mut reply = || asks.reply().expect("a reply");
    let (_, _, count) = (names(reply()), names(reply()), reply());
    assert!(matches!(count, Reply::Integer(100..=150)), "{count:?}");
    let expected: BTreeSet<Vec<u8>> =
        (51..=150).filter_map(|number| format!("{{a}}{number}").into_bytes().into()).collect();
    let found: BTreeSet<Vec<u8>> =
        keys_of(&mut writes, &slot).into_iter().filter(|name| name.starts_with(b"{a}")).collect();
    assert_eq!(found, expected);
    assert_ne!(node.field("mem_not_counted_for_evict"), "0");
}

#[test]
fn a_transaction_and_a_script_list_many_keys_at_once() {
    let node = node_with_keys();
    let slot = slot_of_a(&node);
    let mut client = node.connect();
    client.call(&["MULTI"]);
    client.call(&["CLUSTER", "GETKEYSINSLOT", &slot, "1000"]);
    let Reply::Array(mut replies) = client.call(&["EXEC"]) else { panic!("an array") };
    let listed = names(replies.pop().expect("a reply"));
    assert!(listed.len() >= 100 && listed == keys_of(&mut client, &slot));
    // A new node, without the lists.
    let node = node_with_keys();
    let script = "return redis.call('cluster', 'getkeysinslot', ARGV[1], 1000)";
    let mut client = node.connect();
    let by_script = names(client.call(&["EVAL", script, "0", &slot]));
    assert_eq!(by_script, keys_of(&mut client, &slot));
}

#[test]
fn clients_that_wait_for_the_list_may_go_and_the_keys_too() {
    let node = node_with_keys();
    let slot = slot_of_a(&node);
    let mut clients: Vec<Client> = (0..4).map(|_| node.connect()).collect();
    for client in &mut clients {
        client.send(&["CLUSTER", "GETKEYSINSLOT", &slot, "1000"]);
    }
    clients.truncate(2);
    node.ok("FLUSHALL");
    for client in &mut clients {
        let listed = names(client.reply().expect("a reply"));
        assert!(listed.is_empty() || listed.len() >= 100, "{listed:?}");
    }
    assert!(keys_of(&mut clients[0], &slot).is_empty());
    node.ok("SET {a}1 1");
    assert_eq!(keys_of(&mut clients[0], &slot).len(), 1);
}

#[test]
fn a_slot_among_many_keys_is_flushed_and_scanned() {
    let node = node_with_keys();
    let slot = slot_of_a(&node);
    let mut client = node.connect();
    let (mut cursor, mut seen) = ("0".to_owned(), BTreeSet::new());
    loop {
        let call = ["CLUSTERSCAN", &cursor, "COUNT", "10000"];
        let Reply::Array(mut parts) = client.call(&call) else { panic!("an array") };
        for name in names(parts.pop().expect("keys")) {
            assert!(seen.insert(name), "a key twice");
        }
        let Some(Reply::Bulk(next)) = parts.pop() else { panic!("a cursor") };
        cursor = String::from_utf8(next).expect("text");
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(seen.len(), KEYS + 100);
    node.ok(&format!("CLUSTER FLUSHSLOT {slot}"));
    assert!(keys_of(&mut client, &slot).is_empty());
    let left = client.call(&["DBSIZE"]);
    assert!(matches!(left, Reply::Integer(size) if size as usize <= KEYS), "{left:?}");
}

/// Bytes of the list of the keys of database 0.
fn list_bytes(client: &mut Client) -> i64 {
    let Reply::Array(stats) = client.call(&["MEMORY", "STATS"]) else { panic!("an array") };
    let is_named = |reply: &Reply, name: &str| *reply == Reply::Bulk(name.as_bytes().to_vec());
    let value = |fields: &[Reply], name: &str| {
        let at = fields.iter().position(|field| is_named(field, name)).expect("a field");
        fields[at + 1].clone()
    };
    let Reply::Array(database) = value(&stats, "db.0") else { panic!("an array") };
    match value(&database, "overhead.hashtable.slot-to-keys") {
        Reply::Integer(bytes) => bytes,
        other => panic!("{other:?}"),
    }
}

#[test]
fn nothing_is_listed_for_a_slot_without_keys() {
    let node = node_with_keys();
    let mut client = node.connect();
    let empty = (0..16_384)
        .map(|slot| slot.to_string())
        .find(|slot| client.call(&["CLUSTER", "COUNTKEYSINSLOT", slot]) == Reply::Integer(0));
    let empty = empty.expect("a slot without keys");
    node.ok(&format!("CLUSTER FLUSHSLOT {empty}"));
    assert!(keys_of(&mut client, &empty).is_empty());
    client.call(&["CLUSTER", "GETKEYSINSLOT", &slot_of_a(&node), "0"]);
    assert_eq!(list_bytes(&mut client), 0);
    assert!(!keys_of(&mut client, &slot_of_a(&node)).is_empty());
    assert!(list_bytes(&mut client) > 6 * KEYS as i64);
}

#[test]
fn lists_are_dropped_a_minute_after_the_last_request() {
    let server = TestServer::start(&["cluster-enabled yes".into()]);
    let mut client = server.connect();
    client.call(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    server.advance(5_000_000);
    client.call(&["SET", "{a}1", "1"]);
    client.call(&["DEBUG", "POPULATE", "10000", "{a}key"]);
    let slot = "15495";
    assert!(!keys_of(&mut client, slot).is_empty());
    server.advance(50_000_000);
    assert!(!keys_of(&mut client, slot).is_empty());
    server.advance(50_000_000);
    assert!(list_bytes(&mut client) > 60_000);
    server.advance(11_000_000);
    assert_eq!(list_bytes(&mut client), 0);
    // Nor does a database that was emptied have one.
    assert!(!keys_of(&mut client, slot).is_empty());
    client.call(&["FLUSHALL"]);
    client.call(&["SET", "{a}1", "1"]);
    assert_eq!(list_bytes(&mut client), 0);
    assert_eq!(keys_of(&mut client, slot).len(), 1);
}
