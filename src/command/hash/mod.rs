//! Hashes: setting, reading and deleting fields. Commands on fields' deadlines are in
//! `hash/expiry.rs`; HIMPORT is in `hash/import.rs`.

pub(crate) mod expiry;
pub(crate) mod import;
pub(crate) mod words;

use crate::clock::{Expiry, Now};
use crate::collections::glob;
use crate::collections::lent::Lender;
use crate::collections::packed::Text;
use crate::collections::table::Slot;
use crate::command::hash::expiry::{
    hexpire, hexpire_at, hexpire_time, hgetdel, hgetex, hpersist, hpexpire, hpexpire_at,
    hpexpire_time, hpttl, hsetex, httl,
};
use crate::command::key::scan::{count_left, scan_cursor};
use crate::config::KeyspaceEvents;
use crate::error::CommandError;
use crate::keyspace::locks::{At, Loaded};
use crate::keyspace::{Key, Keyspace};
use crate::resp::args::Args;
use crate::resp::float80::Float80;
use crate::resp::number;
use crate::resp::reply::{OutputBuffer, Protocol, ReplyWriter};
use crate::state::context::{CommandResult, Context, Outcome};
use crate::state::spec::{CommandSpec, Flags, Group, Handler, KeyFlags, KeySpec, key, spec};
use crate::types::hash::{Hash, HashView, Limits};
use crate::types::journal::Edit;
use crate::types::lock;

