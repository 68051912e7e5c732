//! Publish and subscribe.

use super::spec::CommandSpec;
use super::table::Command;
use crate::error::CommandError;
use crate::keyspace::Keyspace;
use crate::state::State;

pub const COMMANDS: &[CommandSpec] = &[];

/// Publishes the keyspace events that were collected.
pub fn publish_events(db: &mut Keyspace, _server: &mut State) {
    db.events.take();
}

/// Whether a RESP2 client may run a command while it is subscribed.
pub fn check_subscribed(_command: &Command) -> Result<(), CommandError> {
    Ok(())
}
