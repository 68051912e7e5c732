//! Fields of hashes that expire: setting, reading and clearing their deadlines, alone or together
//! with their values.
//!
//! Options, replies and events are Valkey 9.1's, which include those of Redis 8. The words are
//! parsed by `words.rs`.

use crate::clock::{Deadline, Expiry, Now};
use crate::collections::table::Slot;
use crate::command::deadline::{Lifetime, TimeUnit, to_seconds};
use crate::command::hash::words::{
    self, BAD_FIELD_COUNT, FieldArgs, Presence, Takes, parse_deadline,
};
use crate::command::hash::{edit_or_create, limits};
use crate::config::KeyspaceEvents;
use crate::error::CommandError;
use crate::keyspace::Key;
use crate::state::context::{CommandResult, Context, Outcome};
use crate::types::hash::Hash;
use crate::types::journal::Edit;

/// The result for a field, as in the replies.
mod result {
    pub const ABSENT: i64 = -2;
    /// HPERSIST: it had no deadline.
    pub const PERSISTENT: i64 = -1;
    pub const REFUSED: i64 = 0;
    pub const DONE: i64 = 1;
    /// The deadline has passed: the field was deleted.
    pub const DELETED: i64 = 2;
}

/// The hash of a key, for reading: counts the hit or miss.
fn find_for_read(ctx: &mut Context<'_>, key: Key<'_>) -> Result<Option<Slot>, CommandError> {
    let found = ctx.core.keyspace.find_for_read(key);
    let Some(slot) = found else { return Ok(None) };
    ctx.core.keyspace.view::<Hash>(slot)?;
    Ok(ctx.core.keyspace.settle_fields(slot, key))
}

/// Counts a change of `fields` fields, and announces it.
fn changed(ctx: &mut Context<'_>, event: &'static str, key: Key<'_>, fields: u64) {
    ctx.core.keyspace.changed_by(fields, KeyspaceEvents::HASH, event, key.bytes);
}

/// Whether anything needs to know which fields change: the stream, or clients that listen.
fn names_fields(ctx: &Context<'_>) -> bool {
    ctx.is_heard() || ctx.core.keyspace.events.wants_fields()
}

/// The result of a command for its fields, for the effect.
#[derive(Clone, Copy)]
enum FieldEffect {
    Deleted,
    Persistent,
    DueAt(Deadline),
}

/// Sets the effect: the result for these fields, with deadlines as Unix times.
fn repeat(ctx: &mut Context<'_>, key: Key<'_>, fields: &[&[u8]], became: FieldEffect) {
    let offset_ms = ctx.core.keyspace.shown_offset_ms();
    ctx.instead_gathered(|_, request| {
        let count = fields.len().to_string();
        let mut add = |words: &[&[u8]]| request.extend(words.iter().map(|word| word.to_vec()));
        match became {
            FieldEffect::Deleted => add(&[b"HDEL", key.bytes]),
            FieldEffect::Persistent => add(&[b"HPERSIST", key.bytes, b"FIELDS", count.as_bytes()]),
            FieldEffect::DueAt(deadline) => {
                let at = deadline.unix(offset_ms).0.to_string();
                let (at, count) = (at.as_bytes(), count.as_bytes());
                add(&[b"HPEXPIREAT", key.bytes, at, b"FIELDS", count]);
            }
        }
        add(fields);
    });
}

// ---- deadlines alone ----------------------------------------------------------------------------

/// `HEXPIRE key seconds [NX | XX | GT | LT] FIELDS numfields field [field ...]`: an array with, for
/// each field, 1 if the deadline was set, 0 if the condition fails, 2 if the field was deleted
/// because the deadline has passed, -2 if it does not exist.
pub(crate) fn hexpire(ctx: &mut Context<'_>) -> CommandResult {
    expire(ctx, TimeUnit::Seconds)
}

/// `HPEXPIRE key milliseconds [NX | XX | GT | LT] FIELDS numfields field [field ...]`: as HEXPIRE.
pub(crate) fn hpexpire(ctx: &mut Context<'_>) -> CommandResult {
    expire(ctx, TimeUnit::Milliseconds)
}

/// `HEXPIREAT key unix-time-seconds [NX | XX | GT | LT] FIELDS numfields field [field ...]`: as
/// HEXPIRE.
pub(crate) fn hexpire_at(ctx: &mut Context<'_>) -> CommandResult {
    expire(ctx, TimeUnit::UnixSeconds)
}

