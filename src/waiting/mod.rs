//! Waits: how they begin, are served, and end.
//!
//! A command that finds nothing returns its wait ([`crate::state::context::Context::block`]), and
//! the gate returns it to the request's sender, who begins it here. `client/waits.rs` keeps it, and
//! `keyspace/waiting.rs` queues it at each of its keys. When one of the keys has changed, `waking`
//! runs the command again. It either replies, and the client continues, or it keeps its place in
//! the queue. So clients are served in the order they came, and each element wakes one client.
//!
//! `acks` counts the replicas for which clients wait, `confirm` waits for those that have to
//! acknowledge the grant of a lock, `claiming` sets when pending entries of streams may be claimed.
//! `pushes` answers clients that wait without being blocked.
//! `slots_left` ends waits and subscriptions in a cluster's slots that have gone to another node.

pub mod acks;
mod claiming;
pub mod confirm;
pub mod pushes;
pub mod slots_left;
pub mod waking;

use crate::client::ClientId;
use crate::client::life::Suspension;
use crate::client::waits::{Answer, On, Wait};
use crate::error::CommandError;
use crate::gate::limits;
use crate::keyspace::DbIndex;
use crate::keyspace::waiting::{Ticket, Wanted};
use crate::resp::reply::{OutputBuffer, ReplyWriter};
use crate::state::{Core, State, Task};

/// Begins a wait that a command has returned. Call this when the command's effects are complete.
pub fn begin(core: &mut Core, mut wait: Box<Wait>) {
    let Core { keyspace, state } = core;
    if let On::Confirmation(grant) = &mut wait.on {
        grant.offset = state.stream_end();
        state.replication.wants_acks = true;
    }
    let is_blocked = wait.answer == Answer::Reply;
    if is_blocked && !state.clients.suspend(wait.client, Suspension::UntilReply) {
        return;
    }
    let postponed = if wait.is_for_lock() { state.postpones_grants() } else { None };
    let Some(client) = state.clients.get_mut(wait.client) else { return };
    if is_blocked {
        client.last_command = Some(wait.command);
        client.blocked = Some(wait.ticket);
    }
    for (_, key) in wait.keys() {
        keyspace.waiting.add(wait.database, key, wait.ticket);
        if let Some(until) = postponed {
            keyspace.waiting.postpone(wait.database, key, until);
        }
    }
    if wait.ticket.is_for(Wanted::StreamClaim) {
        let ranges = wait.request.ranges();
        let args = wait.request.args(&ranges);
        for (index, reading, idle_ms) in claiming::readings(args) {
            let place = (idle_ms, wait.ticket);
            keyspace.waiting.add_reader(wait.database, args.get(index), reading, place);
        }
    }
    let (database, wanted) = (wait.database, wait.ticket.wanted());
    let alarmed: Vec<Vec<u8>> = match wanted.may_come_by_time() {
        true => wait.keys().map(|(_, key)| key.to_vec()).collect(),
        false => Vec::new(),
    };
    client.waits_bytes += wait.memory();
    if let Some(before) = state.waits.insert(wait) {
        client.waits_bytes -= before.memory();
    }
    alarmed.iter().for_each(|key| set_alarm(core, database, key, wanted));
}

/// Sets a key's alarm for clients that wait for what may come by time: until a member is due, or a
/// pending entry may be claimed.
fn set_alarm(core: &mut Core, database: DbIndex, key: &[u8], wanted: Wanted) {
    if wanted == Wanted::StreamClaim {
        claiming::set_alarm(core, database, key);
    } else if let Some(alarm) = wanted.alarm() {
        let keyspace = &mut core.keyspace;
        // An expired key is looked up only for a waiting client.
        let is_awaited = keyspace.waiting.first(database, key, wanted).is_some();
        let at_ms = if is_awaited { keyspace.next_due_ms(key, wanted) } else { None };
        keyspace.waiting.set_alarm(database, key, alarm, at_ms);
    }
}

/// Takes a wait out of the registry and all queues.
fn end(core: &mut Core, ticket: Ticket) -> Option<Box<Wait>> {
    let Core { keyspace, state } = core;
    let wait = state.waits.remove(ticket)?;
    if let Some(client) = state.clients.get_mut(wait.client) {
        client.blocked.take_if(|blocked| *blocked == ticket);
        if wait.answer != Answer::Kept {
            client.waits_bytes -= wait.memory();
        }
    }
    if wait.ticket.is_for(Wanted::StreamClaim) {
        let ranges = wait.request.ranges();
        let args = wait.request.args(&ranges);
        for (index, reading, idle_ms) in claiming::readings(args) {
            let place = (idle_ms, ticket);
            keyspace.waiting.remove_reader(wait.database, args.get(index), &reading, place);
        }
    }
    for (_, key) in wait.keys() {
        keyspace.waiting.remove(wait.database, key, ticket);
        // The client may have kept other clients from a lock that is free.
        if wait.is_for_lock() {
            keyspace.waiting.note_change(wait.database, key);
        }
    }
    Some(wait)
}

/// Ends all waits of a client that is about to be closed.
pub fn forget(core: &mut Core, id: ClientId) {
    let blocked = core.state.clients.get(id).and_then(|client| client.blocked);
    blocked.into_iter().for_each(|ticket| leave(core, ticket));
    forget_pushed(core, id);
}

