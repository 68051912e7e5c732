//! Scripts: EVAL and its like, and SCRIPT.
//!
//! `script/` compiles and caches bodies. This module has the commands, and [`ServerHost`], a
//! script's access to the server: each call is looked up, checked by the rules for scripts, and run
//! by the gate.

mod debug;
pub(crate) mod function;

use crate::ids::CommandId;
use std::borrow::Cow;

use crate::client::field_sets::FieldSets;
use crate::command::help::reply_help;
use crate::config::{BusyScriptPolicy, Choice};
use crate::durability::{persistence, scripts};
use crate::error::CommandError;
use crate::gate::admit::{Refused, admit_scripted, busy};
use crate::gate::cluster;
use crate::gate::evict::{self, Room};
use crate::gate::execute::{Gate, Request};
use crate::gate::locks;
use crate::gate::monitor;
use crate::gate::moving;
use crate::gate::slot_costs;
use crate::gate::users;
use crate::keyspace::DbIndex;
use crate::replication::effects::{Mark, RepeatedAt};
use crate::resp::args::{Args, BadKeyCount, before_nul};
use crate::resp::reply::{OutputBuffer, Protocol, ReplyWriter};
use crate::resp::request::Range;
use crate::roles::cluster as node;
use crate::roles::replicas;
use crate::script::cache::{Sha, hex, sha1};
use crate::script::lua::{Failure, Returned};
use crate::script::shebang::{BadShebang, ScriptFlags};
use crate::script::{
    Called, Engine, Host, LoadError, Run, Running, Script, SourceLimits, Verdict, is_compiler_limit,
};
use crate::state::context::{Caller, CommandResult, Context, Origin, Outcome};
use crate::state::spec::{
    Categories, CommandSpec, Flags, Group, KeyFlags, KeySpec, container, counted_keys, spec,
};
use crate::state::table::Command;
use crate::state::{Core, State};
use crate::stats::timing;
use crate::sys::log::{Level, warning};

pub(crate) const RUNS: Flags = Flags::NOSCRIPT
    .union(Flags::STALE)
    .union(Flags::SKIP_MONITOR)
    .union(Flags::MAY_REPLICATE)
    .union(Flags::NO_MANDATORY_KEYS)
    .union(Flags::MOVABLEKEYS);
pub(crate) const READS: Flags = Flags::NOSCRIPT
    .union(Flags::STALE)
    .union(Flags::SKIP_MONITOR)
    .union(Flags::NO_MANDATORY_KEYS)
    .union(Flags::MOVABLEKEYS)
    .union(Flags::READONLY);

pub(crate) const ANY_KEYS: &[KeySpec] = &[counted_keys(2, KeyFlags::RW_ACCESS_UPDATE)
    .noted("We cannot tell how the keys will be used so we assume the worst, RW and UPDATE")];
pub(crate) const READ_KEYS: &[KeySpec] = &[counted_keys(2, KeyFlags::RO_ACCESS)
    .noted("We cannot tell how the keys will be used so we assume the worst, RO and ACCESS")];

const COST: &str = "Depends on the script";

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    spec("EVAL", |ctx| eval(ctx, false)).at_least(3).keys(ANY_KEYS).flags(RUNS).with(Flags::RUNS_BODY).group(Group::Scripting).since("2.6.0")
        .docs("script numkeys [key [key ...]] [arg [arg ...]]", "Runs a Lua script.", COST),
    spec("EVALSHA", |ctx| eval_sha(ctx, false)).at_least(3).keys(&[counted_keys(2, KeyFlags::RW_ACCESS_UPDATE)]).flags(RUNS).with(Flags::RUNS_SHA)
        .group(Group::Scripting).since("2.6.0")
        .docs("sha1 numkeys [key [key ...]] [arg [arg ...]]", "Runs a cached Lua script, by the SHA1 of its body.", COST),
    spec("EVAL_RO", |ctx| eval(ctx, true)).at_least(3).keys(READ_KEYS).flags(READS).with(Flags::RUNS_BODY).group(Group::Scripting).since("7.0.0")
        .docs("script numkeys [key [key ...]] [arg [arg ...]]", "Runs a Lua script that only reads.", COST),
    spec("EVALSHA_RO", |ctx| eval_sha(ctx, true)).at_least(3).keys(&[counted_keys(2, KeyFlags::RO_ACCESS)]).flags(READS).with(Flags::RUNS_SHA)
        .group(Group::Scripting).since("7.0.0")
        .docs("sha1 numkeys [key [key ...]] [arg [arg ...]]", "Runs a cached Lua script that only reads, by the SHA1 of its body.", COST),
    container("SCRIPT", SUBCOMMANDS).group(Group::Scripting).since("2.6.0")
        .docs("", "Manages the server's Lua scripts.", "Depends on the subcommand"),
];

