//! The allocator: jemalloc with size classes every 8 bytes, and a count of allocations.
//!
//! `tikv-jemallocator` assumes alignments up to 16, which 8-byte classes do not give; so the few
//! lines that pass the alignment are here. Every thread has its own count: a shared atomic would
//! cost each allocation 5 ns. The counts add up in the process' account, or, in a simulation of
//! several servers, in one of several accounts.
//!
//! The memory of a snapshot is no data, and is also counted separately: by [`counted`] on the
//! thread that writes it, by the difference of two [`balance`]s on the thread that fills its
//! chunks.
#![allow(unsafe_code)] // GlobalAlloc is an unsafe trait, jemalloc a C library.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};

use tikv_jemalloc_sys as jemalloc;

/// The process's allocator.
pub struct Jemalloc;

/// The alignment of every jemalloc block: its quantum.
const QUANTUM: usize = 8;
/// A thread adds its count to its account when it has changed by this many bytes.
const HANDOVER: isize = 64 * 1024;

/// Bytes allocated by all threads that share the account: those of the process, or of one of
/// several simulated servers.
#[derive(Debug)]
pub struct Account(AtomicIsize);

static PROCESS: Account = Account(AtomicIsize::new(0));

thread_local! {
    /// Bytes that this thread has not handed over.
    static HERE: Cell<isize> = const { Cell::new(0) };
    /// Bytes that it has handed over, in all.
    static HANDED: Cell<isize> = const { Cell::new(0) };
    /// Also counts the bytes handed over, unless it is null: see [`counted`].
    static GAUGE: Cell<*const AtomicIsize> = const { Cell::new(ptr::null()) };
    static ACCOUNT: Cell<&'static Account> = const { Cell::new(&PROCESS) };
}

impl Account {
    /// An account of its own, for a simulation. It is never freed: a thread's count may end up in
    /// it at any time.
    pub fn open() -> &'static Account {
        Box::leak(Box::new(Account(AtomicIsize::new(0))))
    }

    /// This thread's account.
    pub fn of_thread() -> &'static Account {
        ACCOUNT.try_with(Cell::get).unwrap_or(&PROCESS)
    }

    /// Replaces the count so far. Only this thread may call it, within the account.
    pub fn set(&self, bytes: usize) {
        HERE.set(0);
        self.0.store(bytes as isize, Ordering::Relaxed);
    }

    /// From now on this thread counts for this account. Returns the former one.
    pub fn enter(&'static self) -> &'static Account {
        hand_over();
        ACCOUNT.try_with(|account| account.replace(self)).unwrap_or(&PROCESS)
    }
}

