//! One connection: a head is read, answered, and the next one follows.
//!
//! ```text
//!   handshake (TLS) -> head: 5 s, 8 KB -> answer -> response -> idle: 30 s -> head ...
//!                                                     -> the rest is read and dropped: 2 s -> end
//! ```
//!
//! A request that comes before the last one is answered waits in the buffer, which is never read
//! beyond its size.

use std::io::{self, IoSlice};
use std::net::Shutdown;

use mio::event::Event;
use socket2::SockRef;

use super::head::{self, HEAD_BYTES_MAX, Request};
use super::response::Response;
use crate::net::ready::{ReadResult, ReadyStream};
use crate::net::stream::{Address, Stream};
use crate::net::tls::stream::Handshake;

/// Time limits. Unit: microseconds. For a head, from its first byte on, or from the connection.
const HEAD_US: i64 = 5_000_000;
/// Between requests, and for a response that is not taken.
const IDLE_US: i64 = 30_000_000;
/// For draining a refused client's remaining bytes: closing with unread bytes could destroy the
/// response on its way.
const DRAIN_US: i64 = 2_000_000;
/// A connection that has waited for less is as important as one that is served.
const YOUNG_US: i64 = 100_000;
/// The most bytes drained in one turn.
const DRAIN_BYTES: usize = 64 * 1024;

/// A connection. `J`: an answer that takes more than one turn.
pub struct Connection<J> {
    stream: ReadyStream,
    pub peer: Address,
    /// Its listener accepts local connections only.
    pub is_inside: bool,
    input: Vec<u8>,
    output: Vec<u8>,
    sent: usize,
    phase: Phase,
    /// An answer under way.
    pub job: Option<Box<J>>,
    keeps_alive: bool,
    head_only: bool,
    /// Boot-time clock, microseconds.
    deadline_us: i64,
    connected_us: i64,
    /// The time since which it waits for a request, or for its response to be taken.
    waits_since_us: i64,
}

enum Phase {
    Handshake,
    /// No byte of the next request has come.
    Idle,
    Head,
    /// A request waits for its answer; None: it is being made.
    Asked(Option<Request>),
    Responds,
    Drains,
}

/// The next state of a connection.
pub enum Progress {
    /// A request waits for its answer.
    Asked,
    /// The system announces when there is more to do.
    Waits,
    /// There is more to do, in the next turn.
    GoesOn,
    Ends,
}

impl<J> Connection<J> {
    pub fn new(stream: Stream, peer: Address, is_inside: bool, now_us: i64) -> Self {
        let stream = ReadyStream::accepted(stream);
        let phase = if stream.is_open() { Phase::Head } else { Phase::Handshake };
        Connection {
            stream,
            peer,
            is_inside,
            input: Vec::new(),
            output: Vec::new(),
            sent: 0,
            phase,
            job: None,
            keeps_alive: false,
            head_only: false,
            deadline_us: now_us + HEAD_US,
            connected_us: now_us,
            waits_since_us: now_us,
        }
    }

    /// When it is closed if nothing happens: boot-time clock, microseconds.
    pub fn deadline_us(&self) -> i64 {
        self.deadline_us
    }

    /// The order in which connections give up their places: first those that have waited for a
    /// request for some time, then those whose response is not taken, then the others; the first
    /// two groups by their wait, the last by the time since they connected, the longest first. So a
    /// client that asks for much, takes nothing or reconnects again and again keeps no others out.
    pub fn importance(&self, now_us: i64) -> (u8, i64) {
        let has_waited = now_us - self.waits_since_us >= YOUNG_US;
        match self.phase {
            Phase::Responds if !self.stream.may_write() && has_waited => (1, self.waits_since_us),
            Phase::Asked(_) | Phase::Responds => (2, self.connected_us),
            _ if has_waited => (0, self.waits_since_us),
            _ => (2, self.connected_us),
        }
    }

    /// Notes an event's announcement.
    pub fn note_readiness(&mut self, event: &Event) {
        self.stream.note(event);
    }

    /// The request to be answered now, once.
    pub fn take_request(&mut self) -> Option<Request> {
        match &mut self.phase {
            Phase::Asked(request) => request.take(),
            _ => None,
        }
    }

