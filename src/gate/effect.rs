//! Effects: the stream of changes that the append-only file stores and replicas follow.
//!
//! A command that has changed something is repeated as it was sent, unless its handler gives other requests instead
//! ([`Context::instead`]): what depends on time, chance or waiting clients is repeated as its result. Expired and
//! evicted keys are repeated as DEL.
//!
//! ```text
//! unit    = what one request of a client did, or one woken command, or one slice of expiry
//! stream  = ( SELECT db )? request                                              of a unit with one request
//!         | ( SELECT db )? MULTI request ( ( SELECT db )? request )+ EXEC       of a unit with several
//! ```
//!
//! Requests are encoded as arrays of bulk strings. Redis 7.0.15's stream is the model, byte for byte; commands it
//! does not know are repeated as ones it knows. Nothing is encoded while neither log nor replicas need it.

use std::ops::Range;

use crate::gate::context::Context;
use crate::gate::state::State;
use crate::keyspace::deletions::{Deleted, Deletion};
use crate::keyspace::{Expiry, Keyspace};
use crate::resp::args::Args;

/// What is repeated of a command that has changed something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effect {
    /// The request as it was sent.
    #[default]
    AsSent,
    /// The request as it was sent, even if it changed nothing.
    Forced,
    /// The requests given to [`Context::instead`].
    Instead,
    /// The requests given to [`Context::instead_of`], although the count of changes is the same.
    Hint,
    /// Nothing: the commands it ran were repeated themselves, or others need not know.
    Nothing,
}

const MULTI: &[u8] = b"*1\r\n$5\r\nMULTI\r\n";
const EXEC: &[u8] = b"*1\r\n$4\r\nEXEC\r\n";

/// Where a request is repeated: `redis.set_repl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepeatedAt {
    pub log: bool,
    pub replicas: bool,
}

impl RepeatedAt {
    pub const ALL: Self = RepeatedAt { log: true, replicas: true };
    const NOWHERE: Self = RepeatedAt { log: false, replicas: false };
}

impl Default for RepeatedAt {
    fn default() -> Self {
        RepeatedAt::ALL
    }
}

/// The part of the stream that was not taken yet.
#[derive(Debug, Default)]
pub struct Effects {
    heard: bool,
    /// Encoded requests.
    stream: Vec<u8>,
    /// The database selected at the stream's end; None: a SELECT must come next.
    selected: Option<usize>,
    unit: Unit,
    /// Units that ended and were not taken.
    ended: u64,
    /// Where the next requests are repeated.
    at: RepeatedAt,
    /// Ranges of the stream that are not repeated everywhere, in order.
    withheld: Vec<(Range<usize>, RepeatedAt)>,
}

/// The unit that has not ended.
#[derive(Debug, Default)]
struct Unit {
    requests: usize,
    /// Where its first request begins, after the SELECT.
    first_at: usize,
    /// What a rollback keeps: keys that expired or were evicted meanwhile, and messages.
    kept: Vec<Kept>,
}

/// A request that a rollback keeps.
#[derive(Debug)]
struct Kept {
    db: usize,
    range: Range<usize>,
    at: RepeatedAt,
}

/// A position within a unit, for [`Effects::roll_back`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    len: usize,
    requests: usize,
    selected: Option<usize>,
}

impl Effects {
    /// Whether a log, backlog or DEBUG EFFECTS takes the stream. If not, nothing need be prepared.
    #[inline]
    pub fn is_heard(&self) -> bool {
        self.heard
    }

    /// Starts or stops the stream. Stopping drops what was not taken.
    /// [`crate::keyspace::deletions::Deletions::listen`] must be told the same.
    pub fn listen(&mut self, heard: bool) {
        self.heard = heard;
        self.select_anew();
        if !heard {
            self.stream.clear();
            self.withheld.clear();
            self.unit = Unit::default();
        }
    }

    /// A new reader follows from here: the next request is preceded by SELECT.
    pub fn select_anew(&mut self) {
        self.selected = None;
    }

