//! LOCK.MACQUIRE: several locks at once. A waiting client holds none of them and has a place in the
//! queue of each. One order of places serves all keys, so no two such clients can wait for each
//! other.

use super::{
    Acquire, TOO_MANY_HOLDS, Waiting, Waits, check_room, find, grants_nothing_now, is_held_back,
    is_plain, leave_place, leave_to_confirm, longer_lease, ms_left, note_held, prolong, review,
    shared, take_keys, wait, write, write_grant,
};
use crate::client::acks::{Confirmed, Grant};
use crate::error::CommandError;
use crate::keyspace::Key;
use crate::keyspace::waiting::Wanted;
use crate::state::context::{CommandResult, Context, Origin, Outcome};
use crate::types::lock::Lock;
use crate::waiting::acks;
use std::ops::Range;

/// Locks that one request may take. A client that waits for several checks all of them when one
/// changes.
const KEYS_MAX: usize = 100;
const TOO_MANY_KEYS: CommandError = CommandError::Text("ERR a request takes 100 locks at most");
const DUPLICATE_KEYS: CommandError = CommandError::Text("ERR a key is named twice");

/// The reason why not all locks can be granted: the first key that is not free.
struct Obstacle<'a> {
    key: Key<'a>,
    /// -1: the lease does not end, or nobody holds the lock and other clients have waited for it
    /// longer.
    ms_left: i64,
    /// Empty: nobody.
    holder: Vec<u8>,
    /// The owner itself is one of several readers: a client that has waited for longer may wait for
    /// it.
    is_own: bool,
}

impl<'a> Obstacle<'a> {
    /// A lock that nobody holds.
    fn nobody(key: Key<'a>) -> Self {
        Obstacle { key, ms_left: -1, holder: Vec::new(), is_own: false }
    }
}

/// `LOCK.MACQUIRE numkeys key [key ...] owner PX ms [BLOCK ms | ASYNC ms] [SESSION GRACE ms]
/// [REENTRANT [MAXHOLDS n]] [REPLICAS n ms]`: an array of one fence for all and the milliseconds
/// left; if they are not granted, of 0, the first key that is held, the milliseconds left of its
/// lease and its holder.
pub(super) fn macquire(ctx: &mut Context<'_>) -> CommandResult {
    let mut arguments = ctx.args.cursor(1);
    let keys = take_keys(&mut arguments)?;
    let asked = Acquire::parse(ctx, arguments, "lock.macquire")?;
    if asked.is_shared {
        return Err(CommandError::Syntax);
    }
    if keys.len() > KEYS_MAX {
        return Err(TOO_MANY_KEYS);
    }
    let mut names: Vec<&[u8]> = keys.clone().map(|index| ctx.args.get(index)).collect();
    names.sort_unstable();
    if names.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(DUPLICATE_KEYS);
    }
    for index in keys.clone() {
        let key = ctx.key(index);
        find(ctx, key, asked.owner)?;
    }
    // The former holders may have lost these locks, which may then be withheld from all clients for
    // a time.
    review(ctx);
    let mut obstacle = obstacle(ctx, keys.clone(), &asked)?;
    if obstacle.is_none() && grants_nothing_now(ctx) {
        obstacle = Some(Obstacle::nobody(ctx.key(keys.start)));
    }
    if obstacle.is_none() && is_held_back(ctx, &asked, keys.clone()) {
        if asked.waits == Waits::Not {
            return Err(acks::NO_REPLICAS);
        }
        obstacle = Some(Obstacle::nobody(ctx.key(keys.start)));
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
    let fence = ctx.core.keyspace.locks.fences.grant();
    let (all, mut taken, mut replaced) = (keys.clone(), Vec::new(), Vec::new());
    for index in keys {
        let key = ctx.key(index);
        let (slot, lock) = find(ctx, key, asked.owner)?;
        let Some((slot, lock)) = slot.zip(lock) else {
            let deadline = ctx.core.keyspace.now().after(asked.lease_ms);
            write_grant(ctx, key, slot, &asked, fence, deadline);
            taken.push(key.bytes.into());
            continue;
        };
        let before = shared::former(ctx, key, slot);
        // A lock that the owner already holds keeps its session and a longer lease; the only reader
        // becomes the writer.
        if lock.readers > 0 {
            shared::grant_alone(ctx, key, slot, &lock, &asked, fence);
            replaced.push(shared::note_replaced(ctx, key, fence, before));
            continue;
        }
        let old = ctx.core.keyspace.entry(slot).deadline();
        let deadline = longer_lease(ctx, old, asked.lease_ms);
        let again = Lock {
            holds: lock.holds + i64::from(asked.holds_max.is_some()),
            fence: Some(fence),
            session: asked.session().or(lock.session),
            ..lock
        };
        write(ctx, key, Some(slot), &again, deadline);
        note_held(ctx, key, fence, &again);
        replaced.push(shared::note_replaced(ctx, key, fence, before));
    }
    leave_place(ctx, Wanted::Lock, all.clone());
    if is_plain(ctx, &asked) {
        reply_granted(ctx, fence, asked.lease_ms);
        return Ok(Outcome::Replied);
    }
    let counted_hold = asked.holds_max.is_some();
    let granted = Grant::of(fence, Confirmed::Locks);
    let granted = Grant { taken, counted_hold, former: replaced, ..granted };
    Ok(leave_to_confirm(ctx, all, &asked, asked.lease_ms, granted))
}

