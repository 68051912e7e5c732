//! Handshakes of TLS: where they wait for their turn, and what follows when one is over.
//!
//! A step of a handshake is more work than a command by far (a signature of a long RSA key takes a millisecond), and anybody
//! can ask for it. So steps are not taken where bytes are read but at the end of the turn, when what the others asked for has
//! been sent, and only for a while; the rest stays for the next turn, in the order it came.

use std::io;

use super::Turn;
use crate::acl::UserFlags;
use crate::client::{ClientFlags, ClientId};
use crate::gate::state::State;
use crate::gate::users;
use crate::net::tls::NameField;
use crate::net::tls::stream::Handshake;
use crate::sys::log::Level;

/// Time for handshakes in one turn; the last one that begins within it may take longer. A turn costs little besides, so that
/// less of it in more turns makes as many handshakes, and others wait for less. Microseconds.
const TURN_US: i64 = 200;
/// Steps in one turn, however fast they are: each may end in a line of the log.
const STEPS_MAX: usize = 16;
/// How long a handshake may take from the connection on. Microseconds.
pub(super) const HANDSHAKE_US: i64 = 10_000_000;

impl Turn<'_> {
    /// Has a client's handshake go on at the end of the turn.
    pub(super) fn shake_hands_later(&mut self, id: ClientId) {
        if let Some(client) = self.state.clients.get_mut(id) {
            client.flags |= ClientFlags::READ_PENDING;
            self.state.net.pending.handshakes.push_back(id);
        }
    }

    /// Goes on with handshakes, for a while.
    pub fn shake_hands(&mut self) {
        if self.state.net.pending.handshakes.is_empty() {
            return;
        }
        let begun_us = self.state.clock.now().boot_us;
        for _ in 0..STEPS_MAX.min(self.state.net.pending.handshakes.len()) {
            let Some(id) = self.state.net.pending.handshakes.pop_front() else { return };
            self.shake(id);
            if self.state.clock.now().boot_us - begun_us >= TURN_US {
                return;
            }
        }
    }

    fn shake(&mut self, id: ClientId) {
        let Some(client) = self.state.clients.get_mut(id) else { return };
        client.flags.remove(ClientFlags::READ_PENDING);
        if client.is_closing() {
            return;
        }
        match client.stream.handshake() {
            Ok(Handshake::Waits) => {}
            Ok(Handshake::GoesOn) => self.shake_hands_later(id),
            Ok(Handshake::Done) => {
                log_in_by_certificate(self.state, id);
                self.begin(id);
            }
            Err(error) => {
                let ends = format!("addr={} laddr={}", client.peer, client.local);
                self.state.log(
                    Level::Warning,
                    format_args!("Error accepting a client connection: {error} ({ends})"),
                );
                self.state.clients.close(id);
            }
        }
    }

    /// Takes in a client whose connection stands: it is served from now on, unless it is one to be refused.
    fn begin(&mut self, id: ClientId) {
        let Some(client) = self.state.clients.get_mut(id) else { return };
        client.active_us = self.state.now.boot_us;
        if !self.is_refused(id) {
            self.state.stats.counters.connections += 1;
            // What came behind the handshake is here already.
            self.read_later(id);
        }
    }

    /// Ends the connections whose handshakes take too long.
    pub fn close_slow_handshakes(&mut self) {
        let now_us = self.state.now.boot_us;
        while let Some(&(deadline_us, id)) = self.state.net.pending.handshaking.front() {
            let waits = |state: &State| {
                state.clients.get(id).is_some_and(|client| client.stream.is_handshaking())
            };
            if !waits(self.state) {
                self.state.net.pending.handshaking.pop_front();
            } else if deadline_us <= now_us {
                self.state.net.pending.handshaking.pop_front();
                self.state.log(
                    Level::Verbose,
                    format_args!("Error accepting a client connection: handshake timed out"),
                );
                self.state.clients.close(id);
            } else {
                return;
            }
        }
    }
}

/// Makes a client the user that its certificate names, if `tls-auth-clients-user` says so and there is such a user.
fn log_in_by_certificate(state: &mut State, id: ClientId) {
    let field = match state.config.tls_auth_clients_user {
        "CN" => NameField::CommonName,
        "URI" => NameField::Uri,
        _ => return,
    };
    let Some(client) = state.clients.get(id) else { return };
    let names = client.stream.peer_names(field);
    let named = names.iter().filter_map(|name| state.acl.find(name));
    let user = named.into_iter().find(|&user| state.acl.user(user).is(UserFlags::ON));
    if let Some(user) = user {
        users::become_user(state, id, user);
    }
}

/// The error of a connection that cannot be made ready for a handshake.
pub(super) fn without_tls() -> io::Error {
    io::Error::other("TLS is not configured")
}
