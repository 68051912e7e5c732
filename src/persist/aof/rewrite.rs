//! A base of commands: what is there, as the commands that make it (`aof-use-rdb-preamble no`).
//!
//! The commands are those of Redis 7.0's `rewriteAppendOnlyFileRio`, so that either server loads what the other one wrote:
//! elements of collections in groups, a stream with what it remembers and its groups, deadlines last. Fields with deadlines
//! get theirs by HPEXPIREAT, as Redis 7.4 and Valkey 9 know it.

use std::io::{self, Write};

use super::reader::timestamp_annotation;
use crate::clock::Now;
use crate::collections::listpack;
use crate::persist::rdb::{Output, SavedEntry, Sink, View};
use crate::resp::number::{format_double_17g, format_i64};
use crate::types::hash::HashView;
use crate::types::list::ListView;
use crate::types::sorted_set::SortedSetView;
use crate::types::stream::{Group, Stream, StreamId};

/// Elements of a collection that one command adds, at most. Source: AOF_REWRITE_ITEMS_PER_CMD of Redis.
const ELEMENTS_MAX: usize = 64;

/// Writes a file of commands.
pub struct CommandWriter<W: Write> {
    out: Commands<W>,
}

/// Commands, word by word.
struct Commands<W: Write>(Output<W>);

impl<W: Write> Commands<W> {
    /// Begins a command of so many words.
    fn begin(&mut self, words: usize) {
        self.count(b'*', words);
    }

    fn word(&mut self, word: impl AsRef<[u8]>) {
        let word = word.as_ref();
        self.count(b'$', word.len());
        self.0.put(word);
        self.0.put(b"\r\n");
    }

    fn number(&mut self, number: i64) {
        self.word(&*format_i64(number));
    }

    fn id(&mut self, id: StreamId) {
        self.word(id.text());
    }

    fn count(&mut self, kind: u8, count: usize) {
        self.0.put(&[kind]);
        self.0.put(&format_i64(count as i64));
        self.0.put(b"\r\n");
    }
}

/// Splits elements into commands.
struct Grouped<'a, W: Write> {
    out: &'a mut Commands<W>,
    command: &'static str,
    key: &'a [u8],
    /// Elements that are still to come.
    rest: usize,
    /// Those of them that belong to the command which was begun.
    room: usize,
    words_each: usize,
}

impl<'a, W: Write> Grouped<'a, W> {
    fn new(
        out: &'a mut Commands<W>,
        command: &'static str,
        key: &'a [u8],
        elements: usize,
        words_each: usize,
    ) -> Self {
        Grouped { out, command, key, rest: elements, room: 0, words_each }
    }

    /// Where the next element's words go.
    fn next(&mut self) -> &mut Commands<W> {
        if self.room == 0 {
            self.room = self.rest.min(ELEMENTS_MAX);
            self.out.begin(2 + self.room * self.words_each);
            self.out.word(self.command);
            self.out.word(self.key);
        }
        self.room -= 1;
        self.rest -= 1;
        self.out
    }
}

impl<W: Write> CommandWriter<W> {
    /// Begins a file, with an annotation of the time (Unix seconds) if there is one.
    pub fn new(inner: W, time: Option<i64>) -> Self {
        let mut out = Output::new(inner);
        if let Some(time) = time {
            out.put(&timestamp_annotation(time));
        }
        CommandWriter { out: Commands(out) }
    }

    /// Bytes given to the file so far.
    pub fn written_bytes(&self) -> u64 {
        self.out.0.written()
    }

    /// A library of functions by its text.
    pub fn function(&mut self, text: &[u8]) -> io::Result<()> {
        self.out.begin(3);
        self.out.word("FUNCTION");
        self.out.word("LOAD");
        self.out.word(text);
        self.out.0.check()
    }

    /// The entries from here on are in this database.
    pub fn select_db(&mut self, db: u64) -> io::Result<()> {
        self.out.begin(2);
        self.out.word("SELECT");
        self.out.number(db as i64);
        self.out.0.check()
    }

