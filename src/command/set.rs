//! Sets, and their unions, intersections and differences.
//!
//! Members are replied without a copy. Unions, intersections and differences read all sets in
//! place; a set of the result is only built to store it, or to recognize members that were replied
//! already.

use std::collections::HashSet;

use smallvec::SmallVec;

use crate::collections::packed::Element;
use crate::collections::table::Slot;
use crate::command::key::scan::{MemberScan, count_left, scan_cursor};
use crate::config::KeyspaceEvents;
use crate::error::CommandError;
use crate::keyspace::{Expiry, Key, Keyspace};
use crate::resp::args::BadKeyCount;
use crate::resp::number::parse_i64;
use crate::resp::reply::{OutputBuffer, ReplyWriter};
use crate::state::context::{CommandResult, Context, Effect, Outcome};
use crate::state::spec::{
    CommandSpec, Flags, Group, Handler, KeyFlags, KeySpec, counted_keys, key, keys, spec,
};
use crate::types::journal::Edit;
use crate::types::set::{Limits, Set, SetView};

const ALL_READ: &[KeySpec] = &[keys(1, -1, 1, KeyFlags::RO_ACCESS)];
const FIRST_STORED: &[KeySpec] =
    &[key(1, KeyFlags::OW_UPDATE), keys(2, -1, 1, KeyFlags::RO_ACCESS)];

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    set_spec("SADD", sadd, "1.0.0", Flags::WRITE_DENYOOM_FAST).at_least(3).keys(&[key(1, KeyFlags::RW_INSERT)])
        .docs("key member [member ...]", "Adds members to a set, creating it if necessary.", "O(N) where N is the number of members given"),
    set_spec("SCARD", scard, "1.0.0", Flags::READONLY_FAST).exactly(2).keys(KeySpec::RO)
        .docs("key", "Counts the members of a set.", "O(1)"),
    set_spec("SDIFF", sdiff, "1.0.0", Flags::READONLY).at_least(2).keys(ALL_READ).tips(&["nondeterministic_output_order"])
        .docs("key [key ...]", "Returns the members of the first set that are in none of the others.", "O(N) where N is the number of members of all sets"),
    set_spec("SDIFFSTORE", sdiffstore, "1.0.0", Flags::WRITE_DENYOOM).at_least(3).keys(FIRST_STORED)
        .docs("destination key [key ...]", "Stores the members of the first set that are in none of the others.",
            "O(N) where N is the number of members of all sets"),
    set_spec("SINTER", sinter, "1.0.0", Flags::READONLY).at_least(2).keys(ALL_READ).tips(&["nondeterministic_output_order"])
        .docs("key [key ...]", "Returns the members that several sets have in common.",
            "O(N*M) where N is the number of members of the smallest set and M that of sets"),
    set_spec("SINTERCARD", sintercard, "7.0.0", Flags::READONLY.union(Flags::MOVABLEKEYS)).at_least(3).keys(&[counted_keys(1, KeyFlags::RO_ACCESS)])
        .docs("numkeys key [key ...] [LIMIT limit]", "Counts the members that several sets have in common, up to a limit.",
            "O(N*M) where N is the number of members of the smallest set and M that of sets"),
    set_spec("SUNIONCARD", sunioncard, "8.10.0", Flags::READONLY.union(Flags::MOVABLEKEYS)).at_least(3).keys(&[counted_keys(1, KeyFlags::RO_ACCESS)])
        .docs("numkeys key [key ...] [APPROX] [LIMIT limit]", "Counts the members of the union of several sets, up to a limit.",
            "O(N) where N is the number of members of all sets"),
    set_spec("SDIFFCARD", sdiffcard, "8.10.0", Flags::READONLY.union(Flags::MOVABLEKEYS)).at_least(3).keys(&[counted_keys(1, KeyFlags::RO_ACCESS)])
        .docs("numkeys key [key ...] [LIMIT limit]", "Counts the members of a set that several others do not have, up to a limit.",
            "O(N) where N is the number of members of all sets"),
    set_spec("SINTERSTORE", sinterstore, "1.0.0", Flags::WRITE_DENYOOM).at_least(3).keys(&[key(1, KeyFlags::RW_UPDATE), keys(2, -1, 1, KeyFlags::RO_ACCESS)])
        .docs("destination key [key ...]", "Stores the members that several sets have in common.",
            "O(N*M) where N is the number of members of the smallest set and M that of sets"),
    set_spec("SISMEMBER", sismember, "1.0.0", Flags::READONLY_FAST).exactly(3).keys(KeySpec::RO)
        .docs("key member", "Determines whether a set has a member.", "O(1)"),
    set_spec("SMEMBERS", smembers, "1.0.0", Flags::READONLY).exactly(2).keys(KeySpec::RO_ACCESS).tips(&["nondeterministic_output_order"])
        .docs("key", "Returns all members of a set.", "O(N) where N is the number of members"),
    set_spec("SMISMEMBER", smismember, "6.2.0", Flags::READONLY_FAST).at_least(3).keys(KeySpec::RO_ACCESS)
        .docs("key member [member ...]", "Determines for each of several members whether a set has it.", "O(N) where N is the number of members given"),
    set_spec("SMOVE", smove, "1.0.0", Flags::WRITE_FAST).exactly(4).keys(&[key(1, KeyFlags::RW_ACCESS_DELETE), key(2, KeyFlags::RW_INSERT)])
        .docs("source destination member", "Moves a member from one set to another.", "O(1)"),
    set_spec("SPOP", spop, "1.0.0", Flags::WRITE_FAST.union(Flags::TAKES_RANDOM)).at_least(2).keys(&[key(1, KeyFlags::RW_ACCESS_DELETE)])
        .tips(&["nondeterministic_output"])
        .docs("key [count]", "Removes and returns random members of a set.", "O(1) without a count, else O(N) where N is the count"),
    set_spec("SRANDMEMBER", srandmember, "1.0.0", Flags::READONLY).at_least(2).keys(KeySpec::RO_ACCESS).tips(&["nondeterministic_output"])
        .docs("key [count]", "Returns random members of a set: different ones, or with repetition if the count is negative.",
            "O(1) without a count, else O(N) where N is the count"),
    set_spec("SREM", srem, "1.0.0", Flags::WRITE_FAST).at_least(3).keys(&[key(1, KeyFlags::RW_DELETE)])
        .docs("key member [member ...]", "Removes members from a set, and the set with its last member.", "O(N) where N is the number of members given"),
    set_spec("SSCAN", sscan, "2.8.0", Flags::READONLY).at_least(3).keys(KeySpec::RO_ACCESS).tips(&["nondeterministic_output"])
        .docs("key cursor [MATCH pattern] [COUNT count]", "Iterates over the members of a set, some in each call.",
            "O(COUNT) for each call, O(N) for the whole walk"),
    set_spec("SUNION", sunion, "1.0.0", Flags::READONLY).at_least(2).keys(ALL_READ).tips(&["nondeterministic_output_order"])
        .docs("key [key ...]", "Returns the members of the union of several sets.", "O(N) where N is the number of members of all sets"),
    set_spec("SUNIONSTORE", sunionstore, "1.0.0", Flags::WRITE_DENYOOM).at_least(3).keys(FIRST_STORED)
        .docs("destination key [key ...]", "Stores the members of the union of several sets.", "O(N) where N is the number of members of all sets"),
];

