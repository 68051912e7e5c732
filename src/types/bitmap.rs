//! Strings as arrays of bits: the computations of SETBIT, BITCOUNT, BITPOS, BITOP and BITFIELD.
//!
//! Input and output are bytes and numbers; the caller grows the string, limits its length and words
//! the errors. Bit 0 is the most significant bit of the first byte; bits after the string's end are
//! 0. An integer field of BITFIELD is big-endian in that order, at any bit offset.
//!
//! The loops over long strings go by words or by plain byte pairs that the compiler turns into
//! vectors: no `unsafe`.

use std::ops::Range;

use smallvec::SmallVec;

use super::string::{StringMut, StringView};
use crate::collections::shared_bytes::{PIECE, SharedBytes};

/// The unit of a range: BYTE (the default) or BIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Byte,
    Bit,
}

/// Bytes that a string needs to contain `bits` bits from `offset` on; `None` if no string can have
/// this length.
pub fn bytes_needed(offset: u64, bits: u32) -> Option<usize> {
    offset.checked_add(u64::from(bits)).and_then(|end| usize::try_from(end.div_ceil(8)).ok())
}

/// The bit at an offset.
pub fn get_bit(text: StringView<'_>, offset: u64) -> bool {
    let byte = usize::try_from(offset / 8).ok().and_then(|at| text.byte(at));
    byte.is_some_and(|byte| byte & bit_mask(offset) != 0)
}

/// Sets the bit at an offset; returns its previous value.
///
/// # Panics
/// If the offset lies after the end; see [`bytes_needed`].
pub fn set_bit(text: &mut StringMut<'_>, offset: u64, bit: bool) -> bool {
    let at = (offset / 8) as usize;
    let byte = text.as_view().byte(at).expect("the bit lies within the string");
    let mask = bit_mask(offset);
    let before = byte & mask != 0;
    if before != bit {
        text.write(at, &[byte ^ mask]);
    }
    before
}

/// Number of bits set.
pub fn count(text: StringView<'_>) -> u64 {
    text.pieces(0..text.len()).map(count_bytes).sum()
}

fn count_bytes(bytes: &[u8]) -> u64 {
    let (blocks, rest) = bytes.as_chunks::<{ 16 * LANES * 8 }>();
    let mut total = 0;
    let mut sums = [Row::default(); 4];
    for block in blocks {
        total += 16 * sum_of(&sixteens(block, &mut sums));
    }
    if !blocks.is_empty() {
        for (power, sum) in sums.iter().enumerate() {
            total += sum_of(sum) << power;
        }
    }
    let (words, rest) = rest.as_chunks();
    total +=
        words.iter().map(|word| u64::from(u64::from_ne_bytes(*word).count_ones())).sum::<u64>();
    total + rest.iter().map(|byte| u64::from(byte.count_ones())).sum::<u64>()
}

/// Number of bits set in a range; bits after the end are 0.
pub fn count_range(text: StringView<'_>, bits: Range<u64>) -> u64 {
    let in_block = |(_, bytes, bits)| match Cut::of(bytes, bits) {
        Some(Cut { first, whole, last }) => {
            let edges = first.byte.count_ones() + last.byte.count_ones();
            u64::from(edges) + count_bytes(whole)
        }
        None => 0,
    };
    blocks(text, bits).map(in_block).sum()
}

/// The blocks of a string with a range of bits: the offset of a block's first bit, its bytes, and
/// the range in it.
fn blocks(
    text: StringView<'_>,
    bits: Range<u64>,
) -> impl Iterator<Item = (u64, &[u8], Range<u64>)> {
    let byte = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(text.len());
    let (start, end) = (byte(bits.start / 8), byte(bits.end.div_ceil(8)));
    text.blocks(start.min(end)..end).map(move |(at, bytes)| {
        let first = at as u64 * 8;
        (first, bytes, bits.start.saturating_sub(first)..bits.end.saturating_sub(first))
    })
}

