//! Who runs the cluster, and has bad luck: slot migrations, failovers, pauses, ends, partitions.

use std::collections::BTreeMap;

use super::super::connection::Connection;
use super::super::network::{self, PORT};
use super::super::world::{Loss, MS, SECOND};
use super::clients::Clients;
use super::nodes::{Cluster, PRIMARIES, Role, text};
use crate::support::Reply;

/// One in so many steps something new happens.
const RARITY: u32 = 25;
/// How often what is under way is looked at.
const LOOK_US: i64 = 300 * MS;
/// A manual failover takes no longer.
const FAILOVER_US: i64 = 6 * SECOND;
/// After healing all nodes agree within this time, and moves end within the longer one. Unit:
/// seconds.
const AGREE_S: i64 = 30;
const END_S: i64 = 90;
/// Keys in one MIGRATE.
const KEYS: &str = "3";

/// A migration of slots all at once, from one shard to another.
struct Move {
    tags: Vec<usize>,
    shards: [usize; 2],
}

/// A move of a slot key by key.
struct Walk {
    tag: usize,
    shards: [usize; 2],
    nodes: [usize; 2],
    /// MIGRATE, while it is under way.
    connection: Option<Connection>,
    next_us: i64,
}

#[derive(Default)]
pub struct Operator {
    moves: Vec<Move>,
    walk: Option<Walk>,
    /// Nodes that are down, and when they start again. Whether each was a primary.
    down: BTreeMap<usize, (i64, bool)>,
    /// Pairs that do not hear each other, and until when.
    parted: (Vec<(usize, usize)>, i64),
    next_look_us: i64,
    /// When the last manual failover was asked for, which may take a while.
    failed_over_us: i64,
    pub counts: BTreeMap<&'static str, u32>,
}

impl Operator {
    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    pub fn act(&mut self, cluster: &mut Cluster, clients: &mut Clients) {
        self.go_on(cluster, clients);
        if cluster.world.random.u32(..RARITY) != 0 {
            return;
        }
        match cluster.world.random.u32(..30) {
            0..8 => self.move_slots(cluster),
            8 | 9 => self.cancel_moves(cluster),
            10..13 => self.fail_over(cluster),
            13..16 if !cluster.is_restless => self.walk(cluster),
            16 | 17 => self.delay(cluster),
            18 => self.cut(cluster),
            19 => self.save(cluster),
            20 | 21 => self.pause(cluster),
            22..26 if cluster.is_restless => self.crash(cluster, clients),
            26..28 if cluster.is_restless => self.part(cluster, clients),
            _ => {}
        }
    }

    /// Continues with what is under way.
    fn go_on(&mut self, cluster: &mut Cluster, clients: &mut Clients) {
        self.go_on_walking(cluster);
        if cluster.world.now_us < self.next_look_us {
            return;
        }
        self.next_look_us = cluster.world.now_us + LOOK_US;
        self.look_at_moves(cluster, clients);
        if !self.parted.0.is_empty() && cluster.world.now_us >= self.parted.1 {
            self.unite(cluster);
        }
        let due: Vec<usize> = self.down.keys().copied().collect();
        for node in due {
            self.start_again(cluster, clients, node, false);
        }
    }

    // ---- slots that move all at once ------------------------------------------------------------

    fn move_slots(&mut self, cluster: &mut Cluster) {
        let from = cluster.world.random.usize(..PRIMARIES);
        let to = (from + cluster.world.random.usize(1..PRIMARIES)) % PRIMARIES;
        let here = (0..cluster.tags.len())
            .filter(|&tag| cluster.tags[tag].home == from && !cluster.tags[tag].is_moving);
        let mut tags: Vec<usize> = here.collect();
        cluster.world.random.shuffle(&mut tags);
        tags.truncate(cluster.world.random.usize(1..3));
        let (Some(source), Some(target)) = (cluster.primary(from), cluster.primary(to)) else {
            return;
        };
        if tags.is_empty() {
            return;
        }
        let mut words: Vec<String> =
            ["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE"].map(str::to_owned).to_vec();
        for &tag in &tags {
            let slot = cluster.tags[tag].slot.to_string();
            words.extend([slot.clone(), slot]);
        }
        words.extend(["NODE".into(), cluster.ids[target].clone()]);
        let told = cluster.world.show(source, &words);
        cluster.world.trace.note(|| format!("move {tags:?} {source} {target} {told}"));
        if told != "OK" {
            self.count("moves refused");
            return;
        }
        self.count("moves");
        for &tag in &tags {
            cluster.tags[tag].is_moving = true;
            cluster.tags[tag].changes += 1;
        }
        self.moves.push(Move { tags, shards: [from, to] });
    }

