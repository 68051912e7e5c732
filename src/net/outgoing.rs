//! Connections to other servers that a command waits for. They are kept for a while, for the next command that wants the same.
//!
//! Each step (connecting, a piece written, a piece read) may take as long as the command says; the loop stands still meanwhile,
//! as in Redis.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// Connections kept.
const KEPT_MAX: usize = 64;
/// One that was not used for so long is closed. Unit: microseconds.
const UNUSED_MAX_US: i64 = 10_000_000;
/// The longest line that is read. Unit: bytes.
const LINE_MAX: u64 = 16 * 1024;

/// A connection to another server.
#[derive(Debug)]
pub struct Connection {
    socket: BufReader<TcpStream>,
    /// The database it is known to have selected.
    pub database: Option<i64>,
    /// Boot-time clock, microseconds.
    used_us: i64,
}

impl Connection {
    /// Connects to the first address of a host that answers; each has `timeout` for it.
    pub fn open(host: &str, port: u16, timeout: Duration) -> io::Result<Self> {
        let mut failed = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for address in (host, port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, timeout) {
                Ok(socket) => {
                    socket.set_nodelay(true)?;
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

    /// How long each piece may take from now on.
    pub fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        let socket = self.socket.get_ref();
        socket.set_read_timeout(Some(timeout))?;
        socket.set_write_timeout(Some(timeout))
    }

    /// Sends all of it.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.socket.get_mut().write_all(bytes).map_err(told)
    }

    /// The next line, without its end. Errors: also where the other server has closed, or its line is too long.
    pub fn line(&mut self) -> io::Result<Vec<u8>> {
        let mut line = Vec::new();
        self.socket.by_ref().take(LINE_MAX).read_until(b'\n', &mut line).map_err(told)?;
        if line.pop() != Some(b'\n') {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        line.pop_if(|byte| *byte == b'\r');
        Ok(line)
    }
}

/// The system says of a blocking socket whose time is over that it would block.
fn told(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
        _ => error,
    }
}

/// The connections that are kept, by host and port as they were named.
#[derive(Debug, Default)]
pub struct Outgoing {
    kept: Vec<(Box<[u8]>, u16, Connection)>,
}

impl Outgoing {
    /// Takes out the connection to a server, if there is one.
    pub fn take(&mut self, host: &[u8], port: u16) -> Option<Connection> {
        let is_it = |kept: &(Box<[u8]>, u16, Connection)| *kept.0 == *host && kept.1 == port;
        let place = self.kept.iter().position(is_it)?;
        Some(self.kept.swap_remove(place).2)
    }

    /// Keeps a connection on which nothing is under way. With too many the one that was used longest ago goes.
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

    /// Closes those that were not used for ten seconds.
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
