//! Blocked commands run again when one of their keys has changed: for that key alone, before the
//! next client's request. Commands with a timeout reply other than a null array also run once more
//! when their deadline has passed. Clients of WAIT are answered without a further run
//! ([`serve_acks`]).

use super::pushes::{push, push_failed, push_timeout};
use super::{acks, answer, begin, end, end_wait, end_with, set_alarm, slots_left};
use crate::client::ClientId;
use crate::client::handed::{Handed, What};
use crate::client::waits::{Answer, On, Wait};
use crate::clock::Deadline;
use crate::gate::execute::{Gate, Ran, Request};
use crate::gate::{locks, moving};
use crate::keyspace::DbIndex;
use crate::keyspace::waiting::{Ticket, Until, Wanted};
use crate::resp::owned::OwnedRequest;
use crate::resp::reply::{OutputBuffer, ReplyWriter};
use crate::state::context::{Caller, Origin};
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
        core.keyspace.mode.hides_expired |= core.state.stands_still();
        locks::review(core);
        for (database, key) in core.keyspace.waiting.take_ready() {
            if slots_left::follow_key(core, database, &key) {
                continue;
            }
            core.keyspace.select(database);
            serve_key(core, database, &key);
            core.keyspace.delete_found_expired();
        }
        core.keyspace.reset_mode();
    }
}

/// Retries the keys whose waiting clients could be given nothing, if that is possible now.
pub fn retry(core: &mut Core) {
    if may_retry_moves(core) {
        core.keyspace.waiting.retry_postponed(Until::Moves);
    }
    core.state.moving.has_freed = false;
    if core.keyspace.waiting.has_postponed(Until::Writes) && !core.state.withholds_writes() {
        core.keyspace.waiting.retry_postponed(Until::Writes);
    }
    if core.keyspace.waiting.has_postponed(Until::Grants) && !core.state.grants_nothing() {
        core.keyspace.waiting.retry_postponed(Until::Grants);
    }
}

/// Whether clients wait for a moving key that may be written again.
pub fn may_retry_moves(core: &Core) -> bool {
    core.state.moving.has_freed && core.keyspace.waiting.has_postponed(Until::Moves)
}

/// The queues that a key's value can serve now, and the key's deadline. A client that waits for a
/// lock or permits is also served if the value has another type: it gets an error.
fn served_by(core: &mut Core, key: &[u8]) -> (&'static [Wanted], Option<Deadline>) {
    let key = core.keyspace.key(key);
    let dialect = core.state.config.compatible_with;
    let found = match dialect.is_valkey() || dialect.is_redis_8() {
        true => core.keyspace.find_quietly(key),
        // An expired key is deleted here.
        false => core.keyspace.find(key),
    };
    let Some(slot) = found else {
        return (
            &[Wanted::StreamGroup, Wanted::StreamClaim, Wanted::Lock, Wanted::Semaphore],
            None,
        );
    };
    let entry = core.keyspace.entry(slot);
    let queues: &[Wanted] = match type_name(entry.value()) {
        "hash" | "string" => {
            &[Wanted::Lock, Wanted::Semaphore, Wanted::StreamGroup, Wanted::StreamClaim]
        }
        "list" => &[
            Wanted::List,
            Wanted::StreamGroup,
            Wanted::StreamClaim,
            Wanted::Lock,
            Wanted::Semaphore,
        ],
        "zset" => &[
            Wanted::SortedSet,
            Wanted::DueSeconds,
            Wanted::DueMilliseconds,
            Wanted::Semaphore,
            Wanted::StreamGroup,
            Wanted::StreamClaim,
            Wanted::Lock,
        ],
        "stream" => &[
            Wanted::Stream,
            Wanted::StreamGroup,
            Wanted::StreamClaim,
            Wanted::Lock,
            Wanted::Semaphore,
        ],
        _ => &[Wanted::StreamGroup, Wanted::StreamClaim, Wanted::Lock, Wanted::Semaphore],
    };
    (queues, entry.deadline())
}

