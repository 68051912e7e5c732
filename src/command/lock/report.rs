//! Locks for operators: LOCK.INFO, LOCK.WAITERS, LOCK.LIST, and LOCK.BREAK, which ends one.

use super::shared::{break_reader, reader_ms_left};
use super::{find, lock_spec, may_use, ms_left, owner_of, pass_on_broken, take_fence};
use crate::client::ClientId;
use crate::collections::glob;
use crate::error::CommandError;
use crate::gate::cycles::{self, Cycle};
use crate::keyspace::Key;
use crate::keyspace::locks::{At, Held};
use crate::keyspace::waiting::{Ticket, Wanted};
use crate::state::context::{CommandResult, Context, Outcome};
use crate::state::spec::{CommandSpec, Flags, KeySpec};
use crate::sys::log::notice;
use crate::types::lock::{self, Lock};

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    lock_spec("LOCK.BREAK", break_lock, Flags::WRITE_FAST.union(Flags::ADMIN)).at_least(2).keys(KeySpec::RW_DELETE)
        .docs("key [FENCE fence]", "Takes a lock from its owner, and passes it on to the first client that waits for it.", "O(1)"),
    lock_spec("LOCK.CYCLES", cycles, Flags::READONLY).exactly(1)
        .docs("", "Returns the owners in the selected database that wait for each other's locks in a circle.",
            "O(N) with N waiting clients, of which 10000 at most are looked at"),
    lock_spec("LOCK.INFO", info, Flags::READONLY_FAST).exactly(2).keys(KeySpec::RO_ACCESS)
        .docs("key", "Returns a lock's holders and waiting clients, and how its last lease was lost.", "O(N) with N waiting clients"),
    lock_spec("LOCK.LIST", list, Flags::READONLY).at_least(1)
        .docs("[MATCH pattern] [OWNER owner] [COUNT count] [CURSOR cursor]",
            "Returns the held locks of the selected database in the order of their keys, some in each call.",
            "O(log(N)+M) with N the number of locks and M the number of locks looked at."),
    lock_spec("LOCK.WAITERS", waiters, Flags::READONLY).at_least(2).keys(KeySpec::RO)
        .docs("key [COUNT count]", "Returns the clients that wait for a lock, in the order in which they will be served.",
            "O(N) with N the number of clients returned"),
];

const BAD_CURSOR: CommandError = CommandError::NegativeOrInvalidCursor;
/// Locks and waiting clients in a reply, unless COUNT says otherwise.
const COUNT: usize = 100;
/// The most locks that one LOCK.LIST visits.
const LOOKS_MAX: usize = 10_000;

/// `LOCK.INFO key`: a map of mode, owners, waiters and the last involuntary end.
fn info(ctx: &mut Context<'_>) -> CommandResult {
    let key = ctx.key(1);
    let found = find(ctx, key, b"")?;
    let lock = match found {
        (Some(slot), Some(lock)) => Some((lock, ms_left(ctx, slot))),
        _ => None,
    };
    reply_info(ctx, key, lock);
    Ok(Outcome::Replied)
}

/// An owner as LOCK.INFO shows it.
struct Holder {
    owner: Vec<u8>,
    holds: i64,
    fence: Option<u64>,
    ms_left: i64,
    since_ms: Option<i64>,
    /// Grace and lease of its session, in milliseconds.
    session: Option<(i64, i64)>,
    renewals: u32,
    client: Option<ClientId>,
}

/// The holders of a lock. `ms_left`: of its lease, if readers do not hold it.
fn holders(ctx: &Context<'_>, key: Key<'_>, lock: Lock<'_>, ms_left: i64) -> Vec<Holder> {
    let database = ctx.core.keyspace.selected();
    if lock.readers == 0 {
        let held = ctx.core.keyspace.locks.get(At::key(database, key.bytes));
        let (client, renewals) = held.map_or((None, 0), |held| (held.client, held.renewals));
        let Lock { owner, holds, fence, since_ms, session, .. } = lock;
        let owner = owner.into_owned();
        return vec![Holder { owner, holds, fence, ms_left, since_ms, session, renewals, client }];
    }
    let reader = |(owner, held): (&[u8], &Held)| Holder {
        owner: owner.to_vec(),
        holds: 1,
        fence: Some(held.fence),
        ms_left: reader_ms_left(ctx, At::reader(database, key.bytes, owner)),
        since_ms: held.reading.as_ref().and_then(|reading| reading.since_ms),
        session: held.session_ms(),
        renewals: held.renewals,
        client: held.client,
    };
    ctx.core.keyspace.locks.readers(database, key.bytes).map(reader).collect()
}

