//! Grants of locks that replicas have to acknowledge before the reply leaves: LOCK commands with
//! REPLICAS.
//!
//! The grant is made and repeated at once; only its reply waits. If too few replicas acknowledge
//! the grant in time, it is taken back. Further grants that need as many replicas are not tried
//! until that number has acknowledged the failed grant's offset: otherwise each waiting client in
//! turn would hold the lock in vain until its timeout.

use crate::client::ClientId;
use crate::client::acks::{AcksAsked, AcksAwaited, Confirmation, Confirmed, Replicas, Unconfirmed};
use crate::client::blocked::{Blocked, Cause};
use crate::collections::hash_slot::HashSlot;
use crate::error::CommandError;
use crate::gate::blocking::{self, answer, end};
use crate::gate::cluster::{self, Elsewhere};
use crate::gate::{acks, limits, locks};
use crate::keyspace::locks::{At, Granted, Held};
use crate::keyspace::{DbIndex, Keyspace};
use crate::resp::reply::{OutputBuffer, Protocol, ReplyWriter};
use crate::state::table::Command;
use crate::state::{Core, State};
use crate::types::lock;

const LOST: CommandError =
    CommandError::Text("NOREPLICAS the lock was lost before replicas had acknowledged it");

/// Delays a client's reply, or its push message, until replicas acknowledge the grant. Call this
/// when the effects of the command are complete.
pub(crate) fn suspend(
    state: &mut State,
    id: ClientId,
    command: &'static Command,
    unconfirmed: Unconfirmed,
) {
    let (database, now_us) = (unconfirmed.database, state.now.boot_us);
    let is_pushed = unconfirmed.is_pushed;
    let number = begin(state, id, command, unconfirmed);
    if is_pushed {
        return;
    }
    let blocked = Blocked {
        command: command.id,
        cause: Cause::Confirmation(number),
        // The confirmation has its own deadline.
        deadline_us: None,
        database,
        buffer: Vec::new(),
        ranges: Vec::new(),
        since_us: now_us,
        grace_ms: None,
    };
    blocking::suspend(state, id, blocked);
}

/// Begins to wait for replicas. Returns the confirmation's number.
fn begin(
    state: &mut State,
    client: ClientId,
    command: &'static Command,
    unconfirmed: Unconfirmed,
) -> u64 {
    let AcksAsked { replicas, ms } = unconfirmed.asked.unwrap_or_default();
    let deadline_us = Some(state.now.boot_us.saturating_add(ms.saturating_mul(1000)));
    let replicas = Replicas::Count(replicas);
    let awaited = AcksAwaited { offset: state.stream_end(), replicas, on_disk: None, deadline_us };
    state.replication.wants_acks = true;
    let confirmation = Confirmation { client, command: command.id, awaited, unconfirmed };
    state.blocking.confirmations.add(confirmation)
}

/// Whether grants that need this number of replicas wait: fewer replicas have acknowledged an
/// earlier grant that failed.
pub fn holds_back(state: &State, replicas: i64) -> bool {
    state.blocking.confirmations.failed.is_some_and(|(_, count)| count < replicas)
}

/// Answers the grants that enough replicas have acknowledged, and takes back those that too few
/// have acknowledged in time.
pub fn serve(core: &mut Core) {
    take_back_given_up(core);
    retry(core);
    if core.state.blocking.confirmations.is_empty() {
        return;
    }
    let mut confirmed = Vec::new();
    for (number, confirmation) in core.state.blocking.confirmations.iter() {
        let count = acks::count(&core.state, &confirmation.awaited);
        if count >= wanted(confirmation) {
            confirmed.push(number);
        } else if count == 0 {
            // Later grants have later offsets.
            break;
        }
    }
    for number in confirmed {
        confirm(core, number);
    }
    // A grant whose time ends during a pause is taken back when the pause is over, unless replicas
    // have acknowledged it by then.
    while !core.state.takes_nothing_back()
        && let Some(number) = core.state.blocking.confirmations.overdue(core.state.now.boot_us)
    {
        refuse(core, number);
    }
}

