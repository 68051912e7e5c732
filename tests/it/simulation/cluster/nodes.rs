//! The nodes of a cluster, and what they tell of themselves.

use std::collections::BTreeSet;

use latchkey::collections::hash_slot::HashSlot;

use super::super::kinds::Kinds;
use super::super::network::{self, BUS_PORT, PORT};
use super::super::world::{MS, Options, SECOND, World};
use crate::support::Reply;

const SLOTS: i64 = 16_384;
pub const PRIMARIES: usize = 3;
/// Hash tags of the keys, which are in as many slots.
const TAGS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
/// The end of the name of the lock of each tag that nobody releases.
const KEPT: &str = ":kept";

/// The keys with one hash tag.
pub struct Tag {
    pub name: &'static str,
    pub slot: i64,
    /// The shard that owns the slot.
    pub home: usize,
    /// The slot is on its way, or may be.
    pub is_moving: bool,
    /// Moves that have begun, and those that have ended.
    pub changes: u64,
}

/// The nodes, in shards that stay the same.
pub struct Cluster {
    pub world: World,
    pub nodes: usize,
    /// The nodes of each shard.
    pub shards: Vec<Vec<usize>>,
    pub ids: Vec<String>,
    pub tags: Vec<Tag>,
    /// Nodes crash, and do not hear each other.
    pub is_restless: bool,
    /// What was answered is on disk.
    pub is_durable: bool,
    /// A replica has taken over, perhaps before its primary had deleted the keys of a slot that had
    /// left: they stay, as in Redis, until the slot comes back or the node starts anew.
    pub has_failed_over: bool,
    /// Keys that were found to have stayed so.
    pub strays: u32,
}

/// What a node says it is.
#[derive(Clone, Debug, PartialEq)]
pub enum Role {
    /// The number of its replicas.
    Primary(usize),
    /// The primary, and whether the link to it is up.
    Replica(Option<usize>, bool),
}

/// The text of a reply's part.
pub fn text(reply: &Reply) -> String {
    match reply {
        Reply::Bulk(text) | Reply::Simple(text) => String::from_utf8_lossy(text).into_owned(),
        Reply::Integer(number) => number.to_string(),
        other => other.show(),
    }
}

/// The node with this address, as text.
pub fn node_of(ip: &str, nodes: usize) -> Option<usize> {
    (0..nodes).find(|&node| network::address(node).ip().to_string() == ip)
}

impl Cluster {
    pub fn new(options: Options) -> Self {
        latchkey::sys::random::repeat_from(options.seed);
        let mut random = fastrand::Rng::with_seed(options.seed ^ 0x0063_6c75_7374);
        let is_restless = random.bool();
        let shapes: [&[usize]; 4] = [&[0, 1, 2], &[0, 1, 2], &[0, 0, 1], &[0, 1]];
        let replicas = shapes[random.usize(..shapes.len())];
        let nodes = PRIMARIES + replicas.len();
        let mut shards: Vec<Vec<usize>> = (0..PRIMARIES).map(|node| vec![node]).collect();
        for (index, &shard) in replicas.iter().enumerate() {
            shards[shard].push(PRIMARIES + index);
        }
        let mut common = common_lines(&mut random);
        if is_restless {
            // The form of Redis 7.0 has no shards: a former primary that starts again takes its
            // successor for a node of another one, which it must not follow here.
            common.push("compatible-with valkey-9".into());
        }
        let fsync = ["", "", "everysec", "always"][random.usize(..4)];
        if !fsync.is_empty() {
            common.push(format!("appendonly yes\nappendfsync {fsync}"));
        }
        let places = (0..=nodes).map(|node| {
            let mut lines = common.clone();
            lines.push(format!("cluster-announce-ip {}", network::address(node).ip()));
            (random.u64(..), lines)
        });
        let places = places.collect();
        let tick_us = [0, 5, 50][random.usize(..3)];
        let world = World::of((options, Kinds::NONE), random, tick_us, places);
        let tags = TAGS.iter().map(|name| {
            let slot = i64::from(HashSlot::of(name.as_bytes()).number());
            let home = (slot * PRIMARIES as i64 / SLOTS) as usize;
            Tag { name, slot, home, is_moving: false, changes: 0 }
        });
        let tags = tags.collect();
        let mut cluster = Cluster {
            world,
            nodes,
            shards,
            ids: Vec::new(),
            tags,
            is_restless,
            is_durable: fsync == "always",
            has_failed_over: false,
            strays: 0,
        };
        cluster.begin();
        cluster
    }

