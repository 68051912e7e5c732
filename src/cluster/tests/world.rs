//! Many nodes in one thread: a network that delays, stalls and loses, disks that are slow and
//! forget, clocks that differ, the data of each node with its replication, and the rules that hold
//! whatever happens.
//!
//! A node's data are keys with numbers that only grow. Its history is the list of its changes: a
//! replica has a part of its primary's history, or gets everything anew. The state machine's
//! actions are carried out here as by the server. `rules` has the rules that always hold.

mod rules;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use crate::cluster::action::{Action, Event, LinkId, Outside};
use crate::cluster::admin::Failover;
use crate::cluster::node::{NodeFlags, NodeId, NodeIndex};
use crate::cluster::settings::Settings;
use crate::cluster::wire;
use crate::cluster::{Cluster, config_file};
use crate::collections::hash_slot::{HashSlot, SLOTS, SlotSet};

pub const TIMEOUT_MS: i64 = 1_000;
/// The longest that a healed cluster may take to agree. Unit: milliseconds.
pub const HEALING_MS: i64 = 30_000;
/// A node that was undisturbed for this time is expected to behave normally. Unit: milliseconds.
const CALM_MS: i64 = 6_000;
/// The limit of changes that a replica takes over in a tick, and the milliseconds of a full
/// synchronization.
const STREAM_CHANGES: usize = 40;
const SYNC_MS: i64 = 300;
/// Slots that have keys, and keys of each.
const USED_SLOTS: usize = 12;
const KEYS: usize = 3;

pub type Key = (u16, u8);

/// A change of a key. None: it was deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    key: Key,
    value: Option<u64>,
    /// Unique among all changes.
    number: u64,
}

pub struct Machine {
    pub cluster: Cluster,
    pub settings: Settings,
    pub is_alive: bool,
    /// nodes.conf as it is on disk.
    pub file: Vec<u8>,
    /// The other end of each connection, and when the last message over it arrives.
    ends: HashMap<LinkId, (usize, LinkId)>,
    arrivals: HashMap<LinkId, i64>,
    /// Until when nothing arrives over a connection, because a packet is being sent again.
    blocked: HashMap<LinkId, i64>,
    accepted: u64,
    /// Until then others hear it, but it hears nothing.
    pub deaf_until: i64,
    /// When the last requested save is on disk.
    pub saved_at: i64,
    /// When the save that is being written is on disk.
    writes_until: i64,
    /// When the last save that messages wait for is on disk.
    silent_until: i64,
    pub slow_until: i64,
    wall_offset: i64,
    pub history: Vec<Change>,
    keys: BTreeMap<Key, u64>,
    pub follows: Option<usize>,
    /// When a full synchronization with the primary ends, if one is under way.
    syncs_until: Option<i64>,
    heard_ms: Option<i64>,
    pub paused_until: i64,
    drops: SlotSet,
    /// When it was last disturbed.
    pub disturbed_ms: i64,
    /// When it last scheduled an election, and when it asked for votes.
    scheduled_ms: i64,
    asked_ms: Vec<i64>,
    /// When an administrator told it to take over, which it may do with any data.
    pub by_hand_ms: Option<i64>,
    pub by_hand: Failover,
    pub dropped: usize,
    /// The owner of each used slot at the end of its last turn, as it sees the cluster.
    known: Vec<Option<rules::Known>>,
}

enum Due {
    Open { from: usize, link: LinkId, to: usize },
    Message { from: (usize, u64), to: usize, link: LinkId, bytes: Arc<[u8]> },
    Closed { to: usize, link: LinkId },
    Saved { at: usize, life: u64, text: Arc<[u8]> },
    Restart { at: usize },
    TakeOver { at: usize },
}

/// A write that was acknowledged when all replicas had it, and the machines that had it.
struct Safe {
    value: u64,
    number: u64,
    holders: BTreeSet<usize>,
}

