//! What replicas have acknowledged, for those who wait for it: WAIT and WAITAOF.

use crate::client::blocked::AcksAwaited;
use crate::gate::replicas;
use crate::gate::state::State;
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
    count(server, awaited) >= awaited.replicas
        && (!waits_here || is_off || is_on_disk_here(server, awaited))
}

/// `WAIT`: how many replicas. `WAITAOF`: an array of whether this server has it on disk, and how many replicas.
pub fn reply(server: &State, awaited: &AcksAwaited, reply: &mut ReplyWriter<'_>) {
    if awaited.on_disk.is_some() {
        reply.array(2);
        reply.integer(is_on_disk_here(server, awaited).into());
    }
    reply.integer(count(server, awaited));
}
