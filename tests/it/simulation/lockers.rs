//! Clients that take locks and permits: natively, with sessions, several at once, and by SET NX PX
//! on the same keys. They release and renew what they have, leave, and are killed in the turn in
//! which they are served. What they are told, and what a look at all locks tells, is judged by
//! `holdings.rs`; here, whether those who wait are served, in the order in which they came.

use std::collections::{BTreeSet, VecDeque};

use super::holdings::{Grant, Lock, Promise, Semaphore};
use super::kinds::Kinds;
use super::talk::Talk;
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
    talk: Option<Talk>,
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
            (actor.talk, actor.id) = (None, None);
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

    // ---- replies --------------------------------------------------------------------------------

    /// Takes what was answered.
    fn take(&mut self, world: &mut World, node: usize, promise: Promise) {
        let taken = self.hear_all(world, node, promise);
        self.judge_all(world, node, taken, promise);
    }

    /// Takes what was answered, and returns what is to be judged.
    fn hear_all(&mut self, world: &mut World, node: usize, promise: Promise) -> Taken {
        let mut taken = Taken::default();
        for index in 0..self.actors.len() {
            let actor = &mut self.actors[index];
            let Some(talk) = &mut actor.talk else { continue };
            let replies = talk.take();
            if talk.has_ended {
                taken.ended.push(index);
                // Before what was granted to others since.
                let at_us = self.last.0;
                self.locks.iter_mut().for_each(|lock| lock.lose_connection(index, at_us));
            }
            for reply in replies {
                let Some(expect) = self.actors[index].expects.pop_front() else { continue };
                world.trace.note(|| format!("locker {index}: {}", line(&reply)));
                if let Reply::Error(text) = &reply {
                    taken.is_deposed |= text.starts_with(b"READONLY");
                }
                self.shows_life(index);
                match expect {
                    Expect::Grant(ask) => taken.grants.push((index, *ask, reply)),
                    Expect::Deletion(lock) => taken.deleted.push(lock),
                    other => self.hear(world, node, index, other, &reply, promise),
                }
            }
        }
        // The order in which they were made.
        taken.grants.sort_by_key(|(_, _, reply)| fence_in(reply));
        taken
    }

    fn judge_all(&mut self, world: &mut World, node: usize, taken: Taken, promise: Promise) {
        if taken.is_deposed {
            self.excuse(false);
        }
        for (index, ask, reply) in taken.grants {
            self.judge(world, node, index, ask, &reply, promise);
        }
        if taken.is_deposed {
            self.excuse(false);
        }
        // Also what was granted just before.
        taken.deleted.into_iter().for_each(|lock| self.excuse_lock(lock));
        taken.ended.into_iter().for_each(|index| self.lose(world, node, index));
    }

    /// A request of a connection was answered: its sessions go on.
    fn shows_life(&mut self, index: usize) {
        let at_us = self.actors[index].asked_us;
        self.locks.iter_mut().for_each(|lock| lock.goes_on(index, at_us));
    }

    /// A connection was closed by the server.
    fn lose(&mut self, world: &World, node: usize, index: usize) {
        let is_alive = {
            let talk = self.actors[index].talk.as_ref();
            talk.is_some_and(|talk| talk.life == world.nodes[node].life && talk.node == node)
        };
        let unanswered = self.actors[index].waits_for().cloned();
        if let Some(ask) = unanswered.filter(|ask| is_alive && !ask.is_retry && !ask.is_string) {
            let owners = ask.locks.iter().map(|&lock| (lock, ask.owner.clone()));
            self.ghosts.extend(owners);
        }
        self.unbind(index, self.last.0);
    }

    /// A connection is gone since `at_us`.
    fn unbind(&mut self, index: usize, at_us: i64) {
        let actor = &mut self.actors[index];
        (actor.talk, actor.id) = (None, None);
        // It may be granted, or just have been, and given up in the same turn or not.
        let unheard = actor.waits_for().cloned();
        actor.expects.clear();
        self.locks.iter_mut().for_each(|lock| lock.lose_connection(index, at_us));
        let Some(Ask { owner, locks, .. }) = unheard else { return };
        for lock in locks {
            if self.locks[lock].is_of(&owner) {
                self.excuse_lock(lock);
            }
        }
    }

    fn hear(
        &mut self,
        world: &World,
        node: usize,
        index: usize,
        expect: Expect,
        reply: &Reply,
        promise: Promise,
    ) {
        let now_us = now_us(world, node);
        let number = if let Reply::Integer(number) = reply { Some(*number) } else { None };
        match expect {
            Expect::Nothing | Expect::Grant(_) | Expect::Deletion(_) => {}
            Expect::Id => self.actors[index].id = number,
            Expect::Release(lock, owner, fence, was_sure) => {
                let lock = &mut self.locks[lock];
                let Some(holder) = lock.holder.as_mut() else { return };
                if holder.name != owner || holder.fence != fence {
                    return;
                }
                match number {
                    Some(0) if fence > 0 => lock.holder = None,
                    Some(1) if fence == 0 => lock.holder = None,
                    // It is held still.
                    Some(1..) | None => holder.is_released = false,
                    Some(_) => {
                        holder.is_released = false;
                        if was_sure && lock.is_surely(&owner, fence, now_us) {
                            let told = reply.show();
                            world.fail(&format!(
                                "{}: {owner} has it, and releases: {told}",
                                lock.name
                            ));
                        }
                        lock.holder = None;
                    }
                }
            }
            Expect::Renewal(lock, owner, fence, lease_ms, from_us) => {
                let lock = &mut self.locks[lock];
                let Reply::Array(told) = reply else { return };
                let is_held = matches!(told[..], [Reply::Integer(told)] if told != 0);
                if is_held {
                    let name = &owner;
                    let grant = Grant {
                        name,
                        fence,
                        is_new: false,
                        from_us,
                        lease_ms,
                        grace_ms: None,
                        client: Some(index),
                    };
                    if lock.is_of(name) {
                        lock.belongs(world, now_us, &grant, promise);
                    }
                } else if lock.is_surely(&owner, fence, now_us) {
                    world.fail(&format!("{}: {owner} has it, and renews it in vain", lock.name));
                }
            }
            Expect::Attach(owner) => {
                if number.is_some_and(|count| count > 0) {
                    for holder in self.locks.iter_mut().filter_map(|lock| lock.holder.as_mut()) {
                        if holder.name == owner {
                            holder.client = Some(index);
                        }
                    }
                    self.shows_life(index);
                }
            }
            Expect::Guard(lock, owner, fence) => {
                let lock = &self.locks[lock];
                let has_session = lock.holder.as_ref().is_some_and(|it| it.session.is_some());
                if number == Some(0) && lock.is_surely(&owner, fence, now_us) && !has_session {
                    world.fail(&format!(
                        "{}: {owner} has it, and is told that it has not",
                        lock.name
                    ));
                }
                let has_successor = lock.holder.as_ref().is_some_and(|holder| holder.fence > fence);
                if number == Some(1) && has_successor {
                    world.fail(&format!(
                        "{}: {owner} is told that it has it with fence {fence}, and {:?} has",
                        lock.name, lock.holder
                    ));
                }
            }
            Expect::Permits(semaphore, permits) => {
                // Refused: they are held still.
                if number.is_none() {
                    let semaphore = &mut self.semaphores[semaphore];
                    permits.iter().for_each(|permit| semaphore.release(permit, false));
                }
            }
            Expect::PermitRenewal(semaphore, permit, lease_ms, from_us) => {
                let semaphore = &mut self.semaphores[semaphore];
                if number == Some(0) && semaphore.is_surely(&permit, now_us) {
                    world.fail(&format!(
                        "{}: {permit} is held, and cannot be renewed",
                        semaphore.name
                    ));
                }
                if number == Some(1) {
                    semaphore.renew(&permit, from_us, lease_ms, promise);
                }
            }
        }
    }

    /// Takes the reply to a request for locks or permits.
    fn judge(
        &mut self,
        world: &mut World,
        node: usize,
        index: usize,
        ask: Ask,
        reply: &Reply,
        promise: Promise,
    ) {
        let now_us = now_us(world, node);
        let fence = fence_in(reply);
        let is_granted = match ask.is_string {
            true => *reply == Reply::Simple(b"OK".to_vec()),
            false => fence > 0,
        };
        if !is_granted {
            return;
        }
        self.grants += 1;
        self.handed_over += u64::from(ask.waits);
        self.check_order(world, &ask);
        let Ask { lease_ms, grace_ms, from_us, .. } = ask;
        let grant = |name, fence| Grant {
            name,
            fence,
            is_new: !ask.is_retry,
            from_us,
            lease_ms,
            grace_ms,
            client: Some(index),
        };
        let mut permits = Vec::new();
        if let Some(semaphore) = ask.semaphore {
            let Reply::Array(told) = reply else { return };
            permits = texts(&told[0]);
            if permits.len() != ask.count {
                world.fail(&format!("{ask:?}: {}", reply.show()));
            }
            let grants: Vec<Grant<'_>> = permits.iter().map(|name| grant(name, fence)).collect();
            if !ask.is_excused {
                self.semaphores[semaphore].grant(world, now_us, &grants, promise);
            }
        }
        for &lock in &ask.locks {
            let lock = &mut self.locks[lock];
            if ask.is_retry && ask.locks.len() == 1 {
                // The same grant, if it was not lost.
                let held = self.actors[index].held.iter().find(|held| held.ask.owner == ask.owner);
                let before = held.map_or(0, |held| held.fence);
                if fence != before && lock.is_surely(&ask.owner, before, now_us) {
                    world.fail(&format!("{}: {ask:?} is granted again with {fence}", lock.name));
                }
            }
            lock.belongs(world, now_us, &grant(&ask.owner, fence), promise);
            // Unless it may have come and gone.
            if let Some(holder) = lock.holder.as_mut().filter(|it| it.name == ask.owner) {
                holder.is_released = false;
            }
            if ask.is_string && self.may_evict || ask.is_excused {
                lock.excuse(false);
            }
        }
        if let (Reply::Array(told), None) = (reply, ask.semaphore)
            && let Some(Reply::Integer(ms_left)) = told.last()
            && *ms_left < lease_ms
            // It may have waited for replicas.
            && !world.kinds.contains(Kinds::PARAMETERS)
        {
            world.fail(&format!("{ask:?} is granted for {ms_left} ms"));
        }
        let held = &mut self.actors[index].held;
        held.retain(|held| held.ask.owner != ask.owner);
        held.push(Held { ask, fence, permits });
    }

    /// Nobody who has come earlier waits still.
    fn check_order(&self, world: &World, ask: &Ask) {
        if ask.is_retry || ask.is_string {
            return;
        }
        let is_there = |actor: &&Actor| actor.talk.as_ref().is_some_and(|talk| !talk.has_ended);
        for waits in self.actors.iter().filter(is_there).filter_map(Actor::waits_for) {
            let is_same = waits.semaphore == ask.semaphore
                && (ask.semaphore.is_some()
                    || waits.locks.iter().any(|lock| ask.locks.contains(lock)));
            let is_passed = waits.waits && !waits.is_retry && waits.place < ask.place;
            if is_same && is_passed && !self.seen.contains(&waits.owner) {
                world.fail(&format!(
                    "{ask:?} is granted, and who has come earlier waits: {waits:?}"
                ));
            }
        }
    }

    // ---- looks ----------------------------------------------------------------------------------

    /// Looks who has what, and that nobody waits for what nobody has.
    fn look(&mut self, world: &mut World, node: usize, promise: Promise) {
        let Some((before_us, is_free)) = self.look_once(world, node, promise) else { return };
        if is_free.is_empty() {
            return;
        }
        // Nobody is granted anything while writes are refused or postponed, and nothing expires by
        // itself while data is imported.
        let imports = world.show(node, &["CONFIG", "GET", "import-mode"]).contains("yes");
        if imports || !self.grants_locks(world, node) {
            return;
        }
        // A lease may have ended in the turn of the look itself.
        let Some((_, again)) = self.look_once(world, node, promise) else { return };
        if let Some(what) = again.iter().find(|what| is_free.contains(what)) {
            let waiting: Vec<&Ask> = self.actors.iter().filter_map(Actor::waits_for).collect();
            world.fail(&format!("{what} is free since {before_us}, and who waits? {waiting:?}"));
        }
    }

    /// Whether a report hides what goes on when writes are admitted again: sessions are not renewed
    /// meanwhile.
    fn is_postponed(&self, world: &mut World, node: usize, reply: &Reply) -> bool {
        let Reply::Array(told) = reply else { return true };
        let is_hidden = self.locks.iter().zip(told).any(|(lock, report)| {
            let has_session = lock.holder.as_ref().is_some_and(|it| it.session.is_some());
            has_session && matches!(field(report, "owners"), Some(Reply::Array(owners)) if owners.is_empty())
        });
        is_hidden && !self.grants_locks(world, node)
    }

    /// Whether a lock that is free is granted to whoever asks: not while writes are refused or
    /// postponed, or replicas have yet to acknowledge earlier grants.
    fn grants_locks(&self, world: &mut World, node: usize) -> bool {
        let Some(mut talk) = world.connect(node) else { return false };
        talk.send(&["LOCK.ACQUIRE", "lock:probe", "probe", "PX", "1"]);
        world.turn(node);
        matches!(&talk.take()[..], [reply] if fence_in(reply) > 0)
    }

    /// Returns when it looked, and what nobody has though somebody waits for it.
    fn look_once(
        &mut self,
        world: &mut World,
        node: usize,
        promise: Promise,
    ) -> Option<(i64, Vec<String>)> {
        let life = world.nodes[node].life;
        world.ask(node, &["SELECT", self.database])?;
        let before_us = now_us(world, node);
        let mut words = vec!["EVAL_RO".to_owned(), LOOK.into()];
        words.push((LOCKS.len() + SEMAPHORES.len()).to_string());
        words.extend(LOCKS.iter().map(|name| (*name).into()));
        words.extend(SEMAPHORES.iter().map(|(name, _)| (*name).into()));
        words.push(LOCKS.len().to_string());
        let reply = world.ask(node, &words)?;
        world.trace.note(|| format!("look at {before_us}: {}", summary(&reply)));
        self.seen.extend((0..LOCKS.len()).filter_map(|lock| owner_in(&reply, lock)));
        let is_primary = world.show(node, &["ROLE"]).contains("master");
        if !world.is_up(node) || world.nodes[node].life != life {
            return None;
        }
        // What was granted later than the look is judged later.
        let mut taken = self.hear_all(world, node, promise);
        taken.is_deposed |= !is_primary;
        if taken.is_deposed {
            self.judge_all(world, node, taken, promise);
            return None;
        }
        let newest = newest_fence(&reply);
        let is_later = |ask: &Ask, told: &Reply| match ask.is_string {
            // Without a fence it cannot be told, but if the look has seen it.
            true => {
                ask.locks.iter().any(|&lock| owner_in(&reply, lock).as_ref() != Some(&ask.owner))
            }
            false => fence_in(told) > newest,
        };
        let (later, earlier) = std::mem::take(&mut taken.grants)
            .into_iter()
            .partition(|(_, ask, told)| is_later(ask, told));
        taken.grants = later;
        for (index, ask, told) in earlier {
            self.judge(world, node, index, ask, &told, promise);
        }
        let free = match self.is_postponed(world, node, &reply) {
            true => None,
            false => self.compare(world, node, &reply, before_us, promise),
        };
        self.judge_all(world, node, taken, promise);
        self.note_waiting(&reply, before_us);
        free.map(|free| (before_us, free))
    }

    /// Compares a report with what is known. Returns what nobody has though somebody waits for it.
    fn compare(
        &mut self,
        world: &World,
        node: usize,
        reply: &Reply,
        before_us: i64,
        promise: Promise,
    ) -> Option<Vec<String>> {
        let now_us = now_us(world, node);
        let Reply::Array(told) = reply else { return None };
        let mut free = Vec::new();
        for (index, report) in told.iter().enumerate() {
            if matches!(report, Reply::Error(_)) {
                continue;
            }
            let waiting = integer(report, "waiters").unwrap_or(0);
            match index.checked_sub(LOCKS.len()) {
                None => {
                    let is_free =
                        self.compare_lock(world, index, report, before_us, now_us, promise);
                    if is_free && self.can_be_served(index, waiting) {
                        free.push(LOCKS[index].to_owned());
                    }
                }
                Some(semaphore) => {
                    let Some(Reply::Array(listed)) = field(report, "permits") else { continue };
                    let names: Vec<String> =
                        listed.iter().flat_map(|it| texts(it).into_iter().next()).collect();
                    self.semaphores[semaphore].compare(world, now_us, &names);
                    let room = self.semaphores[semaphore].limit - names.len();
                    let is_for_it = |ask: &Ask| ask.semaphore == Some(semaphore);
                    let first = self.first_in_line(is_for_it);
                    let is_known = self.count_waiting(is_for_it) == waiting;
                    if is_known && first.is_some_and(|ask| ask.count <= room) {
                        free.push(SEMAPHORES[semaphore].0.to_owned());
                    }
                }
            }
        }
        Some(free)
    }

    /// Who waits still has not got a lock before the look.
    fn note_waiting(&mut self, reply: &Reply, before_us: i64) {
        for actor in &mut self.actors {
            for expect in &mut actor.expects {
                if let Expect::Grant(ask) = expect
                    && !ask.is_retry
                    && ask
                        .locks
                        .first()
                        .is_some_and(|&lock| owner_in(reply, lock).as_ref() != Some(&ask.owner))
                {
                    ask.from_us = ask.from_us.max(before_us);
                }
            }
        }
    }

    /// Compares a report on a lock with what is known. True: nobody has it.
    fn compare_lock(
        &mut self,
        world: &World,
        index: usize,
        report: &Reply,
        before_us: i64,
        now_us: i64,
        promise: Promise,
    ) -> bool {
        let owner = match field(report, "owners") {
            Some(Reply::Array(owners)) => owners.first(),
            _ => None,
        };
        let name = owner.and_then(|owner| text(field(owner, "owner")));
        let lock = &mut self.locks[index];
        let (Some(owner), Some(name)) = (owner, name) else {
            lock.ends(world, now_us, "nobody has it");
            return true;
        };
        let fence = integer(owner, "fence").unwrap_or(0) as u64;
        // They were noticed before the look: since then a turn has ended.
        if self.ghosts.contains(&(index, name.clone())) {
            world.fail(&format!(
                "{}: {name} has it, who was killed before the reply left",
                lock.name
            ));
        }
        let ms_left = integer(owner, "ms-left").unwrap_or(-1);
        let lease_ms = if ms_left < 0 { i64::MAX / MS } else { ms_left };
        let is_own = lock.is_of(&name);
        let grant = Grant {
            name: &name,
            fence,
            is_new: false,
            from_us: before_us,
            lease_ms,
            grace_ms: None,
            client: None,
        };
        lock.belongs(world, now_us, &grant, promise);
        if fence == 0 && self.may_evict {
            lock.excuse(false);
        }
        if !is_own && let Some(holder) = &mut lock.holder {
            // Nobody knows yet whose it is: of a connection that may be gone, or until replicas
            // fail to acknowledge it.
            let mut asking = self.actors.iter().enumerate();
            let known = asking.find_map(|(index, actor)| {
                actor.waits_for().filter(|ask| ask.owner == name).map(|ask| (index, ask))
            });
            holder.is_released = name != ":keep";
            holder.client = known.map(|(index, _)| index);
            holder.session =
                known.and_then(|(_, ask)| ask.grace_ms.map(|grace_ms| (grace_ms, ask.lease_ms)));
        }
        false
    }

    /// The request that has waited longest among these.
    fn first_in_line(&self, is_one: impl Fn(&Ask) -> bool) -> Option<&Ask> {
        let waiting = self.actors.iter().filter_map(Actor::waits_for);
        waiting.filter(|ask| ask.waits && is_one(ask)).min_by_key(|ask| ask.place)
    }

    /// How many wait for what these requests want, as far as they know. The server knows better:
    /// replies may be on their way.
    fn count_waiting(&self, is_one: impl Fn(&Ask) -> bool) -> i64 {
        let waiting = self.actors.iter().filter_map(Actor::waits_for);
        waiting.filter(|ask| ask.waits && is_one(ask)).count() as i64
    }

    /// Whether who has waited longest for a lock that nobody has can be granted all that it wants.
    /// `waiting`: how many the server says wait for it.
    fn can_be_served(&self, lock: usize, waiting: i64) -> bool {
        if self.count_waiting(|ask| ask.locks.contains(&lock)) != waiting {
            return false;
        }
        let Some(first) = self.first_in_line(|ask| ask.locks.contains(&lock)) else { return false };
        first.locks.iter().all(|&other| {
            let holder = &self.locks[other].holder;
            let is_first = self.first_in_line(|ask| ask.locks.contains(&other));
            other == lock
                || holder.is_none() && is_first.is_some_and(|ask| ask.place == first.place)
        })
    }

    // ---- requests -------------------------------------------------------------------------------

    /// An actor asks for something, gives something up, or leaves.
    fn ask(&mut self, world: &mut World, node: usize, index: usize) {
        let now_us = now_us(world, node);
        if self.actors[index].talk.is_none() && !self.connect(world, node, index) {
            return;
        }
        let actor = &self.actors[index];
        if !actor.expects.is_empty() {
            match world.random.u32(..40) {
                0 => self.leave(world, node, index),
                1 | 2 => self.serve_and_kill(world, node, index),
                _ => {}
            }
            return;
        }
        if now_us < actor.next_us {
            return;
        }
        let count = actor.held.len();
        if count == 0 || count < 3 && world.random.u32(..4) == 0 {
            self.ask_for_more(world, node, index);
        } else {
            self.use_held(world, node, index);
        }
        let pause_ms = i64::from(world.random.u32(..300));
        self.actors[index].next_us = now_us + pause_ms * MS;
        // The next request comes later, in the eyes of the server too.
        world.turn(node);
    }

    fn connect(&mut self, world: &mut World, node: usize, index: usize) -> bool {
        self.actors[index].talk = world.connect(node);
        if self.actors[index].talk.is_none() {
            return false;
        }
        self.send(world, node, index, &["SELECT", self.database], Expect::Nothing);
        self.send(world, node, index, &["CLIENT", "ID"], Expect::Id);
        let sessions = self.actors[index].held.iter().filter(|held| held.ask.grace_ms.is_some());
        let owners: Vec<String> = sessions.map(|held| held.ask.owner.clone()).collect();
        for owner in owners {
            if world.random.u32(..4) > 0 {
                let attach = Expect::Attach(owner.clone());
                self.send(world, node, index, &["LOCK.ATTACH", &owner], attach);
            }
        }
        true
    }

    fn send(
        &mut self,
        world: &mut World,
        node: usize,
        index: usize,
        words: &[&str],
        expect: Expect,
    ) {
        let now_us = now_us(world, node);
        world.trace.note(|| format!("locker {index} {words:?}"));
        let actor = &mut self.actors[index];
        if let Some(talk) = &mut actor.talk {
            talk.send(words);
            actor.expects.push_back(expect);
            actor.asked_us = now_us;
        }
    }

    fn ask_for_more(&mut self, world: &mut World, node: usize, index: usize) {
        self.counter += 1;
        let random = &mut world.random;
        let form = random.u32(..12);
        let lock = random.usize(..LOCKS.len());
        let lease_ms = i64::from(random.u32(50..4000));
        // Two of whom each waits for what the other one has would wait for ever.
        let waits_ms = match self.actors[index].held.is_empty() {
            true => [0, 200, 1500, 5000][random.usize(..4)],
            false => [200, 1500][random.usize(..2)],
        };
        let mut ask = Ask {
            semaphore: None,
            locks: vec![lock],
            owner: format!("o{}", self.counter),
            lease_ms,
            grace_ms: None,
            is_string: form == 0,
            is_retry: false,
            is_counted: random.u32(..6) == 0,
            is_excused: false,
            count: 1,
            waits: random.u32(..4) > 0,
            place: self.counter,
            from_us: 0,
        };
        let lease = lease_ms.to_string();
        match form {
            0 => {
                ask.waits = false;
                let words = ["SET", LOCKS[lock], &ask.owner, "NX", "PX", &lease].map(str::to_owned);
                return self.send_ask(world, node, index, &words, ask);
            }
            1 | 2 => {
                let semaphore = random.usize(..SEMAPHORES.len());
                let (name, limit) = SEMAPHORES[semaphore];
                ask.count = random.usize(1..=limit);
                (ask.semaphore, ask.locks) = (Some(semaphore), Vec::new());
                let (limit, count) = (limit.to_string(), ask.count.to_string());
                let words = ["SEM.ACQUIRE", name, &ask.owner, "LIMIT", &limit, "PX", &lease];
                let mut words: Vec<String> = words.map(str::to_owned).into();
                words.extend(["COUNT".to_owned(), count]);
                if ask.waits {
                    words.extend(["BLOCK".to_owned(), waits_ms.to_string()]);
                }
                return self.send_ask(world, node, index, &words, ask);
            }
            3 | 4 => {
                let other = (lock + random.usize(1..LOCKS.len())) % LOCKS.len();
                ask.locks.push(other);
            }
            _ => {}
        }
        if random.u32(..3) == 0 {
            ask.grace_ms = Some(i64::from(random.u32(1..1500)));
        }
        let words = acquire(&ask, waits_ms);
        self.send_ask(world, node, index, &words, ask);
    }

    fn send_ask(
        &mut self,
        world: &mut World,
        node: usize,
        index: usize,
        words: &[String],
        mut ask: Ask,
    ) {
        ask.from_us = now_us(world, node);
        let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
        let script = format!("return redis.call('{}', unpack(ARGV))", words[0]);
        if !ask.waits && world.random.u32(..4) == 0 {
            words.splice(..1, ["EVAL", &script, "0"]);
        }
        self.send(world, node, index, &words, Expect::Grant(Box::new(ask)));
    }

    /// Does something with what an actor has.
    fn use_held(&mut self, world: &mut World, node: usize, index: usize) {
        let count = self.actors[index].held.len();
        let at = world.random.usize(..count);
        let held = self.actors[index].held[at].clone();
        match world.random.u32(..24) {
            0..12 => {
                self.actors[index].held.remove(at);
                self.release(world, node, index, &held);
            }
            12..15 => self.renew(world, node, index, &held),
            15 => {
                for &lock in &held.ask.locks {
                    let fence = held.fence.to_string();
                    let words = ["LOCK.GUARD", LOCKS[lock], &held.ask.owner, "FENCE", &fence];
                    if held.fence > 0 {
                        let guard = Expect::Guard(lock, held.ask.owner.clone(), held.fence);
                        self.send(world, node, index, &words, guard);
                    }
                }
            }
            16 | 17 if !held.ask.is_string => {
                // Once more: the reply may have been lost.
                let mut ask = Ask { is_retry: true, waits: false, ..held.ask.clone() };
                ask.locks.truncate(1);
                let is_held = ask.locks.iter().all(|&lock| self.locks[lock].is_of(&ask.owner));
                if ask.semaphore.is_none() && is_held && held.ask.locks.len() == 1 {
                    let words = acquire(&ask, 0);
                    self.send_ask(world, node, index, &words, ask);
                }
            }
            18 => self.leave(world, node, index),
            19 => {
                // It is forgotten, and ends by itself.
                self.actors[index].held.remove(at);
            }
            20 => {
                // Others give up what is not theirs.
                let lock = world.random.usize(..LOCKS.len());
                let former = self.actors[index].former.last().cloned();
                let (owner, fence) =
                    former.map_or(("nobody".into(), 1), |(_, owner, fence)| (owner, fence));
                if !self.locks[lock].is_of(&owner) {
                    let fence = fence.to_string();
                    let words = ["LOCK.RELEASE", LOCKS[lock], &owner, "FENCE", &fence];
                    let words = if world.random.bool() { &words[..] } else { &words[..3] };
                    self.send(world, node, index, words, Expect::Nothing);
                }
            }
            21 => {
                let lock = world.random.usize(..LOCKS.len());
                let word = ["LOCK.BREAK", "DEL"][world.random.usize(..2)];
                self.send(world, node, index, &[word, LOCKS[lock]], Expect::Deletion(lock));
                self.excuse_lock(lock);
            }
            _ => self.send(world, node, index, &["PING"], Expect::Nothing),
        }
    }

    fn release(&mut self, world: &mut World, node: usize, index: usize, held: &Held) {
        let now_us = now_us(world, node);
        let (owner, fence) = (&held.ask.owner, held.fence.to_string());
        if let Some(semaphore) = held.ask.semaphore {
            let mut words = vec!["SEM.RELEASE", SEMAPHORES[semaphore].0];
            words.extend(held.permits.iter().map(String::as_str));
            for permit in &held.permits {
                self.semaphores[semaphore].release(permit, true);
            }
            let expect = Expect::Permits(semaphore, held.permits.clone());
            return self.send(world, node, index, &words, expect);
        }
        for &lock in &held.ask.locks {
            let was_sure = self.locks[lock].is_surely(owner, held.fence, now_us);
            if self.locks[lock].is_of(owner)
                && let Some(holder) = &mut self.locks[lock].holder
            {
                holder.is_released = true;
            }
            let mut words = match held.ask.is_string {
                true => vec!["EVAL", UNLOCK, "1", LOCKS[lock], owner],
                false => vec!["LOCK.RELEASE", LOCKS[lock], owner],
            };
            if !held.ask.is_string {
                if world.random.bool() {
                    words.extend(["FENCE", &fence]);
                }
                if held.ask.is_counted && world.random.bool() {
                    words.push("ALL");
                }
                if world.random.u32(..8) == 0 {
                    words.extend(["KEEP", "300"]);
                }
            }
            let expect = Expect::Release(lock, owner.clone(), held.fence, was_sure);
            self.send(world, node, index, &words, expect);
            self.actors[index].former.push((lock, owner.clone(), held.fence));
        }
    }

    fn renew(&mut self, world: &mut World, node: usize, index: usize, held: &Held) {
        let from_us = now_us(world, node);
        let lease_ms = i64::from(world.random.u32(50..4000));
        let lease = lease_ms.to_string();
        if let (Some(semaphore), Some(permit)) = (held.ask.semaphore, held.permits.first()) {
            let words = ["SEM.RENEW", SEMAPHORES[semaphore].0, permit, "PX", &lease];
            let expect = Expect::PermitRenewal(semaphore, permit.clone(), lease_ms, from_us);
            return self.send(world, node, index, &words, expect);
        }
        for &lock in &held.ask.locks {
            let owner = &held.ask.owner;
            let words = ["LOCK.RENEW", "1", LOCKS[lock], owner, "PX", &lease];
            let expect = Expect::Renewal(lock, owner.clone(), held.fence, lease_ms, from_us);
            self.send(world, node, index, &words, expect);
        }
    }

    /// An actor closes its connection.
    fn leave(&mut self, world: &mut World, node: usize, index: usize) {
        let at_us = now_us(world, node);
        world.trace.note(|| format!("locker {index} leaves at {at_us}"));
        self.unbind(index, at_us);
        world.turn(node);
    }

    /// Who waits is killed in the turn in which it would be served.
    fn serve_and_kill(&mut self, world: &mut World, node: usize, waiting: usize) {
        let Some(ask) = self.actors[waiting].waits_for().filter(|ask| ask.waits).cloned() else {
            return;
        };
        let (Some(id), Some(&lock)) = (self.actors[waiting].id, ask.locks.first()) else { return };
        let has_it = |actor: &Actor| {
            let mut held = actor.held.iter();
            actor.talk.is_some()
                && actor.expects.is_empty()
                && held.any(|it| it.ask.locks == [lock] && self.locks[lock].is_of(&it.ask.owner))
        };
        let Some(index) = self.actors.iter().position(has_it) else { return };
        let held = &mut self.actors[index].held;
        let Some(at) = held.iter().position(|held| held.ask.locks == [lock]) else { return };
        let held = held.remove(at);
        self.release(world, node, index, &held);
        let words = ["CLIENT", "KILL", "ID", &id.to_string()];
        self.send(world, node, index, &words, Expect::Nothing);
        self.killed += 1;
        world.turn(node);
    }
}

