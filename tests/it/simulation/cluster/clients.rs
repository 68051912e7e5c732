//! The clients of a cluster: each sends a request to the node that it takes for the owner of its
//! key, follows MOVED and ASK, tries again what was refused, and gives up what is not answered.

use super::super::connection::Connection;
use super::super::network;
use super::super::world::{MS, SECOND};
use super::lock_holders::Holdings;
use super::nodes::{Cluster, node_of, text};
use crate::support::Reply;

/// Counters with each hash tag; two further ones always change together.
const COUNTERS: usize = 5;
const WRITERS: usize = 6;
const PAIR_WRITERS: usize = 2;
const PAIR_READERS: usize = 1;
const LOCKERS: usize = 6;
/// Hash tags with locks: many clients for few of them.
const LOCKED_TAGS: usize = 3;
/// After so long without a reply a client gives up: its request was carried out or not.
const PATIENCE_US: i64 = 12 * SECOND;
/// Leases, and what a holder does not rely on.
const LEASE_MS: i64 = 4000;
const MARGIN_US: i64 = 50 * MS;

const ADD_TO_BOTH: &str = "return {redis.call('INCR', KEYS[1]), redis.call('INCR', KEYS[2])}";
const UNLOCK: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return -2";

/// A counter, as those know it who increment it.
#[derive(Clone, Copy, Debug, Default)]
struct Counter {
    /// Increments that were sent, and may have been carried out.
    sent: i64,
    /// The largest number that was answered.
    answered: i64,
    /// The largest number that all replicas have acknowledged.
    promised: i64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Writer,
    PairWriter,
    PairReader,
    /// By SET NX.
    StringLocker,
    /// By LOCK.ACQUIRE.
    Locker,
}

/// What a request is to.
#[derive(Clone, Debug)]
enum Goal {
    /// A counter, and what it must exceed.
    Add {
        counter: usize,
        floor: i64,
    },
    /// WAIT behind an increment, and the changes of the tag's home before that.
    Wait {
        counter: usize,
        value: i64,
        changes: u64,
    },
    AddToBoth {
        counter: usize,
        floor: i64,
    },
    /// Two counters, and what they must not be below.
    ReadBoth {
        counter: usize,
        floor: i64,
    },
    /// A lock, its owner, and when it was asked for.
    Acquire {
        key: String,
        owner: String,
    },
    Release,
}

#[derive(Clone, Debug)]
struct Request {
    tag: usize,
    words: Vec<String>,
    goal: Goal,
}

/// A lock that an actor has.
#[derive(Clone, Debug)]
struct Held {
    tag: usize,
    key: String,
    owner: String,
    until_us: i64,
    leave_us: i64,
}

struct Actor {
    kind: Kind,
    request: Option<Request>,
    /// The request's connection, while it is under way.
    connection: Option<Connection>,
    is_sent: bool,
    sent_us: i64,
    /// Where the next attempt goes by ASK.
    asked_to: Option<usize>,
    held: Option<Held>,
    next_us: i64,
}

pub struct Clients {
    actors: Vec<Actor>,
    counters: Vec<Counter>,
    holdings: Holdings,
    /// The node to which requests for each tag go.
    map: Vec<usize>,
    owners: u64,
    writes: u64,
    waits: u64,
    reads: u64,
    moved: u64,
    asked: u64,
    unknown: u64,
    tries_again: u64,
}

/// The number of a tag's counter; that of its pair is behind the others.
fn counter_of(tag: usize, number: usize) -> usize {
    tag * (COUNTERS + 1) + number
}

fn key_of(cluster: &Cluster, counter: usize) -> String {
    let (tag, number) = (counter / (COUNTERS + 1), counter % (COUNTERS + 1));
    format!("{{{}}}:{number}", cluster.tags[tag].name)
}

