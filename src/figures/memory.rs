//! Section Memory: the allocator's view, the system's, and the uses of memory.

use super::Unit::{Bytes, One, Percent, Ratio};
use super::{Reading, Row, Value, by_client, field, gauge};
use crate::client::Client;
use crate::cluster::action::Action;
use crate::config::Compatibility;
use crate::figures::server::policy_name;
use crate::gate::evict::not_counted;
use crate::keyspace::DbIndex;
use crate::replication::backlog::Backlog;
use crate::state::{Core, State};
use crate::sys::{alloc, jemalloc, machine};

#[rustfmt::skip]
pub const ROWS: &[Row] = &[
    gauge("used_memory", "redis_memory_used_bytes", Bytes, "Bytes allocated.", |r| Value::Bytes(r.used())),
    gauge("used_memory_rss", "redis_memory_used_rss_bytes", Bytes, "Bytes that the system has given.", |r| Value::Bytes(r.resident())),
    gauge("used_memory_peak", "redis_memory_used_peak_bytes", Bytes, "The most bytes allocated so far.", |r| Value::Bytes(r.peak())),
    field("used_memory_peak_time", used_memory_peak_time),
    field("used_memory_peak_perc", |r| Value::Percent(percent(r.used(), r.peak()))),
    by_client("used_memory_overhead", Bytes, "Bytes that are no data.", |r| r.memory().overhead().into()),
    gauge("used_memory_startup", "redis_memory_used_startup_bytes", Bytes, "Bytes allocated after the start.", |r| r.core.state.stats.startup_memory.into()),
    by_client("used_memory_dataset", Bytes, "Bytes of data.", |r| r.memory().dataset().into()),
    by_client("used_memory_dataset_perc", Percent, "Bytes of data.", |r| Value::Percent(r.memory().dataset_percent())),
    gauge("allocator_allocated", "redis_allocator_allocated_bytes", Bytes, "Bytes allocated, as the allocator counts them.",
        |r| r.allocator().allocated.into()),
    gauge("allocator_active", "redis_allocator_active_bytes", Bytes, "Bytes of pages in use.", |r| r.allocator().active.into()),
    gauge("allocator_resident", "redis_allocator_resident_bytes", Bytes, "Bytes of pages that the allocator keeps.", |r| r.allocator().resident.into()),
    gauge("total_system_memory", "redis_total_system_memory_bytes", Bytes, "Bytes of memory that the machine has.", |_| Value::Bytes(machine::total_memory())),
    gauge("used_memory_lua", "redis_memory_used_lua_bytes", Bytes, "Bytes that Lua holds.", |r| r.core.state.scripts.stats.lua_bytes.into()),
    field("used_memory_vm_eval", |r| r.core.state.scripts.stats.lua_bytes.into()),
    field("used_memory_lua_human", |r| human_bytes(r.core.state.scripts.stats.lua_bytes).into()),
    gauge("used_memory_scripts_eval", "redis_memory_used_scripts_eval_bytes", Bytes, "Bytes of cached scripts.",
        |r| r.core.state.scripts.stats.scripts_bytes.into()),
    gauge("number_of_cached_scripts", "redis_number_of_cached_scripts", One, "Cached scripts.", |r| r.core.state.scripts.stats.scripts.into()),
    gauge("number_of_functions", "redis_number_of_functions", One, "Functions.", |r| r.core.state.scripts.stats.functions.into()),
    gauge("number_of_libraries", "redis_number_of_libraries", One, "Libraries.", |r| r.core.state.scripts.stats.libraries.into()),
    field("used_memory_vm_functions", |_| 0u64.into()),
    field("used_memory_vm_total", |r| Value::Bytes(r.core.state.scripts.stats.lua_bytes)),
    gauge("used_memory_functions", "redis_memory_used_functions_bytes", Bytes, "Bytes of libraries.", |r| r.core.state.scripts.stats.libraries_bytes.into()),
    gauge("used_memory_scripts", "redis_memory_used_scripts_bytes", Bytes, "Bytes of scripts and libraries.",
        |r| Value::Bytes(r.core.state.scripts.stats.scripts_bytes + r.core.state.scripts.stats.libraries_bytes)),
    gauge("maxmemory", "redis_memory_max_bytes", Bytes, "maxmemory; 0: no limit.", |r| Value::Bytes(r.core.state.config.maxmemory as usize)),
    gauge("", "redis_config_maxmemory", Bytes, "maxmemory; 0: no limit.", |r| r.core.state.config.maxmemory.into()),
    field("maxmemory_policy", |r| policy_name(r.core.state.config.maxmemory_policy).into()),
    gauge("allocator_frag_ratio", "redis_allocator_frag_ratio", Ratio, "Pages in use by bytes allocated.",
        |r| two_digits(r.allocator().active, r.allocator().allocated)),
    gauge("allocator_frag_bytes", "redis_allocator_frag_bytes", Bytes, "Bytes of pages in use that are not allocated.",
        |r| excess(r.allocator().active, r.allocator().allocated).into()),
    gauge("allocator_rss_ratio", "redis_allocator_rss_ratio", Ratio, "Pages kept by pages in use.",
        |r| two_digits(r.allocator().resident, r.allocator().active)),
    gauge("allocator_rss_bytes", "redis_allocator_rss_bytes", Bytes, "Bytes of pages kept that are not in use.",
        |r| excess(r.allocator().resident, r.allocator().active).into()),
    field("rss_overhead_ratio", |r| two_digits(r.resident(), r.allocator().resident)),
    field("rss_overhead_bytes", |r| excess(r.resident(), r.allocator().resident).into()),
    gauge("mem_fragmentation_ratio", "redis_mem_fragmentation_ratio", Ratio, "Memory of the system by bytes allocated.",
        |r| two_digits(r.resident(), r.used())),
    gauge("", "redis_memory_fragmentation_ratio", Ratio, "The same, as redis-mixin calls it.", |r| two_digits(r.resident(), r.used())),
    gauge("mem_fragmentation_bytes", "redis_mem_fragmentation_bytes", Bytes, "Memory of the system less bytes allocated.",
        |r| excess(r.resident(), r.used()).into()),
    gauge("mem_not_counted_for_evict", "redis_mem_not_counted_for_eviction_bytes", Bytes, "Bytes that maxmemory ignores.", |r| not_counted(r.core).into()),
    field("mem_replication_backlog", |r| (backlog(&r.core.state) - behind(&r.core.state)).into()),
    gauge("mem_total_replication_buffers", "redis_mem_total_replication_buffers_bytes", Bytes, "Bytes of the stream kept for replicas.",
        |r| backlog(&r.core.state).into()),
    by_client("mem_clients_slaves", Bytes, "Bytes of replicas.", |r| (r.memory().replicas + r.memory().replicas_behind).into()),
    by_client("mem_clients_normal", Bytes, "Bytes of other clients.", |r| (r.memory().clients - r.memory().replicas).into()),
    field("mem_cluster_links", mem_cluster_links),
    field("mem_cluster_slot_import", mem_cluster_slot_import),
    field("mem_cluster_slot_export", mem_cluster_slot_export),
    gauge("mem_aof_buffer", "redis_mem_aof_buffer_bytes", Bytes, "Bytes of the append-only file's buffer.",
        |r| r.core.state.persistence.log().map_or(0, |log| log.buffer_memory()).into()),
    field("mem_allocator", mem_allocator),
    gauge("active_defrag_running", "redis_active_defrag_running", One, "Always 0.", |_| 0u64.into()),
    gauge("lazyfree_pending_objects", "redis_lazyfree_pending_objects", One, "Values that a thread has still to free.",
        |r| r.core.keyspace.lazyfree.pending().into()),
    gauge("lazyfreed_objects", "redis_lazyfreed_objects", One, "Values that a thread has freed.", |r| r.core.keyspace.lazyfree.freed().into()),
];

