//! LOCK.ACQUIRE SHARED: locks that several owners hold for reading.
//!
//! Readers and writers wait in one queue. A request for reading waits if any request waits already,
//! so that writers are not starved. Adjacent readers in the queue are granted the lock together.
//! The only reader may become the writer; one of several waits for the others at the head of the
//! queue. LOCK.DOWNGRADE makes the writer a reader.

use super::{
    Acquire, NO_LOCK, NOT_YOURS, Waiting, Waits, answer, bind, find, grant, grants_nothing_now,
    has_its_turn_later, is_held_back, leave_place, longer_lease, ms_left, needs_acks_that_failed,
    note_granted, note_held, note_holding, remove_fields, reply_refused, take_grant, wait_in_place,
    write_alone,
};
use crate::clock::Deadline;
use crate::collections::table::Slot;
use crate::config::KeyspaceEvents;
use crate::gate::locks::{self, Ending};
use crate::gate::readers::{self, Change};
use crate::gate::sessions;
use crate::keyspace::Key;
use crate::keyspace::lock_history::HoldingEnd;
use crate::keyspace::locks::{At, EndReason, Former, Held};
use crate::keyspace::waiting::Wanted;
use crate::state::context::{CommandResult, Context, Effect, Origin, Outcome};
use crate::types::hash::Hash;
use crate::types::lock::{FENCE, LEASE_MS_MAX, Lock, READERS_MAX};
use crate::waiting::acks;

/// Whether an owner that asks to read becomes one of the readers of a lock.
pub(super) fn may_join(
    ctx: &Context<'_>,
    key: Key<'_>,
    lock: &Lock<'_>,
    asked: &Acquire<'_>,
) -> bool {
    asked.is_shared
        && (1..READERS_MAX).contains(&lock.readers)
        && !has_its_turn_later(ctx, key, Wanted::Lock)
}

/// Makes an owner the first reader of a lock that nobody holds, or one more.
pub(super) fn write_grant(
    ctx: &mut Context<'_>,
    key: Key<'_>,
    asked: &Acquire<'_>,
    fence: u64,
    until: Deadline,
) {
    let at = At::reader(ctx.core.keyspace.selected(), key.bytes, asked.owner);
    note_reader(ctx, at, fence, asked.session(), until);
    // A hash without an owner may have been evicted just now.
    let slot = ctx.core.keyspace.find_for_write(key);
    readers::write(ctx.core, at, slot, Change::Granted);
    ctx.effect = Effect::Instead;
    note_granted(ctx, at, fence);
}

/// Adds a reader to the index, bound to the calling client.
fn note_reader(
    ctx: &mut Context<'_>,
    at: At<'_>,
    fence: u64,
    session: Option<(i64, i64)>,
    until: Deadline,
) {
    let held = Held::new(fence, ctx.core.state.now.boot_us);
    let held = held.read_until(until, Some(ctx.core.state.now.unix().0));
    note_holding(ctx, at, held, (at.reader.unwrap_or_default(), session));
}

/// Grants a reader the lock again: the same grant, whose lease is never shortened.
pub(super) fn grant_again(
    ctx: &mut Context<'_>,
    key: Key<'_>,
    slot: Slot,
    lock: &Lock<'_>,
    asked: &Acquire<'_>,
) -> CommandResult {
    let at = At::reader(ctx.core.keyspace.selected(), key.bytes, asked.owner);
    let before = ctx.core.keyspace.locks.get(at).cloned();
    let Some((before, old)) = before.and_then(|held| held.until().map(|until| (held, until)))
    else {
        return grant(ctx, key, None, asked);
    };
    let fence = before.fence;
    let session = asked.session().or(lock.session);
    if session != lock.session {
        let new = longer_lease(ctx, Some(old), asked.lease_ms).unwrap_or(old);
        note_reader(ctx, at, fence, session, new);
        readers::write(ctx.core, at, Some(slot), Change::Renewed(old));
        ctx.effect = Effect::Instead;
    } else {
        prolong(ctx, at, asked.lease_ms);
    }
    if let Some(client) = ctx.caller.client() {
        let replaced_by = ctx.core.keyspace.locks.get(at).and_then(Held::until);
        let holdings = vec![(at.to_place(), before)];
        let former = Former { fields: Vec::new(), deadline: None, replaced_by, holdings };
        ctx.core.keyspace.locks.note_granted_again(at, fence, client, Some(Box::new(former)));
    }
    let ms_left = reader_ms_left(ctx, at);
    Ok(answer(ctx, asked, (fence, 1), ms_left, |grant| grant))
}

/// Milliseconds left of a reader's lease.
pub(super) fn reader_ms_left(ctx: &Context<'_>, at: At<'_>) -> i64 {
    let until = ctx.core.keyspace.locks.get(at).and_then(Held::until);
    until.map_or(0, |until| ctx.core.keyspace.now().remaining_ms(until).max(0))
}

