//! Waits for locks without a blocked client: LOCK.ACQUIRE and LOCK.MACQUIRE with ASYNC. Push
//! messages announce a grant, or a wait that ends without one.

use crate::client::ClientId;
use crate::client::asynchronous::{AsyncWait, PackedRequest};
use crate::gate::blocking::Woken;
use crate::gate::execute::{Call, Gate};
use crate::gate::{confirm, locks};
use crate::keyspace::Keyspace;
use crate::keyspace::waiting::{Ticket, Wanted};
use crate::resp::args::Args;
use crate::resp::reply::{OutputBuffer, Protocol, ReplyWriter};
use crate::state::context::{Caller, Context, Origin, Wait};
use crate::state::table::Command;
use crate::state::{Core, State};

impl Context<'_> {
    /// Makes the calling client wait for keys without being blocked. A client that already waits
    /// for them, for the same owner, keeps its place. Returns the place. None: the client has no
    /// place, and no further one may wait (`is_full`). Only for commands of clients.
    pub(crate) fn wait_without_blocking(&mut self, wait: Wait, is_full: bool) -> Option<Ticket> {
        let Wait { wanted, keys, deadline_us, grace_ms, is_first, .. } = wait;
        let database = self.core.keyspace.selected();
        let wait = AsyncWait {
            client: self.client_id(),
            command: self.command.id,
            database,
            keys: (keys.start as u8, keys.end as u8),
            deadline_us: deadline_us.unwrap_or(i64::MAX),
            since_us: self.core.state.now.boot_us,
            grace_ms: grace_ms.unwrap_or(0),
            request: PackedRequest::new(self.args),
        };
        if let Some(ticket) = self.core.state.blocking.asynchronous.place_of(&wait) {
            let id = wait.client;
            self.core.state.blocking.asynchronous.insert(ticket, wait);
            count_memory(&mut self.core.state, id);
            return Some(ticket);
        }
        if is_full {
            return None;
        }
        let places = &mut self.core.state.blocking.places;
        let kept = wait.kept_place(0).and_then(|(asker, ..)| places.take(&asker));
        let ticket = kept.unwrap_or_else(|| self.core.keyspace.waiting.next_ticket(is_first));
        let id = wait.client;
        for index in keys {
            let key = self.args.get(index);
            self.core.keyspace.waiting.add(database, key, wanted, ticket, id);
            if let Some(until) = self.core.state.postpones_grants() {
                self.core.keyspace.waiting.postpone(database, key, until);
            }
        }
        self.core.state.blocking.asynchronous.insert(ticket, wait);
        count_memory(&mut self.core.state, id);
        Some(ticket)
    }
}

fn count_memory(state: &mut State, id: ClientId) {
    let bytes = state.blocking.asynchronous.memory(id);
    if let Some(client) = state.clients.get_mut(id) {
        client.waits_bytes = bytes;
    }
}

/// Takes a wait out of all queues.
fn end(core: &mut Core, ticket: Ticket) -> Option<AsyncWait> {
    let wait = core.state.blocking.asynchronous.remove(ticket)?;
    count_memory(&mut core.state, wait.client);
    leave_queues(&mut core.keyspace, &wait, ticket);
    Some(wait)
}

fn leave_queues(keyspace: &mut Keyspace, wait: &AsyncWait, ticket: Ticket) {
    let (names, database) = (wait.names(), wait.database);
    for key in &names[..names.len().saturating_sub(1)] {
        keyspace.waiting.remove(database, key, Wanted::Lock, ticket);
        // The wait may have kept other clients from a lock that is free.
        keyspace.waiting.note_change(database, key);
    }
}

/// Runs the request of a waiting client, because one of its keys has changed.
pub(super) fn wake(core: &mut Core, ticket: Ticket, key: &[u8]) -> Woken {
    let Some(wait) = core.state.blocking.asynchronous.get(ticket) else { return Woken::Gone };
    let id = wait.client;
    let client = core.state.clients.get(id);
    // The client can receive no grant.
    if !client.is_some_and(|one| !one.is_closing() && one.protocol == Protocol::Resp3) {
        end(core, ticket);
        return Woken::Gone;
    }
    let (command, first_key) = (core.state.commands.get(wait.command), usize::from(wait.keys.0));
    let names = wait.names();
    let at = names.iter().position(|name| *name == key).unwrap_or(0);
    let Some(packed) = core.state.blocking.asynchronous.take_request(ticket) else {
        return Woken::Gone;
    };
    let ranges = packed.ranges();
    let args = Args::new(packed.bytes(), &ranges);
    let call = Call::new(command, args, Origin::Woken(first_key + at));
    let mut output = OutputBuffer::default();
    let reply = ReplyWriter::new(&mut output, Protocol::Resp3);
    core.state.blocking.serves_async = true;
    let mut gate = Gate { core, caller: Caller::Client(id), reply };
    let ran = gate.run_woken(&call);
    core.state.blocking.serves_async = false;
    core.state.blocking.asynchronous.give_request(ticket, packed);
    if ran.is_none() {
        return Woken::InVain;
    }
    let Some(wait) = end(core, ticket) else { return Woken::Gone };
    locks::note_latency(&mut core.state, "lock-wait", wait.since_us);
    match core.state.blocking.unconfirmed.take() {
        Some(granted) if granted.asked.is_some() => {
            confirm::suspend(&mut core.state, id, command, *granted)
        }
        Some(granted) => confirm::push_unasked(core, id, &granted),
        None => {
            let reply = output.to_vec();
            let error = reply.strip_prefix(b"-").unwrap_or_default().trim_ascii_end();
            let names = wait.names();
            confirm::push_failed(&mut core.state, id, (&names, takes_many(command)), error);
        }
    }
    Woken::Served
}

/// Whether a command's pushes name its keys as an array.
fn takes_many(command: &Command) -> bool {
    command.spec.name == "LOCK.MACQUIRE"
}

/// Ends the waits whose deadline has passed.
pub fn on_time(core: &mut Core) {
    while let Some(ticket) = core.state.blocking.asynchronous.overdue(core.state.now.boot_us) {
        let Some(wait) = end(core, ticket) else { break };
        if let Some(place) = wait.kept_place(ticket) {
            core.state.blocking.keep_place(place, core.state.now.boot_us);
        }
        core.keyspace.locks.stats.timeouts += 1;
        let is_many = takes_many(core.state.commands.get(wait.command));
        confirm::push_timeout(&mut core.state, wait.client, &wait.names(), is_many);
    }
}

/// Ends all waits of a client that is being closed.
pub fn forget(core: &mut Core, client: ClientId) {
    if core.state.blocking.asynchronous.is_empty() {
        return;
    }
    for ticket in core.state.blocking.asynchronous.of_client(client) {
        if let Some(wait) = end(core, ticket)
            && let Some(place) = wait.kept_place(ticket)
        {
            core.state.blocking.keep_place(place, core.state.now.boot_us);
        }
    }
    core.state.blocking.asynchronous.forget_client(client);
}

/// Ends all waits with an error, because this server now follows another one.
pub fn end_all(core: &mut Core, error: &[u8]) {
    for ticket in core.state.blocking.asynchronous.tickets() {
        end_with(core, ticket, error);
    }
}

/// Ends one wait with an error.
pub fn end_with(core: &mut Core, ticket: Ticket, error: &[u8]) {
    let Some(wait) = end(core, ticket) else { return };
    core.keyspace.locks.stats.unblocked += 1;
    let is_many = takes_many(core.state.commands.get(wait.command));
    confirm::push_failed(&mut core.state, wait.client, (&wait.names(), is_many), error);
}
