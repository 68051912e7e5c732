//! ZMOVE, BZMOVE and ZMOVEMEMBER: a member is moved to another sorted set, with its score.

use crate::collections::table::Slot;
use crate::command::sorted_set::limits;
use crate::command::timeout::TimeoutUnit;
use crate::config::KeyspaceEvents;
use crate::error::CommandError;
use crate::keyspace::waiting::Wanted;
use crate::resp::number;
use crate::state::context::{CommandResult, Context, Outcome, WaitForKeys};
use crate::state::spec::{CommandSpec, Flags, Group, KeyFlags, KeySpec, key, spec};
use crate::types::journal::Edit;
use crate::types::sorted_set::SortedSet;

const MOVED_KEYS: &[KeySpec] = &[key(1, KeyFlags::RW_ACCESS_DELETE), key(2, KeyFlags::RW_INSERT)];
const COST: &str = "O(log(N)) with N the size of the larger sorted set.";

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    spec("ZMOVE", zmove).exactly(4).keys(MOVED_KEYS).flags(Flags::WRITE_DENYOOM_FAST).group(Group::SortedSet).since("8.12.0")
        .docs("source destination <MIN | MAX>", "Moves the member with the lowest or highest score to another sorted set.", COST),
    spec("BZMOVE", bzmove).exactly(5).keys(MOVED_KEYS).flags(Flags::WRITE_BLOCKING.union(Flags::DENYOOM)).group(Group::SortedSet).since("8.12.0")
        .docs("source destination <MIN | MAX> timeout", "Moves the member with the lowest or highest score to another sorted set, or waits for one.", COST),
    spec("ZMOVEMEMBER", zmovemember).exactly(4).keys(MOVED_KEYS).flags(Flags::WRITE_DENYOOM_FAST).group(Group::SortedSet).since("8.12.0")
        .docs("source destination member", "Moves a member to another sorted set.", COST),
];

/// Which member is moved.
enum Chosen<'a> {
    Lowest,
    Highest,
    Named(&'a [u8]),
}

impl<'a> Chosen<'a> {
    fn side(word: &'a [u8]) -> Result<Self, CommandError> {
        match () {
            () if word.eq_ignore_ascii_case(b"MIN") => Ok(Chosen::Lowest),
            () if word.eq_ignore_ascii_case(b"MAX") => Ok(Chosen::Highest),
            () => Err(CommandError::Syntax),
        }
    }

    /// Moves the member, with its score, from the first key to the second. None: there is no such
    /// member, or both keys are the same one.
    fn run(&self, ctx: &mut Context<'_>) -> Result<Option<(f64, Vec<u8>)>, CommandError> {
        let (source, target) = (ctx.key(1), ctx.key(2));
        let Some(slot) = ctx.core.keyspace.slot_of::<SortedSet>(source)? else { return Ok(None) };
        let destination = ctx.core.keyspace.slot_of::<SortedSet>(target)?;
        let view = ctx.core.keyspace.view::<SortedSet>(slot)?;
        let found = match self {
            Chosen::Lowest => view.first().map(|(score, member)| (score, member.as_ref().to_vec())),
            Chosen::Highest => {
                let last = view.get(view.len() - 1);
                last.map(|(score, member)| (score, member.as_ref().to_vec()))
            }
            Chosen::Named(member) => view.score(member).map(|score| (score, member.to_vec())),
        };
        let Some((score, member)) = found.filter(|_| destination != Some(slot)) else {
            return Ok(None);
        };
        let remove = |set: &mut Edit<'_, SortedSet>| set.remove(&member);
        ctx.core.keyspace.edit::<SortedSet, _>(slot, remove);
        ctx.core.keyspace.changed(KeyspaceEvents::ZSET, "zrem", source.bytes);
        put(ctx, destination, score, &member);
        ctx.core.keyspace.changed_by(0, KeyspaceEvents::ZSET, "zadd", target.bytes);
        let text = number::format_double_17g(score);
        ctx.instead(&[b"ZADD", target.bytes, text.as_ref(), &member]);
        ctx.instead(&[b"ZREM", source.bytes, &member]);
        // A new destination may have moved the source.
        if let Some(slot) = ctx.core.keyspace.find(source) {
            ctx.core.keyspace.delete_if_empty::<SortedSet>(slot, source);
        }
        Ok(Some((score, member)))
    }
}

/// Adds a member to the second key's sorted set.
fn put(ctx: &mut Context<'_>, found: Option<Slot>, score: f64, member: &[u8]) {
    let limits = limits(ctx);
    match found {
        Some(slot) => {
            let add = |set: &mut Edit<'_, SortedSet>| set.insert(score, member, limits);
            ctx.core.keyspace.edit::<SortedSet, _>(slot, add);
        }
        None => {
            let mut set = SortedSet::new();
            Edit::unnoted(&mut set).insert(score, member, limits);
            ctx.core.keyspace.insert_collection(ctx.key(2), set);
        }
    }
}

fn reply(ctx: &mut Context<'_>, (score, member): (f64, Vec<u8>)) -> CommandResult {
    ctx.reply.array(2);
    ctx.reply.bulk(&member);
    ctx.reply.double(score);
    Ok(Outcome::Replied)
}

/// `ZMOVE source destination <MIN | MAX>`: the member and its score, or a nil array.
fn zmove(ctx: &mut Context<'_>) -> CommandResult {
    match Chosen::side(ctx.args.get(3))?.run(ctx)? {
        Some(moved) => reply(ctx, moved),
        None => {
            ctx.reply.null_array();
            Ok(Outcome::Replied)
        }
    }
}

/// `BZMOVE source destination <MIN | MAX> timeout`: the same; a nil array when the time is up, and
/// at once if both keys are the same one.
fn bzmove(ctx: &mut Context<'_>) -> CommandResult {
    let chosen = Chosen::side(ctx.args.get(3))?;
    let deadline_us = ctx.timeout(4, TimeoutUnit::Seconds)?;
    if let Some(moved) = chosen.run(ctx)? {
        return reply(ctx, moved);
    }
    if ctx.args.get(1) == ctx.args.get(2) {
        ctx.reply.null_array();
        return Ok(Outcome::Replied);
    }
    ctx.block(WaitForKeys::new(Wanted::SortedSet, 1..2, deadline_us))
}

/// `ZMOVEMEMBER source destination member`: 1, or 0 if there is no such member, or both keys are
/// the same one.
fn zmovemember(ctx: &mut Context<'_>) -> CommandResult {
    let moved = Chosen::Named(ctx.args.get(3)).run(ctx)?;
    ctx.reply.integer(moved.is_some().into());
    Ok(Outcome::Replied)
}
