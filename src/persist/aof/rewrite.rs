//! Writing a base as commands that create the data (`aof-use-rdb-preamble no`).
//!
//! The commands are those of Redis 7.0's `rewriteAppendOnlyFileRio`, so that either server can load
//! the other's files: elements of collections in groups; a stream's entries, then its counters,
//! then its groups; deadlines last. Deadlines of fields are set by HPEXPIREAT, as Redis 7.4 and
//! Valkey 9 have it.

use std::io::{self, Write};

use super::reader::timestamp_annotation;
use crate::clock::Now;
use crate::collections::listpack;
use crate::persist::rdb::{LeaseTimes, Output, SavedEntry, Sink, View};
use crate::resp::number::{format_double_17g, format_i64};
use crate::types::hash::HashView;
use crate::types::list::ListView;
use crate::types::sorted_set::SortedSetView;
use crate::types::stream::{Entries, Group, Producers, Stream, StreamId};
use crate::types::string::StringView;

/// The most elements of a collection that one command adds. Source: AOF_REWRITE_ITEMS_PER_CMD of
/// Redis.
const ELEMENTS_MAX: usize = 64;
/// A command has fewer elements if together they could exceed this limit, and a longer string is
/// written in parts: a request of 4 GiB could not be read. Unit: bytes.
const COMMAND_BYTES_MAX: usize = if cfg!(test) { 1 << 20 } else { 1 << 30 };

/// Writes a file of commands.
pub struct CommandWriter<W: Write> {
    out: Commands<W>,
    /// Whether the producers that streams remember are written.
    has_producers: bool,
}

/// Writes commands, argument by argument. Leases are the times of pending entries.
struct Commands<W: Write>(Output<W>, LeaseTimes);

impl<W: Write> Commands<W> {
    /// Begins a command of `args` arguments, its name included.
    fn begin(&mut self, args: usize) {
        self.count(b'*', args);
    }

    fn arg(&mut self, arg: impl AsRef<[u8]>) {
        let arg = arg.as_ref();
        self.arg_of(arg.len(), [arg].into_iter());
    }

    /// An argument of `len` bytes, from its pieces.
    fn arg_of<'b>(&mut self, len: usize, pieces: impl Iterator<Item = &'b [u8]>) {
        self.count(b'$', len);
        pieces.for_each(|piece| self.0.put(piece));
        self.0.put(b"\r\n");
    }

    fn number(&mut self, number: i64) {
        self.arg(&*format_i64(number));
    }

    fn id(&mut self, id: StreamId) {
        self.arg(id.text());
    }

    fn count(&mut self, kind: u8, count: usize) {
        self.0.put(&[kind]);
        self.0.put(&format_i64(count as i64));
        self.0.put(b"\r\n");
    }
}

/// Distributes elements over commands.
struct Grouped<'a, W: Write> {
    out: &'a mut Commands<W>,
    command: &'static str,
    key: &'a [u8],
    /// Elements still to come.
    rest: usize,
    /// Elements still to come in the current command.
    room: usize,
    room_max: usize,
    args_each: usize,
}

impl<'a, W: Write> Grouped<'a, W> {
    fn new(
        out: &'a mut Commands<W>,
        command: &'static str,
        key: &'a [u8],
        elements: usize,
        args_each: usize,
        longest: Longest,
    ) -> Self {
        let room_max = (COMMAND_BYTES_MAX / longest.0.max(1)).clamp(1, ELEMENTS_MAX);
        Grouped { out, command, key, rest: elements, room: 0, room_max, args_each }
    }

    /// The destination of the next element's arguments.
    fn next(&mut self) -> &mut Commands<W> {
        if self.room == 0 {
            self.room = self.rest.min(self.room_max);
            self.out.begin(2 + self.room * self.args_each);
            self.out.arg(self.command);
            self.out.arg(self.key);
        }
        self.room -= 1;
        self.rest -= 1;
        self.out
    }
}

/// The longest element of a collection, in bytes.
#[derive(Default)]
struct Longest(usize);

impl Longest {
    fn note(&mut self, element: usize) {
        self.0 = self.0.max(element);
    }
}

