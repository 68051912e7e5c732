//! The words of commands on fields of hashes that expire: options, and `FIELDS numfields field
//! ...`.
//!
//! The options come first, as in Valkey 9.1, whose errors these are. With `compatible-with redis-8`
//! they may come last, too, and the errors are those of Redis 8.6.3. Times and conditions are
//! parsed by `command/deadline.rs`.

use crate::clock::Deadline;
use crate::command::deadline::{Condition, Lifetime, LifetimeWord, TimeUnit, When};
use crate::error::CommandError;
use crate::resp::args::{Args, Cursor};
use crate::resp::number::parse_i64;
use crate::state::context::Context;
use crate::types::hash::Hash;

pub const BAD_FIELD_COUNT: CommandError = CommandError::Text(
    "ERR numfields should be greater than 0 and match the provided number of fields",
);

/// Errors of Redis 8.6.3.
mod redis_8 {
    use crate::error::CommandError;

    const fn text(text: &'static str) -> CommandError {
        CommandError::Text(text)
    }

    pub const NEGATIVE_TIME: CommandError = text("ERR invalid expire time, must be >= 0");
    pub const NO_TIME: CommandError = text("ERR missing expire time");
    pub const CONDITIONS: CommandError = text("ERR Multiple condition flags specified");
    pub const TWICE: CommandError = text("ERR FIELDS keyword specified multiple times");
    pub const NO_FIELDS: CommandError = text("ERR missing FIELDS argument");
    pub const FIELDS_ALONE: CommandError =
        text("ERR FIELDS requires at least numfields and one field argument");
    pub const FEWER: CommandError = CommandError::WRONG_NUMBER;
    pub const UNKNOWN: CommandError = CommandError::UNKNOWN_ARGUMENT;
    pub const BAD_COUNT_TO_EXPIRE: CommandError =
        text("ERR Parameter `numFields` should be greater than 0");
    pub const BAD_COUNT: CommandError = text("ERR invalid number of fields");
    pub const NOT_POSITIVE: CommandError = text("ERR Number of fields must be a positive integer");
    pub const UNEQUAL: CommandError =
        text("ERR The `numfields` parameter must match the number of arguments");
    pub const MISPLACED: CommandError =
        text("ERR Mandatory argument FIELDS is missing or not at the right position");
    pub const LIFETIMES_READ: CommandError =
        text("ERR Only one of EX, PX, EXAT, PXAT or PERSIST arguments can be specified");
    pub const LIFETIMES_SET: CommandError =
        text("ERR Only one of EX, PX, EXAT, PXAT or KEEPTTL arguments can be specified");
    pub const PRESENCES: CommandError =
        text("ERR Only one of FXX or FNX arguments can be specified");

    pub fn unknown(word: &[u8]) -> CommandError {
        CommandError::of_parts(&[b"ERR unknown argument: ", word])
    }
}

/// The arguments of the fields that a request names, or of fields and values alternately.
#[derive(Clone, Copy, Debug)]
pub struct FieldArgs {
    first: usize,
    end: usize,
}

impl FieldArgs {
    pub fn of(self, args: Args<'_>) -> impl ExactSizeIterator<Item = &[u8]> + Clone {
        args.iter_from(self.first).take(self.end - self.first)
    }
}

/// The arguments of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    Fields,
    /// With their values.
    Pairs,
}

pub fn is_redis_8(ctx: &Context<'_>) -> bool {
    ctx.core.state.config.compatible_with.is_redis_8()
}

/// Redis 8.6 refuses a value of another type before it reads the words, but for HSETEX.
fn check_type(ctx: &mut Context<'_>) -> Result<(), CommandError> {
    if is_redis_8(ctx)
        && let Some(slot) = ctx.core.keyspace.find(ctx.key(1))
    {
        ctx.core.keyspace.view::<Hash>(slot)?;
    }
    Ok(())
}

/// `FIELDS numfields field [field ...]` from argument 2 on. `mismatch`: the error of a wrong
/// number.
pub fn plain(ctx: &mut Context<'_>, mismatch: CommandError) -> Result<FieldArgs, CommandError> {
    let args = ctx.args;
    check_type(ctx)?;
    let has_word = args.get(2).eq_ignore_ascii_case(b"FIELDS");
    if is_redis_8(ctx) {
        if !has_word {
            return Err(redis_8::MISPLACED);
        }
        let count = parse_i64(args.get(3)).filter(|count| *count > 0);
        let count = count.ok_or(redis_8::NOT_POSITIVE)?;
        let (first, end) = (4, args.len());
        return match usize::try_from(count) == Ok(end - first) {
            true => Ok(FieldArgs { first, end }),
            false => Err(redis_8::UNEQUAL),
        };
    }
    if !has_word {
        return Err(CommandError::Syntax);
    }
    let fields = last_fields(args, 2, 1);
    fields.map_err(|error| if error == BAD_FIELD_COUNT { mismatch } else { error })
}

