//! Prefetching memory while other work is done.
//!
//! Many look-ups are done step by step: the first memory access of each, then the second of each,
//! and so on, so that cache misses of a step overlap.
#![allow(unsafe_code)] // the instruction is unsafe by signature

/// A prefetching look-up of a member or field.
#[derive(Clone, Copy, Debug)]
pub struct Ahead {
    pub hash: u64,
    /// The result of an earlier step, for structures with several levels.
    pub node: u32,
}

/// Bytes of a cache line.
const LINE: usize = 64;

/// Prefetches the cache lines of a range, four at most.
#[inline]
pub fn prefetch_bytes(bytes: &[u8]) {
    let start = bytes.as_ptr().addr();
    for line in (start & !(LINE - 1)..start + bytes.len()).step_by(LINE).take(4) {
        prefetch(line);
    }
}

/// Prefetches an address' cache line. Invalid addresses are ignored.
#[inline]
pub fn prefetch(address: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch neither reads nor faults as far as the program can tell.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::without_provenance(address));
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
    let _ = address;
}
