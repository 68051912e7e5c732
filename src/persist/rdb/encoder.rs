//! Writes the parts of values: lengths, strings and listpacks.

use super::Version;
use super::input::{INT8, INT16, INT32, LZF};
use super::lzf::Compressor;
use super::packed::ListpackWriter;
use crate::collections::shared_bytes::SharedBytes;
use crate::resp::number::parse_i64;
use crate::types::stream::shifted;

/// A destination for bytes. Errors are reported later, by its owner.
pub trait Sink {
    fn put(&mut self, bytes: &[u8]);
}

impl Sink for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Shorter strings are not compressed, as in Redis. Unit: bytes.
const COMPRESSED_MIN: usize = 21;
/// Bytes kept of the buffer for compressed strings after a long one.
const COMPRESSED_KEPT: usize = 1024 * 1024;
/// Longer texts cannot be 32-bit integers. Unit: bytes.
const INTEGER_LEN_MAX: usize = 11;

/// The forms of data that Redis 7.0 does not know. Source: `compatible-with`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Newer {
    /// The version of hashes with deadlines of fields: 12 or 80, which no server reads both.
    pub volatile: Version,
    /// Whether the producers that streams remember are written: only Redis 8.6 reads them.
    pub producers: bool,
}

impl Default for Newer {
    fn default() -> Self {
        Newer { volatile: Version::VALKEY_80, producers: true }
    }
}

/// The Unix times of pending entries, whose leases count on another clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct LeaseTimes {
    /// How far Unix times are ahead of that clock.
    pub shift_ms: i64,
    /// Later ones become this: for servers that do not know times in the future.
    pub latest_ms: Option<i64>,
}

impl LeaseTimes {
    pub fn unix_ms(self, delivered_ms: i64) -> i64 {
        let at_ms = shifted(delivered_ms, self.shift_ms);
        self.latest_ms.map_or(at_ms, |latest_ms| at_ms.min(latest_ms))
    }
}

/// Writes values (`encode.rs`). Reuses the compressor's table and a scratch buffer.
pub struct Encoder {
    /// None: strings are not compressed. Source: `rdbcompression`.
    compressor: Option<Compressor>,
    compressed: Vec<u8>,
    scratch: ListpackWriter,
    pub newer: Newer,
    pub leases: LeaseTimes,
    /// Called between parts of long work without output.
    pub rest: fn(),
}

impl Encoder {
    pub fn new(compresses: bool) -> Self {
        Encoder {
            newer: Newer::default(),
            leases: LeaseTimes::default(),
            rest: || (),
            compressor: compresses.then(Compressor::default),
            compressed: Vec::new(),
            scratch: ListpackWriter::default(),
        }
    }

    /// Writes data that Redis 7.0 does not know in these forms.
    pub fn with_newer(self, newer: Newer) -> Self {
        Encoder { newer, ..self }
    }

    /// Writes pending entries with these times.
    pub fn with_leases(self, leases: LeaseTimes) -> Self {
        Encoder { leases, ..self }
    }

    /// A length or count.
    #[inline]
    pub fn length(&self, length: u64, out: &mut impl Sink) {
        match length {
            0..0x40 => out.put(&[length as u8]),
            0x40..0x4000 => out.put(&(length as u16 | 0x4000).to_be_bytes()),
            0x4000..=0xffff_ffff => {
                out.put(&[0x80]);
                out.put(&(length as u32).to_be_bytes());
            }
            _ => {
                out.put(&[0x81]);
                out.put(&length.to_be_bytes());
            }
        }
    }

    /// A string: as an integer if possible, else compressed if shorter, else as it is.
    pub fn string(&mut self, text: &[u8], out: &mut impl Sink) {
        if text.len() <= INTEGER_LEN_MAX
            && let Some(value) = parse_i64(text)
        {
            if let Ok(value) = i8::try_from(value) {
                return out.put(&[0xc0 | INT8, value as u8]);
            }
            if let Ok(value) = i16::try_from(value) {
                let [low, high] = value.to_le_bytes();
                return out.put(&[0xc0 | INT16, low, high]);
            }
            if let Ok(value) = i32::try_from(value) {
                out.put(&[0xc0 | INT32]);
                return out.put(&value.to_le_bytes());
            }
        }
        if text.len() >= COMPRESSED_MIN
            && let Some(compressor) = &mut self.compressor
        {
            self.compressed.clear();
            if compressor.compress(text, &mut self.compressed) {
                out.put(&[0xc0 | LZF]);
                self.length(self.compressed.len() as u64, out);
                self.length(text.len() as u64, out);
                return out.put(&self.compressed);
            }
        }
        self.length(text.len() as u64, out);
        out.put(text);
    }

    /// A string in pieces, which is no integer.
    pub(super) fn long_string(&mut self, text: &SharedBytes, out: &mut impl Sink) {
        let pieces = text.pieces(0..text.len());
        if let Some(compressor) = &mut self.compressor {
            self.compressed.clear();
            let compressed = &mut self.compressed;
            if compressor.compress_pieces(text.len(), pieces.clone(), compressed, self.rest) {
                out.put(&[0xc0 | LZF]);
                self.length(self.compressed.len() as u64, out);
                self.length(text.len() as u64, out);
                out.put(&self.compressed);
                self.compressed.shrink_to(COMPRESSED_KEPT);
                return;
            }
            self.compressed.shrink_to(COMPRESSED_KEPT);
        }
        self.length(text.len() as u64, out);
        pieces.for_each(|piece| out.put(piece));
    }

    /// A listpack, as a string.
    pub(super) fn listpack(&mut self, out: &mut impl Sink, fill: impl FnOnce(&mut ListpackWriter)) {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        fill(&mut scratch);
        self.string(scratch.finish(), out);
        self.scratch = scratch;
    }
}
