//! Lua library functions that work in pieces, with checks for interrupts.
//!
//! A call into the interpreter cannot be interrupted, but a script must end within milliseconds
//! even with strings of megabytes. These functions check for interrupts between pieces, and call
//! the interpreter's own for short input. Functions bounded by the largest block (`memory.rs`) are
//! not here. Patterns on long texts are in `patterns.rs`. A test runs every function's worst case
//! (`tests/it/scripts/hostile.rs`).

use std::ffi::CStr;
use std::os::raw::c_int;

use mlua::ffi::*;

use super::positions::{self, narrow, narrow_argument, start_argument, start_of, whole};
use super::text::{
    MADE_BYTES_MAX, PIECE, Taken, Text, VALUES, call_original, look, push_filled, text_argument,
};
use super::{bytes_at, patterns, push_bytes, raise_here, shared, string_at};
use crate::resp::args::before_nul;
use crate::script::libraries::helpers::{LONG_NUMBER, safepoint};
use crate::script::number::format_json;

/// The interpreter joins texts of at most this size. Unit: bytes.
const JOINED_BYTES: usize = 64 << 10;
/// Longer texts are searched by another algorithm.
const WANTED_MAX: usize = 1 << 16;
/// Parts that `string.split` makes between two checks for interrupts.
const PARTS: usize = 1000;
/// Bytes that comparisons may read when a table is sorted without checks for interrupts.
const SORT_BYTES_MAX: usize = 16 << 20;
/// Elements that `table.move` moves between two checks for interrupts.
const MOVED: i64 = 50_000;
/// The size of an array's element in memory.
const ELEMENT_BYTES: usize = 16;
/// Shorter formats, with fewer arguments, are left to the interpreter.
const FORMAT_BYTES: usize = 1024;
const FORMAT_ARGUMENTS: c_int = 50;
/// Matching is left to the interpreter if the product of the lengths of text and pattern is at most
/// this number of steps.
const STEPS_MAX: usize = 1 << 20;
/// The longest replacement left to the interpreter.
const REPLACEMENT_BYTES: usize = 4096;

/// Replacements of the interpreter's functions.
const REPLACED: &[(&CStr, &[(&CStr, lua_CFunction)])] = &[
    (
        c"string",
        &[
            (c"char", char),
            (c"find", find),
            (c"format", format),
            (c"gfind", gmatch),
            (c"gmatch", gmatch),
            (c"gsub", gsub),
            (c"lower", lower),
            (c"match", match_pattern),
            (c"rep", rep),
            (c"reverse", reverse),
            (c"split", split),
            (c"upper", upper),
        ],
    ),
    (
        c"table",
        &[
            (c"clone", with_any_array),
            (c"concat", concat),
            (c"create", with_any_array),
            (c"find", find_value),
            (c"foreach", for_each),
            (c"foreachi", for_each_index),
            (c"move", move_elements),
            (c"sort", sort),
        ],
    ),
    (c"math", &[(c"max", with_numbers), (c"min", with_numbers)]),
];

/// Removed: Lua 5.1 does not have these, and `struct` is better.
const TAKEN_AWAY: [&CStr; 3] = [c"pack", c"packsize", c"unpack"];

