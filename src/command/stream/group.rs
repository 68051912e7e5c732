//! Consumer groups: creating and removing them, acknowledging, listing and claiming pending
//! entries.

use crate::collections::table::Slot;
use crate::command::help::reply_help;
use crate::command::stream::claims::Claims;
use crate::command::stream::owner::Owner;
use crate::command::stream::{
    Bound, announce, parse_bound, parse_id, parse_ids, reply_entry, reply_id, stream_spec,
};
use crate::config::KeyspaceEvents;
use crate::error::CommandError;
use crate::keyspace::waiting::{Ticket, Wanted};
use crate::resp::args::Args;
use crate::resp::number;
use crate::resp::reply::{OutputBuffer, ReplyWriter};
use crate::state::Core;
use crate::state::context::{CommandResult, Context, Outcome};
use crate::state::spec::{
    Categories, CommandSpec, Flags, Group as CommandGroup, Handler, KeyFlags,
};
use crate::state::spec::{container, key, spec};
use crate::types::stream::{
    ConsumerId, Entries, Group, PAUSED, Pending, RELEASED, Stream, StreamId, shifted,
};

const NONDETERMINISTIC: &[&str] = &["nondeterministic_output"];

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    container("XGROUP", SUBCOMMANDS).group(CommandGroup::Stream).since("5.0.0")
        .docs("", "Commands about consumer groups.", "Depends on the subcommand."),
    stream_spec("XACK", xack, "5.0.0", Flags::WRITE_FAST).at_least(4).keys(&[key(1, KeyFlags::RW_UPDATE)])
        .docs("key group [OWNER consumer] id [id ...]", "Removes entries from a group's pending list, and counts those that were in it.",
            "O(log N) for each entry, N being the number of pending ones"),
    stream_spec("XPENDING", xpending, "5.0.0", Flags::READONLY).at_least(3).keys(&[key(1, KeyFlags::RO_ACCESS)]).tips(NONDETERMINISTIC)
        .docs("key group [[IDLE min-idle-time] start end count [consumer]]", "Lists the pending entries of a group, with their consumers and idle times.",
            "O(N) for N entries that are looked at; a summary costs O(N) for N consumers"),
    stream_spec("XCLAIM", xclaim, "5.0.0", Flags::WRITE_FAST).at_least(6).keys(&[key(1, KeyFlags::RW_UPDATE)]).tips(NONDETERMINISTIC)
        .docs("key group consumer min-idle-time id [id ...] [IDLE ms] [TIME unix-time-milliseconds] [RETRYCOUNT count] \
            [FORCE] [JUSTID] [LASTID lastid] [OWNER owner]",
            "Assigns pending entries to another consumer, if they have been idle for long enough.",
            "O(log N) for each entry, N being the number of pending ones"),
    stream_spec("XAUTOCLAIM", xautoclaim, "6.2.0", Flags::WRITE_FAST).at_least(6).keys(&[key(1, KeyFlags::RW_DELETE)]).tips(NONDETERMINISTIC)
        .docs("key group consumer min-idle-time start [COUNT count] [JUSTID]",
            "Assigns to a consumer the pending entries that have been idle for long enough.",
            "O(N) for N entries that are looked at, at most ten times the count"),
];

#[rustfmt::skip]
const SUBCOMMANDS: &[CommandSpec] = &[
    group_spec("CREATE", create, "5.0.0", Flags::WRITE_DENYOOM).at_least(5).keys(&[key(2, KeyFlags::RW_INSERT)])
        .docs("key group <id | $> [MKSTREAM] [ENTRIESREAD entries-read]", "Creates a group that reads a stream from a given ID on.", "O(1)"),
    group_spec("CREATECONSUMER", create_consumer, "6.2.0", Flags::WRITE_DENYOOM).exactly(5).keys(&[key(2, KeyFlags::RW_INSERT)])
        .docs("key group consumer", "Creates a consumer before it reads.", "O(1)"),
    group_spec("DELCONSUMER", delete_consumer, "5.0.0", Flags::WRITE).at_least(5).keys(&[key(2, KeyFlags::RW_DELETE)])
        .docs("key group consumer [RELEASE]", "Removes a consumer. Removes or releases its pending entries, and counts them.", "O(N) for N pending entries"),
    group_spec("DESTROY", destroy, "5.0.0", Flags::WRITE).exactly(4).keys(&[key(2, KeyFlags::RW_DELETE)])
        .docs("key group", "Removes a group with its consumers and pending entries.", "O(N) for N pending entries"),
    group_spec("SETID", set_id, "5.0.0", Flags::WRITE).at_least(5).keys(&[key(2, KeyFlags::RW_UPDATE)])
        .docs("key group <id | $> [ENTRIESREAD entries-read]", "Sets the ID after which a group reads.", "O(1)"),
    spec("HELP", help).exactly(2).group(CommandGroup::Stream).since("5.0.0").flags(Flags::LOADING_STALE).categories(Categories::STREAM)
        .docs("", "Lists the subcommands.", "O(1)"),
];

