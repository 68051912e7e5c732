//! Many nodes in one thread, over a network and disks that fail by a seed.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use super::action::{Action, Event, LinkId, Outside};
use super::admin::Failover;
use super::config_file;
use super::node::{NodeFlags, NodeId};
use super::settings::Settings;
use super::wire::{self, Body, Decoded};
use super::{Cluster, MessageCounts};
use crate::collections::hash_slot::{HashSlot, SLOTS, SlotSet};

mod hostile;

const TIMEOUT_MS: i64 = 1_000;
/// The longest that a healed cluster may take to agree. Unit: milliseconds.
const HEALING_MS: i64 = 30_000;

struct Machine {
    cluster: Cluster,
    is_alive: bool,
    /// nodes.conf as it is on disk.
    file: Vec<u8>,
    /// The other end of each connection.
    ends: HashMap<LinkId, (usize, LinkId)>,
    accepted: u64,
    /// Nothing leaves before this time: a save is awaited.
    silent_until: i64,
    offset: u64,
    follows: Option<usize>,
    dropped: usize,
}

enum Due {
    Open { from: usize, link: LinkId, to: usize },
    Message { to: usize, link: LinkId, bytes: Arc<[u8]> },
    Closed { to: usize, link: LinkId },
    Saved { at: usize, life: u64, text: Arc<[u8]> },
}

struct World {
    machines: Vec<Machine>,
    lives: Vec<u64>,
    now: i64,
    due: BTreeMap<(i64, u64), Due>,
    number: u64,
    random: fastrand::Rng,
    /// Pairs of nodes whose packets are lost.
    cut: Vec<(usize, usize)>,
    /// Whom each node has voted for in each epoch.
    votes: HashMap<(NodeId, u64), usize>,
    /// Who was elected in each epoch.
    elected: HashMap<u64, NodeId>,
    loses_unawaited: bool,
}

fn settings(index: usize) -> Settings {
    Settings {
        node_timeout_ms: TIMEOUT_MS,
        tcp_port: 7000 + index as u16,
        bus_port: 17000 + index as u16,
        validity_factor: 0,
        ..Settings::default()
    }
}

fn ip(index: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, index as u8 + 1))
}

fn name(index: usize) -> NodeId {
    NodeId::from_random([index as u8 + 1; 20])
}

fn range(first: usize, last: usize) -> SlotSet {
    let mut slots = SlotSet::default();
    (first..=last).filter_map(HashSlot::new).for_each(|slot| {
        slots.insert(slot);
    });
    slots
}

impl World {
    fn new(count: usize, seed: u64) -> World {
        let machines = (0..count).map(|index| Machine {
            cluster: Cluster::new(name(index), settings(index), seed * 1000 + index as u64),
            is_alive: true,
            file: Vec::new(),
            ends: HashMap::new(),
            accepted: 0,
            silent_until: 0,
            offset: 0,
            follows: None,
            dropped: 0,
        });
        World {
            machines: machines.collect(),
            lives: vec![0; count],
            now: 1_000,
            due: BTreeMap::new(),
            number: 0,
            random: fastrand::Rng::with_seed(seed),
            cut: Vec::new(),
            votes: HashMap::new(),
            elected: HashMap::new(),
            loses_unawaited: true,
        }
    }

    /// Three primaries with a replica each, or more of both, that know each other.
    fn formed(primaries: usize, replicas: usize, seed: u64) -> World {
        let mut world = World::new(primaries + replicas, seed);
        for index in 1..primaries + replicas {
            world.command(0, |cluster, outside, actions| {
                cluster.meet(
                    ip(index),
                    7000 + index as u16,
                    17000 + index as u16,
                    outside,
                    actions,
                );
            });
        }
        for index in 0..primaries {
            let (first, last) = (SLOTS * index / primaries, SLOTS * (index + 1) / primaries - 1);
            world.command(index, |cluster, outside, actions| {
                cluster.set_epoch(index as u64 + 1, outside, actions);
                cluster.add_slots(&range(first, last), outside, actions);
            });
        }
        world.run(10_000);
        for index in primaries..primaries + replicas {
            world.command(index, |cluster, outside, actions| {
                let primary =
                    cluster.find(&name((index - primaries) % primaries)).expect("they have met");
                cluster.replicate(primary, outside, actions);
            });
        }
        world.run(5_000);
        world.check_agreement();
        world
    }

