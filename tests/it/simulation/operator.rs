//! Who breaks things in a simulation, and who repairs them: the operator promotes as Sentinel does,
//! the replica with the highest offset of those that were in step with the primary.

use std::collections::{BTreeMap, BTreeSet};

use super::network::{PORT, address};
use super::world::{Loss, MS, NODES, SECOND, World};
use crate::support::Reply;

/// Time between two looks at all servers.
const POLL_US: i64 = 200 * MS;
/// A failover by command that takes longer is given up.
const FAILOVER_US: i64 = 8 * SECOND;
/// After so long everything that was repaired is in step.
const QUIET_US: i64 = 240 * SECOND;

const LOSSES: [Loss; 3] = [Loss::Process, Loss::Power, Loss::Disk];

/// What is to be done later.
#[derive(Clone, Copy, Debug)]
enum Task {
    Heal(usize, usize),
    Hasten(usize, usize),
    /// Starts a server: as a replica of whoever is the primary then, or as the primary that it was.
    Start(usize),
    StartAsPrimary(usize),
    /// Has a server follow the primary.
    Point(usize),
    Promote,
    /// Ends that a primary holds its replicas off though it has lost nothing.
    Settle,
}

#[derive(Default)]
pub struct Operator {
    pub primary: usize,
    tasks: Vec<(i64, Task)>,
    next_poll_us: i64,
    /// Servers that have all the primary had when they were last found behind it or elsewhere; else
    /// the offset they have to reach.
    in_step: [bool; NODES],
    targets: [Option<(String, u64)>; NODES],
    /// FAILOVER to this server was ordered, at this time.
    failover: Option<(usize, i64)>,
    /// The primary was told to end, and comes back as one.
    restarts: bool,
    /// It was not told to, and has come back: what it has answered is to be looked at.
    comes_back: bool,
    pub is_back: bool,
    /// It comes back without its data, or with older data: one of its replicas is to be promoted.
    has_lost_data: bool,
    /// Whoever follows another replica for a while.
    chained: Option<usize>,
    pub counts: BTreeMap<&'static str, u64>,
}

impl Operator {
    /// Does what is due, and looks after all servers.
    pub fn act(&mut self, world: &mut World) {
        let mut due = Vec::new();
        self.tasks.retain(|&(at_us, task)| {
            let is_due = at_us <= world.now_us;
            if is_due {
                due.push(task);
            }
            !is_due
        });
        due.into_iter().for_each(|task| self.perform(world, task));
        if world.now_us >= self.next_poll_us {
            self.next_poll_us = world.now_us + POLL_US;
            self.poll(world);
        }
    }

    fn later(&mut self, world: &World, us: i64, task: Task) {
        self.tasks.push((world.now_us + us, task));
    }

    pub fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    fn perform(&mut self, world: &mut World, task: Task) {
        world.trace.note(|| format!("{task:?}"));
        match task {
            Task::Heal(one, other) => world.wires.heal(one, other),
            Task::Hasten(one, other) => world.wires.set_delay(one, other, 0),
            Task::Start(node) if !world.is_up(node) => {
                let follows = (node != self.primary).then_some(self.primary);
                world.start(node, follows);
            }
            Task::StartAsPrimary(node) => {
                self.restarts = false;
                if !world.is_up(node) {
                    world.start(node, (node != self.primary).then_some(self.primary));
                    self.is_back = std::mem::take(&mut self.comes_back);
                }
            }
            // Nobody knows whom to follow while the part of the primary is handed over.
            Task::Point(_) if self.failover.is_some() => self.later(world, SECOND, task),
            Task::Point(node) => self.point(world, node),
            Task::Promote => self.promote_best(world),
            Task::Settle => self.settle(world),
            Task::Start(_) => {}
        }
    }

    fn point(&mut self, world: &mut World, node: usize) {
        if world.is_up(node) && node != self.primary {
            self.chained = self.chained.filter(|&chained| chained != node);
            self.follow(world, node, self.primary);
        }
    }

    fn follow(&mut self, world: &mut World, node: usize, primary: usize) {
        let to = address(primary);
        world.trace.note(|| format!("follow {node} {primary}"));
        world.ask(node, &["REPLICAOF", &to.ip().to_string(), &PORT.to_string()]);
        self.fall_behind(node);
    }

