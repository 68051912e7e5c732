//! CLIENT: who is connected, what each may hold, and who has to wait or to go.

use std::cmp::Reverse;
use std::fmt::Write;
use std::os::fd::AsRawFd;

use super::args::Args;
use super::client_filter::{ANY_ID, Filter};
use super::client_tracking::{self, ClientTracking};
use super::context::{CommandResult, Context, Outcome};
use super::help::help_from_specs;
use super::spec::{CommandSpec, Flags, Group, container, spec};
use super::table::Command;
use super::transaction::Transaction;
use super::{blocking, connection, pubsub, script};
use crate::client::{Client, ClientFlags, ClientId, Input};
use crate::clock::Now;
use crate::config::{ClientClass, Config, MemoryLimit};
use crate::error::CommandError;
use crate::pubsub::{Kind, Subscriptions};
use crate::resp::number;
use crate::resp::reply::{OutputBuffer, Protocol};
use crate::resp::request::encoded_len;
use crate::state::{Pause, State, Task};
use crate::sys::log::Level;

const OWN: Flags = Flags::NOSCRIPT.union(Flags::LOADING).union(Flags::STALE);
const OTHERS: Flags = OWN.union(Flags::ADMIN);

pub const COMMANDS: &[CommandSpec] = &[container("CLIENT", SUBCOMMANDS)
    .group(Group::Connection)
    .since("2.4.0")
    .docs("", "Tells about connections and manages them.", "Depends on the subcommand")];

const SUBCOMMANDS: &[CommandSpec] = &[
    client_tracking::CACHING,
    spec("GETNAME", get_name)
        .exactly(2)
        .flags(OWN)
        .group(Group::Connection)
        .since("2.6.9")
        .docs("", "Answers the connection's name.", "O(1)"),
    client_tracking::GETREDIR,
    spec("HELP", help_from_specs)
        .exactly(2)
        .flags(Flags::LOADING.union(Flags::STALE))
        .group(Group::Connection)
        .since("5.0.0")
        .docs("", "Lists these subcommands.", "O(1)"),
    spec("ID", get_id)
        .exactly(2)
        .flags(OWN)
        .group(Group::Connection)
        .since("5.0.0")
        .docs("", "Answers the connection's number.", "O(1)"),
    spec("INFO", info)
        .exactly(2)
        .flags(OWN)
        .group(Group::Connection)
        .since("6.2.0")
        .docs("", "Tells about this connection.", "O(1)")
        .tips(&["nondeterministic_output"]),
    spec("KILL", kill)
        .at_least(3)
        .flags(OTHERS)
        .group(Group::Connection)
        .since("2.4.0")
        .docs(
            "<ip:port | <[ID client-id [client-id ...]] [TYPE <NORMAL | MASTER | SLAVE | REPLICA | PUBSUB>] \
             [USER username] [ADDR ip:port] [LADDR ip:port] [SKIPME <YES | NO>] [MAXAGE seconds] [...]>>",
            "Ends connections.",
            "O(N), N connections",
        ),
    spec("LIST", list)
        .at_least(2)
        .flags(OTHERS)
        .group(Group::Connection)
        .since("2.4.0")
        .docs(
            "[TYPE <NORMAL | MASTER | REPLICA | PUBSUB>] [ID client-id [client-id ...]] [...]",
            "Tells about connections.",
            "O(N log N), N connections",
        )
        .tips(&["nondeterministic_output"]),
    spec("NO-EVICT", no_evict)
        .exactly(3)
        .flags(OTHERS)
        .group(Group::Connection)
        .since("7.0.0")
        .docs("<ON | OFF>", "Spares this connection when clients use too much memory.", "O(1)"),
    spec("NO-TOUCH", no_touch)
        .exactly(3)
        .flags(OWN)
        .group(Group::Connection)
        .since("7.2.0")
        .docs("<ON | OFF>", "Lets this connection use keys without marking them as used.", "O(1)"),
    spec("PAUSE", pause)
        .at_least(3)
        .flags(OTHERS)
        .group(Group::Connection)
        .since("2.9.50")
        .docs("timeout [WRITE | ALL]", "Has clients wait for so many milliseconds.", "O(1)"),
    spec("REPLY", reply)
        .exactly(3)
        .flags(OWN)
        .group(Group::Connection)
        .since("3.2.0")
        .docs("<ON | OFF | SKIP>", "Turns this connection's replies on or off.", "O(1)"),
    spec("SETINFO", set_info)
        .exactly(4)
        .flags(OWN)
        .group(Group::Connection)
        .since("7.2.0")
        .docs("<LIB-NAME libname | LIB-VER libver>", "Tells about the client's library.", "O(1)")
        .tips(&["request_policy:all_nodes", "response_policy:all_succeeded"]),
    spec("SETNAME", set_name)
        .exactly(3)
        .flags(OWN)
        .group(Group::Connection)
        .since("2.6.9")
        .docs("connection-name", "Names the connection.", "O(1)"),
    client_tracking::TRACKING,
    client_tracking::TRACKINGINFO,
    spec("UNBLOCK", unblock)
        .at_least(3)
        .flags(OTHERS)
        .group(Group::Connection)
        .since("5.0.0")
        .docs("client-id [TIMEOUT | ERROR]", "Ends the waiting of a blocked client.", "O(1)"),
    spec("UNPAUSE", unpause)
        .exactly(2)
        .flags(OTHERS)
        .group(Group::Connection)
        .since("6.2.0")
        .docs("", "Ends CLIENT PAUSE.", "O(N), N waiting clients"),
];

