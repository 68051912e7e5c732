//! The protocol as far as a load generator needs it: requests are encoded once, replies are counted
//! in passing and not kept ([`ReplyCounter`]), or read whole where their content matters
//! ([`Reply`]).

use std::io::{self, BufRead, Read};

/// Appends `arguments` to `out` as one request: an array of bulk strings.
pub fn encode_request(out: &mut Vec<u8>, arguments: &[&[u8]]) {
    encode_length(out, b'*', arguments.len());
    for argument in arguments {
        encode_length(out, b'$', argument.len());
        out.extend_from_slice(argument);
        out.extend_from_slice(b"\r\n");
    }
}

fn encode_length(out: &mut Vec<u8>, kind: u8, length: usize) {
    out.push(kind);
    out.extend_from_slice(length.to_string().as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Counts complete replies in a stream of bytes that may be cut anywhere.
///
/// Nesting needs no stack: the header of an aggregate of n elements stands for n more replies to
/// come.
#[derive(Default)]
pub struct ReplyCounter {
    state: State,
    /// Replies still expected, the elements of aggregates included.
    expected: u64,
    /// Error replies seen at any depth.
    pub errors: u64,
    /// The text of the first error, as far as it lay in the same read.
    pub first_error: Option<String>,
}

#[derive(Default)]
enum State {
    #[default]
    Start,
    /// Within a reply's first line. `number` is what its digits say so far, `None` once they do
    /// not.
    Line { kind: u8, negative: bool, number: u64 },
    /// Bytes of a bulk string left to pass over, CRLF included.
    Payload(u64),
}

impl ReplyCounter {
    /// `count` more replies are to come.
    pub fn expect(&mut self, count: u64) {
        self.expected += count;
    }

    /// Whether all expected replies have come completely.
    pub fn is_done(&self) -> bool {
        self.expected == 0 && matches!(self.state, State::Start)
    }

    /// Takes the next bytes of the stream.
    ///
    /// # Errors
    /// More replies than expected, or a byte that begins no reply.
    pub fn feed(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut at = 0;
        while at < bytes.len() {
            match &mut self.state {
                State::Start => {
                    let kind = bytes[at];
                    if self.expected == 0 {
                        return Err(io::Error::other("a reply to no request"));
                    }
                    if !b"+-:$*_#,(%~>=!".contains(&kind) {
                        return Err(io::Error::other(format!("not a reply: byte {kind:#04x}")));
                    }
                    if kind == b'-' || kind == b'!' {
                        self.errors += 1;
                        if self.first_error.is_none() {
                            let line = bytes[at..].split(|&byte| byte == b'\r').next();
                            let line = line.unwrap_or_default();
                            self.first_error = Some(String::from_utf8_lossy(line).into_owned());
                        }
                    }
                    self.state = State::Line { kind, negative: false, number: 0 };
                    at += 1;
                }
                State::Line { kind, negative, number } => {
                    let byte = bytes[at];
                    at += 1;
                    match byte {
                        b'\n' => {
                            let (kind, negative, number) = (*kind, *negative, *number);
                            self.end_line(kind, if negative { None } else { Some(number) });
                        }
                        b'-' => *negative = true,
                        b'0'..=b'9' => {
                            *number = number.wrapping_mul(10).wrapping_add(u64::from(byte - b'0'));
                        }
                        _ => {}
                    }
                }
                State::Payload(left) => {
                    let here = (bytes.len() - at) as u64;
                    if here < *left {
                        *left -= here;
                        return Ok(());
                    }
                    at += *left as usize;
                    self.expected -= 1;
                    self.state = State::Start;
                }
            }
        }
        Ok(())
    }

    /// A first line is over; `number` is its length or count, `None` for null.
    fn end_line(&mut self, kind: u8, number: Option<u64>) {
        self.state = State::Start;
        match (kind, number) {
            (b'$' | b'=' | b'!', Some(length)) => {
                self.state = State::Payload(length.saturating_add(2));
            }
            (b'*' | b'~' | b'>', Some(count)) => {
                self.expected = (self.expected - 1).saturating_add(count);
            }
            (b'%', Some(pairs)) => {
                self.expected = (self.expected - 1).saturating_add(pairs.saturating_mul(2));
            }
            _ => self.expected -= 1,
        }
    }
}

/// One RESP2 reply, read whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Status(String),
    Error(String),
    Integer(i64),
    Bulk(Vec<u8>),
    Null,
    Array(Vec<Reply>),
}

/// No reply this program asks for nests deeper.
const DEPTH_MAX: u32 = 8;

impl Reply {
    /// Reads the next reply.
    ///
    /// # Errors
    /// The stream ended or failed, or what came is no RESP2.
    pub fn read(from: &mut impl BufRead) -> io::Result<Reply> {
        Self::read_nested(from, DEPTH_MAX)
    }

    fn read_nested(from: &mut impl BufRead, depth: u32) -> io::Result<Reply> {
        let malformed = |line: &str| io::Error::other(format!("malformed reply: {line:?}"));
        let mut line = Vec::new();
        from.read_until(b'\n', &mut line)?;
        let line = String::from_utf8_lossy(&line).into_owned();
        let Some(rest) = line.get(1..).and_then(|rest| rest.strip_suffix("\r\n")) else {
            return Err(malformed(&line));
        };
        let number = || rest.parse::<i64>().map_err(|_| malformed(&line));
        match line.as_bytes()[0] {
            b'+' => Ok(Reply::Status(rest.to_owned())),
            b'-' => Ok(Reply::Error(rest.to_owned())),
            b':' => Ok(Reply::Integer(number()?)),
            b'$' => {
                let Ok(length) = u64::try_from(number()?) else {
                    return Ok(Reply::Null);
                };
                let mut bytes = Vec::new();
                from.take(length).read_to_end(&mut bytes)?;
                let mut end = [0; 2];
                from.read_exact(&mut end)?;
                if end != *b"\r\n" { Err(malformed(&line)) } else { Ok(Reply::Bulk(bytes)) }
            }
            b'*' if depth > 0 => {
                let Ok(count) = u64::try_from(number()?) else {
                    return Ok(Reply::Null);
                };
                (0..count)
                    .map(|_| Self::read_nested(from, depth - 1))
                    .collect::<io::Result<_>>()
                    .map(Reply::Array)
            }
            _ => Err(malformed(&line)),
        }
    }

    /// The text of a status or bulk string; empty for anything else.
    pub fn text(&self) -> String {
        match self {
            Reply::Status(text) => text.clone(),
            Reply::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            _ => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPLIES: &[u8] =
        b"+OK\r\n:-12\r\n$3\r\na\r\n\r\n$-1\r\n$0\r\n\r\n*2\r\n*1\r\n:1\r\n$1\r\nx\r\n*0\r\n-ERR no\r\n%1\r\n+a\r\n_\r\n";

    #[test]
    fn any_split_of_the_stream_counts_the_same_replies() {
        for first in 0..=REPLIES.len() {
            for second in first..=REPLIES.len() {
                let mut counter = ReplyCounter::default();
                counter.expect(9);
                counter.feed(&REPLIES[..first]).unwrap();
                counter.feed(&REPLIES[first..second]).unwrap();
                assert_eq!(counter.is_done(), second == REPLIES.len());
                counter.feed(&REPLIES[second..]).unwrap();
                assert!(counter.is_done());
                assert_eq!(counter.errors, 1);
            }
        }
    }

    #[test]
    fn a_reply_nobody_asked_for_is_refused() {
        let mut counter = ReplyCounter::default();
        counter.expect(1);
        assert!(counter.feed(b"+OK\r\n+OK\r\n").is_err());
        let mut counter = ReplyCounter::default();
        counter.expect(1);
        assert!(counter.feed(b"HTTP/1.1 200 OK\r\n").is_err());
    }

    #[test]
    fn whole_replies_are_read_one_by_one() {
        let mut from = REPLIES;
        assert_eq!(Reply::read(&mut from).unwrap(), Reply::Status("OK".into()));
        assert_eq!(Reply::read(&mut from).unwrap(), Reply::Integer(-12));
        assert_eq!(Reply::read(&mut from).unwrap(), Reply::Bulk(b"a\r\n".to_vec()));
        assert_eq!(Reply::read(&mut from).unwrap(), Reply::Null);
        assert_eq!(Reply::read(&mut from).unwrap(), Reply::Bulk(Vec::new()));
        let nested = vec![Reply::Array(vec![Reply::Integer(1)]), Reply::Bulk(b"x".to_vec())];
        assert_eq!(Reply::read(&mut from).unwrap(), Reply::Array(nested));
        assert_eq!(Reply::read(&mut from).unwrap(), Reply::Array(Vec::new()));
        assert_eq!(Reply::read(&mut from).unwrap(), Reply::Error("ERR no".into()));
        assert!(Reply::read(&mut from).is_err());
    }
}
