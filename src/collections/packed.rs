//! Elements of packed collections: concatenated byte strings, with compact integers.
//!
//! An element is encoded as in Redis's listpack (`listpack.md` by its author), without the length
//! after each element, header and end:
//!
//! ```text
//!   0xxxxxxx                            integer 0 to 127
//!   10xxxxxx bytes                      string up to 63 bytes
//!   110xxxxx xxxxxxxx                   integer of 13 bits, two's complement
//!   1110xxxx xxxxxxxx bytes             string up to 4,095 bytes
//!   11110000 4 bytes of length, bytes   string
//!   11110001 to 11110100                integer of 2, 3, 4, 8 bytes, little-endian
//! ```
//!
//! Untrusted bytes are safe: an invalid element ends the iteration.

use crate::resp::number::{NumberText, format_i64, parse_i64};

/// One element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element<'a> {
    Bytes(&'a [u8]),
    Integer(i64),
}

/// An element's text: borrowed, or formatted.
pub enum Text<'a> {
    Bytes(&'a [u8]),
    Number(NumberText),
}

impl AsRef<[u8]> for Text<'_> {
    fn as_ref(&self) -> &[u8] {
        match self {
            Text::Bytes(bytes) => bytes,
            Text::Number(text) => text.as_ref(),
        }
    }
}

impl<'a> Element<'a> {
    /// The element of `bytes`: an integer if they are its shortest decimal text.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Element<'a> {
        match bytes {
            [b'-' | b'0'..=b'9', ..] if bytes.len() <= 20 => {
                parse_i64(bytes).map_or(Element::Bytes(bytes), Element::Integer)
            }
            _ => Element::Bytes(bytes),
        }
    }

    /// The element's text.
    #[inline]
    pub fn text(&self) -> Text<'a> {
        match *self {
            Element::Bytes(bytes) => Text::Bytes(bytes),
            Element::Integer(value) => Text::Number(format_i64(value)),
        }
    }

    /// Bytes of the text.
    pub fn text_len(&self) -> usize {
        self.text().as_ref().len()
    }

    /// Bytes of the encoded element.
    #[inline]
    pub fn encoded_len(&self) -> usize {
        match *self {
            Element::Bytes(bytes) => {
                bytes.len()
                    + match bytes.len() {
                        0..64 => 1,
                        64..4096 => 2,
                        _ => 5,
                    }
            }
            Element::Integer(0..=127) => 1,
            Element::Integer(-4096..=4095) => 2,
            Element::Integer(value) => 1 + integer_bytes(value),
        }
    }

    /// A string's header, or a whole encoded integer: the array's first bytes, and their number.
    #[inline]
    pub(super) fn head(&self) -> ([u8; 9], usize) {
        let mut head = [0; 9];
        let len = match *self {
            Element::Bytes(bytes) => match bytes.len() {
                len @ 0..64 => {
                    head[0] = 0x80 | len as u8;
                    1
                }
                len @ 64..4096 => {
                    head[..2].copy_from_slice(&[0xe0 | (len >> 8) as u8, len as u8]);
                    2
                }
                len => {
                    head[0] = 0xf0;
                    head[1..5].copy_from_slice(&(len as u32).to_le_bytes());
                    5
                }
            },
            Element::Integer(value @ 0..=127) => {
                head[0] = value as u8;
                1
            }
            Element::Integer(value @ -4096..=4095) => {
                head[..2].copy_from_slice(&[0xc0 | (value >> 8 & 0x1f) as u8, value as u8]);
                2
            }
            Element::Integer(value) => {
                let len = integer_bytes(value);
                head[0] = match len {
                    2 => 0xf1,
                    3 => 0xf2,
                    4 => 0xf3,
                    _ => 0xf4,
                };
                head[1..].copy_from_slice(&value.to_le_bytes());
                1 + len
            }
        };
        (head, len)
    }

    /// Appends the encoded element. A string has less than 4 GiB, as requests are shorter.
    #[inline]
    pub fn write(&self, out: &mut Vec<u8>) {
        // The usual ones without a copy whose length varies.
        match *self {
            Element::Integer(value @ 0..=127) => return out.push(value as u8),
            Element::Integer(value) if integer_bytes(value) == 8 => {
                let mut whole = [0xf4; 9];
                whole[1..].copy_from_slice(&value.to_le_bytes());
                return out.extend_from_slice(&whole);
            }
            Element::Bytes(bytes) if bytes.len() < 64 => {
                out.push(0x80 | bytes.len() as u8);
                return out.extend_from_slice(bytes);
            }
            _ => {}
        }
        let (head, len) = self.head();
        out.extend_from_slice(&head[..len]);
        if let Element::Bytes(bytes) = self {
            out.extend_from_slice(bytes);
        }
    }

    /// Decodes the element at the start of `bytes`; also returns its length. None if there is none.
    #[inline]
    pub fn read(bytes: &'a [u8]) -> Option<(Element<'a>, usize)> {
        let first = *bytes.first()?;
        let (head, len) = match first {
            0..0x80 => return Some((Element::Integer(first.into()), 1)),
            0x80..0xc0 => (1, usize::from(first & 0x3f)),
            0xc0..0xe0 => {
                let value = i16::from_be_bytes([first & 0x1f, *bytes.get(1)?]);
                return Some((Element::Integer((value << 3 >> 3).into()), 2));
            }
            0xe0..0xf0 => (2, usize::from(first & 0x0f) << 8 | usize::from(*bytes.get(1)?)),
            0xf0 => {
                let len = u32::from_le_bytes(bytes.get(1..5)?.try_into().ok()?);
                (5, len as usize)
            }
            0xf4 => {
                let value = i64::from_le_bytes(*bytes[1..].first_chunk()?);
                return Some((Element::Integer(value), 9));
            }
            0xf1..=0xf3 => {
                let len = usize::from(first - 0xf1) + 2;
                let little = bytes.get(1..1 + len)?;
                let mut wide = [0; 8];
                wide[8 - len..].copy_from_slice(little);
                let value = i64::from_le_bytes(wide) >> (64 - 8 * len);
                return Some((Element::Integer(value), 1 + len));
            }
            _ => return None,
        };
        let end = head + len;
        Some((Element::Bytes(bytes.get(head..end)?), end))
    }
}

