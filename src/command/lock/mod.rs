//! Locks with waiting, leases, fences and guards: LOCK.ACQUIRE, LOCK.RELEASE, LOCK.RENEW, LOCK.GUARD. Reports on locks and
//! LOCK.BREAK are in `lock/report.rs`.
//!
//! Latchkey's own commands; `docs/locks.md` describes them. A lock is a plain value with a deadline (`types/lock.rs`), and is
//! replicated as the commands that make it. Waiting clients are in the queue of the key (`keyspace/waiting.rs`): whatever
//! changes or deletes the key wakes the first, before the next request runs.

pub(crate) mod many;
pub(crate) mod report;
pub(crate) mod semaphore;

use std::ops;

use smallvec::{SmallVec, smallvec};

use crate::clock::{Deadline, Expiry};
use crate::collections::table::Slot;
use crate::command::hash::limits;
use crate::config::KeyspaceEvents;
use crate::error::CommandError;
use crate::gate::blocking::{TimeoutUnit, parse_timeout};
use crate::gate::evict::{self, Room};
use crate::gate::{locks, sessions, users};
use crate::keyspace::Key;
use crate::keyspace::locks::{EndReason, Held, Session};
use crate::keyspace::waiting::Wanted;
use crate::resp::args::{Args, BadKeyCount, Cursor};
use crate::resp::number::{self, parse_i64};
use crate::resp::request::Range;
use crate::state::context::Effect;
use crate::state::context::{CommandResult, Context, Origin, Outcome, Wait};
use crate::state::spec::{
    CommandSpec, Flags, Group, Handler, KeyFlags, KeySpec, counted_keys, spec,
};
use crate::types::hash::Hash;
use crate::types::journal::Edit;
use crate::types::lock::{self, Lock, may_own};

pub const COMMANDS: &[CommandSpec] = &[
    lock_spec("LOCK.ACQUIRE", acquire, Flags::WRITE_BLOCKING)
        .at_least(5)
        .keys(KeySpec::RW_ACCESS_UPDATE)
        .docs(
            "key owner PX milliseconds [BLOCK milliseconds] [SESSION GRACE milliseconds] [REENTRANT [MAXHOLDS count]]",
            "Takes a lock for a time, or waits for it in the order of arrival.",
            "O(1)",
        ),
    lock_spec("LOCK.ATTACH", attach, Flags::WRITE_FAST.union(Flags::NEEDS_CLIENT))
        .at_least(2)
        .docs(
            "owner [owner ...]",
            "Binds the locks with sessions of owners to this connection.",
            "O(N) with N locks of the owners",
        ),
    lock_spec("LOCK.MACQUIRE", many::macquire, Flags::WRITE_BLOCKING)
        .at_least(6)
        .keys(&[counted_keys(1, KeyFlags::RW_ACCESS_UPDATE)])
        .docs(
            "numkeys key [key ...] owner PX milliseconds [BLOCK milliseconds] [SESSION GRACE milliseconds] [REENTRANT [MAXHOLDS count]]",
            "Takes several locks at once, or none, or waits until all can be had.",
            "O(N) with N locks",
        ),
    lock_spec("LOCK.RELEASE", release, Flags::WRITE_FAST)
        .at_least(3)
        .keys(KeySpec::RW_ACCESS_DELETE)
        .docs(
            "key owner [ALL] [FENCE fence] [KEEP milliseconds]",
            "Releases a lock, and passes it on to the first client that waits for it.",
            "O(1)",
        ),
    lock_spec("LOCK.RENEW", renew, Flags::WRITE_FAST)
        .at_least(6)
        .keys(&[counted_keys(1, KeyFlags::RW_ACCESS_UPDATE)])
        .docs(
            "numkeys key [key ...] owner PX milliseconds",
            "Extends the leases of locks that an owner holds.",
            "O(N) with N locks",
        ),
    lock_spec("LOCK.GUARD", guard, Flags::READONLY_FAST.union(Flags::GUARDS))
        .at_least(3)
        .keys(KeySpec::RO_ACCESS)
        .docs(
            "key owner [FENCE fence]",
            "Tells whether an owner holds a lock; in a transaction, EXEC does nothing unless it does.",
            "O(1)",
        ),
];

