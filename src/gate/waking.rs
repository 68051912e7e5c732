//! Blocked commands run again when one of their keys has changed: for that key alone, before the
//! next client's request. Commands with a timeout reply other than a null array also run once more
//! when their deadline has passed. Clients of WAIT are answered without a further run
//! ([`serve_acks`]).

use crate::client::blocked::{Blocked, Cause};
use crate::client::handed::{Handed, What};
use crate::client::{Client, ClientId};
use crate::clock::Deadline;
use crate::gate::blocking::{self, Woken, answer, end, set_alarm, unblock_with};
use crate::gate::execute::{Call, Gate};
use crate::gate::{acks, asynchronous, confirm, locks, slots_left};
use crate::keyspace::DbIndex;
use crate::keyspace::waiting::{Until, Wanted};
use crate::resp::reply::{OutputBuffer, ReplyWriter};
use crate::state::context::{Caller, Origin};
use crate::state::table::Command;
use crate::state::{Core, State};
use crate::types::type_name;

/// Runs the commands that wait for changed keys, until no key is ready. May leave another database
/// selected.
pub fn serve(core: &mut Core) {
    if core.keyspace.has_awaited_changes() {
        core.by_time(serve_all);
    }
}

fn serve_all(core: &mut Core) {
    while core.keyspace.has_awaited_changes() {
        core.keyspace.hides_expired |= core.state.stands_still();
        locks::review(core);
        for (database, key) in core.keyspace.waiting.take_ready() {
            // The waiting commands would change the key.
            if core.state.moving.pauses(&key) {
                core.keyspace.waiting.postpone(database, &key, Until::Writes);
                continue;
            }
            if slots_left::follow_key(core, database, &key) {
                continue;
            }
            core.keyspace.select(database);
            serve_key(core, database, &key);
            core.keyspace.delete_found_expired();
        }
        core.keyspace.stop_hiding_expired();
    }
}

/// Retries the keys whose waiting clients could be given nothing, if that is possible now.
pub fn retry(core: &mut Core) {
    if core.state.moving.is_pausing() {
        return;
    }
    if core.keyspace.waiting.has_postponed(Until::Writes) && !core.state.withholds_writes() {
        core.keyspace.waiting.retry_postponed(Until::Writes);
    }
    if core.keyspace.waiting.has_postponed(Until::Grants) && !core.state.grants_nothing() {
        core.keyspace.waiting.retry_postponed(Until::Grants);
    }
}

/// The queues that a key's value can serve now, and the key's deadline. A client that waits for a
/// lock or permits is also served if the value has another type: it gets an error.
fn served_by(core: &mut Core, key: &[u8]) -> (&'static [Wanted], Option<Deadline>) {
    let key = core.keyspace.key(key);
    let found = match core.state.config.compatible_with.is_valkey() {
        true => core.keyspace.find_quietly(key),
        // An expired key is deleted here.
        false => core.keyspace.find(key),
    };
    let Some(slot) = found else {
        return (&[Wanted::StreamGroup, Wanted::Lock, Wanted::Semaphore], None);
    };
    let entry = core.keyspace.entry(slot);
    let queues: &[Wanted] = match type_name(entry.value()) {
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
    };
    (queues, entry.deadline())
}

fn serve_key(core: &mut Core, database: DbIndex, key: &[u8]) {
    let (queues, deadline) = served_by(core, key);
    for &wanted in queues {
        if matches!(wanted, Wanted::Lock | Wanted::Semaphore) {
            if !core.state.blocking.has_lock_waiters() {
                continue;
            }
            if core.state.is_recovering_locks() {
                core.keyspace.waiting.postpone(database, key, Until::Grants);
                continue;
            }
        }
        // All but XREAD write when they are served.
        if wanted != Wanted::Stream && core.state.withholds_writes() {
            core.keyspace.waiting.postpone(database, key, Until::Writes);
            continue;
        }
        let mut after = 0;
        while let Some((ticket, id)) =
            core.keyspace.waiting.next_after(database, key, wanted, after)
        {
            after = ticket;
            let woken = match core.state.blocking.asynchronous.get(ticket).is_some() {
                true => asynchronous::wake(core, ticket, key),
                false => wake(core, id, key, deadline),
            };
            core.keyspace.select(database);
            // Later clients get nothing either, unless all get the same or each waits for something
            // else.
            if woken == Woken::InVain && !matches!(wanted, Wanted::Stream | Wanted::StreamGroup) {
                break;
            }
        }
        set_alarm(&mut core.keyspace, database, key, wanted);
    }
}

/// Runs a blocked client's command for a key. Its reply comes after earlier replies, and before
/// push messages about the command's effects.
fn wake(core: &mut Core, id: ClientId, key: &[u8], deadline: Option<Deadline>) -> Woken {
    let index = |blocked: &Blocked| {
        let found = blocked.keys().find(|(_, name)| *name == key);
        found.or_else(|| blocked.keys().next()).map_or(0, |(index, _)| index)
    };
    run(core, id, index, deadline)
}

/// Runs a request that had to run on replicas first.
fn run_repeated(core: &mut Core, id: ClientId) {
    let Some(client) = core.state.clients.get(id) else { return };
    core.keyspace.select(client.database);
    run(core, id, |_| 0, None);
}

