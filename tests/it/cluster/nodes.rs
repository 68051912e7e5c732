//! Nodes of a cluster in threads of this process, over real sockets and on the real clock: they
//! find each other, serve their slots, replace a primary that is gone, and remember all this in
//! nodes.conf.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

use latchkey::clock::{Clock, ManualClock};
use latchkey::config::Config;
use latchkey::server::{Ending, Handle, Server};
use latchkey::sys::log::{Level, Logger};

use crate::support::ports::free_port;
use crate::support::{Client, Reply, wait_for};

const SLOTS: usize = 16_384;
/// `cluster-node-timeout`.
const TIMEOUT_MS: i64 = 1500;

/// A node, stopped when it is dropped.
pub struct Node {
    folder: tempfile::TempDir,
    pub address: SocketAddr,
    pub bus_port: u16,
    handle: Handle,
    thread: Option<JoinHandle<Ending>>,
}

fn anywhere() -> SocketAddr {
    "127.0.0.1:0".parse().expect("an address")
}

fn configured(folder: &Path, lines: &str) -> Config {
    let folder = folder.display();
    let text = format!(
        "bind 127.0.0.1\nport 0\nsave \"\"\ncluster-enabled yes\ncluster-node-timeout {TIMEOUT_MS}\nrepl-diskless-sync-delay 0\n\
         dir {folder}\nlogfile {folder}/log\n{lines}"
    );
    Config::from_text(text.as_bytes()).expect("the test's configuration is good")
}

impl Node {
    pub fn start() -> Node {
        Self::start_in(tempfile::tempdir().expect("a folder"), "")
    }

    /// Starts a node whose clock the test moves.
    pub fn start_on(clock: &ManualClock) -> Node {
        let folder = tempfile::tempdir().expect("a folder");
        Self::start_with(Clock::Manual(clock.clone()), folder, "")
    }

    /// Starts a node with the files of an earlier one, on ports that the system chooses.
    pub fn start_in(folder: tempfile::TempDir, lines: &str) -> Node {
        Self::start_with(Clock::System, folder, lines)
    }

    fn start_with(clock: Clock, folder: tempfile::TempDir, lines: &str) -> Node {
        let config = configured(folder.path(), lines);
        let logger = Logger::new(Some(Level::Verbose), &config.logfile);
        let mut server = Server::start(config, clock, logger).expect("the server starts");
        let address = server.listen_on(anywhere()).expect("a free port");
        let bus_port = server.listen_for_bus_on(anywhere()).expect("a free port").port();
        server.load().expect("the node's files can be read");
        let handle = server.handle();
        let thread = std::thread::spawn(move || server.run().expect("the loop ends in order"));
        Node { folder, address, bus_port, handle, thread: Some(thread) }
    }

    pub fn connect(&self) -> Client {
        Client::connect(self.address)
    }

    pub fn call(&self, line: &str) -> Reply {
        self.connect().call(&line.split(' ').collect::<Vec<_>>())
    }

    /// The text of a reply.
    pub fn text(&self, line: &str) -> String {
        match self.call(line) {
            Reply::Bulk(text) | Reply::Simple(text) => String::from_utf8_lossy(&text).into_owned(),
            other => panic!("{line}: {other:?}"),
        }
    }

    pub fn ok(&self, line: &str) {
        assert_eq!(self.call(line), Reply::Simple(b"OK".to_vec()), "{line}");
    }

    pub fn id(&self) -> String {
        self.text("CLUSTER MYID")
    }

    /// A field of CLUSTER INFO, or of INFO's sections.
    pub fn field(&self, name: &str) -> String {
        let text = self.text("CLUSTER INFO") + &self.text("INFO");
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.map(str::to_owned).unwrap_or_default()
    }

