//! Redirection of clients with CLIENT CAPA REDIRECT: a replica answers their reads and writes with
//! the primary's address, as Valkey does. After READONLY a client's reads are served by the
//! replica.

use crate::client::{Client, ClientFlags};
use crate::error::CommandError;
use crate::gate::verdict::Verdict;
use crate::state::State;
use crate::state::spec::Flags;

/// Checks whether a command, or EXEC of commands, with these flags runs here. Errors: the
/// redirection.
pub fn check(state: &State, client: &Client, flags: Flags) -> Result<(), Verdict> {
    let reads_here = client.flags.contains(ClientFlags::READS_HERE);
    let redirected = if reads_here { Flags::WRITE } else { Flags::WRITE.union(Flags::READONLY) };
    if !client.flags.contains(ClientFlags::CAN_REDIRECT) || !flags.intersects(redirected) {
        return Ok(());
    }
    let Some(following) = state.replication.following.as_deref() else { return Ok(()) };
    // During a failover the target, not yet a primary, would send the client back here.
    if state.replication.failover.as_deref().is_some_and(|failover| failover.is_under_way) {
        return Err(Verdict::Postpone);
    }
    Err(error(&following.host, following.port).into())
}

/// The error that redirects a client.
pub fn error(host: &[u8], port: u16) -> CommandError {
    CommandError::Redirect(host.into(), port)
}
