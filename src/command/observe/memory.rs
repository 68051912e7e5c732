//! MEMORY: memory use of keys and of the server.

use crate::collections::table::{Entry, ValueRef};
use crate::command::help::reply_help;
use crate::error::CommandError;
use crate::figures::memory::{MemoryUse, excess, ratio};
use crate::gate::evict;
use crate::state::context::{CommandResult, Context, Outcome};
use crate::state::spec::{CommandSpec, Flags, Group, Handler, KeyFlags, container, key, spec};
use crate::sys::{alloc, jemalloc};
use crate::types::Value;

const fn memory(name: &'static str, handler: Handler) -> CommandSpec {
    spec(name, handler).exactly(2).group(Group::Server).since("4.0.0")
}

const NONDETERMINISTIC: &[&str] =
    &["nondeterministic_output", "request_policy:all_shards", "response_policy:special"];

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    container("MEMORY", &[
        memory("DOCTOR", doctor).tips(NONDETERMINISTIC)
            .docs("", "Describes problems with memory in words.", "O(1)"),
        memory("HELP", help).flags(Flags::LOADING_STALE).docs("", "Explains MEMORY.", "O(1)"),
        memory("MALLOC-STATS", malloc_stats).tips(NONDETERMINISTIC)
            .docs("", "Returns the allocator's report.", "Depends on how much is allocated"),
        memory("PURGE", purge).tips(&["request_policy:all_shards", "response_policy:all_succeeded"])
            .docs("", "Returns unused memory to the system.", "Depends on how much is allocated"),
        memory("STATS", stats).tips(NONDETERMINISTIC)
            .docs("", "Returns details of the memory used.", "O(1)"),
        memory("USAGE", usage).at_least(3).flags(Flags::READONLY).keys(&[key(2, KeyFlags::RO)])
            .docs("key [SAMPLES count]", "Estimates the bytes a key and its value take.", "O(N), N being the number of samples"),
    ]).group(Group::Server).since("4.0.0")
        .docs("", "Commands about memory.", "Depends on the subcommand"),
];

/// A key's share of the table: 8 bytes in a bucket, at a load of four fifths.
const TABLE_SHARE: usize = 10;

/// Bytes of a key with its value and its share of the table.
fn bytes_of(entry: Entry<'_, Value>) -> usize {
    let object = match entry.value() {
        ValueRef::Bytes { .. } => 0,
        ValueRef::Object(value) => {
            let heap = value.heap_bytes();
            size_of::<Value>() + if heap == 0 { 0 } else { alloc::size_class(heap) }
        }
    };
    alloc::size_class(entry.allocated()) + object + TABLE_SHARE
}

/// `MEMORY USAGE key [SAMPLES count]`: bytes, or nil without such a key. The count is only checked:
/// sizes are known without sampling.
fn usage(ctx: &mut Context<'_>) -> CommandResult {
    let mut cursor = ctx.args.cursor(3);
    while !cursor.is_at_end() {
        if !cursor.take_word("SAMPLES") {
            return Err(CommandError::Syntax);
        }
        if cursor.take_integer()? < 0 {
            return Err(CommandError::Syntax);
        }
    }
    match ctx.core.keyspace.find(ctx.key(2)) {
        Some(slot) => ctx.reply.integer(bytes_of(ctx.core.keyspace.entry(slot)) as i64),
        None => ctx.reply.null(),
    }
    Ok(Outcome::Replied)
}

