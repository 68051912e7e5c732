//! Blocked commands: how they start to wait, are woken, time out and are unblocked.
//!
//! A command that finds nothing calls [`Context::block`]. Its request is kept, and the client is
//! queued at each of its keys (`keyspace/waiting.rs`). When one of the keys has changed, the
//! command runs again (`gate/waking.rs`). It either replies, and the client continues, or it keeps
//! its place in the queue. So clients are served in the order they came, and each element wakes one
//! client.

use crate::client::ClientId;
use crate::client::acks::AcksAwaited;
use crate::client::blocked::{Blocked, Cause};
use crate::client::life::Suspension;
use crate::clock::Now;
use crate::error::CommandError;
use crate::gate::request::Call;
use crate::gate::{acks, limits};
use crate::keyspace::waiting::Wanted;
use crate::keyspace::{DbIndex, Keyspace};
use crate::resp::float80::Float80;
use crate::resp::number;
use crate::resp::reply::{OutputBuffer, ReplyWriter};
use crate::resp::request::Range;
use crate::state::context::{Context, Origin, Wait};
use crate::state::table::Command;
use crate::state::{Core, State, Task};

/// Unit of a timeout argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeoutUnit {
    /// Seconds, possibly with a fraction: rounded up to milliseconds.
    Seconds,
    /// Whole milliseconds.
    Milliseconds,
}

/// The deadline of a timeout argument on the boot-time clock, in microseconds; None for 0, which
/// blocks for ever.
pub fn parse_timeout(
    text: &[u8],
    unit: TimeoutUnit,
    now: Now,
) -> Result<Option<i64>, CommandError> {
    let ms = match unit {
        TimeoutUnit::Seconds => {
            let ms = parse_seconds(text)
                .ok_or(CommandError::Text("ERR timeout is not a float or out of range"))?
                * 1000.0;
            if ms > i64::MAX as f64 {
                return Err(CommandError::TIMEOUT_OUT_OF_RANGE);
            }
            ms.ceil() as i64
        }
        TimeoutUnit::Milliseconds => {
            number::parse_i64(text).ok_or(CommandError::TIMEOUT_NOT_INTEGER)?
        }
    };
    if ms < 0 {
        return Err(CommandError::TIMEOUT_NEGATIVE);
    }
    if ms == 0 {
        return Ok(None);
    }
    // Redis adds the wall clock's milliseconds, and refuses an overflow.
    if ms.checked_add(now.unix().0).is_none() {
        return Err(CommandError::TIMEOUT_OUT_OF_RANGE);
    }
    Ok(Some(now.boot_us.saturating_add(ms.saturating_mul(1000))))
}

/// Seconds, parsed like an extended-precision number: a value beyond a double is infinite, and one
/// that is too small for it the smallest there is.
fn parse_seconds(text: &[u8]) -> Option<f64> {
    if let Some(seconds) = number::parse_f64(text) {
        return Some(seconds).filter(|seconds| !seconds.is_nan());
    }
    let number = Float80::parse(text).filter(Float80::is_finite)?;
    let seconds = if number.is_below_one() { f64::MIN_POSITIVE } else { f64::INFINITY };
    Some(if text.starts_with(b"-") { -seconds } else { seconds })
}

/// A request's arguments in the form in which [`Blocked`] keeps them.
fn kept<'a>(arguments: impl Iterator<Item = &'a [u8]>) -> (Vec<u8>, Vec<Range>) {
    let (mut buffer, mut ranges) = (Vec::new(), Vec::new());
    for argument in arguments {
        ranges.push(Range { start: buffer.len() as u32, len: argument.len() as u32 });
        buffer.extend_from_slice(argument);
    }
    (buffer, ranges)
}

