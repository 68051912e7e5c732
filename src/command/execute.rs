//! The one gate: every command runs through [`execute`], whoever asks for it.
//!
//! In order: does the command exist, do its arguments fit, may this client run it now, is there memory for it; then the
//! handler; then what it changed is announced, and its time and outcome are counted.

use super::args::Args;
use super::context::{Context, Origin, Outcome, Prehashed};
use super::spec::Flags;
use super::table::Command;
use super::{
    blocking, client, client_tracking, connection, debug, evict, monitor, pubsub, script,
    transaction,
};
use crate::client::{Client, ClientFlags, ClientId};
use crate::error::CommandError;
use crate::keyspace::Keyspace;
use crate::resp::reply::{OutputBuffer, Protocol, ReplyWriter};
use crate::state::State;
use crate::stats::commands::Histogram;

/// A parsed request, its command looked up, its keys hashed while they were prefetched.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    pub args: Args<'a>,
    /// None: no such command.
    pub command: Option<&'static Command>,
    pub prehashed: Prehashed<'a>,
}

/// Runs one request for a client and writes its reply to `output`.
#[inline]
pub fn execute(
    db: &mut Keyspace,
    server: &mut State,
    id: ClientId,
    request: &Request<'_>,
    output: &mut OutputBuffer,
    protocol: &mut Protocol,
) -> Outcome {
    let Some(client) = server.clients.get_mut(id) else { return Outcome::Close };
    let flags = client.flags;
    let gate = ClientFlags::GATE.difference(ClientFlags::IN_TRANSACTION);
    if flags & (gate | ClientFlags::AUTHENTICATED) == ClientFlags::AUTHENTICATED
        && server.monitors.is_empty()
        && server.pause.is_none()
    {
        // For most requests this asks once what `run` asks step by step.
        if !flags.contains(ClientFlags::IN_TRANSACTION)
            && let Some(command) = request.command
            && needs_no_check(db, server, command, request.args.len())
        {
            let origin = Origin::Client;
            return run_handler(db, server, id, command, request, origin, output, protocol);
        }
        let outcome = run(db, server, id, request, output, protocol);
        // CLIENT CACHING may have been among what EXEC has run.
        if flags.contains(ClientFlags::IN_TRANSACTION) && outcome != Outcome::Postponed {
            client_tracking::end_caching(server, id, request);
        }
        return outcome;
    }
    execute_closely(db, server, id, request, output, protocol)
}

/// The way of clients and times that need a closer look.
#[cold]
fn execute_closely(
    db: &mut Keyspace,
    server: &mut State,
    id: ClientId,
    request: &Request<'_>,
    output: &mut OutputBuffer,
    protocol: &mut Protocol,
) -> Outcome {
    let Some(client) = server.clients.get_mut(id) else { return Outcome::Close };
    if client.flags.contains(ClientFlags::REPLY_SKIP_NEXT) {
        client.flags.remove(ClientFlags::REPLY_SKIP_NEXT);
        client.flags |= ClientFlags::REPLY_SKIP;
    }
    let muted = ClientFlags::REPLY_OFF | ClientFlags::REPLY_SKIP;
    let is_muted = client.flags.intersects(muted);
    db.no_touch = client.flags.contains(ClientFlags::NO_TOUCH)
        && request.command.is_none_or(|command| command.spec.name != "TOUCH");
    let may_write = Flags::WRITE.union(Flags::MAY_REPLICATE).union(Flags::ADMIN);
    db.keeps_expired = server.pause.is_some()
        && request.command.is_some_and(|command| !command.spec.flags.intersects(may_write));
    let mut unheard = OutputBuffer::with_limit_of(output);
    let heard = if is_muted { &mut unheard } else { &mut *output };
    let outcome = run(db, server, id, request, heard, protocol);
    if is_muted && let Some(client) = server.clients.get_mut(id) {
        let skipped = client.flags.contains(ClientFlags::REPLY_SKIP);
        if !client.flags.intersects(muted) {
            // CLIENT REPLY ON and RESET are the first to be answered again.
            output.append(&unheard);
        } else if skipped && outcome == Outcome::Postponed {
            client.flags |= ClientFlags::REPLY_SKIP_NEXT;
        }
        client.flags.remove(ClientFlags::REPLY_SKIP);
    }
    if outcome != Outcome::Postponed {
        client_tracking::end_caching(server, id, request);
    }
    db.no_touch = false;
    db.keeps_expired = false;
    outcome
}

