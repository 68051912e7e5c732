//! Taking in new clients.

use std::io::{self, Write};
use std::net::SocketAddr;

use mio::Token;

use super::{FIRST_LISTENER, LISTENERS_MAX, Server};
use crate::client::{Client, ClientFlags, ClientId, Input};
use crate::net::listener::{Listener, resolve, set_keepalive};
use crate::net::stream::{Address, Stream};
use crate::resp::reply::{OutputBuffer, Protocol};
use crate::sys::log::Level;

/// Connections taken in one turn, so that a flood of them does not starve the clients that are there.
const ACCEPTS_MAX: usize = 1000;

const PROTECTED: &[u8] = b"-DENIED Latchkey is running in protected mode because protected mode is enabled and no \
password is set for the default user. In this mode connections are only accepted from the loopback interface. If you \
want to connect from external computers, either disable protected mode with 'CONFIG SET protected-mode no' sent from \
the loopback interface, or set a password for the default user, or bind to a trusted address.\r\n";

impl Server {
    /// Takes in what waits at a listener.
    pub(super) fn accept(&mut self, index: usize) {
        for _ in 0..ACCEPTS_MAX {
            let Some(listener) = self.listeners.get(index) else { return };
            match listener.accept() {
                Ok((stream, peer, local)) => self.welcome(stream, peer, local),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // The other end is gone again; the next one may not be.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    self.state
                        .log(Level::Warning, format_args!("Accepting client connection: {error}"));
                    return;
                }
            }
        }
        // Edge-triggered: what still waits is announced by nobody else.
        self.accept_again.push(index);
    }

    fn welcome(&mut self, mut stream: Stream, peer: Address, local: Address) {
        let config = &self.state.config;
        let refusal: &[u8] = if self.state.clients.len() as u64 >= config.maxclients as u64 {
            b"-ERR max number of clients reached\r\n"
        } else if config.protected_mode && config.requirepass.is_empty() && !peer.is_local() {
            PROTECTED
        } else {
            b""
        };
        if !refusal.is_empty() {
            self.state.counters.rejected_connections += 1;
            // One try: who does not read it is none the wiser, but refused all the same.
            let _ = stream.write(refusal);
            return;
        }
        if config.tcp_keepalive > 0
            && !stream.is_unix()
            && let Err(error) = set_keepalive(&stream, config.tcp_keepalive as u64)
        {
            self.state.log(Level::Verbose, format_args!("Setting keepalive: {error}"));
        }
        let mut flags = ClientFlags::empty();
        flags.set(ClientFlags::AUTHENTICATED, config.requirepass.is_empty());
        flags.set(ClientFlags::UNIX_SOCKET, stream.is_unix());
        let now_us = self.state.now.boot_us;
        let make = |id| Client {
            id,
            flags,
            db: 0,
            stream,
            peer,
            local,
            input: Input::Empty,
            output: OutputBuffer::default(),
            protocol: Protocol::Resp2,
            name: Box::default(),
            library_name: Box::default(),
            library_version: Box::default(),
            created_us: now_us,
            active_us: now_us,
            over_soft_limit_since_us: None,
            last_command: None,
            commands: 0,
            bytes_in: 0,
            bytes_out: 0,
            subscriptions: None,
            counted_memory: 0,
        };
        let id: ClientId = self.state.clients.insert(make);
        self.state.counters.connections += 1;
        let Some(client) = self.state.clients.get_mut(id) else { return };
        if let Err(error) = client.stream.register(self.poll.registry(), Token(id.slot as usize)) {
            self.state.log(Level::Warning, format_args!("Registering a client: {error}"));
            self.state.clients.close(id);
        }
    }

    /// Listens where `bind`, `port` and `unixsocket` say, in place of where it did. Nothing changes on an error.
    pub(super) fn listen(&mut self) -> Result<(), String> {
        let config = &self.state.config;
        let mut listeners = Vec::new();
        if config.port != 0 {
            for entry in &config.bind {
                let (entry, optional) = match entry.strip_prefix(b"-") {
                    Some(rest) => (String::from_utf8_lossy(rest), true),
                    None => (String::from_utf8_lossy(entry), false),
                };
                let listener = resolve(&entry, config.port as u16)
                    .and_then(|address| Listener::tcp(address, config.tcp_backlog as i32));
                match listener {
                    Ok(listener) => listeners.push(listener),
                    Err(error) => {
                        let text = format!(
                            "Could not create server TCP listening socket {entry}:{}: {error}",
                            config.port
                        );
                        self.state.log(Level::Warning, format_args!("Warning: {text}"));
                        if !optional || !is_absent(&error) {
                            return Err(text);
                        }
                    }
                }
            }
        }
        if !config.unixsocket.is_empty() {
            use std::os::unix::ffi::OsStrExt;
            let path = std::ffi::OsStr::from_bytes(&config.unixsocket).as_ref();
            let mode = (config.unixsocketperm != 0).then_some(config.unixsocketperm as u32);
            let listener = Listener::unix(path, mode, config.tcp_backlog as i32)
                .map_err(|error| format!("Failed opening Unix socket: bind: {error}"))?;
            listeners.push(listener);
        }
        if listeners.len() > LISTENERS_MAX {
            return Err("too many addresses to listen on".into());
        }
        self.use_listeners(listeners).map_err(|error| error.to_string())
    }

    /// Listens on one address besides; port 0 lets the system choose. Returns the address in use.
    pub fn listen_on(&mut self, address: SocketAddr) -> io::Result<SocketAddr> {
        let mut listener = Listener::tcp(address, self.state.config.tcp_backlog as i32)?;
        listener.register(self.poll.registry(), Token(FIRST_LISTENER - self.listeners.len()))?;
        let address = listener.local_address().unwrap_or(address);
        self.listeners.push(listener);
        self.state.listening.push(address);
        self.state.identity.port = address.port();
        Ok(address)
    }

    fn use_listeners(&mut self, mut listeners: Vec<Listener>) -> io::Result<()> {
        for mut old in std::mem::take(&mut self.listeners) {
            old.deregister(self.poll.registry())?;
        }
        for (index, listener) in listeners.iter_mut().enumerate() {
            listener.register(self.poll.registry(), Token(FIRST_LISTENER - index))?;
        }
        self.state.listening = listeners.iter().filter_map(Listener::local_address).collect();
        if let Some(address) = self.state.listening.first() {
            self.state.identity.port = address.port();
        }
        self.listeners = listeners;
        Ok(())
    }
}

/// Whether an address is not one of this machine's, or of a family it does not have: what `-` in `bind` forgives.
fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EADDRNOTAVAIL | libc::EAFNOSUPPORT | libc::EPROTONOSUPPORT | libc::ENOPROTOOPT)
    )
}
