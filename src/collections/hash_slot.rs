//! Hash slots of a cluster: the slot of a key, and sets of slots.
//!
//! A cluster divides all keys among 16,384 slots by CRC16 (XMODEM) of the key, or of its hash tag:
//! the bytes between the first `{` and the next `}`, if there are any. Source: the cluster
//! specification of Redis, "Hash tags".

use std::sync::OnceLock;

use crc::{CRC_16_XMODEM, Crc, Table};

/// Slots of a cluster.
pub const SLOTS: usize = 16_384;

const CRC: Crc<u16, Table<16>> = Crc::<u16, Table<16>>::new(&CRC_16_XMODEM);

/// Ranges of slots: the first and the last slot of each.
pub type SlotRanges = Vec<(HashSlot, HashSlot)>;

/// `0-10 20-20`
pub fn ranges_text(ranges: &SlotRanges) -> String {
    let texts = ranges.iter().map(|(first, last)| format!("{}-{}", first.0, last.0));
    texts.collect::<Vec<_>>().join(" ")
}

/// The ranges of [`ranges_text`]. None: it is no such text, or names more slots than there are.
pub fn parse_ranges(text: &str) -> Option<SlotRanges> {
    let slot = |text: &str| text.parse().ok().and_then(HashSlot::new);
    let mut left = SLOTS;
    let range = |text: &str| {
        let (first, last) = text.split_once('-')?;
        let (first, last) = (slot(first)?, slot(last)?);
        left = left.checked_sub((last.index() + 1).checked_sub(first.index())?)?;
        (first <= last).then_some((first, last))
    };
    text.split(' ').map(range).collect()
}

/// All slots of ranges.
pub fn slots_in(ranges: &[(HashSlot, HashSlot)]) -> SlotSet {
    ranges.iter().flat_map(|(first, last)| (first.0..=last.0).map(HashSlot)).collect()
}

/// A slot's number, below [`SLOTS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HashSlot(u16);

impl HashSlot {
    /// The slot with this number; None if there is none.
    pub fn new(number: usize) -> Option<HashSlot> {
        (number < SLOTS).then_some(HashSlot(number as u16))
    }

    /// The slot of a key, or of a shard channel.
    #[inline]
    pub fn of(key: &[u8]) -> HashSlot {
        HashSlot(checksum(hashed_part(key)) & (SLOTS as u16 - 1))
    }

    /// The slot of all keys that match a glob pattern; None if they may be in several.
    pub fn of_pattern(pattern: &[u8]) -> Option<HashSlot> {
        let special = pattern.iter().position(|byte| matches!(byte, b'*' | b'?' | b'[' | b'\\'));
        let plain = &pattern[..special.unwrap_or(pattern.len())];
        let is_decided = special.is_none() || hashed_part(plain).len() < plain.len();
        is_decided.then(|| HashSlot::of(plain))
    }

    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }

    pub fn number(self) -> u16 {
        self.0
    }

    /// The shortest key of this slot, of one to three letters and digits; of several the first,
    /// digits before lower-case letters before upper-case ones. The first call computes them all.
    pub fn tag(self) -> &'static str {
        static TAGS: OnceLock<Box<[[u8; TAG_BYTES_MAX]; SLOTS]>> = OnceLock::new();
        let tag = &TAGS.get_or_init(tags)[self.index()];
        let len = tag.iter().position(|&byte| byte == 0).unwrap_or(TAG_BYTES_MAX);
        std::str::from_utf8(&tag[..len]).expect("a tag is ASCII")
    }

    /// All slots in order.
    pub fn all() -> impl DoubleEndedIterator<Item = HashSlot> {
        (0..SLOTS as u16).map(HashSlot)
    }
}

const TAG_BYTES_MAX: usize = 3;
const TAG_LETTERS: &[u8; 62] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// The tags of all slots, padded with zero bytes.
fn tags() -> Box<[[u8; TAG_BYTES_MAX]; SLOTS]> {
    let mut tags = Box::new([[0; TAG_BYTES_MAX]; SLOTS]);
    for len in 1..=TAG_BYTES_MAX {
        for number in 0..TAG_LETTERS.len().pow(len as u32) {
            let mut tag = [0; TAG_BYTES_MAX];
            let mut rest = number;
            for byte in tag[..len].iter_mut().rev() {
                *byte = TAG_LETTERS[rest % TAG_LETTERS.len()];
                rest /= TAG_LETTERS.len();
            }
            let known = &mut tags[HashSlot::of(&tag[..len]).index()];
            if known[0] == 0 {
                *known = tag;
            }
        }
    }
    tags
}

/// The checksum from which slots are computed: CRC-16/XMODEM.
#[inline]
pub fn checksum(bytes: &[u8]) -> u16 {
    CRC.checksum(bytes)
}

/// The bytes of a key by which its slot is chosen.
#[inline]
pub fn hashed_part(key: &[u8]) -> &[u8] {
    let Some(open) = memchr::memchr(b'{', key) else { return key };
    let tag = &key[open + 1..];
    match memchr::memchr(b'}', tag) {
        None | Some(0) => key,
        Some(end) => &tag[..end],
    }
}

/// A set of slots: one bit for each. In bytes, as the cluster bus sends it, slot `n` is bit
/// `n % 8`, counted from the lowest, of byte `n / 8`.
#[derive(Clone, PartialEq, Eq)]
pub struct SlotSet {
    words: Box<[u64; SLOTS / 64]>,
}

impl Default for SlotSet {
    fn default() -> Self {
        SlotSet { words: Box::new([0; SLOTS / 64]) }
    }
}