/// Checks, runs and counts one request.
fn run(
    db: &mut Keyspace,
    server: &mut State,
    id: ClientId,
    request: &Request<'_>,
    output: &mut OutputBuffer,
    protocol: &mut Protocol,
) -> Outcome {
    let command = match resolve(server, request) {
        Ok(command) => command,
        Err(_) if speaks_http(request) => {
            connection::log_other_protocol(server, id);
            server.clients.close(id);
            return Outcome::Close;
        }
        Err(error) => return reject(server, id, None, &error, output, *protocol),
    };
    if !command.spec.accepts(request.args.len()) {
        abandon_if_exec(db, server, id, command);
        let error = CommandError::WrongArity(command.full_name.clone());
        return reject(server, id, Some(command), &error, output, *protocol);
    }
    match may_run(db, server, id, command, request.args, *protocol) {
        Ok(true) => {}
        Ok(false) => return Outcome::Postponed,
        Err(error) => {
            abandon_if_exec(db, server, id, command);
            return reject(server, id, Some(command), &error, output, *protocol);
        }
    }
    if db.tracking.has_changes() {
        client_tracking::before_command(db, server, id, output);
    }
    let in_transaction = |client: &Client| client.flags.contains(ClientFlags::IN_TRANSACTION);
    if server.clients.get(id).is_some_and(in_transaction) {
        match transaction::queue(server, id, command, request) {
            Ok(true) => {
                ReplyWriter::new(output, *protocol).queued();
                return Outcome::Replied;
            }
            Ok(false) => {}
            Err(error) => return reject(server, id, Some(command), &error, output, *protocol),
        }
    }
    let outcome = run_handler(db, server, id, command, request, Origin::Client, output, protocol);
    if !server.monitors.is_empty() && outcome != Outcome::Postponed {
        monitor::feed_monitors(server, id, command, request.args, output);
    }
    outcome
}

/// Runs a blocked client's command again, a key it waits for having changed.
pub(super) fn run_woken(
    db: &mut Keyspace,
    server: &mut State,
    id: ClientId,
    request: &Request<'_>,
    origin: Origin,
    output: &mut OutputBuffer,
    protocol: &mut Protocol,
) -> Outcome {
    let command = request.command.expect("a command that was blocked exists");
    run_handler(db, server, id, command, request, origin, output, protocol)
}

/// Runs a command that EXEC has come to. Those who monitor see it before the EXEC.
pub(super) fn run_queued(
    db: &mut Keyspace,
    server: &mut State,
    id: ClientId,
    command: &'static Command,
    request: &Request<'_>,
    output: &mut OutputBuffer,
    protocol: &mut Protocol,
) -> Outcome {
    let may_write = Flags::WRITE.union(Flags::MAY_REPLICATE).union(Flags::ADMIN);
    db.keeps_expired = server.pause.is_some() && !command.spec.flags.intersects(may_write);
    let origin = Origin::Transaction;
    let outcome = run_handler(db, server, id, command, request, origin, output, protocol);
    if !server.monitors.is_empty() {
        monitor::feed_monitors(server, id, command, request.args, &mut OutputBuffer::default());
    }
    outcome
}

/// Runs a command that a script calls. Whether it may has been checked.
pub(super) fn run_scripted(
    db: &mut Keyspace,
    server: &mut State,
    id: ClientId,
    command: &'static Command,
    request: &Request<'_>,
    output: &mut OutputBuffer,
    protocol: &mut Protocol,
) {
    run_handler(db, server, id, command, request, Origin::Script, output, protocol);
    if !server.monitors.is_empty() {
        monitor::feed_scripted(server, id, command, request.args);
    }
}

