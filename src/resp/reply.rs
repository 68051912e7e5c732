//! Writing replies: the only encoder of the protocol.
//!
//! A command calls a [`ReplyWriter`], which appends the encoded reply, in the client's protocol
//! version, to the client's [`OutputBuffer`]; once per turn the buffer is written to the socket.
//! Nearly all replies go to one growing `tail`; a large value for many clients is pushed as shared
//! [`Bytes`] without a copy.
//!
//! A buffer may have a limit ([`OutputBuffer::set_limit`]), as a short request can ask for a reply
//! of any length. Bytes beyond it are dropped, and the buffer is cut: invalid, never to be sent.
//!
//! Does not know clients, sockets, or the sources of limits. A client must get exactly one reply
//! for each request; an aggregate's header has its length, and the caller must write as many
//! elements.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io::{self, IoSlice, Write};

use bytes::Bytes;

use super::number;

/// Pieces in one vectored write. Linux refuses more than 1024 (IOV_MAX); few are needed.
const PIECES_MAX: usize = 64;

/// Sent bytes at which the tail's rest is moved to its front.
const COMPACT_MIN: usize = 16 * 1024;

/// The client's version of the protocol. HELLO changes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    #[default]
    Resp2,
    Resp3,
}

#[derive(Debug)]
enum Chunk {
    Owned(Vec<u8>),
    Shared(Bytes),
}

impl Chunk {
    fn bytes(&self) -> &[u8] {
        match self {
            Chunk::Owned(bytes) => bytes,
            Chunk::Shared(bytes) => bytes,
        }
    }
}

/// Pending output of one client. A new one owns no heap memory.
#[derive(Debug)]
pub struct OutputBuffer {
    /// Before `tail`. None is empty.
    chunks: VecDeque<Chunk>,
    /// Where replies are appended.
    tail: Vec<u8>,
    /// Sent bytes of the first piece. Less than its length unless the buffer is empty.
    sent: usize,
    /// Sum of the lengths of `chunks`.
    chunks_len: usize,
    /// Number of chunks sent since the buffer was created: marks count from the first chunk.
    chunks_sent: usize,
    /// Limit in bytes, checked whenever the tail has to grow; 0 after something was dropped.
    limit: usize,
}

impl Default for OutputBuffer {
    fn default() -> Self {
        OutputBuffer {
            chunks: VecDeque::new(),
            tail: Vec::new(),
            sent: 0,
            chunks_len: 0,
            chunks_sent: 0,
            limit: usize::MAX,
        }
    }
}

impl OutputBuffer {
    /// Takes an empty buffer's storage for reuse, so that idle clients own no heap memory. Returns
    /// an empty vector if bytes are pending.
    pub fn take_storage(&mut self) -> Vec<u8> {
        if !self.is_empty() {
            return Vec::new();
        }
        self.chunks = VecDeque::new();
        std::mem::take(&mut self.tail)
    }

    /// Gives an empty buffer this storage, or drops the storage if the buffer has its own.
    pub fn give_storage(&mut self, mut storage: Vec<u8>) {
        if self.tail.capacity() == 0 {
            storage.clear();
            self.tail = storage;
        }
    }

    /// Limits the buffer to about this number of bytes; see [`OutputBuffer::is_cut`]. A cut buffer
    /// stays cut.
    pub fn set_limit(&mut self, bytes: usize) {
        if !self.is_cut() {
            self.limit = bytes.max(1);
        }
    }

    /// An empty buffer with the same limit.
    pub fn with_limit_of(other: &OutputBuffer) -> Self {
        OutputBuffer { limit: other.limit, ..OutputBuffer::default() }
    }

    /// Whether bytes beyond the limit were dropped: then the content is no valid reply.
    #[inline]
    pub fn is_cut(&self) -> bool {
        self.limit == 0
    }

    /// Reserves `more` bytes in the tail. False: that exceeds the limit.
    #[inline]
    fn reserve(&mut self, more: usize) -> bool {
        self.tail.capacity() - self.tail.len() >= more || self.grow(more)
    }

