//! The link to the primary as a state machine without a socket: received bytes go in, bytes to send
//! and events come out. It does the handshake, and finds the end of a snapshot and of each request
//! of the stream; it runs nothing.
//!
//! ```text
//! replica                                     primary
//! PING                                        +PONG  (or -NOAUTH: AUTH follows)
//! AUTH [user] password                        +OK
//! REPLCONF listening-port 6380                +OK   (an error is ignored)
//! REPLCONF ip-address 10.0.0.2                +OK   (the same; sent only if configured)
//! REPLCONF capa eof capa psync2 capa run-id=ID  +OK   (the same; others ignore capabilities that they do not know)
//! REPLCONF version 9.0.0                      +OK   (the same: Redis 7.0 does not know it)
//! REPLCONF set-cluster-node-id ID             +OK   (the same; sent only by a node of a cluster)
//! REPLCONF rdb-only 1                         +OK   (the same; sent only for a snapshot without the stream)
//! PSYNC id offset | PSYNC ? -1                +CONTINUE [id]             and the stream from there
//!                                             +FULLRESYNC id offset      and a snapshot, then the stream
//!                                             -NOMASTERLINK | -LOADING   to be tried later
//!                                             another error: SYNC is sent, a snapshot follows
//!                                             $length CR LF bytes        a snapshot of a known length
//!                                             $EOF:mark CR LF bytes mark one that ends with a mark of 40 bytes
//! ```
//!
//! Empty lines before a reply keep the connection alive. Source: `replication.c` of Redis 7.0.15,
//! whose log lines these are.

use memchr::{memchr, memmem};

use crate::cluster::node::NodeId;
use crate::replication::parse_offset;
use crate::resp::answer::Answer;
use crate::resp::request::{Limits, Parsed, Parser, Range, encode};
use crate::sys::log::Level;

/// The longest reply line of a handshake. Unit: bytes.
const LINE_MAX: usize = 16 * 1024;
/// Length of a replication ID, and of the mark at a snapshot's end.
const ID_BYTES: usize = 40;

/// The announced version: the Valkey version whose snapshots and commands this server understands,
/// with deadlines of hash fields.
const VERSION: &[u8] = b"9.0.0";

/// The announcements and requests of a replica in the handshake.
#[derive(Clone, Debug, Default)]
pub struct HandshakeOptions {
    /// `masterauth`, if it is set, with `masteruser`.
    pub password: Option<Vec<u8>>,
    pub user: Option<Vec<u8>>,
    pub port: u16,
    /// `replica-announce-ip`.
    pub address: Option<Vec<u8>>,
    /// The replication ID of the local data, and the offset of the first missing byte.
    pub continues: Option<(String, u64)>,
    /// The run ID of this process.
    pub run_id: String,
    /// The replica's name in its cluster.
    pub node_id: Option<NodeId>,
    /// PSYNC is sent with FAILOVER: the other side is to become the primary.
    pub is_failover: bool,
    /// Only a snapshot is wanted: the other side keeps no stream for it.
    pub snapshot_only: bool,
}

/// The prefix of the process's ID among the capabilities.
pub const RUN_ID: &[u8] = b"run-id=";

/// Refusals of PSYNC that end by themselves. After the last two, Redis assumes a primary without
/// PSYNC, and loses its place in the history.
const FOR_A_WHILE: [&[u8]; 4] = [b"-NOMASTERLINK", b"-LOADING", b"-MASTERDOWN", b"-BUSY"];

/// The answer expected from the primary next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaits {
    Pong,
    Auth,
    Port,
    Address,
    Capabilities,
    Version,
    NodeId,
    SnapshotOnly,
    Psync,
    /// The line before a snapshot: its length or its mark.
    Preamble,
    /// This many more bytes of a snapshot.
    Bytes(u64),
    /// A snapshot up to this mark.
    Mark([u8; ID_BYTES]),
    Stream,
    /// The link has failed.
    Nothing,
}

/// The stage of the link, for ROLE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Handshake,
    Sync,
    Stream,
}

