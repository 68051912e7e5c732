//! Collections packed inside a string: listpacks, ziplists, zipmaps and intsets. Each is checked
//! completely before use.
//!
//! ```text
//!   listpack   bytes: u32 | elements: u16, 65535 if more | entries (collections/listpack.rs) | ff
//!   ziplist    bytes: u32 | offset of the last entry: u32 | entries: u16, 65535 if more | entries | ff
//!     entry    length of the previous entry: u8, or fe and u32 | encoding | bytes
//!   zipmap     fields: u8, 254 if more | (length | field | length | unused: u8 | value | unused bytes)* | ff
//!     length   u8, or fe and u32
//!   intset     bytes of an integer: u32 | count: u32 | integers in ascending order
//! ```
//!
//! All numbers are little-endian, except the lengths of a ziplist's strings. Ziplists and zipmaps
//! become listpack entries.

use std::borrow::Cow;

use crate::collections::intset;
use crate::collections::listpack;
use crate::collections::packed::{Element, Text};

/// The count in the header of a listpack or ziplist that has more entries.
const COUNT_UNKNOWN: u16 = u16::MAX;
const END: u8 = 0xff;
const LISTPACK_HEADER: usize = 6;
const ZIPLIST_HEADER: usize = 10;
/// The length follows in four bytes.
const LONG: u8 = 254;

/// Listpack entries without header and end, as in `collections/listpack.rs`.
#[derive(Debug)]
pub(super) struct Packed<'a> {
    pub entries: Cow<'a, [u8]>,
    pub count: usize,
}

impl<'a> Packed<'a> {
    /// The entries of a listpack; None if it is damaged.
    pub fn of_listpack(bytes: &'a [u8]) -> Option<Self> {
        let (header, rest) = bytes.split_first_chunk::<LISTPACK_HEADER>()?;
        let (&END, entries) = rest.split_last()? else { return None };
        let total = u32::from_le_bytes(*header.first_chunk()?);
        let declared = u16::from_le_bytes(*header.last_chunk()?);
        let count = listpack::count(entries)?;
        let is_whole = total as usize == bytes.len() && is_count(declared, count);
        is_whole.then_some(Packed { entries: entries.into(), count })
    }

    /// The entries of a ziplist; None if it is damaged.
    pub fn of_ziplist(bytes: &[u8]) -> Option<Self> {
        let header = bytes.first_chunk::<ZIPLIST_HEADER>()?;
        let total = u32::from_le_bytes(*header.first_chunk()?) as usize;
        let tail = u32::from_le_bytes(header[4..8].try_into().ok()?) as usize;
        let declared = u16::from_le_bytes(*header.last_chunk()?);
        if total != bytes.len() {
            return None;
        }
        let mut packed = Packed { entries: Vec::new().into(), count: 0 };
        let (mut at, mut before, mut last) = (ZIPLIST_HEADER, 0, ZIPLIST_HEADER);
        while *bytes.get(at)? != END {
            let (entry_before, len, element) = ziplist_entry(&bytes[at..])?;
            if entry_before != before {
                return None;
            }
            packed.push(element.text().as_ref());
            (last, before) = (at, len);
            at += len;
        }
        let is_whole = at + 1 == bytes.len() && tail == last && is_count(declared, packed.count);
        is_whole.then_some(packed)
    }

    /// The fields and values of a zipmap, alternately; None if it is damaged.
    pub fn of_zipmap(bytes: &[u8]) -> Option<Self> {
        let (&declared, mut rest) = bytes.split_first()?;
        let mut packed = Packed { entries: Vec::new().into(), count: 0 };
        while rest != [END] {
            let len = zipmap_len(&mut rest)?;
            let (field, after) = rest.split_at_checked(len)?;
            rest = after;
            let len = zipmap_len(&mut rest)?;
            let (&unused, after) = rest.split_first()?;
            let (value, after) = after.split_at_checked(len)?;
            rest = after.get(usize::from(unused)..)?;
            packed.push(field);
            packed.push(value);
        }
        let is_whole = declared >= LONG || usize::from(declared) == packed.count / 2;
        is_whole.then_some(packed)
    }

    fn push(&mut self, text: &[u8]) {
        listpack::append(Element::new(text), self.entries.to_mut());
        self.count += 1;
    }

    /// The texts of all entries.
    pub fn texts(&self) -> impl Iterator<Item = Text<'_>> + Clone {
        self.elements().map(|element| element.text())
    }

    pub fn elements(&self) -> impl Iterator<Item = Element<'_>> + Clone {
        let mut rest: &[u8] = &self.entries;
        std::iter::from_fn(move || {
            let (element, len) = listpack::first(rest)?;
            rest = &rest[len..];
            Some(element)
        })
    }

    /// The entries in canonical form, each as short as possible: equal elements have equal bytes.
    pub fn into_canonical(self) -> Vec<u8> {
        let is_canonical = |bytes: &[u8]| {
            let mut rest = bytes;
            while let Some((element, len)) = listpack::first(rest) {
                // The text of an integer is an integer.
                let is_number =
                    matches!(element, Element::Bytes(bytes) if Element::new(bytes) != element);
                if is_number || listpack::entry_len(element) != len {
                    return false;
                }
                rest = &rest[len..];
            }
            true
        };
        if is_canonical(&self.entries) {
            return self.entries.into_owned();
        }
        let mut entries = Vec::new();
        for text in self.texts() {
            listpack::append(Element::new(text.as_ref()), &mut entries);
        }
        entries
    }
}

