//! Commands on strings as numbers, and on parts of strings.

use std::ops::Range;

use crate::collections::lent::LENT_MIN;
use crate::config::KeyspaceEvents;
use crate::error::CommandError;
use crate::keyspace::Expiry;
use crate::resp::float80::Float80;
use crate::resp::number;
use crate::state::context::{CommandResult, Context, Outcome};
use crate::types::string::StringView;

const DECREMENT_OVERFLOW: CommandError = CommandError::Text("ERR decrement would overflow");
const OFFSET_OUT_OF_RANGE: CommandError = CommandError::Text("ERR offset is out of range");

/// `INCR key`: the new value.
pub(crate) fn incr(ctx: &mut Context<'_>) -> CommandResult {
    add(ctx, 1)
}

/// `DECR key`: the new value.
pub(crate) fn decr(ctx: &mut Context<'_>) -> CommandResult {
    add(ctx, -1)
}

/// `INCRBY key increment`: the new value.
pub(crate) fn incrby(ctx: &mut Context<'_>) -> CommandResult {
    let increment = ctx.args.integer(2)?;
    add(ctx, increment)
}

/// `DECRBY key decrement`: the new value.
pub(crate) fn decrby(ctx: &mut Context<'_>) -> CommandResult {
    let decrement = ctx.args.integer(2)?;
    add(ctx, decrement.checked_neg().ok_or(DECREMENT_OVERFLOW)?)
}

fn add(ctx: &mut Context<'_>, increment: i64) -> CommandResult {
    let key = ctx.key(1);
    let found = ctx.core.keyspace.find_for_write(key);
    let old = match found {
        Some(slot) => {
            let text = ctx.core.keyspace.string_at(slot)?.as_slice();
            text.and_then(number::parse_i64).ok_or(CommandError::NotInteger)?
        }
        None => 0,
    };
    let new = old.checked_add(increment).ok_or(CommandError::Overflow)?;
    let mut buffer = itoa::Buffer::new();
    let text = buffer.format(new).as_bytes();
    ctx.core.keyspace.overwrite_string(found, key, text);
    ctx.core.keyspace.changed(KeyspaceEvents::STRING, "incrby", key.bytes);
    ctx.reply.integer_text(text);
    Ok(Outcome::Replied)
}

/// `INCRBYFLOAT key increment`: the new value as a bulk string.
pub(crate) fn incrbyfloat(ctx: &mut Context<'_>) -> CommandResult {
    let key = ctx.key(1);
    let found = ctx.core.keyspace.find_for_write(key);
    let old = match found {
        Some(slot) => {
            let text = ctx.core.keyspace.string_at(slot)?.as_slice();
            text.and_then(Float80::parse).ok_or(CommandError::NotFloat)?
        }
        None => Float80::from_i64(0),
    };
    let increment = Float80::parse(ctx.args.get(2)).ok_or(CommandError::NotFloat)?;
    let new = old + increment;
    if !new.is_finite() {
        return Err(CommandError::NanOrInfinity);
    }
    let text = new.to_text();
    ctx.core.keyspace.set_number_text_at(found, key, &text);
    ctx.core.keyspace.changed(KeyspaceEvents::STRING, "incrbyfloat", key.bytes);
    ctx.instead_set(key.bytes, &text, Expiry::Keep);
    ctx.reply.bulk(&text);
    Ok(Outcome::Replied)
}

/// `APPEND key value`: the new length.
pub(crate) fn append(ctx: &mut Context<'_>) -> CommandResult {
    let (key, value) = (ctx.key(1), ctx.args.get(2));
    let length = match ctx.core.keyspace.find_for_write(key) {
        Some(slot) => {
            let old = ctx.core.keyspace.string_at(slot)?.len();
            checked_length(ctx, old as u64, value.len())?;
            ctx.core.keyspace.write_string(slot, old, value)
        }
        None => {
            ctx.core.keyspace.set_string_at(None, key, value, Expiry::Clear);
            value.len()
        }
    };
    ctx.core.keyspace.changed(KeyspaceEvents::STRING, "append", key.bytes);
    ctx.reply.integer(length as i64);
    Ok(Outcome::Replied)
}