pub(in crate::command) const fn lock_spec(
    name: &'static str,
    handler: Handler,
    flags: Flags,
) -> CommandSpec {
    spec(name, handler).since("0.2.0").flags(flags).group(Group::Lock)
}

const BAD_OWNER: CommandError =
    CommandError::Text("ERR a lock's owner has 1 to 256 bytes and does not begin with a colon");
const BAD_FENCE: CommandError = CommandError::Text("ERR fence is not an integer or out of range");
const BAD_HOLDS: CommandError = CommandError::Text("ERR MAXHOLDS should be greater than 0");
const TOO_MANY_HOLDS: CommandError =
    CommandError::Text("MAXHOLDS the owner already holds the lock that many times");

/// Locks or permits that one request may take.
const TAKEN_MAX: usize = 1000;
const TOO_MANY_AT_ONCE: CommandError =
    CommandError::Text("ERR a request takes 1000 locks or permits at most");

/// Room for the fields of a new lock.
const NEW_BYTES: usize = 128;

/// The reply of LOCK.RELEASE where there is no lock, and where another owner or grant has it.
const NO_LOCK: i64 = -1;
const NOT_YOURS: i64 = -2;

// ---- arguments -----------------------------------------------------------------------------------------------------------

/// An owner's name. Errors: it is not one.
pub(super) fn owner_of(argument: &[u8]) -> Result<&[u8], CommandError> {
    Some(argument).filter(|name| may_own(name)).ok_or(BAD_OWNER)
}

/// A time in milliseconds, up to [`lock::LEASE_MS_MAX`].
fn take_lease(arguments: &mut Cursor<'_>, name: &'static str) -> Result<i64, CommandError> {
    let ms = arguments.take_integer()?;
    Some(ms)
        .filter(|ms| (1..=lock::LEASE_MS_MAX).contains(ms))
        .ok_or(CommandError::InvalidExpire(name))
}

/// The indices of counted keys.
fn take_keys(arguments: &mut Cursor<'_>) -> Result<ops::Range<usize>, CommandError> {
    arguments.take_keys(1, 1).map_err(|bad| match bad {
        BadKeyCount::TooLarge(_) => CommandError::MANY_KEYS,
        BadKeyCount::NotInteger | BadKeyCount::TooSmall => CommandError::FEW_KEYS,
    })
}

pub(super) fn take_fence(arguments: &mut Cursor<'_>) -> Result<u64, CommandError> {
    let fence = parse_i64(arguments.take()?).and_then(|fence| u64::try_from(fence).ok());
    fence.ok_or(BAD_FENCE)
}

/// The arguments of LOCK.ACQUIRE after the key.
struct Acquire<'a> {
    owner: &'a [u8],
    lease_ms: i64,
    /// BLOCK: until when it waits, boot-time clock in microseconds, or for ever.
    wait_until_us: Option<Option<i64>>,
    /// SESSION: how long the lease lasts after the connection has closed.
    grace_ms: Option<i64>,
    /// REENTRANT: how often the owner may hold the lock.
    holds_max: Option<i64>,
}

impl<'a> Acquire<'a> {
    /// Parses `owner PX ms [BLOCK ms] [SESSION GRACE ms] [REENTRANT [MAXHOLDS n]]` of the command `name`, which errors quote.
    fn parse(
        ctx: &Context<'a>,
        mut arguments: Cursor<'a>,
        name: &'static str,
    ) -> Result<Self, CommandError> {
        let owner = owner_of(arguments.take()?)?;
        let (mut lease_ms, mut wait_until_us, mut holds_max) = (None, None, None);
        let mut grace_ms = None;
        while !arguments.is_at_end() {
            if lease_ms.is_none() && arguments.take_word("PX") {
                lease_ms = Some(take_lease(&mut arguments, name)?);
            } else if wait_until_us.is_none() && arguments.take_word("BLOCK") {
                let timeout = arguments.take()?;
                let until = parse_timeout(timeout, TimeoutUnit::Milliseconds, ctx.state.now)?;
                wait_until_us = Some(until);
            } else if grace_ms.is_none() && arguments.take_word("SESSION") {
                if !arguments.take_word("GRACE") {
                    return Err(CommandError::Syntax);
                }
                grace_ms = Some(take_lease(&mut arguments, name)?);
            } else if holds_max.is_none() && arguments.take_word("REENTRANT") {
                let most = match arguments.take_word("MAXHOLDS") {
                    true => arguments.take_positive(BAD_HOLDS)? as i64,
                    false => i64::MAX,
                };
                holds_max = Some(most);
            } else {
                return Err(CommandError::Syntax);
            }
        }
        let lease_ms = lease_ms.ok_or(CommandError::Syntax)?;
        Ok(Acquire { owner, lease_ms, wait_until_us, grace_ms, holds_max })
    }