pub struct World {
    seed: u64,
    pub machines: Vec<Machine>,
    lives: Vec<u64>,
    pub now: i64,
    due: BTreeMap<(i64, u64), Due>,
    number: u64,
    pub random: fastrand::Rng,
    /// Pairs of nodes whose packets are lost, from the first to the second.
    pub cut: BTreeSet<(usize, usize)>,
    /// The number of these pairs at the last tick, and when it last became smaller.
    cuts_before: usize,
    healed_ms: i64,
    /// Pairs between which replication alone is cut.
    pub unfollowed: BTreeSet<(usize, usize)>,
    /// Of ten messages that cannot arrive, the number that are delayed, as by TCP, rather than
    /// lost.
    stalls: u8,
    /// Of ten voters, the number that crash when their vote has arrived.
    pub crashing_voters: u8,
    /// A node that is about to ask for votes becomes deaf, and another one asks in that time.
    pub has_contests: bool,
    /// When each node last suspected another one.
    suspected: HashMap<(NodeId, NodeId), i64>,
    /// The machine that each node has voted for in each epoch.
    votes: HashMap<(NodeId, u64), usize>,
    /// The node elected in each epoch.
    elected: HashMap<u64, NodeId>,
    /// Epochs that nodes have taken without an election.
    unagreed: BTreeSet<u64>,
    /// Acknowledged writes that must not be lost.
    safe: BTreeMap<Key, Safe>,
    /// When BUMPEPOCH was last called.
    pub bumped_ms: i64,
    /// Writes that wait for all replicas: the primary, its life, the change, and the number of
    /// replicas.
    waiting: Vec<(usize, u64, Change, usize)>,
    written: u64,
    pub acknowledged: usize,
    pub promotions: usize,
    /// Slots that are being moved: the operator cleans up after a failover in the middle.
    pub moving: BTreeSet<u16>,
    /// A key is never written where another primary has it.
    pub has_no_failovers: bool,
    trace: Vec<String>,
}

pub fn settings(index: usize) -> Settings {
    Settings {
        node_timeout_ms: TIMEOUT_MS,
        tcp_port: 7000 + index as u16,
        bus_port: 17000 + index as u16,
        validity_factor: 0,
        repl_ping_ms: 1_000,
        ..Settings::default()
    }
}

pub fn ip(index: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, index as u8 + 1))
}

pub fn name(index: usize) -> NodeId {
    NodeId::from_random([index as u8 + 1; 20])
}

pub fn range(first: usize, last: usize) -> SlotSet {
    (first..=last).filter_map(HashSlot::new).collect()
}

/// The machine at an address.
fn at(ip: &str) -> usize {
    let last = ip.rsplit('.').next().and_then(|last| last.parse::<usize>().ok());
    last.expect("an address of this world") - 1
}

pub fn used_slots() -> impl Iterator<Item = HashSlot> {
    (0..USED_SLOTS).filter_map(|number| HashSlot::new(number * SLOTS / USED_SLOTS + 7))
}

impl Machine {
    fn new(index: usize, seed: u64) -> Machine {
        Machine {
            cluster: Cluster::new(name(index), settings(index), seed),
            settings: settings(index),
            is_alive: true,
            file: Vec::new(),
            ends: HashMap::new(),
            arrivals: HashMap::new(),
            blocked: HashMap::new(),
            accepted: 0,
            deaf_until: 0,
            saved_at: 0,
            writes_until: 0,
            silent_until: 0,
            slow_until: 0,
            wall_offset: 1_700_000_000_000,
            history: Vec::new(),
            keys: BTreeMap::new(),
            follows: None,
            syncs_until: None,
            heard_ms: None,
            paused_until: 0,
            drops: SlotSet::default(),
            disturbed_ms: 0,
            scheduled_ms: 0,
            asked_ms: Vec::new(),
            by_hand_ms: None,
            by_hand: Failover::Agreed,
            dropped: 0,
            known: vec![None; USED_SLOTS],
        }
    }

    fn change(&mut self, change: Change) {
        match change.value {
            Some(value) => drop(self.keys.insert(change.key, value)),
            None => drop(self.keys.remove(&change.key)),
        }
        self.history.push(change);
    }

    pub fn count_in_slot(&self, slot: HashSlot) -> usize {
        self.keys.range((slot.number(), 0)..=(slot.number(), u8::MAX)).count()
    }
}

