//! MAXDELIVERIES and DEADLETTER of XREADGROUP, and XREDRIVE: entries that were delivered too often
//! move to a stream of dead letters, and back.
//!
//! Files and replicas get XADD, XACK and XDEL.

use super::references::{UNEQUAL, is_referenced};
use super::{append, parse_id, stream_spec};
use crate::collections::table::Slot;
use crate::config::KeyspaceEvents;
use crate::error::CommandError;
use crate::gate::evict;
use crate::resp::args::Args;
use crate::state::context::{CommandResult, Context, Outcome};
use crate::state::spec::{CommandSpec, Flags, KeyFlags, key};
use crate::types::stream::{Entry, StreamId};

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    stream_spec("XREDRIVE", xredrive, "0.2.0", Flags::WRITE_DENYOOM).at_least(3).keys(&[key(1, KeyFlags::RW_DELETE), key(2, KeyFlags::RW_INSERT)])
        .docs("source destination [COUNT count] [<IDS numids id [id ...]>]",
            "Moves dead letters, the oldest or those with these IDs, to the end of another stream, without what was added to them.",
            "O(N log M) for N entries that are moved, M being the length of the source"),
];

/// The most entries that one command buries.
const BURIED_MAX: usize = 100;
/// The most pending entries without data, or that cannot be buried now, that it meets.
pub(super) const PASSED_MAX: usize = 1000;
/// The entries that XREDRIVE moves, and the most that it may.
const REDRIVEN: usize = 100;
const REDRIVEN_MAX: usize = 1000;

/// The fields that are added to a dead letter.
const ADDED: [&[u8]; 6] = [b":stream", b":group", b":id", b":consumer", b":deliveries", b":reason"];

const SAME: CommandError = CommandError::Text("ERR source and destination are the same");
const TOO_MANY: CommandError = CommandError::Text("ERR COUNT must be between 1 and 1000");

/// `MAXDELIVERIES n DEADLETTER key`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    pub deliveries: i64,
    /// The index of the key of the dead letters.
    pub dead_letter_at: usize,
}

/// A pending entry that is buried.
struct Letter {
    id: StreamId,
    /// Fields and values.
    pieces: Vec<Vec<u8>>,
}

/// The fields and values of an entry, without those that are added to a dead letter.
fn own_pieces(entry: Entry<'_>) -> Vec<Vec<u8>> {
    let mut pieces = Vec::new();
    for (field, value) in entry {
        let field = field.text();
        if !ADDED.contains(&field.as_ref()) {
            pieces.extend([field.as_ref().to_vec(), value.text().as_ref().to_vec()]);
        }
    }
    pieces
}

/// Finds the entries that a consumer may claim, at most `most`. Those that are met on the way and
/// were delivered too often are buried; those whose data are gone are acknowledged. `idle_ms`: the
/// least idle time. The key's slot may move.
pub(super) fn claimable(
    ctx: &mut Context<'_>,
    (key_at, name): (usize, &[u8]),
    limit: Limit,
    (idle_ms, most): (i64, usize),
) -> Result<Vec<StreamId>, CommandError> {
    let key = ctx.key(key_at);
    let now_ms = ctx.core.keyspace.lease_ms();
    let is_short = evict::is_over(ctx.core);
    let Some(slot) = ctx.core.keyspace.find(key) else { return Ok(Vec::new()) };
    let (entries, groups) = ctx.core.keyspace.groups_mut(slot)?;
    let Some(group) = groups.get_mut(name) else { return Ok(Vec::new()) };
    let (mut claims, mut gone, mut letters) = (Vec::new(), Vec::new(), Vec::new());
    // Without an effect: such a time counts as now on replicas too.
    group.settle_future(now_ms);
    let mut passed = 0;
    for (id, pending) in group.claimable(now_ms, now_ms.saturating_sub(idle_ms)) {
        let is_full = letters.len() == BURIED_MAX || passed == PASSED_MAX;
        if is_full || claims.len() == most {
            break;
        }
        let Some(entry) = entries.get(id) else {
            gone.push(id);
            passed += 1;
            continue;
        };
        if pending.deliveries < limit.deliveries {
            claims.push(id);
            continue;
        }
        if is_short {
            passed += 1;
            continue;
        }
        let consumer = &group.consumer(pending.consumer).name;
        let is_released = group.is_released(pending.consumer);
        let mut pieces = own_pieces(entry);
        let mut add = |field: &[u8], value: &[u8]| pieces.extend([field.to_vec(), value.to_vec()]);
        add(b":stream", key.bytes);
        add(b":group", name);
        add(b":id", id.text().as_ref());
        add(b":consumer", if is_released { b"" } else { consumer });
        if pending.deliveries == i64::MAX {
            add(b":reason", b"fatal");
        } else {
            add(b":deliveries", pending.deliveries.to_string().as_bytes());
            add(b":reason", b"deliveries");
        }
        letters.push(Letter { id, pieces });
    }
    if letters.is_empty() && gone.is_empty() {
        return Ok(claims);
    }
    let dead_letter = ctx.key(limit.dead_letter_at);
    for letter in &letters {
        let pieces: Vec<&[u8]> = letter.pieces.iter().map(Vec::as_slice).collect();
        append(ctx, dead_letter, &pieces)?;
    }
    if let Some(slot) = ctx.core.keyspace.find(key) {
        let buried = letters.into_iter().map(|letter| letter.id).collect();
        take_out(ctx, slot, (key_at, name), buried, gone)?;
    }
    Ok(claims)
}