/// The meaning of the received bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A line for the log.
    Log(Level, String),
    /// The link has failed; the reason was logged. `later`: the primary has refused PSYNC only for
    /// now.
    Failed { later: bool },
    /// The stream continues at the requested offset. `id`: the new replication ID, if sent.
    Continues { id: Option<String> },
    /// A snapshot follows. `history`: its replication ID and offset, if sent.
    FullSync { history: Option<(String, u64)> },
    /// The snapshot's bytes follow. None: their number is unknown.
    Begins { bytes: Option<u64> },
    /// A part of the snapshot.
    Snapshot(Vec<u8>),
    /// The snapshot is complete; the stream follows. `by_mark`: it ended with a mark.
    Ends { by_mark: bool },
    /// A line was received: the primary is alive.
    Alive,
}

/// See the module.
#[derive(Debug)]
pub struct Link {
    options: HandshakeOptions,
    awaits: Awaits,
    /// Received bytes.
    input: Vec<u8>,
    /// The number of used bytes of the input.
    used: usize,
    /// Bytes to send.
    pub output: Vec<u8>,
    /// Events not returned yet.
    events: std::collections::VecDeque<Event>,
    unit: Unit,
}

/// The unit of the stream being read: a request, or all requests from MULTI to EXEC. A primary may
/// send a unit of any size, so only places within a request have 32 bits.
#[derive(Debug, Default)]
struct Unit {
    parser: Parser,
    /// Where the next request begins in the input.
    at: usize,
    /// The arguments of all requests, each relative to its request's first byte.
    ranges: Vec<Range>,
    requests: Vec<Placed>,
    in_transaction: bool,
}

/// A request of a unit.
#[derive(Clone, Copy, Debug)]
struct Placed {
    /// Where it begins in the input.
    at: usize,
    /// Where its arguments end among the unit's.
    ranges_end: usize,
}

/// Why the stream is broken: a text for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken(pub String);

impl Link {
    /// The link of a new connection.
    pub fn new(options: HandshakeOptions) -> Self {
        let mut link = Link {
            options,
            awaits: Awaits::Pong,
            input: Vec::new(),
            used: 0,
            output: Vec::new(),
            events: Default::default(),
            unit: Unit::default(),
        };
        link.send(&[b"PING"]);
        link
    }

    pub fn stage(&self) -> Stage {
        match self.awaits {
            Awaits::Preamble | Awaits::Bytes(_) | Awaits::Mark(_) => Stage::Sync,
            Awaits::Stream => Stage::Stream,
            _ => Stage::Handshake,
        }
    }

    /// Whether PSYNC is sent with FAILOVER.
    pub fn is_failover(&self) -> bool {
        self.options.is_failover
    }

    /// Adds a request to the output.
    fn send(&mut self, request: &[&[u8]]) {
        encode(request.iter().copied(), &mut self.output);
    }

    /// Acknowledges the applied offset, and the offset on the local disk if known.
    pub fn acknowledge(&mut self, offset: u64, on_disk: Option<u64>) {
        acknowledge(offset, on_disk, &mut self.output);
    }

    /// Adds received bytes. Call [`Self::next_event`] and [`Self::next_unit`] then until there are
    /// no more.
    pub fn receive(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
    }

    /// Bytes received and not used.
    pub fn waiting(&self) -> usize {
        self.input.len() - self.used
    }

