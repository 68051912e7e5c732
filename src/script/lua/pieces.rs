//! Functions of Lua's libraries that work in pieces.
//!
//! No call into the interpreter can be interrupted in its midst, and a script that is to end within milliseconds may have
//! strings of megabytes. These functions look for interrupts between one piece and the next; where the interpreter's own do
//! so too (patterns), or what a script can make in one block bounds them (`memory.rs`), there is none here.

use std::os::raw::{c_char, c_int};

use mlua::ffi::*;

use super::sandbox::raise_here;
use super::{NAMES, push_bytes, shared};
use crate::script::library::safepoint;

/// Bytes worked on between two looks for interrupts: a millisecond at most.
const PIECE: usize = 1 << 20;
/// Bytes that one call of `string.rep` makes at most.
const REP_BYTES_MAX: usize = 16 << 20;
/// A longer text is looked for in another way.
const WANTED_MAX: usize = 1 << 16;
/// Parts that `string.split` makes between two looks for interrupts.
const PARTS: usize = 1000;
/// Tables longer than this are sorted with a comparison that looks for interrupts.
const SORT_MAX: c_int = 10_000;

/// Puts the functions in the place of the interpreter's.
pub(super) unsafe fn open(state: *mut lua_State) {
    let library = |name: *const c_char| {
        lua_rawgetfield(state, LUA_GLOBALSINDEX, name);
    };
    let functions: [(&std::ffi::CStr, lua_CFunction); 5] = [
        (c"rep", rep),
        (c"reverse", reverse),
        (c"lower", lower),
        (c"upper", upper),
        (c"split", split),
    ];
    library(c"string".as_ptr());
    for (name, function) in functions {
        lua_pushcfunctiond(state, function, name.as_ptr());
        lua_rawsetfield(state, -2, name.as_ptr());
    }
    put_before(state, c"find", find);
    library(c"table".as_ptr());
    put_before(state, c"sort", sort);
    lua_settop(state, -3);
}

/// Puts a function in the place of one of the table on top of the stack, which it can call.
unsafe fn put_before(state: *mut lua_State, name: &std::ffi::CStr, function: lua_CFunction) {
    for name in NAMES {
        lua_pushstring_(state, name.as_ptr());
    }
    lua_rawgetfield(state, -1 - NAMES.len() as c_int, name.as_ptr());
    lua_pushcclosurek(state, function, name.as_ptr(), NAMES.len() as c_int + 1, None);
    lua_rawsetfield(state, -2, name.as_ptr());
}

/// Calls the function that the running one was put before, with what is on the stack.
unsafe fn call_original(state: *mut lua_State) -> c_int {
    lua_pushvalue(state, lua_upvalueindex(NAMES.len() as c_int + 1));
    lua_insert(state, 1);
    if lua_pcall(state, lua_gettop(state) - 1, LUA_MULTRET, 0) != LUA_OK {
        // It told its caller's place, which is here: the script's is meant.
        if shared(state).ending.get().is_none() && lua_type(state, -1) == LUA_TSTRING {
            luaL_where(state, 1);
            lua_insert(state, -2);
            lua_concat(state, 2);
        }
        lua_error(state);
    }
    lua_gettop(state)
}

/// The bytes of a string that is an argument; they stay where they are as long as it does.
unsafe fn text_argument<'a>(state: *mut lua_State, index: c_int) -> &'a [u8] {
    let mut len = 0;
    let text: *const c_char = luaL_checklstring(state, index, &mut len);
    // SAFETY: Lua says where its string is and how long.
    std::slice::from_raw_parts(text.cast::<u8>(), len)
}

