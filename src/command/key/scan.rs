//! Iterating over the keys of a database: SCAN in steps, KEYS at once.
//!
//! SCAN's cursor is a boundary in the table's order of keys, see `collections/table.rs`. So a key
//! that exists from the first call to the last is returned exactly once, whatever is added, deleted
//! or moved in between; a key that does not exist all the time may be returned, once for each time
//! that it was added. Expired keys are never returned.

use crate::clock::Now;
use crate::collections::glob;
use crate::collections::hash_slot::HashSlot;
use crate::collections::table::Entry;
use crate::error::CommandError;
use crate::resp::args::Cursor;
use crate::resp::number::parse_i64;
use crate::resp::reply::{OutputBuffer, ReplyWriter};
use crate::state::context::{CommandResult, Context, Outcome};
use crate::state::spec::{Categories, CommandSpec, Flags, spec};
use crate::types::{Value, type_name};

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    spec("SCAN", scan).at_least(2).flags(Flags::READONLY).categories(Categories::KEYSPACE).since("2.8.0")
        .tips(&["nondeterministic_output", "request_policy:special"])
        .docs("cursor [MATCH pattern] [COUNT count] [TYPE type]", "Iterates over the keys of the database, some in each call.",
            "O(COUNT) for each call, O(N) for the whole walk."),
    spec("KEYS", all_keys).exactly(2).flags(Flags::READONLY).categories(Categories::KEYSPACE_DANGEROUS).since("1.0.0")
        .tips(&["request_policy:all_shards", "nondeterministic_output_order"])
        .docs("pattern", "Lists the keys that match a pattern.", "O(N), N being the number of keys."),
];

const SLOT_TWICE: CommandError = CommandError::Text("ERR SLOT option can only be specified once");
const BAD_SLOT: CommandError = CommandError::Text("ERR Invalid or out of range slot");

/// A slot's number in an argument.
pub(crate) fn slot_of_text(text: &[u8]) -> Result<HashSlot, CommandError> {
    let number = parse_i64(text).and_then(|number| usize::try_from(number).ok());
    number.and_then(HashSlot::new).ok_or(BAD_SLOT)
}

/// Buckets visited for each requested key: limits a call on a nearly empty table.
const STEPS_PER_KEY: u64 = 10;
/// The least number of hidden keys that a call may pass over.
const HIDDEN_LEAST: u64 = 2_000;

/// SCAN's options: `SCAN cursor [MATCH pattern] [COUNT count] [TYPE type]`.
pub(crate) struct ScanOptions<'a> {
    pattern: Option<&'a [u8]>,
    /// The number of keys to visit, at least 1.
    pub count: u64,
    type_name: Option<&'a [u8]>,
    /// The hash slot to which CLUSTERSCAN is limited.
    pub slot: Option<HashSlot>,
}

impl<'a> ScanOptions<'a> {
    /// Parses the options after the cursor. `of_cluster`: those of CLUSTERSCAN, which has SLOT.
    pub fn parse(ctx: &Context<'a>, of_cluster: bool) -> Result<Self, CommandError> {
        let knows_types = of_cluster || ctx.core.state.config.compatible_with.is_valkey();
        let mut options = ScanOptions { pattern: None, count: 10, type_name: None, slot: None };
        let mut arguments = ctx.args.cursor(2);
        while !arguments.is_at_end() {
            if arguments.remaining() < 2 {
                return Err(CommandError::Syntax);
            }
            if arguments.take_word("COUNT") {
                let count = u64::try_from(arguments.take_integer()?);
                options.count =
                    count.ok().filter(|&count| count > 0).ok_or(CommandError::Syntax)?;
            } else if arguments.take_word("MATCH") {
                options.pattern = Some(arguments.take()?);
            } else if arguments.take_word("TYPE") {
                let name = arguments.take()?;
                if knows_types && !TYPE_NAMES.iter().any(|known| name.eq_ignore_ascii_case(known)) {
                    return Err(CommandError::of_parts(&[b"ERR unknown type name '", name, b"'"]));
                }
                options.type_name = Some(name);
            } else if of_cluster && arguments.take_word("SLOT") {
                if options.slot.is_some() {
                    return Err(SLOT_TWICE);
                }
                options.slot = Some(slot_of_text(arguments.take()?)?);
            } else {
                return Err(CommandError::Syntax);
            }
        }
        // A pattern that matches all need not be matched.
        options.pattern = options.pattern.filter(|&pattern| pattern != b"*");
        Ok(options)
    }

    /// The slot of all keys that match the pattern, if they have one.
    pub fn slot_of_pattern(&self) -> Option<HashSlot> {
        self.pattern.and_then(HashSlot::of_pattern)
    }

    pub fn wants(&self, now: &Now, entry: &Entry<'_, Value>) -> bool {
        let matches = |pattern| glob::matches(pattern, entry.key(), false);
        self.pattern.is_none_or(matches)
            && self.type_name.is_none_or(|wanted| {
                wanted.eq_ignore_ascii_case(type_name(entry.value()).as_bytes())
            })
            && is_alive(now, entry)
    }
}

/// The type names that TYPE accepts.
const TYPE_NAMES: &[&[u8]] = &[b"string", b"list", b"set", b"zset", b"hash", b"stream", b"module"];

/// Parses argument `index` as a cursor. Valkey accepts none below 0.
pub(crate) fn scan_cursor(ctx: &Context<'_>, index: usize) -> Result<u64, CommandError> {
    let text = ctx.args.get(index);
    let is_refused = text.starts_with(b"-") && ctx.core.state.config.compatible_with.is_valkey();
    let cursor = parse_cursor(text).filter(|_| !is_refused);
    cursor.ok_or(CommandError::NegativeOrInvalidCursor)
}

