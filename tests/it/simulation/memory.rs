//! `maxmemory`: nothing is evicted, and nothing refused, but for data.

use super::alone::Alone;
use super::connection::Connection;
use super::world::{MS, World};
use crate::support::Reply;

pub const POLICIES: &[&str] = &[
    "noeviction",
    "allkeys-lru",
    "allkeys-lfu",
    "allkeys-random",
    "volatile-lru",
    "volatile-lfu",
    "volatile-random",
    "volatile-ttl",
];
/// Memory that is not keys, and that eviction counts: 16 KiB of backlog, input and output of
/// clients.
const SLACK: usize = 96 << 10;
/// Requests sent before an answer has come: further ones would fill the input buffer, which counts
/// for the limit.
const UNANSWERED_MAX: usize = 8;

/// Keys with long names, and the length of those. Unit: bytes.
const LONG_NAMES: usize = 400;
const LONG_NAME: usize = 4000;

/// A limit near what is used, until the next one or the next start.
pub fn limit(alone: &mut Alone) {
    let policy = POLICIES[alone.world.random.usize(..POLICIES.len())];
    let Some(server) = &alone.world.nodes[0].server else { return };
    let used = server.used_memory();
    let limit = match alone.world.random.u32(..4) {
        0 => 0,
        1 => used - used / 20,
        _ => used + alone.world.random.usize(..=used / 20),
    };
    alone.may_lack |= policy.starts_with("allkeys");
    alone.ask(&format!("CONFIG SET maxmemory-policy {policy} maxmemory {limit}"));
    *alone.counts.entry("memory limits").or_default() += 1;
}

/// A client overwrites keys by values of the same length while a snapshot is taken, and all fits.
pub fn overwrite_during_a_snapshot(alone: &mut Alone) {
    alone.be_quiet();
    let world = &mut alone.world;
    if !world.is_up(0) {
        return;
    }
    let keys = world.random.usize(50..400);
    let len = world.random.usize(100..3000);
    let policy = POLICIES[world.random.usize(..POLICIES.len())];
    let begins = ["BGSAVE", "BGREWRITEAOF", "PSYNC"][world.random.usize(..3)];
    let Some(mut connection) = world.connect(0) else { return };
    world.ask(0, &["CONFIG", "SET", "maxmemory", "0", "repl-backlog-size", "16kb"]);
    connection.send(&["SELECT", "2"]);
    let mut refused = None;
    let text = "x".repeat(len);
    let set = |connection: &mut Connection, key: usize| {
        connection.send(&["SET", &format!("memory:{key}"), &text, "EX", "100000"]);
    };
    for key in 0..keys {
        set(&mut connection, key);
        if key % 16 == 0 {
            refused = refused.or(answers(world, &mut connection));
        }
    }
    refused = refused.or(answers(world, &mut connection));
    if connection.has_ended || !world.is_up(0) {
        return;
    }
    if let Some(refused) = refused {
        world.fail(&format!("without a limit of memory: {refused}"));
    }
    let mut replica = world.connect(0);
    drop(connection);
    alone.be_quiet();
    let world = &mut alone.world;
    let Some(server) = &world.nodes[0].server else { return };
    let limit = (server.used_memory() + SLACK).to_string();
    let set_limit = ["CONFIG", "SET", "maxmemory-policy", policy, "maxmemory", &limit];
    let before = evicted(alone);
    let world = &mut alone.world;
    world.trace.note(|| format!("{set_limit:?}, {keys} keys of {len}, {begins}"));
    world.ask(0, &set_limit);
    match begins {
        "PSYNC" => {
            if let Some(replica) = &mut replica {
                replica.send(&["PSYNC", "?", "-1"]);
            }
            world.turn(0);
        }
        _ => _ = world.ask(0, &[begins]),
    }
    let Some(mut connection) = world.connect(0) else { return };
    connection.send(&["SELECT", "2"]);
    let mut refused = None;
    let rounds = world.random.usize(1..3);
    for turn in 0..rounds * keys {
        let key = world.random.usize(..keys);
        set(&mut connection, key);
        world.turn(0);
        if turn % 64 == 0 {
            world.step(MS);
        }
        if world.random.u32(..200) == 0 {
            world.background(0);
        }
        // Under `appendfsync always` a client is served again when the log is synced.
        if connection.awaited > UNANSWERED_MAX {
            refused = refused.or(answers(world, &mut connection));
        } else {
            refused = refused.or(first_error(&mut connection));
        }
        if let Some(replica) = &mut replica {
            replica.drop_input();
        }
    }
    let gone = evicted(alone) - before;
    let world = &mut alone.world;
    if gone > 0 || refused.is_some() {
        world.fail(&format!(
            "{begins} with {policy}, {keys} keys of {len} bytes, {SLACK} bytes to spare: {gone} are evicted, refused: {refused:?}"
        ));
    }
    drop(replica);
    world.ask(0, &["CONFIG", "SET", "maxmemory", "0"]);
    alone.be_quiet();
    *alone.counts.entry("snapshots under a limit").or_default() += 1;
}