    fn cancel_moves(&mut self, cluster: &mut Cluster) {
        let Some(Move { shards: [from, to], .. }) = self.moves.last() else { return };
        let shard = if cluster.world.random.bool() { *from } else { *to };
        if let Some(node) = cluster.primary(shard) {
            let told = cluster.world.show(node, &["CLUSTER", "CANCELSLOTMIGRATIONS"]);
            cluster.world.trace.note(|| format!("cancel {node} {told}"));
            self.count("cancels");
        }
    }

    /// Notes which moves have ended, and where the slots are.
    fn look_at_moves(&mut self, cluster: &mut Cluster, clients: &mut Clients) {
        let mut open = Vec::new();
        for it in std::mem::take(&mut self.moves) {
            match self.end_of(cluster, &it) {
                None => open.push(it),
                Some(homes) => {
                    for (&tag, home) in it.tags.iter().zip(homes) {
                        let is_there = home == it.shards[1];
                        self.count(if is_there { "slots moved" } else { "slots kept" });
                        cluster.world.trace.note(|| format!("moved {tag} {home}"));
                        if is_there {
                            clients.forget_promises_of(tag);
                        }
                        let tag = &mut cluster.tags[tag];
                        (tag.is_moving, tag.home) = (false, home);
                        tag.changes += 1;
                    }
                }
            }
        }
        self.moves = open;
    }

    /// The shards that own the slots of a move that has ended. None: it has not, or nobody knows.
    fn end_of(&self, cluster: &mut Cluster, it: &Move) -> Option<Vec<usize>> {
        if !self.is_healed() {
            return None;
        }
        let nodes = it.shards.iter().flat_map(|&shard| cluster.shards[shard].clone());
        let nodes: Vec<usize> = nodes.collect();
        let slots: Vec<i64> = it.tags.iter().map(|&tag| cluster.tags[tag].slot).collect();
        for &node in &nodes {
            let is_it =
                |job: &String| slots.iter().any(|slot| job.contains(&format!(" {slot}-{slot} ")));
            if cluster.jobs(node).iter().any(is_it) {
                return None;
            }
        }
        let mut homes = Vec::new();
        for slot in slots {
            let owners: Vec<_> = nodes.iter().map(|&node| cluster.owner(node, slot)).collect();
            let owner = owners[0]?;
            if owners.iter().any(|other| *other != Some(owner)) {
                return None;
            }
            homes.push(cluster.shard_of(owner));
        }
        Some(homes)
    }

    // ---- slots that move key by key -------------------------------------------------------------

