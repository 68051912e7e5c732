//! LZF, the compression of strings: fast, and shrinking little.
//!
//! ```text
//!   000LLLLL bytes                  L + 1 bytes as they are
//!   LLLooooo oooooooo               L + 2 bytes, L from 1 to 6, that stand o + 1 bytes before
//!   111ooooo LLLLLLLL oooooooo      L + 9 bytes that stand o + 1 bytes before
//! ```
//!
//! The compressor chooses as liblzf does with the settings of Redis, so that the same bytes come out. Its table of places is
//! kept between strings: clearing 256 KiB for each short string would cost more than compressing it. Places are
//! counted on from string to string, so that those of earlier ones are known to be none.

/// No string is longer: what declares more is damaged. Unit: bytes.
pub const LEN_MAX: u64 = 512 * 1024 * 1024;

/// Bits of the table's index.
const TABLE_BITS: u32 = 16;
const LITERALS_MAX: usize = 32;
const OFFSET_MAX: usize = 1 << 13;
const COPY_MAX: usize = (1 << 8) + (1 << 3);

/// Compresses strings.
pub struct Compressor {
    /// Where three bytes with this hash stood last.
    places: Box<[u32]>,
    /// Places below belong to earlier strings.
    base: u32,
}

impl Default for Compressor {
    fn default() -> Self {
        Compressor { places: vec![0; 1 << TABLE_BITS].into_boxed_slice(), base: 0 }
    }
}

/// The table's index for the three bytes at `at`.
#[inline]
fn index(text: &[u8], at: usize) -> usize {
    let bytes = u32::from(text[at]) << 16 | u32::from(text[at + 1]) << 8 | u32::from(text[at + 2]);
    let hash = (bytes >> (24 - TABLE_BITS)).wrapping_sub(bytes.wrapping_mul(5));
    (hash & ((1 << TABLE_BITS) - 1)) as usize
}

impl Compressor {
    /// Appends `text` compressed to `out`, if that takes less bytes by at least four; else appends nothing. Returns whether it
    /// did.
    pub fn compress(&mut self, text: &[u8], out: &mut Vec<u8>) -> bool {
        let Some(most) = text.len().checked_sub(4).filter(|most| *most > 0) else { return false };
        if text.len() as u64 > LEN_MAX {
            return false;
        }
        let start = out.len();
        let fits = self.write(text, out, most).is_some();
        if !fits {
            out.truncate(start);
        }
        fits
    }

    /// Notes where the three bytes at `at` stand; where they stood before in this string.
    #[inline]
    fn swap(&mut self, text: &[u8], at: usize) -> Option<usize> {
        let place = &mut self.places[index(text, at)];
        let before = place.checked_sub(self.base);
        // 0 is no place.
        *place = self.base + at as u32;
        before.map(|before| before as usize)
    }

    fn write(&mut self, text: &[u8], out: &mut Vec<u8>, most: usize) -> Option<()> {
        self.base = match self.base.checked_add(text.len() as u32) {
            // The places of this string are `base` and above; those of the one before are below.
            Some(_) if self.base > 0 => self.base,
            _ => {
                self.places.fill(0);
                1
            }
        };
        let result = self.write_from_base(text, out, most);
        self.base += text.len() as u32;
        result
    }

