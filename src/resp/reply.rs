//! Writing replies: the only encoder of the protocol.
//!
//! A command calls a [`ReplyWriter`], which appends the encoded reply, in the client's protocol
//! version, to the client's [`OutputBuffer`]; once per turn the buffer is written to the socket.
//!
//! A client must get exactly one reply for each request; an aggregate's header has its length, and
//! the caller must write as many elements.

use super::number;
pub use super::output::OutputBuffer;
use super::output::{Bulk, Mark};
use crate::collections::lent::{LENT_MIN, Lender};

/// The client's version of the protocol. HELLO changes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    #[default]
    Resp2,
    Resp3,
}

/// Bytes that were not copied. Never empty.
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
            header(&mut self.out.own, marker, len);
        }
    }

    /// Appends encoded bytes.
    #[inline]
    pub fn raw(&mut self, bytes: &[u8]) {
        self.out.own.extend_from_slice(bytes);
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
        let own = &mut self.out.own;
        own.push(marker);
        let begin = own.len();
        own.extend_from_slice(text);
        for byte in &mut own[begin..] {
            if matches!(byte, b'\r' | b'\n') {
                *byte = b' ';
            }
        }
        own.extend_from_slice(b"\r\n");
    }

    /// A bulk string.
    #[inline]
    pub fn bulk(&mut self, bytes: &[u8]) {
        if !self.out.reserve(bytes.len() + HEADER_LEN_MAX + 2) {
            return;
        }
        let own = &mut self.out.own;
        header(own, b'$', bytes.len());
        own.extend_from_slice(bytes);
        own.extend_from_slice(b"\r\n");
    }

    /// A bulk string of `len` bytes, from its pieces.
    pub fn bulk_pieces<'b>(&mut self, len: usize, pieces: impl Iterator<Item = &'b [u8]>) {
        if !self.out.reserve(len + HEADER_LEN_MAX + 2) {
            return;
        }
        let own = &mut self.out.own;
        header(own, b'$', len);
        pieces.for_each(|piece| own.extend_from_slice(piece));
        own.extend_from_slice(b"\r\n");
    }

    /// A bulk string, which is lent if that is better than to copy it.
    #[inline]
    pub fn bulk_or_lent<'b>(&mut self, bytes: &'b [u8], lender: &mut Lender<'b, '_>) {
        match bytes.len() < LENT_MIN {
            true => self.bulk(bytes),
            false => self.bulk_lent(bytes.len(), [bytes].into_iter(), lender),
        }
    }

    /// A bulk string of `len` bytes, from its pieces, which are lent where that is better than to
    /// copy them.
    pub fn bulk_lent<'b>(
        &mut self,
        len: usize,
        pieces: impl Iterator<Item = &'b [u8]>,
        lender: &mut Lender<'b, '_>,
    ) {
        if !self.out.borrows {
            return self.bulk_pieces(len, pieces);
        }
        if !self.out.has_room(len + HEADER_LEN_MAX + 2) {
            return;
        }
        header(&mut self.out.own, b'$', len);
        for piece in pieces {
            match lender.lend(piece) {
                Some(lent) => self.out.push_foreign(Bulk::Lent(lent)),
                None => self.out.own.extend_from_slice(piece),
            }
        }
        self.out.own.extend_from_slice(b"\r\n");
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
            let own = &mut self.out.own;
            own.push(b':');
            own.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
            own.extend_from_slice(b"\r\n");
        }
    }

    /// An integer given as text.
    #[inline]
    pub fn integer_text(&mut self, text: &[u8]) {
        let own = &mut self.out.own;
        own.reserve(text.len() + 3);
        own.push(b':');
        own.extend_from_slice(text);
        own.extend_from_slice(b"\r\n");
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
            let own = &mut self.out.own;
            header(own, b'=', text.len() + 4);
            own.extend_from_slice(format);
            own.push(b':');
            own.extend_from_slice(text);
            own.extend_from_slice(b"\r\n");
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
        // After the marker.
        self.out.replace_byte(mark, 1, digits);
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
    use bytes::Bytes;

    use super::*;

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

    #[test]
    fn line_ends_never_leave_inside_a_line() {
        let replies = both(|reply| {
            reply.error("\r\nERR a\r\nb\n");
            reply.simple("a\nb\r");
        });
        assert_eq!(replies[0], "-ERR a  b\r\n+a b \r\n");
    }
}
