//! Reading lengths, and skipping strings and values without decoding them, from memory or a file.

use std::ops::RangeInclusive;

use super::error::{Fault, ModuleId};
use super::{Version, opcode, value_type};

/// A source of bytes.
pub(super) trait Input {
    type Error;

    /// The next `len` bytes, part of `what`. Takes no more memory than there are bytes, however
    /// large `len` is.
    fn take(&mut self, len: u64, what: &'static str) -> Result<&[u8], Self::Error>;

    /// The error for a fault at the current position.
    fn error(&self, fault: Fault) -> Self::Error;
}

/// A length, or the number of a string's special encoding.
pub(super) enum Length {
    Plain(u64),
    Encoded(u8),
}

/// Special encodings of strings.
pub(super) const INT8: u8 = 0;
pub(super) const INT16: u8 = 1;
pub(super) const INT32: u8 = 2;
pub(super) const LZF: u8 = 3;

/// The container of a quicklist's node: one large element, or a listpack.
pub(super) const NODE_PLAIN: u64 = 1;
pub(super) const NODE_PACKED: u64 = 2;

/// How the names of a hash's fields are written before its values: as a listpack, or as a count and
/// strings.
pub(super) const NAMES_PACKED: u64 = 0;
pub(super) const NAMES_PLAIN: u64 = 1;

/// Bytes of a stream ID that is not written as two lengths.
pub(super) const ID_BYTES: usize = 16;

#[inline]
pub(super) fn array<const N: usize, I: Input>(
    input: &mut I,
    what: &'static str,
) -> Result<[u8; N], I::Error> {
    let mut bytes = [0; N];
    bytes.copy_from_slice(input.take(N as u64, what)?);
    Ok(bytes)
}

#[inline]
pub(super) fn byte<I: Input>(input: &mut I, what: &'static str) -> Result<u8, I::Error> {
    array::<1, I>(input, what).map(|[byte]| byte)
}

/// A length or a special encoding.
#[inline]
pub(super) fn any_length<I: Input>(input: &mut I, what: &'static str) -> Result<Length, I::Error> {
    let first = byte(input, what)?;
    Ok(match first >> 6 {
        0 => Length::Plain(u64::from(first & 0x3f)),
        1 => Length::Plain(u64::from(first & 0x3f) << 8 | u64::from(byte(input, what)?)),
        2 => match first {
            0x80 => Length::Plain(u32::from_be_bytes(array(input, what)?).into()),
            0x81 => Length::Plain(u64::from_be_bytes(array(input, what)?)),
            _ => return Err(input.error(Fault::Malformed("a length of an unknown form"))),
        },
        _ => Length::Encoded(first & 0x3f),
    })
}

/// A length; a special encoding is an error.
#[inline]
pub(super) fn length<I: Input>(input: &mut I, what: &'static str) -> Result<u64, I::Error> {
    match any_length(input, what)? {
        Length::Plain(length) => Ok(length),
        Length::Encoded(_) => {
            Err(input.error(Fault::Malformed("a string's encoding where a length belongs")))
        }
    }
}

pub(super) fn skip_string<I: Input>(input: &mut I, what: &'static str) -> Result<(), I::Error> {
    let len = match any_length(input, what)? {
        Length::Plain(len) => len,
        Length::Encoded(INT8) => 1,
        Length::Encoded(INT16) => 2,
        Length::Encoded(INT32) => 4,
        Length::Encoded(LZF) => {
            let compressed = length(input, what)?;
            length(input, what)?;
            compressed
        }
        Length::Encoded(_) => {
            return Err(input.error(Fault::Malformed("a string of an unknown encoding")));
        }
    };
    input.take(len, what).map(drop)
}

/// Skips a score as text.
pub(super) fn skip_text_score<I: Input>(input: &mut I) -> Result<(), I::Error> {
    match byte(input, "a score")? {
        253.. => Ok(()),
        len => input.take(len.into(), "a score").map(drop),
    }
}

/// Skips a module's data, which is self-describing.
pub(super) fn skip_module<I: Input>(input: &mut I) -> Result<(), I::Error> {
    const WHAT: &str = "a module's data";
    loop {
        match length(input, WHAT)? {
            0 => return Ok(()),
            1 | 2 => drop(length(input, WHAT)?),
            3 => drop(array::<4, I>(input, WHAT)?),
            4 => drop(array::<8, I>(input, WHAT)?),
            5 => skip_string(input, WHAT)?,
            _ => return Err(input.error(Fault::Malformed("a module's data of an unknown form"))),
        }
    }
}

/// Whether a version has this type.
pub(super) fn is_value_type(value_type: u8, version: Version) -> bool {
    match value_type {
        0..=7 | 9..=22 => true,
        23..=25 => !version.is_valkey(),
        value_type::STREAM_4 => version.is_redis_since(Version::REDIS_13),
        value_type::STREAM_5 | value_type::ARRAY => version.is_redis_since(Version::REDIS_14),
        29..=32 => version.is_redis_since(Version::REDIS_15),
        _ => false,
    }
}

/// Skips a value.
pub(super) fn skip_value<I: Input>(
    input: &mut I,
    value_type: u8,
    version: Version,
) -> Result<(), I::Error> {
    if !is_value_type(value_type, version) {
        return Err(input.error(Fault::UnknownType(value_type)));
    }
    const STRING: &str = "a string";
    match value_type {
        value_type::LIST | value_type::SET | value_type::LIST_QUICKLIST => {
            for _ in 0..length(input, "a count")? {
                skip_string(input, STRING)?;
            }
        }
        value_type::HASH => {
            for _ in 0..length(input, "a count")? {
                skip_string(input, "a field")?;
                skip_string(input, "a field's value")?;
            }
        }
        value_type::SORTED_SET => {
            for _ in 0..length(input, "a count")? {
                skip_string(input, "a member")?;
                skip_text_score(input)?;
            }
        }
        value_type::SORTED_SET_2 => {
            for _ in 0..length(input, "a count")? {
                skip_string(input, "a member")?;
                input.take(8, "a score")?;
            }
        }
        value_type::MODULE | value_type::MODULE_2 => {
            let id = length(input, "a module's name")?;
            return Err(input.error(Fault::Module(ModuleId(id))));
        }
        value_type::LIST_QUICKLIST_2 => {
            for _ in 0..length(input, "a count")? {
                length(input, "a node's container")?;
                skip_string(input, "a node")?;
            }
        }
        value_type::STREAM
        | value_type::STREAM_2
        | value_type::STREAM_3
        | value_type::STREAM_4
        | value_type::STREAM_5 => skip_stream(input, value_type)?,
        value_type::ARRAY => return Err(input.error(Fault::Array)),
        value_type::HASH_TEMPLATE_LISTPACK => {
            skip_names(input)?;
            skip_string(input, "a listpack")?;
        }
        value_type::HASH_TEMPLATE_ARRAY => {
            // A listpack does not say here how many names it has.
            for _ in 0..skip_names(input)? {
                skip_string(input, "a field's value")?;
            }
        }
        value_type::HASH_TEMPLATE_ARRAY_REF => {
            return Err(input.error(Fault::Malformed("values whose fields are in no record")));
        }
        value_type::HASH_22 if version.is_valkey() => {
            for _ in 0..length(input, "a count")? {
                skip_string(input, "a field")?;
                skip_string(input, "a field's value")?;
                input.take(8, "a field's deadline")?;
            }
        }
        value_type::HASH_22 | value_type::HASH_DEADLINES => {
            if value_type == value_type::HASH_DEADLINES {
                input.take(8, "the earliest deadline")?;
            }
            for _ in 0..length(input, "a count")? {
                length(input, "a field's deadline")?;
                skip_string(input, "a field")?;
                skip_string(input, "a field's value")?;
            }
        }
        value_type::HASH_LISTPACK_DEADLINES => {
            input.take(8, "the earliest deadline")?;
            skip_string(input, "a listpack")?;
        }
        // The value is one string.
        _ => skip_string(input, STRING)?,
    }
    Ok(())
}

fn skip_stream<I: Input>(input: &mut I, value_type: u8) -> Result<(), I::Error> {
    for _ in 0..length(input, "a count of nodes")? {
        skip_string(input, "a node's ID")?;
        skip_string(input, "a node")?;
    }
    let numbers = if value_type == value_type::STREAM { 3 } else { 8 };
    for _ in 0..numbers {
        length(input, "what a stream remembers")?;
    }
    for _ in 0..length(input, "a count of groups")? {
        skip_string(input, "a group's name")?;
        let numbers = if value_type == value_type::STREAM { 2 } else { 3 };
        for _ in 0..numbers {
            length(input, "a group's last ID")?;
        }
        for _ in 0..length(input, "a count of pending entries")? {
            input.take(ID_BYTES as u64 + 8, "a pending entry")?;
            length(input, "a pending entry")?;
        }
        for _ in 0..length(input, "a count of consumers")? {
            skip_string(input, "a consumer's name")?;
            let times = if value_type >= value_type::STREAM_3 { 2 } else { 1 };
            input.take(8 * times, "a consumer's times")?;
            for _ in 0..length(input, "a count of pending entries")? {
                input.take(ID_BYTES as u64, "a consumer's pending entry")?;
            }
        }
        if value_type >= value_type::STREAM_5 {
            for _ in 0..length(input, "a count of pending entries")? {
                input.take(ID_BYTES as u64, "a pending entry without a consumer")?;
            }
        }
    }
    if value_type >= value_type::STREAM_4 {
        skip_producers(input)?;
    }
    Ok(())
}

/// Skips the names of fields before the values of a hash of Redis 8.10. Returns their number, or 0
/// for a listpack, which does not say it here.
fn skip_names<I: Input>(input: &mut I) -> Result<u64, I::Error> {
    const WHAT: &str = "names of fields";
    match length(input, WHAT)? {
        NAMES_PACKED => skip_string(input, WHAT).map(|()| 0),
        NAMES_PLAIN => {
            let count = length(input, WHAT)?;
            for _ in 0..count {
                skip_string(input, WHAT)?;
            }
            Ok(count)
        }
        _ => Err(input.error(Fault::Malformed(WHAT))),
    }
}

/// The limits of what a stream remembers of its producers: seconds, and names of each.
pub(super) const PRODUCER_LIMITS: [RangeInclusive<u64>; 2] = [1..=86_400, 1..=10_000];

/// Skips what a stream remembers of its producers: for how long and how many at most, the
/// producers, how many entries were added by them and how many again.
fn skip_producers<I: Input>(input: &mut I) -> Result<(), I::Error> {
    const WHAT: &str = "what a stream remembers of its producers";
    for range in PRODUCER_LIMITS {
        if !range.contains(&length(input, WHAT)?) {
            return Err(input.error(Fault::Malformed(WHAT)));
        }
    }
    for _ in 0..length(input, WHAT)? {
        skip_string(input, "a producer")?;
        for _ in 0..length(input, WHAT)? {
            skip_string(input, "what a producer has added")?;
            length(input, "an ID")?;
            length(input, "an ID")?;
        }
    }
    length(input, WHAT)?;
    length(input, WHAT).map(drop)
}

/// Skips what modules keep for a key, after its opcode.
pub(super) fn skip_key_meta<I: Input>(input: &mut I) -> Result<(), I::Error> {
    const WHAT: &str = "what modules keep for a key";
    /// A key has at most one of each class. Source: `KEY_META_MAX_NUM_MODULES` of Redis 8.6.3.
    const CLASSES_MAX: u64 = 7;
    let classes = length(input, WHAT)?;
    if classes > CLASSES_MAX {
        return Err(input.error(Fault::Malformed(WHAT)));
    }
    for _ in 0..classes {
        // The name, version and flags of its class.
        input.take(4, WHAT)?;
        skip_module(input)?;
    }
    Ok(())
}

/// Skips the rest of an ignored record, after its opcode.
pub(super) fn skip_record<I: Input>(input: &mut I, opcode: u8) -> Result<(), I::Error> {
    match opcode {
        opcode::SLOT_INFO => {
            for _ in 0..3 {
                length(input, "a slot's sizes")?;
            }
            Ok(())
        }
        opcode::MODULE_AUX => {
            // The module's ID; an integer's opcode; whether to read it before or after the keys.
            for _ in 0..3 {
                length(input, "a module's data")?;
            }
            skip_module(input)
        }
        _ => Err(input.error(Fault::UnknownType(opcode))),
    }
}
