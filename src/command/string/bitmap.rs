//! Bitmaps: strings read and written bit by bit, and as integers of any width.
//!
//! The arithmetic is in `types::bitmap`. Here arguments are parsed, in Redis's order of errors, and
//! strings grow, to at most `proto-max-bulk-len` bytes: each offset is checked before the key is
//! looked up.

use crate::config::KeyspaceEvents;
use crate::error::CommandError;
use crate::keyspace::{Expiry, Key};
use crate::resp::args::{Args, Cursor};
use crate::resp::number;
use crate::resp::reply::ReplyWriter;
use crate::state::context::{CommandResult, Context, Outcome};
use crate::state::spec::{CommandSpec, Flags, Group, KeyFlags, KeyRule, key, keys, spec};
use crate::types::bitmap::{self, BitOperation, FieldType, Overflow, Unit};
use crate::types::string::{StringMut, StringView};

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    spec("SETBIT", setbit).exactly(4).keys(&[key(1, KeyFlags::RW_ACCESS_UPDATE)]).flags(Flags::WRITE_DENYOOM).group(Group::Bitmap).since("2.2.0")
        .docs("key offset value", "Sets or clears one bit of a string, which grows as needed, and returns the old bit.", "O(1)"),
    spec("GETBIT", getbit).exactly(3).keys(&[key(1, KeyFlags::RO_ACCESS)]).flags(Flags::READONLY_FAST).group(Group::Bitmap).since("2.2.0")
        .docs("key offset", "Returns one bit of a string.", "O(1)"),
    spec("BITCOUNT", bitcount).at_least(2).keys(&[key(1, KeyFlags::RO_ACCESS)]).flags(Flags::READONLY).group(Group::Bitmap).since("2.6.0")
        .docs("key [start end [BYTE | BIT]]", "Counts the bits that are set in a string or in a part of it.", "O(N) with N the bytes of the part"),
    spec("BITPOS", bitpos).at_least(3).keys(&[key(1, KeyFlags::RO_ACCESS)]).flags(Flags::READONLY).group(Group::Bitmap).since("2.8.7")
        .docs("key bit [start [end [BYTE | BIT]]]", "Finds the first set or the first clear bit of a string or of a part of it.",
            "O(N) with N the bytes of the part"),
    spec("BITOP", bitop).at_least(4).keys(&[key(2, KeyFlags::OW_UPDATE), keys(3, -1, 1, KeyFlags::RO_ACCESS)]).flags(Flags::WRITE_DENYOOM).group(Group::Bitmap)
        .since("2.6.0")
        .docs("<AND | OR | XOR | NOT | DIFF | DIFF1 | ANDOR | ONE> destkey key [key ...]", "Combines strings bit by bit and stores the result.",
            "O(N) with N the bytes of all sources"),
    spec("BITFIELD", bitfield).key_rule(KeyRule::ReadByGets).at_least(2)
        .keys(&[key(1, KeyFlags::RW_ACCESS_UPDATE.union(KeyFlags::VARIABLE_FLAGS)).noted("The key is only read if all operations are GET")])
        .flags(Flags::WRITE_DENYOOM).group(Group::Bitmap).since("3.2.0")
        .docs("key [<GET encoding offset | [OVERFLOW <WRAP | SAT | FAIL>] <SET encoding offset value | INCRBY encoding offset increment>> ...]",
            "Reads, sets and adds to integers of any width at any bit of a string.", "O(1) for each operation"),
    spec("BITFIELD_RO", bitfield_ro).at_least(2).keys(&[key(1, KeyFlags::RO_ACCESS)]).flags(Flags::READONLY_FAST).group(Group::Bitmap).since("6.0.0")
        .docs("key [GET encoding offset [GET encoding offset ...]]", "Reads integers of any width at any bit of a string.", "O(1) for each operation"),
];

const OFFSET_OUT_OF_RANGE: CommandError =
    CommandError::Text("ERR bit offset is not an integer or out of range");
const BIT_OUT_OF_RANGE: CommandError =
    CommandError::Text("ERR bit is not an integer or out of range");
