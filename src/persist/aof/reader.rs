//! One file of the append-only file, read: bytes to requests, and at the end a verdict on its tail.
//!
//! ```text
//! *3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n     a request; every line end is checked
//! #TS:1700000000\r\n                            an annotation, between requests only
//! ```
//!
//! In comes something to read and its length in bytes; out go requests as places in the reader's buffer, and last an [`End`].
//! The buffer grows by what was read, and by a declared length only as far as the file has the bytes; a length beyond its end needs no
//! reading at all.
//!
//! A file may end at any byte, as the process or the machine may. What is whole is everything before the request that is cut,
//! or before the MULTI that has no EXEC ([`End::valid_up_to`]). NULs from some byte of a request to the end are what a file
//! system leaves whose length survived without its bytes. Anything else is damage. A cut inside an argument cannot be told from
//! a damaged length of it: Redis takes it for a cut, and so does this.
//!
//! Refuses to know: commands (but MULTI and EXEC), RDB, and which file may be cut.

use std::fmt;
use std::io::{self, Read};

use memchr::memchr;

use crate::resp::Range;

/// Read at once, in bytes.
const CHUNK_BYTES: usize = 256 << 10;
/// Longest line of a count or a length, in bytes.
const LENGTH_LINE_MAX: usize = 32;
/// Longest annotation, in bytes. Source: `AOF_ANNOTATION_LINE_MAX_LEN` of Redis 7.0.15.
const ANNOTATION_MAX: usize = 1024;
/// Longest request: places of arguments are 32 bits.
const REQUEST_BYTES_MAX: u64 = u32::MAX as u64;

/// A request, where it lies.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// What `args` are places in.
    pub buf: &'a [u8],
    /// One at least.
    pub args: &'a [Range],
    /// Its first byte in the file.
    pub offset: u64,
    /// The first byte behind it.
    pub end: u64,
    /// Whether it stands within MULTI and EXEC, these included: it counts only once EXEC has come.
    pub in_transaction: bool,
}

impl<'a> Request<'a> {
    /// Its arguments' bytes.
    pub fn arguments(&self) -> impl Iterator<Item = &'a [u8]> {
        let buf = self.buf;
        self.args.iter().map(move |arg| arg.of(buf))
    }
}

/// What [`Reader::next`] found.
#[derive(Debug)]
pub enum Item<'a> {
    Request(Request<'a>),
    Annotation(Annotation),
    End(End),
}

/// A line that begins with `#`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Annotation {
    /// Its first byte in the file.
    pub offset: u64,
    /// All before this is whole: `offset`, or where the transaction begins that it stands in.
    pub valid_up_to: u64,
    pub kind: AnnotationKind,
}

/// What an annotation tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnnotationKind {
    /// When the commands behind it ran, in seconds since 1970.
    Time(i64),
    /// It says `#TS:`, and then no time.
    BrokenTime,
    Other,
}

/// The verdict on a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// How it ends.
    pub tail: Tail,
    /// All before this offset is whole, and applied in full by who ran the requests up to here.
    pub valid_up_to: u64,
    /// Bytes of the file.
    pub size: u64,
    /// Lines up to where reading stopped, counted from 1, annotations not counted: as `redis-check-aof` does.
    pub line: u64,
}

/// How a file ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tail {
    /// Behind a request, outside of a transaction.
    Clean,
    /// In the midst of a request.
    Cut(Fault),
    /// Behind a request within a transaction.
    OpenTransaction,
    /// With NULs in place of the rest of a request.
    Nuls(Fault),
    /// Not there: what comes before is followed by bytes that are no request, and these by others.
    Damage(Fault),
}

/// What is wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub kind: FaultKind,
    /// Where the line or the argument begins that is at fault: bytes from the file's start.
    pub field_at: u64,
    /// The first byte that is wrong.
    pub at: u64,
}

