//! XINFO: a stream's properties, and those of its groups and consumers.

use crate::collections::table::Slot;
use crate::command::help::reply_help;
use crate::command::stream::group::no_group;
use crate::command::stream::idempotent::limits;
use crate::command::stream::{counting, reply_entry, reply_id, stream_spec};
use crate::error::CommandError;
use crate::resp::reply::ReplyWriter;
use crate::state::context::{CommandResult, Context, Outcome};
use crate::state::spec::{Categories, CommandSpec, Flags, Group as CommandGroup, KeyFlags};
use crate::state::spec::{container, key, spec};
use crate::types::stream::{
    Consumer, Counting, Entries, Group, Producers, Stream, StreamId, shifted,
};

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    container("XINFO", SUBCOMMANDS).group(CommandGroup::Stream).since("5.0.0")
        .docs("", "Commands that inspect streams.", "Depends on the subcommand."),
];

#[rustfmt::skip]
const SUBCOMMANDS: &[CommandSpec] = &[
    stream_spec("CONSUMERS", consumers, "5.0.0", Flags::READONLY).exactly(4).keys(const { &[key(2, KeyFlags::RO_ACCESS)] }).tips(&["nondeterministic_output"])
        .docs("key group", "Describes the consumers of a group.", "O(N) for N consumers"),
    stream_spec("GROUPS", groups, "5.0.0", Flags::READONLY).exactly(3).keys(const { &[key(2, KeyFlags::RO_ACCESS)] })
        .docs("key", "Describes the groups of a stream.", "O(N) for N groups"),
    stream_spec("STREAM", stream, "5.0.0", Flags::READONLY).at_least(3).keys(const { &[key(2, KeyFlags::RO_ACCESS)] })
        .docs("key [FULL [COUNT count]]", "Describes a stream; with FULL, its entries and groups too.",
            "O(N) for N nodes, and for the entries that are returned"),
    spec("HELP", help).exactly(2).group(CommandGroup::Stream).since("5.0.0").flags(Flags::LOADING_STALE).categories(Categories::STREAM)
        .docs("", "Lists the subcommands.", "O(1)"),
];

/// Default number of entries and pending entries in a full reply.
const FULL_COUNT: usize = 10;

/// The slot of the stream in argument 2.
fn find(ctx: &mut Context<'_>) -> Result<Slot, CommandError> {
    let slot = ctx.core.keyspace.find_for_read(ctx.key(2)).ok_or(CommandError::NoSuchKey)?;
    ctx.core.keyspace.stream_at(slot)?;
    Ok(slot)
}

fn named_id(reply: &mut ReplyWriter<'_>, name: &str, id: StreamId) {
    reply.bulk(name.as_bytes());
    reply_id(reply, id);
}

fn named_integer(reply: &mut ReplyWriter<'_>, name: &str, value: i64) {
    reply.bulk(name.as_bytes());
    reply.integer(value);
}

/// An integer, or nil if unknown.
fn named_guess(reply: &mut ReplyWriter<'_>, name: &str, value: Option<i64>) {
    reply.bulk(name.as_bytes());
    match value {
        Some(value) => reply.integer(value),
        None => reply.null(),
    }
}

/// `XINFO STREAM key [FULL [COUNT count]]`: a map.
fn stream(ctx: &mut Context<'_>) -> CommandResult {
    let slot = find(ctx)?;
    let counting = counting(ctx);
    let has_active_time = ctx.core.state.config.reports_7_2();
    let mut cursor = ctx.args.cursor(3);
    let mut full = None;
    if !cursor.is_at_end() {
        let is_form = matches!(ctx.args.len(), 4 | 6) && cursor.take_word("FULL");
        if !is_form || !(cursor.is_at_end() || cursor.take_word("COUNT")) {
            return Err(ctx.wrong_subcommand());
        }
        full = Some(FULL_COUNT);
        if !cursor.is_at_end() {
            full = Some(match cursor.take_integer()? {
                0 => usize::MAX,
                count => usize::try_from(count).unwrap_or(FULL_COUNT),
            });
        }
    }
    let has_producers = ctx.core.state.config.compatible_with.is_redis_8();
    let (limits, now_ms) = (limits(ctx), ctx.core.state.now.unix().0.max(0) as u64);
    let shift_ms = ctx.core.keyspace.lease_shift_ms();
    let stream = ctx.core.keyspace.stream_at(slot)?;
    let reply = &mut ctx.reply;
    let more = if has_producers { PRODUCER_FIELDS } else { 0 };
    reply.map(more + if full.is_some() { 9 } else { 10 });
    reply_entries(reply, stream.entries());
    if has_producers {
        match &stream.producers {
            Some(producers) => reply_producers(reply, producers, now_ms),
            None => reply_producers(reply, &Producers::new(limits), now_ms),
        }
    }
    match full {
        None => reply_ends(reply, stream),
        Some(count) => {
            FullReply { count, has_active_time, counting, shift_ms }.write(reply, stream);
        }
    }
    Ok(Outcome::Replied)
}