const PER_FIELD: &str = "O(N) where N is the number of fields given";
const PER_HASH: &str = "O(N) where N is the number of fields of the hash";

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    hash_spec("HDEL", hdel, "2.0.0", Flags::WRITE_FAST).at_least(3).keys(&[key(1, KeyFlags::RW_DELETE)])
        .docs("key field [field ...]", "Deletes fields of a hash, and the hash with its last field.", PER_FIELD),
    hash_spec("HEXISTS", hexists, "2.0.0", Flags::READONLY_FAST).exactly(3).keys(KeySpec::RO)
        .docs("key field", "Determines whether a hash has a field.", "O(1)"),
    hash_spec("HEXPIRE", hexpire, "7.4.0", Flags::WRITE_FAST).at_least(6).keys(KeySpec::RW_UPDATE)
        .docs("key seconds [NX | XX | GT | LT] FIELDS numfields field [field ...]", "Sets the time to live of hash fields, in seconds.", PER_FIELD),
    hash_spec("HEXPIREAT", hexpire_at, "7.4.0", Flags::WRITE_FAST).at_least(6).keys(KeySpec::RW_UPDATE)
        .docs("key unix-time-seconds [NX | XX | GT | LT] FIELDS numfields field [field ...]", "Sets the Unix time, in seconds, at which hash fields expire.",
            PER_FIELD),
    hash_spec("HEXPIRETIME", hexpire_time, "7.4.0", Flags::READONLY_FAST).at_least(5).keys(KeySpec::RO_ACCESS)
        .docs("key FIELDS numfields field [field ...]", "Returns the Unix time, in seconds, at which hash fields expire.", PER_FIELD),
    hash_spec("HGET", hget, "2.0.0", Flags::READONLY_FAST).exactly(3).keys(KeySpec::RO_ACCESS)
        .docs("key field", "Returns the value of a field of a hash.", "O(1)"),
    hash_spec("HGETALL", hgetall, "2.0.0", Flags::READONLY).exactly(2).keys(KeySpec::RO_ACCESS).tips(&["nondeterministic_output_order"])
        .docs("key", "Returns all fields of a hash with their values.", PER_HASH),
    hash_spec("HGETDEL", hgetdel, "8.0.0", Flags::WRITE_FAST).at_least(5).keys(&[key(1, KeyFlags::RW_ACCESS_DELETE)])
        .docs("key FIELDS numfields field [field ...]", "Returns the values of fields of a hash and deletes the fields.", PER_FIELD),
    hash_spec("HGETEX", hgetex, "8.0.0", Flags::WRITE_FAST).at_least(5).keys(KeySpec::RW_ACCESS_UPDATE)
        .docs("key [EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds | PERSIST] FIELDS numfields field [field ...]",
            "Returns the values of fields of a hash, and sets or removes their expiry.", PER_FIELD),
    hash_spec("HINCRBY", hincrby, "2.0.0", Flags::WRITE_DENYOOM_FAST).exactly(4).keys(KeySpec::RW_ACCESS_UPDATE)
        .docs("key field increment", "Adds to the integer in a hash field, which is 0 if missing.", "O(1)"),
    hash_spec("HINCRBYFLOAT", hincrbyfloat, "2.6.0", Flags::WRITE_DENYOOM_FAST).exactly(4).keys(KeySpec::RW_ACCESS_UPDATE)
        .docs("key field increment", "Adds to the floating-point number in a hash field, which is 0 if missing.", "O(1)"),
    hash_spec("HKEYS", hkeys, "2.0.0", Flags::READONLY).exactly(2).keys(KeySpec::RO_ACCESS).tips(&["nondeterministic_output_order"])
        .docs("key", "Returns all fields of a hash.", PER_HASH),
    hash_spec("HLEN", hlen, "2.0.0", Flags::READONLY_FAST).exactly(2).keys(KeySpec::RO)
        .docs("key", "Counts the fields of a hash.", "O(1)"),
    hash_spec("HMGET", hmget, "2.0.0", Flags::READONLY_FAST).at_least(3).keys(KeySpec::RO_ACCESS)
        .docs("key field [field ...]", "Returns the values of several fields of a hash.", PER_FIELD),
    hash_spec("HMSET", hmset, "2.0.0", Flags::WRITE_DENYOOM_FAST).at_least(4).keys(KeySpec::RW_UPDATE)
        .docs("key field value [field value ...]", "Sets fields of a hash.", PER_FIELD).deprecated("4.0.0", "`HSET` with multiple field-value pairs"),
    hash_spec("HPERSIST", hpersist, "7.4.0", Flags::WRITE_FAST).at_least(5).keys(KeySpec::RW_UPDATE)
        .docs("key FIELDS numfields field [field ...]", "Removes the deadlines of hash fields.", PER_FIELD),
    hash_spec("HPEXPIRE", hpexpire, "7.4.0", Flags::WRITE_FAST).at_least(6).keys(KeySpec::RW_UPDATE)
        .docs("key milliseconds [NX | XX | GT | LT] FIELDS numfields field [field ...]", "Sets the time to live of hash fields, in milliseconds.", PER_FIELD),
    hash_spec("HPEXPIREAT", hpexpire_at, "7.4.0", Flags::WRITE_FAST).at_least(6).keys(KeySpec::RW_UPDATE)
        .docs("key unix-time-milliseconds [NX | XX | GT | LT] FIELDS numfields field [field ...]",
            "Sets the Unix time, in milliseconds, at which hash fields expire.", PER_FIELD),
    hash_spec("HPEXPIRETIME", hpexpire_time, "7.4.0", Flags::READONLY_FAST).at_least(5).keys(KeySpec::RO_ACCESS)
        .docs("key FIELDS numfields field [field ...]", "Returns the Unix time, in milliseconds, at which hash fields expire.", PER_FIELD),
    hash_spec("HPTTL", hpttl, "7.4.0", Flags::READONLY_FAST).at_least(5).keys(KeySpec::RO_ACCESS)
        .docs("key FIELDS numfields field [field ...]", "Returns the time to live of hash fields, in milliseconds.", PER_FIELD),
    hash_spec("HRANDFIELD", hrandfield, "6.2.0", Flags::READONLY).at_least(2).keys(KeySpec::RO_ACCESS).tips(&["nondeterministic_output"])
        .docs("key [count [WITHVALUES]]", "Returns random fields of a hash, with or without their values.", "O(N) where N is the number of fields returned"),
    hash_spec("HSCAN", hscan, "2.8.0", Flags::READONLY).at_least(3).keys(KeySpec::RO_ACCESS).tips(&["nondeterministic_output"])
        .docs("key cursor [MATCH pattern] [COUNT count] [NOVALUES]", "Iterates over the fields of a hash, some in each call.",
            "O(COUNT) for each call, O(N) for the whole walk"),
    hash_spec("HSET", hset, "2.0.0", Flags::WRITE_DENYOOM_FAST).at_least(4).keys(KeySpec::RW_UPDATE)
        .docs("key field value [field value ...]", "Sets fields of a hash, creating it if necessary.", PER_FIELD),
    hash_spec("HSETEX", hsetex, "8.0.0", Flags::WRITE_DENYOOM_FAST).at_least(6).keys(KeySpec::RW_INSERT)
        .docs("key [NX | XX] [FNX | FXX] [EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds | KEEPTTL] FIELDS numfields \
            field value [field value ...]",
            "Sets fields of a hash and their expiry, optionally under conditions on the hash and the fields.", PER_FIELD),
    hash_spec("HSETNX", hsetnx, "2.0.0", Flags::WRITE_DENYOOM_FAST).exactly(4).keys(KeySpec::RW_INSERT)
        .docs("key field value", "Sets a field of a hash if it does not exist.", "O(1)"),
    hash_spec("HSTRLEN", hstrlen, "3.2.0", Flags::READONLY_FAST).exactly(3).keys(KeySpec::RO)
        .docs("key field", "Returns the length of the value of a field of a hash.", "O(1)"),
    hash_spec("HTTL", httl, "7.4.0", Flags::READONLY_FAST).at_least(5).keys(KeySpec::RO_ACCESS)
        .docs("key FIELDS numfields field [field ...]", "Returns the time to live of hash fields, in seconds.", PER_FIELD),
    hash_spec("HVALS", hvals, "2.0.0", Flags::READONLY).exactly(2).keys(KeySpec::RO_ACCESS).tips(&["nondeterministic_output_order"])
        .docs("key", "Returns the values of all fields of a hash.", PER_HASH),
];