/// BITCOUNT with a range: both ends included, negative ones counted from the end of the string.
pub fn count_between(text: StringView<'_>, start: i64, end: i64, unit: Unit) -> u64 {
    // Before clamping: -1 -2 is empty even if both are before the string. BITPOS has no such rule.
    if start < 0 && end < 0 && start > end {
        return 0;
    }
    count_range(text, bit_range(text.len(), start, end, unit))
}

/// Offset of the first bit in the range that is `bit`; `None` if there is none before the end of
/// string or range.
pub fn position(text: StringView<'_>, bit: bool, bits: Range<u64>) -> Option<u64> {
    blocks(text, bits).find_map(|(before, bytes, bits)| {
        position_in_block(bytes, bit, bits).map(|found| before + found)
    })
}

fn position_in_block(bytes: &[u8], bit: bool, bits: Range<u64>) -> Option<u64> {
    let offset = bits.start;
    let Cut { first, whole, last } = Cut::of(bytes, bits)?;
    let in_edge = |edge: Edge| {
        let wanted = if bit { edge.byte } else { !edge.byte & edge.mask };
        (wanted != 0).then(|| u64::from(wanted.leading_zeros()))
    };
    let first_byte = offset / 8 * 8;
    if let Some(found) = in_edge(first) {
        return Some(first_byte + found);
    }
    let whole_from = first_byte + if first.mask == 0 { 0 } else { 8 };
    if let Some(found) = position_in_bytes(whole, bit) {
        return Some(whole_from + found);
    }
    in_edge(last).map(|found| whole_from + 8 * whole.len() as u64 + found)
}

/// BITPOS: as [`position`], with both ends of the range included and negative ones counted from the
/// end of the string. Without an end, a search for 0 continues after the string (unless the range
/// is empty) and succeeds there.
pub fn position_between(
    text: StringView<'_>,
    bit: bool,
    start: i64,
    end: Option<i64>,
    unit: Unit,
) -> Option<u64> {
    let range = bit_range(text.len(), start, end.unwrap_or(-1), unit);
    let behind = (!bit && end.is_none() && !range.is_empty()).then_some(range.end);
    position(text, bit, range).or(behind)
}

/// The operations of BITOP. X is the first source, Y are the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BitOperation {
    And,
    Or,
    Xor,
    /// The inverse of X, the only source.
    Not,
    /// X and none of Y.
    Diff,
    /// Any of Y and not X.
    Diff1,
    /// X and any of Y.
    AndOr,
    /// In exactly one of all sources.
    One,
}