    /// The database selected at the stream's end, if a SELECT was written.
    pub fn selected(&self) -> Option<usize> {
        self.selected
    }

    /// Adds a request to the unit.
    pub fn push<'a>(&mut self, db: usize, request: impl ExactSizeIterator<Item = &'a [u8]>) {
        self.add(db, |stream| encode(request, stream));
    }

    /// Adds a request as a client has sent it.
    pub fn push_as_sent(&mut self, db: usize, request: &Args<'_>) {
        self.add(db, |stream| match request.sent_as_bulks() {
            Some(sent) => {
                write_header(b'*', request.len(), stream);
                write_header(b'$', request.get(0).len(), stream);
                stream.extend_from_slice(sent);
                stream.extend_from_slice(b"\r\n");
            }
            None => encode(request.iter_from(0), stream),
        });
    }

    fn add(&mut self, db: usize, encode: impl FnOnce(&mut Vec<u8>)) {
        if self.at == RepeatedAt::NOWHERE {
            return;
        }
        self.select(db);
        let start = self.stream.len();
        encode(&mut self.stream);
        if self.at != RepeatedAt::ALL {
            self.withheld.push((start..self.stream.len(), self.at));
        }
    }

    /// Sets where the next requests are repeated. Expiry and eviction are always repeated everywhere.
    pub fn repeat_at(&mut self, at: RepeatedAt) {
        self.at = at;
    }

    /// Writes a SELECT if the database differs from the selected one.
    fn select(&mut self, db: usize) {
        if self.selected != Some(db) {
            self.selected = Some(db);
            let mut digits = itoa::Buffer::new();
            let db = digits.format(db).as_bytes();
            encode([b"SELECT", db].into_iter(), &mut self.stream);
        }
        if self.unit.requests == 0 {
            self.unit.first_at = self.stream.len();
        }
        self.unit.requests += 1;
    }

    fn push_deletion(&mut self, deletion: &Deletion, unlinks: Unlinks) {
        let Deletion { database, key, what } = deletion;
        self.select(*database);
        let start = self.stream.len();
        let verb = |unlinks| if unlinks { &b"UNLINK"[..] } else { b"DEL" };
        match what {
            Deleted::Expired => {
                encode([verb(unlinks.expired), key].into_iter(), &mut self.stream);
            }
            Deleted::Evicted => {
                encode([verb(unlinks.evicted), key].into_iter(), &mut self.stream);
            }
            Deleted::Fields(fields) => {
                let mut request: Vec<&[u8]> = vec![b"HDEL", key];
                request.extend(fields.iter().map(Vec::as_slice));
                encode(request.into_iter(), &mut self.stream);
            }
        }
        let range = start..self.stream.len();
        self.unit.kept.push(Kept { db: *database, range, at: RepeatedAt::ALL });
    }

    /// Adds a message, which replicas repeat but the log does not. A rollback keeps it: it was delivered.
    pub fn push_message<'a>(
        &mut self,
        db: usize,
        request: impl ExactSizeIterator<Item = &'a [u8]>,
    ) {
        if !self.at.replicas {
            return;
        }
        self.select(db);
        let start = self.stream.len();
        encode(request, &mut self.stream);
        let (range, at) = (start..self.stream.len(), RepeatedAt { log: false, replicas: true });
        self.withheld.push((range.clone(), at));
        self.unit.kept.push(Kept { db, range, at });
    }

    /// The unit's current end.
    pub fn mark(&self) -> Mark {
        Mark { len: self.stream.len(), requests: self.unit.requests, selected: self.selected }
    }

    /// Drops the unit's requests since a mark, except messages and deletions by expiry and eviction, which are not undone either.
    pub fn roll_back(&mut self, mark: Mark) {
        let tail = self.stream.split_off(mark.len);
        self.withheld.retain(|(range, _)| range.end <= mark.len);
        self.selected = mark.selected;
        self.unit.requests = mark.requests;
        for Kept { db, range, at } in std::mem::take(&mut self.unit.kept) {
            if let Some(tail_start) = range.start.checked_sub(mark.len) {
                self.select(db);
                let start = self.stream.len();
                self.stream.extend_from_slice(&tail[tail_start..range.end - mark.len]);
                if at != RepeatedAt::ALL {
                    self.withheld.push((start..self.stream.len(), at));
                }
            }
        }
    }

    /// Ends the unit.
    #[inline]
    pub fn end_unit(&mut self) {
        if self.unit.requests > 0 {
            self.end_unit_with_requests();
        }
    }

    #[cold]
    fn end_unit_with_requests(&mut self) {
        if self.unit.requests > 1 {
            let at = self.unit.first_at;
            self.stream.splice(at..at, MULTI.iter().copied());
            for (range, _) in self.withheld.iter_mut().filter(|(range, _)| range.start >= at) {
                *range = range.start + MULTI.len()..range.end + MULTI.len();
            }
            self.stream.extend_from_slice(EXEC);
        }
        self.ended += 1;
        self.unit.requests = 0;
        self.unit.kept.clear();
    }

    /// Whether no request was added since the last unit ended.
    #[inline]
    pub fn is_between_units(&self) -> bool {
        self.unit.requests == 0
    }

    /// Passes the ended units to `read`, in order, and drops them.
    pub fn take(&mut self, read: impl FnOnce(&[u8])) {
        debug_assert!(self.is_between_units(), "a unit is not over");
        read(&self.stream);
        self.stream.clear();
        self.withheld.clear();
    }

    /// As [`Self::take`], with the streams for the log and for replicas apart.
    pub fn take_apart(&mut self, read: impl FnOnce(&[u8], &[u8])) {
        if self.withheld.is_empty() {
            return self.take(|stream| read(stream, stream));
        }
        let log = self.repeated(|at| at.log);
        let replicas = self.repeated(|at| at.replicas);
        self.take(|_| read(&log, &replicas));
    }

    /// How many units have ended since the last call.
    pub fn take_ended(&mut self) -> u64 {
        std::mem::take(&mut self.ended)
    }

    /// The stream without the ranges that are not repeated there.
    fn repeated(&self, repeats: impl Fn(RepeatedAt) -> bool) -> Vec<u8> {
        let (mut stream, mut from) = (Vec::with_capacity(self.stream.len()), 0);
        for (range, _) in self.withheld.iter().filter(|(_, at)| !repeats(*at)) {
            stream.extend_from_slice(&self.stream[from..range.start]);
            from = range.end;
        }
        stream.extend_from_slice(&self.stream[from..]);
        stream
    }

    /// Whether there is nothing to take.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.stream.is_empty()
    }

    /// Bytes not taken yet.
    pub fn len(&self) -> usize {
        self.stream.len()
    }

    /// Bytes not taken yet that go to replicas.
    #[inline]
    pub fn len_for_replicas(&self) -> usize {
        let withheld = self.withheld.iter().filter(|(_, at)| !at.replicas);
        self.stream.len() - withheld.map(|(range, _)| range.len()).sum::<usize>()
    }
}

