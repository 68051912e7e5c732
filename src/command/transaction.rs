//! Transactions: MULTI, EXEC, DISCARD, WATCH, UNWATCH.
//!
//! Between MULTI and EXEC the gate checks each command as usual, then keeps it in the client's [`Transaction`] instead of
//! running it. A command that is refused then spoils the whole transaction (EXECABORT); one that fails while EXEC runs does
//! not undo the others. Watched keys are compared by their counts of changes (`keyspace/watch.rs`).

use std::collections::HashMap;

use super::args::Args;
use super::context::{CommandResult, Context, Outcome, Prehashed};
use super::execute::{Request, run_queued};
use super::script;
use super::spec::{CommandSpec, Flags, Group, KeyFlags, keys, spec};
use super::table::Command;
use crate::client::{Client, ClientFlags, ClientId};
use crate::error::CommandError;
use crate::keyspace::Keyspace;
use crate::resp::request::Range;
use crate::state::State;

const AT_ANY_TIME: Flags = Flags::NOSCRIPT
    .union(Flags::LOADING)
    .union(Flags::STALE)
    .union(Flags::FAST)
    .union(Flags::ALLOW_BUSY);

pub const COMMANDS: &[CommandSpec] = &[
    spec("MULTI", multi)
        .exactly(1)
        .flags(AT_ANY_TIME)
        .group(Group::Transactions)
        .since("1.2.0")
        .docs("", "Begins a transaction: the commands that follow are kept until EXEC.", "O(1)"),
    spec("EXEC", exec)
        .exactly(1)
        .flags(Flags::NOSCRIPT.union(Flags::LOADING).union(Flags::STALE).union(Flags::SKIP_SLOWLOG))
        .group(Group::Transactions)
        .since("1.2.0")
        .docs("", "Runs the commands of the transaction.", "Depends on the commands"),
    spec("DISCARD", discard)
        .exactly(1)
        .flags(AT_ANY_TIME)
        .group(Group::Transactions)
        .since("2.0.0")
        .docs("", "Ends the transaction without running it.", "O(N), N commands kept"),
    spec("WATCH", watch)
        .at_least(2)
        .keys(&[keys(1, -1, 1, KeyFlags::RO)])
        .flags(AT_ANY_TIME)
        .group(Group::Transactions)
        .since("2.2.0")
        .docs(
            "key [key ...]",
            "Has the next EXEC run only if these keys stay as they are.",
            "O(1) a key",
        ),
    spec("UNWATCH", unwatch)
        .exactly(1)
        .flags(AT_ANY_TIME)
        .group(Group::Transactions)
        .since("2.2.0")
        .docs("", "Forgets all watched keys.", "O(1)"),
];

const NESTED: CommandError = CommandError::Text("ERR MULTI calls can not be nested");
const EXEC_WITHOUT_MULTI: CommandError = CommandError::Text("ERR EXEC without MULTI");
const DISCARD_WITHOUT_MULTI: CommandError = CommandError::Text("ERR DISCARD without MULTI");
const WATCH_INSIDE_MULTI: CommandError =
    CommandError::Text("ERR WATCH inside MULTI is not allowed");
const ABORTED: CommandError =
    CommandError::Text("EXECABORT Transaction discarded because of previous errors.");
const NOT_IN_TRANSACTION: CommandError =
    CommandError::Text("ERR Command not allowed inside a transaction");

/// The commands that a client has queued.
#[derive(Default)]
pub struct Transaction {
    commands: Vec<Queued>,
    ranges: Vec<Range>,
    buffer: Vec<u8>,
    hashes: Vec<u64>,
    /// A command was refused.
    failed: bool,
    /// Flags of all commands together.
    flags: Flags,
}

/// One of them.
struct Queued {
    command: &'static Command,
    args: std::ops::Range<u32>,
    /// Its keys' hashes, as far as they are known, and which arguments they are of: see [`Prehashed`].
    hashes: std::ops::Range<u32>,
    first: u32,
    step: u32,
}

/// The storage of a transaction that has ended is kept for the next one, unless it is larger. Unit: bytes.
const SPARE_BYTES_MAX: usize = 16 * 1024;

impl Transaction {
    /// Commands queued.
    pub fn len(&self) -> usize {
        self.commands.len()
    }

    pub fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// Bytes of memory held.
    pub fn memory(&self) -> usize {
        size_of::<Transaction>()
            + self.buffer.capacity()
            + self.ranges.capacity() * size_of::<Range>()
            + self.hashes.capacity() * size_of::<u64>()
            + self.commands.capacity() * size_of::<Queued>()
    }

    /// Whether one of the commands has one of these flags.
    pub fn has_any(&self, flags: Flags) -> bool {
        self.flags.intersects(flags)
    }