const fn set_spec(
    name: &'static str,
    handler: Handler,
    since: &'static str,
    flags: Flags,
) -> CommandSpec {
    spec(name, handler).group(Group::Set).since(since).flags(flags)
}

const NOT_POSITIVE: CommandError = CommandError::ValueOutOfRange("must be positive");
const COUNT_OUT_OF_RANGE: CommandError = CommandError::ValueOutOfRange(
    "value must between -9223372036854775807 and 9223372036854775807",
);

/// A union of up to this many sets is replied without building a set: each member is looked up in
/// the sets before.
const DIRECT_UNION_MAX: usize = 4;

/// The configured limits of a set's encodings.
pub(crate) fn limits(ctx: &Context<'_>) -> Limits {
    let config = &ctx.core.state.config;
    Limits {
        intset_entries: config.set_max_intset_entries,
        listpack_entries: config.set_max_listpack_entries,
        listpack_value: config.set_max_listpack_value,
        hasher: ctx.core.keyspace.hasher(),
    }
}

fn reply_member(reply: &mut ReplyWriter<'_>, member: Element<'_>) {
    match member {
        Element::Bytes(bytes) => reply.bulk(bytes),
        Element::Integer(value) => reply.bulk_integer(value),
    }
}

// ---- one set ------------------------------------------------------------------------------------