/// See [`Fault`]. Displays as `redis-check-aof` tells it, where it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The file ends where a line should begin.
    NoLine,
    /// The file ends within a line; these bytes follow its digits.
    ShortLine([u8; 2]),
    /// The file ends within an argument of so many bytes, line end included, after so many.
    ShortArgument {
        expected: u64,
        got: u64,
    },
    /// A line begins with another byte than it must.
    Prefix {
        expected: u8,
        got: u8,
    },
    /// Neither a request nor an annotation.
    NoRequest(u8),
    /// Two bytes that should have been CR and LF.
    LineEnd([u8; 2]),
    /// No number, or one out of its range, where a count or a length should be.
    Number,
    LongRequest,
    LongAnnotation,
    NestedMulti,
    ExecWithoutMulti,
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FaultKind::NoLine => f.write_str("Reached EOF where a line was expected"),
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
            FaultKind::NoRequest(got) => {
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
    /// Bytes read and not consumed lie in `start..`.
    buf: Vec<u8>,
    start: usize,
    /// Where in the file `buf[start]` is.
    offset: u64,
    args: Vec<Range>,
    /// Within a request whose beginning was read: where its next line is in `buf`, and how many arguments are to come.
    resume: Option<(usize, u64)>,
    /// Bytes that an argument lacks whose beginning was read.
    missing: usize,
    /// The MULTI that is open.
    multi: Option<u64>,
    line: u64,
    /// Said once it is known, and again to whoever asks again.
    end: Option<End>,
}

/// How one attempt to parse a request ended.
enum Attempt {
    Request,
    Annotation(AnnotationKind),
    Wants,
    Stopped(Fault, IsCut),
}

type IsCut = bool;

/// Why a line is not a number.
enum LineFault {
    Wants,
    Fault(Fault, IsCut),
}

impl<R: Read> Reader<R> {
    /// Reads from `source`, which stands at `offset` of a file of `size` bytes; what grows behind that is not looked at.
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

    /// Counts lines on from `line`, as `redis-check-aof` does from file to file.
    #[must_use]
    pub fn counting_lines_from(mut self, line: u64) -> Self {
        self.line = line;
        self
    }

