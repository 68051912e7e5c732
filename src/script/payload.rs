//! The bytes of FUNCTION DUMP.
//!
//! ```text
//! ( F5 string )*  version  checksum
//! ```
//!
//! `F5` is RDB's opcode for a library, the string is its whole text in RDB's encoding; version and
//! checksum are those of DUMP. Ours are uncompressed and of version 10, which Redis 7.0 and later
//! read.

use crate::persist::rdb::{Encoder, Reader, Version, opcode, payload};

/// The payload of these texts.
pub fn write<'a>(texts: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut content = Vec::new();
    let mut encoder = Encoder::new(false);
    for text in texts {
        content.push(opcode::FUNCTION);
        encoder.string(text, &mut content);
    }
    payload::seal(&mut content, Version::REDIS_10);
    content
}

/// The payload without its footer; None if that is invalid.
pub fn verify(payload: &[u8]) -> Option<&[u8]> {
    payload::verify(payload).map(|(_, content)| content)
}

/// Passes on the texts of a payload, until one is refused.
pub fn read(
    content: &[u8],
    mut take: impl FnMut(&[u8]) -> Result<(), Vec<u8>>,
) -> Result<(), Vec<u8>> {
    let mut reader = Reader::new(content, 0);
    while let Ok(kind) = reader.byte("a library") {
        match kind {
            opcode::FUNCTION => {
                let text = reader.string("a library");
                take(&text.map_err(|_| &b"Failed loading library payload"[..])?)?;
            }
            opcode::FUNCTION_PRE_GA => {
                return Err(
                    b"libraries of the release candidates of 7.0 are not supported".to_vec()
                );
            }
            _ => return Err(b"given type is not a function".to_vec()),
        }
    }
    Ok(())
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

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            texts_of(&bytes);
            let _ = read(&bytes, |_| Ok(()));
            let _ = read(&[&b"\xf5\xc3"[..], &bytes].concat(), |_| Ok(()));
        }
    }
}
