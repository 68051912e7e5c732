//! `HELP` of commands with subcommands.

use super::context::{CommandResult, Context, Outcome};

/// Replies the lines of a command's help, framed as redis-cli's users know them. `lines` alternate between a subcommand with
/// its arguments and its explanation, indented by four spaces.
pub(super) fn reply_help(ctx: &mut Context<'_>, lines: &[&str]) -> CommandResult {
    let name = ctx.command.parent.map_or(ctx.command.spec.name, |parent| {
        ctx.server.commands.commands[parent as usize].spec.name
    });
    ctx.reply.array(lines.len() + 3);
    let title = "<subcommand> [<arg> [value] [opt] ...]. Subcommands are:";
    ctx.reply.simple(format!("{name} {title}"));
    for line in lines {
        ctx.reply.simple(line);
    }
    ctx.reply.simple("HELP");
    ctx.reply.simple("    Prints this help.");
    Ok(Outcome::Replied)
}