    /// Keeps a command whose checks see these flags. False if there is no room: offsets have 32 bits.
    fn queue(&mut self, command: &'static Command, flags: Flags, request: &Request<'_>) -> bool {
        let Prehashed { first, step, hashes } = request.prehashed;
        if self.buffer.len() + request.args.bytes() > u32::MAX as usize
            || self.ranges.len() + request.args.len() > u32::MAX as usize
        {
            return false;
        }
        let (args, known) = (self.ranges.len() as u32, self.hashes.len() as u32);
        for argument in request.args.iter_from(0) {
            let (start, len) = (self.buffer.len() as u32, argument.len() as u32);
            self.ranges.push(Range { start, len });
            self.buffer.extend_from_slice(argument);
        }
        self.hashes.extend_from_slice(hashes);
        self.commands.push(Queued {
            command,
            args: args..self.ranges.len() as u32,
            hashes: known..self.hashes.len() as u32,
            first: first as u32,
            step: step as u32,
        });
        self.flags |= flags;
        true
    }

    /// The commands in their order.
    fn requests(&self) -> impl Iterator<Item = (&'static Command, Request<'_>)> {
        let of = |range: &std::ops::Range<u32>| range.start as usize..range.end as usize;
        self.commands.iter().map(move |queued| {
            let hashes = &self.hashes[of(&queued.hashes)];
            let (first, step) = (queued.first as usize, queued.step as usize);
            let request = Request {
                args: Args::new(&self.buffer, &self.ranges[of(&queued.args)]),
                command: Some(queued.command),
                prehashed: Prehashed { first, step, hashes },
            };
            (queued.command, request)
        })
    }

    /// Its storage for another one, if that is worth keeping.
    fn emptied(mut self: Box<Self>) -> Option<Box<Self>> {
        if self.memory() > SPARE_BYTES_MAX {
            return None;
        }
        self.commands.clear();
        self.ranges.clear();
        self.buffer.clear();
        self.hashes.clear();
        self.failed = false;
        self.flags = Flags::empty();
        Some(self)
    }
}

/// The keys a client watches in one database, each with the count of its changes that was seen first.
type WatchedKeys = HashMap<Box<[u8]>, u64>;

/// The keys a client watches.
#[derive(Default)]
pub struct Watching {
    /// By database; most clients watch in one.
    databases: Vec<(usize, WatchedKeys)>,
    /// Bytes of the keys together.
    key_bytes: usize,
}

impl Watching {
    /// Bytes of memory held.
    pub fn memory(&self) -> usize {
        let slots: usize = self.databases.iter().map(|(_, keys)| keys.capacity()).sum();
        let databases = self.databases.capacity() * size_of::<(usize, WatchedKeys)>();
        let slot_bytes = size_of::<(Box<[u8]>, u64)>() + 1;
        size_of::<Watching>() + databases + slots * slot_bytes + self.key_bytes
    }

    /// The keys of a database, which may not have any yet.
    fn of(&mut self, db: usize) -> &mut WatchedKeys {
        let place = match self.databases.iter().position(|(other, _)| *other == db) {
            Some(place) => place,
            None => {
                self.databases.push((db, WatchedKeys::new()));
                self.databases.len() - 1
            }
        };
        &mut self.databases[place].1
    }

    /// All keys, each with its database and the count of its changes.
    fn keys(&self) -> impl Iterator<Item = (usize, &[u8], u64)> {
        self.databases
            .iter()
            .flat_map(|(db, keys)| keys.iter().map(|(key, changes)| (*db, &**key, *changes)))
    }
}

/// Whether a command runs at once although its client has begun a transaction.
fn runs_at_once(command: &Command) -> bool {
    matches!(command.spec.name, "EXEC" | "DISCARD" | "MULTI" | "WATCH" | "QUIT" | "RESET")
}

/// Keeps a command of a client that has begun a transaction. True: it is kept; false: it is to run now.
pub(super) fn queue(
    server: &mut State,
    id: ClientId,
    command: &'static Command,
    request: &Request<'_>,
) -> Result<bool, CommandError> {
    if runs_at_once(command) {
        return Ok(false);
    }
    let flags = script::flags_of(server, command, request.args);
    let Some(client) = server.clients.get_mut(id) else { return Ok(false) };
    let Some(transaction) = &mut client.transaction else { return Ok(false) };
    // EXEC will run none of them: what comes now need not be kept.
    if !transaction.failed && !transaction.queue(command, flags, request) {
        return Err(CommandError::Text("ERR transaction is too large"));
    }
    client.last_command = Some(command);
    Ok(true)
}

/// Whether a command has one of these flags or, if it is EXEC, runs one that has.
pub(super) fn runs_any(server: &State, id: ClientId, command: &Command, flags: Flags) -> bool {
    let transaction = server.clients.get(id).and_then(|client| client.transaction.as_deref());
    match transaction {
        Some(transaction) if command.spec.name == "EXEC" => transaction.has_any(flags),
        _ => command.is(flags),
    }
}

/// The error for a command that no transaction may hold.
pub(super) fn check_allowed(client: &Client, command: &Command) -> Result<(), CommandError> {
    if client.transaction.is_some() && command.is(Flags::NO_MULTI) {
        return Err(NOT_IN_TRANSACTION);
    }
    Ok(())
}