/// When [`serve`] has to take a grant back: boot-time clock, microseconds.
pub fn next_us(state: &State) -> Option<i64> {
    state.blocking.confirmations.next_deadline_us().filter(|_| !state.takes_nothing_back())
}

/// Ends all waits that push messages answer, because this server now follows another one: the
/// primary decides about their grants.
pub fn end_pushed(core: &mut Core, error: &'static [u8]) {
    let confirmations = &mut core.state.blocking.confirmations;
    confirmations.given_up.clear();
    confirmations.failed = None;
    for confirmation in confirmations.take_all() {
        let Confirmation { client, unconfirmed, .. } = confirmation;
        send(core, client, &unconfirmed, Err(CommandError::formatted(error.to_vec())));
    }
}

/// The number of replicas that must acknowledge.
fn wanted(confirmation: &Confirmation) -> i64 {
    confirmation.unconfirmed.asked.map_or(0, |asked| asked.replicas)
}

/// Retries the clients that were held back, once a further replica has acknowledged the failed
/// grant.
fn retry(core: &mut Core) {
    let Some((offset, before)) = core.state.blocking.confirmations.failed else { return };
    let (replicas, deadline_us) = (Replicas::Count(1), None);
    let awaited = AcksAwaited { offset, replicas, on_disk: None, deadline_us };
    let count = acks::count(&core.state, &awaited);
    core.state.blocking.confirmations.failed = Some((offset, count));
    if count > before {
        core.keyspace.waiting.retry_held_back();
    }
}

/// Sends the reply of a grant or renewal.
fn confirm(core: &mut Core, number: u64) {
    let Some(confirmation) = core.state.blocking.confirmations.remove(number) else { return };
    let Confirmation { client, unconfirmed, .. } = confirmation;
    let Some(ms_left) = ms_left(&mut core.keyspace, &unconfirmed) else {
        core.keyspace.locks.stats.no_replicas += 1;
        return send(core, client, &unconfirmed, Err(LOST));
    };
    for key in &unconfirmed.taken {
        let at = place(&core.keyspace, &unconfirmed, key);
        core.keyspace.locks.note_granted(at, unconfirmed.fence, client);
    }
    send(core, client, &unconfirmed, Ok(ms_left));
}

/// Announces a grant by a push message, without waiting for replicas.
pub fn push_unasked(core: &mut Core, id: ClientId, granted: &Unconfirmed) {
    if let Some(ms_left) = ms_left(&mut core.keyspace, granted) {
        push_granted(&mut core.state, id, granted, ms_left);
    }
}

/// Takes back grants that too few replicas have acknowledged in time.
fn refuse(core: &mut Core, number: u64) {
    let Some(confirmation) = core.state.blocking.confirmations.remove(number) else { return };
    take_back(core, &confirmation);
    let Confirmation { client, unconfirmed, .. } = confirmation;
    send(core, client, &unconfirmed, Err(acks::NO_REPLICAS));
}

/// Ends a wait whose locks have moved to another server, where the grant is valid: the client asks
/// there again, and gets the same fence.
pub fn end_elsewhere(core: &mut Core, number: u64, elsewhere: Elsewhere) {
    let Some(confirmation) = core.state.blocking.confirmations.remove(number) else { return };
    let Confirmation { client, unconfirmed, .. } = confirmation;
    // The client does not know of the grant, so it must not be told of the move.
    for key in &unconfirmed.taken {
        let at = place(&core.keyspace, &unconfirmed, key).to_place();
        core.keyspace.locks.bind(at.at(), None);
    }
    let error = cluster::error(&core.state, core.state.clients.get(client), elsewhere);
    send(core, client, &unconfirmed, Err(error));
}

/// Ends the wait for a grant of a lock that has just moved to another node by MIGRATE, if there is
/// one: its client is sent after it.
pub fn follow(core: &mut Core, database: DbIndex, key: &[u8]) {
    if core.state.blocking.confirmations.is_empty() {
        return;
    }
    let Some(cluster) = core.state.cluster.as_deref() else { return };
    let slot = HashSlot::of(key);
    let Some(target) = cluster.migrating_to(slot) else { return };
    let is_it = |confirmation: &Confirmation| {
        let unconfirmed = &confirmation.unconfirmed;
        unconfirmed.database == database && unconfirmed.keys.iter().any(|name| **name == *key)
    };
    let confirmations = core.state.blocking.confirmations.iter();
    let found: Vec<u64> =
        confirmations.filter(|(_, one)| is_it(one)).map(|(number, _)| number).collect();
    for number in found {
        end_elsewhere(core, number, Elsewhere::Ask(slot, target));
    }
}

