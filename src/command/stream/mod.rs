//! Streams: adding, deleting and trimming entries. Reading is in `stream/read.rs`, groups in
//! `group.rs`, XINFO in `info.rs`; `idempotent.rs` knows requests that are sent again,
//! `references.rs` deletes entries with what groups know of them, `release.rs` gives pending
//! entries back, `owner.rs` fences late consumers off, `bury.rs` moves what was delivered too often
//! to a stream of dead letters; `jobs.rs` has the options for that.
//!
//! An empty stream is not deleted: its key keeps the last ID and the groups.

pub(crate) mod bury;
mod claims;
pub(crate) mod group;
pub(crate) mod idempotent;
pub(crate) mod info;
mod jobs;
pub(crate) mod owner;
pub(crate) mod read;
pub(crate) mod references;
pub(crate) mod release;

use crate::collections::table::Slot;
use crate::config::KeyspaceEvents;
use crate::error::CommandError;
use crate::keyspace::Key;
use crate::resp::args::{Args, Cursor};
use crate::resp::reply::ReplyWriter;
use crate::state::context::{CommandResult, Context, Outcome};
use crate::state::spec::{CommandSpec, Flags, Group, Handler, KeyFlags, KeySpec, key, spec};
use crate::types::journal::Edit;
use idempotent::{Named, NamedEntry};
use references::{References, Trimmed};

use crate::types::stream::{
    AddError, Counting, Entry, Keep, NewId, NodeLimits, Stream, StreamId, Trim,
};

pub(crate) const fn stream_spec(
    name: &'static str,
    handler: Handler,
    since: &'static str,
    flags: Flags,
) -> CommandSpec {
    spec(name, handler).group(Group::Stream).since(since).flags(flags)
}

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    stream_spec("XADD", xadd, "5.0.0", Flags::WRITE_DENYOOM_FAST).at_least(5)
        .keys(&[key(1, KeyFlags::RW_UPDATE).noted("An update rather than an insertion: it may trim as well")])
        .tips(&["nondeterministic_output"])
        .docs("key [NOMKSTREAM] [KEEPREF | DELREF | ACKED] [IDMPAUTO pid | IDMP pid iid] [<MAXLEN | MINID> [= | ~] threshold [LIMIT count]] \
            <* | id> field value [field value ...]",
            "Adds an entry to the end of a stream, creating it if necessary; can trim it.", "O(1), and O(N) for the N entries that are trimmed"),
    stream_spec("XTRIM", xtrim, "5.0.0", Flags::WRITE).at_least(4).keys(KeySpec::RW_DELETE).tips(&["nondeterministic_output"])
        .docs("key <MAXLEN | MINID> [= | ~] threshold [LIMIT count] [KEEPREF | DELREF | ACKED]",
            "Removes the oldest entries of a stream, down to a length or up to an ID.", "O(N) for the N entries that are removed"),
    stream_spec("XDEL", xdel, "5.0.0", Flags::WRITE_FAST).at_least(3).keys(KeySpec::RW_DELETE)
        .docs("key id [id ...]", "Deletes entries of a stream and counts those that were there.", "O(log N) for each entry, N being the length of the stream"),
    stream_spec("XLEN", xlen, "5.0.0", Flags::READONLY_FAST).exactly(2).keys(&[key(1, KeyFlags::RO)])
        .docs("key", "Counts the entries of a stream.", "O(1)"),
    stream_spec("XSETID", xsetid, "5.0.0", Flags::WRITE_DENYOOM_FAST).at_least(3).keys(KeySpec::RW_UPDATE)
        .docs("key last-id [ENTRIESADDED entries-added] [MAXDELETEDID max-deleted-id]",
            "Sets a stream's last ID and counters, for a replica or a restored copy.", "O(1)"),
];

pub(crate) const INVALID_ID: CommandError =
    CommandError::Text("ERR Invalid stream ID specified as stream command argument");
const TWO_STRATEGIES: CommandError = CommandError::Text(
    "ERR syntax error, MAXLEN and MINID options at the same time are not compatible",
);
const NEGATIVE_MAXLEN: CommandError = CommandError::Text("ERR The MAXLEN argument must be >= 0.");
const NEGATIVE_LIMIT: CommandError = CommandError::Text("ERR The LIMIT argument must be >= 0.");
const LIMIT_ALONE: CommandError = CommandError::Text(
    "ERR syntax error, LIMIT cannot be used without specifying a trimming strategy",
);
const NO_STRATEGY: CommandError =
    CommandError::Text("ERR syntax error, XTRIM must be called with a trimming strategy");
