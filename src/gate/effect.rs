//! What must be repeated elsewhere: the stream of changes that the append only file holds and replicas follow.
//!
//! A command that has changed something is repeated as it was sent, unless its handler has said what is to be repeated instead
//! ([`Context::instead`]): what depends on the time, on chance or on who waits is repeated as what came of it. Keys that expired
//! or were evicted are repeated as DEL.
//!
//! ```text
//! unit    = what one request of a client did, or one woken command, or one slice of expiry
//! stream  = ( SELECT db )?  request            of a unit with one request
//!         | MULTI ( ( SELECT db )? request )+ EXEC    of a unit with several
//! ```
//!
//! Requests are in the form of the protocol, arrays of bulk strings. Redis 7.0.15's stream is the model, byte for byte; commands
//! that it does not know are repeated as ones that it knows. While nobody listens nothing is encoded.

use crate::gate::context::Context;
use crate::keyspace::Keyspace;
use crate::keyspace::deletions::Deletion;

/// What is to be repeated of a command that has changed something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effect {
    /// The request as it was sent.
    #[default]
    AsSent,
    /// The request as it was sent, although it may have changed nothing.
    Forced,
    /// What [`Context::instead`] was given.
    Instead,
    /// Nothing: what it ran has been noted by itself, or there is nothing that others need to know.
    Nothing,
}

const MULTI: &[u8] = b"*1\r\n$5\r\nMULTI\r\n";
const EXEC: &[u8] = b"*1\r\n$4\r\nEXEC\r\n";

/// The stream's end: what was not taken yet.
#[derive(Debug, Default)]
pub struct Effects {
    heard: bool,
    /// Requests in the form of the protocol.
    stream: Vec<u8>,
    /// The database the stream's end has selected; None: its reader is to be told.
    selected: Option<usize>,
    /// Where the unit begins that is not over.
    unit_start: usize,
    /// Requests of that unit.
    unit_requests: usize,
}

impl Effects {
    /// Whether somebody listens. If not, nothing need be made ready.
    #[inline]
    pub fn is_heard(&self) -> bool {
        self.heard
    }

    /// Has the stream begin, or end.
    pub fn listen(&mut self, heard: bool) {
        self.heard = heard;
        self.select_anew();
    }

    /// A new reader follows from here on: it is told the database.
    pub fn select_anew(&mut self) {
        self.selected = None;
    }

    /// Adds a request to the unit.
    pub fn push<'a>(&mut self, db: usize, request: impl ExactSizeIterator<Item = &'a [u8]>) {
        if self.unit_requests == 1 {
            let tail = self.stream.split_off(self.unit_start);
            self.stream.extend_from_slice(MULTI);
            self.stream.extend_from_slice(&tail);
        }
        self.unit_requests += 1;
        if self.selected != Some(db) {
            self.selected = Some(db);
            let mut digits = itoa::Buffer::new();
            let db = digits.format(db).as_bytes();
            encode([b"SELECT", db].into_iter(), &mut self.stream);
        }
        encode(request, &mut self.stream);
    }

    fn push_deletion(&mut self, deletion: &Deletion) {
        let Deletion { database, key, fields } = deletion;
        match fields {
            None => self.push(*database, [&b"DEL"[..], key].into_iter()),
            Some(fields) => {
                let mut request: Vec<&[u8]> = vec![b"HDEL", key];
                request.extend(fields.iter().map(Vec::as_slice));
                self.push(*database, request.into_iter());
            }
        }
    }

    /// Ends the unit.
    #[inline]
    pub fn end_unit(&mut self) {
        if self.unit_requests > 1 {
            self.stream.extend_from_slice(EXEC);
        }
        self.unit_requests = 0;
        self.unit_start = self.stream.len();
    }

    /// The units that are over, in order, and forgets them.
    pub fn take(&mut self, read: impl FnOnce(&[u8])) {
        debug_assert_eq!(self.unit_requests, 0, "a unit is not over");
        read(&self.stream);
        self.stream.clear();
        self.unit_start = 0;
    }

    /// Whether there is something to be taken.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.stream.is_empty()
    }

    /// Bytes that wait to be taken.
    pub fn len(&self) -> usize {
        self.stream.len()
    }
}