/// Blocks the client whose command returned [`crate::state::context::Outcome::Blocked`].
pub(crate) fn begin(core: &mut Core, id: ClientId, call: &Call<'_>, mut wait: Wait) {
    let Some(client) = core.state.clients.get_mut(id) else { return };
    let (buffer, ranges) = match wait.rewritten.take() {
        Some(rewritten) => kept(rewritten.iter().map(Vec::as_slice)),
        None => kept(call.args.iter_from(0)),
    };
    let Wait { wanted, keys, deadline_us, grace_ms, is_first, .. } = wait;
    let mut blocked = Blocked {
        command: call.command.id,
        cause: Cause::Keys { wanted, keys: keys.clone(), ticket: 0 },
        deadline_us,
        database: client.database,
        buffer,
        ranges,
        since_us: core.state.now.boot_us,
        grace_ms,
    };
    let kept = blocked.kept_place().and_then(|(asker, ..)| core.state.blocking.places.take(&asker));
    let ticket = kept.unwrap_or_else(|| core.keyspace.waiting.next_ticket(is_first));
    blocked.cause = Cause::Keys { wanted, keys, ticket };
    let postponed = core.state.postpones_grants().filter(|_| blocked.waits_for_lock());
    for (_, key) in blocked.keys() {
        core.keyspace.waiting.add(blocked.database, key, wanted, ticket, id);
        set_alarm(&mut core.keyspace, blocked.database, key, wanted);
        if let Some(until) = postponed {
            core.keyspace.waiting.postpone(blocked.database, key, until);
        }
    }
    suspend(&mut core.state, id, blocked);
}

/// Blocks the client of WAIT or WAITAOF.
pub(crate) fn await_acks(
    state: &mut State,
    id: ClientId,
    command: &'static Command,
    acks: AcksAwaited,
) {
    let blocked = Blocked::new(command.id, Cause::Acks(acks));
    await_replicas(state, id, acks, blocked);
}

/// Blocks a client whose request runs here only after replicas have run it.
pub(crate) fn await_repetition(
    state: &mut State,
    id: ClientId,
    call: &Call<'_>,
    acks: AcksAwaited,
) {
    let (buffer, ranges) = kept(call.args.iter_from(0));
    let blocked = Blocked::new(call.command.id, Cause::Repetition(acks));
    await_replicas(state, id, acks, Blocked { buffer, ranges, ..blocked });
}

fn await_replicas(state: &mut State, id: ClientId, acks: AcksAwaited, blocked: Blocked) {
    let Some(client) = state.clients.get(id) else { return };
    let blocked = Blocked {
        deadline_us: acks.deadline_us,
        database: client.database,
        since_us: state.now.boot_us,
        ..blocked
    };
    state.blocking.for_acks.push(id);
    suspend(state, id, blocked);
}

/// Blocks the client of MIGRATE. The moves continue even if the client no longer waits.
pub(crate) fn await_move(state: &mut State, id: ClientId, command: &'static Command, number: u64) {
    let Some(client) = state.clients.get(id) else { return };
    let blocked = Blocked {
        database: client.database,
        since_us: state.now.boot_us,
        ..Blocked::new(command.id, Cause::Move(number))
    };
    suspend(state, id, blocked);
}

/// Answers the client of a MIGRATE, if the client still waits for it.
pub fn end_move(core: &mut Core, id: ClientId, number: u64, error: Option<&CommandError>) {
    let blocked = core.state.clients.get(id).and_then(|client| client.blocked.as_deref());
    if !blocked.is_some_and(|blocked| matches!(blocked.cause, Cause::Move(own) if own == number)) {
        return;
    }
    let Some(blocked) = end(core, id) else { return };
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
        core.state.stats.command_stats[blocked.command.index()].failed += 1;
    }
    answer(&mut core.state, id, &output);
}

pub(super) fn suspend(state: &mut State, id: ClientId, blocked: Blocked) {
    if !state.clients.suspend(id, Suspension::UntilReply) {
        return;
    }
    let Some(client) = state.clients.get_mut(id) else { return };
    state.blocking.add(id, &blocked);
    client.last_command = Some(blocked.command);
    client.blocked = Some(Box::new(blocked));
}

/// Sets a key's alarm to the time of its first member, for clients that wait until a member is due.
pub(super) fn set_alarm(keyspace: &mut Keyspace, database: DbIndex, key: &[u8], wanted: Wanted) {
    if matches!(wanted, Wanted::DueSeconds | Wanted::DueMilliseconds | Wanted::Semaphore) {
        // An expired key is looked up only for a waiting client.
        let is_awaited = keyspace.waiting.next_after(database, key, wanted, 0).is_some();
        let at_ms = if is_awaited { keyspace.next_due_ms(key, wanted) } else { None };
        keyspace.waiting.set_alarm(database, key, wanted, at_ms);
    }
}

