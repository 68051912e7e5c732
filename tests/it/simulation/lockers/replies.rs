//! Replies to the clients: each is compared with the holdings, and a wait that ends with the order
//! of arrival.

use super::reports::{fence_in, line, texts};
use super::{Actor, Ask, Expect, Held, Lockers, Taken, now_us};
use crate::simulation::kinds::Kinds;
use crate::simulation::lock_rules::{Grant, Promise};
use crate::simulation::world::World;
use crate::support::Reply;

impl Lockers {
    /// Takes what was answered.
    pub(super) fn take(&mut self, world: &mut World, node: usize, promise: Promise) {
        let taken = self.hear_all(world, node, promise);
        self.judge_all(world, node, taken, promise);
    }

    /// Takes what was answered, and returns what is to be judged.
    pub(super) fn hear_all(&mut self, world: &mut World, node: usize, promise: Promise) -> Taken {
        let mut taken = Taken::default();
        for index in 0..self.actors.len() {
            let actor = &mut self.actors[index];
            let Some(connection) = &mut actor.connection else { continue };
            let replies = connection.take();
            if connection.has_ended {
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

    pub(super) fn judge_all(
        &mut self,
        world: &mut World,
        node: usize,
        taken: Taken,
        promise: Promise,
    ) {
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
            let connection = self.actors[index].connection.as_ref();
            connection.is_some_and(|connection| {
                connection.life == world.nodes[node].life && connection.node == node
            })
        };
        let unanswered = self.actors[index].waits_for().cloned();
        if let Some(ask) = unanswered.filter(|ask| is_alive && !ask.is_retry && !ask.is_string) {
            let owners = ask.locks.iter().map(|&lock| (lock, ask.owner.clone()));
            self.ghosts.extend(owners);
        }
        self.unbind(index, self.last.0);
    }

    /// A connection is gone since `at_us`.
    pub(super) fn unbind(&mut self, index: usize, at_us: i64) {
        let actor = &mut self.actors[index];
        (actor.connection, actor.id) = (None, None);
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
    pub(super) fn judge(
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
        let is_there = |actor: &&Actor| {
            actor.connection.as_ref().is_some_and(|connection| !connection.has_ended)
        };
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
}
