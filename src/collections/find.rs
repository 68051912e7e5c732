//! Finding a number among many: a block of them is compared at once.
#![allow(unsafe_code)] // loads of the processor's wide registers

/// Numbers of a block.
const BLOCK: usize = 16;

/// The place of the first of `numbers` that equals `wanted`.
#[inline]
pub fn position(numbers: &[u32], wanted: u32) -> Option<usize> {
    let (blocks, rest) = numbers.as_chunks::<BLOCK>();
    for (number, block) in blocks.iter().enumerate() {
        let equal = equal_words(block, wanted);
        if equal != 0 {
            return Some(BLOCK * number + equal.trailing_zeros() as usize);
        }
    }
    let found = rest.iter().position(|&other| other == wanted)?;
    Some(BLOCK * blocks.len() + found)
}

/// The first result that is not None for the place of one of `numbers`, little-endian, that equals
/// `wanted`.
#[inline(always)]
pub fn find_short<R>(
    numbers: &[[u8; 2]],
    wanted: u16,
    is: impl Fn(usize) -> Option<R>,
) -> Option<R> {
    let (blocks, rest) = numbers.as_chunks::<BLOCK>();
    for (number, block) in blocks.iter().enumerate() {
        let mut equal = equal_shorts(block, wanted);
        while equal != 0 {
            if let Some(found) = is(BLOCK * number + equal.trailing_zeros() as usize) {
                return Some(found);
            }
            equal &= equal - 1;
        }
    }
    let wanted = wanted.to_le_bytes();
    (BLOCK * blocks.len()..)
        .zip(rest)
        .find_map(|(at, &it)| if it == wanted { is(at) } else { None })
}

