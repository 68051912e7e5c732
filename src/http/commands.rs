//! `/api/slow` and `/api/latency`: slow and large requests, time by command, long events.

use std::cmp::Reverse;

use super::json::{BYTES_MAX, Json};
use super::locks::{json_response, limit};
use crate::net::http::head::Request;
use crate::net::http::response::Response;
use crate::state::State;
use crate::stats::command_log::LogKind;

const KINDS: [(LogKind, &str); 3] = [
    (LogKind::Slow, "slow"),
    (LogKind::LargeRequest, "large-request"),
    (LogKind::LargeReply, "large-reply"),
];

/// `/api/slow?limit=`: the newest entries of the command logs.
pub fn slow(state: &State, request: &Request) -> Response {
    let limit = limit(request);
    let mut json = Json::default();
    json.open('{');
    json.name("items");
    json.open('[');
    let (mut count, mut has_more) = (0, false);
    for (kind, name) in KINDS {
        for entry in state.stats.command_logs[kind as usize].iter() {
            if count == limit || json.len() >= BYTES_MAX {
                has_more = true;
                break;
            }
            count += 1;
            json.open('{');
            json.named_text("log", name);
            json.named("id", entry.id);
            json.named("at", entry.time);
            json.named("value", entry.value);
            json.name("args");
            json.open('[');
            entry.args.iter().for_each(|argument| json.text(argument));
            json.close(']');
            json.named_text("addr", &entry.peer);
            json.named_text("name", &entry.client_name);
            json.close('}');
        }
    }
    json.close(']');
    json.named("more", has_more);
    json.close('}');
    json_response(json)
}

/// `/api/latency?limit=`: the commands that took the most time, with percentiles, and the latency
/// monitor's events.
pub fn latency(state: &State, request: &Request) -> Response {
    let limit = limit(request);
    let mut called: Vec<_> = state
        .commands
        .commands
        .iter()
        .zip(&state.stats.command_stats)
        .filter(|(_, stats)| stats.calls > 0)
        .collect();
    called.sort_by_key(|(_, stats)| Reverse(stats.nanoseconds));
    let has_more = called.len() > limit;
    let mut json = Json::default();
    json.open('{');
    json.name("items");
    json.open('[');
    for (command, stats) in called.into_iter().take(limit) {
        json.open('{');
        json.named_text("command", &*command.full_name);
        json.named("calls", stats.calls);
        json.named("usec", stats.nanoseconds / 1000);
        json.named("failed", stats.failed);
        json.named("rejected", stats.rejected);
        if let Some(histogram) = &stats.histogram {
            let values = histogram.percentiles(&[50.0, 99.0, 99.9]);
            for (name, ns) in ["p50_usec", "p99_usec", "p999_usec"].into_iter().zip(values) {
                json.named(name, ns as f64 / 1000.0);
            }
        }
        json.close('}');
    }
    json.close(']');
    json.named("more", has_more);
    json.name("events");
    json.open('[');
    for (event, series) in &state.stats.latency.series {
        let (at, ms) = series.samples.back().copied().unwrap_or_default();
        json.open('{');
        json.named_text("event", event);
        json.named("at", at);
        json.named("last_ms", ms);
        json.named("max_ms", series.max_ms);
        json.named("count", series.count);
        json.close('}');
    }
    json.close(']');
    json.close('}');
    json_response(json)
}