    /// Has a replica copy all the data once more.
    pub fn copy_anew(&mut self, world: &mut World, node: usize) {
        world.ask(node, &["REPLICAOF", "NO", "ONE"]);
        self.follow(world, node, self.primary);
    }

    fn fall_behind(&mut self, node: usize) {
        (self.in_step[node], self.targets[node]) = (false, None);
    }

    /// Looks at all servers: who is in step, and whether an ordered failover has come to its end.
    fn poll(&mut self, world: &mut World) {
        self.watch_failover(world);
        let primary = self.primary;
        if !world.is_up(primary) || self.has_lost_data {
            // SHUTDOWN has ended it, or a failover that was not meant to; or it has less than they
            // have.
            return;
        }
        let master = world.info(primary);
        if master.get("role").is_none_or(|role| role != "master") {
            return;
        }
        let settles = self.tasks.iter().any(|(_, task)| matches!(task, Task::Settle));
        if holds_off(&master) && !settles {
            if !world.has_log {
                world.fail(&format!("primary {primary} holds replicas off, and has lost nothing"));
            }
            let us = i64::from(world.random.u32(1..5000)) * MS;
            self.later(world, us, Task::Settle);
        }
        let Some((id, offset)) = world.is_up(primary).then(|| world.history(primary)) else {
            return;
        };
        for node in (0..NODES).filter(|&node| node != primary) {
            if !world.is_up(node) {
                self.fall_behind(node);
                continue;
            }
            let info = world.info(node);
            if !world.is_up(node) || !world.is_up(primary) {
                return;
            }
            let follows = info.get("master_host") == Some(&address(primary).ip().to_string());
            let told = info.get("slave_repl_offset").and_then(|told| told.parse::<u64>().ok());
            let theirs = info.get("master_replid").filter(|theirs| **theirs == id);
            if !follows && self.chained != Some(node) {
                self.fall_behind(node);
                if self.failover.is_none() && world.random.u32(..4) == 0 {
                    self.point(world, node);
                }
                continue;
            }
            let (Some(told), Some(_)) = (told, theirs) else {
                self.fall_behind(node);
                continue;
            };
            match &self.targets[node] {
                Some((wanted, target)) if *wanted == id => self.in_step[node] = told >= *target,
                _ => (self.in_step[node], self.targets[node]) = (false, Some((id.clone(), offset))),
            }
        }
    }

    fn role(&self, world: &mut World, node: usize) -> String {
        if !world.is_up(node) {
            return String::new();
        }
        world.info(node).remove("role").unwrap_or_default()
    }

    /// Finds out what has become of FAILOVER.
    fn watch_failover(&mut self, world: &mut World) {
        let Some((target, since_us)) = self.failover else { return };
        let role = self.role(world, target);
        if role == "master" {
            world.trace.note(|| format!("failed over to {target}"));
            self.failover = None;
            self.count("failovers");
            self.take_primary(world, target);
            return;
        }
        let info =
            if world.is_up(self.primary) { world.info(self.primary) } else { BTreeMap::new() };
        let state = info.get("master_failover_state").map_or("", |state| state.as_str());
        if world.is_up(self.primary) && state == "no-failover" && info["role"] == "master" {
            self.failover = None;
            self.count("failovers given up");
        } else if world.now_us > since_us + FAILOVER_US {
            if !world.is_up(self.primary) {
                // It has ended meanwhile, and nobody was promoted.
                self.failover = None;
                return self.count("failovers given up");
            }
            if !world.is_up(target) && self.role(world, self.primary) == "slave" {
                // The other one has ended, perhaps when it had just taken over.
                self.failover = None;
                world.start(target, None);
                let has_less =
                    world.is_up(target) && world.history(target).1 < world.history(self.primary).1;
                if state == "failover-in-progress" && has_less {
                    world.ask(self.primary, &["FAILOVER", "ABORT"]);
                    self.later(world, SECOND, Task::Point(target));
                    return self.count("failovers given up");
                }
                return self.take_primary(world, target);
            }
            if role == "slave" && state == "no-failover" && info["role"] == "slave" {
                // The other one had taken over when it ended, and was started as this one's
                // replica: they follow each other.
                self.failover = None;
                world.ask(target, &["REPLICAOF", "NO", "ONE"]);
                return self.take_primary(world, target);
            }
            world.ask(self.primary, &["FAILOVER", "ABORT"]);
        }
    }

