//! The gate: every command runs through here, whoever sends it.
//!
//! In order: does the command exist, do its arguments fit, may it run now ([`admit`]); then the
//! handler; then its changes are announced, and its time and outcome counted. A client's requests
//! enter by [`Gate::execute`]; those of transactions, scripts and loaded files by methods of their
//! own, because they are checked less or elsewhere.

use crate::client::life::Suspension;
use crate::client::{Client, ClientFlags, ClientId};
use crate::clock::ExpiryBy;
use crate::error::CommandError;
use crate::gate::admit::admit;
#[cfg(debug_assertions)]
use crate::gate::announced;
use crate::gate::effect;
use crate::gate::evict::evict;
use crate::gate::verdict::{Asked, Verdict};
use crate::gate::{
    admit, hot_keys, locks, monitor, publish, slot_costs, tracking, transaction, users,
};
use crate::keyspace::{DbIndex, Mode};
use crate::resp::args::Args;
use crate::resp::reply::{OutputBuffer, ReplyWriter};
use crate::resp::request::encoded_len;
use crate::state::State;
use crate::state::context::{Caller, CommandResult, Context, Effect, Origin, Outcome};
use crate::state::spec::Flags;
use crate::state::table::Command;
use crate::stats::command_log::LogKind;
use crate::stats::commands::Histogram;
use crate::stats::hot_keys::Costs;
use crate::sys::log::warning;

pub use crate::gate::request::{Gate, Ran, Request};

/// Commands without these flags change nothing, nor run scripts that may.
const MAY_WRITE: Flags = Flags::WRITE.union(Flags::MAY_REPLICATE).union(Flags::ADMIN);

