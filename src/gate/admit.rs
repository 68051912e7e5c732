//! Whether a command may run now: every rule that can refuse, queue or postpone it, in the order in which they are asked.

use crate::client::{Client, ClientFlags, ClientId};
use crate::error::CommandError;
use crate::gate::evict;
use crate::gate::spec::Flags;
use crate::gate::state::State;
use crate::gate::table::Command;
use crate::keyspace::Keyspace;
use crate::resp::args::Args;
use crate::resp::reply::Protocol;
use crate::script::shebang::{self, ScriptFlags};

const NOT_IN_TRANSACTION: CommandError =
    CommandError::Text("ERR Command not allowed inside a transaction");

/// Whether [`run`] and [`may_run`] can have nothing to say of a command, whose client's flags concern no check either. What
/// they come to check is to be asked here too.
#[inline(always)]
pub fn needs_no_check(db: &Keyspace, server: &State, command: &Command, args: usize) -> bool {
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
pub fn may_run(
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
        check_debug_allowed(server, client)?;
    }
    if !command.is(Flags::NO_AUTH) && needs_password(server, flags) {
        return Err(CommandError::NoAuth);
    }
    check_allowed(client, command)?;
    let is_busy = server.scripts.is_busy();
    if server.config.maxmemory > 0 && !is_busy {
        evict::make_room(db, server, id, command)?;
    }
    if server.lacks_replicas() && runs_any(server, id, command, Flags::WRITE) {
        return Err(CommandError::NoReplicas);
    }
    if flags.contains(ClientFlags::SUBSCRIBED) && protocol == Protocol::Resp2 {
        check_subscribed(command)?;
    }
    if is_busy {
        check_busy(server, command)?;
    }
    if flags.contains(ClientFlags::MONITOR) {
        check_monitoring(command)?;
    }
    Ok(is_busy || server.pause.is_none() || !must_wait(server, id, command, args))
}

/// Whether a client has to authenticate before it may do anything else.
pub fn needs_password(server: &State, flags: ClientFlags) -> bool {
    !flags.contains(ClientFlags::AUTHENTICATED) && !server.config.requirepass.is_empty()
}

const NOT_ALLOWED: &str = "ERR DEBUG command not allowed. If the enable-debug-command option is \
    set to \"local\", you can run it from a local connection, otherwise you need to set this \
    option in the configuration file, and then restart the server.";

/// Whether a client may use DEBUG. The gate asks, even while a transaction is queued.
#[cold]
pub(crate) fn check_debug_allowed(server: &State, client: &Client) -> Result<(), CommandError> {
    if server.config.enable_debug_command.allows(client.peer.is_local()) {
        return Ok(());
    }
    Err(CommandError::Text(NOT_ALLOWED))
}

/// Whether a command has one of these flags or, if it is EXEC, runs one that has.
pub(crate) fn runs_any(server: &State, id: ClientId, command: &Command, flags: Flags) -> bool {
    let transaction = server.clients.get(id).and_then(|client| client.transaction.as_deref());
    match transaction {
        Some(transaction) if command.spec.name == "EXEC" => transaction.has_any(flags),
        _ => command.is(flags),
    }
}

/// The error for a command that no transaction may hold.
pub(crate) fn check_allowed(client: &Client, command: &Command) -> Result<(), CommandError> {
    if client.transaction.is_some() && command.is(Flags::NO_MULTI) {
        return Err(NOT_IN_TRANSACTION);
    }
    Ok(())
}

/// Whether a RESP2 client may run a command while it is subscribed.
pub fn check_subscribed(command: &Command) -> Result<(), CommandError> {
    match &*command.full_name {
        "ping" | "subscribe" | "ssubscribe" | "psubscribe" | "unsubscribe" | "sunsubscribe"
        | "punsubscribe" | "quit" | "reset" => Ok(()),
        name => Err(CommandError::formatted(format!(
            "ERR Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this \
             context"
        ))),
    }
}

const NO_KEYSPACE: CommandError =
    CommandError::Text("ERR Replica can't interact with the keyspace");

/// Whether a client that monitors may run a command: none that has to do with keys.
pub fn check_monitoring(command: &Command) -> Result<(), CommandError> {
    let keyspace = Flags::READONLY | Flags::WRITE | Flags::MAY_REPLICATE;
    if command.spec.flags.intersects(keyspace) { Err(NO_KEYSPACE) } else { Ok(()) }
}

/// Whether CLIENT PAUSE holds a client's command back. The client is then marked as waiting.
pub fn must_wait(server: &mut State, id: ClientId, command: &Command, args: Args<'_>) -> bool {
    let Some(pause) = server.pause else {
        return false;
    };
    let may_write = Flags::WRITE.union(Flags::MAY_REPLICATE);
    let writes = flags_of(server, command, args).intersects(may_write);
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

/// What others are told while a script keeps the server busy.
const BUSY_SCRIPT: CommandError = CommandError::Text(
    "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
);
/// The same for a function.
const BUSY_FUNCTION: CommandError = CommandError::Text(
    "BUSY Redis is busy running a script. You can only call FUNCTION KILL or SHUTDOWN NOSAVE.",
);

/// Whether a command may run while a script keeps the server busy.
pub(crate) fn check_busy(server: &State, command: &Command) -> Result<(), CommandError> {
    if command.is(Flags::ALLOW_BUSY) {
        return Ok(());
    }
    Err(busy(server))
}

/// A command's flags as checks before it see them: of one that runs a script or a function, what that declares counts.
pub(crate) fn flags_of(server: &State, command: &Command, args: Args<'_>) -> Flags {
    let flags = command.spec.flags;
    if !command.is(Flags::NO_MANDATORY_KEYS) {
        return flags;
    }
    let declared = match command.spec.name {
        "EVAL" | "EVAL_RO" => shebang::parse(args.get(1)).ok().map(|(flags, _)| flags),
        "EVALSHA" | "EVALSHA_RO" => server.scripts.flags_of_script(args.get(1)),
        _ => server.scripts.flags_of_function(args.get(1)),
    };
    let Some(declared) = declared.filter(|flags| !flags.contains(ScriptFlags::UNDECLARED)) else {
        return flags;
    };
    let may = |flag, needed| if declared.intersects(flag) { Flags::empty() } else { needed };
    flags.difference(Flags::MAY_REPLICATE)
        | may(ScriptFlags::NO_WRITES, Flags::WRITE)
        | may(ScriptFlags::NO_WRITES | ScriptFlags::ALLOW_OOM, Flags::DENYOOM)
}

/// What others are told while a script or a function keeps the server busy.
pub(crate) fn busy(server: &State) -> CommandError {
    let by_eval = server.scripts.running.as_ref().is_none_or(|running| running.by_eval);
    if by_eval { BUSY_SCRIPT } else { BUSY_FUNCTION }
}
