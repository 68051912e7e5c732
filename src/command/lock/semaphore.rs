//! Semaphores: SEM.ACQUIRE, SEM.RELEASE, SEM.RENEW, SEM.LIMIT, SEM.INFO.
//!
//! A semaphore is a sorted set of permits, `owner#fence#number`, whose scores are their deadlines
//! in Unix milliseconds. The key ends with its last permit, unless the semaphore keeps its limit,
//! as a member whose score is later than any permit's. Waiting clients sleep until a permit is
//! given back or the first one ends: each key has one alarm (`keyspace/waiting.rs`).

use std::collections::BTreeSet;

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
use crate::keyspace::permits::PermitSession;
use crate::keyspace::waiting::Wanted;
use crate::keyspace::{DatabaseKey, Key};
use crate::resp::number::parse_i64;
use crate::state::context::{CommandResult, Context, Origin, Outcome};
use crate::state::spec::{CommandSpec, Flags, KeySpec};
use crate::types::journal::Edit;
use crate::types::lock::{self, LIMIT_SCORE, PERMITS_MAX};
use crate::types::sorted_set::SortedSet;

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    lock_spec("SEM.ACQUIRE", acquire, Flags::WRITE_BLOCKING).at_least(5).keys(KeySpec::RW_ACCESS_UPDATE)
        .docs("key owner [LIMIT limit] PX milliseconds [COUNT count] [BLOCK milliseconds] [SESSION GRACE milliseconds]",
            "Takes permits of a semaphore for a time, or waits for them in the order of arrival.", "O(N) with N permits that are held"),
    lock_spec("SEM.INFO", info, Flags::READONLY).exactly(2).keys(KeySpec::RO_ACCESS)
        .docs("key", "Returns the permits of a semaphore that are held.", "O(N) with N permits"),
    lock_spec("SEM.LIMIT", set_limit, Flags::WRITE_FAST).exactly(3).keys(KeySpec::RW_UPDATE)
        .docs("key limit", "Sets the limit for all requests that name none; 0 removes it.", "O(log(N)) with N permits"),
    lock_spec("SEM.RELEASE", release, Flags::WRITE_FAST).at_least(3).keys(KeySpec::RW_ACCESS_DELETE)
        .docs("key permit [permit ...] [ALLORNONE]", "Gives permits back, and serves the clients that wait for them.", "O(M*log(N)) with M permits of N"),
    lock_spec("SEM.RENEW", renew, Flags::WRITE_FAST).at_least(5).keys(KeySpec::RW_ACCESS_UPDATE)
        .docs("key permit [permit ...] PX milliseconds [ALLORNONE]", "Extends the time of permits.", "O(M*log(N)) with M permits of N"),
];

const BAD_LIMIT: CommandError = CommandError::Text("ERR LIMIT should be between 1 and 10000");
const NO_LIMIT: CommandError =
    CommandError::Text("ERR the semaphore has no limit: name one by LIMIT, or set it by SEM.LIMIT");
const COUNT_ABOVE_LIMIT: CommandError = CommandError::Text("ERR COUNT is greater than LIMIT");
/// The most permits, and the limit.
const MEMBERS_MAX: usize = PERMITS_MAX + 1;

/// The arguments of SEM.ACQUIRE after the key.
struct Acquire<'a> {
    owner: &'a [u8],
    /// None: the semaphore's own.
    limit: Option<usize>,
    lease_ms: i64,
    count: usize,
    waits: Waits,
    /// SESSION: the time that the permits last after the connection has closed.
    grace_ms: Option<i64>,
}