    /// Unix milliseconds of this node's last answer from another one.
    fn answered_ms(&self, other: &str) -> i64 {
        let nodes = self.text("CLUSTER NODES");
        let line = nodes.lines().find(|line| line.starts_with(other)).expect("a known node");
        line.split(' ').nth(5).and_then(|ms| ms.parse().ok()).expect("a time")
    }

    /// Waits for a turn that has begun after this call.
    pub fn settle(&self) {
        let before = self.handle.turns();
        wait_for("the turn after the next", || {
            self.handle.wake().expect("the loop can be woken");
            (self.handle.turns() >= before + 2).then_some(())
        });
    }

    pub fn meet(&self, other: &Node) {
        self.ok(&format!("CLUSTER MEET 127.0.0.1 {} {}", other.address.port(), other.bus_port));
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Ends the node; its folder stays.
    pub fn stop(mut self) -> tempfile::TempDir {
        self.end();
        std::mem::replace(&mut self.folder, tempfile::tempdir().expect("a folder"))
    }

    fn end(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        // While its first log is being written, a node refuses to end, as in Redis.
        while !thread.is_finished() {
            let _ = self.handle.stop();
            std::thread::sleep(Duration::from_millis(20));
        }
        if thread.join().is_err() && !std::thread::panicking() {
            panic!("the node has panicked");
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.end();
    }
}

/// Waits for something that takes gossip and timeouts.
pub fn eventually(what: &str, nodes: &[&Node], mut is_so: impl FnMut() -> bool) {
    let mut tries = 0;
    wait_for(what, || {
        tries += 1;
        if tries > 1_000 {
            for node in nodes {
                eprintln!("{}\n{}", node.text("CLUSTER NODES"), node.log());
            }
            panic!("waited too long for {what}");
        }
        if is_so() {
            return Some(());
        }
        std::thread::sleep(Duration::from_millis(50));
        None
    });
}

/// Nodes that know each other. The first `primaries` share all slots, the others follow one each.
pub fn cluster(count: usize, primaries: usize) -> Vec<Node> {
    cluster_with(count, primaries, "")
}

/// The same with further lines of configuration.
pub fn cluster_with(count: usize, primaries: usize, lines: &str) -> Vec<Node> {
    let folder = || tempfile::tempdir().expect("a folder");
    let nodes: Vec<Node> = (0..count).map(|_| Node::start_in(folder(), lines)).collect();
    for (number, node) in nodes.iter().enumerate().take(primaries) {
        let slots = number * SLOTS / primaries..(number + 1) * SLOTS / primaries;
        node.ok(&format!("CLUSTER ADDSLOTSRANGE {} {}", slots.start, slots.end - 1));
        node.ok(&format!("CLUSTER SET-CONFIG-EPOCH {}", number + 1));
    }
    nodes[1..].iter().for_each(|node| nodes[0].meet(node));
    let all: Vec<&Node> = nodes.iter().collect();
    eventually("all nodes to know each other", &all, || {
        nodes.iter().all(|node| node.field("cluster_known_nodes") == count.to_string())
    });
    for (number, node) in nodes.iter().enumerate().skip(primaries) {
        let primary = nodes[number % primaries].id();
        eventually("the primary to be known", &all, || {
            node.call(&format!("CLUSTER REPLICATE {primary}")) == Reply::Simple(b"OK".to_vec())
        });
    }
    eventually("the state to be ok everywhere", &all, || {
        nodes.iter().all(|node| {
            node.field("cluster_state") == "ok" && node.field("cluster_slots_ok") == "16384"
        })
    });
    eventually("the replicas to follow", &all, || {
        nodes[primaries..].iter().all(|node| node.field("master_link_status") == "up")
    });
    nodes
}

/// The node that a redirection names.
fn moved_to(reply: &Reply) -> Option<u16> {
    let Reply::Error(text) = reply else { return None };
    let text = std::str::from_utf8(text).ok()?.strip_prefix("MOVED ")?;
    text.rsplit(':').next()?.parse().ok()
}

#[test]
fn three_nodes_share_the_slots_and_messages() {
    let nodes = cluster(3, 3);
    // "foo" is in slot 12182, of the third node.
    let moved = nodes[0].call("SET foo bar");
    assert_eq!(moved_to(&moved), Some(nodes[2].address.port()));
    nodes[2].ok("SET foo bar");
    assert_eq!(nodes[2].field("cluster_enabled"), "1");
    let links: usize = nodes[0].field("cluster_connections").parse().expect("a number");
    assert_eq!(links, 4);
    // A message reaches the subscribers of every node, once.
    let mut listeners: Vec<Client> = nodes.iter().map(Node::connect).collect();
    for listener in &mut listeners {
        listener.call(&["SUBSCRIBE", "news"]);
    }
    nodes[1].call("PUBLISH news hello");
    for listener in &mut listeners {
        let message = listener.reply().expect("a message");
        let words = ["message", "news", "hello"].map(|word| Reply::Bulk(word.into()));
        assert_eq!(message, Reply::Array(words.to_vec()));
        assert_eq!(listener.call(&["PING"]).show(), "1) \"pong\"\n2) \"\"");
    }
}

#[test]
fn a_replica_takes_the_place_of_a_primary_that_is_gone_and_that_one_comes_back_as_its_replica() {
    let mut nodes = cluster(6, 3);
    nodes[0].ok("SET {06S}key value"); // slot 0
    let all: Vec<&Node> = nodes.iter().collect();
    eventually("the replica to have the write", &all, || {
        nodes[3].field("slave_repl_offset") == nodes[0].field("master_repl_offset")
    });
    let (old, new) = (nodes[0].id(), nodes[3].id());
    let folder = nodes.remove(0).stop();
    let all: Vec<&Node> = nodes.iter().collect();
    eventually("the failover", &all, || nodes[2].field("role") == "master");
    assert_eq!(nodes[2].id(), new);
    eventually("the state to be ok everywhere", &all, || {
        nodes.iter().all(|node| node.field("cluster_state") == "ok")
    });
    assert_eq!(nodes[2].text("GET {06S}key"), "value");
    // With other ports, which it tells the others.
    let back = Node::start_in(folder, "");
    assert_eq!(back.id(), old);
    let all: Vec<&Node> = nodes.iter().chain([&back]).collect();
    eventually("the old primary to follow the new one", &all, || {
        back.field("role") == "slave" && back.field("master_link_status") == "up"
    });
    assert_eq!(back.field("master_port"), nodes[2].address.port().to_string());
    let ids: BTreeSet<String> = back
        .text("CLUSTER NODES")
        .lines()
        .map(|line| line.split(' ').next().unwrap_or_default().to_owned())
        .collect();
    assert_eq!(ids, all.iter().map(|node| node.id()).collect());
}

#[test]
fn a_replica_that_is_asked_to_takes_over_without_losing_a_write() {
    let nodes = cluster(4, 3);
    let all: Vec<&Node> = nodes.iter().collect();
    let mut writer = nodes[0].connect();
    let mut written = 0;
    for _ in 0..100 {
        writer.call(&["INCR", "{06S}count"]);
        written += 1;
    }
    nodes[3].ok("CLUSTER FAILOVER");
    let moved = loop {
        let reply = writer.call(&["INCR", "{06S}count"]);
        match reply {
            Reply::Integer(_) => written += 1,
            other => break other,
        }
    };
    assert_eq!(moved_to(&moved), Some(nodes[3].address.port()));
    eventually("the old primary to follow the new one", &all, || {
        nodes[0].field("role") == "slave" && nodes[0].field("master_link_status") == "up"
    });
    assert_eq!(nodes[3].text("GET {06S}count"), written.to_string());
}

#[test]
fn the_bus_is_encrypted_and_asks_for_certificates() {
    let folder = tempfile::tempdir().expect("a folder");
    let pair = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let (certificate, key) = (folder.path().join("node.crt"), folder.path().join("node.key"));
    std::fs::write(&certificate, pair.cert.pem()).expect("a file");
    std::fs::write(&key, pair.signing_key.serialize_pem()).expect("a file");
    let (certificate, key) = (certificate.display(), key.display());
    let nodes = cluster_with(
        3,
        3,
        &format!(
            "tls-cluster yes\ntls-auth-clients no\ntls-cert-file {certificate}\ntls-key-file {key}\n\
             tls-ca-cert-file {certificate}\n"
        ),
    );
    assert_eq!(nodes[0].field("cluster_connections"), "4");
    // Without TLS nobody is listened to: a connection that says nothing sensible ends.
    let bus = SocketAddr::from(([127, 0, 0, 1], nodes[0].bus_port));
    let mut stranger = TcpStream::connect(bus).expect("it accepts");
    let _ = stranger.write_all(b"RCmb\0\0\x08\xd0 no TLS here, just this text of some length");
    let mut bytes = [0; 64];
    while stranger.read(&mut bytes).is_ok_and(|count| count > 0) {}
}

#[test]
fn a_node_is_not_taken_for_dead_while_a_script_runs() {
    let nodes = cluster(4, 3);
    let mut client = nodes[0].connect();
    let id = nodes[0].id();
    let begun_ms = Clock::System.now().unix().0;
    client.send(&["EVAL", "local n = 0 while true do n = n + 1 end", "0"]);
    // The node answers for longer than the node timeout.
    for node in &nodes[1..] {
        eventually("an answer", &[node], || node.answered_ms(&id) > begun_ms + 2 * TIMEOUT_MS);
    }
    for node in &nodes[1..] {
        assert_eq!(node.field("cluster_state"), "ok");
        assert!(!node.log().contains("Marking node"), "{}", node.log());
        assert!(!node.text("CLUSTER NODES").contains("fail"));
    }
    let all: Vec<&Node> = nodes[1..].iter().collect();
    eventually("the script to be busy", &all, || {
        nodes[0].call("SCRIPT KILL") == Reply::Simple(b"OK".to_vec())
    });
    assert!(matches!(client.reply(), Some(Reply::Error(_))));
    assert_eq!(nodes[0].field("cluster_state"), "ok");
}

#[test]
fn keys_of_a_slot_that_is_taken_are_deleted_here_and_at_the_replica() {
    let nodes = cluster(4, 3);
    let all: Vec<&Node> = nodes.iter().collect();
    for number in 0..1000 {
        nodes[0].connect().call(&["SET", &format!("{{06S}}{number}"), "value"]);
    }
    nodes[0].ok("SET bar value");
    eventually("the replica to have the writes", &all, || {
        nodes[3].call("DBSIZE") == Reply::Integer(1001)
    });
    nodes[1].ok(&format!("CLUSTER SETSLOT 0 NODE {}", nodes[1].id()));
    nodes[1].call("CLUSTER BUMPEPOCH");
    eventually("the keys to be gone", &all, || {
        nodes[0].call("DBSIZE") == Reply::Integer(1) && nodes[3].call("DBSIZE") == Reply::Integer(1)
    });
    assert_eq!(moved_to(&nodes[0].call("GET {06S}1")), Some(nodes[1].address.port()));
}

#[test]
fn two_nodes_do_not_share_a_file() {
    let node = Node::start();
    node.ok("CLUSTER ADDSLOTS 1 2 3");
    let config = configured(node.folder.path(), "");
    let logger = Logger::new(Some(Level::Verbose), &config.logfile);
    let mut other = Server::start(config, Clock::System, logger).expect("the server starts");
    other.listen_on(anywhere()).expect("a free port");
    let error = other.load().expect_err("the file is locked").to_string();
    assert_eq!(
        error,
        "Sorry, the cluster configuration file nodes.conf is already used by a different Redis Cluster node. Please make sure \
         that different nodes use different cluster configuration files."
    );
    assert!(node.log().contains(&format!("No cluster configuration found, I'm {}", node.id())));
}

#[test]
fn a_file_that_is_no_file_of_a_node_ends_the_start() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("nodes.conf"), "nonsense\n").expect("a file");
    let config = configured(folder.path(), "");
    let logger = Logger::new(Some(Level::Verbose), &config.logfile);
    let mut server = Server::start(config, Clock::System, logger).expect("the server starts");
    let error = server.load().expect_err("the file is corrupt").to_string();
    assert!(error.contains("corrupted cluster config file"), "{error}");
}

