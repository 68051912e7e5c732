//! Locks and permits whose slot moves: the new owner protects, lists and ends them like its own, by
//! either way of slot migration.

use crate::cluster::nodes::{Node, cluster_with, eventually};
use crate::cluster::slot_migration::field;
use crate::locks::survival::granted;
use crate::support::{Client, Reply, encode};

const LOCKS: i64 = 20;

fn line(client: &mut Client, line: &str) -> Reply {
    client.call(&line.split(' ').collect::<Vec<_>>())
}

/// The node that has the slot of `{a}`, and one that does not; and that slot.
fn pair() -> ([Node; 2], i64) {
    let mut nodes = cluster_with(2, 2, "enable-debug-command yes").into_iter();
    let [second, first] = [(); 2].map(|()| nodes.next().expect("two nodes"));
    let Reply::Integer(slot) = first.call("CLUSTER KEYSLOT {a}") else { panic!("a slot") };
    ([first, second], slot)
}

/// Takes locks of all kinds and permits. The client of the session stays connected.
fn take_all(client: &mut Client) {
    client.call(&["HELLO", "3"]);
    for number in 0..LOCKS {
        granted(client, &format!("LOCK.ACQUIRE {{a}}lock{number} me PX 1000000"));
        let permit = line(client, &format!("SEM.ACQUIRE {{a}}sem{number} me LIMIT 1 PX 1000000"));
        assert!(!matches!(permit, Reply::Error(_)), "{permit:?}");
    }
    for reader in ["r1", "r2"] {
        granted(client, &format!("LOCK.ACQUIRE {{a}}shared {reader} PX 1000000 SHARED"));
    }
    granted(client, "LOCK.ACQUIRE {a}session me PX 60000 SESSION GRACE 50000");
}

/// Moves the slot by one command.
fn move_slot([source, target]: &[Node; 2], slot: i64) {
    source.ok(&format!("CLUSTER MIGRATESLOTS SLOTSRANGE {slot} {slot} NODE {}", target.id()));
    eventually("success", &[source, target], || field(target, "state") == "success");
}

/// Moves the slot key by key.
fn move_keys([source, target]: &[Node; 2], slot: i64) {
    target.ok(&format!("CLUSTER SETSLOT {slot} IMPORTING {}", source.id()));
    source.ok(&format!("CLUSTER SETSLOT {slot} MIGRATING {}", target.id()));
    let Reply::Array(keys) = source.call(&format!("CLUSTER GETKEYSINSLOT {slot} 1000")) else {
        panic!("keys")
    };
    let keys = keys.iter().map(|key| match key {
        Reply::Bulk(key) => &**key,
        other => panic!("{other:?}"),
    });
    let port = target.address.port().to_string();
    let order = [&b"MIGRATE"[..], b"127.0.0.1", port.as_bytes(), b"", b"0", b"5000", b"KEYS"];
    let request: Vec<&[u8]> = order.into_iter().chain(keys).collect();
    assert_eq!(source.connect().call(&request), Reply::Simple(b"OK".to_vec()));
    target.ok(&format!("CLUSTER SETSLOT {slot} NODE {}", target.id()));
    source.ok(&format!("CLUSTER SETSLOT {slot} NODE {}", target.id()));
}

fn locks_are_the_new_owners(moves: fn(&[Node; 2], i64)) {
    let (nodes, slot) = pair();
    let [source, target] = &nodes;
    let mut holder = source.connect();
    take_all(&mut holder);
    let held = (LOCKS + 2).to_string();
    assert_eq!(source.field("locks_held"), held);
    moves(&nodes, slot);
    eventually("the locks at their new owner", &[source, target], || {
        target.field("locks_held") == held
    });
    assert_eq!(target.field("sem_permits_held"), LOCKS.to_string());
    eventually("no lock where they were", &[source, target], || source.field("locks_held") == "0");
    // A moved lock has not ended, but its session must be attached at its new owner.
    holder.call(&["PING"]);
    let reasons = holder.pushes.iter().map(|push| match push {
        Reply::Push(items) => items.last().cloned(),
        other => panic!("{other:?}"),
    });
    let moved = Some(Reply::Bulk(b"moved".to_vec()));
    let told = reasons.inspect(|reason| assert_eq!(*reason, moved)).count() as i64;
    assert_eq!(told, LOCKS + 3);
    assert_eq!(source.field("lock_expired_total"), "0");

    let mut other = target.connect();
    let info = format!("{:?}", line(&mut other, "LOCK.INFO {a}session"));
    assert!(info.contains("50000"), "{info}");
    let Reply::Integer(left) = line(&mut other, "PTTL {a}session") else { panic!("a number") };
    assert!((1..=50_000).contains(&left), "the session has its grace, not {left} ms");
    assert_eq!(line(&mut other, "LOCK.ATTACH me"), Reply::Integer(1));
    match line(&mut other, "LOCK.ACQUIRE {a}lock1 you PX 1000") {
        Reply::Array(items) => assert_eq!(items[0], Reply::Integer(0)),
        other => panic!("{other:?}"),
    }

    // Memory is short: other keys go, not these.
    let used: u64 = target.field("used_memory").parse().expect("a number");
    line(&mut other, "CONFIG SET maxmemory-policy allkeys-random");
    line(&mut other, &format!("CONFIG SET maxmemory {}", used + 500_000));
    let value = "x".repeat(1000);
    for number in 0..2000 {
        other.call(&["SET", &format!("{{b}}{number}"), &value]);
    }
    assert_ne!(target.field("evicted_keys"), "0");
    let kept = "local n = 0 for i = 0, 19 do n = n + redis.call('exists', '{a}lock'..i, '{a}sem'..i) \
                end return n + redis.call('exists', '{a}shared', '{a}session')";
    assert_eq!(other.call(&["EVAL", kept, "1", "{a}"]), Reply::Integer(2 * LOCKS + 2));
}

