//! Fields of hashes that expire: setting, asking and clearing their deadlines, alone or together with their values.
//!
//! Options, replies, errors and events are Valkey 9.1's, which include those of Redis 8. A relative time counts on
//! the boot-time clock, an absolute one on the wall clock; conditions compare the remaining times.

use crate::clock::Expiry;
use crate::clock::{Deadline, Now, UnixMillis};
use crate::collections::table::Slot;
use crate::command::hash::{edit_or_create, limits};
use crate::config::KeyspaceEvents;
use crate::error::CommandError;
use crate::gate::context::{CommandResult, Context, Outcome};
use crate::keyspace::Key;
use crate::resp::args::Args;
use crate::types::hash::Hash;
use crate::types::journal::Edit;

const BAD_FIELD_COUNT: CommandError = CommandError::Text(
    "ERR numfields should be greater than 0 and match the provided number of fields",
);

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

// ---- parsing -------------------------------------------------------------------------------------------------------------

/// The index of `FIELDS` after options from argument `start` on; not the last argument.
fn fields_word(args: Args<'_>, start: usize) -> Option<usize> {
    (start..args.len().saturating_sub(1)).find(|&at| args.get(at).eq_ignore_ascii_case(b"FIELDS"))
}

/// The index of the first field after `FIELDS numfields` at argument `word`. Each field has `arguments_each`
/// arguments, and nothing may follow.
fn first_field(args: Args<'_>, word: usize, arguments_each: i64) -> Result<usize, CommandError> {
    let count = args.integer(word + 1)?;
    let first = word + 2;
    let rest = (args.len() - first) as i64;
    if count == 0 || count.checked_mul(arguments_each) != Some(rest) {
        return Err(BAD_FIELD_COUNT);
    }
    Ok(first)
}

/// The index of the first field in `FIELDS numfields field [field ...]`, which begins at argument 2.
fn plain_fields(args: Args<'_>, mismatch: CommandError) -> Result<usize, CommandError> {
    if !args.get(2).eq_ignore_ascii_case(b"FIELDS") {
        return Err(CommandError::Syntax);
    }
    first_field(args, 2, 1).map_err(|error| if error == BAD_FIELD_COUNT { mismatch } else { error })
}

/// The unit and reference of a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Unit {
    ms: i64,
    is_absolute: bool,
}

const SECONDS: Unit = Unit { ms: 1000, is_absolute: false };
const MILLISECONDS: Unit = Unit { ms: 1, is_absolute: false };
const UNIX_SECONDS: Unit = Unit { ms: 1000, is_absolute: true };
const UNIX_MILLISECONDS: Unit = Unit { ms: 1, is_absolute: true };

impl Unit {
    /// The deadline of a time. Errors: negative, or its Unix milliseconds exceed 64 bits.
    fn deadline(
        self,
        time: &[u8],
        now: &Now,
        command: &'static str,
    ) -> Result<Deadline, CommandError> {
        let time = crate::resp::number::parse_i64(time).ok_or(CommandError::NotInteger)?;
        let ms = (time >= 0).then(|| time.checked_mul(self.ms)).flatten();
        let ms = ms.ok_or(CommandError::InvalidExpire(command))?;
        if self.is_absolute {
            return Ok(now.at(UnixMillis(ms)));
        }
        now.unix().0.checked_add(ms).ok_or(CommandError::InvalidExpire(command))?;
        Ok(now.after(ms))
    }
}

/// A condition on a field's deadline for setting a new one. A field without one counts as never expiring.
#[derive(Clone, Copy, Debug, Default)]
struct Condition {
    nx: bool,
    xx: bool,
    gt: bool,
    lt: bool,
}

impl Condition {
    /// Parses `[NX | XX | GT | LT]` from argument 3 to `end`; XX may be combined with GT or LT.
    fn parse(args: Args<'_>, end: usize) -> Result<Self, CommandError> {
        let mut condition = Condition::default();
        for option in args.iter_from(3).take(end - 3) {
            let is = |word: &[u8]| option.eq_ignore_ascii_case(word);
            match () {
                () if is(b"NX") => condition.nx = true,
                () if is(b"XX") => condition.xx = true,
                () if is(b"GT") => condition.gt = true,
                () if is(b"LT") => condition.lt = true,
                () => return Err(CommandError::unsupported_option(option)),
            }
        }
        let Condition { nx, xx, gt, lt } = condition;
        if nx && (xx || gt || lt) {
            return Err(CommandError::NX_WITH_OTHERS);
        }
        if gt && lt {
            return Err(CommandError::GT_WITH_LT);
        }
        Ok(condition)
    }