/// Takes back grants for which clients no longer wait. Not during a pause: the next turn tries
/// again.
pub fn take_back_given_up(core: &mut Core) {
    if core.state.takes_nothing_back() {
        return;
    }
    for confirmation in std::mem::take(&mut core.state.blocking.confirmations.given_up) {
        take_back(core, &confirmation);
    }
}

fn take_back(core: &mut Core, confirmation: &Confirmation) {
    let Confirmation { client, awaited, unconfirmed, .. } = confirmation;
    let stats = &mut core.keyspace.locks.stats;
    match &unconfirmed.confirmed {
        Confirmed::Renewal(_) => stats.renewals_unconfirmed += 1,
        Confirmed::Lock { .. } | Confirmed::Locks => stats.no_replicas += 1,
    }
    let count = acks::count(&core.state, awaited);
    if count < wanted(confirmation) {
        let failed = &mut core.state.blocking.confirmations.failed;
        if failed.is_none_or(|(offset, _)| offset <= awaited.offset) {
            *failed = Some((awaited.offset, count));
        }
    }
    let Unconfirmed { database, fence, .. } = *unconfirmed;
    let granted = Granted { client: *client, fence, sent_at: None, former: None };
    for key in &unconfirmed.taken {
        let at = place(&core.keyspace, unconfirmed, key);
        locks::give_up(core, at, &granted);
    }
    for (key, former) in &unconfirmed.former {
        let granted = Granted { former: Some(former.clone()), ..granted.clone() };
        locks::give_up(core, At::key(database, key), &granted);
    }
    if unconfirmed.counted_hold && unconfirmed.former.is_empty() {
        for key in &unconfirmed.keys {
            locks::take_hold_back(core, database, key, unconfirmed);
        }
    }
}

/// The place of a granted lock in the index: that of a reader, or that of an exclusive owner.
fn place<'a>(keyspace: &Keyspace, granted: &'a Unconfirmed, key: &'a [u8]) -> At<'a> {
    let reader = At::reader(granted.database, key, &granted.owner);
    let held = keyspace.locks.get(reader);
    match held.is_some_and(|held| held.fence == granted.fence) {
        true => reader,
        false => At::key(granted.database, key),
    }
}

/// The milliseconds left of the granted lease that ends first. None: one of the locks is lost. 0
/// for a renewal, whose reply does not show it.
fn ms_left(keyspace: &mut Keyspace, unconfirmed: &Unconfirmed) -> Option<i64> {
    if matches!(unconfirmed.confirmed, Confirmed::Renewal(_)) {
        return Some(0);
    }
    keyspace.in_database(unconfirmed.database, |keyspace| {
        let mut least = i64::MAX;
        for key in &unconfirmed.keys {
            let slot = keyspace.find_quietly(keyspace.key(key))?;
            let now = keyspace.now();
            let entry = keyspace.entry(slot);
            let lock = lock::read_for(entry.value(), &now, &unconfirmed.owner).ok()??;
            if !lock.is_held_by(&unconfirmed.owner, Some(unconfirmed.fence)) {
                return None;
            }
            let until = keyspace.locks.get(place(keyspace, unconfirmed, key)).and_then(Held::until);
            let deadline = until.or(entry.deadline());
            let left = deadline.map_or(-1, |deadline| now.remaining_ms(deadline).max(0));
            least = least.min(left);
        }
        Some(least)
    })
}

