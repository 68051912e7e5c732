//! Reading streams: ranges, and entries after an ID, alone or as a group's consumer; possibly
//! blocking.
//!
//! A blocked request is kept with `$` and `+` resolved: `$` is the last ID at the time of the
//! request. A blocked consumer always waits for entries that its group has not read.

use std::borrow::Cow;

use super::bury::PASSED_MAX;
use super::group::{NOT_IDLE, check_reader, no_key_or_group};
use crate::command::stream::claims::Claims;
use crate::command::stream::jobs::JobOptions;
use crate::command::stream::{
    Bound, announce, counting, parse_bound, parse_id, reply_entry, reply_id, reply_parts,
    stream_spec,
};
use crate::command::timeout::TimeoutUnit;
use crate::gate::keys::ReadOption;
use crate::state::context::{CommandResult, Context, Origin, Outcome, WaitForKeys};
use crate::state::spec::{Begin, CommandSpec, Find, Flags, KeyFlags, KeyRule, KeySpec};
use smallvec::SmallVec;

use crate::collections::table::Slot;
use crate::error::CommandError;
use crate::keyspace::waiting::Wanted;
use crate::resp::number;
use crate::resp::owned::OwnedRequest;
use crate::resp::reply::{Deferred, Protocol, ReplyWriter};
use crate::types::stream::{ConsumerId, Counting, Entries, Group, Pending, Stream, StreamId};

const fn behind_streams(from: i16, flags: KeyFlags) -> KeySpec {
    KeySpec {
        begin: Begin::Keyword { word: "STREAMS", from },
        find: Find::Range { last: -1, step: 1, limit: 2 },
        flags,
        notes: None,
    }
}

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    stream_spec("XRANGE", xrange, "5.0.0", Flags::READONLY).at_least(4).keys(KeySpec::RO_ACCESS)
        .docs("key start end [COUNT count]", "Returns the entries between two IDs.", "O(N) for N entries, and O(log M) for finding the first of M"),
    stream_spec("XREVRANGE", xrevrange, "5.0.0", Flags::READONLY).at_least(4).keys(KeySpec::RO_ACCESS)
        .docs("key end start [COUNT count]", "Returns the entries between two IDs, the last one first.",
            "O(N) for N entries, and O(log M) for finding the last of M"),
    stream_spec("XREAD", xread, "5.0.0", Flags::READONLY.union(Flags::BLOCKING)).at_least(4).keys(&[behind_streams(1, KeyFlags::RO_ACCESS)])
        .key_rule(KeyRule::ReadStreams)
        .docs("[COUNT count] [MAXCOUNT maxcount] [MAXSIZE maxsize] [BLOCK milliseconds] STREAMS <key [key ...] id [id ...]>",
            "Returns the entries of streams after given IDs, and can wait for them.",
            "O(N) for N entries; with BLOCK whoever adds an entry serves all that wait"),
    stream_spec("XREADGROUP", xreadgroup, "5.0.0", Flags::WRITE_BLOCKING).at_least(7).keys(&[behind_streams(4, KeyFlags::RO_ACCESS_CHANGES)])
        .key_rule(KeyRule::ReadStreams)
        .docs("GROUP <group consumer> [COUNT count] [MAXCOUNT maxcount] [MAXSIZE maxsize] [BLOCK milliseconds] [CLAIM min-idle-time] [NOACK] \
            [DUE sorted-set [UNIT <S | MS>] [FIELD field] ...] [MAXDELIVERIES maxdeliveries DEADLETTER dead-letter] STREAMS <key [key ...] id [id ...]>",
            "Delivers a group's unread entries to a consumer, or shows the consumer its pending entries; can wait.",
            "O(N log M) for N entries and M pending ones"),
];

const UNBALANCED: CommandError = CommandError::Text(
    "ERR Unbalanced XREAD list of streams: for each stream key an ID or '$' must be specified.",
);

/// The error for unequal numbers of keys and IDs. That of newer servers names the command, and the
/// IDs that mean the newest entries.
fn unbalanced(ctx: &Context<'_>, in_group: bool) -> CommandError {
    let dialect = ctx.core.state.config.compatible_with;
    let (command, newest) = match in_group {
        _ if !dialect.is_valkey() && !dialect.is_redis_8() => return UNBALANCED,
        true => ("xreadgroup", " or '>'"),
        false if dialect.is_redis_8() => ("xread", ", '+', or '$'"),
        false => ("xread", " or '$'"),
    };
    CommandError::formatted(format!(
        "ERR Unbalanced '{command}' list of streams: for each stream key an ID{newest} must be specified."
    ))
}
const GROUP_IN_XREAD: CommandError = CommandError::Text(
    "ERR The GROUP option is only supported by XREADGROUP. You called XREAD instead.",
);
const NOACK_IN_XREAD: CommandError = CommandError::Text(
    "ERR The NOACK option is only supported by XREADGROUP. You called XREAD instead.",
);
const CLAIM_IN_XREAD: CommandError = CommandError::Text(
    "ERR The CLAIM option is only supported by XREADGROUP. You called XREAD instead.",
);
const IDLE_NOT_INTEGER: CommandError =
    CommandError::Text("ERR min-idle-time is not an integer or out of range");