/// Combines strings bit by bit. The result is as long as the longest; shorter ones are padded with
/// 0.
pub fn bitop(operation: BitOperation, sources: &[StringView<'_>]) -> SharedBytes {
    let longest = sources.iter().map(|source| source.len()).max().unwrap_or(0);
    let mut result = SharedBytes::default();
    for number in 0..longest.div_ceil(PIECE) {
        let pieces = sources.iter().map(|source| source.piece(number));
        let pieces = SmallVec::<[&[u8]; 8]>::from_iter(pieces);
        result.append_piece(combined(operation, &pieces));
    }
    result
}

/// As [`bitop`], for slices.
fn combined(operation: BitOperation, sources: &[&[u8]]) -> Vec<u8> {
    let mut result = vec![0; sources.iter().map(|source| source.len()).max().unwrap_or(0)];
    let Some((x, others)) = sources.split_first() else {
        return result;
    };
    // In blocks that stay in the L1 cache while all sources are combined.
    const BLOCK: usize = 4096;
    for (index, block) in result.chunks_mut(BLOCK).enumerate() {
        let len = block.len();
        let piece = |source: &[u8]| {
            let from = (index * BLOCK).min(source.len());
            from..(from + len).min(source.len())
        };
        let x = &x[piece(x)];
        let others = others.iter().map(|source| &source[piece(source)]);
        match operation {
            BitOperation::And => {
                block[..x.len()].copy_from_slice(x);
                others.for_each(|y| {
                    combine(block, y, |a, b| a & b);
                    block[y.len()..].fill(0);
                });
            }
            BitOperation::Or => {
                block[..x.len()].copy_from_slice(x);
                others.for_each(|y| combine(block, y, |a, b| a | b));
            }
            BitOperation::Xor => {
                block[..x.len()].copy_from_slice(x);
                others.for_each(|y| combine(block, y, |a, b| a ^ b));
            }
            BitOperation::Not => {
                block.fill(0xff);
                combine(block, x, |a, b| a & !b);
            }
            BitOperation::Diff | BitOperation::Diff1 | BitOperation::AndOr => {
                others.for_each(|y| combine(block, y, |a, b| a | b));
                match operation {
                    BitOperation::Diff => combine(block, x, |any, x| x & !any),
                    BitOperation::Diff1 => combine(block, x, |any, x| any & !x),
                    _ => combine(block, x, |any, x| any & x),
                }
                if operation != BitOperation::Diff1 {
                    block[x.len()..].fill(0);
                }
            }
            BitOperation::One => {
                let mut repeated = [0; BLOCK];
                block[..x.len()].copy_from_slice(x);
                others.for_each(|y| {
                    let (any, repeated) = (&mut block[..y.len()], &mut repeated[..y.len()]);
                    for at in 0..y.len() {
                        repeated[at] |= any[at] & y[at];
                        any[at] |= y[at];
                    }
                });
                combine(block, &repeated[..len], |any, repeated| any & !repeated);
            }
        }
    }
    result
}

/// The type of an integer field: `u1` ..= `u63`, `i1` ..= `i64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldType {
    signed: bool,
    /// 1 ..= 64, unsigned 1 ..= 63.
    bits: u32,
}

/// BITFIELD's treatment of a value that does not fit its field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    /// Keep the low bits.
    #[default]
    Wrap,
    /// Store the bound that was exceeded.
    Saturate,
    /// Store nothing and reply nil.
    Fail,
}

impl FieldType {
    /// A type of `bits` bits; `None` if invalid: 0, u64, i65.
    pub fn new(signed: bool, bits: u32) -> Option<Self> {
        (1..=if signed { 64 } else { 63 }).contains(&bits).then_some(FieldType { signed, bits })
    }

