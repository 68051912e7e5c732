//! Listening sockets: TCP addresses of `bind`, and the Unix socket.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use mio::event::Source;
use mio::net::{TcpListener, UnixListener};
use mio::{Interest, Registry, Token};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

use super::stream::{Address, Stream};
use crate::config::system_text;

/// A listening socket.
#[derive(Debug)]
pub enum Listener {
    Tcp(TcpListener),
    /// Its connections start with a TLS handshake.
    Tls(TcpListener),
    /// With the file's path and identity: device and inode.
    Unix(UnixListener, PathBuf, (u64, u64)),
}

impl Listener {
    /// Listens on a TCP address, for TLS or without. An IPv6 address accepts no IPv4 connections.
    pub fn tcp(address: SocketAddr, backlog: i32, is_tls: bool) -> io::Result<Self> {
        let socket = bind_tcp(address)?;
        socket.listen(backlog)?;
        socket.set_nonblocking(true)?;
        let listener = TcpListener::from_std(socket.into());
        Ok(if is_tls { Listener::Tls(listener) } else { Listener::Tcp(listener) })
    }

    /// Listens on a Unix socket, replacing one at `path` that no process listens on. `mode`: the
    /// file's permissions; `group`: its group.
    pub fn unix(
        path: &Path,
        mode: Option<u32>,
        group: Option<u32>,
        backlog: i32,
    ) -> io::Result<Self> {
        if is_stale_socket(path)? {
            std::fs::remove_file(path)?;
        }
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.bind(&socket2::SockAddr::unix(path)?)?;
        let bound = identity(path)?;
        if group.is_some() {
            std::os::unix::fs::chown(path, None, group)?;
        }
        if let Some(mode) = mode {
            use std::os::unix::fs::PermissionsExt;
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
        }
        socket.listen(backlog)?;
        socket.set_nonblocking(true)?;
        Ok(Listener::Unix(UnixListener::from_std(socket.into()), path.to_owned(), bound))
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
            Listener::Unix(listener, ..) => listener,
        }
    }

    /// Accepts a waiting connection: the stream, the peer's address and the local one.
    pub fn accept(&self) -> io::Result<(Stream, Address, Address)> {
        match self {
            Listener::Tcp(listener) | Listener::Tls(listener) => {
                let (stream, peer) = listener.accept()?;
                let local = stream.local_addr().map_or(Address::Unknown, Address::Tcp);
                stream.set_nodelay(true)?;
                Ok((Stream::Tcp(stream), Address::Tcp(peer), local))
            }
            Listener::Unix(listener, path, _) => {
                let (stream, _) = listener.accept()?;
                let address = Address::Unix(path.to_string_lossy().into());
                Ok((Stream::Unix(stream), address.clone(), address))
            }
        }
    }

    /// The TCP address in use, with a port chosen by the system.
    pub fn local_address(&self) -> Option<SocketAddr> {
        match self {
            Listener::Tcp(listener) | Listener::Tls(listener) => listener.local_addr().ok(),
            Listener::Unix(..) => None,
        }
    }
}

/// A socket with this address that does not listen yet. Other programs can still take the address.
pub fn bind_tcp(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// Device and inode of what has a name.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    std::fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}

/// Whether a socket is at `path` on which no process listens, left by a process that has ended.
/// False: nothing is there. Errors: a socket in use, or something else that the caller must not
/// remove.
fn is_stale_socket(path: &Path) -> io::Result<bool> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        found => refuse_other_files(&found?)?,
    }
    // A blocking connect would wait for a process that accepts no connections.
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    match socket.connect(&socket2::SockAddr::unix(path)?) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(error),
        _ => Err(io::Error::from_raw_os_error(libc::EADDRINUSE)),
    }
}

fn refuse_other_files(found: &std::fs::Metadata) -> io::Result<()> {
    match found.file_type().is_socket() {
        true => Ok(()),
        false if found.is_dir() => Err(io::Error::from_raw_os_error(libc::EISDIR)),
        false => Err(io::Error::from_raw_os_error(libc::EEXIST)),
    }
}

