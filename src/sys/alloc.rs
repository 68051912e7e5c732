//! The allocator: jemalloc with size classes every 8 bytes, and a count of what is allocated.
//!
//! `tikv-jemallocator` assumes alignments up to 16, which 8-byte classes do not give; so the few lines that pass the
//! alignment are here. Every thread has its own count: a shared atomic would cost each allocation 5 ns.
#![allow(unsafe_code)] // GlobalAlloc is an unsafe trait, jemalloc a C library.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicIsize, Ordering};

use tikv_jemalloc_sys as jemalloc;

/// The process's allocator.
pub struct Jemalloc;

/// The alignment of every jemalloc block: its quantum.
const QUANTUM: usize = 8;
/// A thread adds its count to the process' when it has changed by this many bytes.
const HANDOVER: isize = 64 * 1024;

static ALLOCATED: AtomicIsize = AtomicIsize::new(0);

thread_local! {
    static HERE: Cell<isize> = const { Cell::new(0) };
}

/// Bytes allocated by the process, as rounded up by the allocator; other threads' last 64 KiB may be missing.
pub fn allocated() -> usize {
    let here = HERE.try_with(Cell::get).unwrap_or(0);
    (ALLOCATED.load(Ordering::Relaxed) + here).max(0) as usize
}

/// Adds this thread's count to the process'. To be called by a thread before it ends if it allocates what others free
/// or vice versa: otherwise up to 64 KiB would be miscounted for ever.
pub fn hand_over() {
    let here = HERE.try_with(Cell::take).unwrap_or(0);
    ALLOCATED.fetch_add(here, Ordering::Relaxed);
}

/// The size class of a request of `size` bytes: every 8 bytes up to 64, then four per power of two, from 32 KiB on whole pages.
#[inline]
pub fn size_class(size: usize) -> usize {
    if size <= 64 {
        return size.next_multiple_of(QUANTUM);
    }
    let spacing = match size {
        ..=32_768 => 1 << (usize::BITS - (size - 1).leading_zeros() - 3),
        _ => 4096,
    };
    size.next_multiple_of(spacing)
}

#[inline]
fn count(bytes: isize) {
    // A thread that is ending has no counter any more; its last frees are not counted.
    let _ = HERE.try_with(|here| {
        let sum = here.get() + bytes;
        if sum.abs() < HANDOVER {
            here.set(sum);
        } else {
            here.set(0);
            ALLOCATED.fetch_add(sum, Ordering::Relaxed);
        }
    });
}

#[inline]
fn flags(layout: Layout) -> c_int {
    if layout.align() > QUANTUM { jemalloc::MALLOCX_ALIGN(layout.align()) } else { 0 }
}

// SAFETY: every block comes from jemalloc with at least the size and the alignment of its layout, and goes back with the
// same layout, as the callers of a GlobalAlloc promise. Nothing here unwinds.
unsafe impl GlobalAlloc for Jemalloc {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller promises a size that is not zero.
        let block = unsafe { jemalloc::mallocx(layout.size(), flags(layout)) };
        if !block.is_null() {
            count(size_class(layout.size()) as isize);
        }
        block.cast()
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as in `alloc`.
        let block =
            unsafe { jemalloc::mallocx(layout.size(), flags(layout) | jemalloc::MALLOCX_ZERO) };
        if !block.is_null() {
            count(size_class(layout.size()) as isize);
        }
        block.cast()
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(-(size_class(layout.size()) as isize));
        // SAFETY: `block` came from here with this layout, as the caller promises.
        unsafe { jemalloc::sdallocx(block.cast(), layout.size(), flags(layout)) }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: `block` came from here with this layout, and the new size is not zero.
        let moved = unsafe { jemalloc::rallocx(block.cast(), new_size, flags(layout)) };
        if !moved.is_null() {
            count(size_class(new_size) as isize - size_class(layout.size()) as isize);
        }
        moved.cast()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_classes_are_jemallocs() {
        for size in (1..5000).chain([20_481, 32_768, 32_769, 65_537, 1 << 20, (1 << 20) + 1]) {
            // SAFETY: `nallocx` only computes.
            let real = unsafe { jemalloc::nallocx(size, 0) };
            assert_eq!(size_class(size), real, "{size} bytes");
        }
    }

    #[test]
    fn large_alignments_are_kept() {
        for align in [16, 32, 64, 4096] {
            let layout = Layout::from_size_align(24, align).expect("a valid layout");
            // SAFETY: the layout has a size, and the block goes back with it.
            unsafe {
                let block = Jemalloc.alloc(layout);
                assert_eq!(block as usize % align, 0);
                Jemalloc.dealloc(block, layout);
            }
        }
    }
}