/// Appends a request in the form of the protocol.
fn encode<'a>(request: impl ExactSizeIterator<Item = &'a [u8]>, stream: &mut Vec<u8>) {
    let mut digits = itoa::Buffer::new();
    let mut header = |marker: u8, len: usize, stream: &mut Vec<u8>| {
        stream.push(marker);
        stream.extend_from_slice(digits.format(len).as_bytes());
        stream.extend_from_slice(b"\r\n");
    };
    header(b'*', request.len(), stream);
    for argument in request {
        header(b'$', argument.len(), stream);
        stream.extend_from_slice(argument);
        stream.extend_from_slice(b"\r\n");
    }
}

impl Context<'_> {
    /// Whether what is to be repeated instead of the request need be made ready at all.
    #[inline]
    pub fn is_heard(&self) -> bool {
        self.server.effects.is_heard()
    }

    /// Has a request be repeated elsewhere in the place of this one; several in the order of the calls.
    pub fn instead(&mut self, request: &[&[u8]]) {
        let db = self.db.selected();
        self.instead_of(db, request.iter().copied());
    }

    /// The same in any database.
    pub fn instead_of<'b>(&mut self, db: usize, request: impl ExactSizeIterator<Item = &'b [u8]>) {
        self.effect = Effect::Instead;
        if self.server.effects.is_heard() {
            note_deletions(self.db, &mut self.server.effects);
            self.server.effects.push(db, request);
        }
    }
}

/// Adds what has expired or was evicted since the last call.
#[inline]
pub fn note_deletions(db: &mut Keyspace, effects: &mut Effects) {
    if !db.deletions.is_empty() {
        note_all_deletions(db, effects);
    }
}

#[cold]
fn note_all_deletions(db: &mut Keyspace, effects: &mut Effects) {
    db.deletions.take().iter().for_each(|deletion| effects.push_deletion(deletion));
}

/// Adds what was deleted outside of commands, each as a unit of its own.
pub fn note_deletions_apart(db: &mut Keyspace, effects: &mut Effects) {
    for deletion in db.deletions.take() {
        effects.push_deletion(&deletion);
        effects.end_unit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(effects: &mut Effects, db: usize, request: &str) {
        let words: Vec<&[u8]> = request.split(' ').map(str::as_bytes).collect();
        effects.push(db, words.into_iter());
    }

    /// The stream's requests, each on a line.
    fn lines(effects: &mut Effects) -> String {
        let mut lines = String::new();
        effects.take(|stream| {
            let text = String::from_utf8_lossy(stream);
            for word in text.split("\r\n").filter(|word| !word.starts_with('$')) {
                lines.push_str(if word.starts_with('*') { "\n" } else { word });
                lines.push(' ');
            }
        });
        lines.replace(" \n ", "\n").trim().to_owned()
    }

    #[test]
    fn a_unit_of_one_request_stands_alone_and_one_of_several_within_multi() {
        let mut effects = Effects::default();
        effects.listen(true);
        push(&mut effects, 0, "SET a 1");
        effects.end_unit();
        push(&mut effects, 0, "DEL b");
        push(&mut effects, 3, "SET a 2");
        effects.end_unit();
        effects.end_unit();
        push(&mut effects, 3, "INCR a");
        effects.end_unit();
        let expected = "SELECT 0\nSET a 1\nMULTI\nDEL b\nSELECT 3\nSET a 2\nEXEC\nINCR a";
        assert_eq!(lines(&mut effects), expected);
        assert!(effects.is_empty());
        effects.select_anew();
        push(&mut effects, 3, "INCR a");
        push(&mut effects, 3, "INCR a");
        effects.end_unit();
        assert_eq!(lines(&mut effects), "MULTI\nSELECT 3\nINCR a\nINCR a\nEXEC");
    }
}
