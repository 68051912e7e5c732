//! Limits of clients' unsent output and memory, which clients are closed for them, and the line of
//! CLIENT LIST.

use crate::state::context::Context;
use std::cmp::Reverse;
use std::os::fd::AsRawFd;

use crate::client::life::Life;
use crate::client::tracking::ClientTracking;
use crate::client::transaction::Transaction;
use crate::client::{Client, ClientFlags, ClientId, Input};
use crate::config::{ClientClass, Compatibility, Config, MemoryLimit};
use crate::pubsub::{Kind, Subscriptions};
use crate::replication::backlog::Backlog;
use crate::resp::percent::percent_encoded;
use crate::resp::reply::{OutputBuffer, Protocol};
use crate::resp::request::encoded_len;
use crate::state::State;
use crate::state::table::Command;
use crate::sys::alloc;
use crate::sys::log::{notice, warning};

/// `maxmemory-clients` is never less, as in Redis: a client that is closed for its first request
/// could not even change the limit. Unit: bytes.
const CLIENTS_MEMORY_MIN: usize = 128 << 10;

/// A running command and its client, whose `last_command` does not name it yet.
pub struct Running {
    id: ClientId,
    command: &'static Command,
    argument_bytes: usize,
    /// Size of the request as it was sent.
    request_bytes: usize,
}

impl Running {
    pub fn of(ctx: &Context<'_>) -> Self {
        Running {
            id: ctx.client_id(),
            command: ctx.command,
            argument_bytes: ctx.args.bytes(),
            request_bytes: encoded_len(ctx.args.iter_from(0)),
        }
    }
}

/// A client's line of CLIENT LIST.
pub fn describe_client(state: &State, id: ClientId) -> String {
    described(state, id, false)
}

/// A client's line as it may be logged: without names if `hide-user-data-from-log` says so.
pub fn describe_for_log(state: &State, id: ClientId) -> String {
    described(state, id, state.config.hide_user_data_from_log)
}

fn described(state: &State, id: ClientId, hides_names: bool) -> String {
    let client = state.clients.get(id);
    client.map_or_else(String::new, |client| describe(state, client, None, hides_names))
}

/// The replacement for user data in the log.
const REDACTED: &[u8] = b"*redacted*";

