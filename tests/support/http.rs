//! A client of HTTP, by hand.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use super::PATIENCE;

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    /// The head, with its line ends.
    pub head: String,
    pub body: String,
}

impl Answer {
    /// The value of a header, or nothing.
    pub fn header(&self, name: &str) -> &str {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(found, _)| found.eq_ignore_ascii_case(name)).map_or("", |(_, value)| value)
    }
}

/// A connection.
pub struct Connection {
    pub stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    pub fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("the server takes connections");
        stream.set_nodelay(true).expect("an option of TCP");
        stream.set_read_timeout(Some(PATIENCE)).expect("an option of sockets");
        stream.set_write_timeout(Some(PATIENCE)).expect("an option of sockets");
        Connection { stream, buffer: Vec::new() }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server reads");
    }

    /// Sends GET with further headers, each ending a line.
    pub fn ask(&mut self, target: &str, headers: &str) -> Answer {
        self.send(format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n").as_bytes());
        self.answer(false).expect("an answer")
    }

    /// The next response. None: the connection has ended. `head_only`: it answers HEAD.
    pub fn answer(&mut self, head_only: bool) -> Option<Answer> {
        loop {
            if let Some(end) = self.buffer.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                let head = String::from_utf8_lossy(&self.buffer[..end + 2]).into_owned();
                let status = head.split(' ').nth(1).expect("a status").parse().expect("a number");
                let answer = Answer { status, head, body: String::new() };
                let length: usize = answer.header("Content-Length").parse().expect("a length");
                let length = if head_only { 0 } else { length };
                if self.buffer.len() >= end + 4 + length {
                    let bytes: Vec<u8> = self.buffer.drain(..end + 4 + length).collect();
                    let body = String::from_utf8(bytes[end + 4..].to_vec()).expect("text");
                    return Some(Answer { body, ..answer });
                }
            }
            let mut bytes = [0; 64 * 1024];
            match self.stream.read(&mut bytes) {
                Ok(0) => return None,
                Ok(count) => self.buffer.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("no answer came: {error}"),
            }
        }
    }
}

/// The answer to GET over a connection of its own.
pub fn get(address: SocketAddr, target: &str) -> Answer {
    Connection::open(address).ask(target, "Connection: close\r\n")
}
