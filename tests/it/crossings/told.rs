//! All that replies tell of a server's data.

use super::world::World;
use crate::support::derived::DATABASES;
use crate::support::{Reply, quote};

fn bulk(reply: &Reply) -> Vec<u8> {
    match reply {
        Reply::Bulk(bytes) => bytes.clone(),
        other => panic!("no text: {}", other.show()),
    }
}

fn items(reply: Reply) -> Vec<Reply> {
    match reply {
        Reply::Array(items) | Reply::Set(items) => items,
        other => panic!("no array: {}", other.show()),
    }
}

/// A database's keys, in order.
pub fn keys(world: &mut World, node: usize, database: usize) -> Vec<Vec<u8>> {
    world.say(node, &format!("SELECT {database}"));
    let mut keys: Vec<Vec<u8>> = items(world.ask(node, &["KEYS", "*"])).iter().map(bulk).collect();
    keys.sort();
    keys
}

/// A line for each key: database, name, type, deadline, and all of its value in order, where it has
/// one. `has_pending`: with what is pending of streams.
pub fn told(world: &mut World, node: usize, has_pending: bool) -> Vec<String> {
    let mut lines = Vec::new();
    // A field's name is asked for as a client does.
    let limit = world.parameter(node, "proto-max-bulk-len");
    world.say(node, "CONFIG SET proto-max-bulk-len 512mb");
    for database in 0..DATABASES {
        let keys = keys(world, node, database);
        let ask = |name: &'static str, key: &[u8]| vec![name.as_bytes().to_vec(), key.to_vec()];
        let kinds: Vec<Vec<Vec<u8>>> = keys.iter().map(|key| ask("TYPE", key)).collect();
        let kinds = world.ask_all(node, &kinds);
        let deadlines: Vec<Vec<Vec<u8>>> = keys.iter().map(|key| ask("PEXPIRETIME", key)).collect();
        let deadlines = world.ask_all(node, &deadlines);
        for ((key, kind), deadline) in keys.iter().zip(kinds).zip(deadlines) {
            let kind = kind.show();
            let value = value(world, node, key, &kind, has_pending);
            lines.push(format!("{database} {} {kind} {} {value}", quote(key), deadline.show()));
        }
    }
    world.say(node, "SELECT 0");
    world.say(node, &format!("CONFIG SET proto-max-bulk-len {limit}"));
    lines.push(world.ask(node, &["FUNCTION", "DUMP"]).show());
    if has_pending {
        lines.push(world.say(node, "DEBUG DIGEST"));
    }
    lines
}

fn value(world: &mut World, node: usize, key: &[u8], kind: &str, has_pending: bool) -> String {
    let mut ask = |words: &[&[u8]]| world.ask(node, words);
    let reply = match kind {
        "string" => ask(&[b"GET", key]),
        "list" => ask(&[b"LRANGE", key, b"0", b"-1"]),
        "zset" => ask(&[b"ZRANGE", key, b"0", b"-1", b"WITHSCORES"]),
        "set" => {
            let mut members = items(ask(&[b"SMEMBERS", key]));
            members.sort_by_cached_key(bulk);
            Reply::Array(members)
        }
        "hash" => {
            let mut fields = items(ask(&[b"HKEYS", key]));
            fields.sort_by_cached_key(bulk);
            let count = fields.len().to_string();
            let names: Vec<Vec<u8>> = fields.iter().map(bulk).collect();
            let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
            let head: [&[u8]; 2] = [b"HMGET", key];
            let values = items(ask(&[&head[..], &names[..]].concat()));
            let head: [&[u8]; 4] = [b"HPEXPIRETIME", key, b"FIELDS", count.as_bytes()];
            let deadlines = items(ask(&[&head[..], &names[..]].concat()));
            Reply::Array([fields, values, deadlines].concat())
        }
        "stream" => {
            let mut full = ask(&[b"XINFO", b"STREAM", key, b"FULL", b"COUNT", b"0"]);
            forget(&mut full, has_pending);
            full
        }
        kind => panic!("a key is a {kind}"),
    };
    shorter(&reply.show())
}

/// What is long, by its ends and a hash.
fn shorter(text: &str) -> String {
    let text = text.replace('\n', " ");
    if text.len() < 4000 {
        return text;
    }
    let hash =
        text.bytes().fold(0_u64, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
    format!("{}... {} characters, {hash:x}", text.chars().take(300).collect::<String>(), text.len())
}

/// When a consumer was last seen is not repeated; nor is how the entries lie in memory.
fn forget(reply: &mut Reply, has_pending: bool) {
    let Reply::Array(items) = reply else { return };
    let names = [&b"seen-time"[..], b"active-time", b"radix-tree-keys", b"radix-tree-nodes"];
    let pending = [&b"pel-count"[..], b"pending"];
    let mut forgets = false;
    for item in items {
        if std::mem::take(&mut forgets) {
            *item = Reply::Null;
        }
        forgets = matches!(item, Reply::Bulk(name) if names.contains(&name.as_slice())
            || !has_pending && pending.contains(&name.as_slice()));
        forget(item, has_pending);
    }
}

/// The first line that differs.
pub fn difference(name: &str, ours: &[String], theirs: &[String]) -> Option<String> {
    let at = (0..ours.len().max(theirs.len())).find(|&at| ours.get(at) != theirs.get(at))?;
    let line = |lines: &[String]| lines.get(at).cloned().unwrap_or_else(|| "nothing".into());
    Some(format!("{name}\n  primary: {}\n  there:   {}", line(ours), line(theirs)))
}