/// Sends the reply, or the push message of an asynchronous request.
fn send(
    core: &mut Core,
    id: ClientId,
    unconfirmed: &Unconfirmed,
    result: Result<i64, CommandError>,
) {
    if let Err(error) = &result {
        core.state.stats.count_error(&error.wire());
    }
    if unconfirmed.is_pushed {
        return match result {
            Ok(ms_left) => push_granted(&mut core.state, id, unconfirmed, ms_left),
            Err(error) => {
                let names = unconfirmed.keys.iter().chain([&unconfirmed.owner]);
                let names: Vec<&[u8]> = names.map(|name| &**name).collect();
                let is_array = unconfirmed.confirmed == Confirmed::Locks;
                push_failed(&mut core.state, id, (&names, is_array), &error.wire());
            }
        };
    }
    let Some(client) = core.state.clients.get(id) else { return };
    let mut output = OutputBuffer::default();
    let mut reply = ReplyWriter::new(&mut output, client.protocol);
    match result {
        Err(error) => reply.error(error.wire()),
        Ok(ms_left) => write(&mut reply, unconfirmed, ms_left),
    }
    end(core, id);
    answer(&mut core.state, id, &output);
}

fn write(reply: &mut ReplyWriter<'_>, unconfirmed: &Unconfirmed, ms_left: i64) {
    match &unconfirmed.confirmed {
        Confirmed::Lock { holds } => {
            reply.array(3);
            reply.integer(unconfirmed.fence as i64);
            reply.integer(*holds);
            reply.integer(ms_left);
        }
        Confirmed::Locks => {
            reply.array(2);
            reply.integer(unconfirmed.fence as i64);
            reply.integer(ms_left);
        }
        Confirmed::Renewal(fences) => {
            reply.array(fences.len());
            fences.iter().for_each(|fence| reply.integer(*fence));
        }
    }
}

// ---- push messages ------------------------------------------------------------------------------

/// Sends a push message of `len` elements to a client of RESP3. A push is no reply, so CLIENT REPLY
/// does not suppress it.
fn push(state: &mut State, id: ClientId, len: usize, write: impl FnOnce(&mut ReplyWriter<'_>)) {
    let Some(client) = state.clients.get_to_push(id) else { return };
    if client.protocol != Protocol::Resp3 {
        return;
    }
    let mut push = ReplyWriter::new(&mut client.output, Protocol::Resp3);
    push.push(len);
    write(&mut push);
    limits::check_output_limit(state, id);
}

/// One key as a string, several as an array.
fn write_keys(push: &mut ReplyWriter<'_>, keys: &[&[u8]], is_array: bool) {
    if is_array {
        push.array(keys.len());
    }
    keys.iter().for_each(|key| push.bulk(key));
}

/// The push `lock-granted key owner fence holds ms-left`. Of LOCK.MACQUIRE, `key` is an array.
fn push_granted(state: &mut State, id: ClientId, granted: &Unconfirmed, ms_left: i64) {
    let keys: Vec<&[u8]> = granted.keys.iter().map(|key| &**key).collect();
    let (holds, is_array) = match granted.confirmed {
        Confirmed::Lock { holds } => (holds, false),
        Confirmed::Locks | Confirmed::Renewal(_) => (1, true),
    };
    push(state, id, 6, |push| {
        push.bulk(b"lock-granted");
        write_keys(push, &keys, is_array);
        push.bulk(&granted.owner);
        push.integer(granted.fence as i64);
        push.integer(holds);
        push.integer(ms_left);
    });
}

/// The push `lock-timeout key owner`. `names`: the keys and the owner.
pub fn push_timeout(state: &mut State, id: ClientId, names: &[&[u8]], is_array: bool) {
    let Some((owner, keys)) = names.split_last() else { return };
    push(state, id, 3, |push| {
        push.bulk(b"lock-timeout");
        write_keys(push, keys, is_array);
        push.bulk(owner);
    });
}

/// The push `lock-failed key owner error`. `names`: the keys, then the owner. `is_array`: the keys
/// are an array even if there is one.
pub fn push_failed(
    state: &mut State,
    id: ClientId,
    (names, is_array): (&[&[u8]], bool),
    error: &[u8],
) {
    let Some((owner, keys)) = names.split_last() else { return };
    push(state, id, 4, |push| {
        push.bulk(b"lock-failed");
        write_keys(push, keys, is_array);
        push.bulk(owner);
        push.bulk(error);
    });
}