const fn group_spec(
    name: &'static str,
    handler: Handler,
    since: &'static str,
    flags: Flags,
) -> CommandSpec {
    stream_spec(name, handler, since, flags)
}

const NO_KEY: CommandError = CommandError::Text(
    "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to \
     use the MKSTREAM option to create an empty stream automatically.",
);
const BUSY: CommandError = CommandError::Text("BUSYGROUP Consumer Group name already exists");
const RESERVED: CommandError =
    CommandError::Text("ERR The names ':released' and ':paused' are reserved");
const BAD_ENTRIES_READ: CommandError =
    CommandError::Text("ERR value for ENTRIESREAD must be positive or -1");

/// The error for an absent group in XGROUP and XINFO.
pub(crate) fn no_group(group: &[u8], key: &[u8]) -> CommandError {
    let parts: [&[u8]; 5] =
        [b"NOGROUP No such consumer group '", group, b"' for key name '", key, b"'"];
    CommandError::of_parts(&parts)
}

/// The same in XPENDING, XCLAIM and XAUTOCLAIM, and in XREADGROUP, which adds `behind`.
pub(super) fn no_key_or_group(key: &[u8], group: &[u8], behind: &str) -> CommandError {
    let parts: [&[u8]; 6] =
        [b"NOGROUP No such key '", key, b"' or consumer group '", group, b"'", behind.as_bytes()];
    CommandError::of_parts(&parts)
}

/// Checks a consumer that reads or claims. Errors: the name is one of those with a meaning, and the
/// command is not repeated.
#[inline]
pub(super) fn check_reader(name: &[u8], is_repeated: bool) -> Result<(), CommandError> {
    let is_reserved = name.first() == Some(&b':') && (name == RELEASED || name == PAUSED);
    if is_reserved && !is_repeated { Err(RESERVED) } else { Ok(()) }
}

/// Whether the command has run before: here, at the primary, or at the source from which the key's
/// slot comes.
fn is_repeated(ctx: &Context<'_>, key: &[u8]) -> bool {
    ctx.is_repeated() || ctx.core.keyspace.is_hidden(key)
}

// ---- XGROUP -------------------------------------------------------------------------------------

/// The options of CREATE and SETID.
#[derive(Default)]
struct GroupOptions {
    makes_stream: bool,
    read: Option<i64>,
}

impl GroupOptions {
    /// `[MKSTREAM] [ENTRIESREAD entries-read]`, from argument 5 on.
    fn parse(ctx: &Context<'_>, may_make_stream: bool) -> Result<Self, CommandError> {
        let mut options = GroupOptions::default();
        let mut cursor = ctx.args.cursor(5);
        while !cursor.is_at_end() {
            if may_make_stream && cursor.take_word("MKSTREAM") {
                options.makes_stream = true;
            } else if cursor.remaining() >= 2 && cursor.take_word("ENTRIESREAD") {
                options.read = match cursor.take_integer()? {
                    -1 => None,
                    ..-1 => return Err(BAD_ENTRIES_READ),
                    read => Some(read),
                };
            } else {
                return Err(ctx.wrong_subcommand());
            }
        }
        Ok(options)
    }

    /// The number of entries read. `added`: those ever added, of which Redis 8.6 lets no more count
    /// as read.
    fn read_of(&self, ctx: &Context<'_>, added: i64) -> Option<i64> {
        match ctx.core.state.config.compatible_with.is_redis_8() {
            true => self.read.map(|read| read.min(added)),
            false => self.read,
        }
    }
}

/// The slot of the stream in argument 2.
fn find_stream(ctx: &mut Context<'_>) -> Result<Option<Slot>, CommandError> {
    let found = ctx.core.keyspace.find_for_write(ctx.key(2));
    if let Some(slot) = found {
        ctx.core.keyspace.stream_at(slot)?;
    }
    Ok(found)
}

/// The slot of the stream in argument 2. Errors: it does not have the group in argument 3.
fn find_group(ctx: &mut Context<'_>) -> Result<Slot, CommandError> {
    let slot = find_stream(ctx)?.ok_or(NO_KEY)?;
    let (key, name) = (ctx.args.get(2), ctx.args.get(3));
    if !ctx.core.keyspace.stream_at(slot)?.groups.contains_key(name) {
        return Err(no_group(name, key));
    }
    Ok(slot)
}

/// The group in argument 3, which must exist.
fn group_mut<'c>(ctx: &'c mut Context<'_>, slot: Slot) -> Result<&'c mut Group, CommandError> {
    let (key, name) = (ctx.args.get(2), ctx.args.get(3));
    ctx.core.keyspace.groups_mut(slot)?.1.get_mut(name).ok_or_else(|| no_group(name, key))
}

