//! A client's pending output.
//!
//! Nearly all replies are copied to one growing vector; a large value for many clients is shared,
//! and a large stored value is lent ([`Lent`]):
//!
//! ```text
//!   own:      | $4096 CR LF | CR LF $5000 CR LF | CR LF :1 CR LF |
//!   foreign:     4096 bytes ^        5000 bytes ^                   each with its place in `own`
//! ```
//!
//! A buffer may have a limit ([`OutputBuffer::set_limit`]), as a short request can ask for a reply
//! of any length. Bytes beyond it are dropped, and the buffer is cut: invalid, never to be sent.
//!
//! Does not know clients, sockets, or the sources of limits.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io::{self, IoSlice, Write};
use std::ops::Deref;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::collections::lent::{Lent, LentBytes};

/// Pieces in one vectored write. Linux refuses more than 1024 (IOV_MAX); few are needed.
const PIECES_MAX: usize = 64;

/// The most bytes after which another vectored write follows in the same turn.
const WRITE_AGAIN_MAX: usize = 256 * 1024;

/// Sent own bytes at which the rest is moved to the front.
const COMPACT_MIN: usize = 16 * 1024;

#[derive(Debug)]
pub(super) enum Bulk {
    Shared(Bytes),
    Lent(Lent),
}

impl Bulk {
    #[inline]
    fn len(&self) -> usize {
        match self {
            Bulk::Shared(bytes) => bytes.len(),
            Bulk::Lent(lent) => lent.size(),
        }
    }

    fn bytes(&self, from: usize) -> Piece<'_> {
        match self {
            Bulk::Shared(bytes) => Piece::Plain(&bytes[from..]),
            Bulk::Lent(lent) => Piece::Lent(lent.bytes(from)),
        }
    }
}

/// Foreign bytes, with the offset of the own bytes that follow them.
#[derive(Debug)]
struct Foreign {
    at: usize,
    bulk: Bulk,
}

/// Adjacent pending bytes.
#[derive(Debug)]
pub enum Piece<'a> {
    Plain(&'a [u8]),
    Lent(LentBytes<'a>),
}

impl Deref for Piece<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Piece::Plain(bytes) => bytes,
            Piece::Lent(bytes) => bytes,
        }
    }
}

/// The pending bytes of an output, see [`OutputBuffer::pieces`].
pub struct Pieces<'a> {
    output: &'a OutputBuffer,
    /// Where the own bytes continue.
    own_at: usize,
    /// The number of the next foreign piece.
    next: usize,
    /// Sent bytes of that one.
    sent: usize,
}

impl<'a> Iterator for Pieces<'a> {
    type Item = Piece<'a>;

    #[inline]
    fn next(&mut self) -> Option<Piece<'a>> {
        let foreign = self.output.foreign.get(self.next);
        let end = foreign.map_or(self.output.own.len(), |foreign| foreign.at);
        if self.own_at < end {
            let own = &self.output.own[self.own_at..end];
            self.own_at = end;
            return Some(Piece::Plain(own));
        }
        self.next += 1;
        Some(foreign?.bulk.bytes(std::mem::take(&mut self.sent)))
    }
}

/// Pending output of one client. A new one owns no heap memory.
#[derive(Debug)]
pub struct OutputBuffer {
    /// Where replies are appended.
    pub(super) own: Vec<u8>,
    /// Sent bytes of `own`.
    own_sent: usize,
    foreign: VecDeque<Foreign>,
    /// Sent bytes of the first of `foreign`; less than its length.
    foreign_sent: usize,
    /// Bytes of `foreign` that are to be sent.
    foreign_left: usize,
    /// Limit in bytes, checked whenever `own` has to grow; 0 after something was dropped.
    limit: usize,
    /// Whether stored values may be lent to it.
    pub(super) borrows: bool,
}

