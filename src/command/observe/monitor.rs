//! MONITOR: starts to show every command that runs.

use crate::client::ClientFlags;
use crate::error::CommandError;
use crate::state::context::{CommandResult, Context, Origin, Outcome};
use crate::state::spec::{CommandSpec, Flags, Group, spec};

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    spec("MONITOR", monitor).exactly(1).flags(Flags::ADMIN_NOSCRIPT_LOADING_STALE).with(Flags::NEEDS_CLIENT).group(Group::Server).since("1.0.0")
        .docs("", "Streams every command that the server runs.", "O(1)"),
];

const IN_TRANSACTION: CommandError =
    CommandError::Text("ERR MONITOR isn't allowed for DENY BLOCKING client");

/// `MONITOR`: `OK`, then a line for each command; no reply if the client monitors already.
fn monitor(ctx: &mut Context<'_>) -> CommandResult {
    if ctx.origin == Origin::Transaction {
        return Err(IN_TRANSACTION);
    }
    let client = ctx.client();
    if !client.flags.contains(ClientFlags::MONITOR) {
        client.flags |= ClientFlags::MONITOR;
        let id = ctx.client_id();
        ctx.core.state.add_monitor(id);
        ctx.reply.ok();
    }
    Ok(Outcome::Replied)
}
