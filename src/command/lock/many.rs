//! LOCK.MACQUIRE: several locks at once. A client that waits for them holds none meanwhile; its place counts in the queue of
//! each. As places are given in one order for all keys, no two such clients can keep each other waiting.

use super::{
    Acquire, TOO_MANY_HOLDS, check_room, ends_in_vain, find, longer_lease, ms_left, note_held,
    prolong, take_keys, wait, write, write_grant,
};
use crate::error::CommandError;
use crate::gate::locks;
use crate::keyspace::Key;
use crate::keyspace::waiting::Wanted;
use crate::state::context::{CommandResult, Context, Origin, Outcome};
use crate::types::lock::Lock;
use std::ops::Range;

/// Locks that one request may take. A client that waits for several looks at all when one changes.
const KEYS_MAX: usize = 100;
const TOO_MANY_KEYS: CommandError = CommandError::Text("ERR a request takes 100 locks at most");
const DUPLICATE_KEYS: CommandError = CommandError::Text("ERR a key is named twice");

/// Why not all locks can be granted: the first key in the way.
struct Obstacle<'a> {
    key: Key<'a>,
    /// -1: the lease does not end, or nobody holds the lock and others have waited for it longer.
    ms_left: i64,
    /// Empty: nobody.
    holder: Vec<u8>,
}

/// `LOCK.MACQUIRE numkeys key [key ...] owner PX ms [BLOCK ms] [SESSION GRACE ms]
/// [REENTRANT [MAXHOLDS n]]`: an array of one fence for all and the milliseconds left; if they are
/// not granted, of 0, the first key that is held, the milliseconds left of its lease and its holder.
pub(super) fn macquire(ctx: &mut Context<'_>) -> CommandResult {
    let mut arguments = ctx.args.cursor(1);
    let keys = take_keys(&mut arguments)?;
    let asked = Acquire::parse(ctx, arguments, "lock.macquire")?;
    if keys.len() > KEYS_MAX {
        return Err(TOO_MANY_KEYS);
    }
    let mut names: Vec<&[u8]> = keys.clone().map(|index| ctx.args.get(index)).collect();
    names.sort_unstable();
    if names.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(DUPLICATE_KEYS);
    }
    let mut obstacle = obstacle(ctx, keys.clone(), &asked)?;
    if obstacle.is_none() && ends_in_vain(ctx) {
        obstacle = Some(Obstacle { key: ctx.key(keys.start), ms_left: -1, holder: Vec::new() });
    }
    if let Some(obstacle) = obstacle {
        return refuse(ctx, keys, &asked, obstacle);
    }
    if let Some(fence) = common_fence(ctx, keys.clone(), &asked)? {
        return grant_again(ctx, keys, &asked, fence);
    }
    if !matches!(ctx.origin, Origin::Woken(_)) {
        check_room(ctx)?;
    }
    // Whoever held them until now has lost them.
    locks::review(ctx.keyspace, ctx.state);
    let fence = ctx.keyspace.locks.fences.grant();
    for index in keys {
        let key = ctx.key(index);
        let (slot, lock) = find(ctx, key, asked.owner)?;
        let Some((slot, lock)) = slot.zip(lock) else {
            let deadline = ctx.keyspace.now().after(asked.lease_ms);
            write_grant(ctx, key, slot, &asked, fence, deadline);
            continue;
        };
        // One that the owner holds already keeps its session and a longer lease.
        let old = ctx.keyspace.entry(slot).deadline();
        let deadline = longer_lease(ctx, old, asked.lease_ms);
        let again = Lock {
            holds: lock.holds + i64::from(asked.holds_max.is_some()),
            fence: Some(fence),
            session: asked.session().or(lock.session),
            ..lock
        };
        write(ctx, key, Some(slot), &again, deadline);
        note_held(ctx, key, fence, &again);
    }
    reply_granted(ctx, fence, asked.lease_ms);
    Ok(Outcome::Replied)
}

/// The first key whose lock another owner has, or else the first for which others wait already.
/// Errors: WRONGTYPE, or one is held as often as it may be.
fn obstacle<'a>(
    ctx: &mut Context<'a>,
    keys: Range<usize>,
    asked: &Acquire<'_>,
) -> Result<Option<Obstacle<'a>>, CommandError> {
    let (database, own_id) = (ctx.keyspace.selected(), ctx.caller.client());
    let (mut held, mut awaited) = (None, None);
    for index in keys {
        let key = ctx.key(index);
        match find(ctx, key, asked.owner)? {
            (Some(_), Some(lock)) if lock.is_held_by(asked.owner, None) && !lock.is_string => {
                if asked.holds_max.is_some_and(|most| lock.holds >= most) {
                    return Err(TOO_MANY_HOLDS);
                }
            }
            (Some(slot), Some(lock)) => {
                let ms_left = ms_left(ctx, slot);
                let holder = lock.owner.into_owned();
                held = held.or(Some(Obstacle { key, ms_left, holder }));
            }
            _ => {
                let waiting = &ctx.keyspace.waiting;
                let first = waiting.next_after(database, key.bytes, Wanted::Lock, 0);
                let is_its_turn = match ctx.origin {
                    Origin::Woken(_) => first.is_some_and(|(_, id)| Some(id) == own_id),
                    _ => first.is_none(),
                };
                if !is_its_turn {
                    let holder = Vec::new();
                    awaited = awaited.or(Some(Obstacle { key, ms_left: -1, holder }));
                }
            }
        }
    }
    Ok(held.or(awaited))
}

/// The fence of a grant by which the owner holds all locks already; not if holds are counted.
fn common_fence(
    ctx: &mut Context<'_>,
    keys: Range<usize>,
    asked: &Acquire<'_>,
) -> Result<Option<u64>, CommandError> {
    let mut common = None;
    for index in keys {
        let key = ctx.key(index);
        let (_, lock) = find(ctx, key, asked.owner)?;
        let fence = lock.and_then(|lock| lock.fence);
        if fence.is_none() || asked.holds_max.is_some() || common.is_some_and(|it| it != fence) {
            return Ok(None);
        }
        common = Some(fence);
    }
    Ok(common.flatten())
}

/// A retry: the same grant, whose leases are never shortened.
fn grant_again(
    ctx: &mut Context<'_>,
    keys: Range<usize>,
    asked: &Acquire<'_>,
    fence: u64,
) -> CommandResult {
    let mut least_ms_left = i64::MAX;
    for index in keys {
        let key = ctx.key(index);
        let (Some(slot), _) = find(ctx, key, asked.owner)? else { continue };
        prolong(ctx, key, slot, asked.lease_ms);
        least_ms_left = least_ms_left.min(ms_left(ctx, slot));
    }
    reply_granted(ctx, fence, least_ms_left);
    Ok(Outcome::Replied)
}

fn reply_granted(ctx: &mut Context<'_>, fence: u64, ms_left: i64) {
    ctx.reply.array(2);
    ctx.reply.integer(fence as i64);
    ctx.reply.integer(ms_left);
}

fn refuse(
    ctx: &mut Context<'_>,
    keys: Range<usize>,
    asked: &Acquire<'_>,
    obstacle: Obstacle<'_>,
) -> CommandResult {
    if let Some(waits) = wait(ctx, Wanted::Lock, keys, asked.wait_until_us, obstacle.key) {
        return waits;
    }
    ctx.reply.array(4);
    ctx.reply.integer(0);
    ctx.reply.bulk(obstacle.key.bytes);
    ctx.reply.integer(obstacle.ms_left);
    ctx.reply.bulk(&obstacle.holder);
    Ok(Outcome::Replied)
}