const LIMIT_OF_EXACT: CommandError =
    CommandError::Text("ERR syntax error, LIMIT cannot be used without the special ~ option");
const ZERO_ID: CommandError =
    CommandError::Text("ERR The ID specified in XADD must be greater than 0-0");
const EXHAUSTED: CommandError = CommandError::Text(
    "ERR The stream has exhausted the last possible ID, unable to add more items",
);
const ID_NOT_ABOVE: CommandError = CommandError::Text(
    "ERR The ID specified in XADD is equal or smaller than the target stream top item",
);
const TOO_LARGE: CommandError = CommandError::Text("ERR Elements are too large to be stored");

/// The default limit of an approximate trim in nodes, and bounds of that number of entries.
const LIMIT_NODES: i64 = 100;
const LIMIT_DEFAULT: i64 = 10_000;
const LIMIT_MAX: i64 = 1_000_000;

// ---- shared by the stream commands --------------------------------------------------------------

/// Parses an ID other than `-` and `+`; `missing_seq` replaces a missing sequence number.
pub(crate) fn parse_id(text: &[u8], missing_seq: u64) -> Result<StreamId, CommandError> {
    StreamId::parse(text, missing_seq).ok_or(INVALID_ID)
}

/// The IDs from argument `start` on.
pub(crate) fn parse_ids(args: Args<'_>, start: usize) -> Result<Vec<StreamId>, CommandError> {
    args.iter_from(start).map(|text| parse_id(text, 0)).collect()
}

/// An end of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bound {
    Start,
    End,
}

/// Parses an end of a range; `(` excludes the ID, giving the next one.
pub(crate) fn parse_bound(text: &[u8], bound: Bound) -> Result<StreamId, CommandError> {
    let missing_seq = if bound == Bound::Start { 0 } else { u64::MAX };
    let excluded = match text {
        [b'(', rest @ ..] if !rest.is_empty() => parse_id(rest, missing_seq)?,
        _ => return StreamId::parse_bound(text, missing_seq).ok_or(INVALID_ID),
    };
    match bound {
        Bound::Start => {
            excluded.next().ok_or(CommandError::Text("ERR invalid start ID for the interval"))
        }
        Bound::End => {
            excluded.previous().ok_or(CommandError::Text("ERR invalid end ID for the interval"))
        }
    }
}

pub(crate) fn reply_id(reply: &mut ReplyWriter<'_>, id: StreamId) {
    reply.bulk(id.text().as_ref());
}

/// Replies an entry: its ID, and its fields and values alternately.
#[inline]
pub(crate) fn reply_entry(reply: &mut ReplyWriter<'_>, entry: Entry<'_>) {
    reply.array(2);
    reply_parts(reply, entry);
}

/// Replies an entry's ID, and its fields and values.
#[inline]
pub(crate) fn reply_parts(reply: &mut ReplyWriter<'_>, entry: Entry<'_>) {
    reply_id(reply, entry.id);
    reply.array(2 * entry.fields);
    for (field, value) in entry {
        reply.bulk(field.text().as_ref());
        reply.bulk(value.text().as_ref());
    }
}

/// Announces an event that does not change entries: it wakes nobody, as in Redis.
pub(crate) fn announce(ctx: &mut Context<'_>, event: &'static str, key: Key<'_>) {
    ctx.core.keyspace.changed_aside(key.bytes, 1);
    ctx.core.keyspace.notify(KeyspaceEvents::STREAM, event, key.bytes);
}

