//! FUNCTION, which loads and lists libraries, and FCALL, which runs their functions.
//!
//! A function runs like a script, by the same rules (`script/mod.rs`); unlike a script it has a
//! name, stays until it is deleted, and declares its flags beforehand.

use crate::collections::glob;
use crate::command::help::reply_help;
use crate::command::script::{self, Before, Name, ServerHost};
use crate::error::CommandError;
use crate::gate::admit;
use crate::resp::args::Args;
use crate::resp::reply::{OutputBuffer, Protocol};
use crate::resp::request::Range;
use crate::script::functions::{
    COMPILING, ENGINE, LOAD_TIME_MAX_MS, Libraries, Library, Loader, RestorePolicy,
};
use crate::script::lua::Lua;
use crate::script::shebang::ScriptFlags;
use crate::script::{Called, Engine, FunctionRun, Host, Run, Verdict};
use crate::state::State;
use crate::state::context::{CommandResult, Context, Effect, Outcome};
use crate::state::spec::{Categories, CommandSpec, Flags, Group, container, spec};
use crate::stats::timing::Mark;
use crate::sys::log::Level;

const ALTERS: Flags = Flags::NOSCRIPT.union(Flags::WRITE);
const TAKES_IN: Flags = ALTERS.union(Flags::DENYOOM);

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    spec("FCALL", |ctx| fcall(ctx, false)).at_least(3).keys(script::ANY_KEYS).flags(script::RUNS).with(Flags::RUNS_FUNCTION).group(Group::Scripting)
        .since("7.0.0")
        .docs("function numkeys [key [key ...]] [arg [arg ...]]", "Runs a function of a library.", "Depends on the function"),
    spec("FCALL_RO", |ctx| fcall(ctx, true)).at_least(3).keys(script::READ_KEYS).flags(script::READS).with(Flags::RUNS_FUNCTION).group(Group::Scripting)
        .since("7.0.0")
        .docs("function numkeys [key [key ...]] [arg [arg ...]]", "Runs a function of a library that only reads.", "Depends on the function"),
    container("FUNCTION", SUBCOMMANDS).group(Group::Scripting).since("7.0.0")
        .docs("", "Manages libraries of functions.", "Depends on the subcommand"),
];

const fn subcommand(name: &'static str, handler: crate::state::spec::Handler) -> CommandSpec {
    spec(name, handler)
        .flags(Flags::NOSCRIPT)
        .categories(Categories::SCRIPTING)
        .group(Group::Scripting)
        .since("7.0.0")
}

#[rustfmt::skip]
const SUBCOMMANDS: &[CommandSpec] = &[
    subcommand("DELETE", delete).exactly(3).flags(ALTERS).tips(&["request_policy:all_shards", "response_policy:all_succeeded"])
        .docs("library-name", "Deletes a library and its functions.", "O(1)"),
    subcommand("DUMP", dump).exactly(2)
        .docs("", "Returns all libraries as bytes for FUNCTION RESTORE.", "O(N), N functions"),
    subcommand("FLUSH", flush).at_least(2).flags(ALTERS).tips(&["request_policy:all_shards", "response_policy:all_succeeded"])
        .docs("[ASYNC | SYNC]", "Deletes all libraries.", "O(N), N functions"),
    subcommand("HELP", help).exactly(2).flags(Flags::LOADING_STALE)
        .docs("", "Lists the subcommands.", "O(1)"),
    subcommand("KILL", kill).at_least(2).flags(Flags::NOSCRIPT.union(Flags::ALLOW_BUSY)).tips(&["request_policy:all_shards", "response_policy:one_succeeded"])
        .docs("[ROLLBACK]", "Ends the function that keeps the server busy.", "O(1), with ROLLBACK O(N), N keys it has changed"),
    subcommand("LIST", list).at_least(2).tips(&["nondeterministic_output_order"])
        .docs("[LIBRARYNAME library-name-pattern] [WITHCODE]", "Lists libraries and their functions.", "O(N), N functions"),
    subcommand("LOAD", load).at_least(3).flags(TAKES_IN).tips(&["request_policy:all_shards", "response_policy:all_succeeded"])
        .docs("[REPLACE] function-code", "Loads a library of functions.", "O(1) and what its code takes"),
    subcommand("RESTORE", restore).at_least(3).flags(TAKES_IN).tips(&["request_policy:all_shards", "response_policy:all_succeeded"])
        .docs("serialized-value [FLUSH | APPEND | REPLACE]", "Loads the libraries of a dump.", "O(N), N functions"),
    subcommand("STATS", stats).exactly(2).flags(Flags::NOSCRIPT.union(Flags::ALLOW_BUSY))
        .tips(&["nondeterministic_output", "request_policy:all_shards", "response_policy:special"])
        .docs("", "Describes the running function, and counts functions.", "O(1)"),
];