const fn hash_spec(
    name: &'static str,
    handler: Handler,
    since: &'static str,
    flags: Flags,
) -> CommandSpec {
    spec(name, handler).since(since).flags(flags).group(Group::Hash)
}

const VALUE_NOT_INTEGER: CommandError = CommandError::Text("ERR hash value is not an integer");
const VALUE_NOT_FLOAT: CommandError = CommandError::Text("ERR hash value is not a float");
const NAN_OR_INFINITY: CommandError = CommandError::Text("ERR value is NaN or Infinity");
const COUNT_OUT_OF_RANGE: CommandError = CommandError::Text(
    "ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807",
);

/// Pages visited for each requested field: limits a call on a nearly empty table.
const STEPS_PER_FIELD: u64 = 10;
/// HRANDFIELD draws fields, instead of walking over the hash, if the hash has more than this many
/// times the requested number of fields.
const DRAW_FROM: usize = 3;

/// The limits of a listpack.
pub(crate) fn limits(ctx: &Context<'_>) -> Limits {
    let config = &ctx.core.state.config;
    Limits {
        entries_max: config.hash_max_listpack_entries,
        bytes_max: config.hash_max_listpack_value,
        hasher: ctx.core.keyspace.hasher(),
    }
}

/// Calls `edit` with the hash at `found`, or a new one. Returns its slot, and the edit's result.
pub(crate) fn edit_or_create<R>(
    ctx: &mut Context<'_>,
    key: Key<'_>,
    found: Option<Slot>,
    edit: impl FnOnce(&mut Edit<'_, Hash>) -> R,
) -> (Slot, R) {
    match found {
        Some(slot) => (slot, ctx.core.keyspace.edit(slot, edit)),
        None => {
            let mut hash = Hash::default();
            let result = edit(&mut Edit::unnoted(&mut hash));
            (ctx.core.keyspace.insert_collection(key, hash), result)
        }
    }
}

// ---- setting and deleting -----------------------------------------------------------------------

/// `HSET key field value [field value ...]`: how many fields are new.
fn hset(ctx: &mut Context<'_>) -> CommandResult {
    let added = set_pairs(ctx)?;
    ctx.reply.integer(added);
    Ok(Outcome::Replied)
}

/// `HMSET key field value [field value ...]`: OK.
fn hmset(ctx: &mut Context<'_>) -> CommandResult {
    set_pairs(ctx)?;
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

fn set_pairs(ctx: &mut Context<'_>) -> Result<i64, CommandError> {
    let args = ctx.args;
    if !args.len().is_multiple_of(2) {
        return Err(CommandError::WrongArity(ctx.name().into()));
    }
    let (key, limits, now) = (ctx.key(1), limits(ctx), ctx.core.keyspace.now());
    let found = ctx.core.keyspace.slot_of::<Hash>(key)?;
    let (_, added) = edit_or_create(ctx, key, found, |hash| {
        hash.prepare(args.iter_from(2), &limits);
        let pairs = (2..args.len()).step_by(2);
        let set = |at| hash.set(args.get(at), args.get(at + 1), Expiry::Clear, &limits, &now);
        pairs.map(set).filter(|&is_new| is_new).count()
    });
    let may_be_lock = (ctx.is_repeated() || ctx.core.keyspace.hidden_slots.is_some())
        && fields(args, 2).any(|field| field.starts_with(b":"));
    let comes = may_be_lock && ctx.core.keyspace.is_hidden(key.bytes);
    if comes {
        ctx.core.keyspace.note_coming(key.bytes);
    }
    let is_lock = may_be_lock && !comes && ctx.is_repeated();
    let note = |keyspace: &mut Keyspace| {
        let changes = (args.len() as u64 - 2) / 2;
        keyspace.changed_by(changes, KeyspaceEvents::HASH, "hset", key.bytes);
        keyspace.notify_fields("hset", key.bytes, fields(args, 2));
    };
    if is_lock {
        ctx.core.keyspace.change_lock(note);
        note_lock(ctx, key);
    } else {
        note(&mut ctx.core.keyspace);
    }
    Ok(added as i64)
}

/// Every `step`th argument after the key.
fn fields<'a>(args: Args<'a>, step: usize) -> impl Iterator<Item = &'a [u8]> {
    args.iter_from(2).step_by(step)
}

