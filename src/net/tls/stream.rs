//! A TLS connection.
//!
//! It reads and writes like a non-blocking socket: a read that does not fill its buffer has drained
//! the socket, unless [`TlsStream::has_more`] is true. Written bytes may be buffered here,
//! encrypted, until the socket has room ([`TlsStream::has_unsent`], `flush`).

use std::cell::RefCell;
use std::io::{self, IoSlice, Read, Write};
use std::sync::Arc;

use mio::net::TcpStream;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Connection, Error, ServerConfig, ServerConnection};

use super::verify::{NameField, names};

/// Maximum bytes of a read from the socket.
const READ_BYTES: usize = 32 * 1024;
/// With less room in the reader's buffer, reading stops. Unit: bytes.
const ROOM_BYTES_MIN: usize = 4 * 1024;
/// Maximum bytes encrypted before they are written to the socket.
const WRITE_BYTES: usize = 256 * 1024;
/// Maximum reads in one step of a handshake.
const HANDSHAKE_READS: usize = 8;

thread_local! {
    /// Buffer for encrypted bytes, shared by all connections of the thread: it is empty between
    /// reads.
    static ENCRYPTED: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BYTES].into());
}

/// The progress of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handshake {
    Done,
    /// It waits until the socket is readable or writable.
    Waits,
    /// The socket may have more to read now.
    Unfinished,
}

/// A socket with the state of its TLS connection.
#[derive(Debug)]
pub struct TlsStream {
    pub socket: TcpStream,
    connection: Connection,
    /// The peer has stopped sending: it sent close_notify or closed the socket.
    peer_has_closed: bool,
    /// The error after bytes that a read has returned; the next read returns it.
    pending_error: Option<io::Error>,
    has_more: bool,
}

impl TlsStream {
    /// The server side of an accepted connection.
    pub fn accepted(socket: TcpStream, config: Arc<ServerConfig>) -> io::Result<Self> {
        let connection = ServerConnection::new(config).map_err(io::Error::other)?;
        Ok(Self::new(socket, connection.into()))
    }

    /// The client side; the socket may still be connecting. `host` is not sent to the server.
    pub fn connecting(
        socket: TcpStream,
        config: Arc<ClientConfig>,
        host: &str,
    ) -> io::Result<Self> {
        let connection = client_connection(config, host)?;
        Ok(Self::new(socket, connection.into()))
    }

    fn new(socket: TcpStream, mut connection: Connection) -> Self {
        connection.set_buffer_limit(Some(WRITE_BYTES));
        TlsStream {
            socket,
            connection,
            peer_has_closed: false,
            pending_error: None,
            has_more: false,
        }
    }

    pub fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// Encrypted bytes wait until the socket has room.
    pub fn has_unsent(&self) -> bool {
        self.connection.wants_write()
    }

    /// The last read left something although it did not fill its buffer: the end, an error, or
    /// bytes without room.
    pub fn has_more(&self) -> bool {
        self.has_more
    }

    /// The names in the peer's certificate, which was verified.
    pub fn peer_names(&self, field: NameField) -> Vec<Vec<u8>> {
        let certificate = self.connection.peer_certificates().and_then(|chain| chain.first());
        certificate.map_or(Vec::new(), |certificate| names(certificate, field))
    }