/// Adds an entry of fields and values to the end of a stream, which is made if needed, as by XADD.
pub(in crate::command) fn append(
    ctx: &mut Context<'_>,
    key: Key<'_>,
    pieces: &[&[u8]],
) -> Result<StreamId, CommandError> {
    let limits = NodeLimits {
        bytes: ctx.core.state.config.stream_node_max_bytes,
        entries: ctx.core.state.config.stream_node_max_entries as u64,
    };
    let now = NewId::Now(ctx.core.state.now.unix().0.max(0) as u64);
    let (fields, piece) = (pieces.len() / 2, |index: usize| pieces[index]);
    let added = match ctx.core.keyspace.find_for_write(key) {
        Some(slot) => ctx.core.keyspace.edit_entries(slot, |entries| {
            let is_exhausted = entries.last == StreamId::MAX;
            (!is_exhausted).then(|| entries.add(now, fields, piece, limits))
        })?,
        None => {
            let mut stream = Stream::default();
            let added = Edit::unnoted(stream.entries_mut()).add(now, fields, piece, limits);
            if added.is_ok() {
                ctx.core.keyspace.insert_stream(key, stream);
            }
            Some(added)
        }
    };
    let id = added.ok_or(EXHAUSTED)?.map_err(|error| match error {
        AddError::NotAbove => ID_NOT_ABOVE,
        AddError::TooLarge => TOO_LARGE,
    })?;
    ctx.core.keyspace.changed(KeyspaceEvents::STREAM, "xadd", key.bytes);
    ctx.instead_gathered(|_, request| {
        request.extend([b"XADD", key.bytes, id.text().as_ref()].map(<[u8]>::to_vec));
        request.extend(pieces.iter().map(|piece| piece.to_vec()));
    });
    Ok(id)
}

// ---- XADD and XTRIM -----------------------------------------------------------------------------

/// `[MAXLEN | MINID [= | ~] threshold] [LIMIT count] [KEEPREF | DELREF | ACKED]`, in any order.
#[derive(Default)]
struct TrimOptions {
    references: Option<References>,
    keep: Option<Keep>,
    is_approximate: bool,
    limit: Option<i64>,
    /// The index of the threshold.
    threshold_at: usize,
}

impl TrimOptions {
    /// Parses one of these options, if the next argument is one.
    fn take(&mut self, cursor: &mut Cursor<'_>) -> Result<bool, CommandError> {
        if self.references.is_none() {
            self.references = References::take(cursor);
            if self.references.is_some() {
                return Ok(true);
            }
        }
        // The last argument cannot be one of these options, which have values.
        if cursor.remaining() < 2 {
            return Ok(false);
        }
        let is_maxlen = cursor.take_word("MAXLEN");
        if is_maxlen || cursor.take_word("MINID") {
            if self.keep.is_some() {
                return Err(TWO_STRATEGIES);
            }
            if cursor.remaining() >= 2 {
                self.is_approximate = cursor.take_word("~");
                let _ = !self.is_approximate && cursor.take_word("=");
            }
            self.threshold_at = cursor.position();
            self.keep = Some(if is_maxlen {
                let length = cursor.take_integer()?;
                Keep::Newest(u64::try_from(length).map_err(|_| NEGATIVE_MAXLEN)?)
            } else {
                Keep::From(parse_id(cursor.take()?, 0)?)
            });
            return Ok(true);
        }
        if cursor.take_word("LIMIT") {
            let limit = cursor.take_integer()?;
            if limit < 0 {
                return Err(NEGATIVE_LIMIT);
            }
            self.limit = Some(limit);
            return Ok(true);
        }
        Ok(false)
    }

    /// The requested trimming, if any.
    ///
    /// A repeated command has an exact threshold, with a LIMIT that was obeyed when it ran first.
    fn finish(&self, ctx: &Context<'_>) -> Result<Option<Trim>, CommandError> {
        let config = &ctx.core.state.config;
        if ctx.is_repeated()
            && let Some(keep) = self.keep
        {
            return Ok(Some(Trim { keep, is_approximate: self.is_approximate, limit: 0 }));
        }
        let Some(keep) = self.keep else {
            return match self.limit {
                Some(1..) => Err(LIMIT_ALONE),
                Some(_) => Err(LIMIT_OF_EXACT),
                None => Ok(None),
            };
        };
        let limit = match self.limit {
            Some(_) if !self.is_approximate => return Err(LIMIT_OF_EXACT),
            Some(limit) => limit,
            None if self.is_approximate => {
                match config.stream_node_max_entries.saturating_mul(LIMIT_NODES) {
                    0 => LIMIT_DEFAULT,
                    limit => limit.min(LIMIT_MAX),
                }
            }
            None => 0,
        };
        let is_approximate = self.is_approximate;
        Ok(Some(Trim { keep, is_approximate, limit: limit as u64 }))
    }
}

