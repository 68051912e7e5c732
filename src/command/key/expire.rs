//! Deadlines of keys: set, ask, clear.
//!
//! A relative TTL counts on the boot-time clock, an absolute one on the wall clock (`clock.rs`); conditions compare
//! the remaining times.

use crate::clock::{Deadline, Now, UnixMillis};
use crate::config::KeyspaceEvents;
use crate::error::CommandError;
use crate::gate::context::{CommandResult, Context, Outcome};
use crate::gate::spec::{Categories, CommandSpec, Flags, Handler, KeySpec, spec};

pub const COMMANDS: &[CommandSpec] = &[
    sets("EXPIRE", expire).since("1.0.0").docs(
        "key seconds [NX | XX | GT | LT]",
        "Sets in how many seconds a key goes.",
        "O(1)",
    ),
    sets("PEXPIRE", pexpire).since("2.6.0").docs(
        "key milliseconds [NX | XX | GT | LT]",
        "Sets in how many milliseconds a key goes.",
        "O(1)",
    ),
    sets("EXPIREAT", expire_at).since("1.2.0").docs(
        "key unix-time-seconds [NX | XX | GT | LT]",
        "Sets the Unix time, in seconds, at which a key goes.",
        "O(1)",
    ),
    sets("PEXPIREAT", pexpire_at).since("2.6.0").docs(
        "key unix-time-milliseconds [NX | XX | GT | LT]",
        "Sets the Unix time, in milliseconds, at which a key goes.",
        "O(1)",
    ),
    asks("TTL", ttl)
        .since("1.0.0")
        .docs("key", "Tells in how many seconds a key goes.", "O(1)")
        .tips(&["nondeterministic_output"]),
    asks("PTTL", pttl)
        .since("2.6.0")
        .docs("key", "Tells in how many milliseconds a key goes.", "O(1)")
        .tips(&["nondeterministic_output"]),
    asks("EXPIRETIME", expire_time).since("7.0.0").docs(
        "key",
        "Tells the Unix time, in seconds, at which a key goes.",
        "O(1)",
    ),
    asks("PEXPIRETIME", pexpire_time).since("7.0.0").docs(
        "key",
        "Tells the Unix time, in milliseconds, at which a key goes.",
        "O(1)",
    ),
    sets("PERSIST", persist).exactly(2).since("2.2.0").docs(
        "key",
        "Has a key stay until it is deleted.",
        "O(1)",
    ),
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

/// A condition on the key's deadline for setting a new one. A key without one counts as never expiring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    Always,
    /// NX: none.
    Persistent,
    /// XX: any.
    Volatile,
    /// GT, with or without XX: an earlier one.
    Earlier,
    /// LT: a later one, or none.
    LaterOrNone,
    /// XX LT: a later one.
    Later,
}

impl Condition {
    /// Parses `[NX | XX | GT | LT]`; XX may be combined with GT or LT.
    fn parse(ctx: &Context<'_>) -> Result<Self, CommandError> {
        let (mut nx, mut xx, mut gt, mut lt) = (false, false, false, false);
        for option in ctx.args.iter_from(3) {
            let is = |word: &[u8]| option.eq_ignore_ascii_case(word);
            match () {
                () if is(b"NX") => nx = true,
                () if is(b"XX") => xx = true,
                () if is(b"GT") => gt = true,
                () if is(b"LT") => lt = true,
                () => return Err(CommandError::unsupported_option(option)),
            }
        }
        if nx && (xx || gt || lt) {
            return Err(CommandError::NX_WITH_OTHERS);
        }
        match (nx, xx, gt, lt) {
            (_, _, true, true) => Err(CommandError::GT_WITH_LT),
            (true, ..) => Ok(Condition::Persistent),
            (_, _, true, _) => Ok(Condition::Earlier),
            (_, true, _, true) => Ok(Condition::Later),
            (_, _, _, true) => Ok(Condition::LaterOrNone),
            (_, true, ..) => Ok(Condition::Volatile),
            _ => Ok(Condition::Always),
        }
    }

    /// Whether a key that expires in `current` milliseconds (None: never) may get a deadline in `new` milliseconds.
    fn allows(self, current: Option<i64>, new: i64) -> bool {
        match self {
            Condition::Always => true,
            Condition::Persistent => current.is_none(),
            Condition::Volatile => current.is_some(),
            Condition::Earlier => current.is_some_and(|current| current < new),
            Condition::LaterOrNone => current.is_none_or(|current| current > new),
            Condition::Later => current.is_some_and(|current| current > new),
        }
    }
}

/// A new deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    AfterMs(i64),
    At(UnixMillis),
}

impl When {
    /// None if it is outside 64 bits of Unix milliseconds.
    fn after(now: &Now, value: i64, unit_ms: i64) -> Option<Self> {
        let ms = value.checked_mul(unit_ms)?;
        now.unix().0.checked_add(ms).map(|_| When::AfterMs(ms))
    }

