//! Clients that take locks and permits: natively, with sessions, several at once, and by SET NX PX
//! on the same keys. They release and renew what they have, leave, and are killed in the turn in
//! which they are served. `lock_rules.rs` judges their replies, and the reports on all locks; this
//! folder judges whether waiting clients are served, in their order of arrival.
//!
//! `requests` sends, `replies` takes the answers, `checks` compares reports on all locks with the
//! holdings, `reports` has the parts of replies.

mod checks;
mod replies;
mod reports;
mod requests;

use std::collections::{BTreeSet, VecDeque};

use self::reports::field;
use super::connection::Connection;
use super::lock_rules::{Lock, Promise, Semaphore};
use super::world::{Loss, MS, NODES, SECOND, World};
use crate::support::{Reply, START};

const LOCKS: [&str; 3] = ["lock:x", "lock:y", "lock:z"];
const SEMAPHORES: [(&str, usize); 2] = [("permits:x", 1), ("permits:y", 3)];
const ACTORS: usize = 8;
/// The clocks of two servers are not further apart, unless they are set. Unit: seconds.
const CLOCKS_S: i64 = 3;
/// One in so many calls looks at all locks.
const LOOKS: u32 = 4;

/// A report on each lock and semaphore, at one time.
const LOOK: &str = "local told = {} \
                    for at = 1, #KEYS do \
                      told[at] = redis.pcall(at <= tonumber(ARGV[1]) and 'LOCK.INFO' or 'SEM.INFO', KEYS[at]) \
                    end \
                    return told";
/// How a lock that is a string is given up.
const UNLOCK: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return -2";

/// A request for locks or permits.
#[derive(Clone, Debug)]
struct Ask {
    /// The semaphore, or the locks.
    semaphore: Option<usize>,
    locks: Vec<usize>,
    owner: String,
    lease_ms: i64,
    grace_ms: Option<i64>,
    /// By SET NX.
    is_string: bool,
    /// The owner has it already.
    is_retry: bool,
    is_counted: bool,
    /// Something has happened meanwhile that may end it.
    is_excused: bool,
    count: usize,
    waits: bool,
    /// The order of arrival.
    place: u64,
    /// It was not granted before.
    from_us: i64,
}

/// What an actor has.
#[derive(Clone, Debug)]
struct Held {
    ask: Ask,
    fence: u64,
    permits: Vec<String>,
}

/// What a reply is to.
enum Expect {
    Nothing,
    Id,
    Grant(Box<Ask>),
    /// A lock's release, its fence, and whether the owner had it for certain.
    Release(usize, String, u64, bool),
    /// Extends a lock until then.
    Renewal(usize, String, u64, i64, i64),
    /// Whether the owner has a lock in this grant.
    Guard(usize, String, u64),
    /// Permits are given back.
    Permits(usize, Vec<String>),
    PermitRenewal(usize, String, i64, i64),
    /// An owner's sessions are bound to the connection.
    Attach(String),
    /// A lock is deleted, or broken.
    Deletion(usize),
}

/// What was answered and is not judged yet.
#[derive(Default)]
struct Taken {
    grants: Vec<(usize, Ask, Reply)>,
    deleted: Vec<usize>,
    /// It is no primary any more.
    is_deposed: bool,
    /// Whose connection has ended.
    ended: Vec<usize>,
}

#[derive(Default)]
struct Actor {
    connection: Option<Connection>,
    id: Option<i64>,
    expects: VecDeque<Expect>,
    held: Vec<Held>,
    /// Owners and fences of former grants.
    former: Vec<(usize, String, u64)>,
    /// When its last request was sent.
    asked_us: i64,
    next_us: i64,
}

impl Actor {
    fn waits_for(&self) -> Option<&Ask> {
        self.expects.iter().find_map(|expect| match expect {
            Expect::Grant(ask) => Some(&**ask),
            _ => None,
        })
    }
}

pub struct Lockers {
    actors: Vec<Actor>,
    locks: Vec<Lock>,
    semaphores: Vec<Semaphore>,
    /// Owners that a look has shown: their replies are on the way, or wait for the log.
    seen: BTreeSet<String>,
    database: &'static str,
    /// Locks that are strings may be evicted.
    may_evict: bool,
    counter: u64,
    /// The server, its life and its history.
    tenure: Option<(usize, usize, String)>,
    /// The last moment of the server that is known: boot-time clock, and wall clock in seconds.
    last: (i64, i64),
    /// FLUSHALL is on its way.
    flushes: bool,
    /// How often the server's wall clock was set.
    steps: u32,
    /// Owners whose connection ended without a reply: nothing is granted to them.
    ghosts: Vec<(usize, String)>,
    pub grants: u64,
    pub handed_over: u64,
    pub killed: u64,
}

