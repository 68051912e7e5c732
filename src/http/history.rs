//! `/api/history`: figures of the last ten minutes, second by second.

use super::argument;
use super::json::Json;
use super::locks::json_response;
use crate::net::http::head::Request;
use crate::net::http::response::Response;
use crate::resp::number::parse_i64;
use crate::roles::replicas::lag_seconds;
use crate::state::{Core, State};
use crate::stats::history::Second;
use crate::sys::alloc;

/// Keeps the figures of a second that has passed. Call this in the periodic work.
pub fn sample(core: &mut Core) {
    let state = &mut core.state;
    let now_us = state.now.boot_us;
    if !state.net.http.is_listening() || !state.stats.history.is_due(now_us) {
        return;
    }
    let second = Second {
        at_ms: state.clock.now().wall_us / 1000,
        longest_turn_us: state.stats.timing.take_longest_turn_us(),
        memory: alloc::allocated(),
        waits: state.waits.all_lock_waiters(),
        lag_seconds: lag(state),
        ..Second::default()
    };
    state.stats.history.add(now_us, state.stats.counters.commands, second);
}

/// How far the last of the replicas lags, or this replica, in seconds.
fn lag(state: &State) -> Option<i64> {
    if let Some(following) = state.replication.following.as_deref() {
        return Some((state.now.boot_us - following.last_sign_us).max(0) / 1_000_000);
    }
    state.replicas().map(|(_, replica)| lag_seconds(state, replica)).max()
}

/// `/api/history?after=`: columns of figures, of the seconds that ended after that time, Unix
/// milliseconds.
pub fn list(state: &State, request: &Request) -> Response {
    let after = argument(request, "after").and_then(|text| parse_i64(&text)).unwrap_or(0);
    let seconds = state.stats.history.after(after);
    let mut json = Json::default();
    json.open('{');
    let mut column = |name: &str, value: fn(&Second) -> Option<i64>| {
        json.name(name);
        json.open('[');
        for second in seconds.clone() {
            match value(second) {
                Some(value) => json.plain(value),
                None => json.plain("null"),
            }
        }
        json.close(']');
    };
    column("at_ms", |it| Some(it.at_ms));
    column("commands", |it| Some(it.commands as i64));
    column("longest_turn_us", |it| Some(it.longest_turn_us as i64));
    column("memory", |it| Some(it.memory as i64));
    column("waits", |it| Some(it.waits as i64));
    column("lag_seconds", |it| it.lag_seconds);
    json.close('}');
    json_response(json)
}
