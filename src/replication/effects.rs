//! Effects: the stream of changes that the append-only file stores and replicas follow, collected
//! as bytes.
//!
//! ```text
//! unit    = what one request of a client did, or one woken command, or one slice of expiry
//! stream  = ( SELECT db )? request                                              of a unit with one request
//!         | ( SELECT db )? MULTI request ( ( SELECT db )? request )+ EXEC       of a unit with several
//! ```
//!
//! A unit is never divided: the taken bytes end with a unit, even if another unit is under way, and
//! a reader that comes within a unit gets the whole unit, or all that was collected of it. So
//! positions within a unit count from its first byte.
//!
//! Requests are encoded as arrays of bulk strings. Redis 7.0.15's stream is the model, byte for
//! byte; commands it does not know are replicated as ones it knows. Nothing is encoded while
//! neither log nor replicas need it.

use std::ops::Range;

use crate::keyspace::DbIndex;
use crate::keyspace::deletions::{Deleted, Deletion};
use crate::resp::args::Args;
use crate::resp::request::{encode, encode_length};

/// Effects collected within a turn before they are passed on. Unit: bytes.
const SPREAD_BYTES: usize = 1 << 20;
const MULTI: &[u8] = b"*1\r\n$5\r\nMULTI\r\n";
const EXEC: &[u8] = b"*1\r\n$4\r\nEXEC\r\n";

/// Where a request is replicated: `redis.set_repl`.
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

/// The part of the stream that has not been taken yet.
#[derive(Debug, Default)]
pub struct Effects {
    heard: bool,
    /// Encoded requests.
    stream: Vec<u8>,
    /// The database selected at the stream's end; None: a SELECT must come next.
    selected: Option<DbIndex>,
    unit: Unit,
    /// A transaction or a script is under way: all added requests belong to its unit.
    is_gathering: bool,
    /// Units that have ended and were not taken.
    ended: u64,
    /// Where the next requests are replicated.
    at: RepeatedAt,
    /// Whether MULTI comes before the SELECT: `compatible-with valkey-9`.
    pub multi_first: bool,
    /// Bytes of all requests that commands have added, without SELECT.
    added: u64,
    /// Ranges of the stream that are not replicated everywhere, in order.
    withheld: Vec<(Range<usize>, RepeatedAt)>,
}

/// The unit that has not ended. Positions are relative to its start.
#[derive(Debug, Default)]
struct Unit {
    /// Where it begins in the stream; only while it has requests.
    start: usize,
    requests: usize,
    /// Where its MULTI goes: before its first request, after the SELECT, or for Valkey before that.
    first_at: usize,
    /// The database of its first request, and the one selected before.
    first_database: DbIndex,
    selected_before: Option<DbIndex>,
    /// A reader has come within it, and needs a SELECT before it.
    selects_anew: bool,
    /// Effects that a rollback keeps: deletions of expired or evicted keys, and messages.
    kept: Vec<Kept>,
}

/// A request that a rollback keeps.
#[derive(Debug)]
struct Kept {
    database: DbIndex,
    /// In the unit.
    range: Range<usize>,
    at: RepeatedAt,
}

/// Whether the following requests are a unit of their own, for [`Effects::end_apart`].
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Apart(bool);

/// A position within the unit, for [`Effects::roll_back`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    len: usize,
    requests: usize,
    selected: Option<DbIndex>,
}

impl Effects {
    /// Whether an AOF, backlog or DEBUG EFFECTS takes the stream. If not, nothing need be prepared.
    #[inline]
    pub fn is_heard(&self) -> bool {
        self.heard
    }

    /// Bytes of all requests that commands have added since the start, without SELECT.
    pub fn added(&self) -> u64 {
        self.added
    }

    /// Starts or stops the stream. Stopping drops all that was not taken.
    /// [`crate::keyspace::deletions::Deletions::listen`] must be called with the same value.
    pub fn listen(&mut self, heard: bool) {
        self.heard = heard;
        self.select_anew();
        if !heard {
            self.stream.clear();
            self.withheld.clear();
            self.unit = Unit::default();
        }
    }

    /// Puts a SELECT before the next unit, or the one that has begun: a new reader follows from
    /// here.
    pub fn select_anew(&mut self) {
        match self.is_between_units() {
            true => self.selected = None,
            false => self.unit.selects_anew = true,
        }
    }

    /// The database selected at the stream's end, if a SELECT was written.
    pub fn selected(&self) -> Option<DbIndex> {
        self.selected
    }

