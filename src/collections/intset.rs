//! Sets of integers as sorted bytes: the form of small sets with only integers.
//!
//! ```text
//!   width | integers of `width` bytes each, little-endian, ascending
//! ```
//!
//! The width is 2, 4 or 8: that of the widest integer since the set was empty. The empty set has no
//! bytes. A look-up is a binary search; a change moves everything after it.
//!
//! Readers here require valid bytes: those from elsewhere must pass [`is_valid`]. Invalid bytes
//! give wrong results, never a fault.

use std::cmp::Ordering;
use std::ops::Range;

/// Bytes before the first integer.
const HEADER: usize = 1;

/// If one set is this many times larger than the other, each member of the smaller is searched for
/// instead of merging both: a search takes about the logarithm of the larger length, 9 steps for
/// 512. `benches/micro/benches/set.rs` compares other ratios.
const SEARCH_RATIO: usize = 8;

/// A set of integers, for reading.
#[derive(Clone, Copy, Debug)]
pub struct Intset<'a> {
    /// Bytes of each integer: 2, 4 or 8.
    width: usize,
    integers: &'a [u8],
}

impl<'a> Intset<'a> {
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Self {
        match bytes.split_first() {
            Some((&width @ (2 | 4 | 8), integers)) => Intset { width: width.into(), integers },
            _ => Intset { width: 2, integers: &[] },
        }
    }

    /// Bytes of each integer.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The integers' bytes: little-endian, ascending.
    pub fn integers(&self) -> &'a [u8] {
        self.integers
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.integers.len() / self.width
    }

    pub fn is_empty(&self) -> bool {
        self.integers.is_empty()
    }

    /// The member of this rank, which must be less than the length.
    #[inline]
    pub fn get(&self, rank: usize) -> i64 {
        match self.width {
            2 => i16::from_le_bytes(read(self.integers, rank)).into(),
            4 => i32::from_le_bytes(read(self.integers, rank)).into(),
            _ => i64::from_le_bytes(read(self.integers, rank)),
        }
    }

    /// A member's rank, or the rank it would have. O(log N).
    #[inline]
    pub fn search(&self, value: i64) -> Result<usize, usize> {
        self.search_in(0..self.len(), value)
    }

    /// The same within a range of ranks.
    #[inline]
    fn search_in(&self, ranks: Range<usize>, value: i64) -> Result<usize, usize> {
        // A value wider than the members is smaller or greater than all.
        let order = |rank| self.get(rank).cmp(&value);
        let (mut low, mut len) = (ranks.start, ranks.len());
        while len > 1 {
            let half = len / 2;
            if order(low + half) != Ordering::Greater {
                low += half;
            }
            len -= half;
        }
        if len == 0 {
            return Err(low);
        }
        match order(low) {
            Ordering::Equal => Ok(low),
            Ordering::Less => Err(low + 1),
            Ordering::Greater => Err(low),
        }
    }

    /// Whether this is a member. O(log N).
    #[inline]
    pub fn contains(&self, value: i64) -> bool {
        self.search(value).is_ok()
    }

    /// The members in ascending order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = i64> + ExactSizeIterator + use<'a> {
        let set = *self;
        (0..set.len()).map(move |rank| set.get(rank))
    }

    /// Passes common members to `visit`, in ascending order, until it returns false. Merges both
    /// sets, or searches for each member of the smaller.
    pub fn intersect(&self, other: &Intset<'_>, mut visit: impl FnMut(i64) -> bool) {
        let (small, large) = if self.len() <= other.len() { (self, other) } else { (other, self) };
        let searches = large.len() / SEARCH_RATIO > small.len();
        let mut rank = 0;
        for value in small.iter() {
            if searches {
                rank = match large.search_in(rank..large.len(), value) {
                    Ok(found) => found,
                    Err(behind) => behind,
                };
            } else {
                while rank < large.len() && large.get(rank) < value {
                    rank += 1;
                }
            }
            if rank == large.len() || (large.get(rank) == value && !visit(value)) {
                return;
            }
        }
    }
}

#[inline]
fn read<const WIDTH: usize>(integers: &[u8], rank: usize) -> [u8; WIDTH] {
    let start = rank * WIDTH;
    *integers[start..].first_chunk().expect("a rank is less than the length")
}

