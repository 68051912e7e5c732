//! Seeds of misfortune: nodes crash, are cut off, have slow disks and other settings, slots move
//! under writes, and an administrator takes over by hand. `CLUSTER_SEEDS` says how many seeds are
//! run, `CLUSTER_SEED` the first.

use std::sync::OnceLock;

use super::world::{Machine, TIMEOUT_MS, World, name, used_slots};
use crate::cluster::admin::Failover;
use crate::cluster::node::NodeFlags;
use crate::collections::hash_slot::HashSlot;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|number| number.parse().ok()).unwrap_or(default)
}

/// A world of three or four primaries, with this total number of replicas.
fn world(primaries: usize, replicas: usize, seed: u64) -> World {
    type Files = Vec<Vec<u8>>;
    static FILES: [OnceLock<Files>; 18] = [const { OnceLock::new() }; 18];
    let files = &FILES[(primaries - 3) * 9 + replicas];
    World::with_files(files.get_or_init(|| World::files(primaries, replicas)), seed)
}

/// A move of a slot by an administrator, key by key. It may stop at any step.
struct Move {
    slot: HashSlot,
    from: usize,
    to: usize,
    step: u8,
    /// When the last replies arrive: they wait until nodes.conf is saved.
    replies_at: i64,
}

impl World {
    fn saved_at(&self, indexes: &[usize]) -> i64 {
        indexes.iter().map(|index| self.machines[*index].saved_at).max().unwrap_or(0)
    }

    fn pick(&mut self) -> usize {
        let count = self.machines.len();
        self.random.usize(..count)
    }

    fn primary_of(&self, index: usize) -> Option<usize> {
        self.machines[index].follows
    }

    fn replicas_of(&self, primary: usize) -> Vec<usize> {
        (0..self.machines.len())
            .filter(|index| {
                self.machines[*index].is_alive && self.machines[*index].follows == Some(primary)
            })
            .collect()
    }

    /// A living primary with several replicas.
    fn pick_primary_of_many(&mut self) -> Option<usize> {
        let primaries: Vec<usize> = (0..self.machines.len())
            .filter(|index| self.machines[*index].is_alive && self.replicas_of(*index).len() > 1)
            .collect();
        self.random.choice(&primaries).copied()
    }

    fn kill_some(&mut self, index: usize) {
        let dead = self.machines.iter().filter(|machine| !machine.is_alive).count();
        if self.machines[index].is_alive && dead < self.machines.len() / 3 {
            self.kill(index);
            if self.random.u8(..3) == 0 {
                let ms = self.random.i64(1..2_000);
                self.restart_after(index, ms);
            }
        }
    }

    /// Kills a primary whose replicas do not hear each other.
    fn make_rivals(&mut self) {
        let Some(primary) = self.pick_primary_of_many() else { return };
        let replicas = self.replicas_of(primary);
        for one in &replicas {
            for other in replicas.iter().filter(|other| *other != one) {
                self.cut.insert((*one, *other));
            }
        }
        self.kill_some(primary);
    }

    fn partition(&mut self) {
        let count = self.machines.len();
        let inside: Vec<bool> = (0..count).map(|_| self.random.bool()).collect();
        let is_one_way = self.random.u8(..4) == 0;
        for one in 0..count {
            for other in (0..count).filter(|other| inside[one] && !inside[*other]) {
                self.cut.insert((one, other));
                if !is_one_way {
                    self.cut.insert((other, one));
                }
            }
        }
    }

    fn fail_over_by_hand(&mut self, index: usize) {
        let machine = &self.machines[index];
        let Some(primary) = machine.cluster.myself().primary.filter(|_| machine.is_alive) else {
            return;
        };
        let is_failed = machine.cluster.node(primary).flags.contains(NodeFlags::FAIL);
        let kind = match self.random.u8(..4) {
            0 => Failover::Forced,
            _ if is_failed => return,
            _ => Failover::Agreed,
        };
        match kind {
            Failover::Forced => self.take_over(index),
            _ => self.fail_over(index, kind),
        }
    }