const IDLE_NEGATIVE: CommandError =
    CommandError::Text("ERR min-idle-time must be a positive integer");
const MAXCOUNT_NOT_POSITIVE: CommandError =
    CommandError::Text("ERR MAXCOUNT must be a positive integer");
const MAXSIZE_NOT_POSITIVE: CommandError =
    CommandError::Text("ERR MAXSIZE must be a positive integer");
const MAXCOUNT_BELOW_COUNT: CommandError =
    CommandError::Text("ERR MAXCOUNT must be greater than or equal to COUNT");
const NO_GROUP_OPTION: CommandError = CommandError::Text("ERR Missing GROUP option for XREADGROUP");
const LAST_IN_GROUP: CommandError = CommandError::Text(
    "ERR The $ ID is meaningless in the context of XREADGROUP: you want to read the history of \
     this consumer by specifying a proper ID, or use the > ID to get new messages. The $ ID would \
     just return an empty result set.",
);
const TOP_IN_GROUP: CommandError = CommandError::Text(
    "ERR The + ID is meaningless in the context of XREADGROUP: you want to read the history of \
     this consumer by specifying a proper ID, or use the > ID to get new messages. The + ID would \
     just return an empty result set.",
);
const NEW_IN_XREAD: CommandError = CommandError::Text(
    "ERR The > ID can be specified only when calling XREADGROUP using the GROUP <group> \
     <consumer> option.",
);
const STREAM_GONE: CommandError = CommandError::Text("UNBLOCKED the stream key no longer exists");
const GROUP_GONE: CommandError =
    CommandError::Text("NOGROUP the consumer group this client was blocked on no longer exists");

/// The most entries a woken client gets, without COUNT.
const WOKEN_COUNT: usize = 1000;

// ---- ranges -------------------------------------------------------------------------------------

/// `XRANGE key start end [COUNT count]`: an array of entries.
fn xrange(ctx: &mut Context<'_>) -> CommandResult {
    reply_range(ctx, false)
}

/// `XREVRANGE key end start [COUNT count]`: an array of entries.
fn xrevrange(ctx: &mut Context<'_>) -> CommandResult {
    reply_range(ctx, true)
}

fn reply_range(ctx: &mut Context<'_>, backwards: bool) -> CommandResult {
    let (start_at, end_at) = if backwards { (3, 2) } else { (2, 3) };
    let start = parse_bound(ctx.args.get(start_at), Bound::Start)?;
    let end = parse_bound(ctx.args.get(end_at), Bound::End)?;
    let mut count = usize::MAX;
    let mut cursor = ctx.args.cursor(4);
    while !cursor.is_at_end() {
        if cursor.remaining() < 2 || !cursor.take_word("COUNT") {
            return Err(CommandError::Syntax);
        }
        count = usize::try_from(cursor.take_integer()?).unwrap_or(0);
    }
    let Some(slot) = ctx.core.keyspace.find_for_read(ctx.key(1)) else {
        ctx.reply.array(0);
        return Ok(Outcome::Replied);
    };
    let entries = ctx.core.keyspace.stream_at(slot)?.entries();
    if count == 0 {
        ctx.reply.null_array();
        return Ok(Outcome::Replied);
    }
    let list = ctx.reply.defer_array();
    let mut sent = 0;
    let mut send = |entry| {
        reply_entry(&mut ctx.reply, entry);
        sent += 1;
    };
    if backwards {
        entries.backwards(start, end).take(count).for_each(&mut send);
    } else {
        entries.range(start, end).take(count).for_each(&mut send);
    }
    ctx.reply.finish(list, sent);
    Ok(Outcome::Replied)
}

// ---- XREAD and XREADGROUP -----------------------------------------------------------------------

/// Options of XREAD and XREADGROUP.
struct ReadRequest<'a> {
    /// Some: block, until this deadline if there is one.
    block: Option<Option<i64>>,
    /// 0: all.
    count: usize,
    /// The group and the consumer.
    reader: Option<(&'a [u8], &'a [u8])>,
    no_ack: bool,
    /// The least idle time of entries that are claimed first; None: none are.
    claim: Option<i64>,
    /// The most entries of all streams.
    most: usize,
    /// The most bytes of the reply, after which no further entry is added.
    bytes: usize,
    /// The index of the first key.
    keys_at: usize,
    streams: usize,
    jobs: Option<Box<JobOptions<'a>>>,
}