    fn outside(&self, index: usize) -> Outside {
        let machine = &self.machines[index];
        Outside {
            boot_ms: self.now,
            unix_ms: self.now + 1_700_000_000_000,
            offset: machine.offset,
            is_link_up: machine.follows.is_some_and(|primary| self.reaches(index, primary)),
            data_age_ms: 0,
            is_loading: false,
        }
    }

    fn reaches(&self, from: usize, to: usize) -> bool {
        self.machines[from].is_alive
            && self.machines[to].is_alive
            && !self.cut.contains(&(from, to))
            && !self.cut.contains(&(to, from))
    }

    fn after(&mut self, delay: i64, due: Due) {
        self.number += 1;
        self.due.insert((self.now + delay, self.number), due);
    }

    fn command(
        &mut self,
        index: usize,
        run: impl FnOnce(&mut Cluster, &Outside, &mut Vec<Action>),
    ) {
        let outside = self.outside(index);
        let mut actions = Vec::new();
        run(&mut self.machines[index].cluster, &outside, &mut actions);
        self.machines[index].cluster.before_sleep(&outside, &mut actions);
        self.carry_out(index, actions);
    }

    fn tell(&mut self, index: usize, event: Event<'_>) {
        let outside = self.outside(index);
        let mut actions = Vec::new();
        self.machines[index].cluster.handle(&outside, event, &mut actions);
        self.machines[index].cluster.before_sleep(&outside, &mut actions);
        self.carry_out(index, actions);
    }

