//! Locks with sessions: leases that the server renews while the connection of the client that holds
//! them shows life.
//!
//! Any request is a sign of life. So is a wait in a blocking command, or for replies that the AOF
//! holds back: the server does not read from the client in that time. The server looks for a sign
//! of life when half of the lease has passed, and again when half of the remaining time has. The
//! lease ends a grace period after the connection has closed, or one lease after the last sign of
//! life. Connections do not outlive a restart or a promotion. Each lease then has its grace period,
//! within which LOCK.ATTACH can bind it to a new connection.

use crate::client::ClientId;
use crate::clock::{Deadline, Due};
use crate::config::KeyspaceEvents;
use crate::gate::permits::{self, STALL_US};
use crate::gate::readers;
use crate::keyspace::locks::{At, Held};
use crate::keyspace::{DbIndex, Keyspace};
use crate::resp::number::format_i64;
use crate::state::Core;

/// Renews the leases of which half has passed, if their clients have shown life since. Under CLIENT
/// PAUSE nothing changes.
pub fn on_time(core: &mut Core) {
    if core.state.stands_still() {
        return;
    }
    // Before any of their leases is found expired.
    for client in std::mem::take(&mut core.state.pauses.closed) {
        let_go(core, client, true);
    }
    // Look-ups outside of commands may have found expired keys. Until these are deleted, `look`
    // takes no lock for expired.
    core.keyspace.delete_found_expired();
    while let Some((at_us, place)) = core.keyspace.locks.take_look(core.state.now.boot_us) {
        if !core.state.replication.is_replica() {
            look(core, place.at(), at_us);
        }
    }
    permits::on_time(core);
}

/// When [`on_time`] is to be called.
pub fn due(core: &Core) -> Due {
    let looks =
        [core.keyspace.locks.next_look_us(), core.keyspace.semaphores.sessions.next_look_us()];
    Due::at(looks.into_iter().flatten().min().filter(|_| !core.state.stands_still()))
}

/// Renews a lease if its client has shown life. `at_us`: the planned time of this look. A server
/// that stood still until the lease had ended cannot know of signs of life, and begins the lease
/// anew.
fn look(core: &mut Core, at: At<'_>, at_us: i64) {
    let Some(held) = core.keyspace.locks.get(at) else { return };
    let Some(session) = &held.session else { return };
    let client = held.client.and_then(|id| core.state.clients.get(id));
    let Some(client) = client.filter(|client| !client.is_closing()) else { return };
    let now_us = core.state.now.boot_us;
    let silent_ms = client.silent_ms(now_us);
    let lease_ms = session.lease_ms;
    let is_past = match at.reader {
        Some(_) => readers::is_over(&core.keyspace, at),
        None => core.keyspace.in_database(at.database, |keyspace| {
            let found = keyspace.find_even_expired(keyspace.key(at.key));
            let deadline = found.and_then(|slot| keyspace.entry(slot).deadline());
            deadline.is_some_and(|deadline| core.state.now.is_past(deadline))
        }),
    };
    if is_past {
        // The end of the lease was not noticed yet: a client that has shown life within one lease
        // still holds the lock.
        let silent_ms = if now_us - at_us > STALL_US { 0 } else { silent_ms };
        if silent_ms < lease_ms {
            set_deadline(core, at, core.state.now.after(lease_ms - silent_ms));
        }
    } else {
        extend(core, at, core.state.now.after(lease_ms - silent_ms));
    }
    look_again(&mut core.keyspace, at);
}

/// The end of a lease. None: it has ended already.
fn deadline(keyspace: &mut Keyspace, at: At<'_>) -> Option<Deadline> {
    if at.reader.is_some() {
        let until = keyspace.locks.get(at).and_then(Held::until);
        return until.filter(|until| !keyspace.now().is_past(*until));
    }
    keyspace.in_database(at.database, |keyspace| {
        let slot = keyspace.find_quietly(keyspace.key(at.key))?;
        keyspace.entry(slot).deadline()
    })
}

/// Plans the next look at a lock that has a session and a client: when half of its lease has
/// passed.
pub fn look_again(keyspace: &mut Keyspace, at: At<'_>) {
    if !keyspace.locks.has_sessions() {
        return;
    }
    let Some(held) = keyspace.locks.get(at) else { return };
    if held.session.is_none() || held.client.is_none() {
        return;
    }
    let deadline = deadline(keyspace, at);
    let now = keyspace.now();
    let ms_left = deadline.map_or(0, |deadline| now.remaining_ms(deadline));
    let at_us =
        (ms_left > 1).then(|| now.boot_us.saturating_add((ms_left / 2).saturating_mul(1000)));
    keyspace.locks.look_at(at, at_us);
}

/// Binds a lock with a session to a client, and renews its lease. False: the lease has just ended.
pub fn bind(core: &mut Core, at: At<'_>, client: ClientId) -> bool {
    let is_held = core
        .keyspace
        .in_database(at.database, |keyspace| keyspace.find_quietly(keyspace.key(at.key)).is_some());
    if !is_held || at.reader.is_some() && readers::is_over(&core.keyspace, at) {
        return false;
    }
    core.keyspace.locks.bind(at, Some(client));
    let session = core.keyspace.locks.get(at).and_then(|held| held.session.as_ref());
    if let Some(lease_ms) = session.map(|session| session.lease_ms) {
        let deadline = core.state.now.after(lease_ms);
        extend(core, at, deadline);
        look_again(&mut core.keyspace, at);
    }
    true
}