    fn at(value: i64, unit_ms: i64) -> Option<Self> {
        value.checked_mul(unit_ms).map(|ms| When::At(UnixMillis(ms)))
    }

    /// Milliseconds left; the key is deleted at once if there are none.
    fn remaining_ms(self, now: &Now) -> i64 {
        match self {
            When::AfterMs(ms) => ms,
            When::At(when) => when.0.saturating_sub(now.unix().0),
        }
    }

    fn deadline(self, now: &Now) -> Deadline {
        match self {
            When::AfterMs(ms) => now.after(ms),
            When::At(when) => now.at(when),
        }
    }
}

/// `EXPIRE key seconds [NX | XX | GT | LT]`: 1, or 0 if there is no such key or the condition fails.
fn expire(ctx: &mut Context<'_>) -> CommandResult {
    set_deadline(ctx, |now, value| When::after(now, value, 1000))
}

/// `PEXPIRE key milliseconds [NX | XX | GT | LT]`: as EXPIRE.
fn pexpire(ctx: &mut Context<'_>) -> CommandResult {
    set_deadline(ctx, |now, value| When::after(now, value, 1))
}

/// `EXPIREAT key unix-time-seconds [NX | XX | GT | LT]`: as EXPIRE.
fn expire_at(ctx: &mut Context<'_>) -> CommandResult {
    set_deadline(ctx, |_, value| When::at(value, 1000))
}

/// `PEXPIREAT key unix-time-milliseconds [NX | XX | GT | LT]`: as EXPIRE.
fn pexpire_at(ctx: &mut Context<'_>) -> CommandResult {
    set_deadline(ctx, |_, value| When::at(value, 1))
}

fn set_deadline(
    ctx: &mut Context<'_>,
    when: impl FnOnce(&Now, i64) -> Option<When>,
) -> CommandResult {
    let condition = Condition::parse(ctx)?;
    let now = ctx.db.now();
    let when = when(&now, ctx.args.integer(2)?);
    let when = when.ok_or_else(|| CommandError::InvalidExpire(ctx.name()))?;
    let remaining_ms = when.remaining_ms(&now);
    let key = ctx.key(1);
    let Some(slot) = ctx.db.find_for_write(key) else {
        ctx.reply.integer(0);
        return Ok(Outcome::Replied);
    };
    let current = ctx.db.entry(slot).deadline().map(|deadline| now.remaining_ms(deadline));
    if !condition.allows(current, remaining_ms) {
        ctx.reply.integer(0);
        return Ok(Outcome::Replied);
    }
    if remaining_ms <= 0 && !now.is_loading && !ctx.db.import_mode {
        ctx.db.delete(key, "del");
        ctx.instead_expired(key.bytes);
    } else {
        let deadline = when.deadline(&now);
        ctx.db.set_deadline(slot, Some(deadline));
        ctx.db.changed(KeyspaceEvents::GENERIC, "expire", key.bytes);
        let (args, offset_ms) = (ctx.args, ctx.db.wall_offset_ms());
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

/// `EXPIRETIME key`: Unix time in seconds, rounded; -1 without a deadline, -2 if there is no such key.
fn expire_time(ctx: &mut Context<'_>) -> CommandResult {
    let offset_ms = ctx.db.wall_offset_ms();
    reply_deadline(ctx, |_, deadline| to_seconds(deadline.unix(offset_ms).0))
}

/// `PEXPIRETIME key`: the same in milliseconds.
fn pexpire_time(ctx: &mut Context<'_>) -> CommandResult {
    let offset_ms = ctx.db.wall_offset_ms();
    reply_deadline(ctx, |_, deadline| deadline.unix(offset_ms).0)
}

fn reply_deadline(
    ctx: &mut Context<'_>,
    tell: impl FnOnce(&Now, Deadline) -> i64,
) -> CommandResult {
    let told = match ctx.db.find_untouched(ctx.key(1)) {
        None => -2,
        Some(slot) => match ctx.db.entry(slot).deadline() {
            None => -1,
            Some(deadline) => tell(&ctx.db.now(), deadline),
        },
    };
    ctx.reply.integer(told);
    Ok(Outcome::Replied)
}

/// Non-negative milliseconds rounded to seconds.
fn to_seconds(ms: i64) -> i64 {
    ms / 1000 + (ms % 1000 >= 500) as i64
}

/// `PERSIST key`: 1, or 0 if there is no such key or it had no deadline.
fn persist(ctx: &mut Context<'_>) -> CommandResult {
    let key = ctx.key(1);
    let cleared = match ctx.db.find_for_write(key) {
        Some(slot) if ctx.db.entry(slot).deadline().is_some() => {
            ctx.db.set_deadline(slot, None);
            ctx.db.changed(KeyspaceEvents::GENERIC, "persist", key.bytes);
            true
        }
        _ => false,
    };
    ctx.reply.integer(cleared as i64);
    Ok(Outcome::Replied)
}
