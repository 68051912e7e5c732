//! LZF, the fast compression of strings.
//!
//! ```text
//!   000LLLLL bytes                  L + 1 literal bytes
//!   LLLooooo oooooooo               copy L + 2 bytes (L from 1 to 6) from o + 1 bytes back
//!   111ooooo LLLLLLLL oooooooo      copy L + 9 bytes from o + 1 bytes back
//! ```
//!
//! The compressor chooses as liblzf does with Redis's settings: the output is the same. Its table
//! of positions is kept between strings, as clearing 256 KiB for each short string would cost more
//! than compressing it. Positions are counted through all strings, so that those of earlier strings
//! are recognized.

/// The longest string: a larger declared length is a fault. Unit: bytes.
pub const LEN_MAX: u64 = 512 * 1024 * 1024;

/// The longest output. Output must stay in memory until its length is written before it; more is
/// not worth the memory. Unit: bytes.
const COMPRESSED_MAX: usize = 64 * 1024 * 1024;

/// Bits of the table's index.
const TABLE_BITS: u32 = 16;
const LITERALS_MAX: usize = 32;
const OFFSET_MAX: usize = 1 << 13;
const COPY_MAX: usize = (1 << 8) + (1 << 3);
/// The distance that the compressor may look ahead of its position.
const AHEAD: usize = COPY_MAX + 2;

/// Compresses strings.
pub struct Compressor {
    /// The last position of three bytes with this hash.
    positions: Box<[u32; 1 << TABLE_BITS]>,
    /// Smaller positions belong to earlier strings.
    base: u32,
}

impl Default for Compressor {
    fn default() -> Self {
        Compressor { positions: Box::new([0; 1 << TABLE_BITS]), base: 0 }
    }
}

/// The three bytes at `at`, as a number.
#[inline]
fn three(text: &[u8], at: usize) -> u32 {
    match text[at..] {
        [a, b, c, ..] => u32::from(a) << 16 | u32::from(b) << 8 | u32::from(c),
        _ => 0,
    }
}

impl Compressor {
    /// Appends `text` compressed to `out`, if that saves at least four bytes and takes at most
    /// [`COMPRESSED_MAX`]; otherwise appends nothing. Returns whether it did.
    pub fn compress(&mut self, text: &[u8], out: &mut Vec<u8>) -> bool {
        self.attempt(text.len(), out, |it, coding, out| {
            coding.advance(it, text, 0, text.len(), out)?;
            coding.finish(text, 0, out)
        })
    }

    /// As [`Self::compress`], for a text of `len` bytes in pieces. Calls `rest` after each piece.
    pub fn compress_pieces<'t>(
        &mut self,
        len: usize,
        pieces: impl Iterator<Item = &'t [u8]>,
        out: &mut Vec<u8>,
        mut rest: impl FnMut(),
    ) -> bool {
        self.attempt(len, out, |it, coding, out| {
            // The text from offset `start` on: as far back as a copy reaches, to the end of the
            // last piece.
            let (mut window, mut start) = (Vec::new(), 0);
            for piece in pieces {
                let passed = (coding.at - start).saturating_sub(OFFSET_MAX);
                window.drain(..passed);
                start += passed;
                window.extend_from_slice(piece);
                let end = start + window.len();
                let stop = if end == len { len } else { end.saturating_sub(AHEAD) };
                coding.advance(it, &window, start, stop, out)?;
                rest();
            }
            coding.finish(&window, start, out)
        })
    }

    fn attempt(
        &mut self,
        len: usize,
        out: &mut Vec<u8>,
        write: impl FnOnce(&mut Self, &mut Coding, &mut Vec<u8>) -> Option<()>,
    ) -> bool {
        let Some(len_max) = len.checked_sub(4).filter(|len| *len > 0) else { return false };
        if len as u64 > LEN_MAX {
            return false;
        }
        self.base = match self.base.checked_add(len as u32) {
            // The table is empty at first (0 is no position), and is emptied before positions
            // overflow.
            Some(_) if self.base > 0 => self.base,
            _ => {
                self.positions.fill(0);
                1
            }
        };
        let start = out.len();
        let end = start + len_max.min(COMPRESSED_MAX);
        let mut coding = Coding { len, at: 0, literals: 0, end };
        let fits = write(self, &mut coding, out).is_some();
        self.base += len as u32;
        if !fits {
            out.truncate(start);
        }
        fits
    }

    /// Records the position of these three bytes, at `at` in the text. Returns their previous
    /// position, if a copy reaches it.
    #[inline]
    fn replace_position(&mut self, three: u32, at: usize) -> Option<usize> {
        let hash = (three >> (24 - TABLE_BITS)).wrapping_sub(three.wrapping_mul(5));
        let position = &mut self.positions[(hash & ((1 << TABLE_BITS) - 1)) as usize];
        let before = std::mem::replace(position, self.base + at as u32);
        // As in liblzf, for which position 0 of the text means none. A single comparison: its
        // outcome is hard to predict.
        let least = self.base + at.saturating_sub(OFFSET_MAX).max(1) as u32;
        (before >= least).then(|| (before - self.base) as usize)
    }
}