#[rustfmt::skip]
const SUBCOMMANDS: &[CommandSpec] = &[
    spec("DEBUG", debug::set).exactly(3).flags(Flags::NOSCRIPT).categories(Categories::SCRIPTING).group(Group::Scripting).since("3.2.0")
        .docs("<YES | SYNC | NO>", "Makes a client's next scripts run in the debugger.", "O(1)"),
    spec("EXISTS", exists).at_least(3).flags(Flags::NOSCRIPT).categories(Categories::SCRIPTING).group(Group::Scripting).since("2.6.0")
        .tips(&["request_policy:all_shards", "response_policy:agg_logical_and"])
        .docs("sha1 [sha1 ...]", "Determines which scripts are cached.", "O(N), N scripts"),
    spec("FLUSH", flush).at_least(2).flags(Flags::NOSCRIPT).categories(Categories::SCRIPTING).group(Group::Scripting).since("2.6.0")
        .docs("[ASYNC | SYNC]", "Deletes all cached scripts.", "O(N), N scripts known").tips(&["request_policy:all_nodes", "response_policy:all_succeeded"]),
    spec("HELP", help).exactly(2).flags(Flags::LOADING_STALE).categories(Categories::SCRIPTING).group(Group::Scripting).since("5.0.0")
        .docs("", "Lists the subcommands.", "O(1)"),
    spec("KILL", kill).at_least(2).flags(Flags::NOSCRIPT.union(Flags::ALLOW_BUSY)).categories(Categories::SCRIPTING).group(Group::Scripting).since("2.6.0")
        .tips(&["request_policy:all_shards", "response_policy:one_succeeded"])
        .docs("[ROLLBACK]", "Ends the script that keeps the server busy.", "O(1), with ROLLBACK O(N), N keys it has changed"),
    spec("LOAD", load).exactly(3).flags(Flags::NOSCRIPT.union(Flags::STALE)).categories(Categories::SCRIPTING).group(Group::Scripting).since("2.6.0")
        .docs("script", "Caches a script without running it.", "O(N), N bytes").tips(&["request_policy:all_nodes", "response_policy:all_succeeded"]),
    spec("SHOW", show).exactly(3).flags(Flags::NOSCRIPT.union(Flags::STALE)).categories(Categories::SCRIPTING).group(Group::Scripting).since("8.0.0")
        .docs("sha1", "Returns the body of a cached script.", "O(1)"),
];

const NO_SCRIPT: CommandError = CommandError::Text("NOSCRIPT No matching script. Please use EVAL.");
const NO_SCRIPT_SHORT: CommandError = CommandError::Text("NOSCRIPT No matching script.");
pub(crate) const NEGATIVE_KEYS: CommandError =
    CommandError::Text("ERR Number of keys can't be negative");
const WRITE_FLAG: CommandError =
    CommandError::Text("ERR Can not execute a script with write flag using *_ro command.");
const NO_MEMORY: CommandError = CommandError::Text(
    "OOM allow-oom flag is not set on the script, can not run it when used memory > 'maxmemory'",
);
const FLUSH_OPTIONS: CommandError =
    CommandError::Text("ERR SCRIPT FLUSH only support SYNC|ASYNC option");
pub(crate) const NOT_BUSY: CommandError =
    CommandError::Text("NOTBUSY No scripts in execution right now.");
pub(crate) const UNKILLABLE: CommandError = CommandError::Text(
    "UNKILLABLE Sorry the script already executed write commands against the dataset. You can either wait the script \
     termination or kill the server in a hard way using the SHUTDOWN NOSAVE command.",
);
pub(crate) const INSIDE: CommandError =
    CommandError::Text("ERR scripts cannot be used from within a script");

/// The refusal of a kill with ROLLBACK.
const TOO_MUCH_TO_UNDO: CommandError = CommandError::Text(
    "UNKILLABLE Sorry the script has changed more than script-undo-limit keeps. You can either wait the script \
     termination or kill the server in a hard way using the SHUTDOWN NOSAVE command.",
);

/// The refusal to kill a script of the primary: its changes are already in the history, so the data
/// would differ without them.
const OF_PRIMARY: CommandError = CommandError::Text(
    "UNKILLABLE The busy script was sent by a master instance in the context of replication and cannot be killed.",
);