/// `SADD key member [member ...]`: the number of new members.
fn sadd(ctx: &mut Context<'_>) -> CommandResult {
    let key = ctx.key(1);
    let limits = limits(ctx);
    let members = ctx.args.iter_from(2);
    // Redis 7.0 learns only from the members themselves how many there are.
    let count = if ctx.core.state.config.reports_7_2() { members.len() } else { 1 };
    let add_all = |set: &mut Edit<'_, Set>| {
        members.map(|member| u64::from(set.add(member, &limits))).sum::<u64>()
    };
    let added = match ctx.core.keyspace.slot_of::<Set>(key)? {
        Some(slot) => ctx.core.keyspace.edit(slot, |set: &mut Edit<'_, Set>| {
            set.expect_more(count, &limits);
            add_all(set)
        }),
        None => {
            let mut set = Set::with_hint(ctx.args.get(2), count, &limits);
            let added = add_all(&mut Edit::unnoted(&mut set));
            ctx.core.keyspace.insert_collection(key, set);
            added
        }
    };
    if added > 0 {
        ctx.core.keyspace.changed_by(added, KeyspaceEvents::SET, "sadd", key.bytes);
    }
    ctx.reply.integer(added as i64);
    Ok(Outcome::Replied)
}

/// `SREM key member [member ...]`: the number of removed members.
fn srem(ctx: &mut Context<'_>) -> CommandResult {
    let key = ctx.key(1);
    let Some(slot) = ctx.core.keyspace.slot_of::<Set>(key)? else {
        ctx.reply.integer(0);
        return Ok(Outcome::Replied);
    };
    let members = ctx.args.iter_from(2);
    let removed = ctx.core.keyspace.edit(slot, |set: &mut Edit<'_, Set>| {
        members.map(|member| u64::from(set.remove(member))).sum::<u64>()
    });
    if removed > 0 {
        ctx.core.keyspace.changed_by(removed, KeyspaceEvents::SET, "srem", key.bytes);
        ctx.core.keyspace.delete_if_empty::<Set>(slot, key);
    }
    ctx.reply.integer(removed as i64);
    Ok(Outcome::Replied)
}

/// `SISMEMBER key member`: 1 or 0.
fn sismember(ctx: &mut Context<'_>) -> CommandResult {
    let set = ctx.core.keyspace.read::<Set>(ctx.key(1))?;
    let is_member = set.is_some_and(|set| set.contains(ctx.args.get(2)));
    ctx.reply.integer(is_member.into());
    Ok(Outcome::Replied)
}

/// `SMISMEMBER key member [member ...]`: an array of 1 or 0.
fn smismember(ctx: &mut Context<'_>) -> CommandResult {
    let set = ctx.core.keyspace.read::<Set>(ctx.key(1))?;
    let members = ctx.args.iter_from(2);
    ctx.reply.array(members.len());
    for member in members {
        ctx.reply.integer(set.is_some_and(|set| set.contains(member)).into());
    }
    Ok(Outcome::Replied)
}

/// `SCARD key`: the number of members.
fn scard(ctx: &mut Context<'_>) -> CommandResult {
    let set = ctx.core.keyspace.read::<Set>(ctx.key(1))?;
    ctx.reply.integer(set.map_or(0, |set| set.len()) as i64);
    Ok(Outcome::Replied)
}

/// `SMEMBERS key`: a set.
fn smembers(ctx: &mut Context<'_>) -> CommandResult {
    let key = ctx.key(1);
    let Context { core, reply, .. } = ctx;
    let read = core.keyspace.lend_read::<Set, _>(key, |set, lender| {
        reply.set(set.len());
        set.for_each(|member| match member {
            Element::Bytes(bytes) => reply.bulk_or_lent(bytes, lender),
            Element::Integer(value) => reply.bulk_integer(value),
        });
    })?;
    if read.is_none() {
        reply.set(0);
    }
    Ok(Outcome::Replied)
}

fn reply_all(reply: &mut ReplyWriter<'_>, set: SetView<'_>) {
    reply.set(set.len());
    set.for_each(|member| reply_member(reply, member));
}

