//! Reading streams: ranges, and entries after an ID, alone or as a group's consumer; possibly
//! blocking.
//!
//! A blocked request is kept with `$` and `+` resolved: `$` is the last ID at the time of the
//! request. A blocked consumer always waits for entries that its group has not read.

use super::group::no_key_or_group;
use crate::command::stream::claims::Claims;
use crate::command::stream::{
    Bound, announce, counting, parse_bound, parse_id, reply_entry, reply_id, stream_spec,
};
use crate::gate::blocking::TimeoutUnit;
use crate::gate::keys::ReadOption;
use crate::state::context::{CommandResult, Context, Origin, Outcome, Wait};
use crate::state::spec::{Begin, CommandSpec, Find, Flags, KeyFlags, KeyRule, KeySpec};
use smallvec::SmallVec;

use crate::collections::table::Slot;
use crate::error::CommandError;
use crate::keyspace::waiting::Wanted;
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

pub const COMMANDS: &[CommandSpec] = &[
    stream_spec("XRANGE", xrange, "5.0.0", Flags::READONLY)
        .at_least(4)
        .keys(KeySpec::RO_ACCESS)
        .docs(
            "key start end [COUNT count]",
            "Returns the entries between two IDs.",
            "O(N) for N entries, and O(log M) for finding the first of M",
        ),
    stream_spec("XREVRANGE", xrevrange, "5.0.0", Flags::READONLY)
        .at_least(4)
        .keys(KeySpec::RO_ACCESS)
        .docs(
            "key end start [COUNT count]",
            "Returns the entries between two IDs, the last one first.",
            "O(N) for N entries, and O(log M) for finding the last of M",
        ),
    stream_spec("XREAD", xread, "5.0.0", Flags::READONLY.union(Flags::BLOCKING))
        .at_least(4)
        .keys(&[behind_streams(1, KeyFlags::RO_ACCESS)])
        .key_rule(KeyRule::ReadStreams)
        .docs(
            "[COUNT count] [BLOCK milliseconds] STREAMS <key [key ...] id [id ...]>",
            "Returns the entries of streams after given IDs, and can wait for them.",
            "O(N) for N entries; with BLOCK whoever adds an entry serves all that wait",
        ),
    stream_spec("XREADGROUP", xreadgroup, "5.0.0", Flags::WRITE_BLOCKING)
        .at_least(7)
        .keys(&[behind_streams(4, KeyFlags::RO_ACCESS_CHANGES)])
        .key_rule(KeyRule::ReadStreams)
        .docs(
            "GROUP <group consumer> [COUNT count] [BLOCK milliseconds] [NOACK] \
             STREAMS <key [key ...] id [id ...]>",
            "Delivers a group's unread entries to a consumer, or shows the consumer its pending entries; can wait.",
            "O(N log M) for N entries and M pending ones",
        ),
];

const UNBALANCED: CommandError = CommandError::Text(
    "ERR Unbalanced XREAD list of streams: for each stream key an ID or '$' must be specified.",
);

/// The error for unequal numbers of keys and IDs. Valkey's names the command, and the ID that means
/// the newest entries.
fn unbalanced(ctx: &Context<'_>, in_group: bool) -> CommandError {
    if !ctx.core.state.config.compatible_with.is_valkey() {
        return UNBALANCED;
    }
    let (command, newest) = if in_group { ("xreadgroup", '>') } else { ("xread", '$') };
    CommandError::formatted(format!(
        "ERR Unbalanced '{command}' list of streams: for each stream key an ID or '{newest}' must be specified."
    ))
}
const GROUP_IN_XREAD: CommandError = CommandError::Text(
    "ERR The GROUP option is only supported by XREADGROUP. You called XREAD instead.",
);
const NOACK_IN_XREAD: CommandError = CommandError::Text(
    "ERR The NOACK option is only supported by XREADGROUP. You called XREAD instead.",
);
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
    /// The index of the first key.
    keys_at: usize,
    streams: usize,
}