    /// One key. Deadlines of fields become times as they are `now`.
    pub fn entry(&mut self, entry: &SavedEntry<'_>, now: &Now) -> io::Result<()> {
        let (key, out) = (entry.key, &mut self.out);
        match View::new(entry.value) {
            View::String(text) => {
                out.begin(3);
                out.word("SET");
                out.word(key);
                out.word(text);
            }
            View::List(elements) => list(out, key, elements),
            View::Hash(fields) => hash(out, key, fields, now),
            View::Set(members) => {
                let mut grouped = Grouped::new(out, "SADD", key, members.len(), 1);
                members.for_each(|member| grouped.next().word(member.text()));
            }
            View::SortedSet(members) => sorted_set(out, key, members),
            View::Stream(entries) => stream(out, key, entries),
        }
        if let Some(deadline_ms) = entry.deadline_ms {
            out.begin(3);
            out.word("PEXPIREAT");
            out.word(key);
            out.number(deadline_ms);
        }
        out.0.check()
    }

    /// Ends the file.
    pub fn finish(self) -> io::Result<()> {
        self.out.0.finish().map(drop)
    }
}

fn list<W: Write>(out: &mut Commands<W>, key: &[u8], elements: ListView<'_>) {
    let count = elements.runs().map(|run| run.count).sum();
    let mut grouped = Grouped::new(out, "RPUSH", key, count, 1);
    for run in elements.runs() {
        let mut rest = run.entries;
        while let Some((element, len)) = listpack::first(rest) {
            rest = &rest[len..];
            grouped.next().word(element.text());
        }
    }
}

fn hash<W: Write>(out: &mut Commands<W>, key: &[u8], fields: HashView<'_>, now: &Now) {
    let mut grouped = Grouped::new(out, "HMSET", key, fields.kept_len(), 2);
    fields.for_each_kept(|field, value| {
        let out = grouped.next();
        out.word(field);
        out.word(value);
    });
    fields.for_each_saved(|field, _, deadline| {
        let Some(deadline) = deadline else { return };
        out.begin(6);
        out.word("HPEXPIREAT");
        out.word(key);
        out.number(deadline.unix(now.wall_offset_ms()).0.max(0));
        out.word("FIELDS");
        out.word("1");
        out.word(field);
    });
}

fn sorted_set<W: Write>(out: &mut Commands<W>, key: &[u8], members: SortedSetView<'_>) {
    let count = members.len();
    let mut grouped = Grouped::new(out, "ZADD", key, count, 2);
    members.each(0..count, false, |score, member| {
        let out = grouped.next();
        out.word(&*format_double_17g(score));
        out.word(member);
    });
}

fn stream<W: Write>(out: &mut Commands<W>, key: &[u8], stream: &Stream) {
    let Stream { entries, groups } = stream;
    for entry in entries.range(StreamId::MIN, StreamId::MAX) {
        out.begin(3 + 2 * entry.fields);
        out.word("XADD");
        out.word(key);
        out.id(entry.id);
        for (field, value) in entry {
            out.word(field.text());
            out.word(value.text());
        }
    }
    if entries.is_empty() {
        // An entry that is not kept makes the stream.
        out.begin(7);
        for word in ["XADD".as_bytes(), key, b"MAXLEN", b"0", b"0-1", b"x", b"y"] {
            out.word(word);
        }
    }
    out.begin(7);
    out.word("XSETID");
    out.word(key);
    out.id(entries.last);
    out.word("ENTRIESADDED");
    out.number(entries.added);
    out.word("MAXDELETEDID");
    out.id(entries.max_deleted);
    for (name, group) in groups {
        stream_group(out, key, name, group);
    }
}

fn stream_group<W: Write>(out: &mut Commands<W>, key: &[u8], name: &[u8], group: &Group) {
    /// How an unknown number of entries is told.
    const UNKNOWN_READ: i64 = -1;
    out.begin(7);
    out.word("XGROUP");
    out.word("CREATE");
    out.word(key);
    out.word(name);
    out.id(group.last);
    out.word("ENTRIESREAD");
    out.number(group.read.unwrap_or(UNKNOWN_READ));
    for consumer in group.consumers() {
        if consumer.pending().is_empty() {
            out.begin(5);
            out.word("XGROUP");
            out.word("CREATECONSUMER");
            out.word(key);
            out.word(name);
            out.word(&consumer.name);
        }
        for (id, ()) in consumer.pending().iter() {
            let Some(pending) = group.pending().get(id) else { continue };
            out.begin(12);
            out.word("XCLAIM");
            out.word(key);
            out.word(name);
            out.word(&consumer.name);
            out.word("0");
            out.id(*id);
            out.word("TIME");
            out.number(pending.delivered_ms);
            out.word("RETRYCOUNT");
            out.number(pending.deliveries);
            out.word("JUSTID");
            out.word("FORCE");
        }
    }
}

#[cfg(test)]
mod tests;
