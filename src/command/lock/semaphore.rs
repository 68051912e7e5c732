//! Semaphores: SEM.ACQUIRE, SEM.RELEASE, SEM.RENEW, SEM.INFO.
//!
//! A semaphore is a sorted set of permits, `owner#fence#number`, whose scores are their deadlines
//! in Unix milliseconds; the key ends with its last permit. Waiting clients sleep until a permit is
//! given back or the first one ends: each key has one alarm (`keyspace/waiting.rs`).

use super::{
    TAKEN_MAX, TOO_MANY_AT_ONCE, Waiting, Waits, check_room, ends_in_vain, has_its_turn_later,
    leave_place, lock_spec, owner_of, take_lease, wait,
};
use crate::client::handed::{Renewed, RenewedPermit};
use crate::clock::UnixMillis;
use crate::collections::table::Slot;
use crate::command::sorted_set::limits;
use crate::command::timeout::{TimeoutUnit, parse_timeout};
use crate::config::KeyspaceEvents;
use crate::error::CommandError;
use crate::gate::{handed, permits as permit_sessions};
use crate::keyspace::Key;
use crate::keyspace::permits::PermitSession;
use crate::keyspace::waiting::Wanted;
use crate::state::context::{CommandResult, Context, Origin, Outcome};
use crate::state::spec::{CommandSpec, Flags, KeySpec};
use crate::types::journal::Edit;
use crate::types::lock::{self, PERMITS_MAX};
use crate::types::sorted_set::SortedSet;

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    lock_spec("SEM.ACQUIRE", acquire, Flags::WRITE_BLOCKING).at_least(7).keys(KeySpec::RW_ACCESS_UPDATE)
        .docs("key owner LIMIT limit PX milliseconds [COUNT count] [BLOCK milliseconds] [SESSION GRACE milliseconds]",
            "Takes permits of a semaphore for a time, or waits for them in the order of arrival.", "O(N) with N permits that are held"),
    lock_spec("SEM.INFO", info, Flags::READONLY).exactly(2).keys(KeySpec::RO_ACCESS)
        .docs("key", "Returns the permits of a semaphore that are held.", "O(N) with N permits"),
    lock_spec("SEM.RELEASE", release, Flags::WRITE_FAST).at_least(3).keys(KeySpec::RW_ACCESS_DELETE)
        .docs("key permit [permit ...]", "Gives permits back, and serves the clients that wait for them.", "O(M*log(N)) with M permits of N"),
    lock_spec("SEM.RENEW", renew, Flags::WRITE_FAST).exactly(5).keys(KeySpec::RW_ACCESS_UPDATE)
        .docs("key permit PX milliseconds", "Extends the time of a permit.", "O(log(N))"),
];

const BAD_LIMIT: CommandError = CommandError::Text("ERR LIMIT should be between 1 and 10000");
const COUNT_ABOVE_LIMIT: CommandError = CommandError::Text("ERR COUNT is greater than LIMIT");
/// The latest deadline: above it scores are not exact.
const DEADLINE_MS_MAX: i64 = 1 << 53;

/// The arguments of SEM.ACQUIRE after the key.
struct Acquire<'a> {
    owner: &'a [u8],
    limit: usize,
    lease_ms: i64,
    count: usize,
    waits: Waits,
    /// SESSION: the time that the permits last after the connection has closed.
    grace_ms: Option<i64>,
}

impl<'a> Acquire<'a> {
    /// Parses `owner LIMIT n PX ms [COUNT c] [BLOCK ms] [SESSION GRACE ms]`.
    fn parse(ctx: &Context<'a>) -> Result<Self, CommandError> {
        let mut arguments = ctx.args.cursor(2);
        let owner = owner_of(arguments.take()?)?;
        let (mut limit, mut lease_ms, mut count, mut waits) = (None, None, None, Waits::Not);
        let mut grace_ms = None;
        while !arguments.is_at_end() {
            if limit.is_none() && arguments.take_word("LIMIT") {
                let most = arguments.take_positive(BAD_LIMIT)?;
                limit = Some(Some(most).filter(|&most| most <= PERMITS_MAX).ok_or(BAD_LIMIT)?);
            } else if lease_ms.is_none() && arguments.take_word("PX") {
                lease_ms = Some(take_lease(&mut arguments, "sem.acquire")?);
            } else if count.is_none() && arguments.take_word("COUNT") {
                count = Some(arguments.take_positive(CommandError::SMALL_COUNT)?);
            } else if waits == Waits::Not && arguments.take_word("BLOCK") {
                let timeout = arguments.take()?;
                let until = parse_timeout(timeout, TimeoutUnit::Milliseconds, ctx.core.state.now)?;
                waits = Waits::Blocked(until);
            } else if grace_ms.is_none() && arguments.take_word("SESSION") {
                if !arguments.take_word("GRACE") {
                    return Err(CommandError::Syntax);
                }
                grace_ms = Some(take_lease(&mut arguments, "sem.acquire")?);
            } else {
                return Err(CommandError::Syntax);
            }
        }
        let limit = limit.ok_or(CommandError::Syntax)?;
        let lease_ms = lease_ms.ok_or(CommandError::Syntax)?;
        let count = count.unwrap_or(1);
        if count > limit {
            return Err(COUNT_ABOVE_LIMIT);
        }
        if count > TAKEN_MAX {
            return Err(TOO_MANY_AT_ONCE);
        }
        Ok(Acquire { owner, limit, lease_ms, count, waits, grace_ms })
    }
}