    /// Parses a type such as `i16` or `u8`: lower case, no sign, no leading zero; a NUL ends the
    /// number.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let (sign, digits) = text.split_first()?;
        let signed = match sign {
            b'i' => true,
            b'u' => false,
            _ => return None,
        };
        let bits = match digits {
            [a @ b'1'..=b'9'] | [a @ b'1'..=b'9', 0, ..] => u32::from(a - b'0'),
            [a @ b'1'..=b'9', b @ b'0'..=b'9'] | [a @ b'1'..=b'9', b @ b'0'..=b'9', 0, ..] => {
                u32::from(a - b'0') * 10 + u32::from(b - b'0')
            }
            _ => return None,
        };
        FieldType::new(signed, bits)
    }

    /// Width of the field, which `#n` offsets are multiples of. Unit: bits.
    pub fn bits(self) -> u32 {
        self.bits
    }

    /// The field at a bit offset; bits after the string's end are 0.
    pub fn get(self, text: StringView<'_>, offset: u64) -> i64 {
        let sixteen = text.window::<16>(offset / 8);
        let left_aligned = u128::from_be_bytes(sixteen) << (offset % 8);
        if self.signed {
            (left_aligned as i128 >> (128 - self.bits)) as i64
        } else {
            (left_aligned >> (128 - self.bits)) as i64
        }
    }

    /// Writes the low bits of a value to the field at a bit offset.
    ///
    /// # Panics
    /// If the field reaches beyond the end; see [`bytes_needed`].
    pub fn set(self, text: &mut StringMut<'_>, offset: u64, value: i64) {
        let shift = (offset % 8) as u32;
        let len = (shift + self.bits).div_ceil(8) as usize;
        let sixteen = text.as_view().window::<16>(offset / 8);
        let right = 128 - shift - self.bits;
        let mask = (u128::MAX >> (128 - self.bits)) << right;
        let old = u128::from_be_bytes(sixteen);
        let new = (old & !mask) | ((value as u128) << right & mask);
        if new != old {
            text.write((offset / 8) as usize, &new.to_be_bytes()[..len]);
        }
    }

    /// The value that INCRBY stores: `value`, as read from the field, plus `increment`; `None` if
    /// that overflows and fails.
    pub fn add(self, value: i64, increment: i64, overflow: Overflow) -> Option<i64> {
        let (min, max) = self.bounds();
        let sum = i128::from(value) + i128::from(increment);
        self.settle(sum as i64, sum > max.into(), sum < min.into(), overflow)
    }

    /// The value that SET stores, `None` if the field cannot hold it and that fails.
    pub fn fit(self, value: i64, overflow: Overflow) -> Option<i64> {
        let (min, max) = self.bounds();
        // As in Redis, a negative value is too large for an unsigned field; and for a signed field
        // too if it is so small that max - value overflows: SET i8 0 -9223372036854775808 saturates
        // to 127.
        let too_large = value > max
            || !self.signed && value < 0
            || self.bits < 64 && max.checked_sub(value).is_none();
        self.settle(value, too_large, value < min, overflow)
    }

    /// Lowest and highest value.
    fn bounds(self) -> (i64, i64) {
        if self.signed {
            let max = i64::MAX >> (64 - self.bits);
            (-max - 1, max)
        } else {
            (0, i64::MAX >> (63 - self.bits))
        }
    }

    fn settle(
        self,
        value: i64,
        too_large: bool,
        too_small: bool,
        overflow: Overflow,
    ) -> Option<i64> {
        if !too_large && !too_small {
            return Some(value);
        }
        let (min, max) = self.bounds();
        match overflow {
            Overflow::Wrap => {
                let unused = 64 - self.bits;
                Some(if self.signed {
                    value << unused >> unused
                } else {
                    ((value as u64) << unused >> unused) as i64
                })
            }
            Overflow::Saturate => Some(if too_large { max } else { min }),
            Overflow::Fail => None,
        }
    }
}

fn bit_mask(offset: u64) -> u8 {
    0x80 >> (offset % 8)
}

/// The bits of a command's range, clamped to the string. Empty if nothing is left.
fn bit_range(len: usize, start: i64, end: i64, unit: Unit) -> Range<u64> {
    let bits_each = if unit == Unit::Byte { 8 } else { 1 };
    let len = (len as u64 * 8 / bits_each) as i64;
    let from_end = |index: i64| {
        if index < 0 { index.saturating_add(len).max(0) } else { index }
    };
    let (start, end) = (from_end(start), from_end(end).min(len - 1));
    if start > end {
        return 0..0;
    }
    start as u64 * bits_each..(end as u64 + 1) * bits_each
}

/// A byte at the edge of a range, masked to the range.
#[derive(Clone, Copy, Default)]
struct Edge {
    byte: u8,
    mask: u8,
}

/// A range of bits: part of a first byte, whole bytes, part of a last byte. The edges may be empty.
struct Cut<'a> {
    first: Edge,
    whole: &'a [u8],
    last: Edge,
}

