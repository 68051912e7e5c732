//! Strings: setting, reading and deleting. Commands on parts and numbers are in `string/edit.rs`,
//! LCS in `string/lcs.rs`, those of rate limiters in `string/limit.rs`.

pub(crate) mod bitmap;
pub(crate) mod edit;
pub(crate) mod hyperloglog;
pub(crate) mod lcs;
pub(crate) mod limit;
pub(crate) mod options;

use std::ops::Range;

use crate::collections::lent::LENT_MIN;
use crate::collections::shared_bytes::SharedBytes;
use crate::collections::table::Slot;
use crate::command::deadline::{Lifetime, TimeUnit};
use crate::command::string::edit::{
    append, decr, decrby, getrange, incr, incrby, incrbyfloat, setrange, strlen,
};
use crate::command::string::lcs::lcs;
use crate::command::string::options::{
    Comparison, Condition, SetOptions, digest as digest_of, parse_expiry, parse_getex, parse_time,
};
use crate::config::KeyspaceEvents;
use crate::error::CommandError;
use crate::keyspace::{Expiry, Key};
use crate::resp::args::BadKeyCount;
use crate::resp::reply::ReplyWriter;
use crate::state::context::{CommandResult, Context, Outcome};
use crate::state::spec::{
    Begin, CommandSpec, Find, Flags, Group, KeyFlags, KeyRule, KeySpec, key, keys, spec,
};
use crate::types::lock;
use crate::types::string::StringView;

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    string_spec("APPEND", append, "2.0.0", Flags::WRITE_DENYOOM_FAST).exactly(3).keys(&[key(1, KeyFlags::RW_INSERT)])
        .docs("key value", "Appends bytes to a string, creating it if necessary.", "O(N) where N is the length of the value"),
    string_spec("DECR", decr, "1.0.0", Flags::WRITE_DENYOOM_FAST).exactly(2).keys(KeySpec::RW_ACCESS_UPDATE)
        .docs("key", "Subtracts one from a key's integer, which is 0 if missing.", "O(1)"),
    string_spec("DECRBY", decrby, "1.0.0", Flags::WRITE_DENYOOM_FAST).exactly(3).keys(KeySpec::RW_ACCESS_UPDATE)
        .docs("key decrement", "Subtracts from a key's integer, which is 0 if missing.", "O(1)"),
    string_spec("DELEX", delex, "8.4.0", Flags::WRITE_FAST).key_rule(KeyRule::Compared).at_least(2).keys(&[key(1, KeyFlags::RW.union(KeyFlags::DELETE).union(KeyFlags::VARIABLE_FLAGS))])
        .docs("key [IFEQ value | IFNE value | IFDEQ digest | IFDNE digest]", "Deletes a key if its string or the string's digest meets the condition.",
            "O(1) for IFEQ and IFNE, O(N) for digests, where N is the length of the string"),
    string_spec("DELIFEQ", delifeq, "9.0.0", Flags::WRITE_FAST).exactly(3).keys(&[key(1, KeyFlags::RM_DELETE)])
        .docs("key value", "Deletes a key if it holds this string.", "O(1)"),
    string_spec("DIGEST", digest, "8.4.0", Flags::READONLY_FAST).exactly(2).keys(KeySpec::RO_ACCESS)
        .docs("key", "Returns the XXH3 hash of the string a key holds, in hexadecimal.", "O(N) where N is the length of the string"),
    string_spec("GET", get, "1.0.0", Flags::READONLY_FAST).exactly(2).keys(KeySpec::RO_ACCESS)
        .docs("key", "Returns the string a key holds.", "O(1)"),
    string_spec("GETDEL", getdel, "6.2.0", Flags::WRITE_FAST).exactly(2).keys(&[key(1, KeyFlags::RW_ACCESS_DELETE)])
        .docs("key", "Returns the string a key holds and deletes the key.", "O(1)"),
    string_spec("GETEX", getex, "6.2.0", Flags::WRITE_FAST).at_least(2)
        .keys(&[key(1, KeyFlags::RW_ACCESS_UPDATE).noted("RW and UPDATE because it changes the TTL")])
        .docs("key [EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds | PERSIST]",
            "Returns the string a key holds, and sets or removes the key's expiry.", "O(1)"),
    string_spec("GETRANGE", getrange, "2.4.0", Flags::READONLY).exactly(4).keys(KeySpec::RO_ACCESS)
        .docs("key start end", "Returns a part of the string a key holds.", "O(N) where N is the length of the part"),
    string_spec("GETSET", getset, "1.0.0", Flags::WRITE_DENYOOM_FAST).exactly(3).keys(KeySpec::RW_ACCESS_UPDATE)
        .docs("key value", "Sets a key to a string and returns the one it held.", "O(1)").deprecated("6.2.0", "`SET` with the `!GET` argument"),
    string_spec("INCR", incr, "1.0.0", Flags::WRITE_DENYOOM_FAST).exactly(2).keys(KeySpec::RW_ACCESS_UPDATE)
        .docs("key", "Adds one to a key's integer, which is 0 if missing.", "O(1)"),
    string_spec("INCRBY", incrby, "1.0.0", Flags::WRITE_DENYOOM_FAST).exactly(3).keys(KeySpec::RW_ACCESS_UPDATE)
        .docs("key increment", "Adds to a key's integer, which is 0 if missing.", "O(1)"),
    string_spec("INCRBYFLOAT", incrbyfloat, "2.6.0", Flags::WRITE_DENYOOM_FAST).exactly(3).keys(KeySpec::RW_ACCESS_UPDATE)
        .docs("key increment", "Adds to a key's floating-point number, which is 0 if missing.", "O(1)"),
    string_spec("LCS", lcs, "7.0.0", Flags::READONLY).at_least(3).keys(&[keys(1, 1, 1, KeyFlags::RO_ACCESS)])
        .docs("key1 key2 [LEN] [IDX] [MINMATCHLEN min-match-len] [WITHMATCHLEN]", "Finds a longest common subsequence of two strings.",
            "O(N*M) where N and M are the lengths of the strings"),
    string_spec("MGET", mget, "1.0.0", Flags::READONLY_FAST).at_least(2).keys(&[keys(1, -1, 1, KeyFlags::RO_ACCESS)]).tips(&["request_policy:multi_shard"])
        .docs("key [key ...]", "Returns the strings several keys hold.", "O(N) where N is the number of keys"),
    string_spec("MSET", mset, "1.0.1", Flags::WRITE_DENYOOM).at_least(3).keys(&[keys(1, -1, 2, KeyFlags::OW_UPDATE)])
        .tips(&["request_policy:multi_shard", "response_policy:all_succeeded"])
        .docs("key value [key value ...]", "Sets several keys to strings.", "O(N) where N is the number of keys"),
    string_spec("MSETEX", msetex, "8.4.0", Flags::WRITE_DENYOOM.union(Flags::MOVABLEKEYS)).at_least(4)
        .keys(&[KeySpec { begin: Begin::Index(1), find: Find::Count { step: 2 }, flags: KeyFlags::OW_UPDATE, notes: None }])
        .tips(&["request_policy:multi_shard", "response_policy:all_succeeded"])
        .docs("numkeys key value [key value ...] [NX | XX] [EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds | KEEPTTL]",
            "Sets several keys to strings with the same expiry, optionally only if all or none of them exist.", "O(N) where N is the number of keys"),
    string_spec("MSETNX", msetnx, "1.0.1", Flags::WRITE_DENYOOM).at_least(3).keys(&[keys(1, -1, 2, KeyFlags::OW_INSERT)])
        .tips(&["request_policy:multi_shard", "response_policy:agg_min"])
        .docs("key value [key value ...]", "Sets several keys to strings if none of them exists.", "O(N) where N is the number of keys"),
    string_spec("PSETEX", psetex, "2.6.0", Flags::WRITE_DENYOOM).exactly(4).keys(&[key(1, KeyFlags::OW_UPDATE)])
        .docs("key milliseconds value", "Sets a key to a string that expires after some milliseconds.", "O(1)"),
    string_spec("SET", set, "1.0.0", Flags::WRITE_DENYOOM).key_rule(KeyRule::ReadWithGet).at_least(3)
        .keys(&[key(1, KeyFlags::RW_ACCESS.union(KeyFlags::UPDATE).union(KeyFlags::VARIABLE_FLAGS)).noted("RW and ACCESS due to the optional `GET` argument")])
        .docs("key value [NX | XX | IFEQ value | IFNE value | IFDEQ digest | IFDNE digest] [GET] [EX seconds | PX milliseconds | EXAT unix-time-seconds | \
            PXAT unix-time-milliseconds | KEEPTTL]",
            "Sets a key to a string, replacing any value.", "O(1), O(N) for IFDEQ and IFDNE where N is the length of the old string"),
    string_spec("SETEX", setex, "2.0.0", Flags::WRITE_DENYOOM).exactly(4).keys(&[key(1, KeyFlags::OW_UPDATE)])
        .docs("key seconds value", "Sets a key to a string that expires after some seconds.", "O(1)"),
    string_spec("SETNX", setnx, "1.0.0", Flags::WRITE_DENYOOM_FAST).exactly(3).keys(&[key(1, KeyFlags::OW_INSERT)])
        .docs("key value", "Sets a key to a string if the key does not exist.", "O(1)"),
    string_spec("SETRANGE", setrange, "2.2.0", Flags::WRITE_DENYOOM).exactly(4).keys(&[key(1, KeyFlags::RW_UPDATE)])
        .docs("key offset value", "Overwrites a part of a string, padding it with zero bytes if necessary.",
            "O(N) where N is the length of the value, or of the string if it grows"),
    string_spec("STRLEN", strlen, "2.2.0", Flags::READONLY_FAST).exactly(2).keys(&[key(1, KeyFlags::RO)])
        .docs("key", "Returns the length of the string a key holds.", "O(1)"),
    string_spec("SUBSTR", getrange, "1.0.0", Flags::READONLY).exactly(4).keys(KeySpec::RO_ACCESS).deprecated("2.0.0", "`GETRANGE`")
        .docs("key start end", "Returns a part of the string a key holds.", "O(N) where N is the length of the part"),
];

