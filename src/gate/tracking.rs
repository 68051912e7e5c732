//! Messages that make clients' copies of keys invalid.
//!
//! The gate calls [`after_command`] behind each handler while anybody tracks: who read a copy of a changed key gets its message
//! then, and who tracks a prefix at the end of the turn, one message with all keys ([`end_turn`]). The client that runs the
//! command gets its messages behind the reply, as [`publish::take_pushed`] does it.
//!
//! A message is a push in RESP3. A RESP2 client cannot tell one from a reply, so it has its messages redirected to another
//! connection, which gets them as if published on a channel, if it is subscribed to anything.

use bytes::Bytes;

use crate::client::tracking::{Choice, Mode};
use crate::client::{Client, ClientFlags, ClientId};
use crate::gate::context::{Caller, Origin};
use crate::gate::execute::{Gate, Request};
use crate::gate::keys::keys_of;
use crate::gate::limits::{self, OUTPUT_UNCOUNTED_MAX};
use crate::gate::publish;
use crate::gate::spec::Flags;
use crate::gate::state::State;
use crate::gate::table::Command;
use crate::keyspace::Keyspace;
use crate::keyspace::tracking::Change;
use crate::resp::args::Args;
use crate::resp::reply::{OutputBuffer, Protocol, ReplyWriter};

/// Where a RESP2 client that is redirected to gets its messages.
const CHANNEL: &[u8] = b"__redis__:invalidate";

/// A list of keys at least this long is shared by its receivers instead of copied to each: the measure of PUBLISH.
const SHARED_MIN: usize = 4 * 1024;

/// Keys forgotten in one turn while more are remembered than may be.
const FORGET_KEYS: usize = 1000;

/// Ends a client's tracking, if it tracks.
pub fn stop(db: &mut Keyspace, server: &mut State, id: ClientId) {
    let Some(client) = server.clients.get_mut(id) else { return };
    client.flags.remove(ClientFlags::CACHING);
    if let Some(tracking) = client.tracking.take() {
        let prefixes = tracking.prefixes().into_iter().flatten();
        db.tracking.leave(id, prefixes.map(|prefix| &**prefix));
    }
}

// ---- around commands -------------------------------------------------------------------------------------------------

/// Tells who it concerns what happened before a command: keys that were evicted for it. The client hears of its own copies
/// before the reply.
#[cold]
pub fn before_command(gate: &mut Gate<'_>) {
    tell_changes(gate.db, gate.server, None);
    publish::take_pushed(gate.server, gate.caller, gate.reply.output());
}

/// Tells who it concerns what a command changed, and notes the keys it has read. Called while anybody tracks.
#[cold]
pub fn after_command(
    gate: &mut Gate<'_>,
    command: &Command,
    request: &Request<'_>,
    origin: Origin,
) {
    let client = gate.caller.client();
    tell_changes(gate.db, gate.server, client);
    // A command that waited was noted when it began to wait.
    if command.is(Flags::READONLY)
        && !matches!(origin, Origin::Woken(_))
        && let Some(id) = client
    {
        remember(gate.db, gate.server, id, command, request.args);
    }
    // Within another reply there is no place for a push: it follows at the end.
    if origin == Origin::Client {
        publish::take_pushed(gate.server, gate.caller, gate.reply.output());
    }
}

/// Notes the keys that a command of a client has read, if the client tracks them.
fn remember(db: &mut Keyspace, server: &State, id: ClientId, command: &Command, args: Args<'_>) {
    let Some(client) = server.clients.get(id) else { return };
    let caching = client.flags.contains(ClientFlags::CACHING);
    let tracks = match client.tracking.as_deref().map(|tracking| &tracking.mode) {
        None | Some(Mode::Prefixes(_)) => false,
        Some(Mode::Reads(Choice::All)) => true,
        Some(Mode::Reads(Choice::OptIn)) => caching,
        Some(Mode::Reads(Choice::OptOut)) => !caching,
    };
    // A script's keys are those that its commands read.
    if !tracks || command.is(Flags::RUNS_SCRIPT | Flags::PUBSUB) {
        return;
    }
    for key in keys_of(command.spec, args) {
        db.tracking.remember(id, args.get(key.index));
    }
}

/// CLIENT CACHING holds for one command, or for one transaction: ends it behind that. A subcommand of CLIENT is no such
/// command.
pub fn end_caching(server: &mut State, caller: Caller, request: &Request<'_>) {
    let keeps = request.command.is_some_and(|command| {
        command.is(Flags::KEEPS_CACHING)
            && request.args.len() > 1
            && server.commands.find_subcommand(command, request.args.get(1)).is_some()
    });
    if let Some(client) = caller.client().and_then(|id| server.clients.get_mut(id))
        && !client.flags.contains(ClientFlags::IN_TRANSACTION)
        && !keeps
    {
        client.flags.remove(ClientFlags::CACHING);
    }
}

/// At the end of a turn: forgets keys where too many are remembered, tells of what happened outside of commands, and sends
/// those who track prefixes their keys.
pub fn end_turn(db: &mut Keyspace, server: &mut State) {
    if db.tracking.has_changes() {
        tell_changes(db, server, None);
    }
    let keys_max = server.config.tracking_table_max_keys;
    for _ in 0..FORGET_KEYS {
        if !db.tracking.is_over(keys_max) {
            break;
        }
        let Some((key, readers)) = db.tracking.forget_random() else { break };
        readers.iter().for_each(|&reader| tell_reader(server, reader, &key));
    }
    if db.tracking.has_broadcasts() {
        broadcast(db, server);
    }
}