/// Runs a command's handler, announces what it changed, and counts it.
#[inline]
#[allow(clippy::too_many_arguments)] // what a context is made of
fn run_handler(
    db: &mut Keyspace,
    server: &mut State,
    id: ClientId,
    command: &'static Command,
    request: &Request<'_>,
    origin: Origin,
    output: &mut OutputBuffer,
    protocol: &mut Protocol,
) -> Outcome {
    let handler = command.spec.handler.expect("a command without subcommands has a handler");
    let mut context = Context {
        db,
        server,
        reply: ReplyWriter::new(output, *protocol),
        args: request.args,
        command,
        client: id,
        prehashed: request.prehashed,
        origin,
        wait: None,
    };
    let result = handler(&mut context);
    *protocol = context.reply.protocol();
    let wait = context.wait.take();
    let (outcome, failed) = match result {
        Ok(outcome) => (outcome, false),
        Err(error) => {
            write_error(server, &error, output, *protocol);
            (Outcome::Replied, true)
        }
    };
    match outcome {
        Outcome::Postponed => {}
        Outcome::Blocked => {
            if origin == Origin::Client
                && let Some(wait) = wait
            {
                blocking::begin(db, server, id, command, request.args, wait);
            }
        }
        _ => account(server, id, command, request, failed),
    }
    if db.tracking.is_on() {
        client_tracking::after_command(db, server, id, command, request, origin, output);
    }
    db.delete_found_expired();
    if !db.events.is_empty() {
        pubsub::publish_events(db, server);
        // Within EXEC's reply there is no place for a push, nor in one that a script reads: it follows at the end.
        if !matches!(origin, Origin::Transaction | Origin::Script) {
            pubsub::take_pushed(server, id, output);
        }
    }
    outcome
}