    #[cold]
    fn grow(&mut self, more: usize) -> bool {
        if self.len().saturating_add(more) > self.limit {
            self.limit = 0;
            return false;
        }
        self.tail.reserve(more);
        true
    }

    /// Bytes to be sent.
    pub fn len(&self) -> usize {
        self.chunks_len + self.tail.len() - self.sent
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of heap memory, for clients' memory limits. Shared bytes count fully.
    pub fn capacity(&self) -> usize {
        let chunk = |chunk: &Chunk| match chunk {
            Chunk::Owned(bytes) => bytes.capacity(),
            Chunk::Shared(bytes) => bytes.len(),
        };
        self.tail.capacity() + self.chunks.iter().map(chunk).sum::<usize>()
    }

    /// Appends bytes that are encoded already.
    #[inline]
    pub fn push(&mut self, bytes: &[u8]) {
        self.tail.extend_from_slice(bytes);
    }

    /// Appends bytes without copying them. Worth it from some KiB on: each piece costs the kernel
    /// an iovec.
    pub fn push_shared(&mut self, bytes: Bytes) {
        if bytes.is_empty() {
            return;
        }
        if !self.tail.is_empty() {
            let tail = std::mem::take(&mut self.tail);
            self.push_chunk(Chunk::Owned(tail));
        }
        self.push_chunk(Chunk::Shared(bytes));
    }

    fn push_chunk(&mut self, chunk: Chunk) {
        self.chunks_len += chunk.bytes().len();
        self.chunks.push_back(chunk);
    }

    /// Appends another buffer's pending bytes; if that one was cut, this one becomes cut.
    pub fn append(&mut self, other: &OutputBuffer) {
        if other.is_cut() {
            self.limit = 0;
        }
        for piece in other.pieces() {
            self.push(piece);
        }
    }

    /// The pending bytes, in order, in pieces.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let mut sent = self.sent;
        self.chunks
            .iter()
            .map(Chunk::bytes)
            .chain([self.tail.as_slice()])
            .map(move |piece| &piece[std::mem::take(&mut sent)..])
            .filter(|piece| !piece.is_empty())
    }

