//! Parsing requests: an incremental parser that copies nothing.
//!
//! Input: the bytes of one client, starting at a request. Output: the ranges of its arguments in
//! the same buffer. The buffer belongs to the caller; the parser only remembers its progress in an
//! incomplete request. Two forms:
//!
//! ```text
//! *2\r\n$3\r\nGET\r\n$1\r\nk\r\n      multibulk: a count, then length and bytes of each argument
//! GET "k\x41"\r\n                     inline: words and quoted strings up to the end of the line
//! ```
//!
//! Does not know commands, sockets, or how buffers grow. A declared length is checked against the
//! limits and never reserved.
//!
//! Lengths are followed by `\r` and one byte which is skipped unseen, and so are the two bytes
//! after an argument: Redis does so, and a stricter reading would refuse clients which it serves.
//! Unlike Redis, whose answer depends on how the bytes were cut into reads, an inline request over
//! the limit is always refused: any split gives the same requests.

use memchr::memchr2;

use super::number::{hex_value, is_space, parse_i64};

/// The longest length line (`*...` and `$...`) accepted, in bytes.
const LENGTH_LINE_MAX: usize = 64 * 1024;
/// Limits of an unauthenticated client: arguments, and bytes of one.
const UNAUTHENTICATED_ARGUMENTS_MAX: i64 = 10;
const UNAUTHENTICATED_BULK_MAX: u64 = 16 * 1024;
/// An incomplete request with fewer arguments than this is parsed again from its start, so that
/// most never allocate; one with more continues where it stopped, so that a huge one takes linear
/// time.
const REMEMBERED_ARGUMENTS_MIN: usize = 32;

/// An argument's range in the buffer, in bytes. A request is shorter than 4 GiB and begins near the
/// buffer's start: see [`Limits::request_bytes_max`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    pub start: u32,
    pub len: u32,
}

impl Range {
    /// The argument's bytes in the buffer it was found in.
    #[inline]
    pub fn of<'buf>(&self, buf: &'buf [u8]) -> &'buf [u8] {
        let start = self.start as usize;
        &buf[start..start + self.len as usize]
    }

    /// The words of a text, for tests: a blank separates two.
    #[cfg(test)]
    pub fn of_words(text: &str) -> Vec<Range> {
        let mut start = 0;
        let range = |word: &str| {
            let range = Range { start, len: word.len() as u32 };
            start += range.len + 1;
            range
        };
        text.split(' ').map(range).collect()
    }
}

/// The longest request of a file or of the primary, in bytes: ranges have 32 bits.
pub const REQUEST_BYTES_MAX: u64 = u32::MAX as u64;
/// The longest request of a client, in bytes. The request that replicates it may be longer, by a
/// time of 13 digits for each of its options.
pub const CLIENT_REQUEST_BYTES_MAX: u64 = REQUEST_BYTES_MAX - (16 << 20);

/// Limits of requests. The configured ones are for clients alone: a permitted request is in the AOF
/// and goes to replicas, and must be read there under any configuration.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Longest argument, in bytes. Source: `proto-max-bulk-len`.
    pub bulk_len_max: u64,
    /// Longest request, in bytes. Its start in the buffer and this length together must fit into 32
    /// bits.
    pub request_bytes_max: u64,
    /// Most arguments of a request.
    pub multibulk_max: i32,
    /// Whether the client has authenticated (or need not): otherwise 10 arguments of 16 KiB.
    pub authenticated: bool,
    /// Longest inline request without its line end, in bytes.
    pub inline_max: usize,
}

impl Limits {
    /// The limits for the primary and for files. A request must begin at the buffer's start.
    pub const TRUSTED: Limits = Limits {
        bulk_len_max: u64::MAX,
        request_bytes_max: REQUEST_BYTES_MAX,
        multibulk_max: i32::MAX,
        authenticated: true,
        inline_max: 64 << 10,
    };

    /// The limits for a client.
    pub fn of_client(bulk_len_max: u64, authenticated: bool) -> Self {
        let request_bytes_max = CLIENT_REQUEST_BYTES_MAX;
        Limits { bulk_len_max, request_bytes_max, authenticated, ..Limits::TRUSTED }
    }
}

/// Those of a client under the default configuration.
impl Default for Limits {
    fn default() -> Self {
        Limits::of_client(512 << 20, true)
    }
}

/// The result of [`Parser::next`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// A request; its arguments (one at least) were appended.
    Request,
    /// A blank line or a count of zero or less: consumed, nothing to run.
    Empty,
    /// More bytes are needed. Nothing was consumed or appended.
    Incomplete,
}

/// A protocol error. It is sent to the client, and the connection closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolError {
    InvalidMultibulkLength,
    TooBigMultibulkCount,
    TooBigBulkCount,
    /// The byte found instead of an argument's `$`.
    ExpectedDollar(u8),
    InvalidBulkLength,
    UnauthenticatedMultibulkLength,
    UnauthenticatedBulkLength,
    TooBigInline,
    UnbalancedQuotes,
}