#[test]
fn the_keys_of_a_slot_are_flushed_at_the_replica_too() {
    for lines in ["", "compatible-with valkey-9\ncluster-databases 2\n"] {
        let nodes = cluster_with(2, 1, lines);
        let all: Vec<&Node> = nodes.iter().collect();
        for number in 0..100 {
            nodes[0].ok(&format!("SET {{06S}}{number} value"));
        }
        nodes[0].ok("SET other value");
        nodes[0].ok("CLUSTER FLUSHSLOT 0");
        assert_eq!(nodes[0].call("DBSIZE"), Reply::Integer(1));
        eventually("the replica to have it", &all, || nodes[1].call("DBSIZE") == Reply::Integer(1));
    }
}

#[test]
fn a_replica_takes_the_place_of_a_primary_that_ends_and_says_so() {
    let mut nodes = cluster(4, 3);
    let all: Vec<&Node> = nodes.iter().collect();
    let hello = nodes[3].call("HELLO").show();
    assert!(hello.contains("\"replica\""), "{hello}");
    nodes[0].ok("SET {06S}key value");
    eventually("the replica to have the write", &all, || {
        nodes[3].field("slave_repl_offset") == nodes[0].field("master_repl_offset")
    });
    nodes[0].connect().send(&["SHUTDOWN", "NOSAVE", "FAILOVER"]);
    let first = nodes.remove(0);
    let all: Vec<&Node> = nodes.iter().collect();
    eventually("the failover", &all, || nodes[2].field("role") == "master");
    let log = nodes[2].log();
    assert!(log.contains("Forced failover primary request accepted"), "{log}");
    // Nobody had to take it for dead.
    assert!(!nodes.iter().any(|node| node.log().contains("Marking node")), "{log}");
    assert_eq!(nodes[2].text("GET {06S}key"), "value");
    drop(first);
}

