//! All paths, each with its answer and the permission that it needs.

use crate::figures::exposition::CONTENT_TYPE;
use crate::figures::{self, Reading};
use crate::net::http::head::Request;
use crate::net::http::response::Response;
use crate::state::Core;
use crate::state::http_job::HttpJob;

use super::access::{METRICS, PAGE, Rights, Visitor, names_this_server};
use super::{
    Answer, cluster, commands, history, hot_keys, keys, locks, overview, page, people, queues,
    ready, semaphores, waiting,
};

/// Answers a request.
pub fn answer(core: &mut Core, visitor: &Visitor, request: Request) -> Answer {
    match &*request.path {
        "/livez" => return ready::live().into(),
        "/readyz" => return ready::ready(&core.state, &request).into(),
        "/primary" => return ready::role(&core.state, false).into(),
        "/replica" => return ready::role(&core.state, true).into(),
        _ => {}
    }
    // Pages of other sites must not see names of keys. Metrics are asked for by any name.
    let is_metrics = matches!(&*request.path, "/metrics" | "/metrics/locks");
    if !is_metrics && !names_this_server(&core.state, &request) {
        let text = "this name is none of http-hosts\n";
        return Response::text(421, text).into();
    }
    let needed = if is_metrics { METRICS } else { PAGE };
    let rights = match Rights::of(&mut core.state, visitor, &request, needed) {
        Ok(rights) => rights,
        Err(response) => return response.into(),
    };
    let rights = &rights;
    match &*request.path {
        "/metrics" => {
            let mut text = figures::metrics(&Reading::new(core));
            text.push_str(&queues::metrics(core, rights));
            Response::new(200, CONTENT_TYPE, text).into()
        }
        "/metrics/locks" => locks::groups(core, rights, request),
        "/" => page::page().into(),
        "/api/overview" => overview::overview(core, rights).into(),
        "/api/locks" => locks::list(core, rights, request),
        "/api/semaphores" => semaphores::list(core, rights, &request).into(),
        "/api/waiting" => waiting::list(core, rights, &request).into(),
        "/api/queues" => queues::list(core, rights, &request).into(),
        "/api/keys" => keys::list(core, rights).into(),
        "/api/hot-keys" => hot_keys::list(&core.state, rights).into(),
        "/api/history" => history::list(&core.state, &request).into(),
        "/api/slow" => commands::slow(&core.state, &request).into(),
        "/api/latency" => commands::latency(&core.state, &request).into(),
        "/api/cluster" => cluster::cluster(&core.state, rights, &request).into(),
        "/api/clients" => people::list(&core.state, rights, &request).into(),
        path if path.starts_with("/api/locks/") => locks::one(core, rights, &request).into(),
        _ => Response::of_status(404).into(),
    }
}

/// Continues an answer that takes several turns. The rights of the user are looked up again.
pub fn go_on(core: &mut Core, visitor: &Visitor, job: Box<HttpJob>) -> Answer {
    let is_groups = job.request.path == "/metrics/locks";
    let needed = if is_groups { METRICS } else { PAGE };
    match Rights::of(&mut core.state, visitor, &job.request, needed) {
        Ok(rights) if is_groups => locks::go_on_with_groups(core, &rights, job),
        Ok(rights) => locks::go_on_with_list(core, &rights, job),
        Err(response) => response.into(),
    }
}