/// Lets the leases of a client that is being closed end after their grace period. That begins after
/// a pause, if there is one: a replica that takes over begins it too. During a script it begins
/// after the script, whose changes may be rolled back.
pub fn forget(core: &mut Core, client: ClientId) {
    if core.state.stands_still() || core.state.scripts.running.is_some() {
        if core.keyspace.locks.has_sessions() || !core.keyspace.semaphores.sessions.is_empty() {
            core.state.pauses.closed.push(client);
        }
        return;
    }
    let_go(core, client, false);
}

/// `stood_still`: the client was closed during a pause.
fn let_go(core: &mut Core, client: ClientId, stood_still: bool) {
    permits::forget(core, client, stood_still);
    let is_informed = core.state.clients.informed.contains(&client);
    for place in core.keyspace.locks.of_client(client) {
        core.keyspace.locks.bind(place.at(), None);
        // A grant of which the client has not learnt is taken back, with its session.
        let goes_back = !is_informed && core.keyspace.locks.is_granted_again(place.at(), client);
        if !core.state.replication.is_replica() && !goes_back {
            grant_grace(core, place.at());
        }
    }
}

/// After a start: begins new fences above all earlier ones. All sessions have lost their
/// connections, so their grace periods begin.
pub fn gain_authority(core: &mut Core) {
    core.keyspace.locks.fences.begin_epoch(core.state.now.unix_seconds());
    let delay_us = core.state.config.lock_recovery_delay * 1000;
    core.state.locks_recovered_us = core.state.now.boot_us + delay_us;
    permits::lose_connections(core);
    count_on_boot_clock(&mut core.keyspace);
    for place in core.keyspace.locks.with_sessions() {
        core.keyspace.locks.bind(place.at(), None);
        // A reader whose lease has ended gets no grace period.
        if !readers::is_over(&core.keyspace, place.at()) {
            grant_grace(core, place.at());
        }
    }
}

/// After a promotion: does the same as after a start, and notes that the sessions' connections were
/// to another primary.
pub fn be_promoted(core: &mut Core) {
    gain_authority(core);
    for place in core.keyspace.locks.with_sessions() {
        core.keyspace.locks.leave_behind(place.at());
    }
}

/// After a lock has come from another server: the connection of a session was to that one.
pub fn gain_lock(core: &mut Core, database: DbIndex, key: &[u8]) {
    core.keyspace.in_database(database, |keyspace| count_lease_on_boot_clock(keyspace, key));
    for place in core.keyspace.locks.holdings(database, key) {
        let held = core.keyspace.locks.get(place.at());
        if !held.is_some_and(|held| held.session.is_some() && held.client.is_none()) {
            continue;
        }
        core.keyspace.locks.leave_behind(place.at());
        if !readers::is_over(&core.keyspace, place.at()) {
            grant_grace(core, place.at());
        }
    }
}

/// Moves leases to the boot-time clock, which nobody can set. Files and primaries give them by the
/// wall clock.
pub fn count_on_boot_clock(keyspace: &mut Keyspace) {
    for database in DbIndex::all(keyspace.databases()) {
        let mut last = None;
        while let Some(key) = keyspace.locks.key_after(database, last.as_deref()) {
            keyspace.in_database(database, |keyspace| count_lease_on_boot_clock(keyspace, &key));
            last = Some(key);
        }
    }
}

fn count_lease_on_boot_clock(keyspace: &mut Keyspace, key: &[u8]) {
    let Some(slot) = keyspace.find_even_expired(keyspace.key(key)) else { return };
    let deadline = keyspace.entry(slot).deadline();
    if let Some(deadline) = deadline.filter(|deadline| !deadline.is_on_boot_clock()) {
        let now = keyspace.now();
        keyspace.set_deadline(slot, Some(now.on_boot_clock(deadline)));
    }
}

/// Lets a lease end after the grace period of its session.
pub fn grant_grace(core: &mut Core, at: At<'_>) {
    let session = core.keyspace.locks.get(at).and_then(|held| held.session.as_ref());
    if let Some(grace_ms) = session.map(|session| session.grace_ms) {
        let deadline = core.state.now.after(grace_ms);
        set_deadline(core, at, deadline);
    }
}

/// Sets a lease's deadline if it is later than the present one.
fn extend(core: &mut Core, at: At<'_>, new: Deadline) {
    let before = deadline(&mut core.keyspace, at);
    let now = core.keyspace.now();
    if before.is_some_and(|before| now.remaining_ms(before) < now.remaining_ms(new)) {
        set_deadline(core, at, new);
    }
}

/// Sets a lease's deadline, here, in the AOF and at replicas.
fn set_deadline(core: &mut Core, at: At<'_>, deadline: Deadline) {
    if at.reader.is_some() {
        core.keyspace.locks.stats.renewals += 1;
        return readers::set_until(core, at, deadline);
    }
    let At { database, key, .. } = at;
    let is_set = core.keyspace.in_database(database, |keyspace| {
        let found = keyspace.find_even_expired(keyspace.key(key));
        let Some(slot) = found else { return false };
        keyspace.locks.stats.renewals += 1;
        keyspace.change_lock(|keyspace| {
            keyspace.set_deadline(slot, Some(deadline));
            keyspace.changed(KeyspaceEvents::LOCK, "lockrenew", key);
        });
        true
    });
    if !is_set || !core.state.effects.is_heard() {
        return;
    }
    let apart = core.state.effects.begin_apart();
    let at_ms = format_i64(deadline.unix(core.keyspace.shown_offset_ms()).0);
    let request = [&b"PEXPIREAT"[..], key, at_ms.as_ref()];
    core.state.effects.push(database, request.into_iter());
    core.state.effects.end_apart(apart);
}
