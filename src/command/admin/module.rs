//! MODULE: modules are not supported, so the list is empty and loading fails.

use crate::command::help::help_from_specs;
use crate::error::CommandError;
use crate::state::context::{CommandResult, Context, Outcome};
use crate::state::spec::{CommandSpec, Flags, Group, container, spec};

const NOT_SUPPORTED: CommandError =
    CommandError::Text("ERR Error loading the extension: this server has no modules");
const NOT_LOADED: CommandError =
    CommandError::Text("ERR Error unloading module: no such module with that name");

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    container("MODULE", &[
        spec("LIST", list).exactly(2).flags(Flags::ADMIN_NOSCRIPT).group(Group::Server).since("4.0.0").tips(&["nondeterministic_output_order"])
            .docs("", "Lists the modules that are loaded: none.", "O(1)"),
        spec("LOAD", |_| Err(NOT_SUPPORTED)).at_least(3).flags(Flags::ADMIN_NOSCRIPT_NO_ASYNC_LOADING).group(Group::Server).since("4.0.0")
            .docs("path [arg [arg ...]]", "Is refused: there are no modules here.", "O(1)"),
        spec("LOADEX", |_| Err(NOT_SUPPORTED)).at_least(3).flags(Flags::ADMIN_NOSCRIPT_NO_ASYNC_LOADING).group(Group::Server).since("7.0.0")
            .docs("path [CONFIG name value [CONFIG name value ...]] [ARGS args [args ...]]", "Is refused: there are no modules here.", "O(1)"),
        spec("UNLOAD", |_| Err(NOT_LOADED)).exactly(3).flags(Flags::ADMIN_NOSCRIPT_NO_ASYNC_LOADING).group(Group::Server).since("4.0.0")
            .docs("name", "Is refused: no module is loaded.", "O(1)"),
        spec("HELP", help_from_specs).exactly(2).flags(Flags::LOADING_STALE).group(Group::Server).since("5.0.0")
            .docs("", "Explains MODULE.", "O(1)"),
    ]).group(Group::Server).since("4.0.0")
        .docs("", "Commands about modules.", "Depends on the subcommand"),
];

/// `MODULE LIST`: an empty array.
fn list(ctx: &mut Context<'_>) -> CommandResult {
    ctx.reply.array(0);
    Ok(Outcome::Replied)
}