    fn write_from_base(&mut self, text: &[u8], out: &mut Vec<u8>, most: usize) -> Option<()> {
        let end = out.len() + most;
        // Literals that are collected stand behind a byte that is to tell how many they are.
        let mut run = out.len();
        out.push(0);
        let mut at = 0;
        while at + 2 < text.len() {
            let before = self.swap(text, at);
            let found = before.filter(|&before| {
                // The first byte is never referred to: liblzf takes it for the empty place.
                before > 0
                    && at - before <= OFFSET_MAX
                    && text[before..before + 3] == text[at..at + 3]
            });
            let Some(before) = found else {
                if out.len() >= end {
                    return None;
                }
                out.push(text[at]);
                at += 1;
                run = close_full_run(out, run);
                continue;
            };
            let has_literals = out.len() > run + 1;
            if out.len() - usize::from(!has_literals) + 4 >= end {
                return None;
            }
            if has_literals {
                out[run] = (out.len() - run - 2) as u8;
            } else {
                out.pop();
            }
            // liblzf compares sixteen bytes at once where there are so many, and one where there are not.
            let longest = match (text.len() - at - 2).min(COPY_MAX) {
                few @ ..=16 => few.max(3),
                many => many.max(19),
            };
            let same = text[before + 3..].iter().zip(&text[at + 3..]);
            let len = 3 + same.take(longest - 3).take_while(|(a, b)| a == b).count();
            let (offset, coded) = (at - before - 1, len - 2);
            if coded < 7 {
                out.push((offset >> 8) as u8 | (coded as u8) << 5);
            } else {
                out.push((offset >> 8) as u8 | 7 << 5);
                out.push((coded - 7) as u8);
            }
            out.push(offset as u8);
            run = out.len();
            out.push(0);
            at += len;
            if at + 2 >= text.len() {
                break;
            }
            // Of what was copied, the last two places are noted.
            self.swap(text, at - 2);
            self.swap(text, at - 1);
        }
        if out.len() + 3 > end {
            return None;
        }
        for &byte in &text[at..] {
            out.push(byte);
            run = close_full_run(out, run);
        }
        match out.len() - run - 1 {
            0 => drop(out.pop()),
            literals => out[run] = (literals - 1) as u8,
        }
        Some(())
    }
}

/// Where the run of literals that began at `run` goes on.
#[inline]
fn close_full_run(out: &mut Vec<u8>, run: usize) -> usize {
    if out.len() - run - 1 < LITERALS_MAX {
        return run;
    }
    out[run] = (LITERALS_MAX - 1) as u8;
    out.push(0);
    out.len() - 1
}

/// The string of `len` bytes that was compressed; None if it is another one or damaged. Memory is taken as bytes come out.
pub fn decompress(compressed: &[u8], len: u64) -> Option<Vec<u8>> {
    // A repetition of three bytes gives 264 at most.
    if len > LEN_MAX || len > compressed.len() as u64 * 88 {
        return None;
    }
    let len = len as usize;
    let mut text = Vec::with_capacity(len.min(compressed.len().saturating_mul(2)));
    let mut rest = compressed;
    while let Some((&control, behind)) = rest.split_first() {
        let high = usize::from(control >> 5);
        if high == 0 {
            let (literals, behind) = behind.split_at_checked(usize::from(control) + 1)?;
            rest = behind;
            if literals.len() > len - text.len() {
                return None;
            }
            text.extend_from_slice(literals);
            continue;
        }
        let (more, behind) = match high {
            7 => behind.split_first().map(|(&more, behind)| (usize::from(more), behind))?,
            _ => (0, behind),
        };
        let (&low, behind) = behind.split_first()?;
        rest = behind;
        let back = (usize::from(control & 0x1f) << 8 | usize::from(low)) + 1;
        let start = text.len().checked_sub(back)?;
        let count = high + more + 2;
        if count > len - text.len() {
            return None;
        }
        // It may overlap what it writes: then the bytes from `start` on repeat.
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
    fn what_does_not_shrink_is_left_alone() {
        assert_eq!(compressed(b"abcdefghijklmnopqrstuvwxyz"), None);
        assert_eq!(compressed(b""), None);
        let mut out = b"before".to_vec();
        assert!(!Compressor::default().compress(b"abcdefgh", &mut out));
        assert_eq!(out, b"before");
    }

    #[test]
    fn earlier_strings_are_no_part_of_a_later_one() {
        let mut compressor = Compressor::default();
        let text = b"twenty-one bytes twenty-one bytes";
        let mut first = Vec::new();
        assert!(compressor.compress(text, &mut first));
        for _ in 0..10 {
            let mut again = Vec::new();
            assert!(compressor.compress(text, &mut again));
            assert_eq!(again, first);
        }
        // Places run full.
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
                if compressor.compress(&text, &mut out) {
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