impl Clients {
    pub fn new(cluster: &Cluster) -> Self {
        let kinds = [
            (Kind::Writer, WRITERS),
            (Kind::PairWriter, PAIR_WRITERS),
            (Kind::PairReader, PAIR_READERS),
            (Kind::StringLocker, LOCKERS / 2),
            (Kind::Locker, LOCKERS / 2),
        ];
        let actors =
            kinds.into_iter().flat_map(|(kind, count)| vec![kind; count]).map(|kind| Actor {
                kind,
                request: None,
                connection: None,
                is_sent: false,
                sent_us: 0,
                asked_to: None,
                held: None,
                next_us: 0,
            });
        Clients {
            actors: actors.collect(),
            counters: vec![Counter::default(); counter_of(cluster.tags.len(), 0)],
            holdings: Holdings::default(),
            map: cluster.tags.iter().map(|tag| tag.home).collect(),
            owners: 0,
            writes: 0,
            waits: 0,
            reads: 0,
            moved: 0,
            asked: 0,
            unknown: 0,
            tries_again: 0,
        }
    }

    pub fn summary(&self) -> String {
        let Clients { writes, waits, reads, moved, asked, unknown, tries_again, .. } = self;
        format!(
            "{writes} writes, {waits} acknowledged by all, {reads} reads, {} grants, {moved} moved, {asked} asked, {tries_again} tried again, {unknown} unknown",
            self.holdings.grants
        )
    }

    /// Whether nobody waits for a reply, or holds a lock.
    pub fn are_at_rest(&self) -> bool {
        self.actors.iter().all(|actor| actor.request.is_none() && actor.held.is_none())
    }

    /// What a shard's nodes have acknowledged may be lost.
    pub fn forget_promises(&mut self, cluster: &Cluster, shard: usize) {
        for (tag, it) in cluster.tags.iter().enumerate() {
            if it.home == shard || it.is_moving {
                self.forget_promises_of(tag);
            }
        }
    }

    /// The replicas of a slot's new owner may have less than it.
    pub fn forget_promises_of(&mut self, tag: usize) {
        let counters = counter_of(tag, 0)..counter_of(tag + 1, 0);
        self.counters[counters].iter_mut().for_each(|counter| counter.promised = 0);
    }

    /// Takes replies, and sends more. Who `rests` only ends what he has begun.
    pub fn act(&mut self, cluster: &mut Cluster, rests: bool) {
        for index in 0..self.actors.len() {
            if self.actors[index].is_sent {
                self.take(cluster, index);
            }
            let actor = &self.actors[index];
            if !actor.is_sent && cluster.world.now_us >= actor.next_us {
                if actor.request.is_none() {
                    self.begin(cluster, index, rests);
                }
                self.send(cluster, index);
            }
        }
    }

    // ---- requests -------------------------------------------------------------------------------

