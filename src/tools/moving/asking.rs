//! A connection to a server that is asked one thing after the other. The server may be anything
//! that accepts connections: each length is limited, and each wait.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::super::access::{Access, Login};
use crate::clock::Clock;
use crate::net::blocking::Connection;

/// Bytes read from the connection at once.
const READ_BYTES: usize = 64 << 10;
/// The longest line of a reply.
const LINE_BYTES_MAX: usize = 64 << 10;
/// The longest string, as in `proto-max-bulk-len`.
const STRING_BYTES_MAX: u64 = 512 << 20;
/// The largest reply: the bytes of its strings, and a few for each element.
const REPLY_BYTES_MAX: u64 = 1 << 30;
/// Counted for each element.
const ELEMENT_BYTES: u64 = 64;
/// The deepest reply. Those to the requests of a move have at most six levels.
const DEPTH_MAX: usize = 16;
/// The time after which a wait looks whether it was interrupted.
const LOOK: Duration = Duration::from_millis(100);

/// Why a step does not go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    Because(String),
    Interrupted,
}

impl From<String> for Stop {
    fn from(text: String) -> Self {
        Stop::Because(text)
    }
}

/// A reply of version 2 of the protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Status(Vec<u8>),
    Error(Vec<u8>),
    Number(i64),
    Text(Vec<u8>),
    Null,
    List(Vec<Reply>),
}

impl Reply {
    /// The bytes of a string or status.
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Reply::Status(bytes) | Reply::Text(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// A string or status, its other bytes escaped.
    pub fn text(&self) -> Option<String> {
        self.bytes().map(|bytes| String::from_utf8_lossy(bytes).into_owned())
    }

    pub fn number(&self) -> Option<i64> {
        match self {
            Reply::Number(number) => Some(*number),
            _ => None,
        }
    }

    pub fn list(&self) -> Option<&[Reply]> {
        match self {
            Reply::List(list) => Some(list),
            _ => None,
        }
    }

    /// An error's text, for a terminal.
    pub fn error(&self) -> Option<String> {
        match self {
            Reply::Error(text) => Some(shown(text)),
            _ => None,
        }
    }
}

/// The bytes of another server as text for a terminal, at most 200 of them.
pub fn shown(bytes: &[u8]) -> String {
    let cut = &bytes[..bytes.len().min(200)];
    match std::str::from_utf8(cut) {
        Ok(text) if !text.chars().any(char::is_control) => text.to_owned(),
        _ => cut.escape_ascii().to_string(),
    }
}

/// Encoded requests.
#[derive(Debug, Default)]
pub struct Batch {
    bytes: Vec<u8>,
    count: usize,
}

impl Batch {
    pub fn add(&mut self, request: &[&[u8]]) {
        self.count += 1;
        self.bytes.extend_from_slice(format!("*{}\r\n", request.len()).as_bytes());
        for part in request {
            self.bytes.extend_from_slice(format!("${}\r\n", part.len()).as_bytes());
            self.bytes.extend_from_slice(part);
            self.bytes.extend_from_slice(b"\r\n");
        }
    }

    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// What all connections of a move share.
#[derive(Clone, Debug)]
pub struct Surroundings {
    pub access: Arc<Access>,
    pub clock: Clock,
    /// Set by Ctrl-C.
    pub interrupted: Arc<AtomicBool>,
}

impl Surroundings {
    /// Errors: it was interrupted.
    pub fn look(&self) -> Result<(), Stop> {
        match self.interrupted.load(Ordering::SeqCst) {
            true => Err(Stop::Interrupted),
            false => Ok(()),
        }
    }

    /// Waits, unless it is interrupted.
    pub fn pause(&self, time: Duration) -> Result<(), Stop> {
        let mut left = time;
        while !left.is_zero() {
            self.look()?;
            let part = left.min(LOOK);
            self.clock.sleep(part);
            left -= part;
        }
        self.look()
    }

    /// Microseconds of a clock that nobody sets.
    pub fn now_us(&self) -> i64 {
        self.clock.now().boot_us
    }
}

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub host: String,
    pub port: u16,
}

impl std::fmt::Display for Address {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.host.contains(':') {
            true => write!(out, "[{}]:{}", self.host, self.port),
            false => write!(out, "{}:{}", self.host, self.port),
        }
    }
}

