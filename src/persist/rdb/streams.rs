//! Streams: listpacks of entries, the stream's counters and IDs, and its groups.
//!
//! ```text
//!   stream    nodes | entries | last ID | [first ID | greatest deleted ID | entries ever added] | groups | [producers]
//!   node      ID as 16 bytes | listpack
//!   group     name | last ID | [entries read] | pending entries | consumers | [IDs of released entries]
//!   pending   ID as 16 bytes | time of delivery | deliveries
//!   consumer  name | time seen | [time active] | IDs of its pending entries
//! ```
//!
//! Files of Redis 5 and 7.0.0 exist whose numbers disagree with their entries. Redis loads them,
//! and so does this: numbers that follow from the entries are computed.
//!
//! The parts in brackets came with types 19, 21, 26 (producers) and 27 (released entries).
//! A producer is a name, and the names of entries with their IDs; after all of them come the
//! numbers of names added and repeated, before them the limits. Released entries go to a consumer
//! of their own.
//!
//! A node's listpack:
//!
//! ```text
//!   entries | deleted entries | number of fields | fields | 0
//!   flags | ms and sequence number, counted from the node's ID | [number of fields] | pieces | number of elements before
//! ```

use crate::clock::Now;
use crate::collections::packed::{Element, Text as ElementText};
use crate::types::journal::Edit;
use crate::types::stream::{
    Counting, Entries, Group, Loader, LoaderError, Pending, ProducerLimits, Producers, RELEASED,
    SavedNode, Stream, StreamId,
};

use super::encoder::{Encoder, Sink};
use super::error::DecodeError;
use super::input::{ID_BYTES, PRODUCER_LIMITS};
use super::packed::{ListpackWriter, Packed};
use super::reader::Reader;
use super::value_type;

type Decoded<T> = Result<T, DecodeError>;

/// Flags of an entry.
const DELETED: i64 = 1;
const SAME_FIELDS: i64 = 2;

/// `entries_read` if unknown.
const UNKNOWN_READ: i64 = -1;
/// The time of activity of a consumer that was never active.
const NEVER_ACTIVE: i64 = -1;

// ---- reading ------------------------------------------------------------------------------------

pub(super) fn read(reader: &mut Reader<'_>, value_type: u8) -> Decoded<Stream> {
    let mut loader = Loader::default();
    let nodes = reader.count(2 + ID_BYTES, "a count of nodes")?;
    for _ in 0..nodes {
        let id = reader.string("a node's ID")?;
        let id = id.first_chunk().filter(|_| id.len() == ID_BYTES);
        let id = id
            .map(|id| read_id(*id))
            .ok_or_else(|| reader.malformed("a node's ID that is none"))?;
        let text = reader.string("a node")?;
        let packed = reader.listpack(&text)?;
        let what = read_node(&mut loader, id, &packed).err();
        if let Some(what) = what {
            return Err(reader.malformed(what));
        }
    }
    let len = reader.length("a count of entries")?;
    let last = id_of_lengths(reader)?;
    // New entries follow the greatest of both.
    let last = loader.top().map_or(last, |top| top.max(last));
    let mut entries = loader.finish();
    if len > 0 && nodes == 0 {
        return Err(reader.malformed("a stream that has no entries although it says so"));
    }
    let len = entries.len();
    let (max_deleted, added) = match value_type {
        value_type::STREAM => (StreamId::MIN, len),
        _ => {
            // The first ID follows from the entries.
            id_of_lengths(reader)?;
            (id_of_lengths(reader)?, reader.length("a count of entries")?)
        }
    };
    Edit::unnoted(&mut entries).set_remembered(last, Some(added as i64), Some(max_deleted));
    let mut stream = Stream::new(entries);
    let groups = reader.count(5, "a count of groups")?;
    for _ in 0..groups {
        let name = reader.string("a group's name")?;
        let group = read_group(reader, value_type, stream.entries())?;
        if !stream.groups.insert(&name, group) {
            return Err(reader.malformed("Duplicate stream consumer group detected"));
        }
    }
    if value_type >= value_type::STREAM_4 {
        stream.producers = read_producers(reader)?;
    }
    Ok(stream)
}

