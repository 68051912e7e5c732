//! Delay queues: sorted sets whose scores are the Unix times at which their members are due.
//!
//! Latchkey's own commands; `docs/due.md` describes them. A member is due when its score, in
//! seconds or milliseconds, is not later than the wall clock, which stands still within a command.
//! Blocked clients sleep until the first member is due or an earlier one is added: each key has one
//! alarm for each unit (`keyspace/waiting.rs`).

use crate::keyspace::due::Unit;
use std::ops::Range;

use crate::collections::table::Slot;
use crate::command::list::limits;
use crate::command::stream::append;
use crate::command::timeout::TimeoutUnit;
use crate::config::KeyspaceEvents;
use crate::error::CommandError;
use crate::gate::keys::timeout_of_bzpopdue;
use crate::keyspace::Key;
use crate::resp::Protocol;
use crate::resp::args::Cursor;
use crate::state::context::{CommandResult, Context, Origin, Outcome, WaitForKeys};
use crate::state::spec::{
    Categories, CommandSpec, Flags, Group, KeyFlags, KeyRule, KeySpec, key, keys, spec,
};
use crate::types::journal::Edit;
use crate::types::list::{End, List};
use crate::types::sorted_set::{SortedSet, SortedSetView};

const MOVED_KEYS: &[KeySpec] = &[key(1, KeyFlags::RW_ACCESS_DELETE), key(2, KeyFlags::RW_INSERT)];

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    spec("ZPOPDUE", zpopdue).at_least(2).keys(&[key(1, KeyFlags::RW_ACCESS_DELETE)]).flags(Flags::WRITE_FAST).group(Group::SortedSet).since("0.2.0")
        .docs("key [COUNT count] [UNIT <S | MS>]", "Removes and returns the members whose score, a Unix time, is due.",
            "O(M log(N)) with N the size of the sorted set and M the number of members taken."),
    spec("BZPOPDUE", bzpopdue).key_rule(KeyRule::BeforeTimeout).at_least(3).keys(&[keys(1, -2, 1, KeyFlags::RW_ACCESS_DELETE)]).flags(Flags::WRITE_BLOCKING)
        .group(Group::SortedSet).since("0.2.0")
        .docs("key [key ...] timeout [UNIT <S | MS>]",
            "Removes and returns the first due member of the first sorted set that has one, or waits until one is due.",
            "O(K + log(N)) with K keys and N the size of the sorted set."),
    spec("BZMOVEDUE", bzmovedue).at_least(4).keys(MOVED_KEYS).categories(MOVED_INTO).flags(Flags::WRITE_BLOCKING.union(Flags::DENYOOM))
        .group(Group::SortedSet).since("0.2.0")
        .docs("source destination timeout [COUNT count] [LEFT | RIGHT | STREAM] [FIELD field] [UNIT <S | MS>]",
            "Moves due members from a sorted set to a list or stream, or waits until one is due.",
            "O(M log(N)) with N the size of the sorted set and M the number of members moved."),
    spec("ZMOVEDUE", zmovedue).at_least(3).keys(MOVED_KEYS).categories(MOVED_INTO).flags(Flags::WRITE.union(Flags::DENYOOM))
        .group(Group::SortedSet).since("0.2.0")
        .docs("source destination [COUNT count] [LEFT | RIGHT | STREAM] [FIELD field] [UNIT <S | MS>]",
            "Moves due members from a sorted set to a list or stream.",
            "O(M log(N)) with N the size of the sorted set and M the number of members moved."),
];

const MOVED_INTO: Categories = Categories::LIST.union(Categories::STREAM);

/// The most members that XREADGROUP moves in one command.
pub(in crate::command) const MOVED_MAX: usize = 1000;

/// A move of due members to a stream: `DUE key [UNIT <S | MS>] [FIELD field]`.
pub(in crate::command) struct DueMove<'a> {
    /// The index of the sorted set's key.
    pub key_at: usize,
    pub unit: Unit,
    /// The field that has the member as its value.
    pub field: &'a [u8],
}