/// The error in a killed script.
pub(crate) const KILLED: &str = "ERR Script killed by user with SCRIPT KILL...";

/// The error in a script ended by `busy-script-policy`.
const KILLED_BY_POLICY: &str =
    "ERR Script killed by the server: it kept it busy for longer than busy-reply-threshold";

/// `EVAL script numkeys [key ...] [arg ...]`: the script's result.
fn eval(ctx: &mut Context<'_>, read_only: bool) -> CommandResult {
    let body = ctx.args.get(1);
    if !ctx.core.state.scripts.debugging.is_empty()
        && let Some(how) = debug::mode(ctx)
    {
        return debug::run(ctx, how, read_only);
    }
    with_engine(ctx, |ctx, engine| {
        let keys = numkeys(ctx, CommandError::NotInteger)?;
        let script = engine.load(body, false, source_limits(ctx));
        let script = script.map_err(|error| not_loaded(ctx, error))?;
        run_script(ctx, engine, script, keys, read_only)
    })
}

/// `EVALSHA sha1 numkeys [key ...] [arg ...]`: the script's result, or NOSCRIPT.
fn eval_sha(ctx: &mut Context<'_>, read_only: bool) -> CommandResult {
    let sha = ctx.args.get(1);
    let is_debugged = debug::mode(ctx).is_some();
    with_engine(ctx, |ctx, engine| {
        let no_script = match ctx.core.state.config.compatible_with.is_valkey() {
            true => NO_SCRIPT_SHORT,
            false => NO_SCRIPT,
        };
        if sha.len() != 40 {
            return Err(no_script);
        }
        if is_debugged {
            return Err(debug::BY_BODY);
        }
        let keys = numkeys(ctx, CommandError::NotInteger)?;
        let script = engine.find(sha).ok_or(no_script)?;
        let script = match script.is_compiled() {
            true => script,
            false => engine
                .compiled(script, source_limits(ctx))
                .map_err(|error| not_loaded(ctx, error))?,
        };
        run_script(ctx, engine, script, keys, read_only)
    })
}