/// `MEMORY STATS`: a map of numbers.
fn stats(ctx: &mut Context<'_>) -> CommandResult {
    let memory = MemoryUse::measure(ctx.core);
    let jemalloc::AllocatorStats { allocated, active, resident } = memory.allocator;
    let reply = &mut ctx.reply;
    let per_key = match memory.keys {
        0 => 0,
        keys => memory.used.saturating_sub(memory.startup) / keys,
    };
    let before = [
        ("peak.allocated", memory.peak),
        ("total.allocated", memory.used),
        ("startup.allocated", memory.startup),
        ("replication.backlog", memory.backlog - memory.replicas_behind),
        ("clients.slaves", memory.replicas + memory.replicas_behind),
        ("clients.normal", memory.clients - memory.replicas),
        ("cluster.links", ctx.core.state.net.bus.memory()),
        ("aof.buffer", 0),
        ("lua.caches", ctx.core.state.scripts.stats.scripts_bytes),
        ("functions.caches", 0),
    ];
    let totals = [
        ("overhead.total", memory.overhead()),
        ("keys.count", memory.keys),
        ("keys.bytes-per-key", per_key),
        ("dataset.bytes", memory.dataset()),
    ];
    let shares = [
        ("dataset.percentage", memory.dataset_percent()),
        ("peak.percentage", memory.peak_percent()),
    ];
    let allocator = [
        ("allocator.allocated", allocated),
        ("allocator.active", active),
        ("allocator.resident", resident),
    ];
    let ratios = [
        ("allocator-fragmentation.ratio", "allocator-fragmentation.bytes", active, allocated),
        ("allocator-rss.ratio", "allocator-rss.bytes", resident, active),
        ("rss-overhead.ratio", "rss-overhead.bytes", memory.resident, resident),
        ("fragmentation", "fragmentation.bytes", memory.resident, memory.used),
    ];
    let numbers = before.len() + totals.len() + shares.len() + allocator.len();
    reply.map(numbers + 2 * ratios.len() + memory.tables.len());
    for (name, value) in before {
        reply.bulk(name.as_bytes());
        reply.integer(value as i64);
    }
    for (index, table, list) in &memory.tables {
        reply.bulk(format!("db.{index}").as_bytes());
        reply.map(3);
        reply.bulk(b"overhead.hashtable.main");
        reply.integer(*table as i64);
        // Deadlines are in the entries and the table's buckets.
        reply.bulk(b"overhead.hashtable.expires");
        reply.integer(0);
        reply.bulk(b"overhead.hashtable.slot-to-keys");
        reply.integer(*list as i64);
    }
    for (name, value) in totals {
        reply.bulk(name.as_bytes());
        reply.integer(value as i64);
    }
    for (name, value) in shares {
        reply.bulk(name.as_bytes());
        reply.double(value);
    }
    for (name, value) in allocator {
        reply.bulk(name.as_bytes());
        reply.integer(value as i64);
    }
    for (ratio_name, bytes_name, large, small) in ratios {
        reply.bulk(ratio_name.as_bytes());
        reply.double(ratio(large, small));
        reply.bulk(bytes_name.as_bytes());
        reply.integer(excess(large, small));
    }
    Ok(Outcome::Replied)
}

/// Below this memory use no diagnosis is made.
const DOCTOR_BYTES_MIN: usize = 5 << 20;
/// A smaller overhead is no problem.
const SURPLUS_MIN: i64 = 10 << 20;
/// Problematic average output per client.
const CLIENT_BYTES_MAX: usize = 200 << 10;

/// `MEMORY DOCTOR`: a human-readable report.
fn doctor(ctx: &mut Context<'_>) -> CommandResult {
    let memory = MemoryUse::measure(ctx.core);
    let report = diagnose(&memory, ctx.core.state.clients.len(), evict::cost_of_limit(ctx.core));
    ctx.reply.verbatim(b"txt", report.as_bytes());
    Ok(Outcome::Replied)
}