impl Default for OutputBuffer {
    fn default() -> Self {
        OutputBuffer {
            own: Vec::new(),
            own_sent: 0,
            foreign: VecDeque::new(),
            foreign_sent: 0,
            foreign_left: 0,
            limit: usize::MAX,
            borrows: false,
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
        self.foreign = VecDeque::new();
        std::mem::take(&mut self.own)
    }

    /// Gives an empty buffer this storage, or drops the storage if the buffer has its own.
    pub fn give_storage(&mut self, mut storage: Vec<u8>) {
        if self.own.capacity() == 0 {
            storage.clear();
            self.own = storage;
        }
    }

    /// Lets stored values be lent to this buffer from now on: for one that is to be written soon.
    pub fn borrow_values(&mut self) {
        self.borrows = true;
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

    /// Reserves `more` own bytes. False: that exceeds the limit.
    #[inline]
    pub(super) fn reserve(&mut self, more: usize) -> bool {
        self.own.capacity() - self.own.len() >= more || self.grow(more)
    }

    #[cold]
    fn grow(&mut self, more: usize) -> bool {
        if self.has_room(more) {
            self.own.reserve(more);
        }
        !self.is_cut()
    }

    /// Whether `more` bytes are within the limit; if not, the buffer is cut.
    pub(super) fn has_room(&mut self, more: usize) -> bool {
        if self.len().saturating_add(more) > self.limit {
            self.limit = 0;
        }
        !self.is_cut()
    }

    /// Bytes to be sent.
    pub fn len(&self) -> usize {
        self.foreign_left + self.own.len() - self.own_sent
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of heap memory, for clients' memory limits. Foreign bytes count fully.
    pub fn capacity(&self) -> usize {
        self.own.capacity() + self.foreign_left + self.foreign_sent
    }

    /// Appends bytes that are encoded already.
    #[inline]
    pub fn push(&mut self, bytes: &[u8]) {
        self.own.extend_from_slice(bytes);
    }

    /// Appends bytes without copying them. Worth it from some KiB on: each piece costs the kernel
    /// an iovec.
    pub fn push_shared(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.push_foreign(Bulk::Shared(bytes));
        }
    }

    pub(super) fn push_foreign(&mut self, bulk: Bulk) {
        self.foreign_left += bulk.len();
        self.foreign.push_back(Foreign { at: self.own.len(), bulk });
    }

    /// Appends another buffer's pending bytes; if that one was cut, this one becomes cut.
    pub fn append(&mut self, other: &OutputBuffer) {
        if other.is_cut() {
            self.limit = 0;
        }
        for piece in other.pieces() {
            self.push(&piece);
        }
    }

    /// The pending bytes, in order, in pieces.
    pub fn pieces(&self) -> Pieces<'_> {
        Pieces { output: self, own_at: self.own_sent, next: 0, sent: self.foreign_sent }
    }

    /// The pending bytes, in one piece: copied only if they are in several.
    pub fn whole(&self) -> Cow<'_, [u8]> {
        match self.foreign.is_empty() {
            true => Cow::Borrowed(&self.own[self.own_sent..]),
            false => Cow::Owned(self.to_vec()),
        }
    }

    /// The pending bytes, copied only if they are in several pieces.
    pub fn into_vec(mut self) -> Vec<u8> {
        match self.foreign.is_empty() && self.own_sent == 0 {
            true => std::mem::take(&mut self.own),
            false => self.to_vec(),
        }
    }

