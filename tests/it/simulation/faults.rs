//! What befalls the three servers beside broken links and ends: each kind as a run has it.

use super::clients::Clients;
use super::connection::Connection;
use super::kills;
use super::kinds::Kinds;
use super::large;
use super::memory::POLICIES;
use super::operator::Operator;
use super::oracle;
use super::parameters::Changed;
use super::world::{MS, NODES, SECOND, World};
use crate::support::Reply;

#[derive(Default)]
pub struct Faults {
    changed: Changed,
    /// Writes what is large.
    connection: Option<Connection>,
}

impl Faults {
    /// Something happens, or nothing.
    pub fn act(&mut self, world: &mut World, operator: &mut Operator, clients: &mut Clients) {
        if world.kinds == Kinds::NONE || world.random.u32(..8) != 0 {
            return;
        }
        let primary = operator.primary;
        let kinds = world.kinds;
        let has = |kind| kinds.contains(kind);
        match world.random.u32(..12) {
            0..3 if has(Kinds::PARAMETERS) => {
                let node = world.random.usize(..NODES);
                let in_transaction = world.random.u32(..3) == 0;
                if world.is_up(node) {
                    self.changed.set(world, node, in_transaction);
                    operator.count("parameters");
                }
            }
            // Only while nobody's writes wait.
            3..5 if has(Kinds::KILLS) && operator.is_calm(world) => {
                kills::serve_and_kill(world, primary);
                operator.count("kills");
            }
            5 | 6 if has(Kinds::LARGE) => self.write_large(world, primary),
            7 if has(Kinds::MEMORY) => self.limit_memory(world, operator, clients),
            8 if has(Kinds::MEMORY) || has(Kinds::LARGE) => {
                let word = ["BGSAVE", "BGREWRITEAOF", "SAVE"][world.random.usize(..3)];
                let node = world.random.usize(..NODES);
                world.tell(node, &[word]);
            }
            9 if has(Kinds::STALLS) => {
                let stall = [
                    pause_beyond_the_timeout,
                    run_a_script_beyond_the_timeout,
                    load_beyond_the_timeout,
                ];
                stall[world.random.usize(..stall.len())](world, operator, &mut self.changed);
            }
            10 if has(Kinds::STALLS) => {
                // Whoever loads from now on takes long.
                let node = world.random.usize(..NODES);
                let delay = ["0", "5000", "30000"][world.random.usize(..3)];
                world.ask(node, &["CONFIG", "SET", "key-load-delay", delay]);
                // A load may take longer than the time-out.
                for node in 0..NODES {
                    let timeout = ["CONFIG", "SET", "repl-timeout", "2"];
                    world.ask(node, &[&timeout[..], &["repl-ping-replica-period", "1"]].concat());
                }
                world.has_steps = true;
            }
            _ => {}
        }
        if let Some(connection) = &mut self.connection {
            connection.take();
            if connection.has_ended {
                self.connection = None;
            }
        }
    }

    /// Ends what would keep servers from being in step.
    pub fn end(&mut self, world: &mut World) {
        self.connection = None;
        self.changed.undo(world);
        let is_limited = world.kinds.contains(Kinds::MEMORY);
        for node in 0..NODES {
            if is_limited && world.is_up(node) {
                world.ask(node, &["CONFIG", "SET", "maxmemory", "0"]);
            }
        }
    }

    /// Compares a server with its own files. To be called at a quiet moment.
    pub fn compare(&mut self, world: &mut World, primary: usize) {
        self.end(world);
        // A replica whose clock was set has keys that have expired for it alone.
        let any = world.random.usize(..NODES);
        let node = if world.has_steps { primary } else { any };
        if world.is_up(node) {
            oracle::compare_copies(world, node, world.has_log);
        }
    }

    fn write_large(&mut self, world: &mut World, primary: usize) {
        if self
            .connection
            .as_ref()
            .is_none_or(|connection| connection.node != primary || connection.has_ended)
        {
            self.connection = world.connect(primary);
        }
        let Some(connection) = &mut self.connection else { return };
        let requests = large::requests(&mut world.random);
        world.trace.note(|| format!("large {:.60}", requests[0].join(" ")));
        requests.iter().for_each(|words| connection.send(words));
        world.turn(primary);
    }