/// `SETRANGE key offset value`: the new length.
pub(crate) fn setrange(ctx: &mut Context<'_>) -> CommandResult {
    let (key, value) = (ctx.key(1), ctx.args.get(3));
    let offset = u64::try_from(ctx.args.integer(2)?).map_err(|_| OFFSET_OUT_OF_RANGE)?;
    let found = ctx.core.keyspace.find_for_write(key);
    let old = match found {
        Some(slot) => ctx.core.keyspace.string_at(slot)?.len(),
        None => 0,
    };
    if value.is_empty() {
        ctx.reply.integer(old as i64);
        return Ok(Outcome::Replied);
    }
    let end = checked_length(ctx, offset, value.len())?;
    let slot = found.unwrap_or_else(|| ctx.core.keyspace.create_string(key));
    let length = ctx.core.keyspace.write_string(slot, end - value.len(), value);
    ctx.core.keyspace.changed(KeyspaceEvents::STRING, "setrange", key.bytes);
    ctx.reply.integer(length as i64);
    Ok(Outcome::Replied)
}

/// The length of a string of `length` bytes plus `more`. Errors: it exceeds the limit of strings.
fn checked_length(ctx: &Context<'_>, length: u64, more: usize) -> Result<usize, CommandError> {
    length
        .checked_add(more as u64)
        .filter(|length| *length <= ctx.size_limits().string)
        .and_then(|length| usize::try_from(length).ok())
        .ok_or(CommandError::StringTooLong)
}

/// `STRLEN key`: the length, 0 if there is no such key.
pub(crate) fn strlen(ctx: &mut Context<'_>) -> CommandResult {
    let length = ctx.core.keyspace.string(ctx.key(1))?.map_or(0, StringView::len);
    ctx.reply.integer(length as i64);
    Ok(Outcome::Replied)
}

/// `GETRANGE key start end`: the bytes from `start` to `end`, both included; negative ones count
/// from the end.
pub(crate) fn getrange(ctx: &mut Context<'_>) -> CommandResult {
    let (start, end) = (ctx.args.integer(2)?, ctx.args.integer(3)?);
    let Some(slot) = ctx.core.keyspace.find_for_read(ctx.key(1)) else {
        ctx.reply.bulk(b"");
        return Ok(Outcome::Replied);
    };
    let value = ctx.core.keyspace.string_at(slot)?;
    let range = part(value.len(), start, end);
    match value {
        StringView::Whole(bytes) if range.len() < LENT_MIN => ctx.reply.bulk(&bytes[range]),
        _ => {
            let Context { core, reply, .. } = ctx;
            core.keyspace.lend(slot, |value, lender| {
                let string = StringView::new(value).unwrap_or_default();
                reply.bulk_lent(range.len(), string.pieces(range), lender);
            });
        }
    }
    Ok(Outcome::Replied)
}

/// The range of a string of `length` bytes from `start` to `end`, both included, clamped.
fn part(length: usize, start: i64, end: i64) -> Range<usize> {
    // Reversed negative bounds are empty even if both clamp to the first byte.
    if start < 0 && end < 0 && start > end {
        return 0..0;
    }
    let length = length as i64;
    let from_front = |index: i64| {
        if index < 0 { (length + index).max(0) } else { index }
    };
    let (start, end) = (from_front(start), from_front(end).min(length - 1));
    if start > end { 0..0 } else { start as usize..end as usize + 1 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    fn part(text: &[u8], start: i64, end: i64) -> &[u8] {
        &text[super::part(text.len(), start, end)]
    }

    #[test]
    fn a_part_is_cut_to_the_string() {
        assert_eq!(part(b"hello", 1, 3), b"ell");
        assert_eq!(part(b"hello", -3, -1), b"llo");
        assert_eq!(part(b"hello", 0, i64::MAX), b"hello");
        assert_eq!(part(b"hello", i64::MIN, i64::MAX), b"hello");
        assert_eq!(part(b"hello", -10, -8), b"h");
        assert_eq!(part(b"hello", -8, -10), b"");
        assert_eq!(part(b"hello", 3, 1), b"");
        assert_eq!(part(b"hello", 5, 9), b"");
        assert_eq!(part(b"", 0, -1), b"");
    }

    proptest! {
        #[test]
        fn a_part_within_the_string_is_the_slice(text: Vec<u8>, start: usize, end: usize) {
            prop_assume!(!text.is_empty());
            let (start, end) = (start % text.len(), end % text.len());
            let expected = text.get(start..=end).unwrap_or_default();
            prop_assert_eq!(part(&text, start as i64, end as i64), expected);
            let length = text.len() as i64;
            prop_assert_eq!(part(&text, start as i64 - length, end as i64 - length), expected);
        }
    }
}
