//! Accepting new clients.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use mio::Token;

use super::handshake::{HANDSHAKE_US, tls_not_configured};
use super::{Server, Turn};
use crate::client::{Client, ClientId};
use crate::command::configure_tls;
use crate::config::{Config, system_text};
use crate::gate::users;
use crate::net::listener::{Listener, set_keepalive};
use crate::net::source::FIRST_LISTENER;
use crate::net::stream::{Address, Stream};
use crate::sys::log::{Level, verbose, warning};
use crate::sys::process;

/// Connections accepted in one turn: a flood of them must not starve existing clients.
const ACCEPTS_MAX: usize = 1000;
/// The same for TLS, where each connection costs more: this number costs about as much as a turn's
/// handshakes may.
const ACCEPTS_TLS_MAX: usize = 8;

const PROTECTED: &[u8] = b"-DENIED Latchkey is running in protected mode because protected mode is enabled and no \
password is set for the default user. In this mode connections are only accepted from the loopback interface. If you \
want to connect from external computers, either disable protected mode with 'CONFIG SET protected-mode no' sent from \
the loopback interface, or set a password for the default user, or bind to a trusted address.\r\n";

/// The number of clients up to which a client from this address is accepted. `maxclients-reserved`
/// depends on the address, not on the user: the user is known only after a request, and strangers
/// that send none would take the places.
fn places_for(config: &Config, peer: &Address) -> usize {
    let reserved = if peer.is_local() { 0 } else { config.maxclients_reserved };
    config.maxclients.saturating_sub(reserved).max(1) as usize
}

impl Turn<'_> {
    /// Accepts the connections waiting at a listener.
    pub(super) fn accept(&mut self, index: usize) {
        let is_tls = self.core.state.net.listeners.get(index).is_some_and(Listener::is_tls);
        for _ in 0..if is_tls { ACCEPTS_TLS_MAX } else { ACCEPTS_MAX } {
            let Some(listener) = self.core.state.net.listeners.get(index) else { return };
            match listener.accept() {
                Ok((stream, peer, local)) => self.add_client(stream, is_tls, peer, local),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // This connection was closed already. The next one may work.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    warning!(self.core.state, "Accepting client connection: {error}");
                    // Probably out of file descriptors. Events are edge-triggered: the waiting
                    // connections are not announced again.
                    self.core.state.net.pending.accept_later.push(index);
                    return;
                }
            }
        }
        // Events are edge-triggered: the remaining connections are not announced again.
        self.core.state.net.pending.accept_again.push(index);
    }

    pub(super) fn add_client(
        &mut self,
        mut stream: Stream,
        is_tls: bool,
        peer: Address,
        local: Address,
    ) {
        // Connections to other nodes of the cluster count too.
        let links = self.core.state.net.bus.len();
        let places = places_for(&self.core.state.config, &peer).saturating_sub(links).max(1);
        if self.core.state.clients.len() >= places {
            // Clients that left in this turn must not count towards the limit.
            self.close_clients();
        }
        let config = &self.core.state.config;
        if self.core.state.clients.len() >= places {
            self.core.state.stats.counters.rejected_connections += 1;
            if !is_tls {
                // Written once, without retry: the client is refused even if it does not get the
                // text.
                let _ = stream.write(match self.core.state.node.cluster {
                    None => b"-ERR max number of clients reached\r\n",
                    Some(_) => b"-ERR max number of clients + cluster connections reached\r\n",
                });
            }
            return;
        }
        if config.tcp_keepalive > 0
            && !stream.is_unix()
            && let Err(error) = set_keepalive(&stream, config.tcp_keepalive as u64)
        {
            verbose!(self.core.state, "Setting keepalive: {error}");
        }
        if is_tls {
            let config = self.core.state.net.tls.as_ref().map(|tls| &tls.server);
            stream =
                match config.ok_or_else(tls_not_configured).and_then(|tls| stream.with_tls(tls)) {
                    Ok(stream) => stream,
                    Err(error) => {
                        let message = format_args!("Error accepting a client connection: {error}");
                        return self.core.state.log(Level::Warning, message);
                    }
                };
        }
        let flags = users::initial_flags(&self.core.state);
        let now_us = self.core.state.now.boot_us;
        let make = |id| Client::new(id, flags, stream, peer, local, now_us);
        let id: ClientId = self.core.state.clients.insert(make);
        if is_tls {
            self.core.state.net.pending.handshaking.push_back((now_us + HANDSHAKE_US, id));
        } else if self.refuse_if_protected(id) {
            return;
        } else {
            self.core.state.stats.counters.connections += 1;
        }
        let Some(client) = self.core.state.clients.get_mut(id) else { return };
        if let Err(error) =
            client.stream.register(self.core.state.net.poll.registry(), Token(id.slot as usize))
        {
            warning!(self.core.state, "Registering a client: {error}");
            self.core.state.clients.close(id);
        }
    }

    /// Protected mode: closes a remote client with an error. True: it was closed.
    pub(super) fn refuse_if_protected(&mut self, id: ClientId) -> bool {
        let config = &self.core.state.config;
        let is_open = !config.protected_mode || self.core.state.acl.default_needs_password();
        let Some(client) = self.core.state.clients.get_mut(id) else { return true };
        if is_open || client.peer.is_local() {
            return false;
        }
        self.core.state.stats.counters.rejected_connections += 1;
        // Written once, as above.
        let _ = client.stream.write(PROTECTED);
        self.core.state.clients.close(id);
        true
    }
}

