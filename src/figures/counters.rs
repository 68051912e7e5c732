//! Section Stats: counts since the start or the last CONFIG RESETSTAT, and rates.

use super::Unit::{Bytes, Microseconds, Milliseconds, One, Percent, Seconds};
use super::{Reading, Row, Value, counter, field, gauge};
use crate::config::Compatibility;
use crate::pubsub::Kind;
use crate::stats::Rate;

#[rustfmt::skip]
pub const ROWS: &[Row] = &[
    counter("total_connections_received", "redis_connections_received_total", One, "Connections of clients.", |r| r.counters().connections.into()),
    counter("total_commands_processed", "redis_commands_processed_total", One, "Commands that have run.", |r| r.counters().commands.into()),
    gauge("instantaneous_ops_per_sec", "redis_instantaneous_ops_per_sec", One, "Commands in the last second.",
        |r| r.core.state.stats.commands_rate.per_second().into()),
    counter("total_net_input_bytes", "redis_net_input_bytes_total", Bytes, "Bytes read from clients.", |r| r.counters().bytes_in.into()),
    counter("total_net_output_bytes", "redis_net_output_bytes_total", Bytes, "Bytes written to clients.",
        |r| (r.counters().bytes_out + r.counters().slot_bytes_out).into()),
    counter("total_net_repl_input_bytes", "redis_net_repl_input_bytes_total", Bytes, "Bytes read from the primary.",
        |r| r.counters().replication_bytes_in.into()),
    counter("total_net_repl_output_bytes", "redis_net_repl_output_bytes_total", Bytes, "Bytes written to replicas.", |r| r.counters().replica_bytes_out.into()),
    field("total_net_cluster_slot_import_bytes", total_net_cluster_slot_import_bytes),
    field("total_net_cluster_slot_export_bytes", total_net_cluster_slot_export_bytes),
    gauge("instantaneous_input_kbps", "redis_instantaneous_input_kbps", One, "Kilobytes that came from clients in the last second.",
        |r| kilobytes(&r.core.state.stats.input_rate)),
    gauge("instantaneous_output_kbps", "redis_instantaneous_output_kbps", One, "Kilobytes that went to clients in the last second.",
        |r| kilobytes(&r.core.state.stats.output_rate)),
    field("instantaneous_input_repl_kbps", |_| "0.00".into()),
    field("instantaneous_output_repl_kbps", |_| "0.00".into()),
    counter("rejected_connections", "redis_rejected_connections_total", One, "Connections refused for maxclients or protected mode.",
        |r| r.counters().rejected_connections.into()),
    gauge("sync_full", "redis_replica_resyncs_full", One, "Replicas sent all data.", |r| r.counters().full_syncs.into()),
    gauge("sync_partial_ok", "redis_replica_partial_resync_accepted", One, "Replicas that could continue at their offset.",
        |r| r.counters().partial_syncs.into()),
    gauge("sync_partial_err", "redis_replica_partial_resync_denied", One, "Replicas that could not continue at their offset.",
        |r| r.counters().partial_syncs_refused.into()),
    counter("expired_keys", "redis_expired_keys_total", One, "Keys that expired.", |r| r.core.keyspace.stats.expired.into()),
    field("expired_keys_active", |r| of_redis_8(r, r.core.keyspace.stats.expired_actively)),
    field("expired_subkeys", |r| of_redis_8(r, r.core.keyspace.stats.expired_fields)),
    field("expired_subkeys_active", |r| of_redis_8(r, r.core.keyspace.stats.expired_fields_actively)),
    counter("expired_fields", "redis_expired_fields_total", One, "Fields of hashes that expired.", |r| r.core.keyspace.stats.expired_fields.into()),
    gauge("expired_stale_perc", "redis_expired_stale_percentage", Percent, "Always 0: no key stays after it has expired.", |_| Value::Decimal(0.0, 2)),
    gauge("expired_time_cap_reached_count", "redis_expired_time_cap_reached_total", One, "Turns in which more keys were due than a turn deletes.",
        |r| r.counters().expired_slices_exhausted.into()),
    field("expire_cycle_cpu_milliseconds", |_| 0u64.into()),
    counter("evicted_keys", "redis_evicted_keys_total", One, "Keys evicted for memory.", |r| r.core.keyspace.stats.evicted.into()),
    gauge("blessed_keys", "redis_blessed_keys", One, "Keys that are never evicted (BLESS).", |r| (r.core.keyspace.blessed_len() as u64).into()),
    counter("evicted_clients", "redis_evicted_clients_total", One, "Clients closed for maxmemory-clients.", |r| r.counters().evicted_clients.into()),
    counter("evicted_scripts", "redis_evicted_scripts_total", One, "Cached scripts that made room for others.", |r| r.core.state.scripts.stats.evicted.into()),
    counter("total_eviction_exceeded_time", "redis_eviction_exceeded_time_ms_total", Milliseconds, "Time above maxmemory.",
        |r| ((r.core.keyspace.eviction.over_us + over_us(r)) / 1000).into()),
    gauge("current_eviction_exceeded_time", "redis_current_eviction_exceeded_time_ms", Milliseconds, "Time above maxmemory, up to now.",
        |r| (over_us(r) / 1000).into()),
    counter("keyspace_hits", "redis_keyspace_hits_total", One, "Look-ups that found their key.", |r| r.core.keyspace.stats.hits.into()),
    counter("keyspace_misses", "redis_keyspace_misses_total", One, "Look-ups that found no key.", |r| r.core.keyspace.stats.misses.into()),
    gauge("pubsub_channels", "redis_pubsub_channels", One, "Channels with clients.", |r| r.core.state.pubsub.count(Kind::Channel).into()),
    gauge("pubsub_patterns", "redis_pubsub_patterns", One, "Patterns with clients.", |r| r.core.state.pubsub.count(Kind::Pattern).into()),
    gauge("pubsubshard_channels", "redis_pubsubshard_channels", One, "Shard channels with clients.", |r| r.core.state.pubsub.count(Kind::Shard).into()),
    gauge("latest_fork_usec", "redis_latest_fork_usec", Microseconds, "Always 0.", |_| 0u64.into()),
    gauge("", "redis_latest_fork_seconds", Seconds, "Always 0.", |_| 0u64.into()),
    // Redis would fork for these jobs.
    counter("total_forks", "redis_forks_total", One, "Background jobs begun.", |r| r.core.state.persistence.jobs.into()),
    gauge("migrate_cached_sockets", "redis_migrate_cached_sockets_total", One, "Connections kept for MIGRATE.",
        |r| r.core.state.net.lines.kept().into()),
    gauge("slave_expires_tracked_keys", "redis_slave_expires_tracked_keys", One, "Keys that a writable replica expires itself.",
        |r| r.core.keyspace.own_deadlines().into()),
    gauge("active_defrag_hits", "redis_defrag_hits", One, "Always 0.", |_| 0u64.into()),
    gauge("active_defrag_misses", "redis_defrag_misses", One, "Always 0.", |_| 0u64.into()),
    gauge("active_defrag_key_hits", "redis_defrag_key_hits", One, "Always 0.", |_| 0u64.into()),
    gauge("active_defrag_key_misses", "redis_defrag_key_misses", One, "Always 0.", |_| 0u64.into()),
    field("total_active_defrag_time", |_| 0u64.into()),
    field("current_active_defrag_time", |_| 0u64.into()),
    gauge("tracking_total_keys", "redis_tracking_total_keys", One, "Keys at which tracking clients are listed.", |r| r.core.keyspace.tracking.keys().into()),
    gauge("tracking_total_items", "redis_tracking_total_items", One, "Clients listed at keys, in all.", |r| r.core.keyspace.tracking.items().into()),
    gauge("tracking_total_prefixes", "redis_tracking_total_prefixes", One, "Prefixes that clients track.", |r| r.core.keyspace.tracking.prefixes().into()),
    counter("unexpected_error_replies", "redis_unexpected_error_replies", One, "Commands of the primary that failed here.",
        |r| r.counters().unexpected_error_replies.into()),
    counter("total_error_replies", "redis_total_error_replies", One, "Errors that clients were sent.", |r| r.counters().error_replies.into()),
    counter("dump_payload_sanitizations", "redis_dump_payload_sanitizations", One, "Always 0.", |_| 0u64.into()),
    counter("total_reads_processed", "redis_total_reads_processed", One, "Reads from clients.", |r| r.counters().reads.into()),
    counter("total_writes_processed", "redis_total_writes_processed", One, "Writes to clients.", |r| r.counters().writes.into()),
    counter("io_threaded_reads_processed", "redis_io_threaded_reads_processed", One, "Always 0.", |_| 0u64.into()),
    counter("io_threaded_writes_processed", "redis_io_threaded_writes_processed", One, "Always 0.", |_| 0u64.into()),
    counter("client_query_buffer_limit_disconnections", "redis_client_query_buffer_limit_disconnections_total", One,
        "Clients closed for client-query-buffer-limit.", |r| r.counters().query_buffer_limit_disconnections.into()),
    counter("client_output_buffer_limit_disconnections", "redis_client_output_buffer_limit_disconnections_total", One,
        "Clients closed for client-output-buffer-limit.", |r| r.counters().output_buffer_limit_disconnections.into()),
    field("reply_buffer_shrinks", |_| 0u64.into()),
    field("reply_buffer_expands", |_| 0u64.into()),
    counter("eventloop_cycles", "redis_eventloop_cycles_total", One, "Turns of the loop.", |r| r.core.state.stats.timing.turns().into()),
    counter("eventloop_duration_sum", "redis_eventloop_duration_sum_usec_total", Microseconds, "Time of all turns, without the waits between them.",
        |r| r.core.state.stats.timing.turns_us().into()),
    counter("eventloop_duration_cmd_sum", "redis_eventloop_duration_cmd_sum_usec_total", Microseconds, "Time of all commands.",
        |r| r.core.state.stats.timing.commands_us().into()),
    gauge("instantaneous_eventloop_cycles_per_sec", "redis_instantaneous_eventloop_cycles_per_sec", One, "Turns in a second, of late.",
        |r| r.core.state.stats.turns_rate.per_second().into()),
    gauge("instantaneous_eventloop_duration_usec", "redis_instantaneous_eventloop_duration_usec", Microseconds, "Time of a turn, of late.",
        |r| r.core.state.stats.turn_time.per_second().into()),
    counter("acl_access_denied_auth", "redis_acl_access_denied_auth_total", One, "Wrong passwords.", |r| r.counters().acl_denied_auth.into()),
    counter("acl_access_denied_cmd", "redis_acl_access_denied_cmd_total", One, "Commands that their user may not run.", |r| r.counters().acl_denied_cmd.into()),
    counter("acl_access_denied_key", "redis_acl_access_denied_key_total", One, "Commands with keys that their user may not use.",
        |r| r.counters().acl_denied_key.into()),
    counter("acl_access_denied_channel", "redis_acl_access_denied_channel_total", One, "Commands with channels that their user may not use.",
        |r| r.counters().acl_denied_channel.into()),
    field("acl_access_denied_db", |r| r.counters().acl_denied_db.into()),
];

fn total_net_cluster_slot_import_bytes(r: &Reading<'_>) -> Value {
    let state = &r.core.state;
    let bytes = state.stats.counters.slot_bytes_in;
    state.config.compatible_with.is_valkey().then_some(bytes).into()
}

fn total_net_cluster_slot_export_bytes(r: &Reading<'_>) -> Value {
    let state = &r.core.state;
    let bytes = state.stats.counters.slot_bytes_out;
    state.config.compatible_with.is_valkey().then_some(bytes).into()
}

/// A count that only Redis 8 shows.
fn of_redis_8(r: &Reading<'_>, count: u64) -> Value {
    let is_redis_8 = r.core.state.config.compatible_with == Compatibility::Redis8;
    is_redis_8.then_some(count).into()
}

fn kilobytes(rate: &Rate) -> Value {
    Value::Decimal(rate.per_second() as f64 / 1024.0, 2)
}

/// The time for which memory has been above its limit.
fn over_us(reading: &Reading<'_>) -> u64 {
    let since_us = reading.core.keyspace.eviction.over_since_us;
    since_us.map_or(0, |since_us| (reading.core.state.now.boot_us - since_us).max(0) as u64)
}
