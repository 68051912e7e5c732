//! Listening sockets: TCP addresses of `bind`, and the Unix socket.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use mio::event::Source;
use mio::net::{TcpListener, UnixListener};
use mio::{Interest, Registry, Token};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

use super::stream::{Address, Stream};
use crate::config::system_text;

/// A socket that takes connections.
#[derive(Debug)]
pub enum Listener {
    Tcp(TcpListener),
    /// Whose connections begin with a handshake.
    Tls(TcpListener),
    Unix(UnixListener, PathBuf),
}

impl Listener {
    /// Listens on a TCP address, for TLS or without. An IPv6 address takes no IPv4 connections.
    pub fn tcp(address: SocketAddr, backlog: i32, is_tls: bool) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(backlog)?;
        socket.set_nonblocking(true)?;
        let listener = TcpListener::from_std(socket.into());
        Ok(if is_tls { Listener::Tls(listener) } else { Listener::Tcp(listener) })
    }

    /// Listens on a Unix socket; a file left behind at `path` is replaced. `mode`: permissions of the socket's file,
    /// `group`: who else they may be for.
    pub fn unix(
        path: &Path,
        mode: Option<u32>,
        group: Option<u32>,
        backlog: i32,
    ) -> io::Result<Self> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.bind(&socket2::SockAddr::unix(path)?)?;
        if group.is_some() {
            std::os::unix::fs::chown(path, None, group)?;
        }
        if let Some(mode) = mode {
            use std::os::unix::fs::PermissionsExt;
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
        }
        socket.listen(backlog)?;
        socket.set_nonblocking(true)?;
        Ok(Listener::Unix(UnixListener::from_std(socket.into()), path.to_owned()))
    }

    pub fn is_tls(&self) -> bool {
        matches!(self, Listener::Tls(_))
    }

    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        self.source().register(registry, token, Interest::READABLE)
    }

    pub fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        self.source().deregister(registry)
    }

    fn source(&mut self) -> &mut dyn Source {
        match self {
            Listener::Tcp(listener) | Listener::Tls(listener) => listener,
            Listener::Unix(listener, _) => listener,
        }
    }

    /// Takes the next connection that waits: the stream, the other end's address and ours.
    pub fn accept(&self) -> io::Result<(Stream, Address, Address)> {
        match self {
            Listener::Tcp(listener) | Listener::Tls(listener) => {
                let (stream, peer) = listener.accept()?;
                let local = stream.local_addr().map_or(Address::Unknown, Address::Tcp);
                stream.set_nodelay(true)?;
                Ok((Stream::Tcp(stream), Address::Tcp(peer), local))
            }
            Listener::Unix(listener, path) => {
                let (stream, _) = listener.accept()?;
                let address = Address::Unix(path.to_string_lossy().into());
                Ok((Stream::Unix(stream), address.clone(), address))
            }
        }
    }

    /// The TCP address in use, with the port the system chose if it was asked to.
    pub fn local_address(&self) -> Option<SocketAddr> {
        match self {
            Listener::Tcp(listener) | Listener::Tls(listener) => listener.local_addr().ok(),
            Listener::Unix(..) => None,
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Listener::Unix(_, path) = self {
            // A socket file that somebody removed already is as good as removed.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Has the system probe a silent connection after `seconds`, three times a third of that apart.
pub fn set_keepalive(stream: &Stream, seconds: u64) -> io::Result<()> {
    let interval = Duration::from_secs((seconds / 3).max(1));
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(seconds))
        .with_interval(interval)
        .with_retries(3);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

/// Listens at every address of `bind`, for TLS or without; port 0 listens nowhere. What cannot be listened on goes to `warnings`, in words.
///
/// A family of addresses that this machine does not have is passed over, and so is an address that it does not have where
/// the entry begins with `-`. Any other failure ends it all: the error is its text.
pub fn tcp_listeners(
    bind: &[Vec<u8>],
    port: u16,
    backlog: u32,
    is_tls: bool,
    warnings: &mut Vec<String>,
) -> Result<Vec<Listener>, String> {
    let mut listeners = Vec::new();
    let bind = if port == 0 { &[] } else { bind };
    for entry in bind {
        let address = entry.strip_prefix(b"-").unwrap_or(entry);
        let address = String::from_utf8_lossy(address);
        let listener = resolve(&address, port).and_then(|address| {
            Listener::tcp(address, backlog.min(i32::MAX as u32) as i32, is_tls)
        });
        match listener {
            Ok(listener) => listeners.push(listener),
            Err(error) => {
                let text = format!(
                    "Could not create server TCP listening socket {address}:{port}: bind: {}",
                    system_text(&error)
                );
                warnings.push(text.clone());
                let passed_over = match error.raw_os_error() {
                    Some(libc::EADDRNOTAVAIL) => entry.starts_with(b"-"),
                    Some(
                        libc::EAFNOSUPPORT
                        | libc::EPFNOSUPPORT
                        | libc::EPROTONOSUPPORT
                        | libc::ESOCKTNOSUPPORT
                        | libc::ENOPROTOOPT,
                    ) => true,
                    _ => false,
                };
                if !passed_over {
                    return Err(text);
                }
            }
        }
    }
    Ok(listeners)
}

/// The addresses one entry of `bind` stands for: `*` all of IPv4, `::*` all of IPv6, else an address or a host's name.
pub fn resolve(entry: &str, port: u16) -> io::Result<SocketAddr> {
    let ip: IpAddr = match entry {
        "*" => IpAddr::from([0u8; 4]),
        "::*" => IpAddr::from([0u16; 8]),
        _ => match entry.parse() {
            Ok(ip) => ip,
            Err(_) => {
                use std::net::ToSocketAddrs;
                let mut found = (entry, port).to_socket_addrs()?;
                return found.next().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound));
            }
        },
    };
    Ok(SocketAddr::new(ip, port))
}