impl Server {
    /// Listens on the Unix socket `unixsocket`. Errors: a text.
    pub(super) fn listen_on_unix_socket(&mut self) -> Result<(), String> {
        let config = &self.core.state.config;
        let backlog = config.tcp_backlog as i32;
        let listener =
            unix_socket(config, |path, mode, group| Listener::unix(path, mode, group, backlog))?;
        if let Some(listener) = listener {
            // Before the TCP listeners, which CONFIG SET replaces.
            self.core.state.net.listeners.insert(0, listener);
        }
        Ok(())
    }

    /// Listens on one more address; port 0 lets the system choose. Returns the address in use.
    pub fn listen_on(&mut self, address: SocketAddr) -> io::Result<SocketAddr> {
        let address = self.listen_besides(address, false)?;
        self.core.state.process.identity.port = address.port();
        Ok(address)
    }

    /// The same for TLS.
    pub fn listen_for_tls_on(&mut self, address: SocketAddr) -> io::Result<SocketAddr> {
        if self.core.state.net.tls.is_none() {
            configure_tls(&mut self.core.state).map_err(io::Error::other)?;
        }
        let address = self.listen_besides(address, true)?;
        self.core.state.process.identity.tls_port = address.port();
        Ok(address)
    }

    /// The same for HTTP.
    pub fn listen_for_http_on(&mut self, address: SocketAddr) -> io::Result<SocketAddr> {
        let listener = Listener::tcp(address, self.core.state.config.tcp_backlog as i32, false)?;
        let address = listener.local_address().unwrap_or(address);
        self.core.state.net.http.listen_besides(listener);
        self.register_listeners()?;
        Ok(address)
    }

    /// The same for other nodes of the cluster.
    pub fn listen_for_bus_on(&mut self, address: SocketAddr) -> io::Result<SocketAddr> {
        let is_tls = self.core.state.config.tls_cluster;
        let listener = Listener::tcp(address, self.core.state.config.tcp_backlog as i32, is_tls)?;
        let address = listener.local_address().unwrap_or(address);
        self.core.state.net.bus.listen(vec![listener]);
        self.register_listeners()?;
        Ok(address)
    }

    fn listen_besides(&mut self, address: SocketAddr, is_tls: bool) -> io::Result<SocketAddr> {
        let listener = Listener::tcp(address, self.core.state.config.tcp_backlog as i32, is_tls)?;
        let address = listener.local_address().unwrap_or(address);
        self.core.state.net.listeners.push(listener);
        self.core.state.net.listening.push(address);
        self.register_listeners()?;
        Ok(address)
    }

    /// Registers all listeners for readiness.
    pub(super) fn register_listeners(&mut self) -> io::Result<()> {
        let registry = self.core.state.net.poll.registry();
        for (index, listener) in self.core.state.net.listeners.iter_mut().enumerate() {
            // Fails harmlessly for a new one; an old one may have got another index.
            let _ = listener.deregister(registry);
            listener.register(registry, Token(FIRST_LISTENER - index))?;
            // Events are edge-triggered: earlier connections may not be announced, so accept once.
            self.core.state.net.pending.accept_again.push(index);
        }
        self.core.state.net.http.register(registry)?;
        self.core.state.net.bus.register(registry)?;
        Ok(())
    }
}

/// Calls `open` with the path, permissions and group of the Unix socket, if there is one. Errors: a
/// text.
pub(super) fn unix_socket<T>(
    config: &Config,
    open: impl FnOnce(&Path, Option<u32>, Option<u32>) -> io::Result<T>,
) -> Result<Option<T>, String> {
    if config.unixsocket.is_empty() {
        return Ok(None);
    }
    let path: &Path = OsStr::from_bytes(&config.unixsocket).as_ref();
    let mode = (config.unixsocketperm != 0).then_some(config.unixsocketperm);
    let why =
        |error: io::Error| format!("Failed opening Unix socket: bind: {}", system_text(&error));
    let group = match &config.unixsocketgroup[..] {
        b"" => None,
        name => Some(process::group_id(name).map_err(why)?),
    };
    open(path, mode, group).map(Some).map_err(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_places_are_for_local_clients_and_one_is_for_everybody() {
        let remote = [Address::Tcp("192.0.2.1:5000".parse().unwrap()), Address::Unknown];
        let local = [
            Address::Tcp("127.0.0.1:5000".parse().unwrap()),
            Address::Tcp("[::1]:5000".parse().unwrap()),
            Address::Tcp("[::ffff:127.0.0.1]:5000".parse().unwrap()),
            Address::Unix(Default::default()),
        ];
        for (maxclients, maxclients_reserved, for_remote) in
            [(10, 0, 10), (10, 3, 7), (10, 10, 1), (10, u32::MAX, 1), (1, 1, 1)]
        {
            let config = Config { maxclients, maxclients_reserved, ..Config::default() };
            for peer in &remote {
                assert_eq!(places_for(&config, peer), for_remote, "{maxclients_reserved}");
            }
            for peer in &local {
                assert_eq!(places_for(&config, peer), maxclients as usize);
            }
        }
    }
}