impl<'a> ReadRequest<'a> {
    /// `[GROUP group consumer] [COUNT count] [MAXCOUNT maxcount] [MAXSIZE maxsize] [BLOCK
    /// milliseconds] [CLAIM min-idle-time] [NOACK] [DUE key [UNIT <S | MS>] [FIELD field] ...]
    /// [MAXDELIVERIES maxdeliveries DEADLETTER key] STREAMS key [key ...] id [id ...]`.
    fn parse(ctx: &Context<'a>, in_group: bool) -> Result<Self, CommandError> {
        let mut request = ReadRequest {
            block: None,
            count: 0,
            reader: None,
            no_ack: false,
            claim: None,
            most: usize::MAX,
            bytes: usize::MAX,
            keys_at: 0,
            streams: 0,
            jobs: None,
        };
        let mut cursor = ctx.args.cursor(1);
        while request.keys_at == 0 {
            match ReadOption::take(&mut cursor).ok_or(CommandError::Syntax)? {
                ReadOption::Block => {
                    if ctx.origin == Origin::Script && !ctx.core.state.config.reports_7_2() {
                        let text = b" command is not allowed with BLOCK option from scripts";
                        return Err(CommandError::of_parts(&[b"ERR ", ctx.args.get(0), text]));
                    }
                    request.block =
                        Some(ctx.timeout(cursor.position(), TimeoutUnit::Milliseconds)?);
                    cursor.take()?;
                }
                ReadOption::Count => {
                    request.count = usize::try_from(cursor.take_integer()?).unwrap_or(0);
                }
                ReadOption::Streams => {
                    if !cursor.remaining().is_multiple_of(2) {
                        return Err(unbalanced(ctx, in_group));
                    }
                    request.keys_at = cursor.position();
                    request.streams = cursor.remaining() / 2;
                }
                ReadOption::Group => {
                    if !in_group {
                        return Err(GROUP_IN_XREAD);
                    }
                    request.reader = Some((cursor.take()?, cursor.take()?));
                }
                ReadOption::NoAck => {
                    if !in_group {
                        return Err(NOACK_IN_XREAD);
                    }
                    request.no_ack = true;
                }
                ReadOption::Claim => {
                    if !in_group {
                        return Err(CLAIM_IN_XREAD);
                    }
                    let idle_ms = number::parse_i64(cursor.take()?).ok_or(IDLE_NOT_INTEGER)?;
                    request.claim = Some(idle_ms).filter(|idle_ms| *idle_ms >= 0);
                    request.claim.ok_or(IDLE_NEGATIVE)?;
                }
                ReadOption::MaxCount => {
                    request.most = cursor.take_positive(MAXCOUNT_NOT_POSITIVE)?;
                }
                ReadOption::MaxSize => {
                    request.bytes = cursor.take_positive(MAXSIZE_NOT_POSITIVE)?;
                }
                option if in_group => {
                    request.jobs.get_or_insert_default().take(option, &mut cursor)?;
                }
                _ => return Err(CommandError::Syntax),
            }
        }
        if let Some(mut jobs) = request.jobs.take() {
            let claims = request.claim > Some(0);
            jobs.finish(ctx.args, (request.keys_at, request.streams), claims)?;
            request.jobs = Some(jobs);
        }
        if request.most < request.count {
            return Err(MAXCOUNT_BELOW_COUNT);
        }
        if in_group && request.reader.is_none() {
            return Err(NO_GROUP_OPTION);
        }
        Ok(request)
    }

    /// The streams to read; `parse` makes each from the index of its key.
    fn sources(
        &self,
        parse: impl FnMut(usize) -> Result<Source, CommandError>,
    ) -> Result<SmallVec<[Source; 1]>, CommandError> {
        (self.keys_at..self.keys_at + self.streams).map(parse).collect()
    }

    /// Whether the client waits if it gets nothing, and so continues in the next turn.
    fn may_wait(&self, ctx: &Context<'_>) -> bool {
        let is_alone = matches!(ctx.origin, Origin::Client | Origin::Woken(_));
        self.block.is_some() && is_alone && ctx.caller.client().is_some()
    }

    /// The most entries of a stream in a reply.
    fn limit(&self) -> usize {
        if self.count == 0 { usize::MAX } else { self.count }
    }

    /// What a reply that begins here may hold.
    fn budget(&self, reply: &mut ReplyWriter<'_>) -> Budget {
        Budget { left: self.most, begun: reply.output().len(), bytes: self.bytes, sent: 0 }
    }

    /// As [`Self::limit`], for a woken client.
    fn limit_woken(&self) -> usize {
        if self.count == 0 { WOKEN_COUNT } else { self.count }
    }
}

