//! Blocked commands run again when one of their keys has changed: for that key alone, before the
//! next client's request. Commands with a timeout reply other than a null array also run once more
//! when their deadline has passed. Clients of WAIT are answered without a further run
//! ([`serve_acks`]).

use crate::client::blocked::{Blocked, Cause};
use crate::client::{Client, ClientId};
use crate::gate::blocking::{self, Woken, answer, end, set_alarm, unblock_with};
use crate::gate::execute::{Gate, Request};
use crate::gate::{acks, asynchronous, confirm, locks};
use crate::keyspace::waiting::Wanted;
use crate::keyspace::{DbIndex, Keyspace};
use crate::resp::reply::{OutputBuffer, ReplyWriter};
use crate::state::State;
use crate::state::context::{Caller, Origin};
use crate::state::table::Command;
use crate::types::type_name;

/// Runs the commands that wait for changed keys, until no key is ready. May leave another database
/// selected.
pub fn serve(keyspace: &mut Keyspace, state: &mut State) {
    while keyspace.has_awaited_changes() {
        keyspace.hides_expired |= state.pauses.strictest().is_some();
        locks::review(keyspace, state);
        for (database, key) in keyspace.waiting.take_ready() {
            // The waiting commands would change the key.
            if state.moving.pauses(&key) {
                keyspace.waiting.postpone(database, &key);
                continue;
            }
            keyspace.select(database);
            serve_key(keyspace, state, database, &key);
            keyspace.delete_found_expired();
        }
        keyspace.stop_hiding_expired();
    }
}

/// Retries the keys whose waiting clients could be granted nothing, if grants are possible now.
pub fn retry(keyspace: &mut Keyspace, state: &State) {
    if keyspace.waiting.has_postponed() && !state.grants_nothing() && !state.moving.is_pausing() {
        keyspace.waiting.retry_postponed();
    }
}

/// The queues that a key's value can serve now. A client that waits for a lock or permits is also
/// served if the value has another type: it gets an error.
fn served_by(keyspace: &mut Keyspace, state: &State, key: &[u8]) -> &'static [Wanted] {
    let key = keyspace.key(key);
    let found = match state.config.compatible_with.is_valkey() {
        true => keyspace.find_quietly(key),
        // An expired key is deleted here.
        false => keyspace.find(key),
    };
    let Some(slot) = found else {
        return &[Wanted::StreamGroup, Wanted::Lock, Wanted::Semaphore];
    };
    match type_name(keyspace.entry(slot).value()) {
        "hash" | "string" => &[Wanted::Lock, Wanted::Semaphore, Wanted::StreamGroup],
        "list" => &[Wanted::List, Wanted::StreamGroup, Wanted::Lock, Wanted::Semaphore],
        "zset" => &[
            Wanted::SortedSet,
            Wanted::DueSeconds,
            Wanted::DueMilliseconds,
            Wanted::Semaphore,
            Wanted::StreamGroup,
            Wanted::Lock,
        ],
        "stream" => &[Wanted::Stream, Wanted::StreamGroup, Wanted::Lock, Wanted::Semaphore],
        _ => &[Wanted::StreamGroup, Wanted::Lock, Wanted::Semaphore],
    }
}

fn serve_key(keyspace: &mut Keyspace, state: &mut State, database: DbIndex, key: &[u8]) {
    for &wanted in served_by(keyspace, state, key) {
        if matches!(wanted, Wanted::Lock | Wanted::Semaphore) {
            if !state.blocking.has_lock_waiters() {
                continue;
            }
            if state.grants_nothing() {
                keyspace.waiting.postpone(database, key);
                continue;
            }
        }
        let mut after = 0;
        while let Some((ticket, id)) = keyspace.waiting.next_after(database, key, wanted, after) {
            after = ticket;
            let woken = match state.blocking.asynchronous.get(ticket).is_some() {
                true => asynchronous::wake(keyspace, state, ticket, key),
                false => wake(keyspace, state, id, key),
            };
            keyspace.select(database);
            // Later clients get nothing either, unless all get the same or each waits for something
            // else.
            if woken == Woken::InVain && !matches!(wanted, Wanted::Stream | Wanted::StreamGroup) {
                break;
            }
        }
        set_alarm(keyspace, database, key, wanted);
    }
}

/// Runs a blocked client's command for a key. Its reply comes after earlier replies, and before
/// push messages about the command's effects.
fn wake(keyspace: &mut Keyspace, state: &mut State, id: ClientId, key: &[u8]) -> Woken {
    run(keyspace, state, id, |blocked| {
        let found = blocked.keys().find(|(_, name)| *name == key);
        found.or_else(|| blocked.keys().next()).map_or(0, |(index, _)| index)
    })
}

/// Runs a request that had to run on replicas first.
fn run_repeated(keyspace: &mut Keyspace, state: &mut State, id: ClientId) {
    let Some(client) = state.clients.get(id) else { return };
    keyspace.select(client.database);
    run(keyspace, state, id, |_| 0);
}