/// Appends an encoded request.
fn encode<'a>(request: impl ExactSizeIterator<Item = &'a [u8]>, stream: &mut Vec<u8>) {
    write_header(b'*', request.len(), stream);
    for argument in request {
        write_header(b'$', argument.len(), stream);
        stream.extend_from_slice(argument);
        stream.extend_from_slice(b"\r\n");
    }
}

fn write_header(marker: u8, len: usize, stream: &mut Vec<u8>) {
    stream.push(marker);
    if len < 10 {
        stream.push(b'0' + len as u8);
    } else {
        stream.extend_from_slice(itoa::Buffer::new().format(len).as_bytes());
    }
    stream.extend_from_slice(b"\r\n");
}

impl Context<'_> {
    /// Whether the stream is taken at all: if not, requests to be repeated need not be built.
    #[inline]
    pub fn is_heard(&self) -> bool {
        self.server.effects.is_heard()
    }

    /// Repeats this request instead of the command's own; several in the order of the calls.
    #[inline]
    pub fn instead(&mut self, request: &[&[u8]]) {
        self.effect = Effect::Instead;
        if self.is_heard() {
            self.instead_of(self.db.selected(), request.iter().copied());
        }
    }

    /// As [`Self::instead`], in any database.
    pub fn instead_of<'b>(&mut self, db: usize, request: impl ExactSizeIterator<Item = &'b [u8]>) {
        self.effect = Effect::Instead;
        if self.is_heard() {
            note_deletions(self.db, self.server);
            self.server.effects.push(db, request);
        }
    }

    /// As [`Self::instead`], for arguments that are collected one by one. `gather` runs only if the stream is taken.
    pub fn instead_gathered(&mut self, gather: impl FnOnce(&Self, &mut Vec<Vec<u8>>)) {
        self.effect = Effect::Instead;
        if self.is_heard() {
            let mut request = Vec::new();
            gather(self, &mut request);
            let db = self.db.selected();
            self.instead_of(db, request.iter().map(Vec::as_slice));
        }
    }

    /// As [`Self::instead`], with one number appended to the arguments.
    #[inline]
    pub fn instead_with(&mut self, request: &[&[u8]], number: i64) {
        self.effect = Effect::Instead;
        if self.is_heard() {
            self.instead_with_digits(request, number);
        }
    }

    #[cold]
    fn instead_with_digits(&mut self, request: &[&[u8]], number: i64) {
        let mut digits = itoa::Buffer::new();
        let number = digits.format(number).as_bytes();
        let db = self.db.selected();
        let all: smallvec::SmallVec<[&[u8]; 8]> = request.iter().copied().chain([number]).collect();
        self.instead_of(db, all.into_iter());
    }

    /// Has replicas repeat this request, a message.
    pub fn repeat_message(&mut self) {
        let replication = &self.server.replication;
        if replication.backlog.is_some() && !replication.is_replica() {
            note_deletions(self.db, self.server);
            let db = self.db.selected();
            self.server.effects.push_message(db, self.args.iter_from(0));
        }
    }

    /// Repeats the deletion of a key whose new deadline lies in the past.
    pub fn instead_expired(&mut self, key: &[u8]) {
        let unlinks = self.server.config.lazyfree_lazy_expire;
        self.instead(&[if unlinks { b"UNLINK" } else { b"DEL" }, key]);
    }

    /// Repeats `SET key value` instead, with the deadline as a Unix time.
    pub fn instead_set(&mut self, key: &[u8], value: &[u8], expiry: Expiry) {
        match expiry {
            Expiry::Clear => self.instead(&[b"SET", key, value]),
            Expiry::Keep => self.instead(&[b"SET", key, value, b"KEEPTTL"]),
            Expiry::At(deadline) => {
                let at = deadline.unix(self.db.wall_offset_ms()).0;
                self.instead_with(&[b"SET", key, value, b"PXAT"], at);
            }
        }
    }
}