    /// Cuts replicas off from their stream, and later kills their primary.
    fn leave_behind(&mut self) {
        let primaries: Vec<usize> =
            (0..self.machines.len()).filter(|index| !self.replicas_of(*index).is_empty()).collect();
        let Some(primary) = self.random.choice(&primaries).copied() else { return };
        let mut replicas = self.replicas_of(primary);
        self.random.shuffle(&mut replicas);
        if self.random.bool() {
            replicas.truncate(1);
        }
        self.unfollowed.extend(replicas.into_iter().map(|replica| (replica, primary)));
        // Shorter or longer than the greatest allowed age of data.
        let ms = [1_000, 5_000][self.random.usize(..2)];
        self.run(ms);
        self.kill_some(primary);
        self.run(3_000);
    }

    /// Kills a primary one of whose replicas lags, when the cluster is otherwise undisturbed: a
    /// replica with more data asks for votes first.
    fn lose_primary_of_unequals(&mut self) {
        self.cut.clear();
        self.run(7_000);
        let Some(primary) = self.pick_primary_of_many() else { return };
        let replicas = self.replicas_of(primary);
        let lagging = replicas[self.random.usize(..replicas.len())];
        self.unfollowed.insert((lagging, primary));
        let ms = self.random.i64(500..1_500);
        self.run(ms);
        self.kill_some(primary);
        self.run(6_000);
        self.unfollowed.remove(&(lagging, primary));
    }

    /// A primary comes back and does not hear the node that took its place. Other nodes must inform
    /// it.
    fn come_back_unheard(&mut self) {
        let slot = used_slots().nth(self.random.usize(..12)).expect("a slot");
        let owner = |world: &World| {
            world.machines.iter().position(|machine| {
                machine.is_alive && machine.cluster.owns(slot) && machine.follows.is_none()
            })
        };
        let Some(old) = owner(self) else { return };
        self.kill(old);
        self.run(6_000);
        let new = owner(self);
        if let Some(new) = new {
            self.cut_both(old, new);
        }
        self.restart(old);
        self.run(6_000);
        if let Some(new) = new
            && self.machines[new].cluster.owns(slot)
            && self.machines[old].cluster.owns(slot)
        {
            self.fail(&format!("nobody tells {old} that slot {} is {new}'s", slot.number()));
        }
    }

    fn configure(&mut self, index: usize) {
        let mut settings = self.machines[index].settings.clone();
        match self.random.u8(..6) {
            0 => settings.node_timeout_ms = [500, 1_000, 1_500][self.random.usize(..3)],
            1 => settings.allows_replica_migration = self.random.bool(),
            2 => settings.migration_barrier = self.random.usize(..2),
            3 => settings.no_failover = self.random.u8(..4) == 0,
            4 => settings.ping_interval_ms = self.random.i64(0..2) * 300,
            _ => settings.gossip_percent = self.random.usize(1..100),
        }
        self.disturb(index);
        self.machines[index].settings = settings.clone();
        if self.machines[index].is_alive {
            self.command(index, |cluster, _, _| cluster.set_settings(settings));
        }
    }

    /// Makes a node take an epoch without consent. With it, a node that is cut off would win back
    /// the slots that others have taken over, so an administrator who cares about the data does not
    /// do this then.
    fn bump_epoch(&mut self, index: usize) {
        let machine = &self.machines[index];
        // A source that takes an epoch before it hears of the target's new ownership takes the slot
        // back.
        let is_safe = self.cut.is_empty() && self.moving.is_empty();
        if is_safe
            && machine.is_alive
            && machine.cluster.is_ok()
            && machine.cluster.myself().is_voting()
        {
            self.bumped_ms = self.now;
            self.command(index, |cluster, outside, actions| cluster.bump_epoch(outside, actions));
        }
    }

    fn begin_move(&mut self) -> Option<Move> {
        let slot = used_slots().nth(self.random.usize(..12))?;
        let owner = |index: &usize| {
            let machine = &self.machines[*index];
            machine.is_alive && machine.follows.is_none() && machine.cluster.owns(slot)
        };
        let from = (0..self.machines.len()).find(owner)?;
        let to = self.pick();
        let target = &self.machines[to];
        let can = to != from && target.is_alive && target.cluster.myself().is_voting();
        can.then_some(Move { slot, from, to, step: 0, replies_at: 0 })
    }