    /// Bytes from the file's start that were consumed: for telling progress.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The next request or annotation, or the end, which stays the answer from then on. Errors are those of reading.
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
                Attempt::Wants => self.fill()?,
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
        let (begins, ends) = (self.is_command(b"MULTI"), self.is_command(b"EXEC"));
        if begins && self.multi.is_some() || ends && self.multi.is_none() {
            let kind = if begins { FaultKind::NestedMulti } else { FaultKind::ExecWithoutMulti };
            let fault = Fault { kind, field_at: self.offset, at: self.offset };
            return Ok(self.finish(Tail::Damage(fault)));
        }
        if begins {
            self.multi = Some(self.offset);
        }
        let in_transaction = self.multi.is_some();
        if ends {
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

    /// The bytes and the places of the arguments of the request that [`Reader::next`] has just returned, to be kept; what was
    /// read behind it is copied.
    pub fn take_last(&mut self) -> (Vec<u8>, Vec<Range>) {
        let behind = self.buf.split_off(self.start);
        self.start = 0;
        (std::mem::replace(&mut self.buf, behind), std::mem::take(&mut self.args))
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

    /// Bytes of the file that are not in the buffer yet.
    fn unread(&self) -> u64 {
        self.size - self.offset - (self.buf.len() - self.start) as u64
    }

    /// Reads a piece more. The arguments found so far are kept by keeping the request where it is in relation to `start`.
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
        // What is missing of a long argument is read at once, for the file has it, and no more: what lies behind is moved.
        let missing = std::mem::take(&mut self.missing);
        let piece = (missing.max(CHUNK_BYTES) as u64).min(self.unread());
        if missing > CHUNK_BYTES {
            self.buf.reserve_exact(piece as usize);
        }
        let got = (&mut self.source).take(piece).read_to_end(&mut self.buf)?;
        if (got as u64) < piece {
            // Somebody has cut the file meanwhile.
            self.size = self.offset + self.buf.len() as u64;
        }
        Ok(())
    }

    /// Whether all bytes from an offset, which was read, to the file's end are NULs.
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

    /// Parses as much as the buffer holds of what begins at `start`.
    fn attempt(&mut self) -> Attempt {
        let (mut at, mut remaining) = match self.resume {
            Some(resume) => resume,
            None => match self.buf.get(self.start) {
                None => return Attempt::Wants,
                Some(b'#') => return self.annotation(),
                Some(b'*') => match self.number(self.start, b'*', 1) {
                    Ok((count, at)) => {
                        self.line += 1;
                        (at, count)
                    }
                    Err(LineFault::Wants) => return Attempt::Wants,
                    Err(LineFault::Fault(fault, is_cut)) => {
                        return Attempt::Stopped(fault, is_cut);
                    }
                },
                Some(other) => {
                    let kind = FaultKind::NoRequest(*other);
                    let fault = Fault { kind, field_at: self.offset, at: self.offset };
                    return Attempt::Stopped(fault, false);
                }
            },
        };
        while remaining > 0 {
            self.resume = Some((at, remaining));
            let (len, data) = match self.number(at, b'$', 0) {
                Ok(line) => line,
                Err(LineFault::Wants) => return Attempt::Wants,
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
                return Attempt::Wants;
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

    /// The number on the line at `at`, not less than `least`, and where the next line begins.
    fn number(&self, at: usize, prefix: u8, least: u64) -> Result<(u64, usize), LineFault> {
        let bytes = self.buf.get(at..).unwrap_or_default();
        let is_whole = self.unread() == 0;
        let field_at = self.offset_of(at);
        let fault = |kind, wrong: usize, is_cut| {
            let at = field_at + wrong as u64;
            Err(LineFault::Fault(Fault { kind, field_at, at }, is_cut))
        };
        match bytes.first() {
            None if is_whole => return fault(FaultKind::NoLine, 0, true),
            None => return Err(LineFault::Wants),
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
                    Err(LineFault::Wants)
                };
            }
            (Some(_), _) if place == 1 => return fault(FaultKind::Number, place, false),
            (first, second) => {
                let got = [first.copied().unwrap_or(0), second.copied().unwrap_or(0)];
                let wrong = place + usize::from(got[0] == b'\r');
                return fault(FaultKind::LineEnd(got), wrong, false);
            }
        }
        // More arguments than the rest of the file has bytes for (5 each) are found out when it ends.
        if number < least || number > i64::MAX as u64 {
            return fault(FaultKind::Number, 1, false);
        }
        Ok((number, at + place + 2))
    }

    /// Length of the annotation at `start`, its line end included; all that is there if it has none.
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
                // NULs in place of its end may begin anywhere in it.
                let nuls = window.iter().rev().take_while(|byte| **byte == 0).count();
                let wrong = window.len() - nuls.max(1);
                Attempt::Stopped(fault(FaultKind::LongAnnotation, wrong), false)
            } else if self.unread() == 0 {
                Attempt::Stopped(fault(FaultKind::ShortLine([0; 2]), bytes.len()), true)
            } else {
                Attempt::Wants
            };
        };
        let Some(time) = window[..newline].strip_prefix(b"#TS:") else {
            return Attempt::Annotation(AnnotationKind::Other);
        };
        let seconds = time.strip_suffix(b"\r").and_then(crate::resp::number::parse_i64);
        Attempt::Annotation(seconds.map_or(AnnotationKind::BrokenTime, AnnotationKind::Time))
    }
}

/// The text of an annotation of time.
pub fn timestamp_annotation(unix_seconds: i64) -> Vec<u8> {
    format!("#TS:{unix_seconds}\r\n").into_bytes()
}

#[cfg(test)]
mod tests;