/// `XGROUP CREATE key group <id | $> [MKSTREAM] [ENTRIESREAD entries-read]`: OK.
fn create(ctx: &mut Context<'_>) -> CommandResult {
    let options = GroupOptions::parse(ctx, true)?;
    let found = find_stream(ctx)?;
    if found.is_none() && !options.makes_stream {
        return Err(NO_KEY);
    }
    if ctx.args.len() > 8 {
        return Err(ctx.wrong_subcommand());
    }
    let (key, name) = (ctx.key(2), ctx.args.get(3));
    let last = match (ctx.args.get(4), found) {
        (b"$", Some(slot)) => ctx.core.keyspace.stream_at(slot)?.entries().last,
        (b"$", None) => StreamId::MIN,
        (text, _) => parse_id(text, 0)?,
    };
    let added = match found {
        Some(slot) => ctx.core.keyspace.stream_at(slot)?.entries().added,
        None => 0,
    };
    let group = Group::new(last, options.read_of(ctx, added));
    let Some(slot) = found else {
        let mut stream = Stream::default();
        stream.groups.insert(name, group);
        ctx.core.keyspace.insert_stream(key, stream);
        ctx.core.keyspace.changed(KeyspaceEvents::STREAM, "xgroup-create", key.bytes);
        ctx.reply.ok();
        return Ok(Outcome::Replied);
    };
    let (_, groups) = ctx.core.keyspace.groups_mut(slot)?;
    if groups.contains_key(name) {
        return Err(BUSY);
    }
    groups.insert(name, group);
    announce(ctx, "xgroup-create", key);
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// `XGROUP SETID key group <id | $> [ENTRIESREAD entries-read]`: OK.
fn set_id(ctx: &mut Context<'_>) -> CommandResult {
    let options = GroupOptions::parse(ctx, false)?;
    let slot = find_group(ctx)?;
    if !matches!(ctx.args.len(), 5 | 7) {
        return Err(ctx.wrong_subcommand());
    }
    let last = match ctx.args.get(4) {
        b"$" => ctx.core.keyspace.stream_at(slot)?.entries().last,
        b"-" => StreamId::MIN,
        b"+" => StreamId::MAX,
        text => parse_id(text, 0)?,
    };
    let added = ctx.core.keyspace.stream_at(slot)?.entries().added;
    let read = options.read_of(ctx, added);
    let group = group_mut(ctx, slot)?;
    (group.last, group.read) = (last, read);
    announce(ctx, "xgroup-setid", ctx.key(2));
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// `XGROUP DESTROY key group`: 1, or 0 if it did not exist.
fn destroy(ctx: &mut Context<'_>) -> CommandResult {
    let slot = find_stream(ctx)?.ok_or(NO_KEY)?;
    let key = ctx.key(2);
    let is_removed = ctx.core.keyspace.groups_mut(slot)?.1.remove(ctx.args.get(3));
    if is_removed {
        announce(ctx, "xgroup-destroy", key);
        // Blocked consumers of the group are woken.
        let database = ctx.core.keyspace.selected();
        ctx.core.keyspace.waiting.note_change(database, key.bytes);
    }
    ctx.reply.integer(is_removed.into());
    Ok(Outcome::Replied)
}

/// `XGROUP CREATECONSUMER key group consumer`: 1, or 0 if it exists.
fn create_consumer(ctx: &mut Context<'_>) -> CommandResult {
    let slot = find_group(ctx)?;
    let (name, now_ms) = (ctx.args.get(4), ctx.core.state.now.unix().0);
    let was_seen_then = is_repeated(ctx, ctx.args.get(2));
    if name == RELEASED && !was_seen_then {
        return Err(RESERVED);
    }
    let group = group_mut(ctx, slot)?;
    let is_new = group.find_consumer(name).is_none();
    if is_new {
        group.meet_consumer(name, now_ms);
        announce(ctx, "xgroup-createconsumer", ctx.key(2));
    } else if was_seen_then {
        group.meet_consumer(name, now_ms);
    }
    ctx.reply.integer(is_new.into());
    Ok(Outcome::Replied)
}

/// `XGROUP DELCONSUMER key group consumer [RELEASE]`: the number of its pending entries.
fn delete_consumer(ctx: &mut Context<'_>) -> CommandResult {
    let releases = ctx.args.len() == 6 && ctx.args.get(5).eq_ignore_ascii_case(b"RELEASE");
    if ctx.args.len() > 5 && !releases {
        return Err(CommandError::WrongArity(ctx.command.full_name.clone()));
    }
    let slot = find_group(ctx)?;
    let (key, name) = (ctx.args.get(2), ctx.args.get(4));
    // Released entries have no consumer that clients know.
    let is_hidden = name == RELEASED && !is_repeated(ctx, key);
    let mut claims = Claims::new(ctx, key, ctx.args.get(3));
    let unix_ms = ctx.core.state.now.unix().0;
    let (entries, groups) = ctx.core.keyspace.groups_mut(slot)?;
    let group = groups.get_mut(ctx.args.get(3)).ok_or_else(|| no_group(ctx.args.get(3), key))?;
    let Some(consumer) = group.find_consumer(name).filter(|_| !is_hidden) else {
        ctx.reply.integer(0);
        return Ok(Outcome::Replied);
    };
    let mut pending = group.consumer(consumer).pending().len();
    if releases {
        release_all(&mut claims, entries, group, consumer, unix_ms);
    } else {
        pending = group.remove_consumer(consumer);
    }
    announce(ctx, "xgroup-delconsumer", ctx.key(2));
    if releases {
        claims.repeat(ctx, true);
        ctx.core.keyspace.pending_changed(key);
    }
    if name == PAUSED {
        resume(ctx, key);
    }
    ctx.reply.integer(pending as i64);
    Ok(Outcome::Replied)
}

/// Wakes the blocked consumers of a stream, also at the sorted sets whose members move there: no
/// alarm was set for these while the group was paused.
fn resume(ctx: &mut Context<'_>, key: &[u8]) {
    let database = ctx.core.keyspace.selected();
    let Core { keyspace, state } = &mut *ctx.core;
    let tickets: Vec<Ticket> = keyspace.waiting.iter(database, key, Wanted::StreamClaim).collect();
    keyspace.waiting.note_change(database, key);
    for wait in tickets.into_iter().filter_map(|ticket| state.waits.get(ticket)) {
        wait.keys().for_each(|(_, key)| keyspace.waiting.note_change(database, key));
    }
}

/// Releases a consumer's entries as if they had not been delivered to it, and removes it.
fn release_all(
    claims: &mut Claims<'_>,
    entries: &Entries,
    group: &mut Group,
    consumer: ConsumerId,
    unix_ms: i64,
) {
    let name = group.consumer(consumer).name.clone();
    let ids: Vec<StreamId> =
        group.consumer(consumer).pending().iter().map(|(id, ())| *id).collect();
    for id in ids {
        // One whose data are gone could not be claimed: it goes with its consumer.
        let Some(before) = group.pending().get(&id).copied().filter(|_| entries.contains(id))
        else {
            continue;
        };
        let deliveries = before.deliveries.saturating_sub(1).max(0);
        let pending = group.release(id, deliveries, None, unix_ms);
        group.consumer_mut(pending.consumer).active_ms = Some(unix_ms);
        claims.assigned(RELEASED, id, pending, group.last);
    }
    group.remove_consumer(consumer);
    claims.deleted(&name);
}

/// `XGROUP HELP`: an array of simple strings.
fn help(ctx: &mut Context<'_>) -> CommandResult {
    reply_help(
        ctx,
        &[
            "CREATE <key> <group> <id|$> [<option> ...]",
            "    Create a group that reads entries above an ID; $ is the last one. Options:",
            "    * MKSTREAM",
            "      Create an empty stream if there is none.",
            "    * ENTRIESREAD <count>",
            "      Set how many entries the group has read so far.",
            "CREATECONSUMER <key> <group> <consumer>",
            "    Create a consumer.",
            "DELCONSUMER <key> <group> <consumer> [RELEASE]",
            "    Remove a consumer and its pending entries, or release them first.",
            "DESTROY <key> <group>",
            "    Remove a group.",
            "SETID <key> <group> <id|$> [ENTRIESREAD <count>]",
            "    Set the ID above which a group reads, and how many entries it has read.",
        ],
    )
}

// ---- XACK and XPENDING --------------------------------------------------------------------------

/// The slot of the stream in argument 1, if it has the group in argument 2.
fn find_read(ctx: &mut Context<'_>) -> Result<Option<Slot>, CommandError> {
    let Some(slot) = ctx.core.keyspace.find_for_read(ctx.key(1)) else { return Ok(None) };
    let has_group = ctx.core.keyspace.stream_at(slot)?.groups.contains_key(ctx.args.get(2));
    Ok(has_group.then_some(slot))
}

/// The entries and the group in argument 2, which must exist.
fn parts_mut<'c>(
    ctx: &'c mut Context<'_>,
    slot: Slot,
) -> Result<(&'c Entries, &'c mut Group), CommandError> {
    let (key, name) = (ctx.args.get(1), ctx.args.get(2));
    let (entries, groups) = ctx.core.keyspace.groups_mut(slot)?;
    let group = groups.get_mut(name).ok_or_else(|| no_key_or_group(key, name, ""))?;
    Ok((entries, group))
}

/// `XACK key group [OWNER consumer] id [id ...]`: how many were pending (for this consumer).
fn xack(ctx: &mut Context<'_>) -> CommandResult {
    let Some(slot) = find_read(ctx)? else {
        ctx.reply.integer(0);
        return Ok(Outcome::Replied);
    };
    let mut owner = Owner::default();
    let mut cursor = ctx.args.cursor(3);
    // Without IDs after it, it is not the option but a bad ID.
    if cursor.remaining() > 2 && owner.take(&mut cursor)? {
        return acknowledge_owned(ctx, slot, owner);
    }
    let ids = parse_ids(ctx.args, 3)?;
    let (_, group) = parts_mut(ctx, slot)?;
    let acknowledged = ids.into_iter().filter(|id| group.acknowledge(*id)).count();
    ctx.core.keyspace.changed_aside(ctx.args.get(1), acknowledged as u64);
    ctx.reply.integer(acknowledged as i64);
    Ok(Outcome::Replied)
}

/// XACK with OWNER: acknowledges the entries that are pending for this consumer. Files and replicas
/// get the plain command with these.
fn acknowledge_owned(ctx: &mut Context<'_>, slot: Slot, owner: Owner<'_>) -> CommandResult {
    let mut ids = parse_ids(ctx.args, 5)?;
    let (_, group) = parts_mut(ctx, slot)?;
    let fence = owner.fence(group);
    ids.retain(|id| fence.admits(group, *id) && group.acknowledge(*id));
    let (acknowledged, args) = (ids.len(), ctx.args);
    if acknowledged > 0 {
        ctx.instead_gathered(|_, request| {
            request.extend([b"XACK", args.get(1), args.get(2)].map(<[u8]>::to_vec));
            request.extend(ids.iter().map(|id| id.text().as_ref().to_vec()));
        });
    }
    ctx.core.keyspace.changed_aside(ctx.args.get(1), acknowledged as u64);
    ctx.reply.integer(acknowledged as i64);
    Ok(Outcome::Replied)
}

/// XPENDING's options.
struct PendingFilter<'a> {
    /// The least idle time; 0: any.
    idle_ms_min: i64,
    start: StreamId,
    end: StreamId,
    count: usize,
    consumer: Option<&'a [u8]>,
}

