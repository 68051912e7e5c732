//! Whether copies of a server that are made of its files, and of the dumps of its keys, have what
//! it has.

use super::parameters::current;
use super::world::{COPY, MS, World};
use crate::support::Reply;

/// Looks until nothing expires any more between two of them.
const LOOKS: usize = 40;

/// A server's data, in one number. None: it has ended.
pub fn digest(world: &mut World, node: usize) -> Option<String> {
    world.ask(node, &["DEBUG", "DIGEST"]).map(|reply| reply.show())
}

/// Compares a server with what its append-only file has, if `has_log`, and with a snapshot. To be
/// called when nothing else goes on, and the disk is well.
pub fn compare_copies(world: &mut World, node: usize, has_log: bool) {
    if world.nodes[node].steps > 0 {
        forget_deadlines(world, node);
    }
    if has_log {
        end_jobs(world, node);
        compare_copy(world, node, "the append-only file", &["appendonly yes"]);
    }
    end_jobs(world, node);
    // A replica whose primary's stream is within a transaction cannot say where in the stream the
    // file belongs, but saves.
    let saved = world.show(node, &["SAVE"]);
    if saved != "OK" {
        if world.is_up(node) {
            world.fail(&format!("server {node} cannot save: {saved}"));
        }
        return;
    }
    let file = current(world, node, "dbfilename");
    compare_copy(world, node, "the snapshot", &["appendonly no", &format!("dbfilename {file}")]);
}

/// Removes all deadlines. Where the wall clock was set, relative ones are other moments here than
/// in the files.
fn forget_deadlines(world: &mut World, node: usize) {
    for database in 0..world.databases {
        world.ask(node, &["SELECT", &database.to_string()]);
        let Some(Reply::Array(keys)) = world.ask(node, &["KEYS", "*"]) else { return };
        for key in keys {
            let Reply::Bulk(key) = key else { continue };
            world.ask(node, &[&b"PERSIST"[..], &key]);
            let Some(Reply::Array(fields)) = world.ask(node, &[&b"HKEYS"[..], &key]) else {
                continue;
            };
            let count = fields.len().to_string();
            let mut words = vec![&b"HPERSIST"[..], &key, b"FIELDS", count.as_bytes()];
            words.extend(fields.iter().filter_map(|field| match field {
                Reply::Bulk(field) => Some(field.as_slice()),
                _ => None,
            }));
            world.ask(node, &words);
        }
    }
}

/// Until a first rewrite ends, as after a full synchronisation, a start loads what was there
/// before; and SAVE is refused beside BGSAVE, which changes of the oracle's own may have started.
fn end_jobs(world: &mut World, node: usize) {
    for _ in 0..1000 {
        let fields = world.section(node, "persistence");
        let is_on = |name: &str| fields.get(name).is_some_and(|value| value == "1");
        let jobs = ["aof_rewrite_in_progress", "aof_rewrite_scheduled", "rdb_bgsave_in_progress"];
        if !jobs.into_iter().any(is_on) {
            return;
        }
        world.step(20 * MS);
        world.background(node);
    }
}

fn compare_copy(world: &mut World, node: usize, what: &str, lines: &[&str]) {
    // While data is imported what has expired stays, and is not loaded.
    world.ask(node, &["CONFIG", "SET", "import-mode", "no"]);
    for look in 0..LOOKS {
        let Some(before) = digest(world, node) else { return };
        world.start_copy(node, lines);
        let copied = digest(world, COPY).expect("it runs");
        if copied == before {
            dump_all(world);
            world.end_copy();
            return;
        }
        if look + 1 == LOOKS {
            let differing = first_difference(world, node);
            world.fail(&format!(
                "{what} of server {node} has other data: {before} and {copied}: {differing}"
            ));
        }
        world.end_copy();
        // What has expired is deleted meanwhile; SAVE has it or not.
        world.step(20 * MS);
        if what != "the append-only file" {
            world.ask(node, &["SAVE"]);
        }
    }
}

/// The first key that a server and its copy have not in common, for the message.
fn first_difference(world: &mut World, node: usize) -> String {
    for database in 0..16 {
        let database = database.to_string();
        let mut keys = Vec::new();
        for server in [node, COPY] {
            world.ask(server, &["SELECT", &database]);
            if let Some(Reply::Array(found)) = world.ask(server, &["KEYS", "*"]) {
                keys.extend(found);
            }
        }
        for key in keys {
            let Reply::Bulk(key) = key else { continue };
            let words = [&b"DEBUG"[..], b"DIGEST-VALUE", &key];
            let digests = [node, COPY].map(|server| world.ask(server, &words));
            if digests[0] != digests[1] {
                let dumps = [node, COPY].map(|server| {
                    let shown = world.ask(server, &[&b"DUMP"[..], &key]);
                    shown.map(|reply| reply.show().chars().take(400).collect::<String>())
                });
                let name = String::from_utf8_lossy(&key).into_owned();
                return format!("database {database}, key {name}: {dumps:?}");
            }
        }
    }
    "no key".into()
}

/// Each key of the copy is the same when it is dumped and restored.
fn dump_all(world: &mut World) {
    const RESTORED: &[u8] = b"\0restored";
    // A dump is an argument, which a value was not if it was made in parts.
    let limits = ["proto-max-bulk-len", "512mb", "client-query-buffer-limit", "1gb"];
    world.ask(COPY, &[&["CONFIG", "SET"], &limits[..]].concat());
    for database in 0..world.databases {
        world.ask(COPY, &["SELECT", &database.to_string()]);
        let Some(Reply::Array(keys)) = world.ask(COPY, &["KEYS", "*"]) else { continue };
        for key in keys {
            let Reply::Bulk(key) = key else { continue };
            let Some(Reply::Bulk(dump)) = world.ask(COPY, &[&b"DUMP"[..], &key]) else { continue };
            let Some(Reply::Integer(ms)) = world.ask(COPY, &[&b"PTTL"[..], &key]) else { continue };
            if (0..1000).contains(&ms) {
                // It may expire meanwhile.
                continue;
            }
            let ms = ms.max(0).to_string();
            let restored =
                world.ask(COPY, &[&b"RESTORE"[..], RESTORED, ms.as_bytes(), &dump, b"REPLACE"]);
            let name = String::from_utf8_lossy(&key).into_owned();
            if restored != Some(Reply::Simple(b"OK".to_vec())) {
                world.fail(&format!("{name} cannot be restored from its dump: {restored:?}"));
            }
            let digests = world.ask(COPY, &[&b"DEBUG"[..], b"DIGEST-VALUE", &key, RESTORED]);
            let Some(Reply::Array(digests)) = digests else { continue };
            if digests[0] != digests[1] {
                world.fail(&format!("{name} is not what was restored from its dump"));
            }
        }
        world.ask(COPY, &[&b"DEL"[..], RESTORED]);
    }
}