#[test]
fn locks_that_move_with_their_slot_are_the_new_owners() {
    locks_are_the_new_owners(move_slot);
}

#[test]
fn locks_that_move_key_by_key_are_the_new_owners() {
    locks_are_the_new_owners(move_keys);
}

fn unconfirmed_grants_are_sent_after_their_locks(moves: fn(&[Node; 2], i64), error: &str) {
    let (nodes, slot) = pair();
    let [source, target] = &nodes;
    let mut waits = source.connect();
    waits.call(&["HELLO", "3"]);
    waits.send(&"LOCK.ACQUIRE {a}1 me PX 600000 REPLICAS 2 600000".split(' ').collect::<Vec<_>>());
    let mut told = source.connect();
    told.call(&["HELLO", "3"]);
    line(&mut told, "LOCK.ACQUIRE {a}2 me PX 600000 ASYNC 1000 REPLICAS 2 600000");
    let mut other = source.connect();
    eventually("the grants", &[source], || source.field("locks_held") == "2");
    let fence = format!("{:?}", line(&mut other, "LOCK.INFO {a}1"));
    moves(&nodes, slot);
    let moved = format!("{error} {slot} 127.0.0.1:{}", target.address.port());
    assert_eq!(waits.reply(), Some(Reply::Error(moved.clone().into_bytes())));
    assert_eq!(waits.call(&["ECHO", "x"]), Reply::Bulk(b"x".to_vec()));
    assert!(waits.pushes.is_empty(), "{:?}", waits.pushes);
    eventually("the push", &[source], || {
        told.call(&["ECHO", "x"]);
        !told.pushes.is_empty()
    });
    let [Reply::Push(failed)] = &told.pushes[..] else { panic!("{:?}", told.pushes) };
    assert_eq!(failed[0], Reply::Bulk(b"lock-failed".to_vec()));
    let last = format!("{:?}", failed.last());
    let expected = format!("{:?}", Some(Reply::Bulk(moved.into_bytes())));
    assert_eq!(last, expected);
    // The grant is valid where the lock is now.
    let (granted, _) = granted(&mut target.connect(), "LOCK.ACQUIRE {a}1 me PX 600000");
    assert!(fence.contains(&granted.to_string()), "{granted} {fence}");
}

#[test]
fn unconfirmed_grants_are_sent_after_a_slot_that_moves() {
    unconfirmed_grants_are_sent_after_their_locks(move_slot, "MOVED");
}

#[test]
fn unconfirmed_grants_are_sent_after_locks_that_move_one_by_one() {
    unconfirmed_grants_are_sent_after_their_locks(move_keys, "ASK");
}

#[test]
fn a_restored_lock_is_one_and_its_replaced_holder_is_told() {
    let node = Node::start();
    node.ok("CLUSTER ADDSLOTSRANGE 0 16383");
    eventually("an owner of all slots", &[&node], || {
        node.text("CLUSTER INFO").contains("state:ok")
    });
    let mut holder = node.connect();
    holder.call(&["HELLO", "3"]);
    granted(&mut holder, "LOCK.ACQUIRE {a}1 me PX 1000000");
    granted(&mut holder, "LOCK.ACQUIRE {a}shared me PX 1000000 SHARED");
    granted(&mut holder, "LOCK.ACQUIRE {a}session me PX 1000000 SESSION GRACE 1000");
    let mut dump = |key: &str| match holder.call(&["DUMP", key]) {
        Reply::Bulk(payload) => payload,
        other => panic!("{other:?}"),
    };
    let [alone, shared, session] = ["{a}1", "{a}shared", "{a}session"].map(&mut dump);
    for key in ["{a}2", "{a}3"] {
        granted(&mut holder, &format!("LOCK.ACQUIRE {key} you PX 1000000"));
    }
    for (key, payload) in [("{a}2", &alone), ("{a}3", &shared), ("{a}4", &alone)] {
        let request: [&[u8]; 5] = [b"RESTORE", key.as_bytes(), b"1000000", payload, b"REPLACE"];
        assert_eq!(holder.call(&request), Reply::Simple(b"OK".to_vec()));
    }
    eventually("six locks", &[&node], || node.field("locks_held") == "6");
    holder.call(&["PING"]);
    let bulk = |text: &str| Reply::Bulk(text.as_bytes().to_vec());
    for (push, key) in holder.pushes.iter().zip(["{a}2", "{a}3"]) {
        let Reply::Push(told) = push else { panic!("{push:?}") };
        assert_eq!((&told[1], &told[3]), (&bulk(key), &bulk("overwritten")));
    }
    assert_eq!(holder.pushes.len(), 2);

    // LOCK.ATTACH waits until the lock before it is known.
    let mut other = node.connect();
    let restore: [&[u8]; 5] = [b"RESTORE", b"{a}copy", b"1000000", &session, b"REPLACE"];
    holder.call(&["DEL", "{a}session"]);
    let attach: [&[u8]; 2] = [b"LOCK.ATTACH", b"me"];
    other.send_raw(&[encode(&restore), encode(&attach)].concat());
    assert_eq!(other.reply(), Some(Reply::Simple(b"OK".to_vec())));
    assert_eq!(other.reply(), Some(Reply::Integer(1)));
}