/// What a reply may hold: MAXCOUNT and MAXSIZE.
struct Budget {
    /// Entries that may still be sent.
    left: usize,
    /// Length of the output where the reply begins.
    begun: usize,
    /// The most bytes of the reply before a further entry.
    bytes: usize,
    sent: usize,
}

impl Budget {
    /// Whether the reply may hold a further entry: one may always be sent.
    #[inline]
    fn has_room(&self, reply: &mut ReplyWriter<'_>) -> bool {
        let is_bounded = self.bytes != usize::MAX && self.sent > 0;
        self.left > 0 && !(is_bounded && reply.output().len() - self.begun >= self.bytes)
    }

    /// Takes the room of an entry.
    #[inline]
    fn spend(&mut self) {
        self.left -= 1;
        self.sent += 1;
    }
}

/// The part of a stream to read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReadFrom {
    /// Entries after an ID; for a consumer, its pending ones.
    Above(StreamId),
    /// Entries that no consumer of the group has read.
    Unread,
}

/// A stream of a request.
struct Source {
    /// The index of its key.
    key_at: usize,
    slot: Option<Slot>,
    wish: ReadFrom,
}

/// `XREAD [COUNT count] [MAXCOUNT maxcount] [MAXSIZE maxsize] [BLOCK milliseconds] STREAMS key [key
/// ...] id [id ...]`: an array of keys with their entries, in RESP3 a map; nil if there are none.
fn xread(ctx: &mut Context<'_>) -> CommandResult {
    let request = ReadRequest::parse(ctx, false)?;
    if let Origin::Woken(key_at) = ctx.origin {
        let after = parse_id(ctx.args.get(key_at + request.streams), 0)?;
        let Some(slot) = ctx.core.keyspace.find_for_read(ctx.key(key_at)) else {
            return Ok(Outcome::WaitsOn);
        };
        if ctx.core.keyspace.stream_at(slot)?.entries().top().is_none_or(|top| top <= after) {
            return Ok(Outcome::WaitsOn);
        }
        let mut budget = request.budget(&mut ctx.reply);
        begin_streams(&mut ctx.reply, 1);
        return send_above(ctx, (key_at, slot), after, request.limit_woken(), &mut budget);
    }
    let sources = request.sources(|key_at| {
        let slot = ctx.core.keyspace.find_for_read(ctx.key(key_at));
        let stream = slot.map(|slot| ctx.core.keyspace.stream_at(slot)).transpose()?;
        let text = ctx.args.get(key_at + request.streams);
        Ok(Source { key_at, slot, wish: ReadFrom::Above(parse_after(text, stream)?) })
    })?;
    let mut budget = request.budget(&mut ctx.reply);
    let list = defer_streams(&mut ctx.reply);
    let mut served = 0;
    for source in &sources {
        let (Some(slot), ReadFrom::Above(after)) = (find_again(ctx, source, &sources), source.wish)
        else {
            continue;
        };
        if ctx.core.keyspace.stream_at(slot)?.entries().top().is_some_and(|top| top > after) {
            if !budget.has_room(&mut ctx.reply) {
                break;
            }
            served += 1;
            send_above(ctx, (source.key_at, slot), after, request.limit(), &mut budget)?;
        }
    }
    if served > 0 {
        ctx.reply.finish(list, served);
        return Ok(Outcome::Replied);
    }
    ctx.reply.rewind(list);
    wait_or_give_up(ctx, &request, &sources, Wanted::Stream)
}

/// The ID after which XREAD reads: `$` is the last generated one, `+` the one before the last
/// entry.
fn parse_after(text: &[u8], stream: Option<&Stream>) -> Result<StreamId, CommandError> {
    let entries = stream.map(|stream| stream.entries());
    match text {
        b"$" => Ok(entries.map_or(StreamId::MIN, |entries| entries.last)),
        b"+" => Ok(entries.map_or(StreamId::MIN, |entries| match entries.top() {
            Some(top) => top.previous().unwrap_or(StreamId::MIN),
            None => entries.last,
        })),
        b">" => Err(NEW_IN_XREAD),
        _ => parse_id(text, 0),
    }
}

/// The slot of a stream that was found before: later look-ups may have deleted an expired key.
fn find_again(ctx: &mut Context<'_>, source: &Source, sources: &[Source]) -> Option<Slot> {
    if sources.len() == 1 {
        return source.slot;
    }
    source.slot?;
    ctx.core.keyspace.find(ctx.key(source.key_at))
}

/// Starts the list of `len` keys with their entries.
fn begin_streams(reply: &mut ReplyWriter<'_>, len: usize) {
    match reply.protocol() {
        Protocol::Resp2 => reply.array(len),
        Protocol::Resp3 => reply.map(len),
    }
}

/// As [`begin_streams`], with an unknown length.
fn defer_streams(reply: &mut ReplyWriter<'_>) -> Deferred {
    match reply.protocol() {
        Protocol::Resp2 => reply.defer_array(),
        Protocol::Resp3 => reply.defer_map(),
    }
}

