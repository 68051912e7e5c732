//! Locks with waiting, leases, fences and guards: LOCK.ACQUIRE, LOCK.CANCEL, LOCK.RELEASE,
//! LOCK.RENEW, LOCK.GUARD. Readers are in `lock/shared.rs`, several locks at once in
//! `lock/many.rs`, arguments in `lock/asked.rs`, reports on locks and LOCK.BREAK in
//! `lock/report.rs`.
//!
//! Latchkey's own commands; `docs/locks.md` describes them. A lock is a plain value with a deadline
//! (`types/lock.rs`), and is replicated as the commands that make it. Waiting clients are in the
//! queue of the key (`keyspace/waiting.rs`): any change or deletion of the key wakes the first,
//! before the next request runs.

mod asked;
pub(crate) mod many;
pub(crate) mod report;
pub(crate) mod semaphore;
mod shared;

use std::ops;

use asked::{
    Acquire, QUEUE_IS_FULL, Waits, acks_needed, is_queue_full, owner_of, take_acks, take_fence,
    take_keys, take_lease,
};

use crate::client::acks::{AcksAsked, Confirmed, Grant};
use crate::client::waits::{Answer, Wait};
use crate::clock::Deadline;
use crate::collections::table::Slot;
use crate::config::KeyspaceEvents;
use crate::error::CommandError;
use crate::gate::evict::{self, Room};
use crate::gate::lock_writer::Found;
use crate::gate::locks::Ending;
use crate::gate::{lock_writer, locks, permits, readers, sessions, users};
use crate::keyspace::lock_history::HoldingEnd;
use crate::keyspace::locks::{At, EndReason, Held, Session};
use crate::keyspace::waiting::{Ticket, Wanted};
use crate::keyspace::{DatabaseKey, Key};
use crate::resp::args::Args;
use crate::resp::request::Range;
use crate::state::context::{CommandResult, Context, Effect, On, Origin, Outcome, WaitForKeys};
use crate::state::spec::{
    CommandSpec, Flags, Group, Handler, KeyFlags, KeySpec, counted_keys, spec,
};
use crate::types::hash::Hash;
use crate::types::lock::{self, Lock};
use crate::waiting::{self, acks, confirm};

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    lock_spec("LOCK.ACQUIRE", acquire, Flags::WRITE_BLOCKING).at_least(5).keys(KeySpec::RW_ACCESS_UPDATE)
        .docs("key owner PX milliseconds [BLOCK milliseconds | ASYNC milliseconds] [SHARED] [SESSION GRACE milliseconds] [REENTRANT [MAXHOLDS count]] \
            [REPLICAS count milliseconds]",
            "Takes a lock for a time, or waits for it in the order of arrival.", "O(1)"),
    lock_spec("LOCK.ATTACH", attach, Flags::WRITE_FAST.union(Flags::NEEDS_CLIENT)).at_least(2)
        .docs("owner [owner ...]", "Binds the locks and permits with sessions of owners to this connection.",
            "O(N) with N locks of the owners and permits with sessions"),
    lock_spec("LOCK.CANCEL", cancel, Flags::FAST.union(Flags::NOSCRIPT).union(Flags::NEEDS_CLIENT)).at_least(4)
        .keys(&[counted_keys(1, KeyFlags::RO_ACCESS)])
        .docs("numkeys key [key ...] owner", "Ends a wait for locks that ASYNC has begun on this connection.",
            "O(N*log(M)) with N locks of M clients that wait"),
    lock_spec("LOCK.DOWNGRADE", shared::downgrade, Flags::WRITE_FAST).at_least(3).keys(KeySpec::RW_ACCESS_UPDATE)
        .docs("key owner [FENCE fence]", "Makes the writer a reader, and lets the readers in that wait next.", "O(1)"),
    lock_spec("LOCK.MACQUIRE", many::macquire, Flags::WRITE_BLOCKING).at_least(6).keys(&[counted_keys(1, KeyFlags::RW_ACCESS_UPDATE)])
        .docs("numkeys key [key ...] owner PX milliseconds [BLOCK milliseconds | ASYNC milliseconds] [SESSION GRACE milliseconds] [REENTRANT [MAXHOLDS \
            count]] [REPLICAS count milliseconds]",
            "Takes several locks at once, or none, or waits until all are free.", "O(N) with N locks"),
    lock_spec("LOCK.RELEASE", release, Flags::WRITE_FAST).at_least(3).keys(KeySpec::RW_ACCESS_DELETE)
        .docs("key owner [ALL] [FENCE fence] [KEEP milliseconds]", "Releases a lock, and passes it on to the first client that waits for it.", "O(1)"),
    lock_spec("LOCK.RENEW", renew, Flags::WRITE_FAST).at_least(6).keys(&[counted_keys(1, KeyFlags::RW_ACCESS_UPDATE)])
        .docs("numkeys key [key ...] owner PX milliseconds [REPLICAS count milliseconds]", "Extends the leases of locks that an owner holds.",
            "O(N) with N locks"),
    lock_spec("LOCK.GUARD", guard, Flags::READONLY_FAST.union(Flags::GUARDS)).at_least(3).keys(KeySpec::RO_ACCESS)
        .docs("key owner [FENCE fence]", "Returns whether an owner holds a lock; in a transaction, EXEC does nothing if it does not.", "O(1)"),
];