fn used_memory_peak_time(r: &Reading<'_>) -> Value {
    let is_redis_8 = r.core.state.config.compatible_with == Compatibility::Redis8;
    let at = match r.used() > r.core.state.stats.peak_memory {
        true => r.core.state.now.unix_seconds(),
        false => r.core.state.stats.peak_memory_unix,
    };
    is_redis_8.then_some(at).into()
}

fn mem_cluster_links(r: &Reading<'_>) -> Value {
    // Messages that leave at the end of this turn are included.
    let unsent = r.core.state.node.actions.iter().map(|action| match action {
        Action::Send { message, .. } => message.len(),
        _ => 0,
    });
    (r.core.state.net.bus.memory() + unsent.sum::<usize>()).into()
}

fn mem_cluster_slot_import(r: &Reading<'_>) -> Value {
    let State { node, clients, config, .. } = &r.core.state;
    let sources = node.moves.imports.values().filter_map(|import| clients.get(import.client));
    let bytes = sources.map(|client| client.memory() as u64).sum::<u64>();
    config.compatible_with.is_valkey().then_some(bytes).into()
}

fn mem_cluster_slot_export(r: &Reading<'_>) -> Value {
    let State { node, config, .. } = &r.core.state;
    config.compatible_with.is_valkey().then(|| node.moves.bytes_behind() as u64).into()
}

