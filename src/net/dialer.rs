//! Connections to a primary: over the system's network, or over one that a simulation moves byte by
//! byte.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use mio::net::TcpStream;
use rustls::ClientConfig;
use socket2::{Domain, Socket, Type};

use super::stream::Stream;

/// A connection's target and options.
pub struct Route<'a> {
    pub to: SocketAddr,
    /// The source address: `bind-source-addr`.
    pub from: Option<IpAddr>,
    /// TLS configuration, if TLS is used.
    pub tls: Option<&'a Arc<ClientConfig>>,
}

/// Makes connections.
pub trait Dialer: Send {
    /// Starts to connect, without blocking. Errors: the connection fails at once.
    fn connect(&self, route: &Route<'_>) -> io::Result<Stream>;
}

/// The operating system's network.
pub struct SystemDialer;

impl Dialer for SystemDialer {
    fn connect(&self, route: &Route<'_>) -> io::Result<Stream> {
        let socket = Socket::new(Domain::for_address(route.to), Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        if let Some(from) = route.from {
            socket.bind(&SocketAddr::new(from, 0).into())?;
        }
        match socket.connect(&route.to.into()) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
            Err(error) => return Err(error),
        }
        let socket = TcpStream::from_std(socket.into());
        Stream::to_server(socket, route.tls, &route.to.ip().to_string())
    }
}