/// Keys that are evicted cost more memory than they free, as somebody is told of each: that ends
/// soon, and most of them stay.
pub fn evict_while_somebody_listens(alone: &mut Alone) {
    alone.be_quiet();
    alone.may_lack = true;
    let world = &mut alone.world;
    let Some(mut connection) = world.connect(0) else { return };
    world.ask(0, &["CONFIG", "SET", "maxmemory", "0", "notify-keyspace-events", "Ee"]);
    connection.send(&["SELECT", "2"]);
    let name = "n".repeat(LONG_NAME);
    for key in 0..LONG_NAMES {
        connection.send(&["SET", &format!("{name}:{key}"), "v", "EX", "100000"]);
        if key % 16 == 0 {
            answers(world, &mut connection);
        }
    }
    answers(world, &mut connection);
    let listeners: Vec<Option<Connection>> = (0..3).map(|_| world.connect(0)).collect();
    let mut listeners: Vec<Connection> = listeners.into_iter().flatten().collect();
    for listener in &mut listeners {
        listener.send(&["PSUBSCRIBE", "__keyevent@*__:evicted"]);
    }
    world.turn(0);
    alone.settle();
    let Some(server) = &alone.world.nodes[0].server else { return };
    let limit = (server.used_memory() - LONG_NAME).to_string();
    let policy = POLICIES[alone.world.random.usize(1..POLICIES.len())];
    let set_limit = ["CONFIG", "SET", "maxmemory-policy", policy, "maxmemory", &limit];
    let world = &mut alone.world;
    world.trace.note(|| format!("{set_limit:?}, and somebody listens"));
    world.ask(0, &set_limit);
    world.ask(0, &["CONFIG", "SET", "maxmemory", "0", "notify-keyspace-events", ""]);
    world.ask(0, &["SELECT", "2"]);
    let names: Vec<String> = (0..LONG_NAMES).map(|key| format!("{name}:{key}")).collect();
    let mut left = 0;
    for names in names.chunks(20) {
        let mut words = vec!["DEL"];
        words.extend(names.iter().map(String::as_str));
        match world.ask(0, &words) {
            Some(Reply::Integer(count)) => left += count as usize,
            _ => return,
        }
    }
    if left < LONG_NAMES / 2 {
        world.fail(&format!("{policy}: eviction frees nothing, and goes on: {left} keys are left"));
    }
    *alone.counts.entry("evictions in vain").or_default() += 1;
}

/// Waits until all that was sent is answered. Returns an error among the answers.
fn answers(world: &mut World, connection: &mut Connection) -> Option<String> {
    let mut error = None;
    for turn in 0..1000 {
        match turn {
            0 => world.turn(0),
            _ => world.step(MS),
        }
        error = error.or(first_error(connection));
        if connection.awaited == 0 || connection.has_ended || !world.is_up(0) {
            return error;
        }
    }
    world.fail(&format!("{} requests are not answered", connection.awaited));
}

fn first_error(connection: &mut Connection) -> Option<String> {
    let replies = connection.take();
    replies.iter().find(|reply| matches!(reply, Reply::Error(_))).map(Reply::show)
}

fn evicted(alone: &mut Alone) -> u64 {
    let fields = alone.world.section(0, "stats");
    fields.get("evicted_keys").and_then(|count| count.parse().ok()).unwrap_or(0)
}