impl Lockers {
    pub fn new(database: &'static str, may_evict: bool) -> Self {
        Lockers {
            actors: (0..ACTORS).map(|_| Actor::default()).collect(),
            locks: LOCKS.map(Lock::new).into(),
            semaphores: SEMAPHORES.map(|(name, limit)| Semaphore::new(name, limit)).into(),
            seen: BTreeSet::new(),
            database,
            may_evict,
            counter: 0,
            tenure: None,
            last: (0, 0),
            flushes: false,
            steps: 0,
            ghosts: Vec::new(),
            grants: 0,
            handed_over: 0,
            killed: 0,
        }
    }

    /// Takes replies, looks at the locks from time to time, and asks for more. `history`: another
    /// one is another server's.
    pub fn act(
        &mut self,
        world: &mut World,
        node: usize,
        history: &str,
        promise: Promise,
        rests: bool,
    ) {
        if !world.is_up(node) {
            return;
        }
        let tenure = (node, world.nodes[node].life, history.to_owned());
        if self.tenure.as_ref().is_some_and(|former| *former != tenure) {
            self.begin(world, None);
        }
        let steps = world.nodes[node].steps;
        if std::mem::replace(&mut self.steps, steps) != steps {
            self.excuse_dated();
        }
        self.take(world, node, promise);
        if world.random.u32(..LOOKS) == 0 {
            self.look(world, node, promise);
        }
        let wanted = if rests { 0 } else { world.random.usize(1..4) };
        for _ in 0..wanted {
            let index = world.random.usize(..ACTORS);
            self.ask(world, node, index);
            if !world.is_up(node) {
                return;
            }
        }
        if rests {
            // A lease may end late, by a clock that was set.
            let index = world.random.usize(..ACTORS * 20);
            if self.actors.get(index).is_some_and(|actor| actor.waits_for().is_some()) {
                self.leave(world, node, index);
            }
        }
        self.take(world, node, promise);
        if world.is_up(node) {
            self.tenure = Some(tenure);
            self.last = (now_us(world, node), wall_s(world, node));
        }
    }

    /// The server has ended and is there again, or another one takes its place. `loss`: what it had
    /// promised to keep it has.
    pub fn begin(&mut self, world: &World, loss: Option<Loss>) {
        let (at_us, wall_s) = self.last;
        for actor in &mut self.actors {
            (actor.connection, actor.id) = (None, None);
            actor.expects.clear();
            if loss.is_none() {
                actor.held.clear();
                actor.former.clear();
            }
        }
        let has_stepped = world.has_steps
            || self.tenure.as_ref().is_some_and(|(node, ..)| world.nodes[*node].steps > 0);
        // A start or a promotion begins an epoch above the wall clock.
        let ever = self.locks.iter().map(|lock| lock.ever).max().unwrap_or(0);
        let grows = !has_stepped && wall_s - CLOCKS_S > (ever >> 21) as i64;
        let loss = loss.filter(|_| !has_stepped);
        self.locks.iter_mut().for_each(|lock| lock.come_back(loss, at_us, grows));
        self.semaphores.iter_mut().for_each(|semaphore| semaphore.come_back(loss, at_us));
        (self.tenure, self.ghosts, self.flushes) = (None, Vec::new(), false);
    }

    /// Whether nobody waits for a reply.
    pub fn are_at_rest(&self) -> bool {
        self.actors.iter().all(|actor| actor.expects.is_empty())
    }

    /// Nothing that was granted is promised to survive an end any more.
    pub fn forgive(&mut self) {
        self.locks.iter_mut().for_each(Lock::forgive);
        self.semaphores.iter_mut().for_each(Semaphore::forgive);
    }

    /// All locks may be gone, or go at any moment until FLUSHALL is answered.
    pub fn excuse(&mut self, flushes: bool) {
        self.flushes = flushes;
        (0..LOCKS.len()).for_each(|lock| self.excuse_lock(lock));
        self.excuse_permits();
    }

