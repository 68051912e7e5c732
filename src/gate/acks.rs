//! What replicas have acknowledged, for those who wait for it: WAIT and WAITAOF.

use crate::client::blocked::{AcksAwaited, Replicas};
use crate::gate::replicas;
use crate::gate::state::State;
use crate::replication::replica::Replica;
use crate::resp::reply::ReplyWriter;

/// Replicas that have all of the stream before what is awaited; with WAITAOF on their disks.
fn count(server: &State, awaited: &AcksAwaited) -> i64 {
    let has = replicas::replicas(server).filter(|(_, replica)| {
        let reached = match awaited.on_disk {
            Some(_) => replica.synced,
            None => replica.acknowledged,
        };
        replica.is_online() && reached.is_some_and(|reached| reached >= awaited.offset)
    });
    has.count() as i64
}

/// How many replicas are waited for. Of all none may lack it that could be promoted: neither one that is away now nor, beyond the
/// number that is configured, one that is here.
fn wanted(server: &State, awaited: &AcksAwaited) -> i64 {
    match awaited.replicas {
        Replicas::Count(count) => count,
        Replicas::All => {
            let follows = |(_, replica): &(_, &Replica)| !replica.snapshot_only;
            let here = replicas::replicas(server).filter(follows).count() as i64;
            here.max(server.config.wait_all_replicas.into())
        }
    }
}

/// Whether what WAITAOF asks for is on this server's disk.
fn is_on_disk_here(server: &State, awaited: &AcksAwaited) -> bool {
    let log = server.persistence.log();
    let (Some(on_disk), Some(log)) = (awaited.on_disk, log) else { return false };
    log.synced() >= on_disk.logged
}

/// Whether nobody needs to wait any longer.
pub fn are_enough(server: &State, awaited: &AcksAwaited) -> bool {
    let waits_here = awaited.on_disk.is_some_and(|on_disk| on_disk.here_too);
    // Switched off, the log is waited for no longer: the reply says so.
    let is_off = server.persistence.log().is_none();
    count(server, awaited) >= wanted(server, awaited)
        && (!waits_here || is_off || is_on_disk_here(server, awaited))
}

/// `WAIT`: how many replicas; of all, an error if they are fewer. `WAITAOF`: an array of whether this server has it on disk, and how many replicas.
pub fn reply(server: &State, awaited: &AcksAwaited, reply: &mut ReplyWriter<'_>) {
    if awaited.on_disk.is_some() {
        reply.array(2);
        reply.integer(is_on_disk_here(server, awaited).into());
    }
    let (count, wanted) = (count(server, awaited), wanted(server, awaited));
    if awaited.replicas == Replicas::All && count < wanted {
        // No word that clients retry at: who asks again on another connection, or another server, asks for something else.
        let text = format!("NOTALL {count} of {wanted} replicas have acknowledged");
        return reply.error(text.as_bytes());
    }
    reply.integer(count);
}
