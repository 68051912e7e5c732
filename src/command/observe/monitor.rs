//! MONITOR: starts to show every command that runs.

use crate::client::ClientFlags;
use crate::state::context::{CommandResult, Context, Outcome};
use crate::state::spec::{CommandSpec, Flags, Group, spec};

pub const COMMANDS: &[CommandSpec] = &[spec("MONITOR", monitor)
    .exactly(1)
    .flags(Flags::ADMIN_NOSCRIPT_LOADING_STALE)
    .with(Flags::NEEDS_CLIENT)
    .group(Group::Server)
    .since("1.0.0")
    .docs("", "Streams every command that the server runs.", "O(1)")];

/// `MONITOR`: `OK`, then a line for each command; no reply if the client monitors already.
fn monitor(ctx: &mut Context<'_>) -> CommandResult {
    let client = ctx.client();
    if !client.flags.contains(ClientFlags::MONITOR) {
        client.flags |= ClientFlags::MONITOR;
        let id = ctx.client_id();
        ctx.core.state.add_monitor(id);
        ctx.reply.ok();
    }
    Ok(Outcome::Replied)
}
