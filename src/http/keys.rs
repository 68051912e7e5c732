//! `/api/keys`: memory by type, and the largest keys of each type.

use std::cmp::Reverse;

use super::access::Rights;
use super::json::{Json, id};
use super::locks::json_response;
use super::walk::bytes_of;
use crate::keyspace::DbIndex;
use crate::net::http::response::Response;
use crate::state::Core;
use crate::types::type_name;

/// `/api/keys`: what the last complete walk over all keys has found, or the first one so far.
pub fn list(core: &Core, rights: &Rights) -> Response {
    let (keyspace, walk) = (&core.keyspace, &core.state.net.key_walk);
    let round = walk.complete.as_ref().unwrap_or(&walk.present);
    let mut json = Json::default();
    json.open('{');
    let age_us = walk.complete.as_ref().map(|it| core.state.now.boot_us - it.ended_us);
    json.maybe("age_ms", age_us.map(|us| us.max(0) / 1000));
    json.named("seen", round.types.values().map(|all| all.keys).sum::<u64>());
    let lens = DbIndex::all(keyspace.databases()).map(|database| keyspace.table_of(database).len());
    json.named("keys", lens.sum::<usize>());
    json.name("types");
    json.open('[');
    for (name, all) in &round.types {
        json.open('{');
        json.named_text("type", name);
        json.named("keys", all.keys);
        json.named("bytes", all.bytes);
        json.close('}');
    }
    json.close(']');
    let all = round.types.values().flat_map(|all| &all.largest);
    // A key may have changed since, or be gone.
    let now = all.filter_map(|(_, database, key)| {
        let entry = keyspace.entry_quietly(*database, key)?;
        rights.may_read(&core.state, *database, key).then(|| (bytes_of(&entry), *database, entry))
    });
    let mut largest: Vec<_> = now.collect();
    largest.sort_by_key(|(bytes, ..)| Reverse(*bytes));
    json.name("largest");
    json.open('[');
    for (bytes, database, entry) in largest {
        json.open('{');
        json.named_text("key", entry.key());
        json.named_whole("id", &id(entry.key()));
        json.named("db", database);
        json.named_text("type", type_name(entry.value()));
        json.named("bytes", bytes);
        json.close('}');
    }
    json.close(']');
    json.close('}');
    json_response(json)
}
