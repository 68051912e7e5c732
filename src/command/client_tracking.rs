//! Client-side caching: CLIENT TRACKING, CACHING, GETREDIR and TRACKINGINFO, and the messages that make copies invalid.
//!
//! A client either tracks what it reads or all keys with certain prefixes; see `keyspace/tracking.rs`. The gate calls
//! [`after_command`] behind each handler while anybody tracks: who read a copy of a changed key gets its message then, and
//! who tracks a prefix at the end of the turn, one message with all keys ([`end_turn`]). The client that runs the command
//! gets its messages behind the reply, as [`pubsub::take_pushed`] does it.
//!
//! A message is a push in RESP3. A RESP2 client cannot tell one from a reply, so it has its messages redirected to another
//! connection, which gets them as if published on a channel, if it is subscribed to anything.

use std::collections::BTreeSet;
use std::ops::Bound;

use bytes::Bytes;

use super::args::Args;
use super::client::{self, OUTPUT_UNCOUNTED_MAX};
use super::context::{CommandResult, Context, Origin, Outcome};
use super::execute::Request;
use super::keys::keys_of;
use super::pubsub;
use super::spec::{CommandSpec, Flags, Group, spec};
use super::table::Command;
use crate::client::{Client, ClientFlags, ClientId};
use crate::error::CommandError;
use crate::keyspace::Keyspace;
use crate::keyspace::tracking::Change;
use crate::resp::number;
use crate::resp::reply::{OutputBuffer, Protocol, ReplyWriter};
use crate::state::State;

const OWN: Flags = Flags::NOSCRIPT.union(Flags::LOADING).union(Flags::STALE);

// Subcommands of CLIENT, which names them in its table.

pub const CACHING: CommandSpec = spec("CACHING", caching)
    .exactly(3)
    .flags(OWN)
    .group(Group::Connection)
    .since("6.0.0")
    .docs("<YES | NO>", "Tracks the keys of the next command, or does not.", "O(1)");

pub const GETREDIR: CommandSpec = spec("GETREDIR", get_redirection)
    .exactly(2)
    .flags(OWN)
    .group(Group::Connection)
    .since("6.0.0")
    .docs("", "Answers the client that invalidations are redirected to.", "O(1)");

pub const TRACKING: CommandSpec = spec("TRACKING", tracking)
    .at_least(3)
    .flags(OWN)
    .group(Group::Connection)
    .since("6.0.0")
    .docs(
        "<ON | OFF> [REDIRECT client-id] [PREFIX prefix [PREFIX prefix ...]] [BCAST] [OPTIN] [OPTOUT] [NOLOOP]",
        "Has the connection told when keys change that it holds copies of.",
        "O(1) a prefix",
    );

pub const TRACKINGINFO: CommandSpec = spec("TRACKINGINFO", tracking_info)
    .exactly(2)
    .flags(OWN)
    .group(Group::Connection)
    .since("6.2.0")
    .docs("", "Tells how the connection tracks keys.", "O(N), N prefixes");

const ONE_REDIRECTION: CommandError =
    CommandError::Text("ERR A client can only redirect to a single other client");
const NO_REDIRECTION: CommandError =
    CommandError::Text("ERR The client ID you want redirect to does not exist");
const PREFIX_WITHOUT_BCAST: CommandError =
    CommandError::Text("ERR PREFIX option requires BCAST mode to be enabled");
const BCAST_SWITCHED: CommandError = CommandError::Text(
    "ERR You can't switch BCAST mode on/off before disabling tracking for this client, and then re-enabling it with a \
     different mode.",
);
const BCAST_WITH_CHOICE: CommandError =
    CommandError::Text("ERR OPTIN and OPTOUT are not compatible with BCAST");
const TWO_CHOICES: CommandError =
    CommandError::Text("ERR You can't specify both OPTIN mode and OPTOUT mode");
