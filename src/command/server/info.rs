//! INFO: the server's state as text, in sections of `field:value` lines.
//!
//! Sections, fields and their order are those of Redis 7.0, for monitoring tools; `latchkey_version` is ours. Fields
//! of features that do not exist here have the value of a server that does not use them.

use std::fmt::Write;

use crate::client::blocked::Cause;
use crate::client::{Client, ClientFlags};
use crate::config::{Choice, Compatibility, MaxmemoryPolicy, VALKEY_VERSION};
use crate::gate::evict::not_counted;
use crate::keyspace::locks::LockStats;
use crate::keyspace::waiting::Wanted;
use crate::keyspace::{Keyspace, KeyspaceStats};
use crate::pubsub::Kind;
use crate::replication::backlog::Backlog;
use crate::replication::following::{Following, Progress};
use crate::roles::{failover, replicas, restart};
use crate::state::context::{CommandResult, Context, Outcome};
use crate::state::persistence::Purpose;
use crate::state::spec::{Categories, CommandSpec, Flags, Group, spec};
use crate::state::table::Command;
use crate::state::{PauseCause, State};
use crate::stats::commands::CommandStats;
use crate::stats::{Counters, Rate};
use crate::sys::{alloc, build, jemalloc, machine};

pub const COMMANDS: &[CommandSpec] = &[spec("INFO", info)
    .at_least(1)
    .flags(Flags::LOADING_STALE)
    .categories(Categories::DANGEROUS)
    .group(Group::Server)
    .since("1.0.0")
    .tips(&["nondeterministic_output", "request_policy:all_shards", "response_policy:special"])
    .docs("[section [section ...]]", "Returns facts and statistics about the server.", "O(1)")];

/// Keys sampled for a database's average TTL.
const TTL_SAMPLES: usize = 32;

/// Appends a section's lines.
type WriteSection = fn(&mut String, &mut Keyspace, &State);

/// A section of the text.
struct Section {
    /// Lower case; the heading has a capital.
    name: &'static str,
    heading: &'static str,
    /// Shown if no section is requested.
    by_default: bool,
    write: WriteSection,
}

const fn section(name: &'static str, heading: &'static str, write: WriteSection) -> Section {
    Section { name, heading, by_default: true, write }
}

const SECTIONS: &[Section] = &[
    section("server", "Server", state),
    section("clients", "Clients", clients),
    section("memory", "Memory", memory),
    section("persistence", "Persistence", persistence),
    section("stats", "Stats", stats),
    section("replication", "Replication", replication),
    section("cpu", "CPU", cpu),
    section("modules", "Modules", |_, _, _| {}),
    Section { by_default: false, ..section("commandstats", "Commandstats", command_stats) },
    section("errorstats", "Errorstats", error_stats),
    Section { by_default: false, ..section("latencystats", "Latencystats", latency_stats) },
    section("locks", "Locks", locks),
    section("cluster", "Cluster", |out, _, _| line(out, "cluster_enabled", 0)),
    section("keyspace", "Keyspace", keyspace),
];

/// `INFO [section ...]`: text as a bulk string (RESP3: verbatim).
fn info(ctx: &mut Context<'_>) -> CommandResult {
    let asked = |word: &str| {
        ctx.args.iter_from(1).any(|argument| argument.eq_ignore_ascii_case(word.as_bytes()))
    };
    let all = asked("all") || asked("everything");
    let default = ctx.args.len() == 1 || asked("default");
    let mut text = String::new();
    for section in SECTIONS {
        if all || (default && section.by_default) || asked(section.name) {
            if !text.is_empty() {
                text.push_str("\r\n");
            }
            text.push_str(&format!("# {}\r\n", section.heading));
            (section.write)(&mut text, ctx.keyspace, ctx.state);
        }
    }
    ctx.reply.verbatim(b"txt", text.as_bytes());
    Ok(Outcome::Replied)
}

/// `CONFIG RESETSTAT`: resets all counters.
pub fn reset_stats(keyspace: &mut Keyspace, state: &mut State) {
    state.stats.counters = Counters::default();
    state.stats.command_stats.fill_with(CommandStats::default);
    state.stats.error_stats.clear();
    state.stats.commands_rate = Rate::default();
    state.stats.input_rate = Rate::default();
    state.stats.output_rate = Rate::default();
    state.stats.turns_rate = Rate::default();
    state.stats.turn_time = Rate::default();
    state.stats.timing.reset();
    keyspace.stats = KeyspaceStats::default();
    keyspace.locks.stats = LockStats::default();
    (keyspace.eviction.over_us, keyspace.eviction.over_since_us) = (0, None);
    keyspace.lazyfree.reset_freed();
    state.scripts.stats.evicted = 0;
}