/// `SMOVE source destination member`: 1, or 0 if the source has no such member.
fn smove(ctx: &mut Context<'_>) -> CommandResult {
    let (source, destination, member) = (ctx.key(1), ctx.key(2), ctx.args.get(3));
    let found = find_sets(
        &mut ctx.core.keyspace,
        &[source, destination],
        |keyspace, key| keyspace.find_for_write(key),
        true,
    )?;
    let Some(slot) = found[0] else {
        ctx.reply.integer(0);
        return Ok(Outcome::Replied);
    };
    if found[0] == found[1] {
        let is_member = ctx.core.keyspace.view::<Set>(slot)?.contains(member);
        ctx.reply.integer(is_member.into());
        return Ok(Outcome::Replied);
    }
    if !ctx.core.keyspace.edit(slot, |set: &mut Edit<'_, Set>| set.remove(member)) {
        ctx.reply.integer(0);
        return Ok(Outcome::Replied);
    }
    ctx.core.keyspace.changed(KeyspaceEvents::SET, "srem", source.bytes);
    ctx.core.keyspace.delete_if_empty::<Set>(slot, source);
    let limits = limits(ctx);
    // If the source was deleted, the destination may have moved.
    let added = match ctx.core.keyspace.find(destination) {
        Some(slot) => {
            ctx.core.keyspace.edit(slot, |set: &mut Edit<'_, Set>| set.add(member, &limits))
        }
        None => {
            let mut set = Set::with_hint(member, 1, &limits);
            Edit::unnoted(&mut set).add(member, &limits);
            ctx.core.keyspace.insert_collection(destination, set);
            true
        }
    };
    if added {
        ctx.core.keyspace.changed(KeyspaceEvents::SET, "sadd", destination.bytes);
    }
    ctx.reply.integer(1);
    Ok(Outcome::Replied)
}

/// The most members of an SREM that replicates SPOP, for Valkey.
const SREM_MEMBERS: usize = 1024;

/// `SPOP key [count]`: a bulk string or nil; with a count a set.
fn spop(ctx: &mut Context<'_>) -> CommandResult {
    let key = ctx.key(1);
    let count = match ctx.args.len() {
        2 => None,
        3 => {
            let count = parse_i64(ctx.args.get(2)).and_then(|count| usize::try_from(count).ok());
            Some(count.ok_or(NOT_POSITIVE)?)
        }
        _ => return Err(CommandError::Syntax),
    };
    let Some(slot) = ctx.core.keyspace.slot_of::<Set>(key)? else {
        match count {
            Some(_) => ctx.reply.set(0),
            None => ctx.reply.null(),
        }
        return Ok(Outcome::Replied);
    };
    let reply = &mut ctx.reply;
    let Some(count) = count else {
        let (is_heard, mut taken) = (ctx.core.state.effects.is_heard(), Vec::new());
        let mut draws = std::mem::take(&mut ctx.core.keyspace.draws);
        ctx.core.keyspace.edit(slot, |set: &mut Edit<'_, Set>| {
            set.pop(&mut draws, |member| {
                if is_heard {
                    taken.extend_from_slice(member.text().as_ref());
                }
                reply_member(reply, member);
            });
        });
        ctx.core.keyspace.draws = draws;
        ctx.core.keyspace.changed(KeyspaceEvents::SET, "spop", key.bytes);
        ctx.instead(&[b"SREM", key.bytes, &taken]);
        ctx.core.keyspace.delete_if_empty::<Set>(slot, key);
        return Ok(Outcome::Replied);
    };
    let set = ctx.core.keyspace.view::<Set>(slot)?;
    let len = set.len();
    if count == 0 {
        reply.set(0);
        return Ok(Outcome::Replied);
    }
    if count >= len {
        reply_all(reply, set);
        // The deletion counts as one of the changes.
        ctx.core.keyspace.changed_by(len as u64 - 1, KeyspaceEvents::SET, "spop", key.bytes);
        ctx.core.keyspace.delete_at(slot, key, "del");
        ctx.instead_deleted(key.bytes);
        return Ok(Outcome::Replied);
    }
    let limits = limits(ctx);
    let (is_heard, mut taken) = (ctx.is_heard(), Vec::new());
    let reply = &mut ctx.reply;
    reply.set(count);
    ctx.core.keyspace.edit(slot, |set: &mut Edit<'_, Set>| {
        set.pop_many(count, &limits, |member| {
            if is_heard {
                taken.push(member.text().as_ref().to_vec());
            }
            reply_member(reply, member);
        });
    });
    ctx.core.keyspace.changed_by(count as u64, KeyspaceEvents::SET, "spop", key.bytes);
    ctx.effect = Effect::Instead;
    // Valkey's requests have many members each.
    let members = if ctx.core.state.config.compatible_with.is_valkey() { SREM_MEMBERS } else { 1 };
    for members in taken.chunks(members) {
        ctx.instead_gathered(|_, request| {
            request.extend([b"SREM".to_vec(), key.bytes.to_vec()]);
            request.extend_from_slice(members);
        });
    }
    Ok(Outcome::Replied)
}

