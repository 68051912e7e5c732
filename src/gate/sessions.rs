//! Locks with sessions: leases that the server renews while the connection of the client that holds them shows life.
//!
//! Any request is a sign of life, and so is waiting in a blocking command. The server looks for one when half of the lease has
//! passed, and again when half of the rest has. The lease ends a grace period after the connection has closed, or one lease
//! after the last sign of life. Connections do not outlive a restart or a promotion: then each lease has its grace period,
//! within which LOCK.ATTACH can bind it to a new connection.

use crate::client::{Client, ClientId};
use crate::clock::Deadline;
use crate::config::KeyspaceEvents;
use crate::keyspace::Keyspace;
use crate::resp::number::format_i64;
use crate::state::State;

/// A look this late means that the server stood still: a long script, a pause, a stopped process. Unit: microseconds.
const STALL_US: i64 = 50_000;

/// Renews the leases whose half has passed and whose clients have shown life since. Under CLIENT PAUSE nothing changes.
pub fn on_time(keyspace: &mut Keyspace, state: &mut State) {
    if state.pauses.strictest().is_some() {
        return;
    }
    while let Some((at_us, database, key)) = keyspace.locks.take_look(state.now.boot_us) {
        if !state.replication.is_replica() {
            look(keyspace, state, database, &key, at_us);
        }
    }
}

/// When [`on_time`] is due: boot-time clock, microseconds.
pub fn next_us(keyspace: &Keyspace, state: &State) -> Option<i64> {
    keyspace.locks.next_look_us().filter(|_| state.pauses.strictest().is_none())
}

/// `at_us`: when it was to be looked after. A server that stood still until its lease had ended cannot know of signs of life,
/// and begins the lease anew.
fn look(keyspace: &mut Keyspace, state: &mut State, database: usize, key: &[u8], at_us: i64) {
    let Some(held) = keyspace.locks.get(database, key) else { return };
    let Some(session) = &held.session else { return };
    let client = held.client.and_then(|id| state.clients.get(id));
    let Some(client) = client.filter(|client| !client.is_closing()) else { return };
    let now_us = state.now.boot_us;
    let silent_ms = (now_us - last_life_us(client, now_us)) / 1000;
    let lease_ms = session.lease_ms;
    let is_past = keyspace.in_database(database, |keyspace| {
        let found = keyspace.find_even_expired(keyspace.key(key));
        let deadline = found.and_then(|slot| keyspace.entry(slot).deadline());
        deadline.is_some_and(|deadline| state.now.is_past(deadline))
    });
    if is_past && now_us - at_us > STALL_US {
        set_deadline(keyspace, state, database, key, state.now.after(lease_ms));
    } else {
        extend(keyspace, state, database, key, state.now.after(lease_ms - silent_ms));
    }
    look_again(keyspace, database, key);
}

/// When a client last showed life: boot-time clock, microseconds.
fn last_life_us(client: &Client, now_us: i64) -> i64 {
    if client.blocked.is_some() { now_us } else { client.active_us }
}

/// Plans the next look at a lock that has a session and a client: when half of its lease has passed.
pub fn look_again(keyspace: &mut Keyspace, database: usize, key: &[u8]) {
    if !keyspace.locks.has_sessions() {
        return;
    }
    let Some(held) = keyspace.locks.get(database, key) else { return };
    if held.session.is_none() || held.client.is_none() {
        return;
    }
    let deadline = keyspace.in_database(database, |keyspace| {
        let slot = keyspace.find_quietly(keyspace.key(key))?;
        keyspace.entry(slot).deadline()
    });
    let now = keyspace.now();
    let ms_left = deadline.map_or(0, |deadline| now.remaining_ms(deadline));
    let at_us =
        (ms_left > 1).then(|| now.boot_us.saturating_add((ms_left / 2).saturating_mul(1000)));
    keyspace.locks.look_at(database, key, at_us);
}

/// Binds a lock with a session to a client, and renews its lease.
pub fn bind(
    keyspace: &mut Keyspace,
    state: &mut State,
    database: usize,
    key: &[u8],
    client: ClientId,
) {
    keyspace.locks.bind(database, key, Some(client));
    let session = keyspace.locks.get(database, key).and_then(|held| held.session.as_ref());
    if let Some(lease_ms) = session.map(|session| session.lease_ms) {
        let deadline = state.now.after(lease_ms);
        extend(keyspace, state, database, key, deadline);
        look_again(keyspace, database, key);
    }
}

/// A client is being closed: its leases end after their grace.
pub fn forget(keyspace: &mut Keyspace, state: &mut State, client: ClientId) {
    for (database, key) in keyspace.locks.of_client(client) {
        keyspace.locks.bind(database, &key, None);
        if !state.replication.is_replica() {
            grant_grace(keyspace, state, database, &key);
        }
    }
}

/// After a start or a promotion: fences begin anew, above all earlier ones, and all sessions have lost their connections.
pub fn gain_authority(keyspace: &mut Keyspace, state: &mut State) {
    keyspace.locks.fences.begin_epoch(state.now.unix_seconds());
    for (database, key) in keyspace.locks.with_sessions() {
        keyspace.locks.bind(database, &key, None);
        grant_grace(keyspace, state, database, &key);
    }
}

fn grant_grace(keyspace: &mut Keyspace, state: &mut State, database: usize, key: &[u8]) {
    let session = keyspace.locks.get(database, key).and_then(|held| held.session.as_ref());
    if let Some(grace_ms) = session.map(|session| session.grace_ms) {
        let deadline = state.now.after(grace_ms);
        set_deadline(keyspace, state, database, key, deadline);
    }
}

/// Sets a lease's deadline if it is later than the present one.
fn extend(
    keyspace: &mut Keyspace,
    state: &mut State,
    database: usize,
    key: &[u8],
    deadline: Deadline,
) {
    let before = keyspace.in_database(database, |keyspace| {
        let slot = keyspace.find_quietly(keyspace.key(key))?;
        keyspace.entry(slot).deadline()
    });
    let now = keyspace.now();
    if before.is_some_and(|before| now.remaining_ms(before) < now.remaining_ms(deadline)) {
        set_deadline(keyspace, state, database, key, deadline);
    }
}

/// Sets a lease's deadline, here, in the log and at replicas.
fn set_deadline(
    keyspace: &mut Keyspace,
    state: &mut State,
    database: usize,
    key: &[u8],
    deadline: Deadline,
) {
    let is_set = keyspace.in_database(database, |keyspace| {
        let found = keyspace.find_even_expired(keyspace.key(key));
        let Some(slot) = found else { return false };
        keyspace.locks.begin_own_change();
        keyspace.set_deadline(slot, Some(deadline));
        keyspace.changed(KeyspaceEvents::LOCK, "lockrenew", key);
        keyspace.locks.end_own_change();
        true
    });
    if !is_set || !state.effects.is_heard() {
        return;
    }
    let is_apart = state.effects.is_between_units();
    let at_ms = format_i64(deadline.unix(keyspace.wall_offset_ms()).0);
    let request = [&b"PEXPIREAT"[..], key, at_ms.as_ref()];
    state.effects.push(database, request.into_iter());
    if is_apart {
        state.effects.end_unit();
    }
}