/// The same for the lower halves of numbers; `is` also gets the number.
#[inline(always)]
pub fn find_lower<R>(
    numbers: &[u64],
    wanted: u32,
    is: impl Fn(usize, u64) -> Option<R>,
) -> Option<R> {
    let (blocks, rest) = numbers.as_chunks::<8>();
    for (number, block) in blocks.iter().enumerate() {
        let mut equal = equal_lower(block, wanted);
        while equal != 0 {
            let at = equal.trailing_zeros() as usize;
            if let Some(found) = is(8 * number + at, block[at % 8]) {
                return Some(found);
            }
            equal &= equal - 1;
        }
    }
    let of = |(at, &it): (usize, &u64)| if it as u32 == wanted { is(at, it) } else { None };
    (8 * blocks.len()..).zip(rest).find_map(of)
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod wide {
    use std::arch::x86_64::{
        __m128i, _mm_castps_si128, _mm_castsi128_ps, _mm_cmpeq_epi16, _mm_cmpeq_epi32,
        _mm_loadu_si128, _mm_movemask_epi8, _mm_packs_epi16, _mm_packs_epi32, _mm_set1_epi16,
        _mm_set1_epi32, _mm_setzero_si128, _mm_shuffle_ps,
    };

    /// The 16 bytes of a block at a multiple of 16.
    #[inline(always)]
    fn load<T, const N: usize>(block: &[T; N], at: usize) -> __m128i {
        const { assert!(size_of::<T>() * N >= 16) };
        debug_assert!(16 * (at + 1) <= size_of_val(block));
        // SAFETY: both uses below ask for 16 bytes within the block; a load needs no alignment.
        unsafe { _mm_loadu_si128(block.as_ptr().cast::<__m128i>().add(at)) }
    }

    #[inline(always)]
    pub fn equal_words(block: &[u32; 16], wanted: u32) -> u32 {
        // SAFETY: every x86-64 processor has SSE2.
        unsafe {
            let wanted = _mm_set1_epi32(wanted as i32);
            let equal = |at| _mm_cmpeq_epi32(load(block, at), wanted);
            let low = _mm_packs_epi32(equal(0), equal(1));
            let high = _mm_packs_epi32(equal(2), equal(3));
            _mm_movemask_epi8(_mm_packs_epi16(low, high)) as u32
        }
    }

    #[inline(always)]
    pub fn equal_shorts(block: &[[u8; 2]; 16], wanted: u16) -> u32 {
        // SAFETY: as above.
        unsafe {
            let wanted = _mm_set1_epi16(wanted as i16);
            let equal = |at| _mm_cmpeq_epi16(load(block, at), wanted);
            _mm_movemask_epi8(_mm_packs_epi16(equal(0), equal(1))) as u32
        }
    }

    #[inline(always)]
    pub fn equal_lower(block: &[u64; 8], wanted: u32) -> u32 {
        // SAFETY: as above.
        unsafe {
            let wanted = _mm_set1_epi32(wanted as i32);
            let equal = |at| {
                let [one, two] =
                    [load(block, at), load(block, at + 1)].map(|it| _mm_castsi128_ps(it));
                let lower = _mm_castps_si128(_mm_shuffle_ps::<0b10_00_10_00>(one, two));
                _mm_cmpeq_epi32(lower, wanted)
            };
            let equal = _mm_packs_epi32(equal(0), equal(2));
            _mm_movemask_epi8(_mm_packs_epi16(equal, _mm_setzero_si128())) as u32
        }
    }
}

#[cfg(any(not(target_arch = "x86_64"), miri))]
mod wide {
    #[inline(always)]
    fn equal<T, const N: usize>(block: &[T; N], is: impl Fn(&T) -> bool) -> u32 {
        block.iter().enumerate().fold(0, |equal, (at, it)| equal | u32::from(is(it)) << at)
    }

    #[inline(always)]
    pub fn equal_words(block: &[u32; 16], wanted: u32) -> u32 {
        equal(block, |&it| it == wanted)
    }

    #[inline(always)]
    pub fn equal_shorts(block: &[[u8; 2]; 16], wanted: u16) -> u32 {
        equal(block, |&it| it == wanted.to_le_bytes())
    }

    #[inline(always)]
    pub fn equal_lower(block: &[u64; 8], wanted: u32) -> u32 {
        equal(block, |&it| it as u32 == wanted)
    }
}

/// A bit for each number of a block: whether it equals `wanted`.
use wide::{equal_lower, equal_shorts, equal_words};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_wherever_they_are() {
        for len in 0..70usize {
            let words: Vec<u32> = (0..len as u32).map(|it| it * 0x0101_0001).collect();
            let shorts: Vec<[u8; 2]> = (0..len as u16).map(|it| (it * 257).to_le_bytes()).collect();
            // The upper halves are numbers that are looked for below.
            let pairs: Vec<u64> = words
                .iter()
                .rev()
                .zip(&words)
                .map(|(&a, &b)| u64::from(a) << 32 | u64::from(b))
                .collect();
            for at in 0..len {
                assert_eq!(position(&words, words[at]), Some(at));
                let short = u16::from_le_bytes(shorts[at]);
                assert_eq!(find_short(&shorts, short, Some), Some(at));
                assert_eq!(find_short(&shorts, short, |_| None::<()>), None);
                let found = find_lower(&pairs, words[at], |at, pair| Some((at, pair)));
                assert_eq!(found, Some((at, pairs[at])));
            }
            for absent in [1, u32::MAX, 0x0101_0000] {
                assert_eq!(position(&words, absent), None);
                assert_eq!(find_lower(&pairs, absent, |at, _| Some(at)), None);
            }
            assert_eq!(find_short(&shorts, 256, Some), None);
        }
    }

    #[test]
    fn of_several_equal_numbers_the_first_that_will_do_is_found() {
        for len in 1..50usize {
            for wanted in 0..len {
                let is = |at| (at >= wanted).then_some(at);
                assert_eq!(find_short(&vec![[7, 9]; len], 0x0907, is), Some(wanted));
                let pairs = vec![0x5_0000_0004; len];
                assert_eq!(find_lower(&pairs, 4, |at, _| is(at)), Some(wanted));
                assert_eq!(find_lower(&pairs, 5, |at, _| is(at)), None);
            }
            assert_eq!(position(&vec![3; len], 3), Some(0));
        }
    }
}