#[test]
fn a_replica_that_is_to_follow_nobody_is_an_empty_primary_of_its_own_shard() {
    let nodes = cluster(2, 1);
    let all: Vec<&Node> = nodes.iter().collect();
    nodes[0].ok("SET key value");
    eventually("the replica to have the write", &all, || {
        nodes[1].call("DBSIZE") == Reply::Integer(1)
    });
    assert_eq!(nodes[0].text("CLUSTER MYSHARDID"), nodes[1].text("CLUSTER MYSHARDID"));
    nodes[1].ok("CLUSTER REPLICATE NO ONE");
    eventually("the primary to know", &all, || {
        !nodes[0].text("CLUSTER NODES").contains("slave") && nodes[1].field("role") == "master"
    });
    assert_eq!(nodes[1].call("DBSIZE"), Reply::Integer(0));
    assert_eq!(nodes[0].call("DBSIZE"), Reply::Integer(1));
    assert_ne!(nodes[0].text("CLUSTER MYSHARDID"), nodes[1].text("CLUSTER MYSHARDID"));
}

#[test]
fn another_port_for_clients_leaves_the_bus_where_it_is() {
    let nodes = cluster(2, 2);
    let port = free_port();
    let id = nodes[0].id();
    let mut other = nodes[1].connect();
    nodes[0].ok(&format!("CONFIG SET port {port}"));
    let place = format!("{id} 127.0.0.1:{port}@{}", nodes[0].bus_port);
    wait_for("the other node to hear of it", || {
        std::thread::sleep(Duration::from_millis(20));
        let Reply::Bulk(text) = other.call(&["CLUSTER", "NODES"]) else { return None };
        String::from_utf8_lossy(&text).contains(&place).then_some(())
    });
}

