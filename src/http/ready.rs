//! Probes: whether this server can serve clients now, and in which role.

use crate::figures::turns::script_us;
use crate::net::http::head::Request;
use crate::net::http::response::Response;
use crate::replication::following::Progress;
use crate::roles::{failover, restart};
use crate::state::{PauseCause, State};

use super::arguments;

/// The reason why a server is not ready; None: the check has passed.
type Check = fn(&State) -> Option<String>;

/// All checks, in order.
pub const CHECKS: &[(&str, Check)] = &[
    ("loading", loading),
    ("busy-script", busy_script),
    ("link-down", link_down),
    ("syncing", syncing),
    ("restart-read-only", restart_read_only),
    ("misconf", |state| Some(one_line(&state.disk_refusal()?.wire()))),
    ("paused", paused),
    ("failover", |state| {
        state.replication.failover.as_ref().map(|_| failover::state_name(state).to_owned())
    }),
    ("cluster-down", |state| {
        let is_down = state.node.cluster.as_ref().is_some_and(|cluster| !cluster.is_ok());
        is_down.then(|| "the cluster's state is fail".to_owned())
    }),
    ("shutting-down", |state| state.process.shutdown.map(|_| "SHUTDOWN or a signal".to_owned())),
];

fn one_line(text: &[u8]) -> String {
    String::from_utf8_lossy(text).replace(['\r', '\n'], " ")
}

fn loading(state: &State) -> Option<String> {
    let loading = state.persistence.loading.filter(|loading| !loading.is_beside)?;
    Some(format!("{} of {} bytes", loading.loaded_bytes, loading.total_bytes))
}

fn busy_script(state: &State) -> Option<String> {
    let us = script_us(state)?;
    let name = state.scripts.running.as_ref().map(|running| one_line(&running.name));
    Some(format!("{}, {:.1} s", name.unwrap_or_default(), us as f64 / 1e6))
}

fn link_down(state: &State) -> Option<String> {
    let following = state.replication.following.as_deref()?;
    let is_down = !following.is_connected() && following.progress != Progress::Sync;
    let primary = format!("{}:{}", one_line(&following.host), following.port);
    is_down.then(|| match one_line(following.failure.as_bytes()) {
        failure if failure.is_empty() => format!("no link to {primary}"),
        failure => format!("no link to {primary}, {failure}"),
    })
}

fn syncing(state: &State) -> Option<String> {
    let following = state.replication.following.as_deref()?;
    let is_syncing = following.progress == Progress::Sync;
    is_syncing.then(|| format!("{} bytes read", following.transfer.read))
}

fn restart_read_only(state: &State) -> Option<String> {
    state.replication.restart.refusal()?;
    Some(match restart::seconds_left(state) {
        Some(seconds) => format!("replicas must stay for {seconds} s"),
        None => "replicas have more data".to_owned(),
    })
}

fn paused(state: &State) -> Option<String> {
    let pause = state.pauses.by(PauseCause::Asked).filter(|pause| !pause.writes_only)?;
    let left_ms = (pause.until_us - state.clock.now().boot_us) / 1000;
    (left_ms > 0).then(|| format!("{left_ms} ms left"))
}

/// `/livez`: the loop turns.
pub fn live() -> Response {
    Response::text(200, "ok\n")
}

/// `/readyz?verbose&exclude=NAME`: 200, or 503 with a line for each check that has failed;
/// `verbose`: for each check.
pub fn ready(state: &State, request: &Request) -> Response {
    let verbose = arguments(request, "verbose").next().is_some();
    let excluded: Vec<Vec<u8>> = arguments(request, "exclude").collect();
    let (mut text, mut is_ready) = (String::new(), true);
    for (name, check) in CHECKS {
        if excluded.iter().any(|excluded| excluded == name.as_bytes()) {
            if verbose {
                text.push_str(&format!("[+]{name} excluded: ok\n"));
            }
            continue;
        }
        match check(state) {
            None if verbose => text.push_str(&format!("[+]{name} ok\n")),
            None => {}
            Some(why) => {
                is_ready = false;
                text.push_str(&format!("[-]{name} {why}\n"));
            }
        }
    }
    match is_ready {
        true if verbose => Response::text(200, text + "readyz check passed\n"),
        true => Response::text(200, "ok\n"),
        false => Response::text(503, text + "readyz check failed\n"),
    }
}

/// `/primary` and `/replica`: 200 for a server that has this role and has loaded its data.
pub fn role(state: &State, wants_replica: bool) -> Response {
    let is_replica = state.replication.is_replica();
    let name = if is_replica { "replica" } else { "primary" };
    match state.persistence.loading {
        Some(loading) if !loading.is_beside => Response::text(503, "loading\n"),
        _ if is_replica == wants_replica => Response::text(200, format!("{name}\n")),
        _ => Response::text(503, format!("{name}\n")),
    }
}
