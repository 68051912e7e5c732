//! Section Replication: the role, the link to the primary, the replicas, and the history.

use super::Unit::{Bytes, One, Seconds};
use super::exposition::Exposition;
use super::{Reading, Row, Value, field, gauge, line};
use crate::cluster::node::NodeFlags;
use crate::config::Compatibility;
use crate::replication::backlog::Backlog;
use crate::replication::following::{Following, Progress};
use crate::roles::{failover, replicas, restart};
use crate::state::State;

#[rustfmt::skip]
pub const ROWS: &[Row] = &[
    field("role", |r| if r.core.state.replication.is_replica() { "slave" } else { "master" }.into()),
    Row::Lines(primary),
    Row::Samples(link),
    gauge("connected_slaves", "redis_connected_slaves", One, "Replicas.", |r| r.core.state.replication.replicas.len().into()),
    gauge("min_slaves_good_slaves", "redis_min_slaves_good_slaves", One, "Replicas that min-replicas-to-write counts.", min_slaves_good_slaves),
    Row::Lines(each_replica),
    Row::Samples(lags),
    gauge("primary_restart_read_only_seconds_left", "latchkey_primary_restart_read_only_left_seconds", Seconds,
        "How long replicas must stay until writes are accepted.", |r| restart::seconds_left(&r.core.state).into()),
    gauge("primary_lacks_data_of_replicas", "latchkey_primary_lacks_data_of_replicas", One, "Replicas have more data than this primary, and are sent none.",
        |r| r.core.state.replication.restart.held_off_us.map(|_| true).into()),
    field("replicas_waiting_psync", |r| r.core.state.config.compatible_with.is_valkey().then_some(0u64).into()),
    field("master_failover_state", |r| failover::state_name(&r.core.state).into()),
    field("master_replid", |r| r.core.state.replication.id.clone().into()),
    field("master_replid2", master_replid2),
    gauge("master_repl_offset", "redis_master_repl_offset", Bytes, "Bytes of the history.", |r| r.core.state.replication.offset.into()),
    gauge("second_repl_offset", "redis_second_repl_offset", Bytes, "Bytes of the history before the last change of roles, or -1.", second_repl_offset),
    gauge("repl_backlog_active", "redis_repl_backlog_is_active", One, "There is a backlog.", |r| r.core.state.replication.backlog.is_some().into()),
    gauge("repl_backlog_size", "redis_replication_backlog_bytes", Bytes, "repl-backlog-size.", |r| r.core.state.config.repl_backlog_size.into()),
    gauge("repl_backlog_first_byte_offset", "redis_repl_backlog_first_byte_offset", Bytes, "Where the backlog begins.",
        |r| r.core.state.replication.backlog.as_ref().map_or(0, Backlog::start).into()),
    gauge("repl_backlog_histlen", "redis_repl_backlog_history_bytes", Bytes, "Bytes of the backlog.",
        |r| r.core.state.replication.backlog.as_ref().map_or(0, Backlog::len).into()),
    gauge("", "redis_cluster_state", One, "1 if the cluster serves all slots, or there is none.",
        |r| r.core.state.node.cluster.as_ref().is_none_or(|cluster| cluster.is_ok()).into()),
    gauge("", "redis_cluster_slots_fail", One, "Slots of primaries that have failed.", |r| slots_of(&r.core.state, NodeFlags::FAIL).into()),
    gauge("", "redis_cluster_slots_pfail", One, "Slots of primaries that may have failed.", |r| slots_of(&r.core.state, NodeFlags::PFAIL).into()),
];

fn min_slaves_good_slaves(r: &Reading<'_>) -> Value {
    let config = &r.core.state.config;
    let counts = config.min_replicas_to_write > 0 && config.min_replicas_max_lag > 0;
    counts.then_some(r.core.state.replication.good_replicas).into()
}

fn master_replid2(r: &Reading<'_>) -> Value {
    let ancestor = r.core.state.replication.ancestor.as_ref();
    ancestor.map_or_else(|| "0".repeat(40), |ancestor| ancestor.id.clone()).into()
}

fn second_repl_offset(r: &Reading<'_>) -> Value {
    let ancestor = r.core.state.replication.ancestor.as_ref();
    ancestor.map_or(-1, |ancestor| ancestor.end as i64).into()
}

/// Slots of nodes with a flag.
fn slots_of(state: &State, flag: NodeFlags) -> usize {
    let nodes = state.node.cluster.iter().flat_map(|cluster| cluster.nodes());
    nodes.filter(|(_, node)| node.flags.contains(flag)).map(|(_, node)| node.slots.len()).sum()
}

/// Replicas with samples of their own.
const REPLICAS_MAX: usize = 1000;