impl SlotSet {
    pub const BYTES: usize = SLOTS / 8;

    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> SlotSet {
        let mut set = SlotSet::default();
        for (word, bytes) in set.words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        set
    }

    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        for (bytes, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(self.words.iter()) {
            *bytes = word.to_le_bytes();
        }
        bytes
    }

    #[inline]
    pub fn contains(&self, slot: HashSlot) -> bool {
        self.words[slot.index() / 64] & (1 << (slot.index() % 64)) != 0
    }

    /// Adds a slot; returns whether it was absent.
    pub fn insert(&mut self, slot: HashSlot) -> bool {
        let word = &mut self.words[slot.index() / 64];
        let bit = 1 << (slot.index() % 64);
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    /// Removes a slot; returns whether it was present.
    pub fn remove(&mut self, slot: HashSlot) -> bool {
        let word = &mut self.words[slot.index() / 64];
        let bit = 1 << (slot.index() % 64);
        let was_there = *word & bit != 0;
        *word &= !bit;
        was_there
    }

    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|&word| word == 0)
    }

    /// The slots in order.
    pub fn iter(&self) -> impl Iterator<Item = HashSlot> {
        self.words.iter().enumerate().flat_map(|(index, &word)| {
            let mut left = word;
            std::iter::from_fn(move || {
                (left != 0).then(|| {
                    let bit = left.trailing_zeros() as usize;
                    left &= left - 1;
                    HashSlot((index * 64 + bit) as u16)
                })
            })
        })
    }

    /// The slots as ranges from first to last, both included, in order and none beside the next.
    pub fn ranges(&self) -> SlotRanges {
        let mut ranges = SlotRanges::new();
        for slot in self.iter() {
            match ranges.last_mut() {
                Some((_, last)) if last.0 + 1 == slot.0 => *last = slot,
                _ => ranges.push((slot, slot)),
            }
        }
        ranges
    }
}

impl Extend<HashSlot> for SlotSet {
    fn extend<I: IntoIterator<Item = HashSlot>>(&mut self, slots: I) {
        for slot in slots {
            self.insert(slot);
        }
    }
}

impl FromIterator<HashSlot> for SlotSet {
    fn from_iter<I: IntoIterator<Item = HashSlot>>(slots: I) -> Self {
        let mut set = SlotSet::default();
        set.extend(slots);
        set
    }
}

impl std::fmt::Debug for SlotSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.ranges().iter().map(|(a, b)| (a.0, b.0))).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_slot_has_a_tag_of_its_own() {
        for slot in HashSlot::all() {
            assert_eq!(HashSlot::of(slot.tag().as_bytes()), slot);
        }
        // As Valkey 9.1.2 writes them in cursors of CLUSTERSCAN.
        let tags = [(0, "06S"), (1, "Qi"), (2, "5L5"), (9, "ru"), (80, "avs"), (467, "hbv")];
        for (number, tag) in tags {
            assert_eq!(HashSlot::new(number).expect("a slot").tag(), tag);
        }
    }

    #[test]
    fn keys_have_the_slots_of_the_specification() {
        for (key, slot) in [
            (&b"123456789"[..], 12_739),
            (b"foo", 12_182),
            (b"bar", 5_061),
            (b"", 0),
            (b"{user1000}.following", 3_443),
            (b"{user1000}.followers", 3_443),
        ] {
            assert_eq!(HashSlot::of(key).index(), slot, "{key:?}");
        }
        assert_eq!(hashed_part(b"foo{}{bar}"), b"foo{}{bar}");
        assert_eq!(hashed_part(b"foo{{bar}}zap"), b"{bar");
        assert_eq!(hashed_part(b"foo{bar}{zap}"), b"bar");
        assert_eq!(hashed_part(b"foo{bar"), b"foo{bar");
    }

    #[test]
    fn a_pattern_has_a_slot_if_its_keys_have_one() {
        let of = |pattern: &str| HashSlot::of_pattern(pattern.as_bytes());
        for (pattern, key) in
            [("foo", "foo"), ("{foo}*", "foo"), ("a{foo}?[x]", "foo"), ("{}x", "{}x")]
        {
            assert_eq!(of(pattern), Some(HashSlot::of(key.as_bytes())), "{pattern}");
        }
        for pattern in ["*", "*{foo}", "{f*}", "{f\\oo}", "{}{foo}*", "foo*", "fo[o]", ""] {
            assert_eq!(of(pattern).is_some(), pattern.is_empty(), "{pattern}");
        }
    }

    proptest! {
        #[test]
        fn a_set_of_slots_is_a_set(changes: Vec<(bool, u16)>) {
            let mut set = SlotSet::default();
            let mut model = BTreeSet::new();
            for (adds, number) in changes {
                let slot = HashSlot::new(number as usize % SLOTS).expect("in range");
                if adds {
                    prop_assert_eq!(set.insert(slot), model.insert(slot));
                } else {
                    prop_assert_eq!(set.remove(slot), model.remove(&slot));
                }
            }
            prop_assert_eq!(set.len(), model.len());
            prop_assert_eq!(set.is_empty(), model.is_empty());
            prop_assert_eq!(set.iter().collect::<Vec<_>>(), model.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!(&SlotSet::from_bytes(&set.to_bytes()), &set);
            let from_ranges: BTreeSet<_> =
                set.ranges().into_iter().flat_map(|(a, b)| (a.0..=b.0).map(HashSlot)).collect();
            prop_assert_eq!(from_ranges, model);
            let text = ranges_text(&set.ranges());
            let parsed = parse_ranges(&text).map(|ranges| slots_in(&ranges));
            prop_assert_eq!(parsed, (!set.is_empty()).then_some(set));
        }
    }
}