    /// Decides what a client wants next.
    fn begin(&mut self, cluster: &mut Cluster, index: usize, rests: bool) {
        let random = &mut cluster.world.random;
        let now_us = cluster.world.now_us;
        let kind = self.actors[index].kind;
        if let Some(held) = self.actors[index].held.clone() {
            if now_us < held.leave_us && !rests {
                self.actors[index].next_us = held.leave_us;
                return;
            }
            let Held { tag, key, owner, .. } = held;
            // From now on nobody relies on it.
            self.holdings.give_up(&key, &owner);
            let words: Vec<&str> = match kind {
                Kind::Locker => vec!["LOCK.RELEASE", &key, &owner],
                _ => vec!["EVAL", UNLOCK, "1", &key, &owner],
            };
            let words = words.into_iter().map(str::to_owned).collect();
            self.actors[index].request = Some(Request { tag, words, goal: Goal::Release });
            return;
        }
        if rests {
            return;
        }
        let tag = random.usize(..cluster.tags.len());
        let name = cluster.tags[tag].name;
        let request = match kind {
            Kind::Writer => {
                let counter = counter_of(tag, random.usize(..COUNTERS));
                let words = vec!["INCR".into(), key_of(cluster, counter)];
                self.counters[counter].sent += 1;
                Request { tag, words, goal: Goal::Add { counter, floor: 0 } }
            }
            Kind::PairWriter => {
                let counter = counter_of(tag, COUNTERS);
                let (one, other) = (format!("{{{name}}}:p"), format!("{{{name}}}:q"));
                let words = vec!["EVAL".into(), ADD_TO_BOTH.into(), "2".into(), one, other];
                self.counters[counter].sent += 1;
                Request { tag, words, goal: Goal::AddToBoth { counter, floor: 0 } }
            }
            Kind::PairReader => {
                let words = vec!["MGET".into(), format!("{{{name}}}:p"), format!("{{{name}}}:q")];
                let counter = counter_of(tag, COUNTERS);
                Request { tag, words, goal: Goal::ReadBoth { counter, floor: 0 } }
            }
            Kind::StringLocker | Kind::Locker => {
                let tag = random.usize(..LOCKED_TAGS);
                let name = cluster.tags[tag].name;
                self.owners += 1;
                let owner = format!("owner-{}", self.owners);
                let lease = LEASE_MS.to_string();
                let (key, words) = match kind {
                    Kind::StringLocker => {
                        let key = format!("{{{name}}}:string");
                        (key.clone(), vec!["SET".into(), key, owner.clone(), "NX".into()])
                    }
                    _ => {
                        let key = format!("{{{name}}}:lock");
                        (key.clone(), vec!["LOCK.ACQUIRE".into(), key, owner.clone()])
                    }
                };
                let mut words: Vec<String> = words;
                words.extend(["PX".into(), lease]);
                if kind == Kind::Locker && random.bool() {
                    words.extend(["BLOCK".into(), random.u32(1..1500).to_string()]);
                }
                Request { tag, words, goal: Goal::Acquire { key, owner } }
            }
        };
        self.actors[index].request = Some(request);
    }

    fn send(&mut self, cluster: &mut Cluster, index: usize) {
        let actor = &mut self.actors[index];
        let Some(request) = &mut actor.request else { return };
        let now_us = cluster.world.now_us;
        if !matches!(request.goal, Goal::Wait { .. }) {
            let node = actor.asked_to.unwrap_or(self.map[request.tag]);
            let is_there = actor.connection.as_ref().is_some_and(|connection| {
                connection.node == node
                    && connection.life == cluster.world.nodes[node].life
                    && !connection.has_ended
            });
            if !is_there {
                actor.connection = cluster.world.connect(node);
            }
        }
        let Some(connection) = actor.connection.as_mut().filter(|connection| !connection.has_ended)
        else {
            // A node that is gone: another one knows.
            if matches!(request.goal, Goal::Wait { .. }) {
                actor.request = None;
                return;
            }
            actor.asked_to = None;
            self.map[request.tag] = cluster.world.random.usize(..cluster.nodes);
            actor.next_us = now_us + 20 * MS;
            return;
        };
        match &mut request.goal {
            Goal::Add { counter, floor }
            | Goal::AddToBoth { counter, floor }
            | Goal::ReadBoth { counter, floor } => {
                let Counter { answered, promised, .. } = self.counters[*counter];
                *floor = if cluster.is_restless { promised } else { answered };
            }
            _ => {}
        }
        if actor.asked_to.take().is_some() {
            connection.send(&["ASKING"]);
        }
        connection.send(&request.words);
        let words = &request.words;
        cluster
            .world
            .trace
            .note(|| format!("client {index} to {} {}", connection.node, words.join(" ")));
        (actor.is_sent, actor.sent_us) = (true, now_us);
    }

    // ---- replies --------------------------------------------------------------------------------

    fn take(&mut self, cluster: &mut Cluster, index: usize) {
        let now_us = cluster.world.now_us;
        let actor = &mut self.actors[index];
        let Some(connection) = &mut actor.connection else { return };
        let node = connection.node;
        let last = connection.take().pop().filter(|_| connection.awaited == 0);
        let has_ended = connection.has_ended;
        let Some(reply) = last else {
            if has_ended || now_us > actor.sent_us + PATIENCE_US {
                // It was carried out or not.
                self.unknown += 1;
                let tag = actor.request.take().map(|request| request.tag);
                (actor.connection, actor.is_sent, actor.held) = (None, false, None);
                if let Some(tag) = tag {
                    self.map[tag] = cluster.world.random.usize(..cluster.nodes);
                }
            }
            return;
        };
        actor.is_sent = false;
        let Some(request) = actor.request.take() else { return };
        cluster
            .world
            .trace
            .note(|| format!("client {index} {node} {} {}", request.words.join(" "), reply.show()));
        if let Reply::Error(error) = &reply {
            let error = String::from_utf8_lossy(error).into_owned();
            self.follow(cluster, index, request, &error);
            return;
        }
        self.conclude(cluster, index, request, &reply);
    }