/// `SRANDMEMBER key [count]`: a bulk string or nil; with a count an array.
fn srandmember(ctx: &mut Context<'_>) -> CommandResult {
    let count = match ctx.args.len() {
        2 => None,
        3 => {
            let count = ctx.args.integer(2)?;
            Some(if count == i64::MIN { Err(COUNT_OUT_OF_RANGE)? } else { count })
        }
        _ => return Err(CommandError::Syntax),
    };
    if let Some(count @ ..0) = count {
        ctx.check_draws(count.unsigned_abs())?;
    }
    let set = ctx.core.keyspace.read::<Set>(ctx.key(1))?;
    let reply = &mut ctx.reply;
    match (set, count) {
        (None, None) => reply.null(),
        (None, Some(_)) => reply.array(0),
        (Some(set), None) => set.random().iter().for_each(|&member| reply_member(reply, member)),
        (Some(set), Some(count @ 0..)) => {
            let count = usize::try_from(count).unwrap_or(usize::MAX);
            reply.array(count.min(set.len()));
            set.sample(count, |member| reply_member(reply, member));
        }
        (Some(set), Some(count)) => {
            reply.array(usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX));
            for _ in 0..count.unsigned_abs() {
                set.random().iter().for_each(|&member| reply_member(reply, member));
                if reply.is_cut() {
                    break;
                }
            }
        }
    }
    Ok(Outcome::Replied)
}

/// `SSCAN key cursor [MATCH pattern] [COUNT count]`: the next cursor (0 at the end) as a bulk
/// string, and an array of members. The set is looked up before the options are parsed: without
/// such a key, errors in options are not reported.
fn sscan(ctx: &mut Context<'_>) -> CommandResult {
    let mut cursor = scan_cursor(ctx, 2)?;
    let (protocol, limits) = (ctx.reply.protocol(), limits(ctx));
    let Some(set) = ctx.core.keyspace.read::<Set>(ctx.key(1))? else {
        ctx.reply.array(2);
        ctx.reply.bulk(b"0");
        ctx.reply.array(0);
        return Ok(Outcome::Replied);
    };
    let options = MemberScan::parse(ctx.args.cursor(3), "")?;
    let (mut seen, mut found) = (0u64, 0);
    // The cursor, first in the reply, is known last.
    let mut members = OutputBuffer::default();
    let mut writer = ReplyWriter::new(&mut members, protocol);
    let keeps_small_whole = ctx.core.state.config.reports_7_2();
    loop {
        let most = count_left(options.count, seen);
        let visit = |member: Element<'_>| {
            seen += 1;
            if options.wants(member.text().as_ref()) {
                found += 1;
                reply_member(&mut writer, member);
            }
        };
        cursor = match keeps_small_whole {
            true => set.scan(cursor, most, visit),
            false => set.scan_in_parts(cursor, most, &limits, visit),
        };
        if cursor == 0 || seen >= options.count {
            break;
        }
    }
    ctx.reply.array(2);
    ctx.reply.bulk_display(cursor);
    ctx.reply.array(found);
    ctx.reply.output().append(&members);
    Ok(Outcome::Replied)
}

// ---- several sets -------------------------------------------------------------------------------

type Slots = SmallVec<[Option<Slot>; 8]>;
type Views<'a> = SmallVec<[SetView<'a>; 8]>;

