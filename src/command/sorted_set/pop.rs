//! Popping the first or last members of sorted sets, possibly blocking.

use crate::collections::table::Slot;
use crate::command::timeout::TimeoutUnit;
use crate::config::KeyspaceEvents;
use crate::error::CommandError;
use crate::keyspace::Key;
use crate::keyspace::waiting::Wanted;
use crate::resp::args::{Args, BadKeyCount};
use crate::resp::{Protocol, number};
use crate::state::context::{CommandResult, Context, Outcome, WaitForKeys};
use crate::state::spec::{
    Begin, CommandSpec, Find, Flags, Group, KeyFlags, KeySpec, counted_keys, key, keys, spec,
};
use crate::types::journal::Edit;
use crate::types::sorted_set::SortedSet;
use std::ops::Range;

const WAITING: Flags = Flags::WRITE_BLOCKING.union(Flags::NO_SCRIPT_BEFORE_7_2).union(Flags::FAST);
const COST: &str =
    "O(M log(N)) with N the size of the sorted set and M the number of members taken.";
const MANY_COST: &str =
    "O(K + M log(N)) with K keys, N the size of the sorted set and M the number of members taken.";

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    spec("ZPOPMIN", zpopmin).at_least(2).keys(&[key(1, KeyFlags::RW_ACCESS_DELETE)]).flags(Flags::WRITE_FAST).with(Flags::TAKES_LOWEST).group(Group::SortedSet)
        .since("5.0.0")
        .docs("key [count]", "Removes and returns the members with the lowest scores.", COST),
    spec("ZPOPMAX", zpopmax).at_least(2).keys(&[key(1, KeyFlags::RW_ACCESS_DELETE)]).flags(Flags::WRITE_FAST).with(Flags::TAKES_HIGHEST).group(Group::SortedSet)
        .since("5.0.0")
        .docs("key [count]", "Removes and returns the members with the highest scores.", COST),
    spec("ZMPOP", zmpop).at_least(4).keys(&[counted_keys(1, KeyFlags::RW_ACCESS_DELETE)]).flags(Flags::WRITE).group(Group::SortedSet).since("7.0.0")
        .docs("numkeys key [key ...] <MIN | MAX> [COUNT count]", "Takes members out of the first of several sorted sets that is not empty.", MANY_COST),
    spec("BZPOPMIN", bzpopmin).at_least(3).keys(&[keys(1, -2, 1, KeyFlags::RW_ACCESS_DELETE)]).flags(WAITING).group(Group::SortedSet).since("5.0.0")
        .docs("key [key ...] timeout", "Removes and returns the member with the lowest score of the first sorted set that exists, or waits for one.",
            "O(log(N)), N being the size of the sorted set."),
    spec("BZPOPMAX", bzpopmax).at_least(3).keys(&[keys(1, -2, 1, KeyFlags::RW_ACCESS_DELETE)]).flags(WAITING).group(Group::SortedSet).since("5.0.0")
        .docs("key [key ...] timeout", "Removes and returns the member with the highest score of the first sorted set that exists, or waits for one.",
            "O(log(N)), N being the size of the sorted set."),
    spec("BZMPOP", bzmpop).at_least(5).keys(BLOCKING_COUNTED).flags(Flags::WRITE_BLOCKING).group(Group::SortedSet).since("7.0.0")
        .docs("timeout numkeys key [key ...] <MIN | MAX> [COUNT count]",
            "Takes members out of the first of several sorted sets that is not empty, or waits for one.", MANY_COST),
];

const BLOCKING_COUNTED: &[KeySpec] = &[KeySpec {
    begin: Begin::Index(2),
    find: Find::Count { step: 1 },
    flags: KeyFlags::RW_ACCESS_DELETE,
    notes: None,
}];

/// An end of a sorted set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Min,
    Max,
}

impl Side {
    fn command(self) -> &'static [u8] {
        match self {
            Side::Min => b"ZPOPMIN",
            Side::Max => b"ZPOPMAX",
        }
    }

    fn event(self) -> &'static str {
        match self {
            Side::Min => "zpopmin",
            Side::Max => "zpopmax",
        }
    }
}

/// The format of the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// Members and scores alternately.
    Flat,
    /// Pairs.
    Nested,
    /// The key, then one member and its score.
    KeyAndFlat,
    /// The key and an array of pairs.
    KeyAndNested,
}

/// `ZPOPMIN key [count]`: an array of members and scores in turn; in RESP3 with a count, an array
/// of pairs.
fn zpopmin(ctx: &mut Context<'_>) -> CommandResult {
    pop_one_key(ctx, Side::Min)
}

/// `ZPOPMAX key [count]`: the same.
fn zpopmax(ctx: &mut Context<'_>) -> CommandResult {
    pop_one_key(ctx, Side::Max)
}

fn pop_one_key(ctx: &mut Context<'_>, side: Side) -> CommandResult {
    if ctx.args.len() > 3 {
        return Err(CommandError::Syntax);
    }
    let has_count = ctx.args.len() == 3;
    let count = match has_count {
        true => number::parse_i64(ctx.args.get(2))
            .and_then(|count| usize::try_from(count).ok())
            .ok_or(CommandError::ValueOutOfRange("must be positive"))?,
        false => 1,
    };
    let key = ctx.key(1);
    match ctx.core.keyspace.slot_of::<SortedSet>(key)? {
        Some(slot) if count > 0 => {
            let is_nested = has_count && ctx.reply.protocol() == Protocol::Resp3;
            let shape = if is_nested { Shape::Nested } else { Shape::Flat };
            pop(ctx, key, slot, side, count, shape);
        }
        _ => ctx.reply.array(0),
    }
    Ok(Outcome::Replied)
}