fn line(out: &mut String, name: &str, value: impl std::fmt::Display) {
    let _ = write!(out, "{name}:{value}\r\n"); // cannot fail
}

/// A number of bytes, and the same in a readable unit.
fn bytes_line(out: &mut String, name: &str, bytes: usize) {
    line(out, name, bytes);
    line(out, &format!("{name}_human"), human_bytes(bytes));
}

/// Bytes in the largest unit with a non-zero whole part: `1.50K`.
pub(crate) fn human_bytes(bytes: usize) -> String {
    const UNITS: [char; 5] = ['K', 'M', 'G', 'T', 'P'];
    if bytes < 1024 {
        return format!("{bytes}B");
    }
    let power = (bytes.ilog2() / 10).min(5);
    let value = bytes as f64 / (1u64 << (10 * power)) as f64;
    format!("{value:.2}{}", UNITS[power as usize - 1])
}

fn state(out: &mut String, keyspace: &mut Keyspace, state: &State) {
    let identity = &state.process.identity;
    let uptime = (state.now.boot_us - identity.started_us).max(0) / 1_000_000;
    let version = String::from_utf8_lossy(&state.config.redis_version);
    line(out, "redis_version", version);
    if state.config.compatible_with.is_valkey() {
        line(out, "server_name", "valkey");
        line(out, "valkey_version", VALKEY_VERSION);
        line(out, "valkey_release_stage", "ga");
    }
    let (commit, is_modified) = build::commit();
    line(out, "redis_git_sha1", commit);
    line(out, "redis_git_dirty", is_modified);
    line(out, "redis_build_id", build::id());
    let mode = if state.config.compatible_with.is_valkey() { "server" } else { "redis" };
    line(out, &format!("{mode}_mode"), "standalone");
    line(out, "os", machine::system_name());
    line(out, "arch_bits", usize::BITS);
    line(out, "monotonic_clock", "POSIX clock_gettime");
    line(out, "multiplexing_api", if cfg!(target_os = "linux") { "epoll" } else { "kqueue" });
    line(out, "atomicvar_api", "c11-builtin");
    line(out, "gcc_version", "0.0.0");
    line(out, "process_id", std::process::id());
    line(out, "process_supervised", state.config.supervised);
    line(out, "run_id", &identity.run_id);
    line(out, "tcp_port", identity.port);
    line(out, "server_time_usec", state.now.wall_us);
    line(out, "uptime_in_seconds", uptime);
    line(out, "uptime_in_days", uptime / 86_400);
    line(out, "hz", state.config.hz);
    line(out, "configured_hz", state.config.hz);
    line(out, "lru_clock", keyspace.lru_clock());
    line(out, "executable", &identity.executable);
    let file = state.config.config_file.as_deref().unwrap_or(std::path::Path::new(""));
    line(out, "config_file", file.display());
    line(out, "io_threads_active", 0);
    if let Some(until_us) = state.process.shutdown.and_then(|order| order.waits_until_us) {
        line(out, "shutdown_in_milliseconds", (until_us - state.now.boot_us) / 1000);
    }
    listeners(out, state);
    line(out, "latchkey_version", build::VERSION);
}

/// The listeners, by kind and number as in Valkey.
fn listeners(out: &mut String, state: &State) {
    let config = &state.config;
    let addresses = config.bind.iter().map(|address| String::from_utf8_lossy(address));
    let bound: String = addresses.map(|address| format!(",bind={address}")).collect();
    let listens = |is_tls| {
        let mut listeners = state.net.listeners.iter();
        listeners.any(|listener| listener.local_address().is_some() && listener.is_tls() == is_tls)
    };
    if listens(false) {
        let port = state.process.identity.port;
        line(out, "listener0", format_args!("name=tcp{bound},port={port}"));
    }
    if !config.unixsocket.is_empty() {
        let path = String::from_utf8_lossy(&config.unixsocket);
        line(out, "listener1", format_args!("name=unix,bind={path}"));
    }
    if listens(true) {
        let port = state.process.identity.tls_port;
        line(out, "listener2", format_args!("name=tls{bound},port={port}"));
    }
}