impl Gate<'_> {
    /// Runs one request of a client, which has these flags, and writes its reply.
    #[inline]
    pub fn execute(&mut self, request: &Request<'_>, flags: ClientFlags) -> Ran {
        let checked = ClientFlags::NEEDS_FULL_CHECKS.difference(ClientFlags::IN_TRANSACTION);
        let is_quiet = flags & (checked | ClientFlags::AUTHENTICATED) == ClientFlags::AUTHENTICATED;
        // For most requests this one condition replaces the checks of `run`.
        if is_quiet && admit::is_open(self.core, request.command, request.args) {
            if !flags.contains(ClientFlags::IN_TRANSACTION) {
                return self.run_handler(request);
            }
            if request.command.is_queueable() {
                return self.queue(request);
            }
        }
        if is_quiet
            && !self.core.state.is_monitored()
            && !self.core.state.stands_still()
            && !self.core.keyspace.leaves_expiry()
        {
            let ran = self.run(request);
            // EXEC may have run CLIENT CACHING.
            if flags.contains(ClientFlags::IN_TRANSACTION) && ran.has_run() {
                tracking::end_caching(&mut self.core.state, self.caller, request);
            }
            return ran;
        }
        self.execute_closely(request)
    }

    /// Runs a request that needs all checks because of its client or the present time.
    #[cold]
    fn execute_closely(&mut self, request: &Request<'_>) -> Ran {
        let Some(client) = self.client() else { return Ran::Closes };
        // An earlier request of the client closes it, so this one does not run.
        if client.is_closing_now() {
            return Ran::NotYet;
        }
        client.set_replies(client.replies().at_request());
        let is_muted = !client.replies().are_sent();
        let leaves_no_mark = client.flags.contains(ClientFlags::NO_TOUCH);
        let imports = client.flags.contains(ClientFlags::IMPORT_SOURCE);
        let brings = client.flags.contains(ClientFlags::BRINGS_SLOTS);
        let asks = client.flags.contains(ClientFlags::ASKING);
        let no_touch = leaves_no_mark && !request.command.is(Flags::MARKS_ACCESS);
        // The flags are those of the subcommand, because the subcommand may write.
        let is = |flags| resolve(&self.core.state, request).is_ok_and(|command| command.is(flags));
        self.core.keyspace.mode = Mode { no_touch, hides_expired: self.hides_expired(is) };
        let before = (imports && self.core.state.config.import_mode || brings)
            .then(|| self.core.keyspace.ignore_deadlines(true));
        let errors = self.core.state.stats.counters.error_replies;
        let ran = if is_muted { self.run_muted(request) } else { self.run(request) };
        if ran.has_run() {
            tracking::end_caching(&mut self.core.state, self.caller, request);
            if asks && !request.command.is(Flags::KEEPS_ASKING) {
                self.end_asking();
            }
        }
        if brings && ran.has_run() {
            let has_failed = self.core.state.stats.counters.error_replies != errors;
            self.core.state.note_import(self.caller.client(), has_failed, request.args);
        }
        self.core.keyspace.reset_mode();
        if let Some(before) = before {
            self.core.keyspace.ignore_deadlines(before);
        }
        ran
    }

    /// Ends ASKING, which is valid for one command or one transaction.
    fn end_asking(&mut self) {
        if let Some(client) = self.client()
            && !client.flags.contains(ClientFlags::IN_TRANSACTION)
        {
            client.flags.remove(ClientFlags::ASKING);
        }
    }

    /// Whether expired keys are only hidden from a command, not deleted: while clients are paused
    /// or data is imported, and on a replica for all commands that do not write. `is`: whether the
    /// command has any of these flags.
    fn hides_expired(&self, is: impl Fn(Flags) -> bool) -> bool {
        match self.core.keyspace.expiry_by() {
            ExpiryBy::Primary if !is(Flags::WRITE) => true,
            ExpiryBy::ImportSource if !is(MAY_WRITE) => true,
            _ => self.core.state.stands_still() && !is(MAY_WRITE),
        }
    }

    /// Runs a request whose reply is discarded.
    fn run_muted(&mut self, request: &Request<'_>) -> Ran {
        let mut unheard = OutputBuffer::with_limit_of(self.reply.output());
        let reply = ReplyWriter::new(&mut unheard, self.reply.protocol());
        let mut gate = Gate::new(self.core, self.caller, reply);
        let ran = gate.run(request);
        let protocol = gate.reply.protocol();
        self.uncounted = gate.uncounted;
        self.reply.set_protocol(protocol);
        if let Some(id) = self.caller.client()
            && let Some(client) = self.core.state.clients.get_mut(id)
        {
            // Keep confirmations of subscriptions, and messages of the client to itself.
            self.reply.output().append(&client.output);
            client.output.clear();
            if client.replies().are_sent() {
                // CLIENT REPLY ON and RESET turn replies on again, beginning with their own.
                self.reply.output().append(&unheard);
            }
            // The reply of a request that waits is skipped when it comes.
            if !ran.blocks() {
                client.set_replies(client.replies().after_request(ran.has_run()));
            }
        }
        ran
    }

    /// Whether the client must log in before it may learn which commands exist, as in Valkey.
    #[cold]
    fn tells_strangers_nothing(&mut self) -> bool {
        let Some(flags) = self.client().map(|client| client.flags) else { return false };
        self.core.state.config.compatible_with.is_valkey() && self.core.state.needs_password(flags)
    }

    /// Checks, runs and counts one request of a client.
    fn run(&mut self, request: &Request<'_>) -> Ran {
        let command = match resolve(&self.core.state, request) {
            Ok(command) => command,
            Err(_) if speaks_http(request) => {
                if let Some(id) = self.caller.client() {
                    log_other_protocol(&self.core.state, id);
                    self.core.state.clients.close(id);
                }
                return Ran::Closes;
            }
            Err(_) if self.tells_strangers_nothing() => {
                return self.reject(None, &CommandError::NoAuth);
            }
            Err(error) => return self.reject(None, &error),
        };
        if !command.spec.accepts(request.args.len()) {
            self.abandon_if_exec(command);
            let error = match !command.is(Flags::NO_AUTH) && self.tells_strangers_nothing() {
                true => CommandError::NoAuth,
                false => CommandError::WrongArity(command.full_name.clone()),
            };
            return self.reject(Some(command), &error);
        }
        let mut asked = Asked {
            caller: self.caller,
            command,
            args: request.args,
            protocol: self.reply.protocol(),
            room: None,
        };
        let verdict = loop {
            match admit(self.core, &asked) {
                Verdict::MakeRoom => {
                    asked.room = Some(evict(self.core));
                    self.core.state.stats.timing.start();
                }
                verdict => break verdict,
            }
        };
        match verdict {
            Verdict::Run | Verdict::Queue | Verdict::MakeRoom => {}
            Verdict::Postpone => {
                // Writes may be waiting for this very message.
                if &*command.full_name == "publish" && request.args.len() == 3 {
                    self.core.state.hear(request.args.get(1), request.args.get(2));
                }
                self.hold_back();
                return Ran::NotYet;
            }
            Verdict::Await { database, key } => {
                self.wait_for(database, &key);
                return Ran::NotYet;
            }
            Verdict::Refuse(error) => {
                self.abandon_if_exec(command);
                let steps_down = self.core.state.replication.promoted.refusal();
                let asks_again = steps_down.is_some_and(|refusal| refusal == error);
                let ran = self.reject(Some(command), &error);
                // A sentinel that had not heard of the promotion may have sent it here. Some
                // libraries ask again only when a connection ends.
                if asks_again && let Some(id) = self.caller.client() {
                    self.core.state.clients.close_after_reply(id, self.core.state.now);
                }
                return ran;
            }
            Verdict::Deny(denied) => {
                let id = self.caller.client();
                let request = &Request { command, ..*request };
                users::log_denied(&mut self.core.state, id, denied, request);
                self.abandon_if_exec(command);
                let error = users::denied_error(&self.core.state, id, command, denied);
                return self.reject(Some(command), &error);
            }
        }
        if self.core.keyspace.tracking.has_changes() {
            tracking::before_command(self);
        }
        let request = &Request { command, ..*request };
        if matches!(verdict, Verdict::Queue) {
            return self.queue(request);
        }
        let ran = self.run_handler(request);
        if self.core.state.is_monitored() && ran.has_run() {
            let output = self.reply.output();
            monitor::feed_monitors(&mut self.core.state, self.caller, request, output);
        }
        ran
    }

    /// Queues a request until EXEC.
    fn queue(&mut self, request: &Request<'_>) -> Ran {
        match transaction::queue(&mut self.core.state, self.caller, request) {
            Ok(()) => {
                self.reply.queued();
                if slot_costs::are_counted(&self.core.state) {
                    slot_costs::charge_queued(&mut self.core.state, request);
                }
                Ran::Done
            }
            Err(error) => self.reject(Some(request.command), &error),
        }
    }

    /// Runs a request of a file or of the primary, between `Keyspace::begin_loading` and
    /// `end_loading`. Keeps the database that SELECT has chosen. Errors: no such command, or it is
    /// not allowed here. An error reply of the command itself is not an error.
    pub fn run_trusted(&mut self, request: &Request<'_>) -> Result<(), CommandError> {
        let command = resolve(&self.core.state, request)?;
        if !command.spec.accepts(request.args.len()) {
            return Err(CommandError::WrongArity(command.full_name.clone()));
        }
        let (caller, protocol) = (self.caller, self.reply.protocol());
        let asked = Asked { caller, command, args: request.args, protocol, room: None };
        if let Verdict::Refuse(error) = admit(self.core, &asked) {
            return Err(error);
        }
        // It cannot wait.
        let _ = self.run_handler(&Request { command, ..*request });
        // A file may have any number of changed locks.
        if self.core.keyspace.locks.has_changed() {
            locks::review(self.core);
        }
        Ok(())
    }

    /// Runs a blocked client's command again, because one of its keys has changed or its deadline
    /// has passed. None: the client stays blocked.
    pub fn run_woken(&mut self, request: &Request<'_>) -> Option<Ran> {
        let (id, command) = (self.caller.client(), request.command);
        // The user may have lost the permission while the client waited.
        if let Err(denied) = users::check_client(&self.core.state, id, command, request.args) {
            users::log_denied(&mut self.core.state, id, denied, request);
            let error = users::denied_error(&self.core.state, id, command, denied);
            return Some(self.reject(Some(command), &error));
        }
        let before = self.reply.output().len();
        let ended = self.handle(request).map_or_else(|ended| ended, |()| Ok(Outcome::Replied));
        if matches!(ended, Ok(Outcome::WaitsOn)) {
            self.announce(request);
            self.core.state.effects.end_unit();
            return None;
        }
        Some(self.conclude(request, ended, before))
    }

    /// Runs a queued command of EXEC. Monitoring clients see it before the EXEC.
    pub fn run_queued(&mut self, request: &Request<'_>) -> Ran {
        let (id, command) = (self.caller.client(), request.command);
        if let Err(denied) = users::check_client(&self.core.state, id, command, request.args) {
            users::log_denied(&mut self.core.state, id, denied, request);
            self.write_error(&users::exec_denied_error(denied));
            return Ran::Done;
        }
        self.core.keyspace.mode.hides_expired = self.hides_expired(|flags| command.is(flags));
        let ran = self.run_handler(request);
        if self.core.state.is_monitored() {
            let mut apart = OutputBuffer::default();
            monitor::feed_monitors(&mut self.core.state, self.caller, request, &mut apart);
        }
        ran
    }

    /// Runs a command called by a script, after [`admit::admit_scripted`] has allowed it.
    pub fn run_scripted(&mut self, request: &Request<'_>) {
        let command = request.command;
        if self.core.keyspace.leaves_expiry() {
            self.core.keyspace.mode.hides_expired = self.hides_expired(|flags| command.is(flags));
        }
        // The script's own work since its last call is no part of this command's time.
        self.core.state.stats.timing.start();
        let _ = self.run_handler(request);
        if self.core.state.is_monitored() {
            monitor::feed_scripted(&mut self.core.state, self.caller, command, request.args);
        }
    }

    /// Runs a command's handler, announces its changes, and counts it.
    #[inline]
    fn run_handler(&mut self, request: &Request<'_>) -> Ran {
        let before = self.reply.output().len();
        match self.handle(request) {
            Ok(()) => {
                self.account(request, false, before);
                self.announce(request);
                self.end_unit(request.origin)
            }
            Err(ended) => self.conclude(request, ended, before),
        }
    }

    /// Runs a command's handler. `Ok`: it has replied, the usual case. The result is matched in
    /// place: moving its 16 bytes, of which only the tag has just been written, would wait for all
    /// earlier stores.
    #[inline(always)]
    fn handle(&mut self, request: &Request<'_>) -> Result<(), CommandResult> {
        let &Request { command, args, hashes, origin } = request;
        let handler = command.spec.handler.expect("a command without subcommands has a handler");
        let protocol = self.reply.protocol();
        let mut context = Context {
            core: self.core,
            reply: ReplyWriter::new(self.reply.output(), protocol),
            args,
            command,
            caller: self.caller,
            hashes,
            origin,
            effect: Effect::AsSent,
        };
        let is_heard = context.core.state.effects.is_heard();
        let changes = if is_heard { context.core.keyspace.changes_by_commands() } else { 0 };
        #[cfg(debug_assertions)]
        let announced = announced::begin(context.core, command, args);
        let result: CommandResult = handler(&mut context);
        #[cfg(debug_assertions)]
        announced::end(context.core, command, announced);
        let (protocol, effect) = (context.reply.protocol(), context.effect);
        self.reply.set_protocol(protocol);
        // CONFIG SET may have changed whether effects are used.
        if is_heard && self.core.state.effects.is_heard() {
            self.note_effect(request, effect, changes);
        }
        match result {
            Ok(Outcome::Replied) => {
                // The result owns nothing, but the compiler cannot see that.
                std::mem::forget(result);
                Ok(())
            }
            ended => Err(ended),
        }
    }

    /// Adds a command's effect to the stream. `changes`: the count of changes before the command
    /// ran.
    #[cold]
    fn note_effect(&mut self, request: &Request<'_>, effect: Effect, changes: u64) {
        let command = request.command;
        let has_changed = self.core.keyspace.changes_by_commands() != changes;
        if has_changed
            && self.core.state.replication.has_lost_writes
            && let Some(client) = self.client()
        {
            client.flags.remove(ClientFlags::LOST_WRITES);
        }
        effect::note_deletions(self.core);
        let runs_others = command.is(Flags::RUNS_SCRIPT | Flags::RUNS_QUEUED);
        debug_assert!(
            match effect {
                Effect::AsSent =>
                    !has_changed
                        || runs_others
                        || command.is(Flags::WRITE | Flags::MAY_REPLICATE | Flags::PROTECTED),
                Effect::Instead => has_changed,
                Effect::Hint | Effect::Nothing => !has_changed,
                Effect::Forced => true,
            },
            "{} has an effect if and only if it has changed something ({effect:?}, {has_changed})",
            command.full_name,
        );
        let repeats = match effect {
            Effect::AsSent => {
                has_changed && command.is(Flags::WRITE | Flags::MAY_REPLICATE) && !runs_others
            }
            Effect::Forced => true,
            Effect::Instead | Effect::Hint | Effect::Nothing => false,
        };
        if repeats {
            let database = self.core.keyspace.selected();
            self.core.state.effects.push_as_sent(database, &request.args);
        }
    }

    /// Announces a command's changes and counts the command, whatever its result. `before`: bytes
    /// of output before the command ran.
    #[inline(never)]
    fn conclude(&mut self, request: &Request<'_>, ended: CommandResult, before: usize) -> Ran {
        let failed = ended.is_err();
        let outcome = ended.unwrap_or_else(|error| {
            self.write_error(&error);
            Outcome::Replied
        });
        // A request that waits is counted when it runs again, or when its wait ends. The work of
        // MIGRATE outside of the loop is not part of its time.
        let is_counted = match &outcome {
            Outcome::Postponed | Outcome::WaitsOn => false,
            Outcome::Waits(wait) => wait.is_counted(),
            Outcome::Replied | Outcome::Suspended | Outcome::Close => true,
        };
        if is_counted {
            self.account(request, failed, before);
        }
        self.announce(request);
        let ended = self.end_unit(request.origin);
        match outcome {
            Outcome::Replied => ended,
            Outcome::Postponed => Ran::NotYet,
            Outcome::Suspended | Outcome::WaitsOn => Ran::Suspended,
            Outcome::Waits(wait) => Ran::Waits(wait),
            Outcome::Close => Ran::Closes,
        }
    }

    /// Ends the unit of effects that a command has begun, unless the unit is part of a larger one.
    /// Returns whether the command's sender must pass effects on.
    #[inline(always)]
    fn end_unit(&mut self, origin: Origin) -> Ran {
        // A command that runs while a script keeps the server busy does not end the script's unit.
        if !self.core.state.effects.is_between_units()
            && matches!(origin, Origin::Client | Origin::Woken(_) | Origin::TimedOut)
            && self.core.state.scripts.running.is_none()
        {
            self.core.state.effects.end_unit();
            if self.core.state.effects.are_many() {
                return Ran::DoneMuch;
            }
        }
        Ran::Done
    }

    /// Sends a command's changes to tracking clients and keyspace events to subscribers.
    #[inline(always)]
    fn announce(&mut self, request: &Request<'_>) {
        if self.core.keyspace.tracking.is_on() {
            tracking::after_command(self, request);
        }
        self.core.keyspace.delete_found_expired();
        if !self.core.keyspace.events.is_empty() {
            publish::publish_events(self.core);
            // A push cannot stand inside the reply of EXEC or a reply that a script reads, so it
            // follows at the end. A woken client's push follows its reply (`waking::wake`).
            if request.origin == Origin::Client {
                publish::take_pushed(&mut self.core.state, self.caller, self.reply.output());
            }
        }
    }

    fn client(&mut self) -> Option<&mut Client> {
        self.core.state.clients.get_mut(self.caller.client()?)
    }

    /// Suspends a client until CLIENT PAUSE ends.
    fn hold_back(&mut self) {
        if let Some(id) = self.caller.client()
            && self.core.state.clients.suspend(id, Suspension::UntilRetry)
        {
            self.core.state.pauses.waiting.push(id);
        }
    }

    /// Suspends a client until a key is no longer on its way to another server.
    fn wait_for(&mut self, database: DbIndex, key: &[u8]) {
        if let Some(id) = self.caller.client()
            && self.core.state.clients.suspend(id, Suspension::UntilRetry)
        {
            self.core.state.moving.wait(database, key, id);
        }
    }

    /// A refused EXEC still ends its transaction.
    fn abandon_if_exec(&mut self, command: &Command) {
        if command.is(Flags::RUNS_QUEUED)
            && let Some(id) = self.caller.client()
            && let Some(client) = self.core.state.clients.get_mut(id)
        {
            transaction::abandon(&mut self.core.keyspace, client);
        }
    }

    /// Answers a request that is refused.
    #[cold]
    fn reject(&mut self, command: Option<&'static Command>, error: &CommandError) -> Ran {
        if let Some(command) = command {
            self.core.state.stats.command_stats[command.id.index()].rejected += 1;
            // A replica that gets an error is disconnected: the log names the command.
            if let Some(client) = self.client().filter(|client| client.replica.is_some()) {
                client.last_command = Some(command.id);
            }
        }
        transaction::fail(&mut self.core.state, self.caller);
        match command {
            Some(command) if command.is(Flags::RUNS_QUEUED) => {
                self.write_error(&transaction::refused(error));
            }
            _ => self.write_error(error),
        }
        Ran::Done
    }

    #[cold]
    fn write_error(&mut self, error: &CommandError) {
        let text = error.wire();
        self.core.state.stats.count_error(&text);
        self.reply.error(&text);
    }

    /// Counts a command that ran: calls, time, histogram, and also the command log and latency
    /// monitor if it took long or was large. `before`: bytes of output before it ran.
    #[inline(always)]
    fn account(&mut self, request: &Request<'_>, failed: bool, before: usize) {
        let command = request.command;
        // An output beyond its limit is dropped. The difference then wraps to a large number, and
        // `note` checks it.
        let replied = self.reply.output().len().wrapping_sub(before);
        let state = &mut self.core.state;
        let nanoseconds = state.stats.timing.lap();
        state.stats.counters.commands += 1;
        let stats = &mut state.stats.command_stats[command.id.index()];
        stats.calls += 1;
        stats.nanoseconds += nanoseconds;
        stats.failed += failed as u64;
        if state.config.latency_tracking {
            stats.histogram.get_or_insert_with(Box::<Histogram>::default).record(nanoseconds);
        }
        if state.stats.timing.is_notable(nanoseconds)
            // The bitwise OR is less than twice the larger number, so one comparison is enough.
            || state.stats.timing.is_large(replied | request.args.span())
        {
            let replied = self.reply.output().len().saturating_sub(before);
            note(state, self.caller, request, Costs { nanoseconds, bytes: replied as u64 });
        }
        if request.origin == Origin::Client {
            self.uncounted = Some(command.id);
        } else if let Some(client) = self.client() {
            client.count_command(command.id);
        }
    }
}