impl<'a> Cut<'a> {
    /// `None` if the range, clamped to the string, is empty.
    fn of(bytes: &'a [u8], bits: Range<u64>) -> Option<Self> {
        let end = bits.end.min(bytes.len() as u64 * 8);
        if bits.start >= end {
            return None;
        }
        let from_first = 0xff_u8 >> (bits.start % 8);
        let until_last = !(0xff_u16 >> (end % 8)) as u8;
        let (mut from, until) = ((bits.start / 8) as usize, (end / 8) as usize);
        let edge = |at: usize, mask: u8| Edge { byte: bytes[at] & mask, mask };
        if from == until {
            let first = edge(from, from_first & until_last);
            return Some(Cut { first, whole: &[], last: Edge::default() });
        }
        let mut first = Edge::default();
        if from_first != 0xff {
            first = edge(from, from_first);
            from += 1;
        }
        let last = if until_last == 0 { Edge::default() } else { edge(until, until_last) };
        Some(Cut { first, whole: &bytes[from..until], last })
    }
}

/// Offset of the first bit that is `bit` in whole bytes.
fn position_in_bytes(bytes: &[u8], bit: bool) -> Option<u64> {
    let skipped = if bit { 0 } else { 0xff };
    let blocks = bytes.as_chunks::<64>().0;
    let block = blocks
        .iter()
        // Not `==`, which calls memcmp for each block.
        .position(|block| block.iter().fold(0, |other, byte| other | (byte ^ skipped)) != 0)
        .unwrap_or(blocks.len());
    let at = block * 64;
    let at = at + bytes[at..].iter().position(|byte| *byte != skipped)?;
    Some(at as u64 * 8 + u64::from((bytes[at] ^ skipped).leading_zeros()))
}

fn combine(block: &mut [u8], source: &[u8], operation: impl Fn(u8, u8) -> u8) {
    for (byte, other) in block.iter_mut().zip(source) {
        *byte = operation(*byte, *other);
    }
}

/// Words handled side by side: two vectors of the x86-64 baseline.
const LANES: usize = 4;
type Row = [u64; LANES];

/// Adds sixteen rows bit by bit to the sums (of ones, twos, fours, eights); returns the carry,
/// which counts sixteen.
///
/// Counting the bits of a word takes a dozen operations without a POPCNT instruction, which the
/// x86-64 baseline lacks; a carry-save adder takes five and leaves one word of sixteen to count: 1
/// MiB in 40 us instead of 95.
#[inline]
fn sixteens(block: &[u8; 16 * LANES * 8], sums: &mut [Row; 4]) -> Row {
    let rows = block.as_chunks::<{ LANES * 8 }>().0;
    let row = |index: usize| -> Row {
        let words = rows[index].as_chunks::<8>().0;
        std::array::from_fn(|lane| u64::from_ne_bytes(words[lane]))
    };
    let [ones, twos, fours, eights] = sums;
    let mut fours_of = |at: usize| {
        let a = add_rows(ones, row(at), row(at + 1));
        let b = add_rows(ones, row(at + 2), row(at + 3));
        add_rows(twos, a, b)
    };
    let [a, b, c, d] = [0, 4, 8, 12].map(&mut fours_of);
    let (a, b) = (add_rows(fours, a, b), add_rows(fours, c, d));
    add_rows(eights, a, b)
}

/// Adds two rows bit by bit to a sum; returns the carries.
#[inline]
fn add_rows(sum: &mut Row, a: Row, b: Row) -> Row {
    std::array::from_fn(|lane| {
        let half = a[lane] ^ b[lane];
        let carry = (a[lane] & b[lane]) | (half & sum[lane]);
        sum[lane] ^= half;
        carry
    })
}