/// Takes the engine out of the state while `f` runs.
pub(crate) fn with_engine(
    ctx: &mut Context<'_>,
    f: impl FnOnce(&mut Context<'_>, &mut Engine) -> CommandResult,
) -> CommandResult {
    if ctx.core.state.is_monitored() {
        // MONITOR shows it before the commands that the script calls.
        monitor::feed_script(ctx);
    }
    let Some(mut engine) = ctx.core.state.take_engine() else { return Err(INSIDE) };
    let result = f(ctx, &mut engine);
    ctx.core.state.scripts.put_engine(engine);
    result
}

/// The number of keys, which is argument 2; `not_integer` if it is no integer.
pub(super) fn numkeys(ctx: &Context<'_>, not_integer: CommandError) -> Result<usize, CommandError> {
    match ctx.args.cursor(2).take_keys(0, 1) {
        Ok(keys) => Ok(keys.len()),
        Err(BadKeyCount::NotInteger) => Err(not_integer),
        Err(BadKeyCount::TooSmall) => Err(NEGATIVE_KEYS),
        Err(BadKeyCount::TooLarge(_)) => Err(CommandError::MANY_KEYS),
    }
}

/// The limits of compiling.
pub(super) fn source_limits(ctx: &Context<'_>) -> SourceLimits {
    let limits = ctx.size_limits();
    SourceLimits { source_max: limits.script_source, memory_max: limits.script_memory }
}

fn not_loaded(ctx: &Context<'_>, error: LoadError) -> CommandError {
    let is_valkey = ctx.core.state.config.compatible_with.is_valkey();
    let text = match error {
        LoadError::Shebang(BadShebang::Engine(name)) if is_valkey => {
            [&b"Could not find scripting engine '"[..], &name, b"'"].concat()
        }
        LoadError::Shebang(bad) => bad.text(),
        LoadError::Limit(words) => words.into(),
        LoadError::Syntax(words) => {
            log_compiler_limit(ctx, &words);
            [&b"Error compiling script (new function): "[..], &words].concat()
        }
    };
    CommandError::of_parts(&[&b"ERR "[..], &text])
}

/// Logs that a source was refused which Lua 5.1 may run, if the compiler's words say so.
pub(super) fn log_compiler_limit(ctx: &Context<'_>, words: &[u8]) {
    if is_compiler_limit(words) {
        warning!(
            ctx.core.state,
            "A script was refused by a limit of Luau, which Lua 5.1 may not have: {}",
            words.escape_ascii()
        );
    }
}

const READ_ONLY_REPLICA: CommandError =
    CommandError::Text("READONLY Can not run script with write flag on readonly replica");
const NO_CLUSTER: CommandError =
    CommandError::Text("ERR Can not run script on cluster, 'no-cluster' flag is set.");
const NOT_STALE: CommandError = CommandError::Text(
    "MASTERDOWN Link with MASTER is down, replica-serve-stale-data is set to 'no' and 'allow-stale' flag is not set on the \
     script.",
);

/// Whether a script may run now, and its settings.
pub(crate) fn prepare(
    ctx: &mut Context<'_>,
    flags: ScriptFlags,
    read_only: bool,
) -> Result<Running, CommandError> {
    let declared = !flags.contains(ScriptFlags::UNDECLARED);
    let no_writes = flags.contains(ScriptFlags::NO_WRITES);
    let allow_oom = flags.contains(ScriptFlags::ALLOW_OOM);
    let is_repeated = ctx.is_repeated();
    if flags.contains(ScriptFlags::NO_CLUSTER)
        && !is_repeated
        && ctx.core.state.node.cluster.is_some()
    {
        return Err(NO_CLUSTER);
    }
    if !is_repeated && ctx.core.state.is_stale() && !flags.contains(ScriptFlags::ALLOW_STALE) {
        return Err(if declared { NOT_STALE } else { CommandError::PrimaryDown });
    }
    if declared && !no_writes && !is_repeated && ctx.core.state.is_read_only() {
        return Err(READ_ONLY_REPLICA);
    }
    if declared && !no_writes && read_only {
        return Err(WRITE_FLAG);
    }
    if declared && !no_writes && !is_repeated && ctx.core.state.lacks_replicas() {
        return Err(CommandError::NoReplicas);
    }
    let out_of_memory = !is_repeated
        && ctx.core.state.applies_maxmemory()
        && evict::evict(ctx.core) == Room::NoMore;
    if declared && out_of_memory && !allow_oom && !no_writes {
        return Err(match ctx.origin {
            Origin::Transaction => NO_MEMORY,
            _ => CommandError::OutOfMemory,
        });
    }
    let read_only = read_only || (declared && no_writes);
    // A repeated script is never ended, so never rolled back.
    if !read_only && !is_repeated {
        let config = &ctx.core.state.config;
        let copies_large = config.busy_script_policy == BusyScriptPolicy::Rollback;
        ctx.core.keyspace.begin_undo(config.script_undo_limit as usize, copies_large);
        ctx.core.state.waits.begin_undo();
    }
    Ok(Running {
        client: ctx.caller.client(),
        command: ctx.command.id,
        by_eval: true,
        read_only,
        allow_oom,
        out_of_memory,
        wrote: false,
        killed: None,
        rolls_back: false,
        is_dropped: false,
        is_busy: false,
        busy_at_us: busy_at_us(&ctx.core.state),
        others_heard: false,
        name: Box::default(),
        slot: ctx
            .core
            .state
            .node
            .cluster
            .as_ref()
            .and_then(|_| cluster::slot_of(ctx.command, ctx.args)),
        allows_cross_slot: !declared || flags.contains(ScriptFlags::ALLOW_CROSS_SLOT_KEYS),
    })
}

fn run_script(
    ctx: &mut Context<'_>,
    engine: &mut Engine,
    script: Script,
    keys: usize,
    read_only: bool,
) -> CommandResult {
    let running = prepare(ctx, script.flags, read_only)?;
    ctx.core.state.scripts.running = Some(running);
    let before = Before::of(ctx);
    let memory_max = ctx.size_limits().script_memory;
    let busy_after_ms = interrupted_after_ms(&ctx.core.state);
    let args = ctx.args;
    let name = Name::Script(script.sha);
    let mut host = ServerHost { core: ctx.core, caller: ctx.caller, name };
    let result = engine.run(
        Run {
            function: script.function,
            source: &[],
            keys: args.iter_from(3).take(keys),
            args: args.iter_from(3 + keys),
            host: &mut host,
            memory_max,
            busy_after_ms,
        },
        &mut ctx.reply,
    );
    finish(ctx, before);
    conclude(ctx, name, result)
}

/// The milliseconds until a script is first interrupted: when it is busy, or earlier to answer
/// other nodes of a cluster, which would otherwise take this one for dead. 0: never.
pub(crate) fn interrupted_after_ms(state: &State) -> u64 {
    let busy_ms = state.config.busy_reply_threshold.max(0);
    if state.node.cluster.is_none() {
        return busy_ms as u64;
    }
    let silent_ms = (state.config.cluster_node_timeout / 8).clamp(1, 500);
    (if busy_ms == 0 { silent_ms } else { busy_ms.min(silent_ms) }) as u64
}

/// When a script that begins now is busy, if this is a node of a cluster; else 0.
fn busy_at_us(state: &State) -> i64 {
    match (&state.node.cluster, state.config.busy_reply_threshold) {
        (None, _) => 0,
        (Some(_), ..=0) => i64::MAX,
        (Some(_), ms) => state.clock.now().boot_us.saturating_add(ms.saturating_mul(1000)),
    }
}

/// The state before a script or function ran.
#[derive(Clone, Copy)]
pub(crate) struct Before {
    database: DbIndex,
    /// The timing's mark, see [`crate::stats`].
    pub begun: timing::Mark,
    /// The effects before it, and whether it is a part of a transaction.
    effects: Mark,
    is_gathering: bool,
}

impl Before {
    pub(crate) fn of(ctx: &mut Context<'_>) -> Self {
        persistence::spread_effects(&mut ctx.core.state);
        Before {
            database: ctx.core.keyspace.selected(),
            begun: ctx.core.state.stats.timing.mark(),
            effects: ctx.core.state.effects.mark(),
            is_gathering: ctx.core.state.effects.gather(true),
        }
    }
}

/// Restores the state after a script or function ran.
pub(crate) fn finish(ctx: &mut Context<'_>, before: Before) {
    let Before { database, begun, effects, is_gathering } = before;
    ctx.core.state.effects.gather(is_gathering);
    // SELECT in a script ends with it.
    if ctx.core.keyspace.selected() != database {
        ctx.core.keyspace.select(database);
        if let Some(client) = ctx.caller.client().and_then(|id| ctx.core.state.clients.get_mut(id))
        {
            client.database = database;
        }
    }
    ctx.core.state.effects.repeat_at(RepeatedAt::ALL);
    if !ctx.core.state.in_script.field_sets.is_empty() {
        ctx.core.state.in_script.field_sets = FieldSets::default();
    }
    let ended = ctx.core.state.scripts.running.take();
    slot_costs::note_group(&mut ctx.core.state, ended.as_ref().and_then(|running| running.slot));
    if ended.as_ref().is_some_and(|running| running.is_busy) {
        ctx.core.state.refresh_fast_path();
    }
    let rolls_back = ended.as_ref().is_some_and(|running| running.rolls_back);
    if rolls_back {
        ctx.core.keyspace.roll_back();
    }
    ctx.core.state.waits.end_undo(rolls_back);
    locks::tell_lost_in_script(&mut ctx.core.state, rolls_back);
    if ended.as_ref().is_some_and(|running| running.rolls_back || running.is_dropped) {
        ctx.core.state.effects.roll_back(effects);
    }
    ctx.core.keyspace.end_undo();
    if ended.is_some_and(|running| running.is_busy) {
        if let Some(client) = ctx.caller.client().and_then(|id| ctx.core.state.clients.get_mut(id))
        {
            client.reading.is_held = false;
        }
        // Time stood still during the script.
        let now = ctx.core.state.clock.now();
        ctx.core.state.now = now;
        ctx.core.keyspace.set_now(now);
        replicas::excuse_silence(&mut ctx.core.state);
    }
    // The script's time includes that of the commands that it called.
    ctx.core.state.stats.timing.go_back(begun);
}

/// Counts the errors among the values that a script or function has returned, or replies with the
/// error that ended it, with its position.
pub(crate) fn conclude(
    ctx: &mut Context<'_>,
    name: Name<'_>,
    result: Result<Returned, Failure>,
) -> CommandResult {
    let failure = match result {
        Err(failure) => failure,
        Ok(returned) => {
            let is_valkey = ctx.core.state.config.compatible_with.is_valkey();
            for text in &returned.errors {
                ctx.core.state.stats.count_scripts_error(text, is_valkey);
            }
            if returned.failed {
                ctx.core.state.stats.command_stats[ctx.command.id.index()].failed += 1;
            }
            return Ok(Outcome::Replied);
        }
    };
    let Failure { mut text, place, is_counted } = failure;
    text.truncate(before_nul(&text).len());
    if let Some((source, line)) = place {
        text.extend_from_slice(b" script: ");
        if !ctx.core.state.config.compatible_with.is_valkey() {
            text.extend_from_slice(&name.text());
            text.extend_from_slice(b", ");
        }
        text.extend_from_slice(b"on ");
        text.extend_from_slice(&source);
        text.extend_from_slice(format!(":{line}.").as_bytes());
    }
    if is_counted {
        ctx.core.state.stats.command_stats[ctx.command.id.index()].failed += 1;
        ctx.reply.error(&text);
        return Ok(Outcome::Replied);
    }
    Err(CommandError::formatted(text))
}

/// A script's or function's name.
#[derive(Clone, Copy)]
pub(crate) enum Name<'a> {
    Script(Sha),
    Function(&'a [u8]),
}

impl Name<'_> {
    /// As shown in messages.
    pub(crate) fn text(&self) -> Cow<'_, [u8]> {
        match self {
            Name::Script(sha) => hex(sha).to_vec().into(),
            Name::Function(name) => (*name).into(),
        }
    }
}