/// See the module.
#[derive(Debug)]
pub struct Server<C = Connection> {
    pub address: Address,
    /// The user of this connection, for further ones.
    pub login: Login,
    connection: C,
    pub around: Surroundings,
    input: Vec<u8>,
    /// Bytes of `input` that were used.
    used: usize,
    /// Bytes that the present reply may still have.
    budget: u64,
    /// The database that is selected.
    database: u32,
}

impl Server {
    /// Connects, and logs in. Errors: a text with the address.
    pub fn open(address: &Address, login: &Login, around: &Surroundings) -> Result<Self, Stop> {
        around.look()?;
        let Address { host, port } = address;
        let access = &around.access;
        let tls = access.tls_client(&around.clock)?;
        let opened = Connection::open(host, *port, tls, access.timeout);
        let told = |error| format!("{address}: {}", access.told(&error));
        let connection = opened.map_err(told)?;
        let mut server = Server::over(connection, address.clone(), around.clone());
        server.login = login.clone();
        server.log_in()?;
        // Helps who looks at CLIENT LIST. It also ends TLS's handshake, which no short time-out may
        // interrupt.
        server.ask_words("CLIENT SETNAME latchkey-move")?;
        server.connection.set_read_timeout(LOOK).map_err(told)?;
        Ok(server)
    }
}

impl<C: Read + Write> Server<C> {
    /// `connection`: its reads end after a moment, with `WouldBlock` or `TimedOut`.
    pub fn over(connection: C, address: Address, around: Surroundings) -> Self {
        Server {
            address,
            login: Login::default(),
            connection,
            around,
            input: Vec::new(),
            used: 0,
            budget: 0,
            database: 0,
        }
    }

    fn log_in(&mut self) -> Result<(), Stop> {
        let Login { user, password: Some(password) } = self.login.clone() else { return Ok(()) };
        let reply = match user {
            Some(user) => self.ask(&[b"AUTH", &user, &password])?,
            None => self.ask(&[b"AUTH", &password])?,
        };
        match reply {
            Reply::Status(text) if text == b"OK" => Ok(()),
            other => Err(self.unexpected("AUTH", &other)),
        }
    }

    /// A text about this server.
    pub fn stop(&self, why: impl std::fmt::Display) -> Stop {
        Stop::Because(format!("{}: {why}", self.address))
    }

    /// The text for a reply that does not belong to its request, or is an error.
    pub fn unexpected(&self, request: &str, reply: &Reply) -> Stop {
        match reply.error() {
            Some(text) => self.stop(format_args!("{request}: {text}")),
            None => self.stop(format_args!("the reply to {request} is none of this protocol")),
        }
    }

    /// Sends a request and waits for its reply.
    pub fn ask(&mut self, request: &[&[u8]]) -> Result<Reply, Stop> {
        let mut batch = Batch::default();
        batch.add(request);
        let mut replies = self.ask_all(batch)?;
        Ok(replies.pop().unwrap_or(Reply::Null))
    }

    /// The same with the words of a text.
    pub fn ask_words(&mut self, request: &str) -> Result<Reply, Stop> {
        let words: Vec<&[u8]> = request.split(' ').map(str::as_bytes).collect();
        self.ask(&words)
    }

    /// A request that must be answered with `+OK`.
    pub fn order(&mut self, request: &[&[u8]]) -> Result<(), Stop> {
        match self.ask(request)? {
            Reply::Status(text) if text == b"OK" || text.starts_with(b"OK ") => Ok(()),
            other => {
                let words: Vec<String> = request.iter().map(|word| shown(word)).collect();
                Err(self.unexpected(&words.join(" "), &other))
            }
        }
    }

    /// Sends requests at once. Returns their replies, as many.
    pub fn ask_all(&mut self, batch: Batch) -> Result<Vec<Reply>, Stop> {
        self.around.look()?;
        let sent = self.connection.write_all(&batch.bytes).and_then(|()| self.connection.flush());
        sent.map_err(|error| self.stop(self.around.access.told(&error)))?;
        let mut replies = Vec::with_capacity(batch.count);
        for _ in 0..batch.count {
            self.budget = REPLY_BYTES_MAX;
            replies.push(self.reply(0)?);
        }
        Ok(replies)
    }

