//! A connection to a server for a program that does nothing else: it waits for each byte, up to a
//! time.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use rustls::{ClientConfig, ClientConnection, StreamOwned};

use super::tls::stream::client_connection;

/// See the module.
#[derive(Debug)]
pub enum Connection {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Connection {
    /// Connects to the first address of `host` that answers. `timeout`: the longest time of
    /// connecting to one address, and of each later read or write.
    ///
    /// Errors: those of the last address; `TimedOut` or `WouldBlock` after the time.
    pub fn open(
        host: &str,
        port: u16,
        tls: Option<Arc<ClientConfig>>,
        timeout: Duration,
    ) -> io::Result<Self> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in (host, port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, timeout) {
                Ok(socket) => return Self::prepared(socket, host, tls, timeout),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Sets another longest time of a read.
    pub fn set_read_timeout(&self, timeout: Duration) -> io::Result<()> {
        let socket = match self {
            Connection::Plain(socket) => socket,
            Connection::Tls(stream) => &stream.sock,
        };
        socket.set_read_timeout(Some(timeout))
    }

    fn prepared(
        socket: TcpStream,
        host: &str,
        tls: Option<Arc<ClientConfig>>,
        timeout: Duration,
    ) -> io::Result<Self> {
        socket.set_read_timeout(Some(timeout))?;
        socket.set_write_timeout(Some(timeout))?;
        Ok(match tls {
            None => Connection::Plain(socket),
            Some(config) => {
                let connection = client_connection(config, host)?;
                Connection::Tls(Box::new(StreamOwned::new(connection, socket)))
            }
        })
    }
}

impl Read for Connection {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Connection::Plain(socket) => socket.read(buffer),
            Connection::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Connection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Connection::Plain(socket) => socket.write(bytes),
            Connection::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Connection::Plain(socket) => socket.flush(),
            Connection::Tls(stream) => stream.flush(),
        }
    }
}