/// The progress of compressing a text.
struct Coding {
    /// The text's length.
    len: usize,
    /// The next byte of the text.
    at: usize,
    /// The number of bytes before `at` that are literals not yet in the output: fewer than
    /// [`LITERALS_MAX`].
    literals: usize,
    /// The output must end before this index.
    end: usize,
}

impl Coding {
    /// Compresses up to offset `stop` of the text or a little further. The window has the text from
    /// offset `start` to [`AHEAD`] bytes after `stop`, or to the text's end. None: the output is
    /// too long.
    #[inline(always)]
    fn advance(
        &mut self,
        table: &mut Compressor,
        window: &[u8],
        start: usize,
        stop: usize,
        out: &mut Vec<u8>,
    ) -> Option<()> {
        let Coding { len: text_len, mut at, mut literals, end } = *self;
        while at < stop && at + 2 < text_len {
            let here = three(window, at - start);
            let before = table.replace_position(here, at);
            let found = before.filter(|before| three(window, before - start) == here);
            // With the control byte of the literals.
            let out_len = out.len() + 1 + literals;
            let Some(before) = found else {
                if out_len >= end {
                    return None;
                }
                at += 1;
                literals += 1;
                if literals == LITERALS_MAX {
                    put_literals(&window[at - start - literals..][..literals], out);
                    literals = 0;
                }
                continue;
            };
            if out_len - usize::from(literals == 0) + 4 >= end {
                return None;
            }
            put_literals(&window[at - start - literals..][..literals], out);
            literals = 0;
            // As in liblzf, which compares sixteen bytes at once if as many remain, otherwise one
            // by one.
            let longest = match (text_len - at - 2).min(COPY_MAX) {
                few @ ..=16 => few.max(3),
                many => many.max(19),
            };
            let same = window[before - start + 3..].iter().zip(&window[at - start + 3..]);
            let len = 3 + same.take(longest - 3).take_while(|(a, b)| a == b).count();
            let (offset, coded) = (at - before - 1, len - 2);
            if coded < 7 {
                out.push((offset >> 8) as u8 | (coded as u8) << 5);
            } else {
                out.push((offset >> 8) as u8 | 7 << 5);
                out.push((coded - 7) as u8);
            }
            out.push(offset as u8);
            at += len;
            if at + 2 >= text_len {
                break;
            }
            // Only the last two positions of the copied bytes are recorded.
            for at in [at - 2, at - 1] {
                table.replace_position(three(window, at - start), at);
            }
        }
        (self.at, self.literals) = (at, literals);
        Some(())
    }

    /// Ends with the text's last bytes as literals. None: the output is too long.
    fn finish(&self, window: &[u8], start: usize, out: &mut Vec<u8>) -> Option<()> {
        if out.len() + 1 + self.literals + 3 > self.end {
            return None;
        }
        let rest = &window[self.at - start - self.literals..];
        rest.chunks(LITERALS_MAX).for_each(|literals| put_literals(literals, out));
        Some(())
    }
}

/// Appends at most [`LITERALS_MAX`] literals with their control byte, if there are any.
#[inline]
fn put_literals(literals: &[u8], out: &mut Vec<u8>) {
    if !literals.is_empty() {
        out.push((literals.len() - 1) as u8);
        out.extend_from_slice(literals);
    }
}

