//! Clients that can be sent elsewhere (CLIENT CAPA REDIRECT): on a replica their reads and writes are answered with the primary's
//! address, as Valkey does. READONLY has a client's reads served here.

use crate::client::blocked::Cause;
use crate::client::{Client, ClientFlags};
use crate::error::CommandError;
use crate::gate::admit::Verdict;
use crate::gate::spec::Flags;
use crate::gate::state::State;
use crate::ids::ClientId;

/// Whether a command with these flags, or EXEC of commands that have them together, runs here.
pub fn check(server: &State, client: &Client, flags: Flags) -> Result<(), Verdict> {
    let is_served = client.flags.contains(ClientFlags::READS_HERE);
    let concerned = if is_served { Flags::WRITE } else { Flags::WRITE.union(Flags::READONLY) };
    if !client.flags.contains(ClientFlags::CAN_REDIRECT) || !flags.intersects(concerned) {
        return Ok(());
    }
    let Some(following) = server.replication.following.as_deref() else { return Ok(()) };
    // The replica that takes the part would send it back here until it has.
    if server.replication.failover.as_deref().is_some_and(|failover| failover.is_under_way) {
        return Err(Verdict::Postpone);
    }
    Err(answer(&following.host, following.port).into())
}

/// Where a client is sent.
pub fn answer(host: &[u8], port: u16) -> CommandError {
    CommandError::Redirect(host.into(), port)
}

/// What becomes of a client that waits when this server begins to follow another.
pub enum Sent {
    /// It waits on.
    Nowhere,
    /// It is told the address, and stays connected.
    Elsewhere,
    /// It is told that it waits in vain, and closed.
    Away,
}

/// What becomes of a client that waits.
pub fn of_waiting(server: &State, id: ClientId) -> Sent {
    let client = server.clients.get(id);
    let Some((client, blocked)) = client.and_then(|one| Some((one, one.blocked.as_deref()?)))
    else {
        return Sent::Nowhere;
    };
    let writes = server.commands.get(blocked.command).is(Flags::WRITE);
    if client.flags.contains(ClientFlags::READS_HERE) && !writes {
        return Sent::Nowhere;
    }
    let waits_for_keys = matches!(blocked.cause, Cause::Keys { .. });
    match waits_for_keys && client.flags.contains(ClientFlags::CAN_REDIRECT) {
        true => Sent::Elsewhere,
        false => Sent::Away,
    }
}
