//! Long texts of library functions: made in pieces, with checks for interrupts, and counted towards
//! the script's memory. Also what all replacements of library functions share.

use std::os::raw::{c_char, c_int};

use mlua::ffi::*;

use super::memory::Memory;
use super::{push_bytes, raise, shared};
use crate::script::libraries::helpers::safepoint;

/// Bytes processed between two checks for interrupts: a millisecond at most.
pub(super) const PIECE: usize = 1 << 20;
/// The most bytes one call produces.
pub(super) const MADE_BYTES_MAX: usize = 256 << 20;

/// Values processed between two checks for interrupts.
pub(super) const VALUES: c_int = 1000;

/// Calls the replaced function with the arguments on the stack, in the same frame, so that its
/// errors name the script's line.
pub(super) unsafe fn call_original(state: *mut lua_State) -> c_int {
    // SAFETY: the upvalue is the replaced function, which takes the frame as it is.
    unsafe {
        match lua_tocfunction(state, lua_upvalueindex(1)) {
            Some(original) => original(state),
            None => 0,
        }
    }
}

/// Checks for interrupts once every `VALUES` values; `number` counts them.
#[inline]
pub(super) unsafe fn look(state: *mut lua_State, number: c_int) {
    if number % VALUES == 0 {
        // SAFETY: errors may be raised here.
        unsafe { safepoint(state) };
    }
}

/// The bytes of a string argument, valid while it exists.
pub(super) unsafe fn text_argument<'a>(state: *mut lua_State, index: c_int) -> &'a [u8] {
    // SAFETY: Lua says where its string is and how long, or raises an error.
    unsafe {
        let mut len = 0;
        let text: *const c_char = luaL_checklstring(state, index, &mut len);
        std::slice::from_raw_parts(text.cast::<u8>(), len)
    }
}

/// Pushes a string of `total` bytes, written by `fill`: it gets the unwritten bytes and the number
/// of written ones, and returns how many it has written.
///
/// # Safety
/// As in [`super`]; also, `fill` writes what it returns, and `total` bytes in all.
pub(super) unsafe fn push_filled(
    state: *mut lua_State,
    total: usize,
    mut fill: impl FnMut(*mut u8, usize) -> usize,
) {
    // SAFETY: Lua gives room for `total` bytes, which `fill` has all written when they are pushed.
    unsafe {
        if total == 0 {
            return push_bytes(state, b"");
        }
        // Written in place: copying many megabytes takes milliseconds.
        let mut buffer = std::mem::MaybeUninit::<luaL_Strbuf>::uninit();
        let target = luaL_buffinitsize(state, buffer.as_mut_ptr(), total).cast::<u8>();
        let mut filled = 0;
        while filled < total {
            filled += fill(target.add(filled), filled);
            if filled < total {
                safepoint(state);
            }
        }
        luaL_pushresultsize(buffer.as_mut_ptr(), total);
    }
}

/// Bytes being collected, up to the largest string of a script. They are kept in pieces, as growing
/// a block of many megabytes would copy it, and count towards the script's memory.
pub(super) struct Text<'a> {
    pieces: Vec<Vec<u8>>,
    state: *mut lua_State,
    memory: &'a Memory,
}

impl Text<'_> {
    /// # Safety
    /// `state` runs the calling function, which uses the text and has room for one value then.
    pub unsafe fn new(state: *mut lua_State) -> Self {
        // SAFETY: the memory lives as long as the state, which outlives the function that it runs.
        let memory = unsafe { &shared(state).memory };
        Text { pieces: Vec::new(), state, memory }
    }

    /// Appends bytes, piece by piece.
    #[inline]
    pub fn push(&mut self, mut bytes: &[u8]) {
        loop {
            let last = self.pieces.last_mut();
            let room = last.map_or(0, |last| {
                // The first piece grows.
                let room = PIECE - last.len();
                let (now, _) = bytes.split_at(room.min(bytes.len()));
                last.extend_from_slice(now);
                room
            });
            if bytes.len() <= room {
                return;
            }
            bytes = &bytes[room..];
            self.add_piece(bytes.len());
        }
    }

    /// Adds a piece for `wanted` or more bytes.
    #[cold]
    fn add_piece(&mut self, wanted: usize) {
        // SAFETY: the state runs the calling function, see `new`.
        unsafe { safepoint(self.state) };
        let is_too_long = wanted > MADE_BYTES_MAX - self.pieces.len() * PIECE;
        if is_too_long || !self.memory.take(PIECE) {
            // SAFETY: as above.
            unsafe { raise(self.state, b"not enough memory") };
        }
        // The first one grows, as most texts are short.
        let capacity = if self.pieces.is_empty() { wanted.min(PIECE) } else { PIECE };
        self.pieces.push(Vec::with_capacity(capacity));
    }

    /// Pushes the bytes as a string.
    pub fn push_string(self) {
        let total = self.pieces.iter().map(Vec::len).sum();
        // SAFETY: there is room for the string, says `new`'s caller, and in it for each piece, as
        // `total` is the sum of their lengths.
        unsafe {
            push_filled(self.state, total, |to, filled| {
                let piece = &self.pieces[filled / PIECE];
                std::ptr::copy_nonoverlapping(piece.as_ptr(), to, piece.len());
                piece.len()
            });
        }
    }
}

impl Drop for Text<'_> {
    fn drop(&mut self) {
        self.memory.give_back(self.pieces.len() * PIECE);
    }
}

/// Bytes counted towards the script's memory until this is dropped.
pub(super) struct Taken<'a>(pub &'a Memory, pub usize);

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.0.give_back(self.1);
    }
}