/// The first key whose lock another owner has, or else the first for which other clients wait
/// already. Errors: WRONGTYPE, or a lock has reached its limit of holds.
fn obstacle<'a>(
    ctx: &mut Context<'a>,
    keys: Range<usize>,
    asked: &Acquire<'_>,
) -> Result<Option<Obstacle<'a>>, CommandError> {
    let (database, own_id) = (ctx.core.keyspace.selected(), ctx.caller.client());
    let (mut held, mut awaited) = (None, None);
    for index in keys {
        let key = ctx.key(index);
        match find(ctx, key, asked.owner)? {
            (Some(slot), Some(lock)) if lock.is_held_by(asked.owner, None) && !lock.is_string => {
                if lock.readers > 1 {
                    let ms_left = ms_left(ctx, slot);
                    let holder = shared::other_reader(ctx, key, asked.owner);
                    return Ok(Some(Obstacle { key, ms_left, holder, is_own: true }));
                }
                if lock.readers == 0 && asked.holds_max.is_some_and(|most| lock.holds >= most) {
                    return Err(TOO_MANY_HOLDS);
                }
            }
            (Some(slot), Some(lock)) => {
                let ms_left = ms_left(ctx, slot);
                let holder = lock.owner.into_owned();
                held = held.or(Some(Obstacle { key, ms_left, holder, is_own: false }));
            }
            _ => {
                let waiting = &ctx.core.keyspace.waiting;
                let first = waiting.first(database, key.bytes, Wanted::Lock);
                let first = first.and_then(|ticket| ctx.core.state.waits.get(ticket));
                let is_its_turn = match ctx.origin {
                    Origin::Woken(_) => first.is_some_and(|wait| Some(wait.client) == own_id),
                    _ => first.is_none(),
                };
                if !is_its_turn {
                    awaited = awaited.or(Some(Obstacle::nobody(key)));
                }
            }
        }
    }
    Ok(held.or(awaited))
}

/// The fence of the one grant by which the owner already holds all locks; None if holds are
/// counted.
fn common_fence(
    ctx: &mut Context<'_>,
    keys: Range<usize>,
    asked: &Acquire<'_>,
) -> Result<Option<u64>, CommandError> {
    let mut common = None;
    for index in keys {
        let key = ctx.key(index);
        let (_, lock) = find(ctx, key, asked.owner)?;
        // A reader's grant does not count: it is a different one.
        let fence = lock.filter(|lock| lock.readers == 0).and_then(|lock| lock.fence);
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
    for index in keys.clone() {
        let key = ctx.key(index);
        let (Some(slot), _) = find(ctx, key, asked.owner)? else { continue };
        let before = shared::former(ctx, key, slot);
        prolong(ctx, key, slot, asked.lease_ms);
        shared::note_replaced(ctx, key, fence, before);
        least_ms_left = least_ms_left.min(ms_left(ctx, slot));
    }
    if is_plain(ctx, asked) {
        reply_granted(ctx, fence, least_ms_left);
        return Ok(Outcome::Replied);
    }
    let granted = Grant::of(fence, Confirmed::Locks);
    Ok(leave_to_confirm(ctx, keys, asked, least_ms_left, granted))
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
    let is_hopeless = obstacle.is_own && ctx.origin == Origin::Client;
    let waits = (if is_hopeless { Waits::Not } else { asked.waits }, asked.grace_ms);
    let outcome = match wait(ctx, Wanted::Lock, keys, waits, obstacle.key)? {
        Waiting::Blocked(waits) => return waits,
        Waiting::Async(wait) => Outcome::Waits(wait),
        Waiting::Not => Outcome::Replied,
    };
    ctx.reply.array(4);
    ctx.reply.integer(0);
    ctx.reply.bulk(obstacle.key.bytes);
    ctx.reply.integer(obstacle.ms_left);
    ctx.reply.bulk(&obstacle.holder);
    Ok(outcome)
}