const NAME_NOT_PLAIN: CommandError =
    CommandError::Text("ERR Client names cannot contain spaces, newlines or special characters.");
const PAUSE_MODE: CommandError = CommandError::Text("ERR CLIENT PAUSE mode must be WRITE or ALL");
const TIMEOUT_NOT_INTEGER: CommandError =
    CommandError::Text("ERR timeout is not an integer or out of range");
const TIMEOUT_NEGATIVE: CommandError = CommandError::Text("ERR timeout is negative");
const TIMEOUT_TOO_LONG: CommandError = CommandError::Text("ERR timeout is out of range");
const UNBLOCK_REASON: CommandError =
    CommandError::Text("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR");
const NO_SUCH_CLIENT: CommandError = CommandError::Text("ERR No such client");

// ---- who is connected ------------------------------------------------------------------------------------------------

/// `CLIENT ID`: a number that no other connection of this server had or will have.
fn get_id(ctx: &mut Context<'_>) -> CommandResult {
    ctx.reply.integer(ctx.client.number as i64);
    Ok(Outcome::Replied)
}

/// `CLIENT INFO`: the connection's line of CLIENT LIST.
fn info(ctx: &mut Context<'_>) -> CommandResult {
    let mut lines = String::new();
    let running = Running::of(ctx);
    if let Some(client) = ctx.server.clients.get(ctx.client) {
        describe(client, ctx.server.now, Some(&running), &mut lines);
        lines.push('\n');
    }
    ctx.reply.verbatim(b"txt", lines.as_bytes());
    Ok(Outcome::Replied)
}