    /// Makes a cluster of the nodes.
    fn begin(&mut self) {
        for node in 0..self.nodes {
            self.world.start(node, None);
            let id = self.world.show(node, &["CLUSTER", "MYID"]);
            self.ids.push(id.trim_matches('"').to_owned());
            let epoch = (node + 1).to_string();
            self.must(node, &["CLUSTER", "SET-CONFIG-EPOCH", &epoch]);
        }
        for shard in 0..PRIMARIES {
            let bound = |shard: usize| (shard * SLOTS as usize).div_ceil(PRIMARIES);
            let (first, last) = (bound(shard).to_string(), (bound(shard + 1) - 1).to_string());
            self.must(shard, &["CLUSTER", "ADDSLOTSRANGE", &first, &last]);
        }
        let (port, bus_port) = (PORT.to_string(), BUS_PORT.to_string());
        for node in 1..self.nodes {
            let ip = network::address(node).ip().to_string();
            self.must(0, &["CLUSTER", "MEET", &ip, &port, &bus_port]);
        }
        let nodes = self.nodes;
        self.wait("the nodes know each other", 60, |cluster| {
            (0..nodes).all(|node| {
                let lines = cluster.world.show(node, &["CLUSTER", "NODES"]);
                cluster.ids.iter().all(|id| lines.contains(id.as_str()))
                    && !lines.contains("handshake")
            })
        });
        for shard in 0..PRIMARIES {
            let id = self.ids[shard].clone();
            for index in 1..self.shards[shard].len() {
                let replica = self.shards[shard][index];
                self.must(replica, &["CLUSTER", "REPLICATE", &id]);
            }
        }
        self.wait("all is well at the start", 60, |cluster| {
            cluster.why_disagreeing().is_none()
                && (0..PRIMARIES).all(|shard| cluster.is_calm(shard))
        });
        for tag in 0..self.tags.len() {
            let Tag { name, home, .. } = self.tags[tag];
            let key = format!("{{{name}}}{KEPT}");
            let mut words = vec!["LOCK.ACQUIRE", &key, "me", "PX", "86400000"];
            if tag % 2 == 1 {
                words.push("SHARED");
            }
            self.world.show(home, &words);
        }
    }

    /// Has a node do what it cannot refuse.
    fn must(&mut self, node: usize, words: &[&str]) {
        let told = self.world.show(node, words);
        if told != "OK" {
            self.world.fail(&format!("server {node}, {words:?}: {told}"));
        }
    }

    /// Lets time pass until something holds.
    pub fn wait(&mut self, what: &str, seconds: i64, mut holds: impl FnMut(&mut Cluster) -> bool) {
        let until_us = self.world.now_us + seconds * SECOND;
        while !holds(self) {
            if self.world.now_us > until_us {
                let why = self.why_disagreeing();
                self.world.fail(&format!("not within {seconds} seconds: {what} ({why:?})"));
            }
            for _ in 0..5 {
                self.world.step(20 * MS);
            }
        }
    }

    /// The number of replicas of each shard.
    pub fn replicas(&self) -> Vec<usize> {
        self.shards.iter().map(|nodes| nodes.len() - 1).collect()
    }

    pub fn shard_of(&self, node: usize) -> usize {
        self.shards.iter().position(|nodes| nodes.contains(&node)).expect("each node has one")
    }

    pub fn up(&self) -> Vec<usize> {
        (0..self.nodes).filter(|&node| self.world.is_up(node)).collect()
    }

    // ---- what nodes say -------------------------------------------------------------------------

    /// None: it does not run.
    pub fn role(&mut self, node: usize) -> Option<Role> {
        let Reply::Array(told) = self.world.ask(node, &["ROLE"])? else { return None };
        let role = match told.as_slice() {
            [_, _, Reply::Array(replicas)] => Role::Primary(replicas.len()),
            [_, ip, _, state, _] => {
                Role::Replica(node_of(&text(ip), self.nodes), text(state) == "connected")
            }
            other => self.world.fail(&format!("server {node}, ROLE: {other:?}")),
        };
        Some(role)
    }

    /// A node of a shard that takes itself for its primary.
    pub fn primary(&mut self, shard: usize) -> Option<usize> {
        let nodes = self.shards[shard].clone();
        nodes.into_iter().find(|&node| matches!(self.role(node), Some(Role::Primary(_))))
    }