    /// Continues the handshake, without blocking and for a limited number of reads.
    pub fn handshake(&mut self) -> io::Result<Handshake> {
        for _ in 0..HANDSHAKE_READS {
            match self.send_all() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Handshake::Waits);
                }
                sent => sent?,
            }
            if !self.is_handshaking() {
                return Ok(Handshake::Done);
            }
            match self.connection.read_tls(&mut self.socket) {
                Ok(0) => return Err(unexpected_eof()),
                Ok(_) => self.process()?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if would_block(&error) => return Ok(Handshake::Waits),
                Err(error) => return Err(error),
            }
        }
        Ok(Handshake::Unfinished)
    }

    /// Decrypts received bytes. On an error, an alert is sent to the peer.
    fn process(&mut self) -> io::Result<()> {
        match self.connection.process_new_packets() {
            Ok(state) => {
                self.peer_has_closed |= state.peer_has_closed();
                Ok(())
            }
            Err(error) => {
                // A peer that does not speak TLS gets no alert.
                if !matches!(error, Error::InvalidMessage(_)) || !self.is_handshaking() {
                    let _ = self.send_all();
                }
                Err(io::Error::new(io::ErrorKind::InvalidData, error))
            }
        }
    }

    /// Writes the encrypted bytes to the socket. Error WouldBlock: some remain.
    fn send_all(&mut self) -> io::Result<()> {
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut self.socket) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if would_block(&error) => return Err(io::ErrorKind::WouldBlock.into()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes encrypted bytes as far as the socket has room.
    fn send_available(&mut self) -> io::Result<()> {
        match self.send_all() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            sent => sent,
        }
    }

    /// Moves decrypted bytes to a buffer. Returns their number.
    fn read_decrypted(&mut self, buffer: &mut [u8]) -> usize {
        // An error means that there are none.
        self.connection.reader().read(buffer).unwrap_or(0)
    }

    /// Reads from the socket once, no more than the buffer has room for, and decrypts into the
    /// buffer. True: the socket may have more.
    ///
    /// Decrypted bytes that do not fit stay in the connection: less than a record, 16 KiB, which is
    /// below the size at which it would refuse to read.
    fn read_socket(&mut self, buffer: &mut [u8], filled: &mut usize) -> io::Result<bool> {
        ENCRYPTED.with_borrow_mut(|encrypted| {
            let room = encrypted.len().min(buffer.len() - *filled);
            let count = match self.socket.read(&mut encrypted[..room]) {
                Ok(0) => {
                    self.peer_has_closed = true;
                    return if self.is_handshaking() { Err(unexpected_eof()) } else { Ok(false) };
                }
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(true),
                Err(error) if would_block(&error) => return Ok(false),
                Err(error) => return Err(error),
            };
            let mut rest = &encrypted[..count];
            while !rest.is_empty() && self.connection.read_tls(&mut rest)? > 0 {
                self.process()?;
                *filled += self.read_decrypted(&mut buffer[*filled..]);
            }
            Ok(count == room && !self.peer_has_closed)
        })
    }

    /// Fills the buffer as far as the socket has bytes. On an error, `filled` bytes are valid.
    fn fill(&mut self, buffer: &mut [u8], filled: &mut usize) -> io::Result<()> {
        self.send_available()?;
        *filled = self.read_decrypted(buffer);
        while *filled < buffer.len() && !self.peer_has_closed {
            if *filled > 0 && buffer.len() - *filled < ROOM_BYTES_MIN {
                self.has_more = true;
                return Ok(());
            }
            if !self.read_socket(buffer, filled)? {
                break;
            }
        }
        // A key update must be answered.
        self.send_available()
    }
}

/// A client's connection. Host names are not verified, so one that is invalid for TLS is replaced.
pub(in crate::net) fn client_connection(
    config: Arc<ClientConfig>,
    host: &str,
) -> io::Result<ClientConnection> {
    let name = ServerName::try_from(host.to_owned());
    let name = name.or_else(|_| ServerName::try_from("localhost")).map_err(io::Error::other)?;
    ClientConnection::new(config, name).map_err(io::Error::other)
}

/// The socket is not ready, or not connected yet.
fn would_block(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::NotConnected)
}

fn unexpected_eof() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "unexpected eof while reading")
}

impl Read for TlsStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        if let Some(error) = self.pending_error.take() {
            return Err(error);
        }
        self.has_more = false;
        let mut filled = 0;
        let read = self.fill(buffer, &mut filled);
        match read {
            Err(error) if filled == 0 => Err(error),
            Err(error) => {
                (self.pending_error, self.has_more) = (Some(error), true);
                Ok(filled)
            }
            Ok(()) if filled > 0 => {
                self.has_more |= self.peer_has_closed;
                Ok(filled)
            }
            Ok(()) if self.peer_has_closed => Ok(0),
            Ok(()) => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}

impl Write for TlsStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    /// Encrypts as much as the limit allows, and sends as much as the socket takes.
    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.send_all()?;
        let taken = self.connection.writer().write_vectored(pieces)?;
        if taken == 0 && pieces.iter().any(|piece| !piece.is_empty()) {
            // During the handshake, the connection buffers only up to its limit.
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.send_available()?;
        Ok(taken)
    }

    /// Sends the buffered bytes. Error WouldBlock: some remain.
    fn flush(&mut self) -> io::Result<()> {
        self.send_all()
    }
}

impl Drop for TlsStream {
    fn drop(&mut self) {
        if !self.is_handshaking() {
            self.connection.send_close_notify();
            // Without room for it, the peer only sees the end of the connection.
            let _ = self.send_all();
        }
    }
}
