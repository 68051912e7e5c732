//! The server as a whole.

use super::args::Args;
use super::spec::CommandSpec;
use super::table::Command;
use crate::client::ClientId;
use crate::error::CommandError;
use crate::keyspace::Keyspace;
use crate::state::State;

pub const COMMANDS: &[CommandSpec] = &[];

/// Evicts keys until the memory in use is below `maxmemory`, or refuses a command that may need more.
pub fn make_room(_: &mut Keyspace, _: &mut State, _: &Command) -> Result<(), CommandError> {
    Ok(())
}

/// Shows a command that is about to run to those who monitor.
pub fn feed_monitors(_: &mut Keyspace, _: &mut State, _: ClientId, _: &Command, _: Args<'_>) {}
