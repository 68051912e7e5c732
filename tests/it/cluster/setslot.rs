//! CLUSTER SETSLOT of a primary with replicas, as in Valkey: they do it first, so that what moves
//! goes on moving after a failover. And SHUTDOWN SAFE.

use crate::cluster::nodes::{Node, cluster_with, eventually};
use crate::locks::survival::granted;
use crate::support::Reply;

const AS_VALKEY: &str =
    "compatible-with valkey-9\ncluster-allow-replica-migration no\nenable-debug-command yes\n";

/// Whether a node says that a slot moves.
fn says(node: &Node, text: &str) -> bool {
    node.text("CLUSTER NODES").contains(text)
}

fn error(node: &Node, line: &str) -> String {
    match node.call(line) {
        Reply::Error(text) => String::from_utf8_lossy(&text).into_owned(),
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn slots_go_on_moving_after_a_failover_at_either_end() {
    let nodes = cluster_with(4, 2, AS_VALKEY);
    let all: Vec<&Node> = nodes.iter().collect();
    let ids: Vec<String> = nodes.iter().map(Node::id).collect();
    nodes[0].ok(&format!("CLUSTER SETSLOT 0 MIGRATING {}", ids[1]));
    nodes[1].ok(&format!("CLUSTER SETSLOT 0 IMPORTING {}", ids[0]));
    // The replicas had it before the reply came.
    assert!(says(&nodes[2], &format!("[0->-{}]", ids[1])), "{}", nodes[2].text("CLUSTER NODES"));
    assert!(says(&nodes[3], &format!("[0-<-{}]", ids[0])), "{}", nodes[3].text("CLUSTER NODES"));

    nodes[3].ok("CLUSTER FAILOVER");
    eventually("the source to know the new target", &all, || {
        says(&nodes[0], &format!("[0->-{}]", ids[3]))
            && says(&nodes[2], &format!("[0->-{}]", ids[3]))
    });
    eventually("the old target to follow", &all, || nodes[1].field("master_link_status") == "up");
    assert!(says(&nodes[1], &format!("[0-<-{}]", ids[0])), "{}", nodes[1].text("CLUSTER NODES"));

    nodes[2].ok("CLUSTER FAILOVER");
    eventually("the target to know the new source", &all, || {
        says(&nodes[3], &format!("[0-<-{}]", ids[2]))
            && says(&nodes[1], &format!("[0-<-{}]", ids[2]))
    });
    eventually("the old source to follow", &all, || nodes[0].field("master_link_status") == "up");
    assert!(says(&nodes[0], &format!("[0->-{}]", ids[3])), "{}", nodes[0].text("CLUSTER NODES"));

    nodes[3].ok(&format!("CLUSTER SETSLOT 0 NODE {}", ids[3]));
    nodes[2].ok(&format!("CLUSTER SETSLOT 0 NODE {}", ids[3]));
    eventually("the move to be over everywhere", &all, || {
        !nodes.iter().any(|node| says(node, "[0-"))
    });
    nodes[3].ok("SET {06S}key value");
}

#[test]
fn fences_grow_at_the_target_before_it_owns_the_slot() {
    let mut nodes = cluster_with(2, 2, "").into_iter();
    let [source, target] = [(); 2].map(|()| nodes.next().expect("two nodes"));
    // It begins an epoch later than that of the target.
    let source = Node::start_in(source.stop(), "");
    let all = [&source, &target];
    eventually("the state to be ok", &all, || {
        all.iter().all(|node| node.field("cluster_state") == "ok")
    });
    let line = "LOCK.ACQUIRE {06S}lock owner PX 60000";
    let (first, _) = granted(&mut source.connect(), line);
    source.call("LOCK.RELEASE {06S}lock owner");
    // A fence's epoch is the second of its beginning.
    eventually("the next second", &all, || {
        let time = source.call("EVAL return(tonumber(redis.call('time')[1])) 0");
        matches!(time, Reply::Integer(now) if now > first >> 21)
    });
    target.ok(&format!("CLUSTER SETSLOT 0 IMPORTING {}", source.id()));
    source.ok(&format!("CLUSTER SETSLOT 0 MIGRATING {}", target.id()));
    let mut client = target.connect();
    client.call(&["ASKING"]);
    let (second, _) = granted(&mut client, line);
    assert!(second > first, "{second} after {first}");
}

#[test]
fn the_target_takes_a_slot_that_its_source_has_given_up() {
    let nodes = cluster_with(2, 2, AS_VALKEY);
    let all: Vec<&Node> = nodes.iter().collect();
    nodes[0].ok(&format!("CLUSTER SETSLOT 0 MIGRATING {}", nodes[1].id()));
    nodes[1].ok(&format!("CLUSTER SETSLOT 0 IMPORTING {}", nodes[0].id()));
    nodes[0].ok(&format!("CLUSTER SETSLOT 0 NODE {}", nodes[1].id()));
    eventually("the target to own it", &all, || {
        nodes[1].call("SET {06S}key value") == Reply::Simple(b"OK".to_vec())
    });
    assert!(!says(&nodes[1], "[0-"));
}

#[test]
fn a_new_replica_knows_which_slots_move() {
    let nodes = cluster_with(2, 2, AS_VALKEY);
    nodes[0].ok(&format!("CLUSTER SETSLOT 0 MIGRATING {}", nodes[1].id()));
    let replica = Node::start_in(tempfile::tempdir().expect("a folder"), AS_VALKEY);
    nodes[0].meet(&replica);
    let all = [&nodes[0], &nodes[1], &replica];
    eventually("all to know each other", &all, || {
        all.iter().all(|node| node.field("cluster_known_nodes") == "3")
    });
    replica.ok(&format!("CLUSTER REPLICATE {}", nodes[0].id()));
    let moving = format!("[0->-{}]", nodes[1].id());
    eventually("the replica to be told", &all, || says(&replica, &moving));

    // Without the replica the move is given up, of which it hears as it synchronises.
    let folder = replica.stop();
    eventually("its end", &[&nodes[0]], || nodes[0].field("connected_slaves") == "0");
    nodes[0].ok("CLUSTER SETSLOT 0 STABLE");
    nodes[0].ok("DEBUG CHANGE-REPL-ID");
    let replica = Node::start_in(folder, AS_VALKEY);
    let all = [&nodes[0], &nodes[1], &replica];
    eventually("the data", &all, || replica.field("master_link_status") == "up");
    assert!(!says(&replica, "[0-"), "{}", replica.text("CLUSTER NODES"));
}

#[test]
fn setslot_fails_if_replicas_do_not_repeat_it_in_time() {
    let nodes = cluster_with(3, 2, AS_VALKEY);
    let target = nodes[1].id();
    let migrating = format!("CLUSTER SETSLOT 0 MIGRATING {target}");
    for (rest, text) in [
        (" TIMEOUT", "ERR Missing timeout value"),
        (" TIMEOUT -1", "ERR timeout is negative"),
        (" TIMEOUT x", "ERR timeout is not an integer or out of range"),
    ] {
        assert_eq!(error(&nodes[0], &format!("{migrating}{rest}")), text);
    }
    let own = format!("CLUSTER SETSLOT 0 MIGRATING {}", nodes[0].id());
    assert_eq!(error(&nodes[0], &own), "ERR Target node is myself");
    let mut sleeper = nodes[2].connect();
    let refused = Reply::Error(b"NOREPLICAS Not enough good replicas to write.".to_vec());
    // The replica may repeat it before it falls asleep.
    eventually("the replica to sleep", &[&nodes[0]], || {
        sleeper.send(&["DEBUG", "SLEEP", "2"]);
        let told = nodes[0].call(&format!("{migrating} TIMEOUT 200"));
        sleeper.reply();
        if told != refused {
            nodes[0].ok("CLUSTER SETSLOT 0 STABLE");
        }
        told == refused
    });
    assert!(!says(&nodes[0], "[0-"));
    // Within a transaction nobody waits.
    let mut client = nodes[0].connect();
    client.call(&["MULTI"]);
    client.call(&migrating.split(' ').collect::<Vec<_>>());
    assert_eq!(client.call(&["EXEC"]), Reply::Array(vec![Reply::Simple(b"OK".to_vec())]));
    assert!(says(&nodes[0], "[0-"));
}

#[test]
fn a_primary_with_slots_does_not_shut_down_if_that_is_to_be_safe() {
    let node = Node::start();
    node.ok("CLUSTER ADDSLOTS 0");
    assert_eq!(error(&node, "SHUTDOWN NOSAVE SAFE"), "ERR Errors trying to SHUTDOWN. Check logs.");
    assert_eq!(node.text("PING"), "PONG");
    node.ok("CLUSTER DELSLOTS 0");
    node.connect().send(&["SHUTDOWN", "NOSAVE", "SAFE"]);
    drop(node);
}

#[test]
fn a_replica_with_a_log_becomes_an_empty_primary() {
    let nodes = cluster_with(2, 1, "compatible-with valkey-9\nappendonly yes\n");
    nodes[0].ok("SET {06S}key value");
    eventually("the replica to have it", &[&nodes[1]], || {
        nodes[1].call("DBSIZE") == Reply::Integer(1)
    });
    nodes[1].ok("CLUSTER REPLICATE NO ONE");
    assert_eq!(nodes[1].call("DBSIZE"), Reply::Integer(0));
    assert_eq!(nodes[1].field("role"), "master");
}