/// The fields of both forms.
fn reply_entries(reply: &mut ReplyWriter<'_>, entries: &Entries) {
    named_integer(reply, "length", entries.len() as i64);
    named_integer(reply, "radix-tree-keys", entries.nodes() as i64);
    named_integer(reply, "radix-tree-nodes", entries.radix_tree_nodes() as i64);
    named_id(reply, "last-generated-id", entries.last);
    named_id(reply, "max-deleted-entry-id", entries.max_deleted);
    named_integer(reply, "entries-added", entries.added);
    named_id(reply, "recorded-first-entry-id", entries.first());
}

/// Fields that [`reply_producers`] replies.
const PRODUCER_FIELDS: usize = 6;

/// What the stream remembers of its producers, as Redis 8.6 shows it.
fn reply_producers(reply: &mut ReplyWriter<'_>, producers: &Producers, now_ms: u64) {
    let (mut count, mut names) = (0, 0);
    for (_, live) in producers.live(now_ms) {
        count += 1;
        names += live.count() as i64;
    }
    named_integer(reply, "idmp-duration", producers.limits.duration.into());
    named_integer(reply, "idmp-maxsize", producers.limits.names.into());
    named_integer(reply, "pids-tracked", count);
    named_integer(reply, "iids-tracked", names);
    named_integer(reply, "iids-added", producers.added as i64);
    named_integer(reply, "iids-duplicates", producers.repeated as i64);
}

/// The number of groups, the first and the last entry.
fn reply_ends(reply: &mut ReplyWriter<'_>, stream: &Stream) {
    named_integer(reply, "groups", stream.groups.len() as i64);
    let entries = stream.entries();
    let first = entries.range(StreamId::MIN, StreamId::MAX).next();
    let last = entries.top().and_then(|top| entries.get(top));
    for (name, entry) in [("first-entry", first), ("last-entry", last)] {
        reply.bulk(name.as_bytes());
        match entry {
            Some(entry) => reply_entry(reply, entry),
            None => reply.null(),
        }
    }
}

/// XINFO STREAM's FULL reply.
struct FullReply {
    /// The most entries and pending entries, for each group and consumer.
    count: usize,
    has_active_time: bool,
    counting: Counting,
    /// How far Unix times are ahead of those of pending entries.
    shift_ms: i64,
}

impl FullReply {
    fn write(&self, reply: &mut ReplyWriter<'_>, stream: &Stream) {
        reply.bulk(b"entries");
        let shown = self.count.min(usize::try_from(stream.entries().len()).unwrap_or(usize::MAX));
        reply.array(shown);
        let entries = stream.entries().range(StreamId::MIN, StreamId::MAX);
        entries.take(shown).for_each(|entry| reply_entry(reply, entry));
        reply.bulk(b"groups");
        reply.array(stream.groups.len());
        for (name, group) in stream.groups.iter() {
            self.write_group(reply, stream.entries(), name, group);
        }
    }