/// The words of LOCK.ACQUIRE or LOCK.MACQUIRE.
fn acquire(ask: &Ask, waits_ms: i64) -> Vec<String> {
    let mut words: Vec<String> = match ask.locks[..] {
        [lock] => vec!["LOCK.ACQUIRE".into(), LOCKS[lock].into()],
        _ => vec!["LOCK.MACQUIRE".into(), ask.locks.len().to_string()],
    };
    if ask.locks.len() > 1 {
        words.extend(ask.locks.iter().map(|&lock| LOCKS[lock].to_owned()));
    }
    words.extend([ask.owner.clone(), "PX".into(), ask.lease_ms.to_string()]);
    if ask.waits {
        words.extend(["BLOCK".to_owned(), waits_ms.to_string()]);
    }
    if let Some(grace_ms) = ask.grace_ms {
        words.extend(["SESSION".to_owned(), "GRACE".into(), grace_ms.to_string()]);
    }
    if ask.is_counted {
        words.push("REENTRANT".into());
    }
    words
}

fn now_us(world: &World, node: usize) -> i64 {
    world.nodes[node].clock.boot_us()
}

/// The wall clock in seconds, if nobody has set it.
fn wall_s(world: &World, node: usize) -> i64 {
    START.0 / 1000 + (now_us(world, node) - 3_600 * SECOND) / SECOND
}