/// `time [NX | XX | GT | LT] FIELDS numfields field [field ...]` from argument 2 on.
pub fn expiring(
    ctx: &mut Context<'_>,
    unit: TimeUnit,
) -> Result<(Deadline, Condition, FieldArgs), CommandError> {
    let args = ctx.args;
    check_type(ctx)?;
    if !is_redis_8(ctx) {
        let word = fields_word(args, 3).ok_or(BAD_FIELD_COUNT)?;
        let condition = Condition::parse(args.cursor_within(3..word))?;
        let fields = last_fields(args, word, 1)?;
        return Ok((parse_deadline(unit, args.get(2), ctx)?, condition, fields));
    }
    let deadline = parse_deadline(unit, args.get(2), ctx)?;
    let (mut condition, mut fields) = (Condition::Always, None);
    let mut cursor = args.cursor(3);
    while let Some(word) = cursor.peek() {
        let at = cursor.position();
        if let Ok(one) = Condition::parse(args.cursor_within(at..at + 1)) {
            if condition != Condition::Always && condition != one {
                return Err(redis_8::CONDITIONS);
            }
            condition = one;
            cursor.take()?;
        } else if cursor.take_word("FIELDS") {
            if fields.is_none() && cursor.remaining() < 2 {
                return Err(redis_8::FIELDS_ALONE);
            }
            take_fields(&mut cursor, &mut fields, Takes::Fields, redis_8::BAD_COUNT_TO_EXPIRE)?;
        } else {
            return Err(redis_8::unknown(word));
        }
    }
    Ok((deadline, condition, fields.ok_or(redis_8::NO_FIELDS)?))
}

/// Options, and `FIELDS numfields field [value] [field [value] ...]`, from argument 2 on.
pub fn with_options<'a>(
    ctx: &mut Context<'a>,
    takes: Takes,
) -> Result<(Options<'a>, FieldArgs), CommandError> {
    let (args, sets) = (ctx.args, takes == Takes::Pairs);
    if !sets {
        check_type(ctx)?;
    }
    if !is_redis_8(ctx) {
        let word = fields_word(args, 2).ok_or(BAD_FIELD_COUNT)?;
        let options = Options::parse(args, word, sets)?;
        return Ok((options, last_fields(args, word, if sets { 2 } else { 1 })?));
    }
    let (mut options, mut fields) = (Options::default(), None);
    let mut cursor = args.cursor(2);
    while let Some(word) = cursor.peek() {
        if cursor.take_word("FIELDS") {
            take_fields(&mut cursor, &mut fields, takes, redis_8::BAD_COUNT)?;
            continue;
        }
        cursor.take()?;
        let is = |name: &[u8]| word.eq_ignore_ascii_case(name);
        let presence = match () {
            () if sets && is(b"FNX") => Some(Presence::Absent),
            () if sets && is(b"FXX") => Some(Presence::Present),
            // Valkey's.
            () if sets && is(b"NX") => {
                options.key = Some(Presence::Absent);
                continue;
            }
            () if sets && is(b"XX") => {
                options.key = Some(Presence::Present);
                continue;
            }
            () => None,
        };
        if presence.is_some() {
            if options.fields.is_some() {
                return Err(redis_8::PRESENCES);
            }
            options.fields = presence;
            continue;
        }
        let lifetime = match LifetimeWord::of(word) {
            None => return Err(redis_8::unknown(word)),
            Some(LifetimeWord::KeepTtl) if !sets => return Err(redis_8::UNKNOWN),
            Some(LifetimeWord::Persist) if sets => return Err(redis_8::UNKNOWN),
            Some(lifetime) => lifetime,
        };
        if options.lifetime != Lifetime::Unsaid {
            return Err(if sets { redis_8::LIFETIMES_SET } else { redis_8::LIFETIMES_READ });
        }
        options.lifetime = match lifetime {
            LifetimeWord::KeepTtl => Lifetime::Keep,
            LifetimeWord::Persist => Lifetime::Persist,
            LifetimeWord::Time(unit) => {
                let time = cursor.take().map_err(|_| redis_8::NO_TIME)?;
                // Its errors come before those of further words.
                parse_deadline(unit, time, ctx)?;
                Lifetime::Given(unit, time)
            }
        };
    }
    Ok((options, fields.ok_or(redis_8::NO_FIELDS)?))
}

