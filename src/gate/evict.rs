//! The memory limit: before a command runs, keys are evicted until memory is within `maxmemory`, or
//! the command is refused.
//!
//! `keyspace/evict.rs` chooses the key. This file decides how many keys are evicted, and for how
//! long: after the time that `maxmemory-eviction-tenacity` allows, the next command or turn
//! continues. Memory that is not data does not count ([`not_counted`]): otherwise a large deleted
//! value or a snapshot would cost other keys, and each eviction would cause further ones.
//!
//! If evictions free nothing, for whatever reason, they stop and are tried again later: they must
//! not cost all keys.

use std::collections::BTreeMap;

use crate::config::{Choice, MaxmemoryPolicy};
use crate::gate::effect::note_deletions_apart;
use crate::gate::publish::publish_events;
use crate::keyspace::Keyspace;
use crate::keyspace::evict::{InVain, Told};
use crate::state::Core;
use crate::sys::alloc;
use crate::sys::log::warning;

/// Keys evicted between two readings of the clock.
const KEYS_PER_LOOK: usize = 16;

/// After this many bytes of evicted keys, eviction checks whether they have freed memory: other
/// threads count their allocations 64 KiB at a time.
const VAIN_BYTES: usize = 512 << 10;

/// The pause after an eviction in vain: the first, and the longest. Unit: microseconds.
const VAIN_PAUSE_US: i64 = 100_000;
const VAIN_PAUSE_US_MAX: i64 = 60_000_000;

/// The least time between two lines of the log about evictions. Unit: microseconds.
const TOLD_US: i64 = 60_000_000;

/// Empty output buffers up to this size are kept even when memory is short: nearly all replies fit.
const SPARE_BYTES_KEPT: usize = 1024;

/// The result of an eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// Memory is within its limit, or there is no limit.
    Enough,
    /// The time limit was reached; the loop continues next turn.
    Unfinished,
    /// No key is left that may be evicted, or evicting keys frees nothing.
    NoMore,
}

/// Evicts keys until memory is within its limit or `maxmemory-eviction-tenacity` ends it. Called by
/// the gate, after CONFIG SET changed `maxmemory`, and in each turn while [`Keyspace::eviction`] is
/// unfinished.
#[inline]
pub fn evict(core: &mut Core) -> Room {
    if !is_over(core) && core.keyspace.eviction.over_since_us.is_none() {
        return Room::Enough;
    }
    evict_slice(core)
}

#[cold]
fn evict_slice(core: &mut Core) -> Room {
    let room = evict_for_a_while(core);
    if !core.keyspace.deletions.is_empty() {
        note_deletions_apart(core);
    }
    core.keyspace.eviction.unfinished = room == Room::Unfinished;
    if room == Room::NoMore || !core.keyspace.eviction.untold.is_empty() {
        tell_cost(core);
    }
    let now_us = core.state.now.boot_us;
    if room != Room::Enough {
        core.keyspace.eviction.over_since_us.get_or_insert(now_us);
    } else if let Some(since_us) = core.keyspace.eviction.over_since_us.take() {
        core.keyspace.eviction.over_us += now_us.saturating_sub(since_us).max(0) as u64;
    }
    room
}

/// Logs what the limit has cost since the last such line, if anything: once a minute at most. A
/// request that is to be refused now has not been counted; the next request or turn tells of it.
fn tell_cost(core: &mut Core) {
    let Core { keyspace, state, .. } = core;
    let now_us = state.now.boot_us;
    let told = keyspace.eviction.told;
    if told.is_some_and(|told| now_us.saturating_sub(told.at_us) < TOLD_US) {
        return;
    }
    let refused = state.stats.out_of_memory_errors();
    // CONFIG RESETSTAT counts from zero again.
    let before = told.map_or(0, |told| told.refused).min(refused);
    if refused == before && keyspace.eviction.untold.is_empty() {
        return;
    }
    keyspace.eviction.told = Some(Told { at_us: now_us, refused });
    let untold = std::mem::take(&mut keyspace.eviction.untold);
    let kinds = by_type(&untold);
    let (limit, policy) = (state.config.maxmemory, state.config.maxmemory_policy.word());
    let since = if told.is_some() { "Since the last such line" } else { "So far" };
    warning!(
        state,
        "Memory has reached maxmemory ({limit} bytes, {policy}). {since}: keys evicted: {kinds}; requests \
         refused: {}.",
        refused - before
    );
}

/// Numbers of keys with the names of their types.
fn by_type(counts: &BTreeMap<&'static str, u64>) -> String {
    let counts: Vec<_> = counts.iter().map(|(name, count)| format!("{count} {name}")).collect();
    if counts.is_empty() { "none".into() } else { counts.join(", ") }
}

/// A sentence on what `maxmemory` has cost, if anything.
pub fn cost_of_limit(core: &Core) -> Option<String> {
    let (stats, refused) = (&core.keyspace.stats, core.state.stats.out_of_memory_errors());
    (stats.evicted + refused > 0).then(|| {
        format!(
            "{} keys were evicted ({}) and {refused} requests refused, since the start or CONFIG \
             RESETSTAT, to keep memory within maxmemory ({}). maxmemory-protect names keys that are \
             never evicted; locks and semaphores are not, either.",
            stats.evicted,
            by_type(&stats.evicted_by_type),
            core.state.config.maxmemory_policy.word()
        )
    })
}