/// The slots of several sets, each looked up by `find`; None for absent keys. The first WRONGTYPE
/// ends the search; with `first_decides` the other keys may have any type if the first is absent.
fn find_sets(
    keyspace: &mut Keyspace,
    keys: &[Key<'_>],
    find: impl Fn(&mut Keyspace, Key<'_>) -> Option<Slot>,
    first_decides: bool,
) -> Result<Slots, CommandError> {
    let mut slots = Slots::new();
    let mut fault = None;
    for &key in keys {
        let slot = find(keyspace, key);
        if let Some(slot) = slot
            && let Err(error) = keyspace.view::<Set>(slot)
        {
            if !first_decides {
                return Err(error);
            }
            fault = Some(error);
        }
        slots.push(slot);
    }
    if first_decides
        && slots[0].is_some()
        && let Some(error) = fault
    {
        return Err(error);
    }
    Ok(slots)
}

/// Looks up the keys among these arguments, for reading.
fn read_sets(
    ctx: &mut Context<'_>,
    arguments: std::ops::Range<usize>,
) -> Result<Slots, CommandError> {
    let keys: SmallVec<[Key<'_>; 8]> = arguments.map(|index| ctx.key(index)).collect();
    find_sets(&mut ctx.core.keyspace, &keys, |keyspace, key| keyspace.find_for_read(key), false)
}

fn views<'a>(
    keyspace: &'a Keyspace,
    slots: impl Iterator<Item = Slot>,
) -> Result<Views<'a>, CommandError> {
    slots.map(|slot| keyspace.view::<Set>(slot)).collect()
}

/// Sets `key` to a computed set, or deletes it if the set is empty, and replies the number of
/// members.
fn store(ctx: &mut Context<'_>, key: Key<'_>, set: Set, event: &'static str) -> CommandResult {
    let len = set.as_view().len();
    let found = ctx.core.keyspace.find(key);
    if len > 0 {
        ctx.core.keyspace.set_collection(found, key, set, Expiry::Clear);
        ctx.core.keyspace.changed(KeyspaceEvents::SET, event, key.bytes);
    } else if let Some(slot) = found {
        ctx.core.keyspace.delete_at(slot, key, "del");
    }
    ctx.reply.integer(len as i64);
    Ok(Outcome::Replied)
}

/// `SINTER key [key ...]`: a set.
fn sinter(ctx: &mut Context<'_>) -> CommandResult {
    let slots = read_sets(ctx, 1..ctx.args.len())?;
    let sets = intersected(&ctx.core.keyspace, &slots)?;
    let reply = &mut ctx.reply;
    if let [set] = sets[..] {
        reply_all(reply, set);
        return Ok(Outcome::Replied);
    }
    let (members, mut len) = (reply.defer_set(), 0);
    intersect(&sets, |member| {
        reply_member(reply, member);
        len += 1;
        true
    });
    reply.finish(members, len);
    Ok(Outcome::Replied)
}

/// `numkeys key [key ...] [LIMIT limit]`, with the word APPROX if `approximates`: the keys and the
/// limit.
fn parse_counted(
    ctx: &Context<'_>,
    approximates: bool,
) -> Result<(std::ops::Range<usize>, usize), CommandError> {
    let mut options = ctx.args.cursor(1);
    let keys = options.take_keys(1, 1).map_err(|bad| match bad {
        BadKeyCount::TooLarge(_) => CommandError::MANY_KEYS,
        BadKeyCount::NotInteger | BadKeyCount::TooSmall => CommandError::FEW_KEYS,
    })?;
    let mut limit = 0;
    while !options.is_at_end() {
        if approximates && options.take_word("APPROX") {
            continue;
        }
        if options.remaining() < 2 || !options.take_word("LIMIT") {
            return Err(CommandError::Syntax);
        }
        let value = parse_i64(options.take()?).and_then(|limit| usize::try_from(limit).ok());
        limit = value.ok_or(CommandError::NEGATIVE_LIMIT)?;
    }
    Ok((keys, if limit == 0 { usize::MAX } else { limit }))
}

/// `SUNIONCARD numkeys key [key ...] [APPROX] [LIMIT limit]`: the number of members of the union,
/// or the limit if that is less. It is exact with APPROX too.
fn sunioncard(ctx: &mut Context<'_>) -> CommandResult {
    let (keys, limit) = parse_counted(ctx, true)?;
    let slots = read_sets(ctx, keys)?;
    let sets = views(&ctx.core.keyspace, slots.iter().flatten().copied())?;
    let count = match sets[..] {
        [set] => set.len(),
        _ if sets.iter().any(|set| set.len() >= limit) => limit,
        _ => unite(&sets, &limits(ctx)).as_view().len(),
    };
    ctx.reply.integer(count.min(limit) as i64);
    Ok(Outcome::Replied)
}

/// `SDIFFCARD numkeys key [key ...] [LIMIT limit]`: the number of members that only the first set
/// has, or the limit if that is less.
fn sdiffcard(ctx: &mut Context<'_>) -> CommandResult {
    let (keys, limit) = parse_counted(ctx, false)?;
    let slots = read_sets(ctx, keys)?;
    let difference = Difference::of(&ctx.core.keyspace, &slots)?;
    let mut count = 0;
    if difference.removes_from_copy() {
        count = difference.copy_and_remove(&limits(ctx)).as_view().len();
    } else {
        difference.for_each(|_| count += 1);
    }
    ctx.reply.integer(count.min(limit) as i64);
    Ok(Outcome::Replied)
}

/// `SINTERCARD numkeys key [key ...] [LIMIT limit]`: the number of common members, or the limit if
/// that is less.
fn sintercard(ctx: &mut Context<'_>) -> CommandResult {
    let (keys, limit) = parse_counted(ctx, false)?;
    let slots = read_sets(ctx, keys)?;
    let sets = intersected(&ctx.core.keyspace, &slots)?;
    let count = match sets[..] {
        [set] => set.len().min(limit),
        _ => {
            let mut count = 0;
            intersect(&sets, |_| {
                count += 1;
                count < limit
            });
            count
        }
    };
    ctx.reply.integer(count as i64);
    Ok(Outcome::Replied)
}

/// `SINTERSTORE destination key [key ...]`: the number of members stored.
fn sinterstore(ctx: &mut Context<'_>) -> CommandResult {
    let slots = read_sets(ctx, 2..ctx.args.len())?;
    let result = intersection(&ctx.core.keyspace, &slots, &limits(ctx))?;
    store(ctx, ctx.key(1), result, "sinterstore")
}

fn intersection(keyspace: &Keyspace, slots: &Slots, limits: &Limits) -> Result<Set, CommandError> {
    let sets = intersected(keyspace, slots)?;
    let mut result = match sets.first() {
        Some(SetView::Ints(_)) => Set::Ints(Vec::new()),
        _ => Set::Packed(Vec::new()),
    };
    intersect(&sets, |member| {
        Edit::unnoted(&mut result).add_element(member, limits);
        true
    });
    Edit::unnoted(&mut result).prefer_integers(limits);
    Ok(result)
}

/// The sets to intersect, the smallest first and without duplicates; empty if a key is absent.
fn intersected<'a>(keyspace: &'a Keyspace, slots: &Slots) -> Result<Views<'a>, CommandError> {
    let Some(mut different) = slots.iter().copied().collect::<Option<SmallVec<[Slot; 8]>>>() else {
        return Ok(Views::new());
    };
    let mut seen = SmallVec::<[Slot; 8]>::new();
    if different.len() <= seen.inline_size() {
        different.retain(|slot| {
            let is_new = !seen.contains(slot);
            seen.extend(is_new.then_some(*slot));
            is_new
        });
    } else {
        let mut seen = HashSet::with_capacity(different.len());
        different.retain(|slot| seen.insert(*slot));
    }
    let mut sets = views(keyspace, different.into_iter())?;
    if sets.len() > 1 {
        sets.sort_by_cached_key(|set| set.len());
    }
    Ok(sets)
}