const fn string_spec(
    name: &'static str,
    handler: fn(&mut Context<'_>) -> CommandResult,
    since: &'static str,
    flags: Flags,
) -> CommandSpec {
    spec(name, handler).since(since).flags(flags).group(Group::String)
}

const NOT_A_STRING: CommandError =
    CommandError::Text("ERR Key should be of string type if conditions are specified");
const UNKNOWN_CONDITION: CommandError =
    CommandError::Text("ERR Invalid condition. Use IFEQ, IFNE, IFDEQ, or IFDNE");
const BAD_KEY_COUNT: CommandError = CommandError::Text("ERR invalid numkeys value or out of range");
/// Errors of Redis 8.6.3.
const BAD_KEY_COUNT_REDIS_8: CommandError = CommandError::Text("ERR invalid numkeys value");
const FEWER_PAIRS_REDIS_8: CommandError = CommandError::Text("ERR wrong number of key-value pairs");

/// Replies a string.
#[inline(always)]
fn show(reply: &mut ReplyWriter<'_>, value: StringView<'_>) {
    match value {
        StringView::Whole(bytes) => reply.bulk(bytes),
        StringView::Pieces(bytes) => show_pieces(reply, bytes),
    }
}

#[cold]
fn show_pieces(reply: &mut ReplyWriter<'_>, bytes: &SharedBytes) {
    reply.bulk_pieces(bytes.len(), bytes.pieces(0..bytes.len()));
}

/// Replies the string at `slot`. Errors: WRONGTYPE.
#[inline(always)]
fn show_at(ctx: &mut Context<'_>, slot: Slot) -> Result<(), CommandError> {
    match ctx.core.keyspace.string_at(slot)? {
        StringView::Whole(bytes) if bytes.len() < LENT_MIN => ctx.reply.bulk(bytes),
        _ => lend_at(ctx, slot),
    }
    Ok(())
}

/// Replies the long string at `slot`, which is lent to the output.
#[inline(never)]
fn lend_at(ctx: &mut Context<'_>, slot: Slot) {
    let Context { core, reply, .. } = ctx;
    core.keyspace.lend(slot, |value, lender| {
        let string = StringView::new(value).unwrap_or_default();
        reply.bulk_lent(string.len(), string.pieces(0..string.len()), lender);
    });
}

/// `GET key`: the string, or nil; of a lock the owner.
fn get(ctx: &mut Context<'_>) -> CommandResult {
    let key = ctx.key(1);
    match ctx.core.keyspace.find_for_read(key) {
        Some(slot) => match show_at(ctx, slot) {
            Ok(()) => {}
            Err(_) => return show_token(ctx, key),
        },
        None => ctx.reply.null(),
    }
    Ok(Outcome::Replied)
}

#[cold]
fn show_token(ctx: &mut Context<'_>, key: Key<'_>) -> CommandResult {
    let slot = ctx.core.keyspace.find_quietly(key).ok_or(CommandError::WrongType)?;
    let token = token_at(ctx, slot)?;
    ctx.reply.bulk(&token);
    Ok(Outcome::Replied)
}

/// The owner of a lock of LOCK.ACQUIRE, for clients whose locks are strings: they find another
/// owner's token. Errors: WRONGTYPE.
#[cold]
fn token_at(ctx: &Context<'_>, slot: Slot) -> Result<Vec<u8>, CommandError> {
    let (value, now) = (ctx.core.keyspace.entry(slot).value(), ctx.core.keyspace.now());
    lock::token(value, &now).ok_or(CommandError::WrongType)
}

/// Whether the string at `slot`, or the owner of the lock there, is this one.
fn is_string_or_token(
    ctx: &Context<'_>,
    slot: Slot,
    expected: &[u8],
) -> Result<bool, CommandError> {
    match ctx.core.keyspace.string_at(slot) {
        Ok(string) => Ok(string == *expected),
        Err(_) => Ok(token_at(ctx, slot)? == expected),
    }
}

/// `SET key value [NX | XX | IFEQ value | ...] [GET] [EX seconds | ... | KEEPTTL]`: OK, or nil if
/// the condition does not hold; with GET the old string or nil in either case.
fn set(ctx: &mut Context<'_>) -> CommandResult {
    let (key, value) = (ctx.key(1), ctx.args.get(2));
    if ctx.args.len() == 3 {
        ctx.core.keyspace.set_string(key, value, Expiry::Clear);
        ctx.core.keyspace.changed(KeyspaceEvents::STRING, "set", key.bytes);
        ctx.reply.ok();
        return Ok(Outcome::Replied);
    }
    let options = SetOptions::parse(ctx.args.cursor(3))?;
    let expiry = parse_expiry(options.lifetime, &ctx.core.keyspace.now(), ctx.name())?;
    let found = if options.get {
        ctx.core.keyspace.find_for_read(key)
    } else {
        ctx.core.keyspace.find_for_write(key)
    };
    if options.get {
        match found {
            Some(slot) => match ctx.core.keyspace.string_at(slot) {
                Ok(string) => show(&mut ctx.reply, string),
                Err(_) if options.condition == Condition::Absent => {
                    let token = token_at(ctx, slot)?;
                    ctx.reply.bulk(&token);
                }
                Err(error) => return Err(error),
            },
            None => ctx.reply.null(),
        }
    }
    let holds = match (options.condition, found) {
        (Condition::Always, _) => true,
        (Condition::Absent, found) => found.is_none(),
        (Condition::Present, found) => found.is_some(),
        (Condition::If(comparison), Some(slot)) => match ctx.core.keyspace.string_at(slot) {
            Ok(string) => comparison.holds(string)?,
            // Another owner's lock stays. A lock never becomes a string.
            Err(error) => match comparison {
                Comparison::Equal(token) if token_at(ctx, slot)? != token => false,
                _ => return Err(error),
            },
        },
        (Condition::If(comparison), None) => comparison.holds_for_absent(),
    };
    match holds {
        true if is_overdue(ctx, expiry) => {
            if let Some(slot) = found {
                ctx.delete_overdue(slot, key);
            }
        }
        true => {
            ctx.core.keyspace.set_string_at(found, key, value, expiry);
            announce_set(ctx, key, expiry);
            repeat_set(ctx, &options, expiry);
        }
        false => {}
    }
    match (options.get, holds) {
        (true, _) => {}
        (false, true) => ctx.reply.ok(),
        (false, false) => ctx.reply.null(),
    }
    Ok(Outcome::Replied)
}

/// Whether a key to be set is deleted instead because its deadline is past, as in Valkey. Redis
/// sets such a key, which then expires.
fn is_overdue(ctx: &Context<'_>, expiry: Expiry) -> bool {
    let Expiry::At(deadline) = expiry else { return false };
    ctx.core.keyspace.now().has_come(deadline)
        && ctx.core.state.config.compatible_with.is_valkey()
        && !ctx.core.keyspace.leaves_expiry()
}

/// SET's effect: without GET and options that Redis 7.0 does not know, and with the deadline as a
/// Unix time.
fn repeat_set(ctx: &mut Context<'_>, options: &SetOptions<'_>, expiry: Expiry) {
    let is_exact = matches!(options.lifetime, Lifetime::Given(TimeUnit::UnixMilliseconds, _));
    if is_exact && ctx.core.state.config.compatible_with.is_valkey() {
        // Valkey replicates it as sent.
        return;
    }
    let is_new_condition = matches!(options.condition, Condition::If(_));
    let (key, value) = (ctx.args.get(1), ctx.args.get(2));
    if is_new_condition || matches!(expiry, Expiry::At(_)) {
        ctx.instead_set(key, value, expiry);
    } else if options.get {
        let args = ctx.args;
        ctx.instead_gathered(|_, request| {
            let kept = args.iter_from(0).enumerate();
            let kept = kept.filter(|(at, arg)| *at < 3 || !arg.eq_ignore_ascii_case(b"GET"));
            request.extend(kept.map(|(_, arg)| arg.to_vec()));
        });
    }
}

/// The change and the events of a key that was set.
fn announce_set(ctx: &mut Context<'_>, key: Key<'_>, expiry: Expiry) {
    ctx.core.keyspace.changed(KeyspaceEvents::STRING, "set", key.bytes);
    if let Expiry::At(_) = expiry {
        ctx.core.keyspace.notify(KeyspaceEvents::GENERIC, "expire", key.bytes);
    }
}

/// `SETNX key value`: 1 if it was set, 0 if the key exists.
fn setnx(ctx: &mut Context<'_>) -> CommandResult {
    let key = ctx.key(1);
    let found = ctx.core.keyspace.find_for_write(key);
    if found.is_none() {
        ctx.core.keyspace.set_string_at(None, key, ctx.args.get(2), Expiry::Clear);
        announce_set(ctx, key, Expiry::Clear);
    }
    ctx.reply.integer(found.is_none() as i64);
    Ok(Outcome::Replied)
}

/// `SETEX key seconds value`: OK.
fn setex(ctx: &mut Context<'_>) -> CommandResult {
    set_expiring(ctx, TimeUnit::Seconds)
}

/// `PSETEX key milliseconds value`: OK.
fn psetex(ctx: &mut Context<'_>) -> CommandResult {
    set_expiring(ctx, TimeUnit::Milliseconds)
}

fn set_expiring(ctx: &mut Context<'_>, unit: TimeUnit) -> CommandResult {
    let expiry = parse_time(unit, ctx.args.get(2), &ctx.core.keyspace.now(), ctx.name())?;
    let key = ctx.key(1);
    ctx.core.keyspace.set_string(key, ctx.args.get(3), expiry);
    announce_set(ctx, key, expiry);
    ctx.instead_set(key.bytes, ctx.args.get(3), expiry);
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// `GETSET key value`: the old string, or nil.
fn getset(ctx: &mut Context<'_>) -> CommandResult {
    let key = ctx.key(1);
    let found = ctx.core.keyspace.find_for_read(key);
    match found {
        Some(slot) => show(&mut ctx.reply, ctx.core.keyspace.string_at(slot)?),
        None => ctx.reply.null(),
    }
    ctx.core.keyspace.set_string_at(found, key, ctx.args.get(2), Expiry::Clear);
    announce_set(ctx, key, Expiry::Clear);
    ctx.instead_set(key.bytes, ctx.args.get(2), Expiry::Clear);
    Ok(Outcome::Replied)
}

/// `GETDEL key`: the string, or nil.
fn getdel(ctx: &mut Context<'_>) -> CommandResult {
    let key = ctx.key(1);
    match ctx.core.keyspace.find_for_read(key) {
        Some(slot) => {
            show(&mut ctx.reply, ctx.core.keyspace.string_at(slot)?);
            ctx.core.keyspace.delete_at(slot, key, "del");
            let config = &ctx.core.state.config;
            let unlinks = config.lazyfree_lazy_user_del && !config.compatible_with.is_valkey();
            ctx.instead(&[if unlinks { b"UNLINK" } else { b"DEL" }, key.bytes]);
        }
        None => ctx.reply.null(),
    }
    Ok(Outcome::Replied)
}

/// `GETEX key [EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds
/// | PERSIST]`: the string, or nil. An absolute time that is not in the future deletes the key.
fn getex(ctx: &mut Context<'_>) -> CommandResult {
    let lifetime = parse_getex(ctx.args.cursor(2))?;
    if ctx.core.state.config.compatible_with.is_valkey() {
        parse_expiry(lifetime, &ctx.core.keyspace.now(), &ctx.command.full_name)?;
    }
    let key = ctx.key(1);
    let Some(slot) = ctx.core.keyspace.find_for_read(key) else {
        ctx.reply.null();
        return Ok(Outcome::Replied);
    };
    let value = ctx.core.keyspace.string_at(slot)?;
    let now = ctx.core.keyspace.now();
    // Redis parses it only now: without a key the time is not checked.
    let expiry = parse_expiry(lifetime, &now, &ctx.command.full_name)?;
    show(&mut ctx.reply, value);
    match (lifetime, expiry) {
        (Lifetime::Given(unit, _), Expiry::At(deadline)) => {
            if unit.is_absolute() && now.has_come(deadline) {
                ctx.delete_overdue(slot, key);
            } else {
                ctx.core.keyspace.set_deadline(slot, Some(deadline));
                ctx.core.keyspace.changed(KeyspaceEvents::GENERIC, "expire", key.bytes);
                let at = deadline.unix(ctx.core.keyspace.shown_offset_ms()).0;
                ctx.instead_with(&[b"PEXPIREAT", key.bytes], at);
            }
        }
        (Lifetime::Persist, _) if ctx.core.keyspace.entry(slot).deadline().is_some() => {
            ctx.core.keyspace.set_deadline(slot, None);
            ctx.core.keyspace.changed(KeyspaceEvents::GENERIC, "persist", key.bytes);
            ctx.instead(&[b"PERSIST", key.bytes]);
        }
        _ => {}
    }
    Ok(Outcome::Replied)
}

/// `DELIFEQ key value`: 1 if the key was deleted, else 0. A lock is compared by its owner.
fn delifeq(ctx: &mut Context<'_>) -> CommandResult {
    let key = ctx.key(1);
    let slot = ctx.core.keyspace.find_for_write(key);
    let mut deleted = false;
    if let Some(slot) = slot
        && is_string_or_token(ctx, slot, ctx.args.get(2))?
    {
        ctx.core.keyspace.delete_at(slot, key, "del");
        ctx.instead(&[b"DEL", key.bytes]);
        deleted = true;
    }
    ctx.reply.integer(deleted as i64);
    Ok(Outcome::Replied)
}

/// `DELEX key [IFEQ value | IFNE value | IFDEQ digest | IFDNE digest]`: 1 if the key was deleted,
/// else 0. Without a condition the key may have any type. The condition is only checked if there is
/// a string to compare.
fn delex(ctx: &mut Context<'_>) -> CommandResult {
    if !matches!(ctx.args.len(), 2 | 4) {
        return Err(CommandError::WrongArity(ctx.name().into()));
    }
    let key = ctx.key(1);
    let mut deleted = false;
    if let Some(slot) = ctx.core.keyspace.find_for_write(key) {
        let holds = match ctx.args.len() {
            2 => true,
            _ => {
                let string = ctx.core.keyspace.string_at(slot).map_err(|_| NOT_A_STRING);
                let comparison = Comparison::of(ctx.args.get(2), ctx.args.get(3));
                match (string, comparison) {
                    (Ok(string), comparison) => {
                        comparison.ok_or(UNKNOWN_CONDITION)?.holds(string)?
                    }
                    (Err(error), Some(Comparison::Equal(token))) => {
                        is_string_or_token(ctx, slot, token).map_err(|_| error)?
                    }
                    (Err(error), _) => return Err(error),
                }
            }
        };
        if holds {
            ctx.core.keyspace.delete_at(slot, key, "del");
            ctx.instead(&[b"DEL", key.bytes]);
            deleted = true;
        }
    }
    ctx.reply.integer(deleted as i64);
    Ok(Outcome::Replied)
}

/// `DIGEST key`: 16 hexadecimal digits, or nil.
fn digest(ctx: &mut Context<'_>) -> CommandResult {
    match ctx.core.keyspace.string(ctx.key(1))? {
        Some(value) => {
            let text = format!("{:016x}", digest_of(value));
            ctx.reply.bulk(text.as_bytes());
        }
        None => ctx.reply.null(),
    }
    Ok(Outcome::Replied)
}

/// `MGET key [key ...]`: an array of strings, nil for a key that is absent or of another type.
fn mget(ctx: &mut Context<'_>) -> CommandResult {
    ctx.reply.array(ctx.args.len() - 1);
    for index in 1..ctx.args.len() {
        let found = ctx.core.keyspace.find_for_read(ctx.key(index));
        if found.is_none_or(|slot| show_at(ctx, slot).is_err()) {
            ctx.reply.null();
        }
    }
    Ok(Outcome::Replied)
}

/// `MSET key value [key value ...]`: OK.
fn mset(ctx: &mut Context<'_>) -> CommandResult {
    check_pairs(ctx)?;
    set_pairs(ctx, 1..ctx.args.len(), Expiry::Clear);
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// `MSETNX key value [key value ...]`: 1 if all were set, 0 if one of the keys exists.
fn msetnx(ctx: &mut Context<'_>) -> CommandResult {
    check_pairs(ctx)?;
    let end = ctx.args.len();
    let none_there =
        (1..end).step_by(2).all(|index| ctx.core.keyspace.find_for_write(ctx.key(index)).is_none());
    if none_there {
        set_pairs(ctx, 1..end, Expiry::Clear);
    }
    ctx.reply.integer(none_there as i64);
    Ok(Outcome::Replied)
}

/// `MSETEX numkeys key value [key value ...] [NX | XX] [EX seconds | ... | KEEPTTL]`: 1 if all were
/// set, 0 if a key exists (NX) or does not exist (XX).
fn msetex(ctx: &mut Context<'_>) -> CommandResult {
    let mut cursor = ctx.args.cursor(1);
    let is_redis_8 = ctx.core.state.config.compatible_with.is_redis_8();
    let pairs = cursor.take_keys(1, 2).map_err(|bad| match bad {
        BadKeyCount::TooLarge(count) if count <= i32::MAX as usize => {
            if is_redis_8 {
                FEWER_PAIRS_REDIS_8
            } else {
                CommandError::Syntax
            }
        }
        _ if is_redis_8 => BAD_KEY_COUNT_REDIS_8,
        _ => BAD_KEY_COUNT,
    })?;
    let options = SetOptions::parse_msetex(cursor)?;
    let expiry = parse_expiry(options.lifetime, &ctx.core.keyspace.now(), ctx.name())?;
    let mut indices = pairs.clone().step_by(2);
    let mut is_there = |index| ctx.core.keyspace.find_for_write(ctx.key(index)).is_some();
    let holds = match options.condition {
        Condition::Absent => !indices.any(is_there),
        Condition::Present => indices.all(&mut is_there),
        Condition::Always | Condition::If(_) => true,
    };
    if holds {
        set_pairs(ctx, pairs.clone(), expiry);
        match ctx.core.state.config.compatible_with.is_valkey() {
            true => repeat_msetex(ctx, pairs, expiry),
            // Every replica knows SET.
            false => {
                for index in pairs.step_by(2) {
                    ctx.instead_set(ctx.args.get(index), ctx.args.get(index + 1), expiry);
                }
            }
        }
    }
    ctx.reply.integer(holds as i64);
    Ok(Outcome::Replied)
}

/// MSETEX's effect for Valkey: as sent, but with the deadline as a Unix time.
fn repeat_msetex(ctx: &mut Context<'_>, pairs: Range<usize>, expiry: Expiry) {
    let Expiry::At(deadline) = expiry else { return };
    let (args, at) = (ctx.args, deadline.unix(ctx.core.keyspace.shown_offset_ms()).0.to_string());
    ctx.instead_gathered(|_, request| {
        request.extend(args.iter_from(0).take(pairs.end).map(<[u8]>::to_vec));
        let mut rest = args.cursor(pairs.end);
        while let Ok(option) = rest.take() {
            let is_other_time =
                [&b"EX"[..], b"PX", b"EXAT"].iter().any(|it| option.eq_ignore_ascii_case(it));
            if is_other_time {
                request.extend([b"PXAT".to_vec(), at.clone().into_bytes()]);
                let _ = rest.take();
            } else {
                request.push(option.to_vec());
            }
        }
    });
}

/// Keys and values must come in pairs.
fn check_pairs(ctx: &Context<'_>) -> Result<(), CommandError> {
    match ctx.args.len() % 2 {
        1 => Ok(()),
        _ => Err(CommandError::WrongArity(ctx.name().into())),
    }
}

/// Sets the keys and values in these arguments.
fn set_pairs(ctx: &mut Context<'_>, pairs: Range<usize>, expiry: Expiry) {
    for index in pairs.step_by(2) {
        let key = ctx.key(index);
        ctx.core.keyspace.set_string(key, ctx.args.get(index + 1), expiry);
        announce_set(ctx, key, expiry);
    }
}