/// Whether [`Listener::unix`] would work, except that a process may use the socket now. A file at
/// `path` stays as it is.
pub fn try_unix(path: &Path, mode: Option<u32>, group: Option<u32>) -> io::Result<()> {
    let found = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // Removed again at once.
            return Listener::unix(path, mode, group, 1).map(drop);
        }
        found => found?,
    };
    socket2::SockAddr::unix(path)?;
    refuse_other_files(&found)?;
    let name = format!("latchkey-check-{}", std::process::id());
    let beside = path.with_file_name(name);
    std::fs::File::create_new(&beside)?;
    let folder = beside.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = std::fs::metadata(folder.unwrap_or(Path::new(".")));
    let user = rustix::process::geteuid().as_raw();
    // In a folder such as /tmp, only the owner of a file or of the folder may remove the old file.
    let is_foreign = folder.is_ok_and(|folder| {
        let is_sticky = folder.mode() & 0o1000 != 0;
        is_sticky && ![0, found.uid(), folder.uid()].contains(&user)
    });
    if is_foreign {
        std::fs::remove_file(&beside)?;
        return Err(io::Error::from_raw_os_error(libc::EPERM));
    }
    let changed = match group {
        Some(group) => std::os::unix::fs::chown(&beside, None, Some(group)),
        None => Ok(()),
    };
    std::fs::remove_file(&beside)?;
    changed
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Another server may have made a socket of this name.
        if let Listener::Unix(_, path, bound) = self
            && identity(path).is_ok_and(|found| found == *bound)
        {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Enables TCP keepalive after `seconds` of silence: three probes, a third of that apart.
pub fn set_keepalive(stream: &Stream, seconds: u64) -> io::Result<()> {
    let interval = Duration::from_secs((seconds / 3).max(1));
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(seconds))
        .with_interval(interval)
        .with_retries(3);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

/// Listens on every address of `bind`, for TLS or without; port 0: nowhere. Addresses that fail are
/// named in `warnings`.
///
/// Unsupported address families are skipped, and so are unavailable addresses in entries that begin
/// with `-`. Errors: a text, for any other failure.
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
        let open = |address| Listener::tcp(address, backlog.min(i32::MAX as u32) as i32, is_tls);
        match open_entry(entry, port, open) {
            Entry::Open(listener) => listeners.push(listener),
            Entry::PassedOver(text) => warnings.push(text),
            Entry::Refused(text) => {
                warnings.push(text.clone());
                return Err(text);
            }
        }
    }
    Ok(listeners)
}

/// The result of opening an entry of `bind`. Texts are for the log.
pub enum Entry<T> {
    Open(T),
    /// It may be unavailable.
    PassedOver(String),
    Refused(String),
}

/// Opens an entry of `bind` by `open`.
pub fn open_entry<T>(
    entry: &[u8],
    port: u16,
    open: impl FnOnce(SocketAddr) -> io::Result<T>,
) -> Entry<T> {
    let address = entry.strip_prefix(b"-").unwrap_or(entry);
    let address = String::from_utf8_lossy(address);
    let error = match resolve(&address, port).and_then(open) {
        Ok(opened) => return Entry::Open(opened),
        Err(error) => error,
    };
    let text = refusal(entry, port, &error);
    match error.raw_os_error() {
        Some(libc::EADDRNOTAVAIL) if entry.starts_with(b"-") => Entry::PassedOver(text),
        Some(
            libc::EAFNOSUPPORT
            | libc::EPFNOSUPPORT
            | libc::EPROTONOSUPPORT
            | libc::ESOCKTNOSUPPORT
            | libc::ENOPROTOOPT,
        ) => Entry::PassedOver(text),
        _ => Entry::Refused(text),
    }
}

/// The log's text about an entry of `bind` that cannot be used.
pub fn refusal(entry: &[u8], port: u16, error: &io::Error) -> String {
    let address = entry.strip_prefix(b"-").unwrap_or(entry);
    let address = String::from_utf8_lossy(address);
    let why = system_text(error);
    format!("Could not create server TCP listening socket {address}:{port}: bind: {why}")
}

/// The address of a `bind` entry: `*` is all of IPv4, `::*` all of IPv6, else an address or host
/// name.
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
