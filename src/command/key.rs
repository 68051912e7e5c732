use super::spec::CommandSpec;

pub const COMMANDS: &[CommandSpec] = &[];
