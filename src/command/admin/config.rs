//! CONFIG: reading and changing the configuration, and applying changes.
//!
//! `config` parses and checks values; this file executes its [`Action`]s. A change is made before
//! they run and reverted if one fails, so CONFIG SET is atomic.

use std::os::unix::ffi::OsStrExt;

use crate::command::help::reply_help;
use crate::command::observe::info::reset_stats;
use crate::config::{
    Action, Config, LogLevel, OomScoreAdj, RewriteError, SetContext, SetError, expand_title,
};
use crate::durability::persistence;
use crate::error::CommandError;
use crate::gate::evict::evict;
use crate::gate::limits::count_clients_memory;
use crate::gate::users;
use crate::keyspace::AccessPolicy;
use crate::net::listener::{Listener, tcp_listeners};
use crate::net::tls::Tls;
use crate::roles::{cluster, replicas, restart};
use crate::state::context::{CommandResult, Context, Origin, Outcome};
use crate::state::spec::{CommandSpec, Flags, Group, Secrets, container, spec};
use crate::state::{Core, State, Task};
use crate::sys::log::{Level, warning};
use crate::sys::process::{self, Score};
use crate::sys::{alloc, crash, jemalloc};

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    container("CONFIG", SUBCOMMANDS).group(Group::Server).since("2.0.0")
        .docs("", "Commands that read and change the configuration.", "Depends on the subcommand."),
];

#[rustfmt::skip]
const SUBCOMMANDS: &[CommandSpec] = &[
    spec("GET", get).at_least(3).flags(Flags::ADMIN_NOSCRIPT_LOADING_STALE).group(Group::Server).since("2.0.0")
        .docs("parameter [parameter ...]", "Returns the values of the matching parameters.", "O(N), N: parameters given"),
    spec("HELP", help).exactly(2).flags(Flags::LOADING_STALE).group(Group::Server).since("5.0.0")
        .docs("", "Lists the subcommands.", "O(1)"),
    spec("RESETSTAT", reset_stat).exactly(2).flags(Flags::ADMIN_NOSCRIPT_LOADING_STALE).group(Group::Server).since("2.0.0")
        .docs("", "Resets the statistics that INFO reports.", "O(1)"),
    spec("REWRITE", rewrite).exactly(2).flags(Flags::ADMIN_NOSCRIPT_LOADING_STALE).group(Group::Server).since("2.8.0")
        .docs("", "Writes the present configuration to the file with which the server started.", "O(1)"),
    spec("SET", set).at_least(4).secrets(Secrets::Parameters(2)).flags(Flags::ADMIN_NOSCRIPT_LOADING_STALE).with(Flags::NEEDS_CLIENT).group(Group::Server)
        .since("2.0.0").tips(&["request_policy:all_nodes", "response_policy:all_succeeded"])
        .docs("parameter value [parameter value ...]", "Changes parameters: all of those given or, on an error, none.", "O(N), N: parameters given"),
];

const HELP: &[&str] = &[
    "GET <pattern>",
    "    Return parameters matching the glob-like <pattern> and their values.",
    "SET <directive> <value>",
    "    Set the configuration <directive> to <value>.",
    "RESETSTAT",
    "    Reset statistics reported by the INFO command.",
    "REWRITE",
    "    Rewrite the configuration file.",
];

/// `CONFIG GET parameter [parameter ...]`: a map of names to values, each a bulk string.
fn get(ctx: &mut Context<'_>) -> CommandResult {
    let patterns: Vec<&[u8]> = ctx.args.iter_from(2).collect();
    let mut found = ctx.core.state.config.get(&patterns);
    if ctx.core.state.config.compatible_with.is_valkey() {
        found.sort();
    }
    ctx.reply.map(found.len());
    for (name, value) in &found {
        ctx.reply.bulk(name);
        ctx.reply.bulk(value);
    }
    Ok(Outcome::Replied)
}