    fn carry_out(&mut self, index: usize, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Connect { link, ip, .. } => {
                    let to = ip.rsplit('.').next().and_then(|last| last.parse::<usize>().ok());
                    let to = to.expect("an address of this world") - 1;
                    let delay = self.random.i64(1..5);
                    self.after(delay, Due::Open { from: index, link, to });
                }
                Action::Send { link, message } => {
                    let Some(&(to, other)) = self.machines[index].ends.get(&link) else { continue };
                    self.note(index, to, &message);
                    let waits = (self.machines[index].silent_until - self.now).max(0);
                    // Connections keep their order: delays grow with the queue's number.
                    let delay = waits + 1 + self.random.i64(0..3);
                    self.after(delay, Due::Message { to, link: other, bytes: message });
                }
                Action::Close { link } => {
                    if let Some((to, other)) = self.machines[index].ends.remove(&link) {
                        self.machines[to].ends.remove(&other);
                        self.after(2, Due::Closed { to, link: other });
                    }
                }
                Action::Save { text, is_awaited, .. } => {
                    let delay = self.random.i64(1..30);
                    let life = self.lives[index];
                    if is_awaited {
                        let until = self.now + delay;
                        let machine = &mut self.machines[index];
                        machine.silent_until = machine.silent_until.max(until);
                    }
                    let delay = if is_awaited { delay - 1 } else { delay };
                    self.after(delay, Due::Saved { at: index, life, text });
                }
                Action::Follow { ip, .. } => {
                    let to = ip.rsplit('.').next().and_then(|last| last.parse::<usize>().ok());
                    self.machines[index].follows = to.map(|to| to - 1);
                }
                Action::Promote => {
                    self.machines[index].follows = None;
                    let cluster = &self.machines[index].cluster;
                    let (epoch, id) = (cluster.myself().config_epoch, cluster.myself().id);
                    let before = self.elected.insert(epoch, id);
                    assert!(
                        before.is_none_or(|before| before == id),
                        "two winners of epoch {epoch}"
                    );
                }
                // Shown where a test fails.
                Action::Log { text, .. } => eprintln!("{} {index}: {text}", self.now),
                Action::DropKeys(slots) => self.machines[index].dropped += slots.len(),
                _ => {}
            }
        }
    }

    /// Looks for two votes of one node in one epoch.
    fn note(&mut self, from: usize, to: usize, message: &[u8]) {
        let Ok(Decoded::Full(message)) = wire::decode(message) else { return };
        if message.body == Body::AuthAck {
            let (voter, epoch) =
                (self.machines[from].cluster.myself().id, message.header.current_epoch);
            let before = self.votes.insert((voter, epoch), to);
            assert!(
                before.is_none_or(|before| before == to),
                "{voter} votes twice in epoch {epoch}"
            );
        }
    }

    fn happen(&mut self, due: Due) {
        match due {
            Due::Open { from, link, to } => {
                if !self.reaches(from, to) {
                    return self.tell(from, Event::Closed { link });
                }
                self.machines[to].accepted += 1;
                let other = LinkId(self.machines[to].accepted + (self.lives[to] << 32));
                self.machines[from].ends.insert(link, (to, other));
                self.machines[to].ends.insert(other, (from, link));
                self.tell(to, Event::Accepted { link: other, peer: ip(from), local: ip(to) });
                self.tell(from, Event::Connected { link, local: ip(from) });
            }
            Due::Message { to, link, bytes } => {
                let Some(&(from, _)) = self.machines[to].ends.get(&link) else { return };
                if self.reaches(from, to) {
                    self.tell(to, Event::Received { link, message: &bytes });
                }
            }
            Due::Closed { to, link } => {
                if self.machines[to].is_alive {
                    self.tell(to, Event::Closed { link });
                }
            }
            Due::Saved { at, life, text } => {
                if self.lives[at] == life && self.machines[at].is_alive {
                    self.machines[at].file = text.to_vec();
                }
            }
        }
    }

    fn run(&mut self, ms: i64) {
        let end = self.now + ms;
        while self.now < end {
            let tick = self.now - self.now % 100 + 100;
            while let Some(entry) = self.due.first_entry().filter(|entry| entry.key().0 <= tick) {
                self.now = self.now.max(entry.key().0);
                let due = entry.remove();
                self.happen(due);
            }
            self.now = tick;
            for index in 0..self.machines.len() {
                if !self.machines[index].is_alive {
                    continue;
                }
                if let Some(primary) =
                    self.machines[index].follows.filter(|primary| self.reaches(index, *primary))
                {
                    self.machines[index].offset = self.machines[primary].offset;
                } else if self.machines[index].follows.is_none() {
                    self.machines[index].offset += 10;
                }
                let outside = self.outside(index);
                let mut actions = Vec::new();
                self.machines[index].cluster.tick(&outside, &mut actions);
                self.machines[index].cluster.before_sleep(&outside, &mut actions);
                self.carry_out(index, actions);
            }
        }
    }

    fn kill(&mut self, index: usize) {
        self.machines[index].is_alive = false;
        self.lives[index] += 1;
        let ends: VecDeque<_> = self.machines[index].ends.drain().collect();
        for (_, (to, other)) in ends {
            self.machines[to].ends.remove(&other);
            self.after(1, Due::Closed { to, link: other });
        }
        // What waits for a save never leaves.
        let until = self.machines[index].silent_until;
        if until > self.now {
            let id = self.machines[index].cluster.myself().id;
            self.votes.retain(|(voter, _), _| *voter != id || !self.loses_unawaited);
        }
    }

    fn restart(&mut self, index: usize) {
        let conf = config_file::parse(&self.machines[index].file).expect("its own file");
        let seed = self.random.u64(..);
        let cluster = Cluster::restore(&conf, settings(index), seed).expect("its own file");
        let primary =
            cluster.myself().primary.map(|primary| cluster.node(primary).address.tcp_port);
        let machine = &mut self.machines[index];
        machine.cluster = cluster;
        machine.is_alive = true;
        machine.silent_until = 0;
        machine.follows = primary.map(|port| usize::from(port - 7000));
    }

    fn check_agreement(&self) {
        let alive = || self.machines.iter().filter(|machine| machine.is_alive);
        let first = &alive().next().expect("one is alive").cluster;
        let owner =
            |cluster: &Cluster, slot| cluster.owner(slot).map(|owner| cluster.node(owner).id);
        for machine in alive() {
            let cluster = &machine.cluster;
            assert!(cluster.is_ok(), "{} at {}: {}", cluster.myself().id, self.now, cluster.info());
            for slot in HashSlot::all() {
                assert_eq!(
                    owner(cluster, slot),
                    owner(first, slot),
                    "slot {} at {}",
                    slot.number(),
                    self.now
                );
            }
        }
        let mut epochs: Vec<u64> = first
            .nodes()
            .filter(|(_, node)| node.is_voting())
            .map(|(_, node)| node.config_epoch)
            .collect();
        epochs.sort_unstable();
        let count = epochs.len();
        epochs.dedup();
        assert_eq!(epochs.len(), count, "two primaries have one epoch");
    }
}