pub(in crate::command) const fn lock_spec(
    name: &'static str,
    handler: Handler,
    flags: Flags,
) -> CommandSpec {
    spec(name, handler).since("0.2.0").flags(flags).group(Group::Lock)
}

const TOO_MANY_HOLDS: CommandError =
    CommandError::Text("MAXHOLDS the owner already holds the lock that many times");

/// Locks or permits that one request may take.
const TAKEN_MAX: usize = 1000;
const TOO_MANY_AT_ONCE: CommandError =
    CommandError::Text("ERR a request takes 1000 locks or permits at most");

/// The reply of LOCK.RELEASE where there is no lock, and where another owner or grant has it.
const NO_LOCK: i64 = -1;
const NOT_YOURS: i64 = -2;

/// A key's slot and lock; None: no such key, or nobody holds the lock. The owner's name is copied
/// if it is not `asking`. Errors: WRONGTYPE.
pub(super) fn find<'a>(
    ctx: &mut Context<'_>,
    key: Key<'_>,
    asking: &'a [u8],
) -> Result<(Option<Slot>, Option<Lock<'a>>), CommandError> {
    let Some(slot) = ctx.core.keyspace.find_for_write(key) else { return Ok((None, None)) };
    if let Some(own) = lock::read_usual(ctx.core.keyspace.entry(slot).value(), asking) {
        return Ok((Some(slot), Some(own)));
    }
    let found =
        lock::read_for(ctx.core.keyspace.entry(slot).value(), &ctx.core.keyspace.now(), asking)?;
    let found = found.map(|lock| match *lock.owner == *asking {
        true => Lock { owner: asking.into(), ..lock },
        false => lock.into_owned(),
    });
    if let Some(readers) = found.as_ref().map(|lock| lock.readers).filter(|&readers| readers > 0) {
        // An earlier command of a transaction may have changed the readers' fields, or this hash is
        // a copy.
        if ctx.core.keyspace.locks.has_changed() {
            review(ctx);
            return find(ctx, key, asking);
        }
        let database = ctx.core.keyspace.selected();
        if ctx.core.keyspace.locks.readers(database, key.bytes).len() != readers {
            readers::adopt(&mut ctx.core.keyspace, database, key.bytes, slot);
        }
    }
    Ok((Some(slot), found))
}

/// Milliseconds left of the lease at `slot`; -1: it does not end.
pub(super) fn ms_left(ctx: &Context<'_>, slot: Slot) -> i64 {
    let deadline = ctx.core.keyspace.entry(slot).deadline();
    deadline.map_or(-1, |deadline| ctx.core.keyspace.now().remaining_ms(deadline).max(0))
}

// ---- LOCK.ACQUIRE -------------------------------------------------------------------------------

/// `LOCK.ACQUIRE key owner PX ms [BLOCK ms | ASYNC ms] [SHARED] [SESSION GRACE ms] [REENTRANT
/// [MAXHOLDS n]] [REPLICAS n ms]`: an array of fence, holds and milliseconds left; if it is not
/// granted, of 0, the milliseconds left of the holder's lease, the number of waiting clients
/// (ASYNC: the place among them) and the holder.
fn acquire(ctx: &mut Context<'_>) -> CommandResult {
    let asked = Acquire::parse(ctx, ctx.args.cursor(2), "lock.acquire")?;
    let key = ctx.key(1);
    let mut found = find(ctx, key, asked.owner)?;
    if found.1.is_none() && ctx.core.keyspace.locks.has_changed() {
        // The former holder may have lost the lock, which may then be withheld from all clients for
        // a time.
        review(ctx);
        found = find(ctx, key, asked.owner)?;
    }
    match found {
        (Some(slot), Some(lock)) if lock.is_held_by(asked.owner, None) && !lock.is_string => {
            match (lock.readers, asked.is_shared) {
                (1.., false) => shared::become_writer(ctx, key, slot, &lock, &asked),
                _ if ends_in_vain(ctx) => refuse(ctx, key, &asked, Some((slot, lock))),
                (0, _) => grant_again(ctx, key, slot, lock, &asked),
                (1.., true) => shared::grant_again(ctx, key, slot, &lock, &asked),
            }
        }
        (Some(_), Some(lock)) if shared::may_join(ctx, key, &lock, &asked) => {
            match is_held_back(ctx, &asked, 1..2) {
                true => refuse(ctx, key, &asked, None),
                false => grant(ctx, key, None, &asked),
            }
        }
        (Some(slot), Some(lock)) => refuse(ctx, key, &asked, Some((slot, lock))),
        _ if has_its_turn_later(ctx, key, Wanted::Lock) || is_held_back(ctx, &asked, 1..2) => {
            refuse(ctx, key, &asked, None)
        }
        (slot, _) => grant(ctx, key, slot, &asked),
    }
}

/// Compares the changed locks with the index. The resulting effects are in the stream: the request
/// is not replicated for them.
fn review(ctx: &mut Context<'_>) {
    let before = ctx.core.keyspace.changes_by_commands();
    locks::review(ctx.core);
    ctx.note_own_effects(before);
}

