//! List entries: packed elements that can be iterated from either end.
//!
//! Each element of [`super::packed`] is followed by its length, so that the previous element can be
//! found. The bytes are those between header and end of a Redis listpack:
//!
//! ```text
//!   entry | entry | ...            entry: element, length of the element
//!   0xxxxxxx                       length up to 127
//!   0xxxxxxx 1xxxxxxx ...          longer ones: 7 bits a byte, the most significant first, at most 5 bytes
//! ```
//!
//! Read backwards, a byte with the high bit set is followed by another one of the length.
//!
//! Untrusted bytes are safe: an invalid entry ends the iteration.

use super::packed::Element;

/// Bytes of a listpack's header and end, which Redis counts too.
pub const FRAME_BYTES: usize = 7;

/// Bytes of an element's length. As in Redis the largest number of 14 bits takes three, and so on.
#[inline]
fn length_bytes(len: usize) -> usize {
    match len {
        0..=0x7f => 1,
        0x80..0x3fff => 2,
        0x3fff..0x1f_ffff => 3,
        0x1f_ffff..0xfff_ffff => 4,
        _ => 5,
    }
}

/// Bytes of an element's entry.
#[inline]
pub fn entry_len(element: Element<'_>) -> usize {
    let len = element.encoded_len();
    len + length_bytes(len)
}

/// Writes an element's entry to `out`, which must have its [`entry_len`].
#[inline]
pub fn write(element: Element<'_>, out: &mut [u8]) {
    let (head, mut len) = element.head();
    out[..len].copy_from_slice(&head[..len]);
    if let Element::Bytes(bytes) = element {
        out[len..len + bytes.len()].copy_from_slice(bytes);
        len += bytes.len();
    }
    let mut rest = len;
    let (first, later) = out[len..].split_first_mut().expect("a length takes a byte at least");
    for byte in later.iter_mut().rev() {
        *byte = (rest & 0x7f) as u8 | 0x80;
        rest >>= 7;
    }
    *first = rest as u8;
}

/// Appends an element's entry.
#[inline]
pub fn append(element: Element<'_>, out: &mut Vec<u8>) {
    let at = out.len();
    out.resize(at + entry_len(element), 0);
    write(element, &mut out[at..]);
}

/// The first entry's element and the entry's length; None if there is none.
#[inline]
pub fn first(bytes: &[u8]) -> Option<(Element<'_>, usize)> {
    let (element, len) = Element::read(bytes)?;
    let entry = len + length_bytes(len);
    (entry <= bytes.len()).then_some((element, entry))
}

/// The last entry's element and the entry's length; None if there is none.
#[inline]
pub fn last(bytes: &[u8]) -> Option<(Element<'_>, usize)> {
    let entry = last_len(bytes)?;
    let (element, len) = Element::read(&bytes[bytes.len() - entry..])?;
    (len + length_bytes(len) == entry).then_some((element, entry))
}

/// Length of the last entry, from the bytes at its end.
#[inline]
fn last_len(bytes: &[u8]) -> Option<usize> {
    let (mut len, mut shift) = (0, 0);
    for &byte in bytes.iter().rev().take(5) {
        len |= usize::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            let entry = len + shift / 7;
            return (entry <= bytes.len()).then_some(entry);
        }
    }
    None
}

/// Length of the first entry, without decoding it.
#[inline]
fn first_len(bytes: &[u8]) -> Option<usize> {
    let entry = match *bytes.first()? {
        0..0x80 => 2,
        short @ 0x80..0xc0 => usize::from(short & 0x3f) + 2,
        0xc0..0xe0 => 3,
        _ => return first(bytes).map(|(_, entry)| entry),
    };
    (entry <= bytes.len()).then_some(entry)
}