impl<'a> PendingFilter<'a> {
    /// `[IDLE min-idle-time] start end count [consumer]`; None if there are no arguments.
    fn parse(args: Args<'a>) -> Result<Option<Self>, CommandError> {
        if args.len() == 3 {
            return Ok(None);
        }
        if !(6..=9).contains(&args.len()) {
            return Err(CommandError::Syntax);
        }
        let mut cursor = args.cursor(3);
        let mut idle_ms_min = 0;
        if cursor.take_word("IDLE") {
            idle_ms_min = cursor.take_integer()?;
            if args.len() < 8 {
                return Err(CommandError::Syntax);
            }
        }
        let (start, end) = (cursor.take()?, cursor.take()?);
        // The count is checked first.
        let count = usize::try_from(cursor.take_integer()?).unwrap_or(0);
        Ok(Some(PendingFilter {
            idle_ms_min,
            start: parse_bound(start, Bound::Start)?,
            end: parse_bound(end, Bound::End)?,
            count,
            consumer: cursor.peek(),
        }))
    }
}

/// `XPENDING key group [[IDLE min-idle-time] start end count [consumer]]`: a summary (total, first
/// and last ID, and the number for each consumer), or an array of ID, consumer, idle milliseconds
/// and deliveries.
fn xpending(ctx: &mut Context<'_>) -> CommandResult {
    let filter = PendingFilter::parse(ctx.args)?;
    let now_ms = ctx.core.keyspace.lease_ms();
    let (key, name) = (ctx.args.get(1), ctx.args.get(2));
    let slot = find_read(ctx)?.ok_or_else(|| no_key_or_group(key, name, ""))?;
    let stream = ctx.core.keyspace.stream_at(slot)?;
    let group = stream.groups.get(name).ok_or_else(|| no_key_or_group(key, name, ""))?;
    match filter {
        None => reply_summary(&mut ctx.reply, group),
        Some(filter) => reply_pending(&mut ctx.reply, group, &filter, now_ms),
    }
    Ok(Outcome::Replied)
}

