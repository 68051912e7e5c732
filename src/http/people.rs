//! `/api/clients`: the clients and their activity.

use super::access::Rights;
use super::argument;
use super::json::{BYTES_MAX, Json};
use super::locks::{client_fields, json_response, limit};
use crate::gate::limits::flag_letters;
use crate::net::http::head::Request;
use crate::net::http::response::Response;
use crate::resp::number::parse_i64;
use crate::state::State;

/// Keys of a blocked client that are shown.
const KEYS_MAX: usize = 10;

/// `/api/clients?limit=&after=`: clients in the order of their places in the server, some in each
/// answer.
pub fn list(state: &State, rights: &Rights, request: &Request) -> Response {
    let after = argument(request, "after").and_then(|text| parse_i64(&text));
    let from = after.and_then(|after| usize::try_from(after).ok()).map_or(0, |after| after + 1);
    let limit = limit(request);
    let mut json = Json::default();
    json.open('{');
    json.named("connected", state.clients.len());
    json.name("items");
    json.open('[');
    let (mut written, mut last) = (0, None);
    let mut left = state.clients.from_slot(from);
    while written < limit
        && json.len() < BYTES_MAX
        && let Some(client) = left.next()
    {
        json.open('{');
        client_fields(&mut json, state, client);
        json.named("age_ms", (state.now.boot_us - client.created_us).max(0) / 1000);
        json.named_text("user", state.acl.name(client.user));
        json.named("db", client.database);
        json.named_text("flags", flag_letters(client));
        let command = client.last_command.map(|command| state.commands.get(command));
        json.named_text("command", command.map_or("", |command| &command.full_name));
        json.named("commands", client.commands);
        json.named("output", client.output.len());
        json.named("input", client.input.len());
        if let Some(wait) = client.blocked.and_then(|ticket| state.waits.get(ticket)) {
            json.named("waited_ms", (state.now.boot_us - wait.since_us).max(0) / 1000);
            json.name("keys");
            json.open('[');
            let keys = wait.keys().take(KEYS_MAX).map(|(_, key)| key);
            let seen = keys.filter(|key| rights.may_read(state, wait.database, key));
            seen.for_each(|key| json.text(key));
            json.close(']');
        }
        json.close('}');
        (written, last) = (written + 1, Some(client.id.slot));
    }
    let has_more = left.next().is_some();
    json.close(']');
    json.named("more", has_more && written > 0);
    if let Some(last) = last.filter(|_| has_more) {
        json.named_text("after", last.to_string());
    }
    json.close('}');
    json_response(json)
}
