//! The bytes of FUNCTION DUMP.
//!
//! ```text
//! ( F5 string )*  version  checksum
//! ```
//!
//! `F5` is RDB's opcode for a library, the string its whole text as RDB writes strings: a length of 1, 2, 5 or 9 bytes, or
//! compressed by LZF (`C3`, length compressed, length, bytes). The version of RDB has 2 bytes, little-endian; the checksum
//! is CRC-64/REDIS over all before it, 8 bytes, little-endian. Ours are not compressed and of version 10, which Redis 7.0
//! and all later servers read.

use crc::{CRC_64_REDIS, Crc, Table};

/// The opcode of a library; that of the release candidates of 7.0 had more fields.
const OPCODE: u8 = 0xf5;
const OPCODE_OF_CANDIDATES: u8 = 0xf6;
const VERSION: u16 = 10;
/// Valkey 9 writes 80. The form of libraries has not changed since 10.
const VERSION_MAX: u16 = 80;
const FOOTER: usize = 10;
/// A text is never longer: what declares more is broken.
const TEXT_MAX: u64 = 512 * 1024 * 1024;

const CHECKSUM: Crc<u64, Table<16>> = Crc::<u64, Table<16>>::new(&CRC_64_REDIS);

/// The payload of these texts.
pub fn write<'a>(texts: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut payload = Vec::new();
    for text in texts {
        payload.push(OPCODE);
        match text.len() {
            len @ ..0x40 => payload.push(len as u8),
            len @ ..0x4000 => payload.extend_from_slice(&(len as u16 | 0x4000).to_be_bytes()),
            len => {
                payload.push(0x80);
                payload.extend_from_slice(&(len as u32).to_be_bytes());
            }
        }
        payload.extend_from_slice(text);
    }
    payload.extend_from_slice(&VERSION.to_le_bytes());
    let checksum = CHECKSUM.checksum(&payload);
    payload.extend_from_slice(&checksum.to_le_bytes());
    payload
}

/// The payload without its footer; none if that is wrong.
pub fn verify(payload: &[u8]) -> Option<&[u8]> {
    let (content, footer) = payload.split_at_checked(payload.len().checked_sub(FOOTER)?)?;
    let (version, checksum) = footer.split_first_chunk()?;
    let is_known = u16::from_le_bytes(*version) <= VERSION_MAX;
    let computed = CHECKSUM.checksum(&payload[..content.len() + 2]).to_le_bytes();
    (is_known && computed == checksum).then_some(content)
}

/// Hands on the texts of a payload's content, until one is refused.
pub fn read(
    mut content: &[u8],
    mut take: impl FnMut(&[u8]) -> Result<(), Vec<u8>>,
) -> Result<(), Vec<u8>> {
    while let Some((&opcode, rest)) = content.split_first() {
        content = rest;
        match opcode {
            OPCODE => {
                let text =
                    read_string(&mut content).ok_or(&b"Failed loading library payload"[..])?;
                take(&text)?;
            }
            OPCODE_OF_CANDIDATES => {
                return Err(
                    b"libraries of the release candidates of 7.0 are not supported".to_vec()
                );
            }
            _ => return Err(b"given type is not a function".to_vec()),
        }
    }
    Ok(())
}

fn take<'a>(rest: &mut &'a [u8], len: u64) -> Option<&'a [u8]> {
    let (bytes, behind) = rest.split_at_checked(usize::try_from(len).ok()?)?;
    *rest = behind;
    Some(bytes)
}

/// A number as RDB writes lengths; the second part tells that it is not one but a special encoding.
fn read_len(rest: &mut &[u8]) -> Option<(u64, bool)> {
    let first = take(rest, 1)?[0];
    let len = match first >> 6 {
        0 => u64::from(first & 0x3f),
        1 => u64::from(first & 0x3f) << 8 | u64::from(take(rest, 1)?[0]),
        2 if first == 0x80 => u64::from(u32::from_be_bytes(take(rest, 4)?.try_into().ok()?)),
        2 if first == 0x81 => u64::from_be_bytes(take(rest, 8)?.try_into().ok()?),
        2 => return None,
        _ => return Some((u64::from(first & 0x3f), true)),
    };
    Some((len, false))
}

fn read_string(rest: &mut &[u8]) -> Option<Vec<u8>> {
    match read_len(rest)? {
        (len, false) => Some(take(rest, len)?.to_vec()),
        // Integers of 1, 2 and 4 bytes: their digits.
        (0, true) => Some(i8::from_le_bytes(take(rest, 1)?.try_into().ok()?).to_string().into()),
        (1, true) => Some(i16::from_le_bytes(take(rest, 2)?.try_into().ok()?).to_string().into()),
        (2, true) => Some(i32::from_le_bytes(take(rest, 4)?.try_into().ok()?).to_string().into()),
        (3, true) => {
            let (compressed, _) = read_len(rest)?;
            let (len, _) = read_len(rest)?;
            decompress(take(rest, compressed)?, len)
        }
        _ => None,
    }
}

/// LZF: runs of bytes as they are, and repetitions of what came up to 8 KiB before.
fn decompress(mut rest: &[u8], len: u64) -> Option<Vec<u8>> {
    // The declared length is not reserved: it may be anything. Each byte gives 264 at most.
    if len > TEXT_MAX {
        return None;
    }
    let mut text = Vec::new();
    while let Some((&control, behind)) = rest.split_first() {
        rest = behind;
        let high = usize::from(control >> 5);
        if high == 0 {
            text.extend_from_slice(take(&mut rest, u64::from(control) + 1)?);
        } else {
            let more = if high == 7 { usize::from(take(&mut rest, 1)?[0]) } else { 0 };
            let back = (usize::from(control & 0x1f) << 8 | usize::from(take(&mut rest, 1)?[0])) + 1;
            let start = text.len().checked_sub(back)?;
            // It may overlap what it writes.
            for index in start..start + high + more + 2 {
                text.push(text[index]);
            }
        }
        if text.len() as u64 > len {
            return None;
        }
    }
    (text.len() as u64 == len).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn texts_of(payload: &[u8]) -> Option<Vec<Vec<u8>>> {
        let mut texts = Vec::new();
        let result = read(verify(payload)?, |text| {
            texts.push(text.to_vec());
            Ok(())
        });
        result.ok().map(|()| texts)
    }

    #[test]
    fn an_empty_dump_is_that_of_redis() {
        let captured = b"\x0a\x00\x5d\x9b\x5c\x40\x0f\x7f\xa2\xda";
        assert_eq!(write([].into_iter()), captured);
        assert_eq!(texts_of(captured), Some(vec![]));
    }

    #[test]
    fn what_is_written_is_read() {
        for len in [0, 1, 63, 64, 16383, 16384, 100_000] {
            let text: Vec<u8> = (0..len).map(|index| index as u8).collect();
            assert_eq!(
                texts_of(&write([&text[..], b"x"].into_iter())),
                Some(vec![text, b"x".to_vec()])
            );
        }
    }

    #[test]
    fn repetitions_may_overlap() {
        assert_eq!(decompress(b"\x00a\xe0\x02\x00", 12).as_deref(), Some(&b"aaaaaaaaaaaa"[..]));
        assert_eq!(decompress(b"\x00a\x20\x01", 4), None);
        assert_eq!(decompress(b"\x00a", 2), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            texts_of(&bytes);
            let _ = read(&bytes, |_| Ok(()));
            let _ = read(&[&b"\xf5\xc3"[..], &bytes].concat(), |_| Ok(()));
        }
    }
}