/// Notes a lock that was granted earlier, or at the primary, and is replicated here.
fn note_lock(ctx: &mut Context<'_>, key: Key<'_>) {
    let (database, now) = (ctx.core.keyspace.selected(), ctx.core.keyspace.now());
    let locks = &mut ctx.core.keyspace.locks;
    let mut is_of_readers = false;
    if locks.get(At::key(database, key.bytes)).is_none() {
        for (field, value) in fields(ctx.args, 2).zip(ctx.args.iter_from(3).step_by(2)) {
            if let Some(owner) = lock::reader_in(field)
                && let Some(reader) = lock::Reader::parse(value)
            {
                locks.note_reader(At::reader(database, key.bytes, owner), reader, &now);
                is_of_readers = true;
            }
        }
    }
    let Some(slot) = ctx.core.keyspace.find_quietly(key).filter(|_| !is_of_readers) else { return };
    match Loaded::of(ctx.core.keyspace.entry(slot).value(), &now) {
        Some(loaded) => {
            ctx.core.keyspace.locks.note_loaded(database, key.bytes, loaded, &now);
        }
        // The hash may have been a lock before.
        None => ctx.core.keyspace.locks.note_change(database, key.bytes),
    }
}

/// `HSETNX key field value`: 1 if it was set, 0 if the field exists.
fn hsetnx(ctx: &mut Context<'_>) -> CommandResult {
    let (key, limits, now) = (ctx.key(1), limits(ctx), ctx.core.keyspace.now());
    let (field, value) = (ctx.args.get(2), ctx.args.get(3));
    let found = ctx.core.keyspace.slot_of::<Hash>(key)?;
    let exists = match found {
        Some(slot) => ctx.core.keyspace.view::<Hash>(slot)?.get(field, &now).is_some(),
        None => false,
    };
    if !exists {
        let set = |hash: &mut Edit<'_, Hash>| hash.set(field, value, Expiry::Clear, &limits, &now);
        edit_or_create(ctx, key, found, set);
        ctx.core.keyspace.changed(KeyspaceEvents::HASH, "hset", key.bytes);
        ctx.core.keyspace.notify_fields("hset", key.bytes, [field].into_iter());
    }
    ctx.reply.integer(i64::from(!exists));
    Ok(Outcome::Replied)
}

