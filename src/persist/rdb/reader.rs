//! Reading the strings, lengths and numbers of values from memory.

use std::ops::Deref;

use crate::resp::number::{NumberText, format_i64, parse_f64};

use super::error::{DecodeError, Fault};
use super::input::{self, Input, Length};
use super::lzf;
use super::packed::Packed;

/// A cursor over bytes.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    /// The offset of `bytes` in the file or payload, for errors.
    base: u64,
}

/// A string: borrowed if it is stored as it is.
#[derive(Clone, Debug)]
pub enum Text<'a> {
    Bytes(&'a [u8]),
    Number(NumberText),
    Decompressed(Vec<u8>),
}

impl Deref for Text<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Text::Bytes(bytes) => bytes,
            Text::Number(text) => text,
            Text::Decompressed(bytes) => bytes,
        }
    }
}

impl Text<'_> {
    pub fn into_vec(self) -> Vec<u8> {
        match self {
            Text::Decompressed(bytes) => bytes,
            other => other.to_vec(),
        }
    }
}

impl Input for Reader<'_> {
    type Error = DecodeError;

    #[inline]
    fn take(&mut self, len: u64, what: &'static str) -> Result<&[u8], DecodeError> {
        self.bytes(len, what)
    }

    fn error(&self, fault: Fault) -> DecodeError {
        DecodeError { fault, offset: self.offset() }
    }
}

impl<'a> Reader<'a> {
    /// The listpack that a string is.
    pub(super) fn listpack<'t>(&self, text: &'t Text<'_>) -> Result<Packed<'t>, DecodeError> {
        Packed::of_listpack(text).ok_or_else(|| self.malformed("a listpack that is damaged"))
    }

    /// Reads `bytes`, which begin at offset `base` of the file or payload.
    pub fn new(bytes: &'a [u8], base: u64) -> Self {
        Reader { bytes, at: 0, base }
    }

    /// Bytes read so far.
    pub fn position(&self) -> usize {
        self.at
    }

    /// Returns to an earlier [`Self::position`].
    pub fn move_to(&mut self, position: usize) {
        self.at = position.min(self.bytes.len());
    }

    /// The current offset in the file or payload.
    pub fn offset(&self) -> u64 {
        self.base + self.at as u64
    }

    pub fn is_at_end(&self) -> bool {
        self.at == self.bytes.len()
    }

    /// An error at the current offset.
    pub fn malformed(&self, what: &'static str) -> DecodeError {
        self.error(Fault::Malformed(what))
    }

    pub fn bytes(&mut self, len: u64, what: &'static str) -> Result<&'a [u8], DecodeError> {
        let rest = &self.bytes[self.at..];
        let taken = usize::try_from(len).ok().and_then(|len| rest.get(..len));
        let taken = taken.ok_or_else(|| self.error(Fault::Truncated(what)))?;
        self.at += taken.len();
        Ok(taken)
    }

    pub fn byte(&mut self, what: &'static str) -> Result<u8, DecodeError> {
        input::byte(self, what)
    }

    pub fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], DecodeError> {
        input::array(self, what)
    }

    /// A length or count: 6, 14, 32 or 64 bits.
    pub fn length(&mut self, what: &'static str) -> Result<u64, DecodeError> {
        input::length(self, what)
    }

    /// A count of things of at least `bytes_min` bytes each; an error if the remaining bytes cannot
    /// hold as many.
    pub fn count(&mut self, bytes_min: usize, what: &'static str) -> Result<usize, DecodeError> {
        let count = self.length(what)?;
        let rest = (self.bytes.len() - self.at) / bytes_min;
        match usize::try_from(count) {
            Ok(count) if count <= rest => Ok(count),
            _ => Err(self.error(Fault::Truncated(what))),
        }
    }

    /// A string: bytes, an integer's digits, or compressed.
    pub fn string(&mut self, what: &'static str) -> Result<Text<'a>, DecodeError> {
        Ok(match input::any_length(self, what)? {
            Length::Plain(len) => Text::Bytes(self.bytes(len, what)?),
            Length::Encoded(input::INT8) => number(i8::from_le_bytes(self.array(what)?).into()),
            Length::Encoded(input::INT16) => number(i16::from_le_bytes(self.array(what)?).into()),
            Length::Encoded(input::INT32) => number(i32::from_le_bytes(self.array(what)?).into()),
            Length::Encoded(input::LZF) => {
                let compressed = self.length(what)?;
                let len = self.length(what)?;
                let compressed = self.bytes(compressed, what)?;
                let text = lzf::decompress(compressed, len);
                Text::Decompressed(
                    text.ok_or_else(|| self.malformed("a compressed string that is damaged"))?,
                )
            }
            Length::Encoded(_) => return Err(self.malformed("a string of an unknown encoding")),
        })
    }

    /// A score of old versions: a byte with its text's length, or for an infinity or NaN.
    pub fn text_score(&mut self) -> Result<f64, DecodeError> {
        match self.byte("a score")? {
            255 => Ok(f64::NEG_INFINITY),
            254 => Ok(f64::INFINITY),
            253 => Err(self.malformed("a score that is not a number")),
            len => {
                let text = self.bytes(len.into(), "a score")?;
                parse_f64(text).ok_or_else(|| self.malformed("a score that is not a number"))
            }
        }
    }

    /// A score as a double. NaN is an error.
    pub fn score(&mut self) -> Result<f64, DecodeError> {
        let score = f64::from_le_bytes(self.array("a score")?);
        if score.is_nan() {
            return Err(self.malformed("a score that is not a number"));
        }
        Ok(score)
    }

    /// A time of 8 bytes: milliseconds since 1970.
    pub fn unix_ms(&mut self, what: &'static str) -> Result<i64, DecodeError> {
        self.array(what).map(i64::from_le_bytes)
    }
}

fn number(value: i64) -> Text<'static> {
    Text::Number(format_i64(value))
}