/// Decompresses a string of `len` bytes; None if it is damaged or has another length. Takes memory
/// only as bytes come out.
pub fn decompress(compressed: &[u8], len: u64) -> Option<Vec<u8>> {
    // A copy of at most 264 bytes takes three.
    if len > LEN_MAX || len > compressed.len() as u64 * 88 {
        return None;
    }
    let len = len as usize;
    let mut text = Vec::with_capacity(len.min(compressed.len().saturating_mul(2)));
    let mut rest = compressed;
    while let Some((&control, after)) = rest.split_first() {
        let high = usize::from(control >> 5);
        if high == 0 {
            let (literals, after) = after.split_at_checked(usize::from(control) + 1)?;
            rest = after;
            if literals.len() > len - text.len() {
                return None;
            }
            text.extend_from_slice(literals);
            continue;
        }
        let (more, after) = match high {
            7 => after.split_first().map(|(&more, after)| (usize::from(more), after))?,
            _ => (0, after),
        };
        let (&low, after) = after.split_first()?;
        rest = after;
        let back = (usize::from(control & 0x1f) << 8 | usize::from(low)) + 1;
        let start = text.len().checked_sub(back)?;
        let count = high + more + 2;
        if count > len - text.len() {
            return None;
        }
        // Source and destination may overlap: then the bytes from `start` on repeat.
        let mut left = count;
        while left > 0 {
            let part = left.min(text.len() - start);
            text.extend_from_within(start..start + part);
            left -= part;
        }
    }
    (text.len() == len).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn compressed(text: &[u8]) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        Compressor::default().compress(text, &mut out).then_some(out)
    }

    #[test]
    fn repetitions_may_overlap() {
        assert_eq!(decompress(b"\x00a\xe0\x02\x00", 12).as_deref(), Some(&b"aaaaaaaaaaaa"[..]));
        assert_eq!(decompress(b"\x00a\x20\x01", 4), None);
        assert_eq!(decompress(b"\x00a", 2), None);
        assert_eq!(decompress(b"\x01ab\x20\x01\x00x", 6).as_deref(), Some(&b"ababax"[..]));
    }

    #[test]
    fn a_long_string_declared_by_few_bytes_is_refused() {
        assert_eq!(decompress(b"\x00a\xe0\xff\x00", 512 * 1024 * 1024), None);
    }

    #[test]
    fn incompressible_strings_are_not_compressed() {
        assert_eq!(compressed(b"abcdefghijklmnopqrstuvwxyz"), None);
        assert_eq!(compressed(b""), None);
        let mut out = b"before".to_vec();
        assert!(!Compressor::default().compress(b"abcdefgh", &mut out));
        assert_eq!(out, b"before");
    }

    #[test]
    fn a_string_does_not_refer_to_earlier_ones() {
        let mut compressor = Compressor::default();
        let text = b"twenty-one bytes twenty-one bytes";
        let mut first = Vec::new();
        assert!(compressor.compress(text, &mut first));
        for _ in 0..10 {
            let mut again = Vec::new();
            assert!(compressor.compress(text, &mut again));
            assert_eq!(again, first);
        }
        // Positions overflow.
        compressor.base = u32::MAX - 40;
        for _ in 0..10 {
            let mut again = Vec::new();
            assert!(compressor.compress(text, &mut again));
            assert_eq!(again, first);
        }
    }

    proptest! {
        #[test]
        fn what_is_compressed_is_decompressed(
            texts in prop::collection::vec(
                prop_oneof![
                    prop::collection::vec(0..4u8, 0..2000),
                    prop::collection::vec(any::<u8>(), 0..300),
                    (1..20usize, 1..30_000usize).prop_map(|(period, len)| {
                        (0..len).map(|at| (at % period) as u8).collect()
                    }),
                ],
                1..4,
            ),
        ) {
            let mut compressor = Compressor::default();
            for text in texts {
                let mut out = Vec::new();
                let is_compressed = compressor.compress(&text, &mut out);
                for piece in [1, 7, 300, 9000] {
                    let (mut in_pieces, mut rests) = (Vec::new(), 0);
                    let pieces = text.chunks(piece);
                    let done =
                        compressor.compress_pieces(text.len(), pieces, &mut in_pieces, || rests += 1);
                    prop_assert_eq!(done, is_compressed);
                    prop_assert_eq!(&in_pieces, &out);
                    prop_assert!(!done || rests == text.len().div_ceil(piece));
                }
                if is_compressed {
                    prop_assert!(out.len() + 4 <= text.len());
                    prop_assert_eq!(decompress(&out, text.len() as u64), Some(text.clone()));
                    prop_assert_eq!(decompress(&out, text.len() as u64 + 1), None);
                    prop_assert_eq!(decompress(&out, text.len() as u64 - 1), None);
                } else {
                    prop_assert!(out.is_empty());
                }
            }
        }

        #[test]
        fn any_bytes_are_decompressed_or_refused(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            len in 0..20_000u64,
        ) {
            if let Some(text) = decompress(&bytes, len) {
                prop_assert_eq!(text.len() as u64, len);
            }
        }
    }
}