/// Whether replicas still have to acknowledge a grant that failed: until then no grant is made that
/// needs more replicas than have acknowledged that one.
fn is_held_back(ctx: &mut Context<'_>, asked: &Acquire<'_>, keys: ops::Range<usize>) -> bool {
    if !needs_acks_that_failed(ctx, asked) {
        return false;
    }
    let database = ctx.core.keyspace.selected();
    // Only for a client that is about to wait: only such a client takes the key off that list
    // again.
    let will_wait = asked.waits != Waits::Not
        && ctx.origin != Origin::TimedOut
        && ctx.may_wait()
        && !is_queue_full(ctx);
    for index in keys.filter(|_| will_wait) {
        ctx.core.keyspace.waiting.hold_back(database, ctx.args.get(index));
    }
    true
}

fn needs_acks_that_failed(ctx: &Context<'_>, asked: &Acquire<'_>) -> bool {
    asked.acks.is_some_and(|acks| confirm::holds_back(&ctx.core.state, acks.replicas))
}

/// Whether nothing can be granted now to this client, whose time is over.
fn ends_in_vain(ctx: &Context<'_>) -> bool {
    ctx.origin == Origin::TimedOut && ctx.core.state.grants_nothing()
}

/// Whether nothing is granted now: to any client, or to this one because its time is over.
fn grants_nothing_now(ctx: &Context<'_>) -> bool {
    ends_in_vain(ctx) || ctx.core.state.is_recovering_locks() && !ctx.is_repeated()
}

/// Whether other clients have waited longer for a lock that nobody holds. A woken client is woken
/// when it is its turn.
fn has_its_turn_later(ctx: &Context<'_>, key: Key<'_>, wanted: Wanted) -> bool {
    let database = ctx.core.keyspace.selected();
    grants_nothing_now(ctx)
        || !matches!(ctx.origin, Origin::Woken(_))
            && ctx.core.keyspace.waiting.first(database, key.bytes, wanted).is_some()
}

/// A client's way of waiting for a refused grant.
enum Waiting {
    /// It does not wait, or its time is over.
    Not,
    /// It has no reply yet.
    Blocked(CommandResult),
    /// It gets a reply with its place in the order of arrival, and waits without being blocked.
    Async(Box<Wait>),
}

/// Gives up the place kept for an owner whose wait is granted. `keys`: the owner is the argument
/// after them.
fn leave_place(ctx: &mut Context<'_>, wanted: Wanted, keys: ops::Range<usize>) {
    if ctx.core.state.waits.has_kept() {
        let names = (ctx.core.keyspace.selected(), &*ctx.names(keys));
        ctx.core.state.waits.take_kept(wanted, names);
    }
}

/// Makes a client wait for a refused lock, if it asked to. Errors: too many clients wait already.
fn wait(
    ctx: &mut Context<'_>,
    wanted: Wanted,
    keys: ops::Range<usize>,
    waits: (Waits, Option<i64>),
    obstacle: Key<'_>,
) -> Result<Waiting, CommandError> {
    wait_in_place(ctx, wanted, keys, waits, obstacle, false)
}

/// As [`wait`], at the head of the queue if `is_first`.
fn wait_in_place(
    ctx: &mut Context<'_>,
    wanted: Wanted,
    keys: ops::Range<usize>,
    (waits, grace_ms): (Waits, Option<i64>),
    obstacle: Key<'_>,
    is_first: bool,
) -> Result<Waiting, CommandError> {
    if ctx.origin == Origin::TimedOut {
        ctx.core.keyspace.locks.stats.timeouts += 1;
    }
    let (deadline_us, is_async) = match waits {
        Waits::Blocked(until_us) => (until_us, false),
        Waits::Async(until_us) => (until_us, true),
        Waits::Not => return Ok(Waiting::Not),
    };
    if !ctx.may_wait() {
        return Ok(Waiting::Not);
    }
    let wait = WaitForKeys::new(wanted, keys, deadline_us);
    let wait = WaitForKeys { grace_ms, is_first, ..wait };
    if ctx.origin != Origin::Client {
        return Ok(Waiting::Blocked(ctx.block(wait)));
    }
    let is_full = is_queue_full(ctx);
    let waiting = match is_async {
        true => ctx.wait_without_blocking(wait, is_full).map(Waiting::Async),
        false => (!is_full).then(|| Waiting::Blocked(ctx.block(wait))),
    };
    let event = if wanted == Wanted::Lock { "lockwait" } else { "semwait" };
    if waiting.is_some() {
        ctx.core.keyspace.notify(KeyspaceEvents::LOCK, event, obstacle.bytes);
    }
    waiting.ok_or(QUEUE_IS_FULL)
}