    /// Goes where an error says, or tries again later.
    fn follow(&mut self, cluster: &mut Cluster, index: usize, request: Request, error: &str) {
        let now_us = cluster.world.now_us;
        let actor = &mut self.actors[index];
        let mut words = error.split([' ', ':']);
        let kind = words.next().unwrap_or_default();
        let target = words.nth(1).and_then(|ip| node_of(ip, cluster.nodes));
        match (kind, target) {
            ("MOVED", Some(target)) => {
                self.moved += 1;
                self.map[request.tag] = target;
                // Two nodes may point at each other for a while.
                actor.next_us = now_us + cluster.world.random.i64(0..10) * MS;
            }
            ("ASK", Some(target)) => {
                self.asked += 1;
                actor.asked_to = Some(target);
            }
            ("TRYAGAIN" | "CLUSTERDOWN" | "LOADING" | "UNBLOCKED", _) => {
                self.tries_again += 1;
                if kind != "TRYAGAIN" {
                    self.map[request.tag] = cluster.world.random.usize(..cluster.nodes);
                }
                actor.next_us = now_us + 50 * MS;
            }
            _ if matches!(request.goal, Goal::Wait { .. }) => return,
            _ => {
                let words = request.words.join(" ");
                cluster.world.fail(&format!("client {index}, {words}: {error}"));
            }
        }
        self.actors[index].request = Some(request);
    }

