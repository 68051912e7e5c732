//! WAIT and WAITAOF: how many replicas have acknowledged an offset, and the reply.

use crate::client::acks::{AcksAwaited, Replicas};
use crate::error::CommandError;
use crate::replication::replica::Replica;
use crate::resp::reply::ReplyWriter;
use crate::state::State;

/// Too few replicas have acknowledged a grant of a lock.
pub const NO_REPLICAS: CommandError =
    CommandError::Text("NOREPLICAS too few replicas have acknowledged the lock in time");

/// WAITAOF asks to wait for a log that is off.
pub const WITHOUT_LOG: &str =
    "ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.";

/// The number of replicas that have acknowledged an offset, or have it on disk.
pub fn count(state: &State, offset: u64, on_disk: bool) -> i64 {
    let has = state.replicas().filter(|(_, replica)| {
        let reached = if on_disk { replica.synced } else { replica.acknowledged };
        replica.is_online() && reached.is_some_and(|reached| reached >= offset)
    });
    has.count() as i64
}

fn count_awaited(state: &State, awaited: &AcksAwaited) -> i64 {
    count(state, awaited.offset, awaited.on_disk.is_some())
}

/// The number of replicas that must acknowledge. ALL means every replica that could be promoted:
/// the connected ones, but at least the configured number, because some may be disconnected.
fn wanted(state: &State, awaited: &AcksAwaited) -> i64 {
    match awaited.replicas {
        Replicas::Count(count) => count,
        Replicas::All => {
            let follows = |(_, replica): &(_, &Replica)| !replica.snapshot_only;
            let here = state.replicas().filter(follows).count() as i64;
            here.max(state.config.wait_all_replicas.into())
        }
    }
}

/// Whether the offset that WAITAOF waits for is on this server's disk, where a start would load it.
fn is_on_disk_here(state: &State, awaited: &AcksAwaited) -> bool {
    let reached = state.persistence.on_disk();
    awaited.on_disk.is_some_and(|on_disk| reached.is_some_and(|reached| reached >= on_disk.logged))
}

/// Whether the client waits for this server's disk.
fn waits_here(awaited: &AcksAwaited) -> bool {
    awaited.on_disk.is_some_and(|on_disk| on_disk.here_too)
}

/// Whether WAITAOF waits for a log that is off.
pub fn has_lost_log(state: &State, awaited: &AcksAwaited) -> bool {
    waits_here(awaited) && !state.persistence.is_aof_on()
}

/// Whether the wait is over.
pub fn are_enough(state: &State, awaited: &AcksAwaited) -> bool {
    count_awaited(state, awaited) >= wanted(state, awaited)
        && (!waits_here(awaited) || is_on_disk_here(state, awaited))
}

/// Writes the reply. `WAIT`: the number of replicas; for ALL, an error if they are fewer.
/// `WAITAOF`: an array of whether this server has it on disk, and the number of replicas.
pub fn reply(state: &State, awaited: &AcksAwaited, reply: &mut ReplyWriter<'_>) {
    if awaited.on_disk.is_some() {
        reply.array(2);
        reply.integer(is_on_disk_here(state, awaited).into());
    }
    let (count, wanted) = (count_awaited(state, awaited), wanted(state, awaited));
    if awaited.replicas == Replicas::All && count < wanted {
        // The error code must be none at which client libraries retry: a retry on another
        // connection or server would wait for another offset.
        let text = format!("NOTALL {count} of {wanted} replicas have acknowledged");
        return reply.error(text.as_bytes());
    }
    reply.integer(count);
}