/// `HDEL key field [field ...]`: the number of deleted fields.
fn hdel(ctx: &mut Context<'_>) -> CommandResult {
    let (key, args, now) = (ctx.key(1), ctx.args, ctx.core.keyspace.now());
    let Some(slot) = ctx.core.keyspace.slot_of::<Hash>(key)? else {
        ctx.reply.integer(0);
        return Ok(Outcome::Replied);
    };
    let (is_told, mut told) = (ctx.core.keyspace.events.wants_fields(), Vec::new());
    let removed = ctx.core.keyspace.edit(slot, |hash: &mut Edit<'_, Hash>| {
        let removed = args.iter_from(2).filter(|field| hash.remove(field, &now));
        removed.inspect(|field| told.extend(is_told.then_some(*field))).count()
    });
    if removed > 0 {
        let note = |keyspace: &mut Keyspace| {
            keyspace.changed_by(removed as u64, KeyspaceEvents::HASH, "hdel", key.bytes);
            keyspace.notify_fields("hdel", key.bytes, told.into_iter());
        };
        // Readers of a lock that ended earlier, or at the primary.
        if ctx.is_repeated() && fields(args, 1).all(|field| lock::reader_in(field).is_some()) {
            let database = ctx.core.keyspace.selected();
            for owner in fields(args, 1).filter_map(lock::reader_in) {
                ctx.core.keyspace.locks.remove(At::reader(database, key.bytes, owner));
            }
            ctx.core.keyspace.change_lock(note);
        } else {
            note(&mut ctx.core.keyspace);
        }
        ctx.core.keyspace.delete_if_empty::<Hash>(slot, key);
    }
    ctx.reply.integer(removed as i64);
    Ok(Outcome::Replied)
}

/// `HINCRBY key field increment`: the new value.
fn hincrby(ctx: &mut Context<'_>) -> CommandResult {
    let increment = ctx.args.integer(3)?;
    let (key, field, now) = (ctx.key(1), ctx.args.get(2), ctx.core.keyspace.now());
    let found = ctx.core.keyspace.slot_of::<Hash>(key)?;
    let old = match found {
        Some(slot) => ctx.core.keyspace.view::<Hash>(slot)?.get(field, &now),
        None => None,
    };
    let is_there = old.is_some();
    let old = match old {
        Some(old) => number::parse_i64(old.value.as_ref()).ok_or(VALUE_NOT_INTEGER)?,
        None => 0,
    };
    let new = old.checked_add(increment).ok_or(CommandError::Overflow)?;
    let text = number::format_i64(new);
    set_computed(ctx, key, found, is_there, text.as_ref());
    ctx.core.keyspace.changed(KeyspaceEvents::HASH, "hincrby", key.bytes);
    ctx.core.keyspace.notify_fields("hincrby", key.bytes, [field].into_iter());
    ctx.reply.integer(new);
    Ok(Outcome::Replied)
}

/// `HINCRBYFLOAT key field increment`: the new value as a bulk string.
fn hincrbyfloat(ctx: &mut Context<'_>) -> CommandResult {
    let increment = Float80::parse(ctx.args.get(3)).ok_or(CommandError::NotFloat)?;
    if !increment.is_finite() {
        return Err(NAN_OR_INFINITY);
    }
    let (key, field, now) = (ctx.key(1), ctx.args.get(2), ctx.core.keyspace.now());
    let found = ctx.core.keyspace.slot_of::<Hash>(key)?;
    let old = match found {
        Some(slot) => ctx.core.keyspace.view::<Hash>(slot)?.get(field, &now),
        None => None,
    };
    let is_there = old.is_some();
    let has_deadline = old.as_ref().is_some_and(|old| old.deadline.is_some());
    let old = match old {
        Some(old) => Float80::parse(old.value.as_ref()).ok_or(VALUE_NOT_FLOAT)?,
        None => Float80::from_i64(0),
    };
    let new = old + increment;
    if !new.is_finite() {
        return Err(CommandError::NanOrInfinity);
    }
    let text = new.to_text();
    set_computed(ctx, key, found, is_there, &text);
    ctx.core.keyspace.changed(KeyspaceEvents::HASH, "hincrbyfloat", key.bytes);
    ctx.core.keyspace.notify_fields("hincrbyfloat", key.bytes, [field].into_iter());
    if has_deadline {
        ctx.instead(&[b"HSETEX", key.bytes, b"KEEPTTL", b"FIELDS", b"1", field, &text]);
    } else {
        ctx.instead(&[b"HSET", key.bytes, field, &text]);
    }
    ctx.reply.bulk(&text);
    Ok(Outcome::Replied)
}