fn serve_key(core: &mut Core, database: DbIndex, key: &[u8]) {
    let (queues, deadline) = served_by(core, key);
    for &wanted in queues {
        if matches!(wanted, Wanted::Lock | Wanted::Semaphore) {
            if !core.state.waits.has_lock_waiters() {
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
        if wanted == Wanted::StreamClaim {
            if core.keyspace.waiting.first(database, key, wanted).is_some()
                && serve_readers(core, database, key, deadline) != Woken::Held
            {
                set_alarm(core, database, key, wanted);
            }
            continue;
        }
        let mut next = core.keyspace.waiting.first(database, key, wanted);
        let mut woken = Woken::Gone;
        while let Some(ticket) = next {
            woken = run(core, ticket, key, deadline);
            core.keyspace.select(database);
            // Later clients get nothing either, unless all get the same or each waits for something
            // else.
            let others = matches!(wanted, Wanted::Stream | Wanted::StreamGroup);
            // One that waits for several elements may leave some for later clients.
            let others = others
                || wanted == Wanted::List && {
                    let key = core.keyspace.key(key);
                    core.keyspace.find_quietly(key).is_some()
                };
            if woken == Woken::Held || woken == Woken::InVain && !others {
                break;
            }
            next = core.keyspace.waiting.next_after(database, key, ticket);
        }
        // If it is due, it would ring until the move has ended.
        if woken != Woken::Held {
            set_alarm(core, database, key, wanted);
        }
    }
}

/// Serves the clients that wait at a key for what may come by time: of each kind as many as there
/// are entries. Readers of the same group get the same, so that the first which gets nothing stands
/// for all; only those that claim earlier than it may still get some. Returns the last result.
fn serve_readers(
    core: &mut Core,
    database: DbIndex,
    key: &[u8],
    deadline: Option<Deadline>,
) -> Woken {
    let mut woken = Woken::Gone;
    for (reading, _) in core.keyspace.waiting.readings(database, key) {
        let mut wake = |core: &mut Core, ticket: Ticket| {
            woken = run(core, ticket, key, deadline);
            core.keyspace.select(database);
            woken
        };
        let mut last = None;
        let mut in_vain = None;
        while let Some(ticket) = core.keyspace.waiting.reader_after(database, key, &reading, last) {
            last = Some(ticket);
            match wake(core, ticket) {
                Woken::Held => return Woken::Held,
                Woken::InVain => {
                    in_vain = last;
                    break;
                }
                Woken::Served | Woken::Gone => {}
            }
        }
        let mut last = None;
        while in_vain.is_some()
            && let Some(next) = core.keyspace.waiting.claimer_after(database, key, &reading, last)
            && in_vain != Some(next.1)
        {
            last = Some(next);
            match wake(core, next.1) {
                Woken::Held => return Woken::Held,
                Woken::InVain => break,
                Woken::Served | Woken::Gone => {}
            }
        }
    }
    woken
}

/// The result of waking a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Woken {
    Served,
    /// The client keeps waiting: the key has nothing for it.
    InVain,
    /// The client keeps waiting: a key that it may write is on its way to another server. All are
    /// served again when that has ended.
    Held,
    /// The client no longer waits or is being closed: the next one is served.
    Gone,
}

/// Runs a waiting client's command, for a key with this deadline. Its answer comes after earlier
/// replies, and before push messages about the command's effects.
fn run(core: &mut Core, ticket: Ticket, key: &[u8], deadline: Option<Deadline>) -> Woken {
    let Some(wait) = core.state.waits.get_mut(ticket) else { return Woken::Gone };
    let id = wait.client;
    let found = wait.keys().find(|(_, name)| *name == key);
    let index = found.or_else(|| wait.keys().next()).map_or(0, |(index, _)| index);
    let command = core.state.commands.get(wait.command);
    let database = wait.database;
    // The result could not be received.
    if core.state.clients.get(id).is_none_or(|client| client.is_closing()) {
        return Woken::Gone;
    }
    let request = std::mem::take(&mut wait.request);
    if moving::holds_woken(&core.state, database, command, request.args(&request.ranges())) {
        core.keyspace.waiting.postpone(database, key, Until::Moves);
        put_back(core, ticket, request);
        return Woken::Held;
    }
    let Some(client) = core.state.clients.get_mut(id) else { return Woken::Gone };
    let earlier = std::mem::take(&mut client.output);
    let mut output = OutputBuffer::default();
    let reply = ReplyWriter::new(&mut output, client.protocol);
    let ranges = request.ranges();
    let again = Request::new(command, request.args(&ranges), Origin::Woken(index));
    let ran = Gate::new(core, Caller::Client(id), reply).run_woken(&again);
    put_back(core, ticket, request);
    let mut pushes = OutputBuffer::default();
    if let Some(client) = core.state.clients.get_mut(id) {
        pushes = std::mem::replace(&mut client.output, earlier);
    }
    let ended = ran.is_some().then(|| end(core, ticket)).flatten();
    let (Some(ran), Some(wait)) = (ran, ended) else {
        follow(&mut core.state, id, &pushes);
        return Woken::InVain;
    };
    if wait.is_for_lock() {
        locks::note_latency(&mut core.state, "lock-wait", wait.since_us);
    }
    conclude(core, ran, &wait, &output);
    if wait.ticket.wanted().is_taken() {
        let client = core.state.clients.get(id);
        let sent_at = client.map(|client| client.bytes_out + client.output.len() as u64);
        let what = What::Served { wait, reply: output, deadline };
        core.state.handed.push(Handed { client: id, sent_at, what });
    }
    follow(&mut core.state, id, &pushes);
    Woken::Served
}

/// Gives a wait its request back, if it still waits.
fn put_back(core: &mut Core, ticket: Ticket, request: OwnedRequest) {
    if let Some(wait) = core.state.waits.get_mut(ticket) {
        wait.request = request;
    }
}

/// Adds push messages after a client's replies.
fn follow(state: &mut State, id: ClientId, pushes: &OutputBuffer) {
    if !pushes.is_empty()
        && let Some(client) = state.clients.get_mut(id)
    {
        client.output.append(pushes);
    }
}

/// Sends the answer of a command that has been woken, unless it waits for replicas now.
fn conclude(core: &mut Core, ran: Ran, wait: &Wait, output: &OutputBuffer) {
    match (ran, wait.answer) {
        (Ran::Waits(next), _) => begin(core, next),
        (_, Answer::Reply) => answer(&mut core.state, wait.client, output),
        (_, Answer::Push | Answer::Kept) => {
            let whole = output.whole();
            match whole.strip_prefix(b"-") {
                Some(error) => push_failed(&mut core.state, wait, error.trim_ascii_end()),
                None => push(&mut core.state, wait.client, |push| push.output().append(output)),
            }
        }
    }
}

/// Answers the clients of WAIT and WAITAOF for which enough replicas have acknowledged, or whose
/// log was switched off. Runs the requests that had to run on replicas first.
pub fn serve_acks(core: &mut Core) {
    let waiting: Vec<Ticket> = core.state.waits.of(Wanted::Acks).map(|wait| wait.ticket).collect();
    for ticket in waiting {
        let Some(wait) = core.state.waits.get(ticket) else { continue };
        match &wait.on {
            On::Acks(awaited) if acks::has_lost_log(&core.state, awaited) => {
                end_with(core, ticket, acks::WITHOUT_LOG.as_bytes());
            }
            On::Acks(awaited) if acks::are_enough(&core.state, awaited) => {
                end_wait(core, ticket);
            }
            On::Repetition(awaited) if acks::are_enough(&core.state, awaited) => {
                core.keyspace.select(wait.database);
                run(core, ticket, b"", None);
            }
            _ => {}
        }
    }
}

/// Times out clients whose deadline has passed, and wakes those whose key's alarm is due.
pub fn on_time(core: &mut Core) {
    let lease_ms = core.keyspace.lease_ms();
    core.keyspace.waiting.ring(core.state.now.unix().0, lease_ms);
    // Nothing expires while clients are paused.
    core.keyspace.mode.hides_expired |= core.state.stands_still();
    while let Some(ticket) = core.state.waits.deadlines.overdue(core.state.now.boot_us) {
        time_out(core, ticket);
    }
    core.keyspace.reset_mode();
}

/// Ends a wait whose deadline has passed. The reply to a client that waits for a lock names the
/// holder.
fn time_out(core: &mut Core, ticket: Ticket) {
    let is_plain = |wait: &Wait| wait.answer == Answer::Reply && !wait.is_for_lock();
    if core.state.waits.get(ticket).is_some_and(is_plain) {
        return end_wait(core, ticket);
    }
    let Some(wait) = end(core, ticket) else { return };
    if wait.answer == Answer::Kept {
        return;
    }
    // The client may ask again and then keeps its place. A grant ends that.
    core.state.waits.keep(&wait, core.state.now.boot_us);
    if wait.answer == Answer::Push {
        core.keyspace.locks.stats.timeouts += 1;
        return push_timeout(&mut core.state, &wait);
    }
    let Some(client) = core.state.clients.get(wait.client) else { return };
    let mut output = OutputBuffer::default();
    let reply = ReplyWriter::new(&mut output, client.protocol);
    let ranges = wait.request.ranges();
    let command = core.state.commands.get(wait.command);
    let again = Request::new(command, wait.request.args(&ranges), Origin::TimedOut);
    core.keyspace.select(wait.database);
    let ran = Gate::new(core, Caller::Client(wait.client), reply).run_woken(&again);
    conclude(core, ran.unwrap_or(Ran::Done), &wait, &output);
}

/// CLIENT UNBLOCK: ends the wait with the reply of a timeout or with an error. False: the client
/// was not blocked, or it was blocked by MIGRATE, whose end is not known.
pub fn unblock(core: &mut Core, id: ClientId, with_error: bool) -> bool {
    let client = core.state.clients.get(id).filter(|client| !client.is_closing());
    let blocked = client.and_then(|client| client.blocked);
    let Some(ticket) = blocked.filter(|ticket| !ticket.is_for(Wanted::Move)) else { return false };
    match with_error {
        true => end_with(core, ticket, b"UNBLOCKED client unblocked via CLIENT UNBLOCK"),
        false => time_out(core, ticket),
    }
    true
}