/// `HPEXPIREAT key unix-time-milliseconds [NX | XX | GT | LT] FIELDS numfields field [field ...]`:
/// as HEXPIRE.
pub(crate) fn hpexpire_at(ctx: &mut Context<'_>) -> CommandResult {
    expire(ctx, TimeUnit::UnixMilliseconds)
}

fn expire(ctx: &mut Context<'_>, unit: TimeUnit) -> CommandResult {
    let (args, now) = (ctx.args, ctx.core.keyspace.now());
    let (deadline, condition, fields) = words::expiring(ctx, unit)?;
    let remaining_ms = now.remaining_ms(deadline);
    let (key, limits) = (ctx.key(1), limits(ctx));
    let found = ctx.core.keyspace.slot_of::<Hash>(key)?;
    let fields = fields.of(args);
    ctx.reply.array(fields.len());
    let Some(slot) = found else {
        fields.for_each(|_| ctx.reply.integer(result::ABSENT));
        return Ok(Outcome::Replied);
    };
    let is_past = ctx.core.keyspace.ends_at_once(deadline);
    let allows = |old: Option<Deadline>| {
        condition.allows(old.map(|old| now.remaining_ms(old)), remaining_ms)
    };
    let (is_heard, mut altered) = (names_fields(ctx), Vec::new());
    let reply = &mut ctx.reply;
    let changes = ctx.core.keyspace.edit(slot, |hash: &mut Edit<'_, Hash>| {
        let mut changes = 0;
        for field in fields {
            let done = match hash.as_view().get(field, &now) {
                None => result::ABSENT,
                Some(old) if !allows(old.deadline) => result::REFUSED,
                Some(_) if is_past => {
                    hash.remove(field, &now);
                    result::DELETED
                }
                Some(_) => {
                    hash.set_deadline(field, Some(deadline), &limits);
                    result::DONE
                }
            };
            changes += u64::from(done >= result::DONE);
            if is_heard && done >= result::DONE {
                altered.push(field);
            }
            reply.integer(done);
        }
        changes
    });
    if changes > 0 {
        let event = if is_past { past_event(ctx) } else { "hexpire" };
        changed(ctx, event, key, changes);
        ctx.core.keyspace.notify_fields(event, key.bytes, altered.iter().copied());
        let became = if is_past { FieldEffect::Deleted } else { FieldEffect::DueAt(deadline) };
        repeat(ctx, key, &altered, became);
        settle(ctx, slot, key, changes, is_past);
    }
    Ok(Outcome::Replied)
}

/// The event of fields that a command has given a past time.
fn past_event(ctx: &Context<'_>) -> &'static str {
    if words::is_redis_8(ctx) { "hdel" } else { "hexpired" }
}

/// After deadlines were changed: deletes the fields if the deadline has passed, otherwise updates
/// the index of deadlines.
fn settle(ctx: &mut Context<'_>, slot: Slot, key: Key<'_>, changes: u64, is_past: bool) {
    if is_past {
        ctx.core.keyspace.stats.expired_fields += changes;
        ctx.core.keyspace.delete_if_empty::<Hash>(slot, key);
    } else {
        ctx.core.keyspace.note_field_deadlines(slot, key.bytes);
    }
}

/// `HPERSIST key FIELDS numfields field [field ...]`: an array with, for each field, 1 if its
/// deadline was removed, -1 if it had none, -2 if it does not exist.
pub(crate) fn hpersist(ctx: &mut Context<'_>) -> CommandResult {
    let (args, now) = (ctx.args, ctx.core.keyspace.now());
    let fields = words::plain(ctx, BAD_FIELD_COUNT)?;
    let (key, limits) = (ctx.key(1), limits(ctx));
    let found = ctx.core.keyspace.slot_of::<Hash>(key)?;
    let fields = fields.of(args);
    ctx.reply.array(fields.len());
    let Some(slot) = found else {
        fields.for_each(|_| ctx.reply.integer(result::ABSENT));
        return Ok(Outcome::Replied);
    };
    let (is_heard, mut altered) = (names_fields(ctx), Vec::new());
    let reply = &mut ctx.reply;
    let changes = ctx.core.keyspace.edit(slot, |hash: &mut Edit<'_, Hash>| {
        let mut changes = 0;
        for field in fields {
            let done = match hash.as_view().get(field, &now).map(|found| found.deadline) {
                None => result::ABSENT,
                Some(None) => result::PERSISTENT,
                Some(Some(_)) => {
                    hash.set_deadline(field, None, &limits);
                    altered.extend(is_heard.then_some(field));
                    changes += 1;
                    result::DONE
                }
            };
            reply.integer(done);
        }
        changes
    });
    if changes > 0 {
        changed(ctx, "hpersist", key, changes);
        ctx.core.keyspace.notify_fields("hpersist", key.bytes, altered.into_iter());
    }
    Ok(Outcome::Replied)
}

