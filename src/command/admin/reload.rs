//! DEBUG RELOAD and DEBUG LOADAOF: saves and loads the data.

use crate::client::life::Suspension;
use crate::durability::load::{self, LoadError};
use crate::durability::persistence;
use crate::error::CommandError;
use crate::gate::sessions;
use crate::roles::replicas;
use crate::state::context::{CommandResult, Context, Origin, Outcome};
use crate::state::persistence::Purpose;
use crate::sys::log::warning;

const SAVING_FAILED: CommandError = CommandError::Text("ERR");
const OPTIONS: CommandError =
    CommandError::Text("ERR DEBUG RELOAD only supports the MERGE, NOFLUSH and NOSAVE options.");
const RDB_FAILED: CommandError =
    CommandError::Text("ERR Error trying to load the RDB dump, check server logs.");
const AOF_FAILED: CommandError =
    CommandError::Text("ERR Error trying to load the AOF files, check server logs.");
const IN_TRANSACTION: CommandError =
    CommandError::Text("ERR DEBUG LOADAOF cannot be part of a transaction");

/// `DEBUG RELOAD [NOSAVE] [NOFLUSH] [MERGE]`: OK.
pub(super) fn reload(ctx: &mut Context<'_>) -> CommandResult {
    let (mut saves, mut flushes, mut merges) = (true, true, false);
    let mut options = ctx.args.cursor(2);
    while !options.is_at_end() {
        if options.take_word("MERGE") {
            merges = true;
        } else if options.take_word("NOFLUSH") {
            flushes = false;
        } else if options.take_word("NOSAVE") {
            saves = false;
        } else {
            return Err(OPTIONS);
        }
    }
    // Only one snapshot can exist; a cancelled background job is started again afterwards.
    if let Some(purpose) = ctx.core.state.persistence.purpose().filter(|_| saves) {
        replicas::abort_job(ctx.core, purpose);
        match purpose {
            Purpose::Save => ctx.core.state.persistence.queued.save = true,
            Purpose::Rewrite => ctx.core.state.persistence.queued.rewrite = true,
            // The replicas that wait for this snapshot will reconnect.
            Purpose::Sync => {}
        }
    }
    if saves {
        persistence::save(ctx.core).map_err(|_| SAVING_FAILED)?;
    }
    let client = ctx.caller.client();
    match load::reload_rdb(ctx.core, client, flushes, merges) {
        Ok(()) => done(ctx, "DB reloaded by DEBUG RELOAD"),
        Err(error) => failed(ctx, &error, RDB_FAILED),
    }
}

/// `DEBUG LOADAOF`: OK.
pub(super) fn load_aof(ctx: &mut Context<'_>) -> CommandResult {
    if ctx.origin == Origin::Transaction {
        return Err(IN_TRANSACTION);
    }
    let client = ctx.caller.client();
    match load::reload_aof(ctx.core, client) {
        Ok(()) => done(ctx, "Append Only File loaded by DEBUG LOADAOF"),
        Err(why) => failed(ctx, &why.into(), AOF_FAILED),
    }
}

fn done(ctx: &mut Context<'_>, text: &str) -> CommandResult {
    if !ctx.core.state.replication.is_replica() {
        sessions::count_on_boot_clock(&mut ctx.core.keyspace);
    }
    let in_transaction = ctx.origin == Origin::Transaction;
    // An error is logged, and the data is loaded.
    let _ = replicas::follow_appendonly(ctx.core, in_transaction);
    warning!(ctx.core.state, "{text}");
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

fn failed(ctx: &mut Context<'_>, why: &LoadError, error: CommandError) -> CommandResult {
    why.log(&ctx.core.state);
    if ctx.core.state.persistence.loading.is_some() {
        // The server ends: the client sees its connection close.
        if let Some(id) = ctx.caller.client() {
            ctx.core.state.clients.suspend(id, Suspension::UntilReply);
        }
        return Ok(Outcome::Suspended);
    }
    Err(error)
}