fn clients(out: &mut String, keyspace: &mut Keyspace, state: &State) {
    let all = || state.clients.iter();
    let blocked = all()
        .filter(|client| client.flags.intersects(ClientFlags::SUSPENDED | ClientFlags::PAUSED))
        .count();
    let replicas = state.replication.replicas.len();
    line(out, "connected_clients", state.clients.len() - replicas);
    line(out, "cluster_connections", 0);
    line(out, "maxclients", state.config.maxclients);
    let input = all().map(|client| client.input.capacity()).max().unwrap_or(0);
    let output = all().map(|client| client.output.capacity()).max().unwrap_or(0);
    line(out, "client_recent_max_input_buffer", input);
    line(out, "client_recent_max_output_buffer", output);
    line(out, "blocked_clients", blocked);
    line(out, "tracking_clients", keyspace.tracking.clients());
    let is_valkey = state.config.compatible_with.is_valkey();
    let has_more = is_valkey || state.config.compatible_with == Compatibility::Redis8;
    if has_more {
        let subscribed = all().filter(|client| client.flags.contains(ClientFlags::SUBSCRIBED));
        let watching = all().filter_map(|client| client.watching.as_deref());
        line(out, "pubsub_clients", subscribed.count());
        let watching = watching.filter(|watching| watching.keys().next().is_some());
        line(out, "watching_clients", watching.count());
    }
    line(out, "clients_in_timeout_table", state.blocking.timing_out());
    if has_more {
        line(out, "total_watched_keys", keyspace.watch.keys());
    }
    line(out, "total_blocking_keys", keyspace.waiting.keys());
    line(out, "total_blocking_keys_on_nokey", keyspace.waiting.keys_awaited_on_end());
    if is_valkey {
        pauses(out, state);
    }
}

/// The held locks and the clients that wait for locks.
fn locks(out: &mut String, keyspace: &mut Keyspace, state: &State) {
    let now_us = state.now.boot_us;
    let (mut waiters, mut sem_waiters, mut waits_since_us) = (0, 0, now_us);
    for blocked in state.clients.iter().filter_map(|client| client.blocked.as_deref()) {
        match blocked.cause {
            Cause::Keys { wanted: Wanted::Lock, .. } => waiters += 1,
            Cause::Keys { wanted: Wanted::Semaphore, .. } => sem_waiters += 1,
            _ => continue,
        }
        waits_since_us = waits_since_us.min(blocked.since_us);
    }
    let held_since_us = keyspace.locks.oldest_us().unwrap_or(now_us);
    let stats = &keyspace.locks.stats;
    line(out, "locks_held", keyspace.locks.len());
    line(out, "lock_waiters", waiters);
    line(out, "lock_longest_wait_ms", (now_us - waits_since_us) / 1000);
    line(out, "lock_longest_hold_ms", (now_us - held_since_us) / 1000);
    line(out, "lock_grants_total", stats.grants);
    line(out, "lock_timeouts_total", stats.timeouts);
    line(out, "lock_expired_total", stats.expired);
    line(out, "lock_broken_total", stats.broken);
    line(out, "sem_waiters", sem_waiters);
}

/// Valkey's fields about the strictest pause.
fn pauses(out: &mut String, state: &State) {
    let causes = [
        (PauseCause::Asked, "client_pause"),
        (PauseCause::Shutdown, "shutdown_in_progress"),
        (PauseCause::Failover, "failover_in_progress"),
    ];
    let strictest = state.pauses.strictest();
    let reason = causes.iter().find(|(cause, _)| state.pauses.by(*cause) == strictest);
    let actions = strictest.map(|pause| if pause.writes_only { "write" } else { "all" });
    let until_us = strictest.map_or(0, |pause| pause.until_us);
    let left_us = until_us.saturating_sub(state.now.boot_us).max(0);
    line(out, "paused_reason", strictest.and(reason).map_or("none", |(_, name)| name));
    line(out, "paused_actions", actions.unwrap_or("none"));
    line(out, "paused_timeout_milliseconds", left_us / 1000);
}

/// Memory by use. Unit: bytes.
pub(crate) struct MemoryUse {
    pub used: usize,
    pub peak: usize,
    pub startup: usize,
    pub clients: usize,
    /// The replicas' part of the clients' memory.
    pub replicas: usize,
    /// The backlog's bytes, and those only kept for slow replicas.
    pub backlog: usize,
    pub replicas_behind: usize,
    /// What snapshots hold.
    pub snapshots: usize,
    /// The number and table bytes of each database with keys.
    pub tables: Vec<(usize, usize)>,
    pub keys: usize,
    pub allocator: jemalloc::AllocatorStats,
    pub resident: usize,
}