const CHOICE_SWITCHED: CommandError = CommandError::Text(
    "ERR You can't switch OPTIN/OPTOUT mode before disabling tracking for this client, and then re-enabling it with a \
     different mode.",
);
const NOT_TRACKING: CommandError = CommandError::Text(
    "ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT mode enabled",
);
const NOT_OPTIN: CommandError = CommandError::Text(
    "ERR CLIENT CACHING YES is only valid when tracking is enabled in OPTIN mode.",
);
const NOT_OPTOUT: CommandError = CommandError::Text(
    "ERR CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode.",
);

/// Where a RESP2 client that is redirected to gets its messages.
const CHANNEL: &[u8] = b"__redis__:invalidate";

/// A list of keys at least this long is shared by its receivers instead of copied to each: the measure of PUBLISH.
const SHARED_MIN: usize = 4 * 1024;

/// Keys forgotten in one turn while more are remembered than may be.
const FORGET_KEYS: usize = 1000;

/// Which keys a client tracks.
#[derive(Debug)]
pub enum Mode {
    /// Those it reads.
    Reads(Choice),
    /// Those that begin so.
    Prefixes(BTreeSet<Box<[u8]>>),
}

/// Which reads count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    All,
    /// Those behind CLIENT CACHING YES.
    OptIn,
    /// All but those behind CLIENT CACHING NO.
    OptOut,
}

/// How a client tracks keys.
#[derive(Debug)]
pub struct ClientTracking {
    mode: Mode,
    /// Number of the client that gets the messages instead.
    redirect: Option<u64>,
    /// A message was not sent since that client was gone.
    is_broken: bool,
    /// What the client changes itself does not concern it.
    no_loop: bool,
    /// Bytes of the prefixes together, about.
    prefix_bytes: usize,
}

impl ClientTracking {
    fn prefixes(&self) -> Option<&BTreeSet<Box<[u8]>>> {
        match &self.mode {
            Mode::Reads(_) => None,
            Mode::Prefixes(prefixes) => Some(prefixes),
        }
    }

    /// Bytes of memory held, about.
    pub fn memory(&self) -> usize {
        size_of::<Self>() + self.prefix_bytes
    }

    /// What CLIENT LIST shows as `redir`: 0 for no other client.
    pub fn redirection(client: &Client) -> i64 {
        let tracking = client.tracking.as_deref();
        tracking.map_or(-1, |tracking| tracking.redirect.unwrap_or(0) as i64)
    }

    /// The letters it adds to the flags of CLIENT LIST.
    pub fn letters(&self) -> impl Iterator<Item = char> {
        let broken = self.is_broken.then_some('R');
        let prefixes = self.prefixes().map(|_| 'B');
        ['t'].into_iter().chain(broken).chain(prefixes)
    }
}

// ---- subcommands of CLIENT -------------------------------------------------------------------------------------------

/// What CLIENT TRACKING asks for.
#[derive(Default)]
struct Options<'a> {
    redirect: Option<u64>,
    prefixes: Vec<&'a [u8]>,
    bcast: bool,
    opt_in: bool,
    opt_out: bool,
    no_loop: bool,
}

impl<'a> Options<'a> {
    /// The client redirected to must be there now; it may go later.
    fn parse(args: Args<'a>, server: &State) -> Result<Self, CommandError> {
        let mut options = Options::default();
        let mut args = args.cursor(3);
        while !args.is_at_end() {
            if args.remaining() > 1 && args.take_word("REDIRECT") {
                if options.redirect.is_some() {
                    return Err(ONE_REDIRECTION);
                }
                let number = number::parse_i64(args.take()?).ok_or(CommandError::NotInteger)?;
                let number = u64::try_from(number).map_err(|_| NO_REDIRECTION)?;
                receiver(server, number).ok_or(NO_REDIRECTION)?;
                options.redirect = Some(number);
            } else if args.take_word("BCAST") {
                options.bcast = true;
            } else if args.take_word("OPTIN") {
                options.opt_in = true;
            } else if args.take_word("OPTOUT") {
                options.opt_out = true;
            } else if args.take_word("NOLOOP") {
                options.no_loop = true;
            } else if args.remaining() > 1 && args.take_word("PREFIX") {
                options.prefixes.push(args.take()?);
            } else {
                return Err(CommandError::Syntax);
            }
        }
        Ok(options)
    }