    /// A limit near what the primary uses. Under some policies anything may go then, and nothing of
    /// it is promised any more.
    fn limit_memory(&mut self, world: &mut World, operator: &mut Operator, clients: &mut Clients) {
        let node = operator.primary;
        let policy = POLICIES[world.random.usize(..POLICIES.len())];
        let Some(server) = &world.nodes[node].server else { return };
        let used = server.used_memory();
        let limit = used + world.random.usize(..=used / 10) - used / 20;
        if policy != "noeviction" {
            // Locks have deadlines.
            clients.forget_promises();
        }
        let limit = limit.to_string();
        let words = ["CONFIG", "SET", "maxmemory-policy", policy, "maxmemory", &limit];
        world.tell(node, &words);
        operator.count("memory limits");
    }
}

/// Sets `repl-timeout` everywhere. False: not all servers are in step.
fn set_timeout(world: &mut World, operator: &Operator, changed: &mut Changed, secs: &str) -> bool {
    changed.undo(world);
    if !operator.is_calm(world) {
        return false;
    }
    for node in 0..NODES {
        let words = ["CONFIG", "SET", "repl-timeout", secs, "repl-ping-replica-period", "1"];
        world.ask(node, &words);
    }
    world.step(1500 * MS);
    operator.is_calm(world)
}

/// All clients pause for longer than `repl-timeout`: no link is lost by it.
fn pause_beyond_the_timeout(world: &mut World, operator: &mut Operator, changed: &mut Changed) {
    if !set_timeout(world, operator, changed, "6") {
        return;
    }
    let made = world.wires.made();
    world.tell(operator.primary, &["CLIENT", "PAUSE", "9000", "ALL"]);
    let until_us = world.now_us + 10 * SECOND;
    while world.now_us < until_us {
        world.step(100 * MS);
    }
    if world.wires.made() != made {
        world.fail("links are lost while clients pause");
    }
    operator.count("pauses beyond the time-out");
}

/// A script that takes longer than `repl-timeout`: no link is lost by it.
fn run_a_script_beyond_the_timeout(
    world: &mut World,
    operator: &mut Operator,
    changed: &mut Changed,
) {
    if !set_timeout(world, operator, changed, "6") {
        return;
    }
    let (primary, made) = (operator.primary, world.wires.made());
    world.ask(primary, &["DEBUG", "SET-DISABLE-DENY-SCRIPTS", "1"]);
    let script =
        "for i = 1, 45 do redis.call('DEBUG', 'SLEEP', '0.2') redis.call('INCR', KEYS[1]) end";
    let begun_us = world.now_us;
    world.tell(primary, &["EVAL", script, "1", "long"]);
    // Writes may be refused.
    let is_long = world.now_us >= begun_us + 8 * SECOND;
    world.ask(primary, &["DEBUG", "SET-DISABLE-DENY-SCRIPTS", "0"]);
    let until_us = world.now_us + 3 * SECOND;
    while world.now_us < until_us {
        world.step(100 * MS);
    }
    if world.wires.made() != made {
        world.fail("links are lost while a script runs");
    }
    if is_long {
        operator.count("scripts beyond the time-out");
    }
}

/// A replica loads for longer than `repl-timeout`: it does so once, and its link stays.
fn load_beyond_the_timeout(world: &mut World, operator: &mut Operator, changed: &mut Changed) {
    // A disk that fails takes the file away, and a primary that has none of the replica's data
    // refuses it.
    let is_refused = world.protects || world.kinds.contains(Kinds::DISK);
    if is_refused || !set_timeout(world, operator, changed, "2") {
        return;
    }
    let primary = operator.primary;
    let node = (primary + world.random.usize(1..NODES)) % NODES;
    // A replica says nothing while it loads one key.
    let Some(Reply::Integer(keys @ 60..)) = world.ask(primary, &["DBSIZE"]) else { return };
    let delay_us = 6 * SECOND / keys;
    world.ask(node, &["CONFIG", "SET", "key-load-delay", &delay_us.to_string()]);
    let (made, slept_us) = (world.wires.made(), world.slept_us);
    operator.copy_anew(world, node);
    let until_us = world.now_us + 15 * SECOND;
    while world.now_us < until_us {
        world.step(50 * MS);
    }
    if world.wires.made() != made + 1 {
        world.fail("links are lost by a long load");
    }
    if world.slept_us < slept_us + 5 * SECOND {
        world.fail("a load does not take its time");
    }
    world.ask(node, &["CONFIG", "SET", "key-load-delay", "0"]);
    operator.count("loads beyond the time-out");
}