/// Bytes needed for an integer.
fn width_of(value: i64) -> usize {
    if i16::try_from(value).is_ok() {
        2
    } else if i32::try_from(value).is_ok() {
        4
    } else {
        8
    }
}

/// Adds an integer; false if it exists. O(N), at the end O(1).
pub fn insert(bytes: &mut Vec<u8>, value: i64) -> bool {
    let set = Intset::new(bytes);
    let width = set.width.max(width_of(value));
    let len = set.len();
    if len == 0 {
        bytes.clear();
        bytes.push(width as u8);
        bytes.extend_from_slice(&value.to_le_bytes()[..width]);
        return true;
    }
    let last = set.get(len - 1);
    let rank = match value.cmp(&last) {
        Ordering::Greater => len,
        Ordering::Equal => return false,
        Ordering::Less => match set.search_in(0..len - 1, value) {
            Ok(_) => return false,
            Err(rank) => rank,
        },
    };
    if width > set.width {
        widen(bytes, width);
    }
    // An eighth of spare capacity: a vector's own doubling would waste memory in a set that seldom
    // changes.
    if bytes.capacity() - bytes.len() < width {
        bytes.reserve_exact(width.max(bytes.len() / 8));
    }
    let end = bytes.len();
    bytes.extend_from_slice(&value.to_le_bytes()[..width]);
    let start = HEADER + rank * width;
    if start < end {
        bytes.copy_within(start..end, start + width);
        bytes[start..start + width].copy_from_slice(&value.to_le_bytes()[..width]);
    }
    true
}

/// Rewrites all integers with another width, from the last to the first, so that none is
/// overwritten before it was read.
fn widen(bytes: &mut Vec<u8>, width: usize) {
    let before = Intset::new(bytes).width;
    let len = (bytes.len() - HEADER) / before;
    bytes.resize(HEADER + len * width, 0);
    for rank in (0..len).rev() {
        let start = HEADER + rank * before;
        let old = &bytes[start..start + before];
        let fill = if old[before - 1] & 0x80 == 0 { 0 } else { 0xff };
        let mut wide = [fill; 8];
        wide[..before].copy_from_slice(old);
        let start = HEADER + rank * width;
        bytes[start..start + width].copy_from_slice(&wide[..width]);
    }
    bytes[0] = width as u8;
}

/// Removes an integer; false if it does not exist. O(N).
pub fn remove(bytes: &mut Vec<u8>, value: i64) -> bool {
    let found = Intset::new(bytes).search(value);
    if let Ok(rank) = found {
        remove_rank(bytes, rank);
    }
    found.is_ok()
}

/// Removes the member of this rank, which must be less than the length.
pub fn remove_rank(bytes: &mut Vec<u8>, rank: usize) {
    let width = Intset::new(bytes).width;
    let start = HEADER + rank * width;
    bytes.drain(start..start + width);
    if bytes.len() == HEADER {
        bytes.clear();
    }
}

/// Removes the members for which `keep` returns false, in ascending order.
pub fn retain(bytes: &mut Vec<u8>, mut keep: impl FnMut(i64) -> bool) {
    let set = Intset::new(bytes);
    let (width, len) = (set.width, set.len());
    let mut kept = 0;
    for rank in 0..len {
        if keep(Intset::new(bytes).get(rank)) {
            let from = HEADER + rank * width;
            bytes.copy_within(from..from + width, HEADER + kept * width);
            kept += 1;
        }
    }
    bytes.truncate(if kept == 0 { 0 } else { HEADER + kept * width });
}

