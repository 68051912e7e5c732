//! Blocking connections to other servers, for a command such as MIGRATE. Kept for a while for
//! further commands.
//!
//! Each step (connecting, a write, a read) has the command's timeout; the loop is blocked until it
//! ends, as in Redis.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use rustls::{ClientConfig, ClientConnection, StreamOwned};

use super::tls::stream::client_connection;

/// Connections kept.
const KEPT_MAX: usize = 64;
/// An unused connection is closed after this time. Unit: microseconds.
const UNUSED_MAX_US: i64 = 10_000_000;
/// The longest line that is read. Unit: bytes.
const LINE_MAX: u64 = 16 * 1024;

/// A blocking socket, with TLS or without.
#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Socket {
    fn tcp(&self) -> &TcpStream {
        match self {
            Socket::Tcp(socket) => socket,
            Socket::Tls(stream) => &stream.sock,
        }
    }

    fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        self.tcp().set_read_timeout(Some(timeout))?;
        self.tcp().set_write_timeout(Some(timeout))
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(socket) => socket.read(buffer),
            Socket::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(socket) => socket.write(bytes),
            Socket::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Socket::Tcp(socket) => socket.flush(),
            Socket::Tls(stream) => stream.flush(),
        }
    }
}

/// A connection to another server.
#[derive(Debug)]
pub struct Connection {
    socket: BufReader<Socket>,
    /// The database known to be selected there.
    pub database: Option<i64>,
    /// Boot-time clock, microseconds.
    used_us: i64,
}

impl Connection {
    /// Connects to the first address of a host that answers within `timeout`. With `tls` a
    /// handshake follows, each step of which has the same timeout.
    pub fn open(
        host: &str,
        port: u16,
        timeout: Duration,
        tls: Option<&Arc<ClientConfig>>,
    ) -> io::Result<Self> {
        let mut failed = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for address in (host, port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, timeout) {
                Ok(socket) => {
                    socket.set_nodelay(true)?;
                    let mut socket = Socket::Tcp(socket);
                    socket.set_timeout(timeout)?;
                    if let Some(config) = tls {
                        socket = with_tls(socket, client_connection(config.clone(), host)?)?;
                    }
                    return Ok(Connection {
                        socket: BufReader::new(socket),
                        database: None,
                        used_us: 0,
                    });
                }
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    fn is_tls(&self) -> bool {
        matches!(self.socket.get_ref(), Socket::Tls(_))
    }

    /// Whether the other end has neither closed nor sent unrequested bytes, which would be taken
    /// for the reply to the next request. A TLS stream may have received a ticket.
    fn is_idle(&self) -> bool {
        let has_news = || match self.socket.get_ref() {
            Socket::Tcp(socket) => {
                socket.set_nonblocking(true)?;
                let peeked = socket.peek(&mut [0]);
                socket.set_nonblocking(false)?;
                peeked.map(|_| true)
            }
            Socket::Tls(_) => Ok(false),
        };
        let has_news = match has_news() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
            Err(_) => true,
            Ok(has_news) => has_news,
        };
        !has_news && self.socket.buffer().is_empty()
    }

    /// Sets the timeout of each read and write.
    pub fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        self.socket.get_ref().set_timeout(timeout)
    }

    /// Sends all bytes.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let socket = self.socket.get_mut();
        socket.write_all(bytes).and_then(|()| socket.flush()).map_err(timeout_error)
    }

    /// Reads a line, without its end. A closed connection and a line that is too long are errors
    /// too.
    pub fn line(&mut self) -> io::Result<Vec<u8>> {
        let mut line = Vec::new();
        self.socket.by_ref().take(LINE_MAX).read_until(b'\n', &mut line).map_err(timeout_error)?;
        if line.pop() != Some(b'\n') {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        line.pop_if(|byte| *byte == b'\r');
        Ok(line)
    }
}

/// Makes a TLS handshake on a socket.
fn with_tls(socket: Socket, mut connection: ClientConnection) -> io::Result<Socket> {
    let Socket::Tcp(mut socket) = socket else { return Ok(socket) };
    while connection.is_handshaking() {
        connection.complete_io(&mut socket).map_err(timeout_error)?;
    }
    Ok(Socket::Tls(Box::new(StreamOwned::new(connection, socket))))
}

/// A blocking socket reports a timeout as WouldBlock.
fn timeout_error(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
        _ => error,
    }
}

/// The kept connections, by host and port as given.
#[derive(Debug, Default)]
pub struct Outgoing {
    kept: Vec<(Box<[u8]>, u16, Connection)>,
}

impl Outgoing {
    /// Takes out a server's connection, with TLS or without, if there is one.
    pub fn take(&mut self, host: &[u8], port: u16, is_tls: bool) -> Option<Connection> {
        let is_it = |kept: &(Box<[u8]>, u16, Connection)| {
            *kept.0 == *host && kept.1 == port && kept.2.is_tls() == is_tls
        };
        loop {
            let place = self.kept.iter().position(is_it)?;
            let (_, _, connection) = self.kept.swap_remove(place);
            if connection.is_idle() {
                return Some(connection);
            }
        }
    }

    /// Keeps an idle connection. If there are too many, the least recently used one is closed.
    pub fn keep(&mut self, host: &[u8], port: u16, mut connection: Connection, now_us: i64) {
        if self.kept.len() >= KEPT_MAX {
            let oldest = self.kept.iter().enumerate().min_by_key(|(_, kept)| kept.2.used_us);
            if let Some((place, _)) = oldest {
                self.kept.swap_remove(place);
            }
        }
        connection.used_us = now_us;
        self.kept.push((host.into(), port, connection));
    }

    /// Closes connections unused for ten seconds.
    pub fn close_unused(&mut self, now_us: i64) {
        self.kept.retain(|(_, _, connection)| now_us - connection.used_us <= UNUSED_MAX_US);
    }

    pub fn len(&self) -> usize {
        self.kept.len()
    }

    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }
}