    /// Grace and lease of the session that is asked for.
    fn session(&self) -> Option<(i64, i64)> {
        self.grace_ms.map(|grace_ms| (grace_ms, self.lease_ms))
    }
}

/// A key's lock and where it lies; None: nobody holds it. The name of another owner than the one that asks is copied.
/// Errors: WRONGTYPE.
pub(super) fn find<'a>(
    ctx: &mut Context<'_>,
    key: Key<'_>,
    asking: &'a [u8],
) -> Result<(Option<Slot>, Option<Lock<'a>>), CommandError> {
    let Some(slot) = ctx.keyspace.find_for_write(key) else { return Ok((None, None)) };
    let found = lock::read(ctx.keyspace.entry(slot).value(), &ctx.keyspace.now())?;
    let found = found.map(|lock| match *lock.owner == *asking {
        true => Lock { owner: asking.into(), ..lock },
        false => lock.into_owned(),
    });
    Ok((Some(slot), found))
}

/// Milliseconds left of the lease at `slot`; -1: it does not end.
pub(super) fn ms_left(ctx: &Context<'_>, slot: Slot) -> i64 {
    let deadline = ctx.keyspace.entry(slot).deadline();
    deadline.map_or(-1, |deadline| ctx.keyspace.now().remaining_ms(deadline).max(0))
}

// ---- LOCK.ACQUIRE --------------------------------------------------------------------------------------------------------

/// `LOCK.ACQUIRE key owner PX ms [BLOCK ms] [SESSION GRACE ms] [REENTRANT [MAXHOLDS n]]`: an array of
/// fence, holds and milliseconds left; if it is not granted, of 0, the milliseconds left of the
/// holder's lease, the number of waiting clients and the holder.
fn acquire(ctx: &mut Context<'_>) -> CommandResult {
    let asked = Acquire::parse(ctx, ctx.args.cursor(2), "lock.acquire")?;
    let key = ctx.key(1);
    let (slot, found) = find(ctx, key, asked.owner)?;
    match (slot, found) {
        (Some(slot), Some(lock)) if lock.is_held_by(asked.owner, None) && !lock.is_string => {
            match ends_in_vain(ctx) {
                true => refuse(ctx, key, &asked, Some((slot, lock))),
                false => grant_again(ctx, key, slot, lock, &asked),
            }
        }
        (Some(slot), Some(lock)) => refuse(ctx, key, &asked, Some((slot, lock))),
        _ if has_its_turn_later(ctx, key, Wanted::Lock) => refuse(ctx, key, &asked, None),
        _ => grant(ctx, key, &asked),
    }
}

/// Whether a client whose time is over can be granted nothing now.
fn ends_in_vain(ctx: &Context<'_>) -> bool {
    ctx.origin == Origin::TimedOut && ctx.state.grants_nothing()
}

/// Whether others have waited longer for what nobody holds. A woken client comes when it is its turn.
fn has_its_turn_later(ctx: &Context<'_>, key: Key<'_>, wanted: Wanted) -> bool {
    let database = ctx.keyspace.selected();
    ends_in_vain(ctx)
        || !matches!(ctx.origin, Origin::Woken(_))
            && ctx.keyspace.waiting.next_after(database, key.bytes, wanted, 0).is_some()
}