impl DueMove<'_> {
    pub fn new(key_at: usize) -> Self {
        DueMove { key_at, unit: Unit::Seconds, field: b"data" }
    }
}

/// Options after the keys and the timeout.
struct Options<'a> {
    count: usize,
    has_count: bool,
    end: Option<End>,
    is_to_stream: bool,
    field: Option<&'a [u8]>,
    unit: Unit,
}

impl<'a> Options<'a> {
    /// Parses `[COUNT count] [LEFT | RIGHT | STREAM] [FIELD field] [UNIT <S | MS>]` in any order;
    /// those of the destination only if `ends`.
    fn parse(mut arguments: Cursor<'a>, ends: bool) -> Result<Self, CommandError> {
        let mut options = Options {
            count: 1,
            has_count: false,
            end: None,
            is_to_stream: false,
            field: None,
            unit: Unit::Seconds,
        };
        while !arguments.is_at_end() {
            if arguments.take_word("COUNT") {
                let count = arguments.take_integer()?;
                options.count = usize::try_from(count)
                    .ok()
                    .filter(|&count| count > 0)
                    .ok_or(CommandError::SMALL_COUNT)?;
                options.has_count = true;
            } else if arguments.take_word("UNIT") {
                options.unit = Unit::parse(arguments.take()?).ok_or(CommandError::Syntax)?;
            } else if ends && arguments.take_word("LEFT") {
                options.end = Some(End::Front);
            } else if ends && arguments.take_word("RIGHT") {
                options.end = Some(End::Back);
            } else if ends && arguments.take_word("STREAM") {
                options.is_to_stream = true;
            } else if ends && arguments.take_word("FIELD") {
                options.field = Some(arguments.take()?);
            } else {
                return Err(CommandError::Syntax);
            }
        }
        let (has_end, has_field) = (options.end.is_some(), options.field.is_some());
        if options.is_to_stream && has_end || has_field && !options.is_to_stream {
            return Err(CommandError::Syntax);
        }
        Ok(options)
    }

    /// The move to a stream that is asked for.
    fn to_stream(&self) -> Option<DueMove<'a>> {
        let plain = DueMove::new(1);
        let field = self.field.unwrap_or(plain.field);
        self.is_to_stream.then_some(DueMove { unit: self.unit, field, ..plain })
    }
}

/// How many members of a sorted set are due, up to `most`.
fn due_len(view: SortedSetView<'_>, unit: Unit, now_ms: i64, most: usize) -> usize {
    view.iter().take(most).take_while(|(score, _)| unit.due_ms(*score) <= now_ms).count()
}

fn wait(
    ctx: &mut Context<'_>,
    unit: Unit,
    keys: Range<usize>,
    deadline_us: Option<i64>,
) -> CommandResult {
    ctx.block(WaitForKeys::new(unit.wanted(), keys, deadline_us))
}

/// Adds a request with a key and these arguments to the effect.
fn repeat_with(ctx: &mut Context<'_>, name: &[u8], key: Key<'_>, arguments: Vec<Vec<u8>>) {
    ctx.instead_gathered(|_, request| {
        request.extend([name.to_vec(), key.bytes.to_vec()]);
        request.extend(arguments);
    });
}

/// Removes the first `count` members, after they were replied or copied.
fn take_out(ctx: &mut Context<'_>, slot: Slot, key: Key<'_>, count: usize) {
    let mut members = Vec::new();
    if ctx.is_heard()
        && let Ok(view) = ctx.core.keyspace.view::<SortedSet>(slot)
    {
        members.extend(view.iter().take(count).map(|(_, member)| member.as_ref().to_vec()));
    }
    ctx.core.keyspace.edit::<SortedSet, _>(slot, |set| set.remove_ranks(0..count));
    ctx.core.keyspace.changed(KeyspaceEvents::ZSET, "zrem", key.bytes);
    repeat_with(ctx, b"ZREM", key, members);
    ctx.core.keyspace.delete_if_empty::<SortedSet>(slot, key);
}

