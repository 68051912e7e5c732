//! Sessions of permits, like those of locks (`gate/sessions.rs`). The server renews permits while
//! the client's connection shows life, looks for a sign of life when half of their time has passed,
//! and lets them end a grace period after the connection has closed.

use std::collections::HashSet;

use crate::client::ClientId;
use crate::client::handed::{Renewed, RenewedPermit};
use crate::clock::UnixMillis;
use crate::config::KeyspaceEvents;
use crate::gate::publish;
use crate::keyspace::permits::PermitSession;
use crate::keyspace::{DatabaseKey, DbIndex};
use crate::state::{Core, State};
use crate::types::lock;
use crate::types::sorted_set::{Limits, SortedSet, SortedSetView};

/// A look this late means that the server stood still: a long script, a pause, a stopped process.
/// Unit: microseconds.
pub const STALL_US: i64 = 50_000;

/// Begins a session, and adds the permits of the owner's earlier session to it.
pub fn begin(core: &mut Core, mut session: PermitSession) {
    if let Some(before) =
        core.keyspace.semaphores.sessions.take(session.database, &session.key, &session.owner)
    {
        let new: HashSet<&[u8]> = session.permits.iter().map(|permit| &**permit).collect();
        let now_ms = core.state.now.unix().0;
        let held: Vec<Box<[u8]>> = core.keyspace.in_database(session.database, |keyspace| {
            let slot = keyspace.find_quietly(keyspace.key(&session.key));
            let view = slot.and_then(|slot| keyspace.view::<SortedSet>(slot).ok());
            let is_held = |permit: &[u8]| {
                let until = view.as_ref().and_then(|view| view.score(permit));
                until.is_some_and(|until| until as i64 >= now_ms)
            };
            let permits = before.permits.into_iter();
            permits.filter(|permit| !new.contains(&**permit) && is_held(permit)).collect()
        });
        session.permits.extend(held);
    }
    let at_us = half_from_now(&core.state, session.lease_ms);
    core.keyspace.semaphores.sessions.insert(session, at_us);
}

/// Removes the permits of a semaphore whose time is over: here, in the AOF and at replicas. A
/// replica follows its primary, and nothing ends during a pause.
pub fn remove_ended(core: &mut Core, database: DbIndex, key: &[u8]) {
    let follows = core.state.replication.is_replica() || core.keyspace.leaves_expiry();
    if follows || core.state.stands_still() {
        return;
    }
    let now_ms = core.state.now.unix().0 as f64;
    remove(core, DatabaseKey { database, key }, "semexpired", |view| {
        // Another kind of sorted set is left alone.
        if view.iter().any(|(score, member)| !lock::is_of_semaphore(score, member.as_ref())) {
            return Vec::new();
        }
        let ended = view.iter().take_while(|(until, _)| *until < now_ms);
        ended.map(|(_, permit)| permit.as_ref().to_vec()).collect()
    });
}