#[test]
fn nodes_meet_and_agree() {
    let world = World::formed(3, 3, 1);
    for machine in &world.machines {
        assert_eq!(machine.cluster.nodes().count(), 6);
        assert!(
            machine.cluster.nodes().all(|(_, node)| !node.flags.contains(NodeFlags::HANDSHAKE))
        );
        assert_ne!(*machine.cluster.counts(), MessageCounts::default());
    }
}

#[test]
fn a_replica_takes_the_place_of_a_primary_that_is_killed_which_then_follows_it() {
    let mut world = World::formed(3, 3, 2);
    world.kill(0);
    world.run(5 * TIMEOUT_MS);
    world.check_agreement();
    let cluster = &world.machines[1].cluster;
    let owner = cluster.owner(HashSlot::new(0).expect("a slot")).expect("it is served");
    assert_eq!(cluster.node(owner).id, name(3));
    world.restart(0);
    world.run(HEALING_MS);
    world.check_agreement();
    assert!(world.machines[0].cluster.myself().is_replica());
    assert_eq!(world.machines[0].follows, Some(3));
}

#[test]
fn a_replica_takes_the_place_of_its_primary_on_demand() {
    for kind in [Failover::Agreed, Failover::Forced, Failover::Takeover] {
        let mut world = World::formed(3, 3, 3);
        world.command(4, |cluster, outside, actions| cluster.fail_over(kind, outside, actions));
        world.run(3_000);
        world.check_agreement();
        assert!(world.machines[4].cluster.myself().is_primary(), "{kind:?}");
        assert_eq!(world.machines[1].follows, Some(4), "{kind:?}");
    }
}

#[test]
fn a_minority_serves_nothing() {
    let mut world = World::formed(3, 3, 4);
    for other in [1, 2, 3, 4, 5] {
        world.cut.push((0, other));
    }
    world.run(5 * TIMEOUT_MS);
    assert!(!world.machines[0].cluster.is_ok());
    assert!(world.machines[3].cluster.myself().is_primary());
    world.cut.clear();
    world.run(HEALING_MS);
    world.check_agreement();
    assert!(world.machines[0].cluster.myself().is_replica());
}

#[test]
fn a_primary_without_replicas_gets_one() {
    let mut world = World::formed(3, 4, 5);
    world.kill(4);
    world.run(HEALING_MS);
    let orphan = world.machines[0].cluster.find(&name(1)).expect("known");
    let cluster = &world.machines[0].cluster;
    assert!(cluster.node(orphan).replicas.len() > 1, "{:?}", cluster.node(orphan).replicas);
}

#[test]
fn a_forgotten_node_does_not_come_back_at_once() {
    let mut world = World::formed(3, 3, 6);
    for index in [0, 1, 2, 3, 5] {
        world.command(index, |cluster, outside, actions| {
            // The others may have been told so by the first.
            if let Some(index) = cluster.find(&name(4)) {
                cluster.forget(index, outside, actions);
            }
        });
    }
    world.run(3_000);
    assert!(
        [0, 1, 2, 3, 5].iter().all(|index| world.machines[*index].cluster.find(&name(4)).is_none())
    );
}

#[test]
fn whatever_happens_nobody_votes_twice_and_all_agree_in_the_end() {
    let seeds =
        std::env::var("CLUSTER_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(20);
    for seed in 100..100 + seeds {
        let mut world = World::formed(3, 3 + (seed % 4) as usize, seed);
        let count = world.machines.len();
        for _ in 0..25 {
            let (one, other) = (world.random.usize(..count), world.random.usize(..count));
            let dead = world.machines.iter().filter(|machine| !machine.is_alive).count();
            let is_alive = world.machines[one].is_alive;
            match world.random.u8(..8) {
                0 | 1 if is_alive && dead < count / 3 => world.kill(one),
                2 | 3 if !is_alive && !world.machines[one].file.is_empty() => world.restart(one),
                4 if one != other => world.cut.push((one, other)),
                5 => world.cut.clear(),
                6 if is_alive && world.machines[one].cluster.myself().primary.is_some() => {
                    let kind = [Failover::Agreed, Failover::Forced][world.random.usize(..2)];
                    world.command(one, |cluster, outside, actions| {
                        cluster.fail_over(kind, outside, actions)
                    });
                }
                _ => {}
            }
            let ms = world.random.i64(50..3_000);
            world.run(ms);
        }
        world.cut.clear();
        for index in 0..count {
            if !world.machines[index].is_alive {
                world.restart(index);
            }
        }
        world.run(HEALING_MS);
        world.check_agreement();
    }
}
