//! `/api/cluster`: the cluster as this node sees it.

use super::access::Rights;
use super::json::{BYTES_MAX, Json};
use super::locks::{json_response, limit};
use crate::keyspace::DbIndex;
use crate::net::http::head::Request;
use crate::net::http::response::Response;
use crate::state::State;

/// The most bytes of a node's slots that are shown: a node may have many ranges.
const SLOTS_BYTES_MAX: usize = 400;

/// `/api/cluster?limit=`: the figures of CLUSTER INFO, and the nodes with their links, roles and
/// slots, as in CLUSTER NODES.
pub fn cluster(state: &State, rights: &Rights, request: &Request) -> Response {
    if !rights.may_run(state, DbIndex::ZERO, &[b"CLUSTER", b"NODES"]) {
        return Response::of_status(403);
    }
    let Some(cluster) = &state.node.cluster else { return Response::of_status(404) };
    let (mut json, mut written, limit) = (Json::default(), 0, limit(request));
    json.open('{');
    for (name, value) in cluster.info().lines().filter_map(|line| line.split_once(':')) {
        if !name.starts_with("cluster_stats_") {
            json.named_text(name, value);
        }
    }
    let now_ms = state.now.unix().0;
    json.name("nodes");
    json.open('[');
    let mut has_more = false;
    for (index, node) in cluster.nodes() {
        if written >= limit || json.len() >= BYTES_MAX {
            has_more = true;
            break;
        }
        let line = cluster.line(index, &node.address.ip, node.address.tcp_port);
        let fields: Vec<&str> = line.splitn(9, ' ').collect();
        let [id, address, flags, primary, _, pong_ms, epoch, link, slots @ ..] = &*fields else {
            continue;
        };
        json.open('{');
        json.named_text("node", id);
        json.named_text("addr", address.split('@').next().unwrap_or_default());
        json.named_text("flags", flags);
        json.named_text("primary", if *primary == "-" { "" } else { primary });
        let pong_ms = pong_ms.parse::<i64>().ok().filter(|&pong_ms| pong_ms > 0);
        json.maybe("heard_ms", pong_ms.map(|pong_ms| now_ms.saturating_sub(pong_ms).max(0)));
        json.named_text("epoch", epoch);
        json.named_text("link", link);
        json.named("slots", node.slots.len());
        let ranges = slots.first().copied().unwrap_or_default();
        let is_cut = ranges.len() > SLOTS_BYTES_MAX;
        let end = if is_cut { " ..." } else { "" };
        let shown = &ranges[..ranges.len().min(SLOTS_BYTES_MAX)];
        json.named_text("ranges", format!("{shown}{end}"));
        json.close('}');
        written += 1;
    }
    json.close(']');
    json.named("more", has_more);
    json.close('}');
    json_response(json)
}