/// The idle time of a released entry that may be claimed.
pub(super) const NOT_IDLE: i64 = -1;

fn reply_summary(reply: &mut ReplyWriter<'_>, group: &Group) {
    reply.array(4);
    reply.integer(group.pending().len() as i64);
    let (first, last) = (group.pending().first(), group.pending().last());
    let (Some((first, _)), Some((last, _))) = (first, last) else {
        reply.null();
        reply.null();
        reply.null_array();
        return;
    };
    reply_id(reply, *first);
    reply_id(reply, *last);
    let consumers = group.shown_consumers().filter(|consumer| !consumer.pending().is_empty());
    reply.array(consumers.clone().count());
    for consumer in consumers {
        reply.array(2);
        reply.bulk(&consumer.name);
        reply.bulk_integer(consumer.pending().len() as i64);
    }
}

fn reply_pending(
    reply: &mut ReplyWriter<'_>,
    group: &Group,
    filter: &PendingFilter<'_>,
    now_ms: i64,
) {
    let PendingFilter { start, end, count, idle_ms_min, .. } = *filter;
    let list = reply.defer_array();
    let mut sent = 0;
    let idle_ms = |pending: &Pending| now_ms.saturating_sub(pending.delivered_ms);
    let is_idle = |pending: &Pending| {
        let is_free = group.is_released(pending.consumer) && idle_ms(pending) >= 0;
        idle_ms_min == 0 || is_free || idle_ms(pending) >= idle_ms_min
    };
    let mut show = |id: StreamId, pending: &Pending| {
        sent += 1;
        reply.array(4);
        reply_id(reply, id);
        match group.is_released(pending.consumer) {
            true => {
                reply.bulk(b"");
                // Minus the milliseconds until it may be claimed.
                reply.integer(idle_ms(pending).min(NOT_IDLE));
            }
            false => {
                reply.bulk(&group.consumer(pending.consumer).name);
                reply.integer(idle_ms(pending).max(0));
            }
        }
        reply.integer(pending.deliveries);
    };
    match filter.consumer.map(|name| group.find_consumer(name)) {
        Some(None) => {}
        Some(Some(consumer)) => {
            let ids = group.consumer(consumer).pending().from(&start).map(|(id, ())| id);
            let entries = ids.take_while(|id| **id <= end);
            let entries = entries.filter_map(|id| Some((id, group.pending().get(id)?)));
            let found = entries.filter(|(_, pending)| is_idle(pending)).take(count);
            found.for_each(|(id, pending)| show(*id, pending));
        }
        None => {
            let entries = group.pending().from(&start).take_while(|(id, _)| *id <= end);
            let found = entries.filter(|(_, pending)| is_idle(pending)).take(count);
            found.for_each(|(id, pending)| show(*id, pending));
        }
    }
    reply.finish(list, sent);
}

