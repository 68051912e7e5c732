//! XACKDEL and XDELEX: deleting entries together with the references that groups have to them.
//! XADD and XTRIM do so too, with the same words.
//!
//! An entry is referenced if a group has it pending, or has not read so far yet. Files and replicas
//! get XACK and XDEL, which Redis 7.0 knows.

use super::owner::{Fence, Owner};
use super::{parse_id, stream_spec};
use crate::collections::table::Slot;
use crate::config::KeyspaceEvents;
use crate::error::CommandError;
use crate::resp::args::{Args, Cursor};
use crate::state::context::{CommandResult, Context, Outcome};
use crate::state::spec::{CommandSpec, Flags, KeyFlags, KeySpec, key};
use crate::types::stream::{Group, Groups, StreamId, Trim};

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    stream_spec("XACKDEL", xackdel, "8.2.0", Flags::WRITE_FAST).at_least(6).keys(&[key(1, KeyFlags::RW_UPDATE.union(KeyFlags::DELETE))])
        .docs("key group [KEEPREF | DELREF | ACKED] [OWNER consumer] <IDS numids id [id ...]>", "Acknowledges entries for a group, and deletes them.",
            "O(log N) for each entry, N being the length of the stream"),
    stream_spec("XDELEX", xdelex, "8.2.0", Flags::WRITE_FAST).at_least(5).keys(KeySpec::RW_DELETE)
        .docs("key [KEEPREF | DELREF | ACKED] <IDS numids id [id ...]>", "Deletes entries of a stream, with or without groups' references to them.",
            "O(log N) for each entry, N being the length of the stream"),
];

const NOT_POSITIVE: CommandError =
    CommandError::Text("ERR Number of IDs must be a positive integer");
pub(super) const UNEQUAL: CommandError =
    CommandError::Text("ERR The `numids` parameter must match the number of arguments");
const NO_IDS: CommandError = CommandError::Text("ERR IDS option is required");

/// Elements of the reply.
const DONE: i64 = 1;
const REFERENCED: i64 = 2;
const NOT_THERE: i64 = -1;

/// The references of groups to an entry that is to be deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum References {
    /// They stay.
    #[default]
    Keep,
    /// They are removed.
    Remove,
    /// An entry that has some stays.
    Respect,
}

impl References {
    /// Takes the next argument if it is one of these words.
    pub fn take(cursor: &mut Cursor<'_>) -> Option<References> {
        match () {
            () if cursor.take_word("KEEPREF") => Some(References::Keep),
            () if cursor.take_word("DELREF") => Some(References::Remove),
            () if cursor.take_word("ACKED") => Some(References::Respect),
            () => None,
        }
    }
}

/// `[KEEPREF | DELREF | ACKED] [OWNER consumer] <IDS numids id [id ...]>`, in any order.
struct Options<'a> {
    references: References,
    owner: Owner<'a>,
    ids: Vec<&'a [u8]>,
}

impl<'a> Options<'a> {
    /// OWNER only if `has_group`.
    fn parse(args: Args<'a>, has_group: bool) -> Result<Self, CommandError> {
        let mut cursor = args.cursor(if has_group { 3 } else { 2 });
        let (mut references, mut owner, mut ids) = (None, Owner::default(), None);
        while !cursor.is_at_end() {
            if let Some(word) = References::take(&mut cursor) {
                if references.replace(word).is_some() {
                    return Err(CommandError::Syntax);
                }
                continue;
            }
            if has_group && owner.take(&mut cursor)? {
                continue;
            }
            if cursor.remaining() < 2 || !cursor.take_word("IDS") {
                return Err(CommandError::Syntax);
            }
            let count = cursor.take_integer().ok().filter(|count| *count > 0);
            let count = usize::try_from(count.ok_or(NOT_POSITIVE)?).unwrap_or(usize::MAX);
            if count > cursor.remaining() {
                return Err(UNEQUAL);
            }
            let named = (0..count).map(|_| cursor.take());
            ids = Some(named.collect::<Result<_, _>>()?);
        }
        let references = references.unwrap_or_default();
        Ok(Options { references, owner, ids: ids.ok_or(NO_IDS)? })
    }