    /// Takes the next steps of a move. True: the move has ended.
    fn go_on_with_move(&mut self, moving: &mut Move) -> bool {
        let Move { slot, from, to, .. } = *moving;
        if self.now < moving.replies_at {
            return false;
        }
        // A node that takes an epoch before it hears of its successor would win back all its former
        // slots.
        let are_there = [from, to].iter().all(|index| {
            let machine = &self.machines[*index];
            let has_heard = self.now - machine.disturbed_ms > 2 * TIMEOUT_MS;
            machine.is_alive && machine.cluster.myself().is_primary() && has_heard
        });
        let (Some(source), Some(target), true) =
            (self.index_of(to, from), self.index_of(from, to), are_there)
        else {
            return false;
        };
        match moving.step {
            0 if self.machines[from].cluster.owns(slot)
                && !self.machines[to].cluster.owns(slot) =>
            {
                self.moving.insert(slot.number());
                self.log(format!("slot {} moves from {from} to {to}", slot.number()));
                self.command(to, |cluster, outside, actions| {
                    cluster.set_importing(slot, source, outside, actions);
                });
                self.command(from, |cluster, outside, actions| {
                    cluster.set_migrating(slot, target, outside, actions);
                });
                moving.step = 1;
                moving.replies_at = self.saved_at(&[from, to]);
            }
            0 => {
                return self.machines[from].count_in_slot(slot) == 0
                    || !self.machines[from].cluster.owns(slot);
            }
            // A crash has lost the mark of the move.
            1 if self.machines[to].cluster.importing_from(slot).is_none()
                || self.machines[from].cluster.migrating_to(slot).is_none() =>
            {
                moving.step = 0;
            }
            1 => {
                if !self.migrate_key(slot, from, to) && self.machines[from].count_in_slot(slot) == 0
                {
                    moving.step = 2;
                }
            }
            // The target takes a new epoch without consent.
            2 if !self.cut.is_empty() || self.now - self.bumped_ms < TIMEOUT_MS => return false,
            // A replica that took over in the middle does not know of the move, and accepts new
            // keys.
            2 if self.machines[from].count_in_slot(slot) > 0 => moving.step = 1,
            2 => {
                let own = self.machines[to].cluster.my_index();
                self.command(to, |cluster, outside, actions| {
                    cluster.assign_slot(slot, own, true, outside, actions);
                });
                moving.step = 3;
                moving.replies_at = self.saved_at(&[to]);
            }
            // The administrator waits until all nodes know the new owner.
            _ => {
                if !self.machines[to].cluster.owns(slot) {
                    moving.step = 0;
                    return false;
                }
                let knows = |machine: &Machine| {
                    let owner = machine.cluster.owner(slot);
                    owner.is_some_and(|owner| machine.cluster.node(owner).id == name(to))
                };
                if !self.machines.iter().filter(|machine| machine.is_alive).all(knows) {
                    return false;
                }
                self.moving.remove(&slot.number());
                self.log(format!("slot {} is moved", slot.number()));
                return true;
            }
        }
        false
    }
}

