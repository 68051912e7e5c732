//! The memory limit: before a command runs, keys are evicted until memory is within `maxmemory`, or the command is refused.
//!
//! `keyspace/evict.rs` chooses the key; this file decides how many, and for how long: what
//! `maxmemory-eviction-tenacity` does not allow now waits for the next command or turn. Memory that the background
//! thread is about to free counts as free, so that a FLUSHALL or a large deleted value does not cost other keys. So
//! do the names of evicted keys kept for client tracking: otherwise each eviction would cause further ones.

use crate::config::MaxmemoryPolicy;
use crate::gate::effect::note_deletions_apart;
use crate::gate::publish::publish_events;
use crate::gate::replicas;
use crate::gate::state::State;
use crate::keyspace::Keyspace;
use crate::sys::alloc;

/// Keys evicted between two readings of the clock.
const KEYS_PER_LOOK: usize = 16;

/// Empty output buffers up to this size are kept even when memory is short: nearly all replies fit.
const SPARE_BYTES_KEPT: usize = 1024;

/// The result of an eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// Memory is within its limit, or there is no limit.
    Enough,
    /// The time limit came first; the loop continues next turn.
    Unfinished,
    /// No key is left that may be evicted.
    NoMore,
}

/// Evicts keys until memory is within its limit or `maxmemory-eviction-tenacity` ends it. Called by the gate, after
/// CONFIG SET changed `maxmemory`, and in each turn while [`Keyspace::eviction`] is unfinished.
#[inline]
pub fn evict(db: &mut Keyspace, server: &mut State) -> Room {
    if !is_over(db, server) && db.eviction.over_since_us.is_none() {
        return Room::Enough;
    }
    evict_slice(db, server)
}

#[cold]
fn evict_slice(db: &mut Keyspace, server: &mut State) -> Room {
    let room = evict_for_a_while(db, server);
    if !db.deletions.is_empty() {
        note_deletions_apart(db, server);
    }
    db.eviction.unfinished = room == Room::Unfinished;
    let now_us = server.now.boot_us;
    if room != Room::Enough {
        db.eviction.over_since_us.get_or_insert(now_us);
    } else if let Some(since_us) = db.eviction.over_since_us.take() {
        db.eviction.over_us += now_us.saturating_sub(since_us).max(0) as u64;
    }
    room
}

fn evict_for_a_while(db: &mut Keyspace, server: &mut State) -> Room {
    let policy = server.config.maxmemory_policy;
    // Paused clients, and the rest of a file that is loaded, must find the data unchanged.
    let stands_still = server.pauses.strictest().is_some() || server.persistence.loading.is_some();
    if stands_still || !is_over(db, server) {
        return Room::Enough;
    }
    // Empty buffers are freed before keys: those that sent messages about evicted keys would cost further keys.
    server.clients.drop_spare_buffers(SPARE_BYTES_KEPT);
    if !is_over(db, server) {
        return Room::Enough;
    }
    if policy == MaxmemoryPolicy::NoEviction || db.import_mode {
        return Room::NoMore;
    }
    let samples = server.config.maxmemory_samples as usize;
    let limit_us = time_limit_us(server.config.maxmemory_eviction_tenacity);
    let start_us = server.clock.now().boot_us;
    let (room, elapsed_us) = loop {
        let room = evict_some(db, server, policy, samples);
        let elapsed_us = server.clock.now().boot_us.saturating_sub(start_us);
        if room != Room::Unfinished || elapsed_us > limit_us {
            break (room, elapsed_us);
        }
    };
    let threshold_ms = server.config.latency_monitor_threshold;
    if threshold_ms > 0 && elapsed_us / 1000 >= threshold_ms {
        let time = server.now.unix_seconds();
        server.stats.latency.add("eviction-cycle", time, (elapsed_us / 1000) as u64);
    }
    room
}

/// Evicts as many keys as needed, up to a small number.
///
/// Each key's event is published at once: a small keyspace's queued events could hold more memory than its keys did,
/// and the eviction would never end.
fn evict_some(
    db: &mut Keyspace,
    server: &mut State,
    policy: MaxmemoryPolicy,
    samples: usize,
) -> Room {
    for _ in 0..KEYS_PER_LOOK {
        if !db.evict_one(policy, samples) {
            return Room::NoMore;
        }
        if !db.events.is_empty() {
            publish_events(db, server);
        }
        if !is_over(db, server) {
            return Room::Enough;
        }
    }
    Room::Unfinished
}

/// Whether more memory is in use than allowed.
#[inline]
fn is_over(db: &Keyspace, server: &State) -> bool {
    let limit = server.config.maxmemory;
    let used = alloc::allocated() as u64;
    let about_to_be_free = || {
        db.lazyfree.pending_bytes() + db.tracking.changes_bytes() + replicas::bytes_behind(server)
    };
    server.applies_maxmemory()
        && used > limit
        && used.saturating_sub(about_to_be_free() as u64) > limit
}

/// The time limit of one call in microseconds: up to 500 for a tenacity of 10, 15% more for each further step, no limit at 100.
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