    /// Another server is the primary from now on.
    fn take_primary(&mut self, world: &mut World, primary: usize) {
        self.primary = primary;
        self.chained = None;
        for node in 0..NODES {
            self.fall_behind(node);
            if node != primary {
                let us = i64::from(world.random.u32(..2000)) * MS;
                self.later(world, us, Task::Point(node));
            }
        }
    }

    /// Promotes the best of those that were in step with the primary.
    fn promote_best(&mut self, world: &mut World) {
        if let Some((target, _)) = self.failover
            && self.role(world, target) == "master"
        {
            return self.watch_failover(world);
        }
        let up = world.is_up(self.primary);
        let primary = if up { world.info(self.primary) } else { BTreeMap::new() };
        let lacks_data = self.has_lost_data || holds_off(&primary);
        let mut best: Option<(u64, usize)> = None;
        for node in (0..NODES).filter(|&node| node != self.primary) {
            // One that was told to end may end as soon as it is promoted, with less than the others
            // have.
            let ends =
                self.tasks.iter().any(|(_, task)| matches!(task, Task::Start(it) if *it == node));
            if !world.is_up(node)
                || ends
                || world.section(node, "server").contains_key("shutdown_in_milliseconds")
                // It would refuse.
                || world.section(node, "persistence")["loading"] == "1"
            {
                continue;
            }
            let info = world.info(node);
            // Who follows a primary that lacks data has lost its own.
            let has_data = match lacks_data {
                true => info.get("master_replid") != primary.get("master_replid"),
                false => self.in_step[node],
            };
            let told = info.get("slave_repl_offset").and_then(|told| told.parse().ok());
            if let Some(told) = told.filter(|_| has_data)
                && best.is_none_or(|(most, _)| told > most)
            {
                best = Some((told, node));
            }
        }
        let Some((_, node)) = best else {
            // Nobody can: when the primary is there again, or a replica, there is another look.
            let all_serve = (0..NODES).all(|node| {
                world.is_up(node) && world.section(node, "persistence")["loading"] != "1"
            });
            if !world.is_up(self.primary) || self.has_lost_data && !all_serve {
                let primary = self.primary;
                for node in (0..NODES).filter(|&node| node != primary) {
                    let starts = |task: &Task| matches!(task, Task::Start(it) if *it == node);
                    if !world.is_up(node) && !self.tasks.iter().any(|(_, task)| starts(task)) {
                        self.later(world, SECOND, Task::Start(node));
                    }
                }
                self.later(world, SECOND, Task::Promote);
            } else {
                // All follow it: they have no more than it has.
                self.has_lost_data = false;
            }
            return;
        };
        world.trace.note(|| format!("promote {node}"));
        self.count("promotions");
        (self.failover, self.has_lost_data) = (None, false);
        if world.random.bool() {
            world.ask(node, &["REPLICAOF", "NO", "ONE"]);
        } else {
            for words in [
                "MULTI",
                "SLAVEOF NO ONE",
                "CLIENT KILL TYPE normal",
                "CLIENT KILL TYPE pubsub",
                "EXEC",
            ] {
                let told = world.show(node, &words.split(' ').collect::<Vec<_>>());
                world.trace.note(|| format!("{words}: {told}"));
            }
        }
        self.take_primary(world, node);
    }

    /// A primary holds replicas off though it has all that it has answered: its log has no keys. An
    /// operator may promote one of them or confirm the primary: nothing is lost by either.
    fn settle(&mut self, world: &mut World) {
        let primary = self.primary;
        if self.has_lost_data || !world.is_up(primary) || !holds_off(&world.info(primary)) {
            return;
        }
        if world.random.bool() {
            return self.promote_best(world);
        }
        world.ask(primary, &["REPLICAOF", "NO", "ONE"]);
        self.count("confirmations");
    }