fn sum_of(row: &Row) -> u64 {
    row.iter().map(|word| u64::from(word.count_ones())).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn view(bytes: &[u8]) -> StringView<'_> {
        bytes.into()
    }

    #[test]
    fn bits_count_from_the_most_significant_one() {
        let mut bytes = [0; 2];
        assert!(!set_bit(&mut StringMut::Whole(&mut bytes), 7, true));
        assert!(!set_bit(&mut StringMut::Whole(&mut bytes), 8, true));
        assert_eq!(bytes, [0x01, 0x80]);
        assert!(set_bit(&mut StringMut::Whole(&mut bytes), 7, false));
        assert!(get_bit(view(&bytes), 8));
        assert!(!get_bit(view(&bytes), 16));
        assert!(!get_bit(view(&bytes), u64::MAX));
    }

    #[test]
    fn the_bytes_needed_end_with_the_last_bit() {
        assert_eq!(bytes_needed(7, 1), Some(1));
        assert_eq!(bytes_needed(7, 2), Some(2));
        assert_eq!(bytes_needed(u64::MAX, 1), None);
    }

    #[test]
    fn ranges_are_clamped_as_by_a_peer() {
        let bytes = *b"foobar";
        for (start, end, unit, counted) in [
            (0, -1, Unit::Byte, 26),
            (0, 0, Unit::Byte, 4),
            (1, 1, Unit::Byte, 6),
            (5, 30, Unit::Bit, 17),
            (-10, -20, Unit::Byte, 0),
            (-20, -10, Unit::Byte, 4),
            (4, 2, Unit::Byte, 0),
            (i64::MIN, i64::MAX, Unit::Bit, 26),
        ] {
            assert_eq!(
                count_between(view(&bytes), start, end, unit),
                counted,
                "{start} {end} {unit:?}"
            );
        }
        // If both ends lie before the string, in the wrong order, BITPOS still looks at the first
        // byte.
        assert_eq!(position_between(view(&bytes), true, -10, Some(-20), Unit::Byte), Some(1));
        assert_eq!(count_between(view(b""), 0, -1, Unit::Byte), 0);
        assert_eq!(position_between(view(b""), false, 0, None, Unit::Byte), None);
    }

    #[test]
    fn a_clear_bit_is_found_behind_the_string_only_if_no_end_is_given() {
        let ones = [0xff; 3];
        assert_eq!(position_between(view(&ones), false, 0, None, Unit::Byte), Some(24));
        assert_eq!(position_between(view(&ones), false, 2, None, Unit::Byte), Some(24));
        assert_eq!(position_between(view(&ones), false, 3, None, Unit::Byte), None);
        assert_eq!(position_between(view(&ones), false, 0, Some(-1), Unit::Byte), None);
        assert_eq!(position_between(view(&ones), true, 7, Some(15), Unit::Bit), Some(7));
        assert_eq!(position_between(view(&[0; 3]), true, 0, None, Unit::Byte), None);
    }

    #[test]
    fn field_types_are_written_in_one_way() {
        let accepted = |text: &[u8]| FieldType::parse(text).map(|it| (it.signed, it.bits));
        assert_eq!(accepted(b"i64"), Some((true, 64)));
        assert_eq!(accepted(b"u63"), Some((false, 63)));
        assert_eq!(accepted(b"u8\0x"), Some((false, 8)));
        for text in ["", "i", "8", "u0", "u64", "i65", "i08", "I8", "+8", "i+8", "i8 ", "i100"] {
            assert_eq!(accepted(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn overflow_is_settled_as_by_a_peer() {
        use Overflow::{Fail, Saturate, Wrap};
        let (i8, u8) = (FieldType::new(true, 8).unwrap(), FieldType::new(false, 8).unwrap());
        assert_eq!(i8.fit(200, Wrap), Some(-56));
        assert_eq!(i8.fit(200, Saturate), Some(127));
        assert_eq!(i8.fit(-200, Saturate), Some(-128));
        assert_eq!(i8.fit(i64::MIN, Saturate), Some(127));
        assert_eq!(i8.fit(i64::MIN + 127, Saturate), Some(127));
        assert_eq!(i8.fit(i64::MIN + 128, Saturate), Some(-128));
        assert_eq!(u8.fit(-1, Saturate), Some(255));
        assert_eq!(u8.fit(-1, Fail), None);
        assert_eq!(u8.add(255, -300, Saturate), Some(0));
        assert_eq!(u8.add(250, 10, Wrap), Some(4));
        assert_eq!(i8.add(100, 100, Saturate), Some(127));
        assert_eq!(i8.add(127, 1, Wrap), Some(-128));
        assert_eq!(i8.add(-128, -1, Fail), None);
        let i64_type = FieldType::new(true, 64).unwrap();
        assert_eq!(i64_type.add(i64::MAX, 1, Wrap), Some(i64::MIN));
        assert_eq!(i64_type.add(i64::MIN, -1, Saturate), Some(i64::MIN));
    }

    fn bits_of(bytes: &[u8]) -> Vec<bool> {
        (0..bytes.len() as u64 * 8).map(|offset| get_bit(view(bytes), offset)).collect()
    }

    /// Strings of mostly equal bytes, some longer than any block.
    fn string() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![20 => Just(0), 1 => any::<u8>()];
        let len = prop_oneof![0..20usize, 0..1300usize, 4000..9000usize];
        (len, any::<bool>()).prop_flat_map(move |(len, inverted)| {
            let bytes = prop::collection::vec(byte.clone(), len);
            bytes.prop_map(move |bytes| {
                bytes.into_iter().map(|byte| if inverted { !byte } else { byte }).collect()
            })
        })
    }

    fn operation() -> impl Strategy<Value = BitOperation> {
        use BitOperation::*;
        prop::sample::select(vec![And, Or, Xor, Not, Diff, Diff1, AndOr, One])
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn counting_and_finding_agree_with_bits_one_by_one(
            bytes in string(),
            start in 0..80_000u64,
            len in 0..80_000u64,
            bit: bool,
        ) {
            let bits = bits_of(&bytes);
            prop_assert_eq!(count(view(&bytes)), bits.iter().filter(|bit| **bit).count() as u64);
            let (start, end) = (start % (bits.len() as u64 + 2), start + len);
            let within = || bits.iter().enumerate().filter(|(at, _)| (start..end).contains(&(*at as u64)));
            prop_assert_eq!(count_range(view(&bytes), start..end), within().filter(|(_, bit)| **bit).count() as u64);
            let found = within().find(|(_, other)| **other == bit).map(|(at, _)| at as u64);
            prop_assert_eq!(position(view(&bytes), bit, start..end), found);
        }

        #[test]
        fn strings_combine_bit_by_bit(
            operation in operation(),
            sources in prop::collection::vec(string(), 1..5),
        ) {
            let refs: Vec<StringView<'_>> = sources.iter().map(|source| view(source)).collect();
            // NOT has one source.
            let refs = if operation == BitOperation::Not { &refs[..1] } else { &refs[..] };
            let result = bitop(operation, refs).to_vec();
            prop_assert_eq!(result.len(), refs.iter().map(|source| source.len()).max().unwrap());
            for (at, byte) in result.iter().enumerate() {
                let of = |source: &StringView<'_>| source.byte(at).unwrap_or(0);
                let x = of(&refs[0]);
                let any = refs[1..].iter().fold(0, |any, source| any | of(source));
                let all = refs.iter().fold(0xff, |all, source| all & of(source));
                let odd = refs.iter().fold(0, |odd, source| odd ^ of(source));
                let expected = match operation {
                    BitOperation::And => all,
                    BitOperation::Or => x | any,
                    BitOperation::Xor => odd,
                    BitOperation::Not => !x,
                    BitOperation::Diff => x & !any,
                    BitOperation::Diff1 => any & !x,
                    BitOperation::AndOr => x & any,
                    BitOperation::One => (0..8).map(|bit| 1 << bit).filter(|mask| {
                        refs.iter().filter(|source| of(source) & mask != 0).count() == 1
                    }).sum(),
                };
                prop_assert_eq!(*byte, expected, "at {}", at);
            }
        }

        #[test]
        fn fields_are_big_endian_bits(
            mut bytes in prop::collection::vec(any::<u8>(), 20..21),
            offset in 0..90u64,
            bits in 1..=64u32,
            signed: bool,
            value: i64,
        ) {
            let Some(field) = FieldType::new(signed, bits) else { return Ok(()) };
            let before = bits_of(&bytes);
            let read = |bits: &[bool]| {
                let first = if signed && bits[0] { -1i64 } else { 0 };
                bits.iter().fold(first, |value, bit| value << 1 | i64::from(*bit))
            };
            let place = offset as usize..offset as usize + bits as usize;
            prop_assert_eq!(field.get(view(&bytes), offset), read(&before[place.clone()]));
            field.set(&mut StringMut::Whole(&mut bytes), offset, value);
            let after = bits_of(&bytes);
            prop_assert_eq!(Some(field.get(view(&bytes), offset)), field.settle(value, true, true, Overflow::Wrap));
            prop_assert_eq!(&after[..place.start], &before[..place.start]);
            prop_assert_eq!(&after[place.end..], &before[place.end..]);
            // After the end there are zeros.
            let mut padded = bytes.clone();
            padded.truncate((offset / 8) as usize + 1);
            let cut = field.get(view(&padded), offset);
            padded.resize(20, 0);
            prop_assert_eq!(cut, field.get(view(&padded), offset));
            prop_assert_eq!(field.get(view(&bytes), 160 + offset), 0);
        }

        #[test]
        fn a_string_in_pieces_is_what_it_is_as_a_whole(
            marks in prop::collection::vec((0..3 * PIECE, any::<u8>()), 0..6),
            inverted: bool,
            len in prop_oneof![PIECE + 1..3 * PIECE, Just(2 * PIECE), Just(2 * PIECE + 1)],
            start in 0..24 * PIECE as u64,
            bits in prop_oneof![0..20u64, 0..24 * PIECE as u64],
            near in -80..80i64,
            value: i64,
        ) {
            let mut bytes = vec![if inverted { 0xff } else { 0 }; len];
            marks.iter().filter(|(at, _)| *at < len).for_each(|(at, byte)| bytes[*at] = *byte);
            let mut shared = SharedBytes::from(bytes.as_slice());
            let (whole, pieces) = (view(&bytes), StringView::from(&shared));
            prop_assert!(pieces.as_slice().is_none() && pieces == *bytes && pieces != bytes[1..]);
            prop_assert_eq!(count(whole), count(pieces));
            prop_assert_eq!(count_range(whole, start..start + bits), count_range(pieces, start..start + bits));
            for bit in [false, true] {
                let range = start..start + bits;
                prop_assert_eq!(position(whole, bit, range.clone()), position(pieces, bit, range));
            }
            let both = [whole, pieces, view(b"short")];
            let (xor, not) = (bitop(BitOperation::Xor, &both[..2]), bitop(BitOperation::Not, &both[1..2]));
            prop_assert!(xor.len() == len && xor.pieces(0..len).all(|piece| piece.iter().all(|byte| *byte == 0)));
            prop_assert!(not.to_vec() == bytes.iter().map(|byte| !byte).collect::<Vec<_>>());
            prop_assert!(bitop(BitOperation::Or, &both[1..]).to_vec() == bitop(BitOperation::Or, &[whole, both[2]]).to_vec());
            // Around a border of pieces.
            let offset = (8 * PIECE as i64 + near) as u64;
            let field = FieldType::new(true, 64 - near.unsigned_abs() as u32 % 64).expect("a valid type");
            prop_assume!(bytes_needed(offset, field.bits()).expect("it fits") <= len);
            prop_assert_eq!(field.get(whole, offset), field.get(pieces, offset));
            prop_assert_eq!(get_bit(whole, offset), get_bit(pieces, offset));
            field.set(&mut StringMut::Whole(&mut bytes), offset, value);
            field.set(&mut StringMut::from(&mut shared), offset, value);
            prop_assert_eq!(
                set_bit(&mut StringMut::Whole(&mut bytes), start % (8 * len as u64), value > 0),
                set_bit(&mut StringMut::from(&mut shared), start % (8 * len as u64), value > 0)
            );
            prop_assert!(shared.to_vec() == bytes);
        }
    }
}