impl MemoryUse {
    pub fn measure(keyspace: &Keyspace, state: &State) -> Self {
        let used = alloc::allocated();
        let databases =
            (0..keyspace.databases()).filter(|&index| !keyspace.table_of(index).is_empty());
        MemoryUse {
            used,
            peak: state.stats.peak_memory.max(used),
            startup: state.stats.startup_memory,
            clients: state.clients.iter().map(Client::memory).sum(),
            replicas: state.replicas().map(|(client, _)| client.memory()).sum(),
            backlog: state.replication.backlog.as_ref().map_or(0, Backlog::memory),
            replicas_behind: match state.replication.replicas.is_empty() {
                true => 0,
                false => state.bytes_behind(),
            },
            snapshots: keyspace.held.bytes(),
            tables: databases.map(|index| (index, keyspace.table_of(index).memory())).collect(),
            keys: (0..keyspace.databases()).map(|index| keyspace.table_of(index).len()).sum(),
            allocator: jemalloc::stats(),
            resident: machine::resident_bytes(),
        }
    }

    /// Bytes that are not data: memory at the start, tables, clients, snapshots.
    pub fn overhead(&self) -> usize {
        let tables: usize = self.tables.iter().map(|(_, bytes)| bytes).sum();
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
pub(crate) fn ratio(large: usize, small: usize) -> f64 {
    if small == 0 { 0.0 } else { large as f64 / small as f64 }
}

/// The difference of two sizes.
pub(crate) fn excess(large: usize, small: usize) -> i64 {
    large as i64 - small as i64
}

fn policy_name(policy: MaxmemoryPolicy) -> &'static str {
    MaxmemoryPolicy::WORDS.iter().find(|(_, word)| *word == policy).map_or("", |(name, _)| name)
}

fn memory(out: &mut String, keyspace: &mut Keyspace, state: &State) {
    let memory = MemoryUse::measure(keyspace, state);
    let jemalloc::AllocatorStats { allocated, active, resident } = memory.allocator;
    let rss = memory.resident;
    let scripts = state.scripts.stats;
    bytes_line(out, "used_memory", memory.used);
    bytes_line(out, "used_memory_rss", rss);
    bytes_line(out, "used_memory_peak", memory.peak);
    line(out, "used_memory_peak_perc", format_args!("{:.2}%", memory.peak_percent()));
    line(out, "used_memory_overhead", memory.overhead());
    line(out, "used_memory_startup", memory.startup);
    line(out, "used_memory_dataset", memory.dataset());
    line(out, "used_memory_dataset_perc", format_args!("{:.2}%", memory.dataset_percent()));
    line(out, "allocator_allocated", allocated);
    line(out, "allocator_active", active);
    line(out, "allocator_resident", resident);
    bytes_line(out, "total_system_memory", machine::total_memory());
    line(out, "used_memory_lua", scripts.lua_bytes);
    line(out, "used_memory_vm_eval", scripts.lua_bytes);
    line(out, "used_memory_lua_human", human_bytes(scripts.lua_bytes));
    line(out, "used_memory_scripts_eval", scripts.scripts_bytes);
    line(out, "number_of_cached_scripts", scripts.scripts);
    line(out, "number_of_functions", scripts.functions);
    line(out, "number_of_libraries", scripts.libraries);
    line(out, "used_memory_vm_functions", 0);
    bytes_line(out, "used_memory_vm_total", scripts.lua_bytes);
    line(out, "used_memory_functions", scripts.libraries_bytes);
    bytes_line(out, "used_memory_scripts", scripts.scripts_bytes + scripts.libraries_bytes);
    bytes_line(out, "maxmemory", state.config.maxmemory as usize);
    line(out, "maxmemory_policy", policy_name(state.config.maxmemory_policy));
    for (name, large, small) in [
        ("allocator_frag", active, allocated),
        ("allocator_rss", resident, active),
        ("rss_overhead", rss, resident),
        ("mem_fragmentation", rss, memory.used),
    ] {
        line(out, &format!("{name}_ratio"), format_args!("{:.2}", ratio(large, small)));
        line(out, &format!("{name}_bytes"), excess(large, small));
    }
    line(out, "mem_not_counted_for_evict", not_counted(keyspace, state));
    line(out, "mem_replication_backlog", memory.backlog - memory.replicas_behind);
    line(out, "mem_total_replication_buffers", memory.backlog);
    line(out, "mem_clients_slaves", memory.replicas + memory.replicas_behind);
    line(out, "mem_clients_normal", memory.clients - memory.replicas);
    line(out, "mem_cluster_links", 0);
    line(out, "mem_aof_buffer", state.persistence.log().map_or(0, |log| log.buffer_memory()));
    let version = jemalloc::text("version").unwrap_or_default();
    let version = version.split('-').next().unwrap_or_default();
    line(out, "mem_allocator", format_args!("jemalloc-{version}"));
    line(out, "active_defrag_running", 0);
    line(out, "lazyfree_pending_objects", keyspace.lazyfree.pending());
    line(out, "lazyfreed_objects", keyspace.lazyfree.freed());
}

fn persistence(out: &mut String, keyspace: &mut Keyspace, state: &State) {
    let persistence = &state.persistence;
    let status = |failed: bool| if failed { "err" } else { "ok" };
    let under_way = persistence.under_way();
    // A snapshot for replicas counts as a save.
    let counted = |purpose| if purpose == Purpose::Sync { Purpose::Save } else { purpose };
    let running = |purpose: Purpose| under_way.filter(|(running, ..)| counted(*running) == purpose);
    let now_us = state.now.boot_us;
    let seconds =
        |purpose| running(purpose).map_or(-1, |(_, since, ..)| (now_us - since) / 1_000_000);
    let copied = if under_way.is_some() { keyspace.snapshot_copied() } else { 0 };
    let (done, total) = under_way.map_or((0, 0), |(_, _, done, total)| (done, total));
    let is_beside = persistence.loading.is_some_and(|loading| loading.is_beside);
    line(out, "loading", u8::from(persistence.loading.is_some() && !is_beside));
    line(out, "async_loading", u8::from(is_beside));
    line(out, "current_cow_peak", copied);
    line(out, "current_cow_size", copied);
    line(out, "current_cow_size_age", 0);
    let percent = if total > 0 { done as f64 * 100.0 / total as f64 } else { 0.0 };
    line(out, "current_fork_perc", format!("{percent:.2}"));
    line(out, "current_save_keys_processed", done);
    line(out, "current_save_keys_total", total);
    line(out, "rdb_changes_since_last_save", state.changes_since_save(keyspace));
    line(out, "rdb_bgsave_in_progress", u8::from(running(Purpose::Save).is_some()));
    line(out, "rdb_last_save_time", persistence.last_save_unix);
    line(out, "rdb_last_bgsave_status", status(persistence.last_save_failed));
    line(out, "rdb_last_bgsave_time_sec", persistence.last_save_seconds);
    line(out, "rdb_current_bgsave_time_sec", seconds(Purpose::Save));
    line(out, "rdb_saves", persistence.saves);
    line(out, "rdb_last_cow_size", persistence.last_save_copied);
    line(out, "rdb_last_load_keys_expired", persistence.keys_expired_at_load);
    line(out, "rdb_last_load_keys_loaded", persistence.keys_loaded);
    line(out, "aof_enabled", u8::from(persistence.is_aof_on()));
    line(out, "aof_rewrite_in_progress", u8::from(running(Purpose::Rewrite).is_some()));
    line(out, "aof_rewrite_scheduled", u8::from(persistence.rewrite_is_scheduled));
    line(out, "aof_last_rewrite_time_sec", persistence.last_rewrite_seconds);
    line(out, "aof_current_rewrite_time_sec", seconds(Purpose::Rewrite));
    line(out, "aof_last_bgrewrite_status", status(persistence.last_rewrite_failed));
    line(out, "aof_rewrites", persistence.rewrites);
    line(out, "aof_rewrites_consecutive_failures", persistence.rewrite_failures);
    let disk_error = persistence.log().and_then(|log| log.disk_error());
    line(out, "aof_last_write_status", status(disk_error.is_some()));
    line(out, "aof_last_cow_size", persistence.last_rewrite_copied);
    line(out, "module_fork_in_progress", 0);
    line(out, "module_fork_last_cow_size", 0);
    if let Some(log) = persistence.log() {
        line(out, "aof_current_size", log.current_size());
        line(out, "aof_base_size", log.base_size());
        line(out, "aof_pending_rewrite", u8::from(persistence.rewrite_is_scheduled));
        line(out, "aof_buffer_length", log.buffer_length());
        line(out, "aof_pending_bio_fsync", log.pending_fsync());
        line(out, "aof_delayed_fsync", log.delayed_fsync());
    }
    if let Some(loading) = persistence.loading {
        line(out, "loading_start_time", loading.started_unix);
        line(out, "loading_total_bytes", loading.total_bytes);
        line(out, "loading_rdb_used_mem", loading.memory_then);
        line(out, "loading_loaded_bytes", loading.loaded_bytes);
        let percent = loading.loaded_bytes as f64 * 100.0 / loading.total_bytes.max(1) as f64;
        line(out, "loading_loaded_perc", format!("{percent:.2}"));
        let elapsed = (state.now.unix_seconds() - loading.started_unix).max(0) as f64;
        let left = loading.total_bytes.saturating_sub(loading.loaded_bytes) as f64;
        // Unknown during the first second, as in Redis.
        let seconds =
            if elapsed > 0.0 { elapsed * left / (loading.loaded_bytes + 1) as f64 } else { 1.0 };
        line(out, "loading_eta_seconds", seconds as i64);
    }
}

fn stats(out: &mut String, keyspace: &mut Keyspace, state: &State) {
    let counters = &state.stats.counters;
    let kilobytes = |rate: &Rate| format!("{:.2}", rate.per_second() as f64 / 1024.0);
    line(out, "total_connections_received", counters.connections);
    line(out, "total_commands_processed", counters.commands);
    line(out, "instantaneous_ops_per_sec", state.stats.commands_rate.per_second());
    line(out, "total_net_input_bytes", counters.bytes_in);
    line(out, "total_net_output_bytes", counters.bytes_out);
    line(out, "total_net_repl_input_bytes", counters.replication_bytes_in);
    line(out, "total_net_repl_output_bytes", counters.replica_bytes_out);
    line(out, "instantaneous_input_kbps", kilobytes(&state.stats.input_rate));
    line(out, "instantaneous_output_kbps", kilobytes(&state.stats.output_rate));
    line(out, "instantaneous_input_repl_kbps", "0.00");
    line(out, "instantaneous_output_repl_kbps", "0.00");
    line(out, "rejected_connections", counters.rejected_connections);
    line(out, "sync_full", counters.full_syncs);
    line(out, "sync_partial_ok", counters.partial_syncs);
    line(out, "sync_partial_err", counters.partial_syncs_refused);
    line(out, "expired_keys", keyspace.stats.expired);
    line(out, "expired_fields", keyspace.stats.expired_fields);
    line(out, "expired_stale_perc", "0.00");
    line(out, "expired_time_cap_reached_count", counters.expired_slices_exhausted);
    line(out, "expire_cycle_cpu_milliseconds", 0);
    line(out, "evicted_keys", keyspace.stats.evicted);
    line(out, "evicted_clients", counters.evicted_clients);
    line(out, "evicted_scripts", state.scripts.stats.evicted);
    let since_us = keyspace.eviction.over_since_us;
    let over_us = since_us.map_or(0, |since_us| (state.now.boot_us - since_us).max(0) as u64);
    line(out, "total_eviction_exceeded_time", (keyspace.eviction.over_us + over_us) / 1000);
    line(out, "current_eviction_exceeded_time", over_us / 1000);
    line(out, "keyspace_hits", keyspace.stats.hits);
    line(out, "keyspace_misses", keyspace.stats.misses);
    line(out, "pubsub_channels", state.pubsub.count(Kind::Channel));
    line(out, "pubsub_patterns", state.pubsub.count(Kind::Pattern));
    line(out, "pubsubshard_channels", state.pubsub.count(Kind::Shard));
    line(out, "latest_fork_usec", 0);
    // Redis would fork for these.
    line(out, "total_forks", state.persistence.jobs);
    line(out, "migrate_cached_sockets", state.net.outgoing.len());
    line(out, "slave_expires_tracked_keys", keyspace.own_deadlines());
    for name in [
        "active_defrag_hits",
        "active_defrag_misses",
        "active_defrag_key_hits",
        "active_defrag_key_misses",
        "total_active_defrag_time",
        "current_active_defrag_time",
    ] {
        line(out, name, 0);
    }
    line(out, "tracking_total_keys", keyspace.tracking.keys());
    line(out, "tracking_total_items", keyspace.tracking.items());
    line(out, "tracking_total_prefixes", keyspace.tracking.prefixes());
    line(out, "unexpected_error_replies", counters.unexpected_error_replies);
    line(out, "total_error_replies", counters.error_replies);
    line(out, "dump_payload_sanitizations", 0);
    line(out, "total_reads_processed", counters.reads);
    line(out, "total_writes_processed", counters.writes);
    line(out, "io_threaded_reads_processed", 0);
    line(out, "io_threaded_writes_processed", 0);
    let disconnections = counters.query_buffer_limit_disconnections;
    line(out, "client_query_buffer_limit_disconnections", disconnections);
    let disconnections = counters.output_buffer_limit_disconnections;
    line(out, "client_output_buffer_limit_disconnections", disconnections);
    line(out, "reply_buffer_shrinks", 0);
    line(out, "reply_buffer_expands", 0);
    line(out, "eventloop_cycles", state.stats.timing.turns());
    line(out, "eventloop_duration_sum", state.stats.timing.turns_us());
    line(out, "eventloop_duration_cmd_sum", state.stats.timing.commands_us());
    line(out, "instantaneous_eventloop_cycles_per_sec", state.stats.turns_rate.per_second());
    line(out, "instantaneous_eventloop_duration_usec", state.stats.turn_time.per_second());
    line(out, "acl_access_denied_auth", counters.acl_denied_auth);
    line(out, "acl_access_denied_cmd", counters.acl_denied_cmd);
    line(out, "acl_access_denied_key", counters.acl_denied_key);
    line(out, "acl_access_denied_channel", counters.acl_denied_channel);
    line(out, "acl_access_denied_db", counters.acl_denied_db);
}

fn replication(out: &mut String, _: &mut Keyspace, state: &State) {
    let following = state.replication.following.as_deref();
    line(out, "role", if following.is_some() { "slave" } else { "master" });
    if let Some(following) = following {
        primary(out, state, following);
    }
    replicas_and_history(out, state);
}

/// The replicas, and the replication history and backlog.
fn replicas_and_history(out: &mut String, state: &State) {
    let (replication, config) = (&state.replication, &state.config);
    line(out, "connected_slaves", replication.replicas.len());
    let is_valkey = config.compatible_with.is_valkey();
    if config.min_replicas_to_write > 0 && config.min_replicas_max_lag > 0 {
        line(out, "min_slaves_good_slaves", replication.good_replicas);
    }
    for (index, (client, replica)) in state.replicas().enumerate() {
        let lag = replicas::lag_seconds(state, replica);
        line(
            out,
            &format!("slave{index}"),
            format_args!(
                "ip={},port={},state={},offset={},lag={lag}{}",
                client.replica_address(),
                replica.port,
                replica.stage_name(),
                replica.acknowledged.unwrap_or(0),
                if is_valkey { ",type=replica" } else { "" },
            ),
        );
    }
    if let Some(seconds) = restart::seconds_left(state) {
        line(out, "primary_restart_read_only_seconds_left", seconds);
    }
    if replication.restart.held_off_us.is_some() {
        line(out, "primary_lacks_data_of_replicas", 1);
    }
    if is_valkey {
        line(out, "replicas_waiting_psync", 0);
    }
    line(out, "master_failover_state", failover::state_name(state));
    line(out, "master_replid", &replication.id);
    let ancestor = replication.ancestor.as_ref();
    line(out, "master_replid2", ancestor.map_or(&*"0".repeat(40), |ancestor| &ancestor.id));
    line(out, "master_repl_offset", replication.offset);
    line(out, "second_repl_offset", ancestor.map_or(-1, |ancestor| ancestor.end as i64));
    let backlog = replication.backlog.as_ref();
    line(out, "repl_backlog_active", u8::from(backlog.is_some()));
    line(out, "repl_backlog_size", config.repl_backlog_size);
    line(out, "repl_backlog_first_byte_offset", backlog.map_or(0, Backlog::start));
    line(out, "repl_backlog_histlen", backlog.map_or(0, Backlog::len));
}

/// A replica's fields about its primary.
fn primary(out: &mut String, state: &State, following: &Following) {
    let config = &state.config;
    let seconds_since = |us: i64| (state.now.boot_us - us).max(0) / 1_000_000;
    let is_connected = following.is_connected();
    let is_syncing = following.progress == Progress::Sync;
    let offset = if following.knows_history { state.replication.offset } else { 1 };
    let heard = if is_connected { seconds_since(following.heard_us) } else { -1 };
    line(out, "master_host", String::from_utf8_lossy(&following.host));
    line(out, "master_port", following.port);
    line(out, "master_link_status", if is_connected { "up" } else { "down" });
    line(out, "master_last_io_seconds_ago", heard);
    line(out, "master_sync_in_progress", u8::from(is_syncing));
    line(out, "slave_read_repl_offset", offset + following.unapplied);
    line(out, "slave_repl_offset", offset);
    if is_syncing {
        let (total, read) = (following.transfer.total, following.transfer.read);
        let told = total.map_or(0, |total| total as i64);
        let percent = read as f64 * 100.0 / total.unwrap_or(0).max(1) as f64;
        line(out, "master_sync_total_bytes", told);
        line(out, "master_sync_read_bytes", read);
        line(out, "master_sync_left_bytes", told - read as i64);
        let percent = if told == 0 { 0.0 } else { percent };
        line(out, "master_sync_perc", format_args!("{percent:.2}"));
        line(out, "master_sync_last_io_seconds_ago", seconds_since(following.heard_us));
    }
    if !is_connected {
        let down = following.down_since_us.map_or(-1, seconds_since);
        line(out, "master_link_down_since_seconds", down);
    }
    line(out, "slave_priority", config.replica_priority);
    line(out, "slave_read_only", u8::from(config.replica_read_only));
    line(out, "replica_announced", u8::from(config.replica_announced));
}

fn cpu(out: &mut String, _: &mut Keyspace, _: &State) {
    let times = machine::cpu_times();
    for (name, seconds) in [
        ("used_cpu_sys", times.system),
        ("used_cpu_user", times.user),
        ("used_cpu_sys_children", times.system_children),
        ("used_cpu_user_children", times.user_children),
        ("used_cpu_sys_main_thread", times.system_thread),
        ("used_cpu_user_main_thread", times.user_thread),
    ] {
        line(out, name, format_args!("{seconds:.6}"));
    }
}

/// Commands that have statistics.
fn with_stats(state: &State) -> impl Iterator<Item = (&'static Command, &CommandStats)> {
    state.commands.commands.iter().zip(&state.stats.command_stats)
}

fn command_stats(out: &mut String, _: &mut Keyspace, state: &State) {
    for (command, stats) in with_stats(state) {
        if stats.calls + stats.rejected + stats.failed == 0 {
            continue;
        }
        let us = stats.nanoseconds / 1000;
        let per_call = if stats.calls == 0 { 0.0 } else { us as f64 / stats.calls as f64 };
        line(
            out,
            &format!("cmdstat_{}", command.full_name),
            format_args!(
                "calls={},usec={us},usec_per_call={per_call:.2},rejected_calls={},failed_calls={}",
                stats.calls, stats.rejected, stats.failed
            ),
        );
    }
}

fn error_stats(out: &mut String, _: &mut Keyspace, state: &State) {
    let mut errors: Vec<(&str, u64)> =
        state.stats.error_stats.iter().map(|(word, count)| (&**word, *count)).collect();
    errors.sort_unstable();
    for (word, count) in errors {
        line(out, &format!("errorstat_{word}"), format_args!("count={count}"));
    }
}

fn latency_stats(out: &mut String, _: &mut Keyspace, state: &State) {
    for (command, stats) in with_stats(state) {
        let Some(histogram) = &stats.histogram else {
            continue;
        };
        let percentiles = state.config.latency_tracking_info_percentiles.iter().map(|percent| {
            let us = histogram.percentile(*percent) as f64 / 1000.0;
            format!("p{percent}={us:.3}")
        });
        let percentiles = percentiles.collect::<Vec<_>>().join(",");
        line(out, &format!("latency_percentiles_usec_{}", command.full_name), percentiles);
    }
}

fn keyspace(out: &mut String, keyspace: &mut Keyspace, state: &State) {
    let now = keyspace.now();
    for index in 0..keyspace.databases() {
        let table = keyspace.table_of(index);
        if table.is_empty() {
            continue;
        }
        let (mut sum_ms, mut count) = (0i128, 0);
        table.sample(TTL_SAMPLES, true, |_, entry| {
            if let Some(deadline) = entry.deadline() {
                sum_ms += now.remaining_ms(deadline).max(0) as i128;
                count += 1;
            }
        });
        let average = if count == 0 { 0 } else { sum_ms / count };
        // Keys with expiring fields.
        let volatile = || keyspace.keys_with_field_deadlines(index);
        let more = match state.config.compatible_with {
            Compatibility::Redis70 | Compatibility::Redis72 => String::new(),
            Compatibility::Redis8 => format!(",subexpiry={}", volatile()),
            Compatibility::Valkey9 => format!(",keys_with_volatile_items={}", volatile()),
        };
        let (keys, expires) = (table.len(), table.volatile_len());
        line(
            out,
            &format!("db{index}"),
            format_args!("keys={keys},expires={expires},avg_ttl={average}{more}"),
        );
    }
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