/// Grants a lock that nobody holds, or that other readers hold. `slot`: a hash without an owner.
fn grant(
    ctx: &mut Context<'_>,
    key: Key<'_>,
    mut slot: Option<Slot>,
    asked: &Acquire<'_>,
) -> CommandResult {
    // A client that has waited gets the lock even when memory is short.
    if !matches!(ctx.origin, Origin::Woken(_)) {
        check_room(ctx)?;
        if slot.is_some() {
            // The hash may have been evicted just now.
            slot = ctx.core.keyspace.find_for_write(key);
        }
    }
    let fence = ctx.core.keyspace.locks.fences.grant();
    let deadline = ctx.core.keyspace.now().after(asked.lease_ms);
    match asked.is_shared {
        true => shared::write_grant(ctx, key, asked, fence, deadline),
        false => write_grant(ctx, key, slot, asked, fence, deadline),
    }
    leave_place(ctx, Wanted::Lock, 1..2);
    let taken = |grant| Grant { taken: vec![key.bytes.into()], ..grant };
    Ok(answer(ctx, asked, (fence, 1), asked.lease_ms, taken))
}

/// Replies with a grant's fence, holds and time left, after replicas have confirmed it if they
/// must; then `complete` adds to what is confirmed.
fn answer(
    ctx: &mut Context<'_>,
    asked: &Acquire<'_>,
    (fence, holds): (u64, i64),
    ms_left: i64,
    complete: impl FnOnce(Grant) -> Grant,
) -> Outcome {
    if is_plain(ctx, asked) {
        reply_granted(ctx, fence, holds, ms_left);
        return Outcome::Replied;
    }
    let grant = complete(Grant::of(fence, Confirmed::Lock { holds }));
    leave_to_confirm(ctx, 1..2, asked, ms_left, grant)
}

/// Whether a grant's reply leaves at once, and is no push message.
fn is_plain(ctx: &Context<'_>, asked: &Acquire<'_>) -> bool {
    asked.acks.is_none() && !answers_by_push(ctx, asked)
}

/// Whether the client has waited without being blocked.
fn answers_by_push(ctx: &Context<'_>, asked: &Acquire<'_>) -> bool {
    matches!(asked.waits, Waits::Async(_)) && matches!(ctx.origin, Origin::Woken(_))
}

/// Delays the answer of a grant until replicas acknowledge it, or makes it a push message.
fn leave_to_confirm(
    ctx: &mut Context<'_>,
    keys: ops::Range<usize>,
    asked: &Acquire<'_>,
    ms_left: i64,
    grant: Grant,
) -> Outcome {
    let keys = keys.map(|index| ctx.args.get(index).into()).collect();
    let grant = Grant { keys, owner: asked.owner.into(), ..grant };
    let Some(acks) = asked.acks else {
        grant.write_push(&mut ctx.reply, ms_left);
        return Outcome::Replied;
    };
    let mut wait = confirmation(ctx, acks, grant);
    if matches!(asked.waits, Waits::Async(_)) {
        wait.answer = Answer::Push;
        if !answers_by_push(ctx, asked) {
            // The reply of a client that waits at place 0; the grant follows as a push message.
            reply_refused(ctx, -1, 0, asked.owner);
        }
    }
    Outcome::Waits(wait)
}

/// The wait for replicas to acknowledge a grant or renewal.
fn confirmation(ctx: &mut Context<'_>, asked: AcksAsked, grant: Grant) -> Box<Wait> {
    let deadline_us = ctx.core.state.now.boot_us.saturating_add(asked.ms.saturating_mul(1000));
    let grant = Grant { replicas: asked.replicas, ..grant };
    ctx.wait(Wanted::Confirmation, On::Confirmation(Box::new(grant)), Some(deadline_us))
}

/// Writes a new grant of a lock with this fence, and adds it to the index.
fn write_grant(
    ctx: &mut Context<'_>,
    key: Key<'_>,
    slot: Option<Slot>,
    asked: &Acquire<'_>,
    fence: u64,
    deadline: Deadline,
) {
    let since_ms = ctx.core.state.now.unix().0;
    let lock = Lock { session: asked.session(), ..Lock::granted(asked.owner, fence, since_ms) };
    match slot {
        Some(slot) => write_alone(ctx, key, slot, &lock, Some(deadline)),
        None => write(ctx, key, None, &lock, Some(deadline)),
    }
    note_held(ctx, key, fence, &lock);
    note_granted(ctx, At::key(ctx.core.keyspace.selected(), key.bytes), fence);
}

/// Counts a new grant. Measures the time from the lock's release to this, if the client has waited.
fn note_granted(ctx: &mut Context<'_>, at: At<'_>, fence: u64) {
    if let Some(client) = ctx.caller.client() {
        ctx.core.keyspace.locks.note_granted(at, fence, client);
    }
    ctx.core.keyspace.locks.stats.grants += 1;
    let freed_us = ctx.core.keyspace.locks.take_freed(at.database, at.key);
    if let Some(freed_us) = freed_us
        && matches!(ctx.origin, Origin::Woken(_))
    {
        let us = ctx.core.state.clock.now().boot_us - freed_us;
        ctx.core.state.stats.durations.lock_handover.record_us(us.max(0).unsigned_abs());
    }
}

