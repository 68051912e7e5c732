//! A connection of the load generator: bytes over TCP, or over TLS on it. Neither waits once it is
//! open.

use crate::Result;
use mio::net::TcpStream;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;

pub enum Wire {
    Plain(TcpStream),
    Tls(Box<Tls>),
}

pub struct Tls {
    session: ClientConnection,
    stream: TcpStream,
}

impl Wire {
    /// Connects, and over TLS shakes hands, waiting for both.
    pub fn open(address: SocketAddr, tls: Option<&Arc<ClientConfig>>) -> Result<Wire> {
        let mut stream = std::net::TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        let session = match tls {
            Some(config) => {
                let name = ServerName::from(address.ip());
                let mut session = ClientConnection::new(config.clone(), name)?;
                while session.is_handshaking() {
                    session.complete_io(&mut stream)?;
                }
                Some(session)
            }
            None => None,
        };
        stream.set_nonblocking(true)?;
        let stream = TcpStream::from_std(stream);
        Ok(match session {
            Some(session) => Wire::Tls(Box::new(Tls { session, stream })),
            None => Wire::Plain(stream),
        })
    }

    /// The socket, to be waited for.
    pub fn socket(&mut self) -> &mut TcpStream {
        match self {
            Wire::Plain(stream) => stream,
            Wire::Tls(tls) => &mut tls.stream,
        }
    }

    /// What was agreed upon, if this is TLS.
    pub fn agreed(&self) -> Option<String> {
        let Wire::Tls(tls) = self else { return None };
        let suite = tls.session.negotiated_cipher_suite()?.suite();
        Some(format!("{suite:?}"))
    }

    /// Sends what it can.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Wire::Plain(stream) => stream.write(bytes),
            Wire::Tls(tls) => {
                let taken = tls.session.writer().write(bytes)?;
                tls.push()?;
                Ok(taken)
            }
        }
    }

    /// Sends more of what was taken before.
    pub fn push(&mut self) -> io::Result<()> {
        match self {
            Wire::Plain(_) => Ok(()),
            Wire::Tls(tls) => tls.push(),
        }
    }

    /// Reads what there is, up to the buffer's length.
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let tls = match self {
            Wire::Plain(stream) => return stream.read(buffer),
            Wire::Tls(tls) => tls,
        };
        loop {
            match tls.session.reader().read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                other => return other,
            }
            if tls.session.read_tls(&mut tls.stream)? == 0 {
                return Ok(0);
            }
            tls.session.process_new_packets().map_err(io::Error::other)?;
        }
    }

    /// Whether a read that did not fill its buffer has taken all there was.
    pub fn is_drained_by_short_reads(&self) -> bool {
        matches!(self, Wire::Plain(_))
    }
}

impl Tls {
    fn push(&mut self) -> io::Result<()> {
        while self.session.wants_write() {
            match self.session.write_tls(&mut self.stream) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                other => other?,
            };
        }
        Ok(())
    }
}