/// `HTTL key FIELDS numfields field [field ...]`: an array with, for each field, the seconds left,
/// rounded; -1 without a deadline, -2 if it does not exist.
pub(crate) fn httl(ctx: &mut Context<'_>) -> CommandResult {
    reply_deadlines(ctx, |now, deadline| to_seconds(now.remaining_ms(deadline)))
}

/// `HPTTL key FIELDS numfields field [field ...]`: the same in milliseconds.
pub(crate) fn hpttl(ctx: &mut Context<'_>) -> CommandResult {
    reply_deadlines(ctx, |now, deadline| now.remaining_ms(deadline))
}

/// `HEXPIRETIME key FIELDS numfields field [field ...]`: as HTTL, but the Unix time.
pub(crate) fn hexpire_time(ctx: &mut Context<'_>) -> CommandResult {
    let offset_ms = ctx.core.keyspace.shown_offset_ms();
    reply_deadlines(ctx, |_, deadline| to_seconds(deadline.unix(offset_ms).0))
}

/// `HPEXPIRETIME key FIELDS numfields field [field ...]`: the same in milliseconds.
pub(crate) fn hpexpire_time(ctx: &mut Context<'_>) -> CommandResult {
    let offset_ms = ctx.core.keyspace.shown_offset_ms();
    reply_deadlines(ctx, |_, deadline| deadline.unix(offset_ms).0)
}

fn reply_deadlines(ctx: &mut Context<'_>, told: impl Fn(&Now, Deadline) -> i64) -> CommandResult {
    let (args, now) = (ctx.args, ctx.core.keyspace.now());
    let fields = words::plain(ctx, CommandError::Syntax)?;
    let hash = ctx.core.keyspace.read::<Hash>(ctx.key(1))?;
    let fields = fields.of(args);
    ctx.reply.array(fields.len());
    for field in fields {
        let found = hash.and_then(|hash| hash.get(field, &now));
        ctx.reply.integer(match found.map(|found| found.deadline) {
            None => result::ABSENT,
            Some(None) => result::PERSISTENT,
            Some(Some(deadline)) => told(&now, deadline),
        });
    }
    Ok(Outcome::Replied)
}

// ---- with values --------------------------------------------------------------------------------

/// `HGETDEL key FIELDS numfields field [field ...]`: an array of values, nil for each field that
/// does not exist.
pub(crate) fn hgetdel(ctx: &mut Context<'_>) -> CommandResult {
    let (args, now) = (ctx.args, ctx.core.keyspace.now());
    let fields = words::plain(ctx, BAD_FIELD_COUNT)?;
    let key = ctx.key(1);
    let found = ctx.core.keyspace.slot_of::<Hash>(key)?;
    let fields = fields.of(args);
    ctx.reply.array(fields.len());
    let Some(slot) = found else {
        fields.for_each(|_| ctx.reply.null());
        return Ok(Outcome::Replied);
    };
    let (is_heard, mut altered) = (names_fields(ctx), Vec::new());
    let reply = &mut ctx.reply;
    let removed = ctx.core.keyspace.edit(slot, |hash: &mut Edit<'_, Hash>| {
        let mut removed = 0;
        for field in fields {
            match hash.as_view().get(field, &now) {
                Some(found) => reply.bulk(found.value.as_ref()),
                None => {
                    reply.null();
                    continue;
                }
            }
            hash.remove(field, &now);
            removed += 1;
            if is_heard {
                altered.push(field);
            }
        }
        removed
    });
    if removed > 0 {
        changed(ctx, "hdel", key, removed);
        ctx.core.keyspace.notify_fields("hdel", key.bytes, altered.iter().copied());
        repeat(ctx, key, &altered, FieldEffect::Deleted);
        ctx.core.keyspace.delete_if_empty::<Hash>(slot, key);
    }
    Ok(Outcome::Replied)
}