/// `CLIENT LIST [filter ...]`: a line for each connection, the oldest first; for `ID`s alone in their order.
fn list(ctx: &mut Context<'_>) -> CommandResult {
    let filter = match ctx.args.len() {
        2 => Filter::default(),
        3 => return Err(CommandError::Syntax),
        _ => Filter::parse(ctx.args.cursor(2), ctx.db.databases(), ANY_ID)?,
    };
    let server = &*ctx.server;
    let is_there = |client: &&Client| !client.flags.contains(ClientFlags::CLOSE_NOW);
    let clients: Vec<&Client> = match filter.only_ids() {
        Some(ids) => ids
            .iter()
            .filter_map(|&id| server.clients.by_number(u64::try_from(id).ok()?))
            .filter(is_there)
            .collect(),
        None => {
            let skipped = filter.skip_me.unwrap_or(false).then_some(ctx.client);
            let chosen =
                |client: &&Client| Some(client.id) != skipped && filter.matches(client, server.now);
            let mut clients: Vec<&Client> =
                server.clients.iter().filter(is_there).filter(chosen).collect();
            clients.sort_unstable_by_key(|client| client.id.number);
            clients
        }
    };
    let running = Running::of(ctx);
    let mut lines = String::new();
    for client in clients {
        describe(client, server.now, Some(&running), &mut lines);
        lines.push('\n');
    }
    ctx.reply.verbatim(b"txt", lines.as_bytes());
    Ok(Outcome::Replied)
}

/// `CLIENT KILL ip:port`: `OK`. `CLIENT KILL filter ...`: how many connections were ended.
fn kill(ctx: &mut Context<'_>) -> CommandResult {
    let by_address = ctx.args.len() == 3;
    let filter = match by_address {
        true => Filter::by_address(ctx.args.get(2)),
        false => Filter::parse(ctx.args.cursor(2), ctx.db.databases(), !ANY_ID)?,
    };
    let skipped = filter.skip_me.unwrap_or(true).then_some(ctx.client);
    let server = &mut *ctx.server;
    let chosen = |client: &&Client| {
        !client.flags.contains(ClientFlags::CLOSE_NOW)
            && Some(client.id) != skipped
            && filter.matches(client, server.now)
    };
    let killed: Vec<ClientId> =
        server.clients.iter().filter(chosen).map(|client| client.id).collect();
    for &id in killed.iter().filter(|&&id| id != ctx.client) {
        // Nothing of it is to be seen any more, though its socket is closed at the end of the turn.
        forget_client(server, id);
        client_tracking::stop(ctx.db, server, id);
        server.clients.close(id);
    }
    match (by_address, killed.len()) {
        (true, 0) => return Err(NO_SUCH_CLIENT),
        (true, _) => ctx.reply.ok(),
        (false, count) => ctx.reply.integer(count as i64),
    }
    Ok(if killed.contains(&ctx.client) { Outcome::Close } else { Outcome::Replied })
}

/// The client that runs a command now, which it has not yet to its name.
struct Running {
    id: ClientId,
    command: &'static Command,
    argument_bytes: usize,
    /// Of the request as it was sent.
    request_bytes: usize,
}

impl Running {
    fn of(ctx: &Context<'_>) -> Self {
        Running {
            id: ctx.client,
            command: ctx.command,
            argument_bytes: ctx.args.bytes(),
            request_bytes: encoded_len(ctx.args.iter_from(0)),
        }
    }
}

/// A client as a line of CLIENT LIST.
pub fn describe_client(server: &State, id: ClientId) -> String {
    let mut line = String::new();
    if let Some(client) = server.clients.get(id) {
        describe(client, server.now, None, &mut line);
    }
    line
}