#[test]
fn whatever_happens_nobody_votes_twice_all_agree_in_the_end_and_nothing_acknowledged_is_lost() {
    let first = number("CLUSTER_SEED", 100);
    let (mut acknowledged, mut promotions) = (0, 0);
    for seed in first..first + number("CLUSTER_SEEDS", 20) {
        let (primaries, replicas) = (3 + (seed % 2) as usize, 3 + (seed / 2 % 6) as usize);
        let mut world = world(primaries, replicas, seed);
        world.log(format!("seed {seed}"));
        // Some clusters limit the age of a replica's data.
        let factor = [0, 0, 0, 1][world.random.usize(..4)];
        world.crashing_voters = [0, 0, 1, 3][world.random.usize(..4)];
        world.has_contests = world.random.u8(..4) == 0;
        if world.has_contests {
            world.crashing_voters = 5;
        }
        // The longer nodes wait before they ask for votes, the more can happen, and the more differ
        // the times at which replicas ask that have more data or less.
        if world.has_contests || world.random.bool() {
            world.machines.iter_mut().for_each(|one| one.settings.node_timeout_ms = 3 * TIMEOUT_MS);
        }
        for index in 0..world.machines.len() {
            world.machines[index].settings.validity_factor = factor;
            let settings = world.machines[index].settings.clone();
            world.command(index, |cluster, _, _| cluster.set_settings(settings));
        }
        if world.random.u8(..3) == 0 {
            world.run(1_000);
            world.leave_behind();
        }
        let moves_slots = world.random.u8(..3) == 0;
        let mut moving: Option<Move> = None;
        for _ in 0..world.random.usize(10..30) {
            let (one, other) = (world.pick(), world.pick());
            match world.random.u8(..24) {
                0..4 => world.kill_some(one),
                4..8 if !world.machines[one].is_alive => world.restart(one),
                8 if one != other => world.cut_both(one, other),
                9 if one != other => drop(world.cut.insert((one, other))),
                10 => world.partition(),
                11 | 12 => world.cut.clear(),
                13 => world.machines[one].slow_until = world.now + 5_000,
                14 => {
                    if let Some(primary) = world.primary_of(one) {
                        world.unfollowed.insert((one, primary));
                    }
                }
                15 => world.unfollowed.clear(),
                16 | 17 => world.make_rivals(),
                18 | 19 => world.fail_over_by_hand(one),
                20 => world.configure(one),
                21 => (0..world.machines.len()).for_each(|index| world.bump_epoch(index)),
                22 => {
                    if let Some(primary) = world.primary_of(one) {
                        world.kill_some(primary);
                    }
                }
                23 => world.lose_primary_of_unequals(),
                _ => {}
            }
            if moves_slots {
                moving = moving.or_else(|| world.begin_move());
                for _ in 0..world.random.usize(1..5) {
                    if let Some(now) = &mut moving
                        && world.go_on_with_move(now)
                    {
                        moving = None;
                    }
                }
            }
            let ms = world.random.i64(50..3_000);
            world.run(ms);
        }
        world.heal();
        if seed % 4 == 0 {
            world.come_back_unheard();
            world.heal();
        }
        acknowledged += world.acknowledged;
        promotions += world.promotions;
    }
    eprintln!("{acknowledged} acknowledged writes, {promotions} promotions");
    assert!(acknowledged > 0);
}

/// Without failovers: primaries alone, which crash and are cut off while slots move under writes.
#[test]
fn an_interrupted_move_of_a_slot_leaves_each_key_with_one_owner() {
    let first = number("CLUSTER_SEED", 100);
    for seed in first..first + number("CLUSTER_SEEDS", 20) {
        let mut world = world(3, 0, seed);
        world.log(format!("seed {seed}"));
        world.has_no_failovers = true;
        for _ in 0..3 {
            let Some(mut moving) = world.begin_move() else { continue };
            let slot = moving.slot;
            for _ in 0..60 {
                let one = [moving.from, moving.to][world.random.usize(..2)];
                match world.random.u8(..12) {
                    0 => {
                        world.kill(one);
                        let ms = world.random.i64(1..500);
                        world.restart_after(one, ms);
                    }
                    1 => world.cut_both(moving.from, moving.to),
                    2..4 => world.cut.clear(),
                    4 => world.machines[one].slow_until = world.now + 1_000,
                    _ => {}
                }
                if world.go_on_with_move(&mut moving) {
                    break;
                }
                let ms = world.random.i64(1..300);
                world.run(ms);
            }
            world.heal();
            // The administrator continues.
            for _ in 0..200 {
                if world.go_on_with_move(&mut moving) {
                    break;
                }
                world.run(100);
            }
            world.heal();
            let places = world.primaries_with_keys(slot);
            let owner = world.machines.iter().position(|machine| machine.cluster.owns(slot));
            assert!(
                places.iter().all(|place| Some(*place) == owner),
                "seed {seed}: keys of slot {} at {places:?}, owned by {owner:?} ({})",
                slot.number(),
                name(owner.unwrap_or(0))
            );
        }
    }
}