    /// The next event. None: more bytes are needed, or the stream has begun.
    pub fn next_event(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            match self.awaits {
                Awaits::Stream | Awaits::Nothing => return None,
                Awaits::Bytes(left) => return self.take_bytes(left),
                Awaits::Mark(mark) => return self.take_until_mark(&mark),
                _ => {
                    let Some(line) = self.take_line() else { return self.events.pop_front() };
                    self.read_line(&line);
                }
            }
        }
    }

    // ---- handshake ------------------------------------------------------------------------------

    /// The next line, without its end.
    fn take_line(&mut self) -> Option<Vec<u8>> {
        let rest = &self.input[self.used..];
        let Some(end) = memchr(b'\n', rest) else {
            if rest.len() > LINE_MAX {
                let text = "Failed to read response from the server: the line is too long";
                self.fail(Level::Warning, text.into());
            }
            return None;
        };
        let mut line = rest[..end].to_vec();
        line.pop_if(|byte| *byte == b'\r');
        self.used += end + 1;
        self.drop_used();
        Some(line)
    }

    fn drop_used(&mut self) {
        if self.used == self.input.len() {
            self.input.clear();
            self.used = 0;
        } else if self.used > self.input.len() / 2 {
            self.input.drain(..self.used);
            self.used = 0;
        }
    }

    fn log(&mut self, level: Level, text: String) {
        self.events.push_back(Event::Log(level, text));
    }

    fn fail(&mut self, level: Level, text: String) {
        self.log(level, text);
        self.awaits = Awaits::Nothing;
        self.events.push_back(Event::Failed { later: false });
    }

    /// Handles a line from the primary.
    fn read_line(&mut self, line: &[u8]) {
        self.events.push_back(Event::Alive);
        let text = String::from_utf8_lossy(line).into_owned();
        let answer = Answer::of(line);
        let is_error = matches!(answer, Answer::Refused(_));
        let ignored_error = |what: &str| {
            format!("(Non critical) Master does not understand REPLCONF {what}: {text}")
        };
        let is_of_ok = !matches!(
            self.awaits,
            Awaits::Pong | Awaits::Psync | Awaits::Preamble | Awaits::Nothing
        );
        if is_of_ok && answer == Answer::Foreign {
            let text = format!(
                "Bad protocol from MASTER, an unexpected reply in the handshake (we received '{text}'), are you sure the \
                 host and port are right?"
            );
            return self.fail(Level::Warning, text);
        }
        match self.awaits {
            Awaits::Pong => self.read_pong(line, &text),
            Awaits::Auth if is_error => {
                self.fail(Level::Warning, format!("Unable to AUTH to MASTER: {text}"));
            }
            Awaits::Auth => self.awaits = Awaits::Port,
            Awaits::Port => {
                if is_error {
                    self.log(Level::Notice, ignored_error("listening-port"));
                }
                self.awaits = match self.options.address {
                    Some(_) => Awaits::Address,
                    None => Awaits::Capabilities,
                };
            }
            Awaits::Address => {
                if is_error {
                    self.log(Level::Notice, ignored_error("ip-address"));
                }
                self.awaits = Awaits::Capabilities;
            }
            Awaits::Capabilities => {
                if is_error {
                    self.log(Level::Notice, ignored_error("capa"));
                }
                self.awaits = Awaits::Version;
            }
            Awaits::Version if self.options.node_id.is_some() => self.awaits = Awaits::NodeId,
            Awaits::Version | Awaits::NodeId if self.options.snapshot_only => {
                self.awaits = Awaits::SnapshotOnly;
            }
            Awaits::Version | Awaits::NodeId | Awaits::SnapshotOnly => self.send_psync(),
            // Empty lines keep the connection alive while the primary prepares.
            Awaits::Psync | Awaits::Preamble if line.is_empty() => {}
            Awaits::Psync => self.read_psync_reply(line, text),
            Awaits::Preamble => self.read_preamble(line, &text),
            Awaits::Bytes(_) | Awaits::Mark(_) | Awaits::Stream | Awaits::Nothing => {}
        }
    }

    fn read_pong(&mut self, line: &[u8], text: &str) {
        const ALLOWED: [&[u8]; 4] = [b"+", b"-NOAUTH", b"-NOPERM", b"-ERR operation not permitted"];
        if !ALLOWED.iter().any(|allowed| line.starts_with(allowed)) {
            let text = format!("Error reply to PING from master: '{text}'");
            return self.fail(Level::Warning, text);
        }
        let text = "Master replied to PING, replication can continue...";
        self.log(Level::Notice, text.into());
        let HandshakeOptions { password, user, port, address, run_id, node_id, .. } =
            self.options.clone();
        self.awaits = if password.is_some() { Awaits::Auth } else { Awaits::Port };
        match (&user, &password) {
            (Some(user), Some(password)) => self.send(&[b"AUTH", user, password]),
            (None, Some(password)) => self.send(&[b"AUTH", password]),
            (_, None) => {}
        }
        self.send(&[b"REPLCONF", b"listening-port", port.to_string().as_bytes()]);
        if let Some(address) = &address {
            self.send(&[b"REPLCONF", b"ip-address", address]);
        }
        let run_id = [RUN_ID, run_id.as_bytes()].concat();
        self.send(&[b"REPLCONF", b"capa", b"eof", b"capa", b"psync2", b"capa", &run_id]);
        self.send(&[b"REPLCONF", b"version", VERSION]);
        if let Some(id) = node_id {
            self.send(&[b"REPLCONF", b"set-cluster-node-id", id.as_bytes()]);
        }
        if self.options.snapshot_only {
            self.send(&[b"REPLCONF", b"rdb-only", b"1"]);
        }
    }

    fn send_psync(&mut self) {
        self.awaits = Awaits::Psync;
        let (id, offset) = match self.options.continues.clone() {
            Some((id, offset)) => {
                let text = format!("Trying a partial resynchronization (request {id}:{offset}).");
                self.log(Level::Notice, text);
                (id, offset.to_string())
            }
            None => {
                let text = "Partial resynchronization not possible (no cached master)";
                self.log(Level::Notice, text.into());
                ("?".into(), "-1".into())
            }
        };
        let mut request: Vec<&[u8]> = vec![b"PSYNC", id.as_bytes(), offset.as_bytes()];
        if self.options.is_failover {
            request.push(b"FAILOVER");
        }
        self.send(&request);
    }

    fn read_psync_reply(&mut self, line: &[u8], text: String) {
        if line.starts_with(b"+FULLRESYNC") {
            let mut words = text.split(' ').skip(1);
            let id = words.next().filter(|id| is_id(id));
            let offset = words.next().and_then(parse_offset);
            let history = id.map(str::to_owned).zip(offset);
            match &history {
                Some((id, offset)) => {
                    self.log(Level::Notice, format!("Full resync from master: {id}:{offset}"));
                }
                None => {
                    let text = "Master replied with wrong +FULLRESYNC syntax.";
                    self.log(Level::Warning, text.into());
                }
            }
            self.awaits = Awaits::Preamble;
            self.events.push_back(Event::FullSync { history });
        } else if line.starts_with(b"+CONTINUE") && self.options.continues.is_some() {
            let text_of_success = "Successful partial resynchronization with master.";
            self.log(Level::Notice, text_of_success.into());
            let id = text.split(' ').nth(1).filter(|id| is_id(id)).map(str::to_owned);
            self.awaits = Awaits::Stream;
            self.events.push_back(Event::Continues { id });
        } else if FOR_A_WHILE.iter().any(|error| line.starts_with(error)) {
            let what = "Master is currently unable to PSYNC but should be in the future";
            self.log(Level::Notice, format!("{what}: {text}"));
            self.awaits = Awaits::Nothing;
            self.events.push_back(Event::Failed { later: true });
        } else {
            let (level, text) = match line.starts_with(b"-ERR") {
                true => {
                    let what = "Master does not support PSYNC or is in error state";
                    (Level::Notice, format!("{what} (reply: {text})"))
                }
                false => (Level::Warning, format!("Unexpected reply to PSYNC from master: {text}")),
            };
            self.log(level, text);
            if self.options.is_failover {
                self.awaits = Awaits::Nothing;
                return self.events.push_back(Event::Failed { later: false });
            }
            self.log(Level::Notice, "Retrying with SYNC...".into());
            self.output.extend_from_slice(b"SYNC\r\n");
            self.awaits = Awaits::Preamble;
            self.events.push_back(Event::FullSync { history: None });
        }
    }

    // ---- snapshot -------------------------------------------------------------------------------

    fn read_preamble(&mut self, line: &[u8], text: &str) {
        let Some(length) = line.strip_prefix(b"$") else {
            let text = match line.strip_prefix(b"-") {
                Some(_) => format!("MASTER aborted replication with an error: {}", &text[1..]),
                None => format!(
                    "Bad protocol from MASTER, the first byte is not '$' (we received '{text}'), are you sure the host and \
                     port are right?"
                ),
            };
            return self.fail(Level::Warning, text);
        };
        let mark = length.strip_prefix(b"EOF:").and_then(|mark| mark.first_chunk::<ID_BYTES>());
        if let Some(mark) = mark {
            self.awaits = Awaits::Mark(*mark);
            self.events.push_back(Event::Begins { bytes: None });
            return;
        }
        match text[1..].trim().parse::<u64>() {
            Ok(bytes) => {
                self.awaits = Awaits::Bytes(bytes);
                self.events.push_back(Event::Begins { bytes: Some(bytes) });
            }
            Err(_) => {
                let text = format!("Bad protocol from MASTER, '{text}' is no length of a snapshot");
                self.fail(Level::Warning, text);
            }
        }
    }

    fn take_bytes(&mut self, left: u64) -> Option<Event> {
        if left == 0 {
            self.awaits = Awaits::Stream;
            return Some(Event::Ends { by_mark: false });
        }
        let here = self.waiting().min(usize::try_from(left).unwrap_or(usize::MAX));
        self.awaits = Awaits::Bytes(left - here as u64);
        self.take_snapshot(here)
    }

    fn take_until_mark(&mut self, mark: &[u8; ID_BYTES]) -> Option<Event> {
        let rest = &self.input[self.used..];
        match memmem::find(rest, mark) {
            Some(0) => {
                self.used += ID_BYTES;
                self.drop_used();
                self.awaits = Awaits::Stream;
                Some(Event::Ends { by_mark: true })
            }
            Some(end) => self.take_snapshot(end),
            // The last bytes may be the beginning of the mark.
            None => self.take_snapshot((rest.len() + 1).saturating_sub(ID_BYTES)),
        }
    }

    fn take_snapshot(&mut self, len: usize) -> Option<Event> {
        if len == 0 {
            return None;
        }
        let bytes = self.input[self.used..self.used + len].to_vec();
        self.used += len;
        self.drop_used();
        Some(Event::Snapshot(bytes))
    }

    // ---- stream ---------------------------------------------------------------------------------

    /// The next unit: a request, or all requests between MULTI and EXEC, without these. None: more
    /// bytes are needed. Call [`Self::applied`] before asking for the next unit.
    pub fn next_unit(&mut self) -> Result<Option<Requests<'_>>, Broken> {
        if self.awaits != Awaits::Stream {
            return Ok(None);
        }
        let limits = Limits::TRUSTED;
        if self.unit.at < self.used {
            self.unit.at = self.used;
        }
        loop {
            // Empty lines keep the connection alive, and do not count in the stream.
            let start = self.unit.at;
            let empty = empty_lines(&self.input[start..]);
            self.input.drain(start..start + empty);
            let Unit { parser, at, ranges, requests, in_transaction } = &mut self.unit;
            match self.input.get(*at) {
                None => return Ok(None),
                Some(b'*') => {}
                Some(b'\r') if self.input.len() == *at + 1 => return Ok(None),
                Some(_) => {
                    return Err(Broken(
                        "Receiving inline protocol from master, master stream corruption? Closing the master connection and \
                         discarding the cached master."
                            .into(),
                    ));
                }
            }
            let first = ranges.len();
            let request_at = *at;
            let request = request_bytes(&mut self.input, request_at);
            let mut len = 0;
            let parsed = parser.next(request, &mut len, ranges, &limits);
            *at += len;
            match parsed {
                Ok(Parsed::Incomplete) => return Ok(None),
                Ok(Parsed::Empty) if *in_transaction => continue,
                Ok(Parsed::Empty) => break,
                Ok(Parsed::Request) => {}
                Err(error) => {
                    let text = error.text();
                    let text = String::from_utf8_lossy(&text);
                    return Err(Broken(format!("Protocol error from master: {text}")));
                }
            }
            let name = ranges[first].of(&self.input[request_at..]);
            if name.eq_ignore_ascii_case(b"MULTI") && !*in_transaction {
                *in_transaction = true;
                ranges.truncate(first);
            } else if name.eq_ignore_ascii_case(b"EXEC") && *in_transaction {
                *in_transaction = false;
                ranges.truncate(first);
                break;
            } else if name.eq_ignore_ascii_case(b"DISCARD") && *in_transaction {
                // Primaries do not send it. If one does, the unit is empty, but its bytes count in
                // the stream.
                *in_transaction = false;
                ranges.clear();
                requests.clear();
                break;
            } else {
                requests.push(Placed { at: request_at, ranges_end: ranges.len() });
                if !*in_transaction {
                    break;
                }
            }
        }
        let Unit { at, ranges, requests, .. } = &self.unit;
        let raw = self.used..*at;
        Ok(Some(Requests { input: &self.input, raw, ranges, requests, next: 0 }))
    }

    /// Shows at most `most` complete requests after the last unit, with MULTI and EXEC, up to the
    /// first other item. They stay in place until [`Self::shrink`].
    pub fn look_ahead(&mut self, most: usize, mut show: impl FnMut(&Request<'_>)) {
        let is_stream = self.awaits == Awaits::Stream;
        // A long request that arrives in many pieces is not parsed again with each.
        if !is_stream || self.unit.parser.is_within_request() {
            return;
        }
        let (mut parser, mut ranges) = (Parser::default(), Vec::new());
        let mut at = self.unit.at.max(self.used);
        for _ in 0..most {
            ranges.clear();
            // An inline request would be changed by parsing it.
            if self.input.get(at) != Some(&b'*') {
                return;
            }
            let (bytes, mut len) = (request_bytes(&mut self.input, at), 0);
            match parser.next(bytes, &mut len, &mut ranges, &Limits::TRUSTED) {
                Ok(Parsed::Request) => show(&Request { at, buffer: bytes, ranges: &ranges }),
                _ => return,
            }
            at += len;
        }
    }

    /// Drops the last unit.
    pub fn applied(&mut self) {
        self.used = self.unit.at;
        self.unit.ranges.clear();
        self.unit.requests.clear();
        if self.used == self.input.len() {
            self.input.clear();
            self.used = 0;
            self.unit.at = 0;
        }
    }

    /// Frees the memory of used bytes. Call this now and then, as it moves the rest.
    pub fn shrink(&mut self) {
        // Not while a transaction is incomplete: its requests' places count from the buffer's
        // start.
        if self.used > 0 && self.unit.requests.is_empty() {
            self.input.drain(..self.used);
            self.unit.at -= self.used.min(self.unit.at);
            self.used = 0;
        }
        if self.input.capacity() > 4 * self.input.len().max(64 * 1024) {
            self.input.shrink_to(2 * self.input.len());
        }
    }
}

