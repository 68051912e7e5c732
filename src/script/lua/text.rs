//! Long texts of library functions: made in pieces, with checks for interrupts, and counted towards
//! the script's memory.

use std::os::raw::{c_char, c_int};

use mlua::ffi::*;

use super::{push_bytes, raise, shared};
use crate::script::libraries::helpers::safepoint;

/// Bytes processed between two checks for interrupts: a millisecond at most.
pub(super) const PIECE: usize = 1 << 20;
/// The most bytes one call produces.
pub(super) const MADE_BYTES_MAX: usize = 256 << 20;

/// The bytes of a string argument, valid while it exists.
pub(super) unsafe fn text_argument<'a>(state: *mut lua_State, index: c_int) -> &'a [u8] {
    let mut len = 0;
    let text: *const c_char = luaL_checklstring(state, index, &mut len);
    // SAFETY: Lua says where its string is and how long.
    std::slice::from_raw_parts(text.cast::<u8>(), len)
}

/// Pushes a string of `total` bytes, written by `fill`: it gets the unwritten bytes and the number
/// of written ones, and returns how many it has written.
pub(super) unsafe fn push_filled(
    state: *mut lua_State,
    total: usize,
    mut fill: impl FnMut(*mut u8, usize) -> usize,
) {
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

/// Bytes being collected, up to the largest string of a script. They are kept in pieces, as growing
/// a block of many megabytes would copy it, and count towards the script's memory.
pub(super) struct Text {
    pieces: Vec<Vec<u8>>,
    state: *mut lua_State,
}

impl Text {
    pub fn new(state: *mut lua_State) -> Self {
        Text { pieces: Vec::new(), state }
    }

    /// Appends bytes, piece by piece.
    #[inline]
    pub unsafe fn push(&mut self, mut bytes: &[u8]) {
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
    unsafe fn add_piece(&mut self, wanted: usize) {
        safepoint(self.state);
        let is_too_long = wanted > MADE_BYTES_MAX - self.pieces.len() * PIECE;
        if is_too_long || !shared(self.state).memory.take(PIECE) {
            raise(self.state, b"not enough memory");
        }
        // The first one grows, as most texts are short.
        let capacity = if self.pieces.is_empty() { wanted.min(PIECE) } else { PIECE };
        self.pieces.push(Vec::with_capacity(capacity));
    }

    /// Pushes the bytes as a string.
    pub unsafe fn push_string(self) {
        let total = self.pieces.iter().map(Vec::len).sum();
        push_filled(self.state, total, |to, filled| {
            let piece = &self.pieces[filled / PIECE];
            std::ptr::copy_nonoverlapping(piece.as_ptr(), to, piece.len());
            piece.len()
        });
    }
}

impl Drop for Text {
    fn drop(&mut self) {
        drop(Taken(self.state, self.pieces.len() * PIECE));
    }
}

/// Bytes counted towards the script's memory until this is dropped.
pub(super) struct Taken(pub *mut lua_State, pub usize);

impl Drop for Taken {
    fn drop(&mut self) {
        // SAFETY: the state lives as long as a function that it runs, to which this belongs.
        unsafe { shared(self.0) }.memory.give_back(self.1);
    }
}