/// A script's access to the server.
pub(crate) struct ServerHost<'a> {
    pub core: &'a mut Core,
    pub caller: Caller,
    pub name: Name<'a>,
}

impl ServerHost<'_> {
    fn refuse(&mut self, command: Option<CommandId>, text: Vec<u8>) -> Called {
        if let Some(id) = command {
            self.core.state.stats.command_stats[id.index()].rejected += 1;
        }
        self.core.state.stats.count_error(&text);
        Called::Refused(text)
    }

    /// The command or subcommand that a request names.
    fn find(&self, args: Args<'_>) -> Option<&'static Command> {
        let command = self.core.state.find_command(args.get(0))?;
        if command.subcommands.is_empty() || args.len() < 2 {
            return Some(command);
        }
        self.core.state.commands.find_subcommand(command, args.get(1))
    }
}

impl ServerHost<'_> {
    /// Applies `busy-script-policy` to a script that has just become busy. None: it continues.
    fn apply_policy(&mut self) -> Option<Verdict> {
        let policy = self.core.state.config.busy_script_policy;
        let running = self.core.state.scripts.running.as_mut()?;
        match policy {
            BusyScriptPolicy::Wait => return None,
            _ if running.is_repeated() => return None,
            BusyScriptPolicy::KillReadonly if running.wrote => return None,
            BusyScriptPolicy::Rollback if running.wrote => {
                if !self.core.keyspace.can_roll_back() {
                    let words = "It continues: it has changed more than script-undo-limit keeps.";
                    warning!(self.core.state, "{words}");
                    return None;
                }
                running.rolls_back = true;
            }
            _ => {}
        }
        running.killed = Some(KILLED_BY_POLICY);
        let words = if running.rolls_back { " and rolled back" } else { "" };
        let word = policy.word();
        let message = format_args!("Script ended{words}: busy-script-policy is {word}.");
        self.core.state.log(Level::Warning, message);
        Some(Verdict::End(KILLED_BY_POLICY))
    }
}

