//! `/api/hot-keys`: what HOTKEYS has found, or how to start it.

use super::access::Rights;
use super::json::Json;
use super::locks::{json_response, redis_cli};
use crate::keyspace::DbIndex;
use crate::net::http::response::Response;
use crate::state::State;
use crate::stats::hot_keys::Ranking;

/// `/api/hot-keys`: the keys that take most time and network, for users who may call HOTKEYS GET.
pub fn list(state: &State, rights: &Rights) -> Response {
    let is_known = state.commands.find(b"HOTKEYS").is_some();
    if !is_known || !rights.may_run(state, DbIndex::ZERO, &[b"HOTKEYS", b"GET"]) {
        return Response::of_status(403);
    }
    let now_us = state.now.boot_us;
    let found = state.stats.hot_keys.as_deref();
    let mut json = Json::default();
    json.open('{');
    json.named("active", found.is_some_and(|hot| hot.is_active(now_us)));
    json.maybe("begun_ms", found.map(|hot| hot.begun_ms));
    json.maybe("duration_ms", found.map(|hot| hot.duration_us(now_us) / 1000));
    ranking(&mut json, "cpu_ns", found.and_then(|hot| hot.cpu.as_ref()));
    ranking(&mut json, "net_bytes", found.and_then(|hot| hot.net.as_ref()));
    let cli = redis_cli(state, DbIndex::ZERO);
    let start = format!("{cli} HOTKEYS START METRICS 2 CPU NET DURATION 60");
    json.named_text("start", start);
    json.close('}');
    json_response(json)
}

/// Appends the first keys of a ranking, and the sum over all keys.
fn ranking(json: &mut Json, name: &str, ranking: Option<&Ranking>) {
    json.name(name);
    let Some(ranking) = ranking else { return json.plain("null") };
    json.open('{');
    json.named("total", ranking.total());
    json.name("items");
    json.open('[');
    for (key, sum) in ranking.first() {
        json.open('{');
        json.named_text("key", key);
        json.named("sum", sum);
        json.close('}');
    }
    json.close(']');
    json.close('}');
}
