//! A request's arguments, and a cursor to parse options with.

use std::ops::Range as Indices;

use crate::error::CommandError;
use crate::resp::number;
use crate::resp::request::Range;

/// The arguments of one request: ranges into the buffer it was read into. Argument 0 is the
/// command's name.
#[derive(Clone, Copy)]
pub struct Args<'a> {
    buffer: &'a [u8],
    ranges: &'a [Range],
}

impl<'a> Args<'a> {
    pub fn new(buffer: &'a [u8], ranges: &'a [Range]) -> Self {
        Args { buffer, ranges }
    }

    /// Number of arguments, with the command's name.
    #[inline]
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Argument `index`, which must be within the arity.
    #[inline]
    pub fn get(&self, index: usize) -> &'a [u8] {
        let range = self.ranges[index];
        &self.buffer[range.start as usize..range.start as usize + range.len as usize]
    }

    /// The arguments from `start` on.
    pub fn iter_from(
        &self,
        start: usize,
    ) -> impl ExactSizeIterator<Item = &'a [u8]> + Clone + use<'a> {
        let args = *self;
        (start.min(args.len())..args.len()).map(move |index| args.get(index))
    }

    /// The arguments from `start` on, as a request.
    pub fn from(&self, start: usize) -> Args<'a> {
        Args { buffer: self.buffer, ranges: &self.ranges[start.min(self.ranges.len())..] }
    }

    /// Appends the request to `buffer`, with the bytes between the arguments, and its ranges to
    /// `ranges`. False: the buffer would exceed 32-bit offsets; then nothing is copied.
    pub fn copy_behind(&self, buffer: &mut Vec<u8>, ranges: &mut Vec<Range>) -> bool {
        let Some(first) = self.ranges.first() else { return true };
        let (from, at) = (first.start as usize, buffer.len());
        let span = self.span();
        if at + span > u32::MAX as usize {
            return false;
        }
        buffer.extend_from_slice(&self.buffer[from..from + span]);
        ranges.extend(self.ranges.iter().map(|range| Range {
            start: (range.start as usize - from + at) as u32,
            len: range.len,
        }));
        true
    }

    /// Bytes of all arguments.
    pub fn bytes(&self) -> usize {
        self.ranges.iter().map(|range| range.len as usize).sum()
    }

    /// Bytes from the first argument's start to the last one's end: about the size of the request,
    /// and cheaper than [`Self::bytes`].
    #[inline]
    pub fn span(&self) -> usize {
        match (self.ranges.first(), self.ranges.last()) {
            (Some(first), Some(last)) => (last.start + last.len).wrapping_sub(first.start) as usize,
            _ => 0,
        }
    }

    /// The bytes from the first argument's start to the last one's end, if the request was sent as
    /// bulk strings: then an encoder would write the same bytes there. None for an inline request,
    /// or if the arguments lie elsewhere.
    pub fn sent_as_bulks(&self) -> Option<&'a [u8]> {
        let mut ranges = self.ranges.iter();
        let first = ranges.next()?;
        let mut at = (first.start + first.len) as usize;
        for range in ranges {
            let start = range.start as usize;
            let between = self.buffer.get(at..start)?;
            let digits = range.len.checked_ilog10().unwrap_or(0) as usize + 1;
            if between.len() != digits + b"\r\n$\r\n".len()
                || !between.starts_with(b"\r\n$")
                || !between.ends_with(b"\r\n")
            {
                return None;
            }
            at = start + range.len as usize;
        }
        self.buffer.get(first.start as usize..at)
    }

    /// An argument as a signed 64-bit integer, by Redis's strict rules.
    pub fn integer(&self, index: usize) -> Result<i64, CommandError> {
        number::parse_i64(self.get(index)).ok_or(CommandError::NotInteger)
    }

    /// A cursor over the arguments of this range.
    pub fn cursor_within(&self, range: Indices<usize>) -> Cursor<'a> {
        let args = Args { buffer: self.buffer, ranges: &self.ranges[..range.end] };
        Cursor { args, next: range.start }
    }

    /// A cursor over the arguments from `start` on.
    pub fn cursor(&self, start: usize) -> Cursor<'a> {
        Cursor { args: *self, next: start }
    }
}

/// Iterates over arguments from left to right. Every `take` method advances.
#[derive(Clone, Copy)]
pub struct Cursor<'a> {
    args: Args<'a>,
    next: usize,
}