/// None: there are none, with the limits that streams have by default.
fn read_producers(reader: &mut Reader<'_>) -> Decoded<Option<Box<Producers>>> {
    const WHAT: &str = "what a stream remembers of its producers";
    let mut limits = [0; 2];
    for (limit, range) in limits.iter_mut().zip(PRODUCER_LIMITS) {
        let given = reader.length(WHAT)?;
        if !range.contains(&given) {
            return Err(reader.malformed(WHAT));
        }
        *limit = given as u32;
    }
    let [duration, names] = limits;
    let mut producers = Producers::new(ProducerLimits { duration, names });
    for _ in 0..reader.count(2, WHAT)? {
        let producer = reader.string("a producer")?;
        for _ in 0..reader.count(3, WHAT)? {
            let name = reader.string("what a producer has added")?;
            let id = id_of_lengths(reader)?;
            if producers.find(&producer, &name).is_none() {
                producers.put(&producer, &name, id);
            }
        }
    }
    producers.added = reader.length(WHAT)?;
    producers.repeated = reader.length(WHAT)?;
    Ok((!producers.is_new()).then(|| Box::new(producers)))
}

fn read_id(bytes: [u8; ID_BYTES]) -> StreamId {
    let id = u128::from_be_bytes(bytes);
    StreamId { ms: (id >> 64) as u64, seq: id as u64 }
}

fn id_of_lengths(reader: &mut Reader<'_>) -> Decoded<StreamId> {
    let ms = reader.length("an ID")?;
    Ok(StreamId { ms, seq: reader.length("an ID")? })
}