/// Unix milliseconds `lease_ms` from now. Errors: too late for a score.
fn deadline(ctx: &Context<'_>, lease_ms: i64, name: &'static str) -> Result<f64, CommandError> {
    let at_ms = ctx.core.state.now.unix().0.saturating_add(lease_ms);
    if at_ms >= DEADLINE_MS_MAX { Err(CommandError::InvalidExpire(name)) } else { Ok(at_ms as f64) }
}

/// `SEM.ACQUIRE key owner LIMIT n PX ms [COUNT c] [BLOCK ms] [SESSION GRACE ms]`: an array of the
/// permits, their fence, and the number of permits still free; if they are not granted, of 0, the
/// milliseconds until the first permit ends (-1: none is held, but other clients have waited
/// longer), and the number of waiting clients.
fn acquire(ctx: &mut Context<'_>) -> CommandResult {
    let asked = Acquire::parse(ctx)?;
    let until = deadline(ctx, asked.lease_ms, "sem.acquire")?;
    let key = ctx.key(1);
    if ends_in_vain(ctx) {
        let slot = ctx.core.keyspace.slot_of::<SortedSet>(key)?;
        return refuse(ctx, key, slot, &asked);
    }
    let slot = remove_ended(ctx, key)?;
    let (mut used, mut own) = (0, Vec::new());
    if let Some(slot) = slot {
        for (score, permit) in ctx.core.keyspace.view::<SortedSet>(slot)?.iter() {
            used += 1;
            if lock::owner_of_permit(permit.as_ref()) == asked.owner {
                own.push((score, permit.as_ref().to_vec()));
            }
        }
    }
    let needed = asked.count.saturating_sub(own.len());
    if needed > 0
        && (used + needed > asked.limit || has_its_turn_later(ctx, key, Wanted::Semaphore))
    {
        return refuse(ctx, key, slot, &asked);
    }
    if needed > 0 && !matches!(ctx.origin, Origin::Woken(_)) {
        check_room(ctx)?;
    }
    let fence = match own.first() {
        Some((_, permit)) if needed == 0 => lock::fence_of_permit(permit),
        _ => ctx.core.keyspace.locks.fences.grant(),
    };
    own.truncate(asked.count);
    let (database, caller) = (ctx.core.keyspace.selected(), ctx.caller.client());
    if let Some(client) = caller.filter(|_| !own.is_empty()) {
        let known: Vec<&[u8]> = own.iter().map(|(_, permit)| &**permit).collect();
        handed::know_permits(ctx.core, client, (database, key.bytes), &known);
    }
    let renewed = (!own.is_empty()).then(|| renewed(ctx, key, &asked, (&own, until)));
    let known = own.len();
    let mut permits: Vec<(f64, Vec<u8>)> =
        own.into_iter().map(|(score, permit)| (score.max(until), permit)).collect();
    for number in 1..=needed {
        let suffix = format!("#{fence}#{number}");
        permits.push((until, [asked.owner, suffix.as_bytes()].concat()));
    }
    put(ctx, key, &permits, "semacquire");
    if needed > 0 {
        ctx.core.keyspace.locks.stats.grants += 1;
        leave_place(ctx, Wanted::Semaphore, 1..2);
        if let Some(client) = caller {
            let new = permits[known..].iter().map(|(_, permit)| permit.as_slice().into());
            handed::note_permits(ctx.core, client, (database, key.bytes), new.collect());
        }
    }
    // After new ones: these go first.
    if let Some((client, renewed)) = caller.zip(renewed) {
        ctx.core.state.handed.push_renewed(client, renewed);
    }
    if let Some(client) = ctx.caller.client()
        && let Some(grace_ms) = asked.grace_ms
    {
        let session = PermitSession {
            database,
            key: key.bytes.into(),
            owner: asked.owner.into(),
            permits: permits.iter().map(|(_, permit)| permit.as_slice().into()).collect(),
            lease_ms: asked.lease_ms,
            grace_ms,
            client: Some(client),
        };
        permit_sessions::begin(ctx.core, session);
    }
    ctx.reply.array(3);
    ctx.reply.array(permits.len());
    permits.iter().for_each(|(_, permit)| ctx.reply.bulk(permit));
    ctx.reply.integer(fence as i64);
    ctx.reply.integer(asked.limit.saturating_sub(used + needed) as i64);
    Ok(Outcome::Replied)
}

