//! All paths, each with its answer and the permission that it needs.

use crate::figures::exposition::CONTENT_TYPE;
use crate::figures::{self, Reading};
use crate::keyspace::Keyspace;
use crate::net::http::head::Request;
use crate::net::http::response::Response;
use crate::state::State;
use crate::state::http_job::HttpJob;

use super::access::{METRICS, PAGE, Rights, Visitor, names_this_server};
use super::{Answer, cluster, commands, locks, overview, page, people, queues, ready, waiting};

/// Answers a request.
pub fn answer(
    keyspace: &mut Keyspace,
    state: &mut State,
    visitor: &Visitor,
    request: Request,
) -> Answer {
    match &*request.path {
        "/livez" => return ready::live().into(),
        "/readyz" => return ready::ready(state, &request).into(),
        "/primary" => return ready::role(state, false).into(),
        "/replica" => return ready::role(state, true).into(),
        _ => {}
    }
    // Pages of other sites must not see names of keys.
    let is_metrics = request.path.starts_with("/metrics");
    if request.path != "/metrics" && !names_this_server(state, &request) {
        let text = "this name is none of http-hosts\n";
        return Response::text(421, text).into();
    }
    let needed = if is_metrics { METRICS } else { PAGE };
    let rights = match Rights::of(state, visitor, &request, needed) {
        Ok(rights) => rights,
        Err(response) => return response.into(),
    };
    let (rights, state) = (&rights, &*state);
    match &*request.path {
        "/metrics" => {
            let mut text = figures::metrics(&Reading::new(keyspace, state));
            text.push_str(&queues::metrics(keyspace, state, rights));
            Response::new(200, CONTENT_TYPE, text).into()
        }
        "/metrics/locks" => locks::groups(keyspace, state, rights, request),
        "/" => page::page().into(),
        "/api/overview" => overview::overview(keyspace, state, rights).into(),
        "/api/locks" => locks::list(keyspace, state, rights, request),
        "/api/waiting" => waiting::list(keyspace, state, rights, &request).into(),
        "/api/queues" => queues::list(keyspace, state, rights, &request).into(),
        "/api/slow" => commands::slow(state, &request).into(),
        "/api/latency" => commands::latency(state, &request).into(),
        "/api/cluster" => cluster::cluster(state, rights, &request).into(),
        "/api/clients" => people::list(state, rights, &request).into(),
        path if path.starts_with("/api/locks/") => {
            locks::one(keyspace, state, rights, &request).into()
        }
        _ => Response::of_status(404).into(),
    }
}

/// Continues an answer that takes several turns. The rights of the user are looked up again.
pub fn go_on(
    keyspace: &mut Keyspace,
    state: &mut State,
    visitor: &Visitor,
    job: Box<HttpJob>,
) -> Answer {
    let is_groups = job.request.path == "/metrics/locks";
    let needed = if is_groups { METRICS } else { PAGE };
    match Rights::of(state, visitor, &job.request, needed) {
        Ok(rights) if is_groups => locks::go_on_with_groups(keyspace, state, &rights, job),
        Ok(rights) => locks::go_on_with_list(keyspace, state, &rights, job),
        Err(response) => response.into(),
    }
}