impl ProtocolError {
    /// The error's text, without `-` and line end. Source: `networking.c` of Redis 7.0.15.
    pub fn text(&self) -> Vec<u8> {
        let what: &[u8] = match self {
            ProtocolError::InvalidMultibulkLength => b"invalid multibulk length",
            ProtocolError::TooBigMultibulkCount => b"too big mbulk count string",
            ProtocolError::TooBigBulkCount => b"too big bulk count string",
            ProtocolError::ExpectedDollar(got) => {
                &[b"expected '$', got '".as_slice(), &[*got], b"'"].concat()
            }
            ProtocolError::InvalidBulkLength => b"invalid bulk length",
            ProtocolError::UnauthenticatedMultibulkLength => b"unauthenticated multibulk length",
            ProtocolError::UnauthenticatedBulkLength => b"unauthenticated bulk length",
            ProtocolError::TooBigInline => b"too big inline request",
            ProtocolError::UnbalancedQuotes => b"unbalanced quotes in request",
        };
        [b"ERR Protocol error: ", what].concat()
    }
}

/// The progress in one client's incomplete request. 56 bytes; owns heap memory only in a request
/// with many arguments. All offsets count from the request's first byte, so the bytes may move
/// between calls.
#[derive(Debug, Default)]
pub struct Parser {
    /// Arguments found in a request that will be continued, relative to its first byte.
    found: Vec<Range>,
    /// Offset of its next length line; 0 if the request is parsed again from the start.
    resume_at: usize,
    /// Arguments still to come if `resume_at` is not 0.
    remaining: u32,
    wanted: usize,
    parsed: usize,
}

impl Parser {
    /// Parses one request from `buf` at `*pos`, appends its arguments to `args` and advances `*pos`
    /// past it.
    ///
    /// `Incomplete` changes neither `*pos` nor `args`: call again with the same bytes, which may
    /// have moved, and more after them, from the request's first byte. An error changes neither;
    /// the connection must be closed, and the same bytes fail again.
    ///
    /// Escapes in inline requests are decoded in place, so consumed bytes must not be parsed again.
    /// To keep a request for later, keep its arguments ([`encode`] makes a request of them).
    #[inline(always)] // once more than elsewhere, in the loop that parses what clients send
    pub fn next(
        &mut self,
        buf: &mut [u8],
        pos: &mut usize,
        args: &mut Vec<Range>,
        limits: &Limits,
    ) -> Result<Parsed, ProtocolError> {
        debug_assert!(
            *pos as u64 + limits.request_bytes_max <= u64::from(u32::MAX)
                || buf.len() <= u32::MAX as usize,
            "argument places are 32 bits"
        );
        if self.resume_at != 0 {
            return self.resume(buf, pos, args, limits);
        }
        let start = *pos;
        let before = args.len();
        let (count, line_len) = match short_length(buf, start, b'*') {
            Some(short) => short,
            None => match buf.get(start) {
                None => return self.wait_for(1, 0),
                Some(b'*') => match multibulk_count(&buf[start..], limits)? {
                    Some((count, line_len)) => (count.max(0) as usize, line_len),
                    None => return self.wait_for(1, 0),
                },
                Some(_) => return self.inline(buf, pos, args, limits),
            },
        };
        if count == 0 {
            *pos = start + line_len;
            return Ok(Parsed::Empty);
        }
        check_count(count as i64, limits)?;
        let mut cursor =
            Cursor { start, at: start + line_len, remaining: count as u32, waits_behind: start };
        match cursor.bulks(buf, 0, args, limits) {
            Ok(None) => {
                *pos = cursor.at;
                Ok(Parsed::Request)
            }
            Ok(Some(wanted)) => {
                if args.len() - before >= REMEMBERED_ARGUMENTS_MIN {
                    let place =
                        |arg: &Range| Range { start: arg.start - start as u32, len: arg.len };
                    self.found.extend(args[before..].iter().map(place));
                    self.resume_at = cursor.at - start;
                    self.remaining = cursor.remaining;
                }
                args.truncate(before);
                self.wait_for(wanted, cursor.waits_behind - start)
            }
            Err(error) => {
                args.truncate(before);
                Err(error)
            }
        }
    }

    /// Continues a request of many arguments.
    fn resume(
        &mut self,
        buf: &[u8],
        pos: &mut usize,
        args: &mut Vec<Range>,
        limits: &Limits,
    ) -> Result<Parsed, ProtocolError> {
        let start = *pos;
        let mut cursor = Cursor {
            start,
            at: start + self.resume_at,
            remaining: self.remaining,
            waits_behind: start,
        };
        if let Some(wanted) = cursor.bulks(buf, start as u32, &mut self.found, limits)? {
            self.resume_at = cursor.at - start;
            self.remaining = cursor.remaining;
            return self.wait_for(wanted, cursor.waits_behind - start);
        }
        args.extend(
            self.found.iter().map(|arg| Range { start: arg.start + start as u32, len: arg.len }),
        );
        *pos = cursor.at;
        self.reset();
        Ok(Parsed::Request)
    }