/// Adds a command to the logs in which it belongs. `costs`: its run time, and the bytes of its
/// reply.
#[cold]
fn note(state: &mut State, caller: Caller, request: &Request<'_>, costs: Costs) {
    let command = request.command;
    let Costs { nanoseconds, bytes: replied } = costs;
    if state.stats.hot_keys.is_some() && caller.client().is_some() {
        hot_keys::charge(state, request, costs);
    }
    if slot_costs::are_counted(state) {
        slot_costs::charge(state, caller, request, costs);
    }
    let us = nanoseconds / 1000;
    let time = state.clock.now().unix_seconds();
    let config = &state.config;
    let sent = encoded_len(request.args.iter_from(0)) as u64;
    let logs = [
        (LogKind::Slow, us, config.slowlog_log_slower_than, config.slowlog_max_len),
        (
            LogKind::LargeRequest,
            sent,
            config.commandlog_request_larger_than,
            config.commandlog_large_request_max_len,
        ),
        (
            LogKind::LargeReply,
            replied,
            config.commandlog_reply_larger_than,
            config.commandlog_large_reply_max_len,
        ),
    ];
    for (kind, value, threshold, max_len) in logs {
        if u64::try_from(threshold).is_ok_and(|threshold| value >= threshold)
            && !command.is(Flags::SKIP_SLOWLOG)
            // In Redis an entry has a number even if the log's length is 0 and the entry is dropped
            // at once.
            && (max_len > 0 || !state.config.compatible_with.is_valkey())
            && let Some(client) = caller.client().and_then(|id| state.clients.get(id))
        {
            let peer = client.peer.to_string();
            let name = client.name.clone();
            let args = monitor::shown_args(command, request.args).into_iter();
            state.stats.command_logs[kind as usize].push(args, time, value, peer, &name, max_len);
            if kind == LogKind::Slow {
                state.stats.command_stats[command.id.index()].slow += 1;
            }
        }
    }
    let threshold_ms = state.config.latency_monitor_threshold;
    if threshold_ms > 0 && us / 1000 >= threshold_ms as u64 {
        let event = if command.is(Flags::FAST) { "fast-command" } else { "command" };
        state.stats.latency.add(event, time, us / 1000);
    }
}

