//! The server as a whole.

use super::args::Args;
use super::spec::CommandSpec;
use super::table::Command;
use crate::client::ClientId;
use crate::keyspace::Keyspace;
use crate::state::State;

pub const COMMANDS: &[CommandSpec] = &[];

/// Shows a command that is about to run to those who monitor.
pub fn feed_monitors(_: &mut Keyspace, _: &mut State, _: ClientId, _: &Command, _: Args<'_>) {}