    /// Forgets the incomplete request: the next call starts a new one.
    pub fn reset(&mut self) {
        *self = Parser::default();
    }

    /// After `Incomplete`: the least number of further bytes that the request needs, from the
    /// incomplete argument's length. For sizing the next read; the length is only declared, so
    /// never reserve it.
    pub fn bytes_wanted(&self) -> usize {
        self.wanted
    }

    /// After `Incomplete`: the bytes of the request before the incomplete argument's data, with its
    /// length line.
    pub fn bytes_parsed(&self) -> usize {
        self.parsed
    }

    /// Whether progress in an incomplete request is remembered, so that parsing it again would cost
    /// more.
    pub fn is_resuming(&self) -> bool {
        self.resume_at != 0
    }

    /// Whether arguments of an incomplete request are remembered.
    pub fn is_within_request(&self) -> bool {
        self.resume_at != 0
    }

    fn wait_for(&mut self, wanted: usize, parsed: usize) -> Result<Parsed, ProtocolError> {
        self.wanted = wanted;
        self.parsed = parsed;
        Ok(Parsed::Incomplete)
    }

    #[cold]
    fn inline(
        &mut self,
        buf: &mut [u8],
        pos: &mut usize,
        args: &mut Vec<Range>,
        limits: &Limits,
    ) -> Result<Parsed, ProtocolError> {
        let start = *pos;
        let rest = &mut buf[start..];
        let window = rest.len().min(limits.inline_max.saturating_add(1));
        // Redis searches for the line end with strchr: after a NUL byte it finds none, and waits.
        let newline = match memchr2(b'\n', 0, &rest[..window]) {
            Some(at) if rest[at] == b'\n' => at,
            _ if rest.len() > limits.inline_max => return Err(ProtocolError::TooBigInline),
            _ => return self.wait_for(1, 0),
        };
        let line = match &mut rest[..newline] {
            [line @ .., b'\r'] => line,
            line => line,
        };
        let before = args.len();
        if let Err(unbalanced) = split_line(line, start, args) {
            args.truncate(before);
            // A partly decoded line might be accepted when parsed again.
            line.fill(b' ');
            line[0] = b'"';
            return Err(unbalanced);
        }
        *pos = start + newline + 1;
        Ok(if args.len() > before { Parsed::Request } else { Parsed::Empty })
    }
}

/// A position within a multibulk request.
struct Cursor {
    /// The request's first byte.
    start: usize,
    /// The next length line, or the request's end.
    at: usize,
    remaining: u32,
    /// If the bytes ended early: where the incomplete argument's data begins.
    waits_behind: usize,
}

impl Cursor {
    /// Appends the remaining arguments, relative to `base`, to `found`. If the bytes end early,
    /// returns the least number of further bytes, with the cursor at the incomplete argument.
    #[inline]
    fn bulks(
        &mut self,
        buf: &[u8],
        base: u32,
        found: &mut Vec<Range>,
        limits: &Limits,
    ) -> Result<Option<usize>, ProtocolError> {
        while self.remaining > 0 {
            let (len, line_len) = match short_length(buf, self.at, b'$') {
                Some(short) => short,
                None => match bulk_length(buf.get(self.at..).unwrap_or_default())? {
                    Some(long) => long,
                    None => {
                        self.waits_behind = self.at;
                        return Ok(Some(1));
                    }
                },
            };
            let data = self.at + line_len;
            let end = data + len + 2;
            // Checked here for both ways of reading the length: the limits must not depend on the
            // way.
            check_bulk_length(len as u64, limits)?;
            if (end - self.start) as u64 > limits.request_bytes_max {
                return Err(ProtocolError::InvalidBulkLength);
            }
            if end > buf.len() {
                self.waits_behind = data;
                return Ok(Some(end - buf.len()));
            }
            found.push(Range { start: data as u32 - base, len: len as u32 });
            self.at = end;
            self.remaining -= 1;
        }
        Ok(None)
    }
}

/// A length of up to five digits after `marker` at `at`, and its line's length. None if longer,
/// incomplete, wrong, or too near the buffer's end. One load of 8 bytes and no loop.
#[inline(always)]
fn short_length(buf: &[u8], at: usize, marker: u8) -> Option<(usize, usize)> {
    let word = u64::from_le_bytes(*buf.get(at..)?.first_chunk::<8>()?);
    // The names of the commonest commands. As a constant the length is predicted, and the next line
    // need not wait for it: 8.5-9.0 ns a GET instead of 9.5-9.8, the least of many short runs, four
    // times in turn on a busy machine.
    if marker == b'$' && word as u32 == u32::from_le_bytes(*b"$3\r\n") {
        return Some((3, 4));
    }
    // The line's length is a constant in each branch, so that the next load need not wait for this
    // one.
    if let Some(length) = length_of_digits::<1>(word, marker) {
        return Some((length, 4));
    }
    if let Some(length) = length_of_digits::<2>(word, marker) {
        return Some((length, 5));
    }
    three_to_five_digits(word, marker)
}

