//! Transactions: MULTI, EXEC, DISCARD, WATCH, UNWATCH.
//!
//! Between MULTI and EXEC the gate checks each command as usual, then queues it in the client's
//! [`Transaction`]. If a command is refused, EXEC fails (EXECABORT); a command that fails while
//! EXEC runs does not undo the others. Watched keys are compared by their counts of changes
//! (`keyspace/watch.rs`).

use crate::client::ClientFlags;
use crate::client::transaction::Transaction;
use crate::command::{lock, stream};
use crate::durability::persistence;
use crate::error::CommandError;
use crate::gate::execute::{Gate, Ran, Request};
use crate::gate::transaction::{abandon, forget_watched};
use crate::gate::{cluster, permits, slot_costs};
use crate::resp::reply::ReplyWriter;
use crate::roles::cluster::lists;
use crate::state::context::{CommandResult, Context, Origin, Outcome};
use crate::state::spec::{CommandSpec, Flags, Group, KeyFlags, keys, spec};

const AT_ANY_TIME: Flags = Flags::NOSCRIPT
    .union(Flags::LOADING)
    .union(Flags::STALE)
    .union(Flags::FAST)
    .union(Flags::ALLOW_BUSY);

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    spec("MULTI", multi).exactly(1).flags(AT_ANY_TIME).with(Flags::NEVER_QUEUED.union(Flags::NEEDS_CLIENT)).group(Group::Transactions).since("1.2.0")
        .docs("", "Begins a transaction: the following commands are queued until EXEC.", "O(1)"),
    spec("EXEC", exec).exactly(1).flags(Flags::NOSCRIPT.union(Flags::LOADING).union(Flags::STALE).union(Flags::SKIP_SLOWLOG))
        .with(Flags::NEVER_QUEUED.union(Flags::RUNS_QUEUED).union(Flags::NEEDS_CLIENT)).group(Group::Transactions).since("1.2.0")
        .docs("", "Runs the commands of the transaction.", "Depends on the commands"),
    spec("DISCARD", discard).exactly(1).flags(AT_ANY_TIME).with(Flags::NEVER_QUEUED.union(Flags::ENDS_TRANSACTION).union(Flags::NEEDS_CLIENT))
        .group(Group::Transactions).since("2.0.0")
        .docs("", "Discards the transaction.", "O(N), N commands kept"),
    spec("WATCH", watch).at_least(2).keys(&[keys(1, -1, 1, KeyFlags::RO)]).flags(AT_ANY_TIME).with(Flags::NEVER_QUEUED.union(Flags::NEEDS_CLIENT))
        .group(Group::Transactions).since("2.2.0")
        .docs("key [key ...]", "Makes the next EXEC run only if these keys do not change.", "O(1) a key"),
    spec("UNWATCH", unwatch).exactly(1).flags(AT_ANY_TIME).with(Flags::NEEDS_CLIENT).group(Group::Transactions).since("2.2.0")
        .docs("", "Unwatches all keys.", "O(1)"),
];

const NESTED: CommandError = CommandError::Text("ERR MULTI calls can not be nested");
const EXEC_WITHOUT_MULTI: CommandError = CommandError::Text("ERR EXEC without MULTI");
const DISCARD_WITHOUT_MULTI: CommandError = CommandError::Text("ERR DISCARD without MULTI");
const WATCH_INSIDE_MULTI: CommandError =
    CommandError::Text("ERR WATCH inside MULTI is not allowed");
const ABORTED: CommandError =
    CommandError::Text("EXECABORT Transaction discarded because of previous errors.");