/// `CONFIG SET parameter value [parameter value ...]`: OK.
fn set(ctx: &mut Context<'_>) -> CommandResult {
    let args: Vec<&[u8]> = ctx.args.iter_from(2).collect();
    let (pairs, []) = args.as_chunks::<2>() else {
        return Err(CommandError::Syntax);
    };
    let pairs: Vec<(&[u8], &[u8])> = pairs.iter().map(|&[name, value]| (name, value)).collect();
    let loading = ctx.core.state.persistence.loading.is_some();
    let context = SetContext { local_client: ctx.client().peer.is_local(), loading };
    let refused = |error: SetError| CommandError::formatted(error.reply());
    let changes = ctx.core.state.config.set(&pairs, context).map_err(refused)?;
    let actions = changes.actions.clone();
    let mut failed = check_fsync(&ctx.core.state).err().map(|reason| ("appendfsync", reason));
    if failed.is_none() {
        failed = carry_out(&mut ctx.core.state, &actions).err();
    }
    if actions.iter().any(|(action, _)| *action == Action::Locks) {
        ctx.core.keyspace.waiting.retry_held_back();
    }
    if failed.is_none() && actions.iter().any(|(action, _)| *action == Action::AppendOnly) {
        failed = switch_append_only(ctx).err().map(|reason| ("appendonly", reason));
    }
    if failed.is_none() && actions.iter().any(|(action, _)| *action == Action::Dir) {
        let in_transaction = ctx.origin == Origin::Transaction;
        failed = persistence::follow_dir(ctx.core, in_transaction).err().map(|why| {
            warning!(ctx.core.state, "Can't move the append only file: {why}");
            ("dir", why)
        });
    }
    if let Some((name, reason)) = failed {
        let error = ctx.core.state.config.rollback(changes, name, reason);
        // The old values worked before. A further error is only logged: the reply is the first one.
        for action in actions {
            let _ = carry_out(&mut ctx.core.state, &[action]);
        }
        return Err(refused(error));
    }
    apply_config(ctx.core);
    if actions.iter().any(|(action, _)| *action == Action::MaxMemory) {
        shrink(ctx);
    }
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// Refuses `appendfsync always` while the append-only file cannot be written or synced: with it the
/// process would end.
fn check_fsync(state: &State) -> Result<(), String> {
    let log = state.persistence.log();
    match log.is_none_or(|log| log.allows(state.config.appendfsync)) {
        true => Ok(()),
        false => Err("The append only file cannot be written or synced now".into()),
    }
}

/// Switches the append-only file on or off; during loading not before its end
/// ([`replicas::follow_appendonly`]).
fn switch_append_only(ctx: &mut Context<'_>) -> Result<(), String> {
    if ctx.core.state.persistence.loading.is_some() {
        return Ok(());
    }
    if !ctx.core.state.config.appendonly {
        persistence::end_aof(ctx.core);
        return Ok(());
    }
    let in_transaction = ctx.origin == Origin::Transaction;
    replicas::begin_aof(ctx.core, in_transaction).map_err(|why| {
        warning!(ctx.core.state, "Can't switch the AOF on: {why}");
        "Unable to turn on AOF. Check server logs.".to_owned()
    })
}

/// `CONFIG RESETSTAT`: OK.
fn reset_stat(ctx: &mut Context<'_>) -> CommandResult {
    reset_stats(ctx.core);
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

const MOVING: CommandError = CommandError::Text(
    "ERR The append only file is being moved to the new dir, try again when aof_rewrite_in_progress is 0",
);

/// `CONFIG REWRITE`: OK.
fn rewrite(ctx: &mut Context<'_>) -> CommandResult {
    if persistence::is_moving(&ctx.core.state) {
        // A start with the new `dir` would not find the data yet.
        return Err(MOVING);
    }
    let lines: Vec<Vec<u8>> =
        ctx.core.state.acl.lines(users::rule_format(&ctx.core.state)).collect();
    match ctx.core.state.config.rewrite(&lines) {
        Ok(()) => {
            let message = format_args!("CONFIG REWRITE executed with success.");
            ctx.core.state.log(Level::Warning, message);
            ctx.reply.ok();
            Ok(Outcome::Replied)
        }
        Err(error) => {
            if let RewriteError::Io(error) = &error {
                warning!(ctx.core.state, "CONFIG REWRITE failed: {error}");
            }
            Err(CommandError::formatted(error.reply()))
        }
    }
}

/// `CONFIG HELP`: an array of simple strings.
fn help(ctx: &mut Context<'_>) -> CommandResult {
    reply_help(ctx, HELP)
}

/// Applies the configuration to all parts: at the start and after CONFIG SET.
pub fn apply_config(core: &mut Core) {
    let config = &core.state.config;
    core.keyspace.access = AccessPolicy {
        kind: config.maxmemory_policy.access_kind(),
        lfu_log_factor: config.lfu_log_factor,
        lfu_decay_minutes: config.lfu_decay_time,
    };
    core.keyspace.eviction.protected.clone_from(&config.maxmemory_protect);
    core.keyspace.set_expiry_by(core.state.expiry_by());
    let dialect = config.compatible_with;
    core.state.effects.multi_first = dialect.is_valkey() || dialect.is_redis_8();
    core.keyspace.events.set_classes(config.notify_keyspace_events);
    core.state.stats.timing.set_thresholds(config);
    core.state.logger.level = log_level(config);
    core.state.logger.set_format(config.log_format, config.log_timestamp_format);
    crash::enable(config.crash_log_enabled);
    crash::watch(config.watchdog_period);
    persistence::apply_parameters(&mut core.state);
    replicas::resize_backlog(&mut core.state);
    core.state.count_good_replicas();
    restart::look(&mut core.state);
    cluster::refresh_settings(&mut core.state);
}

/// The configured log level. None: nothing is logged.
pub fn log_level(config: &Config) -> Option<Level> {
    match config.loglevel {
        LogLevel::Debug => Some(Level::Debug),
        LogLevel::Verbose => Some(Level::Verbose),
        LogLevel::Notice => Some(Level::Notice),
        LogLevel::Warning => Some(Level::Warning),
        LogLevel::Nothing => None,
    }
}

/// Replaces the TCP listeners with those of `bind`, `port` and `tls-port`. The old ones are closed
/// first, as `*` and a specific address cannot both be listened on. The Unix socket stays. Errors
/// name the port; then no TCP address is listened on.
pub fn listen(state: &mut State) -> Result<(), String> {
    state.net.listeners.retain(|listener| matches!(listener, Listener::Unix(..)));
    state.net.listening.clear();
    let (port, tls_port) = (state.config.port, state.config.tls_port);
    state.process.identity.port = if port != 0 { port } else { tls_port };
    state.process.identity.tls_port = tls_port;
    let mut listeners = Vec::new();
    for (port, is_tls, kind) in [(port, false, "TCP"), (tls_port, true, "TLS")] {
        let mut warnings = Vec::new();
        let config = &state.config;
        let bound = tcp_listeners(&config.bind, port, config.tcp_backlog, is_tls, &mut warnings);
        for warning in warnings {
            warning!(state, "Warning: {warning}");
        }
        listeners.extend(bound.map_err(|_| format!("port {port} ({kind})"))?);
    }
    state.net.listeners.extend(listeners);
    state.net.listening = state.net.listeners.iter().filter_map(Listener::local_address).collect();
    state.tasks.push(Task::Listen);
    Ok(())
}

/// Replaces the HTTP listeners with those of `http-bind` and `http-port`. Open HTTP connections
/// stay, unless HTTP is now off. Errors name the port; then HTTP is off.
pub fn listen_for_http(state: &mut State) -> Result<(), String> {
    state.net.http.listen(Vec::new());
    let config = &state.config;
    let mut warnings = Vec::new();
    let backlog = config.tcp_backlog;
    let bound = tcp_listeners(&config.http_bind, config.http_port, backlog, false, &mut warnings);
    for warning in warnings {
        warning!(state, "Warning: {warning}");
    }
    let port = state.config.http_port;
    if port == 0 {
        state.net.http.close_all();
    }
    state.net.http.listen(bound.map_err(|_| format!("port {port} (HTTP)"))?);
    state.tasks.push(Task::Listen);
    Ok(())
}

/// Rebuilds the TLS configuration. Errors: CONFIG SET's reply; the reason is logged.
pub fn configure_tls(state: &mut State) -> Result<(), String> {
    let mut notes = Vec::new();
    let loaded = Tls::load(&state.config, &state.clock, &mut notes);
    for note in notes {
        warning!(state, "{note}");
    }
    match loaded {
        Ok(tls) => {
            state.net.tls = Some(tls);
            Ok(())
        }
        Err(why) => {
            warning!(state, "{why}");
            Err("Unable to update TLS configuration. Check server logs.".into())
        }
    }
}

/// Executes the action of a change. Errors: the parameter and the reason.
fn carry_out(
    state: &mut State,
    actions: &[(Action, &'static str)],
) -> Result<(), (&'static str, String)> {
    let (mut is_listening, mut is_listening_for_http) = (false, false);
    for &(action, name) in actions {
        let done = match action {
            Action::Port | Action::TlsPort | Action::Bind if is_listening => Ok(()),
            Action::Port | Action::TlsPort | Action::Bind => {
                is_listening = true;
                let text = match action {
                    Action::Bind => "Failed to bind to specified addresses.",
                    _ => "Unable to listen on this port. Check server logs.",
                };
                let has_tls = state.config.tls_port == 0 || state.net.tls.is_some();
                let ready = if has_tls { Ok(()) } else { configure_tls(state) };
                ready.and_then(|()| listen(state).map_err(|_| text.into()))
            }
            Action::Http if is_listening_for_http => Ok(()),
            Action::Http => {
                is_listening_for_http = true;
                let needs_tls = state.config.http_tls && state.config.http_port != 0;
                let has_tls = !needs_tls || state.net.tls.is_some();
                let ready = if has_tls { Ok(()) } else { configure_tls(state) };
                let text = "Unable to serve HTTP there. Check server logs.";
                ready.and_then(|()| listen_for_http(state).map_err(|_| text.into()))
            }
            Action::Tls => {
                let is_used = Tls::is_wanted(&state.config)
                    || state.net.listeners.iter().any(Listener::is_tls);
                // An unused setting may be invalid.
                if is_used { configure_tls(state) } else { Ok(()) }
            }
            Action::Dir => {
                std::env::set_current_dir(&state.config.dir).map_err(|error| error.to_string())
            }
            Action::MaxClients => raise_open_files(state),
            Action::OomScore => set_oom_score(state),
            Action::RequirePass => {
                // Authenticated clients stay authenticated.
                state.acl.set_default_password(&state.config.requirepass);
                Ok(())
            }
            // Without a limit, idle clients were not counted.
            Action::MaxMemoryClients => {
                count_clients_memory(state);
                Ok(())
            }
            // Evicted after all actions, once the change is final.
            Action::MaxMemory => Ok(()),
            Action::AllocatorThread => {
                let is_done = jemalloc::purge_beside(state.config.jemalloc_bg_thread);
                is_done.then_some(()).ok_or_else(|| "The thread can't be started".into())
            }
            Action::ProcessTitle => {
                set_process_title(state);
                Ok(())
            }
            Action::Watchdog => {
                // The periodic work must run twice within the period.
                let period_ms = &mut state.config.watchdog_period;
                if *period_ms > 0 {
                    *period_ms = (*period_ms).max(2000 / state.config.hz.max(1));
                }
                Ok(())
            }
            // Done by `set`, which has the keyspace.
            Action::AppendOnly | Action::Locks => Ok(()),
            // Read when used, or applied by `apply_config`.
            Action::Hz | Action::CrashLog | Action::GoodReplicas => Ok(()),
            // Parameters without effect.
            Action::AofHistory | Action::ReplicationBacklog | Action::ClusterAnnounce => Ok(()),
        };
        done.map_err(|reason| (name, reason))?;
    }
    Ok(())
}

/// Updates the process title.
pub fn set_process_title(state: &mut State) {
    let Some(title) = &mut state.process.title else { return };
    let config = &state.config;
    let port = if config.port != 0 { config.port } else { config.tls_port };
    let address = match config.bind.first() {
        _ if port == 0 => [b"unixsocket:", &config.unixsocket[..]].concat(),
        Some(address) => [address, format!(":{port}").as_bytes()].concat(),
        None => format!("*:{port}").into_bytes(),
    };
    let file = config.config_file.as_ref();
    let file = file.map_or(&b"-"[..], |path| path.as_os_str().as_bytes());
    let text = expand_title(&config.proc_title_template, |variable| match variable {
        b"title" => state.process.identity.invoked_as.clone(),
        b"listen-addr" => address.clone(),
        b"port" => config.port.to_string().into_bytes(),
        b"tls-port" => config.tls_port.to_string().into_bytes(),
        b"unixsocket" => config.unixsocket.clone(),
        b"config-file" => file.to_vec(),
        b"server-mode" if config.cluster_enabled => b"[cluster]".to_vec(),
        _ => Vec::new(),
    });
    title.set(&text);
}

/// Evicts down to a new `maxmemory`.
fn shrink(ctx: &mut Context<'_>) {
    let (limit, used) = (ctx.core.state.config.maxmemory, alloc::allocated() as u64);
    if limit == 0 || limit >= used {
        return;
    }
    warning!(
        ctx.core.state,
        "WARNING: the new maxmemory value set via CONFIG SET ({limit}) is smaller than the current memory usage \
             ({used}). This will result in key eviction and/or the inability to accept new write commands depending \
             on the maxmemory-policy."
    );
    // Keys that cannot be evicted are no error here: writes will be refused. Within a transaction
    // nothing is evicted.
    match ctx.origin {
        Origin::Transaction => ctx.core.keyspace.eviction.unfinished = true,
        _ => drop(evict(ctx.core)),
    }
}

/// Raises the limit of open files for `maxclients`.
fn raise_open_files(state: &mut State) -> Result<(), String> {
    let wanted = state.config.maxclients;
    let files = process::raise_open_files(wanted as u64 + process::RESERVED_FILES);
    match files.limit.saturating_sub(process::RESERVED_FILES) {
        clients if clients >= wanted as u64 => Ok(()),
        clients => Err(format!(
            "The operating system is not able to handle the specified number of clients, try with {clients}"
        )),
    }
}

/// Sets the process' OOM score, as configured.
pub fn set_oom_score(state: &mut State) -> Result<(), String> {
    let config = &state.config;
    // The values for a primary, a replica, and a child process, which this server does not have.
    let value = config.oom_score_adj_values[usize::from(state.replication.is_replica())];
    let score = match config.oom_score_adj {
        OomScoreAdj::No => Score::Untouched,
        OomScoreAdj::Relative => Score::Added(value),
        OomScoreAdj::Absolute => Score::Absolute(value),
    };
    state.process.oom_score.set(score).map_err(|error| {
        warning!(state, "Unable to write oom_score_adj: {error}");
        "Failed to set current oom_score_adj. Check server logs.".to_owned()
    })
}