const NOT_FOUND: CommandError = CommandError::Text("ERR Function not found");
const BAD_NUMKEYS: CommandError = CommandError::Text("ERR Bad number of keys provided");
const NO_LIBRARY: CommandError = CommandError::Text("ERR Library not found");
const FLUSH_OPTIONS: CommandError =
    CommandError::Text("ERR FUNCTION FLUSH only supports SYNC|ASYNC option");
const RESTORE_OPTIONS: CommandError = CommandError::Text(
    "ERR Wrong restore policy given, value should be either FLUSH, APPEND or REPLACE.",
);
const NO_PATTERN: CommandError = CommandError::Text("ERR library name argument was not given");

/// `FCALL function numkeys [key ...] [arg ...]`: the result of the function.
fn fcall(ctx: &mut Context<'_>, read_only: bool) -> CommandResult {
    script::with_engine(ctx, |ctx, engine| call(ctx, engine, read_only))
}

fn call(ctx: &mut Context<'_>, engine: &mut Engine, read_only: bool) -> CommandResult {
    let (lua, libraries) = engine.functions();
    let callee = libraries.find(ctx.args.get(1)).ok_or(NOT_FOUND)?;
    let keys = script::numkeys(ctx, BAD_NUMKEYS)?;
    let mut running = script::prepare(ctx, callee.flags, read_only)?;
    running.by_eval = false;
    ctx.core.state.scripts.running = Some(running);
    let before = Before::of(ctx);
    let memory_max = ctx.size_limits().script_memory;
    let busy_after_ms = script::interrupted_after_ms(&ctx.core.state);
    let args = ctx.args;
    let name = Name::Function(&callee.name);
    let mut host = FunctionHost {
        host: ServerHost { core: ctx.core, caller: ctx.caller, name },
        args,
        begun: before.begun,
    };
    let result = lua.run_function(
        Run {
            function: callee.function,
            source: &callee.code,
            keys: args.iter_from(3).take(keys),
            args: args.iter_from(3 + keys),
            host: &mut host,
            memory_max,
            busy_after_ms,
        },
        &mut ctx.reply,
    );
    ctx.core.state.scripts.function = None;
    script::finish(ctx, before);
    script::conclude(ctx, name, result)
}

/// A function's access to the server: a script's. Also remembers the call once it is busy.
struct FunctionHost<'a> {
    host: ServerHost<'a>,
    args: Args<'a>,
    begun: Mark,
}

impl Host for FunctionHost<'_> {
    fn call(
        &mut self,
        buffer: &[u8],
        ranges: &[Range],
        protocol: Protocol,
        output: &mut OutputBuffer,
    ) -> Called {
        self.host.call(buffer, ranges, protocol, output)
    }

    fn may_call(&mut self, buffer: &[u8], ranges: &[Range]) -> Option<bool> {
        self.host.may_call(buffer, ranges)
    }

    fn repeat_at(&mut self, log: bool, replicas: bool) {
        self.host.repeat_at(log, replicas);
    }

    fn serve_others(&mut self) -> Verdict {
        let (name, args, begun) = (self.host.name, self.args, self.begun);
        self.host.core.state.scripts.function.get_or_insert_with(|| FunctionRun {
            name: name.text().into(),
            request: args.iter_from(0).map(Into::into).collect(),
            begun,
        });
        self.host.serve_others()
    }

    fn log(&mut self, level: Level, text: &[u8]) {
        self.host.log(level, text);
    }
}

/// A library's access to the server while it is loaded: only the log.
struct LoadHost<'a>(&'a mut State);

impl Host for LoadHost<'_> {
    fn call(&mut self, _: &[u8], _: &[Range], _: Protocol, _: &mut OutputBuffer) -> Called {
        Called::Refused(CommandError::NO_INVOCATION.wire().into_owned())
    }

    fn may_call(&mut self, _: &[u8], _: &[Range]) -> Option<bool> {
        None
    }

    fn repeat_at(&mut self, _: bool, _: bool) {}

    fn serve_others(&mut self) -> Verdict {
        Verdict::End("ERR FUNCTION LOAD timeout")
    }

    fn log(&mut self, level: Level, text: &[u8]) {
        self.0.log(level, format_args!("{}", String::from_utf8_lossy(text)));
    }
}