/// Sets the field in argument 2; an existing deadline stays.
fn set_computed(
    ctx: &mut Context<'_>,
    key: Key<'_>,
    found: Option<Slot>,
    is_there: bool,
    text: &[u8],
) {
    let (field, limits, now) = (ctx.args.get(2), limits(ctx), ctx.core.keyspace.now());
    let expiry = if is_there { Expiry::Keep } else { Expiry::Clear };
    edit_or_create(ctx, key, found, |hash| hash.set(field, text, expiry, &limits, &now));
}

// ---- reading ------------------------------------------------------------------------------------

/// `HGET key field`: the value, or nil.
fn hget(ctx: &mut Context<'_>) -> CommandResult {
    let now = ctx.core.keyspace.now();
    let field = ctx.args.get(2);
    let key = ctx.key(1);
    let Context { core, reply, .. } = ctx;
    let read =
        core.keyspace.lend_read::<Hash, _>(key, |hash, lender| match hash.get(field, &now) {
            Some(found) => reply_text(reply, found.value, lender),
            None => reply.null(),
        })?;
    if read.is_none() {
        reply.null();
    }
    Ok(Outcome::Replied)
}

/// A field or value as a bulk string.
#[inline]
fn reply_text<'b>(reply: &mut ReplyWriter<'_>, text: Text<'b>, lender: &mut Lender<'b, '_>) {
    match text {
        Text::Bytes(bytes) => reply.bulk_or_lent(bytes, lender),
        Text::Number(_) => reply.bulk(text.as_ref()),
    }
}

/// `HMGET key field [field ...]`: an array of values, nil for each field that does not exist.
fn hmget(ctx: &mut Context<'_>) -> CommandResult {
    let now = ctx.core.keyspace.now();
    let fields = ctx.args.iter_from(2);
    let key = ctx.key(1);
    let Context { core, reply, .. } = ctx;
    let read = core.keyspace.lend_read::<Hash, _>(key, |hash, lender| {
        reply.array(fields.len());
        for field in fields.clone() {
            match hash.get(field, &now) {
                Some(found) => reply_text(reply, found.value, lender),
                None => reply.null(),
            }
        }
    })?;
    if read.is_none() {
        reply.array(fields.len());
        fields.for_each(|_| reply.null());
    }
    Ok(Outcome::Replied)
}

/// `HEXISTS key field`: 1 or 0.
fn hexists(ctx: &mut Context<'_>) -> CommandResult {
    let now = ctx.core.keyspace.now();
    let field = ctx.args.get(2);
    let found = ctx.core.keyspace.read::<Hash>(ctx.key(1))?.and_then(|hash| hash.get(field, &now));
    ctx.reply.integer(found.is_some().into());
    Ok(Outcome::Replied)
}

/// `HSTRLEN key field`: bytes of the value, 0 if there is none.
fn hstrlen(ctx: &mut Context<'_>) -> CommandResult {
    let now = ctx.core.keyspace.now();
    let field = ctx.args.get(2);
    let found = ctx.core.keyspace.read::<Hash>(ctx.key(1))?.and_then(|hash| hash.get(field, &now));
    ctx.reply.integer(found.map_or(0, |found| found.value.as_ref().len() as i64));
    Ok(Outcome::Replied)
}

/// `HLEN key`: the number of fields, 0 if there is no such key.
fn hlen(ctx: &mut Context<'_>) -> CommandResult {
    let now = ctx.core.keyspace.now();
    let len = ctx.core.keyspace.read::<Hash>(ctx.key(1))?.map_or(0, |hash| hash.len(&now));
    ctx.reply.integer(len as i64);
    Ok(Outcome::Replied)
}

