//! `/api/queues`: lists, sorted sets and streams that clients wait for, or that `page-keys` names,
//! and streams with groups.

use std::collections::BTreeSet;

use super::access::Rights;
use super::care::{Care, Place as CarePlace};
use super::json::{BYTES_MAX, Json, TEXT_BYTES_MAX, id};
use super::locks::{json_response, limit, redis_cli};
use super::walk::{NAMED_MAX, WANTED, is_pattern};
use crate::collections::score_tree::Place;
use crate::collections::table::ValueRef;
use crate::figures::exposition::Exposition;
use crate::keyspace::waiting::Wanted;
use crate::keyspace::{DbIndex, Keyspace};
use crate::net::http::head::Request;
use crate::net::http::response::Response;
use crate::state::{Core, State};
use crate::types::list::List;
use crate::types::sorted_set::SortedSet;
use crate::types::stream::{Counting, Group as StreamGroup, PAUSED, Stream};
use crate::types::{Collection, Value, type_name};

/// Groups of a stream that are shown.
const GROUPS_MAX: usize = 10;
/// The most bytes of a name in a label.
const LABEL_BYTES_MAX: usize = 1024;
/// Scores from this on are taken for Unix milliseconds, lower ones for seconds: the year 2286 in
/// seconds.
const MILLISECONDS_FROM: f64 = 1e10;

/// The figures of a queue.
#[derive(Default)]
struct Queue {
    kind: &'static str,
    length: u64,
    consumers: usize,
    /// Unix milliseconds of the oldest item, if it has a time.
    oldest_ms: Option<i64>,
    /// Members of a sorted set by due times whose time has come.
    overdue: Option<usize>,
    groups: Vec<Group>,
}

struct Group {
    name: Vec<u8>,
    pending: usize,
    /// Milliseconds since the first pending entry's last delivery.
    idle_ms: Option<i64>,
    /// Entries that nobody has read; None: unknown.
    ready: Option<i64>,
    /// Pending entries without an owner, and those of them whose pause is not over.
    released: usize,
    delayed: usize,
    buried: u64,
    gone: u64,
    consumers: usize,
    is_paused: bool,
}

fn look(keyspace: &Keyspace, database: DbIndex, key: &[u8]) -> Queue {
    let waits = |wanted: &Wanted| keyspace.waiting.len(database, key, *wanted);
    let consumers = WANTED.iter().map(waits).sum();
    let entry =
        keyspace.entry_quietly(database, key).filter(|entry| !keyspace.is_hidden(entry.key()));
    let Some(entry) = entry else {
        return Queue { kind: "none", consumers, ..Queue::default() };
    };
    let value = entry.value();
    let queue = Queue { kind: type_name(value), consumers, ..Queue::default() };
    if let Some(list) = List::view(value) {
        return Queue { length: list.len() as u64, ..queue };
    }
    if let Some(set) = SortedSet::view(value) {
        let oldest_ms = set.first().and_then(|(score, _)| match score {
            score if !(1e9..1e16).contains(&score) => None,
            score if score < MILLISECONDS_FROM => Some((score * 1000.0) as i64),
            score => Some(score as i64),
        });
        let now_ms = keyspace.now().unix().0;
        let overdue = set.first().filter(|_| oldest_ms.is_some()).map(|(score, _)| {
            let is_in_seconds = score < MILLISECONDS_FROM;
            let now = if is_in_seconds { now_ms as f64 / 1000.0 } else { now_ms as f64 };
            set.rank_of(Place::AfterScore(now))
        });
        return Queue { length: set.len() as u64, oldest_ms, overdue, ..queue };
    }
    match value {
        ValueRef::Object(Value::Stream(stream)) => of_stream(queue, stream, keyspace.lease_ms()),
        _ => queue,
    }
}

fn of_stream(queue: Queue, stream: &Stream, now_ms: i64) -> Queue {
    let owned = |group: &StreamGroup| {
        let (_, pending) = group.pending().first()?;
        let is_owned = !group.is_released(pending.consumer);
        is_owned.then(|| now_ms.saturating_sub(pending.delivered_ms).max(0))
    };
    let groups = stream.groups.iter().take(GROUPS_MAX).map(|(name, group)| Group {
        name: name.to_vec(),
        pending: group.pending().len(),
        idle_ms: owned(group),
        ready: stream.entries().lag(group.last, group.read, Counting::Redis),
        released: group.released_len(),
        delayed: group.delayed_len(now_ms),
        buried: group.buried,
        gone: group.gone,
        consumers: group.shown_consumers().filter(|one| *one.name != *PAUSED).count(),
        is_paused: group.is_paused(),
    });
    let oldest_ms = (!stream.entries().is_empty()).then(|| stream.entries().first().ms as i64);
    Queue { length: stream.entries().len(), oldest_ms, groups: groups.collect(), ..queue }
}