/// XADD's options before the fields.
struct AddOptions<'a> {
    makes_stream: bool,
    id: NewId,
    trim: Option<Trim>,
    references: Option<References>,
    named: Option<Named<'a>>,
    /// The index of the trimming's threshold.
    threshold_at: usize,
    /// The index of the first field.
    fields_at: usize,
}

impl<'a> AddOptions<'a> {
    /// `[NOMKSTREAM] [trimming] [IDMPAUTO pid | IDMP pid iid] <* | id> field value [field value
    /// ...]`, from argument 2 on.
    fn parse(ctx: &Context<'a>) -> Result<Self, CommandError> {
        let mut cursor = ctx.args.cursor(2);
        let now_ms = ctx.core.state.now.unix().0.max(0) as u64;
        let mut options = AddOptions {
            makes_stream: true,
            id: NewId::Now(now_ms),
            trim: None,
            references: None,
            named: None,
            threshold_at: 0,
            fields_at: 0,
        };
        let mut trim = TrimOptions::default();
        while let Some(argument) = cursor.peek() {
            if argument == b"*" {
                cursor.take()?;
                break;
            }
            if trim.take(&mut cursor)? {
                continue;
            }
            if cursor.take_word("NOMKSTREAM") {
                options.makes_stream = false;
                continue;
            }
            if Named::take(&mut options.named, &mut cursor)? {
                continue;
            }
            options.id = parse_new_id(cursor.take()?)?;
            if options.named.is_some() && !ctx.is_repeated() {
                return Err(idempotent::GIVEN_ID);
            }
            break;
        }
        options.trim = trim.finish(ctx)?;
        options.references = trim.references;
        options.fields_at = cursor.position();
        options.threshold_at = trim.threshold_at;
        if cursor.is_at_end() || !cursor.remaining().is_multiple_of(2) {
            return Err(CommandError::WrongArity(ctx.command.full_name.clone()));
        }
        if options.id == NewId::Given(StreamId::MIN) {
            return Err(ZERO_ID);
        }
        Ok(options)
    }
}

/// `ms-seq`, `ms` (with sequence number 0), or `ms-*`.
fn parse_new_id(text: &[u8]) -> Result<NewId, CommandError> {
    match text.strip_suffix(b"-*") {
        // Only `ms` or `ms-seq`.
        Some(ms) if !ms.contains(&b'-') => Ok(NewId::At(parse_id(ms, 0)?.ms)),
        _ => Ok(NewId::Given(parse_id(text, 0)?)),
    }
}

/// `XADD key [NOMKSTREAM] [IDMPAUTO pid | IDMP pid iid] [<MAXLEN | MINID> [= | ~] threshold [LIMIT
/// count]] <* | id> field value [...]`: the ID; nil if there is no stream and NOMKSTREAM is given.
fn xadd(ctx: &mut Context<'_>) -> CommandResult {
    let options = AddOptions::parse(ctx)?;
    let (args, key) = (ctx.args, ctx.key(1));
    let limits = NodeLimits {
        bytes: ctx.core.state.config.stream_node_max_bytes,
        entries: ctx.core.state.config.stream_node_max_entries as u64,
    };
    let fields = (args.len() - options.fields_at) / 2;
    let piece = |index: usize| args.get(options.fields_at + index);
    let found = ctx.core.keyspace.find_for_write(key);
    let named = options.named.map(|named| NamedEntry::new(ctx, named, options.fields_at));
    if let Some(named) = &named
        && named.answer(ctx, found, options.id)?
    {
        return Ok(Outcome::Replied);
    }
    let added = match found {
        Some(slot) => {
            let added = ctx.core.keyspace.edit_entries(slot, |entries| {
                let is_exhausted = entries.last == StreamId::MAX;
                (!is_exhausted).then(|| entries.add(options.id, fields, piece, limits))
            });
            added?.ok_or(EXHAUSTED)?.map(|id| (id, slot))
        }
        None if !options.makes_stream => {
            ctx.reply.null();
            return Ok(Outcome::Replied);
        }
        None => {
            let mut stream = Stream::default();
            let added = Edit::unnoted(stream.entries_mut()).add(options.id, fields, piece, limits);
            added.map(|id| (id, ctx.core.keyspace.insert_stream(key, stream)))
        }
    };
    let (id, slot) = added.map_err(|error| match error {
        AddError::NotAbove => ID_NOT_ABOVE,
        AddError::TooLarge => TOO_LARGE,
    })?;
    ctx.core.keyspace.changed(KeyspaceEvents::STREAM, "xadd", key.bytes);
    if let Some(named) = &named {
        named.remember(ctx, slot, id)?;
    }
    let trimmed = match options.trim {
        Some(trim) => references::trim(ctx, slot, trim, options.references.unwrap_or_default())?,
        None => Trimmed::default(),
    };
    if trimmed.count > 0 {
        ctx.core.keyspace.notify(KeyspaceEvents::STREAM, "xtrim", key.bytes);
    }
    if options.references.is_some() || named.is_some() {
        match &named {
            Some(named) => named.repeat(ctx, id),
            None => ctx.instead_gathered(|_, request| {
                let words = [b"XADD", key.bytes].into_iter().map(<[u8]>::to_vec);
                request.extend(words.chain([id.text().as_ref().to_vec()]));
                request.extend(args.iter_from(options.fields_at).map(<[u8]>::to_vec));
            }),
        }
        trimmed.repeat(ctx, slot);
        reply_id(&mut ctx.reply, id);
        return Ok(Outcome::Replied);
    }
    let is_approximate = options.trim.is_some_and(|trim| trim.is_approximate);
    let id_at = options.fields_at - 1;
    let made_up = (!matches!(options.id, NewId::Given(_))).then_some((id_at, id));
    if made_up.is_some() || is_approximate {
        let threshold_at = is_approximate.then_some(options.threshold_at);
        repeat_exactly(ctx, slot, options.trim, threshold_at, made_up);
    }
    reply_id(&mut ctx.reply, id);
    Ok(Outcome::Replied)
}