impl<'a> Acquire<'a> {
    /// Parses `owner [LIMIT n] PX ms [COUNT c] [BLOCK ms] [SESSION GRACE ms]`.
    fn parse(ctx: &Context<'a>) -> Result<Self, CommandError> {
        let mut arguments = ctx.args.cursor(2);
        let owner = owner_of(arguments.take()?)?;
        let (mut limit, mut lease_ms, mut count, mut waits) = (None, None, None, Waits::Not);
        let mut grace_ms = None;
        while !arguments.is_at_end() {
            if limit.is_none() && arguments.take_word("LIMIT") {
                let most = arguments.take_positive(BAD_LIMIT)?;
                limit = Some(checked_limit(most)?);
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
        let lease_ms = lease_ms.ok_or(CommandError::Syntax)?;
        let count = count.unwrap_or(1);
        if limit.is_some_and(|limit| count > limit) {
            return Err(COUNT_ABOVE_LIMIT);
        }
        if count > TAKEN_MAX {
            return Err(TOO_MANY_AT_ONCE);
        }
        Ok(Acquire { owner, limit, lease_ms, count, waits, grace_ms })
    }
}

fn checked_limit(limit: usize) -> Result<usize, CommandError> {
    Some(limit).filter(|limit| *limit <= PERMITS_MAX).ok_or(BAD_LIMIT)
}

/// Unix milliseconds `lease_ms` from now. Errors: too late for a score.
fn deadline(ctx: &Context<'_>, lease_ms: i64, name: &'static str) -> Result<f64, CommandError> {
    let at = ctx.core.state.now.unix().0.saturating_add(lease_ms) as f64;
    // Above it scores are not exact.
    if at >= LIMIT_SCORE { Err(CommandError::InvalidExpire(name)) } else { Ok(at) }
}

/// `SEM.ACQUIRE key owner [LIMIT n] PX ms [COUNT c] [BLOCK ms] [SESSION GRACE ms]`: an array of the
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
    let (mut used, mut own, mut limit) = (0, Vec::new(), asked.limit);
    if let Some(slot) = slot {
        let set = ctx.core.keyspace.view::<SortedSet>(slot)?;
        limit = limit.or_else(|| lock::stored_limit(&set));
        for (score, permit) in set.iter().take_while(|(score, _)| *score < LIMIT_SCORE) {
            used += 1;
            if lock::owner_of_permit(permit.as_ref()) == asked.owner {
                own.push((score, permit.as_ref().to_vec()));
            }
        }
    }
    let needed = asked.count.saturating_sub(own.len());
    // A retry gets what it has, whatever has become of the limit.
    let limit = if needed == 0 { limit.unwrap_or(used) } else { limit.ok_or(NO_LIMIT)? };
    if needed > 0 && asked.count > limit {
        return Err(COUNT_ABOVE_LIMIT);
    }
    if needed > 0 && (used + needed > limit || has_its_turn_later(ctx, key, Wanted::Semaphore)) {
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
    let at = DatabaseKey { database: ctx.core.keyspace.selected(), key: key.bytes };
    let caller = ctx.caller.client();
    if let Some(client) = caller.filter(|_| !own.is_empty()) {
        let known: Vec<&[u8]> = own.iter().map(|(_, permit)| &**permit).collect();
        handed::know_permits(ctx.core, client, at, &known);
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
            handed::note_permits(ctx.core, client, at, new.collect());
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
            database: at.database,
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
    ctx.reply.integer(limit.saturating_sub(used + needed) as i64);
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
    let session = asked
        .grace_ms
        .map(|_| ctx.core.keyspace.semaphores.sessions.of(database, key.bytes, asked.owner));
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
    let first = first.filter(|score| *score < LIMIT_SCORE);
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
    if ctx.core.keyspace.view::<SortedSet>(slot)?.len() > MEMBERS_MAX {
        return Err(CommandError::WrongType);
    }
    let now_ms = ctx.core.state.now.unix().0 as f64;
    let view = ctx.core.keyspace.view::<SortedSet>(slot)?;
    // Another kind of sorted set is left alone.
    if view.iter().any(|(score, member)| !lock::is_of_semaphore(score, member.as_ref())) {
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
        ctx.core.keyspace.semaphores.sessions.forget_permit(database, key.bytes, permit);
    }
    ctx.core.keyspace.changed_by(permits.len() as u64, KeyspaceEvents::LOCK, event, key.bytes);
    ctx.instead_gathered(|_, request| {
        request.extend([b"ZREM".to_vec(), key.bytes.to_vec()]);
        request.extend(permits.iter().map(|permit| permit.to_vec()));
    });
    ctx.core.keyspace.delete_if_empty::<SortedSet>(slot, key)
}

/// Adds members, or sets their scores, and lets the key end with its last one.
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
    let last = set_end(ctx, slot);
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

/// Lets a semaphore's key end with its last member. Returns when that is, in Unix milliseconds.
fn set_end(ctx: &mut Context<'_>, slot: Slot) -> i64 {
    let last = match ctx.core.keyspace.view::<SortedSet>(slot) {
        Ok(view) => view.get(view.len() - 1).map_or(0.0, |(score, _)| score) as i64,
        Err(_) => 0,
    };
    let deadline = ctx.core.keyspace.now().at(UnixMillis(last));
    ctx.core.keyspace.set_deadline(slot, Some(deadline));
    last
}

/// `SEM.LIMIT key limit`: OK. 0 removes the limit. Clients that wait are served if it has grown.
fn set_limit(ctx: &mut Context<'_>) -> CommandResult {
    let limit = match parse_i64(ctx.args.get(2)).ok_or(BAD_LIMIT)? {
        0 => None,
        limit => Some(checked_limit(usize::try_from(limit).map_err(|_| BAD_LIMIT)?)?),
    };
    let wanted = limit.map(lock::limit_member);
    let key = ctx.key(1);
    let mut slot = remove_ended(ctx, key)?;
    let mut stored = Vec::new();
    if let Some(slot) = slot {
        let set = ctx.core.keyspace.view::<SortedSet>(slot)?;
        let members = set.iter().filter(|(score, _)| *score == LIMIT_SCORE);
        stored.extend(members.map(|(_, member)| member.as_ref().to_vec()));
    }
    stored.retain(|member| Some(member) != wanted.as_ref());
    if let Some(wanted) = wanted {
        check_room(ctx)?;
        slot = ctx.core.keyspace.find_for_write(key);
        let known = match slot {
            Some(slot) => ctx.core.keyspace.view::<SortedSet>(slot)?.score(&wanted),
            None => None,
        };
        if known.is_none() {
            put(ctx, key, &[(LIMIT_SCORE, wanted)], "semlimit");
        }
        forget_limits(ctx, key, &stored);
    } else if let Some(slot) = slot.filter(|_| !stored.is_empty()) {
        let stored: Vec<&[u8]> = stored.iter().map(Vec::as_slice).collect();
        if !remove(ctx, key, slot, &stored, "semlimit") {
            let last = set_end(ctx, slot);
            ctx.instead_with(&[b"PEXPIREAT", key.bytes], last);
        }
    }
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// Removes the limits that another one has replaced.
fn forget_limits(ctx: &mut Context<'_>, key: Key<'_>, stored: &[Vec<u8>]) {
    let Some(slot) = ctx.core.keyspace.find_for_write(key).filter(|_| !stored.is_empty()) else {
        return;
    };
    ctx.core.keyspace.edit::<SortedSet, _>(slot, |set| {
        for member in stored {
            set.remove(member);
        }
    });
    ctx.instead_gathered(|_, request| {
        request.extend([b"ZREM".to_vec(), key.bytes.to_vec()]);
        request.extend(stored.iter().cloned());
    });
}

/// The permits of a request: the arguments from the third one on, up to `end`.
struct Named<'a> {
    permits: BTreeSet<&'a [u8]>,
    /// ALLORNONE: nothing is done unless all of them are held.
    all_or_none: bool,
}

impl<'a> Named<'a> {
    fn new(ctx: &Context<'a>, end: usize, all_or_none: bool) -> Self {
        let permits = ctx.args.iter_from(2).take(end.saturating_sub(2));
        Named { permits: permits.collect(), all_or_none }
    }

    /// Those that are held at `slot`, with their deadlines.
    fn held(
        &self,
        ctx: &Context<'a>,
        slot: Option<Slot>,
    ) -> Result<Vec<(f64, &'a [u8])>, CommandError> {
        let Some(slot) = slot else { return Ok(Vec::new()) };
        let set = ctx.core.keyspace.view::<SortedSet>(slot)?;
        let permits = self.permits.iter().filter(|permit| lock::is_permit(permit));
        let held = permits.filter_map(|permit| Some((set.score(permit)?, *permit)));
        let held: Vec<_> = held.collect();
        let is_done = !self.all_or_none || held.len() == self.permits.len();
        Ok(if is_done { held } else { Vec::new() })
    }
}

/// `SEM.RELEASE key permit [permit ...] [ALLORNONE]`: the number of these permits that were held,
/// and are given back.
fn release(ctx: &mut Context<'_>) -> CommandResult {
    let key = ctx.key(1);
    let last = ctx.args.len() - 1;
    // A permit has two `#`.
    let all_or_none = last > 2 && ctx.args.get(last).eq_ignore_ascii_case(b"ALLORNONE");
    let named = Named::new(ctx, last + usize::from(!all_or_none), all_or_none);
    let slot = remove_ended(ctx, key)?;
    let held = named.held(ctx, slot)?;
    let held: Vec<&[u8]> = held.into_iter().map(|(_, permit)| permit).collect();
    if let Some(slot) = slot.filter(|_| !held.is_empty()) {
        remove(ctx, key, slot, &held, "semrelease");
    }
    ctx.reply.integer(held.len() as i64);
    Ok(Outcome::Replied)
}

/// `SEM.RENEW key permit [permit ...] PX ms [ALLORNONE]`: the number of these permits that are
/// held; their time is never shortened.
fn renew(ctx: &mut Context<'_>) -> CommandResult {
    let is_word = |argument: &[u8]| argument.eq_ignore_ascii_case(b"PX");
    let end = ctx.args.iter_from(3).position(is_word).ok_or(CommandError::Syntax)? + 3;
    let mut arguments = ctx.args.cursor(end + 1);
    let lease_ms = take_lease(&mut arguments, "sem.renew")?;
    let all_or_none = arguments.take_word("ALLORNONE");
    if !arguments.is_at_end() {
        return Err(CommandError::Syntax);
    }
    let until = deadline(ctx, lease_ms, "sem.renew")?;
    let key = ctx.key(1);
    let slot = remove_ended(ctx, key)?;
    let held = Named::new(ctx, end, all_or_none).held(ctx, slot)?;
    let shorter = held.iter().filter(|(old, _)| *old < until);
    let later: Vec<_> = shorter.map(|(_, permit)| (until, permit.to_vec())).collect();
    if !later.is_empty() {
        put(ctx, key, &later, "semrenew");
    }
    ctx.reply.integer(held.len() as i64);
    Ok(Outcome::Replied)
}

/// `SEM.INFO key`: a map of permits (an array of permit, owner and milliseconds left), the number
/// of waiting clients, and the stored limit (nil: none).
fn info(ctx: &mut Context<'_>) -> CommandResult {
    let key = ctx.key(1);
    let now_ms = ctx.core.state.now.unix().0;
    let (mut permits, mut limit) = (Vec::new(), None);
    if let Some(set) = ctx.core.keyspace.read::<SortedSet>(key)? {
        if set.len() > MEMBERS_MAX {
            return Err(CommandError::WrongType);
        }
        limit = lock::stored_limit(&set);
        let held = set.iter().filter(|(at, _)| (now_ms as f64..LIMIT_SCORE).contains(at));
        permits.extend(held.map(|(score, permit)| (score as i64, permit.as_ref().to_vec())));
    }
    let database = ctx.core.keyspace.selected();
    ctx.reply.map(3);
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
    ctx.reply.bulk(b"limit");
    match limit {
        Some(limit) => ctx.reply.integer(limit as i64),
        None => ctx.reply.null(),
    }
    Ok(Outcome::Replied)
}