/// `HGETALL key`: a map, in RESP2 an array of fields and values in turn.
fn hgetall(ctx: &mut Context<'_>) -> CommandResult {
    let now = ctx.core.keyspace.now();
    let key = ctx.key(1);
    let Context { core, reply, .. } = ctx;
    let read = core.keyspace.lend_read::<Hash, _>(key, |hash, lender| {
        reply.map(hash.len(&now));
        hash.for_each_text(&now, |field, value| {
            reply_text(reply, field, lender);
            reply_text(reply, value, lender);
        });
    })?;
    if read.is_none() {
        reply.map(0);
    }
    Ok(Outcome::Replied)
}

/// `HKEYS key`: an array.
fn hkeys(ctx: &mut Context<'_>) -> CommandResult {
    let now = ctx.core.keyspace.now();
    let hash = ctx.core.keyspace.read::<Hash>(ctx.key(1))?.unwrap_or(HashView::Packed(&[]));
    ctx.reply.array(hash.len(&now));
    hash.for_each(&now, |field, _| ctx.reply.bulk(field));
    Ok(Outcome::Replied)
}

/// `HVALS key`: an array.
fn hvals(ctx: &mut Context<'_>) -> CommandResult {
    let now = ctx.core.keyspace.now();
    let key = ctx.key(1);
    let Context { core, reply, .. } = ctx;
    let read = core.keyspace.lend_read::<Hash, _>(key, |hash, lender| {
        reply.array(hash.len(&now));
        hash.for_each_text(&now, |_, value| reply_text(reply, value, lender));
    })?;
    if read.is_none() {
        reply.array(0);
    }
    Ok(Outcome::Replied)
}

// ---- random fields ------------------------------------------------------------------------------

/// `HRANDFIELD key [count [WITHVALUES]]`: a field or nil; with a count an array: of different
/// fields, or, if it is negative, of fields drawn independently. With values, fields and values
/// alternate in RESP2; RESP3 has pairs.
fn hrandfield(ctx: &mut Context<'_>) -> CommandResult {
    let now = ctx.core.keyspace.now();
    if ctx.args.len() == 2 {
        match ctx.core.keyspace.read::<Hash>(ctx.key(1))?.and_then(|hash| hash.random(&now)) {
            Some((field, _)) => ctx.reply.bulk(field.as_ref()),
            None => ctx.reply.null(),
        }
        return Ok(Outcome::Replied);
    }
    let count = ctx.args.integer(2)?;
    if count == i64::MIN {
        return Err(COUNT_OUT_OF_RANGE);
    }
    let with_values = match ctx.args.len() {
        3 => false,
        4 if ctx.args.get(3).eq_ignore_ascii_case(b"WITHVALUES") => true,
        _ => return Err(CommandError::Syntax),
    };
    if with_values && count.unsigned_abs() > i64::MAX as u64 / 2 {
        return Err(CommandError::ValueOutOfRange(""));
    }
    if count < 0 {
        ctx.check_draws(count.unsigned_abs())?;
    }
    let hash = ctx.core.keyspace.read::<Hash>(ctx.key(1))?.unwrap_or(HashView::Packed(&[]));
    let len = hash.len(&now);
    let wanted = usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX);
    let total = match count {
        _ if len == 0 => 0,
        ..0 => wanted,
        _ => wanted.min(len),
    };
    let is_nested = with_values && ctx.reply.protocol() == Protocol::Resp3;
    ctx.reply.array(if with_values && !is_nested { 2 * total } else { total });
    let reply = |field: &[u8], value: &[u8]| {
        if is_nested {
            ctx.reply.array(2);
        }
        ctx.reply.bulk(field);
        if with_values {
            ctx.reply.bulk(value);
        }
        !ctx.reply.is_cut()
    };
    if count < 0 {
        draw_repeatedly(hash, &now, total, reply);
    } else if total.saturating_mul(DRAW_FROM) < len {
        draw_different(hash, &now, total, reply);
    } else {
        select_different(hash, &now, (len, total), reply);
    }
    Ok(Outcome::Replied)
}

/// Shows `count` random fields to `reply`, possibly with repetitions, until it returns false.
fn draw_repeatedly(
    hash: HashView<'_>,
    now: &Now,
    count: usize,
    mut reply: impl FnMut(&[u8], &[u8]) -> bool,
) {
    for _ in 0..count {
        if let Some((field, value)) = hash.random(now)
            && !reply(field.as_ref(), value.as_ref())
        {
            break;
        }
    }
}