/// Runs `f` with a loader for libraries.
fn with_loader(
    ctx: &mut Context<'_>,
    f: impl FnOnce(&mut Libraries, &mut Loader<'_>) -> Result<(), Vec<u8>>,
) -> Result<(), CommandError> {
    let Some(mut engine) = ctx.core.state.take_engine() else { return Err(script::INSIDE) };
    let limits = script::source_limits(ctx);
    // 0: no limit. A library that another server loaded within its limit is loaded here even if
    // this machine is slower.
    let time_max_ms = if ctx.is_repeated() { 0 } else { LOAD_TIME_MAX_MS };
    let (lua, libraries) = engine.functions();
    let mut host = LoadHost(&mut ctx.core.state);
    let mut loader = Loader { lua, host: &mut host, limits, time_max_ms };
    let result = f(libraries, &mut loader);
    ctx.core.state.scripts.put_engine(engine);
    result.map_err(|text| {
        if let Some(words) = text.strip_prefix(COMPILING) {
            script::log_compiler_limit(ctx, words);
        }
        CommandError::of_parts(&[&b"ERR "[..], &text])
    })
}

/// Runs `f` with the libraries.
fn with_libraries<R>(
    ctx: &mut Context<'_>,
    f: impl FnOnce(&mut Context<'_>, &mut Libraries, &mut Lua) -> R,
) -> Result<R, CommandError> {
    let Some(mut engine) = ctx.core.state.take_engine() else { return Err(script::INSIDE) };
    let (lua, libraries) = engine.functions();
    let result = f(ctx, libraries, lua);
    ctx.core.state.scripts.put_engine(engine);
    Ok(result)
}

/// `FUNCTION LOAD [REPLACE] code`: the library's name.
fn load(ctx: &mut Context<'_>) -> CommandResult {
    let last = ctx.args.len() - 1;
    let mut replace = false;
    for option in ctx.args.iter_from(2).take(last - 2) {
        if !option.eq_ignore_ascii_case(b"replace") {
            return Err(CommandError::of_parts(&[&b"ERR Unknown option given: "[..], option]));
        }
        replace = true;
    }
    let code = ctx.args.get(last);
    let mut name = Box::default();
    with_loader(ctx, |libraries, loader| {
        name = libraries.load(code, replace, loader)?;
        Ok(())
    })?;
    ctx.effect = Effect::Forced;
    ctx.reply.bulk(&name);
    Ok(Outcome::Replied)
}

/// `FUNCTION DELETE library-name`: OK.
fn delete(ctx: &mut Context<'_>) -> CommandResult {
    let name = ctx.args.get(2);
    if !with_libraries(ctx, |_, libraries, lua| libraries.delete(name, lua))? {
        return Err(NO_LIBRARY);
    }
    ctx.effect = Effect::Forced;
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// `FUNCTION FLUSH [ASYNC | SYNC]`: OK. Both remove the libraries at once.
fn flush(ctx: &mut Context<'_>) -> CommandResult {
    if ctx.args.len() > 3 {
        return Err(ctx.wrong_subcommand());
    }
    let mode = ctx.args.iter_from(2).next();
    let is_mode =
        |word: &[u8]| word.eq_ignore_ascii_case(b"sync") || word.eq_ignore_ascii_case(b"async");
    if mode.is_some_and(|word| !is_mode(word)) {
        return Err(FLUSH_OPTIONS);
    }
    with_libraries(ctx, |_, libraries, lua| libraries.flush(lua))?;
    ctx.effect = Effect::Forced;
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// `FUNCTION LIST [LIBRARYNAME pattern] [WITHCODE]`: an array of maps, in the order of the
/// libraries' names.
fn list(ctx: &mut Context<'_>) -> CommandResult {
    let (mut pattern, mut with_code) = (None, false);
    let mut args = ctx.args.iter_from(2);
    while let Some(arg) = args.next() {
        if !with_code && arg.eq_ignore_ascii_case(b"withcode") {
            with_code = true;
        } else if pattern.is_none() && arg.eq_ignore_ascii_case(b"libraryname") {
            pattern = Some(args.next().ok_or(NO_PATTERN)?);
        } else {
            return Err(CommandError::of_parts(&[&b"ERR Unknown argument "[..], arg]));
        }
    }
    with_libraries(ctx, |ctx, libraries, _| {
        let is_wanted =
            |name: &[u8]| pattern.is_none_or(|pattern| glob::matches(pattern, name, true));
        let wanted: Vec<_> = libraries.iter().filter(|(name, _)| is_wanted(name)).collect();
        ctx.reply.array(wanted.len());
        for (name, library) in wanted {
            reply_library(ctx, name, library, with_code);
        }
    })?;
    Ok(Outcome::Replied)
}

fn reply_library(ctx: &mut Context<'_>, name: &[u8], library: &Library, with_code: bool) {
    let reply = &mut ctx.reply;
    reply.map(3 + usize::from(with_code));
    reply.bulk(b"library_name");
    reply.bulk(name);
    reply.bulk(b"engine");
    reply.bulk(ENGINE.as_bytes());
    reply.bulk(b"functions");
    reply.array(library.functions.len());
    for function in &library.functions {
        reply.map(3);
        reply.bulk(b"name");
        reply.bulk(&function.name);
        reply.bulk(b"description");
        match &function.description {
            Some(description) => reply.bulk(description),
            None => reply.null(),
        }
        reply.bulk(b"flags");
        const NAMES: [(ScriptFlags, &str); 5] = [
            (ScriptFlags::NO_WRITES, "no-writes"),
            (ScriptFlags::ALLOW_OOM, "allow-oom"),
            (ScriptFlags::ALLOW_STALE, "allow-stale"),
            (ScriptFlags::NO_CLUSTER, "no-cluster"),
            (ScriptFlags::ALLOW_CROSS_SLOT_KEYS, "allow-cross-slot-keys"),
        ];
        let given = NAMES.iter().filter(|(flag, _)| function.flags.contains(*flag));
        reply.set(given.clone().count());
        for (_, name) in given {
            reply.simple(name);
        }
    }
    if with_code {
        reply.bulk(b"library_code");
        reply.bulk(&library.code);
    }
}

/// `FUNCTION STATS`: a map of the running function and of the engine's statistics.
fn stats(ctx: &mut Context<'_>) -> CommandResult {
    let scripts = &ctx.core.state.scripts;
    if scripts.running.as_ref().is_some_and(|running| running.by_eval) {
        return Err(admit::busy(&ctx.core.state));
    }
    let reply = &mut ctx.reply;
    reply.map(2);
    reply.bulk(b"running_script");
    match &scripts.function {
        None => reply.null(),
        Some(function) => {
            reply.map(3);
            reply.bulk(b"name");
            reply.bulk(&function.name);
            reply.bulk(b"command");
            reply.array(function.request.len());
            for arg in &function.request {
                reply.bulk(arg);
            }
            reply.bulk(b"duration_ms");
            reply.integer((ctx.core.state.stats.timing.since(function.begun) / 1_000_000) as i64);
        }
    }
    reply.bulk(b"engines");
    reply.map(1);
    reply.bulk(ENGINE.as_bytes());
    reply.map(2);
    reply.bulk(b"libraries_count");
    reply.integer(scripts.stats.libraries as i64);
    reply.bulk(b"functions_count");
    reply.integer(scripts.stats.functions as i64);
    Ok(Outcome::Replied)
}

/// `FUNCTION KILL [ROLLBACK]`: OK; the function ends within milliseconds. Refused once it has
/// written, unless it is rolled back.
fn kill(ctx: &mut Context<'_>) -> CommandResult {
    script::kill_running(ctx, false)
}

/// `FUNCTION DUMP`: a payload for RESTORE.
fn dump(ctx: &mut Context<'_>) -> CommandResult {
    let bytes = with_libraries(ctx, |_, libraries, _| libraries.dump())?;
    ctx.reply.bulk(&bytes);
    Ok(Outcome::Replied)
}

/// `FUNCTION RESTORE serialized-value [FLUSH | APPEND | REPLACE]`: OK.
fn restore(ctx: &mut Context<'_>) -> CommandResult {
    if ctx.args.len() > 4 {
        return Err(ctx.wrong_subcommand());
    }
    let policy = match ctx.args.iter_from(3).next() {
        None => RestorePolicy::Append,
        Some(word) if word.eq_ignore_ascii_case(b"append") => RestorePolicy::Append,
        Some(word) if word.eq_ignore_ascii_case(b"replace") => RestorePolicy::Replace,
        Some(word) if word.eq_ignore_ascii_case(b"flush") => RestorePolicy::Flush,
        Some(_) => return Err(RESTORE_OPTIONS),
    };
    let payload = ctx.args.get(2);
    with_loader(ctx, |libraries, loader| libraries.restore(payload, policy, loader))?;
    ctx.effect = Effect::Forced;
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// `FUNCTION HELP`: lines of text.
fn help(ctx: &mut Context<'_>) -> CommandResult {
    reply_help(
        ctx,
        &[
            "DELETE <library-name>",
            "    Delete a library and its functions.",
            "DUMP",
            "    Return all libraries as bytes for RESTORE.",
            "FLUSH [ASYNC|SYNC]",
            "    Delete all libraries. Both modes do so at once.",
            "KILL [ROLLBACK]",
            "    End the function that keeps the server busy; ROLLBACK undoes its writes.",
            "LIST [LIBRARYNAME <pattern>] [WITHCODE]",
            "    List libraries and their functions; with WITHCODE, their texts too.",
            "LOAD [REPLACE] <code>",
            "    Load a library; with REPLACE, instead of one with the same name.",
            "RESTORE <bytes> [FLUSH|APPEND|REPLACE]",
            "    Load the libraries of a dump. If one of them exists already, APPEND (the default)",
            "    refuses, REPLACE replaces it; FLUSH deletes all others first.",
            "STATS",
            "    Describe the running function, with its request and time, and count functions.",
        ],
    )
}