// ---- XCLAIM and XAUTOCLAIM ----------------------------------------------------------------------

/// An integer argument with its own error.
fn integer_or(text: &[u8], error: &'static str) -> Result<i64, CommandError> {
    number::parse_i64(text).ok_or(CommandError::Text(error))
}

/// XCLAIM's arguments after the consumer.
struct ClaimOptions<'a> {
    idle_ms_min: i64,
    ids: Vec<StreamId>,
    /// Unix milliseconds; None: now.
    delivered_ms: Option<i64>,
    deliveries: Option<i64>,
    force: bool,
    just_id: bool,
    last: StreamId,
    owner: Owner<'a>,
}

impl<'a> ClaimOptions<'a> {
    /// `min-idle-time id [id ...] [options]`, from argument 4 on. The options start at the first
    /// argument that is not an ID.
    fn parse(args: Args<'a>, now_ms: i64, is_repeated: bool) -> Result<Self, CommandError> {
        let idle = integer_or(args.get(4), "ERR Invalid min-idle-time argument for XCLAIM")?;
        let ids: Vec<StreamId> =
            args.iter_from(5).map_while(|text| StreamId::parse(text, 0)).collect();
        let mut cursor = args.cursor(5 + ids.len());
        let mut options = ClaimOptions {
            idle_ms_min: idle.max(0),
            ids,
            delivered_ms: None,
            deliveries: None,
            force: false,
            just_id: false,
            last: StreamId::MIN,
            owner: Owner::default(),
        };
        while !cursor.is_at_end() {
            let has_value = cursor.remaining() >= 2;
            if cursor.take_word("FORCE") {
                options.force = true;
            } else if cursor.take_word("JUSTID") {
                options.just_id = true;
            } else if has_value && cursor.take_word("IDLE") {
                let text = cursor.take()?;
                let idle = integer_or(text, "ERR Invalid IDLE option argument for XCLAIM")?;
                options.delivered_ms = Some(now_ms.wrapping_sub(idle));
            } else if has_value && cursor.take_word("TIME") {
                let text = cursor.take()?;
                let time = integer_or(text, "ERR Invalid TIME option argument for XCLAIM")?;
                options.delivered_ms = Some(time);
            } else if has_value && cursor.take_word("RETRYCOUNT") {
                let text = cursor.take()?;
                let count = integer_or(text, "ERR Invalid RETRYCOUNT option argument for XCLAIM")?;
                options.deliveries = Some(count).filter(|count| *count >= 0);
            } else if has_value && cursor.take_word("LASTID") {
                options.last = parse_id(cursor.take()?, 0)?;
            } else if options.owner.take(&mut cursor)? {
                continue;
            } else {
                let parts: [&[u8]; 3] = [b"ERR Unrecognized XCLAIM option '", cursor.take()?, b"'"];
                return Err(CommandError::of_parts(&parts));
            }
        }
        // An entry that is pending for nobody has no owner.
        if options.force && options.owner.is_given() {
            return Err(CommandError::Syntax);
        }
        // An impossible time becomes now: another machine's clock may have computed it. A time from
        // a file or the primary was valid once.
        let latest = if is_repeated { i64::MAX } else { now_ms };
        options.delivered_ms = options.delivered_ms.filter(|ms| (0..=latest).contains(ms));
        Ok(options)
    }
}

/// The consumer that claims entries, and the effect.
struct Claimant<'a> {
    name: &'a [u8],
    unix_ms: i64,
    just_id: bool,
    /// Its index in the group, once it has claimed an entry.
    consumer: Option<ConsumerId>,
    is_new: bool,
    last_seen: Option<i64>,
    /// Claiming an entry counts as active.
    is_active: bool,
    changes: u64,
    claimed: usize,
    claims: Claims<'a>,
}