/// Permits that are about to last until `until` at least, as they are now.
fn renewed(
    ctx: &Context<'_>,
    key: Key<'_>,
    asked: &Acquire<'_>,
    (own, until): (&[(f64, Vec<u8>)], f64),
) -> Box<Renewed> {
    let permits = own.iter().map(|(before_ms, permit)| RenewedPermit {
        permit: permit.as_slice().into(),
        before_ms: *before_ms,
        after_ms: before_ms.max(until),
    });
    let database = ctx.core.keyspace.selected();
    let session =
        asked.grace_ms.map(|_| ctx.core.keyspace.permits.of(database, key.bytes, asked.owner));
    let (key, owner) = (key.bytes.into(), asked.owner.into());
    Box::new(Renewed {
        database,
        key,
        owner,
        permits: permits.collect(),
        session: session.map(Option::<&PermitSession>::cloned),
    })
}

fn refuse(
    ctx: &mut Context<'_>,
    key: Key<'_>,
    slot: Option<Slot>,
    asked: &Acquire<'_>,
) -> CommandResult {
    if let Waiting::Blocked(waits) =
        wait(ctx, Wanted::Semaphore, 1..2, (asked.waits, asked.grace_ms), key)?
    {
        return waits;
    }
    let first = match slot {
        Some(slot) => ctx.core.keyspace.view::<SortedSet>(slot)?.first().map(|(score, _)| score),
        None => None,
    };
    let now_ms = ctx.core.state.now.unix().0;
    let database = ctx.core.keyspace.selected();
    ctx.reply.array(3);
    ctx.reply.integer(0);
    ctx.reply.integer(first.map_or(-1, |score| (score as i64).saturating_sub(now_ms).max(0)));
    ctx.reply.integer(ctx.core.keyspace.waiting.len(database, key.bytes, Wanted::Semaphore) as i64);
    Ok(Outcome::Replied)
}

/// Removes the permits whose time is over. Returns the semaphore's slot, if permits are left.
/// Errors: WRONGTYPE.
fn remove_ended(ctx: &mut Context<'_>, key: Key<'_>) -> Result<Option<Slot>, CommandError> {
    let Some(slot) = ctx.core.keyspace.slot_of::<SortedSet>(key)? else { return Ok(None) };
    if ctx.core.keyspace.view::<SortedSet>(slot)?.len() > PERMITS_MAX {
        return Err(CommandError::WrongType);
    }
    let now_ms = ctx.core.state.now.unix().0 as f64;
    let view = ctx.core.keyspace.view::<SortedSet>(slot)?;
    // Another kind of sorted set is left alone.
    if view.iter().any(|(_, member)| !lock::is_permit(member.as_ref())) {
        return Err(CommandError::WrongType);
    }
    // The index may not have the semaphore yet, if another command made its key.
    ctx.core.keyspace.semaphores.note(ctx.core.keyspace.selected(), key.bytes);
    let view = ctx.core.keyspace.view::<SortedSet>(slot)?;
    let ended = view.iter().take_while(|(at, _)| *at < now_ms);
    let ended: Vec<Vec<u8>> = ended.map(|(_, permit)| permit.as_ref().to_vec()).collect();
    if ended.is_empty() {
        return Ok(Some(slot));
    }
    let ended: Vec<&[u8]> = ended.iter().map(Vec::as_slice).collect();
    let is_gone = remove(ctx, key, slot, &ended, "semexpired");
    Ok((!is_gone).then_some(slot))
}

/// Removes existing permits. Returns whether they were the last, so that the semaphore is deleted.
fn remove(
    ctx: &mut Context<'_>,
    key: Key<'_>,
    slot: Slot,
    permits: &[&[u8]],
    event: &'static str,
) -> bool {
    ctx.core.keyspace.edit::<SortedSet, _>(slot, |set| {
        for permit in permits {
            set.remove(permit);
        }
    });
    let database = ctx.core.keyspace.selected();
    for permit in permits {
        ctx.core.keyspace.permits.forget_permit(database, key.bytes, permit);
    }
    ctx.core.keyspace.changed_by(permits.len() as u64, KeyspaceEvents::LOCK, event, key.bytes);
    ctx.instead_gathered(|_, request| {
        request.extend([b"ZREM".to_vec(), key.bytes.to_vec()]);
        request.extend(permits.iter().map(|permit| permit.to_vec()));
    });
    ctx.core.keyspace.delete_if_empty::<SortedSet>(slot, key)
}