/// The map of LOCK.INFO. `lock`: the lock with the milliseconds left of its lease.
fn reply_info(ctx: &mut Context<'_>, key: Key<'_>, lock: Option<(Lock<'_>, i64)>) {
    let database = ctx.core.keyspace.selected();
    ctx.reply.map(5);
    ctx.reply.bulk(b"mode");
    ctx.reply.bulk(match &lock {
        None => b"free",
        Some((lock, _)) if *lock.owner == *lock::KEEP => b"kept",
        Some((lock, _)) if lock.readers > 0 => b"shared",
        Some(_) => b"exclusive",
    });
    ctx.reply.bulk(b"owners");
    let owners = lock.map_or(Vec::new(), |(lock, ms_left)| holders(ctx, key, lock, ms_left));
    ctx.reply.array(owners.len());
    for holder in owners {
        ctx.reply.map(8);
        ctx.reply.bulk(b"owner");
        ctx.reply.bulk(&holder.owner);
        ctx.reply.bulk(b"holds");
        ctx.reply.integer(holder.holds);
        ctx.reply.bulk(b"fence");
        reply_known(ctx, holder.fence.map(|fence| fence as i64));
        ctx.reply.bulk(b"ms-left");
        ctx.reply.integer(holder.ms_left);
        ctx.reply.bulk(b"since");
        reply_known(ctx, holder.since_ms);
        ctx.reply.bulk(b"session");
        reply_session(ctx, holder.session);
        ctx.reply.bulk(b"renewals");
        ctx.reply.integer(i64::from(holder.renewals));
        ctx.reply.bulk(b"client");
        reply_client(ctx, holder.client);
    }
    ctx.reply.bulk(b"waiters");
    ctx.reply.integer(ctx.core.keyspace.waiting.len(database, key.bytes, Wanted::Lock) as i64);
    ctx.reply.bulk(b"grants");
    ctx.reply.integer(ctx.core.keyspace.locks.grants_of(database, key) as i64);
    ctx.reply.bulk(b"last-end");
    match ctx.core.keyspace.locks.history.last_end(database, key.bytes) {
        None => ctx.reply.null(),
        Some(end) => {
            ctx.reply.map(4);
            ctx.reply.bulk(b"owner");
            ctx.reply.bulk(&end.who);
            ctx.reply.bulk(b"fence");
            ctx.reply.integer(end.fence as i64);
            ctx.reply.bulk(b"reason");
            ctx.reply.bulk(end.reason.name().as_bytes());
            ctx.reply.bulk(b"at");
            ctx.reply.integer(end.at_ms);
        }
    }
}

fn reply_known(ctx: &mut Context<'_>, number: Option<i64>) {
    match number {
        Some(number) => ctx.reply.integer(number),
        None => ctx.reply.null(),
    }
}

/// Grace and lease of a session, in milliseconds, or nil.
fn reply_session(ctx: &mut Context<'_>, session: Option<(i64, i64)>) {
    let Some((grace_ms, lease_ms)) = session else { return ctx.reply.null() };
    ctx.reply.map(2);
    ctx.reply.bulk(b"grace");
    ctx.reply.integer(grace_ms);
    ctx.reply.bulk(b"lease");
    ctx.reply.integer(lease_ms);
}

/// A client that is still connected, or nil.
fn reply_client(ctx: &mut Context<'_>, id: Option<ClientId>) {
    let Some(client) = id.and_then(|id| ctx.core.state.clients.get(id)) else {
        return ctx.reply.null();
    };
    ctx.reply.map(4);
    ctx.reply.bulk(b"id");
    ctx.reply.integer(client.id.number as i64);
    ctx.reply.bulk(b"addr");
    ctx.reply.bulk_display(&client.peer);
    ctx.reply.bulk(b"name");
    ctx.reply.bulk(&client.name);
    ctx.reply.bulk(b"lib-name");
    ctx.reply.bulk(&client.library_name);
}

/// `LOCK.WAITERS key [COUNT count]`: an array of maps of place, owner, mode, waited-ms, ms-left
/// (-1: for ever) and client.
fn waiters(ctx: &mut Context<'_>) -> CommandResult {
    let mut arguments = ctx.args.cursor(2);
    let mut count = COUNT;
    while !arguments.is_at_end() {
        if !arguments.take_word("COUNT") {
            return Err(CommandError::Syntax);
        }
        count = arguments.take_positive(CommandError::SMALL_COUNT)?;
    }
    let (key, database) = (ctx.key(1), ctx.core.keyspace.selected());
    let waiting: Vec<Ticket> =
        ctx.core.keyspace.waiting.iter(database, key.bytes, Wanted::Lock).take(count).collect();
    let now_us = ctx.core.state.now.boot_us;
    ctx.reply.array(waiting.len());
    for (place, ticket) in (1..).zip(waiting) {
        let Some(wait) = ctx.core.state.waits.get(ticket) else { continue };
        let (client, since_us, deadline_us) = (wait.client, wait.since_us, wait.deadline());
        ctx.reply.map(6);
        ctx.reply.bulk(b"place");
        ctx.reply.integer(place);
        ctx.reply.bulk(b"owner");
        ctx.reply.bulk(wait.owner());
        ctx.reply.bulk(b"mode");
        ctx.reply.bulk(if wait.asks_to_read() { b"shared" } else { b"exclusive" });
        ctx.reply.bulk(b"waited-ms");
        ctx.reply.integer((now_us - since_us) / 1000);
        ctx.reply.bulk(b"ms-left");
        ctx.reply.integer(deadline_us.map_or(-1, |at| ((at - now_us) / 1000).max(0)));
        ctx.reply.bulk(b"client");
        reply_client(ctx, Some(client));
    }
    Ok(Outcome::Replied)
}

/// `LOCK.LIST [MATCH pattern] [OWNER owner] [COUNT count] [CURSOR cursor]`: the next cursor, "0"
/// after the last lock, and an array of pairs of key and LOCK.INFO's map. A lock that is held
/// during a whole iteration is returned once.
fn list(ctx: &mut Context<'_>) -> CommandResult {
    let mut arguments = ctx.args.cursor(1);
    let (mut pattern, mut owner, mut count, mut after) = (None, None, COUNT, None);
    while !arguments.is_at_end() {
        if arguments.take_word("MATCH") {
            pattern = Some(arguments.take()?);
        } else if arguments.take_word("OWNER") {
            owner = Some(owner_of(arguments.take()?)?);
        } else if arguments.take_word("COUNT") {
            count = arguments.take_positive(CommandError::SMALL_COUNT)?;
        } else if arguments.take_word("CURSOR") {
            after = match arguments.take()? {
                b"0" => None,
                [b'+', key @ ..] => Some(key),
                _ => return Err(BAD_CURSOR),
            };
        } else {
            return Err(CommandError::Syntax);
        }
    }
    let database = ctx.core.keyspace.selected();
    let mut listed: Vec<(Vec<u8>, Lock<'static>, i64)> = Vec::new();
    let mut next = None;
    for (looked_at, (name, _)) in ctx.core.keyspace.locks.iter_after(database, after).enumerate() {
        if listed.len() >= count || looked_at >= LOOKS_MAX {
            break;
        }
        next = Some(name);
        if pattern.is_some_and(|pattern| !glob::matches(pattern, name, false)) {
            continue;
        }
        let Some(slot) = ctx.core.keyspace.find_quietly(ctx.core.keyspace.key(name)) else {
            continue;
        };
        let (value, now) = (ctx.core.keyspace.entry(slot).value(), ctx.core.keyspace.now());
        let found = lock::read_for(value, &now, owner.unwrap_or_default());
        if let Ok(Some(lock)) = found
            && !ctx.core.keyspace.is_hidden(name)
            && may_use(ctx, "LOCK.INFO", &[name])
            && owner.is_none_or(|owner| lock.is_held_by(owner, None))
        {
            listed.push((name.to_vec(), lock.into_owned(), ms_left(ctx, slot)));
        }
    }
    let is_last = next.is_none_or(|next| {
        ctx.core.keyspace.locks.iter_after(database, Some(next)).next().is_none()
    });
    let cursor = match next {
        Some(next) if !is_last => [b"+", next].concat(),
        _ => b"0".to_vec(),
    };
    ctx.reply.array(2);
    ctx.reply.bulk(&cursor);
    ctx.reply.array(listed.len());
    for (name, lock, ms_left) in listed {
        ctx.reply.array(2);
        ctx.reply.bulk(&name);
        let key = ctx.core.keyspace.key(&name);
        reply_info(ctx, key, Some((lock, ms_left)));
    }
    Ok(Outcome::Replied)
}

/// `LOCK.CYCLES`: an array of cycles, each an array of pairs of an owner and the key for which it
/// waits; the next pair's owner holds that key.
fn cycles(ctx: &mut Context<'_>) -> CommandResult {
    let database = ctx.core.keyspace.selected();
    let found = cycles::find(ctx.core, database);
    let may_see = |(_, key): &(Vec<u8>, Vec<u8>)| may_use(ctx, "LOCK.INFO", &[key]);
    let shown: Vec<Cycle> = found.into_iter().filter(|cycle| cycle.iter().all(may_see)).collect();
    ctx.reply.array(shown.len());
    for cycle in shown {
        ctx.reply.array(cycle.len());
        for (owner, key) in cycle {
            ctx.reply.array(2);
            ctx.reply.bulk(&owner);
            ctx.reply.bulk(&key);
        }
    }
    Ok(Outcome::Replied)
}

/// `LOCK.BREAK key [FENCE fence]`: 1 if a lock was broken, 0 if there is none, or the fence is that
/// of another grant.
fn break_lock(ctx: &mut Context<'_>) -> CommandResult {
    let mut arguments = ctx.args.cursor(2);
    let mut fence = None;
    while !arguments.is_at_end() {
        if fence.is_some() || !arguments.take_word("FENCE") {
            return Err(CommandError::Syntax);
        }
        fence = Some(take_fence(&mut arguments)?);
    }
    let key = ctx.key(1);
    let found = find(ctx, key, b"")?;
    let reader = fence.and_then(|fence| reader_with(ctx, key, fence));
    let broken = match (found, reader) {
        ((Some(_), Some(lock)), Some(reader)) if lock.readers > 1 => {
            log_broken(ctx, key, &reader);
            break_reader(ctx, key, &reader);
            true
        }
        ((Some(slot), Some(lock)), reader)
            if fence.is_none() || lock.fence == fence || reader.is_some() =>
        {
            log_broken(ctx, key, &lock.owner);
            pass_on_broken(ctx, key, slot, &lock.owner);
            true
        }
        _ => false,
    };
    ctx.reply.integer(i64::from(broken));
    Ok(Outcome::Replied)
}

fn log_broken(ctx: &Context<'_>, key: Key<'_>, owner: &[u8]) {
    let (name, owner) = (key.bytes.escape_ascii(), owner.escape_ascii());
    if ctx.core.state.config.hide_user_data_from_log {
        notice!(ctx.core.state, "Lock broken by LOCK.BREAK");
    } else {
        notice!(ctx.core.state, "Lock {name} of {owner} broken by LOCK.BREAK");
    }
}

/// The reader of a lock that has this fence.
fn reader_with(ctx: &Context<'_>, key: Key<'_>, fence: u64) -> Option<Vec<u8>> {
    let mut readers = ctx.core.keyspace.locks.readers(ctx.core.keyspace.selected(), key.bytes);
    readers.find(|(_, held)| held.fence == fence).map(|(owner, _)| owner.to_vec())
}