/// Offset of entry `index` of `count`, sought from the nearer end; the end of all if there are
/// fewer.
pub fn seek(bytes: &[u8], index: usize, count: usize) -> usize {
    if index <= count / 2 {
        let mut at = 0;
        for _ in 0..index {
            let Some(len) = first_len(&bytes[at..]) else { break };
            at += len;
        }
        at
    } else {
        let mut end = bytes.len();
        for _ in index..count {
            let Some(len) = last_len(&bytes[..end]) else { break };
            end -= len;
        }
        end
    }
}

/// Number of entries; None if the bytes are not valid entries.
pub fn count(bytes: &[u8]) -> Option<usize> {
    let (mut at, mut count) = (0, 0);
    while at < bytes.len() {
        let (_, len) = first(&bytes[at..])?;
        if last_len(&bytes[..at + len]) != Some(len) {
            return None;
        }
        at += len;
        count += 1;
    }
    Some(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packed(texts: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        texts.iter().for_each(|text| append(Element::new(text), &mut bytes));
        bytes
    }

    #[test]
    fn entries_are_the_bytes_redis_writes() {
        // DUMP of RPUSH l a 1000 on Redis 7.0.15, header and end aside; a string of 70 bytes; one
        // of 16,378.
        assert_eq!(packed(&[b"a".to_vec(), b"1000".to_vec()]), b"\x81a\x02\xc3\xe8\x02");
        assert_eq!(packed(&[vec![b'x'; 70]])[72..], [72]);
        assert_eq!(packed(&[vec![b'x'; 198]])[200..], [1, 0x80 | 72]);
        assert_eq!(packed(&[vec![b'x'; 0x3fff - 5]])[0x3fff..], [0, 0xff, 0xff]);
    }

    #[test]
    fn a_wrong_length_is_noticed() {
        assert_eq!(count(b"\x81a\x02"), Some(1));
        assert_eq!(count(b"\x81a\x03"), None);
        assert_eq!(count(b"\x81a"), None);
        assert_eq!(count(b"\x05\x01\x81a\x80"), None);
        assert_eq!(last(b"\x81a\x03"), None);
        assert_eq!(last(b"\xff\xff\xff\xff\xff\xff"), None);
    }

    fn texts() -> impl Strategy<Value = Vec<Vec<u8>>> {
        prop::collection::vec(
            prop_oneof![
                any::<i64>().prop_map(|value| value.to_string().into_bytes()),
                prop::collection::vec(any::<u8>(), 0..200),
                (16_370..16_390usize).prop_map(|len| vec![b'x'; len]),
            ],
            0..12,
        )
    }

    proptest! {
        #[test]
        fn entries_are_found_from_both_ends(texts in texts()) {
            let bytes = packed(&texts);
            prop_assert_eq!(count(&bytes), Some(texts.len()));
            let (mut at, mut end) = (0, bytes.len());
            for (index, text) in texts.iter().enumerate() {
                prop_assert_eq!(seek(&bytes, index, texts.len()), at);
                let (element, len) = first(&bytes[at..]).expect("an entry");
                prop_assert_eq!(first_len(&bytes[at..]), Some(len));
                prop_assert_eq!(element, Element::new(text));
                prop_assert_eq!(len, entry_len(element));
                at += len;
            }
            prop_assert_eq!(seek(&bytes, texts.len(), texts.len()), end);
            for text in texts.iter().rev() {
                let (element, len) = last(&bytes[..end]).expect("an entry");
                prop_assert_eq!(element, Element::new(text));
                end -= len;
            }
            prop_assert_eq!(end, 0);
        }

        #[test]
        fn any_bytes_can_be_walked(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let mut end = bytes.len();
            while let Some((_, len)) = last(&bytes[..end]) {
                end -= len;
            }
            if let Some(count) = count(&bytes) {
                prop_assert_eq!(end, 0);
                prop_assert_eq!(seek(&bytes, count, count), bytes.len());
            }
            seek(&bytes, 7, 20);
            seek(&bytes, 17, 20);
        }
    }
}