    fn allows(self, now: &Now, old: Option<Deadline>, new: Deadline) -> bool {
        let new = now.remaining_ms(new);
        let old = old.map(|old| now.remaining_ms(old));
        !(self.nx && old.is_some()
            || self.xx && old.is_none()
            || self.gt && old.is_none_or(|old| new <= old)
            || self.lt && old.is_some_and(|old| new >= old))
    }
}

/// HGETEX's and HSETEX's option for the deadline. The time is parsed after the key was looked up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Lifetime<'a> {
    #[default]
    Unsaid,
    Keep,
    Persist,
    Given(Unit, &'a [u8]),
}

/// Whether something must exist or must not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    Absent,
    Present,
}

/// The options of HGETEX and HSETEX.
#[derive(Clone, Copy, Debug, Default)]
struct Options<'a> {
    key: Option<Presence>,
    fields: Option<Presence>,
    lifetime: Lifetime<'a>,
}

impl<'a> Options<'a> {
    /// Parses the arguments from 2 to `end`. `sets`: for HSETEX, otherwise for HGETEX.
    fn parse(args: Args<'a>, end: usize, sets: bool) -> Result<Self, CommandError> {
        let mut options = Options::default();
        let mut at = 2;
        while at < end {
            let word = args.get(at);
            let is = |name: &[u8]| word.eq_ignore_ascii_case(name);
            let demand = |slot: &mut Option<Presence>, presence| match *slot {
                Some(other) if other != presence => Err(CommandError::Syntax),
                _ => {
                    *slot = Some(presence);
                    Ok(())
                }
            };
            let unit = match () {
                () if is(b"EX") => Some(SECONDS),
                () if is(b"PX") => Some(MILLISECONDS),
                () if is(b"EXAT") => Some(UNIX_SECONDS),
                () if is(b"PXAT") => Some(UNIX_MILLISECONDS),
                () => None,
            };
            match (unit, options.lifetime) {
                // A unit may be repeated: the last time counts.
                (Some(unit), lifetime) if at + 1 < end => {
                    match lifetime {
                        Lifetime::Unsaid => {}
                        Lifetime::Given(before, _) if before == unit => {}
                        _ => return Err(CommandError::Syntax),
                    }
                    options.lifetime = Lifetime::Given(unit, args.get(at + 1));
                    at += 1;
                }
                (None, Lifetime::Unsaid | Lifetime::Keep) if sets && is(b"KEEPTTL") => {
                    options.lifetime = Lifetime::Keep;
                }
                (None, Lifetime::Unsaid | Lifetime::Persist) if !sets && is(b"PERSIST") => {
                    options.lifetime = Lifetime::Persist;
                }
                (None, _) if sets && is(b"NX") => demand(&mut options.key, Presence::Absent)?,
                (None, _) if sets && is(b"XX") => demand(&mut options.key, Presence::Present)?,
                (None, _) if sets && is(b"FNX") => demand(&mut options.fields, Presence::Absent)?,
                (None, _) if sets && is(b"FXX") => demand(&mut options.fields, Presence::Present)?,
                _ => return Err(CommandError::Syntax),
            }
            at += 1;
        }
        Ok(options)
    }
}

/// The hash of a key, for reading: counts the hit or miss.
fn find_for_read(ctx: &mut Context<'_>, key: Key<'_>) -> Result<Option<Slot>, CommandError> {
    let found = ctx.db.find_for_read(key);
    let Some(slot) = found else { return Ok(None) };
    ctx.db.view::<Hash>(slot)?;
    Ok(ctx.db.settle_fields(slot, key))
}