/// Parses a cursor as C's `strtoul` does, but without white space: Redis accepts a sign, and the
/// empty text as 0.
fn parse_cursor(text: &[u8]) -> Option<u64> {
    let (negative, digits) = match text {
        [] => return Some(0),
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    if digits.is_empty() {
        return None;
    }
    let mut cursor = 0u64;
    for &byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        cursor = cursor.checked_mul(10)?.checked_add(digit.into())?;
    }
    Some(if negative { cursor.wrapping_neg() } else { cursor })
}

/// Options of HSCAN, SSCAN and ZSCAN: `[MATCH pattern] [COUNT count]`, and a word for names alone.
pub(crate) struct MemberScan<'a> {
    pattern: Option<&'a [u8]>,
    /// The number of members to visit, at least 1.
    pub count: u64,
    /// Omit scores or values.
    pub names_only: bool,
}

impl<'a> MemberScan<'a> {
    pub fn parse(mut arguments: Cursor<'a>, names_only: &str) -> Result<Self, CommandError> {
        let mut options = MemberScan { pattern: None, count: 10, names_only: false };
        while !arguments.is_at_end() {
            if arguments.remaining() > 1 && arguments.take_word("COUNT") {
                let count = u64::try_from(arguments.take_integer()?);
                options.count =
                    count.ok().filter(|&count| count > 0).ok_or(CommandError::Syntax)?;
            } else if arguments.remaining() > 1 && arguments.take_word("MATCH") {
                options.pattern = Some(arguments.take()?);
            } else if !names_only.is_empty() && arguments.take_word(names_only) {
                options.names_only = true;
            } else {
                return Err(CommandError::Syntax);
            }
        }
        options.pattern = options.pattern.filter(|&pattern| pattern != b"*");
        Ok(options)
    }

    pub fn wants(&self, member: &[u8]) -> bool {
        self.pattern.is_none_or(|pattern| glob::matches(pattern, member, false))
    }
}

/// The number of elements that a call may still visit.
pub(crate) fn count_left(count: u64, seen: u64) -> usize {
    usize::try_from(count.saturating_sub(seen)).unwrap_or(usize::MAX)
}

pub(crate) fn is_alive(now: &Now, entry: &Entry<'_, Value>) -> bool {
    entry.deadline().is_none_or(|deadline| !now.is_past(deadline))
}

/// `SCAN cursor [MATCH pattern] [COUNT count] [TYPE type]`: the next cursor (0 at the end) as a
/// bulk string, and an array of keys.
fn scan(ctx: &mut Context<'_>) -> CommandResult {
    let cursor = scan_cursor(ctx, 1)?;
    let options = ScanOptions::parse(ctx, false)?;
    reply_scanned(ctx, cursor, options.count, |now, entry| options.wants(now, entry));
    Ok(Outcome::Replied)
}

/// Replies the next cursor after `cursor`, and those keys among `count` that are wanted.
pub(crate) fn reply_scanned(
    ctx: &mut Context<'_>,
    mut cursor: u64,
    count: u64,
    wants: impl Fn(&Now, &Entry<'_, Value>) -> bool,
) {
    let now = ctx.core.keyspace.now();
    let table = ctx.core.keyspace.table();
    let (mut seen, mut found, mut steps) = (0u64, 0, 0u64);
    // Hidden keys are passed over, up to a limit.
    let is_any_hidden = ctx.core.keyspace.hidden_slots.is_some();
    let (mut hidden, hidden_max) = (0, count.max(HIDDEN_LEAST));
    let mut steps_max = count.saturating_mul(STEPS_PER_KEY);
    if is_any_hidden {
        steps_max = steps_max.max(HIDDEN_LEAST);
    }
    // The cursor, first in the reply, is known last.
    let mut keys = OutputBuffer::default();
    let mut writer = ReplyWriter::new(&mut keys, ctx.reply.protocol());
    loop {
        cursor = table.scan(cursor, count_left(count, seen), |entry| {
            if is_any_hidden && ctx.core.keyspace.is_hidden(entry.key()) {
                hidden += 1;
                return;
            }
            seen += 1;
            if wants(&now, &entry) {
                found += 1;
                writer.bulk(entry.key());
            }
        });
        steps += 1;
        if cursor == 0 || seen >= count || hidden >= hidden_max || steps >= steps_max {
            break;
        }
    }
    ctx.reply.array(2);
    ctx.reply.bulk_display(cursor);
    ctx.reply.array(found);
    ctx.reply.output().append(&keys);
}

/// `KEYS pattern`: an array, unordered.
fn all_keys(ctx: &mut Context<'_>) -> CommandResult {
    let pattern = ctx.args.get(1);
    let now = ctx.core.keyspace.now();
    let mut found = 0;
    let keys = ctx.reply.defer_array();
    for entry in ctx.core.keyspace.table().iter() {
        if (pattern == b"*" || glob::matches(pattern, entry.key(), false))
            && is_alive(&now, &entry)
            && !ctx.core.keyspace.is_hidden(entry.key())
        {
            ctx.reply.bulk(entry.key());
            found += 1;
        }
    }
    ctx.reply.finish(keys, found);
    Ok(Outcome::Replied)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_as_redis_reads_it() {
        for (text, cursor) in [
            ("0", 0),
            ("", 0),
            ("007", 7),
            ("+7", 7),
            ("-1", u64::MAX),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_cursor(text.as_bytes()), Some(cursor), "{text}");
        }
        for text in
            ["x", " 1", "1 ", "-", "+", "1x", "18446744073709551616", "99999999999999999999"]
        {
            assert_eq!(parse_cursor(text.as_bytes()), None, "{text}");
        }
    }
}