impl<'a> ReadRequest<'a> {
    /// `[GROUP group consumer] [COUNT count] [BLOCK milliseconds] [NOACK] STREAMS key [key ...] id
    /// [id ...]`.
    fn parse(ctx: &Context<'a>, in_group: bool) -> Result<Self, CommandError> {
        let mut request = ReadRequest {
            block: None,
            count: 0,
            reader: None,
            no_ack: false,
            keys_at: 0,
            streams: 0,
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
            }
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

    /// The most entries of a stream in a reply.
    fn limit(&self) -> usize {
        if self.count == 0 { usize::MAX } else { self.count }
    }

    /// As [`Self::limit`], for a woken client.
    fn limit_woken(&self) -> usize {
        if self.count == 0 { WOKEN_COUNT } else { self.count }
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

/// `XREAD [COUNT count] [BLOCK milliseconds] STREAMS key [key ...] id [id ...]`: an array of keys
/// with their entries, in RESP3 a map; nil if there are none.
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
        begin_streams(&mut ctx.reply, 1);
        return send_above(ctx, key_at, slot, after, request.limit_woken());
    }
    let sources = request.sources(|key_at| {
        let slot = ctx.core.keyspace.find_for_read(ctx.key(key_at));
        let stream = slot.map(|slot| ctx.core.keyspace.stream_at(slot)).transpose()?;
        let text = ctx.args.get(key_at + request.streams);
        Ok(Source { key_at, slot, wish: ReadFrom::Above(parse_after(text, stream)?) })
    })?;
    let list = defer_streams(&mut ctx.reply);
    let mut served = 0;
    for source in &sources {
        let (Some(slot), ReadFrom::Above(after)) = (find_again(ctx, source, &sources), source.wish)
        else {
            continue;
        };
        if ctx.core.keyspace.stream_at(slot)?.entries().top().is_some_and(|top| top > after) {
            served += 1;
            send_above(ctx, source.key_at, slot, after, request.limit())?;
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
    key_at: usize,
    slot: Slot,
    after: StreamId,
    limit: usize,
) -> CommandResult {
    begin_stream(&mut ctx.reply, ctx.args.get(key_at));
    let list = ctx.reply.defer_array();
    let mut sent = 0;
    if let Some(start) = after.next() {
        let entries = ctx.core.keyspace.stream_at(slot)?.entries();
        for entry in entries.range(start, StreamId::MAX).take(limit) {
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
    let mut rewritten: Vec<Vec<u8>> = ctx.args.iter_from(0).map(<[u8]>::to_vec).collect();
    for source in sources {
        if let ReadFrom::Above(after) = source.wish {
            rewritten[source.key_at + request.streams] = after.text().as_ref().to_vec();
        }
    }
    let keys = request.keys_at..request.keys_at + request.streams;
    ctx.block(Wait { rewritten: Some(rewritten), ..Wait::new(wanted, keys, deadline_us) })
}

/// `XREADGROUP GROUP group consumer [COUNT count] [BLOCK milliseconds] [NOACK] STREAMS key [key
/// ...] id [id ...]`: as `XREAD`; for a pending entry that was deleted, the ID and nil.
fn xreadgroup(ctx: &mut Context<'_>) -> CommandResult {
    let request = ReadRequest::parse(ctx, true)?;
    let Some((group, _)) = request.reader else { return Err(NO_GROUP_OPTION) };
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
    let list = defer_streams(&mut ctx.reply);
    let mut served = 0;
    for source in &sources {
        let Some(slot) = find_again(ctx, source, &sources) else { continue };
        served += usize::from(serve_group(ctx, &request, slot, source, request.limit())?);
    }
    if served > 0 {
        ctx.reply.finish(list, served);
        return Ok(Outcome::Replied);
    }
    ctx.reply.rewind(list);
    wait_or_give_up(ctx, &request, &sources, Wanted::StreamGroup)
}

fn no_such_group(key: &[u8], group: &[u8]) -> CommandError {
    no_key_or_group(key, group, " in XREADGROUP with GROUP option")
}

/// Serves a consumer that was woken because its key has changed: possibly the stream or group was
/// deleted.
fn read_woken(
    ctx: &mut Context<'_>,
    request: &ReadRequest<'_>,
    group: &[u8],
    key_at: usize,
) -> CommandResult {
    // Since 7.2 the command runs again as a whole, and its errors are those of a new one.
    let is_7_2 = ctx.core.state.config.reports_7_2();
    let gone = |older| if is_7_2 { no_such_group(ctx.args.get(key_at), group) } else { older };
    let slot = ctx.core.keyspace.find_for_read(ctx.key(key_at)).ok_or_else(|| gone(STREAM_GONE))?;
    let stream = ctx.core.keyspace.stream_at(slot);
    let stream = stream.map_err(|error| if is_7_2 { error } else { STREAM_GONE })?;
    let group = stream.groups.get(group).ok_or_else(|| gone(GROUP_GONE))?;
    if stream.entries().top().is_none_or(|top| top <= group.last) {
        return Ok(Outcome::WaitsOn);
    }
    begin_streams(&mut ctx.reply, 1);
    let source = Source { key_at, slot: Some(slot), wish: ReadFrom::Unread };
    serve_group(ctx, request, slot, &source, request.limit_woken())?;
    Ok(Outcome::Replied)
}

/// Replies with a key and the entries that a consumer requests. False if there is nothing; a list
/// of pending entries is replied even if empty.
fn serve_group(
    ctx: &mut Context<'_>,
    request: &ReadRequest<'_>,
    slot: Slot,
    source: &Source,
    limit: usize,
) -> Result<bool, CommandError> {
    let Some((group, name)) = request.reader else { return Ok(false) };
    let now_ms = ctx.core.state.now.unix().0;
    let is_always_seen = ctx.core.state.config.reports_7_2();
    let counting = counting(ctx);
    let key = ctx.key(source.key_at);
    let mut claims = Claims::new(ctx, key.bytes, group);
    let (entries, groups) = ctx.core.keyspace.groups_mut(slot)?;
    let Some(group) = groups.get_mut(group) else { return Ok(false) };
    let start = match source.wish {
        ReadFrom::Above(id) => id.next(),
        ReadFrom::Unread if entries.top().is_some_and(|top| top > group.last) => group.last.next(),
        ReadFrom::Unread => None,
    };
    if start.is_none() && !is_always_seen {
        return Ok(false);
    }
    let last_seen = claims.last_seen(group, name);
    let (consumer, is_new) = group.meet_consumer(name, now_ms);
    let mut changes = u64::from(start.is_some());
    if let Some(start) = start {
        begin_stream(&mut ctx.reply, key.bytes);
        let list = ctx.reply.defer_array();
        let acknowledges = request.no_ack;
        let reader = Reader { consumer, now_ms, limit, acknowledges, counting };
        let mut redelivered = 0;
        let sent = match source.wish {
            ReadFrom::Unread => {
                let mut assign = |id, pending| claims.assigned(name, id, pending, id);
                reader.read_new(&mut ctx.reply, entries, group, start, &mut assign)
            }
            ReadFrom::Above(_) => {
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
    if changes == 0 || request.no_ack {
        match is_new {
            true => claims.created(name),
            false => claims.seen(name, last_seen, now_ms),
        }
    }
    if changes > 0 && source.wish == ReadFrom::Unread {
        claims.read(group.last, group.read);
    }
    if is_new {
        announce(ctx, "xgroup-createconsumer", key);
    }
    ctx.core.keyspace.changed_aside(changes);
    claims.repeat(ctx, is_new || changes > 0);
    Ok(start.is_some())
}

/// A consumer that reads.
struct Reader {
    consumer: ConsumerId,
    now_ms: i64,
    limit: usize,
    /// Entries do not become pending (NOACK).
    acknowledges: bool,
    counting: Counting,
}

impl Reader {
    /// Replies entries from an ID on and advances the group; returns their number.
    fn read_new(
        &self,
        reply: &mut ReplyWriter<'_>,
        entries: &Entries,
        group: &mut Group,
        start: StreamId,
        assigned: &mut dyn FnMut(StreamId, Pending),
    ) -> usize {
        let mut sent = 0;
        for entry in entries.range(start, StreamId::MAX).take(self.limit) {
            let id = entry.id;
            if id > group.last {
                group.read = entries.read_after(id, group.last, group.read, self.counting);
                group.last = id;
            }
            reply_entry(reply, entry);
            if !self.acknowledges {
                let Reader { consumer, now_ms: delivered_ms, .. } = *self;
                let pending = Pending { consumer, delivered_ms, deliveries: 1 };
                group.assign(id, pending);
                assigned(id, pending);
            }
            sent += 1;
        }
        if sent > 0 && !self.acknowledges {
            group.consumer_mut(self.consumer).active_ms = Some(self.now_ms);
        }
        sent
    }

    /// Replies the consumer's pending entries from an ID on and counts the delivery; returns their
    /// number.
    fn read_pending(
        &self,
        reply: &mut ReplyWriter<'_>,
        entries: &Entries,
        group: &mut Group,
        start: StreamId,
        redelivered: &mut dyn FnMut(StreamId, Pending),
    ) -> usize {
        let pending = group.consumer(self.consumer).pending().from(&start);
        let ids: Vec<StreamId> = pending.take(self.limit).map(|(id, ())| *id).collect();
        for id in &ids {
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
        ids.len()
    }
}