    /// Whether everybody else has what the primary has, so that one server may lose what it has.
    fn can_lose_one(&self, world: &mut World) -> bool {
        let primary = self.primary;
        (0..NODES).all(|node| {
            node == primary
                || self.in_step[node] && world.is_up(node) && {
                    let info = world.info(node);
                    info.get("slave_repl_offset").is_some_and(|told| told != "1" && told != "0")
                        && info.get("master_sync_in_progress").is_some_and(|syncs| syncs == "0")
                }
        }) && world.is_up(primary)
            && self.role(world, primary) == "master"
            && self.failover.is_none()
            && !self.restarts
            && !self.has_lost_data
    }

    /// Breaks something.
    pub fn harm(&mut self, world: &mut World) {
        let random = &mut world.random;
        let node = random.usize(..NODES);
        let other = (node + random.usize(1..NODES)) % NODES;
        let replica = (self.primary + random.usize(1..NODES)) % NODES;
        let short_us = i64::from(random.u32(1..1500)) * MS;
        let long_us = i64::from(random.u32(1..15_000)) * MS;
        let primary = self.primary;
        match random.u32(..35) {
            0..8 => {
                if world.wires.len() > 0 {
                    let index = world.random.usize(..world.wires.len());
                    world.trace.note(|| format!("cut {index}"));
                    world.wires.cut(index, &mut world.random);
                    self.count("cuts");
                }
            }
            8..10 => {
                let us = i64::from(random.u32(1..400)) * MS;
                world.wires.set_delay(node, other, us);
                self.later(world, long_us, Task::Hasten(node, other));
                self.count("delays");
            }
            10..12 => {
                world.trace.note(|| format!("part {node} {other}"));
                world.wires.part(node, other);
                self.later(world, long_us, Task::Heal(node, other));
                self.count("partitions");
            }
            12 => {
                // One alone; if it is the primary, another one takes over while it is still there.
                for other in (0..NODES).filter(|&other| other != node) {
                    world.wires.part(node, other);
                    self.later(world, long_us, Task::Heal(node, other));
                }
                if node == primary && self.can_lose_one(world) {
                    self.later(world, short_us, Task::Promote);
                }
                self.count("partitions");
            }
            13..15 => {
                // A replica ends in order, with its file. If it has a log, it comes back without a
                // history, and takes what a primary has that has lost its data.
                if world.is_up(replica) && !(self.has_lost_data && world.has_log) {
                    world.tell(replica, &["SHUTDOWN", "SAVE"]);
                    self.later(world, short_us, Task::Start(replica));
                    self.count("restarts");
                }
            }
            15..17 => {
                // A replica is gone, and comes back with an old file or without any.
                if self.can_lose_one(world) {
                    let loss = LOSSES[world.random.usize(..3)];
                    world.crash(replica, loss);
                    self.fall_behind(replica);
                    self.later(world, short_us, Task::Start(replica));
                    self.count("crashes");
                }
            }
            17..19 => {
                if self.can_lose_one(world) {
                    let loss = LOSSES[world.random.usize(..3)];
                    world.crash(primary, loss);
                    self.has_lost_data = true;
                    self.later(world, short_us, Task::Promote);
                    // Not before somebody else is the primary.
                    self.later(world, short_us + long_us.max(3 * SECOND), Task::Start(primary));
                    self.count("crashes");
                }
            }
            19 => {
                if self.can_lose_one(world) {
                    world.tell(primary, &["SHUTDOWN", "SAVE"]);
                    self.restarts = true;
                    self.later(world, short_us + 3 * SECOND, Task::StartAsPrimary(primary));
                    self.count("restarts");
                }
            }
            20..22 => {
                if self.can_lose_one(world) {
                    // The old one is told later.
                    self.promote_best(world);
                }
            }
            22..24 => {
                if self.can_lose_one(world) {
                    let to = address(replica).ip().to_string();
                    let port = PORT.to_string();
                    let ms = world.random.u32(100..5000).to_string();
                    let mut words = vec!["FAILOVER", "TO", &to, &port];
                    if world.random.bool() {
                        words.push("FORCE");
                    }
                    words.extend(["TIMEOUT", &ms]);
                    let told = world.show(primary, &words);
                    world.trace.note(|| format!("{words:?} {told}"));
                    if told == "OK" {
                        self.failover = Some((replica, world.now_us));
                    }
                }
            }
            24 => {
                if world.has_steps {
                    let us =
                        world.random.i64(-3600..3600) * SECOND + world.random.i64(-2000..2000) * MS;
                    world.step_clock(node, us);
                    self.count("clock steps");
                }
            }
            25 => {
                let ms = world.random.u32(1..1500).to_string();
                let what = if world.random.bool() { "WRITE" } else { "ALL" };
                world.tell(node, &["CLIENT", "PAUSE", &ms, what]);
                self.count("pauses");
            }
            26 => {
                let whom = if world.random.bool() { "replica" } else { "master" };
                world.tell(node, &["CLIENT", "KILL", "TYPE", whom]);
            }
            27 => {
                world.tell(node, &["BGSAVE"]);
                self.count("saves");
            }
            28 => {
                // A chain for a while.
                let third = NODES - primary - replica;
                if self.can_lose_one(world) && world.is_up(third) && self.chained.is_none() {
                    self.follow(world, replica, third);
                    self.chained = Some(replica);
                    self.later(world, long_us, Task::Point(replica));
                    self.count("chains");
                }
            }
            32..34 if world.protects => {
                // The primary is gone, and comes back as what it was before anybody else is.
                if self.can_lose_one(world) {
                    // A log that has lost what was not synced is taken for a whole one.
                    let losses = if world.has_log { &[Loss::Disk][..] } else { &LOSSES };
                    let loss = losses[world.random.usize(..losses.len())];
                    world.crash(primary, loss);
                    (self.has_lost_data, self.restarts) = (true, true);
                    self.later(world, short_us, Task::StartAsPrimary(primary));
                    self.later(world, short_us + long_us.max(3 * SECOND), Task::Promote);
                    self.count("empty primaries");
                }
            }
            29..32 if world.keeps_all || self.has_lost_data => {
                // The primary is gone, and comes back as what it was with all that it has answered;
                // or once more without.
                let is_primary = world.is_up(primary) && self.role(world, primary) == "master";
                if is_primary && self.failover.is_none() && !self.restarts {
                    let loss = if world.random.bool() { Loss::Power } else { Loss::Process };
                    world.crash(primary, loss);
                    (self.restarts, self.comes_back) = (true, !self.has_lost_data);
                    self.later(world, short_us, Task::StartAsPrimary(primary));
                    self.count("primaries that came back");
                }
            }
            _ => {
                // Time passes at once, for all.
                world.step(short_us * 2);
            }
        }
    }