/// The keys named by `page-keys`: directly, or by its patterns.
fn named(state: &State) -> BTreeSet<&[u8]> {
    let plain = state.config.page_keys.iter().filter(|name| !is_pattern(name));
    let walk = &state.net.key_walk;
    let complete = walk.complete.iter().flat_map(|round| &round.named);
    let found = complete.chain(&walk.present.named).map(|key| &**key);
    plain.map(Vec::as_slice).chain(found).take(NAMED_MAX).collect()
}

/// Looks for what is wrong with a queue, given its figures.
fn care(core: &Core, database: DbIndex, key: &[u8], queue: &Queue) -> Care {
    let (keyspace, mut care) = (&core.keyspace, Care::default());
    let there = keyspace.entry_quietly(database, key);
    let Some(entry) = there.filter(|entry| !keyspace.is_hidden(entry.key())) else { return care };
    let cli = redis_cli(&core.state, database);
    let unix_ms = core.state.now.unix().0;
    let place = CarePlace { cli: &cli, key, waiting: queue.consumers, unix_ms };
    if let ValueRef::Object(Value::Stream(stream)) = entry.value() {
        for ((name, group), shown) in stream.groups.iter().zip(&queue.groups) {
            care.look_at_group(&place, name, group, shown.ready);
        }
    } else if let Some(due_ms) = queue.oldest_ms
        && let Some((_, member)) = SortedSet::view(entry.value()).and_then(|set| set.first())
    {
        care.look_at_due(&place, member.as_ref(), due_ms);
    }
    let config = &core.state.config;
    let is_spared = keyspace.is_spared(database, &entry);
    care.look_at_eviction(config.maxmemory_policy, config.maxmemory, is_spared);
    care
}

/// `/api/queues?limit=`: the queues that clients wait for, the named ones of database 0, and
/// streams with groups.
pub fn list(core: &mut Core, rights: &Rights, request: &Request) -> Response {
    let limit = limit(request);
    let mut found: BTreeSet<(DbIndex, Box<[u8]>)> =
        named(&core.state).into_iter().map(|key| (DbIndex::ZERO, key.into())).collect();
    let mut has_more = false;
    let streams =
        core.state.net.key_walk.complete.iter().flat_map(|round| round.streams.iter().rev());
    for (_, key) in streams {
        if found.len() < limit {
            found.insert((DbIndex::ZERO, key.clone()));
        }
    }
    for (database, key) in core.keyspace.waiting.keys_for(&WANTED) {
        let name = (database, key.into());
        if found.len() >= limit && !found.contains(&name) {
            has_more = true;
            break;
        }
        found.insert(name);
    }
    let now_ms = core.state.now.unix().0;
    let mut json = Json::default();
    json.open('{');
    json.name("items");
    json.open('[');
    for (database, key) in found {
        let key = &*key;
        if !rights.may_read(&core.state, database, key) {
            continue;
        }
        if json.len() >= BYTES_MAX {
            has_more = true;
            break;
        }
        let queue = look(&core.keyspace, database, key);
        json.open('{');
        json.named_text("key", key);
        json.named_whole("id", &id(key));
        json.named("db", database);
        json.named_text("type", queue.kind);
        json.named("length", queue.length);
        json.named("consumers", queue.consumers);
        let flow = core.keyspace.flows.look(database, key, core.state.now.boot_us);
        json.maybe("arrived", flow.map(|flow| flow.arrived));
        json.maybe("left", flow.map(|flow| flow.left));
        json.maybe("oldest_ms", queue.oldest_ms.map(|at_ms| now_ms.saturating_sub(at_ms)));
        json.maybe("overdue", queue.overdue);
        json.name("groups");
        json.open('[');
        for group in &queue.groups {
            json.open('{');
            json.named_text("name", &group.name);
            json.named("pending", group.pending);
            json.maybe("idle_ms", group.idle_ms);
            json.maybe("ready", group.ready);
            json.named("released", group.released);
            json.named("delayed", group.delayed);
            json.named("buried", group.buried);
            json.named("gone", group.gone);
            json.named("consumers", group.consumers);
            json.named("paused", group.is_paused);
            json.close('}');
        }
        json.close(']');
        let care = care(core, database, key, &queue);
        for (name, texts) in [("warnings", &care.warnings), ("commands", &care.commands)] {
            json.name(name);
            json.open('[');
            // A command that is cut would do something else.
            for text in texts.iter().filter(|text| text.len() <= TEXT_BYTES_MAX) {
                json.text(text.as_bytes());
            }
            json.close(']');
        }
        json.close('}');
    }
    json.close(']');
    json.named("more", has_more);
    json.close('}');
    json_response(json)
}