    /// Whether the options go together, and with what the client has now. Returns the mode they ask for, with the prefixes
    /// there are already.
    fn mode(&self, current: Option<&ClientTracking>) -> Result<Mode, CommandError> {
        if !self.bcast && !self.prefixes.is_empty() {
            return Err(PREFIX_WITHOUT_BCAST);
        }
        if current.is_some_and(|current| current.prefixes().is_some() != self.bcast) {
            return Err(BCAST_SWITCHED);
        }
        if self.bcast && (self.opt_in || self.opt_out) {
            return Err(BCAST_WITH_CHOICE);
        }
        let choice = match (self.opt_in, self.opt_out) {
            (true, true) => return Err(TWO_CHOICES),
            (true, false) => Choice::OptIn,
            (false, true) => Choice::OptOut,
            (false, false) => Choice::All,
        };
        match current.map(|current| &current.mode) {
            Some(Mode::Reads(Choice::OptIn)) if choice == Choice::OptOut => Err(CHOICE_SWITCHED),
            Some(Mode::Reads(Choice::OptOut)) if choice == Choice::OptIn => Err(CHOICE_SWITCHED),
            Some(Mode::Prefixes(prefixes)) => self.with_prefixes(prefixes.clone()),
            None if self.bcast => self.with_prefixes(BTreeSet::new()),
            _ => Ok(Mode::Reads(choice)),
        }
    }

    /// These prefixes beside those there are, none of which may begin another: its keys would be told of twice. Without any
    /// the empty one is meant, whatever there is.
    fn with_prefixes(&self, mut prefixes: BTreeSet<Box<[u8]>>) -> Result<Mode, CommandError> {
        let overlapping = first_overlapping(&self.prefixes);
        for (index, prefix) in self.prefixes.iter().enumerate() {
            let error = |which: &str, other: &[u8]| {
                let mut text = b"ERR Prefix '".to_vec();
                text.extend_from_slice(prefix);
                text.extend_from_slice(format!("' overlaps with {which} prefix '").as_bytes());
                text.extend_from_slice(other);
                text.extend_from_slice(b"'. Prefixes for a single client must not overlap.");
                CommandError::formatted(text)
            };
            if let Some(other) = overlapping_with(&prefixes, prefix) {
                return Err(error("an existing", other));
            }
            if overlapping == Some(index) {
                let mut others = self.prefixes[index + 1..].iter();
                let other = others.find(|other| overlap(other, prefix));
                return Err(error("another provided", other.copied().unwrap_or_default()));
            }
        }
        prefixes.extend(self.prefixes.iter().map(|&prefix| prefix.into()));
        if self.prefixes.is_empty() {
            prefixes.insert(Box::default());
        }
        Ok(Mode::Prefixes(prefixes))
    }
}

/// Whether one prefix begins the other.
fn overlap(a: &[u8], b: &[u8]) -> bool {
    a.starts_with(b) || b.starts_with(a)
}

/// The first of these, if any, that overlaps with a later one. O(n log n).
fn first_overlapping(prefixes: &[&[u8]]) -> Option<usize> {
    let mut sorted: Vec<(&[u8], usize)> =
        prefixes.iter().enumerate().map(|(index, prefix)| (*prefix, index)).collect();
    sorted.sort_unstable();
    // All that begin with a prefix follow it. So whoever overlaps with any does so with the first of those that it begins with.
    let (mut first, mut beginning) = (None::<usize>, *sorted.first()?);
    for &(prefix, index) in &sorted[1..] {
        if prefix.starts_with(beginning.0) {
            let earlier = index.min(beginning.1);
            first = Some(first.map_or(earlier, |first| first.min(earlier)));
        } else {
            beginning = (prefix, index);
        }
    }
    first
}