/// Pushes a string of `total` bytes, which `fill` writes: it gets the bytes not yet written and how many there are already, and
/// returns how many it has written.
unsafe fn push_filled(
    state: *mut lua_State,
    total: usize,
    mut fill: impl FnMut(*mut u8, usize) -> usize,
) {
    if total == 0 {
        return push_bytes(state, b"");
    }
    // Into the new string's own memory: a copy of many megabytes takes milliseconds.
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

/// `string.rep(s, n)`
unsafe extern "C-unwind" fn rep(state: *mut lua_State) -> c_int {
    let text = text_argument(state, 1);
    let times = luaL_checknumber(state, 2);
    let times = if times >= 1.0 { times as usize } else { 0 };
    let total = text.len().saturating_mul(times);
    if total > REP_BYTES_MAX {
        raise_here(state, b"resulting string too large");
    }
    push_filled(state, total, |to, filled| {
        if filled == 0 {
            std::ptr::copy_nonoverlapping(text.as_ptr(), to, text.len());
            return text.len();
        }
        // What is there already is a number of whole texts until the last piece.
        let whole = PIECE - PIECE % text.len();
        let most = if whole > 0 { whole } else { text.len() };
        let count = filled.min(most).min(total - filled);
        std::ptr::copy_nonoverlapping(to.sub(filled), to, count);
        count
    });
    1
}

/// Pushes a string of the argument's length, made of it piece by piece.
unsafe fn push_mapped(state: *mut lua_State, map: fn(&[u8], usize, &mut [u8])) -> c_int {
    let text = text_argument(state, 1);
    push_filled(state, text.len(), |to, filled| {
        let count = PIECE.min(text.len() - filled);
        // SAFETY: the place has room for the rest of the text, and is written before it is read.
        std::ptr::write_bytes(to, 0, count);
        map(text, filled, std::slice::from_raw_parts_mut(to, count));
        count
    });
    1
}

/// `string.reverse(s)`
unsafe extern "C-unwind" fn reverse(state: *mut lua_State) -> c_int {
    push_mapped(state, |text, filled, to| {
        let end = text.len() - filled;
        to.copy_from_slice(&text[end - to.len()..end]);
        to.reverse();
    })
}

/// `string.lower(s)`
unsafe extern "C-unwind" fn lower(state: *mut lua_State) -> c_int {
    push_mapped(state, |text, filled, to| {
        to.copy_from_slice(&text[filled..filled + to.len()]);
        to.make_ascii_lowercase();
    })
}

/// `string.upper(s)`
unsafe extern "C-unwind" fn upper(state: *mut lua_State) -> c_int {
    push_mapped(state, |text, filled, to| {
        to.copy_from_slice(&text[filled..filled + to.len()]);
        to.make_ascii_uppercase();
    })
}

/// The first place of a text from `start` on.
unsafe fn search(
    state: *mut lua_State,
    text: &[u8],
    wanted: &[u8],
    mut start: usize,
) -> Option<usize> {
    if wanted.len() > WANTED_MAX {
        return search_long(state, &text[start..], wanted).map(|at| start + at);
    }
    let finder = memchr::memmem::Finder::new(wanted);
    loop {
        let piece = &text[start..text.len().min(start + PIECE + wanted.len())];
        match finder.find(piece) {
            Some(at) => return Some(start + at),
            None if start + piece.len() == text.len() => return None,
            None => start += PIECE,
        }
        safepoint(state);
    }
}

/// The same for a long text, byte by byte (Knuth, Morris, Pratt): however it repeats itself, that takes linear time, and can be
/// interrupted anywhere.
unsafe fn search_long(state: *mut lua_State, text: &[u8], wanted: &[u8]) -> Option<usize> {
    // For each of its beginnings the length of the longest shorter one that is its end too.
    let mut ends = vec![0_u32; wanted.len()];
    let longer = |mut len: usize, byte: u8, ends: &[u32]| {
        while len > 0 && wanted[len] != byte {
            len = ends[len - 1] as usize;
        }
        len + usize::from(wanted[len] == byte)
    };
    let mut len = 0;
    for at in 1..wanted.len() {
        if at.is_multiple_of(PIECE) {
            safepoint(state);
        }
        len = longer(len, wanted[at], &ends);
        ends[at] = len as u32;
    }
    len = 0;
    for (at, &byte) in text.iter().enumerate() {
        if at.is_multiple_of(PIECE) {
            safepoint(state);
        }
        len = longer(len, byte, &ends);
        if len == wanted.len() {
            return Some(at + 1 - len);
        }
    }
    None
}

/// `string.find(s, pattern [, init [, plain]])`: plain text is looked for here; patterns go the usual way.
unsafe extern "C-unwind" fn find(state: *mut lua_State) -> c_int {
    let (text, wanted) = (text_argument(state, 1), text_argument(state, 2));
    let init = luaL_optnumber(state, 3, 1.0);
    let is_special = |byte: &u8| b"^$*+?.([%-".contains(byte);
    if lua_toboolean(state, 4) == 0 && wanted.iter().any(is_special) {
        return call_original(state);
    }
    let from_end = if init < 0.0 { text.len() as f64 + init } else { init - 1.0 };
    let start = from_end.max(0.0).min(text.len() as f64) as usize;
    match search(state, text, wanted, start) {
        Some(at) => {
            lua_pushnumber(state, (at + 1) as f64);
            lua_pushnumber(state, (at + wanted.len()) as f64);
            2
        }
        None => {
            lua_pushnil(state);
            1
        }
    }
}

/// `string.split(s [, separator])`: the parts between separators (`,`), or single bytes if it is empty.
unsafe extern "C-unwind" fn split(state: *mut lua_State) -> c_int {
    let text = text_argument(state, 1);
    let separator = match lua_type(state, 2) {
        LUA_TNONE | LUA_TNIL => b",",
        _ => text_argument(state, 2),
    };
    lua_createtable(state, 0, 0);
    let (mut parts, mut start) = (0, 0);
    let mut put = |part: &[u8]| {
        push_bytes(state, part);
        parts += 1;
        lua_rawseti_(state, -2, parts);
        if (parts as usize).is_multiple_of(PARTS) {
            safepoint(state);
        }
    };
    if separator.is_empty() {
        text.chunks(1).for_each(put);
        return 1;
    }
    while let Some(at) = search(state, text, separator, start) {
        put(&text[start..at]);
        start = at + separator.len();
    }
    put(&text[start..]);
    1
}

/// `a < b`, with a look for interrupts.
unsafe extern "C-unwind" fn less_than(state: *mut lua_State) -> c_int {
    safepoint(state);
    let less = lua_lessthan(state, 1, 2);
    lua_pushboolean(state, less);
    1
}

/// `table.sort(t [, comparison])`
unsafe extern "C-unwind" fn sort(state: *mut lua_State) -> c_int {
    let is_plain = lua_type(state, 1) == LUA_TTABLE && lua_type(state, 2) <= LUA_TNIL;
    if is_plain && lua_objlen(state, 1) as c_int > SORT_MAX {
        lua_settop(state, 1);
        lua_pushcfunction(state, less_than);
    }
    call_original(state)
}