    /// Whether all nodes of a shard run, and its replicas follow its primary.
    pub fn is_calm(&mut self, shard: usize) -> bool {
        let nodes = self.shards[shard].clone();
        let Some(primary) = self.primary(shard) else { return false };
        nodes.iter().all(|&node| match self.role(node) {
            Some(Role::Primary(replicas)) => node == primary && replicas == nodes.len() - 1,
            Some(Role::Replica(of, is_up)) => of == Some(primary) && is_up,
            None => false,
        })
    }

    /// Whether all nodes of a shard run, and each replica follows a primary of it. After misfortune
    /// there may be two: one that took a slot while it was cut off, and the other's successor.
    pub fn is_settled(&mut self, shard: usize) -> bool {
        let nodes = self.shards[shard].clone();
        nodes.iter().all(|&node| match self.role(node) {
            Some(Role::Primary(_)) => true,
            Some(Role::Replica(Some(of), is_up)) => {
                is_up && nodes.contains(&of) && matches!(self.role(of), Some(Role::Primary(_)))
            }
            _ => false,
        })
    }

    /// Who owns which slots, by a node: first, last, owner.
    fn map(&mut self, node: usize) -> Vec<(i64, i64, String)> {
        let Some(Reply::Array(ranges)) = self.world.ask(node, &["CLUSTER", "SLOTS"]) else {
            return Vec::new();
        };
        let mut map: Vec<(i64, i64, String)> = Vec::new();
        for range in ranges {
            let Reply::Array(range) = range else { continue };
            let [Reply::Integer(first), Reply::Integer(last), Reply::Array(owner), ..] =
                range.as_slice()
            else {
                self.world.fail(&format!("server {node}, CLUSTER SLOTS: {range:?}"));
            };
            map.push((*first, *last, text(&owner[2])));
        }
        map.sort();
        map
    }

    /// The owner of a slot, by a node.
    pub fn owner(&mut self, node: usize, slot: i64) -> Option<usize> {
        let map = self.map(node);
        let (_, _, id) = map.iter().find(|(first, last, _)| (*first..=*last).contains(&slot))?;
        self.ids.iter().position(|known| known == id)
    }

    /// What keeps the nodes from being one cluster. None: all run, own all slots, and agree on it.
    pub fn why_disagreeing(&mut self) -> Option<String> {
        let mut first: Option<Vec<(i64, i64, String)>> = None;
        for node in 0..self.nodes {
            let info = self.world.show(node, &["CLUSTER", "INFO"]);
            if !info.contains("cluster_state:ok") {
                return Some(format!("server {node} says that the cluster is not ok"));
            }
            let map = self.map(node);
            let mut next = 0;
            for (first, last, _) in &map {
                if *first != next {
                    return Some(format!("server {node} knows no owner of slot {next}"));
                }
                next = last + 1;
            }
            if next != SLOTS {
                return Some(format!("server {node} knows no owner of slot {next}"));
            }
            match &first {
                None => first = Some(map),
                Some(first) if *first != map => {
                    return Some(format!("servers 0 and {node} disagree: {first:?} and {map:?}"));
                }
                Some(_) => {}
            }
        }
        let owners: BTreeSet<String> = first?.into_iter().map(|(_, _, id)| id).collect();
        let shards: BTreeSet<usize> = owners
            .iter()
            .filter_map(|id| self.ids.iter().position(|known| known == id))
            .map(|node| self.shard_of(node))
            .collect();
        // A primary that took a slot while it was cut off keeps that one beside its successor.
        let is_two = owners.len() != shards.len() && !self.is_restless;
        is_two.then(|| format!("a shard has two owners of slots: {owners:?}"))
    }

    /// A node's slot migrations that have not ended.
    pub fn jobs(&mut self, node: usize) -> Vec<String> {
        let told = self.world.ask(node, &["CLUSTER", "GETSLOTMIGRATIONS"]);
        let Some(Reply::Array(jobs)) = told else { return Vec::new() };
        let mut open = Vec::new();
        for job in jobs {
            let Reply::Array(fields) = job else { continue };
            let fields: Vec<String> = fields.iter().map(text).collect();
            let field = |name: &str| {
                let found = fields.chunks(2).find(|field| field[0] == name);
                found.map_or(String::new(), |field| field[1].clone())
            };
            let state = field("state");
            if !["success", "failed", "cancelled"].contains(&state.as_str()) {
                let (operation, slots) = (field("operation"), field("slot_ranges"));
                open.push(format!("{operation} {slots} {state}"));
            }
        }
        open
    }

    // ---- what must hold at rest -----------------------------------------------------------------

