//! Deadlines of keys: set, ask, clear.
//!
//! Times and conditions are parsed by `command/deadline.rs`.

use crate::clock::{Deadline, Now};
use crate::command::deadline::{Condition, TimeUnit, to_seconds};
use crate::config::KeyspaceEvents;
use crate::state::context::{CommandResult, Context, Outcome};
use crate::state::spec::{Categories, CommandSpec, Flags, Handler, KeySpec, spec};

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    sets("EXPIRE", expire).since("1.0.0")
        .docs("key seconds [NX | XX | GT | LT]", "Sets a key's time to live in seconds.", "O(1)"),
    sets("PEXPIRE", pexpire).since("2.6.0")
        .docs("key milliseconds [NX | XX | GT | LT]", "Sets a key's time to live in milliseconds.", "O(1)"),
    sets("EXPIREAT", expire_at).since("1.2.0")
        .docs("key unix-time-seconds [NX | XX | GT | LT]", "Sets the Unix time, in seconds, at which a key expires.", "O(1)"),
    sets("PEXPIREAT", pexpire_at).since("2.6.0")
        .docs("key unix-time-milliseconds [NX | XX | GT | LT]", "Sets the Unix time, in milliseconds, at which a key expires.", "O(1)"),
    asks("TTL", ttl).since("1.0.0").tips(&["nondeterministic_output"])
        .docs("key", "Returns a key's time to live in seconds.", "O(1)"),
    asks("PTTL", pttl).since("2.6.0").tips(&["nondeterministic_output"])
        .docs("key", "Returns a key's time to live in milliseconds.", "O(1)"),
    asks("EXPIRETIME", expire_time).since("7.0.0")
        .docs("key", "Returns the Unix time, in seconds, at which a key expires.", "O(1)"),
    asks("PEXPIRETIME", pexpire_time).since("7.0.0")
        .docs("key", "Returns the Unix time, in milliseconds, at which a key expires.", "O(1)"),
    sets("PERSIST", persist).exactly(2).since("2.2.0")
        .docs("key", "Removes a key's deadline.", "O(1)"),
];

const fn sets(name: &'static str, handler: Handler) -> CommandSpec {
    spec(name, handler)
        .at_least(3)
        .keys(KeySpec::RW_UPDATE)
        .flags(Flags::WRITE_FAST)
        .categories(Categories::KEYSPACE)
}

const fn asks(name: &'static str, handler: Handler) -> CommandSpec {
    spec(name, handler)
        .exactly(2)
        .keys(KeySpec::RO_ACCESS)
        .flags(Flags::READONLY_FAST)
        .categories(Categories::KEYSPACE)
}

/// `EXPIRE key seconds [NX | XX | GT | LT]`: 1, or 0 if there is no such key or the condition
/// fails.
fn expire(ctx: &mut Context<'_>) -> CommandResult {
    set_deadline(ctx, TimeUnit::Seconds)
}

/// `PEXPIRE key milliseconds [NX | XX | GT | LT]`: as EXPIRE.
fn pexpire(ctx: &mut Context<'_>) -> CommandResult {
    set_deadline(ctx, TimeUnit::Milliseconds)
}

/// `EXPIREAT key unix-time-seconds [NX | XX | GT | LT]`: as EXPIRE.
fn expire_at(ctx: &mut Context<'_>) -> CommandResult {
    set_deadline(ctx, TimeUnit::UnixSeconds)
}

/// `PEXPIREAT key unix-time-milliseconds [NX | XX | GT | LT]`: as EXPIRE.
fn pexpire_at(ctx: &mut Context<'_>) -> CommandResult {
    set_deadline(ctx, TimeUnit::UnixMilliseconds)
}