/// Starts a stream in it: its entries follow.
fn begin_stream(reply: &mut ReplyWriter<'_>, key: &[u8]) {
    if reply.protocol() == Protocol::Resp2 {
        reply.array(2);
    }
    reply.bulk(key);
}

/// Replies a key with its entries after an ID.
fn send_above(
    ctx: &mut Context<'_>,
    (key_at, slot): (usize, Slot),
    after: StreamId,
    limit: usize,
    budget: &mut Budget,
) -> CommandResult {
    begin_stream(&mut ctx.reply, ctx.args.get(key_at));
    let list = ctx.reply.defer_array();
    let mut sent = 0;
    if let Some(start) = after.next() {
        let entries = ctx.core.keyspace.stream_at(slot)?.entries();
        for entry in entries.range(start, StreamId::MAX).take(limit) {
            if sent > 0 && !budget.has_room(&mut ctx.reply) {
                break;
            }
            budget.spend();
            reply_entry(&mut ctx.reply, entry);
            sent += 1;
        }
    }
    ctx.reply.finish(list, sent);
    Ok(Outcome::Replied)
}

/// Without entries: blocks, or replies nil.
fn wait_or_give_up(
    ctx: &mut Context<'_>,
    request: &ReadRequest<'_>,
    sources: &[Source],
    wanted: Wanted,
) -> CommandResult {
    let Some(deadline_us) = request.block else {
        ctx.reply.null_array();
        return Ok(Outcome::Replied);
    };
    let mut rewritten: Vec<Cow<'_, [u8]>> = ctx.args.iter_from(0).map(Cow::from).collect();
    for source in sources {
        if let ReadFrom::Above(after) = source.wish {
            rewritten[source.key_at + request.streams] = after.text().as_ref().to_vec().into();
        }
    }
    let keys = request.keys_at..request.keys_at + request.streams;
    let due = request.jobs.iter().flat_map(|jobs| &jobs.due);
    let others = due.map(|due| due.key_at).collect();
    let rewritten = Some(OwnedRequest::new(rewritten.iter().map(|argument| &**argument)));
    let wait = WaitForKeys::new(wanted, keys, deadline_us);
    ctx.block(WaitForKeys { rewritten, others, ..wait })
}

/// `XREADGROUP GROUP group consumer [COUNT count] [MAXCOUNT maxcount] [MAXSIZE maxsize] [BLOCK
/// milliseconds] [CLAIM min-idle-time] [NOACK] [DUE key [UNIT <S | MS>] [FIELD field] ...]
/// [MAXDELIVERIES maxdeliveries DEADLETTER key] STREAMS key [key ...] id [id ...]`: as `XREAD`; for
/// a pending entry that was deleted, the ID and nil. With CLAIM each entry also has the
/// milliseconds that it was idle and the number of its deliveries.
fn xreadgroup(ctx: &mut Context<'_>) -> CommandResult {
    let request = ReadRequest::parse(ctx, true)?;
    let Some((group, consumer)) = request.reader else { return Err(NO_GROUP_OPTION) };
    check_reader(consumer, ctx.is_repeated())?;
    if let Origin::Woken(key_at) = ctx.origin {
        return read_woken(ctx, &request, group, key_at);
    }
    let sources = request.sources(|key_at| {
        let slot = ctx.core.keyspace.find_for_read(ctx.key(key_at));
        let stream = slot.map(|slot| ctx.core.keyspace.stream_at(slot)).transpose()?;
        if !stream.is_some_and(|stream| stream.groups.contains_key(group)) {
            return Err(no_such_group(ctx.args.get(key_at), group));
        }
        let wish = match ctx.args.get(key_at + request.streams) {
            b"$" => return Err(LAST_IN_GROUP),
            b"+" => return Err(TOP_IN_GROUP),
            b">" => ReadFrom::Unread,
            text => match parse_id(text, 0)? {
                StreamId::MAX => ReadFrom::Unread,
                id => ReadFrom::Above(id),
            },
        };
        Ok(Source { key_at, slot, wish })
    })?;
    if let Some(jobs) = &request.jobs {
        jobs.check(ctx)?;
    }
    let mut budget = request.budget(&mut ctx.reply);
    let list = defer_streams(&mut ctx.reply);
    let (mut served, mut failed) = (0, None);
    for (index, source) in sources.iter().enumerate() {
        let claims = match &request.jobs {
            None => None,
            Some(jobs) if budget.has_room(&mut ctx.reply) => {
                let most = request.limit().min(budget.left);
                match jobs.prepare(ctx, (group, request.claim), (index, source.key_at), most) {
                    Ok(claims) => claims,
                    Err(error) => {
                        // Entries of an earlier stream are delivered: their reply is not lost.
                        failed = Some(error);
                        break;
                    }
                }
            }
            Some(_) => None,
        };
        let again = match request.jobs {
            None => find_again(ctx, source, &sources),
            Some(_) => ctx.core.keyspace.find(ctx.key(source.key_at)),
        };
        let Some(slot) = again else { continue };
        let mut serving = Serving { slot, limit: request.limit(), budget: &mut budget, claims };
        served += usize::from(serve_group(ctx, &request, source, &mut serving)?);
    }
    if served > 0 {
        ctx.reply.finish(list, served);
        return Ok(Outcome::Replied);
    }
    ctx.reply.rewind(list);
    if let Some(error) = failed {
        return Err(error);
    }
    let may_come_by_time = request.claim.is_some() || request.jobs.is_some();
    let wanted = if may_come_by_time { Wanted::StreamClaim } else { Wanted::StreamGroup };
    wait_or_give_up(ctx, &request, &sources, wanted)
}

