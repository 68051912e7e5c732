//! Client tracking: invalidation messages.
//!
//! The gate calls [`after_command`] after each handler while any client tracks. Clients that have
//! read a changed key then get a message. Clients that track its prefix get one message with all
//! keys at the end of the turn ([`end_turn`]). The executing client's messages follow its reply
//! ([`publish::take_pushed`]).
//!
//! A message is a push in RESP3. A RESP2 client cannot distinguish it from a reply, so it redirects
//! its messages to another connection, which gets them like published messages if it is subscribed
//! to anything.

use bytes::Bytes;

use crate::client::tracking::{Choice, Mode};
use crate::client::{Client, ClientFlags, ClientId};
use crate::gate::keys::keys_of;
use crate::gate::limits::{self, OUTPUT_UNCOUNTED_MAX};
use crate::gate::publish;
use crate::gate::request::{Gate, Request};
use crate::keyspace::tracking::Change;
use crate::resp::args::Args;
use crate::resp::reply::{OutputBuffer, Protocol, ReplyWriter};
use crate::state::context::{Caller, Origin};
use crate::state::spec::Flags;
use crate::state::table::Command;
use crate::state::{Core, State};

/// The channel of messages redirected to a RESP2 client.
const CHANNEL: &[u8] = b"__redis__:invalidate";

/// A list of keys of at least this many bytes is shared by its receivers instead of copied, as in
/// PUBLISH.
const SHARED_MIN: usize = 4 * 1024;

/// Keys forgotten in one turn while `tracking-table-max-keys` is exceeded, and keys looked at for
/// readers that have gone.
const FORGET_KEYS: usize = 1000;

/// Stops a client's tracking, if it tracks.
pub fn stop(core: &mut Core, id: ClientId) {
    let Some(client) = core.state.clients.get_mut(id) else { return };
    client.flags.remove(ClientFlags::CACHING);
    if let Some(tracking) = client.tracking.take() {
        let prefixes = tracking.prefixes().into_iter().flatten();
        core.keyspace.tracking.leave(id, prefixes.map(|prefix| &**prefix));
    }
}

/// Stops the tracking of a client that closes. What it has read is forgotten in later turns.
pub fn close(core: &mut Core, id: ClientId) {
    let tracks = core.state.clients.get(id).is_some_and(|client| client.tracking.is_some());
    if tracks {
        stop(core, id);
        core.keyspace.tracking.note_gone();
    }
}

// ---- around commands ----------------------------------------------------------------------------

/// Sends messages about events before a command: keys evicted for it. Messages about the client's
/// own copies come before its reply.
#[cold]
pub fn before_command(gate: &mut Gate<'_>) {
    send_changes(gate.core, None);
    publish::take_pushed(&mut gate.core.state, gate.caller, gate.reply.output());
}

/// Sends messages about a command's changes, and notes the keys it has read. Called while any
/// client tracks.
#[cold]
pub fn after_command(gate: &mut Gate<'_>, request: &Request<'_>) {
    let &Request { command, args, origin, .. } = request;
    let client = gate.caller.client();
    send_changes(gate.core, client);
    // A command that blocked was noted before it began to wait.
    if command.is(Flags::READONLY)
        && !matches!(origin, Origin::Woken(_))
        && let Some(id) = client
    {
        remember(gate.core, id, command, args);
    }
    // A push cannot come inside another reply: it follows at the end.
    if origin == Origin::Client {
        publish::take_pushed(&mut gate.core.state, gate.caller, gate.reply.output());
    }
}

/// Notes the keys that a client's command has read, if the client tracks them.
fn remember(core: &mut Core, id: ClientId, command: &Command, args: Args<'_>) {
    let Some(client) = core.state.clients.get(id) else { return };
    let caching = client.flags.contains(ClientFlags::CACHING);
    let tracks = match client.tracking.as_deref().map(|tracking| &tracking.mode) {
        None | Some(Mode::Prefixes(_)) => false,
        Some(Mode::Reads(Choice::All)) => true,
        Some(Mode::Reads(Choice::OptIn)) => caching,
        Some(Mode::Reads(Choice::OptOut)) => !caching,
    };
    // The keys of a script are noted by the commands it calls.
    if !tracks || command.is(Flags::RUNS_SCRIPT | Flags::PUBSUB) {
        return;
    }
    for key in keys_of(command.spec, args) {
        core.keyspace.tracking.remember(id, args.get(key.index));
    }
}

/// Ends CLIENT CACHING after the one command or transaction for which it is valid. CLIENT's
/// subcommands do not count.
pub fn end_caching(state: &mut State, caller: Caller, request: &Request<'_>) {
    let &Request { command, args, .. } = request;
    let keeps = command.is(Flags::KEEPS_CACHING)
        && args.len() > 1
        && state.commands.find_subcommand(command, args.get(1)).is_some();
    if let Some(client) = caller.client().and_then(|id| state.clients.get_mut(id))
        && !client.flags.contains(ClientFlags::IN_TRANSACTION)
        && !keeps
    {
        client.flags.remove(ClientFlags::CACHING);
    }
}

/// At the end of a turn: forgets keys beyond the limit. Sends messages about changes outside of
/// commands, and messages to clients that track prefixes.
pub fn end_turn(core: &mut Core) {
    if core.keyspace.tracking.has_changes() {
        send_changes(core, None);
    }
    let keys_max = core.state.config.tracking_table_max_keys;
    for _ in 0..FORGET_KEYS {
        if !core.keyspace.tracking.is_over(keys_max) {
            break;
        }
        let Some((key, readers)) = core.keyspace.tracking.forget_random() else { break };
        readers.iter().for_each(|&reader| send_to_reader(&mut core.state, reader, &key));
    }
    let clients = &core.state.clients;
    core.keyspace.tracking.forget_gone(FORGET_KEYS, |reader| clients.get(reader).is_some());
    if core.keyspace.tracking.has_broadcasts() {
        broadcast(core);
    }
}