/// Pops up to `count` members and replies them.
fn pop(ctx: &mut Context<'_>, key: Key<'_>, slot: Slot, side: Side, count: usize, shape: Shape) {
    let reply = &mut ctx.reply;
    let taken = ctx.core.keyspace.edit(slot, |set: &mut Edit<'_, SortedSet>| {
        let view = set.as_view();
        let len = view.len();
        let taken = count.min(len);
        match shape {
            Shape::Flat => reply.array(2 * taken),
            Shape::Nested => reply.array(taken),
            Shape::KeyAndFlat => {
                reply.array(1 + 2 * taken);
                reply.bulk(key.bytes);
            }
            Shape::KeyAndNested => {
                reply.array(2);
                reply.bulk(key.bytes);
                reply.array(taken);
            }
        }
        let ranks = match side {
            Side::Min => 0..taken,
            Side::Max => len - taken..len,
        };
        view.each(ranks.clone(), side == Side::Max, |score, member| {
            if matches!(shape, Shape::Nested | Shape::KeyAndNested) {
                reply.array(2);
            }
            reply.bulk(member);
            reply.double(score);
        });
        set.remove_ranks(ranks);
        taken
    });
    ctx.core.keyspace.changed_by(taken as u64, KeyspaceEvents::ZSET, side.event(), key.bytes);
    match shape {
        Shape::Flat | Shape::Nested => {}
        Shape::KeyAndFlat => ctx.instead(&[side.command(), key.bytes]),
        Shape::KeyAndNested => ctx.instead_with(&[side.command(), key.bytes], taken as i64),
    }
    ctx.core.keyspace.delete_if_empty::<SortedSet>(slot, key);
}

/// Pops from the first of these keys that exists. False if none does.
fn pop_first(
    ctx: &mut Context<'_>,
    keys: Range<usize>,
    side: Side,
    count: usize,
    shape: Shape,
) -> Result<bool, CommandError> {
    for index in keys {
        let key = ctx.key(index);
        if let Some(slot) = ctx.core.keyspace.slot_of::<SortedSet>(key)? {
            pop(ctx, key, slot, side, count, shape);
            return Ok(true);
        }
    }
    Ok(false)
}

/// `numkeys key [key ...] <MIN | MAX> [COUNT count]`.
struct PopOptions {
    keys: Range<usize>,
    side: Side,
    count: usize,
}

impl PopOptions {
    /// `numkeys` is the index of that argument.
    fn parse(args: Args<'_>, numkeys: usize) -> Result<Self, CommandError> {
        let mut arguments = args.cursor(numkeys);
        let keys = arguments.take_keys(1, 1).map_err(|bad| match bad {
            BadKeyCount::TooLarge(_) => CommandError::Syntax,
            BadKeyCount::NotInteger | BadKeyCount::TooSmall => CommandError::FEW_KEYS,
        })?;
        let side = if arguments.take_word("MIN") {
            Side::Min
        } else if arguments.take_word("MAX") {
            Side::Max
        } else {
            return Err(CommandError::Syntax);
        };
        let mut count = None;
        while !arguments.is_at_end() {
            if count.is_some() || arguments.remaining() < 2 || !arguments.take_word("COUNT") {
                return Err(CommandError::Syntax);
            }
            count = Some(arguments.take_positive(CommandError::SMALL_COUNT)?);
        }
        Ok(PopOptions { keys, side, count: count.unwrap_or(1) })
    }
}

/// `ZMPOP numkeys key [key ...] <MIN | MAX> [COUNT count]`: the key and an array of pairs, or nil.
fn zmpop(ctx: &mut Context<'_>) -> CommandResult {
    let PopOptions { keys, side, count } = PopOptions::parse(ctx.args, 1)?;
    if !pop_first(ctx, keys, side, count, Shape::KeyAndNested)? {
        ctx.reply.null_array();
    }
    Ok(Outcome::Replied)
}

/// `BZPOPMIN key [key ...] timeout`: the key, the member and its score, or nil on timeout.
fn bzpopmin(ctx: &mut Context<'_>) -> CommandResult {
    let keys = 1..ctx.args.len() - 1;
    let timeout = ctx.args.len() - 1;
    pop_or_wait(ctx, keys, timeout, Side::Min, 1, Shape::KeyAndFlat)
}

/// `BZPOPMAX key [key ...] timeout`: the same.
fn bzpopmax(ctx: &mut Context<'_>) -> CommandResult {
    let keys = 1..ctx.args.len() - 1;
    let timeout = ctx.args.len() - 1;
    pop_or_wait(ctx, keys, timeout, Side::Max, 1, Shape::KeyAndFlat)
}

/// `BZMPOP timeout numkeys key [key ...] <MIN | MAX> [COUNT count]`: as ZMPOP, or nil on timeout.
fn bzmpop(ctx: &mut Context<'_>) -> CommandResult {
    let PopOptions { keys, side, count } = PopOptions::parse(ctx.args, 2)?;
    pop_or_wait(ctx, keys, 1, side, count, Shape::KeyAndNested)
}

fn pop_or_wait(
    ctx: &mut Context<'_>,
    keys: Range<usize>,
    timeout: usize,
    side: Side,
    count: usize,
    shape: Shape,
) -> CommandResult {
    let deadline_us = ctx.timeout(timeout, TimeoutUnit::Seconds)?;
    if pop_first(ctx, ctx.keys_to_try(keys.clone()), side, count, shape)? {
        return Ok(Outcome::Replied);
    }
    ctx.block(WaitForKeys::new(Wanted::SortedSet, keys, deadline_us))
}