#[inline(never)]
fn three_to_five_digits(word: u64, marker: u8) -> Option<(usize, usize)> {
    if let Some(length) = length_of_digits::<3>(word, marker) {
        return Some((length, 6));
    }
    if let Some(length) = length_of_digits::<4>(word, marker) {
        return Some((length, 7));
    }
    Some((length_of_digits::<5>(word, marker)?, 8))
}

/// The length if `word` begins with `marker`, exactly `DIGITS` digits without leading zeros, and
/// `\r\n`.
#[inline(always)]
fn length_of_digits<const DIGITS: usize>(word: u64, marker: u8) -> Option<usize> {
    // Byte by byte: the line of a zero; a mask of what must be 0 after adding 0x76, which carries a
    // digit of ten or more into its highest bit.
    let (mut zero, mut must_be_0, mut carry) = ([0; 8], [0; 8], [0; 8]);
    (zero[0], must_be_0[0]) = (marker, 0xff);
    for place in 1..=DIGITS {
        (zero[place], must_be_0[place], carry[place]) = (b'0', 0x80, 0x76);
    }
    (zero[DIGITS + 1], must_be_0[DIGITS + 1]) = (b'\r', 0xff);
    (zero[DIGITS + 2], must_be_0[DIGITS + 2]) = (b'\n', 0xff);
    let digits = word ^ u64::from_le_bytes(zero);
    let carried = digits.wrapping_add(u64::from_le_bytes(carry)) | digits;
    let leading_zero = DIGITS > 1 && digits & 0xff00 == 0;
    if carried & u64::from_le_bytes(must_be_0) != 0 || leading_zero {
        return None;
    }
    Some(
        (1..=DIGITS).fold(0, |length, place| length * 10 + (digits >> (8 * place) & 0xff) as usize),
    )
}

/// The length line `bytes` begins with: the text between its first byte and `\r`, and the line's
/// bytes. `None` if it is not complete, `Err` if it never will be.
fn length_line(bytes: &[u8]) -> Result<Option<(&[u8], usize)>, ()> {
    let window = bytes.len().min(LENGTH_LINE_MAX + 1);
    // Redis searches with strchr here as well, hence the NUL.
    match memchr2(b'\r', 0, &bytes[..window]) {
        Some(at) if bytes[at] == b'\r' => {
            let complete = bytes.len() >= at + 2;
            Ok(complete.then(|| (bytes.get(1..at).unwrap_or_default(), at + 2)))
        }
        _ if bytes.len() > LENGTH_LINE_MAX => Err(()),
        _ => Ok(None),
    }
}

/// The count of a multibulk request, which may be zero or less, and its line's bytes; `None` if
/// incomplete.
#[cold]
fn multibulk_count(bytes: &[u8], limits: &Limits) -> Result<Option<(i64, usize)>, ProtocolError> {
    let line = length_line(bytes).map_err(|()| ProtocolError::TooBigMultibulkCount)?;
    let Some((text, line_len)) = line else {
        return Ok(None);
    };
    let count = parse_i64(text).ok_or(ProtocolError::InvalidMultibulkLength)?;
    check_count(count, limits)?;
    Ok(Some((count, line_len)))
}

#[inline]
fn check_count(count: i64, limits: &Limits) -> Result<(), ProtocolError> {
    if count > i64::from(limits.multibulk_max) {
        return Err(ProtocolError::InvalidMultibulkLength);
    }
    if count > UNAUTHENTICATED_ARGUMENTS_MAX && !limits.authenticated {
        return Err(ProtocolError::UnauthenticatedMultibulkLength);
    }
    Ok(())
}

#[inline]
fn check_bulk_length(len: u64, limits: &Limits) -> Result<(), ProtocolError> {
    if len > limits.bulk_len_max {
        return Err(ProtocolError::InvalidBulkLength);
    }
    if len > UNAUTHENTICATED_BULK_MAX && !limits.authenticated {
        return Err(ProtocolError::UnauthenticatedBulkLength);
    }
    Ok(())
}

/// The length of an argument and its line's bytes; `None` if incomplete.
fn bulk_length(bytes: &[u8]) -> Result<Option<(usize, usize)>, ProtocolError> {
    let line = length_line(bytes).map_err(|()| ProtocolError::TooBigBulkCount)?;
    let Some((text, line_len)) = line else {
        return Ok(None);
    };
    if bytes[0] != b'$' {
        return Err(ProtocolError::ExpectedDollar(bytes[0]));
    }
    let len = parse_i64(text)
        .and_then(|len| u64::try_from(len).ok())
        .ok_or(ProtocolError::InvalidBulkLength)?;
    // Ranges have 32 bits, whatever the limit.
    if len > u64::from(u32::MAX) {
        return Err(ProtocolError::InvalidBulkLength);
    }
    Ok(Some((len as usize, line_len)))
}