/// Adds permits, or sets their deadlines, and lets the key end with its last permit.
fn put(ctx: &mut Context<'_>, key: Key<'_>, permits: &[(f64, Vec<u8>)], event: &'static str) {
    let limits = limits(ctx);
    let add = |set: &mut Edit<'_, SortedSet>| {
        for (score, permit) in permits {
            set.update(permit, limits, |_| Some(*score));
        }
    };
    let slot = match ctx.core.keyspace.find_for_write(key) {
        Some(slot) => {
            ctx.core.keyspace.edit::<SortedSet, _>(slot, add);
            slot
        }
        None => {
            let mut set = SortedSet::new();
            add(&mut Edit::unnoted(&mut set));
            ctx.core.keyspace.insert_collection(key, set)
        }
    };
    let last = match ctx.core.keyspace.view::<SortedSet>(slot) {
        Ok(view) => view.get(view.len() - 1).map_or(0.0, |(score, _)| score) as i64,
        Err(_) => 0,
    };
    let deadline = ctx.core.keyspace.now().at(UnixMillis(last));
    ctx.core.keyspace.set_deadline(slot, Some(deadline));
    ctx.core.keyspace.semaphores.note(ctx.core.keyspace.selected(), key.bytes);
    ctx.core.keyspace.changed(KeyspaceEvents::LOCK, event, key.bytes);
    ctx.instead_gathered(|_, request| {
        request.extend([b"ZADD".to_vec(), key.bytes.to_vec()]);
        for (score, permit) in permits {
            request.extend([(*score as i64).to_string().into_bytes(), permit.clone()]);
        }
    });
    ctx.instead_with(&[b"PEXPIREAT", key.bytes], last);
}

/// `SEM.RELEASE key permit [permit ...]`: the number of these permits that were held.
fn release(ctx: &mut Context<'_>) -> CommandResult {
    let key = ctx.key(1);
    let Some(slot) = remove_ended(ctx, key)? else {
        ctx.reply.integer(0);
        return Ok(Outcome::Replied);
    };
    let view = ctx.core.keyspace.view::<SortedSet>(slot)?;
    let mut held: Vec<&[u8]> =
        ctx.args.iter_from(2).filter(|permit| view.score(permit).is_some()).collect();
    held.sort_unstable();
    held.dedup();
    if !held.is_empty() {
        remove(ctx, key, slot, &held, "semrelease");
    }
    ctx.reply.integer(held.len() as i64);
    Ok(Outcome::Replied)
}

/// `SEM.RENEW key permit PX ms`: 1 if the permit is held; its time is never shortened. Else 0.
fn renew(ctx: &mut Context<'_>) -> CommandResult {
    let mut arguments = ctx.args.cursor(3);
    if !arguments.take_word("PX") {
        return Err(CommandError::Syntax);
    }
    let lease_ms = take_lease(&mut arguments, "sem.renew")?;
    let until = deadline(ctx, lease_ms, "sem.renew")?;
    let (key, permit) = (ctx.key(1), ctx.args.get(2));
    let found = match remove_ended(ctx, key)? {
        Some(slot) => ctx.core.keyspace.view::<SortedSet>(slot)?.score(permit),
        None => None,
    };
    if found.is_some_and(|old| old < until) {
        put(ctx, key, &[(until, permit.to_vec())], "semrenew");
    }
    ctx.reply.integer(i64::from(found.is_some()));
    Ok(Outcome::Replied)
}

/// `SEM.INFO key`: a map of permits (an array of permit, owner and milliseconds left) and the
/// number of waiting clients.
fn info(ctx: &mut Context<'_>) -> CommandResult {
    let key = ctx.key(1);
    let now_ms = ctx.core.state.now.unix().0;
    let mut permits = Vec::new();
    if let Some(set) = ctx.core.keyspace.read::<SortedSet>(key)? {
        if set.len() > PERMITS_MAX {
            return Err(CommandError::WrongType);
        }
        let held = set.iter().filter(|(score, _)| *score >= now_ms as f64);
        permits.extend(held.map(|(score, permit)| (score as i64, permit.as_ref().to_vec())));
    }
    let database = ctx.core.keyspace.selected();
    ctx.reply.map(2);
    ctx.reply.bulk(b"permits");
    ctx.reply.array(permits.len());
    for (at_ms, permit) in &permits {
        ctx.reply.array(3);
        ctx.reply.bulk(permit);
        ctx.reply.bulk(lock::owner_of_permit(permit));
        ctx.reply.integer(at_ms.saturating_sub(now_ms));
    }
    ctx.reply.bulk(b"waiters");
    ctx.reply.integer(ctx.core.keyspace.waiting.len(database, key.bytes, Wanted::Semaphore) as i64);
    Ok(Outcome::Replied)
}