/// The named queues as metrics: no other metrics have names of keys.
pub fn metrics(core: &Core, rights: &Rights) -> String {
    let mut keys = named(&core.state);
    keys.retain(|key| rights.may_read(&core.state, DbIndex::ZERO, key));
    let mut out = Exposition::default();
    if keys.is_empty() {
        return out.text();
    }
    let now_ms = core.state.now.unix().0;
    // No series may appear twice. Names that are long or no text can have the same label: only the
    // first of them is shown.
    let mut queues: Vec<(String, Queue)> = Vec::new();
    for key in keys {
        let label = label(key);
        if !queues.iter().any(|(other, _)| *other == label) {
            queues.push((label, look(&core.keyspace, DbIndex::ZERO, key)));
        }
    }
    let name = "latchkey_queue_length";
    out.family(name, "gauge", "Items of a queue.");
    for (key, queue) in &queues {
        out.sample(name, &[("key", key)], queue.length as f64);
    }
    let name = "latchkey_queue_oldest_seconds";
    out.family(name, "gauge", "Age of the oldest item, by its stream ID or due time.");
    for (key, queue) in &queues {
        if let Some(at_ms) = queue.oldest_ms {
            out.sample(name, &[("key", key)], now_ms.saturating_sub(at_ms).max(0) as f64 / 1000.0);
        }
    }
    let name = "latchkey_queue_consumers_waiting";
    out.family(name, "gauge", "Clients that wait for items.");
    for (key, queue) in &queues {
        out.sample(name, &[("key", key)], queue.consumers as f64);
    }
    let name = "latchkey_stream_oldest_pending_seconds";
    out.family(name, "gauge", "Since when the first pending entry has not been delivered again.");
    for (key, queue) in &queues {
        let mut told = Vec::new();
        for group in &queue.groups {
            let name_of_group = label(&group.name);
            if let Some(idle_ms) = group.idle_ms
                && !told.contains(&name_of_group)
            {
                let labels = [("key", &**key), ("group", &*name_of_group)];
                out.sample(name, &labels, idle_ms as f64 / 1000.0);
                told.push(name_of_group);
            }
        }
    }
    for (name, kind, help, figure) in OF_GROUPS {
        out.family(name, kind, help);
        for (key, queue) in &queues {
            let mut told = Vec::new();
            for group in &queue.groups {
                let name_of_group = label(&group.name);
                if let Some(figure) = figure(group).filter(|_| !told.contains(&name_of_group)) {
                    let labels = [("key", &**key), ("group", &*name_of_group)];
                    out.sample(name, &labels, figure as f64);
                    told.push(name_of_group);
                }
            }
        }
    }
    out.text()
}

type OfGroup = (&'static str, &'static str, &'static str, fn(&Group) -> Option<i64>);

/// The metrics of a stream's group.
const OF_GROUPS: [OfGroup; 7] = [
    ("latchkey_stream_group_ready", "gauge", "Entries that nobody has read.", |it| it.ready),
    ("latchkey_stream_group_taken", "gauge", "Pending entries that a consumer has.", |it| {
        Some((it.pending - it.released) as i64)
    }),
    ("latchkey_stream_group_released", "gauge", "Pending entries without an owner.", |it| {
        Some(it.released as i64)
    }),
    (
        "latchkey_stream_group_delayed",
        "gauge",
        "Those of them that wait for the end of a pause.",
        |it| Some(it.delayed as i64),
    ),
    ("latchkey_stream_group_buried_total", "counter", "Entries that became dead letters.", |it| {
        Some(it.buried as i64)
    }),
    ("latchkey_stream_group_gone_total", "counter", "Pending entries that had no data.", |it| {
        Some(it.gone as i64)
    }),
    ("latchkey_stream_group_paused", "gauge", "1 while a group is paused.", |it| {
        Some(it.is_paused.into())
    }),
];

/// A name for a label; a long one is cut.
fn label(name: &[u8]) -> String {
    String::from_utf8_lossy(&name[..name.len().min(LABEL_BYTES_MAX)]).into_owned()
}