/// Takes a client out of all queues. None if it was not blocked.
pub(super) fn end(core: &mut Core, id: ClientId) -> Option<Box<Blocked>> {
    let blocked = core.state.clients.get_mut(id)?.blocked.take()?;
    match blocked.cause {
        Cause::Keys { wanted, ticket, .. } => {
            for (_, key) in blocked.keys() {
                core.keyspace.waiting.remove(blocked.database, key, wanted, ticket);
                // The client may have kept other clients from a lock that is free.
                if matches!(wanted, Wanted::Lock | Wanted::Semaphore) {
                    core.keyspace.waiting.note_change(blocked.database, key);
                }
            }
        }
        Cause::Move(_) => {}
        Cause::Acks(_) | Cause::Repetition(_) => {
            core.state.blocking.for_acks.retain(|&waiting| waiting != id);
        }
        Cause::Confirmation(number) => core.state.blocking.confirmations.give_up(number),
    }
    core.state.blocking.remove(id, &blocked);
    Some(blocked)
}

/// The result of waking a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Woken {
    Served,
    /// The client stays blocked: the key has nothing for it.
    InVain,
    /// The client no longer waits or is being closed: the next one is served.
    Gone,
}

/// Takes a client that is about to be closed out of all queues.
pub fn forget(core: &mut Core, id: ClientId) {
    if let Some(place) = end(core, id).and_then(|blocked| blocked.kept_place()) {
        core.state.blocking.keep_place(place, core.state.now.boot_us);
    }
    core.state.blocking.confirmations.forget_client(id);
}

/// Sends a client that is no longer blocked its reply, unless CLIENT REPLY says otherwise, and
/// resumes its further requests.
pub(super) fn answer(state: &mut State, id: ClientId, reply: &OutputBuffer) {
    if let Some(client) = state.clients.get_to_push(id) {
        client.push_reply(reply);
        state.tasks.push(Task::Resume(id));
        limits::check_output_limit(state, id);
    }
}

/// Ends a wait whose deadline has passed, or whose acknowledgements have arrived.
pub(super) fn end_wait(core: &mut Core, id: ClientId) {
    let Some(blocked) = end(core, id) else { return };
    let Some(client) = core.state.clients.get_mut(id) else { return };
    let protocol = client.protocol;
    let mut output = OutputBuffer::default();
    let mut reply = ReplyWriter::new(&mut output, protocol);
    match blocked.cause {
        Cause::Keys { .. } => reply.null_array(),
        Cause::Move(_) => reply.ok(),
        Cause::Acks(awaited) => acks::reply(&core.state, &awaited, &mut reply),
        Cause::Repetition(_) => {
            let error = CommandError::NoReplicas.wire();
            core.state.stats.count_error(&error);
            reply.error(error);
        }
        Cause::Confirmation(_) => reply.error(acks::NO_REPLICAS.wire()),
    }
    let command = core.state.commands.get(blocked.command);
    account_unserved(&mut core.state, id, command, false);
    answer(&mut core.state, id, &output);
}

/// Ends the wait with an error. False: the client was not blocked.
pub fn unblock_with(core: &mut Core, id: ClientId, text: &[u8]) -> bool {
    let Some(blocked) = end(core, id) else { return false };
    if blocked.waits_for_lock() {
        core.keyspace.locks.stats.unblocked += 1;
    }
    let protocol =
        core.state.clients.get(id).map_or_else(Default::default, |client| client.protocol);
    let mut output = OutputBuffer::default();
    ReplyWriter::new(&mut output, protocol).error(text);
    core.state.stats.count_error(text);
    let command = core.state.commands.get(blocked.command);
    account_unserved(&mut core.state, id, command, true);
    answer(&mut core.state, id, &output);
    true
}

/// Counts a blocked command that ended without running again.
fn account_unserved(state: &mut State, id: ClientId, command: &'static Command, failed: bool) {
    state.stats.counters.commands += 1;
    let stats = &mut state.stats.command_stats[command.id.index()];
    stats.calls += 1;
    // Valkey counts the command as rejected.
    match state.config.compatible_with.is_valkey() {
        true => stats.rejected += failed as u64,
        false => stats.failed += failed as u64,
    }
    if let Some(client) = state.clients.get_mut(id) {
        client.last_command = Some(command.id);
        if client.reached.0 == client.commands {
            // The command has changed nothing.
            client.reached.0 += 1;
        }
        client.commands += 1;
    }
}

impl Context<'_> {
    /// The deadline of a timeout argument, see [`parse_timeout`]. A woken command keeps the one it
    /// was blocked with.
    pub fn timeout(&self, index: usize, unit: TimeoutUnit) -> Result<Option<i64>, CommandError> {
        if matches!(self.origin, Origin::Woken(_)) {
            return Ok(None);
        }
        parse_timeout(self.args.get(index), unit, self.core.state.now)
    }
}
