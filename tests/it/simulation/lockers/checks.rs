//! Looks at all locks and semaphores: their reports are compared with the holdings, and nobody may
//! wait for what is free.

use super::reports::{fence_in, field, integer, newest_fence, owner_in, summary, text, texts};
use super::{Actor, Ask, Expect, LOCKS, LOOK, Lockers, SEMAPHORES, now_us};
use crate::simulation::lock_rules::{Grant, Promise};
use crate::simulation::world::{MS, World};
use crate::support::Reply;

impl Lockers {
    /// Looks who has what, and that nobody waits for what nobody has.
    pub(super) fn look(&mut self, world: &mut World, node: usize, promise: Promise) {
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
        let Some(mut connection) = world.connect(node) else { return false };
        connection.send(&["LOCK.ACQUIRE", "lock:probe", "probe", "PX", "1"]);
        world.turn(node);
        matches!(&connection.take()[..], [reply] if fence_in(reply) > 0)
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
}