    /// Each key is shown by its slot's owner and that one's replicas only, if no replica has taken
    /// over.
    pub fn check_places(&mut self) {
        let until_us = self.world.now_us + 10 * SECOND;
        loop {
            let Some(why) = self.stray() else { return };
            if self.world.now_us > until_us && self.has_failed_over {
                self.strays += 1;
                return;
            }
            if self.world.now_us > until_us {
                self.world.fail(&why);
            }
            self.world.step(20 * MS);
        }
    }

    /// A key that is shown where it does not belong.
    fn stray(&mut self) -> Option<String> {
        for tag in 0..self.tags.len() {
            let Tag { slot, home, name, .. } = self.tags[tag];
            let slot = slot.to_string();
            for node in 0..self.nodes {
                let words = ["CLUSTER", "GETKEYSINSLOT", &slot, "100"];
                let shown = self.world.show(node, &words);
                if self.shard_of(node) != home && shown != "(empty array)" {
                    return Some(format!(
                        "slot {slot} of {name} is of shard {home}, and server {node} has {shown}"
                    ));
                }
            }
        }
        None
    }

    /// The locks that nobody releases are known wherever their keys are shown, and nowhere else.
    pub fn check_locks(&mut self) {
        let until_us = self.world.now_us + 10 * SECOND;
        while let Some(why) = self.wrong_lock() {
            if self.world.now_us > until_us {
                self.world.fail(&why);
            }
            self.world.step(20 * MS);
        }
    }

    /// A lock that is shown but not known, or known but not shown.
    fn wrong_lock(&mut self) -> Option<String> {
        for tag in 0..self.tags.len() {
            let Tag { slot, name, .. } = self.tags[tag];
            let (slot, key) = (slot.to_string(), format!("{{{name}}}{KEPT}"));
            for node in 0..self.nodes {
                let keys = self.world.show(node, &["CLUSTER", "GETKEYSINSLOT", &slot, "1000"]);
                let locks = self.world.show(node, &["LOCK.LIST", "MATCH", &key]);
                if keys.contains(&key) != locks.contains(&key) {
                    return Some(format!("server {node} has keys {keys} and locks {locks}"));
                }
            }
        }
        None
    }

    /// Replicas have what their primary has.
    pub fn check_copies(&mut self) {
        for node in 0..self.nodes {
            let until_us = self.world.now_us + 20 * SECOND;
            while let Some(Role::Replica(Some(of), _)) = self.role(node) {
                let digests = [node, of].map(|node| self.world.show(node, &["DEBUG", "DIGEST"]));
                if digests[0] == digests[1] {
                    break;
                }
                if self.world.now_us > until_us {
                    let why = format!("server {node} has other data than {of}: {digests:?}");
                    self.world.fail(&why);
                }
                // What expires is deleted meanwhile.
                self.world.step(50 * MS);
            }
        }
    }
}

/// What the configurations of a run's nodes have in common.
fn common_lines(random: &mut fastrand::Rng) -> Vec<String> {
    let mut pick =
        |name: &str, values: &[&str]| format!("{name} {}", values[random.usize(..values.len())]);
    vec![
        "bind 127.0.0.1".into(),
        "port 0".into(),
        "cluster-enabled yes".into(),
        format!("cluster-announce-port {PORT}"),
        format!("cluster-announce-bus-port {BUS_PORT}"),
        // The shards stay what they are.
        "cluster-allow-replica-migration no".into(),
        "protected-mode no".into(),
        "enable-debug-command yes".into(),
        "save \"\"".into(),
        // On the model's disk.
        "dir /".into(),
        "shutdown-timeout 2".into(),
        "repl-ping-replica-period 1".into(),
        "repl-diskless-sync-delay 0".into(),
        pick("cluster-node-timeout", &["1500", "3000", "5000"]),
        pick("cluster-require-full-coverage", &["yes", "no"]),
        pick("cluster-manual-failover-timeout", &["1000", "5000"]),
        pick("compatible-with", &["redis-7.0", "valkey-9"]),
        pick("slot-migration-max-failover-repl-bytes", &["0", "0", "10000", "-1"]),
        // With any, a turn copies one key of a slot.
        pick("rdb-key-save-delay", &["0", "100", "100"]),
        pick("repl-diskless-sync", &["yes", "yes", "no"]),
        pick("repl-backlog-size", &["16kb", "1mb", "1mb"]),
        pick("repl-timeout", &["5", "10", "20"]),
        pick("hz", &["10", "50"]),
    ]
}