/// Grants a lock to its owner again: the same grant, once more if it is reentrant. Its lease is
/// never shortened.
fn grant_again(
    ctx: &mut Context<'_>,
    key: Key<'_>,
    slot: Slot,
    lock: Lock<'_>,
    asked: &Acquire<'_>,
) -> CommandResult {
    let holds = match asked.holds_max {
        Some(most) if lock.holds >= most => return Err(TOO_MANY_HOLDS),
        Some(_) => lock.holds + 1,
        None => lock.holds,
    };
    let before = shared::former(ctx, key, slot);
    let old = ctx.core.keyspace.entry(slot).deadline();
    let deadline = longer_lease(ctx, old, asked.lease_ms);
    // A lock made by a client library gets a fence now.
    let fence = lock.fence.unwrap_or_else(|| ctx.core.keyspace.locks.fences.grant());
    let again = Lock {
        holds,
        fence: Some(fence),
        since_ms: lock.since_ms.or(Some(ctx.core.state.now.unix().0)),
        session: asked.session().or(lock.session),
        ..lock.clone()
    };
    if again != lock {
        write(ctx, key, Some(slot), &again, deadline);
    } else if deadline != old {
        extend(ctx, key, slot, deadline);
    }
    let at = At::key(ctx.core.keyspace.selected(), key.bytes);
    if ctx.core.keyspace.locks.get(at).is_none() || again.session != lock.session {
        note_held(ctx, key, fence, &again);
    } else {
        bind(ctx, at);
    }
    shared::note_replaced(ctx, key, fence, before);
    let ms_left = ms_left(ctx, slot);
    let counted = |grant| Grant { counted_hold: holds > lock.holds, ..grant };
    Ok(answer(ctx, asked, (fence, holds), ms_left, counted))
}

/// Adds a lock to the index, bound to the calling client.
fn note_held(ctx: &mut Context<'_>, key: Key<'_>, fence: u64, lock: &Lock<'_>) {
    let at = At::key(ctx.core.keyspace.selected(), key.bytes);
    let held = Held::new(fence, ctx.core.state.now.boot_us);
    note_holding(ctx, at, held, (&lock.owner, lock.session));
}

/// Adds a holding of an owner to the index, bound to the calling client. `session`: grace and
/// lease.
fn note_holding(
    ctx: &mut Context<'_>,
    at: At<'_>,
    held: Held,
    (owner, session): (&[u8], Option<(i64, i64)>),
) {
    let session =
        session.map(|(grace_ms, lease_ms)| Box::new(Session::new(owner, grace_ms, lease_ms)));
    ctx.core.keyspace.locks.insert(at, Held { client: ctx.caller.client(), session, ..held });
    sessions::look_again(&mut ctx.core.keyspace, at);
}

/// Binds a holding to the calling client.
fn bind(ctx: &mut Context<'_>, at: At<'_>) {
    ctx.core.keyspace.locks.bind(at, ctx.caller.client());
    sessions::look_again(&mut ctx.core.keyspace, at);
}

fn reply_granted(ctx: &mut Context<'_>, fence: u64, holds: i64, ms_left: i64) {
    ctx.reply.array(3);
    ctx.reply.integer(fence as i64);
    ctx.reply.integer(holds);
    ctx.reply.integer(ms_left);
}