fn no_such_group(key: &[u8], group: &[u8]) -> CommandError {
    no_key_or_group(key, group, " in XREADGROUP with GROUP option")
}

/// Serves a consumer that was woken because one of its keys has changed, or because of the time.
/// Possibly the stream or group was deleted.
fn read_woken(
    ctx: &mut Context<'_>,
    request: &ReadRequest<'_>,
    group: &[u8],
    woken_by: usize,
) -> CommandResult {
    // The i-th sorted set belongs to the i-th stream.
    let due = request.jobs.iter().flat_map(|jobs| &jobs.due);
    let index = due.map(|due| due.key_at).position(|at| at == woken_by);
    let key_at = index.map_or(woken_by, |index| request.keys_at + index);
    let index = key_at - request.keys_at;
    // Since 7.2 the command runs again as a whole, and its errors are those of a new one.
    let is_7_2 = ctx.core.state.config.reports_7_2();
    let key = ctx.args.get(key_at);
    let gone = |older| if is_7_2 { no_such_group(key, group) } else { older };
    let slot = ctx.core.keyspace.find_for_read(ctx.key(key_at)).ok_or_else(|| gone(STREAM_GONE))?;
    let stream = ctx.core.keyspace.stream_at(slot);
    let stream = stream.map_err(|error| if is_7_2 { error } else { STREAM_GONE })?;
    if !stream.groups.contains_key(group) {
        return Err(gone(GROUP_GONE));
    }
    let mut budget = request.budget(&mut ctx.reply);
    let most = request.limit_woken().min(budget.left);
    let (mut slot, mut claims) = (slot, None);
    if let Some(jobs) = &request.jobs {
        claims = jobs.prepare(ctx, (group, request.claim), (index, key_at), most)?;
        slot = ctx.core.keyspace.find(ctx.key(key_at)).ok_or_else(|| gone(STREAM_GONE))?;
    }
    let now_ms = ctx.core.keyspace.lease_ms();
    let stream = ctx.core.keyspace.stream_at(slot)?;
    let there = stream.groups.get(group).filter(|there| !there.is_paused());
    if request.claim.is_some() && there.is_some_and(|there| there.may_have_future(now_ms)) {
        let (_, groups) = ctx.core.keyspace.groups_mut(slot)?;
        groups.get_mut(group).into_iter().for_each(|there| drop(there.settle_future(now_ms)));
    }
    let stream = ctx.core.keyspace.stream_at(slot)?;
    let Some(there) = stream.groups.get(group) else { return Err(gone(GROUP_GONE)) };
    let is_unread = stream.entries().top().is_some_and(|top| top > there.last);
    let is_paused = there.is_paused();
    let may_claim = |idle_ms| there.next_claim_ms(idle_ms).is_some_and(|ms| ms <= now_ms);
    if claims.is_none()
        && !is_paused
        && let Some(idle_ms) = request.claim.filter(|idle_ms| may_claim(*idle_ms))
    {
        let (entries, groups) = ctx.core.keyspace.groups_mut(slot)?;
        let there = groups.get_mut(group);
        let times = (now_ms, idle_ms);
        claims = there.map(|group| claimable(group, entries, times, (most, PASSED_MAX)));
    }
    let is_claimed = claims.as_ref().is_some_and(|claims| !claims.is_empty());
    if is_paused || !is_unread && !is_claimed {
        return Ok(Outcome::WaitsOn);
    }
    begin_streams(&mut ctx.reply, 1);
    let source = Source { key_at, slot: Some(slot), wish: ReadFrom::Unread };
    let limit = request.limit_woken();
    let mut serving = Serving { slot, limit, budget: &mut budget, claims };
    serve_group(ctx, request, &source, &mut serving)?;
    Ok(Outcome::Replied)
}