fn is_count(declared: u16, count: usize) -> bool {
    declared == COUNT_UNKNOWN || usize::from(declared) == count
}

/// The first entry: the previous entry's length, its converted length, and its element.
fn ziplist_entry(bytes: &[u8]) -> Option<(usize, usize, Element<'_>)> {
    let (before, head) = match *bytes.first()? {
        LONG => (u32::from_le_bytes(bytes.get(1..5)?.try_into().ok()?) as usize, 5),
        len => (usize::from(len), 1),
    };
    let encoding = *bytes.get(head)?;
    let string = |head: usize, len: usize| {
        let end = head.checked_add(len)?;
        Some((before, end, Element::Bytes(bytes.get(head..end)?)))
    };
    // An integer of `len` bytes, sign-extended.
    let integer = |len: usize| {
        let little = bytes.get(head + 1..head + 1 + len)?;
        let mut wide = [0; 8];
        wide[8 - len..].copy_from_slice(little);
        let value = i64::from_le_bytes(wide) >> (64 - 8 * len);
        Some((before, head + 1 + len, Element::Integer(value)))
    };
    match encoding >> 6 {
        0 => string(head + 1, usize::from(encoding & 0x3f)),
        1 => {
            let low = *bytes.get(head + 1)?;
            string(head + 2, usize::from(encoding & 0x3f) << 8 | usize::from(low))
        }
        2 => {
            let len = u32::from_be_bytes(bytes.get(head + 1..head + 5)?.try_into().ok()?);
            string(head + 5, len as usize)
        }
        _ => match encoding {
            0xc0 => integer(2),
            0xd0 => integer(4),
            0xe0 => integer(8),
            0xf0 => integer(3),
            0xfe => integer(1),
            0xf1..=0xfd => {
                Some((before, head + 1, Element::Integer(i64::from(encoding & 0x0f) - 1)))
            }
            _ => None,
        },
    }
}

fn zipmap_len(rest: &mut &[u8]) -> Option<usize> {
    let (&first, after) = rest.split_first()?;
    *rest = after;
    match first {
        LONG => {
            let (len, after) = rest.split_first_chunk()?;
            *rest = after;
            // A shorter one takes one byte.
            Some(u32::from_le_bytes(*len) as usize).filter(|&len| len >= usize::from(LONG))
        }
        END => None,
        len => Some(len.into()),
    }
}

/// An intset in the form of `collections/intset.rs`: a byte for the width, then the integers. None
/// if it is damaged or empty.
pub(super) fn intset(bytes: &[u8]) -> Option<Vec<u8>> {
    let (width, rest) = bytes.split_first_chunk()?;
    let (count, integers) = rest.split_first_chunk()?;
    let (width, count) = (u32::from_le_bytes(*width), u32::from_le_bytes(*count) as usize);
    if !matches!(width, 2 | 4 | 8) || count.checked_mul(width as usize)? != integers.len() {
        return None;
    }
    let mut converted = Vec::with_capacity(1 + integers.len());
    converted.push(width as u8);
    converted.extend_from_slice(integers);
    (count > 0 && intset::is_valid(&converted)).then_some(converted)
}

/// Writes a listpack: header, entries and end.
#[derive(Debug, Default)]
pub(super) struct ListpackWriter {
    bytes: Vec<u8>,
    count: usize,
}

