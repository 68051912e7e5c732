//! One connection over TLS.
//!
//! It reads and writes like a socket that never blocks: a read that brings less than was asked for has drained the socket,
//! unless [`TlsStream::has_more`] says otherwise. What was taken for writing may still lie here, encrypted, until the socket
//! has room ([`TlsStream::has_unsent`], `flush`).

use std::cell::RefCell;
use std::io::{self, IoSlice, Read, Write};
use std::sync::Arc;

use mio::net::TcpStream;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Connection, Error, ServerConfig, ServerConnection};

use super::verify::{NameField, names};

/// Read from the socket at once.
const READ_BYTES: usize = 32 * 1024;
/// With less room left for what is decrypted no more is read.
const ROOM_MIN: usize = 4 * 1024;
/// Encrypted at once, before the socket is tried.
const WRITE_BYTES: usize = 256 * 1024;
/// Pieces of a handshake taken in at once.
const HANDSHAKE_READS: usize = 8;

thread_local! {
    /// Where encrypted bytes are read to, by whoever reads. Nothing stays in it.
    static ENCRYPTED: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BYTES].into());
}

/// How far a handshake has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handshake {
    Done,
    /// It goes on when the other end has said more, or takes what it is sent.
    Waits,
    /// There is more to be read at once.
    GoesOn,
}

/// A socket with the state of its TLS connection.
#[derive(Debug)]
pub struct TlsStream {
    pub socket: TcpStream,
    connection: Connection,
    /// The other end has said that it sends no more, or the socket has ended.
    has_ended: bool,
    /// What went wrong behind bytes that were still good.
    failure: Option<io::Error>,
    has_more: bool,
}

impl TlsStream {
    /// The server's end of a connection that was accepted.
    pub fn accepted(socket: TcpStream, config: Arc<ServerConfig>) -> io::Result<Self> {
        let connection = ServerConnection::new(config).map_err(io::Error::other)?;
        Ok(Self::new(socket, connection.into()))
    }