/// Whether untrusted bytes are a valid set: whole integers of one width, ascending.
pub fn is_valid(bytes: &[u8]) -> bool {
    let Some((&width, integers)) = bytes.split_first() else { return true };
    if !matches!(width, 2 | 4 | 8)
        || integers.is_empty()
        || !integers.len().is_multiple_of(width.into())
    {
        return false;
    }
    Intset::new(bytes).iter().is_sorted_by(|a, b| a < b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn set_of(values: &[i64]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for &value in values {
            insert(&mut bytes, value);
        }
        bytes
    }

    fn members(bytes: &[u8]) -> Vec<i64> {
        Intset::new(bytes).iter().collect()
    }

    #[test]
    fn integers_take_the_bytes_of_the_widest() {
        let mut bytes = set_of(&[5, -5]);
        assert_eq!(bytes, [2, 0xfb, 0xff, 5, 0]);
        insert(&mut bytes, 40_000);
        assert_eq!(bytes.len(), 1 + 3 * 4);
        insert(&mut bytes, i64::MIN);
        assert_eq!(bytes.len(), 1 + 4 * 8);
        assert_eq!(members(&bytes), [i64::MIN, -5, 5, 40_000]);
        // The width stays after the wide integers are removed, until the set is empty.
        assert!(remove(&mut bytes, i64::MIN) && remove(&mut bytes, 40_000));
        assert_eq!(bytes.len(), 1 + 2 * 8);
        assert!(remove(&mut bytes, 5) && remove(&mut bytes, -5));
        assert_eq!(bytes, []);
    }

    #[test]
    fn what_is_no_set_is_told_apart() {
        for bytes in [
            &[2][..],
            &[3, 1, 0, 0],
            &[2, 1],
            &[2, 1, 0, 1, 0],
            &[2, 2, 0, 1, 0],
            &[4, 1, 0],
            &[8, 1, 0, 0, 0],
        ] {
            assert!(!is_valid(bytes), "{bytes:?}");
        }
        assert!(is_valid(&[]));
        assert!(is_valid(&set_of(&[3, 1, -70_000, 1 << 40])));
    }

    fn integers() -> impl Strategy<Value = i64> {
        prop_oneof![8 => -40..40i64, 2 => -70_000..70_000i64, 1 => any::<i64>()]
    }

    proptest! {
        #[test]
        fn a_set_does_what_a_tree_does(
            changes in prop::collection::vec((any::<bool>(), integers()), 0..120),
            probes in prop::collection::vec(integers(), 10),
            modulus in 1..5i64,
        ) {
            let (mut bytes, mut model) = (Vec::new(), BTreeSet::new());
            for (adds, value) in changes {
                if adds {
                    prop_assert_eq!(insert(&mut bytes, value), model.insert(value));
                } else {
                    prop_assert_eq!(remove(&mut bytes, value), model.remove(&value));
                }
                prop_assert!(is_valid(&bytes));
            }
            let set = Intset::new(&bytes);
            prop_assert_eq!(set.len(), model.len());
            prop_assert_eq!(set.is_empty(), model.is_empty());
            prop_assert!(set.iter().eq(model.iter().copied()));
            for probe in probes {
                prop_assert_eq!(set.contains(probe), model.contains(&probe));
            }
            let keep = |value: i64| value.rem_euclid(modulus) == 0;
            retain(&mut bytes, keep);
            model.retain(|&value| keep(value));
            prop_assert!(is_valid(&bytes));
            prop_assert!(Intset::new(&bytes).iter().eq(model.iter().copied()));
        }

        #[test]
        fn an_intersection_is_what_both_have(
            first in prop::collection::btree_set(integers(), 0..12),
            second in prop::collection::btree_set(integers(), 0..150),
            limit in 1..20usize,
        ) {
            let bytes = |model: &BTreeSet<i64>| set_of(&model.iter().copied().collect::<Vec<_>>());
            let (a, b) = (bytes(&first), bytes(&second));
            for (a, b) in [(&a, &b), (&b, &a)] {
                let mut common = Vec::new();
                Intset::new(a).intersect(&Intset::new(b), |value| {
                    common.push(value);
                    common.len() < limit
                });
                let model: Vec<i64> = first.intersection(&second).copied().take(limit).collect();
                prop_assert_eq!(common, model);
            }
        }

        #[test]
        fn any_bytes_can_be_read(
            bytes in prop::collection::vec(any::<u8>(), 0..60),
            value in any::<i64>(),
        ) {
            let set = Intset::new(&bytes);
            set.contains(value);
            prop_assert!(set.iter().count() <= bytes.len());
            let mut changed = bytes.clone();
            insert(&mut changed, value);
            remove(&mut changed, value);
            is_valid(&bytes);
        }
    }
}