    /// The pending bytes, in one piece: copied only if they are in several.
    pub fn whole(&self) -> Cow<'_, [u8]> {
        match self.chunks.is_empty() {
            true => Cow::Borrowed(&self.tail[self.sent..]),
            false => Cow::Owned(self.to_vec()),
        }
    }

    /// The pending bytes, copied only if they are in several pieces.
    pub fn into_vec(mut self) -> Vec<u8> {
        match self.chunks.is_empty() && self.sent == 0 {
            true => std::mem::take(&mut self.tail),
            false => self.to_vec(),
        }
    }

    /// A copy of the pending bytes. For tests and for replies that are parsed again.
    pub fn to_vec(&self) -> Vec<u8> {
        self.pieces().collect::<Vec<_>>().concat()
    }

    /// Writes as much as the socket takes in one call: `write` for a single piece, `writev`
    /// otherwise. Returns the bytes written, which are removed. Errors are the socket's
    /// (`WouldBlock`, `Interrupted` ...), with the buffer unchanged; a socket that takes nothing is
    /// `WriteZero`.
    pub fn write_to(&mut self, socket: &mut impl Write) -> io::Result<usize> {
        if self.is_empty() {
            return Ok(0);
        }
        let written = if self.chunks.is_empty() {
            socket.write(&self.tail[self.sent..])?
        } else {
            let mut slices = [IoSlice::new(&[]); PIECES_MAX];
            let mut count = 0;
            for (slice, piece) in slices.iter_mut().zip(self.pieces()) {
                *slice = IoSlice::new(piece);
                count += 1;
            }
            socket.write_vectored(&slices[..count])?
        };
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.advance(written);
        Ok(written)
    }

    /// Removes the first `count` pending bytes.
    fn advance(&mut self, count: usize) {
        self.sent += count;
        while let Some(first) = self.chunks.front() {
            let len = first.bytes().len();
            if self.sent < len {
                return;
            }
            self.sent -= len;
            self.chunks_len -= len;
            self.chunks_sent += 1;
            self.chunks.pop_front();
        }
        if self.sent >= self.tail.len() {
            self.tail.clear();
            self.sent = 0;
        } else if self.sent >= COMPACT_MIN && self.sent >= self.tail.len() / 2 {
            // Otherwise a client that never catches up would keep everything it was ever sent.
            self.tail.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// Removes all pending bytes; keeps the tail's storage.
    pub fn clear(&mut self) {
        self.chunks_sent += self.chunks.len();
        self.chunks.clear();
        self.chunks_len = 0;
        self.tail.clear();
        self.sent = 0;
    }

    /// Lowers the limit to `bytes`, if it is higher.
    pub fn lower_limit(&mut self, bytes: usize) {
        self.limit = self.limit.min(bytes.max(1));
    }

    fn mark(&self) -> Mark {
        Mark { chunk: self.chunks_sent + self.chunks.len(), offset: self.tail.len() }
    }

    /// Removes everything after a mark. Nothing must have been sent since the mark was made.
    fn truncate(&mut self, mark: Mark) {
        let kept = mark.chunk - self.chunks_sent;
        if kept < self.chunks.len() {
            let mut dropped = self.chunks.drain(kept..);
            if let Some(Chunk::Owned(bytes)) = dropped.next() {
                self.tail = bytes;
            }
            drop(dropped);
            self.chunks_len = self.chunks.iter().map(|chunk| chunk.bytes().len()).sum();
        }
        self.tail.truncate(mark.offset);
    }

    /// The piece with a mark: a chunk if shared bytes were pushed since, else the tail.
    fn marked(&mut self, mark: Mark) -> &mut Vec<u8> {
        match self.chunks.get_mut(mark.chunk - self.chunks_sent) {
            Some(Chunk::Owned(bytes)) => bytes,
            Some(Chunk::Shared(_)) => {
                unreachable!("a mark is made in the tail, which becomes an owned chunk")
            }
            None => &mut self.tail,
        }
    }
}

/// The strings and numbers of an encoded reply in their order, whatever arrays they are in. Nothing
/// of an error, or from the first null on.
pub fn scalars(mut encoded: &[u8]) -> Vec<&[u8]> {
    let mut found = Vec::new();
    while let Some(end) = encoded.windows(2).position(|pair| pair == b"\r\n") {
        let (line, rest) = (&encoded[..end], &encoded[end + 2..]);
        let Some((marker, text)) = line.split_first() else { break };
        encoded = rest;
        match marker {
            b'*' if number::parse_i64(text).is_some_and(|len| len >= 0) => {}
            b':' | b',' | b'+' => found.push(text),
            b'$' => {
                let len = number::parse_i64(text).and_then(|len| usize::try_from(len).ok());
                let Some((string, rest)) = len.and_then(|len| rest.split_at_checked(len)) else {
                    break;
                };
                found.push(string);
                encoded = rest.get(2..).unwrap_or_default();
            }
            _ => break,
        }
    }
    found
}

/// The start of a reply; see [`ReplyWriter::begin`].
#[derive(Clone, Copy, Debug)]
pub struct Begun(Mark);

/// A position in an [`OutputBuffer`], valid until bytes are sent or dropped.
#[derive(Clone, Copy, Debug)]
struct Mark {
    /// Counted from the first chunk ever; the tail counts as the next chunk.
    chunk: usize,
    offset: usize,
}

/// An aggregate whose length is not known yet. Started by `defer_array` and similar methods, ended
/// by [`ReplyWriter::finish`] or [`ReplyWriter::rewind`]; nested ones end first.
#[derive(Debug)]
#[must_use = "the reply is not valid before its length is filled in"]
pub struct Deferred {
    mark: Mark,
    /// Encoded elements for each counted one: 2 for maps in RESP2.
    factor: usize,
}

/// Appends replies to a client's buffer in its version of the protocol.
#[derive(Debug)]
pub struct ReplyWriter<'a> {
    out: &'a mut OutputBuffer,
    protocol: Protocol,
}

impl<'a> ReplyWriter<'a> {
    pub fn new(out: &'a mut OutputBuffer, protocol: Protocol) -> Self {
        ReplyWriter { out, protocol }
    }

    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// For HELLO, whose own reply is already in the new version.
    pub fn set_protocol(&mut self, protocol: Protocol) {
        self.protocol = protocol;
    }