/// Takes what follows FIELDS. `bad_count`: the error of a number that is none.
fn take_fields(
    cursor: &mut Cursor<'_>,
    fields: &mut Option<FieldArgs>,
    takes: Takes,
    bad_count: CommandError,
) -> Result<(), CommandError> {
    if fields.is_some() {
        return Err(redis_8::TWICE);
    }
    let count = cursor.take().ok().and_then(parse_i64);
    let count = count.and_then(|count| u32::try_from(count).ok());
    let count = count.filter(|count| (1..=i32::MAX as u32).contains(count)).ok_or(bad_count)?;
    let each = if takes == Takes::Pairs { 2 } else { 1 };
    let count = (count as usize).saturating_mul(each);
    if count > cursor.remaining() {
        return Err(redis_8::FEWER);
    }
    let first = cursor.position();
    for _ in 0..count {
        cursor.take()?;
    }
    *fields = Some(FieldArgs { first, end: first + count });
    Ok(())
}

/// The index of `FIELDS` after options from argument `start` on; not the last argument.
fn fields_word(args: Args<'_>, start: usize) -> Option<usize> {
    (start..args.len().saturating_sub(1)).find(|&at| args.get(at).eq_ignore_ascii_case(b"FIELDS"))
}

/// The fields after `FIELDS numfields` at argument `word`. Each has `arguments_each` arguments, and
/// nothing may follow.
fn last_fields(
    args: Args<'_>,
    word: usize,
    arguments_each: i64,
) -> Result<FieldArgs, CommandError> {
    let count = args.integer(word + 1)?;
    let first = word + 2;
    let rest = (args.len() - first) as i64;
    if count == 0 || count.checked_mul(arguments_each) != Some(rest) {
        return Err(BAD_FIELD_COUNT);
    }
    Ok(FieldArgs { first, end: args.len() })
}

/// The latest deadline that a client may set, in Unix milliseconds: Redis 7.4 stores 48 bits.
/// Valkey's clients, files and primaries may give any.
const LATEST_MS: i64 = (1 << 48) - 2;

/// The deadline at a time. Errors: it is negative, or too late for the caller.
pub fn parse_deadline(
    unit: TimeUnit,
    time: &[u8],
    ctx: &Context<'_>,
) -> Result<Deadline, CommandError> {
    let now = ctx.core.keyspace.now();
    let takes_any = ctx.caller.is_repeating() || ctx.core.state.config.compatible_with.is_valkey();
    let latest_ms = if takes_any { i64::MAX } else { LATEST_MS };
    if is_redis_8(ctx) && parse_i64(time).is_some_and(|time| time < 0) {
        return Err(redis_8::NEGATIVE_TIME);
    }
    let is_allowed = |time, when: When| time >= 0 && when.unix_ms(&now) <= latest_ms;
    Ok(unit.parse(time, &now, ctx.name(), is_allowed)?.deadline(&now))
}

/// Whether something must exist or must not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    Absent,
    Present,
}

/// The options of HGETEX and HSETEX.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'a> {
    pub key: Option<Presence>,
    pub fields: Option<Presence>,
    pub lifetime: Lifetime<'a>,
}

impl<'a> Options<'a> {
    /// Parses the arguments from 2 to `end`. `sets`: for HSETEX, otherwise for HGETEX.
    fn parse(args: Args<'a>, end: usize, sets: bool) -> Result<Self, CommandError> {
        let mut options = Options::default();
        let mut cursor = args.cursor_within(2..end);
        while let Some(word) = cursor.peek() {
            cursor.take()?;
            let is = |name: &[u8]| word.eq_ignore_ascii_case(name);
            let demand = |slot: &mut Option<Presence>, presence| match *slot {
                Some(other) if other != presence => Err(CommandError::Syntax),
                _ => {
                    *slot = Some(presence);
                    Ok(())
                }
            };
            let other = if sets { LifetimeWord::Persist } else { LifetimeWord::KeepTtl };
            match LifetimeWord::of(word) {
                Some(word) if word != other => options.lifetime.add(word, &mut cursor)?,
                None if sets && is(b"NX") => demand(&mut options.key, Presence::Absent)?,
                None if sets && is(b"XX") => demand(&mut options.key, Presence::Present)?,
                None if sets && is(b"FNX") => demand(&mut options.fields, Presence::Absent)?,
                None if sets && is(b"FXX") => demand(&mut options.fields, Presence::Present)?,
                _ => return Err(CommandError::Syntax),
            }
        }
        Ok(options)
    }
}
