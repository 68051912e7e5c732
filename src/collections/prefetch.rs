//! Prefetching: memory that will be needed is fetched while other work is done.
//!
//! Who has many look-ups to do takes them stage by stage: the first place of each, then the second of each, and so on, so that
//! the latencies of a stage overlap.
#![allow(unsafe_code)] // the instruction is unsafe by signature

/// A look-up of a member or field that is to come.
#[derive(Clone, Copy, Debug)]
pub struct Ahead {
    pub hash: u64,
    /// What an earlier stage has found, for a structure that looks in several places.
    pub node: u32,
}

/// Bytes of a cache line.
const LINE: usize = 64;

/// Asks for the lines of a range of bytes, four of them at most.
#[inline]
pub fn prefetch_bytes(bytes: &[u8]) {
    let start = bytes.as_ptr().addr();
    for line in (start & !(LINE - 1)..start + bytes.len()).step_by(LINE).take(4) {
        prefetch(line);
    }
}

/// Asks the processor to fetch the cache line of an address. Any address will do: a wrong one is ignored.
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