    /// Gives the answer to the last request.
    pub fn respond(&mut self, response: &Response, now_us: i64) {
        self.output = response.encode(self.head_only, self.keeps_alive);
        (self.sent, self.job) = (0, None);
        self.phase = Phase::Responds;
        (self.deadline_us, self.waits_since_us) = (now_us + IDLE_US, now_us);
    }

    /// Does all work that is possible now.
    pub fn serve(&mut self, now_us: i64) -> Progress {
        loop {
            let done = match self.phase {
                Phase::Handshake => self.shake_hands(),
                Phase::Idle | Phase::Head => self.read_head(now_us),
                Phase::Asked(_) => return Progress::Asked,
                Phase::Responds => self.send(now_us),
                Phase::Drains => self.drain(),
            };
            match done {
                Ok(Step::Next) => {}
                Ok(Step::Waits) => return Progress::Waits,
                Ok(Step::Later) => return Progress::GoesOn,
                Ok(Step::Ends) | Err(_) => return Progress::Ends,
            }
        }
    }

    fn shake_hands(&mut self) -> io::Result<Step> {
        match self.stream.open()? {
            Handshake::Waits => Ok(Step::Waits),
            Handshake::Unfinished => Ok(Step::Later),
            Handshake::Done => {
                self.phase = Phase::Head;
                Ok(Step::Next)
            }
        }
    }

    fn read_head(&mut self, now_us: i64) -> io::Result<Step> {
        match head::parse(&self.input) {
            Ok(Some((request, length))) => {
                self.input.drain(..length);
                self.keeps_alive = request.keeps_alive;
                self.head_only = request.head_only;
                self.phase = Phase::Asked(Some(request));
                self.deadline_us = now_us + IDLE_US;
                return Ok(Step::Next);
            }
            Ok(None) => {}
            Err(refusal) => {
                (self.keeps_alive, self.head_only) = (false, false);
                self.respond(&Response::of_status(refusal.status()), now_us);
                return Ok(Step::Next);
            }
        }
        if matches!(self.phase, Phase::Idle) && !self.input.is_empty() {
            self.phase = Phase::Head;
            self.deadline_us = now_us + HEAD_US;
        }
        let before = self.input.len();
        self.input.resize(HEAD_BYTES_MAX, 0);
        let read = self.stream.read(&mut self.input[before..]);
        let count = if let ReadResult::Bytes(count) = read { count } else { 0 };
        self.input.truncate(before + count);
        if self.input.is_empty() {
            self.input = Vec::new();
        }
        match read {
            ReadResult::Bytes(_) => Ok(Step::Next),
            ReadResult::Nothing => Ok(self.pause()),
            ReadResult::Ended(_) => Ok(Step::Ends),
        }
    }

    /// The step after a read that has found nothing.
    fn pause(&self) -> Step {
        // After a signal there may be bytes all the same.
        if self.stream.may_read() { Step::Later } else { Step::Waits }
    }

    fn send(&mut self, now_us: i64) -> io::Result<Step> {
        while self.sent < self.output.len() {
            match self.stream.write(&[IoSlice::new(&self.output[self.sent..])])? {
                0 => return Ok(Step::Waits),
                count => {
                    self.sent += count;
                    (self.deadline_us, self.waits_since_us) = (now_us + IDLE_US, now_us);
                }
            }
        }
        self.stream.flush()?;
        if self.stream.stream().has_unsent() {
            return Ok(Step::Waits);
        }
        (self.output, self.sent) = (Vec::new(), 0);
        self.waits_since_us = now_us;
        if self.keeps_alive {
            self.phase = Phase::Idle;
            return Ok(Step::Next);
        }
        self.input = Vec::new();
        // The end of TLS's stream is a message of its own, sent when this is dropped.
        if self.stream.stream().is_tls() {
            return Ok(Step::Ends);
        }
        self.phase = Phase::Drains;
        self.deadline_us = now_us + DRAIN_US;
        SockRef::from(self.stream.stream()).shutdown(Shutdown::Write)?;
        Ok(Step::Next)
    }

    fn drain(&mut self) -> io::Result<Step> {
        let mut bytes = vec![0; DRAIN_BYTES];
        Ok(match self.stream.read(&mut bytes) {
            ReadResult::Bytes(_) => Step::Later,
            ReadResult::Nothing => self.pause(),
            ReadResult::Ended(_) => Step::Ends,
        })
    }
}

/// The result of a step.
enum Step {
    Next,
    Waits,
    Later,
    Ends,
}