/// Adds a node's entries. Errors: the text of a fault.
fn read_node(loader: &mut Loader, node: StreamId, packed: &Packed<'_>) -> Result<(), &'static str> {
    const SHORT: &str = "a stream's node that ends early";
    let mut elements = packed.elements();
    // The numbers of live and deleted entries, which follow from the entries.
    for _ in 0..2 {
        count(elements.next(), packed)?;
    }
    let names = count(elements.next(), packed)?;
    let names: Vec<Element<'_>> = elements.by_ref().take(names).collect();
    if integer(elements.next())? != 0 {
        return Err("a stream's node whose fields do not end");
    }
    loader.begin_node();
    let mut pieces: Vec<ElementText<'_>> = Vec::new();
    let mut is_first = true;
    let mut has_names = false;
    while let Some(flags) = elements.next() {
        let flags = integer(Some(flags))?;
        let ms = integer(elements.next())? as u64;
        let seq = integer(elements.next())? as u64;
        let id = StreamId { ms: node.ms.wrapping_add(ms), seq: node.seq.wrapping_add(seq) };
        let has_same = flags & SAME_FIELDS != 0;
        // A node's field names are stored with its first entry, which must have them.
        has_names |= is_first && has_same;
        is_first = false;
        if has_same && !has_names {
            return Err("a stream's node whose first entry has not the node's fields");
        }
        let fields = if has_same { names.len() } else { count(elements.next(), packed)? };
        if fields == 0 {
            return Err("an entry without fields");
        }
        pieces.clear();
        let mut own_names = names.iter();
        for _ in 0..fields {
            let field = if has_same { own_names.next().copied() } else { elements.next() };
            let (Some(field), Some(value)) = (field, elements.next()) else { return Err(SHORT) };
            pieces.extend([field.text(), value.text()]);
        }
        let before = if has_same { fields as i64 + 3 } else { 2 * fields as i64 + 4 };
        if integer(elements.next())? != before {
            return Err("an entry that has not as many elements as it says");
        }
        let is_deleted = flags & DELETED != 0;
        loader.push(id, is_deleted, fields, |index| pieces[index].as_ref()).map_err(|error| {
            match error {
                LoaderError::NotAbove => "entries whose IDs do not ascend",
                LoaderError::TooLarge => "a stream's node that is too large",
            }
        })?;
    }
    if is_first {
        return Err("a stream's node without entries");
    }
    Ok(())
}

fn integer(element: Option<Element<'_>>) -> Result<i64, &'static str> {
    match element {
        Some(Element::Integer(value)) => Ok(value),
        _ => Err("a stream's node without an integer where one belongs"),
    }
}

/// A count of elements, at most as many as the listpack has.
fn count(element: Option<Element<'_>>, packed: &Packed<'_>) -> Result<usize, &'static str> {
    match usize::try_from(integer(element)?) {
        Ok(count) if count <= packed.count => Ok(count),
        _ => Err("a stream's node with a count that it cannot hold"),
    }
}

/// A pending entry of a group; its consumer is read later.
struct Unassigned {
    id: StreamId,
    delivered_ms: i64,
    deliveries: i64,
    consumer: Option<u32>,
}

fn read_group(reader: &mut Reader<'_>, value_type: u8, entries: &Entries) -> Decoded<Group> {
    let last = id_of_lengths(reader)?;
    let read = match value_type {
        value_type::STREAM => entries.estimate_read(last, Counting::Redis),
        _ => Some(reader.length("a count of entries")? as i64).filter(|read| *read >= 0),
    };
    let mut group = Group::new(last, read);
    let mut pending = Vec::new();
    for _ in 0..reader.count(ID_BYTES + 9, "a count of pending entries")? {
        let id = read_id(reader.array("a pending entry")?);
        let delivered_ms = reader.unix_ms("a pending entry")?;
        let deliveries = reader.length("a pending entry")? as i64;
        pending.push(Unassigned { id, delivered_ms, deliveries, consumer: None });
    }
    pending.sort_by_key(|entry: &Unassigned| entry.id);
    if pending.windows(2).any(|pair| pair[0].id == pair[1].id) {
        return Err(reader.malformed("an entry that is pending twice"));
    }
    let mut first_consumer = None;
    for _ in 0..reader.count(10, "a count of consumers")? {
        let name = reader.string("a consumer's name")?;
        let seen_ms = reader.unix_ms("a consumer's times")?;
        let active_ms = match value_type {
            // Before type 21, a consumer was last active when it was last seen.
            value_type::STREAM | value_type::STREAM_2 => seen_ms,
            _ => reader.unix_ms("a consumer's times")?,
        };
        let (consumer, is_new) = group.meet_consumer(&name, seen_ms);
        if !is_new {
            return Err(reader.malformed("Duplicate stream consumer detected"));
        }
        first_consumer.get_or_insert(consumer);
        group.consumer_mut(consumer).active_ms =
            Some(active_ms).filter(|active| *active != NEVER_ACTIVE);
        for _ in 0..reader.count(ID_BYTES, "a count of pending entries")? {
            let id = read_id(reader.array("a consumer's pending entry")?);
            let Ok(index) = pending.binary_search_by(|entry| entry.id.cmp(&id)) else {
                return Err(reader.malformed("a consumer's entry that is not its group's"));
            };
            // If several consumers have it, the last one counts.
            if pending[index].consumer.replace(consumer) == Some(consumer) {
                return Err(reader.malformed("an entry that is pending twice"));
            }
        }
    }
    if value_type >= value_type::STREAM_5 {
        for position in 0..reader.count(ID_BYTES, "a count of pending entries")? {
            let id = read_id(reader.array("a pending entry without a consumer")?);
            let Ok(index) = pending.binary_search_by(|entry| entry.id.cmp(&id)) else {
                return Err(reader.malformed("a released entry that is not its group's"));
            };
            let (released, _) = group.meet_consumer(RELEASED, 0);
            if pending[index].consumer.replace(released).is_some() {
                return Err(reader.malformed("a released entry that has a consumer"));
            }
            pending[index].delivered_ms = position as i64;
        }
    }
    for Unassigned { id, delivered_ms, deliveries, consumer } in pending {
        // Nobody would see an entry without a consumer. In a group that has one it can be claimed.
        let Some(consumer) = consumer.or(first_consumer) else { continue };
        group.load(id, Pending { consumer, delivered_ms, deliveries });
    }
    group.settle_loaded(0);
    Ok(group)
}

// ---- writing ------------------------------------------------------------------------------------

/// Whether consumers' times of activity need type 21.
pub(super) fn needs_active_times(stream: &Stream) -> bool {
    let mut consumers = stream.groups.iter().flat_map(|(_, group)| group.consumers());
    consumers.any(|consumer| consumer.active_ms != Some(consumer.seen_ms))
}

/// Writes a stream as type 19, 21 or 26.
pub(super) fn write(
    encoder: &mut Encoder,
    stream: &Stream,
    value_type: u8,
    now: &Now,
    out: &mut impl Sink,
) {
    let (entries, groups) = (stream.entries(), &stream.groups);
    let nodes = entries.saved_nodes();
    encoder.length(nodes.len() as u64, out);
    for node in nodes {
        encoder.string(&id_bytes(node.first()), out);
        encoder.listpack(out, |listpack| write_node(node, listpack));
    }
    let id = |id: StreamId, encoder: &Encoder, out: &mut _| {
        encoder.length(id.ms, out);
        encoder.length(id.seq, out);
    };
    encoder.length(entries.len(), out);
    id(entries.last, encoder, out);
    id(entries.first(), encoder, out);
    id(entries.max_deleted, encoder, out);
    encoder.length(entries.added as u64, out);
    encoder.length(groups.len() as u64, out);
    for (name, group) in groups.iter() {
        encoder.string(name, out);
        id(group.last, encoder, out);
        encoder.length(group.read.unwrap_or(UNKNOWN_READ) as u64, out);
        encoder.length(group.pending().len() as u64, out);
        for (id, pending) in group.pending().iter() {
            out.put(&id_bytes(*id));
            let delivered_ms = encoder.leases.unix_ms(pending.delivered_ms);
            out.put(&delivered_ms.to_le_bytes());
            encoder.length(pending.deliveries as u64, out);
        }
        let consumers = group.consumers();
        encoder.length(consumers.len() as u64, out);
        for consumer in consumers {
            encoder.string(&consumer.name, out);
            out.put(&consumer.seen_ms.to_le_bytes());
            if value_type >= value_type::STREAM_3 {
                out.put(&consumer.active_ms.unwrap_or(NEVER_ACTIVE).to_le_bytes());
            }
            encoder.length(consumer.pending().len() as u64, out);
            for (id, ()) in consumer.pending().iter() {
                out.put(&id_bytes(*id));
            }
        }
    }
    if value_type >= value_type::STREAM_4
        && let Some(producers) = &stream.producers
    {
        let now_ms = now.unix().0.max(0) as u64;
        encoder.length(producers.limits.duration.into(), out);
        encoder.length(producers.limits.names.into(), out);
        encoder.length(producers.live(now_ms).count() as u64, out);
        for ((producer, names), (_, counted)) in producers.live(now_ms).zip(producers.live(now_ms))
        {
            encoder.string(producer, out);
            encoder.length(counted.count() as u64, out);
            for (name, named) in names {
                encoder.string(name, out);
                id(named, encoder, out);
            }
        }
        encoder.length(producers.added, out);
        encoder.length(producers.repeated, out);
    }
}

fn id_bytes(id: StreamId) -> [u8; ID_BYTES] {
    (u128::from(id.ms) << 64 | u128::from(id.seq)).to_be_bytes()
}

fn write_node(node: SavedNode<'_>, listpack: &mut ListpackWriter) {
    listpack.push_integer(node.live().into());
    listpack.push_integer(node.deleted().into());
    let (count, fields) = node.fields();
    listpack.push_integer(count as i64);
    fields.for_each(|field| listpack.push(field));
    listpack.push_integer(0);
    let first = node.first();
    for entry in node.entries() {
        let deleted = if entry.is_deleted { DELETED } else { 0 };
        let same = if entry.has_own_fields { 0 } else { SAME_FIELDS };
        listpack.push_integer(deleted | same);
        listpack.push_integer(entry.id.ms.wrapping_sub(first.ms) as i64);
        listpack.push_integer(entry.id.seq.wrapping_sub(first.seq) as i64);
        let fields = entry.fields as i64;
        if entry.has_own_fields {
            listpack.push_integer(fields);
        }
        entry.pieces.for_each(|piece| listpack.push(piece));
        listpack.push_integer(if entry.has_own_fields { 2 * fields + 4 } else { fields + 3 });
    }
}