/// The fence of a grant; 0: nothing was granted, or without one.
fn fence_in(reply: &Reply) -> u64 {
    let Reply::Array(told) = reply else { return 0 };
    match told[..] {
        // Permits, their fence, and how many are free.
        [Reply::Array(_), Reply::Integer(fence), _] | [Reply::Integer(fence), ..] => fence as u64,
        _ => 0,
    }
}

/// The newest fence that a look tells of.
fn newest_fence(told: &Reply) -> u64 {
    let Reply::Array(reports) = told else { return 0 };
    let fences = reports.iter().flat_map(|report| {
        let of_lock = match field(report, "owners") {
            Some(Reply::Array(owners)) => owners.first().and_then(|it| integer(it, "fence")),
            _ => None,
        };
        let permits = match field(report, "permits") {
            Some(Reply::Array(permits)) => permits.as_slice(),
            _ => &[],
        };
        let names = permits.iter().filter_map(|permit| texts(permit).into_iter().next());
        let of_permits = names.filter_map(|name| name.rsplit('#').nth(1)?.parse::<u64>().ok());
        of_lock.map(|fence| fence as u64).into_iter().chain(of_permits).collect::<Vec<_>>()
    });
    fences.max().unwrap_or(0)
}

/// Who has a lock, as a look tells.
fn owner_in(told: &Reply, lock: usize) -> Option<String> {
    let Reply::Array(reports) = told else { return None };
    match field(reports.get(lock)?, "owners") {
        Some(Reply::Array(owners)) => text(field(owners.first()?, "owner")),
        _ => None,
    }
}