const BIT_NEITHER: CommandError = CommandError::Text("ERR The bit argument must be 1 or 0.");
const INVALID_FIELD_TYPE: CommandError = CommandError::Text(
    "ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.",
);
const INVALID_OVERFLOW: CommandError = CommandError::Text("ERR Invalid OVERFLOW type specified");
const ONLY_GET: CommandError =
    CommandError::Text("ERR BITFIELD_RO only supports the GET subcommand");
const ONE_SOURCE: CommandError =
    CommandError::Text("ERR BITOP NOT must be called with a single source key.");

/// `SETBIT key offset value`: the old bit.
fn setbit(ctx: &mut Context<'_>) -> CommandResult {
    let offset = parse_offset(ctx.args.get(2), ctx.size_limits().string)?;
    let bit = match number::parse_i64(ctx.args.get(3)) {
        Some(0) => false,
        Some(1) => true,
        _ => return Err(BIT_OUT_OF_RANGE),
    };
    let needed = bitmap::bytes_needed(offset, 1).ok_or(OFFSET_OUT_OF_RANGE)?;
    let key = ctx.key(1);
    let (before, has_grown) =
        edit_bits(ctx, key, needed, |text, _| bitmap::set_bit(text, offset, bit))?;
    if has_grown || before != bit {
        ctx.core.keyspace.changed(KeyspaceEvents::STRING, "setbit", key.bytes);
    }
    ctx.reply.integer(before.into());
    Ok(Outcome::Replied)
}

/// `GETBIT key offset`: the bit; 0 after the end and without a key.
fn getbit(ctx: &mut Context<'_>) -> CommandResult {
    let offset = parse_offset(ctx.args.get(2), ctx.size_limits().string)?;
    let text = ctx.core.keyspace.string(ctx.key(1))?.unwrap_or_default();
    ctx.reply.integer(bitmap::get_bit(text, offset).into());
    Ok(Outcome::Replied)
}

/// `BITCOUNT key [start end [BYTE | BIT]]`: the number of bits set.
///
/// As in Redis 7.0, the range is not checked without a key; in Valkey and Redis 8.6 it is.
fn bitcount(ctx: &mut Context<'_>) -> CommandResult {
    let args = ctx.args;
    // These check the range first. Valkey also accepts a start alone.
    let dialect = ctx.core.state.config.compatible_with;
    let range = match dialect.is_valkey() || dialect.is_redis_8() {
        true if dialect.is_redis_8() && args.len() == 3 => return Err(CommandError::Syntax),
        true => Some(CountRange::parse(args)?),
        false => None,
    };
    let count = match (ctx.core.keyspace.string(ctx.key(1))?, range) {
        (None, _) => 0,
        (Some(text), _) if args.len() == 2 => bitmap::count(text),
        (Some(text), Some(range)) => range.count(text),
        (Some(text), None) => count_in_range(text, args)?,
    };
    ctx.reply.integer(count as i64);
    Ok(Outcome::Replied)
}

/// BITCOUNT's `[start [end [BYTE | BIT]]]` in Valkey.
struct CountRange {
    start: i64,
    end: i64,
    unit: Unit,
}

impl CountRange {
    fn parse(args: Args<'_>) -> Result<Self, CommandError> {
        if args.len() > 5 {
            return Err(CommandError::Syntax);
        }
        let integer = |index, absent| match args.len() > index {
            true => args.integer(index),
            false => Ok(absent),
        };
        let (start, end) = (integer(2, 0)?, integer(3, -1)?);
        let unit = if args.len() > 4 { parse_unit(args.get(4))? } else { Unit::Byte };
        Ok(CountRange { start, end, unit })
    }

    fn count(&self, text: StringView<'_>) -> u64 {
        if self.start < 0 && self.end < 0 && self.start > self.end {
            return 0;
        }
        bitmap::count_between(text, self.start, self.end, self.unit)
    }
}

