//! The server as a whole.

use super::spec::CommandSpec;

pub const COMMANDS: &[CommandSpec] = &[];