    /// The client's end; the socket may still be connecting. `host` is told to nobody.
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
        TlsStream { socket, connection, has_ended: false, failure: None, has_more: false }
    }

    pub fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// Something encrypted waits until the socket has room.
    pub fn has_unsent(&self) -> bool {
        self.connection.wants_write()
    }

    /// The last read left something, although it filled nothing: the end, an error, or what there was no room for.
    pub fn has_more(&self) -> bool {
        self.has_more
    }

    /// The names in the certificate that the other end has shown and that was verified.
    pub fn peer_names(&self, field: NameField) -> Vec<Vec<u8>> {
        let shown = self.connection.peer_certificates().and_then(|chain| chain.first());
        shown.map_or(Vec::new(), |certificate| names(certificate, field))
    }

    /// Goes on with the handshake as far as it goes without waiting, and not for too long.
    pub fn handshake(&mut self) -> io::Result<Handshake> {
        for _ in 0..HANDSHAKE_READS {
            match self.send() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Handshake::Waits);
                }
                sent => sent?,
            }
            if !self.is_handshaking() {
                return Ok(Handshake::Done);
            }
            match self.connection.read_tls(&mut self.socket) {
                Ok(0) => return Err(early_end()),
                Ok(_) => self.process()?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_not_yet(&error) => return Ok(Handshake::Waits),
                Err(error) => return Err(error),
            }
        }
        Ok(Handshake::GoesOn)
    }

    /// Takes in what was read. On an error the other end is told why, if it listens.
    fn process(&mut self) -> io::Result<()> {
        match self.connection.process_new_packets() {
            Ok(state) => {
                self.has_ended |= state.peer_has_closed();
                Ok(())
            }
            Err(error) => {
                // Who speaks no TLS is not answered in it.
                if !matches!(error, Error::InvalidMessage(_)) || !self.is_handshaking() {
                    let _ = self.send();
                }
                Err(io::Error::new(io::ErrorKind::InvalidData, error))
            }
        }
    }

    /// Writes what is encrypted. The error WouldBlock: there is more.
    fn send(&mut self) -> io::Result<()> {
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut self.socket) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_not_yet(&error) => return Err(io::ErrorKind::WouldBlock.into()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes what is encrypted as far as the socket has room.
    fn send_some(&mut self) -> io::Result<()> {
        match self.send() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            sent => sent,
        }
    }

    /// Moves what is decrypted to a buffer.
    fn deliver(&mut self, buffer: &mut [u8]) -> usize {
        // An error is that there is nothing.
        self.connection.reader().read(buffer).unwrap_or(0)
    }

    /// Reads from the socket once and decrypts it into the buffer, no more than there is room for. True: the socket has more.
    ///
    /// Of one record, 16 KiB, what does not fit stays within the connection, which takes nothing more in only if it has more
    /// than that.
    fn take_in(&mut self, buffer: &mut [u8], filled: &mut usize) -> io::Result<bool> {
        ENCRYPTED.with_borrow_mut(|encrypted| {
            let room = encrypted.len().min(buffer.len() - *filled);
            let count = match self.socket.read(&mut encrypted[..room]) {
                Ok(0) => {
                    self.has_ended = true;
                    return if self.is_handshaking() { Err(early_end()) } else { Ok(false) };
                }
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(true),
                Err(error) if is_not_yet(&error) => return Ok(false),
                Err(error) => return Err(error),
            };
            let mut rest = &encrypted[..count];
            while !rest.is_empty() && self.connection.read_tls(&mut rest)? > 0 {
                self.process()?;
                *filled += self.deliver(&mut buffer[*filled..]);
            }
            Ok(count == room && !self.has_ended)
        })
    }

    /// Fills the buffer as far as what has come goes. An error may come behind some bytes.
    fn fill(&mut self, buffer: &mut [u8], filled: &mut usize) -> io::Result<()> {
        self.send_some()?;
        *filled = self.deliver(buffer);
        while *filled < buffer.len() && !self.has_ended {
            if *filled > 0 && buffer.len() - *filled < ROOM_MIN {
                self.has_more = true;
                return Ok(());
            }
            if !self.take_in(buffer, filled)? {
                break;
            }
        }
        // What came may ask for an answer of its own: new keys.
        self.send_some()
    }
}

/// A client's connection, to whatever server shows a certificate of the authorities.
pub(in crate::net) fn client_connection(
    config: Arc<ClientConfig>,
    host: &str,
) -> io::Result<ClientConnection> {
    let name = ServerName::try_from(host.to_owned());
    let name = name.or_else(|_| ServerName::try_from("localhost")).map_err(io::Error::other)?;
    ClientConnection::new(config, name).map_err(io::Error::other)
}

/// The socket has nothing, or is not connected yet.
fn is_not_yet(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::NotConnected)
}

fn early_end() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "unexpected eof while reading")
}

impl Read for TlsStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        self.has_more = false;
        let mut filled = 0;
        let read = self.fill(buffer, &mut filled);
        match read {
            Err(error) if filled == 0 => Err(error),
            Err(error) => {
                (self.failure, self.has_more) = (Some(error), true);
                Ok(filled)
            }
            Ok(()) if filled > 0 => {
                self.has_more |= self.has_ended;
                Ok(filled)
            }
            Ok(()) if self.has_ended => Ok(0),
            Ok(()) => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}

impl Write for TlsStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    /// Takes what there is room for, encrypts it, and sends it as far as the socket has room.
    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.send()?;
        let taken = self.connection.writer().write_vectored(pieces)?;
        if taken == 0 && pieces.iter().any(|piece| !piece.is_empty()) {
            // Before the end of the handshake only so much is kept.
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.send_some()?;
        Ok(taken)
    }

    /// Sends what lies here. The error WouldBlock: there is more.
    fn flush(&mut self) -> io::Result<()> {
        self.send()
    }
}

impl Drop for TlsStream {
    fn drop(&mut self) {
        if !self.is_handshaking() {
            self.connection.send_close_notify();
            // Who does not take it sees the connection end.
            let _ = self.send();
        }
    }
}
