//! OBJECT: a value's encoding, and its access bits.

use crate::collections::table::{Slot, ValueRef};
use crate::config::AccessKind;
use crate::error::CommandError;
use crate::resp::number::{parse_i64, parse_u64};
use crate::state::context::{CommandResult, Context, Outcome};
use crate::state::spec::{Categories, CommandSpec, Flags, Handler, KeyFlags, container, key, spec};
use crate::types::{Value, kind};

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    container("OBJECT", SUBCOMMANDS).since("2.2.3")
        .docs("", "Commands that inspect values.", "Depends on the subcommand."),
];

#[rustfmt::skip]
const SUBCOMMANDS: &[CommandSpec] = &[
    about_key("ENCODING", encoding).since("2.2.3")
        .docs("key", "Returns the encoding of a key's value.", "O(1)"),
    about_key("FREQ", frequency).since("4.0.0")
        .docs("key", "Returns the logarithmic counter of a key's accesses, under an LFU policy.", "O(1)"),
    about_key("IDLETIME", idle_time).since("2.2.3")
        .docs("key", "Returns the seconds since a key's last access, unless under an LFU policy.", "O(1)"),
    about_key("REFCOUNT", reference_count).since("2.2.3")
        .docs("key", "Counts the references to a key's value.", "O(1)"),
    spec("HELP", help).exactly(2).flags(Flags::LOADING_STALE).categories(Categories::KEYSPACE).since("6.2.0")
        .docs("", "Lists the subcommands.", "O(1)"),
];

const fn about_key(name: &'static str, handler: Handler) -> CommandSpec {
    spec(name, handler)
        .exactly(3)
        .keys(const { &[key(2, KeyFlags::RO)] })
        .flags(Flags::READONLY)
        .categories(Categories::KEYSPACE)
        .tips(&["nondeterministic_output"])
}

const HELP: &[&str] = &[
    "OBJECT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "ENCODING <key>",
    "    Returns the encoding of the value of <key> in memory.",
    "FREQ <key>",
    "    Returns how often <key> was used lately: a counter that grows with the",
    "    logarithm of the accesses. Only under an LFU policy.",
    "IDLETIME <key>",
    "    Returns how many seconds ago <key> was last used, approximately.",
    "REFCOUNT <key>",
    "    Counts the references to the value of <key>.",
    "HELP",
    "    Prints this help.",
];

/// The longest string that Redis stores in one allocation with its header: `embstr`.
const EMBSTR_BYTES_MAX: usize = 44;
/// Redis shares integers from 0 up to this between keys.
const SHARED_INTEGER_MAX: i64 = 9999;
/// The reference count of shared objects.
const SHARED_REFERENCES: i64 = i32::MAX as i64;

const FREQUENCY_UNKNOWN: CommandError = CommandError::Text(
    "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when switching between \
     policies at runtime LRU and LFU data will take some time to adjust.",
);
const IDLE_TIME_UNKNOWN: CommandError = CommandError::Text(
    "ERR An LFU maxmemory policy is selected, idle time not tracked. Please note that when switching between policies at \
     runtime LRU and LFU data will take some time to adjust.",
);