/// A field of a map, which is an array to a script.
fn field<'a>(map: &'a Reply, name: &str) -> Option<&'a Reply> {
    let Reply::Array(items) = map else { return None };
    let is_it = |pair: &&[Reply]| pair[0] == Reply::Bulk(name.as_bytes().to_vec());
    items.chunks_exact(2).find(is_it).map(|pair| &pair[1])
}

/// A reply in one line.
fn line(reply: &Reply) -> String {
    reply.show().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What a look tells, in one line.
fn summary(told: &Reply) -> String {
    let Reply::Array(told) = told else { return line(told) };
    let reports = told.iter().map(|report| {
        let found = ["owners", "permits"].iter().find_map(|name| field(report, name));
        let found = found.and_then(|found| match found {
            Reply::Array(items) => items.first(),
            _ => None,
        });
        let names = ["owner", "fence", "ms-left"];
        let told = match found {
            Some(owner) if field(owner, "owner").is_some() => {
                let values = names.iter().filter_map(|name| field(owner, name));
                values.map(line).collect::<Vec<_>>().join(" ")
            }
            _ => field(report, "permits").map(line).unwrap_or_default(),
        };
        let end = field(report, "last-end").and_then(|end| text(field(end, "reason")));
        format!("[{told}] {:?} {}", integer(report, "waiters"), end.unwrap_or_default())
    });
    reports.collect::<Vec<_>>().join(", ")
}

fn integer(map: &Reply, name: &str) -> Option<i64> {
    match field(map, name) {
        Some(Reply::Integer(number)) => Some(*number),
        _ => None,
    }
}

fn text(reply: Option<&Reply>) -> Option<String> {
    match reply {
        Some(Reply::Bulk(bytes)) => Some(String::from_utf8_lossy(bytes).into_owned()),
        _ => None,
    }
}

fn texts(reply: &Reply) -> Vec<String> {
    let Reply::Array(items) = reply else { return Vec::new() };
    items.iter().filter_map(|item| text(Some(item))).collect()
}
