//! Lua's memory: allocated by the server's allocator, counted, and limited while a script runs.

use std::alloc::{Layout, alloc, dealloc, realloc};
use std::cell::Cell;
use std::os::raw::c_void;
use std::ptr::null_mut;

/// The memory of one Lua state, in bytes.
pub(super) struct Memory {
    used: Cell<usize>,
    /// Allocations beyond it fail: the script gets an error. Must be unlimited outside of scripts, where errors are not handled.
    limit: Cell<usize>,
    /// The largest single block: operations on a string or table cannot be interrupted.
    block_max: Cell<usize>,
    failed: Cell<bool>,
}

/// The largest string, or array or hash part of a table, that a script can make: 20 ms of work. With room for headers.
const BLOCK_MAX: usize = (16 << 20) + 4096;

/// Until dropped, blocks may be of any size.
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

    /// Bytes that may still be allocated.
    pub fn left(&self) -> usize {
        self.limit.get().saturating_sub(self.used.get())
    }

    /// Sets the limit.
    pub fn set_limit(&self, bytes: usize) {
        self.limit.set(bytes);
        self.block_max.set(BLOCK_MAX);
        self.failed.set(false);
    }

    /// Removes the limit. True if it was reached.
    pub fn lift_limit(&self) -> bool {
        self.limit.set(usize::MAX);
        self.block_max.set(usize::MAX);
        self.failed.get()
    }

    /// For the values of a reply, whose size is not the script's choice.
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