/// A stream that is read for a consumer, and how much of it.
struct Serving<'a> {
    slot: Slot,
    limit: usize,
    budget: &'a mut Budget,
    /// The entries to claim; None: to be found.
    claims: Option<Vec<StreamId>>,
}

/// Replies with a key and the entries that a consumer requests. False if there is nothing; a list
/// of pending entries is replied even if empty.
fn serve_group(
    ctx: &mut Context<'_>,
    request: &ReadRequest<'_>,
    source: &Source,
    serving: &mut Serving<'_>,
) -> Result<bool, CommandError> {
    let Some((group, name)) = request.reader else { return Ok(false) };
    let (now_ms, unix_ms) = (ctx.core.keyspace.lease_ms(), ctx.core.state.now.unix().0);
    let is_always_seen = ctx.core.state.config.reports_7_2();
    let counting = counting(ctx);
    let key = ctx.key(source.key_at);
    let passed_max = if request.may_wait(ctx) { PASSED_MAX } else { usize::MAX };
    let mut claims = Claims::new(ctx, key.bytes, group);
    let (entries, groups) = ctx.core.keyspace.groups_mut(serving.slot)?;
    let Some(group) = groups.get_mut(group) else { return Ok(false) };
    let has_room = serving.budget.has_room(&mut ctx.reply);
    let start = match source.wish {
        _ if !has_room => None,
        ReadFrom::Above(id) => id.next(),
        ReadFrom::Unread if group.is_paused() => None,
        ReadFrom::Unread if entries.top().is_some_and(|top| top > group.last) => group.last.next(),
        ReadFrom::Unread => None,
    };
    let idle_ms = request.claim.filter(|_| source.wish == ReadFrom::Unread);
    let most = serving.limit.min(serving.budget.left);
    let claimed = match (idle_ms, serving.claims.take()) {
        (Some(_), Some(claims)) => claims,
        (Some(idle_ms), None) if has_room && !group.is_paused() => {
            claimable(group, entries, (now_ms, idle_ms), (most, passed_max))
        }
        _ => Vec::new(),
    };
    let is_served = start.is_some() || !claimed.is_empty();
    if !is_served && !is_always_seen {
        return Ok(false);
    }
    let last_seen = claims.last_seen(group, name);
    let (consumer, is_new) = group.meet_consumer(name, unix_ms);
    let mut changes = u64::from(is_served);
    let mut has_read = false;
    if is_served {
        begin_stream(&mut ctx.reply, key.bytes);
        let list = ctx.reply.defer_array();
        let (acknowledges, is_wide) = (request.no_ack, idle_ms.is_some());
        let mut reader = Reader {
            consumer,
            now_ms,
            unix_ms,
            limit: serving.limit,
            acknowledges,
            is_wide,
            counting,
            budget: serving.budget,
            has_sent: false,
        };
        let mut redelivered = 0;
        let mut sent = 0;
        if !claimed.is_empty() {
            let last = group.last;
            let mut assign = |id, pending| claims.assigned(name, id, pending, last);
            sent = reader.claim(&mut ctx.reply, entries, group, &claimed, &mut assign);
            reader.limit -= sent;
        }
        sent += match (source.wish, start) {
            (_, None) => 0,
            (ReadFrom::Unread, Some(start)) => {
                let mut assign = |id, pending| claims.assigned(name, id, pending, id);
                let read = reader.read_new(&mut ctx.reply, entries, group, start, &mut assign);
                has_read = read > 0;
                read
            }
            (ReadFrom::Above(_), Some(start)) => {
                let last = group.last;
                let mut assign = |id, pending| {
                    redelivered += 1;
                    claims.redelivered(name, id, pending, last);
                };
                reader.read_pending(&mut ctx.reply, entries, group, start, &mut assign)
            }
        };
        ctx.reply.finish(list, sent);
        if matches!(source.wish, ReadFrom::Above(_)) {
            // Deleted entries are shown, but not changed.
            changes = redelivered;
        }
    }
    if changes == 0 || (request.no_ack && claimed.is_empty()) {
        match is_new {
            true => claims.created(name),
            false => claims.seen(name, last_seen, unix_ms),
        }
    }
    if has_read {
        claims.read(group.last, group.read);
    }
    if is_new {
        announce(ctx, "xgroup-createconsumer", key);
    }
    ctx.core.keyspace.changed_aside(key.bytes, changes);
    ctx.core.keyspace.pending_changed(key.bytes);
    claims.repeat(ctx, is_new || changes > 0);
    Ok(is_served)
}