/// Waits for what is not granted until `until_us`, the time of BLOCK. None: nothing waits here, or the time is over.
fn wait(
    ctx: &mut Context<'_>,
    wanted: Wanted,
    keys: ops::Range<usize>,
    until_us: Option<Option<i64>>,
    obstacle: Key<'_>,
) -> Option<CommandResult> {
    if ctx.origin == Origin::TimedOut {
        ctx.keyspace.locks.stats.timeouts += 1;
    }
    let deadline_us = until_us.filter(|_| ctx.may_wait())?;
    if ctx.origin == Origin::Client {
        let event = if wanted == Wanted::Lock { "lockwait" } else { "semwait" };
        ctx.keyspace.notify(KeyspaceEvents::LOCK, event, obstacle.bytes);
    }
    Some(ctx.block(Wait { wanted, keys, deadline_us, rewritten: None }))
}

/// Grants a lock that nobody holds.
fn grant(ctx: &mut Context<'_>, key: Key<'_>, asked: &Acquire<'_>) -> CommandResult {
    // Whoever has waited gets the lock without memory too.
    if !matches!(ctx.origin, Origin::Woken(_)) {
        check_room(ctx)?;
    }
    // Whoever held it until now has lost it.
    locks::review(ctx.keyspace, ctx.state);
    let fence = ctx.keyspace.locks.fences.grant();
    let deadline = ctx.keyspace.now().after(asked.lease_ms);
    // A hash without an owner, which may have been evicted just now.
    let slot = ctx.keyspace.find_for_write(key);
    write_grant(ctx, key, slot, asked, fence, deadline);
    reply_granted(ctx, fence, 1, asked.lease_ms);
    Ok(Outcome::Replied)
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
    let lock = Lock {
        owner: asked.owner.into(),
        holds: 1,
        fence: Some(fence),
        since_ms: Some(ctx.state.now.unix().0),
        session: asked.session(),
        is_string: false,
        is_shared: false,
    };
    write(ctx, key, slot, &lock, Some(deadline));
    note_held(ctx, key, fence, &lock);
    if let Some(client) = ctx.caller.client() {
        let database = ctx.keyspace.selected();
        ctx.keyspace.locks.note_granted(database, key.bytes, fence, client);
    }
    ctx.keyspace.locks.stats.grants += 1;
}

/// Grants a lock to its owner again: the same grant, once more if it is reentrant. Its lease is never shortened.
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
    let old = ctx.keyspace.entry(slot).deadline();
    let deadline = longer_lease(ctx, old, asked.lease_ms);
    // One that was made by a client library gets a fence now.
    let fence = lock.fence.unwrap_or_else(|| ctx.keyspace.locks.fences.grant());
    let again = Lock {
        holds,
        fence: Some(fence),
        since_ms: lock.since_ms.or(Some(ctx.state.now.unix().0)),
        session: asked.session().or(lock.session),
        ..lock.clone()
    };
    if again != lock {
        write(ctx, key, Some(slot), &again, deadline);
    } else if deadline != old {
        extend(ctx, key, slot, deadline);
    }
    let (database, client) = (ctx.keyspace.selected(), ctx.caller.client());
    let held = ctx.keyspace.locks.get(database, key.bytes);
    if held.is_none() || again.session != lock.session {
        note_held(ctx, key, fence, &again);
    } else {
        ctx.keyspace.locks.bind(database, key.bytes, client);
        sessions::look_again(ctx.keyspace, database, key.bytes);
    }
    let ms_left = ms_left(ctx, slot);
    reply_granted(ctx, fence, holds, ms_left);
    Ok(Outcome::Replied)
}

/// Adds a lock to the index, as one of the calling client.
fn note_held(ctx: &mut Context<'_>, key: Key<'_>, fence: u64, lock: &Lock<'_>) {
    let database = ctx.keyspace.selected();
    let session = lock
        .session
        .map(|(grace_ms, lease_ms)| Box::new(Session::new(&lock.owner, grace_ms, lease_ms)));
    let (client, since_us) = (ctx.caller.client(), ctx.state.now.boot_us);
    let is_kept = *lock.owner == *lock::KEEP;
    let client = client.filter(|_| !is_kept);
    let held = Held { fence, client, since_us, renewals: 0, session, is_kept };
    ctx.keyspace.locks.insert(database, key.bytes, held);
    sessions::look_again(ctx.keyspace, database, key.bytes);
}

fn reply_granted(ctx: &mut Context<'_>, fence: u64, holds: i64, ms_left: i64) {
    ctx.reply.array(3);
    ctx.reply.integer(fence as i64);
    ctx.reply.integer(holds);
    ctx.reply.integer(ms_left);
}

