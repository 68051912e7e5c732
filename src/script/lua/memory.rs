//! Lua's memory: from the server's allocator, counted, with a limit while a script runs.

use std::alloc::{Layout, alloc, dealloc, realloc};
use std::cell::Cell;
use std::os::raw::c_void;
use std::ptr::null_mut;

/// What one Lua state holds and may hold, in bytes.
pub(super) struct Memory {
    used: Cell<usize>,
    /// What would go beyond it fails: the script gets an error. Nothing outside a script is prepared for that.
    limit: Cell<usize>,
    /// A single block may be so large: no work on a string or a table can be interrupted in its midst.
    block_max: Cell<usize>,
    failed: Cell<bool>,
}

/// A string or the array or hash part of a table that a script makes is at most this large: that is 20 ms of work. Room for
/// what goes with the bytes.
const BLOCK_MAX: usize = (16 << 20) + 4096;

/// Blocks may be of any size until this is dropped.
pub(super) struct AnySize<'a>(&'a Memory, usize);

impl Drop for AnySize<'_> {
    fn drop(&mut self) {
        self.0.block_max.set(self.1);
    }
}

impl Memory {
    pub fn new() -> Self {
        Memory {
            used: Cell::new(0),
            limit: Cell::new(usize::MAX),
            block_max: Cell::new(usize::MAX),
            failed: Cell::new(false),
        }
    }

    pub fn used(&self) -> usize {
        self.used.get()
    }

    /// What may still be taken.
    pub fn left(&self) -> usize {
        self.limit.get().saturating_sub(self.used.get())
    }

    /// Sets the limit for what follows.
    pub fn set_limit(&self, bytes: usize) {
        self.limit.set(bytes);
        self.block_max.set(BLOCK_MAX);
        self.failed.set(false);
    }

    /// Lifts the limit. True if it was met.
    pub fn lift_limit(&self) -> bool {
        self.limit.set(usize::MAX);
        self.block_max.set(usize::MAX);
        self.failed.get()
    }

    /// For the values of a reply, which are as large as they are.
    pub fn any_size(&self) -> AnySize<'_> {
        AnySize(self, self.block_max.replace(usize::MAX))
    }
}

/// Objects of Lua hold doubles and pointers.
const ALIGN: usize = 8;

/// `lua_Alloc`. `memory` is a [`Memory`] that outlives the state.
pub(super) unsafe extern "C" fn allocate(
    memory: *mut c_void,
    block: *mut c_void,
    old: usize,
    new: usize,
) -> *mut c_void {
    // SAFETY: the state was made with a pointer to its Memory, of which only shared references exist.
    let memory = unsafe { &*memory.cast::<Memory>() };
    let used = memory.used.get() - if block.is_null() { 0 } else { old };
    if new > isize::MAX as usize - ALIGN
        || ((used + new > memory.limit.get() || new > memory.block_max.get()) && new > old)
    {
        memory.failed.set(true);
        return null_mut();
    }
    // SAFETY: sizes are below isize::MAX, and a block has the size that the state says it has: it was allocated here.
    let (block, size) = unsafe {
        let layout = |size| Layout::from_size_align_unchecked(size, ALIGN);
        match (block.is_null() || old == 0, new) {
            (true, 0) => (null_mut(), 0),
            (true, _) => (alloc(layout(new)), new),
            (false, 0) => {
                dealloc(block.cast(), layout(old));
                (null_mut(), 0)
            }
            (false, _) => (realloc(block.cast(), layout(old), new), new),
        }
    };
    if size > 0 && block.is_null() {
        return null_mut();
    }
    memory.used.set(used + size);
    block.cast()
}
