//! COMMANDLOG: slow and large requests, and large replies; SLOWLOG: the slow ones.

use crate::command::help::reply_help;
use crate::error::CommandError;
use crate::resp::number;
use crate::state::context::{CommandResult, Context, Outcome};
use crate::state::spec::{CommandSpec, Flags, Group, Handler, container, spec};
use crate::stats::command_log::LogKind;

const GET_TIPS: &[&str] = &["request_policy:all_nodes", "nondeterministic_output"];
const LEN_TIPS: &[&str] =
    &["request_policy:all_nodes", "response_policy:agg_sum", "nondeterministic_output"];
const RESET_TIPS: &[&str] = &["request_policy:all_nodes", "response_policy:all_succeeded"];

const fn slowlog(name: &'static str, handler: Handler) -> CommandSpec {
    spec(name, handler)
        .exactly(2)
        .flags(Flags::ADMIN_LOADING_STALE)
        .group(Group::Server)
        .since("2.2.12")
}

const fn commandlog(name: &'static str, handler: Handler) -> CommandSpec {
    spec(name, handler)
        .exactly(3)
        .flags(Flags::ADMIN_LOADING_STALE)
        .group(Group::Server)
        .since("8.1.0")
}

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    container("SLOWLOG", &[
        slowlog("GET", slowlog_get).at_least(2).tips(GET_TIPS)
            .docs("[count]", "Returns the latest slow requests.", "O(N), N being the number of entries returned"),
        slowlog("LEN", slowlog_len).tips(LEN_TIPS)
            .docs("", "Counts the entries of the slow log.", "O(1)"),
        slowlog("RESET", slowlog_reset).tips(RESET_TIPS)
            .docs("", "Empties the slow log.", "O(N), N being the number of entries"),
        slowlog("HELP", slowlog_help).flags(Flags::LOADING_STALE).since("6.2.0")
            .docs("", "Explains SLOWLOG.", "O(1)"),
    ]).group(Group::Server).since("2.2.12")
        .docs("", "Commands about slow requests.", "Depends on the subcommand"),
    container("COMMANDLOG", &[
        commandlog("GET", get).exactly(4).tips(GET_TIPS)
            .docs("count <SLOW | LARGE-REQUEST | LARGE-REPLY>", "Returns the latest requests that were slow or large, or had a large reply.",
                "O(N), N being the number of entries returned"),
        commandlog("LEN", len).tips(LEN_TIPS)
            .docs("<SLOW | LARGE-REQUEST | LARGE-REPLY>", "Counts the entries of a command log.", "O(1)"),
        commandlog("RESET", reset).tips(RESET_TIPS)
            .docs("<SLOW | LARGE-REQUEST | LARGE-REPLY>", "Empties a command log.", "O(N), N being the number of entries"),
        commandlog("HELP", help).exactly(2).flags(Flags::LOADING_STALE)
            .docs("", "Explains COMMANDLOG.", "O(1)"),
    ]).group(Group::Server).since("8.1.0")
        .docs("", "Commands about slow and large requests.", "Depends on the subcommand"),
];

/// Default number of entries in SLOWLOG GET's reply.
const SLOWLOG_DEFAULT: i64 = 10;

/// `SLOWLOG GET [count]`: an array of entries, newest first: number, Unix time in seconds,
/// microseconds taken, arguments, client's address and name. -1: all.
fn slowlog_get(ctx: &mut Context<'_>) -> CommandResult {
    if ctx.args.len() > 3 {
        return Err(ctx.wrong_subcommand());
    }
    let count = match ctx.args.len() {
        2 => SLOWLOG_DEFAULT,
        _ => count(ctx.args.get(2))?,
    };
    reply_entries(ctx, LogKind::Slow, count)
}

/// `SLOWLOG LEN`: an integer.
fn slowlog_len(ctx: &mut Context<'_>) -> CommandResult {
    reply_len(ctx, LogKind::Slow)
}