    /// Repairs everything, and waits until all have the same. `step` has time pass and clients take
    /// what they are answered.
    pub fn make_quiet(
        &mut self,
        world: &mut World,
        mut step: impl FnMut(&mut World, usize) -> bool,
    ) {
        world.wires.calm();
        let begin_us = world.now_us;
        let mut is_quiet = false;
        loop {
            self.act(world);
            let clients_rest = step(world, self.primary);
            let waits = self.failover.is_some() || self.restarts || !self.tasks.is_empty();
            if !waits {
                for node in (0..NODES).filter(|&node| !world.is_up(node)) {
                    self.later(world, 0, Task::Start(node));
                }
            }
            if clients_rest && !waits && self.are_equal(world) && self.are_linked(world) {
                // Once more, behind what was still on its way.
                if is_quiet {
                    return;
                }
                is_quiet = true;
            }
            if world.now_us > begin_us + QUIET_US {
                let states: Vec<String> = (0..NODES)
                    .map(|node| format!("{:#?}", world.is_up(node).then(|| world.info(node))))
                    .collect();
                let (tasks, failover) = (&self.tasks, self.failover);
                let rest = if clients_rest { "" } else { ", clients wait" };
                world.fail(&format!(
                    "not in step though nothing is broken (primary {}, {tasks:?}, {failover:?}{rest}): {}",
                    self.primary,
                    states.join("\n")
                ));
            }
        }
    }

    /// Whether all servers are there and have the same history to the same offset.
    fn are_equal(&self, world: &World) -> bool {
        let all_up = (0..NODES).all(|node| world.is_up(node));
        all_up && (0..NODES).all(|node| world.history(node) == world.history(self.primary))
    }