/// Extends a reader's lease to `lease_ms` from now, unless it is longer, and binds it to the
/// calling client.
pub(super) fn prolong(ctx: &mut Context<'_>, at: At<'_>, lease_ms: i64) {
    let old = ctx.core.keyspace.locks.get(at).and_then(Held::until);
    if let Some(new) = longer_lease(ctx, old, lease_ms).filter(|new| Some(*new) != old) {
        readers::renew(ctx.core, at, new);
        ctx.effect = Effect::Instead;
    }
    bind(ctx, at);
}

/// A reader asks for the lock alone: it becomes the writer, or waits until it is the only reader.
/// Of two readers that would wait for each other, the second is refused.
pub(super) fn become_writer(
    ctx: &mut Context<'_>,
    key: Key<'_>,
    slot: Slot,
    lock: &Lock<'_>,
    asked: &Acquire<'_>,
) -> CommandResult {
    let database = ctx.core.keyspace.selected();
    if lock.readers == 1 && !grants_nothing_now(ctx) && !is_held_back(ctx, asked, 1..2) {
        let fence = ctx.core.keyspace.locks.fences.grant();
        let before = former(ctx, key, slot);
        grant_alone(ctx, key, slot, lock, asked, fence);
        note_replaced(ctx, key, fence, before);
        leave_place(ctx, Wanted::Lock, 1..2);
        let ms_left = ms_left(ctx, slot);
        return Ok(answer(ctx, asked, (fence, 1), ms_left, |grant| grant));
    }
    let waits = match another_waits(ctx, key, asked.owner) {
        true => Waits::Not,
        false => asked.waits,
    };
    let waits = (waits, asked.grace_ms);
    let waiting = wait_in_place(ctx, Wanted::Lock, 1..2, waits, key, true)?;
    let queue = &ctx.core.keyspace.waiting;
    let (place, outcome) = match waiting {
        Waiting::Blocked(waits) => return waits,
        Waiting::Async(wait) => {
            (queue.place(database, key.bytes, Wanted::Lock, wait.ticket), Outcome::Waits(wait))
        }
        Waiting::Not
            if lock.readers == 1
                && asked.waits == Waits::Not
                && needs_acks_that_failed(ctx, asked) =>
        {
            return Err(acks::NO_REPLICAS);
        }
        Waiting::Not => (queue.len(database, key.bytes, Wanted::Lock), Outcome::Replied),
    };
    let holder = other_reader(ctx, key, asked.owner);
    let ms_left = ms_left(ctx, slot);
    reply_refused(ctx, ms_left, place, &holder);
    Ok(outcome)
}

/// `LOCK.DOWNGRADE key owner [FENCE fence]`: 1 if the owner reads now, in the same grant and with
/// the rest of its lease; -1 if there is no lock, -2 if another owner or another grant has it.
pub(super) fn downgrade(ctx: &mut Context<'_>) -> CommandResult {
    let (owner, fence) = take_grant(ctx.args)?;
    let key = ctx.key(1);
    let (slot, found) = find(ctx, key, owner)?;
    let (Some(slot), Some(lock)) = (slot, found) else {
        ctx.reply.integer(NO_LOCK);
        return Ok(Outcome::Replied);
    };
    if lock.is_string || !lock.is_held_by(owner, fence) {
        ctx.reply.integer(NOT_YOURS);
        return Ok(Outcome::Replied);
    }
    if lock.readers == 0 {
        become_reader(ctx, key, slot, &lock);
    }
    ctx.reply.integer(1);
    Ok(Outcome::Replied)
}

/// Makes the writer the first reader. It keeps its fence, its session and its lease; a lease
/// without an end gets the longest one.
fn become_reader(ctx: &mut Context<'_>, key: Key<'_>, slot: Slot, lock: &Lock<'_>) {
    let (database, now) = (ctx.core.keyspace.selected(), ctx.core.keyspace.now());
    // A reader's lease is on the clock that nobody can set.
    let deadline = ctx.core.keyspace.entry(slot).deadline();
    let until = deadline.filter(|deadline| deadline.is_on_boot_clock()).unwrap_or_else(|| {
        now.after(deadline.map_or(LEASE_MS_MAX, |deadline| now.remaining_ms(deadline)))
    });
    let fence = lock.fence.unwrap_or_else(|| ctx.core.keyspace.locks.fences.grant());
    let mut writers = Vec::new();
    if let Ok(hash) = ctx.core.keyspace.view::<Hash>(slot) {
        hash.for_each(&now, |field, _| {
            if field != FENCE {
                writers.push(field.to_vec());
            }
        });
    }
    let at = At::reader(database, key.bytes, &lock.owner);
    match ctx.core.keyspace.locks.remove(At::key(database, key.bytes)) {
        // It stays with its client, whoever asks, and may still be taken back.
        Some(held) => {
            let held = Held { fence, ..held }.read_until(until, lock.since_ms);
            ctx.core.keyspace.locks.insert(at, held);
            ctx.core.keyspace.locks.note_downgraded(at);
            sessions::look_again(&mut ctx.core.keyspace, at);
        }
        None => note_reader(ctx, at, fence, lock.session, until),
    }
    readers::write(ctx.core, at, Some(slot), Change::Granted);
    remove_fields(ctx, key, slot, &writers);
    ctx.effect = Effect::Instead;
}