/// Passes the members that all sets have to `visit`, until it returns false. The first set should
/// be the smallest.
fn intersect<'a>(sets: &[SetView<'a>], mut visit: impl FnMut(Element<'a>) -> bool) {
    match sets {
        [] => {}
        [SetView::Ints(first), SetView::Ints(second), others @ ..] => {
            first.intersect(second, |value| {
                let member = Element::Integer(value);
                !others.iter().all(|set| set.contains_element(member)) || visit(member)
            });
        }
        [first, others @ ..] => first.visit(|member| {
            !others.iter().all(|set| set.contains_element(member)) || visit(member)
        }),
    }
}

/// `SUNION key [key ...]`: a set.
fn sunion(ctx: &mut Context<'_>) -> CommandResult {
    let slots = read_sets(ctx, 1..ctx.args.len())?;
    let limits = limits(ctx);
    let sets = views(&ctx.core.keyspace, slots.iter().flatten().copied())?;
    let reply = &mut ctx.reply;
    let are_integers = sets.iter().all(|set| matches!(set, SetView::Ints(_)));
    if sets.len() == 1 {
        reply_all(reply, sets[0]);
    } else if are_integers || sets.len() > DIRECT_UNION_MAX {
        let union = unite(&sets, &limits);
        reply_all(reply, union.as_view());
    } else {
        let (members, mut len) = (reply.defer_set(), 0);
        for (index, set) in sets.iter().enumerate() {
            let before = &sets[..index];
            set.for_each(|member| {
                if !before.iter().any(|set| set.contains_element(member)) {
                    reply_member(reply, member);
                    len += 1;
                }
            });
        }
        reply.finish(members, len);
    }
    Ok(Outcome::Replied)
}

