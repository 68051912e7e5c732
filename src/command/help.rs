//! `HELP` of commands with subcommands.

use crate::state::context::{CommandResult, Context, Outcome};

/// Replies a command's help in redis-cli's usual format. `lines` alternate between a subcommand
/// with its arguments and its explanation, indented by four spaces.
pub(crate) fn reply_help(ctx: &mut Context<'_>, lines: &[&str]) -> CommandResult {
    let name = ctx
        .command
        .parent
        .map_or(ctx.command.spec.name, |parent| ctx.core.state.commands.get(parent).spec.name);
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

/// `<container> HELP`: the lines are the subcommands' syntax and summary, from their specs.
pub(crate) fn help_from_specs(ctx: &mut Context<'_>) -> CommandResult {
    let table = ctx.core.state.commands;
    let Some(parent) = ctx.command.parent else {
        return reply_help(ctx, &[]);
    };
    let mut lines = Vec::new();
    for command in table.subcommands(table.get(parent)) {
        let spec = command.spec;
        if spec.name != "HELP" {
            lines.push(format!("{} {}", spec.name, spec.syntax).trim_end().to_owned());
            lines.push(format!("    {}", spec.summary));
        }
    }
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    reply_help(ctx, &lines)
}
