//! The names of the keys of a slot: a node with many keys lists them when somebody asks, some in
//! each turn.

use std::collections::BTreeSet;

use crate::cluster::{Node, cluster_with};
use crate::support::{Client, Reply};

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