    pub fn output(&mut self) -> &mut OutputBuffer {
        self.out
    }

    /// The start of the next reply.
    pub fn begin(&self) -> Begun {
        Begun(self.out.mark())
    }

    /// Removes everything since the start of a reply.
    pub fn take_back(&mut self, begun: Begun) {
        self.out.truncate(begun.0);
    }

    /// Whether bytes beyond the buffer's limit were dropped: nothing that follows will be sent.
    #[inline]
    pub fn is_cut(&self) -> bool {
        self.out.is_cut()
    }

    fn is_resp3(&self) -> bool {
        self.protocol == Protocol::Resp3
    }

    /// A length line.
    #[inline]
    fn header(&mut self, marker: u8, len: usize) {
        if self.out.reserve(HEADER_LEN_MAX) {
            header(&mut self.out.tail, marker, len);
        }
    }

    /// Appends encoded bytes.
    #[inline]
    pub fn raw(&mut self, bytes: &[u8]) {
        self.out.tail.extend_from_slice(bytes);
    }

    /// `+OK`
    #[inline]
    pub fn ok(&mut self) {
        self.raw(b"+OK\r\n");
    }

    /// `+PONG`
    #[inline]
    pub fn pong(&mut self) {
        self.raw(b"+PONG\r\n");
    }

    /// `+QUEUED`
    #[inline]
    pub fn queued(&mut self) {
        self.raw(b"+QUEUED\r\n");
    }

    /// A status line. Line ends in it would end the reply, so they become spaces.
    pub fn simple(&mut self, text: impl AsRef<[u8]>) {
        self.line(b'+', text.as_ref());
    }

    /// An error: its code, a space and a text (`ERR syntax error`). Line ends around it are
    /// removed, those in it become spaces.
    #[cold]
    pub fn error(&mut self, text: impl AsRef<[u8]>) {
        let is_line_end = |byte: &u8| matches!(byte, b'\r' | b'\n');
        let text = text.as_ref();
        let first = text.iter().position(|byte| !is_line_end(byte)).unwrap_or(text.len());
        let end = text.iter().rposition(|byte| !is_line_end(byte)).map_or(first, |last| last + 1);
        self.line(b'-', &text[first..end]);
    }

    fn line(&mut self, marker: u8, text: &[u8]) {
        if !self.out.reserve(text.len() + 3) {
            return;
        }
        let tail = &mut self.out.tail;
        tail.push(marker);
        let begin = tail.len();
        tail.extend_from_slice(text);
        for byte in &mut tail[begin..] {
            if matches!(byte, b'\r' | b'\n') {
                *byte = b' ';
            }
        }
        tail.extend_from_slice(b"\r\n");
    }

    /// A bulk string.
    #[inline]
    pub fn bulk(&mut self, bytes: &[u8]) {
        if !self.out.reserve(bytes.len() + HEADER_LEN_MAX + 2) {
            return;
        }
        let tail = &mut self.out.tail;
        header(tail, b'$', bytes.len());
        tail.extend_from_slice(bytes);
        tail.extend_from_slice(b"\r\n");
    }