impl World {
    pub fn new(count: usize, seed: u64) -> World {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut machines: Vec<Machine> = (0..count)
            .map(|index| Machine::new(index, seed.wrapping_mul(1000) + index as u64))
            .collect();
        for machine in &mut machines {
            // Some clocks differ by hours.
            machine.wall_offset += random.i64(-5..5) * random.i64(0..2) * 3_600_000;
        }
        World {
            seed,
            machines,
            lives: vec![0; count],
            now: 1_000,
            due: BTreeMap::new(),
            number: 0,
            stalls: random.u8(0..10),
            crashing_voters: 0,
            has_contests: false,
            suspected: HashMap::new(),
            random,
            cut: BTreeSet::new(),
            cuts_before: 0,
            healed_ms: 0,
            unfollowed: BTreeSet::new(),
            votes: HashMap::new(),
            elected: HashMap::new(),
            unagreed: BTreeSet::new(),
            safe: BTreeMap::new(),
            bumped_ms: i64::MIN / 2,
            waiting: Vec::new(),
            written: 0,
            acknowledged: 0,
            promotions: 0,
            moving: BTreeSet::new(),
            has_no_failovers: false,
            trace: Vec::new(),
        }
    }

    /// Three primaries with a replica each, or more of both, that know each other.
    pub fn formed(primaries: usize, replicas: usize, seed: u64) -> World {
        let mut world = World::new(primaries + replicas, seed);
        for index in 1..primaries + replicas {
            world.command(0, |cluster, outside, actions| {
                let (port, bus_port) = (7000 + index as u16, 17000 + index as u16);
                cluster.meet(ip(index), port, bus_port, outside, actions);
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

    /// The files of nodes that know each other, from which any number of worlds begins.
    pub fn files(primaries: usize, replicas: usize) -> Vec<Vec<u8>> {
        let world = World::formed(primaries, replicas, 1);
        world.machines.iter().map(|machine| machine.file.clone()).collect()
    }

    /// A world of nodes that have just started with these files.
    pub fn with_files(files: &[Vec<u8>], seed: u64) -> World {
        let mut world = World::new(files.len(), seed);
        for (index, file) in files.iter().enumerate() {
            world.machines[index].file.clone_from(file);
            world.restart(index);
        }
        world.run(5_000);
        world.machines.iter_mut().for_each(|machine| machine.disturbed_ms = 0);
        world
    }

    pub fn log(&mut self, text: String) {
        self.trace.push(format!("{} {text}", self.now));
    }

    fn outside(&self, index: usize) -> Outside {
        let machine = &self.machines[index];
        let is_link_up = machine
            .follows
            .is_some_and(|primary| self.streams(index, primary) && self.continues(index, primary));
        Outside {
            boot_ms: self.now,
            unix_ms: self.now + machine.wall_offset,
            offset: if machine.syncs_until.is_some() { 0 } else { machine.history.len() as u64 },
            is_link_up,
            data_age_ms: machine.heard_ms.map_or(i64::MAX, |heard_ms| self.now - heard_ms),
            is_loading: false,
        }
    }

    pub fn reaches(&self, from: usize, to: usize) -> bool {
        self.machines[from].is_alive
            && self.machines[to].is_alive
            && !self.cut.contains(&(from, to))
    }

    /// Whether a replica's history is a part of a node's.
    fn continues(&self, replica: usize, primary: usize) -> bool {
        let [own, theirs] = [replica, primary].map(|index| &self.machines[index].history);
        own.len() <= theirs.len()
            && own.last().map(|last| last.number)
                == own.len().checked_sub(1).map(|last| theirs[last].number)
    }

    /// Whether a replica can follow a node.
    fn streams(&self, replica: usize, primary: usize) -> bool {
        self.reaches(replica, primary)
            && self.reaches(primary, replica)
            && !self.unfollowed.contains(&(replica, primary))
    }

    pub fn cut_both(&mut self, one: usize, other: usize) {
        self.cut.extend([(one, other), (other, one)]);
    }

    pub fn disturb(&mut self, index: usize) {
        self.machines[index].disturbed_ms = self.now;
    }

    fn after(&mut self, delay: i64, due: Due) {
        self.number += 1;
        self.due.insert((self.now + delay, self.number), due);
    }

    pub fn command<R>(
        &mut self,
        index: usize,
        run: impl FnOnce(&mut Cluster, &Outside, &mut Vec<Action>) -> R,
    ) -> R {
        let outside = self.outside(index);
        let mut actions = Vec::new();
        let result = run(&mut self.machines[index].cluster, &outside, &mut actions);
        self.machines[index].cluster.before_sleep(&outside, &mut actions);
        self.watch(index);
        self.carry_out(index, actions);
        result
    }

    fn tell(&mut self, index: usize, event: Event<'_>) {
        self.command(index, |cluster, outside, actions| cluster.handle(outside, event, actions));
    }

    fn carry_out(&mut self, index: usize, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Connect { link, ip, .. } => {
                    let delay = self.random.i64(1..5);
                    self.after(delay, Due::Open { from: index, link, to: at(&ip) });
                }
                Action::Send { link, message } => self.send(index, link, message),
                Action::Close { link } => {
                    if let Some((to, other)) = self.machines[index].ends.remove(&link) {
                        self.machines[to].ends.remove(&other);
                        self.after(2, Due::Closed { to, link: other });
                    }
                }
                Action::Save { text, is_awaited, .. } => {
                    let is_slow = self.machines[index].slow_until > self.now;
                    let delay = self.random.i64(1..if is_slow { 2_500 } else { 30 });
                    let (life, machine) = (self.lives[index], &mut self.machines[index]);
                    // One that has not begun stands for all after it.
                    if machine.writes_until <= self.now {
                        machine.writes_until = machine.saved_at.max(self.now);
                    }
                    if machine.saved_at <= self.now {
                        machine.saved_at = self.now + delay;
                        machine.writes_until = machine.saved_at;
                    } else if machine.saved_at == machine.writes_until {
                        machine.saved_at += delay;
                    }
                    if is_awaited {
                        machine.silent_until = machine.saved_at;
                    }
                    let delay = machine.saved_at - self.now;
                    self.after(delay, Due::Saved { at: index, life, text });
                }
                Action::Follow { ip, .. } => self.follow(index, at(&ip)),
                Action::Promote => self.promote(index),
                Action::DropKeys(slots) => {
                    self.machines[index].dropped += slots.len();
                    let drops = &mut self.machines[index].drops;
                    slots.iter().for_each(|slot| {
                        drops.insert(slot);
                    });
                }
                Action::DropAllKeys => {
                    self.machines[index].keys.clear();
                    self.machines[index].history.clear();
                }
                Action::PauseWrites { until_boot_ms } => {
                    self.machines[index].paused_until = until_boot_ms;
                }
                Action::EndPause => self.machines[index].paused_until = 0,
                Action::Log { text, .. } => {
                    self.log(format!("{index}: {text}"));
                    self.watch_log(index, &text);
                }
                Action::Deliver { .. } | Action::Recheck => {}
            }
        }
    }

    fn send(&mut self, index: usize, link: LinkId, bytes: Arc<[u8]>) {
        let Some(&(to, other)) = self.machines[index].ends.get(&link) else { return };
        let now = self.now;
        if wire::type_of(&bytes) == wire::AUTH_REQUEST {
            let asked = &mut self.machines[index].asked_ms;
            asked.retain(|asked| now - asked < 2 * CALM_MS);
            if asked.last() != Some(&now) {
                asked.push(now);
                self.check_age(index);
            }
        }
        let waits = (self.machines[index].silent_until - self.now).max(0);
        let delay = self.random.i64(1..4);
        let arrivals = &mut self.machines[index].arrivals;
        // Messages of a connection keep their order.
        let arrival = arrivals.entry(link).or_insert(0);
        *arrival = (*arrival).max(self.now + waits + delay);
        let delay = *arrival - self.now;
        let from = (index, self.lives[index]);
        self.after(delay, Due::Message { from, to, link: other, bytes });
    }

    fn happen(&mut self, due: Due) {
        match due {
            Due::Open { from, link, to } => {
                if !self.reaches(from, to) || !self.reaches(to, from) {
                    return self.tell(from, Event::Closed { link });
                }
                self.machines[to].accepted += 1;
                let other = LinkId(self.machines[to].accepted + (self.lives[to] << 32));
                self.machines[from].ends.insert(link, (to, other));
                self.machines[to].ends.insert(other, (from, link));
                self.tell(to, Event::Accepted { link: other, peer: ip(from), local: ip(to) });
                self.tell(from, Event::Connected { link, local: Some(ip(from)) });
            }
            Due::Message { from: (from, life), to, link, bytes } => {
                if self.lives[from] != life || !self.machines[to].ends.contains_key(&link) {
                    return;
                }
                let stays = (from, life);
                if let Some(until) =
                    self.machines[to].blocked.get(&link).filter(|until| **until > self.now)
                {
                    let delay = until - self.now;
                    self.after(delay, Due::Message { from: stays, to, link, bytes });
                } else if self.reaches(from, to) && self.machines[to].deaf_until <= self.now {
                    self.check_vote_is_saved(from, &bytes);
                    self.tell(to, Event::Received { link, message: &bytes });
                    self.note_vote(from, to, &bytes);
                } else if self.machines[to].deaf_until > self.now
                    || self.random.u8(0..10) < self.stalls
                {
                    // TCP sends it again; what comes after it waits too.
                    let delay = (self.machines[to].deaf_until - self.now).clamp(1, 200);
                    self.machines[to].blocked.insert(link, self.now + delay);
                    self.after(delay, Due::Message { from: stays, to, link, bytes });
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
            Due::Restart { at } => {
                if !self.machines[at].is_alive {
                    self.restart(at);
                }
            }
            Due::TakeOver { at } => self.take_over(at),
        }
    }

    pub fn run(&mut self, ms: i64) {
        let end = self.now + ms;
        while self.now < end {
            if self.cut.len() < self.cuts_before {
                self.healed_ms = self.now;
            }
            self.cuts_before = self.cut.len();
            let tick = self.now - self.now % 100 + 100;
            while let Some(entry) = self.due.first_entry().filter(|entry| entry.key().0 <= tick) {
                self.now = self.now.max(entry.key().0);
                let due = entry.remove();
                self.happen(due);
            }
            self.now = tick;
            for index in 0..self.machines.len() {
                if self.machines[index].is_alive {
                    self.replicate(index);
                    self.drop_some(index);
                    self.tick_if_due(index);
                }
            }
            self.write_some();
            self.acknowledge();
            self.check_owners();
        }
    }

    /// Ticks that are not due are left out, or shown to do nothing.
    fn tick_if_due(&mut self, index: usize) {
        let is_left_out = self.seed.is_multiple_of(2);
        self.command(index, |cluster, outside, actions| {
            let is_due = cluster.due_ms() <= outside.boot_ms;
            if is_due || !is_left_out {
                let version = cluster.version();
                cluster.tick(outside, actions);
                assert!(is_due || (actions.is_empty() && version == cluster.version()));
            }
        });
    }

    pub fn kill(&mut self, index: usize) {
        self.log(format!("{index} is killed"));
        self.disturb(index);
        self.machines[index].is_alive = false;
        self.lives[index] += 1;
        let mut ends: Vec<_> = self.machines[index].ends.drain().collect();
        ends.sort();
        self.machines[index].arrivals.clear();
        self.machines[index].blocked.clear();
        for (_, (to, other)) in ends {
            self.machines[to].ends.remove(&other);
            self.after(1, Due::Closed { to, link: other });
        }
        self.waiting.retain(|(at, ..)| *at != index);
    }

    pub fn restart(&mut self, index: usize) {
        self.log(format!("{index} starts"));
        self.disturb(index);
        let conf = config_file::parse(&self.machines[index].file).expect("its own file");
        let seed = self.random.u64(..);
        let settings = self.machines[index].settings.clone();
        let cluster = Cluster::restore(&conf, settings, seed).expect("its own file");
        let primary = cluster.myself().primary.map(|primary| cluster.node(primary).id);
        let primary = (0..self.machines.len()).find(|other| Some(name(*other)) == primary);
        let machine = &mut self.machines[index];
        machine.cluster = cluster;
        machine.is_alive = true;
        (machine.saved_at, machine.writes_until, machine.silent_until) = (self.now, self.now, 0);
        (machine.heard_ms, machine.syncs_until, machine.paused_until) = (None, None, 0);
        machine.drops = SlotSet::default();
        machine.follows = primary;
        machine.deaf_until = 0;
        machine.known.fill(None);
    }

    pub fn restart_after(&mut self, index: usize, ms: i64) {
        self.after(ms, Due::Restart { at: index });
    }

    // ---- data -----------------------------------------------------------------------------------

    fn follow(&mut self, index: usize, primary: usize) {
        let successor = &self.machines[primary];
        let is_forced = successor.by_hand == Failover::Forced
            && successor.by_hand_ms.is_some_and(|ms| self.now - ms < HEALING_MS);
        if self.machines[index].follows.is_none() && is_forced {
            // It was not asked, and has acknowledged writes until it heard of its successor, which
            // has those from before.
            let slots = self.machines[primary].cluster.myself().slots.clone();
            let is_slot =
                |number: u16| HashSlot::new(number.into()).is_some_and(|slot| slots.contains(slot));
            self.safe.retain(|key, safe| !is_slot(key.0) || safe.holders.contains(&primary));
        }
        let machine = &mut self.machines[index];
        if machine.follows != Some(primary) {
            machine.follows = Some(primary);
            (machine.heard_ms, machine.syncs_until) = (None, None);
            machine.drops = SlotSet::default();
            self.disturb(index);
        }
    }

    /// Takes a step of replication: the next part of the history, or everything anew.
    fn replicate(&mut self, index: usize) {
        let Some(primary) = self.machines[index].follows else { return };
        if !self.streams(index, primary) {
            self.machines[index].syncs_until = None;
            return;
        }
        let now = self.now;
        let theirs = &self.machines[primary].history;
        let own = &self.machines[index].history;
        if self.continues(index, primary) {
            let end = theirs.len().min(own.len() + self.random.usize(1..STREAM_CHANGES));
            let changes = theirs[own.len()..end].to_vec();
            let machine = &mut self.machines[index];
            changes.into_iter().for_each(|change| machine.change(change));
            machine.syncs_until = None;
        } else {
            let (history, keys) = (theirs.clone(), self.machines[primary].keys.clone());
            let until = *self.machines[index].syncs_until.get_or_insert(now + SYNC_MS);
            if now < until {
                return;
            }
            let machine = &mut self.machines[index];
            (machine.history, machine.keys, machine.syncs_until) = (history, keys, None);
            self.disturb(index);
        }
        self.machines[index].heard_ms = Some(now);
    }

    /// Deletes a key of a slot that another node has taken.
    fn drop_some(&mut self, index: usize) {
        let machine = &self.machines[index];
        if machine.follows.is_some() || machine.paused_until > self.now {
            return;
        }
        let drops = machine.drops.iter().collect::<Vec<_>>();
        for slot in drops {
            let is_back = self.machines[index].cluster.owns(slot);
            let range = (slot.number(), 0)..=(slot.number(), u8::MAX);
            let key = self.machines[index].keys.range(range).next().map(|(key, _)| *key);
            match key.filter(|_| !is_back) {
                Some(key) => return self.change(index, key, None),
                None => drop(self.machines[index].drops.remove(slot)),
            }
        }
    }

    fn change(&mut self, index: usize, key: Key, value: Option<u64>) {
        self.written += 1;
        let number = self.written;
        self.machines[index].change(Change { key, value, number });
    }

    /// Whether a node accepts a write of a key, by the gate's rules.
    fn takes(&self, index: usize, key: Key, asks: bool) -> bool {
        let machine = &self.machines[index];
        let slot = HashSlot::new(key.0.into()).expect("a slot");
        let cluster = &machine.cluster;
        let has = machine.keys.contains_key(&key);
        let is_mine = cluster.owns(slot) && (has || cluster.migrating_to(slot).is_none());
        let is_asked = asks && cluster.importing_from(slot).is_some();
        machine.is_alive
            && machine.follows.is_none()
            && machine.paused_until <= self.now
            && cluster.is_ok()
            && (is_mine || is_asked)
    }

    /// Clients write some keys, at the nodes that accept them.
    fn write_some(&mut self) {
        for _ in 0..2 {
            let slot = used_slots().nth(self.random.usize(..USED_SLOTS)).expect("a slot");
            let key = (slot.number(), self.random.u8(..KEYS as u8));
            let first = self.random.usize(..self.machines.len());
            let count = self.machines.len();
            let nodes = (0..count).map(|step| (first + step) % count);
            let place = nodes.clone().find(|index| self.takes(*index, key, false)).or_else(|| {
                // The owner sends the client to the target of the key's move.
                let owner = nodes.clone().find(|index| {
                    let machine = &self.machines[*index];
                    machine.is_alive && machine.cluster.owns(slot) && machine.cluster.is_ok()
                })?;
                let cluster = &self.machines[owner].cluster;
                let target = cluster.node(cluster.migrating_to(slot)?).id;
                nodes.clone().find(|index| name(*index) == target && self.takes(*index, key, true))
            });
            if let Some(index) = place {
                self.write(index, key);
            }
        }
    }

    fn write(&mut self, index: usize, key: Key) {
        let value = self.written + 1;
        let is_elsewhere = |(other, machine): (usize, &Machine)| {
            let slot = HashSlot::new(key.0.into()).expect("a slot");
            other != index && machine.keys.contains_key(&key) && !machine.drops.contains(slot)
        };
        if self.has_no_failovers
            && !self.machines[index].keys.contains_key(&key)
            && self.machines.iter().enumerate().any(is_elsewhere)
        {
            self.fail(&format!("{index} takes {key:?} for a new key"));
        }
        self.change(index, key, Some(value));
        let change = *self.machines[index].history.last().expect("just written");
        let replicas = self.machines[index].cluster.myself().replicas.len();
        if replicas > 0 {
            self.waiting.push((index, self.lives[index], change, replicas));
        }
    }

    /// Acknowledges the writes that all replicas of their primary have.
    fn acknowledge(&mut self) {
        for (index, life, change, replicas) in std::mem::take(&mut self.waiting) {
            let machine = &self.machines[index];
            if self.lives[index] != life || machine.follows.is_some() {
                continue;
            }
            let has = |machine: &Machine| {
                machine.history.iter().rev().take(400).any(|known| known.number == change.number)
            };
            if !has(machine) {
                continue;
            }
            let mut holders: BTreeSet<usize> = (0..self.machines.len())
                .filter(|other| {
                    let other_machine = &self.machines[*other];
                    other_machine.follows == Some(index)
                        && self.streams(*other, index)
                        && other_machine.syncs_until.is_none()
                        && has(other_machine)
                })
                .collect();
            // In a minority the primary may have been replaced long ago.
            if holders.len() >= replicas && machine.cluster.is_ok() {
                holders.insert(index);
                let value = change.value.expect("a write");
                self.acknowledged += 1;
                let number = change.number;
                let known = self.safe.get(&change.key).is_some_and(|safe| safe.value > value);
                if !known {
                    self.safe.insert(change.key, Safe { value, number, holders });
                }
            } else if machine.history.len()
                < 350
                    + machine
                        .history
                        .iter()
                        .rposition(|known| known.number == change.number)
                        .unwrap_or(0)
            {
                self.waiting.push((index, life, change, replicas));
            }
        }
    }

    /// Stops expecting a slot's acknowledged writes, as an event may have lost them.
    pub fn forgive(&mut self, slot: HashSlot) {
        self.safe.retain(|key, _| key.0 != slot.number());
    }

    /// An administrator makes a replica take over without its primary, and accepts the loss of
    /// data.
    pub fn take_over(&mut self, index: usize) {
        if !self.machines[index].is_alive || self.machines[index].follows.is_none() {
            return;
        }
        used_slots().for_each(|slot| {
            let cluster = &self.machines[index].cluster;
            if cluster.owner(slot) == cluster.myself().primary {
                self.forgive(slot);
            }
        });
        self.fail_over(index, Failover::Forced);
    }

    pub fn fail_over(&mut self, index: usize, kind: Failover) {
        self.log(format!("{index} is to take over: {kind:?}"));
        self.disturb(index);
        self.machines[index].by_hand_ms = Some(self.now);
        self.machines[index].by_hand = kind;
        self.command(index, |cluster, outside, actions| {
            cluster.fail_over(kind, false, outside, actions)
        });
    }

    // ---- moving a slot --------------------------------------------------------------------------

    /// Moves one key as MIGRATE does: the target has the key before the source deletes it. Returns
    /// whether a key was moved.
    pub fn migrate_key(&mut self, slot: HashSlot, from: usize, to: usize) -> bool {
        let range = (slot.number(), 0)..=(slot.number(), u8::MAX);
        let Some((&key, &value)) = self.machines[from].keys.range(range).next() else {
            return false;
        };
        let is_open = self.machines[to].cluster.importing_from(slot).is_some()
            || self.machines[to].cluster.owns(slot);
        let can = self.streams(from, to)
            && is_open
            && self.machines[to].cluster.is_ok()
            && self.machines[from].cluster.is_ok()
            && self.machines[to].follows.is_none()
            && self.machines[from].follows.is_none()
            && self.machines[to].paused_until <= self.now
            && self.machines[from].paused_until <= self.now;
        if !can {
            return false;
        }
        self.change(to, key, Some(value));
        self.change(from, key, None);
        // Other machines hold the key now. WAIT at the source does not cover them.
        self.waiting.retain(|(index, _, change, _)| *index != from || change.key != key);
        if let Some(safe) = self.safe.get_mut(&key) {
            safe.holders = BTreeSet::from([to]);
        }
        true
    }

    pub fn index_of(&self, at: usize, other: usize) -> Option<NodeIndex> {
        self.machines[at].cluster.find(&name(other))
    }

    // ---- agreement ------------------------------------------------------------------------------

    /// Checks that all living nodes agree about everything. Errors: the reason why not.
    pub fn agreement(&self) -> Result<(), String> {
        let alive = || self.machines.iter().filter(|machine| machine.is_alive);
        let first = &alive().next().expect("one is alive").cluster;
        let owner =
            |cluster: &Cluster, slot| cluster.owner(slot).map(|owner| cluster.node(owner).id);
        for machine in alive() {
            let (cluster, id) = (&machine.cluster, machine.cluster.myself().id);
            if !cluster.is_ok() {
                return Err(format!("{id}: {}", cluster.info()));
            }
            if let Some(slot) =
                HashSlot::all().find(|slot| owner(cluster, *slot) != owner(first, *slot))
            {
                return Err(format!("{id} about slot {}", slot.number()));
            }
            let my_role = (cluster.myself().is_primary(), cluster.myself().config_epoch);
            let seen = first.find(&id).map(|index| first.node(index));
            let is_known = seen.is_some_and(|seen| {
                seen.is_primary() == my_role.0
                    && (!my_role.0 || seen.slots.is_empty() || seen.config_epoch == my_role.1)
            });
            if !is_known {
                return Err(format!("the first does not know {id} as it is"));
            }
            let failing = cluster.nodes().find(|(_, node)| node.flags.contains(NodeFlags::FAIL));
            if let Some((_, node)) = failing
                && self
                    .machines
                    .iter()
                    .any(|machine| machine.is_alive && machine.cluster.myself().id == node.id)
            {
                return Err(format!("{id} takes {} for failed", node.id));
            }
        }
        let voting = first.nodes().filter(|(_, node)| node.is_voting());
        let epochs: Vec<u64> = voting.map(|(_, node)| node.config_epoch).collect();
        let distinct: BTreeSet<&u64> = epochs.iter().collect();
        if distinct.len() != epochs.len() {
            return Err(format!("two primaries have one epoch: {epochs:?}"));
        }
        Ok(())
    }

    pub fn check_agreement(&self) {
        if let Err(text) = self.agreement() {
            self.fail(&text);
        }
    }

    /// Ends all misfortune, and checks that all agree in bounded time and that nothing is lost.
    pub fn heal(&mut self) {
        self.log("healing".into());
        self.cut.clear();
        self.unfollowed.clear();
        self.crashing_voters = 0;
        self.has_contests = false;
        for index in 0..self.machines.len() {
            self.machines[index].slow_until = 0;
            self.machines[index].deaf_until = 0;
            if !self.machines[index].is_alive {
                self.restart(index);
            }
        }
        let end = self.now + HEALING_MS;
        while self.agreement().is_err() && self.now < end {
            self.run(500);
        }
        self.check_agreement();
        self.check_data();
    }

    /// Checks that every acknowledged write is at its slot's owner.
    pub fn check_data(&self) {
        for (key, safe) in &self.safe {
            let slot = HashSlot::new(key.0.into()).expect("a slot");
            let owner =
                self.machines.iter().find(|machine| machine.is_alive && machine.cluster.owns(slot));
            let Some(owner) = owner else { self.fail("a slot without an owner") };
            let value = owner.keys.get(key);
            // Keys of a slot that moves may be on the way.
            let is_moving = self.moving.contains(&key.0);
            if value.is_none_or(|value| *value < safe.value) && !is_moving {
                self.fail(&format!(
                    "{key:?} is {value:?} at {}, and {} (change {}) was acknowledged at {:?}",
                    owner.cluster.myself().id,
                    safe.value,
                    safe.number,
                    safe.holders
                ));
            }
        }
    }

    /// The nodes that have keys of a slot and are no replicas.
    pub fn primaries_with_keys(&self, slot: HashSlot) -> Vec<usize> {
        (0..self.machines.len())
            .filter(|index| {
                let machine = &self.machines[*index];
                machine.is_alive && machine.follows.is_none() && machine.count_in_slot(slot) > 0
            })
            .collect()
    }
}