/// Sets the effect of XADD or XTRIM: with the generated ID, and with an exact threshold that
/// removes the same entries.
fn repeat_exactly(
    ctx: &mut Context<'_>,
    slot: Slot,
    trim: Option<Trim>,
    threshold_at: Option<usize>,
    id: Option<(usize, StreamId)>,
) {
    let args = ctx.args;
    ctx.instead_gathered(|ctx, request| {
        request.extend(args.iter_from(0).map(<[u8]>::to_vec));
        if let Some((at, id)) = id {
            request[at] = id.text().as_ref().to_vec();
        }
        if let (Some(at), Ok(stream)) = (threshold_at, ctx.core.keyspace.stream_at(slot)) {
            let entries = stream.entries();
            request[at - 1] = b"=".to_vec();
            request[at] = match trim.map(|trim| trim.keep) {
                Some(Keep::Newest(_)) => entries.len().to_string().into_bytes(),
                _ => {
                    let first = entries.range(StreamId::MIN, StreamId::MAX).next();
                    let first = first.map_or(StreamId::MAX, |entry| entry.id);
                    first.text().as_ref().to_vec()
                }
            };
        }
    });
}

/// `XTRIM key <MAXLEN | MINID> [= | ~] threshold [LIMIT count]`: the number of removed entries.
fn xtrim(ctx: &mut Context<'_>) -> CommandResult {
    let mut cursor = ctx.args.cursor(2);
    let mut options = TrimOptions::default();
    while !cursor.is_at_end() {
        if !options.take(&mut cursor)? {
            return Err(CommandError::Syntax);
        }
    }
    if options.keep.is_none() && options.limit == Some(0) {
        return Err(NO_STRATEGY);
    }
    let trim = options.finish(ctx)?.ok_or(NO_STRATEGY)?;
    let key = ctx.key(1);
    let Some(slot) = ctx.core.keyspace.find_for_write(key) else {
        ctx.reply.integer(0);
        return Ok(Outcome::Replied);
    };
    let trimmed = references::trim(ctx, slot, trim, options.references.unwrap_or_default())?;
    let removed = trimmed.count;
    if removed > 0 {
        ctx.core.keyspace.changed_by(removed, KeyspaceEvents::STREAM, "xtrim", key.bytes);
        if options.references.is_some() {
            trimmed.repeat(ctx, slot);
        } else if trim.is_approximate {
            repeat_exactly(ctx, slot, Some(trim), Some(options.threshold_at), None);
        }
    }
    ctx.reply.integer(removed as i64);
    Ok(Outcome::Replied)
}

// ---- deleting, counting, setting ----------------------------------------------------------------