/// Writes the acknowledgement of an applied offset, and of the offset on the local disk if known.
pub fn acknowledge(offset: u64, on_disk: Option<u64>, output: &mut Vec<u8>) {
    let offset = offset.to_string();
    match on_disk.map(|on_disk| on_disk.to_string()) {
        Some(on_disk) => {
            let words = [&b"REPLCONF"[..], b"ACK", offset.as_bytes(), b"FACK", on_disk.as_bytes()];
            encode(words, output);
        }
        None => encode([&b"REPLCONF"[..], b"ACK", offset.as_bytes()], output),
    }
}

/// The bytes in which a request that begins at `at` is parsed: at most as many as 32-bit places
/// within it can count.
fn request_bytes(input: &mut [u8], at: usize) -> &mut [u8] {
    let end = input.len().min(at.saturating_add(u32::MAX as usize));
    &mut input[at..end]
}

/// Bytes of the empty lines at the start.
fn empty_lines(bytes: &[u8]) -> usize {
    let mut len = 0;
    loop {
        match bytes[len..] {
            [b'\n', ..] => len += 1,
            [b'\r', b'\n', ..] => len += 2,
            _ => return len,
        }
    }
}

/// A request of the stream.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Where it lies among the received bytes, until [`Link::shrink`].
    pub at: usize,
    /// Its bytes, perhaps followed by other bytes.
    pub buffer: &'a [u8],
    /// Its arguments in the buffer.
    pub ranges: &'a [Range],
}

/// The requests of a unit, in their order.
pub struct Requests<'a> {
    input: &'a [u8],
    raw: std::ops::Range<usize>,
    ranges: &'a [Range],
    requests: &'a [Placed],
    next: usize,
}

impl<'a> Requests<'a> {
    /// The unit's bytes, as received.
    pub fn raw(&self) -> &'a [u8] {
        &self.input[self.raw.clone()]
    }

    pub fn len(&self) -> usize {
        self.requests.len()
    }

    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }
}

impl<'a> Iterator for Requests<'a> {
    type Item = Request<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        let Placed { at, ranges_end } = *self.requests.get(self.next)?;
        let start = self.next.checked_sub(1).map_or(0, |before| self.requests[before].ranges_end);
        self.next += 1;
        Some(Request { at, buffer: &self.input[at..], ranges: &self.ranges[start..ranges_end] })
    }
}

fn is_id(text: &str) -> bool {
    text.len() == ID_BYTES
}

#[cfg(test)]
mod tests;