/// Splits an inline request, which starts at `base` in the buffer, into words. Quotes and escapes
/// are decoded in place, as decoding never lengthens them.
///
/// A word may begin plain and continue quoted; a closing quote ends it and must be followed by
/// white space or the line's end. Double quotes know `\n \r \t \b \a`, `\xHH` and any other byte
/// for itself, single quotes only `\'`.
fn split_line(line: &mut [u8], base: usize, args: &mut Vec<Range>) -> Result<(), ProtocolError> {
    let mut at = 0;
    loop {
        while at < line.len() && is_space(line[at]) {
            at += 1;
        }
        if at == line.len() {
            return Ok(());
        }
        let start = at;
        let mut end = at;
        let mut quote = None;
        loop {
            let decoded = match (quote, &line[at..]) {
                (None, [] | [b' ' | b'\n' | b'\r' | b'\t', ..]) => break,
                (Some(_), []) => return Err(ProtocolError::UnbalancedQuotes),
                (None, [mark @ (b'"' | b'\''), ..]) => {
                    quote = Some(*mark);
                    at += 1;
                    continue;
                }
                (Some(mark), [byte, rest @ ..]) if *byte == mark => {
                    if rest.first().is_some_and(|next| !is_space(*next)) {
                        return Err(ProtocolError::UnbalancedQuotes);
                    }
                    at += 1;
                    break;
                }
                (Some(b'"'), [b'\\', b'x', high, low, ..])
                    if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
                {
                    let byte = hex_value(*high) << 4 | hex_value(*low);
                    at += 4;
                    byte
                }
                (Some(b'"'), [b'\\', escaped, ..]) => {
                    at += 2;
                    unescaped(*escaped)
                }
                (Some(b'\''), [b'\\', b'\'', ..]) => {
                    at += 2;
                    b'\''
                }
                (_, [byte, ..]) => {
                    let byte = *byte;
                    at += 1;
                    byte
                }
            };
            line[end] = decoded;
            end += 1;
        }
        args.push(Range { start: (base + start) as u32, len: (end - start) as u32 });
    }
}

/// Appends a request with these arguments, as a client would send it: for the AOF, replicas and
/// postponed requests.
pub fn encode<'a, Args>(args: Args, out: &mut Vec<u8>)
where
    Args: IntoIterator<Item = &'a [u8], IntoIter: ExactSizeIterator>,
{
    let args = args.into_iter();
    encode_length(b'*', args.len(), out);
    args.for_each(|arg| encode_argument(arg, out));
}

/// Appends AUTH with a user, if it is not empty, and a password; nothing without a password.
pub fn encode_auth(user: &[u8], password: &[u8], out: &mut Vec<u8>) {
    match (user.is_empty(), password.is_empty()) {
        (_, true) => {}
        (true, false) => encode([&b"AUTH"[..], password], out),
        (false, false) => encode([&b"AUTH"[..], user, password], out),
    }
}

/// Appends an argument, for requests that are made in parts.
#[inline]
pub fn encode_argument(arg: &[u8], out: &mut Vec<u8>) {
    encode_length(b'$', arg.len(), out);
    out.extend_from_slice(arg);
    out.extend_from_slice(b"\r\n");
}

/// Appends a line with a number of arguments (`*`) or bytes (`$`).
#[inline]
pub fn encode_length(marker: u8, length: usize, out: &mut Vec<u8>) {
    out.push(marker);
    if length < 10 {
        out.push(b'0' + length as u8);
    } else {
        out.extend_from_slice(itoa::Buffer::new().format(length).as_bytes());
    }
    out.extend_from_slice(b"\r\n");
}

/// The number of bytes that [`encode`] appends for these arguments.
pub fn encoded_len<'a, Args>(args: Args) -> usize
where
    Args: IntoIterator<Item = &'a [u8], IntoIter: ExactSizeIterator>,
{
    // Marker, number and line end.
    let line = |number: usize| 4 + number.checked_ilog10().unwrap_or(0) as usize;
    let args = args.into_iter();
    line(args.len()) + args.map(|arg| line(arg.len()) + arg.len() + 2).sum::<usize>()
}