/// In debug builds each kept reply is compared with a new one where it is given; here are the
/// events and the clients.
#[test]
fn replies_that_are_kept_are_those_that_would_be_made_anew() {
    let nodes = cluster_with(3, 2, "cluster-allow-replica-migration no\n");
    let mut random = fastrand::Rng::with_seed(7);
    let mut clients: Vec<Client> = nodes.iter().map(Node::connect).collect();
    let newer = nodes.iter().map(|node| {
        let mut client = node.connect();
        client.call(&["HELLO", "3"]);
        client
    });
    let newer: Vec<Client> = newer.collect();
    clients.extend(newer);
    let mut seen = BTreeSet::new();
    for _ in 0..400 {
        let node = &nodes[random.usize(..3)];
        match random.u8(..10) {
            0 => drop(node.call(&format!("CLUSTER DELSLOTS {}", random.u16(..16_384)))),
            1 => drop(node.call(&format!("CLUSTER ADDSLOTS {}", random.u16(..16_384)))),
            2 => {
                let word = ["ip", "hostname", "unknown-endpoint"][random.usize(..3)];
                node.ok(&format!("CONFIG SET cluster-preferred-endpoint-type {word}"));
            }
            3 => {
                let name = random.u8(..);
                node.ok(&format!("CONFIG SET cluster-announce-hostname host-{name}"));
            }
            4 => drop(node.call(&format!("SET {{06S}}{} value", random.u8(..)))),
            5 => drop(node.call("CLUSTER BUMPEPOCH")),
            6 => node.ok(&format!("CONFIG SET cluster-announce-client-port {}", random.u16(..))),
            7 => {
                let target = nodes[random.usize(..2)].id();
                drop(node.call(&format!("CLUSTER SETSLOT 1 MIGRATING {target}")));
            }
            _ => std::thread::sleep(Duration::from_millis(random.u64(..20))),
        }
        for client in &mut clients {
            let asked = ["SLOTS", "SHARDS", "NODES"][random.usize(..3)];
            // The second is the first's.
            let first = client.call(&["CLUSTER", asked]);
            let second = client.call(&["CLUSTER", asked]);
            assert!(!matches!(second, Reply::Error(_)), "{second:?}");
            seen.insert(format!("{first:?}").len());
        }
    }
    assert!(seen.len() > 10, "nothing has changed");
}

#[test]
fn a_node_whose_file_cannot_be_replaced_goes_on_if_it_may_and_saves_later() {
    let folder = tempfile::tempdir().expect("a folder");
    let inner = folder.path().join("inner");
    std::fs::create_dir(&inner).expect("a folder");
    let file = inner.join("nodes.conf");
    let lines = format!(
        "cluster-config-save-behavior best-effort\ncluster-config-file {}\n",
        file.display()
    );
    let node = Node::start_in(tempfile::tempdir().expect("a folder"), &lines);
    node.ok("CLUSTER ADDSLOTS 1");
    let away = folder.path().join("away");
    std::fs::rename(&inner, &away).expect("it moves");
    node.ok("CLUSTER ADDSLOTS 2");
    eventually("the failure to be logged", &[&node], || {
        node.log().contains("even though writing the cluster config file to disk failed")
    });
    assert_eq!(node.field("cluster_slots_assigned"), "2");
    std::fs::rename(&away, &inner).expect("it moves back");
    eventually("the file to be saved", &[&node], || {
        std::fs::read_to_string(&file).is_ok_and(|text| text.contains("connected 1-2"))
    });
}
