//! `/api/overview`: the figures, failed checks of readiness, a running script, lost locks,
//! replicas, certificates.

use super::access::Rights;
use super::json::Json;
use super::locks::{client, json_response, redis_cli, write_end};
use super::ready::CHECKS;
use crate::figures::turns::script_us;
use crate::figures::{Reading, Value, figures};
use crate::gate::evict::cost_of_limit;
use crate::keyspace::DbIndex;
use crate::net::http::response::Response;
use crate::roles::replicas::lag_seconds;
use crate::state::{Core, State};
use crate::sys::build;
use crate::sys::machine::host_name;

/// The time for which lost locks and evictions are shown. Unit: milliseconds.
const RECENT_MS: i64 = 300_000;
const REPLICAS_MAX: usize = 100;

/// `/api/overview`.
pub fn overview(core: &Core, rights: &Rights) -> Response {
    let mut json = Json::default();
    json.open('{');
    json.named_text("version", build::VERSION);
    json.named_text(
        "role",
        if core.state.replication.is_replica() { "replica" } else { "primary" },
    );
    let name = &core.state.config.instance_name;
    match name.is_empty() {
        true => json.named_text("name", host_name()),
        false => json.named_text("name", name),
    }
    json.named("port", core.state.process.identity.port);
    json.named("time_ms", core.state.clock.now().wall_us / 1000);
    json.maybe("hold_median_us", core.state.stats.durations.lock_hold.part_within_us(0.5));
    json.maybe("turn_p99_us", core.state.stats.timing.turn_times().part_within_us(0.99));
    json.maybe("expiry_lag_p99_us", core.keyspace.stats.expiry_lag.part_within_us(0.99));
    json.name("not_ready");
    json.open('[');
    for (name, check) in CHECKS {
        if let Some(why) = check(&core.state) {
            json.text(format!("{name}: {why}").as_bytes());
        }
    }
    json.close(']');
    limit(&mut json, core);
    script(&mut json, &core.state);
    json.name("lost");
    json.open('[');
    let from_ms = core.state.now.unix().0 - RECENT_MS;
    for end in core.keyspace.locks.history.ends().rev().take_while(|end| end.at_ms >= from_ms) {
        if rights.may_see_lock(&core.state, end.database, &end.key) {
            write_end(&mut json, end);
        }
    }
    json.close(']');
    json.name("replicas");
    json.open('[');
    for (replica, facts) in core.state.replicas().take(REPLICAS_MAX) {
        json.open('{');
        json.named_text("addr", format!("{}:{}", replica.replica_address(), facts.port));
        json.named_text("state", facts.stage_name());
        json.named("lag_seconds", lag_seconds(&core.state, facts));
        let behind = core.state.replication.offset.saturating_sub(facts.acknowledged.unwrap_or(0));
        json.named("behind_bytes", behind);
        json.close('}');
    }
    json.close(']');
    json.name("certificates");
    json.open('[');
    for certificate in core.state.net.tls.iter().flat_map(|tls| tls.certificates()) {
        json.open('{');
        json.named_text("file", &certificate.file);
        json.named_text("serial", &certificate.serial);
        json.named("ends", certificate.ends_unix);
        json.close('}');
    }
    json.close(']');
    json.named("cluster", core.state.node.cluster.is_some());
    json.name("figures");
    json.open('{');
    let reading = Reading::new(core);
    for figure in figures().filter(|figure| !figure.metric.is_empty()) {
        let value = (figure.read)(&reading);
        if value != Value::Absent {
            json.maybe(figure.metric, value.number());
        }
    }
    json.close('}');
    json.close('}');
    json_response(json)
}

/// A sentence on what `maxmemory` has cost, while it costs anything.
fn limit(json: &mut Json, core: &Core) {
    json.name("limit");
    let told = core.keyspace.eviction.told;
    let is_recent = |at_us: i64| core.state.now.boot_us - at_us < RECENT_MS * 1000;
    match cost_of_limit(core).filter(|_| told.is_some_and(|told| is_recent(told.at_us))) {
        Some(text) => json.text(text.as_bytes()),
        None => json.plain("null"),
    }
}

/// The script that keeps the server busy, and the command that ends it.
fn script(json: &mut Json, state: &State) {
    json.name("script");
    let (Some(us), Some(running)) = (script_us(state), &state.scripts.running) else {
        return json.plain("null");
    };
    json.open('{');
    json.named_text("name", &running.name);
    json.named("ms", us / 1000);
    json.named("wrote", running.wrote);
    json.name("client");
    client(json, state, running.client);
    json.name("commands");
    json.open('[');
    let kill = if running.by_eval { "SCRIPT KILL" } else { "FUNCTION KILL" };
    let call = redis_cli(state, DbIndex::ZERO);
    json.text(format!("{call} {kill}").as_bytes());
    if running.wrote && running.by_eval {
        json.text(format!("{call} SCRIPT KILL ROLLBACK").as_bytes());
    }
    json.close(']');
    json.close('}');
}