/// The byte that `\` and this one stand for in double quotes.
pub fn unescaped(byte: u8) -> u8 {
    match byte {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 0x08,
        b'a' => 0x07,
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Request = Vec<Vec<u8>>;

    /// Parses everything in one buffer.
    fn parse(bytes: &[u8], limits: &Limits) -> (Vec<Request>, Option<ProtocolError>) {
        parse_in_pieces(bytes, &[], limits)
    }

    /// Parses bytes that come in pieces cut at `cuts`, from a buffer that drops what was consumed,
    /// as a client's does.
    fn parse_in_pieces(
        bytes: &[u8],
        cuts: &[usize],
        limits: &Limits,
    ) -> (Vec<Request>, Option<ProtocolError>) {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort();
        let mut parser = Parser::default();
        let mut buf = Vec::new();
        let mut requests = Vec::new();
        for piece in cuts.windows(2) {
            buf.extend_from_slice(&bytes[piece[0]..piece[1]]);
            let mut pos = 0;
            let mut args = Vec::new();
            loop {
                let (pos_before, args_before) = (pos, args.len());
                match parser.next(&mut buf, &mut pos, &mut args, limits) {
                    Ok(Parsed::Request) => {
                        assert!(args.len() > args_before && pos > pos_before);
                        let request = args[args_before..].iter();
                        requests.push(request.map(|arg| arg.of(&buf).to_vec()).collect());
                    }
                    Ok(Parsed::Empty) => {
                        assert!(args.len() == args_before && pos > pos_before);
                    }
                    Ok(Parsed::Incomplete) => {
                        assert_eq!((pos, args.len()), (pos_before, args_before));
                        assert!(parser.bytes_wanted() > 0);
                        break;
                    }
                    Err(error) => {
                        assert_eq!(args.len(), args_before);
                        return (requests, Some(error));
                    }
                }
            }
            buf.drain(..pos);
        }
        (requests, None)
    }

    fn words(request: &[&str]) -> Request {
        request.iter().map(|word| word.as_bytes().to_vec()).collect()
    }

    fn check(bytes: &[u8], requests: &[&[&str]], error: Option<ProtocolError>) {
        let expected: Vec<Request> = requests.iter().map(|request| words(request)).collect();
        let found = parse(bytes, &Limits::default());
        assert_eq!(found, (expected, error), "{}", bytes.escape_ascii());
    }

    #[test]
    fn a_pipeline_of_both_forms_is_parsed_in_order() {
        check(
            b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\nPING\r\n*1\r\n$4\r\nPING\r\n\r\n*0\r\n*-1\r\nGET \"a b\" \n*2\r\n$3",
            &[&["GET", "k"], &["PING"], &["PING"], &["GET", "a b"]],
            None,
        );
    }

    #[test]
    fn lengths_of_every_width_are_parsed() {
        for len in [0, 1, 9, 10, 11, 99, 100, 101, 999, 1000, 65_536, 100_000] {
            let arg = vec![b'x'; len];
            let mut bytes = Vec::new();
            encode([b"ECHO".as_slice(), &arg], &mut bytes);
            assert_eq!(
                parse(&bytes, &Limits::default()),
                (vec![vec![b"ECHO".to_vec(), arg]], None)
            );
        }
        for count in [1, 9, 10, 99, 100, 1000] {
            let request = vec![b"x".to_vec(); count];
            let mut bytes = Vec::new();
            encode(request.iter().map(Vec::as_slice), &mut bytes);
            assert_eq!(parse(&bytes, &Limits::default()), (vec![request], None));
        }
    }

    #[test]
    fn the_argument_that_is_not_complete_tells_how_much_is_missing() {
        let mut parser = Parser::default();
        let mut buf = b"*2\r\n$3\r\nSET\r\n$1000\r\nabc".to_vec();
        let mut args = Vec::new();
        let parsed = parser.next(&mut buf, &mut 0, &mut args, &Limits::default());
        assert_eq!((parsed, parser.bytes_wanted()), (Ok(Parsed::Incomplete), 999));
    }

    /// Sends `bytes` and expects `requests` requests, then an error or none, as Redis 7.0.15
    /// answered on a socket.
    fn check_error(bytes: &[u8], limits: &Limits, requests: usize, error: Option<&str>) {
        let (found, got) = parse(bytes, limits);
        let got = got.map(|error| String::from_utf8_lossy(&error.text()).into_owned());
        let error = error.map(|text| format!("ERR Protocol error: {text}"));
        let shown = &bytes[..bytes.len().min(80)];
        assert_eq!((found.len(), got), (requests, error), "{}", shown.escape_ascii());
    }

    #[test]
    fn broken_requests_are_refused_with_the_words_of_redis() {
        let count = Some("invalid multibulk length");
        let bulk = Some("invalid bulk length");
        let quotes = Some("unbalanced quotes in request");
        let line = |begin: &[u8], fill: u8, len: usize| [begin, &vec![fill; len]].concat();
        let table: &[(&[u8], usize, Option<&str>)] = &[
            (b"*-5\r\n", 0, None),
            (b"*-5\r\nPING\r\n", 1, None),
            (b"*+3\r\n", 0, count),
            (b"*03\r\n", 0, count),
            (b"*00\r\n", 0, count),
            (b"* 3\r\n", 0, count),
            (b"*3 \r\n", 0, count),
            (b"*\r\n", 0, count),
            (b"*a\r\n", 0, count),
            (b"*2147483647\r\n", 0, None),
            (b"*2147483648\r\n", 0, count),
            (b"*9223372036854775808\r\n", 0, count),
            (b"*1\n$4\nPING\n", 0, None),
            (b"*1\n$4\r\nPING\r\n", 0, count),
            (b"*1\rX$4\rXPINGXX*1\r\n$4\r\nPING\r\n", 2, None),
            (b"*1\r\n$-1\r\n", 0, bulk),
            (b"*1\r\n$ 3\r\n", 0, bulk),
            (b"*1\r\n$\r\n", 0, bulk),
            (b"*1\r\n$04\r\nPING\r\n", 0, bulk),
            (b"*1\r\n$+4\r\nPING\r\n", 0, bulk),
            (b"*1\r\n$4\nPING\r\n", 0, bulk),
            (b"*1\r\n$536870912\r\n", 0, None),
            (b"*1\r\n$536870913\r\n", 0, bulk),
            (b"*1\r\nx4\r\nPING\r\n", 0, Some("expected '$', got 'x'")),
            (b"*1\r\n\xff\r\n", 0, Some("expected '$', got '\u{fffd}'")),
            (b"*1\r\nPING\n", 0, None),
            (b"*1\x00\r\n$4\r\nPING\r\n", 0, None),
            (b"*1\r\n$4\x00\r\nPING\r\n", 0, None),
            (b"PING\x00\r\n", 0, None),
            (b"PING\n\nPING\r\n", 2, None),
            (b"\r\n  \r\n\t\n", 0, None),
            (b"ECHO \"a\"b\r\n", 0, quotes),
            (b"ECHO a\"b\"c\r\n", 0, quotes),
            (b"ECHO \"a\r\n", 0, quotes),
            (b"ECHO 'a\r\n", 0, quotes),
            (b"ECHO 'a'b\r\n", 0, quotes),
            (b"ECHO \"a\\\r\n", 0, quotes),
            (b"PING\r\nECHO '\r\n", 1, quotes),
            (&line(b"*", b'1', 65_535), 0, None),
            (&line(b"*", b'1', 65_536), 0, Some("too big mbulk count string")),
            (&line(b"*1\r\n$", b'1', 65_535), 0, None),
            (&line(b"*1\r\n$", b'1', 65_536), 0, Some("too big bulk count string")),
            (&line(b"*1\r\nx", b'1', 65_536), 0, Some("too big bulk count string")),
            (&line(b"", b'x', 65_536), 0, None),
            (&line(b"", b'x', 65_537), 0, Some("too big inline request")),
            (&[line(b"", b'x', 65_536).as_slice(), b"\n"].concat(), 1, None),
        ];
        for (bytes, requests, error) in table {
            check_error(bytes, &Limits::default(), *requests, *error);
        }
        // In the reply the line end becomes a space.
        check_error(b"*1\r\n\r\n", &Limits::default(), 0, Some("expected '$', got '\r'"));
        check_error(b"*1\r\n\n\r\n", &Limits::default(), 0, Some("expected '$', got '\n'"));
    }

    #[test]
    fn before_authentication_requests_must_be_small() {
        let limits = Limits { authenticated: false, ..Limits::default() };
        let (count, bulk) =
            (Some("unauthenticated multibulk length"), Some("unauthenticated bulk length"));
        for (bytes, requests, error) in [
            (b"*10\r\n".as_slice(), 0, None),
            (b"*11\r\n", 0, count),
            (b"*99\r\n$4", 0, count),
            (b"*100\r\n", 0, count),
            (b"*2147483648\r\n", 0, Some("invalid multibulk length")),
            (b"*1\r\n$16384\r\n", 0, None),
            (b"*1\r\n$16385\r\n", 0, bulk),
            (b"*1\r\n$99999\r\nabc", 0, bulk),
            (b"*1\r\n$100000\r\n", 0, bulk),
            (b"*1\r\n$536870913\r\n", 0, Some("invalid bulk length")),
            (b"PING a b c d e f g h i j k l\r\n", 1, None),
        ] {
            check_error(bytes, &limits, requests, error);
        }
    }

    #[test]
    fn limits_smaller_than_a_short_length_hold_as_well() {
        let limits = Limits { bulk_len_max: 5, multibulk_max: 2, ..Limits::default() };
        check_error(b"*2\r\n$5\r\nabcde\r\n$5\r\nabcde\r\n", &limits, 1, None);
        check_error(b"*3\r\n$5\r\nabcde\r\n", &limits, 0, Some("invalid multibulk length"));
        check_error(b"*2\r\n$6\r\nabcdef\r\n$1\r\na", &limits, 0, Some("invalid bulk length"));
    }

    #[test]
    fn quotes_and_escapes_are_decoded_as_redis_does() {
        for (line, echoed) in [
            (r#"ECHO "a\x41\n\t\b\a\r\q\"""#, b"aA\n\t\x08\x07\rq\"".as_slice()),
            (r#"ECHO 'a\x41\'b"'"#, b"a\\x41'b\""),
            (r#"ECHO a"b c""#, b"ab c"),
            (r#"ECHO "a\x4""#, b"ax4"),
            (r#"ECHO "\xFf\x0a""#, b"\xff\n"),
            ("ECHO \"\"", b""),
            ("ECHO a\x0bb", b"a\x0bb"),
            ("\x0bECHO\ta\x0c", b"a\x0c"),
            ("ECHO \"a\"\x0b", b"a"),
            ("ECHO \\n", b"\\n"),
        ] {
            let request = vec![b"ECHO".to_vec(), echoed.to_vec()];
            for line_end in ["\n", "\r\n"] {
                let bytes = format!("{line}{line_end}");
                assert_eq!(
                    parse(bytes.as_bytes(), &Limits::default()),
                    (vec![request.clone()], None),
                    "{line}"
                );
            }
        }
        check(b"PING \r x\n", &[&["PING", "x"]], None);
    }

    #[test]
    fn a_request_of_many_arguments_goes_on_where_it_stopped() {
        let request = vec![b"argument".to_vec(); 1000];
        let mut bytes = Vec::new();
        encode(request.iter().map(Vec::as_slice), &mut bytes);
        let mut parser = Parser::default();
        let mut args = Vec::new();
        let half = bytes.len() / 2;
        let parsed = parser.next(&mut bytes[..half], &mut 0, &mut args, &Limits::default());
        assert_eq!((parsed, parser.is_resuming()), (Ok(Parsed::Incomplete), true));
        // Parsed bytes are not looked at again, and the bytes may move.
        let mut moved = [b"..".as_slice(), &vec![b'!'; half - 100], &bytes[half - 100..]].concat();
        let mut pos = 2;
        let parsed = parser.next(&mut moved, &mut pos, &mut args, &Limits::default());
        assert_eq!((parsed, pos, args.len()), (Ok(Parsed::Request), moved.len(), 1000));
        assert_eq!(args[999].of(&moved), b"argument");
        assert!(!parser.is_resuming());
    }

    #[test]
    fn a_declared_length_reserves_nothing() {
        let mut parser = Parser::default();
        let mut args = Vec::new();
        let mut buf = b"*2147483647\r\n$3\r\nSET\r\n$536870912\r\n".to_vec();
        let parsed = parser.next(&mut buf, &mut 0, &mut args, &Limits::default());
        assert_eq!((parsed, parser.bytes_wanted()), (Ok(Parsed::Incomplete), 536_870_914));
        assert!(args.capacity() < 100 && parser.found.capacity() == 0);
    }

    fn request() -> impl Strategy<Value = Vec<u8>> {
        let multibulk = |args: Vec<Vec<u8>>| {
            let mut bytes = Vec::new();
            encode(args.iter().map(Vec::as_slice), &mut bytes);
            bytes
        };
        prop_oneof![
            4 => prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..6).prop_map(multibulk),
            2 => prop::collection::vec(prop::collection::vec(any::<u8>(), 0..130), 0..3).prop_map(multibulk),
            1 => prop::collection::vec(prop::collection::vec(any::<u8>(), 0..3), 30..140).prop_map(multibulk),
            3 => "[a-c \\\\x41'\"\t]{0,12}\r?\n".prop_map(String::into_bytes),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn requests_survive_being_encoded(
            requests in prop::collection::vec(prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..50), 0..5)
        ) {
            let mut bytes = Vec::new();
            for request in &requests {
                encode(request.iter().map(Vec::as_slice), &mut bytes);
            }
            let lens = requests.iter().map(|request| encoded_len(request.iter().map(Vec::as_slice)));
            prop_assert_eq!(lens.sum::<usize>(), bytes.len());
            prop_assert_eq!(parse(&bytes, &Limits::default()), (requests, None));
        }

        #[test]
        fn any_split_gives_the_same_requests(
            pipeline in prop::collection::vec(request(), 0..8),
            cuts in prop::collection::vec(any::<usize>(), 0..12),
            every_byte: bool,
        ) {
            let bytes = pipeline.concat();
            let cuts = if every_byte { (0..bytes.len()).collect() } else { cuts };
            let limits = Limits::default();
            prop_assert_eq!(parse_in_pieces(&bytes, &cuts, &limits), parse(&bytes, &limits));
        }

        #[test]
        fn any_split_of_nonsense_gives_the_same_requests(
            bytes in "[*$0-9\\-a\r\n\"'\\\\ ]{0,60}",
            cuts in prop::collection::vec(any::<usize>(), 0..12),
            authenticated: bool,
        ) {
            let limits = Limits { authenticated, inline_max: 16, ..Limits::default() };
            prop_assert_eq!(
                parse_in_pieces(bytes.as_bytes(), &cuts, &limits),
                parse(bytes.as_bytes(), &limits)
            );
        }
    }

    #[test]
    fn the_length_of_a_request_is_limited_wherever_it_begins() {
        let request = b"*2\r\n$3\r\nGET\r\n$5\r\nabcde\r\n";
        for (at, request_bytes_max, fits) in
            [(0, 24, true), (0, 23, false), (50, 24, true), (50, 23, false)]
        {
            let limits = Limits { request_bytes_max, ..Limits::TRUSTED };
            let mut buf = [b"x".repeat(at), request.to_vec()].concat();
            let mut pos = at;
            let parsed = Parser::default().next(&mut buf, &mut pos, &mut Vec::new(), &limits);
            match fits {
                true => assert_eq!(parsed, Ok(Parsed::Request)),
                false => assert_eq!(parsed, Err(ProtocolError::InvalidBulkLength)),
            }
        }
    }
}