/// BITCOUNT's range in Redis 7.0: a start alone is an error.
fn count_in_range(text: StringView<'_>, args: Args<'_>) -> Result<u64, CommandError> {
    if !(4..=5).contains(&args.len()) {
        return Err(CommandError::Syntax);
    }
    let (start, end) = (args.integer(2)?, args.integer(3)?);
    // Redis replies before it checks the unit.
    if start < 0 && end < 0 && start > end {
        return Ok(0);
    }
    Ok(CountRange::parse(args)?.count(text))
}

/// `BITPOS key bit [start [end [BYTE | BIT]]]`: -1 if there is no such bit.
///
/// As in Redis 7.0, the range is not checked without a key; in Valkey and Redis 8.6 it is.
fn bitpos(ctx: &mut Context<'_>) -> CommandResult {
    let args = ctx.args;
    let bit = match args.integer(2)? {
        0 => false,
        1 => true,
        _ => return Err(BIT_NEITHER),
    };
    let dialect = ctx.core.state.config.compatible_with;
    if dialect.is_valkey() || dialect.is_redis_8() {
        position_in_range(StringView::default(), bit, args)?;
    }
    let position = match ctx.core.keyspace.string(ctx.key(1))? {
        // Clear bits continue without end.
        None => (!bit).then_some(0),
        Some(text) => position_in_range(text, bit, args)?,
    };
    ctx.reply.integer(position.map_or(-1, |position| position as i64));
    Ok(Outcome::Replied)
}

fn position_in_range(
    text: StringView<'_>,
    bit: bool,
    args: Args<'_>,
) -> Result<Option<u64>, CommandError> {
    if args.len() > 6 {
        return Err(CommandError::Syntax);
    }
    let start = if args.len() > 3 { args.integer(3)? } else { 0 };
    // The unit is checked before the end, unlike in BITCOUNT.
    let unit = if args.len() > 5 { parse_unit(args.get(5))? } else { Unit::Byte };
    let end = if args.len() > 4 { Some(args.integer(4)?) } else { None };
    Ok(bitmap::position_between(text, bit, start, end, unit))
}

/// `BITOP operation destkey key [key ...]`: the length of the result. An empty result deletes the
/// destination.
fn bitop(ctx: &mut Context<'_>) -> CommandResult {
    let sources = ctx.args.len() - 3;
    let operation = parse_operation(ctx.args.get(1), sources)?;
    let destination = ctx.key(2);
    let mut slots = Vec::with_capacity(sources);
    for index in 3..ctx.args.len() {
        let slot = ctx.core.keyspace.find_for_read(ctx.key(index));
        slot.map(|slot| ctx.core.keyspace.string_at(slot)).transpose()?;
        slots.push(slot);
    }
    let strings: Vec<StringView<'_>> = slots
        .into_iter()
        .map(|slot| {
            slot.map_or(Ok(StringView::default()), |slot| ctx.core.keyspace.string_at(slot))
        })
        .collect::<Result<_, _>>()?;
    let result = bitmap::bitop(operation, &strings);
    let length = result.len();
    if result.is_empty() {
        ctx.core.keyspace.delete(destination, "del");
    } else {
        let found = ctx.core.keyspace.find(destination);
        ctx.core.keyspace.set_computed_string_at(found, destination, result, Expiry::Clear);
        ctx.core.keyspace.changed(KeyspaceEvents::STRING, "set", destination.bytes);
    }
    ctx.reply.integer(length as i64);
    Ok(Outcome::Replied)
}

/// The operation of this name. Errors: it is unknown, or does not take this number of sources.
fn parse_operation(name: &[u8], sources: usize) -> Result<BitOperation, CommandError> {
    const OPERATIONS: &[(&str, BitOperation)] = &[
        ("AND", BitOperation::And),
        ("OR", BitOperation::Or),
        ("XOR", BitOperation::Xor),
        ("NOT", BitOperation::Not),
        ("DIFF", BitOperation::Diff),
        ("DIFF1", BitOperation::Diff1),
        ("ANDOR", BitOperation::AndOr),
        ("ONE", BitOperation::One),
    ];
    let &(name, operation) = OPERATIONS
        .iter()
        .find(|(word, _)| name.eq_ignore_ascii_case(word.as_bytes()))
        .ok_or(CommandError::Syntax)?;
    match operation {
        BitOperation::Not if sources != 1 => Err(ONE_SOURCE),
        BitOperation::Diff | BitOperation::Diff1 | BitOperation::AndOr if sources < 2 => {
            let text = format!("ERR BITOP {name} must be called with at least two source keys.");
            Err(CommandError::formatted(text))
        }
        _ => Ok(operation),
    }
}