// ---- messages -----------------------------------------------------------------------------------

/// Handles pending changes: sends to readers, and collects keys for clients that track prefixes.
/// `by`: the client whose command made them.
fn send_changes(core: &mut Core, by: Option<ClientId>) {
    for change in core.keyspace.tracking.take_changes() {
        match change {
            Change::Key { key, readers, by_client } => {
                core.keyspace.tracking.collect(&key, by.filter(|_| by_client));
                for reader in readers {
                    let tracking =
                        core.state.clients.get(reader).and_then(|it| it.tracking.as_deref());
                    let is_own = by == Some(reader);
                    if tracking.is_some_and(|tracking| !(is_own && tracking.no_loop)) {
                        send_to_reader(&mut core.state, reader, &key);
                    }
                }
            }
            Change::All => {
                let ids: Vec<ClientId> = core
                    .state
                    .clients
                    .iter()
                    .filter(|client| client.tracking.is_some())
                    .map(|client| client.id)
                    .collect();
                ids.into_iter().for_each(|id| send(&mut core.state, id, |reply| reply.null()));
            }
        }
    }
}

/// Sends a message to a client that has read a key, if the client still exists and tracks.
fn send_to_reader(state: &mut State, id: ClientId, key: &[u8]) {
    let tracking = state.clients.get(id).and_then(|client| client.tracking.as_deref());
    if tracking.is_some_and(|tracking| tracking.prefixes().is_none()) {
        send(state, id, |reply| {
            reply.array(1);
            reply.bulk(key);
        });
    }
}

/// Sends the collected keys to the clients that track their prefixes: a message for each prefix.
fn broadcast(core: &mut Core) {
    for told in core.keyspace.tracking.take_broadcasts() {
        // The same list for all clients but those with NOLOOP.
        let mut all = None;
        for &id in &told.clients {
            let tracking = core.state.clients.get(id).and_then(|client| client.tracking.as_deref());
            let no_loop = tracking.is_some_and(|tracking| tracking.no_loop);
            if no_loop && told.keys.values().any(|by| *by == Some(id)) {
                let others = told.keys.iter().filter(|(_, by)| **by != Some(id));
                let keys: Vec<&[u8]> = others.map(|(key, _)| &**key).collect();
                if !keys.is_empty() {
                    send_keys(&mut core.state, id, &encode(keys.into_iter()));
                }
            } else {
                let all = all.get_or_insert_with(|| encode(told.keys.keys().map(|key| &**key)));
                send_keys(&mut core.state, id, all);
            }
        }
    }
}

/// An encoded array of keys, the same in both protocols.
fn encode<'a>(keys: impl ExactSizeIterator<Item = &'a [u8]>) -> Bytes {
    let mut output = OutputBuffer::default();
    let mut writer = ReplyWriter::new(&mut output, Protocol::Resp2);
    writer.array(keys.len());
    keys.for_each(|key| writer.bulk(key));
    output.to_vec().into()
}

fn send_keys(state: &mut State, id: ClientId, keys: &Bytes) {
    send(state, id, |reply| match keys.len() {
        0..SHARED_MIN => reply.raw(keys),
        _ => reply.output().push_shared(keys.clone()),
    });
}

/// The client with this number, unless it is being closed.
pub fn receiver(state: &State, number: u64) -> Option<&Client> {
    let client = state.clients.by_number(number)?;
    (!client.is_closing_now()).then_some(client)
}

/// Sends a message to a client or the one it redirects to; `body` writes the keys.
fn send(state: &mut State, id: ClientId, body: impl FnOnce(&mut ReplyWriter<'_>)) {
    let tracking = state.clients.get(id).and_then(|client| client.tracking.as_deref());
    let redirect = tracking.and_then(|tracking| tracking.redirect);
    let target = match redirect {
        None => id,
        Some(number) => match receiver(state, number) {
            Some(client) => client.id,
            None => return send_redirection_broken(state, id, number),
        },
    };
    let Some(client) = state.clients.get(target) else { return };
    let is_channel = client.protocol == Protocol::Resp2;
    let is_subscribed = client.flags.contains(ClientFlags::SUBSCRIBED);
    if client.is_closing() || is_channel && !(redirect.is_some() && is_subscribed) {
        return;
    }
    let Some(client) = state.clients.get_to_push(target) else { return };
    let mut writer = ReplyWriter::new(&mut client.output, client.protocol);
    if is_channel {
        writer.push(3);
        writer.bulk(b"message");
        writer.bulk(CHANNEL);
    } else {
        writer.push(2);
        writer.bulk(b"invalidate");
    }
    body(&mut writer);
    check_length(state, target);
}

/// Notifies a client that its redirection target is gone: once for each unsent message.
fn send_redirection_broken(state: &mut State, id: ClientId, number: u64) {
    let Some(client) = state.clients.get_mut(id) else { return };
    if let Some(tracking) = &mut client.tracking {
        tracking.is_broken = true;
    }
    if client.protocol == Protocol::Resp2 || client.is_closing() {
        return;
    }
    let Some(client) = state.clients.get_to_push(id) else { return };
    let mut writer = ReplyWriter::new(&mut client.output, client.protocol);
    writer.push(2);
    writer.bulk(b"tracking-redir-broken");
    writer.integer(number as i64);
    check_length(state, id);
}

fn check_length(state: &mut State, id: ClientId) {
    let client = state.clients.get(id);
    if client.is_some_and(|client| client.output.len() > OUTPUT_UNCOUNTED_MAX) {
        limits::check_output_limit(state, id);
    }
}