    /// Whether nothing is broken, and nothing is to be done.
    pub fn is_calm(&self, world: &mut World) -> bool {
        let waits = self.failover.is_some() || self.restarts || !self.tasks.is_empty();
        !waits
            && !self.has_lost_data
            && self.chained.is_none()
            && (0..NODES).all(|node| world.is_up(node))
            && self.are_linked(world)
    }

    fn are_linked(&self, world: &mut World) -> bool {
        let to = address(self.primary).ip().to_string();
        (0..NODES).filter(|&node| node != self.primary).all(|node| {
            let info = world.info(node);
            info.get("master_link_status").is_some_and(|status| status == "up")
                && info.get("master_host") == Some(&to)
        })
    }

    /// Compares all that the servers hold. To be called at a quiet moment.
    pub fn compare(&mut self, world: &mut World) {
        for _ in 0..200 {
            let digests: Vec<String> =
                (0..NODES).map(|node| world.show(node, &["DEBUG", "DIGEST"])).collect();
            // What expires meanwhile is told a little later.
            if !self.are_equal(world) {
                world.step(5 * MS);
                continue;
            }
            if digests.iter().any(|digest| *digest != digests[0]) {
                let (history, told) = (world.history(0), differences(world));
                world.fail(&format!("the same history {history:?}, and other data: {told}"));
            }
            self.compare_counters(world);
            return;
        }
        world.fail("no moment without a change");
    }

    fn compare_counters(&mut self, world: &mut World) {
        let functions: Vec<String> =
            (0..NODES).map(|node| world.show(node, &["FUNCTION", "LIST", "WITHCODE"])).collect();
        if functions.iter().any(|list| *list != functions[0]) {
            world.fail(&format!("other functions: {functions:?}"));
        }
        for node in 0..NODES {
            let info = world.info(node);
            if world.section(node, "stats")["unexpected_error_replies"] != "0" {
                world.fail(&format!("server {node}: a command of the stream has failed"));
            }
            let role = if node == self.primary { "master" } else { "slave" };
            if info["role"] != role || node != self.primary && info["master_link_status"] != "up" {
                world.fail(&format!("server {node} is no {role} in step: {info:#?}"));
            }
        }
    }
}

/// The keys that are not the same on all servers, and what each server says of them.
fn differences(world: &mut World) -> String {
    let mut told = String::new();
    for database in (0..16).map(|database: u32| database.to_string()) {
        let mut keys = BTreeSet::new();
        for node in 0..NODES {
            world.ask(node, &["SELECT", &database]);
            let mut found = match world.ask(node, &["KEYS", "*"]) {
                Some(Reply::Array(found)) => found,
                _ => Vec::new(),
            };
            // It may be one that has expired, on a replica.
            found.extend(world.ask(node, &["RANDOMKEY"]));
            keys.extend(found.into_iter().filter_map(|key| match key {
                Reply::Bulk(key) => Some(key),
                _ => None,
            }));
        }
        for key in keys {
            let [show, digest] = [&b"DUMP"[..], b"DEBUG"];
            let of_each: Vec<[String; 4]> = (0..NODES)
                .map(|node| {
                    world.ask(node, &["SELECT", &database]);
                    let digest = world.show(node, &[digest, b"DIGEST-VALUE", &key]);
                    let object = world.show(node, &[&b"DEBUG"[..], b"OBJECT", &key]);
                    let until = world.show(node, &[b"PEXPIRETIME", key.as_slice()]);
                    [digest, object, until, world.show(node, &[show, key.as_slice()])]
                })
                .collect();
            let is_whole = |of_one: &[String; 4]| of_one[1].starts_with("Value");
            if of_each.iter().any(|of_one| {
                of_one[0] != of_each[0][0] || is_whole(of_one) != is_whole(&of_each[0])
            }) {
                let key = String::from_utf8_lossy(&key);
                told.push_str(&format!("\ndatabase {database}, {key}: {of_each:?}"));
            }
        }
    }
    told.chars().take(4000).collect()
}

/// Whether a primary tells that replicas have data that it lacks.
fn holds_off(info: &BTreeMap<String, String>) -> bool {
    info.get("primary_lacks_data_of_replicas").is_some_and(|told| told == "1")
}