/// `HGETEX key [EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds
/// | PERSIST] FIELDS numfields field [field ...]`: an array of values, nil for each field that does
/// not exist. A past time deletes the fields.
pub(crate) fn hgetex(ctx: &mut Context<'_>) -> CommandResult {
    let (args, now) = (ctx.args, ctx.core.keyspace.now());
    let (options, fields) = words::with_options(ctx, Takes::Fields)?;
    let (key, limits) = (ctx.key(1), limits(ctx));
    let found = find_for_read(ctx, key)?;
    let deadline = match options.lifetime {
        Lifetime::Given(unit, time) => Some(parse_deadline(unit, time, ctx)?),
        _ => None,
    };
    let fields = fields.of(args);
    ctx.reply.array(fields.len());
    let Some(slot) = found else {
        fields.for_each(|_| ctx.reply.null());
        return Ok(Outcome::Replied);
    };
    let reply = &mut ctx.reply;
    if options.lifetime == Lifetime::Unsaid {
        let hash = ctx.core.keyspace.view::<Hash>(slot)?;
        for field in fields {
            match hash.get(field, &now) {
                Some(found) => reply.bulk(found.value.as_ref()),
                None => reply.null(),
            }
        }
        return Ok(Outcome::Replied);
    }
    let is_past = deadline.is_some_and(|deadline| ctx.core.keyspace.ends_at_once(deadline));
    let (is_heard, mut altered) = (names_fields(ctx), Vec::new());
    let reply = &mut ctx.reply;
    let changes = ctx.core.keyspace.edit(slot, |hash: &mut Edit<'_, Hash>| {
        let mut changes = 0;
        for field in fields {
            let old = match hash.as_view().get(field, &now) {
                Some(found) => {
                    reply.bulk(found.value.as_ref());
                    found.deadline
                }
                None => {
                    reply.null();
                    continue;
                }
            };
            match deadline {
                _ if is_past => _ = hash.remove(field, &now),
                Some(_) => hash.set_deadline(field, deadline, &limits),
                None if old.is_none() => continue,
                None => hash.set_deadline(field, None, &limits),
            }
            if is_heard {
                altered.push(field);
            }
            changes += 1;
        }
        changes
    });
    if changes > 0 {
        let (event, became) = match deadline {
            _ if is_past => (past_event(ctx), FieldEffect::Deleted),
            Some(deadline) => ("hexpire", FieldEffect::DueAt(deadline)),
            None => ("hpersist", FieldEffect::Persistent),
        };
        changed(ctx, event, key, changes);
        ctx.core.keyspace.notify_fields(event, key.bytes, altered.iter().copied());
        repeat(ctx, key, &altered, became);
        settle(ctx, slot, key, changes, is_past);
    }
    Ok(Outcome::Replied)
}

/// `HSETEX key [NX | XX] [FNX | FXX] [EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT
/// unix-time-milliseconds | KEEPTTL] FIELDS numfields field value [field value ...]`: 1 if all
/// fields were set, 0 if a condition fails: NX and XX are about the key, FNX and FXX about all
/// fields. A past time deletes the fields.
pub(crate) fn hsetex(ctx: &mut Context<'_>) -> CommandResult {
    let (args, now) = (ctx.args, ctx.core.keyspace.now());
    let (options, pairs) = words::with_options(ctx, Takes::Pairs)?;
    let key = ctx.key(1);
    let found = ctx.core.keyspace.slot_of::<Hash>(key)?;
    if options.key.is_some_and(|presence| (presence == Presence::Present) != found.is_some()) {
        ctx.reply.integer(0);
        return Ok(Outcome::Replied);
    }
    let deadline = match options.lifetime {
        Lifetime::Given(unit, time) => Some(parse_deadline(unit, time, ctx)?),
        _ => None,
    };
    if let Some(presence) = options.fields {
        let hash = found.map(|slot| ctx.core.keyspace.view::<Hash>(slot)).transpose()?;
        let is_there = |field| hash.is_some_and(|hash| hash.get(field, &now).is_some());
        let mut fields = pairs.of(args).step_by(2);
        if fields.any(|field| is_there(field) != (presence == Presence::Present)) {
            ctx.reply.integer(0);
            return Ok(Outcome::Replied);
        }
    }
    let is_past = deadline.is_some_and(|deadline| ctx.core.keyspace.ends_at_once(deadline));
    if is_past {
        delete_pairs(ctx, key, found, pairs);
    } else {
        set_pairs(ctx, key, found, pairs, options.lifetime == Lifetime::Keep, deadline);
    }
    ctx.reply.integer(1);
    Ok(Outcome::Replied)
}