/// Functions by library; c"" are globals.
pub(super) type Functions = [(&'static CStr, &'static [(&'static CStr, lua_CFunction)])];

/// Replaces the interpreter's functions, which the replacements can call: by those of this file,
/// and by `others`.
pub(super) unsafe fn open(state: *mut lua_State, others: &Functions) {
    // SAFETY: two values.
    unsafe {
        for (library, functions) in REPLACED.iter().chain(positions::REPLACED).chain(others) {
            match library.is_empty() {
                true => lua_pushvalue(state, LUA_GLOBALSINDEX),
                false => _ = lua_rawgetfield(state, LUA_GLOBALSINDEX, library.as_ptr()),
            }
            for (name, function) in *functions {
                lua_rawgetfield(state, -1, name.as_ptr());
                lua_pushcclosurek(state, *function, name.as_ptr(), 1, None);
                lua_rawsetfield(state, -2, name.as_ptr());
            }
            if *library == c"string" {
                for name in TAKEN_AWAY {
                    lua_pushnil(state);
                    lua_rawsetfield(state, -2, name.as_ptr());
                }
            }
            lua_settop(state, -2);
        }
    }
}

/// `string.rep(s, n)`
unsafe extern "C-unwind" fn rep(state: *mut lua_State) -> c_int {
    // SAFETY: the argument stays on the stack; each copy begins with bytes that are written and has
    // room, as `count` is at most what is left.
    unsafe {
        let text = text_argument(state, 1);
        let times = narrow(luaL_checknumber(state, 2)).max(0) as usize;
        let total = text.len().saturating_mul(times);
        if total > MADE_BYTES_MAX {
            raise_here(state, b"resulting string too large");
        }
        push_filled(state, total, |to, filled| {
            if filled == 0 {
                std::ptr::copy_nonoverlapping(text.as_ptr(), to, text.len());
                return text.len();
            }
            // A multiple of the text, until the last piece.
            let whole = PIECE - PIECE % text.len();
            let most = if whole > 0 { whole } else { text.len() };
            let count = filled.min(most).min(total - filled);
            std::ptr::copy_nonoverlapping(to.sub(filled), to, count);
            count
        });
        1
    }
}

/// Pushes a string of the argument's length, computed from it piece by piece.
unsafe fn push_mapped(state: *mut lua_State, map: fn(&[u8], usize, &mut [u8])) -> c_int {
    // SAFETY: the place has room for the rest of the text, and is written before it is read.
    unsafe {
        let text = text_argument(state, 1);
        push_filled(state, text.len(), |to, filled| {
            let count = PIECE.min(text.len() - filled);
            std::ptr::write_bytes(to, 0, count);
            map(text, filled, std::slice::from_raw_parts_mut(to, count));
            count
        });
        1
    }
}

/// `string.reverse(s)`
unsafe extern "C-unwind" fn reverse(state: *mut lua_State) -> c_int {
    // SAFETY: the interpreter runs this function.
    unsafe {
        push_mapped(state, |text, filled, to| {
            let end = text.len() - filled;
            to.copy_from_slice(&text[end - to.len()..end]);
            to.reverse();
        })
    }
}

/// `string.lower(s)`
unsafe extern "C-unwind" fn lower(state: *mut lua_State) -> c_int {
    // SAFETY: the interpreter runs this function.
    unsafe {
        push_mapped(state, |text, filled, to| {
            to.copy_from_slice(&text[filled..filled + to.len()]);
            to.make_ascii_lowercase();
        })
    }
}

/// `string.upper(s)`
unsafe extern "C-unwind" fn upper(state: *mut lua_State) -> c_int {
    // SAFETY: the interpreter runs this function.
    unsafe {
        push_mapped(state, |text, filled, to| {
            to.copy_from_slice(&text[filled..filled + to.len()]);
            to.make_ascii_uppercase();
        })
    }
}

/// The first occurrence from `start` on.
unsafe fn search(
    state: *mut lua_State,
    text: &[u8],
    wanted: &[u8],
    mut start: usize,
) -> Option<usize> {
    if wanted.len() > WANTED_MAX {
        // SAFETY: the caller's promise.
        return unsafe { search_long(state, &text[start..], wanted) }.map(|at| start + at);
    }
    let finder = memchr::memmem::Finder::new(wanted);
    loop {
        let piece = &text[start..text.len().min(start + PIECE + wanted.len())];
        match finder.find(piece) {
            Some(at) => return Some(start + at),
            None if start + piece.len() == text.len() => return None,
            None => start += PIECE,
        }
        // SAFETY: errors may be raised here.
        unsafe { safepoint(state) };
    }
}

/// As [`search`], for a long text, byte by byte (Knuth, Morris, Pratt): in linear time whatever its
/// repetitions, and interruptible anywhere.
unsafe fn search_long(state: *mut lua_State, text: &[u8], wanted: &[u8]) -> Option<usize> {
    // For each prefix the length of its longest proper prefix that is also its suffix.
    let bytes = size_of_val(wanted) * size_of::<u32>();
    // SAFETY: the state is alive.
    let memory = unsafe { &shared(state).memory };
    if !memory.take(bytes) {
        // SAFETY: errors may be raised here.
        unsafe { super::raise(state, b"not enough memory") };
    }
    let _taken = Taken(memory, bytes);
    let look = |at: usize| {
        if at.is_multiple_of(PIECE) {
            // SAFETY: as above.
            unsafe { safepoint(state) };
        }
    };
    let mut ends = vec![0_u32; wanted.len()];
    let longer = |mut len: usize, byte: u8, ends: &[u32]| {
        while len > 0 && wanted[len] != byte {
            len = ends[len - 1] as usize;
        }
        len + usize::from(wanted[len] == byte)
    };
    let mut len = 0;
    for at in 1..wanted.len() {
        look(at);
        len = longer(len, wanted[at], &ends);
        ends[at] = len as u32;
    }
    len = 0;
    for (at, &byte) in text.iter().enumerate() {
        look(at);
        len = longer(len, byte, &ends);
        if len == wanted.len() {
            return Some(at + 1 - len);
        }
    }
    None
}

/// `string.find(s, pattern [, init [, plain]])`: plain text is searched here; patterns are matched
/// as usual.
unsafe extern "C-unwind" fn find(state: *mut lua_State) -> c_int {
    // SAFETY: the arguments stay on the stack; two values.
    unsafe {
        let (text, wanted) = (text_argument(state, 1), text_argument(state, 2));
        let init = luaL_optnumber(state, 3, 1.0);
        let is_special = |byte: &u8| b"^$*+?.([%-".contains(byte);
        if lua_toboolean(state, 4) == 0 && before_nul(wanted).iter().any(is_special) {
            start_argument(state, 3, text.len());
            return match is_quick(text, wanted) {
                true => call_original(state),
                false => patterns::find_or_match(state, true),
            };
        }
        match search(state, text, wanted, start_of(whole(init), text.len())) {
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
}

/// `string.split(s [, separator])`: the parts between separators (`,`), or single bytes if it is
/// empty.
unsafe extern "C-unwind" fn split(state: *mut lua_State) -> c_int {
    // SAFETY: the arguments stay on the stack; two values above them.
    unsafe {
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
}

/// Converts long texts among the arguments to numbers, one at a time, as each takes milliseconds
/// and there may be thousands. The interpreter does everything else.
unsafe extern "C-unwind" fn with_numbers(state: *mut lua_State) -> c_int {
    // SAFETY: each argument exists, and is replaced in its place.
    unsafe {
        for index in 1..=lua_gettop(state) {
            if !take_number(state, index) {
                break;
            }
        }
        call_original(state)
    }
}

/// `string.char(...)`
unsafe extern "C-unwind" fn char(state: *mut lua_State) -> c_int {
    // SAFETY: as in `with_numbers`.
    unsafe {
        for index in 1..=lua_gettop(state) {
            narrow_argument(state, index);
        }
        with_numbers(state)
    }
}

/// Converts a long text argument to a number. False if it is none.
unsafe fn take_number(state: *mut lua_State, index: c_int) -> bool {
    // SAFETY: one value.
    unsafe {
        if lua_type(state, index) == LUA_TSTRING && lua_objlen(state, index) > LONG_NUMBER {
            safepoint(state);
            let mut is_number = 0;
            let number = lua_tonumberx(state, index, &mut is_number);
            if is_number == 0 {
                return false;
            }
            lua_pushnumber(state, number);
            lua_replace(state, index);
        }
        true
    }
}

/// Whether the interpreter matches a pattern fast enough, and as Lua 5.1 does, for which a NUL ends
/// it.
fn is_quick(text: &[u8], pattern: &[u8]) -> bool {
    before_nul(pattern).len() == pattern.len()
        && !has_other_class(pattern)
        && text.len().saturating_mul(pattern.len()) <= STEPS_MAX
}

/// Whether a pattern has `%g`, or `%G`, which is a letter in Lua 5.1, and a class in Luau.
fn has_other_class(pattern: &[u8]) -> bool {
    let mut rest = pattern;
    while let Some(at) = memchr::memchr2(b'g', b'G', rest) {
        if at > 0 && rest[at - 1] == b'%' {
            return true;
        }
        rest = &rest[at + 1..];
    }
    false
}

/// `string.match(s, pattern [, init])`
unsafe extern "C-unwind" fn match_pattern(state: *mut lua_State) -> c_int {
    // SAFETY: the interpreter runs this function, with the replaced one as upvalue.
    unsafe {
        let text = text_argument(state, 1);
        let is_quick = is_quick(text, text_argument(state, 2));
        start_argument(state, 3, text.len());
        match is_quick {
            true => call_original(state),
            false => patterns::find_or_match(state, false),
        }
    }
}

/// `string.gmatch(s, pattern)`
unsafe extern "C-unwind" fn gmatch(state: *mut lua_State) -> c_int {
    // SAFETY: as in `match_pattern`.
    unsafe {
        match is_quick(text_argument(state, 1), text_argument(state, 2)) {
            true => call_original(state),
            false => patterns::gmatch(state),
        }
    }
}

/// Whether a replacement has a `%` before anything but a digit and another `%`, which stands for
/// that byte.
fn has_escaped_letter(replacement: &[u8]) -> bool {
    let mut rest = replacement;
    while let Some(at) = memchr::memchr(b'%', rest) {
        match rest.get(at + 1) {
            Some(b'0'..=b'9' | b'%') => rest = &rest[at + 2..],
            _ => return true,
        }
    }
    false
}

/// `string.gsub(s, pattern, replacement [, n])`
unsafe extern "C-unwind" fn gsub(state: *mut lua_State) -> c_int {
    // SAFETY: as in `match_pattern`.
    unsafe {
        let is_quick = is_quick(text_argument(state, 1), text_argument(state, 2));
        let is_plain = |text: &[u8]| text.len() <= REPLACEMENT_BYTES && !has_escaped_letter(text);
        narrow_argument(state, 4);
        match lua_type(state, 3) {
            LUA_TSTRING if !string_at(state, 3).is_some_and(is_plain) => patterns::gsub(state),
            LUA_TSTRING | LUA_TNUMBER | LUA_TTABLE | LUA_TFUNCTION if !is_quick => {
                patterns::gsub(state)
            }
            _ => call_original(state),
        }
    }
}

/// `string.format(format, ...)`: item by item, if there are many or any could be long.
unsafe extern "C-unwind" fn format(state: *mut lua_State) -> c_int {
    // SAFETY: room is asked for; the arguments stay on the stack, and results are copied while they
    // are on top.
    unsafe {
        let format = text_argument(state, 1);
        let top = lua_gettop(state);
        let is_long =
            |index| lua_type(state, index) == LUA_TSTRING && lua_objlen(state, index) > LONG_NUMBER;
        // Luau has `%*`, Lua 5.1 does not.
        if format.len() <= FORMAT_BYTES
            && top <= FORMAT_ARGUMENTS
            && !(2..=top).any(is_long)
            && memchr::memchr(b'*', format).is_none()
        {
            return call_original(state);
        }
        luaL_checkstack(state, 4, c"format".as_ptr());
        let (mut text, mut rest, mut argument) = (Text::new(state), format, 1);
        while let Some(at) = memchr::memchr(b'%', rest) {
            text.push(&rest[..at]);
            rest = &rest[at + 1..];
            if let Some((b'%', behind)) = rest.split_first() {
                text.push(b"%");
                rest = behind;
                continue;
            }
            look(state, argument);
            argument += 1;
            if argument > top {
                let message = format!("bad argument #{argument} to 'format' (no value)");
                raise_here(state, message.as_bytes());
            }
            let options = rest.iter().take_while(|byte| b"-+ #0123456789.".contains(byte)).count();
            let len = (options + 1).min(rest.len());
            let (item, behind) = rest.split_at(len);
            rest = behind;
            match item {
                b"s" if lua_type(state, argument) == LUA_TSTRING => {
                    text.push(bytes_at(state, argument).unwrap_or_default());
                    continue;
                }
                b"q" if lua_type(state, argument) == LUA_TSTRING => {
                    push_quoted(state, &mut text, bytes_at(state, argument).unwrap_or_default());
                    continue;
                }
                [.., b's' | b'q'] => {}
                [.., b'*'] => raise_here(state, b"invalid option '%*' to 'format'"),
                _ => _ = take_number(state, argument),
            }
            lua_pushvalue(state, lua_upvalueindex(1));
            push_bytes(state, &[b"%", item].concat());
            lua_pushvalue(state, argument);
            lua_call(state, 2, 1);
            text.push(bytes_at(state, -1).unwrap_or_default());
            lua_settop(state, -2);
        }
        text.push(rest);
        text.push_string();
        1
    }
}

/// Appends a text as a Lua constant, like the interpreter's `%q`.
unsafe fn push_quoted(state: *mut lua_State, text: &mut Text, given: &[u8]) {
    // SAFETY: the state runs the calling function.
    unsafe {
        text.push(b"\"");
        for (index, byte) in given.iter().enumerate() {
            if index % PIECE == PIECE - 1 {
                safepoint(state);
            }
            match byte {
                b'"' | b'\\' | b'\n' => text.push(&[b'\\', *byte]),
                b'\r' => text.push(b"\\r"),
                0 => text.push(b"\\000"),
                _ => text.push(std::slice::from_ref(byte)),
            }
        }
        text.push(b"\"");
    }
}

/// `table.concat(t [, separator [, first [, last]]])`
unsafe extern "C-unwind" fn concat(state: *mut lua_State) -> c_int {
    // SAFETY: room is asked for. The elements are the same in both loops: nothing that runs in
    // between can change them, and the second writes `total` bytes.
    unsafe {
        luaL_checktype(state, 1, LUA_TTABLE);
        let separator = match lua_type(state, 2) {
            LUA_TNONE | LUA_TNIL => b"",
            _ => text_argument(state, 2),
        };
        narrow_argument(state, 3);
        narrow_argument(state, 4);
        let first = luaL_optinteger_(state, 3, 1);
        let last = match lua_type(state, 4) {
            LUA_TNONE | LUA_TNIL => lua_objlen_(state, 1),
            _ => luaL_checkinteger_(state, 4),
        };
        luaL_checkstack(state, 3, c"concat".as_ptr());
        let count = (i64::from(last) - i64::from(first) + 1).max(0) as usize;
        let mut total = separator.len().saturating_mul(count.saturating_sub(1));
        for index in first..=last {
            look(state, index);
            total += match lua_rawgeti_(state, 1, index) {
                LUA_TSTRING => lua_objlen(state, -1),
                LUA_TNUMBER => format_json(lua_tonumber(state, -1), 14).len(),
                _ => {
                    let kind = CStr::from_ptr(luaL_typename(state, -1)).to_string_lossy();
                    let message =
                        format!("invalid value ({kind}) at index {index} in table for 'concat'");
                    raise_here(state, message.as_bytes());
                }
            };
            lua_settop(state, -2);
            if total > MADE_BYTES_MAX {
                super::raise(state, b"not enough memory");
            }
        }
        if count < VALUES as usize && total <= JOINED_BYTES {
            return call_original(state);
        }
        let mut index = first;
        push_filled(state, total, |to, _| {
            lua_rawgeti_(state, 1, index);
            let len = if lua_type(state, -1) == LUA_TNUMBER {
                write_pieces(state, to, &format_json(lua_tonumber(state, -1), 14))
            } else {
                write_pieces(state, to, bytes_at(state, -1).unwrap_or_default())
            };
            lua_settop(state, -2);
            index = index.saturating_add(1);
            len + if index <= last { write_pieces(state, to.add(len), separator) } else { 0 }
        });
        1
    }
}

/// Copies bytes, piece by piece, and returns how many there are.
unsafe fn write_pieces(state: *mut lua_State, to: *mut u8, bytes: &[u8]) -> usize {
    // SAFETY: the caller has room for the bytes at `to`.
    unsafe {
        let mut at = to;
        for piece in bytes.chunks(PIECE) {
            std::ptr::copy_nonoverlapping(piece.as_ptr(), at, piece.len());
            at = at.add(piece.len());
            if bytes.len() > PIECE {
                safepoint(state);
            }
        }
        bytes.len()
    }
}

/// `table.create(count [, value])` and `table.clone(t)` make a large array at once: its size may be
/// one that is not allowed for hash parts.
unsafe extern "C-unwind" fn with_any_array(state: *mut lua_State) -> c_int {
    // SAFETY: as in `match_pattern`.
    unsafe {
        // 0 for a table, and for a value that the original refuses.
        if lua_tonumber(state, 1) > (MADE_BYTES_MAX / ELEMENT_BYTES) as f64 {
            super::raise(state, b"not enough memory");
        }
        let _any_size = shared(state).memory.any_size();
        call_original(state)
    }
}

/// `table.find(t, value [, first])`: the first index of a value in an array, or nil.
unsafe extern "C-unwind" fn find_value(state: *mut lua_State) -> c_int {
    // SAFETY: one value above the arguments, the first of which is a table.
    unsafe {
        luaL_checktype(state, 1, LUA_TTABLE);
        luaL_checkany(state, 2);
        let first = luaL_optinteger_(state, 3, 1);
        if first < 1 {
            return call_original(state);
        }
        for index in first.. {
            // Elements may have metamethods for comparison.
            safepoint(state);
            if lua_rawgeti_(state, 1, index) == LUA_TNIL {
                break;
            }
            if lua_equal(state, 2, -1) != 0 {
                lua_pushnumber(state, f64::from(index));
                return 1;
            }
            lua_settop(state, -2);
        }
        lua_pushnil(state);
        1
    }
}

/// `table.foreach(t, f)`: the first non-nil value returned by `f(key, value)`.
unsafe extern "C-unwind" fn for_each(state: *mut lua_State) -> c_int {
    // SAFETY: five values above the arguments, a table and a function.
    unsafe {
        luaL_checktype(state, 1, LUA_TTABLE);
        luaL_checktype(state, 2, LUA_TFUNCTION);
        lua_pushnil(state);
        while lua_next(state, 1) != 0 {
            // The interpreter does not check for interrupts when functions are called from here.
            safepoint(state);
            lua_pushvalue(state, 2);
            lua_pushvalue(state, -3);
            lua_pushvalue(state, -3);
            lua_call(state, 2, 1);
            if lua_type(state, -1) != LUA_TNIL {
                return 1;
            }
            lua_settop(state, -3);
        }
        0
    }
}

/// `table.foreachi(t, f)`: the same for `f(index, value)` over an array.
unsafe extern "C-unwind" fn for_each_index(state: *mut lua_State) -> c_int {
    // SAFETY: three values above the arguments, a table and a function.
    unsafe {
        luaL_checktype(state, 1, LUA_TTABLE);
        luaL_checktype(state, 2, LUA_TFUNCTION);
        for index in 1..=lua_objlen_(state, 1) {
            safepoint(state);
            lua_pushvalue(state, 2);
            lua_pushnumber(state, f64::from(index));
            lua_rawgeti_(state, 1, index);
            lua_call(state, 2, 1);
            if lua_type(state, -1) != LUA_TNIL {
                return 1;
            }
            lua_settop(state, -2);
        }
        0
    }
}

/// `table.move(source, first, last, to [, target])`: many elements in pieces.
unsafe extern "C-unwind" fn move_elements(state: *mut lua_State) -> c_int {
    // SAFETY: the stack is cut to five arguments, and one value is above them at a time.
    unsafe {
        luaL_checktype(state, 1, LUA_TTABLE);
        let (first, last, to) = (
            i64::from(luaL_checkinteger_(state, 2)),
            i64::from(luaL_checkinteger_(state, 3)),
            i64::from(luaL_checkinteger_(state, 4)),
        );
        let count = last - first + 1;
        let overflows = count > i64::from(c_int::MAX) || to > i64::from(c_int::MAX) - count + 1;
        if count <= MOVED || overflows {
            return call_original(state);
        }
        let target = if lua_type(state, 5) <= LUA_TNIL { 1 } else { 5 };
        luaL_checktype(state, target, LUA_TTABLE);
        lua_settop(state, 5);
        lua_pushvalue(state, target);
        lua_replace(state, 5);
        // From the end if source and target overlap, so that elements are not overwritten before
        // they are moved.
        let is_same = lua_rawequal(state, 1, 5) != 0;
        let from_end = is_same && to > first && to <= last;
        let pieces = (count + MOVED - 1) / MOVED;
        for piece in 0..pieces {
            safepoint(state);
            let piece = if from_end { pieces - 1 - piece } else { piece };
            let begin = piece * MOVED;
            let end = (begin + MOVED).min(count) - 1;
            for (index, number) in [(2, first + begin), (3, first + end), (4, to + begin)] {
                lua_pushnumber(state, number as f64);
                lua_replace(state, index);
            }
            call_original(state);
            lua_settop(state, 5);
        }
        1
    }
}

/// The name of [`less_than`], which stands for the interpreter's own comparison.
pub(super) const LESS_THAN: &CStr = c"(less than)";

/// `a < b`, with a check for interrupts.
unsafe extern "C-unwind" fn less_than(state: *mut lua_State) -> c_int {
    // SAFETY: the interpreter calls this with two arguments.
    unsafe {
        safepoint(state);
        let less = lua_lessthan(state, 1, 2);
        lua_pushboolean(state, less);
        1
    }
}

/// Compares two values by its upvalue, with a check for interrupts.
unsafe extern "C-unwind" fn compare(state: *mut lua_State) -> c_int {
    // SAFETY: the interpreter calls this with two arguments; the upvalue is a function.
    unsafe {
        safepoint(state);
        lua_pushvalue(state, lua_upvalueindex(1));
        lua_insert(state, 1);
        lua_call(state, 2, 1);
        1
    }
}

/// `table.sort(t [, comparison])`: the interpreter's, with a comparison that checks for interrupts.
unsafe extern "C-unwind" fn sort(state: *mut lua_State) -> c_int {
    // SAFETY: one value above the arguments, the first of which is a table.
    unsafe {
        luaL_checktype(state, 1, LUA_TTABLE);
        if lua_type(state, 2) <= LUA_TNIL {
            if !is_sorted_quickly(state) {
                lua_settop(state, 1);
                lua_pushcclosurek(state, less_than, LESS_THAN.as_ptr(), 0, None);
            }
        } else if lua_iscfunction(state, 2) != 0 {
            lua_settop(state, 2);
            lua_pushcclosurek(state, compare, c"compare".as_ptr(), 1, None);
        }
        call_original(state)
    }
}

/// Whether the table at index 1 can be sorted without checks, because its elements are few and
/// short. Other types than numbers and strings may have metamethods for comparison.
unsafe fn is_sorted_quickly(state: *mut lua_State) -> bool {
    // SAFETY: one value above the arguments.
    unsafe {
        let len = lua_objlen(state, 1);
        // A comparison reads the shorter of two strings, at some fixed cost. There are less than
        // two per element and binary digit of their number.
        let comparisons = 2 * len * (len.checked_ilog2().unwrap_or(0) as usize + 1);
        let bytes_max = SORT_BYTES_MAX / comparisons.max(1);
        if bytes_max < 16 {
            return false;
        }
        for index in 1..=len as c_int {
            let is_quick = match lua_rawgeti_(state, 1, index) {
                LUA_TNUMBER => true,
                LUA_TSTRING => lua_objlen(state, -1) <= bytes_max,
                _ => false,
            };
            lua_settop(state, -2);
            if !is_quick {
                return false;
            }
        }
        true
    }
}
