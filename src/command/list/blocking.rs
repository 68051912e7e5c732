//! Lists: commands that wait until there is an element.
//!
//! Each works like the non-blocking command in `list/mod.rs` if there is a list, and blocks
//! otherwise. When a key has become a list, the command runs again for that key alone
//! (`waiting/mod.rs`); the timeout counts from the first time.

use crate::command::list::{
    MOVE, MultiPop, list_spec, move_one, parse_end, pop_command, pop_named_array, pop_one,
};
use crate::command::timeout::TimeoutUnit;
use crate::keyspace::waiting::Wanted;
use crate::state::context::{CommandResult, Context, Origin, Outcome, WaitForKeys};
use crate::state::spec::{CommandSpec, Flags, Handler, KeyFlags, KeySpec, counted_keys, keys};
use crate::types::list::{End, List};

/// Keys up to the timeout.
const ALL_BUT_LAST: &[KeySpec] = &[keys(1, -2, 1, KeyFlags::RW_ACCESS_DELETE)];
const MOVE_FLAGS: Flags =
    Flags::WRITE_BLOCKING.union(Flags::DENYOOM).union(Flags::NO_SCRIPT_BEFORE_7_2);

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    blocking_pop("BLPOP", blpop)
        .docs("key [key ...] timeout", "Removes and returns the first element of the first list that exists, or waits for one.",
            "O(N) where N is the number of keys"),
    blocking_pop("BRPOP", brpop)
        .docs("key [key ...] timeout", "Removes and returns the last element of the first list that exists, or waits for one.",
            "O(N) where N is the number of keys"),
    list_spec("BLMOVE", blmove, "6.2.0", MOVE_FLAGS).exactly(6).keys(MOVE)
        .docs("source destination <LEFT | RIGHT> <LEFT | RIGHT> timeout", "Moves an element from an end of a list to an end of another, or waits for one.",
            "O(1)"),
    list_spec("BRPOPLPUSH", brpoplpush, "2.2.0", MOVE_FLAGS).exactly(4).keys(MOVE).deprecated("6.2.0", "`BLMOVE` with the `RIGHT` and `LEFT` arguments")
        .docs("source destination timeout", "Moves the last element of a list to the front of another, or waits for one.", "O(1)"),
    list_spec("BLMPOP", blmpop, "7.0.0", Flags::WRITE_BLOCKING).at_least(5).keys(&[counted_keys(2, KeyFlags::RW_ACCESS_DELETE)])
        .docs("timeout numkeys key [key ...] <LEFT | RIGHT> [COUNT count]", "Removes and returns elements of the first list that exists, or waits for one.",
            "O(N+M) where N is the number of keys and M that of the elements"),
];

const fn blocking_pop(name: &'static str, handler: Handler) -> CommandSpec {
    list_spec(name, handler, "2.0.0", Flags::WRITE_BLOCKING.union(Flags::NO_SCRIPT_BEFORE_7_2))
        .at_least(3)
        .keys(ALL_BUT_LAST)
}

/// `BLPOP key [key ...] timeout`: the key and the element; a nil array when the time is up.
fn blpop(ctx: &mut Context<'_>) -> CommandResult {
    pop_or_wait(ctx, End::Front)
}

/// `BRPOP key [key ...] timeout`: the key and the element; a nil array when the time is up.
fn brpop(ctx: &mut Context<'_>) -> CommandResult {
    pop_or_wait(ctx, End::Back)
}

fn pop_or_wait(ctx: &mut Context<'_>, end: End) -> CommandResult {
    let last = ctx.args.len() - 1;
    let deadline_us = ctx.timeout(last, TimeoutUnit::Seconds)?;
    for index in ctx.keys_to_try(1..last) {
        let key = ctx.key(index);
        if let Some(slot) = ctx.core.keyspace.slot_of::<List>(key)? {
            ctx.reply.array(2);
            ctx.reply.bulk(key.bytes);
            pop_one(ctx, slot, key, end);
            ctx.instead(&[pop_command(end), key.bytes]);
            return Ok(Outcome::Replied);
        }
    }
    wait(ctx, 1..last, deadline_us)
}

fn wait(
    ctx: &mut Context<'_>,
    keys: std::ops::Range<usize>,
    deadline_us: Option<i64>,
) -> CommandResult {
    ctx.block(WaitForKeys::new(Wanted::List, keys, deadline_us))
}

/// `BLMOVE source destination <LEFT | RIGHT> <LEFT | RIGHT> timeout`: the element; a nil array when
/// the time is up.
fn blmove(ctx: &mut Context<'_>) -> CommandResult {
    let (from, to) = (parse_end(ctx.args.get(3))?, parse_end(ctx.args.get(4))?);
    move_or_wait(ctx, from, to, 5)
}

/// `BRPOPLPUSH source destination timeout`: the element; a nil array when the time is up.
fn brpoplpush(ctx: &mut Context<'_>) -> CommandResult {
    move_or_wait(ctx, End::Back, End::Front, 3)
}

/// The destination is only looked up when there is an element for it. If blocking is not allowed,
/// the reply is LMOVE's.
fn move_or_wait(ctx: &mut Context<'_>, from: End, to: End, timeout: usize) -> CommandResult {
    let deadline_us = ctx.timeout(timeout, TimeoutUnit::Seconds)?;
    match ctx.core.keyspace.slot_of::<List>(ctx.key(1))? {
        Some(source) => {
            let outcome = move_one(ctx, source, from, to)?;
            repeat_move(ctx, from, to, timeout);
            Ok(outcome)
        }
        None if ctx.may_wait() => wait(ctx, 1..2, deadline_us),
        None => {
            ctx.reply.null();
            Ok(Outcome::Replied)
        }
    }
}

/// Sets the effect: the move without timeout, as LMOVE if requested so, or RPOPLPUSH.
fn repeat_move(ctx: &mut Context<'_>, from: End, to: End, timeout: usize) {
    let (source, destination) = (ctx.args.get(1), ctx.args.get(2));
    if timeout == 3 {
        return ctx.instead(&[b"RPOPLPUSH", source, destination]);
    }
    let word = |end| if end == End::Front { &b"left"[..] } else { b"right" };
    let ends = match ctx.origin {
        // As Redis does after blocking.
        Origin::Woken(_) => (word(from), word(to)),
        _ => (ctx.args.get(3), ctx.args.get(4)),
    };
    ctx.instead(&[b"LMOVE", source, destination, ends.0, ends.1]);
}

/// `BLMPOP timeout numkeys key [key ...] <LEFT | RIGHT> [COUNT count]`: the key and an array of
/// elements; a nil array when the time is up.
fn blmpop(ctx: &mut Context<'_>) -> CommandResult {
    let MultiPop { keys, end, count } = MultiPop::parse(ctx.args, 2)?;
    let deadline_us = ctx.timeout(1, TimeoutUnit::Seconds)?;
    for index in ctx.keys_to_try(keys.clone()) {
        let key = ctx.key(index);
        if let Some(slot) = ctx.core.keyspace.slot_of::<List>(key)? {
            pop_named_array(ctx, slot, key, end, count);
            return Ok(Outcome::Replied);
        }
    }
    wait(ctx, keys, deadline_us)
}