    /// A bulk string of `len` bytes, from its pieces.
    pub fn bulk_pieces<'b>(&mut self, len: usize, pieces: impl Iterator<Item = &'b [u8]>) {
        if !self.out.reserve(len + HEADER_LEN_MAX + 2) {
            return;
        }
        let tail = &mut self.out.tail;
        header(tail, b'$', len);
        pieces.for_each(|piece| tail.extend_from_slice(piece));
        tail.extend_from_slice(b"\r\n");
    }

    /// An integer as a bulk string, as strings and hash fields that hold integers.
    #[inline]
    pub fn bulk_integer(&mut self, value: i64) {
        self.bulk(itoa::Buffer::new().format(value).as_bytes());
    }

    /// Anything printable as a bulk string.
    pub fn bulk_display(&mut self, value: impl std::fmt::Display) {
        self.bulk(value.to_string().as_bytes());
    }

    /// No value: `$-1`, in RESP3 `_`.
    #[inline]
    pub fn null(&mut self) {
        self.raw(if self.is_resp3() { b"_\r\n" } else { b"$-1\r\n" });
    }

    /// No array: `*-1`, in RESP3 `_`.
    pub fn null_array(&mut self) {
        self.raw(if self.is_resp3() { b"_\r\n" } else { b"*-1\r\n" });
    }

    #[inline]
    pub fn integer(&mut self, value: i64) {
        if (0..10).contains(&value) {
            self.raw(&[b':', b'0' + value as u8, b'\r', b'\n']);
        } else if self.out.reserve(HEADER_LEN_MAX) {
            let tail = &mut self.out.tail;
            tail.push(b':');
            tail.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
            tail.extend_from_slice(b"\r\n");
        }
    }

    /// An integer given as text.
    #[inline]
    pub fn integer_text(&mut self, text: &[u8]) {
        let tail = &mut self.out.tail;
        tail.reserve(text.len() + 3);
        tail.push(b':');
        tail.extend_from_slice(text);
        tail.extend_from_slice(b"\r\n");
    }

    /// An array; `len` replies follow.
    #[inline]
    pub fn array(&mut self, len: usize) {
        self.header(b'*', len);
    }

    /// A map; `len` keys and values follow in turn. In RESP2 an array of twice the length.
    #[inline]
    pub fn map(&mut self, len: usize) {
        if self.is_resp3() {
            self.header(b'%', len);
        } else {
            self.header(b'*', 2 * len);
        }
    }

    /// A set; `len` replies follow. In RESP2 an array.
    #[inline]
    pub fn set(&mut self, len: usize) {
        let marker = if self.is_resp3() { b'~' } else { b'*' };
        self.header(marker, len);
    }

    /// A push message (pub/sub, invalidation); `len` replies follow. In RESP2 an array.
    #[inline]
    pub fn push(&mut self, len: usize) {
        let marker = if self.is_resp3() { b'>' } else { b'*' };
        self.header(marker, len);
    }

    /// Attributes of the reply that follows them; `len` keys and values follow in turn. RESP3 only:
    /// in RESP2 nothing is written, and `false` tells the caller to leave them out.
    #[must_use = "in RESP2 the attributes must not be written"]
    pub fn attribute(&mut self, len: usize) -> bool {
        if self.is_resp3() {
            self.header(b'|', len);
        }
        self.is_resp3()
    }

    /// `#t` or `#f`, in RESP2 the integer 1 or 0.
    pub fn boolean(&mut self, value: bool) {
        self.raw(match (self.protocol, value) {
            (Protocol::Resp2, true) => b":1\r\n",
            (Protocol::Resp2, false) => b":0\r\n",
            (Protocol::Resp3, true) => b"#t\r\n",
            (Protocol::Resp3, false) => b"#f\r\n",
        });
    }

    /// An integer of any size as decimal text. In RESP2 a bulk string, in which line ends are
    /// spaces too.
    pub fn big_number(&mut self, digits: impl AsRef<[u8]>) {
        let digits = digits.as_ref();
        if self.is_resp3() {
            self.line(b'(', digits);
            return;
        }
        let is_line_end = |byte: &u8| matches!(byte, b'\r' | b'\n');
        if digits.iter().any(is_line_end) {
            let in_line = |byte: &u8| if is_line_end(byte) { b' ' } else { *byte };
            self.bulk(&digits.iter().map(in_line).collect::<Vec<u8>>());
        } else {
            self.bulk(digits);
        }
    }

    /// Text for a human and its format (`txt`, `mkd`). In RESP2 a bulk string without the format.
    pub fn verbatim(&mut self, format: &[u8; 3], text: &[u8]) {
        if self.is_resp3() {
            if !self.out.reserve(text.len() + HEADER_LEN_MAX + 6) {
                return;
            }
            let tail = &mut self.out.tail;
            header(tail, b'=', text.len() + 4);
            tail.extend_from_slice(format);
            tail.push(b':');
            tail.extend_from_slice(text);
            tail.extend_from_slice(b"\r\n");
        } else {
            self.bulk(text);
        }
    }

    /// A double with up to 17 significant digits, as Redis 7.0 answers. In RESP2 a bulk string.
    pub fn double(&mut self, value: f64) {
        self.double_text(&number::format_double_17g(value));
    }

    /// A double given as decimal text (INCRBYFLOAT's arithmetic, GEODIST): in RESP3 a double, in
    /// RESP2 a bulk string.
    pub fn double_text(&mut self, text: &[u8]) {
        if self.is_resp3() { self.line(b',', text) } else { self.bulk(text) }
    }

    /// Starts an array whose length is given to [`ReplyWriter::finish`].
    pub fn defer_array(&mut self) -> Deferred {
        self.defer(b'*', 1)
    }

    /// Starts a map; its length in pairs is given to [`ReplyWriter::finish`].
    pub fn defer_map(&mut self) -> Deferred {
        if self.is_resp3() { self.defer(b'%', 1) } else { self.defer(b'*', 2) }
    }

    /// Starts a set whose length is given to [`ReplyWriter::finish`].
    pub fn defer_set(&mut self) -> Deferred {
        let marker = if self.is_resp3() { b'~' } else { b'*' };
        self.defer(marker, 1)
    }

    fn defer(&mut self, marker: u8, factor: usize) -> Deferred {
        let mark = self.out.mark();
        // Room for one digit: most deferred lengths are small, and then the bytes after them need
        // no shift.
        self.raw(&[marker, b'0', b'\r', b'\n']);
        Deferred { mark, factor }
    }

    /// Removes a deferred aggregate and everything since.
    pub fn rewind(&mut self, deferred: Deferred) {
        self.out.truncate(deferred.mark);
    }

    /// Fills in the length of a deferred aggregate. A length of two or more digits shifts the bytes
    /// after it.
    pub fn finish(&mut self, deferred: Deferred, len: usize) {
        let Deferred { mark, factor } = deferred;
        if self.is_cut() {
            return;
        }
        let mut buffer = itoa::Buffer::new();
        let digits = buffer.format(len * factor).as_bytes();
        let in_tail = mark.chunk == self.out.chunks_sent + self.out.chunks.len();
        let place = mark.offset + 1;
        if let [digit] = digits {
            self.out.marked(mark)[place] = *digit;
            return;
        }
        self.out.marked(mark).splice(place..place + 1, digits.iter().copied());
        if !in_tail {
            self.out.chunks_len += digits.len() - 1;
        }
    }
}