// ---- messages --------------------------------------------------------------------------------------------------------

/// Takes what has changed: tells the readers, and collects the keys for who tracks prefixes. `by`: the client whose command
/// did it.
fn tell_changes(db: &mut Keyspace, server: &mut State, by: Option<ClientId>) {
    for change in db.tracking.take_changes() {
        match change {
            Change::Key { key, readers, by_client } => {
                db.tracking.collect(&key, by.filter(|_| by_client));
                for reader in readers {
                    let tracking = server.clients.get(reader).and_then(|it| it.tracking.as_deref());
                    let is_own = by == Some(reader);
                    if tracking.is_some_and(|tracking| !(is_own && tracking.no_loop)) {
                        tell_reader(server, reader, &key);
                    }
                }
            }
            Change::All => {
                let ids: Vec<ClientId> = server
                    .clients
                    .iter()
                    .filter(|client| client.tracking.is_some())
                    .map(|client| client.id)
                    .collect();
                ids.into_iter().for_each(|id| send(server, id, |reply| reply.null()));
            }
        }
    }
}

/// Tells a client that has read a key, if it is still there and still tracks what it reads.
fn tell_reader(server: &mut State, id: ClientId, key: &[u8]) {
    let tracking = server.clients.get(id).and_then(|client| client.tracking.as_deref());
    if tracking.is_some_and(|tracking| tracking.prefixes().is_none()) {
        send(server, id, |reply| {
            reply.array(1);
            reply.bulk(key);
        });
    }
}

/// Sends the collected keys to who tracks their prefixes: a message for each prefix.
fn broadcast(db: &mut Keyspace, server: &mut State) {
    for told in db.tracking.take_broadcasts() {
        // The same for all but those who do not want to hear of their own changes.
        let mut all = None;
        for &id in &told.clients {
            let tracking = server.clients.get(id).and_then(|client| client.tracking.as_deref());
            let no_loop = tracking.is_some_and(|tracking| tracking.no_loop);
            if no_loop && told.keys.values().any(|by| *by == Some(id)) {
                let others = told.keys.iter().filter(|(_, by)| **by != Some(id));
                let keys: Vec<&[u8]> = others.map(|(key, _)| &**key).collect();
                if !keys.is_empty() {
                    send_keys(server, id, &encode(keys.into_iter()));
                }
            } else {
                let all = all.get_or_insert_with(|| encode(told.keys.keys().map(|key| &**key)));
                send_keys(server, id, all);
            }
        }
    }
}

/// An array of keys, the same in both versions of the protocol.
fn encode<'a>(keys: impl ExactSizeIterator<Item = &'a [u8]>) -> Bytes {
    let mut output = OutputBuffer::default();
    let mut writer = ReplyWriter::new(&mut output, Protocol::Resp2);
    writer.array(keys.len());
    keys.for_each(|key| writer.bulk(key));
    output.to_vec().into()
}

fn send_keys(server: &mut State, id: ClientId, keys: &Bytes) {
    send(server, id, |reply| match keys.len() {
        0..SHARED_MIN => reply.raw(keys),
        _ => reply.output().push_shared(keys.clone()),
    });
}

/// The client with this number, unless it is about to go.
pub fn receiver(server: &State, number: u64) -> Option<&Client> {
    let client = server.clients.by_number(number)?;
    (!client.flags.contains(ClientFlags::CLOSE_NOW)).then_some(client)
}

/// Sends a client a message, or whom it redirects its messages to; `body` writes what is invalid.
fn send(server: &mut State, id: ClientId, body: impl FnOnce(&mut ReplyWriter<'_>)) {
    let tracking = server.clients.get(id).and_then(|client| client.tracking.as_deref());
    let redirect = tracking.and_then(|tracking| tracking.redirect);
    let target = match redirect {
        None => id,
        Some(number) => match receiver(server, number) {
            Some(client) => client.id,
            None => return tell_broken(server, id, number),
        },
    };
    let Some(client) = server.clients.get(target) else { return };
    let is_channel = client.protocol == Protocol::Resp2;
    let is_subscribed = client.flags.contains(ClientFlags::SUBSCRIBED);
    if client.is_closing() || is_channel && !(redirect.is_some() && is_subscribed) {
        return;
    }
    let Some(client) = server.clients.get_to_push(target) else { return };
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
    check_length(server, target);
}

/// Tells a client that the one it redirects to is gone: once for each message that is not sent.
fn tell_broken(server: &mut State, id: ClientId, number: u64) {
    let Some(client) = server.clients.get_mut(id) else { return };
    if let Some(tracking) = &mut client.tracking {
        tracking.is_broken = true;
    }
    if client.protocol == Protocol::Resp2 || client.is_closing() {
        return;
    }
    let Some(client) = server.clients.get_to_push(id) else { return };
    let mut writer = ReplyWriter::new(&mut client.output, client.protocol);
    writer.push(2);
    writer.bulk(b"tracking-redir-broken");
    writer.integer(number as i64);
    check_length(server, id);
}

fn check_length(server: &mut State, id: ClientId) {
    let client = server.clients.get(id);
    if client.is_some_and(|client| client.output.len() > OUTPUT_UNCOUNTED_MAX) {
        limits::check_output_limit(server, id);
    }
}