    fn walk(&mut self, cluster: &mut Cluster) {
        if self.walk.is_some() || cluster.world.now_us < self.failed_over_us + FAILOVER_US {
            return;
        }
        let tag = cluster.world.random.usize(..cluster.tags.len());
        let from = cluster.tags[tag].home;
        let to = (from + cluster.world.random.usize(1..PRIMARIES)) % PRIMARIES;
        if cluster.tags[tag].is_moving || !cluster.is_calm(from) || !cluster.is_calm(to) {
            return;
        }
        let (Some(source), Some(target)) = (cluster.primary(from), cluster.primary(to)) else {
            return;
        };
        let slot = cluster.tags[tag].slot.to_string();
        let (source_id, target_id) = (cluster.ids[source].clone(), cluster.ids[target].clone());
        let importing = ["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source_id];
        let migrating = ["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target_id];
        // A reply that waits for replicas comes late.
        if cluster.world.show(target, &importing) != "OK" {
            return;
        }
        if cluster.world.show(source, &migrating) != "OK" {
            cluster.world.show(target, &["CLUSTER", "SETSLOT", &slot, "STABLE"]);
            return;
        }
        cluster.world.trace.note(|| format!("walk {tag} {source} {target}"));
        self.count("walks");
        (cluster.tags[tag].is_moving, cluster.tags[tag].changes) =
            (true, cluster.tags[tag].changes + 1);
        let (shards, nodes) = ([from, to], [source, target]);
        self.walk = Some(Walk { tag, shards, nodes, connection: None, next_us: 0 });
    }

    fn go_on_walking(&mut self, cluster: &mut Cluster) {
        let Some(mut walk) = self.walk.take() else { return };
        if !self.step_walk(cluster, &mut walk) {
            self.walk = Some(walk);
        }
    }

    /// True: the slot has moved.
    fn step_walk(&mut self, cluster: &mut Cluster, walk: &mut Walk) -> bool {
        let (slot, [source, target]) = (cluster.tags[walk.tag].slot.to_string(), walk.nodes);
        if let Some(connection) = &mut walk.connection {
            let told = connection.take().pop();
            if told.is_none() && !connection.has_ended {
                return false;
            }
            cluster.world.trace.note(|| format!("migrated {:?}", told.map(|told| told.show())));
            walk.connection = None;
            walk.next_us = cluster.world.now_us + cluster.world.random.i64(0..100) * MS;
        }
        if cluster.world.now_us < walk.next_us {
            return false;
        }
        let keys = cluster.world.ask(source, &["CLUSTER", "GETKEYSINSLOT", &slot, KEYS]);
        let Some(Reply::Array(keys)) = keys else { return false };
        if keys.is_empty() {
            let id = cluster.ids[target].clone();
            for node in [target, source] {
                let told = cluster.world.show(node, &["CLUSTER", "SETSLOT", &slot, "NODE", &id]);
                cluster.world.trace.note(|| format!("walked {node} {told}"));
                if told != "OK" {
                    walk.next_us = cluster.world.now_us + 200 * MS;
                    return false;
                }
            }
            self.count("walks ended");
            let tag = &mut cluster.tags[walk.tag];
            (tag.is_moving, tag.home, tag.changes) = (false, walk.shards[1], tag.changes + 1);
            return true;
        }
        let mut words: Vec<String> = vec!["MIGRATE".into()];
        words.extend([network::address(target).ip().to_string(), PORT.to_string(), String::new()]);
        words.extend(["0", "5000", "REPLACE", "KEYS"].map(str::to_owned));
        words.extend(keys.iter().map(text));
        walk.connection = cluster.world.connect(source);
        if let Some(connection) = &mut walk.connection {
            connection.send(&words);
        }
        false
    }

    // ---- what happens in quiet seeds too --------------------------------------------------------

    fn fail_over(&mut self, cluster: &mut Cluster) {
        let shard = cluster.world.random.usize(..PRIMARIES);
        // A walk would be lost with its primary, unless replicas know of it.
        if self.walk.as_ref().is_some_and(|walk| walk.shards.contains(&shard)) {
            return;
        }
        let replicas = cluster.shards[shard].clone().into_iter();
        let replicas: Vec<usize> = replicas
            .filter(|&node| matches!(cluster.role(node), Some(Role::Replica(..))))
            .collect();
        if replicas.is_empty() {
            return;
        }
        let replica = replicas[cluster.world.random.usize(..replicas.len())];
        let told = cluster.world.show(replica, &["CLUSTER", "FAILOVER"]);
        cluster.world.trace.note(|| format!("failover {replica} {told}"));
        self.failed_over_us = cluster.world.now_us;
        cluster.has_failed_over = true;
        self.count("failovers");
    }

    fn delay(&mut self, cluster: &mut Cluster) {
        let random = &mut cluster.world.random;
        let (one, other) = (random.usize(..cluster.nodes), random.usize(..cluster.nodes));
        let us = [0, 0, 5 * MS, 50 * MS, 150 * MS][random.usize(..5)];
        cluster.world.trace.note(|| format!("delay {one} {other} {us}"));
        cluster.world.wires.set_delay(one, other, us);
        self.count("delays");
    }

    fn cut(&mut self, cluster: &mut Cluster) {
        let count = cluster.world.wires.len();
        if count > 0 {
            let index = cluster.world.random.usize(..count);
            cluster.world.trace.note(|| format!("cut {index}"));
            cluster.world.wires.cut(index, &mut cluster.world.random);
            self.count("cuts");
        }
    }

    fn save(&mut self, cluster: &mut Cluster) {
        let node = cluster.world.random.usize(..cluster.nodes);
        let word = ["BGSAVE", "BGREWRITEAOF"][cluster.world.random.usize(..2)];
        cluster.world.tell(node, &[word]);
        self.count("saves");
    }

    fn pause(&mut self, cluster: &mut Cluster) {
        let node = cluster.world.random.usize(..cluster.nodes);
        let ms = cluster.world.random.u32(1..1500).to_string();
        let kind = ["WRITE", "ALL"][cluster.world.random.usize(..2)];
        cluster.world.tell(node, &["CLIENT", "PAUSE", &ms, kind]);
        self.count("pauses");
    }

    // ---- misfortune -----------------------------------------------------------------------------

    /// What is promised bears the next misfortune only where nothing is amiss. A slot that moves to
    /// the shard may be there already, and the shard's replicas may have less of it.
    fn doubt(&self, cluster: &mut Cluster, clients: &mut Clients, shard: usize) {
        if !cluster.is_calm(shard) {
            clients.forget_promises(cluster, shard);
        }
        let coming = self.moves.iter().filter(|it| it.shards[1] == shard);
        coming.flat_map(|it| &it.tags).for_each(|&tag| clients.forget_promises_of(tag));
    }

    fn crash(&mut self, cluster: &mut Cluster, clients: &mut Clients) {
        let up = cluster.up();
        if up.is_empty() {
            return;
        }
        let node = up[cluster.world.random.usize(..up.len())];
        let shard = cluster.shard_of(node);
        self.doubt(cluster, clients, shard);
        let was_primary = matches!(cluster.role(node), Some(Role::Primary(_)));
        let loss = [Loss::Process, Loss::Power][cluster.world.random.usize(..2)];
        cluster.has_failed_over = true;
        cluster.world.crash(node, loss);
        let down_us = cluster.world.random.i64(100..15_000) * MS;
        self.down.insert(node, (cluster.world.now_us + down_us, was_primary));
        self.count(if was_primary { "primaries crashed" } else { "replicas crashed" });
    }

    /// Starts a node if it is time. A primary without its data waits until another has its place,
    /// as replicas would copy what it has.
    fn start_again(
        &mut self,
        cluster: &mut Cluster,
        clients: &mut Clients,
        node: usize,
        now: bool,
    ) {
        let Some(&(at_us, was_primary)) = self.down.get(&node) else { return };
        if !now && cluster.world.now_us < at_us {
            return;
        }
        let shard = cluster.shard_of(node);
        let has_others = cluster.shards[shard].iter().any(|&other| cluster.world.is_up(other));
        if was_primary && has_others && !cluster.is_durable && cluster.primary(shard).is_none() {
            if !now {
                return;
            }
            clients.forget_promises(cluster, shard);
        }
        self.down.remove(&node);
        cluster.world.start(node, None);
    }

    fn part(&mut self, cluster: &mut Cluster, clients: &mut Clients) {
        if !self.parted.0.is_empty() {
            return;
        }
        (0..PRIMARIES).for_each(|shard| self.doubt(cluster, clients, shard));
        let random = &mut cluster.world.random;
        let sides: Vec<bool> = (0..cluster.nodes).map(|_| random.u32(..3) == 0).collect();
        let mut pairs = Vec::new();
        for one in 0..cluster.nodes {
            for other in one + 1..cluster.nodes {
                if sides[one] != sides[other] {
                    pairs.push((one, other));
                }
            }
        }
        if pairs.is_empty() {
            return;
        }
        let until_us = cluster.world.now_us + random.i64(100..15_000) * MS;
        cluster.world.trace.note(|| format!("part {sides:?}"));
        pairs.iter().for_each(|&(one, other)| cluster.world.wires.part(one, other));
        cluster.has_failed_over = true;
        self.parted = (pairs, until_us);
        self.count("partitions");
    }

    fn unite(&mut self, cluster: &mut Cluster) {
        for (one, other) in std::mem::take(&mut self.parted.0) {
            cluster.world.wires.heal(one, other);
        }
        cluster.world.trace.note(|| "unite".into());
    }

    fn is_healed(&self) -> bool {
        self.down.is_empty() && self.parted.0.is_empty()
    }

    /// Ends all misfortune, and waits until nothing is under way.
    pub fn heal(&mut self, cluster: &mut Cluster, clients: &mut Clients) {
        self.unite(cluster);
        cluster.world.wires.calm();
        let down: Vec<usize> = self.down.keys().copied().collect();
        down.into_iter().for_each(|node| self.start_again(cluster, clients, node, true));
        cluster.world.trace.note(|| "heal".into());
        let healed_us = cluster.world.now_us;
        let mut has_agreed = false;
        loop {
            cluster.world.step(20 * MS);
            clients.act(cluster, true);
            self.go_on_walking(cluster);
            if cluster.world.now_us < self.next_look_us {
                continue;
            }
            self.next_look_us = cluster.world.now_us + LOOK_US;
            self.look_at_moves(cluster, clients);
            let passed_us = cluster.world.now_us - healed_us;
            let why = cluster.why_disagreeing();
            has_agreed |= why.is_none();
            if !has_agreed && passed_us > AGREE_S * SECOND {
                let views: Vec<String> = (0..cluster.nodes)
                    .map(|node| cluster.world.show(node, &["CLUSTER", "NODES"]))
                    .collect();
                let views = views.join("\n");
                cluster.world.fail(&format!("no agreement after healing: {why:?}\n{views}"));
            }
            let jobs: Vec<_> = (0..cluster.nodes).map(|node| cluster.jobs(node)).collect();
            let have_ended = jobs.iter().all(Vec::is_empty);
            let are_calm = (0..PRIMARIES).all(|shard| match cluster.is_restless {
                true => cluster.is_settled(shard),
                false => cluster.is_calm(shard),
            });
            let is_done = self.moves.is_empty() && self.walk.is_none();
            let is_over = why.is_none() && have_ended && are_calm && is_done;
            if is_over && clients.are_at_rest() {
                return;
            }
            if passed_us > END_S * SECOND {
                cluster.world.fail(&format!(
                    "not at rest after healing: {why:?}, moves {jobs:?}, calm: {are_calm}, \
                     operator done: {is_done}, clients at rest: {}",
                    clients.are_at_rest()
                ));
            }
        }
    }
}