/// Until it is dropped, this thread counts for the process: a simulation's own memory belongs to
/// none of its servers.
#[derive(Debug)]
pub struct Apart(&'static Account);

impl Apart {
    pub fn begin() -> Self {
        Apart(PROCESS.enter())
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        self.0.enter();
    }
}

/// Bytes allocated by the process (in a simulation, by this server), as rounded up by the
/// allocator; other threads' last 64 KiB may be missing.
pub fn allocated() -> usize {
    let here = HERE.try_with(Cell::get).unwrap_or(0);
    (Account::of_thread().0.load(Ordering::Relaxed) + here).max(0) as usize
}

/// Adds this thread's count to its account. A thread calls this before it ends if it allocates
/// memory that other threads free or vice versa: otherwise up to 64 KiB would be miscounted for
/// ever.
pub fn hand_over() {
    add(HERE.try_with(Cell::take).unwrap_or(0));
}

/// Bytes that this thread has allocated less those it has freed, to be compared with an earlier
/// balance.
pub fn balance() -> isize {
    HANDED.get() + HERE.get()
}

/// Adds to `gauge` the bytes that `run` allocates on this thread, and subtracts those that it
/// frees. A nested call with another gauge, or with none, replaces this gauge for its time.
pub fn counted<R>(gauge: Option<&AtomicIsize>, run: impl FnOnce() -> R) -> R {
    struct Restored(*const AtomicIsize);
    impl Drop for Restored {
        fn drop(&mut self) {
            hand_over();
            GAUGE.set(self.0);
        }
    }
    hand_over();
    let _restored = Restored(GAUGE.replace(gauge.map_or(ptr::null(), ptr::from_ref)));
    run()
}

/// Whether this thread is within [`counted`], with a gauge.
pub fn is_counted() -> bool {
    !GAUGE.get().is_null()
}

#[cold]
fn add(sum: isize) {
    Account::of_thread().0.fetch_add(sum, Ordering::Relaxed);
    // A thread that is ending no longer has these counters.
    let _ = HANDED.try_with(|handed| handed.set(handed.get() + sum));
    let gauge = GAUGE.try_with(Cell::get).unwrap_or(ptr::null());
    // SAFETY: `counted` borrows the gauge, and restores the previous one when it ends.
    if let Some(gauge) = unsafe { gauge.as_ref() } {
        gauge.fetch_add(sum, Ordering::Relaxed);
    }
}

/// Whether panics are unwound by LLVM's library: everywhere but with glibc. It copies to an
/// exception as if that were aligned to 16 bytes, but std asks for 8.
const HAS_LLVM_UNWINDER: bool = cfg!(not(all(target_os = "linux", target_env = "gnu")));

/// The size to ask for instead of `size`. Exceptions have 56 bytes; blocks of 64 are aligned.
#[inline]
fn room(size: usize) -> usize {
    match size {
        49..=56 if HAS_LLVM_UNWINDER => 64,
        size => size,
    }
}

/// The size class of a request of `size` bytes: every 8 bytes up to 64 (see [`room`] for an
/// exception), then four per power of two, from eight pages on whole pages. A page has 4 KiB or
/// more, depending on how jemalloc was built.
#[inline]
pub fn size_class(size: usize) -> usize {
    let size = room(size);
    if size <= 64 {
        return size.next_multiple_of(QUANTUM);
    }
    let quarters = 1 << (usize::BITS - (size - 1).leading_zeros() - 3);
    let spacing = match size {
        ..=32_768 => quarters,
        _ => quarters.min(page()),
    };
    size.next_multiple_of(spacing)
}

/// jemalloc's page, a power of two. Unit: bytes.
fn page() -> usize {
    static PAGE: AtomicUsize = AtomicUsize::new(0);
    match PAGE.load(Ordering::Relaxed) {
        0 => {
            let (mut page, mut len) = (4096_usize, size_of::<usize>());
            let place = (&raw mut page).cast();
            // SAFETY: the name ends with a NUL, and its value is a `size_t`, which fits. Nothing is
            // allocated through this allocator.
            unsafe {
                jemalloc::mallctl(c"arenas.page".as_ptr(), place, &mut len, ptr::null_mut(), 0)
            };
            PAGE.store(page, Ordering::Relaxed);
            page
        }
        page => page,
    }
}

#[inline]
fn count(bytes: isize) {
    // A thread that is ending no longer has a counter; its last frees are not counted.
    let _ = HERE.try_with(|here| {
        let sum = here.get() + bytes;
        if sum.abs() < HANDOVER {
            here.set(sum);
        } else {
            here.set(0);
            add(sum);
        }
    });
}

#[inline]
fn flags(layout: Layout) -> c_int {
    if layout.align() > QUANTUM { jemalloc::MALLOCX_ALIGN(layout.align()) } else { 0 }
}

// SAFETY: every block comes from jemalloc with at least the size and the alignment of its layout,
// and goes back with the same layout, as the callers of a GlobalAlloc promise. Nothing here
// unwinds.
unsafe impl GlobalAlloc for Jemalloc {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller promises a size that is not zero.
        let block = unsafe { jemalloc::mallocx(room(layout.size()), flags(layout)) };
        if !block.is_null() {
            count(size_class(layout.size()) as isize);
        }
        block.cast()
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as in `alloc`.
        let block = unsafe {
            jemalloc::mallocx(room(layout.size()), flags(layout) | jemalloc::MALLOCX_ZERO)
        };
        if !block.is_null() {
            count(size_class(layout.size()) as isize);
        }
        block.cast()
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(-(size_class(layout.size()) as isize));
        // SAFETY: `block` came from here with this layout, as the caller promises.
        unsafe { jemalloc::sdallocx(block.cast(), room(layout.size()), flags(layout)) }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: `block` came from here with this layout, and the new size is not zero.
        let moved = unsafe { jemalloc::rallocx(block.cast(), room(new_size), flags(layout)) };
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
        let around = (14..25).flat_map(|power| {
            let whole = 1 << power;
            [whole - 1, whole, whole + 1, whole + whole / 4, whole + whole / 4 + 1]
        });
        for size in (1..5000).chain([20_481]).chain(around) {
            // SAFETY: `nallocx` only computes.
            let real = unsafe { jemalloc::nallocx(room(size), 0) };
            assert_eq!(size_class(size), real, "{size} bytes");
        }
    }

    #[test]
    fn panics_are_caught_wherever_the_allocator_puts_them() {
        // Blocks of the same size, so that the exceptions' places vary.
        let mut between = Vec::new();
        for number in 0..100 {
            let caught = std::panic::catch_unwind(|| std::panic::resume_unwind(Box::new(number)));
            let number = caught.expect_err("a panic").downcast::<i32>();
            between.push(Box::new([0_u64; 7]));
            assert!(number.is_ok());
            let is_aligned = |block: &[u64; 7]| block.as_ptr().addr().is_multiple_of(16);
            assert!(!HAS_LLVM_UNWINDER || between.iter().all(|block| is_aligned(block)));
        }
    }

    #[test]
    fn a_gauge_counts_what_is_allocated_within() {
        let gauge = AtomicIsize::new(0);
        let read = || gauge.load(Ordering::Relaxed);
        let _before = vec![0u8; 1000];
        let (balance_before, kept) = (balance(), vec![0u8; 5000]);
        assert_eq!(balance() - balance_before, 5120);
        let (inside, outside) = counted(Some(&gauge), || {
            assert!(is_counted());
            drop(kept);
            (vec![0u8; 200_000], counted(None, || vec![0u8; 3000]))
        });
        assert!(!is_counted());
        assert_eq!(read(), size_class(200_000) as isize - 5120);
        counted(Some(&gauge), || drop((inside, outside)));
        assert_eq!(read(), -5120 - 3072);
    }

    #[test]
    fn a_thread_counts_for_the_account_that_it_has_entered() {
        let one = Account::open();
        let former = one.enter();
        let kept = vec![0_u8; 100_000];
        let apart = Apart::begin();
        let others = vec![0_u8; 1000];
        drop(apart);
        assert_eq!(allocated(), size_class(100_000));
        former.enter();
        drop(others);
        one.enter();
        drop(kept);
        assert_eq!(allocated(), 0);
        former.enter();
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