impl<'a> Claimant<'a> {
    /// The claimant of a request: `key group consumer` after the command's name.
    fn new(ctx: &Context<'a>, just_id: bool) -> Self {
        let args = ctx.args;
        Claimant {
            name: args.get(3),
            unix_ms: ctx.core.state.now.unix().0,
            just_id,
            consumer: None,
            is_new: false,
            last_seen: None,
            is_active: true,
            changes: 0,
            claimed: 0,
            claims: Claims::new(ctx, args.get(1), args.get(2)),
        }
    }

    /// Removes a deleted entry from the pending list. Replicas do the same on the claim.
    fn drop_deleted(&mut self, group: &mut Group, id: StreamId) {
        let Some(pending) = group.pending().get(&id).copied() else { return };
        let consumer = &group.consumer(pending.consumer).name;
        self.claims.assigned(consumer, id, pending, group.last);
        group.acknowledge(id);
        self.changes += 1;
    }

    /// Its index in the group, created if needed.
    fn meet(&mut self, group: &mut Group) -> ConsumerId {
        *self.consumer.get_or_insert_with(|| {
            self.last_seen = self.claims.last_seen(group, self.name);
            let (consumer, is_new) = group.meet_consumer(self.name, self.unix_ms);
            self.is_new = is_new;
            consumer
        })
    }

    /// Claims an entry and replies it.
    fn take(
        &mut self,
        reply: &mut ReplyWriter<'_>,
        entries: &Entries,
        group: &mut Group,
        id: StreamId,
        delivered_ms: i64,
        deliveries: i64,
    ) {
        let consumer = self.meet(group);
        let pending = Pending { consumer, delivered_ms, deliveries };
        group.assign(id, pending);
        self.claims.assigned(self.name, id, pending, group.last);
        if self.is_active {
            group.consumer_mut(consumer).active_ms = Some(self.unix_ms);
        }
        match entries.get(id) {
            Some(entry) if !self.just_id => reply_entry(reply, entry),
            _ => reply_id(reply, id),
        }
        self.claimed += 1;
        self.changes += 1;
    }

    /// Counts and announces the changes.
    fn finish(mut self, ctx: &mut Context<'_>) {
        if self.claimed == 0 {
            match self.is_new {
                true => self.claims.created(self.name),
                false => self.claims.seen(self.name, self.last_seen, self.unix_ms),
            }
        }
        self.claims.repeat(ctx, self.is_new || self.changes > 0);
        ctx.core.keyspace.changed_aside(ctx.args.get(1), self.changes);
        ctx.core.keyspace.pending_changed(ctx.args.get(1));
        if self.is_new {
            announce(ctx, "xgroup-createconsumer", ctx.key(1));
        }
    }
}

/// `XCLAIM key group consumer min-idle-time id [id ...] [IDLE ms] [TIME unix-time-milliseconds]
/// [RETRYCOUNT count] [FORCE] [JUSTID] [LASTID id] [OWNER owner]`: an array of the entries claimed,
/// or of their IDs.
fn xclaim(ctx: &mut Context<'_>) -> CommandResult {
    let (key, name) = (ctx.args.get(1), ctx.args.get(2));
    let slot = find_read(ctx)?.ok_or_else(|| no_key_or_group(key, name, ""))?;
    let now_ms = ctx.core.keyspace.lease_ms();
    // A repeated command is exact: the named consumer has claimed the entry, or it was deleted.
    let is_repeated = is_repeated(ctx, key);
    let options = ClaimOptions::parse(ctx.args, ctx.core.state.now.unix().0, is_repeated)?;
    check_reader(ctx.args.get(3), is_repeated)?;
    let shift_ms = ctx.core.keyspace.lease_shift_ms();
    let delivered_ms = options.delivered_ms.map_or(now_ms, |at_ms| shifted(at_ms, -shift_ms));
    let mut claimant = Claimant::new(ctx, options.just_id);
    claimant.is_active = options.force || !is_repeated;
    let is_always_seen = ctx.core.state.config.reports_7_2() && !is_repeated;
    let (entries, groups) = ctx.core.keyspace.groups_mut(slot)?;
    let group = groups.get_mut(name).ok_or_else(|| no_key_or_group(key, name, ""))?;
    let reply = &mut ctx.reply;
    let before = group.last;
    if options.last > group.last {
        group.last = options.last;
        claimant.changes += 1;
    }
    if is_always_seen {
        claimant.meet(group);
    }
    let fence = options.owner.fence(group);
    let list = reply.defer_array();
    for &id in &options.ids {
        if !fence.admits(group, id) {
            continue;
        }
        let pending = group.pending().get(&id).copied();
        if !entries.contains(id) {
            claimant.drop_deleted(group, id);
            continue;
        }
        let deliveries = match pending {
            Some(pending) => {
                let idle_ms = now_ms.saturating_sub(pending.delivered_ms);
                // A released entry may be taken by its ID before its pause is over.
                let is_free = group.is_released(pending.consumer);
                if options.idle_ms_min > 0 && idle_ms < options.idle_ms_min && !is_free {
                    continue;
                }
                pending.deliveries
            }
            // An entry made pending by FORCE counts as delivered once.
            None if options.force => 1,
            None => continue,
        };
        let deliveries = match options.deliveries {
            Some(deliveries) => deliveries,
            None => deliveries.saturating_add(i64::from(!options.just_id)),
        };
        claimant.take(reply, entries, group, id, delivered_ms, deliveries);
    }
    reply.finish(list, claimant.claimed);
    if claimant.changes == 1 && options.last > before && claimant.claimed == 0 {
        claimant.claims.read(group.last, group.read);
    }
    claimant.finish(ctx);
    Ok(Outcome::Replied)
}