/// The name in `OBJECT ENCODING`, as Redis `version` would give it. Before 7.2 no set was a
/// listpack, and every list a quicklist.
pub(crate) fn encoding_name(value: ValueRef<'_, Value>, version: &[u8]) -> &'static str {
    let is_set =
        matches!(value, ValueRef::Bytes { kind: kind::SET, .. } | ValueRef::Object(Value::Set(_)));
    let is_list = matches!(
        value,
        ValueRef::Bytes { kind: kind::LIST, .. } | ValueRef::Object(Value::List(_))
    );
    match encoding_of(value) {
        "listpack" if is_set && is_before_7_2(version) => "hashtable",
        "listpack" if is_list && is_before_7_2(version) => "quicklist",
        name => name,
    }
}

/// Whether this is a version of Redis before 7.2. An invalid one counts as the newest.
fn is_before_7_2(version: &[u8]) -> bool {
    let number = |text: Option<&[u8]>| text.and_then(parse_u64).unwrap_or(u64::MAX);
    let mut numbers = version.split(|&byte| byte == b'.');
    let major = number(numbers.next());
    (major, number(numbers.next())) < (7, 2)
}

fn encoding_of(value: ValueRef<'_, Value>) -> &'static str {
    match value {
        ValueRef::Object(object) => object.encoding(),
        // Redis does not change the encoding of a string that was edited in place.
        ValueRef::Bytes { kind: kind::EDITED_STRING, .. } => "raw",
        ValueRef::Bytes { kind: kind::INTSET, .. } => "intset",
        ValueRef::Bytes { kind: kind::UNENCODED_STRING, .. } => "embstr",
        ValueRef::Bytes { kind: 2.., .. } => "listpack",
        ValueRef::Bytes { bytes, .. } if parse_i64(bytes).is_some() => "int",
        ValueRef::Bytes { bytes, .. } if bytes.len() <= EMBSTR_BYTES_MAX => "embstr",
        ValueRef::Bytes { .. } => "raw",
    }
}

/// The subcommand's key; replies nil and returns None if it is absent. Does not count as an access.
fn find(ctx: &mut Context<'_>) -> Option<Slot> {
    let found = ctx.core.keyspace.find(ctx.key(2));
    match found {
        Some(_) => ctx.core.keyspace.stats.hits += 1,
        None => {
            ctx.core.keyspace.stats.misses += 1;
            ctx.reply.null();
        }
    }
    found
}

/// `OBJECT ENCODING key`: a bulk string, or nil.
fn encoding(ctx: &mut Context<'_>) -> CommandResult {
    if let Some(slot) = find(ctx) {
        let version = &ctx.core.state.config.redis_version;
        let name = encoding_name(ctx.core.keyspace.entry(slot).value(), version);
        ctx.reply.bulk(name.as_bytes());
    }
    Ok(Outcome::Replied)
}

/// `OBJECT FREQ key`: an integer up to 255, or nil.
fn frequency(ctx: &mut Context<'_>) -> CommandResult {
    if let Some(slot) = find(ctx) {
        if ctx.core.keyspace.access.kind != AccessKind::Counted {
            return Err(FREQUENCY_UNKNOWN);
        }
        let counter = ctx.core.keyspace.lfu_counter(ctx.core.keyspace.entry(slot).access());
        ctx.reply.integer(counter.into());
    }
    Ok(Outcome::Replied)
}

/// `OBJECT IDLETIME key`: seconds, or nil.
fn idle_time(ctx: &mut Context<'_>) -> CommandResult {
    if let Some(slot) = find(ctx) {
        if ctx.core.keyspace.access.kind == AccessKind::Counted {
            return Err(IDLE_TIME_UNKNOWN);
        }
        let seconds = ctx.core.keyspace.idle_seconds(ctx.core.keyspace.entry(slot).access());
        ctx.reply.integer(seconds.into());
    }
    Ok(Outcome::Replied)
}

/// `OBJECT REFCOUNT key`: 1, or Redis's count for a small integer, which it shares unless each key
/// needs its own access bits. Valkey shares none.
fn reference_count(ctx: &mut Context<'_>) -> CommandResult {
    let config = &ctx.core.state.config;
    let policy = config.maxmemory_policy;
    let has_access_bits = config.maxmemory != 0 && (policy.is_lfu() || policy.uses_time());
    let shares = !has_access_bits && !config.compatible_with.is_valkey();
    if let Some(slot) = find(ctx) {
        let is_shared = match ctx.core.keyspace.entry(slot).value() {
            ValueRef::Bytes { bytes, kind: kind::STRING } => {
                parse_i64(bytes).is_some_and(|value| (0..=SHARED_INTEGER_MAX).contains(&value))
            }
            _ => false,
        };
        ctx.reply.integer(if shares && is_shared { SHARED_REFERENCES } else { 1 });
    }
    Ok(Outcome::Replied)
}

/// `OBJECT HELP`: an array of simple strings.
fn help(ctx: &mut Context<'_>) -> CommandResult {
    ctx.reply.array(HELP.len());
    HELP.iter().for_each(|line| ctx.reply.simple(line));
    Ok(Outcome::Replied)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_before_7_2_are_told_by_their_first_two_numbers() {
        for (version, is_before) in [
            ("7.0.15", true),
            ("6.9", true),
            ("7.1.240", true),
            ("7.2.4", false),
            ("7.10.0", false),
            ("8.0.0", false),
            ("7", false),
            ("unstable", false),
        ] {
            assert_eq!(is_before_7_2(version.as_bytes()), is_before, "{version}");
        }
    }
}
