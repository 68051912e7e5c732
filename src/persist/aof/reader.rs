//! Reading one of the append-only file's files: its requests, and how it ends.
//!
//! ```text
//! *3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n     a request; every line end is checked
//! #TS:1700000000\r\n                            an annotation, between requests only
//! ```
//!
//! Given a source and its size in bytes, the reader returns requests as ranges of its buffer, and
//! last an [`End`]. The buffer grows by a declared length only if the file has that many bytes; a
//! length beyond the file's end is detected without reading.
//!
//! After a crash a file may end at any byte. Its valid part is everything before the incomplete
//! request, or before a MULTI without EXEC ([`End::valid_up_to`]). NULs from some byte of a request
//! to the end are left by file systems that recorded the file's length but lost its data. Anything
//! else is damage. An argument cut short looks like one with a damaged length: as in Redis, it
//! counts as cut short.
//!
//! Knows no commands except MULTI and EXEC; the caller decides whether to truncate.

use std::fmt;
use std::io::{self, Read};

use memchr::memchr;

use crate::resp::Range;
use crate::resp::request::REQUEST_BYTES_MAX;

/// Bytes read at once.
const CHUNK_BYTES: usize = 256 << 10;
/// The longest line with a count or length. Unit: bytes.
const LENGTH_LINE_MAX: usize = 32;
/// The longest annotation. Unit: bytes. Source: `AOF_ANNOTATION_LINE_MAX_LEN` of Redis 7.0.15.
const ANNOTATION_MAX: usize = 1024;

/// A request, in the reader's buffer.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The buffer that `args` are ranges of.
    pub buf: &'a [u8],
    /// At least one.
    pub args: &'a [Range],
    /// Its offset in the file.
    pub offset: u64,
    /// The offset of its end.
    pub end: u64,
    /// Whether it is in a transaction, MULTI and EXEC included: it must only be applied when EXEC
    /// comes.
    pub in_transaction: bool,
}

impl<'a> Request<'a> {
    /// Its arguments.
    pub fn arguments(&self) -> impl Iterator<Item = &'a [u8]> {
        let buf = self.buf;
        self.args.iter().map(move |arg| arg.of(buf))
    }
}

/// The result of [`Reader::next`].
#[derive(Debug)]
pub enum Item<'a> {
    Request(Request<'a>),
    Annotation(Annotation),
    End(End),
}

/// A line that begins with `#`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Annotation {
    /// Its offset in the file.
    pub offset: u64,
    /// The end of the valid part before it: `offset`, or the start of the transaction that it is
    /// in.
    pub valid_up_to: u64,
    pub kind: AnnotationKind,
}

/// The content of an annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnnotationKind {
    /// When the commands after it ran, in seconds since 1970.
    Time(i64),
    /// `#TS:` without a valid time.
    BrokenTime,
    Other,
}

/// The end of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    pub tail: Tail,
    /// The end of the valid part: complete requests and transactions.
    pub valid_up_to: u64,
    /// Bytes of the file.
    pub size: u64,
    /// The line where reading stopped, from 1, without annotations: as `redis-check-aof` counts.
    pub line: u64,
}

/// How a file ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tail {
    /// After a request, outside of a transaction.
    Clean,
    /// Within a request.
    Cut(Fault),
    /// After a request, within a transaction.
    OpenTransaction,
    /// With NULs instead of the rest of a request.
    Nuls(Fault),
    /// Invalid bytes that are not at the end.
    Damage(Fault),
}

/// A fault, and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub kind: FaultKind,
    /// The offset of the faulty line or argument in the file.
    pub field_at: u64,
    /// The offset of the first wrong byte.
    pub at: u64,
}