/// Removes the permits of a semaphore that `which` chooses: here, in the AOF and at replicas.
pub fn remove(
    core: &mut Core,
    at: DatabaseKey<'_>,
    event: &'static str,
    which: impl FnOnce(&SortedSetView<'_>) -> Vec<Vec<u8>>,
) {
    let DatabaseKey { database, key } = at;
    let removed = core.keyspace.in_database(database, |keyspace| {
        let name = keyspace.key(key);
        let slot = keyspace.find_quietly(name)?;
        let permits = which(&keyspace.view::<SortedSet>(slot).ok()?);
        if permits.is_empty() {
            return None;
        }
        keyspace.edit::<SortedSet, _>(slot, |set| {
            for permit in &permits {
                set.remove(permit);
            }
        });
        for permit in &permits {
            keyspace.semaphores.sessions.forget_permit(database, key, permit);
        }
        keyspace.changed_by(permits.len() as u64, KeyspaceEvents::LOCK, event, key);
        keyspace.delete_if_empty::<SortedSet>(slot, name);
        Some(permits)
    });
    if let Some(removed) = removed.filter(|_| core.state.effects.is_heard()) {
        let apart = core.state.effects.begin_apart();
        let permits = removed.iter().map(Vec::as_slice);
        let request: Vec<&[u8]> = [&b"ZREM"[..], key].into_iter().chain(permits).collect();
        core.state.effects.push(database, request.into_iter());
        core.state.effects.end_apart(apart);
    }
}

/// Removes permits as they end, while a client may ask for the event of that.
pub fn announce_ended(core: &mut Core) {
    if !announces(core) {
        return;
    }
    core.keyspace.review_semaphores();
    let now_ms = core.state.now.unix().0;
    for (database, key) in core.keyspace.semaphores.ended(now_ms) {
        remove_ended(core, database, &key);
    }
    core.keyspace.review_semaphores();
    if !core.keyspace.events.is_empty() {
        publish::publish_events(core);
    }
}

fn announces(core: &Core) -> bool {
    !core.keyspace.semaphores.is_empty()
        && core.keyspace.events.wants(KeyspaceEvents::LOCK)
        && !core.state.replication.is_replica()
        && !core.keyspace.leaves_expiry()
        && !core.state.stands_still()
}

/// When [`announce_ended`] is due: boot-time clock, microseconds.
pub fn next_end_us(core: &Core) -> Option<i64> {
    let first_ms = core.keyspace.semaphores.first_end_ms().filter(|_| announces(core))?;
    // A permit is held until its deadline has passed.
    let left_ms = first_ms.saturating_add(1).saturating_sub(core.state.now.unix().0).max(0);
    Some(core.state.now.boot_us.saturating_add(left_ms.saturating_mul(1000)))
}

/// When half of `ms` has passed: boot-time clock, microseconds.
fn half_from_now(state: &State, ms: i64) -> i64 {
    state.now.boot_us.saturating_add((ms / 2).max(1).saturating_mul(1000))
}

/// Renews the permits of which half the lease has passed, if their clients have shown life since.
pub fn on_time(core: &mut Core) {
    while let Some((session, at_us)) =
        core.keyspace.semaphores.sessions.take_look(core.state.now.boot_us)
    {
        if core.state.replication.is_replica() {
            continue;
        }
        let (now_us, now_ms) = (core.state.now.boot_us, core.state.now.unix().0);
        let client = session.client.and_then(|id| core.state.clients.get(id));
        let client = client.filter(|one| !one.is_closing());
        let until_ms = match client.map(|one| one.silent_ms(now_us)) {
            Some(silent_ms) => now_ms + session.lease_ms - silent_ms,
            // Without a client, the permits are not renewed.
            None => 0,
        };
        // A server that stood still until the permits had ended cannot know of signs of life.
        let stood_still = client.is_some() && now_us - at_us > STALL_US;
        let mut left_ms = set_deadlines(core, &session, Until::AtLeast(until_ms), false);
        if left_ms.is_none() && stood_still {
            let until_ms = now_ms + session.lease_ms;
            left_ms = set_deadlines(core, &session, Until::AtLeast(until_ms), true);
        }
        if let Some(left_ms) = left_ms {
            let at_us = half_from_now(&core.state, left_ms);
            core.keyspace.semaphores.sessions.insert(session, at_us);
        }
    }
}

/// Binds the permits of an owner to a client, and renews them. False: the owner has none of this
/// semaphore.
pub fn bind(core: &mut Core, at: DatabaseKey<'_>, owner: &[u8], client: ClientId) -> bool {
    let Some(session) = core.keyspace.semaphores.sessions.take(at.database, at.key, owner) else {
        return false;
    };
    let until_ms = core.state.now.unix().0 + session.lease_ms;
    let is_held = set_deadlines(core, &session, Until::AtLeast(until_ms), false).is_some();
    if is_held {
        begin(core, PermitSession { client: Some(client), ..session });
    }
    is_held
}

/// Lets the permits of a client that is being closed end after their grace period. `stood_still`:
/// it was closed during a pause, since when nothing has ended.
pub fn forget(core: &mut Core, client: ClientId, stood_still: bool) {
    if core.keyspace.semaphores.sessions.is_empty() {
        return;
    }
    let is_informed = core.state.clients.informed.contains(&client);
    for session in core.keyspace.semaphores.sessions.take_of_client(client) {
        if !is_informed && core.state.handed.has_renewed(&session) {
            // It is taken back, with its session.
            let at_us = half_from_now(&core.state, session.grace_ms);
            core.keyspace
                .semaphores
                .sessions
                .insert(PermitSession { client: None, ..session }, at_us);
        } else {
            grant_grace(core, session, stood_still);
        }
    }
}

/// Gives permits the deadlines and the session that they had before a request whose client has not
/// learnt of its success.
pub fn take_renewal_back(core: &mut Core, client: ClientId, renewed: &Renewed) {
    let Renewed { database, key, owner, permits, session } = renewed;
    let present =
        core.keyspace.semaphores.sessions.of(*database, key, owner).map(|session| session.client);
    if session.is_some() {
        if present.is_none_or(|its_client| its_client.is_some_and(|id| id != client)) {
            // Another client has it now.
            return;
        }
        core.keyspace.semaphores.sessions.take(*database, key, owner);
    }
    put_deadlines(core, DatabaseKey { database: *database, key }, false, |view| {
        let is_left = |one: &&RenewedPermit| view.score(&one.permit) == Some(one.after_ms);
        let changed = permits.iter().filter(|one| one.before_ms != one.after_ms).filter(is_left);
        changed.map(|one| (one.permit.clone(), one.before_ms as i64)).collect()
    });
    if let Some(former) = session.clone().flatten() {
        let id = former.client.filter(|id| core.state.clients.get(*id).is_some());
        if id.is_none() && former.client.is_some() {
            return grant_grace(core, former, false);
        }
        let at_us = half_from_now(&core.state, former.grace_ms.min(former.lease_ms));
        core.keyspace.semaphores.sessions.insert(former, at_us);
    }
}

/// Starts the grace periods of all sessions, which have lost their connections by a start or
/// promotion.
pub fn lose_connections(core: &mut Core) {
    for session in core.keyspace.semaphores.sessions.take_all() {
        grant_grace(core, session, false);
    }
}

fn grant_grace(core: &mut Core, session: PermitSession, stood_still: bool) {
    if core.state.replication.is_replica() {
        return;
    }
    let until_ms = core.state.now.unix().0 + session.grace_ms;
    if set_deadlines(core, &session, Until::Exactly(until_ms), stood_still).is_some() {
        // The session can be attached again until then.
        let at_us = core.state.now.boot_us.saturating_add(session.grace_ms.saturating_mul(1000));
        core.keyspace.semaphores.sessions.insert(PermitSession { client: None, ..session }, at_us);
    }
}

/// A new deadline. Unit: Unix milliseconds.
#[derive(Clone, Copy, Debug)]
enum Until {
    /// A later deadline stays.
    AtLeast(i64),
    Exactly(i64),
}

/// Sets the deadlines of a session's permits that are still held: here, in the AOF and at replicas.
/// Returns the milliseconds left until the first of them. None: none is held. `stood_still`:
/// permits whose time has passed meanwhile have not ended.
fn set_deadlines(
    core: &mut Core,
    session: &PermitSession,
    until: Until,
    stood_still: bool,
) -> Option<i64> {
    let now_ms = core.state.now.unix().0;
    let new = |at: i64| match until {
        Until::AtLeast(until_ms) => at.max(until_ms),
        Until::Exactly(until_ms) => until_ms,
    };
    let mut first_ms = None;
    let at = DatabaseKey { database: session.database, key: &session.key };
    put_deadlines(core, at, stood_still, |view| {
        let held = session.permits.iter().filter_map(|permit| {
            let at = view.score(permit).map(|at| at as i64);
            at.filter(|at| stood_still || *at >= now_ms).map(|at| (at, permit))
        });
        let held: Vec<(i64, &Box<[u8]>)> = held.collect();
        first_ms = held.iter().map(|(at, _)| new(*at)).min();
        let changed = held.into_iter().filter(|(at, _)| new(*at) != *at);
        changed.map(|(at, permit)| (permit.clone(), new(at))).collect()
    });
    first_ms.map(|first_ms| first_ms - now_ms)
}

/// Sets the deadlines that `which` gives to permits of a semaphore, in Unix milliseconds.
fn put_deadlines(
    core: &mut Core,
    at: DatabaseKey<'_>,
    stood_still: bool,
    which: impl FnOnce(&SortedSetView<'_>) -> Vec<(Box<[u8]>, i64)>,
) {
    let DatabaseKey { database, key } = at;
    let config = &core.state.config;
    let limits =
        Limits { entries: config.zset_max_listpack_entries, value: config.zset_max_listpack_value };
    let changed = core.keyspace.in_database(database, |keyspace| {
        let name = keyspace.key(key);
        let slot = match stood_still {
            true => keyspace.find_even_expired(name),
            false => keyspace.find_quietly(name),
        }?;
        let changed = which(&keyspace.view::<SortedSet>(slot).ok()?);
        if changed.is_empty() {
            return None;
        }
        keyspace.edit::<SortedSet, _>(slot, |set| {
            for (permit, until_ms) in &changed {
                set.update(permit, limits, |_| Some(*until_ms as f64));
            }
        });
        let view = keyspace.view::<SortedSet>(slot).ok()?;
        let last_ms = view.get(view.len() - 1).map_or(0, |(at, _)| at as i64);
        let deadline = keyspace.now().at(UnixMillis(last_ms));
        keyspace.set_deadline(slot, Some(deadline));
        keyspace.changed(KeyspaceEvents::LOCK, "semrenew", key);
        Some((changed, last_ms))
    });
    let Some((changed, last_ms)) = changed.filter(|_| core.state.effects.is_heard()) else {
        return;
    };
    let apart = core.state.effects.begin_apart();
    let mut request = vec![b"ZADD".to_vec(), key.to_vec()];
    for (permit, until_ms) in changed {
        request.extend([until_ms.to_string().into_bytes(), permit.into_vec()]);
    }
    core.state.effects.push(database, request.iter().map(Vec::as_slice));
    let expire = [&b"PEXPIREAT"[..], key, last_ms.to_string().as_bytes()].map(<[u8]>::to_vec);
    core.state.effects.push(database, expire.iter().map(Vec::as_slice));
    core.state.effects.end_apart(apart);
}