/// Runs a blocked client's command. `index`: the argument of the key that woke it. `deadline`: that
/// key's.
fn run(
    core: &mut Core,
    id: ClientId,
    index: impl FnOnce(&Blocked) -> usize,
    deadline: Option<Deadline>,
) -> Woken {
    let Some(client) = core.state.clients.get_mut(id) else { return Woken::Gone };
    let protocol = client.protocol;
    let Some(blocked) = client.take_blocked_to_serve() else { return Woken::Gone };
    let earlier = std::mem::take(&mut client.output);
    let index = index(&blocked);
    let command = core.state.commands.get(blocked.command);
    let call = Call::new(command, blocked.args(), Origin::Woken(index));
    let mut output = OutputBuffer::default();
    let reply = ReplyWriter::new(&mut output, protocol);
    let mut gate = Gate { core, caller: Caller::Client(id), reply };
    let ran = gate.run_woken(&call);
    let mut pushes = OutputBuffer::default();
    if let Some(client) = core.state.clients.get_mut(id) {
        client.blocked = Some(blocked);
        pushes = std::mem::replace(&mut client.output, earlier);
    }
    if ran.is_none() {
        follow(&mut core.state, id, &pushes);
        return Woken::InVain;
    }
    let ended = end(core, id);
    if let Some(blocked) = ended.as_deref().filter(|blocked| blocked.waits_for_lock()) {
        locks::note_latency(&mut core.state, "lock-wait", blocked.since_us);
    }
    conclude(&mut core.state, id, command, &output);
    if let Some(blocked) = ended.filter(|blocked| blocked.wanted().is_some_and(Wanted::is_taken)) {
        let client = core.state.clients.get(id);
        let sent_at = client.map(|client| client.bytes_out + client.output.len() as u64);
        let what = What::Served { blocked, reply: output, deadline };
        core.state.handed.push(Handed { client: id, sent_at, what });
    }
    follow(&mut core.state, id, &pushes);
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
pub fn serve_acks(core: &mut Core) {
    for id in core.state.blocking.for_acks.clone() {
        let blocked = core.state.clients.get(id).and_then(|client| client.blocked.as_deref());
        match blocked.map(|blocked| &blocked.cause) {
            Some(Cause::Acks(awaited)) if acks::has_lost_log(&core.state, awaited) => {
                unblock_with(core, id, acks::WITHOUT_LOG.as_bytes());
            }
            Some(Cause::Acks(awaited)) if acks::are_enough(&core.state, awaited) => {
                blocking::end_wait(core, id);
            }
            Some(Cause::Repetition(awaited)) if acks::are_enough(&core.state, awaited) => {
                run_repeated(core, id);
            }
            _ => {}
        }
    }
}

/// Times out clients whose deadline has passed, and wakes those whose key's alarm is due.
pub fn on_time(core: &mut Core) {
    core.keyspace.waiting.ring(core.state.now.unix().0);
    // Nothing expires while clients are paused.
    core.keyspace.hides_expired |= core.state.stands_still();
    while let Some((deadline, id)) = core.state.blocking.deadlines.first().copied()
        && deadline <= core.state.now.boot_us
    {
        time_out(core, id);
    }
    asynchronous::on_time(core);
    core.keyspace.stop_hiding_expired();
    core.state.blocking.places.expire(core.state.now.boot_us);
}

/// Ends a wait whose deadline has passed. The reply to a client that waits for a lock names the
/// holder.
fn time_out(core: &mut Core, id: ClientId) {
    let blocked = core.state.clients.get(id).and_then(|client| client.blocked.as_deref());
    if !blocked.is_some_and(Blocked::waits_for_lock) {
        return blocking::end_wait(core, id);
    }
    let Some(blocked) = end(core, id) else { return };
    // The client may ask again and then keeps its place. A grant ends that.
    if let Some(place) = blocked.kept_place() {
        core.state.blocking.keep_place(place, core.state.now.boot_us);
    }
    let Some(client) = core.state.clients.get_mut(id) else { return };
    let protocol = client.protocol;
    let command = core.state.commands.get(blocked.command);
    let call = Call::new(command, blocked.args(), Origin::TimedOut);
    let mut output = OutputBuffer::default();
    let reply = ReplyWriter::new(&mut output, protocol);
    core.keyspace.select(blocked.database);
    let mut gate = Gate { core, caller: Caller::Client(id), reply };
    gate.run_woken(&call);
    conclude(&mut core.state, id, command, &output);
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
pub fn unblock(core: &mut Core, id: ClientId, with_error: bool) -> bool {
    let can_end = |blocked: &Blocked| !matches!(blocked.cause, Cause::Move(_));
    let is_blocked =
        |client: &Client| client.blocked.as_deref().is_some_and(can_end) && !client.is_closing();
    if !core.state.clients.get(id).is_some_and(is_blocked) {
        return false;
    }
    if !with_error {
        time_out(core, id);
        return true;
    }
    unblock_with(core, id, b"UNBLOCKED client unblocked via CLIENT UNBLOCK")
}