/// `MULTI`: OK.
fn multi(ctx: &mut Context<'_>) -> CommandResult {
    if ctx.client().transaction.is_some() {
        return Err(NESTED);
    }
    let spare = ctx.core.state.clients.spare_transaction.take();
    let client = ctx.client();
    client.transaction = Some(spare.unwrap_or_default());
    client.flags |= ClientFlags::IN_TRANSACTION;
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// `EXEC`: an array of the commands' replies, or nil if a watched key has changed.
fn exec(ctx: &mut Context<'_>) -> CommandResult {
    let names_slot = |transaction: &Transaction| transaction.has_any(Flags::NAMES_SLOT);
    if ctx.client().transaction.as_deref().is_some_and(names_slot)
        && ctx.core.state.node.cluster.is_some()
        && !lists::ask_for_command(ctx)
    {
        return Ok(Outcome::Postponed);
    }
    let Some(transaction) = ctx.client().transaction.take() else {
        return Err(EXEC_WITHOUT_MULTI);
    };
    let changed = watched_have_changed(ctx);
    let client =
        ctx.core.state.clients.get_mut(ctx.client_id()).expect("a client outlives its command");
    abandon(&mut ctx.core.keyspace, client);
    if transaction.failed {
        return Err(ABORTED);
    }
    if changed || transaction.has_any(Flags::GUARDS) && !guards_hold(ctx, &transaction) {
        ctx.reply.null_array();
        return Ok(Outcome::Replied);
    }
    if transaction.has_any(Flags::LONG) {
        persistence::spread_effects(&mut ctx.core.state);
    }
    ctx.reply.array(transaction.len());
    // The work so far is no part of the first command's time, but of EXEC's, as all its commands'.
    let begun = ctx.core.state.stats.timing.mark();
    ctx.core.state.stats.timing.start();
    let gathered = ctx.core.state.effects.gather(true);
    let mut last = Outcome::Replied;
    let protocol = ctx.reply.protocol();
    let reply = ReplyWriter::new(ctx.reply.output(), protocol);
    let mut gate = Gate::new(ctx.core, ctx.caller, reply);
    for (command, args, hashes) in transaction.requests() {
        let command = gate.core.state.commands.get(command);
        let request = Request { args, command, hashes, origin: Origin::Transaction };
        match gate.run_queued(&request) {
            Ran::Closes => last = Outcome::Close,
            Ran::Suspended | Ran::Waits(_) => last = Outcome::Suspended,
            Ran::Done | Ran::DoneMuch | Ran::NotYet => {}
        }
    }
    let protocol = gate.reply.protocol();
    ctx.reply.set_protocol(protocol);
    ctx.core.state.effects.gather(gathered);
    ctx.core.state.stats.timing.go_back(begun);
    if slot_costs::are_counted(&ctx.core.state) {
        let slot = transaction.requests().find_map(|(command, args, _)| {
            cluster::slot_of(ctx.core.state.commands.get(command), args)
        });
        slot_costs::note_group(&mut ctx.core.state, slot);
    }
    ctx.core.state.clients.spare_transaction = transaction.emptied();
    Ok(last)
}

/// Whether each LOCK.GUARD of a transaction finds its lock held, and each XGUARD its entries
/// pending, in the database that is selected now.
fn guards_hold(ctx: &mut Context<'_>, transaction: &Transaction) -> bool {
    transaction.requests().all(|(command, args, _)| {
        let command = ctx.core.state.commands.get(command);
        let holds = match command.spec.group {
            _ if !command.is(Flags::GUARDS) => return true,
            Group::Stream => stream::owner::is_guarded(ctx, args),
            _ => lock::is_guarded(ctx, args),
        };
        holds.unwrap_or(false)
    })
}

/// Whether one of the client's watched keys has changed or expired.
fn watched_have_changed(ctx: &mut Context<'_>) -> bool {
    let watching = ctx.client().watching.take();
    if !ctx.core.keyspace.semaphores.is_empty() {
        // A permit that has ended is a change, even if no command has removed it yet.
        let before = ctx.core.keyspace.changes_by_commands();
        for (database, key, _) in watching.iter().flat_map(|watching| watching.keys()) {
            permits::remove_ended(ctx.core, database, key);
        }
        ctx.note_own_effects(before);
    }
    let keyspace = &mut ctx.core.keyspace;
    let changed =
        watching.iter().flat_map(|watching| watching.keys()).any(|(database, key, changes)| {
            // The look-up deletes an expired key, which counts as a change.
            keyspace.in_database(database, |keyspace| keyspace.find(keyspace.key(key)));
            keyspace.watch.has_changed(database, key, changes)
        });
    ctx.client().watching = watching;
    changed
}

/// `DISCARD`: OK.
fn discard(ctx: &mut Context<'_>) -> CommandResult {
    let client =
        ctx.core.state.clients.get_mut(ctx.client_id()).expect("a client outlives its command");
    if client.transaction.is_none() {
        return Err(DISCARD_WITHOUT_MULTI);
    }
    abandon(&mut ctx.core.keyspace, client);
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// `WATCH key [key ...]`: OK.
fn watch(ctx: &mut Context<'_>) -> CommandResult {
    if ctx.client().transaction.is_some() {
        return Err(WATCH_INSIDE_MULTI);
    }
    let database = ctx.core.keyspace.selected();
    for index in 1..ctx.args.len() {
        let key = ctx.key(index);
        let watching = ctx.client().watching.as_deref();
        if watching.is_some_and(|watching| watching.contains(database, key.bytes)) {
            continue;
        }
        // An expired key is deleted first, so that this does not count as a change later.
        ctx.core.keyspace.find(key);
        let changes = ctx.core.keyspace.watch.add(database, key.bytes);
        ctx.client().watching.get_or_insert_default().insert(database, key.bytes, changes);
    }
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// `UNWATCH`: OK.
fn unwatch(ctx: &mut Context<'_>) -> CommandResult {
    let client =
        ctx.core.state.clients.get_mut(ctx.client_id()).expect("a client outlives its command");
    forget_watched(&mut ctx.core.keyspace, client);
    ctx.reply.ok();
    Ok(Outcome::Replied)
}
