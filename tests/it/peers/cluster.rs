//! CLUSTER SLOTS, SHARDS and NODES beside Valkey itself: one node each, configured alike, asked by
//! clients of both protocols. A replica in Valkey's cluster while slots move.
//!
//! Needs another server: `VALKEY=/path/valkey-server` (`make peer` names one). Names of nodes and
//! shards, ports and times differ from run to run, and are made alike.

use std::path::{Path, PathBuf};

use crate::cluster::nodes::{Node, eventually};
use crate::cluster::slot_migration::field;
use crate::support::peer::Peer;
use crate::support::ports::free_port;
use crate::support::{Client, Reply};

/// Lines of configuration; each is a case.
const CASES: &[&[&str]] = &[
    &[],
    &["cluster-announce-hostname node.example.org", "cluster-announce-human-nodename first"],
    &["cluster-preferred-endpoint-type hostname"],
    &[
        "cluster-announce-hostname node.example.org",
        "cluster-preferred-endpoint-type hostname",
        "availability-zone zone-1",
    ],
    &["cluster-preferred-endpoint-type unknown-endpoint", "cluster-announce-ip 10.0.0.1"],
    &["cluster-announce-client-ipv4 10.0.0.2", "cluster-announce-client-port 7001"],
    &["cluster-announce-port 7002", "cluster-announce-tls-port 7003"],
];

const REQUESTS: &[&str] = &[
    "CLUSTER SLOTS",
    "CLUSTER SHARDS",
    "CLUSTER NODES",
    "CLUSTER ADDSLOTSRANGE 0 100 300 300",
    "CLUSTER SLOTS",
    "CLUSTER SHARDS",
    "CLUSTER NODES",
    "CLUSTER DELSLOTS 50",
    "CLUSTER SLOTS",
    "CLUSTER SHARDS",
    "CLUSTER NODES",
    "GET {06S}key",
    "CLUSTERSCAN 0",
    "CLUSTER SLOT-STATS SLOTSRANGE 49 52",
    "CLUSTER SLOT-STATS ORDERBY key-count LIMIT 1",
    "CLUSTER FLUSHSLOT 49",
    "CLUSTER FLUSHSLOT 16384",
    "CLUSTER REPLICATE NO ONE",
    "CLUSTER REPLICATE NO TWO",
];

/// A reply without what is another in each run.
fn comparable(reply: &str, ports: [u16; 2], ids: &[String]) -> String {
    let mut text = reply.to_owned();
    for id in ids {
        text = text.replace(id, "ID");
    }
    for (port, word) in ports.iter().zip(["PORT", "BUS"]) {
        text = text.replace(&port.to_string(), word);
    }
    text
}

fn replies(program: &Path, lines: &[&str], version: &str) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let bus_port = free_port();
    let bus = format!("cluster-port {bus_port}");
    let mut all = vec!["cluster-enabled yes", &bus];
    all.extend(lines);
    let peer = Peer::start(program, folder.path(), &all);
    let mut client: Client = peer.connect();
    client.call(&["HELLO", version]);
    let mut ids = Vec::new();
    for request in ["MYID", "MYSHARDID"] {
        let shown = client.call(&["CLUSTER", request]).show();
        ids.push(shown.trim_matches('"').to_owned());
    }
    let reply = |request: &&str| {
        let args: Vec<&str> = request.split(' ').collect();
        let shown = client.call(&args).show();
        format!("{request}\n{}", comparable(&shown, [peer.address.port(), bus_port], &ids))
    };
    REQUESTS.iter().map(reply).collect()
}

fn valkey() -> PathBuf {
    PathBuf::from(std::env::var_os("VALKEY").expect("VALKEY names a server"))
}

#[test]
#[ignore = "needs VALKEY"]
fn nodes_tell_of_themselves_as_those_of_valkey_do() {
    let valkey = valkey();
    let ours = PathBuf::from(env!("CARGO_BIN_EXE_latchkey"));
    for case in CASES {
        for version in ["2", "3"] {
            let expected = replies(&valkey, case, version);
            let as_valkey = [&["compatible-with valkey-9"], *case].concat();
            let found = replies(&ours, &as_valkey, version);
            for (expected, found) in expected.iter().zip(&found) {
                assert_eq!(found, expected, "RESP{version}, {case:?}");
            }
        }
    }
}

#[test]
#[ignore = "needs VALKEY"]
fn a_replica_of_valkey_that_gets_all_data_during_a_move_hides_the_keys_that_have_come() {
    let folder = tempfile::tempdir().expect("a folder");
    let bus = format!("cluster-port {}", free_port());
    let lines = ["cluster-enabled yes", &bus, "repl-diskless-sync-delay 0"];
    let target = Peer::start(&valkey(), folder.path(), &lines);
    let lines = "compatible-with valkey-9\nenable-debug-command yes";
    let [source, replica] = [(); 2].map(|()| Node::start_in(tempfile::tempdir().unwrap(), lines));
    let mut client: Client = target.connect();
    client.call(&["CLUSTER", "ADDSLOTSRANGE", "1", "16383"]);
    source.ok("CLUSTER ADDSLOTS 0");
    source.ok("CLUSTER SET-CONFIG-EPOCH 1");
    for node in [&source, &replica] {
        let port = node.address.port().to_string();
        client.call(&["CLUSTER", "MEET", "127.0.0.1", &port, &node.bus_port.to_string()]);
    }
    let all = [&source, &replica];
    eventually("all nodes to know each other", &all, || {
        all.iter().all(|node| node.field("cluster_state") == "ok")
            && source.field("cluster_known_nodes") == "3"
    });
    (0..100).for_each(|number| source.ok(&format!("SET {{06S}}{number} value")));
    source.ok("DEBUG SLOTMIGRATION PREVENT-PAUSE 1");
    let id = client.call(&["CLUSTER", "MYID"]).show();
    let id = id.trim_matches('"');
    source.ok(&format!("CLUSTER MIGRATESLOTS SLOTSRANGE 0 0 NODE {id}"));
    eventually("the copy", &all, || field(&source, "state") == "waiting-to-pause");
    replica.ok(&format!("CLUSTER REPLICATE {id}"));
    eventually("the data", &all, || replica.field("master_link_status") == "up");
    assert_eq!(replica.call("CLUSTER COUNTKEYSINSLOT 0"), Reply::Integer(100));
    assert_eq!(replica.call("DBSIZE"), Reply::Integer(0));
    assert_eq!(field(&replica, "state"), "occurring-on-primary");
    source.ok("DEBUG SLOTMIGRATION PREVENT-PAUSE 0");
    eventually("success", &all, || field(&replica, "state") == "success");
    assert_eq!(replica.call("DBSIZE"), Reply::Integer(100));
}