/// `ZPOPDUE key [COUNT count] [UNIT <S | MS>]`: members and scores, as ZPOPMIN replies them; an
/// empty array if none is due.
fn zpopdue(ctx: &mut Context<'_>) -> CommandResult {
    let options = Options::parse(ctx.args.cursor(2), false)?;
    let now_ms = ctx.core.state.now.unix().0;
    let key = ctx.key(1);
    let slot = ctx.core.keyspace.slot_of::<SortedSet>(key)?;
    let count = match slot {
        Some(slot) => {
            due_len(ctx.core.keyspace.view::<SortedSet>(slot)?, options.unit, now_ms, options.count)
        }
        None => 0,
    };
    let Some(slot) = slot.filter(|_| count > 0) else {
        ctx.reply.array(0);
        return Ok(Outcome::Replied);
    };
    let nested = options.has_count && ctx.reply.protocol() == Protocol::Resp3;
    ctx.reply.array(if nested { count } else { 2 * count });
    for (score, member) in ctx.core.keyspace.view::<SortedSet>(slot)?.iter().take(count) {
        if nested {
            ctx.reply.array(2);
        }
        ctx.reply.bulk(member.as_ref());
        ctx.reply.double(score);
    }
    take_out(ctx, slot, key, count);
    Ok(Outcome::Replied)
}

/// `BZPOPDUE key [key ...] timeout [UNIT <S | MS>]`: key, member and score, as BZPOPMIN replies
/// them; a nil array on timeout.
fn bzpopdue(ctx: &mut Context<'_>) -> CommandResult {
    let timeout = timeout_of_bzpopdue(ctx.args);
    let Options { unit, .. } = Options::parse(ctx.args.cursor(timeout + 1), false)?;
    let deadline_us = ctx.timeout(timeout, TimeoutUnit::Seconds)?;
    let now_ms = ctx.core.state.now.unix().0;
    for index in ctx.keys_to_try(1..timeout) {
        let key = ctx.key(index);
        let Some(slot) = ctx.core.keyspace.slot_of::<SortedSet>(key)? else { continue };
        let view = ctx.core.keyspace.view::<SortedSet>(slot)?;
        if let Some((score, member)) = view.first()
            && unit.due_ms(score) <= now_ms
        {
            ctx.reply.array(3);
            ctx.reply.bulk(key.bytes);
            ctx.reply.bulk(member.as_ref());
            ctx.reply.double(score);
            take_out(ctx, slot, key, 1);
            return Ok(Outcome::Replied);
        }
    }
    wait(ctx, unit, 1..timeout, deadline_us)
}

/// `BZMOVEDUE source destination timeout [COUNT count] [LEFT | RIGHT | STREAM] [FIELD field] [UNIT
/// <S | MS>]`: the number of moved members; a nil array on timeout. They are pushed one by one, the
/// earliest first, to the list's end (`RIGHT`) or front, or added to the stream. The destination is
/// only looked up when a member is due.
fn bzmovedue(ctx: &mut Context<'_>) -> CommandResult {
    let options = Options::parse(ctx.args.cursor(4), true)?;
    let deadline_us = ctx.timeout(3, TimeoutUnit::Seconds)?;
    match move_due(ctx, &options)? {
        0 => return wait(ctx, options.unit, 1..2, deadline_us),
        count => ctx.reply.integer(count as i64),
    }
    Ok(Outcome::Replied)
}

/// `ZMOVEDUE source destination [COUNT count] [LEFT | RIGHT | STREAM] [FIELD field] [UNIT <S |
/// MS>]`: as BZMOVEDUE without waiting.
fn zmovedue(ctx: &mut Context<'_>) -> CommandResult {
    let options = Options::parse(ctx.args.cursor(3), true)?;
    let count = move_due(ctx, &options)?;
    ctx.reply.integer(count as i64);
    Ok(Outcome::Replied)
}

