//! A walk over all keys, some in each turn of the periodic work, for what no index knows: the keys
//! that match the patterns of `page-keys`, streams with groups, and the largest keys.

use crate::collections::glob;
use crate::collections::table::{Entry, ValueRef};
use crate::keyspace::DbIndex;
use crate::keyspace::waiting::Wanted;
use crate::state::Core;
use crate::state::http_job::{KeyWalk, Round};
use crate::types::{Value, type_name};

/// Keys that `page-keys` may name.
pub const NAMED_MAX: usize = 100;
/// Streams with groups that are shown though nothing names them, the longest.
const STREAMS_MAX: usize = 100;
/// Keys of a type that are shown for their size, the largest.
const LARGEST_MAX: usize = 10;
/// Keys with longer names are not shown for their size: the names would be kept. Unit: bytes.
const NAME_BYTES_MAX: usize = 64 << 10;
/// Keys looked at in one turn of the periodic work.
const LOOKS: usize = 2000;
/// Keys with waiting clients that are compared with patterns once in a round.
const AWAITED_MAX: usize = 2000;

/// What clients want that wait at queues.
pub const WANTED: [Wanted; 7] = [
    Wanted::List,
    Wanted::SortedSet,
    Wanted::DueSeconds,
    Wanted::DueMilliseconds,
    Wanted::Stream,
    Wanted::StreamGroup,
    Wanted::StreamClaim,
];

/// Goes on among some further keys; after the last of them compares the keys that clients wait for,
/// which may be empty, with the patterns, and begins anew. Call this in the periodic work.
pub fn go_on(core: &mut Core) {
    let (walk, keyspace) = (&mut core.state.net.key_walk, &core.keyspace);
    if walk.patterns != core.state.config.page_keys {
        *walk = KeyWalk { patterns: core.state.config.page_keys.clone(), ..KeyWalk::default() };
    }
    if !core.state.net.http.is_listening() {
        return;
    }
    let mut left = LOOKS;
    while left > 0 {
        let (database, patterns, round) = (walk.database, &walk.patterns, &mut walk.present);
        let mut looked = 0;
        walk.cursor = keyspace.table_of(database).scan(walk.cursor, left, |entry| {
            looked += 1;
            if !keyspace.is_hidden(entry.key()) {
                weigh(round, database, &entry);
                if database == DbIndex::ZERO {
                    note_queue(round, patterns, &entry);
                }
            }
        });
        left = left.saturating_sub(looked.max(1));
        if walk.cursor == 0 {
            walk.database = database.next();
        }
        if walk.database.get() < keyspace.databases() {
            continue;
        }
        let awaited = keyspace.waiting.keys_for(&WANTED).take(AWAITED_MAX);
        let names = awaited.filter(|(database, _)| *database == DbIndex::ZERO);
        for (_, name) in names.filter(|(_, name)| is_named_by(patterns, name)) {
            if round.named.len() < NAMED_MAX {
                round.named.insert(name.into());
            }
        }
        round.ended_us = core.state.now.boot_us;
        walk.complete = Some(std::mem::take(round));
        walk.database = DbIndex::ZERO;
        return;
    }
}

/// The approximate bytes of memory of a key and its value.
pub fn bytes_of(entry: &Entry<'_, Value>) -> usize {
    let beside = match entry.value() {
        ValueRef::Object(object) => object.heap_bytes(),
        ValueRef::Bytes { .. } => 0,
    };
    entry.allocated() + beside
}

/// Counts a key, and keeps its name while it is one of the largest of its type.
fn weigh(round: &mut Round, database: DbIndex, entry: &Entry<'_, Value>) {
    let bytes = bytes_of(entry);
    let all = round.types.entry(type_name(entry.value())).or_default();
    all.keys += 1;
    all.bytes += bytes as u64;
    let is_large = all.largest.first().is_none_or(|(least, ..)| bytes > *least);
    let has_room = all.largest.len() < LARGEST_MAX;
    if (is_large || has_room) && entry.key().len() <= NAME_BYTES_MAX {
        all.largest.insert((bytes, database, entry.key().into()));
        if all.largest.len() > LARGEST_MAX {
            all.largest.pop_first();
        }
    }
}

/// Keeps the name of a stream that has groups, and of a queue that a pattern matches.
fn note_queue(round: &mut Round, patterns: &[Vec<u8>], entry: &Entry<'_, Value>) {
    if let ValueRef::Object(Value::Stream(stream)) = entry.value()
        && !stream.groups.is_empty()
    {
        round.streams.insert((stream.entries().len(), entry.key().into()));
        if round.streams.len() > STREAMS_MAX {
            round.streams.pop_first();
        }
    }
    let is_queue = matches!(type_name(entry.value()), "list" | "zset" | "stream");
    if is_queue && round.named.len() < NAMED_MAX && is_named_by(patterns, entry.key()) {
        round.named.insert(entry.key().into());
    }
}

/// Whether a pattern among the names of `page-keys` matches a key.
fn is_named_by(names: &[Vec<u8>], key: &[u8]) -> bool {
    names.iter().any(|name| is_pattern(name) && glob::matches(name, key, false))
}

pub fn is_pattern(name: &[u8]) -> bool {
    name.iter().any(|byte| b"*?[\\".contains(byte))
}