/// Which expired and evicted keys are repeated as UNLINK rather than DEL.
#[derive(Clone, Copy)]
struct Unlinks {
    expired: bool,
    evicted: bool,
}

impl Unlinks {
    fn of(server: &State) -> Self {
        Unlinks {
            expired: server.config.lazyfree_lazy_expire,
            evicted: server.config.lazyfree_lazy_eviction,
        }
    }
}

/// Adds the keys that expired or were evicted since the last call.
#[inline]
pub fn note_deletions(db: &mut Keyspace, server: &mut State) {
    if !db.deletions.is_empty() {
        note_all_deletions(db, server);
    }
}

#[cold]
fn note_all_deletions(db: &mut Keyspace, server: &mut State) {
    let unlinks = Unlinks::of(server);
    let effects = &mut server.effects;
    db.deletions.take().iter().for_each(|deletion| effects.push_deletion(deletion, unlinks));
}

/// Adds keys that were deleted outside of commands, each as a unit of its own; inside a unit, to that unit.
pub fn note_deletions_apart(db: &mut Keyspace, server: &mut State) {
    let is_apart = server.effects.is_between_units();
    let unlinks = Unlinks::of(server);
    for deletion in db.deletions.take() {
        server.effects.push_deletion(&deletion, unlinks);
        if is_apart {
            server.effects.end_unit();
        }
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
        assert_eq!(lines(&mut effects), "SELECT 3\nMULTI\nINCR a\nINCR a\nEXEC");
    }

    #[test]
    fn what_not_everybody_repeats_is_left_out() {
        let mut effects = Effects::default();
        effects.listen(true);
        let (log, replicas) = (true, true);
        push(&mut effects, 0, "SET a 1");
        effects.repeat_at(RepeatedAt { log: false, replicas: false });
        push(&mut effects, 0, "SET b 2");
        effects.repeat_at(RepeatedAt { log, replicas: false });
        push(&mut effects, 0, "SET c 3");
        let mark = effects.mark();
        effects.repeat_at(RepeatedAt { log: false, replicas });
        push(&mut effects, 1, "SET d 4");
        effects.roll_back(mark);
        push(&mut effects, 0, "SET e 5");
        effects.repeat_at(RepeatedAt::ALL);
        push(&mut effects, 0, "SET f 6");
        effects.end_unit();
        let lines_of = |stream: &[u8]| {
            let mut apart = Effects { stream: stream.to_vec(), ..Effects::default() };
            lines(&mut apart)
        };
        let len = effects.len_for_replicas();
        effects.take_apart(|log, replicas| {
            let expected = "SELECT 0\nMULTI\nSET a 1\nSET c 3\nSET f 6\nEXEC";
            assert_eq!(lines_of(log), expected);
            let expected = "SELECT 0\nMULTI\nSET a 1\nSET e 5\nSET f 6\nEXEC";
            assert_eq!((lines_of(replicas), len), (expected.into(), replicas.len()));
        });
        assert!(effects.is_empty() && effects.len_for_replicas() == 0);
    }

    #[test]
    fn a_message_goes_to_replicas_alone_and_survives_a_rollback() {
        let mut effects = Effects::default();
        effects.listen(true);
        let mark = effects.mark();
        push(&mut effects, 0, "SET a 1");
        effects.push_message(3, [&b"PUBLISH"[..], b"c", b"m"].into_iter());
        effects.roll_back(mark);
        push(&mut effects, 3, "SET b 2");
        effects.end_unit();
        let lines_of = |stream: &[u8]| {
            let mut apart = Effects { stream: stream.to_vec(), ..Effects::default() };
            lines(&mut apart)
        };
        effects.take_apart(|log, replicas| {
            assert_eq!(lines_of(log), "SELECT 3\nMULTI\nSET b 2\nEXEC");
            assert_eq!(lines_of(replicas), "SELECT 3\nMULTI\nPUBLISH c m\nSET b 2\nEXEC");
        });
    }

    #[test]
    fn what_is_rolled_back_leaves_only_what_has_expired() {
        let mut effects = Effects::default();
        effects.listen(true);
        push(&mut effects, 0, "SET a 1");
        let mark = effects.mark();
        push(&mut effects, 0, "SET a 2");
        let unlinks = Unlinks { expired: false, evicted: true };
        let gone = |what| Deletion { database: 1, key: (*b"b").into(), what };
        effects.push_deletion(&gone(Deleted::Expired), unlinks);
        push(&mut effects, 2, "SET a 3");
        effects.push_deletion(&gone(Deleted::Evicted), unlinks);
        effects.roll_back(mark);
        effects.end_unit();
        let expected = "SELECT 0\nMULTI\nSET a 1\nSELECT 1\nDEL b\nUNLINK b\nEXEC";
        assert_eq!(lines(&mut effects), expected);
        let mark = effects.mark();
        push(&mut effects, 5, "SET a 2");
        effects.roll_back(mark);
        effects.end_unit();
        assert!(effects.is_empty());
        push(&mut effects, 1, "SET a 2");
        effects.end_unit();
        assert_eq!(lines(&mut effects), "SET a 2");
    }
}