/// The group's pending entries that may be claimed, in their order: at most `limit`. Entries that
/// were deleted are left out, and are not met again; it ends after `passed_max` of these.
fn claimable(
    group: &mut Group,
    entries: &Entries,
    (now_ms, idle_ms): (i64, i64),
    (limit, passed_max): (usize, usize),
) -> Vec<StreamId> {
    group.settle_future(now_ms);
    let (mut claims, mut gone) = (Vec::new(), Vec::new());
    for (id, _) in group.claimable(now_ms, now_ms.saturating_sub(idle_ms)) {
        if claims.len() == limit || gone.len() == passed_max {
            break;
        }
        if entries.contains(id) { claims.push(id) } else { gone.push(id) }
    }
    gone.into_iter().for_each(|id| group.pass_over(id));
    claims
}

/// A consumer that reads.
struct Reader<'a> {
    consumer: ConsumerId,
    /// As leases count, and Unix milliseconds.
    now_ms: i64,
    unix_ms: i64,
    limit: usize,
    /// Entries do not become pending (NOACK).
    acknowledges: bool,
    /// Entries are shown with idle time and deliveries.
    is_wide: bool,
    counting: Counting,
    budget: &'a mut Budget,
    has_sent: bool,
}

impl Reader<'_> {
    /// Takes the room of an entry. False: there is none. There was for the first one, when the
    /// stream was begun.
    #[inline]
    fn take_room(&mut self, reply: &mut ReplyWriter<'_>) -> bool {
        let has_room = !self.has_sent || self.budget.has_room(reply);
        if has_room {
            self.budget.spend();
            self.has_sent = true;
        }
        has_room
    }

    /// Replies pending entries, whoever has them, and takes them; returns their number.
    fn claim(
        &mut self,
        reply: &mut ReplyWriter<'_>,
        entries: &Entries,
        group: &mut Group,
        ids: &[StreamId],
        assigned: &mut dyn FnMut(StreamId, Pending),
    ) -> usize {
        let mut sent = 0;
        for &id in ids {
            let (Some(before), Some(entry)) = (group.pending().get(&id).copied(), entries.get(id))
            else {
                continue;
            };
            if !self.take_room(reply) {
                break;
            }
            let idle_ms = match group.is_released(before.consumer) {
                true => NOT_IDLE,
                false => self.now_ms.saturating_sub(before.delivered_ms).max(0),
            };
            reply.array(4);
            reply_parts(reply, entry);
            reply.integer(idle_ms);
            reply.integer(before.deliveries);
            let Reader { consumer, now_ms: delivered_ms, .. } = *self;
            let deliveries = before.deliveries.saturating_add(1);
            let pending = Pending { consumer, delivered_ms, deliveries };
            group.assign(id, pending);
            assigned(id, pending);
            sent += 1;
        }
        if sent > 0 {
            group.consumer_mut(self.consumer).active_ms = Some(self.unix_ms);
        }
        sent
    }

    /// Replies entries from an ID on and advances the group; returns their number.
    fn read_new(
        &mut self,
        reply: &mut ReplyWriter<'_>,
        entries: &Entries,
        group: &mut Group,
        start: StreamId,
        assigned: &mut dyn FnMut(StreamId, Pending),
    ) -> usize {
        let mut sent = 0;
        for entry in entries.range(start, StreamId::MAX).take(self.limit) {
            if !self.take_room(reply) {
                break;
            }
            let id = entry.id;
            if id > group.last {
                group.read = entries.read_after(id, group.last, group.read, self.counting);
                group.last = id;
            }
            if self.is_wide {
                reply.array(4);
                reply_parts(reply, entry);
                reply.integer(0);
                reply.integer(0);
            } else {
                reply_entry(reply, entry);
            }
            if !self.acknowledges {
                let Reader { consumer, now_ms: delivered_ms, .. } = *self;
                let pending = Pending { consumer, delivered_ms, deliveries: 1 };
                group.assign(id, pending);
                assigned(id, pending);
            }
            sent += 1;
        }
        if sent > 0 && !self.acknowledges {
            group.consumer_mut(self.consumer).active_ms = Some(self.unix_ms);
        }
        sent
    }

    /// Replies the consumer's pending entries from an ID on and counts the delivery; returns their
    /// number.
    fn read_pending(
        &mut self,
        reply: &mut ReplyWriter<'_>,
        entries: &Entries,
        group: &mut Group,
        start: StreamId,
        redelivered: &mut dyn FnMut(StreamId, Pending),
    ) -> usize {
        let pending = group.consumer(self.consumer).pending().from(&start);
        let most = self.limit.min(self.budget.left);
        let ids: Vec<StreamId> = pending.take(most).map(|(id, ())| *id).collect();
        let mut sent = 0;
        for id in &ids {
            if !self.take_room(reply) {
                break;
            }
            sent += 1;
            match entries.get(*id) {
                Some(entry) => {
                    reply_entry(reply, entry);
                    if let Some(pending) = group.redeliver(*id, self.now_ms) {
                        redelivered(*id, pending);
                    }
                }
                None => {
                    reply.array(2);
                    reply_id(reply, *id);
                    reply.null_array();
                }
            }
        }
        sent
    }
}