/// A replica's fields about its primary.
fn primary(reading: &Reading<'_>, out: &mut String) {
    let state = &reading.core.state;
    let Some(following) = state.replication.following.as_deref() else { return };
    let config = &state.config;
    let seconds_since = |us: i64| (state.now.boot_us - us).max(0) / 1_000_000;
    let is_connected = following.is_connected();
    let is_syncing = following.progress == Progress::Sync;
    let offset = if following.knows_history { state.replication.offset } else { 1 };
    line(out, "master_host", String::from_utf8_lossy(&following.host));
    line(out, "master_port", following.port);
    line(out, "master_link_status", if is_connected { "up" } else { "down" });
    line(out, "master_last_io_seconds_ago", heard_seconds(reading, following));
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
        line(out, "master_sync_last_io_seconds_ago", seconds_since(following.last_sign_us));
    }
    let is_redis_8 = config.compatible_with == Compatibility::Redis8;
    if is_redis_8 {
        line(out, "master_current_sync_attempts", following.attempts_now);
        line(out, "master_total_sync_attempts", following.attempts);
    }
    if !is_connected {
        let down = following.down_since_us.map_or(-1, seconds_since);
        line(out, "master_link_down_since_seconds", down);
        if !following.failure.is_empty() {
            // Text of the primary may be part of it.
            let failure = following.failure.escape_debug();
            line(out, "latchkey_master_link_failure", failure);
        }
    } else if is_redis_8 {
        line(out, "master_link_up_since_seconds", seconds_since(following.up_since_us));
    }
    if is_redis_8 {
        let now_us = following.down_since_us.map_or(0, |since_us| state.now.boot_us - since_us);
        let seconds = (following.was_down_us + now_us).max(0) / 1_000_000;
        line(out, "total_disconnect_time_sec", seconds);
    }
    line(out, "slave_priority", config.replica_priority);
    line(out, "slave_read_only", u8::from(config.replica_read_only));
    line(out, "replica_announced", u8::from(config.replica_announced));
}

/// Seconds since the primary was heard; -1: the link is down.
fn heard_seconds(reading: &Reading<'_>, following: &Following) -> i64 {
    match following.is_connected() {
        true => (reading.core.state.now.boot_us - following.last_sign_us).max(0) / 1_000_000,
        false => -1,
    }
}

/// The figures of the link as metrics.
fn link(reading: &Reading<'_>, out: &mut Exposition) {
    let state = &reading.core.state;
    let Some(following) = state.replication.following.as_deref() else { return };
    let (host, port) = (String::from_utf8_lossy(&following.host), following.port.to_string());
    let labels = [("master_host", &*host), ("master_port", &*port)];
    let offset = if following.knows_history { state.replication.offset } else { 1 };
    for (name, help, value) in [
        (
            "redis_master_link_up",
            "The link to the primary is up.",
            f64::from(u8::from(following.is_connected())),
        ),
        (
            "redis_master_last_io_seconds_ago",
            "Seconds since the primary was heard, or -1.",
            heard_seconds(reading, following) as f64,
        ),
        (
            "redis_master_sync_in_progress",
            "The primary sends all data.",
            f64::from(u8::from(following.progress == Progress::Sync)),
        ),
        ("redis_slave_repl_offset", "Bytes of the history that have run here.", offset as f64),
    ] {
        out.family(name, "gauge", help);
        out.sample(name, &labels, value);
    }
    let config = &state.config;
    out.family("redis_slave_priority", "gauge", "replica-priority.");
    out.sample("redis_slave_priority", &[], f64::from(config.replica_priority));
    out.family("redis_slave_info", "gauge", "A replica, and of which primary.");
    let read_only = u8::from(config.replica_read_only).to_string();
    out.sample("redis_slave_info", &[labels[0], labels[1], ("read_only", &*read_only)], 1.0);
}

fn each_replica(reading: &Reading<'_>, out: &mut String) {
    let state = &reading.core.state;
    let is_valkey = state.config.compatible_with.is_valkey();
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
}

/// The lag of each replica, and its offset.
fn lags(reading: &Reading<'_>, out: &mut Exposition) {
    let state = &reading.core.state;
    let of_all = |out: &mut Exposition, name: &str, help: &str, value: &dyn Fn(usize) -> f64| {
        out.family(name, "gauge", help);
        for (index, (client, replica)) in state.replicas().take(REPLICAS_MAX).enumerate() {
            let (ip, port) = (client.replica_address(), replica.port.to_string());
            let labels =
                [("slave_ip", &*ip), ("slave_port", &*port), ("slave_state", replica.stage_name())];
            out.sample(name, &labels, value(index));
        }
    };
    if state.replication.replicas.is_empty() {
        return;
    }
    let all: Vec<_> = state
        .replicas()
        .take(REPLICAS_MAX)
        .map(|(_, replica)| {
            let offset = replica.acknowledged.unwrap_or(0);
            let lag_us = (state.now.boot_us - replica.acknowledged_us).max(0);
            let lag_us = if replica.is_online() { lag_us } else { 0 };
            (offset, replicas::lag_seconds(state, replica), lag_us)
        })
        .collect();
    let name = "redis_connected_slave_offset_bytes";
    of_all(out, name, "Bytes of the history that a replica has.", &|index| all[index].0 as f64);
    let name = "redis_connected_slave_lag_seconds";
    of_all(out, name, "Whole seconds since a replica was heard.", &|index| all[index].1 as f64);
    let name = "latchkey_replica_ack_lag_seconds";
    of_all(out, name, "Seconds since a replica was heard.", &|index| all[index].2 as f64 / 1e6);
}