/// A client's line of CLIENT LIST, without a line end.
///
/// Some fields name buffers that this server does not have. `qbuf` is the client's input that has
/// not run, plus the running request. Complete arguments of a large incomplete request count as
/// `argv-mem`. `rbs` and `rbp` are the output buffer's size. `obl` is output up to 16 KiB; further
/// output is `oll` pieces with a total size of `omem`, as if a static buffer of that size came
/// before a list. `hides_names`: leaves out the names of the client and its user.
pub fn describe(
    state: &State,
    client: &Client,
    running: Option<&Running>,
    hides_names: bool,
) -> String {
    let [name, user] = match hides_names {
        true => [REDACTED, REDACTED],
        false => [&client.name, state.acl.name(client.user)],
    };
    let running = running.filter(|running| running.id == client.id);
    let last_command = client.last_command.map(|id| state.commands.get(id));
    let command = running.map(|running| running.command).or(last_command);
    let argument_bytes = running.map_or(0, |running| running.argument_bytes);
    // Valkey has taken the running request out of the client's buffer.
    let is_valkey = state.config.compatible_with.is_valkey();
    let running_in_buffer = running.filter(|_| !is_valkey);
    let request_bytes = running_in_buffer.map_or(0, |running| running.request_bytes);
    let seconds_since = |us: i64| (state.now.boot_us - us).max(0) / 1_000_000;
    let count = |kind: Kind| {
        client.subscriptions.as_deref().map_or(0, |own: &Subscriptions| own.of(kind).len())
    };
    let output_memory = output_memory(client);
    let (in_buffer, pieces) = match output_memory {
        0 => (client.output.len(), 0),
        _ => (0, client.output.pieces().count()),
    };
    let events = if client.writability.is_registered() { "rw" } else { "r" };
    let input = &client.input;
    let output_size = client.output.capacity();
    let [capa, watch, traffic] = newer_fields(client, state.config.compatible_with);
    format!(
        "id={} addr={} laddr={} fd={} name={} age={} idle={} flags={}{capa} db={} sub={} psub={} ssub={} multi={}{watch} qbuf={} \
         qbuf-free={} argv-mem={} multi-mem={} rbs={output_size} rbp={output_size} obl={in_buffer} oll={pieces} \
         omem={output_memory} tot-mem={} events={events} cmd={} user={} redir={} resp={} lib-name={} lib-ver={}{traffic}{}",
        client.id.number,
        client.peer,
        client.local,
        client.stream.as_raw_fd(),
        String::from_utf8_lossy(name),
        seconds_since(client.created_us),
        seconds_since(client.active_us),
        flag_letters(client),
        client.database,
        count(Kind::Channel),
        count(Kind::Pattern),
        count(Kind::Shard),
        client.transaction.as_deref().map_or(-1, |transaction| transaction.len() as i64),
        input.len() - input.parsed() + request_bytes,
        input.capacity() - input.len(),
        input.parsed() + argument_bytes,
        client.transaction.as_deref().map_or(0, Transaction::memory),
        client.memory() + argument_bytes,
        command.map_or("NULL", |command| &command.full_name),
        String::from_utf8_lossy(user),
        ClientTracking::redirection(client),
        if client.protocol == Protocol::Resp3 { 3 } else { 2 },
        String::from_utf8_lossy(&client.library_name),
        String::from_utf8_lossy(&client.library_version),
        awaited_keys(state, client, hides_names),
    )
}

/// The most keys of a waiting client that its line shows, and the most bytes of each.
const AWAITED_MAX: usize = 10;
const AWAITED_BYTES_MAX: usize = 128;

/// The field of a client that waits for keys: `keys=a,b`, percent-encoded.
fn awaited_keys(state: &State, client: &Client, hides_names: bool) -> String {
    let wait = client.blocked.and_then(|ticket| state.waits.get(ticket));
    let Some(wait) = wait else { return String::new() };
    let mut keys = wait.keys().map(|(_, key)| match hides_names {
        true => String::from_utf8_lossy(REDACTED).into_owned(),
        false => percent_encoded(&key[..key.len().min(AWAITED_BYTES_MAX)]),
    });
    let Some(first) = keys.next() else { return String::new() };
    let mut field = format!(" keys={first}");
    keys.by_ref().take(AWAITED_MAX - 1).for_each(|key| field = format!("{field},{key}"));
    if keys.next().is_some() {
        field.push_str(",...");
    }
    field
}

/// The additional fields of Redis 8 and Valkey 9: after `flags`, after `multi`, and at the end.
fn newer_fields(client: &Client, dialect: Compatibility) -> [String; 3] {
    let letters = if client.flags.contains(ClientFlags::CAN_REDIRECT) { "r" } else { "" };
    let watched = client.watching.as_deref().map_or(0, |watching| watching.keys().count());
    let (sent, received, commands) = (client.bytes_in, client.bytes_out, client.commands);
    let watch = format!(" watch={watched}");
    let traffic = format!(" tot-net-in={sent} tot-net-out={received} tot-cmds={commands}");
    match dialect {
        Compatibility::Valkey9 => [format!(" capa={letters}"), watch, traffic],
        Compatibility::Redis8 => [String::new(), watch, format!(" io-thread=0{traffic}")],
        _ => Default::default(),
    }
}