/// `SUNIONSTORE destination key [key ...]`: the number of members stored.
fn sunionstore(ctx: &mut Context<'_>) -> CommandResult {
    let slots = read_sets(ctx, 2..ctx.args.len())?;
    let limits = limits(ctx);
    let union = unite(&views(&ctx.core.keyspace, slots.iter().flatten().copied())?, &limits);
    store(ctx, ctx.key(1), union, "sunionstore")
}

fn unite(sets: &[SetView<'_>], limits: &Limits) -> Set {
    let mut union = Set::Ints(Vec::new());
    for set in sets {
        set.for_each(|member| {
            Edit::unnoted(&mut union).add_element(member, limits);
        });
    }
    union
}

/// `SDIFF key [key ...]`: a set.
fn sdiff(ctx: &mut Context<'_>) -> CommandResult {
    let slots = read_sets(ctx, 1..ctx.args.len())?;
    let limits = limits(ctx);
    let difference = Difference::of(&ctx.core.keyspace, &slots)?;
    let reply = &mut ctx.reply;
    if difference.removes_from_copy() {
        let result = difference.copy_and_remove(&limits);
        reply_all(reply, result.as_view());
        return Ok(Outcome::Replied);
    }
    let (members, mut len) = (reply.defer_set(), 0);
    difference.for_each(|member| {
        reply_member(reply, member);
        len += 1;
    });
    reply.finish(members, len);
    Ok(Outcome::Replied)
}

/// `SDIFFSTORE destination key [key ...]`: the number of members stored.
fn sdiffstore(ctx: &mut Context<'_>) -> CommandResult {
    let slots = read_sets(ctx, 2..ctx.args.len())?;
    let result = Difference::of(&ctx.core.keyspace, &slots)?.to_set(&limits(ctx));
    store(ctx, ctx.key(1), result, "sdiffstore")
}

/// The sets of a difference.
struct Difference<'a> {
    /// None if the difference is empty: the key is absent, or among the subtracted ones.
    first: Option<SetView<'a>>,
    subtracted: Views<'a>,
}

impl<'a> Difference<'a> {
    fn of(keyspace: &'a Keyspace, slots: &Slots) -> Result<Self, CommandError> {
        let (first, others) = slots.split_first().expect("the arity asks for a key");
        let first = first.filter(|first| !others.contains(&Some(*first)));
        let Some(first) = first else {
            return Ok(Difference { first: None, subtracted: Views::new() });
        };
        let mut subtracted = views(keyspace, others.iter().flatten().copied())?;
        // A larger set is more likely to have a member.
        subtracted.sort_by_cached_key(|set| std::cmp::Reverse(set.len()));
        Ok(Difference { first: Some(keyspace.view::<Set>(first)?), subtracted })
    }

    /// Whether removing the other sets' members from a copy of the first set is less work than
    /// looking up each of the first set's members in the others. Redis's estimate: it is observable
    /// in the encoding of a stored result.
    fn removes_from_copy(&self) -> bool {
        let Some(first) = self.first else { return false };
        let sizes = self.subtracted.iter().map(|set| set.len()).sum::<usize>();
        first.len() * (1 + self.subtracted.len()) / 2 > first.len() + sizes
    }

    fn for_each(&self, mut visit: impl FnMut(Element<'a>)) {
        let Some(first) = self.first else { return };
        first.for_each(|member| {
            if !self.subtracted.iter().any(|set| set.contains_element(member)) {
                visit(member);
            }
        });
    }

    fn to_set(&self, limits: &Limits) -> Set {
        if self.removes_from_copy() {
            return self.copy_and_remove(limits);
        }
        let mut result = Set::Ints(Vec::new());
        self.for_each(|member| {
            Edit::unnoted(&mut result).add_element(member, limits);
        });
        result
    }

    fn copy_and_remove(&self, limits: &Limits) -> Set {
        let mut copy = unite(self.first.as_slice(), limits);
        for set in &self.subtracted {
            set.for_each(|member| {
                Edit::unnoted(&mut copy).remove_element(member);
            });
        }
        copy
    }
}