fn diagnose(memory: &MemoryUse, clients: usize, cost: Option<String>) -> String {
    if memory.used < DOCTOR_BYTES_MIN && cost.is_none() {
        return "This server holds next to nothing: there is too little to judge by.\n".into();
    }
    let jemalloc::AllocatorStats { allocated, active, resident } = memory.allocator;
    let wastes =
        |large, small, limit| ratio(large, small) > limit && excess(large, small) > SURPLUS_MIN;
    let findings = [
        (
            ratio(memory.peak, memory.used) > 1.5,
            "Peak: more than 150% of what is used now was in use once. The allocator may keep the \
             pages; they are used again as the data grows. MEMORY PURGE gives back what can be.",
        ),
        (
            wastes(memory.resident, memory.used, 1.4),
            "Resident memory: the process takes more than 1.4 times what it has allocated, after a \
             peak or because of fragmentation.",
        ),
        (
            wastes(active, allocated, 1.1),
            "Fragmentation: the allocator's pages are filled to less than nine tenths.",
        ),
        (
            wastes(resident, active, 1.1),
            "Unused pages: the allocator keeps pages nobody uses. MEMORY PURGE gives them back.",
        ),
        (
            wastes(memory.resident, resident, 1.1),
            "Other memory: more than a tenth of the process is not the allocator's.",
        ),
        (
            memory.clients / clients.max(1) > CLIENT_BYTES_MAX,
            "Client buffers: clients hold more than 200 KB each on average. CLIENT LIST shows \
             whose output waits.",
        ),
    ];
    let found: Vec<String> = findings
        .iter()
        .filter(|(is_so, _)| *is_so)
        .map(|(_, text)| (*text).to_owned())
        .chain(cost.map(|text| format!("Limit: {text}")))
        .map(|text| format!(" * {text}\n\n"))
        .collect();
    if found.is_empty() {
        return "No trouble with memory was found.\n".into();
    }
    format!("This was found:\n\n{}", found.concat())
}

/// `MEMORY MALLOC-STATS`: jemalloc's report.
fn malloc_stats(ctx: &mut Context<'_>) -> CommandResult {
    ctx.reply.verbatim(b"txt", &jemalloc::report());
    Ok(Outcome::Replied)
}

/// `MEMORY PURGE`: OK.
fn purge(ctx: &mut Context<'_>) -> CommandResult {
    if !jemalloc::purge() {
        return Err(CommandError::Text("ERR Error purging dirty pages"));
    }
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// `MEMORY HELP`: an array of lines.
fn help(ctx: &mut Context<'_>) -> CommandResult {
    reply_help(
        ctx,
        &[
            "DOCTOR",
            "    Describe problems with memory in words.",
            "MALLOC-STATS",
            "    Return the allocator's own report.",
            "PURGE",
            "    Return unused memory to the system.",
            "STATS",
            "    Return details of the memory used.",
            "USAGE <key> [SAMPLES <count>]",
            "    Return the bytes that <key> and its value take. In a large collection",
            "    <count> elements are measured (default: 5, 0 means all).",
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn healthy() -> MemoryUse {
        let mb = 1 << 20;
        MemoryUse {
            used: 100 * mb,
            peak: 110 * mb,
            startup: mb,
            clients: 0,
            replicas: 0,
            backlog: 0,
            replicas_behind: 0,
            snapshots: 0,
            tables: Vec::new(),
            keys: 1000,
            allocator: jemalloc::AllocatorStats {
                allocated: 100 * mb,
                active: 105 * mb,
                resident: 110 * mb,
            },
            resident: 115 * mb,
        }
    }

    #[test]
    fn the_doctor_names_what_is_wrong_and_nothing_else() {
        assert_eq!(diagnose(&healthy(), 1, None), "No trouble with memory was found.\n");
        let peak = MemoryUse { peak: 200 << 20, ..healthy() };
        assert!(diagnose(&peak, 1, None).contains("* Peak"));
        let clients = MemoryUse { clients: 50 << 20, ..healthy() };
        assert!(diagnose(&clients, 1, None).contains("* Client buffers"));
        assert!(!diagnose(&clients, 1000, None).contains("* Client buffers"));
        let empty = MemoryUse { used: 1000, ..healthy() };
        assert!(diagnose(&empty, 0, None).contains("next to nothing"));
    }
}