/// `SLOWLOG RESET`: OK.
fn slowlog_reset(ctx: &mut Context<'_>) -> CommandResult {
    clear(ctx, LogKind::Slow)
}

/// `SLOWLOG HELP`: an array of lines.
fn slowlog_help(ctx: &mut Context<'_>) -> CommandResult {
    reply_help(
        ctx,
        &[
            "GET [<count>]",
            "    Return the latest <count> entries (default: 10, -1 means all). An entry is:",
            "    number, Unix time, microseconds taken, arguments, client address and name.",
            "LEN",
            "    Return the number of entries.",
            "RESET",
            "    Delete all entries.",
        ],
    )
}

/// `COMMANDLOG GET count <SLOW | LARGE-REQUEST | LARGE-REPLY>`: as SLOWLOG GET; with bytes instead
/// of microseconds for large ones.
fn get(ctx: &mut Context<'_>) -> CommandResult {
    let count = count(ctx.args.get(2))?;
    reply_entries(ctx, kind(ctx.args.get(3))?, count)
}

/// `COMMANDLOG LEN <SLOW | LARGE-REQUEST | LARGE-REPLY>`: an integer.
fn len(ctx: &mut Context<'_>) -> CommandResult {
    reply_len(ctx, kind(ctx.args.get(2))?)
}

/// `COMMANDLOG RESET <SLOW | LARGE-REQUEST | LARGE-REPLY>`: OK.
fn reset(ctx: &mut Context<'_>) -> CommandResult {
    clear(ctx, kind(ctx.args.get(2))?)
}

/// `COMMANDLOG HELP`: an array of lines.
fn help(ctx: &mut Context<'_>) -> CommandResult {
    reply_help(
        ctx,
        &[
            "GET <count> <type>",
            "    Return the latest <count> entries of a log (-1 means all). An entry is: number, Unix time,",
            "    microseconds taken (slow) or size in bytes (large-request, large-reply), arguments,",
            "    client address and name.",
            "LEN <type>",
            "    Return the number of entries of a log.",
            "RESET <type>",
            "    Delete all entries of a log.",
        ],
    )
}

fn count(argument: &[u8]) -> Result<i64, CommandError> {
    number::parse_i64(argument)
        .filter(|count| *count >= -1)
        .ok_or(CommandError::Text("ERR count should be greater than or equal to -1"))
}

fn kind(argument: &[u8]) -> Result<LogKind, CommandError> {
    match &*argument.to_ascii_lowercase() {
        b"slow" => Ok(LogKind::Slow),
        b"large-request" => Ok(LogKind::LargeRequest),
        b"large-reply" => Ok(LogKind::LargeReply),
        _ => Err(CommandError::Text(
            "ERR type should be one of the following: slow, large-request, large-reply",
        )),
    }
}

fn reply_entries(ctx: &mut Context<'_>, kind: LogKind, count: i64) -> CommandResult {
    let log = &ctx.core.state.stats.command_logs[kind as usize];
    let count = usize::try_from(count).map_or(log.len(), |count| count.min(log.len()));
    let reply = &mut ctx.reply;
    reply.array(count);
    for entry in log.iter().take(count) {
        reply.array(6);
        reply.integer(entry.id as i64);
        reply.integer(entry.time);
        reply.integer(entry.value as i64);
        reply.array(entry.args.len());
        entry.args.iter().for_each(|argument| reply.bulk(argument));
        reply.bulk(entry.peer.as_bytes());
        reply.bulk(&entry.client_name);
    }
    Ok(Outcome::Replied)
}

fn reply_len(ctx: &mut Context<'_>, kind: LogKind) -> CommandResult {
    ctx.reply.integer(ctx.core.state.stats.command_logs[kind as usize].len() as i64);
    Ok(Outcome::Replied)
}

fn clear(ctx: &mut Context<'_>, kind: LogKind) -> CommandResult {
    ctx.core.state.stats.command_logs[kind as usize].clear();
    ctx.reply.ok();
    Ok(Outcome::Replied)
}