/// Waits for a lock that another has, or replies who has it. None: it is free, but others have waited longer.
fn refuse(
    ctx: &mut Context<'_>,
    key: Key<'_>,
    asked: &Acquire<'_>,
    holder: Option<(Slot, Lock<'_>)>,
) -> CommandResult {
    if let Some(waits) = wait(ctx, Wanted::Lock, 1..2, asked.wait_until_us, key) {
        return waits;
    }
    let database = ctx.keyspace.selected();
    let ms_left = holder.as_ref().map_or(-1, |(slot, _)| ms_left(ctx, *slot));
    ctx.reply.array(4);
    ctx.reply.integer(0);
    ctx.reply.integer(ms_left);
    ctx.reply.integer(ctx.keyspace.waiting.len(database, key.bytes, Wanted::Lock) as i64);
    ctx.reply.bulk(holder.as_ref().map_or(&[], |(_, lock)| &lock.owner));
    Ok(Outcome::Replied)
}

/// Errors: there is no memory for another lock, and nothing to evict.
fn check_room(ctx: &mut Context<'_>) -> Result<(), CommandError> {
    if !ctx.state.applies_maxmemory() || ctx.is_repeated() {
        return Ok(());
    }
    let is_full = match &ctx.state.scripts.running {
        Some(running) => running.out_of_memory && !running.wrote && !running.allow_oom,
        None => evict::evict(ctx.keyspace, ctx.state) == Room::NoMore,
    };
    if is_full { Err(CommandError::OutOfMemory) } else { Ok(()) }
}

// ---- changes -------------------------------------------------------------------------------------------------------------

/// Writes a lock and its deadline. `slot`: where the key lies, if there is one.
fn write(
    ctx: &mut Context<'_>,
    key: Key<'_>,
    slot: Option<Slot>,
    granted: &Lock<'_>,
    deadline: Option<Deadline>,
) {
    let (limits, now) = (limits(ctx), ctx.keyspace.now());
    let holds = number::format_i64(granted.holds);
    let fence = granted.fence.map(|fence| number::format_i64(fence as i64));
    let since = granted.since_ms.map(number::format_i64);
    let session = granted.session.map(|(grace_ms, lease_ms)| format!("{grace_ms} {lease_ms}"));
    let mut request: SmallVec<[&[u8]; 10]> =
        smallvec![&b"HSET"[..], key.bytes, &*granted.owner, holds.as_ref()];
    let reserved = [
        (lock::FENCE, fence.as_ref().map(AsRef::as_ref)),
        (lock::SINCE, since.as_ref().map(AsRef::as_ref)),
        (lock::SESSION, session.as_ref().map(String::as_bytes)),
    ];
    for (field, value) in reserved {
        request.extend(value.into_iter().flat_map(|value: &[u8]| [field, value]));
    }
    let mut had_session = false;
    let mut set = |hash: &mut Edit<'_, Hash>| {
        for pair in request[2..].chunks_exact(2) {
            hash.set(pair[0], pair[1], Expiry::Clear, &limits, &now);
        }
        had_session = granted.session.is_none() && hash.remove(lock::SESSION, &now);
    };
    ctx.keyspace.locks.begin_own_change();
    match slot {
        Some(slot) => {
            ctx.keyspace.edit::<Hash, _>(slot, set);
            ctx.keyspace.set_deadline(slot, deadline);
        }
        None => {
            let mut hash = Hash::Packed(Vec::with_capacity(NEW_BYTES));
            set(&mut Edit::unnoted(&mut hash));
            ctx.keyspace.insert_collection_until(key, hash, deadline);
        }
    }
    ctx.keyspace.changed(KeyspaceEvents::LOCK, "lock", key.bytes);
    ctx.keyspace.locks.end_own_change();
    ctx.instead(&request);
    if had_session {
        ctx.instead(&[b"HDEL", key.bytes, lock::SESSION]);
    }
    repeat_deadline(ctx, key, deadline);
}

fn repeat_deadline(ctx: &mut Context<'_>, key: Key<'_>, deadline: Option<Deadline>) {
    if let Some(deadline) = deadline {
        let at_ms = deadline.unix(ctx.keyspace.wall_offset_ms()).0;
        ctx.instead_with(&[b"PEXPIREAT", key.bytes], at_ms);
    }
}