fn set_deadline(ctx: &mut Context<'_>, unit: TimeUnit) -> CommandResult {
    let condition = Condition::parse(ctx.args.cursor(3))?;
    let now = ctx.core.keyspace.now();
    let when = unit.parse(ctx.args.get(2), &now, ctx.name(), |_, _| true)?;
    let remaining_ms = when.remaining_ms(&now);
    let key = ctx.key(1);
    let Some(slot) = ctx.core.keyspace.find_for_write(key) else {
        ctx.reply.integer(0);
        return Ok(Outcome::Replied);
    };
    let current =
        ctx.core.keyspace.entry(slot).deadline().map(|deadline| now.remaining_ms(deadline));
    if !condition.allows(current, remaining_ms) {
        ctx.reply.integer(0);
        return Ok(Outcome::Replied);
    }
    let deadline = when.deadline(&now);
    if ctx.core.keyspace.ends_at_once(deadline) {
        ctx.delete_overdue(slot, key);
    } else {
        ctx.core.keyspace.set_deadline(slot, Some(deadline));
        ctx.core.keyspace.changed(KeyspaceEvents::GENERIC, "expire", key.bytes);
        let (args, offset_ms) = (ctx.args, ctx.core.keyspace.shown_offset_ms());
        ctx.instead_gathered(|ctx, request| {
            let is_exact = ctx.name() == "pexpireat";
            request.push(if is_exact { args.get(0) } else { b"PEXPIREAT" }.to_vec());
            request.push(key.bytes.to_vec());
            request.push(deadline.unix(offset_ms).0.to_string().into_bytes());
            request.extend(args.iter_from(3).map(<[u8]>::to_vec));
        });
    }
    ctx.reply.integer(1);
    Ok(Outcome::Replied)
}

/// `TTL key`: seconds left, rounded; -1 without a deadline, -2 if there is no such key.
fn ttl(ctx: &mut Context<'_>) -> CommandResult {
    reply_deadline(ctx, |now, deadline| to_seconds(now.remaining_ms(deadline)))
}

/// `PTTL key`: the same in milliseconds.
fn pttl(ctx: &mut Context<'_>) -> CommandResult {
    reply_deadline(ctx, |now, deadline| now.remaining_ms(deadline))
}

/// `EXPIRETIME key`: Unix time in seconds, rounded; -1 without a deadline, -2 if there is no such
/// key.
fn expire_time(ctx: &mut Context<'_>) -> CommandResult {
    let offset_ms = ctx.core.keyspace.shown_offset_ms();
    reply_deadline(ctx, |_, deadline| to_seconds(deadline.unix(offset_ms).0))
}

/// `PEXPIRETIME key`: the same in milliseconds.
fn pexpire_time(ctx: &mut Context<'_>) -> CommandResult {
    let offset_ms = ctx.core.keyspace.shown_offset_ms();
    reply_deadline(ctx, |_, deadline| deadline.unix(offset_ms).0)
}

fn reply_deadline(
    ctx: &mut Context<'_>,
    tell: impl FnOnce(&Now, Deadline) -> i64,
) -> CommandResult {
    let told = match ctx.core.keyspace.find_untouched(ctx.key(1)) {
        None => -2,
        Some(slot) => match ctx.core.keyspace.entry(slot).deadline() {
            None => -1,
            Some(deadline) => tell(&ctx.core.keyspace.now(), deadline),
        },
    };
    ctx.reply.integer(told);
    Ok(Outcome::Replied)
}

/// `PERSIST key`: 1, or 0 if there is no such key or it had no deadline.
fn persist(ctx: &mut Context<'_>) -> CommandResult {
    let key = ctx.key(1);
    let cleared = match ctx.core.keyspace.find_for_write(key) {
        Some(slot) if ctx.core.keyspace.entry(slot).deadline().is_some() => {
            ctx.core.keyspace.set_deadline(slot, None);
            ctx.core.keyspace.changed(KeyspaceEvents::GENERIC, "persist", key.bytes);
            true
        }
        _ => false,
    };
    ctx.reply.integer(cleared as i64);
    Ok(Outcome::Replied)
}