/// Acknowledges entries that were buried, or whose data are gone; deletes the former unless other
/// groups reference them.
fn take_out(
    ctx: &mut Context<'_>,
    slot: Slot,
    (key_at, name): (usize, &[u8]),
    buried: Vec<StreamId>,
    gone: Vec<StreamId>,
) -> Result<(), CommandError> {
    let key = ctx.key(key_at);
    let (_, groups) = ctx.core.keyspace.groups_mut(slot)?;
    if let Some(group) = groups.get_mut(name) {
        group.buried += buried.len() as u64;
        group.gone += gone.len() as u64;
        for id in buried.iter().chain(&gone) {
            group.acknowledge(*id);
        }
    }
    let acknowledged: Vec<StreamId> = buried.iter().chain(&gone).copied().collect();
    let mut deleted = buried;
    deleted.retain(|id| !is_referenced(groups, *id));
    ctx.core.keyspace.changed_aside(key.bytes, acknowledged.len() as u64);
    repeat(ctx, &[b"XACK", key.bytes, name], &acknowledged);
    if !deleted.is_empty() {
        delete(ctx, slot, key_at, &deleted)?;
    }
    Ok(())
}

/// Deletes entries of the stream in an argument, and announces and repeats that.
fn delete(
    ctx: &mut Context<'_>,
    slot: Slot,
    key_at: usize,
    ids: &[StreamId],
) -> Result<(), CommandError> {
    let key = ctx.key(key_at);
    let deleted = ctx.core.keyspace.edit_entries(slot, |entries| entries.delete(ids))?;
    ctx.core.keyspace.changed_by(deleted, KeyspaceEvents::STREAM, "xdel", key.bytes);
    repeat(ctx, &[b"XDEL", key.bytes], ids);
    Ok(())
}

/// Adds a request with IDs to the effect.
fn repeat(ctx: &mut Context<'_>, words: &[&[u8]], ids: &[StreamId]) {
    ctx.instead_gathered(|_, request| {
        request.extend(words.iter().map(|word| word.to_vec()));
        request.extend(ids.iter().map(|id| id.text().as_ref().to_vec()));
    });
}

// ---- XREDRIVE -----------------------------------------------------------------------------------

/// XREDRIVE's options: the most entries, and which.
struct Options {
    count: Option<usize>,
    ids: Option<Vec<StreamId>>,
}

impl Options {
    /// `[COUNT count] [<IDS numids id [id ...]>]`, from argument 3 on.
    fn parse(args: Args<'_>) -> Result<Self, CommandError> {
        let mut options = Options { count: None, ids: None };
        let mut cursor = args.cursor(3);
        while !cursor.is_at_end() {
            if cursor.remaining() >= 2 && cursor.take_word("COUNT") {
                options.count = Some(cursor.take_positive(TOO_MANY)?);
            } else if cursor.remaining() >= 2 && cursor.take_word("IDS") && options.ids.is_none() {
                let count = cursor.take_positive(TOO_MANY)?;
                if count > cursor.remaining() {
                    return Err(UNEQUAL);
                }
                let ids = (0..count).map(|_| parse_id(cursor.take()?, 0));
                options.ids = Some(ids.collect::<Result<_, CommandError>>()?);
            } else {
                return Err(CommandError::Syntax);
            }
        }
        let named = options.ids.as_ref().map_or(0, Vec::len);
        if options.count.unwrap_or(named) > REDRIVEN_MAX || named > REDRIVEN_MAX {
            Err(TOO_MANY)
        } else {
            Ok(options)
        }
    }
}

/// `XREDRIVE source destination [COUNT count] [<IDS numids id [id ...]>]`: the number of entries
/// that were moved, with new IDs.
fn xredrive(ctx: &mut Context<'_>) -> CommandResult {
    let options = Options::parse(ctx.args)?;
    let (source, destination) = (ctx.key(1), ctx.key(2));
    if source.bytes == destination.bytes {
        return Err(SAME);
    }
    let found = ctx.core.keyspace.find_for_write(source);
    if let Some(slot) = ctx.core.keyspace.find(destination) {
        ctx.core.keyspace.stream_at(slot)?;
    }
    let Some(slot) = found else {
        ctx.reply.integer(0);
        return Ok(Outcome::Replied);
    };
    let entries = ctx.core.keyspace.stream_at(slot)?.entries();
    let moved: Vec<(StreamId, Vec<Vec<u8>>)> = match options.ids {
        Some(mut ids) => {
            ids.sort_unstable();
            ids.dedup();
            let there = ids.into_iter().filter_map(|id| Some((id, entries.get(id)?)));
            there
                .take(options.count.unwrap_or(REDRIVEN_MAX))
                .map(|(id, entry)| (id, redriven(entry)))
                .collect()
        }
        None => {
            let oldest = entries.range(StreamId::MIN, StreamId::MAX);
            let oldest = oldest.take(options.count.unwrap_or(REDRIVEN));
            oldest.map(|entry| (entry.id, redriven(entry))).collect()
        }
    };
    for (_, pieces) in &moved {
        let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
        append(ctx, destination, &pieces)?;
    }
    let ids: Vec<StreamId> = moved.iter().map(|(id, _)| *id).collect();
    if let Some(slot) = ctx.core.keyspace.find(source).filter(|_| !ids.is_empty()) {
        delete(ctx, slot, 1, &ids)?;
    }
    ctx.reply.integer(ids.len() as i64);
    Ok(Outcome::Replied)
}

/// The fields and values that a letter has again; all of them if there is no other.
fn redriven(entry: Entry<'_>) -> Vec<Vec<u8>> {
    let all = entry.clone();
    let own = own_pieces(entry);
    if !own.is_empty() {
        return own;
    }
    let texts = all.flat_map(|(field, value)| {
        [field.text().as_ref().to_vec(), value.text().as_ref().to_vec()]
    });
    texts.collect()
}