    fn conclude(&mut self, cluster: &mut Cluster, index: usize, request: Request, reply: &Reply) {
        let now_us = cluster.world.now_us;
        // A target that crashes right after it has taken slots leaves a part of them at its replica.
        let may_be_half = cluster.is_restless && cluster.has_failed_over;
        let world = &cluster.world;
        let words = || request.words.join(" ");
        let actor = &mut self.actors[index];
        match request.goal {
            Goal::Add { counter, floor } => {
                let Reply::Integer(value) = *reply else {
                    world.fail(&format!("{}: {}", words(), reply.show()))
                };
                self.writes += 1;
                self.note(cluster, counter, floor, value);
                if cluster.world.random.u32(..4) == 0 {
                    let tag = &cluster.tags[request.tag];
                    let replicas = cluster.shards[tag.home].len() - 1;
                    let goal = Goal::Wait { counter, value, changes: tag.changes };
                    let words = ["WAIT".into(), replicas.to_string(), "1000".into()];
                    let words = words.to_vec();
                    let request = Request { tag: request.tag, words, goal };
                    self.actors[index].request = Some(request);
                }
            }
            Goal::AddToBoth { counter, floor } => {
                let values = match reply {
                    Reply::Array(values) => values.as_slice(),
                    _ => &[],
                };
                let [Reply::Integer(one), Reply::Integer(other)] = *values else {
                    world.fail(&format!("{}: {}", words(), reply.show()))
                };
                if one != other && !may_be_half {
                    world.fail(&format!("{}: half of it is there: {one} and {other}", words()));
                }
                self.writes += 1;
                self.note(cluster, counter, floor, one);
            }
            Goal::ReadBoth { floor, .. } => {
                let Reply::Array(values) = reply else {
                    world.fail(&format!("{}: {}", words(), reply.show()))
                };
                let value: i64 = text(&values[0]).parse().unwrap_or(0);
                // Another node may still answer reads of one that has been cut off.
                if value < floor && !cluster.is_restless {
                    world.fail(&format!("{}: {floor} was acknowledged: {}", words(), reply.show()));
                }
                self.reads += 1;
                if values[0] != values[1] && !may_be_half {
                    world.fail(&format!("{}: half of it is seen: {}", words(), reply.show()));
                }
            }
            Goal::Wait { counter, value, changes } => {
                let Reply::Integer(count) = *reply else {
                    world.fail(&format!("{}: {}", words(), reply.show()))
                };
                let tag = &cluster.tags[request.tag];
                let replicas = cluster.shards[tag.home].len() - 1;
                // A slot that moves may be at a node whose replicas have less.
                let is_meant = actor.connection.as_ref().is_some_and(|connection| {
                    cluster.shards[tag.home].contains(&connection.node)
                        && tag.changes == changes
                        && !tag.is_moving
                });
                if is_meant && replicas > 0 && count as usize >= replicas {
                    self.waits += 1;
                    let promised = &mut self.counters[counter].promised;
                    *promised = value.max(*promised);
                }
            }
            Goal::Acquire { key, owner } => {
                let is_granted = match reply {
                    Reply::Array(told) => matches!(told[..], [Reply::Integer(1..), _, _]),
                    told => *told == Reply::Simple(b"OK".to_vec()),
                };
                if !is_granted {
                    actor.next_us = now_us + cluster.world.random.i64(20..400) * MS;
                    return;
                }
                let until_us = actor.sent_us + LEASE_MS * MS - MARGIN_US;
                if until_us <= now_us {
                    // Too late to be of use.
                    return;
                }
                let granted = self.holdings.grant(&key, &owner, (now_us, until_us));
                if let Err(why) = granted
                    && !cluster.is_restless
                {
                    world.fail(&why);
                }
                let leave_us = now_us + cluster.world.random.i64(0..1500) * MS;
                let tag = request.tag;
                actor.held = Some(Held { tag, key, owner, until_us, leave_us });
            }
            Goal::Release => {
                let Some(held) = actor.held.take() else { return };
                let is_done = matches!(reply, Reply::Integer(0..));
                if !is_done && now_us < held.until_us && !cluster.is_restless {
                    world.fail(&format!("{}: the lock is lost: {}", words(), reply.show()));
                }
                actor.next_us = now_us + cluster.world.random.i64(0..200) * MS;
            }
        }
    }

    /// Judges the value of a counter after an increment.
    fn note(&mut self, cluster: &Cluster, counter: usize, floor: i64, value: i64) {
        let it = &mut self.counters[counter];
        let key = key_of(cluster, counter);
        if value <= floor {
            cluster.world.fail(&format!("{key}: {floor} was acknowledged, and then comes {value}"));
        }
        if value > it.sent {
            cluster.world.fail(&format!("{key}: {value} after {} increments", it.sent));
        }
        it.answered = it.answered.max(value);
    }

    // ---- what must hold at rest -----------------------------------------------------------------

    /// What was acknowledged is there. To be called when all nodes agree and nothing is under way.
    pub fn check_all(&mut self, cluster: &mut Cluster) {
        for counter in 0..self.counters.len() {
            let Counter { sent, answered, promised } = self.counters[counter];
            let (tag, number) = (counter / (COUNTERS + 1), counter % (COUNTERS + 1));
            let Some(primary) = cluster.owner(0, cluster.tags[tag].slot) else { continue };
            let key = match number {
                COUNTERS => format!("{{{}}}:q", cluster.tags[tag].name),
                _ => key_of(cluster, counter),
            };
            let shown = cluster.world.show(primary, &["GET", &key]);
            let value: i64 = match shown.as_str() {
                "(nil)" => 0,
                shown => shown.trim_matches('"').parse().unwrap_or(-1),
            };
            let least = if cluster.is_restless { promised } else { answered };
            if value < least || value > sent {
                let ip = network::address(primary).ip();
                cluster.world.fail(&format!(
                    "{key}: {least} was acknowledged, {sent} were sent, and {ip} has {shown}"
                ));
            }
            // What was lost without a promise is no longer counted.
            self.counters[counter].answered = value;
        }
        self.holdings.forget();
    }
}