/// The letters of the `flags` field.
pub fn flag_letters(client: &Client) -> String {
    let has = |flag| client.flags.contains(flag);
    let letters = [
        (has(ClientFlags::REPLICA), 'S'),
        (has(ClientFlags::MONITOR), 'O'),
        (has(ClientFlags::SUBSCRIBED), 'P'),
        (has(ClientFlags::IN_TRANSACTION), 'x'),
        (client.is_suspended(), 'b'),
    ];
    let rest = [
        (client.life() == Life::ClosingAfterReply, 'c'),
        (client.is_closing_now(), 'A'),
        (client.stream.is_unix(), 'U'),
        (has(ClientFlags::READS_HERE), 'r'),
        (has(ClientFlags::NO_EVICT), 'e'),
        (has(ClientFlags::NO_TOUCH), 'T'),
        (has(ClientFlags::IMPORT_SOURCE), 'I'),
        (has(ClientFlags::BRINGS_SLOTS), 'i'),
    ];
    let shown = |(is_set, letter): &(bool, char)| is_set.then_some(*letter);
    let mut set: String = letters.iter().filter_map(shown).collect();
    set.extend(client.tracking.iter().flat_map(|tracking| tracking.letters()));
    set.extend(rest.iter().filter_map(shown));
    if set.is_empty() { "N".into() } else { set }
}

// ---- limits -------------------------------------------------------------------------------------

/// Output that limits do not count: Redis has a static buffer of this size in every client.
pub const OUTPUT_UNCOUNTED_MAX: usize = 16 * 1024;

/// Additional output that an unauthenticated client may leave unread.
const OUTPUT_UNAUTHENTICATED_MAX: usize = 1024;

/// Bytes of pending output that limits count.
fn output_memory(client: &Client) -> usize {
    match client.output.len() {
        0..=OUTPUT_UNCOUNTED_MAX => 0,
        waiting => waiting,
    }
}

/// Bytes of pending output that limits count, plus for a replica the unsent part of the stream.
fn unsent(client: &Client, backlog: Option<&Backlog>) -> u64 {
    let replica = client.replica.as_deref().filter(|replica| replica.needs_stream());
    let behind = match (replica, backlog) {
        (Some(replica), Some(backlog)) => backlog.end().saturating_sub(replica.next),
        _ => 0,
    };
    output_memory(client) as u64 + behind
}

/// The class whose output limits apply to a client with these flags.
pub fn class_of(flags: ClientFlags) -> ClientClass {
    if flags.contains(ClientFlags::REPLICA) {
        ClientClass::Replica
    } else if flags.contains(ClientFlags::SUBSCRIBED) {
        ClientClass::Pubsub
    } else {
        ClientClass::Normal
    }
}

/// Unsent output allowed to a client with these flags, as the limit of [`OutputBuffer`]. Unit:
/// bytes.
pub fn output_limit(config: &Config, flags: ClientFlags) -> usize {
    match config.client_output_buffer_limit[class_of(flags) as usize].hard_bytes {
        0 => usize::MAX,
        bytes => usize::try_from(bytes).unwrap_or(usize::MAX).max(OUTPUT_UNCOUNTED_MAX),
    }
}

/// Whether limits count any of a client's output, or did at the last check.
pub fn counts_output(client: &Client) -> bool {
    client.output.len() > OUTPUT_UNCOUNTED_MAX
        || client.output.is_cut()
        || client.replica.is_some()
        || client.over_soft_limit_since_us.is_some()
}