/// The later of a lease's deadline and one `ms` from now. A lease that does not end stays.
fn longer_lease(ctx: &Context<'_>, old: Option<Deadline>, ms: i64) -> Option<Deadline> {
    let now = ctx.keyspace.now();
    old.map(|old| if now.remaining_ms(old) >= ms { old } else { now.after(ms) })
}

/// Sets a later deadline.
fn extend(ctx: &mut Context<'_>, key: Key<'_>, slot: Slot, deadline: Option<Deadline>) {
    ctx.keyspace.locks.begin_own_change();
    ctx.keyspace.set_deadline(slot, deadline);
    ctx.keyspace.changed(KeyspaceEvents::LOCK, "lockrenew", key.bytes);
    ctx.keyspace.locks.end_own_change();
    repeat_deadline(ctx, key, deadline);
}

/// Deletes a lock.
fn delete(ctx: &mut Context<'_>, key: Key<'_>, slot: Slot) -> Option<Held> {
    ctx.keyspace.locks.begin_own_change();
    ctx.keyspace.delete_at(slot, key, "del");
    ctx.keyspace.locks.end_own_change();
    let database = ctx.keyspace.selected();
    ctx.keyspace.locks.remove(database, key.bytes)
}

// ---- LOCK.RELEASE --------------------------------------------------------------------------------------------------------

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

/// `LOCK.RELEASE key owner [ALL] [FENCE fence] [KEEP ms]`: how often the owner still holds the lock; -1 if there is none, -2
/// if another owner or another grant has it.
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
    if holds_left > 0 {
        let deadline = ctx.keyspace.entry(slot).deadline();
        write(ctx, key, Some(slot), &Lock { holds: holds_left, ..lock }, deadline);
    } else {
        pass_on(ctx, key, slot, options.keep_ms);
    }
    ctx.reply.integer(holds_left);
    Ok(Outcome::Replied)
}

/// Frees a lock for whoever is next, or keeps it from everybody for a time.
fn pass_on(ctx: &mut Context<'_>, key: Key<'_>, slot: Slot, keep_ms: Option<i64>) {
    let held = delete(ctx, key, slot);
    ctx.keyspace.notify(KeyspaceEvents::LOCK, "unlock", key.bytes);
    ctx.instead(&[b"DEL", key.bytes]);
    if let Some(held) = held {
        locks::note_hold(ctx.state, held.since_us);
    }
    if let Some(ms) = keep_ms {
        let deadline = ctx.keyspace.now().after(ms);
        let fence = ctx.keyspace.locks.fences.grant();
        let kept = Lock {
            owner: lock::KEEP.into(),
            holds: 1,
            fence: Some(fence),
            since_ms: Some(ctx.state.now.unix().0),
            session: None,
            is_string: false,
            is_shared: false,
        };
        write(ctx, key, None, &kept, Some(deadline));
        note_held(ctx, key, fence, &kept);
    }
    let database = ctx.keyspace.selected();
    locks::tell_redisson(ctx.keyspace, ctx.state, database, key.bytes);
}

/// Frees a lock that is broken. Its holder is told.
fn pass_on_broken(ctx: &mut Context<'_>, key: Key<'_>, slot: Slot) {
    ctx.keyspace.locks.begin_own_change();
    ctx.keyspace.delete_at(slot, key, "del");
    ctx.keyspace.locks.end_own_change();
    ctx.instead(&[b"DEL", key.bytes]);
    let database = ctx.keyspace.selected();
    locks::end(ctx.keyspace, ctx.state, database, key.bytes, EndReason::Broken);
}

// ---- LOCK.RENEW, LOCK.GUARD ----------------------------------------------------------------------------------------------