impl<W: Write> CommandWriter<W> {
    /// Begins a file. `time`: Unix seconds for an annotation. `has_producers`: those that streams
    /// remember are written, as Redis 8.6 reads them.
    pub fn new(inner: W, time: Option<i64>, leases: LeaseTimes, has_producers: bool) -> Self {
        let mut out = Output::new(inner);
        if let Some(time) = time {
            out.put(&timestamp_annotation(time));
        }
        CommandWriter { out: Commands(out, leases), has_producers }
    }

    /// Bytes written to the file so far, without those in the buffer.
    pub fn written_bytes(&self) -> u64 {
        self.out.0.written()
    }

    /// Loads a library of functions or a script.
    pub fn load(&mut self, request: [&[u8]; 3]) -> io::Result<()> {
        self.out.begin(request.len());
        request.into_iter().for_each(|argument| self.out.arg(argument));
        self.out.0.check()
    }

    /// The next entries are in this database.
    pub fn select_db(&mut self, db: u64) -> io::Result<()> {
        self.out.begin(2);
        self.out.arg("SELECT");
        self.out.number(db as i64);
        self.out.0.check()
    }

    /// Writes an entry. `now` converts deadlines of fields to wall-clock times.
    pub fn entry(&mut self, entry: &SavedEntry<'_>, now: &Now) -> io::Result<()> {
        let (key, out) = (entry.key, &mut self.out);
        match View::new(entry.value) {
            View::String(text) => string(out, key, text),
            View::List(elements) => list(out, key, elements),
            View::Hash(fields) => hash(out, key, fields, now),
            View::Set(members) => {
                let mut longest = Longest::default();
                members.for_each(|member| longest.note(member.text().as_ref().len()));
                let mut grouped = Grouped::new(out, "SADD", key, members.len(), 1, longest);
                members.for_each(|member| grouped.next().arg(member.text()));
            }
            View::SortedSet(members) => sorted_set(out, key, members),
            View::Stream(entries) => {
                stream(out, key, entries);
                if let Some(known) = entries.producers.as_ref().filter(|_| self.has_producers) {
                    producers(out, key, known, (entries.entries(), now));
                }
            }
        }
        if let Some(deadline_ms) = entry.deadline_ms {
            out.begin(3);
            out.arg("PEXPIREAT");
            out.arg(key);
            out.number(deadline_ms);
        }
        if entry.is_blessed {
            out.begin(4);
            for word in [b"BLESS".as_slice(), b"SET", key, b"NO-EVICT"] {
                out.arg(word);
            }
        }
        out.0.check()
    }

    /// Ends the file.
    pub fn finish(self) -> io::Result<()> {
        self.out.0.finish().map(drop)
    }
}

fn string<W: Write>(out: &mut Commands<W>, key: &[u8], text: StringView<'_>) {
    let first = 0..text.len().min(COMMAND_BYTES_MAX);
    let rest = (first.end..text.len()).step_by(COMMAND_BYTES_MAX);
    let rest = rest.map(|start| start..text.len().min(start + COMMAND_BYTES_MAX));
    let parts = std::iter::once(("SET", first)).chain(rest.map(|part| ("APPEND", part)));
    for (command, part) in parts {
        out.begin(3);
        out.arg(command);
        out.arg(key);
        out.arg_of(part.len(), text.pieces(part));
    }
}

fn list<W: Write>(out: &mut Commands<W>, key: &[u8], elements: ListView<'_>) {
    let count = elements.runs().map(|run| run.count).sum();
    // No element is longer than its run.
    let mut longest = Longest::default();
    elements.runs().for_each(|run| longest.note(run.entries.len()));
    let mut grouped = Grouped::new(out, "RPUSH", key, count, 1, longest);
    for run in elements.runs() {
        let mut rest = run.entries;
        while let Some((element, len)) = listpack::first(rest) {
            rest = &rest[len..];
            grouped.next().arg(element.text());
        }
    }
}

fn hash<W: Write>(out: &mut Commands<W>, key: &[u8], fields: HashView<'_>, now: &Now) {
    let mut longest = Longest::default();
    fields.for_each_kept(|field, value| longest.note(field.len() + value.len()));
    let mut grouped = Grouped::new(out, "HMSET", key, fields.kept_len(), 2, longest);
    fields.for_each_kept(|field, value| {
        let out = grouped.next();
        out.arg(field);
        out.arg(value);
    });
    fields.for_each_saved(|field, _, deadline| {
        let Some(deadline) = deadline else { return };
        out.begin(6);
        out.arg("HPEXPIREAT");
        out.arg(key);
        out.number(deadline.unix(now.shown_offset_ms()).0.max(0));
        out.arg("FIELDS");
        out.arg("1");
        out.arg(field);
    });
}