/// `BITFIELD key [GET encoding offset | [OVERFLOW <WRAP | SAT | FAIL>] <SET ... | INCRBY ...>
/// ...]`: an element for each operation.
fn bitfield(ctx: &mut Context<'_>) -> CommandResult {
    let operations = parse_fields(ctx.args.cursor(2), ctx.size_limits().string)?;
    run_fields(ctx, &operations)
}

/// `BITFIELD_RO key [GET encoding offset ...]`. All operations are parsed before a write is
/// refused.
fn bitfield_ro(ctx: &mut Context<'_>) -> CommandResult {
    let operations = parse_fields(ctx.args.cursor(2), ctx.size_limits().string)?;
    if operations.iter().any(|operation| operation.action != FieldAction::Get) {
        return Err(ONLY_GET);
    }
    run_fields(ctx, &operations)
}

/// An operation of BITFIELD on one field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldAction {
    Get,
    /// Replies the old value.
    Set(i64),
    /// Replies the new value.
    IncrementBy(i64),
}

#[derive(Clone, Copy, Debug)]
struct FieldOperation {
    action: FieldAction,
    field: FieldType,
    /// Unit: bits.
    offset: u64,
    /// Bytes a string must have to hold the field.
    needed: usize,
    overflow: Overflow,
}

fn parse_fields(
    mut cursor: Cursor<'_>,
    bytes_max: u64,
) -> Result<Vec<FieldOperation>, CommandError> {
    let mut operations = Vec::new();
    let mut overflow = Overflow::default();
    while !cursor.is_at_end() {
        // A word with too few arguments is a syntax error before they are checked.
        let takes = |cursor: &mut Cursor<'_>, word, count| {
            cursor.remaining() > count && cursor.take_word(word)
        };
        if takes(&mut cursor, "OVERFLOW", 1) {
            overflow = parse_overflow(cursor.take()?)?;
            continue;
        }
        let is_get = takes(&mut cursor, "GET", 2);
        let is_set = !is_get && takes(&mut cursor, "SET", 3);
        if !is_get && !is_set && !takes(&mut cursor, "INCRBY", 3) {
            return Err(CommandError::Syntax);
        }
        let field = FieldType::parse(cursor.take()?).ok_or(INVALID_FIELD_TYPE)?;
        let offset = parse_field_offset(cursor.take()?, field, bytes_max)?;
        let needed = bitmap::bytes_needed(offset, field.bits()).ok_or(OFFSET_OUT_OF_RANGE)?;
        let action = if is_get {
            FieldAction::Get
        } else if is_set {
            FieldAction::Set(cursor.take_integer()?)
        } else {
            FieldAction::IncrementBy(cursor.take_integer()?)
        };
        operations.push(FieldOperation { action, field, offset, needed, overflow });
    }
    Ok(operations)
}

fn run_fields(ctx: &mut Context<'_>, operations: &[FieldOperation]) -> CommandResult {
    let writes = operations.iter().filter(|operation| operation.action != FieldAction::Get);
    let Some(needed) = writes.map(|operation| operation.needed).max() else {
        let text = ctx.core.keyspace.string(ctx.key(1))?.unwrap_or_default();
        ctx.reply.array(operations.len());
        for operation in operations {
            ctx.reply.integer(operation.field.get(text, operation.offset));
        }
        return Ok(Outcome::Replied);
    };
    let key = ctx.key(1);
    let (changes, has_grown) = edit_bits(ctx, key, needed, |text, reply| {
        reply.array(operations.len());
        let mut changes = FieldChanges::default();
        for operation in operations {
            operation.run(text, reply, &mut changes);
        }
        changes
    })?;
    // If the string grew, growth alone is a change, and so is writing an equal value.
    let changes = if has_grown { changes.written.max(1) } else { changes.different };
    if changes > 0 {
        ctx.core.keyspace.changed_by(changes, KeyspaceEvents::STRING, "setbit", key.bytes);
    }
    Ok(Outcome::Replied)
}