    /// Adds a request to the unit.
    pub fn push<'a>(
        &mut self,
        database: DbIndex,
        request: impl ExactSizeIterator<Item = &'a [u8]>,
    ) {
        self.add(database, |stream| encode(request, stream));
    }

    /// Adds a request as a client has sent it.
    pub fn push_as_sent(&mut self, database: DbIndex, request: &Args<'_>) {
        self.add(database, |stream| match request.sent_as_bulks() {
            Some(sent) => {
                encode_length(b'*', request.len(), stream);
                encode_length(b'$', request.get(0).len(), stream);
                stream.extend_from_slice(sent);
                stream.extend_from_slice(b"\r\n");
            }
            None => encode(request.iter_from(0), stream),
        });
    }

    fn add(&mut self, database: DbIndex, encode: impl FnOnce(&mut Vec<u8>)) {
        if self.at == RepeatedAt::NOWHERE {
            return;
        }
        self.select(database);
        let start = self.stream.len();
        encode(&mut self.stream);
        self.added += (self.stream.len() - start) as u64;
        if self.at != RepeatedAt::ALL {
            self.withheld.push((start..self.stream.len(), self.at));
        }
    }

    /// Sets where the next requests are replicated. Expiry and eviction always are
    /// everywhere.
    pub fn repeat_at(&mut self, at: RepeatedAt) {
        self.at = at;
    }

    /// Writes a SELECT if the database differs from the selected one.
    fn select(&mut self, database: DbIndex) {
        if self.unit.requests == 0 {
            self.unit.start = self.stream.len();
            (self.unit.first_database, self.unit.selected_before) = (database, self.selected);
        }
        if self.selected != Some(database) {
            self.selected = Some(database);
            encode_select(database, &mut self.stream);
        }
        if self.unit.requests == 0 {
            let after_select = self.stream.len() - self.unit.start;
            self.unit.first_at = if self.multi_first { 0 } else { after_select };
        }
        self.unit.requests += 1;
    }

    /// Where the unit begins in the stream.
    fn unit_start(&self) -> usize {
        if self.is_between_units() { self.stream.len() } else { self.unit.start }
    }

    /// The unit's bytes from `start` in the stream to its end.
    fn in_unit(&self, start: usize) -> Range<usize> {
        start - self.unit.start..self.stream.len() - self.unit.start
    }

    /// Adds a key, or fields, that expired or were evicted. A rollback keeps them.
    pub fn push_deletion(&mut self, deletion: &Deletion, unlinks: Unlinks) {
        let Deletion { database, key, what } = deletion;
        self.select(*database);
        let start = self.stream.len();
        let verb = |unlinks| if unlinks { &b"UNLINK"[..] } else { b"DEL" };
        match what {
            Deleted::Expired => {
                encode([verb(unlinks.expired), key], &mut self.stream);
            }
            Deleted::Evicted => {
                encode([verb(unlinks.evicted), key], &mut self.stream);
            }
            Deleted::Fields(fields) => {
                let mut request: Vec<&[u8]> = vec![b"HDEL", key];
                request.extend(fields.iter().map(Vec::as_slice));
                encode(request, &mut self.stream);
            }
        }
        let range = self.in_unit(start);
        self.unit.kept.push(Kept { database: *database, range, at: RepeatedAt::ALL });
    }

    /// Adds a message, which replicas get but the AOF does not. A rollback keeps it: it was
    /// delivered.
    pub fn push_message<'a>(
        &mut self,
        database: DbIndex,
        request: impl ExactSizeIterator<Item = &'a [u8]>,
    ) {
        if !self.at.replicas {
            return;
        }
        self.select(database);
        let start = self.stream.len();
        encode(request, &mut self.stream);
        let at = RepeatedAt { log: false, replicas: true };
        self.withheld.push((start..self.stream.len(), at));
        let range = self.in_unit(start);
        self.unit.kept.push(Kept { database, range, at });
    }

    /// The unit's current end.
    pub fn mark(&self) -> Mark {
        let len = self.stream.len() - self.unit_start();
        Mark { len, requests: self.unit.requests, selected: self.selected }
    }

    /// Drops the unit's requests since a mark, except messages and deletions by expiry and
    /// eviction, which are not undone either.
    pub fn roll_back(&mut self, mark: Mark) {
        if self.is_between_units() {
            return;
        }
        // A mark from before the unit stands for the unit's start. The stream may have been dropped
        // since.
        let from = (self.unit.start + mark.len).min(self.stream.len());
        let tail = self.stream.split_off(from);
        self.withheld.retain(|(range, _)| range.end <= from);
        self.selected = if mark.len == 0 { self.unit.selected_before } else { mark.selected };
        self.unit.requests = mark.requests.min(self.unit.requests);
        if self.is_between_units() && std::mem::take(&mut self.unit.selects_anew) {
            self.selected = None;
        }
        for Kept { database, range, at } in std::mem::take(&mut self.unit.kept) {
            if let Some(tail_start) = range.start.checked_sub(mark.len) {
                self.select(database);
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
            self.insert(self.unit.start + self.unit.first_at, MULTI);
            self.stream.extend_from_slice(EXEC);
        }
        if std::mem::take(&mut self.unit.selects_anew) && self.unit.first_at == 0 {
            let mut select = Vec::new();
            encode_select(self.unit.first_database, &mut select);
            self.insert(self.unit.start, &select);
        }
        self.ended += 1;
        self.unit.requests = 0;
        self.unit.kept.clear();
    }

    /// Inserts bytes into the stream.
    fn insert(&mut self, at: usize, bytes: &[u8]) {
        self.stream.splice(at..at, bytes.iter().copied());
        for (range, _) in self.withheld.iter_mut().filter(|(range, _)| range.start >= at) {
            *range = range.start + bytes.len()..range.end + bytes.len();
        }
    }

    /// Sets whether a transaction or a script is under way, and returns the previous setting.
    pub fn gather(&mut self, is_gathering: bool) -> bool {
        std::mem::replace(&mut self.is_gathering, is_gathering)
    }

    /// Begins requests that form a unit of their own, unless a unit has begun or is being gathered.
    pub fn begin_apart(&self) -> Apart {
        Apart(self.is_between_units() && !self.is_gathering)
    }

    /// Ends the requests of [`Self::begin_apart`].
    pub fn end_apart(&mut self, apart: Apart) {
        if apart.0 {
            self.end_unit();
        }
    }

    /// Whether no request was added since the last unit ended.
    #[inline]
    pub fn is_between_units(&self) -> bool {
        self.unit.requests == 0
    }

    /// Passes the ended units to `read`, in order, and drops them.
    pub fn take(&mut self, read: impl FnOnce(&[u8])) {
        let end = self.unit_start();
        read(&self.stream[..end]);
        self.drop_ended(end);
    }

    /// As [`Self::take`], with separate streams for the AOF and for replicas.
    pub fn take_apart(&mut self, read: impl FnOnce(&[u8], &[u8])) {
        if self.withheld.is_empty() {
            return self.take(|stream| read(stream, stream));
        }
        let end = self.unit_start();
        let (log, replicas) =
            (self.repeated(end, |at| at.log), self.repeated(end, |at| at.replicas));
        read(&log, &replicas);
        self.drop_ended(end);
    }

    /// Drops the stream up to `end`, where the unit begins.
    fn drop_ended(&mut self, end: usize) {
        if self.is_between_units() {
            self.stream.clear();
            self.withheld.clear();
            return;
        }
        self.stream.drain(..end);
        self.unit.start = 0;
        self.withheld.retain_mut(|(range, _)| {
            let is_in_unit = range.start >= end;
            if is_in_unit {
                *range = range.start - end..range.end - end;
            }
            is_in_unit
        });
    }

    /// The number of units that have ended since the last call.
    pub fn take_ended(&mut self) -> u64 {
        std::mem::take(&mut self.ended)
    }

    /// The stream up to `end` without the ranges that `repeats` excludes.
    fn repeated(&self, end: usize, repeats: impl Fn(RepeatedAt) -> bool) -> Vec<u8> {
        let (mut stream, mut from) = (Vec::with_capacity(end), 0);
        let left_out = self.withheld.iter().filter(|(range, at)| range.end <= end && !repeats(*at));
        for (range, _) in left_out {
            stream.extend_from_slice(&self.stream[from..range.start]);
            from = range.end;
        }
        stream.extend_from_slice(&self.stream[from..end]);
        stream
    }

    /// Whether every ended unit was taken.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.unit_start() == 0
    }

    /// Whether the effects are enough to be passed on within a turn.
    #[inline]
    pub fn are_many(&self) -> bool {
        self.len() >= SPREAD_BYTES
    }

    /// Bytes not taken yet.
    #[inline]
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