/// The command or subcommand a request names.
#[inline]
fn resolve(server: &State, request: &Request<'_>) -> Result<&'static Command, CommandError> {
    let Some(command) = request.command else {
        return Err(unknown_command(request.args));
    };
    if command.subcommands.is_empty() || request.args.len() < 2 {
        if command.spec.handler.is_none() {
            return Err(CommandError::WrongArity(command.full_name.clone()));
        }
        return Ok(command);
    }
    let name = request.args.get(1);
    server.commands.find_subcommand(command, name).ok_or_else(|| {
        let shown = shown(name, 128);
        let mut text = b"ERR unknown subcommand '".to_vec();
        text.extend_from_slice(shown);
        text.extend_from_slice(format!("'. Try {} HELP.", command.spec.name).as_bytes());
        CommandError::UnknownSubcommand(text.into())
    })
}

/// Whether this is the beginning of an HTTP request: a browser was talked into sending it here.
fn speaks_http(request: &Request<'_>) -> bool {
    let name = request.args.get(0);
    name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:")
}

/// What an error text shows of an argument: at most so many bytes, and as in Redis nothing from a NUL on.
fn shown(argument: &[u8], most: usize) -> &[u8] {
    let end = argument.iter().take(most).position(|&byte| byte == 0);
    &argument[..end.unwrap_or(argument.len().min(most))]
}

/// The error for a name that is no command, with the beginning of its arguments: 128 bytes of each part at most.
pub fn unknown_command(args: Args<'_>) -> CommandError {
    let mut rest = Vec::new();
    for argument in args.iter_from(1) {
        if rest.len() >= 128 {
            break;
        }
        let room = 128 - rest.len();
        rest.push(b'\'');
        rest.extend_from_slice(shown(argument, room));
        rest.extend_from_slice(b"' ");
    }
    let name = args.get(0);
    let mut text = b"ERR unknown command '".to_vec();
    text.extend_from_slice(shown(name, 128));
    text.extend_from_slice(b"', with args beginning with: ");
    text.extend_from_slice(&rest);
    CommandError::UnknownCommand(text.into())
}

/// Whether [`run`] and [`may_run`] can have nothing to say of a command, whose client's flags concern no check either. What
/// they come to check is to be asked here too.
#[inline(always)]
fn needs_no_check(db: &Keyspace, server: &State, command: &Command, args: usize) -> bool {
    server.config.maxmemory == 0
        && !server.lacks_replicas()
        && !server.scripts.is_busy()
        && !db.tracking.has_changes()
        && command.subcommands.is_empty()
        && command.spec.handler.is_some()
        && !command.is(Flags::PROTECTED)
        && command.spec.accepts(args)
}

/// Whether a client may run a command now. False: later. The order of the checks is Redis's, as the first error found is the
/// one that is told.
#[inline]
fn may_run(
    db: &mut Keyspace,
    server: &mut State,
    id: ClientId,
    command: &'static Command,
    args: Args<'_>,
    protocol: Protocol,
) -> Result<bool, CommandError> {
    let Some(client) = server.clients.get(id) else { return Ok(true) };
    let flags = client.flags;
    if command.is(Flags::PROTECTED) {
        debug::check_allowed(server, client)?;
    }
    if !command.is(Flags::NO_AUTH) && connection::needs_password(server, flags) {
        return Err(CommandError::NoAuth);
    }
    transaction::check_allowed(client, command)?;
    let is_busy = server.scripts.is_busy();
    if server.config.maxmemory > 0 && !is_busy {
        evict::make_room(db, server, id, command)?;
    }
    if server.lacks_replicas() && transaction::runs_any(server, id, command, Flags::WRITE) {
        return Err(CommandError::NoReplicas);
    }
    if flags.contains(ClientFlags::SUBSCRIBED) && protocol == Protocol::Resp2 {
        pubsub::check_subscribed(command)?;
    }
    if is_busy {
        script::check_busy(server, command)?;
    }
    if flags.contains(ClientFlags::MONITOR) {
        monitor::check_monitoring(command)?;
    }
    Ok(is_busy || server.pause.is_none() || !client::must_wait(server, id, command, args))
}

/// An EXEC that is refused ends its transaction all the same.
fn abandon_if_exec(db: &mut Keyspace, server: &mut State, id: ClientId, command: &Command) {
    if command.spec.name == "EXEC"
        && let Some(client) = server.clients.get_mut(id)
    {
        transaction::abandon(db, client);
    }
}

/// Answers a request that does not run.
#[cold]
fn reject(
    server: &mut State,
    id: ClientId,
    command: Option<&'static Command>,
    error: &CommandError,
    output: &mut OutputBuffer,
    protocol: Protocol,
) -> Outcome {
    if let Some(command) = command {
        server.command_stats[command.id as usize].rejected += 1;
    }
    transaction::fail(server, id);
    match command {
        Some(command) if command.spec.name == "EXEC" => {
            let error = transaction::refused(error);
            write_error(server, &error, output, protocol);
        }
        _ => write_error(server, error, output, protocol),
    }
    Outcome::Replied
}

#[cold]
fn write_error(
    server: &mut State,
    error: &CommandError,
    output: &mut OutputBuffer,
    protocol: Protocol,
) {
    let text = error.wire();
    server.count_error(&text);
    ReplyWriter::new(output, protocol).error(&text);
}

/// Counts a command that ran: calls, time, histogram; slow log and latency monitor if it took long.
#[inline]
fn account(
    server: &mut State,
    id: ClientId,
    command: &'static Command,
    request: &Request<'_>,
    failed: bool,
) {
    let nanoseconds = server.timing.lap();
    server.counters.commands += 1;
    let stats = &mut server.command_stats[command.id as usize];
    stats.calls += 1;
    stats.nanoseconds += nanoseconds;
    stats.failed += failed as u64;
    if server.config.latency_tracking {
        stats.histogram.get_or_insert_with(Box::<Histogram>::default).record(nanoseconds);
    }
    if server.timing.is_notable(nanoseconds) {
        note_slow(server, id, command, request, nanoseconds);
    }
    if let Some(client) = server.clients.get_mut(id) {
        client.last_command = Some(command);
        client.commands += 1;
    }
}

/// Counts a blocked command that ended without running again.
pub(super) fn account_unserved(
    server: &mut State,
    id: ClientId,
    command: &'static Command,
    failed: bool,
) {
    server.counters.commands += 1;
    let stats = &mut server.command_stats[command.id as usize];
    stats.calls += 1;
    stats.failed += failed as u64;
    if let Some(client) = server.clients.get_mut(id) {
        client.last_command = Some(command);
        client.commands += 1;
    }
}

#[cold]
fn note_slow(
    server: &mut State,
    id: ClientId,
    command: &'static Command,
    request: &Request<'_>,
    nanoseconds: u64,
) {
    let us = nanoseconds / 1000;
    let threshold_us = server.config.slowlog_log_slower_than;
    let time = server.clock.now().unix_seconds();
    if threshold_us >= 0
        && us >= threshold_us as u64
        && !command.is(Flags::SKIP_SLOWLOG)
        && let Some(client) = server.clients.get(id)
    {
        let max_len = server.config.slowlog_max_len;
        let peer = client.peer.to_string();
        let name = client.name.clone();
        let args = monitor::shown_args(command, request.args);
        server.slowlog.push(args.into_iter(), time, us, peer, &name, max_len);
    }
    let threshold_ms = server.config.latency_monitor_threshold;
    if threshold_ms > 0 && us / 1000 >= threshold_ms as u64 {
        let event = if command.is(Flags::FAST) { "fast-command" } else { "command" };
        server.latency.add(event, time, us / 1000);
    }
}