/// The first of those there are that overlaps with a prefix. Among them only the empty one may begin others. O(log n).
fn overlapping_with<'p>(prefixes: &'p BTreeSet<Box<[u8]>>, prefix: &[u8]) -> Option<&'p [u8]> {
    let names = |from, to| prefixes.range::<[u8], _>((from, to)).map(|found| &**found);
    let is_near = |other: &&[u8]| overlap(other, prefix);
    let empty = prefixes.first().map(|first| &**first).filter(|first| first.is_empty());
    let before = || names(Bound::Unbounded, Bound::Included(prefix)).next_back().filter(is_near);
    let behind = || names(Bound::Included(prefix), Bound::Unbounded).next().filter(is_near);
    empty.or_else(before).or_else(behind)
}

/// `CLIENT TRACKING <ON | OFF> [option ...]`: `OK`.
fn tracking(ctx: &mut Context<'_>) -> CommandResult {
    let options = Options::parse(ctx.args, ctx.server)?;
    let mut switch = ctx.args.cursor(2);
    if switch.take_word("OFF") {
        stop(ctx.db, ctx.server, ctx.client);
    } else if switch.take_word("ON") {
        let client = ctx.server.clients.get_mut(ctx.client).expect("a client outlives its command");
        let mode = options.mode(client.tracking.as_deref())?;
        if client.tracking.is_none() {
            ctx.db.tracking.enter();
        }
        let Options { redirect, no_loop, .. } = options;
        let mut tracking =
            ClientTracking { mode, redirect, is_broken: false, no_loop, prefix_bytes: 0 };
        let mut prefix_bytes = 0;
        for prefix in tracking.prefixes().into_iter().flatten() {
            ctx.db.tracking.add_prefix(ctx.client, prefix);
            prefix_bytes += prefix.len() + 2 * size_of::<usize>();
        }
        tracking.prefix_bytes = prefix_bytes;
        client.tracking = Some(Box::new(tracking));
    } else {
        return Err(CommandError::Syntax);
    }
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// `CLIENT CACHING <YES | NO>`: `OK`.
fn caching(ctx: &mut Context<'_>) -> CommandResult {
    let mut answer = ctx.args.cursor(2);
    let client = ctx.server.clients.get_mut(ctx.client).expect("a client outlives its command");
    let mode = &client.tracking.as_deref().ok_or(NOT_TRACKING)?.mode;
    if answer.take_word("YES") {
        if !matches!(mode, Mode::Reads(Choice::OptIn)) {
            return Err(NOT_OPTIN);
        }
    } else if answer.take_word("NO") {
        if !matches!(mode, Mode::Reads(Choice::OptOut)) {
            return Err(NOT_OPTOUT);
        }
    } else {
        return Err(CommandError::Syntax);
    }
    client.flags |= ClientFlags::CACHING;
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// `CLIENT GETREDIR`: a client's number, 0 without redirection, -1 without tracking.
fn get_redirection(ctx: &mut Context<'_>) -> CommandResult {
    let redirection = ClientTracking::redirection(ctx.client());
    ctx.reply.integer(redirection);
    Ok(Outcome::Replied)
}

/// `CLIENT TRACKINGINFO`: a map of `flags`, `redirect` (as CLIENT GETREDIR) and `prefixes`.
fn tracking_info(ctx: &mut Context<'_>) -> CommandResult {
    let client = ctx.server.clients.get_mut(ctx.client).expect("a client outlives its command");
    let caching = client.flags.contains(ClientFlags::CACHING);
    let mut flags = Vec::new();
    let mut prefixes = None;
    match client.tracking.as_deref() {
        None => flags.push("off"),
        Some(tracking) => {
            flags.push("on");
            match &tracking.mode {
                Mode::Reads(Choice::All) => {}
                Mode::Reads(Choice::OptIn) => {
                    flags.push("optin");
                    flags.extend(caching.then_some("caching-yes"));
                }
                Mode::Reads(Choice::OptOut) => {
                    flags.push("optout");
                    flags.extend(caching.then_some("caching-no"));
                }
                Mode::Prefixes(all) => {
                    flags.push("bcast");
                    prefixes = Some(all);
                }
            }
            flags.extend(tracking.no_loop.then_some("noloop"));
            flags.extend(tracking.is_broken.then_some("broken_redirect"));
        }
    }
    let reply = &mut ctx.reply;
    reply.map(3);
    reply.bulk(b"flags");
    reply.set(flags.len());
    flags.iter().for_each(|flag| reply.bulk(flag.as_bytes()));
    reply.bulk(b"redirect");
    reply.integer(ClientTracking::redirection(client));
    reply.bulk(b"prefixes");
    reply.array(prefixes.map_or(0, BTreeSet::len));
    prefixes.into_iter().flatten().for_each(|prefix| reply.bulk(prefix));
    Ok(Outcome::Replied)
}

/// Ends a client's tracking, if it tracks.
pub fn stop(db: &mut Keyspace, server: &mut State, id: ClientId) {
    let Some(client) = server.clients.get_mut(id) else { return };
    client.flags.remove(ClientFlags::CACHING);
    if let Some(tracking) = client.tracking.take() {
        let prefixes = tracking.prefixes().into_iter().flatten();
        db.tracking.leave(id, prefixes.map(|prefix| &**prefix));
    }
}

// ---- around commands -------------------------------------------------------------------------------------------------

/// Tells who it concerns what happened before a command: keys that were evicted for it. The client hears of its own copies
/// before the reply.
#[cold]
pub(super) fn before_command(
    db: &mut Keyspace,
    server: &mut State,
    id: ClientId,
    output: &mut OutputBuffer,
) {
    tell_changes(db, server, None);
    pubsub::take_pushed(server, id, output);
}

/// Tells who it concerns what a command changed, and notes the keys it has read. Called while anybody tracks.
#[cold]
pub(super) fn after_command(
    db: &mut Keyspace,
    server: &mut State,
    id: ClientId,
    command: &Command,
    request: &Request<'_>,
    origin: Origin,
    output: &mut OutputBuffer,
) {
    tell_changes(db, server, Some(id));
    // A command that waited was noted when it began to wait.
    if command.is(Flags::READONLY) && !matches!(origin, Origin::Woken(_)) {
        remember(db, server, id, command, request.args);
    }
    // Within another reply there is no place for a push: it follows at the end.
    if origin == Origin::Client {
        pubsub::take_pushed(server, id, output);
    }
}

/// Notes the keys that a command of a client has read, if the client tracks them.
fn remember(db: &mut Keyspace, server: &State, id: ClientId, command: &Command, args: Args<'_>) {
    let Some(client) = server.clients.get(id) else { return };
    let caching = client.flags.contains(ClientFlags::CACHING);
    let tracks = match client.tracking.as_deref().map(|tracking| &tracking.mode) {
        None | Some(Mode::Prefixes(_)) => false,
        Some(Mode::Reads(Choice::All)) => true,
        Some(Mode::Reads(Choice::OptIn)) => caching,
        Some(Mode::Reads(Choice::OptOut)) => !caching,
    };
    // A script's keys are those that its commands read.
    let is_script = matches!(command.spec.name, "EVAL_RO" | "EVALSHA_RO" | "FCALL_RO");
    if !tracks || is_script || command.is(Flags::PUBSUB) {
        return;
    }
    for key in keys_of(command.spec, args) {
        db.tracking.remember(id, args.get(key.index));
    }
}

/// CLIENT CACHING holds for one command, or for one transaction: ends it behind that.
pub(super) fn end_caching(server: &mut State, id: ClientId, request: &Request<'_>) {
    let of_client = request.command.filter(|command| command.spec.name == "CLIENT");
    let is_client = of_client.is_some_and(|command| {
        request.args.len() > 1
            && server.commands.find_subcommand(command, request.args.get(1)).is_some()
    });
    if let Some(client) = server.clients.get_mut(id)
        && !client.flags.contains(ClientFlags::IN_TRANSACTION)
        && !is_client
    {
        client.flags.remove(ClientFlags::CACHING);
    }
}

/// At the end of a turn: forgets keys where too many are remembered, tells of what happened outside of commands, and sends
/// those who track prefixes their keys.
pub fn end_turn(db: &mut Keyspace, server: &mut State) {
    if db.tracking.has_changes() {
        tell_changes(db, server, None);
    }
    let keys_max = server.config.tracking_table_max_keys;
    for _ in 0..FORGET_KEYS {
        if !db.tracking.is_over(keys_max) {
            break;
        }
        let Some((key, readers)) = db.tracking.forget_random() else { break };
        readers.iter().for_each(|&reader| tell_reader(server, reader, &key));
    }
    if db.tracking.has_broadcasts() {
        broadcast(db, server);
    }
}

// ---- messages --------------------------------------------------------------------------------------------------------

/// Takes what has changed: tells the readers, and collects the keys for who tracks prefixes. `by`: the client whose command
/// did it.
fn tell_changes(db: &mut Keyspace, server: &mut State, by: Option<ClientId>) {
    for change in db.tracking.take_changes() {
        match change {
            Change::Key { key, readers, by_client } => {
                db.tracking.collect(&key, by.filter(|_| by_client));
                for reader in readers {
                    let tracking = server.clients.get(reader).and_then(|it| it.tracking.as_deref());
                    let is_own = by == Some(reader);
                    if tracking.is_some_and(|tracking| !(is_own && tracking.no_loop)) {
                        tell_reader(server, reader, &key);
                    }
                }
            }
            Change::All => {
                let ids: Vec<ClientId> = server
                    .clients
                    .iter()
                    .filter(|client| client.tracking.is_some())
                    .map(|client| client.id)
                    .collect();
                ids.into_iter().for_each(|id| send(server, id, |reply| reply.null()));
            }
        }
    }
}

/// Tells a client that has read a key, if it is still there and still tracks what it reads.
fn tell_reader(server: &mut State, id: ClientId, key: &[u8]) {
    let tracking = server.clients.get(id).and_then(|client| client.tracking.as_deref());
    if tracking.is_some_and(|tracking| tracking.prefixes().is_none()) {
        send(server, id, |reply| {
            reply.array(1);
            reply.bulk(key);
        });
    }
}

/// Sends the collected keys to who tracks their prefixes: a message for each prefix.
fn broadcast(db: &mut Keyspace, server: &mut State) {
    for told in db.tracking.take_broadcasts() {
        // The same for all but those who do not want to hear of their own changes.
        let mut all = None;
        for &id in &told.clients {
            let tracking = server.clients.get(id).and_then(|client| client.tracking.as_deref());
            let no_loop = tracking.is_some_and(|tracking| tracking.no_loop);
            if no_loop && told.keys.values().any(|by| *by == Some(id)) {
                let others = told.keys.iter().filter(|(_, by)| **by != Some(id));
                let keys: Vec<&[u8]> = others.map(|(key, _)| &**key).collect();
                if !keys.is_empty() {
                    send_keys(server, id, &encode(keys.into_iter()));
                }
            } else {
                let all = all.get_or_insert_with(|| encode(told.keys.keys().map(|key| &**key)));
                send_keys(server, id, all);
            }
        }
    }
}

/// An array of keys, the same in both versions of the protocol.
fn encode<'a>(keys: impl ExactSizeIterator<Item = &'a [u8]>) -> Bytes {
    let mut output = OutputBuffer::default();
    let mut writer = ReplyWriter::new(&mut output, Protocol::Resp2);
    writer.array(keys.len());
    keys.for_each(|key| writer.bulk(key));
    output.to_vec().into()
}

fn send_keys(server: &mut State, id: ClientId, keys: &Bytes) {
    send(server, id, |reply| match keys.len() {
        0..SHARED_MIN => reply.raw(keys),
        _ => reply.output().push_shared(keys.clone()),
    });
}

/// The client with this number, unless it is about to go.
fn receiver(server: &State, number: u64) -> Option<&Client> {
    let client = server.clients.by_number(number)?;
    (!client.flags.contains(ClientFlags::CLOSE_NOW)).then_some(client)
}

/// Sends a client a message, or whom it redirects its messages to; `body` writes what is invalid.
fn send(server: &mut State, id: ClientId, body: impl FnOnce(&mut ReplyWriter<'_>)) {
    let tracking = server.clients.get(id).and_then(|client| client.tracking.as_deref());
    let redirect = tracking.and_then(|tracking| tracking.redirect);
    let target = match redirect {
        None => id,
        Some(number) => match receiver(server, number) {
            Some(client) => client.id,
            None => return tell_broken(server, id, number),
        },
    };
    let Some(client) = server.clients.get(target) else { return };
    let is_channel = client.protocol == Protocol::Resp2;
    let is_subscribed = client.flags.contains(ClientFlags::SUBSCRIBED);
    if client.is_closing() || is_channel && !(redirect.is_some() && is_subscribed) {
        return;
    }
    let Some(client) = server.clients.get_to_push(target) else { return };
    let mut writer = ReplyWriter::new(&mut client.output, client.protocol);
    if is_channel {
        writer.push(3);
        writer.bulk(b"message");
        writer.bulk(CHANNEL);
    } else {
        writer.push(2);
        writer.bulk(b"invalidate");
    }
    body(&mut writer);
    check_length(server, target);
}

/// Tells a client that the one it redirects to is gone: once for each message that is not sent.
fn tell_broken(server: &mut State, id: ClientId, number: u64) {
    let Some(client) = server.clients.get_mut(id) else { return };
    if let Some(tracking) = &mut client.tracking {
        tracking.is_broken = true;
    }
    if client.protocol == Protocol::Resp2 || client.is_closing() {
        return;
    }
    let Some(client) = server.clients.get_to_push(id) else { return };
    let mut writer = ReplyWriter::new(&mut client.output, client.protocol);
    writer.push(2);
    writer.bulk(b"tracking-redir-broken");
    writer.integer(number as i64);
    check_length(server, id);
}

fn check_length(server: &mut State, id: ClientId) {
    let client = server.clients.get(id);
    if client.is_some_and(|client| client.output.len() > OUTPUT_UNCOUNTED_MAX) {
        client::check_output_limit(server, id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn prefixes() -> impl Strategy<Value = Vec<Vec<u8>>> {
        prop::collection::vec(prop::collection::vec(b'a'..b'd', 1..5), 0..8)
    }

    proptest! {
        #[test]
        fn overlapping_prefixes_are_found_as_by_comparing_each_with_each(
            known in prefixes(),
            asked in prefixes(),
            has_empty: bool,
        ) {
            let asked: Vec<&[u8]> = asked.iter().map(Vec::as_slice).collect();
            let overlaps = |index: usize| {
                asked[index + 1..].iter().any(|other| overlap(other, asked[index]))
            };
            prop_assert_eq!(first_overlapping(&asked), (0..asked.len()).find(|&index| overlaps(index)));
            let mut there = BTreeSet::<Box<[u8]>>::new();
            for prefix in known {
                if !there.iter().any(|other| overlap(other, &prefix)) {
                    there.insert(prefix.into());
                }
            }
            if has_empty {
                there.insert(Box::default());
            }
            for prefix in asked {
                let expected = there.iter().find(|other| overlap(other, prefix)).map(|found| &**found);
                prop_assert_eq!(overlapping_with(&there, prefix), expected);
            }
        }
    }
}
