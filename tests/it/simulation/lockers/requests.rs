//! Requests of the clients: they ask for locks and permits, use, renew and release them, and leave.

use super::{Actor, Ask, Expect, Held, LOCKS, Lockers, SEMAPHORES, UNLOCK, now_us};
use crate::simulation::world::{MS, World};

impl Lockers {
    /// An actor asks for something, gives something up, or leaves.
    pub(super) fn ask(&mut self, world: &mut World, node: usize, index: usize) {
        let now_us = now_us(world, node);
        if self.actors[index].connection.is_none() && !self.connect(world, node, index) {
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
        self.actors[index].connection = world.connect(node);
        if self.actors[index].connection.is_none() {
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
        if let Some(connection) = &mut actor.connection {
            connection.send(words);
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
    pub(super) fn leave(&mut self, world: &mut World, node: usize, index: usize) {
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
            actor.connection.is_some()
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
