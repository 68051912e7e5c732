//! Memory's limit: before a command runs, keys go until what is used is no more than `maxmemory`, or the command is refused.
//!
//! Which key goes is the keyspace's choice (`keyspace/evict.rs`); here is how many, and for how long: beyond the time that
//! `maxmemory-eviction-tenacity` grants, the rest waits for the next command or turn of the loop. What the background thread
//! is about to free counts as free, so that a FLUSHALL or a large value on its way out does not cost other keys; so do the names
//! of evicted keys that wait for those who track them to be told, or each key that goes would take others with it.

use crate::config::MaxmemoryPolicy;
use crate::gate::effect::note_deletions_apart;
use crate::gate::publish::publish_events;
use crate::gate::replicas;
use crate::gate::state::State;
use crate::keyspace::Keyspace;
use crate::sys::alloc;

/// Keys evicted between two looks at the clock.
const KEYS_PER_LOOK: usize = 16;

/// Empty output buffers of up to so many bytes stay, also where memory is short: replies to nearly all commands fit.
const SPARE_BYTES_KEPT: usize = 1024;

/// What came of an eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// Memory is below its limit, or there is none.
    Enough,
    /// Time is up before it is; the loop goes on next turn.
    Unfinished,
    /// Nothing is left that may go.
    NoMore,
}

/// Evicts keys until memory is below its limit, as long as `maxmemory-eviction-tenacity` allows. Called by the gate, after
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
    if !is_over(db, server) || server.pauses.strictest().is_some() {
        // While clients are paused the data stands still.
        return Room::Enough;
    }
    // Empty buffers go before keys: those that messages about evicted keys were sent from would cost further keys.
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

/// Evicts as many keys as it needs, but only a few.
///
/// Each key's event is published at once: kept for later, the events of a small store would soon hold more memory than
/// its keys had, and the eviction would never end.
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
    server.minds_memory() && used > limit && used.saturating_sub(about_to_be_free() as u64) > limit
}

/// Microseconds one call may take: up to 500 for a tenacity of 10, 15% more for each further step, no limit at 100.
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
