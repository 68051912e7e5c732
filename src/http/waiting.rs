//! `/api/waiting`: waiting clients and the owners they wait for, and the cycles in which owners
//! wait for each other.

use super::access::Rights;
use super::json::{BYTES_MAX, Json, id};
use super::locks::{client, json_response, limit};
use crate::gate::cycles::{self, Cycle};
use crate::keyspace::waiting::Wanted;
use crate::net::http::head::Request;
use crate::net::http::response::Response;
use crate::state::Core;
use crate::types::lock;

/// The most cycles that are shown.
const CIRCLES_MAX: usize = 20;
/// The most owners of a cycle that are shown.
const OWNERS_MAX: usize = 50;

/// `/api/waiting?limit=`: the longest waits for locks, with the holders, and cycles.
pub fn list(core: &Core, rights: &Rights, request: &Request) -> Response {
    let limit = limit(request);
    let (mut json, mut told) = (Json::default(), 0);
    json.open('{');
    json.name("items");
    json.open('[');
    let mut has_more = false;
    for wait in core.state.waits.longest_for_locks(limit) {
        for (_, key) in wait.keys() {
            if told >= limit || json.len() >= BYTES_MAX {
                has_more = true;
                break;
            }
            let found = core.keyspace.entry_quietly(wait.database, key);
            let found =
                found.and_then(|entry| lock::read(entry.value(), &core.keyspace.now()).ok()?);
            let Some(found) = found else { continue };
            if !rights.may_see_lock(&core.state, wait.database, key) {
                continue;
            }
            json.open('{');
            json.named_text("owner", wait.owner());
            json.named_text("holder", &*found.owner);
            json.named_text("key", key);
            json.named_whole("id", &id(key));
            json.named("db", wait.database);
            json.named("waited_ms", (core.state.now.boot_us - wait.since_us).max(0) / 1000);
            json.name("client");
            client(&mut json, &core.state, Some(wait.client));
            json.close('}');
            told += 1;
        }
    }
    json.close(']');
    json.named("more", has_more || core.state.waits.len_of(Wanted::Lock) > limit);
    json.name("circles");
    json.open('[');
    for circle in circles(core, rights) {
        json.open('[');
        circle.iter().take(OWNERS_MAX).for_each(|owner| json.text(owner));
        json.close(']');
    }
    json.close(']');
    json.close('}');
    json_response(json)
}

/// The owners of each cycle of locks that the visitor may see, beginning with the least name.
fn circles(core: &Core, rights: &Rights) -> Vec<Vec<Vec<u8>>> {
    let databases = core.keyspace.waiting.databases();
    let all = databases.flat_map(|database| {
        let found = cycles::find(core, database).into_iter();
        found.filter(move |cycle| {
            cycle.iter().all(|(_, key)| rights.may_see_lock(&core.state, database, key))
        })
    });
    let owners = |cycle: Cycle| {
        let mut owners: Vec<Vec<u8>> = cycle.into_iter().map(|(owner, _)| owner).collect();
        let least = owners.iter().enumerate().min_by_key(|(_, owner)| *owner);
        let least = least.map_or(0, |(index, _)| index);
        owners.rotate_left(least);
        owners
    };
    all.take(CIRCLES_MAX).map(owners).collect()
}
