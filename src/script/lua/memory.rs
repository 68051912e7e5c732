//! Lua's memory: allocated by the server's allocator, counted, and limited while a script runs.

use std::alloc::{Layout, alloc, dealloc, realloc};
use std::cell::Cell;
use std::os::raw::c_void;
use std::ptr::null_mut;

use mlua::ffi::lua_State;

use super::must_end;

/// The memory of one Lua state, in bytes.
pub(super) struct Memory {
    used: Cell<usize>,
    /// The limit beyond which allocations fail, so that the script gets an error. It must be
    /// unlimited outside of scripts, where errors are not handled.
    limit: Cell<usize>,
    /// The largest single block: operations on a string or table cannot be interrupted.
    block_max: Cell<usize>,
    failed: Cell<bool>,
    /// The state whose interrupts are checked while large blocks are made.
    state: Cell<*mut lua_State>,
}

/// The largest string, or array part of a table, that a script can make, with room for headers. The
/// interpreter writes into a block without checks for interrupts: joining two strings takes 0.3 ms
/// for each megabyte, filling an array half of that.
const BLOCK_MAX: usize = (256 << 20) + 4096;

/// The largest hash part of a table, of 2^20 fields of 32 bytes: the interpreter takes up to 100 ms
/// to move as many fields to a part of this size. A larger new block whose size is a power of two
/// is taken for such a part: arrays grow from smaller blocks, and strings have that size, with
/// their headers, for three lengths only.
const HASH_BYTES_MAX: usize = 32 << 20;

/// Larger blocks are obtained from the system and copied piece by piece, with checks for
/// interrupts.
const PIECE: usize = 4 << 20;
const PAGE: usize = 4096;

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
            state: Cell::new(null_mut()),
        }
    }

    /// Sets the state whose interrupts are checked for.
    pub fn set_state(&self, state: *mut lua_State) {
        self.state.set(state);
    }

    /// Counts bytes outside of Lua's blocks that a script makes the server hold. False if they
    /// exceed the memory left.
    pub fn take(&self, bytes: usize) -> bool {
        let fits = bytes <= self.left();
        match fits {
            true => self.used.set(self.used.get() + bytes),
            false => self.failed.set(true),
        }
        fits
    }

    pub fn give_back(&self, bytes: usize) {
        self.used.set(self.used.get() - bytes);
    }

    /// Whether a block may be made in place of one of another size.
    fn allows(&self, old: usize, new: usize) -> bool {
        let is_hash = old == 0 && new > HASH_BYTES_MAX && new.is_power_of_two();
        let block_max = self.block_max.get();
        self.used.get() - old + new <= self.limit.get()
            && new <= block_max
            && !(is_hash && block_max != usize::MAX)
    }

    /// Whether the running script must end.
    fn must_end(&self) -> bool {
        let state = self.state.get();
        // SAFETY: the state lives as long as anything is allocated for it, and its stack is not
        // touched.
        self.limit.get() != usize::MAX && !state.is_null() && unsafe { must_end(state) }
    }

    /// A new block with the start of an old one, which is kept if this fails. Null if there is no
    /// memory, or the script must end.
    ///
    /// # Safety
    /// There are `old` bytes at `block`.
    unsafe fn make_large(&self, block: *const u8, old: usize, new: usize) -> *mut u8 {
        // SAFETY: the layout is that of `allocate`; pieces lie within both blocks.
        unsafe {
            let layout = Layout::from_size_align_unchecked(new, ALIGN);
            let made = alloc(layout);
            if made.is_null() {
                return made;
            }
            for at in (0..new).step_by(PIECE) {
                let copied = PIECE.min(old.saturating_sub(at));
                if copied > 0 {
                    std::ptr::copy_nonoverlapping(block.add(at), made.add(at), copied);
                }
                // The system provides a page of memory at its first write, which takes longer than
                // the write itself.
                let touched = at + copied..new.min(at + PIECE);
                touched.step_by(PAGE).for_each(|at| made.add(at).write_volatile(0));
                if self.must_end() {
                    dealloc(made, layout);
                    return null_mut();
                }
            }
            made
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
    // SAFETY: the state was made with a pointer to its Memory, of which only shared references
    // exist.
    let memory = unsafe { &*memory.cast::<Memory>() };
    let old = if block.is_null() { 0 } else { old };
    if new > isize::MAX as usize - ALIGN || new > old && !memory.allows(old, new) {
        memory.failed.set(true);
        return null_mut();
    }
    // SAFETY: sizes are below isize::MAX, and a block has the size that the state says it has: it
    // was allocated here.
    let block = unsafe {
        let layout = |size| Layout::from_size_align_unchecked(size, ALIGN);
        let block = block.cast::<u8>();
        match (old, new) {
            (0, 0) => null_mut(),
            (_, 0) => {
                dealloc(block, layout(old));
                null_mut()
            }
            (_, PIECE..) if new > old => {
                let made = memory.make_large(block, old, new);
                if old > 0 && !made.is_null() {
                    dealloc(block, layout(old));
                }
                made
            }
            (0, _) => alloc(layout(new)),
            (_, _) => realloc(block, layout(old), new),
        }
    };
    if new > 0 && block.is_null() {
        return null_mut();
    }
    memory.used.set(memory.used.get() - old + new);
    block.cast()
}
