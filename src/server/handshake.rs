//! TLS handshakes of clients: their queue, and the work after a handshake.
//!
//! A handshake step costs far more than a command (a signature with a long RSA key takes a
//! millisecond), and anybody can cause one. So steps run at the end of the turn, after replies are
//! sent, for a limited time. The rest stay queued for the next turn.

use std::io;

use super::Turn;
use crate::acl::UserFlags;
use crate::client::ClientId;
use crate::gate::users;
use crate::net::tls::NameField;
use crate::net::tls::stream::Handshake;
use crate::state::State;
use crate::sys::log::{verbose, warning};

/// Time limit for handshakes in a turn; the last step may exceed it. The other work of a turn costs
/// little. So with a short limit other clients wait less, and as many handshakes are completed.
/// Unit: microseconds.
const TURN_US: i64 = 200;
/// Maximum steps in a turn, as each may write a log line.
const STEPS_MAX: usize = 16;
/// Time limit of a handshake from the connection on. Unit: microseconds.
pub(super) const HANDSHAKE_US: i64 = 10_000_000;

impl Turn<'_> {
    /// Queues a client's handshake for the end of the turn.
    pub(super) fn queue_handshake(&mut self, id: ClientId) {
        if let Some(client) = self.core.state.clients.get_mut(id) {
            client.reading.is_queued = true;
            self.core.state.net.pending.handshakes.push_back(id);
        }
    }

    /// Runs steps of queued handshakes, for a limited time.
    pub fn run_handshakes(&mut self) {
        if self.core.state.net.pending.handshakes.is_empty() {
            return;
        }
        let begun_us = self.core.state.clock.now().boot_us;
        for _ in 0..STEPS_MAX.min(self.core.state.net.pending.handshakes.len()) {
            let Some(id) = self.core.state.net.pending.handshakes.pop_front() else { return };
            self.continue_handshake(id);
            if self.core.state.clock.now().boot_us - begun_us >= TURN_US {
                return;
            }
        }
    }

    /// Runs a step of a client's handshake.
    fn continue_handshake(&mut self, id: ClientId) {
        let Some(client) = self.core.state.clients.get_mut(id) else { return };
        client.reading.is_queued = false;
        if client.is_closing() {
            return;
        }
        match client.stream.handshake() {
            Ok(Handshake::Waits) => {}
            Ok(Handshake::Unfinished) => self.queue_handshake(id),
            Ok(Handshake::Done) => {
                log_in_by_certificate(&mut self.core.state, id);
                self.start_serving(id);
            }
            Err(error) => {
                let addresses = format!("addr={} laddr={}", client.peer, client.local);
                warning!(
                    self.core.state,
                    "Error accepting a client connection: {error} ({addresses})"
                );
                self.core.state.clients.close(id);
            }
        }
    }

    /// Starts to serve a client whose handshake is done, unless protected mode refuses it.
    fn start_serving(&mut self, id: ClientId) {
        let Some(client) = self.core.state.clients.get_mut(id) else { return };
        client.active_us = self.core.state.now.boot_us;
        if !self.refuse_if_protected(id) {
            self.core.state.stats.counters.connections += 1;
            // Requests after the handshake may be buffered already.
            self.core.state.clients.read_later(id);
        }
    }

    /// Closes connections whose handshakes take too long.
    pub fn close_slow_handshakes(&mut self) {
        let now_us = self.core.state.now.boot_us;
        while let Some(&(deadline_us, id)) = self.core.state.net.pending.handshaking.front() {
            let is_handshaking = |state: &State| {
                state.clients.get(id).is_some_and(|client| client.stream.is_handshaking())
            };
            if !is_handshaking(&self.core.state) {
                self.core.state.net.pending.handshaking.pop_front();
            } else if deadline_us <= now_us {
                self.core.state.net.pending.handshaking.pop_front();
                verbose!(
                    self.core.state,
                    "Error accepting a client connection: handshake timed out"
                );
                self.core.state.clients.close(id);
            } else {
                return;
            }
        }
    }
}

/// Sets the user that a client's certificate names, if `tls-auth-clients-user` is set and the user
/// exists.
fn log_in_by_certificate(state: &mut State, id: ClientId) {
    let field = match state.config.tls_auth_clients_user {
        "CN" => NameField::CommonName,
        "URI" => NameField::Uri,
        _ => return,
    };
    let Some(client) = state.clients.get(id) else { return };
    let names = client.stream.peer_names(field);
    let named = names.iter().filter_map(|name| state.acl.find(name));
    let user = named.into_iter().find(|&user| state.acl.user(user).has_flag(UserFlags::ON));
    if let Some(user) = user {
        users::log_in(state, id, user);
    }
}

/// The error of a connection that cannot start a handshake.
pub(super) fn tls_not_configured() -> io::Error {
    io::Error::other("TLS is not configured")
}
