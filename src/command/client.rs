use super::spec::CommandSpec;

pub const COMMANDS: &[CommandSpec] = &[];

use super::table::Command;
use crate::client::ClientId;
use crate::state::State;

/// Whether CLIENT PAUSE holds a command back.
pub fn must_wait(_: &State, _: &Command) -> bool {
    false
}

/// A client as a line of `CLIENT LIST`.
pub fn describe_client(_: &State, _: ClientId) -> String {
    String::new()
}

/// Closes a client whose unsent output is over the limit of its class.
pub fn check_output_limit(_: &mut State, _: ClientId) {}

/// Takes a client that is about to be closed out of all that knows it.
pub fn forget_client(_: &mut State, _: ClientId) {}