/// The longest length line: marker, 20 digits, line end.
const HEADER_LEN_MAX: usize = 23;

/// Appends a length line.
#[inline]
fn header(out: &mut Vec<u8>, marker: u8, len: usize) {
    match len {
        0..10 => out.extend_from_slice(&[marker, b'0' + len as u8, b'\r', b'\n']),
        10..100 => {
            let (tens, units) = ((len / 10) as u8, (len % 10) as u8);
            out.extend_from_slice(&[marker, b'0' + tens, b'0' + units, b'\r', b'\n']);
        }
        _ => {
            out.push(marker);
            out.extend_from_slice(itoa::Buffer::new().format(len).as_bytes());
            out.extend_from_slice(b"\r\n");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn both(write: impl Fn(&mut ReplyWriter)) -> [String; 2] {
        [Protocol::Resp2, Protocol::Resp3].map(|protocol| {
            let mut out = OutputBuffer::default();
            write(&mut ReplyWriter::new(&mut out, protocol));
            String::from_utf8(out.to_vec()).expect("these replies are text")
        })
    }

    fn bulk_shared(reply: &mut ReplyWriter<'_>, bytes: &'static [u8]) {
        reply.header(b'$', bytes.len());
        reply.out.push_shared(Bytes::from_static(bytes));
        reply.raw(b"\r\n");
    }

    #[test]
    fn a_deferred_length_appears_where_it_was_begun() {
        for (len, text) in [(0, "0"), (9, "9"), (10, "10"), (12345, "12345")] {
            let replies = both(|reply| {
                reply.ok();
                let outer = reply.defer_array();
                bulk_shared(reply, b"shared");
                let inner = reply.defer_map();
                reply.integer(1);
                reply.finish(inner, len);
                let dropped = reply.defer_set();
                bulk_shared(reply, b"gone");
                reply.ok();
                reply.rewind(dropped);
                reply.finish(outer, len);
            });
            assert_eq!(
                replies,
                [
                    format!("+OK\r\n*{text}\r\n$6\r\nshared\r\n*{}\r\n:1\r\n", 2 * len),
                    format!("+OK\r\n*{text}\r\n$6\r\nshared\r\n%{text}\r\n:1\r\n"),
                ]
            );
        }
    }

    #[test]
    fn what_passes_the_limit_is_dropped() {
        let mut out = OutputBuffer::default();
        out.set_limit(100_000);
        let mut reply = ReplyWriter::new(&mut out, Protocol::Resp3);
        let deferred = reply.defer_array();
        let mut written = 0;
        while !reply.is_cut() {
            reply.array(2);
            reply.bulk(&[b'x'; 100]);
            reply.double(0.5);
            written += 1;
        }
        assert!(written > 300, "{written} elements");
        for _ in 0..10_000 {
            reply.array(2);
            reply.bulk(&[b'x'; 100]);
            reply.integer(1 << 40);
        }
        reply.finish(deferred, 20_000);
        assert!(out.capacity() <= 200_000, "{} bytes", out.capacity());
        // There is no way back: the reply has a hole.
        out.set_limit(usize::MAX);
        assert!(out.is_cut());
    }

    #[test]
    fn each_version_of_the_protocol_has_its_own_forms() {
        let long = "x".repeat(12);
        let [resp2, resp3] = both(|reply| {
            reply.ok();
            reply.simple("a");
            reply.error("ERR no");
            reply.bulk(b"a\r\nb");
            reply.bulk(long.as_bytes());
            reply.bulk_integer(-5);
            reply.bulk_display(7);
            reply.null();
            reply.null_array();
            reply.integer(7);
            reply.integer(-1);
            reply.integer(i64::MIN);
            reply.array(10);
            reply.map(2);
            reply.set(100);
            reply.push(3);
            reply.boolean(true);
            reply.boolean(false);
            reply.double(0.1);
            reply.double(f64::NEG_INFINITY);
            reply.double_text(b"1.5");
            reply.big_number("123");
            reply.verbatim(b"txt", b"ab");
            if reply.attribute(1) {
                reply.simple("k");
                reply.simple("v");
            }
            reply.raw(b":0\r\n");
        });
        let same = format!(
            "+OK\r\n+a\r\n-ERR no\r\n$4\r\na\r\nb\r\n$12\r\n{long}\r\n$2\r\n-5\r\n$1\r\n7\r\n"
        );
        let integers = ":7\r\n:-1\r\n:-9223372036854775808\r\n*10\r\n";
        assert_eq!(
            resp2,
            format!(
                "{same}$-1\r\n*-1\r\n{integers}*4\r\n*100\r\n*3\r\n:1\r\n:0\r\n$19\r\n0.10000000000000001\r\n\
                 $4\r\n-inf\r\n$3\r\n1.5\r\n$3\r\n123\r\n$2\r\nab\r\n:0\r\n"
            )
        );
        assert_eq!(
            resp3,
            format!(
                "{same}_\r\n_\r\n{integers}%2\r\n~100\r\n>3\r\n#t\r\n#f\r\n,0.10000000000000001\r\n\
                 ,-inf\r\n,1.5\r\n(123\r\n=6\r\ntxt:ab\r\n|1\r\n+k\r\n+v\r\n:0\r\n"
            )
        );
    }

    /// A socket that takes a few bytes at a time.
    struct Trickle {
        taken: Vec<u8>,
        at_once: usize,
    }

    impl Write for Trickle {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.write_vectored(&[IoSlice::new(bytes)])
        }

        fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
            let before = self.taken.len();
            for piece in pieces {
                let room = self.at_once - (self.taken.len() - before);
                self.taken.extend_from_slice(&piece[..piece.len().min(room)]);
            }
            Ok(self.taken.len() - before)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Push(Vec<u8>),
        Share(Vec<u8>),
        Deferred { shared_inside: bool, len: usize },
        Write(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => prop::collection::vec(any::<u8>(), 0..20).prop_map(Step::Push),
            1 => prop::collection::vec(any::<u8>(), 0..20).prop_map(Step::Share),
            1 => (any::<bool>(), 0..200usize).prop_map(|(shared_inside, len)| Step::Deferred { shared_inside, len }),
            2 => (1..50usize).prop_map(Step::Write),
        ]
    }

    proptest! {
        /// Against one growing vector.
        #[test]
        fn bytes_leave_once_and_in_order(steps in prop::collection::vec(step(), 0..120)) {
            let mut out = OutputBuffer::default();
            let mut socket = Trickle { taken: Vec::new(), at_once: 0 };
            let mut model = Vec::new();
            for step in steps {
                match step {
                    Step::Push(bytes) => {
                        out.push(&bytes);
                        model.extend(bytes);
                    }
                    Step::Share(bytes) => {
                        out.push_shared(Bytes::from(bytes.clone()));
                        model.extend(bytes);
                    }
                    Step::Deferred { shared_inside, len } => {
                        let mut reply = ReplyWriter::new(&mut out, Protocol::Resp2);
                        let deferred = reply.defer_array();
                        if shared_inside {
                            bulk_shared(&mut reply, b"abc");
                        }
                        reply.finish(deferred, len);
                        model.extend(format!("*{len}\r\n").bytes());
                        model.extend(if shared_inside { b"$3\r\nabc\r\n".as_slice() } else { b"" });
                    }
                    Step::Write(at_once) => {
                        socket.at_once = at_once;
                        let before = socket.taken.len();
                        let written = out.write_to(&mut socket).expect("it takes at least one byte");
                        prop_assert_eq!(written, socket.taken.len() - before);
                    }
                }
                prop_assert_eq!(&[socket.taken.clone(), out.to_vec()].concat(), &model);
                prop_assert_eq!(out.len(), model.len() - socket.taken.len());
            }
            socket.at_once = usize::MAX;
            while !out.is_empty() {
                out.write_to(&mut socket).expect("it takes everything");
            }
            prop_assert_eq!(socket.taken, model);
            prop_assert_eq!(out.chunks.len(), 0);
        }
    }

    #[test]
    fn a_socket_that_takes_nothing_is_an_error() {
        let mut out = OutputBuffer::default();
        let mut socket = Trickle { taken: Vec::new(), at_once: 0 };
        assert_eq!(out.write_to(&mut socket).ok(), Some(0));
        out.push(b"abc");
        assert_eq!(
            out.write_to(&mut socket).map_err(|error| error.kind()),
            Err(io::ErrorKind::WriteZero)
        );
        assert_eq!(out.len(), 3);
    }

    #[test]
    fn a_client_that_never_catches_up_keeps_only_what_waits() {
        let mut out = OutputBuffer::default();
        let mut socket = Trickle { taken: Vec::new(), at_once: 1000 };
        out.push(&[b'x'; 5000]);
        for _ in 0..1000 {
            out.push(&[b'x'; 1000]);
            out.write_to(&mut socket).expect("it takes some");
        }
        assert_eq!((out.len(), socket.taken.len()), (5000, 1_000_000));
        assert!(out.capacity() < 100_000);
    }

    #[test]
    fn an_idle_buffer_owns_no_heap() {
        let mut out = OutputBuffer::default();
        out.give_storage(Vec::with_capacity(1000));
        out.push(b"abc");
        assert_eq!(out.take_storage().capacity(), 0);
        let mut socket = Trickle { taken: Vec::new(), at_once: 10 };
        out.write_to(&mut socket).expect("it takes them");
        let storage = out.take_storage();
        assert!(storage.capacity() >= 1000 && storage.is_empty() && out.capacity() == 0);
        out.give_storage(storage);
        assert!(out.capacity() >= 1000);
    }

    #[test]
    fn line_ends_never_leave_inside_a_line() {
        let replies = both(|reply| {
            reply.error("\r\nERR a\r\nb\n");
            reply.simple("a\nb\r");
        });
        assert_eq!(replies[0], "-ERR a  b\r\n+a b \r\n");
    }
}