/// The number of fields written, and of those with a new value.
#[derive(Default)]
struct FieldChanges {
    written: u64,
    different: u64,
}

impl FieldOperation {
    /// Runs the operation and replies its element.
    fn run(
        &self,
        text: &mut StringMut<'_>,
        reply: &mut ReplyWriter<'_>,
        changes: &mut FieldChanges,
    ) {
        let before = self.field.get(text.as_view(), self.offset);
        let value = match self.action {
            FieldAction::Get => return reply.integer(before),
            FieldAction::Set(value) => self.field.fit(value, self.overflow),
            FieldAction::IncrementBy(increment) => self.field.add(before, increment, self.overflow),
        };
        let Some(value) = value else {
            return reply.null();
        };
        self.field.set(text, self.offset, value);
        changes.written += 1;
        changes.different += u64::from(value != before);
        let is_set = matches!(self.action, FieldAction::Set(_));
        reply.integer(if is_set { before } else { value });
    }
}

/// Calls `edit` with a string of at least `needed` bytes. Also returns whether it was created or
/// grew.
fn edit_bits<R>(
    ctx: &mut Context<'_>,
    key: Key<'_>,
    needed: usize,
    edit: impl FnOnce(&mut StringMut<'_>, &mut ReplyWriter<'_>) -> R,
) -> Result<(R, bool), CommandError> {
    let found = ctx.core.keyspace.string_slot(key)?;
    let slot = found.unwrap_or_else(|| ctx.core.keyspace.create_string(key));
    let length = ctx.core.keyspace.string_at(slot)?.len();
    let mut text = ctx.core.keyspace.grow_string(slot, needed);
    Ok((edit(&mut text, &mut ctx.reply), found.is_none() || needed > length))
}

/// A bit offset within a string of at most `bytes_max` bytes.
fn parse_offset(text: &[u8], bytes_max: u64) -> Result<u64, CommandError> {
    check_offset(number::parse_i64(text), bytes_max)
}

/// A field's offset; `#n` is that of the n-th field of its type.
fn parse_field_offset(text: &[u8], field: FieldType, bytes_max: u64) -> Result<u64, CommandError> {
    match text.strip_prefix(b"#") {
        Some(index) => {
            let index = number::parse_i64(index);
            // In Redis the product may wrap to a valid offset.
            check_offset(index.and_then(|it| it.checked_mul(field.bits().into())), bytes_max)
        }
        None => parse_offset(text, bytes_max),
    }
}

fn check_offset(offset: Option<i64>, bytes_max: u64) -> Result<u64, CommandError> {
    offset
        .and_then(|offset| u64::try_from(offset).ok())
        .filter(|offset| offset / 8 < bytes_max)
        .ok_or(OFFSET_OUT_OF_RANGE)
}

fn parse_unit(text: &[u8]) -> Result<Unit, CommandError> {
    if text.eq_ignore_ascii_case(b"BIT") {
        Ok(Unit::Bit)
    } else if text.eq_ignore_ascii_case(b"BYTE") {
        Ok(Unit::Byte)
    } else {
        Err(CommandError::Syntax)
    }
}

fn parse_overflow(text: &[u8]) -> Result<Overflow, CommandError> {
    if text.eq_ignore_ascii_case(b"WRAP") {
        Ok(Overflow::Wrap)
    } else if text.eq_ignore_ascii_case(b"SAT") {
        Ok(Overflow::Saturate)
    } else if text.eq_ignore_ascii_case(b"FAIL") {
        Ok(Overflow::Fail)
    } else {
        Err(INVALID_OVERFLOW)
    }
}
