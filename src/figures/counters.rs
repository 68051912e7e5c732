//! Section Stats: counts since the start or the last CONFIG RESETSTAT, and rates.

use super::{Reading, Row, Unit, Value, counter, field, gauge};
use crate::config::Compatibility;
use crate::pubsub::Kind;
use crate::stats::Rate;

pub const ROWS: &[Row] = &[
    counter(
        "total_connections_received",
        "redis_connections_received_total",
        Unit::One,
        "Connections of clients.",
        |r| r.core.state.stats.counters.connections.into(),
    ),
    counter(
        "total_commands_processed",
        "redis_commands_processed_total",
        Unit::One,
        "Commands that have run.",
        |r| r.core.state.stats.counters.commands.into(),
    ),
    gauge(
        "instantaneous_ops_per_sec",
        "redis_instantaneous_ops_per_sec",
        Unit::One,
        "Commands in the last second.",
        |r| r.core.state.stats.commands_rate.per_second().into(),
    ),
    counter(
        "total_net_input_bytes",
        "redis_net_input_bytes_total",
        Unit::Bytes,
        "Bytes read from clients.",
        |r| r.core.state.stats.counters.bytes_in.into(),
    ),
    counter(
        "total_net_output_bytes",
        "redis_net_output_bytes_total",
        Unit::Bytes,
        "Bytes written to clients.",
        |r| {
            let counters = &r.core.state.stats.counters;
            (counters.bytes_out + counters.slot_bytes_out).into()
        },
    ),
    counter(
        "total_net_repl_input_bytes",
        "redis_net_repl_input_bytes_total",
        Unit::Bytes,
        "Bytes read from the primary.",
        |r| r.core.state.stats.counters.replication_bytes_in.into(),
    ),
    counter(
        "total_net_repl_output_bytes",
        "redis_net_repl_output_bytes_total",
        Unit::Bytes,
        "Bytes written to replicas.",
        |r| r.core.state.stats.counters.replica_bytes_out.into(),
    ),
    field("total_net_cluster_slot_import_bytes", |r| {
        let state = &r.core.state;
        let bytes = state.stats.counters.slot_bytes_in;
        state.config.compatible_with.is_valkey().then_some(bytes).into()
    }),
    field("total_net_cluster_slot_export_bytes", |r| {
        let state = &r.core.state;
        let bytes = state.stats.counters.slot_bytes_out;
        state.config.compatible_with.is_valkey().then_some(bytes).into()
    }),
    gauge(
        "instantaneous_input_kbps",
        "redis_instantaneous_input_kbps",
        Unit::One,
        "Kilobytes that came from clients in the last second.",
        |r| kilobytes(&r.core.state.stats.input_rate),
    ),
    gauge(
        "instantaneous_output_kbps",
        "redis_instantaneous_output_kbps",
        Unit::One,
        "Kilobytes that went to clients in the last second.",
        |r| kilobytes(&r.core.state.stats.output_rate),
    ),
    field("instantaneous_input_repl_kbps", |_| "0.00".into()),
    field("instantaneous_output_repl_kbps", |_| "0.00".into()),
    counter(
        "rejected_connections",
        "redis_rejected_connections_total",
        Unit::One,
        "Connections refused for maxclients or protected mode.",
        |r| r.core.state.stats.counters.rejected_connections.into(),
    ),
    gauge("sync_full", "redis_replica_resyncs_full", Unit::One, "Replicas sent all data.", |r| {
        r.core.state.stats.counters.full_syncs.into()
    }),
    gauge(
        "sync_partial_ok",
        "redis_replica_partial_resync_accepted",
        Unit::One,
        "Replicas that could continue at their offset.",
        |r| r.core.state.stats.counters.partial_syncs.into(),
    ),
    gauge(
        "sync_partial_err",
        "redis_replica_partial_resync_denied",
        Unit::One,
        "Replicas that could not continue at their offset.",
        |r| r.core.state.stats.counters.partial_syncs_refused.into(),
    ),
    counter("expired_keys", "redis_expired_keys_total", Unit::One, "Keys that expired.", |r| {
        r.core.keyspace.stats.expired.into()
    }),
    field("expired_subkeys", |r| {
        let is_redis_8 = r.core.state.config.compatible_with == Compatibility::Redis8;
        is_redis_8.then_some(r.core.keyspace.stats.expired_fields).into()
    }),
    counter(
        "expired_fields",
        "redis_expired_fields_total",
        Unit::One,
        "Fields of hashes that expired.",
        |r| r.core.keyspace.stats.expired_fields.into(),
    ),
    gauge(
        "expired_stale_perc",
        "redis_expired_stale_percentage",
        Unit::Percent,
        "Always 0: no key stays after it has expired.",
        |_| Value::Decimal(0.0, 2),
    ),
    gauge(
        "expired_time_cap_reached_count",
        "redis_expired_time_cap_reached_total",
        Unit::One,
        "Turns in which more keys were due than a turn deletes.",
        |r| r.core.state.stats.counters.expired_slices_exhausted.into(),
    ),
    field("expire_cycle_cpu_milliseconds", |_| 0u64.into()),
    counter(
        "evicted_keys",
        "redis_evicted_keys_total",
        Unit::One,
        "Keys evicted for memory.",
        |r| r.core.keyspace.stats.evicted.into(),
    ),
    counter(
        "evicted_clients",
        "redis_evicted_clients_total",
        Unit::One,
        "Clients closed for maxmemory-clients.",
        |r| r.core.state.stats.counters.evicted_clients.into(),
    ),
    counter(
        "evicted_scripts",
        "redis_evicted_scripts_total",
        Unit::One,
        "Cached scripts that made room for others.",
        |r| r.core.state.scripts.stats.evicted.into(),
    ),
    counter(
        "total_eviction_exceeded_time",
        "redis_eviction_exceeded_time_ms_total",
        Unit::Milliseconds,
        "Time above maxmemory.",
        |r| ((r.core.keyspace.eviction.over_us + over_us(r)) / 1000).into(),
    ),
    gauge(
        "current_eviction_exceeded_time",
        "redis_current_eviction_exceeded_time_ms",
        Unit::Milliseconds,
        "Time above maxmemory, up to now.",
        |r| (over_us(r) / 1000).into(),
    ),
    counter(
        "keyspace_hits",
        "redis_keyspace_hits_total",
        Unit::One,
        "Look-ups that found their key.",
        |r| r.core.keyspace.stats.hits.into(),
    ),
    counter(
        "keyspace_misses",
        "redis_keyspace_misses_total",
        Unit::One,
        "Look-ups that found no key.",
        |r| r.core.keyspace.stats.misses.into(),
    ),
    gauge("pubsub_channels", "redis_pubsub_channels", Unit::One, "Channels with clients.", |r| {
        r.core.state.pubsub.count(Kind::Channel).into()
    }),
    gauge("pubsub_patterns", "redis_pubsub_patterns", Unit::One, "Patterns with clients.", |r| {
        r.core.state.pubsub.count(Kind::Pattern).into()
    }),
    gauge(
        "pubsubshard_channels",
        "redis_pubsubshard_channels",
        Unit::One,
        "Shard channels with clients.",
        |r| r.core.state.pubsub.count(Kind::Shard).into(),
    ),
    gauge("latest_fork_usec", "redis_latest_fork_usec", Unit::Microseconds, "Always 0.", |_| {
        0u64.into()
    }),
    gauge("", "redis_latest_fork_seconds", Unit::Seconds, "Always 0.", |_| 0u64.into()),
    // Redis would fork for these jobs.
    counter("total_forks", "redis_forks_total", Unit::One, "Background jobs begun.", |r| {
        r.core.state.persistence.jobs.into()
    }),
    gauge(
        "migrate_cached_sockets",
        "redis_migrate_cached_sockets_total",
        Unit::One,
        "Connections kept for MIGRATE.",
        |r| (r.core.state.net.lines.kept() + r.core.state.net.outgoing.len()).into(),
    ),
    gauge(
        "slave_expires_tracked_keys",
        "redis_slave_expires_tracked_keys",
        Unit::One,
        "Keys that a writable replica expires itself.",
        |r| r.core.keyspace.own_deadlines().into(),
    ),
    gauge("active_defrag_hits", "redis_defrag_hits", Unit::One, "Always 0.", |_| 0u64.into()),
    gauge("active_defrag_misses", "redis_defrag_misses", Unit::One, "Always 0.", |_| 0u64.into()),
    gauge("active_defrag_key_hits", "redis_defrag_key_hits", Unit::One, "Always 0.", |_| {
        0u64.into()
    }),
    gauge("active_defrag_key_misses", "redis_defrag_key_misses", Unit::One, "Always 0.", |_| {
        0u64.into()
    }),
    field("total_active_defrag_time", |_| 0u64.into()),
    field("current_active_defrag_time", |_| 0u64.into()),
    gauge(
        "tracking_total_keys",
        "redis_tracking_total_keys",
        Unit::One,
        "Keys at which tracking clients are listed.",
        |r| r.core.keyspace.tracking.keys().into(),
    ),
    gauge(
        "tracking_total_items",
        "redis_tracking_total_items",
        Unit::One,
        "Clients listed at keys, in all.",
        |r| r.core.keyspace.tracking.items().into(),
    ),
    gauge(
        "tracking_total_prefixes",
        "redis_tracking_total_prefixes",
        Unit::One,
        "Prefixes that clients track.",
        |r| r.core.keyspace.tracking.prefixes().into(),
    ),
    counter(
        "unexpected_error_replies",
        "redis_unexpected_error_replies",
        Unit::One,
        "Commands of the primary that failed here.",
        |r| r.core.state.stats.counters.unexpected_error_replies.into(),
    ),
    counter(
        "total_error_replies",
        "redis_total_error_replies",
        Unit::One,
        "Errors that clients were sent.",
        |r| r.core.state.stats.counters.error_replies.into(),
    ),
    counter(
        "dump_payload_sanitizations",
        "redis_dump_payload_sanitizations",
        Unit::One,
        "Always 0.",
        |_| 0u64.into(),
    ),
    counter(
        "total_reads_processed",
        "redis_total_reads_processed",
        Unit::One,
        "Reads from clients.",
        |r| r.core.state.stats.counters.reads.into(),
    ),
    counter(
        "total_writes_processed",
        "redis_total_writes_processed",
        Unit::One,
        "Writes to clients.",
        |r| r.core.state.stats.counters.writes.into(),
    ),
    counter(
        "io_threaded_reads_processed",
        "redis_io_threaded_reads_processed",
        Unit::One,
        "Always 0.",
        |_| 0u64.into(),
    ),
    counter(
        "io_threaded_writes_processed",
        "redis_io_threaded_writes_processed",
        Unit::One,
        "Always 0.",
        |_| 0u64.into(),
    ),
    counter(
        "client_query_buffer_limit_disconnections",
        "redis_client_query_buffer_limit_disconnections_total",
        Unit::One,
        "Clients closed for client-query-buffer-limit.",
        |r| r.core.state.stats.counters.query_buffer_limit_disconnections.into(),
    ),
    counter(
        "client_output_buffer_limit_disconnections",
        "redis_client_output_buffer_limit_disconnections_total",
        Unit::One,
        "Clients closed for client-output-buffer-limit.",
        |r| r.core.state.stats.counters.output_buffer_limit_disconnections.into(),
    ),
    field("reply_buffer_shrinks", |_| 0u64.into()),
    field("reply_buffer_expands", |_| 0u64.into()),
    counter(
        "eventloop_cycles",
        "redis_eventloop_cycles_total",
        Unit::One,
        "Turns of the loop.",
        |r| r.core.state.stats.timing.turns().into(),
    ),
    counter(
        "eventloop_duration_sum",
        "redis_eventloop_duration_sum_usec_total",
        Unit::Microseconds,
        "Time of all turns, without the waits between them.",
        |r| r.core.state.stats.timing.turns_us().into(),
    ),
    counter(
        "eventloop_duration_cmd_sum",
        "redis_eventloop_duration_cmd_sum_usec_total",
        Unit::Microseconds,
        "Time of all commands.",
        |r| r.core.state.stats.timing.commands_us().into(),
    ),
    gauge(
        "instantaneous_eventloop_cycles_per_sec",
        "redis_instantaneous_eventloop_cycles_per_sec",
        Unit::One,
        "Turns in a second, of late.",
        |r| r.core.state.stats.turns_rate.per_second().into(),
    ),
    gauge(
        "instantaneous_eventloop_duration_usec",
        "redis_instantaneous_eventloop_duration_usec",
        Unit::Microseconds,
        "Time of a turn, of late.",
        |r| r.core.state.stats.turn_time.per_second().into(),
    ),
    counter(
        "acl_access_denied_auth",
        "redis_acl_access_denied_auth_total",
        Unit::One,
        "Wrong passwords.",
        |r| r.core.state.stats.counters.acl_denied_auth.into(),
    ),
    counter(
        "acl_access_denied_cmd",
        "redis_acl_access_denied_cmd_total",
        Unit::One,
        "Commands that their user may not run.",
        |r| r.core.state.stats.counters.acl_denied_cmd.into(),
    ),
    counter(
        "acl_access_denied_key",
        "redis_acl_access_denied_key_total",
        Unit::One,
        "Commands with keys that their user may not use.",
        |r| r.core.state.stats.counters.acl_denied_key.into(),
    ),
    counter(
        "acl_access_denied_channel",
        "redis_acl_access_denied_channel_total",
        Unit::One,
        "Commands with channels that their user may not use.",
        |r| r.core.state.stats.counters.acl_denied_channel.into(),
    ),
    field("acl_access_denied_db", |r| r.core.state.stats.counters.acl_denied_db.into()),
];

fn kilobytes(rate: &Rate) -> Value {
    Value::Decimal(rate.per_second() as f64 / 1024.0, 2)
}

/// The time for which memory has been above its limit.
fn over_us(reading: &Reading<'_>) -> u64 {
    let since_us = reading.core.keyspace.eviction.over_since_us;
    since_us.map_or(0, |since_us| (reading.core.state.now.boot_us - since_us).max(0) as u64)
}