    fn parse_ids(&self) -> Result<Vec<StreamId>, CommandError> {
        self.ids.iter().map(|text| parse_id(text, 0)).collect()
    }
}

/// Whether a group has an entry pending, or has not read so far yet.
pub(super) fn is_referenced(groups: &Groups, id: StreamId) -> bool {
    groups.iter().any(|(_, group)| group.last < id || group.pending().contains_key(&id))
}

/// What a command has done.
#[derive(Default)]
struct Done {
    /// The names of groups and the IDs acknowledged for them.
    acknowledged: Vec<(Vec<u8>, Vec<StreamId>)>,
    deleted: Vec<StreamId>,
}

impl Done {
    fn note(&mut self, group: &[u8], id: StreamId) {
        match self.acknowledged.iter_mut().find(|(name, _)| name == group) {
            Some((_, ids)) => ids.push(id),
            None => self.acknowledged.push((group.to_vec(), vec![id])),
        }
    }

    /// Removes all references to an entry.
    fn acknowledge_all(&mut self, groups: &mut Groups, id: StreamId) {
        let pending = groups.iter().filter(|(_, group)| group.pending().contains_key(&id));
        let names: Vec<Vec<u8>> = pending.map(|(name, _)| name.to_vec()).collect();
        for name in names {
            if groups.get_mut(&name).is_some_and(|group| group.acknowledge(id)) {
                self.note(&name, id);
            }
        }
    }

    /// Counts, announces and repeats the changes of the key in argument 1.
    fn conclude(self, ctx: &mut Context<'_>) {
        let deleted = self.deleted.len() as u64;
        if deleted > 0 {
            let key = ctx.key(1);
            ctx.core.keyspace.changed_by(deleted, KeyspaceEvents::STREAM, "xdel", key.bytes);
        }
        self.repeat(ctx);
    }

    /// Counts what was acknowledged, and repeats the changes of the key in argument 1.
    fn repeat(&self, ctx: &mut Context<'_>) {
        let key = ctx.key(1);
        let acknowledged: usize = self.acknowledged.iter().map(|(_, ids)| ids.len()).sum();
        ctx.core.keyspace.changed_aside(key.bytes, acknowledged as u64);
        let texts = |ids: &[StreamId]| ids.iter().map(|id| id.text()).collect::<Vec<_>>();
        for (group, ids) in &self.acknowledged {
            let ids = texts(ids);
            let words = [&b"XACK"[..], key.bytes, group].into_iter();
            ctx.instead(&words.chain(ids.iter().map(AsRef::as_ref)).collect::<Vec<_>>());
        }
        if !self.deleted.is_empty() {
            let ids = texts(&self.deleted);
            let words = [&b"XDEL"[..], key.bytes].into_iter();
            ctx.instead(&words.chain(ids.iter().map(AsRef::as_ref)).collect::<Vec<_>>());
        }
    }
}

/// Trims a stream, with the references that groups have to its entries.
pub(super) fn trim(
    ctx: &mut Context<'_>,
    slot: Slot,
    trim: Trim,
    references: References,
) -> Result<Trimmed, CommandError> {
    let mut done = Done::default();
    if references == References::Keep {
        let count = ctx.core.keyspace.edit_entries(slot, |entries| entries.trim(trim))?;
        return Ok(Trimmed { count, done });
    }
    let stream = ctx.core.keyspace.stream_at(slot)?;
    let goes = |id| references == References::Remove || !is_referenced(&stream.groups, id);
    let gone = stream.entries().trimmed_singly(trim, goes);
    let mut first = stream.entries().range(StreamId::MIN, StreamId::MAX);
    // What is deleted after an entry that stays is a gap, as XDEL leaves it: lags depend on it.
    let is_gap = gone.iter().any(|id| first.next().is_none_or(|entry| entry.id != *id));
    let count = gone.len() as u64;
    if references == References::Remove {
        let (_, groups) = ctx.core.keyspace.groups_mut(slot)?;
        gone.iter().for_each(|id| done.acknowledge_all(groups, *id));
    }
    ctx.core.keyspace.edit_entries(slot, |entries| match is_gap {
        true => entries.delete(&gone),
        false => entries.delete_first(&gone),
    })?;
    if is_gap {
        done.deleted = gone;
    }
    Ok(Trimmed { count, done })
}