/// Appends a client's line of CLIENT LIST, without a line end.
///
/// Where the field's names speak of buffers this server has not: `qbuf` is what was read and did not run, kept for the
/// client alone, and the request that runs; the arguments of a large request that are complete before it is count as
/// `argv-mem`; `rbs` and `rbp` are the output buffer's size; up to 16 KiB of output are `obl`, more is `oll` pieces of together
/// `omem`, as where a static buffer of that size comes before a list.
fn describe(client: &Client, now: Now, running: Option<&Running>, line: &mut String) {
    let running = running.filter(|running| running.id == client.id);
    let command = running.map(|running| running.command).or(client.last_command);
    let argument_bytes = running.map_or(0, |running| running.argument_bytes);
    let request_bytes = running.map_or(0, |running| running.request_bytes);
    let seconds_since = |us: i64| (now.boot_us - us).max(0) / 1_000_000;
    let count = |kind: Kind| {
        client.subscriptions.as_deref().map_or(0, |own: &Subscriptions| own.of(kind).len())
    };
    let output_memory = output_memory(client);
    let (in_buffer, pieces) = match output_memory {
        0 => (client.output.len(), 0),
        _ => (0, client.output.pieces().count()),
    };
    let events = if client.flags.contains(ClientFlags::WANTS_WRITE) { "rw" } else { "r" };
    let input = &client.input;
    let output_size = client.output.capacity();
    let result = write!(
        line,
        "id={} addr={} laddr={} fd={} name={} age={} idle={} flags={} db={} sub={} psub={} ssub={} multi={} qbuf={} \
         qbuf-free={} argv-mem={} multi-mem={} rbs={output_size} rbp={output_size} obl={in_buffer} oll={pieces} \
         omem={output_memory} tot-mem={} events={events} cmd={} user=default redir={} resp={} lib-name={} lib-ver={}",
        client.id.number,
        client.peer,
        client.local,
        client.stream.as_raw_fd(),
        String::from_utf8_lossy(&client.name),
        seconds_since(client.created_us),
        seconds_since(client.active_us),
        flag_letters(client),
        client.db,
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
        ClientTracking::redirection(client),
        if client.protocol == Protocol::Resp3 { 3 } else { 2 },
        String::from_utf8_lossy(&client.library_name),
        String::from_utf8_lossy(&client.library_version),
    );
    result.expect("a String takes what is written to it");
}

/// The letters of the `flags` field.
pub fn flag_letters(client: &Client) -> String {
    let state = [
        (ClientFlags::MONITOR, 'O'),
        (ClientFlags::SUBSCRIBED, 'P'),
        (ClientFlags::IN_TRANSACTION, 'x'),
        (ClientFlags::SUSPENDED.union(ClientFlags::PAUSED), 'b'),
    ];
    let rest = [
        (ClientFlags::CLOSE_AFTER_REPLY, 'c'),
        (ClientFlags::CLOSE_NOW, 'A'),
        (ClientFlags::UNIX_SOCKET, 'U'),
        (ClientFlags::NO_EVICT, 'e'),
        (ClientFlags::NO_TOUCH, 'T'),
    ];
    let is_set = |(flags, _): &&(ClientFlags, char)| client.flags.intersects(*flags);
    let mut set: String = state.iter().filter(is_set).map(|(_, letter)| letter).collect();
    set.extend(client.tracking.iter().flat_map(|tracking| tracking.letters()));
    set.extend(rest.iter().filter(is_set).map(|(_, letter)| letter));
    if set.is_empty() { "N".into() } else { set }
}

// ---- what a client says about itself ---------------------------------------------------------------------------------

/// Whether a name or the like fits into a line of CLIENT LIST: printable ASCII without spaces.
fn is_plain(text: &[u8]) -> bool {
    text.iter().all(|byte| matches!(byte, b'!'..=b'~'))
}

/// A name as SETNAME and HELLO take it.
pub fn check_name(name: &[u8]) -> Result<&[u8], CommandError> {
    if is_plain(name) { Ok(name) } else { Err(NAME_NOT_PLAIN) }
}