/// `XDEL key id [id ...]`: the number of deleted entries.
fn xdel(ctx: &mut Context<'_>) -> CommandResult {
    let key = ctx.key(1);
    let Some(slot) = ctx.core.keyspace.find_for_write(key) else {
        ctx.reply.integer(0);
        return Ok(Outcome::Replied);
    };
    ctx.core.keyspace.stream_at(slot)?;
    let ids = parse_ids(ctx.args, 2)?;
    let deleted = ctx.core.keyspace.edit_entries(slot, |entries| entries.delete(&ids))?;
    if deleted > 0 {
        ctx.core.keyspace.changed_by(deleted, KeyspaceEvents::STREAM, "xdel", key.bytes);
    }
    ctx.reply.integer(deleted as i64);
    Ok(Outcome::Replied)
}

/// The server whose count of entries read by groups is emulated. Redis 8.6 counts as Valkey does.
fn counting(ctx: &Context<'_>) -> Counting {
    let dialect = ctx.core.state.config.compatible_with;
    match dialect.is_valkey() || dialect.is_redis_8() {
        true => Counting::Valkey,
        false => Counting::Redis,
    }
}

/// `XLEN key`: 0 without a key.
fn xlen(ctx: &mut Context<'_>) -> CommandResult {
    let len = match ctx.core.keyspace.find_for_read(ctx.key(1)) {
        Some(slot) => ctx.core.keyspace.stream_at(slot)?.entries().len(),
        None => 0,
    };
    ctx.reply.integer(len as i64);
    Ok(Outcome::Replied)
}

/// `XSETID key last-id [ENTRIESADDED entries-added] [MAXDELETEDID max-deleted-id]`: OK.
fn xsetid(ctx: &mut Context<'_>) -> CommandResult {
    const NEGATIVE_ADDED: CommandError = CommandError::Text("ERR entries_added must be positive");
    const BELOW_DELETED: CommandError = CommandError::Text(
        "ERR The ID specified in XSETID is smaller than the provided max_deleted_entry_id",
    );
    const BELOW_GREATEST_DELETED: CommandError = CommandError::Text(
        "ERR The ID specified in XSETID is smaller than current max_deleted_entry_id",
    );
    const BELOW_TOP: CommandError = CommandError::Text(
        "ERR The ID specified in XSETID is smaller than the target stream top item",
    );
    const BELOW_LENGTH: CommandError = CommandError::Text(
        "ERR The entries_added specified in XSETID is smaller than the target stream length",
    );
    let last = parse_id(ctx.args.get(2), 0)?;
    let (mut added, mut max_deleted) = (None, StreamId::MIN);
    let mut cursor = ctx.args.cursor(3);
    while !cursor.is_at_end() {
        if cursor.remaining() >= 2 && cursor.take_word("ENTRIESADDED") {
            added = Some(Some(cursor.take_integer()?).filter(|it| *it >= 0).ok_or(NEGATIVE_ADDED)?);
        } else if cursor.remaining() >= 2 && cursor.take_word("MAXDELETEDID") {
            max_deleted = parse_id(cursor.take()?, 0)?;
            // Only clients get this error: without the option a stream can be set back below this
            // ID, and the request that rebuilds such a stream has the option.
            if last < max_deleted && !ctx.is_repeated() {
                return Err(BELOW_DELETED);
            }
        } else {
            return Err(CommandError::Syntax);
        }
    }
    let key = ctx.key(1);
    let slot = ctx.core.keyspace.find_for_write(key).ok_or(CommandError::NoSuchKey)?;
    let entries = ctx.core.keyspace.stream_at(slot)?.entries();
    let dialect = ctx.core.state.config.compatible_with;
    let is_checked = (dialect.is_valkey() || dialect.is_redis_8()) && !ctx.is_repeated();
    if is_checked && last < entries.max_deleted {
        return Err(BELOW_GREATEST_DELETED);
    }
    if entries.top().is_some_and(|top| last < top) {
        return Err(BELOW_TOP);
    }
    if !entries.is_empty() && added.is_some_and(|added: i64| entries.len() > added as u64) {
        return Err(BELOW_LENGTH);
    }
    let max_deleted = (max_deleted != StreamId::MIN).then_some(max_deleted);
    ctx.core
        .keyspace
        .edit_entries(slot, |entries| entries.set_remembered(last, added, max_deleted))?;
    announce(ctx, "xsetid", key);
    ctx.reply.ok();
    Ok(Outcome::Replied)
}