fn encode_select(database: DbIndex, stream: &mut Vec<u8>) {
    let mut digits = itoa::Buffer::new();
    let database = digits.format(database.get()).as_bytes();
    encode([b"SELECT", database], stream);
}

/// The expired and evicted keys that are replicated as UNLINK rather than DEL.
#[derive(Clone, Copy)]
pub struct Unlinks {
    pub expired: bool,
    pub evicted: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::request::{Limits, Parsed, Parser};

    fn push(effects: &mut Effects, database: DbIndex, request: &str) {
        let words: Vec<&[u8]> = request.split(' ').map(str::as_bytes).collect();
        effects.push(database, words.into_iter());
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
        push(&mut effects, DbIndex::ZERO, "SET a 1");
        effects.end_unit();
        push(&mut effects, DbIndex::ZERO, "DEL b");
        push(&mut effects, DbIndex::new(3), "SET a 2");
        effects.end_unit();
        effects.end_unit();
        push(&mut effects, DbIndex::new(3), "INCR a");
        effects.end_unit();
        let expected = "SELECT 0\nSET a 1\nMULTI\nDEL b\nSELECT 3\nSET a 2\nEXEC\nINCR a";
        assert_eq!(lines(&mut effects), expected);
        assert!(effects.is_empty());
        effects.select_anew();
        push(&mut effects, DbIndex::new(3), "INCR a");
        push(&mut effects, DbIndex::new(3), "INCR a");
        effects.end_unit();
        assert_eq!(lines(&mut effects), "SELECT 3\nMULTI\nINCR a\nINCR a\nEXEC");
    }