/// Shows `count` different random fields to `reply`. Fast if they are few among many.
fn draw_different(
    hash: HashView<'_>,
    now: &Now,
    count: usize,
    mut reply: impl FnMut(&[u8], &[u8]) -> bool,
) {
    let mut drawn = std::collections::HashSet::with_capacity(count);
    while drawn.len() < count
        && let Some((field, value)) = hash.random(now)
    {
        if drawn.insert(field.as_ref().to_vec()) {
            reply(field.as_ref(), value.as_ref());
        }
    }
}

/// Shows `wanted` different random fields of the `left` ones to `reply`, in one pass over the hash.
fn select_different(
    hash: HashView<'_>,
    now: &Now,
    (mut left, mut wanted): (usize, usize),
    mut reply: impl FnMut(&[u8], &[u8]) -> bool,
) {
    hash.for_each(now, |field, value| {
        if wanted > 0 && fastrand::usize(0..left) < wanted {
            wanted -= 1;
            reply(field, value);
        }
        left -= 1;
    });
}

// ---- walking ------------------------------------------------------------------------------------

/// `[MATCH pattern] [COUNT count] [NOVALUES]`
struct ScanOptions<'a> {
    pattern: Option<&'a [u8]>,
    count: u64,
    no_values: bool,
}

impl<'a> ScanOptions<'a> {
    fn parse(ctx: &Context<'a>) -> Result<Self, CommandError> {
        let mut options = ScanOptions { pattern: None, count: 10, no_values: false };
        let mut arguments = ctx.args.cursor(3);
        while !arguments.is_at_end() {
            let has_operand = arguments.remaining() > 1;
            if has_operand && arguments.take_word("COUNT") {
                let count = u64::try_from(arguments.take_integer()?);
                options.count =
                    count.ok().filter(|&count| count > 0).ok_or(CommandError::Syntax)?;
            } else if has_operand && arguments.take_word("MATCH") {
                options.pattern = Some(arguments.take()?);
            } else if arguments.take_word("NOVALUES") {
                options.no_values = true;
            } else {
                return Err(CommandError::Syntax);
            }
        }
        options.pattern = options.pattern.filter(|&pattern| pattern != b"*");
        Ok(options)
    }
}

/// `HSCAN key cursor [MATCH pattern] [COUNT count] [NOVALUES]`: the next cursor (0 at the end) as a
/// bulk string, and an array of fields and values alternately. Without such a key the options are
/// not checked, as in Redis.
fn hscan(ctx: &mut Context<'_>) -> CommandResult {
    let cursor = scan_cursor(ctx, 2)?;
    let options = ScanOptions::parse(ctx);
    let now = ctx.core.keyspace.now();
    let Some(hash) = ctx.core.keyspace.read::<Hash>(ctx.key(1))? else {
        ctx.reply.array(2);
        ctx.reply.bulk(b"0");
        ctx.reply.array(0);
        return Ok(Outcome::Replied);
    };
    let options = options?;
    // The cursor, first in the reply, is known last.
    let mut elements = OutputBuffer::default();
    let mut writer = ReplyWriter::new(&mut elements, ctx.reply.protocol());
    let (mut next, mut seen, mut steps, mut found) = (cursor, 0u64, 0u64, 0);
    loop {
        next = hash.scan(next, count_left(options.count, seen), &now, |field, value| {
            seen += 1;
            if options.pattern.is_some_and(|pattern| !glob::matches(pattern, field, false)) {
                return;
            }
            writer.bulk(field);
            found += 1;
            if !options.no_values {
                writer.bulk(value);
                found += 1;
            }
        });
        steps += 1;
        if next == 0
            || seen >= options.count
            || steps >= options.count.saturating_mul(STEPS_PER_FIELD)
        {
            break;
        }
    }
    ctx.reply.array(2);
    ctx.reply.bulk_display(next);
    ctx.reply.array(found);
    ctx.reply.output().append(&elements);
    Ok(Outcome::Replied)
}