/// `LOCK.RENEW numkeys key [key ...] owner PX ms`: an array of the locks' fences, 0 for each that the owner does not hold,
/// and -1 for one without a fence.
fn renew(ctx: &mut Context<'_>) -> CommandResult {
    let mut arguments = ctx.args.cursor(1);
    let keys = take_keys(&mut arguments)?;
    let owner = owner_of(arguments.take()?)?;
    if !arguments.take_word("PX") {
        return Err(CommandError::Syntax);
    }
    let lease_ms = take_lease(&mut arguments, "lock.renew")?;
    if !arguments.is_at_end() {
        return Err(CommandError::Syntax);
    }
    // Of another type than a lock: nothing is renewed.
    for index in keys.clone() {
        let key = ctx.key(index);
        find(ctx, key, owner)?;
    }
    ctx.reply.array(keys.len());
    for index in keys {
        let key = ctx.key(index);
        let fence = match find(ctx, key, owner)? {
            (Some(slot), Some(lock)) if lock.is_held_by(owner, None) => {
                prolong(ctx, key, slot, lease_ms);
                let database = ctx.keyspace.selected();
                ctx.keyspace.locks.count_renewal(database, key.bytes);
                lock.fence.map_or(-1, |fence| fence as i64)
            }
            _ => 0,
        };
        ctx.reply.integer(fence);
    }
    Ok(Outcome::Replied)
}

/// Extends a lease to `lease_ms` from now, unless it is longer, and binds the lock to the calling client.
fn prolong(ctx: &mut Context<'_>, key: Key<'_>, slot: Slot, lease_ms: i64) {
    let old = ctx.keyspace.entry(slot).deadline();
    let new = longer_lease(ctx, old, lease_ms);
    if new != old {
        extend(ctx, key, slot, new);
    }
    let (database, client) = (ctx.keyspace.selected(), ctx.caller.client());
    ctx.keyspace.locks.bind(database, key.bytes, client);
    sessions::look_again(ctx.keyspace, database, key.bytes);
}

/// Whether the calling client may send a request, by its user's rules.
pub(super) fn may_use(ctx: &Context<'_>, name: &'static str, arguments: &[&[u8]]) -> bool {
    let Some(command) = ctx.state.commands.find(name.as_bytes()) else { return false };
    let (mut buffer, mut ranges) = (Vec::new(), Vec::new());
    for argument in std::iter::once(name.as_bytes()).chain(arguments.iter().copied()) {
        ranges.push(Range { start: buffer.len() as u32, len: argument.len() as u32 });
        buffer.extend_from_slice(argument);
    }
    let args = Args::new(&buffer, &ranges);
    users::check_client(ctx.state, ctx.caller.client(), command, args).is_ok()
}

/// `LOCK.ATTACH owner [owner ...]`: how many locks with sessions of these owners are bound to this connection now.
fn attach(ctx: &mut Context<'_>) -> CommandResult {
    for owner in ctx.args.iter_from(1) {
        owner_of(owner)?;
    }
    let id = ctx.client_id();
    let (mut bound, before) = (0, ctx.keyspace.changes_by_commands());
    let selected = ctx.keyspace.selected();
    for owner in ctx.args.iter_from(1) {
        for (database, key) in ctx.keyspace.locks.of_owner(owner) {
            // Others are none of this client's.
            if database != selected
                || !may_use(ctx, "LOCK.RENEW", &[b"1", &key, owner, b"PX", b"1"])
            {
                continue;
            }
            sessions::bind(ctx.keyspace, ctx.state, database, &key, id);
            bound += 1;
        }
    }
    if ctx.keyspace.changes_by_commands() != before {
        // The new deadlines.
        ctx.effect = Effect::Instead;
    }
    ctx.reply.integer(bound);
    Ok(Outcome::Replied)
}

/// `LOCK.GUARD key owner [FENCE fence]`: 1 if the owner holds the lock, in that grant if a fence is given; else 0.
fn guard(ctx: &mut Context<'_>) -> CommandResult {
    let holds = is_guarded(ctx, ctx.args)?;
    ctx.reply.integer(i64::from(holds));
    Ok(Outcome::Replied)
}

/// Whether the owner that a LOCK.GUARD names holds the lock.
pub(in crate::command) fn is_guarded(
    ctx: &mut Context<'_>,
    args: Args<'_>,
) -> Result<bool, CommandError> {
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
    let key = ctx.keyspace.key(args.get(1));
    let Some(slot) = ctx.keyspace.find_for_read(key) else { return Ok(false) };
    let found = lock::read(ctx.keyspace.entry(slot).value(), &ctx.keyspace.now())?;
    Ok(found.is_some_and(|lock| lock.is_held_by(owner, fence)))
}