impl<'a> Cursor<'a> {
    pub fn is_at_end(&self) -> bool {
        self.next >= self.args.len()
    }

    pub fn remaining(&self) -> usize {
        self.args.len().saturating_sub(self.next)
    }

    /// Index of the argument that comes next.
    pub fn position(&self) -> usize {
        self.next
    }

    pub fn peek(&self) -> Option<&'a [u8]> {
        (!self.is_at_end()).then(|| self.args.get(self.next))
    }

    /// The next argument, or a syntax error at the end.
    pub fn take(&mut self) -> Result<&'a [u8], CommandError> {
        let argument = self.peek().ok_or(CommandError::Syntax)?;
        self.next += 1;
        Ok(argument)
    }

    /// The next argument as an integer; a syntax error at the end.
    pub fn take_integer(&mut self) -> Result<i64, CommandError> {
        number::parse_i64(self.take()?).ok_or(CommandError::NotInteger)
    }

    /// The next argument as a positive number, or `error`; a syntax error at the end.
    pub fn take_positive(&mut self, error: CommandError) -> Result<usize, CommandError> {
        let number = number::parse_i64(self.take()?);
        let number = number.and_then(|number| usize::try_from(number).ok());
        number.filter(|&number| number > 0).ok_or(error)
    }

    /// Takes `numkeys key [key ...]`: at least `least` keys, each with its own `step - 1` further
    /// arguments. Returns the indices of all these. The error texts depend on the command.
    pub fn take_keys(&mut self, least: usize, step: usize) -> Result<Indices<usize>, BadKeyCount> {
        let count = self.peek().and_then(number::parse_i64).ok_or(BadKeyCount::NotInteger)?;
        let count = usize::try_from(count).ok().filter(|&count| count >= least);
        let count = count.ok_or(BadKeyCount::TooSmall)?;
        let first = self.next + 1;
        let len = count.checked_mul(step).filter(|&len| len < self.remaining());
        self.next = first + len.ok_or(BadKeyCount::TooLarge(count))?;
        Ok(first..self.next)
    }

    /// Takes the next argument if it is this word, case-insensitively.
    pub fn take_word(&mut self, word: &str) -> bool {
        match self.peek() {
            Some(argument) if argument.eq_ignore_ascii_case(word.as_bytes()) => {
                self.next += 1;
                true
            }
            _ => false,
        }
    }
}

/// Why a number of keys is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadKeyCount {
    NotInteger,
    /// Fewer than the command takes.
    TooSmall,
    /// More than there are arguments.
    TooLarge(usize),
}

/// The part of a text that C reads: up to the first NUL.
pub fn before_nul(text: &[u8]) -> &[u8] {
    &text[..memchr::memchr(0, text).unwrap_or(text.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result of [`Args::sent_as_bulks`] for a buffer that contains these words, in order.
    fn sent(buffer: &str, words: &[&str]) -> Option<String> {
        let mut from = 0;
        let ranges = words.iter().map(|word| {
            let start = from + buffer[from..].find(word).expect("the word is there");
            from = start + word.len();
            Range { start: start as u32, len: word.len() as u32 }
        });
        let ranges: Vec<Range> = ranges.collect();
        let bytes = Args::new(buffer.as_bytes(), &ranges).sent_as_bulks()?;
        Some(String::from_utf8_lossy(bytes).into_owned())
    }

    #[test]
    fn what_was_sent_as_bulk_strings_is_known() {
        let request = "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$11\r\nhello world\r\n";
        let expected = "SET\r\n$1\r\nk\r\n$11\r\nhello world";
        assert_eq!(sent(request, &["SET", "k", "hello world"]), Some(expected.into()));
        assert_eq!(sent("*1\r\n$4\r\nPING\r\n", &["PING"]), Some("PING".into()));
        // Six blanks are as long as a header of one digit.
        assert_eq!(sent("SET k      v", &["SET", "k", "v"]), None);
        assert_eq!(sent("SETkv", &["SET", "k", "v"]), None);
        assert_eq!(sent("$3\r\nSET\r\n$+1\r\nk", &["SET", "k"]), None);
        assert_eq!(sent("$3\r\nSET\r\n$1\rXk", &["SET", "k"]), None);
        assert_eq!(sent("", &[]), None);
    }
}