/// Ends the waits of a client that only push messages would answer.
pub fn forget_pushed(core: &mut Core, id: ClientId) {
    for ticket in core.state.waits.pushed_to(id) {
        leave(core, ticket);
    }
    core.state.waits.forget_client(id);
}

/// Ends a wait whose client can receive nothing more.
fn leave(core: &mut Core, ticket: Ticket) {
    let Some(wait) = end(core, ticket) else { return };
    match wait.on {
        On::Confirmation(_) => core.state.waits.given_up.push(*wait),
        On::Keys(_) | On::ScatteredKeys(_) => core.state.waits.keep(&wait, core.state.now.boot_us),
        On::Acks(_) | On::Repetition(_) | On::Move(_) => {}
    }
}

/// Ends a wait that its client has taken back: nothing is pushed, and no place is kept.
pub fn cancel(core: &mut Core, ticket: Ticket) {
    end(core, ticket);
}

/// Sends a client that is no longer blocked its reply, unless CLIENT REPLY says otherwise, and
/// resumes its further requests.
fn answer(state: &mut State, id: ClientId, reply: &OutputBuffer) {
    if let Some(client) = state.clients.get_to_push(id) {
        client.push_reply(reply);
        state.tasks.push(Task::Resume(id));
        limits::check_output_limit(state, id);
    }
}

/// Ends a wait of a blocked client whose deadline has passed, or whose acknowledgements have
/// arrived.
fn end_wait(core: &mut Core, ticket: Ticket) {
    let Some(wait) = end(core, ticket) else { return };
    let Some(client) = core.state.clients.get_mut(wait.client) else { return };
    let protocol = client.protocol;
    let mut output = OutputBuffer::default();
    let mut reply = ReplyWriter::new(&mut output, protocol);
    match &wait.on {
        On::Keys(_) | On::ScatteredKeys(_) => reply.null_array(),
        On::Move(_) => reply.ok(),
        On::Acks(awaited) => acks::reply(&core.state, awaited, &mut reply),
        On::Repetition(_) => {
            let error = CommandError::NoReplicas.wire();
            core.state.stats.count_error(&error);
            reply.error(error);
        }
        On::Confirmation(_) => reply.error(acks::NO_REPLICAS.wire()),
    }
    account_unserved(&mut core.state, &wait, false);
    answer(&mut core.state, wait.client, &output);
    if wait.ticket.is_for(Wanted::Confirmation) {
        core.state.waits.given_up.push(*wait);
    }
}

/// Ends a wait with an error.
pub fn end_with(core: &mut Core, ticket: Ticket, text: &[u8]) {
    let Some(wait) = end(core, ticket) else { return };
    if wait.is_for_lock() {
        core.keyspace.locks.stats.unblocked += 1;
    }
    match wait.answer {
        Answer::Kept => {}
        Answer::Push => pushes::push_failed(&mut core.state, &wait, text),
        Answer::Reply => {
            let client = core.state.clients.get(wait.client);
            let protocol = client.map_or_else(Default::default, |client| client.protocol);
            let mut output = OutputBuffer::default();
            ReplyWriter::new(&mut output, protocol).error(text);
            core.state.stats.count_error(text);
            account_unserved(&mut core.state, &wait, true);
            answer(&mut core.state, wait.client, &output);
        }
    }
    if wait.ticket.is_for(Wanted::Confirmation) {
        core.state.waits.given_up.push(*wait);
    }
}

/// Answers the client of a MIGRATE, if the client still waits for it.
pub fn end_move(core: &mut Core, id: ClientId, number: u64, error: Option<&CommandError>) {
    let is_it = |wait: &Wait| matches!(wait.on, On::Move(own) if own == number);
    let ticket = core.state.clients.get(id).and_then(|client| client.blocked);
    let ticket = ticket.filter(|ticket| core.state.waits.get(*ticket).is_some_and(is_it));
    let Some(wait) = ticket.and_then(|ticket| end(core, ticket)) else { return };
    let reached = core.state.stream_end();
    let mut output = OutputBuffer::default();
    if let Some(client) = core.state.clients.get_mut(id) {
        let mut reply = ReplyWriter::new(&mut output, client.protocol);
        match error {
            Some(error) => reply.error(error.wire()),
            None => reply.ok(),
        }
        // A following WAIT waits for the deletions.
        client.reached = (client.commands, reached);
    }
    if let Some(error) = error {
        core.state.stats.count_error(&error.wire());
        core.state.stats.command_stats[wait.command.index()].failed += 1;
    }
    answer(&mut core.state, id, &output);
}

/// Counts a blocked command that ended without running again.
fn account_unserved(state: &mut State, wait: &Wait, failed: bool) {
    state.stats.counters.commands += 1;
    let stats = &mut state.stats.command_stats[wait.command.index()];
    stats.calls += 1;
    // Valkey counts the command as rejected.
    match state.config.compatible_with.is_valkey() {
        true => stats.rejected += failed as u64,
        false => stats.failed += failed as u64,
    }
    if let Some(client) = state.clients.get_mut(wait.client) {
        client.last_command = Some(wait.command);
        if client.reached.0 == client.commands {
            // The command has changed nothing.
            client.reached.0 += 1;
        }
        client.commands += 1;
    }
}