/// Moves due members of the first key to the second; returns their number.
fn move_due(ctx: &mut Context<'_>, options: &Options<'_>) -> Result<usize, CommandError> {
    if let Some(due) = options.to_stream() {
        let destination = ctx.key(2);
        return move_to_stream(ctx, &due, destination, options.count);
    }
    let end = options.end.unwrap_or(End::Back);
    let now_ms = ctx.core.state.now.unix().0;
    let (source, destination) = (ctx.key(1), ctx.key(2));
    let slot = ctx.core.keyspace.slot_of::<SortedSet>(source)?;
    let count = match slot {
        Some(slot) => {
            due_len(ctx.core.keyspace.view::<SortedSet>(slot)?, options.unit, now_ms, options.count)
        }
        None => 0,
    };
    let Some(slot) = slot.filter(|_| count > 0) else { return Ok(0) };
    // If source and destination are the same key, it is not a list.
    let found = ctx.core.keyspace.slot_of::<List>(destination)?;
    let view = ctx.core.keyspace.view::<SortedSet>(slot)?;
    let members: Vec<Vec<u8>> =
        view.iter().take(count).map(|(_, member)| member.as_ref().to_vec()).collect();
    let limits = limits(ctx);
    let push = |list: &mut Edit<'_, List>| {
        members.iter().for_each(|member| list.push(end, member, &limits));
    };
    match found {
        Some(slot) => ctx.core.keyspace.edit::<List, _>(slot, push),
        None => {
            let mut list = List::default();
            push(&mut Edit::unnoted(&mut list));
            ctx.core.keyspace.insert_collection(destination, list);
        }
    }
    let event = if end == End::Front { "lpush" } else { "rpush" };
    ctx.core.keyspace.changed(KeyspaceEvents::LIST, event, destination.bytes);
    let command = if end == End::Front { &b"LPUSH"[..] } else { b"RPUSH" };
    repeat_with(ctx, command, destination, members);
    // Looked up again, as the list may have moved it.
    if let Some(slot) = ctx.core.keyspace.slot_of::<SortedSet>(source)? {
        take_out(ctx, slot, source, count);
    }
    Ok(count)
}

/// Moves due members, the earliest first and at most `most`, to the end of a stream, each as an
/// entry with one field. Returns their number. A key that is no sorted set has none.
pub(in crate::command) fn move_to_stream(
    ctx: &mut Context<'_>,
    due: &DueMove<'_>,
    destination: Key<'_>,
    most: usize,
) -> Result<usize, CommandError> {
    let (source, now_ms) = (ctx.key(due.key_at), ctx.core.state.now.unix().0);
    let found = ctx.core.keyspace.find_for_write(source);
    let view = found.map(|slot| ctx.core.keyspace.view::<SortedSet>(slot));
    let members: Vec<Vec<u8>> = match view {
        Some(Ok(view)) => {
            let count = due_len(view, due.unit, now_ms, most);
            view.iter().take(count).map(|(_, member)| member.as_ref().to_vec()).collect()
        }
        Some(Err(error)) if !matches!(ctx.origin, Origin::Woken(_)) => return Err(error),
        _ => return Ok(0),
    };
    let mut moved = 0;
    let mut failed = None;
    for member in &members {
        if let Err(error) = append(ctx, destination, &[due.field, member]) {
            failed = Some(error);
            break;
        }
        moved += 1;
    }
    // Looked up again, as the stream may have moved it.
    if moved > 0
        && let Some(slot) = ctx.core.keyspace.slot_of::<SortedSet>(source)?
    {
        take_out(ctx, slot, source, moved);
    }
    match failed {
        Some(error) if moved == 0 => Err(error),
        _ => Ok(moved),
    }
}
