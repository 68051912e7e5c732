//! The ID of an entry: a time in milliseconds and a sequence number within it, ordered by both.

use crate::resp::number::parse_u64;

/// An entry's ID, `ms-seq` in text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId {
    /// Unix milliseconds, unless the client chose otherwise.
    pub ms: u64,
    pub seq: u64,
}

/// The longest text parsed as an ID.
const TEXT_LEN_MAX: usize = 127;

/// Two numbers of at most 20 digits, and the sign between them.
const FORMATTED_LEN_MAX: usize = 41;

/// An ID as text.
pub struct IdText {
    bytes: [u8; FORMATTED_LEN_MAX],
    len: u8,
}

impl AsRef<[u8]> for IdText {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl StreamId {
    pub const MIN: StreamId = StreamId { ms: 0, seq: 0 };
    pub const MAX: StreamId = StreamId { ms: u64::MAX, seq: u64::MAX };

    /// The next greater ID; None after the last one.
    #[inline]
    pub fn next(self) -> Option<StreamId> {
        match (self.ms, self.seq) {
            (u64::MAX, u64::MAX) => None,
            (ms, u64::MAX) => Some(StreamId { ms: ms + 1, seq: 0 }),
            (ms, seq) => Some(StreamId { ms, seq: seq + 1 }),
        }
    }

    /// The next smaller ID; None before the first one.
    pub fn previous(self) -> Option<StreamId> {
        match (self.ms, self.seq) {
            (0, 0) => None,
            (ms, 0) => Some(StreamId { ms: ms - 1, seq: u64::MAX }),
            (ms, seq) => Some(StreamId { ms, seq: seq - 1 }),
        }
    }

    /// Parses `ms` or `ms-seq`; `missing_seq` replaces a missing sequence number.
    pub fn parse(text: &[u8], missing_seq: u64) -> Option<StreamId> {
        if text.len() > TEXT_LEN_MAX {
            return None;
        }
        match memchr::memchr(b'-', text) {
            None => Some(StreamId { ms: parse_u64(text)?, seq: missing_seq }),
            Some(sign) => {
                let (ms, seq) = (&text[..sign], &text[sign + 1..]);
                Some(StreamId { ms: parse_u64(ms)?, seq: parse_u64(seq)? })
            }
        }
    }

    /// The same, with `-` and `+` for the smallest and greatest possible ID.
    pub fn parse_bound(text: &[u8], missing_seq: u64) -> Option<StreamId> {
        match text {
            b"-" => Some(StreamId::MIN),
            b"+" => Some(StreamId::MAX),
            _ => StreamId::parse(text, missing_seq),
        }
    }

    /// The ID as `ms-seq`.
    #[inline]
    pub fn text(self) -> IdText {
        let mut text = IdText { bytes: [0; FORMATTED_LEN_MAX], len: 0 };
        let mut number = itoa::Buffer::new();
        let ms = number.format(self.ms).as_bytes();
        text.bytes[..ms.len()].copy_from_slice(ms);
        text.bytes[ms.len()] = b'-';
        let at = ms.len() + 1;
        let seq = number.format(self.seq).as_bytes();
        text.bytes[at..at + seq.len()].copy_from_slice(seq);
        text.len = (at + seq.len()) as u8;
        text
    }

    /// The bytes that are Redis's radix tree keys.
    fn to_be_bytes(self) -> [u8; 16] {
        (u128::from(self.ms) << 64 | u128::from(self.seq)).to_be_bytes()
    }
}

/// Number of nodes of Redis's radix tree with these ascending IDs, as `XINFO STREAM` shows it.
///
/// Such a tree has a node for each branching, for each run of bytes without branching, and for each
/// key's end; an empty tree has one.
pub fn radix_tree_nodes(ids: impl Iterator<Item = StreamId>) -> usize {
    let keys: Vec<[u8; 16]> = ids.map(StreamId::to_be_bytes).collect();
    if keys.is_empty() { 1 } else { count_nodes(&keys, 0) }
}

/// Number of nodes of the subtree of keys that share their first `depth` bytes.
fn count_nodes(keys: &[[u8; 16]], depth: usize) -> usize {
    let (Some(first), Some(last)) = (keys.first(), keys.last()) else { return 0 };
    // As they ascend, all share the prefix of the first and last.
    let shared = first.iter().zip(last).take_while(|(a, b)| a == b).count();
    let run = usize::from(shared > depth);
    if shared == first.len() {
        return run + 1;
    }
    let branches = keys.chunk_by(|a, b| a[shared] == b[shared]);
    run + 1 + branches.map(|branch| count_nodes(branch, shared + 1)).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_parsed_as_redis_does() {
        let id = |ms, seq| Some(StreamId { ms, seq });
        for (text, expected) in [
            ("1-2", id(1, 2)),
            ("7", id(7, 9)),
            ("007-+5", id(7, 5)),
            ("18446744073709551615-18446744073709551615", id(u64::MAX, u64::MAX)),
            ("18446744073709551616", None),
            ("1-", None),
            ("-1", None),
            ("", None),
            ("1-2-3", None),
            ("+", None),
            ("a-1", None),
        ] {
            assert_eq!(StreamId::parse(text.as_bytes(), 9), expected, "{text}");
        }
        assert_eq!(StreamId::parse(&[b'0'; 128], 0), None);
        assert_eq!(StreamId::parse(&[b'0'; 127], 0), Some(StreamId::MIN));
    }

    #[test]
    fn neighbours_carry_over_the_sequence() {
        let id = |ms, seq| StreamId { ms, seq };
        assert_eq!(id(1, u64::MAX).next(), Some(id(2, 0)));
        assert_eq!(id(2, 0).previous(), Some(id(1, u64::MAX)));
        assert_eq!(StreamId::MAX.next(), None);
        assert_eq!(StreamId::MIN.previous(), None);
    }

    #[test]
    fn text_is_both_numbers() {
        assert_eq!(StreamId { ms: 0, seq: 7 }.text().as_ref(), b"0-7");
        let longest = b"18446744073709551615-18446744073709551615";
        assert_eq!(StreamId::MAX.text().as_ref(), longest);
    }

    #[test]
    fn a_radix_tree_s_nodes_are_counted_as_redis_builds_them() {
        // XINFO STREAM of Redis 7.0.15 with stream-node-max-entries 1 and these IDs.
        let nodes = |ids: &[(u64, u64)]| {
            radix_tree_nodes(ids.iter().map(|(ms, seq)| StreamId { ms: *ms, seq: *seq }))
        };
        assert_eq!(nodes(&[]), 1);
        assert_eq!(nodes(&[(1, 1)]), 2);
        assert_eq!(nodes(&[(1, 1), (1, 2)]), 4);
        assert_eq!(nodes(&[(1, 1), (1, 2), (2, 1)]), 8);
        let ids = [(1, 1), (256, 1), (65536, 0), (65536, 1), (65536, 256)];
        assert_eq!(nodes(&ids), 14);
    }
}