/// Pending entries that XAUTOCLAIM checks for each one it may return.
const ATTEMPTS: u64 = 10;
/// The greatest count it takes.
const AUTOCLAIM_COUNT_MAX: i64 = i64::MAX / 16;

/// XAUTOCLAIM's arguments after the consumer.
struct AutoclaimOptions {
    idle_ms_min: i64,
    start: StreamId,
    count: u64,
    just_id: bool,
}

impl AutoclaimOptions {
    /// `min-idle-time start [COUNT count] [JUSTID]`, from argument 4 on.
    fn parse(args: Args<'_>) -> Result<Self, CommandError> {
        let idle = integer_or(args.get(4), "ERR Invalid min-idle-time argument for XAUTOCLAIM")?;
        let mut options = AutoclaimOptions {
            idle_ms_min: idle.max(0),
            start: parse_bound(args.get(5), Bound::Start)?,
            count: 100,
            just_id: false,
        };
        let mut cursor = args.cursor(6);
        while !cursor.is_at_end() {
            if cursor.remaining() >= 2 && cursor.take_word("COUNT") {
                let count = number::parse_i64(cursor.take()?)
                    .filter(|count| (1..=AUTOCLAIM_COUNT_MAX).contains(count))
                    .ok_or(CommandError::COUNT_NOT_POSITIVE)?;
                options.count = count as u64;
            } else if cursor.take_word("JUSTID") {
                options.just_id = true;
            } else {
                return Err(CommandError::Syntax);
            }
        }
        Ok(options)
    }
}

/// `XAUTOCLAIM key group consumer min-idle-time start [COUNT count] [JUSTID]`: the next start (0-0:
/// the end), the claimed entries (or their IDs), and the IDs of pending entries that were deleted,
/// and are removed.
fn xautoclaim(ctx: &mut Context<'_>) -> CommandResult {
    let options = AutoclaimOptions::parse(ctx.args)?;
    let (key, name) = (ctx.args.get(1), ctx.args.get(2));
    let slot = find_read(ctx)?.ok_or_else(|| no_key_or_group(key, name, ""))?;
    check_reader(ctx.args.get(3), ctx.is_repeated())?;
    let now_ms = ctx.core.keyspace.lease_ms();
    let mut claimant = Claimant::new(ctx, options.just_id);
    let is_always_seen = ctx.core.state.config.reports_7_2();
    let (entries, groups) = ctx.core.keyspace.groups_mut(slot)?;
    let group = groups.get_mut(name).ok_or_else(|| no_key_or_group(key, name, ""))?;
    if is_always_seen {
        claimant.meet(group);
    }
    // The cursor, first in the reply, is known last.
    let mut output = OutputBuffer::default();
    let mut claimed = ReplyWriter::new(&mut output, ctx.reply.protocol());
    let mut deleted = Vec::new();
    let mut next = Some(options.start);
    let (mut attempts, mut count) = (options.count.saturating_mul(ATTEMPTS), options.count);
    let first_from =
        |group: &Group, next: Option<StreamId>| group.pending().from(&next?).next().copied();
    while attempts > 0
        && count > 0
        && let Some((id, pending)) = first_from(group, next)
    {
        attempts -= 1;
        next = id.next();
        if !entries.contains(id) {
            claimant.drop_deleted(group, id);
            deleted.push(id);
            count -= 1;
            continue;
        }
        let idle_ms = now_ms.saturating_sub(pending.delivered_ms);
        let least_ms = if group.is_released(pending.consumer) { 0 } else { options.idle_ms_min };
        if options.idle_ms_min > 0 && idle_ms < least_ms {
            continue;
        }
        let deliveries = pending.deliveries.saturating_add(i64::from(!options.just_id));
        claimant.take(&mut claimed, entries, group, id, now_ms, deliveries);
        count -= 1;
    }
    let end = first_from(group, next).map_or(StreamId::MIN, |(id, _)| id);
    let reply = &mut ctx.reply;
    reply.array(3);
    reply_id(reply, end);
    reply.array(claimant.claimed);
    reply.output().append(&output);
    reply.array(deleted.len());
    deleted.into_iter().for_each(|id| reply_id(reply, id));
    claimant.finish(ctx);
    Ok(Outcome::Replied)
}