/// Whether another reader already waits at the head of the queue to become the writer.
fn another_waits(ctx: &Context<'_>, key: Key<'_>, owner: &[u8]) -> bool {
    let database = ctx.core.keyspace.selected();
    let first = ctx.core.keyspace.waiting.at_head(database, key.bytes, Wanted::Lock);
    let first = first.and_then(|ticket| ctx.core.state.waits.get(ticket));
    ctx.origin == Origin::Client && first.is_some_and(|wait| wait.owner() != owner)
}

/// Makes the only reader the writer, with this fence. It keeps its session and a longer lease.
/// LOCK.ACQUIRE does not take this back where replicas do not confirm it: the owner held the lock
/// before.
pub(super) fn grant_alone(
    ctx: &mut Context<'_>,
    key: Key<'_>,
    slot: Slot,
    lock: &Lock<'_>,
    asked: &Acquire<'_>,
    fence: u64,
) {
    let at = At::reader(ctx.core.keyspace.selected(), key.bytes, asked.owner);
    let old = ctx.core.keyspace.locks.get(at).and_then(Held::until);
    let deadline = longer_lease(ctx, old, asked.lease_ms);
    let alone = Lock {
        fence: Some(fence),
        since_ms: Some(ctx.core.state.now.unix().0),
        session: asked.session().or(lock.session),
        readers: 0,
        ..lock.clone()
    };
    write_alone(ctx, key, slot, &alone, deadline);
    if let Some(held) = ctx.core.keyspace.locks.remove(at) {
        let ending = Ending { held: &held, end: HoldingEnd::Exchanged, owner: asked.owner };
        locks::note_ended_at(ctx.core, at.database, key, ending);
    }
    note_held(ctx, key, fence, &alone);
    ctx.core.keyspace.locks.stats.grants += 1;
}

/// A lock that its owner holds, before a grant replaces its fence: nobody learns of that fence if
/// the grant is taken back.
pub(super) fn former(ctx: &Context<'_>, key: Key<'_>, slot: Slot) -> Former {
    let (keyspace, database) = (&ctx.core.keyspace, ctx.core.keyspace.selected());
    let mut fields = Vec::new();
    if let Ok(hash) = keyspace.view::<Hash>(slot) {
        hash.for_each(&keyspace.now(), |field, value| {
            fields.push((field.to_vec(), value.to_vec()));
        });
    }
    let places = keyspace.locks.holdings(database, key.bytes).into_iter();
    let holdings =
        places.filter_map(|place| Some((place.clone(), keyspace.locks.get(place.at())?.clone())));
    let deadline = keyspace.entry(slot).deadline();
    Former { fields, deadline, replaced_by: None, holdings: holdings.collect() }
}

/// Notes what a grant has replaced, until its reply has left; and returns it.
pub(super) fn note_replaced(
    ctx: &mut Context<'_>,
    key: Key<'_>,
    fence: u64,
    before: Former,
) -> (Box<[u8]>, Box<Former>) {
    let slot = ctx.core.keyspace.find_quietly(key);
    let replaced_by = slot.and_then(|slot| ctx.core.keyspace.entry(slot).deadline());
    let former = Box::new(Former { replaced_by, ..before });
    if let Some(client) = ctx.caller.client() {
        let at = At::key(ctx.core.keyspace.selected(), key.bytes);
        ctx.core.keyspace.locks.note_granted_again(at, fence, client, Some(former.clone()));
    }
    (key.bytes.into(), former)
}

/// One of a lock's readers besides `owner`; if there is none, `owner`.
pub(super) fn other_reader(ctx: &Context<'_>, key: Key<'_>, owner: &[u8]) -> Vec<u8> {
    let mut readers = ctx.core.keyspace.locks.readers(ctx.core.keyspace.selected(), key.bytes);
    let other = readers.find(|(reader, _)| *reader != owner);
    other.map_or(owner, |(other, _)| other).to_vec()
}

/// Releases the lock for one of several readers.
pub(super) fn leave(ctx: &mut Context<'_>, key: Key<'_>, owner: &[u8]) {
    let at = At::reader(ctx.core.keyspace.selected(), key.bytes, owner);
    let Some(held) = ctx.core.keyspace.locks.remove(at) else { return };
    readers::take_out(ctx.core, at, &held, false);
    ctx.effect = Effect::Instead;
    ctx.core.keyspace.locks.stats.released += 1;
    ctx.core.keyspace.notify(KeyspaceEvents::LOCK, "unlock", key.bytes);
    let ending = Ending { held: &held, end: HoldingEnd::Released, owner };
    locks::note_ended_at(ctx.core, at.database, key, ending);
}

/// Takes the lock from one of several readers, and notifies that reader.
pub(super) fn break_reader(ctx: &mut Context<'_>, key: Key<'_>, owner: &[u8]) {
    let at = At::reader(ctx.core.keyspace.selected(), key.bytes, owner);
    let Some(held) = ctx.core.keyspace.locks.remove(at) else { return };
    readers::take_out(ctx.core, at, &held, false);
    ctx.effect = Effect::Instead;
    locks::announce_end(ctx.core, at, &held, EndReason::Broken);
}