impl ServerHost<'_> {
    /// Whether to interrupt the script now. Only in a simulation, where only DEBUG SLEEP takes a
    /// script's time and no thread watches it.
    fn is_overdue(&self) -> bool {
        let State { clock, now, .. } = &self.core.state;
        // The turn's time stands still.
        let took_ms = (clock.now().boot_us - now.boot_us) / 1000;
        let after_ms = interrupted_after_ms(&self.core.state);
        clock.is_simulated() && after_ms != 0 && took_ms >= after_ms as i64
    }

    /// Whether SHUTDOWN ends the script. No part of a script that is cut is repeated elsewhere: its
    /// writes are rolled back, as SHUTDOWN ABORT may follow. If that is impossible, the shutdown
    /// waits for nothing.
    fn is_cut_by_shutdown(&mut self) -> bool {
        let State { process, scripts, .. } = &mut self.core.state;
        let Some(order) = process.shutdown.as_mut().filter(|order| !order.by_signal) else {
            return false;
        };
        let is_missed = |running: &&mut Running| running.wrote || running.is_repeated();
        if let Some(running) = scripts.running.as_mut().filter(is_missed) {
            running.rolls_back = self.core.keyspace.can_roll_back();
            running.is_dropped = !running.rolls_back;
            order.now |= running.is_dropped;
        }
        true
    }
}

