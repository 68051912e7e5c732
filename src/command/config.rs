use super::spec::CommandSpec;

pub const COMMANDS: &[CommandSpec] = &[];

use crate::keyspace::Keyspace;
use crate::state::State;

/// Tells all parts what the configuration says: at the start and after CONFIG SET.
pub fn apply_config(_: &mut Keyspace, _: &mut State) {}