/// What trimming has removed.
#[derive(Default)]
pub(super) struct Trimmed {
    /// Number of entries.
    pub count: u64,
    done: Done,
}

impl Trimmed {
    /// Repeats it by requests that Redis 7.0 knows.
    pub fn repeat(&self, ctx: &mut Context<'_>, slot: Slot) {
        self.done.repeat(ctx);
        if self.count > 0
            && self.done.deleted.is_empty()
            && let Ok(stream) = ctx.core.keyspace.stream_at(slot)
        {
            let len = stream.entries().len() as i64;
            ctx.instead_with(&[b"XTRIM", ctx.args.get(1), b"MAXLEN", b"="], len);
        }
    }
}

/// `XACKDEL key group [KEEPREF | DELREF | ACKED] [OWNER consumer] <IDS numids id [id ...]>`: for
/// each ID 1 if it was acknowledged and is deleted, 2 if it was acknowledged and is still
/// referenced, -1 if it was not pending (for this consumer).
fn xackdel(ctx: &mut Context<'_>) -> CommandResult {
    delete(ctx, Some(ctx.args.get(2)))
}

/// `XDELEX key [KEEPREF | DELREF | ACKED] <IDS numids id [id ...]>`: for each ID 1 if it was
/// deleted, 2 if it is still referenced, -1 if there is no such entry.
fn xdelex(ctx: &mut Context<'_>) -> CommandResult {
    delete(ctx, None)
}

/// Deletes the entries that a command names; `group`: for which they are acknowledged first.
fn delete(ctx: &mut Context<'_>, group: Option<&[u8]>) -> CommandResult {
    let slot = ctx.core.keyspace.find_for_write(ctx.key(1));
    if let Some(slot) = slot {
        ctx.core.keyspace.stream_at(slot)?;
    }
    let options = Options::parse(ctx.args, group.is_some())?;
    let has_group = |slot| {
        let stream = ctx.core.keyspace.stream_at(slot).ok();
        group.is_none_or(|name| stream.is_some_and(|stream| stream.groups.contains_key(name)))
    };
    let Some(slot) = slot.filter(|slot| has_group(*slot)) else {
        ctx.reply.array(options.ids.len());
        options.ids.iter().for_each(|_| ctx.reply.integer(NOT_THERE));
        return Ok(Outcome::Replied);
    };
    let ids = options.parse_ids()?;
    let (mut done, mut results) = (Done::default(), Vec::with_capacity(ids.len()));
    let stream = ctx.core.keyspace.stream_at(slot)?;
    let group_there = group.and_then(|name| stream.groups.get(name));
    let fence = group_there.map_or(Fence::Open, |group| options.owner.fence(group));
    for id in ids {
        let (entries, groups) = ctx.core.keyspace.groups_mut(slot)?;
        if let Some(name) = group {
            let acknowledge = |group: &mut Group| fence.admits(group, id) && group.acknowledge(id);
            if !groups.get_mut(name).is_some_and(acknowledge) {
                results.push(NOT_THERE);
                continue;
            }
            done.note(name, id);
        }
        match options.references {
            References::Respect if is_referenced(groups, id) => {
                results.push(REFERENCED);
                continue;
            }
            References::Remove => done.acknowledge_all(groups, id),
            References::Keep | References::Respect => {}
        }
        let is_there = entries.contains(id);
        if is_there {
            ctx.core.keyspace.edit_entries(slot, |entries| entries.delete(&[id]))?;
            done.deleted.push(id);
        }
        // What was acknowledged may have been deleted before.
        results.push(if is_there || group.is_some() { DONE } else { NOT_THERE });
    }
    done.conclude(ctx);
    ctx.reply.array(results.len());
    results.into_iter().for_each(|result| ctx.reply.integer(result));
    Ok(Outcome::Replied)
}
