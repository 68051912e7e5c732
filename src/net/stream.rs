//! A client's stream: TCP, TLS over TCP, or Unix socket.

use std::io::{self, IoSlice, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

use mio::event::Source;
use mio::net::{TcpStream, UnixStream};
use mio::{Interest, Registry, Token};
use rustls::{ClientConfig, ServerConfig};

use crate::sys::read::append;

use super::tls::NameField;
use super::tls::stream::{Handshake, TlsStream};

/// A connected, non-blocking socket.
#[derive(Debug)]
pub enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream>),
}

/// One end's address, as `CLIENT LIST` prints it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    Tcp(SocketAddr),
    /// A Unix socket: its path.
    Unix(Box<str>),
    Unknown,
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Address::Tcp(address) => address.fmt(f),
            Address::Unix(path) => write!(f, "{path}:0"),
            Address::Unknown => f.write_str("?:0"),
        }
    }
}

impl Address {
    /// Whether the other end is on this machine, as protected mode asks.
    pub fn is_local(&self) -> bool {
        match self {
            Address::Tcp(address) => address.ip().to_canonical().is_loopback(),
            Address::Unix(_) => true,
            Address::Unknown => false,
        }
    }
}

impl From<std::os::unix::net::UnixStream> for Stream {
    /// The socket must be non-blocking already.
    fn from(socket: std::os::unix::net::UnixStream) -> Self {
        Stream::Unix(UnixStream::from_std(socket))
    }
}

impl Stream {
    /// A connection to another server, with TLS and its handshake to come if `tls` is given; the
    /// socket may still be connecting. `host`: the server's name, as given.
    pub fn to_server(
        socket: TcpStream,
        tls: Option<&Arc<ClientConfig>>,
        host: &str,
    ) -> io::Result<Self> {
        Ok(match tls {
            None => Stream::Tcp(socket),
            Some(config) => {
                Stream::Tls(Box::new(TlsStream::connecting(socket, config.clone(), host)?))
            }
        })
    }

    /// This end's address, without the port.
    pub fn local_ip(&self) -> Option<IpAddr> {
        Some(self.tcp()?.local_addr().ok()?.ip().to_canonical())
    }

    /// Whether a connecting socket is connected now. Errors: connecting failed.
    pub fn is_connected(&self) -> io::Result<bool> {
        match self.tcp().map(TcpStream::take_error).transpose()?.flatten() {
            Some(error) => Err(error),
            None => Ok(self.tcp().is_none_or(|socket| socket.peer_addr().is_ok())),
        }
    }

    fn tcp(&self) -> Option<&TcpStream> {
        match self {
            Stream::Tcp(socket) => Some(socket),
            Stream::Tls(stream) => Some(&stream.socket),
            Stream::Unix(_) => None,
        }
    }

    /// Server-side TLS over an accepted connection; the handshake is still to come.
    pub fn with_tls(self, config: &Arc<ServerConfig>) -> io::Result<Self> {
        Ok(match self {
            Stream::Tcp(socket) => {
                Stream::Tls(Box::new(TlsStream::accepted(socket, config.clone())?))
            }
            other => other,
        })
    }

    /// Registers for readiness, edge-triggered; `write` after a partial write only.
    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        let interest = self.interest(false);
        self.source().register(registry, token, interest)
    }

    pub fn reregister(&mut self, registry: &Registry, token: Token, write: bool) -> io::Result<()> {
        let interest = self.interest(write);
        self.source().reregister(registry, token, interest)
    }

    pub fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        self.source().deregister(registry)
    }

    /// TLS may have to write at any time, even while reading: its socket is always watched for
    /// writability.
    fn interest(&self, write: bool) -> Interest {
        if write || self.is_tls() {
            Interest::READABLE | Interest::WRITABLE
        } else {
            Interest::READABLE
        }
    }

    fn source(&mut self) -> &mut dyn Source {
        match self {
            Stream::Tcp(stream) => stream,
            Stream::Unix(stream) => stream,
            Stream::Tls(stream) => &mut stream.socket,
        }
    }

    /// TCP_NODELAY. Without effect on a Unix socket.
    pub fn set_nodelay(&mut self, nodelay: bool) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.set_nodelay(nodelay),
            Stream::Tls(stream) => stream.socket.set_nodelay(nodelay),
            Stream::Unix(_) => Ok(()),
        }
    }

    pub fn is_unix(&self) -> bool {
        matches!(self, Stream::Unix(_))
    }

    pub fn is_tls(&self) -> bool {
        matches!(self, Stream::Tls(_))
    }

    /// Whether a TLS handshake is incomplete, so that nothing can be read or written
    /// ([`Stream::handshake`]).
    #[inline]
    pub fn is_handshaking(&self) -> bool {
        matches!(self, Stream::Tls(stream) if stream.is_handshaking())
    }

    /// Whether written bytes still wait for room in the socket ([`Write::flush`]).
    #[inline]
    pub fn has_unsent(&self) -> bool {
        matches!(self, Stream::Tls(stream) if stream.has_unsent())
    }

    /// Whether a short read has left buffered bytes that the system will not announce.
    #[inline]
    pub fn has_more(&self) -> bool {
        matches!(self, Stream::Tls(stream) if stream.has_more())
    }

    /// Reads at most this number of bytes to the end of a vector, which does not grow. None: this
    /// kind of stream has to decode its bytes elsewhere.
    pub fn read_to_spare(&self, buffer: &mut Vec<u8>, most: usize) -> Option<io::Result<usize>> {
        match self {
            Stream::Tcp(_) | Stream::Unix(_) => Some(append(self.as_fd(), buffer, most)),
            Stream::Tls(_) => None,
        }
    }

    /// Continues a handshake, without blocking.
    pub fn handshake(&mut self) -> io::Result<Handshake> {
        match self {
            Stream::Tls(stream) => stream.handshake(),
            _ => Ok(Handshake::Done),
        }
    }

    /// The names in the peer's certificate.
    pub fn peer_names(&self, field: NameField) -> Vec<Vec<u8>> {
        match self {
            Stream::Tls(stream) => stream.peer_names(field),
            _ => Vec::new(),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(buffer),
            Stream::Unix(stream) => stream.read(buffer),
            Stream::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
            Stream::Tls(stream) => stream.write(bytes),
        }
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write_vectored(pieces),
            Stream::Unix(stream) => stream.write_vectored(pieces),
            Stream::Tls(stream) => stream.write_vectored(pieces),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Tcp(_) | Stream::Unix(_) => Ok(()),
            Stream::Tls(stream) => stream.flush(),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
            Stream::Tls(stream) => stream.socket.as_fd(),
        }
    }
}

impl AsRawFd for Stream {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
