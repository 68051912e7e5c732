//! The connection itself: PING and its like.

use super::context::{CommandResult, Context, Outcome};
use super::spec::{CommandSpec, Flags, Group, spec};

pub const COMMANDS: &[CommandSpec] = &[
    spec("PING", ping)
        .at_least(1)
        .flags(Flags::FAST)
        .group(Group::Connection)
        .since("1.0.0")
        .docs("[message]", "Answers PONG, or the message.", "O(1)"),
];

/// `PING [message]`.
fn ping(ctx: &mut Context<'_>) -> CommandResult {
    if ctx.args.len() == 2 {
        ctx.reply.bulk(ctx.args.get(1));
    } else {
        ctx.reply.pong();
    }
    Ok(Outcome::Replied)
}