impl ListpackWriter {
    /// Begins a new listpack.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.extend_from_slice(&[0; LISTPACK_HEADER]);
        self.count = 0;
    }

    pub fn push(&mut self, element: Element<'_>) {
        listpack::append(element, &mut self.bytes);
        self.count += 1;
    }

    pub fn push_text(&mut self, text: &[u8]) {
        self.push(Element::new(text));
    }

    pub fn push_integer(&mut self, value: i64) {
        self.push(Element::Integer(value));
    }

    /// Adds `count` encoded entries.
    pub fn push_entries(&mut self, entries: &[u8], count: usize) {
        self.bytes.extend_from_slice(entries);
        self.count += count;
    }

    /// Ends the listpack. Returns its bytes.
    pub fn finish(&mut self) -> &[u8] {
        self.bytes.push(END);
        let total = self.bytes.len() as u32;
        self.bytes[..4].copy_from_slice(&total.to_le_bytes());
        let count = u16::try_from(self.count).unwrap_or(COUNT_UNKNOWN);
        self.bytes[4..LISTPACK_HEADER].copy_from_slice(&count.to_le_bytes());
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn texts(packed: Option<Packed<'_>>) -> Option<Vec<Vec<u8>>> {
        packed.map(|packed| packed.texts().map(|text| text.as_ref().to_vec()).collect())
    }

    #[test]
    fn a_ziplist_of_every_encoding_is_read() {
        // Written after Redis 6's ziplist.c: strings of 2, 70 and 20,000 bytes; integers of each
        // width.
        let mut entries: Vec<Vec<u8>> = vec![
            [&b"\x02hi"[..]].concat(),
            [&b"\x40\x46"[..], &[b'x'; 70]].concat(),
            [&b"\x80\x00\x00\x4e\x20"[..], &[b'y'; 20_000]].concat(),
        ];
        entries.extend([
            b"\xf1".to_vec(),
            b"\xfd".to_vec(),
            b"\xfe\x80".to_vec(),
            b"\xc0\x00\x80".to_vec(),
            b"\xf0\x00\x00\x80".to_vec(),
            b"\xd0\x00\x00\x00\x80".to_vec(),
            b"\xe0\x00\x00\x00\x00\x00\x00\x00\x80".to_vec(),
        ]);
        let mut body = Vec::new();
        let (mut before, mut last) = (0usize, 0);
        for entry in &entries {
            last = body.len();
            if before < 254 {
                body.push(before as u8);
            } else {
                body.push(254);
                body.extend_from_slice(&(before as u32).to_le_bytes());
            }
            body.extend_from_slice(entry);
            before = body.len() - last;
        }
        let ziplist = |tail: usize, count: u16| {
            let mut bytes = ((body.len() + 11) as u32).to_le_bytes().to_vec();
            bytes.extend_from_slice(&(tail as u32).to_le_bytes());
            bytes.extend_from_slice(&count.to_le_bytes());
            bytes.extend_from_slice(&body);
            bytes.push(END);
            bytes
        };
        let good = ziplist(last + 10, 10);
        let read = texts(Packed::of_ziplist(&good)).expect("it is whole");
        let shown: Vec<_> = read.iter().filter(|text| text.len() < 40).collect();
        let expected = ["hi", "0", "12", "-128", "-32768", "-8388608", "-2147483648"];
        assert_eq!(
            shown[..7],
            expected.map(|text| text.as_bytes().to_vec()).iter().collect::<Vec<_>>()
        );
        assert_eq!(shown[7].as_slice(), i64::MIN.to_string().as_bytes());
        assert_eq!((read[1].len(), read[2].len()), (70, 20_000));
        assert!(Packed::of_ziplist(&ziplist(last + 10, u16::MAX)).is_some());
        assert!(Packed::of_ziplist(&ziplist(last + 10, 9)).is_none());
        assert!(Packed::of_ziplist(&ziplist(last + 9, 10)).is_none());
        for len in 0..good.len() {
            assert!(Packed::of_ziplist(&good[..len]).is_none());
        }
    }

    #[test]
    fn a_zipmap_is_read() {
        let map = b"\x02\x03foo\x03\x00bar\x05hello\x01\x02!xx\xff";
        let read = texts(Packed::of_zipmap(map)).expect("it is whole");
        assert_eq!(read, [&b"foo"[..], b"bar", b"hello", b"!"]);
        assert!(Packed::of_zipmap(b"\x03\x03foo\x03\x00bar\xff").is_none());
        assert!(Packed::of_zipmap(b"\xfe\x03foo\x03\x00bar\xff").is_some());
        assert!(Packed::of_zipmap(b"\x01\x03foo\x03\x00ba\xff").is_none());
        // A length of four bytes that one byte could hold.
        assert!(Packed::of_zipmap(b"\x01\xfe\x03\0\0\0foo\x03\x00bar\xff").is_none());
        for len in 0..map.len() {
            assert!(Packed::of_zipmap(&map[..len]).is_none());
        }
    }

    #[test]
    fn an_intset_is_read_if_it_ascends() {
        let good = b"\x02\0\0\0\x02\0\0\0\xff\xff\x07\0";
        assert_eq!(intset(good).as_deref(), Some(&b"\x02\xff\xff\x07\0"[..]));
        assert_eq!(intset(b"\x02\0\0\0\x02\0\0\0\x07\0\x07\0"), None);
        assert_eq!(intset(b"\x02\0\0\0\x03\0\0\0\x07\0\x08\0"), None);
        assert_eq!(intset(b"\x03\0\0\0\x01\0\0\0\x07\0\x08"), None);
        assert_eq!(intset(b"\x08\0\0\0\xff\xff\xff\xff"), None);
    }

    #[test]
    fn entries_are_made_as_short_as_possible() {
        // The text 7, and the integer 7 in two bytes.
        let bytes = b"\x0d\0\0\0\x02\0\x817\x02\xc0\x07\x02\xff";
        let packed = Packed::of_listpack(bytes).expect("it is whole");
        assert_eq!(packed.into_canonical(), b"\x07\x01\x07\x01");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(mut bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            // With the right total, parsing gets further.
            if bytes.len() > 4 {
                let total = bytes.len() as u32;
                bytes[..4].copy_from_slice(&total.to_le_bytes());
            }
            texts(Packed::of_listpack(&bytes));
            texts(Packed::of_ziplist(&bytes));
            texts(Packed::of_zipmap(&bytes));
            intset(&bytes);
        }
    }
}