/// `CLIENT SETNAME connection-name`: `OK`.
fn set_name(ctx: &mut Context<'_>) -> CommandResult {
    let name = check_name(ctx.args.get(2))?;
    ctx.client().name = name.into();
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// `CLIENT GETNAME`: the name, or nil.
fn get_name(ctx: &mut Context<'_>) -> CommandResult {
    let name = ctx.client().name.clone();
    match &*name {
        [] => ctx.reply.null(),
        name => ctx.reply.bulk(name),
    }
    Ok(Outcome::Replied)
}

/// `CLIENT SETINFO <LIB-NAME libname | LIB-VER libver>`: `OK`.
fn set_info(ctx: &mut Context<'_>) -> CommandResult {
    let (attribute, value) = (ctx.args.get(2), ctx.args.get(3));
    let is_name = attribute.eq_ignore_ascii_case(b"LIB-NAME");
    if !is_name && !attribute.eq_ignore_ascii_case(b"LIB-VER") {
        let text = [b"ERR Unrecognized option '", attribute, b"'"].concat();
        return Err(CommandError::formatted(text));
    }
    if !is_plain(value) {
        let why = b" cannot contain spaces, newlines or special characters.";
        return Err(CommandError::formatted([b"ERR ", attribute, why].concat()));
    }
    let client = ctx.client();
    if is_name {
        client.library_name = value.into();
    } else {
        client.library_version = value.into();
    }
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// `CLIENT REPLY <ON | OFF | SKIP>`: `OK` for ON, nothing else.
fn reply(ctx: &mut Context<'_>) -> CommandResult {
    let mut args = ctx.args.cursor(2);
    if args.take_word("ON") {
        ctx.client().flags.remove(ClientFlags::REPLY_OFF | ClientFlags::REPLY_SKIP);
        ctx.reply.ok();
    } else if args.take_word("OFF") {
        ctx.client().flags |= ClientFlags::REPLY_OFF;
    } else if args.take_word("SKIP") {
        let client = ctx.client();
        if !client.flags.contains(ClientFlags::REPLY_OFF) {
            client.flags |= ClientFlags::REPLY_SKIP_NEXT;
        }
    } else {
        return Err(CommandError::Syntax);
    }
    Ok(Outcome::Replied)
}

/// `CLIENT NO-EVICT <ON | OFF>`: `OK`.
fn no_evict(ctx: &mut Context<'_>) -> CommandResult {
    let outcome = set_flag(ctx, ClientFlags::NO_EVICT)?;
    ctx.server.clients.note_eviction(ctx.client);
    Ok(outcome)
}

/// `CLIENT NO-TOUCH <ON | OFF>`: `OK`.
fn no_touch(ctx: &mut Context<'_>) -> CommandResult {
    set_flag(ctx, ClientFlags::NO_TOUCH)
}

fn set_flag(ctx: &mut Context<'_>, flag: ClientFlags) -> CommandResult {
    let mut args = ctx.args.cursor(2);
    let on = args.take_word("ON");
    if !on && !args.take_word("OFF") {
        return Err(CommandError::Syntax);
    }
    ctx.client().flags.set(flag, on);
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

// ---- who has to wait -------------------------------------------------------------------------------------------------

/// `CLIENT PAUSE timeout [WRITE | ALL]`: `OK`. A pause that goes on is prolonged or widened, never shortened.
fn pause(ctx: &mut Context<'_>) -> CommandResult {
    if ctx.args.len() > 4 {
        return Err(ctx.wrong_subcommand());
    }
    let mut mode = ctx.args.cursor(3);
    let writes_only = mode.take_word("WRITE");
    if !writes_only && !mode.take_word("ALL") && !mode.is_at_end() {
        return Err(PAUSE_MODE);
    }
    let timeout_ms = number::parse_i64(ctx.args.get(2)).ok_or(TIMEOUT_NOT_INTEGER)?;
    if timeout_ms < 0 {
        return Err(TIMEOUT_NEGATIVE);
    }
    let now_us = ctx.server.now.boot_us;
    let until_us = timeout_ms.checked_mul(1000).and_then(|us| us.checked_add(now_us));
    let mut pause = Pause { until_us: until_us.ok_or(TIMEOUT_TOO_LONG)?, writes_only };
    if let Some(old) = ctx.server.pause {
        pause.until_us = pause.until_us.max(old.until_us);
        pause.writes_only &= old.writes_only;
    }
    ctx.server.pause = Some(pause).filter(|pause| pause.until_us > now_us);
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// `CLIENT UNPAUSE`: `OK`.
fn unpause(ctx: &mut Context<'_>) -> CommandResult {
    ctx.server.pause = None;
    ctx.server.tasks.push(Task::Unpause);
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// Whether CLIENT PAUSE holds a client's command back. The client is then marked as waiting.
pub fn must_wait(server: &mut State, id: ClientId, command: &Command, args: Args<'_>) -> bool {
    let Some(pause) = server.pause else {
        return false;
    };
    let may_write = Flags::WRITE.union(Flags::MAY_REPLICATE);
    let writes = script::flags_of(server, command, args).intersects(may_write);
    let Some(client) = server.clients.get_mut(id) else {
        return false;
    };
    let queued = client.transaction.as_deref().filter(|_| command.spec.name == "EXEC");
    let writes = writes || queued.is_some_and(|transaction| transaction.has_any(may_write));
    let waits = pause.until_us > server.now.boot_us
        && (!pause.writes_only || writes)
        // It cannot touch the keyspace.
        && !client.flags.contains(ClientFlags::MONITOR);
    if waits {
        client.flags |= ClientFlags::PAUSED;
        server.paused.push(id);
    }
    waits
}

/// `CLIENT UNBLOCK client-id [TIMEOUT | ERROR]`: 1 if the client was blocked by a command, else 0.
fn unblock(ctx: &mut Context<'_>) -> CommandResult {
    if ctx.args.len() > 4 {
        return Err(ctx.wrong_subcommand());
    }
    let mut reason = ctx.args.cursor(3);
    let with_error = !reason.take_word("TIMEOUT") && reason.take_word("ERROR");
    if !reason.is_at_end() {
        return Err(UNBLOCK_REASON);
    }
    let number = ctx.args.integer(2)?;
    // Who waits for CLIENT PAUSE is not unblocked by this.
    let client = u64::try_from(number).ok().and_then(|number| ctx.server.clients.by_number(number));
    let id = client.map(|client| client.id);
    let unblocked = id.is_some_and(|id| blocking::unblock(ctx.db, ctx.server, id, with_error));
    ctx.reply.integer(unblocked as i64);
    Ok(Outcome::Replied)
}

// ---- who has to go ---------------------------------------------------------------------------------------------------

/// Output that limits do not count: in the field, a buffer that every client owns.
pub const OUTPUT_UNCOUNTED_MAX: usize = 16 * 1024;

/// Output an unauthenticated client may leave unread besides.
const OUTPUT_UNAUTHENTICATED_MAX: usize = 1024;

/// Bytes of output that wait, as limits count them.
fn output_memory(client: &Client) -> usize {
    match client.output.len() {
        0..=OUTPUT_UNCOUNTED_MAX => 0,
        waiting => waiting,
    }
}

/// The class whose output limits a client with these flags has.
pub fn class_of(flags: ClientFlags) -> ClientClass {
    match flags.contains(ClientFlags::SUBSCRIBED) {
        true => ClientClass::Pubsub,
        false => ClientClass::Normal,
    }
}

/// Bytes of unsent output that a client with these flags may have, as the limit of [`OutputBuffer`].
pub fn output_limit(config: &Config, flags: ClientFlags) -> usize {
    match config.client_output_buffer_limit[class_of(flags) as usize].hard_bytes {
        0 => usize::MAX,
        bytes => usize::try_from(bytes).unwrap_or(usize::MAX).max(OUTPUT_UNCOUNTED_MAX),
    }
}

/// Closes a client whose unsent output is over the limit of its class, or was cut off at it.
pub fn check_output_limit(server: &mut State, id: ClientId) {
    let Some(client) = server.clients.get_mut(id) else {
        return;
    };
    let used = output_memory(client) as u64;
    if client.flags.contains(ClientFlags::CLOSE_NOW) {
        return;
    }
    let flags = client.flags;
    let limit = server.config.client_output_buffer_limit[class_of(flags) as usize];
    let over_hard = client.output.is_cut() || (limit.hard_bytes > 0 && used >= limit.hard_bytes);
    let mut over_soft = false;
    if limit.soft_bytes > 0 && used >= limit.soft_bytes {
        let now_us = server.now.boot_us;
        let since_us = client.over_soft_limit_since_us;
        client.over_soft_limit_since_us = since_us.or(Some(now_us));
        if since_us.is_none() {
            server.clients.over_soft_limit.push(id);
        }
        let allowed_us =
            i64::try_from(limit.soft_seconds).unwrap_or(i64::MAX).saturating_mul(1_000_000);
        over_soft = since_us.is_some_and(|since_us| now_us - since_us > allowed_us);
    } else {
        client.over_soft_limit_since_us = None;
    }
    let over_unauthenticated =
        used > OUTPUT_UNAUTHENTICATED_MAX as u64 && connection::needs_password(server, flags);
    if !over_hard && !over_soft && !over_unauthenticated {
        return;
    }
    server.counters.output_buffer_limit_disconnections += 1;
    let line = describe_client(server, id);
    let why = "scheduled to be closed ASAP for overcoming of output buffer limits.";
    server.log(Level::Warning, format_args!("Client {line} {why}"));
    server.clients.close(id);
}

/// What all clients together may hold, `maxmemory-clients`. Zero: no limit.
pub fn clients_memory_max(server: &State) -> usize {
    match server.config.maxmemory_clients {
        MemoryLimit::Bytes(bytes) => bytes as usize,
        MemoryLimit::Percent(percent) => {
            (server.config.maxmemory as u128 * u128::from(percent) / 100) as usize
        }
    }
}

/// Counts all clients' memory towards `maxmemory-clients`, that of idle ones too, if there is such a limit.
pub fn count_clients_memory(server: &mut State) {
    if clients_memory_max(server) > 0 {
        let ids: Vec<ClientId> = server.clients.iter().map(|client| client.id).collect();
        ids.into_iter().for_each(|id| server.clients.count_memory(id));
    }
}

/// Closes the clients that hold the most until all together hold less than `maxmemory-clients`.
pub fn evict_clients(server: &mut State) {
    let limit = clients_memory_max(server);
    if limit == 0 {
        return;
    }
    // Who is to be closed holds its memory until the end of the turn.
    if server.clients.memory_that_stays() < limit {
        server.clients.is_over_told = false;
        return;
    }
    // This is asked before each client's requests: it must not take long as long as nothing can be done.
    if server.clients.evictable_memory() > 0 {
        evict_largest(server, limit);
    }
    if server.clients.memory_that_stays() >= limit && !server.clients.is_over_told {
        server.clients.is_over_told = true;
        let why = "Over client maxmemory after evicting all evictable clients";
        server.log(Level::Warning, format_args!("{why}"));
    }
}

fn evict_largest(server: &mut State, limit: usize) {
    let spared = ClientFlags::NO_EVICT | ClientFlags::CLOSE_NOW;
    let mut largest: Vec<(usize, ClientId)> = server
        .clients
        .iter()
        .filter(|client| !client.flags.intersects(spared))
        .map(|client| (client.counted_memory, client.id))
        .collect();
    largest.sort_unstable_by_key(|&(memory, id)| (Reverse(memory), id.number));
    for (_, id) in largest {
        if server.clients.memory_that_stays() < limit {
            return;
        }
        let line = describe_client(server, id);
        server.log(Level::Notice, format_args!("Evicting client: {line}"));
        server.counters.evicted_clients += 1;
        server.clients.close(id);
        // What it held is free at once: at the end of the turn would be too late for the keys.
        if let Some(client) = server.clients.get_mut(id) {
            client.input = Input::Empty;
            client.output = OutputBuffer::default();
        }
        server.clients.count_memory(id);
    }
}

/// Takes a client that is about to be closed out of all that knows it.
pub fn forget_client(server: &mut State, id: ClientId) {
    pubsub::unsubscribe_all(server, id);
    server.monitors.retain(|&monitor| monitor != id);
}
