//! HTTP for operators and their tools: probes, metrics, and a page with the data it reads.
//! Read-only.
//!
//! `net/http.rs` has the connections and reads requests. A turn of the loop ends with [`turn`],
//! which answers the requests that have arrived; nested turns do so too, so that operators can see
//! the reason when a busy script, a load or a pause blocks the server. `access` checks permissions,
//! `ready` answers probes, `json` writes JSON, `routes` has all paths. The answers to `/api`:
//! `locks`, `semaphores`, `waiting`, `queues` (with `care`: warnings), `keys` (sizes), `hot_keys`,
//! `history`, `commands` (slow ones, latency), `people` (clients), `cluster`, `overview`. `walk`
//! searches all keys for them. `page` is the page itself.
//!
//! The cost of an answer is bounded: figures are updated as they change, lists are slices cut by an
//! index, and an answer that must visit all locks does so in slices, some in each turn
//! ([`Answer::Later`]).

mod access;
mod care;
mod cluster;
mod commands;
mod history;
mod hot_keys;
pub(crate) mod json;
mod keys;
mod locks;
mod overview;
mod page;
mod people;
mod queues;
mod ready;
mod routes;
mod semaphores;
mod waiting;
mod walk;

use crate::net::http::head::Request;
use crate::net::http::response::Response;
use crate::state::Core;
use crate::state::http_job::HttpJob;
use access::Visitor;

/// Time for answers in one turn; the last one may exceed it. The others have their turn in the
/// next. Unit: microseconds.
const TURN_US: i64 = 500;

/// The answer to a request, now or later.
enum Answer {
    Now(Response),
    /// It continues in the next turn.
    Later(Box<HttpJob>),
}

impl From<Response> for Answer {
    fn from(response: Response) -> Self {
        Answer::Now(response)
    }
}
/// Accepts connections and answers requests, for a limited time.
pub fn turn(core: &mut Core) {
    // The clock is read only if there may be something to do.
    if !core.state.net.http.has_work() && !core.state.net.http.has_work_at(core.state.now.boot_us) {
        return;
    }
    let begun_us = core.state.clock.now().boot_us;
    core.state.net.http.close_late(begun_us);
    let tls = core
        .state
        .net
        .tls
        .as_ref()
        .filter(|_| core.state.config.http_tls)
        .map(|tls| tls.server.clone());
    let network = &mut core.state.net;
    match core.state.config.http_tls && tls.is_none() {
        // Without certificates nobody is served.
        true => network.http.accept_nobody(),
        false => network.http.accept(network.poll.registry(), tls.as_ref(), begun_us),
    }
    for _ in 0..core.state.net.http.ready() {
        let Some(slot) = core.state.net.http.next_ready() else { return };
        let now_us = core.state.clock.now().boot_us;
        if now_us - begun_us >= TURN_US {
            core.state.net.http.enqueue(slot);
            return;
        }
        if core.state.net.http.serve(slot, now_us) && answer(core, slot, now_us) {
            // A connection's next request waits for requests of other connections.
            if core.state.net.http.serve(slot, now_us) {
                core.state.net.http.enqueue(slot);
            }
        }
    }
}

/// Does periodic work, several times a second.
pub fn periodic(core: &mut Core) {
    core.keyspace.flows.forget(core.state.now.boot_us);
    // This leaves less work for a scrape.
    core.keyspace.review_semaphores();
    walk::go_on(core);
    history::sample(core);
}

/// Answers a connection's request, or continues its answer. False: that takes another turn.
fn answer(core: &mut Core, slot: usize, now_us: i64) -> bool {
    let Some(connection) = core.state.net.http.get_mut(slot) else { return false };
    core.keyspace.review_semaphores();
    let visitor = Visitor { peer: connection.peer.clone(), is_inside: connection.is_inside };
    let answer = match (connection.take_request(), connection.job.take()) {
        (Some(request), _) => routes::answer(core, &visitor, request),
        (None, Some(job)) => routes::go_on(core, &visitor, job),
        (None, None) => Response::of_status(500).into(),
    };
    let Some(connection) = core.state.net.http.get_mut(slot) else { return false };
    match answer {
        Answer::Now(response) => {
            connection.respond(&response, now_us);
            core.state.net.http.answered += 1;
            true
        }
        Answer::Later(job) => {
            connection.job = Some(job);
            core.state.net.http.enqueue(slot);
            false
        }
    }
}

/// The arguments of a request's query, decoded: the values of each name, in order.
fn arguments<'q>(request: &'q Request, name: &'q str) -> impl Iterator<Item = Vec<u8>> + 'q {
    let pairs = request.query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let named = pairs.filter(move |(key, _)| decoded(key, true) == name.as_bytes());
    named.map(|(_, value)| decoded(value, true))
}

/// The first value of an argument.
fn argument(request: &Request, name: &str) -> Option<Vec<u8>> {
    arguments(request, name).next()
}

/// Percent-decoded bytes; in a query a plus is a blank. Invalid codes stay unchanged.
fn decoded(text: &str, is_query: bool) -> Vec<u8> {
    let digit = |byte: Option<&u8>| byte.and_then(|&byte| (byte as char).to_digit(16));
    let bytes = text.as_bytes();
    let (mut decoded, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while let Some(&byte) = bytes.get(at) {
        match (byte, digit(bytes.get(at + 1)), digit(bytes.get(at + 2))) {
            (b'%', Some(high), Some(low)) => {
                decoded.push((high * 16 + low) as u8);
                at += 3;
                continue;
            }
            (b'+', ..) if is_query => decoded.push(b' '),
            _ => decoded.push(byte),
        }
        at += 1;
    }
    decoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_decoded_and_what_is_none_stays() {
        assert_eq!(decoded("a%20b%2F+%ff", true), b"a b/ \xff");
        assert_eq!(decoded("a+b%2", false), b"a+b%2");
        assert_eq!(decoded("%zz%", false), b"%zz%");
    }
}