/// Runs a blocked client's command. `index`: the argument of the key that woke it.
fn run(
    keyspace: &mut Keyspace,
    state: &mut State,
    id: ClientId,
    index: impl FnOnce(&Blocked) -> usize,
) -> Woken {
    let Some(client) = state.clients.get_mut(id) else { return Woken::Gone };
    let protocol = client.protocol;
    let Some(blocked) = client.take_blocked_to_serve() else { return Woken::Gone };
    let earlier = std::mem::take(&mut client.output);
    let index = index(&blocked);
    let command = state.commands.get(blocked.command);
    let request =
        Request { args: blocked.args(), command: Some(command), prehashed: Default::default() };
    let mut output = OutputBuffer::default();
    let reply = ReplyWriter::new(&mut output, protocol);
    let mut gate = Gate { keyspace, state, caller: Caller::Client(id), reply };
    let ran = gate.run_woken(command, &request, Origin::Woken(index));
    let mut pushes = OutputBuffer::default();
    if let Some(client) = state.clients.get_mut(id) {
        client.blocked = Some(blocked);
        pushes = std::mem::replace(&mut client.output, earlier);
    }
    if ran.is_none() {
        follow(state, id, &pushes);
        return Woken::InVain;
    }
    if let Some(blocked) = end(keyspace, state, id)
        && blocked.waits_for_lock()
    {
        locks::note_latency(state, "lock-wait", blocked.since_us);
    }
    conclude(state, id, command, &output);
    follow(state, id, &pushes);
    Woken::Served
}

/// Adds push messages after a client's replies.
fn follow(state: &mut State, id: ClientId, pushes: &OutputBuffer) {
    if !pushes.is_empty()
        && let Some(client) = state.clients.get_mut(id)
    {
        client.output.append(pushes);
    }
}

/// Answers the clients of WAIT and WAITAOF for which enough replicas have acknowledged, or whose
/// log was switched off. Runs the requests that had to run on replicas first.
pub fn serve_acks(keyspace: &mut Keyspace, state: &mut State) {
    for id in state.blocking.for_acks.clone() {
        let blocked = state.clients.get(id).and_then(|client| client.blocked.as_deref());
        match blocked.map(|blocked| &blocked.cause) {
            Some(Cause::Acks(awaited)) if acks::has_lost_log(state, awaited) => {
                unblock_with(keyspace, state, id, acks::WITHOUT_LOG.as_bytes());
            }
            Some(Cause::Acks(awaited)) if acks::are_enough(state, awaited) => {
                blocking::end_wait(keyspace, state, id);
            }
            Some(Cause::Repetition(awaited)) if acks::are_enough(state, awaited) => {
                run_repeated(keyspace, state, id);
            }
            _ => {}
        }
    }
}

/// Times out clients whose deadline has passed, and wakes those whose key's alarm is due.
pub fn on_time(keyspace: &mut Keyspace, state: &mut State) {
    keyspace.waiting.ring(state.now.unix().0);
    // Nothing expires while clients are paused.
    keyspace.hides_expired |= state.pauses.strictest().is_some();
    while let Some((deadline, id)) = state.blocking.deadlines.first().copied()
        && deadline <= state.now.boot_us
    {
        time_out(keyspace, state, id);
    }
    asynchronous::on_time(keyspace, state);
    keyspace.stop_hiding_expired();
    state.blocking.places.expire(state.now.boot_us);
}

/// Ends a wait whose deadline has passed. The reply to a client that waits for a lock names the
/// holder.
fn time_out(keyspace: &mut Keyspace, state: &mut State, id: ClientId) {
    let blocked = state.clients.get(id).and_then(|client| client.blocked.as_deref());
    if !blocked.is_some_and(Blocked::waits_for_lock) {
        return blocking::end_wait(keyspace, state, id);
    }
    let Some(blocked) = end(keyspace, state, id) else { return };
    // The client may ask again and then keeps its place. A grant ends that.
    if let Some(place) = blocked.kept_place() {
        state.blocking.keep_place(place, state.now.boot_us);
    }
    let Some(client) = state.clients.get_mut(id) else { return };
    let protocol = client.protocol;
    let command = state.commands.get(blocked.command);
    let request =
        Request { args: blocked.args(), command: Some(command), prehashed: Default::default() };
    let mut output = OutputBuffer::default();
    let reply = ReplyWriter::new(&mut output, protocol);
    keyspace.select(blocked.database);
    let mut gate = Gate { keyspace, state, caller: Caller::Client(id), reply };
    gate.run_woken(command, &request, Origin::TimedOut);
    conclude(state, id, command, &output);
}

/// Sends the reply of a command that has been woken, unless it waits for replicas now.
fn conclude(state: &mut State, id: ClientId, command: &'static Command, output: &OutputBuffer) {
    match state.blocking.unconfirmed.take() {
        Some(unconfirmed) => confirm::suspend(state, id, command, *unconfirmed),
        None => answer(state, id, output),
    }
}

/// CLIENT UNBLOCK: ends the wait with the reply of a timeout or with an error. False: the client
/// was not blocked, or it was blocked by MIGRATE, whose end is not known.
pub fn unblock(keyspace: &mut Keyspace, state: &mut State, id: ClientId, with_error: bool) -> bool {
    let can_end = |blocked: &Blocked| !matches!(blocked.cause, Cause::Move(_));
    let is_blocked =
        |client: &Client| client.blocked.as_deref().is_some_and(can_end) && !client.is_closing();
    if !state.clients.get(id).is_some_and(is_blocked) {
        return false;
    }
    if !with_error {
        time_out(keyspace, state, id);
        return true;
    }
    unblock_with(keyspace, state, id, b"UNBLOCKED client unblocked via CLIENT UNBLOCK")
}