/// The command or subcommand that a request names.
#[inline]
fn resolve(state: &State, request: &Request<'_>) -> Result<&'static Command, CommandError> {
    let command = request.command;
    if command.subcommands.is_empty() || request.args.len() < 2 {
        return match command.spec.handler {
            Some(_) => Ok(command),
            None if command.is_unknown() => Err(unknown_command(request.args)),
            None => Err(CommandError::WrongArity(command.full_name.clone())),
        };
    }
    let name = request.args.get(1);
    let found = state.commands.find_subcommand(command, name);
    found.ok_or_else(|| unknown_subcommand(command.spec.name, name))
}

/// The error for an unknown subcommand of a container.
pub fn unknown_subcommand(container: &str, name: &[u8]) -> CommandError {
    let shown = shown(name, 128);
    let mut text = b"ERR unknown subcommand '".to_vec();
    text.extend_from_slice(shown);
    text.extend_from_slice(format!("'. Try {container} HELP.").as_bytes());
    CommandError::UnknownSubcommand(text.into())
}

/// Logs that a client spoke HTTP.
pub fn log_other_protocol(state: &State, id: ClientId) {
    let peer = state.clients.get(id).map(|client| client.peer.to_string()).unwrap_or_default();
    warning!(
        state,
        "Possible SECURITY ATTACK detected: {peer} sent POST or Host: commands, as cross-protocol scripting does. \
             Connection aborted."
    );
}

/// Whether this is the beginning of an HTTP request: probably a browser tricked into sending it.
fn speaks_http(request: &Request<'_>) -> bool {
    let name = request.args.get(0);
    name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:")
}

/// An argument as an error text shows it: at most `most` bytes, and as in Redis only up to a NUL.
fn shown(argument: &[u8], most: usize) -> &[u8] {
    let end = argument.iter().take(most).position(|&byte| byte == 0);
    &argument[..end.unwrap_or(argument.len().min(most))]
}

/// The error for an unknown command, with the first of its arguments: at most 128 bytes of each
/// part.
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