fn sorted_set<W: Write>(out: &mut Commands<W>, key: &[u8], members: SortedSetView<'_>) {
    let count = members.len();
    let mut longest = Longest::default();
    members.each(0..count, false, |_, member| longest.note(member.len()));
    let mut grouped = Grouped::new(out, "ZADD", key, count, 2, longest);
    members.each(0..count, false, |score, member| {
        let out = grouped.next();
        out.arg(&*format_double_17g(score));
        out.arg(member);
    });
}

fn stream<W: Write>(out: &mut Commands<W>, key: &[u8], stream: &Stream) {
    let (entries, groups) = (stream.entries(), &stream.groups);
    for entry in entries.range(StreamId::MIN, StreamId::MAX) {
        out.begin(3 + 2 * entry.fields);
        out.arg("XADD");
        out.arg(key);
        out.id(entry.id);
        for (field, value) in entry {
            out.arg(field.text());
            out.arg(value.text());
        }
    }
    if entries.is_empty() {
        // An entry that is trimmed at once creates the stream.
        out.begin(7);
        for arg in ["XADD".as_bytes(), key, b"MAXLEN", b"0", b"0-1", b"x", b"y"] {
            out.arg(arg);
        }
    }
    out.begin(7);
    out.arg("XSETID");
    out.arg(key);
    out.id(entries.last);
    out.arg("ENTRIESADDED");
    out.number(entries.added);
    out.arg("MAXDELETEDID");
    out.id(entries.max_deleted);
    for (name, group) in groups.iter() {
        stream_group(out, key, name, (group, entries));
    }
}

fn stream_group<W: Write>(
    out: &mut Commands<W>,
    key: &[u8],
    name: &[u8],
    (group, entries): (&Group, &Entries),
) {
    /// ENTRIESREAD if unknown.
    const UNKNOWN_READ: i64 = -1;
    out.begin(7);
    out.arg("XGROUP");
    out.arg("CREATE");
    out.arg(key);
    out.arg(name);
    out.id(group.last);
    out.arg("ENTRIESREAD");
    out.number(group.read.unwrap_or(UNKNOWN_READ));
    for consumer in group.consumers() {
        // XCLAIM makes no consumer for entries that have been deleted.
        if !consumer.pending().iter().any(|(id, ())| entries.contains(*id)) {
            out.begin(5);
            out.arg("XGROUP");
            out.arg("CREATECONSUMER");
            out.arg(key);
            out.arg(name);
            out.arg(&consumer.name);
        }
        for (id, ()) in consumer.pending().iter() {
            let Some(pending) = group.pending().get(id) else { continue };
            out.begin(12);
            out.arg("XCLAIM");
            out.arg(key);
            out.arg(name);
            out.arg(&consumer.name);
            out.arg("0");
            out.id(*id);
            out.arg("TIME");
            let delivered_ms = out.1.unix_ms(pending.delivered_ms);
            out.number(delivered_ms);
            out.arg("RETRYCOUNT");
            out.number(pending.deliveries);
            out.arg("JUSTID");
            out.arg("FORCE");
        }
    }
}

/// The limits, and the names of entries that still exist.
fn producers<W: Write>(
    out: &mut Commands<W>,
    key: &[u8],
    producers: &Producers,
    (entries, now): (&Entries, &Now),
) {
    out.begin(6);
    out.arg("XCFGSET");
    out.arg(key);
    out.arg("IDMP-DURATION");
    out.number(producers.limits.duration.into());
    out.arg("IDMP-MAXSIZE");
    out.number(producers.limits.names.into());
    for (producer, names) in producers.live(now.unix().0.max(0) as u64) {
        for (name, id) in names.filter(|(_, id)| entries.contains(*id)) {
            out.begin(5);
            out.arg("XIDMPRECORD");
            out.arg(key);
            out.arg(producer);
            out.arg(name);
            out.id(id);
        }
    }
}

#[cfg(test)]
mod tests;