    fn write_group(
        &self,
        reply: &mut ReplyWriter<'_>,
        entries: &Entries,
        name: &[u8],
        group: &Group,
    ) {
        reply.map(7);
        reply.bulk(b"name");
        reply.bulk(name);
        named_id(reply, "last-delivered-id", group.last);
        named_guess(reply, "entries-read", group.read);
        named_guess(reply, "lag", entries.lag(group.last, group.read, self.counting));
        named_integer(reply, "pel-count", group.pending().len() as i64);
        reply.bulk(b"pending");
        reply.array(group.pending().len().min(self.count));
        for (id, pending) in group.pending().iter().take(self.count) {
            reply.array(4);
            reply_id(reply, *id);
            let is_released = group.is_released(pending.consumer);
            let name = &group.consumer(pending.consumer).name;
            reply.bulk(if is_released { b"" } else { name });
            let delivered_ms = shifted(pending.delivered_ms, self.shift_ms);
            reply.integer(if is_released { 0 } else { delivered_ms });
            reply.integer(pending.deliveries);
        }
        reply.bulk(b"consumers");
        reply.array(group.shown_consumers().count());
        for consumer in group.shown_consumers() {
            self.write_consumer(reply, group, consumer);
        }
    }

    fn write_consumer(&self, reply: &mut ReplyWriter<'_>, group: &Group, consumer: &Consumer) {
        reply.map(if self.has_active_time { 5 } else { 4 });
        reply.bulk(b"name");
        reply.bulk(&consumer.name);
        named_integer(reply, "seen-time", consumer.seen_ms);
        if self.has_active_time {
            named_integer(reply, "active-time", consumer.active_ms.unwrap_or(-1));
        }
        named_integer(reply, "pel-count", consumer.pending().len() as i64);
        reply.bulk(b"pending");
        reply.array(consumer.pending().len().min(self.count));
        for (id, ()) in consumer.pending().iter().take(self.count) {
            let Some(pending) = group.pending().get(id) else { continue };
            reply.array(3);
            reply_id(reply, *id);
            reply.integer(shifted(pending.delivered_ms, self.shift_ms));
            reply.integer(pending.deliveries);
        }
    }
}

/// `XINFO GROUPS key`: an array of maps.
fn groups(ctx: &mut Context<'_>) -> CommandResult {
    let slot = find(ctx)?;
    let counting = counting(ctx);
    let stream = ctx.core.keyspace.stream_at(slot)?;
    let reply = &mut ctx.reply;
    reply.array(stream.groups.len());
    for (name, group) in stream.groups.iter() {
        reply.map(6);
        reply.bulk(b"name");
        reply.bulk(name);
        named_integer(reply, "consumers", group.shown_consumers().count() as i64);
        named_integer(reply, "pending", group.pending().len() as i64);
        named_id(reply, "last-delivered-id", group.last);
        named_guess(reply, "entries-read", group.read);
        named_guess(reply, "lag", stream.entries().lag(group.last, group.read, counting));
    }
    Ok(Outcome::Replied)
}

/// `XINFO CONSUMERS key group`: an array of maps.
fn consumers(ctx: &mut Context<'_>) -> CommandResult {
    let slot = find(ctx)?;
    let now_ms = ctx.core.state.now.unix().0;
    let has_active_time = ctx.core.state.config.reports_7_2();
    let (key, name) = (ctx.args.get(2), ctx.args.get(3));
    let groups = &ctx.core.keyspace.stream_at(slot)?.groups;
    let group = groups.get(name).ok_or_else(|| no_group(name, key))?;
    let reply = &mut ctx.reply;
    reply.array(group.shown_consumers().count());
    for consumer in group.shown_consumers() {
        reply.map(if has_active_time { 4 } else { 3 });
        reply.bulk(b"name");
        reply.bulk(&consumer.name);
        named_integer(reply, "pending", consumer.pending().len() as i64);
        named_integer(reply, "idle", now_ms.saturating_sub(consumer.seen_ms).max(0));
        if has_active_time {
            let inactive = consumer.active_ms.map_or(-1, |active| now_ms.saturating_sub(active));
            named_integer(reply, "inactive", inactive);
        }
    }
    Ok(Outcome::Replied)
}

/// `XINFO HELP`: an array of simple strings.
fn help(ctx: &mut Context<'_>) -> CommandResult {
    reply_help(
        ctx,
        &[
            "CONSUMERS <key> <group>",
            "    Describe the consumers of a group.",
            "GROUPS <key>",
            "    Describe the groups of a stream.",
            "STREAM <key> [FULL [COUNT <count>]]",
            "    Describe a stream; with FULL, its entries, groups and pending entries too.",
        ],
    )
}