    #[test]
    fn what_not_everybody_repeats_is_left_out() {
        let mut effects = Effects::default();
        effects.listen(true);
        let (log, replicas) = (true, true);
        push(&mut effects, DbIndex::ZERO, "SET a 1");
        effects.repeat_at(RepeatedAt { log: false, replicas: false });
        push(&mut effects, DbIndex::ZERO, "SET b 2");
        effects.repeat_at(RepeatedAt { log, replicas: false });
        push(&mut effects, DbIndex::ZERO, "SET c 3");
        let mark = effects.mark();
        effects.repeat_at(RepeatedAt { log: false, replicas });
        push(&mut effects, DbIndex::new(1), "SET d 4");
        effects.roll_back(mark);
        push(&mut effects, DbIndex::ZERO, "SET e 5");
        effects.repeat_at(RepeatedAt::ALL);
        push(&mut effects, DbIndex::ZERO, "SET f 6");
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
        push(&mut effects, DbIndex::ZERO, "SET a 1");
        effects.push_message(DbIndex::new(3), [&b"PUBLISH"[..], b"c", b"m"].into_iter());
        effects.roll_back(mark);
        push(&mut effects, DbIndex::new(3), "SET b 2");
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
        push(&mut effects, DbIndex::ZERO, "SET a 1");
        let mark = effects.mark();
        push(&mut effects, DbIndex::ZERO, "SET a 2");
        let unlinks = Unlinks { expired: false, evicted: true };
        let gone = |what| Deletion { database: DbIndex::new(1), key: (*b"b").into(), what };
        effects.push_deletion(&gone(Deleted::Expired), unlinks);
        push(&mut effects, DbIndex::new(2), "SET a 3");
        effects.push_deletion(&gone(Deleted::Evicted), unlinks);
        effects.roll_back(mark);
        effects.end_unit();
        let expected = "SELECT 0\nMULTI\nSET a 1\nSELECT 1\nDEL b\nUNLINK b\nEXEC";
        assert_eq!(lines(&mut effects), expected);
        let mark = effects.mark();
        push(&mut effects, DbIndex::new(5), "SET a 2");
        effects.roll_back(mark);
        effects.end_unit();
        assert!(effects.is_empty());
        push(&mut effects, DbIndex::new(1), "SET a 2");
        effects.end_unit();
        assert_eq!(lines(&mut effects), "SET a 2");
    }

    /// A reader that follows the stream from some moment on, and the requests that it should get.
    #[derive(Default)]
    struct Reader {
        stream: Vec<u8>,
        expected: Vec<Vec<(DbIndex, Vec<u8>)>>,
    }

    impl Reader {
        /// The units that the stream has: database and words of each request.
        fn units(&self) -> Vec<Vec<(DbIndex, Vec<u8>)>> {
            let (mut parser, limits) = (Parser::default(), Limits::default());
            let (mut stream, mut at, mut selected) = (self.stream.clone(), 0, None);
            let (mut units, mut open) = (Vec::new(), None::<Vec<_>>);
            while at < stream.len() {
                let mut ranges = Vec::new();
                let parsed = parser.next(&mut stream, &mut at, &mut ranges, &limits);
                assert_eq!(parsed, Ok(Parsed::Request));
                let words: Vec<&[u8]> = ranges.iter().map(|range| range.of(&stream)).collect();
                match words[0] {
                    b"SELECT" => selected = DbIndex::read(words[1][0] - b'0'),
                    b"MULTI" => assert!(open.replace(Vec::new()).is_none()),
                    b"EXEC" => units.push(open.take().expect("a MULTI came before")),
                    _ => {
                        let request = (selected.expect("a SELECT came before"), words.join(&b' '));
                        match &mut open {
                            Some(unit) => unit.push(request),
                            None => units.push(vec![request]),
                        }
                    }
                }
            }
            assert!(open.is_none(), "a unit is cut");
            units
        }
    }