/// Counts a change of `fields` fields, and announces it.
fn changed(ctx: &mut Context<'_>, event: &'static str, key: Key<'_>, fields: u64) {
    ctx.db.changed_by(fields, KeyspaceEvents::HASH, event, key.bytes);
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
    let offset_ms = ctx.db.wall_offset_ms();
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

// ---- deadlines alone -----------------------------------------------------------------------------------------------------

/// `HEXPIRE key seconds [NX | XX | GT | LT] FIELDS numfields field [field ...]`: an array with, for each field, 1 if the deadline
/// was set, 0 if the condition fails, 2 if the field was deleted as the deadline has passed, -2 if it does not exist.
pub(crate) fn hexpire(ctx: &mut Context<'_>) -> CommandResult {
    expire(ctx, SECONDS)
}

/// `HPEXPIRE key milliseconds [NX | XX | GT | LT] FIELDS numfields field [field ...]`: as HEXPIRE.
pub(crate) fn hpexpire(ctx: &mut Context<'_>) -> CommandResult {
    expire(ctx, MILLISECONDS)
}

/// `HEXPIREAT key unix-time-seconds [NX | XX | GT | LT] FIELDS numfields field [field ...]`: as HEXPIRE.
pub(crate) fn hexpire_at(ctx: &mut Context<'_>) -> CommandResult {
    expire(ctx, UNIX_SECONDS)
}

/// `HPEXPIREAT key unix-time-milliseconds [NX | XX | GT | LT] FIELDS numfields field [field ...]`: as HEXPIRE.
pub(crate) fn hpexpire_at(ctx: &mut Context<'_>) -> CommandResult {
    expire(ctx, UNIX_MILLISECONDS)
}

fn expire(ctx: &mut Context<'_>, unit: Unit) -> CommandResult {
    let (args, now) = (ctx.args, ctx.db.now());
    let word = fields_word(args, 3).ok_or(BAD_FIELD_COUNT)?;
    let condition = Condition::parse(args, word)?;
    let first = first_field(args, word, 1)?;
    let deadline = unit.deadline(args.get(2), &now, ctx.name())?;
    let (key, limits) = (ctx.key(1), limits(ctx));
    let found = ctx.db.slot_of::<Hash>(key)?;
    let fields = args.iter_from(first);
    ctx.reply.array(fields.len());
    let Some(slot) = found else {
        fields.for_each(|_| ctx.reply.integer(result::ABSENT));
        return Ok(Outcome::Replied);
    };
    let is_past = now.has_come(deadline) && !ctx.db.import_mode;
    let (is_heard, mut altered) = (ctx.is_heard(), Vec::new());
    let reply = &mut ctx.reply;
    let changes = ctx.db.edit(slot, |hash: &mut Edit<'_, Hash>| {
        let mut changes = 0;
        for field in fields {
            let done = match hash.as_view().get(field, &now) {
                None => result::ABSENT,
                Some(old) if !condition.allows(&now, old.deadline, deadline) => result::REFUSED,
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
        changed(ctx, if is_past { "hexpired" } else { "hexpire" }, key, changes);
        let became = if is_past { FieldEffect::Deleted } else { FieldEffect::DueAt(deadline) };
        repeat(ctx, key, &altered, became);
        settle(ctx, slot, key, changes, is_past);
    }
    Ok(Outcome::Replied)
}

/// After deadlines were changed: deletes the fields if the deadline has passed, otherwise updates the index of deadlines.
fn settle(ctx: &mut Context<'_>, slot: Slot, key: Key<'_>, changes: u64, is_past: bool) {
    if is_past {
        ctx.db.stats.expired_fields += changes;
        ctx.db.delete_if_empty::<Hash>(slot, key);
    } else {
        ctx.db.note_field_deadlines(slot, key.bytes);
    }
}

/// `HPERSIST key FIELDS numfields field [field ...]`: an array with, for each field, 1 if its deadline was removed,
/// -1 if it had none, -2 if it does not exist.
pub(crate) fn hpersist(ctx: &mut Context<'_>) -> CommandResult {
    let (args, now) = (ctx.args, ctx.db.now());
    let first = plain_fields(args, BAD_FIELD_COUNT)?;
    let (key, limits) = (ctx.key(1), limits(ctx));
    let found = ctx.db.slot_of::<Hash>(key)?;
    let fields = args.iter_from(first);
    ctx.reply.array(fields.len());
    let Some(slot) = found else {
        fields.for_each(|_| ctx.reply.integer(result::ABSENT));
        return Ok(Outcome::Replied);
    };
    let reply = &mut ctx.reply;
    let changes = ctx.db.edit(slot, |hash: &mut Edit<'_, Hash>| {
        let mut changes = 0;
        for field in fields {
            let done = match hash.as_view().get(field, &now).map(|found| found.deadline) {
                None => result::ABSENT,
                Some(None) => result::PERSISTENT,
                Some(Some(_)) => {
                    hash.set_deadline(field, None, &limits);
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
    }
    Ok(Outcome::Replied)
}

/// `HTTL key FIELDS numfields field [field ...]`: an array with, for each field, the seconds left, rounded; -1
/// without a deadline, -2 if it does not exist.
pub(crate) fn httl(ctx: &mut Context<'_>) -> CommandResult {
    reply_deadlines(ctx, |now, deadline| to_seconds(now.remaining_ms(deadline)))
}

/// `HPTTL key FIELDS numfields field [field ...]`: the same in milliseconds.
pub(crate) fn hpttl(ctx: &mut Context<'_>) -> CommandResult {
    reply_deadlines(ctx, |now, deadline| now.remaining_ms(deadline))
}

/// `HEXPIRETIME key FIELDS numfields field [field ...]`: as HTTL, but the Unix time.
pub(crate) fn hexpire_time(ctx: &mut Context<'_>) -> CommandResult {
    let offset_ms = ctx.db.wall_offset_ms();
    reply_deadlines(ctx, |_, deadline| to_seconds(deadline.unix(offset_ms).0))
}

/// `HPEXPIRETIME key FIELDS numfields field [field ...]`: the same in milliseconds.
pub(crate) fn hpexpire_time(ctx: &mut Context<'_>) -> CommandResult {
    let offset_ms = ctx.db.wall_offset_ms();
    reply_deadlines(ctx, |_, deadline| deadline.unix(offset_ms).0)
}

fn reply_deadlines(ctx: &mut Context<'_>, told: impl Fn(&Now, Deadline) -> i64) -> CommandResult {
    let (args, now) = (ctx.args, ctx.db.now());
    let first = plain_fields(args, CommandError::Syntax)?;
    let hash = ctx.db.read::<Hash>(ctx.key(1))?;
    let fields = args.iter_from(first);
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

/// Non-negative milliseconds rounded to seconds.
fn to_seconds(ms: i64) -> i64 {
    ms / 1000 + i64::from(ms % 1000 >= 500)
}

// ---- with values ---------------------------------------------------------------------------------------------------------

/// `HGETDEL key FIELDS numfields field [field ...]`: an array of values, nil for each field that does not exist.
pub(crate) fn hgetdel(ctx: &mut Context<'_>) -> CommandResult {
    let (args, now) = (ctx.args, ctx.db.now());
    let first = plain_fields(args, BAD_FIELD_COUNT)?;
    let key = ctx.key(1);
    let found = ctx.db.slot_of::<Hash>(key)?;
    let fields = args.iter_from(first);
    ctx.reply.array(fields.len());
    let Some(slot) = found else {
        fields.for_each(|_| ctx.reply.null());
        return Ok(Outcome::Replied);
    };
    let (is_heard, mut altered) = (ctx.is_heard(), Vec::new());
    let reply = &mut ctx.reply;
    let removed = ctx.db.edit(slot, |hash: &mut Edit<'_, Hash>| {
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
        repeat(ctx, key, &altered, FieldEffect::Deleted);
        ctx.db.delete_if_empty::<Hash>(slot, key);
    }
    Ok(Outcome::Replied)
}

/// `HGETEX key [EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds | PERSIST] FIELDS numfields
/// field [field ...]`: an array of values, nil for each field that does not exist. A past time deletes the fields.
pub(crate) fn hgetex(ctx: &mut Context<'_>) -> CommandResult {
    let (args, now) = (ctx.args, ctx.db.now());
    let word = fields_word(args, 2).ok_or(BAD_FIELD_COUNT)?;
    let options = Options::parse(args, word, false)?;
    let first = first_field(args, word, 1)?;
    let (key, limits) = (ctx.key(1), limits(ctx));
    let found = find_for_read(ctx, key)?;
    let deadline = match options.lifetime {
        Lifetime::Given(unit, time) => Some(unit.deadline(time, &now, ctx.name())?),
        _ => None,
    };
    let fields = args.iter_from(first);
    ctx.reply.array(fields.len());
    let Some(slot) = found else {
        fields.for_each(|_| ctx.reply.null());
        return Ok(Outcome::Replied);
    };
    let reply = &mut ctx.reply;
    if options.lifetime == Lifetime::Unsaid {
        let hash = ctx.db.view::<Hash>(slot)?;
        for field in fields {
            match hash.get(field, &now) {
                Some(found) => reply.bulk(found.value.as_ref()),
                None => reply.null(),
            }
        }
        return Ok(Outcome::Replied);
    }
    let is_past = deadline.is_some_and(|deadline| now.has_come(deadline)) && !ctx.db.import_mode;
    let (is_heard, mut altered) = (ctx.is_heard(), Vec::new());
    let reply = &mut ctx.reply;
    let changes = ctx.db.edit(slot, |hash: &mut Edit<'_, Hash>| {
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
            _ if is_past => ("hexpired", FieldEffect::Deleted),
            Some(deadline) => ("hexpire", FieldEffect::DueAt(deadline)),
            None => ("hpersist", FieldEffect::Persistent),
        };
        changed(ctx, event, key, changes);
        repeat(ctx, key, &altered, became);
        settle(ctx, slot, key, changes, is_past);
    }
    Ok(Outcome::Replied)
}

/// `HSETEX key [NX | XX] [FNX | FXX] [EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT
/// unix-time-milliseconds | KEEPTTL] FIELDS numfields field value [field value ...]`: 1 if all fields were set, 0 if
/// a condition fails: NX and XX are about the key, FNX and FXX about all fields. A past time deletes the fields.
pub(crate) fn hsetex(ctx: &mut Context<'_>) -> CommandResult {
    let (args, now) = (ctx.args, ctx.db.now());
    let word = fields_word(args, 2).ok_or(BAD_FIELD_COUNT)?;
    let options = Options::parse(args, word, true)?;
    let first = first_field(args, word, 2)?;
    let key = ctx.key(1);
    let found = ctx.db.slot_of::<Hash>(key)?;
    if options.key.is_some_and(|presence| (presence == Presence::Present) != found.is_some()) {
        ctx.reply.integer(0);
        return Ok(Outcome::Replied);
    }
    let deadline = match options.lifetime {
        Lifetime::Given(unit, time) => Some(unit.deadline(time, &now, ctx.name())?),
        _ => None,
    };
    if let Some(presence) = options.fields {
        let hash = found.map(|slot| ctx.db.view::<Hash>(slot)).transpose()?;
        let is_there = |field| hash.is_some_and(|hash| hash.get(field, &now).is_some());
        let mut fields = args.iter_from(first).step_by(2);
        if fields.any(|field| is_there(field) != (presence == Presence::Present)) {
            ctx.reply.integer(0);
            return Ok(Outcome::Replied);
        }
    }
    let is_past = deadline.is_some_and(|deadline| now.has_come(deadline)) && !ctx.db.import_mode;
    if is_past {
        delete_pairs(ctx, key, found, first);
    } else {
        set_pairs(ctx, key, found, first, options.lifetime == Lifetime::Keep, deadline);
    }
    ctx.reply.integer(1);
    Ok(Outcome::Replied)
}

fn set_pairs(
    ctx: &mut Context<'_>,
    key: Key<'_>,
    found: Option<Slot>,
    first: usize,
    keeps: bool,
    deadline: Option<Deadline>,
) {
    let (args, limits, now) = (ctx.args, limits(ctx), ctx.db.now());
    let (slot, ()) = edit_or_create(ctx, key, found, |hash| {
        for at in (first..args.len()).step_by(2) {
            let field = args.get(at);
            let expiry = match deadline {
                Some(deadline) => Expiry::At(deadline),
                // A past deadline is not kept.
                None if keeps && hash.as_view().get(field, &now).is_some() => Expiry::Keep,
                None => Expiry::Clear,
            };
            hash.set(field, args.get(at + 1), expiry, &limits, &now);
        }
    });
    changed(ctx, "hset", key, ((args.len() - first) / 2) as u64);
    let offset_ms = ctx.db.wall_offset_ms();
    ctx.instead_gathered(|_, request| {
        let count = ((args.len() - first) / 2).to_string();
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
        request.extend(args.iter_from(first).map(<[u8]>::to_vec));
    });
    if deadline.is_some() {
        ctx.db.note_field_deadlines(slot, key.bytes);
        ctx.db.notify(KeyspaceEvents::HASH, "hexpire", key.bytes);
    }
}

/// HSETEX with a past time: the fields are set and deleted at once.
fn delete_pairs(ctx: &mut Context<'_>, key: Key<'_>, found: Option<Slot>, first: usize) {
    let (args, now) = (ctx.args, ctx.db.now());
    let pairs = ((args.len() - first) / 2) as u64;
    let removed: Vec<&[u8]> = found.map_or(Vec::new(), |slot| {
        ctx.db.edit(slot, |hash: &mut Edit<'_, Hash>| {
            let fields = args.iter_from(first).step_by(2);
            fields.filter(|field| hash.remove(field, &now)).collect()
        })
    });
    ctx.db.stats.expired_fields += pairs;
    if found.is_none() {
        ctx.db.notify(KeyspaceEvents::NEW, "new", key.bytes);
    }
    if !removed.is_empty() {
        changed(ctx, "hset", key, removed.len() as u64);
        repeat(ctx, key, &removed, FieldEffect::Deleted);
    } else {
        ctx.db.notify(KeyspaceEvents::HASH, "hset", key.bytes);
    }
    ctx.db.notify(KeyspaceEvents::HASH, "hexpire", key.bytes);
    ctx.db.notify(KeyspaceEvents::HASH, "hexpired", key.bytes);
    match found {
        Some(slot) => _ = ctx.db.delete_if_empty::<Hash>(slot, key),
        None => ctx.db.notify(KeyspaceEvents::GENERIC, "del", key.bytes),
    }
}