/// Bytes of an integer that does not fit the short forms.
fn integer_bytes(value: i64) -> usize {
    match value {
        -0x8000..=0x7fff => 2,
        -0x80_0000..=0x7f_ffff => 3,
        -0x8000_0000..=0x7fff_ffff => 4,
        _ => 8,
    }
}

/// Iterates over packed elements.
#[derive(Clone, Copy, Debug)]
pub struct Elements<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Elements<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Elements { bytes, at: 0 }
    }

    /// Offset of the next element.
    #[inline]
    pub fn position(&self) -> usize {
        self.at
    }
}

impl<'a> Iterator for Elements<'a> {
    type Item = Element<'a>;

    #[inline]
    fn next(&mut self) -> Option<Element<'a>> {
        let (element, len) = Element::read(&self.bytes[self.at..])?;
        self.at += len;
        Some(element)
    }
}

/// Whether the bytes are valid elements.
pub fn is_valid(bytes: &[u8]) -> bool {
    let mut elements = Elements::new(bytes);
    elements.by_ref().for_each(drop);
    elements.position() == bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn integers_take_few_bytes() {
        for (text, len) in [
            ("0", 1),
            ("127", 1),
            ("128", 2),
            ("-1", 2),
            ("4095", 2),
            ("-4096", 2),
            ("4096", 3),
            ("-32769", 4),
            ("8388608", 5),
            ("2147483648", 9),
            ("-9223372036854775808", 9),
            ("007", 4),
            ("-0", 3),
            ("9223372036854775808", 20),
        ] {
            assert_eq!(Element::new(text.as_bytes()).encoded_len(), len, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(
            texts in prop::collection::vec(
                prop_oneof![
                    any::<i64>().prop_map(|value| value.to_string().into_bytes()),
                    (-5000..5000i64).prop_map(|value| value.to_string().into_bytes()),
                    prop::collection::vec(any::<u8>(), 0..80),
                    (4090..4100usize).prop_map(|len| vec![b'x'; len]),
                ],
                0..20,
            )
        ) {
            let mut packed = Vec::new();
            for text in &texts {
                let before = packed.len();
                let element = Element::new(text);
                element.write(&mut packed);
                prop_assert_eq!(packed.len() - before, element.encoded_len());
                prop_assert_eq!(element.text_len(), text.len());
            }
            prop_assert!(is_valid(&packed));
            let read: Vec<_> =
                Elements::new(&packed).map(|element| element.text().as_ref().to_vec()).collect();
            prop_assert_eq!(read, texts);
        }

        #[test]
        fn any_bytes_can_be_walked(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let mut elements = Elements::new(&bytes);
            for element in elements.by_ref() {
                element.text();
            }
            prop_assert!(elements.position() <= bytes.len());
        }
    }
}
