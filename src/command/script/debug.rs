//! SCRIPT DEBUG, and the session in which a script is debugged (`script/lua/debugger.rs`).
//!
//! While a session waits for its client, nothing else runs. So a session runs in a child process,
//! unless the client has asked for SYNC. The child has a copy of the data, of all open files only
//! the client's connection, and none of the other threads. It talks to the client and ends.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::time::Duration;

use super::{
    Before, Name, ServerHost, conclude, finish, not_loaded, numkeys, prepare, source_limits,
};
use crate::client::ClientId;
use crate::error::CommandError;
use crate::net::stream::Stream;
use crate::resp::reply::OutputBuffer;
use crate::script::{Debugging, Engine, Run};
use crate::state::context::{Caller, CommandResult, Context, Origin, Outcome};
use crate::state::{Core, State};
use crate::sys::log::warning;
use crate::sys::process::{self, Forked, Readiness};

const OPTIONS: CommandError = CommandError::Text("ERR Use SCRIPT DEBUG YES/SYNC/NO");
const PIPELINED: CommandError =
    CommandError::Text("ERR SCRIPT DEBUG must be called outside a pipeline");
pub(super) const BY_BODY: CommandError =
    CommandError::Text("ERR Please use EVAL instead of EVALSHA for debugging");
const NO_FORK_WITH_TLS: CommandError =
    CommandError::Text("ERR A connection with TLS can only be debugged with SCRIPT DEBUG SYNC");
const MANY: CommandError = CommandError::Text("ERR Too many scripts are being debugged");

/// The most child processes: each copies the data that the server changes in its time.
const CHILDREN_MAX: usize = 8;
/// How long the client may take to receive what the debugger sends.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);
/// The time after which a script is stopped, if `busy-reply-threshold` is 0. Unit: milliseconds.
const LIMIT_MS: i64 = 5000;