/// Closes a client whose unsent output exceeds its class's limit, or was dropped at that limit.
pub fn check_output_limit(state: &mut State, id: ClientId) {
    let Some(client) = state.clients.get_mut(id) else {
        return;
    };
    let used = unsent(client, state.replication.backlog.as_ref());
    if client.is_closing_now() {
        return;
    }
    let flags = client.flags;
    let mut limit = state.config.client_output_buffer_limit[class_of(flags) as usize];
    if flags.contains(ClientFlags::REPLICA) && limit.hard_bytes > 0 {
        // A replica is not closed while it could continue from the backlog.
        limit.hard_bytes = limit.hard_bytes.max(state.config.repl_backlog_size);
    }
    let since_us = client.over_soft_limit_since_us;
    let is_exceeded =
        limit.is_exceeded(used, &mut client.over_soft_limit_since_us, state.now.boot_us);
    let is_over = is_exceeded || client.output.is_cut();
    if since_us.is_none() && client.over_soft_limit_since_us.is_some() {
        state.clients.queues.over_soft_limit.push(id);
    }
    let over_unauthenticated =
        used > OUTPUT_UNAUTHENTICATED_MAX as u64 && state.needs_password(flags);
    if !is_over && !over_unauthenticated {
        return;
    }
    state.stats.counters.output_buffer_limit_disconnections += 1;
    let line = describe_for_log(state, id);
    let why = "scheduled to be closed ASAP for overcoming of output buffer limits.";
    warning!(state, "Client {line} {why}");
    state.clients.close(id);
}

/// `maxmemory-clients`, the limit of all clients' memory. Unit: bytes; 0: no limit.
pub fn clients_memory_max(state: &State) -> usize {
    let limit = match state.config.maxmemory_clients {
        MemoryLimit::Bytes(bytes) => bytes as usize,
        MemoryLimit::Percent(percent) => {
            (state.config.maxmemory as u128 * u128::from(percent) / 100) as usize
        }
    };
    if limit == 0 { 0 } else { limit.max(CLIENTS_MEMORY_MIN) }
}

/// Whether a client may hold much more than it has sent, as `maxmemory-clients` closes no other one
/// for it; and the bytes for which `maxmemory` evicts no key.
pub fn spare_memory(state: &State) -> (bool, usize) {
    let spare = match state.config.maxmemory {
        0 => usize::MAX,
        limit => (limit as usize).saturating_sub(alloc::allocated()) / 4,
    };
    (clients_memory_max(state) == 0, spare)
}

/// Recounts the memory of all clients, idle ones too, if `maxmemory-clients` is set.
pub fn count_clients_memory(state: &mut State) {
    if clients_memory_max(state) > 0 {
        let ids: Vec<ClientId> = state.clients.iter().map(|client| client.id).collect();
        ids.into_iter().for_each(|id| state.clients.count_memory(id));
    }
}

/// Closes the largest clients until all together are below `maxmemory-clients`.
pub fn evict_clients(state: &mut State) {
    let limit = clients_memory_max(state);
    if limit == 0 {
        return;
    }
    // A client to be closed holds its memory until the end of the turn.
    if state.clients.memory_that_stays() < limit {
        state.clients.is_over_logged = false;
        return;
    }
    // This runs before each client's requests, so it must be fast if no client can be evicted.
    if state.clients.evictable_memory() > 0 {
        evict_largest(state, limit);
    }
    if state.clients.memory_that_stays() >= limit && !state.clients.is_over_logged {
        state.clients.is_over_logged = true;
        let why = "Over client maxmemory after evicting all evictable clients";
        warning!(state, "{why}");
    }
}

fn evict_largest(state: &mut State, limit: usize) {
    let spared = ClientFlags::NO_EVICT | ClientFlags::REPLICA;
    let mut largest: Vec<(usize, ClientId)> = state
        .clients
        .iter()
        .filter(|client| !client.flags.intersects(spared) && !client.is_closing_now())
        .map(|client| (client.counted_memory, client.id))
        .collect();
    largest.sort_unstable_by_key(|&(memory, id)| (Reverse(memory), id.number));
    for (_, id) in largest {
        if state.clients.memory_that_stays() < limit {
            return;
        }
        let line = describe_for_log(state, id);
        notice!(state, "Evicting client: {line}");
        state.stats.counters.evicted_clients += 1;
        state.clients.close(id);
        // Its buffers are freed at once: at the end of the turn would be too late to save keys from
        // eviction.
        if let Some(client) = state.clients.get_mut(id) {
            client.input = Input::Empty;
            client.output = OutputBuffer::default();
        }
        state.clients.count_memory(id);
    }
}