impl Host for ServerHost<'_> {
    fn call(
        &mut self,
        buffer: &[u8],
        ranges: &[Range],
        protocol: Protocol,
        output: &mut OutputBuffer,
    ) -> Called {
        let args = Args::new(buffer, ranges);
        if self.core.state.scripts.denies_nothing
            && self.is_overdue()
            && let Verdict::End(error) = self.serve_others()
        {
            return Called::Refused(error.into());
        }
        let command = self.find(args);
        let command = match admit_scripted(&self.core.state, command, args) {
            Ok(command) => command,
            Err(Refused::Killed(error)) => return Called::Refused(error.into()),
            Err(Refused::Command(text)) => return self.refuse(command.map(|it| it.id), text),
            Err(Refused::Denied(command, denied)) => {
                let id = self.caller.client();
                let request = Request::new(command, args, Origin::Script);
                users::log_denied(&mut self.core.state, id, denied, &request);
                let text = users::script_denied_text(&self.core.state, id, command, denied);
                return self.refuse(Some(command.id), text);
            }
        };
        if let Some(running) = &mut self.core.state.scripts.running {
            running.wrote |= command.is(Flags::WRITE);
        }
        if let Err(text) = cluster::check_scripted(self.core, command, args) {
            return self.refuse(Some(command.id), text.into());
        }
        if let Err(text) = moving::check_scripted(self.core, command, args) {
            return self.refuse(Some(command.id), text.into());
        }
        let request = Request::new(command, args, Origin::Script);
        let reply = ReplyWriter::new(output, protocol);
        Gate::new(self.core, self.caller, reply).run_scripted(&request);
        Called::Ran
    }

    fn may_call(&mut self, buffer: &[u8], ranges: &[Range]) -> Option<bool> {
        let args = Args::new(buffer, ranges);
        let id = self.caller.client();
        let command = self.find(args)?;
        Some(users::check_client(&self.core.state, id, command, args).is_ok())
    }

    fn repeat_at(&mut self, log: bool, replicas: bool) {
        self.core.state.effects.repeat_at(RepeatedAt { log, replicas });
    }

    fn serve_others(&mut self) -> Verdict {
        let serve = self.core.state.serve_while_busy;
        let Some(running) = &mut self.core.state.scripts.running else { return Verdict::GoOn };
        if !running.is_busy {
            if self.core.state.node.cluster.is_some()
                && self.core.state.clock.now().boot_us < running.busy_at_us
            {
                node::turn_in_script(&mut self.core.state);
                return Verdict::GoOn;
            }
            running.is_busy = true;
            running.name = self.name.text().into();
            let by_eval = running.by_eval;
            self.core.state.refresh_fast_path();
            let how = if by_eval { "SCRIPT KILL" } else { "FUNCTION KILL" };
            let name = self.name.text();
            let name = String::from_utf8_lossy(&name);
            let after_ms = self.core.state.config.busy_reply_threshold;
            warning!(
                self.core.state,
                "Slow script detected: still in execution after {after_ms} milliseconds. You can try killing the \
                     script using the {how} command. Script name is: {name}."
            );
            if let Some(verdict) = self.apply_policy() {
                return verdict;
            }
        }
        serve(self.core);
        let running = self.core.state.scripts.running.as_ref();
        if let Some(error) = running.and_then(|running| running.killed) {
            warning!(self.core.state, "Lua script killed by user with SCRIPT KILL.");
            return Verdict::End(error);
        }
        if self.is_cut_by_shutdown() {
            return Verdict::End("ERR the server is shutting down");
        }
        Verdict::GoOn
    }

    fn log(&mut self, level: Level, text: &[u8]) {
        self.core.state.log(level, format_args!("{}", String::from_utf8_lossy(text)));
    }

    fn debug_read(&mut self, buffer: &mut [u8]) -> usize {
        debug::read(self.core, self.caller, buffer)
    }

    fn debug_write(&mut self, bytes: &[u8]) {
        debug::write(self.core, self.caller, bytes);
    }

    fn debug_now_us(&self) -> i64 {
        self.core.state.clock.now().boot_us
    }
}

/// `SCRIPT LOAD script`: its SHA1.
fn load(ctx: &mut Context<'_>) -> CommandResult {
    let body = ctx.args.get(2);
    if let Some(source) = scripts::source(ctx.caller) {
        let restored = scripts::restore(&mut ctx.core.state, body, source);
        restored.map_err(|error| not_loaded(ctx, error))?;
        ctx.reply.bulk(&hex(&sha1(body)));
        return Ok(Outcome::Replied);
    }
    let Some(mut engine) = ctx.core.state.take_engine() else { return Err(INSIDE) };
    let loaded = engine.load(body, true, source_limits(ctx));
    ctx.core.state.scripts.put_engine(engine);
    let loaded = loaded.map_err(|error| not_loaded(ctx, error));
    ctx.reply.bulk(&hex(&loaded?.sha));
    // Before the next command, which may be WAIT.
    scripts::write_all(ctx.core);
    Ok(Outcome::Replied)
}