fn mem_allocator(_: &Reading<'_>) -> Value {
    let version = jemalloc::text("version").unwrap_or_default();
    format!("jemalloc-{}", version.split('-').next().unwrap_or_default()).into()
}

fn two_digits(large: usize, small: usize) -> Value {
    Value::Decimal(ratio(large, small), 2)
}

/// Bytes of the backlog.
fn backlog(state: &State) -> usize {
    state.replication.backlog.as_ref().map_or(0, Backlog::memory)
}

/// The bytes of the backlog that are only kept for slow replicas.
fn behind(state: &State) -> usize {
    if state.replication.replicas.is_empty() { 0 } else { state.bytes_behind() }
}

/// Bytes in the largest unit with a non-zero whole part: `1.50K`.
pub fn human_bytes(bytes: usize) -> String {
    const UNITS: [char; 5] = ['K', 'M', 'G', 'T', 'P'];
    if bytes < 1024 {
        return format!("{bytes}B");
    }
    let power = (bytes.ilog2() / 10).min(5);
    let value = bytes as f64 / (1u64 << (10 * power)) as f64;
    format!("{value:.2}{}", UNITS[power as usize - 1])
}

/// Memory by use. Unit: bytes.
pub struct MemoryUse {
    pub used: usize,
    pub peak: usize,
    pub startup: usize,
    pub clients: usize,
    /// The replicas' part of the clients' memory.
    pub replicas: usize,
    /// The backlog's bytes, and those only kept for slow replicas.
    pub backlog: usize,
    pub replicas_behind: usize,
    /// Bytes held by snapshots.
    pub snapshots: usize,
    /// Of each database with keys: its number, and the bytes of its table and of the list of its
    /// hash slots' keys.
    pub tables: Vec<(DbIndex, usize, usize)>,
    pub keys: usize,
    pub allocator: jemalloc::AllocatorStats,
    pub resident: usize,
}

impl MemoryUse {
    pub fn measure(core: &Core) -> Self {
        let used = alloc::allocated();
        let databases = DbIndex::all(core.keyspace.databases())
            .filter(|&index| !core.keyspace.table_of(index).is_empty());
        MemoryUse {
            used,
            peak: core.state.stats.peak_memory.max(used),
            startup: core.state.stats.startup_memory,
            clients: core.state.clients.iter().map(Client::memory).sum(),
            replicas: core.state.replicas().map(|(client, _)| client.memory()).sum(),
            backlog: core.state.replication.backlog.as_ref().map_or(0, Backlog::memory),
            replicas_behind: match core.state.replication.replicas.is_empty() {
                true => 0,
                false => core.state.bytes_behind(),
            },
            snapshots: core.keyspace.held.bytes(),
            tables: databases
                .map(|database| {
                    let table = core.keyspace.table_of(database);
                    (database, table.memory(), table.slot_list_memory())
                })
                .collect(),
            keys: core.keyspace.keys_in_all(),
            allocator: jemalloc::stats(),
            resident: machine::resident_bytes(),
        }
    }

    /// Bytes that are not data: memory at the start, tables, clients, snapshots.
    pub fn overhead(&self) -> usize {
        let tables: usize = self.tables.iter().map(|(_, table, list)| table + list).sum();
        self.startup + tables + self.clients + self.backlog + self.snapshots
    }

    pub fn dataset(&self) -> usize {
        self.used.saturating_sub(self.overhead())
    }

    /// The data's share of the memory allocated since the start, in percent.
    pub fn dataset_percent(&self) -> f64 {
        percent(self.dataset(), self.used.saturating_sub(self.startup))
    }

    pub fn peak_percent(&self) -> f64 {
        percent(self.used, self.peak)
    }
}

fn percent(part: usize, whole: usize) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 }
}

/// The ratio of two sizes; 0 if the second is 0.
pub fn ratio(large: usize, small: usize) -> f64 {
    if small == 0 { 0.0 } else { large as f64 / small as f64 }
}

/// The difference of two sizes.
pub fn excess(large: usize, small: usize) -> i64 {
    large as i64 - small as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_shown_in_the_largest_unit_that_fits() {
        for (bytes, shown) in [
            (0, "0B"),
            (1023, "1023B"),
            (1024, "1.00K"),
            (1_064_512, "1.02M"),
            (25_276_510_208, "23.54G"),
            (usize::MAX, "16384.00P"),
        ] {
            assert_eq!(human_bytes(bytes), shown);
        }
    }
}
