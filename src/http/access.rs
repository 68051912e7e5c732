//! Permissions of HTTP: the data that each visitor may see.
//!
//! Probes ask for no user. Listeners that only this machine can reach ask for none either, unless
//! `http-auth` is on. On other listeners HTTP Basic names a user of the ACL, who needs the
//! permission for commands with the same information. Without a name the user is the default user,
//! if that one needs no password. If the default user needs none and `protected-mode` is on, other
//! machines get only probes, as on the main port.

use std::net::{Ipv4Addr, Ipv6Addr};

use base64ct::{Base64, Encoding};

use crate::acl::UserFlags;
use crate::gate::users::{self, Databases};
use crate::ids::UserId;
use crate::keyspace::DbIndex;
use crate::net::http::head::Request;
use crate::net::http::response::Response;
use crate::net::stream::Address;
use crate::resp::args::Args;
use crate::resp::request::Range;
use crate::state::State;

/// The sender of a request.
pub struct Visitor {
    pub peer: Address,
    /// The request came by a listener that only this machine can reach.
    pub is_inside: bool,
}

/// The data that a visitor may see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    /// None: everything.
    user: Option<UserId>,
}

/// The commands with the same information as `/metrics`.
pub const METRICS: &[&[&[u8]]] = &[&[b"INFO"]];
/// The same for the page.
pub const PAGE: &[&[&[u8]]] = &[&[b"INFO"], &[b"CLIENT", b"LIST"], &[b"SLOWLOG", b"GET"]];

impl Rights {
    /// The rights of a request's sender, who must have the permission for these commands. Errors:
    /// the response.
    pub fn of(
        state: &mut State,
        visitor: &Visitor,
        request: &Request,
        needed: &[&[&[u8]]],
    ) -> Result<Self, Response> {
        let is_open = !state.config.protected_mode || state.acl.default_needs_password();
        if !is_open && !visitor.peer.is_local() {
            let text = "protected-mode is on and the default user has no password: only this machine may ask\n";
            return Err(Response::text(403, text));
        }
        if visitor.is_inside && !state.config.http_auth {
            return Ok(Rights { user: None });
        }
        let user = match &request.authorization {
            Some(authorization) => log_in(state, authorization),
            None => (!state.acl.requires_auth()).then_some(UserId::DEFAULT),
        };
        let Some(user) = user else {
            let challenge = "Basic realm=\"latchkey\", charset=\"UTF-8\"".to_owned();
            return Err(Response::of_status(401).with("WWW-Authenticate", challenge));
        };
        let rights = Rights { user: Some(user) };
        match needed.iter().all(|command| rights.may_run(state, DbIndex::ZERO, command)) {
            true => Ok(rights),
            false => Err(Response::of_status(403)),
        }
    }

    /// Whether the visitor may run a request in a database.
    pub fn may_run(&self, state: &State, database: DbIndex, request: &[&[u8]]) -> bool {
        let Some(user) = self.user.map(|id| state.acl.user(id)) else { return true };
        if user.is_unrestricted() {
            return true;
        }
        let (mut buffer, mut ranges) = (Vec::new(), Vec::new());
        for argument in request {
            ranges.push(Range { start: buffer.len() as u32, len: argument.len() as u32 });
            buffer.extend_from_slice(argument);
        }
        let args = Args::new(&buffer, &ranges);
        let Some(command) = state.commands.find(request[0]) else { return false };
        let named = request.get(1).and_then(|name| state.commands.find_subcommand(command, name));
        let databases = Databases { selected: database, count: state.database_count() };
        users::check_user(user, named.unwrap_or(command), args, databases).is_ok()
    }

    /// Whether the user may do everything.
    pub fn are_all(&self, state: &State) -> bool {
        self.user.is_none_or(|user| state.acl.user(user).is_unrestricted())
    }

    /// Whether a visitor may see the type and length of a key.
    pub fn may_read(&self, state: &State, database: DbIndex, key: &[u8]) -> bool {
        self.user.is_none() || self.may_run(state, database, &[b"TYPE", key])
    }

    /// Whether the visitor may see the owners of a semaphore's permits.
    pub fn may_see_semaphore(&self, state: &State, database: DbIndex, key: &[u8]) -> bool {
        self.user.is_none() || self.may_run(state, database, &[b"SEM.INFO", key])
    }

    /// Whether the visitor may see the owner of a lock, which for a string is the value.
    pub fn may_see_lock(&self, state: &State, database: DbIndex, key: &[u8]) -> bool {
        self.user.is_none() || self.may_run(state, database, &[b"LOCK.INFO", key])
    }
}

/// The user of an `Authorization` header, if name and password are right.
fn log_in(state: &mut State, authorization: &str) -> Option<UserId> {
    let user = credentials(authorization).and_then(|(name, password)| {
        let name = if name.is_empty() { b"default".to_vec() } else { name };
        state.acl.authenticate(&name, &password)
    });
    let user = user.filter(|&user| state.acl.user(user).has_flag(UserFlags::ON));
    if user.is_none() {
        state.stats.counters.acl_denied_auth += 1;
    }
    user
}

/// Name and password.
fn credentials(authorization: &str) -> Option<(Vec<u8>, Vec<u8>)> {
    let (scheme, text) = authorization.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let bytes = Base64::decode_vec(text.trim()).ok()?;
    let colon = bytes.iter().position(|&byte| byte == b':')?;
    Some((bytes[..colon].to_vec(), bytes[colon + 1..].to_vec()))
}

/// Whether a request names this server by an address, as localhost, or by one of `http-hosts`. A
/// foreign site could point its own name here; then the browser would pass this server's answers to
/// that site's page.
pub fn names_this_server(state: &State, request: &Request) -> bool {
    let Some(host) = &request.host else {
        // HTTP/1.0. No browser speaks it.
        return true;
    };
    let Some(name) = without_port(host) else { return false };
    let is_address = match name.strip_prefix('[') {
        Some(inner) => {
            inner.strip_suffix(']').is_some_and(|inner| inner.parse::<Ipv6Addr>().is_ok())
        }
        None => name.parse::<Ipv4Addr>().is_ok(),
    };
    let is_named = |known: &Vec<u8>| name.as_bytes().eq_ignore_ascii_case(known);
    is_address
        || name.eq_ignore_ascii_case("localhost")
        || state.config.http_hosts.iter().any(is_named)
}

/// The name or address in `Host`, an IPv6 address in its brackets. None: something other than a
/// port follows it.
fn without_port(host: &str) -> Option<&str> {
    let end = match host.starts_with('[') {
        true => host.find(']')? + 1,
        false => host.find(':').unwrap_or(host.len()),
    };
    let (name, rest) = host.split_at(end);
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    (rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port)).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_may_have_colons_and_a_name_may_be_empty() {
        let of =
            |text: &str| credentials(&format!("Basic {}", Base64::encode_string(text.as_bytes())));
        assert_eq!(of("a:b:c"), Some((b"a".to_vec(), b"b:c".to_vec())));
        assert_eq!(of(":secret"), Some((Vec::new(), b"secret".to_vec())));
        assert_eq!(of("a"), None);
        assert_eq!(credentials("Bearer abc"), None);
        assert_eq!(credentials("Basic ***"), None);
    }
}
