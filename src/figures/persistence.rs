//! Section Persistence: saving, the append-only file, loading.

use super::Unit::{Bytes, One, Seconds, UnixSeconds};
use super::exposition::Exposition;
use super::{Reading, Row, Value, counter, field, gauge};
use crate::cluster::slot_job::Phase;
use crate::persist::aof::log::AppendLog;
use crate::state::persistence::{Loading, Purpose};

#[rustfmt::skip]
pub const ROWS: &[Row] = &[
    gauge("loading", "redis_loading_dump_file", One, "The data is being loaded.", |r| loading(r).is_some_and(|loading| !loading.is_beside).into()),
    gauge("async_loading", "redis_async_loading", One, "A replica loads new data beside the old.",
        |r| loading(r).is_some_and(|loading| loading.is_beside).into()),
    field("current_cow_peak", |r| copied(r).into()),
    gauge("current_cow_size", "redis_current_cow_size_bytes", Bytes, "Bytes copied for the running job.", |r| copied(r).into()),
    field("current_cow_size_age", |_| 0u64.into()),
    field("current_fork_perc", current_fork_perc),
    gauge("current_save_keys_processed", "redis_current_save_keys_processed", One, "Keys that the running job has written.", |r| keys_saved(r).0.into()),
    gauge("current_save_keys_total", "redis_current_save_keys_total", One, "Keys that the running job writes.", |r| keys_saved(r).1.into()),
    gauge("rdb_changes_since_last_save", "redis_rdb_changes_since_last_save", One, "Changes since the last save.",
        |r| r.core.state.changes_since_save(&r.core.keyspace).into()),
    gauge("rdb_bgsave_in_progress", "redis_rdb_bgsave_in_progress", One, "A save is running.", |r| since(r, Purpose::Save).is_some().into()),
    gauge("rdb_last_save_time", "redis_rdb_last_save_timestamp_seconds", UnixSeconds, "When the last save succeeded.",
        |r| r.core.state.persistence.saves.last_unix.into()),
    gauge("rdb_last_bgsave_status", "redis_rdb_last_bgsave_status", One, "The last save succeeded.",
        |r| Value::IsFine(!r.core.state.persistence.saves.has_failed)),
    gauge("rdb_last_bgsave_time_sec", "redis_rdb_last_bgsave_duration_sec", Seconds, "Time of the last save.",
        |r| r.core.state.persistence.saves.last_seconds.into()),
    gauge("rdb_current_bgsave_time_sec", "redis_rdb_current_bgsave_duration_sec", Seconds, "Time of the running save, or -1.", |r| seconds(r, Purpose::Save)),
    counter("rdb_saves", "redis_rdb_saves_total", One, "Saves.", |r| r.core.state.persistence.saves.count.into()),
    gauge("rdb_last_cow_size", "redis_rdb_last_cow_size_bytes", Bytes, "Bytes copied for the last save.",
        |r| r.core.state.persistence.saves.last_copied.into()),
    gauge("rdb_last_load_keys_expired", "redis_last_load_keys_expired", One, "Keys of the loaded file that had expired.",
        |r| r.core.state.persistence.loads.expired.into()),
    gauge("rdb_last_load_keys_loaded", "redis_last_load_keys_loaded", One, "Keys of the loaded file.", |r| r.core.state.persistence.loads.keys.into()),
    gauge("aof_enabled", "redis_aof_enabled", One, "The append-only file is on.", |r| r.core.state.persistence.is_aof_on().into()),
    gauge("aof_rewrite_in_progress", "redis_aof_rewrite_in_progress", One, "A rewrite is running.", |r| since(r, Purpose::Rewrite).is_some().into()),
    gauge("aof_rewrite_scheduled", "redis_aof_rewrite_scheduled", One, "A rewrite waits for another job.", |r| r.core.state.persistence.queued.rewrite.into()),
    gauge("aof_last_rewrite_time_sec", "redis_aof_last_rewrite_duration_sec", Seconds, "Time of the last rewrite.",
        |r| r.core.state.persistence.rewrites.last_seconds.into()),
    gauge("aof_current_rewrite_time_sec", "redis_aof_current_rewrite_duration_sec", Seconds, "Time of the running rewrite, or -1.",
        |r| seconds(r, Purpose::Rewrite)),
    gauge("aof_last_bgrewrite_status", "redis_aof_last_bgrewrite_status", One, "The last rewrite succeeded.",
        |r| Value::IsFine(!r.core.state.persistence.rewrites.has_failed)),
    counter("aof_rewrites", "redis_aof_rewrites_total", One, "Rewrites.", |r| r.core.state.persistence.rewrites.count.into()),
    field("aof_rewrites_consecutive_failures", |r| r.core.state.persistence.rewrites.failures_in_a_row.into()),
    gauge("aof_last_write_status", "redis_aof_last_write_status", One, "The append-only file can be written.",
        |r| Value::IsFine(log(r).and_then(AppendLog::disk_error).is_none())),
    gauge("aof_last_cow_size", "redis_aof_last_cow_size_bytes", Bytes, "Bytes copied for the last rewrite.",
        |r| r.core.state.persistence.rewrites.last_copied.into()),
    gauge("module_fork_in_progress", "redis_module_fork_in_progress", One, "Always 0.", |_| 0u64.into()),
    gauge("module_fork_last_cow_size", "redis_module_fork_last_cow_size", Bytes, "Always 0.", |_| 0u64.into()),
    // There is no child process; the slots' keys are copied all the same.
    field("slot_migration_fork_in_progress", slot_migration_fork_in_progress),
    gauge("aof_current_size", "redis_aof_current_size_bytes", Bytes, "Bytes of the append-only file.", |r| log(r).map(AppendLog::current_size).into()),
    gauge("aof_base_size", "redis_aof_base_size_bytes", Bytes, "Bytes of the append-only file after its last rewrite.",
        |r| log(r).map(AppendLog::base_size).into()),
    gauge("aof_pending_rewrite", "redis_aof_pending_rewrite", One, "A rewrite waits for another job.",
        |r| log(r).map(|_| r.core.state.persistence.queued.rewrite).into()),
    gauge("aof_buffer_length", "redis_aof_buffer_length", Bytes, "Bytes not written to the append-only file yet.",
        |r| log(r).map(AppendLog::buffer_length).into()),
    gauge("aof_pending_bio_fsync", "redis_aof_pending_bio_fsync", One, "Syncs of the append-only file under way.",
        |r| log(r).map(AppendLog::pending_fsync).into()),
    gauge("aof_delayed_fsync", "redis_aof_delayed_fsync", One, "Writes that had to wait for a sync.", |r| log(r).map(AppendLog::delayed_fsync).into()),
    field("loading_start_time", |r| loading(r).map(|loading| loading.started_unix).into()),
    gauge("loading_total_bytes", "redis_loading_total_bytes", Bytes, "Bytes of the file that is being loaded.",
        |r| loading(r).map(|loading| loading.total_bytes).into()),
    field("loading_rdb_used_mem", |r| loading(r).map(|loading| loading.memory_then).into()),
    gauge("loading_loaded_bytes", "redis_loading_loaded_bytes", Bytes, "Bytes of it that are loaded.",
        |r| loading(r).map(|loading| loading.loaded_bytes).into()),
    field("loading_loaded_perc", loading_loaded_perc),
    gauge("loading_eta_seconds", "redis_loading_eta_seconds", Seconds, "Estimated time until the data is loaded.",
        |r| loading(r).map(|loading| eta_seconds(r, loading)).into()),
    gauge("", "latchkey_snapshot_bytes_waiting", Bytes, "Bytes of snapshots on their way to replicas.", |r| r.core.state.bytes_of_snapshots().into()),
    Row::Samples(sync_times),
];