/// Waits for a lock that another owner holds, or replies with that owner. None: the lock is free,
/// but other clients have waited longer.
fn refuse(
    ctx: &mut Context<'_>,
    key: Key<'_>,
    asked: &Acquire<'_>,
    holder: Option<(Slot, Lock<'_>)>,
) -> CommandResult {
    let database = ctx.core.keyspace.selected();
    let waiting = wait(ctx, Wanted::Lock, 1..2, (asked.waits, asked.grace_ms), key)?;
    let queue = &ctx.core.keyspace.waiting;
    let (place, outcome) = match waiting {
        Waiting::Blocked(waits) => return waits,
        Waiting::Async(wait) => {
            (queue.place(database, key.bytes, Wanted::Lock, wait.ticket), Outcome::Waits(wait))
        }
        Waiting::Not
            if holder.is_none()
                && asked.waits == Waits::Not
                && needs_acks_that_failed(ctx, asked) =>
        {
            return Err(acks::NO_REPLICAS);
        }
        Waiting::Not => (queue.len(database, key.bytes, Wanted::Lock), Outcome::Replied),
    };
    let ms_left = holder.as_ref().map_or(-1, |(slot, _)| ms_left(ctx, *slot));
    reply_refused(ctx, ms_left, place, holder.as_ref().map_or(&[], |(_, lock)| &lock.owner));
    Ok(outcome)
}

/// `place`: the number of waiting clients, or the place among them.
fn reply_refused(ctx: &mut Context<'_>, ms_left: i64, place: usize, holder: &[u8]) {
    ctx.reply.array(4);
    ctx.reply.integer(0);
    ctx.reply.integer(ms_left);
    ctx.reply.integer(place as i64);
    ctx.reply.bulk(holder);
}

/// Checks that there is memory for another lock, evicting keys if needed. Errors: there is none,
/// and nothing to evict.
fn check_room(ctx: &mut Context<'_>) -> Result<(), CommandError> {
    if !ctx.core.state.applies_maxmemory() || ctx.is_repeated() {
        return Ok(());
    }
    let is_full = match &ctx.core.state.scripts.running {
        Some(running) => running.out_of_memory && !running.wrote && !running.allow_oom,
        None => evict::evict(ctx.core) == Room::NoMore,
    };
    if is_full {
        ctx.core.keyspace.locks.stats.out_of_memory += 1;
        return Err(CommandError::OutOfMemory);
    }
    Ok(())
}

// ---- changes ------------------------------------------------------------------------------------

/// Writes a lock and its deadline. `slot`: the key's slot, if it exists.
fn write(
    ctx: &mut Context<'_>,
    key: Key<'_>,
    slot: Option<Slot>,
    granted: &Lock<'_>,
    deadline: Option<Deadline>,
) {
    lock_writer::write(ctx.core, Found { key, slot }, granted, deadline);
    ctx.effect = Effect::Instead;
}

/// Writes a lock into a hash that had no owner, or only a reader: no other field stays.
fn write_alone(
    ctx: &mut Context<'_>,
    key: Key<'_>,
    slot: Slot,
    granted: &Lock<'_>,
    deadline: Option<Deadline>,
) {
    let now = ctx.core.keyspace.now();
    let mut others = Vec::new();
    if let Ok(hash) = ctx.core.keyspace.view::<Hash>(slot) {
        let is_set = |field: &[u8]| {
            *field == *granted.owner
                || matches!(field, lock::FENCE | lock::SINCE)
                || field == lock::SESSION && granted.session.is_some()
        };
        hash.for_each(&now, |field, _| {
            if !is_set(field) {
                others.push(field.to_vec());
            }
        });
    }
    write(ctx, key, Some(slot), granted, deadline);
    remove_fields(ctx, key, slot, &others);
}

/// Removes fields of a lock's hash that belong to no holder any more.
fn remove_fields(ctx: &mut Context<'_>, key: Key<'_>, slot: Slot, fields: &[Vec<u8>]) {
    if fields.is_empty() {
        return;
    }
    let now = ctx.core.keyspace.now();
    ctx.core.keyspace.edit::<Hash, _>(slot, |hash| {
        for field in fields {
            hash.remove(field, &now);
        }
    });
    let names = fields.iter().map(Vec::as_slice);
    let request: Vec<&[u8]> = [&b"HDEL"[..], key.bytes].into_iter().chain(names).collect();
    ctx.instead(&request);
}

/// The later of a lease's deadline and one `ms` from now. A lease that does not end stays.
fn longer_lease(ctx: &Context<'_>, old: Option<Deadline>, ms: i64) -> Option<Deadline> {
    let now = ctx.core.keyspace.now();
    old.map(|old| if now.remaining_ms(old) >= ms { old } else { now.after(ms) })
}

/// Sets a later deadline.
fn extend(ctx: &mut Context<'_>, key: Key<'_>, slot: Slot, deadline: Option<Deadline>) {
    lock_writer::extend(ctx.core, key, slot, deadline);
    ctx.effect = Effect::Instead;
}

/// Deletes a lock with its last holder.
fn delete(ctx: &mut Context<'_>, key: Key<'_>, slot: Slot, holder: At<'_>) -> Option<Held> {
    ctx.core.keyspace.change_lock(|keyspace| keyspace.delete_at(slot, key, "del"));
    ctx.core.keyspace.locks.remove(holder)
}

// ---- LOCK.RELEASE -------------------------------------------------------------------------------

/// The options of LOCK.RELEASE: `[ALL] [FENCE fence] [KEEP ms]`.
struct ReleaseOptions {
    all: bool,
    fence: Option<u64>,
    keep_ms: Option<i64>,
}

impl ReleaseOptions {
    fn parse(ctx: &Context<'_>) -> Result<Self, CommandError> {
        let mut arguments = ctx.args.cursor(3);
        let mut options = ReleaseOptions { all: false, fence: None, keep_ms: None };
        while !arguments.is_at_end() {
            if !options.all && arguments.take_word("ALL") {
                options.all = true;
            } else if options.fence.is_none() && arguments.take_word("FENCE") {
                options.fence = Some(take_fence(&mut arguments)?);
            } else if options.keep_ms.is_none() && arguments.take_word("KEEP") {
                options.keep_ms = Some(take_lease(&mut arguments, "lock.release")?);
            } else {
                return Err(CommandError::Syntax);
            }
        }
        Ok(options)
    }
}

/// `LOCK.RELEASE key owner [ALL] [FENCE fence] [KEEP ms]`: the number of times that the owner still
/// holds the lock; -1 if there is none, -2 if another owner or another grant has it.
fn release(ctx: &mut Context<'_>) -> CommandResult {
    let owner = owner_of(ctx.args.get(2))?;
    let options = ReleaseOptions::parse(ctx)?;
    let key = ctx.key(1);
    let (slot, found) = find(ctx, key, owner)?;
    let (Some(slot), Some(lock)) = (slot, found) else {
        ctx.reply.integer(NO_LOCK);
        return Ok(Outcome::Replied);
    };
    if !lock.is_held_by(owner, options.fence) {
        ctx.reply.integer(NOT_YOURS);
        return Ok(Outcome::Replied);
    }
    let holds_left = if options.all { 0 } else { lock.holds - 1 };
    if lock.readers > 1 {
        shared::leave(ctx, key, owner);
    } else if holds_left > 0 {
        let deadline = ctx.core.keyspace.entry(slot).deadline();
        write(ctx, key, Some(slot), &Lock { holds: holds_left, ..lock }, deadline);
    } else {
        let database = ctx.core.keyspace.selected();
        let at = match lock.readers {
            0 => At::key(database, key.bytes),
            _ => At::reader(database, key.bytes, owner),
        };
        pass_on(ctx, key, slot, (at, owner), options.keep_ms);
    }
    ctx.reply.integer(holds_left);
    Ok(Outcome::Replied)
}

/// Frees a lock for the next client, or withholds it from all clients for a time.
fn pass_on(
    ctx: &mut Context<'_>,
    key: Key<'_>,
    slot: Slot,
    (holder, owner): (At<'_>, &[u8]),
    keep_ms: Option<i64>,
) {
    let held = delete(ctx, key, slot, holder);
    let database = ctx.core.keyspace.selected();
    ctx.core.keyspace.locks.stats.released += 1;
    ctx.core.keyspace.notify(KeyspaceEvents::LOCK, "unlock", key.bytes);
    ctx.instead(&[b"DEL", key.bytes]);
    locks::note_freed(ctx.core, database, key.bytes);
    if let Some(held) = held {
        let ending = Ending { held: &held, end: HoldingEnd::Released, owner };
        locks::note_ended_at(ctx.core, database, key, ending);
    }
    if let Some(ms) = keep_ms {
        locks::withhold(ctx.core, database, key, ms);
    }
    locks::tell_redisson(ctx.core, database, key.bytes);
}

/// Frees a broken lock and notifies its holders.
fn pass_on_broken(ctx: &mut Context<'_>, key: Key<'_>, slot: Slot, owner: &[u8]) {
    ctx.core.keyspace.change_lock(|keyspace| keyspace.delete_at(slot, key, "del"));
    ctx.instead(&[b"DEL", key.bytes]);
    ctx.core.keyspace.locks.note_owner(ctx.core.keyspace.selected(), key.bytes, owner);
    for place in ctx.core.keyspace.locks.holdings(ctx.core.keyspace.selected(), key.bytes) {
        locks::end(ctx.core, place.at(), EndReason::Broken);
    }
    ctx.core.keyspace.locks.forget_owners();
}

// ---- LOCK.RENEW, LOCK.GUARD ---------------------------------------------------------------------

/// `LOCK.RENEW numkeys key [key ...] owner PX ms [REPLICAS n ms]`: an array of the locks' fences, 0
/// for each that the owner does not hold, and -1 for one without a fence.
fn renew(ctx: &mut Context<'_>) -> CommandResult {
    let mut arguments = ctx.args.cursor(1);
    let keys = take_keys(&mut arguments)?;
    let owner = owner_of(arguments.take()?)?;
    if !arguments.take_word("PX") {
        return Err(CommandError::Syntax);
    }
    let lease_ms = take_lease(&mut arguments, "lock.renew")?;
    let acks = take_acks(&mut arguments)?;
    if !arguments.is_at_end() {
        return Err(CommandError::Syntax);
    }
    let acks = acks_needed(ctx, acks)?;
    // If a key is no lock, nothing is renewed.
    for index in keys.clone() {
        let key = ctx.key(index);
        find(ctx, key, owner)?;
    }
    let mut fences = Vec::with_capacity(keys.len());
    for index in keys.clone() {
        let key = ctx.key(index);
        let fence = match find(ctx, key, owner)? {
            (Some(slot), Some(lock)) if lock.is_held_by(owner, None) => {
                let mut at = At::key(ctx.core.keyspace.selected(), key.bytes);
                if lock.readers > 0 {
                    at.reader = Some(owner);
                    shared::prolong(ctx, at, lease_ms);
                } else {
                    prolong(ctx, key, slot, lease_ms);
                }
                ctx.core.keyspace.locks.count_renewal(at);
                lock.fence.map_or(-1, |fence| fence as i64)
            }
            _ => {
                ctx.core.keyspace.locks.stats.renewals_refused += 1;
                0
            }
        };
        fences.push(fence);
    }
    let Some(acks) = acks.filter(|_| fences.iter().any(|fence| *fence != 0)) else {
        ctx.reply.array(fences.len());
        fences.iter().for_each(|fence| ctx.reply.integer(*fence));
        return Ok(Outcome::Replied);
    };
    let keys = keys.map(|index| ctx.args.get(index).into()).collect();
    let grant = Grant::of(0, Confirmed::Renewal(fences));
    let grant = Grant { keys, owner: owner.into(), ..grant };
    Ok(Outcome::Waits(confirmation(ctx, acks, grant)))
}

/// Extends a lease to `lease_ms` from now, unless it is longer, and binds the lock to the calling
/// client.
fn prolong(ctx: &mut Context<'_>, key: Key<'_>, slot: Slot, lease_ms: i64) {
    let old = ctx.core.keyspace.entry(slot).deadline();
    let new = longer_lease(ctx, old, lease_ms);
    if new != old {
        extend(ctx, key, slot, new);
    }
    bind(ctx, At::key(ctx.core.keyspace.selected(), key.bytes));
}

/// Whether the calling client may send a request, by its user's rules.
pub(super) fn may_use(ctx: &Context<'_>, name: &'static str, arguments: &[&[u8]]) -> bool {
    let Some(command) = ctx.core.state.commands.find(name.as_bytes()) else { return false };
    let (mut buffer, mut ranges) = (Vec::new(), Vec::new());
    for argument in std::iter::once(name.as_bytes()).chain(arguments.iter().copied()) {
        ranges.push(Range { start: buffer.len() as u32, len: argument.len() as u32 });
        buffer.extend_from_slice(argument);
    }
    let args = Args::new(&buffer, &ranges);
    users::check_client(&ctx.core.state, ctx.caller.client(), command, args).is_ok()
}

/// `LOCK.ATTACH owner [owner ...]`: binds these owners' locks with sessions, and semaphores of
/// which they have permits with sessions, to this connection; replies with their number.
fn attach(ctx: &mut Context<'_>) -> CommandResult {
    for owner in ctx.args.iter_from(1) {
        owner_of(owner)?;
    }
    if !locks::are_all_indexed(ctx) {
        return Ok(Outcome::Postponed);
    }
    let id = ctx.client_id();
    let (mut bound, before) = (0, ctx.core.keyspace.changes_by_commands());
    let selected = ctx.core.keyspace.selected();
    for owner in ctx.args.iter_from(1) {
        for place in ctx.core.keyspace.locks.of_owner(owner) {
            // Locks in other databases, locks that the user may not renew, and those that are being
            // deleted as their slot has left are skipped.
            let at = place.at();
            if at.database != selected
                || ctx.core.keyspace.is_hidden(at.key)
                || !may_use(ctx, "LOCK.RENEW", &[b"1", at.key, owner, b"PX", b"1"])
            {
                continue;
            }
            bound += i64::from(sessions::bind(ctx.core, at, id));
        }
        for key in ctx.core.keyspace.semaphores.sessions.keys_of(selected, owner) {
            let may_renew = !ctx.core.keyspace.is_hidden(&key)
                && may_use(ctx, "SEM.RENEW", &[&key, owner, b"PX", b"1"]);
            let at = DatabaseKey { database: selected, key: &key };
            if may_renew && permits::bind(ctx.core, at, owner, id) {
                bound += 1;
            }
        }
    }
    ctx.note_own_effects(before);
    ctx.reply.integer(bound);
    Ok(Outcome::Replied)
}

/// `LOCK.CANCEL numkeys key [key ...] owner`: 1 if this connection's wait for these locks is ended,
/// without a push message; 0 if there is none, as after a grant.
fn cancel(ctx: &mut Context<'_>) -> CommandResult {
    let mut arguments = ctx.args.cursor(1);
    let keys = take_keys(&mut arguments)?;
    owner_of(arguments.take()?)?;
    if !arguments.is_at_end() {
        return Err(CommandError::Syntax);
    }
    let names = (ctx.core.keyspace.selected(), &*ctx.names(keys));
    let own = ctx.core.state.waits.find(ctx.caller.client(), Wanted::Lock, names);
    let is_async = |ticket: &Ticket| ctx.core.state.waits.get(*ticket).is_some_and(Wait::is_async);
    let own = own.filter(is_async);
    if let Some(ticket) = own {
        waiting::cancel(ctx.core, ticket);
    }
    ctx.reply.integer(i64::from(own.is_some()));
    Ok(Outcome::Replied)
}

/// `LOCK.GUARD key owner [FENCE fence]`: 1 if the owner holds the lock, in that grant if a fence is
/// given; else 0.
fn guard(ctx: &mut Context<'_>) -> CommandResult {
    let holds = is_guarded(ctx, ctx.args)?;
    ctx.reply.integer(i64::from(holds));
    Ok(Outcome::Replied)
}

/// Parses `key owner [FENCE fence]`, which is all of a request: the owner, and the fence of its
/// grant.
fn take_grant(args: Args<'_>) -> Result<(&[u8], Option<u64>), CommandError> {
    let owner = owner_of(args.get(2))?;
    let mut arguments = args.cursor(3);
    let fence = match arguments.is_at_end() {
        true => None,
        false if arguments.take_word("FENCE") => Some(take_fence(&mut arguments)?),
        false => return Err(CommandError::Syntax),
    };
    if !arguments.is_at_end() {
        return Err(CommandError::Syntax);
    }
    Ok((owner, fence))
}

/// Whether the owner that a LOCK.GUARD names holds the lock.
pub(in crate::command) fn is_guarded(
    ctx: &mut Context<'_>,
    args: Args<'_>,
) -> Result<bool, CommandError> {
    let (owner, fence) = take_grant(args)?;
    let key = ctx.core.keyspace.key(args.get(1));
    let Some(slot) = ctx.core.keyspace.find_for_read(key) else { return Ok(false) };
    let found =
        lock::read_for(ctx.core.keyspace.entry(slot).value(), &ctx.core.keyspace.now(), owner)?;
    let Some(lock) = found.filter(|lock| lock.is_held_by(owner, fence)) else { return Ok(false) };
    let at = At::reader(ctx.core.keyspace.selected(), key.bytes, owner);
    Ok(lock.readers == 0 || !readers::is_over(&ctx.core.keyspace, at))
}
