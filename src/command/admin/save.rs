//! SAVE, BGSAVE, LASTSAVE and BGREWRITEAOF.

use crate::durability::persistence::{self, RewriteError};
use crate::error::CommandError;
use crate::roles::replicas;
use crate::state::context::{CommandResult, Context, Origin, Outcome};
use crate::state::persistence::Purpose;
use crate::state::spec::{Categories, CommandSpec, Flags, Group, spec};
use crate::sys::log::{notice, warning};

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    spec("SAVE", save).exactly(1).flags(Flags::ADMIN_NOSCRIPT_NO_ASYNC_LOADING.union(Flags::NO_MULTI)).group(Group::Server).since("1.0.0")
        .docs("", "Saves the data to disk and waits for it.", "O(N), N keys in all databases"),
    spec("BGSAVE", bgsave).at_least(1).flags(Flags::ADMIN_NOSCRIPT_NO_ASYNC_LOADING).group(Group::Server).since("1.0.0")
        .docs("[SCHEDULE | CANCEL]", "Saves the data to disk in the background.", "O(1)"),
    spec("BGREWRITEAOF", bgrewriteaof).exactly(1).flags(Flags::ADMIN_NOSCRIPT_NO_ASYNC_LOADING).group(Group::Server).since("1.0.0")
        .docs("", "Rewrites the append-only file in the background.", "O(1)"),
    spec("LASTSAVE", last_save).exactly(1).flags(Flags::LOADING.union(Flags::STALE).union(Flags::FAST)).categories(Categories::ADMIN_DANGEROUS)
        .group(Group::Server).since("1.0.0").tips(&["nondeterministic_output"])
        .docs("", "Returns the time of the last save.", "O(1)"),
];

const SAVE_UNDER_WAY: CommandError = CommandError::Text("ERR Background save already in progress");
const NOTHING_TO_CANCEL: CommandError =
    CommandError::Text("ERR Background saving is currently not in progress or scheduled");
const REWRITE_UNDER_WAY: CommandError =
    CommandError::Text("ERR Background append only file rewriting already in progress");
const OTHER_UNDER_WAY: CommandError = CommandError::Text(
    "ERR Another child process is active (AOF?): can't BGSAVE right now. Use BGSAVE SCHEDULE in order to schedule a BGSAVE \
     whenever possible.",
);
const REWRITE_FAILED: CommandError = CommandError::Text(
    "ERR Can't execute an AOF background rewriting. Please check the server logs for more information.",
);
const FAILED: CommandError = CommandError::Text("ERR");

fn under_way(ctx: &Context<'_>) -> Option<Purpose> {
    ctx.core.state.persistence.purpose()
}

/// `SAVE`: `OK` once the data is on disk.
fn save(ctx: &mut Context<'_>) -> CommandResult {
    if matches!(under_way(ctx), Some(Purpose::Save | Purpose::Sync)) {
        return Err(SAVE_UNDER_WAY);
    }
    // Only one snapshot can exist; a cancelled rewrite is scheduled again.
    if under_way(ctx).is_some() {
        replicas::abort_job(ctx.core, Purpose::Rewrite);
        ctx.core.state.persistence.queued.rewrite = true;
    }
    persistence::save(ctx.core).map_err(|_| FAILED)?;
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// `BGSAVE [SCHEDULE | CANCEL]`: a status line. `CANCEL` is Valkey's, of 8.1.
fn bgsave(ctx: &mut Context<'_>) -> CommandResult {
    let mut options = ctx.args.cursor(1);
    let schedules = options.take_word("SCHEDULE");
    let cancels = !schedules && options.take_word("CANCEL");
    if !options.is_at_end() {
        return Err(CommandError::Syntax);
    }
    if cancels {
        return cancel_save(ctx);
    }
    let in_transaction = ctx.origin == Origin::Transaction;
    match under_way(ctx) {
        Some(Purpose::Save | Purpose::Sync) => return Err(SAVE_UNDER_WAY),
        Some(Purpose::Rewrite) if !schedules && !in_transaction => return Err(OTHER_UNDER_WAY),
        Some(Purpose::Rewrite) => schedule_save(ctx),
        None if in_transaction => schedule_save(ctx),
        None if persistence::begin_save(ctx.core) => {
            ctx.reply.simple("Background saving started");
        }
        None => return Err(FAILED),
    }
    Ok(Outcome::Replied)
}

fn schedule_save(ctx: &mut Context<'_>) {
    ctx.core.state.persistence.queued.save = true;
    ctx.reply.simple("Background saving scheduled");
}

/// Gives up the running or scheduled background save. This does not count as a failed save.
fn cancel_save(ctx: &mut Context<'_>) -> CommandResult {
    match under_way(ctx) {
        Some(purpose @ (Purpose::Save | Purpose::Sync)) => {
            notice!(ctx.core.state, "Background saving will be aborted due to user request");
            replicas::abort_job(ctx.core, purpose);
            ctx.reply.simple("Background saving cancelled");
        }
        _ if ctx.core.state.persistence.queued.save => {
            notice!(
                ctx.core.state,
                "Scheduled background saving will be cancelled due to user request"
            );
            ctx.core.state.persistence.queued.save = false;
            ctx.reply.simple("Scheduled background saving cancelled");
        }
        _ => return Err(NOTHING_TO_CANCEL),
    }
    Ok(Outcome::Replied)
}

/// `BGREWRITEAOF`: a status line.
fn bgrewriteaof(ctx: &mut Context<'_>) -> CommandResult {
    match under_way(ctx) {
        Some(Purpose::Rewrite) => return Err(REWRITE_UNDER_WAY),
        None if ctx.origin == Origin::Client => {}
        _ => {
            ctx.core.state.persistence.queued.rewrite = true;
            ctx.reply.simple("Background append only file rewriting scheduled");
            return Ok(Outcome::Replied);
        }
    }
    match persistence::begin_rewrite(ctx.core) {
        Ok(()) => {
            ctx.reply.simple("Background append only file rewriting started");
            Ok(Outcome::Replied)
        }
        Err(RewriteError::Failed(why)) => {
            warning!(ctx.core.state, "Can't rewrite append only file: {why}");
            Err(REWRITE_FAILED)
        }
        // The next write fails again, and ends the process.
        Err(RewriteError::Fatal(_)) => Err(REWRITE_FAILED),
    }
}

/// `LASTSAVE`: Unix time of the last save in seconds; without one, of the start.
fn last_save(ctx: &mut Context<'_>) -> CommandResult {
    ctx.reply.integer(ctx.core.state.persistence.saves.last_unix);
    Ok(Outcome::Replied)
}
