//! `/api/semaphores`: semaphores with their permits, and the clients that wait for them.

use std::collections::BTreeSet;

use super::access::Rights;
use super::json::{BYTES_MAX, Json, id};
use super::locks::{client, json_response, limit};
use crate::keyspace::DbIndex;
use crate::keyspace::waiting::Wanted;
use crate::net::http::head::Request;
use crate::net::http::response::Response;
use crate::state::Core;
use crate::types::sorted_set::SortedSet;
use crate::types::{Collection, lock};

/// Permits and waiting clients of a semaphore that are shown.
const SHOWN_MAX: usize = 10;
/// Semaphores that are looked at. Those that clients wait for come first.
const LOOKS: usize = 10_000;

/// `/api/semaphores?limit=`: those with the most waiting clients first, then those with the most
/// permits.
pub fn list(core: &Core, rights: &Rights, request: &Request) -> Response {
    let (keyspace, limit) = (&core.keyspace, limit(request));
    let now_ms = core.state.now.unix().0;
    let awaited = keyspace.waiting.queues_for(Wanted::Semaphore).take(LOOKS);
    let awaited = awaited.map(|(database, key, waiters)| (waiters, 0, database, key));
    let held = keyspace.semaphores.known().take(LOOKS).map(|(database, key, deadlines)| {
        let waiters = keyspace.waiting.len(database, key, Wanted::Semaphore);
        let ended = deadlines.partition_point(|deadline_ms| *deadline_ms < now_ms);
        (waiters, deadlines.len() - ended, database, key)
    });
    let mut seen = BTreeSet::new();
    let mut found: Vec<_> = held.chain(awaited).collect();
    found.retain(|(.., database, key)| seen.insert((*database, *key)));
    found.sort_by(|a, b| (b.0, b.1, a.2, a.3).cmp(&(a.0, a.1, b.2, b.3)));
    let (mut json, mut told, mut has_more) = (Json::default(), 0, false);
    json.open('{');
    json.name("items");
    json.open('[');
    for (waiters, held, database, key) in found {
        if told == limit || json.len() >= BYTES_MAX {
            has_more = true;
            break;
        }
        if !rights.may_see_semaphore(&core.state, database, key) {
            continue;
        }
        told += 1;
        json.open('{');
        json.named_text("key", key);
        json.named_whole("id", &id(key));
        json.named("db", database);
        json.named("held", held);
        permits(&mut json, core, database, key);
        json.named("waiters", waiters);
        queue(&mut json, core, database, key);
        json.close('}');
    }
    json.close(']');
    json.named("more", has_more);
    json.close('}');
    json_response(json)
}

/// Appends the stored limit, and the first permits in the order of their ends.
fn permits(json: &mut Json, core: &Core, database: DbIndex, key: &[u8]) {
    let now_ms = core.state.now.unix().0;
    let entry = core.keyspace.entry_quietly(database, key);
    let value = entry.as_ref().map(|entry| entry.value()).filter(|it| lock::is_semaphore(*it));
    let set = value.and_then(SortedSet::view);
    let limit = set.as_ref().and_then(lock::stored_limit);
    json.maybe("limit", limit);
    let members = set.iter().flat_map(|set| set.iter());
    let held = members.filter(|(until, _)| (now_ms as f64..lock::LIMIT_SCORE).contains(until));
    json.name("permits");
    json.open('[');
    for (deadline, permit) in held.take(SHOWN_MAX) {
        json.open('{');
        json.named_text("owner", lock::owner_of_permit(permit.as_ref()));
        json.named("fence", lock::fence_of_permit(permit.as_ref()));
        json.named("left_ms", (deadline as i64).saturating_sub(now_ms));
        json.close('}');
    }
    json.close(']');
}

/// Appends the first clients that wait, in their order.
fn queue(json: &mut Json, core: &Core, database: DbIndex, key: &[u8]) {
    json.name("queue");
    json.open('[');
    let queue = core.keyspace.waiting.iter(database, key, Wanted::Semaphore);
    for wait in queue.filter_map(|ticket| core.state.waits.get(ticket)).take(SHOWN_MAX) {
        json.open('{');
        json.named_text("owner", wait.owner());
        json.named("waited_ms", (core.state.now.boot_us - wait.since_us).max(0) / 1000);
        json.name("client");
        client(json, &core.state, Some(wait.client));
        json.close('}');
    }
    json.close(']');
}