/// A kind of fault. Displays as the text of `redis-check-aof`, if it has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The file ends where a line should begin.
    MissingLine,
    /// The file ends within a line; the bytes after its digits.
    ShortLine([u8; 2]),
    /// The file ends within an argument. In bytes, line end included.
    ShortArgument {
        expected: u64,
        got: u64,
    },
    /// A line begins with a wrong byte.
    Prefix {
        expected: u8,
        got: u8,
    },
    /// Neither a request nor an annotation.
    NotARequest(u8),
    /// Two bytes instead of CR and LF.
    LineEnd([u8; 2]),
    /// A count or length that is no number, or out of range.
    Number,
    LongRequest,
    LongAnnotation,
    NestedMulti,
    ExecWithoutMulti,
}

impl FaultKind {
    /// Whether a NUL stands where something else belongs, as in a hole.
    pub fn is_nul(&self) -> bool {
        matches!(
            self,
            FaultKind::Prefix { got: 0, .. }
                | FaultKind::NotARequest(0)
                | FaultKind::LineEnd([0, _])
        )
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FaultKind::MissingLine => f.write_str("Reached EOF where a line was expected"),
            FaultKind::ShortLine([a, b]) | FaultKind::LineEnd([a, b]) => {
                write!(f, "Expected \\r\\n, got: {a:02x}{b:02x}")
            }
            FaultKind::ShortArgument { expected, got } => {
                write!(f, "Expected to read {expected} bytes, got {got} bytes")
            }
            FaultKind::Prefix { expected, got } => {
                let (expected, got) = (*expected as char, got.escape_ascii());
                write!(f, "Expected prefix '{expected}', got: '{got}'")
            }
            FaultKind::NotARequest(got) => {
                write!(f, "Expected prefix '*', got: '{}'", got.escape_ascii())
            }
            FaultKind::Number => f.write_str("Expected a count or a length in its range"),
            FaultKind::LongRequest => f.write_str("Request longer than 4294967295 bytes"),
            FaultKind::LongAnnotation => f.write_str("Annotation without an end"),
            FaultKind::NestedMulti => f.write_str("Unexpected MULTI"),
            FaultKind::ExecWithoutMulti => f.write_str("Unexpected EXEC"),
        }
    }
}

/// See the module.
#[derive(Debug)]
pub struct Reader<R> {
    source: R,
    /// Bytes of the file.
    size: u64,
    /// The bytes from `start` on are read but not consumed.
    buf: Vec<u8>,
    start: usize,
    /// The offset of `buf[start]` in the file.
    offset: u64,
    args: Vec<Range>,
    /// In an incomplete request: its next line's index in `buf`, and the number of arguments to
    /// come.
    resume: Option<(usize, u64)>,
    /// Bytes missing of an incomplete argument.
    missing: usize,
    /// The offset of an open transaction's MULTI.
    multi: Option<u64>,
    line: u64,
    /// Set at the end of the file.
    end: Option<End>,
}

/// The result of an attempt to parse a request.
enum Attempt {
    Request,
    Annotation(AnnotationKind),
    NeedsMore,
    Stopped(Fault, IsCut),
}

/// The fault is that the file ends.
type IsCut = bool;

/// Why a line has no number.
enum LineFault {
    NeedsMore,
    Fault(Fault, IsCut),
}

impl<R: Read> Reader<R> {
    /// Reads from `source`, which is at `offset` of a file of `size` bytes; bytes appended later
    /// are ignored.
    pub fn new(source: R, offset: u64, size: u64) -> Self {
        Reader {
            source,
            size,
            buf: Vec::new(),
            start: 0,
            offset,
            args: Vec::new(),
            resume: None,
            missing: 0,
            multi: None,
            line: 1,
            end: None,
        }
    }

    /// Counts lines from `line`, as `redis-check-aof` counts through all files.
    #[must_use]
    pub fn counting_lines_from(mut self, line: u64) -> Self {
        self.line = line;
        self
    }