fn current_fork_perc(r: &Reading<'_>) -> Value {
    let (done, total) = keys_saved(r);
    let percent = if total > 0 { done as f64 * 100.0 / total as f64 } else { 0.0 };
    Value::Decimal(percent, 2)
}

fn slot_migration_fork_in_progress(r: &Reading<'_>) -> Value {
    let jobs = &r.core.state.node.moves.jobs.0;
    let is_copying = jobs.iter().any(|job| job.phase == Phase::Snapshotting);
    r.core.state.config.compatible_with.is_valkey().then(|| u64::from(is_copying)).into()
}

fn loading_loaded_perc(r: &Reading<'_>) -> Value {
    loading(r).map_or(Value::Absent, |loading| {
        let percent = loading.loaded_bytes as f64 * 100.0 / loading.total_bytes.max(1) as f64;
        Value::Decimal(percent, 2)
    })
}

fn sync_times(r: &Reading<'_>, out: &mut Exposition) {
    let syncs = log(r).map(AppendLog::sync_times).unwrap_or_default();
    let help = "How long the disk took to sync the append-only file.";
    out.histogram("latchkey_aof_sync_seconds", help, &syncs);
}

fn log<'a>(reading: &Reading<'a>) -> Option<&'a AppendLog> {
    reading.core.state.persistence.log()
}

fn loading(reading: &Reading<'_>) -> Option<Loading> {
    reading.core.state.persistence.loading
}

fn copied(reading: &Reading<'_>) -> usize {
    match reading.core.state.persistence.under_way() {
        Some(_) => reading.core.keyspace.snapshot_copied(),
        None => 0,
    }
}

/// Keys written by the running job, and its total number of keys.
fn keys_saved(reading: &Reading<'_>) -> (usize, u64) {
    let under_way = reading.core.state.persistence.under_way();
    under_way.map_or((0, 0), |job| (job.keys_done, job.keys_total))
}

/// The start of the running job. A snapshot for replicas counts as a save.
fn since(reading: &Reading<'_>, purpose: Purpose) -> Option<i64> {
    let job = reading.core.state.persistence.under_way()?;
    let counted_as = if job.purpose == Purpose::Sync { Purpose::Save } else { job.purpose };
    (counted_as == purpose).then_some(job.since_us)
}

fn seconds(reading: &Reading<'_>, purpose: Purpose) -> Value {
    let since_us = since(reading, purpose);
    since_us.map_or(-1, |since_us| (reading.core.state.now.boot_us - since_us) / 1_000_000).into()
}

fn eta_seconds(reading: &Reading<'_>, loading: Loading) -> i64 {
    let elapsed = (reading.core.state.now.unix_seconds() - loading.started_unix).max(0) as f64;
    let left = loading.total_bytes.saturating_sub(loading.loaded_bytes) as f64;
    // Unknown during the first second, as in Redis.
    let seconds =
        if elapsed > 0.0 { elapsed * left / (loading.loaded_bytes + 1) as f64 } else { 1.0 };
    seconds as i64
}