    /// A lock may be gone, or go at any moment while something that ends it is on its way.
    fn excuse_lock(&mut self, lock: usize) {
        let mut expects = self.actors.iter().flat_map(|actor| &actor.expects);
        let is_threatened = expects.any(|it| matches!(it, Expect::Deletion(it) if *it == lock));
        self.locks[lock].excuse(self.flushes || is_threatened);
    }

    /// FLUSHALL was answered, if there was one.
    pub fn end_flush(&mut self) {
        if self.flushes {
            self.excuse(false);
        }
    }

    fn excuse_permits(&mut self) {
        for expect in self.actors.iter_mut().flat_map(|actor| &mut actor.expects) {
            if let Expect::Grant(ask) = expect {
                ask.is_excused |= ask.semaphore.is_some();
            }
        }
        self.semaphores.iter_mut().for_each(|semaphore| semaphore.excuse(self.flushes));
    }

    /// The server has read its data again: it no longer knows whose sessions are whose.
    /// `has_stepped`: files tell deadlines by the wall clock, which was set.
    pub fn excuse_reloaded(&mut self, has_stepped: bool) {
        for expect in self.actors.iter_mut().flat_map(|actor| &mut actor.expects) {
            if let Expect::Grant(ask) = expect {
                ask.is_excused = true;
            }
        }
        if has_stepped {
            return self.excuse(self.flushes);
        }
        let has_session = |lock: &Lock| lock.holder.as_ref().is_some_and(|it| it.session.is_some());
        let with: Vec<usize> =
            (0..LOCKS.len()).filter(|&at| has_session(&self.locks[at])).collect();
        with.into_iter().for_each(|lock| self.excuse_lock(lock));
    }

    /// The wall clock is set: permits follow it, and so do strings that were loaded.
    fn excuse_dated(&mut self) {
        let is_string = |lock: &Lock| lock.holder.as_ref().is_some_and(|it| it.fence == 0);
        let with: Vec<usize> = (0..LOCKS.len()).filter(|&at| is_string(&self.locks[at])).collect();
        with.into_iter().for_each(|lock| self.excuse_lock(lock));
        self.excuse_permits();
    }

    /// Deletes all locks, for which nobody waits any more.
    pub fn clear(&mut self, world: &mut World, node: usize) {
        let at_us = now_us(world, node);
        (0..ACTORS).for_each(|index| self.unbind(index, at_us));
        world.turn(node);
        self.excuse(false);
        world.ask(node, &["SELECT", self.database]);
        world.ask(node, &[&["DEL"][..], &LOCKS, &SEMAPHORES.map(|(name, _)| name)].concat());
    }

    /// All servers know the same locks. To be called when they have the same data.
    pub fn compare_lists(&self, world: &mut World, primary: usize) {
        if world.has_steps {
            return;
        }
        for _ in 0..100 {
            let lists: Vec<Vec<String>> = (0..NODES).map(|node| self.list(world, node)).collect();
            if lists.iter().all(|list| *list == lists[primary]) {
                return;
            }
            world.step(20 * MS);
            if !world.is_up(primary) {
                return;
            }
        }
        let lists: Vec<Vec<String>> = (0..NODES).map(|node| self.list(world, node)).collect();
        world.fail(&format!("other locks: {lists:?}"));
    }

    /// The locks that a server lists: key, owner and fence of each.
    fn list(&self, world: &mut World, node: usize) -> Vec<String> {
        world.ask(node, &["SELECT", self.database]);
        let Some(Reply::Array(told)) = world.ask(node, &["LOCK.LIST", "COUNT", "1000"]) else {
            return Vec::new();
        };
        let Some(Reply::Array(locks)) = told.get(1) else { return Vec::new() };
        let show = |pair: &Reply| {
            let Reply::Array(pair) = pair else { return String::new() };
            let owner = match field(&pair[1], "owners") {
                Some(Reply::Array(owners)) => owners.first(),
                _ => None,
            };
            let of_owner = |name| owner.and_then(|owner| field(owner, name)).map(Reply::show);
            format!("{} {:?} {:?}", pair[0].show(), of_owner("owner"), of_owner("fence"))
        };
        locks.iter().map(show).collect()
    }
}

fn now_us(world: &World, node: usize) -> i64 {
    world.nodes[node].clock.boot_us()
}

/// The wall clock in seconds, if nobody has set it.
fn wall_s(world: &World, node: usize) -> i64 {
    START.0 / 1000 + (now_us(world, node) - 3_600 * SECOND) / SECOND
}