    /// The next request or annotation, or the end, which is then returned again each time. Errors:
    /// those of reading.
    #[expect(clippy::should_implement_trait, reason = "what it returns borrows the buffer")]
    pub fn next(&mut self) -> io::Result<Item<'_>> {
        if let Some(end) = &self.end {
            return Ok(Item::End(end.clone()));
        }
        self.args.clear();
        loop {
            if self.offset == self.size {
                let tail = if self.multi.is_some() { Tail::OpenTransaction } else { Tail::Clean };
                return Ok(self.finish(tail));
            }
            match self.attempt() {
                Attempt::NeedsMore => self.fill()?,
                Attempt::Annotation(kind) => {
                    let offset = self.offset;
                    let valid_up_to = self.multi.unwrap_or(offset);
                    self.consume(self.annotation_len());
                    return Ok(Item::Annotation(Annotation { offset, valid_up_to, kind }));
                }
                Attempt::Request => break,
                Attempt::Stopped(fault, is_cut) => {
                    let tail = if is_cut {
                        Tail::Cut(fault)
                    } else if self.only_nuls_from(fault.at)? {
                        Tail::Nuls(fault)
                    } else {
                        Tail::Damage(fault)
                    };
                    return Ok(self.finish(tail));
                }
            }
        }
        let (at, _) = self.resume.take().unwrap_or_default();
        let (is_multi, is_exec) = (self.is_command(b"MULTI"), self.is_command(b"EXEC"));
        if is_multi && self.multi.is_some() || is_exec && self.multi.is_none() {
            let kind = if is_multi { FaultKind::NestedMulti } else { FaultKind::ExecWithoutMulti };
            let fault = Fault { kind, field_at: self.offset, at: self.offset };
            return Ok(self.finish(Tail::Damage(fault)));
        }
        if is_multi {
            self.multi = Some(self.offset);
        }
        let in_transaction = self.multi.is_some();
        if is_exec {
            self.multi = None;
        }
        let (offset, begin) = (self.offset, self.start);
        self.consume(at - begin);
        Ok(Item::Request(Request {
            buf: &self.buf,
            args: &self.args,
            offset,
            end: self.offset,
            in_transaction,
        }))
    }

    /// Takes the buffer and the arguments' ranges of the request just returned by [`Reader::next`];
    /// the bytes read ahead are copied.
    pub fn take_last(&mut self) -> (Vec<u8>, Vec<Range>) {
        let after = self.buf.split_off(self.start);
        self.start = 0;
        (std::mem::replace(&mut self.buf, after), std::mem::take(&mut self.args))
    }

    fn is_command(&self, name: &[u8]) -> bool {
        self.args.first().is_some_and(|first| first.of(&self.buf).eq_ignore_ascii_case(name))
    }

    fn consume(&mut self, len: usize) {
        self.start += len;
        self.offset += len as u64;
    }

    fn finish(&mut self, tail: Tail) -> Item<'static> {
        let end = End {
            tail,
            valid_up_to: self.multi.unwrap_or(self.offset),
            size: self.size,
            line: self.line,
        };
        self.end = Some(end.clone());
        Item::End(end)
    }

    /// Bytes of the file not read yet.
    fn unread(&self) -> u64 {
        self.size - self.offset - (self.buf.len() - self.start) as u64
    }

    /// Reads more. Moves the incomplete request to the start of the buffer.
    fn fill(&mut self) -> io::Result<()> {
        if self.start > 0 {
            let moved = self.start;
            self.buf.drain(..moved);
            self.start = 0;
            for arg in &mut self.args {
                arg.start -= moved as u32;
            }
            if let Some((at, _)) = &mut self.resume {
                *at -= moved;
            }
        }
        // The rest of a long argument is read at once, as the file has it, and nothing after it,
        // which would have to be moved.
        let missing = std::mem::take(&mut self.missing);
        let piece = (missing.max(CHUNK_BYTES) as u64).min(self.unread());
        if missing > CHUNK_BYTES {
            self.buf.reserve_exact(piece as usize);
        }
        let got = (&mut self.source).take(piece).read_to_end(&mut self.buf)?;
        if (got as u64) < piece {
            // The file was truncated while it was read.
            self.size = self.offset + self.buf.len() as u64;
        }
        Ok(())
    }

    /// Whether all bytes from an offset in the buffer to the file's end are NULs.
    fn only_nuls_from(&mut self, at: u64) -> io::Result<bool> {
        let from = self.start + (at - self.offset) as usize;
        if self.buf.get(from..).unwrap_or_default().iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        let mut piece = vec![0; CHUNK_BYTES];
        let mut unread = self.unread();
        while unread > 0 {
            let wanted = unread.min(CHUNK_BYTES as u64) as usize;
            let got = self.source.read(&mut piece[..wanted])?;
            if piece[..got].iter().any(|byte| *byte != 0) {
                return Ok(false);
            }
            if got == 0 {
                break;
            }
            unread -= got as u64;
        }
        Ok(true)
    }

    fn offset_of(&self, at: usize) -> u64 {
        self.offset + (at - self.start) as u64
    }

    /// Parses the request or annotation at `start`, as far as it is in the buffer.
    fn attempt(&mut self) -> Attempt {
        let (mut at, mut remaining) = match self.resume {
            Some(resume) => resume,
            None => match self.buf.get(self.start) {
                None => return Attempt::NeedsMore,
                Some(b'#') => return self.annotation(),
                Some(b'*') => match self.number(self.start, b'*', 1) {
                    Ok((count, at)) => {
                        self.line += 1;
                        (at, count)
                    }
                    Err(LineFault::NeedsMore) => return Attempt::NeedsMore,
                    Err(LineFault::Fault(fault, is_cut)) => {
                        return Attempt::Stopped(fault, is_cut);
                    }
                },
                Some(other) => {
                    let kind = FaultKind::NotARequest(*other);
                    let fault = Fault { kind, field_at: self.offset, at: self.offset };
                    return Attempt::Stopped(fault, false);
                }
            },
        };
        while remaining > 0 {
            self.resume = Some((at, remaining));
            let (len, data) = match self.number(at, b'$', 0) {
                Ok(line) => line,
                Err(LineFault::NeedsMore) => return Attempt::NeedsMore,
                Err(LineFault::Fault(fault, is_cut)) => return Attempt::Stopped(fault, is_cut),
            };
            let data_at = self.offset_of(data);
            let in_file = self.size - data_at;
            let expected = len.saturating_add(2);
            if expected > in_file {
                self.line += 1;
                let kind = FaultKind::ShortArgument { expected, got: in_file };
                let fault = Fault { kind, field_at: data_at, at: self.size };
                return Attempt::Stopped(fault, true);
            }
            if data_at - self.offset + expected > REQUEST_BYTES_MAX {
                let fault = Fault { kind: FaultKind::LongRequest, field_at: data_at, at: data_at };
                return Attempt::Stopped(fault, false);
            }
            let end = data + len as usize;
            let Some(line_end) = self.buf.get(end..end + 2) else {
                self.missing = end + 2 - self.buf.len();
                return Attempt::NeedsMore;
            };
            if line_end != b"\r\n" {
                self.line += 1;
                let wrong = end + usize::from(line_end[0] == b'\r');
                let kind = FaultKind::LineEnd([line_end[0], line_end[1]]);
                let fault = Fault { kind, field_at: data_at, at: self.offset_of(wrong) };
                return Attempt::Stopped(fault, false);
            }
            self.args.push(Range { start: data as u32, len: len as u32 });
            self.line += 2;
            at = end + 2;
            remaining -= 1;
        }
        self.resume = Some((at, 0));
        Attempt::Request
    }

    /// The number on the line at `at`, at least `min`, and the index of the next line.
    fn number(&self, at: usize, prefix: u8, min: u64) -> Result<(u64, usize), LineFault> {
        let bytes = self.buf.get(at..).unwrap_or_default();
        let is_whole = self.unread() == 0;
        let field_at = self.offset_of(at);
        let fault = |kind, wrong: usize, is_cut| {
            let at = field_at + wrong as u64;
            Err(LineFault::Fault(Fault { kind, field_at, at }, is_cut))
        };
        match bytes.first() {
            None if is_whole => return fault(FaultKind::MissingLine, 0, true),
            None => return Err(LineFault::NeedsMore),
            Some(got) if *got != prefix => {
                return fault(FaultKind::Prefix { expected: prefix, got: *got }, 0, false);
            }
            Some(_) => {}
        }
        let (mut number, mut place) = (0u64, 1);
        while let Some(digit @ b'0'..=b'9') = bytes.get(place) {
            number = number.saturating_mul(10).saturating_add(u64::from(digit - b'0'));
            place += 1;
            if place > LENGTH_LINE_MAX {
                return fault(FaultKind::Number, place, false);
            }
        }
        match (bytes.get(place), bytes.get(place + 1)) {
            (Some(b'\r'), Some(b'\n')) if place > 1 => {}
            (first, second) if first.is_none_or(|byte| *byte == b'\r') && second.is_none() => {
                let got = [first.copied().unwrap_or(0), 0];
                return if is_whole {
                    fault(FaultKind::ShortLine(got), bytes.len(), true)
                } else {
                    Err(LineFault::NeedsMore)
                };
            }
            (Some(_), _) if place == 1 => return fault(FaultKind::Number, place, false),
            (first, second) => {
                let got = [first.copied().unwrap_or(0), second.copied().unwrap_or(0)];
                let wrong = place + usize::from(got[0] == b'\r');
                return fault(FaultKind::LineEnd(got), wrong, false);
            }
        }
        // A count of more arguments than the file has room for is detected at the file's end.
        if number < min || number > i64::MAX as u64 {
            return fault(FaultKind::Number, 1, false);
        }
        Ok((number, at + place + 2))
    }

    /// Length of the annotation at `start`, with its line end; everything in the buffer if it has
    /// none.
    fn annotation_len(&self) -> usize {
        let bytes = &self.buf[self.start..];
        memchr(b'\n', &bytes[..bytes.len().min(ANNOTATION_MAX)]).map_or(bytes.len(), |at| at + 1)
    }

    fn annotation(&self) -> Attempt {
        let bytes = &self.buf[self.start..];
        let window = &bytes[..bytes.len().min(ANNOTATION_MAX)];
        let Some(newline) = memchr(b'\n', window) else {
            let fault = |kind, wrong: usize| Fault {
                kind,
                field_at: self.offset,
                at: self.offset + wrong as u64,
            };
            return if bytes.len() >= ANNOTATION_MAX {
                // NULs instead of its end may begin anywhere in it.
                let nuls = window.iter().rev().take_while(|byte| **byte == 0).count();
                let wrong = window.len() - nuls.max(1);
                Attempt::Stopped(fault(FaultKind::LongAnnotation, wrong), false)
            } else if self.unread() == 0 {
                Attempt::Stopped(fault(FaultKind::ShortLine([0; 2]), bytes.len()), true)
            } else {
                Attempt::NeedsMore
            };
        };
        let Some(time) = window[..newline].strip_prefix(b"#TS:") else {
            return Attempt::Annotation(AnnotationKind::Other);
        };
        let seconds = time.strip_suffix(b"\r").and_then(crate::resp::number::parse_i64);
        Attempt::Annotation(seconds.map_or(AnnotationKind::BrokenTime, AnnotationKind::Time))
    }
}

/// An annotation of the time.
pub fn timestamp_annotation(unix_seconds: i64) -> Vec<u8> {
    format!("#TS:{unix_seconds}\r\n").into_bytes()
}

#[cfg(test)]
mod tests;