/// `SCRIPT EXISTS sha1 [sha1 ...]`: an array of 1 and 0.
fn exists(ctx: &mut Context<'_>) -> CommandResult {
    let Some(engine) = ctx.core.state.take_engine() else { return Err(INSIDE) };
    ctx.reply.array(ctx.args.len() - 2);
    for sha in ctx.args.iter_from(2) {
        ctx.reply.integer(engine.contains(sha) as i64);
    }
    ctx.core.state.scripts.put_engine(engine);
    Ok(Outcome::Replied)
}

/// `SCRIPT SHOW sha1`: the body.
fn show(ctx: &mut Context<'_>) -> CommandResult {
    let Some(engine) = ctx.core.state.take_engine() else { return Err(INSIDE) };
    let body = engine.body(ctx.args.get(2));
    let result = body.map(|body| ctx.reply.bulk(body)).ok_or(NO_SCRIPT_SHORT);
    ctx.core.state.scripts.put_engine(engine);
    result.map(|()| Outcome::Replied)
}

/// `SCRIPT FLUSH [ASYNC | SYNC]`: OK. Both remove the scripts at once.
fn flush(ctx: &mut Context<'_>) -> CommandResult {
    let mode = ctx.args.iter_from(2).next();
    let is_mode =
        |word: &[u8]| word.eq_ignore_ascii_case(b"sync") || word.eq_ignore_ascii_case(b"async");
    if ctx.args.len() > 3 || mode.is_some_and(|word| !is_mode(word)) {
        return Err(FLUSH_OPTIONS);
    }
    scripts::set_rule(&mut ctx.core.state);
    // A replica's files have its primary's scripts, whatever its clients remove.
    let writes = scripts::source(ctx.caller).is_some() || !ctx.core.state.replication.is_replica();
    let Some(mut engine) = ctx.core.state.take_engine() else { return Err(INSIDE) };
    engine.flush(writes);
    ctx.core.state.scripts.put_engine(engine);
    scripts::write_all(ctx.core);
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// `SCRIPT KILL [ROLLBACK]`: OK; the script ends within milliseconds. Refused once it has written,
/// unless it is rolled back.
fn kill(ctx: &mut Context<'_>) -> CommandResult {
    kill_running(ctx, true)
}

/// Ends the script or function that keeps the server busy.
pub(crate) fn kill_running(ctx: &mut Context<'_>, by_eval: bool) -> CommandResult {
    let rolls_back = match ctx.args.iter_from(2).next() {
        None => false,
        Some(word) if ctx.args.len() == 3 && word.eq_ignore_ascii_case(b"rollback") => true,
        Some(_) => return Err(CommandError::WrongArity(ctx.command.full_name.clone())),
    };
    let can_roll_back = ctx.core.keyspace.can_roll_back();
    let Some(running) = &mut ctx.core.state.scripts.running else { return Err(NOT_BUSY) };
    if running.is_repeated() {
        return Err(OF_PRIMARY);
    }
    if running.wrote && !(rolls_back && can_roll_back) {
        return Err(if rolls_back { TOO_MUCH_TO_UNDO } else { UNKILLABLE });
    }
    if running.by_eval != by_eval {
        return Err(busy(&ctx.core.state));
    }
    running.rolls_back |= running.wrote;
    let is_valkey = ctx.core.state.config.compatible_with.is_valkey();
    running.killed = Some(match (is_valkey, by_eval) {
        (false, _) => KILLED,
        (true, true) => "ERR Script killed by user with SCRIPT KILL.",
        (true, false) => "ERR Script killed by user with FUNCTION KILL.",
    });
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// `SCRIPT HELP`: lines of text.
fn help(ctx: &mut Context<'_>) -> CommandResult {
    reply_help(
        ctx,
        &[
            "DEBUG (YES|SYNC|NO)",
            "    Set the debug mode for subsequent scripts executed.",
            "EXISTS <sha1> [<sha1> ...]",
            "    Return for each SHA1 whether its script is cached.",
            "FLUSH [ASYNC|SYNC]",
            "    Delete all cached scripts. Both modes do so at once.",
            "KILL [ROLLBACK]",
            "    End the script that keeps the server busy; ROLLBACK undoes its writes.",
            "LOAD <script>",
            "    Cache a script, and return its SHA1.",
            "SHOW <sha1>",
            "    Return the body of a cached script.",
        ],
    )
}