    /// A copy of the pending bytes. For tests and for replies that are parsed again.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len());
        self.pieces().for_each(|piece| bytes.extend_from_slice(&piece));
        bytes
    }

    /// Writes as much as the socket takes: with one `write` if the bytes are in a single piece,
    /// with `writev` otherwise, which is repeated if there are more pieces than one call takes.
    /// Returns the bytes written, which are removed. Errors are the socket's (`WouldBlock`,
    /// `Interrupted` ...), with the buffer unchanged; a socket that takes nothing is `WriteZero`.
    pub fn write_to(&mut self, socket: &mut impl Write) -> io::Result<usize> {
        if self.is_empty() {
            return Ok(0);
        }
        if self.foreign.is_empty() {
            let written = socket.write(&self.own[self.own_sent..])?;
            return self.written(written);
        }
        let mut sum = 0;
        loop {
            let (result, offered) = self.write_pieces(socket);
            match result.and_then(|written| self.written(written)) {
                Ok(written) => {
                    sum += written;
                    if written < offered || self.is_empty() || sum > WRITE_AGAIN_MAX {
                        return Ok(sum);
                    }
                }
                // The next write will meet it again.
                Err(_) if sum > 0 => return Ok(sum),
                Err(error) => return Err(error),
            }
        }
    }

    /// Writes the first pieces. Returns also the number of bytes that were offered to the socket.
    fn write_pieces(&self, socket: &mut impl Write) -> (io::Result<usize>, usize) {
        let pieces: SmallVec<[Piece<'_>; PIECES_MAX]> = self.pieces().take(PIECES_MAX).collect();
        let slices: SmallVec<[IoSlice<'_>; PIECES_MAX]> =
            pieces.iter().map(|piece| IoSlice::new(piece)).collect();
        let offered = slices.iter().map(|slice| slice.len()).sum();
        (socket.write_vectored(&slices), offered)
    }

    fn written(&mut self, count: usize) -> io::Result<usize> {
        if count == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.advance(count);
        Ok(count)
    }

    /// Removes the first `count` pending bytes.
    fn advance(&mut self, mut count: usize) {
        while let Some(first) = self.foreign.front() {
            let own = count.min(first.at - self.own_sent);
            self.own_sent += own;
            count -= own;
            // Nothing of it is sent before all own bytes that come first.
            let left = first.bulk.len() - self.foreign_sent;
            let sent = count.min(left);
            self.foreign_left -= sent;
            if sent < left {
                self.foreign_sent += sent;
                return self.compact();
            }
            count -= sent;
            self.foreign_sent = 0;
            self.foreign.pop_front();
        }
        self.own_sent += count;
        if self.own_sent >= self.own.len() {
            self.own.clear();
            self.own_sent = 0;
        } else {
            self.compact();
        }
    }

    /// Drops sent own bytes if they are many. Otherwise a client that never catches up would keep
    /// everything it was ever sent.
    fn compact(&mut self) {
        if self.own_sent >= COMPACT_MIN && self.own_sent >= self.own.len() / 2 {
            self.own.drain(..self.own_sent);
            self.foreign.iter_mut().for_each(|foreign| foreign.at -= self.own_sent);
            self.own_sent = 0;
        }
    }

    /// Removes all pending bytes; keeps the storage of own bytes.
    pub fn clear(&mut self) {
        self.own.clear();
        self.foreign.clear();
        (self.own_sent, self.foreign_sent, self.foreign_left) = (0, 0, 0);
    }

    /// Lowers the limit to `bytes`, if it is higher.
    pub fn lower_limit(&mut self, bytes: usize) {
        self.limit = self.limit.min(bytes.max(1));
    }

    pub(super) fn mark(&self) -> Mark {
        Mark { foreign: self.foreign.len(), own: self.own.len() }
    }

    /// Removes everything after a mark.
    pub(super) fn truncate(&mut self, mark: Mark) {
        for foreign in self.foreign.drain(mark.foreign..) {
            self.foreign_left -= foreign.bulk.len();
        }
        self.own.truncate(mark.own);
    }

    /// Replaces the own byte at an offset after a mark by others.
    pub(super) fn replace_byte(&mut self, mark: Mark, offset: usize, bytes: &[u8]) {
        let at = mark.own + offset;
        if let [byte] = bytes {
            self.own[at] = *byte;
            return;
        }
        self.own.splice(at..at + 1, bytes.iter().copied());
        self.foreign.range_mut(mark.foreign..).for_each(|foreign| foreign.at += bytes.len() - 1);
    }
}

/// A position in an [`OutputBuffer`], valid until bytes are sent or dropped.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    /// The number of foreign pieces before it.
    foreign: usize,
    /// The number of own bytes before it.
    own: usize,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::resp::reply::{Protocol, ReplyWriter};

    fn bulk_shared(reply: &mut ReplyWriter<'_>, bytes: &'static [u8]) {
        reply.raw(format!("${}\r\n", bytes.len()).as_bytes());
        reply.output().push_shared(Bytes::from_static(bytes));
        reply.raw(b"\r\n");
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
        TakenBack { shared_first: bool },
        Write(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => prop::collection::vec(any::<u8>(), 0..20).prop_map(Step::Push),
            // So that sent bytes are dropped.
            1 => (COMPACT_MIN / 2..2 * COMPACT_MIN).prop_map(|len| Step::Push(vec![b'l'; len])),
            1 => any::<bool>().prop_map(|shared_first| Step::TakenBack { shared_first }),
            1 => (COMPACT_MIN / 2..2 * COMPACT_MIN).prop_map(Step::Write),
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
                    Step::TakenBack { shared_first } => {
                        let mut reply = ReplyWriter::new(&mut out, Protocol::Resp2);
                        let begun = reply.begin();
                        if shared_first {
                            reply.output().push_shared(Bytes::from_static(b"gone"));
                        }
                        bulk_shared(&mut reply, b"gone too");
                        reply.take_back(begun);
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
            prop_assert_eq!(out.foreign.len(), 0);
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
}