/// `SCRIPT DEBUG YES | SYNC | NO`: OK.
pub(super) fn set(ctx: &mut Context<'_>) -> CommandResult {
    let Some(id) = ctx.caller.client() else { return Err(OPTIONS) };
    if ctx.origin == Origin::Client && !ctx.reply.output().is_empty() {
        return Err(PIPELINED);
    }
    let mode = match &ctx.args.get(2).to_ascii_lowercase()[..] {
        b"no" => None,
        b"yes" => Some(Debugging::Forked),
        b"sync" => Some(Debugging::Synchronous),
        _ => return Err(OPTIONS),
    };
    let State { scripts, clients, .. } = &mut ctx.core.state;
    scripts.debugging.retain(|(other, _)| *other != id && clients.get(*other).is_some());
    scripts.debugging.extend(mode.map(|mode| (id, mode)));
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// How the client's scripts are debugged. Those of a transaction are not.
pub(super) fn mode(ctx: &Context<'_>) -> Option<Debugging> {
    let id = ctx.caller.client().filter(|_| ctx.origin == Origin::Client)?;
    let debugging = &ctx.core.state.scripts.debugging;
    debugging.iter().find(|(other, _)| *other == id).map(|(_, mode)| *mode)
}

/// EVAL of a client that debugs its scripts. The connection ends with the session.
pub(super) fn run(ctx: &mut Context<'_>, how: Debugging, read_only: bool) -> CommandResult {
    let Some(id) = ctx.caller.client() else { return Err(OPTIONS) };
    ctx.core.state.scripts.debugging.retain(|(other, _)| *other != id);
    if how == Debugging::Forked {
        match fork(ctx, id)? {
            Forked::Parent => return Ok(Outcome::Close),
            Forked::Child => {}
        }
    } else {
        warning!(ctx.core.state, "Redis synchronous debugging eval session started");
    }
    // Replies to earlier requests come first.
    send_output(ctx.core, ctx.caller, ctx.reply.output());
    let ended = session(ctx, read_only);
    if let Err(error) = ended {
        ctx.core.state.stats.count_error(&error.wire());
        ctx.reply.error(error.wire());
    }
    if how == Debugging::Forked {
        send_output(ctx.core, ctx.caller, ctx.reply.output());
        process::end_child();
    }
    warning!(ctx.core.state, "Redis synchronous debugging eval session ended");
    Ok(Outcome::Close)
}

/// Begins a child process. In it, nothing reaches the disk, replicas or other clients.
fn fork(ctx: &mut Context<'_>, id: ClientId) -> Result<Forked, CommandError> {
    let state = &mut ctx.core.state;
    process::reap(&mut state.scripts.debugged);
    let Some(client) = state.clients.get(id) else { return Err(OPTIONS) };
    if matches!(client.stream, Stream::Tls(_)) {
        return Err(NO_FORK_WITH_TLS);
    }
    if state.scripts.debugged.len() >= CHILDREN_MAX {
        return Err(MANY);
    }
    let descriptor = client.stream.as_raw_fd();
    match process::fork_with(descriptor) {
        Ok(None) => {
            ctx.core.state.effects.listen(false);
            ctx.core.keyspace.deletions.listen(false);
            Ok(Forked::Child)
        }
        Ok(Some(child)) => {
            warning!(ctx.core.state, "Process {child} debugs a script");
            ctx.core.state.scripts.debugged.push(child);
            Ok(Forked::Parent)
        }
        Err(error) => Err(CommandError::formatted(
            format!("ERR Fork() failed: can't run EVAL in debugging mode: {error}").into_bytes(),
        )),
    }
}

fn session(ctx: &mut Context<'_>, read_only: bool) -> CommandResult {
    let Some(mut engine) = ctx.core.state.take_engine() else { return Err(super::INSIDE) };
    let result = debug(ctx, &mut engine, read_only);
    ctx.core.state.scripts.put_engine(engine);
    result
}

fn debug(ctx: &mut Context<'_>, engine: &mut Engine, read_only: bool) -> CommandResult {
    let body = ctx.args.get(1);
    let loaded = numkeys(ctx, CommandError::NotInteger).and_then(|keys| {
        let script = engine.load(body, false, source_limits(ctx));
        let script = script.map_err(|error| not_loaded(ctx, error))?;
        Ok((keys, script, prepare(ctx, script.flags, read_only)?))
    });
    let (keys, script, running) = match loaded {
        Ok(loaded) => loaded,
        Err(error) => {
            write(ctx.core, ctx.caller, b"*1\r\n+<endsession>\r\n");
            return Err(error);
        }
    };
    ctx.core.state.scripts.running = Some(running);
    let before = Before::of(ctx);
    let memory_max = ctx.size_limits().script_memory;
    let limit_ms = match ctx.core.state.config.busy_reply_threshold {
        ..=0 => LIMIT_MS,
        limit_ms => limit_ms,
    };
    let (args, name) = (ctx.args, Name::Script(script.sha));
    let mut host = ServerHost { core: ctx.core, caller: ctx.caller, name };
    let run = Run {
        function: script.function,
        source: body,
        keys: args.iter_from(3).take(keys),
        args: args.iter_from(3 + keys),
        host: &mut host,
        memory_max,
        busy_after_ms: 0,
    };
    let limit_us = limit_ms.saturating_mul(1000);
    let (result, last) = engine.debug(body, limit_us, run, &mut ctx.reply);
    finish(ctx, before);
    write(ctx.core, ctx.caller, &last);
    conclude(ctx, name, result)
}

/// Sends an output at once.
fn send_output(core: &mut Core, caller: Caller, output: &mut OutputBuffer) {
    if !output.is_empty() {
        let bytes = output.whole().into_owned();
        output.clear();
        write(core, caller, &bytes);
    }
}

fn stream(core: &mut Core, caller: Caller) -> Option<&mut Stream> {
    Some(&mut core.state.clients.get_mut(caller.client()?)?.stream)
}

/// Waits for input. 0: the client is gone, or the process gets a signal.
pub(super) fn read(core: &mut Core, caller: Caller, buffer: &mut [u8]) -> usize {
    let Some(stream) = stream(core, caller) else { return 0 };
    loop {
        match stream.read(buffer) {
            Ok(count) => return count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if process::await_ready(stream.as_raw_fd(), Readiness::READS, None).is_err() {
                    return 0;
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return 0,
        }
    }
}

/// Sends bytes. A client that does not take them is found gone by the next [`read`].
pub(super) fn write(core: &mut Core, caller: Caller, mut bytes: &[u8]) {
    let Some(stream) = stream(core, caller) else { return };
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let timeout = Some(SEND_TIMEOUT);
                let ready = process::await_ready(stream.as_raw_fd(), Readiness::WRITES, timeout);
                if ready.unwrap_or_default().is_none() {
                    return;
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}