fn evict_for_a_while(core: &mut Core) -> Room {
    let policy = core.state.config.maxmemory_policy;
    // Paused clients must find the data unchanged, and so must the part of a file that is still
    // loaded.
    let stands_still = core.state.stands_still() || core.state.persistence.loading.is_some();
    if stands_still || !is_over(core) {
        return Room::Enough;
    }
    // Empty buffers are freed before keys: otherwise, buffers that have sent messages about evicted
    // keys would cost further keys.
    core.state.clients.queues.drop_spare_buffers(SPARE_BYTES_KEPT);
    if !is_over(core) {
        return Room::Enough;
    }
    if policy == MaxmemoryPolicy::NoEviction
        || core.state.config.import_mode
        || core
            .keyspace
            .eviction
            .in_vain
            .is_some_and(|in_vain| core.state.now.boot_us < in_vain.until_us)
    {
        return Room::NoMore;
    }
    let samples = core.state.config.maxmemory_samples as usize;
    let limit_us = time_limit_us(core.state.config.maxmemory_eviction_tenacity);
    let start_us = core.state.clock.now().boot_us;
    let (room, elapsed_us) = loop {
        let used_before = used(core) as i64;
        let mut room = evict_some(core, policy, samples);
        core.keyspace.eviction.freed_bytes += used_before - used(core) as i64;
        if is_in_vain(&mut core.keyspace, core.state.now.boot_us) && room == Room::Unfinished {
            room = Room::NoMore;
        }
        let elapsed_us = core.state.clock.now().boot_us.saturating_sub(start_us);
        if room != Room::Unfinished || elapsed_us > limit_us {
            break (room, elapsed_us);
        }
    };
    let threshold_ms = core.state.config.latency_monitor_threshold;
    if threshold_ms > 0 && elapsed_us / 1000 >= threshold_ms {
        let time = core.state.now.unix_seconds();
        core.state.stats.latency.add("eviction-cycle", time, (elapsed_us / 1000) as u64);
    }
    room
}

/// Whether the last [`VAIN_BYTES`] of keys were evicted in vain. If so, evictions pause, twice as
/// long each time.
fn is_in_vain(keyspace: &mut Keyspace, now_us: i64) -> bool {
    let eviction = &mut keyspace.eviction;
    if eviction.evicted_bytes < VAIN_BYTES as i64 {
        return false;
    }
    let is_in_vain = eviction.freed_bytes < eviction.evicted_bytes / 4;
    (eviction.evicted_bytes, eviction.freed_bytes) = (0, 0);
    let last_us = eviction.in_vain.map_or(VAIN_PAUSE_US / 2, |in_vain| in_vain.pause_us);
    let pause_us = (2 * last_us).min(VAIN_PAUSE_US_MAX);
    let until_us = now_us.saturating_add(pause_us);
    eviction.in_vain = is_in_vain.then_some(InVain { until_us, pause_us });
    is_in_vain
}

/// Evicts as many keys as needed, up to a small number.
///
/// Each key's event is published at once: a small keyspace's queued events could hold more memory
/// than its keys did, and the eviction would never end.
fn evict_some(core: &mut Core, policy: MaxmemoryPolicy, samples: usize) -> Room {
    for _ in 0..KEYS_PER_LOOK {
        match core.keyspace.evict_one(policy, samples) {
            Some(bytes) => core.keyspace.eviction.evicted_bytes += bytes as i64,
            None => return Room::NoMore,
        }
        if !core.keyspace.events.is_empty() {
            publish_events(core);
        }
        if !is_over(core) {
            return Room::Enough;
        }
    }
    Room::Unfinished
}

/// Whether more memory is in use than allowed.
#[inline]
pub fn is_over(core: &Core) -> bool {
    let limit = core.state.config.maxmemory;
    core.state.applies_maxmemory() && alloc::allocated() as u64 > limit && used(core) > limit
}

/// Bytes of memory that count for the limit.
fn used(core: &Core) -> u64 {
    alloc::allocated().saturating_sub(not_counted(core)) as u64
}

/// Bytes of memory that evicting keys would not free, or would even increase. They are freed by the
/// background thread, or when their data has been sent to replicas and tracking clients or written
/// to a file, or when slots no longer move. Source: `mem_not_counted_for_evict`.
pub fn not_counted(core: &Core) -> usize {
    core.keyspace.lazyfree.pending_bytes()
        + core.keyspace.tracking.changes_bytes()
        + core.keyspace.held.bytes()
        + core.state.bytes_behind()
        + core.state.node.moves.bytes_behind()
        + core.state.bytes_of_snapshots()
        + core.state.node.cluster.as_ref().map_or(0, |_| core.keyspace.slot_lists_bytes())
        + core.state.persistence.log().map_or(0, |log| log.buffer_memory())
}

/// The time limit of one call in microseconds: up to 500 for a tenacity of 10, 15% more for each
/// further step, no limit at 100.
fn time_limit_us(tenacity: u32) -> i64 {
    match tenacity {
        0..=10 => 50 * i64::from(tenacity),
        11..=99 => (500.0 * 1.15f64.powi(tenacity as i32 - 10)) as i64,
        _ => i64::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenacity_is_time() {
        for (tenacity, us) in [(0, 0), (1, 50), (10, 500), (11, 575), (100, i64::MAX)] {
            assert_eq!(time_limit_us(tenacity), us);
        }
        let two_minutes_us = 120_000_000;
        assert!((time_limit_us(99) - two_minutes_us).abs() < two_minutes_us / 10);
    }
}