    /// Selects a database.
    pub fn select(&mut self, database: u32) -> Result<(), Stop> {
        if self.database != database {
            self.order(&[b"SELECT", database.to_string().as_bytes()])?;
            self.database = database;
        }
        Ok(())
    }

    fn reply(&mut self, depth: usize) -> Result<Reply, Stop> {
        let line = self.line()?;
        let (kind, rest) = line.split_first().unwrap_or((&0, &[]));
        let number = || std::str::from_utf8(rest).ok().and_then(|text| text.parse::<i64>().ok());
        Ok(match (kind, number()) {
            (b'+', _) => Reply::Status(rest.to_vec()),
            (b'-', _) => Reply::Error(rest.to_vec()),
            (b':', Some(number)) => Reply::Number(number),
            (b'$' | b'*', Some(-1)) => Reply::Null,
            (b'$', Some(length)) => {
                let length = u64::try_from(length).map_err(|_| self.foreign())?;
                if length > STRING_BYTES_MAX {
                    return Err(self.too_large());
                }
                Reply::Text(self.string(length as usize)?)
            }
            (b'*', Some(count)) => {
                let count = u64::try_from(count).map_err(|_| self.foreign())?;
                if depth == DEPTH_MAX {
                    return Err(self.foreign());
                }
                let mut list = Vec::new();
                for _ in 0..count {
                    self.spend(ELEMENT_BYTES)?;
                    list.push(self.reply(depth + 1)?);
                }
                Reply::List(list)
            }
            _ => return Err(self.foreign()),
        })
    }

    fn foreign(&self) -> Stop {
        self.stop("it does not speak the protocol of Redis")
    }

    fn too_large(&self) -> Stop {
        self.stop("a reply is too large")
    }

    fn spend(&mut self, bytes: u64) -> Result<(), Stop> {
        self.budget = self.budget.checked_sub(bytes).ok_or_else(|| self.too_large())?;
        Ok(())
    }

    /// A line without its end.
    fn line(&mut self) -> Result<Vec<u8>, Stop> {
        let mut searched = 0;
        loop {
            let unused = &self.input[self.used..];
            if let Some(end) = memchr::memchr(b'\n', &unused[searched..]) {
                let end = searched + end;
                let Some(b'\r') = unused[..end].last() else { return Err(self.foreign()) };
                let line = unused[..end - 1].to_vec();
                self.used += end + 1;
                self.spend(line.len() as u64)?;
                return Ok(line);
            }
            searched = unused.len();
            if searched > LINE_BYTES_MAX {
                return Err(self.foreign());
            }
            self.fill()?;
        }
    }

    /// A string of this length, and the end of its line. Memory grows with the bytes that come.
    fn string(&mut self, length: usize) -> Result<Vec<u8>, Stop> {
        self.spend(length as u64)?;
        let mut text = Vec::with_capacity(length.min(READ_BYTES));
        while text.len() < length {
            if self.used == self.input.len() {
                self.fill()?;
            }
            let unused = &self.input[self.used..];
            let part = &unused[..unused.len().min(length - text.len())];
            text.extend_from_slice(part);
            self.used += part.len();
        }
        while self.input.len() - self.used < 2 {
            self.fill()?;
        }
        if !self.input[self.used..].starts_with(b"\r\n") {
            return Err(self.foreign());
        }
        self.used += 2;
        Ok(text)
    }

    /// Reads some bytes.
    fn fill(&mut self) -> Result<(), Stop> {
        self.input.drain(..self.used);
        self.used = 0;
        let begun_us = self.around.now_us();
        let mut bytes = [0; READ_BYTES];
        loop {
            self.around.look()?;
            let error = match self.connection.read(&mut bytes) {
                Ok(0) => return Err(self.stop("the connection has ended")),
                Ok(count) => {
                    self.input.extend_from_slice(&bytes[..count]);
                    return Ok(());
                }
                Err(error) => error,
            };
            let is_silent = match error.kind() {
                io::ErrorKind::Interrupted => continue,
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                    let timeout_us = self.around.access.timeout.as_micros();
                    (self.around.now_us() - begun_us).max(0) as u128 >= timeout_us
                }
                _ => true,
            };
            if is_silent {
                return Err(self.stop(self.around.access.told(&error)));
            }
        }
    }
}

#[cfg(test)]
mod tests;