fn set_pairs(
    ctx: &mut Context<'_>,
    key: Key<'_>,
    found: Option<Slot>,
    pairs: FieldArgs,
    keeps: bool,
    deadline: Option<Deadline>,
) {
    let (args, limits, now) = (ctx.args, limits(ctx), ctx.core.keyspace.now());
    let fields = || pairs.of(args).step_by(2);
    let (slot, ()) = edit_or_create(ctx, key, found, |hash| {
        for (field, value) in fields().zip(pairs.of(args).skip(1).step_by(2)) {
            let expiry = match deadline {
                Some(deadline) => Expiry::At(deadline),
                // A past deadline is not kept.
                None if keeps && hash.as_view().get(field, &now).is_some() => Expiry::Keep,
                None => Expiry::Clear,
            };
            hash.set(field, value, expiry, &limits, &now);
        }
    });
    changed(ctx, "hset", key, fields().len() as u64);
    ctx.core.keyspace.notify_fields("hset", key.bytes, fields());
    let offset_ms = ctx.core.keyspace.shown_offset_ms();
    ctx.instead_gathered(|_, request| {
        let count = fields().len().to_string();
        let mut add = |words: &[&[u8]]| request.extend(words.iter().map(|word| word.to_vec()));
        match deadline {
            Some(deadline) => {
                let at = deadline.unix(offset_ms).0.to_string();
                let (at, count) = (at.as_bytes(), count.as_bytes());
                add(&[b"HSETEX", key.bytes, b"PXAT", at, b"FIELDS", count]);
            }
            None if keeps => {
                add(&[b"HSETEX", key.bytes, b"KEEPTTL", b"FIELDS", count.as_bytes()]);
            }
            None => add(&[b"HSET", key.bytes]),
        }
        request.extend(pairs.of(args).map(<[u8]>::to_vec));
    });
    if deadline.is_some() {
        ctx.core.keyspace.note_field_deadlines(slot, key.bytes);
        ctx.core.keyspace.notify(KeyspaceEvents::HASH, "hexpire", key.bytes);
        ctx.core.keyspace.notify_fields("hexpire", key.bytes, fields());
    }
}

/// HSETEX with a past time: the fields are set and deleted at once.
fn delete_pairs(ctx: &mut Context<'_>, key: Key<'_>, found: Option<Slot>, pairs: FieldArgs) {
    let (args, now) = (ctx.args, ctx.core.keyspace.now());
    let fields = || pairs.of(args).step_by(2);
    let removed: Vec<&[u8]> = found.map_or(Vec::new(), |slot| {
        ctx.core.keyspace.edit(slot, |hash: &mut Edit<'_, Hash>| {
            fields().filter(|field| hash.remove(field, &now)).collect()
        })
    });
    ctx.core.keyspace.stats.expired_fields += fields().len() as u64;
    if found.is_none() {
        ctx.core.keyspace.notify(KeyspaceEvents::NEW, "new", key.bytes);
    }
    if !removed.is_empty() {
        changed(ctx, "hset", key, removed.len() as u64);
        repeat(ctx, key, &removed, FieldEffect::Deleted);
    } else {
        ctx.core.keyspace.notify(KeyspaceEvents::HASH, "hset", key.bytes);
    }
    let events: &[_] = match words::is_redis_8(ctx) {
        true => &["hset", "hdel"],
        false => &["hset", "hexpire", "hexpired"],
    };
    for event in &events[1..] {
        ctx.core.keyspace.notify(KeyspaceEvents::HASH, event, key.bytes);
    }
    for event in events {
        ctx.core.keyspace.notify_fields(event, key.bytes, fields());
    }
    match found {
        Some(slot) => _ = ctx.core.keyspace.delete_if_empty::<Hash>(slot, key),
        None => ctx.core.keyspace.notify(KeyspaceEvents::GENERIC, "del", key.bytes),
    }
}