    /// A request of the model's unit.
    #[derive(Clone)]
    struct Expected {
        request: (DbIndex, Vec<u8>),
        at: RepeatedAt,
        is_kept: bool,
    }

    #[test]
    fn a_unit_is_never_divided() {
        for seed in 0..2000 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut effects = Effects::default();
            effects.listen(true);
            // A log and replicas, any of which may come within a unit.
            let mut readers = [vec![Reader::default()], vec![Reader::default()]];
            let (mut unit, mut mark) = (Vec::<Expected>::new(), None);
            let mut number = 0;
            let take = |effects: &mut Effects, readers: &mut [Vec<Reader>; 2]| {
                effects.take_apart(|log, replicas| {
                    readers[0].iter_mut().for_each(|reader| reader.stream.extend(log));
                    readers[1].iter_mut().for_each(|reader| reader.stream.extend(replicas));
                });
            };
            for _ in 0..60 {
                let database = DbIndex::new(random.usize(..3));
                number += 1;
                let word = format!("{number}");
                match random.u32(..12) {
                    0..4 => {
                        push(&mut effects, database, &format!("SET {word}"));
                        let request = (database, format!("SET {word}").into_bytes());
                        if effects.at != RepeatedAt::NOWHERE {
                            unit.push(Expected { request, at: effects.at, is_kept: false });
                        }
                    }
                    4 => {
                        let unlinks = Unlinks { expired: false, evicted: false };
                        let key = word.as_bytes().into();
                        let what = Deleted::Expired;
                        effects.push_deletion(&Deletion { database, key, what }, unlinks);
                        let request = (database, format!("DEL {word}").into_bytes());
                        unit.push(Expected { request, at: RepeatedAt::ALL, is_kept: true });
                    }
                    5 if effects.at.replicas => {
                        effects
                            .push_message(database, [&b"PUBLISH"[..], word.as_bytes()].into_iter());
                        let request = (database, format!("PUBLISH {word}").into_bytes());
                        let at = RepeatedAt { log: false, replicas: true };
                        unit.push(Expected { request, at, is_kept: true });
                    }
                    6 => {
                        let (log, replicas) = (random.bool(), random.bool());
                        effects.repeat_at(RepeatedAt { log, replicas });
                    }
                    7 => match mark.take() {
                        None => mark = Some((effects.mark(), unit.len())),
                        Some((mark, len)) => {
                            effects.roll_back(mark);
                            let kept = unit.split_off(len).into_iter().filter(|it| it.is_kept);
                            unit.extend(kept.collect::<Vec<_>>());
                        }
                    },
                    8 => take(&mut effects, &mut readers),
                    9 => {
                        take(&mut effects, &mut readers);
                        effects.select_anew();
                        readers[random.usize(..2)].push(Reader::default());
                    }
                    _ => {
                        effects.end_unit();
                        // A mark from before this unit is also from before the next.
                        mark = mark.filter(|(_, len)| *len == 0);
                        for (which, readers) in readers.iter_mut().enumerate() {
                            let is_for = |it: &&Expected| [it.at.log, it.at.replicas][which];
                            let repeated = unit.iter().filter(is_for);
                            let repeated: Vec<_> = repeated.map(|it| it.request.clone()).collect();
                            // If no request is repeated, an empty transaction may remain.
                            readers.iter_mut().for_each(|it| it.expected.push(repeated.clone()));
                        }
                        unit.clear();
                    }
                }
            }
            effects.end_unit();
            let last: Vec<_> = unit.clone();
            take(&mut effects, &mut readers);
            for (which, readers) in readers.iter_mut().enumerate() {
                for reader in readers {
                    let is_for = |it: &&Expected| [it.at.log, it.at.replicas][which];
                    let repeated = last.iter().filter(is_for);
                    reader.expected.push(repeated.map(|it| it.request.clone()).collect());
                    let mut units = reader.units();
                    units.retain(|unit| !unit.is_empty());
                    reader.expected.retain(|unit| !unit.is_empty());
                    assert_eq!(units, reader.expected, "seed {seed}, reader {which}");
                }
            }
        }
    }
}
