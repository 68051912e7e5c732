//! Section Clients: their number, and the causes of their waits.

use super::Unit::{Bytes, One};
use super::exposition::Exposition;
use super::{Reading, Row, Value, by_client, field, gauge};
use crate::client::{Client, ClientFlags};
use crate::config::Compatibility;
use crate::state::{PauseCause, State};

#[rustfmt::skip]
pub const ROWS: &[Row] = &[
    gauge("connected_clients", "redis_connected_clients", One, "Clients but replicas.",
        |r| (r.core.state.clients.len() - r.core.state.replication.replicas.len()).into()),
    gauge("cluster_connections", "redis_cluster_connections", One, "Connections of the cluster's bus.", |r| r.core.state.net.bus.len().into()),
    gauge("maxclients", "redis_config_maxclients", One, "Clients that there may be.", |r| r.core.state.config.maxclients.into()),
    by_client("client_recent_max_input_buffer", Bytes, "The largest input.",
        |r| r.core.state.clients.iter().map(|client| client.input.capacity()).max().unwrap_or(0).into()),
    by_client("client_recent_max_output_buffer", Bytes, "The largest output.",
        |r| r.core.state.clients.iter().map(|client| client.output.capacity()).max().unwrap_or(0).into()),
    gauge("blocked_clients", "redis_blocked_clients", One, "Clients that wait in a command, or for the end of a pause.",
        |r| r.core.state.clients.suspended().into()),
    gauge("tracking_clients", "redis_tracking_clients", One, "Clients that are told of changes.", |r| r.core.keyspace.tracking.clients().into()),
    by_client("pubsub_clients", One, "Clients with subscriptions.",
        |r| of_later(&r.core.state, || { count(r, |client| client.flags.contains(ClientFlags::SUBSCRIBED)) })),
    by_client("watching_clients", One, "Clients that watch keys.", watching_clients),
    gauge("clients_in_timeout_table", "redis_clients_in_timeout_table", One, "Clients that wait with a timeout.",
        |r| r.core.state.waits.timing_out().into()),
    field("total_watched_keys", |r| of_later(&r.core.state, || r.core.keyspace.watch.keys().into())),
    gauge("", "redis_total_watched_keys", One, "Keys that clients watch.", |r| r.core.keyspace.watch.keys().into()),
    gauge("total_blocking_keys", "redis_total_blocking_keys", One, "Keys that clients wait for.", |r| r.core.keyspace.waiting.keys().into()),
    by_client("total_blocking_keys_on_nokey", One, "Keys whose end clients wait for.", |r| r.core.keyspace.waiting.keys_awaited_on_end().into()),
    field("paused_reason", |r| of_valkey(&r.core.state, || pause(&r.core.state).reason.into())),
    field("paused_actions", |r| of_valkey(&r.core.state, || pause(&r.core.state).actions.into())),
    field("paused_timeout_milliseconds", paused_timeout_milliseconds),
    Row::Samples(blocked_by_command),
];

fn watching_clients(r: &Reading<'_>) -> Value {
    let watches = |client: &Client| {
        let watching = client.watching.as_deref();
        watching.is_some_and(|watching| watching.keys().next().is_some())
    };
    of_later(&r.core.state, || count(r, watches))
}

fn paused_timeout_milliseconds(r: &Reading<'_>) -> Value {
    let left_us = pause(&r.core.state).until_us.saturating_sub(r.core.state.now.boot_us).max(0);
    of_valkey(&r.core.state, || (left_us / 1000).into())
}

fn count(reading: &Reading<'_>, is_counted: impl Fn(&Client) -> bool) -> Value {
    reading.core.state.clients.iter().filter(|client| is_counted(client)).count().into()
}

/// A field that Redis 8 and Valkey have.
fn of_later(state: &State, value: impl FnOnce() -> Value) -> Value {
    match state.config.compatible_with {
        Compatibility::Redis8 | Compatibility::Valkey9 => value(),
        _ => Value::Absent,
    }
}

/// A field that only Valkey has.
fn of_valkey(state: &State, value: impl FnOnce() -> Value) -> Value {
    if state.config.compatible_with.is_valkey() { value() } else { Value::Absent }
}

/// The strictest pause, as INFO shows it.
struct ShownPause {
    reason: &'static str,
    actions: &'static str,
    /// Boot-time clock, microseconds.
    until_us: i64,
}

fn pause(state: &State) -> ShownPause {
    let causes = [
        (PauseCause::Asked, "client_pause"),
        (PauseCause::Shutdown, "shutdown_in_progress"),
        (PauseCause::Failover, "failover_in_progress"),
        (PauseCause::ClusterFailover, "failover_in_progress"),
        (PauseCause::Promotion, "failover_in_progress"),
    ];
    let strictest = state.pauses.strictest();
    if let Some(pause) = strictest {
        let found = causes.iter().find(|(cause, _)| state.pauses.by(*cause) == strictest);
        let actions = if pause.writes_only { "write" } else { "all" };
        let reason = found.map_or("none", |(_, name)| name);
        return ShownPause { reason, actions, until_us: pause.until_us };
    }
    // A pause of only the slots that are about to move.
    let ends_ms = state.node.moves.jobs.0.iter().map(|job| job.pause_end_ms);
    match ends_ms.max().filter(|_| state.moving.is_pausing()) {
        Some(end_ms) => ShownPause {
            reason: "slot_migration_in_progress",
            actions: "write",
            until_us: end_ms.saturating_mul(1000),
        },
        None => ShownPause { reason: "none", actions: "none", until_us: 0 },
    }
}

fn blocked_by_command(reading: &Reading<'_>, out: &mut Exposition) {
    let name = "latchkey_blocked_clients";
    out.family(name, "gauge", "Clients that wait in a command.");
    for (command, count) in reading.core.state.waits.by_command() {
        let command = reading.core.state.commands.get(command);
        out.sample(name, &[("command", &command.full_name)], count as f64);
    }
}