/// Says that a command was refused: if it was meant for a transaction, EXEC will refuse too.
pub(super) fn fail(server: &mut State, id: ClientId) {
    if let Some(client) = server.clients.get_mut(id)
        && let Some(transaction) = &mut client.transaction
    {
        transaction.failed = true;
        transaction.buffer = Vec::new();
        transaction.ranges = Vec::new();
        transaction.hashes = Vec::new();
        transaction.commands = Vec::new();
    }
}

/// What an EXEC is answered that was refused itself.
pub(super) fn refused(error: &CommandError) -> CommandError {
    let text = error.wire();
    let reason = text.strip_prefix(b"ERR ").unwrap_or(&text);
    let text = b"EXECABORT Transaction discarded because of: ";
    CommandError::formatted([&text[..], reason].concat())
}

/// Ends a client's transaction and forgets its watched keys.
pub fn abandon(db: &mut Keyspace, client: &mut Client) {
    client.transaction = None;
    client.flags.remove(ClientFlags::IN_TRANSACTION);
    forget_watched(db, client);
}

fn forget_watched(db: &mut Keyspace, client: &mut Client) {
    if let Some(watching) = client.watching.take() {
        watching.keys().for_each(|(database, key, _)| db.watch.remove(database, key));
    }
}

/// `MULTI`: OK.
fn multi(ctx: &mut Context<'_>) -> CommandResult {
    if ctx.client().transaction.is_some() {
        return Err(NESTED);
    }
    let spare = ctx.server.clients.spare_transaction.take();
    let client = ctx.client();
    client.transaction = Some(spare.unwrap_or_default());
    client.flags |= ClientFlags::IN_TRANSACTION;
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// `EXEC`: an array of the commands' replies, or nil if a watched key has changed.
fn exec(ctx: &mut Context<'_>) -> CommandResult {
    let Some(transaction) = ctx.client().transaction.take() else {
        return Err(EXEC_WITHOUT_MULTI);
    };
    let changed = watched_have_changed(ctx);
    let client = ctx.server.clients.get_mut(ctx.client).expect("a client outlives its command");
    abandon(ctx.db, client);
    if transaction.failed {
        return Err(ABORTED);
    }
    if changed {
        ctx.reply.null_array();
        return Ok(Outcome::Replied);
    }
    ctx.reply.array(transaction.len());
    let mut protocol = ctx.reply.protocol();
    let mut last = Outcome::Replied;
    for (command, request) in transaction.requests() {
        let output = ctx.reply.output();
        let outcome =
            run_queued(ctx.db, ctx.server, ctx.client, command, &request, output, &mut protocol);
        if matches!(outcome, Outcome::Close | Outcome::Suspended) {
            last = outcome;
        }
    }
    ctx.reply.set_protocol(protocol);
    ctx.server.clients.spare_transaction = transaction.emptied();
    Ok(last)
}

/// Whether one of the client's watched keys has changed or expired.
fn watched_have_changed(ctx: &mut Context<'_>) -> bool {
    let watching = ctx.client().watching.take();
    let db = &mut *ctx.db;
    let changed =
        watching.iter().flat_map(|watching| watching.keys()).any(|(index, key, changes)| {
            // An expired one is deleted by the look-up, and so has changed.
            db.in_database(index, |db| db.find(db.key(key)));
            db.watch.has_changed(index, key, changes)
        });
    ctx.client().watching = watching;
    changed
}

/// `DISCARD`: OK.
fn discard(ctx: &mut Context<'_>) -> CommandResult {
    let client = ctx.server.clients.get_mut(ctx.client).expect("a client outlives its command");
    if client.transaction.is_none() {
        return Err(DISCARD_WITHOUT_MULTI);
    }
    abandon(ctx.db, client);
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// `WATCH key [key ...]`: OK.
fn watch(ctx: &mut Context<'_>) -> CommandResult {
    if ctx.client().transaction.is_some() {
        return Err(WATCH_INSIDE_MULTI);
    }
    let db = ctx.db.selected();
    for index in 1..ctx.args.len() {
        let key = ctx.key(index);
        if ctx.client().watching.get_or_insert_default().of(db).contains_key(key.bytes) {
            continue;
        }
        // One that is past its deadline is deleted first: that is no change for who watches it from now on.
        ctx.db.find(key);
        let changes = ctx.db.watch.add(db, key.bytes);
        let watching = ctx.client().watching.get_or_insert_default();
        watching.of(db).insert(key.bytes.into(), changes);
        watching.key_bytes += key.bytes.len();
    }
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// `UNWATCH`: OK.
fn unwatch(ctx: &mut Context<'_>) -> CommandResult {
    let client = ctx.server.clients.get_mut(ctx.client).expect("a client outlives its command");
    forget_watched(ctx.db, client);
    ctx.reply.ok();
    Ok(Outcome::Replied)
}
